//! One node of the service without its sockets and command handlers, which are in `server`:
//! settings, command specifications, users, roles and metrics.
//!
//! ```text
//!   metrics -> roles -> acl, cluster -> runtime, client -> command, config
//! ```
#![forbid(unsafe_code)]

pub mod acl;
pub mod client;
pub mod cluster;
pub mod command;
pub mod config;
pub mod metrics;
pub mod roles;
pub mod runtime;
