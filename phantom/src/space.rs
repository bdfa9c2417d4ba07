//! [`Space`]: the ring of tables, and the outlier pairs (pairs of ids far above all tables).
//! `lookup` implements reads, `write` writes, and `rollover` closes and creates tables.
//!
//! **Lock order**: outliers, then a stripe of the ring, then a table's growth lock or a shard of
//! its deleted pairs. Every operation on a pair holds the pair's stripe, or the mutex of the
//! outliers if the id is far ahead. Test and set are therefore atomic (P3).

use crate::Error;
use crate::deleted_pairs::Hashes;
use crate::filter::{Filter, PAGE_BYTES};
use crate::forgotten::Forgotten;
use crate::hash::{Member, Pair, Seed};
use crate::options::Options;
use crate::sizing::Sizing;
use crate::table::Table;
use crate::table_pool::TablePool;
use parking_lot::{Mutex, RwLock};
use rolling::{Frontier, Outliers, Ring};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Outlier pairs of one id. The lock is held for at most a few memory writes (P5).
pub(crate) type OutlierPairs = RwLock<Hashes>;

/// Limits that [`Space::set_options`] may change at run time.
pub(crate) struct Limits {
    pub(crate) pages_per_table: AtomicUsize,
    pub(crate) max_tables: AtomicUsize,
    pub(crate) keep_tables: AtomicUsize,
    pub(crate) max_unset: AtomicUsize,
    pub(crate) max_outliers: AtomicUsize,
    pub(crate) max_forgotten: AtomicUsize,
    /// Memory limit of filters in bytes: here the configured maximum, in the next field the current
    /// limit.
    most_filter_bytes: AtomicU64,
    pub(crate) filter_bytes: AtomicU64,
    spill: AtomicBool,
}

impl Limits {
    fn new(options: &Options, sizing: Sizing) -> Limits {
        Limits {
            pages_per_table: AtomicUsize::new(sizing.pages(options.pairs_per_table)),
            max_tables: AtomicUsize::new(options.max_tables),
            keep_tables: AtomicUsize::new(options.keep_tables),
            max_unset: AtomicUsize::new(options.max_unset),
            max_outliers: AtomicUsize::new(options.max_outliers),
            max_forgotten: AtomicUsize::new(options.max_forgotten),
            most_filter_bytes: AtomicU64::new(options.filter_bytes_limit()),
            filter_bytes: AtomicU64::new(options.filter_bytes_limit()),
            spill: AtomicBool::new(options.spill),
        }
    }
}

/// Parameters of new tables.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) rate: f64,
    pub(crate) sizing: Sizing,
}

impl Shape {
    fn of(options: &Options) -> Shape {
        let rate = options.false_positive_rate;
        Shape { rate, sizing: Table::first_sizing(rate) }
    }
}

/// Set of (id, member) pairs. All methods are safe to call from any thread. The module
/// documentation describes the locks.
pub struct Space {
    pub(crate) options: Options,
    pub(crate) seed: Seed,
    shape: RwLock<Shape>,
    /// Lower bound of the bits per line in the first filters of all tables. Lookups test this many
    /// draws before they know the pair's table. It never rises, because a reader may hold an older
    /// list of tables.
    pub(crate) fewest_bits: AtomicUsize,
    pub(crate) limits: Limits,
    pub(crate) ring: Ring<Arc<Table>>,
    pub(crate) frontier: Frontier,
    pub(crate) outliers: Outliers<OutlierPairs>,
    pub(crate) outlier_pairs: AtomicUsize,
    pub(crate) forgotten: Forgotten,
    pub(crate) filter_pool: TablePool,
    /// Lock held during a rollover, and during a consistent read of ring and frontier. Writers
    /// never wait for this lock.
    pub(crate) rolling: Mutex<()>,
    /// Held while a table is replaced: by a spill, a merge of late pairs or a rebuild.
    pub(crate) merging: Mutex<()>,
    /// Number of late pairs in all cold tables.
    pub(crate) late: Arc<AtomicUsize>,
    /// Index of the next table to probe.
    pub(crate) probed: AtomicUsize,
    pub(crate) changes: AtomicU64,
    /// Whether there are changes for [`Space::has_unlogged_changes`] to report.
    pub(crate) news: AtomicBool,
}

