//! Command lines as users of rsync type them: several sources, links that lead outside, coarse
//! clocks, and every option.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::changes::{changed, unlinked, without_temporaries};
use crate::copies::{Way, limited};
use crate::itemize::printed;
use crate::modes::BASE;
use crate::random::UMASK;
use crate::random::is_meant;
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, seeds};
use crate::rig::{AGENT, Ended, Random, rdcp};
use crate::snapshot::{self, Finding, Snapshot, differences, snapshot};
use crate::told;
use crate::tree::{self, Gardener};

/// Seeds of `make test`, and the number of seeds in the long run.
const SEEDS: std::ops::Range<u64> = 1..25;
const LONG_COUNT: u64 = 300;

const WAYS: [Way; 4] = [Way::Within, Way::Push, Way::Pull, Way::Mixed];

/// Options given in addition to the sources.
const OPTIONS: &[&[&str]] = &[
    &[],
    &["--delete"],
    &["--delete-after"],
    &["--checksum"],
    &["--update"],
    &["--existing"],
    &["--ignore-existing"],
    &["--delete", "--exclude=plain*"],
    &["--delete", "--exclude=source 0"],
    &["--exclude=*/"],
    &["--include=/source 1/***", "--exclude=*"],
    &["-R"],
    &["-R", "--delete"],
];

pub fn by_rsync(lab: &Lab, options: &[&str], sources: &[String], to: &str) -> Ended {
    let mut command = Command::new("rsync");
    command.args(BASE).args(options).args(sources).arg(to);
    limited(&command, lab.0.path(), false, UMASK, Stdio::null())
}

pub fn by_rdcp(lab: &Lab, way: Way, options: &[&str], sources: &[String], to: &str) -> Ended {
    // Paths on another host begin at the home of its login.
    let at = |host: &str, path: &str| match host {
        "" => path.to_owned(),
        host => format!("{host}{}/{path}", lab.0.path().display()),
    };
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--sync", "-r", "-q", "--encrypt", "never"]).args(options);
    command.args(sources.iter().enumerate().map(|(number, path)| at(way.source(number), path)));
    command.arg(at(way.destination(), to));
    limited(&command, lab.0.path(), false, UMASK, Stdio::null())
}

/// Returns what only one of the programs has made, and how both ended if that differs.
pub fn wrong(lab: &Lab, [theirs, ours]: [Ended; 2], is_fine: impl Fn(&Finding, &Snapshot) -> bool) -> Vec<String> {
    let got = snapshot(&lab.join("rdcp"));
    let found = differences(&snapshot(&lab.join("rsync")), &got, &[b"", b"beside"]);
    let mut lines: Vec<String> =
        found.iter().filter(|finding| !is_fine(finding, &got)).map(Finding::shown).take(8).collect();
    if (theirs.code == 0) != (ours.code == 0) {
        lines.push(format!("rsync ends with {}: {}", theirs.code, theirs.stderr));
        lines.push(format!("rdcp ends with {}: {}", ours.code, ours.stderr));
    }
    lines
}

