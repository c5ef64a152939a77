//! The session: what survives lanes.
//!
//! Two state machines, [`Sender`] and [`Receiver`], share what [`lanes`] knows of lanes and [`Core`] of ending. They
//! own no I/O, no clock and no bytes: events go in (`handle_…`), actions come out ([`Machine::poll_action`]), buffers
//! are numbers, and the time is an argument: how long ago the session began, by a clock that never goes back.
//!
//! # What holds
//!
//! * A chunk leaves the sender's pool only once the receiver has said that it is *taken*: every sink has it.
//! * A chunk is sent again only after its lane is down here and the receiver has said that the lane is gone there and
//!   the chunk is not among those that arrived. So no chunk is ever in two places, and one that must be sealed anew for
//!   another transport can be, without a second valid copy of it existing.
//! * Credits are running totals of one lane in one generation: `used <= granted <= posted`.
//! * Success is the receiver's word, after it has compared every tag and has published.
//! * An answer reaches the sender's owner once and in order, and its acknowledgement waits for nothing.
//! * No state waits without a deadline, but for a silent source, a sink that stands still and a peer that has said that
//!   it is being stopped.

use std::collections::VecDeque;
use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::control::{
    Cause, ENDPOINTS_MAX, Encrypt, Endpoint, Frame, Offer, Path, Policy, RailAddress, RdmaKind, Refusal,
};
use crate::frame::{CHUNK_BYTES_MAX, ChunkHeader};
use crate::handshake::LaneId;

mod answers;
mod growth;
pub mod lanes;
mod rails;
mod receiver;
mod sender;
mod ways;

pub use answers::{ANSWER_WAIT, ANSWERS_MAX};
pub use lanes::{LANES_MAX, RDMA_LANE_FIRST, path_of};
pub use rails::RAILS_MAX;
pub use receiver::{Layout, Receiver, SINKS_MAX};
pub use sender::Sender;
pub use ways::LaneState;

pub use growth::LONG_LINE;
use growth::PoolLimit;
use lanes::Lanes;

/// Number of a buffer in the engine's pool.
pub type BufferId = u32;

/// The smallest chunk size that two ends may agree on, in bytes.
pub const CHUNK_BYTES_MIN: usize = 4096;

/// How long an end that gives up waits for the other to say that it knows.
pub const ABORT_WAIT: Duration = Duration::from_millis(1500);

/// The longest that an engine may leave a machine without `handle_timeout`.
pub const TICK: Duration = Duration::from_millis(100);

/// A round trip that is longer than the shortest by a quarter and by this shows that something waits on the way.
const QUEUE_MIN: Duration = Duration::from_millis(1);

/// Lanes used on TCP where nobody asks for a number: the second gives the sending side a second core. On a long
/// line it is where the connecting end begins.
pub const TCP_LANES_DEFAULT: u8 = 2;

/// Lanes used on RDMA where nobody asks for a number: an adapter needs no more.
pub const RDMA_LANES_DEFAULT: u8 = 1;

/// What both ends hold after their offers have been compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which transports may carry payload.
    pub policy: Policy,
    /// RDMA is to be tried: the policy asks for it and both ends have devices that it counts.
    pub try_rdma: bool,
    /// Payload that goes over TCP is encrypted.
    pub seal_tcp: bool,
    /// Payload that goes over RDMA is encrypted.
    pub seal_rdma: bool,
    /// TCP lanes when payload goes by TCP: as many at first.
    pub tcp_lanes: u16,
    /// As many TCP lanes the connecting end may have, where it finds that more carry more.
    pub tcp_lanes_max: u16,
    /// RDMA lanes.
    pub rdma_lanes: u16,
    /// Largest payload of a chunk, in bytes.
    pub chunk_bytes: usize,
    /// How long the session outlives its last lane.
    pub reconnect: Duration,
}

