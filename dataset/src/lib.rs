//! Data set: named spaces over the counter and existence engines. The crate has their keys, the
//! catalogue, the write path, log records, recovery, snapshots and the cold tier.
//!
//! ```text
//!   recovery     a data folder is read back; marks become records, records become state
//!   tiering      old tables move to the disk       snapshot     state as files
//!   live         a data set that is served, as background work sees it
//!   engines      spaces, views, actions; reads, and the one path of writes
//!   commit       progress of changes on their way to the disk
//!   cold         rows and flags on the disk: files, reads, cache
//!   offsets      positions in the event streams of brokers
//!   tokens       increments that count once
//!   groups       cursors of consumer groups of `changes`
//!   changes      the log as a stream for consumers
//! ```
//!
//! The crate has no sockets, protocol, users or roles. Its only threads read cold blocks; longer
//! work is a function that its owner runs. Each module above uses only those below it.
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
