//! Fuzzes the reader of snapshot files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::snapshot(bytes));
