//! Reads: no lock, and no wait (promise 1).
//!
//! A row may be moving while it is looked for, so the places are visited in the order in which rows
//! move: aside, drained table, table. A miss counts only if the table still is the one that takes
//! the id; else a fresh snapshot of the ring is taken and searched.

use crate::Schema;
use crate::space::{Shape, Space};
use crate::table::{Row, Table};
use arc_swap::Guard;
use rolling::{Tables, Unreadable, UnreadableIds};
use std::sync::Arc;

/// A view for one batch of reads; see [`Space::read`].
pub struct Read<'a> {
    pub(crate) space: &'a Space,
    pub(crate) shape: Guard<Arc<Shape>>,
    pub(crate) tables: Guard<Arc<Tables<Table>>>,
    /// Ids below it have no rows.
    pub(crate) horizon: u64,
}

/// What a look for a row has found, as it is at one moment.
enum Found<'a> {
    /// In a table.
    Row(Row<'a>),
    /// By position: in the outliers, or below.
    Values(&'a [i64]),
}

impl Found<'_> {
    fn copy(&self, living: u64, out: &mut [i64]) {
        match self {
            Found::Row(row) => row.values(living, out),
            Found::Values(values) => copy_living(values, living, out),
        }
    }
}

impl Space {
    /// A view for one batch of reads: one schema, one snapshot of the ring. Short-lived; it keeps
    /// memory that a rewrite has replaced from being freed.
    pub fn read(&self) -> Read<'_> {
        Read::new(self)
    }

    /// Fills `out` with the row's values by position and returns `true`; or with zeros, and
    /// `false`, if there is no such row. A longer `out` than the schema is filled up with zeros.
    pub fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        self.read().get(id, out)
    }

    /// Appends `schema().width()` values per id to `rows`, and to `found` whether the row exists.
    /// Bucket addresses of all ids are computed and prefetched first, then read. When the schema
    /// may change meanwhile, use [`Space::read`] and its schema. Rows that cannot be read are in
    /// the error; they read as if there were none, and all others as without the error.
    pub fn get_batch(
        &self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) -> Result<(), UnreadableIds> {
        self.read().get_batch(ids, rows, found)
    }

    /// Asks the cache for the row of an id that will be read or written soon.
    #[inline]
    pub fn prefetch(&self, id: u64) {
        prefetch(&self.ring.load(), id);
    }

    /// Whether the row exists.
    pub fn exists(&self, id: u64) -> Result<bool, Unreadable> {
        self.read().exists(id)
    }
}

impl<'a> Read<'a> {
    pub(crate) fn new(space: &'a Space) -> Read<'a> {
        Read {
            space,
            shape: space.shape.load(),
            tables: space.ring.load(),
            horizon: space.horizon(),
        }
    }

    /// The schema by which this view answers.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shape.schema
    }

    /// Whether the row is in memory.
    pub(crate) fn in_memory(&mut self, id: u64) -> bool {
        self.look_in_memory(id, |_| ()).is_some()
    }

    /// Whether a row that was missed in memory may lie below the line. To be asked after the miss
    /// (D1).
    #[inline(always)]
    pub(crate) fn may_lie_below(&self, id: u64) -> bool {
        id < self.space.cold_end()
    }

    /// Runs `f` on the row of `id`, if that is in memory; maybe several times, the last counts.
    fn look_in_memory<R>(&mut self, id: u64, mut f: impl FnMut(Found<'_>) -> R) -> Option<R> {
        if id < self.horizon {
            return None;
        }
        if let Some(result) = self.space.outliers.read(id, |row| f(Found::Values(&row.values))) {
            return Some(result);
        }
        loop {
            let entry = self.tables.find(id)?;
            if let Some(old) = entry.drains()
                && let Some(result) = old.table().read(id, |row| f(Found::Row(row)))
            {
                return Some(result);
            }
            if let Some(result) = entry.table().read(id, |row| f(Found::Row(row))) {
                return Some(result);
            }
            if !entry.slot().has_moved(id) {
                return None;
            }
            self.tables = self.space.ring.load();
        }
    }

    /// The same, wherever the row is.
    fn look<R>(
        &mut self,
        id: u64,
        mut f: impl FnMut(Found<'_>) -> R,
    ) -> Result<Option<R>, Unreadable> {
        let found = self.look_in_memory(id, &mut f);
        if found.is_none() && id >= self.horizon && self.may_lie_below(id) {
            return self.space.look_below(id, |values| f(Found::Values(values)));
        }
        Ok(found)
    }

    /// See [`Space::get`].
    pub fn get(&mut self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        let living = self.shape.living;
        let found = self.look(id, |found| found.copy(living, out));
        if !matches!(found, Ok(Some(()))) {
            out.fill(0);
        }
        Ok(found?.is_some())
    }

    /// [`Read::get`] for a row in memory.
    pub(crate) fn get_in_memory(&mut self, id: u64, out: &mut [i64]) -> bool {
        let living = self.shape.living;
        let found = self.look_in_memory(id, |found| found.copy(living, out));
        if found.is_none() {
            out.fill(0);
        }
        found.is_some()
    }

    /// See [`Space::exists`].
    pub fn exists(&mut self, id: u64) -> Result<bool, Unreadable> {
        Ok(self.look(id, |_| ())?.is_some())
    }

    /// Asks the cache for the rows of some ids: before a batch of writes, each of which would else
    /// wait for memory alone.
    pub fn prefetch(&self, ids: &[u64]) {
        ids.iter().for_each(|&id| prefetch(&self.tables, id));
    }
}

/// Asks the cache for the row of `id`.
#[inline]
pub(crate) fn prefetch(tables: &Tables<Table>, id: u64) {
    let Some(entry) = tables.find(id) else { return };
    for table in [Some(entry.table()), entry.drains().map(|old| old.table())].into_iter().flatten()
    {
        if let Some(home) = table.home(id) {
            table.prefetch(home);
        }
    }
}

fn copy_living(values: &[i64], living: u64, out: &mut [i64]) {
    for (field, value) in out.iter_mut().enumerate() {
        let known = field < 64 && living >> field & 1 == 1;
        *value = if known { values.get(field).copied().unwrap_or(0) } else { 0 };
    }
}
