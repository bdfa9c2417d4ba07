//! The committer: tickets, dedupe, atomic turns, failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use store::{
    Batch, CommitOptions, Committed, Committer, Error, Faults, Health, Log, Records, Rounds, SimDisk, Source,
    SyncPolicy, Tag,
};

use crate::basics::{open, options};

/// The engines of this test: counters that live in atomics, as the real ones do.
struct Engine {
    counters: Vec<AtomicI64>,
}

impl Engine {
    fn new(n: usize) -> Engine {
        Engine { counters: (0..n).map(|_| AtomicI64::new(0)).collect() }
    }
}

pub(crate) fn row(key: u32, value: i64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&key.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

pub(crate) fn read_row(bytes: &[u8]) -> (u32, i64) {
    (u32::from_le_bytes(bytes[..4].try_into().unwrap()), i64::from_le_bytes(bytes[4..12].try_into().unwrap()))
}

struct Reader<'a> {
    engine: &'a Engine,
    rows: Vec<(u32, i64)>,
    published: Arc<Mutex<Vec<Committed>>>,
    errors: usize,
    /// So many rounds find something that cannot be read.
    unreadable: usize,
}

impl<'a> Reader<'a> {
    fn new(engine: &'a Engine) -> Reader<'a> {
        Reader { engine, rows: Vec::new(), published: Arc::default(), errors: 0, unreadable: 0 }
    }
}

impl Source<u32> for Reader<'_> {
    fn collect(&mut self, keys: &[u32]) -> usize {
        assert!(keys.is_sorted_by(|a, b| a < b), "sorted and distinct");
        for &key in keys {
            self.rows.push((key, self.engine.counters[key as usize].load(Ordering::Acquire)));
            // Were the writers not kept out, some would now change what is read next.
            std::thread::yield_now();
        }
        self.rows.len() * 15
    }
    fn encode(&mut self, batch: &mut Batch) -> Result<(), Error> {
        if self.unreadable > 0 {
            self.unreadable -= 1;
            return Err(Error::Refused("a row cannot be read".to_owned()));
        }
        for (key, value) in self.rows.drain(..) {
            batch.push(1, 1, &row(key, value));
        }
        Ok(())
    }
    fn forget(&mut self) {
        self.rows.clear();
    }
    fn published(&mut self, now: &Committed) {
        self.published.lock().push(*now);
    }
    fn now_ms(&mut self) -> u64 {
        7
    }
    fn failed(&mut self, _: &Error) {
        self.errors += 1;
    }
}

fn recover(disk: &SimDisk) -> (Log, BTreeMap<u32, i64>) {
    let store = open(disk, options(8000)).unwrap();
    let mut state = BTreeMap::new();
    let (log, _) = store
        .replay(
            |r| {
                let (key, value) = read_row(r.payload);
                state.insert(key, value);
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    (log, state)
}

fn always(stripes: usize) -> CommitOptions {
    CommitOptions { policy: SyncPolicy::Always, stripes, ..CommitOptions::default() }
}

#[test]
fn a_hot_key_costs_one_record_a_round() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(always(4));
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    for i in 0..100_000u32 {
        let key = if i % 100 == 0 { i / 100 % 10 } else { 3 };
        let mut turn = committer.enter(u64::from(key));
        engine.counters[key as usize].fetch_add(1, Ordering::Release);
        turn.mark(key);
        turn.leave();
    }
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    assert_eq!(log.stats().records, 10);
    let (_, state) = recover(&disk.power_cut());
    assert_eq!(state[&3], 99_000 + 100);
}

#[test]
fn a_ticket_is_reached_only_after_the_sync() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(always(4));
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    let mark = |key: u32| {
        let mut turn = committer.enter(u64::from(key));
        engine.counters[key as usize].fetch_add(1, Ordering::Release);
        turn.mark(key);
        turn.leave()
    };
    let ticket = mark(1);
    assert!(committer.durable() < ticket);
    disk.set_faults(Faults { sync_error: 1024, ..Faults::default() });
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap_err();
    assert!(committer.durable() < ticket && committer.failed() >= ticket);
    assert_eq!(committer.health(), Health::Failing);
    disk.set_faults(Faults::default());
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    assert!(committer.durable() >= ticket);
    assert_eq!(committer.health(), Health::Good);
    assert_eq!(source.errors, 1);
    assert_eq!(recover(&disk.power_cut()).1, BTreeMap::from([(1, 1)]));
}

