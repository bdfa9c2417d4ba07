//! The existence engine: which pairs (id, member) are set, in Bloom filters over id ranges.
//!
//! "Has this viewer liked this post" takes about 20 bits per like here, where a set takes 16 to 37
//! bytes. A space is a ring of tables (`rolling`), one per id range; a table is a Bloom filter, a
//! chain of extensions if it was overrun, and the exact set of pairs that were set and unset again.
//! Old tables are recycled: below the *horizon* the answer is *unknown*, never *no*.
//!
//! ```text
//!   id below the horizon   -> Unknown
//!   id far ahead of all    -> Outliers: exact, until the ring gets there
//!   else its table         -> all bits set?  no: No     yes: revoked?  yes: No   no: Yes
//! ```
//!
//! What it promises (the code and the tests name these by number):
//!
//! - **P1** No false no: a pair that was set, not unset since, and lies at or above the horizon, is
//!   found; through rolls, extension, recycling of other tables, and the move of early ids into the
//!   ring.
//! - **P2** A pair that is not set is answered with yes at the configured rate at most, at every
//!   moment: however much arrives late, early, or in whatever order.
//! - **P3** Test and set of a pair are one step: of two threads that set the same pair one is told
//!   `Changed`.
//! - **P4** The horizon rises only when the ring rolls, because it has filled up; nothing that is
//!   sent for one id can do that.
//! - **P5** A lookup waits for no writer for longer than a few memory writes.
//! - **P6** What grows is bounded: pairs aside, revoked pairs per table, forgotten ids, memory; at
//!   the bound there is an error and nothing has changed.
//!
//! This crate does no I/O, reads no clock and starts no thread: the host calls [`Space::maintain`]
//! now and then.

mod bytes;
mod canaries;
mod codec;
mod cold;
mod deleted_pairs;
mod error;
mod filter;
mod forget;
mod forgotten;
mod fp_estimator;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hash;
mod lookup;
mod options;
mod origin;
mod rebuild;
mod rollover;
mod sizing;
mod space;
mod stats;
mod table;
mod table_pool;
mod write;

pub use codec::{DecodeError, StoredTable, TableDecoder};
pub use cold::{Late, Note, Rewrite};
pub use error::Error;
pub use filter::PAGE_BYTES;
pub use fp_estimator::Measured;
pub use hash::{Member, Pair};
pub use lookup::{Answers, BATCH, Hints, Lookup, Pairs, Placed};
pub use options::{Answer, Change, MOST_TABLES, Options};
pub use origin::Origin;
pub use rebuild::{Rebuild, Rebuilt, TableLoad, Written};
pub use rolling::{Range, Unreadable, UnreadableIds};
pub use sizing::{RATES, bits_per_pair};
pub use space::Space;
pub use stats::{Layout, RingProgress, TableStats};
pub use table::cold_table::{Chain, ColdBackend};
