//! Point reads, without locks or waits.
//!
//! A row may move during a lookup. The reader therefore searches in the order in which rows move:
//! map of outliers (ids far above all others), drained table, table. After a miss it checks whether
//! the table still covers the id; if not, it loads a new snapshot of the ring and searches again.

use crate::Schema;
use crate::space::{Shape, Space};
use crate::table::{Row, Table};
use arc_swap::Guard;
use rolling::{Tables, Unreadable, UnreadableIds};
use std::sync::Arc;

/// View for a batch of reads; see [`Space::read`].
pub struct Read<'a> {
    pub(crate) space: &'a Space,
    pub(crate) shape: Guard<Arc<Shape>>,
    pub(crate) tables: Guard<Arc<Tables<Table>>>,
    /// Ids below this have no rows.
    pub(crate) horizon: u64,
}

enum FoundRow<'a> {
    /// A row of a table.
    Row(Row<'a>),
    /// Values of an outlier or of a cold row, by position.
    Values(&'a [i64]),
}

impl FoundRow<'_> {
    fn copy(&self, living: u64, out: &mut [i64]) {
        match self {
            FoundRow::Row(row) => row.values(living, out),
            FoundRow::Values(values) => copy_present_fields(values, living, out),
        }
    }
}

impl Space {
    /// Creates a view for one batch of reads, with one schema and one snapshot of the ring. Drop
    /// the view promptly, because it keeps replaced tables in memory.
    pub fn read(&self) -> Read<'_> {
        Read::new(self)
    }

    /// Reads a row into `out`, by position, and returns whether it exists. Missing values, and all
    /// values of a missing row, are 0.
    pub fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        self.read().get(id, out)
    }

    /// Reads many rows. Appends `schema().width()` values per id to `rows`, and to `found` whether
    /// the row exists.
    ///
    /// All buckets are prefetched before the first bucket is read. A caller whose schema may change
    /// concurrently uses [`Space::read`] and the schema of that view.
    ///
    /// # Errors
    ///
    /// Lists the rows that cannot be read. Those rows read as missing; all others are valid.
    pub fn get_batch(
        &self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) -> Result<(), UnreadableIds> {
        self.read().get_batch(ids, rows, found)
    }

    /// Prefetches the row of an id that the caller will soon read or write.
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

    /// The schema of this view.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shape.schema
    }

    /// Whether the row is in memory.
    pub(crate) fn in_memory(&mut self, id: u64) -> bool {
        self.read_in_memory(id, |_| ()).is_some()
    }

    /// Whether a row may be in the cold backend. Must be called after a miss in memory (D1).
    #[inline(always)]
    pub(crate) fn may_be_cold(&self, id: u64) -> bool {
        id < self.space.cold_end()
    }

    /// Runs `f` on the row of `id` if it is in memory. `f` may run several times; only its last
    /// result is used.
    fn read_in_memory<R>(&mut self, id: u64, mut f: impl FnMut(FoundRow<'_>) -> R) -> Option<R> {
        if id < self.horizon {
            return None;
        }
        if let Some(result) = self.space.outliers.read(id, |row| f(FoundRow::Values(&row.values))) {
            return Some(result);
        }
        loop {
            let entry = self.tables.find(id)?;
            if let Some(old) = entry.drains()
                && let Some(result) = old.table().read(id, |row| f(FoundRow::Row(row)))
            {
                return Some(result);
            }
            if let Some(result) = entry.table().read(id, |row| f(FoundRow::Row(row))) {
                return Some(result);
            }
            if !entry.slot().has_moved(id) {
                return None;
            }
            self.tables = self.space.ring.load();
        }
    }

    /// Runs `f` on the row of `id`, in memory or in the cold backend.
    fn look<R>(
        &mut self,
        id: u64,
        mut f: impl FnMut(FoundRow<'_>) -> R,
    ) -> Result<Option<R>, Unreadable> {
        let found = self.read_in_memory(id, &mut f);
        if found.is_none() && id >= self.horizon && self.may_be_cold(id) {
            return self.space.read_cold_row(id, |values| f(FoundRow::Values(values)));
        }
        Ok(found)
    }

    /// Reads a row: see [`Space::get`].
    pub fn get(&mut self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        let living = self.shape.living;
        let found = self.look(id, |found| found.copy(living, out));
        if !matches!(found, Ok(Some(()))) {
            out.fill(0);
        }
        Ok(found?.is_some())
    }

    /// Like [`Read::get`], for rows in memory only.
    pub(crate) fn get_in_memory(&mut self, id: u64, out: &mut [i64]) -> bool {
        let living = self.shape.living;
        let found = self.read_in_memory(id, |found| found.copy(living, out));
        if found.is_none() {
            out.fill(0);
        }
        found.is_some()
    }

    /// Whether the row exists: see [`Space::exists`].
    pub fn exists(&mut self, id: u64) -> Result<bool, Unreadable> {
        Ok(self.look(id, |_| ())?.is_some())
    }

    /// Prefetches the rows of `ids`. Without prefetching, a batch of writes stalls once per row.
    pub fn prefetch(&self, ids: &[u64]) {
        ids.iter().for_each(|&id| prefetch(&self.tables, id));
    }
}

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

fn copy_present_fields(values: &[i64], living: u64, out: &mut [i64]) {
    for (field, value) in out.iter_mut().enumerate() {
        let known = field < 64 && living >> field & 1 == 1;
        *value = if known { values.get(field).copied().unwrap_or(0) } else { 0 };
    }
}
