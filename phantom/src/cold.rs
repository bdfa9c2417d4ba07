//! Tables whose filters lie elsewhere: on a disk, of which this crate knows nothing but that somebody ([`Below`]) can ask it.
//!
//! ```text
//!   read:   revoked? late? -> yes, or no;  else Below::has
//!   write:  under the pair's stripe the same; what becomes set goes to `late`
//!   spill:  the table is frozen: in its place comes one that has it below itself -> Rewrite: its pages, with what is late -> Below answers
//!   merge:  the same, with the pages that lie elsewhere
//! ```
//!
//! A block of another site's filters that a log brings is kept beside them in the same way (`blocks`).
//!
//! Filters cannot be merged with a changed few pairs but by writing all of their pages anew. So pairs that are set late are kept exactly (`late`), as
//! those that are unset are, until there are enough of them. They fill the last filter of the chain up to what its rate allows, as they would in
//! memory; beyond that the chain gets one more. A check asks one page of each filter of the chain: of one, if the table was closed early enough.
//!
//! **C1** A pair leaves `late` only after what lies below has its bits; a reader asks `late` first. **C2** A filter that is below never changes: a
//! table is frozen behind the barrier that keeps its writers out, and readers with the old list see the table that it was. **C3** While a log is
//! read again nothing is asked below: what is told is kept, and found to be there already when it is merged.

use crate::Error;
use crate::block::{BLOCK_WORDS, block_range};
use crate::codec::{CHECK, DecodeError, Header, StoredTable, check_header, put_header, u64_at};
use crate::filter::{Filter, PAGE_BYTES, page_has, page_of, page_set};
use crate::hash::{Pair, Seed};
use crate::options::{Change, Options};
use crate::revoked::Revoked;
use crate::sizing::{PAGE_WORDS, Sizing};
use crate::space::Space;
use crate::table::{LINKS, Table};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_64;

mod blocks;

use blocks::{BLOCK_PAIRS, LateBlock, LateBlocks};

const NOTE_MAGIC: &[u8; 8] = b"TMPHCLD\x01";
/// What a late pair is counted as: its hash, and its share of the set.
const LATE_BYTES: u64 = 32;
/// Late pairs may take one part in so many of what the tables in memory may.
const LATE_PART: u64 = 16;
/// Hashes that are given out together.
const HASHES: usize = 4096;

/// Who has the filters of one table. May be called from any thread.
pub trait Below: Send + Sync {
    /// Whether all bits of the pair are set in one of the filters. May take as long as a read of the disk. `None`: it cannot be read, which is reported
    /// elsewhere.
    fn has(&self, pair: &Pair) -> Option<bool>;

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
            let (sizing, pages, first) = (*link.filter.sizing(), link.filter.pages(), chain.pages());
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

    /// The page of a pair in each filter, by its number among those of all. It is set if one of them has it.
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
    Elsewhere(Arc<dyn Below>, Arc<Chain>),
}

impl Lower {
    fn chain(&self) -> Arc<Chain> {
        match self {
            // Who was writing when it was frozen has been counted since.
            Lower::Memory(table) => Arc::new(Chain::of(table)),
            Lower::Elsewhere(_, chain) => chain.clone(),
        }
    }
}

