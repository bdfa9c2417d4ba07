//! [`IdSnapshot`]: the pairs of one id at one point in time.
//!
//! Taking a snapshot copies pairs from memory and reads no disk, so a caller can take it together
//! with a counter under the lock of a write. Counting reads the runs later, without the lock. A
//! rewrite may replace the runs meanwhile; the snapshot keeps the old ones open.

use crate::merge::{MergeSource, merge};
use crate::pair::{Pair, Pairs};
use crate::ranges::Range;
use std::sync::Arc;

/// Pairs of an id: those in memory, and the runs of its range. See
/// [`Ledger::snapshot`](crate::Ledger::snapshot).
#[derive(Debug)]
pub struct IdSnapshot {
    pub(crate) id: u64,
    pub(crate) memory: Pairs,
    /// Largest run identity that a drop of the id applies to.
    pub(crate) dropped_up_to: u64,
    pub(crate) range: Arc<Range>,
}

impl IdSnapshot {
    /// Whether memory had no pair of the id. Each change of a pair adds it to memory, where it
    /// stays until the [version](crate::Ledger::version) changes.
    pub fn is_flushed(&self) -> bool {
        self.memory.is_empty()
    }

    /// Calls `each` for each set pair, in order. Blocks on disk reads.
    pub fn for_each(self, mut each: impl FnMut(Pair<'_>)) -> store::Result<()> {
        let IdSnapshot { id, memory, dropped_up_to, range } = self;
        let mut sources = vec![MergeSource::of_pairs(memory, None)];
        // A dropped id has no pairs in older runs, which may be damaged.
        for run in range.runs.iter().filter(|run| run.identity() > dropped_up_to) {
            sources.push(MergeSource::of_run(run, id, None)?);
        }
        merge(
            &mut sources,
            |_, _| false,
            |pair| {
                if pair.id == id && pair.set {
                    each(pair);
                }
                Ok(pair.id == id)
            },
        )
    }
}
