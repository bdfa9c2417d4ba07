//! Lookups in steps, with changes between `PendingLookup::read` and `Ledger::settle`.

use crate::model::{KIND, SPACE, open};
use ledger::{Answer, Flush, Ledger, Member, Options};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use store::{SimDisk, Store};

fn ledger(store: &Store) -> Ledger {
    let options =
        Options { memory_pairs: 1000, range_pairs: 5000, upper_pairs: 0, ..Options::default() };
    Ledger::open(store, SPACE, KIND, options).unwrap()
}

/// Looks up a pair step by step. Returns the answer and the version at the start of the lookup.
fn asked(ledger: &Ledger, id: u64, member: Member<'_>) -> (bool, u64) {
    let Answer::NeedsBlock(mut question) = ledger.ask(id, member) else {
        panic!("the pair is in memory")
    };
    loop {
        let seen = question.seen();
        match question.read().unwrap() {
            Answer::Known(set) => return (set, seen),
            Answer::NeedsBlock(next) => question = next,
        }
    }
}

#[test]
fn answer_is_stale_after_a_flush_and_memory_comes_first() {
    let store = open(&SimDisk::new(1));
    let ledger = ledger(&store);
    let member = Member::Number(5);
    ledger.set(1, Member::Number(4), true);
    ledger.set(1, Member::Number(9), true);
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    let (set, seen) = asked(&ledger, 1, member);
    assert!(!set);
    assert_eq!(ledger.settle(1, member, set, seen), Some(false));
    ledger.set(1, member, true);
    assert_eq!(ledger.settle(1, member, set, seen), Some(true));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    assert_eq!(ledger.settle(1, member, set, seen), None, "the pair has moved to a run");
    assert!(asked(&ledger, 1, member).0);

    let (set, seen) = asked(&ledger, 1, member);
    ledger.drop_id(1);
    assert_eq!(ledger.settle(1, member, set, seen), None);
    assert!(!ledger.contains(1, member).unwrap());
}

#[test]
fn block_file_stays_until_its_last_reader_finishes() {
    let disk = SimDisk::new(2);
    let store = open(&disk);
    let ledger = ledger(&store);
    (0..4000).for_each(|n| ledger.set(n / 7, Member::Number(n * n), true));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    let Answer::NeedsBlock(question) = ledger.ask(100, Member::Number(700 * 700)) else { panic!() };
    let names = |disk: &SimDisk| {
        disk.list_names().into_iter().filter(|n| n.ends_with(".tcold")).collect::<Vec<_>>()
    };
    let before = names(&disk);
    (0..4000).for_each(|n| ledger.set(n / 7, Member::Number(n * n), n % 2 == 1));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    assert!(before.iter().all(|name| disk.contents(name).is_some()), "the lookup is in progress");
    assert!(matches!(question.read().unwrap(), Answer::Known(true)));
    assert!(before.iter().all(|name| disk.contents(name).is_none()), "the reader is gone");
    assert!(!ledger.contains(100, Member::Number(700 * 700)).unwrap());
}

/// Stops the other threads of a test, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs a writing, a reading and a flushing thread. The reader must find every set pair.
#[test]
fn readers_beside_flushes_find_what_was_set() {
    let store = open(&SimDisk::new(3));
    let ledger = ledger(&store);
    let over = AtomicBool::new(false);
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                ledger.flush(&store, Flush::Most, 0, || Ok(0)).unwrap();
                ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
            }
        });
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            while !over.load(Relaxed) {
                let n = random.u64(0..=done.load(std::sync::atomic::Ordering::Acquire));
                if n > 0 {
                    let (id, member) = (n % 97, Member::Number(n));
                    assert!(ledger.contains(id, member).unwrap(), "{n}");
                    assert!(!ledger.contains(id + 1, member).unwrap(), "{n}");
                }
            }
        });
        let _ends = Ends(&over);
        for n in 1..40_000u64 {
            ledger.set(n % 97, Member::Number(n), true);
            done.store(n, std::sync::atomic::Ordering::Release);
        }
    });
    assert_eq!(ledger.list((0, u64::MAX), None, usize::MAX).unwrap().len(), 39_999);
}

/// Pairs change while the flush syncs the log, after it has copied the memory.
#[test]
fn changes_in_the_middle_of_a_flush_stay() {
    let store = open(&SimDisk::new(6));
    let ledger = ledger(&store);
    let has = |id, n| ledger.contains(id, Member::Number(n)).unwrap();
    let set = |id, n, set| ledger.set(id, Member::Number(n), set);
    for round in 0..3 {
        for id in 1..4 {
            (0..10).for_each(|n| set(id, n, true));
        }
        let changes = || {
            set(1, 3, false);
            set(1, 4, false);
            set(1, 4, true);
            ledger.drop_id(2);
            ledger.drop_id(3);
            set(3, 5, true);
            set(3, 11, true);
            Ok(0)
        };
        assert_eq!(ledger.flush(&store, Flush::All, 0, changes).unwrap(), 30, "round {round}");
        for again in 0..2 {
            assert!(!has(1, 3) && has(1, 4) && has(1, 5), "unset after the copy");
            assert!((0..12).all(|n| !has(2, n)), "dropped after the copy");
            assert!((0..12).all(|n| has(3, n) == (n == 5 || n == 11)), "and set again");
            let there = ledger.list((0, 9), None, 99).unwrap();
            assert_eq!(there.iter().filter(|pair| pair.id > 1).count(), 2, "round {round}");
            match again {
                0 => drop(ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap()),
                _ => ledger.trim(&store, (0, u64::MAX), |_| true, || Ok(0)).map(drop).unwrap(),
            }
        }
        assert_eq!(ledger.stats().drops, 0);
    }
}

