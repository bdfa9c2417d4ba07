//! Changes to the ring: rollovers, recycling and the admission of outliers (pairs of ids far above
//! all tables), plus the background work for them.
//!
//! **Rollover.** The newest table of each id range is open: it receives the new ids of the range. A
//! rollover closes it and creates a table above it, at capacity / (1 + late) pairs, which leaves
//! room for late pairs. `late` is the measured ratio of pairs after the close to pairs before it
//! (30 % until measured). The ratio exceeds 1 in a feed whose posts are mostly read long after
//! their creation. A table that closes earlier has fewer ids and a larger ratio. The plan still
//! converges: the number of ids at the close grows with the square root of the previous number. The
//! first table of a space is small, and each further table is twice as large as the previous table,
//! up to `pairs_per_table`.
//!
//! **Recycling.** The ring keeps filters for `max_tables * pairs_per_table` pairs. A rollover that
//! exceeds this recycles the oldest tables. A table counts as at most `pairs_per_table`; its
//! extensions do not count. Pairs of a single id can therefore enlarge its table up to the memory
//! limit, but they cannot raise the horizon (P4).
//!
//! If a space [spills](crate::Options::spill), the host moves the oldest tables to disk (`cold`)
//! before memory runs out. If the host has not freed enough memory, the ring creates no table and
//! the newest table gets extensions. Such a space recycles only above
//! [`keep_tables`](crate::Options::keep_tables), which counts tables in memory and on disk.
//!
//! While the oldest table is open, the ring recycles nothing: otherwise the horizon would pass ids
//! in use. A ring that does not spill then creates no more tables at its limit, and its open tables
//! get extensions up to the memory limit.
//!
//! **Outliers.** The frontier (see `rolling`) derives the regular id ranges from the outliers. When
//! the frontier creates a range, the ring divides the table that covers the range. The lower part
//! stays open until no new ids arrive there
//! ([`Frontier::join_idle`](rolling::Frontier::join_idle)).
//!
//! **Leader and followers.** The leader ([`Space::lead`]) decides where tables begin and which ids
//! they accept, and logs both ([`Space::course`]). A node that replays the log ([`Space::follow`]:
//! a replica or a restart) decides nothing and creates identical tables.
//!
//! - **L1** The log alone determines the table of a pair.
//! - **L2** The log also determines the number of pairs at which a table closes. That number
//!   depends on arrival order, which the log does not preserve. Without it a restart could close or
//!   recycle a table that was open before.

use crate::Error;
use crate::filter::Filter;
use crate::space::{OutlierPairs, Shape, Space};
use crate::stats::{Layout, RingProgress};
use crate::table::Table;
use crate::table_pool::Size;
use crate::write::OUTLIER_PART;
use parking_lot::MutexGuard;
use rolling::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Assumed ratio of late pairs to other pairs, until it is measured.
const INITIAL_LATE_RATIO: f64 = 0.3;
const LATE_RATIO_RANGE: std::ops::RangeInclusive<f64> = 0.05..=15.0;
/// Number of recent closed tables whose late pairs are considered.
const SAMPLED_TABLES: usize = 5;
/// Safety factor for the measured ratio of late pairs.
const HEADROOM: f64 = 1.2;
/// Number of pairs moved from the outliers per step. A step holds the mutex of the outliers for
/// about 10 µs.
const OUTLIERS_PER_STEP: usize = 128;

impl Space {
    pub(crate) fn try_roll(&self, low: u64) -> bool {
        self.rolling
            .try_lock()
            .is_some_and(|rolling| self.roll(&rolling, low, None).unwrap_or(false))
    }

