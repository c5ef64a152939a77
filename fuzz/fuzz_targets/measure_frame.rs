#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_pipe::engine::perf::frames::fuzz::measure_frame(bytes));
