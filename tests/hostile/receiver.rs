//! A hostile receiver, which speaks the protocol and lies. Whatever it says, the sender must exit with the code of the
//! actual fault, must not crash, and must not count as copied what has not been copied.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::Receiver;
use rd_proto::control::{Cause, Encrypt, Frame, Offer, Policy, RdmaKind, Role, SPAN_MAX, SequenceSet};
use rd_proto::frame::ChunkHeader;
use rd_proto::handshake::{ControlChannel, Key, LaneId};
use rd_proto::session::{ANSWERS_MAX, Agreed};
use rd_proto::tree::{Answer, Verdict};
use rdma_pipe::control::channel::{Outbox, receive};
use rdma_pipe::control::endpoints::loopback;
use rdma_pipe::control::frames::{Hello, MAGIC, Message, Placed, Report};
use rdma_pipe::engine::link::{exchange_offers, tcp_lane};
use rdma_pipe::engine::listen::{Further, Incoming, Listener};
use rdma_pipe::engine::{Event, Waits, announce, channel};
use rdma_pipe::transport::{Lane, LaneEvent, Pool};

use super::rig::*;
use super::{RECEIVER, for_end, of_end};

/// Number of buffers of this receiver.
const BUFFERS: u32 = 8;

/// How long this receiver lives without any event from the sender.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// How long the receiver does not answer: longer than rdcp waits for one end when the other has reported its outcome.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Size of a file for which the sender asks what exists already.
const LARGE_BYTES: usize = rd_proto::tree::RESUME_BYTES_MIN as usize;

/// Environment variable with the path of a file to which the receiver writes the number of payload bytes received.
const COUNTED: &str = "RD_HOSTILE_COUNTED";

/// Returns the frames that the receiver sends once the first chunk has come, after an honest acknowledgement.
fn lies(name: &str, chunk_bytes: usize) -> Vec<Frame> {
    let ack = |credit_total, window, taken| Frame::Ack { credit_total, window, taken };
    let said = |number, bytes| Frame::Answer { number, bytes };
    let have = |item, block_bytes, count, is_last| {
        Answer::Blocks { item, block_bytes, is_last, digests: vec![Some([7; 16]); count] }.encode()
    };
    let mib16 = 16 << 20;
    let set = |below, bits| SequenceSet { below, bits };
    let first = LaneId { index: 0, generation: 0 };
    match name {
        "acknowledges what was not sent" => vec![ack(u64::from(BUFFERS), BUFFERS, set(1000, Vec::new()))],
        "acknowledges all bits" => vec![ack(u64::from(BUFFERS), BUFFERS, set(1, vec![0xff; SPAN_MAX / 8]))],
        "acknowledges the end of time" => {
            vec![ack(u64::MAX, u32::MAX, set(u64::MAX - SPAN_MAX as u64, vec![0xff; SPAN_MAX / 8]))]
        }
        "more credit than receives" => vec![ack(u64::MAX, u32::MAX, set(0, Vec::new()))],
        "finished before the end" => vec![Frame::Finished { bytes: 0, failed: 0 }],
        "finished with the first chunk's bytes" => vec![Frame::Finished { bytes: chunk_bytes as u64, failed: 0 }],
        "frames of a sender" => vec![Frame::Done { chunks: 1, bytes: 1, digest: [0; 32] }],
        "an offer again" => vec![Frame::Refuse(rd_proto::control::Refusal::Busy)],
        "chooses the path" => vec![Frame::Use { path: rd_proto::control::Path::Rdma, turn: u32::MAX }],
        "a lane that cannot be" => {
            let lane = LaneId { index: u16::MAX, generation: 0 };
            vec![Frame::LaneGone { lane, have: set(0, Vec::new()) }]
        }
        "a lane that never was" => {
            let lane = LaneId { index: 31, generation: u32::MAX };
            vec![Frame::LaneGone { lane, have: set(u64::MAX - SPAN_MAX as u64, vec![0xff; SPAN_MAX / 8]) }]
        }
        "closes the lane that it speaks on" => {
            vec![Frame::LaneGone { lane: first, have: set(u64::MAX - SPAN_MAX as u64, vec![0xff; 8]) }]
        }
        "blocks of a byte" => vec![said(0, vec![1, 1, 0, 0, 0, 0, 1, 0])],
        "an answer of no kind" => vec![said(0, vec![0])],
        "an answer of nothing" => vec![said(0, Vec::new())],
        "more blocks than the file has" => vec![said(0, have(1, mib16, 6, true))],
        "blocks of two lengths" => vec![said(0, have(1, 1 << 16, 2, false)), said(1, have(1, mib16, 1, true))],
        "digests behind the last" => vec![said(0, have(1, mib16, 1, true)), said(1, have(1, mib16, 1, true))],
        "an answer out of the window" => vec![said(ANSWERS_MAX as u64, have(1, mib16, 4, true))],
        "another answer of that number" => vec![said(1, have(1, mib16, 4, true)), said(1, have(1, mib16, 3, true))],
        "counts answers itself" => vec![Frame::Answered { number: 0 }],
        "a verdict that nobody asked for" => {
            vec![said(0, Answer::Verdicts { first: 0, verdicts: vec![Verdict::Wanted] }.encode())]
        }
        "a fresh directory that is not there" => vec![said(0, Answer::Fresh { directory: u64::MAX }.encode())],
        "a fresh directory" => vec![said(0, Answer::Fresh { directory: 0 }.encode())],
        "a fresh directory twice" => {
            let fresh = Answer::Fresh { directory: 0 }.encode();
            vec![said(0, fresh.clone()), said(1, fresh)]
        }
        "one block that is longer than the file" => vec![said(0, have(1, 1 << 63, 1, true))],
        "wrong digests" => vec![said(0, have(1, mib16, 4, true))],
        "answers that overtake" => vec![said(1, have(1, mib16, 2, true)), said(0, have(1, mib16, 2, false))],
        "an answer again" => vec![said(0, have(1, mib16, 4, true)); 3],
        "a file that was not announced" => vec![said(0, have(2, mib16, 0, true))],
        "no file" => vec![said(0, have(0, mib16, 0, true))],
        "a file that waits for none" | "has nothing of a large file" => {
            vec![said(0, Answer::nothing(1).encode())]
        }
        _ => Vec::new(),
    }
}

