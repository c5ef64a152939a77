//! Compares `--itemize-changes` with `rsync -i`: the same lines in any order, for destinations changed in any way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::copies::{Way, limited};
use crate::modes::{BASE, MODES, Mode};
use crate::random::{Grown, History, LONG_COUNT, SEEDS, UMASK, copy_name, expected, grow, operands, plant, scene};
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, seeds};
use crate::rig::{AGENT, Ended, rdcp};
use crate::snapshot::{Snapshot, snapshot};

/// Maximum number of lines that report one copy.
const LINES_MAX: usize = 12;

/// The sorted lines that a run has printed, and how the run ended.
pub struct Printed {
    pub lines: Vec<String>,
    pub ended: Ended,
}

/// Runs a command with its standard output directed to a file of `lab`.
pub fn printed(lab: &Lab, command: &Command) -> Printed {
    let output = lab.join("printed");
    let ended = limited(command, lab.0.path(), false, UMASK, File::create(&output).expect("a file").into());
    let mut lines: Vec<String> =
        String::from_utf8(fs::read(&output).expect("printed")).expect("UTF-8").lines().map(str::to_owned).collect();
    lines.sort_unstable();
    Printed { lines, ended }
}

/// Runs `rsync -i` in a locale in which names are printed as UTF-8.
pub fn by_rsync(lab: &Lab, operands: [OsString; 2], options: &[&str], patterns: &[String]) -> Printed {
    let mut command = Command::new("rsync");
    command.env("LC_ALL", "C.UTF-8").arg("-i").args(BASE).args(options).args(patterns).args(operands);
    printed(lab, &command)
}

/// Runs `rdcp --sync --itemize-changes`.
pub fn by_rdcp(
    lab: &Lab,
    way: Way,
    [source, destination]: [OsString; 2],
    options: &[&str],
    patterns: &[String],
) -> Printed {
    let on = |host: &str, path: OsString| {
        let mut text = OsString::from(host);
        text.push(path);
        text
    };
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--itemize-changes", "--encrypt", "never"]).args(options).args(patterns);
    command.arg(on(way.source(0), source)).arg(on(way.destination(), destination));
    printed(lab, &command)
}

/// Makes the first copy, for seeds that have one.
pub fn copy_before(lab: &Lab, scene: &Path, grown: &Grown) {
    if let History::Copied(_) = grown.history {
        let first = by_rsync(lab, operands(lab, scene, "before", grown), &[], &[]);
        assert_eq!(first.ended.code, 0, "{}", first.ended.stderr);
    }
}

/// Returns the path, below the scene, of a line's entry, unescaped as far as the trees have such names.
fn path_of(line: &str, grown: &Grown) -> Vec<u8> {
    let name = line.get(12..).unwrap_or_default();
    let name = name.split(" -> ").next().unwrap_or_default().trim_end_matches('/');
    let top = if grown.is_nested { "into/".to_owned() } else { format!("into/{}/", copy_name(grown)) };
    let mut path = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find("\\#") {
        path.extend(&rest.as_bytes()[..at]);
        let code = rest.get(at + 2..at + 5).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                path.push(byte);
                rest = &rest[at + 5..];
            }
            None => {
                path.extend(b"\\#");
                rest = &rest[at + 2..];
            }
        }
    }
    path.extend(rest.as_bytes());
    [top.as_bytes(), &path].concat()
}

/// Returns a line without the parts in which rdcp intentionally differs; `None` if nothing is left.
///
/// * A file whose contents are already at the destination: rsync sends it if its time differs, but not with `-c`. rdcp
///   compares the contents and prints `.f`, but sends files with holes anew.
/// * An entry with setuid, setgid or capabilities: rsync changes the owner first, which clears them, and then prints
///   what is missing: neither owner nor group, but permissions and attributes. rdcp prints the original differences.
/// * With another ACL, rsync takes its mask for permissions that are the same.
/// * rsync reads attributes of links and special files after it has replaced them.
/// * rsync prints DEL and the control characters behind it unchanged; rdcp escapes them for the terminal.
fn shared(line: &str, grown: &Grown, before: &Snapshot, source: &Snapshot) -> Option<String> {
    let line = line.replace('\x7f', "\\#177");
    let path = path_of(&line, grown);
    let (Some(there), Some(new)) = (before.get(&path), source.get(&path)) else { return Some(line) };
    let (mut letters, rest) = (line.as_bytes()[..11].to_vec(), &line[11..]);
    if there.kind == "file" && (&there.kind, &there.content) == (&new.kind, &new.content) {
        (letters[0], letters[2]) = (b'.', b'.');
    }
    if there.mode & 0o6000 != 0 || there.attributes.contains_key("security.capability") {
        letters[5..8].fill(b'?');
        letters[10] = b'?';
    }
    if letters[9] == b'a' {
        letters[5] = b'?';
    }
    if letters[0] == b'c' && letters[2] == b'c' {
        letters[9..11].fill(b'?');
    }
    let is_nothing = letters[0] == b'.' && letters[2..].iter().all(|letter| *letter == b'.');
    (!is_nothing).then(|| String::from_utf8(letters).expect("letters") + rest)
}

/// Whether rsync printed the line in addition to the lines of entries.
fn is_remark(line: &str) -> bool {
    ["created directory ", "cannot delete non-empty directory: "].iter().any(|remark| line.starts_with(remark))
}

