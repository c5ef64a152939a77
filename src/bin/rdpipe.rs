//! See `rdpipe --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::rdpipe::main()
}
