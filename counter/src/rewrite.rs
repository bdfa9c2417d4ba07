//! Background work, in small steps during reads and writes: moves outliers (ids far above all
//! others) into tables, and rewrites tables that are
//! - *crowded*: more rows arrived than the table was sized for (a backfill, random ids). A crowded
//!   table grows by a fifth, or is split if it would become too large, so memory per row stays near
//!   that of a full table;
//! - *loose*: the table was closed early, sized for unknown ids, or enlarged for rows that never
//!   arrived. For an [idle](Space::settle) table, a saving of 1 % suffices;
//! - *dated*: the table has an older schema;
//! - *worn*: overflow marks (see bucket.rs) of deleted rows make misses probe further than
//!   necessary.
//!
//! Small neighbours that a split, deletions or a spill left with few rows are joined
//! ([`Space::join_small`]).
//!
//! A rewrite creates the new tables and then moves the rows one at a time (see
//! `rolling/src/ring.rs`). A space runs one rewrite at a time, so memory exceeds its steady state
//! by one table. In a full space, a loan covers this excess (see budget.rs).
//!
//! **C1** Every closed table, and every part of a rewrite, can store every id of its range. A
//! replacement of an open table can store every id that the old table could. Only a table that is
//! or was open (the newest table, or the last table of an id range, see `rolling`) may be unable to
//! store an id of its range. For such an id the space creates another table.

use crate::Error;
use crate::rewrite_state::{Rewrite, RewriteReason};
use crate::sizing::Sizing;
use crate::space::{FIRST_ROWS, Space};
use crate::table::{Table, hash_of};
use rolling::{Entry, Slot};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Approximate number of rows that one step moves, about half a millisecond of work.
const STEP_ROWS: usize = 2048;
/// Number of rows per step while no writer waits for the rewrite. Small steps yield the processor
/// to other threads sooner.
const IDLE_STEP_ROWS: usize = 256;
/// Number of rows that a writer moves when it helps with a rewrite: n / 32 writes rewrite a table
/// of n rows.
const ROWS_PER_HELP: usize = 32;
/// Number of rows whose new buckets are prefetched together.
const PREFETCH_ROWS: usize = 16;
/// A table is crowded when one row in this many is in the extend dictionary.
const CROWDED_EXTENSION_PART: u64 = 200;
/// Minimum number of rows in the extend dictionary of a crowded table. A small table has a few such
/// rows by chance.
const MIN_CROWDED_EXTENSION_ROWS: u64 = 16;
/// Load factor above which a table is crowded even if its extend dictionary is small.
const CROWDED_LOAD_FACTOR: f64 = 0.965;
/// Growth factor of a crowded table. Bytes per row exceed those of a full table by about this
/// factor during growth.
const GROWTH_FACTOR: f64 = 1.2;
/// Growth factor of a crowded [small](Space::is_small) table. With random ids, each row moves 1 /
/// (factor - 1) times in total: once, instead of five times with [`GROWTH_FACTOR`]. The wasted
/// memory is less than one full table.
const SMALL_GROWTH_FACTOR: f64 = 2.0;
/// A table with fewer rows than this is small.
const SMALL_TABLE_ROWS: u64 = 1 << 16;
/// A table is loose when a replacement sized for its rows would need less than this share of its
/// bytes. A table that has just grown must not be loose, or it would shrink and grow forever.
const OVERSIZED_SHARE: f64 = 0.8;
/// [`OVERSIZED_SHARE`] for a [small](Space::is_small) table.
const OVERSIZED_SHARE_SMALL: f64 = 0.4;
const _: () = assert!(
    OVERSIZED_SHARE * GROWTH_FACTOR < 1.0 && OVERSIZED_SHARE_SMALL * SMALL_GROWTH_FACTOR < 1.0
);
/// [`OVERSIZED_SHARE`] for an idle table, which should be as full as a table that was closed
/// because it was full. A few new rows make such a table crowded again, but the table is rewritten
/// at most twice while its number of rows grows by a twentieth.
const OVERSIZED_SHARE_IDLE: f64 = 0.99;
/// Divisor of the main segment's bytes: a mostly empty extend dictionary above this size makes the
/// table loose. A smaller dictionary would soon be needed again.
const OVERSIZED_EXTENSION_PART: u64 = 16;
/// A table is worn when this share of misses continues past buckets that have a free slot. Without
/// deletions the share is zero. In a table that was closed because it was full, one miss in nine
/// continues past a full bucket.
const STALE_MARK_SHARE: f64 = 0.15;
/// Spilled tables of at most this many slots are not shrunk.
const MIN_SHRUNK_SLOTS: u64 = 4096;
/// Number of rows for which a table is sized if its ids are far below all others.
const LOW_ID_TABLE_ROWS: u64 = 64;
/// Maximum total number of rows in tables that are joined. Writers to these tables wait for the
/// join, which takes at most a millisecond.
const MAX_JOINED_ROWS: u64 = 4096;
/// The joined table must use at most this share of the bytes of the tables that it replaces.
const MAX_JOINED_SHARE: f64 = 0.75;
/// Ratio of a joined table's slots to its rows, which leaves room for further rows.
const JOINED_SLOTS_PER_ROW: f64 = 1.25;

