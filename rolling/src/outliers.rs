//! The outliers: what a space keeps for ids that are ahead of its frontier, exactly, until the
//! frontier reaches them.
//!
//! It is normally empty, or holds a handful of bad ids. Writers change it one at a time, under a
//! mutex; readers look at the map that was published last, and never wait, not even while a writer
//! opens a table. An atomic lower bound lets all other operations pass without touching either.
//!
//! An entry may move into a table at any moment. No reader misses it, because
//! - a mover stores it in the table first and deletes it here second, under the mutex; until then
//!   no other thread writes to it;
//! - a reader asks here first, and in the tables second;
//! - a writer of an id that may be here holds the mutex through its write, wherever that goes. An
//!   "ahead" writer announces its id (the lower bound) before it looks at the frontier again, an
//!   "inside" writer has moved the frontier before it looks at the lower bound: one of the two sees
//!   the other (Dekker's argument; hence the `SeqCst`).
//!
//! Order of locks: aside, then a ring's stripe. A closure that runs under a stripe must not come
//! here.

use crate::frontier::{Admission, Frontier};
use crate::persistent_trie::PersistentTrie;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// How many entries are visited in one version of the map, or moved while the mutex is held.
const CHUNK: usize = 256;

/// Entries of type `V` by id. See the top of the file.
pub struct Outliers<V> {
    entries: ArcSwap<PersistentTrie<V>>,
    /// Held through a whole write that changes `entries`.
    writing: Mutex<()>,
    /// No entry has a lower id. `u64::MAX` when empty.
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

/// Where the frontier has a write go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the tables: it first stores there the entry that it is handed, if any, and takes that
    /// away (`None`) once it is there, whether the write is done then or refused.
    Inside,
    /// Here: it replaces the entry that it is handed (`None`: there is none).
    Ahead,
}

/// Why a write was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<E> {
    /// The id lies further ahead than the space's `max_ahead` allows.
    TooFar,
    /// What the engine's closure said; nothing has changed here.
    Engine(E),
}

impl<V> Outliers<V> {
    /// Whether `id` may have an entry.
    #[inline]
    pub fn may_hold(&self, id: u64) -> bool {
        id >= self.lowest.load(SeqCst) && !self.is_empty()
    }

    /// No id below this has an entry: for callers that look up many ids. Goes for as long as
    /// [`Outliers::may_hold`], asked now, would.
    #[inline]
    pub fn lowest(&self) -> u64 {
        self.lowest.load(SeqCst)
    }

    /// How many ids have an entry.
    pub fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// Whether no id has an entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many entries have an id from [`crate::UPPER`] on: no table takes such ids but where
    /// those of the traffic are nearly as high.
    pub fn upper(&self) -> usize {
        self.upper.load(SeqCst)
    }

    /// Looks at the entry of `id` without waiting. Ask here before the tables.
    #[inline]
    pub fn read<R>(&self, id: u64, f: impl FnOnce(&V) -> R) -> Option<R> {
        if !self.may_hold(id) {
            return None;
        }
        self.entries.load().get(id).map(|value| f(value))
    }

    /// One write to `id`, wherever it belongs: `f` does it on the side that it is handed. Readers
    /// see nothing of it here before `f` has returned.
    pub fn write<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(Side, &mut Option<Arc<V>>) -> Result<R, E>,
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

    /// [`Outliers::write`] for what a log replays: it was accepted once, so an id that is too far
    /// ahead (the ids between may come later in the log) is kept here.
    pub fn replay<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(Side, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_admitted(frontier, id, frontier.admit_told(id), |_| Ok(()), f)
    }

    /// [`Outliers::write`] for what takes something of `id` away: it says nothing of the traffic,
    /// so the frontier stays where it is, and no id is too far ahead.
    pub fn take_away<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        f: impl FnOnce(Side, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_admitted(frontier, id, frontier.look_up(id), |_| Ok(()), f)
    }

    /// Waits for the writes and the moves into tables that are under way. Later ones see what this
    /// thread did before.
    pub fn pass_writers(&self) {
        drop(self.writing.lock());
    }

    /// Deletes `id`, wherever it is: `inside` deletes what the tables have of it, and then its
    /// entry here goes, if there is one. Gives both. An id that is deleted says nothing of the
    /// traffic: the frontier stays where it is. If `inside` fails nothing has changed here.
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

