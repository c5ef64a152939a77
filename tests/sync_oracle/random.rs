//! Random trees by both programs, and what must be equal then.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::changes::{changed, edged, unlinked, without_temporaries};
use crate::copies::{Way, limited};
use crate::modes::{BASE, MODES, Mode, Selects, patterns};
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, seeds};
use crate::rig::{AGENT, Ended, Random, rdcp};
use crate::snapshot::{Entry, Finding, Snapshot, differences, snapshot};
use crate::tree::{self, Gardener, Kind, Node};

/// Seeds of `make test`.
pub const SEEDS: std::ops::Range<u64> = 1..31;

/// How many the long run takes.
pub const LONG_COUNT: u64 = 300;

/// Lines that report one copy.
const LINES_MAX: usize = 12;

pub const UMASK: u32 = 0o022;

/// Directories that a copy itself changes.
const TIMELESS: &[&[u8]] = &[b"", b"into"];

/// What a destination has gone through.
pub enum History {
    /// Nothing is there.
    New,
    /// An earlier run of the same program, from this source.
    Copied(Node),
    /// Something else.
    Old(Node),
}

/// What a seed has grown.
pub struct Grown {
    pub source: Node,
    pub history: History,
    /// `SRC DST`, which makes DST/src; else `SRC/ DST`.
    pub is_nested: bool,
    pub patterns: Vec<String>,
    /// Paths in the source, and one that is not there.
    pub list: Vec<Vec<u8>>,
    /// One of them is SRC, with `--relative`.
    pub is_relative: bool,
    pub way: Way,
}

pub fn grow(seed: u64, is_new: bool, mode: &Mode) -> Grown {
    let mut random = Random::new(seed);
    for _ in 0..4 {
        random.next();
    }
    let patterns = patterns(&mut random, mode.patterns);
    let mut gardener = Gardener::new(&mut random, false);
    let fit = |node: Node| without_temporaries(if mode.has_links { node } else { unlinked(node) });
    let before = gardener.tree();
    let before = fit(edged(&mut gardener, before));
    let source = fit(changed(&mut gardener, &before));
    let history = match gardener.random.below(8) {
        _ if is_new => History::New,
        0 => History::New,
        1 | 2 => History::Old(fit(gardener.aged(&source, 2))),
        _ => History::Copied(before),
    };
    let is_nested = !is_new && (gardener.random.below(4) == 0 || mode.selects == Selects::Relative);
    let mut list = if mode.selects == Selects::All { Vec::new() } else { some_paths(gardener.random, &source) };
    if mode.selects == Selects::Relative && list.len() == 1 {
        list = vec![b".".to_vec()];
    }
    let way = [Way::Within, Way::Push, Way::Pull, Way::Between][seed as usize % 4];
    Grown { source, history, is_nested, patterns, list, is_relative: mode.selects == Selects::Relative, way }
}

/// A few of the paths in a tree, and some of nothing, also in a directory that is there.
fn some_paths(random: &mut Random, node: &Node) -> Vec<Vec<u8>> {
    fn collect(node: &Node, path: &[u8], all: &mut Vec<Vec<u8>>) {
        let Kind::Directory(entries) = &node.kind else { return };
        for (name, below) in entries {
            let path = if path.is_empty() { name.clone() } else { [path, b"/", name].concat() };
            collect(below, &path, all);
            all.push(path);
        }
    }
    let mut all = Vec::new();
    collect(node, b"", &mut all);
    let mut some: Vec<Vec<u8>> =
        (0..random.below(6)).filter_map(|_| all.get(random.below(all.len().max(1) as u64) as usize).cloned()).collect();
    // Below a file, it would keep rsync from all deletion.
    let beside = |path: &Vec<u8>| {
        let slash = path.iter().rposition(|&byte| byte == b'/')?;
        Some([&path[..slash], b"/nothing"].concat())
    };
    some.extend(some.first().and_then(beside));
    some.push(b"nothing/there".to_vec());
    some
}

