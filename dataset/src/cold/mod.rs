//! Cold storage: rows and flags on disk, the reads that fetch them, and the cache.
//!
//! ```text
//!   turn of a connection -> are some ids cold, and neither cached nor pinned?  --no--> run
//!   commands
//!        |  yes: the turn stops                                           ^
//!        '-> one job per 4 KiB block, read by threads (fetch.rs) -------' pinned for the turn,
//!                                                                          and cached
//!   a page -> runs, and lacks a row --> the same, then it runs again (missing.rs)
//!   a command -> counter::Space -> row not in memory -> ColdBackend::get
//!             -> pins, cache, else one read in place
//! ```
//!
//! Flags of old posts take the same path (`cold_filters.rs`).
//!
//! Commands are unaware of cold rows. Before a command runs, the connection fetches and pins the
//! rows that are cold (`counter/src/cold.rs` finds them). If a merge replaces the file in between,
//! the pin no longer matches. The worker then reads the row in place.
//!
//! A row that cannot be read makes each call that needs it fail with [`Unreadable`]. It is never
//! mistaken for a row that does not exist.

mod cache;
pub mod cold_filters;
pub mod damage;
pub mod fetch;
pub mod files;
pub mod key_hash;
pub mod ledger;
mod missing;
pub mod overlay;
mod pair_file;
pub mod quarantine;
pub mod rebuilds;

pub(crate) use cache::WHAT_IS_LOST;
pub use cache::{ColdCache, Figures, Pins, pin, unpin};
pub use fetch::Cold;
pub use pair_file::PairFile;
pub use rolling::{Unreadable, UnreadableIds};
