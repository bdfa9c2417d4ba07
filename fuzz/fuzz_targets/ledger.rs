//! A run of the ledger: its note, its index, its blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ledger::fuzz::run(bytes));
