//! Shared parts of the end-to-end tests: in-process servers, re-exported from the harness, and
//! generated data.

pub mod reposts;

pub use harness::in_process::{Raw, Stopped, TestServer, listener, recommended_user, request};
pub use harness::{DEFAULT_TIMEOUT, cannot, eventually, number, resident_bytes, tables, within};
