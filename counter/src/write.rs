//! Writes. A stripe of the ring (or the map of outliers, which are ids far above all tables)
//! serialises the writes of one key; each write is atomic.
//!
//! A write first secures everything it needs (memory, bounds, a table for the id) and then changes
//! the row under the lock of one bucket. The writer that fills a table also closes it and creates
//! the next table. This takes microseconds, because the memory of the new table is mapped but not
//! touched.
//!
//! Long: the writes are in one file because all of them share the code that chooses the table and
//! handles refusals.

use crate::Error;
use crate::budget::Quota;
use crate::change::{Bounds, Change};
use crate::cold_backend::ColdLookup;
use crate::schema::Schema;
use crate::sizing::{self, Sizing};
use crate::space::{
    FIRST_ROWS, MAX_TABLE_GROWTH, MAX_TABLE_PART, MIN_STEP_ROWS, OutlierRow, Space,
};
use crate::table::{SlotPosition, Table, hash_of};
use parking_lot::MutexGuard;
use rolling::{Entry, Range, Refused, Slot, UPPER_HALF_START, Unreadable, WriteDestination};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Number of writes after which a space creates its first range even for fewer than 64 ids.
const FIRST_RANGE_WRITES: usize = 4096;
/// Maximum number of outliers that a writer moves into tables itself. If there are more outliers,
/// [`Space::maintain`] moves them.
const MAX_MOVED_BY_WRITER: usize = 8192;
/// Maximum number of outliers that a writer moves when its write would otherwise fail. Moving them
/// takes a few milliseconds.
const MAX_MOVED_FOR_ROOM: usize = 1 << 16;
/// Divisor of the memory limit. Outliers that use a larger share of the limit are moved into tables
/// even if their ids are far apart.
const OUTLIER_PART: u64 = 8;
/// Number of extension segments at which a writer helps with background work.
const MIN_EXTENSIONS_FOR_HELP: usize = 3;

/// Maximum number of changes that are stored directly. Longer lists are first reduced to the last
/// change of each field.
const MAX_DIRECT_CHANGES: usize = 16;

/// Span of a table created for an id beyond the expected span, as a multiple of the id's distance.
/// The larger span costs two or three bits per row.
const JUMP_SPAN_FACTOR: u64 = 6;

/// Reason why a write to a table was not performed.
enum TableWriteError {
    Error(Error),
    /// The table that starts at this id cannot store the id, so another table must be created.
    Outside(u64),
    /// The row must be read from the cold backend first.
    ColdBackend,
}

impl From<Error> for TableWriteError {
    fn from(error: Error) -> TableWriteError {
        TableWriteError::Error(error)
    }
}

