//! Tests that run the `tidemark` binary as a process: signals, kill -9, failing disks, Sentinel.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod attacks;
mod backup;
mod cold_alter;
mod cold_files;
mod cold_kill;
mod demo;
mod documentation;
mod exact;
mod failover;
mod faults;
mod folder;
mod follow;
mod fresh;
mod full_disk;
mod handover;
mod idle;
mod import;
mod ingest;
mod kill;
mod links;
mod memory;
mod orders;
mod outage;
mod packaging;
mod promotion;
mod rebuild;
mod replicas;
mod scenes;
mod signals;
mod size;
mod suites;
mod together;
mod tokens;
mod upgrade;
mod write_behind;
