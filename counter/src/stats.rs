//! What a space says about itself: a plain snapshot per table, for INFO, TM.TABLES and the
//! benchmarks.

use crate::advise::aux_bits;
use crate::key::PROBES;
use crate::layout::Layout;
use crate::space::{OutlierRow, Space};
use crate::table::Table;
use rolling::Tables;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Buckets looked at for the probe lengths of one table.
const SAMPLED_BUCKETS: u64 = 512;
/// How often figures are taken again because the tables have changed meanwhile.
const TRIES: usize = 10;

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// The lowest id of its range.
    pub low: u64,
    /// The highest (inclusive).
    pub last: u64,
    /// Rows, those in the extend dictionary included.
    pub rows: u64,
    /// Slots, without the extend dictionary's.
    pub capacity: u64,
    /// Rows, without the extend dictionary's, per slot.
    pub fill: f64,
    /// Buckets that a hit touches: mean, from a sample of rows...
    pub probes_mean: f64,
    /// ... for 99 of 100 rows...
    pub probes_p99: u64,
    /// ... and at most (one more than there are probes stands for the extend dictionary).
    pub probes_max: u64,
    /// How many misses go on from a bucket: one touches 1 / (1 - this) buckets.
    pub past_share: f64,
    /// Rows in the extend dictionary.
    pub extend_rows: u64,
    /// Its bytes.
    pub extend_bytes: u64,
    /// Entries of the aux dictionary.
    pub aux_entries: u64,
    /// Its bytes.
    pub aux_bytes: u64,
    /// All bytes.
    pub bytes: u64,
    /// All bytes, per row.
    pub bytes_per_row: f64,
    /// Bits of one slot: fields, remainder of the id, state.
    pub slot_bits: u32,
    /// Of these, bits of the remainder.
    pub remainder_bits: u32,
    /// Slots per bucket.
    pub bucket_slots: usize,
    /// The schema of its rows.
    pub schema: String,
    /// Rows of a replaced table that have not moved here yet, and all bytes of that table (counted
    /// for the first of several parts only).
    pub draining_rows: u64,
    /// See there.
    pub draining_bytes: u64,
}

/// What [`Space::ranges`] says of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeStats {
    /// The lowest id of its range.
    pub low: u64,
    /// The highest (inclusive).
    pub last: u64,
    /// Rows in memory.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// New ids come into it: it is the newest, or the newest of ids far below those. Such a table
    /// is not spilled.
    pub open: bool,
}

/// The rows that wait far ahead of all others, or in a space that has hardly begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierRange {
    /// The lowest id.
    pub low: u64,
    /// The highest (inclusive).
    pub last: u64,
    /// Rows.
    pub rows: u64,
}

impl Space {
    /// Statistics of all tables, oldest first. Looks at some hundred buckets of each.
    pub fn tables(&self) -> Vec<TableStats> {
        let mut tables = self.ring.load_full();
        let mut stats = stats_of(&tables);
        // Rows leave a table from the moment at which a rewrite of it begins, and these are the
        // figures of one that no row leaves. Where one begins all the time they are those of many
        // moments.
        for _ in 0..TRIES {
            let now = self.ring.load_full();
            if Arc::ptr_eq(&now, &tables) {
                break;
            }
            tables = now;
            stats = stats_of(&tables);
        }
        stats
    }

    /// Bytes that a row with these values takes in a full table laid out as the newest one: its
    /// slot, and an aux entry for each value that its field is too narrow for.
    pub fn row_bytes(&self, row: &[i64]) -> u64 {
        let schema = self.schema();
        let remainder_bits = self.ring.load().newest().table().layout().remainder_bits;
        let (bytes, rows) = Layout::bytes_and_rows(schema.row_bits() + remainder_bits);
        let aux_bits: f64 = schema
            .living()
            .filter_map(|(at, field)| Some(aux_bits(*row.get(at)?, field.width)))
            .sum();
        (bytes / rows + aux_bits / 8.0).ceil() as u64
    }

