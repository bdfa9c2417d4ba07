//! What stands for the filters of a table that lie elsewhere: what is asked there, and what has
//! come late since. How a table gets there is in `cold`, whose rules hold here.

use crate::deleted_pairs::DeletedPairs;
use crate::filter::{PAGE_BYTES, page_has, page_of};
use crate::hash::Pair;
use crate::sizing::Sizing;
use crate::table::Table;
use parking_lot::RwLock;
use rolling::Unreadable;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a late pair is counted as: its hash, and its share of the set.
pub(crate) const LATE_BYTES: u64 = 32;

/// Has the filters of one table. May be called from any thread.
pub trait ColdBackend: Send + Sync {
    /// Whether all bits of the pair are set in one of the filters. May take as long as a read of
    /// the disk.
    fn has(&self, pair: &Pair) -> Result<bool, Unreadable>;

    /// Reads the pages from number `first` on, as many as fill `pages`. May take as long as some
    /// reads of the disk.
    fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), Unreadable>;

    /// What it is called: not 0, and never again the name of others.
    fn identity(&self) -> u64;
}

/// One filter of a chain.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) sizing: Sizing,
    pub(crate) pages: usize,
    /// Number of its first page among those of all.
    pub(crate) first: usize,
    pub(crate) pairs: u64,
}

/// The filters of a table that lie elsewhere, one after the other: where the bits of a pair are.
#[derive(Clone)]
pub struct Chain {
    pub(crate) rate: f64,
    pub(crate) parts: Vec<Part>,
}

impl Chain {
    pub(crate) fn new(rate: f64, first_pages: usize, pairs: &[u64]) -> Chain {
        let mut chain = Chain { rate, parts: Vec::new() };
        pairs.iter().for_each(|&pairs| chain.extend(first_pages, pairs));
        chain
    }

    pub(crate) fn of(table: &Table) -> Chain {
        let mut chain = Chain { rate: table.rate(), parts: Vec::new() };
        for link in table.links() {
            let (sizing, pages, first) =
                (*link.filter.sizing(), link.filter.pages(), chain.pages());
            chain.parts.push(Part { sizing, pages, first, pairs: link.pairs() });
        }
        chain
    }

    pub(crate) fn extend(&mut self, first_pages: usize, pairs: u64) {
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

    /// The filter with the page of this number, of those of all.
    pub(crate) fn link_of(&self, page: usize) -> usize {
        self.parts.iter().rposition(|part| part.first <= page).unwrap_or(0)
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
pub(crate) enum Lower {
    /// The table that it was: until this has been written.
    Memory(Arc<Table>),
    Elsewhere(Arc<dyn ColdBackend>, Arc<Chain>),
}

impl Lower {
    pub(crate) fn chain(&self) -> Arc<Chain> {
        match self {
            // Writes under way when it was frozen have been counted since.
            Lower::Memory(table) => Arc::new(Chain::of(table)),
            Lower::Elsewhere(_, chain) => chain.clone(),
        }
    }
}

/// What stands for the filters of a table that are not in it. See the top of the file.
pub(crate) struct Cold {
    pub(crate) lower: RwLock<Arc<Lower>>,
    /// Pairs that were set since.
    pub(crate) late: DeletedPairs,
    /// Of all tables of the space: pairs that were set since.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Cold {
    pub(crate) fn new(lower: Lower) -> Cold {
        Cold {
            lower: RwLock::new(Arc::new(lower)),
            late: DeletedPairs::small(),
            total: OnceLock::new(),
        }
    }

    pub(crate) fn lower(&self) -> Arc<Lower> {
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

    pub(crate) fn identity(&self) -> u64 {
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

    /// Pairs that came late.
    pub(crate) fn late(&self) -> usize {
        self.late.len()
    }

    pub(crate) fn late_bytes(&self) -> usize {
        self.late.size_bytes()
    }

    pub(crate) fn pairs(&self) -> u64 {
        self.chain().pairs() + self.late.len() as u64
    }

    pub(crate) fn keep_late(&self, hash: u128) {
        if self.late.insert(hash)
            && let Some(total) = self.total.get()
        {
            total.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn forget_late(&self, hashes: &[u128]) {
        let gone = hashes.iter().filter(|&&hash| self.late.remove(hash)).count();
        if let Some(total) = self.total.get() {
            total.fetch_sub(gone, Relaxed);
        }
    }

    pub(crate) fn has(&self, pair: &Pair) -> Result<bool, Unreadable> {
        // After `late` was asked: C1.
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