#[test]
fn several_sources_become_what_rsync_makes_of_them() {
    let count = each(seeds("several sources", SEEDS, LONG_COUNT), |seed| {
        let (lab, mut random) = (Lab::new(), Random::new(seed));
        let mut gardener = Gardener::new(&mut random, false);
        let mut sources = Vec::new();
        for number in 0..2 + gardener.random.below(2) {
            let tree = gardener.tree();
            let name = format!("source {number}");
            fs::create_dir_all(lab.join("from")).expect("a directory");
            tree::make(&lab.join("from").join(&name), &without_temporaries(unlinked(tree)));
            sources.push(format!("from/./{name}"));
        }
        let old = gardener.tree();
        for place in ["rsync", "rdcp"] {
            fs::create_dir(lab.join(place)).expect("a directory");
            tree::make(&lab.join(place).join("source 0"), &without_temporaries(unlinked(old.clone())));
            fs::create_dir(lab.join(place).join("beside")).expect("a directory");
        }
        let options = OPTIONS[seed as usize % OPTIONS.len()];
        // With these options, all sources are on one host.
        let ways = if ["-R", "--delete-after"].iter().any(|option| options.contains(option)) { 3 } else { WAYS.len() };
        let way = WAYS[(seed / 3) as usize % ways];
        let theirs = by_rsync(&lab, options, &sources, "rsync/");
        let ours = by_rdcp(&lab, way, options, &sources, "rdcp/");
        let mut source = Snapshot::new();
        for (number, path) in sources.iter().enumerate() {
            let name = format!("source {number}");
            for (below, entry) in snapshot(&lab.join(path)) {
                let slash = if below.is_empty() { "" } else { "/" };
                source.insert([name.as_bytes(), slash.as_bytes(), &below].concat(), entry);
            }
        }
        // Blocks that differ from an older file are sent and written whole, with holes that the source has in them.
        let is_fine =
            |finding: &Finding, got: &Snapshot| is_meant(finding, &source, got) || finding.what == "bytes on disk";
        let mut lines = wrong(&lab, [theirs, ours], is_fine);
        // If a file is in the place of a directory, rsync gives it the directory's metadata. rdcp
        // leaves the file and reports it.
        if options == ["--ignore-existing"] {
            lines.retain(|line| !line.contains("mode") && !line.contains("owner") && !line.starts_with("r"));
        }
        told(lines, || format!("RD_SEED={seed}, {options:?}, {way:?}, {sources:?}"), lab)
    });
    assert!(count == 0, "{count} seeds with violations, see above");
}

/// Options given with sources that are merged.
const MERGED: &[&[&str]] = &[
    &[],
    &["--delete"],
    &["--checksum", "--delete"],
    &["--delete-after"],
    &["--update"],
    &["--existing", "--delete"],
    &["--delete", "--exclude=plain*"],
];

/// Several SRC with the same name, and several SRC/, are merged. If several have an entry, the first one's is copied.
/// Directories have the entries of all.
#[test]
fn sources_of_one_name_are_merged_as_by_rsync() {
    let count = each(seeds("merged sources", SEEDS, LONG_COUNT), |seed| {
        let (lab, mut random) = (Lab::new(), Random::new(seed));
        let mut gardener = Gardener::new(&mut random, false);
        let (mut sources, mut source) = (Vec::new(), Snapshot::new());
        let first = gardener.tree();
        let slash = if seed % 3 == 0 { "/" } else { "" };
        for number in 0..2 + gardener.random.below(2) {
            let tree = if number == 0 { first.clone() } else { changed(&mut gardener, &first) };
            let path = format!("from/{number}/tree");
            fs::create_dir_all(lab.join(&path).parent().expect("it has one")).expect("directories");
            tree::make(&lab.join(&path), &without_temporaries(unlinked(tree)));
            for (below, entry) in snapshot(&lab.join(&path)) {
                let is_before = source
                    .get(&below)
                    .is_some_and(|there: &snapshot::Entry| there.kind == "directory" || entry.kind != "directory");
                if !is_before {
                    source.insert(below, entry);
                }
            }
            sources.push(path + slash);
        }
        let old = changed(&mut gardener, &first);
        for place in ["rsync", "rdcp"] {
            fs::create_dir(lab.join(place)).expect("a directory");
            tree::make(&lab.join(place).join("tree"), &without_temporaries(unlinked(old.clone())));
        }
        let below = if slash.is_empty() { "" } else { "tree/" };
        let options = MERGED[seed as usize % MERGED.len()];
        let way = WAYS[(seed / 3) as usize % 3];
        let theirs = by_rsync(&lab, options, &sources, &format!("rsync/{below}"));
        let ours = by_rdcp(&lab, way, options, &sources, &format!("rdcp/{below}"));
        let source: Snapshot = source
            .into_iter()
            .map(|(path, entry)| ([&b"tree"[..], if path.is_empty() { b"" } else { b"/" }, &path].concat(), entry))
            .collect();
        let is_fine =
            |finding: &Finding, got: &Snapshot| is_meant(finding, &source, got) || finding.what == "bytes on disk";
        let lines = wrong(&lab, [theirs, ours], is_fine);
        told(lines, || format!("RD_SEED={seed}, {options:?}, {way:?}, {sources:?}"), lab)
    });
    assert!(count == 0, "{count} seeds with violations, see above");
}

