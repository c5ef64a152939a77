//! Where `rdcp` puts copies, and what exists after an interruption: names, links, several sources, incomplete trees.
//! The other hosts are simulated by a launcher that runs the agent on this host.

mod rig;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time for all processes to end after one of them was killed.
const GONE: Duration = Duration::from_secs(8);

/// Hosts of source and destination: between two hosts, and within one.
const WAYS: [(&str, &str); 5] = [("", "h1"), ("h1", ""), ("h1", "h2"), ("h1", "h1"), ("", "")];

impl Lab {
    fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        let mut command = self.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()))
    }

    fn rdcp<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        self.start(arguments).wait()
    }

    /// Returns a path in this directory, on a host or here.
    fn at(&self, host: &str, name: &str) -> OsString {
        if host.is_empty() { name.into() } else { self.there(host, name) }
    }
}

/// Lists everything below a directory: names, kinds, link targets, sizes, modes, and contents of files.
fn listed(top: &Path) -> Vec<String> {
    let mut find = Command::new("find");
    find.current_dir(top).args([".", "-printf", "%P|%y|%l|%m\\n"]);
    let text = String::from_utf8_lossy(&find.output().expect("find").stdout).into_owned();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &mut lines {
        let (name, kind) = line.split_once('|').expect("two parts");
        if kind.starts_with('f') {
            let bytes = fs::read(top.join(name)).expect("readable");
            *line += &format!("|{}", blake3::hash(&bytes));
        }
    }
    lines.sort();
    lines
}

#[track_caller]
fn no_temporaries(top: &Path) {
    let names = listed(top);
    assert!(!names.iter().any(|name| name.contains(".rd-part") || name.contains(".rd-link")), "{names:?}");
}

/// The first generation makes DST, but nothing above it. A generation to which `latest` leads is
/// not changed by another run.
#[test]
fn generations_begin_without_dst_and_do_not_change_once_they_are_whole() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("src/sub")).expect("a directory");
        fs::write(lab.join("src/sub/file"), b"1").expect("a file");
        fs::write(lab.join("single"), b"1").expect("a file");
        for (source, dst) in [("src/", "contents"), ("src", "nested"), ("single", "file")] {
            let copy = |name: &str, dst: &str| {
                let option = OsString::from(format!("--snapshot={name}"));
                lab.rdcp(&["--sync".into(), "-r".into(), option, lab.at(from, source), lab.at(to, dst)])
            };
            let ended = copy("one", &format!("none/{dst}"));
            ended.expect(6);
            assert!(ended.stderr.contains("mkdir -p"), "{}", ended.stderr);
            assert!(!lab.join("none").exists());
            copy("one", dst).expect(0);
            assert_eq!(fs::read_link(lab.join(dst).join("latest")).expect("a link"), Path::new("one"));
            let before = listed(&lab.join(dst));
            assert!(before.iter().any(|line| line.starts_with("one/") && line.contains("|f|")), "{before:?}");
            fs::write(lab.join("src/sub/other"), b"2").expect("a file");
            fs::write(lab.join("single"), b"22").expect("a file");
            let ended = copy("one", dst);
            ended.expect(1);
            assert!(ended.stderr.contains("choose another NAME"), "{}", ended.stderr);
            assert_eq!(listed(&lab.join(dst)), before, "{from} {to}");
            copy("two", dst).expect(0);
            assert_eq!(fs::read_link(lab.join(dst).join("latest")).expect("a link"), Path::new("two"));
            let is_of_first = |line: &&String| line.starts_with("one");
            let first = |lines: &[String]| lines.iter().filter(is_of_first).cloned().collect::<Vec<_>>();
            assert_eq!(first(&listed(&lab.join(dst))), first(&before));
            fs::remove_file(lab.join("src/sub/other")).expect("it");
        }
    }
}

/// Sources that are looked up by several messages are placed by one rule: only a single source takes the name of DST.
#[test]
fn several_sources_keep_their_names_wherever_they_are_from() {
    for (first, second) in [("", "h1"), ("h1", ""), ("h1", "h2")] {
        for (number, to) in ["", "h1", "h3"].into_iter().enumerate() {
            let lab = Lab::new();
            for name in ["one", "two/sub"] {
                fs::create_dir_all(lab.join(name)).expect("a directory");
            }
            lab.0.file("one/mine", b"1");
            lab.0.file("one/same", b"1");
            lab.0.file("two/same", b"2");
            fs::create_dir(lab.join("dst")).expect("a directory");
            for turn in [["one", "two/."], ["two/.", "one"]] {
                let sides = if turn[0] == "one" { [first, second] } else { [second, first] };
                let sources = [0, 1].map(|at| lab.at(sides[at], turn[at]));
                let arguments = [vec!["-r".into()], sources.to_vec(), vec![lab.at(to, "dst")]].concat();
                lab.rdcp(&arguments).expect(0);
                let mut names: Vec<_> =
                    listed(&lab.join("dst")).iter().map(|it| it.split('|').next().map(str::to_owned)).collect();
                names.retain(|name| name.as_deref() != Some(""));
                names.sort();
                let expected = ["one", "one/mine", "one/same", "same", "sub"].map(|name| Some(name.to_owned()));
                assert_eq!(names, expected, "{number} {turn:?}");
                holds(&lab.join("dst/one/same"), b"1");
                holds(&lab.join("dst/same"), b"2");
            }
        }
    }
}

