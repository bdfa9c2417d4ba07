//! Statistics of a space, for operators, the log and forecasts.

use crate::deleted_pairs::bytes_of;
use crate::fp_estimator::CanaryCounts;
use crate::space::Space;
use crate::table::Table;
use rolling::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Memory of a table without its contents, in bytes: the struct, its stripes, and its entries in
/// two lists.
const TABLE_BYTES: usize = size_of::<Table>() + 512;
/// Memory of an outlier id (an id far above all tables) without its pairs, in bytes: its map entry,
/// tree node and set.
const OUTLIER_PAIR_BYTES: usize = 128;

/// Statistics of a table, as shown by `TM.TABLES`.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range (inclusive).
    pub last: u64,
    /// Number of pairs in the filters, including deleted pairs.
    pub pairs: u64,
    /// Number of pairs when the table was closed; 0 while it is open. The newest table of every id
    /// range is open (see `rolling`).
    pub early: u64,
    /// Number of pairs that the first filter holds at the configured rate.
    pub capacity: u64,
    /// Number of pairs at which the table closes, which leaves room for late pairs.
    pub roll_at: u64,
    /// Pairs in the first filter divided by its capacity.
    pub fill: f64,
    /// Share of set bits in the first filter, from 0 to 1, or `None` if the bits were not counted.
    pub bits_set: Option<f64>,
    /// Whether the filters are on disk. Their bits and their error rate are not measured.
    pub is_cold: bool,
    /// Number of pairs set since the filters were written to disk.
    pub late: usize,
    /// Number of filters in addition to the first filter.
    pub extensions: usize,
    /// Number of deleted pairs.
    pub revoked: usize,
    /// Version number; every change raises it. A snapshot can skip a table with an unchanged
    /// version.
    pub version: u64,
    /// Memory of filters and deleted pairs, in bytes.
    pub bytes: usize,
    /// False-positive rate configured when the table was created.
    pub configured_rate: f64,
    /// False-positive rate that the formula predicts for the current pairs.
    pub expected_rate: f64,
    /// Results of canaries (pairs that no client can set) since the table last grew by a sixteenth.
    pub measured: CanaryCounts,
}

/// Position and size of one table, as logged when the ring changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lowest id of the range.
    pub low: u64,
    /// Size of the first filter, in pages of 4 KiB.
    pub pages: usize,
    /// Number of pairs at which the table closes. 0 if unknown, as for a layout from an old log.
    pub roll_at: u64,
}

/// Consistent state of ring and frontier; see [`Space::course`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingProgress {
    /// Number of changes to the ring.
    pub changes: u64,
    /// Position and size of each table, oldest first, or `None` if the ring is unchanged.
    pub layout: Option<Vec<Layout>>,
    /// Id ranges whose pairs go to tables, lowest first. Empty until the first range is created.
    pub ranges: Vec<Range>,
}

impl Space {
    /// Returns the horizon, the lowest id that the space still covers.
    pub fn horizon(&self) -> u64 {
        self.ring.load().horizon()
    }

    /// Returns the number of set pairs.
    pub fn pairs(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: u64 = tables
            .entries()
            .iter()
            .map(|entry| entry.table().pairs().saturating_sub(entry.table().revoked.len() as u64))
            .sum();
        in_tables + self.outlier_pairs.load(SeqCst) as u64
    }

    /// Returns the number of outlier pairs.
    pub fn outlier_pairs(&self) -> usize {
        self.outlier_pairs.load(SeqCst)
    }

    /// Returns the lowest and highest id of the outlier pairs and their number, or `None` if the
    /// space has no outlier pairs.
    pub fn outlier_range(&self) -> Option<(u64, u64, u64)> {
        let mut range: Option<(u64, u64, u64)> = None;
        self.for_each_outlier(|pair| {
            let (low, last, pairs) = range.unwrap_or((pair.id, pair.id, 0));
            range = Some((low.min(pair.id), last.max(pair.id), pairs + 1));
        });
        range
    }