impl Agreed {
    /// Compares two offers. Gives the same answer at both ends, whichever offer is called ours.
    ///
    /// # Errors
    ///
    /// The [`Refusal`] that both ends then report.
    pub fn new(ours: &Offer, theirs: &Offer) -> Result<Self, Refusal> {
        if ours.role == theirs.role {
            return Err(Refusal::Role);
        }
        // From the least to the most particular: `auto` follows, an exact wish stands.
        let policy = match (ours.policy, theirs.policy) {
            (a, b) if a == b => a,
            (Policy::Auto, other) | (other, Policy::Auto) => other,
            (Policy::PreferRdma, other) | (other, Policy::PreferRdma) => other,
            _ => return Err(Refusal::Transport),
        };
        let encrypt = match (ours.encrypt, theirs.encrypt) {
            (a, b) if a == b => a,
            (Encrypt::Auto, other) | (other, Encrypt::Auto) => other,
            _ => return Err(Refusal::Encrypt),
        };
        let least = match policy {
            Policy::Tcp => None,
            Policy::Auto => Some(RdmaKind::Hardware),
            Policy::Rdma | Policy::PreferRdma => Some(RdmaKind::Software),
        };
        let kind = ours.rdma.min(theirs.rdma);
        let try_rdma = least.is_some_and(|least| kind >= least);
        if policy == Policy::Rdma && !try_rdma {
            return Err(Refusal::Transport);
        }
        let chunk_bytes = ours.chunk_bytes.min(theirs.chunk_bytes) as usize;
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(CHUNK_BYTES_MIN) {
            return Err(Refusal::Offer);
        }
        let asked = match (ours.lanes, theirs.lanes) {
            (0, n) | (n, 0) => n,
            (a, b) => a.min(b),
        };
        let lanes = |default: u8| match asked {
            0 => u16::from(default),
            n => u16::from(n).min(RDMA_LANE_FIRST),
        };
        Ok(Self {
            policy,
            try_rdma,
            seal_tcp: match encrypt {
                Encrypt::Always => true,
                Encrypt::Never => false,
                Encrypt::Auto => !(ours.peer_is_local && theirs.peer_is_local),
            },
            seal_rdma: encrypt == Encrypt::Always,
            tcp_lanes: lanes(TCP_LANES_DEFAULT),
            tcp_lanes_max: if asked == 0 { RDMA_LANE_FIRST } else { lanes(0) },
            rdma_lanes: lanes(RDMA_LANES_DEFAULT),
            chunk_bytes,
            reconnect: Duration::from_secs(u64::from(ours.reconnect_s.min(theirs.reconnect_s))),
        })
    }

    /// Whether payload on this path must be encrypted.
    pub fn seal(&self, path: Path) -> bool {
        match path {
            Path::Tcp => self.seal_tcp,
            Path::Rdma => self.seal_rdma,
        }
    }
}

/// What the engine is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect this lane; answer with `handle_lane_up` or `handle_dial_failed`.
    Dial(LaneId),
    /// End this lane; answer with `handle_lane_down`.
    Close(LaneId),
    /// Send a control frame.
    Send(LaneId, Frame),
    /// Dialling end: RDMA lanes may be dialled here from now on. Once for each list.
    Endpoints(Vec<Endpoint>),
    /// Dialling end: the other end's addresses, by which there may be more rails; answer with `handle_rails` if there are.
    Addresses(Vec<RailAddress>),
    /// Sender: read the next part of the source into this buffer and seal it, encrypted or not; answer with
    /// `handle_sealed` or `handle_unfilled`.
    Fill {
        /// The buffer.
        buffer: BufferId,
        /// Encrypt it.
        encrypt: bool,
    },
    /// Sender: encrypt a buffer that was sealed with a checksum only; answer with `handle_sealed`.
    Encrypt(BufferId),
    /// Sender: send the chunk in this buffer; answer with `handle_sent`, or with `handle_lane_down` alone.
    SendChunk(LaneId, BufferId),
    /// Receiver: post this buffer for an incoming chunk; answer with `handle_chunk`, or with `handle_lane_down` alone.
    PostReceive(LaneId, BufferId),
    /// Receiver: check and open the chunk in this buffer; answer with `handle_opened`.
    Open(BufferId),
    /// Receiver: write it to every sink; answer with `handle_written` for each.
    Write(BufferId),
    /// Sender: the receiver's next answer; it is the owner's from here on.
    Answer(Vec<u8>),
    /// Receiver: all is there: finish the sink; answer with `handle_committed`.
    Commit,
    /// Something a person may want to know.
    Notice(Notice),
    /// The session has ended. The last action.
    End(Outcome),
}

