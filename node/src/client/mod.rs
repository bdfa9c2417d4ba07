//! The other end of RESP: what subcommands, sources of events and tests reach a server with.

mod blocking;
pub mod connect;

pub use blocking::Client;
