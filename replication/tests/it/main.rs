//! Simulation of several nodes, a network and faulty disks, driven by one seed.
//!
//! Nodes write, replicate, write snapshots, lose links, crash, lose power, and are promoted,
//! sometimes while the old master is still running. Bytes are delayed. A partition may affect only
//! one end of a link, so the other end continues to send. Disks fail and fill up.
//!
//! `node.rs` is a node with its disk, `link.rs` the network, `fate.rs` the faults, `truth.rs` a
//! record of all batches, `world.rs` the main loop.
//!
//! Assertions:
//!
//! - A promoted node has all writes that it acknowledged as written. Exceptions: the node has
//!   replaced its data, or its power or disk failed before the write was durable.
//! - A power cut never destroys writes that a node acknowledged as durable.
//! - The logs of connected nodes are equal byte for byte (positions and chain values are compared
//!   at every acknowledgement).
//! - When faults end, all nodes reach the same state, offset and chain value, and no node refuses
//!   the newest master.
//! - A replica saves its diverged batches before it drops them, even if the master's log no longer
//!   contains the divergence.
//!
//! `cargo xtask sim replication --runs 20000` runs more seeds; `--seed 7` replays a single seed.
#![allow(clippy::unwrap_used, reason = "tests panic to report a failure")]

mod fate;
mod link;
mod node;
mod truth;
mod world;

use replication::Timeouts;
use world::World;

const TIMEOUTS: Timeouts = Timeouts { heartbeat_ms: 1_000, timeout_ms: 5_000 };
const STEP_MS: u64 = 100;

/// Numbers of events in all runs.
#[derive(Debug, Default)]
struct Figures {
    pub(crate) writes: u64,
    pub(crate) waited: u64,
    pub(crate) continued: u64,
    pub(crate) full_syncs: u64,
    pub(crate) resumed_files: u64,
    pub(crate) promotions: u64,
    pub(crate) crashes: u64,
    pub(crate) dropped: u64,
    /// Number of full syncs that dropped diverged batches. The next two fields count the full syncs
    /// whose divergence was known exactly, and those whose divergence was unknown.
    pub(crate) parted: u64,
    pub(crate) exactly: u64,
    pub(crate) untold: u64,
    pub(crate) rewound: u64,
    pub(crate) forgiven: u64,
    pub(crate) refusals: u64,
    pub(crate) cuts: u64,
}

#[test]
fn all_nodes_become_equal_and_nothing_acknowledged_is_lost() {
    let seeds = seeds::seeds(300);
    let runs = seeds.end - seeds.start;
    let mut sum = Figures::default();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run(250);
            world.figures
        });
        let f = result.unwrap_or_else(|cause| {
            println!("TIDEMARK_SEED={seed}");
            std::panic::resume_unwind(cause)
        });
        sum.writes += f.writes;
        sum.waited += f.waited;
        sum.continued += f.continued;
        sum.full_syncs += f.full_syncs;
        sum.resumed_files += f.resumed_files;
        sum.promotions += f.promotions;
        sum.crashes += f.crashes;
        sum.dropped += f.dropped;
        sum.parted += f.parted;
        sum.exactly += f.exactly;
        sum.untold += f.untold;
        sum.rewound += f.rewound;
        sum.forgiven += f.forgiven;
        sum.refusals += f.refusals;
        sum.cuts += f.cuts;
    }
    println!("{sum:?}");
    if !seeds::is_replay() {
        assert!(
            sum.waited > 50 * runs
                && sum.continued > 3 * runs
                && sum.full_syncs > runs
                && sum.promotions > runs
        );
        assert!(
            sum.resumed_files > runs / 50 && sum.refusals > 0 && sum.dropped > 0 && sum.rewound > 0,
            "{sum:?}"
        );
        assert!(
            sum.parted > runs / 10 && 10 * sum.exactly > 7 * sum.parted && sum.untold == 0,
            "{sum:?}"
        );
    }
}
