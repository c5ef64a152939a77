//! Whole transfers over a transport: data and outcomes must be right, whatever happens to the lanes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::{Sender as Post, unbounded};
use rd_proto::control::{Cause, IoFact, Policy};
use rd_proto::handshake::{ControlChannel, Key, LaneId, SessionId, SessionSecret, connect_first, connect_join, listen};
use rd_proto::session::{Agreed, Counters, Notice, Outcome, RDMA_LANE_FIRST};
use rdma_pipe::engine::link::{LinkError, rng};
use rdma_pipe::engine::{Dialer, Event, Observer, SessionEvent, Summary, Transfer, Work, announce, run};
use rdma_pipe::fs::sink::{FileSink, StreamSink};
use rdma_pipe::fs::source::Source;
use rdma_pipe::options::Compress;
use rdma_pipe::transport::{Lane, Report};

use crate::Case;
use crate::fabric::{Fabric, Side};
use crate::script::{Ear, Fault, Script, Scripted, Wire, report, wait_for};

pub const CASES: &[(&str, Case)] = &[
    ("zero_length", zero_length),
    ("sizes_around_the_chunk", sizes_around_the_chunk),
    ("stalled_sink_then_released", stalled_sink_then_released),
    ("lane_lost_with_chunks_unacknowledged", lane_lost_with_chunks_unacknowledged),
    ("silent_lane_is_given_up", silent_lane_is_given_up),
    ("damaged_chunk_is_sent_again", damaged_chunk_is_sent_again),
    ("replacement_by_another_transport", replacement_by_another_transport),
    ("better_transport_is_taken_back", better_transport_is_taken_back),
    ("several_lanes_out_of_order", several_lanes_out_of_order),
    ("small_pool_at_an_ordered_sink", small_pool_at_an_ordered_sink),
    ("receiver_dials", receiver_dials),
    ("source_fails", source_fails),
    ("sink_fails", sink_fails),
    ("sink_is_closed", sink_is_closed),
    ("signal_at_either_end", signal_at_either_end),
    ("done_lost_and_asked_again", done_lost_and_asked_again),
    ("finished_lost_and_asked_again", finished_lost_and_asked_again),
    ("reconnect_window_passes", reconnect_window_passes),
    ("encrypted_or_not", encrypted_or_not),
];

pub const CHUNK_BYTES: usize = 64 << 10;

/// How long any transfer here may take.
const RUN_MAX: Duration = Duration::from_secs(90);

/// How soon both ends must end once one of them has given up.
const ABORT_MAX: Duration = Duration::from_secs(2);

/// Sizes of sealed DONE and FINISHED frames. Before a lane is lost, no other frame of the same end has that size.
const DONE_BYTES: usize = 49 + 16;
const FINISHED_BYTES: usize = 17 + 16;

pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;

/// Setup of a session.
pub struct Plan {
    pub agreed: Agreed,
    /// Transports of lanes below [`RDMA_LANE_FIRST`], and of lanes from there on.
    low: Arc<dyn Fabric>,
    high: Option<Arc<dyn Fabric>>,
    /// Number of buffers of the sender and of the receiver.
    buffers: [u32; 2],
    dialer: usize,
    /// Maximum rate of reading, in bytes per second.
    pub bwlimit: Option<u64>,
    pub script: Script,
}

impl Plan {
    pub fn new(fabric: &Arc<dyn Fabric>) -> Self {
        let agreed = Agreed {
            policy: Policy::Tcp,
            try_rdma: false,
            seal_tcp: false,
            seal_rdma: false,
            tcp_lanes: 1,
            tcp_lanes_max: 2,
            rdma_lanes: 1,
            chunk_bytes: CHUNK_BYTES,
            reconnect: Duration::from_secs(20),
        };
        let low = Arc::clone(fabric);
        Self { agreed, low, high: None, buffers: [16, 16], dialer: SENDER, bwlimit: None, script: Script::default() }
    }

