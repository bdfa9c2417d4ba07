//! A few nodes, a network and disks that do whatever they are allowed to, all from one seed.
//!
//! Nodes write, follow, snapshot, lose their link, their process or their power, and are promoted,
//! some by a majority's choice and some while the old master goes on. Bytes are delayed; a link may
//! be cut on one side only, so that the other goes on sending into it. Disks fail and fill up.
//!
//! `node.rs` is one node and its disk, `link.rs` what carries bytes between two, `fate.rs` what
//! befalls them, `truth.rs` what was, `world.rs` the run.
//!
//! Asserted:
//!
//! - a node that acknowledged a write as written, and did not give its data up for another master's
//!   since, has it when it is promoted, unless its own power or disk failed before it was durable
//!   there;
//! - what a node acknowledged as durable its power never takes;
//! - while nodes follow, their logs are equal byte for byte (positions and chain values compared at
//!   every acknowledgement);
//! - when the faults end, all nodes become equal: state, offset and chain; no node refuses the
//!   newest master;
//! - what is dropped was handed out first: from where the two histories part, or from before that,
//!   also where the master's log does not go back so far (`truth.rs` remembers every batch that
//!   there ever was).
//!
//! `cargo xtask sim replication --runs 20000` runs more; `--seed 7` replays one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod fate;
mod link;
mod node;
mod truth;
mod world;

use replication::Timeouts;
use world::World;

const TIMEOUTS: Timeouts = Timeouts { heartbeat_ms: 1_000, timeout_ms: 5_000 };
const STEP_MS: u64 = 100;

/// What was met.
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
    /// Links on which a replica gave up what its master did not have; of these, those on which it
    /// was handed out from the very place; and those for which that is unknown.
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
        // A simulator that meets none of this shows nothing.
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
