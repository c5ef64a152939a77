#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_pipe::cli::complete::fuzz::answered(bytes));
