//! Fuzzes the records of logs and snapshots: rows, pairs, layouts and catalogues.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dataset::fuzz::records(bytes));