/// What happened to the paths of a session, each told once as it happens. An agent tells its caller of it: the numbers are part of
/// that format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Notice {
    /// RDMA cannot be used now; payload goes by TCP.
    #[n(0)]
    FellBack,
    /// Payload goes by RDMA again.
    #[n(1)]
    BackOnRdma,
    /// A lane that carried payload is lost.
    #[n(2)]
    LaneLost(#[n(0)] LaneId),
    /// The last lane that could carry payload is lost; the reconnect window runs.
    #[n(3)]
    LinkLost,
    /// A lane that can carry payload is there again.
    #[n(4)]
    LinkRestored,
    /// A rail of several of its path has failed; the others carry what it did. Of the end that dials.
    #[n(5)]
    RailLeft(#[n(0)] Path, #[n(1)] u8),
    /// It is well and used again.
    #[n(6)]
    RailBack(#[n(0)] Path, #[n(1)] u8),
}

/// How a session ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has answered for every byte.
    #[default]
    Done,
    /// No lane for the length of the reconnect window.
    LinkLost {
        /// The sender had sent everything and lacks only the answer.
        unanswered: bool,
    },
    /// Policy `rdma`, and no RDMA lane could be made.
    NoRdma,
    /// This end gave up.
    Aborted(Cause),
    /// The other end gave up.
    PeerAborted(Cause),
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counters {
    /// Plain bytes taken.
    #[n(0)]
    pub bytes: u64,
    /// Chunks taken.
    #[n(1)]
    pub chunks: u64,
    /// Lanes that were lost while they carried payload.
    #[n(2)]
    pub retries: u64,
    /// Chunks sent a second time.
    #[n(3)]
    pub replayed: u64,
    /// Chunks whose tag did not fit.
    #[n(4)]
    pub corrupt: u64,
    /// Entries of a tree that the receiver could not make, once it has said so.
    #[n(5)]
    pub unmade: u64,
}

/// Why a peer's frame or chunk ends the session or its lane. The engine passes it to [`Machine::handle_corrupt`] or
/// [`Machine::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame that this state or role does not allow.
    #[error("unexpected {0} frame")]
    Unexpected(&'static str),
    /// An acknowledgement, credit or position that contradicts what is known.
    #[error("impossible {0}")]
    Impossible(&'static str),
}

/// What both state machines understand. `now` is the time since the session began.
pub trait Machine {
    /// The part that both share.
    fn core(&mut self) -> &mut Core;

    /// The shared part, to look at.
    fn core_ref(&self) -> &Core;

    /// A lane has authenticated and may be used.
    fn handle_lane_up(&mut self, lane: LaneId, now: Duration);

    /// A lane has ended. Every buffer that it held is the engine's again.
    fn handle_lane_down(&mut self, lane: LaneId, now: Duration);

    /// A control frame has arrived, opened and decoded.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the engine aborts the session with [`Cause::Protocol`].
    fn handle_frame(&mut self, lane: LaneId, frame: Frame, now: Duration) -> Result<(), Violation>;

    /// Time has passed.
    fn handle_timeout(&mut self, now: Duration);

    /// Makes actions of what has been learnt; call it once a batch of events has been handled.
    fn advance(&mut self, now: Duration);

    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action> {
        let core = self.core();
        if core.end_polled {
            // Events that were handled in the same batch as the one that ended it, or after it.
            core.actions.clear();
        }
        let action = core.actions.pop_front();
        core.end_polled |= matches!(action, Some(Action::End(_)));
        action
    }

    /// A lane could not be connected.
    fn handle_dial_failed(&mut self, lane: LaneId, now: Duration) {
        self.core().dial_failed(lane, now);
    }

    /// The peer was heard on this lane at that time (not later than now).
    fn handle_heard(&mut self, lane: LaneId, at: Duration) {
        self.core().lanes.heard(lane, at);
    }

    /// The smoothed round trip of the quickest TCP lane, as the system has measured it.
    fn handle_round_trip(&mut self, round_trip: Duration, now: Duration) {
        self.core().note_round_trip(round_trip, now);
    }

    /// How a lane does, as the system or its adapter has measured it; once a tick.
    fn handle_lane_state(&mut self, lane: LaneId, state: LaneState, now: Duration) {
        self.core().lanes.note_state(lane, state, now);
    }

    /// The way that a lane goes, which is that of all with the same addresses.
    fn handle_way(&mut self, lane: LaneId, way: u8) {
        self.core().lanes.note_way(lane, way);
    }

    /// At most `buffers` of the pool are used until the line is seen to need more.
    fn begin_with_buffers(&mut self, buffers: u32) {
        self.core().pool.begin_with(buffers);
    }

    /// This end has so many processors, each of which can serve a lane.
    fn handle_processors(&mut self, count: u16) {
        self.core().lanes.set_processors(count);
    }

    /// No more than `buffers` of the pool are used, but for those to begin with: so much of the memory that is free may be
    /// had. What a receiver has promised already stays promised.
    fn handle_room(&mut self, buffers: u32) {
        self.core().pool.set_room(buffers);
    }

    /// Nothing is in this buffer, and nobody has it.
    fn is_free(&self, buffer: BufferId) -> bool;

    /// Something on this lane did not pass its tag: the lane is given up, and the session too if it happens too often.
    fn handle_corrupt(&mut self, lane: LaneId, now: Duration) {
        self.core().corrupt(lane, now);
    }

    /// Gives up, telling the other end why.
    fn abort(&mut self, cause: Cause, now: Duration) {
        self.core().abort(cause, now);
    }

    /// This process is about to be stopped, or has been started again.
    fn handle_pause(&mut self, stopped: bool, now: Duration) {
        self.core().pause(stopped, now);
    }

    /// This end's caller is out of reach. The session goes on unless that is so of the other end as well.
    fn handle_unwatched(&mut self, now: Duration) {
        self.core().unwatched(now);
    }

    /// The end that accepts lanes: where it listens for RDMA from now on.
    fn handle_endpoints(&mut self, endpoints: Vec<Endpoint>, now: Duration) {
        self.core().endpoints_changed(endpoints, now);
    }

    /// The end that accepts lanes: at which addresses, for the other end to find more rails.
    fn handle_addresses(&mut self, addresses: Vec<RailAddress>, now: Duration) {
        self.core().addresses_known(addresses, now);
    }

    /// The end that dials: so many rails of a path have been found, with the one that it began on. `all`: they are used
    /// whether they carry more or not.
    fn handle_rails(&mut self, path: Path, count: u8, all: bool, now: Duration) {
        self.core().rails_found((path, count, all), now);
    }

    /// When `handle_timeout` is due at the latest.
    fn next_timeout(&self, now: Duration) -> Duration;

    /// Counters so far.
    fn counters(&self) -> Counters {
        self.core_ref().counters
    }

    /// Whether lanes have come up again since nothing comes through any more: a network that loses large packets, say.
    fn lanes_come_up_in_vain(&self) -> bool {
        self.core_ref().lanes.come_up_in_vain()
    }
}

/// What sender and receiver have in common: lanes, giving up, the end.
#[derive(Debug)]
pub struct Core {
    pub(crate) agreed: Agreed,
    pub(crate) lanes: Lanes,
    /// How much of the pool may be in use.
    pub(crate) pool: PoolLimit,
    /// Fewer are used where the line holds less. A receiver keeps what it has posted: with fewer, each chunk would come into a
    /// buffer that has not been used for longer.
    pool_shrinks: bool,
    /// The shortest round trip so far, and the last one.
    round_trips: Option<(Duration, Duration)>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) counters: Counters,
    aborting: Option<(Cause, Duration)>,
    /// Where RDMA lanes may be dialled, as told last or as heard last, and how often that has changed.
    endpoints: Option<(u32, Vec<Endpoint>)>,
    /// The addresses of the end that accepts lanes, as told or as heard first.
    addresses: Option<Vec<RailAddress>>,
    /// Nobody can be told of this session: by this end, and by the other.
    unwatched: bool,
    peer_unwatched: bool,
    /// All has been published, and the answer is kept ready for as long. Whatever happens from here on comes too late to
    /// change how this end ends.
    linger_until: Option<Duration>,
    ended: bool,
    end_polled: bool,
}

/// What a session ends by that nobody watches: a hangup, as a process would whose terminal is gone.
const SIGHUP: u8 = 1;

/// Corrupt frames and chunks after which a session gives up rather than replace the lane once more.
pub const CORRUPT_MAX: u64 = 8;

impl Core {
    fn new(agreed: Agreed, connector: bool, buffers: u32) -> Self {
        Self {
            agreed,
            lanes: Lanes::new(agreed, connector),
            pool: PoolLimit::all(buffers),
            pool_shrinks: false,
            round_trips: None,
            actions: VecDeque::with_capacity(4 * buffers as usize + 64),
            counters: Counters::default(),
            aborting: None,
            endpoints: None,
            addresses: None,
            unwatched: false,
            peer_unwatched: false,
            linger_until: None,
            ended: false,
            end_polled: false,
        }
    }

    /// What both ends agreed on.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// The transport that payload takes now; `None` until it is known.
    pub fn path(&self) -> Option<Path> {
        self.lanes.path()
    }

    /// The lane that control frames of no particular lane go by: of those that are up the one that came first, as it has
    /// the fewest chunks to carry.
    pub fn control_lane(&self) -> Option<LaneId> {
        self.lanes.up().next()
    }

    /// The rail of its path that a lane is to be dialled on: 0 is the one that the path began on.
    pub fn rail_of(&self, lane: LaneId) -> u8 {
        self.lanes.rail_of(lane)
    }

    /// Rails of a path that have been found, with the one that it began on.
    pub fn rails(&self, path: Path) -> u16 {
        self.lanes.rails_of(path).count()
    }

    /// TCP lanes that payload may use on each rail, if that path is taken.
    pub fn tcp_lanes(&self) -> u16 {
        self.lanes.tcp_lanes()
    }

    /// Buffers that may be in use.
    pub fn buffers_max(&self) -> u32 {
        self.pool.limit()
    }

    /// The shortest round trip that the system has measured on a TCP lane.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trips.map(|(shortest, _)| shortest)
    }

    /// Nothing but the end is to come: no new work.
    pub fn is_ending(&self) -> bool {
        self.ended || self.aborting.is_some()
    }

    pub(crate) fn broadcast(&mut self, frame: &Frame, now: Duration) {
        for lane in self.lanes.up() {
            self.lanes.spoke(lane, now);
            self.actions.push_back(Action::Send(lane, frame.clone()));
        }
    }

    pub(crate) fn send(&mut self, lane: LaneId, frame: Frame, now: Duration) {
        self.lanes.spoke(lane, now);
        self.actions.push_back(Action::Send(lane, frame));
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        if !self.ended {
            self.ended = true;
            self.actions.push_back(Action::End(outcome));
        }
    }

    fn note_round_trip(&mut self, round_trip: Duration, now: Duration) {
        let shortest = self.round_trips.map_or(round_trip, |(shortest, _)| shortest.min(round_trip));
        self.round_trips = Some((shortest, round_trip));
        self.pool.set_round_trip(shortest);
        self.lanes.note_round_trip(shortest, now, self.counters.bytes, &mut self.actions);
    }

    /// Fits lanes, rails and buffers to the line. `limits`: it is the line that limits, neither source nor sink.
    /// `keeps_busy`: no lane has waited for data, as far as this end sees.
    pub(crate) fn fit(&mut self, limits: bool, keeps_busy: bool, now: Duration) {
        self.pool.note(now, self.counters.chunks, limits && self.pool_shrinks);
        let queues = self.round_trips.is_some_and(|(shortest, last)| last > shortest + shortest / 4 + QUEUE_MIN);
        let limits = [limits && !self.pool.is_tight(), keeps_busy];
        self.lanes.fit(self.counters.bytes, limits, queues, now, &mut self.actions);
    }

    fn dial_failed(&mut self, lane: LaneId, now: Duration) {
        if self.lanes.dial_failed(lane, now, &mut self.actions) && !self.is_ending() {
            self.broadcast(&Frame::Abort(Cause::NoRdma), now);
            self.end(Outcome::NoRdma);
        }
    }

    fn corrupt(&mut self, lane: LaneId, now: Duration) {
        // One lane is given up once, however much of what it still brings is damaged as well.
        if self.is_ending() || !self.lanes.is_up(lane) {
            return;
        }
        self.counters.corrupt += 1;
        if self.counters.corrupt > CORRUPT_MAX {
            self.abort(Cause::Integrity, now);
        } else {
            self.lanes.close(lane, &mut self.actions);
        }
    }

    fn abort(&mut self, cause: Cause, now: Duration) {
        if self.is_ending() {
            return;
        }
        if let Some(until) = &mut self.linger_until {
            *until = (*until).min(now + ABORT_WAIT);
            return;
        }
        self.broadcast(&Frame::Abort(cause.clone()), now);
        if self.control_lane().is_none() && self.agreed.reconnect.is_zero() {
            self.end(Outcome::Aborted(cause));
        } else {
            // Where no lane is up just now, the next one is told: without a word the other end would wait for this one
            // until its window has passed, and then report a lost link.
            self.aborting = Some((cause, now + ABORT_WAIT));
        }
    }

    fn unwatched(&mut self, now: Duration) {
        self.unwatched = true;
        self.broadcast(&Frame::Unwatched, now);
        self.abort_if_unwanted(now);
    }

    fn abort_if_unwanted(&mut self, now: Duration) {
        if self.unwatched && self.peer_unwatched {
            self.abort(Cause::Signal(SIGHUP), now);
        }
    }

    /// Tells a lane that has just come up what all others were told when it happened.
    pub(crate) fn repeat(&mut self, lane: LaneId, now: Duration) {
        self.tell_addresses(&[lane], now);
        if self.unwatched {
            self.send(lane, Frame::Unwatched, now);
        }
        // While RDMA is there nobody asks; where it goes, all lanes are told.
        if path_of(lane) == Path::Tcp && !self.has_rdma() {
            self.tell_endpoints(&[lane], now);
        }
        if let Some((cause, _)) = &self.aborting {
            let abort = Frame::Abort(cause.clone());
            self.send(lane, abort, now);
        }
    }

    fn has_rdma(&self) -> bool {
        self.lanes.up().any(|lane| path_of(lane) == Path::Rdma)
    }

    fn tell_endpoints(&mut self, lanes: &[LaneId], now: Duration) {
        let Some((turn, endpoints)) = self.endpoints.clone().filter(|_| !self.lanes.is_connector()) else { return };
        for &lane in lanes {
            self.send(lane, Frame::Endpoints { turn, endpoints: endpoints.clone() }, now);
        }
    }

    fn tell_addresses(&mut self, lanes: &[LaneId], now: Duration) {
        let Some(addresses) = self.addresses.clone().filter(|_| !self.lanes.is_connector()) else { return };
        for &lane in lanes.iter().filter(|&&lane| path_of(lane) == Path::Tcp) {
            self.send(lane, Frame::Addresses(addresses.clone()), now);
        }
    }

    fn addresses_known(&mut self, mut addresses: Vec<RailAddress>, now: Duration) {
        addresses.truncate(ENDPOINTS_MAX);
        self.addresses = Some(addresses);
        self.tell_addresses(&self.lanes.up().collect::<Vec<_>>(), now);
    }

    /// They come on each lane; the first list stands.
    fn addresses_heard(&mut self, addresses: Vec<RailAddress>) -> Result<(), Violation> {
        if !self.lanes.is_connector() {
            return Err(Violation::Unexpected("ADDRESSES"));
        }
        if self.addresses.is_none() {
            self.actions.push_back(Action::Addresses(addresses.clone()));
            self.addresses = Some(addresses);
        }
        Ok(())
    }

    fn rails_found(&mut self, found: (Path, u8, bool), now: Duration) {
        let round_trip = self.round_trip().unwrap_or_default();
        self.lanes.rails_found(found, round_trip, now, self.counters.bytes, &mut self.actions);
    }

    fn endpoints_changed(&mut self, mut endpoints: Vec<Endpoint>, now: Duration) {
        endpoints.truncate(ENDPOINTS_MAX);
        let turn = self.endpoints.as_ref().map_or(0, |(turn, _)| *turn) + 1;
        self.endpoints = Some((turn, endpoints));
        self.tell_endpoints(&self.lanes.up().collect::<Vec<_>>(), now);
    }

    /// A lane has gone. Where it was the last of RDMA, the other end may have missed what was told meanwhile.
    pub(crate) fn lane_down(&mut self, lane: LaneId, now: Duration) -> bool {
        let lost = self.lanes.lane_down(lane, now, &mut self.actions);
        if path_of(lane) == Path::Rdma && !self.has_rdma() {
            self.tell_endpoints(&self.lanes.up().collect::<Vec<_>>(), now);
        }
        lost
    }

    fn endpoints_heard(&mut self, turn: u32, endpoints: Vec<Endpoint>) -> Result<(), Violation> {
        if !self.lanes.is_connector() {
            return Err(Violation::Unexpected("ENDPOINTS"));
        }
        let known = self.endpoints.as_ref();
        match known.map_or(0, |(known, _)| *known) {
            known if turn < known => {}
            known if turn > known => {
                self.actions.push_back(Action::Endpoints(endpoints.clone()));
                self.endpoints = Some((turn, endpoints));
            }
            _ if known.is_some_and(|(_, known)| *known == endpoints) => {}
            _ => return Err(Violation::Impossible("endpoints")),
        }
        Ok(())
    }

    fn pause(&mut self, stopped: bool, now: Duration) {
        if stopped {
            self.broadcast(&Frame::Pause, now);
        } else {
            self.lanes.woke(now);
            self.broadcast(&Frame::Ping, now);
        }
    }

    /// Handles the frames that mean the same to both roles; gives the others back.
    pub(crate) fn common_frame(
        &mut self,
        lane: LaneId,
        frame: Frame,
        now: Duration,
    ) -> Result<Option<Frame>, Violation> {
        self.lanes.peer_spoke(lane, matches!(frame, Frame::Pause), now);
        match frame {
            Frame::Ping | Frame::Pause => {}
            Frame::Unwatched => {
                self.peer_unwatched = true;
                self.abort_if_unwanted(now);
            }
            Frame::Use { path, turn } => self.lanes.use_path(lane, path, turn, now, &mut self.actions)?,
            Frame::Endpoints { turn, endpoints } => self.endpoints_heard(turn, endpoints)?,
            Frame::Addresses(addresses) => self.addresses_heard(addresses)?,
            Frame::Retired => self.lanes.retired(lane, now)?,
            Frame::Abort(cause) => {
                self.broadcast(&Frame::Bye, now);
                if let Some((ours, _)) = self.aborting.take() {
                    self.end(Outcome::Aborted(ours));
                } else if self.linger_until.is_some() {
                    self.end(Outcome::Done);
                } else if cause == Cause::NoRdma {
                    self.end(Outcome::NoRdma);
                } else {
                    self.end(Outcome::PeerAborted(cause));
                }
            }
            Frame::Bye if self.aborting.is_some() => {
                let (cause, _) = self.aborting.take().expect("checked by the guard");
                self.end(Outcome::Aborted(cause));
            }
            // The engine uses these up before and beside the session.
            Frame::Offer(_) => return Err(Violation::Unexpected("OFFER")),
            Frame::Refuse(_) => return Err(Violation::Unexpected("REFUSE")),
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Keeps lanes alive and replaced after everything has been published, when losing them is no failure.
    pub(crate) fn linger(&mut self, now: Duration) {
        let _window_passed = self.lanes.timeout(now, &mut self.actions);
        self.lanes.dial(now, &mut self.actions);
    }

    /// Heartbeats, dead lanes, dialling, the reconnect window. `unanswered` goes into the outcome.
    pub(crate) fn timeout(&mut self, now: Duration, unanswered: bool) {
        if let Some((cause, deadline)) = &self.aborting {
            let nobody_comes = self.agreed.reconnect.is_zero() && self.control_lane().is_none();
            if now >= *deadline || nobody_comes {
                let cause = cause.clone();
                self.aborting = None;
                return self.end(Outcome::Aborted(cause));
            }
            return self.lanes.dial(now, &mut self.actions);
        }
        if self.is_ending() {
            return;
        }
        if self.lanes.timeout(now, &mut self.actions) {
            self.end(Outcome::LinkLost { unanswered });
        }
    }
}

/// What a receiver needs of a chunk's header once the transport has delivered it.
pub(crate) fn check_policy(agreed: &Agreed, path: Path, header: &ChunkHeader) -> bool {
    header.sealed || !agreed.seal(path)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
