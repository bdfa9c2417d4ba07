//! When the ring changes: rolling, recycling, taking early ids in; and the background work that
//! goes with it.
//!
//! **Rolling.** An open table (the newest, and that of each range of ids below it) is closed when
//! its pairs reach capacity / (1 + late), where `late`
//! is the measured ratio of the pairs that came after a table was closed to those that came before
//! (30 % until there is a measurement), so that late pairs fit, too. The first table of a space is
//! small, and each next one twice as large, up to `pairs_per_table`: a small space costs little.
//!
//! **Recycling.** The ring keeps filters for `max_tables * pairs_per_table` pairs; when a roll
//! brings more, the oldest tables go. A table counts as `pairs_per_table` at most, and its
//! extensions do not count: pairs that are sent for one id enlarge its table, which costs memory up
//! to the limit, but move no horizon (P4).
//!
//! Of a space that [spills](crate::Options::spill) the host moves the oldest tables to disk before
//! there is no room for the next one (`cold`). If it does not, the ring does not roll, and the
//! newest table is extended. Such a space recycles only beyond
//! [`keep_tables`](crate::Options::keep_tables), wherever the oldest table lies.
//!
//! While new ids come into the oldest table no table is recycled: the horizon would pass ids in
//! use. Then a ring that does not spill rolls no further than it may, and its open tables are
//! extended, up to the memory limit.
//!
//! **Outlying ids.** The frontier (see `rolling`) decides which ids are normal, from those that are
//! aside. Where it opens a range of ids the table over them is divided; that below the range stays
//! open until nothing new comes there ([`Frontier::join_idle`](rolling::Frontier::join_idle)).
//!
//! **Leader and followers.** The node that takes writes ([`Space::lead`]) decides where tables
//! begin and which ids they take, and logs it ([`Space::course`]). A node that replays that log
//! ([`Space::follow`]: a start, a replica) makes the same tables, to the id and to the page, and
//! decides nothing. **L1** So the table that takes a pair is a function of the log: a block of a
//! filter (`merge`) finds there all the pairs whose bits it has. **L2** So is the number of pairs
//! at which a table is, or was, closed: it is measured from what came when, and a log does not have
//! pairs in the order in which they came. Otherwise a start could close a table, and recycle one,
//! that the node before it had not.

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

/// Late pairs by early pairs, until measured.
const LATE_AT_START: f64 = 0.3;
/// The measured ratio is taken for no less and no more than this.
const LATE: std::ops::RangeInclusive<f64> = 0.05..=1.0;
/// The late pairs of so many tables are looked at.
const TABLES_ASKED: usize = 5;
/// Room is left for so many times the late pairs that were measured.
const HEADROOM: f64 = 1.08;
/// Pairs that leave the outliers in one step, while its mutex is held: some ten microseconds, for
/// which writers of ids aside may have to wait.
const MOVED_AT_ONCE: usize = 128;

impl Space {
    /// Rolls, unless another thread does at this moment.
    pub(crate) fn try_roll(&self, low: u64) -> bool {
        self.rolling
            .try_lock()
            .is_some_and(|rolling| self.roll(&rolling, low, None).unwrap_or(false))
    }

    /// Closes the open table that starts at `low`, if it still is one, and opens another above all
    /// ids of its range that were let in, or where a log says.
    fn roll(
        &self,
        _alone: &MutexGuard<'_, ()>,
        low: u64,
        at: Option<Layout>,
    ) -> Result<bool, Error> {
        let Some(((_, last), table)) = self.table_at(low) else { return Ok(false) };
        let boundary = || match (self.frontier.boundary(last), at) {
            (_, Some(at)) if self.frontier.follows() => Some(at.low),
            // A log of which the writer did not say what it admitted: pairs above may be here
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
            // The first table begins at 0, wherever its ids do.
            self.frontier.widen(low, boundary - low);
        }
        if at.is_none() {
            self.recycle();
        }
        self.estimate();
        Ok(true)
    }