    /// Closes the open table that starts at `low`. Creates another table above all admitted ids of
    /// its range, or at the position from the log. Returns `false` if no such table can be closed.
    fn roll(
        &self,
        _alone: &MutexGuard<'_, ()>,
        low: u64,
        at: Option<Layout>,
    ) -> Result<bool, Error> {
        let Some(((_, last), table)) = self.table_at(low) else { return Ok(false) };
        let boundary = || match (self.frontier.boundary(last), at) {
            (_, Some(at)) if self.frontier.follows() => Some(at.low),
            // An old log does not record the admitted ids, so pairs above its boundary may exist
            // already.
            (Some(ours), at) => Some(ours.max(at.map_or(0, |at| at.low))),
            (None, at) => at.map(|at| at.low),
        };
        if at.is_none() {
            self.join_idle();
        }
        if boundary().is_none_or(|boundary| boundary <= low) {
            return Ok(false);
        }
        let pages = at.map_or(self.next_pages(&table), |at| at.pages.max(1));
        if at.is_none() && !self.has_room(low, pages) {
            return Ok(false);
        }
        let Some(boundary) = self.divide(low, boundary, pages)? else { return Ok(false) };
        table.close();
        if low > 0 {
            // The first table begins at 0, so its lower bound may be far below its ids.
            self.frontier.widen(low, boundary - low);
        }
        if at.is_none() {
            self.recycle();
        }
        self.estimate();
        Ok(true)
    }

    /// Whether the ring has room for another table of `pages` above the one at `low`. The caller
    /// holds `rolling`.
    fn has_room(&self, low: u64, pages: usize) -> bool {
        if self.spills() {
            return self.pages_in_memory() + pages <= self.max_pages();
        }
        let tables = self.ring.load();
        let oldest = tables.oldest();
        let stays_open = oldest.table().is_open() && oldest.slot().low() != low;
        !stays_open || self.counted_pages() + pages <= self.kept_pages()
    }

    /// Divides the table that starts at `low`. A new table of `pages` covers the ids starting at
    /// `boundary`. Returns the boundary, or `None` if there is no such table or it does not contain
    /// the boundary.
    fn divide(
        &self,
        low: u64,
        boundary: impl FnOnce() -> Option<u64>,
        pages: usize,
    ) -> Result<Option<u64>, Error> {
        let Shape { rate, sizing } = self.shape();
        let spare = self.filter_pool.take_spare((sizing, pages));
        // The allocation is immediate, but the first writes fault in the pages.
        let filter = spare.map_or_else(|| Filter::new(sizing, pages).map_err(Error::Memory), Ok)?;
        let next = Arc::new(Table::new(rate, filter));
        match self.ring.roll(low, boundary, next) {
            Ok(boundary) => {
                self.has_changed();
                Ok(Some(boundary))
            }
            Err(next) => {
                if let Ok(next) = Arc::try_unwrap(next) {
                    self.filter_pool.keep_spare(next.into_first_filter());
                }
                Ok(None)
            }
        }
    }

    /// Records that the layout and the frontier have changed and must be logged.
    fn has_changed(&self) {
        self.changes.fetch_add(1, SeqCst);
        self.news.store(true, SeqCst);
    }

    /// Creates an id range for the outliers if there are enough of them. Returns whether a range
    /// was created.
    fn open_range(&self) -> bool {
        let (Some(_alone), Some(_no_rewrite)) = (self.rolling.try_lock(), self.merging.try_lock())
        else {
            return false;
        };
        self.join_idle();
        // Plan for twice the pending pairs, because more pairs will follow. Each later table
        // doubles in size.
        let pairs = 2 * self.outlier_pairs.load(SeqCst) as u64;
        let most = self.limits.pages_per_table.load(Relaxed);
        let pages = self.shape().sizing.pages(pairs).clamp(1, most);
        let divide = |Range { start, .. }| {
            let low = self.table_over(start).map(|(range, _)| range.0);
            // The log may already have created the table, but not yet the range.
            let begins = |low| {
                low == start || matches!(self.divide(low, || Some(start), pages), Ok(Some(_)))
            };
            low.is_some_and(begins)
        };
        let is_short = self.outlier_bytes() as u64 > self.filter_bytes_limit() / OUTLIER_PART;
        let weight = |held: &OutlierPairs| held.read().len();
        let opened = self.outliers.advance(&self.frontier, weight, is_short, divide);
        if opened {
            // To make room for the new range, the frontier may have merged another range into the
            // range above it.
            self.match_ranges();
            self.estimate();
        }
        opened
    }