    /// Whether any outlier pair has an id in `low..=last`.
    pub fn has_outliers(&self, low: u64, last: u64) -> bool {
        let mut has_any = false;
        self.outliers.for_each(|id, _| has_any |= (low..=last).contains(&id));
        has_any
    }

    /// Returns the largest number of deleted pairs in any table; the limit is `max_unset`.
    pub fn most_revoked(&self) -> usize {
        self.ring
            .load()
            .entries()
            .iter()
            .map(|entry| entry.table().revoked.len())
            .max()
            .unwrap_or(0)
    }

    /// Returns the memory of tables, spare filters, outliers and forgotten ids, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: usize =
            tables.entries().iter().map(|entry| entry.table().size_bytes() + TABLE_BYTES).sum();
        (in_tables
            + self.filter_pool.size_bytes()
            + self.outlier_bytes()
            + self.forgotten.memory_bytes()) as u64
    }

    pub(crate) fn outlier_bytes(&self) -> usize {
        self.outliers.len() * OUTLIER_PAIR_BYTES
            + bytes_of(self.outliers.len(), self.outlier_pairs())
    }

    /// Returns the number of further pairs of new ids that fit before the oldest table is recycled
    /// or spilled. Divide it by the arrival rate to get the remaining time.
    pub fn pairs_until_recycled(&self) -> u64 {
        let tables = self.ring.load();
        let newest = tables.newest().table();
        let early_share = newest.roll_at() as f64 / newest.capacity().max(1) as f64;
        let used = if self.spills() { self.pages_in_memory() } else { self.counted_pages() };
        let mut room = self.max_pages().saturating_sub(used);
        let mut pairs = newest.roll_at().saturating_sub(newest.pairs());
        let sizing = self.shape().sizing;
        let come = |pages| (sizing.capacity(pages) as f64 * early_share) as u64;
        let full = self.limits.pages_per_table.load(Relaxed);
        let mut next = self.next_pages(newest);
        while next < full && next <= room {
            (room, pairs) = (room - next, pairs.saturating_add(come(next)));
            next = next.saturating_mul(2).min(full);
        }
        // Use a closed formula instead of a loop, because the memory may have room for very many
        // full tables.
        if next == full {
            pairs = pairs.saturating_add(come(full).saturating_mul((room / full.max(1)) as u64));
        }
        pairs
    }

    /// Returns the statistics of all tables, oldest first. First looks up `canaries` more canaries
    /// in each table ([`Space::probe`]), and counts the set bits of all first filters in memory.
    /// Counting takes 0.1 s per GiB.
    pub fn tables_probed(&self, canaries: u64) -> Vec<TableStats> {
        self.table_stats(canaries, true)
    }

    fn table_stats(&self, canaries: u64, counts_bits: bool) -> Vec<TableStats> {
        let tables = self.ring.load();
        let stats = |entry: &rolling::Entry<Arc<Table>>| {
            let (slot, table) = (entry.slot(), entry.table());
            let measured = table.probe(self.seed, slot.low(), canaries);
            let filter = table.first_filter();
            TableStats {
                low: slot.low(),
                last: slot.last(),
                pairs: table.pairs(),
                early: table.early(),
                capacity: table.capacity(),
                roll_at: table.roll_at(),
                fill: table.pairs_in_first() as f64 / table.capacity().max(1) as f64,
                bits_set: (counts_bits && table.cold().is_none())
                    .then(|| filter.ones() as f64 / (filter.words().len() * 64) as f64),
                is_cold: table.cold().is_some(),
                late: table.cold().map_or(0, |cold| cold.late()),
                extensions: table.extensions(),
                revoked: table.revoked.len(),
                version: table.version(),
                bytes: table.size_bytes(),
                configured_rate: table.rate(),
                expected_rate: table.expected_rate(),
                measured,
            }
        };
        tables.entries().iter().map(stats).collect()
    }

    /// Returns the statistics of all tables, without looking up canaries or counting bits. This
    /// takes a few microseconds.
    pub fn tables(&self) -> Vec<TableStats> {
        self.table_stats(0, false)
    }
}
