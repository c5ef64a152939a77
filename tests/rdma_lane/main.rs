//! The RDMA transport over a real device. Run with `RD_TESTBED=rxe` or `RD_TESTBED=siw` on a host that has such a
//! device and may remove it (as root). Elsewhere every case is listed as ignored, and none as passed.
//!
//! With RD_LONG, `bandwidth` prints a line to be compared with `ib_send_bw -R -e -s 1048576 -n 300 -t 16 -r 32`.

mod rig;

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rd_proto::handshake::HANDSHAKE_BYTES_MAX;
use rdma_pipe::transport::rdma::{ConnectError, Endpoint, RegisterError, connect, endpoints};
use rdma_pipe::transport::{LaneError, LaneEvent, Medium};
use rig::*;

type Case = fn() -> Result<(), Failed>;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var("RD_LANE_CHILD") {
        return child(&role);
    }
    let testbed = std::env::var("RD_TESTBED").ok();
    if testbed.is_none() {
        eprintln!("rdma_lane: NOT RUN, since RD_TESTBED (rxe or siw) is not set");
    }
    let mut arguments = Arguments::from_args();
    // The cases share one device, and some remove it.
    arguments.test_threads = Some(1);
    let cases: [(&str, Case); 21] = [
        ("endpoints_name_the_device", endpoints_name_the_device),
        ("handshake_messages_pass_both_ways", handshake_messages_pass_both_ways),
        ("wrong_ticket_is_rejected", wrong_ticket_is_rejected),
        ("token_must_agree", token_must_agree),
        ("chunks_of_every_size", chunks_of_every_size),
        ("ipv6", ipv6),
        ("control_flood_both_ways", control_flood_both_ways),
        ("control_passes_a_full_window", control_passes_a_full_window),
        ("backlog_overflow_ends_the_lane", backlog_overflow_ends_the_lane),
        ("close_flushes_and_reports", close_flushes_and_reports),
        ("peer_killed", peer_killed),
        ("no_listener", no_listener),
        ("dead_address", dead_address),
        ("many_connections", many_connections),
        ("siw_connects_where_ports_are_taken", siw_connects_where_ports_are_taken),
        ("half_open_are_bounded", half_open_are_bounded),
        ("garbage_requests_are_rejected", garbage_requests_are_rejected),
        ("close_on_a_dead_path", close_on_a_dead_path),
        ("memlock_too_small", memlock_too_small),
        ("device_removed_and_added", device_removed_and_added),
        ("bandwidth", bandwidth),
    ];
    let trials =
        cases.into_iter().map(|(name, case)| Trial::test(name, case).with_ignored_flag(testbed.is_none())).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn endpoints_name_the_device() -> Result<(), Failed> {
    let all = endpoints()?;
    assert!(all.iter().all(|endpoint| endpoint.medium == Medium::RdmaSoftware), "{all:?}");
    assert!(all.iter().any(|endpoint| endpoint.address.is_ipv4() && endpoint.prefix_bits == 24), "{all:?}");
    assert_eq!(all, endpoints()?, "asking again changes nothing");
    Ok(())
}

fn handshake_messages_pass_both_ways() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let mut connecting = connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?;
    let (mut accepted, hello) = incoming.recv_timeout(PATIENCE)?;
    assert_eq!(hello, HELLO);
    for length in [1, 2, 48, HANDSHAKE_BYTES_MAX] {
        accepted.send(&vec![length as u8; length])?;
        assert_eq!(connecting.receive(soon())?, vec![length as u8; length]);
        connecting.send(&vec![!(length as u8); length])?;
        assert_eq!(accepted.receive(soon())?, vec![!(length as u8); length]);
    }
    let started = Instant::now();
    let silence = connecting.receive(Instant::now() + Duration::from_millis(200)).expect_err("nothing was sent");
    assert!(matches!(silence, ConnectError::Timeout(_)), "{silence}");
    assert!(started.elapsed() < Duration::from_secs(1));
    drop(accepted);
    let lost = connecting.receive(soon()).expect_err("the peer has gone");
    assert!(matches!(lost, ConnectError::Lost(LaneError::PeerClosed)), "{lost}");
    Ok(())
}

