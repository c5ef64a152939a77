//! `rdcp` with a launcher that runs the agent on this host: where copies are placed, failures, and what is left.
//! `tests/rdcp_hosts.rs` has real hosts and sshd.

mod rig;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_pipe::control::frames::{MAJOR, MINOR};
use rig::lab::*;
use rig::*;
use rustix::process::Signal;

/// Maximum time for all processes to end after one of them was killed.
const GONE: Duration = Duration::from_secs(5);

impl Lab {
    /// Prepares rdcp with the launcher of this name.
    fn rdcp_by(&self, launcher: &str) -> Command {
        self.rdcp_with(launcher, AGENT)
    }

    fn rdcp_with(&self, launcher: &str, agent: &str) -> Command {
        let mut command = self.command(rdcp(), launcher, agent);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn rdcp<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        Process::spawn(self.rdcp_by("rsh").args(arguments)).wait()
    }
}

#[test]
fn any_two_sides() {
    let lab = Lab::new();
    let bytes = noise(3 * CHUNK + 17);
    let here = lab.0.file("source", &bytes);
    let there = lab.there("h1", "source");
    for (number, from) in [here.as_os_str(), &there].into_iter().enumerate() {
        for to in ["", "h1:", "h2:"] {
            let name = format!("copy{number}{}", to.trim_end_matches(':'));
            let target = if to.is_empty() { lab.join(&name).into() } else { lab.there(&to[..2], &name) };
            lab.rdcp(&[from, &target]).expect(0);
            holds(&lab.join(&name), &bytes);
        }
    }
    lab.all_gone(SOON);
}

#[test]
fn no_bytes_one_byte_and_a_chunk() {
    let lab = Lab::new();
    for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1] {
        let bytes = noise(length);
        lab.0.file("source", &bytes);
        lab.rdcp(&["source".into(), lab.there("h", "there")]).expect(0);
        holds(&lab.join("there"), &bytes);
        lab.rdcp(&[lab.there("h", "there"), "here".into()]).expect(0);
        holds(&lab.join("here"), &bytes);
    }
}

#[test]
fn names_arrive_byte_for_byte() {
    let lab = Lab::new();
    let names: &[&[u8]] = &[
        b"a b",
        b"-rf",
        b"it's \"x\"",
        b"$(touch pwned)`touch pwned`;touch pwned",
        b"line\nbreak",
        b"\xff\xfe",
        b"*[x]?",
        b"a:b",
        b"~",
    ];
    fs::create_dir(lab.join("home/to")).expect("a directory");
    for (number, name) in names.iter().enumerate() {
        let bytes = noise(1000 + number);
        let name = OsStr::from_bytes(name);
        let mut local = OsString::from("./");
        local.push(name);
        fs::write(lab.0.path().join(&local), &bytes).expect("a file");
        let mut there = OsString::from("h:to/");
        there.push(name);
        // Relative to the login's home, under its full name and into a directory.
        lab.rdcp(&[&local, &there]).expect(0);
        holds(&lab.join("home/to").join(name), &bytes);
        fs::remove_file(lab.join("home/to").join(name)).expect("it is there");
        lab.rdcp(&[&local, &OsString::from("h:to")]).expect(0);
        let back = lab.join(&format!("back{number}"));
        lab.rdcp(&[there.as_os_str(), back.as_os_str()]).expect(0);
        holds(&back, &bytes);
    }
    assert!(!lab.join("pwned").exists() && !lab.join("home/pwned").exists(), "no shell saw a name");
    for (_, host, command) in lab.launches() {
        assert_eq!((host.as_str(), command.as_str()), ("h", AGENT), "nothing of the copy is in the command");
    }
}

