//! Tests of atomic groups: they are read under all locks and logged in one batch, unless they are
//! too large.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use store::{Batch, CommitOptions, Committed, Error, Health, LoggedState, MAX_BODY_BYTES, Records};

use super::{ByHand, Meeting, Reader, always, read_row, row};
use crate::basics::{open, options};

/// A batch with the keys of a joined guard also contains all pending keys of the guard's stripes.
#[test]
fn what_waits_in_stripes_that_are_joined_is_in_the_same_batch() {
    for joins in [true, false] {
        let meeting = Meeting::new(4, CommitOptions { batch_bytes: 1, ..always(4) });
        let mut thread = meeting.by_hand();
        let write = |key: u32| _ = meeting.set(key, 0);
        [0, 1, 3].into_iter().for_each(write);
        let several = meeting.committer.several([1, 2, 3]);
        if joins {
            several.join();
        }
        write(2);
        drop(several);
        thread.round().unwrap();
        let mut batches = Vec::new();
        let mut each = |_: &store::BatchHead, body: &[u8]| {
            batches.push(
                Records::new(body)
                    .map(|record| read_row(record.unwrap().payload).0)
                    .collect::<Vec<_>>(),
            );
            Ok(())
        };
        open(&meeting.disk, options(8000)).unwrap().replay_batches(&mut each, |_| ()).unwrap();
        batches.sort_unstable();
        assert_eq!(
            batches,
            if joins {
                vec![vec![0], vec![1, 2, 3]]
            } else {
                vec![vec![0], vec![1], vec![2], vec![3]]
            }
        );
    }
}

/// The append of the batch before the atomic group fails.
#[test]
fn a_failed_round_forgets_no_joined_stripe() {
    let meeting = Meeting::new(8, always(8));
    let mut thread = meeting.by_hand();
    let write = |key| _ = meeting.set(key, 1);
    let all = meeting.committer.exclusive();
    [2, 3].into_iter().for_each(write);
    drop(all);
    [0, 7].into_iter().for_each(write);
    meeting.disk.set_capacity(Some(meeting.disk.used_bytes()));
    thread.round().unwrap_err();
    meeting.disk.set_capacity(None);
    thread.round().unwrap();
    assert_eq!(meeting.left(), BTreeMap::from([(0, 1), (2, 1), (3, 1), (7, 1)]));
}

/// A source that records duplicate keys in a batch. While it reads the stripe of `WRITES_AT`, it
/// changes keys of other stripes.
struct Interrupted<'a> {
    reader: Reader<'a>,
    meeting: &'a Meeting,
    twice: Vec<u32>,
}

/// Key in a separate stripe, between the stripes of the atomic group.
const WRITES_AT: u32 = 1;

impl LoggedState<u32> for Interrupted<'_> {
    fn collect(&mut self, keys: &[u32]) -> usize {
        if keys == [WRITES_AT] {
            // Simulates a concurrent writer, whose stripes are not locked.
            for key in [0, 2] {
                self.meeting.set(key, 7);
            }
        }
        self.reader.collect(keys)
    }
    fn encode(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let mut keys: Vec<u32> = self.reader.rows.iter().map(|row| row.0).collect();
        keys.sort_unstable();
        self.twice.extend(keys.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]));
        self.reader.encode(batch)
    }
    fn forget(&mut self) {
        self.reader.forget();
    }
    fn published(&mut self, _: &Committed) {}
    fn now_ms(&mut self) -> u64 {
        7
    }
    fn failed(&mut self, _: &Error) {}
}

/// Tests invariant C7. The round may visit joined stripes again after another writer has changed
/// them. A batch with both states would not show which state is later.
#[test]
fn no_batch_holds_a_key_twice() {
    let meeting = Meeting::new(4, always(4));
    let source =
        Interrupted { reader: Reader::new(&meeting.engine), meeting: &meeting, twice: Vec::new() };
    let mut thread = meeting.by_hand_with(source);
    let all = meeting.committer.exclusive();
    [0, 2].into_iter().for_each(|key| _ = meeting.set(key, 1));
    drop(all);
    meeting.set(WRITES_AT, 1);
    for _ in 0..2 {
        thread.round().unwrap();
    }
    assert_eq!(thread.source.twice, []);
    assert_eq!(meeting.left(), BTreeMap::from([(0, 7), (1, 1), (2, 7)]));
}

/// A source with records so large that twenty exceed a batch. Keys 2n and 2n + 1 belong to one id.
struct Large<'a> {
    reader: Reader<'a>,
    batch_split: usize,
}

