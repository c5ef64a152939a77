//! Sources and destinations: files are published completely or not at all, and every failure has
//! its code, path and cause.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::*;

/// Starts a slow transfer from `source` into `target` and waits until it has begun.
#[track_caller]
fn slow(source: &Path, target: &Path) -> (Process, Process) {
    let (recv, port) = start_recv(&["-v"], Some(target));
    let send = start_send(&["-v", "--bwlimit", "4M"], port, Some(source));
    for process in [&send, &recv] {
        process.line_with("connection: ");
    }
    std::thread::sleep(Duration::from_millis(300));
    (send, recv)
}

fn last_line(ended: &Ended) -> &str {
    ended.stderr.lines().last().unwrap_or("")
}

#[test]
fn an_old_file_is_replaced_at_once_and_keeps_its_mode() {
    let scratch = Scratch::new();
    let target = scratch.file("target", b"old");
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).expect("ours");
    let input = noise(8 << 20);
    let source = scratch.file("source", &input);
    let before = std::fs::metadata(&target).expect("there").ino();
    let (mut send, mut recv) = slow(&source, &target);
    assert_eq!(std::fs::read(&target).expect("there"), b"old", "not before all has arrived");
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("there"), &input);
    let after = std::fs::metadata(&target).expect("there");
    assert_ne!(after.ino(), before, "published by rename");
    assert_eq!(after.mode() & 0o7777, 0o640);
    assert_eq!(scratch.names(), ["source", "target"]);
}

#[test]
fn a_new_file_has_the_mode_that_the_umask_leaves() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let mut command = rdrecv();
    command.args(["0", KEY]).arg(&target);
    let mut recv =
        Process::spawn(in_shell("umask 027; exec \"$@\"", &command).stdin(Stdio::null()).stdout(Stdio::null()));
    let mut send = start_send::<&str>(&[], recv.port(), None);
    feed(send.stdin(), b"x".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(std::fs::metadata(&target).expect("there").mode() & 0o7777, 0o640);
}

#[test]
fn a_link_is_followed_and_stays() {
    let scratch = Scratch::new();
    let target = scratch.file("target", b"old");
    let link = scratch.join("link");
    std::os::unix::fs::symlink("target", &link).expect("made");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&link));
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), b"new".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(std::fs::read(&target).expect("there"), b"new");
}

/// The wait has no limit.
#[test]
fn what_file_is_when_the_sender_comes() {
    let scratch = Scratch::new();
    let (target, link) = (scratch.fifo("target"), scratch.join("link"));
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    std::fs::remove_file(&target).expect("ours");
    scratch.file("target", b"old, and longer");
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), b"new".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(std::fs::read(&target).expect("there"), b"new");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&link));
    std::os::unix::fs::symlink("target", &link).expect("made");
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), b"newer".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(std::fs::read(&target).expect("there"), b"newer");
}

#[test]
fn standard_output_by_name_is_written_where_it_stands() {
    let scratch = Scratch::new();
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let mut file = std::fs::File::create(scratch.join("log")).expect("a file");
        std::io::Write::write_all(&mut file, b"header\n").expect("a file");
        let mut command = rdrecv();
        command.args(["0", KEY, name]).stdin(Stdio::null()).stdout(file.try_clone().expect("a file"));
        let mut recv = Process::spawn(&mut command);
        let mut send = start_send::<&str>(&[], recv.port(), None);
        feed(send.stdin(), b"body\n".to_vec());
        send.wait().expect(0);
        recv.wait().expect(0);
        std::io::Write::write_all(&mut file, b"trailer\n").expect("a file");
        assert_eq!(std::fs::read(scratch.join("log")).expect("it"), b"header\nbody\ntrailer\n", "{name}");
    }
}

/// The report is not what standard output is for: its reader has not said that it wants no more data.
#[test]
fn a_report_whose_reader_has_gone() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let mut command = rdrecv();
    command.args(["--json-fd", "3", "0", KEY]).arg(&target);
    let line = "{ \"$@\" 3>&1 >/dev/null; echo \"exit $?\" >&2; } | :";
    let mut recv = Process::spawn(in_shell(line, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    let mut send = start_send::<&str>(&[], recv.port(), None);
    std::thread::sleep(std::time::Duration::from_millis(300));
    feed(send.stdin(), b"all".to_vec());
    send.wait().expect(0);
    let ended = recv.wait();
    assert!(ended.stderr.ends_with("exit 6\n") && ended.stderr.contains("cannot write the report"), "{}", ended.stderr);
    assert_eq!(std::fs::read(&target).expect("published"), b"all");
}

#[test]
fn the_longest_name_there_is() {
    let scratch = Scratch::new();
    let target = scratch.join(&"n".repeat(255));
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), b"new".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(std::fs::read(&target).expect("there"), b"new");
}

