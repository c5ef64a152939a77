//! Random trees copied onto random destinations.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::copies::{Form, Line, WAYS, Way};
use crate::differences::{ENTRIES, Seen};
use crate::forms::settle;
use crate::report;
use crate::rig::Random;
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, seeds};
use crate::snapshot::{Snapshot, differences, snapshot};
use crate::tree::{self, Gardener, Kind, Node, USER};

/// Seeds of `make test`. They never change, so that a failure was caused by a change of the code.
const SEEDS: std::ops::Range<u64> = 1..51;

/// Number of seeds of `make test-long`, from a random seed on.
const LONG_COUNT: u64 = 1000;

/// The trees and the command line that a seed gives.
struct Grown {
    source: Node,
    /// The entry that already exists under the name of the copy.
    old: Option<Node>,
    /// The directory in which the copy is made.
    into: Node,
    line: Line,
}

fn grow(seed: u64) -> Grown {
    let mut random = Random::new(seed);
    for _ in 0..4 {
        random.next();
    }
    let is_root = rustix::process::geteuid().is_root();
    let is_users = random.below(3) == 0 || !is_root;
    let mut gardener = Gardener::new(&mut random, is_users);
    let source = gardener.tree();
    let old = match gardener.random.below(5) {
        0 => None,
        1 => Some(gardener.node(Kind::Directory(Vec::new()))),
        2 => Some(source.clone()),
        _ => Some(gardener.aged(&source, 2)),
    };
    // The owner may write to this directory. It may have a default ACL, which all new entries
    // inherit, or pass on its group.
    let mut into = gardener.node(Kind::Directory(Vec::new()));
    into.attributes.clear();
    into.mode = gardener.pick(&[0o755, 0o2755, 0o777]);
    if gardener.is_users {
        into.owner = (USER, USER);
    }
    if gardener.random.below(3) == 0 {
        let acl = gardener.acl(0o775);
        into.attributes.push(("system.posix_acl_default", acl));
    }
    let umask = gardener.pick(&[0o022, 0o077, 0, 0o027]);
    let choice = gardener.random.below(3);
    let (form, is_contents, destination) = match (&old, choice) {
        (None, 0) => (Form::Plain, false, "into"),
        (None, _) => (Form::Plain, false, "into/src"),
        (Some(_), 0) => (Form::Plain, false, "into"),
        (Some(_), 1) => (Form::Exact, false, "into/src"),
        (Some(_), _) => (Form::Plain, true, "into/src"),
    };
    let source_path = if is_contents { "src/." } else { "src" };
    let line = Line { form, sources: vec![source_path.into()], destination: destination.into(), is_users, umask };
    Grown { source, old, into, line }
}

/// Makes the files from which a copy starts, and returns its command line.
fn prepare(lab: &Lab, name: &str, grown: &Grown) -> Line {
    let scene = lab.join(name);
    fs::create_dir(&scene).expect("a directory");
    let outside = scene.join("outside");
    fs::create_dir_all(outside.join("dir")).expect("a directory");
    fs::write(outside.join("file"), b"not to be touched").expect("a file");
    settle(&outside);
    let mut into = grown.into.clone();
    if let (Kind::Directory(entries), Some(old)) = (&mut into.kind, &grown.old) {
        entries.push((b"src".to_vec(), old.clone()));
    }
    tree::make(&scene.join("into"), &into);
    let mut line = grown.line.clone();
    let absolute = |base: &Path, path: &OsString| base.join(path).into_os_string();
    line.sources.iter_mut().for_each(|path| *path = absolute(lab.0.path(), path));
    line.destination = absolute(&scene, &line.destination);
    line
}

/// Returns a snapshot with its paths moved below another name.
fn below(whole: &Snapshot, new: &str) -> Snapshot {
    let renamed = |path: &Vec<u8>| match &path[..] {
        b"" => new.as_bytes().to_vec(),
        path => [new.as_bytes(), b"/", path].concat(),
    };
    whole.iter().map(|(path, entry)| (renamed(path), entry.clone())).collect()
}

