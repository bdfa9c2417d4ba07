//! Segments of the log, as recovery, replicas and operators read them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::log(bytes));
