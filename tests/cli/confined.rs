//! Commands under resource limits, and as the only process of a container.

use std::process::{Command, Stdio};

use crate::rig::lab::Lab;
use crate::rig::others::{NOBODY, as_user_by};
use crate::rig::*;

/// With `ulimit -v`, as batch systems set it, the C library, stacks and a pool for a long line must
/// leave room for each other.
#[test]
fn a_limit_on_addresses_leaves_room_for_all() {
    let input = noise(8 * CHUNK);
    for kib in [160 << 10, 400 << 10, 600 << 10] {
        let limited = |command: &Command| in_shell(&format!("ulimit -v {kib}; exec \"$@\""), command);
        let mut recv = Process::spawn(limited(rdrecv().args(["0", KEY])).stdin(Stdio::null()).stdout(Stdio::piped()));
        let (output, port) = (drain(recv.stdout()), recv.port().to_string());
        let mut send = limited(rdsend().args(["127.0.0.1", &port, KEY]));
        let mut send = Process::spawn(send.stdin(Stdio::piped()).stdout(Stdio::null()));
        feed(send.stdin(), input.clone());
        send.wait().expect(0);
        recv.wait().expect(0);
        same(&output.join().expect("no panic"), &input);
    }
}

/// The system's signal for a file that is too long ends a process, unless it has a handler.
#[test]
fn a_log_that_is_too_long_ends_nothing() {
    let scratch = Scratch::new();
    let log = scratch.file("log", &noise(2 << 20));
    let mut command = rdsend();
    command.args(["--connect-timeout", "1", "127.0.0.1", "9", KEY]).arg(scratch.file("source", b"x"));
    command.env("RDMA_PIPE_LOG", format!("debug:{}", log.display()));
    let mut limited = in_shell("ulimit -f 1024; exec \"$@\"", &command);
    let ended = Process::spawn(limited.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(3).one_line("rdsend", &["127.0.0.1"]);
    assert_eq!(std::fs::metadata(log).expect("there").len(), 2 << 20);
}

/// Some batch systems and containers allow few open files, which a process cannot change.
#[test]
fn more_large_files_than_may_be_open() {
    let lab = Lab::new();
    std::fs::create_dir(lab.join("tree")).expect("a directory");
    let bytes = noise(200 << 10);
    for number in 0..100 {
        lab.0.file(&format!("tree/{number}"), &bytes);
    }
    for (name, to) in [("here", lab.join("here").into_os_string()), ("there", lab.there("h", "there"))] {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "tree/"]).arg(to);
        let mut limited = in_shell("ulimit -n 64; exec \"$@\"", &command);
        limited.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut limited).wait().expect(0);
        for number in 0..100 {
            let copy = std::fs::read(lab.join(name).join(number.to_string())).expect("a copy");
            assert!(copy == bytes, "{name}/{number}");
        }
    }
}

/// Signals for which process 1 has no handler never reach it.
#[test]
fn a_receiver_that_is_all_of_a_container_ends_when_it_is_asked_to() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, for process 1");
    }
    let mut command = Command::new("unshare");
    command.args(["--fork", "--pid", "--kill-child", "--mount-proc", PROGRAM, "rdrecv", "0", KEY]);
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        process.port();
        let children = format!("/proc/{0}/task/{0}/children", process.pid());
        let first = std::fs::read_to_string(children).expect("a living process");
        let killed = Command::new("kill").args([&format!("-{signal}"), first.trim()]).status().expect("it starts");
        assert!(killed.success());
        process.wait().expect(code).within(SOON);
    }
}

#[test]
fn without_room_for_threads_it_says_so() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, for a user without room for threads");
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("tree")).expect("a directory");
    scratch.file("tree/file", b"x");
    let manifest = scratch.join("list");
    let mut command = rdcp();
    command.args(["-r", "--manifest"]).args([&manifest, &scratch.join("tree"), &scratch.join("copy")]);
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    for threads in [2, 3, 4] {
        // A user without other processes, because those would count.
        let line = as_user_by(&format!("prlimit --nproc={threads}:{threads}"), NOBODY - 7, scratch.path());
        let mut command = rdcp();
        command.arg("--check").args([&manifest, &scratch.join("copy")]);
        let ended = Process::spawn(in_shell(&line, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait();
        assert!([3, 6].contains(&ended.code), "{}: {}", ended.code, ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}
