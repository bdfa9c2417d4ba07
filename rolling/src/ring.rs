//! The ring: the tables of a space in id order. Readers use snapshots, writers use stripes.
//!
//! **Reading.** [`Ring::load`] returns the current [`Tables`], an immutable list.
//!
//! **Writing.** [`Ring::write`] finds the slot that covers the id, locks one of its [`STRIPES`] by
//! the key's hash, and checks that the slot still accepts the id. If the ring has changed,
//! [`Ring::write`] starts over. Writes of one key are serialised; writes of different keys rarely
//! conflict. Readers take no stripe.
//!
//! **Changing the ring** takes three steps (R3):
//! 1. *close*: mark the slot, so that it rejects writes to the ids that another slot will cover;
//! 2. *barrier*: lock and unlock each stripe of the slot. Afterwards no writer that missed the mark
//!    is still running;
//! 3. *publish* the new list. Writers rejected by the mark spin until then, usually a few
//!    microseconds.
//!
//! Readers need not wait. Until the new list is published, all rows are in the old slot, so a
//! reader that finds no row there need not search elsewhere ([`Slot::has_moved`]). After
//! publishing, the old slot is marked closed. Only then do its replacements accept writes.
//!
//! **Rewriting** moves rows between tables concurrently with reads and writes. [`Ring::rewrite`]
//! replaces one slot by several slots that cover the same range and *drain* the old slot. Each row
//! moves while the stripe of its new slot is locked: it is stored in the new table, then deleted
//! from the old table. A reader must follow two rules:
//! - In an [`Entry`] with [`Entry::drains`], search the old table first, then the new table.
//! - After a miss in a slot [from which the id has moved](Slot::has_moved), take a new snapshot and
//!   search again.
//!
//! [`Ring::finish`] removes the old slot once it is empty.
//!
//! **Joining** replaces adjacent small slots by a single slot: [`Ring::join`]. A slot can drain
//! only one other slot. Joining therefore copies the rows between *barrier* and *publish*, while
//! writers of the range wait.

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

/// Number of write stripes per slot, one byte each. With two writers, one write in 256 conflicts.
pub const STRIPES: usize = 256;

/// The slot accepts writes.
const OPEN: u8 = 0;
/// Writers retry until a new list is published.
const PAUSED: u8 = 1;
/// The slot accepts no writes: other slots have replaced it, or it was recycled.
const CLOSED: u8 = 2;

/// One table with its id range and write stripes.
pub struct Slot<T> {
    low: u64,
    /// Highest id of the range. The bound is inclusive, so that a range can end at `u64::MAX`. It
    /// falls when the slot is closed at a boundary, and never rises.
    last: AtomicU64,
    /// State of the slot: [`OPEN`], [`PAUSED`] or [`CLOSED`].
    state: AtomicU8,
    stripes: Box<[Mutex<()>]>,
    table: T,
}

impl<T> Slot<T> {
    fn new(low: u64, last: u64, state: u8, table: T) -> Arc<Slot<T>> {
        assert!(low <= last, "R1: table {low}..={last} is empty");
        Arc::new(Slot {
            low,
            last: AtomicU64::new(last),
            state: AtomicU8::new(state),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            table,
        })
    }

    /// Size of a slot in bytes: its table, its stripes, and its entries in two lists during a
    /// change.
    pub const BYTES: usize = size_of::<Slot<T>>()
        + STRIPES * size_of::<Mutex<()>>()
        + 2 * (size_of::<Entry<T>>() + size_of::<u64>())
        + 32;

    /// Lowest id of the range.
    #[inline]
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Highest id of the range, inclusive; `u64::MAX` for the newest table.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// The engine's table for this range.
    #[inline]
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Whether the slot accepts writes now.
    pub fn is_open(&self) -> bool {
        self.state.load(SeqCst) == OPEN
    }

