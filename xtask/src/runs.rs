//! List of the long runs: tests with more seeds, steps or time than in CI.

use std::fmt::Write;

/// A test whose amount of work is configurable.
#[derive(Debug)]
pub(crate) struct Run {
    group: &'static str,
    name: &'static str,
    about: &'static str,
    /// File of the test that reads the variables.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test looks into it"))]
    pub(crate) file: &'static str,
    /// `-p package --test name filter`
    test: &'static str,
    /// Whether the test reads each of the variables: seed, runs, steps, seconds.
    reads: [bool; 4],
    /// Number of seeds per pass of `cargo xtask seeds`, about a minute of work. 0 omits the run.
    seeds: u64,
}

const VARIABLES: [(&str, &str); 4] = [
    ("--seed", "TIDEMARK_SEED"),
    ("--runs", "TIDEMARK_RUNS"),
    ("--steps", "TIDEMARK_STEPS"),
    ("--seconds", "TIDEMARK_SECONDS"),
];

const SEEDS: [bool; 4] = [true, true, false, false];
const STEPS: [bool; 4] = [true, true, true, false];
const ROUNDS: [bool; 4] = [false, true, false, false];
const TIME: [bool; 4] = [false, false, false, true];

pub(crate) const RUNS: &[Run] = &[
    Run {
        group: "sim",
        name: "crash",
        about: "log, snapshots, manifest and recovery on a disk with torn and lost writes",
        file: "store/tests/it/crash.rs",
        test: "-p store --test it crash::",
        reads: SEEDS,
        seeds: 10_000,
    },
    Run {
        group: "sim",
        name: "clock",
        about: "rounds of the commit thread on a simulated clock, with slow syncs",
        file: "store/tests/it/crash.rs",
        test: "-p store --test it clock::",
        reads: SEEDS,
        seeds: 5_000,
    },
    Run {
        group: "sim",
        name: "ledger",
        about: "flushes, merges, drops and snapshots of a ledger on such a disk",
        file: "ledger/tests/it/model.rs",
        test: "-p ledger --test it crash::",
        reads: SEEDS,
        seeds: 5_000,
    },
    Run {
        group: "sim",
        name: "dataset",
        about: "writes, snapshots and starts of whole data sets on such a disk",
        file: "dataset/src/recovery/crashes.rs",
        test: "-p dataset --lib crashes",
        reads: SEEDS,
        seeds: 100,
    },
    Run {
        group: "sim",
        name: "system",
        about: "the whole server: requests, commits, spills, snapshots, schema changes, crashes",
        file: "simulator/tests/it/main.rs",
        test: "-p simulator --test it a_server",
        reads: STEPS,
        seeds: 300,
    },
    Run {
        group: "sim",
        name: "pair",
        about: "a master and its replica: links, full syncs, promotions",
        file: "simulator/tests/it/main.rs",
        test: "-p simulator --test it a_replica",
        reads: STEPS,
        seeds: 100,
    },
    Run {
        group: "sim",
        name: "split",
        about: "splits and moves of shards with killed nodes, killed commands and lost messages",
        file: "cli/src/cluster/simulation/mod.rs",
        test: "-p tidemark --lib cluster::simulation::slots",
        reads: SEEDS,
        seeds: 2_000,
    },
    Run {
        group: "sim",
        name: "replication",
        about: "nodes with failing networks and disks: delays, cuts, power losses, promotions",
        file: "replication/tests/it/main.rs",
        test: "-p replication --test it",
        reads: SEEDS,
        seeds: 5_000,
    },
    Run {
        group: "model",
        name: "counter",
        about: "the counter engine compared with a map: schema changes, rewrites, outliers",
        file: "counter/tests/it/model.rs",
        test: "-p counter --test it model::",
        reads: STEPS,
        seeds: 40,
    },
    Run {
        group: "model",
        name: "concurrent",
        about: "two writers concurrent with readers, rewrites and schema changes",
        file: "counter/tests/it/concurrent.rs",
        test: "-p counter --test it fields_agree",
        reads: STEPS,
        seeds: 9,
    },
    Run {
        group: "model",
        name: "phantom",
        about: "pairs compared with a map: rolls, recycling, revocation, merges",
        file: "phantom/tests/it/model.rs",
        test: "-p phantom --test it model::",
        reads: SEEDS,
        seeds: 6,
    },
    Run {
        group: "model",
        name: "ledger",
        about: "exact pairs compared with a set: flushes, merges, drops, trims, reopens",
        file: "ledger/tests/it/model.rs",
        test: "-p ledger --test it model::",
        reads: SEEDS,
        seeds: 200,
    },
    Run {
        group: "model",
        name: "commands",
        about: "commands to a server, compared with plain maps",
        file: "tests/tests/it/model.rs",
        test: "-p tidemark-tests --test it model::",
        reads: STEPS,
        seeds: 2,
    },
    Run {
        group: "play",
        name: "kill",
        about: "kill -9 of the real program under load",
        file: "cli/tests/it/kill.rs",
        test: "-p tidemark --test it by_kill_9",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "scenes",
        about: "creates and drops spaces, views and actions under load, with kill -9 and a replica",
        file: "cli/tests/it/scenes.rs",
        test: "-p tidemark --test it scenes::",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "together",
        about: "kill -9 during MSET, EXEC, likes and TM.SPACE ALTER: groups stay atomic",
        file: "cli/tests/it/together.rs",
        test: "-p tidemark --test it never_parted",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "cold-kill",
        about: "kill -9 during spills and merges",
        file: "cli/tests/it/cold_kill.rs",
        test: "-p tidemark --test it cold_kill::",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "backup",
        about: "kill -9 during backups, whose rows are then compared",
        file: "cli/tests/it/backup.rs",
        test: "-p tidemark --test it though_the_server_is_killed",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "steps",
        about: "kill -9 at the n-th call that creates, writes, syncs or removes a file",
        file: "cli/tests/it/faults.rs",
        test: "-p tidemark --test it any_step",
        reads: [false, false, true, false],
        seeds: 0,
    },
    Run {
        group: "play",
        name: "tokens",
        about: "increments, each sent twice, under kill -9 and a failover: each counts once",
        file: "cli/tests/it/tokens.rs",
        test: "-p tidemark --test it sent_twice",
        reads: ROUNDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "follow",
        about: "kill -9 during actions on several counters: flags and counters agree",
        file: "cli/tests/it/follow.rs",
        test: "-p tidemark --test it follow::",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "exact",
        about: "likes in a space with a ledger, each sent twice, under kill -9",
        file: "cli/tests/it/exact.rs",
        test: "-p tidemark --test it exact::",
        reads: [true, false, true, false],
        seeds: 0,
    },
    Run {
        group: "play",
        name: "rebuild",
        about: "rebuilds filters for other rates under likes and reads, with kill -9",
        file: "cli/tests/it/rebuild.rs",
        test: "-p tidemark --test it rebuild::",
        reads: SEEDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "fresh",
        about: "loads posts and likes into a server with default settings, under kill -9",
        file: "cli/tests/it/fresh.rs",
        test: "-p tidemark --test it fresh::",
        reads: [false, false, true, false],
        seeds: 0,
    },
    Run {
        group: "play",
        name: "ingest",
        about: "thousands of events from each broker, under kill -9 of either side and failovers",
        file: "cli/tests/it/ingest/mod.rs",
        test: "-p tidemark --test it count_once",
        reads: ROUNDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "failover",
        about: "three Sentinels and three nodes: the master is killed, stopped, cut off",
        file: "cli/tests/it/failover.rs",
        test: "-p tidemark --test it sentinel_fails_over",
        reads: ROUNDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "kills",
        about: "a master and its replica against a model, with kill -9 of either and FAILOVER",
        file: "cli/tests/it/failover.rs",
        test: "-p tidemark --test it nodes_equal_a_model",
        reads: [true, false, false, true],
        seeds: 0,
    },
    Run {
        group: "play",
        name: "kvrocks",
        about: "Kvrocks' controller with a real etcd, replayed: masters and controllers are killed",
        file: "cli/tests/it/failover.rs",
        test: "-p tidemark --test it kvrocks",
        reads: ROUNDS,
        seeds: 0,
    },
    Run {
        group: "play",
        name: "split",
        about: "splits and moves a shard under load, with kill -9 at each step",
        file: "cli/tests/it/failover.rs",
        test: "-p tidemark --test it a_shard_is_split",
        reads: [false, true, true, false],
        seeds: 0,
    },
    Run {
        group: "play",
        name: "links",
        about: "cuts, resets and delays links under load, and leaves them half-open",
        file: "cli/tests/it/links.rs",
        test: "-p tidemark --test it links::",
        reads: TIME,
        seeds: 0,
    },
];

