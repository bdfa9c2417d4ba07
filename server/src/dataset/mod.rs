//! Named spaces over both engines: keys, the schema catalogue, the one write path, what is logged
//! and recovered, snapshots, the cold tier.

pub mod catalogue;
pub(crate) mod cold;
pub mod dirty_keys;
pub mod durability;
pub mod engines;
pub mod key_patterns;
pub mod log_records;
pub(crate) mod poll_backoff;
pub(crate) mod snapshot;
pub(crate) mod waiters;
pub(crate) mod watch;
