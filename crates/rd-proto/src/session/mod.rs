//! The session: the part of a transfer that survives the loss of lanes.
//!
//! Two state machines, [`Sender`] and [`Receiver`], share the state of lanes in [`lanes`] and the ending of a session
//! in [`Core`]. They own no I/O, no clock and no bytes. Events go in (`handle_…`) and actions come out
//! ([`Machine::poll_action`]). Buffers are numbers, and time is an argument: how long ago the session began, by a clock
//! that never goes back.
//!
//! # Invariants
//!
//! * A chunk leaves the sender's pool only once the receiver has said that it is *taken*: every sink has it.
//! * A chunk is sent again only after its lane is down at the sender and the receiver has said that the lane is gone
//!   there and that the chunk did not arrive. So no chunk is ever in two places. A chunk that must be sealed anew for
//!   another transport can be, because no second valid copy of it exists.
//! * Credits are running totals of one lane in one generation: `used <= granted <= posted`.
//! * The receiver decides whether the session succeeded, after it has compared every tag and has published.
//! * An answer reaches the sender's owner once and in order, and is acknowledged without waiting for anything.
//! * No state waits without a deadline, except for a silent source, a sink that makes no progress and a peer that has
//!   said that its process is being stopped.

use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::control::{
    Cause, ENDPOINTS_MAX, Encrypt, Endpoint, Frame, Offer, Path, Policy, RailAddress, RdmaKind, Refusal,
};
use crate::frame::CHUNK_BYTES_MAX;
use crate::handshake::LaneId;

mod answers;
mod growth;
pub mod lanes;
mod rails;
mod receiver;
mod sender;
mod span;
mod ways;

pub use answers::{ANSWER_WAIT, ANSWERS_MAX};
pub use lanes::{LANES_MAX, RDMA_LANE_FIRST, path_of};
pub use rails::RAILS_MAX;
pub use receiver::{Layout, Receiver, SINKS_MAX};
pub use sender::Sender;
pub use ways::LaneState;

pub use growth::LONG_LINE;
use growth::{INFORMATIVE_BYTES, PoolLimit, RoundTrips};
use lanes::Lanes;

/// Number of a buffer in the engine's pool.
pub type BufferId = u32;

/// Minimum chunk size that two ends may agree on, in bytes.
pub const CHUNK_BYTES_MIN: usize = 4096;

/// How long an end that gives up waits for the other end to confirm it.
pub const ABORT_WAIT: Duration = Duration::from_millis(1500);

/// Maximum time between two calls of `handle_timeout` by the engine.
pub const TICK: Duration = Duration::from_millis(100);

/// Number of TCP lanes if no number was asked for: the second lane gives the sending side a second core. The
/// connecting end begins with this number, or with more on a long line, and tries other numbers.
pub const TCP_LANES_DEFAULT: u8 = 2;

/// Number of RDMA lanes if no number was asked for: an adapter needs no more.
pub const RDMA_LANES_DEFAULT: u8 = 1;

/// The agreement that both ends reach by comparing their offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which transports may carry payload.
    pub policy: Policy,
    /// Whether RDMA is to be tried: the policy asks for it and both ends have devices that the policy accepts.
    pub try_rdma: bool,
    /// Whether payload that goes over TCP is encrypted.
    pub seal_tcp: bool,
    /// Whether payload that goes over RDMA is encrypted.
    pub seal_rdma: bool,
    /// Number of TCP lanes at first, if payload goes by TCP.
    pub tcp_lanes: u16,
    /// Maximum number of TCP lanes that the connecting end may have, if it finds that more lanes carry more.
    pub tcp_lanes_max: u16,
    /// Number of RDMA lanes.
    pub rdma_lanes: u16,
    /// Maximum payload of a chunk, in bytes.
    pub chunk_bytes: usize,
    /// How long the session outlives its last lane.
    pub reconnect: Duration,
}

