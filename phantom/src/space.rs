//! A space: the ring of tables and the pairs aside. Reading is in `lookup`, writing in `write`,
//! rolling in `rollover`.
//!
//! **Locks**, in this order: aside, a stripe of the ring, a table's growth or a shard of its
//! revoked pairs. All that happens to one pair happens under its stripe (or, for an id far ahead,
//! under the mutex of the outliers), so test and set are one step (P3).

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

/// The pairs of one id aside. Of them, too, a reader waits for a few memory writes at most (P5).
pub(crate) type OutlierPairs = RwLock<Hashes>;

/// What may change while a space is used.
pub(crate) struct Limits {
    /// Pages of a grown table's first filter.
    pub(crate) pages_per_table: AtomicUsize,
    pub(crate) max_tables: AtomicUsize,
    pub(crate) keep_tables: AtomicUsize,
    pub(crate) max_revoked: AtomicUsize,
    pub(crate) max_aside: AtomicUsize,
    pub(crate) max_forgotten: AtomicUsize,
    /// Bytes that filters may take at most, and now.
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
            max_revoked: AtomicUsize::new(options.max_revoked),
            max_aside: AtomicUsize::new(options.max_aside),
            max_forgotten: AtomicUsize::new(options.max_forgotten),
            most_filter_bytes: AtomicU64::new(options.filter_bytes_limit()),
            filter_bytes: AtomicU64::new(options.filter_bytes_limit()),
            spill: AtomicBool::new(options.spill),
        }
    }
}

/// What tables are made for from now on.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// False-positive rate.
    pub(crate) rate: f64,
    /// Of a first filter.
    pub(crate) sizing: Sizing,
}

impl Shape {
    fn of(options: &Options) -> Shape {
        let rate = options.false_positive_rate;
        Shape { rate, sizing: Table::first_sizing(rate) }
    }
}

/// Pairs of (id, member). See the top of the file; all methods may be called from any thread.
pub struct Space {
    pub(crate) options: Options,
    pub(crate) seed: Seed,
    shape: RwLock<Shape>,
    /// No first filter of a table has fewer bits of a pair in a line: so many draws may be asked of
    /// all of them before it is known whose they are. Never rises, as readers of an older list of
    /// tables may ask.
    pub(crate) fewest_bits: AtomicUsize,
    pub(crate) limits: Limits,
    pub(crate) ring: Ring<Arc<Table>>,
    pub(crate) frontier: Frontier,
    pub(crate) outliers: Outliers<OutlierPairs>,
    pub(crate) outlier_pairs: AtomicUsize,
    pub(crate) forgotten: Forgotten,
    pub(crate) upkeep: TablePool,
    /// Held to roll, or to look at ring and frontier together. Never waited for by a writer.
    pub(crate) rolling: Mutex<()>,
    /// Held while a table takes the place of another: a spill, a merge of late pairs, a rebuild.
    pub(crate) merging: Mutex<()>,
    /// Pairs set of tables that lie elsewhere, of all tables.
    pub(crate) late: Arc<AtomicUsize>,
    /// Behind the table that had canaries last.
    pub(crate) probed: AtomicUsize,
    /// How often the ring has changed.
    pub(crate) changes: AtomicU64,
    /// See [`Space::take_news`].
    pub(crate) news: AtomicBool,
}