    /// Whether a rewrite, a join or a recycle has replaced this slot.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state.load(SeqCst) == CLOSED
    }

    /// Returns true if a reader that failed to find `id` in this slot must search a new snapshot.
    /// That snapshot has already been published. Call this after the failed search.
    #[inline]
    pub fn has_moved(&self, id: u64) -> bool {
        match self.state.load(SeqCst) {
            OPEN => id > self.last(),
            state => state == CLOSED,
        }
    }

    #[inline]
    fn takes(&self, id: u64) -> bool {
        self.low <= id && id <= self.last() && self.state.load(SeqCst) == OPEN
    }

    /// Closes the slot and waits for its writers. When this returns, no writer holds a stripe, and
    /// later writers are rejected.
    fn close_and_wait(&self, state: u8) {
        self.state.store(state, SeqCst);
        for stripe in &self.stripes {
            drop(stripe.lock());
        }
    }
}

/// One entry of a ring: a slot and, during a rewrite, the slot that it drains.
pub struct Entry<T> {
    slot: Arc<Slot<T>>,
    drains: Option<Arc<Slot<T>>>,
}

// Implemented by hand, because `derive` would require `T: Clone`.
impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Entry { slot: self.slot.clone(), drains: self.drains.clone() }
    }
}

impl<T> Entry<T> {
    /// The slot that accepts writes.
    #[inline]
    pub fn slot(&self) -> &Slot<T> {
        &self.slot
    }

    /// The table of [`Entry::slot`].
    #[inline]
    pub fn table(&self) -> &T {
        &self.slot.table
    }

    /// Returns the slot, and discards the reference to the drained slot.
    pub fn into_slot(self) -> Arc<Slot<T>> {
        self.slot
    }

    /// The old slot whose rows are moving to this slot. Readers search the old slot first. A writer
    /// first moves the row that it is about to change. The writer holds the row's stripe, so no
    /// other thread moves the same row.
    #[inline]
    pub fn drains(&self) -> Option<&Slot<T>> {
        self.drains.as_deref()
    }
}

/// A snapshot of a ring: its entries in id order.
pub struct Tables<T> {
    /// Copy of the newest entry. The next field is the entry's lowest id. Most requests are for the
    /// newest ids.
    newest: Entry<T>,
    newest_low: u64,
    entries: Vec<Entry<T>>,
    /// Copies of `entries[i].slot.low`, so that a search touches one or two cache lines.
    lows: Vec<u64>,
}

impl<T> Tables<T> {
    fn new(entries: Vec<Entry<T>>) -> Arc<Tables<T>> {
        assert!(!entries.is_empty(), "R1: a ring has at least one table");
        for pair in entries.windows(2) {
            let (left, right) = (&pair[0].slot, &pair[1].slot);
            assert!(
                left.last().checked_add(1) == Some(right.low),
                "R1: {}..={} is followed by {}",
                left.low,
                left.last(),
                right.low
            );
        }
        let newest = entries[entries.len() - 1].clone();
        assert!(
            newest.slot.last() == u64::MAX,
            "R1: the newest table ends at {}",
            newest.slot.last()
        );
        let lows = entries.iter().map(|e| e.slot.low).collect();
        Arc::new(Tables { newest_low: newest.slot.low, newest, entries, lows })
    }

    /// Lowest id that the ring covers; lower ids are *unknown*.
    #[inline]
    pub fn horizon(&self) -> u64 {
        self.lows[0]
    }

    /// Returns the entry that covers `id`, or `None` if `id` is below the horizon.
    #[inline]
    pub fn find(&self, id: u64) -> Option<&Entry<T>> {
        if id >= self.newest_low {
            return Some(&self.newest);
        }
        self.index_of(id).map(|i| &self.entries[i])
    }