/// The log knows an older state of such a row: it may not pass for the newest.
#[test]
fn what_cannot_be_read_stays_marked_and_nobody_is_told_that_it_is_safe() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(always(4));
    let mut source = Reader { unreadable: 2, ..Reader::new(&engine) };
    let mut rounds = Rounds::new(&committer);
    let mut turn = committer.enter(1);
    engine.counters[1].store(7, Ordering::Release);
    turn.mark(1);
    let ticket = turn.leave();
    for _ in 0..2 {
        rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap_err();
        assert!(committer.durable() < ticket && committer.failed() >= ticket);
        assert_eq!(committer.health(), Health::Failing);
    }
    assert_eq!(log.written().sequence, 0, "nothing was logged");
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    assert!(committer.durable() >= ticket);
    assert_eq!((committer.health(), source.errors), (Health::Good, 1));
    assert_eq!(recover(&disk.power_cut()).1, BTreeMap::from([(1, 7)]));
}

#[test]
fn a_full_disk_refuses_and_then_goes_on_with_nothing_lost() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(100);
    let committer = Committer::new(always(8));
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    disk.set_capacity(Some(disk.used_bytes() + 300));
    let mut expected = BTreeMap::new();
    let mut fulls = 0;
    for i in 0..60u32 {
        let mut turn = committer.enter(u64::from(i));
        engine.counters[i as usize].store(i64::from(i), Ordering::Release);
        turn.mark(i);
        let ticket = turn.leave();
        expected.insert(i, i64::from(i));
        if i == 40 {
            disk.set_capacity(None);
        }
        match rounds.turn(&mut log, &mut source, Instant::now(), false) {
            Ok(()) => assert!(committer.durable() >= ticket),
            Err(error) => {
                assert!(matches!(error, Error::Full { .. }), "{error}");
                assert_eq!(committer.health(), Health::Full);
                fulls += 1;
            }
        }
    }
    assert!(fulls > 20, "{fulls}");
    assert_eq!(recover(&disk.power_cut()).1, expected);
}

/// Each stripe is a batch of its own, and the first one fails: the others were not even visited.
#[test]
fn a_failed_round_forgets_no_stripe() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(100);
    let committer = Committer::new(CommitOptions { batch_bytes: 1, ..always(8) });
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    disk.set_capacity(Some(disk.used_bytes()));
    let mut expected = BTreeMap::new();
    for i in 0..8u32 {
        let mut turn = committer.enter(u64::from(i));
        engine.counters[i as usize].store(i64::from(i) + 1, Ordering::Release);
        turn.mark(i);
        expected.insert(i, i64::from(i) + 1);
    }
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap_err();
    disk.set_capacity(None);
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    assert_eq!(recover(&disk.power_cut()).1, expected);
}

#[test]
fn every_second_syncs_in_time_and_no_does_not() {
    for (policy, syncs) in [(SyncPolicy::EverySecond, 5..=7), (SyncPolicy::No, 0..=0)] {
        let disk = SimDisk::new(1);
        let (mut log, _) = recover(&disk);
        let engine = Engine::new(10);
        let committer = Committer::new(CommitOptions { policy, stripes: 4, ..CommitOptions::default() });
        let mut source = Reader::new(&engine);
        let mut rounds = Rounds::new(&committer);
        let start = Instant::now();
        let (mut oldest, mut count) = (None, 0);
        for ms in (0..5000).step_by(50) {
            let now = start + Duration::from_millis(ms);
            let mut turn = committer.enter(1);
            engine.counters[1].fetch_add(1, Ordering::Release);
            turn.mark(1);
            turn.leave();
            oldest.get_or_insert(ms);
            let before = log.durable().offset;
            rounds.turn(&mut log, &mut source, now, false).unwrap();
            if log.durable().offset != before {
                assert!(ms - oldest.unwrap() <= 900, "a write waited {} ms", ms - oldest.unwrap());
                oldest = None;
                count += 1;
            }
        }
        assert!(syncs.contains(&count), "{policy:?}: {count} syncs");
    }
}

