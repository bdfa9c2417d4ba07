//! What the end-to-end tests share: servers in the test's process, from the harness, and generated
//! data.

pub mod reposts;

pub use harness::in_process::{Raw, Stopped, TestServer, listener, recommended_user, request};
pub use harness::{PATIENCE, cannot, eventually, number, resident_bytes, tables};
