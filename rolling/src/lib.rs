//! Rolling tables: the ring of tables behind the counter engine and the existence engine.
//!
//! A *space* is divided into *tables* by ranges of ids. New ids are usually larger than old ids, so
//! the newest table receives most new ids. When it is full, a *rollover* closes it at a boundary
//! and creates an empty table above it. If a second service uses much larger ids, each service has
//! an *open* table of its own, and both are replaced when they are full.
//!
//! ```text
//!   below the horizon |  table 0       table 1       table 2 (newest, open-ended)
//!   answers: unknown  | [h .. a-1]    [a .. b-1]    [b .. 2^64-1]
//! ```
//!
//! The crate manages the ranges of ids and coordinates writers; table contents are opaque to it. It
//! performs no I/O, reads no clock and starts no threads. Invariants:
//!
//! - **R1** The tables of a ring cover `[horizon, 2^64-1]` without gap or overlap at all times.
//! - **R2** A reader takes one snapshot of the ring (an atomic load). It never waits for writers or
//!   for ring changes.
//! - **R3** Writes of one key are serialised and go to the table that covers the id at that time,
//!   even during rollovers and rewrites.
//! - **R4** Client writes never raise the horizon; only [`Ring::recycle`] does.
//! - **R5** An id far above all others does not move a table boundary ([`Frontier`]). [`Outliers`]
//!   stores such ids (outliers). Readers of outliers never wait.

mod bits;
mod frontier;
mod memory;
mod outliers;
mod persistent_trie;
mod ring;
mod unreadable;

pub use bits::ones;
pub use frontier::{Admission, Frontier, MAX_RANGES, Range};
pub use memory::{HUGE_PAGE_BYTES, Words, equal_bytes, prefetch, prefetch_to_write};
pub use outliers::{Outliers, Refused, WriteDestination};
pub use persistent_trie::UPPER_HALF_START;
pub use ring::{Entry, Loaded, Ring, STRIPES, Slot, Tables};
pub use unreadable::{Unreadable, UnreadableIds};
