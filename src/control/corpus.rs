//! Runs the fuzz bodies of the agents' messages, and of the messages that add a host, as tests: over the corpus in
//! `fuzz/corpus`, and over damaged copies of it.

use super::frames::fuzz;
use super::join;
use crate::transport::tests::runner::{self, Body};

/// The targets of `fuzz/` whose names begin with `agent_`, with their bodies.
const TARGETS: &[(&str, Body)] = &[("agent_message", fuzz::message), ("agent_join", join::fuzz::message)];

#[test]
fn every_target_has_a_body_and_a_corpus() {
    runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| name.starts_with("agent_"));
}

#[test]
fn corpus_holds_what_this_version_makes() {
    runner::corpus_holds(&fuzz::seeds(), |_| true);
    runner::corpus_holds(&join::fuzz::seeds(), |_| true);
}

#[test]
fn bodies_survive_the_corpus() {
    runner::bodies_survive_the_corpus(TARGETS);
}
