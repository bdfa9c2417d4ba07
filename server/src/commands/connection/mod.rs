//! Commands about the connection: login, names, tracking.

pub(crate) mod client;
pub(crate) mod client_admin;
pub(crate) mod tracking;