    /// Returns a plan with the transport under test in place of RDMA, and another transport to fall back on.
    fn with_fallback(fabric: &Arc<dyn Fabric>) -> Self {
        let mut plan = Self::new(fabric);
        (plan.low, plan.high) = (fabric.other(), Some(Arc::clone(fabric)));
        plan.agreed = Agreed { policy: Policy::PreferRdma, try_rdma: true, ..plan.agreed };
        plan
    }

    fn start(self, source: Source, sink: Work) -> Session {
        self.start_with(Work::Send(source), |_| sink)
    }

    /// Starts the session. `sink` is called with the sender of events to the receiver's loop.
    pub fn start_with(self, source: Work, sink: impl FnOnce(&Post<Event>) -> Work) -> Session {
        let (sender_side, sender_buffers) = Side::new(self.buffers[SENDER], CHUNK_BYTES);
        let (receiver_side, receiver_buffers) = Side::new(self.buffers[RECEIVER], CHUNK_BYTES);
        let (posts, queues): (Vec<_>, Vec<_>) = [unbounded(), unbounded()].into_iter().unzip();
        let script = Arc::new(self.script);
        let pools = [Arc::clone(&sender_side.pool), Arc::clone(&receiver_side.pool)];
        let sides = [sender_side, receiver_side];
        let (session, secret, [dialler_control, acceptor_control]) = first_handshake();
        let lanes = Arc::new(Lanes {
            low: self.low,
            high: self.high,
            sides,
            dialer: self.dialer,
            acceptor: posts[1 - self.dialer].clone(),
            session,
            secret: secret.clone(),
            script: Arc::clone(&script),
            high_made: AtomicBool::new(false),
        });
        let first = LaneId { index: 0, generation: 0 };
        announce(&posts[self.dialer], first, |report| {
            let lane = lanes.connect(first, report, acceptor_control)?;
            Ok((lane, dialler_control))
        })
        .expect("the first lane");
        let notices = Arc::new(Mutex::new(Vec::new()));
        let progress: [Arc<AtomicU64>; 2] = Default::default();
        let works = [source, sink(&posts[RECEIVER])];
        let mut results = Vec::new();
        let each = works.into_iter().zip(queues).zip([sender_buffers, receiver_buffers]).zip(pools);
        for (end, (((work, events), buffers), pool)) in each.enumerate() {
            let (tell, result) = mpsc::channel();
            let dialer = (end == self.dialer).then(|| Arc::clone(&lanes) as Arc<dyn Dialer>);
            let (post, agreed, secret) = (posts[end].clone(), self.agreed, secret.clone());
            let watch = Watch { end, notices: Arc::clone(&notices), bytes: Arc::clone(&progress[end]) };
            std::thread::spawn(move || {
                let transfer = Transfer {
                    agreed,
                    secret,
                    buffers,
                    first: pool.count(),
                    shares_memory: false,
                    pool,
                    dialer,
                    events,
                    post,
                    compress: Compress::Off,
                    bwlimit: self.bwlimit,
                    observer: Box::new(watch),
                };
                let _ = tell.send((run(transfer, work).expect("threads"), Instant::now()));
            });
            results.push(result);
        }
        Session { posts, results, notices, progress, script }
    }
}

/// A running session.
pub struct Session {
    pub posts: Vec<Post<Event>>,
    results: Vec<mpsc::Receiver<(Summary, Instant)>>,
    notices: Arc<Mutex<Vec<(usize, Notice)>>>,
    pub progress: [Arc<AtomicU64>; 2],
    script: Arc<Script>,
}

/// Results of a session.
pub struct Ended {
    pub summaries: [Summary; 2],
    at: [Instant; 2],
    notices: Vec<(usize, Notice)>,
    script: Arc<Script>,
}