/// A missing source does not delete what came from it, if it is merged with other sources.
#[test]
fn nothing_is_deleted_for_a_missing_source_of_several_that_are_merged() {
    for (sources, to) in [(["from/0/tree/", "from/1/tree/"], "copy/tree"), (["from/0/tree", "from/1/tree"], "copy")] {
        let lab = Lab::new();
        for number in ["0", "1"] {
            fs::create_dir_all(lab.join("from").join(number).join("tree")).expect("directories");
            fs::write(lab.join("from").join(number).join("tree").join(number), "x").expect("a file");
        }
        fs::create_dir(lab.join("copy")).expect("a directory");
        let sources = sources.map(str::to_owned);
        let run = || by_rdcp(&lab, Way::Push, &["--delete"], &sources, to);
        run().expect(0);
        let names = || fs::read_dir(lab.join("copy/tree")).expect("it").count();
        assert_eq!(names(), 2);
        fs::remove_dir_all(lab.join("from/1")).expect("removed");
        let ended = run();
        assert!(ended.expect(5).stderr.contains("missing or unreadable SRC"), "{}", ended.stderr);
        assert_eq!(names(), 2, "nothing is deleted");
    }
}

/// As with rsync, only directories that lead to copied entries are made. A list of which nothing is
/// copied makes no directory.
#[test]
fn directories_lead_only_to_what_comes_of_a_list() {
    let cases: &[(&[&str], &str)] = &[
        (&["--files-from=missing"], "src/"),
        (&["--files-from=missing", "--delete"], "src/"),
        (&["--files-from=empty"], "src/"),
        (&["--files-from=empty", "--delete"], "src/"),
        (&["--files-from=file", "--exclude=file", "--no-implied-dirs"], "src/"),
        (&["--files-from=directory", "--exclude=p/"], "src/"),
        (&["-R"], "src/./missing"),
        (&["-R"], "src/./p/sub/missing"),
        (&["--files-from=file"], "src/"),
        (&["--files-from=file", "--exclude=file"], "src/"),
        (&["--files-from=file", "--exclude=p/"], "src/"),
        (&["--files-from=deep", "--exclude=sub/"], "src/"),
        (&["--files-from=below"], "src/"),
        (&["--files-from=both", "--exclude=sub"], "src/"),
        (&["--files-from=both", "--exclude=sub", "--no-implied-dirs"], "src/"),
        (&["--files-from=some"], "src/"),
        (&["--files-from=some", "--delete", "--exclude=file"], "src/"),
        (&["--files-from=some", "--no-implied-dirs", "--exclude=file"], "src/"),
        (&["--files-from=some", "-L", "--exclude=file"], "src/"),
    ];
    let lists = [
        ("missing", "nothing"),
        ("file", "p/file"),
        ("directory", "p"),
        ("empty", "# no path\n"),
        ("deep", "p/sub/deep\nq/other"),
        ("below", "p/file/below\nq/other"),
        ("both", "p/sub\np/sub/deep\nq/other"),
        ("some", "p/file\nq/other\np/sub/missing\nr/sub/missing\np/file/below\ns/link"),
    ];
    for (options, source) in cases {
        for way in [Way::Within, Way::Push, Way::Pull] {
            let lab = Lab::new();
            for directory in ["src/p/sub", "src/q", "src/s"] {
                fs::create_dir_all(lab.join(directory)).expect("directories");
            }
            for file in ["src/p/file", "src/p/sub/deep", "src/q/other"] {
                fs::write(lab.join(file), "x").expect("a file");
            }
            symlink("nowhere", lab.join("src/s/link")).expect("a link");
            for (list, paths) in lists {
                fs::write(lab.join(list), paths).expect("a file");
            }
            let sources = [(*source).to_owned()];
            let theirs = by_rsync(&lab, &[&["-r"], *options].concat(), &sources, "rsync");
            let ours = by_rdcp(&lab, way, options, &sources, "rdcp");
            assert_eq!(theirs.code == 0, ours.code == 0, "{options:?} {way:?}: {}{}", theirs.stderr, ours.stderr);
            assert_eq!(lab.join("rsync").exists(), lab.join("rdcp").exists(), "{options:?} {way:?}: {}", ours.stderr);
            if lab.join("rdcp").exists() {
                let shown = |path: &Vec<u8>| path.escape_ascii().to_string();
                let paths = |place| snapshot(&lab.join(place)).keys().map(shown).collect::<Vec<_>>();
                assert_eq!(paths("rdcp"), paths("rsync"), "{options:?} {way:?}");
            }
            let left = lab.0.names().into_iter().filter(|name| name.contains(".rd-")).count();
            assert_eq!(left, 0, "{options:?} {way:?}: {:?}", lab.0.names());
        }
    }
}

