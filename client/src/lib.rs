//! RESP from the client's side: subcommands, requests to other nodes, event sources and tests.
//!
//! [`Inbox`] decodes received bytes into [`Reply`]s. [`Link`] is an asynchronous connection, and
//! [`Client`] is a blocking connection with pipelining. [`ConnectArgs`] holds an address, a login
//! and TLS options. [`Socket`] and [`tls`] also serve the accepting side.
//!
//! Callers choose what a reply means: the crate follows no redirection, retries nothing, and keeps
//! no pool of connections.
#![forbid(unsafe_code)]

mod blocking;
mod connect;
mod inbox;
mod link;
mod reply;
mod socket;
pub mod tls;

pub use blocking::Client;
pub use connect::{ConnectArgs, DEFAULT_PORT};
pub use inbox::{Inbox, MAX_INBOX_BYTES, closed, too_long};
pub use link::{Link, is_permission_error, put_command, refused, timely, within};
pub use reply::{Reply, info_field};
pub use socket::Socket;