    /// Whether the ring may have a further table of so many pages above that which starts at `low`.
    /// With `rolling` held.
    fn has_room(&self, low: u64, pages: usize) -> bool {
        if self.spills() {
            return self.pages_in_memory() + pages <= self.max_pages();
        }
        let tables = self.ring.load();
        let oldest = tables.oldest();
        let stays_open = oldest.table().is_open() && oldest.slot().low() != low;
        !stays_open || self.counted_pages() + pages <= self.kept_pages()
    }

    /// Divides the table that starts at `low`: a new one of so many pages takes what lies from
    /// `boundary` on. Gives that; `None`: there is no such table any more, or the boundary does not
    /// lie in it.
    fn divide(
        &self,
        low: u64,
        boundary: impl FnOnce() -> Option<u64>,
        pages: usize,
    ) -> Result<Option<u64>, Error> {
        let Shape { rate, sizing } = self.shape();
        let spare = self.upkeep.take_spare((sizing, pages));
        // Fresh memory is instant, if not as fast at first.
        let filter = spare.map_or_else(|| Filter::new(sizing, pages).map_err(Error::Memory), Ok)?;
        let next = Arc::new(Table::new(rate, filter));
        match self.ring.roll(low, boundary, next) {
            Ok(boundary) => {
                self.has_changed();
                Ok(Some(boundary))
            }
            Err(next) => {
                if let Ok(next) = Arc::try_unwrap(next) {
                    self.upkeep.keep_spare(next.into_first_filter());
                }
                Ok(None)
            }
        }
    }

    /// The log is to hear of where tables begin, and which ids they take.
    fn has_changed(&self) {
        self.changes.fetch_add(1, SeqCst);
        self.news.store(true, SeqCst);
    }

    /// Opens a range for pairs aside, if they are enough; whether it did.
    fn open_range(&self) -> bool {
        let (Some(_alone), Some(_no_rewrite)) = (self.rolling.try_lock(), self.merging.try_lock())
        else {
            return false;
        };
        self.join_idle();
        // Room for twice what waits: it goes on, and each next table is twice as large.
        let pairs = 2 * self.outlier_pairs.load(SeqCst) as u64;
        let most = self.limits.pages_per_table.load(Relaxed);
        let pages = self.shape().sizing.pages(pairs).clamp(1, most);
        let divide = |Range { start, .. }| {
            let low = self.table_over(start).map(|(range, _)| range.0);
            // A log may have told of the table, and of the range not yet.
            let begins = |low| {
                low == start || matches!(self.divide(low, || Some(start), pages), Ok(Some(_)))
            };
            low.is_some_and(begins)
        };
        let is_short = self.outlier_bytes() as u64 > self.filter_bytes_limit() / OUTLIER_PART;
        let weight = |held: &OutlierPairs| held.read().len();
        let opened = self.outliers.advance(&self.frontier, weight, is_short, divide);
        if opened {
            // One may have made room.
            self.match_ranges();
            self.estimate();
        }
        opened
    }

    /// Closes the open table of a range of ids far below the highest one, that in which nothing new
    /// has come for the longest time; whether there was one. What comes there from now on is late.
    pub fn close_range(&self) -> bool {
        let _alone = self.rolling.lock();
        let closed = !self.frontier.follows() && self.frontier.join_oldest();
        if closed {
            self.match_ranges();
            self.has_changed();
        }
        closed
    }

    /// Whether [`Space::close_range`] would find one.
    pub fn has_ranges(&self) -> bool {
        !self.frontier.follows() && self.frontier.open_ends().len() > 1
    }

    /// Closes the tables of ranges in which nothing new comes. With `rolling` held.
    fn join_idle(&self) {
        if !self.frontier.follows() && self.frontier.join_idle() {
            self.match_ranges();
            self.has_changed();
        }
    }