/// As with rsync, SRC itself is a directory on the way to a path that begins with `./`. If it is private, so is DST.
#[test]
fn a_path_that_begins_with_a_dot_leads_through_the_source_itself() {
    let lists = [
        ("dotted", "./p/file"),
        ("slashes", ".//p/file"),
        ("both", "p/file\n./top"),
        ("plain", "p/file\ntop"),
        ("twice", "././p/file"),
        ("all", "./"),
    ];
    let lists_as_options = lists.map(|(list, _)| format!("--files-from={list}"));
    let mut cases: Vec<(&str, &str, bool)> = lists_as_options
        .iter()
        .map(|list| (&**list, "src/", !["plain", "twice"].iter().any(|name| list.ends_with(name))))
        .collect();
    cases.extend([("-R", "src/././p/file", true), ("-R", "src/./p/file", false)]);
    for (option, source, leads) in cases {
        for (more, is_there) in [(&[][..], false), (&[], true), (&["--no-implied-dirs"], false), (&["--delete"], true)]
        {
            for way in [Way::Within, Way::Push, Way::Pull] {
                let lab = Lab::new();
                fs::create_dir_all(lab.join("src/p")).expect("directories");
                for file in ["src/p/file", "src/top"] {
                    fs::write(lab.join(file), "x").expect("a file");
                }
                fs::set_permissions(lab.join("src"), fs::Permissions::from_mode(0o700)).expect("ours");
                for (list, paths) in lists {
                    fs::write(lab.join(list), paths).expect("a file");
                }
                for place in ["rsync", "rdcp"].into_iter().filter(|_| is_there) {
                    fs::create_dir(lab.join(place)).expect("a directory");
                    fs::set_permissions(lab.join(place), fs::Permissions::from_mode(0o755)).expect("ours");
                }
                let (options, sources) = ([&[option], more].concat(), [source.to_owned()]);
                let theirs = by_rsync(&lab, &[&["-r"], &options[..]].concat(), &sources, "rsync/");
                let ours = by_rdcp(&lab, way, &options, &sources, "rdcp/");
                // Otherwise the time is that of the last change.
                let is_implied = !options.contains(&"--no-implied-dirs");
                let is_fine = |found: &Finding, _: &Snapshot| {
                    let gets_time = is_implied && (leads || !found.path.is_empty());
                    found.what == "modified" && [&b""[..], b"p"].contains(&&found.path[..]) && !gets_time
                };
                let lines = wrong(&lab, [theirs, ours], is_fine);
                assert!(lines.is_empty(), "{options:?} {source} {way:?} {is_there}:\n{}", lines.join("\n"));
            }
        }
    }
}

