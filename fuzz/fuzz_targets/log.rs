//! Fuzzes log segments, as read by recovery, replicas and the log tools.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::log(bytes));