impl Agreed {
    /// Compares two offers. The result is the same at both ends, whichever offer is passed as `ours`.
    ///
    /// # Errors
    ///
    /// The [`Refusal`] that both ends then report.
    pub fn new(ours: &Offer, theirs: &Offer) -> Result<Self, Refusal> {
        if ours.role == theirs.role {
            return Err(Refusal::Role);
        }
        // From the least to the most specific policy: `auto` gives way to any other, and an exact policy stands.
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

    /// Returns whether payload on this path must be encrypted.
    pub fn seal(&self, path: Path) -> bool {
        match path {
            Path::Tcp => self.seal_tcp,
            Path::Rdma => self.seal_rdma,
        }
    }
}

/// Work for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect this lane; answer with `handle_lane_up` or `handle_dial_failed`.
    Dial(LaneId),
    /// End this lane; answer with `handle_lane_down`.
    Close(LaneId),
    /// Send a control frame.
    Send(LaneId, Frame),
    /// Dialling end: RDMA lanes may be dialled at these endpoints from now on. Emitted once for each list.
    Endpoints(Vec<Endpoint>),
    /// Dialling end: these are the peer's addresses, which may lead to more rails; answer with `handle_rails` if they
    /// do.
    Addresses(Vec<RailAddress>),
    /// Sender: read the next part of the source into this buffer and seal it; answer with `handle_sealed` or
    /// `handle_unfilled`.
    Fill {
        /// The buffer.
        buffer: BufferId,
        /// Whether to encrypt the chunk.
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
    /// Receiver: write the chunk in this buffer to every sink; answer with `handle_written` for each.
    Write(BufferId),
    /// Sender: pass the receiver's next answer to the owner of the session.
    Answer(Vec<u8>),
    /// Receiver: finish the sink, because everything has arrived; answer with `handle_committed`.
    Commit,
    /// Tell the user about a change. Not emitted once the outcome is settled.
    Notice(Notice),
    /// End the session. Always the last action.
    End(Outcome),
}

/// A change to the paths of a session. Each is reported once, when it happens. Agents report them to their caller: the
/// numbers are part of that format.
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
    /// A lane that can carry payload is up again.
    #[n(4)]
    LinkRestored,
    /// One of several rails of this path has failed, and the others carry its share. Emitted by the dialling end.
    #[n(5)]
    RailLeft(#[n(0)] Path, #[n(1)] u8),
    /// A rail that had failed, or carried next to nothing, works and is used again.
    #[n(6)]
    RailBack(#[n(0)] Path, #[n(1)] u8),
    /// One of several rails of this path carries next to nothing, and the others carry its share. Emitted by the
    /// dialling end.
    #[n(7)]
    RailSlow(#[n(0)] Path, #[n(1)] u8),
}

/// How a session ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has confirmed every byte.
    #[default]
    Done,
    /// No lane came up for the length of the reconnect window.
    LinkLost {
        /// Whether the sender had sent everything and lacks only the receiver's answer.
        unanswered: bool,
    },
    /// The policy is `rdma`, and no RDMA lane could be made.
    NoRdma,
    /// This end gave up.
    Aborted(Cause),
    /// The other end gave up.
    PeerAborted(Cause),
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counters {
    /// Number of plain bytes taken.
    #[n(0)]
    pub bytes: u64,
    /// Number of chunks taken.
    #[n(1)]
    pub chunks: u64,
    /// Number of lanes lost while they carried payload.
    #[n(2)]
    pub retries: u64,
    /// Number of chunks sent again.
    #[n(3)]
    pub replayed: u64,
    /// Number of corrupt frames and chunks, such as chunks that did not pass their tag.
    #[n(4)]
    pub corrupt: u64,
    /// Number of entries of a tree that the receiver could not make, once the receiver has reported it.
    #[n(5)]
    pub unmade: u64,
}

/// Why a peer's frame or chunk ends the session or its lane. The engine passes it to [`Machine::handle_corrupt`] or
/// [`Machine::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// This state or role does not allow the frame.
    #[error("unexpected {0} frame")]
    Unexpected(&'static str),
    /// An acknowledgement, credit or position contradicts what is known.
    #[error("invalid {0}")]
    Impossible(&'static str),
}

/// The interface of both state machines. `now` is the time since the session began.
pub trait Machine {
    /// Returns the part that both machines share.
    fn core(&mut self) -> &mut Core;

    /// Returns the shared part for reading.
    fn core_ref(&self) -> &Core;

    /// Handles a lane that has authenticated and may be used.
    fn handle_lane_up(&mut self, lane: LaneId, now: Duration);

    /// Handles the end of a lane. Every buffer that the lane held belongs to the engine again.
    fn handle_lane_down(&mut self, lane: LaneId, now: Duration);

    /// Handles a control frame that has arrived and has been opened and decoded.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the engine aborts the session with [`Cause::Protocol`].
    fn handle_frame(&mut self, lane: LaneId, frame: Frame, now: Duration) -> Result<(), Violation>;

    /// Handles the passing of time.
    fn handle_timeout(&mut self, now: Duration);

    /// Derives actions from the handled events. The engine calls it once after each batch of events.
    fn advance(&mut self, now: Duration);

    /// Returns the next action, or `None` if there is nothing to do.
    fn poll_action(&mut self) -> Option<Action> {
        let core = self.core();
        if core.end_polled {
            // These actions come from events handled after the end, or in the same batch.
            core.lanes.actions.clear();
        }
        while core.lanes.actions.front().is_some_and(|action| match action {
            // The end of a loss that was reported.
            Action::Notice(Notice::LinkRestored) => core.is_ending(),
            Action::Notice(_) => core.is_ending() || core.linger_until.is_some(),
            _ => false,
        }) {
            core.lanes.actions.pop_front();
        }
        let action = core.lanes.actions.pop_front();
        core.end_polled |= matches!(action, Some(Action::End(_)));
        action
    }

    /// Handles a lane that could not be connected.
    fn handle_dial_failed(&mut self, lane: LaneId, now: Duration) {
        let core = self.core();
        if core.lanes.dial_failed(lane, now) {
            core.abort(Cause::NoRdma, now);
        }
    }

    /// Records that the peer was heard on this lane at the time `at`, which is not later than now.
    fn handle_heard(&mut self, lane: LaneId, at: Duration) {
        self.core().lanes.heard(lane, at);
    }

    /// Records the smoothed round trip of the fastest TCP lane, as the system has measured it.
    fn handle_round_trip(&mut self, round_trip: Duration, now: Duration) {
        let core = self.core();
        let round_trips = core.round_trips.get_or_insert_with(|| RoundTrips::new(round_trip, now));
        round_trips.note(round_trip, now);
        core.pool.set_round_trip(round_trips.shortest());
        core.lanes.note_round_trip(round_trips.shortest(), now, core.counters.bytes);
    }

    /// Records the state of a lane, as the system or its adapter has measured it. Called once a tick.
    fn handle_lane_state(&mut self, lane: LaneId, state: LaneState, now: Duration) {
        self.core().lanes.note_state(lane, state, now);
    }

    /// Records the way that a lane takes. Lanes with the same addresses take the same way.
    fn handle_way(&mut self, lane: LaneId, way: u8) {
        self.core().lanes.note_way(lane, way);
    }

    /// Limits the pool to `buffers` buffers until the line is seen to need more.
    fn begin_with_buffers(&mut self, buffers: u32) {
        self.core().pool.begin_with(buffers);
    }

    /// Records how many processors this end has. Each of them can serve a lane.
    fn handle_processors(&mut self, count: u16) {
        self.core().lanes.set_processors(count);
    }

    /// Limits the pool to `buffers` buffers, which is this session's share of the free memory, but never below the
    /// number that the session began with. Buffers that a receiver has already promised stay promised.
    fn handle_room(&mut self, buffers: u32) {
        self.core().pool.set_room(buffers);
    }

    /// Returns whether this buffer is empty and not in use.
    fn is_free(&self, buffer: BufferId) -> bool;

    /// Handles data on this lane that did not pass its tag. Closes the lane, and ends the session if this happens too
    /// often.
    fn handle_corrupt(&mut self, lane: LaneId, now: Duration) {
        self.core().corrupt(lane, now);
    }

    /// Gives up, and tells the other end why.
    fn abort(&mut self, cause: Cause, now: Duration) {
        self.core().abort(cause, now);
    }

    /// Handles that this process is about to be stopped, or has been continued.
    fn handle_pause(&mut self, stopped: bool, now: Duration) {
        let core = self.core();
        if stopped {
            core.broadcast(&Frame::Pause, now);
        } else {
            core.lanes.woke(now);
            core.broadcast(&Frame::Ping, now);
        }
    }

    /// Handles the loss of this end's caller. The session goes on unless the other end's caller is out of reach as
    /// well.
    fn handle_unwatched(&mut self, now: Duration) {
        let core = self.core();
        core.unwatched = true;
        core.broadcast(&Frame::Unwatched, now);
        core.abort_if_unwanted(now);
    }

    /// At the end that accepts lanes: records where this end listens for RDMA from now on.
    fn handle_endpoints(&mut self, mut endpoints: Vec<Endpoint>, now: Duration) {
        let core = self.core();
        endpoints.truncate(ENDPOINTS_MAX);
        let turn = core.endpoints.as_ref().map_or(0, |(turn, _)| *turn) + 1;
        core.endpoints = Some((turn, endpoints));
        core.tell_endpoints(&core.lanes.up().collect::<Vec<_>>(), now);
    }

    /// At the end that accepts lanes: records this end's addresses, by which the other end may find more rails.
    fn handle_addresses(&mut self, mut addresses: Vec<RailAddress>, now: Duration) {
        let core = self.core();
        addresses.truncate(ENDPOINTS_MAX);
        core.addresses = Some(addresses);
        core.tell_addresses(&core.lanes.up().collect::<Vec<_>>(), now);
    }

    /// At the end that dials: records how many rails of a path have been found, including the one that the path began
    /// on. `all`: use all rails whether they carry more or not.
    fn handle_rails(&mut self, path: Path, count: u8, all: bool, now: Duration) {
        let core = self.core();
        let round_trip = core.round_trip().unwrap_or_default();
        core.lanes.rails_found((path, count, all), round_trip, now, core.counters.bytes);
    }

    /// Returns the time until `handle_timeout` is due at the latest.
    fn next_timeout(&self, now: Duration) -> Duration;

    /// Returns the counters so far.
    fn counters(&self) -> Counters {
        self.core_ref().counters
    }

    /// Returns whether lanes have come up since chunks stopped coming through. This happens if a network loses large
    /// packets, for example.
    fn lanes_come_up_in_vain(&self) -> bool;
}

/// State that sender and receiver have in common: lanes, giving up, the end.
#[derive(Debug)]
pub struct Core {
    pub(crate) agreed: Agreed,
    pub(crate) lanes: Lanes,
    /// Limit on the number of buffers in use.
    pub(crate) pool: PoolLimit,
    /// Whether the limit shrinks when the line holds less. False at a receiver: with fewer posted buffers, each chunk
    /// would arrive in a buffer that has been unused for longer.
    pool_shrinks: bool,
    round_trips: Option<RoundTrips>,
    pub(crate) counters: Counters,
    /// Number of taken chunks at which all corrupt frames and chunks so far will be forgiven.
    forgiven_at: u64,
    aborting: Option<(Cause, Duration)>,
    /// How often the list of RDMA endpoints has changed, and the list as sent or received last.
    endpoints: Option<(u32, Vec<Endpoint>)>,
    /// Addresses of the end that accepts lanes, as sent or as received first.
    addresses: Option<Vec<RailAddress>>,
    /// Whether this end's caller is out of reach, and whether the peer's caller is.
    unwatched: bool,
    peer_unwatched: bool,
    /// Until when the answer is kept ready, once everything has been published. Later events cannot change the outcome
    /// of this end.
    linger_until: Option<Duration>,
    ended: bool,
    end_polled: bool,
}

/// Signal with which a session ends if the callers of both ends are out of reach: a hangup, as for a process whose
/// terminal is gone.
const SIGHUP: u8 = 1;

/// Maximum number of corrupt frames and chunks that are not forgiven, for each of which the session replaces a lane.
/// After one more it gives up.
pub const CORRUPT_MAX: u64 = 8;

/// Number of chunks that must come through for one corrupt frame or chunk to be forgiven; 64 GiB if all are full. TCP's
/// checksum misses damage now and then, so a session of many terabytes meets more than [`CORRUPT_MAX`].
const CHUNKS_PER_CORRUPT: u64 = 1 << 16;

impl Core {
    fn new(agreed: Agreed, connector: bool, buffers: u32) -> Self {
        Self {
            agreed,
            lanes: Lanes::new(agreed, connector, buffers),
            pool: PoolLimit::all(buffers),
            pool_shrinks: false,
            round_trips: None,
            counters: Counters::default(),
            forgiven_at: 0,
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

    /// Returns what both ends agreed on.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Returns the transport that carries payload now, or `None` if it is not decided yet.
    pub fn path(&self) -> Option<Path> {
        self.lanes.path()
    }

    /// Returns the lane for control frames that belong to no particular lane: the first lane that is up, which has the
    /// fewest chunks to carry.
    pub fn control_lane(&self) -> Option<LaneId> {
        self.lanes.up().next()
    }

    /// Returns the rail of its path on which a lane is to be dialled; 0 is the rail that the path began on.
    pub fn rail_of(&self, lane: LaneId) -> u8 {
        self.lanes.rail_of(lane)
    }

    /// Returns the number of rails found for a path, including the one that the path began on.
    pub fn rails(&self, path: Path) -> u16 {
        self.lanes.rails_of(path).count()
    }

    /// Returns the number of buffers that may be in use.
    pub fn buffers_max(&self) -> u32 {
        self.pool.limit()
    }

    /// Returns the shortest round trip that the system has measured on a TCP lane.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trips.as_ref().map(RoundTrips::shortest)
    }

    /// Returns whether the session is only ending, so that no new work may begin.
    pub fn is_ending(&self) -> bool {
        self.ended || self.aborting.is_some()
    }

    pub(crate) fn broadcast(&mut self, frame: &Frame, now: Duration) {
        for lane in self.lanes.up() {
            self.lanes.spoke(lane, now);
            self.lanes.actions.push_back(Action::Send(lane, frame.clone()));
        }
    }

    pub(crate) fn send(&mut self, lane: LaneId, frame: Frame, now: Duration) {
        self.lanes.spoke(lane, now);
        self.lanes.actions.push_back(Action::Send(lane, frame));
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        if !self.ended {
            self.ended = true;
            let outcome = match outcome {
                // The same at both ends, whichever has found it.
                Outcome::Aborted(Cause::NoRdma) | Outcome::PeerAborted(Cause::NoRdma) => Outcome::NoRdma,
                other => other,
            };
            self.lanes.actions.push_back(Action::End(outcome));
        }
    }

    /// Adapts lanes, rails and buffers to the line. `limits`: the line limits throughput, neither source nor sink does.
    /// `keeps_busy`: as far as this end sees, no lane has waited for data.
    pub(crate) fn fit(&mut self, limits: bool, keeps_busy: bool, now: Duration) {
        self.pool.note(now, self.counters.chunks, limits && self.pool_shrinks);
        let queues = self.round_trips.as_ref().is_some_and(RoundTrips::show_queues);
        let limits = [limits && !self.pool.is_tight(), keeps_busy];
        // A receiver cannot tell a source that has nothing from a line that lets nothing more through.
        let least = if self.pool_shrinks { 0 } else { INFORMATIVE_BYTES };
        self.lanes.fit(self.counters.bytes, limits, queues, least, now);
    }

    fn corrupt(&mut self, lane: LaneId, now: Duration) {
        // A lane is given up only once, even if more of its data turns out to be damaged.
        if self.is_ending() || !self.lanes.is_up(lane) {
            return;
        }
        self.counters.corrupt += 1;
        self.forgiven_at = self.forgiven_at.max(self.counters.chunks) + CHUNKS_PER_CORRUPT;
        if self.forgiven_at - self.counters.chunks > CORRUPT_MAX * CHUNKS_PER_CORRUPT {
            self.abort(Cause::Integrity, now);
        } else {
            self.lanes.close(lane);
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
            // If no lane is up now, ABORT goes out on the next lane that comes up. Without it the other end would wait
            // until its reconnect window has passed, and then report a lost link.
            self.aborting = Some((cause, now + ABORT_WAIT));
        }
    }

    fn abort_if_unwanted(&mut self, now: Duration) {
        if self.unwatched && self.peer_unwatched {
            self.abort(Cause::Signal(SIGHUP), now);
        }
    }

    /// Repeats on a lane that has just come up the announcements that were made on all lanes before.
    pub(crate) fn repeat(&mut self, lane: LaneId, now: Duration) {
        self.tell_addresses(&[lane], now);
        if self.unwatched {
            self.send(lane, Frame::Unwatched, now);
        }
        // While an RDMA lane is up, the other end does not need the endpoints. When the last one goes, they are sent on
        // all lanes.
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

    /// Handles ADDRESSES, which arrives on each TCP lane. Only the first list counts.
    fn addresses_heard(&mut self, addresses: Vec<RailAddress>) -> Result<(), Violation> {
        if !self.lanes.is_connector() {
            return Err(Violation::Unexpected("ADDRESSES"));
        }
        if self.addresses.is_none() {
            self.lanes.actions.push_back(Action::Addresses(addresses.clone()));
            self.addresses = Some(addresses);
        }
        Ok(())
    }

    /// Handles the loss or end of a lane. If it was the last RDMA lane, the other end may have missed the latest
    /// endpoints. Returns whether the lane was lost, not closed by choice.
    pub(crate) fn lane_down(&mut self, lane: LaneId, now: Duration) -> bool {
        let lost = self.lanes.lane_down(lane, now);
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
                self.lanes.actions.push_back(Action::Endpoints(endpoints.clone()));
                self.endpoints = Some((turn, endpoints));
            }
            _ if known.is_some_and(|(_, known)| *known == endpoints) => {}
            _ => return Err(Violation::Impossible("endpoints")),
        }
        Ok(())
    }

    /// Handles the frames that mean the same to both roles. Returns any other frame.
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
            Frame::Use { path, turn } => self.lanes.use_path(lane, path, turn, now)?,
            Frame::Endpoints { turn, endpoints } => self.endpoints_heard(turn, endpoints)?,
            Frame::Addresses(addresses) => self.addresses_heard(addresses)?,
            Frame::Retired => self.lanes.retired(lane, now)?,
            Frame::Abort(cause) => {
                self.broadcast(&Frame::Bye, now);
                if let Some((ours, _)) = self.aborting.take() {
                    self.end(Outcome::Aborted(ours));
                } else if self.linger_until.is_some() {
                    self.end(Outcome::Done);
                } else {
                    self.end(Outcome::PeerAborted(cause));
                }
            }
            Frame::Bye if self.aborting.is_some() => {
                let (cause, _) = self.aborting.take().expect("checked by the guard");
                self.end(Outcome::Aborted(cause));
            }
            // The engine handles these frames itself, before and beside the session.
            Frame::Offer(_) => return Err(Violation::Unexpected("OFFER")),
            Frame::Refuse(_) => return Err(Violation::Unexpected("REFUSE")),
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Keeps lanes alive and replaces lost ones after everything has been published, when losing them is no failure.
    pub(crate) fn linger(&mut self, now: Duration) {
        let _window_passed = self.lanes.timeout(now);
        self.lanes.dial(now);
    }

    /// Handles heartbeats, dead lanes, dialling and the reconnect window. `unanswered` goes into the outcome.
    pub(crate) fn timeout(&mut self, now: Duration, unanswered: bool) {
        if let Some((cause, deadline)) = &self.aborting {
            let nobody_comes = self.agreed.reconnect.is_zero() && self.control_lane().is_none();
            if now >= *deadline || nobody_comes {
                let cause = cause.clone();
                self.aborting = None;
                return self.end(Outcome::Aborted(cause));
            }
            return self.lanes.dial(now);
        }
        if self.is_ending() {
            return;
        }
        if self.lanes.timeout(now) {
            self.end(Outcome::LinkLost { unanswered });
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
