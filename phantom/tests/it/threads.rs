//! Concurrency tests.

use phantom::{Answer, Change, Error, Member, Options, Space};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

fn small() -> Space {
    let options = Options { pairs_per_table: 20_000, max_tables: 3, seed: 3, ..Options::default() };
    Space::new(options).expect("small tables")
}

/// Two threads set and then delete the same pairs (P3). Each pair changes only once, and `first`
/// runs only once per change. The ring creates and recycles tables concurrently. At the start all
/// ids are outliers (far above all tables).
#[test]
fn of_two_equal_writes_one_changes() {
    let space = small();
    let counted = AtomicU64::new(0);
    let barrier = std::sync::Barrier::new(2);
    let count = |set: bool, id, member: u64| {
        let add = || {
            counted.fetch_add(1, SeqCst);
            Ok::<(), Error>(())
        };
        let done = match set {
            true => space.add_with(id, &Member::Number(member), add),
            false => space.remove_with(id, &Member::Number(member), add),
        };
        u64::from(done.expect("no limit is reached") == Change::Changed)
    };
    let work = || {
        let mut changed = 0;
        for round in 0..400u64 {
            barrier.wait();
            for i in 0..200 {
                changed += count(true, 1000 + round * 3, i);
            }
            barrier.wait();
            for i in 0..100 {
                changed += count(false, 1000 + round * 3, i);
            }
        }
        changed
    };
    let changed: u64 = std::thread::scope(|s| {
        let threads = [s.spawn(work), s.spawn(work)];
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(changed, counted.load(SeqCst));
    let most = 400 * 300;
    // A false positive suppresses a change. A few false positives are expected at a rate of 0.0001.
    assert!(changed <= most && changed > most - 100, "{changed} of {most}");
    assert!(space.tables().len() > 1, "the ring rolled");
}

const PAGE: u64 = 40;

/// A reader finds every pair that another thread has set, even during rollovers (P1).
#[test]
fn readers_find_what_was_set_before_they_asked() {
    let space = small();
    let written = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    // All ids of a page share a member and are looked up individually and as a batch.
    let member = |i: u64| Member::Number((i / PAGE).wrapping_mul(77));
    let id = |i: u64| 1 << 40 | (i * 5);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..400_000u64 {
                assert_ne!(space.add(id(i), &member(i)).unwrap(), Change::Unknown);
                written.store(i + 1, SeqCst);
            }
            done.store(true, SeqCst);
        });
        s.spawn(|| {
            while !done.load(SeqCst) {
                if !space.maintain() {
                    std::thread::yield_now();
                }
            }
        });
        let mut rng = fastrand::Rng::with_seed(1);
        while !done.load(SeqCst) {
            let n = written.load(SeqCst);
            if n > 0 {
                let i = n - 1 - rng.u64(0..n.min(10_000));
                let page: Vec<u64> =
                    (i / PAGE * PAGE..n.min((i / PAGE + 1) * PAGE)).map(id).collect();
                let mut answers = vec![space.contains(id(i), &member(i)).unwrap()];
                space.contains_batch(&member(i), &page, &mut answers).unwrap();
                for (id, answer) in [id(i)].iter().chain(&page).zip(answers) {
                    assert!(
                        answer == Answer::Yes || space.horizon() > *id,
                        "{id}, {n} written: {answer:?}"
                    );
                }
            }
        }
    });
    assert!(space.horizon() > 0, "the ring recycled");
}

#[test]
fn a_failed_first_step_changes_nothing() {
    #[derive(Debug, PartialEq)]
    struct Failed;
    impl From<Error> for Failed {
        fn from(_: Error) -> Failed {
            Failed
        }
    }
    let space = small();
    let member = Member::Number(1);
    for id in (0..200).chain([u64::MAX]) {
        assert_eq!(space.add_with(id, &member, || Err(Failed)), Err(Failed));
        assert_eq!(space.contains(id, &member).unwrap(), Answer::No);
        assert_eq!(space.add(id, &member).unwrap(), Change::Changed);
        assert_eq!(space.remove_with(id, &member, || Err(Failed)), Err(Failed));
        assert_eq!(space.contains(id, &member).unwrap(), Answer::Yes);
        assert_eq!(
            space.add_with(id, &member, || panic!("the pair is set")),
            Ok::<_, Failed>(Change::Unchanged)
        );
        assert_eq!(space.remove(id, &member).unwrap(), Change::Changed);
        assert_eq!(space.contains(id, &member).unwrap(), Answer::No);
        assert_eq!(
            space.remove_with(id, &member, || panic!("the pair is not set")),
            Ok::<_, Failed>(Change::Unchanged)
        );
        assert_eq!(space.add_with(id, &member, || Err(Failed)), Err(Failed));
        assert_eq!(space.contains(id, &member).unwrap(), Answer::No);
    }
}
