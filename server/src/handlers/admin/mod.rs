//! Users, settings, statistics, diagnostics, the command list, shutdown.

pub(crate) mod acl;
pub(crate) mod backup;
pub(crate) mod command;
pub mod commands_page;
pub(crate) mod config;
pub(crate) mod diagnostics;
pub(crate) mod info;
pub(crate) mod ingest;
pub(crate) mod server;
