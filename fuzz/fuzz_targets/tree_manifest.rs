#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_pipe::tree::manifest::fuzz::manifest(bytes));