    /// Returns the index in [`Tables::entries`] of the entry that covers `id`, or `None` if `id` is
    /// below the horizon.
    #[inline]
    pub fn index_of(&self, id: u64) -> Option<usize> {
        self.lows.partition_point(|&low| low <= id).checked_sub(1)
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[Entry<T>] {
        &self.entries
    }

    /// The newest, open-ended entry.
    pub fn newest(&self) -> &Entry<T> {
        &self.newest
    }

    /// The oldest entry, which starts at the horizon.
    pub fn oldest(&self) -> &Entry<T> {
        &self.entries[0]
    }
}

/// A snapshot returned by [`Ring::load`].
pub type Loaded<T> = Guard<Arc<Tables<T>>>;

/// The tables of a space in id order.
pub struct Ring<T> {
    tables: ArcSwap<Tables<T>>,
    /// Locked while the list of slots changes. Readers and writers of rows never take this lock.
    structure: Mutex<()>,
}

impl<T> Ring<T> {
    /// Creates a ring of one table that covers `[horizon, 2^64-1]`. A new space has a horizon of 0.
    pub fn new(horizon: u64, first: T) -> Ring<T> {
        Ring::from_parts(vec![(horizon, first)])
    }

    /// Creates a ring from tables with their lowest ids, ascending. The last table is open-ended.
    ///
    /// # Panics
    ///
    /// If `parts` is empty or does not ascend.
    pub fn from_parts(parts: Vec<(u64, T)>) -> Ring<T> {
        Ring {
            tables: ArcSwap::new(Tables::new(chain(parts, u64::MAX, OPEN, None))),
            structure: Mutex::new(()),
        }
    }

    /// Returns the current snapshot. Call it once per batch: a load costs about 11 ns.
    #[inline]
    pub fn load(&self) -> Loaded<T> {
        self.tables.load()
    }

    /// Like [`Ring::load`], for long use. Costs an atomic increment, but does not occupy one of the
    /// thread-local slots of `arc_swap`.
    pub fn load_full(&self) -> Arc<Tables<T>> {
        self.tables.load_full()
    }

    /// Runs `f` on the entry that covers `id`, with the stripe `key_hash % STRIPES` locked. Returns
    /// `None` without calling `f` if `id` is below the horizon.
    ///
    /// `f` must be short. It must not write to the same ring, which could deadlock.
    #[inline]
    pub fn write<R>(&self, id: u64, key_hash: u64, f: impl FnOnce(&Entry<T>) -> R) -> Option<R> {
        loop {
            let tables = self.load();
            let entry = tables.find(id)?;
            let stripe = entry.slot.stripes[key_hash as usize % STRIPES].lock();
            if entry.slot.takes(id) {
                return Some(f(entry));
            }
            drop(stripe);
            // The ring is between *close* and *publish*.
            std::thread::yield_now();
        }
    }

    /// Closes the table that starts at `low` at a boundary, and adds `next` for the rest of its
    /// range. Returns the boundary.
    ///
    /// `boundary` runs while writers are excluded. It must return an id above every id in the table
    /// and in the table that it drains. Usually `boundary` calls
    /// [`Frontier::boundary`](crate::Frontier::boundary).
    ///
    /// # Errors
    ///
    /// Returns `next`, and changes nothing, if no table starts at `low`, or if `boundary` returns
    /// `None` or an id outside `low + 1..=last` of the table. Usually another writer has already
    /// closed the table.
    pub fn roll(
        &self,
        low: u64,
        boundary: impl FnOnce() -> Option<u64>,
        next: T,
    ) -> Result<u64, T> {
        let _structure = self.structure.lock();
        let tables = self.load();
        let Ok(at) = tables.lows.binary_search(&low) else { return Err(next) };
        let slot = &tables.entries[at].slot;
        let last = slot.last();
        slot.close_and_wait(PAUSED);
        let Some(boundary) = boundary().filter(|&b| b > low && b <= last) else {
            slot.state.store(OPEN, SeqCst);
            return Err(next);
        };
        slot.last.store(boundary - 1, SeqCst);
        let mut entries = Vec::with_capacity(tables.entries.len() + 1);
        entries.extend_from_slice(&tables.entries[..=at]);
        entries.push(Entry { slot: Slot::new(boundary, last, OPEN, next), drains: None });
        entries.extend_from_slice(&tables.entries[at + 1..]);
        self.tables.store(Tables::new(entries));
        slot.state.store(OPEN, SeqCst);
        Ok(boundary)
    }

