//! Simulation of commits on a simulated disk and clock: writers, readers, rounds, slow and failed
//! syncs, and a crash at any time.
//!
//! One seed determines each run, independent of real time. The test runs the rounds of the commit
//! thread at the times when the thread would wake up. During a sync, time passes and writers and
//! readers continue. `crash.rs` covers snapshots, manifests and new segments.
//!
//! Writers behave like the server's writers. A reply waits for its round under `always`, and under
//! `everysec` if a sync is overdue. Writers change nothing while the log fails. Each change sets
//! its key to the next sequence number of the history, so the recovered values identify the
//! surviving changes.
//!
//! Assertions after each crash (power loss or a killed process):
//!
//! - `always`: no change is lost that was acknowledged (promise 3) or that a reader has seen (C9).
//! - `everysec`: lost changes were acknowledged within one second of each other. If all syncs
//!   succeed quickly, the lost changes are at most a second older than the crash.
//! - The recovered state is a prefix of the history. If a round has several batches, this holds for
//!   each key separately.
//!
//! `cargo xtask sim clock --runs 100000` runs more seeds; `--seed 7` replays seed 7.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use store::{
    CommitOptions, Committer, Faults, Health, LogOptions, Rounds, SimDisk, StoreOptions,
    SyncPolicy, Ticket,
};

use crate::basics::open;
use crate::commits::{Engine, Reader, read_row};

const KEYS: usize = 12;
const SECOND_MS: u64 = 1000;
/// Interval between rounds without `always`: [`CommitOptions::gather`].
const GATHER_MS: u64 = 50;

/// A change. Its number is its position in the history, from 1.
struct Change {
    key: usize,
    /// Time at which the writer received the reply.
    acknowledged_ms: Option<u64>,
}

/// State of the simulation, except for the disk.
struct World {
    random: fastrand::Rng,
    now_ms: u64,
    history: Vec<Change>,
    /// Pending replies of writers: sequence number of the change, starting at 1, and the ticket to
    /// wait for.
    waiting: Vec<(usize, Ticket)>,
    /// Pending replies of readers: key, last visible change, and the round to wait for.
    reading: Vec<(usize, usize, Ticket)>,
    /// Last change of each key that a reader has seen.
    shown: [usize; KEYS],
    slowest_ms: u64,
    /// Whether a sync has failed or taken more than 0.1 s.
    troubled: bool,
    /// Time of the crash, possibly during a sync.
    ends_ms: u64,
}

/// State shared by the commit thread, writers and readers.
struct Machine {
    disk: SimDisk,
    committer: Committer<u32>,
    engine: Engine,
    world: Mutex<World>,
    origin: Instant,
}

impl Machine {
    fn at(&self, ms: u64) -> Instant {
        self.origin + Duration::from_millis(ms)
    }

    /// Runs writers and readers for `ms`. Returns false if the crash happens first.
    fn pass(&self, ms: u64) -> bool {
        let world = &mut *self.world.lock();
        let until = world.now_ms + ms;
        while world.now_ms < until {
            if world.now_ms >= world.ends_ms {
                // The next disk operation is the last operation of the run, or fails.
                self.disk.crash_after(Some(1));
                return false;
            }
            self.reply(world);
            for _ in 0..world.random.u32(0..3) {
                if world.random.u32(0..3) == 0 { self.read(world) } else { self.write(world) }
            }
            world.now_ms += world.random.u64(1..12).min(until - world.now_ms);
        }
        true
    }

    fn write(&self, world: &mut World) {
        if self.committer.health() != Health::Good {
            return;
        }
        let key = world.random.usize(0..KEYS);
        let mut turn = self.committer.enter(key as u64);
        world.history.push(Change { key, acknowledged_ms: None });
        let number = world.history.len();
        self.engine.counters[key].store(number as i64, Ordering::Release);
        turn.mark(key as u32);
        let ticket = turn.leave();
        let must_wait = match self.committer.policy() {
            SyncPolicy::Always => true,
            _ => self.committer.is_late_at(self.at(world.now_ms)),
        };
        if must_wait {
            world.waiting.push((number, ticket));
        } else {
            world.history[number - 1].acknowledged_ms = Some(world.now_ms);
        }
    }

