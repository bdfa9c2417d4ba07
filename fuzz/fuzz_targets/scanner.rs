//! Fuzzes the request scanner. Compares its result with redis-protocol, and with a scan of the same
//! bytes in pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::scanner(bytes));