/// Returns the violations in the copies of one seed.
fn violations(seed: u64, grown: &Grown, used: &Mutex<Vec<&'static str>>) -> Vec<String> {
    let lab = Lab::for_users();
    tree::make(&lab.join("src"), &grown.source);
    let source = below(&snapshot(&lab.join("src")), "into/src");
    let line = prepare(&lab, "cp", grown);
    let before = snapshot(&lab.join("cp"));
    let cp = line.by_cp(&lab, &["--remove-destination"]);
    let reference = snapshot(&lab.join("cp"));
    let mut wrong = Vec::new();
    for &way in WAYS.iter().filter(|&&way| way != Way::Mixed) {
        let name = format!("{way:?}");
        let line = prepare(&lab, &name, grown);
        let ended = line.by_rdcp(&lab, way);
        let got = snapshot(&lab.join(&name));
        let mut lines = Vec::new();
        let (is_users, is_within) = (line.is_users, way == Way::Within);
        let seen = Seen { before: &before, source: &source, reference: &reference, got: &got, is_users, is_within };
        for finding in differences(&reference, &got, &[b"", b"into"]) {
            match ENTRIES.iter().find(|entry| (entry.is_meant)(&finding, &seen)) {
                Some(entry) => used.lock().expect("no panic").push(entry.heading),
                None => lines.push(finding.shown()),
            }
        }
        let allowed = seen.success_where_cp_fails().filter(|_| ended.code == 0);
        if let Some(heading) = allowed {
            used.lock().expect("no panic").push(heading);
        } else if (cp.code == 0) != (ended.code == 0) {
            lines.push(format!("cp ends with {}, rdcp with {}", cp.code, ended.code));
        }
        if !lines.is_empty() {
            wrong.push(report(&format!("seed {seed}"), &line.shown(way), &lines, &cp, &ended));
        }
    }
    if !wrong.is_empty() {
        wrong.push(format!("kept: {}; again: RD_SEED={seed}", lab.0.path().display()));
        std::mem::forget(lab);
    }
    wrong
}

#[test]
fn random_trees_become_what_cp_makes_of_them() {
    let seeds = seeds("random trees", SEEDS, LONG_COUNT);
    let (all, used) = (seeds.end - seeds.start >= SEEDS.end - SEEDS.start, Mutex::new(Vec::new()));
    let count = seeds.end - seeds.start;
    let wrong = each(seeds, |seed| violations(seed, &grow(seed), &used));
    assert!(wrong == 0, "{wrong} seeds with violations, see above");
    eprintln!("random trees: {count} seeds, no violation");
    let used = used.into_inner().expect("no panic");
    let unused: Vec<&str> =
        ENTRIES.iter().map(|entry| entry.heading).filter(|heading| all && !used.contains(heading)).collect();
    assert!(unused.is_empty(), "nothing differs as these say: {unused:?}");
}

/// Found by random seeds: an ACL that is set first takes from users the right to set attributes of their own files.
#[test]
fn attributes_beside_an_acl_that_forbids_writing() {
    let mut grown = grow(0);
    let mut random = Random::new(1);
    let mut gardener = Gardener::new(&mut random, true);
    let closed = |gardener: &mut Gardener<'_>, kind, mode| Node {
        attributes: vec![("system.posix_acl_access", gardener.acl(mode)), ("user.one", b"1".to_vec())],
        mode,
        ..gardener.node(kind)
    };
    let directory = closed(&mut gardener, Kind::Directory(Vec::new()), 0o555);
    let file = closed(&mut gardener, Kind::File(1, vec![(0, 1, 1)]), 0o444);
    let entries = vec![(b"directory".to_vec(), directory), (b"file".to_vec(), file)];
    grown.source = Node { mode: 0o755, ..gardener.node(Kind::Directory(entries)) };
    grown.old = None;
    grown.into = Node { mode: 0o755, attributes: Vec::new(), ..gardener.node(Kind::Directory(Vec::new())) };
    grown.line = Line { form: Form::Plain, is_users: true, destination: "into".into(), ..grown.line };
    grown.line.sources = vec!["src".into()];
    let wrong = violations(0, &grown, &Mutex::default());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
