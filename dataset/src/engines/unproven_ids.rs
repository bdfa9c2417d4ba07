//! The ids of an existence space at which a counter of 0 proves nothing of its flag (see
//! `zero_proof`): a set that only grows.
//!
//! It errs to one side: an id too many may cost a false yes, an id too few would be a false no. So
//! it may forget which ids exactly, and is bounded without ever refusing: when it is full, the
//! older half becomes "all ids up to here", as ids rise with time. An id is in it only once some
//! table may have its flags (`zero_proof.rs`), so "here" is where tables are, and ids that lie far
//! ahead, however many, do not move it there.
//!
//! Pages read it: without a lock, one load or two for an id. Writers add an id in place; what needs
//! more is made beside and exchanged.
//!
//! Its parts only ever grow, so records of it may be told again in any order. As bytes (LEB128, in
//! the log and in snapshots):
//!
//! ```text
//!   1 if there is a `through`, else 0
//!   through      all ids up to this one
//!   per id       its distance from the one before; ids rise
//! ```

use crate::log_records::{put_number, take_number};
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Slots of the smallest set. A set has at least two slots per id, so that a search ends soon.
const FEWEST_SLOTS: usize = 64;

/// See the top of the file.
pub struct Loose {
    now: ArcSwap<Now>,
    /// Held while it changes.
    writing: Mutex<()>,
    /// Ids that came into it outside a turn that marks them for the log.
    arrived: Mutex<Vec<u64>>,
    /// Most ids that are known one by one.
    most: AtomicUsize,
    /// Keyed, so that no client can choose ids that meet in one slot.
    seed: u64,
}

#[derive(Default)]
struct Now {
    through: Option<u64>,
    ids: AtomicUsize,
    /// A power of two, or none. 0: empty; so id 0 is held by `through`.
    slots: Box<[AtomicU64]>,
}

/// Where a search for `id` begins.
fn home(seed: u64, id: u64) -> usize {
    xxh3_64_with_seed(&id.to_le_bytes(), seed) as usize
}

impl Now {
    #[inline]
    fn holds(&self, seed: u64, id: u64) -> bool {
        self.through.is_some_and(|through| id <= through)
            || (!self.slots.is_empty() && self.slot_of(seed, id).is_ok())
    }

