//! Data of a cold table in addition to its pages. A note ([`Note`]) is stored with the pages. A
//! snapshot stores the changes made since then ([`LatePairs`]).

use super::Rewrite;
use crate::bytes::u64_at;
use crate::codec::{CHECKSUM_BYTES, DecodeError, Header, StoredTable, check_header, put_header};
use crate::deleted_pairs::DeletedPairs;
use crate::filter::Filter;
use crate::hash::{Pair, Seed};
use crate::options::Options;
use crate::space::Space;
use crate::table::cold_table::{Chain, ColdBackend};
use crate::table::{Cold, ColdSource, Table};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const NOTE_MAGIC: &[u8; 8] = b"TMPHCLD\x01";
const HASHES_PER_BLOCK: usize = 4096;

impl Rewrite {
    /// Returns the note ([`Note`]) to store with the pages, including the currently deleted pairs.
    /// Call this after the last page was written.
    pub fn note(&self) -> Vec<u8> {
        let mut revoked = vec![];
        self.table.revoked.for_each(|hash| revoked.push(hash));
        let pairs: Vec<u64> = self.contents.chain.parts.iter().map(|part| part.pairs).collect();
        let mut bytes = Vec::new();
        let header = Header {
            rate: self.contents.chain.rate,
            low: self.range.0,
            last: self.range.1,
            pages: self.contents.chain.first_pages(),
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

/// Note of a cold table, from [`Rewrite::note`]. **Version 1**, little-endian:
///
/// - 192 bytes: header of a stored table (`codec`) with the magic "TMPHCLD" 01, without its
///   checksum
/// - 8 bytes: pages of the first filter of the following table
/// - 16 bytes each: hashes of the deleted pairs
/// - 8 bytes: XXH3-64 of everything before
pub struct Note {
    header: Header,
    next_pages: usize,
    revoked: Vec<u128>,
    chain: Arc<Chain>,
}

impl Note {
    /// Decodes a note for the space with these `options`.
    pub fn decode(options: &Options, bytes: &[u8]) -> Result<Note, DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        let header = check_header(bytes, NOTE_MAGIC, Seed::new(options.seed), u64::MAX)?;
        let (at, end) = (Header::BYTES + 8, Header::BYTES + 8 + header.revoked * 16);
        if bytes.len() != end + CHECKSUM_BYTES {
            return Err(corrupt(bytes.len(), "the note's length differs from its header"));
        }
        if xxh3_64(&bytes[..end]) != u64_at(bytes, end) {
            return Err(corrupt(end, "checksum mismatch"));
        }
        let chain = Chain::new(header.rate, header.pages, &header.pairs[..header.links]);
        let next_pages = usize::try_from(u64_at(bytes, Header::BYTES))
            .ok()
            .filter(|pages| (1..=1 << 36).contains(pages));
        Ok(Note {
            next_pages: next_pages
                .ok_or(corrupt(Header::BYTES, "invalid size of the next table"))?,
            revoked: bytes[at..end]
                .as_chunks()
                .0
                .iter()
                .map(|hash| u128::from_le_bytes(*hash))
                .collect(),
            chain: Arc::new(chain),
            header,
        })
    }

    /// Returns the inclusive id range.
    pub fn range(&self) -> (u64, u64) {
        (self.header.low, self.header.last)
    }

    /// Returns the sizes of the filters in the pages.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Returns a table whose filters are read through `below`. `late` comes from a snapshot and
    /// applies only if it refers to the same pages. If `is_later`, the pages are newer than the
    /// snapshot's head, so they contain all pairs of their ids that the head lists as outliers
    /// (pairs outside the tables).
    pub fn table(
        self,
        below: Arc<dyn ColdBackend>,
        late: Option<&LatePairs>,
        is_later: bool,
    ) -> Result<StoredTable, DecodeError> {
        let Header { rate, low, last, early, .. } = self.header;
        let late = late.filter(|late| late.identity == below.identity());
        let cold = Cold::new(ColdSource::Disk(below, self.chain));
        if let Some(late) = late {
            late.set.iter().for_each(|&hash| cold.keep_late(hash));
        }
        let revoked = DeletedPairs::small();
        for &hash in late.map_or(&self.revoked, |late| &late.revoked) {
            revoked.insert(hash);
        }
        let empty = Filter::new(Table::first_sizing(rate), 1).map_err(|_| DecodeError::NoMemory)?;
        let table = Table::cold_table(rate, empty, cold, Arc::new(revoked), early);
        Ok(StoredTable { low, last, table, next_pages: self.next_pages, is_later })
    }
}

/// Part of a cold table's state that is stored in a snapshot: the pairs that the table's pages and
/// note do not contain.
#[derive(Default)]
pub struct LatePairs {
    /// Identity of the backend; 0 if the table was in memory and is in the snapshot itself.
    identity: u64,
    set: Vec<u128>,
    revoked: Vec<u128>,
}

impl LatePairs {
    /// Decodes a piece from [`Space::encode_late`] into `all`, keyed by the table's lowest id.
    pub fn take(all: &mut HashMap<u64, LatePairs>, bytes: &[u8]) -> Result<(), DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        if bytes.len() < 24 || !(bytes.len() - 24).is_multiple_of(16) {
            return Err(corrupt(bytes.len(), "half a pair"));
        }
        let late = all.entry(u64_at(bytes, 0)).or_default();
        late.identity = u64_at(bytes, 8);
        let into = match u64_at(bytes, 16) {
            0 => &mut late.set,
            1 => &mut late.revoked,
            _ => return Err(corrupt(16, "neither late nor revoked pairs")),
        };
        into.extend(bytes[24..].as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)));
        Ok(())
    }
}

impl Space {
    /// Encodes the state of the cold tables for a snapshot, in pieces for [`LatePairs::take`].
    pub fn encode_late<E>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        for entry in self.ring.load_full().entries() {
            let Some(cold) = entry.table().cold() else { continue };
            for (kind, set) in [(0u64, &cold.late), (1, &*entry.table().revoked)] {
                let mut hashes = vec![];
                set.for_each(|hash| hashes.push(hash));
                // Write at least one piece even for an empty set, because an empty set differs from
                // a missing one.
                for hashes in
                    hashes.chunks(HASHES_PER_BLOCK).chain(hashes.is_empty().then_some(&[][..]))
                {
                    let head = [entry.slot().low(), cold.identity(), kind];
                    let mut bytes: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
                    hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
                    sink(&bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Inserts late pairs into the filters of tables that were frozen, but not yet on disk, when
    /// the snapshot was taken.
    pub fn put_late(&self, all: &HashMap<u64, LatePairs>) -> Result<(), DecodeError> {
        for (&low, late) in all.iter().filter(|(_, late)| late.identity == 0) {
            if self.table_at(low).is_none_or(|(_, table)| table.cold().is_some()) {
                continue;
            }
            let revoked: HashSet<u128> = late.revoked.iter().copied().collect();
            let mut set = late.set.iter().filter(|hash| !revoked.contains(hash));
            set.try_for_each(|&hash| self.put(&Pair::from_hash(low, hash), true))
                .map_err(|_| DecodeError::NoMemory)?;
        }
        Ok(())
    }
}
