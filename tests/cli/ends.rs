//! How the two ends end together: after signals, a killed peer, or a closed output.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::*;

const SIGNALS: [(Signal, i32, &str); 4] = [
    (Signal::INT, 2, "was interrupted (SIGINT)"),
    (Signal::QUIT, 3, "was ended by signal 3 (SIGQUIT)"),
    (Signal::TERM, 15, "was ended by signal 15 (SIGTERM)"),
    (Signal::HUP, 1, "was ended by signal 1 (SIGHUP)"),
];

#[test]
fn a_signal_to_the_sender_ends_both() {
    for (signal, number, words) in SIGNALS {
        let flowing = flowing(&[], &[]);
        flowing.send.signal(signal);
        let (send, recv) = flowing.wait();
        send.expect(128 + number).within(SOON);
        assert_eq!(send.stderr, "", "the sender of the signal knows why");
        recv.expect(4).within(SOON).one_line("rdrecv", &[words, "127.0.0.1"]);
    }
}

#[test]
fn a_signal_to_the_receiver_ends_both() {
    for (signal, number, words) in SIGNALS {
        let flowing = flowing(&[], &[]);
        flowing.recv.signal(signal);
        let (send, recv) = flowing.wait();
        recv.expect(128 + number).within(SOON);
        send.expect(4).within(SOON).one_line("rdsend", &[words, "127.0.0.1"]);
    }
}

#[test]
fn a_signal_while_the_source_is_silent() {
    for to_sender in [true, false] {
        let (mut recv, port) = start_recv(&["-v"], None);
        let mut send = start_send(&["-v"], port, None);
        let _pipe = send.stdin();
        for process in [&send, &recv] {
            process.line_with("connection: ");
        }
        let (here, there) = if to_sender { (&mut send, &mut recv) } else { (&mut recv, &mut send) };
        here.signal(Signal::TERM);
        here.wait().expect(143).within(SOON);
        there.wait().expect(4).within(SOON);
    }
}

#[test]
fn a_signal_while_the_sink_stands_still() {
    for to_sender in [true, false] {
        let (mut recv, port) = start_recv(&["--buffer", "1M"], None);
        let mut send = start_send(&["--buffer", "1M"], port, Some(Path::new("/dev/zero")));
        let mut output = recv.stdout();
        output.read_exact(&mut [0; 4096]).expect("data flows");
        std::thread::sleep(Duration::from_millis(500));
        let (here, there) = if to_sender { (&mut send, &mut recv) } else { (&mut recv, &mut send) };
        here.signal(Signal::INT);
        here.wait().expect(130).within(SOON);
        there.wait().expect(4).within(SOON);
    }
}

/// The session is over, and its report cannot be written until the pipe is read.
#[test]
fn a_signal_while_nobody_reads_the_report() {
    let scratch = Scratch::new();
    let (mut recv, port) = start_recv::<&str>(&[], Some(&scratch.join("target")));
    let (_read, mut write) = std::io::pipe().expect("a pipe");
    let bytes = rustix::pipe::fcntl_getpipe_size(&write).expect("its size");
    write.write_all(&vec![0; bytes]).expect("as much as it takes");
    let mut command = rdsend();
    command.args(["--json", "127.0.0.1", &port.to_string(), KEY]).arg(scratch.file("source", b"all"));
    let mut send = Process::spawn(command.stdin(Stdio::null()).stdout(write));
    recv.wait().expect(0);
    std::thread::sleep(Duration::from_millis(200));
    assert!(send.is_running(), "nobody has read it");
    send.signal(Signal::TERM);
    send.wait().expect(143).within(Duration::from_secs(5));
}

#[test]
fn an_end_that_has_no_memory_for_its_pool_says_so_to_the_other() {
    let short = |command: &std::process::Command| in_shell("ulimit -v 2000000; exec \"$@\"", command);
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let mut receiver = rdrecv();
    receiver.args(["--buffer", "4G", "0", KEY]).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
    let mut recv = Process::spawn(&mut short(&receiver));
    let mut send = start_send::<&str>(&[], recv.port(), Some(Path::new("/dev/zero")));
    recv.wait().expect(3).within(SOON).one_line("rdrecv", &["4096 MiB"]);
    send.wait().expect(3).within(SOON).one_line("rdsend", &["4096 MiB", "127.0.0.1"]);
    assert!(scratch.names().is_empty());
}

