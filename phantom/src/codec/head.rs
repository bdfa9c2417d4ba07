//! A space as its head and its tables, and back.

use super::{CHECK, DecodeError, StoredTable, encode_table};
use crate::bytes::u64_at;
use crate::filter::Filter;
use crate::hash::{Pair, Seed};
use crate::options::Options;
use crate::space::Space;
use crate::table::Table;
use rolling::{Frontier, MAX_RANGES, Range};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_MAGIC: &[u8; 8] = b"TMPHEAD\x01";
/// Of a space with several ranges of ids.
const HEAD_MAGIC_RANGES: &[u8; 8] = b"TMPHEAD\x02";
const HEAD_FIXED: usize = 40;
const ASIDE_PAIR: usize = 24;

impl Space {
    /// What belongs to no table: the frontier, and the pairs aside. Take it before the tables: a
    /// pair that moves into one meanwhile is then in both, not in neither.
    pub fn encode_head(&self) -> Vec<u8> {
        let (frontier, seed) = (&self.frontier, self.seed);
        let ranges = Range::encode(&frontier.ranges());
        let mut fields = vec![seed.fingerprint(), u64::from(!ranges.is_empty()) | 2];
        fields.extend(ranges.iter().take(2));
        fields.resize(4, 0);
        let mut bytes = HEAD_MAGIC.to_vec();
        if let Some(lower) = ranges.get(2..).filter(|lower| !lower.is_empty()) {
            bytes = HEAD_MAGIC_RANGES.to_vec();
            fields.push(lower.len() as u64 / 3);
            fields.extend(lower);
        }
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        self.for_each_outlier(|pair| {
            bytes.extend_from_slice(&pair.id.to_le_bytes());
            bytes.extend_from_slice(&pair.hash().to_le_bytes());
        });
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// The table that begins at `low`, in pieces of at most 64 KiB and a checksum, while writes go
    /// on. `false`: there is none.
    pub fn encode_table<E>(
        &self,
        low: u64,
        sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some((range, mut table)) = self.table_at(low) else { return Ok(false) };
        if let Some(cold) = table.cold() {
            // Until it lies elsewhere the table below is the one that is to be kept.
            let Some(memory) = cold.memory() else { return Ok(false) };
            table = memory;
        }
        encode_table(self.seed, range, &table, sink)?;
        Ok(true)
    }

    /// A space as it was when [`Space::encode_head`] and [`Space::encode_table`] were called, in
    /// this order; the log tells the rest, and until
    /// [`Space::lead`] it is the log that decides where tables begin.
    pub fn restore(
        options: Options,
        head: &[u8],
        mut tables: Vec<StoredTable>,
    ) -> Result<Space, DecodeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        let Some(body) = head.len().checked_sub(CHECK).filter(|&body| body >= HEAD_FIXED) else {
            return Err(corrupt(0, "a head that is too short"));
        };
        let has_ranges = head[..8] == HEAD_MAGIC_RANGES[..];
        if head[..8] != HEAD_MAGIC[..] && !has_ranges {
            return Err(corrupt(0, "no head of version 1 or 2"));
        }
        if xxh3_64(&head[..body]) != u64_at(head, body) {
            return Err(corrupt(0, "a checksum that does not match"));
        }
        if u64_at(head, 8) != Seed::new(options.seed).fingerprint() {
            return Err(DecodeError::OtherSeed);
        }
        let (is_known, is_told) = (u64_at(head, 16) & 1 == 1, u64_at(head, 16) & 2 == 2);
        let mut numbers = if is_known { vec![u64_at(head, 24), u64_at(head, 32)] } else { vec![] };
        let mut pairs = HEAD_FIXED;
        if has_ranges && body >= HEAD_FIXED + 8 {
            let lower = usize::try_from(u64_at(head, HEAD_FIXED)).unwrap_or(0).min(MAX_RANGES);
            let first = HEAD_FIXED + 8;
            pairs = first + lower * 24;
            numbers.extend((first..pairs.min(body)).step_by(8).map(|at| u64_at(head, at)));
        }
        let ranges = Range::decode(&numbers).ok_or(corrupt(HEAD_FIXED, "ranges that overlap"))?;
        if pairs > body || !(body - pairs).is_multiple_of(ASIDE_PAIR) {
            return Err(corrupt(HEAD_FIXED, "half a pair"));
        }
        tables.sort_by_key(|stored| stored.low);
        // Where one is missing it was recycled, and all below it. (The newest of its time says that
        // it has no end. That below a range of ids was open, and what came above it since is told
        // by the log.)
        let is_gap = |pair: &[StoredTable]| {
            pair[0].last.checked_add(1).is_some_and(|next| next < pair[1].low)
                && !ranges.iter().any(|range| range.start == pair[1].low)
        };
        if let Some(gap) = tables.windows(2).rposition(is_gap) {
            tables.drain(..=gap);
        }
        let follow = tables.windows(2).all(|pair| pair[0].low < pair[1].low);
        tables.extend(behind_cold(&tables, &options)?);
        let Some(newest) = tables.len().checked_sub(1).filter(|_| follow) else {
            return Err(DecodeError::NoRing);
        };
        let frontier = Frontier::restore(&ranges, options.max_ahead, options.max_aside);
        let lows: Vec<u64> = tables.iter().map(|stored| stored.low).collect();
        let parts = tables.into_iter().enumerate().map(|(i, stored)| {
            let last = lows.get(i + 1).map_or(u64::MAX, |next| next - 1);
            stored.table.set_open(i == newest || frontier.is_open(last));
            (stored.low, Arc::new(stored.table))
        });
        frontier.follow(is_told);
        let parts = parts.collect();
        let space = Space::from_parts(options, parts, frontier)
            .map_err(|_| corrupt(0, "options that cannot work"))?;
        for pair in head[pairs..body].chunks_exact(ASIDE_PAIR) {
            let hash = u128::from(u64_at(pair, 16)) << 64 | u128::from(u64_at(pair, 8));
            space.put_outlier(&Pair::from_hash(u64_at(pair, 0), hash));
        }
        Ok(space)
    }
}

/// What follows a table that lies elsewhere was empty, or is known to the log. So is all, where
/// every table was spilled since and its file was recycled: there pairs may come before the log
/// says where tables begin, those that were written while the snapshot was.
fn behind_cold(
    tables: &[StoredTable],
    options: &Options,
) -> Result<Option<StoredTable>, DecodeError> {
    let (low, pages) = match tables.last() {
        Some(last) if last.table.cold().is_some() => {
            (last.last.checked_add(1).ok_or(DecodeError::NoRing)?, last.next_pages)
        }
        Some(_) => return Ok(None),
        None => (0, options.first_pages()),
    };
    let rate = options.false_positive_rate;
    let filter =
        Filter::new(Table::first_sizing(rate), pages.max(1)).map_err(|_| DecodeError::NoMemory)?;
    Ok(Some(StoredTable { low, last: u64::MAX, table: Table::new(rate, filter), next_pages: 0 }))
}
