//! Background work, in small steps, while reads and writes go on: the aside is taken in, and tables are rewritten that have become
//! - *crowded*: more rows came into their range than they were made for (a backfill, random ids). They grow by a fifth, or are split when that
//!   is too much for one table, so that memory per row stays near that of a full table;
//! - *loose*: rolled before they were full, or opened when nothing was known of their ids; or grown for rows that did not come: once a table
//!   [rests](Space::settle), any emptiness that is worth a rewrite is;
//! - *dated*: packed by an older schema.
//!
//! A rewrite opens the new tables, then moves row by row (see rolling's ring.rs). There is one at a time per space: memory exceeds its steady
//! state by one table.
//!
//! **C1** Every closed table, and every part of a rewrite, can hold every id of its range (of the newest: every id that the table it replaces
//! could hold). Only a newest table may lack a place for an id of its range, and that opens a further table.

use crate::Error;
use crate::plan::Plan;
use crate::space::{FIRST_ROWS, Space};
use crate::table::{Table, hash_of};
use rolling::{Entry, Slot};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Rows that one step moves, about: half a millisecond of work.
const STEP_ROWS: usize = 2048;
/// The same of a rewrite that nobody waits for: others, who want the processor, get it between two steps.
const IDLE_STEP_ROWS: usize = 256;
/// Rows that a writer moves who helps: a table of n rows is then rewritten within n / 32 writes.
const HELP_ROWS: usize = 32;
/// Rows whose new buckets are prefetched together.
const PREFETCHED: usize = 16;
/// A table is crowded when one row in so many is in the extend dictionary...
const CROWDED_EXTEND: u64 = 200;
/// ... at least so many rows (a small table has a few by chance)...
const CROWDED_EXTEND_LEAST: u64 = 16;
/// ... or when so much of its slots are taken.
const CROWDED_FILL: f64 = 0.965;
/// A crowded table grows by this factor: near that many bytes per row more than a full one has, for as long as it grows ...
const GROW: f64 = 1.2;
/// ... but a [small](Space::is_small) one by more. Each row moves 1 / (factor - 1) times while a space grows in no order: once instead of five
/// times. What that wastes is less than one full table takes.
const GROW_SMALL: f64 = 2.0;
const SMALL_ROWS: u64 = 1 << 16;
/// A table is loose when a tight one would take less than so much of its bytes. One that has just grown must not be: it would shrink, be
/// crowded again, and so on for ever.
const LOOSE: f64 = 0.8;
const LOOSE_SMALL: f64 = 0.4;
const _: () = assert!(LOOSE * GROW < 1.0 && LOOSE_SMALL * GROW_SMALL < 1.0);
/// ... but at rest it must be as full as one that rolls. A few rows may come before it is crowded then, so one into which a row comes now and then is
/// not rewritten all the time: only a table at rest is, twice while a twentieth more rows come.
const LOOSE_AT_REST: f64 = 0.99;
/// A table of so few slots is not made smaller.
const LEAST_SLOTS: u64 = 4096;
/// Rows of a table for ids far below all others.
const STRAY_ROWS: u64 = 64;

/// A rewrite under way.
pub(crate) struct Rewrite {
    old: Arc<Slot<Table>>,
    next_bucket: u64,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Crowded,
    Loose,
    Dated,
}

impl Space {
    /// Whether [`Space::maintain`] may find something to do.
    pub fn wants_maintenance(&self) -> bool {
        self.stirred.load(Relaxed)
            || self.rewriting.try_lock().is_none_or(|rewrite| rewrite.is_some())
            || self.frontier.high().is_some_and(|high| self.aside.may_hold(high))
    }

    /// One small step of background work (about a millisecond); whether there was one: then call it again. For a thread that
    /// has nothing better to do; several may call it. Nothing depends on it but memory and speed.
    pub fn maintain(&self) -> bool {
        let drained = self.drain_aside() > 0;
        let advanced = self.frontier.should_advance(self.aside.len()) && self.advance();
        self.rewrite_step(STEP_ROWS) || drained || advanced
    }

    /// Whether the background work that was done last is one that writers wait for: a table is crowded. Of any other work the thread that does it
    /// should offer its processor after each step.
    pub fn hurries(&self) -> bool {
        self.hurries.load(Relaxed)
    }

    /// Looks for tables that have come to rest: into which nearly nothing came since the last call. Such a table was made for more rows than it
    /// got, if its ids came in no order, and is rewritten to fit by [`Space::maintain`]. To be called now and then, at least as far apart as
    /// what rests may be rewritten twice.
    pub fn settle(&self) {
        self.ring.load().entries().iter().for_each(|entry| entry.table().settle());
        // Deletions stir nobody: a table that they left empty is found here, too.
        self.stirred.store(true, Relaxed);
    }

