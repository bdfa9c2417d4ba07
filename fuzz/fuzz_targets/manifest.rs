//! Fuzzes the decoder of manifests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::manifest(bytes));
