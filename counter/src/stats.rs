//! Statistics of a space, per table, for INFO, TM.TABLES and the benchmarks.

use crate::advise::aux_bits;
use crate::key::PROBES;
use crate::layout::Layout;
use crate::space::{OutlierRow, Space};
use crate::table::Table;
use rolling::Tables;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Number of buckets per table that are sampled for probe lengths.
const SAMPLED_BUCKETS: u64 = 512;
/// Number of attempts to read all figures from one unchanged list of tables.
const MAX_ATTEMPTS: usize = 10;

/// Statistics of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// Lowest id of the table's range.
    pub low: u64,
    /// Highest id of the range, inclusive.
    pub last: u64,
    /// Rows, including those of the extend dictionary.
    pub rows: u64,
    /// Slots of the main segment.
    pub capacity: u64,
    /// Load factor: rows per slot of the main segment.
    pub fill: f64,
    /// Mean number of buckets that a lookup of an existing row reads, from a sample.
    pub probes_mean: f64,
    /// 99th percentile of the number of buckets that a lookup of an existing row reads.
    pub probes_p99: u64,
    /// Maximum number of buckets that a lookup of an existing row reads. A row in the extend
    /// dictionary counts as one more than the maximum number of probes.
    pub probes_max: u64,
    /// Share of misses that continue past a bucket. On average, a miss reads 1 / (1 -
    /// `overflow_probe_share`) buckets.
    pub overflow_probe_share: f64,
    /// Rows of the extend dictionary.
    pub extend_rows: u64,
    /// Bytes of the extend dictionary.
    pub extend_bytes: u64,
    /// Entries of the aux dictionary.
    pub aux_entries: u64,
    /// Bytes of the aux dictionary.
    pub aux_bytes: u64,
    /// Bytes of the whole table.
    pub bytes: u64,
    /// Bytes of the whole table per row.
    pub bytes_per_row: f64,
    /// Bits of a slot: fields, remainder of the id, state.
    pub slot_bits: u32,
    /// Bits of the remainder of the id.
    pub remainder_bits: u32,
    /// Slots per bucket.
    pub bucket_slots: usize,
    /// Schema of the table's layout.
    pub schema: String,
    /// Number of rows in the table that is being drained into this table. If several tables replace
    /// that table, only the first counts its rows.
    pub draining_rows: u64,
    /// Bytes of the table that is being drained into this table. If several tables replace that
    /// table, only the first counts its bytes.
    pub draining_bytes: u64,
}

/// One id range of [`Space::ranges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeStats {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range, inclusive.
    pub last: u64,
    /// Rows in memory.
    pub rows: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Whether new ids arrive in this range, because it belongs to the newest table or to the last
    /// table of a separate range of ids. The table of such a range is not spilled.
    pub open: bool,
}

/// Id range of the outliers (ids far above all tables).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierRange {
    /// Lowest id.
    pub low: u64,
    /// Highest id, inclusive.
    pub last: u64,
    /// Number of rows.
    pub rows: u64,
}

impl Space {
    /// Returns statistics of all tables, oldest first. Samples a few hundred buckets per table.
    pub fn tables(&self) -> Vec<TableStats> {
        let mut tables = self.ring.load_full();
        let mut stats = stats_of(&tables);
        // A rewrite that begins during the sampling moves rows out of a table, so the figures of
        // that table are stale. After the last attempt, the figures may not be from a single
        // moment.
        for _ in 0..MAX_ATTEMPTS {
            let now = self.ring.load_full();
            if Arc::ptr_eq(&now, &tables) {
                break;
            }
            tables = now;
            stats = stats_of(&tables);
        }
        stats
    }

    /// Bytes of a row with these values in a full table with the newest table's layout: its slot,
    /// and an aux entry for each value that exceeds its field.
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

    /// Returns the id ranges of all tables, oldest first. This function is cheap enough to call
    /// often.
    pub fn ranges(&self) -> Vec<RangeStats> {
        let tables = self.ring.load();
        let mut before = std::ptr::null();
        let range = |entry: &rolling::Entry<Table>| {
            // The first part of a rewrite counts all rows of the drained table.
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

    /// Rows at which a table is closed.
    pub fn rows_per_table(&self) -> u64 {
        self.rows_per_table.load(Relaxed)
    }

    /// Number of outlier rows.
    pub fn outlier_rows(&self) -> u64 {
        self.outliers.len() as u64
    }

    /// Lower bound of the memory of the outlier rows, in bytes; excludes their values.
    pub fn outlier_bytes(&self) -> u64 {
        self.outlier_rows() * OutlierRow::bytes(0)
    }

    /// Number, lowest and highest id of the outliers, or `None` if the space has no outliers.
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

    /// Highest id of normal traffic, or `None` before the first range is created.
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
            past += self.overflow_probe_share(number);
            self.visit(number, 0, 0, &mut room, |_, probe, _| histogram[probe as usize] += 1);
        }
        // Scale the rows of the extend dictionary to the sampled share of the buckets.
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
            overflow_probe_share: past / sampled as f64,
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
