//! The caller: starts the hosts of a command, has their ends meet, runs what is to be done, and learns what came of it.

pub mod copy;
pub mod launching;
pub mod measure;
pub mod pipeline;
pub mod plan;
