//! When the ring changes: rolling, recycling, taking early ids in; and the background work that goes with it.
//!
//! **Rolling.** The newest table is closed when its pairs reach capacity / (1 + late), where `late` is the measured ratio of the pairs that
//! came after a table was closed to those that came before (30 % until there is a measurement), so that late pairs fit, too. The first
//! table of a space is small, and each next one twice as large, up to `pairs_per_table`: a small space costs little.
//!
//! **Recycling.** The ring keeps filters for `max_tables * pairs_per_table` pairs; when a roll brings more, the oldest tables go.
//! Extensions do not count: what is sent for one id extends its table, and costs memory up to the limit, but moves no horizon (P4).
//!
//! **Early ids.** The frontier (see `rolling`) decides which ids are normal, from those that are aside. When the aside is full of bad ids,
//! good ones that leap ahead could no more get in to be counted; so those that are turned away are counted, too.

use crate::Error;
use crate::filter::Filter;
use crate::revoked::Hashes;
use crate::space::Space;
use crate::stats::Layout;
use crate::table::Table;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Late pairs by early pairs, until measured.
const LATE_AT_START: f64 = 0.3;
/// The measured ratio is taken for no less and no more than this.
const LATE: std::ops::RangeInclusive<f64> = 0.05..=1.0;
/// The late pairs of so many tables are looked at.
const TABLES_ASKED: usize = 5;
/// Room is left for so many times the late pairs that were measured.
const HEADROOM: f64 = 1.08;
/// So many ids that found the aside full decide together whether the frontier advances.
const TURNED_AWAY: usize = 512;
/// Pairs that leave the aside in one step, while its mutex is held; but those of one id go together.
const MOVED_AT_ONCE: usize = 1024;

impl Space {
    /// Closes the newest table, if it still starts at `low`, and opens one above all normal ids, or at `at` if that is higher.
    pub(crate) fn roll(&self, low: u64, at: Option<Layout>) -> bool {
        let Some(_rolling) = self.rolling.try_lock() else { return false };
        let boundary = || match (self.frontier.high(), at) {
            (Some(high), at) => Some(high.checked_add(1)?.max(at.map_or(0, |at| at.low))),
            (None, at) => at.map(|at| at.low),
        };
        let newest = self.ring.load().newest().clone();
        if newest.slot().low() != low || boundary().is_none_or(|boundary| boundary <= low) {
            return false;
        }
        let newest = newest.table();
        let pages = at.map_or(self.next_pages(newest), |at| at.pages.clamp(1, self.pages_per_table));
        let spare = self.upkeep.try_lock().and_then(|mut upkeep| upkeep.take_spare(pages));
        // Fresh memory is instant, if not as fast at first.
        let Some(filter) = spare.or_else(|| Filter::new(self.sizing, pages).ok()) else { return false };
        let next = Arc::new(Table::new(self.options.false_positive_rate, filter));
        match self.ring.roll(low, boundary, next) {
            Ok(boundary) => {
                newest.close();
                if low > 0 {
                    // The first table begins at 0, wherever its ids do.
                    self.frontier.widen(boundary - low);
                }
                self.changes.fetch_add(1, SeqCst);
            }
            Err(next) => {
                if let Ok(next) = Arc::try_unwrap(next) {
                    self.upkeep.lock().keep_spare(next.into_first_filter());
                }
                return false;
            }
        }
        if at.is_none() {
            self.recycle();
        }
        self.estimate();
        true
    }

    /// Recycles the oldest tables, while there are more than the options say (P4).
    fn recycle(&self) {
        loop {
            let tables = self.ring.load();
            let pages: usize = tables.entries().iter().map(|entry| entry.table().pages()).sum();
            if pages <= self.max_pages() {
                return;
            }
            let Some(oldest) = self.ring.recycle() else { return };
            self.changes.fetch_add(1, SeqCst);
            self.upkeep.lock().retire(oldest.table().clone());
        }
    }

    pub(crate) fn next_pages(&self, newest: &Table) -> usize {
        newest.pages().saturating_mul(2).min(self.pages_per_table)
    }

    /// Decides at how many pairs the newest table is to be closed, from how many came late to the others: as many as to the second of
    /// the last five in this respect. So neither one that got an import decides for all, nor those that are not over yet.
    pub(crate) fn estimate(&self) {
        let tables = self.ring.load();
        let closed = tables.entries().iter().rev().skip(1).map(|entry| entry.table()).filter(|table| table.early() > 0);
        let mut late: Vec<f64> = closed
            .map(|table| table.pairs().saturating_sub(table.early()) as f64 / table.early() as f64)
            .take(1 + TABLES_ASKED)
            .collect();
        if late.len() > 1 {
            late.remove(0); // the youngest has only begun to get late pairs
        }
        late.sort_unstable_by(|a, b| b.total_cmp(a));
        let measured = late.get(usize::from(late.len() > 2)).map_or(LATE_AT_START, |late| late * HEADROOM);
        let newest = tables.newest().table();
        let roll_at = newest.capacity() as f64 / (1.0 + measured.clamp(*LATE.start(), *LATE.end()));
        newest.set_roll_at((roll_at as u64).max(1));
    }