#[test]
fn a_signal_before_anybody_has_connected() {
    let scratch = Scratch::new();
    let (mut recv, _) = start_recv::<&str>(&["--json-fd=2"], Some(&scratch.join("target")));
    recv.signal(Signal::TERM);
    let ended = recv.wait();
    assert_eq!(ended.expect(143).within(SOON).report()["exit"], 143);
    assert!(scratch.names().is_empty());
    let mut send = start_send::<&str>(&[], free_port(), None);
    std::thread::sleep(Duration::from_millis(300));
    send.signal(Signal::INT);
    send.wait().expect(130).within(SOON);
}

/// As in `rdrecv PORT KEY | command`, where the command has failed at once.
#[test]
fn an_output_that_is_closed_before_anybody_has_connected() {
    let (mut recv, _) = start_recv::<&str>(&[], None);
    drop(recv.stdout());
    recv.wait().expect(141).within(2 * SOON);
}

/// The reader has had all that was sent until then.
#[test]
fn a_closed_socket_while_the_source_is_silent() {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let mut command = rdrecv();
    command.args(["0", KEY]).stdin(Stdio::null()).stdout(std::os::fd::OwnedFd::from(theirs));
    let mut recv = Process::spawn(&mut command);
    drop(command);
    let mut send = start_send::<&str>(&[], recv.port(), None);
    let mut input = send.stdin();
    input.write_all(b"1").expect("it reads");
    ours.read_exact(&mut [0]).expect("it");
    drop(ours);
    recv.wait().expect(141).within(2 * SOON);
    send.wait().expect(141).within(2 * SOON);
}

#[test]
fn a_killed_sender_is_missed_for_the_reconnect_window() {
    let scratch = Scratch::new();
    let old = b"old contents";
    let target = scratch.file("target", old);
    let (mut recv, port) = start_recv(&["--reconnect", "2"], Some(&target));
    let mut send = start_send(&["--bwlimit", "20M", "-v"], port, Some(Path::new("/dev/zero")));
    send.line_with("connection: ");
    std::thread::sleep(Duration::from_millis(500));
    send.signal(Signal::KILL);
    send.wait().expect(137);
    let recv = recv.wait();
    recv.expect(4);
    assert!((1.5..4.5).contains(&recv.after.as_secs_f64()), "{:?}", recv.after);
    assert!(recv.stderr.contains("lost the link"), "{}", recv.stderr);
    assert_eq!(std::fs::read(&target).expect("there"), old);
    assert_eq!(scratch.names(), ["target"], "no partial file stays");
}

#[test]
fn a_killed_receiver_is_missed_for_the_reconnect_window() {
    for (seconds, range) in [("0", 0.0..1.5), ("2", 1.5..4.5)] {
        let flowing = flowing(&["--reconnect", seconds], &[]);
        flowing.recv.signal(Signal::KILL);
        let (send, recv) = flowing.wait();
        recv.expect(137);
        send.expect(4);
        assert!(range.contains(&send.after.as_secs_f64()), "--reconnect {seconds}: {:?}", send.after);
    }
}

#[test]
fn a_closed_output_ends_both_with_141() {
    // As in `rdrecv … | head -c 10`.
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut send = start_send(&["--bwlimit", "50M"], port, Some(Path::new("/dev/zero")));
    let mut output = recv.stdout();
    output.read_exact(&mut [0; 10]).expect("data flows");
    let start = Instant::now();
    drop(output);
    recv.wait().expect(141);
    send.wait().expect(141).one_line("rdsend", &[&format!(":{port}: the reader of its output closed it")]);
    assert!(start.elapsed() <= SOON, "{:?}", start.elapsed());
}

#[test]
fn a_peer_that_stops_is_not_waited_for_by_who_wants_to_end() {
    let mut flowing = flowing(&[], &[]);
    // Without telling the peer, unlike ^Z.
    flowing.recv.signal(Signal::STOP);
    flowing.send.signal(Signal::TERM);
    flowing.send.wait().expect(143).within(SOON);
    flowing.recv.signal(Signal::CONT);
    let (_, recv) = flowing.wait();
    recv.expect(4).within(SOON);
}