#[test]
fn patterns_and_homes_are_expanded_there() {
    let lab = Lab::new();
    for name in ["a.txt", "b.txt", "c.dat", ".d.txt"] {
        fs::write(lab.join("home").join(name), name).expect("a file");
    }
    fs::create_dir(lab.join("into")).expect("a directory");
    lab.rdcp(&["h:*.txt", "h:~/c.*", "into"]).expect(0);
    let mut names: Vec<_> =
        fs::read_dir(lab.join("into")).expect("it").map(|entry| entry.expect("it").file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.txt", "b.txt", "c.dat"]);
    holds(&lab.join("into/b.txt"), b"b.txt");
    // A backslash makes the next character literal. An entry whose name equals the pattern is
    // copied itself, with a remark.
    fs::write(lab.join("home/a b"), "blank").expect("a file");
    lab.rdcp(&["h:a\\ b", "into"]).expect(0);
    holds(&lab.join("into/a b"), b"blank");
    fs::write(lab.join("home/*.txt"), "itself").expect("a file");
    let itself = lab.rdcp(&["h:*.txt", "itself"]);
    itself.expect(0).one_line("rdcp", &["h:*.txt is an existing name"]);
    holds(&lab.join("itself"), b"itself");
    fs::remove_file(lab.join("home/*.txt")).expect("ours");
    lab.rdcp(&["h:*.none", "into"]).expect(5).one_line("rdcp", &["h: no file matches *.none"]);
    lab.rdcp(&["h:~no-such-user/x", "into"]).expect(5).one_line("rdcp", &["~no-such-user/x: ", "; no such user there"]);
    // On this host, the shell expands patterns.
    lab.rdcp(&["*.txt", "h:x"]).expect(5).one_line("rdcp", &["*.txt", "errno 2"]);
}

#[test]
fn placed_as_cp_does() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("other", b"2");
    lab.0.file("old", b"old");
    fs::create_dir(lab.join("dir")).expect("a directory");
    fs::set_permissions(lab.join("old"), fs::Permissions::from_mode(0o640)).expect("ours");
    let there = |name: &str| lab.there("h", name);
    lab.rdcp(&["source".into(), there("dir")]).expect(0);
    holds(&lab.join("dir/source"), b"1");
    lab.rdcp(&["source".into(), there("old")]).expect(0);
    holds(&lab.join("old"), b"1");
    let mode = |name: &str| fs::metadata(lab.join(name)).expect("it").mode() & 0o777;
    assert_eq!(mode("old"), mode("source"), "as with cp -a");
    fs::set_permissions(lab.join("old"), fs::Permissions::from_mode(0o640)).expect("ours");
    lab.rdcp(&["--no-mode".into(), "source".into(), there("old")]).expect(0);
    assert_eq!(mode("old"), 0o640, "an old file keeps its mode");
    lab.rdcp(&["-t".into(), there("dir"), "other".into(), "old".into()]).expect(0);
    holds(&lab.join("dir/other"), b"2");
    holds(&lab.join("dir/old"), b"1");
    lab.rdcp(&["-T".into(), "source".into(), there("dir")]).expect(6).one_line("rdcp", &["h:", "dir", "errno 21"]);
    assert!(lab.made(&["source", "other", "old", "dir"]).is_empty());
}

/// Checks that two trees are alike: names, kinds, contents, modes, times, links.
#[track_caller]
fn alike(one: &Path, other: &Path) {
    let listed = |top: &Path| {
        let mut find = Command::new("find");
        find.current_dir(top).args([".", "-printf", "%P %y %m %s %T@ %n %l\\n"]);
        // The size of a directory depends on its file system.
        let text = String::from_utf8_lossy(&find.output().expect("find").stdout).into_owned();
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| {
                let mut words: Vec<&str> = line.split(' ').collect();
                if words.len() > 3 && words[1] == "d" {
                    words[3] = "";
                }
                words.join(" ")
            })
            .collect();
        lines.sort();
        lines
    };
    let (left, right) = (listed(one), listed(other));
    assert!(left.len() > 5, "something to compare");
    assert_eq!(left, right);
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).args([one, other]).output().expect("diff");
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

/// Makes a tree with entries of every kind.
fn tree(lab: &Lab, name: &str) -> PathBuf {
    let top = lab.join(name);
    fs::create_dir_all(top.join("sub/empty")).expect("a directory");
    for number in 0..300 {
        fs::write(top.join(format!("sub/file{number}")), noise(number * 37)).expect("a file");
    }
    fs::write(top.join("large"), noise(3 * CHUNK + 5)).expect("a file");
    fs::write(top.join(OsStr::from_bytes(b"\xff \x01")), b"odd").expect("a file");
    // More hard links than may wait for a large file.
    for number in 0..100 {
        fs::hard_link(top.join("large"), top.join(format!("sub/linked{number}"))).expect("a link");
    }
    std::os::unix::fs::symlink("../nowhere", top.join("sub/symbolic")).expect("a link");
    fs::set_permissions(top.join("sub/file7"), fs::Permissions::from_mode(0o4711)).expect("ours");
    fs::set_permissions(top.join("sub"), fs::Permissions::from_mode(0o750)).expect("ours");
    top
}

#[test]
fn trees_between_any_two_sides() {
    let lab = Lab::new();
    let source = tree(&lab, "tree");
    for (number, (from, to)) in [("", "h1"), ("h1", ""), ("h1", "h2"), ("h1", "h1"), ("", "")].into_iter().enumerate() {
        let side = |host: &str, name: &str| if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) };
        let name = format!("copy{number}");
        lab.rdcp(&["-r".into(), side(from, "tree"), side(to, &name)]).expect(0);
        alike(&source, &lab.join(&name));
        // Into an existing directory, and the contents into another.
        fs::create_dir(lab.join(&format!("into{number}"))).expect("a directory");
        lab.rdcp(&["-r".into(), side(from, "tree"), side(to, &format!("into{number}"))]).expect(0);
        alike(&source, &lab.join(&format!("into{number}/tree")));
        lab.rdcp(&["-r".into(), side(from, "tree/."), side(to, &name)]).expect(0);
        alike(&source, &lab.join(&name));
    }
    lab.all_gone(SOON);
}

