//! Cold rows: rows of ids below `cold_end` that a [`ColdBackend`] keeps outside memory.
//!
//! ```text
//!   read:   outliers -> drained table -> table -> [below cold_end: tombstones -> ColdBackend::get]
//!   write:  under the row's stripe: if no table has the row and its id is below cold_end,
//!           store the values of ColdBackend::at_hand in the table first
//!   spill:  raise cold_end, barrier -> sorted walk in batches -> ColdBackend publishes a file
//!           -> drop the rows that equal those in the file
//! ```
//!
//! A row in a table is newer than the same row in the backend. The tables of a spilled range are
//! the *overlay* of its file: rows changed since the spill. Spilling such a range again merges the
//! overlay with the file.
//!
//! Invariants:
//! - **D1** A thread removes a row from a table only while it holds the lock of the row's stripe,
//!   and only after the backend can return the row. A reader queries the backend only after a miss
//!   in the tables. Therefore no reader misses a row.
//! - **D2** Deleting a row below `cold_end` first adds a *tombstone*, which hides the row in the
//!   backend. The next spill of the range omits the row and removes the tombstone.
//! - **D3** The barrier waits for all deletions that began before a spill's walk. Later deletions
//!   leave a tombstone with a later epoch, which that spill does not remove.
//! - **D4** A row whose id has a tombstone stays in memory: it was created again after its
//!   deletion.

use crate::Error;
use crate::cold_backend::{ColdBackend, ColdLookup};
use crate::space::Space;
use crate::table::hash_of;
use crate::tombstones::TOMBSTONE_BYTES;
use rolling::Unreadable;
use std::sync::atomic::Ordering::SeqCst;

/// A spill in progress, started by [`Space::begin_spill`].
#[derive(Debug)]
pub struct Spill {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range, inclusive.
    pub last: u64,
    /// Values per row.
    pub width: usize,
    /// Lowest id that [`Space::next_ids`] has not returned yet, or `None` at the end.
    next: Option<u64>,
    /// Last epoch whose tombstones this spill applies.
    epoch: u64,
}

impl Space {
    /// Attaches a backend. Must be called at most once per space, before any write.
    ///
    /// The backend must already serve reads of ids below `end`. `newest` is the lowest and highest
    /// id of the newest cold rows.
    ///
    /// # Panics
    ///
    /// If the space has a backend already.
    pub fn attach(&self, below: Box<dyn ColdBackend>, end: u64, newest: Option<(u64, u64)>) {
        assert!(self.below.set(below).is_ok(), "a space is attached once");
        self.cold_end.fetch_max(end, SeqCst);
        if let Some((first, last)) = newest {
            // The newest cold ids may have no table in memory, yet a write to them must not count
            // as a write to an outlier (an id far above all others).
            self.frontier.adopt(last, (last - first) / 4);
        }
    }

    /// Whether the space has a backend.
    pub fn is_attached(&self) -> bool {
        self.below.get().is_some()
    }

    /// Ids below this bound may have cold rows; 0 if the space has no cold rows.
    #[inline]
    pub fn cold_end(&self) -> u64 {
        self.cold_end.load(SeqCst)
    }

    /// Returns whether only the backend knows if `id` has a row.
    pub fn is_cold(&self, id: u64) -> bool {
        (self.horizon()..self.cold_end()).contains(&id)
            && !self.read().in_memory(id)
            && !self.tombstones.holds(id)
    }

    /// Returns the tombstones of a range.
    pub fn tombstones_in(&self, low: u64, last: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        self.tombstones.visit(low, last, |id, _| ids.push(id));
        ids
    }

    /// Returns the number of tombstones in a range, and their bytes.
    pub fn count_tombstones(&self, low: u64, last: u64) -> (u64, u64) {
        let mut n = 0;
        self.tombstones.visit(low, last, |_, _| n += 1);
        (n, n * TOMBSTONE_BYTES)
    }

    /// Whether `id` has a tombstone.
    pub fn has_tombstone(&self, id: u64) -> bool {
        self.tombstones.holds(id)
    }

    /// Adds a tombstone for `id`, during recovery.
    pub fn add_tombstone(&self, id: u64) {
        if id < self.cold_end() {
            self.tombstones.add(id, &self.budget);
        }
    }

    /// Returns the number of tombstones, and their bytes.
    pub fn tombstones(&self) -> (u64, u64) {
        let n = self.tombstones.len();
        (n, n * TOMBSTONE_BYTES)
    }

    /// Reads `id` from the backend after a miss in memory.
    #[cold]
    pub(crate) fn read_cold_row<R>(
        &self,
        id: u64,
        f: impl FnOnce(&[i64]) -> R,
    ) -> Result<Option<R>, Unreadable> {
        let Some(below) = self.below.get().filter(|_| !self.tombstones.holds(id)) else {
            return Ok(None);
        };
        let mut row = [0; 64];
        let found = below.get(id, &mut row)?;
        Ok(found.then(|| f(&row[..self.shape.load().schema.width()])))
    }

