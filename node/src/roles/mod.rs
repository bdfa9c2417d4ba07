//! Roles of a node: the shared state of a process ([`node`]), replication, failover, backups and
//! the background threads. The crate `replication` implements the protocol.
//!
//! ```text
//!   command REPLICAOF --> Role (on disk) --> log_owner (thread "log"): the owner of the log
//!                            a master's log: Durability::run
//!                            a replica's: replica.rs, one link to its master
//!   command TM.REPLICATE --> the connection sends the log's files (outgoing_link.rs)
//! ```
//!
//! FAILOVER hands the role to a replica (`failover.rs`). `replicas.rs` lists the replicas and their
//! progress; `link_status.rs` describes the link to the master.

pub mod audit;
pub mod audit_state;
pub mod background;
pub mod backup;
pub mod backup_state;
pub mod failover;
mod failover_state;
mod fence;
pub mod graceful_shutdown;
mod link_io;
mod link_status;
pub mod load;
pub mod log_owner;
pub mod node;
pub mod outgoing_link;
pub mod peer;
pub mod replica;
mod replicas;
mod replication_state;
pub mod role;
mod salvage;
mod sentinels;
mod write_gate;

pub use link_status::{LinkState, ReplicaLinkStatus};
pub use replicas::{ConnectedReplica, ConnectedReplicas};
pub use replication_state::{Handing, Hello, Order, Promotion, Replication};
pub use role::Master;
pub use sentinels::{CHANNEL as SENTINEL_CHANNEL, Sentinel};