    /// The id ranges of all tables, oldest first, with what is in memory of each: cheap enough to
    /// be called often.
    pub fn ranges(&self) -> Vec<RangeStats> {
        let tables = self.ring.load();
        let mut before = std::ptr::null();
        let range = |entry: &rolling::Entry<Table>| {
            // Whichever part its rows are in: it counts for the first one.
            let drained =
                entry.drains().filter(|&old| !std::ptr::eq(old, before)).map(rolling::Slot::table);
            before = entry.drains().map_or(std::ptr::null(), std::ptr::from_ref);
            let both = || [Some(entry.table()), drained].into_iter().flatten();
            RangeStats {
                low: entry.slot().low(),
                last: entry.slot().last(),
                rows: both().map(Table::rows).sum(),
                bytes: both().map(Table::bytes).sum(),
                open: self.is_open(entry),
            }
        };
        tables.entries().iter().map(range).collect()
    }

    /// Rows after which a table rolls.
    pub fn rows_per_table(&self) -> u64 {
        self.rows_per_table.load(Relaxed)
    }

    /// Rows that wait far ahead of all others.
    pub fn outlier_rows(&self) -> u64 {
        self.outliers.len() as u64
    }

    /// Bytes of memory that they take at least: they may have values.
    pub fn outlier_bytes(&self) -> u64 {
        self.outlier_rows() * OutlierRow::bytes(0)
    }

    /// The same, with their lowest and highest id; `None` if there are none.
    pub fn outlier_range(&self) -> Option<OutlierRange> {
        let mut range: Option<OutlierRange> = None;
        self.outliers.for_each(|id, _| {
            let range = range.get_or_insert(OutlierRange { low: id, last: id, rows: 0 });
            range.low = range.low.min(id);
            range.last = range.last.max(id);
            range.rows += 1;
        });
        range
    }

    /// The highest id that counts as normal, once there is one.
    pub fn frontier(&self) -> Option<u64> {
        self.frontier.high()
    }
}

fn stats_of(tables: &Tables<Table>) -> Vec<TableStats> {
    let mut before = std::ptr::null();
    let stats = tables.entries().iter().map(|entry| {
        let old =
            entry.drains().filter(|&old| !std::ptr::eq(old, before)).map(rolling::Slot::table);
        before = entry.drains().map_or(std::ptr::null(), std::ptr::from_ref);
        TableStats {
            low: entry.slot().low(),
            last: entry.slot().last(),
            draining_rows: old.map_or(0, Table::rows),
            draining_bytes: old.map_or(0, Table::bytes),
            ..entry.table().stats()
        }
    });
    stats.collect()
}

impl Table {
    fn stats(&self) -> TableStats {
        let (rows, extend_rows, slots) = (self.rows(), self.extend_rows(), self.slots());
        let mut histogram = [0u64; PROBES as usize + 1];
        let mut room = Vec::new();
        let main = self.main_buckets();
        let sampled = main.min(SAMPLED_BUCKETS);
        let mut past = 0.0;
        for i in 0..sampled {
            let number = i * main / sampled;
            past += self.past_share(number);
            self.visit(number, 0, 0, &mut room, |_, probe, _| histogram[probe as usize] += 1);
        }
        // The sampled share of the extend dictionary.
        histogram[PROBES as usize] = (extend_rows * sampled).div_ceil(main);
        let total: u64 = histogram.iter().sum();
        let sum: u64 = (1..).zip(&histogram).map(|(probes, n)| probes * n).sum();
        let mut below = 0;
        let p99 = (1..).zip(&histogram).find(|(_, n)| {
            below += **n;
            below * 100 >= total * 99
        });
        let (aux_entries, aux_bytes) = self.aux_size();
        let bytes = self.bytes();
        TableStats {
            low: 0,
            last: 0,
            rows,
            capacity: slots,
            fill: rows.saturating_sub(extend_rows) as f64 / slots as f64,
            probes_mean: sum as f64 / total.max(1) as f64,
            probes_p99: if total == 0 { 0 } else { p99.map_or(0, |p| p.0) },
            probes_max: (1..)
                .zip(&histogram)
                .filter(|(_, n)| **n > 0)
                .map(|p| p.0)
                .max()
                .unwrap_or(0),
            past_share: past / sampled as f64,
            extend_rows,
            extend_bytes: self.extend_bytes(),
            aux_entries,
            aux_bytes,
            bytes,
            bytes_per_row: bytes as f64 / rows.max(1) as f64,
            slot_bits: self.layout().slot_bits(),
            remainder_bits: self.layout().remainder_bits,
            bucket_slots: self.layout().slots,
            schema: self.schema().to_string(),
            draining_rows: 0,
            draining_bytes: 0,
        }
    }
}
