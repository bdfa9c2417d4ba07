//! Where the blocks of a filter are: pieces of 64 KiB in which filters are merged and stored.

use crate::filter::page_of;
use crate::hash::{Pair, mix};
use crate::sizing::PAGE_WORDS;

/// Words of a block.
pub(crate) const BLOCK_WORDS: usize = 64 * 1024 / 8;

/// Words of block number `block` of a filter of so many pages; none if there is no such block.
pub(crate) fn block_range(pages: usize, block: usize) -> std::ops::Range<usize> {
    let words = pages.saturating_mul(PAGE_WORDS);
    let start = block.saturating_mul(BLOCK_WORDS).min(words);
    start..(start + BLOCK_WORDS).min(words)
}

/// Pages of that block.
pub(crate) fn block_pages(pages: usize, block: usize) -> std::ops::Range<usize> {
    let words = block_range(pages, block);
    words.start / PAGE_WORDS..words.end / PAGE_WORDS
}

/// The block of a filter of so many pages in which the bits of the pair lie.
pub(crate) fn block_of(pages: usize, pair: &Pair) -> usize {
    page_of(pair, pages) * PAGE_WORDS / BLOCK_WORDS
}

/// The block of a table's first filter, of so many pages, with which a forgotten id goes.
pub(crate) fn block_of_id(pages: usize, id: u64) -> usize {
    block_of(pages, &Pair { id, high: mix(id), low: 0 })
}