#[test]
fn several_sources_that_fill_more_than_one_message() {
    let lab = Lab::new();
    let long = "n".repeat(200);
    let mut arguments = vec!["-r".into()];
    fs::create_dir_all(lab.join("contents/below")).expect("a directory");
    fs::create_dir_all(lab.join("from")).expect("a directory");
    fs::create_dir(lab.join("dst")).expect("a directory");
    for number in 0..800 {
        let name = format!("from/{long}{number}");
        fs::create_dir(lab.join(&name)).expect("a directory");
        arguments.push(lab.at("h1", &name));
    }
    arguments.extend([lab.at("h1", "contents/."), lab.at("h2", "dst")]);
    lab.rdcp(&arguments).expect(0);
    let mut found: Vec<_> =
        fs::read_dir(lab.join("dst")).expect("it").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(found.len(), 801);
    found.retain(|name| name.len() < 100);
    assert_eq!(found, ["below"]);
}

/// Makes links, FIFOs and names that lead nowhere. Called twice, for cp and for rdcp.
fn links(top: &Path) {
    for name in ["dir/sub", "other", "into"] {
        fs::create_dir_all(top.join(name)).expect("a directory");
    }
    for (name, text) in [("file", "1"), ("dir/inside", "2"), ("other/precious", "3"), ("old", "4")] {
        fs::write(top.join(name), text).expect("a file");
    }
    for (target, name) in [
        ("file", "link"),
        ("old", "to-old"),
        ("other", "to-other"),
        ("nowhere", "dangling"),
        ("../old", "into/link"),
        ("../other", "into/dir"),
        ("old", "into-fifo"),
    ] {
        symlink(target, top.join(name)).expect("a link");
    }
    for name in ["fifo", "old-fifo"] {
        assert!(Command::new("mkfifo").arg(top.join(name)).status().expect("mkfifo").success());
    }
}

/// As with cp, an entry that is copied as itself replaces a link of the same name, and never the target of that link.
#[test]
fn links_at_the_destination_are_treated_as_by_cp() {
    let forms: [&[&str]; 16] = [
        &["-r", "link", "to-old"],
        &["-r", "link", "dangling"],
        &["-r", "link", "old"],
        &["-r", "link", "into"],
        &["-r", "link", "to-other"],
        &["-rT", "link", "to-other"],
        &["-rT", "link", "other"],
        &["-rT", "dir", "to-other"],
        &["-rT", "dir", "to-other/"],
        &["-r", "dir", "to-old"],
        &["-r", "dir", "dangling"],
        &["-r", "dir", "into"],
        &["-r", "fifo", "to-old"],
        &["-r", "link", "old-fifo"],
        &["-r", "file", "to-old"],
        &["-r", "file", "dangling"],
    ];
    for (from, to) in WAYS {
        for form in forms {
            let lab = Lab::new();
            let [cp, rdcp] = ["cp", "rdcp"].map(|name| lab.join(name));
            links(&cp);
            links(&rdcp);
            let options = form[0].replace('r', "a");
            let asked = Command::new("cp").current_dir(&cp).arg(options).args(&form[1..]).output().expect("cp");
            let ended = lab.rdcp(&[
                form[0].into(),
                lab.at(from, &format!("rdcp/{}", form[1])),
                lab.at(to, &format!("rdcp/{}", form[2])),
            ]);
            let what = format!("{form:?} {from:?} {to:?}: {}", ended.stderr);
            assert_eq!(ended.code == 0, asked.status.success(), "{what}");
            assert_eq!(listed(&rdcp), listed(&cp), "{what}");
            if ended.code != 0 {
                ended.expect(6).one_line("rdcp", &[form[2].trim_end_matches('/')]);
            }
        }
    }
    let lab = Lab::new();
    links(&lab.join("x"));
    let told = lab.rdcp(&["x/file".into(), lab.at("h", "x/dangling")]);
    told.expect(6).one_line("rdcp", &["h:", "x/dangling", "dangling symbolic link"]);
}

