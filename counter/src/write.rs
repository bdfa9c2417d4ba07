//! Writes. One key's writes are serialised by its stripe of the ring (or by the outliers); each is
//! all or nothing.
//!
//! A write first makes sure of everything that it may need (memory, bounds, a table that takes the
//! id), then changes the row under the lock of one bucket. A table that has become full is rolled
//! by the writer that filled it: opening one costs some microseconds, its memory is mapped, not
//! touched.
//!
//! Long: the ways of one write share where it goes and why it stops.

use crate::Error;
use crate::budget::Quota;
use crate::change::{Bounds, Change};
use crate::cold_backend::BelowRow;
use crate::schema::Schema;
use crate::sizing::{self, Sizing};
use crate::space::{FIRST_ROWS, GROWTH, GROWTH_PART, LEAST_STEP_ROWS, OutlierRow, Space};
use crate::table::{At, Table, hash_of};
use parking_lot::MutexGuard;
use rolling::{Entry, Range, Refused, Side, Slot, UPPER, Unreadable};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Writes after which a space without a frontier looks for one, however few its ids.
const WRITES_AT_START: usize = 4096;
/// Up to so many rows aside, a writer that finds it is time moves them itself; more are left to
/// `maintain`.
const MOVED_BY_WRITER: usize = 8192;
/// So many by one that would be refused else: some milliseconds.
const MOVED_IN_NEED: usize = 1 << 16;
/// Beyond one part in so many of the space's memory, rows aside get a table wherever they lie.
const OUTLIER_PART: u64 = 8;
/// A writer that meets so many extension segments helps with the background work: it has fallen
/// behind.
const HELP_FROM_EXTENSIONS: usize = 3;

/// Changes of a row that are stored as they are; of more each field's last one is looked for
/// beforehand.
const FEW: usize = 16;

/// A table opened for an id beyond the expected span covers so many times its distance: two or
/// three bits more per row.
const JUMPS: u64 = 6;

/// Why a write did not happen in the table that it was offered.
enum Stop {
    Error(Error),
    /// The table (with this lowest id) has no place for the id: a further one must be opened.
    Outside(u64),
    /// The row must be read from below first.
    ColdBackend,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

/// The fields that are changed, each once, and their new values; `sums` has one for each change.
fn last_of_each<'a>(
    changes: &'a [Change],
    sums: &'a [i64],
) -> impl Iterator<Item = (usize, i64)> + Clone + 'a {
    let mut seen = 0u64;
    changes.iter().zip(sums).rev().filter_map(move |(change, &sum)| {
        let is_new = seen >> change.field & 1 == 0;
        seen |= 1 << change.field;
        is_new.then_some((change.field, sum))
    })
}

fn outlier_value(row: Option<&OutlierRow>, field: usize) -> i64 {
    row.and_then(|row| row.values.get(field).copied()).unwrap_or(0)
}

impl Space {
    /// Adds to fields of a row, all or none, and puts their new values into `out`, in the order of
    /// `changes`. Creates the row. A field may come more than once.
    pub fn add(
        &self,
        id: u64,
        changes: &[Change],
        bounds: &Bounds,
        out: &mut Vec<i64>,
    ) -> Result<(), Error> {
        let declared = self.check(changes.iter().map(|c| c.field))?;
        // Fills `out`.
        let sums = |old: &dyn Fn(usize) -> i64, out: &mut Vec<i64>| {
            out.clear();
            for (i, change) in changes.iter().enumerate() {
                let before = changes[..i].iter().rposition(|c| c.field == change.field);
                let before = before.map_or_else(|| old(change.field), |j| out[j]);
                out.push(match &declared {
                    None => bounds.add(before, change.delta)?,
                    Some(schema) => {
                        schema.fields()[change.field].add(bounds, before, change.delta)?
                    }
                });
            }
            Ok::<(), Error>(())
        };
        let result = self.write(
            id,
            out,
            |table, out| {
                let at = table.locate(id);
                match at {
                    Some(at) => {
                        let row = table.row(at, id);
                        sums(&|field| row.value(field), out)?
                    }
                    None => sums(&|_| 0, out)?,
                };
                // Of a field that comes again and again the last value: what a bucket is locked
                // for, and what is reserved, must not grow with that.
                let cells = last_of_each(changes, out);
                if changes.len() <= FEW {
                    table.store(id, at, cells)
                } else {
                    table.store(id, at, cells.collect::<Vec<_>>().into_iter())
                }
            },
            |row, out| {
                sums(&|field| outlier_value(row, field), out)?;
                Ok(last_of_each(changes, out).collect())
            },
        );
        if result.is_err() {
            out.clear();
        }
        result
    }

