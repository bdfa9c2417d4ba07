//! Seeds of the simulator (`simulator/src/lib.rs`).
#![allow(clippy::unwrap_used, reason = "tests panic to report a failure")]

use simulator::{RunCounts, Section, run};

/// Number of steps of a run with one machine, and with two.
const STEPS: [u32; 2] = [400, 1200];

/// Runs the seeds and returns their counts. Also returns the number of seeds, or `None` if one seed
/// is replayed.
fn run_all(machines: usize, full: u64) -> (RunCounts, Option<u64>) {
    let steps = seeds::given("TIDEMARK_STEPS").map_or(STEPS[machines - 1], |steps| steps as u32);
    let seeds = seeds::seeds_at_least(full.min(6), full);
    let runs = seeds.end - seeds.start;
    let mut sum = RunCounts::default();
    for seed in seeds {
        sum += &run(seed, steps, machines);
    }
    println!("{runs} runs: {sum:?}");
    (sum, (!seeds::is_replay()).then_some(runs))
}

#[test]
fn a_server_keeps_its_promises_whatever_befalls_it() {
    let (sum, runs) = run_all(1, 120);
    if let Some(runs) = runs {
        // The runs must reach all of these events; otherwise they would not test recovery.
        let crashes = |section| sum.crashes_in.get(&section).copied().unwrap_or(0);
        use Section::{Commit, Recovery, Snapshot, Spill, Work};
        for section in [Commit, Recovery, Snapshot, Spill, Work] {
            assert!(crashes(section) > runs / 20, "{section:?}: {sum:?}");
        }
        assert!(sum.commands > 100 * runs && sum.starts > 2 * runs, "{sum:?}");
        assert!(sum.merges > runs && sum.spilled_tables > runs, "{sum:?}");
        assert!(sum.spills_in_recovery > runs / 10 && sum.cold_reads > runs, "{sum:?}");
        assert!(sum.ranges > runs / 3 && sum.outliers > runs, "{sum:?}");
        assert!(sum.rebuilt > runs / 4 && sum.cut_rebuilds > 0, "{sum:?}");
        assert!(sum.crashes_after_alter > runs / 10 && sum.failed_rounds > runs / 2, "{sum:?}");
    }
}

#[test]
fn a_replica_has_what_its_master_has_and_takes_its_place() {
    let (sum, runs) = run_all(2, 20);
    if let Some(runs) = runs {
        assert!(!seeds::is_full() || sum.promotions >= runs / 5, "{sum:?}");
        assert!(sum.replica_crashes > runs / 2, "{sum:?}");
        assert!(sum.full_syncs > runs / 2 && sum.continued > runs / 2, "{sum:?}");
        assert!(sum.cuts > runs && sum.compared > 100 * runs, "{sum:?}");
    }
}

/// Number of seeds with one machine, and with two. `docs/testing/journal.md` lists the bug that
/// each seed found.
#[test]
fn seeds_that_have_found_something_find_no_more() {
    for (machines, seeds) in (1..).zip([[162, 200_389], [1071, 1074]]) {
        for seed in seeds {
            run(seed, STEPS[machines - 1], machines);
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for machines in 1..3 {
        for seed in seeds::seeds(3) {
            let steps = STEPS[machines - 1];
            let again = run(seed, steps, machines);
            assert_eq!(run(seed, steps, machines), again, "seed {seed}, {machines} machines");
        }
    }
}
