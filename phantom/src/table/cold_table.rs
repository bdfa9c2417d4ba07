//! Layout of a cold table's filters on disk.
//!
//! A table whose filters are in a file keeps a [`Chain`]: size and first page of each filter. The
//! host's [`ColdBackend`] reads the pages.

use crate::filter::{PAGE_BYTES, page_has, page_of};
use crate::hash::Pair;
use crate::sizing::Sizing;
use rolling::Unreadable;

/// Backend that reads the filters of one table. Its methods may be called from any thread.
pub trait ColdBackend: Send + Sync {
    /// Returns whether a filter has all bits of the pair. May block on a disk read.
    fn has(&self, pair: &Pair) -> Result<bool, Unreadable>;

    /// Fills `pages` with pages of the file, starting at page number `first`. May block on several
    /// disk reads.
    fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), Unreadable>;

    /// Returns an identity that is not 0 and is unique among all backends.
    fn identity(&self) -> u64;
}

#[derive(Clone)]
pub(crate) struct FilterPages {
    pub(crate) sizing: Sizing,
    pub(crate) pages: usize,
    pub(crate) first: usize,
    pub(crate) pairs: u64,
}

/// Sizes of a table's filters, stored consecutively.
#[derive(Clone)]
pub struct Chain {
    pub(crate) rate: f64,
    pub(crate) parts: Vec<FilterPages>,
}

impl Chain {
    pub(crate) fn new(rate: f64, first_pages: usize, pairs: &[u64]) -> Chain {
        let mut chain = Chain { rate, parts: Vec::new() };
        pairs.iter().for_each(|&pairs| chain.extend(first_pages, pairs));
        chain
    }

    pub(crate) fn extend(&mut self, first_pages: usize, pairs: u64) {
        let (sizing, pages) = Sizing::geometry(self.rate, first_pages, self.parts.len());
        self.parts.push(FilterPages { sizing, pages, first: self.pages(), pairs });
    }

    /// Returns the number of pages of all filters.
    pub fn pages(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.pages)
    }

    /// Returns, for each filter, the number of the page that may contain the pair. The pair is set
    /// if one of these pages contains it.
    pub fn places(&self, pair: &Pair) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.first + page_of(pair, part.pages))
    }

    /// Returns whether `page` of the filter with index `filter` has all bits of the pair.
    pub fn has(&self, filter: usize, pair: &Pair, page: &[u8; PAGE_BYTES]) -> bool {
        page_has(page, pair, self.parts[filter].sizing.bits)
    }

    pub(crate) fn link_of(&self, page: usize) -> usize {
        self.parts.iter().rposition(|part| part.first <= page).unwrap_or(0)
    }

    /// Returns the number of filters. A lookup reads one page of each filter.
    pub fn links(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of pairs in all filters.
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

    /// False-positive rate that the formula predicts for these pairs.
    pub(crate) fn rate(&self) -> f64 {
        self.parts.iter().map(|part| part.sizing.rate(part.pairs, part.pages)).sum()
    }
}
