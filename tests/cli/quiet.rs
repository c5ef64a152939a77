//! No data moves for longer than the 5 s after which a silent lane is dead: no harm is done, and
//! no connection is replaced.

use std::io::{Read, Write};
use std::time::Duration;

use rustix::process::Signal;

use crate::rig::*;

/// Longer than the 5 s after which a silent lane is dead.
const PAUSE: Duration = Duration::from_millis(6500);

#[track_caller]
fn undisturbed(send: &Ended, recv: &Ended) {
    for ended in [send, recv] {
        assert_eq!(ended.expect(0).report()["retries"], 0, "{}", ended.stderr);
    }
}

#[test]
fn a_source_that_pauses() {
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let mut send = start_send(&["--json-fd=2"], port, None);
    let mut pipe = send.stdin();
    let input = noise(3 * CHUNK);
    pipe.write_all(&input[..CHUNK + 5]).expect("rdsend reads");
    std::thread::sleep(PAUSE);
    pipe.write_all(&input[CHUNK + 5..]).expect("rdsend reads");
    drop(pipe);
    undisturbed(&send.wait(), &recv.wait());
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn what_a_quiet_source_has_given_arrives_without_the_rest() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut output = recv.stdout();
    let mut send = start_send::<&str>(&[], port, None);
    let mut pipe = send.stdin();
    for line in ["one\n", "two\n", "three\n"] {
        pipe.write_all(line.as_bytes()).expect("rdsend reads");
        let mut bytes = vec![0; line.len()];
        output.read_exact(&mut bytes).expect("arrives although no chunk is full");
        assert_eq!(bytes, line.as_bytes());
    }
    drop(pipe);
    send.wait().expect(0);
    recv.wait().expect(0);
}

#[test]
fn what_was_given_in_a_hurry_arrives_without_the_rest() {
    // The last bytes before the pause are read while chunks wait for the wire. They must not be left behind.
    let (mut recv, port) = start_recv(&["--buffer", "1M"], None);
    let mut output = recv.stdout();
    let mut send = start_send(&["--buffer", "16M"], port, None);
    let mut pipe = send.stdin();
    let input = noise(12 * CHUNK + 777);
    let given = input.clone();
    let writer = std::thread::spawn(move || {
        pipe.write_all(&given).expect("rdsend reads");
        pipe
    });
    std::thread::sleep(Duration::from_millis(500));
    let mut got = vec![0; input.len()];
    let (tell, done) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for piece in got.chunks_mut(64 << 10) {
            output.read_exact(piece).expect("more");
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = tell.send(got);
        output
    });
    let got = done.recv_timeout(Duration::from_secs(20)).expect("all of it, though the source has not ended");
    same(&got, &input);
    drop(writer.join().expect("no panic"));
    send.wait().expect(0);
    recv.wait().expect(0);
    drop(reader);
}

fn a_sink_that_stands_still_for(pause: Duration) {
    // Far more than the pools and sockets hold, so that the sender comes to a halt too.
    let input = noise(24 * CHUNK);
    let (mut recv, port) = start_recv(&["--json-fd=2", "--buffer", "2M"], None);
    let mut output = recv.stdout();
    let mut send = start_send(&["--json-fd=2", "--buffer", "2M"], port, None);
    feed(send.stdin(), input.clone());
    let mut first = vec![0; 100_000];
    output.read_exact(&mut first).expect("data flows");
    std::thread::sleep(pause);
    assert!(send.is_running() && recv.is_running());
    let rest = drain(output);
    undisturbed(&send.wait(), &recv.wait());
    same(&[first, rest.join().expect("no panic")].concat(), &input);
}

#[test]
fn a_sink_that_stands_still() {
    a_sink_that_stands_still_for(PAUSE);
}

#[test]
#[ignore = "long"]
fn a_sink_that_stands_still_past_the_reconnect_window() {
    a_sink_that_stands_still_for(Duration::from_secs(37));
}

/// Sends ^Z to one end in mid-stream and, after a while, `fg`.
fn stopped_for(stop_sender: bool, pause: Duration) {
    let input = noise(16 * CHUNK);
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let mut send = start_send(&["--json-fd=2", "--bwlimit", "8M"], port, None);
    feed(send.stdin(), input.clone());
    std::thread::sleep(Duration::from_millis(700));
    let stopped = if stop_sender { &send } else { &recv };
    stopped.signal(Signal::TSTP);
    stopped.await_stopped(true);
    std::thread::sleep(pause);
    stopped.signal(Signal::CONT);
    undisturbed(&send.wait(), &recv.wait());
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn the_sender_is_stopped_and_goes_on() {
    stopped_for(true, PAUSE);
}

#[test]
fn the_receiver_is_stopped_and_goes_on() {
    stopped_for(false, PAUSE);
}

#[test]
#[ignore = "long"]
fn either_end_is_stopped_for_longer_than_the_reconnect_window() {
    stopped_for(true, Duration::from_secs(36));
    stopped_for(false, Duration::from_secs(36));
}

#[test]
fn stopped_twice_and_ended_while_stopped() {
    let mut flowing = flowing(&[], &[]);
    for _ in 0..2 {
        flowing.send.signal(Signal::TSTP);
        flowing.send.await_stopped(true);
        flowing.send.signal(Signal::CONT);
        flowing.send.await_stopped(false);
        // Data flows again for a while.
        std::thread::sleep(Duration::from_millis(400));
        assert_ne!(flowing.send.state(), 'T');
    }
    flowing.send.signal(Signal::TSTP);
    flowing.send.await_stopped(true);
    // The other end can be ended in the meantime.
    flowing.recv.signal(Signal::INT);
    flowing.recv.wait().expect(130).within(SOON);
    flowing.send.signal(Signal::CONT);
    let (send, _) = flowing.wait();
    send.expect(4).within(SOON);
}

#[test]
fn a_process_stopped_without_warning() {
    // SIGSTOP cannot be announced to the peer. The lane may be replaced, but bytes and outcomes must be right.
    for stop_sender in [true, false] {
        let input = noise(8 * CHUNK);
        let (mut recv, port) = start_recv::<&str>(&[], None);
        let output = drain(recv.stdout());
        let mut send = start_send(&["--bwlimit", "8M"], port, None);
        feed(send.stdin(), input.clone());
        std::thread::sleep(Duration::from_millis(500));
        let stopped = if stop_sender { &send } else { &recv };
        stopped.signal(Signal::STOP);
        std::thread::sleep(PAUSE);
        stopped.signal(Signal::CONT);
        send.wait().expect(0);
        recv.wait().expect(0);
        same(&output.join().expect("no panic"), &input);
    }
}
