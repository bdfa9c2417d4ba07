//! A cold file: its head, its index, and lookups in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::cold(bytes));
