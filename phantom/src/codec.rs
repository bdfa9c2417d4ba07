//! Tables and the rest of a space as bytes: for snapshots, for repair, for joining two sites. **Version 1, little-endian.**
//!
//! ```text
//!   table   offset  size  field
//!                0     8  magic "TMPHTAB" 01
//!                8     8  error rate (f64)           what the chain of filters is sized by
//!               16     8  fingerprint of the seed
//!               24     8  lowest id                  32  8  highest id (inclusive)
//!               40     8  pages of the first filter
//!               48     8  pairs when the table was closed (0: it was the newest)
//!               56     4  filters in the chain (1..=16)
//!               60     4  revoked pairs
//!               64   128  pairs in each filter, 8 bytes each, 0 where there is none
//!              192     8  XXH3-64 of bytes 0..192
//!              200        the filters' words, in blocks of 64 KiB (the last of a filter may be shorter), each followed by its XXH3-64
//!                         the revoked pairs' hashes, 16 bytes each, in blocks of 4096 (the last may be shorter), each with its XXH3-64
//!
//!   head         0     8  magic "TMPHEAD" 01
//!                8     8  fingerprint of the seed
//!               16     8  1 if the frontier is known, else 0; plus 2 if the log tells how it moves on (0.1.0 did not at first)
//!               24     8  frontier                   32  8  its window
//!               40        pairs aside: id 8, hash 16     then 8  XXH3-64 of all before
//! ```
//!
//! **There is one decoder**, [`TableDecoder`], for what a disk gives back or another server ships (single blocks of a stranger: `merge`). A Bloom filter that comes
//! from outside is the most attacked thing of this product class, so nothing in it is believed: **D1** the size of everything that is
//! allocated is derived, by the formulas that make a new table, from a rate and a page count that were checked first; **D2** the sum is
//! held against a limit before the first allocation; **D3** no other number of the header decides where anything is read or written;
//! **D4** counts are held against the bits themselves. It can be fed in pieces of any size, and with its checksums switched off it
//! must still do no more harm than refuse, or hold other bits than were meant.

use crate::block::{BLOCK_WORDS, block_of};
use crate::fill::Fill;
use crate::filter::Filter;
use crate::hash::{Pair, Seed, mix};
use crate::options::Options;
use crate::sizing::{PAGE_WORDS, RATES, uncertainty};
use crate::space::Space;
use crate::table::{LINKS, Link, Table};
use rolling::Frontier;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

const TABLE_MAGIC: &[u8; 8] = b"TMPHTAB\x01";
const HEAD_MAGIC: &[u8; 8] = b"TMPHEAD\x01";
pub(crate) const CHECK: usize = 8;
const HEADER: usize = 64 + 8 * LINKS;
const BLOCK_HASHES: usize = 4096;
const HEAD_FIXED: usize = 40;
const ASIDE_PAIR: usize = 24;

const _: () = assert!(HEADER == 192);

/// Why bytes are no table, or no head, of this space. Nothing has changed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum DecodeError {
    /// The bytes at `offset` are not what they should be.
    #[error("{what} at byte {offset}")]
    Corrupt {
        /// Where, from the first byte of the table or head.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// It was made with another secret: its pairs cannot be found with ours.
    #[error("made by a space with another seed")]
    OtherSeed,
    /// It was made for another false-positive rate: its filters have other bits for a pair.
    #[error("made by a space with another false-positive rate")]
    OtherRate,
    /// It would take more memory than was allowed.
    #[error("takes {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// What it would take.
        bytes: u64,
        /// What was allowed.
        limit: u64,
    },
    /// More bits are set than its pairs can have set at its rate.
    #[error("filter {filter} of the chain has more bits set than its error rate allows")]
    Overfull {
        /// Position in the chain.
        filter: usize,
    },
    /// The tables do not make a ring.
    #[error("the tables do not follow each other")]
    NoRing,
    /// The system has no memory for it.
    #[error("no memory for a table")]
    NoMemory,
}