impl LoggedState<u32> for Large<'_> {
    fn collect(&mut self, keys: &[u32]) -> usize {
        self.reader.collect(keys)
    }
    fn encode(&mut self, batch: &mut Batch) -> Result<(), Error> {
        for (key, value) in self.reader.rows.drain(..) {
            let mut payload = vec![0; MAX_BODY_BYTES / 16];
            payload[..12].copy_from_slice(&row(key, value));
            batch.push(1, 1, &payload);
        }
        Ok(())
    }
    fn may_split_between(&self, before: &u32, after: &u32) -> bool {
        before / 2 != after / 2
    }
    fn batch_split(&mut self, bytes: usize) {
        assert!(bytes > MAX_BODY_BYTES);
        self.batch_split += 1;
    }
    fn forget(&mut self) {
        self.reader.forget();
    }
    fn published(&mut self, _: &Committed) {}
    fn now_ms(&mut self) -> u64 {
        7
    }
}

/// Returns the encoded size of this many keys of a [`Large`] source.
fn bytes_of(keys: usize) -> usize {
    keys * (MAX_BODY_BYTES / 16 + 12)
}

impl Meeting {
    /// Returns the keys of each nonempty batch in the log.
    fn batches(&self) -> Vec<Vec<u32>> {
        let mut batches: Vec<Vec<u32>> = Vec::new();
        let mut each = |_: &store::BatchHead, body: &[u8]| {
            batches.push(
                Records::new(body).map(|record| read_row(record.unwrap().payload).0).collect(),
            );
            Ok(())
        };
        open(&self.disk.power_cut(), options(8000))
            .unwrap()
            .replay_batches(&mut each, |_| ())
            .unwrap();
        batches.retain(|keys| !keys.is_empty());
        batches.iter_mut().for_each(|keys| keys.sort_unstable());
        batches
    }

    fn by_hand_large(&self) -> ByHand<'_, Large<'_>> {
        self.by_hand_with(Large { reader: Reader::alone(&self.engine), batch_split: 0 })
    }

    /// Changes keys atomically. Returns false if the reservation fails.
    fn set_together(&self, keys: std::ops::Range<u32>, value: i64) -> bool {
        let Some(reserved) = self.committer.reserve(bytes_of(keys.len())) else { return false };
        let several = reserved.several(keys.clone().map(u64::from));
        keys.for_each(|key| _ = self.set(key, value));
        drop(several);
        true
    }
}

/// Tests invariants C6 and C8. If two groups together exceed a batch, the second group waits for a
/// round without holding locks.
#[test]
fn what_belongs_together_waits_for_a_batch_that_has_room_for_it() {
    // Test with one stripe and with several.
    for stripes in [1, 8] {
        let meeting = Meeting::new(32, always(stripes));
        let mut thread = meeting.by_hand_large();
        assert!(meeting.set_together(0..10, 1));
        assert!(meeting.committer.is_crowded(), "a large group is flushed soon");
        assert!(!meeting.set_together(10..20, 1) && !meeting.committer.has_room(bytes_of(10)));
        // Small groups and single guards do not wait for large groups.
        assert!(meeting.set_together(20..22, 1));
        meeting.set(31, 1);
        thread.round().unwrap();
        assert!(meeting.set_together(10..20, 1));
        thread.round().unwrap();
        // Dropping a reservation releases its bytes, even if the group marked no key, or keys of
        // only one stripe.
        drop(meeting.committer.reserve(bytes_of(15)).unwrap());
        drop(meeting.committer.reserve(bytes_of(15)).unwrap().exclusive());
        assert!(meeting.set_together(7..8, 2));
        thread.round().unwrap();
        let all = meeting.committer.reserve(bytes_of(15)).expect("no reservation is left");
        assert!(meeting.committer.reserve(bytes_of(1)).is_none());
        drop(all);
        // A group that exceeds any batch is admitted if no other group is pending.
        drop(meeting.committer.reserve(usize::MAX).unwrap());
        assert_eq!(thread.source.batch_split, 0);
        let batches = meeting.batches();
        for together in [0..10, 20..22, 10..20] {
            let whole = |keys: &&Vec<u32>| together.clone().all(|key| keys.contains(&key));
            assert_eq!(batches.iter().filter(whole).count(), 1, "{together:?} in {batches:?}");
        }
    }
}

/// A group keeps its reservation while its round fails and is retried.
#[test]
fn what_could_not_be_logged_keeps_its_room() {
    let meeting = Meeting::new(32, always(8));
    let mut thread = meeting.by_hand_large();
    assert!(meeting.set_together(0..10, 1));
    meeting.disk.set_capacity(Some(meeting.disk.used_bytes() + 100));
    for _ in 0..2 {
        thread.round().unwrap_err();
        assert!(!meeting.set_together(10..20, 1), "it would block the first one");
    }
    meeting.disk.set_capacity(None);
    thread.round().unwrap();
    assert!(meeting.set_together(10..20, 1));
    thread.round().unwrap();
    assert_eq!(meeting.batches(), [(0..10).collect::<Vec<_>>(), (10..20).collect()]);
}

