//! The aside: what a space keeps for ids that are ahead of its frontier, exactly, until the frontier reaches them.
//!
//! It is normally empty, or holds a handful of bad ids, so it is a plain ordered map under a mutex that is held for a few memory
//! writes at a time; an atomic lower bound lets everybody else pass without touching it.
//!
//! An entry may move into a table at any moment. Nobody misses it, because
//! - a mover stores it in the table first and deletes it here second, under the mutex;
//! - a reader asks here first, and in the tables second;
//! - a writer of an id that may be here holds the mutex through its write, wherever that goes. An "ahead" writer announces
//!   its id (the lower bound) before it looks at the frontier again, an "inside" writer has moved the frontier before it
//!   looks at the lower bound: one of the two sees the other (Dekker's argument; hence the `SeqCst`).
//!
//! Order of locks: aside, then a ring's stripe. A closure that runs under a stripe must not come here.

use crate::frontier::{Admission, Frontier};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// How many entries are visited while the mutex is held.
const CHUNK: usize = 256;

/// Entries of type `V` by id. See the top of the file.
pub struct Aside<V> {
    entries: Mutex<BTreeMap<u64, V>>,
    /// No entry has a lower id. `u64::MAX` when empty.
    lowest: AtomicU64,
    len: AtomicUsize,
}

impl<V> Default for Aside<V> {
    fn default() -> Self {
        Aside { entries: Mutex::default(), lowest: AtomicU64::new(u64::MAX), len: AtomicUsize::new(0) }
    }
}

/// Why a write was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<E> {
    /// The id lies further ahead than the space's `max_ahead` allows.
    TooFar,
    /// What the engine's closure said; nothing has changed here.
    Engine(E),
}

impl<V> Aside<V> {
    /// Whether `id` may have an entry. When not, no lock need be taken.
    #[inline]
    pub fn may_hold(&self, id: u64) -> bool {
        id >= self.lowest.load(SeqCst) && !self.is_empty()
    }

    /// No id below this has an entry: for those who have many to ask for. Goes for as long as [`Aside::may_hold`], asked now, would.
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

    /// Looks at the entry of `id`. Ask here before the tables.
    #[inline]
    pub fn read<R>(&self, id: u64, f: impl FnOnce(&V) -> R) -> Option<R> {
        if !self.may_hold(id) {
            return None;
        }
        self.entries.lock().get(&id).map(f)
    }