/// A table that was decoded, and belongs to no space yet: for [`Space::restore`].
pub struct StoredTable {
    pub(crate) low: u64,
    pub(crate) last: u64,
    pub(crate) table: Table,
    /// Pages of the first filter of the table that follows, if that is known.
    pub(crate) next_pages: usize,
}

impl StoredTable {
    /// The range of ids that it covers, both inclusive.
    pub fn range(&self) -> (u64, u64) {
        (self.low, self.last)
    }
}

/// Words, or hashes, of one block, and their checksum.
fn block<const N: usize>(items: impl Iterator<Item = [u8; N]>, bytes: &mut Vec<u8>) {
    bytes.clear();
    items.for_each(|item| bytes.extend_from_slice(&item));
    let check = xxh3_64(bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
}

/// Encodes `table` into pieces of at most 64 KiB and a checksum. Writes may go on: what is set when this begins is in it, and
/// what is unset later is told by the log.
pub(crate) fn encode_table<E>(
    seed: Seed,
    (low, last): (u64, u64),
    table: &Table,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut revoked = vec![];
    table.revoked.for_each(|hash| revoked.push(hash));
    let links: Vec<&Link> = table.links().collect();
    let mut bytes = Vec::with_capacity(BLOCK_WORDS * 8 + CHECK);
    let header = Header {
        rate: table.rate(),
        low,
        last,
        pages: table.pages(),
        early: table.early(),
        links: links.len(),
        revoked: revoked.len(),
        pairs: std::array::from_fn(|i| links.get(i).map_or(0, |link| link.pairs())),
    };
    put_header(&mut bytes, TABLE_MAGIC, seed, &header);
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    sink(&bytes)?;
    for words in links.iter().flat_map(|link| link.filter.words().chunks(BLOCK_WORDS)) {
        block(words.iter().map(|word| word.load(Relaxed).to_le_bytes()), &mut bytes);
        sink(&bytes)?;
    }
    for hashes in revoked.chunks(BLOCK_HASHES) {
        block(hashes.iter().map(|hash| hash.to_le_bytes()), &mut bytes);
        sink(&bytes)?;
    }
    Ok(())
}

/// XXH3-64 of each 64 KiB block of each filter, plus the mixed hashes of the revoked pairs that lie there, in whatever order: two tables of equal
/// layout differ where these differ.
pub(crate) fn block_sums(table: &Table) -> Vec<u64> {
    let mut bytes = Vec::with_capacity(BLOCK_WORDS * 8);
    let blocks = table.links().flat_map(|link| link.filter.words().chunks(BLOCK_WORDS));
    let sums = blocks.map(|words| {
        bytes.clear();
        words.iter().for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
        xxh3_64(&bytes)
    });
    let mut sums: Vec<u64> = sums.collect();
    table.revoked.for_each(|hash| {
        let pair = Pair::from_hash(0, hash);
        let mut first = 0;
        for link in table.links() {
            if let Some(sum) = sums.get_mut(first + block_of(&link.filter, &pair)) {
                *sum = sum.wrapping_add(mix(pair.high ^ pair.low.rotate_left(17)));
            }
            first += link.filter.words().len().div_ceil(BLOCK_WORDS);
        }
    });
    sums
}

/// What comes next in the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Header,
    /// Words from `at` on, in the filter at `link`.
    Words {
        link: usize,
        at: usize,
    },
    /// Hashes from number `at` on.
    Hashes {
        at: usize,
    },
    End,
}

/// A header that was checked (D1, D2).
pub(crate) struct Header {
    pub(crate) rate: f64,
    pub(crate) low: u64,
    pub(crate) last: u64,
    pub(crate) pages: usize,
    pub(crate) early: u64,
    pub(crate) links: usize,
    pub(crate) revoked: usize,
    pub(crate) pairs: [u64; LINKS],
}

impl Header {
    pub(crate) const BYTES: usize = HEADER;
}

/// Appends a header, without its checksum.
pub(crate) fn put_header(bytes: &mut Vec<u8>, magic: &[u8; 8], seed: Seed, header: &Header) {
    bytes.extend_from_slice(magic);
    let Header { rate, low, last, pages, early, links, revoked, pairs } = header;
    for field in [rate.to_bits(), seed.fingerprint(), *low, *last, *pages as u64, *early] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&(*links as u32).to_le_bytes());
    bytes.extend_from_slice(&(*revoked as u32).to_le_bytes());
    pairs.iter().for_each(|pairs| bytes.extend_from_slice(&pairs.to_le_bytes()));
}

