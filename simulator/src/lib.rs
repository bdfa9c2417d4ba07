//! The whole server, on one thread, from one seed: real requests through real connections, the
//! commit thread, snapshots, spills, merges and maintenance step by step, on a simulated disk and
//! clock.
//!
//! ```text
//!   workload --requests--> client --pipe--> connection, commands, data set --> simulated disk
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
//! `cargo xtask sim system --runs 1000` runs more seeds; `--seed 7` replays one. About one run in
//! 5,000 meets a false positive of a filter without a ledger. It disappears when the run is
//! replayed with other hashes (`TIDEMARK_FILTER_SEED=8`); a fault does not.
#![forbid(unsafe_code)]

mod cable;
mod client;
mod counts;
mod model;
mod pair;
mod process;
mod reply;
mod workload;
mod world;

pub use counts::{RunCounts, Section};
use world::World;

/// One run, of one machine, or of a master and its replica.
///
/// # Panics
/// When the server breaks a promise.
pub fn run(seed: u64, steps: u32, machines: usize) -> RunCounts {
    let world = World::new(seed, machines);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(steps)));
    if let Err(cause) = ended {
        store::time::simulate(None);
        println!("TIDEMARK_SEED={seed}: {world}");
        std::panic::resume_unwind(cause);
    }
    world.counts.borrow().clone()
}