impl Rewrite {
    /// Ends the rewrite. The old table must be empty or contain only retired rows.
    pub(crate) fn end(&self, space: &Space) {
        self.quota.end_loan();
        space.retired.lock().push(self.old.clone());
    }
}

type Candidate<'a> = (&'a Entry<Table>, RewriteReason);

impl Space {
    /// Whether [`Space::maintain`] may have work.
    pub fn wants_maintenance(&self) -> bool {
        self.has_pending_work.load(Relaxed)
            || self.rewriting.try_lock().is_none_or(|rewrite| rewrite.is_some())
            || self.is_retiring()
            || self.retired.try_lock().is_none_or(|retired| !retired.is_empty())
            || (!self.outliers.is_empty()
                && (self.frontier.should_advance(self.outliers.len())
                    || self.outliers.has_reached_entries(&self.frontier)))
    }

    /// Performs one small step of background work, about a millisecond. Returns whether there was
    /// work; if so, the caller should call again. Any number of threads may call this function.
    /// Background work affects only memory use and speed, never the contents of the space.
    pub fn maintain(&self) -> bool {
        let drained = self.drain_outliers() > 0;
        let advanced = self.frontier.should_advance(self.outliers.len()) && self.advance();
        self.frontier.join_idle();
        let retired = self.retire_step();
        let freed = self.free_retired();
        self.rewrite_step(STEP_ROWS) || drained || advanced || retired || freed
    }

    /// Frees replaced tables that have no more readers. Returns whether it freed a table.
    fn free_retired(&self) -> bool {
        let mut retired = self.retired.lock();
        // With a count of one, no other thread can obtain a reference.
        let (free, held) = retired.drain(..).partition(|slot| Arc::strong_count(slot) == 1);
        *retired = held;
        drop(retired);
        let free: Vec<Arc<Slot<Table>>> = free;
        !free.is_empty()
    }

    /// Whether the last background step was for a crowded table, whose writers wait for the
    /// rewrite. If not, the caller should yield the processor after each step.
    pub fn has_waiters(&self) -> bool {
        self.has_waiters.load(Relaxed)
    }

    /// Marks tables that hardly changed since the last call as idle, so that [`Space::maintain`]
    /// shrinks them to fit their rows. The interval between calls should be long, as an idle table
    /// may be rewritten twice per interval.
    pub fn settle(&self) {
        self.ring.load().entries().iter().for_each(|entry| entry.table().settle());
        // Deletions do not set `has_pending_work`, so set it here to find tables that deletions
        // have emptied.
        self.has_pending_work.store(true, Relaxed);
    }

    /// Performs a small rewrite step on behalf of a writer, unless another thread performs one or
    /// memory is short.
    pub(crate) fn help(&self) {
        if self.budget.used() < self.usage_at_refusal.load(Relaxed) {
            self.rewrite_step(ROWS_PER_HELP);
        }
    }

    /// Makes room for a writer whose table cannot be extended: performs a step of background work,
    /// or yields while another thread does. Returns `false` if there is no work or no memory.
    pub(crate) fn free_memory_by_rewrite(&self) -> bool {
        if self.rewriting.is_locked() {
            std::thread::yield_now();
            return true;
        }
        self.has_pending_work.store(true, Relaxed);
        self.rewrite_step(STEP_ROWS)
    }

    fn rewrite_step(&self, rows: usize) -> bool {
        let Some(mut rewriting) = self.rewriting.try_lock() else { return false };
        if rewriting.is_none() {
            if !self.has_pending_work.swap(false, Relaxed) {
                return false;
            }
            match self.begin_rewrite() {
                Ok(None) if self.join_small() => {
                    self.has_pending_work.store(true, Relaxed);
                    return true;
                }
                Ok(rewrite) => *rewriting = rewrite,
                // There is no memory for the rewrite. The next call of [`Space::maintain`] that
                // finds pending work retries the rewrite.
                Err(_) => {
                    self.usage_at_refusal.store(self.budget.used(), Relaxed);
                    return false;
                }
            }
            self.usage_at_refusal.store(u64::MAX, Relaxed);
        }
        let Some(rewrite) = &mut *rewriting else { return false };
        let has_waiters = rewrite.reason == RewriteReason::Crowded;
        self.has_waiters.store(has_waiters, Relaxed);
        match self.move_rows(rewrite, if has_waiters { rows } else { rows.min(IDLE_STEP_ROWS) }) {
            Ok(false) => true,
            Ok(true) => {
                *rewriting = None;
                self.has_waiters.store(false, Relaxed);
                self.has_pending_work.store(true, Relaxed);
                true
            }
            // An unfinished rewrite is a valid state. The rewrite continues when memory is
            // available.
            Err(_) => {
                self.has_waiters.store(false, Relaxed);
                false
            }
        }
    }