fn wrong_ticket_is_rejected() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let mut wrong = HELLO;
    wrong.ticket[15] ^= 1;
    let started = Instant::now();
    let refused = connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &wrong, soon());
    let refused = refused.expect_err("a wrong ticket");
    assert!(matches!(refused, ConnectError::Rejected(_)), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(2), "at once, not at a timeout");
    assert_eq!(incoming.recv_timeout(Duration::from_millis(300)).err(), Some(RecvTimeoutError::Timeout));
    connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?;
    Ok(())
}

fn token_must_agree() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let connection = connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?;
    let (accepted, _) = incoming.recv_timeout(PATIENCE)?;
    let accepting = std::thread::spawn(move || {
        accepted.into_lane(TOKEN, Instant::now() + Duration::from_secs(3), reporter().0).map(drop)
    });
    let refused = connection.into_lane([9; 16], soon(), reporter().0).map(drop).expect_err("a wrong token");
    assert!(matches!(refused, ConnectError::Rejected(_)), "{refused}");
    accepting.join().expect("no panic").expect_err("no payload queue pair came");
    Ok(())
}

fn send_all_sizes(endpoint: &Endpoint) {
    let (mut one, mut other) = (Side::new(4), Side::new(4));
    let (mut left, mut right) = lane_pair(endpoint, &one, &other);
    assert!(left.lane.describe().contains(&endpoint.device), "{}", left.lane.describe());
    assert_eq!(left.lane.medium(), Medium::RdmaSoftware);
    let heard = right.lane.last_heard();
    for (seed, bytes) in [0, 1, 47, 4095, 4096, 4097, CHUNK_BYTES - 1, CHUNK_BYTES].into_iter().enumerate() {
        let (mut sent, received) = (one.buffers.pop().expect("one"), other.buffers.pop().expect("one"));
        let (sent_id, received_id) = (sent.id(), received.id());
        fill(&mut sent, seed as u8, bytes);
        right.lane.post_receive(received).expect("up");
        left.lane.send_chunk(sent, bytes as u32).expect("up");
        match right.next() {
            LaneEvent::Chunk { buffer, wire_bytes, .. } => {
                assert_eq!((buffer.id(), wire_bytes as usize), (received_id, bytes));
                check(&buffer, seed as u8, bytes);
                other.buffers.push(buffer);
            }
            unexpected => panic!("{unexpected:?}"),
        }
        match left.next() {
            LaneEvent::Sent(buffer) => {
                assert_eq!(buffer.id(), sent_id);
                one.buffers.push(buffer);
            }
            unexpected => panic!("{unexpected:?}"),
        }
        // The next message goes the other way.
        std::mem::swap(&mut left, &mut right);
        std::mem::swap(&mut one, &mut other);
    }
    assert!(left.lane.last_heard() > heard && right.lane.last_heard() > heard);
}

fn chunks_of_every_size() -> Result<(), Failed> {
    send_all_sizes(&endpoint());
    Ok(())
}

fn ipv6() -> Result<(), Failed> {
    let all = endpoints()?;
    let endpoint = all.iter().find(|endpoint| endpoint.address.is_ipv6()).ok_or("the testbed has no IPv6 address")?;
    send_all_sizes(endpoint);
    Ok(())
}

/// Returns the number of messages that found no receive posted, as counted by rxe. siw has no such
/// counter: it ends the connection.
fn receiver_not_ready(endpoint: &Endpoint) -> u64 {
    ["rcvd_rnr_err", "send_rnr_err"]
        .iter()
        .map(|name| format!("/sys/class/infiniband/{}/ports/1/hw_counters/{name}", endpoint.device))
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.trim().parse::<u64>().expect("a counter"))
        .sum()
}

/// Many more frames than slots, from both ends at once, each paced by the frames that have arrived. No frame is lost or
/// out of order, and no queue pair fails, as it would after a message without a receive.
fn control_flood_both_ways() -> Result<(), Failed> {
    const FRAMES: u32 = 3000;
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (left, right) = lane_pair(&endpoint, &one, &other);
    let not_ready = receiver_not_ready(&endpoint);
    let flood = |mut end: End| {
        move || {
            let (mut sent, mut arrived) = (0u32, 0u32);
            while arrived < FRAMES {
                while sent < FRAMES && sent < arrived + 30 {
                    let mut frame = vec![sent as u8; 4 + (sent as usize * 37) % 4093];
                    frame[..4].copy_from_slice(&sent.to_le_bytes());
                    end.lane.send_control(&frame);
                    sent += 1;
                }
                let frame = end.control();
                assert_eq!(frame[..4], arrived.to_le_bytes(), "in order");
                assert_eq!(frame.len(), 4 + (arrived as usize * 37) % 4093);
                assert!(frame[4..].iter().all(|byte| *byte == arrived as u8));
                arrived += 1;
            }
            end
        }
    };
    let threads = [std::thread::spawn(flood(left)), std::thread::spawn(flood(right))];
    let ends = threads.map(|thread| thread.join().expect("no panic"));
    for end in &ends {
        assert!(end.events.try_recv().is_err(), "nothing more");
    }
    assert_eq!(receiver_not_ready(&endpoint), not_ready, "every message found a receive");
    Ok(())
}

