//! Rows that are not in memory: ids below a line may have theirs in a [`ColdBackend`], which this
//! file asks.
//!
//! ```text
//!   read:   aside -> drained table -> table -> [below the line: tombstones -> ColdBackend::get]
//!   write:  under the row's stripe: is it in a table? else, below the line, what
//!           ColdBackend::at_hand has of it is stored there first
//!   spill:  line rises, barrier -> sorted walk, a piece at a time -> ColdBackend publishes a file
//!           -> rows that are as in the file leave the tables
//! ```
//!
//! What is in a table is newer than what lies below. So the tables of a range that was spilled are
//! the *overlay* of its file: rows that were changed since. A spill of such a range merges the two;
//! there is no second mechanism.
//!
//! **D1** A row leaves a table only after `ColdBackend` answers for it, and under its stripe; a
//! reader asks `ColdBackend` only after it has missed the row in the tables. So no reader misses
//! it. **D2** A row that was deleted above the line leaves a *tomb*, which says that what lies
//! below is dead; it is put there before the row goes, and taken away by the next spill of its
//! range, which leaves the row out. **D3** A deletion that began before a spill's walk is over
//! before the walk begins (the barrier); one that began later leaves a tomb of a later epoch, which
//! that spill does not take away. **D4** A row whose id has a tomb stays in memory, whatever the
//! file has: it came to be again.

use crate::Error;
use crate::cold_backend::{BelowRow, ColdBackend};
use crate::space::Space;
use crate::table::hash_of;
use crate::tombstones::TOMB_BYTES;
use rolling::Unreadable;
use std::sync::atomic::Ordering::SeqCst;

/// A spill under way: of a range of ids, by [`Space::begin_spill`].
#[derive(Debug)]
pub struct Spill {
    /// The lowest id.
    pub low: u64,
    /// The highest id, inclusive.
    pub last: u64,
    /// Values per row.
    pub width: usize,
    /// Ids below this have been [given](Space::next_ids); `None`: all have.
    next: Option<u64>,
    /// Tombstones of this epoch and earlier ones are taken into account.
    epoch: u64,
}

impl Space {
    /// From now on rows may be kept by `below`: those of the ids below `end`, for which it answers
    /// already; `newest`: the first and the last one of its newest rows. Once per space, before any
    /// row comes.
    pub fn attach(&self, below: Box<dyn ColdBackend>, end: u64, newest: Option<(u64, u64)>) {
        assert!(self.below.set(below).is_ok(), "a space is attached once");
        self.cold_end.fetch_max(end, SeqCst);
        if let Some((first, last)) = newest {
            // A cold id that is written is not far ahead, though no table knows of it.
            self.frontier.adopt(last, (last - first) / 4);
        }
    }

    /// Whether that has been done.
    pub fn is_attached(&self) -> bool {
        self.below.get().is_some()
    }

    /// Ids below this may have their rows elsewhere; 0 if none have.
    #[inline]
    pub fn cold_end(&self) -> u64 {
        self.cold_end.load(SeqCst)
    }

    /// Whether the row of `id`, if there is one, must be asked for below the line.
    pub fn is_cold(&self, id: u64) -> bool {
        (self.horizon()..self.cold_end()).contains(&id)
            && !self.read().in_memory(id)
            && !self.tombstones.holds(id)
    }

    /// Deleted ids whose rows may still be below the line, in a range.
    pub fn tombs_in(&self, low: u64, last: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        self.tombstones.visit(low, last, |id, _| ids.push(id));
        ids
    }

    /// How many there are in a range, and their bytes.
    pub fn tombs_of(&self, low: u64, last: u64) -> (u64, u64) {
        let mut n = 0;
        self.tombstones.visit(low, last, |_, _| n += 1);
        (n, n * TOMB_BYTES)
    }

    /// Whether what lies below of `id` is dead.
    pub fn is_buried(&self, id: u64) -> bool {
        self.tombstones.holds(id)
    }

    /// What lies below of `id` is dead: recovery.
    pub fn bury(&self, id: u64) {
        if id < self.cold_end() {
            self.tombstones.add(id, &self.budget);
        }
    }

    /// How many there are, and their bytes.
    pub fn tombstones(&self) -> (u64, u64) {
        let n = self.tombstones.len();
        (n, n * TOMB_BYTES)
    }

    /// What lies below of `id`, for a reader that missed it in memory.
    #[cold]
    pub(crate) fn look_below<R>(
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

    /// For a writer that holds the row's stripe and has not found it in a table: its values below
    /// the line, if it has any there.
    pub(crate) fn below_at_hand(&self, id: u64) -> BelowRow {
        if id >= self.cold_end() || self.tombstones.holds(id) {
            return BelowRow::Absent;
        }
        let Some(below) = self.below.get() else { return BelowRow::Absent };
        let mut row = [0; 64];
        match below.at_hand(id, &mut row) {
            None => BelowRow::ToFetch,
            Some(false) => BelowRow::Absent,
            Some(true) => BelowRow::Found(Box::new(row)),
        }
    }

    pub(crate) fn fetch_below(&self, id: u64) -> Result<(), Unreadable> {
        self.below.get().map_or(Ok(()), |below| below.fetch(id))
    }

    /// Begins to spill the rows of `low..=last`, which the newest table must not cover. From here
    /// on deletions in the range leave tombs. One at a time per space.
    pub fn begin_spill(&self, low: u64, last: u64) -> Spill {
        assert!(last < u64::MAX, "the newest table is not spilled");
        let epoch = self.tombstones.next_epoch();
        self.cold_end.fetch_max(last + 1, SeqCst);
        self.ring.barrier(low, last);
        Spill { low, last, width: self.schema().width(), next: Some(low), epoch }
    }

    /// The next of the spill's ids that are in memory, rising: `most` of them, or the last ones.
    /// False: there are no more. Each call walks the tables once, and `ids` takes 16 bytes for each
    /// of `most`: sorting all of a table's at once would take as much memory as its rows.
    pub fn next_ids(&self, spill: &mut Spill, most: usize, ids: &mut Vec<u64>) -> bool {
        ids.clear();
        let Some(from) = spill.next else { return false };
        let most = most.max(1);
        ids.reserve_exact(2 * most);
        // Of what was visited, ids above this are not among the lowest `most`.
        let mut bound = spill.last;
        let lowest = |ids: &mut Vec<u64>| {
            ids.sort_unstable();
            // A row may be visited twice.
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

    /// The rows of some of the spill's ids as they are now: `found` says which still exist; the
    /// others were deleted.
    pub fn spill_rows(&self, ids: &[u64], rows: &mut Vec<i64>, found: &mut Vec<bool>) {
        self.read().get_batch_in_memory(ids, rows, found);
    }

    /// `ColdBackend` answers with the new file, which lacks what the spill's tombstones say is
    /// dead: they go.
    pub fn unbury(&self, spill: &Spill) {
        self.tombstones.remove(spill.low, spill.last, spill.epoch);
    }

    /// After [`Space::unbury`]: rows that are in memory as they are in the file need not stay.
    /// `rows`: some of the file's.
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
                    // Asked for now that no writer is in the row: what it has in a field that was
                    // added meanwhile is not in the file.
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

    /// The spill is over: its tables give back the memory that they do not need any more.
    pub fn end_spill(&self, spill: &Spill) -> Result<(), Error> {
        self.shrink(spill.low, spill.last)
    }
}
