//! What an operator, a log and a forecast want to know of a space.

use crate::deleted_pairs::bytes_of;
use crate::fp_estimator::Measured;
use crate::space::Space;
use crate::table::Table;
use rolling::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A table without what it holds, with its place in the ring: stripes, and entries of two lists.
const TABLE_BYTES: usize = size_of::<Table>() + 512;
/// An id aside without its pairs: its place in the map, a branch of it, and the set.
const ASIDE_BYTES: usize = 128;

/// One table, as `TM.TABLES` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range (inclusive).
    pub last: u64,
    /// Pairs set, those unset again included.
    pub pairs: u64,
    /// Pairs that had been set when the table was closed; 0 while it is open: the newest, or the
    /// newest of ids far below those (see `rolling`).
    pub early: u64,
    /// Pairs that its first filter holds at the configured rate.
    pub capacity: u64,
    /// The table is, or was, closed at this many pairs, so that late ones fit.
    pub roll_at: u64,
    /// Pairs in the first filter by its capacity, 0 to 1.
    pub fill: f64,
    /// Share of the first filter's bits that are set, 0 to 1. `None`: they were not counted.
    pub bits_set: Option<f64>,
    /// Its filters lie elsewhere: neither the bits nor the error rate are looked at there.
    pub is_cold: bool,
    /// Pairs that were set since they do.
    pub late: usize,
    /// Filters that were chained because the table was overrun.
    pub extensions: usize,
    /// Pairs unset, held exactly.
    pub revoked: usize,
    /// Rises with every change: a table with the version it had at the last snapshot need not be
    /// written again.
    pub version: u64,
    /// Memory of filters and revoked pairs.
    pub bytes: usize,
    /// The error rate that was configured when the table was made.
    pub configured_rate: f64,
    /// The error rate that its pairs give by calculation.
    pub expected_rate: f64,
    /// What canaries (pairs that no client can set) have said since the table last grew by a
    /// sixteenth.
    pub measured: Measured,
}

/// One table's place in the ring: what a log records when the ring changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lowest id of the range.
    pub low: u64,
    /// Size of the first filter, in pages of 4 KiB.
    pub pages: usize,
    /// The table is, or was, closed at this many pairs. 0: not known, as in a log of before this
    /// was logged.
    pub roll_at: u64,
}

/// Where pairs go: see [`Space::course`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingProgress {
    /// How often the ring has changed.
    pub changes: u64,
    /// The tables' places, oldest first; `None`: as they were.
    pub layout: Option<Vec<Layout>>,
    /// Of which ids tables take pairs, lowest first: none before any does.
    pub ranges: Vec<Range>,
}

impl Space {
    /// The lowest id that is answered for.
    pub fn horizon(&self) -> u64 {
        self.ring.load().horizon()
    }

    /// Pairs that are set.
    pub fn pairs(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: u64 = tables
            .entries()
            .iter()
            .map(|entry| entry.table().pairs().saturating_sub(entry.table().revoked.len() as u64))
            .sum();
        in_tables + self.outlier_pairs.load(SeqCst) as u64
    }

    /// Pairs held exactly because their ids lie far ahead.
    pub fn outlier_pairs(&self) -> usize {
        self.outlier_pairs.load(SeqCst)
    }

    /// The lowest and the highest id of these pairs, and how many there are; `None` if there are
    /// none.
    pub fn outlier_range(&self) -> Option<(u64, u64, u64)> {
        let mut range: Option<(u64, u64, u64)> = None;
        self.for_each_outlier(|pair| {
            let (low, last, pairs) = range.unwrap_or((pair.id, pair.id, 0));
            range = Some((low.min(pair.id), last.max(pair.id), pairs + 1));
        });
        range
    }

    /// Whether any of these pairs has an id of `low..=last`.
    pub fn has_outliers(&self, low: u64, last: u64) -> bool {
        let mut has_any = false;
        self.outliers.for_each(|id, _| has_any |= (low..=last).contains(&id));
        has_any
    }

    /// Unset pairs of the table that has most of them: none may have more than `max_revoked`.
    pub fn most_revoked(&self) -> usize {
        self.ring
            .load()
            .entries()
            .iter()
            .map(|entry| entry.table().revoked.len())
            .max()
            .unwrap_or(0)
    }

    /// Memory of all tables, spare ones, pairs aside and forgotten ids, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: usize =
            tables.entries().iter().map(|entry| entry.table().size_bytes() + TABLE_BYTES).sum();
        (in_tables
            + self.upkeep.size_bytes()
            + self.outlier_bytes()
            + self.forgotten.memory_bytes()) as u64
    }

    /// Memory of pairs aside.
    pub(crate) fn outlier_bytes(&self) -> usize {
        self.outliers.len() * ASIDE_BYTES + bytes_of(self.outliers.len(), self.outlier_pairs())
    }

    /// How many more pairs of new ids may come before the oldest table is recycled, or spills; with
    /// the rate at which they come, this is when.
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
        // The budget may have room for any number of full ones.
        if next == full {
            pairs = pairs.saturating_add(come(full).saturating_mul((room / full.max(1)) as u64));
        }
        pairs
    }

    /// All tables, oldest first. Asks each for `canaries` more ([`Space::probe`]). Counts the bits
    /// of all first filters in memory, too: 0.1 s per GiB.
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

    /// [`Space::tables_probed`] without canaries, and without a walk through the filters for their
    /// bits: takes some microseconds.
    pub fn tables(&self) -> Vec<TableStats> {
        self.table_stats(0, false)
    }
}
