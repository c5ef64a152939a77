//! A recorded session is played again to a listener with the same key.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rd_proto::handshake::CONFIRM_BYTES;

use crate::rig::proxy::{Plan, Proxy, Way};
use crate::rig::*;

/// Number of bytes that a lane carries upwards before anything else: two messages with their lengths.
const HANDSHAKE_BYTES: usize = 2 + 72 + 2 + CONFIRM_BYTES;

/// Records a successful session. Returns what each connection carried upwards.
#[track_caller]
fn recorded(encrypt: &str, input: &[u8]) -> Vec<Vec<u8>> {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan { record: true, ..Plan::default() });
    let mut send = start_send(&["--encrypt", encrypt], proxy.port(), None);
    feed(send.stdin(), input.to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), input);
    proxy.recorded(Way::Up)
}

/// Plays bytes to a port. Returns the answer until the other end closes.
fn play(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_replayed_session_is_refused() {
    let input = noise(2 * CHUNK);
    for encrypt in ["always", "never"] {
        let connections = recorded(encrypt, &input);
        assert!(connections.iter().map(Vec::len).sum::<usize>() > input.len());
        let scratch = Scratch::new();
        let target = scratch.file("target", b"old");
        let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
        for bytes in &connections {
            let answer = play(port, bytes);
            // At most the listener's half of a handshake, which is new each time; no offer and no credits.
            assert!(answer.len() <= 2 + 96, "{} bytes", answer.len());
        }
        assert_eq!(std::fs::read(&target).expect("there"), b"old");
        assert_eq!(scratch.names(), ["target"], "nothing was begun");
        // The listener still serves the right peer.
        let mut send = start_send::<&str>(&[], port, None);
        feed(send.stdin(), b"new".to_vec());
        send.wait().expect(0);
        recv.wait().expect(0);
        assert_eq!(std::fs::read(&target).expect("there"), b"new");
    }
}

#[test]
fn a_lane_replayed_into_the_session_that_it_came_from() {
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan { record: true, ..Plan::default() });
    let mut send = start_send(&["--json-fd=2", "--bwlimit", "4M", "--lanes", "3"], proxy.port(), None);
    let input = noise(12 * CHUNK);
    feed(send.stdin(), input.clone());
    let until = Instant::now() + PATIENCE;
    let connections = loop {
        let connections = proxy.recorded(Way::Up);
        let is_up = |bytes: &Vec<u8>| bytes.len() >= HANDSHAKE_BYTES;
        if connections.len() == 3 && connections.iter().all(is_up) {
            break connections;
        }
        assert!(Instant::now() < until, "{} lanes are up: {}", connections.len(), send.stderr());
        std::thread::sleep(Duration::from_millis(5));
    };
    for _ in 0..3 {
        for bytes in &connections {
            let answer = play(port, bytes);
            assert!(answer.len() <= 2 + 96, "{} bytes", answer.len());
        }
    }
    for ended in [send.wait(), recv.wait()] {
        let report = ended.expect(0).report();
        assert_eq!(report["retries"], 0, "nobody was disturbed: {report}");
        assert_eq!(report["corrupt_chunks"], 0, "{report}");
    }
    same(&output.join().expect("no panic"), &input);
}
