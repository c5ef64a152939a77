//! Copies random trees with both programs, and compares the results.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Number of seeds in the long run.
pub const LONG_COUNT: u64 = 300;

/// Of a run with this many seeds or more, at least half must be compared.
const JUDGED_MIN: u64 = 20;

/// Maximum number of lines that report one copy.
const LINES_MAX: usize = 12;

pub const UMASK: u32 = 0o022;

/// Directories whose times the copy itself changes.
const TIMELESS: &[&[u8]] = &[b"", b"into"];

/// State of a destination before the copy.
pub enum History {
    /// The destination is missing.
    New,
    /// The same program has copied this source before.
    Copied(Node),
    /// The destination contains another tree.
    Old(Node),
}

/// The trees and options that a seed gives.
pub struct Grown {
    pub source: Node,
    pub history: History,
    /// Whether the operands are `SRC DST`, which makes DST/src, instead of `SRC/ DST`.
    pub is_nested: bool,
    pub patterns: Vec<String>,
    /// Paths in the source, and one that does not exist.
    pub list: Vec<Vec<u8>>,
    /// Whether SRC is one of these paths, with `--relative`.
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

/// Returns a few of the tree's paths, and paths of missing entries, also in an existing directory.
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
    // A missing path below a file would keep rsync from deleting anything.
    let beside = |path: &Vec<u8>| {
        let slash = path.iter().rposition(|&byte| byte == b'/')?;
        Some([&path[..slash], b"/nothing"].concat())
    };
    some.extend(some.first().and_then(beside));
    some.push(b"nothing/there".to_vec());
    some
}

/// Makes a laboratory with both states of the source: `before/src`, if there was an earlier run, and `now/src`.
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

/// Makes a separate destination for a program, beside entries that a copy should leave alone.
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

/// Returns source and destination for the command line.
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

/// A program that copies one tree onto another.
pub trait Program {
    fn run(&self, lab: &Lab, operands: [OsString; 2], mode: &Mode, patterns: &[String]) -> Ended;
}

pub struct Rsync;

/// Exit code of rdcp if entries have failed.
const FAILED_ENTRIES: i32 = 8;

/// Exit codes of rsync for a protocol mismatch between its ends, and for an internal error.
const BROKEN: [i32; 2] = [2, 13];

/// Exit code of timeout(1) if it has killed its command.
pub const TIMED_OUT: i32 = 124;

impl Program for Rsync {
    fn run(&self, lab: &Lab, operands: [OsString; 2], mode: &Mode, patterns: &[String]) -> Ended {
        let mut command = Command::new("rsync");
        command.args(BASE).args(mode.rsync).args(patterns).args(operands);
        let run = || limited(&command, lab.0.path(), false, UMASK, Stdio::null());
        let ended = run();
        // rsync hangs at times in a copy within this host. Another run does what is left.
        if ended.code == TIMED_OUT { run() } else { ended }
    }
}

/// Runs `rdcp -r`, with or without `--sync`.
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
        // rsync also deletes if the source is empty.
        command.args(mode.rdcp.iter().any(|option| option.starts_with("--delete")).then_some("--force-empty"));
        command.arg(on(self.way.source(0), source)).arg(on(self.way.destination(), destination));
        limited(&command, lab.0.path(), false, UMASK, Stdio::null())
    }
}

/// Result of a program for a seed.
struct Made {
    ended: Ended,
    got: Snapshot,
    /// Inodes before and after. A file that was sent has a new inode, unless it was written in place.
    inodes: [Inodes; 2],
    scene: PathBuf,
}

/// Inode number, creation time (because numbers are reused), and time of change of every entry.
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

/// Returns the source's entries by the paths of their copies.
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

