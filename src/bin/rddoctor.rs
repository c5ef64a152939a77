//! See `rddoctor --help`.

fn main() -> std::process::ExitCode {
    rdma_pipe::cmd::doctor::main()
}
