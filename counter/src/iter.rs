//! Iterates over all rows during concurrent writes, for snapshots, spills and advice.
//!
//! The walk proceeds by ids rather than by a list of tables, because tables may be replaced. The
//! walk visits each range in the order in which rows move (map of outliers, which are ids far above
//! all others; drained table; table), and repeats a range whose table was replaced during the walk.
//! A row that exists throughout the walk is visited once or twice, each time with consistent
//! values.

use crate::space::{Shape, Space};
use crate::table::Table;

impl Space {
    /// Passes the id and the values of every row to `f`. The values are ordered by position in the
    /// schema at the start of the call.
    ///
    /// A row that exists throughout the call is visited at least once, possibly twice. Tables are
    /// visited in ascending order of ids, rows within a table in no particular order.
    pub fn for_each(&self, f: impl FnMut(u64, &[i64])) {
        self.for_each_in(0, u64::MAX, f);
    }

    /// Visits the rows of `low..=last`, as [`Space::for_each`] does.
    pub fn for_each_in(&self, low: u64, last: u64, f: impl FnMut(u64, &[i64])) {
        let shape = self.shape.load_full();
        self.walk(&shape, shape.schema.width(), low, last, f);
    }

    /// Visits the ids of `low..=last` without their values.
    pub(crate) fn walk_ids(&self, low: u64, last: u64, mut f: impl FnMut(u64)) {
        self.walk(&self.shape.load_full(), 0, low, last, |id, _| f(id));
    }

    fn walk(
        &self,
        shape: &Shape,
        width: usize,
        low: u64,
        last: u64,
        mut f: impl FnMut(u64, &[i64]),
    ) {
        let low = low.max(self.horizon());
        let mut row = vec![0; width];
        self.outliers.for_each(|id, outliers| {
            if (low..=last).contains(&id) {
                for (field, value) in row.iter_mut().enumerate() {
                    let known = shape.living >> field & 1 == 1;
                    *value =
                        if known { outliers.values.get(field).copied().unwrap_or(0) } else { 0 };
                }
                f(id, &row);
            }
        });
        let mut room = Vec::new();
        let mut next = low;
        loop {
            let tables = self.ring.load_full();
            let Some(entry) = tables.find(next) else { return };
            let mut walk = |table: &Table| {
                let end = entry.slot().last().min(last);
                let mut number = 0;
                while number < table.buckets() {
                    table.visit(number, shape.living, width, &mut room, |id, _, row| {
                        if (next..=end).contains(&id) {
                            f(id, row);
                        }
                    });
                    number += 1;
                }
            };
            if let Some(old) = entry.drains() {
                walk(old.table());
            }
            walk(entry.table());
            if entry.slot().is_closed() {
                continue;
            }
            let end = entry.slot().last();
            if end >= last {
                return;
            }
            next = end + 1;
        }
    }
}
