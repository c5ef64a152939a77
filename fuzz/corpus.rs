//! Tests over the corpus beside this file. Each crate that has fuzz bodies includes this file as a module.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A fuzz target's body.
pub type Body = fn(&[u8]);

/// Number of damaged copies of each file.
const COPIES: u64 = 200;

fn fuzz_dir() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .ancestors()
        .map(|directory| directory.join("fuzz"))
        .find(|fuzz| fuzz.is_dir())
        .expect("fuzz is part of the sources")
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .expect("fuzz is part of the sources")
        .map(|entry| entry.expect("readable").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect()
}

/// Checks that each of the targets that are `ours` has a body, a source and a corpus.
pub fn every_target_has_a_body_and_a_corpus(targets: &[(&str, Body)], ours: impl Fn(&str) -> bool) {
    let expected: BTreeSet<String> = targets.iter().map(|(name, _)| (*name).to_owned()).collect();
    for directory in ["fuzz_targets", "corpus"] {
        let mut found = names(&fuzz_dir().join(directory));
        found.retain(|name| ours(name));
        assert_eq!(found, expected, "{directory}");
    }
}

/// Checks that the seeds (target, name, bytes) are stored; those of `stable` targets byte for byte. With
/// `UPDATE_CORPUS` set, the seeds are written first.
pub fn corpus_holds(seeds: &[(&str, &str, Vec<u8>)], stable: impl Fn(&str) -> bool) {
    for (target, name, bytes) in seeds {
        let path = fuzz_dir().join("corpus").join(target).join(name);
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            fs::create_dir_all(path.parent().expect("a directory")).expect("writable");
            fs::write(&path, bytes).expect("writable");
        }
        let stored = fs::read(&path).expect("a seed for each kind of input");
        assert!(stored == *bytes || !stable(target), "{}", path.display());
    }
}

/// Checks that no body panics on any file of its corpus, or on copies of it with some bytes changed.
pub fn bodies_survive_the_corpus(targets: &[(&str, Body)]) {
    for (target, body) in targets {
        body(&[]);
        for entry in fs::read_dir(fuzz_dir().join("corpus").join(target)).expect("a corpus") {
            let bytes = fs::read(entry.expect("readable").path()).expect("readable");
            body(&bytes);
            for seed in 0..COPIES {
                let mut random = Random(seed);
                let mut copy = bytes.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(copy.len());
                    match random.below(4) {
                        0 => copy.truncate(at + 1),
                        1 => copy[at] = 0xff,
                        _ => copy[at] ^= 1 << random.below(8),
                    }
                }
                body(&copy);
            }
        }
    }
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}
