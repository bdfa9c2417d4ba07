//! Deletes all pairs of an id by raising its generation (`forgotten`).

use crate::Error;
use crate::hash::{Member, Pair};
use crate::space::{OutlierPairs, Space};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Space {
    /// Returns the pair of `id` and `member` in generation 0, before any forget.
    #[inline]
    pub fn first_pair(&self, id: u64, member: &Member) -> Pair {
        self.seed.pair(id, self.seed.prepare_member(member))
    }

    #[inline]
    pub(crate) fn current(&self, mut first: Pair) -> Pair {
        if self.forgotten.any() {
            self.forgotten.renew(self.seed, std::slice::from_mut(&mut first));
        }
        first
    }

    /// Returns how often the id was forgotten. The log stores a pair of generation 0 by member or
    /// by hash, and pairs of later generations by hash.
    #[inline]
    pub fn generation(&self, id: u64) -> u64 {
        if self.forgotten.any() { self.forgotten.generation(id) } else { 0 }
    }

    fn may_have_pairs(&self, id: u64) -> bool {
        id >= self.horizon()
            && (self.highest_id().is_some_and(|highest| id <= highest)
                || self.outliers.read(id, |_| ()).is_some())
    }

    pub(crate) fn may_forget_more(&self, ids: usize) -> Result<(), Error> {
        let most = self.limits.max_forgotten.load(Relaxed);
        let has_room = || self.forgotten.len().saturating_add(ids) <= most;
        if ids == 0 || has_room() {
            return Ok(());
        }
        self.forgotten.sweep(self.horizon());
        if has_room() { Ok(()) } else { Err(Error::ForgottenFull) }
    }

    /// Checks that [`Space::forget`] has room for this id. Concurrent callers may exceed the limit
    /// by one id per thread.
    pub fn may_forget(&self, id: u64) -> Result<(), Error> {
        let is_new = self.may_have_pairs(id) && self.generation(id) == 0;
        self.may_forget_more(usize::from(is_new))
    }

    /// Deletes all pairs of an id. Returns `false` if the id cannot have any. No other thread may
    /// write pairs of the id concurrently.
    pub fn forget(&self, id: u64) -> bool {
        self.forget_with(id, || ())
    }

    /// Calls `first`, then deletes all pairs of an id. Returns `false`, without calling `first`, if
    /// the id cannot have any pairs. A host with an exact list of pairs removes the id from it in
    /// `first` (`rebuild`, R6). Otherwise behaves like [`Space::forget`].
    pub fn forget_with(&self, id: u64, first: impl FnOnce()) -> bool {
        let may_have_pairs = self.may_have_pairs(id);
        if may_have_pairs {
            first();
            self.raise(id, self.generation(id) + 1);
        }
        may_have_pairs
    }

    /// Replays a generation from the log. The call is idempotent and independent of order. The
    /// limit does not apply. A host with an exact list of pairs removes the id from it first
    /// (`rebuild`, R6).
    pub fn put_generation(&self, id: u64, generation: u64) {
        if id >= self.horizon() {
            self.raise(id, generation);
        }
    }

    /// Restores the generations of a snapshot. If the snapshot read them after the head, the
    /// outliers (pairs of ids far above all tables) passed to [`Space::restore`] belong to these
    /// generations.
    pub fn restore_generations(&self, forgotten: &[(u64, u64)]) {
        let horizon = self.horizon();
        let known = forgotten.iter().filter(|(id, _)| *id >= horizon);
        known.for_each(|&(id, generation)| _ = self.forgotten.raise(id, generation, horizon));
    }

    pub(crate) fn raise(&self, id: u64, generation: u64) {
        if !self.forgotten.raise(id, generation, self.horizon()) || !self.outliers.may_hold(id) {
            return;
        }
        // The existing outliers of the id belong to an earlier generation.
        let drop_held = |_, entry: &mut Option<Arc<OutlierPairs>>| {
            if let Some(held) = entry.take() {
                self.outlier_pairs.fetch_sub(held.read().len(), SeqCst);
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.outliers.write_removal(&self.frontier, id, drop_held);
    }

    /// Returns the forgotten ids in an inclusive range with their generations, in ascending order.
    pub fn forgotten(&self, low: u64, last: u64) -> Vec<(u64, u64)> {
        self.forgotten.within(low, last)
    }

    /// Returns the number of forgotten ids.
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
                assert_eq!(space.contains(id, member).unwrap(), expected, "{id} {member:?}");
                let mut page = vec![];
                space.contains_batch(member, &[id, 5, 7], &mut page).unwrap();
                assert_eq!(page, [expected, Answer::Yes, Answer::No]);
            }
        }
        assert_eq!(space.add(7, &MEMBERS[0]).unwrap(), Change::Changed);
        assert_eq!(space.add(7, &MEMBERS[0]).unwrap(), Change::Unchanged);
        assert_eq!(space.contains(7, &MEMBERS[0]).unwrap(), Answer::Yes);
        assert_eq!(space.remove(7, &MEMBERS[1]).unwrap(), Change::Unchanged, "forgotten");
        let is_before = || assert_eq!(space.generation(7), 1, "a rebuild relies on this order");
        assert!(space.forget_with(7, is_before), "forgotten again");
        assert_eq!((space.contains(7, &MEMBERS[0]).unwrap(), space.generation(7)), (Answer::No, 2));
        assert_eq!(space.forgotten(0, u64::MAX), [(0, 1), (7, 2)]);
    }

    /// A log record written before a forget contains a pair of an earlier generation.
    #[test]
    fn replayed_pair_of_an_earlier_generation_stays_invisible() {
        let space = space(1000);
        fill(&space, 0..200);
        let told = MEMBERS.map(|member| space.pair(7, &member));
        assert_eq!(told, MEMBERS.map(|member| space.first_pair(7, &member)));
        space.put_generation(7, 3);
        space.put_generation(7, 2);
        assert_eq!(space.generation(7), 3, "the horizon never falls");
        told.iter().for_each(|pair| space.put(pair, true).unwrap());
        assert!(MEMBERS.iter().all(|member| space.contains(7, member).unwrap() == Answer::No));
        let now = space.pair(7, &MEMBERS[2]);
        space.put(&now, true).unwrap();
        assert_eq!(space.contains(7, &MEMBERS[2]).unwrap(), Answer::Yes);
    }

    #[test]
    fn pairs_of_a_forgotten_id_that_are_held_aside_are_dropped() {
        let space = space(1000);
        fill(&space, 0..200);
        fill(&space, 1 << 50..(1 << 50) + 2);
        assert_eq!(space.outlier_pairs(), 6);
        assert!(space.forget(1 << 50));
        assert_eq!((space.outlier_pairs(), space.forgotten_ids()), (3, 1));
        assert_eq!(space.contains(1 << 50, &MEMBERS[0]).unwrap(), Answer::No);
        assert_eq!(space.contains((1 << 50) + 1, &MEMBERS[0]).unwrap(), Answer::Yes);
        space.add(1 << 50, &MEMBERS[0]).unwrap();
        assert_eq!(space.contains(1 << 50, &MEMBERS[0]).unwrap(), Answer::Yes);
        assert!(!space.forget(u64::MAX) && !space.forget(1 << 40), "no pair can exist");
        assert_eq!(space.forgotten_ids(), 1);
    }

    #[test]
    fn forgotten_ids_are_bounded_and_dropped_below_horizon() {
        let space = space(50);
        fill(&space, 0..300);
        (0..50).for_each(|id| {
            space.may_forget(id).unwrap();
            assert!(space.forget(id));
        });
        assert!(matches!(space.may_forget(50), Err(Error::ForgottenFull)));
        assert!(space.may_forget(49).is_ok(), "the id is forgotten already");
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
        assert!(!space.forget(0), "ids below the horizon are unknown");
    }
}
