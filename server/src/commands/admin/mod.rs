//! Administration: users, settings, statistics, diagnostics, command table, shutdown.

pub(crate) mod acl;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod command;
mod command_docs;
pub(crate) mod config;
pub(crate) mod diagnostics;
pub(crate) mod info;
pub(crate) mod ingest;
pub(crate) mod server;
mod usage;
