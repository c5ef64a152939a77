//! Runs a session over lanes, a source or a sink, and a pool of buffers.
//!
//! One loop owns the session's state. All other threads do one thing each and report to the loop: those of lanes,
//! workers, the reader or writer of a stream, dials. Buffers travel by value, so a buffer is in one place at a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flume::{Receiver as Queue, RecvTimeoutError, Sender as Post};
use rd_proto::control::{Cause, Frame, Path, RailAddress};
use rd_proto::frame::ChunkHeader;
use rd_proto::handshake::{ControlChannel, LaneId};
use rd_proto::record::{Accept, PayloadKeys, PayloadSecret};
use rd_proto::session::{Action, BufferId, Layout, Machine, Outcome, Receiver, Sender, TICK, Violation, path_of};
use rd_proto::tree::Answer;
use rustix::io::Errno;

use crate::fault::errno_of;
use crate::fs::source::Source;
use crate::log::Step;
use crate::transport::{Buffer, Lane, LaneError, LaneEvent};
use crate::tree::sink::Refused;

pub mod account;
mod close;
mod inline;
mod io;
mod line;
pub mod link;
pub mod listen;
mod logged;
mod memory;
pub mod open;
mod orphan;
pub mod pace;
pub mod perf;
pub(crate) mod rails;
pub mod rdma;
pub mod reach;
pub mod session;
mod spool;
mod summary;
mod transfer;
pub mod tree;
pub mod work;

use account::Account;
pub use account::{Limiter, View, Wait, Waits};
use link::LinkError;
use memory::Memory;
use orphan::Orphan;
use pace::Pace;
use spool::SpoolEnd;
pub use summary::{Figures, Line, Observer, Read, SessionEvent, Summary};
pub use transfer::{Dialer, Event, Transfer, Work, announce, channel};
use work::{Feed, Job, Parts, Shared, SinkJob};

/// How long frames get to leave before the process stops itself; up to 40 times as long while one waits behind a chunk.
const PAUSE_FLUSH: Duration = Duration::from_millis(50);

/// Number of times that sessions have stopped this process. All sessions in the process get the signal, and one stops
/// the process for all. A session that gets here only after the process has continued must not stop it again.
static STOPS: AtomicU32 = AtomicU32::new(0);

/// Maximum number of events handled before actions are taken, so that neither waits for ever.
const BATCH: usize = 64;

struct LiveLane {
    lane: Box<dyn Lane>,
    control: ControlChannel,
    /// Whether the lane's own threads work on chunks.
    is_inline: bool,
}

enum Half {
    Send {
        machine: Box<Sender>,
        /// Empty buffers for a stream's reader, and whether their chunks are to be encrypted; `None` if workers read.
        reader: Option<Post<(Buffer, bool)>>,
    },
    Receive {
        machine: Box<Receiver>,
        writer: Writer,
    },
}

/// Destination of opened chunks.
enum Writer {
    /// The workers, which write a file.
    Workers,
    /// The writer of a stream.
    Stream(Post<SinkJob>),
    /// The sink of a tree.
    Tree(Post<SinkJob>, tree::Running),
}

impl Half {
    fn machine(&mut self) -> &mut dyn Machine {
        match self {
            Self::Send { machine, .. } => &mut **machine,
            Self::Receive { machine, .. } => &mut **machine,
        }
    }

    fn machine_ref(&self) -> &dyn Machine {
        match self {
            Self::Send { machine, .. } => &**machine,
            Self::Receive { machine, .. } => &**machine,
        }
    }
}