    /// Has the tables open that are by the frontier, and no others.
    fn match_ranges(&self) {
        for entry in self.ring.load().entries() {
            let table = entry.table();
            match (self.frontier.is_open(entry.slot().last()), table.is_open()) {
                (true, false) => table.reopen(),
                // A log says at how many pairs.
                (false, true) if self.frontier.follows() => table.set_closed_at(table.roll_at()),
                (false, true) => table.close(),
                _ => {}
            }
        }
    }

    /// The open tables and their lowest ids, oldest first.
    fn open_tables(&self) -> Vec<(u64, Arc<Table>)> {
        let tables = self.ring.load();
        let ends = self.frontier.open_ends();
        let open = ends.iter().filter_map(|&end| tables.find(end));
        open.map(|entry| (entry.slot().low(), entry.table().clone())).collect()
    }

    /// Recycles the oldest tables, while there are more than the options say (P4). With `rolling`
    /// held.
    fn recycle(&self) {
        while self.has_too_many() {
            let Some(oldest) = self.ring.recycle() else { return };
            self.has_changed();
            self.upkeep.retire(oldest.table().clone());
        }
    }

    /// Whether the oldest table is to be recycled: after a roll, or a change of the options. Not
    /// while it is open.
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

    /// Decides at how many pairs the open tables are to be closed, from how many came late to the
    /// others: as many as to the second of the last five in this respect. So neither one that got
    /// an import decides for all, nor those that are not over yet.
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
            .take(1 + TABLES_ASKED)
            .collect();
        if late.len() > 1 {
            late.remove(0); // the youngest has only begun to get late pairs
        }
        late.sort_unstable_by(|a, b| b.total_cmp(a));
        let measured =
            late.get(usize::from(late.len() > 2)).map_or(LATE_AT_START, |late| late * HEADROOM);
        let filled = 1.0 + measured.clamp(*LATE.start(), *LATE.end());
        for (_, table) in self.open_tables() {
            table.set_roll_at(((table.capacity() as f64 / filled) as u64).max(1));
        }
    }

    /// Closes the newest table now, if it has any pair. Returns whether it did.
    pub fn roll_now(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().pairs() > 0
            && self.roll(&self.rolling.lock(), newest.slot().low(), None).unwrap_or(false)
    }

    /// How often the ring has changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// The tables' places, oldest first.
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

    /// What is to be logged of where pairs go, read in one moment, in this order and before the
    /// pairs that were read before it was. The layout only if the ring has changed since `changes`.
    ///
    /// A node that has applied all batches before has let no id in that lies in a table which comes
    /// new with this one: it began above all ids that were let in by the time the last batch's
    /// frontier was read. And whatever was in a table when its state was read is let in by this
    /// frontier.
    pub fn course(&self, changes: u64) -> RingProgress {
        let _nobody_rolls = self.rolling.lock();
        let now = self.changes();
        let ranges = self.frontier.ranges();
        RingProgress { changes: now, layout: (now != changes).then(|| self.layout()), ranges }
    }

    /// Whether the ring has changed, or pairs have gone into tables, by something else than a write
    /// that changed something, since this was last asked: then [`Space::course`] is to be logged,
    /// even if nothing else is. Never on a follower.
    #[inline]
    pub fn take_news(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, SeqCst) && !self.frontier.follows()
    }

    /// Whether [`Space::take_news`] would say so. Cheap.
    pub fn has_news(&self) -> bool {
        self.news.load(Relaxed)
    }

    /// From now on what is written here decides where tables begin, and [`Space::maintain`] does.
    pub fn lead(&self) {
        self.frontier.follow(false);
    }

    /// From now on a log does ([`Space::put_layout`], [`Space::put_frontier`]). Nothing rolls by
    /// itself any more when this returns.
    pub fn follow(&self) {
        self.frontier.follow(true);
        drop(self.rolling.lock());
    }

    /// Makes the frontier what the log says it was, and lets in what it has reached.
    pub fn put_frontier(&self, ranges: &[Range]) {
        let before = self.frontier.open_ends();
        self.frontier.tell(ranges);
        if before != self.frontier.open_ends() {
            self.match_ranges();
        }
        while self.drain() {}
    }

    /// Makes the ring what the log says it was: opens the tables that it lacks, and recycles those
    /// below the first of `layout`. May be repeated, and be told to a ring that
    /// is further on. (A log of before frontiers were logged has let in ids on its own: then a
    /// table opens higher than recorded if pairs above that were already put.)
    pub fn put_layout(&self, layout: &[Layout]) -> Result<(), Error> {
        for &at in layout {
            match self.table_over(at.low) {
                // (Without a frontier it may be another's boundary that ours lies above.)
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
                self.upkeep.retire(oldest.table().clone());
            }
        }
    }

    /// Says of the tables that are here at how many pairs they are, or were, closed (L2).
    fn put_roll_points(&self, layout: &[Layout]) {
        for at in layout.iter().filter(|at| at.roll_at > 0) {
            let Some((range, table)) = self.table_at(at.low) else { continue };
            match self.frontier.is_open(range.1) {
                true => table.set_roll_at(at.roll_at),
                false => table.set_closed_at(at.roll_at),
            }
        }
    }

    /// A space begins with an empty table as large as its options say, and they may have changed
    /// since the log began.
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

    /// Whether [`Space::maintain`] has something to do. Cheap.
    pub fn wants_maintenance(&self) -> bool {
        let pairs = self.outlier_pairs.load(SeqCst);
        let early = pairs > 0
            && (self.frontier.should_advance(pairs) || self.outliers.has_inside(&self.frontier));
        let tables = self.ring.load();
        let newest = tables.newest().table();
        early
            || self.due_roll().is_some()
            || self.has_too_many()
            || self.forgotten.is_due(self.horizon())
            || self.upkeep.wants_step(self.next_size(newest), needs_spare(newest))
    }

    /// One small step of background work: [`Space::move_on`], then [`Space::tidy`]. Returns whether
    /// there may be more to do.
    pub fn maintain(&self) -> bool {
        self.move_on() | self.tidy()
    }

    /// Moves some early pairs into the ring, rolls if that is due, and recycles what the options
    /// have no room for any more.
    pub fn move_on(&self) -> bool {
        let mut worked = self.take_in_early();
        if self.has_too_many() {
            let _alone = self.rolling.lock();
            self.recycle();
            worked = true;
        }
        worked | self.due_roll().is_some_and(|low| self.try_roll(low))
    }

    /// Clears and prepares some memory; drops forgotten ids of recycled tables.
    pub fn tidy(&self) -> bool {
        let swept = self.forgotten.tidy(self.horizon());
        let newest = self.ring.load().newest().table().clone();
        let (sizing, pages) = self.next_size(&newest);
        let make = || Filter::new(sizing, pages).ok();
        self.upkeep.step((sizing, pages), needs_spare(&newest), make) | swept
    }

    /// The lowest id of an open table that is to be closed.
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

    /// Opens a range for the ids that are ahead, if they are enough, and moves some pairs that it
    /// has into tables.
    pub(crate) fn take_in_early(&self) -> bool {
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
            let Some(held) = early.as_ref().filter(|_| pairs < MOVED_AT_ONCE) else { return };
            let some: Vec<u128> = held.read().iter().copied().take(MOVED_AT_ONCE - pairs).collect();
            let before = held.read().len();
            // Where there is no memory for a table they stay.
            let _ = self.settle(id, held, some);
            pairs += before - held.read().len();
            early.take_if(|held| held.read().is_empty());
        });
        pairs > 0
    }
}

/// A table that is half full will need a successor.
fn needs_spare(newest: &Table) -> bool {
    newest.pairs() >= newest.roll_at() / 2
}
