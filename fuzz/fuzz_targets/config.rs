//! Fuzzes the parser of configuration files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::config(bytes));
