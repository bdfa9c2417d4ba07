//! Tests of the counter engine through its public interface.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod adopt;
mod cold;
mod concurrent;
mod limits;
mod load;
mod memory;
mod model;
mod scan;
