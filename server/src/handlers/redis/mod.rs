//! What every Redis client expects: keys, connections, channels, transactions, caching.

pub(crate) mod client;
pub(crate) mod client_admin;
pub(crate) mod keys;
pub(crate) mod pubsub;
pub(crate) mod restore;
pub(crate) mod tracking;
pub(crate) mod transaction;
