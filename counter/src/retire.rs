//! Retirement: ids below the *horizon* have no rows, and the space refuses new rows for these ids.
//!
//! The horizon takes effect immediately, because readers and writers compare ids with it. The
//! horizon never decreases. Background steps free the memory: tables entirely below the horizon
//! leave the ring, and rows below it are deleted from the table that contains it.

use crate::rewrite_state::Rewrite;
use crate::space::Space;
use crate::table::hash_of;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// Rows deleted per step.
const STEP_ROWS: usize = 4096;

impl Space {
    /// Lowest id that may have a row; 0 if nothing was retired.
    #[inline]
    pub fn horizon(&self) -> u64 {
        self.retirement.line.load(SeqCst)
    }

    /// Retires all rows of ids below `id`. On return no such row can be read or written;
    /// [`Space::maintain`] frees their memory. An `id` below the current horizon has no effect.
    pub fn retire_below(&self, id: u64) {
        if self.retirement.line.fetch_max(id, SeqCst) < id {
            // Wait for writers that have not seen the new horizon.
            self.ring.barrier(0, id - 1);
        }
    }

    /// Whether memory of retired rows remains to be freed.
    pub(crate) fn is_retiring(&self) -> bool {
        self.retirement.through.load(Relaxed) != self.horizon()
    }

    /// Frees some memory of retired rows. Returns whether there was work.
    pub(crate) fn retire_step(&self) -> bool {
        if !self.is_retiring() {
            return false;
        }
        let Some(mut rewriting) = self.rewriting.try_lock() else { return false };
        let line = self.horizon();
        if rewriting.as_ref().is_some_and(|rewrite| rewrite.range().1 < line) {
            *rewriting = self.abort_rewrite(rewriting.take());
            return true;
        }
        let tables = self.ring.load();
        let oldest = tables.oldest();
        if oldest.drains().is_some() {
            // The rewrite of this table must finish first.
            return false;
        }
        let (low, last) = (oldest.slot().low(), oldest.slot().last());
        drop(tables);
        if last < line {
            return self.recycle();
        }
        let rows = &mut *self.retirement.rows.lock();
        if low < line && rows.is_empty() {
            self.visit_oldest(|id| rows.extend((id < line).then_some(id)));
        }
        let some = rows.len().saturating_sub(STEP_ROWS);
        for id in rows.drain(some..) {
            self.ring.write(id, hash_of(id), |entry| {
                let table = entry.table();
                if let Some(at) = table.locate(id) {
                    table.delete(id, at);
                }
            });
        }
        if rows.is_empty() {
            *rows = Vec::new();
            // Lookups below the horizon never consult tombstones.
            self.tombstones.remove(0, line - 1, u64::MAX);
            self.retirement.through.store(line, Relaxed);
        }
        true
    }

    /// Aborts the rewrite of a retired table. The rows that the rewrite has moved are also retired.
    fn abort_rewrite(&self, rewrite: Option<Rewrite>) -> Option<Rewrite> {
        let rewrite = rewrite?;
        let (_, last) = rewrite.range();
        while self.ring.load().oldest().slot().last() <= last && self.recycle() {}
        rewrite.end(self);
        None
    }

    /// Removes the oldest table from the ring.
    fn recycle(&self) -> bool {
        // Opening a table above the newest must not race with this removal, because the newest
        // table may be the only remaining table.
        let _rolling = self.rolling.lock();
        let oldest = self.ring.recycle();
        let slot = oldest.map(rolling::Entry::into_slot);
        let was_there = slot.is_some();
        self.retired.lock().extend(slot);
        was_there
    }