impl Session {
    pub fn end(self) -> Ended {
        let deadline = Instant::now() + RUN_MAX;
        let mut ended = self.results.iter().enumerate().map(|(end, result)| {
            let left = deadline.saturating_duration_since(Instant::now());
            result.recv_timeout(left).unwrap_or_else(|_| panic!("end {end} hangs"))
        });
        let mut next = || ended.next().expect("two ends");
        let ((sent, sent_at), (received, received_at)) = (next(), next());
        let notices = self.notices.lock().expect("not poisoned").clone();
        Ended { summaries: [sent, received], at: [sent_at, received_at], notices, script: self.script }
    }
}

impl Ended {
    pub fn outcomes(&self) -> [&Outcome; 2] {
        [&self.summaries[SENDER].outcome, &self.summaries[RECEIVER].outcome]
    }

    fn counters(&self) -> [Counters; 2] {
        [self.summaries[SENDER].figures.counters, self.summaries[RECEIVER].figures.counters]
    }

    #[track_caller]
    fn all_is_well(&self, bytes: usize) {
        assert_eq!(self.outcomes(), [&Outcome::Done; 2], "{:?}", self.notices);
        assert_eq!(self.counters().map(|counters| counters.bytes), [bytes as u64; 2]);
    }

    #[track_caller]
    fn nothing_was_lost(&self) {
        for counters in self.counters() {
            assert_eq!((counters.retries, counters.replayed, counters.corrupt), (0, 0, 0), "{:?}", self.notices);
        }
    }

    #[track_caller]
    pub fn a_lane_was_lost(&self) {
        assert!(self.script.fired(), "the fault never came");
        let [sender, receiver] = self.counters();
        assert!(sender.retries >= 1 && receiver.retries >= 1 && sender.replayed >= 1, "{sender:?} {receiver:?}");
    }

    fn gave_up(&self, asked: Instant, ours: usize, cause: &Cause) {
        assert_eq!(*self.outcomes()[ours], Outcome::Aborted(cause.clone()));
        assert_eq!(*self.outcomes()[1 - ours], Outcome::PeerAborted(cause.clone()));
        for at in self.at {
            assert!(at.saturating_duration_since(asked) < ABORT_MAX, "took {:?}", at - asked);
        }
    }
}

/// Observer that records notices and progress of a session.
struct Watch {
    end: usize,
    notices: Arc<Mutex<Vec<(usize, Notice)>>>,
    bytes: Arc<AtomicU64>,
}

