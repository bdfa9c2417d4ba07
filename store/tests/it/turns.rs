//! Tests of the committer with real threads: atomic changes, concurrent snapshots, and waits for
//! commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store::{CommitOptions, Committer, Records, SimDisk, SyncPolicy, Tag};

use crate::basics::{open, options};
use crate::commits::{Engine, Meeting, Reader, always, read_row, recover, row};

/// Writers that change pairs of counters together. Counter `k` forms a pair with counter `k` +
/// number of pairs. There are few pairs, to cause contention.
#[derive(Clone, Copy)]
struct Crowd<'a> {
    committer: &'a Committer<u32>,
    engine: &'a Engine,
    disk: &'a SimDisk,
    /// Highest value of each pair that was durable when its writer checked.
    acknowledged: &'a [AtomicU64],
}

impl Crowd<'_> {
    /// Runs writer `t` until the disk crashes. The writer visits the pairs with this stride, and
    /// waits until every `waits`-th change is durable.
    fn count_until_crash(self, t: usize, stride: usize, waits: usize) {
        let Crowd { committer, engine, disk, acknowledged } = self;
        let pairs = acknowledged.len();
        for i in 0.. {
            let key = (i * stride + i / pairs + t) % pairs;
            let mut turn = committer.enter(key as u64);
            let value = engine.counters[key].fetch_add(1, Ordering::AcqRel) + 1;
            std::thread::yield_now(); // a walk may see the change before its mark
            turn.mark(key as u32);
            std::thread::yield_now();
            engine.counters[key + pairs].fetch_add(1, Ordering::AcqRel);
            turn.mark((key + pairs) as u32);
            let ticket = turn.leave();
            while i % waits == 0 && committer.durable() < ticket {
                if disk.crashed() {
                    return;
                }
                std::thread::yield_now();
            }
            if committer.durable() >= ticket {
                acknowledged[key].fetch_max(value as u64, Ordering::AcqRel);
            }
        }
    }
}

/// Runs a reader until the disk crashes. The reader records a value as shown once a reply could
/// show that value safely (C9). Returns the highest shown value of each counter.
fn show_until_crash(committer: &Committer<u32>, engine: &Engine, pairs: usize) -> Vec<i64> {
    let mut shown = vec![0; engine.counters.len()];
    for key in (0..shown.len()).cycle() {
        let value = engine.counters[key].load(Ordering::Acquire);
        let round = committer.last_change((key % pairs) as u64);
        while committer.synced() < round && committer.failed() == 0 && round < u64::MAX {
            std::thread::yield_now();
        }
        if committer.failed() > 0 {
            return shown;
        }
        if round < u64::MAX {
            shown[key] = value.max(shown[key]);
        }
    }
    shown
}

/// Asserts that `state` contains all acknowledged values. Returns the sum of the acknowledged
/// values.
fn assert_acknowledged(seed: u64, state: &[i64], acknowledged: &[AtomicU64]) -> i64 {
    let mut total = 0;
    for (key, acknowledged) in acknowledged.iter().enumerate() {
        let acknowledged = acknowledged.load(Ordering::Acquire) as i64;
        let found = state[key];
        assert!(
            found >= acknowledged,
            "seed {seed}: key {key} has {found}, but {acknowledged} was acknowledged"
        );
        total += acknowledged;
    }
    total
}

/// Each guard covers changes to two counters. Every acknowledged change and every value shown to a
/// reader must survive, with both counters or neither.
#[test]
fn acknowledged_turns_survive_and_turns_are_atomic() {
    const KEYS: usize = 4;
    let mut seen = 0;
    for seed in 0..10 {
        let disk = SimDisk::new(seed);
        let (log, _) = recover(&disk);
        let engine = Engine::new(2 * KEYS);
        let committer = Committer::new(CommitOptions { batch_bytes: 40, ..always(2) });
        let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        disk.crash_after(Some(40 + seed * 7));
        let shown = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut source = Reader::new(&engine);
                let _ = committer.run(log, &mut source);
            });
            let mut writers = Vec::new();
            for t in 0..4 {
                let crowd = Crowd {
                    committer: &committer,
                    engine: &engine,
                    disk: &disk,
                    acknowledged: &acknowledged,
                };
                // Most changes do not wait, so that many run concurrently.
                writers.push(scope.spawn(move || crowd.count_until_crash(t, 7, 16)));
            }
            let readers =
                [(); 2].map(|()| scope.spawn(|| show_until_crash(&committer, &engine, KEYS)));
            for writer in writers {
                writer.join().unwrap();
            }
            committer.stop();
            readers.map(|reader| reader.join().unwrap())
        });
        // Check after each batch, because a crash could have followed any of them.
        let disk = disk.power_cut();
        let store = open(&disk, options(8000)).unwrap();
        let mut state = [0; 2 * KEYS];
        store
            .replay_batches(
                &mut |head, body| {
                    for record in Records::new(body) {
                        let (key, value) = read_row(record.unwrap().payload);
                        state[key as usize] = value;
                    }
                    let half = (0..KEYS).find(|&key| state[key] != state[key + KEYS]);
                    assert_eq!(
                        half, None,
                        "seed {seed}: batch {} holds half a turn",
                        head.sequence
                    );
                    Ok(())
                },
                |_| (),
            )
            .unwrap();
        let total = assert_acknowledged(seed, &state, &acknowledged);
        for shown in shown {
            let lost = (0..2 * KEYS).find(|&key| shown[key] > state[key]);
            assert_eq!(lost, None, "seed {seed}: showed {shown:?}, found {state:?}");
            seen += shown.iter().filter(|&&value| value > 0).count();
        }
        assert!(total > 0, "seed {seed}: nothing was acknowledged before the crash");
    }
    // In some runs no reader starts before the run ends.
    assert!(seen > 0, "no run showed anything");
}