    /// Returns the cold values of a row. The caller holds the row's stripe and has not found the
    /// row in a table.
    pub(crate) fn cached_cold_row(&self, id: u64) -> ColdLookup {
        if id >= self.cold_end() || self.tombstones.holds(id) {
            return ColdLookup::Absent;
        }
        let Some(below) = self.below.get() else { return ColdLookup::Absent };
        let mut row = [0; 64];
        match below.at_hand(id, &mut row) {
            None => ColdLookup::ToFetch,
            Some(false) => ColdLookup::Absent,
            Some(true) => ColdLookup::Found(Box::new(row)),
        }
    }

    pub(crate) fn fetch_cold_row(&self, id: u64) -> Result<(), Unreadable> {
        self.below.get().map_or(Ok(()), |below| below.fetch(id))
    }

    /// Starts a spill of the rows in `low..=last`. A space can run one spill at a time. From now
    /// on, deletions in the range leave tombstones.
    ///
    /// # Panics
    ///
    /// If `last` is `u64::MAX`: the newest table cannot be spilled.
    pub fn begin_spill(&self, low: u64, last: u64) -> Spill {
        assert!(last < u64::MAX, "the newest table is not spilled");
        let epoch = self.tombstones.next_epoch();
        self.cold_end.fetch_max(last + 1, SeqCst);
        self.ring.barrier(low, last);
        Spill { low, last, width: self.schema().width(), next: Some(low), epoch }
    }

    /// Fills `ids` with the next ids of the spill that are in memory, at most `most` of them, in
    /// ascending order. Returns false at the end.
    ///
    /// Each call walks the tables once, and `ids` uses 16 bytes per requested id. Sorting all ids
    /// of a table at once would need as much memory as the rows of the table.
    pub fn next_ids(&self, spill: &mut Spill, most: usize, ids: &mut Vec<u64>) -> bool {
        ids.clear();
        let Some(from) = spill.next else { return false };
        let most = most.max(1);
        ids.reserve_exact(2 * most);
        // Ids above this bound cannot be among the lowest `most` ids.
        let mut bound = spill.last;
        let lowest = |ids: &mut Vec<u64>| {
            ids.sort_unstable();
            // The walk may visit a row twice.
            ids.dedup();
            ids.truncate(most);
            ids.get(most - 1).copied()
        };
        self.walk_ids(from, spill.last, |id| {
            if id <= bound {
                ids.push(id);
                if ids.len() == 2 * most {
                    bound = lowest(ids).unwrap_or(bound);
                }
            }
        });
        spill.next = lowest(ids).filter(|&id| id < spill.last).map(|id| id + 1);
        !ids.is_empty()
    }

    /// Reads the current rows of some ids of the spill. `found` is false for deleted rows.
    pub fn spill_rows(&self, ids: &[u64], rows: &mut Vec<i64>, found: &mut Vec<bool>) {
        self.read().get_batch_in_memory(ids, rows, found);
    }

    /// Removes the tombstones that the spill applied. Must be called once the backend reads from
    /// the new file.
    pub fn remove_tombstones(&self, spill: &Spill) {
        self.tombstones.remove(spill.low, spill.last, spill.epoch);
    }

    /// Removes rows from memory whose values equal the values in the new file. `rows` contains the
    /// values from the file; call [`Space::remove_tombstones`] first. Returns the number of removed
    /// rows.
    pub fn drop_spilled(&self, ids: &[u64], rows: &[i64], width: usize) -> usize {
        let mut dropped = 0;
        for (&id, row) in ids.iter().zip(rows.chunks(width.max(1))) {
            let written = self.ring.write(id, hash_of(id), |entry| {
                if self.tombstones.holds(id) {
                    return false;
                }
                for table in [entry.drains().map(rolling::Slot::table), Some(entry.table())]
                    .into_iter()
                    .flatten()
                {
                    let Some(at) = table.locate(id) else { continue };
                    let now = table.row(at, id);
                    // Load the schema while holding the stripe, because a field that is added
                    // concurrently is not in the file.
                    let shape = self.shape.load();
                    let same =
                        |(field, _)| now.value(field) == row.get(field).copied().unwrap_or(0);
                    if shape.schema.living().all(same) {
                        table.delete(id, at);
                        return true;
                    }
                }
                false
            });
            dropped += usize::from(written == Some(true));
        }
        dropped
    }

    /// Ends a spill and shrinks the tables of its range.
    pub fn end_spill(&self, spill: &Spill) -> Result<(), Error> {
        self.shrink(spill.low, spill.last)
    }
}