struct Engine {
    half: Half,
    shared: Arc<Shared>,
    jobs: Post<Job>,
    post: Post<Event>,
    events: Queue<Event>,
    dialer: Option<Arc<dyn Dialer>>,
    observer: Box<dyn Observer>,
    lanes: HashMap<LaneId, LiveLane>,
    /// The address pairs of lanes, each once.
    ways: Vec<Option<[IpAddr; 2]>>,
    /// Maximum number of ways that lanes of one medium have taken at once.
    ways_most: usize,
    /// Addresses of the other end, by which there may be more rails.
    addresses: Option<Vec<RailAddress>>,
    buffers: Vec<Option<Buffer>>,
    chunk_bytes: usize,
    began: Instant,
    /// When the first lane that carries payload was up.
    flowing_since: Option<Instant>,
    ticked: Duration,
    account: Account,
    summary: Summary,
    frame: Vec<u8>,
    sealed: Vec<u8>,
    /// Answers of the sink of a tree; `None` once no more are sent.
    answers: Option<Queue<Vec<u8>>>,
    /// This end of a broadcast's hop, if the session is one.
    spool: Option<SpoolEnd>,
    /// Whether parts of the source are planned for lanes to read.
    may_plan: bool,
    /// For each buffer, whether its chunk is genuine, if its lane has opened the chunk.
    opened: Vec<Option<bool>>,
    /// Why the last lane went down or could not be made, for the next notice.
    reason: Option<String>,
    orphan: Orphan,
    /// Whether some payload was not encrypted.
    is_in_clear: bool,
    ended: Option<Outcome>,
    memory: Memory,
}

/// Runs a transfer to its end. Lane 0 must have been announced.
///
/// # Errors
///
/// The system's error if threads cannot be started. Everything that happens to the transfer itself is in the summary.
pub fn run(transfer: Transfer, work: Work) -> std::io::Result<Summary> {
    Ok(prepare(transfer, work)?.run())
}

/// Starts the threads of a transfer.
fn prepare(transfer: Transfer, work: Work) -> std::io::Result<Engine> {
    let Transfer { agreed, secret, buffers, first, shares_memory, pool, .. } = transfer;
    let Transfer { dialer, events, post, compress, bwlimit, observer, .. } = transfer;
    let both_sealed = agreed.seal_tcp && (agreed.seal_rdma || !agreed.try_rdma);
    let accept = if both_sealed { Accept::SealedOnly } else { Accept::Checksummed };
    let keys = PayloadKeys::new(PayloadSecret::derive(&secret, 0), accept);
    let mut shared = Shared::new(keys, compress, Pace::new(bwlimit));
    let count = pool.count();
    let connector = dialer.is_some();
    let mut stream = None;
    let mut open_sink = None;
    let (mut tree, mut spool) = (None, None);
    let receive = |layout| Half::Receive {
        machine: Box::new(Receiver::new(agreed, connector, count, layout, 1)),
        writer: Writer::Workers,
    };
    let send = |machine: Sender| Half::Send { machine: Box::new(machine), reader: None };
    let sender = || Sender::new(agreed, connector, count);
    let mut half = match work {
        Work::Send(Source::File(file)) => {
            shared.source = Some(Parts::File(Box::new(file)));
            send(sender())
        }
        Work::Send(Source::Stream(source)) => {
            stream = Some(Feed::Stream(source));
            send(sender().with_reader())
        }
        Work::SendTree(tree) => {
            shared.source = Some(Parts::Tree(tree));
            send(sender().with_answers())
        }
        Work::SendRelay(relay) => {
            stream = Some(Feed::Relay(relay));
            send(sender())
        }
        Work::SendSpool(output) => {
            let output = Arc::new(output);
            stream = Some(Feed::Spool(Arc::clone(&output)));
            spool = Some(SpoolEnd::Output(output));
            send(sender().with_reader().with_answers().passed_on())
        }
        Work::ReceiveSpool(input) => {
            spool = Some(SpoolEnd::Input(Arc::new(input)));
            receive(Layout::Stream)
        }
        Work::ReceiveFile(sink) => {
            shared.sink = Some(sink);
            receive(Layout::File)
        }
        Work::ReceiveTree(sink) => {
            tree = Some(sink);
            receive(Layout::Tree)
        }
        Work::ReceiveStream(open) => {
            open_sink = Some(open);
            receive(Layout::Stream)
        }
    };
    half.machine().begin_with_buffers(first);
    half.machine().handle_processors(u16::try_from(crate::processors()).unwrap_or(u16::MAX));
    let shared = Arc::new(shared);
    let jobs = work::start(&shared, &post)?;
    let mut table: Vec<Option<Buffer>> = (0..count).map(|_| None).collect();
    for buffer in buffers {
        let id = buffer.id() as usize;
        table[id] = Some(buffer);
    }
    let now = Instant::now();
    let mut engine = Engine {
        half,
        jobs,
        post,
        events,
        dialer,
        observer,
        lanes: HashMap::with_capacity(2 * rd_proto::session::LANES_MAX),
        ways: Vec::new(),
        ways_most: 0,
        addresses: None,
        buffers: table,
        chunk_bytes: agreed.chunk_bytes,
        began: now,
        flowing_since: None,
        ticked: Duration::ZERO,
        account: Account::new(),
        summary: Summary::default(),
        frame: Vec::new(),
        sealed: Vec::new(),
        answers: None,
        spool,
        may_plan: inline::may_plan(&shared),
        opened: vec![None; count as usize],
        shared,
        reason: None,
        orphan: Orphan::default(),
        is_in_clear: false,
        ended: None,
        memory: Memory::new(shares_memory && first < count),
    };
    match &mut engine.half {
        Half::Send { reader, .. } => {
            if let Some(source) = stream {
                *reader = Some(work::start_reader(source, Arc::clone(&engine.shared), engine.post.clone())?);
            }
        }
        Half::Receive { writer, .. } => {
            if let Some(open) = open_sink {
                *writer = Writer::Stream(work::start_writer(open, engine.post.clone())?);
            } else if let Some(sink) = tree {
                let (jobs, running) = tree::start(*sink, Arc::clone(&engine.shared), engine.post.clone())?;
                *writer = Writer::Tree(jobs, running);
            } else if let Some(SpoolEnd::Input(input)) = &engine.spool {
                *writer = Writer::Stream(spool::start(Arc::clone(input), Arc::clone(&engine.shared), &engine.post)?);
            }
        }
    }
    Ok(engine)
}

