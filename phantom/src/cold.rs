//! Tables whose filters lie elsewhere: on a disk, which this crate reads only through a
//! [`ColdBackend`].
//!
//! ```text
//!   read:   revoked? late? -> yes, or no;  else ColdBackend::has
//!   write:  under the pair's stripe the same; what becomes set goes to `late`
//!   spill:  the table is frozen: in its place comes one that has it below itself -> Rewrite: its
//!           pages, with what is late -> ColdBackend answers
//!   merge:  the same, with the pages that lie elsewhere
//! ```
//!
//! A block of another site's filters that a log brings is kept beside them in the same way
//! (`blocks`).
//!
//! Filters cannot be merged with a changed few pairs but by writing all of their pages anew. So
//! pairs that are set late are kept exactly (`late`), as those that are unset are, until there are
//! enough of them. They go into the first filter of the chain that has room for all of them; if
//! none has, the chain gets one more. A check asks one page of each filter of the chain: of one, if
//! the table was closed early enough.
//!
//! **C1** A pair leaves `late` only after what lies below has its bits; a reader asks `late` first.
//! **C2** A filter that is below never changes: a table is frozen behind the barrier that keeps its
//! writers out, and readers with the old list see the table that it was. **C3** While a log is read
//! again nothing is asked below: what is told is kept, and found to be there already when it is
//! merged.

use crate::Error;
use crate::deleted_pairs::DeletedPairs;
use crate::filter::{PAGE_BYTES, page_has, page_of};
use crate::hash::Pair;
use crate::options::Change;
use crate::sizing::Sizing;
use crate::space::Space;
use crate::table::Table;
use parking_lot::RwLock;
use rolling::Unreadable;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

mod merged_blocks;
mod pending;
mod rewrite;

pub use pending::{Late, Note};
pub use rewrite::Rewrite;

use merged_blocks::{BLOCK_PAIRS, LateBlock, LateBlocks};

/// What a late pair is counted as: its hash, and its share of the set.
const LATE_BYTES: u64 = 32;
/// Late pairs may take one part in so many of what the tables in memory may.
const LATE_PART: u64 = 16;

/// Has the filters of one table. May be called from any thread.
pub trait ColdBackend: Send + Sync {
    /// Whether all bits of the pair are set in one of the filters. May take as long as a read of
    /// the disk.
    fn has(&self, pair: &Pair) -> Result<bool, Unreadable>;

    /// What it is called: not 0, and never again the name of others.
    fn identity(&self) -> u64;
}

/// One filter of a chain.
#[derive(Clone)]
struct Part {
    sizing: Sizing,
    pages: usize,
    /// Number of its first page among those of all.
    first: usize,
    pairs: u64,
}

/// The filters of a table that lie elsewhere, one after the other: where the bits of a pair are.
#[derive(Clone)]
pub struct Chain {
    rate: f64,
    parts: Vec<Part>,
}

impl Chain {
    fn new(rate: f64, first_pages: usize, pairs: &[u64]) -> Chain {
        let mut chain = Chain { rate, parts: Vec::new() };
        pairs.iter().for_each(|&pairs| chain.extend(first_pages, pairs));
        chain
    }

    fn of(table: &Table) -> Chain {
        let mut chain = Chain { rate: table.rate(), parts: Vec::new() };
        for link in table.links() {
            let (sizing, pages, first) =
                (*link.filter.sizing(), link.filter.pages(), chain.pages());
            // What was merged unevenly leaves less room than its number says.
            chain.parts.push(Part { sizing, pages, first, pairs: link.load() });
        }
        chain
    }

    fn extend(&mut self, first_pages: usize, pairs: u64) {
        let (sizing, pages) = Table::geometry(self.rate, first_pages, self.parts.len());
        self.parts.push(Part { sizing, pages, first: self.pages(), pairs });
    }

