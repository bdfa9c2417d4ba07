//! One file per family of commands, from arguments to reply; beside them how a request is executed.
//!
//! A command is one row in `node/src/command/families/` and one function here, which the family's
//! `RUN` list names. From the rows come dispatch, arity errors, COMMAND and its subcommands, HELP,
//! and docs/commands.md.

pub(crate) mod admin;
pub(crate) mod call;
pub(crate) mod cluster;
pub(crate) mod cold_keys;
pub(crate) mod counter;
pub(crate) mod execute;
pub(crate) mod feed;
pub(crate) mod flags;
pub(crate) mod help;
pub(crate) mod items;
pub(crate) mod log_size;
pub(crate) mod long_request;
pub(crate) mod prefetch;
pub(crate) mod redis;
pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod stream;
pub(crate) mod suspend;
pub(crate) mod table;
pub(crate) mod visibility;

pub(crate) use table::{Handler, LongHandler};