impl Observer for Watch {
    fn observe(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Notice(notice, _) => {
                self.notices.lock().expect("not poisoned").push((self.end, notice));
            }
            SessionEvent::Progress(counters, _) => self.bytes.store(counters.bytes, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// Makes the lanes of a session. Both ends of a lane are made at once.
struct Lanes {
    low: Arc<dyn Fabric>,
    high: Option<Arc<dyn Fabric>>,
    /// Sides of the sender and of the receiver.
    sides: [Side; 2],
    dialer: usize,
    acceptor: Post<Event>,
    session: SessionId,
    secret: SessionSecret,
    script: Arc<Script>,
    high_made: AtomicBool,
}

impl Lanes {
    /// Returns the dialling end of a new lane. The other end is announced to the end that accepts.
    fn connect(&self, id: LaneId, mine: Report, acceptor: ControlChannel) -> Result<Box<dyn Lane>, LinkError> {
        let fabric = match &self.high {
            _ if id.index < RDMA_LANE_FIRST => &self.low,
            Some(high) => high,
            None => return Err(LinkError::Transport("none here".to_owned())),
        };
        let wire = Arc::new(Wire::default());
        let ears: [Arc<Ear>; 2] = Default::default();
        let scripted = |inner, end: usize| -> Box<dyn Lane> {
            let ear = Arc::clone(&ears[end]);
            Box::new(Scripted {
                inner,
                id,
                script: Arc::clone(&self.script),
                wire: Arc::clone(&wire),
                ear,
                receives: false,
            })
        };
        let follow = |to, end: usize| report(to, Arc::clone(&self.script), Arc::clone(&wire), Arc::clone(&ears[end]));
        let sides = [&self.sides[self.dialer], &self.sides[1 - self.dialer]];
        let mut dialled = None;
        announce(&self.acceptor, id, |theirs| {
            let [first, second] = fabric.connect(sides, [follow(mine, 0), follow(theirs, 1)]);
            dialled = Some(scripted(first, 0));
            Ok((scripted(second, 1), acceptor))
        })?;
        Ok(dialled.expect("made"))
    }
}

impl Dialer for Lanes {
    fn dial(&self, id: LaneId, _rail: u8, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        if self.script.unreachable.load(Ordering::SeqCst) {
            return Err(LinkError::TimedOut);
        }
        if id.index >= RDMA_LANE_FIRST && self.high_made.swap(true, Ordering::SeqCst) {
            let failing = &self.script.failing_rdma_dials;
            if failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(LinkError::TimedOut);
            }
        }
        let (state, hello) = connect_join(&self.secret, self.session, id, &mut rng());
        let no_key = Key::from_random([0; 32]);
        let (listening, reply) = listen(&no_key, |_| Some(self.secret.clone()), &hello, &mut rng()).expect("ours");
        let (established, confirm) = state.finish(&reply)?;
        let accepted = listening.finish(&confirm)?;
        Ok((self.connect(id, report, accepted.control)?, established.control))
    }
}

fn first_handshake() -> (SessionId, SessionSecret, [ControlChannel; 2]) {
    let (key, session) = (Key::from_random([7; 32]), SessionId::random(&mut rng()));
    let (state, hello) = connect_first(&key, session, &mut rng());
    let (listening, reply) = listen(&key, |_| None, &hello, &mut rng()).expect("ours");
    let (dialled, confirm) = state.finish(&reply).expect("the same key");
    let accepted = listening.finish(&confirm).expect("the same key");
    (session, dialled.secret, [dialled.control, accepted.control])
}

// Sources and sinks.

/// Returns bytes that do not repeat within anything like a chunk's length.
pub fn data(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        data.extend((state >> 16).to_le_bytes());
    }
    data.truncate(bytes);
    data
}

/// Path of a file that is removed on drop, together with the files beside it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let base = std::env::var_os("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory = base.join(format!("conformance-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        Self(directory.join("file"))
    }

    fn sink(&self) -> Work {
        Work::ReceiveFile(FileSink::create(&self.0).expect("a file"))
    }

    fn holds(&self, bytes: &[u8]) {
        assert!(std::fs::read(&self.0).expect("published") == bytes, "the file differs");
        let beside = std::fs::read_dir(self.0.parent().expect("a directory")).expect("readable").count();
        assert_eq!(beside, 1, "only the file is left");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().expect("a directory"));
    }
}

fn stream(reader: PipeReader) -> Source {
    Source::new(File::from(OwnedFd::from(reader)), OsStr::new("pipe"), CHUNK_BYTES).expect("a source")
}

/// Returns a stream of these bytes, written `step` bytes at a time with a `pause` after each step.
fn streamed(bytes: Vec<u8>, step: usize, pause: Duration) -> Source {
    let (reader, mut writer) = pipe().expect("a pipe");
    std::thread::spawn(move || {
        for part in bytes.chunks(step) {
            // The reader goes away if the transfer fails.
            if writer.write_all(part).is_err() {
                return;
            }
            std::thread::sleep(pause);
        }
    });
    stream(reader)
}

/// Returns a stream that the test holds open: silent, but not at its end.
fn silent() -> (Source, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    (stream(reader), writer)
}

fn sink_into(writer: PipeWriter) -> Work {
    Work::ReceiveStream(Box::new(move || Ok(StreamSink::new(File::from(OwnedFd::from(writer)), OsStr::new("pipe")))))
}

/// Returns a sink, and a thread that collects the sink's bytes.
fn collected() -> (Work, JoinHandle<Vec<u8>>) {
    let (mut reader, writer) = pipe().expect("a pipe");
    let bytes = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("readable");
        bytes
    });
    (sink_into(writer), bytes)
}

