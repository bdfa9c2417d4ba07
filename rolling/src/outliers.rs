//! The outlier map: stores the entries of outliers (ids far above all tables) until the frontier
//! reaches them.
//!
//! The map is normally empty or has a few bad ids. Writers change it one at a time, under a mutex.
//! Readers use the last published version and never wait, even while a writer creates a table.
//! Every operation first compares its id with an atomic lower bound of the ids in the map. Most
//! operations need no further step.
//!
//! An entry may move into a table at any time. No reader misses it:
//! - The moving thread holds the mutex. It stores the entry in the table, then deletes it from the
//!   map. No other thread writes to the entry at that time.
//! - A reader searches the map first, then the tables.
//! - A writer of an id that may be in the map holds the mutex during its whole write. A writer that
//!   found its id ahead of the frontier publishes the id in the lower bound before it reads the
//!   frontier again. A writer that found its id inside a range moves the frontier before it reads
//!   the lower bound. At least one of two such writers sees the other (Dekker's algorithm, hence
//!   `SeqCst`).
//!
//! Lock order: the mutex of the map, then a stripe of a ring. A closure that runs while a stripe is
//! locked must not call the map.

use crate::frontier::{Admission, Frontier};
use crate::persistent_trie::PersistentTrie;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Maximum number of entries visited per version of the map, and maximum number moved per
/// acquisition of the mutex.
const ENTRIES_PER_STEP: usize = 256;

/// Entries of type `V` by id.
pub struct Outliers<V> {
    entries: ArcSwap<PersistentTrie<V>>,
    /// Locked during every change of `entries`.
    writing: Mutex<()>,
    /// Lower bound of all ids in the map; `u64::MAX` if the map is empty.
    lowest: AtomicU64,
    len: AtomicUsize,
    upper: AtomicUsize,
}

impl<V> Default for Outliers<V> {
    fn default() -> Self {
        Outliers {
            entries: ArcSwap::default(),
            writing: Mutex::default(),
            lowest: AtomicU64::new(u64::MAX),
            len: AtomicUsize::new(0),
            upper: AtomicUsize::new(0),
        }
    }
}

/// Destination of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDestination {
    /// The write goes to the tables. The closure first moves the given entry, if any, to a table
    /// and sets the entry to `None`, even if it then refuses the write.
    Inside,
    /// The write goes to the outlier map. The closure replaces the given entry, which is `None` if
    /// the id has no entry.
    Ahead,
}

/// Reason for refusing a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<E> {
    /// The id exceeds the frontier by more than `max_ahead`.
    TooFar,
    /// The engine's closure failed; this map is unchanged.
    Engine(E),
}

impl<V> Outliers<V> {
    /// Whether `id` may have an entry.
    #[inline]
    pub fn may_hold(&self, id: u64) -> bool {
        id >= self.lowest.load(SeqCst) && !self.is_empty()
    }