/// One thread changes keys of several stripes atomically while other threads change single keys.
/// Every batch has all or none of an atomic group, despite small batches, failed rounds and
/// crashes.
#[test]
fn what_is_exclusive_is_in_one_batch() {
    const STRIPES: usize = 4;
    const ROUNDS: i64 = 300;
    for seed in 0..20 {
        // Lock all stripes, or two of them.
        let held = if seed % 2 == 0 { 0..STRIPES } else { 1..3 };
        let disk = SimDisk::new(seed);
        let (log, _) = recover(&disk);
        let engine = Engine::new(2 * STRIPES);
        let committer = Committer::new(CommitOptions {
            batch_bytes: 1,
            retry: Duration::ZERO,
            ..always(STRIPES)
        });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut source = Reader::new(&engine);
                let _ = committer.run(log, &mut source);
            });
            let (committer, engine, done, disk) = (&committer, &engine, &done, &disk);
            let beside = (0..2).map(|t| {
                scope.spawn(move || {
                    for key in (0..STRIPES).cycle().skip(t) {
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                        let mut turn = committer.enter(key as u64);
                        engine.counters[STRIPES + key].fetch_add(1, Ordering::AcqRel);
                        turn.mark((STRIPES + key) as u32);
                        turn.leave();
                    }
                })
            });
            let beside: Vec<_> = beside.collect();
            for round in 0..ROUNDS {
                if round % 50 == 25 {
                    disk.set_capacity(Some(disk.used_bytes()));
                }
                let several = if held.len() == STRIPES {
                    committer.exclusive()
                } else {
                    committer.several(held.clone().rev().chain(held.clone()).map(|key| key as u64))
                };
                for key in held.clone() {
                    let mut turn = committer.enter(key as u64);
                    engine.counters[key].fetch_add(1, Ordering::AcqRel);
                    turn.mark(key as u32);
                    turn.leave();
                    std::thread::yield_now();
                }
                let others = || -> Vec<i64> {
                    held.clone()
                        .map(|k| engine.counters[STRIPES + k].load(Ordering::Acquire))
                        .collect()
                };
                let before = others();
                std::thread::yield_now();
                assert_eq!(before, others(), "another writer wrote in between");
                drop(several);
                disk.set_capacity(None);
            }
            done.store(true, Ordering::Relaxed);
            beside.into_iter().for_each(|b| b.join().unwrap());
            committer.stop();
        });
        let store = open(&disk, options(8000)).unwrap();
        let mut state = [0; 2 * STRIPES];
        store
            .replay_batches(
                &mut |head, body| {
                    for record in Records::new(body) {
                        let (key, value) = read_row(record.unwrap().payload);
                        state[key as usize] = value;
                    }
                    let together = &state[held.clone()];
                    let whole = together.iter().all(|value| *value == together[0]);
                    assert!(whole, "seed {seed}: batch {}: {together:?}", head.sequence);
                    Ok(())
                },
                |_| (),
            )
            .unwrap();
        assert_eq!(state[held.start], ROUNDS);
    }
}