fn discarded() -> Work {
    Work::ReceiveStream(Box::new(|| {
        Ok(StreamSink::new(File::options().write(true).open("/dev/null").expect("there"), OsStr::new("null")))
    }))
}

/// Runs `plan` over `bytes`, from a stream with pauses into a stream. The same bytes must come out.
#[track_caller]
fn stream_through(plan: Plan, bytes: Vec<u8>, pause: Duration) -> Ended {
    let (sink, collected) = collected();
    let ended = plan.start(streamed(bytes.clone(), CHUNK_BYTES, pause), sink).end();
    ended.all_is_well(bytes.len());
    assert!(collected.join().expect("read") == bytes, "other bytes came out");
    ended
}

// The cases.

fn zero_length(fabric: &Arc<dyn Fabric>) {
    stream_through(Plan::new(fabric), Vec::new(), Duration::ZERO).nothing_was_lost();
    let (file, empty) = (Scratch::new(), Scratch::new());
    File::create(&empty.0).expect("a file");
    let source = Source::new(File::open(&empty.0).expect("there"), OsStr::new("empty"), CHUNK_BYTES).expect("opens");
    let ended = Plan::new(fabric).start(source, file.sink()).end();
    ended.all_is_well(0);
    file.holds(&[]);
}

fn sizes_around_the_chunk(fabric: &Arc<dyn Fabric>) {
    for bytes in [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES, 37 * CHUNK_BYTES + 11] {
        let data = data(bytes);
        stream_through(Plan::new(fabric), data.clone(), Duration::ZERO).nothing_was_lost();
        let (from, to) = (Scratch::new(), Scratch::new());
        std::fs::write(&from.0, &data).expect("writable");
        let source = Source::new(File::open(&from.0).expect("there"), OsStr::new("from"), CHUNK_BYTES).expect("opens");
        let ended = Plan::new(fabric).start(source, to.sink()).end();
        ended.all_is_well(bytes);
        to.holds(&data);
    }
}

fn stalled_sink_then_released(fabric: &Arc<dyn Fabric>) {
    let data = data(12 << 20);
    let (mut reader, writer) = pipe().expect("a pipe");
    let session = Plan::new(fabric).start(streamed(data.clone(), CHUNK_BYTES, Duration::ZERO), sink_into(writer));
    // Pools and the sink's pipe fill up. Then nothing moves, and neither end gives up.
    let taken = || session.progress.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
    wait_for("the first bytes", Duration::from_secs(10), || taken().iter().all(|&bytes| bytes > 0));
    std::thread::sleep(Duration::from_secs(1));
    let before = taken();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(taken(), before, "taken although nobody reads");
    assert!(before[SENDER] < data.len() as u64 / 2);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("readable");
    let ended = session.end();
    ended.all_is_well(data.len());
    ended.nothing_was_lost();
    assert!(bytes == data, "other bytes came out");
}

fn lane_lost_with_chunks_unacknowledged(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.script = Script::of(Fault::Lose { index: 0, chunk: 20 });
    let ended = stream_through(plan, data(6 << 20), Duration::from_micros(500));
    ended.a_lane_was_lost();
    for end in [SENDER, RECEIVER] {
        assert!(ended.notices.contains(&(end, Notice::LaneLost(LaneId { index: 0, generation: 0 }))));
    }
}

fn silent_lane_is_given_up(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.script = Script::of(Fault::Silence { index: 0, chunk: 20 });
    let began = Instant::now();
    stream_through(plan, data(6 << 20), Duration::from_micros(500)).a_lane_was_lost();
    assert!(began.elapsed() > Duration::from_secs(4), "given up before its time");
}

fn damaged_chunk_is_sent_again(fabric: &Arc<dyn Fabric>) {
    for seal in [false, true] {
        let mut plan = Plan::new(fabric);
        plan.agreed.seal_tcp = seal;
        plan.script = Script::of(Fault::Damage { index: 0, chunk: 20 });
        let ended = stream_through(plan, data(6 << 20), Duration::from_micros(500));
        ended.a_lane_was_lost();
        assert_eq!(ended.counters()[RECEIVER].corrupt, 1);
    }
}

