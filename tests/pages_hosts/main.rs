//! README and the guide as a newcomer types them: every command line of their code blocks runs, read from the page, on hosts of
//! the names that it uses. `tests/run` makes the hosts, as root, and runs this in them; elsewhere it is not run.

#[path = "../rig/mod.rs"]
mod rig;

mod guide;
mod page;
mod readme;
mod world;