/// Paths that do not fit into one message are one copy all the same: names of one file stay together, wherever in the
/// list they are, `-n` prints what the copy prints, and `--delete-after` is not refused.
#[test]
fn more_paths_than_one_message_holds_are_one_copy() {
    let names: Vec<String> = (0..600).map(|number| format!("d/{number:0240}")).collect();
    let (first, last) = (&names[0], &names[599]);
    for way in [Way::Within, Way::Push, Way::Pull, Way::Between] {
        for is_list in [true, false] {
            let lab = Lab::new();
            for directory in ["src/d", "rsync", "rdcp"] {
                fs::create_dir_all(lab.join(directory)).expect("directories");
            }
            for name in &names[..599] {
                fs::write(lab.join("src").join(name), name).expect("a file");
            }
            fs::hard_link(lab.join("src").join(first), lab.join("src").join(last)).expect("linked");
            fs::write(lab.join("list"), names.join("\n")).expect("a file");
            let options: &[&str] =
                if is_list { &["-r", "--delete-after", "--files-from=list"] } else { &["-r", "--delete-after"] };
            let sources: Vec<String> = match is_list {
                true => vec!["src/".to_owned()],
                false => names.iter().map(|name| format!("src/{name}")).collect(),
            };
            let theirs = by_rsync(&lab, options, &sources, "rsync/");
            let at = |host: &str, path: &str| format!("{host}{}", lab.join(path).display());
            let run = |more: &[&str]| {
                let mut command = lab.command(rdcp(), "rsh", AGENT);
                command.args(["--sync", "--itemize-changes", "--encrypt", "never"]).args(options).args(more);
                command.args(sources.iter().map(|path| at(way.source(0), path))).arg(at(way.destination(), "rdcp/"));
                printed(&lab, &command)
            };
            let (foreseen, ours) = (run(&["-n"]), run(&[]));
            assert_eq!(foreseen.ended.code, 0, "{way:?} {is_list}: {}", foreseen.ended.stderr);
            assert!(ours.lines.len() >= names.len() && foreseen.lines == ours.lines, "{way:?} {is_list}");
            let inode = |name: &str| {
                let path = lab.join("rdcp").join(if is_list { name } else { &name[2..] });
                fs::metadata(path).expect("copied").ino()
            };
            assert_eq!(inode(first), inode(last), "{way:?} {is_list}");
            let lines = wrong(&lab, [theirs, ours.ended], |_, _| false);
            assert!(lines.is_empty(), "{way:?} {is_list}:\n{}", lines.join("\n"));
        }
    }
}

/// rsync would begin the path at the destination after the mark.
#[test]
fn a_mark_within_a_listed_path_is_refused() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/p")).expect("directories");
    fs::write(lab.join("src/p/file"), "x").expect("a file");
    fs::write(lab.join("list"), "p/./file\n").expect("a file");
    let ours = by_rdcp(&lab, Way::Push, &["--files-from=list"], &["src/".to_owned()], "rdcp");
    ours.expect(1).one_line("rdcp", &["p/./file", "/./"]);
    assert!(!lab.join("rdcp").exists());
}

/// Targets of links, from nested directories.
const TARGETS: &[&str] = &[
    "a",
    "./a",
    "../a",
    "../../a",
    "../../../a",
    "d/../a",
    "..",
    ".",
    "../",
    "../..",
    "d/..",
    "../src",
    "../src/..",
    "d//../a",
    "./..",
    "a/../../b",
    "x/..//..",
    "..x",
    "../..x",
    "d/e/../../..",
    "./../d/./e",
    "../src//a",
    "..//..//a",
    "/a",
    "...",
];

const LINKED: &[&[&str]] = &[
    &["src/"],
    &["src"],
    &["src/."],
    &["src/d"],
    &["src/d/"],
    &["src/l0"],
    &["src/d", "src/l1"],
    &["-R", "src/./d"],
    &["-R", "./src/d/e/"],
];

