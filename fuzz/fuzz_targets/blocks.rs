//! Blocks of a filter, as TM.MERGE gets them, checksums aside.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phantom::fuzz::blocks(bytes));
