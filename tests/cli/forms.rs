//! Forms of the two command lines: the origin of data, KEY and PORT.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::rig::*;

/// Unit in which a shell gives the size limit of core files, in bytes.
const CORE_BLOCK: u64 = 512;

#[test]
fn stdin_to_stdout_of_every_size_around_the_chunk() {
    for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 12_345] {
        let input = noise(size);
        transfer(&[], &[], &input).well(&input);
    }
}

#[test]
fn file_to_file_of_every_size_around_the_chunk() {
    let scratch = Scratch::new();
    for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 12_345] {
        let input = noise(size);
        let source = scratch.file("source", &input);
        let target = scratch.join(&format!("target-{size}"));
        let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
        let mut send = start_send::<&str>(&[], port, Some(&source));
        send.wait().expect(0);
        recv.wait().expect(0);
        same(&std::fs::read(&target).expect("published"), &input);
    }
}

#[test]
fn host_and_port_may_be_one_word() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.file("source", b"all"), scratch.join("target"));
    for host in ["127.0.0.1", "[::1]"] {
        let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
        let mut command = rdsend();
        command.args([&format!("{host}:{port}"), KEY]).arg(&source).stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut command).wait().expect(0);
        recv.wait().expect(0);
        assert_eq!(std::fs::read(&target).expect("published"), b"all");
    }
}

#[test]
fn a_file_as_standard_input_is_sent_from_its_offset() {
    let scratch = Scratch::new();
    let input = noise(3 * CHUNK);
    let source = scratch.file("source", &input);
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), KEY]);
    // Another command takes the beginning of the file, as a shell's `read` would, and leaves the rest to rdsend.
    let mut command = in_shell("head -c 5 >/dev/null; exec \"$@\"", &command);
    let mut file = std::fs::File::open(&source).expect("just made");
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(100)).expect("a regular file");
    let mut behind = file.try_clone().expect("a file");
    let mut send = Process::spawn(command.stdin(file).stdout(Stdio::null()));
    send.wait().expect(0);
    recv.wait().expect(0);
    let output = output.join().expect("no panic");
    let position = std::io::Seek::stream_position(&mut behind).expect("a regular file");
    assert_eq!(position, input.len() as u64, "the next reader finds what follows");
    // head may have read ahead, and then seeks back. In either case rdsend sends a tail of the file.
    assert!(output.len() > 2 * CHUNK && output.len() <= input.len() - 100, "{}", output.len());
    same(&output, &input[input.len() - output.len()..]);
}

#[test]
fn without_arguments_rdrecv_prints_the_line_for_the_other_end() {
    let input = noise(CHUNK + 77);
    let mut recv = Process::spawn(rdrecv().stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(recv.stdout());
    let line = recv.line_with("rdsend ");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words.len(), words[0]), (4, "rdsend"), "{line}");
    assert!(words[3].len() >= 22, "128 bits need 22 characters and more: {line}");
    let mut send = Process::spawn(rdsend().args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), input.clone());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn generated_keys_differ_from_run_to_run() {
    let mut keys: Vec<String> = (0..4)
        .map(|_| {
            let recv = Process::spawn(rdrecv().arg("-q").stdin(Stdio::null()).stdout(Stdio::null()));
            recv.line_with("rdsend ").rsplit(' ').next().expect("a word").to_owned()
        })
        .collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4);
}