#[test]
fn flush_waits_and_stop_seals() {
    // No batch is written without a request.
    let gather = Duration::from_secs(3600);
    let options =
        CommitOptions { policy: SyncPolicy::No, stripes: 4, gather, ..CommitOptions::default() };
    let meeting = Meeting::new(10, options);
    let (log, _) = recover(&meeting.disk);
    let committer = &meeting.committer;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| committer.run(log, &mut Reader::new(&meeting.engine)));
        let ticket = meeting.set(2, 9);
        committer.flush().unwrap();
        assert!(committer.synced() >= ticket);
        // The last round logs the change.
        meeting.set(5, 7);
        committer.stop();
        let (log, result) = thread.join().unwrap();
        result.unwrap();
        assert_eq!(log.durable(), log.written());
        assert!(committer.flush().is_err());
    });
    assert_eq!(meeting.left(), BTreeMap::from([(2, 9), (5, 7)]));
}

/// Like the test above, with concurrent snapshots. The state is recovered from snapshot and log.
#[test]
fn turns_are_atomic_and_survive_with_snapshots_beside_them() {
    const KEYS: usize = 6;
    let mut snapshots = 0;
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let store = open(&disk, options(3000)).unwrap();
        let (log, _) = store.replay(|_| Ok(()), |_| ()).unwrap();
        let engine = Engine::new(2 * KEYS);
        let committer = Committer::new(CommitOptions { batch_bytes: 60, ..always(4) });
        let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let synced_to = Arc::new(Mutex::new(log.durable()));
        disk.crash_after(Some(60 + seed * 11));
        std::thread::scope(|scope| {
            let (committer, engine, acknowledged, disk, store) =
                (&committer, &engine, &acknowledged, &disk, &store);
            let mut source = Reader::new(engine);
            let published = source.published.clone();
            let commits = scope.spawn(move || committer.run(log, &mut source).1);
            let mut threads = Vec::new();
            for t in 0..2 {
                let crowd = Crowd { committer, engine, disk, acknowledged };
                threads.push(scope.spawn(move || {
                    crowd.count_until_crash(t, 5, 8);
                    0
                }));
            }
            let synced_to = synced_to.clone();
            threads.push(scope.spawn(move || {
                let mut done = 0;
                while !disk.crashed() {
                    let once = || -> store::Result<()> {
                        let latest =
                            || published.lock().last().map_or(*synced_to.lock(), |c| c.synced_to);
                        let mut snapshot = store.begin_snapshot(latest());
                        for part in [0..KEYS, KEYS..2 * KEYS] {
                            let mut file =
                                snapshot.file(Tag { low: part.start as u64, ..Tag::default() })?;
                            for key in part {
                                file.write(
                                    &row(key as u32, engine.counters[key].load(Ordering::Acquire)),
                                    1,
                                )?;
                                std::thread::yield_now();
                            }
                            snapshot.add(file.finish()?);
                        }
                        committer.flush()?;
                        snapshot.commit(latest())
                    };
                    done += i32::from(once().is_ok());
                }
                done
            }));
            for thread in threads {
                snapshots += thread.join().unwrap();
            }
            committer.stop();
            let _ = commits.join().unwrap();
        });
        drop(store);
        let disk = disk.power_cut();
        let store = open(&disk, options(3000)).unwrap();
        let state = Mutex::new([0; 2 * KEYS]);
        let put = |row: &[u8]| {
            let (key, value) = read_row(row);
            state.lock()[key as usize] = value;
            Ok(())
        };
        store.load(1, |_, chunk| put(chunk), |_| ()).unwrap();
        store.replay(|r| put(r.payload), |_| ()).unwrap();
        let state = state.into_inner();
        assert_eq!(state[..KEYS], state[KEYS..], "seed {seed}: half a turn");
        assert_acknowledged(seed, &state, &acknowledged);
    }
    assert!(snapshots > 20, "only {snapshots} snapshots were published");
}

/// A walk may see a change before its mark. A flush that did not wait for the writer would publish
/// half of the change.
#[test]
fn flush_waits_for_turns_under_way() {
    let meeting = Meeting::new(10, always(8));
    let (log, _) = recover(&meeting.disk);
    let (engine, committer) = (&meeting.engine, &meeting.committer);
    let (entered, left) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| committer.run(log, &mut Reader::new(engine)).1);
        scope.spawn(|| {
            let mut turn = committer.enter(3);
            engine.counters[3].store(1, Ordering::Release);
            entered.store(1, Ordering::Release);
            std::thread::sleep(Duration::from_millis(50));
            turn.mark(3);
            left.store(1, Ordering::Release);
            turn.leave();
        });
        while entered.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        committer.flush().unwrap();
        assert_eq!(left.load(Ordering::Acquire), 1);
        committer.stop();
        thread.join().unwrap().unwrap();
    });
    assert_eq!(meeting.left(), BTreeMap::from([(3, 1)]));
}
