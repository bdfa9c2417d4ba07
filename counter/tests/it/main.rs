//! Tests of the counter engine through its public interface.
#![allow(clippy::unwrap_used, reason = "tests panic to report a failure")]

mod adopt;
mod cold;
mod concurrent;
mod limits;
mod load;
mod memory;
mod model;
mod scan;
