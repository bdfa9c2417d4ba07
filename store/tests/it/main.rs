//! Tests of the store on simulated and real disks. There is one binary, with one module per topic.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

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