/// Plays the agent of the destination.
pub fn be_receiver(name: &str) -> ExitCode {
    let to_caller = Outbox::start(std::io::stdout(), MAGIC, None).expect("a thread");
    to_caller.send(Message::Hello(Hello::ours()));
    let mut from_caller = BufReader::new(std::io::stdin());
    let mut key = None;
    let listener: Arc<Mutex<Option<Listener>>> = Arc::default();
    while let Ok(message) = receive(&mut from_caller) {
        let (end, message) = of_end(message);
        match message {
            Message::Place(_) => to_caller.send(Message::Placed(Placed {
                directory: b"nowhere".to_vec(),
                as_name: Some(b"x".to_vec()),
                ..Placed::default()
            })),
            Message::Begin(begin) => key = Some(Key::from_random(begin.key.0)),
            Message::Listen { .. } => {
                let (post, events) = channel();
                let key = key.take().expect("a session was begun");
                let started = Listener::start(0, None, key, post.clone(), Further::Lanes).expect("a port");
                to_caller.send(for_end(end, Message::Listening(loopback(started.port()).to_vec())));
                *listener.lock().expect("no panic") = Some(started);
                let (name, to_caller, listener) = (name.to_owned(), to_caller.clone(), Arc::clone(&listener));
                std::thread::spawn(move || {
                    let claim = |report: Report| to_caller.send(for_end(end, Message::Ended(Box::new(report))));
                    let report = serve(&name, &post, &events, &claim);
                    // No connection is accepted any more.
                    *listener.lock().expect("no panic") = None;
                    let bytes = report.figures.counters.bytes;
                    let progress = Message::Progress { bytes, waits: Waits::default(), tree: None };
                    to_caller.send(for_end(end, progress));
                    claim(report);
                });
            }
            _ => {}
        }
    }
    ExitCode::SUCCESS
}

