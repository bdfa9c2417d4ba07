//! Tests of the public API: behaviour, a model, threads, recovery, memory and error rates.
#![allow(clippy::unwrap_used, reason = "tests panic to report a failure")]

mod behaviour;
mod copies;
mod memory;
mod model;
mod rates;
mod reading;
mod recovery;
mod threads;
