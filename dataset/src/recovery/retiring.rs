//! Simulation of spills and retirements on a failing disk. After a power loss or a killed process,
//! recovery must find every row above the horizon, and none below it.
//!
//! `TIDEMARK_RUNS` sets the number of seeds.

use super::*;
use crate::commit::encode::CommitSource;
use crate::engines::ChangeError;
use crate::options::{Fsync, Options};
use crate::tiering::SpillLog;
use crate::tiering::counters::remove_retired;
use std::collections::BTreeMap;
use std::time::Instant;
use store::{Faults, Rounds, SimDisk, Store};

/// Number of rows added in one step.
const ROWS: u64 = 300;
fn config() -> Options {
    let mut config = Options::default();
    config.counter.iter_mut().for_each(|space| space.rows_per_table = 500);
    config
}

fn start(disk: &SimDisk) -> (Current, Store, Log, Arc<Durability>) {
    let durability = Arc::new(Durability::new(Fsync::Always));
    let disk = Arc::new(disk.clone());
    let recovered = recover_from(disk, &config(), &durability, false, |_| ()).unwrap();
    let NodeLog::Own(log) = recovered.log else { panic!("a master's log") };
    durability.reach(log.written(), log.durable());
    recovered.engines.lead();
    (Current::new(recovered.engines), recovered.store, *log, durability)
}

#[derive(Default)]
struct Truth {
    rows: BTreeMap<u64, i64>,
    /// Lowest id that was never used.
    next: u64,
    horizon: u64,
}

impl Truth {
    fn check(&self, engines: &Engines, when: &str) {
        let posts = engines.counter(b"post").unwrap();
        assert_eq!(posts.horizon(), self.horizon, "{when}");
        let mut row = vec![0; posts.schema().width()];
        for id in 0..self.next {
            let found = posts.get(id, &mut row).unwrap().then(|| row[0]);
            let expected = self.rows.get(&id).copied().filter(|_| id >= self.horizon);
            assert_eq!(found, expected, "{when}: row {id}, horizon {}", self.horizon);
        }
        let mut scanned = Vec::new();
        posts.cold().scan(posts, 0, u64::MAX, &mut |id| scanned.push(id)).unwrap();
        let wrong = scanned.iter().find(|id| **id < self.horizon || !self.rows.contains_key(id));
        assert_eq!(wrong, None, "{when}: scanned");
    }
}

#[derive(Default, Debug)]
struct Sums {
    spills: u64,
    removals: u64,
    failures: u64,
    starts: u64,
}

fn on_a_bad_disk<R>(disk: &SimDisk, does: impl FnOnce() -> store::Result<R>) -> store::Result<R> {
    let faults = Faults { sync_error: 60, write_error: 60, no_space: 60, ..Faults::default() };
    disk.set_faults(Faults { sync_dir_error: 60, ..faults });
    let done = does();
    disk.set_faults(Faults::default());
    done
}

/// Simulates one process that uses the disk, from its start until it exits or crashes.
fn live(disk: &SimDisk, truth: &mut Truth, random: &mut fastrand::Rng, sums: &mut Sums) {
    let (current, store, mut log, durability) = start(disk);
    truth.check(&current.load(), "after a start");
    let log_of_spills = SpillLog::Replayed(0);
    let ground =
        SpillContext { store: &store, durability: &durability, most_bytes: 0, log: log_of_spills };
    let mut rounds = Rounds::new(durability.committer());
    let mut state = CommitSource::new(&durability, &current);
    for _ in 0..random.u32(4..12) {
        let engines = current.load();
        let posts = engines.counter(b"post").unwrap();
        match random.u32(0..10) {
            0..=3 => {
                for id in truth.next..truth.next + ROWS {
                    engines.set(posts, id, &[(0, id as i64 % 100)]).unwrap();
                    truth.rows.insert(id, id as i64 % 100);
                }
                truth.next += ROWS;
            }
            4 => {
                for _ in 0..40 {
                    let id = random.u64(truth.horizon..truth.next.max(truth.horizon + 1));
                    match random.bool() {
                        true => {
                            engines.delete(posts, id).unwrap();
                            truth.rows.remove(&id);
                        }
                        false => {
                            engines.set(posts, id, &[(0, 7)]).unwrap();
                            truth.rows.insert(id, 7);
                            truth.next = truth.next.max(id + 1);
                        }
                    }
                }
            }
            5..=7 => {
                let oldest = posts.ranges().into_iter().find(|range| range.rows > 0);
                if let Some(range) = oldest.filter(|range| range.last < u64::MAX) {
                    let spilled =
                        on_a_bad_disk(disk, || ground.spill(posts, range.low, range.last, 0));
                    *if spilled.is_ok() { &mut sums.spills } else { &mut sums.failures } += 1;
                }
            }
            _ => {
                truth.horizon = random.u64(truth.horizon..truth.next.max(truth.horizon + 1));
                current
                    .edit(|| Ok::<(), ChangeError>(()), |now| now.retire("post", truth.horizon))
                    .unwrap();
            }
        }
        drop(engines);
        rounds.turn(&mut log, &mut state, Instant::now(), false).unwrap();
        let engines = current.load();
        let posts = engines.counter(b"post").unwrap();
        match on_a_bad_disk(disk, || remove_retired(&ground, posts)) {
            Ok(some) => sums.removals += u64::from(some),
            Err(_) => sums.failures += 1,
        }
        if random.bool() {
            while engines.maintain() {}
        }
        truth.check(&engines, "while running");
        let copy = disk.fork(random.u64(..));
        let left = if random.bool() { copy.kill() } else { copy.power_cut() };
        truth.check(&start(&left).0.load(), "after a crash");
        sums.starts += 1;
    }
}

#[test]
fn retired_rows_leave_the_disk_and_no_others() {
    let runs = seeds::rounds_at_least(8, 40);
    let mut sums = Sums::default();
    for seed in 0..runs {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut disk, mut truth) = (SimDisk::new(seed), Truth::default());
        for _ in 0..3 {
            live(&disk, &mut truth, &mut random, &mut sums);
            disk = if random.bool() { disk.kill() } else { disk.power_cut() };
        }
    }
    println!("{runs} runs: {sums:?}");
    assert!(
        sums.spills > runs && sums.removals > runs / 4 && sums.failures > runs / 4,
        "too few events to prove anything: {sums:?}"
    );
}
