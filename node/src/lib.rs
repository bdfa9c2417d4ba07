//! Settings, command specifications, users, roles and metrics of a node. Sockets and command
//! handlers are in the crate `server`.
//!
//! ```text
//!   metrics -> roles -> acl, cluster -> runtime -> command, config
//! ```
#![forbid(unsafe_code)]

pub mod acl;
pub mod cluster;
pub mod command;
pub mod config;
pub mod metrics;
pub mod roles;
pub mod runtime;
