//! Reads: no lock, and no wait for anybody (promise 1).
//!
//! A row may be moving while it is looked for, so the places are visited in the order in which rows move: aside, drained table, table. A miss
//! counts only if the table still is the one that takes the id; else a fresh snapshot of the ring is taken and searched.

use crate::Schema;
use crate::space::{Shape, Space};
use crate::table::{Row, Search, Step, Table};
use arc_swap::Guard;
use rolling::{Entry, Tables};
use std::sync::Arc;

/// Ids that are looked up together: enough to overlap memory latencies, few enough to stay in the first cache; one bit each in a u32.
const CHUNK: usize = 32;

/// A view for one batch of reads; see [`Space::read`].
pub struct Read<'a> {
    space: &'a Space,
    shape: Guard<Arc<Shape>>,
    tables: Guard<Arc<Tables<Table>>>,
}

/// Whether a miss in this entry is final. (A roll may have moved the entry's end below `id` since the snapshot was taken.)
#[inline(always)]
fn is_current(entry: &Entry<Table>, id: u64) -> bool {
    !entry.slot().is_closed() && id <= entry.slot().last()
}

impl<'a> Read<'a> {
    pub(crate) fn new(space: &'a Space) -> Read<'a> {
        Read { space, shape: space.shape.load(), tables: space.ring.load() }
    }

    /// The schema by which this view answers.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shape.schema
    }

    /// Runs `inside` on the row of `id` in a table (maybe several times, the last counts), or `aside` on its values in the aside.
    fn look<R>(&mut self, id: u64, mut inside: impl FnMut(Row<'_>) -> R, aside: impl FnOnce(&[i64]) -> R) -> Option<R> {
        if let Some(result) = self.space.aside.read(id, |row| aside(&row.values)) {
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
            if is_current(entry, id) {
                return None;
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

    /// See [`Space::get_batch`].
    pub fn get_batch(&mut self, ids: &[u64], rows: &mut Vec<i64>, found: &mut Vec<bool>) {
        let (width, living) = (self.shape.schema.width(), self.shape.living);
        let mut at = rows.len();
        rows.resize(at + ids.len() * width, 0);
        for ids in ids.chunks(CHUNK) {
            let rows = &mut rows[at..at + ids.len() * width];
            at += ids.len() * width;
            self.get_chunk(ids, living, width, rows, found);
        }
    }

    /// One chunk: all searches go on in turns, each turn asking the cache for what the next one needs, so that the memory accesses of all ids
    /// overlap.
    fn get_chunk(&mut self, ids: &[u64], living: u64, width: usize, rows: &mut [i64], found: &mut Vec<bool>) {
        let mut searches = [Search::default(); CHUNK];
        // `Past` stands for everything that the quick way does not know.
        let mut steps = [Step::Past; CHUNK];
        let mut entries: [Option<&Entry<Table>>; CHUNK] = [None; CHUNK];
        let tables = &*self.tables;
        for (i, &id) in ids.iter().enumerate() {
            let Some(entry) = tables.find(id) else { continue };
            let Some(home) = entry.table().home(id) else { continue };
            // In the order in which rows move: aside, drained table, table.
            if entry.drains().is_none() && !self.space.aside.may_hold(id) {
                searches[i] = entry.table().begin(home);
                steps[i] = Step::Waiting;
                entries[i] = Some(entry);
            }
        }
        let mut waiting: u32 = (0..ids.len()).fold(0, |w, i| w | u32::from(steps[i] == Step::Waiting) << i);
        while waiting != 0 {
            let mut rest = waiting;
            while rest != 0 {
                let i = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if let Some(entry) = entries[i] {
                    let out = &mut rows[i * width..][..width];
                    steps[i] = entry.table().advance(&mut searches[i], ids[i], |row| row.values(living, out));
                    waiting &= !(u32::from(steps[i] != Step::Waiting) << i);
                }
            }
        }
        let mut slow = 0u32;
        for (i, &id) in ids.iter().enumerate() {
            let known = match (steps[i], entries[i]) {
                (Step::Found, _) => true,
                (Step::Absent, Some(entry)) => is_current(entry, id),
                _ => false,
            };
            if steps[i] != Step::Found {
                // A row that was deleted under the search may have left something.
                rows[i * width..][..width].fill(0);
            }
            found.push(steps[i] == Step::Found);
            slow |= u32::from(!known) << i;
        }
        let first = found.len() - ids.len();
        while slow != 0 {
            let i = slow.trailing_zeros() as usize;
            slow &= slow - 1;
            found[first + i] = self.get(ids[i], &mut rows[i * width..][..width]);
        }
    }

    /// Asks the cache for the rows of some ids: before a batch of writes, each of which would else wait for memory alone.
    pub fn prefetch(&self, ids: &[u64]) {
        for &id in ids {
            let Some(entry) = self.tables.find(id) else { continue };
            for table in [Some(entry.table()), entry.drains().map(|old| old.table())].into_iter().flatten() {
                if let Some(home) = table.home(id) {
                    table.prefetch(home);
                }
            }
        }
    }
}

fn copy_living(values: &[i64], living: u64, out: &mut [i64]) {
    for (field, value) in out.iter_mut().enumerate() {
        let known = field < 64 && living >> field & 1 == 1;
        *value = if known { values.get(field).copied().unwrap_or(0) } else { 0 };
    }
}