#[test]
fn contents_of_directories_are_merged_beside_other_sources() {
    let lab = Lab::new();
    for (name, text) in [("a/one", "1"), ("a/sub/two", "2"), ("b/sub/three", "3"), ("file", "4")] {
        fs::create_dir_all(lab.join(name).parent().expect("one")).expect("a directory");
        lab.0.file(name, text.as_bytes());
    }
    fs::set_permissions(lab.join("b"), fs::Permissions::from_mode(0o711)).expect("ours");
    for (number, (from, to)) in [("", "h"), ("h", ""), ("h1", "h2"), ("", ""), ("h", "h")].into_iter().enumerate() {
        let side = |host: &str, name: &str| if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) };
        let name = format!("into{number}");
        fs::create_dir(lab.join(&name)).expect("a directory");
        let sources = ["a/.", "file", "b/sub/.."].map(|source| side(from, source));
        let arguments = [vec!["-r".into()], sources.to_vec(), vec![side(to, &name)]].concat();
        let planned = lab.rdcp(&[vec!["-n".into()], arguments.clone()].concat());
        let lines: Vec<&str> = planned.expect(0).stderr.lines().collect();
        for (line, end) in lines.iter().zip([name.clone(), format!("{name}/file"), name.clone()]) {
            assert!(line.ends_with(&end), "{line}");
        }
        assert_eq!((lines.len(), fs::read_dir(lab.join(&name)).expect("it").count()), (3, 0));
        lab.rdcp(&arguments).expect(0);
        for (file, text) in [("one", "1"), ("sub/two", "2"), ("sub/three", "3"), ("file", "4")] {
            holds(&lab.join(&name).join(file), text.as_bytes());
        }
        assert_eq!(fs::read_dir(lab.join(&name)).expect("it").count(), 3);
        assert_eq!(fs::metadata(lab.join(&name)).expect("it").mode() & 0o777, 0o711, "that of the last");
        // The root directory has no name either.
        let planned = lab.rdcp(&[
            "-n".into(),
            "-r".into(),
            side(from, "a/."),
            if to.is_empty() { "/".into() } else { format!("{to}:/").into() },
        ]);
        let line = planned.expect(0).stderr.trim_end();
        assert!(line.ends_with(if to.is_empty() { " to /" } else { ":/" }), "{line}");
    }
    lab.rdcp(&["-r".into(), "a/.".into(), "file".into(), lab.there("h", "none/new")]).expect(6);
    lab.all_gone(SOON);
}

/// One failed entry, and more than a message has room for.
#[test]
fn entries_that_fail_are_named_and_do_not_keep_the_others() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("tree/sub")).expect("directories");
    (0..151).for_each(|number| drop(lab.0.file(&format!("tree/sub/file{number}"), &noise(number * 37))));
    for (number, (from, to)) in [("", "h1"), ("h1", ""), ("h1", "h2"), ("h1", "h1"), ("", "")].into_iter().enumerate() {
        let side = |host: &str, name: &str| if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) };
        for (count, told) in [(1, "1 entry was"), (150, "150 entries were")] {
            let name = format!("copy{number}of{count}");
            // Non-empty directories in the places of files.
            let file = |number: usize| lab.join(&name).join(format!("tree/sub/file{number}"));
            (0..count).for_each(|number| fs::create_dir_all(file(number).join("x")).expect("directories"));
            let ended = lab.rdcp(&["-r".into(), side(from, "tree"), side(to, &name)]);
            ended.expect(8);
            let mut lines: Vec<&str> = ended.stderr.lines().collect();
            assert_eq!(lines.pop(), Some(&*format!("rdcp: {told} not copied in full; the others were copied")));
            let host = if to.is_empty() { String::new() } else { format!("{to}:") };
            let mut expected: Vec<String> = (0..count).map(|at| format!("{host}{}: ", file(at).display())).collect();
            lines.retain(|line| {
                expected.iter().position(|it| line.contains(it)).map(|at| expected.remove(at)).is_none()
            });
            assert!(lines.is_empty() && expected.is_empty(), "{}", ended.stderr);
            holds(&file(150), &noise(150 * 37));
        }
    }
    lab.all_gone(SOON);
}

/// Returns the level that was reached, according to the file `report`.
fn level(lab: &Lab) -> String {
    let text = fs::read_to_string(lab.join("report")).expect("a report");
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let mut copied = lines.filter(|line| line["event"] == "copied");
    let copied = copied.next_back().expect("a copy");
    copied["level"].as_str().expect("a level").to_owned()
}

