#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rd_proto::tree::answer::fuzz::tree_answer(bytes));