    /// Starts the most useful rewrite, if any.
    fn begin_rewrite(&self) -> Result<Option<Rewrite>, Error> {
        // Exclude rollovers. A rollover would close the newest table at the end of the replaced
        // table's span. Ids between the spans of the old table and its replacement would have no
        // table, and their writers would loop.
        let _rolling = self.rolling.lock();
        let tables = self.ring.load();
        let whole = || tables.entries().iter().filter(|entry| entry.drains().is_none());
        let mut wanted: Vec<Candidate<'_>> =
            whole().filter_map(|entry| Some((entry, self.reason(entry)?))).collect();
        wanted.sort_by_key(|(entry, reason)| {
            Reverse((*reason == RewriteReason::Crowded, entry.table().extend_rows()))
        });
        // Check lazily, because a check resets the table's state. A loose or worn table that is not
        // rewritten now would not be checked again soon.
        let loose = whole()
            .filter(|entry| self.is_oversized(entry))
            .map(|entry| (entry, RewriteReason::Oversized));
        let worn = whole()
            .filter(|entry| entry.table().has_stale_marks(STALE_MARK_SHARE))
            .map(|entry| (entry, RewriteReason::StaleMarks));
        let mut refused = None;
        for (entry, reason) in wanted.into_iter().chain(loose).chain(worn) {
            let parts = self.parts(entry, reason);
            match self.replace(entry, &parts, reason) {
                Ok(Some(rewrite)) => return Ok(Some(rewrite)),
                Ok(None) => {}
                // Another candidate may need less memory, or may free memory.
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Starts replacing a table by several parts. Each part is given by its lowest id and its
    /// sizing.
    fn replace(
        &self,
        entry: &Entry<Table>,
        parts: &[(u64, Sizing)],
        reason: RewriteReason,
    ) -> Result<Option<Rewrite>, Error> {
        let (schema, low) = (self.schema(), entry.slot().low());
        let (old, new) =
            (entry.table().bytes(), parts.iter().map(|part| part.1.bytes(&schema)).sum::<u64>());
        // The loan includes the old table's extend and aux dictionaries, whose entries move to the
        // new tables.
        let lent =
            if new <= entry.table().main_bytes() + entry.table().extend_bytes() { old } else { 0 };
        let quota = self.budget.quota(lent);
        let tables = parts
            .iter()
            .map(|(low, sizing)| Ok((*low, self.new_table(sizing, schema.clone(), &quota)?)));
        let tables = tables.collect::<Result<Vec<_>, Error>>()?;
        Ok(self.ring.rewrite(low, tables).ok().map(|old| Rewrite {
            old,
            next_bucket: 0,
            reason,
            quota,
        }))
    }

    /// Rewrites the mostly empty closed tables that begin in `low..=last`, synchronously, after a
    /// spill.
    pub(crate) fn shrink(&self, low: u64, last: u64) -> Result<(), Error> {
        let mut rewriting = self.rewriting.lock();
        if let Some(rewrite) = &mut *rewriting {
            while !self.move_rows(rewrite, usize::MAX)? {}
        }
        *rewriting = None;
        let lows: Vec<u64> = {
            let tables = self.ring.load();
            let within =
                |e: &&Entry<Table>| (low..=last).contains(&e.slot().low()) && !self.is_open(e);
            let roomy = |e: &&Entry<Table>| {
                e.table().rows() * 2 < e.table().slots() && e.table().slots() > MIN_SHRUNK_SLOTS
            };
            tables.entries().iter().filter(within).filter(roomy).map(|e| e.slot().low()).collect()
        };
        for low in lows {
            let tables = self.ring.load();
            let Some(entry) = tables.find(low).filter(|e| e.slot().low() == low) else { continue };
            let rows = (entry.table().rows() * 3 / 2).max(LOW_ID_TABLE_ROWS);
            let sizing = Sizing::new(&self.schema(), low, entry.slot().last(), rows);
            let Some(rewrite) = self.replace(entry, &[(low, sizing)], RewriteReason::Oversized)?
            else {
                continue;
            };
            drop(tables);
            let rewrite = rewriting.insert(rewrite);
            while !self.move_rows(rewrite, usize::MAX)? {}
            *rewriting = None;
            self.free_retired();
        }
        Ok(())
    }

    /// Joins one sequence of small neighbouring tables. Returns whether there was such a sequence.
    /// Schema changes split tables, and spills empty them. The fixed bytes of such tables would
    /// dominate in a space with a small limit. The caller holds `rewriting`.
    fn join_small(&self) -> bool {
        let most = MAX_JOINED_ROWS.min(self.rows_per_table());
        let tables = self.ring.load_full();
        let (mut run, mut rows) = (Vec::<&Entry<Table>>::new(), 0);
        for entry in tables.entries() {
            let (low, last, more) = (entry.slot().low(), entry.slot().last(), entry.table().rows());
            if self.is_open(entry) || entry.drains().is_some() || more > most {
                if self.join(&run) {
                    return true;
                }
                run.clear();
                rows = 0;
                continue;
            }
            let begins = run.first().map_or(low, |first| first.slot().low());
            let divides = self.below.get().is_some_and(|below| below.divides(begins, last));
            if rows + more > most || divides {
                if self.join(&run) {
                    return true;
                }
                run.clear();
                rows = 0;
            }
            run.push(entry);
            rows += more;
        }
        self.join(&run)
    }

    /// Joins these neighbours if joining saves enough memory and there is memory for the joined
    /// table.
    fn join(&self, run: &[&Entry<Table>]) -> bool {
        let [first, .., end] = run else { return false };
        let (low, last) = (first.slot().low(), end.slot().last());
        let schema = self.schema();
        let rows =
            run.iter().map(|entry| entry.table().rows()).sum::<u64>() as f64 * JOINED_SLOTS_PER_ROW;
        let sizing = Sizing::new(&schema, low, last, (rows as u64).max(LOW_ID_TABLE_ROWS));
        let old = run.iter().map(|entry| entry.table().bytes()).sum::<u64>();
        let new = sizing.bytes(&schema) + Table::FIXED_BYTES;
        if new as f64 > MAX_JOINED_SHARE * old as f64 {
            return false;
        }
        let quota = self.budget.quota(old);
        let Ok(table) = self.new_table(&sizing, schema, &quota) else { return false };
        let ids_of = |table: &Table| {
            let (mut room, mut ids) = (Vec::new(), Vec::new());
            for bucket in 0..table.buckets() {
                table.visit(bucket, 0, 0, &mut room, |id, _, _| ids.push(id));
            }
            ids
        };
        let copy = |olds: &[Arc<Slot<Table>>], new: &Table| {
            olds.iter().map(|slot| slot.table()).try_for_each(|old| {
                ids_of(old).into_iter().try_for_each(|id| self.copy_row(id, old, new).map(drop))
            })
        };
        let clear = |olds: &[Arc<Slot<Table>>]| {
            for table in olds.iter().map(|slot| slot.table()) {
                ids_of(table).into_iter().for_each(|id| {
                    if let Some(at) = table.locate(id) {
                        table.delete(id, at);
                    }
                });
            }
        };
        let Ok(Some(olds)) = self.ring.join((low, last), table, copy, clear) else { return false };
        quota.end_loan();
        self.retired.lock().extend(olds);
        true
    }

    /// Returns the reason to rewrite a table, using cheap checks only.
    fn reason(&self, entry: &Entry<Table>) -> Option<RewriteReason> {
        let table = entry.table();
        if self.is_crowded(entry) {
            return Some(RewriteReason::Crowded);
        }
        // In a table with the current schema, every field that is not dropped has inline bits. A
        // value of a field without inline bits was written by a writer that had not yet seen the
        // field dropped.
        (**table.schema() != *self.schema() || table.has_non_inline_entries())
            .then_some(RewriteReason::OutdatedLayout)
    }

    /// Whether a rewrite would free memory of a table. Computes the saving only if the table is
    /// idle, much has changed, or memory is short.
    fn is_oversized(&self, entry: &Entry<Table>) -> bool {
        let table = entry.table();
        let fills = |most: f64| {
            table.rows() as f64 >= most * table.roll_at() as f64 && !is_idle_extension(table)
        };
        let rests = table.take_idle_flag() && !fills(OVERSIZED_SHARE_IDLE);
        // While memory is short, a shrunk table cannot grow back, so a smaller saving suffices.
        let needed = self.budget.is_short() && !fills(OVERSIZED_SHARE);
        if self.is_open(entry) || !(table.review() | rests | needed) {
            return false;
        }
        let loose = match rests {
            true => OVERSIZED_SHARE_IDLE,
            false if self.is_small(table.rows()) && !needed => OVERSIZED_SHARE_SMALL,
            false => OVERSIZED_SHARE,
        };
        self.tight_share(entry) < loose
    }

    /// Returns the share of a table's bytes that a replacement sized for its rows would need.
    fn tight_share(&self, entry: &Entry<Table>) -> f64 {
        let schema = self.schema();
        let tight: u64 = self
            .parts(entry, RewriteReason::Oversized)
            .iter()
            .map(|(_, sizing)| sizing.bytes(&schema))
            .sum();
        let (main, extend) = (entry.table().main_bytes(), entry.table().extend_bytes());
        tight as f64 / (main + if is_idle_extension(entry.table()) { extend } else { 0 }) as f64
    }

    /// Whether a table of `rows` rows may waste memory, because the table is small or the whole
    /// space fits in one full table.
    fn is_small(&self, rows: u64) -> bool {
        rows < SMALL_TABLE_ROWS || self.rows() <= self.rows_per_table()
    }

    /// Plans the replacement of a table: lowest id and sizing of each part.
    fn parts(&self, entry: &Entry<Table>, reason: RewriteReason) -> Vec<(u64, Sizing)> {
        let table = entry.table();
        let schema = self.schema();
        let rows = table.rows();
        let (low, last) = (entry.slot().low(), entry.slot().last());
        let newest = self.is_open(entry);
        let whole = |rows| vec![(low, Sizing::new(&schema, low, last, rows))];
        if newest && (reason != RewriteReason::Crowded || self.rolls(entry)) {
            // The table will receive more rows, so keep at least its previous size.
            let rows = rows.max(table.roll_at());
            return vec![(low, Sizing::new(&schema, low, table.span().1.max(low), rows))];
        }
        let sample = table.sample(1024);
        let (Some(&first), Some(&highest)) = (sample.first(), sample.last()) else {
            return whole(LOW_ID_TABLE_ROWS);
        };
        let most = self.rows_per_table() as f64;
        let now = rows as f64;
        let target = match reason {
            // Size the replacement for at most a full table, so that it is not loose once the space
            // has grown.
            RewriteReason::Crowded if self.is_small(rows) => {
                (now * SMALL_GROWTH_FACTOR).min(most).max(now * GROWTH_FACTOR)
            }
            RewriteReason::Crowded => now * GROWTH_FACTOR,
            RewriteReason::Oversized
            | RewriteReason::OutdatedLayout
            | RewriteReason::StaleMarks => now,
        };
        let pieces =
            if target <= most * 1.25 { 1 } else { (target / most).ceil().max(2.0) as usize };
        // A space with unordered ids: the main part ends a little above the highest known id. A
        // small table covers the ids above that (C1).
        let end = if newest {
            let high = table.high().max(highest);
            high.saturating_add((high - first.max(low)) / 4).min(last)
        } else {
            last
        };
        let mut lows = vec![low];
        // In the first table of a space, most ids are close together, far above the lowest possible
        // id. A separate small part covers the gap below.
        let start = first.saturating_sub((highest - first) / 16 + 1);
        if start > low && start - low > (end - start) / 2 {
            lows.push(start);
        }
        let strays = lows.len() - 1;
        for piece in 1..pieces {
            let cut = sample[piece * sample.len() / pieces];
            if cut > lows[lows.len() - 1] {
                lows.push(cut);
            }
        }
        let rows = ((target / (lows.len() - strays) as f64).ceil() as u64).max(LOW_ID_TABLE_ROWS);
        let above = lows.len();
        if newest && end < last {
            lows.push(end + 1);
        }
        let sizing = |i: usize| {
            let last = lows.get(i + 1).map_or(last, |next| next - 1);
            let rows = match i {
                _ if i < strays => LOW_ID_TABLE_ROWS,
                _ if i == above => FIRST_ROWS.min(self.rows_per_table()),
                _ => rows,
            };
            (lows[i], Sizing::new(&schema, lows[i], last, rows))
        };
        (0..lows.len()).map(sizing).collect()
    }

    /// Moves some rows of a rewrite. Returns `true` when it is finished.
    fn move_rows(&self, rewrite: &mut Rewrite, most: usize) -> Result<bool, Error> {
        let old = rewrite.old.table();
        let (mut room, mut ids) = (Vec::new(), Vec::new());
        while rewrite.next_bucket < old.buckets() && ids.len() < most {
            old.visit(rewrite.next_bucket, 0, 0, &mut room, |id, _, _| ids.push(id));
            rewrite.next_bucket += 1;
        }
        let tables = self.ring.load();
        for (i, &id) in ids.iter().enumerate() {
            // The destinations are scattered, so prefetch several at once.
            if i % PREFETCH_ROWS == 0 {
                for &id in &ids[i..ids.len().min(i + PREFETCH_ROWS)] {
                    let table = tables.find(id).map(|entry| entry.table());
                    if let Some((table, home)) = table.and_then(|t| Some((t, t.home(id)?))) {
                        table.prefetch(home);
                    }
                }
            }
            let moved = self.ring.write(id, hash_of(id), |entry| match entry.drains() {
                Some(drained) if std::ptr::eq(drained, &*rewrite.old) => {
                    self.move_row(id, old, entry.table())
                }
                _ => Ok(()),
            });
            if let Some(Err(error)) = moved {
                rewrite.next_bucket = 0;
                return Err(error);
            }
        }
        if rewrite.next_bucket < old.buckets() {
            return Ok(false);
        }
        if old.rows() > 0 {
            // A writer is still changing a row, or failed to move a row.
            rewrite.next_bucket = 0;
            return Ok(false);
        }
        self.ring.finish(&rewrite.old);
        rewrite.end(self);
        Ok(true)
    }

    /// Whether more rows arrived in a table's range than it was sized for.
    pub(crate) fn is_crowded(&self, entry: &Entry<Table>) -> bool {
        let table = entry.table();
        let (rows, extend) = (table.rows(), table.extend_rows());
        let crowded = extend >= MIN_CROWDED_EXTENSION_ROWS.max(rows / CROWDED_EXTENSION_PART)
            || rows as f64 > CROWDED_LOAD_FACTOR * table.slots() as f64;
        crowded && !self.rolls(entry)
    }

    /// Whether a table is open and receives ids in order. When such a table is full, the space
    /// closes it and creates the next table. A table that contains the last id of its range cannot
    /// be closed.
    pub(crate) fn rolls(&self, entry: &Entry<Table>) -> bool {
        let last = entry.slot().last();
        entry.table().is_ascending() && self.is_open(entry) && {
            self.frontier.high().is_none() || self.frontier.boundary(last).is_some()
        }
    }

    /// Whether new ids arrive in a table: it is the newest table, or another range of ids begins
    /// above it.
    pub(crate) fn is_open(&self, entry: &Entry<Table>) -> bool {
        self.frontier.is_open(entry.slot().last())
    }
}

/// Whether a large extend dictionary is mostly empty.
fn is_idle_extension(table: &Table) -> bool {
    table.extend_bytes() > table.main_bytes() / OVERSIZED_EXTENSION_PART
        && table.extend_rows() < table.extend_slots() / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alteration, Bounds, Change, Options, Schema};
    use std::sync::mpsc;
    use std::time::Duration;

    /// The rewriting thread may be busy with another table for a long time.
    #[test]
    fn a_table_without_rewrites_takes_many_times_its_rows() {
        let schema = Schema::parse("a:60 b:60").unwrap();
        let space = Space::new(Options { rows_per_table: 64, ..Options::new(schema) }).unwrap();
        let busy = space.rewriting.lock();
        let mut out = vec![];
        let rows = if cfg!(miri) { 400 } else { 20_000u64 };
        let ids: Vec<u64> =
            (1..rows).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30) + 1).collect();
        for &id in &ids {
            space.add(id, &[Change { field: 0, delta: 1 }], &Bounds::default(), &mut out).unwrap();
        }
        let crowded = space.tables().iter().map(|t| t.extend_rows).max();
        assert!(crowded > Some(rows / 2), "{crowded:?}");
        drop(busy);
        // A writer that finds no room performs the rewrite itself.
        let mut steps = 0;
        while space.free_memory_by_rewrite() {
            steps += 1;
        }
        let left: u64 = space.tables().iter().map(|t| t.extend_rows).sum();
        assert!(
            steps > if cfg!(miri) { 0 } else { 3 } && left < rows / 20,
            "{steps} steps, {left} rows left"
        );
        let mut row = [0; 2];
        assert!(ids.iter().all(|&id| space.get(id, &mut row).unwrap() && row[0] >= 1));
        let (mut values, mut found) = (vec![], vec![]);
        space.get_batch(&ids, &mut values, &mut found).unwrap();
        assert!(found.iter().all(|f| *f) && values.chunks(2).all(|row| row[0] >= 1));
    }

