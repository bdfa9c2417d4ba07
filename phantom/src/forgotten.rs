//! Forgotten ids: deletion of all pairs of an id at once.
//!
//! A filter cannot list the pairs of an id, so it is not possible to delete them one by one.
//! Instead the id gets a new *generation*, a number that is mixed into the hashes of its pairs.
//! Bits of earlier generations remain in the filters, but lookups compute other hashes. Generation
//! 0 uses the plain hash, so ids that were never forgotten are unaffected.
//!
//! The log stores pairs of later generations by hash, so replay of an earlier generation has no
//! visible effect. Generations only rise. Replay is therefore idempotent, and two sites converge on
//! the higher generation.
//!
//! Readers take no lock. A writer adds an id in place, or builds a larger map and swaps it in.
//! While no id is forgotten, a lookup costs one extra branch. The ids below the horizon are removed
//! together with their tables; `max_forgotten` limits the number of remaining ids.

use crate::hash::{Pair, Seed, mix};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Slots of the smallest map. A map has at least two slots per id to keep probe sequences short.
const MIN_SLOTS: usize = 64;

pub(crate) struct Forgotten {
    any: AtomicBool,
    now: ArcSwap<Generations>,
    writing: Mutex<()>,
    /// Secret hash key: clients cannot choose colliding ids.
    secret: u64,
    swept: AtomicU64,
}

/// Open-addressing hash table from id to generation.
#[derive(Default)]
struct Generations {
    ids: AtomicUsize,
    /// Length is 0 or a power of two.
    slots: Box<[Slot]>,
}

#[derive(Default)]
struct Slot {
    id: AtomicU64,
    /// 0 means empty. Written after the id.
    generation: AtomicU64,
}

impl Generations {
    fn with_room(ids: usize) -> Generations {
        let slots = (2 * ids).next_power_of_two().max(MIN_SLOTS);
        Generations {
            ids: AtomicUsize::new(0),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        }
    }

    /// Returns the slot of the id, or the empty slot where it belongs. The map must have slots.
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

    /// Adds an id, which must be absent. The map must have room.
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

    /// Whether any id is forgotten. Lookups test this first.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Acquire)
    }

    pub(crate) fn generation(&self, id: u64) -> u64 {
        if self.any() { self.now.load().of(self.secret, id) } else { 0 }
    }

    /// Recomputes pairs of generation 0 in the current generations of their ids.
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

    pub(crate) fn len(&self) -> usize {
        self.now.load().ids.load(Relaxed)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.now.load().slots.len() * size_of::<Slot>()
    }

    /// Raises the generation of an id. Returns whether the previous generation was lower.
    pub(crate) fn raise(&self, id: u64, generation: u64, horizon: u64) -> bool {
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

    /// Replaces the map by one with room for `room` ids, without ids below the horizon.
    fn rebuild(&self, now: &Generations, room: usize, horizon: u64) -> Arc<Generations> {
        let next = Generations::with_room(room);
        let kept = now.all().filter(|(id, _)| *id >= horizon);
        kept.for_each(|(id, generation)| next.put(self.secret, id, generation));
        let next = Arc::new(next);
        self.now.store(next.clone());
        next
    }

    pub(crate) fn sweep(&self, horizon: u64) {
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

    /// Returns the result of [`Forgotten::within`] while holding the writers' lock. A thread that
    /// raises a generation afterwards sees all earlier writes of the thread that made this call.
    pub(crate) fn note(&self, low: u64, last: u64) -> Vec<(u64, u64)> {
        let _writing = self.writing.lock();
        self.within(low, last)
    }

    /// Returns the ids in an inclusive range with their generations, in ascending order.
    pub(crate) fn within(&self, low: u64, last: u64) -> Vec<(u64, u64)> {
        let now = self.now.load_full();
        let mut all: Vec<(u64, u64)> =
            now.all().filter(|(id, _)| (low..=last).contains(id)).collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn is_due(&self, horizon: u64) -> bool {
        self.any() && self.swept.load(Relaxed) != horizon
    }

    /// Drops the ids of recycled tables. Returns whether the horizon has moved since the last call.
    pub(crate) fn tidy(&self, horizon: u64) -> bool {
        let is_due = self.is_due(horizon);
        if is_due {
            self.sweep(horizon);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Readers find existing ids while a writer enlarges the map.
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