/// What stands for the filters of a table that are not in it. See the top of the file.
pub(crate) struct Cold {
    lower: RwLock<Arc<Lower>>,
    /// Pairs that were set since.
    late: Revoked,
    /// Blocks that came since.
    blocks: LateBlocks,
    /// Of all tables of the space: pairs that were set since, and what blocks count for.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Cold {
    fn new(lower: Lower) -> Cold {
        Cold {
            lower: RwLock::new(Arc::new(lower)),
            late: Revoked::small(),
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
        if self.blocks.put((chain.rate, chain.first_pages()), &LateBlock { link, block, words: words.into() })
            && let Some(total) = self.total.get()
        {
            total.fetch_add(BLOCK_PAIRS, Relaxed);
        }
    }

    fn forget_late(&self, hashes: &[u128], blocks: &[LateBlock]) {
        let gone =
            hashes.iter().filter(|&&hash| self.late.remove(hash)).count() + self.blocks.forget(blocks) * BLOCK_PAIRS;
        if let Some(total) = self.total.get() {
            total.fetch_sub(gone, Relaxed);
        }
    }

    fn has(&self, pair: &Pair) -> Option<bool> {
        if self.blocks.have(pair) {
            return Some(true);
        }
        // After `late` and blocks were asked: C1.
        match &*self.lower() {
            Lower::Memory(table) => Some(table.has(pair)),
            Lower::Elsewhere(below, _) => below.has(pair),
        }
    }

    /// Whether the pair is set or revoked, as far as it can be read.
    #[cold]
    pub(crate) fn seems_set(&self, pair: &Pair, revoked: &Revoked) -> bool {
        let hash = pair.hash();
        revoked.contains(hash) || self.late.contains(hash) || self.has(pair).unwrap_or(false)
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        if let Some(total) = self.total.get() {
            total.fetch_sub(self.late(), Relaxed);
        }
    }
}

/// A table that is about to be written elsewhere: its pages, one after the other, and a note without which they say nothing.
pub struct Rewrite {
    range: (u64, u64),
    seed: Seed,
    table: Arc<Table>,
    lower: Arc<Lower>,
    late: Vec<u128>,
    /// In the order of their pages.
    blocks: Vec<LateBlock>,
    /// The late pairs by their pages in the filter number `target`, those that come first at the end.
    by_page: Vec<(usize, u128)>,
    target: usize,
    chain: Chain,
    /// Pages that there are already.
    old_pages: usize,
    at: usize,
    next_pages: usize,
}

impl Rewrite {
    /// The table's range of ids, both inclusive.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Whether its filters are in memory so far, and nobody is to be asked for pages.
    pub fn is_spill(&self) -> bool {
        matches!(&*self.lower, Lower::Memory(_))
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.chain.pages()
    }

    /// Pairs that were late, and are not any more; blocks count as in [`Space::late`].
    pub fn late(&self) -> usize {
        self.late.len() + self.blocks.len() * BLOCK_PAIRS
    }

