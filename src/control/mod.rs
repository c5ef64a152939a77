//! Control: the remote agent is started, told what to do, and reports.
//!
//! * `frames`: the messages, and their bytes.
//! * `launch`: the launcher (ssh, or another command) as a child process.
//! * `join`: how another command of the user adds a host to a copy that runs.
//! * `channel`: messages over a pair of byte streams, at both ends.
//! * `logs`: an agent's log, on its way to the caller's.
//! * `endpoints`: where an end can be reached, and which of these places to try first.
//! * `tunnel`: connections through the channel, for hosts that can be reached in no other way.
//! * `names`: what a path from a command line means on this host: `~`, patterns.
//! * `stages`: the commands and redirections of a pipeline, and that nothing of them is left.
//!
//! What the messages ask for is done in `agent::end`, by the agent and by the caller for its own end alike.

pub mod channel;
#[cfg(test)]
mod corpus;
pub mod endpoints;
pub mod frames;
pub mod join;
pub mod launch;
pub mod logs;
pub mod names;
pub mod stages;
pub mod tunnel;
