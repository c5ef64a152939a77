//! The command line of `rdma-pipe-agent`, the program that runs on other hosts.

use std::process::ExitCode;

use clap::Parser;

use crate::agent::serve::serve;
use crate::fault::{Exit, Failure};

/// Serve rdcp, rdpipe, rdsh, rdperf or rddoctor on another host
///
/// Started by them, through ssh, on the hosts of a copy, a pipeline or a measurement. It takes what is to be done from
/// its standard input and has no use by hand.
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
const EXIT_CODES: &str = "Exit codes: 0 its part is over, however it went; 1 usage; 3 it could not start; \
    9 its caller does not keep to the protocol";

/// Runs the command.
pub fn main() -> ExitCode {
    super::begin();
    super::run(NAME, || match AgentArguments::try_parse() {
        Ok(AgentArguments {}) => serve(),
        Err(error) if error.use_stderr() => Err(Failure::new(Exit::Usage, super::wrong::line(&error))),
        Err(error) => super::asked_for(&error),
    })
}
