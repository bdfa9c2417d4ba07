//! The Tidemark server: RESP in, feed pages out.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod keys;
pub mod resp;
