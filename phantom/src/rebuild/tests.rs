use super::*;
use crate::cold::tests::Shelf;
use crate::{Answer, Change, Options, Origin};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Exact list of all pairs, like the host's ledger.
#[derive(Default)]
struct List(Mutex<BTreeSet<(u64, u64)>>);

impl List {
    /// Returns up to 50 pairs with ids in this range that follow `after`.
    fn some(&self, (low, last): (u64, u64), after: Option<(u64, u64)>) -> Vec<(u64, u64)> {
        let list = self.0.lock();
        let from = after.map_or(Unbounded, Excluded);
        let pairs = list.range((from, Unbounded)).filter(|pair| (low..=last).contains(&pair.0));
        pairs.take(50).copied().collect()
    }

    fn put_all(&self, space: &Space, rebuild: &Rebuild) {
        let mut after = None;
        loop {
            let some = self.some(rebuild.range(), after);
            let pairs = some.iter().map(|&(id, viewer)| (id, Member::Number(viewer)));
            space.put_rebuilt(rebuild, pairs).unwrap();
            after = some.last().copied();
            if after.is_none() {
                return;
            }
        }
    }
}

fn options(rate: f64) -> Options {
    let bounds = Options { max_tables: 20, max_unset: 1 << 16, ..Options::default() };
    Options { false_positive_rate: rate, pairs_per_table: 8000, seed: 5, spill: true, ..bounds }
}

/// Sets the pair in the list and in the space. The list contains the pair even if a false positive
/// suppresses the change in the space.
fn set(space: &Space, list: &List, id: u64, viewer: u64) {
    space.add(id, &Member::Number(viewer)).unwrap();
    list.0.lock().insert((id, viewer));
}

fn unset(space: &Space, list: &List, id: u64, viewer: u64) {
    let remove = || if list.0.lock().remove(&(id, viewer)) { Ok(()) } else { Err(Error::Full) };
    _ = space.remove_with(id, &Member::Number(viewer), remove);
}

/// Forgets an id and returns its pairs. Removes them from the list first, as the host does (R6).
fn forget(space: &Space, list: &List, id: u64) -> Vec<(u64, u64)> {
    let mut pairs = vec![];
    space.forget_with(id, || {
        list.0.lock().retain(|pair| {
            let is_kept = pair.0 != id;
            pairs.extend((!is_kept).then_some(*pair));
            is_kept
        });
    });
    pairs
}

fn is_set(space: &Space, (id, viewer): (u64, u64)) -> bool {
    space.contains(id, &Member::Number(viewer)).unwrap() == Answer::Yes
}

fn measured(space: &Space) -> f64 {
    let asked = 100_000;
    (0..asked).filter(|n| is_set(space, (100 + n % 10_000, 1 << 40 | n))).count() as f64
        / asked as f64
}

/// The list contains an outlier (a pair of an id far above all tables). An outlier deleted before
/// its id is admitted must be unset in the rebuilt table.
#[test]
fn outliers_are_in_no_new_filter() {
    const FAR: u64 = 1 << 40;
    let (space, list) = (Space::new(options(1e-7)).unwrap(), List::default());
    (100..200).for_each(|id| set(&space, &list, id, 1));
    for viewer in [1, 2] {
        set(&space, &list, FAR, viewer);
        assert_eq!(space.origin(FAR, &Member::Number(viewer)), Origin::Outlier);
    }
    let low = space.layout()[0].low;
    let rebuild = space.begin_rebuild(low).unwrap().unwrap();
    list.put_all(&space, &rebuild);
    assert!(matches!(space.end_rebuild(rebuild), Rebuilt::Done));
    unset(&space, &list, FAR, 1);
    space.put_frontier(&[rolling::Range { start: 0, high: FAR, window: 1 }]);
    assert_ne!(space.origin(FAR, &Member::Number(2)), Origin::Outlier, "the id is admitted");
    assert_eq!([1, 2].map(|viewer| is_set(&space, (FAR, viewer))), [false, true]);
    assert!((100..200).all(|id| is_set(&space, (id, 1))));
}