/// Returns each changed field once, with its final value. `sums` contains one value per change.
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
    /// Adds to fields of a row, atomically, and creates the row if needed. `out` receives the new
    /// values in the order of `changes`. A field may occur several times.
    ///
    /// # Errors
    ///
    /// The write was refused; `out` is empty.
    pub fn add(
        &self,
        id: u64,
        changes: &[Change],
        bounds: &Bounds,
        out: &mut Vec<i64>,
    ) -> Result<(), Error> {
        let declared = self.check(changes.iter().map(|c| c.field))?;
        // Compute the new values into `out`.
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
                // Store only the last value of each field, to limit the reserved memory and the
                // time for which the bucket is locked.
                let cells = last_of_each(changes, out);
                if changes.len() <= MAX_DIRECT_CHANGES {
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

    /// Sets fields of a row, atomically, and creates the row if needed. Returns how many different
    /// fields of `cells` were 0 before.
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

    /// Deletes a row. Returns whether the row existed.
    ///
    /// # Errors
    ///
    /// Fails if the row is on disk and cannot be read. The space is then unchanged.
    pub fn delete(&self, id: u64) -> Result<bool, Unreadable> {
        self.delete_as(WriteOrigin::Client, id)
    }

    /// Deletes a row. A deletion needs no table and does not move the frontier, so it is never
    /// refused.
    fn delete_as(&self, origin: WriteOrigin, id: u64) -> Result<bool, Unreadable> {
        if id < self.horizon() {
            return Ok(false);
        }
        loop {
            // The table may be retired concurrently.
            let inside = || {
                self.ring
                    .write(id, hash_of(id), |e| self.delete_in(origin, e, id))
                    .unwrap_or(Ok(false))
            };
            match self.outliers.delete(id, inside) {
                Ok((outliers, was)) => return Ok(was || outliers.is_some()),
                Err(ToFetch) => self.fetch_cold_row(id)?,
            }
        }
    }

    /// Deletes a row from its table or the cold backend. The caller holds the stripe.
    fn delete_in(
        &self,
        origin: WriteOrigin,
        entry: &Entry<Table>,
        id: u64,
    ) -> Result<bool, ToFetch> {
        let tables = [Some(entry.table()), entry.drains().map(rolling::Slot::table)];
        let found = || tables.iter().flatten().find_map(|table| Some((table, table.locate(id)?)));
        let mut was = found().is_some();
        if id < self.cold_end() {
            if !was && origin == WriteOrigin::Client {
                match self.cached_cold_row(id) {
                    ColdLookup::Absent => return Ok(false),
                    ColdLookup::Found(_) => was = true,
                    ColdLookup::ToFetch => return Err(ToFetch),
                }
            }
            // Hide the cold row before the row in memory disappears (D2).
            self.tombstones.add(id, &self.budget);
        }
        if let Some((table, at)) = found() {
            table.delete(id, at);
        }
        Ok(was)
    }

    /// Replaces a row, or deletes it if `row` is `None`, for replay. Missing values become 0, and
    /// values at dropped positions are ignored.
    ///
    /// The operation is idempotent, and the order of writes to different ids does not matter.
    /// Limits on outliers do not apply, because the log contains only accepted writes.
    pub fn put(&self, id: u64, row: Option<&[i64]>) -> Result<(), Error> {
        let Some(row) = row else {
            self.delete_as(WriteOrigin::Log, id)?;
            return Ok(());
        };
        let shape = self.shape.load();
        if row.len() > shape.schema.width() {
            return Err(Error::BadSchema(format!(
                "a row of {} values, expected {}",
                row.len(),
                shape.schema.width()
            )));
        }
        let cells = || {
            shape.schema.living().map(|(field, _)| (field, row.get(field).copied().unwrap_or(0)))
        };
        self.write_as(
            WriteOrigin::Log,
            id,
            &mut (),
            |table, ()| table.store(id, table.locate(id), cells()),
            |_, ()| Ok(cells().collect()),
        )
    }

    /// Applies the declared bounds: saturates or refuses values outside the bounds.
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

    /// Checks that the fields exist. Returns the schema if any field has declared bounds.
    #[inline]
    fn check(
        &self,
        fields: impl Iterator<Item = usize> + Clone,
    ) -> Result<Option<Arc<Schema>>, Error> {
        let plain = self.plain.load(Acquire);
        if fields.clone().all(|field| field < 64 && plain >> field & 1 == 1) {
            return Ok(None);
        }
        self.check_against_schema(fields)
    }

    /// Checks against the schema, which is published before `plain`: a new field may be missing in
    /// `plain`.
    #[cold]
    fn check_against_schema(
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

    /// Writes for a client. `inside` performs the write in a table; `ahead` returns the new cells
    /// of an outlier row. Both receive `state` and may run several times; only the result of the
    /// last run is used.
    fn write<S>(
        &self,
        id: u64,
        state: &mut S,
        mut inside: impl FnMut(&Table, &mut S) -> Result<(), Error>,
        mut ahead: impl FnMut(Option<&OutlierRow>, &mut S) -> Result<Vec<(usize, i64)>, Error>,
    ) -> Result<(), Error> {
        loop {
            let result = self.write_as(WriteOrigin::Client, id, state, &mut inside, &mut ahead);
            // Writers may be faster than the background thread that creates ranges.
            let is_full = matches!(result, Err(Error::Full { .. } | Error::TooManyOutliers { .. }));
            let may_advance = || {
                let waiting = self.outliers.len();
                waiting <= MAX_MOVED_FOR_ROOM && self.frontier.should_advance(waiting)
            };
            if !(is_full && may_advance() && self.advance()) {
                return result;
            }
        }
    }

    fn write_as<S>(
        &self,
        origin: WriteOrigin,
        id: u64,
        state: &mut S,
        mut inside: impl FnMut(&Table, &mut S) -> Result<(), Error>,
        ahead: impl FnOnce(Option<&OutlierRow>, &mut S) -> Result<Vec<(usize, i64)>, Error>,
    ) -> Result<(), Error> {
        let write = |side: WriteDestination, entry: &mut Option<Arc<OutlierRow>>| match side {
            WriteDestination::Inside => {
                self.write_inside(origin, id, entry, |table| inside(table, state))
            }
            // In a space without a frontier all ids are outliers, including retired ids.
            WriteDestination::Ahead if id < self.horizon() => self.refuse_retired(origin),
            WriteDestination::Ahead => {
                if entry.is_none() && origin == WriteOrigin::Client {
                    self.check_outliers(id)?;
                }
                let cells = ahead(entry.as_deref(), state)?;
                *entry = Some(Arc::new(OutlierRow::after(entry.as_deref(), &cells, &self.quota)?));
                Ok(())
            }
        };
        let result = match origin {
            WriteOrigin::Client => self.outliers.write(&self.frontier, id, write),
            WriteOrigin::Log => {
                self.outliers.replay(&self.frontier, id, write).map_err(Refused::Engine)
            }
        };
        let waiting = self.outliers.len();
        if waiting > 0 {
            self.move_reached_outliers(waiting);
        }
        // Deletions may have left tables that can shrink.
        if matches!(result, Err(Refused::Engine(Error::Full { .. }))) {
            self.has_pending_work.store(true, Relaxed);
        }
        result.map_err(|refused| match refused {
            Refused::TooFar => Error::KeyTooBig,
            Refused::Engine(error) => error,
        })
    }

    /// Refuses a new outlier if the existing outliers use too much memory: half of the limit, or a
    /// quarter for ids that no table can take. An id below [`UPPER_HALF_START`] is always accepted
    /// while the outliers below [`UPPER_HALF_START`] use at most a quarter, since the limit may
    /// have been lowered. The remaining memory suffices for a new range.
    fn check_outliers(&self, id: u64) -> Result<(), Error> {
        let limit_bytes = self.memory_limit_bytes();
        let is_within =
            |rows: usize, part: u64| rows as u64 * OutlierRow::bytes(0) <= limit_bytes / part;
        let (all, upper) = (self.outliers.len(), self.outliers.upper());
        let is_fine = if id > self.frontier.reach() {
            is_within(all, 4)
        } else {
            is_within(all, 2) || (id < UPPER_HALF_START && is_within(all.saturating_sub(upper), 4))
        };
        if is_fine { Ok(()) } else { Err(Error::TooManyOutliers { limit_bytes }) }
    }

    /// Writes to the table that covers `id`. If the id has an outlier row, first moves that row
    /// into the table.
    fn write_inside(
        &self,
        origin: WriteOrigin,
        id: u64,
        outliers: &mut Option<Arc<OutlierRow>>,
        mut f: impl FnMut(&Table) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let written = self.ring.write(id, hash_of(id), |entry| {
                // Check while holding the stripe lock, because [`Space::retire_below`] waits for
                // all stripes.
                if id < self.horizon() {
                    return self
                        .refuse_retired(origin)
                        .map(|()| None)
                        .map_err(TableWriteError::Error);
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
                // Replay needs no cold values, because a log record contains the whole row.
                if origin == WriteOrigin::Client
                    && id < self.cold_end()
                    && table.locate(id).is_none()
                {
                    self.copy_cold_row(table, id)?;
                }
                f(table)?;
                Ok(self.is_due(entry))
            });
            match written {
                // The table cannot be extended: perform a rewrite step, or wait for the thread that
                // does.
                Some(Err(TableWriteError::Error(Error::Full { .. })))
                    if self.has_all_segments(id) && self.free_memory_by_rewrite() => {}
                // The table was retired.
                None => return self.refuse_retired(origin),
                Some(Ok(due)) => {
                    if let Some(due) = due {
                        self.do_maintenance(due);
                    }
                    return Ok(());
                }
                Some(Err(TableWriteError::Error(error))) => return Err(error),
                Some(Err(TableWriteError::Outside(newest_low))) => self.open_for(newest_low, id)?,
                Some(Err(TableWriteError::ColdBackend)) => self.fetch_cold_row(id)?,
            }
        }
    }

    /// Skips a replayed write to a retired row, and refuses any other write to a retired row.
    #[cold]
    fn refuse_retired(&self, origin: WriteOrigin) -> Result<(), Error> {
        match origin {
            WriteOrigin::Client => Err(Error::Retired { horizon: self.horizon() }),
            WriteOrigin::Log => Ok(()),
        }
    }

    fn has_all_segments(&self, id: u64) -> bool {
        self.ring.load().find(id).is_some_and(|entry| entry.table().has_all_segments())
    }

    /// Copies the cold values of a row into its table.
    #[cold]
    fn copy_cold_row(&self, table: &Table, id: u64) -> Result<(), TableWriteError> {
        match self.cached_cold_row(id) {
            ColdLookup::Absent => {}
            ColdLookup::ToFetch => return Err(TableWriteError::ColdBackend),
            ColdLookup::Found(row) => {
                let shape = self.shape.load();
                let cells = shape.schema.living().map(|(field, _)| (field, row[field]));
                table.store(id, None, cells.filter(|cell| cell.1 != 0))?;
            }
        }
        Ok(())
    }

    /// Returns the table for a write of `id`. If the entry drains another table, first moves the
    /// row into the new table.
    fn table_for<'a>(
        &self,
        entry: &'a Entry<Table>,
        id: u64,
    ) -> Result<&'a Table, TableWriteError> {
        let table = entry.table();
        if table.home(id).is_none() {
            return Err(TableWriteError::Outside(entry.slot().low()));
        }
        let Some(old) = entry.drains() else { return Ok(table) };
        match self.move_row(id, old.table(), table) {
            Ok(()) => Ok(table),
            // Without memory to move the row, write it in the old table.
            Err(_) => Ok(old.table()),
        }
    }

    /// Moves a row out of a drained table, if it is there. The caller holds the stripe.
    pub(crate) fn move_row(&self, id: u64, old: &Table, new: &Table) -> Result<(), Error> {
        if let Some(at) = self.copy_row(id, old, new)? {
            old.delete(id, at);
        }
        Ok(())
    }

    /// Copies a row to a table that lacks it, and returns the row's location in the old table. No
    /// other thread may write the row during the call.
    pub(crate) fn copy_row(
        &self,
        id: u64,
        old: &Table,
        new: &Table,
    ) -> Result<Option<SlotPosition>, Error> {
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

    /// Returns the maintenance that the table needs after a write.
    fn is_due(&self, entry: &Entry<Table>) -> Option<DueMaintenance> {
        let table = entry.table();
        if table.rows() >= table.roll_at() && self.rolls(entry) {
            return Some(DueMaintenance::Roll(entry.slot().low()));
        }
        match table.extensions() {
            0 => None,
            extensions => self.is_crowded(entry).then_some(DueMaintenance::Crowded(extensions)),
        }
    }

    fn do_maintenance(&self, due: DueMaintenance) {
        match due {
            // If there is no memory for another table, this table accepts rows until all of its
            // segments are full.
            DueMaintenance::Roll(low) => drop(self.roll_full(low)),
            DueMaintenance::Crowded(extensions) => {
                self.has_pending_work.store(true, Relaxed);
                if extensions >= MIN_EXTENSIONS_FOR_HELP {
                    self.help();
                }
            }
        }
    }

    /// Creates a table above the full table that starts at `low`.
    fn roll_full(&self, low: u64) -> Result<(), Error> {
        let Some(_rolling) = self.rolling.try_lock() else { return Ok(()) };
        self.open_above(low, None)
    }

    /// Closes the newest table if it has rows, and returns whether it did. Concurrent inserts of
    /// many new ids may prevent that.
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

    /// Creates a table for `id`, unless another writer has already created this table.
    pub(crate) fn open_for(&self, low: u64, id: u64) -> Result<(), Error> {
        let _rolling = self.rolling.lock();
        if self.ring.load().find(id).is_none_or(|entry| entry.table().home(id).is_some()) {
            return Ok(());
        }
        self.open_above(low, Some(id))
    }

    /// Creates a table above the table that starts at `low`, within the range of that table. The
    /// caller holds `rolling`.
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
            // Add 50 % to the expected span, because traffic varies. For an id beyond the expected
            // span, choose a much larger span, because ids may arrive in clusters larger than a
            // small table.
            let expected =
                (u128::from(gap) * u128::from(rows) * 3 / 2).min(u128::from(u64::MAX)) as u64;
            let jump = id.map_or(0, |id| id - base);
            let span =
                if jump > expected { jump.saturating_mul(JUMP_SPAN_FACTOR) } else { expected };
            Sizing::new(&schema, base, base.saturating_add(span).min(last), rows)
        };
        let mut rows = self.next_rows(table);
        if rows < self.rows_per_table() {
            rows = sized(rows).rows_of_whole_pages(&schema, rows);
        }
        let next = loop {
            let sizing = sized(rows).in_whole_pages(&schema);
            match self.new_table(&sizing, schema.clone(), &self.quota) {
                // A smaller table is better than a table that remains overfull.
                Err(Error::Full { .. }) if rows > FIRST_ROWS => rows /= 2,
                next => break next?,
            }
        };
        if let Some(boundary) = self.roll_to(entry.slot(), table, next) {
            let span = (u128::from(gap) * u128::from(rows)).min(u128::from(boundary - low));
            self.frontier.widen(low, span as u64);
        }
        self.has_pending_work.store(true, Relaxed);
        Ok(())
    }

    /// Returns the number of rows for which to size the table above `table`. In a small space it is
    /// four times the rows of `table`. In a large space it is an eighth of the space's rows, which
    /// bounds the unused memory. The maximum is `rows_per_table`.
    fn next_rows(&self, table: &Table) -> u64 {
        let grown = table.rows().max(FIRST_ROWS) * MAX_TABLE_GROWTH;
        grown.min((self.rows() / MAX_TABLE_PART).max(MIN_STEP_ROWS)).min(self.rows_per_table())
    }

    /// Returns the id at which a table may be closed. This id is above all ids of the table and of
    /// the table that it drains.
    fn end_of(&self, slot: &Slot<Table>, table: &Table) -> Option<u64> {
        let boundary = self.frontier.boundary(slot.last());
        let ends = [boundary, table.span().1.checked_add(1)].into_iter().flatten();
        ends.min().filter(|&end| end > slot.low() && end <= slot.last())
    }

    /// Closes a table and adds `next` above it. Returns the boundary.
    ///
    /// Returns `None` if another writer has closed the table, or if new ids have moved the boundary
    /// beyond the span of `next`. Such a table could store no id and could not be closed, so all
    /// writers above it would loop. The next attempt creates a larger table.
    fn roll_to(&self, slot: &Slot<Table>, table: &Table, next: Table) -> Option<u64> {
        let last = next.span().1;
        let boundary = || self.end_of(slot, table).filter(|&boundary| boundary <= last);
        self.ring.roll(slot.low(), boundary, next).ok()
    }

    /// Closes the table that contains the start of a range, and creates a table for `rows` rows at
    /// the start of the range. Returns whether the range now starts a table. The caller holds
    /// `rolling`.
    fn divide(&self, Range { start, high, .. }: Range, rows: u64, quota: &Quota) -> bool {
        let (tables, schema) = (self.ring.load(), self.schema());
        let Some(entry) = tables.find(start) else { return false };
        // Replay may create the table before it reports the range.
        if entry.slot().low() == start {
            return true;
        }
        let rows = rows.clamp(FIRST_ROWS, self.rows_per_table().max(FIRST_ROWS));
        // Assume that later ids are as dense as the waiting outliers, and add 50 % to the span of
        // the outliers.
        let span = (high - start).saturating_mul(3) / 2;
        let last = start.saturating_add(span.max(rows)).min(entry.slot().last());
        let sizing = Sizing::new(&schema, start, last, rows);
        let Ok(next) = self.new_table(&sizing, schema, quota) else { return false };
        self.ring.roll(entry.slot().low(), || Some(start), next).is_ok()
    }

    /// Moves outliers into tables if there are enough of them.
    fn move_reached_outliers(&self, waiting: usize) {
        let begins =
            self.frontier.high().is_none() && (waiting < 64 || waiting >= self.max_outliers);
        if waiting <= MAX_MOVED_BY_WRITER && (begins || self.frontier.should_advance(waiting)) {
            self.advance();
        }
    }

    /// Creates ranges for the outliers after replay, while no limit applies. Replay orders batches
    /// differently from the original writes, and memory that was short then may be free now.
    /// `limit_bytes` is the future memory limit.
    pub fn gather(&self, limit_bytes: u64) {
        // Wait for a rewrite in progress.
        while !self.outliers.is_empty() && self.advance_within(limit_bytes, self.rolling.lock()) {}
    }

    /// Creates a range for the outliers, if there are enough of them, and moves them into tables.
    pub(crate) fn advance(&self) -> bool {
        let Some(rolling) = self.rolling.try_lock() else { return false };
        self.advance_within(self.memory_limit_bytes(), rolling)
    }

    fn advance_within(&self, limit_bytes: u64, rolling: MutexGuard<'_, ()>) -> bool {
        // Limit how much the writes of one row count: at most 4,096 if there are fewer than 64
        // rows, otherwise at most 4,096 divided by the number of rows. With fewer than 64 rows, the
        // outliers need at least 4,096 writes in total.
        let rows = self.outliers.len();
        let few = rows < 64;
        let most = if few { FIRST_RANGE_WRITES } else { FIRST_RANGE_WRITES.div_ceil(rows) };
        let weight = |row: &OutlierRow| (row.writes as usize).min(most);
        if few && rows < self.max_outliers {
            let mut writes = 0;
            self.outliers.for_each(|_, row| writes += row.writes as usize);
            if writes < FIRST_RANGE_WRITES {
                return false;
            }
        }
        let rows = rows as u64;
        let bytes = rows * OutlierRow::bytes(0);
        let is_short = bytes > limit_bytes / OUTLIER_PART;
        // The loan makes the move possible in a full space: at least half of the rows move, and a
        // table needs less memory than those rows as outliers.
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

    /// Merges the least recently used range of ids into the range above it, which closes the open
    /// table of the lower range. Returns whether there was such a range. From then on, new ids in
    /// the closed range count as late.
    pub fn close_range(&self) -> bool {
        self.frontier.join_oldest()
    }

    /// Moves some of the outliers that the frontier has reached. Returns the number of moved
    /// outliers.
    pub(crate) fn drain_outliers(&self) -> usize {
        // If there is no memory to store a row in a table, it remains an outlier.
        self.outliers.drain(&self.frontier, |id, row| {
            _ = self.write_inside(WriteOrigin::Log, id, row, |_| Ok(()))
        })
    }
}

/// Source of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteOrigin {
    /// A client: limits on outliers apply.
    Client,
    /// A log or a snapshot: limits do not apply, because the write was accepted before.
    Log,
}

/// The row must be read from the cold backend first, without locks.
struct ToFetch;

/// Maintenance that a table needs after a write.
enum DueMaintenance {
    /// The open table that starts here is full.
    Roll(u64),
    /// The table is crowded and has this many extension segments.
    Crowded(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Schema};

    /// Other writers insert ids between the choice of the boundary and the close of the table.
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
        // This table can store all existing ids and one more.
        assert_eq!(space.roll_to(newest.slot(), newest.table(), next(last)), Some(last));
        (last..last + 3000).for_each(set);
        let ids: Vec<u64> = (1000..base).chain(last - 1..last + 3000).collect();
        assert!(ids.iter().all(|&id| space.get(id, &mut [0]).unwrap()));
    }
}