    /// Sets fields of a row, all or none; creates the row. Returns the number of different fields
    /// in `cells` whose value was 0 or whose row did not exist. Values beyond the declared bounds
    /// are refused or stop there: see [`Space::within_bounds`].
    pub fn set(&self, id: u64, cells: &[(usize, i64)]) -> Result<usize, Error> {
        let cells = &*self.within_bounds(cells)?;
        let zeros = |old: &dyn Fn(usize) -> i64| {
            let add = |fields: u64, &(field, _)| fields | u64::from(old(field) == 0) << field;
            cells.iter().fold(0, add).count_ones() as usize
        };
        let mut created = 0;
        self.write(
            id,
            &mut created,
            |table, created| {
                let at = table.locate(id);
                *created = match at.map(|at| table.row(at, id)) {
                    Some(row) => zeros(&|field| row.value(field)),
                    None => zeros(&|_| 0),
                };
                table.store(id, at, cells.iter().copied())
            },
            |row, created| {
                *created = zeros(&|field| outlier_value(row, field));
                Ok(cells.to_vec())
            },
        )?;
        Ok(created)
    }

    /// Deletes a row; whether there was one. If that cannot be read nothing has changed.
    pub fn delete(&self, id: u64) -> Result<bool, Unreadable> {
        self.delete_as(Origin::Client, id)
    }

    /// A deletion needs no memory, opens no table and moves no frontier: it is never refused,
    /// and a row that is not there leaves no trace.
    fn delete_as(&self, origin: Origin, id: u64) -> Result<bool, Unreadable> {
        if id < self.horizon() {
            return Ok(false);
        }
        loop {
            // Its table may have been retired meanwhile.
            let inside = || {
                self.ring
                    .write(id, hash_of(id), |e| self.delete_in(origin, e, id))
                    .unwrap_or(Ok(false))
            };
            match self.outliers.delete(id, inside) {
                Ok((outliers, was)) => return Ok(was || outliers.is_some()),
                Err(ToFetch) => self.fetch_below(id)?,
            }
        }
    }

    /// Deletes a row where it lies; whether there was one. Called under its stripe.
    fn delete_in(&self, origin: Origin, entry: &Entry<Table>, id: u64) -> Result<bool, ToFetch> {
        let tables = [Some(entry.table()), entry.drains().map(rolling::Slot::table)];
        let found = || tables.iter().flatten().find_map(|table| Some((table, table.locate(id)?)));
        let mut was = found().is_some();
        if id < self.cold_end() {
            if !was && origin == Origin::Client {
                match self.below_at_hand(id) {
                    BelowRow::Absent => return Ok(false),
                    BelowRow::Found(_) => was = true,
                    BelowRow::ToFetch => return Err(ToFetch),
                }
            }
            // Before the row goes, so that no reader sees what lies below (D2).
            self.tombstones.add(id, &self.budget);
        }
        if let Some((table, at)) = found() {
            table.delete(id, at);
        }
        Ok(was)
    }

    /// Makes the row what it says, or nothing: replay. A shorter row is filled up with zeros,
    /// values at dropped positions are ignored. Idempotent, and independent of order between ids:
    /// bounds on early ids do not hold here, what was accepted once is accepted again.
    pub fn put(&self, id: u64, row: Option<&[i64]>) -> Result<(), Error> {
        let Some(row) = row else {
            self.delete_as(Origin::Log, id)?;
            return Ok(());
        };
        let shape = self.shape.load();
        if row.len() > shape.schema.width() {
            return Err(Error::BadSchema(format!(
                "a row of {} values, {} fields",
                row.len(),
                shape.schema.width()
            )));
        }
        let cells = || {
            shape.schema.living().map(|(field, _)| (field, row.get(field).copied().unwrap_or(0)))
        };
        self.write_as(
            Origin::Log,
            id,
            &mut (),
            |table, ()| table.store(id, table.locate(id), cells()),
            |_, ()| Ok(cells().collect()),
        )
    }

