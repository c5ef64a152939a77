//! The agent program. See `rdma-pipe-agent --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cli::agent::main()
}