    /// Closes the newest table now, if it has any pair. Returns whether it did.
    pub fn roll_now(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().pairs() > 0 && self.roll(newest.slot().low(), None)
    }

    /// How often the ring has changed: when it differs from what it was, [`Space::layout`] is to be logged.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// The tables' places, oldest first.
    pub fn layout(&self) -> Vec<Layout> {
        let tables = self.ring.load();
        tables.entries().iter().map(|entry| Layout { low: entry.slot().low(), pages: entry.table().pages() }).collect()
    }

    /// Makes the ring what the log says it was: opens the tables that it lacks above its newest, and recycles those below
    /// the first of `layout`. May be repeated. A table opens higher than recorded if pairs above that were already put. While a log is
    /// replayed nothing else changes the ring: it would roll and recycle twice.
    pub fn put_layout(&self, layout: &[Layout]) -> Result<(), Error> {
        for &at in layout {
            let tables = self.ring.load();
            let newest = tables.newest().slot().low();
            drop(tables);
            if at.low > newest {
                self.roll(newest, Some(at));
            }
        }
        let horizon = layout.first().map_or(0, |at| at.low);
        loop {
            let tables = self.ring.load();
            let recycles = tables.entries().get(1).is_some_and(|second| second.slot().low() <= horizon);
            drop(tables);
            if !recycles {
                return Ok(());
            }
            if let Some(oldest) = self.ring.recycle() {
                self.changes.fetch_add(1, SeqCst);
                self.upkeep.lock().retire(oldest.table().clone());
            }
        }
    }

    /// Whether [`Space::maintain`] has something to do. Cheap.
    pub fn wants_maintenance(&self) -> bool {
        let pairs = self.aside_pairs.load(SeqCst);
        let early = pairs > 0
            && ((pairs < self.options.max_aside && self.frontier.should_advance(pairs))
                || self.frontier.high().is_some_and(|high| self.aside.may_hold(high)));
        let tables = self.ring.load();
        let newest = tables.newest().table();
        early
            || self.is_roll_due()
            || self
                .upkeep
                .try_lock()
                .is_some_and(|upkeep| upkeep.wants_step(self.next_pages(newest), needs_spare(newest)))
    }

    /// One small step of background work: moves early pairs into the ring, rolls, clears and prepares memory. Returns whether there
    /// may be more to do.
    pub fn maintain(&self) -> bool {
        let mut worked = self.take_in_early();
        let tables = self.ring.load();
        if self.is_roll_due() {
            worked |= self.roll(tables.newest().slot().low(), None);
        }
        drop(tables);
        let newest = self.ring.load().newest().table().clone();
        let pages = self.next_pages(&newest);
        let make = || Filter::new(self.sizing, pages).ok();
        worked | self.upkeep.lock().step(pages, needs_spare(&newest), make)
    }

    fn is_roll_due(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().is_due() && self.frontier.boundary().is_some_and(|boundary| boundary > newest.slot().low())
    }

    /// Advances the frontier to the ids that are ahead, if they say so, and moves up to 256 ids that it has reached into tables.
    pub(crate) fn take_in_early(&self) -> bool {
        let pairs = self.aside_pairs.load(SeqCst);
        if pairs == 0 {
            return false;
        }
        // When it is full those that still get in are no sample of the traffic: `turn_away` asks those that do not.
        let full = pairs >= self.options.max_aside && self.frontier.high().is_some();
        let advanced = !full && self.frontier.should_advance(pairs) && self.aside.advance(&self.frontier, Hashes::len);
        advanced || self.drain()
    }

    fn drain(&self) -> bool {
        let mut pairs = 0;
        let moved = self.aside.drain(&self.frontier, |id, early| {
            let settled = pairs < MOVED_AT_ONCE && self.settle(id, early).is_ok();
            if settled {
                self.aside_pairs.fetch_sub(early.len(), SeqCst);
                pairs += early.len();
            }
            settled
        });
        moved > 0
    }

    /// Notes an id for which the aside had no room. When many have gathered they may advance the frontier, as those aside would.
    pub(crate) fn turn_away(&self, id: u64) {
        let mut ids = self.turned_away.lock();
        ids.push(id);
        if ids.len() >= TURNED_AWAY {
            let mut ids = std::mem::take(&mut *ids);
            if self.frontier.advance(&mut ids).is_some() {
                self.drain();
            }
        }
    }
}

/// A table that is half full will need a successor.
fn needs_spare(newest: &Table) -> bool {
    newest.pairs() >= newest.roll_at() / 2
}