/// Receives, and lies. Whatever has happened, the returned report claims that everything has been copied.
fn serve(name: &str, post: &flume::Sender<Event>, events: &Receiver<Event>, claim: &dyn Fn(Report)) -> Report {
    let mut claimed = Report::default();
    (claimed.figures.counters.bytes, claimed.figures.seconds) = (u64::MAX, f64::INFINITY);
    (claimed.tree.amount.entries, claimed.tree.amount.bytes) = (u64::MAX, u64::MAX);
    let (mut stream, established) = loop {
        match events.recv_timeout(SILENCE_MAX) {
            Ok(Event::Incoming(Incoming::First(stream, established))) => break (stream, *established),
            Ok(_) => {}
            Err(_) => return claimed,
        }
    };
    let ours = Offer {
        role: Role::Receiver,
        policy: Policy::Tcp,
        encrypt: Encrypt::Auto,
        peer_is_local: true,
        lanes: 1,
        chunk_bytes: 1 << 20,
        reconnect_s: 1,
        size_bytes: None,
        rdma: RdmaKind::None,
        ticket: [0; 16],
        host: b"evil".to_vec(),
    };
    let mut control = established.control;
    let theirs = exchange_offers(&mut stream, &mut control, &ours).expect("an honest offer");
    let agreed = Agreed::new(&ours, &theirs).expect("offers that agree");
    let chunk_bytes = NonZeroUsize::new(agreed.chunk_bytes).expect("not 0");
    let (_pool, buffers) = Pool::new(BUFFERS, chunk_bytes).expect("memory");
    announce(post, established.lane, |report| tcp_lane(stream, control, report)).expect("a lane");
    let Ok(Event::LaneUp(id, mut lane, mut control)) = events.recv_timeout(SILENCE_MAX) else { return claimed };
    for buffer in buffers {
        lane.post_receive(buffer).expect("it is up");
    }
    let mut credit_total = u64::from(BUFFERS);
    let mut chunks = 0;
    // Chunks arrive in any order.
    let mut taken = BTreeSet::new();
    let mut payload_bytes = 0;
    let ack = |credit_total, taken: &BTreeSet<u64>| {
        let below = (0..).find(|sequence| !taken.contains(sequence)).expect("not all numbers");
        let taken = SequenceSet::new(below, taken.range(below..).copied());
        Frame::Ack { credit_total, window: BUFFERS, taken }
    };
    say(&mut *lane, &mut control, &ack(credit_total, &taken));
    let mut last = Instant::now();
    loop {
        let event = match events.recv_timeout(Duration::from_millis(500)) {
            Ok(Event::Lane(from, event)) if from == id => event,
            _ if last.elapsed() > SILENCE_MAX => return claimed,
            // Sent because being alive is not one of the lies.
            _ => {
                say(&mut *lane, &mut control, &Frame::Ping);
                continue;
            }
        };
        last = Instant::now();
        match event {
            LaneEvent::Chunk { buffer, wire_bytes, .. } => {
                chunks += 1;
                payload_bytes += u64::from(wire_bytes);
                taken.insert(ChunkHeader::decode(buffer.header()).expect("an honest header").sequence);
                if lane.post_receive(buffer).is_ok() {
                    credit_total += 1;
                }
                say(&mut *lane, &mut control, &ack(credit_total, &taken));
                if chunks == 1 {
                    for frame in lies(name, wire_bytes as usize) {
                        say(&mut *lane, &mut control, &frame);
                    }
                }
            }
            LaneEvent::Control(sealed) => {
                let mut plain = Vec::new();
                control.open(&sealed, &mut plain).expect("an honest frame");
                match Frame::decode(&plain).expect("an honest frame") {
                    Some(Frame::Done { bytes, .. }) => {
                        if let Some(path) = std::env::var_os(COUNTED) {
                            let mut file = fs::File::create(path).expect("a place for the count");
                            write!(file, "{payload_bytes}").expect("a count");
                        }
                        let answer = match name {
                            "finished with more" => Frame::Finished { bytes: bytes + 1, failed: 0 },
                            "finished with nothing" => Frame::Finished { bytes: 0, failed: 0 },
                            "another digest" => Frame::Abort(Cause::Integrity),
                            "no answer" => {
                                claim(claimed.clone());
                                let until = Instant::now() + UNANSWERED;
                                while Instant::now() < until {
                                    say(&mut *lane, &mut control, &Frame::Ping);
                                    std::thread::sleep(Duration::from_millis(200));
                                }
                                lane.close();
                                return claimed;
                            }
                            _ => Frame::Finished { bytes, failed: 0 },
                        };
                        say(&mut *lane, &mut control, &answer);
                    }
                    Some(Frame::Bye | Frame::Abort(_)) => {
                        say(&mut *lane, &mut control, &Frame::Bye);
                        lane.close();
                    }
                    _ => {}
                }
            }
            LaneEvent::Sent(_) | LaneEvent::Unsent(_) => {}
            LaneEvent::Down { .. } => return claimed,
        }
    }
}