    /// These values as they may be written: those beyond the bounds of their fields refused, or at
    /// the bound where it saturates.
    pub fn within_bounds<'a>(
        &self,
        cells: &'a [(usize, i64)],
    ) -> Result<Cow<'a, [(usize, i64)]>, Error> {
        let Some(schema) = self.check(cells.iter().map(|c| c.0))? else {
            return Ok(Cow::Borrowed(cells));
        };
        let within = |&(field, value): &(usize, i64)| {
            let value = match schema.fields().get(field) {
                Some(declared) => declared.set(value)?,
                None => value,
            };
            Ok((field, value))
        };
        cells.iter().map(within).collect::<Result<Vec<_>, Error>>().map(Cow::Owned)
    }

    /// Checks that there are these fields. Gives the schema, if it declares bounds for one of them.
    #[inline]
    fn check(
        &self,
        fields: impl Iterator<Item = usize> + Clone,
    ) -> Result<Option<Arc<Schema>>, Error> {
        let plain = self.plain.load(Acquire);
        if fields.clone().all(|field| field < 64 && plain >> field & 1 == 1) {
            return Ok(None);
        }
        self.check_closely(fields)
    }

    /// A field that was just added is in the schema a moment before `plain` has it.
    #[cold]
    fn check_closely(
        &self,
        mut fields: impl Iterator<Item = usize> + Clone,
    ) -> Result<Option<Arc<Schema>>, Error> {
        let shape = self.shape.load();
        let is_among = |bits: u64, field: usize| field < 64 && bits >> field & 1 == 1;
        if let Some(field) = fields.clone().find(|&field| !is_among(shape.living, field)) {
            return Err(Error::NoField(format!("at position {field}")));
        }
        let is_bounded = fields.any(|field| is_among(shape.bounded, field));
        Ok(is_bounded.then(|| shape.schema.clone()))
    }

    /// One write of a client, wherever `id` belongs. `inside` does it in a table, `ahead` says what
    /// fields of the row in the outliers become. Both get `state`, and may run several times,
    /// without effect but for the last.
    fn write<S>(
        &self,
        id: u64,
        state: &mut S,
        mut inside: impl FnMut(&Table, &mut S) -> Result<(), Error>,
        mut ahead: impl FnMut(Option<&OutlierRow>, &mut S) -> Result<Vec<(usize, i64)>, Error>,
    ) -> Result<(), Error> {
        loop {
            let result = self.write_as(Origin::Client, id, state, &mut inside, &mut ahead);
            // The thread that opens ranges may be slower than writers are.
            let is_full = matches!(result, Err(Error::Full { .. } | Error::TooManyOutliers { .. }));
            let may_advance = || {
                let waiting = self.outliers.len();
                waiting <= MOVED_IN_NEED && self.frontier.should_advance(waiting)
            };
            if !(is_full && may_advance() && self.advance()) {
                return result;
            }
        }
    }

    fn write_as<S>(
        &self,
        origin: Origin,
        id: u64,
        state: &mut S,
        mut inside: impl FnMut(&Table, &mut S) -> Result<(), Error>,
        ahead: impl FnOnce(Option<&OutlierRow>, &mut S) -> Result<Vec<(usize, i64)>, Error>,
    ) -> Result<(), Error> {
        let write = |side: Side, entry: &mut Option<Arc<OutlierRow>>| match side {
            Side::Inside => self.write_inside(origin, id, entry, |table| inside(table, state)),
            // A space that has hardly begun holds all ids there, also those that were retired.
            Side::Ahead if id < self.horizon() => self.refuse_retired(origin),
            Side::Ahead => {
                if entry.is_none() && origin == Origin::Client {
                    self.check_outliers(id)?;
                }
                let cells = ahead(entry.as_deref(), state)?;
                *entry = Some(Arc::new(OutlierRow::after(entry.as_deref(), &cells, &self.quota)?));
                Ok(())
            }
        };
        let result = match origin {
            Origin::Client => self.outliers.write(&self.frontier, id, write),
            Origin::Log => self.outliers.replay(&self.frontier, id, write).map_err(Refused::Engine),
        };
        let waiting = self.outliers.len();
        if waiting > 0 {
            self.look_ahead(waiting);
        }
        // Where deletions have left tables empty there is memory to be had.
        if matches!(result, Err(Refused::Engine(Error::Full { .. }))) {
            self.stirred.store(true, Relaxed);
        }
        result.map_err(|refused| match refused {
            Refused::TooFar => Error::KeyTooBig,
            Refused::Engine(error) => error,
        })
    }

    /// Refuses a further row aside where those take half of the memory, or a quarter if no table
    /// takes it: however many such ids come, others have the room in which a range of them gathers.
    /// That is a quarter in any case: the limit may have been higher when those came.
    fn check_outliers(&self, id: u64) -> Result<(), Error> {
        let limit_bytes = self.memory_limit_bytes();
        let is_within =
            |rows: usize, part: u64| rows as u64 * OutlierRow::bytes(0) <= limit_bytes / part;
        let (all, upper) = (self.outliers.len(), self.outliers.upper());
        let is_fine = if id > self.frontier.reach() {
            is_within(all, 4)
        } else {
            is_within(all, 2) || (id < UPPER && is_within(all.saturating_sub(upper), 4))
        };
        if is_fine { Ok(()) } else { Err(Error::TooManyOutliers { limit_bytes }) }
    }

    /// One write to the table that covers `id`, after storing there what the outliers had of it,
    /// which is taken away then.
    fn write_inside(
        &self,
        origin: Origin,
        id: u64,
        outliers: &mut Option<Arc<OutlierRow>>,
        mut f: impl FnMut(&Table) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let written = self.ring.write(id, hash_of(id), |entry| {
                // Under the stripe, which is waited for when the line has risen.
                if id < self.horizon() {
                    return self.refuse_retired(origin).map(|()| None).map_err(Stop::Error);
                }
                let table = self.table_for(entry, id)?;
                if let Some(row) = outliers {
                    if table.locate(id).is_none() {
                        let living = self.shape.load().living;
                        let cells = row.values.iter().copied().enumerate();
                        table.store(
                            id,
                            None,
                            cells.filter(|&(field, value)| value != 0 && living >> field & 1 == 1),
                        )?;
                    }
                    *outliers = None;
                }
                // A log tells whole rows.
                if origin == Origin::Client && id < self.cold_end() && table.locate(id).is_none() {
                    self.take_from_below(table, id)?;
                }
                f(table)?;
                Ok(self.is_due(entry))
            });
            match written {
                // Only a rewrite makes room: do some of it, or wait for the thread that does.
                Some(Err(Stop::Error(Error::Full { .. })))
                    if self.is_used_up(id) && self.rewrite_for_room() => {}
                // Its table was retired.
                None => return self.refuse_retired(origin),
                Some(Ok(due)) => {
                    if let Some(due) = due {
                        self.attend(due);
                    }
                    return Ok(());
                }
                Some(Err(Stop::Error(error))) => return Err(error),
                Some(Err(Stop::Outside(newest_low))) => self.open_for(newest_low, id)?,
                Some(Err(Stop::ColdBackend)) => self.fetch_below(id)?,
            }
        }
    }

    /// What a log tells again of a retired row is passed over.
    #[cold]
    fn refuse_retired(&self, origin: Origin) -> Result<(), Error> {
        match origin {
            Origin::Client => Err(Error::Retired { horizon: self.horizon() }),
            Origin::Log => Ok(()),
        }
    }

    fn is_used_up(&self, id: u64) -> bool {
        self.ring.load().find(id).is_some_and(|entry| entry.table().is_used_up())
    }

    /// Stores what lies below the line of a row that is not in memory.
    #[cold]
    fn take_from_below(&self, table: &Table, id: u64) -> Result<(), Stop> {
        match self.below_at_hand(id) {
            BelowRow::Absent => {}
            BelowRow::ToFetch => return Err(Stop::ColdBackend),
            BelowRow::Found(row) => {
                let shape = self.shape.load();
                let cells = shape.schema.living().map(|(field, _)| (field, row[field]));
                table.store(id, None, cells.filter(|cell| cell.1 != 0))?;
            }
        }
        Ok(())
    }

    /// The table in which `id` is written: the entry's, after moving the row there if the entry is
    /// draining another.
    fn table_for<'a>(&self, entry: &'a Entry<Table>, id: u64) -> Result<&'a Table, Stop> {
        let table = entry.table();
        if table.home(id).is_none() {
            return Err(Stop::Outside(entry.slot().low()));
        }
        let Some(old) = entry.drains() else { return Ok(table) };
        match self.move_row(id, old.table(), table) {
            Ok(()) => Ok(table),
            // No memory to move it: it stays, and is written where it is.
            Err(_) => Ok(old.table()),
        }
    }

    /// Moves a row, if it is there, from a drained table. Its stripe is held.
    pub(crate) fn move_row(&self, id: u64, old: &Table, new: &Table) -> Result<(), Error> {
        if let Some(at) = self.copy_row(id, old, new)? {
            old.delete(id, at);
        }
        Ok(())
    }

    /// Copies a row to a table that lacks it, while no writer is in it; where it is, if it exists.
    pub(crate) fn copy_row(&self, id: u64, old: &Table, new: &Table) -> Result<Option<At>, Error> {
        let Some(at) = old.locate(id) else { return Ok(None) };
        let row = old.row(at, id);
        let shape = self.shape.load();
        let cells = shape
            .schema
            .living()
            .map(|(field, _)| (field, row.value(field)))
            .filter(|cell| cell.1 != 0);
        new.store(id, None, cells)?;
        Ok(Some(at))
    }

    /// Whether the table of a write wants something done, after it.
    fn is_due(&self, entry: &Entry<Table>) -> Option<Due> {
        let table = entry.table();
        if table.rows() >= table.roll_at() && self.rolls(entry) {
            return Some(Due::Roll(entry.slot().low()));
        }
        match table.extensions() {
            0 => None,
            extensions => self.is_crowded(entry).then_some(Due::Relief(extensions)),
        }
    }

    fn attend(&self, due: Due) {
        match due {
            // Without memory for another table this one goes on taking rows; it says so when it is
            // full.
            Due::Roll(low) => drop(self.roll_full(low)),
            Due::Relief(extensions) => {
                self.stirred.store(true, Relaxed);
                if extensions >= HELP_FROM_EXTENSIONS {
                    self.help();
                }
            }
        }
    }

    /// Opens a table above an open one, which starts at `low` and is full.
    fn roll_full(&self, low: u64) -> Result<(), Error> {
        let Some(_rolling) = self.rolling.try_lock() else { return Ok(()) };
        self.open_above(low, None)
    }

    /// Closes the newest table now, if it has any row. Returns whether it did: not if very many ids
    /// come at this moment.
    pub fn roll_now(&self) -> Result<bool, Error> {
        let _rolling = self.rolling.lock();
        let newest = |tables: &rolling::Tables<Table>| {
            (tables.newest().slot().low(), tables.newest().table().rows())
        };
        let (low, rows) = newest(&self.ring.load());
        if rows > 0 {
            self.open_above(low, None)?;
        }
        Ok(newest(&self.ring.load()).0 != low)
    }

    /// Opens a table that has a place for `id`, unless another writer just did: another above, or
    /// one with a longer span in place of that which starts at `low`.
    pub(crate) fn open_for(&self, low: u64, id: u64) -> Result<(), Error> {
        let _rolling = self.rolling.lock();
        if self.ring.load().find(id).is_none_or(|entry| entry.table().home(id).is_some()) {
            return Ok(());
        }
        self.open_above(low, Some(id))
    }

    /// Opens a table above that which starts at `low`, in the rest of its range. With `rolling`
    /// held.
    fn open_above(&self, low: u64, id: Option<u64>) -> Result<(), Error> {
        let tables = self.ring.load();
        let Some(entry) = tables.find(low).filter(|entry| entry.slot().low() == low) else {
            return Ok(());
        };
        let (table, last) = (entry.table(), entry.slot().last());
        let schema = self.schema();
        let Some(base) = self.end_of(entry.slot(), table) else { return Ok(()) };
        let sample = table.sample(1024);
        let gap = sizing::gap(&sample, table.rows());
        let sized = |rows: u64| {
            // Half as many ids again as the rows should need: traffic has its tides. And far beyond
            // an id that lies outside what the density would have needed: ids may come in clumps (a
            // second's posts, then a gap) that are larger than a small table.
            let expected =
                (u128::from(gap) * u128::from(rows) * 3 / 2).min(u128::from(u64::MAX)) as u64;
            let jump = id.map_or(0, |id| id - base);
            let span = if jump > expected { jump.saturating_mul(JUMPS) } else { expected };
            Sizing::new(&schema, base, base.saturating_add(span).min(last), rows)
        };
        let mut rows = self.next_rows(table);
        if rows < self.rows_per_table() {
            rows = sized(rows).rows_of_whole_pages(&schema, rows);
        }
        let next = loop {
            let sizing = sized(rows).in_whole_pages(&schema);
            match self.new_table(&sizing, schema.clone(), &self.quota) {
                // What memory there is serves better as a smaller table than beside a full one.
                Err(Error::Full { .. }) if rows > FIRST_ROWS => rows /= 2,
                next => break next?,
            }
        };
        if let Some(boundary) = self.roll_to(entry.slot(), table, next) {
            let span = (u128::from(gap) * u128::from(rows)).min(u128::from(boundary - low));
            self.frontier.widen(low, span as u64);
        }
        self.stirred.store(true, Relaxed);
        Ok(())
    }

    /// Rows that the table above this one is made for. A small space grows by large steps, any
    /// other by an eighth, so that what its newest table has not got yet is at most that. But a
    /// step is no less than a huge page.
    fn next_rows(&self, table: &Table) -> u64 {
        let grown = table.rows().max(FIRST_ROWS) * GROWTH;
        grown.min((self.rows() / GROWTH_PART).max(LEAST_STEP_ROWS)).min(self.rows_per_table())
    }

    /// Where a table may be closed: all ids in it, and in one that it drains, lie below.
    fn end_of(&self, slot: &Slot<Table>, table: &Table) -> Option<u64> {
        let boundary = self.frontier.boundary(slot.last());
        let ends = [boundary, table.span().1.checked_add(1)].into_iter().flatten();
        ends.min().filter(|&end| end > slot.low() && end <= slot.last())
    }

    /// Closes a table and opens `next` above it; gives where. None: another writer did, or so many
    /// ids have come while `next` was made that it would begin beyond its own span. No id would
    /// have a place in it, nor could it be closed: all writers above would try for ever. The next
    /// one is made for more.
    fn roll_to(&self, slot: &Slot<Table>, table: &Table, next: Table) -> Option<u64> {
        let last = next.span().1;
        let boundary = || self.end_of(slot, table).filter(|&boundary| boundary <= last);
        self.ring.roll(slot.low(), boundary, next).ok()
    }

    /// Closes the table over the start of a range there and opens one for its first rows, so many;
    /// whether it did. With `rolling` held.
    fn divide(&self, Range { start, high, .. }: Range, rows: u64, quota: &Quota) -> bool {
        let (tables, schema) = (self.ring.load(), self.schema());
        let Some(entry) = tables.find(start) else { return false };
        // A log may have told of the table, and of the range not yet.
        if entry.slot().low() == start {
            return true;
        }
        let rows = rows.clamp(FIRST_ROWS, self.rows_per_table().max(FIRST_ROWS));
        // As dense as those that wait there, and half as many again.
        let span = (high - start).saturating_mul(3) / 2;
        let last = start.saturating_add(span.max(rows)).min(entry.slot().last());
        let sizing = Sizing::new(&schema, start, last, rows);
        let Ok(next) = self.new_table(&sizing, schema, quota) else { return false };
        self.ring.roll(entry.slot().low(), || Some(start), next).is_ok()
    }

    /// Asks whether the ids that wait in the outliers are enough, and if so takes them in.
    fn look_ahead(&self, waiting: usize) {
        let begins = self.frontier.high().is_none() && (waiting < 64 || waiting >= self.max_aside);
        if waiting <= MOVED_BY_WRITER && (begins || self.frontier.should_advance(waiting)) {
            self.advance();
        }
    }

    /// Behind what a log has told, while no limit holds: opens ranges for the outliers, as they
    /// were open before. Batches do not come in the order of writes, and what was short of memory
    /// when they came is not while they are read back. `limit_bytes`: the memory limit that is to
    /// hold.
    pub fn gather(&self, limit_bytes: u64) {
        // The thread of the rewrites may be at work: what it does is waited for.
        while !self.outliers.is_empty() && self.advance_within(limit_bytes, self.rolling.lock()) {}
    }

    /// Opens a range of ids for rows of the outliers, if they are enough, and moves them into
    /// tables.
    pub(crate) fn advance(&self) -> bool {
        let Some(rolling) = self.rolling.try_lock() else { return false };
        self.advance_within(self.memory_limit_bytes(), rolling)
    }

    fn advance_within(&self, limit_bytes: u64, rolling: MutexGuard<'_, ()>) -> bool {
        // Few rows stand for all their writes, more for some, many for one each: the frontier wants
        // a quorum of either, if there is room for that.
        let rows = self.outliers.len();
        let few = rows < 64;
        let most = if few { WRITES_AT_START } else { WRITES_AT_START.div_ceil(rows) };
        let weight = |row: &OutlierRow| (row.writes as usize).min(most);
        if few && rows < self.max_aside {
            let mut writes = 0;
            self.outliers.for_each(|_, row| writes += row.writes as usize);
            if writes < WRITES_AT_START {
                return false;
            }
        }
        let rows = rows as u64;
        let bytes = rows * OutlierRow::bytes(0);
        let is_short = bytes > limit_bytes / OUTLIER_PART;
        // In a full space, too: half of the rows at least move, and a table takes less than they.
        let quota = self.budget.quota(bytes / 2);
        let divide = |range| self.divide(range, rows, &quota);
        let advanced = self.outliers.advance(&self.frontier, weight, is_short, divide);
        drop(rolling);
        if advanced {
            while self.drain_outliers() > 0 {}
        }
        quota.end_loan();
        advanced
    }

    /// Closes the open table of a range of ids far below the highest one, that in which nothing new
    /// has come for the longest time; whether there was one. What comes there from now on is late.
    pub fn close_range(&self) -> bool {
        self.frontier.join_oldest()
    }

    /// Moves some rows that the frontier has reached; how many.
    pub(crate) fn drain_outliers(&self) -> usize {
        // One for which there is no memory stays.
        self.outliers.drain(&self.frontier, |id, row| {
            _ = self.write_inside(Origin::Log, id, row, |_| Ok(()))
        })
    }
}

