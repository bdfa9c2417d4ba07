//! Commands, beside a model of what they do.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::commands(bytes));