#[test]
fn what_is_kept_and_left_out_is_chosen() {
    let lab = Lab::new();
    let top = tree(&lab, "tree");
    for name in ["a.o", "keep.o", "sub/b.o", "sub/empty/c"] {
        fs::write(top.join(name), b"x").expect("a file");
    }
    let names = |name: &str| {
        let mut find = Command::new("find");
        let output = find.current_dir(lab.join(name)).args([".", "-name", "*.o", "-o", "-name", "c"]).output();
        let mut names: Vec<String> =
            String::from_utf8_lossy(&output.expect("find").stdout).lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    for (number, (from, to)) in [("", "h"), ("h", ""), ("", "")].into_iter().enumerate() {
        let side = |host: &str, name: &str| if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) };
        let (some, bare) = (format!("some{number}"), format!("bare{number}"));
        let patterns = ["--include=keep.o", "--exclude=*.o", "--exclude=sub/empty/"].map(OsString::from);
        let mut arguments = vec!["-r".into()];
        arguments.extend(patterns);
        arguments.extend([side(from, "tree"), side(to, &some)]);
        lab.rdcp(&arguments).expect(0);
        assert_eq!(names(&some), ["./keep.o"]);
        // A source that is named itself is copied even if a pattern excludes it.
        lab.rdcp(&["--exclude=*".into(), side(from, "tree/a.o"), side(to, "a.o")]).expect(0);
        fs::remove_file(lab.join("a.o")).expect("copied");
        let mut arguments: Vec<OsString> =
            ["-r", "--no-mode", "--no-times", "--no-hard-links"].map(OsString::from).into();
        arguments.extend([side(from, "tree"), side(to, &bare)]);
        lab.rdcp(&arguments).expect(0);
        let (was, is) = (top.join("sub/file7"), lab.join(&bare).join("sub/file7"));
        let (was, is) = (fs::metadata(was).expect("it"), fs::metadata(is).expect("it"));
        assert_eq!(is.mode() & 0o7000, 0, "no setuid without mode");
        assert_ne!((was.mtime(), was.mtime_nsec()), (is.mtime(), is.mtime_nsec()));
        assert_eq!(fs::metadata(lab.join(&bare).join("large")).expect("it").nlink(), 1);
    }
    let refused = lab.rdcp(&["--exclude=[z-a]".into(), "tree/a.o".into(), lab.there("h", "x")]);
    refused.expect(1).one_line("rdcp", &["[z-a]"]);
    lab.all_gone(SOON);
}

#[test]
fn the_level_that_was_asked_for_is_reached_and_told() {
    let lab = Lab::new();
    lab.0.file("source", &noise(2 * CHUNK + 1));
    lab.0.file("small", b"small");
    for (option, reached) in [("-q", "written"), ("--fsync", "synced"), ("--verify=disk", "re-read")] {
        for name in ["source", "small"] {
            let to = lab.there("h", &format!("{name}-{reached}"));
            lab.rdcp(&["--json=report".into(), option.into(), name.into(), to]).expect(0);
            assert_eq!(level(&lab), reached);
            holds(&lab.join(&format!("{name}-{reached}")), &fs::read(lab.join(name)).expect("it"));
        }
    }
    let here = lab.rdcp(&["--verify=disk", "source", "x"]);
    here.expect(1).one_line("rdcp", &["--verify=disk"]);
    lab.rdcp(&["--bwlimit", "10M", "source", "x"]).expect(1).one_line("rdcp", &["--bwlimit"]);
    // In place: the inode is kept, with other contents.
    lab.0.file("old", &noise(3 * CHUNK));
    let inode = fs::metadata(lab.join("old")).expect("it").ino();
    lab.rdcp(&["--in-place".into(), "source".into(), lab.there("h", "old")]).expect(0);
    holds(&lab.join("old"), &noise(2 * CHUNK + 1));
    assert_eq!(fs::metadata(lab.join("old")).expect("it").ino(), inode);
    lab.all_gone(SOON);
}

