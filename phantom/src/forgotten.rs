//! Forgotten ids: all pairs of such an id were unset at once.
//!
//! A filter cannot tell which pairs an id has, so they cannot be unset one by one. Instead the id
//! gets another *generation*: a number that is mixed into the hashes of its pairs. Bits of earlier
//! generations stay in the filters, and nothing asks for them any more. An id that was never
//! forgotten has generation 0, and its pairs are hashed as if there were no generations.
//!
//! A log names pairs of later generations by their hashes, so what it tells of an earlier one may be
//! told again at any time and is never seen. Generations only rise, so they may be told again, too,
//! and two sites agree on the higher one.
//!
//! Readers take no lock: an id is added in place, and what needs more is made beside and exchanged.
//! While no id is forgotten a lookup costs one branch more. Ids below the horizon go with their
//! tables; the number of the others is bounded (`max_forgotten`).

use crate::Error;
use crate::hash::{Member, Pair, Seed, mix};
use crate::space::{OutlierPairs, Space};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

/// Slots of the smallest map. A map has at least two slots per id, so that a search ends soon.
const FEWEST_SLOTS: usize = 64;
/// A higher generation than any that was counted: what another site says may not be higher.
pub(crate) const MOST_GENERATIONS: u64 = 1 << 32;

/// See the top of the file.
pub(crate) struct Forgotten {
    /// Whether there is any id.
    any: AtomicBool,
    now: ArcSwap<Generations>,
    /// Held while it changes.
    writing: Mutex<()>,
    /// Chooses the slots: no client can choose ids that meet in one.
    secret: u64,
    /// The horizon when the ids below it were last dropped.
    swept: AtomicU64,
}

/// Generations by id, in open addressing.
#[derive(Default)]
struct Generations {
    ids: AtomicUsize,
    /// A power of two, or none.
    slots: Box<[Slot]>,
}

#[derive(Default)]
struct Slot {
    id: AtomicU64,
    /// 0: the slot is empty. Set after the id.
    generation: AtomicU64,
}

impl Generations {
    fn with_room(ids: usize) -> Generations {
        let slots = (2 * ids).next_power_of_two().max(FEWEST_SLOTS);
        Generations {
            ids: AtomicUsize::new(0),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        }
    }

    /// The slot that has the id, or else the empty one where it would be. There are slots.
    fn slot_of(&self, secret: u64, id: u64) -> Result<&Slot, &Slot> {
        let mask = self.slots.len() - 1;
        let mut at = mix(id ^ secret) as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.generation.load(Acquire) == 0 {
                return Err(slot);
            }
            if slot.id.load(Relaxed) == id {
                return Ok(slot);
            }
            at = (at + 1) & mask;
        }
    }

    fn of(&self, secret: u64, id: u64) -> u64 {
        if self.slots.is_empty() {
            return 0;
        }
        self.slot_of(secret, id).map_or(0, |slot| slot.generation.load(Relaxed))
    }

    /// Adds an id that it has not; there is room.
    fn put(&self, secret: u64, id: u64, generation: u64) {
        if let Err(slot) = self.slot_of(secret, id) {
            slot.id.store(id, Relaxed);
            slot.generation.store(generation, Release);
            self.ids.fetch_add(1, Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        (self.ids.load(Relaxed) + 1) * 2 > self.slots.len()
    }

    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let slots = self.slots.iter().map(|slot| (slot.generation.load(Acquire), &slot.id));
        slots.filter(|(generation, _)| *generation > 0).map(|(g, id)| (id.load(Relaxed), g))
    }
}

impl Forgotten {
    pub(crate) fn new(seed: Seed) -> Forgotten {
        Forgotten {
            any: AtomicBool::new(false),
            now: ArcSwap::default(),
            writing: Mutex::new(()),
            secret: mix(seed.fingerprint()),
            swept: AtomicU64::new(0),
        }
    }

