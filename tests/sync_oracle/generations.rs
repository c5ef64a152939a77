//! `--link-dest` beside rsync's: random trees, an earlier generation of each program, and the next one linked to it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::modes::{MODES, Mode, same};
use crate::random::{Grown, History, Program, Rdcp, Rsync, expected_at, grow, is_meant, plant, scene};
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, seeds};
use crate::snapshot::{Finding, Snapshot, differences, snapshot};

const SEEDS: std::ops::Range<u64> = 1..31;
const LONG_COUNT: u64 = 300;

const LINKED: Mode = same("link-dest", &["--link-dest=../one", "--delete"]);

fn operands(lab: &Lab, scene: &Path, state: &str, to: &str, is_nested: bool) -> [OsString; 2] {
    let source = lab.join(state).join("src").into_os_string();
    let slash: &[u8] = if is_nested { b"" } else { b"/" };
    let source = OsStr::from_bytes(&[source.as_bytes(), slash].concat()).to_owned();
    [source, scene.join("into").join(to).into_os_string()]
}

/// What a program has made: one generation, then the next.
struct Made {
    got: Snapshot,
    lines: Vec<String>,
}

fn made(lab: &Lab, name: &str, grown: &Grown, program: &dyn Program) -> Made {
    let scene = scene(lab, name, grown);
    let state = if matches!(grown.history, History::Copied(_)) { "before" } else { "now" };
    let mut lines = Vec::new();
    let first = program.run(lab, operands(lab, &scene, state, "one", grown.is_nested), &MODES[0], &[]);
    let before = snapshot(&scene.join("into/one"));
    let next = program.run(lab, operands(lab, &scene, "now", "two", grown.is_nested), &LINKED, &[]);
    for ended in [first, next] {
        if ended.code != 0 {
            lines.push(format!("{name} ends with {}: {}", ended.code, ended.stderr));
        }
    }
    let mut after = snapshot(&scene.join("into/one"));
    // Its names outside count for nothing.
    for (path, entry) in &mut after {
        entry.first_name = before.get(path).and_then(|entry| entry.first_name.clone());
    }
    lines.extend(differences(&before, &after, &[]).iter().map(|finding| format!("changed: {}", finding.shown())));
    Made { got: snapshot(&scene), lines }
}

fn check(seed: u64) -> Vec<String> {
    let grown = grow(seed, false, &LINKED);
    let lab = plant(&grown);
    let top = if grown.is_nested { "into/two/src" } else { "into/two" };
    let source = expected_at(&lab, top);
    let reference = made(&lab, "rsync", &grown, &Rsync);
    let other = made(&lab, "rdcp", &grown, &Rdcp { way: grown.way, options: &["--sync"] });
    let timeless: &[&[u8]] = &[b"", b"into", b"into/one", b"into/two"];
    let timeless = if grown.is_nested { timeless } else { &timeless[..2] };
    let is_wrong = |finding: &&Finding| {
        // Links and special files are made anew; rsync links them as well. A file that rsync gives a new inode although all
        // of it is the same may be linked.
        let is_file = other.got.get(&finding.path).is_some_and(|entry| entry.kind == "file");
        let is_of_links = finding.what == "first name" && !is_file;
        !is_of_links && !is_meant(finding, &source, &other.got)
    };
    let found = differences(&reference.got, &other.got, timeless);
    let mut lines: Vec<String> = found.iter().filter(is_wrong).map(Finding::shown).collect();
    lines.extend(other.lines);
    if !lines.is_empty() {
        lines.insert(0, format!("seed {seed}, {:?}, nested {}", grown.way, grown.is_nested));
        lines.push(format!("kept: {}", lab.0.keep().display()));
    }
    lines
}

/// What is linked to the earlier generation, what is new, and what becomes of the earlier one are as with rsync.
#[test]
fn the_next_generation_is_what_rsync_makes() {
    let wrong = each(seeds("generations", SEEDS, LONG_COUNT), check);
    assert!(wrong == 0, "{wrong} seeds with violations, see above");
}