/// With `--delete-after` nothing is deleted unless every source exists. Sources on several hosts are refused at the
/// start.
#[test]
fn deletion_at_the_end_needs_all_sources() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        for name in ["a", "b", "dst/a", "dst/b"] {
            fs::create_dir_all(lab.join(name)).expect("a directory");
        }
        lab.0.file("a/new", b"1");
        lab.0.file("b/new", b"2");
        lab.0.file("dst/a/extra", b"3");
        let copy = |sources: &[OsString]| {
            let options = ["-r", "--sync", "--delete-after"].map(OsString::from);
            lab.rdcp(&[&options, sources, &[lab.at(to, "dst/")]].concat())
        };
        let ended = copy(&[lab.at(from, "a"), lab.at(from, "nope")]);
        let lines = &ended.expect(8).stderr;
        assert!(lines.contains("nope") && lines.contains("nothing was deleted"), "{lines}");
        holds(&lab.join("dst/a/new"), b"1");
        holds(&lab.join("dst/a/extra"), b"3");
        copy(&[lab.at(from, "a"), lab.at("other", "b")])
            .expect(1)
            .one_line("rdcp", &["--delete-after", "several hosts"]);
        assert!(lab.join("dst/a/extra").exists() && !lab.join("dst/b/new").exists());
        copy(&[lab.at(from, "a"), lab.at(from, "b")]).expect(0);
        assert!(!lab.join("dst/a/extra").exists());
        holds(&lab.join("dst/b/new"), b"2");
    }
}

/// The limit is for the whole copy, which has a session for each host with sources.
#[test]
fn a_limit_of_deletions_is_for_all_sessions() {
    for to in ["", "h3"] {
        let lab = Lab::new();
        for name in ["a", "b"] {
            fs::create_dir(lab.join(name)).expect("a directory");
            fs::create_dir_all(lab.join("dst").join(name)).expect("directories");
            lab.0.file(&format!("{name}/new"), b"1");
            for extra in ["1", "2"] {
                lab.0.file(&format!("dst/{name}/{extra}"), b"2");
            }
        }
        let options = ["-r", "--sync", "--delete", "--max-delete=3"].map(OsString::from);
        let ended = lab.rdcp(&[&options[..], &[lab.at("h1", "a"), lab.at("h2", "b"), lab.at(to, "dst/")]].concat());
        assert!(ended.expect(8).stderr.contains("--max-delete keeps 1 entry"), "{}", ended.stderr);
        let left = ["a/1", "a/2", "b/1", "b/2"].into_iter().filter(|name| lab.join("dst").join(name).exists());
        assert_eq!(left.count(), 1, "three of four are deleted");
        ["a", "b"].iter().for_each(|name| holds(&lab.join("dst").join(name).join("new"), b"1"));
    }
}

#[test]
fn a_generation_has_no_backups() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("a")).expect("a directory");
    let ended = lab.rdcp(&["-r", "--sync", "--backup-dir", "bak", "--snapshot", "one", "a", "dst"]);
    ended.expect(1).one_line("rdcp", &["--backup-dir", "--snapshot"]);
    assert!(!lab.join("dst").exists());
}

#[test]
fn one_bad_source_does_not_keep_the_others() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        lab.0.file("a", b"1");
        lab.0.file("b", b"2");
        for name in ["dst/clash/x", "folder"] {
            fs::create_dir_all(lab.join(name)).expect("a directory");
        }
        lab.0.file("clash", b"3");
        let copy = |sources: &[&str], to: OsString| {
            let sources = sources.iter().map(|name| lab.at(from, name)).collect();
            lab.rdcp(&[sources, vec![to]].concat())
        };
        let ended = copy(&["a", "nope", "folder", "clash", "b", "none"], lab.at(to, "dst"));
        ended.expect(8);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 5, "{}", ended.stderr);
        for words in [["nope", "errno 2"], ["none", "errno 2"], ["folder", "-r"], ["clash", "errno 21"]] {
            let named = lines.iter().filter(|line| words.iter().all(|word| line.contains(word)));
            assert_eq!(named.count(), 1, "{words:?} in {}", ended.stderr);
        }
        assert_eq!(lines[4], "rdcp: 4 entries were not copied in full; the others were copied");
        holds(&lab.join("dst/a"), b"1");
        holds(&lab.join("dst/b"), b"2");
        // Even if the other source is missing, the file counts as one of several sources.
        copy(&["a", "nope"], lab.at(to, "new")).expect(8);
        holds(&lab.join("new/a"), b"1");
        // No source is left to copy.
        let ended = copy(&["nope", "none"], lab.at(to, "dst"));
        assert_eq!(ended.expect(5).stderr.lines().count(), 2, "{}", ended.stderr);
        // An error about DST is reported once.
        copy(&["a", "b"], lab.at(to, "missing/x")).expect(6).one_line("rdcp", &["missing", "errno 2", "mkdir -p"]);
        copy(&["a", "b"], lab.at(to, "clash")).expect(6).one_line("rdcp", &["clash", "errno 20"]);
    }
    // One of the sources is a stream.
    let lab = Lab::new();
    lab.0.file("a", b"1");
    fs::create_dir(lab.join("dst")).expect("a directory");
    let ended = lab.rdcp(&["/proc/self/mem".into(), "a".into(), lab.at("h", "dst")]);
    assert!(ended.expect(8).stderr.contains("/proc/self/mem"), "{}", ended.stderr);
    holds(&lab.join("dst/a"), b"1");
}

