//! Seeds of the simulator (`simulator/src/lib.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use simulator::{Met, Section, run};

/// Steps of a run.
const STEPS: u32 = 400;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn a_server_keeps_its_promises_whatever_befalls_it() {
    let (seed, runs) = (number("TIDEMARK_SEED"), number("TIDEMARK_RUNS"));
    let steps = number("TIDEMARK_STEPS").map_or(STEPS, |steps| steps as u32);
    let first = seed.unwrap_or(0);
    let runs = runs.unwrap_or(if seed.is_some() { 1 } else { 120 });
    let mut sum = Met::default();
    for seed in first..first + runs {
        sum += &run(seed, steps);
    }
    println!("{runs} runs: {sum:?}");
    if seed.is_none() {
        // A simulator that meets none of this shows nothing.
        let crashes = |section| sum.crashes_in.get(&section).copied().unwrap_or(0);
        use Section::{Commit, Recovery, Snapshot, Spill, Work};
        for section in [Commit, Recovery, Snapshot, Spill, Work] {
            assert!(crashes(section) > runs / 20, "{section:?}: {sum:?}");
        }
        assert!(sum.commands > 100 * runs && sum.starts > 2 * runs, "{sum:?}");
        assert!(sum.merges > runs && sum.spilled_tables > runs, "{sum:?}");
        assert!(sum.spills_in_recovery > runs / 10 && sum.cold_reads > runs, "{sum:?}");
        assert!(sum.crashes_after_alter > runs / 10 && sum.failed_rounds > runs, "{sum:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..3 {
        assert_eq!(run(seed, STEPS), run(seed, STEPS), "seed {seed}");
    }
}
