#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_pipe::control::join::fuzz::message(bytes));
