//! Compares `--link-dest` with rsync's: random trees, an earlier generation by each program, and
//! the next one linked to it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::changes::{changed, without_temporaries};
use crate::copies::limited;
use crate::faults::{WAYS, command, kill_within};
use crate::modes::{MODES, Mode, same};
use crate::random::{Grown, History, Program, Rdcp, Rsync, expected_at, grow, is_meant, plant, scene};
use crate::rig::Random;
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, is_long, seeds};
use crate::snapshot::{Entry, Finding, Snapshot, differences, snapshot};
use crate::told;
use crate::tree::{self, Gardener};

const SEEDS: std::ops::Range<u64> = 1..31;
const LONG_COUNT: u64 = 300;

const LINKED: Mode = same("link-dest", &["--link-dest=../one", "--delete"]);

fn operands(lab: &Lab, scene: &Path, state: &str, to: &str, is_nested: bool) -> [OsString; 2] {
    let source = lab.join(state).join("src").into_os_string();
    let slash: &[u8] = if is_nested { b"" } else { b"/" };
    let source = OsStr::from_bytes(&[source.as_bytes(), slash].concat()).to_owned();
    [source, scene.join("into").join(to).into_os_string()]
}

/// The generations that a program has made, one after the other.
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
    // Names of the file outside this generation do not count.
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
        // rdcp makes links and special files anew; rsync links them as well. rdcp may link a file to which rsync gives
        // a new inode although all of it is the same.
        let is_file = other.got.get(&finding.path).is_some_and(|entry| entry.kind == "file");
        let is_of_links = finding.what == "first name" && !is_file;
        !is_of_links && !is_meant(finding, &source, &other.got)
    };
    let found = differences(&reference.got, &other.got, timeless);
    let mut lines: Vec<String> = found.iter().filter(is_wrong).map(Finding::shown).collect();
    lines.extend(other.lines);
    told(lines, || format!("seed {seed}, {:?}, nested {}", grown.way, grown.is_nested), lab)
}

/// Links to the earlier generation, new entries, and the earlier generation itself are as with rsync.
#[test]
fn the_next_generation_is_what_rsync_makes() {
    let wrong = each(seeds("generations", SEEDS, LONG_COUNT), check);
    assert!(wrong == 0, "{wrong} seeds with violations, see above");
}

/// Number of campaigns in `make test`, and in the long run.
const KILLS: [u64; 2] = [3, 40];
const ROUNDS: u64 = 5;

fn leads_to(lab: &Lab) -> Option<OsString> {
    fs::read_link(lab.join("dst/latest")).ok().map(PathBuf::into_os_string)
}

/// Gives each file a time that depends on its contents. Otherwise only a checksum would find different contents.
fn time_by_contents(top: &Path) {
    for (path, entry) in snapshot(top).into_iter().filter(|(_, entry)| entry.kind == "file") {
        let hash = blake3::hash(entry.content.as_bytes());
        let seconds = u32::from_le_bytes(hash.as_bytes()[..4].try_into().expect("of 32"));
        let time = rustix::fs::Timespec { tv_sec: seconds.into(), tv_nsec: 7 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let path = top.join(OsStr::from_bytes(&path));
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).expect("ours");
    }
}

/// Whether the finding is a hard link left by a killed run between names that are equal but separate files at the
/// source now. `rsync -H` leaves such links too. Names of one file at the source must be one file here.
fn stays_linked(finding: &Finding, source: &Snapshot, got: &Snapshot) -> bool {
    let names = |of: &Snapshot| -> Vec<Vec<u8>> {
        let group = of.get(&finding.path).and_then(|entry| entry.first_name.clone());
        let all = of.iter().filter(|(_, entry)| group.is_some() && entry.first_name == group);
        all.map(|(path, _)| path.clone()).collect()
    };
    let alone =
        |path: &[u8]| source.get(path).map(|entry| Entry { first_name: None, allocated_bytes: 0, ..entry.clone() });
    let (of_source, here) = (names(source), names(got));
    finding.what == "first name"
        && !here.is_empty()
        && here.iter().all(|path| alone(path).is_some_and(|entry| entry.kind == "file"))
        && here.iter().all(|path| alone(path) == alone(&finding.path))
        && of_source.iter().all(|path| here.contains(path))
}

