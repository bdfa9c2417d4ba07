//! Fuzzes the run files of the ledger: header, index and blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ledger::fuzz::run(bytes));
