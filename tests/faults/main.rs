//! Random faults: a proxy that damages, cuts and delays the bytes that pass, and signals to any process at any moment.
//!
//! Must hold in every case: a documented exit code, one line with the cause, 0 only if all bytes have
//! arrived, files that are either old or complete new ones, no process and no temporary file left, and a next
//! run that does everything.
//!
//! Each run has a seed. A violation prints the seed, the faults and the output of both ends, and keeps the directory.
//! `RD_SEED=n` repeats that run, `RD_RUNS=n` makes n runs.
//!
//! This program is also the launcher of its commands: like ssh, it forwards the messages
//! between the caller and an agent.

mod copies;
mod kills;
mod launcher;
mod logs;
mod pipelines;
mod plan;
#[path = "../rig/mod.rs"]
mod rig;
mod shells;
mod story;
mod streams;
mod sweep;
mod tree;

use std::process::ExitCode;

const CASES: &[(&str, fn())] = &[
    ("streams_through_a_bad_network", streams::through_a_bad_network),
    ("copies_through_a_bad_network", copies::through_a_bad_network),
    ("pipelines_through_a_bad_network", pipelines::through_a_bad_network),
    ("a_log_tells_of_a_lane_that_is_cut_once_from_each_end", logs::tells_of_a_lane_that_is_cut_once_from_each_end),
    ("a_trace_has_both_ends", logs::a_trace_has_both_ends),
    ("a_trace_is_there_of_a_run_that_fails", logs::a_trace_is_there_of_a_run_that_fails),
    ("a_log_has_no_secrets_in_it", logs::has_no_secrets_in_it),
    ("copies_with_signals_to_any_process", kills::signals_to_any_process),
    ("pipelines_with_signals_to_any_process", pipelines::signals_to_any_process),
    ("commands_through_a_bad_network", shells::through_a_bad_network),
    ("commands_with_signals_to_any_process", shells::signals_to_any_process),
];

fn main() -> ExitCode {
    if std::env::var_os(launcher::IS_LAUNCHER).is_some() {
        return launcher::be_launcher();
    }
    rig::run_cases(CASES)
}