#[test]
fn devices_and_fifos_are_written_as_they_are() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo("fifo");
    let input = noise(3 * CHUNK);
    let (mut recv, port) = start_recv::<&str>(&[], Some(&fifo));
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), input.clone());
    let read = std::thread::spawn(move || std::fs::read(&fifo).expect("a reader"));
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&read.join().expect("no panic"), &input);
    let (mut recv, port) = start_recv::<&str>(&[], Some(Path::new("/dev/null")));
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), input);
    send.wait().expect(0);
    recv.wait().expect(0);
    assert!(!Path::new("/dev/null").metadata().expect("there").is_file());
}

/// Makes a transfer fail. The file at the destination must still be the same, and no other file may be left.
#[track_caller]
fn failed_transfer(break_it: impl FnOnce(&Path, &Process, &Process), codes: (i32, i32)) -> (Ended, Ended) {
    let scratch = Scratch::new();
    let old = noise(100_000);
    let target = scratch.file("target", &old);
    let source = scratch.file("source", &noise(64 << 20));
    let before = std::fs::metadata(&target).expect("there");
    let (mut send, mut recv) = slow(&source, &target);
    let partials = scratch.names().len() - 2;
    assert_eq!(partials, 1, "a partial file beside it: {:?}", scratch.names());
    break_it(&source, &send, &recv);
    let start = Instant::now();
    let (send, recv) = (send.wait(), recv.wait());
    assert!(start.elapsed() <= SOON, "{:?}", start.elapsed());
    assert_eq!((send.code, recv.code), codes, "{} {}", send.stderr, recv.stderr);
    let after = std::fs::metadata(&target).expect("there");
    assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()));
    same(&std::fs::read(&target).expect("there"), &old);
    assert_eq!(scratch.names(), ["source", "target"]);
    (send, recv)
}

#[test]
fn a_source_that_shrinks() {
    let shrink = |source: &Path, _: &Process, _: &Process| {
        let file = std::fs::File::options().write(true).open(source).expect("there");
        file.set_len(3 << 20).expect("shorter");
    };
    let (send, recv) = failed_transfer(shrink, (5, 5));
    assert!(last_line(&send).contains("source: shrank"), "{}", send.stderr);
    assert!(last_line(&recv).contains("source: shrank"), "{}", recv.stderr);
}

#[test]
fn signals_leave_the_old_file() {
    failed_transfer(|_, send, _| send.signal(Signal::TERM), (143, 4));
    failed_transfer(|_, _, recv| recv.signal(Signal::INT), (4, 130));
}

#[test]
fn a_source_that_is_changed() {
    let changes: [fn(&Path); 3] = [
        |source| {
            let mut file = std::fs::File::options().append(true).open(source).expect("there");
            file.write_all(b"more").expect("longer");
        },
        |source| {
            let mut file = std::fs::File::options().write(true).open(source).expect("there");
            file.write_all(b"other bytes").expect("the same length");
        },
        |source| std::fs::set_permissions(source, std::fs::Permissions::from_mode(0o600)).expect("ours"),
    ];
    for change in changes {
        let scratch = Scratch::new();
        let source = scratch.file("source", &noise(4 << 20));
        let target = scratch.join("target");
        let (mut send, mut recv) = slow(&source, &target);
        change(&source);
        let (send, recv) = (send.wait(), recv.wait());
        send.expect(5);
        recv.expect(5);
        assert!(last_line(&send).contains("while it was read"), "{}", send.stderr);
        assert_eq!(scratch.names(), ["source"], "nothing is published");
    }
}

#[test]
fn a_source_that_is_given_a_name() {
    let scratch = Scratch::new();
    let input = noise(4 << 20);
    let source = scratch.file("source", &input);
    let (mut send, mut recv) = slow(&source, &scratch.join("target"));
    std::fs::hard_link(&source, scratch.join("name")).expect("ours");
    let (send, recv) = (send.wait(), recv.wait());
    send.expect(0);
    recv.expect(0);
    same(&std::fs::read(scratch.join("target")).expect("published"), &input);
}

