//! The store's tests, on the simulated disk and on the real one. One binary, one module per topic.

#![allow(clippy::unwrap_used)] // helpers of tests may panic, too

mod backup;
mod basics;
mod clock;
mod cold;
mod commits;
mod crash;
mod damage;
mod formats;
mod pages;
mod tails;
mod turns;
