//! RESTORE payloads with a valid checksum.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdb::fuzz::payload(bytes));