/// Changes of other writers in the same stripes go into other batches if they exceed the remaining
/// space. Changes of the same ids stay in the group's batch.
#[test]
fn group_stays_in_one_batch_despite_concurrent_changes() {
    let whole: Vec<u32> = (0..8).collect();
    for fails in [false, true] {
        let meeting = Meeting::new(64, CommitOptions { batch_bytes: 1, ..always(4) });
        let mut thread = meeting.by_hand_large();
        // Keys 2n and 2n + 1 belong to one id.
        let set = |key: u32| {
            let mut turn = meeting.committer.enter(u64::from(key / 2));
            meeting.engine.counters[key as usize].store(1, Ordering::Release);
            turn.mark(key);
        };
        (20..30).for_each(set);
        // The group changes the key that was marked last in its stripe.
        set(6);
        let several = meeting.committer.reserve(bytes_of(8)).unwrap().several(0..4);
        (0..8).step_by(2).for_each(set);
        drop(several);
        (30..40).for_each(set);
        // Change the same ids as the group.
        (1..8).step_by(2).for_each(set);
        if fails {
            meeting.disk.set_capacity(Some(meeting.disk.used_bytes() + 100));
            thread.round().unwrap_err();
            meeting.disk.set_capacity(None);
        }
        thread.round().unwrap();
        assert_eq!(thread.source.batch_split, 0);
        let batches = meeting.batches();
        assert!(batches.contains(&whole), "{batches:?}");
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..8).chain(20..40).collect::<Vec<_>>(), "logged in the requested round");
        assert!(meeting.committer.reserve(bytes_of(15)).is_some());
    }
}

/// After a deduplication the writers of the keys are unknown, so all keys of the stripe join the
/// group.
#[test]
fn what_belongs_together_is_known_after_a_stripe_was_deduped() {
    let meeting = Meeting::new(64, CommitOptions { batch_bytes: 1, ..always(2) });
    let mut thread = meeting.by_hand_large();
    // Mark keys in one of the stripes that are greater than the keys marked later.
    (16..30).step_by(2).for_each(|key| _ = meeting.set(key, 1));
    // Marks keys of both stripes, and keys of one of them repeatedly.
    let several = meeting.committer.reserve(bytes_of(10)).unwrap().several([0, 1]);
    // With the seven keys above, these marks trigger a deduplication.
    (0..249).for_each(|i| _ = meeting.set(i % 2 * 2, 1));
    meeting.set(1, 1);
    drop(several);
    (32..44).for_each(|key| _ = meeting.set(key, 1));
    thread.round().unwrap();
    let batches = meeting.batches();
    assert!(
        batches.iter().any(|keys| [0, 1, 2].iter().all(|key| keys.contains(key))),
        "{batches:?}"
    );
    assert_eq!(thread.source.batch_split, 0);
}

/// Tests invariant C8. A group without a reservation is split, because a retry would never succeed.
#[test]
fn what_is_too_much_for_one_batch_is_parted_and_logged() {
    for stripes in [1, 8] {
        let meeting = Meeting::new(20, always(stripes));
        let mut thread =
            meeting.by_hand_with(Large { reader: Reader::new(&meeting.engine), batch_split: 0 });
        let all = meeting.committer.exclusive();
        let ticket = (0..20).map(|key| meeting.set(key, i64::from(key) + 1)).max().unwrap();
        drop(all);
        thread.round().unwrap();
        assert!(
            meeting.committer.durable() >= ticket && meeting.committer.health() == Health::Good
        );
        assert_eq!(thread.source.batch_split, 1);
        assert_eq!(meeting.left(), (0..20).map(|key| (key, i64::from(key) + 1)).collect());
        let batches = meeting.batches();
        assert_eq!(batches.len(), if stripes == 1 { 2 } else { 8 });
        let together =
            |keys: &Vec<u32>| keys.chunks(2).all(|two| two.len() == 2 && two[0] / 2 == two[1] / 2);
        assert!(stripes > 1 || batches.iter().all(together), "{batches:?}");
    }
}

/// If a part of a split group fails, all keys are retried.
#[test]
fn a_part_that_fails_is_not_forgotten() {
    let meeting = Meeting::new(20, always(8));
    let mut thread =
        meeting.by_hand_with(Large { reader: Reader::new(&meeting.engine), batch_split: 0 });
    let all = meeting.committer.exclusive();
    (0..20).for_each(|key| _ = meeting.set(key, i64::from(key) + 1));
    drop(all);
    meeting.disk.set_capacity(Some(meeting.disk.used_bytes() + MAX_BODY_BYTES as u64 / 2));
    thread.round().unwrap_err();
    meeting.disk.set_capacity(None);
    thread.round().unwrap();
    assert_eq!(meeting.left(), (0..20).map(|key| (key, i64::from(key) + 1)).collect());
}