/// The receiver's window is used up and stays so. Control frames still pass in both directions, as would ABORT.
fn control_passes_a_full_window() -> Result<(), Failed> {
    let (endpoint, mut one, mut other) = (endpoint(), Side::new(4), Side::new(4));
    let (mut left, mut right) = lane_pair(&endpoint, &one, &other);
    for _ in 0..4 {
        right.lane.post_receive(other.buffers.pop().expect("one")).expect("up");
    }
    for _ in 0..4 {
        left.lane.send_chunk(one.buffers.pop().expect("one"), CHUNK_BYTES as u32).expect("up");
    }
    let mut held = Vec::new();
    while held.len() < 4 {
        match right.next() {
            LaneEvent::Chunk { buffer, .. } => held.push(buffer),
            unexpected => panic!("{unexpected:?}"),
        }
    }
    for _ in 0..4 {
        assert!(matches!(left.next(), LaneEvent::Sent(_)));
    }
    for round in 0..100u8 {
        left.lane.send_control(&[round; 4096]);
        assert_eq!(right.control(), [round; 4096]);
        right.lane.send_control(&[round; 1]);
        assert_eq!(left.control(), [round]);
    }
    // The window opens again.
    right.lane.post_receive(held.pop().expect("one")).expect("up");
    left.lane.send_control(b"credit");
    assert_eq!(right.control(), b"credit");
    Ok(())
}

/// A peer that reads nothing: if the backlog overflows, the lane goes down instead of growing.
fn backlog_overflow_ends_the_lane() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (mut left, right) = lane_pair(&endpoint, &one, &other);
    // All at once, faster than the peer can announce receives. The limit is 28 outstanding and 128 waiting frames.
    for _ in 0..5000 {
        left.lane.send_control(&[1; 4096]);
    }
    let (reason, _) = left.down(PATIENCE);
    assert!(matches!(reason, LaneError::Framing(_)), "{reason}");
    let (reason, _) = right.down(PATIENCE);
    assert_eq!(reason, LaneError::PeerClosed);
    Ok(())
}

fn close_flushes_and_reports() -> Result<(), Failed> {
    let (endpoint, mut one, mut other) = (endpoint(), Side::new(4), Side::new(4));
    let (mut left, mut right) = lane_pair(&endpoint, &one, &other);
    for buffer in one.buffers.drain(..3) {
        left.lane.post_receive(buffer).expect("up");
    }
    for buffer in other.buffers.drain(..2) {
        right.lane.post_receive(buffer).expect("up");
    }
    for number in 0..40u8 {
        left.lane.send_control(&[number]);
    }
    let started = Instant::now();
    left.lane.close();
    left.lane.close();
    let (reason, buffers) = left.down(PATIENCE);
    assert_eq!((reason, buffers), (LaneError::Closed, 3));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    for number in 0..40u8 {
        assert_eq!(right.control(), [number], "sent before the close");
    }
    let (reason, buffers) = right.down(PATIENCE);
    assert_eq!((reason, buffers), (LaneError::PeerClosed, 2));
    let buffer = one.buffers.pop().expect("one");
    assert!(left.lane.send_chunk(buffer, 1).is_err(), "it has reported");
    left.lane.send_control(b"into the void");
    Ok(())
}

/// Starts this program again as the other end.
fn spawn_child(role: &str, target: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env("RD_LANE_CHILD", role).env("RD_LANE_TARGET", target).stdin(Stdio::null());
    if role == "memlock" {
        command.uid(65534).gid(65534);
    }
    command.spawn().expect("starts")
}

