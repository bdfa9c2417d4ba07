//! The whole server, on one thread, from one seed: real requests through real connections, the
//! commit thread, snapshots, spills, merges and maintenance step by step, on a simulated disk and
//! clock.
//!
//! ```text
//!   workload --requests--> client --pipe--> connection, handlers, data set --> simulated disk
//!                            |                 ^ one step of one thread
//!   model   <--replies-------'                 |
//!                         world: which step is next, when the disk fails, when the machine dies
//! ```
//!
//! Where the server sleeps, waits for another thread or syncs a file, the world makes steps of the
//! others (`store::time`), so that a spill, say, is under way while clients write.
//!
//! Asserted, by a model of every row (`model.rs`):
//!
//! - what was acknowledged is there after a crash, as `fsync` says;
//! - counters are exact; a like counter is the number of members, and SCARD says the same;
//! - no flag that is set is answered with no, and no other with yes;
//! - what one command or one transaction changes is there as a whole or not at all;
//! - a change of the catalogue that was acknowledged is there;
//! - every request is answered; every start succeeds.
//!
//! In three of seven seeds posts have ids of several ranges, with outliers in the gaps between.
//! Then tables fill up with likes, snapshots are rare, every second start is cut, and filters are
//! often spilled, and built anew for another rate.
//!
//! `cargo xtask sim system --runs 1000` runs more seeds; `--seed 7` replays one.
#![forbid(unsafe_code)]

mod cable;
mod client;
mod model;
mod pair;
mod process;
mod reply;
mod workload;
mod world;

use std::collections::BTreeMap;
use std::ops::AddAssign;
pub use world::Section;
use world::World;

/// What happened in a run, or in many.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each is named by what it counts")]
pub struct Met {
    pub commands: u64,
    pub errors: u64,
    pub rounds: u64,
    pub failed_rounds: u64,
    pub starts: u64,
    pub power_cuts: u64,
    pub kills: u64,
    pub crashes_in: BTreeMap<Section, u64>,
    /// Crashes after a change of the catalogue and before the next snapshot.
    pub crashes_after_alter: u64,
    pub altered: u64,
    pub saves: u64,
    pub spills: u64,
    pub spilled_tables: u64,
    pub merges: u64,
    pub failed_spills: u64,
    pub spills_in_recovery: u64,
    pub cold_reads: u64,
    pub clock_jumps: u64,
    /// Spaces with several ranges of ids when their process ended.
    pub ranges: u64,
    /// Spaces with outliers then.
    pub outliers: u64,
    /// Tables whose filters were built anew.
    pub rebuilt: u64,
    /// Rebuilds that the end of a process has cut.
    pub cut_rebuilds: u64,
    /// Links of a replica that went on from where it was.
    pub continued: u64,
    pub full_syncs: u64,
    pub cuts: u64,
    pub replica_crashes: u64,
    /// A replica took the place of a master that had died.
    pub promotions: u64,
    /// Commands that a replica answered as its master did.
    pub compared: u64,
}

impl AddAssign<&Met> for Met {
    fn add_assign(&mut self, other: &Met) {
        self.commands += other.commands;
        self.errors += other.errors;
        self.rounds += other.rounds;
        self.failed_rounds += other.failed_rounds;
        self.starts += other.starts;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        for (section, crashes) in &other.crashes_in {
            *self.crashes_in.entry(*section).or_default() += crashes;
        }
        self.crashes_after_alter += other.crashes_after_alter;
        self.altered += other.altered;
        self.saves += other.saves;
        self.spills += other.spills;
        self.spilled_tables += other.spilled_tables;
        self.merges += other.merges;
        self.failed_spills += other.failed_spills;
        self.spills_in_recovery += other.spills_in_recovery;
        self.cold_reads += other.cold_reads;
        self.clock_jumps += other.clock_jumps;
        self.ranges += other.ranges;
        self.outliers += other.outliers;
        self.rebuilt += other.rebuilt;
        self.cut_rebuilds += other.cut_rebuilds;
        self.continued += other.continued;
        self.full_syncs += other.full_syncs;
        self.cuts += other.cuts;
        self.replica_crashes += other.replica_crashes;
        self.promotions += other.promotions;
        self.compared += other.compared;
    }
}

/// One run, of one machine, or of a master and its replica.
///
/// # Panics
/// When the server breaks a promise.
pub fn run(seed: u64, steps: u32, machines: usize) -> Met {
    let world = World::new(seed, machines);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(steps)));
    if let Err(cause) = ended {
        store::time::simulate(None);
        println!("TIDEMARK_SEED={seed}: {world}");
        std::panic::resume_unwind(cause);
    }
    world.met.borrow().clone()
}