    /// Whether any id is forgotten: asked before all else.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Acquire)
    }

    /// How often an id was forgotten.
    pub(crate) fn generation(&self, id: u64) -> u64 {
        if self.any() { self.now.load().of(self.secret, id) } else { 0 }
    }

    /// Makes pairs of the first generation those of the present one.
    #[cold]
    #[inline(never)]
    pub(crate) fn renew(&self, seed: Seed, pairs: &mut [Pair]) {
        let now = self.now.load();
        for pair in pairs {
            let generation = now.of(self.secret, pair.id);
            if generation > 0 {
                *pair = seed.later(*pair, generation);
            }
        }
    }

    /// How many ids are forgotten.
    fn len(&self) -> usize {
        self.now.load().ids.load(Relaxed)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.now.load().slots.len() * size_of::<Slot>()
    }

    /// Raises the generation of an id to this one, if it is lower; whether it was.
    fn raise(&self, id: u64, generation: u64, horizon: u64) -> bool {
        let _writing = self.writing.lock();
        let mut now = self.now.load_full();
        if !now.slots.is_empty()
            && let Ok(slot) = now.slot_of(self.secret, id)
        {
            return slot.generation.fetch_max(generation, Release) < generation;
        }
        if now.is_full() {
            let kept = now.all().filter(|(id, _)| *id >= horizon).count();
            now = self.rebuild(&now, 2 * (kept + 1), horizon);
        }
        now.put(self.secret, id, generation);
        self.any.store(true, Release);
        true
    }

    /// Exchanges the map for one with room for so many ids, without those below the horizon.
    fn rebuild(&self, now: &Generations, room: usize, horizon: u64) -> Arc<Generations> {
        let next = Generations::with_room(room);
        let kept = now.all().filter(|(id, _)| *id >= horizon);
        kept.for_each(|(id, generation)| next.put(self.secret, id, generation));
        let next = Arc::new(next);
        self.now.store(next.clone());
        next
    }

    /// Drops the ids below the horizon, of which nothing is known any more.
    fn sweep(&self, horizon: u64) {
        let _writing = self.writing.lock();
        self.swept.store(horizon, Relaxed);
        let now = self.now.load_full();
        let kept = now.all().filter(|(id, _)| *id >= horizon).count();
        if kept == now.ids.load(Relaxed) {
            return;
        }
        if kept == 0 {
            self.now.store(Arc::default());
            self.any.store(false, Release);
        } else {
            self.rebuild(&now, kept + 1, horizon);
        }
    }

    /// Whether [`Forgotten::tidy`] has something to do. Cheap.
    pub(crate) fn is_due(&self, horizon: u64) -> bool {
        self.any() && self.swept.load(Relaxed) != horizon
    }

    /// Drops the ids of tables that were recycled; whether there was anything to do.
    pub(crate) fn tidy(&self, horizon: u64) -> bool {
        let is_due = self.is_due(horizon);
        if is_due {
            self.sweep(horizon);
        }
        is_due
    }
}

impl Space {
    /// The pair of `id` and `member` as it was before the id was ever forgotten.
    #[inline]
    pub fn first_pair(&self, id: u64, member: &Member) -> Pair {
        self.seed.pair(id, self.seed.ready(member))
    }

    /// The pair of the id's present generation.
    #[inline]
    pub(crate) fn current(&self, mut first: Pair) -> Pair {
        if self.forgotten.any() {
            self.forgotten.renew(self.seed, std::slice::from_mut(&mut first));
        }
        first
    }

    /// How often an id was forgotten. A pair of generation 0 is named by its member, or its hash; a
    /// later one by its hash only.
    #[inline]
    pub fn generation(&self, id: u64) -> u64 {
        if self.forgotten.any() { self.forgotten.generation(id) } else { 0 }
    }

    /// Whether the id can have a pair that is set.
    fn may_have_pairs(&self, id: u64) -> bool {
        id >= self.horizon()
            && (self.highest_id().is_some_and(|highest| id <= highest)
                || self.outliers.read(id, |_| ()).is_some())
    }

    /// Whether so many more ids may be forgotten.
    pub(crate) fn may_forget_more(&self, ids: usize) -> Result<(), Error> {
        let most = self.limits.max_forgotten.load(Relaxed);
        let has_room = || self.forgotten.len().saturating_add(ids) <= most;
        if ids == 0 || has_room() {
            return Ok(());
        }
        self.forgotten.sweep(self.horizon());
        if has_room() { Ok(()) } else { Err(Error::ForgottenFull) }
    }

