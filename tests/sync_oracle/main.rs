//! Compares trees with rsync, an independent oracle. Both programs copy random trees into twin destinations, which hold
//! an earlier run's copies and later changes. Names, kinds, data, metadata and links are compared.
//!
//! `RD_SEED=n` (or `n-m`) repeats seeds, `RD_MODE=NAME` takes one mode of `modes.rs`. The files of a failing seed are
//! kept, and their directory printed.

#[path = "../rig/mod.rs"]
mod rig;

mod changes;
#[allow(dead_code, reason = "cp's oracle uses the rest")]
#[path = "../oracle/copies.rs"]
mod copies;
mod faults;
mod generations;
mod implied;
mod itemize;
mod left;
mod lines;
mod member;
mod modes;
mod random;
#[path = "../oracle/snapshot.rs"]
mod snapshot;
mod stats;
#[allow(dead_code, reason = "cp's oracle uses the rest")]
#[path = "../oracle/tree.rs"]
mod tree;
mod typed;

/// Returns the violations below a line that describes the seed, and keeps its files if there are any violations.
fn told(mut lines: Vec<String>, seed: impl FnOnce() -> String, lab: rig::lab::Lab) -> Vec<String> {
    if !lines.is_empty() {
        lines.insert(0, seed());
        lines.push(format!("kept: {}", lab.0.keep().display()));
    }
    lines
}
