#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rd_proto::record::fuzz::chunk_header(bytes));