#[test]
fn an_idle_log_is_sealed_once() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(always(4));
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    let start = Instant::now();
    let mut turn = committer.enter(1);
    turn.mark(1);
    turn.leave();
    for s in 0..10 {
        rounds.turn(&mut log, &mut source, start + Duration::from_secs(s), false).unwrap();
    }
    assert_eq!(log.stats().batches, 2);
}

/// Real threads: writers take turns that change two counters together, and each acknowledged turn must survive; both halves or none.
#[test]
fn acknowledged_turns_survive_and_turns_are_atomic() {
    const KEYS: usize = 4; // pairs (k, k + KEYS) change together; few, so that writers and the commit thread meet
    for seed in 0..10 {
        let disk = SimDisk::new(seed);
        let (log, _) = recover(&disk);
        let engine = Engine::new(2 * KEYS);
        let committer = Committer::new(CommitOptions { batch_bytes: 40, ..always(2) });
        let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        disk.crash_after(Some(40 + seed * 7));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut source = Reader::new(&engine);
                let _ = committer.run(log, &mut source);
            });
            let mut writers = Vec::new();
            for t in 0..4usize {
                let (committer, engine, acknowledged, disk) = (&committer, &engine, &acknowledged, &disk);
                writers.push(scope.spawn(move || {
                    for i in 0.. {
                        let key = (i * 7 + i / KEYS + t) % KEYS;
                        let mut turn = committer.enter(key as u64);
                        let value = engine.counters[key].fetch_add(1, Ordering::AcqRel) + 1;
                        turn.mark(key as u32);
                        std::thread::yield_now();
                        engine.counters[key + KEYS].fetch_add(1, Ordering::AcqRel);
                        turn.mark((key + KEYS) as u32);
                        let ticket = turn.leave();
                        // Most turns do not wait, so that many are under way at once.
                        while i % 16 == 0 && committer.durable() < ticket {
                            if disk.crashed() {
                                return;
                            }
                            std::thread::yield_now();
                        }
                        if committer.durable() >= ticket {
                            acknowledged[key].fetch_max(value as u64, Ordering::AcqRel);
                        }
                    }
                }));
            }
            for writer in writers {
                writer.join().unwrap();
            }
            committer.stop();
        });
        // After each batch, not only after the last one: a crash could have come behind any of them.
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
                    assert_eq!(half, None, "seed {seed}: batch {} holds half a turn", head.sequence);
                    Ok(())
                },
                |_| (),
            )
            .unwrap();
        let mut total = 0;
        for (key, acknowledged) in acknowledged.iter().enumerate() {
            let acknowledged = acknowledged.load(Ordering::Acquire) as i64;
            assert!(
                state[key] >= acknowledged,
                "seed {seed}: key {key} has {}, {acknowledged} was acknowledged",
                state[key]
            );
            total += acknowledged;
        }
        assert!(total > 0, "seed {seed}: nothing was acknowledged before the crash");
    }
}

