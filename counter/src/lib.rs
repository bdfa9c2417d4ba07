//! The counter engine: one 64-bit id, several counters, packed to the bit.
//!
//! A [`Space`] holds rows; a row is the counters of one id, by a [`Schema`]. Rows lie in tables,
//! each for a range of ids, and inside a table in buckets of a few cache lines:
//!
//! ```text
//!   space    aside, ring of tables   space.rs, read.rs, batch_get.rs, write.rs, bulk_load.rs,
//!                                    rewrite.rs, retire.rs, iter.rs, advise.rs
//!   table    segments of buckets, aux dictionary
//!                                    table.rs, buckets.rs, aux_dictionary.rs, sizing.rs
//!   bucket   slots, bit behind bit, under one version
//!                                    bucket.rs, layout.rs (where the bits are)
//!   slot     what the bucket number does not say of the id, state, fields      key.rs
//! ```
//!
//! What it promises (the numbers are the project's):
//! 1. *Wait-free reads.* A read takes no lock; it repeats the few loads of one bucket if a
//!    writer was in it.
//! 5. *Exact counters.* Any i64 is held exactly: in its bits, or in the aux dictionary. Overflow is
//!    an error.
//! 7. *Outliers are harmless*, and ids may come in any order: crowded tables are rewritten in the
//!    background, in small steps.
//! 8. *What can grow has a limit*: [`Options::memory_limit_bytes`] counts everything.
//!
//! Deliberately absent: files, clocks, threads, sockets. The host calls [`Space::maintain`] from a
//! thread of its own.

#[cfg(not(loom))]
mod advise;
#[cfg(not(loom))]
mod aux_dictionary;
#[cfg(not(loom))]
mod batch_get;
mod bucket;
#[cfg(not(loom))]
mod buckets;
#[cfg(not(loom))]
mod budget;
#[cfg(not(loom))]
mod bulk_load;
mod change;
#[cfg(not(loom))]
mod cold;
#[cfg(not(loom))]
mod cold_backend;
mod error;
#[cfg(not(loom))]
mod iter;
mod key;
mod layout;
#[cfg(not(loom))]
mod origin;
#[cfg(not(loom))]
pub mod prefetch_trace;
#[cfg(not(loom))]
mod read;
#[cfg(not(loom))]
mod retire;
#[cfg(not(loom))]
mod retirement;
#[cfg(not(loom))]
mod rewrite;
#[cfg(not(loom))]
mod rewrite_state;
#[cfg(not(loom))]
pub mod scan;
mod schema;
#[cfg(not(loom))]
mod sizing;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod stats;
mod sync;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod tombstones;
#[cfg(not(loom))]
mod write;

pub use error::Error;
pub use schema::{
    Alteration, Field, FieldBounds, MAX_FIELDS, MAX_NAME_BYTES, MAX_ROW_BITS, Schema,
};

pub use rolling::{Unreadable, UnreadableIds};
#[cfg(not(loom))]
pub use {
    advise::{Advice, FieldAdvice},
    bulk_load::{LoadPart, LoadRange, Loader},
    change::{Bounds, Change},
    cold::Spill,
    cold_backend::ColdBackend,
    origin::Origin,
    read::Read,
    sizing::bytes_per_row,
    space::{Options, Space},
    stats::{OutlierRange, RangeStats, TableStats},
};
