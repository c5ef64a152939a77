//! See `rdcp --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::rdcp::main()
}
