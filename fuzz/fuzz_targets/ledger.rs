//! Run files of the ledger: note, index and blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ledger::fuzz::run(bytes));
