//! Exact set of all existence pairs (id, member) of a space, on disk.
//!
//! A Bloom filter answers page requests. Where a false positive would matter, the caller looks the
//! pair up in the ledger. The ledger is a small LSM tree, sorted by id, then member:
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
//! returns a [`Question`] for that read, so the caller chooses the thread that waits for the disk.
//!
//! A flush writes the pairs of a range to a new run, merged with as many of the newest runs as the
//! policy requires. It divides a range that has grown too large. See [`Flush`].
//!
//! # Recovery
//!
//! The ledger has no log. The caller's snapshot contains the pairs in memory
//! ([`Ledger::walk_memory`], [`Ledger::drops`]), and the manifest lists the runs. A flush syncs the
//! log before the manifest lists its runs, so a run never contains a change that the log lacks.
//! Pairs leave memory only after that. So a snapshot plus the runs of its manifest contain every
//! pair logged before the replay position.
//!
//! Each run records a log offset; the run and the older runs of its range contain all changes
//! before it. Replay must skip those changes, and so must a snapshot begun before that offset: see
//! [`Ledger::covered`].
//!
//! # Rules
//!
//! - **L1** A pair leaves memory only after a run in the manifest contains its current state.
//! - **L2** Of two runs of a range the one with the larger identity is newer. A merge takes a
//!   contiguous sequence of the newest runs, and one thread at a time writes files.
//! - **L3** The lowest run of a range has no unset pairs.
//! - **L4** Readers search memory, then load the dropped ids, then the list of ranges. A pair that
//!   moves concurrently is in at least one of them. A drop is forgotten only after the runs it
//!   applies to are gone. [`Ledger::settle`] tells whether a slow answer is still valid.

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

pub use ledger::{Ledger, Options, Stats};
pub use pair::{MAX_MEMBER_BYTES, Member, OwnedMember, Pair, Pairs};
pub use question::{Answer, Question};
pub use rewrite::Flush;
pub use run::{Run, RunWriter};
