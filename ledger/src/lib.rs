//! Every existence pair (id, member) of a space, exact, on disk.
//!
//! A Bloom filter answers pages; where a wrong yes would count, the ledger is asked. It keeps pairs
//! sorted by id, then member, in immutable *runs*:
//!
//! ```text
//!   memory   pairs since the last flush, set or unset             exact, sorted
//!   range    ids low..=high                                       pairs of each id lie in one
//!     run      newest: a filter of 5 bits a pair, an index        4 KiB blocks on disk
//!     ...      at most `Options::runs` of them
//!     run      lowest: all other pairs, no filter, an index       nearly all of the pairs
//! ```
//!
//! A lookup asks memory, then the runs of the id's range, newest first: where the filter says yes,
//! one block is read, which the index names. [`Ledger::ask`] returns that question, and the caller
//! chooses the thread that reads the block.
//!
//! A flush writes the pairs of a range to a new run, merged with as many of the newest runs as the
//! policy says. A range that has grown is divided. See [`Flush`].
//!
//! # Recovery
//!
//! The ledger has no log. Memory is part of the caller's snapshot
//! ([`Ledger::walk_memory`], [`Ledger::drops`]), as all state is; the manifest names the runs; and
//! replay begins where the snapshot says. A flush flushes the log before its files are named, so
//! files never show what the log has not, and pairs leave memory only after that: so a snapshot
//! and the runs of its manifest have every pair that was logged before the place where replay
//! begins.
//!
//! A run also notes up to which offset of the log it and the older runs of its range have all
//! changes. Replay, and a snapshot that was begun before that offset, must not repeat these:
//! [`Ledger::covered`].
//!
//! # Rules
//!
//! - **L1** A pair leaves memory only after a run that the manifest names has it as it is.
//! - **L2** Of two runs of a range the one with the larger identity is newer: a merge takes the
//!   newest runs, without a gap, and one thread at a time writes files.
//! - **L3** The lowest run of a range has no unset pairs.
//! - **L4** Readers ask memory, then which ids were dropped, then take the list of ranges: what
//!   moves meanwhile is in one of them, and a drop is forgotten after the runs have gone that need
//!   it. [`Ledger::settle`] tells whether an answer that took long still holds.

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