    /// The next page; false: there is none. `read` gives a page as it lies elsewhere.
    pub fn next<E>(
        &mut self,
        page: &mut [u8; PAGE_BYTES],
        read: impl FnOnce(usize, &mut [u8; PAGE_BYTES]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.at == self.chain.pages() {
            return Ok(false);
        }
        match &*self.lower {
            _ if self.at >= self.old_pages => page.fill(0),
            Lower::Elsewhere(..) => read(self.at, page)?,
            Lower::Memory(table) => {
                let part = self.chain.parts.iter().rposition(|part| part.first <= self.at).unwrap_or(0);
                let first = (self.at - self.chain.parts[part].first) * PAGE_WORDS;
                let words = table.link(part).map(|link| &link.filter.words()[first..first + PAGE_WORDS]);
                for (bytes, word) in page.as_chunks_mut().0.iter_mut().zip(words.into_iter().flatten()) {
                    *bytes = word.load(Relaxed).to_le_bytes();
                }
            }
        }
        self.join_block(page);
        let part = &mut self.chain.parts[self.target];
        while let Some((_, hash)) = self.by_page.pop_if(|late| late.0 == self.at) {
            let pair = Pair::from_hash(0, hash);
            if !page_has(page, &pair, part.sizing.bits) {
                page_set(page, &pair, part.sizing.bits);
                part.pairs += 1;
            }
        }
        self.at += 1;
        Ok(true)
    }

    /// Adds to the page at hand what a block has for it.
    fn join_block(&mut self, page: &mut [u8; PAGE_BYTES]) {
        if self.blocks.is_empty() {
            return;
        }
        let Some(number) = self.chain.parts.iter().rposition(|part| part.first <= self.at) else { return };
        let part = &mut self.chain.parts[number];
        let at = self.at - part.first;
        let behind = self.blocks.partition_point(|b| (b.link, b.block) <= (number, at * PAGE_WORDS / BLOCK_WORDS));
        let block = behind.checked_sub(1).map(|i| &self.blocks[i]).filter(|block| block.link == number);
        let Some(words) = block.and_then(|block| block.page(at)) else { return };
        let (mut before, mut after) = (0, 0);
        for (bytes, more) in page.as_chunks_mut().0.iter_mut().zip(words) {
            let word = u64::from_le_bytes(*bytes);
            before += u64::from(word.count_ones());
            after += u64::from((word | more).count_ones());
            *bytes = (word | more).to_le_bytes();
        }
        part.pairs += part.sizing.pairs_of(after, 1) - part.sizing.pairs_of(before, 1);
    }

    /// What belongs to the pages, when all have been given: [`Note`]. It holds the pairs that are revoked now.
    pub fn note(&self) -> Vec<u8> {
        let mut revoked = vec![];
        self.table.revoked.for_each(|hash| revoked.push(hash));
        let pairs: Vec<u64> = self.chain.parts.iter().map(|part| part.pairs).collect();
        let mut bytes = Vec::new();
        let header = Header {
            rate: self.chain.rate,
            low: self.range.0,
            last: self.range.1,
            pages: self.chain.first_pages(),
            early: self.table.early(),
            links: pairs.len(),
            revoked: revoked.len(),
            pairs: std::array::from_fn(|i| pairs.get(i).copied().unwrap_or(0)),
        };
        put_header(&mut bytes, NOTE_MAGIC, self.seed, &header);
        bytes.extend_from_slice(&(self.next_pages as u64).to_le_bytes());
        revoked.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }
}

/// What [`Rewrite::note`] gave, **version 1**, little-endian: the header of a stored table (`codec`) with the magic "TMPHCLD" 01 and without its
/// checksum, 192 bytes; 8 bytes, the pages of the first filter of the table that follows; the revoked pairs' hashes, 16 bytes each; XXH3-64 of all before.
pub struct Note {
    header: Header,
    next_pages: usize,
    revoked: Vec<u128>,
    chain: Arc<Chain>,
}

impl Note {
    /// Reads a note of a table of the space that `options` describe.
    pub fn decode(options: &Options, bytes: &[u8]) -> Result<Note, DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        let header = check_header(bytes, NOTE_MAGIC, Seed::new(options.seed), u64::MAX)?;
        let (at, end) = (Header::BYTES + 8, Header::BYTES + 8 + header.revoked * 16);
        if bytes.len() != end + CHECK {
            return Err(corrupt(bytes.len(), "a note of another length than its header says"));
        }
        if xxh3_64(&bytes[..end]) != u64_at(bytes, end) {
            return Err(corrupt(end, "a checksum that does not match"));
        }
        let chain = Chain::new(header.rate, header.pages, &header.pairs[..header.links]);
        let next_pages =
            usize::try_from(u64_at(bytes, Header::BYTES)).ok().filter(|pages| (1..=1 << 36).contains(pages));
        Ok(Note {
            next_pages: next_pages.ok_or(corrupt(Header::BYTES, "an impossible size of the next table"))?,
            revoked: bytes[at..end].as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)).collect(),
            chain: Arc::new(chain),
            header,
        })
    }

    /// The range of ids, both inclusive.
    pub fn range(&self) -> (u64, u64) {
        (self.header.low, self.header.last)
    }

    /// Where the bits of a pair are in the pages.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// A table whose filters `below` has; `late`: what a snapshot had of it besides, if it is of these very pages.
    pub fn table(self, below: Arc<dyn Below>, late: Option<&Late>) -> Result<StoredTable, DecodeError> {
        let Header { rate, low, last, early, .. } = self.header;
        let late = late.filter(|late| late.identity == below.identity());
        let cold = Cold::new(Lower::Elsewhere(below, self.chain));
        if let Some(late) = late {
            late.set.iter().for_each(|&hash| cold.keep_late(hash));
            let chain = cold.chain();
            for (link, block, words) in late.blocks_of(chain.rate, chain.first_pages())? {
                cold.keep_block(link, block, words);
            }
        }
        let revoked = Revoked::small();
        for &hash in late.map_or(&self.revoked, |late| &late.revoked) {
            revoked.insert(hash);
        }
        let empty = Filter::new(Table::first_sizing(rate), 1).map_err(|_| DecodeError::NoMemory)?;
        let table = Table::elsewhere(rate, empty, cold, Arc::new(revoked), early);
        Ok(StoredTable { low, last, table, next_pages: self.next_pages })
    }
}

/// What a snapshot holds of a cold table: all that its pages and their note do not say.
#[derive(Default)]
pub struct Late {
    /// The name of what lies below; 0: the table itself, which is in the snapshot, too.
    identity: u64,
    set: Vec<u128>,
    revoked: Vec<u128>,
    /// Place in the chain, number there, words.
    blocks: Vec<(usize, usize, Vec<u64>)>,
}