/// A laboratory with both states of the source: `before/src`, where an earlier run had one, and `now/src`.
pub fn plant(grown: &Grown) -> Lab {
    let lab = Lab::new();
    for name in ["before", "now"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    if let History::Copied(before) = &grown.history {
        tree::make(&lab.join("before/src"), before);
    }
    tree::make(&lab.join("now/src"), &grown.source);
    fs::write(lab.join("list"), grown.list.join(&0)).expect("a file");
    lab
}

/// A destination of its own for a program, with all that a copy should leave alone beside it.
pub fn scene(lab: &Lab, name: &str, grown: &Grown) -> PathBuf {
    let scene = lab.join(name);
    for directory in ["into", "outside/dir"] {
        fs::create_dir_all(scene.join(directory)).expect("a directory");
    }
    fs::write(scene.join("outside/file"), b"not to be touched").expect("a file");
    let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    for path in ["outside/file", "outside/dir", "outside"] {
        rustix::fs::utimensat(rustix::fs::CWD, scene.join(path), &times, rustix::fs::AtFlags::empty()).expect("ours");
    }
    if let History::Old(old) = &grown.history {
        tree::make(&scene.join("into").join(copy_name(grown)), old);
    }
    scene
}

pub fn copy_name(grown: &Grown) -> &'static str {
    if grown.is_nested { "src" } else { "copy" }
}

/// Source and destination as the command line has them.
pub fn operands(lab: &Lab, scene: &Path, state: &str, grown: &Grown) -> [OsString; 2] {
    let source = lab.join(state).join("src").into_os_string();
    if grown.is_relative && state == "now" {
        let path = [lab.join(state).as_os_str().as_bytes(), b"/./src/", &grown.list[0][..]].concat();
        return [OsStr::from_bytes(&path).to_owned(), scene.join("into").into_os_string()];
    }
    if grown.is_nested {
        return [source, scene.join("into").into_os_string()];
    }
    let contents = [source.as_bytes(), b"/"].concat();
    [OsStr::from_bytes(&contents).to_owned(), scene.join("into/copy").into_os_string()]
}

/// Something that makes one tree of another.
pub trait Program {
    fn run(&self, lab: &Lab, operands: [OsString; 2], mode: &Mode, patterns: &[String]) -> Ended;
}

pub struct Rsync;

/// What rdcp ends with where entries have failed.
const FAILED_ENTRIES: i32 = 8;

/// What rsync ends with where its ends do not understand each other, and where it finds itself in disorder.
const BROKEN: [i32; 2] = [2, 13];

/// What timeout(1) says of a command that it has ended.
pub const TIMED_OUT: i32 = 124;

impl Program for Rsync {
    fn run(&self, lab: &Lab, operands: [OsString; 2], mode: &Mode, patterns: &[String]) -> Ended {
        let mut command = Command::new("rsync");
        command.args(BASE).args(mode.rsync).args(patterns).args(operands);
        let run = || limited(&command, lab.0.path(), false, UMASK, Stdio::null());
        let ended = run();
        // It stands still at times, in a copy within this host. What is left to do another run does.
        if ended.code == TIMED_OUT { run() } else { ended }
    }
}

/// `rdcp -r`, with `--sync` or without.
pub struct Rdcp {
    pub way: Way,
    pub options: &'static [&'static str],
}

impl Program for Rdcp {
    fn run(&self, lab: &Lab, [source, destination]: [OsString; 2], mode: &Mode, patterns: &[String]) -> Ended {
        let on = |host: &str, path: OsString| {
            let mut text = OsString::from(host);
            text.push(path);
            text
        };
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "-q", "--encrypt", "never"]).args(self.options).args(mode.rdcp).args(patterns);
        // rsync deletes also what an empty source leaves.
        command.args(mode.rdcp.iter().any(|option| option.starts_with("--delete")).then_some("--force-empty"));
        command.arg(on(self.way.source(0), source)).arg(on(self.way.destination(), destination));
        limited(&command, lab.0.path(), false, UMASK, Stdio::null())
    }
}

/// What a program has made of a seed.
struct Made {
    ended: Ended,
    got: Snapshot,
    /// Inodes before and after: a file that was sent is a new one, unless it was written in place.
    inodes: [Inodes; 2],
    scene: PathBuf,
}

/// Inode, when it was made (numbers come again), and time of change of all that is there.
pub type Inodes = BTreeMap<Vec<u8>, (u64, Option<SystemTime>, [i64; 2])>;

