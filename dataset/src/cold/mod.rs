//! Cold storage: rows and flags on disk, the reads that fetch them, and the cache.
//!
//! ```text
//!   request batch: are any ids cold, and neither cached nor pinned?
//!      no  -> run the commands
//!      yes -> threads read one 4 KiB block per job (fetch.rs)
//!          -> cache the rows, pin them for the batch -> run the commands
//!   page:    run; if rows are missing, fetch them as above and run again (missing.rs)
//!   command: counter::Space -> row not in memory -> ColdBackend::get
//!          -> pinned row, cached row, or a synchronous read
//! ```
//!
//! Cold flags use the same path (`cold_filters.rs`).
//!
//! Command handlers are independent of cold storage. Before a command runs, the connection fetches
//! and pins its cold rows (`counter/src/cold.rs` finds them). If a merge replaces the file before
//! the command runs, the pin no longer matches, and the worker reads the row synchronously.
//!
//! If a row cannot be read, every call that needs it returns [`Unreadable`], never the result for a
//! missing row.

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

pub(crate) use cache::DAMAGE_CONSEQUENCE;
pub use cache::{ColdCache, ColdStats, Pins, pin, unpin};
pub use fetch::Cold;
pub use pair_file::PairFile;
pub use rolling::{Unreadable, UnreadableIds};