/// Whether rdcp has preserved a link or metadata of the source that rsync misses. Names and data are never excused.
pub fn is_meant(finding: &Finding, source: &Snapshot, got: &Snapshot) -> bool {
    let Some(got) = got.get(&finding.path) else { return false };
    // rsync makes a FIFO anew if its names at the destination differ from those at the source; rdcp leaves it.
    let is_special_link = finding.what == "first name" && !["file", "link", "directory"].contains(&got.kind);
    // The directory was to be deleted or replaced, but contains excluded entries.
    let has_stayed = |source: Option<&Entry>| got.kind == "directory" && source.is_none_or(|it| it.kind != "directory");
    // rsync gives the directory some metadata of its successor; rdcp does not.
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

/// Whether the finding is an intended difference in the backup directory. rdcp does not back up an entry of which
/// only the metadata changed, because it has not replaced the entry. rdcp alone backs up the contents of a
/// directory that makes way. rdcp's backup directories have the owners and modes from before the copy, and
/// rsync's those from after it.
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

/// Whether the finding comes from rsync 3.5's own treatment of links, newer files, and entries that cannot make way.
fn is_of_rsync(finding: &Finding, mode: &Mode, reference: &Made, other: &Made, source: &Snapshot) -> bool {
    let path = &finding.path;
    let was_there = other.inodes[0].contains_key(path);
    let Some(from) = source.get(path) else {
        // A name that exists only at the destination goes on sharing a file that rsync keeps and rdcp may make anew, or
        // the other way round. If an entry could not be made, rdcp deletes nothing beside it.
        let is_beside_failure = finding.reference.is_none() && was_there && other.ended.code == FAILED_ENTRIES;
        return finding.what == "first name" || is_beside_failure;
    };
    match finding.what.as_str() {
        // With `--existing`, rsync loses an existing name if the first name of its file does not exist and so is not
        // made. With any option, rsync does not make a name if the first name of its file could not make way.
        "kind" if finding.reference.is_none() => {
            let is_first_missing = mode.rdcp.contains(&"--existing") && was_there;
            let is_made = other.got.get(path).is_some_and(|got| (got.kind, &got.content) == (from.kind, &from.content));
            is_made && (is_first_missing || reference.ended.stderr.contains("could not make way"))
        }
        "kind" => false,
        // With `--update`, rsync links newer files to older ones, and ignores a difference of less than a second.
        what => {
            let is_left = |name: &Vec<u8>| {
                let newer = source.get(name).zip(other.got.get(name)).is_some_and(|(from, got)| {
                    got.kind == "file" && got.modified > from.modified && other.is_kept_at(name)
                });
                newer && mode.rdcp.contains(&"--update")
            };
            let of_its_file =
                |name: &&Vec<u8>| from.first_name.is_some() && source[*name].first_name == from.first_name;
            // A name whose file has not changed goes on sharing it with names that are left.
            let shared = other.got.get(path).and_then(|got| got.first_name.as_ref());
            let of_what_is_here = |name: &&Vec<u8>| shared.is_some() && other.got[*name].first_name.as_ref() == shared;
            is_left(path)
                || what == "first name"
                    && (source.keys().filter(of_its_file).any(is_left)
                        || other.got.keys().filter(of_what_is_here).any(is_left))
        }
    }
}

/// Whether rsync has lost a group's rights in an ACL, which it does if they equal those of the mask. It did so in the
/// first copy, and neither program has touched the entry since.
fn is_of_first_copy(finding: &Finding, reference: &Made, other: &Made) -> bool {
    let is_untouched = |made: &Made| made.inodes[0].get(&finding.path) == made.inodes[1].get(&finding.path);
    finding.what == "system.posix_acl_access" && is_untouched(reference) && is_untouched(other)
}

/// Returns the differences from the reference.
fn violations(mode: &Mode, reference: &Made, other: &Made, source: &Snapshot) -> Vec<String> {
    let found = differences(&reference.got, &other.got, TIMELESS);
    // Further names of entries without contents are judged one by one, by what exists at the destination.
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
    // rsync 3.5 sometimes asks for the ACL of a path that it may not access. Its result is compared even so.
    let is_own_failure = |line: &str| line.contains("sys_acl_get_file") || line.contains("some files/attrs were not");
    let is_defect = reference.ended.code == 23 && reference.ended.stderr.lines().all(is_own_failure);
    if !is_defect && (reference.ended.code == 0) != (other.ended.code == 0) {
        lines.push(format!("rsync ends with {}, rdcp with {}", reference.ended.code, other.ended.code));
    }
    // rdcp sends no more files than rsync.
    let single = |path: &&Vec<u8>| other.got.get(*path).is_some_and(|entry| entry.first_name.is_none());
    let sent = reference.got.keys().filter(single).filter(|path| reference.is_kept(path) && !other.is_kept(path));
    lines.extend(sent.map(|path| format!("{}: rsync keeps the file, rdcp makes a new one", path.escape_ascii())));
    lines
}

impl Made {
    /// Whether the name still belongs to the same inode as before.
    fn is_kept_at(&self, path: &Vec<u8>) -> bool {
        let [before, after] = self.inodes.each_ref().map(|inodes| inodes.get(path).map(|state| (state.0, state.1)));
        before.is_some() && before == after
    }

    /// Whether a file with a single name has the same inode as before.
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

/// Whether the difference is known for this mode. Names, kinds and data are never excused.
fn is_known(mode: &Mode, line: &str) -> bool {
    match mode.name {
        // While a large file is compared, a partial file beside it changes the time of its directory. A large
        // file with holes is sent anew.
        "checksum" => line.starts_with("run again it touches") || line.ends_with("rdcp makes a new one"),
        // If a file is in the place of a directory, rsync gives it the directory's metadata. rdcp
        // leaves the file and reports it.
        "ignore-existing" => {
            ["modified:", "mode:", "owner:"].iter().any(|what| line.contains(what))
                || line.starts_with("rsync ends with")
        }
        // rsync makes a missing DST itself. Neither program gives DST the metadata of the source, and a run changes the
        // time of DST. A directory that only leads to copied entries keeps its time until an entry is made in it. A
        // directory passes its default ACL on to new entries; with rdcp, it does so once it is complete.
        "files-from-no-implied" | "relative-no-implied" => {
            are_of_this_hour(line) || line.contains(": mode: expected 0000")
        }
        "files-from" => line.starts_with("into/copy: modified"),
        "existing" => line == "into/copy: kind: expected directory, rdcp has nothing",
        _ => false,
    }
}

/// Whether both programs have written to a directory, so that its times are those of the two runs.
fn are_of_this_hour(line: &str) -> bool {
    let Some((_, times)) = line.split_once(": modified: expected ") else { return false };
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("since 1970").as_secs();
    let seconds = |time: &str| time.split('.').next().and_then(|time| time.parse::<u64>().ok());
    let is_recent = |time: &str| seconds(time).is_some_and(|time| time <= now && now - time < 3600);
    times.split_once(", rdcp has ").is_some_and(|(one, other)| is_recent(one) && is_recent(other))
}

/// Returns the violations of a seed in a mode, in several lines; or `None` if what rsync made cannot be compared.
fn check(seed: u64, mode: &Mode, is_new: bool, program: &dyn Fn(Way) -> Box<dyn Program>) -> Option<Vec<String>> {
    let grown = grow(seed, is_new, mode);
    let lab = plant(&grown);
    let source = expected(&lab, &grown);
    let reference = made(&lab, "rsync", &grown, mode, &Rsync);
    // Hard links to an entry that could not make way end rsync 3.5 with an invalid or a duplicate index. rsync follows
    // a link at the destination, unless another user owns it, as is the case here.
    if BROKEN.contains(&reference.ended.code) || reference.ended.stderr.contains("refusing to follow a symlink") {
        return None;
    }
    let program = program(grown.way);
    let other = made(&lab, "rdcp", &grown, mode, &*program);
    // If a list amounts to a single entry, rsync makes that entry DST itself.
    let is_list = mode.name.starts_with("files-from");
    if is_list && reference.got.get(&b"into/copy"[..]).is_some_and(|made| made.kind != "directory") {
        return None;
    }
    let mut lines = violations(mode, &reference, &other, &source);
    if lines.is_empty() && !is_new && other.ended.code == 0 && reference.ended.code == 0 && mode.is_whole {
        let before = &other.inodes[1];
        let again = program.run(&lab, operands(&lab, &other.scene, "now", &grown), mode, &[]);
        if again.code != 0 {
            lines.push(format!("run again it ends with {}: {}", again.code, again.stderr));
        }
        // Unchanged entries are not touched.
        let after = inodes(&other.scene, &snapshot(&other.scene));
        // If a link has names of several source entries, it gets the metadata of each in turn, as with rsync.
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
        return Some(lines);
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
    Some(vec![text, format!("kept: {}; again: RD_SEED={seed} RD_MODE={}", kept.display(), mode.name)])
}

/// Checks that enough seeds were compared: agreement means nothing if rsync fails with most of them.
#[track_caller]
fn are_compared(what: &str, compared: u64, seeds: u64) {
    eprintln!("{what}: {compared} of {seeds} seeds compared");
    assert!(seeds < JUDGED_MIN || 2 * compared >= seeds, "{what}: only {compared} of {seeds} seeds compared");
}

/// Into an empty destination, `rdcp -r` makes what rsync makes.
#[test]
fn first_copies_are_what_rsync_makes() {
    let seeds = seeds("first copies", SEEDS, LONG_COUNT);
    let (count, compared) = (seeds.end - seeds.start, AtomicU64::new(0));
    let wrong = each(seeds, |seed| {
        let lines = check(seed, &MODES[0], true, &|way| Box::new(Rdcp { way, options: &[] }));
        compared.fetch_add(u64::from(lines.is_some()), Ordering::Relaxed);
        lines.unwrap_or_default()
    });
    assert!(wrong == 0, "{wrong} seeds with violations, see above");
    are_compared("first copies", compared.into_inner(), count);
}

/// Runs every mode for every seed with a program. With rsync itself, this checks that the comparison is fair.
fn each_mode(name: &str, short: std::ops::Range<u64>, program: impl Fn(Way) -> Box<dyn Program> + Sync) {
    let only = std::env::var("RD_MODE").ok();
    let modes: Vec<&Mode> = MODES.iter().filter(|mode| only.as_deref().is_none_or(|only| only == mode.name)).collect();
    assert!(!modes.is_empty(), "RD_MODE is none of modes.rs");
    let seeds = seeds(name, short, LONG_COUNT);
    let (first, count) = (seeds.start, (seeds.end - seeds.start) * modes.len() as u64);
    let compared: Vec<AtomicU64> = modes.iter().map(|_| AtomicU64::new(0)).collect();
    let wrong = each(0..count, |number| {
        let (seed, at) = (first + number / modes.len() as u64, (number % modes.len() as u64) as usize);
        let lines = check(seed, modes[at], false, &program);
        compared[at].fetch_add(u64::from(lines.is_some()), Ordering::Relaxed);
        lines.unwrap_or_default()
    });
    assert!(wrong == 0, "{wrong} of {count} runs with violations, see above");
    for (mode, compared) in modes.iter().zip(compared) {
        are_compared(&format!("{name}, mode {}", mode.name), compared.into_inner(), seeds.end - seeds.start);
    }
    eprintln!("{name}: {count} runs, no violation");
}

/// `rdcp --sync` has the same result as rsync in every mode.
#[test]
fn random_trees_are_synchronized_as_by_rsync() {
    each_mode("synchronized", SEEDS, |way| Box::new(Rdcp { way, options: &["--sync"] }));
}

/// The comparison can be passed: rsync agrees with itself, and touches nothing when it is run again.
#[test]
fn rsync_agrees_with_itself() {
    each_mode("rsync itself", 1..3, |_| Box::new(Rsync));
}

/// The effect of each mode is visible: rsync with the mode's options and rsync without them give different results. So
/// a program that ignored an option would be found.
#[test]
fn the_comparison_sees_each_mode() {
    const TRIES: u64 = 60;
    // Comparing with a window, and writing in place, do not show in the result.
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
