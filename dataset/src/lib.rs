//! Data set: named spaces on top of the counter and existence engines. The crate implements their
//! keys, the catalogue, the write path, log records, recovery, snapshots and the cold tier.
//!
//! ```text
//!   recovery     reads a data folder at startup
//!   tiering      spills and merges                 snapshot     writes and loads snapshots
//!   live         parts of an open data set for background work
//!   engines      spaces, views and actions; reads and writes
//!   commit       progress of commits; encoding of log records
//!   cold         rows and flags on disk: files, reads, cache
//!   offsets      offsets of event streams of brokers
//!   tokens       idempotency tokens of increments
//!   groups       consumer groups of `changes`
//!   changes      the log as a stream for consumers
//! ```
//!
//! The crate has no sockets, protocol, users or roles. It only starts threads that read cold
//! blocks. Its caller runs all other background work. Each module above uses only the modules below
//! it.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod changes;
pub mod clock;
pub mod cold;
pub mod commit;
pub(crate) mod cpu_throttle;
pub mod dirty_keys;
pub mod engines;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod groups;
pub mod key_patterns;
pub mod live;
pub mod log_records;
pub mod offsets;
pub mod options;
pub mod poll_backoff;
pub mod recovery;
pub mod ring_records;
pub mod snapshot;
pub mod tiering;
pub mod tokens;
pub mod waiters;
pub mod watch;

pub use engines::Engines;
pub use options::Options;