    /// Closes the open table of the range that has been idle longest, except the highest range.
    /// From then on, new pairs in the closed range count as late. Returns whether a table was
    /// closed.
    pub fn close_range(&self) -> bool {
        let _alone = self.rolling.lock();
        let closed = !self.frontier.follows() && self.frontier.join_oldest();
        if closed {
            self.match_ranges();
            self.has_changed();
        }
        closed
    }

    /// Whether there is a range that [`Space::close_range`] could close.
    pub fn has_ranges(&self) -> bool {
        !self.frontier.follows() && self.frontier.open_ends().len() > 1
    }

    /// Closes the tables of idle ranges. The caller holds `rolling`.
    fn join_idle(&self) {
        if !self.frontier.follows() && self.frontier.join_idle() {
            self.match_ranges();
            self.has_changed();
        }
    }

    /// Reopens or closes tables so that only the newest table of each range in the frontier is
    /// open.
    fn match_ranges(&self) {
        for entry in self.ring.load().entries() {
            let table = entry.table();
            match (self.frontier.is_open(entry.slot().last()), table.is_open()) {
                (true, false) => table.reopen(),
                // The log determines the number of pairs at which the table closes.
                (false, true) if self.frontier.follows() => table.set_closed_at(table.roll_at()),
                (false, true) => table.close(),
                _ => {}
            }
        }
    }

    fn open_tables(&self) -> Vec<(u64, Arc<Table>)> {
        let tables = self.ring.load();
        let ends = self.frontier.open_ends();
        let open = ends.iter().filter_map(|&end| tables.find(end));
        open.map(|entry| (entry.slot().low(), entry.table().clone())).collect()
    }

    /// Recycles the oldest tables beyond the configured number (P4). The caller holds `rolling`.
    fn recycle(&self) {
        while self.has_too_many() {
            let Some(oldest) = self.ring.recycle() else { return };
            self.has_changed();
            self.filter_pool.retire(oldest.table().clone());
        }
    }

    /// Whether the oldest table must be recycled. An open table is never recycled.
    fn has_too_many(&self) -> bool {
        let tables = self.ring.load();
        let kept = self.kept_pages();
        kept < usize::MAX
            && !self.frontier.follows()
            && tables.entries().len() > 1
            && !tables.oldest().table().is_open()
            && self.counted_pages() > kept
    }

    pub(crate) fn next_pages(&self, newest: &Table) -> usize {
        newest.pages().saturating_mul(2).min(self.limits.pages_per_table.load(Relaxed))
    }

    fn next_size(&self, newest: &Table) -> Size {
        (self.shape().sizing, self.next_pages(newest))
    }

    /// Sets the pair count at which the open tables close. Uses the second-highest ratio of late
    /// pairs among the last five closed tables. A single import, or tables that still receive late
    /// pairs, then have little effect.
    pub(crate) fn estimate(&self) {
        let tables = self.ring.load();
        let closed = tables
            .entries()
            .iter()
            .rev()
            .map(|entry| entry.table())
            .filter(|table| !table.is_open());
        let mut late: Vec<f64> = closed
            .map(|table| table.pairs().saturating_sub(table.early()) as f64 / table.early() as f64)
            .take(1 + SAMPLED_TABLES)
            .collect();
        if late.len() > 1 {
            late.remove(0); // the youngest has only begun to get late pairs
        }
        late.sort_unstable_by(|a, b| b.total_cmp(a));
        let measured = late
            .get(usize::from(late.len() > 2))
            .map_or(INITIAL_LATE_RATIO, |late| late * HEADROOM);
        let filled = 1.0 + measured.clamp(*LATE_RATIO_RANGE.start(), *LATE_RATIO_RANGE.end());
        for (_, table) in self.open_tables() {
            table.set_roll_at(((table.capacity() as f64 / filled) as u64).max(1));
        }
    }

    /// Closes the newest table now, unless it is empty. Returns whether the table was closed.
    pub fn roll_now(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().pairs() > 0
            && self.roll(&self.rolling.lock(), newest.slot().low(), None).unwrap_or(false)
    }