    /// Returns a lower bound of all ids in the map. A caller with many ids can compare each id with
    /// this bound instead of calling [`Outliers::may_hold`].
    #[inline]
    pub fn lowest(&self) -> u64 {
        self.lowest.load(SeqCst)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// Whether the map is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries with ids of at least [`crate::UPPER_HALF_START`]. Such ids can move to
    /// tables only if normal ids are nearly as high.
    pub fn upper(&self) -> usize {
        self.upper.load(SeqCst)
    }

    /// Reads the entry of `id` without waiting. Call this before searching the tables.
    #[inline]
    pub fn read<R>(&self, id: u64, f: impl FnOnce(&V) -> R) -> Option<R> {
        if !self.may_hold(id) {
            return None;
        }
        self.entries.load().get(id).map(|value| f(value))
    }

    /// Writes to `id`. `f` performs the write at the given destination. Readers of the map see the
    /// change only after `f` has returned.
    pub fn write<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(WriteDestination, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, Refused<E>> {
        match frontier.admit(id) {
            Admission::TooFar => Err(Refused::TooFar),
            admission => self.write_admitted(
                frontier,
                id,
                admission,
                |highest| {
                    if frontier.is_too_far(id, highest) { Err(Refused::TooFar) } else { Ok(()) }
                },
                |side, entry| f(side, entry).map_err(Refused::Engine),
            ),
        }
    }

    /// Like [`Outliers::write`], for replay. `max_ahead` does not apply, because the write was
    /// already accepted once. The ids that made the write acceptable may follow later in the log.
    pub fn replay<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(WriteDestination, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_admitted(frontier, id, frontier.admit_replayed(id), |_| Ok(()), f)
    }

    /// Like [`Outliers::write`], for a removal. A removal does not move the frontier, and
    /// `max_ahead` does not apply.
    pub fn write_removal<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(WriteDestination, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_admitted(frontier, id, frontier.admit_unsampled(id), |_| Ok(()), f)
    }

    /// Waits for writes and moves in progress. Later writes and moves see all previous stores of
    /// this thread.
    pub fn wait_for_writers(&self) {
        drop(self.writing.lock());
    }

    /// Deletes `id`: calls `inside` to delete it from the tables, then removes its entry from the
    /// map. Returns the entry and the result of `inside`. Does not move the frontier.
    pub fn delete<R, E>(
        &self,
        id: u64,
        inside: impl FnOnce() -> Result<R, E>,
    ) -> Result<(Option<Arc<V>>, R), E> {
        if !self.may_hold(id) {
            return inside().map(|deleted| (None, deleted));
        }
        let _writing = self.writing.lock();
        let deleted = inside()?;
        let mut entries = PersistentTrie::clone(&self.entries.load());
        let entry = entries.get(id).cloned();
        if entry.is_some() {
            entries.remove(id);
            self.publish(entries);
        }
        Ok((entry, deleted))
    }

    /// Performs an admitted write. `allow` receives the highest id with an entry, and may refuse
    /// the write.
    #[inline]
    fn write_admitted<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        admission: Admission,
        allow: impl FnOnce(Option<u64>) -> Result<(), E>,
        f: impl FnOnce(WriteDestination, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        match admission {
            Admission::Inside if !self.may_hold(id) => {
                return f(WriteDestination::Inside, &mut None);
            }
            Admission::Inside | Admission::Ahead | Admission::TooFar => {}
        }
        let _writing = self.writing.lock();
        let mut entries = PersistentTrie::clone(&self.entries.load());
        allow(entries.last())?;
        self.lowest.fetch_min(id, SeqCst);
        // Count this write as an entry, so that `may_hold` is true for later writers of ids inside
        // a range, even if the map is empty.
        self.len.fetch_add(1, SeqCst);
        let before = entries.get(id).cloned();
        let mut entry = before.clone();
        let is_inside = frontier.contains(id);
        let result = f(
            if is_inside { WriteDestination::Inside } else { WriteDestination::Ahead },
            &mut entry,
        );
        match (before, entry) {
            (Some(before), Some(after)) if Arc::ptr_eq(&before, &after) => {
                self.update_summary(&entries)
            }
            (None, None) => self.update_summary(&entries),
            (_, Some(after)) => {
                entries.set(id, after);
                self.publish(entries);
            }
            (Some(_), None) => {
                entries.remove(id);
                self.publish(entries);
            }
        }
        result
    }

    /// Creates a range with [`Frontier::advance`] if there are enough entries. `weight` returns the
    /// number of writes for which an entry counts. `is_short` is true if memory for entries is
    /// short. If this returns true, call [`Outliers::drain`] next.
    pub fn advance(
        &self,
        frontier: &Frontier,
        weight: impl Fn(&V) -> usize,
        is_short: bool,
        open: impl FnOnce(crate::Range) -> bool,
    ) -> bool {
        let mut ids = Vec::new();
        self.for_each(|id, entry| ids.extend(std::iter::repeat_n(id, weight(entry))));
        frontier.advance(&mut ids, is_short, open)
    }

    /// Whether an entry is in a range of the frontier, so that [`Outliers::drain`] has work.
    pub fn has_reached_entries(&self, frontier: &Frontier) -> bool {
        if self.is_empty() || !frontier.high().is_some_and(|high| self.may_hold(high)) {
            return false;
        }
        let (entries, mut found) = (self.entries.load(), false);
        frontier.ranges().iter().for_each(|range| {
            entries.visit(range.start, |id, _| {
                found |= id <= range.high;
                false
            });
        });
        found
    }

    /// Passes up to 256 entries that are in a range of the frontier to `store`. `store` stores an
    /// entry in a table and sets the entry to `None`. Returns the number of moved entries. Call
    /// again until it returns 0.
    pub fn drain(
        &self,
        frontier: &Frontier,
        mut store: impl FnMut(u64, &mut Option<Arc<V>>),
    ) -> usize {
        if !frontier.high().is_some_and(|high| self.may_hold(high)) {
            return 0;
        }
        let _writing = self.writing.lock();
        let before = self.entries.load_full();
        let mut entries = PersistentTrie::clone(&before);
        let mut visited = 0;
        for range in frontier.ranges() {
            before.visit(range.start, |id, entry| {
                if id > range.high || visited == ENTRIES_PER_STEP {
                    return false;
                }
                visited += 1;
                let mut entry = Some(entry.clone());
                store(id, &mut entry);
                if entry.is_none() {
                    entries.remove(id);
                }
                true
            });
        }
        let moved = before.len() - entries.len();
        if moved > 0 {
            self.publish(entries);
        }
        moved
    }

    /// Visits all entries without waiting. May miss an entry that concurrently moves into a table.
    pub fn for_each(&self, mut f: impl FnMut(u64, &V)) {
        let mut from = Some(0);
        while let Some(first) = from.take() {
            let mut visited = 0;
            // Load a new version of the map for each batch, because a long visit of one version
            // would keep removed entries in memory.
            self.entries.load_full().visit(first, |id, entry| {
                if visited == ENTRIES_PER_STEP {
                    from = Some(id);
                    return false;
                }
                visited += 1;
                f(id, entry);
                true
            });
        }
    }

    /// Publishes a new version of the map. The caller holds the mutex.
    fn publish(&self, entries: PersistentTrie<V>) {
        let entries = Arc::new(entries);
        self.entries.store(entries.clone());
        self.update_summary(&entries);
    }

    /// Updates the atomics from the map. The caller holds the mutex.
    fn update_summary(&self, entries: &PersistentTrie<V>) {
        self.len.store(entries.len(), SeqCst);
        self.upper.store(entries.upper(), SeqCst);
        self.lowest.store(entries.first().unwrap_or(u64::MAX), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Range;
    use std::collections::HashMap;
    use std::sync::mpsc;
    use std::time::Duration;

    type Table = Mutex<HashMap<u64, u64>>;

    fn range(high: u64) -> Range {
        Range { start: 0, high, window: 0 }
    }

    /// Returns a closure that calls `inside` or `ahead`, depending on the destination.
    fn either<V, R, E>(
        inside: impl FnOnce(&mut Option<Arc<V>>) -> Result<R, E>,
        ahead: impl FnOnce(&mut Option<Arc<V>>) -> Result<R, E>,
    ) -> impl FnOnce(WriteDestination, &mut Option<Arc<V>>) -> Result<R, E> {
        move |side, entry| match side {
            WriteDestination::Inside => inside(entry),
            WriteDestination::Ahead => ahead(entry),
        }
    }

    /// Increments `id` as an engine would.
    fn increment(outliers: &Outliers<u64>, frontier: &Frontier, table: &Table, id: u64) {
        outliers
            .write::<_, ()>(
                frontier,
                id,
                either(
                    |entry| {
                        *table.lock().entry(id).or_insert(0) += 1 + entry.take().map_or(0, |v| *v);
                        Ok(())
                    },
                    |entry| {
                        *entry = Some(Arc::new(entry.as_deref().unwrap_or(&0) + 1));
                        Ok(())
                    },
                ),
            )
            .unwrap();
    }

    fn drain(outliers: &Outliers<u64>, frontier: &Frontier, table: &Table) {
        let store = |id, entry: &mut Option<Arc<u64>>| {
            *table.lock().entry(id).or_insert(0) += entry.take().map_or(0, |v| *v);
        };
        while outliers.drain(frontier, store) > 0 {}
    }

    #[test]
    fn entries_stay_until_the_frontier_reaches_them() {
        let (outliers, frontier, table) =
            (Outliers::default(), Frontier::new(None, 1 << 16), Table::default());
        for id in 0..100 {
            increment(&outliers, &frontier, &table, 1000 + id);
        }
        increment(&outliers, &frontier, &table, u64::MAX);
        assert_eq!(outliers.len(), 101);
        assert_eq!(outliers.read(1000, |v| *v), Some(1));
        assert!(outliers.advance(&frontier, |v| *v as usize, false, |_| true));
        drain(&outliers, &frontier, &table);
        assert_eq!(outliers.len(), 1);
        assert_eq!(outliers.read(u64::MAX, |v| *v), Some(1));
        assert_eq!(table.lock().len(), 100);
        increment(&outliers, &frontier, &table, 1000);
        assert_eq!(table.lock()[&1000], 2);
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let (outliers, frontier) =
            (Outliers::<u64>::default(), Frontier::restore(&[range(10)], Some(1 << 20), 1 << 16));
        assert_eq!(
            outliers.write(&frontier, 1 << 30, either(|_| Ok::<_, ()>(()), |_| Ok(()))),
            Err(Refused::TooFar)
        );
        assert_eq!(
            outliers.write(&frontier, 1 << 20, either(|_| Ok(()), |_| Err("no"))),
            Err(Refused::Engine("no"))
        );
        assert!(outliers.is_empty());
        assert!(!outliers.may_hold(u64::MAX));
        let kept = outliers.replay(
            &frontier,
            1 << 30,
            either(
                |_| Err(()),
                |entry| {
                    *entry = Some(Arc::new(7));
                    Ok(())
                },
            ),
        );
        assert_eq!(kept, Ok(()), "replayed pairs are not refused");
        assert_eq!(outliers.read(1 << 30, |v| *v), Some(7));
    }

    /// Before the first range is created, `max_ahead` limits the distance from the highest id in
    /// the map.
    #[test]
    fn a_young_space_refuses_what_is_too_far_above_its_highest_id() {
        let (outliers, frontier) = (Outliers::<u64>::default(), Frontier::new(Some(100), 1 << 16));
        let write = |id| {
            outliers.write(
                &frontier,
                id,
                either(
                    |_| Err(()),
                    |entry| {
                        *entry = Some(Arc::new(7));
                        Ok(())
                    },
                ),
            )
        };
        assert_eq!(write(1000), Ok(()), "any first id is accepted");
        assert_eq!(write(1101), Err(Refused::TooFar));
        assert_eq!(write(u64::MAX), Err(Refused::TooFar));
        assert_eq!(
            (outliers.len(), write(1100), write(3), write(1200)),
            (1, Ok(()), Ok(()), Ok(()))
        );
        assert_eq!(outliers.len(), 4);
        frontier.adopt(1000, 10);
        assert_eq!(write(1200), Err(Refused::TooFar), "from now on only the frontier counts");
    }

    /// A closure that blocks delays other writers, but readers see the previous version of the map.
    #[test]
    fn readers_do_not_wait_for_a_writer_inside() {
        const A: u64 = 1 << 40;
        const B: u64 = 1 << 41;
        const C: u64 = 1 << 42;
        let (outliers, frontier, table) =
            (Outliers::default(), Frontier::restore(&[range(10)], None, 1 << 16), Table::default());
        for id in [A, C, C] {
            increment(&outliers, &frontier, &table, id);
        }
        let all = || {
            let mut all = vec![];
            outliers.for_each(|id, v| all.push((id, *v)));
            all
        };
        let read = |id| outliers.read(id, |v| *v);
        let (read, all) = (&read, &all);
        // Tests an entry that is replaced, added, removed or moved. `before` and `after` are the
        // values that readers see during and after the write.
        let held =
            |id, before: Option<u64>, after: Option<u64>, write: &(dyn Fn(&dyn Fn()) + Sync)| {
                let (inside, leave) = (mpsc::channel(), mpsc::channel());
                let (entered, left) = (inside.1, leave.1);
                std::thread::scope(|s| {
                    let left = Mutex::new(left);
                    s.spawn(move || {
                        write(&|| {
                            inside.0.send(()).unwrap();
                            // The closure must not block forever if the test fails.
                            let _: Result<(), _> = left.lock().recv();
                        })
                    });
                    entered.recv().unwrap();
                    let (done, seen) = mpsc::channel();
                    s.spawn(move || done.send((read(id), read(C), all())));
                    let seen = seen.recv_timeout(Duration::from_secs(60));
                    drop(leave.0);
                    let (value, other, all) =
                        seen.unwrap_or_else(|_| panic!("{id}: a reader waits"));
                    assert_eq!((value, other), (before, Some(2)), "{id}");
                    assert_eq!(all.iter().find(|(at, _)| *at == id).map(|&(_, v)| v), before);
                });
                assert_eq!(read(id), after, "{id}");
            };
        let ahead = |id: u64, stay: &dyn Fn()| {
            let ahead = |entry: &mut Option<Arc<u64>>| {
                *entry = Some(Arc::new(5));
                stay();
                Ok::<_, ()>(())
            };
            outliers.write(&frontier, id, either(|_| Err(()), ahead)).unwrap();
        };
        held(A, Some(1), Some(5), &|stay| ahead(A, stay));
        held(B, None, Some(5), &|stay| ahead(B, stay));
        held(B, Some(5), None, &|stay| {
            let inside = || {
                stay();
                Ok::<_, ()>(())
            };
            outliers.delete(B, inside).unwrap();
        });
        frontier.adopt(B, 0);
        held(A, Some(5), None, &|stay| {
            let moved = outliers.drain(&frontier, |id, entry| {
                table.lock().insert(id, **entry.as_ref().unwrap());
                stay();
                *entry = None;
            });
            assert_eq!(moved, 1);
        });
        assert_eq!((all(), table.lock()[&A]), (vec![(C, 2)], 5));
    }

    /// Two threads write, and a third thread moves entries, while the frontier advances. No
    /// increment is lost, and no reader misses an id.
    #[test]
    fn nothing_is_lost_on_the_way_into_the_tables() {
        for round in 0..200 {
            let (outliers, frontier, table) =
                (Outliers::default(), Frontier::new(None, 1 << 16), Table::default());
            let ids: Vec<u64> = (0..200).map(|i| 5000 + i).collect();
            increment(&outliers, &frontier, &table, ids[0]);
            std::thread::scope(|s| {
                for seed in 0..2 {
                    let (outliers, frontier, table, ids) = (&outliers, &frontier, &table, &ids);
                    s.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed * 1000 + round);
                        for _ in 0..500 {
                            increment(outliers, frontier, table, ids[rng.usize(0..ids.len())]);
                            let seen = outliers.read(ids[0], |_| ()).is_some()
                                || table.lock().contains_key(&ids[0]);
                            assert!(seen, "round {round}: an id was missed while it moved");
                        }
                    });
                }
                s.spawn(|| {
                    while frontier.high().is_none() {
                        outliers.advance(&frontier, |v| *v as usize, false, |_| true);
                    }
                    drain(&outliers, &frontier, &table);
                });
            });
            drain(&outliers, &frontier, &table);
            let total = table.lock().values().sum::<u64>();
            let mut left = 0;
            outliers.for_each(|_, v| left += v);
            assert_eq!(total + left, 1001, "round {round}");
        }
    }
}
