//! What the filters of a table hold, wherever they lie, with what came late: for digests and
//! exports, for merges, and for the next rewrite.
//!
//! Late pairs have no bits yet. Here they have those that the next rewrite gives them, so that a
//! table answers as it will when it has been written. A table in memory to which the same pairs
//! came has the same bits, as long as one filter holds them all; where the chain is longer, the
//! pairs may lie in other filters of it.
//!
//! They go into the first filters of the chain that have room, and which of them goes where is
//! dealt by their hashes, so that no page gets more than its part of them. The chain gets longer by
//! as many filters as are needed, and none of it stays empty before one that is not.

use crate::block_layout::{BLOCK_WORDS, block_pages, block_range};
use crate::filter::{PAGE_BYTES, page_has, page_of, page_set, words_have};
use crate::hash::{Pair, mix};
use crate::sizing::{PAGE_WORDS, Sizing, pairs_added};
use crate::table::elsewhere::{Chain, Cold, ColdBackend, Lower, Part};
use crate::table::late_blocks::LateBlock;
use crate::table::{LINKS, Table};
use rolling::Unreadable;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that are read together.
const PAGES_TOGETHER: usize = BLOCK_WORDS / PAGE_WORDS;

/// See the top of the file.
pub(crate) struct Contents {
    /// The filters, as many as there are to be, with the pairs that lie below.
    pub(crate) chain: Chain,
    pub(crate) lower: Arc<Lower>,
    /// Pages that lie there.
    pub(crate) stored: usize,
    /// In the order of their pages.
    pub(crate) blocks: Vec<LateBlock>,
    /// All that came late, also what lies below already.
    pub(crate) late: Vec<u128>,
    /// Late pairs that do not, by their pages among those of all filters, rising.
    placed: Vec<(usize, u128)>,
    /// How many pairs come to each filter.
    coming: Vec<u64>,
    /// Which lots of late pairs each filter takes, if it does.
    lots: Vec<Lots>,
    /// Whether the longest chain has no room for all of them. They are in its last filter then.
    pub(crate) is_overfull: bool,
}

impl Contents {
    /// Of a table as it is now. Reads, where its filters lie elsewhere, what is there of late
    /// blocks, and of late pairs unless one filter has room for all of them.
    pub(crate) fn of(table: &Arc<Table>) -> Result<Contents, Unreadable> {
        let Some(cold) = table.cold() else {
            return Ok(Contents::below(Arc::new(Lower::Memory(table.clone()))));
        };
        // Before what lies below: C1.
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let blocks = cold.blocks.all();
        let mut contents = Contents { late, blocks, ..Contents::below(cold.lower()) };
        contents.count_blocks()?;
        let fresh = contents.fresh()?;
        contents.place_pairs(fresh);
        Ok(contents)
    }

    /// Of what lies below alone.
    pub(crate) fn below(lower: Arc<Lower>) -> Contents {
        let chain = Chain::clone(&lower.chain());
        let coming = vec![0; chain.links()];
        Contents {
            stored: chain.pages(),
            chain,
            lower,
            blocks: vec![],
            late: vec![],
            placed: vec![],
            coming,
            lots: vec![],
            is_overfull: false,
        }
    }

    /// How many pairs the blocks bring beside what is there.
    fn count_blocks(&mut self) -> Result<(), Unreadable> {
        for LateBlock { link, block, words } in &self.blocks {
            while *link >= self.chain.links() {
                self.chain.extend(self.chain.first_pages(), 0);
            }
            self.coming.resize(self.chain.links(), 0);
            let ours = words_of(&self.lower.block(&self.chain, *link, *block)?);
            let union: Vec<u64> = ours.iter().zip(&words[..]).map(|(a, b)| a | b).collect();
            self.coming[*link] += pairs_added(self.chain.parts[*link].sizing, &ours, &union);
        }
        Ok(())
    }

    /// Of the late pairs those that are to be added: a block may have brought some once more, and a
    /// log that is read again has pairs come late that the filters have already, so each start
    /// would make them larger. In one filter with room that is seen when its page is at hand; where
    /// there are several, or another is to come, their pages are read in order, each once.
    fn fresh(&self) -> Result<Vec<u128>, Unreadable> {
        let is_fresh = |hash: &&u128| !self.blocks_have(&Pair::from_hash(0, **hash));
        let mut fresh: Vec<u128> = self.late.iter().filter(is_fresh).copied().collect();
        let Lower::Elsewhere(below, chain) = &*self.lower else { return Ok(fresh) };
        if chain.links() == 1 && fresh.len() as u64 <= self.room(0) {
            return Ok(fresh);
        }
        // The order of their pages in any filter.
        fresh.sort_unstable();
        for (link, part) in chain.parts.iter().enumerate() {
            let mut pages = Pages::new(&**below, part);
            let mut failed = Ok(());
            fresh.retain(|&hash| {
                let pair = Pair::from_hash(0, hash);
                let found = match failed {
                    Ok(()) => pages.get(page_of(&pair, part.pages)),
                    Err(_) => return true,
                };
                match found {
                    Ok(page) => !chain.has(link, &pair, page),
                    Err(unreadable) => {
                        failed = Err(unreadable);
                        true
                    }
                }
            });
            failed?;
        }
        Ok(fresh)
    }

