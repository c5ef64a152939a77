//! Peers other than the right one: they cost little, keep no other peer out, and learn nothing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rd_proto::control::Role;
use rd_proto::handshake::{CONFIRM_BYTES, Key, SessionId, connect_first};
use rdma_pipe::engine::link::{rng, with_length};
use rustix::process::Signal;

use crate::rig::holder::Holder;
use crate::rig::*;

/// Maximum memory that any number of strangers may cost the listener, in KiB. The contract says 64 MiB.
const COST_KIB_MAX: u64 = 8 << 10;

/// Maximum time for the right peer to be admitted and served, on a busy machine. It is less than the five seconds that
/// a stranger is given, so a listener that served its peers one after another would be found.
const TRUE_PEER_MAX: Duration = Duration::from_secs(4);

/// Within this time of a session's refusal, the remains of that session are still ending. They end within 300 ms.
const REMAINS_END: Duration = Duration::from_millis(250);

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    stream
}

/// Checks that the right peer is served.
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
    assert!(line.contains("no sender with this KEY") && line.contains("one had a different KEY"), "{line}");
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
    // A peer with a wrong key is not even told that.
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
    let _ = Holder::with_key(port).offer(Role::Receiver);
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
    // A byte from time to time would keep a deadline for each read from ever passing.
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
            // Nothing, a part of the length, a part of the message, or all but one byte.
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

fn wrong_key_peer(port: u16) -> TcpStream {
    guessing(connect(port))
}

/// Plays the handshake up to its third message with a wrong key.
fn guessing(mut stream: TcpStream) -> TcpStream {
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
        // The right peer in between does not count as a guess, even though its offer cannot be accepted.
        if number == 50 {
            let _ = Holder::with_key(port).offer(Role::Receiver);
            recv.line_with("one must send");
        }
        wrong_key_peer(port);
        assert!(recv.is_running(), "after {number}");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(recv.is_running(), "it has had 99: {}", recv.stderr());
    wrong_key_peer(port);
    let ended = recv.wait();
    let last = ended.expect(2).within(Duration::from_secs(1)).stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("rdrecv: ") && last.contains("100") && last.contains("KEY"), "{}", ended.stderr);
}

/// As in `rdrecv PORT KEY | command`, where the command has failed at once.
#[test]
fn strangers_do_not_keep_who_has_no_reader() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    drop(recv.stdout());
    let (since, limit) = (Instant::now(), 2 * SOON);
    while recv.is_running() && since.elapsed() < limit {
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(guessing);
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = recv.wait();
    ended.expect(141);
    assert!(ended.at - since <= limit, "{:?}", ended.at - since);
}

/// A peer that has been answered has not guessed wrong yet.
#[test]
fn the_right_peer_after_ninety_nine_wrong_guesses_is_served() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let _peers: Vec<TcpStream> = (0..99).map(|_| wrong_key_peer(port)).collect();
    serves(&mut recv, port, KEY);
}

#[test]
fn a_version_that_is_not_ours_is_named() {
    // The version is sent in clear. A listener answers with its own version and nothing else.
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
    // An attempt that was accepted is allowed its five seconds.
    ended.expect(3).one_line("rdsend", &[&format!("127.0.0.1:{port}")]).within(Duration::from_secs(7));
}

/// A sender that is being served. Some bytes have arrived, and more will follow.
struct Served {
    recv: Process,
    send: Process,
    input: std::process::ChildStdin,
    rest: JoinHandle<Vec<u8>>,
}

impl Served {
    #[track_caller]
    fn start(mut recv: Process, port: u16) -> Self {
        let mut send = start_send(&["-v"], port, None);
        let mut input = send.stdin();
        input.write_all(b"one, ").expect("a pipe");
        let mut first = [0; 5];
        // Waits until all of its lanes are up.
        for lane in 1..=2 {
            let until = Instant::now() + PATIENCE;
            while recv.stderr().matches("connection: ").count() < lane {
                assert!(Instant::now() < until && recv.is_running(), "{}", recv.stderr());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let mut output = recv.stdout();
        output.read_exact(&mut first).expect("it is served");
        assert_eq!(&first, b"one, ");
        Self { recv, send, input, rest: drain(output) }
    }

    #[track_caller]
    fn ends_well(mut self) {
        self.input.write_all(b"two").expect("a pipe");
        drop(self.input);
        self.send.wait().expect(0);
        let ended = self.recv.wait();
        assert!(!ended.expect(0).stderr.contains("lost"), "{}", ended.stderr);
        assert_eq!(self.rest.join().expect("no panic"), b"two");
    }
}

#[test]
fn a_lane_of_a_refused_session_joins_no_other() {
    let (recv, port) = start_recv(&["-v"], None);
    let mut holder = Holder::with_key(port);
    let (mut late, confirm) = holder.half_lane(1, 7);
    let _ = holder.offer(Role::Receiver);
    recv.line_with("one must send");
    let served = Served::start(recv, port);
    late.write_all(&confirm).expect("sent");
    assert!(matches!(late.read(&mut [0; 16]), Ok(0) | Err(_)), "it is refused without a word");
    served.ends_well();
}

#[test]
fn the_end_of_a_refused_sessions_lanes_does_not_reach_the_next() {
    let until = Instant::now() + PATIENCE;
    // On a busy machine the next session may begin too late to meet that end.
    while !has_next_met_the_refused() {
        assert!(Instant::now() < until, "no session was admitted within {REMAINS_END:?} of the refused one");
    }
}

/// Starts a session right after a refused one, and checks that it lasts. Returns false if it began too late to meet the
/// end of the refused session's lanes.
fn has_next_met_the_refused() -> bool {
    let (mut recv, port) = start_recv(&["-v"], None);
    let mut refused = Holder::with_key(port);
    // With the same numbers as the lanes of the next session.
    let _lanes = [(0, 1), (1, 1), (1, 2)].map(|(index, generation)| refused.lane(index, generation));
    // The listener handles its peers one after another, so the lanes above have been accepted now.
    drop(refused.half_lane(2, 1));
    let since = Instant::now();
    let _ = refused.offer(Role::Receiver);
    recv.line_with("one must send");
    let (next, lanes) = loop {
        let mut next = Holder::with_key(port);
        if next.offer(Role::Sender).is_ok() {
            let lanes = [(0, 1), (1, 1), (1, 2)].map(|(index, generation)| next.lane(index, generation));
            break (next, lanes);
        }
        assert!(since.elapsed() < PATIENCE, "it goes on to the next");
    };
    if since.elapsed() >= REMAINS_END {
        return false;
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(recv.is_running(), "{}", recv.stderr());
    assert!(!recv.stderr().contains("lost"), "{}", recv.stderr());
    drop((next, lanes));
    recv.signal(Signal::TERM);
    recv.wait_for(Duration::from_secs(5)).expect(143);
    true
}

#[test]
fn a_signal_ends_the_session_after_a_refused_one() {
    let (mut recv, port) = start_recv(&["-v"], None);
    let _ = Holder::with_key(port).offer(Role::Receiver);
    recv.line_with("one must send");
    let mut holder = Holder::with_key(port);
    holder.offer(Role::Sender).expect("it is served");
    recv.line_with("connection: ");
    recv.signal(Signal::TERM);
    recv.wait_for(Duration::from_secs(5)).expect(143);
}