    /// During a rollover, a rewrite must not replace the newest table by a table with a shorter
    /// span. Ids between the two spans would have no table, and their writers would loop.
    #[test]
    fn newest_table_is_not_replaced_during_a_roll() {
        let space = Space::new(Options::new(Schema::parse("a:12").unwrap())).unwrap();
        space.set(7, &[(0, 1)]).unwrap();
        // The only table is now dated and will be replaced.
        space
            .alter(&Alteration::Add { name: "b".to_owned(), width: 3, bounds: Default::default() })
            .unwrap();
        let newest = || space.ring.load().newest().slot() as *const Slot<Table> as usize;
        let before = newest();
        std::thread::scope(|s| {
            let rolling = space.rolling.lock();
            let rewrite = s.spawn(|| space.maintain());
            // Give a faulty rewrite time to start; a correct rewrite is blocked.
            while !space.rewriting.is_locked() && !rewrite.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(newest(), before, "replaced while another thread rolls");
            assert!(!rewrite.is_finished());
            drop(rolling);
            assert!(rewrite.join().unwrap());
        });
        assert_ne!(newest(), before, "nothing to rewrite, the test proves nothing");
    }

    /// A write to a new field succeeds as soon as the schema has its name.
    #[test]
    fn a_field_that_has_a_name_can_be_written() {
        let space = space_of("a:12", 1000);
        let before = space.plain.load(Relaxed);
        space
            .alter(&Alteration::Add { name: "b".to_owned(), width: 3, bounds: Default::default() })
            .unwrap();
        space.plain.store(before, Relaxed);
        space.set(7, &[(1, 5)]).unwrap();
        assert!(matches!(space.set(7, &[(2, 5)]), Err(Error::NoField(_))));
    }