impl Engine {
    fn run(mut self) -> Summary {
        while self.ended.is_none() {
            let wait = self.half.machine_ref().next_timeout(self.now()).min(TICK);
            match self.events.recv_timeout(wait) {
                Ok(event) => {
                    self.account();
                    self.handle(event);
                    for _ in 1..BATCH {
                        let Ok(event) = self.events.try_recv() else { break };
                        self.handle(event);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.account(),
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
            self.tick();
            self.send_answers();
            self.serve_spool();
            let now = self.now();
            self.half.machine().advance(now);
            if let Half::Send { machine, .. } = &self.half {
                self.shared.part_bytes.store(machine.part_bytes(), Ordering::Relaxed);
            }
            while self.act() {
                let now = self.now();
                self.half.machine().advance(now);
            }
        }
        self.close()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn tick(&mut self) {
        let now = self.now();
        if now - self.ticked < TICK {
            return;
        }
        self.ticked = now;
        for (&id, live) in &self.lanes {
            let heard = live.lane.last_heard().saturating_duration_since(self.began);
            self.half.machine().handle_heard(id, heard);
        }
        self.measure_line(now);
        self.spare_memory(now);
        self.half.machine().handle_timeout(now);
        let over = self.orphan.over(self.lanes.is_empty(), now);
        self.ended = self.ended.take().or(over);
        let counters = self.half.machine_ref().counters();
        self.observer.observe(SessionEvent::Progress(counters, self.summary.figures.waits));
    }

    fn keep(&mut self, buffer: Buffer) -> BufferId {
        let id = buffer.id();
        self.buffers[id as usize] = Some(buffer);
        id
    }

    fn take(&mut self, id: BufferId) -> Buffer {
        self.buffers[id as usize].take().expect("the session names only buffers that are at hand")
    }

    fn handle(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Lane(id, event) => {
                self.collect_tags();
                self.handle_lane(id, event, now);
            }
            Event::LaneUp(id, mut lane, control) => {
                self.observer.observe(SessionEvent::LaneUp(id, lane.medium(), lane.describe()));
                let (way, medium) = (self.way(&*lane), lane.medium());
                let is_inline = lane.work_inline(Arc::new(inline::LaneWork::new(Arc::clone(&self.shared))));
                self.lanes.insert(id, LiveLane { lane, control: *control, is_inline });
                self.half.machine().handle_lane_up(id, now);
                self.half.machine().handle_way(id, way);
                self.count_ways(medium);
                if path_of(id) == Path::Rdma {
                    self.find_rails(Path::Rdma);
                }
            }
            Event::Endpoints(endpoints) => self.half.machine().handle_endpoints(endpoints, now),
            Event::Addresses(addresses) => self.half.machine().handle_addresses(addresses, now),
            Event::DialFailed(id, error) => self.dial_failed(id, &error),
            // This session has been authenticated already, so further connections do not concern it.
            Event::Incoming(_) => {}
            Event::Filled(buffer, part) => {
                let encrypt = self.encrypt_now();
                let _ = self.jobs.send(Job::Seal(buffer, part, encrypt));
            }
            Event::Sealed(buffer, header) => self.handle_sealed(buffer, &header),
            Event::Unfilled(buffer) => {
                let id = self.keep(buffer);
                if let Half::Send { machine, .. } = &mut self.half {
                    machine.handle_unfilled(id);
                }
            }
            Event::Queued(id) => {
                if let Half::Send { machine, .. } = &mut self.half {
                    machine.handle_queued(id);
                }
            }
            Event::SourceFailed(buffer, fact) => {
                self.keep(buffer);
                self.half.machine().abort(Cause::Source(fact), now);
            }
            Event::Opened(buffer, genuine) => {
                self.account.to_open -= 1;
                let id = self.keep(buffer);
                if genuine {
                    self.note_protection(id);
                }
                if let Half::Receive { machine, .. } = &mut self.half {
                    machine.handle_opened(id, genuine, now);
                }
            }
            Event::Written(buffer) => {
                self.account.sink_taken();
                let id = self.keep(buffer);
                if let Half::Receive { machine, .. } = &mut self.half {
                    machine.handle_written(id, 0, now);
                }
            }
            Event::SinkFailed(buffer, fact) => {
                self.account.sink_taken();
                self.keep(buffer);
                let closed = fact.errno == Errno::PIPE.raw_os_error();
                self.half.machine().abort(if closed { Cause::SinkClosed } else { Cause::Sink(fact) }, now);
            }
            // A reader that goes away once it has everything has left nothing unread.
            Event::SinkGone if self.has_taken_all() => {}
            Event::SinkGone => self.half.machine().abort(Cause::SinkClosed, now),
            Event::Answers(queue) => self.answers = Some(queue),
            // The answer is taken once the other events of this batch have been handled.
            Event::Answer => {}
            Event::Refused(refused) => self.handle_refused(refused, now),
            Event::Committed(Ok(report)) => {
                self.account.is_publishing = false;
                self.observer.observe(SessionEvent::StepEnds(Step::Publish));
                let failed = report.as_ref().map_or(0, |report| report.figures.failed);
                if let Some(report) = report {
                    self.summary.figures.written = report.written;
                    self.summary.received_tree = Some(*report);
                }
                self.orphan.has_published = true;
                if let Half::Receive { machine, .. } = &mut self.half {
                    machine.handle_committed(failed, now);
                }
            }
            Event::Committed(Err(refused)) => self.handle_refused(refused, now),
            Event::Signal(number) => self.handle_signal(number, now),
            Event::Cut => self.half.machine().abort(Cause::Signal(libc::SIGTERM as u8), now),
            Event::OtherLost => self.orphan.lose_channel(false, now),
            Event::Orphaned => self.orphan.lose_channel(true, now),
            Event::Unwatched => {
                self.orphan.lose_channel(true, now);
                self.half.machine().handle_unwatched(now);
            }
        }
    }

    fn handle_refused(&mut self, refused: Refused, now: Duration) {
        let cause = match refused {
            Refused::Tree(_) | Refused::Data(_) => {
                self.reason = Some(refused.to_string());
                Cause::Protocol
            }
            Refused::Forged => {
                self.summary.is_forged = true;
                Cause::Integrity
            }
            Refused::Io(fact) => Cause::Sink(fact),
        };
        self.half.machine().abort(cause, now);
    }

    /// Whether everything that the sender has to send has been written.
    fn has_taken_all(&self) -> bool {
        matches!(&self.half, Half::Receive { machine, .. } if machine.has_taken_all())
    }

    /// Whether chunks sealed now are to be encrypted.
    fn encrypt_now(&self) -> bool {
        let core = self.half.machine_ref().core_ref();
        core.agreed().seal(core.path().unwrap_or(Path::Tcp))
    }

    fn handle_sealed(&mut self, mut buffer: Buffer, header: &ChunkHeader) {
        buffer.set_unread(false);
        let id = self.keep(buffer);
        if let Half::Send { machine, .. } = &mut self.half {
            machine.handle_sealed(id, header);
        }
    }

    fn handle_lane(&mut self, id: LaneId, event: LaneEvent, now: Duration) {
        match event {
            LaneEvent::Control(sealed) => self.handle_control(id, &sealed, now),
            LaneEvent::Chunk { buffer, wire_bytes, opened } => {
                let header = ChunkHeader::decode(buffer.header()).filter(|header| {
                    header.wire_bytes == wire_bytes && header.plain_bytes as usize <= self.chunk_bytes
                });
                let buffer = self.keep(buffer);
                self.opened[buffer as usize] = opened;
                if let Half::Receive { machine, .. } = &mut self.half
                    && machine.handle_chunk(id, buffer, header.as_ref()).is_err()
                {
                    machine.handle_corrupt(id, now);
                }
            }
            LaneEvent::Sent(buffer) => {
                let buffer = self.keep(buffer);
                if let Half::Send { machine, .. } = &mut self.half {
                    machine.handle_sent(id, buffer, now);
                }
            }
            LaneEvent::Unsent(buffer) => {
                let buffer_id = self.keep(buffer);
                if let Half::Send { machine, .. } = &mut self.half {
                    machine.handle_unsent(id, buffer_id);
                }
                // The rest of the source is likely to be cold too, and workers can wait for it.
                self.may_plan = false;
                self.read_planned(buffer_id, false);
            }
            LaneEvent::Down { reason, buffers } => {
                for buffer in buffers {
                    self.keep(buffer);
                }
                // A lane that was closed here had become silent or corrupt; "closed" would not say why.
                self.note_reason((reason != LaneError::Closed).then(|| reason.to_string()));
                self.lanes.remove(&id);
                self.half.machine().handle_lane_down(id, now);
            }
        }
    }

    fn handle_control(&mut self, id: LaneId, sealed: &[u8], now: Duration) {
        let Some(live) = self.lanes.get_mut(&id) else { return };
        if live.control.open(sealed, &mut self.frame).is_err() {
            // Either bytes were changed on the way or the peer is broken: the two look alike here.
            return self.half.machine().handle_corrupt(id, now);
        }
        let handled = match Frame::decode(&self.frame) {
            Ok(Some(frame)) => {
                if matches!(frame, Frame::Done { .. }) {
                    self.observer.observe(SessionEvent::StepBegins(Step::Verify));
                }
                self.half.machine().handle_frame(id, frame, now)
            }
            Ok(None) => Ok(()),
            Err(_) => Err(Violation::Unexpected("malformed")),
        };
        if let Err(violation) = handled {
            self.reason = Some(violation.to_string());
            self.half.machine().abort(Cause::Protocol, now);
        }
    }

    fn handle_signal(&mut self, number: i32, now: Duration) {
        if number == libc::SIGTSTP {
            let stops = STOPS.load(Ordering::Relaxed);
            self.half.machine().handle_pause(true, now);
            self.act();
            std::thread::sleep(PAUSE_FLUSH);
            let until = Instant::now() + 39 * PAUSE_FLUSH;
            while self.lanes.values().any(|live| live.lane.has_control_waiting()) && Instant::now() < until {
                std::thread::sleep(PAUSE_FLUSH);
            }
            if STOPS.compare_exchange(stops, stops + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
            }
            let now = self.now();
            self.half.machine().handle_pause(false, now);
            self.account.skip();
        } else if self.half.machine_ref().core_ref().is_ending() {
            // The second request to stop: the other end is no longer waited for.
            self.ended = Some(Outcome::Aborted(Cause::Signal(number as u8)));
        } else {
            self.half.machine().abort(Cause::Signal(number as u8), now);
        }
    }

    /// Takes all actions that are due. Returns true if that has made more actions possible.
    fn act(&mut self) -> bool {
        let mut again = false;
        while let Some(action) = self.half.machine().poll_action() {
            match action {
                Action::Dial(id) => again |= !self.dial(id),
                Action::Close(id) => {
                    if let Some(live) = self.lanes.get_mut(&id) {
                        live.lane.close();
                    }
                }
                Action::Send(id, frame) => self.send(id, &frame),
                Action::Endpoints(endpoints) => {
                    if let Some(dialer) = &self.dialer {
                        dialer.handle_endpoints(&endpoints);
                    }
                    again |= self.find_rails(Path::Rdma);
                }
                Action::Addresses(addresses) => {
                    self.addresses = Some(addresses);
                    again |= self.find_rails(Path::Tcp) | self.find_rails(Path::Rdma);
                }
                Action::Fill { buffer, encrypt } => {
                    if self.plan(buffer, encrypt) {
                        again = true;
                        continue;
                    }
                    let buffer = self.take(buffer);
                    match &self.half {
                        Half::Send { reader: Some(reader), .. } => drop(reader.send((buffer, encrypt))),
                        _ => drop(self.jobs.send(Job::Read(buffer, encrypt))),
                    }
                }
                Action::Encrypt(buffer) => again |= self.encrypt(buffer),
                Action::SendChunk(id, buffer) => {
                    let is_inline = self.lanes.get(&id).is_some_and(|live| live.is_inline);
                    if !is_inline && self.read_planned(buffer, false) {
                        if let Half::Send { machine, .. } = &mut self.half {
                            machine.handle_unsent(id, buffer);
                        }
                        continue;
                    }
                    self.note_protection(buffer);
                    let buffer = self.take(buffer);
                    let wire_bytes = u32::from_le_bytes(buffer.header()[4..8].try_into().expect("4 bytes"));
                    self.note_medium(id);
                    let refused = match self.lanes.get_mut(&id) {
                        Some(live) => live.lane.send_chunk(buffer, wire_bytes).err(),
                        None => Some(buffer),
                    };
                    // A lane that is down reports that in an event of its own, which makes the chunk ready again.
                    refused.map(|buffer| self.keep(buffer));
                }
                Action::PostReceive(id, buffer) => {
                    let buffer = self.take(buffer);
                    self.note_medium(id);
                    let refused = match self.lanes.get_mut(&id) {
                        Some(live) => live.lane.post_receive(buffer).err(),
                        None => Some(buffer),
                    };
                    refused.map(|buffer| self.keep(buffer));
                }
                Action::Open(buffer) => {
                    let opened = self.opened[buffer as usize].take();
                    if opened == Some(true) {
                        self.note_protection(buffer);
                    }
                    match (opened, &mut self.half) {
                        (Some(genuine), Half::Receive { machine, .. }) => {
                            machine.handle_opened(buffer, genuine, self.began.elapsed());
                            again = true;
                        }
                        _ => {
                            self.account.to_open += 1;
                            let buffer = self.take(buffer);
                            let _ = self.jobs.send(Job::Open(buffer));
                        }
                    }
                }
                Action::Write(buffer) => {
                    self.account.sink_given();
                    let buffer = self.take(buffer);
                    match &self.half {
                        Half::Receive { writer: Writer::Stream(sink) | Writer::Tree(sink, _), .. } => {
                            drop(sink.send(SinkJob::Take(buffer)));
                        }
                        _ => drop(self.jobs.send(Job::Write(buffer))),
                    }
                }
                Action::Answer(bytes) => self.take_answer(&bytes),
                Action::Commit => self.commit(),
                Action::Notice(notice) => {
                    let reason = self.rail_name(notice).or_else(|| self.reason.clone());
                    self.observer.observe(SessionEvent::Notice(notice, reason));
                }
                Action::End(outcome) => self.ended = Some(outcome),
            }
        }
        again
    }

    /// Records whether a chunk is encrypted. The chunk is about to be sent, or is a genuine chunk of the peer.
    fn note_protection(&mut self, id: BufferId) {
        let chunk = self.buffers[id as usize].as_ref();
        if let Some(header) = chunk.and_then(|buffer| ChunkHeader::decode(buffer.header())) {
            *(if header.sealed { &mut self.summary.figures.encrypted } else { &mut self.is_in_clear }) = true;
        }
    }

    fn note_medium(&mut self, id: LaneId) {
        let Some(medium) = self.lanes.get(&id).map(|live| live.lane.medium()) else { return };
        self.flowing_since.get_or_insert_with(Instant::now);
        if !self.summary.figures.media.contains(&medium) {
            self.summary.figures.media.push(medium);
        }
        let alike = self.lanes.values().filter(|live| live.lane.medium() == medium).count();
        self.summary.figures.lanes = self.summary.figures.lanes.max(alike);
    }

    /// Starts a thread that dials a lane. Returns false if no thread can be started.
    fn dial(&mut self, id: LaneId) -> bool {
        let Some(dialer) = self.dialer.clone() else { return true };
        self.observer.observe(SessionEvent::Dialing(id));
        let post = self.post.clone();
        let rail = self.half.machine_ref().core_ref().rail_of(id);
        let dial = move || {
            if let Err(error) = announce(&post, id, |report| dialer.dial(id, rail, report)) {
                let _ = post.send(Event::DialFailed(id, error));
            }
        };
        let spawned = crate::spawn("dial", 256 << 10, dial);
        if let Err(error) = &spawned {
            self.dial_failed(id, &LinkError::Os { what: "thread", error: errno_of(error) });
        }
        spawned.is_ok()
    }

    /// Records why a lane is lost or could not be made. What happens after giving up is not the reason for that.
    fn note_reason(&mut self, reason: Option<String>) {
        if !self.half.machine_ref().core_ref().is_ending() {
            self.reason = reason;
        }
    }

    fn dial_failed(&mut self, id: LaneId, error: &LinkError) {
        self.note_reason(Some(error.to_string()));
        self.observer.observe(SessionEvent::DialFailed(id, error.to_string()));
        let now = self.now();
        self.half.machine().handle_dial_failed(id, now);
    }

    fn send(&mut self, id: LaneId, frame: &Frame) {
        let Some(live) = self.lanes.get_mut(&id) else { return };
        // A waiting frame shows life as well as a PING behind it would, and a chunk may hold up any number of frames.
        if matches!(frame, Frame::Ping) && live.lane.has_control_waiting() {
            return;
        }
        if matches!(frame, Frame::Done { .. }) {
            self.observer.observe(SessionEvent::StepBegins(Step::Verify));
        }
        self.frame.clear();
        frame.encode(&mut self.frame);
        match live.control.seal(&self.frame, &mut self.sealed) {
            Ok(()) => live.lane.send_control(&self.sealed),
            Err(_) => live.lane.close(),
        }
    }

    /// Passes on the sink's answers as far as there is room. The sink's threads wait for that unless the session ends.
    fn send_answers(&mut self) {
        let (Some(queue), Half::Receive { machine, .. }) = (&self.answers, &mut self.half) else { return };
        if machine.core_ref().is_ending() {
            self.answers = None;
            return;
        }
        while machine.has_answer_room()
            && let Ok(bytes) = queue.try_recv()
        {
            machine.answer(bytes);
        }
    }

    /// Passes an answer of the peer to the source.
    fn take_answer(&mut self, bytes: &[u8]) {
        let taken = match (&self.spool, Answer::decode(bytes), &self.shared.source) {
            (Some(SpoolEnd::Output(output)), ..) => output.take_mark(bytes).ok_or("broadcast offset"),
            (_, Ok(answer), Some(Parts::Tree(tree))) => tree.handle_answer(answer),
            _ => Err("answer"),
        };
        if let Err(what) = taken {
            self.reason = Some(Violation::Impossible(what).to_string());
            let now = self.now();
            self.half.machine().abort(Cause::Protocol, now);
        }
    }

    fn commit(&mut self) {
        self.account.is_publishing = true;
        self.observer.observe(SessionEvent::StepEnds(Step::Verify));
        self.observer.observe(SessionEvent::StepBegins(Step::Publish));
        // An event reports the result: publishing may take long, and the peer must hear from this end meanwhile.
        match &self.half {
            Half::Receive { writer: Writer::Stream(sink) | Writer::Tree(sink, _), .. } => {
                drop(sink.send(SinkJob::Commit));
            }
            _ => drop(self.jobs.send(Job::Commit)),
        }
    }
}