#[test]
fn standard_input_and_output() {
    let lab = Lab::new();
    let bytes = noise(2 * CHUNK + 5);
    let mut command = lab.rdcp_by("rsh");
    let mut process = Process::spawn(command.arg("-").arg(lab.there("h", "out")).stdin(Stdio::piped()));
    feed(process.stdin(), bytes.clone());
    process.wait().expect(0);
    holds(&lab.join("out"), &bytes);
    let mut process = Process::spawn(lab.rdcp_by("rsh").arg(lab.there("h", "out")).arg("-"));
    let output = drain(process.stdout());
    process.wait().expect(0);
    same(&output.join().expect("no panic"), &bytes);
    // Within one host: both ends in one process, or behind two agents.
    let mut process = Process::spawn(lab.rdcp_by("rsh").args(["-v", "-", "here"]).stdin(Stdio::piped()));
    feed(process.stdin(), bytes.clone());
    let ended = process.wait();
    assert!(ended.expect(0).stderr.starts_with("rdcp: data: tcp "), "{}", ended.stderr);
    let mut process = Process::spawn(lab.rdcp_by("rsh").args(["here", "-"]));
    let output = drain(process.stdout());
    process.wait().expect(0);
    same(&output.join().expect("no panic"), &bytes);
    lab.0.fifo("fifo");
    let mut process = Process::spawn(lab.rdcp_by("rsh").args([lab.there("h", "fifo"), lab.there("h", "there")]));
    fs::write(lab.join("fifo"), &bytes).expect("somebody reads it");
    process.wait().expect(0);
    holds(&lab.join("there"), &bytes);
    // A reader that closes the pipe.
    let mut command = lab.rdcp_by("rsh");
    let mut process = Process::spawn(command.args(["h:/dev/zero", "-"]));
    process.stdout().read_exact(&mut [0; 1000]).expect("some of it");
    let ended = process.wait();
    assert_eq!((ended.code, ended.stderr.as_str()), (141, ""));
    lab.all_gone(GONE);
}

/// Guarantees that cannot be given are refused.
#[test]
fn what_is_done_for_files_alone_is_refused_for_streams() {
    let lab = Lab::new();
    lab.0.file("source", b"a file");
    fs::create_dir(lab.join("dir")).expect("a directory");
    lab.0.fifo("fifo");
    let there = |name| lab.there("h", name);
    for option in ["--fsync", "--verify=disk", "--in-place", "--chmod=F600", "--chown=:4711"] {
        let name = option.trim_end_matches("=F600").trim_end_matches("=:4711");
        for (sources, to) in [
            (vec!["-".into()], there("x")),
            (vec![there("source")], "-".into()),
            (vec!["fifo".into()], there("x")),
            (vec!["source".into(), "fifo".into()], there("dir")),
            (vec!["source".into()], "h:/dev/null".into()),
        ] {
            let arguments = [vec![option.into()], sources, vec![to]].concat();
            lab.rdcp(&arguments).expect(1).one_line("rdcp", &[name, "stream"]).within(SOON);
        }
    }
    assert!(lab.made(&["source", "dir", "fifo"]).is_empty());
    assert_eq!(fs::read_dir(lab.join("dir")).expect("it").count(), 0);
    lab.all_gone(SOON);
}

#[test]
fn a_fifo_behind_a_file_is_read_and_not_made_anew() {
    let lab = Lab::new();
    lab.0.file("source", b"a file");
    fs::create_dir(lab.join("dir")).expect("a directory");
    let fifo = lab.0.fifo("fifo");
    let writer = std::thread::spawn(move || fs::write(fifo, b"from a fifo"));
    lab.rdcp(&["source".into(), "fifo".into(), lab.there("h", "dir")]).expect(0);
    writer.join().expect("no panic").expect("it was read");
    holds(&lab.join("dir/source"), b"a file");
    holds(&lab.join("dir/fifo"), b"from a fifo");
    assert!(fs::symlink_metadata(lab.join("dir/fifo")).expect("it").is_file());
}