impl Space {
    /// Returns an empty space whose horizon is [`Options::first_id`].
    pub fn new(options: Options) -> Result<Space, Error> {
        options.check()?;
        let sizing = Table::first_sizing(options.false_positive_rate);
        let pages = options.first_pages();
        let filter = Filter::new(sizing, pages).map_err(Error::Memory)?;
        let first = Arc::new(Table::new(options.false_positive_rate, filter));
        let frontier = Frontier::new(options.max_ahead, options.max_outliers);
        let low = options.first_id;
        Space::from_parts(options, vec![(low, first)], frontier)
    }

    pub(crate) fn from_parts(
        options: Options,
        tables: Vec<(u64, Arc<Table>)>,
        frontier: Frontier,
    ) -> Result<Space, Error> {
        options.check()?;
        let shape = Shape::of(&options);
        let bits = tables.iter().map(|(_, table)| table.first_filter().sizing().bits);
        let fewest_bits = AtomicUsize::new(bits.fold(shape.sizing.bits, usize::min));
        let late: Arc<AtomicUsize> = Arc::default();
        tables.iter().filter_map(|(_, table)| table.cold()).for_each(|cold| cold.count_in(&late));
        let seed = Seed::new(options.seed);
        let space = Space {
            seed,
            forgotten: Forgotten::new(seed),
            shape: RwLock::new(shape),
            fewest_bits,
            limits: Limits::new(&options, shape.sizing),
            ring: Ring::from_parts(tables),
            frontier,
            outliers: Outliers::default(),
            outlier_pairs: AtomicUsize::new(0),
            filter_pool: TablePool::default(),
            rolling: Mutex::new(()),
            merging: Mutex::new(()),
            late,
            probed: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            news: AtomicBool::new(false),
            options,
        };
        space.estimate();
        Ok(space)
    }

    /// Applies new options, except those that are part of the stored data ([`Options`]).
    /// [`Space::maintain`] then recycles the tables that no longer fit.
    pub fn set_options(&self, options: &Options) -> Result<(), Error> {
        options.check()?;
        if options.false_positive_rate != self.false_positive_rate() {
            let shape = Shape::of(options);
            // Set before the first table of the new shape exists: lookups rely on the lower bound.
            self.fewest_bits.fetch_min(shape.sizing.bits, Relaxed);
            *self.shape.write() = shape;
        }
        let Limits {
            pages_per_table,
            max_tables,
            keep_tables,
            max_unset,
            max_outliers,
            max_forgotten,
            most_filter_bytes,
            filter_bytes,
            spill,
        } = Limits::new(&self.data_of(options), self.shape().sizing);
        self.limits.pages_per_table.store(pages_per_table.into_inner(), Relaxed);
        self.limits.max_tables.store(max_tables.into_inner(), Relaxed);
        self.limits.keep_tables.store(keep_tables.into_inner(), Relaxed);
        self.limits.max_unset.store(max_unset.into_inner(), Relaxed);
        self.limits.max_outliers.store(max_outliers.into_inner(), Relaxed);
        self.limits.max_forgotten.store(max_forgotten.into_inner(), Relaxed);
        self.limits.most_filter_bytes.store(most_filter_bytes.into_inner(), Relaxed);
        self.limits.filter_bytes.store(filter_bytes.into_inner(), Relaxed);
        self.limits.spill.store(spill.into_inner(), Relaxed);
        self.frontier.set_limits(options.max_ahead, options.max_outliers);
        Ok(())
    }

    fn data_of(&self, options: &Options) -> Options {
        Options { seed: self.options.seed, first_id: self.options.first_id, ..options.clone() }
    }

    pub(crate) fn shape(&self) -> Shape {
        *self.shape.read()
    }

    /// Returns the false-positive rate of new tables.
    pub fn false_positive_rate(&self) -> f64 {
        self.shape.read().rate
    }

    /// Returns the current memory limit of filters, in bytes.
    pub fn filter_bytes_limit(&self) -> u64 {
        self.limits.filter_bytes.load(Relaxed)
    }

    /// Returns the memory limit of filters that the options configure, in bytes.
    pub fn most_filter_bytes(&self) -> u64 {
        self.limits.most_filter_bytes.load(Relaxed)
    }

    /// Sets the memory limit of filters, in bytes, until the next [`Space::set_options`]. Existing
    /// filters remain allocated. A space that spills is [short of memory](Space::is_short) while it
    /// exceeds the limit.
    pub fn set_filter_bytes(&self, bytes: u64) {
        self.limits.filter_bytes.store(bytes, Relaxed);
    }

