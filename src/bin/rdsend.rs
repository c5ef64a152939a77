//! See `rdsend --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::send::main()
}