fn replacement_by_another_transport(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::with_fallback(fabric);
    plan.script = Script::of(Fault::Lose { index: RDMA_LANE_FIRST, chunk: 20 });
    plan.script.failing_rdma_dials = AtomicU64::new(u64::MAX);
    // Here RDMA is not encrypted but TCP is, so chunks are sealed anew.
    plan.agreed.seal_tcp = true;
    let ended = stream_through(plan, data(6 << 20), Duration::from_micros(500));
    ended.a_lane_was_lost();
    for end in [SENDER, RECEIVER] {
        let told = ended.notices.iter().filter(|notice| **notice == (end, Notice::FellBack)).count();
        assert_eq!(told, 1, "{:?}", ended.notices);
    }
    assert_eq!(ended.summaries[SENDER].figures.media.len(), 2, "{:?}", ended.summaries[SENDER].figures.media);
}

fn better_transport_is_taken_back(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::with_fallback(fabric);
    plan.script = Script::of(Fault::Lose { index: RDMA_LANE_FIRST, chunk: 20 });
    let ended = stream_through(plan, data(12 << 20), Duration::from_millis(5));
    assert!(ended.script.fired());
    for end in [SENDER, RECEIVER] {
        let told: Vec<Notice> = ended
            .notices
            .iter()
            .filter(|(at, notice)| *at == end && matches!(notice, Notice::FellBack | Notice::BackOnRdma))
            .map(|(_, notice)| *notice)
            .collect();
        assert_eq!(told, [Notice::FellBack, Notice::BackOnRdma]);
    }
}

fn several_lanes_out_of_order(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.agreed.tcp_lanes = 4;
    plan.buffers = [32, 32];
    let bytes = data(24 << 20);
    let ended = stream_through(plan, bytes, Duration::from_millis(1));
    ended.nothing_was_lost();
    assert_eq!(ended.summaries[SENDER].figures.lanes, 4);
    let arrivals = ended.script.arrivals.lock().expect("not poisoned");
    assert!(fabric.name() != "mem" || !arrivals.is_sorted(), "nothing came out of order");
}

fn small_pool_at_an_ordered_sink(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.agreed.tcp_lanes = 4;
    plan.buffers = [64, 4];
    // All buffers of the receiver hold later chunks, except for that of the lost chunk. When that buffer is free again,
    // it must not be filled with yet another later chunk.
    plan.script = Script::of(Fault::Silence { index: 1, chunk: 10 });
    stream_through(plan, data(24 << 20), Duration::from_millis(1)).a_lane_was_lost();
}

fn receiver_dials(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.dialer = RECEIVER;
    plan.agreed.tcp_lanes = 2;
    plan.script = Script::of(Fault::Lose { index: 0, chunk: 20 });
    stream_through(plan, data(6 << 20), Duration::from_micros(500)).a_lane_was_lost();
}

fn source_fails(fabric: &Arc<dyn Fabric>) {
    // Nothing is mapped at the beginning of the file, so reading fails.
    let memory = File::open("/proc/self/mem").expect("there");
    let source = Source::new(memory, OsStr::new("mem"), CHUNK_BYTES).expect("opens");
    let file = Scratch::new();
    let asked = Instant::now();
    let ended = Plan::new(fabric).start(source, file.sink()).end();
    let cause = Cause::Source(IoFact { errno: libc::EIO, path: b"mem".to_vec(), detail: Vec::new() });
    ended.gave_up(asked, SENDER, &cause);
    drop(ended);
    assert!(!file.0.exists(), "nothing is published");
}

fn sink_fails(fabric: &Arc<dyn Fabric>) {
    let full =
        || Ok(StreamSink::new(File::options().write(true).open("/dev/full").expect("there"), OsStr::new("full")));
    let source = streamed(data(6 << 20), CHUNK_BYTES, Duration::ZERO);
    let asked = Instant::now();
    let ended = Plan::new(fabric).start(source, Work::ReceiveStream(Box::new(full))).end();
    let cause = Cause::Sink(IoFact { errno: libc::ENOSPC, path: b"full".to_vec(), detail: Vec::new() });
    ended.gave_up(asked, RECEIVER, &cause);
}

