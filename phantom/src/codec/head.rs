//! Encodes a space as a head plus tables, and restores it.

use super::{CHECKSUM_BYTES, DecodeError, StoredTable, encode_table};
use crate::bytes::u64_at;
use crate::filter::Filter;
use crate::hash::{Pair, Seed};
use crate::options::Options;
use crate::space::Space;
use crate::stats::Layout;
use crate::table::Table;
use rolling::{Frontier, MAX_RANGES, Range};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_MAGIC: &[u8; 8] = b"TMPHEAD\x01";
const HEAD_MAGIC_RANGES: &[u8; 8] = b"TMPHEAD\x02";
const HEAD_FIXED: usize = 40;
const OUTLIER_PAIR_BYTES: usize = 24;

impl Space {
    /// Encodes the frontier and the outliers (pairs of ids far above all tables), which are not
    /// part of any table. Call this before encoding the tables: a pair that moves into a table
    /// during the snapshot is then in both.
    pub fn encode_head(&self) -> Vec<u8> {
        let (frontier, seed) = (&self.frontier, self.seed);
        let ranges = Range::encode(&frontier.ranges());
        let mut fields = vec![seed.fingerprint(), u64::from(!ranges.is_empty())];
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

    /// Encodes the table that begins at `low`, in pieces of at most 64 KiB plus a checksum. Other
    /// threads may write concurrently. Returns `false` if there is no such table, or if it is on
    /// disk.
    pub fn encode_table<E>(
        &self,
        low: u64,
        sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some((range, mut table)) = self.table_at(low) else { return Ok(false) };
        if let Some(cold) = table.cold() {
            // A frozen table is not on disk yet.
            let Some(memory) = cold.memory() else { return Ok(false) };
            table = memory;
        }
        encode_table(self.seed, range, &table, sink)?;
        Ok(true)
    }

    /// Restores a space from [`Space::encode_head`], [`Space::encode_table`] and [`Space::layout`],
    /// called in this order. The caller then replays the log. The log determines where tables
    /// begin, until the caller calls [`Space::lead`].
    ///
    /// `tables` may be newer than `head` and `layout`, and may be incomplete. Uncovered ids get an
    /// empty table, whose pairs come from the log. Only `layout` and the log determine which tables
    /// were recycled. An empty `layout` means that the log begins at the creation of the space.
    pub fn restore(
        options: Options,
        head: &[u8],
        layout: &[Layout],
        tables: Vec<StoredTable>,
    ) -> Result<Space, DecodeError> {
        let (ranges, outliers) = decode_head(head, Seed::new(options.seed))?;
        let tables = without_gaps(tables, &options)?;
        let newest = tables.len() - 1;
        let lows: Vec<u64> = tables.iter().map(|stored| stored.low).collect();
        let later = tables.iter().filter(|stored| stored.is_later);
        let later: Vec<(u64, u64)> = later.map(StoredTable::range).collect();
        let frontier = Frontier::restore(&ranges, options.max_ahead, options.max_outliers);
        frontier.follow(true);
        let parts = tables.into_iter().enumerate().map(|(i, stored)| {
            let last = lows.get(i + 1).map_or(u64::MAX, |next| next - 1);
            stored.table.set_open(i == newest || frontier.is_open(last));
            (stored.low, Arc::new(stored.table))
        });
        let parts = parts.collect();
        let space = Space::from_parts(options, parts, frontier)
            .map_err(|_| DecodeError::Corrupt { offset: 0, what: "invalid options" })?;
        space.put_layout(layout).map_err(|_| DecodeError::NoMemory)?;
        let has_moved =
            |pair: &&Pair| later.iter().any(|&(low, last)| (low..=last).contains(&pair.id));
        outliers.iter().filter(|pair| !has_moved(pair)).for_each(|pair| space.put_outlier(pair));
        Ok(space)
    }
}

fn decode_head(head: &[u8], seed: Seed) -> Result<(Vec<Range>, Vec<Pair>), DecodeError> {
    let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
    let Some(body) = head.len().checked_sub(CHECKSUM_BYTES).filter(|&body| body >= HEAD_FIXED)
    else {
        return Err(corrupt(0, "truncated head"));
    };
    let has_ranges = head[..8] == HEAD_MAGIC_RANGES[..];
    if head[..8] != HEAD_MAGIC[..] && !has_ranges {
        return Err(corrupt(0, "not a head of version 1 or 2"));
    }
    if xxh3_64(&head[..body]) != u64_at(head, body) {
        return Err(corrupt(0, "checksum mismatch"));
    }
    if u64_at(head, 8) != seed.fingerprint() {
        return Err(DecodeError::OtherSeed);
    }
    let is_known = u64_at(head, 16) & 1 == 1;
    let mut numbers = if is_known { vec![u64_at(head, 24), u64_at(head, 32)] } else { vec![] };
    let mut pairs = HEAD_FIXED;
    if has_ranges && body >= HEAD_FIXED + 8 {
        let lower = usize::try_from(u64_at(head, HEAD_FIXED)).unwrap_or(0).min(MAX_RANGES);
        let first = HEAD_FIXED + 8;
        pairs = first + lower * 24;
        numbers.extend((first..pairs.min(body)).step_by(8).map(|at| u64_at(head, at)));
    }
    let ranges = Range::decode(&numbers).ok_or(corrupt(HEAD_FIXED, "overlapping ranges"))?;
    if pairs > body || !(body - pairs).is_multiple_of(OUTLIER_PAIR_BYTES) {
        return Err(corrupt(HEAD_FIXED, "half a pair"));
    }
    let outlier = |pair: &[u8]| {
        let hash = u128::from(u64_at(pair, 16)) << 64 | u128::from(u64_at(pair, 8));
        Pair::from_hash(u64_at(pair, 0), hash)
    };
    let outliers = head[pairs..body].chunks_exact(OUTLIER_PAIR_BYTES).map(outlier).collect();
    Ok((ranges, outliers))
}

/// Returns the tables in ascending order, with empty tables for all ids that they do not cover.
fn without_gaps(
    mut tables: Vec<StoredTable>,
    options: &Options,
) -> Result<Vec<StoredTable>, DecodeError> {
    tables.sort_by_key(|stored| stored.low);
    if tables.windows(2).any(|pair| pair[0].low == pair[1].low) {
        return Err(DecodeError::NoRing);
    }
    let rate = options.false_positive_rate;
    let empty = |low: u64, pages: usize| {
        let filter = Filter::new(Table::first_sizing(rate), pages.max(1));
        let table = Table::new(rate, filter.map_err(|_| DecodeError::NoMemory)?);
        Ok(StoredTable { low, last: u64::MAX, table, next_pages: 0, is_later: false })
    };
    let mut whole = Vec::with_capacity(tables.len() + 1);
    // The newest table at snapshot time has no upper end. Tables that began later are in `tables`
    // or in the log.
    let (mut end, mut pages) = (Some(options.first_id), options.first_pages());
    for stored in tables {
        if let Some(gap) = end.filter(|&end| end < stored.low) {
            whole.push(empty(gap, pages)?);
        }
        end = stored.last.checked_add(1);
        pages = stored.next_pages;
        whole.push(stored);
    }
    if let Some(end) = end {
        whole.push(empty(end, pages)?);
    }
    // The newest table must be in memory, because it receives new pairs.
    let is_open = whole.last().is_some_and(|newest| newest.table.cold().is_none());
    is_open.then_some(whole).ok_or(DecodeError::NoRing)
}