impl Late {
    /// Takes a piece of what [`Space::encode_late`] gave, into the tables by their lowest id.
    pub fn take(all: &mut HashMap<u64, Late>, bytes: &[u8]) -> Result<(), DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        if bytes.len() < 24 || !(bytes.len() - 24).is_multiple_of(16) {
            return Err(corrupt(bytes.len(), "half a pair"));
        }
        let late = all.entry(u64_at(bytes, 0)).or_default();
        late.identity = u64_at(bytes, 8);
        let into = match u64_at(bytes, 16) {
            0 => &mut late.set,
            1 => &mut late.revoked,
            2 if bytes.len() > 40 => {
                let words = bytes[40..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                late.blocks.push((u64_at(bytes, 24) as usize, u64_at(bytes, 32) as usize, words));
                return Ok(());
            }
            _ => return Err(corrupt(16, "neither late nor revoked pairs")),
        };
        into.extend(bytes[24..].as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)));
        Ok(())
    }

    /// The blocks, if each of them is one that the table of this rate and size can have.
    fn blocks_of(&self, rate: f64, first_pages: usize) -> Result<Vec<(usize, usize, Vec<u64>)>, DecodeError> {
        let fits = |(link, block, words): &(usize, usize, Vec<u64>)| {
            let pages = (*link < LINKS).then(|| Table::geometry(rate, first_pages, *link).1);
            pages.is_some_and(|pages| !words.is_empty() && block_range(pages, *block).len() == words.len())
        };
        let all = self.blocks.iter().all(fits).then(|| self.blocks.clone());
        all.ok_or(DecodeError::Corrupt { offset: 24, what: "a block that its table has not" })
    }
}

impl Space {
    /// Whether there is no room in memory for the next table, or for as much of what comes late to others: the oldest is to be written elsewhere.
    pub fn is_short(&self) -> bool {
        let next = self.next_pages(self.ring.load().newest().table());
        let is_full = || self.pages_in_memory() + next > self.max_pages() || !self.may_grow(next * PAGE_BYTES);
        self.options.spill && is_full()
    }

    /// The lowest id of the oldest table that is in memory, and the bytes of its filters; `None`: that is the newest.
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

    /// Whether the filters of the table over `id` are to be left alone: they lie elsewhere, or soon will.
    pub fn is_cold(&self, id: u64) -> bool {
        self.table_over(id).is_some_and(|(_, table)| table.cold().is_some())
    }

    /// Whether it must be asked elsewhere if the pair is set.
    pub fn lies_elsewhere(&self, pair: &Pair) -> bool {
        let Some((_, table)) = self.table_over(pair.id) else { return false };
        let Some(cold) = table.cold().filter(|cold| cold.memory().is_none()) else { return false };
        !table.revoked.contains(pair.hash()) && !cold.late.contains(pair.hash()) && !cold.blocks.have(pair)
    }

    /// Late pairs of all tables, and the most that there may be. A block of another site's table counts as 2,048.
    pub fn late(&self) -> (usize, usize) {
        let most = self.max_pages() as u64 * 4096 / LATE_PART / LATE_BYTES;
        (self.late.load(Relaxed), most.max(64) as usize)
    }

    /// The lowest id of the table with the most late pairs, and how many; `None`: there are none.
    pub fn most_late(&self) -> Option<(u64, usize)> {
        let tables = self.ring.load();
        let late = tables.entries().iter().filter_map(|e| Some((e.slot().low(), e.table().cold()?.late())));
        late.filter(|late| late.1 > 0).max_by_key(|late| late.1)
    }