    /// Pages of all filters.
    pub fn pages(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.pages)
    }

    /// The page of a pair in each filter, by its number among those of all. It is set if one of
    /// them has it.
    pub fn places(&self, pair: &Pair) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.first + page_of(pair, part.pages))
    }

    /// Whether all bits of a pair are set in its page of the filter number `filter`.
    pub fn has(&self, filter: usize, pair: &Pair, page: &[u8; PAGE_BYTES]) -> bool {
        page_has(page, pair, self.parts[filter].sizing.bits)
    }

    /// Filters: each costs a check one page.
    pub fn links(&self) -> usize {
        self.parts.len()
    }

    /// Pairs in all filters.
    pub fn pairs(&self) -> u64 {
        self.parts.iter().map(|part| part.pairs).sum()
    }

    pub(crate) fn first_pages(&self) -> usize {
        self.parts[0].pages
    }

    pub(crate) fn first_pairs(&self) -> u64 {
        self.parts[0].pairs
    }

    pub(crate) fn first_capacity(&self) -> u64 {
        self.parts[0].sizing.capacity(self.parts[0].pages)
    }

    /// The error rate that its pairs give, by the formula.
    pub(crate) fn rate(&self) -> f64 {
        self.parts.iter().map(|part| part.sizing.rate(part.pairs, part.pages)).sum()
    }
}

/// What a cold table asks.
enum Lower {
    /// The table that it was: until this has been written.
    Memory(Arc<Table>),
    Elsewhere(Arc<dyn ColdBackend>, Arc<Chain>),
}

impl Lower {
    fn chain(&self) -> Arc<Chain> {
        match self {
            // Writes under way when it was frozen have been counted since.
            Lower::Memory(table) => Arc::new(Chain::of(table)),
            Lower::Elsewhere(_, chain) => chain.clone(),
        }
    }
}

/// What stands for the filters of a table that are not in it. See the top of the file.
pub(crate) struct Cold {
    lower: RwLock<Arc<Lower>>,
    /// Pairs that were set since.
    late: DeletedPairs,
    /// Blocks that came since.
    blocks: LateBlocks,
    /// Of all tables of the space: pairs that were set since, and what blocks count for.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Cold {
    fn new(lower: Lower) -> Cold {
        Cold {
            lower: RwLock::new(Arc::new(lower)),
            late: DeletedPairs::small(),
            blocks: LateBlocks::default(),
            total: OnceLock::new(),
        }
    }

    fn lower(&self) -> Arc<Lower> {
        self.lower.read().clone()
    }

    pub(crate) fn chain(&self) -> Arc<Chain> {
        self.lower().chain()
    }

    /// The table below, if it is still in memory.
    pub(crate) fn memory(&self) -> Option<Arc<Table>> {
        match &*self.lower() {
            Lower::Memory(table) => Some(table.clone()),
            Lower::Elsewhere(..) => None,
        }
    }

    fn identity(&self) -> u64 {
        match &*self.lower() {
            Lower::Memory(_) => 0,
            Lower::Elsewhere(below, _) => below.identity(),
        }
    }

    /// From now on its late pairs are counted with those of the space.
    pub(crate) fn count_in(&self, total: &Arc<AtomicUsize>) {
        if self.total.set(total.clone()).is_ok() {
            total.fetch_add(self.late(), Relaxed);
        }
    }

    /// Pairs that came late, and for each block as many as take its memory.
    pub(crate) fn late(&self) -> usize {
        self.late.len() + self.blocks.len() * BLOCK_PAIRS
    }

    pub(crate) fn late_bytes(&self) -> usize {
        self.late.size_bytes() + self.blocks.len() * BLOCK_PAIRS * LATE_BYTES as usize
    }

    pub(crate) fn pairs(&self) -> u64 {
        self.chain().pairs() + self.late.len() as u64
    }

    fn keep_late(&self, hash: u128) {
        if self.late.insert(hash)
            && let Some(total) = self.total.get()
        {
            total.fetch_add(1, Relaxed);
        }
    }

    /// Keeps a block of the filter number `link`, which has as many words as one of its place.
    pub(crate) fn keep_block(&self, link: usize, block: usize, words: Vec<u64>) {
        let chain = self.chain();
        if self
            .blocks
            .put((chain.rate, chain.first_pages()), &LateBlock { link, block, words: words.into() })
            && let Some(total) = self.total.get()
        {
            total.fetch_add(BLOCK_PAIRS, Relaxed);
        }
    }

    fn forget_late(&self, hashes: &[u128], blocks: &[LateBlock]) {
        let gone = hashes.iter().filter(|&&hash| self.late.remove(hash)).count()
            + self.blocks.forget(blocks) * BLOCK_PAIRS;
        if let Some(total) = self.total.get() {
            total.fetch_sub(gone, Relaxed);
        }
    }

    fn has(&self, pair: &Pair) -> Result<bool, Unreadable> {
        if self.blocks.have(pair) {
            return Ok(true);
        }
        // After `late` and blocks were asked: C1.
        match &*self.lower() {
            Lower::Memory(table) => Ok(table.has_in_memory(pair)),
            Lower::Elsewhere(below, _) => below.has(pair),
        }
    }

