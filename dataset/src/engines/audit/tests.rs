use super::*;
use crate::catalogue::Catalogue;
use crate::commit::Durability;
use crate::options;
use crate::options::Options;
use phantom::Member;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use store::{SimDisk, Store, StoreOptions};

const FIRST: u64 = 5000;
const IDS: u64 = 300;

fn action(name: &str, flag: &str, counter: &str) -> options::Action {
    let (name, flag, counter) = (name.to_owned(), flag.to_owned(), counter.to_owned());
    options::Action { name, flag, counter, ..options::Action::default() }
}

fn engines_of(options: &Options) -> Engines {
    let catalogue = Catalogue::default().completed(options);
    Engines::new(options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap()
}

/// Small tables, so that a pass has several chunks.
fn engines() -> Engines {
    let mut options = Options::default();
    options.counter[0].rows_per_table = 64;
    engines_of(&options)
}

fn audit(engines: &Engines) -> BTreeMap<u64, Comparison> {
    let (mut pass, mut found) = (AuditPass::new("like"), BTreeMap::new());
    while pass.next_id().is_some() {
        let each = |id, comparison: Result<Comparison, Unreadable>| {
            assert!(found.insert(id, comparison.unwrap()).is_none(), "{id} was compared twice");
        };
        pass.step(engines, &|| false, each).unwrap();
    }
    found
}

fn differences(engines: &Engines) -> Vec<(u64, i64, u64)> {
    let found = audit(engines).into_iter().filter(|(_, found)| !found.is_equal());
    found.map(|(id, found)| (id, found.counter, found.members)).collect()
}

fn like(engines: &Engines, id: u64, member: u64) {
    let like = engines.action(b"like").unwrap();
    engines.act(like, &Member::Number(member), id, &mut vec![]).unwrap();
}

/// Likes, unlikes and forgets ids on two threads, and flushes on a third, while `work` runs.
fn under_load(engines: &Engines, work: impl FnOnce()) {
    let store = Store::open(Arc::new(SimDisk::new(1)), StoreOptions::default()).unwrap();
    let (action, post) = (engines.action(b"like").unwrap(), &engines.counters()[0]);
    let ledger = engines.flag_of(action).ledger().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !is_over.load(Relaxed) {
                    let id = FIRST + random.u64(..IDS).min(random.u64(..IDS));
                    let member = Member::Number(random.u64(..40));
                    match random.u32(..200) {
                        0 => _ = engines.forget(post, id).unwrap(),
                        1..90 => _ = engines.undo(action, &member, id, &mut vec![]).unwrap(),
                        _ => _ = engines.act(action, &member, id, &mut vec![]).unwrap(),
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                ledger.flush(&store, ledger::Flush::All, 0, || Ok(0)).unwrap();
            }
        });
        work();
        is_over.store(true, Relaxed);
    });
}

#[test]
fn audit_under_load_reports_no_difference() {
    let engines = engines();
    (0..IDS).for_each(|n| like(&engines, FIRST + n, n));
    under_load(&engines, || {
        for round in 0..15 {
            assert_eq!(differences(&engines), [], "round {round}");
        }
    });
    assert_eq!(differences(&engines), []);
}

/// The spoiled ids are outside the load, so their values are known.
#[test]
fn audit_under_load_finds_exactly_the_spoiled_counters() {
    let engines = engines();
    let post = &engines.counters()[0];
    for n in 0..2 * IDS {
        (0..=n % 5).for_each(|member| like(&engines, FIRST + n, member));
    }
    let mut spoiled = Vec::new();
    for n in (IDS..2 * IDS).step_by(7) {
        let (id, members) = (FIRST + n, n % 5 + 1);
        let counter = members as i64 + if n % 2 == 0 { 1 } else { -1 };
        engines.set(post, id, &[(0, counter)]).unwrap();
        spoiled.push((id, counter, members));
    }
    under_load(&engines, || {
        for _ in 0..5 {
            assert_eq!(differences(&engines), spoiled);
        }
    });
}