/// One thread changes keys of all stripes together, or of some, others single ones beside it: every batch has all of the first or none, also when
/// batches are small, rounds fail now and then, and the crash comes anywhere.
#[test]
fn what_is_exclusive_is_in_one_batch() {
    const STRIPES: usize = 4;
    const ROUNDS: i64 = 300;
    for seed in 0..20 {
        // All, or two.
        let held = if seed % 2 == 0 { 0..STRIPES } else { 1..3 };
        let disk = SimDisk::new(seed);
        let (log, _) = recover(&disk);
        let engine = Engine::new(2 * STRIPES);
        let committer = Committer::new(CommitOptions { batch_bytes: 1, retry: Duration::ZERO, ..always(STRIPES) });
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
                    held.clone().map(|k| engine.counters[STRIPES + k].load(Ordering::Acquire)).collect()
                };
                let before = others();
                std::thread::yield_now();
                assert_eq!(before, others(), "somebody wrote in between");
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

/// Who has several stripes and says so has all that waits in them read in one moment, with what it marks in one of them.
#[test]
fn what_waits_in_stripes_that_are_joined_is_in_the_same_batch() {
    for joins in [true, false] {
        let disk = SimDisk::new(1);
        let (mut log, _) = recover(&disk);
        let engine = Engine::new(4);
        let committer = Committer::new(CommitOptions { batch_bytes: 1, ..always(4) });
        let write = |key: u32| committer.enter(u64::from(key)).mark(key);
        [0, 1, 3].into_iter().for_each(write);
        let several = committer.several([1, 2, 3]);
        if joins {
            several.join();
        }
        write(2);
        drop(several);
        let mut source = Reader::new(&engine);
        Rounds::new(&committer).turn(&mut log, &mut source, Instant::now(), false).unwrap();
        let mut batches = Vec::new();
        let mut each = |_: &store::BatchHead, body: &[u8]| {
            batches.push(Records::new(body).map(|record| read_row(record.unwrap().payload).0).collect::<Vec<_>>());
            Ok(())
        };
        open(&disk, options(8000)).unwrap().replay_batches(&mut each, |_| ()).unwrap();
        batches.sort_unstable();
        assert_eq!(
            batches,
            if joins { vec![vec![0], vec![1, 2, 3]] } else { vec![vec![0], vec![1], vec![2], vec![3]] }
        );
    }
}

/// What was changed together is read into a batch of its own, and the one before it fails.
#[test]
fn a_failed_round_forgets_no_joined_stripe() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(8);
    let committer = Committer::new(always(8));
    let mut source = Reader::new(&engine);
    let mut rounds = Rounds::new(&committer);
    let write = |key: u32| {
        let mut turn = committer.enter(u64::from(key));
        engine.counters[key as usize].store(1, Ordering::Release);
        turn.mark(key);
        turn.leave();
    };
    let all = committer.exclusive();
    [2, 3].into_iter().for_each(write);
    drop(all);
    [0, 7].into_iter().for_each(write);
    disk.set_capacity(Some(disk.used_bytes()));
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap_err();
    disk.set_capacity(None);
    rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    assert_eq!(recover(&disk.power_cut()).1.into_iter().collect::<Vec<_>>(), [(0, 1), (2, 1), (3, 1), (7, 1)]);
}

/// A source that notes when a batch holds a key twice, and while it reads the stripe of `WRITES_AT` changes keys of other stripes.
struct Interrupted<'a> {
    reader: Reader<'a>,
    committer: &'a Committer<u32>,
    twice: Vec<u32>,
}

/// The key that is alone in its stripe, between the two that were changed together.
const WRITES_AT: u32 = 1;

impl Source<u32> for Interrupted<'_> {
    fn collect(&mut self, keys: &[u32]) -> usize {
        if keys == [WRITES_AT] {
            // Another writer, at this moment: of other stripes, so nothing keeps it out.
            for key in [0, 2] {
                let mut turn = self.committer.enter(u64::from(key));
                self.reader.engine.counters[key as usize].store(7, Ordering::Release);
                turn.mark(key);
                turn.leave();
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

/// Stripes that are read together may come again in the same round, when it comes to their own turn: by then somebody may have changed them
/// again, and a batch that held both states would not say which is the later one (C7).
#[test]
fn no_batch_holds_a_key_twice() {
    let disk = SimDisk::new(1);
    let (mut log, _) = recover(&disk);
    let engine = Engine::new(4);
    let committer = Committer::new(always(4));
    let mut source = Interrupted { reader: Reader::new(&engine), committer: &committer, twice: Vec::new() };
    let mut rounds = Rounds::new(&committer);
    let write = |key: u32| {
        let mut turn = committer.enter(u64::from(key));
        engine.counters[key as usize].store(1, Ordering::Release);
        turn.mark(key);
        turn.leave();
    };
    let all = committer.exclusive();
    [0, 2].into_iter().for_each(write);
    drop(all);
    write(WRITES_AT);
    for _ in 0..2 {
        rounds.turn(&mut log, &mut source, Instant::now(), false).unwrap();
    }
    assert_eq!(source.twice, []);
    let (_, state) = recover(&disk.power_cut());
    assert_eq!(state.into_iter().collect::<Vec<_>>(), [(0, 7), (1, 1), (2, 7)]);
}

#[test]
fn flush_waits_and_stop_seals() {
    let disk = SimDisk::new(5);
    let (log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(CommitOptions { policy: SyncPolicy::No, stripes: 4, ..CommitOptions::default() });
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut source = Reader::new(&engine);
            committer.run(log, &mut source)
        });
        let mut turn = committer.enter(2);
        engine.counters[2].store(9, Ordering::Release);
        turn.mark(2);
        let ticket = turn.leave();
        committer.flush().unwrap();
        assert!(committer.synced() >= ticket);
        committer.stop();
        let (log, result) = thread.join().unwrap();
        result.unwrap();
        assert_eq!(log.durable(), log.written());
        assert!(committer.flush().is_err());
    });
    assert_eq!(recover(&disk.power_cut()).1, BTreeMap::from([(2, 9)]));
}

