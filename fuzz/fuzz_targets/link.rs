//! Fuzzes a link between a master and a replica through a hostile intermediary.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| replication::fuzz::link(bytes));
