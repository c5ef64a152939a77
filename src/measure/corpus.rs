//! Runs the fuzz bodies for messages about other hosts as tests, over the corpus in `fuzz/corpus` and over damaged
//! copies of it.

#[allow(clippy::duplicate_mod, reason = "each layer that has fuzz bodies includes it")]
#[path = "../../fuzz/corpus.rs"]
mod runner;

use runner::Body;

use super::encode;
use super::facts::{Address, fuzz_facts};
use super::finding::Outcome;
use super::probe::{Attempt, ProbeRequest, ProbeTargets, fuzz_probes};
use super::recorded::facts;

/// Targets of `fuzz/` that begin with `measure_`, with their bodies.
const TARGETS: &[(&str, Body)] = &[("measure_probes", fuzz_probes), ("measure_facts", fuzz_facts)];

fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let targets = ProbeTargets { port: 47_000, ticket: *b"ticket-of-16-oct", ..ProbeTargets::default() };
    let address = "fd00:9::2".parse().expect("an address");
    let request = ProbeRequest { tcp: vec![Address { ip: address, prefix_bits: 64 }], targets: targets.clone() };
    let attempt = Attempt { address, is_rdma: true, outcome: Outcome::Unreachable(113), micros: 1500 };
    vec![
        ("measure_probes", "targets", encode(&targets)),
        ("measure_probes", "request", encode(&request)),
        ("measure_probes", "attempts", encode(&vec![attempt])),
        ("measure_facts", "badly-tuned", encode(&facts("badly-tuned"))),
        ("measure_facts", "no-device", encode(&facts("no-device"))),
    ]
}

#[test]
fn every_target_has_a_body_and_a_corpus() {
    runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| {
        name.starts_with("measure_") && name != "measure_frame"
    });
}

#[test]
fn corpus_holds_what_this_version_makes() {
    // Facts are left out, because they contain the program's version.
    runner::corpus_holds(&seeds(), |name| name == "measure_probes");
}

#[test]
fn bodies_survive_the_corpus() {
    runner::bodies_survive_the_corpus(TARGETS);
}