/// Returns everything that shows a change or the last reading of each entry: inode, times, size and mode.
fn state(top: &Path, found: &Snapshot) -> BTreeMap<Vec<u8>, [i64; 10]> {
    let state = |path: &Vec<u8>| {
        let Ok(stat) = fs::symlink_metadata(top.join(OsStr::from_bytes(path))) else { return (path.clone(), [0; 10]) };
        let (mode, links) = (i64::from(stat.mode()), stat.nlink() as i64);
        let times = [stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec()];
        // Reading a link's target changes its access time.
        let read = if stat.is_symlink() { [0; 2] } else { [stat.atime(), stat.atime_nsec()] };
        let [a, b, c, d] = times;
        (path.clone(), [stat.ino() as i64, mode, links, stat.size() as i64, a, b, c, d, read[0], read[1]])
    };
    found.keys().map(state).collect()
}

/// Returns the violations of a seed in a mode, in several lines.
fn check(seed: u64, mode: &Mode) -> Vec<String> {
    let grown = grow(seed, false, mode);
    let lab = plant(&grown);
    let source = expected(&lab, &grown);
    let patterns = &grown.patterns[..];
    let [one, other] = ["rsync", "rdcp"].map(|name| {
        let scene = scene(&lab, name, &grown);
        copy_before(&lab, &scene, &grown);
        scene
    });
    let before = snapshot(&other);
    let reference = by_rsync(&lab, operands(&lab, &one, "now", &grown), mode.rsync, patterns);
    let foreseen = state(&other, &before);
    let dry = by_rdcp(
        &lab,
        grown.way,
        operands(&lab, &other, "now", &grown),
        &[&["--dry-run"], mode.rdcp].concat(),
        patterns,
    );
    // Taken before this test reads any entry.
    let untouched = state(&other, &before);
    let is_as_before = snapshot(&other).keys().eq(before.keys());
    let ours = by_rdcp(&lab, grown.way, operands(&lab, &other, "now", &grown), mode.rdcp, patterns);
    let is_push = !grown.way.destination().is_empty();
    let (there, not) = if is_push { ("<f", ">f") } else { (">f", "<f") };
    let mut wrong: Vec<String> = ours.lines.iter().filter(|line| line.starts_with(not)).cloned().collect();
    let normal = |line: &String| {
        let line = line.strip_prefix(there).map_or_else(|| line.clone(), |rest| format!(">f{rest}"));
        shared(&line, &grown, &before, &source)
    };
    let (theirs, ours_all): (BTreeSet<String>, BTreeSet<String>) = (
        reference
            .lines
            .iter()
            .filter(|line| !is_remark(line))
            .filter_map(|line| shared(line, &grown, &before, &source))
            .collect(),
        ours.lines.iter().filter_map(normal).collect(),
    );
    // Which of several names comes first depends on the order of the walk, and rsync takes files before directories.
    if !mode.has_links {
        wrong.extend(theirs.difference(&ours_all).map(|line| format!("rsync alone: {line}")));
        wrong.extend(ours_all.difference(&theirs).map(|line| format!("rdcp alone:  {line}")));
    }
    if ours.lines.len() != ours.lines.iter().collect::<BTreeSet<_>>().len() {
        wrong.push("rdcp prints a line twice".to_owned());
    }
    // A run with -n changes nothing, and prints what the next run then does.
    let [said, done] = [&dry, &ours].map(|run| run.lines.iter().collect::<BTreeSet<_>>());
    wrong.extend(done.difference(&said).map(|line| format!("-n lacks:    {line}")));
    wrong.extend(said.difference(&done).map(|line| format!("-n alone:    {line}")));
    if dry.ended.code != ours.ended.code {
        wrong.push(format!("-n ends with {}: {}", dry.ended.code, dry.ended.stderr));
    }
    if foreseen != untouched || !is_as_before {
        let changed = foreseen.iter().filter(|&(path, state)| untouched.get(path) != Some(state));
        wrong.extend(changed.map(|(path, _)| format!("-n touches {}", path.escape_ascii())));
        wrong.push("-n changes something".to_owned());
    }
    if wrong.is_empty() {
        return wrong;
    }
    let (way, is_nested) = (grown.way, grown.is_nested);
    let mut text = format!("seed {seed}, mode {}, {way:?}, nested {is_nested}: {} lines\n", mode.name, wrong.len());
    wrong.iter().take(LINES_MAX).for_each(|line| text += &format!("    {line}\n"));
    ours.ended.stderr.lines().take(4).for_each(|line| text += &format!("    rdcp {}: {line}\n", ours.ended.code));
    vec![text, format!("again: RD_SEED={seed} RD_MODE={}; kept: {}", mode.name, lab.0.keep().display())]
}

/// Checks each seed in one of the modes. `has_links`: whether files have several names.
fn each_seed(name: &str, has_links: bool) {
    let only = std::env::var("RD_MODE").ok();
    let modes = MODES.iter().filter(|mode| mode.has_links || !has_links);
    let modes: Vec<&Mode> = modes.filter(|mode| only.as_deref().is_none_or(|only| only == mode.name)).collect();
    let wrong = each(seeds(name, SEEDS, LONG_COUNT), |seed| {
        let mode = modes[seed as usize % modes.len()];
        check(seed, &Mode { has_links, ..*mode })
    });
    assert!(wrong == 0, "{wrong} seeds with other lines, see above");
}

/// The lines of `-n` are those of the run after it, and `-n` touches nothing.
#[test]
fn lines_are_those_of_rsync() {
    each_seed("itemized", false);
}

#[test]
fn names_of_one_file_are_foreseen() {
    each_seed("links", true);
}