    /// A writer's contribution, if nobody else is at it.
    pub(crate) fn help(&self) {
        self.rewrite_step(HELP_ROWS);
    }

    /// For a writer who found no place in a table that cannot be extended any more: a step of background work, or a wait while
    /// somebody else does one. `false`: there is nothing to do, or no memory to do it with.
    pub(crate) fn rewrite_for_room(&self) -> bool {
        if self.rewriting.is_locked() {
            std::thread::yield_now();
            return true;
        }
        self.stirred.store(true, Relaxed);
        self.rewrite_step(STEP_ROWS)
    }

    fn rewrite_step(&self, rows: usize) -> bool {
        let Some(mut rewriting) = self.rewriting.try_lock() else { return false };
        if rewriting.is_none() {
            if !self.stirred.swap(false, Relaxed) {
                return false;
            }
            match self.begin_rewrite() {
                Ok(rewrite) => *rewriting = rewrite,
                // No memory to rewrite with; the next event asks again.
                Err(_) => return false,
            }
        }
        let Some(rewrite) = &mut *rewriting else { return false };
        let hurries = rewrite.reason == Reason::Crowded;
        self.hurries.store(hurries, Relaxed);
        match self.move_rows(rewrite, if hurries { rows } else { rows.min(IDLE_STEP_ROWS) }) {
            Ok(false) => true,
            Ok(true) => {
                *rewriting = None;
                self.hurries.store(false, Relaxed);
                self.stirred.store(true, Relaxed);
                true
            }
            // Stays half done, which is a valid state; goes on when there is memory again.
            Err(_) => {
                self.hurries.store(false, Relaxed);
                false
            }
        }
    }

    /// Starts the most useful rewrite, if any is.
    fn begin_rewrite(&self) -> Result<Option<Rewrite>, Error> {
        // Nobody rolls meanwhile: the newest table would be closed by the span of the one that was there, and ids between that and the
        // span of the new one would have no place anywhere: their writers would try for ever.
        let _rolling = self.rolling.lock();
        let tables = self.ring.load();
        let mut worst = None;
        for entry in tables.entries().iter().filter(|e| e.drains().is_none()) {
            let Some(reason) = self.reason(entry) else { continue };
            let weight = (reason == Reason::Crowded, entry.table().extend_rows());
            if worst.is_none_or(|(_, _, most)| weight > most) {
                worst = Some((entry, reason, weight));
            }
        }
        // One that was found loose would not be looked at again soon: so the first one is taken.
        let loose = || tables.entries().iter().find(|entry| entry.drains().is_none() && self.is_loose(entry));
        let worst = worst.map(|(entry, reason, _)| (entry, reason));
        let worst = worst.or_else(|| loose().map(|entry| (entry, Reason::Loose)));
        let Some((entry, reason)) = worst else { return Ok(None) };
        let schema = self.schema();
        let low = entry.slot().low();
        let parts = self
            .parts(entry, reason)
            .into_iter()
            .map(|(low, plan)| Ok((low, Table::new(&plan, schema.clone(), self.seed, &self.budget)?)));
        let parts = parts.collect::<Result<Vec<_>, Error>>()?;
        Ok(self.ring.rewrite(low, parts).ok().map(|old| Rewrite { old, next_bucket: 0, reason }))
    }

    /// Rewrites the tables that begin in `low..=last` and are mostly empty, at once: their rows have gone below.
    pub(crate) fn shrink(&self, low: u64, last: u64) -> Result<(), Error> {
        // Until the old table is gone the new one needs memory, and there may be none left.
        let _more = self.budget.stretch();
        let mut rewriting = self.rewriting.lock();
        if let Some(rewrite) = &mut *rewriting {
            while !self.move_rows(rewrite, usize::MAX)? {}
        }
        *rewriting = None;
        let lows: Vec<u64> = {
            let tables = self.ring.load();
            let within = |e: &&Entry<Table>| (low..=last).contains(&e.slot().low()) && e.slot().last() < u64::MAX;
            let roomy = |e: &&Entry<Table>| e.table().rows() * 2 < e.table().slots() && e.table().slots() > LEAST_SLOTS;
            tables.entries().iter().filter(within).filter(roomy).map(|e| e.slot().low()).collect()
        };
        for low in lows {
            let tables = self.ring.load();
            let Some(entry) = tables.find(low).filter(|e| e.slot().low() == low) else { continue };
            let rows = (entry.table().rows() * 3 / 2).max(STRAY_ROWS);
            let plan = Plan::new(&self.schema(), low, entry.slot().last(), rows);
            let table = Table::new(&plan, self.schema(), self.seed, &self.budget)?;
            drop(tables);
            let Ok(old) = self.ring.rewrite(low, vec![(low, table)]) else { continue };
            let rewrite = rewriting.insert(Rewrite { old, next_bucket: 0, reason: Reason::Loose });
            while !self.move_rows(rewrite, usize::MAX)? {}
            *rewriting = None;
        }
        Ok(())
    }