impl Space {
    /// An empty space whose horizon is [`Options::first_id`].
    pub fn new(options: Options) -> Result<Space, Error> {
        options.check()?;
        let sizing = Table::first_sizing(options.false_positive_rate);
        let pages = options.first_pages();
        let filter = Filter::new(sizing, pages).map_err(Error::Memory)?;
        let first = Arc::new(Table::new(options.false_positive_rate, filter));
        let frontier = Frontier::new(options.max_ahead, options.max_aside);
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
            upkeep: TablePool::default(),
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

    /// Changes the options, but for those that are part of the space's data: see [`Options`].
    /// [`Space::maintain`] recycles the tables for which they have no room any more; the next
    /// write keeps the rest.
    pub fn set_options(&self, options: &Options) -> Result<(), Error> {
        options.check()?;
        if options.false_positive_rate != self.false_positive_rate() {
            let shape = Shape::of(options);
            // Before there is a table of it.
            self.fewest_bits.fetch_min(shape.sizing.bits, Relaxed);
            *self.shape.write() = shape;
        }
        let Limits {
            pages_per_table,
            max_tables,
            keep_tables,
            max_revoked,
            max_aside,
            max_forgotten,
            most_filter_bytes,
            filter_bytes,
            spill,
        } = Limits::new(&self.data_of(options), self.shape().sizing);
        self.limits.pages_per_table.store(pages_per_table.into_inner(), Relaxed);
        self.limits.max_tables.store(max_tables.into_inner(), Relaxed);
        self.limits.keep_tables.store(keep_tables.into_inner(), Relaxed);
        self.limits.max_revoked.store(max_revoked.into_inner(), Relaxed);
        self.limits.max_aside.store(max_aside.into_inner(), Relaxed);
        self.limits.max_forgotten.store(max_forgotten.into_inner(), Relaxed);
        self.limits.most_filter_bytes.store(most_filter_bytes.into_inner(), Relaxed);
        self.limits.filter_bytes.store(filter_bytes.into_inner(), Relaxed);
        self.limits.spill.store(spill.into_inner(), Relaxed);
        self.frontier.set_limits(options.max_ahead, options.max_aside);
        Ok(())
    }

    /// These options, of a space with these data.
    fn data_of(&self, options: &Options) -> Options {
        Options { seed: self.options.seed, first_id: self.options.first_id, ..options.clone() }
    }

    /// What tables are made for from now on.
    pub(crate) fn shape(&self) -> Shape {
        *self.shape.read()
    }

    /// The false-positive rate that tables are made for from now on.
    pub fn false_positive_rate(&self) -> f64 {
        self.shape.read().rate
    }

    /// Bytes that filters may take.
    pub fn filter_bytes_limit(&self) -> u64 {
        self.limits.filter_bytes.load(Relaxed)
    }

    /// Bytes that filters may take at most, by the options.
    pub fn most_filter_bytes(&self) -> u64 {
        self.limits.most_filter_bytes.load(Relaxed)
    }

    /// From now on filters may take so many bytes, until the options change. What is there stays;
    /// a space that spills is [short](Space::is_short) if it has more.
    pub fn set_filter_bytes(&self, bytes: u64) {
        self.limits.filter_bytes.store(bytes, Relaxed);
    }

    /// Bytes of the newest table's first filter, and of the next one's.
    pub fn newest_filter_bytes(&self) -> (u64, u64) {
        let tables = self.ring.load();
        let newest = tables.newest().table();
        let bytes = |pages: usize| (pages * PAGE_BYTES) as u64;
        (bytes(newest.pages()), bytes(self.next_pages(newest)))
    }

    /// Whether the oldest table waits to be written to the disk, instead of being recycled.
    pub fn spills(&self) -> bool {
        self.limits.spill.load(Relaxed)
    }

    /// The options it was made with. Those that may change may have changed since:
    /// [`Space::set_options`].
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The pair of `id` and `member`, as it is asked for and written now.
    #[inline]
    pub fn pair(&self, id: u64, member: &Member) -> Pair {
        self.current(self.first_pair(id, member))
    }

    /// Range and table that begin at `low`.
    pub(crate) fn table_at(&self, low: u64) -> Option<((u64, u64), Arc<Table>)> {
        self.table_over(low).filter(|(range, _)| range.0 == low)
    }

    /// Range and table that cover `id`.
    pub(crate) fn table_over(&self, id: u64) -> Option<((u64, u64), Arc<Table>)> {
        let tables = self.ring.load();
        let entry = tables.find(id)?;
        Some(((entry.slot().low(), entry.slot().last()), entry.table().clone()))
    }

    /// The range of ids, both ends inclusive, of the table that covers `id`; that of the newest
    /// ends at 2^64-1. `None`: it lies below the horizon.
    pub fn range_over(&self, id: u64) -> Option<(u64, u64)> {
        let tables = self.ring.load();
        tables.find(id).map(|entry| (entry.slot().low(), entry.slot().last()))
    }

    /// No table has a pair of a higher id. `None`: no table has any.
    pub fn highest_id(&self) -> Option<u64> {
        self.frontier.high()
    }

    /// Runs `f` on the table of `pair`, alone among its writers.
    pub(crate) fn under_stripe<R>(&self, pair: &Pair, f: impl FnOnce(&Table) -> R) -> Option<R> {
        self.ring.write(pair.id, pair.low, |entry| f(entry.table()))
    }

    pub(crate) fn for_each_outlier(&self, mut f: impl FnMut(Pair)) {
        self.outliers.for_each(|id, early| {
            // No thread waits for `f`.
            let hashes: Vec<u128> = early.read().iter().copied().collect();
            hashes.into_iter().for_each(|hash| f(Pair::from_hash(id, hash)));
        });
    }

    /// Whether extensions may take so many more bytes.
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

    /// Pages of the first filters that lie in memory.
    pub(crate) fn pages_in_memory(&self) -> usize {
        self.ring.load().entries().iter().map(|entry| entry.table().pages_in_memory()).sum()
    }

    /// Pages that count towards [`Space::kept_pages`]. A table that was rebuilt for more pairs than
    /// planned counts as a full one, so many pairs of few ids do not recycle the ids below them.
    pub(crate) fn counted_pages(&self) -> usize {
        let most = self.limits.pages_per_table.load(Relaxed);
        self.ring.load().entries().iter().map(|entry| entry.table().pages().min(most)).sum()
    }

    /// Pages that the first filters of all tables may have together; those of a space that spills,
    /// in memory.
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

    /// Pages that the first filters of all tables may have together, those that lie elsewhere
    /// included: beyond it the oldest is recycled.
    pub(crate) fn kept_pages(&self) -> usize {
        match self.limits.keep_tables.load(Relaxed) {
            _ if !self.spills() => self.max_pages(),
            0 => usize::MAX,
            tables => self.limits.pages_per_table.load(Relaxed).saturating_mul(tables),
        }
    }
}
