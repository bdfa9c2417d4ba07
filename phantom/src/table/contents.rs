//! What the filters of a table hold, wherever they lie, with what came late: block by block, for
//! digests, exports and merges.
//!
//! Late pairs have no bits yet. They are given those that the next rewrite gives them
//! (`cold/rewrite`), so that a table answers here as it will when it has been written. A table in
//! memory to which the same pairs came has the same bits, as long as one filter holds them all;
//! where the chain is longer, the pairs may lie in other filters of it.

use crate::block_layout::{BLOCK_WORDS, block_pages, block_range};
use crate::filter::{PAGE_BYTES, page_of, page_set};
use crate::hash::Pair;
use crate::table::elsewhere::{Chain, Lower, Part};
use crate::table::late_blocks::LateBlock;
use crate::table::{LINKS, Table};
use rolling::Unreadable;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// See the top of the file.
pub(crate) struct Contents {
    pub(crate) chain: Chain,
    lower: Arc<Lower>,
    /// Pages that lie there.
    stored: usize,
    blocks: Vec<LateBlock>,
    /// Late pairs by their pages in the filter number `target`, rising.
    late: Vec<(usize, u128)>,
    target: usize,
}

impl Contents {
    /// Of a table as it is now.
    pub(crate) fn of(table: &Arc<Table>) -> Contents {
        let Some(cold) = table.cold() else {
            let chain = Chain::of(table);
            let (stored, lower) = (chain.pages(), Arc::new(Lower::Memory(table.clone())));
            return Contents { chain, lower, stored, blocks: vec![], late: vec![], target: 0 };
        };
        // Before what lies below: C1.
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let blocks = cold.blocks.all();
        let lower = cold.lower();
        let mut chain = Chain::clone(&lower.chain());
        let stored = chain.pages();
        let target = chain.make_room(&blocks, late.len()).unwrap_or(LINKS - 1);
        let pages = chain.parts[target].pages;
        let place = |hash: u128| (page_of(&Pair::from_hash(0, hash), pages), hash);
        let mut late: Vec<(usize, u128)> = late.into_iter().map(place).collect();
        late.sort_unstable();
        Contents { chain, lower, stored, blocks, late, target }
    }

    /// Blocks of a filter.
    pub(crate) fn blocks_of(&self, link: usize) -> usize {
        self.chain.parts.get(link).map_or(0, Part::blocks)
    }

    /// The place of the block of this number, of those of all filters in a row.
    pub(crate) fn place(&self, mut number: usize) -> Option<(usize, usize)> {
        for (link, part) in self.chain.parts.iter().enumerate() {
            if number < part.blocks() {
                return Some((link, number));
            }
            number -= part.blocks();
        }
        None
    }

    /// The words of a block. Those of filters in memory are as they are at this moment; others are
    /// read.
    pub(crate) fn words(&self, link: usize, block: usize) -> Result<Vec<u64>, Unreadable> {
        let Some(part) = self.chain.parts.get(link) else { return Ok(vec![]) };
        let (words, pages) = (block_range(part.pages, block), block_pages(part.pages, block));
        let mut bytes = vec![[0; PAGE_BYTES]; pages.len()];
        match &*self.lower {
            Lower::Memory(table) => {
                let filter = table.link(link).map(|link| link.filter.words()).unwrap_or_default();
                let words = filter.get(words).unwrap_or_default();
                let all = bytes.as_flattened_mut().as_chunks_mut::<8>().0;
                for (bytes, word) in all.iter_mut().zip(words) {
                    *bytes = word.load(Relaxed).to_le_bytes();
                }
            }
            Lower::Elsewhere(below, _) if part.first < self.stored => {
                below.read(part.first + pages.start, bytes.as_flattened_mut())?;
            }
            Lower::Elsewhere(..) => {}
        }
        if link == self.target {
            let from = self.late.partition_point(|late| late.0 < pages.start);
            let here = self.late[from..].iter().take_while(|late| late.0 < pages.end);
            for &(page, hash) in here {
                let pair = Pair::from_hash(0, hash);
                page_set(&mut bytes[page - pages.start], &pair, part.sizing.bits);
            }
        }
        let all = bytes.as_flattened().as_chunks().0;
        let mut words: Vec<u64> = all.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let came = self.blocks.iter().find(|late| (late.link, late.block) == (link, block));
        for (word, more) in words.iter_mut().zip(came.iter().flat_map(|late| &late.words[..])) {
            *word |= more;
        }
        Ok(words)
    }

    /// The pairs of a filter, with those that came late, by their number and by the bits of blocks.
    pub(crate) fn pairs_of(&self, link: usize) -> u64 {
        let Some(part) = self.chain.parts.get(link) else { return 0 };
        let came = self.blocks.iter().filter(|late| late.link == link);
        let late = if link == self.target { self.late.len() as u64 } else { 0 };
        part.pairs + came.map(|late| late.pairs(part)).sum::<u64>() + late
    }

    /// Pairs that came late.
    pub(crate) fn late(&self) -> u64 {
        self.late.len() as u64
    }
}

impl Part {
    /// Blocks of it.
    pub(crate) fn blocks(&self) -> usize {
        (self.pages * PAGE_BYTES).div_ceil(BLOCK_WORDS * 8)
    }
}

impl Chain {
    /// The first filter that has room for so many pairs besides these blocks; it gets one more if
    /// none has. `None`: it has as many as there can be. All into one filter, so that each page
    /// gets the bits of its own pairs only.
    pub(crate) fn make_room(&mut self, blocks: &[LateBlock], pairs: usize) -> Option<usize> {
        while blocks.last().is_some_and(|block| block.link >= self.links()) {
            self.extend(self.first_pages(), 0);
        }
        let has_room = |link: usize, part: &Part| {
            let ours = blocks.iter().filter(|block| block.link == link);
            let joined = ours.map(|block| block.pairs(part)).sum::<u64>();
            part.pairs + joined + pairs as u64 <= part.sizing.capacity(part.pages)
        };
        loop {
            let parts = (0..).zip(&self.parts);
            let room = parts.clone().position(|(link, part)| pairs == 0 || has_room(link, part));
            match room {
                Some(target) => return Some(target),
                None if self.links() == LINKS => return None,
                None => self.extend(self.first_pages(), 0),
            }
        }
    }
}
