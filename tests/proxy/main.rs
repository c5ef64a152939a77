//! The session against a network that cuts, damages, stalls and replays: a proxy stands between the two ends.
//!
//! What must hold whatever happens: a run that exits with 0 at either end has written exactly the bytes that were sent.

#[path = "../rig/mod.rs"]
mod rig;

mod cuts;
mod damage;
mod replay;
mod slow;