    /// `allow` is handed the highest id that has an entry, and may refuse.
    #[inline]
    fn write_admitted<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        admission: Admission,
        allow: impl FnOnce(Option<u64>) -> Result<(), E>,
        f: impl FnOnce(Side, &mut Option<Arc<V>>) -> Result<R, E>,
    ) -> Result<R, E> {
        match admission {
            Admission::Inside if !self.may_hold(id) => return f(Side::Inside, &mut None),
            Admission::Inside | Admission::Ahead | Admission::TooFar => {}
        }
        let _writing = self.writing.lock();
        let mut entries = PersistentTrie::clone(&self.entries.load());
        allow(entries.last())?;
        self.lowest.fetch_min(id, SeqCst);
        // From here on an inside writer that comes later sees `may_hold`, if the map is not empty
        // for it: count ourselves in.
        self.len.fetch_add(1, SeqCst);
        let before = entries.get(id).cloned();
        let mut entry = before.clone();
        let is_inside = frontier.contains(id);
        let result = f(if is_inside { Side::Inside } else { Side::Ahead }, &mut entry);
        match (before, entry) {
            (Some(before), Some(after)) if Arc::ptr_eq(&before, &after) => self.settle(&entries),
            (None, None) => self.settle(&entries),
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

    /// Opens a range for the entries if they are enough, as [`Frontier::advance`] does; `weight` is
    /// how many writes an entry stands for, at most; `is_short`: the memory for them is. Afterwards
    /// [`Outliers::drain`] has work.
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

    /// Whether an entry lies in a range of the frontier: [`Outliers::drain`] has work.
    pub fn has_inside(&self, frontier: &Frontier) -> bool {
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

    /// Hands up to 256 entries that lie in a range of the frontier to `store`, which puts each into
    /// a table, and takes it away (`None`) once it is there. Returns how many it took: call again
    /// until it is 0.
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
                if id > range.high || visited == CHUNK {
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

    /// Visits all entries without waiting; one that moves into a table meanwhile may be
    /// missed here.
    pub fn for_each(&self, mut f: impl FnMut(u64, &V)) {
        let mut from = Some(0);
        while let Some(first) = from.take() {
            let mut visited = 0;
            // Not all of them in one version of the map, or it would keep what has gone for as long
            // as `f` takes.
            self.entries.load_full().visit(first, |id, entry| {
                if visited == CHUNK {
                    from = Some(id);
                    return false;
                }
                visited += 1;
                f(id, entry);
                true
            });
        }
    }

    /// Shows readers the map, in which an entry was set, or lacks one that is in a table or gone;
    /// called with the mutex held.
    fn publish(&self, entries: PersistentTrie<V>) {
        let entries = Arc::new(entries);
        self.entries.store(entries.clone());
        self.settle(&entries);
    }

    /// Brings the atomics in line with the map; called with the mutex held.
    fn settle(&self, entries: &PersistentTrie<V>) {
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

    /// A write that does one thing or the other.
    fn either<V, R, E>(
        inside: impl FnOnce(&mut Option<Arc<V>>) -> Result<R, E>,
        ahead: impl FnOnce(&mut Option<Arc<V>>) -> Result<R, E>,
    ) -> impl FnOnce(Side, &mut Option<Arc<V>>) -> Result<R, E> {
        move |side, entry| match side {
            Side::Inside => inside(entry),
            Side::Ahead => ahead(entry),
        }
    }

    /// One more for `id`, as an engine would count it.
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
        assert_eq!(kept, Ok(()), "what a log replays is not refused");
        assert_eq!(outliers.read(1 << 30, |v| *v), Some(7));
    }

    /// Before there is a frontier the highest id that is kept here is what `max_ahead` is measured
    /// from.
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
        assert_eq!(write(1000), Ok(()), "the first id may be any");
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

    /// A writer or a mover that is inside, opening a table for example, delays other writers, but
    /// no reader: readers see the map as it was before.
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
        // In turn: an entry is replaced, a new one comes, one goes, and one moves. What readers see
        // before, and after.
        let held =
            |id, before: Option<u64>, after: Option<u64>, write: &(dyn Fn(&dyn Fn()) + Sync)| {
                let (inside, leave) = (mpsc::channel(), mpsc::channel());
                let (entered, left) = (inside.1, leave.1);
                std::thread::scope(|s| {
                    let left = Mutex::new(left);
                    s.spawn(move || {
                        write(&|| {
                            inside.0.send(()).unwrap();
                            // No thread is left waiting when the test has failed.
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

    /// Two writers and a mover race while the frontier advances over the entries: no increment is
    /// lost, and no reader ever misses an id that was written.
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
