//! Peers that are not the right one: they cost little, keep nobody out, and learn nothing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rd_proto::control::{Encrypt, Offer, Policy, RdmaKind, Role};
use rd_proto::handshake::{CONFIRM_BYTES, Key, SessionId, connect_first};
use rdma_pipe::engine::link::{authenticate, exchange_offers, rng, with_length};

use crate::rig::*;

/// What any number of strangers may cost the listener, in KiB; the contract says 64 MiB.
const COST_KIB_MAX: u64 = 8 << 10;

/// How long the right peer may take to get in and be served.
const TRUE_PEER_MAX: Duration = Duration::from_secs(2);

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    stream
}

/// The right peer comes and is served.
#[track_caller]
fn serves(recv: &mut Process, port: u16, key: &str) {
    let start = Instant::now();
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), key]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut send = Process::spawn(&mut command);
    feed(send.stdin(), b"from the right one".to_vec());
    send.wait().expect(0);
    assert!(start.elapsed() < TRUE_PEER_MAX, "{:?}", start.elapsed());
    let mut bytes = Vec::new();
    recv.stdout().read_to_end(&mut bytes).expect("a pipe");
    recv.wait().expect(0);
    assert_eq!(bytes, b"from the right one");
}

#[test]
fn a_wrong_key_is_known_as_such_and_the_listener_lives_on() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    for _ in 0..3 {
        let mut command = rdsend();
        command.args(["127.0.0.1", &port.to_string(), "wrong"]).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = Process::spawn(&mut command).wait();
        ended.expect(2).one_line("rdsend", &["KEY", &format!("127.0.0.1:{port}")]);
        ended.within(Duration::from_secs(1));
    }
    serves(&mut recv, port, KEY);
}

#[test]
fn who_waits_in_vain_is_told_of_wrong_keys() {
    let (mut recv, port) = start_recv::<&str>(&["--wait", "2"], None);
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), "wrong"]).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(&mut command).wait().expect(2);
    let ended = recv.wait();
    let line = ended.expect(3).stderr.lines().last().unwrap_or_default();
    assert!(line.contains("no sender with this KEY") && line.contains("one had another KEY"), "{line}");
}

#[test]
fn a_second_sender_is_told_that_the_receiver_is_busy() {
    let flowing = flowing(&[], &[]);
    let port = {
        let line = flowing.recv.line_with("waiting on port ");
        line.rsplit(' ').next().expect("a word").parse().expect("a port")
    };
    for _ in 0..2 {
        let ended = start_send::<&str>(&[], port, None).wait();
        ended.expect(3).one_line("rdsend", &["busy", &format!("127.0.0.1:{port}")]).within(Duration::from_secs(1));
    }
    // With a wrong key it is not even told that.
    let mut command = rdsend();
    command.args(["127.0.0.1", &port.to_string(), "wrong"]).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(&mut command).wait().expect(2);
    flowing.send.signal(rustix::process::Signal::INT);
    let (send, recv) = flowing.wait();
    send.expect(130);
    recv.expect(4);
}

#[test]
fn a_peer_with_the_right_key_that_wants_to_receive_too() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let key = Key::new(KEY.as_bytes().to_vec()).expect("not empty");
    let mut stream = connect(port);
    let hello = connect_first(&key, SessionId::random(&mut rng()), &mut rng());
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut established = authenticate(&mut stream, hello, deadline).expect("the right key");
    let offer = Offer {
        role: Role::Receiver,
        policy: Policy::Tcp,
        encrypt: Encrypt::Auto,
        peer_is_local: true,
        lanes: 0,
        chunk_bytes: CHUNK as u32,
        reconnect_s: 30,
        size_bytes: None,
        rdma: RdmaKind::None,
        ticket: [0; 16],
        host: Vec::new(),
    };
    let _ = exchange_offers(&mut stream, &mut established.control, &offer);
    let line = recv.line_with("one must send");
    assert!(line.starts_with("rdrecv: 127.0.0.1 "), "{line}");
    serves(&mut recv, port, KEY);
}

#[test]
fn garbage_of_all_kinds() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let garbage: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00",
        b"\xff\xff",
        b"\n",
        &[0; 5000],
    ];
    for bytes in garbage {
        let mut stream = connect(port);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?} for {bytes:?}");
    }
    serves(&mut recv, port, KEY);
}

#[test]
fn an_oversized_first_message_is_not_waited_for() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut stream = connect(port);
    stream.write_all(&[0xff, 0x7f, 1, 2, 3]).expect("sent");
    let start = Instant::now();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(start.elapsed() < Duration::from_secs(1), "dropped at once, not at the deadline");
    serves(&mut recv, port, KEY);
}