    fn visit_oldest(&self, mut f: impl FnMut(u64)) {
        let (tables, living) = (self.ring.load_full(), self.shape.load().living);
        let (table, mut room) = (tables.oldest().table(), Vec::new());
        for bucket in 0..table.buckets() {
            table.visit(bucket, living, 0, &mut room, |id, _, _| f(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Bounds, Change, Error, Options, Schema, Space};

    fn space(rows: u64) -> Space {
        let schema = Schema::parse("a:8 b:8").unwrap();
        let space =
            Space::new(Options { rows_per_table: 1 << 10, ..Options::new(schema) }).unwrap();
        (1000..1000 + rows).for_each(|id| _ = space.set(id, &[(0, 7)]).unwrap());
        while space.maintain() {}
        space
    }

    #[test]
    fn rows_below_the_line_are_gone_and_their_memory_comes_back() {
        let rows = if cfg!(miri) { 300 } else { 20_000 };
        let (space, line) = (space(rows), 1000 + rows / 2 + 3);
        let before = (space.memory_bytes(), space.ranges().len());
        space.retire_below(line);
        space.retire_below(5);
        assert_eq!(space.horizon(), line, "the horizon never falls");
        let mut row = [0; 2];
        let check = |space: &Space, row: &mut [i64]| {
            for id in [0, 1000, line - 1, line, 999 + rows] {
                let is_there = id >= line;
                assert_eq!(
                    (space.get(id, row).unwrap(), space.exists(id).unwrap()),
                    (is_there, is_there),
                    "{id}"
                );
                assert_eq!(row[0], if is_there { 7 } else { 0 });
            }
            let (mut page, mut found) = (vec![], vec![]);
            space.get_batch(&[1000, line, line - 1], &mut page, &mut found).unwrap();
            assert_eq!((page, found), (vec![0, 0, 7, 0, 0, 0], vec![false, true, false]));
        };
        check(&space, &mut row);
        let mut walked = vec![];
        space.for_each(|id, _| walked.push(id));
        space.scan(0, u64::MAX, |id| walked.push(id));
        assert!(walked.iter().all(|&id| id >= line) && walked.len() as u64 >= 1000 + rows - line);
        while space.maintain() {}
        check(&space, &mut row);
        assert_eq!(space.rows(), 1000 + rows - line);
        assert!(space.memory_bytes() < before.0 && space.ranges().len() < before.1);
        assert!(!space.wants_maintenance());
    }

    /// After a restart, all ids of a space with few rows are still outliers (stored outside the
    /// tables).
    #[test]
    fn a_space_that_has_hardly_begun_takes_no_retired_ids() {
        let space = space(0);
        space.retire_below(991);
        let (change, mut out) = ([Change { field: 0, delta: 1 }], vec![]);
        for id in (991..1000).chain([5, 990]) {
            let added = space.add(id, &change, &Bounds::default(), &mut out);
            assert_eq!(added.is_ok(), id >= 991, "{id}: {added:?}");
            assert_eq!(space.set(id, &[(0, 7)]).is_ok(), id >= 991, "{id}");
        }
        space.put(5, Some(&[1, 1])).unwrap();
        assert!(!space.exists(5).unwrap() && space.rows() == 9);
        assert!(matches!(space.set(990, &[(0, 1)]), Err(Error::Retired { horizon: 991 })));
    }

    #[test]
    fn nothing_is_written_below_the_line() {
        let space = space(3000);
        space.retire_below(2000);
        let mut out = vec![];
        for id in [0, 1000, 1999] {
            let change = [Change { field: 0, delta: 1 }];
            let refused = space.add(id, &change, &Bounds::default(), &mut out);
            assert_eq!(refused, Err(Error::Retired { horizon: 2000 }), "{id}");
            assert!(space.set(id, &[(0, 1)]).is_err() && !space.delete(id).unwrap());
            // Replay skips retired rows without an error.
            space.put(id, Some(&[1, 1])).unwrap();
            space.put(id, None).unwrap();
            assert!(!space.exists(id).unwrap());
        }
        space.add(2000, &[Change { field: 0, delta: 1 }], &Bounds::default(), &mut out).unwrap();
        assert_eq!(out, [8]);
        while space.maintain() {}
        assert!(space.set(1000, &[(0, 1)]).is_err(), "the table is gone");
        space.put(1000, Some(&[1, 1])).unwrap();
        assert_eq!((space.exists(1000).unwrap(), space.rows()), (false, 2000));
    }

    /// A space accepts new rows after all its rows were retired.
    #[test]
    fn a_space_of_which_all_was_retired_takes_new_rows() {
        let space = space(3000);
        space.retire_below(4000);
        while space.maintain() {}
        assert_eq!(space.rows(), 0);
        (4000..9000).for_each(|id| _ = space.set(id, &[(1, 3)]).unwrap());
        while space.maintain() {}
        assert_eq!(
            (space.rows(), space.exists(4000).unwrap(), space.exists(3999).unwrap()),
            (5000, true, false)
        );
    }

    /// The ids arrive in random order, so that rewrites and retirement overlap.
    #[test]
    fn tables_that_are_rewritten_may_be_retired() {
        let schema = Schema::parse("a:8").unwrap();
        let space = Space::new(Options { rows_per_table: 256, ..Options::new(schema) }).unwrap();
        let rows = if cfg!(miri) { 300 } else { 30_000u64 };
        let id = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) + 1;
        for i in 0..rows {
            match space.set(id(i), &[(0, 1)]) {
                Ok(_) => {}
                Err(error) => assert!(
                    matches!(error, Error::Retired { horizon } if id(i) < horizon),
                    "{error}"
                ),
            }
            if i % 64 == 0 {
                space.maintain();
            }
            if i % (rows / 20) == rows / 40 {
                space.retire_below(id(i).min(i << 8));
            }
        }
        while space.maintain() {}
        let line = space.horizon();
        let ids: std::collections::BTreeSet<u64> =
            (0..rows).map(id).filter(|id| *id >= line).collect();
        assert!(line > 0 && space.rows() == ids.len() as u64, "{line} {}", space.rows());
        assert!(ids.iter().all(|&id| space.exists(id).unwrap()));
    }
}