    /// After a writer has found no room for its id, the newest table is replaced by a table with a
    /// longer span.
    #[test]
    fn no_table_is_opened_for_an_id_that_has_a_place_by_now() {
        let space = space_of("a:12", 1000);
        (0..100u64).for_each(|id| _ = space.set(id * 10, &[(0, 1)]).unwrap());
        let newest = || {
            (space.ring.load().newest().slot().low(), space.ring.load().newest().table().span().1)
        };
        let before = newest();
        space.open_for(before.0, before.0 + 5).unwrap();
        assert_eq!(newest(), before, "opened a range although the id had a table");
    }

    fn space_of(schema: &str, rows_per_table: u64) -> Space {
        Space::new(Options { rows_per_table, ..Options::new(Schema::parse(schema).unwrap()) })
            .unwrap()
    }

    /// A rewrite waits for writers inside the table, but readers of present and missing rows do not
    /// wait.
    #[test]
    fn no_reader_waits_for_a_rewrite_to_begin() {
        let space = space_of("a:12", 1000);
        (0..100u64).for_each(|id| _ = space.set(id * 10, &[(0, 1)]).unwrap());
        space
            .alter(&Alteration::Add { name: "b".to_owned(), width: 3, bounds: Default::default() })
            .unwrap();
        std::thread::scope(|s| {
            // Dropping the sender releases the writer, even if the test fails.
            let ((entered, inside), (leave, left)) = (mpsc::channel(), mpsc::channel::<()>());
            let space = &space;
            s.spawn(move || {
                space.ring.write(7, 0, |_| {
                    entered.send(()).unwrap();
                    left.recv().unwrap_err();
                })
            });
            inside.recv().unwrap();
            let before = space.ring.load_full();
            let rewrite = s.spawn(|| space.maintain());
            // Wait until the rewrite has closed the table.
            while before.newest().slot().is_open() {
                assert!(!rewrite.is_finished());
                std::thread::yield_now();
            }
            let (done, looked) = mpsc::channel();
            s.spawn(move || {
                let (ids, mut rows, mut found) = ((0..1000).collect::<Vec<u64>>(), vec![], vec![]);
                space.get_batch(&ids, &mut rows, &mut found).unwrap();
                let right = |&id: &u64| {
                    space.exists(id).unwrap() == (id % 10 == 0)
                        && found[id as usize] == (id % 10 == 0)
                };
                let _ = done.send(ids.iter().all(right));
            });
            assert_eq!(looked.recv_timeout(Duration::from_secs(60)), Ok(true));
            assert!(!rewrite.is_finished());
            drop(leave);
            assert!(rewrite.join().unwrap());
        });
    }

