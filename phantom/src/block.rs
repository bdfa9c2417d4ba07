//! A block: 64 KiB of one filter of a table's chain, with the revoked pairs whose bits lie in it,
//! on its way from one site to another.
//!
//! As no pair's bits leave a page, a block says all there is to say of its pairs; moving blocks
//! needs memory for one at a time.
//!
//! ```text
//!   block  offset  size  field
//!               0     8  magic "TMPHBLK" 01
//!               8     8  error rate (f64)           16  8  fingerprint of the seed
//!              24     8  lowest id                  32  8  highest id of the table (inclusive)
//!              40     8  no pair has a higher id    48  8  pages of the first filter
//!              56     4  filter of the chain        60  4  block of the filter
//!              64     4  revoked pairs              68  4  forgotten ids
//!              72        the words, 64 KiB (the last block of a filter may be shorter)
//!                        the revoked pairs' hashes, 16 bytes each
//!                        the forgotten ids, rising: id 8, generation 8. Each comes with the block
//!                        of the first filter that `block_of_id` gives
//!                     8  XXH3-64 of all before
//! ```
//!
//! Nothing that a stranger sends is believed, as in `codec`: the sizes of everything are those of
//! *our* table, with which the header has to agree.

use crate::block_layout::block_range;
use crate::bytes::u64_at;
use crate::error::MergeError;
use crate::forgotten::MOST_GENERATIONS;
use crate::space::Space;
use crate::table::{LINKS, Table};
use crate::{DecodeError, Error};
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"TMPHBLK\x01";
const HEADER: usize = 72;
const CHECK: usize = 8;

/// Where a block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockPlace {
    /// An id of the table that it belongs to: the lowest.
    pub low: u64,
    /// Filter of the table's chain.
    pub link: usize,
    /// Number of the block in its filter.
    pub block: usize,
}

/// A block of another site's table that fits one of ours: for [`Space::merge_block`].
pub struct Block {
    pub(crate) place: BlockPlace,
    /// No pair of it has a higher id.
    pub(crate) highest: u64,
    pub(crate) words: Vec<u64>,
    /// Sorted, each once.
    pub(crate) revoked: Vec<u128>,
    /// Ids with their generations.
    pub(crate) forgotten: Vec<(u64, u64)>,
}

impl Block {
    /// Where it belongs.
    pub fn place(&self) -> BlockPlace {
        self.place
    }

    /// Ids of which it says that they are forgotten.
    pub fn forgotten_ids(&self) -> impl Iterator<Item = u64> {
        self.forgotten.iter().map(|&(id, _)| id)
    }
}

/// What a block's header says.
pub(crate) struct Header {
    pub(crate) rate: f64,
    pub(crate) fingerprint: u64,
    pub(crate) range: (u64, u64),
    pub(crate) highest: u64,
    pub(crate) pages: usize,
    pub(crate) link: usize,
    pub(crate) block: usize,
}

/// A block as bytes.
pub(crate) fn encode(
    header: &Header,
    words: &[u64],
    revoked: &[u128],
    forgotten: &[(u64, u64)],
    bytes: &mut Vec<u8>,
) {
    bytes.clear();
    bytes.extend_from_slice(MAGIC);
    let (low, last) = header.range;
    for field in
        [header.rate.to_bits(), header.fingerprint, low, last, header.highest, header.pages as u64]
    {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    let counts = [revoked.len() as u32, forgotten.len() as u32];
    for field in [header.link as u32, header.block as u32].into_iter().chain(counts) {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    revoked.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
    for number in forgotten.iter().flat_map(|&(id, generation)| [id, generation]) {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&xxh3_64(bytes).to_le_bytes());
}

impl Space {
    /// Takes the next block off `bytes`. What it claims to be has to fit one of our tables.
    pub fn read_block(&self, bytes: &mut &[u8]) -> Result<Block, MergeError> {
        self.read_block_as(bytes, true)
    }

    pub(crate) fn read_block_as(
        &self,
        bytes: &mut &[u8],
        verify: bool,
    ) -> Result<Block, MergeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        if bytes.len() < HEADER {
            return Err(corrupt(bytes.len(), "the end, too early").into());
        }
        if bytes[..8] != MAGIC[..] {
            return Err(corrupt(0, "no block of version 1").into());
        }
        if u64_at(bytes, 16) != self.seed.fingerprint() {
            return Err(DecodeError::OtherSeed.into());
        }
        let (low, last) = (u64_at(bytes, 24), u64_at(bytes, 32));
        let halves =
            |at: usize| (u64_at(bytes, at) as u32 as usize, (u64_at(bytes, at) >> 32) as usize);
        let highest = u64_at(bytes, 40);
        let ((link, block), (revoked, forgotten)) = (halves(56), halves(64));
        let ours =
            self.table_over(low).filter(|((_, our_last), _)| (low..=*our_last).contains(&last));
        let Some(((our_low, _), ours)) = ours else {
            return Err(MergeError::NoTable { low, last });
        };
        if ours.rate().to_bits() != u64_at(bytes, 8) || ours.pages() as u64 != u64_at(bytes, 48) {
            return Err(MergeError::OtherLayout);
        }
        if !(low..=last).contains(&highest) {
            return Err(corrupt(40, "a highest id that is none of the table's").into());
        }
        // Filters come in order, so that no stranger makes a chain longer than his own.
        if link > ours.chain_len() || link >= LINKS {
            return Err(corrupt(56, "a filter of the chain that has no predecessor").into());
        }
        let (_, pages) = Table::geometry(ours.rate(), ours.pages(), link);
        let words = block_range(pages, block).len();
        if words == 0 {
            return Err(corrupt(60, "a block that its filter has not").into());
        }
        if revoked > self.limits.max_revoked.load(Relaxed) {
            return Err(Error::RevokedFull.into());
        }
        if forgotten > self.limits.max_forgotten.load(Relaxed) {
            return Err(Error::ForgottenFull.into());
        }
        let size = HEADER + words * 8 + (revoked + forgotten) * 16 + CHECK;
        let Some((whole, rest)) = bytes.split_at_checked(size) else {
            return Err(corrupt(bytes.len(), "the end, too early").into());
        };
        let (body, check) = whole.split_at(size - CHECK);
        if verify && xxh3_64(body).to_le_bytes() != check {
            return Err(corrupt(0, "a checksum that does not match").into());
        }
        *bytes = rest;
        let (words, behind) = body[HEADER..].split_at(words * 8);
        let (hashes, generations) = behind.split_at(revoked * 16);
        let mut revoked: Vec<u128> =
            hashes.as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)).collect();
        revoked.sort_unstable();
        revoked.dedup();
        let generations = generations.as_chunks::<16>().0.iter();
        let forgotten: Vec<(u64, u64)> =
            generations.map(|entry| (u64_at(entry, 0), u64_at(entry, 8))).collect();
        let is_sound = |&(id, generation): &(u64, u64)| {
            (low..=highest).contains(&id) && (1..=MOST_GENERATIONS).contains(&generation)
        };
        if !forgotten.iter().all(is_sound) || !forgotten.is_sorted_by(|a, b| a.0 < b.0) {
            let at = size - CHECK - forgotten.len() * 16;
            return Err(corrupt(at, "forgotten ids that cannot be").into());
        }
        Ok(Block {
            place: BlockPlace { low: our_low, link, block },
            highest,
            words: words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            revoked,
            forgotten,
        })
    }
}
