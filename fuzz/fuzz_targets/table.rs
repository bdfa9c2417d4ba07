//! Filter tables, as received by recovery and full syncs, without checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phantom::fuzz::table(bytes));