#[test]
fn a_slow_peer_has_five_seconds_in_all() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut stream = connect(port);
    let start = Instant::now();
    // A byte now and then would keep a deadline on each read alive for ever.
    let hello = with_length(&hello("slow"));
    let mut closed = false;
    for byte in hello.iter().cycle().take(40) {
        if stream.write_all(&[*byte]).is_err() {
            closed = true;
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    closed |= matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_));
    assert!(closed);
    let seconds = start.elapsed().as_secs_f64();
    assert!((4.0..9.0).contains(&seconds), "{seconds}");
    serves(&mut recv, port, KEY);
}

#[test]
fn five_hundred_half_open_peers() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let before = recv.status_kib("VmHWM");
    let hello = with_length(&hello("half"));
    let peers: Vec<TcpStream> = (0..500)
        .map(|number| {
            let mut stream = connect(port);
            // Nothing at all, a part of the length, a part of the message, all but a byte of it.
            let sent = [0, 1, hello.len() / 2, hello.len() - 1][number % 4];
            let _ = stream.write_all(&hello[..sent]);
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let cost = recv.status_kib("VmHWM") - before;
    assert!(cost < COST_KIB_MAX, "{cost} KiB");
    serves(&mut recv, port, KEY);
    drop(peers);
}

fn hello(key: &str) -> Vec<u8> {
    let key = Key::new(key.as_bytes().to_vec()).expect("not empty");
    connect_first(&key, SessionId::random(&mut rng()), &mut rng()).1
}

/// Plays the handshake to its third message with a wrong key.
fn wrong_key_peer(port: u16) -> TcpStream {
    let mut stream = connect(port);
    let _ = stream.write_all(&with_length(&hello("wrong")));
    let mut length = [0; 2];
    if stream.read_exact(&mut length).is_ok() {
        let mut reply = vec![0; usize::from(u16::from_le_bytes(length))];
        let _ = stream.read_exact(&mut reply);
        let _ = stream.write_all(&with_length(&[7; CONFIRM_BYTES]));
    }
    stream
}

#[test]
fn five_hundred_wrong_guesses_at_a_generated_key() {
    let mut recv = Process::spawn(rdrecv().stdin(Stdio::null()).stdout(Stdio::piped()));
    let line = recv.line_with("rdsend ");
    let words: Vec<&str> = line.split(' ').collect();
    let port = words[2].parse().expect("a port");
    let before = recv.status_kib("VmHWM");
    let peers: Vec<TcpStream> = (0..500).map(|_| wrong_key_peer(port)).collect();
    let cost = recv.status_kib("VmHWM") - before;
    assert!(cost < COST_KIB_MAX, "{cost} KiB");
    serves(&mut recv, port, words[3]);
    drop(peers);
}

#[test]
fn a_hundred_wrong_guesses_at_a_persons_key() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    for number in 0..99 {
        wrong_key_peer(port);
        assert!(recv.is_running(), "after {number}");
    }
    // The right peer does not count, though it comes in between.
    wrong_key_peer(port);
    recv.wait().expect(2).one_line("rdrecv", &["100", "KEY"]).within(Duration::from_secs(1));
}

#[test]
fn a_version_that_is_not_ours_is_named() {
    // The version stands in clear; a listener answers with its own and says no more.
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut stream = connect(port);
    let mut hello = hello("any");
    hello[8] = hello[8].wrapping_add(1);
    stream.write_all(&with_length(&hello)).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("closed in order");
    assert_eq!(answer.len(), 2 + 16, "the preface and nothing else");
    assert_eq!(answer[2..10], hello[..8], "the same magic");
    serves(&mut recv, port, KEY);
}

#[test]
fn a_listener_that_speaks_something_else() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let speaker = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("rdsend");
        stream.write_all(b"220 mail.example ESMTP\r\n").expect("sent");
        let _ = stream.read(&mut [0; 1000]);
        stream
    });
    let ended = start_send::<&str>(&[], port, None).wait();
    ended.expect(9).one_line("rdsend", &["protocol", &format!("127.0.0.1:{port}")]);
    speaker.join().expect("no panic");
}

#[test]
fn a_listener_of_another_version() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let speaker = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("rdsend");
        let mut preface = hello("any")[..16].to_vec();
        preface[8] = 77;
        preface[12] = 4;
        stream.write_all(&with_length(&preface)).expect("sent");
        let _ = stream.read(&mut [0; 1000]);
        stream
    });
    let ended = start_send::<&str>(&[], port, None).wait();
    ended.expect(9).one_line("rdsend", &["version 77", "version"]);
    speaker.join().expect("no panic");
}

#[test]
fn a_listener_that_says_nothing() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let ended = start_send(&["--connect-timeout", "1"], port, None).wait();
    // The five seconds of an attempt that has been accepted are let pass.
    ended.expect(3).one_line("rdsend", &[&format!("127.0.0.1:{port}")]).within(Duration::from_secs(7));
}