/// As above, with snapshots going on all the time beside the writers; what is loaded is snapshot and log together.
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
            let (committer, engine, acknowledged, disk, store) = (&committer, &engine, &acknowledged, &disk, &store);
            let mut source = Reader::new(engine);
            let published = source.published.clone();
            let commits = scope.spawn(move || committer.run(log, &mut source).1);
            let mut threads = Vec::new();
            for t in 0..2usize {
                threads.push(scope.spawn(move || {
                    for i in 0.. {
                        let key = (i * 5 + i / KEYS + t) % KEYS;
                        let mut turn = committer.enter(key as u64);
                        let value = engine.counters[key].fetch_add(1, Ordering::AcqRel) + 1;
                        std::thread::yield_now(); // the walk may see the change before its mark
                        turn.mark(key as u32);
                        std::thread::yield_now();
                        engine.counters[key + KEYS].fetch_add(1, Ordering::AcqRel);
                        turn.mark((key + KEYS) as u32);
                        let ticket = turn.leave();
                        while i % 8 == 0 && committer.durable() < ticket {
                            if disk.crashed() {
                                return 0;
                            }
                            std::thread::yield_now();
                        }
                        if committer.durable() >= ticket {
                            acknowledged[key].fetch_max(value as u64, Ordering::AcqRel);
                        }
                    }
                    0
                }));
            }
            let synced_to = synced_to.clone();
            threads.push(scope.spawn(move || {
                let mut done = 0;
                while !disk.crashed() {
                    let once = || -> store::Result<()> {
                        let latest = || published.lock().last().map_or(*synced_to.lock(), |c| c.synced_to);
                        let mut snapshot = store.begin_snapshot(latest());
                        for part in [0..KEYS, KEYS..2 * KEYS] {
                            let mut file = snapshot.file(Tag { low: part.start as u64, ..Tag::default() })?;
                            for key in part {
                                file.write(&row(key as u32, engine.counters[key].load(Ordering::Acquire)), 1)?;
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
        for (key, acknowledged) in acknowledged.iter().enumerate() {
            assert_eq!(state[key], state[key + KEYS], "seed {seed}: half a turn of key {key}");
            let acknowledged = acknowledged.load(Ordering::Acquire) as i64;
            assert!(
                state[key] >= acknowledged,
                "seed {seed}: key {key} has {}, {acknowledged} was acknowledged",
                state[key]
            );
        }
    }
    assert!(snapshots > 20, "only {snapshots} snapshots were published");
}

/// A walk may see a change whose turn has not marked it yet; a flush that did not wait for that turn would publish half of it.
#[test]
fn flush_waits_for_turns_under_way() {
    let disk = SimDisk::new(5);
    let (log, _) = recover(&disk);
    let engine = Engine::new(10);
    let committer = Committer::new(always(8));
    let (entered, left) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| committer.run(log, &mut Reader::new(&engine)).1);
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
    assert_eq!(recover(&disk.power_cut()).1, BTreeMap::from([(3, 1)]));
}
