//! Runs the fuzz bodies of the transports as tests, over the corpus in `fuzz/corpus` and over damaged copies of it.

#[path = "../../fuzz/corpus.rs"]
pub(crate) mod runner;

use runner::Body;

use super::{rdma, tcp};

/// The targets of `fuzz/` whose names begin with `transport_`, and their bodies.
const TARGETS: &[(&str, Body)] = &[
    ("transport_rdma_control", rdma::fuzz::control_messages),
    ("transport_rdma_request", rdma::fuzz::request),
    ("transport_tcp", tcp::fuzz::records),
];

#[test]
fn every_target_has_a_body_and_a_corpus() {
    runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| name.starts_with("transport_"));
}

#[test]
fn corpus_holds_what_this_version_makes() {
    runner::corpus_holds(&[rdma::fuzz::seeds(), tcp::fuzz::seeds()].concat(), |_| true);
}

#[test]
fn bodies_survive_the_corpus() {
    runner::bodies_survive_the_corpus(TARGETS);
}
