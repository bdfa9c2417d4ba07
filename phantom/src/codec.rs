//! Tables and the rest of a space as bytes: for snapshots.
//! **Version 1, little-endian.**
//!
//! ```text
//!   table   offset  size  field
//!                0     8  magic "TMPHTAB" 01
//!                8     8  error rate (f64)           what the chain of filters is sized by
//!               16     8  fingerprint of the seed
//!               24     8  lowest id                  32  8  highest id (inclusive)
//!               40     8  pages of the first filter
//!               48     8  pairs when the table was closed (0: it was open)
//!               56     4  filters in the chain (1..=16)
//!               60     4  revoked pairs
//!               64   128  pairs in each filter, 8 bytes each, 0 where there is none
//!              192     8  XXH3-64 of bytes 0..192
//!              200        the filters' words, in blocks of 64 KiB (the last of a filter may be
//!                         shorter), each followed by its XXH3-64
//!                         the revoked pairs' hashes, 16 bytes each, in blocks of 4096 (the last
//!                         may be shorter), each with its XXH3-64
//!
//!   head         0     8  magic "TMPHEAD" 01
//!                8     8  fingerprint of the seed
//!               16     8  1 if the frontier is known, else 0
//!               24     8  frontier                   32  8  its window
//!               40        pairs aside: id 8, hash 16     then 8  XXH3-64 of all before
//!
//!   head of several ranges of ids: magic "TMPHEAD" 02, and before the pairs aside
//!               40     8  ranges below the highest, n
//!               48   24n  of each, downwards: where the range above it begins, its frontier, its
//!                         window
//! ```
//!
//! **There is one decoder**, [`TableDecoder`], for what a disk gives back or another server ships.
//! A Bloom filter that comes from outside is the most
//! attacked thing of this product class, so nothing in it is believed: **D1** the size of
//! everything that is allocated is derived, by the formulas that make a new table, from a rate and
//! a page count that were checked first; **D2** the sum is held against a limit before the first
//! allocation; **D3** no other number of the header decides where anything is read or written;
//! **D4** counts are held against the bits themselves. It can be fed in pieces of any size, and
//! with its checksums switched off it must still do no more harm than refuse, or hold other bits
//! than were meant.

mod decoder;
mod head;
#[cfg(test)]
mod tests;

use crate::bytes::u64_at;
use crate::hash::Seed;
use crate::sizing::{PAGE_WORDS, RATES, Sizing};
use crate::table::{LINKS, Link, Table};
pub use decoder::TableDecoder;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

const TABLE_MAGIC: &[u8; 8] = b"TMPHTAB\x01";
pub(crate) const CHECK: usize = 8;
const HEADER: usize = 64 + 8 * LINKS;
/// Words of a stored block: 64 KiB.
const BLOCK_WORDS: usize = 64 * 1024 / 8;
const BLOCK_HASHES: usize = 4096;

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
    /// It would take more memory than was allowed.
    #[error("takes {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// What it would take.
        bytes: u64,
        /// What was allowed.
        limit: u64,
    },
    /// The tables do not make a ring.
    #[error("the tables do not follow each other")]
    NoRing,
    /// The system has no memory for it.
    #[error("no memory for a table")]
    NoMemory,
}

/// A table that was decoded, and belongs to no space yet: for
/// [`Space::restore`](crate::Space::restore).
pub struct StoredTable {
    pub(crate) low: u64,
    pub(crate) last: u64,
    pub(crate) table: Table,
    /// Pages of the first filter of the table that follows, if that is known.
    pub(crate) next_pages: usize,
    /// Whether it was written after the head that it is restored with: then all pairs of its ids
    /// that the head has as outliers have moved into it.
    pub(crate) is_later: bool,
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

/// Encodes `table` into pieces of at most 64 KiB and a checksum. Writes may go on: what is set when
/// this begins is in it, and what is unset later is told by the log.
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
pub(crate) fn check_header(
    body: &[u8],
    magic: &[u8; 8],
    seed: Seed,
    limit: u64,
) -> Result<Header, DecodeError> {
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
    let mut sizes = (0..links).map(|i| Sizing::geometry(rate, pages, i).1 as u64);
    let filters = sizes
        .try_fold(0u64, |sum, pages| sum.checked_add(pages.checked_mul(PAGE_WORDS as u64 * 8)?));
    let bytes =
        filters.and_then(|bytes| bytes.checked_add(revoked as u64 * 32)).unwrap_or(u64::MAX);
    if bytes > limit {
        return too_large(bytes);
    }
    let pairs = std::array::from_fn(|i| field(64 + 8 * i));
    Ok(Header { rate, low, last, pages, early: field(48), links, revoked, pairs })
}