impl Run {
    /// Returns the arguments for cargo.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let mut words = vec!["test"];
        words.extend(self.test.split(' '));
        words.extend(["--", "--include-ignored", "--nocapture"]);
        words
    }

    /// Returns the variables for the given values of seed, runs, steps and seconds.
    pub(crate) fn variables(
        &self,
        given: [Option<u64>; 4],
    ) -> Result<Vec<(&'static str, String)>, String> {
        let mut given = given;
        // With a seed and no number of runs, replay only this seed. For a run of the group `play`,
        // one seed determines all rounds.
        if given[0].is_some() && given[1].is_none() && self.group != "play" {
            given[1] = Some(1);
        }
        let mut variables = Vec::new();
        for (i, value) in given.into_iter().enumerate() {
            let (option, name) = VARIABLES[i];
            match value {
                Some(_) if !self.reads[i] => {
                    let options = VARIABLES.iter().zip(self.reads);
                    let known = options.filter(|(_, reads)| *reads).map(|((option, _), _)| *option);
                    let known = known.collect::<Vec<_>>().join(" and ");
                    return Err(format!("{} has no option {option}; it has {known}", self.name));
                }
                Some(value) => variables.push((name, value.to_string())),
                None => {}
            }
        }
        Ok(variables)
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        VARIABLES.iter().zip(self.reads).filter(|(_, reads)| *reads).map(|((_, name), _)| *name)
    }

    pub(crate) fn has_seeds(&self) -> bool {
        self.seeds > 0
    }

    pub(crate) fn seeds_at_a_time(&self) -> Option<u64> {
        Some(self.seeds)
    }
}

pub(crate) fn find(group: &str, name: &str) -> Result<&'static Run, String> {
    RUNS.iter()
        .find(|run| run.group == group && run.name == name)
        .ok_or_else(|| format!("no such run '{group} {name}'; available:\n{}", list(group)))
}

fn list(group: &str) -> String {
    let mut text = String::new();
    for run in RUNS.iter().filter(|run| run.group == group) {
        _ = writeln!(text, "  {:12} {}", run.name, run.about);
    }
    text
}

pub(crate) fn help(group: &str) -> String {
    format!("Names:\n{}", list(group))
}