/// R5: a rebuild must not begin while a thread moves an outlier into a table. That thread might set
/// the pair only in the old table. `put_rebuilt` skips outliers, so it might skip this pair as
/// well. The rebuilt table would then lack the pair.
#[test]
fn rebuild_begins_behind_moves_of_outliers() {
    const FAR: u64 = 1 << 40;
    let (space, list) = (Space::new(options(1e-7)).unwrap(), List::default());
    (100..200).for_each(|id| set(&space, &list, id, 1));
    set(&space, &list, FAR, 1);
    let low = space.layout()[0].low;
    let (began, begins) = std::sync::mpsc::channel();
    let is_inside = || {
        let at_once = begins.recv_timeout(std::time::Duration::from_millis(100));
        assert!(at_once.is_err(), "it started during a change of outliers");
        Ok::<(), Error>(())
    };
    std::thread::scope(|scope| {
        let first = || {
            scope.spawn(|| {
                let rebuild = space.begin_rebuild(low).unwrap().unwrap();
                _ = began.send(());
                drop(rebuild);
            });
            is_inside()
        };
        assert_eq!(space.add_with(FAR, &Member::Number(2), first).unwrap(), Change::Changed);
    });
    assert!(begins.recv().is_ok(), "it starts after the change");
}

/// R6: ids are forgotten before a rebuild, between the read of the list and the put, and after the
/// put. Some of these ids are liked again.
#[test]
fn forgotten_pairs_stay_forgotten_after_a_rebuild() {
    let (space, list) = (Space::new(options(1e-7)).unwrap(), List::default());
    (0..4000).for_each(|n| set(&space, &list, 100 + n % 100, n));
    let again = |id| set(&space, &list, id, 1 << 20 | id);
    let mut gone: Vec<(u64, u64)> = (100..110).flat_map(|id| forget(&space, &list, id)).collect();
    (100..105).for_each(again);
    let rebuild = space.begin_rebuild(0).unwrap().unwrap();
    (120..130).for_each(|id| gone.extend(forget(&space, &list, id)));
    (120..125).for_each(again);
    let listed: Vec<(u64, u64)> = list.0.lock().iter().copied().collect();
    for id in (130..140).chain(120..122).chain(100..102) {
        gone.extend(forget(&space, &list, id));
    }
    (130..135).for_each(again);
    let pairs = listed.iter().map(|&(id, viewer)| (id, Member::Number(viewer)));
    space.put_rebuilt(&rebuild, pairs).unwrap();
    (140..150).for_each(|id| gone.extend(forget(&space, &list, id)));
    (140..145).for_each(again);
    assert!(matches!(space.end_rebuild(rebuild), Rebuilt::Done));
    assert!(gone.len() > 1500, "{}", gone.len());
    assert_eq!(gone.iter().find(|pair| is_set(&space, **pair)), None, "a forgotten pair is set");
    assert!(list.0.lock().iter().all(|&pair| is_set(&space, pair)), "a pair is lost");
}

