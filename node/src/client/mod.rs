//! RESP clients for subcommands, event sources and tests.

mod blocking;
pub mod connect;

pub use blocking::Client;
