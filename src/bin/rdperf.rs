//! See `rdperf --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::perf::main()
}