/// Reads a header, whose checksum was compared or is not asked for: D1, D2.
pub(crate) fn check_header(body: &[u8], magic: &[u8; 8], seed: Seed, limit: u64) -> Result<Header, DecodeError> {
    let corrupt = |what| Err(DecodeError::Corrupt { offset: 0, what });
    let field = |at: usize| u64_at(body, at);
    if body.len() < HEADER {
        return corrupt("the end, too early");
    }
    if body[..8] != magic[..] {
        return corrupt("no table of version 1");
    }
    let rate = f64::from_bits(field(8));
    if !RATES.contains(&rate) {
        return corrupt("an impossible error rate");
    }
    if field(16) != seed.fingerprint() {
        return Err(DecodeError::OtherSeed);
    }
    let (low, last) = (field(24), field(32));
    if low > last {
        return corrupt("a range that ends before it begins");
    }
    let counts = field(56);
    let (links, revoked) = (counts as u32 as usize, (counts >> 32) as usize);
    if !(1..=LINKS).contains(&links) {
        return corrupt("an impossible number of filters");
    }
    let too_large = |bytes: u64| Err(DecodeError::TooLarge { bytes, limit });
    let pages = field(40);
    // One page's worth at least, and few enough that no size below can overflow.
    if pages == 0 || pages > 1 << 36 {
        return too_large(pages.saturating_mul(4096));
    }
    let pages = pages as usize;
    let mut sizes = (0..links).map(|i| Table::geometry(rate, pages, i).1 as u64);
    let filters = sizes.try_fold(0u64, |sum, pages| sum.checked_add(pages.checked_mul(PAGE_WORDS as u64 * 8)?));
    let bytes = filters.and_then(|bytes| bytes.checked_add(revoked as u64 * 32)).unwrap_or(u64::MAX);
    if bytes > limit {
        return too_large(bytes);
    }
    let pairs = std::array::from_fn(|i| field(64 + 8 * i));
    Ok(Header { rate, low, last, pages, early: field(48), links, revoked, pairs })
}

/// Decodes one table from pieces of any size. See the top of the file.
pub struct TableDecoder {
    seed: Seed,
    limit_bytes: u64,
    verify: bool,
    next: Next,
    offset: u64,
    /// The part of the next header or block that has come.
    buffer: Vec<u8>,
    header: Option<Header>,
    filters: Vec<Filter>,
    revoked: Vec<u128>,
}

impl TableDecoder {
    /// A decoder for a table of the space that `options` describe, which may take `limit_bytes` of memory.
    pub fn new(options: &Options, limit_bytes: u64) -> TableDecoder {
        TableDecoder {
            seed: Seed::new(options.seed),
            limit_bytes,
            verify: true,
            next: Next::Header,
            offset: 0,
            buffer: vec![],
            header: None,
            filters: vec![],
            revoked: vec![],
        }
    }