    /// Why a table should be rewritten, but for looseness.
    fn reason(&self, entry: &Entry<Table>) -> Option<Reason> {
        let table = entry.table();
        let (rows, extend) = (table.rows(), table.extend_rows());
        let newest = entry.slot().last() == u64::MAX;
        let crowded = extend >= CROWDED_EXTEND_LEAST.max(rows / CROWDED_EXTEND)
            || rows as f64 > CROWDED_FILL * table.slots() as f64;
        // A newest table that fills in order rolls.
        if crowded && !(newest && table.rises()) {
            return Some(Reason::Crowded);
        }
        (**table.schema() != *self.schema()).then_some(Reason::Dated)
    }

    /// Whether a table has room that it does not need. Looks closely only if much has changed since the last time, or if it rests.
    fn is_loose(&self, entry: &Entry<Table>) -> bool {
        let table = entry.table();
        let rests = table.take_rest() && (table.rows() as f64) < LOOSE_AT_REST * table.roll_at() as f64;
        if entry.slot().last() == u64::MAX || !(table.review() | rests) {
            return false;
        }
        let loose = match rests {
            true => LOOSE_AT_REST,
            false if self.is_small(table.rows()) => LOOSE_SMALL,
            false => LOOSE,
        };
        self.would_take(entry) < loose
    }

    /// How much of a table's bytes a tight one would take.
    fn would_take(&self, entry: &Entry<Table>) -> f64 {
        let schema = self.schema();
        let tight: u64 = self.parts(entry, Reason::Loose).iter().map(|(_, plan)| plan.bytes(&schema)).sum();
        // Of its main segment: the extension, if it matters, makes a table crowded.
        let bytes = entry.table().bucket_bytes() - entry.table().extend_bytes();
        tight as f64 / bytes as f64
    }

    /// Whether a table of so many rows may take more memory than it needs: it is small, or all that the space has fits in one full table.
    fn is_small(&self, rows: u64) -> bool {
        rows < SMALL_ROWS || self.rows() <= self.rows_per_table
    }

    /// What should replace a table: the lowest id and the plan of each part.
    fn parts(&self, entry: &Entry<Table>, reason: Reason) -> Vec<(u64, Plan)> {
        let table = entry.table();
        let schema = self.schema();
        let rows = table.rows();
        let (low, last) = (entry.slot().low(), entry.slot().last());
        let newest = last == u64::MAX;
        let whole = |rows| vec![(low, Plan::new(&schema, low, last, rows))];
        if newest && (reason != Reason::Crowded || table.rises()) {
            // It goes on filling as it did.
            let rows = rows.max(table.roll_at());
            return vec![(low, Plan::new(&schema, low, table.span().1.max(low), rows))];
        }
        let sample = table.sample(1024);
        let (Some(&first), Some(&highest)) = (sample.first(), sample.last()) else {
            return whole(STRAY_ROWS);
        };
        let most = self.rows_per_table as f64;
        let now = rows as f64;
        let target = match reason {
            // Not beyond a full table, so that it is not loose when the space is small no more.
            Reason::Crowded if self.is_small(rows) => (now * GROW_SMALL).min(most).max(now * GROW),
            Reason::Crowded => now * GROW,
            Reason::Loose | Reason::Dated => now,
        };
        let pieces = if target <= most * 1.25 { 1 } else { (target / most).ceil().max(2.0) as usize };
        // An unordered space: its ids lie below the highest known one, and some way beyond. What comes above that gets a small
        // table, which takes any id (C1): one may come in while this is planned.
        let end = if newest {
            let high = table.high().max(highest);
            high.saturating_add((high - first.max(low)) / 4)
        } else {
            last
        };
        let mut lows = vec![low];
        // Many ids of a first table lie near each other, far above its lowest possible one: do not pay for the emptiness below.
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
        let rows = ((target / (lows.len() - strays) as f64).ceil() as u64).max(STRAY_ROWS);
        let above = lows.len();
        if newest && end < u64::MAX {
            lows.push(end + 1);
        }
        let plan = |i: usize| {
            let last = lows.get(i + 1).map_or(last, |next| next - 1);
            let rows = match i {
                _ if i < strays => STRAY_ROWS,
                _ if i == above => FIRST_ROWS.min(self.rows_per_table),
                _ => rows,
            };
            (lows[i], Plan::new(&schema, lows[i], last, rows))
        };
        (0..lows.len()).map(plan).collect()
    }

