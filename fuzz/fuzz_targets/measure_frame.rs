#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rd_proto::control::measure::fuzz::measure_frame(bytes));
