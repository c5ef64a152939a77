//! README and the guide as a newcomer types them: every command line of their code blocks is read from the
//! page and runs on hosts with the names in it. `tests/run` makes the hosts, as root, and runs this in
//! them. Elsewhere it is not run.

#[path = "../rig/mod.rs"]
mod rig;

mod guide;
mod page;
mod readme;
mod world;