/// Runs a pair with these commands, which lack only the sender's HOST and PORT, and checks a small stream.
#[track_caller]
fn pair(recv: &mut std::process::Command, send: impl FnOnce(u16) -> std::process::Command) {
    let input = noise(70_000);
    let mut recv = Process::spawn(recv.stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(recv.stdout());
    let mut send = Process::spawn(send(recv.port()).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), input.clone());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn key_from_the_environment() {
    pair(rdrecv().args(["0", "-"]).env("RD_KEY", KEY), |port| {
        let mut send = rdsend();
        send.args(["127.0.0.1", &port.to_string(), "-"]).env("RD_KEY", KEY);
        send
    });
}

/// Not even another program of the same user may read the memory of an end, and an end writes no core file. The same
/// /proc files of an ordinary program show that this does not hold for every process on the system.
#[test]
fn the_memory_of_an_end_is_its_own() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to become another user");
    }
    let scratch = Scratch::new();
    let line = format!("ulimit -c 4096; {}", others::as_user(others::NOBODY, scratch.path()));
    let seen = |process: &Process| {
        let file = |name: &str| format!("/proc/{}/{name}", process.pid());
        let limits = std::fs::read_to_string(file("limits")).expect("a living process");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("the limit");
        let core: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
        (std::fs::metadata(file("environ")).expect("a living process").uid(), core.join(" "))
    };
    let start = |command: &std::process::Command| {
        let mut shell = in_shell(&line, command);
        Process::spawn(shell.stdin(Stdio::piped()).stdout(Stdio::null()))
    };
    // Reported as soon as the program runs.
    let other = start(std::process::Command::new("sh").args(["-c", "echo runs >&2; read line"]));
    other.line_with("runs");
    assert_eq!(seen(&other), (others::NOBODY, format!("{0} {0}", 4096 * CORE_BLOCK)));
    let recv = start(rdrecv().args(["0", KEY]));
    let port = recv.port();
    assert_eq!(seen(&recv), (0, "0 0".to_owned()));
    let send = start(rdsend().args(["-v", "127.0.0.1", &port.to_string(), KEY]));
    send.line_with("connection: ");
    assert_eq!(seen(&send), (0, "0 0".to_owned()));
}

#[test]
fn the_environment_neither_shifts_positionals_nor_beats_a_key_that_is_given() {
    let scratch = Scratch::new();
    let input = noise(10_000);
    let source = scratch.file("source", &input);
    let target = scratch.join("target");
    let mut command = rdrecv();
    command.args(["0", KEY]).arg(&target).env("RD_KEY", "another").stdin(Stdio::null()).stdout(Stdio::null());
    let mut recv = Process::spawn(&mut command);
    let mut command = rdsend();
    command.args(["127.0.0.1", &recv.port().to_string(), KEY]).arg(&source).env("RD_KEY", "a third");
    let mut send = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("the third positional is FILE"), &input);
}

#[test]
fn key_from_a_file_and_from_a_descriptor() {
    let scratch = Scratch::new();
    let key_file = scratch.file("key", format!("{KEY}\r\nsecond line\n").as_bytes());
    let target = scratch.join("target");
    let source = scratch.file("source", b"one two three");
    // With --key-file, KEY is not a positional argument, so the second one is FILE.
    let mut command = rdrecv();
    command.arg("--key-file").arg(&key_file).arg("0").arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
    let mut recv = Process::spawn(&mut command);
    let mut command = rdsend();
    command.args(["127.0.0.1", &recv.port().to_string()]).arg(&source).args(["--key-fd", "7"]);
    let line = format!("exec \"$@\" 7<'{}'", key_file.display());
    let mut send = Process::spawn(in_shell(&line, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    send.wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(std::fs::read(&target).expect("published"), b"one two three");
}

#[test]
fn what_follows_a_key_on_standard_input_is_what_is_sent() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let input = noise(100_000);
    let mut command = rdrecv();
    command.args(["0", KEY]).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
    let mut recv = Process::spawn(&mut command);
    let mut command = rdsend();
    command.args(["127.0.0.1", &recv.port().to_string(), "--key-fd", "0"]);
    let mut send = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()));
    let mut pipe = send.stdin();
    pipe.write_all(format!("{KEY}\n").as_bytes()).and_then(|()| pipe.write_all(&input)).expect("somebody reads");
    drop(pipe);
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("published"), &input);
}

#[test]
fn a_key_is_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let key = std::ffi::OsStr::from_bytes(b"\xff\xfe spaces $ and \xc3\xa9");
    pair(rdrecv().arg("0").arg(key), |port| {
        let mut send = rdsend();
        send.arg("127.0.0.1").arg(port.to_string()).arg(key);
        send
    });
}

