//! Fuzzes commands and compares their replies with a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::commands(bytes));