    /// Whether [`Space::forget`] has room for this id. Others may take it in between: then there is
    /// one more per thread.
    pub fn may_forget(&self, id: u64) -> Result<(), Error> {
        let is_new = self.may_have_pairs(id) && self.generation(id) == 0;
        self.may_forget_more(usize::from(is_new))
    }

    /// Unsets all pairs of an id. False: it can have none, and nothing has changed. No pair of it
    /// may be written meanwhile.
    pub fn forget(&self, id: u64) -> bool {
        let may_have_pairs = self.may_have_pairs(id);
        if may_have_pairs {
            self.raise(id, self.generation(id) + 1);
        }
        may_have_pairs
    }

    /// Makes true what a log says of the generation of an id. May be repeated, and come in any
    /// order. The bound does not hold here.
    pub fn put_generation(&self, id: u64, generation: u64) {
        if id >= self.horizon() {
            self.raise(id, generation);
        }
    }

    /// Makes the generations those that a snapshot has. What [`Space::restore`] has put aside is of
    /// these, if they were taken after the head.
    pub fn restore_generations(&self, forgotten: &[(u64, u64)]) {
        let horizon = self.horizon();
        let known = forgotten.iter().filter(|(id, _)| *id >= horizon);
        known.for_each(|&(id, generation)| _ = self.forgotten.raise(id, generation, horizon));
    }

