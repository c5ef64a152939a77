//! `make demo` as a new user runs it, with the programs of the tests in place of a release. As root, the demo makes its
//! own hosts; otherwise both ends are on this host.

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::*;
use rustix::process::{Pid, Signal, kill_process_group};

/// A target directory in which `make build` finds everything built, with this shell text in place of the compiler.
struct Built(Scratch);

impl Built {
    fn by(compiler: &str) -> Self {
        let scratch = Scratch::new();
        let release = scratch.join("release");
        fs::create_dir(&release).expect("a directory");
        for program in [PROGRAM, AGENT] {
            let name = Path::new(program).file_name().expect("a name");
            std::os::unix::fs::symlink(program, release.join(name)).expect("a link");
        }
        let cargo = scratch.file("cargo", format!("#!/bin/sh\n{compiler}\n").as_bytes());
        fs::set_permissions(cargo, fs::Permissions::from_mode(0o755)).expect("ours");
        Self(scratch)
    }

    fn command(&self, program: &str, mebibytes: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO", self.0.join("cargo"));
        command.env("CARGO_TARGET_DIR", self.0.path()).env("DEMO_MIB", mebibytes);
        command.env("TARGET_NOTE", self.0.join("target-dir"));
        // Set by a make that may be running this test.
        command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("V");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// Returns the directory that the demo names for its data.
fn data_of(said: &str) -> PathBuf {
    let line = said.lines().find(|line| line.starts_with("Making ")).expect("says what it makes");
    line.rsplit(' ').next().expect("a word").into()
}

#[test]
fn it_sends_a_stream_and_a_tree_and_ends_with_what_to_type_next() {
    let built = Built::by("echo '   Compiling noise v1.0' >&2");
    let mut command = built.command("make", "8");
    command.arg("demo");
    let mut process = Process::spawn(&mut command);
    let said = drain(process.stdout());
    let ended = process.wait();
    let said = String::from_utf8(said.join().expect("no panic")).expect("text");
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{said}");
    assert!(!said.contains("Compiling"), "{said}");
    let long: Vec<&str> = said.lines().filter(|line| line.chars().count() > 80 && !line.contains("PATH=")).collect();
    assert!(long.is_empty(), "80 columns: {long:?}");
    let (steps, next) = said.split_once("\nOK: every byte arrived\n").expect("all is well");
    let well = steps.lines().filter(|line| *line == "   OK").count();
    assert_eq!(
        well,
        steps.lines().filter(|line| line.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok())).count()
    );
    assert!(steps.contains("$ rdcp -r tree/ ") && steps.contains("$ rdsend ") && well >= 2, "{said}");
    // The PATH is printed only if the programs are not installed.
    let is_installed =
        std::env::var_os("PATH").is_some_and(|all| std::env::split_paths(&all).any(|it| it.join("rdcp").exists()));
    assert_eq!(next.contains(&format!("PATH={}/release:$PATH", built.0.path().display())), !is_installed, "{next}");
    assert!(next.contains("    rdcp -r docs/ HOST:"), "{next}");
    assert!(!data_of(&said).exists(), "nothing is left");
}

#[test]
fn a_build_that_fails_is_shown() {
    let built = Built::by("echo 'error: no such thing' >&2; exit 101");
    let mut command = built.command("make", "8");
    let mut process = Process::spawn(command.arg("demo"));
    let said = drain(process.stdout());
    let ended = process.wait();
    let said = String::from_utf8(said.join().expect("no panic")).expect("text");
    assert_eq!(ended.code, 2, "make's: {said}{}", ended.stderr);
    assert!(ended.stderr.contains("error: no such thing\n"), "{}", ended.stderr);
    let log = built.0.join("demo-build.log");
    assert!(ended.stderr.contains(&format!("all that it printed is in {}\n", log.display())), "{}", ended.stderr);
    assert!(fs::read_to_string(log).expect("kept").contains("error: no such thing\n"));
    assert!(said.ends_with("FAILED: ended early (exit code 1); see above\n"), "{said}");
}

/// ^C, which all foreground processes receive.
#[test]
fn an_interrupted_one_leaves_nothing() {
    let built = Built::by("true");
    // A sender that takes as long as the demo waits.
    let program = built.0.join("release/rdma-pipe");
    fs::remove_file(&program).expect("a link");
    let slow =
        format!("#!/bin/sh\nname=${{0##*/}}\n[ $name != rdsend ] || exec sleep 300\nexec {PROGRAM} $name \"$@\"\n");
    fs::write(&program, slow).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let mut command = built.command("demo/run", "8");
    let mut process = Process::spawn(command.process_group(0));
    let output = process.stdout();
    let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let into = std::sync::Arc::clone(&said);
    let reader = std::thread::spawn(move || {
        use std::io::BufRead;
        for line in std::io::BufReader::new(output).lines() {
            let line = line.expect("text") + "\n";
            into.lock().expect("no panic").push_str(&line);
        }
    });
    let until = Instant::now() + PATIENCE;
    while !said.lock().expect("no panic").contains("$ rdsend ") {
        assert!(Instant::now() < until, "{}{}", said.lock().expect("no panic"), process.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    let group = Pid::from_raw(process.pid() as i32).expect("not 0");
    kill_process_group(group, Signal::INT).expect("ours");
    let ended = process.wait_for(Duration::from_secs(20));
    reader.join().expect("no panic");
    let said = said.lock().expect("no panic").clone();
    assert_eq!(ended.code, 130, "{said}{}", ended.stderr);
    assert!(said.ends_with("\nInterrupted; nothing is left behind\n"), "{said}");
    assert!(!data_of(&said).exists(), "{said}");
    let names = Command::new("ip").args(["netns", "list"]).output().expect("ip").stdout;
    let names = String::from_utf8_lossy(&names).into_owned();
    assert!(!names.contains(&format!("rd{}-", group.as_raw_nonzero())), "hosts are left: {names}");
}
