//! More options that users of rsync type: those that exclude files by size and that exclude directories, and `-v`,
//! which names what is done. Trees and printed lines must be those of rsync.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};

use crate::copies::Way;
use crate::itemize::printed;
use crate::modes::BASE;
use crate::random::TIMED_OUT;
use crate::rig::lab::Lab;
use crate::rig::{AGENT, PATIENCE, rdcp};
use crate::snapshot::{Finding, Snapshot, differences, snapshot};

/// Path, size, and time in seconds after [`BEGINNING`]. The path of a directory ends in a slash.
type Planted = (&'static str, usize, i64);

const BEGINNING: i64 = 1_000_000_000;

const NOW: &[Planted] = &[
    ("small", 2, 1),
    ("big", 5000, 1),
    ("same", 7, 1),
    ("touched", 7, 2),
    ("newer there", 7, 1),
    ("none", 0, 1),
    ("d/big", 5000, 1),
    ("d/s/small", 2, 1),
    ("e/ee/", 0, 1),
    ("o/p/a.o", 3, 1),
    ("x/first", 9000, 1),
];

/// An earlier state with other contents, in which `x/first` is a directory.
const BEFORE: &[Planted] = &[
    ("big", 4000, 1),
    ("same", 7, 1),
    ("touched", 7, 1),
    ("newer there", 7, 3),
    ("d/s/small", 3, 1),
    ("e/ee/", 0, 2),
    ("o/p/b.o", 3, 1),
    ("o/q", 1, 1),
    ("gone/small", 2, 1),
    ("x/first/", 0, 1),
];

const ASKED: &[&[&str]] = &[
    &[],
    &["--size-only"],
    &["--size-only", "--checksum"],
    &["--size-only", "--update", "--delete"],
    &["--size-only", "--link-dest=../earlier"],
    &["--max-size=4K", "--delete"],
    &["--max-size=5kb-1"],
    &["--min-size=1", "--max-size=5000", "--delete-after"],
    &["--max-size=0", "--ignore-existing"],
    &["-m", "--delete"],
    &["-m", "--delete", "--exclude=*.o"],
    &["-m", "--delete", "--include=*/", "--include=*.o", "--exclude=*"],
    &["-m", "--files-from=list"],
    &["-m", "-R"],
    &["-m", "--max-size=1K"],
    &["-O", "--delete"],
    &["--omit-dir-times", "-m", "--exclude=*.o"],
    &["--delete", "--delete-after"],
];

const WAYS: [Way; 3] = [Way::Within, Way::Push, Way::Pull];

pub fn set_time(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: BEGINNING + seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("ours");
}

/// Makes a tree whose files are filled with a letter and whose directories have the time `seconds`.
fn plant(top: &Path, planted: &[Planted], letter: u8, seconds: i64) {
    let mut directories = BTreeSet::from([top.to_owned()]);
    for (name, size, time) in planted {
        let path = top.join(name);
        let above = if name.ends_with('/') { &*path } else { path.parent().expect("it has one") };
        fs::create_dir_all(above).expect("directories");
        directories.extend(above.ancestors().take_while(|above| *above != top).map(Path::to_owned));
        if !name.ends_with('/') {
            fs::write(&path, vec![letter; *size]).expect("a file");
            set_time(&path, *time);
        }
    }
    symlink(format!("to {letter}"), top.join("link")).expect("a link");
    set_time(&top.join("link"), seconds);
    directories.iter().rev().for_each(|directory| set_time(directory, seconds));
}

/// Makes a laboratory with the source, an earlier copy beside it, and a destination for each program.
fn planted(options: &[&str]) -> Lab {
    let lab = Lab::new();
    let source = lab.join("src");
    plant(&source, NOW, b'n', 0);
    fs::hard_link(source.join("x/first"), source.join("x/second")).expect("a link");
    mknodat(CWD, source.join("e/fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    ["e", "x"].iter().for_each(|name| set_time(&source.join(name), 0));
    plant(&lab.join("earlier"), NOW, b'e', 8);
    set_time(&lab.join("earlier/touched"), 8);
    // With an earlier copy to link to, the destination starts empty.
    let is_new = options.iter().any(|option| option.starts_with("--link-dest"));
    let before = if is_new { &[] } else { BEFORE };
    for name in ["rsync", "rdcp"] {
        fs::create_dir(lab.join(name)).expect("a directory");
        plant(&lab.join(name), before, b'b', 9);
    }
    fs::write(lab.join("list"), "e/ee\nd/s\no/p/a.o\nsmall\n").expect("a file");
    lab
}

fn operands(lab: &Lab, options: &[&str], way: Way) -> [String; 2] {
    operands_of(lab, if options.contains(&"-R") { "src/./e" } else { "src/" }, "rdcp/", way)
}

fn operands_of(lab: &Lab, source: &str, destination: &str, way: Way) -> [String; 2] {
    let at = |host: &str, path: &str| match host {
        "" => path.to_owned(),
        host => format!("{host}{}/{path}", lab.0.path().display()),
    };
    [at(way.source(0), source), at(way.destination(), destination)]
}

/// Whether the line is not about a file with several names. Which name comes first depends on the order of the walk.
fn is_single(line: &str) -> bool {
    !["x/first", "x/second"].iter().any(|name| line.contains(name))
}

/// Returns the lines that rdcp prints, its exit code and its standard error. Files sent are shown as received.
pub fn by_rdcp(lab: &Lab, options: &[&str], way: Way, more: &[&str]) -> (Vec<String>, i32, String) {
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--encrypt", "never"]).args(options).args(more).args(operands(lab, options, way));
    let printed = printed(lab, &command);
    let received = |line: String| line.strip_prefix("<f").map_or(line.clone(), |rest| format!(">f{rest}"));
    let mut lines: Vec<String> = printed.lines.into_iter().filter(|line| is_single(line)).map(received).collect();
    lines.sort_unstable();
    (lines, printed.ended.code, printed.ended.stderr)
}

fn by_rsync(lab: &Lab, options: &[&str], more: &str) -> (Vec<String>, i32) {
    let mut command = Command::new("rsync");
    command.args(BASE).args(["-r", more]).args(options).args([&*operands(lab, options, Way::Within)[0], "rsync/"]);
    let printed = printed(lab, &command);
    let remarks = ["sending incremental", "sent ", "total size is", "cannot delete non-empty", "created directory"];
    // With --link-dest, rsync prints how a new directory differs from the earlier one.
    let as_new = |line: String| line.replace("cd..t......", "cd+++++++++");
    let is_entry = |line: &String| !line.is_empty() && !remarks.iter().any(|remark| line.starts_with(remark));
    let lines = printed.lines.into_iter().filter(is_entry).filter(|line| is_single(line)).map(as_new);
    (lines.collect(), printed.ended.code)
}

/// Returns a laboratory in which rsync has run, the lines it printed, and its exit code. Retries
/// because rsync hangs at times.
fn by_rsync_somehow(options: &[&str], more: &str) -> (Lab, Vec<String>, i32) {
    for _ in 0..3 {
        let lab = planted(options);
        let (lines, code) = by_rsync(&lab, options, more);
        if code != TIMED_OUT {
            return (lab, lines, code);
        }
    }
    panic!("rsync {more} stands still: {options:?}");
}

/// Returns a snapshot without times of the last hour.
fn found(top: &Path) -> Snapshot {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("since 1970").as_secs() as i64;
    let mut found = snapshot(top);
    for entry in found.values_mut().filter(|entry| entry.modified.0 > now - 3600) {
        entry.modified = (0, 0);
    }
    found
}

#[test]
fn what_is_left_out_is_what_rsync_leaves_out() {
    for (number, options) in ASKED.iter().enumerate() {
        let way = WAYS[number % WAYS.len()];
        let (lab, theirs, their_code) = by_rsync_somehow(options, "-i");
        let (said, ..) = by_rdcp(&lab, options, way, &["-n"]);
        let (done, code, stderr) = by_rdcp(&lab, options, way, &["--itemize-changes"]);
        let what = format!("{options:?} {way:?}: {stderr}");
        assert_eq!((code, &done), (their_code, &theirs), "{what}");
        assert_eq!(said, done, "-n {what}");
        let findings = differences(&found(&lab.join("rsync")), &found(&lab.join("rdcp")), &[]);
        let lines: Vec<String> = findings.iter().map(Finding::shown).collect();
        assert!(lines.is_empty(), "{what}\n{}", lines.join("\n"));
        // The destination is complete then, and another run has nothing to do.
        let (again, code, stderr) = by_rdcp(&lab, options, way, &["--itemize-changes"]);
        assert_eq!((code, &again[..]), (0, &[][..]), "{options:?} {way:?} again: {stderr}");
    }
}

#[test]
fn names_are_those_that_rsync_prints() {
    for (number, options) in [&["--delete"][..], &["--size-only"], &["--delete", "-R"], &["-O"]].into_iter().enumerate()
    {
        let way = WAYS[number % WAYS.len()];
        let (lab, theirs, _) = by_rsync_somehow(options, "-v");
        let (_, rehearsed, _) = by_rsync_somehow(options, "-nv");
        let (names, code, stderr) = by_rdcp(&lab, options, way, &["-nv"]);
        assert_eq!((code, &names), (0, &rehearsed), "-n {options:?} {way:?}: {stderr}");
        let (lines, ..) = by_rdcp(&lab, options, way, &["-nv", "--itemize-changes"]);
        assert!(
            lines.iter().all(|line| ["*", "<", ">", "c", "."].iter().any(|sign| line.starts_with(sign))),
            "{lines:?}"
        );
        let (names, code, stderr) = by_rdcp(&lab, options, way, &["-v"]);
        assert_eq!((code, &names), (0, &theirs), "{options:?} {way:?}: {stderr}");
        assert!(stderr.contains(" in "), "what it came to is said beside: {stderr}");
        for quiet in [&["-v", "-q"][..], &["-v", "--info=name0"], &[]] {
            fs::write(lab.join("src/another"), format!("{quiet:?}")).expect("a file");
            let (names, code, stderr) = by_rdcp(&lab, options, way, quiet);
            assert_eq!((code, &names[..]), (0, &[][..]), "{options:?} {quiet:?}: {stderr}");
        }
    }
}

/// Lists of paths, by the options given with them. `p` contains a file and a directory; `real` is where links lead.
const LISTS: &[(&[&str], &[&str])] = &[
    // Missing entries below a directory that is listed itself.
    (&[], &["p\np/missing", "p/\np/missing/x", "p\np/file/below", "p\np/missing/x", "p/missing/x", ".\nmissing/x"]),
    (
        &["-r"],
        &["p\np/missing", "p\np/sub\np/sub/missing\np/missing/x", "p\np/file/below", ".\nmissing", "p/missing/x"],
    ),
    // Only an explicit -r copies the contents of a directory.
    (&["-a"], &["p", "p\np/sub/f", "p/"]),
    (&["--archive"], &["p", "p/sub"]),
    (&["-ar"], &["p", "p/sub"]),
    (&["-r", "--delete"], &["p\np/missing", "p\np/sub/missing\nq"]),
    (&["-r", "--no-implied-dirs"], &["p\np/missing", "q\np/missing"]),
    (&["--no-implied-dirs"], &["p\np/missing"]),
    // A missing path is an error even if a pattern excludes it. A path listed in an excluded directory is copied.
    (&["-r", "--exclude=missing"], &["p\np/missing"]),
    (&["-r", "--exclude=p/"], &["p\np/missing", "p\np/missing\nq"]),
    (&["--exclude=p"], &["p\np/missing"]),
    (&["-r", "--exclude=sub/"], &["p\np/sub/f", "p\np/sub/missing", "p\np/sub\np/file"]),
    (&["-r", "--exclude=sub/", "--delete"], &["p\np/sub/f"]),
    (&["-r", "--exclude=f"], &["p\np/sub/f"]),
    (&["--exclude=sub/"], &["p/\np/sub/f"]),
];

/// Lists of paths that go through symbolic links.
const THROUGH_LINKS: &[(&[&str], &[&str])] = &[
    (
        &[],
        &[
            "link/f",
            "link/in",
            "link/",
            "link/.",
            "link",
            "link\nlink/f",
            "link/\nlink",
            "link/f\nlink/in/g",
            "link/f\nreal/f",
            "link/in/\nlink/in/g",
            "link/to f",
            "real/to f/",
            "to file\nto file/x",
            ".\nlink/f",
            "deep\ndeep/l/f",
        ],
    ),
    (
        &["-r"],
        &[
            "link/f",
            "link/in",
            "link/",
            "link/\nlink/f",
            "link",
            "link\nlink/f",
            "link\nlink/missing",
            "link/missing",
            "dangling/x",
            "dangling\ndangling/x",
            "out/o",
            "out/",
            "out",
            "deep/l/f",
            "deep/l/in/g",
            "deep\ndeep/l/f",
            "deep\ndeep/l/missing",
            "deep/up/p/file",
            "deep/up/",
            "link/f\nlink/missing",
        ],
    ),
    (&["-r", "--no-implied-dirs"], &["link/f", "deep/l/in/g"]),
    (&["-r", "--safe-links"], &["link/f", "out/o", "out/", "out"]),
    (&["-r", "--copy-unsafe-links"], &["link/f", "out/o"]),
    (&["-r", "--no-links"], &["link/f", "link"]),
    (&["-r", "-k"], &["link/f", "link"]),
    (&["-r", "-L"], &["link/f", "link", "link\nlink/f"]),
    (&["-r", "--delete"], &["link/f", ".\nlink/f", "p\nlink/"]),
    (&["-r", "--exclude=link"], &["link/f", "link/"]),
    (&["-r", "--exclude=f"], &["link/f", "link/"]),
    (&["-r", "--exclude=link/f"], &["link/f", "link/"]),
    (&["-r", "-m"], &["link/f", "link/", "link/in"]),
];

#[test]
fn a_list_brings_what_it_brings_by_rsync() {
    hold_lists(LISTS);
}

/// As with rsync, a link in the middle of a path stands for the directory that it leads to. In DST a directory is made
/// in place of the link, even if there was a link.
#[test]
fn listed_paths_go_through_links_as_by_rsync() {
    hold_lists(THROUGH_LINKS);
    for leads_to in ["real", "../elsewhere", "nowhere"] {
        let lab = Lab::new();
        plant_for_lists(&lab, "link/f\n");
        fs::create_dir(lab.join("elsewhere")).expect("a directory");
        for name in ["rsync", "rdcp"] {
            fs::create_dir(lab.join(name).join("real")).expect("a directory");
            fs::remove_file(lab.join(name).join("link")).expect("it is planted");
            symlink(leads_to, lab.join(name).join("link")).expect("a link");
        }
        hold_list(&lab, &["-r"], "link/f", Way::Push);
        assert!(lab.join("rdcp/link").symlink_metadata().is_ok_and(|found| found.is_dir()), "{leads_to}");
        assert_eq!(fs::read_dir(lab.join("elsewhere")).expect("it").count(), 0, "nothing was followed");
    }
}

/// SRC itself is a link to a directory, which is followed: it goes into DST, in the first run and in all others.
#[test]
fn a_source_that_is_a_followed_link_is_a_directory_as_by_rsync() {
    let cases = [("-k", true), ("-k", false), ("--copy-unsafe-links", true), ("--copy-unsafe-links", false)];
    for (number, (option, is_there)) in cases.into_iter().enumerate() {
        let (lab, way) = (Lab::new(), WAYS[number % WAYS.len()]);
        plant(&lab.join("real"), &[("f", 3, 1), ("sub/g", 4, 1)], b'n', 0);
        let target = if option == "-k" { Path::new("real").to_owned() } else { lab.join("real") };
        symlink(target, lab.join("source")).expect("a link");
        if is_there {
            ["rsync", "rdcp"].iter().for_each(|name| fs::create_dir(lab.join(name)).expect("a directory"));
        }
        for run in 0..3 {
            let mut theirs = Command::new("rsync");
            theirs.args(BASE).args(["-r", option, "source", "rsync"]);
            let theirs = printed(&lab, &theirs).ended;
            let mut ours = lab.command(rdcp(), "rsh", AGENT);
            ours.args(["--sync", "-r", "--encrypt", "never", "--manifest=list", option]);
            let ours = printed(&lab, ours.args(operands_of(&lab, "source", "rdcp", way))).ended;
            let what = format!("{option} {way:?} {is_there} {run}: {}{}", theirs.stderr, ours.stderr);
            assert_eq!((theirs.code, ours.code), (0, 0), "{what}");
            let findings = differences(&found(&lab.join("rsync")), &found(&lab.join("rdcp")), &[b""]);
            let lines: Vec<String> = findings.iter().map(Finding::shown).collect();
            assert!(lines.is_empty() && lab.join("rdcp/source/sub/g").exists(), "{what}\n{}", lines.join("\n"));
            let mut check = lab.command(rdcp(), "rsh", AGENT);
            let checked = printed(&lab, check.args(["--check", "list", "rdcp/source"])).ended;
            assert_eq!(checked.code, 0, "{what}{}", checked.stderr);
        }
        let mut into_itself = lab.command(rdcp(), "rsh", AGENT);
        into_itself.args(["--sync", "-r", option, "source", "real/copy"]);
        let refused = printed(&lab, &into_itself).ended;
        assert!(refused.code == 1 && refused.stderr.contains("into itself"), "{option}: {}", refused.stderr);
    }
}

fn hold_lists(lists: &[(&[&str], &[&str])]) {
    let cases = lists.iter().flat_map(|(options, lists)| lists.iter().map(move |list| (*options, *list)));
    for (number, (options, list)) in cases.enumerate() {
        let lab = Lab::new();
        plant_for_lists(&lab, list);
        hold_list(&lab, options, list, WAYS[number % WAYS.len()]);
    }
}

fn hold_list(lab: &Lab, options: &[&str], list: &str, way: Way) {
    let asked = [options, &["--files-from=list"]].concat();
    let mut theirs = Command::new("rsync");
    theirs.args(BASE).args(&asked).args(["src/", "rsync/"]);
    let theirs = printed(lab, &theirs).ended;
    let mut ours = lab.command(rdcp(), "rsh", AGENT);
    ours.args(["--sync", "--encrypt", "never"]).args(&asked).args(operands(lab, options, way));
    let ours = printed(lab, &ours).ended;
    let what = format!("{options:?} {list:?} {way:?}: {}{}", theirs.stderr, ours.stderr);
    assert_eq!(ours.code, if theirs.code == 0 { 0 } else { 8 }, "{what}");
    // Each missing path is named, or else a missing directory on the way to it.
    for line in theirs.stderr.lines().filter(|line| line.contains("link_stat") && line.contains("No such file")) {
        let path = line.split('"').nth(1).and_then(|path| path.split_once("/src/")).expect("a path").1;
        let names = |path: &Path| ours.stderr.contains(&format!("src/{}: No such file", path.display()));
        assert!(Path::new(path).ancestors().any(names), "{path} {what}");
    }
    let findings = differences(&found(&lab.join("rsync")), &found(&lab.join("rdcp")), &[]);
    let lines: Vec<String> = findings.iter().map(Finding::shown).collect();
    assert!(lines.is_empty(), "{what}\n{}", lines.join("\n"));
}

fn plant_for_lists(lab: &Lab, list: &str) {
    const SOURCE: &[Planted] = &[
        ("p/file", 3, 1),
        ("p/sub/f", 4, 1),
        ("q/other", 5, 1),
        ("real/f", 6, 1),
        ("real/in/g", 7, 1),
        ("deep/a/b", 8, 1),
    ];
    plant(&lab.join("src"), SOURCE, b'n', 0);
    plant(&lab.join("outside"), &[("o", 3, 1)], b'o', 0);
    let links = [
        ("link", "real"),
        ("out", "../outside"),
        ("dangling", "nowhere"),
        ("to file", "p/file"),
        ("real/to f", "f"),
        ("deep/l", "../real"),
        ("deep/up", ".."),
    ];
    for (name, target) in links {
        // One of the planted entries has the same name.
        let _ = fs::remove_file(lab.join("src").join(name));
        symlink(target, lab.join("src").join(name)).expect("a link");
        set_time(&lab.join("src").join(name), 0);
    }
    ["", "real", "deep"].iter().for_each(|name| set_time(&lab.join("src").join(name), 0));
    for name in ["rsync", "rdcp"] {
        plant(&lab.join(name), &[("p/older", 3, 1), ("p/sub/older", 3, 1)], b'b', 9);
    }
    fs::write(lab.join("list"), list).expect("a file");
}

const WITH_REMOVAL: &[&[&str]] = &[
    &[],
    &["-c"],
    &["--exclude=*.o"],
    &["-u"],
    &["--size-only"],
    &["--max-size=4K"],
    &["-m"],
    &["--files-from=list"],
    &["-R"],
    &["-n"],
    &["--backup-dir=../kept", "-b"],
];

/// An entry that DST now has is gone from SRC. An entry that DST has in another state stays, as do directories.
#[test]
fn what_has_come_is_removed_from_the_source_as_by_rsync() {
    for (options, way) in WITH_REMOVAL.iter().flat_map(|options| WAYS.map(|way| (options, way))) {
        let (theirs, ours) = (planted(options), planted(options));
        let asked = [options, &["--remove-source-files"][..]].concat();
        let (_, their_code) = by_rsync(&theirs, &asked, "-i");
        let (_, code, stderr) = by_rdcp(&ours, &asked, way, &[]);
        let what = format!("{options:?} {way:?}: {stderr}");
        assert_eq!(code, their_code, "{what}");
        for (their_place, place) in [("src", "src"), ("rsync", "rdcp")] {
            let findings = differences(&found(&theirs.join(their_place)), &found(&ours.join(place)), &[]);
            let lines: Vec<String> = findings.iter().map(Finding::shown).collect();
            assert!(lines.is_empty(), "{place} {what}\n{}", lines.join("\n"));
        }
        let is_gone = !ours.join("src/small").exists();
        assert_eq!(is_gone, !options.iter().any(|option| ["-n", "-R"].contains(option)), "{what}");
    }
}

/// The receiver reports how many entries have failed, but not which.
#[test]
fn nothing_is_removed_unless_all_has_come() {
    for way in WAYS {
        let lab = planted(&[]);
        fs::create_dir_all(lab.join("rdcp/d/big/full")).expect("directories");
        let before = found(&lab.join("src"));
        let (_, code, stderr) = by_rdcp(&lab, &["--remove-source-files"], way, &[]);
        assert!(code == 8 && stderr.contains("nothing is removed from SRC"), "{way:?} {code}: {stderr}");
        let lines: Vec<String> =
            differences(&before, &found(&lab.join("src")), &[]).iter().map(Finding::shown).collect();
        assert!(lines.is_empty(), "{way:?}\n{}", lines.join("\n"));
        fs::remove_dir_all(lab.join("rdcp/d/big")).expect("removed");
        let (_, code, stderr) = by_rdcp(&lab, &["--remove-source-files"], way, &[]);
        assert_eq!(code, 0, "{way:?}: {stderr}");
        assert!(found(&lab.join("src")).values().all(|entry| entry.kind == "directory"), "{way:?}");
    }
}

/// Whichever way the source leads to the destination, nothing is removed, because that would remove it from DST.
#[test]
fn a_source_that_is_the_destination_stays() {
    let stays = |lab: &Lab, arguments: &[&str], what: &str| {
        let before = found(&lab.join("src"));
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--sync", "--remove-source-files"]).args(arguments);
        let output = command.current_dir(lab.0.path()).stdin(Stdio::null()).output().expect("rdcp");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(8), "{what}: {stderr}");
        assert!(stderr.contains("is the source itself under another path; nothing is removed"), "{what}: {stderr}");
        let lines: Vec<String> =
            differences(&before, &found(&lab.join("src")), &[]).iter().map(Finding::shown).collect();
        assert!(lines.is_empty(), "{what}\n{}", lines.join("\n"));
    };
    for way in WAYS {
        let lab = planted(&[]);
        fs::remove_dir_all(lab.join("rdcp")).expect("removed");
        let copied = Command::new("cp").args(["-al", "src", "rdcp"]).current_dir(lab.0.path()).status();
        assert!(copied.expect("cp").success());
        let words = operands(&lab, &[], way);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stays(&lab, &words, &format!("names of the same files, {way:?}"));
    }
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/real/d")).expect("directories");
    fs::write(lab.join("src/real/d/file"), "the only one").expect("a file");
    symlink("real/d", lab.join("src/d")).expect("a link");
    stays(&lab, &["-R", "--no-implied-dirs", "src/real/./d/file", "src"], "a link that leads back");
}

/// The run is killed while it removes files: at its first removal, or a little later.
#[test]
fn a_run_that_is_killed_leaves_each_file_somewhere() {
    const FILES: usize = 3000;
    const ROUNDS_MAX: usize = 5;
    // On a busy machine a run may have removed everything before it is killed.
    for _ in 0..ROUNDS_MAX {
        let mut was_cut = false;
        for (way, after) in WAYS.into_iter().flat_map(|way| [0, 1, 3, 10, 30].map(|after| (way, after))) {
            let gone = gone_when_killed(FILES, way, Duration::from_millis(after));
            // With a pull, the agent removes the files, and only its caller is killed.
            was_cut |= way != Way::Pull && (1..FILES).contains(&gone);
        }
        if was_cut {
            return;
        }
    }
    panic!("no run was killed between its first and its last removal");
}

/// Kills a run this long after its first removal. Returns how many files are gone from SRC.
fn gone_when_killed(files: usize, way: Way, after: Duration) -> usize {
    let lab = Lab::new();
    let source = lab.join("src");
    fs::create_dir_all(&source).expect("a directory");
    fs::create_dir(lab.join("rdcp")).expect("a directory");
    for file in 0..files {
        fs::write(source.join(file.to_string()), file.to_string()).expect("a file");
    }
    // The removal of an entry changes the time of its directory, which is cheaper to look at than all names.
    let changed = || fs::metadata(&source).and_then(|found| found.modified()).expect("a directory");
    let before = changed();
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "-q", "--remove-source-files"]).args(operands(&lab, &[], way));
    let mut child = command.current_dir(lab.0.path()).stderr(Stdio::null()).spawn().expect("rdcp");
    let until = Instant::now() + PATIENCE;
    while changed() == before && child.try_wait().expect("a child").is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(after);
    child.kill().expect("ours");
    child.wait().expect("it");
    let gone = files - fs::read_dir(&source).expect("a directory").count();
    assert!(gone > 0, "{way:?}: nothing was removed");
    let holds = |place: &str, file: usize| {
        fs::read_to_string(lab.join(place).join(file.to_string())).is_ok_and(|text| text == file.to_string())
    };
    // The killed caller's agent may go on for a moment.
    for file in 0..files {
        assert!(holds("src", file) || holds("rdcp", file), "{way:?} {after:?}: {file}");
    }
    gone
}