    /// Whether all bits of a pair are in one of the late blocks.
    fn blocks_have(&self, pair: &Pair) -> bool {
        !self.blocks.is_empty()
            && self.chain.parts.iter().enumerate().any(|(link, part)| {
                let page = page_of(pair, part.pages);
                let words = self.late_page(link, page);
                words.is_some_and(|words| words_have(words, pair, part.sizing.bits))
            })
    }

    /// What a late block has for a page of a filter.
    fn late_page(&self, link: usize, page: usize) -> Option<&[u64]> {
        let number = page * PAGE_WORDS / BLOCK_WORDS;
        let found = self.blocks.binary_search_by_key(&(link, number), |b| (b.link, b.block));
        self.blocks.get(found.ok()?)?.page(page)
    }

    /// How many more pairs a filter has room for.
    fn room(&self, link: usize) -> u64 {
        let part = &self.chain.parts[link];
        part.sizing.capacity(part.pages).saturating_sub(part.pairs + self.coming[link])
    }

    fn place_pairs(&mut self, mut pairs: Vec<u128>) {
        if pairs.len() as u64 > self.room(0) {
            pairs.sort_by_cached_key(|&hash| lot(hash));
        }
        let mut next = 0;
        let mut rest = &pairs[..];
        for link in 0..LINKS {
            if rest.is_empty() {
                break;
            }
            if link == self.chain.links() {
                self.chain.extend(self.chain.first_pages(), 0);
                self.coming.push(0);
            }
            let room = usize::try_from(self.room(link)).unwrap_or(usize::MAX);
            self.is_overfull = link + 1 == LINKS && rest.len() > room;
            let fits = if self.is_overfull { rest.len() } else { room.min(rest.len()) };
            let (here, more) = rest.split_at(fits);
            let Part { first, pages, .. } = self.chain.parts[link];
            let place = |&hash: &u128| (first + page_of(&Pair::from_hash(0, hash), pages), hash);
            self.placed.extend(here.iter().map(place));
            self.coming[link] += here.len() as u64;
            let end = more.first().map_or(u64::MAX, |&hash| lot(hash));
            self.lots.push(next..end);
            (rest, next) = (more, end);
        }
        self.placed.sort_unstable();
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
        let mut pages = self.lower.block(&self.chain, link, block)?;
        if let Some(part) = self.chain.parts.get(link) {
            let first = part.first + block_pages(part.pages, block).start;
            (first..).zip(&mut pages).for_each(|(at, page)| _ = self.complete(at, page));
        }
        Ok(words_of(&pages))
    }

    /// Gives the page of this number what came late to it: its filter, and how many pairs that is
    /// beyond those that it had.
    pub(crate) fn complete(&self, at: usize, page: &mut [u8; PAGE_BYTES]) -> (usize, u64) {
        let link = self.chain.link_of(at);
        let part = &self.chain.parts[link];
        let mut came = self.join_block(link, at - part.first, page);
        let from = self.placed.partition_point(|pair| pair.0 < at);
        for &(_, hash) in self.placed[from..].iter().take_while(|pair| pair.0 == at) {
            let pair = Pair::from_hash(0, hash);
            if !page_has(page, &pair, part.sizing.bits) {
                page_set(page, &pair, part.sizing.bits);
                came += 1;
            }
        }
        (link, came)
    }

    /// Adds to a page of a filter what a block has for it: how many pairs.
    fn join_block(&self, link: usize, at: usize, page: &mut [u8; PAGE_BYTES]) -> u64 {
        let Some(words) = self.late_page(link, at) else { return 0 };
        let (mut before, mut after) = (0, 0);
        for (bytes, more) in page.as_chunks_mut().0.iter_mut().zip(words) {
            let word = u64::from_le_bytes(*bytes);
            before += u64::from(word.count_ones());
            after += u64::from((word | more).count_ones());
            *bytes = (word | more).to_le_bytes();
        }
        let sizing = &self.chain.parts[link].sizing;
        sizing.pairs_of(after, 1) - sizing.pairs_of(before, 1)
    }

