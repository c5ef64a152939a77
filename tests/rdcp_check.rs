//! `rdcp --check`: exit codes, what is printed, and the report for programs.

mod rig;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::Lab;
use rig::others::{NOBODY, as_user};
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Makes a directory with one file. Returns its manifest.
fn tree(scratch: &Scratch) -> String {
    let top = scratch.join("tree");
    fs::create_dir(&top).expect("a directory");
    fs::write(top.join("file"), "contents").expect("a file");
    manifest_of(&top)
}

fn manifest_of(top: &Path) -> String {
    let line = |name: &str, kind: &str, size: &str, contents: &str| {
        let stat = fs::metadata(top.join(name)).expect("there");
        let (mode, seconds, nanoseconds) = (stat.permissions().mode() & 0o7777, stat.mtime(), stat.mtime_nsec());
        format!("{kind}\t{mode:04o}\t{size}\t{seconds}.{nanoseconds:09}\t{contents}\t{name}\n")
    };
    let digest = blake3::hash(b"contents").to_hex();
    format!("rdcp manifest 1\n{}{}end 2\n", line(".", "d", "-", "-"), line("file", "f", "8", &digest))
}

/// Returns exit code, standard output and standard error.
fn check(scratch: &Scratch, options: &[&str], manifest: &str) -> (Option<i32>, String, String) {
    let file = scratch.file("manifest", manifest.as_bytes());
    let mut command = Command::new(PROGRAM);
    command.arg("rdcp").args(options).arg(file).arg(scratch.join("tree"));
    let output = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_differs_is_named_and_the_exit_code_is_7() {
    let scratch = Scratch::new();
    let manifest = tree(&scratch);
    let file = scratch.join("tree/file");
    for option in ["--check", "--check=cached", "--check=disk"] {
        assert_eq!(check(&scratch, &[option], &manifest), (Some(0), String::new(), String::new()));
    }
    let damaged = manifest.replace("\t8\t", "\t9\t");
    let (exit, told, error) = check(&scratch, &["--check"], &damaged);
    assert_eq!((exit, told), (Some(7), format!("size {}\n", file.display())));
    assert!(error.starts_with("rdcp: 1 entry of ") && error.lines().count() == 1, "{error}");
    let (exit, told, _) = check(&scratch, &["--check", "--json"], &damaged);
    let mut lines = told.lines();
    assert_eq!(exit, Some(7));
    let first = lines.next().expect("a line");
    assert!(first.contains(r#""event":"differs""#) && first.contains(r#""differs":["size"]"#), "{first}");
    assert!(lines.next().expect("the end").contains(r#""exit":7"#) && lines.next().is_none());
    fs::write(scratch.join("tree/other"), "").expect("a file");
    let (exit, told, _) = check(&scratch, &["--check=cached"], &manifest);
    assert_eq!(exit, Some(7));
    assert!(told.contains(&format!("extra {}\n", scratch.join("tree/other").display())), "{told}");
}

/// A comparison whose lines cannot be printed ends, and says so.
#[test]
fn lines_that_nobody_can_read_end_it() {
    let scratch = Scratch::new();
    let manifest = tree(&scratch);
    let file = scratch.file("manifest", manifest.replace("\t8\t", "\t9\t").as_bytes());
    let command = || {
        let mut command = rdcp();
        command.arg("--check").arg(&file).arg(scratch.join("tree")).stdin(Stdio::null());
        command
    };
    let ended = Process::spawn(&mut in_shell("exec \"$@\" >/dev/full", &command())).wait();
    ended.expect(6).one_line("rdcp", &["cannot write standard output", "errno 28"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Process::spawn(command().stdout(writer)).wait();
    assert_eq!(ended.expect(141).stderr, "");
    // More than a pipe holds.
    for number in 0..2000 {
        fs::write(scratch.join(&format!("tree/{number:0200}")), "").expect("a file");
    }
    let mut process = Process::spawn(command().stdout(Stdio::piped()));
    let unread = process.stdout();
    let start = Instant::now();
    while rustix::io::ioctl_fionread(&unread).expect("a pipe") < 32 << 10 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(process.is_running(), "{}", process.stderr());
    process.signal(Signal::TERM);
    process.wait().expect(143).within(Duration::from_secs(5));
}

#[test]
fn what_cannot_be_read_has_its_own_exit_code() {
    let scratch = Scratch::new();
    let manifest = tree(&scratch);
    let (exit, told, error) = check(&scratch, &["--check"], manifest.trim_end_matches("end 2\n"));
    assert_eq!((exit, told.as_str()), (Some(5), ""));
    assert!(error.contains("truncated after line"), "{error}");
    let (exit, _, error) = check(&scratch, &["--check"], "something else\n");
    assert_eq!(exit, Some(5), "{error}");
    fs::rename(scratch.join("tree"), scratch.join("moved")).expect("renamed");
    let (exit, _, error) = check(&scratch, &["--check"], &manifest);
    assert_eq!(exit, Some(6), "{error}");
}

/// Nothing differs, as far as it can be told.
#[test]
fn what_cannot_be_compared_is_no_difference() {
    let lab = Lab::for_users();
    tree(&lab.0);
    for (name, mode) in [("tree", 0o755), ("tree/file", 0)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let file = lab.0.file("manifest", manifest_of(&lab.join("tree")).as_bytes());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.arg("--check").arg(&file).arg(lab.join("tree"));
    let is_root = rustix::process::geteuid().is_root();
    let line = if is_root { as_user(NOBODY, lab.0.path()) } else { "exec \"$@\"".to_owned() };
    let mut command = in_shell(&line, &command);
    command.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = Process::spawn(&mut command).wait();
    let told = &ended.expect(8).stderr;
    assert!(told.contains("errno 13") && told.contains("1 entry of "), "{told}");
    assert!(told.contains("could not be compared"), "{told}");
}

#[test]
fn a_manifest_may_come_from_standard_input() {
    let scratch = Scratch::new();
    let manifest = tree(&scratch);
    for (manifest, code) in [(manifest.replace("\t8\t", "\t9\t"), 7), (manifest, 0)] {
        let file = fs::File::open(scratch.file("manifest", manifest.as_bytes())).expect("a file");
        let output = rdcp().args(["--check", "-"]).arg(scratch.join("tree")).stdin(file).output();
        assert_eq!(output.expect("it runs").status.code(), Some(code));
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    let scratch = Scratch::new();
    for words in
        [&["--check", "one"][..], &["--check", "a", "-"], &["--check", "host:a", "dir"], &["--check", "a", "h[1-4]:d"]]
    {
        let output = Command::new(PROGRAM).arg("rdcp").args(words).current_dir(scratch.join(".")).output();
        assert_eq!(output.expect("it runs").status.code(), Some(1), "{words:?}");
    }
}

/// A manifest may come from a program that is silent for any time. A signal, and the loss of the agent, end the
/// comparison all the same.
#[test]
fn a_silent_manifest_holds_up_no_end() {
    for (host, is_lost, code) in [("", false, 143), ("h", false, 143), ("h", true, 4)] {
        let lab = Lab::new();
        fs::create_dir(lab.join("tree")).expect("a directory");
        let fifo = lab.0.fifo("manifest");
        // Open in both directions, so it is never at its end.
        let mut feed = fs::OpenOptions::new().read(true).write(true).open(&fifo).expect("a FIFO");
        feed.write_all(b"rdcp manifest 1\n").expect("room");
        let directory = if host.is_empty() { lab.join("tree").into_os_string() } else { lab.there(host, "tree") };
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.arg("--check").arg(&fifo).arg(directory).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let until = Instant::now() + PATIENCE;
        while rustix::io::ioctl_fionread(&feed).expect("a FIFO") > 0 {
            assert!(process.is_running() && Instant::now() < until, "{host}: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_lost {
            let agent = lab.launches()[0].0;
            kill_process(Pid::from_raw(agent as i32).expect("not 0"), Signal::KILL).expect("it runs");
        } else {
            process.signal(Signal::TERM);
        }
        process.wait().expect(code);
    }
}
