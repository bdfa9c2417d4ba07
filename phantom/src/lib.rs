//! Probabilistic set of (id, member) pairs: Bloom filters partitioned by id range.
//!
//! "Has this viewer liked this post" costs about 20 bits per pair, where an exact set costs 16 to
//! 37 bytes. A space is a ring of tables (`rolling`), one per id range. A table is a Bloom filter,
//! a chain of extension filters if it received more pairs than planned, and an exact set of deleted
//! pairs. The ring recycles its oldest tables. Ids below the *horizon* get the answer *unknown*,
//! never *no*.
//!
//! ```text
//!   id below the horizon   -> Unknown
//!   id far ahead           -> exact set of outliers, until the ring reaches the id
//!   else its table         -> all bits set?  no: No     yes: deleted?  yes: No   no: Yes
//! ```
//!
//! Guarantees; code and tests refer to them by number:
//!
//! - **P1** No false negatives: a lookup finds every set pair at or above the horizon, even during
//!   rollovers, extensions, recycling, and the move of outliers into the ring.
//! - **P2** The false-positive rate never exceeds the configured rate, in any order of arrival.
//! - **P3** Test-and-set of a pair is atomic: if two threads set the same pair, one gets `Changed`.
//! - **P4** Only a rollover of a full ring raises the horizon (the lowest id that is still stored).
//!   Writes to a single id cannot raise it.
//! - **P5** A lookup never waits for a writer for longer than a few memory writes take.
//! - **P6** Every growing structure has a bound: outlier pairs, deleted pairs per table, forgotten
//!   ids, memory. A write that would exceed a bound returns an error and changes nothing.
//!
//! The crate does no I/O, reads no clock and starts no thread. The host calls [`Space::maintain`]
//! periodically.

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
pub use fp_estimator::CanaryCounts;
pub use hash::{Member, Pair};
pub use lookup::{Answers, BATCH, Lookup, PairPrefetcher, Pairs, PlacedPairs};
pub use options::{Answer, Change, MAX_TABLES, Options};
pub use origin::Origin;
pub use rebuild::{Rebuild, Rebuilt, TableLoad, Written};
pub use rolling::{Range, Unreadable, UnreadableIds};
pub use sizing::{RATES, bits_per_pair};
pub use space::Space;
pub use stats::{Layout, RingProgress, TableStats};
pub use table::cold_table::{Chain, ColdBackend};