    pub(crate) fn raise(&self, id: u64, generation: u64) {
        if !self.forgotten.raise(id, generation, self.horizon()) || !self.outliers.may_hold(id) {
            return;
        }
        // What is held of it is of an earlier generation.
        let drop_held = |entry: &mut Option<Arc<OutlierPairs>>| {
            if let Some(held) = entry.take() {
                self.outlier_pairs.fetch_sub(held.read().len(), SeqCst);
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.outliers.take_away(&self.frontier, id, drop_held, drop_held);
    }

    /// The ids of a range, both ends inclusive, that are forgotten, rising, with their generations.
    pub fn forgotten(&self, low: u64, last: u64) -> Vec<(u64, u64)> {
        let now = self.forgotten.now.load_full();
        let mut all: Vec<(u64, u64)> =
            now.all().filter(|(id, _)| (low..=last).contains(id)).collect();
        all.sort_unstable();
        all
    }

    /// How many ids are forgotten.
    pub fn forgotten_ids(&self) -> usize {
        self.forgotten.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Change, Options};

    fn space(max_forgotten: usize) -> Space {
        let options =
            Options { seed: 1, pairs_per_table: 2000, max_tables: 2, ..Options::default() };
        Space::new(Options { max_forgotten, ..options }).unwrap()
    }

    const MEMBERS: [Member<'static>; 3] =
        [Member::Number(0), Member::Number(7), Member::Bytes(b"ann")];

    fn fill(space: &Space, ids: std::ops::Range<u64>) {
        for id in ids {
            MEMBERS.iter().for_each(|member| _ = space.add(id, member).unwrap());
        }
    }

    #[test]
    fn a_forgotten_id_has_no_pairs_and_takes_new_ones() {
        let space = space(1000);
        fill(&space, 0..200);
        assert!(space.forget(7) && space.forget(0));
        for id in 0..200 {
            let expected = if id == 7 || id == 0 { Answer::No } else { Answer::Yes };
            for member in &MEMBERS {
                assert_eq!(space.contains(id, member), expected, "{id} {member:?}");
                let mut page = vec![];
                space.contains_batch(member, &[id, 5, 7], &mut page);
                assert_eq!(page, [expected, Answer::Yes, Answer::No]);
            }
        }
        assert_eq!(space.add(7, &MEMBERS[0]).unwrap(), Change::Changed);
        assert_eq!(space.add(7, &MEMBERS[0]).unwrap(), Change::Unchanged);
        assert_eq!(space.contains(7, &MEMBERS[0]), Answer::Yes);
        assert_eq!(space.remove(7, &MEMBERS[1]).unwrap(), Change::Unchanged, "forgotten");
        assert!(space.forget(7), "once more");
        assert_eq!((space.contains(7, &MEMBERS[0]), space.generation(7)), (Answer::No, 2));
        assert_eq!(space.forgotten(0, u64::MAX), [(0, 1), (7, 2)]);
    }

    /// An old record names the pair as it was before the id was forgotten.
    #[test]
    fn a_pair_of_an_earlier_generation_that_is_told_again_is_not_seen() {
        let space = space(1000);
        fill(&space, 0..200);
        let told = MEMBERS.map(|member| space.pair(7, &member));
        assert_eq!(told, MEMBERS.map(|member| space.first_pair(7, &member)));
        space.put_generation(7, 3);
        space.put_generation(7, 2);
        assert_eq!(space.generation(7), 3, "it only rises");
        told.iter().for_each(|pair| space.put(pair, true).unwrap());
        assert!(MEMBERS.iter().all(|member| space.contains(7, member) == Answer::No));
        let now = space.pair(7, &MEMBERS[2]);
        space.put(&now, true).unwrap();
        assert_eq!(space.contains(7, &MEMBERS[2]), Answer::Yes);
    }

    #[test]
    fn pairs_of_a_forgotten_id_that_are_held_aside_are_dropped() {
        let space = space(1000);
        fill(&space, 0..200);
        fill(&space, 1 << 50..(1 << 50) + 2);
        assert_eq!(space.outlier_pairs(), 6);
        assert!(space.forget(1 << 50));
        assert_eq!((space.outlier_pairs(), space.forgotten_ids()), (3, 1));
        assert_eq!(space.contains(1 << 50, &MEMBERS[0]), Answer::No);
        assert_eq!(space.contains((1 << 50) + 1, &MEMBERS[0]), Answer::Yes);
        space.add(1 << 50, &MEMBERS[0]).unwrap();
        assert_eq!(space.contains(1 << 50, &MEMBERS[0]), Answer::Yes);
        assert!(!space.forget(u64::MAX) && !space.forget(1 << 40), "there can be none");
        assert_eq!(space.forgotten_ids(), 1);
    }

    #[test]
    fn the_number_of_forgotten_ids_is_bounded_and_those_below_the_horizon_go() {
        let space = space(50);
        fill(&space, 0..300);
        (0..50).for_each(|id| {
            space.may_forget(id).unwrap();
            assert!(space.forget(id));
        });
        assert!(matches!(space.may_forget(50), Err(Error::ForgottenFull)));
        assert!(space.may_forget(49).is_ok(), "it is known already");
        let bytes = space.memory_bytes();
        let mut id = 300;
        while space.horizon() == 0 {
            fill(&space, id..id + 100);
            id += 100;
        }
        while space.maintain() {}
        assert_eq!(space.forgotten_ids(), 0, "{}", space.horizon());
        assert!(!space.forgotten.any() && space.forgotten.memory_bytes() == 0 && bytes > 0);
        assert!(space.may_forget(id - 1).is_ok() && space.forget(id - 1));
        assert!(!space.forget(0), "below the horizon nothing is known");
    }

    #[test]
    fn many_ids_are_known_each_with_its_generation() {
        let forgotten = Forgotten::new(Seed::new(3));
        let mut random = fastrand::Rng::with_seed(5);
        let mut model = std::collections::HashMap::new();
        for _ in 0..if cfg!(miri) { 300 } else { 30_000 } {
            let id = [random.u64(..), random.u64(0..5000), 0, u64::MAX][random.usize(0..4)];
            let generation = random.u64(1..5);
            let known = model.entry(id).or_insert(0);
            assert_eq!(forgotten.raise(id, generation, 0), generation > *known);
            *known = generation.max(*known);
        }
        assert!(model.iter().all(|(&id, &generation)| forgotten.generation(id) == generation));
        assert_eq!((forgotten.len(), forgotten.generation(5001)), (model.len(), 0));
        forgotten.sweep(1000);
        model.retain(|&id, _| id >= 1000);
        assert!(model.iter().all(|(&id, &generation)| forgotten.generation(id) == generation));
        assert_eq!((forgotten.len(), forgotten.generation(0)), (model.len(), 0));
    }

    /// A reader that looks while the map grows finds what was there before.
    #[test]
    fn readers_find_what_is_there_while_others_are_added() {
        let forgotten = Forgotten::new(Seed::new(3));
        forgotten.raise(1, 1, 0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    assert_eq!((forgotten.generation(1), forgotten.generation(0)), (1, 0));
                }
            });
            for id in 2..if cfg!(miri) { 200 } else { 20_000 } {
                forgotten.raise(id, 1, 0);
            }
            done.store(true, Relaxed);
        });
    }
}
