//! The rows of all commands, a file for each family of handlers.

pub(crate) mod acl;
pub(crate) mod backup;
pub(crate) mod bloom;
pub(crate) mod client;
pub(crate) mod client_admin;
pub(crate) mod cnt;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod cuckoo;
pub(crate) mod diagnostics;
pub(crate) mod hash;
pub(crate) mod keys;
pub(crate) mod page;
pub(crate) mod phantom;
pub(crate) mod pubsub;
pub(crate) mod replication;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod spaces;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod topology;
pub(crate) mod tracking;
pub(crate) mod transaction;
pub(crate) mod views;
pub(crate) mod weibo;