fn child(role: &str) -> ExitCode {
    let target = std::env::var("RD_LANE_TARGET").unwrap_or_default();
    match role {
        // Sends chunks until the process is killed.
        "sender" => {
            let (endpoint, mut side) = (endpoint(), Side::new(8));
            let remote: SocketAddr = target.parse().expect("an address");
            let connection = connect(&side.adapters, &endpoint, remote, &HELLO, soon()).expect("connects");
            let mut end = into_end(connection).expect("a lane");
            let mut credits = 0;
            loop {
                match end.next() {
                    LaneEvent::Sent(buffer) => side.buffers.push(buffer),
                    LaneEvent::Control(_) => credits += 1,
                    LaneEvent::Chunk { .. } | LaneEvent::Unsent(_) | LaneEvent::Down { .. } => {
                        return ExitCode::FAILURE;
                    }
                }
                while credits > 0
                    && let Some(buffer) = side.buffers.pop()
                {
                    credits -= 1;
                    drop(end.lane.send_chunk(buffer, CHUNK_BYTES as u32));
                }
            }
        }
        // Runs as an ordinary user whose limit on locked memory is smaller than the pool.
        "memlock" => {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let limit = Some(4 << 20);
            setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("lowers its limit");
            let (endpoint, side) = (endpoint(), Side::new(8));
            match side.adapters.register(&endpoint) {
                Err(RegisterError::MemoryLock { limit_bytes, wanted_bytes })
                    if limit_bytes == 4 << 20 && wanted_bytes >= 8 << 20 => {}
                other => {
                    eprintln!("expected the locked-memory error, got {other:?}");
                    return ExitCode::FAILURE;
                }
            }
            // A smaller pool can be registered.
            match Side::new(2).adapters.register(&endpoint) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("2 MiB within 4 MiB: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => ExitCode::FAILURE,
    }
}

fn memlock_too_small() -> Result<(), Failed> {
    assert!(spawn_child("memlock", "").wait()?.success(), "see above");
    Ok(())
}

/// A child that is killed when its case ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer_killed() -> Result<(), Failed> {
    let (endpoint, mut side) = (endpoint(), Side::new(8));
    let (listener, incoming) = listener(&side, &endpoint);
    let mut child = Killed(spawn_child("sender", &remote(&endpoint, &listener).to_string()));
    let (accepted, _) = incoming.recv_timeout(PATIENCE)?;
    let mut end = into_end(accepted)?;
    for buffer in side.buffers.drain(..) {
        end.lane.post_receive(buffer).expect("up");
        end.lane.send_control(b"credit");
    }
    let mut arrived = 0;
    let mut killed = None;
    let reason = loop {
        match end.next() {
            LaneEvent::Chunk { buffer, .. } => {
                arrived += 1;
                if arrived == 20 {
                    child.0.kill()?;
                    killed = Some(Instant::now());
                }
                let _ = end.lane.post_receive(buffer);
                end.lane.send_control(b"credit");
            }
            LaneEvent::Down { reason, buffers } => {
                eprintln!("{} buffers came back", buffers.len());
                break reason;
            }
            _ => {}
        }
    };
    let elapsed = killed.ok_or("the lane ended before the kill")?.elapsed();
    eprintln!("down {elapsed:?} after the kill: {reason}");
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
    Ok(())
}

fn no_listener() -> Result<(), Failed> {
    let (endpoint, side) = (endpoint(), Side::new(2));
    let started = Instant::now();
    let nobody = SocketAddr::new(endpoint.address, 9);
    let refused = connect(&side.adapters, &endpoint, nobody, &HELLO, Instant::now() + Duration::from_secs(3));
    let refused = refused.expect_err("nobody listens");
    eprintln!("{:?}: {refused}", started.elapsed());
    assert!(!matches!(refused, ConnectError::Timeout(_)), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(2), "at once, not at a timeout");
    Ok(())
}

fn dead_address() -> Result<(), Failed> {
    let (endpoint, side) = (endpoint(), Side::new(2));
    let started = Instant::now();
    let dead = SocketAddr::from(([10, 9, 0, 250], 9));
    let error = connect(&side.adapters, &endpoint, dead, &HELLO, Instant::now() + Duration::from_secs(2));
    let error = error.expect_err("nobody is there");
    eprintln!("{:?}: {error}", started.elapsed());
    assert!(started.elapsed() < Duration::from_millis(2500), "{:?}", started.elapsed());
    Ok(())
}

/// More connections than may be set up at a time, one after another, all of them kept for a while.
fn many_connections() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let mut kept = Vec::new();
    for round in 0..240 {
        if round % 12 == 0 {
            kept.clear();
        }
        kept.push(connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?);
        kept.push(incoming.recv_timeout(PATIENCE)?.0);
    }
    Ok(())
}

