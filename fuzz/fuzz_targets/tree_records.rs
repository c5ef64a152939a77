#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rd_proto::tree::fuzz::tree_records(bytes));