    /// One write to `id`, wherever it belongs: `inside` writes to the tables, first storing there the entry that it is handed, if any, and taking it away
    /// (`None`) once it is there, whether the write is done then or refused; `ahead` edits the entry kept here (`None`: there is none).
    pub fn write<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        inside: impl FnOnce(&mut Option<V>) -> Result<R, E>,
        ahead: impl FnOnce(&mut Option<V>) -> Result<R, E>,
    ) -> Result<R, Refused<E>> {
        match frontier.admit(id) {
            Admission::TooFar => Err(Refused::TooFar),
            admission => self.write_admitted(
                frontier,
                id,
                admission,
                |highest| if frontier.is_too_far(id, highest) { Err(Refused::TooFar) } else { Ok(()) },
                |entry| inside(entry).map_err(Refused::Engine),
                |entry| ahead(entry).map_err(Refused::Engine),
            ),
        }
    }

    /// [`Aside::write`] for what a log replays: it was accepted once, so an id that is too far ahead (the ids between may come
    /// later in the log) is kept here.
    pub fn replay<R, E>(
        &self,
        frontier: &Frontier,
        id: u64,
        inside: impl FnOnce(&mut Option<V>) -> Result<R, E>,
        ahead: impl FnOnce(&mut Option<V>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_admitted(frontier, id, frontier.admit_told(id), |_| Ok(()), inside, ahead)
    }

    /// Deletes `id`, wherever it is: `inside` deletes what the tables have of it, and then its entry here goes, if there is one. Gives both. An id
    /// that is deleted says nothing of the traffic: the frontier stays where it is. If `inside` fails nothing has changed here.
    pub fn delete<R, E>(&self, id: u64, inside: impl FnOnce() -> Result<R, E>) -> Result<(Option<V>, R), E> {
        if !self.may_hold(id) {
            return inside().map(|deleted| (None, deleted));
        }
        let mut entries = self.entries.lock();
        let deleted = inside()?;
        let entry = entries.remove(&id);
        self.settle(&entries);
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
        inside: impl FnOnce(&mut Option<V>) -> Result<R, E>,
        ahead: impl FnOnce(&mut Option<V>) -> Result<R, E>,
    ) -> Result<R, E> {
        match admission {
            Admission::Inside if !self.may_hold(id) => return inside(&mut None),
            Admission::Inside | Admission::Ahead | Admission::TooFar => {}
        }
        let mut entries = self.entries.lock();
        allow(entries.keys().next_back().copied())?;
        self.lowest.fetch_min(id, SeqCst);
        // From here on an inside writer that comes later sees `may_hold`, if the map is not empty for it: count ourselves in.
        self.len.fetch_add(1, SeqCst);
        // Whoever looks for it waits for the mutex.
        let mut entry = entries.remove(&id);
        let is_inside = frontier.high().is_some_and(|high| id <= high);
        let result = if is_inside { inside(&mut entry) } else { ahead(&mut entry) };
        if let Some(entry) = entry {
            entries.insert(id, entry);
        }
        self.settle(&entries);
        result
    }

    /// Advances the frontier if the entries say so; `weight` is how many writes an entry stands for, at most. Afterwards
    /// [`Aside::drain`] has work.
    pub fn advance(&self, frontier: &Frontier, weight: impl Fn(&V) -> usize) -> bool {
        let mut ids = Vec::new();
        let mut after = None;
        loop {
            let entries = self.entries.lock();
            let from = after.map_or(Unbounded, Excluded);
            let before = ids.len();
            for (&id, entry) in entries.range((from, Unbounded)).take(CHUNK) {
                ids.extend(std::iter::repeat_n(id, weight(entry)));
                after = Some(id);
            }
            if ids.len() == before {
                break;
            }
        }
        frontier.advance(&mut ids).is_some()
    }

    /// Hands up to 256 entries that the frontier has reached to `store`, which puts each into a table, and takes it away (`None`) once it is there.
    /// Returns how many it took: call again until it is 0.
    pub fn drain(&self, frontier: &Frontier, mut store: impl FnMut(u64, &mut Option<V>)) -> usize {
        let Some(high) = frontier.high().filter(|&high| self.may_hold(high)) else { return 0 };
        let mut entries = self.entries.lock();
        let reached: Vec<u64> = entries.range(..=high).take(CHUNK).map(|(&id, _)| id).collect();
        let mut moved = 0;
        for id in reached {
            let mut entry = entries.remove(&id);
            store(id, &mut entry);
            match entry {
                Some(entry) => _ = entries.insert(id, entry),
                None => moved += 1,
            }
        }
        self.settle(&entries);
        moved
    }

    /// Visits all entries, 256 per turn of the mutex; one that moves into a table meanwhile may be missed here.
    pub fn for_each(&self, mut f: impl FnMut(u64, &V)) {
        let mut after = None;
        loop {
            let entries = self.entries.lock();
            let mut visited = 0;
            for (&id, entry) in entries.range((after.map_or(Unbounded, Excluded), Unbounded)).take(CHUNK) {
                f(id, entry);
                after = Some(id);
                visited += 1;
            }
            if visited == 0 {
                return;
            }
        }
    }

    /// Brings the atomics in line with the map; called with the mutex held.
    fn settle(&self, entries: &BTreeMap<u64, V>) {
        self.len.store(entries.len(), SeqCst);
        self.lowest.store(entries.keys().next().copied().unwrap_or(u64::MAX), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    type Table = Mutex<HashMap<u64, u64>>;

    /// One more for `id`, as an engine would count it.
    fn increment(aside: &Aside<u64>, frontier: &Frontier, table: &Table, id: u64) {
        aside
            .write::<_, ()>(
                frontier,
                id,
                |entry| {
                    *table.lock().entry(id).or_insert(0) += 1 + entry.take().unwrap_or(0);
                    Ok(())
                },
                |entry| {
                    *entry = Some(entry.unwrap_or(0) + 1);
                    Ok(())
                },
            )
            .unwrap();
    }

    fn drain(aside: &Aside<u64>, frontier: &Frontier, table: &Table) {
        let store = |id, entry: &mut Option<u64>| *table.lock().entry(id).or_insert(0) += entry.take().unwrap_or(0);
        while aside.drain(frontier, store) > 0 {}
    }

    #[test]
    fn entries_stay_until_the_frontier_reaches_them() {
        let (aside, frontier, table) = (Aside::default(), Frontier::new(None, 1 << 16), Table::default());
        for id in 0..100 {
            increment(&aside, &frontier, &table, 1000 + id);
        }
        increment(&aside, &frontier, &table, u64::MAX);
        assert_eq!(aside.len(), 101);
        assert_eq!(aside.read(1000, |v| *v), Some(1));
        assert!(aside.advance(&frontier, |v| *v as usize));
        drain(&aside, &frontier, &table);
        assert_eq!(aside.len(), 1);
        assert_eq!(aside.read(u64::MAX, |v| *v), Some(1));
        assert_eq!(table.lock().len(), 100);
        increment(&aside, &frontier, &table, 1000);
        assert_eq!(table.lock()[&1000], 2);
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let (aside, frontier) = (Aside::<u64>::default(), Frontier::restore(Some(10), 0, Some(1 << 20), 1 << 16));
        assert_eq!(aside.write(&frontier, 1 << 30, |_| Ok::<_, ()>(()), |_| Ok(())), Err(Refused::TooFar));
        assert_eq!(aside.write(&frontier, 1 << 20, |_| Ok(()), |_| Err("no")), Err(Refused::Engine("no")));
        assert!(aside.is_empty());
        assert!(!aside.may_hold(u64::MAX));
        let kept = aside.replay(&frontier, 1 << 30, |_| Err(()), |entry| Ok(entry.insert(7) == &7));
        assert_eq!(kept, Ok(true), "what a log replays is not refused");
        assert_eq!(aside.read(1 << 30, |v| *v), Some(7));
    }

    /// Before there is a frontier the highest id that is kept here is what `max_ahead` is measured from.
    #[test]
    fn a_young_space_refuses_what_is_too_far_above_its_highest_id() {
        let (aside, frontier) = (Aside::<u64>::default(), Frontier::new(Some(100), 1 << 16));
        let write = |id| {
            aside.write(
                &frontier,
                id,
                |_| Err(()),
                |entry| {
                    *entry = Some(7);
                    Ok(())
                },
            )
        };
        assert_eq!(write(1000), Ok(()), "the first id may be any");
        assert_eq!(write(1101), Err(Refused::TooFar));
        assert_eq!(write(u64::MAX), Err(Refused::TooFar));
        assert_eq!((aside.len(), write(1100), write(3), write(1200)), (1, Ok(()), Ok(()), Ok(())));
        assert_eq!(aside.len(), 4);
        frontier.adopt(Some(1000), 10);
        assert_eq!(write(1200), Err(Refused::TooFar), "from now on only the frontier counts");
    }

    /// Two writers and a mover race while the frontier advances over the entries: no increment is lost, and no reader
    /// ever misses an id that was written.
    #[test]
    fn nothing_is_lost_on_the_way_into_the_tables() {
        for round in 0..200 {
            let (aside, frontier, table) = (Aside::default(), Frontier::new(None, 1 << 16), Table::default());
            let ids: Vec<u64> = (0..200).map(|i| 5000 + i).collect();
            increment(&aside, &frontier, &table, ids[0]);
            std::thread::scope(|s| {
                for seed in 0..2 {
                    let (aside, frontier, table, ids) = (&aside, &frontier, &table, &ids);
                    s.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed * 1000 + round);
                        for _ in 0..500 {
                            increment(aside, frontier, table, ids[rng.usize(0..ids.len())]);
                            let seen = aside.read(ids[0], |_| ()).is_some() || table.lock().contains_key(&ids[0]);
                            assert!(seen, "round {round}: an id was missed while it moved");
                        }
                    });
                }
                s.spawn(|| {
                    while frontier.high().is_none() {
                        aside.advance(&frontier, |v| *v as usize);
                    }
                    drain(&aside, &frontier, &table);
                });
            });
            drain(&aside, &frontier, &table);
            let total = table.lock().values().sum::<u64>();
            let left: u64 = aside.entries.lock().values().sum();
            assert_eq!(total + left, 1001, "round {round}");
        }
    }
}