fn made(lab: &Lab, name: &str, grown: &Grown, mode: &Mode, program: &dyn Program) -> Made {
    let scene = scene(lab, name, grown);
    if let History::Copied(_) = grown.history {
        let first = program.run(lab, operands(lab, &scene, "before", grown), &MODES[0], &[]);
        assert_eq!(first.code, 0, "the first copy by {name}: {}", first.stderr);
    }
    let before = inodes(&scene, &snapshot(&scene));
    let ended = program.run(lab, operands(lab, &scene, "now", grown), mode, &grown.patterns);
    let got = snapshot(&scene);
    let inodes = [before, inodes(&scene, &got)];
    Made { ended, got, inodes, scene }
}

/// The source, by the paths of its copy.
pub fn expected(lab: &Lab, grown: &Grown) -> Snapshot {
    expected_at(lab, &["into/", copy_name(grown)].concat())
}

pub fn expected_at(lab: &Lab, top: &str) -> Snapshot {
    let renamed = |path: &[u8]| if path.is_empty() { top.into() } else { [top.as_bytes(), b"/", path].concat() };
    let found = snapshot(&lab.join("now/src"));
    let entries = found.into_iter().map(|(path, mut entry)| {
        entry.first_name = entry.first_name.map(|name| renamed(&name));
        (renamed(&path), entry)
    });
    entries.collect()
}

/// Whether rdcp has made what the source has, and rsync has not: links and metadata that it misses, never names or data.
pub fn is_meant(finding: &Finding, source: &Snapshot, got: &Snapshot) -> bool {
    let Some(got) = got.get(&finding.path) else { return false };
    // rsync makes a FIFO anew whose names at the destination are not those at the source; rdcp leaves it.
    let is_special_link = finding.what == "first name" && !["file", "link", "directory"].contains(&got.kind);
    // It was to go, or to be replaced, but for what is excluded in it.
    let has_stayed = |source: Option<&Entry>| got.kind == "directory" && source.is_none_or(|it| it.kind != "directory");
    // What rsync gives it of its successor's, rdcp does not.
    let is_changed = finding.what == "modified" || finding.what.starts_with("system.posix_acl");
    if is_changed && has_stayed(source.get(&finding.path)) {
        return true;
    }
    let Some(source) = source.get(&finding.path) else { return is_special_link };
    match finding.what.as_str() {
        "kind" | "content" => false,
        "mode" => source.mode == got.mode,
        "owner" => source.owner == got.owner,
        "modified" => source.modified == got.modified,
        "first name" => is_special_link || source.first_name == got.first_name,
        "bytes on disk" => false,
        attribute => source.attributes.get(attribute) == got.attributes.get(attribute),
    }
}

/// What rdcp has not put into the backup directory, since it has not replaced it: an entry that got other metadata only. And
/// what it has there alone: rsync keeps nothing of a directory that makes way. Directories there have the owners and modes
/// of those at the destination as they were, and with rsync as they became.
fn is_unreplaced(finding: &Finding, reference: &Made, other: &Made) -> bool {
    let path = finding.path.strip_prefix(b"into/").unwrap_or(&finding.path);
    let is_below = path.strip_prefix(b"kept").filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
    let Some(below) = is_below else { return false };
    let Some(theirs) = reference.got.get(&finding.path) else { return true };
    if theirs.kind == "directory" {
        let is_there = other.got.contains_key(&finding.path);
        return is_there
            || !reference.got.keys().any(|key| {
                let inside = key.strip_prefix(&finding.path[..]).is_some_and(|rest| rest.starts_with(b"/"));
                inside && other.got.contains_key(key)
            });
    }
    let now = [if path.len() < finding.path.len() { &b"into/copy"[..] } else { b"into" }, below].concat();
    let is_same = |ours: &Entry| ours.kind == theirs.kind && ours.content == theirs.content;
    !other.got.contains_key(&finding.path) && other.got.get(&now).is_some_and(is_same)
}

