//! Commands, compared with a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemark_server::fuzz::commands(bytes));