#[test]
fn links_that_lead_out_are_those_that_rsync_leaves_out() {
    let count = each(seeds("links", 1..40, LONG_COUNT), |seed| {
        let (lab, mut random) = (Lab::new(), Random::new(seed));
        fs::create_dir_all(lab.join("src/d/e")).expect("directories");
        for directory in ["src", "src/d", "src/d/e"] {
            for number in 0..4 {
                let target = TARGETS[random.below(TARGETS.len() as u64) as usize];
                symlink(target, lab.join(directory).join(format!("l{number}"))).expect("a link");
            }
        }
        for place in ["rsync", "rdcp"] {
            fs::create_dir(lab.join(place)).expect("a directory");
        }
        let words = LINKED[seed as usize % LINKED.len()];
        let (options, sources): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with("-"));
        let options = [&["--safe-links"], &options[..]].concat();
        let sources: Vec<String> = sources.into_iter().map(str::to_owned).collect();
        // Through another name of this host, the directory that contains DST could be copied into itself.
        let way = WAYS[(seed / 9) as usize % if options.contains(&"-R") { 1 } else { 3 }];
        let ended = [by_rsync(&lab, &options, &sources, "rsync/"), by_rdcp(&lab, way, &options, &sources, "rdcp/")];
        let lines = wrong(&lab, ended, |_, _| false);
        told(lines, || format!("RD_SEED={seed}, {words:?}, {way:?}"), lab)
    });
    assert!(count == 0, "{count} seeds with violations, see above");
}

/// The destination stores whole seconds. With a window none of its entries is touched or reported.
#[test]
fn what_is_within_the_window_is_not_touched() {
    let changed = |path: &Path| {
        let stat = fs::metadata(path).expect("there");
        (stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec())
    };
    for way in [Way::Within, Way::Push, Way::Pull] {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("src/d")).expect("directories");
        fs::write(lab.join("src/d/file"), "x").expect("a file");
        let sources = ["src/".to_owned()];
        by_rdcp(&lab, way, &[], &sources, "copy").expect(0);
        for path in ["copy/d/file", "copy/d", "copy"] {
            let time = rustix::fs::Timespec { tv_sec: fs::metadata(lab.join(path)).expect("it").mtime(), tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, lab.join(path), &times, rustix::fs::AtFlags::empty()).expect("ours");
        }
        let before = ["copy", "copy/d", "copy/d/file"].map(|path| changed(&lab.join(path)));
        by_rdcp(&lab, way, &["--modify-window=1"], &sources, "copy").expect(0);
        assert_eq!(["copy", "copy/d", "copy/d/file"].map(|path| changed(&lab.join(path))), before, "{way:?}");
    }
}

/// Every option of rsync is either accepted, or refused with the option that does the same. None is unknown.
#[test]
fn every_option_of_rsync_is_known() {
    let help = Command::new("rsync").arg("--help").output().expect("rsync");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    // `--no-OPTION` stands for many options, and the last two are not for copies.
    let others = ["--no-OPTION", "--version", "--help"];
    let words = help.lines().flat_map(|line| line.split_whitespace().take_while(|word| word.starts_with('-')));
    let options: Vec<&str> = words
        .map(|word| word.trim_end_matches(','))
        .filter(|word| word.starts_with("--") && !others.contains(word))
        .collect();
    assert!(options.len() > 140, "{options:?}");
    let lab = Lab::new();
    for option in options {
        let word = option.split_once('=').map_or(option.to_owned(), |(name, _)| format!("{name}=1"));
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["--sync", "-r", "-n", &word, "nothing/", "copy"]);
        let ended = limited(&command, lab.0.path(), false, UMASK, Stdio::null());
        assert!(ended.code != 0 && !ended.stderr.contains("unknown option"), "{option}: {}", ended.stderr);
    }
}