#[test]
fn repairs_under_load_leave_every_counter_equal() {
    let engines = engines();
    let (action, post) = (engines.action(b"like").unwrap(), &engines.counters()[0]);
    (0..IDS).for_each(|n| like(&engines, FIRST + n, n));
    under_load(&engines, || {
        for round in 1..8 {
            for n in (0..IDS).step_by(3) {
                let change = [Delta { field: 0, delta: round }];
                let bounds = Bounds::default();
                engines.add(post, FIRST + n, &change, &bounds, &mut vec![]).unwrap();
            }
            let found = audit(&engines).into_iter().filter(|(_, found)| !found.is_equal());
            for (id, mut found) in found.collect::<Vec<_>>() {
                while !found.is_equal() {
                    engines.correct_counter(action, id, &found).unwrap();
                    found = engines.compare(action, id).unwrap().unwrap();
                }
            }
            assert_eq!(differences(&engines), [], "round {round}");
        }
    });
}

#[test]
fn repair_does_not_recreate_a_row_deleted_after_the_comparison() {
    let engines = engines();
    let (action, post) = (engines.action(b"like").unwrap(), &engines.counters()[0]);
    like(&engines, 7, 1);
    engines.set(post, 7, &[(0, 5)]).unwrap();
    let found = engines.compare(action, 7).unwrap().unwrap();
    assert!(engines.forget(post, 7).unwrap());
    assert!(!engines.correct_counter(action, 7, &found).unwrap());
    assert!(!post.exists(7).unwrap());
}

/// Rows without members, members without a row, and ids at both ends.
#[test]
fn audit_covers_ids_of_rows_and_of_members() {
    let engines = engines();
    let (liked, post) = (&engines.existences()[0], &engines.counters()[0]);
    for id in [0, 3, 70_000, u64::MAX] {
        engines.flag(liked, id, &Member::Number(9)).unwrap();
        engines.flag(liked, id, &Member::Bytes(b"ann")).unwrap();
    }
    for id in [1, 3, 1 << 40] {
        engines.set(post, id, &[(0, -4)]).unwrap();
    }
    // Equal: no member, and a counter of 0.
    engines.set(post, 2, &[(1, 5)]).unwrap();
    (0..1000).for_each(|n| like(&engines, FIRST + n, n));
    let expected = [(0, 0, 2), (1, -4, 0), (3, -4, 2), (70_000, 0, 2), (1 << 40, -4, 0)];
    assert_eq!(differences(&engines), [&expected[..], &[(u64::MAX, 0, 2)]].concat());
    assert_eq!(audit(&engines).len(), 1006);
}

#[test]
fn actions_that_share_only_the_flag_or_the_counter_conflict() {
    let mut options = Options::default();
    let [liked, read] = [0, 1].map(|at| options.existence[at].name.clone());
    options.action = vec![
        action("like", &liked, "post.like"),
        action("again", &liked, "post.like"),
        action("flag", &liked, "post.read"),
        action("counter", &read, "post.like"),
        action("none", &read, "post.read"),
    ];
    let engines = engines_of(&options);
    let like = engines.action(b"like").unwrap();
    let conflicting = engines.conflicting_actions(like).map(Action::name);
    assert_eq!(conflicting.collect::<Vec<_>>(), ["flag", "counter"]);
}

/// The digests were computed by Python's hashlib.
#[test]
fn digests_equal_those_of_another_implementation() {
    let engines = engines();
    let liked = &engines.existences()[0];
    let members = [Member::Number(7), Member::Bytes(b"ann")];
    members.iter().for_each(|member| _ = engines.flag(liked, 1001, member).unwrap());
    engines.flag(liked, 1005, &Member::Number(u64::MAX)).unwrap();
    let digests = |low, high, step| {
        let ranges = digests(liked.ledger().unwrap(), (low, high), step, &|| false).unwrap();
        let shown = ranges.iter().map(|r| (r.low, r.high, r.pairs, format!("{:016x}", r.digest)));
        shown.collect::<Vec<_>>()
    };
    let of = |low, high, pairs, digest: &str| (low, high, pairs, digest.to_owned());
    let (ann, max) = ("85576a575782a3d0", "7f6f6ec63ed13c57");
    assert_eq!(digests(1000, 1006, Some(2)), [of(1000, 1001, 2, ann), of(1004, 1005, 1, max)]);
    assert_eq!(digests(0, u64::MAX, None), [of(0, u64::MAX, 3, "fa38049169539f87")]);
    assert_eq!(digests(1005, 1005, Some(1)), [of(1005, 1005, 1, max)]);
    assert_eq!(digests(1006, u64::MAX, Some(1)), []);
}
