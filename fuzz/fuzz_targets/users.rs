//! Fuzzes the parser of ACL files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::users(bytes));