/// iWARP connects from TCP ports that the connection manager picks without checking. Here every tenth is taken.
fn siw_connects_where_ports_are_taken() -> Result<(), Failed> {
    const TAKEN: usize = 2800;
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let files = rustix::process::Resource::Nofile;
    let maximum = rustix::process::getrlimit(files).maximum;
    rustix::process::setrlimit(files, rustix::process::Rlimit { current: maximum, maximum })?;
    let taken: Vec<_> =
        (0..TAKEN).map(|_| std::net::TcpListener::bind((endpoint.address, 0))).collect::<Result<_, _>>()?;
    let (listener, incoming) = listener(&other, &endpoint);
    for round in 0..80 {
        let connected = connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon());
        connected.map_err(|error| format!("connection {round}: {error}"))?;
        incoming.recv_timeout(PATIENCE)?;
    }
    drop(taken);
    Ok(())
}

/// A hand-made peer that connects with any private data and then sends nothing.
struct Mute {
    queue_pair: rd_verbs::QueuePair,
    events: Arc<rd_verbs::EventChannel>,
}

impl Mute {
    fn connect(endpoint: &Endpoint, port: u16, private_data: &[u8]) -> Result<Self, Failed> {
        use rd_verbs::{
            CompletionQueue, ConnectParameters, Depths, Device, EventChannel, EventKind, Id, MessageRegion,
            ProtectionDomain, QueuePair,
        };
        let events = EventChannel::new()?;
        let device = Arc::new(Device::open(&events, endpoint.address)?);
        let domain = ProtectionDomain::new(&device)?;
        let queue = CompletionQueue::new(&device, 8)?;
        let region = Arc::new(MessageRegion::new(&domain, 4, 64)?);
        let mut id = Id::new(&events)?;
        let own = SocketAddr::new(endpoint.address, 0);
        id.resolve_address(own, SocketAddr::new(endpoint.address, port), PATIENCE)?;
        Self::await_event(&events, EventKind::AddressResolved)?;
        id.resolve_route(PATIENCE)?;
        Self::await_event(&events, EventKind::RouteResolved)?;
        let depths = Depths { sends: 4, receives: 4, segments: 1, inline_bytes: 0 };
        let queue_pair = QueuePair::new(id, &domain, &queue, &region, depths)?;
        queue_pair.id().connect(&ConnectParameters { private_data, retry_count: 7, rnr_retry_count: 0 })?;
        Self::await_event(&events, EventKind::Established)?;
        Ok(Self { queue_pair, events })
    }