#[test]
fn bad_input_changes_nothing() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    fs::create_dir_all(lab.join("dir/below")).expect("a directory");
    fs::set_permissions(lab.join("source"), fs::Permissions::from_mode(0o644)).expect("ours");
    let path = |name: &str| lab.join(name).into_os_string();
    let there = |name: &str| lab.there("h1", name);
    let there_too = |name: &str| lab.there("h2", name);
    let cases: Vec<(Vec<OsString>, i32, Vec<&str>)> = vec![
        (vec![there("none"), path("x")], 5, vec!["h1:", "none", "errno 2"]),
        (vec![path("none"), there("x")], 5, vec!["none", "errno 2"]),
        (vec![there("source/x"), path("x")], 5, vec!["h1:", "errno 20"]),
        (vec![path("source"), there("none/x")], 6, vec!["h1:", "none", "errno 2"]),
        (vec![path("source"), path("none/x")], 6, vec!["none", "errno 2", "mkdir -p"]),
        (vec![there("source"), there_too("source/x")], 6, vec!["h2:", "errno 20", "source is not a directory"]),
        (vec![path("source"), path("noted"), there("source")], 6, vec!["h1:", "errno 20", "several sources need"]),
        (
            vec!["-T".into(), path("source"), there("x/")],
            6,
            vec!["h1:", "errno 20", "a trailing slash means a directory"],
        ),
        (vec![path("source"), "h1::module/x".into()], 1, vec!["rsync daemon", "h1:PATH"]),
        (vec![path("dir"), there("x")], 1, vec!["dir", "is a directory", "-r"]),
        (vec![there("dir"), path("x")], 1, vec!["h1:", "dir", "is a directory", "-r"]),
        (vec![path("source"), path("source")], 1, vec!["same file"]),
        (vec![there("source"), there("source")], 1, vec!["same file"]),
        (vec![path("source"), there("source")], 0, vec!["same file", "left unchanged"]),
        (vec![there("source"), path("source")], 0, vec!["same file", "left unchanged"]),
        (vec![there("source"), there_too("dir/../source")], 0, vec!["same file", "left unchanged"]),
        (vec!["-r".into(), path("dir"), there("")], 0, vec!["same file", "left unchanged"]),
        (vec!["-r".into(), there("dir"), there("dir/below")], 1, vec!["into itself"]),
        (vec![path("source"), there("source"), there("dir")], 1, vec!["two sources"]),
        (
            vec![path("source"), path("noted"), there("none/x")],
            6,
            vec!["h1:", "errno 2", "create it on h1 with: mkdir -p"],
        ),
        (vec![path("source"), ":x".into()], 1, vec!["host or user is missing"]),
        (vec![path("source"), "-oProxyCommand=x:y".into()], 1, vec!["-o"]),
        (vec!["-i".into(), path("source"), path("noted"), path("dir")], 1, vec!["source", "--itemize-changes"]),
    ];
    fs::write(lab.join("noted"), "").expect("a file");
    for (arguments, code, parts) in cases {
        let arguments: Vec<OsString> = if arguments.iter().any(|it| it == "-r" || it == "-T" || it == "-i") {
            arguments
        } else {
            [vec!["--".into()], arguments].concat()
        };
        let ended = lab.rdcp(&arguments);
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        ended.one_line("rdcp", &parts).within(SOON);
        assert_eq!(lab.made(&["source", "dir"]), Vec::<String>::new(), "{arguments:?}");
    }
    holds(&lab.join("source"), b"1");
    assert_eq!(fs::read_dir(lab.join("dir/below")).expect("it").count(), 0);
}

#[test]
fn a_dry_run_changes_nothing() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("old", b"old");
    let before = fs::metadata(lab.join("old")).expect("it");
    let ended = lab.rdcp(&["-n".into(), "source".into(), lab.there("h", "old")]);
    ended.expect(0).one_line("rdcp", &["would copy source to h:", "old"]);
    lab.rdcp(&["-n".into(), "source".into(), lab.there("h", "new")]).expect(0);
    // As with --sync, -q leaves only errors.
    let ended = lab.rdcp(&["-nq".into(), "source".into(), lab.there("h", "new")]);
    assert_eq!(ended.expect(0).stderr, "");
    lab.rdcp(&["-n".into(), "source".into(), lab.there("h", "none/new")]).expect(6);
    let after = fs::metadata(lab.join("old")).expect("it");
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
    assert!(lab.made(&["source", "old"]).is_empty());
}

#[test]
fn an_agent_that_is_not_there() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    let mut command = lab.rdcp_with("rsh", "/nonexistent/agent");
    command.arg("source").arg(lab.there("h", "x"));
    let ended = Process::spawn(&mut command).wait();
    ended.expect(3).one_line("rdcp", &["h has no /nonexistent/agent", "--agent"]).within(SOON);
    assert!(lab.made(&["source"]).is_empty());
}

#[test]
fn launchers_that_fail() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.script("refuses", "echo banner >&2; echo 'no route to h' >&2; exit 255");
    lab.script("fails", "echo odd >&2; exit 3");
    lab.script("babbles", "yes | head -c 200000; sleep 20");
    for (launcher, parts) in [
        ("refuses", &["cannot reach h by refuses", "no route to h"][..]),
        ("fails", &["no agent", "h", "3", "odd"]),
        ("babbles", &["not an rdma-pipe agent"]),
        ("none", &["cannot run", "none: ", "errno 2", "--rsh"]),
    ] {
        let ended = Process::spawn(lab.rdcp_by(launcher).arg("source").arg(lab.there("h", "x"))).wait();
        ended.expect(3).one_line("rdcp", parts).within(SOON + SOON);
    }
    assert!(!lab.join("x").exists());
    // What may have been meant: a file, or several hosts.
    lab.0.file("h:f", b"1");
    for (from, to, hint) in [("h:f", "copy", "type ./h:f"), ("source", "h1,h2:", "a list such as h[1-2]")] {
        let ended = Process::spawn(lab.rdcp_by("refuses").args([from, to])).wait();
        ended.expect(3).one_line("rdcp", &["cannot reach h", "no route to h; for ", hint]);
    }
    lab.all_gone(SOON);
}

#[test]
fn what_login_scripts_print_does_no_harm() {
    let lab = Lab::new();
    lab.0.file("source", b"12345");
    lab.script("motd", "head -c 60000 /dev/urandom; printf '\\0rdma-pipe agent'; exec sh -c \"exec $2\"");
    let ended = Process::spawn(lab.rdcp_by("motd").arg("source").arg(lab.there("h", "x"))).wait();
    ended.expect(0);
    holds(&lab.join("x"), b"12345");
}

