//! Blocks of another site's filters (`merge`) of a table whose own filters lie elsewhere.
//!
//! They are bits without pairs, so they cannot be kept as late pairs are. They are kept as they
//! are, asked before what lies below, and or-ed into its pages when these are written anew. Each
//! counts as so many late pairs as take its memory, so that this is soon.

use crate::block_layout::BLOCK_WORDS;
use crate::filter::{page_of, words_have};
use crate::hash::Pair;
use crate::sizing::PAGE_WORDS;
use crate::table::Table;
use crate::table::elsewhere::LATE_BYTES;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A block counts as so many late pairs.
pub(crate) const BLOCK_PAIRS: usize = BLOCK_WORDS * 8 / LATE_BYTES as usize;

/// A block: its filter's place in the chain, its number there, and its words.
#[derive(Clone)]
pub(crate) struct LateBlock {
    pub(crate) link: usize,
    pub(crate) block: usize,
    pub(crate) words: Arc<[u64]>,
}

/// What came of one filter.
struct OfLink {
    bits: usize,
    pages: usize,
    blocks: BTreeMap<usize, Arc<[u64]>>,
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct LateBlocks {
    links: RwLock<BTreeMap<usize, OfLink>>,
    len: AtomicUsize,
}

impl LateBlocks {
    pub(crate) fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// Whether all bits of the pair are in one of them.
    pub(crate) fn have(&self, pair: &Pair) -> bool {
        self.len() > 0
            && self.links.read().values().any(|of| {
                let page = page_of(pair, of.pages) * PAGE_WORDS;
                let words =
                    of.blocks.get(&(page / BLOCK_WORDS)).map(|words| &words[page % BLOCK_WORDS..]);
                words.is_some_and(|words| words_have(words, pair, of.bits))
            })
    }

    /// Adds the bits of a block to the table of this rate, whose first filter has so many pages.
    /// Whether there was none of its place.
    pub(crate) fn put(&self, (rate, first_pages): (f64, usize), new: &LateBlock) -> bool {
        let mut links = self.links.write();
        let of = links.entry(new.link).or_insert_with(|| {
            let (sizing, pages) = Table::geometry(rate, first_pages, new.link);
            OfLink { bits: sizing.bits, pages, blocks: BTreeMap::new() }
        });
        let both =
            |old: &Arc<[u64]>| old.iter().zip(&new.words[..]).map(|(old, new)| old | new).collect();
        let words = of.blocks.get(&new.block).map_or(new.words.clone(), both);
        let is_new = of.blocks.insert(new.block, words).is_none();
        self.len.fetch_add(usize::from(is_new), SeqCst);
        is_new
    }

    /// The words of the block of a place, if one came.
    pub(crate) fn words(&self, link: usize, block: usize) -> Option<Arc<[u64]>> {
        self.links.read().get(&link)?.blocks.get(&block).cloned()
    }

    /// Filters of the chain that have some, and those before them.
    pub(crate) fn links(&self) -> usize {
        let links = self.links.read();
        let has_some = links.iter().rev().find(|(_, of)| !of.blocks.is_empty());
        has_some.map_or(0, |(link, _)| link + 1)
    }

    /// All of them, in the order of their pages in the chain.
    pub(crate) fn all(&self) -> Vec<LateBlock> {
        let links = self.links.read();
        let of = |(&link, of): (&usize, &OfLink)| {
            let block = |(&block, words): (&usize, &Arc<[u64]>)| LateBlock {
                link,
                block,
                words: words.clone(),
            };
            of.blocks.iter().map(block).collect::<Vec<_>>()
        };
        links.iter().flat_map(of).collect()
    }

    /// What lies below has these bits now. Gives how many blocks have got none since, and are gone.
    pub(crate) fn forget(&self, written: &[LateBlock]) -> usize {
        let mut links = self.links.write();
        let is_gone = |block: &&LateBlock| {
            let Some(of) = links.get_mut(&block.link) else { return false };
            let same =
                of.blocks.get(&block.block).is_some_and(|now| Arc::ptr_eq(now, &block.words));
            same && of.blocks.remove(&block.block).is_some()
        };
        let gone = written.iter().filter(is_gone).count();
        self.len.fetch_sub(gone, SeqCst);
        gone
    }
}

impl LateBlock {
    /// Its words of a page of its filter, if it has that.
    pub(crate) fn page(&self, page: usize) -> Option<&[u64]> {
        let first = (page * PAGE_WORDS).checked_sub(self.block * BLOCK_WORDS)?;
        self.words.get(first..first + PAGE_WORDS)
    }
}
