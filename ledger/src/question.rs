//! Lookup in steps: each step returns the next block to read.
//!
//! [`PendingLookup::read`] blocks on the disk; the caller chooses the thread. Consecutive lookups
//! share a [`BlockBuffer`], which keeps the last block of each run.

use crate::pair::{Member, OwnedMember, hash_of};
use crate::ranges::Range;
use std::sync::Arc;
use store::BLOCK_BYTES;

/// Result of a lookup step.
#[derive(Debug)]
pub enum Answer {
    /// Whether the pair is set.
    Known(bool),
    /// The lookup needs a block.
    NeedsBlock(PendingLookup),
}

/// Pending lookup that needs a block.
#[derive(Clone, Debug)]
pub struct PendingLookup {
    id: u64,
    member: OwnedMember,
    hash: u64,
    range: Arc<Range>,
    /// Largest run identity to which the id's drop record applies. The lookup skips the runs up to
    /// this identity.
    dropped_up_to: u64,
    /// Current run, and the block to read in it.
    run: usize,
    block: usize,
    seen: u64,
}

impl PendingLookup {
    /// Begins a lookup. `seen` is the ledger's current version.
    pub(crate) fn begin(
        (id, member): (u64, Member<'_>),
        range: &Arc<Range>,
        dropped_up_to: u64,
        seen: u64,
    ) -> Answer {
        let hash = hash_of(id, member);
        match next_block(range, 0, (id, member, hash), dropped_up_to) {
            Some((run, block)) => Answer::NeedsBlock(PendingLookup {
                id,
                member: member.to_owned(),
                hash,
                range: range.clone(),
                dropped_up_to,
                run,
                block,
                seen,
            }),
            None => Answer::Known(false),
        }
    }

    /// Returns the pair that is looked up.
    pub fn pair(&self) -> (u64, Member<'_>) {
        (self.id, self.member.as_member())
    }

    /// Returns the ledger's version when the lookup began, for
    /// [`Ledger::settle`](crate::Ledger::settle).
    pub fn seen(&self) -> u64 {
        self.seen
    }

    fn take(mut self, block: &[u8; BLOCK_BYTES]) -> store::Result<Answer> {
        let run = &self.range.runs[self.run];
        if let Some(set) = run.find(self.block, block, self.pair())? {
            return Ok(Answer::Known(set));
        }
        let pair = (self.id, self.member.as_member(), self.hash);
        let Some((run, block)) = next_block(&self.range, self.run + 1, pair, self.dropped_up_to)
        else {
            return Ok(Answer::Known(false));
        };
        (self.run, self.block) = (run, block);
        Ok(Answer::NeedsBlock(self))
    }

    /// Reads the block and returns the next step. Blocks on the disk.
    pub fn read(self) -> store::Result<Answer> {
        let mut block = [0; BLOCK_BYTES];
        self.range.runs[self.run].read(self.block, &mut block)?;
        self.take(&block)
    }

    /// Like [`PendingLookup::read`], but reads the block only if `buffer` does not contain it.
    pub fn read_buffered(self, buffer: &mut BlockBuffer) -> store::Result<Answer> {
        let BlockBuffer { range, blocks, reads } = buffer;
        if !range.as_ref().is_some_and(|range| Arc::ptr_eq(range, &self.range)) {
            *range = Some(self.range.clone());
            blocks.clear();
            blocks.resize(self.range.runs.len(), None);
        }
        let (number, bytes) =
            blocks[self.run].get_or_insert_with(|| (usize::MAX, Box::new([0; BLOCK_BYTES])));
        if *number != self.block {
            *number = usize::MAX;
            self.range.runs[self.run].read(self.block, bytes)?;
            (*number, *reads) = (self.block, *reads + 1);
        }
        self.take(bytes)
    }
}

/// The last block read from each run of a range. Lookups in the order of their pairs need most
/// blocks several times in succession.
#[derive(Debug, Default)]
pub struct BlockBuffer {
    range: Option<Arc<Range>>,
    /// For each run, the block number and the contents of the block.
    blocks: Vec<Option<(usize, Box<[u8; BLOCK_BYTES]>)>>,
    /// Number of blocks read from disk.
    pub reads: u64,
}

/// Returns the first run, starting at index `from`, that may contain the pair, and the block in it.
fn next_block(
    range: &Range,
    from: usize,
    (id, member, hash): (u64, Member<'_>, u64),
    dropped_up_to: u64,
) -> Option<(usize, usize)> {
    let runs = range.runs.iter().enumerate().skip(from);
    let mut runs = runs.take_while(|(_, run)| run.identity() > dropped_up_to);
    runs.find_map(|(at, run)| Some((at, run.block_of(id, member, hash)?)))
}