/// What rsync 3.5 does to links, to what is newer and to what cannot make way, and rdcp does not.
fn is_of_rsync(finding: &Finding, mode: &Mode, reference: &Made, other: &Made, source: &Snapshot) -> bool {
    let path = &finding.path;
    let was_there = other.inodes[0].contains_key(path);
    let Some(from) = source.get(path) else {
        // A name that is there alone goes on sharing a file that rsync keeps and rdcp may make anew, or the other way round.
        // Where something could not be made, rdcp deletes nothing beside it.
        let is_beside_failure = finding.reference.is_none() && was_there && other.ended.code == FAILED_ENTRIES;
        return finding.what == "first name" || is_beside_failure;
    };
    match finding.what.as_str() {
        // With `--existing`, a name of what is there goes with the first of the names, which is not there and is not made;
        // and with any option, one whose first name could not make way is not made.
        "kind" if finding.reference.is_none() => {
            let is_first_missing = mode.rdcp.contains(&"--existing") && was_there;
            let is_made = other.got.get(path).is_some_and(|got| (got.kind, &got.content) == (from.kind, &from.content));
            is_made && (is_first_missing || reference.ended.stderr.contains("could not make way"))
        }
        "kind" => false,
        // With `--update`, rsync links what is newer to what is older, and does not see what is newer by less than a second.
        what => {
            let is_left = |name: &Vec<u8>| {
                let newer = source.get(name).zip(other.got.get(name)).is_some_and(|(from, got)| {
                    got.kind == "file" && got.modified > from.modified && other.is_kept_at(name)
                });
                newer && mode.rdcp.contains(&"--update")
            };
            let of_its_file =
                |name: &&Vec<u8>| from.first_name.is_some() && source[*name].first_name == from.first_name;
            // What is the same goes on sharing a file with what is left.
            let shared = other.got.get(path).and_then(|got| got.first_name.as_ref());
            let of_what_is_here = |name: &&Vec<u8>| shared.is_some() && other.got[*name].first_name.as_ref() == shared;
            is_left(path)
                || what == "first name"
                    && (source.keys().filter(of_its_file).any(is_left)
                        || other.got.keys().filter(of_what_is_here).any(is_left))
        }
    }
}

/// rsync loses the rights of a group in an ACL where they are those of the mask. It did so in the first copy, and neither has
/// touched the entry since.
fn is_of_first_copy(finding: &Finding, reference: &Made, other: &Made) -> bool {
    let is_untouched = |made: &Made| made.inodes[0].get(&finding.path) == made.inodes[1].get(&finding.path);
    finding.what == "system.posix_acl_access" && is_untouched(reference) && is_untouched(other)
}

/// What is not as in the reference.
fn violations(mode: &Mode, reference: &Made, other: &Made, source: &Snapshot) -> Vec<String> {
    let found = differences(&reference.got, &other.got, TIMELESS);
    // Names of what has no contents are judged each by itself, by what is there.
    let are_judged = ["--existing", "--ignore-existing"].iter().any(|option| mode.rdcp.contains(option));
    let is_single = |finding: &Finding| {
        let has_none = other.got.get(&finding.path).is_some_and(|got| got.kind != "file");
        are_judged && has_none && finding.what == "first name"
    };
    let is_wrong = |finding: &&Finding| {
        let is_known = is_meant(finding, source, &other.got) || is_unreplaced(finding, reference, other);
        !is_known
            && !is_single(finding)
            && !is_of_first_copy(finding, reference, other)
            && !is_of_rsync(finding, mode, reference, other, source)
    };
    let mut lines: Vec<String> = found.iter().filter(is_wrong).map(Finding::shown).collect();
    // rsync 3.5 asks at times for the ACL of a path that it has no right to; what it leaves is compared all the same.
    let is_own_failure = |line: &str| line.contains("sys_acl_get_file") || line.contains("some files/attrs were not");
    let is_defect = reference.ended.code == 23 && reference.ended.stderr.lines().all(is_own_failure);
    if !is_defect && (reference.ended.code == 0) != (other.ended.code == 0) {
        lines.push(format!("rsync ends with {}, rdcp with {}", reference.ended.code, other.ended.code));
    }
    // No more is sent than by rsync.
    let single = |path: &&Vec<u8>| other.got.get(*path).is_some_and(|entry| entry.first_name.is_none());
    let sent = reference.got.keys().filter(single).filter(|path| reference.is_kept(path) && !other.is_kept(path));
    lines.extend(sent.map(|path| format!("{}: rsync keeps the file, rdcp makes a new one", path.escape_ascii())));
    lines
}

impl Made {
    /// Whether what has a name is what had it before.
    fn is_kept_at(&self, path: &Vec<u8>) -> bool {
        let [before, after] = self.inodes.each_ref().map(|inodes| inodes.get(path).map(|state| (state.0, state.1)));
        before.is_some() && before == after
    }

    /// Whether a file of one name is the one that was there before.
    fn is_kept(&self, path: &Vec<u8>) -> bool {
        let is_file = self.got.get(path).is_some_and(|entry| entry.kind == "file" && entry.first_name.is_none());
        is_file && self.is_kept_at(path)
    }
}

