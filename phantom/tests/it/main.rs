//! The engine from outside: a model, threads, and rates.
#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

mod behaviour;
mod copies;
mod memory;
mod model;
mod rates;
mod recovery;
mod threads;