/// Checks that no set pair is lost (P1) while all tables are rebuilt repeatedly for different
/// rates. Two writers concurrently set pairs and forget ids (R6), each for its own ids, and track
/// the expected state. The writers add at most 2,000 ids per rebuild, so that the size of the space
/// does not depend on the machine's speed.
#[test]
fn concurrent_rebuilds_keep_set_pairs_and_forget_others() {
    const WRITERS: u64 = 2;
    let forgotten = Mutex::new(BTreeSet::new());
    let (space, list) = (Space::new(options(0.05)).unwrap(), List::default());
    // Each writer holds the read lock during a write. The host acquires the write lock to wait for
    // the writers.
    let (inside, is_over, rounds) = (RwLock::new(()), AtomicBool::new(false), AtomicU64::new(0));
    let write = |number: u64| {
        let mut rng = fastrand::Rng::with_seed(number);
        let mut ours: Vec<(u64, u64)> = vec![];
        let mut highest = 100;
        while !is_over.load(Relaxed) {
            if highest > 50_000.min(2000 * (rounds.load(Relaxed) + 1)) {
                std::thread::yield_now();
                continue;
            }
            highest += 1;
            let _inside = inside.read();
            let id = rng.u64(100..highest.min(10_000)) / WRITERS * WRITERS + number;
            let pair = (id, rng.u64(..10_000));
            set(&space, &list, pair.0, pair.1);
            assert!(is_set(&space, pair), "{pair:?} was set just now");
            ours.push(pair);
            if rng.u8(..) < 5 {
                forgotten.lock().extend(forget(&space, &list, id));
                ours.retain(|pair| pair.0 != id);
                continue;
            }
            let at = rng.usize(..ours.len());
            if rng.u8(..) < 30 {
                let (id, viewer) = ours.swap_remove(at);
                ours.retain(|pair| *pair != (id, viewer));
                unset(&space, &list, id, viewer);
            } else {
                assert!(is_set(&space, ours[at]), "{:?} was set before", ours[at]);
            }
            ours.truncate(20_000);
        }
    };
    std::thread::scope(|scope| {
        (0..WRITERS).for_each(|number| _ = scope.spawn(move || write(number)));
        for rate in [0.001, 0.05, 0.0001, 0.01].into_iter().cycle().take(12) {
            space.set_options(&options(rate)).unwrap();
            for low in space.to_rebuild() {
                let begun = match rate {
                    0.05 => space.begin_resize(low, 0),
                    _ => space.begin_rebuild(low),
                };
                let Some(rebuild) = begun.unwrap() else { continue };
                drop(inside.write());
                list.put_all(&space, &rebuild);
                rounds.fetch_add(
                    u64::from(matches!(space.end_rebuild(rebuild), Rebuilt::Done)),
                    Relaxed,
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        is_over.store(true, Relaxed);
    });
    assert!(
        rounds.load(Relaxed) > 12 && list.0.lock().len() > 1000,
        "the rebuild removed false positives"
    );
    assert!(list.0.lock().iter().all(|&pair| is_set(&space, pair)));
    assert!(space.to_rebuild().is_empty());
    let gone: Vec<_> = forgotten.lock().difference(&list.0.lock()).copied().collect();
    let wrong = gone.iter().filter(|pair| is_set(&space, **pair)).count();
    assert!(gone.len() > 500, "{}", gone.len());
    assert!(wrong < gone.len() / 30, "{wrong} of {} at a rate of 1 %", gone.len());
}

/// After all tables are rebuilt, the space meets the new rate, also after a restart. A rebuild also
/// removes deleted pairs from the exact set.
#[test]
fn tables_have_the_other_rate_then() {
    let (space, list) = (Space::new(options(0.05)).unwrap(), List::default());
    (0..30_000).for_each(|n| set(&space, &list, 100 + n % 10_000, n));
    (0..3000).for_each(|n| unset(&space, &list, 100 + n, n));
    let before = measured(&space);
    assert!((0.01..0.06).contains(&before), "{before}");
    space.set_options(&options(0.0001)).unwrap();
    assert_eq!(measured(&space), before, "the tables are unchanged");
    let due = space.to_rebuild();
    assert_eq!(due, space.layout().iter().map(|at| at.low).collect::<Vec<_>>());
    for low in due {
        let rebuild = space.begin_rebuild(low).unwrap().unwrap();
        list.put_all(&space, &rebuild);
        assert!(matches!(space.end_rebuild(rebuild), Rebuilt::Done));
    }
    while space.tidy() {}
    assert!(measured(&space) < 0.0003, "{}", measured(&space));
    assert!(space.to_rebuild().is_empty());
    let revoked: usize = space.tables().iter().map(|table| table.revoked).sum();
    assert!(revoked < 30, "{revoked} of 3000");
    let restored = Shelf::default().restored(&space);
    for space in [&space, &restored] {
        assert!(list.0.lock().iter().all(|&pair| is_set(space, pair)));
        assert_eq!(measured(space), measured(&restored));
    }
    assert_eq!(restored.to_rebuild().len(), space.layout().len());
    restored.set_options(&options(0.0001)).unwrap();
    assert!(restored.to_rebuild().is_empty());
    assert_eq!(space.ask_rebuild(), space.to_rebuild().len());
}

/// Many pairs of few ids enlarge a table. A resize replaces its filters by one filter with all
/// pairs. The resize does not raise the horizon, the lowest id that is still stored.
#[test]
fn a_resized_table_has_one_filter_and_keeps_the_horizon() {
    let options = Options { max_tables: 4, spill: false, ..options(0.001) };
    let options = Options { memory_limit_bytes: Some(1 << 30), ..options };
    let (space, list) = (Space::new(options).unwrap(), List::default());
    (0..3000).for_each(|n| set(&space, &list, 100 + n / 10, n));
    assert!(space.roll_now());
    (0..60_000).for_each(|n| set(&space, &list, 100 + n % 50, 1 << 20 | n));
    let before = space.table_loads()[0];
    assert!(before.extensions > 1 && before.early > 0, "{before:?}");
    let rebuild = space.begin_resize(before.low, 0).unwrap().unwrap();
    list.put_all(&space, &rebuild);
    assert!(matches!(space.end_rebuild(rebuild), Rebuilt::Done));
    let after = space.table_loads()[0];
    assert_eq!(after.extensions, 0, "{after:?}");
    assert!((after.pairs..after.pairs / 8 * 9).contains(&after.capacity), "{after:?}");
    assert!(list.0.lock().iter().all(|&pair| is_set(&space, pair)));
    for n in 0..6000 {
        set(&space, &list, 1000 + n / 10, n);
        while space.maintain() {}
    }
    assert!(space.table_loads().len() > 2 && space.horizon() == 0);
}

/// A resize needs memory for the old filters and the new filter at the same time.
#[test]
fn a_resize_needs_memory() {
    let limit = |bytes| Options { memory_limit_bytes: Some(bytes), spill: false, ..options(0.001) };
    let (space, list) = (Space::new(limit(1 << 20)).unwrap(), List::default());
    (0..30_000).for_each(|n| set(&space, &list, 100 + n % 50, n));
    assert!(space.table_loads()[0].extensions > 1);
    space.set_options(&limit(100_000)).unwrap();
    assert!(space.begin_resize(0, 0).unwrap().is_none());
    space.set_options(&limit(1 << 20)).unwrap();
    assert!(space.begin_resize(0, 0).unwrap().is_some());
}

/// Checks R3 with late pairs, with pairs deleted and set again after the list was read, and with
/// false positives of the old filters.
#[test]
fn a_table_elsewhere_is_built_anew() {
    let options = |rate| Options { pairs_per_table: 64_000, ..options(rate) };
    let (space, list, shelf) =
        (Space::new(options(0.05)).unwrap(), List::default(), Shelf::default());
    (0..4000).for_each(|n| set(&space, &list, 100 + n, n));
    assert!(space.roll_now());
    shelf.write(&space, 0, || {});
    (0..300).for_each(|n| set(&space, &list, 100 + n, 1 << 20 | n));
    let chance: Vec<u64> =
        (1 << 30..).filter(|&viewer| is_set(&space, (150, viewer))).take(20).collect();
    space.set_options(&options(0.001)).unwrap();
    assert_eq!(space.to_rebuild().len(), 2);
    let rebuild = space.begin_rebuild(0).unwrap().unwrap();
    // These pairs are deleted when the list is read, and set again afterwards.
    (0..20).for_each(|n| unset(&space, &list, 100 + n, 1 << 20 | n));
    (40..60).for_each(|n| unset(&space, &list, 100 + n, n));
    list.put_all(&space, &rebuild);
    (0..20).for_each(|n| set(&space, &list, 100 + n, 1 << 20 | n));
    (40..60).for_each(|n| set(&space, &list, 100 + n, n));
    (60..80).for_each(|n| unset(&space, &list, 100 + n, n));
    for &viewer in &chance {
        assert_eq!(space.add(150, &Member::Number(viewer)).unwrap(), Change::Unchanged);
        set(&space, &list, 150, viewer);
    }
    let Rebuilt::Elsewhere(written) = space.end_rebuild(rebuild) else {
        panic!("the table is cold")
    };
    shelf.take(&space, written.rewrite, || {
        (1000..1020).for_each(|n| set(&space, &list, 100 + n, 1 << 21 | n));
    });
    let restored = shelf.restored(&space);
    for space in [&space, &restored] {
        let is_lacking = |pair: &&(u64, u64)| !is_set(space, **pair);
        assert_eq!(list.0.lock().iter().find(is_lacking), None);
        assert!((60..80).all(|n| !is_set(space, (100 + n, n))));
        let wrong = (0..20_000).filter(|n| is_set(space, (100 + n % 4000, 1 << 40 | n))).count();
        assert!(wrong < 60, "{wrong} of 20,000");
    }
    let left = space.to_rebuild();
    assert!(left.len() == 1 && left[0] > 0, "{left:?}");
    // A merge during the rebuild removes late pairs.
    assert_eq!(space.ask_rebuild(), 2);
    let rebuild = space.begin_rebuild(0).unwrap().unwrap();
    list.put_all(&space, &rebuild);
    (0..300).for_each(|n| set(&space, &list, 100 + n, 1 << 22 | n));
    shelf.write(&space, 0, || {});
    assert_eq!(space.to_rebuild().len(), 2, "a merge rebuilds nothing");
    let Rebuilt::Elsewhere(written) = space.end_rebuild(rebuild) else {
        panic!("the table is cold")
    };
    shelf.take(&space, written.rewrite, || {});
    assert!(list.0.lock().iter().all(|&pair| is_set(&space, pair)));
    assert_eq!(space.to_rebuild().len(), 1);
    // If the table is spilled during its rebuild, the rebuild must start over.
    let low = space.to_rebuild()[0];
    (0..300).for_each(|n| set(&space, &list, 5000 + n, n));
    let rebuild = space.begin_rebuild(low).unwrap().unwrap();
    list.put_all(&space, &rebuild);
    assert!(space.roll_now() && space.may_end(&rebuild));
    shelf.write(&space, low, || {});
    set(&space, &list, 5000, 1 << 23);
    assert!(!space.may_end(&rebuild));
    assert!(matches!(space.end_rebuild(rebuild), Rebuilt::Outdated));
    assert!(list.0.lock().iter().all(|&pair| is_set(&space, pair)));
    assert_eq!(space.to_rebuild(), [low]);
}
