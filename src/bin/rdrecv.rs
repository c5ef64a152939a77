//! See `rdrecv --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::recv::main()
}
