//! A table of a filter, as recovery and a full sync get it, checksums aside.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phantom::fuzz::table(bytes));
