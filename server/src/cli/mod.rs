//! The command line's long jobs: each file is one subcommand.

pub mod client;
pub mod day;
pub mod import;