    /// A reader that releases the last reference must not pay for unmapping the table.
    #[test]
    fn a_replaced_table_is_freed_in_the_background() {
        let space = space_of("a:12", 1000);
        (0..100u64).for_each(|id| _ = space.set(id * 10, &[(0, 1)]).unwrap());
        let before = space.memory_bytes();
        space
            .alter(&Alteration::Add { name: "b".to_owned(), width: 3, bounds: Default::default() })
            .unwrap();
        let tables = space.ring.load_full();
        while space.maintain() {}
        assert!(space.tables()[0].schema == "a:12 b:3" && space.wants_maintenance());
        assert!(
            space.memory_bytes() >= 2 * before - 8192,
            "two tables while a reader holds the old one"
        );
        drop(tables);
        assert!(space.memory_bytes() >= 2 * before - 8192, "still two after the reader is done");
        assert!(space.maintain() && space.memory_bytes() < before + 8192);
        assert!(!space.maintain() && !space.wants_maintenance());
    }

    /// A backend without rows, whose files begin at the given ids.
    struct Fences(Vec<u64>);

    impl crate::ColdBackend for Fences {
        fn get(&self, _: u64, _: &mut [i64]) -> Result<bool, crate::Unreadable> {
            Ok(false)
        }
        fn at_hand(&self, _: u64, _: &mut [i64]) -> Option<bool> {
            Some(false)
        }
        fn fetch(&self, _: u64) -> Result<(), crate::Unreadable> {
            Ok(())
        }
        fn divides(&self, low: u64, last: u64) -> bool {
            self.0.iter().any(|&fence| low < fence && fence <= last)
        }
    }

