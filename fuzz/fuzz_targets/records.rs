//! Records of the log and of snapshots: rows, pairs, layouts, catalogues.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dataset::fuzz::records(bytes));
