//! Walking all rows while writes go on: for snapshots, spills and advice.
//!
//! The walk goes by ids, not by a list of tables, since tables may be replaced meanwhile: each
//! range is walked in the order in which rows move (aside, drained table, table), and walked again
//! if its table was replaced while it was walked. So a row that lives through the walk is visited
//! at least once, maybe twice, each time as it was at one moment.

use crate::space::{Shape, Space};
use crate::table::Table;

impl Space {
    /// Visits every row: id and values by position (of the schema at the start). Every row that
    /// exists from before the call until its end is visited at least once. In no particular order,
    /// but for tables, which come by rising ids.
    pub fn for_each(&self, f: impl FnMut(u64, &[i64])) {
        self.for_each_in(0, u64::MAX, f);
    }

    /// [`Space::for_each`] for the ids of `low..=last`.
    pub fn for_each_in(&self, low: u64, last: u64, f: impl FnMut(u64, &[i64])) {
        let shape = self.shape.load_full();
        self.walk(&shape, shape.schema.width(), low, last, f);
    }

    /// The ids alone.
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
