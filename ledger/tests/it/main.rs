//! Tests of the ledger's public API.
#![allow(clippy::unwrap_used, reason = "tests panic to report a failure")]

mod cost;
mod crash;
mod damage;
mod formats;
mod model;
mod steps;