    /// Moves some rows of a rewrite; `true` when it is finished.
    fn move_rows(&self, rewrite: &mut Rewrite, most: usize) -> Result<bool, Error> {
        let old = rewrite.old.table();
        let (mut room, mut ids) = (Vec::new(), Vec::new());
        while rewrite.next_bucket < old.buckets() && ids.len() < most {
            old.visit(rewrite.next_bucket, 0, 0, &mut room, |id, _, _| ids.push(id));
            rewrite.next_bucket += 1;
        }
        let tables = self.ring.load();
        for (i, &id) in ids.iter().enumerate() {
            // Where the rows go is far apart: ask for some of them together.
            if i % PREFETCHED == 0 {
                for &id in &ids[i..ids.len().min(i + PREFETCHED)] {
                    let table = tables.find(id).map(|entry| entry.table());
                    if let Some((table, home)) = table.and_then(|t| Some((t, t.home(id)?))) {
                        table.prefetch(home);
                    }
                }
            }
            let moved = self.ring.write(id, hash_of(id), |entry| match entry.drains() {
                Some(drained) if std::ptr::eq(drained, &*rewrite.old) => self.move_row(id, old, entry.table()),
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
            // A writer was about to move one, or could not.
            rewrite.next_bucket = 0;
            return Ok(false);
        }
        self.ring.finish(&rewrite.old);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alteration, Bounds, Change, Options, Schema};

    /// Whoever rewrites may be busy with another table, for long.
    #[test]
    fn a_table_takes_many_times_its_rows_while_nobody_rewrites_it() {
        let schema = Schema::parse("a:60 b:60").unwrap();
        let space = Space::new(Options { rows_per_table: 64, ..Options::new(schema) }).unwrap();
        let busy = space.rewriting.lock();
        let mut out = vec![];
        let rows = if cfg!(miri) { 400 } else { 20_000u64 };
        let ids: Vec<u64> = (1..rows).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30) + 1).collect();
        for &id in &ids {
            space.add(id, &[Change { field: 0, delta: 1 }], &Bounds::default(), &mut out).unwrap();
        }
        let crowded = space.tables().iter().map(|t| t.extend_rows).max();
        assert!(crowded > Some(rows / 2), "{crowded:?}");
        drop(busy);
        // A writer who finds no room makes some.
        let mut steps = 0;
        while space.rewrite_for_room() {
            steps += 1;
        }
        let left: u64 = space.tables().iter().map(|t| t.extend_rows).sum();
        assert!(steps > if cfg!(miri) { 0 } else { 3 } && left < rows / 20, "{steps} steps, {left} rows left");
        let mut row = [0; 2];
        assert!(ids.iter().all(|&id| space.get(id, &mut row) && row[0] >= 1));
        let (mut values, mut found) = (vec![], vec![]);
        space.get_batch(&ids, &mut values, &mut found);
        assert!(found.iter().all(|f| *f) && values.chunks(2).all(|row| row[0] >= 1));
    }

    /// Whoever rolls has looked at the newest table before it closes it. If a rewrite put one with a shorter span into its place meanwhile, ids between the
    /// two spans would have no place anywhere, and their writers would try for ever.
    #[test]
    fn the_newest_table_is_not_replaced_while_somebody_rolls() {
        let space = Space::new(Options::new(Schema::parse("a:12").unwrap())).unwrap();
        space.set(7, &[(0, 1)]).unwrap();
        // The only table is dated now, and will be replaced.
        space.alter(&Alteration::Add { name: "b".to_owned(), width: 3 }).unwrap();
        let newest = || space.ring.load().newest().slot() as *const Slot<Table> as usize;
        let before = newest();
        std::thread::scope(|s| {
            let rolling = space.rolling.lock();
            let rewrite = s.spawn(|| space.maintain());
            // It gets as far as it can: time that is only lost when all is well.
            while !space.rewriting.is_locked() && !rewrite.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(newest(), before, "replaced while somebody rolls");
            assert!(!rewrite.is_finished());
            drop(rolling);
            assert!(rewrite.join().unwrap());
        });
        assert_ne!(newest(), before, "nothing was to be rewritten: the test shows nothing");
    }
}
