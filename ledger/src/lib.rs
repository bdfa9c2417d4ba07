//! Exact set of all existence pairs (id, member) of a space, stored on disk.
//!
//! Most page requests read only a Bloom filter. Operations that need an exact answer look the pair
//! up in the ledger. The ledger is a small LSM tree, sorted by id, then member:
//!
//! ```text
//!   memory   pairs since the last flush, set or unset             exact, sorted
//!   range    ids low..=high                                       pairs of an id share a range
//!     run      newest: filter of 5 bits per pair, index           4 KiB blocks on disk
//!     ...      at most `Options::runs` runs
//!     run      lowest: index only, no filter                      nearly all pairs
//! ```
//!
//! A lookup searches memory, then the runs of the id's range from newest to oldest. If a run's
//! filter reports the pair, the lookup reads the one block that the index selects. [`Ledger::ask`]
//! returns a [`PendingLookup`] that describes the read. The caller can thus read in another thread.
//!
//! A flush merges the pairs of a range in memory with the newest runs that the merge policy
//! selects, and writes a new run. A flush also divides ranges that are too large. See [`Flush`].
//!
//! # Recovery
//!
//! The ledger has no log. The caller's snapshot contains the pairs in memory
//! ([`Ledger::walk_memory`], [`Ledger::drops`]), and the manifest lists the runs. A flush syncs the
//! log before the manifest lists its runs, so a run never contains a change that the log lacks.
//! Afterwards the flush removes the pairs from memory. A snapshot plus the runs of its manifest
//! therefore contain every pair logged before the replay position.
//!
//! Each run records a log offset. The run and the older runs of its range contain all changes
//! before this offset. Replay must skip these changes. A load of a snapshot that was begun before
//! this offset must skip them, too: see [`Ledger::covered`].
//!
//! # Rules
//!
//! - **L1** A pair leaves memory only after a run in the manifest contains its current state.
//! - **L2** Of two runs of a range, the run with the larger identity is newer. A merge takes the
//!   newest runs and skips none. Only one thread at a time writes files.
//! - **L3** The lowest run of a range has no unset pairs.
//! - **L4** Readers search memory, then load the dropped ids, then the list of ranges. They thus
//!   find a pair that concurrently moves from memory to a run. A drop record is removed only after
//!   the runs to which it applies. [`Ledger::settle`] checks whether an answer from disk is still
//!   valid.

#![deny(unsafe_code)]

mod bits;
mod block;
mod filter;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod index;
mod ledger;
mod memory;
mod merge;
mod pair;
mod question;
mod ranges;
mod rewrite;
mod run;
mod snapshot;

pub use ledger::{Ledger, Options, Stats};
pub use pair::{MAX_MEMBER_BYTES, Member, OwnedMember, Pair, Pairs};
pub use question::{Answer, BlockBuffer, PendingLookup};
pub use rewrite::Flush;
pub use run::{Run, RunWriter};
pub use snapshot::IdSnapshot;
