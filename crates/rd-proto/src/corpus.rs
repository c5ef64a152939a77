//! Runs the body of each fuzz target as a test: over the corpus in `fuzz/corpus`, and over damaged copies of it.
//!
//! `UPDATE_CORPUS=1 cargo test -p rd-proto corpus` rewrites the seeds after a change of format.

#[path = "../../../fuzz/corpus.rs"]
mod runner;

use runner::Body;

/// Every target of `fuzz/` except those of the root package, and its body.
const TARGETS: &[(&str, Body)] = &[
    ("broadcast_heads", crate::broadcast::fuzz::broadcast_heads),
    ("broadcast_marks", crate::broadcast::fuzz::broadcast_marks),
    ("chunk_header", crate::record::fuzz::chunk_header),
    ("control_channel", crate::handshake::fuzz::control_channel),
    ("control_frame", crate::control::fuzz::control_frame),
    ("decompress", crate::compress::fuzz::decompress),
    ("handshake_connector", crate::handshake::fuzz::connector),
    ("handshake_listener", crate::handshake::fuzz::listener),
    ("record_open", crate::record::fuzz::record_open),
    ("tree_answer", crate::tree::answer::fuzz::tree_answer),
    ("tree_records", crate::tree::fuzz::tree_records),
];

#[test]
fn every_target_has_a_body_and_a_corpus() {
    let elsewhere = ["agent_", "complete_answer", "measure_", "transport_", "tree_manifest"];
    runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| {
        !elsewhere.iter().any(|begins| name.starts_with(begins))
    });
}

/// The seeds are whole exchanges of this version, so this test also guards the formats against change.
#[test]
fn corpus_holds_what_this_version_makes() {
    let seeds = [
        crate::broadcast::fuzz::seeds(),
        crate::record::fuzz::seeds(),
        crate::tree::fuzz::seeds(),
        crate::tree::answer::fuzz::seeds(),
        crate::compress::fuzz::seeds(),
        crate::handshake::fuzz::seeds(),
        crate::control::fuzz::seeds(),
    ];
    // A compressor may find shorter forms with each new version.
    runner::corpus_holds(&seeds.concat(), |target| target != "decompress");
}

#[test]
fn bodies_survive_the_corpus() {
    runner::bodies_survive_the_corpus(TARGETS);
}