#[test]
fn by_an_address_that_is_named() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    let ended = lab.rdcp(&["--via".into(), "no-such-interface".into(), "source".into(), lab.there("h", "x")]);
    ended.expect(3).one_line("rdcp", &["--via", "neither end has", "; the other end has "]).within(GONE);
    assert!(!lab.join("x").exists());
}

/// The copy is made as by cp, with a remark about a name that can only be a host's.
#[test]
fn a_host_without_its_colon_is_noticed() {
    let lab = Lab::new();
    lab.0.file("a", b"1");
    lab.rdcp(&["a", "me@h"]).expect(0).one_line("rdcp", &["local file named me@h", "did you mean me@h:?"]);
    holds(&lab.join("me@h"), b"1");
    // The name is an existing file now.
    assert_eq!(lab.rdcp(&["a", "me@h"]).expect(0).stderr, "");
    assert_eq!(lab.rdcp(&["-q", "a", "10.0.0.1"]).expect(0).stderr, "");
    let ended = lab.rdcp(&["10.0.0.2", "b"]);
    assert!(ended.expect(5).stderr.contains("did you mean 10.0.0.2:PATH?"), "{}", ended.stderr);
    assert!(!lab.join("b").exists() && lab.launches().is_empty());
}

/// As with rsync: several sources, and files copied to a name that ends in a slash, go into a directory that is made if
/// it is missing. As with cp, a single directory takes the name itself.
#[test]
fn the_last_directory_is_made() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("d/below")).expect("a directory");
        for name in ["a", "b", "d/x"] {
            lab.0.file(name, name.as_bytes());
        }
        let copy = |options: &[&str], sources: &[&str], to: OsString| {
            let mut arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
            arguments.extend(sources.iter().map(|name| lab.at(from, name)));
            arguments.push(to);
            lab.rdcp(&arguments)
        };
        copy(&[], &["a", "b"], lab.at(to, "several")).expect(0);
        copy(&[], &["a"], lab.at(to, "slash/")).expect(0);
        copy(&["-r"], &["d", "a"], lab.at(to, "mixed//")).expect(0);
        copy(&["-r"], &["d"], lab.at(to, "copy/")).expect(0);
        for (name, text) in [
            ("several/a", "a"),
            ("several/b", "b"),
            ("slash/a", "a"),
            ("mixed/d/x", "d/x"),
            ("mixed/a", "a"),
            ("copy/x", "d/x"),
        ] {
            holds(&lab.join(name), text.as_bytes());
        }
        // Only the last directory is made, and not by a dry run or for a source that cannot be read.
        copy(&[], &["a", "b"], lab.at(to, "none/new")).expect(6).one_line("rdcp", &["none", "errno 2", "mkdir -p"]);
        copy(&["-n"], &["a", "b"], lab.at(to, "none")).expect(0);
        copy(&[], &["nope"], lab.at(to, "none/")).expect(5);
        // All missing directories are made with --mkpath.
        copy(&["--mkpath", "-n"], &["a"], lab.at(to, "none/of/it/")).expect(0);
        copy(&["--mkpath", "-n", "--sync", "-r"], &["d/"], lab.at(to, "none/of/it")).expect(0);
        copy(&["--mkpath"], &["nope"], lab.at(to, "none/of/it")).expect(5);
        copy(&["--mkpath"], &["a"], lab.at(to, "a/b/c")).expect(6).one_line("rdcp", &["a is not a directory"]);
        assert!(!lab.join("none").exists());
        copy(&["--mkpath"], &["a"], lab.at(to, "all/of/it")).expect(0);
        copy(&["--mkpath"], &["a", "b"], lab.at(to, "made/of/all")).expect(0);
        copy(&["--mkpath", "-r"], &["d"], lab.at(to, "made/./of/../of/a/tree")).expect(0);
        copy(&["--mkpath", "--sync", "-r"], &["d/"], lab.at(to, "made/of/what/is")).expect(0);
        copy(&["--mkpath", "--sync", "-r"], &["d"], lab.at(to, "made/of/what/is not/")).expect(0);
        for (name, text) in [
            ("all/of/it", "a"),
            ("made/of/all/b", "b"),
            ("made/of/a/tree/x", "d/x"),
            ("made/of/what/is/x", "d/x"),
            ("made/of/what/is not/d/x", "d/x"),
        ] {
            holds(&lab.join(name), text.as_bytes());
        }
        no_temporaries(lab.0.path());
    }
    // A FIFO is read, and becomes a file in the directory.
    let lab = Lab::new();
    lab.0.fifo("p");
    let mut copy = lab.start(&["p".into(), lab.at("h", "new/")]);
    fs::write(lab.join("p"), b"through it").expect("a reader");
    copy.wait().expect(0);
    holds(&lab.join("new/p"), b"through it");
}

