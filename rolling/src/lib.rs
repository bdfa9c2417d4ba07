//! Rolling tables: the framework that both engines share.
//!
//! A *space* is cut into *tables*, one per id range. New ids are larger than old ones, so the
//! newest table takes almost all new ids; when it is full enough the ring *rolls*: the newest table
//! is closed at a boundary and a fresh one opens above it. Where a second service uses ids far
//! above, each has an *open* table of its own, and both roll.
//!
//! ```text
//!   below the horizon |  table 0       table 1       table 2 (newest, open-ended)
//!   answers: unknown  | [h .. a-1]    [a .. b-1]    [b .. 2^64-1]
//! ```
//!
//! This crate knows ranges, and which writer may write where and when; it does not know what a
//! table holds. It does no I/O, reads no clock and starts no thread. What it promises (the code
//! names these by number):
//!
//! - **R1** The tables of a ring cover `[horizon, 2^64-1]` with no gap and no overlap, at every
//!   moment.
//! - **R2** A reader takes one snapshot of the ring (an atomic load) and never waits: not for
//!   writers, not for a change of the ring.
//! - **R3** All writes of one key are serialised, and happen in the table that covers its id at
//!   that moment, through rolls and rewrites.
//! - **R4** Only [`Ring::recycle`] raises the horizon; nothing that a client sends does.
//! - **R5** An id far ahead of all others does not move boundaries ([`Frontier`]);
//!   it is kept exactly, in the [`Outliers`], of which readers never wait, either.

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
pub use outliers::{Outliers, Refused, Side};
pub use persistent_trie::UPPER;
pub use ring::{Entry, Loaded, Ring, STRIPES, Slot, Tables};
pub use unreadable::{Unreadable, UnreadableIds};
