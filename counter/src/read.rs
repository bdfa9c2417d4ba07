//! Reads: no lock, and no wait (promise 1).
//!
//! A row may be moving while it is looked for, so the places are visited in the order in which rows
//! move: aside, drained table, table. A miss counts only if the table still is the one that takes
//! the id; else a fresh snapshot of the ring is taken and searched.

use crate::Schema;
use crate::space::{Shape, Space};
use crate::table::{Row, Table};
use arc_swap::Guard;
use rolling::Tables;
use std::sync::Arc;

/// A view for one batch of reads; see [`Space::read`].
pub struct Read<'a> {
    pub(crate) space: &'a Space,
    pub(crate) shape: Guard<Arc<Shape>>,
    pub(crate) tables: Guard<Arc<Tables<Table>>>,
    /// Whether rows that are not in memory count.
    pub(crate) below: bool,
    /// Ids below it have no rows.
    pub(crate) horizon: u64,
}

impl<'a> Read<'a> {
    pub(crate) fn new(space: &'a Space) -> Read<'a> {
        Read {
            space,
            shape: space.shape.load(),
            tables: space.ring.load(),
            below: true,
            horizon: space.horizon(),
        }
    }

    /// The schema by which this view answers.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shape.schema
    }

    /// From here on only rows in memory count.
    pub(crate) fn leave_out_below(&mut self) {
        self.below = false;
    }

    /// Whether the row is in memory.
    pub(crate) fn in_memory(&mut self, id: u64) -> bool {
        self.below = false;
        self.exists(id)
    }

    /// Whether a row that was missed in memory may lie below the line. To be asked after the miss
    /// (D1).
    #[inline(always)]
    pub(crate) fn may_lie_below(&self, id: u64) -> bool {
        self.below && id < self.space.cold_end()
    }

    /// Runs `inside` on the row of `id` in a table (maybe several times, the last counts), or
    /// `values` on its values in the outliers or below.
    fn look<R>(
        &mut self,
        id: u64,
        mut inside: impl FnMut(Row<'_>) -> R,
        mut values: impl FnMut(&[i64]) -> R,
    ) -> Option<R> {
        if id < self.horizon {
            return None;
        }
        if let Some(result) = self.space.outliers.read(id, |row| values(&row.values)) {
            return Some(result);
        }
        loop {
            let entry = self.tables.find(id)?;
            if let Some(old) = entry.drains()
                && let Some(result) = old.table().read(id, &mut inside)
            {
                return Some(result);
            }
            if let Some(result) = entry.table().read(id, &mut inside) {
                return Some(result);
            }
            if !entry.slot().has_moved(id) {
                return if self.may_lie_below(id) {
                    self.space.look_below(id, values)
                } else {
                    None
                };
            }
            self.tables = self.space.ring.load();
        }
    }

    /// See [`Space::get`].
    pub fn get(&mut self, id: u64, out: &mut [i64]) -> bool {
        let living = self.shape.living;
        // Only one of the two closures runs at a time, but both want `out`.
        let out = std::cell::RefCell::new(out);
        let found = self.look(
            id,
            |row| row.values(living, &mut out.borrow_mut()),
            |values| copy_living(values, living, &mut out.borrow_mut()),
        );
        if found.is_none() {
            out.borrow_mut().fill(0);
        }
        found.is_some()
    }

    /// See [`Space::exists`].
    pub fn exists(&mut self, id: u64) -> bool {
        self.look(id, |_| (), |_| ()).is_some()
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
