//! The session over a network that cuts, damages, stalls and replays, by a proxy between the two ends.
//!
//! Must hold in every case: a run in which either end exits with 0 has written exactly the bytes that were sent.

#[path = "../rig/mod.rs"]
mod rig;

mod cuts;
mod damage;
mod replay;
mod slow;
