//! A payload of RESTORE, with a right checksum.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdb::fuzz::payload(bytes));
