//! Control: starts remote agents, tells them what to do, and receives their reports.
//!
//! * `frames`: the messages, and their encoding.
//! * `launch`: the launcher (ssh, or another command) as a child process.
//! * `join`: how another command of the user adds a host to a running copy.
//! * `channel`: messages over a pair of byte streams, at both ends.
//! * `logs`: an agent's log, on its way to the caller's log.
//! * `endpoints`: the addresses at which an end can be reached, and the order in which to try them.
//! * `tunnel`: connections through the channel, for hosts that cannot be reached in any other way.
//! * `names`: what a path from a command line means on this host: `~`, patterns.
//! * `stages`: the commands and redirections of a pipeline, and the guarantee that no process of them is left.
//!
//! Requests in these messages are carried out in `agent::end`, both by agents and by the caller for its own end.

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
