//! Fuzzes glob patterns and the parser of integers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::words(bytes));