pub fn inodes(top: &Path, got: &Snapshot) -> Inodes {
    let state = |path: &Vec<u8>| {
        let stat = fs::symlink_metadata(top.join(OsStr::from_bytes(path))).expect("it was there");
        (path.clone(), (stat.ino(), stat.created().ok(), [stat.ctime(), stat.ctime_nsec()]))
    };
    got.keys().map(state).collect()
}

/// What rdcp is known to do otherwise, in one mode each; names, kinds and data are never among it.
fn is_known(mode: &Mode, line: &str) -> bool {
    match mode.name {
        // A large file is compared beside a partial one, which changes its directory for that time, and one with holes is
        // sent anew.
        "checksum" => line.starts_with("run again it touches") || line.ends_with("rdcp makes a new one"),
        // Where a file stands in place of a directory, rsync gives it the metadata of that; rdcp leaves it, and says so.
        "ignore-existing" => {
            ["modified:", "mode:", "owner:"].iter().any(|what| line.contains(what))
                || line.starts_with("rsync ends with")
        }
        // rsync makes DST itself where it is missing.
        // Neither is given the metadata of the source, whose time a run changes.
        // What only leads to others keeps its time until something comes into it.
        // One that has a default ACL gives it to what is made in it, by rdcp when it is itself done.
        "files-from-no-implied" | "relative-no-implied" => {
            are_of_this_hour(line) || line.contains(": mode: expected 0000")
        }
        "files-from" => line.starts_with("into/copy: modified"),
        "existing" => line == "into/copy: kind: expected directory, rdcp has nothing",
        _ => false,
    }
}

/// Whether a directory has been written to by both: the times are those of the two runs.
fn are_of_this_hour(line: &str) -> bool {
    let Some((_, times)) = line.split_once(": modified: expected ") else { return false };
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("since 1970").as_secs();
    let seconds = |time: &str| time.split('.').next().and_then(|time| time.parse::<u64>().ok());
    let is_recent = |time: &str| seconds(time).is_some_and(|time| time <= now && now - time < 3600);
    times.split_once(", rdcp has ").is_some_and(|(one, other)| is_recent(one) && is_recent(other))
}

/// What is wrong with a seed in a mode, in some lines.
fn check(seed: u64, mode: &Mode, is_new: bool, program: &dyn Fn(Way) -> Box<dyn Program>) -> Vec<String> {
    let grown = grow(seed, is_new, mode);
    let lab = plant(&grown);
    let source = expected(&lab, &grown);
    let reference = made(&lab, "rsync", &grown, mode, &Rsync);
    // Hard links to what could not make way end rsync 3.5 with an index that is none, or one that it has twice.
    // A link at the destination leads it elsewhere, but where somebody else owns that, as these here do.
    if BROKEN.contains(&reference.ended.code) || reference.ended.stderr.contains("refusing to follow a symlink") {
        return Vec::new();
    }
    let program = program(grown.way);
    let other = made(&lab, "rdcp", &grown, mode, &*program);
    // Of a list that comes to one entry, rsync makes DST itself.
    let is_list = mode.name.starts_with("files-from");
    if is_list && reference.got.get(&b"into/copy"[..]).is_some_and(|made| made.kind != "directory") {
        return Vec::new();
    }
    let mut lines = violations(mode, &reference, &other, &source);
    if lines.is_empty() && !is_new && other.ended.code == 0 && reference.ended.code == 0 && mode.is_whole {
        let before = &other.inodes[1];
        let again = program.run(&lab, operands(&lab, &other.scene, "now", &grown), mode, &[]);
        if again.code != 0 {
            lines.push(format!("run again it ends with {}: {}", again.code, again.stderr));
        }
        // What is the same is not touched.
        let after = inodes(&other.scene, &snapshot(&other.scene));
        // What has names of several entries of the source, by a link, gets the metadata of each in turn, as by rsync.
        let is_shared = |path: &Vec<u8>| {
            let first = other.got.get(path).and_then(|got| got.first_name.as_ref());
            first.is_some_and(|first| {
                let mut names = other.got.iter().filter(|(_, got)| got.first_name.as_ref() == Some(first));
                let first_of = |name| source.get(name).map(|from: &Entry| from.first_name.as_ref());
                let of_this = first_of(path);
                other.got[path].kind == "link"
                    && names.any(|(name, _)| first_of(name).is_some_and(|of| of.is_none() || Some(of) != of_this))
            })
        };
        let changed = before.iter().filter(|&(path, state)| after.get(path) != Some(state) && !is_shared(path));
        lines.extend(changed.map(|(path, _)| format!("run again it touches {}", path.escape_ascii())));
    }
    lines.retain(|line| !is_known(mode, line));
    if lines.is_empty() {
        return lines;
    }
    let mut text = format!("seed {seed}, mode {}, {:?}, nested {}:\n", mode.name, grown.way, grown.is_nested);
    for line in lines.iter().take(LINES_MAX) {
        text += &format!("    {line}\n");
    }
    text += &format!("    {} lines in all; patterns {:?}\n", lines.len(), grown.patterns);
    for (name, ended) in [("rsync", &reference.ended), ("rdcp", &other.ended)] {
        for line in ended.stderr.lines().take(4) {
            text += &format!("    {name} {}: {}\n", ended.code, line.chars().take(300).collect::<String>());
        }
    }
    let kept = lab.0.keep();
    vec![text, format!("kept: {}; again: RD_SEED={seed} RD_MODE={}", kept.display(), mode.name)]
}

