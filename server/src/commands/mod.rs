//! Command families, one file each, and the code that executes requests.
//!
//! A family's file defines its commands as rows with handlers (`command.rs`); `families.rs` lists
//! the families. Dispatch, arity errors, COMMAND, HELP and docs/commands.md derive from the rows.

pub(crate) mod admin;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod cold_keys;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod counter;
pub(crate) mod execute;
pub(crate) mod families;
pub(crate) mod feed;
pub(crate) mod flags;
#[cfg(test)]
mod footprints;
pub(crate) mod help;
pub(crate) mod items;
pub(crate) mod keys;
pub(crate) mod log_size;
pub(crate) mod long_request;
pub(crate) mod prefetch;
pub(crate) mod pubsub;
pub mod reference;
pub(crate) mod replication;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod stream;
pub(crate) mod transaction;
pub(crate) mod turn;
pub(crate) mod unreadable;
pub(crate) mod visibility;
pub(crate) mod wait;