/// A directory that was made for a copy is removed again if nothing has been copied into it.
#[test]
fn a_directory_made_for_nothing_is_removed() {
    for to in ["", "h"] {
        let lab = Lab::new();
        lab.0.file("a", &noise(20 * CHUNK));
        lab.0.fifo("p");
        // Copies of files within a host are too fast to be interrupted. A FIFO without a writer is not.
        let mut arguments: Vec<OsString> = vec!["a".into(), "-l".into(), "800".into(), "p".into()];
        if to.is_empty() {
            arguments = vec!["p".into()];
        }
        arguments.push(lab.at(to, "new/"));
        let mut copy = lab.start(&arguments);
        let until = Instant::now() + PATIENCE;
        while !lab.join("new").exists() {
            assert!(Instant::now() < until && copy.is_running(), "{}", copy.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        copy.signal(Signal::INT);
        copy.wait().expect(130).within(GONE);
        let until = Instant::now() + GONE;
        while lab.join("new").exists() {
            assert!(Instant::now() < until, "{:?}", listed(&lab.join("new")));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Size of a tree's large file, which resumes after an interruption.
const LARGE: usize = 72 * CHUNK;

/// Makes a tree whose copy takes some seconds at [`RATE`]: small files, then a large one, then more.
fn plant(lab: &Lab) {
    fs::create_dir_all(lab.join("t/a/deep")).expect("directories");
    fs::create_dir_all(lab.join("t/z")).expect("directories");
    for number in 0..60 {
        fs::write(lab.join(&format!("t/a/file{number:02}")), noise(1000 * number)).expect("a file");
    }
    fs::write(lab.join("t/a/deep/whole"), noise(LARGE + 1)).expect("a file");
    fs::write(lab.join("t/large"), noise(LARGE)).expect("a file");
    fs::hard_link(lab.join("t/a/file07"), lab.join("t/z/linked")).expect("a link");
    fs::hard_link(lab.join("t/large"), lab.join("t/z/large")).expect("a link");
    symlink("../nowhere", lab.join("t/z/link")).expect("a link");
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("551").arg(lab.join("t/a")).status().expect("chmod").success());
    let mut touch = Command::new("touch");
    let old = touch.args(["-d", "2001-02-03", "t", "t/a", "t/z"]).current_dir(lab.0.path());
    assert!(old.status().expect("touch").success());
}

const RATE: &str = "40M";

/// Returns the number of bytes of data in a directory.
fn blocks(top: &Path) -> u64 {
    let mut du = Command::new("du");
    let output = du.args(["-s", "-B1"]).arg(top).output().expect("du");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Starts a copy of the tree, and waits until this much has arrived.
fn started(lab: &Lab, from: &str, to: &str, bytes: u64) -> Process {
    let mut process =
        lab.start(&["--bwlimit".into(), RATE.into(), "-r".into(), lab.at(from, "t"), lab.at(to, "dst/new")]);
    let until = Instant::now() + PATIENCE;
    while blocks(&lab.join("dst")) < bytes {
        assert!(process.is_running() && Instant::now() < until, "nothing flows: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    process
}

#[track_caller]
fn is_whole(lab: &Lab) {
    assert_eq!(listed(&lab.join("dst/new")), listed(&lab.join("t")));
    assert_eq!(fs::read_dir(lab.join("dst")).expect("it").count(), 1, "nothing beside it");
    let times = ["t", "dst/new", "t/a", "dst/new/a"].map(|name| fs::metadata(lab.join(name)).expect("it").mtime());
    assert_eq!([times[0], times[2]], [times[1], times[3]]);
    let inodes = ["large", "z/large"].map(|name| fs::metadata(lab.join("dst/new").join(name)).expect("it").ino());
    assert_eq!(inodes[0], inodes[1], "one file");
}

/// An interrupted tree has no name. The next run makes the same copy as without the interruption.
#[test]
fn a_tree_that_was_cut_is_gone_on_with_under_the_same_name() {
    for (from, to) in [("", "h1"), ("h1", ""), ("h1", "h2")] {
        for (number, victim) in ["interrupt", "caller", "agent"].into_iter().enumerate() {
            let lab = Lab::new();
            plant(&lab);
            fs::create_dir(lab.join("dst")).expect("a directory");
            let at = [1, 30, 100][number] * CHUNK as u64;
            let mut process = started(&lab, from, to, at);
            match victim {
                "interrupt" => process.signal(Signal::INT),
                "caller" => process.signal(Signal::KILL),
                _ => {
                    let pid = Pid::from_raw(lab.launches().last().expect("an agent").0 as i32).expect("not 0");
                    kill_process(pid, Signal::KILL).expect("an agent");
                }
            }
            let ended = process.wait_for(GONE);
            assert!(!lab.join("dst/new").exists(), "{victim}: it is not whole");
            if victim == "interrupt" {
                let kept = partials(&lab.join("dst"));
                assert_eq!(kept.len(), 1, "{kept:?}");
                let kept = kept[0].0.file_name().expect("a name").to_str().expect("ASCII").to_owned();
                ended.expect(130).one_line("rdcp", &["interrupted; ", "kept in ", &kept, ", run again to "]);
            }
            // At once, while killed processes may still hold the tree.
            let report = lab.join("report");
            let arguments = ["--json=report".into(), "-r".into(), lab.at(from, "t"), lab.at(to, "dst/new")];
            lab.rdcp(&arguments).expect(0);
            is_whole(&lab);
            let text = fs::read_to_string(report).expect("a report");
            let copied = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
            let kept = copied.filter_map(|line| line["kept_bytes"].as_u64()).next_back().expect("a copy");
            assert!(at < 64 << 20 || kept >= 16 << 20, "{kept} bytes were not sent again");
        }
    }
}

/// The remains of one tree do not get into another, not even into a later state of the same tree.
#[test]
fn what_a_cut_copy_left_is_not_taken_for_part_of_another() {
    let lab = Lab::new();
    plant(&lab);
    fs::create_dir(lab.join("dst")).expect("a directory");
    let mut process = started(&lab, "", "h1", 100 * CHUNK as u64);
    process.signal(Signal::INT);
    process.wait_for(GONE).expect(130);
    let left = partials(&lab.join("dst"))[0].0.clone();
    let names = listed(&left);
    assert!(names.iter().any(|name| name.starts_with("a/file")) && names.len() > 20, "{names:?}");
    // A directory has become a file, a large file a directory, and other entries are gone.
    fs::remove_dir_all(lab.join("t/a")).expect("ours");
    lab.0.file("t/a", b"a file now");
    for name in ["t/large", "t/z/large"] {
        fs::remove_file(lab.join(name)).expect("ours");
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    lab.rdcp(&["-r".into(), "t".into(), lab.at("h2", "dst/new")]).expect(0);
    assert_eq!(listed(&lab.join("dst/new")), listed(&lab.join("t")));
    no_temporaries(&lab.join("dst"));
}

/// A complete tree is a directory to copy into.
#[test]
fn a_tree_that_is_there_is_copied_into() {
    let lab = Lab::new();
    plant(&lab);
    fs::create_dir(lab.join("dst")).expect("a directory");
    for name in ["dst/new", "dst/new/t"] {
        lab.rdcp(&["-r".into(), "t".into(), lab.at("h", "dst/new")]).expect(0);
        assert!(lab.join(name).join("large").exists());
    }
    no_temporaries(&lab.join("dst"));
}

#[test]
fn two_copies_to_one_new_name_do_not_meet() {
    let lab = Lab::new();
    plant(&lab);
    fs::create_dir(lab.join("dst")).expect("a directory");
    let mut first = lab.start(&["--bwlimit".into(), "8M".into(), "-r".into(), "t".into(), lab.at("h1", "dst/new")]);
    let until = Instant::now() + PATIENCE;
    while blocks(&lab.join("dst")) < CHUNK as u64 {
        assert!(first.is_running() && Instant::now() < until, "nothing flows: {}", first.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = lab.rdcp(&["-r".into(), "t".into(), lab.at("h2", "dst/new")]);
    second.expect(6).one_line("rdcp", &["h2:", "dst/new", "another copy"]);
    assert!(first.is_running(), "{}", first.stderr());
    first.wait().expect(0);
    is_whole(&lab);
}

/// An agent that has not yet noticed that its caller was killed still holds the file that it was writing.
#[test]
fn pushing_again_right_after_a_kill_succeeds() {
    let lab = Lab::new();
    let bytes = noise(LARGE);
    lab.0.file("source", &bytes);
    for to in ["h1", "h2"] {
        let target = lab.at(to, "target");
        let mut process = lab.start(&["--bwlimit".into(), "16M".into(), "source".into(), target.clone()]);
        let until = Instant::now() + PATIENCE;
        while partials(lab.0.path()).iter().all(|(_, there)| *there < 4 * CHUNK as u64) {
            assert!(process.is_running() && Instant::now() < until, "nothing flows: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        process.signal(Signal::KILL);
        process.wait();
        lab.rdcp(&["source".into(), target]).expect(0);
        holds(&lab.join("target"), &bytes);
        fs::remove_file(lab.join("target")).expect("ours");
    }
    no_temporaries(lab.0.path());
    // The same with a stream.
    let fifo = lab.0.fifo("fifo");
    let mut process = lab.start(&["fifo".into(), lab.at("h1", "stream")]);
    // Nothing is written yet: if the process died before reading, the next reader would get the data.
    let pipe = fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads");
    let until = Instant::now() + PATIENCE;
    while partials(lab.0.path()).is_empty() {
        assert!(process.is_running() && Instant::now() < until, "nothing flows: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::KILL);
    process.wait();
    drop(pipe);
    let writer = std::thread::spawn(move || fs::write(fifo, b"from a fifo"));
    lab.rdcp(&["fifo".into(), lab.at("h1", "stream")]).expect(0);
    writer.join().expect("no panic").expect("it was read");
    holds(&lab.join("stream"), b"from a fifo");
}

/// A directory in the place of a partial file is removed like any other entry. If it cannot be
/// removed, the error names it.
#[test]
fn what_is_in_the_way_of_a_partial_is_named() {
    let lab = Lab::new();
    lab.0.file("source", &noise(LARGE));
    let partial = name_beside("target", "rd-part");
    fs::create_dir_all(lab.join(&partial).join("deep/er")).expect("directories");
    lab.rdcp(&["source".into(), lab.at("h", "target")]).expect(0);
    no_temporaries(lab.0.path());
    let mut deepest = lab.join(&partial);
    // Deeper than the limit for removal.
    for _ in 0..1030 {
        deepest.push("d");
    }
    fs::create_dir_all(&deepest).expect("directories");
    lab.rdcp(&["source".into(), lab.at("h", "target")]).expect(6).one_line("rdcp", &["h:", &partial, "errno"]);
}

/// The file for which there was no more space does not keep the disk full. Anything else that is kept is reported.
#[test]
fn a_full_disk_is_not_kept_full() {
    let lab = Lab::new();
    lab.0.file("source", &noise(LARGE));
    fs::create_dir(lab.join("t")).expect("a directory");
    lab.0.file("t/large", &noise(LARGE));
    lab.0.file("t/first", &noise(4 * CHUNK));
    let Some(small) = Small::mount(&lab.join("small"), "70m") else {
        assert!(!rustix::process::geteuid().is_root(), "root may mount");
        return not_run("a small file system cannot be mounted here");
    };
    for to in ["h", ""] {
        let ended = lab.rdcp(&["source".into(), lab.at(to, "small/target")]);
        ended.expect(6).one_line("rdcp", &["small/target", "errno 28"]);
        assert!(to.is_empty() || ended.stderr.contains("was removed"), "{}", ended.stderr);
        assert_eq!(fs::read_dir(lab.join("small")).expect("it").count(), 0);
    }
    let copy = || lab.rdcp(&["-r".into(), "t".into(), lab.at("h", "small/new")]);
    let ended = copy();
    ended.expect(6).one_line("rdcp", &["errno 28): ", " kept in h:/", ".rd-part, make room and run again to resume"]);
    assert!(!lab.join("small/new").exists());
    for (left, _) in partials(&lab.join("small")) {
        let name = left.file_name().expect("a name").to_str().expect("ASCII");
        assert!(ended.stderr.contains(name), "what is kept is said: {}", ended.stderr);
        assert!(blocks(&lab.join("small")) < 64 << 20, "there is room again");
    }
    small.resize("100m");
    copy().expect(0);
    assert_eq!(listed(&lab.join("small/new")), listed(&lab.join("t")));
    no_temporaries(&lab.join("small"));
    drop(small);
}

/// As between hosts: the remains of a tree are named, and the next run uses them.
#[test]
fn an_interrupted_copy_within_a_host_says_what_it_leaves() {
    let lab = Lab::new();
    fs::create_dir(lab.join("tree")).expect("a directory");
    for number in 0..20_000 {
        fs::write(lab.join(&format!("tree/f{number}")), b"x").expect("a file");
    }
    fs::create_dir(lab.join("into")).expect("a directory");
    let left = || fs::read_dir(lab.join("into")).expect("it").map(|entry| entry.expect("one").path());
    let mut process = Process::spawn(lab.command(rdcp(), "rsh", AGENT).args(["-r", "tree", "into/new"]));
    let until = Instant::now() + PATIENCE;
    while left().next().is_none() && Instant::now() < until {}
    process.signal(Signal::INT);
    process.wait().expect(130).one_line("rdcp", &["interrupted; nothing usable kept in into/.", " over, or remove it"]);
    assert!(!lab.join("into/new").exists() && left().count() == 1);
    lab.rdcp(&["-r", "tree", "into/new"]).expect(0);
    assert_eq!(left().collect::<Vec<_>>(), [lab.join("into/new")], "nothing else is left");
    assert_eq!(fs::read_dir(lab.join("into/new")).expect("it").count(), 20_000);
}

// --- the report ------------------------------------------------------------------------------------------------------

#[test]
fn the_report_is_lines_of_json_with_an_end() {
    let lab = Lab::new();
    lab.0.file("source", &noise(CHUNK));
    lab.rdcp(&["--json=report".into(), "--bwlimit".into(), "600K".into(), "source".into(), lab.there("h", "x")])
        .expect(0);
    let text = fs::read_to_string(lab.join("report")).expect("a report");
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["event"] == "progress"), "{text}");
    let file = lines.iter().find(|line| line["event"] == "copied").expect("the file");
    assert_eq!((file["bytes"].as_u64(), file["entries"].as_u64()), (Some(CHUNK as u64), Some(1)));
    assert_eq!(file["level"], "written");
    let last = lines.last().expect("an end");
    assert_eq!(
        (last["event"].as_str(), last["bytes"].as_u64(), last["exit"].as_u64()),
        (Some("end"), Some(CHUNK as u64), Some(0))
    );
    assert_eq!(last["transport"], "tcp");
}

#[test]
fn what_failed_and_what_would_be_copied_is_reported() {
    let lab = Lab::new();
    fs::create_dir(lab.join("tree")).expect("a directory");
    fs::write(lab.join("tree/fine"), b"fine").expect("a file");
    let odd = OsStr::from_bytes(b"odd\xff");
    fs::write(lab.join("").join(odd), b"odd").expect("a file");
    let odd_path = lab.join("").join(odd).into_os_string();
    let read = |name: &str| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(lab.join(name)).expect("a report");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    fs::create_dir(lab.join("into")).expect("a directory");
    let to = lab.there("h", "into");
    let plan: Vec<OsString> = vec!["-n".into(), "-r".into(), "--json=plan".into(), odd_path, "tree".into(), to.clone()];
    lab.rdcp(&plan).expect(0);
    let [one, two, end] = &read("plan")[..] else { panic!("three lines") };
    assert_eq!((one["event"].as_str(), one["from"]["path_hex"].is_string()), (Some("would-copy"), true), "{one}");
    assert_eq!((one["kind"].as_str(), one["bytes"].as_u64()), (Some("file"), Some(3)), "{one}");
    assert_eq!((two["from"]["path"].as_str(), two["kind"].as_str()), (Some("tree"), Some("directory")), "{two}");
    let into = lab.join("into/tree");
    assert_eq!((two["to"]["host"].as_str(), two["to"]["path"].as_str()), (Some("h"), into.to_str()), "{two}");
    assert_eq!((end["event"].as_str(), end["exit"].as_u64()), (Some("end"), Some(0)));
    assert!(!into.exists());
    // One of the two sources is missing.
    lab.rdcp(&["-r".into(), "--json=report".into(), "nowhere".into(), "tree".into(), to]).expect(8);
    let lines = read("report");
    let failed = lines.iter().find(|line| line["event"] == "failed").expect("it");
    assert_eq!((failed["code"].as_str(), failed["errno"].as_u64()), (Some("source"), Some(2)), "{failed}");
    assert_eq!((failed["at"]["path"].as_str(), failed["exit"].as_u64()), (Some("nowhere"), Some(5)), "{failed}");
    let end = lines.last().expect("an end");
    assert_eq!((end["exit"].as_u64(), end["failure"]["code"].as_str()), (Some(8), Some("partial")), "{end}");
    assert!(lines.iter().all(|line| line["schema"] == 1));
}

/// Listed entries may be copied into a directory within their base, but not into a listed entry.
#[test]
fn a_list_is_copied_within_its_base() {
    for host in ["", "h"] {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("s/a/b")).expect("directories");
        lab.0.file("s/a/b/file", b"1");
        lab.0.file("list", b"s/a\n");
        let side = |name: &str| if host.is_empty() { lab.join(name).into_os_string() } else { lab.there(host, name) };
        let copy = |options: &[&str], from: &str, to: &str| {
            let options = ["--sync", "-r"].iter().chain(options).map(OsString::from).collect::<Vec<_>>();
            lab.rdcp(&[options, vec![side(from), side(to)]].concat())
        };
        copy(&["-R"], "s/a/b", "d").expect(0);
        let below = lab.join("s/a/b/file");
        assert!(lab.join("d").join(below.strip_prefix("/").expect("absolute")).exists(), "{host}");
        let list = format!("--files-from={}", lab.join("list").display());
        copy(&[&list], "", "t").expect(0);
        assert!(lab.join("t/s/a/b/file").exists(), "{host}");
        for (options, from, to) in [(["-R"], "s/a", "s/a/b/new"), ([&*list], "", "s/a/new")] {
            let ended = copy(&options, from, to);
            ended.expect(1).one_line("rdcp", &["which is listed, contains DST"]);
            assert!(!lab.join(to).exists(), "{host}");
        }
    }
}