    /// The pairs of a filter, with those that come to it.
    pub(crate) fn pairs_of(&self, link: usize) -> u64 {
        self.chain.parts.get(link).map_or(0, |part| part.pairs + self.coming[link])
    }

    /// Which late pairs a filter takes, by their lots.
    pub(crate) fn lots_of(&self, link: usize) -> Lots {
        self.lots.get(link).cloned().unwrap_or_default()
    }
}

/// What decides to which filter of a chain a late pair goes: by nothing that decides where in a
/// filter it lies.
fn lot(hash: u128) -> u64 {
    mix(mix((hash >> 64) as u64) ^ hash as u64)
}

/// Some lots, one of 2^64 aside.
pub(crate) type Lots = Range<u64>;

/// The pages of a filter that lies elsewhere, read in order and some at a time.
struct Pages<'a> {
    below: &'a dyn ColdBackend,
    part: &'a Part,
    bytes: Vec<[u8; PAGE_BYTES]>,
    first: usize,
}

impl<'a> Pages<'a> {
    fn new(below: &'a dyn ColdBackend, part: &'a Part) -> Pages<'a> {
        Pages { below, part, bytes: vec![], first: 0 }
    }

    fn get(&mut self, page: usize) -> Result<&[u8; PAGE_BYTES], Unreadable> {
        if !(self.first..self.first + self.bytes.len()).contains(&page) {
            self.bytes.resize(PAGES_TOGETHER.min(self.part.pages - page), [0; PAGE_BYTES]);
            // Until it is read nothing is.
            let mut bytes = std::mem::take(&mut self.bytes);
            self.below.read(self.part.first + page, bytes.as_flattened_mut())?;
            (self.bytes, self.first) = (bytes, page);
        }
        Ok(&self.bytes[page - self.first])
    }
}

impl Lower {
    /// The pages of a block of a chain that begins with what lies here: without a bit where nothing
    /// does.
    fn block(
        &self,
        chain: &Chain,
        link: usize,
        block: usize,
    ) -> Result<Vec<[u8; PAGE_BYTES]>, Unreadable> {
        let Some(part) = chain.parts.get(link) else { return Ok(vec![]) };
        let range = block_pages(part.pages, block);
        let mut pages = vec![[0; PAGE_BYTES]; range.len()];
        match self {
            Lower::Memory(table) => {
                let filter = table.link(link).map(|link| link.filter.words()).unwrap_or_default();
                let there = filter.get(block_range(part.pages, block)).unwrap_or_default();
                let bytes = pages.as_flattened_mut().as_chunks_mut().0;
                for (bytes, word) in bytes.iter_mut().zip(there) {
                    *bytes = word.load(Relaxed).to_le_bytes();
                }
            }
            Lower::Elsewhere(below, stored) if link < stored.links() => {
                below.read(part.first + range.start, pages.as_flattened_mut())?;
            }
            Lower::Elsewhere(..) => {}
        }
        Ok(pages)
    }
}

impl Cold {
    /// The words of a block of this number in a filter, which has this layout, with the blocks that
    /// came late, and the pairs of these lots that are nowhere else: as they are now. No rewrite
    /// may end meanwhile.
    pub(crate) fn words(
        &self,
        (link, block): (usize, usize),
        (sizing, of): (Sizing, usize),
        lots: &Lots,
    ) -> Result<Vec<u64>, Unreadable> {
        let lower = self.lower();
        let chain = lower.chain();
        let range = block_pages(of, block);
        let mut pages = match link < chain.links() {
            true => lower.block(&chain, link, block)?,
            false => vec![[0; PAGE_BYTES]; range.len()],
        };
        let mut late = vec![];
        self.late.for_each_in(range.clone(), of, |hash| late.push(hash));
        for hash in late.into_iter().filter(|&hash| lots.contains(&lot(hash))) {
            let pair = Pair::from_hash(0, hash);
            let is_there = match chain.links() {
                1 => self.blocks.have(&pair),
                _ => self.has(&pair)?,
            };
            if !is_there {
                page_set(&mut pages[page_of(&pair, of) - range.start], &pair, sizing.bits);
            }
        }
        let mut words = words_of(&pages);
        if let Some(came) = self.blocks.words(link, block) {
            words.iter_mut().zip(&came[..]).for_each(|(ours, came)| *ours |= came);
        }
        Ok(words)
    }
}

fn words_of(pages: &[[u8; PAGE_BYTES]]) -> Vec<u64> {
    pages.as_flattened().as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

impl Part {
    /// Blocks of it.
    pub(crate) fn blocks(&self) -> usize {
        (self.pages * PAGE_BYTES).div_ceil(BLOCK_WORDS * 8)
    }
}