    /// The slot that holds `id`, or else the empty one where it would be.
    fn slot_of(&self, seed: u64, id: u64) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = home(seed, id) & mask;
        loop {
            match self.slots[at].load(Acquire) {
                0 => return Err(at),
                held if held == id => return Ok(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    fn ids(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().map(|slot| slot.load(Relaxed)).filter(|&id| id != 0)
    }

    /// Another one with room for `room` ids.
    fn with(&self, seed: u64, through: Option<u64>, room: usize) -> Now {
        let slots = (2 * room).next_power_of_two().max(FEWEST_SLOTS);
        let slots = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let next = Now { through, ids: AtomicUsize::new(0), slots };
        self.ids().filter(|&id| Some(id) > through).for_each(|id| next.put(seed, id));
        next
    }

    /// Adds an id that it does not hold, if it has room.
    fn put(&self, seed: u64, id: u64) {
        if let Err(at) = self.slot_of(seed, id) {
            self.slots[at].store(id, Release);
            self.ids.fetch_add(1, Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        (self.ids.load(Relaxed) + 1) * 2 > self.slots.len()
    }
}

impl Loose {
    /// None yet; at most `most` will be known one by one.
    pub fn new(most: usize) -> Loose {
        Loose {
            now: ArcSwap::from_pointee(Now::default()),
            writing: Mutex::new(()),
            arrived: Mutex::new(Vec::new()),
            most: AtomicUsize::new(most.max(FEWEST_SLOTS)),
            seed: fastrand::u64(..),
        }
    }

    /// From now on at most so many are known one by one.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most.max(FEWEST_SLOTS), Relaxed);
    }

    /// Ids that are known one by one; the highest up to which all are in it.
    pub fn size(&self) -> (usize, Option<u64>) {
        let now = self.now.load();
        (now.ids.load(Relaxed), now.through)
    }

    /// Memory of the ids.
    pub fn memory_bytes(&self) -> u64 {
        self.now.load().slots.len() as u64 * 8
    }

    /// A view for the ids of one page. Take it *after* their counters were read: a writer that
    /// makes a counter 0 has put its id in here before.
    #[inline]
    pub fn read(&self, space: &phantom::Space) -> LooseIds {
        let now = self.now.load();
        // After it: what it has forgotten lies below the horizon.
        LooseIds { now, horizon: space.horizon(), seed: self.seed }
    }

    /// Adds an id. Those below `horizon` need not be kept: nothing is known of them anyway. False
    /// if it was in it.
    pub fn insert(&self, id: u64, horizon: u64) -> bool {
        if self.now.load().holds(self.seed, id) {
            return false;
        }
        let _writing = self.writing.lock();
        let mut now = self.now.load_full();
        if now.holds(self.seed, id) {
            return false;
        }
        if id == 0 {
            self.now.store(Arc::new(now.with(
                self.seed,
                Some(now.through.unwrap_or(0)),
                now.slots.len() / 2,
            )));
            return true;
        }
        if now.is_full() {
            let (mut through, ids) = (now.through, now.ids.load(Relaxed));
            if ids >= self.most.load(Relaxed) {
                through = through.max(horizon.checked_sub(1));
                let mut kept: Vec<u64> = now.ids().filter(|&id| Some(id) > through).collect();
                if kept.len() > self.most.load(Relaxed) / 2 {
                    let middle = kept.len() / 2;
                    through = Some(*kept.select_nth_unstable(middle).1);
                }
            }
            now = Arc::new(now.with(
                self.seed,
                through,
                (ids * 2).clamp(FEWEST_SLOTS / 2, self.most.load(Relaxed)),
            ));
            // With what it holds; the id comes in place, as always.
            self.now.store(now.clone());
        }
        if Some(id) > now.through {
            now.put(self.seed, id);
        }
        true
    }

    /// Adds an id whose flags move from the outlier map into a table, in any turn; the caller of
    /// [`Loose::take_arrived`] logs it. With `follows` nothing is logged here, and a node that
    /// begins to lead logs all that it holds.
    pub fn arrive(&self, id: u64, horizon: u64, follows: bool) {
        // Over both: a thread that finds it in here and leaves the logging to us comes to the log
        // after this.
        let mut arrived = self.arrived.lock();
        if self.insert(id, horizon) && !follows {
            arrived.push(id);
        }
    }

    /// Takes the ids that have arrived since. Whatever the caller has read before he calls this, if
    /// it depends on them, needs to be logged with them.
    pub fn take_arrived(&self) -> Vec<u64> {
        std::mem::take(&mut self.arrived.lock())
    }

    /// They could not be logged: they will be taken again.
    pub fn give_back(&self, arrived: &[u64]) {
        self.arrived.lock().extend_from_slice(arrived);
    }

    /// Returns the id up to which it holds all ids.
    pub fn through(&self) -> Option<u64> {
        self.now.load().through
    }

    /// Adds all ids up to `through`.
    pub fn widen(&self, through: Option<u64>) {
        let _writing = self.writing.lock();
        let now = self.now.load_full();
        if through > now.through {
            self.now.store(Arc::new(now.with(self.seed, through, now.slots.len() / 2)));
        }
    }

    /// What holds of all ids, and of some: those in `ids`, which rise; or all, if that is `None`.
    pub fn encode(&self, ids: Option<&[u64]>) -> Vec<u8> {
        let now = self.now.load();
        let mut out = Vec::new();
        put_number(&mut out, u64::from(now.through.is_some()));
        now.through.iter().for_each(|&id| put_number(&mut out, id));
        let mut all;
        let ids = match ids {
            Some(ids) => ids,
            None => {
                all = now.ids().collect::<Vec<u64>>();
                all.sort_unstable();
                &all
            }
        };
        let mut before = 0;
        for &id in ids {
            put_number(&mut out, id - before);
            before = id;
        }
        out
    }

    /// Makes true what [`Loose::encode`] told.
    pub fn decode(&self, mut bytes: &[u8], horizon: u64) -> Result<(), String> {
        let kinds = take_number(&mut bytes)?;
        if kinds > 1 {
            return Err(format!("unproven ids with unknown flags {kinds}"));
        }
        let through = if kinds & 1 == 1 { Some(take_number(&mut bytes)?) } else { None };
        self.widen(through);
        let mut id = 0u64;
        while !bytes.is_empty() {
            id = id.checked_add(take_number(&mut bytes)?).ok_or("an id of more than 64 bits")?;
            self.insert(id, horizon);
        }
        Ok(())
    }
}

/// See [`Loose::read`].
pub struct LooseIds {
    now: Guard<Arc<Now>>,
    /// Below it nothing is known any more; a page that began before it rose may have found
    /// something there.
    horizon: u64,
    seed: u64,
}

impl LooseIds {
    /// Whether a counter of 0 proves nothing at this id.
    #[inline]
    pub fn holds(&self, id: u64) -> bool {
        id < self.horizon || self.now.holds(self.seed, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(loose: &Loose, id: u64) -> bool {
        loose.now.load().holds(loose.seed, id)
    }

    #[test]
    fn what_was_put_in_stays_in_however_much_comes() {
        let mut rng = fastrand::Rng::with_seed(1);
        for most in [64, 1000] {
            let loose = Loose::new(most);
            let mut put = vec![];
            for step in 0..200u64 {
                let id = if step % 50 == 7 {
                    rng.u64(..)
                } else {
                    1_000_000 + step * 3 + rng.u64(0..200)
                };
                loose.insert(id, 0);
                put.push(id);
            }
            for step in 0..200_000u64 {
                let id = 2_000_000 + step * 5 + rng.u64(0..1000);
                loose.insert(id, 0);
                put.push(id);
            }
            assert!(put.iter().all(|&id| holds(&loose, id)));
            let (ids, through) = loose.size();
            assert!(ids <= most && ids >= most / 4, "{ids}");
            assert!(
                through.is_some_and(|through| through > 2_000_000),
                "the older half is known as a range"
            );
            assert!(!holds(&loose, 4_000_001), "nothing that was never there");
            assert!(loose.memory_bytes() <= 8 * 4 * most.next_power_of_two() as u64);
        }
    }

    #[test]
    fn what_lies_below_the_horizon_goes_first() {
        let loose = Loose::new(64);
        (1..=64).for_each(|id| assert!(loose.insert(id * 10, 0)));
        assert!(loose.insert(1000, 500));
        assert_eq!(loose.size(), (16, Some(499)), "the horizon, and not half of the ids");
        assert!(
            holds(&loose, 7) && holds(&loose, 500) && !holds(&loose, 501) && holds(&loose, 1000)
        );
    }

    #[test]
    fn the_ends_of_the_range_of_ids() {
        let loose = Loose::new(64);
        assert!(loose.insert(u64::MAX, 0) && !loose.insert(u64::MAX, 0));
        assert!(!holds(&loose, 0));
        assert!(loose.insert(0, 0) && !loose.insert(0, 0) && holds(&loose, 0) && !holds(&loose, 1));
        assert!(holds(&loose, u64::MAX));
        loose.widen(Some(u64::MAX));
        assert!(holds(&loose, 1) && !loose.insert(1, 0));
    }

    #[test]
    fn it_reads_back_and_may_be_told_again() {
        let loose = Loose::new(64);
        (1..=200).for_each(|id| assert!(loose.insert(id * 7, 0)));
        let other = Loose::new(64);
        other.insert(2_000, 0);
        for _ in 0..2 {
            other.decode(&loose.encode(None), 0).unwrap();
            other.decode(&loose.encode(Some(&[1400, u64::MAX])), 0).unwrap();
        }
        assert!((0..=1400).all(|id| !holds(&loose, id) || holds(&other, id)));
        assert!(holds(&other, 2_000) && holds(&other, u64::MAX));
        assert_eq!(other.size().1, loose.size().1);
        assert!(other.decode(&[2], 0).is_err());
        assert!(other.decode(&[1], 0).is_err());
        assert!(other.decode(&[0, 1, 0x80], 0).is_err());
    }
}