/// Where a write comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A client: bounds on ids far ahead hold.
    Client,
    /// A log or a snapshot: it was accepted once.
    Log,
}

/// What lies below the line must be read first, without locks.
struct ToFetch;

/// What a writer noticed about its table.
enum Due {
    /// The newest table, which starts here, is full.
    Roll(u64),
    /// The table is crowded, and has so many extension segments.
    Relief(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Schema};

    /// Between the look at the frontier and the roll others write, as many as they can.
    #[test]
    fn no_table_is_opened_beyond_its_own_span() {
        let schema = Schema::parse("a:12").unwrap();
        let space = Space::new(Options { rows_per_table: 1000, ..Options::new(schema) }).unwrap();
        let set = |id: u64| _ = space.set(id, &[(0, 1)]).unwrap();
        (1000..1100).for_each(set);
        let tables = space.ring.load();
        let newest = tables.newest();
        let base = 1100;
        assert_eq!(space.end_of(newest.slot(), newest.table()), Some(base));
        let next = |last| {
            space
                .new_table(
                    &Sizing::new(&space.schema(), base, last, 64),
                    space.schema(),
                    &space.quota,
                )
                .unwrap()
        };
        let short = next(base + 40);
        let last = short.span().1 + 20;
        set(last - 1);
        assert_eq!(space.frontier.boundary(u64::MAX), Some(last));
        assert_eq!(space.roll_to(newest.slot(), newest.table(), short), None);
        // It takes all that have come, and one more.
        assert_eq!(space.roll_to(newest.slot(), newest.table(), next(last)), Some(last));
        (last..last + 3000).for_each(set);
        let ids: Vec<u64> = (1000..base).chain(last - 1..last + 3000).collect();
        assert!(ids.iter().all(|&id| space.get(id, &mut [0]).unwrap()));
    }
}
