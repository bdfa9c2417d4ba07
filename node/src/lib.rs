//! One node of the service, without its clients' sockets: its settings, the facts of its commands,
//! its users, its role, and what is measured of it.
//!
//! ```text
//!   metrics -> roles -> acl, cluster -> runtime, client -> command, config
//! ```
//!
//! No handler of a command is here, and no socket of a client: `server` brings both.
#![forbid(unsafe_code)]

pub mod acl;
pub mod client;
pub mod cluster;
pub mod command;
pub mod config;
pub mod metrics;
pub mod roles;
pub mod runtime;