    fn maintain_until_idle(space: &Space) {
        for _ in 0..3 {
            space.settle();
            while space.maintain() {}
        }
    }

    /// Tables that are small after a split, a spill or deletions are joined, but not across the
    /// start of a file.
    #[test]
    fn small_neighbours_become_one_table() {
        for fences in [vec![], vec![60_000, 120_000]] {
            let space = space_of("a:12 b:8", 1000);
            let ids: Vec<u64> = (0..20_000).map(|i| i * 10).collect();
            ids.iter().for_each(|&id| _ = space.set(id, &[(0, 1), (1, id as i64)]).unwrap());
            maintain_until_idle(&space);
            let (before, tables) = (space.memory_bytes(), space.ranges().len());
            let (kept, gone): (Vec<u64>, Vec<u64>) = ids.iter().partition(|&&id| id % 500 == 0);
            gone.iter().for_each(|&id| assert!(space.delete(id).unwrap()));
            space.attach(Box::new(Fences(fences.clone())), 0, None);
            maintain_until_idle(&space);
            let ranges = space.ranges();
            assert!(
                tables > 15 && ranges.len() <= 3 + 2 * fences.len(),
                "{tables}, then {ranges:?}"
            );
            assert!(space.memory_bytes() < before / 8, "{} of {before}", space.memory_bytes());
            // A joined table does not span the start of a file.
            let widest = ranges.iter().filter(|r| r.last < u64::MAX).map(|r| r.last - r.low).max();
            assert_eq!(widest < Some(100_000), !fences.is_empty(), "{ranges:?}");
            let mut row = [0; 2];
            assert!(
                kept.iter().all(|&id| space.get(id, &mut row).unwrap() && row == [1, id as i64])
            );
            assert!(gone.iter().all(|&id| !space.exists(id).unwrap()));
            assert_eq!(space.rows(), kept.len() as u64);
        }
    }