    /// Returns the number of changes to the ring.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Returns the position and size of each table, oldest first.
    pub fn layout(&self) -> Vec<Layout> {
        let tables = self.ring.load();
        tables
            .entries()
            .iter()
            .map(|entry| {
                let (low, table) = (entry.slot().low(), entry.table());
                Layout { low, pages: table.pages(), roll_at: table.roll_at() }
            })
            .collect()
    }

    /// Returns a consistent state of ring and frontier for the log. The caller first reads the
    /// pairs of a batch, then calls this function, then logs layout, frontier and pairs, in this
    /// order. The layout is present only if the ring has changed since `changes`.
    ///
    /// A table that is new in this batch contains no id that a follower admitted from earlier
    /// batches. The new table begins above all ids admitted when the last frontier was read. The
    /// returned frontier admits every pair that was in a table when the caller read the pair's
    /// state.
    pub fn course(&self, changes: u64) -> RingProgress {
        let _nobody_rolls = self.rolling.lock();
        let now = self.changes();
        let ranges = self.frontier.ranges();
        RingProgress { changes: now, layout: (now != changes).then(|| self.layout()), ranges }
    }

    /// Whether the ring has changed, or pairs have moved into tables without a write, since the
    /// last call. If so, the caller must log [`Space::course`] even if nothing else has changed.
    /// Always false on a follower.
    #[inline]
    pub fn take_unlogged_changes(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, SeqCst) && !self.frontier.follows()
    }

    /// Whether [`Space::take_unlogged_changes`] may return true. This check is a single atomic
    /// load.
    pub fn has_unlogged_changes(&self) -> bool {
        self.news.load(Relaxed)
    }

    /// Makes this node decide where tables begin, both on writes and in [`Space::maintain`].
    pub fn lead(&self) {
        self.frontier.follow(false);
    }

    /// Makes the log decide where tables begin ([`Space::put_layout`], [`Space::put_frontier`]).
    /// After the call returns, the ring no longer creates tables on its own.
    pub fn follow(&self) {
        self.frontier.follow(true);
        drop(self.rolling.lock());
    }

    /// Applies a logged frontier and admits the outliers that it covers.
    pub fn put_frontier(&self, ranges: &[Range]) {
        let before = self.frontier.open_ends();
        self.frontier.tell(ranges);
        if before != self.frontier.open_ends() {
            self.match_ranges();
        }
        while self.drain() {}
    }

    /// Applies a logged layout: creates missing tables, and recycles the tables below the first
    /// entry. The call is idempotent and accepts a layout older than the ring.
    ///
    /// Old logs lack frontiers. A follower then admits ids on its own, and a table may begin higher
    /// than recorded.
    pub fn put_layout(&self, layout: &[Layout]) -> Result<(), Error> {
        for &at in layout {
            match self.table_over(at.low) {
                // Without a logged frontier, the recorded boundary may belong to a different table.
                Some(((low, last), _))
                    if low < at.low && (last == u64::MAX || self.frontier.follows()) =>
                {
                    self.roll(&self.rolling.lock(), low, Some(at))?;
                }
                _ => self.resize_empty(at)?,
            }
        }
        self.put_roll_points(layout);
        let horizon = layout.first().map_or(0, |at| at.low);
        loop {
            let tables = self.ring.load();
            let recycles =
                tables.entries().get(1).is_some_and(|second| second.slot().low() <= horizon);
            drop(tables);
            if !recycles {
                return Ok(());
            }
            if let Some(oldest) = self.ring.recycle() {
                self.changes.fetch_add(1, SeqCst);
                self.filter_pool.retire(oldest.table().clone());
            }
        }
    }

    /// Applies the logged pair counts at which tables close (L2).
    fn put_roll_points(&self, layout: &[Layout]) {
        for at in layout.iter().filter(|at| at.roll_at > 0) {
            let Some((range, table)) = self.table_at(at.low) else { continue };
            match self.frontier.is_open(range.1) {
                true => table.set_roll_at(at.roll_at),
                false => table.set_closed_at(at.roll_at),
            }
        }
    }

    /// Resizes an empty table to its logged size. The options may have changed since the log began.
    fn resize_empty(&self, at: Layout) -> Result<(), Error> {
        let Some((_, table)) = self.table_at(at.low) else { return Ok(()) };
        if table.pages() == at.pages.max(1) || table.pairs() > 0 {
            return Ok(());
        }
        let Shape { rate, sizing } = self.shape();
        let filter = Filter::new(sizing, at.pages.max(1)).map_err(Error::Memory)?;
        let other = Arc::new(Table::new(rate, filter));
        if let Ok(empty) = self.ring.rewrite(at.low, vec![(at.low, other)]) {
            self.ring.finish(&empty);
            self.estimate();
        }
        Ok(())
    }

    /// Whether [`Space::maintain`] has work to do. This check is fast.
    pub fn wants_maintenance(&self) -> bool {
        let pairs = self.outlier_pairs.load(SeqCst);
        let early = pairs > 0
            && (self.frontier.should_advance(pairs)
                || self.outliers.has_reached_entries(&self.frontier));
        let tables = self.ring.load();
        let newest = tables.newest().table();
        early
            || self.due_roll().is_some()
            || self.has_too_many()
            || self.forgotten.is_due(self.horizon())
            || self.filter_pool.wants_step(self.next_size(newest), needs_spare(newest))
    }

    /// Runs one small step of background work: [`Space::move_on`], then [`Space::tidy`]. Returns
    /// whether more work may remain.
    pub fn maintain(&self) -> bool {
        self.move_on() | self.tidy()
    }

    /// Moves some outliers into the ring, closes a table that has enough pairs, and recycles tables
    /// beyond the limits. Returns whether there was work to do.
    pub fn move_on(&self) -> bool {
        let mut worked = self.admit_outliers();
        if self.has_too_many() {
            let _alone = self.rolling.lock();
            self.recycle();
            worked = true;
        }
        worked | self.due_roll().is_some_and(|low| self.try_roll(low))
    }

    /// Prepares memory for the next table, and drops the forgotten ids of recycled tables. Returns
    /// whether there was work to do.
    pub fn tidy(&self) -> bool {
        let swept = self.forgotten.tidy(self.horizon());
        let newest = self.ring.load().newest().table().clone();
        let (sizing, pages) = self.next_size(&newest);
        let make = || Filter::new(sizing, pages).ok();
        self.filter_pool.step((sizing, pages), needs_spare(&newest), make) | swept
    }

    fn due_roll(&self) -> Option<u64> {
        if self.frontier.follows() {
            return None;
        }
        let may_end = |end: u64, low: u64| self.frontier.boundary(end).is_some_and(|b| b > low);
        let tables = self.ring.load();
        let open = self.frontier.open_ends().into_iter().filter_map(|end| tables.find(end));
        let mut due = open.filter(|entry| {
            entry.table().is_due() && may_end(entry.slot().last(), entry.slot().low())
        });
        due.next_back().map(|entry| entry.slot().low())
    }

    /// Creates a range for the outliers if there are enough of them. Otherwise moves some outliers
    /// of open ranges into tables.
    pub(crate) fn admit_outliers(&self) -> bool {
        let pairs = self.outlier_pairs.load(SeqCst);
        if pairs == 0 {
            return false;
        }
        let opened = self.frontier.should_advance(pairs) && self.open_range();
        opened || self.drain()
    }

    pub(crate) fn drain(&self) -> bool {
        let mut pairs = 0;
        self.outliers.drain(&self.frontier, |id, early| {
            let Some(held) = early.as_ref().filter(|_| pairs < OUTLIERS_PER_STEP) else { return };
            let some: Vec<u128> =
                held.read().iter().copied().take(OUTLIERS_PER_STEP - pairs).collect();
            let before = held.read().len();
            // If there is no memory for a table, the pairs remain outliers.
            let _ = self.settle(id, held, some);
            pairs += before - held.read().len();
            early.take_if(|held| held.read().is_empty());
        });
        pairs > 0
    }
}

/// Whether the newest table is at least half full, so that the next rollover will need a spare
/// filter.
fn needs_spare(newest: &Table) -> bool {
    newest.pairs() >= newest.roll_at() / 2
}