fn say(lane: &mut dyn Lane, control: &mut ControlChannel, frame: &Frame) {
    let (mut plain, mut sealed) = (Vec::new(), Vec::new());
    frame.encode(&mut plain);
    if control.seal(&plain, &mut sealed).is_ok() {
        lane.send_control(&sealed);
    }
}

// --- the tests ---------------------------------------------------------------------------------------------------

/// Runs an honest copy to this receiver. Returns how it ended, and how many payload bytes the receiver got.
fn copied(scratch: &Scratch, source: &PathBuf, name: &str) -> (Ended, u64) {
    let counted = scratch.join("counted");
    let _ = fs::remove_file(&counted);
    let mut command = rdcp();
    command.arg("--rsh").arg(std::env::current_exe().expect("this program"));
    command.args(["--reconnect", "1", "-r"]).arg(source).arg("evil:x");
    command.env("RD_HOSTILE", "1").env(RECEIVER, name).env(COUNTED, &counted);
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    assert!(!ended.stderr.contains("panicked"), "{name}: {}", ended.stderr);
    let count = fs::read_to_string(counted).unwrap_or_default();
    (ended, count.parse().unwrap_or(0))
}

/// Basis of the other tests: with honest answers a copy to this receiver succeeds.
pub fn the_receiver_can_be_honest() {
    let scratch = Scratch::new();
    let (ended, bytes) = copied(&scratch, &scratch.file("source", &noise(3 * CHUNK)), "honest");
    ended.expect(0);
    assert!(bytes > 3 * CHUNK as u64, "{bytes}");
    let large = scratch.file("source", &noise(LARGE_BYTES));
    let (ended, bytes) = copied(&scratch, &large, "has nothing of a large file");
    ended.expect(0);
    assert!(bytes > LARGE_BYTES as u64, "{bytes}");
}

pub fn a_receiver_that_lies_about_what_it_has() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(24 * CHUNK));
    for (name, codes) in [
        ("acknowledges what was not sent", &[9][..]),
        ("acknowledges all bits", &[9]),
        ("acknowledges the end of time", &[9]),
        ("finished before the end", &[9]),
        ("finished with the first chunk's bytes", &[9]),
        ("finished with more", &[9]),
        ("finished with nothing", &[9]),
        ("frames of a sender", &[9]),
        ("an offer again", &[9]),
        ("chooses the path", &[9]),
        ("a lane that cannot be", &[9]),
        ("a file that waits for none", &[9]),
        ("another digest", &[7]),
        ("no answer", &[4]),
        // If a chunk arrives for which the receiver has no posted buffer, its own lane breaks, and it does not accept
        // the sender again.
        ("more credit than receives", &[0, 4]),
        ("closes the lane that it speaks on", &[4, 9]),
    ] {
        let (ended, bytes) = copied(&scratch, &source, name);
        assert!(codes.contains(&ended.code), "{name}: {}: {}", ended.code, ended.stderr);
        assert!(
            if ended.code == 0 { bytes > 24 * CHUNK as u64 } else { ended.stderr.contains("evil") },
            "{name}: {ended:?}"
        );
    }
    // This lie is not about a lane in use, and changes nothing.
    copied(&scratch, &source, "a lane that never was").0.expect(0);
}

pub fn a_receiver_that_lies_about_what_was_there() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(LARGE_BYTES + 1));
    for name in [
        "blocks of a byte",
        "an answer of no kind",
        "an answer of nothing",
        "more blocks than the file has",
        "blocks of two lengths",
        "digests behind the last",
        "an answer out of the window",
        "another answer of that number",
        "counts answers itself",
        "a verdict that nobody asked for",
        "a fresh directory that is not there",
        "a file that was not announced",
        "no file",
    ] {
        let (ended, _) = copied(&scratch, &source, name);
        assert_eq!(ended.code, 9, "{name}: {}", ended.stderr);
    }
    for name in ["one block that is longer than the file", "wrong digests", "answers that overtake", "an answer again"]
    {
        let (ended, bytes) = copied(&scratch, &source, name);
        assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
        assert!(bytes > LARGE_BYTES as u64, "{name}: all of the file is sent, not {bytes} bytes");
    }
    let tree = scratch.join("tree");
    fs::create_dir(&tree).expect("a directory");
    fs::write(tree.join("file"), noise(3 * CHUNK)).expect("a file");
    for (name, code) in [("a fresh directory", 0), ("a fresh directory twice", 9)] {
        let (ended, _) = copied(&scratch, &tree, name);
        assert_eq!(ended.code, code, "{name}: {}", ended.stderr);
    }
}