fn sink_is_closed(fabric: &Arc<dyn Fabric>) {
    let (reader, writer) = pipe().expect("a pipe");
    let asked = Instant::now();
    drop(reader);
    let source = streamed(data(6 << 20), CHUNK_BYTES, Duration::ZERO);
    Plan::new(fabric).start(source, sink_into(writer)).end().gave_up(asked, RECEIVER, &Cause::SinkClosed);
}

fn signal_at_either_end(fabric: &Arc<dyn Fabric>) {
    for end in [SENDER, RECEIVER] {
        let (source, mut writer) = silent();
        let session = Plan::new(fabric).start(source, discarded());
        writer.write_all(&[1; 1000]).expect("read");
        wait_for("some bytes", Duration::from_secs(10), || {
            session.progress.iter().all(|bytes| bytes.load(Ordering::Relaxed) == 1000)
        });
        let asked = Instant::now();
        session.posts[end].send(Event::Signal(libc::SIGTERM)).expect("it runs");
        session.end().gave_up(asked, end, &Cause::Signal(libc::SIGTERM as u8));
    }
}

fn asked_again(fabric: &Arc<dyn Fabric>, bytes: usize) {
    let mut plan = Plan::new(fabric);
    plan.script = Script::of(Fault::LoseFrame { bytes });
    let (data, file) = (data(1 << 20), Scratch::new());
    let ended = plan.start(streamed(data.clone(), CHUNK_BYTES, Duration::ZERO), file.sink()).end();
    assert!(ended.script.fired(), "the frame never came");
    ended.all_is_well(data.len());
    file.holds(&data);
    assert!(ended.at[SENDER].abs_diff(ended.at[RECEIVER]) < ABORT_MAX, "one of them lingered in vain");
}

fn done_lost_and_asked_again(fabric: &Arc<dyn Fabric>) {
    asked_again(fabric, DONE_BYTES);
}

fn finished_lost_and_asked_again(fabric: &Arc<dyn Fabric>) {
    asked_again(fabric, FINISHED_BYTES);
}

fn reconnect_window_passes(fabric: &Arc<dyn Fabric>) {
    let mut plan = Plan::new(fabric);
    plan.agreed.reconnect = Duration::from_secs(1);
    plan.script = Script::of(Fault::Lose { index: 0, chunk: 5 });
    plan.script.unreachable = AtomicBool::new(true);
    let ended = plan.start(streamed(data(6 << 20), CHUNK_BYTES, Duration::from_millis(1)), discarded()).end();
    let lost = Outcome::LinkLost { unanswered: false };
    assert_eq!(ended.outcomes(), [&lost, &lost]);
    for summary in &ended.summaries {
        assert!((1.0..6.0).contains(&summary.figures.seconds), "after {} s", summary.figures.seconds);
    }
}

fn encrypted_or_not(fabric: &Arc<dyn Fabric>) {
    for seal in [false, true] {
        let mut plan = Plan::new(fabric);
        plan.agreed.seal_tcp = seal;
        plan.script.needle = b"sixteen readable".to_vec();
        let mut bytes = data(1 << 20);
        bytes[70_000..70_016].copy_from_slice(&plan.script.needle);
        let ended = stream_through(plan, bytes, Duration::ZERO);
        ended.nothing_was_lost();
        assert_eq!(ended.script.seen_plain.load(Ordering::SeqCst), !seal, "what crosses the wire");
        assert!(ended.summaries.iter().all(|summary| summary.figures.encrypted == seal));
    }
}

/// Difference between two points in time.
trait AbsDiff {
    fn abs_diff(self, other: Self) -> Duration;
}

impl AbsDiff for Instant {
    fn abs_diff(self, other: Self) -> Duration {
        self.max(other) - self.min(other)
    }
}
