//! Fuzzes cold files: the header, the index and lookups.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::cold(bytes));