#[test]
fn another_major_is_refused_by_name() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    // The magic, then a HELLO of major 9, minor 7, program 9.9, with an unknown field.
    let hello = r"\0rdma-pipe agent\0\n\027\0\0\0\202\0\201\211\011\007\1439.9\141L\141m\141c\100\100\144more";
    lab.script("newer", &format!("printf '{hello}'; cat >/dev/null"));
    let ended = Process::spawn(lab.rdcp_by("newer").arg("source").arg(lab.there("h", "x"))).wait();
    let ours = format!("{} ({MAJOR}.{MINOR})", env!("CARGO_PKG_VERSION"));
    ended.expect(9).one_line("rdcp", &["h has rdma-pipe 9.9", "9.7", &ours]).within(SOON);
    assert!(!lab.join("x").exists());
    lab.all_gone(SOON);
}

#[test]
fn what_no_agent_may_say_is_refused() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    // An excessive length, and an invalid message, each after a HELLO.
    for (name, rest) in [("long", r"\377\377\377\377"), ("garbage", r"\004\0\0\0abcd")] {
        let hello =
            format!(r"\0rdma-pipe agent\0\n\022\0\0\0\202\0\201\210\{MAJOR:03o}\0\1430.1\141L\141m\141c\100\100");
        lab.script(name, &format!("printf '{hello}{rest}'; exec cat >/dev/null"));
        let ended = Process::spawn(lab.rdcp_by(name).arg("source").arg(lab.there("h", "x"))).wait();
        ended.expect(9).one_line("rdcp", &["the agent on h broke the protocol"]).within(SOON);
    }
    lab.all_gone(SOON);
}

#[test]
fn a_destination_that_cannot_be_written() {
    let lab = Lab::new();
    lab.0.file("source", &noise(CHUNK));
    let ended = lab.rdcp(&["source", "h:/dev/full"]);
    ended.expect(6).one_line("rdcp", &["h:/dev/full", "errno 28"]).within(SOON);
    let ended = lab.rdcp(&["h:/proc/self/mem", "x"]);
    ended.expect(5).one_line("rdcp", &["h:/proc/self/mem", "errno 5"]).within(SOON);
    // Between two agents, which inform each other and the caller.
    let ended = lab.rdcp(&[lab.there("h1", "source"), "h2:/dev/full".into()]);
    ended.expect(6).one_line("rdcp", &["h2:/dev/full", "errno 28"]).within(SOON);
    let ended = lab.rdcp(&["h1:/proc/self/mem".into(), lab.there("h2", "x")]);
    ended.expect(5).one_line("rdcp", &["h1:/proc/self/mem", "errno 5"]).within(SOON);
    assert!(lab.made(&["source"]).is_empty());
    lab.all_gone(SOON);
}

#[test]
fn through_the_channel_when_asked() {
    let lab = Lab::new();
    let bytes = noise(5 * CHUNK + 3);
    lab.0.file("source", &bytes);
    for (name, from, to) in [
        ("up", "source".into(), lab.there("h", "up")),
        ("down", lab.there("h", "source"), "down".into()),
        ("between", lab.there("h1", "source"), lab.there("h2", "between")),
    ] {
        let ended = lab.rdcp(&["--relay".into(), "-v".into(), from, to]);
        assert!(ended.expect(0).stderr.contains(", through rsh"), "{}", ended.stderr);
        holds(&lab.join(name), &bytes);
    }
    lab.all_gone(SOON);
}

