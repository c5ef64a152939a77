//! The command line of `rdma-pipe-agent`, the program that runs on other hosts.

use std::process::ExitCode;

use clap::Parser;

use crate::agent::serve::serve;
use crate::fault::Exit;

/// Serve rdcp, rdpipe, rdsh, rdperf or rddoctor on another host
///
/// They start it through ssh on the hosts of a copy, a pipeline or a measurement. It reads its task from standard input
/// and is not meant to be run by hand.
#[derive(Parser, Debug)]
#[command(
    name = "rdma-pipe-agent",
    version,
    override_usage = "rdma-pipe-agent",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::AGENT, EXIT_CODES)
)]
pub struct AgentArguments {}

/// The program's name.
pub(super) const NAME: &str = "rdma-pipe-agent";

/// Exit codes, for the help. They do not tell how a copy ended; the agent's messages do.
const EXIT_CODES: &str = "Exit codes: 0 its task has ended, even if it failed; 1 usage error; 3 could not start; \
    9 protocol error by the caller";

/// Runs the command.
pub fn main() -> ExitCode {
    super::begin();
    super::run(NAME, || match AgentArguments::try_parse() {
        Ok(AgentArguments {}) => serve(),
        Err(error) if error.use_stderr() => Err(Exit::Usage.with(super::wrong::line(&error))),
        Err(error) => super::asked_for(&error),
    })
}