    /// Whether the pair is set or revoked.
    #[cold]
    pub(crate) fn seems_set(
        &self,
        pair: &Pair,
        revoked: &DeletedPairs,
    ) -> Result<bool, Unreadable> {
        let hash = pair.hash();
        Ok(revoked.contains(hash) || self.late.contains(hash) || self.has(pair)?)
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        if let Some(total) = self.total.get() {
            total.fetch_sub(self.late(), Relaxed);
        }
    }
}
impl Space {
    /// Whether there is no room in memory for the next table, or for as much of what comes late to
    /// others: the oldest is to be written elsewhere.
    pub fn is_short(&self) -> bool {
        let next = self.next_pages(self.ring.load().newest().table());
        let is_full = || {
            self.pages_in_memory() + next > self.max_pages() || !self.may_grow(next * PAGE_BYTES)
        };
        self.spills() && is_full()
    }

    /// The lowest id of the oldest table that is in memory, and the bytes of its filters; `None`:
    /// that is the newest.
    pub fn oldest_in_memory(&self) -> Option<(u64, u64)> {
        let tables = self.ring.load();
        let (_newest, old) = tables.entries().split_last()?;
        let entry = old.iter().find(|entry| entry.table().pages_in_memory() > 0)?;
        Some((entry.slot().low(), entry.table().filter_bytes() as u64))
    }

    /// The ranges of the tables that are in memory, both ends inclusive, oldest first.
    pub fn ranges_in_memory(&self) -> Vec<(u64, u64)> {
        let tables = self.ring.load();
        let here = tables.entries().iter().filter(|entry| entry.table().pages_in_memory() > 0);
        here.map(|entry| (entry.slot().low(), entry.slot().last())).collect()
    }

    /// Whether the filters of the table over `id` are to be left alone: they lie elsewhere, or soon
    /// will.
    pub fn is_cold(&self, id: u64) -> bool {
        self.table_over(id).is_some_and(|(_, table)| table.cold().is_some())
    }

    /// Whether it must be asked elsewhere if the pair is set.
    pub fn lies_elsewhere(&self, pair: &Pair) -> bool {
        let Some((_, table)) = self.table_over(pair.id) else { return false };
        let Some(cold) = table.cold().filter(|cold| cold.memory().is_none()) else { return false };
        !table.revoked.contains(pair.hash())
            && !cold.late.contains(pair.hash())
            && !cold.blocks.have(pair)
    }

    /// Late pairs of all tables, and the most that there may be. A block of another site's table
    /// counts as 2,048.
    pub fn late(&self) -> (usize, usize) {
        let most = self.max_pages() as u64 * 4096 / LATE_PART / LATE_BYTES;
        (self.late.load(Relaxed), most.max(64) as usize)
    }

    /// The lowest id of the table with the most late pairs, and how many, of the tables of which
    /// `may` says yes to that id; `None`: there are none.
    pub fn most_late(&self, may: impl Fn(u64) -> bool) -> Option<(u64, usize)> {
        let tables = self.ring.load();
        let late = tables
            .entries()
            .iter()
            .filter_map(|e| Some((e.slot().low(), e.table().cold()?.late())));
        late.filter(|late| late.1 > 0 && may(late.0)).max_by_key(|late| late.1)
    }

    /// As [`change_in`](Space::change_in), for a table whose filters lie elsewhere.
    #[cold]
    pub(crate) fn change_cold<E: From<Error>>(
        &self,
        table: &Table,
        cold: &Cold,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        let hash = pair.hash();
        let is_set = if table.revoked.contains(hash) {
            false
        } else if cold.late.contains(hash) {
            true
        } else if replay {
            // C3.
            !set
        } else {
            cold.has(pair).map_err(Error::from)?
        };
        if is_set == set {
            return Ok(Change::Unchanged);
        }
        if !set {
            self.revoke(table, hash, replay, first)?;
            return Ok(Change::Changed);
        }
        let (late, most) = self.late();
        if late >= most && !replay {
            return Err(Error::LateFull.into());
        }
        first()?;
        // Also what was revoked: a log that was read again may have revoked what is not there.
        cold.keep_late(hash);
        table.revoked.remove(hash);
        table.touch();
        Ok(Change::Changed)
    }
}

#[cfg(test)]
mod tests;
