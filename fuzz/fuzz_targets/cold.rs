//! Cold files: head, index and lookups.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::cold(bytes));