/// Generations of a changing tree, each killed at several moments. When run again under the same name, a
/// generation follows the source until it is complete. Older generations do not change, and the link always leads
/// to a complete generation.
#[test]
fn killed_generations_go_on_and_older_ones_stay() {
    let mut random = Random::printed("generations killed");
    let (mut killed, mut met) = (0, 0);
    for number in 0..KILLS[usize::from(is_long())] {
        let lab = Lab::new();
        fs::create_dir(lab.join("dst")).expect("a directory");
        let way = WAYS[number as usize % WAYS.len()];
        let mut gardener = Gardener::new(&mut random, false);
        let mut node = without_temporaries(gardener.tree());
        let mut older: Vec<(String, Snapshot)> = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("g{round}");
            let option = format!("--snapshot={name}");
            let command = || command(&lab, way, &[&option, "--delete", "--force-empty"]);
            for is_killed in [true, true, false] {
                let mut gardener = Gardener::new(&mut random, false);
                node = without_temporaries(changed(&mut gardener, &node));
                let _ = fs::remove_dir_all(lab.join("src"));
                tree::make(&lab.join("src"), &node);
                time_by_contents(&lab.join("src"));
                let before = leads_to(&lab);
                // A complete generation does not change any more.
                if before.as_deref() == Some(OsStr::new(&name)) {
                    let whole = snapshot(&lab.join("dst"));
                    limited(&command(), lab.0.path(), false, 0o022, Stdio::null()).expect(1);
                    let found = differences(&whole, &snapshot(&lab.join("dst")), &[]);
                    assert!(found.is_empty(), "{number}, {way:?}, {name} has changed");
                    continue;
                }
                if is_killed {
                    // Some kills come at any moment of a long run, some within a very short run.
                    let moments = if way == ("", "") { [8, 40] } else { [30, 150] };
                    let milliseconds = moments[random.below(2) as usize];
                    killed += 1;
                    met += u64::from(kill_within(&lab, &mut command(), &mut random, milliseconds));
                } else {
                    limited(&command(), lab.0.path(), false, 0o022, Stdio::null()).expect(0);
                }
                let after = leads_to(&lab);
                assert!(after == before || after.as_deref() == Some(OsStr::new(&name)), "{before:?}, then {after:?}");
                if !is_killed || after != before {
                    let source = snapshot(&lab.join("src"));
                    let got = snapshot(&lab.join("dst").join(&name));
                    let found = differences(&source, &got, &[]);
                    // Data written by an interrupted run may fill a hole.
                    let is_wrong =
                        |finding: &&Finding| finding.what != "bytes on disk" && !stays_linked(finding, &source, &got);
                    let found: Vec<String> = found.iter().filter(is_wrong).map(Finding::shown).collect();
                    assert!(found.is_empty(), "{number}, {way:?}, {name}:\n{}", found.join("\n"));
                    assert_eq!(after, Some(name.clone().into()));
                }
                for (name, before) in &older {
                    let found = differences(before, &snapshot(&lab.join("dst").join(name)), &[]);
                    let found: Vec<String> = found.iter().map(Finding::shown).collect();
                    assert!(found.is_empty(), "{number}, {way:?}, {name} has changed:\n{}", found.join("\n"));
                }
            }
            let whole = snapshot(&lab.join("dst").join(&name));
            older.push((name, whole));
        }
        let names = fs::read_dir(lab.join("dst")).expect("it").count() as u64;
        assert_eq!(names, ROUNDS + 1, "nothing else is left");
    }
    assert!(met > 0, "none of {killed} copies was running when one of its ends was killed");
}