    /// Removes the oldest table, which raises the horizon to the lowest id of the next table (R4).
    /// Returns `None` if there is only one table. Readers with an older snapshot may still use the
    /// removed table. The last such reader frees the table's memory.
    pub fn recycle(&self) -> Option<Entry<T>> {
        let _structure = self.structure.lock();
        let tables = self.load();
        if tables.entries.len() < 2 {
            return None;
        }
        let oldest = tables.entries[0].clone();
        let others = Tables::new(tables.entries[1..].to_vec());
        oldest.slot.close_and_wait(PAUSED);
        self.tables.store(others);
        oldest.slot.state.store(CLOSED, SeqCst);
        Some(oldest)
    }

    /// Replaces the slot that starts at `low` by `parts`: pairs of a lowest id and an empty table,
    /// ascending from `low`. The parts cover the same range and drain the old slot. Returns the old
    /// slot. The caller then moves each row under [`Ring::write`] and calls [`Ring::finish`].
    ///
    /// # Errors
    ///
    /// Returns `parts` if no slot starts at `low`, if that slot is still draining another slot, or
    /// if the lowest ids of the parts do not start at `low` and ascend within its range.
    pub fn rewrite(&self, low: u64, parts: Vec<(u64, T)>) -> Result<Arc<Slot<T>>, Vec<(u64, T)>> {
        let _structure = self.structure.lock();
        let tables = self.load();
        let Ok(at) = tables.lows.binary_search(&low) else { return Err(parts) };
        let old = tables.entries[at].clone();
        let rises =
            parts.first().is_some_and(|p| p.0 == low) && parts.windows(2).all(|w| w[0].0 < w[1].0);
        if old.drains.is_some() || !rises || parts.last().is_some_and(|p| p.0 > old.slot.last()) {
            return Err(parts);
        }
        // Do the slow work before closing the slot.
        let parts = chain(parts, old.slot.last(), PAUSED, Some(&old.slot));
        let mut entries = tables.entries.clone();
        entries.splice(at..=at, parts.iter().cloned());
        let next = Tables::new(entries);
        old.slot.close_and_wait(PAUSED);
        self.tables.store(next);
        old.slot.state.store(CLOSED, SeqCst);
        parts.iter().for_each(|part| part.slot.state.store(OPEN, SeqCst));
        Ok(old.slot)
    }

    /// Replaces the slots that cover `low..=last` by one slot with `table`, and returns the old
    /// slots. `table` must have room for all of their rows.
    ///
    /// `copy` copies the rows while writers of the range wait; readers still use the old slots.
    /// `clear` deletes the old rows, after the new list is published and before the new slot
    /// accepts writes. A reader with an older list of slots therefore never finds an outdated row.
    ///
    /// Returns `None`, and changes nothing, unless two or more slots cover the range exactly, none
    /// of these slots drains another slot, and the newest slot is not among them.
    ///
    /// # Errors
    ///
    /// Returns the error of `copy`. In this case nothing has changed.
    pub fn join<E>(
        &self,
        (low, last): (u64, u64),
        table: T,
        copy: impl FnOnce(&[Arc<Slot<T>>], &T) -> Result<(), E>,
        clear: impl FnOnce(&[Arc<Slot<T>>]),
    ) -> Result<Option<Vec<Arc<Slot<T>>>>, E> {
        let _structure = self.structure.lock();
        let tables = self.load();
        let (Ok(from), Some(to)) = (tables.lows.binary_search(&low), tables.index_of(last)) else {
            return Ok(None);
        };
        let olds = &tables.entries[from..(to + 1).max(from)];
        let fits = olds.len() > 1
            && last < u64::MAX
            && olds[olds.len() - 1].slot.last() == last
            && olds.iter().all(|old| old.drains.is_none());
        if !fits {
            return Ok(None);
        }
        let olds: Vec<Arc<Slot<T>>> = olds.iter().map(|old| old.slot.clone()).collect();
        let slot = Slot::new(low, last, PAUSED, table);
        let mut entries = tables.entries.clone();
        entries.splice(from..=to, [Entry { slot: slot.clone(), drains: None }]);
        let next = Tables::new(entries);
        olds.iter().for_each(|old| old.close_and_wait(PAUSED));
        if let Err(error) = copy(&olds, &slot.table) {
            olds.iter().for_each(|old| old.state.store(OPEN, SeqCst));
            return Err(error);
        }
        self.tables.store(next);
        olds.iter().for_each(|old| old.state.store(CLOSED, SeqCst));
        clear(&olds);
        slot.state.store(OPEN, SeqCst);
        Ok(Some(olds))
    }