    fn await_event(events: &Arc<rd_verbs::EventChannel>, wanted: rd_verbs::EventKind) -> Result<(), Failed> {
        let deadline = soon();
        while Instant::now() < deadline {
            match events.next_event()? {
                Some(event) if event.kind == wanted => return Ok(()),
                Some(event) => return Err(format!("{:?} for {wanted:?}", event.kind).into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(format!("no {wanted:?}").into())
    }
}

/// Builds a request by hand, as it crosses the wire.
fn request(kind: u8, secret: [u8; 16]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[..8].copy_from_slice(&[b'r', b'd', b'p', b'C', 1, kind, 40, 0]);
    bytes[8..24].copy_from_slice(&secret);
    bytes
}

/// Peers with the right ticket that connect and send nothing: at most 8 at a time, each for at most 5 s.
fn half_open_are_bounded() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let mut mute = Vec::new();
    for _ in 0..8 {
        mute.push(Mute::connect(&endpoint, listener.port(), &request(1, TICKET))?);
    }
    let refused = connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon());
    assert!(matches!(refused.as_ref().err(), Some(ConnectError::Rejected(_))), "{refused:?}");
    assert!(incoming.try_recv().is_err());
    std::thread::sleep(Duration::from_millis(5500));
    for peer in &mute {
        Mute::await_event(&peer.events, rd_verbs::EventKind::Disconnected)?;
        let _ = peer.queue_pair.id().disconnect();
    }
    connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?;
    incoming.recv_timeout(PATIENCE)?;
    Ok(())
}

fn garbage_requests_are_rejected() -> Result<(), Failed> {
    let (endpoint, one, other) = (endpoint(), Side::new(2), Side::new(2));
    let (listener, incoming) = listener(&other, &endpoint);
    let mut long = request(1, TICKET);
    long.extend_from_slice(&[1; 8]);
    let mut version = request(1, TICKET);
    version[4] = 2;
    for garbage in [vec![], vec![0; 56], vec![0xff; 56], request(1, TICKET)[..23].to_vec(), long, version] {
        assert!(Mute::connect(&endpoint, listener.port(), &garbage).is_err(), "{garbage:?}");
    }
    for token in [[0; 16], TOKEN, TICKET] {
        assert!(Mute::connect(&endpoint, listener.port(), &request(2, token)).is_err(), "a token nobody waits for");
    }
    assert!(incoming.try_recv().is_err());
    connect(&one.adapters, &endpoint, remote(&endpoint, &listener), &HELLO, soon())?;
    Ok(())
}

/// The path is cut silently. Here loopback goes down, which cuts siw; rxe has no wire between two addresses of one host
/// that could be cut. `close` still ends the lane within a second, and every buffer comes back.
fn close_on_a_dead_path() -> Result<(), Failed> {
    struct LoopbackUp;
    impl Drop for LoopbackUp {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        }
    }
    let (endpoint, mut one, mut other) = (endpoint(), Side::new(8), Side::new(8));
    let (mut left, mut right) = lane_pair(&endpoint, &one, &other);
    for buffer in other.buffers.drain(..) {
        right.lane.post_receive(buffer).expect("up");
    }
    let _up = LoopbackUp;
    Command::new("ip").args(["link", "set", "lo", "down"]).status()?;
    for buffer in one.buffers.drain(..) {
        left.lane.send_chunk(buffer, CHUNK_BYTES as u32).expect("up");
    }
    left.lane.send_control(b"nobody hears this");
    std::thread::sleep(Duration::from_millis(300));
    for end in [&mut left, &mut right] {
        let started = Instant::now();
        end.lane.close();
        let (reason, buffers) = end.down(PATIENCE);
        eprintln!("{:?}: {reason}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(buffers, 8);
    }
    Ok(())
}

/// Returns the interface that has the endpoint's address.
fn interface_of(endpoint: &Endpoint) -> String {
    let all = rd_verbs::interface_addresses().expect("addresses");
    all.into_iter().find(|known| known.address == endpoint.address).expect("its interface").interface
}

fn rdma_link(arguments: &[&str]) -> Duration {
    let started = Instant::now();
    let mut child = Command::new("rdma").arg("link").args(arguments).spawn().expect("rdma (iproute2)");
    while child.try_wait().expect("waits").is_none() {
        assert!(started.elapsed() < PATIENCE, "rdma link {arguments:?} hangs");
        std::thread::sleep(Duration::from_millis(2));
    }
    started.elapsed()
}

/// Restores a device when dropped, so that a failed test does not make all later ones fail.
struct Restored([String; 3]);

impl Drop for Restored {
    fn drop(&mut self) {
        let [device, kind, interface] = &self.0;
        let add = ["link", "add", device, "type", kind, "netdev", interface];
        let _ = Command::new("rdma").args(add).stderr(Stdio::null()).status();
    }
}

fn device_removed_and_added() -> Result<(), Failed> {
    let kind = std::env::var("RD_TESTBED")?;
    for round in 0..2 {
        let (endpoint, mut one, mut other) = (endpoint(), Side::new(8), Side::new(8));
        let interface = interface_of(&endpoint);
        let _restored = Restored([endpoint.device.clone(), kind.clone(), interface.clone()]);
        let (listener, _incoming) = listener(&other, &endpoint);
        let idle = Side::new(2);
        idle.adapters.register(&endpoint)?;
        let (mut left, mut right) = lane_pair(&endpoint, &one, &other);
        let spare = one.buffers.pop();
        for buffer in other.buffers.drain(..) {
            right.lane.post_receive(buffer).expect("up");
        }
        for buffer in one.buffers.drain(..) {
            left.lane.send_chunk(buffer, CHUNK_BYTES as u32).expect("up");
        }
        let removing = std::thread::spawn({
            let device = endpoint.device.clone();
            move || rdma_link(&["delete", &device])
        });
        let started = Instant::now();
        let left_down = left.down(Duration::from_secs(5));
        let right_down = right.down(Duration::from_secs(5));
        let down_after = started.elapsed();
        let removed_after = removing.join().map_err(|_| "rdma link delete hangs")?;
        eprintln!(
            "round {round}: down after {down_after:?} ({}, {}), rdma link delete took {removed_after:?}",
            left_down.0, right_down.0
        );
        // Most of this time is waiting for a processor of the guest.
        assert!(down_after < Duration::from_secs(3), "{down_after:?}");
        assert!(removed_after < Duration::from_secs(4), "{removed_after:?}");
        assert_eq!((left_down.1, right_down.1), (7, 8), "every buffer comes back");
        assert!([&left_down.0, &right_down.0].iter().any(|reason| matches!(reason, LaneError::DeviceGone(_))));
        let deadline = Instant::now() + Duration::from_secs(1);
        while listener.is_listening() {
            assert!(Instant::now() < deadline, "the listener does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(left.lane.send_chunk(spare.expect("one"), 1).is_err());

        match endpoints() {
            Err(reason) => eprintln!("while it is gone: {reason}"),
            Ok(found) => assert!(found.iter().all(|found| found.device != endpoint.device), "{found:?}"),
        }
        assert!(connect(&idle.adapters, &endpoint, ([10, 9, 0, 1], 9).into(), &HELLO, soon()).is_err());
        rdma_link(&["add", &endpoint.device, "type", &kind, "netdev", &interface]);
        let deadline = soon();
        while !endpoints().is_ok_and(|all| all.iter().any(|found| found.address == endpoint.address)) {
            assert!(Instant::now() < deadline, "{:?}", endpoints());
            std::thread::sleep(Duration::from_millis(20));
        }
        // The same pools and the same process continue to work.
        send_all_sizes(&endpoint);
        idle.adapters.register(&endpoint)?;
    }
    Ok(())
}

/// A plain loop: 16 chunks in flight, 32 receives, credits by control frames. A later lane uses the same pools.
fn bandwidth() -> Result<(), Failed> {
    const RECEIVES: u32 = 32;
    let (chunks, runs): (u32, u32) = if std::env::var_os("RD_LONG").is_some() { (300, 3) } else { (48, 2) };
    let (endpoint, mut one, mut other) = (endpoint(), Side::new(16), Side::new(RECEIVES));
    for run in 0..runs {
        let (mut left, mut right) = lane_pair(&endpoint, &one, &other);
        for buffer in other.buffers.drain(..) {
            right.lane.post_receive(buffer).expect("up");
        }
        let receiving = std::thread::spawn(move || {
            let (mut arrived, mut buffers, mut due) = (0, Vec::new(), 0u32);
            while arrived < chunks {
                match right.next() {
                    LaneEvent::Chunk { buffer, wire_bytes, .. } => {
                        assert_eq!(wire_bytes as usize, CHUNK_BYTES);
                        arrived += 1;
                        due += 1;
                        if arrived + RECEIVES <= chunks {
                            right.lane.post_receive(buffer).expect("up");
                        } else {
                            buffers.push(buffer);
                        }
                        if due == 8 {
                            right.lane.send_control(&[8]);
                            due = 0;
                        }
                    }
                    unexpected => panic!("{unexpected:?}"),
                }
            }
            (right, buffers)
        });
        let started = Instant::now();
        let (mut sent, mut done, mut credits) = (0, 0, RECEIVES);
        while done < chunks {
            while sent < chunks
                && credits > 0
                && let Some(buffer) = one.buffers.pop()
            {
                left.lane.send_chunk(buffer, CHUNK_BYTES as u32).expect("up");
                sent += 1;
                credits -= 1;
            }
            match left.next() {
                LaneEvent::Sent(buffer) => {
                    one.buffers.push(buffer);
                    done += 1;
                }
                LaneEvent::Control(frame) => credits += u32::from(frame[0]),
                unexpected => panic!("{unexpected:?}"),
            }
        }
        let (right, buffers) = receiving.join().expect("no panic");
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("bandwidth run {run}: {:.1} MiB/s over {}", f64::from(chunks) / seconds, endpoint.device);
        drop((left, right));
        other.buffers = buffers;
        if other.buffers.len() < RECEIVES as usize {
            other = Side::new(RECEIVES);
        }
    }
    Ok(())
}
