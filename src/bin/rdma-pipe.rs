//! `rdcp`, `rdsend`, `rdrecv`, `rdpipe`, `rdsh`, `rdperf` and `rddoctor`: one program under several names.

fn main() -> std::process::ExitCode {
    rdma_pipe::cli::main()
}
