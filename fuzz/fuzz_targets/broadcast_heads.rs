#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rd_proto::broadcast::fuzz::broadcast_heads(bytes));
