//! The commands as a user runs them: two processes on one machine over loopback. Tests that need privileges
//! report that they were not run.

#[path = "../rig/mod.rs"]
mod rig;

mod cold;
mod completions;
mod confined;
mod copies;
mod ends;
mod files;
mod forms;
mod limiters;
mod memory;
mod options;
mod page;
mod quiet;
mod settings;
mod strangers;
mod terminal;
mod usage;