/// Starts a slow copy from and to these sides, and waits until some of it has arrived.
fn slow(lab: &Lab, from: &str, to: &str) -> Process {
    let mut command = lab.rdcp_by("rsh");
    command.args(["--bwlimit", "8M", "--progress"]);
    for (side, name) in [(from, "source"), (to, "target")] {
        match side {
            "" => command.arg(lab.join(name)),
            host => command.arg(lab.there(host, name)),
        };
    }
    let process = Process::spawn(&mut command);
    let until = Instant::now() + PATIENCE;
    while !partials(lab.0.path()).iter().any(|(_, bytes)| *bytes > CHUNK as u64) {
        assert!(Instant::now() < until, "nothing flows: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    process
}

fn slow_lab() -> Lab {
    let lab = Lab::new();
    lab.0.file("source", &noise(64 * CHUNK));
    lab.0.file("target", b"old");
    lab
}

const PAIRS: [(&str, &str); 3] = [("", "h1"), ("h1", ""), ("h1", "h2")];

#[test]
fn signals_end_all_ends() {
    for (from, to) in PAIRS {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let lab = slow_lab();
            let mut process = slow(&lab, from, to);
            let start = Instant::now();
            process.signal(signal);
            let ended = process.wait_for(GONE);
            assert_eq!(ended.code, code, "{from:?} {to:?}: {}", ended.stderr);
            lab.all_gone_since(start, GONE);
            holds(&lab.join("target"), b"old");
        }
    }
}

#[test]
fn a_killed_caller_leaves_nothing() {
    for (from, to) in PAIRS {
        let lab = slow_lab();
        let mut process = slow(&lab, from, to);
        let start = Instant::now();
        process.signal(Signal::KILL);
        process.wait();
        lab.all_gone_since(start, GONE);
        holds(&lab.join("target"), b"old");
    }
}

#[test]
fn a_killed_agent_leaves_nothing() {
    for (from, to) in PAIRS {
        for victim in 0..usize::from(!from.is_empty()) + usize::from(!to.is_empty()) {
            let lab = slow_lab();
            let mut process = slow(&lab, from, to);
            let start = Instant::now();
            let pid = rustix::process::Pid::from_raw(lab.launches()[victim].0 as i32).expect("not 0");
            rustix::process::kill_process(pid, Signal::KILL).expect("an agent");
            let ended = process.wait_for(GONE);
            assert_eq!(ended.code, 4, "{from:?} {to:?}: {}", ended.stderr);
            lab.all_gone_since(start, GONE);
            holds(&lab.join("target"), b"old");
        }
    }
}

#[test]
fn an_agent_that_is_stopped_by_hand_tells_so() {
    let lab = slow_lab();
    let mut process = slow(&lab, "", "h1");
    let pid = rustix::process::Pid::from_raw(lab.launches()[0].0 as i32).expect("not 0");
    rustix::process::kill_process(pid, Signal::TERM).expect("an agent");
    process.wait_for(GONE).expect(4);
    assert!(process.stderr().contains("signal 15"), "{}", process.stderr());
    lab.all_gone(GONE);
}

#[test]
fn the_agent_has_no_use_by_hand_and_tells_its_version() {
    let ended = Process::spawn(Command::new(AGENT).arg("--version").stdin(Stdio::null()).stdout(Stdio::piped())).wait();
    ended.expect(0);
    // A peer that sends nothing, and a peer that speaks another protocol.
    let mut process = Process::spawn(Command::new(AGENT).stdin(Stdio::null()).stdout(Stdio::null()));
    process.wait_for(SOON).expect(0);
    let mut process = Process::spawn(Command::new(AGENT).stdin(Stdio::piped()).stdout(Stdio::null()));
    process.stdin().write_all(b"GET / HTTP/1.1\r\n\r\n").expect("a pipe");
    process.wait_for(SOON).expect(9);
}

#[test]
fn secrets_stay_out_of_sight() {
    let lab = slow_lab();
    let process = slow(&lab, "", "h1");
    let agent = lab.launches()[0].0;
    for pid in [agent, process.pid()] {
        for file in ["cmdline", "environ"] {
            let shown = OsString::from_vec(fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default());
            let long_hex = shown.as_bytes().split(|byte| !byte.is_ascii_hexdigit()).any(|word| word.len() >= 64);
            assert!(!long_hex, "no key in {file}");
        }
    }
    let told = fs::read(format!("/proc/{agent}/cmdline")).expect("an agent");
    assert!(!told.windows(4).any(|some| some == b"e2e-"), "no path in the agent's arguments");
}

/// Each level of a tree takes a descriptor at either end. On most systems the initial limit is a fraction of the limit
/// that a process may set for itself.
#[test]
fn a_tree_deeper_than_the_soft_limit_on_open_files() {
    const LEVELS: usize = 150;
    let lab = Lab::new();
    let deepest = ["d"; LEVELS].join("/");
    fs::create_dir_all(lab.join("from").join(&deepest)).expect("directories");
    fs::write(lab.join("from").join(&deepest).join("file"), "down there").expect("a file");
    for (from, to) in
        [(lab.join("from").into_os_string(), lab.there("h", "up")), (lab.there("h", "up"), lab.join("down").into())]
    {
        let mut command = lab.rdcp_by("rsh");
        command.arg("-r").args([from, to]);
        let mut limited = in_shell("ulimit -S -n 100; exec \"$@\"", &command);
        limited.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut limited).wait().expect(0);
    }
    assert_eq!(fs::read(lab.join("down").join(&deepest).join("file")).expect("it arrived"), b"down there");
}

#[test]
fn links_are_passed_over_where_that_is_asked_for() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("ours");
    lab.0.file("from/file", b"data");
    std::os::unix::fs::symlink("file", lab.join("from/link")).expect("a link");
    for to in ["here".into(), lab.there("h", "there")] {
        lab.rdcp(&["-r".into(), "--no-symlinks".into(), "from".into(), to]).expect(0);
    }
    for to in ["here", "there"] {
        let names: Vec<_> =
            fs::read_dir(lab.join(to)).expect("made").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["file"], "{to}");
    }
}