#[test]
fn the_key_is_not_to_be_seen_among_the_arguments() {
    let secret = "dont-show-me-7f3a";
    let scratch = Scratch::new();
    let mut command = rdrecv();
    command.args(["0", secret]).arg(scratch.join("target")).stdin(Stdio::null()).stdout(Stdio::null());
    let recv = Process::spawn(&mut command);
    let port = recv.port();
    let mut command = rdsend();
    command.args(["-v", "127.0.0.1", &port.to_string(), secret]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut send = Process::spawn(&mut command);
    let mut pipe = send.stdin();
    pipe.write_all(b"flows").expect("somebody reads");
    send.line_with("connection: ");
    for process in [&recv, &send] {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", process.pid())).expect("a living process");
        let arguments = String::from_utf8_lossy(&arguments);
        assert!(!arguments.contains(secret), "{arguments}");
        assert!(arguments.contains("****"), "it was there and was overwritten: {arguments}");
    }
}

#[test]
fn options_before_between_and_after_the_positionals() {
    let input = noise(1000);
    for place in 0..=2 {
        let mut recv = rdrecv();
        let mut words = vec!["0", KEY];
        words.insert(place, "-v");
        recv.args(&words);
        let mut recv = Process::spawn(recv.stdin(Stdio::null()).stdout(Stdio::piped()));
        let output = drain(recv.stdout());
        let port = recv.port().to_string();
        let mut words = vec!["127.0.0.1", &port, KEY];
        words.insert(place + 1, "-v");
        words.insert(place, "--lanes=1");
        let mut send = Process::spawn(rdsend().args(&words).stdin(Stdio::piped()).stdout(Stdio::null()));
        feed(send.stdin(), input.clone());
        for ended in [send.wait(), recv.wait()] {
            assert!(ended.expect(0).stderr.contains("Bandwidth "), "-v was understood: {}", ended.stderr);
        }
        same(&output.join().expect("no panic"), &input);
    }
}

#[test]
fn by_ipv4_ipv6_and_name() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost"] {
        let input = noise(2000);
        let (mut recv, port) = start_recv::<&str>(&[], None);
        let output = drain(recv.stdout());
        let mut command = rdsend();
        command.args([host, &port.to_string(), KEY]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut send = Process::spawn(&mut command);
        feed(send.stdin(), input.clone());
        send.wait().expect(0);
        recv.wait().expect(0);
        same(&output.join().expect("no panic"), &input);
    }
}

#[test]
fn the_sender_may_come_first() {
    let port = free_port();
    let input = noise(CHUNK);
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), input.clone());
    std::thread::sleep(Duration::from_millis(700));
    assert!(send.is_running(), "it waits for the receiver: {}", send.stderr());
    let mut command = rdrecv();
    command.args([&port.to_string(), KEY]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut recv = Process::spawn(&mut command);
    let output = drain(recv.stdout());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}

/// From a socket that keeps messages, as systemd may give one.
#[test]
fn messages_as_standard_input_arrive_whole() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("sockets");
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), KEY]).stdin(theirs).stdout(Stdio::null());
    let mut send = Process::spawn(&mut command);
    // So that writing fails if it ends.
    drop(command);
    let input = noise(50 * 60_000);
    for message in input.chunks(60_000) {
        assert_eq!(rustix::io::write(&ours, message), Ok(message.len()));
    }
    drop(ours);
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn a_port_in_a_range() {
    let first = free_port();
    let taken = std::net::TcpListener::bind(("::", first)).expect("free a moment ago");
    let range = format!("{first}-{}", first.saturating_add(40));
    let (mut recv, port) = start_recv(&["--port-range", &range], None);
    assert!(port > first && port <= first.saturating_add(40), "{port} in {range}, whose first is taken");
    drop(taken);
    let output = drain(recv.stdout());
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), b"x".to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(output.join().expect("no panic"), b"x");
}
