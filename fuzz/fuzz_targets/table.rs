//! Fuzzes filter tables without checksums, as received by recovery and full syncs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phantom::fuzz::table(bytes));
