//! Tests of the ledger's public API.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod cost;
mod crash;
mod damage;
mod formats;
mod model;
mod steps;