    /// Returns the sizes in bytes of the first filters of the newest table and of the next table.
    pub fn newest_filter_bytes(&self) -> (u64, u64) {
        let tables = self.ring.load();
        let newest = tables.newest().table();
        let bytes = |pages: usize| (pages * PAGE_BYTES) as u64;
        (bytes(newest.pages()), bytes(self.next_pages(newest)))
    }

    /// Whether the oldest table is written to disk instead of being recycled.
    pub fn spills(&self) -> bool {
        self.limits.spill.load(Relaxed)
    }

    /// Returns the options that were passed at creation. [`Space::set_options`] may have changed
    /// some of them since.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the pair of `id` and `member` in the current generation of the id.
    #[inline]
    pub fn pair(&self, id: u64, member: &Member) -> Pair {
        self.current(self.first_pair(id, member))
    }

    /// Returns the table whose range begins at `low`, and the range.
    pub(crate) fn table_at(&self, low: u64) -> Option<((u64, u64), Arc<Table>)> {
        self.table_over(low).filter(|(range, _)| range.0 == low)
    }

    pub(crate) fn table_over(&self, id: u64) -> Option<((u64, u64), Arc<Table>)> {
        let tables = self.ring.load();
        let entry = tables.find(id)?;
        Some(((entry.slot().low(), entry.slot().last()), entry.table().clone()))
    }

    /// Returns the inclusive id range of the table that contains `id`. The newest table's range
    /// ends at 2^64-1. Returns `None` if the id is below the horizon.
    pub fn range_over(&self, id: u64) -> Option<(u64, u64)> {
        let tables = self.ring.load();
        tables.find(id).map(|entry| (entry.slot().low(), entry.slot().last()))
    }

    /// Returns an upper bound of the ids in tables, or `None` if no table has a pair.
    pub fn highest_id(&self) -> Option<u64> {
        self.frontier.high()
    }

    /// Runs `f` on the pair's table while no other writer can change the pair.
    pub(crate) fn under_stripe<R>(&self, pair: &Pair, f: impl FnOnce(&Table) -> R) -> Option<R> {
        self.ring.write(pair.id, pair.low, |entry| f(entry.table()))
    }

    pub(crate) fn for_each_outlier(&self, mut f: impl FnMut(Pair)) {
        self.outliers.for_each(|id, early| {
            // Copies the hashes first, because a writer must not wait for `f`.
            let hashes: Vec<u128> = early.read().iter().copied().collect();
            hashes.into_iter().for_each(|hash| f(Pair::from_hash(id, hash)));
        });
    }

    /// Whether the memory limit allows filters to grow by this many bytes.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        let used = self
            .ring
            .load()
            .entries()
            .iter()
            .map(|entry| entry.table().filter_bytes())
            .sum::<usize>();
        (used as u64).saturating_add(bytes as u64) <= self.limits.filter_bytes.load(Relaxed)
    }

    pub(crate) fn pages_in_memory(&self) -> usize {
        self.ring.load().entries().iter().map(|entry| entry.table().pages_in_memory()).sum()
    }

    /// Number of pages that count towards [`Space::kept_pages`]. A table that a rebuild has
    /// enlarged beyond the plan counts as one full table. Otherwise many pairs of few ids would
    /// cause the tables below to be recycled.
    pub(crate) fn counted_pages(&self) -> usize {
        let most = self.limits.pages_per_table.load(Relaxed);
        self.ring.load().entries().iter().map(|entry| entry.table().pages().min(most)).sum()
    }

    /// Maximum number of pages in the first filters of all tables. If the space spills, the maximum
    /// applies only to the tables in memory.
    pub(crate) fn max_pages(&self) -> usize {
        let by_tables = self
            .limits
            .pages_per_table
            .load(Relaxed)
            .saturating_mul(self.limits.max_tables.load(Relaxed));
        if !self.spills() {
            return by_tables;
        }
        let by_bytes = self.limits.filter_bytes.load(Relaxed) / PAGE_BYTES as u64;
        by_tables.min(usize::try_from(by_bytes).unwrap_or(usize::MAX))
    }

    /// Number of pages in all first filters, in memory and on disk, beyond which the oldest table
    /// is recycled.
    pub(crate) fn kept_pages(&self) -> usize {
        match self.limits.keep_tables.load(Relaxed) {
            _ if !self.spills() => self.max_pages(),
            0 => usize::MAX,
            tables => self.limits.pages_per_table.load(Relaxed).saturating_mul(tables),
        }
    }
}
