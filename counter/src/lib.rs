//! The counter engine: maps a 64-bit id to a row of counters, bit-packed in memory.
//!
//! A [`Space`] holds rows; a [`Schema`] defines the counters of a row. Each table of a space covers
//! one range of ids and stores its rows in buckets of a few cache lines:
//!
//! ```text
//!   space    outliers, ring of tables   space.rs, read.rs, batch_get.rs, write.rs, bulk_load.rs,
//!                                       rewrite.rs, retire.rs, iter.rs, advise.rs
//!   table    segments of buckets, aux dictionary
//!                                       table.rs, buckets.rs, aux_dictionary.rs, sizing.rs
//!   bucket   bit-packed slots under one version
//!                                       bucket.rs, layout.rs (bit offsets)
//!   slot     state, fields, and the id bits that the bucket number does not imply   key.rs
//! ```
//!
//! The crate implements these promises (numbered as in `docs/promises.md`):
//! - 1, *wait-free reads*: a read takes no lock. A read repeats the few loads of a bucket when a
//!   writer has changed the bucket concurrently.
//! - 5, *exact counters*: every i64 is stored exactly, in the slot or in the aux dictionary.
//!   Overflow is an error.
//! - 7, *outliers are harmless*: ids may arrive in any order, including ids far above all others
//!   (outliers). Background steps rewrite crowded tables.
//! - 8, *named limits*: [`Options::memory_limit_bytes`] covers all memory of a space.
//!
//! The crate uses no files, clocks, threads or sockets. The host calls [`Space::maintain`] from its
//! own thread.

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