    /// Begins to write the table that begins at `low` elsewhere: freezes it, if it is not. One at a time. `None`: there is none, or it is the newest.
    pub fn begin_rewrite(&self, low: u64) -> Result<Option<Rewrite>, Error> {
        let Some((range, mut table)) = self.table_at(low).filter(|(range, _)| range.1 < u64::MAX) else {
            return Ok(None);
        };
        if table.cold().is_none() {
            let empty = Filter::new(self.sizing, 1).map_err(Error::Memory)?;
            let cold = Cold::new(Lower::Memory(table.clone()));
            cold.count_in(&self.late);
            let frozen = Arc::new(Table::elsewhere(table.rate(), empty, cold, table.revoked.clone(), table.early()));
            // Who merges takes no stripe: C2.
            let _nobody_merges = self.merging.lock();
            // C2. Nothing moves between the two: the rewrite of the ring is over at once.
            let Ok(old) = self.ring.rewrite(low, vec![(low, frozen.clone())]) else { return Ok(None) };
            self.ring.finish(&old);
            table = frozen;
        }
        let Some(cold) = table.cold() else { return Ok(None) };
        let lower = cold.lower();
        let mut chain = Chain::clone(&lower.chain());
        let old_pages = chain.pages();
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let blocks = cold.blocks.all();
        while blocks.last().is_some_and(|block| block.link >= chain.links()) {
            chain.extend(chain.first_pages(), 0);
        }
        let has_room = |chain: &Chain| {
            chain.parts.last().is_some_and(|part| {
                let ours = blocks.iter().filter(|block| block.link + 1 == chain.links());
                let joined = ours.map(|block| block.pairs(part)).sum::<u64>();
                part.pairs + joined + late.len() as u64 <= part.sizing.capacity(part.pages)
            })
        };
        while !late.is_empty() && !has_room(&chain) {
            if chain.links() == LINKS {
                return Err(Error::Full);
            }
            chain.extend(chain.first_pages(), 0);
        }
        let target = chain.links() - 1;
        let Part { first, pages, .. } = chain.parts[target];
        let place = |&hash: &u128| (first + page_of(&Pair::from_hash(0, hash), pages), hash);
        let mut by_page: Vec<_> = late.iter().map(place).collect();
        by_page.sort_unstable_by(|a, b| b.cmp(a));
        let next_pages = self.table_over(range.1 + 1).map_or(1, |(_, next)| next.pages());
        let seed = self.seed;
        Ok(Some(Rewrite {
            range,
            seed,
            table,
            lower,
            late,
            blocks,
            by_page,
            target,
            chain,
            old_pages,
            at: 0,
            next_pages,
        }))
    }

    /// `below` has all pages that were given, and answers from now on.
    pub fn end_rewrite(&self, rewrite: Rewrite, below: Arc<dyn Below>) {
        let Some(cold) = rewrite.table.cold() else { return };
        let lower = Lower::Elsewhere(below, Arc::new(rewrite.chain));
        *cold.lower.write() = Arc::new(lower);
        // C1.
        cold.forget_late(&rewrite.late, &rewrite.blocks);
        if let Lower::Memory(table) = &*rewrite.lower {
            // Readers may still be in it: its memory goes to the next table when they are not.
            self.upkeep.lock().retire(table.clone());
        }
    }

    /// What a snapshot must hold of the cold tables besides their pages, in pieces: [`Late::take`].
    pub fn encode_late<E>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        for entry in self.ring.load_full().entries() {
            let Some(cold) = entry.table().cold() else { continue };
            for (kind, set) in [(0u64, &cold.late), (1, &*entry.table().revoked)] {
                let mut hashes = vec![];
                set.for_each(|hash| hashes.push(hash));
                // One at least: that it says of no pair that it is revoked says something, too.
                for hashes in hashes.chunks(HASHES).chain(hashes.is_empty().then_some(&[][..])) {
                    let head = [entry.slot().low(), cold.identity(), kind];
                    let mut bytes: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
                    hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
                    sink(&bytes)?;
                }
            }
            for LateBlock { link, block, words } in cold.blocks.all() {
                let head = [entry.slot().low(), cold.identity(), 2, link as u64, block as u64];
                let words = words.iter().copied();
                sink(&head.into_iter().chain(words).flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
            }
        }
        Ok(())
    }

    /// A snapshot was taken while a table was frozen, but not yet elsewhere: what came late belongs into its filters again.
    pub fn put_late(&self, all: &HashMap<u64, Late>) -> Result<(), DecodeError> {
        for (&low, late) in all.iter().filter(|(_, late)| late.identity == 0) {
            let Some((_, table)) = self.table_at(low).filter(|(_, table)| table.cold().is_none()) else { continue };
            let revoked: HashSet<u128> = late.revoked.iter().copied().collect();
            let mut set = late.set.iter().filter(|hash| !revoked.contains(hash));
            set.try_for_each(|&hash| self.put(&Pair::from_hash(low, hash), true)).map_err(|_| DecodeError::NoMemory)?;
            for (link, block, words) in late.blocks_of(table.rate(), table.pages())? {
                table.join(link, block, words).map_err(|_| DecodeError::NoMemory)?;
            }
        }
        Ok(())
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
            cold.has(pair).ok_or(Error::Unreadable { id: pair.id })?
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
