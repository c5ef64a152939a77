//! Each fuzz target's body, run as a test: over the corpus in `fuzz/corpus`, and over damaged copies of it.
//!
//! `UPDATE_CORPUS=1 cargo test -p rd-proto corpus` writes the seeds anew after a change of format.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::handshake::test_support::rng;
use rand_core::Rng as _;

type Body = fn(&[u8]);

/// Every target of `fuzz/`, and its body.
const TARGETS: &[(&str, Body)] = &[
    ("chunk_header", crate::record::fuzz::chunk_header),
    ("control_channel", crate::handshake::fuzz::control_channel),
    ("control_frame", crate::control::fuzz::control_frame),
    ("decompress", crate::compress::fuzz::decompress),
    ("handshake_connector", crate::handshake::fuzz::connector),
    ("handshake_listener", crate::handshake::fuzz::listener),
    ("record_open", crate::record::fuzz::record_open),
    ("tree_records", crate::tree::fuzz::tree_records),
];

/// Damaged copies of each file.
const COPIES: u64 = 200;

fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    [
        crate::record::fuzz::seeds(),
        crate::tree::fuzz::seeds(),
        crate::compress::fuzz::seeds(),
        crate::handshake::fuzz::seeds(),
        crate::control::fuzz::seeds(),
    ]
    .concat()
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .expect("fuzz is part of the sources")
        .map(|entry| entry.expect("readable").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect()
}

#[test]
fn every_target_has_a_body_and_a_corpus() {
    let expected: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz_dir().join("fuzz_targets")), expected);
    assert_eq!(names(&fuzz_dir().join("corpus")), expected);
}

/// The seeds are whole exchanges of this version, so this also holds the formats still.
#[test]
fn corpus_holds_what_this_version_makes() {
    for (target, name, bytes) in seeds() {
        let path = fuzz_dir().join("corpus").join(target).join(name);
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            fs::create_dir_all(path.parent().expect("a directory")).expect("writable");
            fs::write(&path, &bytes).expect("writable");
        }
        let stored = fs::read(&path).expect("a seed for each kind of input");
        // A compressor may find shorter forms with each of its versions.
        assert!(stored == bytes || target == "decompress", "{}", path.display());
    }
}

#[test]
fn bodies_survive_the_corpus() {
    for (target, body) in TARGETS {
        body(&[]);
        for entry in fs::read_dir(fuzz_dir().join("corpus").join(target)).expect("a corpus") {
            let bytes = fs::read(entry.expect("readable").path()).expect("readable");
            body(&bytes);
            for seed in 0..COPIES {
                let mut rng = rng(seed);
                let mut copy = bytes.clone();
                for _ in 0..1 + rng.next_u32() % 4 {
                    let at = rng.next_u32() as usize % copy.len();
                    match rng.next_u32() % 4 {
                        0 => copy.truncate(at + 1),
                        1 => copy[at] = 0xff,
                        _ => copy[at] ^= 1 << (rng.next_u32() % 8),
                    }
                }
                body(&copy);
            }
        }
    }
}