    /// Two writers increment rows while tables are emptied, joined and filled.
    #[test]
    fn no_increment_is_lost_while_tables_are_joined() {
        use std::sync::atomic::AtomicU64;
        const EACH: u64 = 100;
        let rounds = if cfg!(miri) { 2 } else { 40 };
        let space = space_of("a:12", 300);
        let high = AtomicU64::new(0);
        let counted = std::thread::scope(|scope| {
            let write = |seed| {
                let (space, high) = (&space, &high);
                move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let (mut counted, mut out) = (vec![0i64; 40 * 3000 / EACH as usize], vec![]);
                    loop {
                        let high = high.load(Relaxed);
                        if high == u64::MAX {
                            return counted;
                        }
                        let Some(id) = (high > 0).then(|| rng.u64(..high) / EACH * EACH) else {
                            std::thread::yield_now();
                            continue;
                        };
                        let one = [Change { field: 0, delta: 1 }];
                        space.add(id, &one, &Bounds::default(), &mut out).unwrap();
                        counted[(id / EACH) as usize] += 1;
                    }
                }
            };
            let writers = [1, 2].map(|seed| scope.spawn(write(seed)));
            for round in 0..rounds {
                let ids = round * 3000..(round + 1) * 3000;
                ids.clone().for_each(|id| _ = space.set(id, &[(0, 5)]).unwrap());
                high.store(ids.end, Relaxed);
                ids.filter(|id| id % EACH > 0).for_each(|id| assert!(space.delete(id).unwrap()));
                space.settle();
                while space.maintain() {}
            }
            high.store(u64::MAX, Relaxed);
            writers.map(|writer| writer.join().unwrap())
        });
        maintain_until_idle(&space);
        assert!(space.ranges().len() <= 16, "{} tables", space.ranges().len());
        let mut row = [0];
        for id in (0..rounds * 3000).step_by(EACH as usize) {
            let at = (id / EACH) as usize;
            assert!(space.get(id, &mut row).unwrap());
            assert_eq!(row[0], 5 + counted[0][at] + counted[1][at], "row {id}");
        }
    }

    /// Deletions leave a large, empty extend dictionary.
    #[test]
    fn an_emptied_extend_dictionary_is_given_back() {
        let space = space_of("a:60 b:60", 64);
        let busy = space.rewriting.lock();
        let rows = if cfg!(miri) { 400 } else { 20_000u64 };
        let ids: Vec<u64> =
            (1..rows).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30) + 1).collect();
        ids.iter().for_each(|&id| _ = space.set(id, &[(0, 1)]).unwrap());
        ids[30..].iter().for_each(|&id| assert!(space.delete(id).unwrap()));
        drop(busy);
        let full = space.memory_bytes();
        for _ in 0..3 {
            space.settle();
            while space.maintain() {}
        }
        let (left, tables) = (space.memory_bytes(), space.tables().len() as u64);
        assert!(
            left < full && left < 16_000 * tables,
            "{left} of {full} bytes for 30 rows: {:#?}",
            space.tables()
        );
        assert!(ids[..30].iter().all(|&id| space.exists(id).unwrap()));
    }

    /// A writer with the old schema stores a value of a field that was just dropped. The value is
    /// harmless, but while it exists, every reader of a field without inline bits must search the
    /// aux dictionary.
    #[test]
    fn a_value_that_came_after_its_field_was_dropped_is_thrown_away() {
        let space = space_of("a:12 b:8", 1000);
        (0..100u64).for_each(|id| _ = space.set(id * 10, &[(0, 1), (1, 2)]).unwrap());
        space.alter(&Alteration::Drop { name: "b".to_owned() }).unwrap();
        while space.maintain() {}
        let outside = || {
            space.ring.load().entries().iter().any(|entry| entry.table().has_non_inline_entries())
        };
        assert!(!outside());
        let late = |entry: &Entry<Table>| {
            entry.table().store(70, entry.table().locate(70), [(1, 5)].into_iter())
        };
        space.ring.write(70, hash_of(70), late).unwrap().unwrap();
        assert!(outside());
        for _ in 0..2 {
            space.settle();
            while space.maintain() {}
        }
        let entries: u64 = space.tables().iter().map(|table| table.aux_entries).sum();
        assert!(!outside() && entries == 0);
        let mut row = [9; 2];
        assert!((0..100u64).all(|id| space.get(id * 10, &mut row).unwrap() && row == [1, 0]));
    }

    /// A client that knows which ids share a bucket in one table learns nothing about another table
    /// of the same shape.
    #[test]
    fn ids_that_meet_in_one_table_do_not_in_another() {
        let space = space_of("a:12", 1000);
        let sizing = Sizing::new(&space.schema(), 0, 1 << 20, 10_000);
        let table = || space.new_table(&sizing, space.schema(), &space.quota).unwrap();
        let (one, other) = (table(), table());
        let meet: Vec<u64> = (0..1 << 20).filter(|&id| one.home(id).unwrap().bucket == 7).collect();
        let there: std::collections::HashSet<u64> =
            meet.iter().map(|&id| other.home(id).unwrap().bucket).collect();
        let buckets = one.main_buckets() as f64;
        // Expected number of buckets for the same number of random ids.
        let expected = buckets * (1.0 - (1.0 - 1.0 / buckets).powi(meet.len() as i32));
        assert!(
            meet.len() > 500 && there.len() as f64 > expected * 0.9,
            "{} in {}",
            meet.len(),
            there.len()
        );
    }
}
