//! Fuzzes RESTORE payloads that have a valid checksum.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdb::fuzz::payload(bytes));