#[test]
fn drops_beside_flushes_take_all_before_and_nothing_after() {
    let store = open(&SimDisk::new(4));
    let options =
        Options { memory_pairs: 100, range_pairs: 400, upper_pairs: 0, ..Options::default() };
    let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !over.load(Relaxed) {
                ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
                n += 1;
                if n % 16 == 0 {
                    ledger.trim(&store, (0, u64::MAX), |_| true, || Ok(0)).unwrap();
                }
            }
        });
        let _ends = Ends(&over);
        for round in 0..6000u64 {
            let id = round % 11;
            ledger.drop_id(id);
            assert!(ledger.list((id, id), None, 10).unwrap().is_empty(), "round {round}");
            (0..60).for_each(|n| ledger.set(id, Member::Number(round * 100 + n), true));
            let there = ledger.list((id, id), None, 1000).unwrap();
            assert_eq!(there.len(), 60, "round {round}");
        }
    });
}

#[test]
fn full_disk_leaves_everything_as_it_was() {
    let disk = SimDisk::new(5);
    let store = open(&disk);
    // Use small ranges, so that some files are complete before the disk is full.
    let options =
        Options { memory_pairs: 1000, range_pairs: 400, upper_pairs: 0, ..Options::default() };
    let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
    let check = |n| {
        let there = ledger.list((0, u64::MAX), None, usize::MAX).unwrap();
        assert_eq!(there.len(), n);
    };
    (0..3000).for_each(|n| ledger.set(n, Member::Number(n), true));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    (3000..6000).for_each(|n| ledger.set(n, Member::Number(n), true));
    disk.set_capacity(Some(disk.used_bytes() + 60_000));
    let before = disk.list_names();
    assert!(ledger.flush(&store, Flush::All, 0, || Ok(0)).is_err());
    assert_eq!(disk.list_names(), before);
    assert!(ledger.is_full());
    check(6000);
    disk.set_capacity(None);
    let no_log = || Err(store::Error::Refused("the log fails".to_owned()));
    assert!(ledger.flush(&store, Flush::All, 0, no_log).is_err());
    assert_eq!(disk.list_names(), before, "no file has pairs that the log may lack");
    check(6000);
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    assert!(!ledger.is_due());
    check(6000);
}

/// A pair changes twice after the flush has copied the pair, so its final state equals the copy.
/// The log reads the state from memory, so the pair must not leave memory.
#[test]
fn pair_changed_and_reverted_during_flush_stays_in_memory() {
    let store = open(&SimDisk::new(1));
    let ledger = ledger(&store);
    for (set, member) in [(true, Member::Number(5)), (false, Member::Bytes(b"five"))] {
        ledger.set(1, member, set);
        ledger.set(1, Member::Number(6), true);
        let log = || {
            ledger.set(1, member, !set);
            ledger.set(1, member, set);
            Ok(0)
        };
        ledger.flush(&store, Flush::All, 0, log).unwrap();
        assert_eq!(ledger.in_memory(1, member), Some(set));
        assert_eq!(ledger.in_memory(1, Member::Number(6)), None);
        ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
        assert_eq!(ledger.in_memory(1, member), None);
        assert_eq!(ledger.contains(1, member).unwrap(), set);
    }
}

/// A flush divides a range. The test drops an id just before the flush begins a file with that id.
#[test]
fn id_that_is_dropped_between_two_files_stays_dropped() {
    for odd in [0, 1] {
        let store = open(&SimDisk::new(1));
        let options = Options { range_pairs: 1_000_000, ..Options::default() };
        let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
        (0..6000).for_each(|n| ledger.set(n / 60, Member::Number(n), true));
        ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
        drop(ledger);
        let options = Options { range_pairs: 1000, ..options };
        let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
        let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let drops = |id: u64| {
            if seen.borrow_mut().insert(id) && id % 2 == odd {
                ledger.drop_id(id);
            }
            true
        };
        ledger.trim(&store, (0, u64::MAX), drops, || Ok(0)).unwrap();
        assert_eq!(ledger.stats().ranges, 6);
        for id in 0..100 {
            let there = ledger.list((id, id), None, 100).unwrap().len();
            assert_eq!(there, if id % 2 == odd { 0 } else { 60 }, "id {id}");
        }
    }
}

#[test]
fn ledger_with_less_memory_flushes_earlier_and_never_later() {
    let ledger = ledger(&open(&SimDisk::new(1)));
    let due_after = |bytes| {
        ledger.set_memory_bytes(bytes);
        (0..).take_while(|&member| {
            ledger.set(1, Member::Number(member), true);
            !ledger.is_due()
        })
    };
    assert_eq!(due_after(64 * 300).count() + 1, 300);
    assert!(!ledger.is_full());
    assert_eq!(due_after(u64::MAX).count() + 1, 1000);
    ledger.set_memory_bytes(0);
    assert!(ledger.is_due() && ledger.is_full(), "one pair at a time");
}