    fn read(&self, world: &mut World) {
        let key = world.random.usize(0..KEYS);
        let seen = self.engine.counters[key].load(Ordering::Acquire) as usize;
        let round = self.committer.last_change(key as u64);
        assert!(round < Ticket::MAX, "no turn is in progress");
        // Changes of a failed round are visible, but not reported as safe.
        if round > 0 || self.committer.synced() >= self.committer.failed() {
            world.reading.push((key, seen, round));
        }
    }

    fn reply(&self, world: &mut World) {
        let World { waiting, reading, history, shown, now_ms, .. } = world;
        let (durable, synced, failed) =
            (self.committer.durable(), self.committer.synced(), self.committer.failed());
        waiting.retain(|&(number, ticket)| {
            if durable >= ticket {
                history[number - 1].acknowledged_ms = Some(*now_ms);
            }
            durable.max(failed) < ticket
        });
        reading.retain(|&(key, seen, round)| {
            if synced >= round {
                shown[key] = seen.max(shown[key]);
            }
            synced.max(failed) < round
        });
    }
}

struct Ended {
    lost: usize,
    acknowledged: usize,
    lasted_ms: u64,
    trace: u64,
}

fn run(seed: u64) -> Ended {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = SimDisk::new(seed);
    let options = StoreOptions {
        log: LogOptions {
            // Some runs have small segments.
            segment_bytes: if random.bool() { 1 << 20 } else { random.u64(500..4000) },
            unsynced_bytes: if random.bool() { 1 << 20 } else { random.usize(200..4000) },
        },
        keep_log_bytes: 0,
    };
    let policy = if random.bool() { SyncPolicy::Always } else { SyncPolicy::EverySecond };
    // Write one batch per round, or one batch per dirty stripe.
    let batch_bytes = if random.bool() { 1 << 20 } else { 1 };
    let stripes = if random.bool() { 1 } else { 4 };
    let committer =
        Committer::new(CommitOptions { policy, stripes, batch_bytes, ..CommitOptions::default() });
    let slowest_ms = [3, 40, 700, 6000][random.usize(0..4)];
    let rate = if random.u32(0..3) == 0 { random.u32(1..200) } else { 0 };
    let world = World {
        now_ms: 0,
        history: Vec::new(),
        waiting: Vec::new(),
        reading: Vec::new(),
        shown: [0; KEYS],
        slowest_ms,
        troubled: rate > 0,
        ends_ms: random.u64(1..4_000),
        random,
    };
    let (mut log, _) = open(&disk, options).unwrap().replay(|_| Ok(()), |_| ()).unwrap();
    let machine = Arc::new(Machine {
        disk: disk.clone(),
        committer,
        engine: Engine::new(KEYS),
        world: Mutex::new(world),
        origin: Instant::now(),
    });
    disk.set_faults(Faults {
        sync_error: rate,
        write_error: rate / 4,
        no_space: rate / 4,
        ..Faults::default()
    });
    let during = Arc::downgrade(&machine);
    disk.set_sync_hook(move || {
        let Some(machine) = during.upgrade() else { return };
        let takes = {
            let world = &mut *machine.world.lock();
            // Half of all syncs are fast.
            let takes =
                if world.random.bool() { 2 } else { world.random.u64(1..=world.slowest_ms) };
            world.troubled |= takes > SECOND_MS / 10;
            takes
        };
        machine.pass(takes);
    });

    let now = || machine.at(machine.world.lock().now_ms);
    let mut source = Reader::by_clock(&machine.engine, &now);
    let mut rounds = Rounds::starting(&machine.committer, machine.origin);
    loop {
        let looks_again = match policy {
            SyncPolicy::Always if machine.committer.health() == Health::Good => 1,
            SyncPolicy::EverySecond if machine.committer.health() == Health::Good => GATHER_MS,
            _ => CommitOptions::default().retry.as_millis() as u64,
        };
        if !machine.pass(looks_again) {
            break;
        }
        let _ = rounds.turn(&mut log, &mut source, now(), false);
        if disk.crashed() {
            break;
        }
        machine.reply(&mut machine.world.lock());
    }
    let is_kill = machine.world.lock().random.u32(0..4) == 0;
    // The process ends before any further operation.
    let left = if is_kill { disk.kill() } else { disk.power_cut() };
    left.set_faults(Faults::default());
    left.set_sync_hook(|| ());
    let mut found = [0usize; KEYS];
    open(&left, options)
        .unwrap()
        .replay(
            |record| {
                let (key, value) = read_row(record.payload);
                found[key as usize] = value as usize;
                Ok(())
            },
            |_| (),
        )
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));

    let world = machine.world.lock();
    let what = format!(
        "seed {seed}, {policy:?}, {stripes} stripes, kill {is_kill}, ended at {} ms",
        world.now_ms
    );
    for (key, &value) in found.iter().enumerate() {
        assert!(
            value == 0 || world.history[value - 1].key == key,
            "{what}: key {key} has the value {value} of another key"
        );
    }
    let is_there = |number: usize, change: &Change| found[change.key] >= number;
    let all = || (1..).zip(&world.history);
    if stripes == 1 || batch_bytes > 1 {
        // A round is one batch, and no write happens during the collection.
        let last = *found.iter().max().unwrap();
        assert!(
            all().all(|(number, change)| is_there(number, change) == (number <= last)),
            "{what}: not a prefix: {found:?}"
        );
    }
    let lost: Vec<_> = all().filter(|&(number, change)| !is_there(number, change)).collect();
    let told =
        || lost.iter().filter_map(|(number, change)| Some((*number, change.acknowledged_ms?)));
    if policy == SyncPolicy::Always {
        assert_eq!(told().next(), None, "{what}: an acknowledged write was lost");
        let unsafe_key = (0..KEYS).find(|&key| found[key] < world.shown[key]);
        assert_eq!(unsafe_key, None, "{what}: showed {:?}, found {found:?}", world.shown);
    } else {
        let (first, last) = (
            told().map(|(_, ms)| ms).min().unwrap_or(0),
            told().map(|(_, ms)| ms).max().unwrap_or(0),
        );
        assert!(
            last - first <= SECOND_MS,
            "{what}: {} ms of acknowledged writes are lost",
            last - first
        );
        let is_new = told().all(|(_, ms)| ms + SECOND_MS >= world.now_ms);
        assert!(world.troubled || is_new, "{what}: lost from {first} ms on");
    }
    let trace =
        found.iter().fold(world.now_ms, |hash, &n| (hash ^ n as u64).wrapping_mul(0x100_0000_01b3));
    let acknowledged =
        world.history.iter().filter(|change| change.acknowledged_ms.is_some()).count();
    Ended { lost: lost.len(), acknowledged, lasted_ms: world.now_ms, trace }
}

#[test]
fn what_is_lost_is_no_older_than_was_said() {
    let seeds = seeds::seeds(1500);
    let total = seeds.end - seeds.start;
    if total == 1 {
        run(seeds.start);
        return;
    }
    let sums = [seeds.start, 0, 0, 0].map(AtomicU64::new);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let [next, lost, acknowledged, ms] = &sums;
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let ended = run(seed);
                    lost.fetch_add(ended.lost as u64, Ordering::Relaxed);
                    acknowledged.fetch_add(ended.acknowledged as u64, Ordering::Relaxed);
                    ms.fetch_add(ended.lasted_ms, Ordering::Relaxed);
                }
            });
        }
    });
    let [_, lost, acknowledged, ms] = sums.map(AtomicU64::into_inner);
    println!(
        "{total} runs of {} simulated seconds: {acknowledged} changes acknowledged, {lost} lost, \
         reported or not",
        ms / 1000
    );
    assert!(lost > total && acknowledged > 20 * total, "too few events to prove anything");
}

#[test]
fn a_run_by_the_clock_replays_exactly() {
    for seed in 0..60 {
        assert_eq!(run(seed).trace, run(seed).trace, "seed {seed}");
    }
}