    /// Waits for every current writer of `low..=last`. Later writers see all previous stores of
    /// this thread.
    pub fn barrier(&self, low: u64, last: u64) {
        let _structure = self.structure.lock();
        for entry in
            self.load().entries.iter().filter(|e| e.slot.low <= last && low <= e.slot.last())
        {
            entry.slot.stripes.iter().for_each(|stripe| drop(stripe.lock()));
        }
    }

    /// Ends the rewrite of `old`. All rows of `old` must have moved.
    pub fn finish(&self, old: &Slot<T>) {
        let _structure = self.structure.lock();
        let mut entries = self.load().entries.clone();
        for entry in &mut entries {
            if entry.drains.as_ref().is_some_and(|d| std::ptr::eq(&**d, old)) {
                entry.drains = None;
            }
        }
        self.tables.store(Tables::new(entries));
    }
}

/// Creates the entries of `parts`. The last entry ends at `last`.
fn chain<T>(
    parts: Vec<(u64, T)>,
    last: u64,
    state: u8,
    drains: Option<&Arc<Slot<T>>>,
) -> Vec<Entry<T>> {
    let lows: Vec<u64> = parts.iter().map(|p| p.0).collect();
    let lasts = lows.iter().skip(1).map(|low| low - 1).chain([last]);
    parts
        .into_iter()
        .zip(lasts)
        .map(|((low, table), last)| Entry {
            slot: Slot::new(low, last, state, table),
            drains: drains.cloned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc;

    type Rows = Mutex<BTreeMap<u64, u64>>;

    fn ranges(ring: &Ring<Rows>) -> Vec<(u64, u64)> {
        ring.load().entries().iter().map(|e| (e.slot().low(), e.slot().last())).collect()
    }

    fn empty() -> Rows {
        Mutex::new(BTreeMap::new())
    }

    #[test]
    fn rolls_recycles_and_rewrites_keep_the_cover_whole() {
        let ring = Ring::new(0, empty());
        assert_eq!(ranges(&ring), [(0, u64::MAX)]);
        assert!(ring.recycle().is_none(), "the only table is never recycled");
        ring.roll(0, || Some(100), empty()).unwrap();
        assert!(ring.roll(0, || Some(200), empty()).is_err(), "another thread rolled first");
        assert!(ring.roll(7, || Some(200), empty()).is_err(), "no table starts there");
        assert!(ring.roll(100, || Some(100), empty()).is_err(), "an empty range");
        ring.roll(100, || Some(u64::MAX), empty()).unwrap();
        assert_eq!(ranges(&ring), [(0, 99), (100, u64::MAX - 1), (u64::MAX, u64::MAX)]);
        assert!(
            ring.roll(u64::MAX, || Some(u64::MAX), empty()).is_err(),
            "nothing is above the last id"
        );
        let old = ring.rewrite(100, vec![(100, empty()), (150, empty())]).unwrap();
        assert!(ring.rewrite(100, vec![(100, empty())]).is_err(), "still draining");
        assert_eq!(ranges(&ring), [(0, 99), (100, 149), (150, u64::MAX - 1), (u64::MAX, u64::MAX)]);
        assert!(ring.load().find(120).unwrap().drains().is_some());
        ring.finish(&old);
        assert!(ring.load().find(120).unwrap().drains().is_none());
        assert!(ring.rewrite(7, vec![(7, empty())]).is_err(), "no table starts there");
        assert!(
            ring.rewrite(100, vec![(100, empty()), (150, empty())]).is_err(),
            "a part above the range"
        );
        ring.recycle().unwrap();
        assert_eq!(ring.load().horizon(), 100);
        assert!(ring.load().find(99).is_none());
        assert!(ring.write(99, 0, |_| ()).is_none());
        assert_eq!(ring.write(100, 0, |e| e.slot().last()), Some(149));
    }

    #[test]
    fn neighbours_become_one_slot_and_the_newest_stays_alone() {
        let ring = Ring::new(0, empty());
        for boundary in [100, 200, 300, 400] {
            let newest = ring.load().newest().slot().low();
            ring.roll(newest, || Some(boundary), empty()).unwrap();
        }
        (0..450).for_each(|id| {
            ring.write(id, id, |e| e.table().lock().insert(id, id)).unwrap();
        });
        let join = |range| {
            let copy = |olds: &[Arc<Slot<Rows>>], new: &Rows| -> Result<(), ()> {
                olds.iter().for_each(|old| new.lock().extend(old.table().lock().iter()));
                Ok(())
            };
            let clear =
                |olds: &[Arc<Slot<Rows>>]| olds.iter().for_each(|old| old.table().lock().clear());
            ring.join(range, empty(), copy, clear).unwrap().map(|olds| olds.len())
        };
        for not_whole in [(0, 99), (0, 150), (50, 199), (300, u64::MAX), (200, 99)] {
            assert_eq!(join(not_whole), None, "{not_whole:?}");
        }
        let before = ring.load_full();
        assert_eq!(join((100, 299)), Some(2));
        assert_eq!(ranges(&ring), [(0, 99), (100, 299), (300, 399), (400, u64::MAX)]);
        let read = |tables: &Tables<Rows>, id| {
            let entry = tables.find(id).unwrap();
            (entry.table().lock().get(&id).copied(), entry.slot().has_moved(id))
        };
        assert!((0..450).all(|id| read(&ring.load(), id) == (Some(id), false)));
        assert_eq!(read(&before, 150), (None, true), "an old list reports that it is old");
        // A failed copy changes nothing.
        let failed = ring.join((0, 299), empty(), |_, _| Err("no memory"), |_| panic!("cleared"));
        assert_eq!(failed.err(), Some("no memory"));
        assert_eq!(ranges(&ring), [(0, 99), (100, 299), (300, 399), (400, u64::MAX)]);
        assert!((0..450).all(|id| ring.write(id, id, |e| e.table().lock().len()).is_some()));
    }

    /// A writer that holds a stripe delays ring changes and other writers, but no reader (R2).
    #[test]
    fn readers_do_not_wait_while_the_ring_changes() {
        let ring = Ring::new(0, empty());
        ring.roll(0, || Some(100), empty()).unwrap();
        ring.roll(100, || Some(200), empty()).unwrap();
        // A reader needs at most two snapshots.
        let misses = |id: u64| {
            let tables = ring.load();
            let found = tables.find(id).map(|entry| entry.slot().has_moved(id));
            found.is_none()
                || found == Some(false)
                || ring.load().find(id).is_some_and(|e| !e.slot().has_moved(id))
        };
        let rewrite = || {
            ring.rewrite(100, vec![(100, empty()), (150, empty())])
                .map(|old| ring.finish(&old))
                .is_ok()
        };
        let join = || {
            let joined = ring.join((100, 199), empty(), |_, _| Ok::<(), ()>(()), |_| ());
            joined.is_ok_and(|olds| olds.is_some())
        };
        let roll = || ring.roll(200, || Some(300), empty()).is_ok();
        let recycle = || ring.recycle().is_some();
        let changes: [(u64, &(dyn Fn() -> bool + Sync)); 4] =
            [(120, &rewrite), (170, &join), (220, &roll), (20, &recycle)];
        for (id, change) in changes {
            let (ring, misses) = (&ring, &misses);
            std::thread::scope(|s| {
                // Dropping the sender releases the writer, even if the test fails.
                let ((entered, inside), (leave, left)) = (mpsc::channel(), mpsc::channel::<()>());
                let before = ring.load_full();
                let slot = before.find(id).unwrap().slot();
                s.spawn(move || {
                    ring.write(id, 0, |_| {
                        entered.send(()).unwrap();
                        left.recv().unwrap_err();
                    })
                });
                inside.recv().unwrap();
                let change = s.spawn(move || assert!(change(), "{id}"));
                while slot.state.load(SeqCst) == OPEN {
                    std::thread::yield_now();
                }
                for id in [id, 20, 120, 170, 220, 320, u64::MAX] {
                    assert!(misses(id), "{id}");
                }
                assert!(!change.is_finished());
                drop(leave);
                change.join().unwrap();
                for id in [id, 20, 120, 170, 220, 320, u64::MAX] {
                    assert!(misses(id), "{id}");
                    // A reader with the old list searches again, in the new list.
                    let again = before.find(id).is_some_and(|entry| entry.slot().has_moved(id));
                    let find = |tables: &Tables<Rows>| {
                        tables.find(id).map(|entry| std::ptr::from_ref(entry.slot()))
                    };
                    assert_eq!(again, find(&before) != find(&ring.load()), "{id}");
                }
            });
        }
    }

    /// Two writers increment keys while the ring creates, splits, joins and drains tables (R2, R3).
    #[test]
    fn no_increment_is_lost_while_the_ring_changes() {
        const KEYS: u64 = 512;
        let ring = Ring::new(0, empty());
        let stop = AtomicBool::new(false);
        let done = AtomicUsize::new(0);
        let step = |entry: &Entry<Rows>, id: u64| {
            let moved = entry.drains().and_then(|old| old.table().lock().get(&id).copied());
            if let Some(value) = moved {
                entry.table().lock().insert(id, value);
                entry.drains().unwrap().table().lock().remove(&id);
            }
            *entry.table().lock().entry(id).or_insert(0) += 1;
        };
        std::thread::scope(|s| {
            for seed in 0..2 {
                let (ring, done) = (&ring, &done);
                s.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..200_000 {
                        let id = rng.u64(0..KEYS);
                        ring.write(id, id, |e| step(e, id)).unwrap();
                    }
                    done.fetch_add(1, SeqCst);
                });
            }
            s.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(7);
                let mut joins = 0;
                while done.load(SeqCst) < 2 {
                    let lows: Vec<u64> =
                        ring.load().entries().iter().map(|e| e.slot().low()).collect();
                    let low = lows[rng.usize(0..lows.len())];
                    let entry_last = ring.load().find(low).unwrap().slot().last();
                    let cut = low + 1 + rng.u64(0..64);
                    if rng.u32(..4) == 0
                        && let Some(next) = lows.iter().find(|&&next| next > low)
                        && let Some(last) = ring.load().find(*next).map(|e| e.slot().last())
                    {
                        let copy = |olds: &[Arc<Slot<Rows>>], new: &Rows| -> Result<(), ()> {
                            olds.iter()
                                .for_each(|old| new.lock().extend(old.table().lock().iter()));
                            Ok(())
                        };
                        let clear = |olds: &[Arc<Slot<Rows>>]| {
                            olds.iter().for_each(|old| old.table().lock().clear());
                        };
                        let joined = ring.join((low, last), empty(), copy, clear).unwrap();
                        joins += usize::from(joined.is_some());
                        continue;
                    }
                    let mut parts = vec![(low, empty())];
                    if cut <= entry_last && lows.len() < 24 {
                        parts.push((cut, empty()));
                    }
                    let Ok(old) = ring.rewrite(low, parts) else { continue };
                    loop {
                        let Some(id) = old.table().lock().keys().next().copied() else { break };
                        ring.write(id, id, |e| {
                            let value = old.table().lock().get(&id).copied();
                            if let Some(value) = value {
                                e.table().lock().insert(id, value);
                                old.table().lock().remove(&id);
                            }
                        });
                    }
                    ring.finish(&old);
                }
                assert!(joins > 10, "only {joins} joins, too few to prove anything");
                stop.store(true, SeqCst);
            });
        });
        assert!(stop.load(SeqCst));
        let total: u64 =
            ring.load().entries().iter().map(|e| e.table().lock().values().sum::<u64>()).sum();
        assert_eq!(total, 400_000);
    }
}
