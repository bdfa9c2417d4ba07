//! Snapshot format of a space: its tables and its head. **Version 1, little-endian.**
//!
//! ```text
//!   table   offset  size  field
//!                0     8  magic "TMPHTAB" 01
//!                8     8  error rate (f64)           determines the sizes of all filters
//!               16     8  fingerprint of the seed
//!               24     8  lowest id                  32  8  highest id (inclusive)
//!               40     8  pages of the first filter
//!               48     8  pairs when the table was closed (0: it was open)
//!               56     4  filters in the chain (1..=16)
//!               60     4  deleted pairs
//!               64   128  pairs in each filter, 8 bytes each, 0 where there is none
//!              192     8  XXH3-64 of bytes 0..192
//!              200        words of the filters, in blocks of 64 KiB, each with its XXH3-64; the
//!                         last block of a filter may be shorter
//!                         hashes of the deleted pairs, 16 bytes each, in blocks of 4096, each
//!                         with its XXH3-64; the last block may be shorter
//!
//!   head         0     8  magic "TMPHEAD" 01
//!                8     8  fingerprint of the seed
//!               16     8  1 if the frontier is known, else 0
//!               24     8  frontier                   32  8  its window
//!               40        outliers: id 8, hash 16        then 8  XXH3-64 of all before
//!
//!   head with several id ranges: magic "TMPHEAD" 02, and before the outliers
//!               40     8  n: id ranges below the highest
//!               48   24n  per range, highest first: start of the next higher range, frontier,
//!                         window
//! ```
//!
//! [`TableDecoder`] is the only decoder. Its input comes from a disk or from another server, and
//! untrusted Bloom filters are a known attack surface. The decoder therefore trusts no field:
//!
//! - **D1** It derives the size of every allocation from a rate and a page count, after a range
//!   check, with the formulas for new tables.
//! - **D2** It compares the total size with a limit before the first allocation.
//! - **D3** No other header field determines where anything is read or written.
//! - **D4** It checks pair counts against the bits.
//!
//! The decoder accepts input in pieces of any size. Without checksums, corrupt input leads to an
//! error or to wrong bits, never to a panic or an oversized allocation.

mod decoder;
mod head;
#[cfg(test)]
mod tests;

use crate::bytes::u64_at;
use crate::hash::Seed;
use crate::sizing::{PAGE_WORDS, RATES, Sizing};
use crate::table::{ChainedFilter, LINKS, Table};
pub use decoder::TableDecoder;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

const TABLE_MAGIC: &[u8; 8] = b"TMPHTAB\x01";
pub(crate) const CHECKSUM_BYTES: usize = 8;
const HEADER_BYTES: usize = 64 + 8 * LINKS;
/// Number of words in a stored block (64 KiB).
const BLOCK_WORDS: usize = 64 * 1024 / 8;
const BLOCK_HASHES: usize = 4096;

const _: () = assert!(HEADER_BYTES == 192);

/// Reason why a table or a head cannot be decoded. The space is unchanged.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum DecodeError {
    /// The input is corrupt at `offset`.
    #[error("{what} at byte {offset}")]
    Corrupt {
        /// Offset from the first byte of the table or head.
        offset: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// The table belongs to a space with another seed, so its pairs cannot be found.
    #[error("created by a space with another seed")]
    OtherSeed,
    /// The table exceeds the memory limit.
    #[error("{bytes} bytes exceed the limit of {limit}")]
    TooLarge {
        /// Size of the table in bytes.
        bytes: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// Two tables begin at the same id, or the newest table is cold.
    #[error("the tables are not adjacent")]
    NoRing,
    /// The operating system could not provide the memory.
    #[error("out of memory for a table")]
    NoMemory,
}

/// Decoded table that is not part of a space yet; input of
/// [`Space::restore`](crate::Space::restore).
pub struct StoredTable {
    pub(crate) low: u64,
    pub(crate) last: u64,
    pub(crate) table: Table,
    /// Number of pages of the following table's first filter; 0 if unknown.
    pub(crate) next_pages: usize,
    /// Whether the table is newer than the head. If so, the table already contains those of the
    /// head's outliers that are in its id range.
    pub(crate) is_later: bool,
}

impl StoredTable {
    /// Returns the inclusive id range.
    pub fn range(&self) -> (u64, u64) {
        (self.low, self.last)
    }
}

fn block<const N: usize>(items: impl Iterator<Item = [u8; N]>, bytes: &mut Vec<u8>) {
    bytes.clear();
    items.for_each(|item| bytes.extend_from_slice(&item));
    let check = xxh3_64(bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
}

/// Encodes `table` in pieces of at most 64 KiB plus a checksum. Other threads may write
/// concurrently. The result contains every pair set before the call. Deletions made afterwards are
/// in the log.
pub(crate) fn encode_table<E>(
    seed: Seed,
    (low, last): (u64, u64),
    table: &Table,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut revoked = vec![];
    table.revoked.for_each(|hash| revoked.push(hash));
    let links: Vec<&ChainedFilter> = table.links().collect();
    let mut bytes = Vec::with_capacity(BLOCK_WORDS * 8 + CHECKSUM_BYTES);
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

/// Header that has passed checks D1 and D2.
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
    pub(crate) const BYTES: usize = HEADER_BYTES;
}

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

/// Decodes a header and checks D1 and D2. The caller has verified the checksum.
pub(crate) fn check_header(
    body: &[u8],
    magic: &[u8; 8],
    seed: Seed,
    limit: u64,
) -> Result<Header, DecodeError> {
    let corrupt = |what| Err(DecodeError::Corrupt { offset: 0, what });
    let field = |at: usize| u64_at(body, at);
    if body.len() < HEADER_BYTES {
        return corrupt("unexpected end");
    }
    if body[..8] != magic[..] {
        return corrupt("not a table of version 1");
    }
    let rate = f64::from_bits(field(8));
    if !RATES.contains(&rate) {
        return corrupt("invalid error rate");
    }
    if field(16) != seed.fingerprint() {
        return Err(DecodeError::OtherSeed);
    }
    let (low, last) = (field(24), field(32));
    if low > last {
        return corrupt("a range that ends before it starts");
    }
    let counts = field(56);
    let (links, revoked) = (counts as u32 as usize, (counts >> 32) as usize);
    if !(1..=LINKS).contains(&links) {
        return corrupt("invalid number of filters");
    }
    let too_large = |bytes: u64| Err(DecodeError::TooLarge { bytes, limit });
    let pages = field(40);
    // This upper bound on the page count prevents overflows below.
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