/// Into nothing, `rdcp -r` makes what rsync makes.
#[test]
fn first_copies_are_what_rsync_makes() {
    let wrong = each(seeds("first copies", SEEDS, LONG_COUNT), |seed| {
        check(seed, &MODES[0], true, &|way| Box::new(Rdcp { way, options: &[] }))
    });
    assert!(wrong == 0, "{wrong} seeds with violations, see above");
}

/// Every mode for every seed, by a program: rsync itself, if what is compared should hold of anybody.
fn each_mode(name: &str, short: std::ops::Range<u64>, program: impl Fn(Way) -> Box<dyn Program> + Sync) {
    let only = std::env::var("RD_MODE").ok();
    let modes: Vec<&Mode> = MODES.iter().filter(|mode| only.as_deref().is_none_or(|only| only == mode.name)).collect();
    assert!(!modes.is_empty(), "RD_MODE is none of modes.rs");
    let seeds = seeds(name, short, LONG_COUNT);
    let (first, count) = (seeds.start, (seeds.end - seeds.start) * modes.len() as u64);
    let wrong = each(0..count, |number| {
        let (seed, mode) = (first + number / modes.len() as u64, modes[(number % modes.len() as u64) as usize]);
        check(seed, mode, false, &program)
    });
    assert!(wrong == 0, "{wrong} of {count} runs with violations, see above");
    eprintln!("{name}: {count} runs, no violation");
}

/// `rdcp --sync` leaves what rsync leaves, in every mode.
#[test]
fn random_trees_are_synchronized_as_by_rsync() {
    each_mode("synchronized", SEEDS, |way| Box::new(Rdcp { way, options: &["--sync"] }));
}

/// What is compared can be had: rsync agrees with itself, and touches nothing when it is run again.
#[test]
fn rsync_agrees_with_itself() {
    each_mode("rsync itself", 1..4, |_| Box::new(Rsync));
}

/// What a mode does shows: rsync with its options and rsync without them do not leave the same. So a program that ignored
/// one would be found.
#[test]
fn the_comparison_sees_each_mode() {
    const TRIES: u64 = 60;
    // What is compared by a window, and what is written in place, looks alike at the end.
    let seen_otherwise = ["plain", "inplace"];
    let modes: Vec<&Mode> = MODES.iter().filter(|mode| !seen_otherwise.contains(&mode.name)).collect();
    let wrong = each(0..modes.len() as u64, |number| {
        let mode = modes[number as usize];
        let differs = (1..TRIES).any(|seed| {
            let grown = grow(seed, false, mode);
            let lab = plant(&grown);
            let source = expected(&lab, &grown);
            let reference = made(&lab, "rsync", &grown, mode, &Rsync);
            let without = Mode { rsync: &[], ..MODES[0] };
            let other = made(&lab, "other", &grown, &without, &Rsync);
            !violations(mode, &reference, &other, &source).is_empty()
        });
        if differs { Vec::new() } else { vec![format!("no seed shows what {} does", mode.name)] }
    });
    assert!(wrong == 0, "{wrong} modes are not seen, see above");
}