    /// Switches checksums off: for fuzzing, which could not get past them.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn without_checksums(mut self) -> TableDecoder {
        self.verify = false;
        self
    }

    /// Whether all of a table has come.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_whole(&self) -> bool {
        self.next == Next::End
    }

    /// Bytes that complete the next header or block.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn needs_bytes(&self) -> usize {
        self.needs() - self.buffer.len()
    }

    fn corrupt(&self, what: &'static str) -> DecodeError {
        DecodeError::Corrupt { offset: self.offset, what }
    }

    /// Bytes of the next header or block, with its checksum.
    fn needs(&self) -> usize {
        let body = match self.next {
            Next::Header => HEADER,
            Next::Words { link, at } => (self.filters[link].words().len() - at).min(BLOCK_WORDS) * 8,
            Next::Hashes { at } => {
                (self.header.as_ref().map_or(0, |header| header.revoked) - at).min(BLOCK_HASHES) * 16
            }
            Next::End => return 0,
        };
        body + CHECK
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), DecodeError> {
        while !bytes.is_empty() {
            let needs = self.needs();
            if needs == 0 {
                return Err(self.corrupt("bytes after the end"));
            }
            let (now, later) = bytes.split_at(bytes.len().min(needs - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == needs {
                let buffer = std::mem::take(&mut self.buffer);
                let (body, check) = buffer.split_at(needs - CHECK);
                if self.verify && xxh3_64(body).to_le_bytes() != check {
                    return Err(self.corrupt("a checksum that does not match"));
                }
                self.take(body)?;
                self.offset += needs as u64;
                self.buffer = buffer;
                self.buffer.clear();
            }
        }
        Ok(())
    }

    fn take(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        match self.next {
            Next::Header => self.header(body),
            Next::Words { link, at } => {
                let words = self.filters[link].words();
                for (word, bytes) in words[at..].iter().zip(body.as_chunks().0) {
                    word.store(u64::from_le_bytes(*bytes), Relaxed);
                }
                let at = at + body.len() / 8;
                self.next = if at < words.len() {
                    Next::Words { link, at }
                } else if link + 1 < self.filters.len() {
                    Next::Words { link: link + 1, at: 0 }
                } else {
                    self.hashes_or_end()
                };
                Ok(())
            }
            Next::Hashes { .. } => {
                self.revoked.extend(body.as_chunks().0.iter().map(|bytes| u128::from_le_bytes(*bytes)));
                self.next = self.hashes_or_end();
                Ok(())
            }
            Next::End => Err(self.corrupt("bytes after the end")),
        }
    }

    fn hashes_or_end(&self) -> Next {
        let at = self.revoked.len();
        if self.header.as_ref().is_some_and(|header| at < header.revoked) { Next::Hashes { at } } else { Next::End }
    }

    fn header(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let header = check_header(body, TABLE_MAGIC, self.seed, self.limit_bytes)?;
        let new = |i| {
            let (sizing, pages) = Table::geometry(header.rate, header.pages, i);
            Filter::new(sizing, pages).map_err(|_| DecodeError::NoMemory)
        };
        self.filters = (0..header.links).map(new).collect::<Result<_, _>>()?;
        self.header = Some(header);
        self.next = Next::Words { link: 0, at: 0 };
        Ok(())
    }

    /// The table, if all of it has come.
    pub fn finish(self) -> Result<StoredTable, DecodeError> {
        let Some(header) = self.header.as_ref().filter(|_| self.next == Next::End) else {
            return Err(self.corrupt("the end, too early"));
        };
        assert!(header.links == self.filters.len() && header.pages == self.filters[0].pages(), "D1");
        let (low, last, rate) = (header.low, header.last, header.rate);
        let (claimed, early) = (header.pairs, header.early);
        let mut links = vec![];
        for (i, filter) in self.filters.into_iter().enumerate() {
            // D4: the bits tell how many pairs set them.
            let counted = filter.sizing().pairs_of(filter.ones(), filter.pages());
            let slack = uncertainty(counted);
            // Up to as many as come, not only as are counted: version 0.1.0 did not know the difference.
            if counted > filter.sizing().pairs(filter.pages()).saturating_add(slack) {
                return Err(DecodeError::Overfull { filter: i });
            }
            let pairs = claimed[i].clamp(counted.saturating_sub(slack), counted + slack);
            // Where they lie so unevenly that no chance explains it, they leave less room than their number says (`fill`).
            let weighed = Fill::of(&filter).pairs();
            let weighed = if weighed > counted + slack { weighed } else { 0 };
            links.push(Link::uneven(filter, pairs, weighed));
        }
        let first = links.remove(0);
        let table = Table::from_links(rate, first, links, early);
        for hash in self.revoked {
            table.revoked.reserve(usize::MAX);
            table.revoked.insert_reserved(hash);
        }
        Ok(StoredTable { low, last, table, next_pages: 0 })
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Space {
    /// What belongs to no table: the frontier, and the pairs aside. Take it before the tables: a pair that moves into one meanwhile is
    /// then in both, not in neither.
    pub fn encode_head(&self) -> Vec<u8> {
        let (frontier, seed) = (&self.frontier, self.seed);
        let high = frontier.high();
        let mut bytes = HEAD_MAGIC.to_vec();
        for field in [seed.fingerprint(), u64::from(high.is_some()) | 2, high.unwrap_or(0), frontier.window()] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        self.for_each_aside(|pair| {
            bytes.extend_from_slice(&pair.id.to_le_bytes());
            bytes.extend_from_slice(&pair.hash().to_le_bytes());
        });
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// The table that begins at `low`, in pieces of at most 64 KiB and a checksum, while writes go on. `false`: there is none.
    pub fn encode_table<E>(&self, low: u64, sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<bool, E> {
        let Some((range, mut table)) = self.table_at(low) else { return Ok(false) };
        if let Some(cold) = table.cold() {
            // Until it lies elsewhere the table below is the one that is to be kept.
            let Some(memory) = cold.memory() else { return Ok(false) };
            table = memory;
        }
        encode_table(self.seed, range, &table, sink)?;
        Ok(true)
    }

    /// A space as it was when [`Space::encode_head`] and [`Space::encode_table`] were called, in this order; the log tells the rest, and until
    /// [`Space::lead`] it is the log that decides where tables begin.
    pub fn restore(options: Options, head: &[u8], mut tables: Vec<StoredTable>) -> Result<Space, DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        let Some(body) = head.len().checked_sub(CHECK).filter(|&body| body >= HEAD_FIXED) else {
            return Err(corrupt(0, "a head that is too short"));
        };
        if head[..8] != HEAD_MAGIC[..] {
            return Err(corrupt(0, "no head of version 1"));
        }
        if xxh3_64(&head[..body]) != u64_at(head, body) {
            return Err(corrupt(0, "a checksum that does not match"));
        }
        if u64_at(head, 8) != Seed::new(options.seed).fingerprint() {
            return Err(DecodeError::OtherSeed);
        }
        let (is_known, is_told) = (u64_at(head, 16) & 1 == 1, u64_at(head, 16) & 2 == 2);
        let high = is_known.then(|| u64_at(head, 24));
        if !(body - HEAD_FIXED).is_multiple_of(ASIDE_PAIR) {
            return Err(corrupt(HEAD_FIXED, "half a pair"));
        }
        if tables.iter().any(|stored| stored.table.rate() != options.false_positive_rate) {
            return Err(DecodeError::OtherRate);
        }
        tables.sort_by_key(|stored| stored.low);
        // Where one is missing it was recycled, and all below it. (The newest of its time says that it has no end.)
        let is_gap = |pair: &[StoredTable]| pair[0].last.checked_add(1).is_some_and(|next| next < pair[1].low);
        if let Some(gap) = tables.windows(2).rposition(is_gap) {
            tables.drain(..=gap);
        }
        let follow = tables.windows(2).all(|pair| pair[0].low < pair[1].low);
        // What follows a table that lies elsewhere was empty, or is known to the log.
        if let Some(last) = tables.last().filter(|stored| stored.table.cold().is_some()) {
            let rate = options.false_positive_rate;
            let filter = Filter::new(Table::first_sizing(rate), last.next_pages).map_err(|_| DecodeError::NoMemory)?;
            let low = last.last.checked_add(1).ok_or(DecodeError::NoRing)?;
            tables.push(StoredTable { low, last: u64::MAX, table: Table::new(rate, filter), next_pages: 0 });
        }
        let Some(newest) = tables.len().checked_sub(1).filter(|_| follow) else { return Err(DecodeError::NoRing) };
        let cold_last = tables.iter().filter(|stored| stored.table.cold().is_some()).map(|stored| stored.last).max();
        let parts = tables.into_iter().enumerate().map(|(i, stored)| {
            stored.table.set_newest(i == newest);
            (stored.low, Arc::new(stored.table))
        });
        let frontier = Frontier::restore(high, u64_at(head, 32), options.max_ahead, options.max_aside);
        if cold_last.is_some() {
            // The ids up to there were normal when the table was closed.
            frontier.adopt(cold_last, 0);
        }
        frontier.follow(is_told);
        let space = Space::from_parts(options, parts.collect(), frontier)
            .map_err(|_| corrupt(0, "options that cannot work"))?;
        for pair in head[HEAD_FIXED..body].chunks_exact(ASIDE_PAIR) {
            let hash = u128::from(u64_at(pair, 16)) << 64 | u128::from(u64_at(pair, 8));
            space.put_aside(&Pair::from_hash(u64_at(pair, 0), hash));
        }
        Ok(space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Change, Member};

    fn options() -> Options {
        Options {
            false_positive_rate: 0.001,
            pairs_per_table: 4000,
            max_tables: 100,
            max_aside: 1 << 10,
            seed: 11,
            ..Options::default()
        }
    }

    type Pairs = Vec<(u64, u64)>;

    /// A space with closed tables, an extension, revoked pairs and strays.
    fn busy() -> (Space, Pairs, Pairs) {
        let space = Space::new(options()).unwrap();
        let (mut set, mut unset) = (vec![], vec![]);
        for i in 0..30_000u64 {
            // The first ids get much that comes late.
            let id = if i % 3 == 0 { 5 } else { 1000 + i };
            if space.add(id, &Member::Number(i)).unwrap() == Change::Changed {
                set.push((id, i));
            }
            if i % 10 == 9
                && let Some((id, member)) = set.pop()
            {
                assert_eq!(space.remove(id, &Member::Number(member)).unwrap(), Change::Changed);
                unset.push((id, member));
            }
        }
        for i in 0..10 {
            space.add(u64::MAX - i, &Member::Number(i)).unwrap();
            set.push((u64::MAX - i, i));
        }
        let tables = space.tables();
        assert!(tables.len() > 3 && tables[0].extensions > 0 && tables[0].revoked > 0 && space.aside_pairs() == 10);
        (space, set, unset)
    }

    fn encoded(space: &Space, low: u64) -> Vec<u8> {
        let mut bytes = vec![];
        let sink = |piece: &[u8]| {
            assert!(piece.len() <= 64 * 1024 + CHECK);
            bytes.extend_from_slice(piece);
            Ok::<(), ()>(())
        };
        assert!(space.encode_table(low, sink).unwrap());
        bytes
    }

    fn decoded(options: &Options, bytes: &[u8]) -> Result<StoredTable, DecodeError> {
        let mut decoder = TableDecoder::new(options, 1 << 30);
        decoder.feed(bytes)?;
        decoder.finish()
    }

    #[test]
    fn what_is_restored_is_what_was_stored() {
        let (space, set, unset) = busy();
        let head = space.encode_head();
        let mut tables = vec![];
        for (i, at) in space.layout().iter().enumerate() {
            let mut decoder = TableDecoder::new(&options(), 1 << 30);
            for piece in encoded(&space, at.low).chunks(i * 977 + 1) {
                decoder.feed(piece).unwrap();
            }
            tables.push(decoder.finish().unwrap());
        }
        tables.reverse();
        let restored = Space::restore(options(), &head, tables).unwrap();
        assert_eq!(restored.layout(), space.layout());
        assert_eq!(restored.pairs(), space.pairs());
        assert_eq!(restored.aside_pairs(), 10);
        let (mut before, mut after) = (space.tables_probed(0), restored.tables_probed(0));
        for table in before.iter_mut().chain(&mut after) {
            (table.version, table.measured) = (0, Default::default());
        }
        assert_eq!(before, after);
        for space in [&space, &restored] {
            for &(id, member) in &set {
                assert_eq!(space.contains(id, &Member::Number(member)), Answer::Yes);
            }
            for &(id, member) in &unset {
                assert_eq!(space.contains(id, &Member::Number(member)), Answer::No);
            }
        }
        // It goes on like the other.
        restored.lead();
        for i in 0..10_000 {
            space.add(40_000 + i, &Member::Number(i)).unwrap();
            restored.add(40_000 + i, &Member::Number(i)).unwrap();
        }
        assert_eq!(restored.layout(), space.layout());
        assert!(!space.encode_table(3, |_| Ok::<(), ()>(())).unwrap(), "no table begins there");
    }

    /// A table that a snapshot lacks was recycled while it was written: with all below it, of which it may have some. What was the newest then has no end.
    #[test]
    fn a_ring_begins_above_what_is_missing_in_it() {
        let (space, ..) = busy();
        let mut lows: Vec<u64> = space.layout().iter().map(|at| at.low).collect();
        let restored = |lows: &[u64], endless: u64| {
            let stored = |&low: &u64| {
                let mut stored = decoded(&options(), &encoded(&space, low)).unwrap();
                stored.last = if low == endless { u64::MAX } else { stored.last };
                stored
            };
            let tables = lows.iter().map(stored).collect();
            let restored = Space::restore(options(), &space.encode_head(), tables).unwrap();
            restored.layout().iter().map(|at| at.low).collect::<Vec<_>>()
        };
        assert!(lows.len() > 3);
        assert_eq!(restored(&lows, 1), lows);
        assert_eq!(restored(&lows[1..], 1), lows[1..]);
        let newest = lows[lows.len() - 1];
        assert_eq!(restored(&[lows[0], lows[1], newest], 1), [newest]);
        assert_eq!(restored(&lows[..2], lows[1]), lows[..2]);
        let missing = lows.remove(1);
        assert_eq!(restored(&lows, 1), lows[1..], "{missing} is missing");
        assert_eq!(restored(&lows, lows[0]), lows);
    }

    #[test]
    fn damage_is_found_and_named() {
        let (space, ..) = busy();
        let bytes = encoded(&space, 0);
        assert!(decoded(&options(), &bytes).is_ok());
        for cut in [0, 1, 199, 200, bytes.len() - 1] {
            assert!(matches!(decoded(&options(), &bytes[..cut]), Err(DecodeError::Corrupt { .. })), "cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(decoded(&options(), &longer), Err(DecodeError::Corrupt { what: "bytes after the end", .. })));
        for at in (0..300).chain((300..bytes.len()).step_by(997)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let error = decoded(&options(), &damaged).err().unwrap();
            let DecodeError::Corrupt { offset, .. } = error else { panic!("byte {at}: {error}") };
            assert!(offset <= at as u64 && at as u64 - offset < 66_000, "byte {at} named as {offset}");
        }
        let other = Options { seed: 12, ..options() };
        assert_eq!(decoded(&other, &bytes).err(), Some(DecodeError::OtherSeed));
        // Where the bits of a pair are in a line is known for all tables of a space at once.
        let other = Options { false_positive_rate: 0.01, ..options() };
        let stored = vec![decoded(&other, &bytes).unwrap()];
        assert_eq!(Space::restore(other, &space.encode_head(), stored).err(), Some(DecodeError::OtherRate));
        let mut small = TableDecoder::new(&options(), 4096);
        assert!(matches!(small.feed(&bytes), Err(DecodeError::TooLarge { limit: 4096, .. })));

        let head = space.encode_head();
        for at in 0..head.len() {
            let mut damaged = head.clone();
            damaged[at] ^= 1;
            assert!(Space::restore(options(), &damaged, vec![]).is_err());
            assert!(Space::restore(options(), &head[..at], vec![]).is_err());
        }
        assert_eq!(Space::restore(options(), &head, vec![]).err(), Some(DecodeError::NoRing));
        let twice = (0..2).map(|_| decoded(&options(), &bytes).unwrap()).collect();
        assert_eq!(Space::restore(options(), &head, twice).err(), Some(DecodeError::NoRing));
    }

    /// A filter of ones would answer everything with yes.
    #[test]
    fn a_filter_that_is_too_full_is_refused() {
        let (space, ..) = busy();
        let mut bytes = encoded(&space, 0);
        let end = bytes.len().min(200 + 4096);
        bytes[200..end].fill(0xff);
        let mut decoder = TableDecoder::new(&options(), 1 << 30).without_checksums();
        decoder.feed(&bytes).unwrap();
        assert_eq!(decoder.finish().err(), Some(DecodeError::Overfull { filter: 0 }));
    }
}