#[test]
fn a_source_with_read_errors() {
    // Reading address 0 of a process's memory gives an I/O error. The size of the file means nothing.
    let scratch = Scratch::new();
    let target = scratch.file("target", b"old");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    let mut send = start_send::<&str>(&[], port, Some(Path::new("/proc/self/mem")));
    send.wait().expect(5).one_line("rdsend", &["/proc/self/mem", "errno 5"]).within(SOON);
    recv.wait().expect(5).one_line("rdrecv", &["/proc/self/mem", "errno 5", "127.0.0.1"]).within(SOON);
    assert_eq!(std::fs::read(&target).expect("there"), b"old", "a read error is no end of file");
    assert_eq!(scratch.names(), ["target"]);
}

#[test]
fn a_destination_that_is_full() {
    for to_stdout in [true, false] {
        let mut command = rdrecv();
        command.args(["0", KEY]).stdin(Stdio::null());
        let name = if to_stdout {
            command.stdout(std::fs::File::options().write(true).open("/dev/full").expect("there"));
            "standard output"
        } else {
            command.arg("/dev/full").stdout(Stdio::null());
            "/dev/full"
        };
        let mut recv = Process::spawn(&mut command);
        let mut send = start_send(&["--bwlimit", "50M"], recv.port(), Some(Path::new("/dev/zero")));
        let (send, recv) = (send.wait(), recv.wait());
        recv.expect(6).one_line("rdrecv", &[name, "errno 28"]).within(SOON);
        send.expect(6).one_line("rdsend", &["127.0.0.1", name, "errno 28"]).within(SOON);
    }
}

#[test]
fn a_destination_that_becomes_too_large() {
    // Like a quota: an error in mid-stream that is unrelated to the first write.
    let scratch = Scratch::new();
    let target = scratch.file("target", b"old");
    let mut command = rdrecv();
    command.args(["0", KEY]).arg(&target);
    let line = "trap '' XFSZ; ulimit -f 4096; exec \"$@\"";
    let mut recv = Process::spawn(in_shell(line, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    let mut send = start_send(&["--bwlimit", "100M"], recv.port(), Some(Path::new("/dev/zero")));
    recv.wait().expect(6).one_line("rdrecv", &["target", "errno 27"]);
    send.wait().expect(6).one_line("rdsend", &["target", "errno 27"]).within(SOON);
    assert_eq!(std::fs::read(&target).expect("there"), b"old");
    assert_eq!(scratch.names(), ["target"]);
}

#[test]
fn a_killed_receiver_leaves_the_old_file_and_its_partial_is_removed() {
    let scratch = Scratch::new();
    let input = noise(6 << 20);
    let source = scratch.file("source", &input);
    let target = scratch.file("target", b"old");
    let (mut send, mut recv) = slow(&source, &target);
    recv.signal(Signal::KILL);
    recv.wait().expect(137);
    send.signal(Signal::TERM);
    send.wait().expect(143);
    assert_eq!(std::fs::read(&target).expect("there"), b"old");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    start_send::<&str>(&[], port, Some(&source)).wait().expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("there"), &input);
    assert_eq!(scratch.names(), ["source", "target"]);
}

#[test]
fn two_receivers_of_one_file() {
    let scratch = Scratch::new();
    // The transfer takes longer than the second receiver waits in case the first has just been killed.
    let input = noise(32 << 20);
    let source = scratch.file("source", &input);
    let target = scratch.join("target");
    let (mut send, mut recv) = slow(&source, &target);
    let (mut other, port) = start_recv::<&str>(&[], Some(&target));
    let mut other_send = start_send::<&str>(&[], port, Some(&source));
    other.wait().expect(6).one_line("rdrecv", &["target", "errno 16"]);
    other_send.wait().expect(6).one_line("rdsend", &["target", "errno 16"]).within(SOON);
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("the first one's"), &input);
}

/// A resource limit of the process, whose signal would kill the process before it could report the failure.
#[test]
fn a_file_that_may_not_grow_so_long() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    let pid = rustix::process::Pid::from_raw(recv.pid() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Fsize, limit).expect("ours");
    let source = scratch.file("source", &noise(4 << 20));
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), KEY]).arg(&source);
    let send = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    send.expect(6).one_line("rdsend", &["errno 27"]);
    recv.wait().expect(6).one_line("rdrecv", &["errno 27"]);
    assert!(!target.exists());
}
