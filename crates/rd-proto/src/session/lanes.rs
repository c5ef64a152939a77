//! The lanes of a session: which exist, which are wanted, and whether they are alive.
//!
//! Only the connecting end dials; the other end accepts. Lane 0 is the TCP connection on which the session began. It is
//! kept up for as long as possible: while payload goes by RDMA it carries only control frames, reports a lost adapter
//! at once, and is there to fall back on.

use std::collections::VecDeque;
use std::time::Duration;

use super::growth::LaneGrowth;
use super::rails::Rails;
use super::ways::{self, Health, LaneState};
use super::{Action, Agreed, Notice, Violation};
use crate::control::{Frame, Path, Policy};
use crate::handshake::LaneId;

mod count;

/// Number of places for lanes. Places from [`RDMA_LANE_FIRST`] on are for RDMA lanes, those below for TCP lanes.
pub const LANES_MAX: usize = 32;

/// Place of the first RDMA lane, and so the maximum number of TCP lanes.
pub const RDMA_LANE_FIRST: u16 = 16;

/// How long a lane may send nothing before it sends PING.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a lane may hear nothing before it counts as dead.
pub const HEARD_MAX: Duration = Duration::from_secs(5);

/// How often the best path is tried again while payload takes the second-best path.
pub const BETTER_PATH_RETRY: Duration = Duration::from_secs(10);

/// How often at least RDMA is tried again if it works again and again only for a short time, such as with a wrong MTU:
/// each of these times holds up the payload.
const BETTER_PATH_RETRY_MAX: Duration = Duration::from_secs(160);

/// After how long RDMA counts as working.
const RDMA_LASTED: Duration = Duration::from_secs(30);

/// How long the first wait is before a lost lane is dialled again. The wait doubles up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(100);

/// Maximum wait between two attempts while nothing else can carry payload.
const REDIAL_MAX: Duration = Duration::from_secs(1);

/// Minimum window in which the first lane that can carry payload must come up.
const SETUP_MIN: Duration = Duration::from_secs(10);

/// How long the accepting end at least waits for USE when RDMA carries no more payload, as long as it hears the peer by
/// TCP. With a reconnect window of 0 it would else end the session before the peer can say that TCP goes on.
const SWITCH_MAX: Duration = Duration::from_secs(2);

/// How long a link must be gone before it is reported as lost: on a switch of transport it is gone for a moment.
const LOST_TOLD_AFTER: Duration = Duration::from_millis(500);

/// How long no rail must work before a rail that was not worth using is tried: the one in use may be back at once.
const SPARE_RAILS_AFTER: Duration = Duration::from_secs(1);

/// Number of lanes in a row that a chunk may be lost with while no other chunk comes through. After that the network
/// counts as letting no chunk through, however long its idle lanes live: it may lose large packets, for example.
const REPLAYS_MAX: u32 = 4;

/// A gap between two time-outs that is longer than this means that the process was stopped.
const ASLEEP: Duration = Duration::from_secs(3);

/// Returns the transport of the lane's place.
pub fn path_of(lane: LaneId) -> Path {
    path_at(lane.index)
}

fn path_at(index: u16) -> Path {
    if index < RDMA_LANE_FIRST { Path::Tcp } else { Path::Rdma }
}

/// Returns the number of the place among those of its path.
fn nth_place(index: u16) -> u16 {
    index % RDMA_LANE_FIRST
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent {
        retry_at: Duration,
    },
    Dialing,
    Up,
    /// Told to close, and no longer used, but not yet down. `lost`: because the lane does not work, not by choice.
    Closing {
        lost: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// Generation of the present lane, or of the last one.
    generation: u32,
    redial_after: Duration,
    /// When the present lane came up, or the last one.
    since: Duration,
    heard: Duration,
    spoke: Duration,
    /// At the accepting end: the turn in the last USE on this lane.
    turn: Option<u32>,
    /// Since when the lane is to carry no more payload.
    retired: Option<Duration>,
    /// At the dialling end: the rail that the present lane goes by.
    rail: u8,
    health: Health,
    /// The previous generation, if it was closed by choice and may not be down yet.
    left: Option<u32>,
}

impl Place {
    /// Creates a place at generation 0 and on rail 0, known since `now`.
    fn new(state: State, now: Duration) -> Self {
        Self {
            state,
            generation: 0,
            redial_after: REDIAL_MIN,
            since: now,
            heard: now,
            spoke: Duration::ZERO,
            turn: None,
            retired: None,
            rail: 0,
            health: Health::new(now),
            left: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lanes {
    /// All actions of the session that have not been polled. Most follow from the state of lanes.
    pub(crate) actions: VecDeque<Action>,
    agreed: Agreed,
    connector: bool,
    places: [Place; LANES_MAX],
    path: Option<Path>,
    /// Number of TCP lanes wanted on each rail while payload goes by TCP.
    tcp_lanes: u16,
    /// Rails of each path.
    rails: [Rails; 2],
    /// At the dialling end: trials of the number of TCP lanes, if another number may carry more.
    growth: Option<LaneGrowth>,
    /// Number of bytes that have been seen to move on all lanes so far.
    moved_bytes: u64,
    /// Number of processors of this end, which limits the lanes tried on a short line; 0 until it is known.
    processors: u16,
    /// How often the path was decided; 0 if payload goes by TCP without a USE.
    turn: u32,
    /// Whether RDMA has carried payload before, or could not be used. The next change is then reported.
    rdma_judged: bool,
    /// Since when RDMA carries payload, or did so last.
    rdma_since: Duration,
    /// How long RDMA lanes that did not last are given up for.
    rdma_rest: Duration,
    /// Whether chunks that have arrived, or could be sent, wait for others.
    held_up: bool,
    /// Since when no lane can carry payload.
    lost_since: Option<Duration>,
    /// Time of the first loss since payload has moved, or since a lane that carries payload has lasted. A network in
    /// which lanes come up but nothing comes through is no better than none, so a new lane does not end the reconnect
    /// window.
    vain_since: Option<Duration>,
    /// A counter that grows at least with each chunk that comes through. Between two equal readings nothing has come
    /// through.
    carried: u64,
    /// Since nothing comes through: when the first chunk was lost with its lane, and how often the unluckiest chunk was
    /// lost.
    replays: Option<(Duration, u32)>,
    lost_told: bool,
    /// Whether the outcome is settled, so that another loss of the link is no news.
    pub(crate) is_settled: bool,
    had_payload_lane: bool,
    /// Bits of the lanes on which PAUSE was the peer's last frame: the peer said that it is about to be stopped.
    paused: u32,
    last_timeout: Duration,
}

impl Lanes {
    pub(crate) fn new(agreed: Agreed, connector: bool, buffers: u32) -> Self {
        let absent = Place::new(State::Absent { retry_at: Duration::ZERO }, Duration::ZERO);
        Self {
            actions: VecDeque::with_capacity(4 * buffers as usize + 64),
            agreed,
            connector,
            places: [absent; LANES_MAX],
            path: (!agreed.try_rdma).then_some(Path::Tcp),
            tcp_lanes: agreed.tcp_lanes,
            rails: [Path::Tcp, Path::Rdma].map(|path| Rails::all(path, 1)),
            growth: None,
            moved_bytes: 0,
            processors: 0,
            turn: 0,
            rdma_judged: false,
            rdma_since: Duration::ZERO,
            rdma_rest: BETTER_PATH_RETRY / 4,
            held_up: false,
            lost_since: Some(Duration::ZERO),
            vain_since: None,
            carried: 0,
            replays: None,
            lost_told: false,
            is_settled: false,
            had_payload_lane: false,
            paused: 0,
            last_timeout: Duration::ZERO,
        }
    }

    /// Returns whether this end dials the lanes.
    pub(crate) fn is_connector(&self) -> bool {
        self.connector
    }

    /// Returns whether the peer has said that it is about to be stopped, and nothing since.
    pub(crate) fn is_peer_paused(&self) -> bool {
        self.paused != 0
    }

    pub(crate) fn path(&self) -> Option<Path> {
        self.path
    }

    pub(crate) fn up(&self) -> impl Iterator<Item = LaneId> + use<> {
        let places = self.places;
        (0..LANES_MAX as u16).filter_map(move |index| {
            let place = &places[usize::from(index)];
            (place.state == State::Up).then_some(LaneId { index, generation: place.generation })
        })
    }

    /// Returns the lanes that carry payload on the present path.
    ///
    /// At the accepting end, a lane counts only once the connecting end has sent USE on that very lane. Otherwise
    /// receives would be posted on a new TCP lane that is not meant for payload, and could not be called back.
    pub(crate) fn payload(&self) -> impl Iterator<Item = LaneId> + use<> {
        let path = self.path;
        let (knows, turn, places) = (self.connector || self.turn == 0, self.turn, self.places);
        self.up().filter(move |&lane| {
            let place = &places[usize::from(lane.index)];
            Some(path_of(lane)) == path && (knows || place.turn == Some(turn)) && place.retired.is_none()
        })
    }

    #[cfg(test)]
    pub(crate) fn tcp_lanes(&self) -> u16 {
        self.tcp_lanes
    }

    /// Returns the lanes that are up and are to be closed, and since when.
    pub(crate) fn all_retired(&self) -> impl Iterator<Item = (LaneId, Duration)> + use<> {
        let places = self.places;
        self.up().filter_map(move |lane| places[usize::from(lane.index)].retired.map(|since| (lane, since)))
    }

    /// Handles RETIRED: the connecting end wants no more payload on this lane.
    pub(crate) fn retired(&mut self, lane: LaneId, now: Duration) -> Result<(), Violation> {
        // The first lane of each path is the one that remains when all others are retired.
        if self.connector || nth_place(lane.index) == 0 {
            return Err(Violation::Unexpected("RETIRED"));
        }
        if self.is_up(lane) {
            self.places[usize::from(lane.index)].retired.get_or_insert(now);
        }
        Ok(())
    }

    pub(crate) fn is_retired(&self, lane: LaneId) -> bool {
        self.places[usize::from(lane.index)].retired.is_some()
    }

    /// Returns the rails of a path.
    pub(crate) fn rails_of(&self, path: Path) -> &Rails {
        &self.rails[path as usize]
    }

    fn rails_of_mut(&mut self, path: Path) -> &mut Rails {
        &mut self.rails[path as usize]
    }

    pub(crate) fn note_way(&mut self, lane: LaneId, way: u8) {
        if self.is_up(lane) {
            self.places[usize::from(lane.index)].health.way = way;
        }
    }

    pub(crate) fn note_state(&mut self, lane: LaneId, state: LaneState, now: Duration) {
        if self.is_up(lane) {
            let health = &mut self.places[usize::from(lane.index)].health;
            let before = health.moved_bytes();
            health.note(state, now);
            self.moved_bytes += health.moved_bytes().saturating_sub(before);
        }
    }

    /// Returns the number of bytes by which the rate is measured: the bytes that the system has seen move, if it
    /// reports them. The bytes that the receiver has taken (`taken`) would wait for the slowest lane if they are
    /// written in order, and then arrive all at once.
    fn carried_bytes(&self, taken: u64) -> u64 {
        if self.moved_bytes > 0 { self.moved_bytes } else { taken }
    }

    /// Judges the rails by what their ways carry, and closes the lanes of a way that has stopped working, if another
    /// way works.
    fn compare_ways(&mut self, now: Duration) {
        let Some(path) = self.path.filter(|_| !self.is_peer_paused()) else { return };
        let health = |lane: LaneId| self.places[usize::from(lane.index)].health;
        let lanes: Vec<Health> = self.payload().map(health).collect();
        for lane in self.payload() {
            let (rail, way) = (self.rail_of(lane), self.places[usize::from(lane.index)].health.way);
            let is_enough = ways::carries_enough(&lanes, way, self.held_up, now);
            let back = self.rails_of_mut(path).judge(rail, is_enough, now);
            self.actions.extend(back.map(Action::Notice));
        }
        let Some(way) = ways::failed(&lanes, self.held_up, now) else { return };
        for lane in self.up().filter(|&lane| path_of(lane) == path) {
            if self.places[usize::from(lane.index)].health.way == way {
                self.close(lane);
            }
        }
    }

    /// Returns the rail of its path that a lane goes by; 0 is the rail that the path began on.
    pub(crate) fn rail_of(&self, lane: LaneId) -> u8 {
        self.places[usize::from(lane.index)].rail
    }

    pub(crate) fn is_up(&self, lane: LaneId) -> bool {
        let place = &self.places[usize::from(lane.index)];
        place.state == State::Up && place.generation == lane.generation
    }

    /// Returns false if the lane comes too late, because a later generation has its place.
    pub(crate) fn lane_up(&mut self, lane: LaneId, now: Duration) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if lane.generation < place.generation {
            self.actions.push_back(Action::Close(lane));
            return false;
        }
        if matches!(place.state, State::Up | State::Closing { .. }) && place.generation != lane.generation {
            self.actions.push_back(Action::Close(LaneId { index: lane.index, generation: place.generation }));
        }
        let is_left = place.retired.is_some() || place.state == State::Closing { lost: false };
        *place = Place {
            generation: lane.generation,
            rail: place.rail,
            left: is_left.then_some(place.generation),
            ..Place::new(State::Up, now)
        };
        // A stopped process does not authenticate, so the peer runs.
        self.peer_is(0, now);
        if self.connector {
            if path_of(lane) == Path::Rdma && self.path != Some(Path::Rdma) {
                self.switch(Path::Rdma, now);
            } else if let Some(path) = self.path {
                self.actions.push_back(Action::Send(lane, Frame::Use { path, turn: self.turn }));
            }
        }
        self.note_rail(lane, true, now);
        if self.connector {
            // While the lane was being dialled, rails may have been found and its place given to another rail.
            self.keep_lanes(path_of(lane), now);
        }
        self.note_payload(now);
        true
    }

    /// Turns away a lane that the other end gave up before this end knew the lane.
    pub(crate) fn refuse(&mut self, lane: LaneId) {
        let place = &mut self.places[usize::from(lane.index)];
        if place.state == State::Dialing && place.generation == lane.generation {
            place.state = State::Closing { lost: true };
        }
        self.actions.push_back(Action::Close(lane));
    }

    /// Returns true if the lane was lost, false if it was closed by choice.
    pub(crate) fn lane_down(&mut self, lane: LaneId, now: Duration) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if place.generation != lane.generation {
            return place.left != Some(lane.generation);
        }
        // A TCP lane that goes down while payload goes by RDMA carries no payload that could be lost. An RDMA lane
        // does, even if the fall-back to TCP was announced before the lane ended.
        let matters = path_of(lane) == Path::Rdma || self.path == Some(Path::Tcp);
        let lost = match place.state {
            State::Up => matters && place.retired.is_none(),
            State::Closing { lost } => lost,
            State::Absent { .. } | State::Dialing => return false,
        };
        place.state = State::Absent { retry_at: now + place.redial_after };
        if lost {
            self.note_rail(lane, false, now);
        }
        self.peer_is(self.paused, now);
        self.fall_back_if_lost(now);
        if self.path == Some(Path::Tcp) {
            self.rest();
        }
        self.note_payload(now);
        lost
    }

    /// Postpones the next attempt of RDMA lanes that came up again and did not last, as if they had not come up. Each
    /// failure stops the payload, and the session could switch paths again and again without carrying anything.
    fn rest(&mut self) {
        for place in &mut self.places[usize::from(RDMA_LANE_FIRST)..] {
            if let State::Absent { retry_at } = &mut place.state
                && place.generation > 1
            {
                *retry_at = (*retry_at).max(place.since + self.rdma_rest);
            }
        }
    }

    /// Returns true if the session is over, because only RDMA is allowed and no RDMA lane ever came up.
    pub(crate) fn dial_failed(&mut self, lane: LaneId, now: Duration) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if place.state != State::Dialing || place.generation != lane.generation {
            return false;
        }
        place.redial_after = (place.redial_after * 2).min(REDIAL_MAX);
        let better_path = path_of(lane) == Path::Rdma && self.path == Some(Path::Tcp);
        let wait = if better_path { BETTER_PATH_RETRY } else { place.redial_after };
        place.state = State::Absent { retry_at: now + wait };
        self.note_rail(lane, false, now);
        // Each lane has one attempt. Lanes are tried again and again, so an attempt of some lane would always be on its
        // way.
        let is_first = |place: &Place| place.state == State::Dialing && place.generation == 1;
        let has_hope = self.places[usize::from(RDMA_LANE_FIRST)..].iter().any(is_first);
        if path_of(lane) == Path::Rdma && self.path.is_none() && !has_hope {
            if self.agreed.policy == Policy::Rdma {
                return true;
            }
            self.switch(Path::Tcp, now);
            self.note_payload(now);
        }
        false
    }

    /// Closes a lane that does not work, or a retired lane that has delivered all its chunks or whose time is over.
    pub(crate) fn close(&mut self, lane: LaneId) {
        self.close_because(lane, true);
    }

    fn close_because(&mut self, lane: LaneId, lost: bool) {
        if self.is_up(lane) {
            let place = &mut self.places[usize::from(lane.index)];
            // A retired lane is not lost, whatever closes it.
            place.state = State::Closing { lost: lost && place.retired.is_none() };
            self.actions.push_back(Action::Close(lane));
        }
    }

    pub(crate) fn heard(&mut self, lane: LaneId, at: Duration) {
        let place = &mut self.places[usize::from(lane.index)];
        if place.generation == lane.generation {
            place.heard = place.heard.max(at);
        }
    }

    pub(crate) fn spoke(&mut self, lane: LaneId, now: Duration) {
        self.places[usize::from(lane.index)].spoke = now;
    }

    /// Handles a frame, PAUSE or another. A frame that was sent before PAUSE may arrive after it by another lane.
    pub(crate) fn peer_spoke(&mut self, lane: LaneId, pauses: bool, now: Duration) {
        let (up, bit) = (self.up().fold(0, |bits, lane| bits | 1 << lane.index), 1 << lane.index);
        let is_awake = !pauses && self.paused & bit != 0;
        self.peer_is(if is_awake { 0 } else { (self.paused & up) | (u32::from(pauses) * bit) }, now);
    }

    fn peer_is(&mut self, paused: u32, now: Duration) {
        // A stopped peer's kernel still answers on TCP, but nothing answers on RDMA. Without TCP, a stopped peer may
        // not be silent: otherwise a peer that never comes back would be waited for without end.
        let paused = if self.up().any(|lane| path_of(lane) == Path::Tcp) { paused } else { 0 };
        if self.is_peer_paused() && paused == 0 {
            self.woke(now);
        }
        self.paused = paused;
    }

    /// Forgets how long the peer has been silent, because one of the two ends was stopped.
    pub(crate) fn woke(&mut self, now: Duration) {
        for place in &mut self.places {
            place.heard = now;
            place.health.forget(now);
        }
        for since in [&mut self.lost_since, &mut self.vain_since].into_iter().flatten() {
            *since = now;
        }
        self.carried += 1;
        self.replays = None;
        self.last_timeout = now;
    }

    /// Handles USE: the connecting end has decided which path to take.
    pub(crate) fn use_path(&mut self, lane: LaneId, path: Path, turn: u32, now: Duration) -> Result<(), Violation> {
        if self.connector {
            return Err(Violation::Unexpected("USE"));
        }
        let allowed = match path {
            Path::Tcp => self.agreed.policy != Policy::Rdma,
            Path::Rdma => self.agreed.try_rdma,
        };
        if !allowed || (turn == self.turn && self.path != Some(path)) {
            return Err(Violation::Impossible("path"));
        }
        if self.is_up(lane) {
            self.places[usize::from(lane.index)].turn = Some(turn);
        }
        if turn > self.turn {
            if self.path != Some(path) {
                self.switch(path, now);
            }
            self.turn = turn;
        }
        self.note_payload(now);
        Ok(())
    }

    fn switch(&mut self, path: Path, now: Duration) {
        match path {
            Path::Tcp => self.actions.push_back(Action::Notice(Notice::FellBack)),
            Path::Rdma if self.rdma_judged => self.actions.push_back(Action::Notice(Notice::BackOnRdma)),
            Path::Rdma => {}
        }
        self.rdma_judged = true;
        let before = self.path.replace(path);
        match (before, path) {
            (_, Path::Rdma) => self.rdma_since = now,
            (Some(Path::Rdma), Path::Tcp) if now < self.rdma_since + RDMA_LASTED => {
                self.rdma_rest = (2 * self.rdma_rest).min(BETTER_PATH_RETRY_MAX);
            }
            (Some(Path::Rdma), Path::Tcp) => self.rdma_rest = BETTER_PATH_RETRY / 2,
            _ => {}
        }
        if !self.connector {
            return;
        }
        self.turn += 1;
        for lane in self.up() {
            // Receives posted on TCP lanes can be called back only by closing the lanes. Lane 0 is then dialled anew,
            // without credits.
            if path == Path::Rdma && before == Some(Path::Tcp) && path_of(lane) == Path::Tcp {
                self.close_because(lane, false);
            } else {
                self.spoke(lane, now);
                self.actions.push_back(Action::Send(lane, Frame::Use { path, turn: self.turn }));
            }
            // While the lane was being dialled, rails may have been found and its place given to another rail.
            self.keep_lanes(path_of(lane), now);
        }
        if path == Path::Tcp {
            for place in &mut self.places[..usize::from(RDMA_LANE_FIRST)] {
                if let State::Absent { retry_at } = &mut place.state {
                    *retry_at = (*retry_at).min(now);
                }
            }
        }
    }

    fn fall_back_if_lost(&mut self, now: Duration) {
        let may_fall_back = self.connector && self.path == Some(Path::Rdma) && self.agreed.policy != Policy::Rdma;
        if may_fall_back && self.payload().next().is_none() {
            self.switch(Path::Tcp, now);
        }
    }

    /// Records whether chunks that have arrived, or could be sent, wait for others.
    pub(crate) fn set_held_up(&mut self, held_up: bool) {
        self.held_up = held_up;
    }

    /// Records that a chunk has come through.
    pub(crate) fn carried(&mut self) {
        self.vain_since = None;
        self.carried += 1;
        self.replays = None;
    }

    /// Returns a value that changes with each chunk that comes through.
    pub(crate) fn carried_mark(&self) -> u64 {
        self.carried
    }

    /// Returns, at the sender, whether lanes come up although chunks stopped coming through. The loss of a chunk is
    /// reported on a lane that has come up since, so a lane counts that came up shortly before the report.
    pub(crate) fn come_up_in_vain(&self) -> bool {
        let is_since = |(told, _)| self.places.iter().any(|place| place.since + HEARTBEAT > told);
        self.replays.is_some_and(is_since)
    }

    /// Returns the same at the receiver, which does not know what was lost: whether a lane that came up again was silent
    /// from its first second on, because all that the sender says waits behind a chunk that does not come through.
    pub(crate) fn come_up_silent(&self) -> bool {
        let was_silent = |(first, last)| {
            let is_silent = |place: &Place| place.heard < place.since + HEARTBEAT && place.since + HEARD_MAX <= last;
            self.places.iter().any(|place| place.since > first && is_silent(place))
        };
        self.vain_since.zip(self.lost_since).is_some_and(was_silent)
    }

    /// Records that a chunk was lost with its lane, for the `times`th time since any chunk has come through.
    pub(crate) fn replayed(&mut self, times: u32, now: Duration) {
        let (since, most) = self.replays.unwrap_or((now, 0));
        self.replays = Some((since, most.max(times)));
    }

    fn note_payload(&mut self, now: Duration) {
        match (self.payload().next().is_some(), self.lost_since) {
            (true, Some(_)) => {
                self.lost_since = None;
                self.had_payload_lane = true;
                if std::mem::take(&mut self.lost_told) {
                    self.actions.push_back(Action::Notice(Notice::LinkRestored));
                }
            }
            (false, None) => {
                self.lost_since = Some(now);
                self.vain_since.get_or_insert(now);
                self.rails.iter_mut().for_each(|rails| rails.hurry(now));
            }
            (false, Some(since)) => {
                let due = self.had_payload_lane && !self.is_settled && now.saturating_sub(since) >= LOST_TOLD_AFTER;
                if due && !self.lost_told {
                    self.lost_told = true;
                    self.actions.push_back(Action::Notice(Notice::LinkLost));
                }
            }
            (true, None) => {}
        }
    }

    fn wanted(&self, index: u16, now: Duration) -> bool {
        let path = path_at(index);
        let rails = self.rails_of(path);
        let (rail, nth) = rails.of_place(nth_place(index));
        let is_used = || nth < self.lanes_of_rail(path) && rails.may_have(rail, nth, now);
        match path {
            Path::Rdma => self.agreed.try_rdma && is_used(),
            Path::Tcp if index == 0 => !rails.rests(rail, now),
            Path::Tcp => self.path == Some(Path::Tcp) && is_used(),
        }
    }

    /// Returns true if the reconnect window has passed.
    pub(crate) fn timeout(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.last_timeout) > ASLEEP {
            self.woke(now);
        }
        self.last_timeout = now;
        for lane in self.up() {
            let place = self.places[usize::from(lane.index)];
            if !self.is_peer_paused() && now.saturating_sub(place.heard) >= HEARD_MAX {
                self.close(lane);
            } else if now.saturating_sub(place.spoke) >= HEARTBEAT && !self.is_peer_paused() {
                self.spoke(lane, now);
                self.actions.push_back(Action::Send(lane, Frame::Ping));
            }
        }
        self.compare_ways(now);
        // A lane that is being closed can no longer carry payload, even if its transport is not done with it yet.
        self.fall_back_if_lost(now);
        self.note_payload(now);
        let is_lost = self.lost_since.is_some_and(|since| now.saturating_sub(since) >= SPARE_RAILS_AFTER);
        let is_vain = self.replays.is_some_and(|(since, _)| now.saturating_sub(since) >= HEARD_MAX);
        self.rails.iter_mut().for_each(|rails| rails.set_lost(is_lost || is_vain));
        // A silent lane does not count as lasting: it is about to be closed and has not been of use.
        let lasts = |lane: LaneId| {
            let place = &self.places[usize::from(lane.index)];
            place.heard.saturating_sub(place.since) >= HEARD_MAX
        };
        if self.payload().any(lasts) {
            self.vain_since = None;
        }
        let window = if self.had_payload_lane { self.agreed.reconnect } else { self.agreed.reconnect.max(SETUP_MIN) };
        let lost_max = if self.awaits_switch(now) { window.max(SWITCH_MAX) } else { window };
        let lost = self.lost_since.map(|lost| (lost, lost_max));
        let vain = lost.and_then(|(lost, _)| self.vain_since.filter(|vain| *vain < lost)).map(|vain| (vain, window));
        let in_vain = self.replays.and_then(|(since, times)| (times >= REPLAYS_MAX).then_some((since, window)));
        [lost, vain, in_vain].into_iter().flatten().any(|(since, window)| now.saturating_sub(since) >= window)
    }

    /// Whether the connecting end may be about to switch from RDMA to TCP.
    fn awaits_switch(&self, now: Duration) -> bool {
        let may_fall_back = !self.connector && self.path == Some(Path::Rdma) && self.agreed.policy != Policy::Rdma;
        let is_heard = |lane: LaneId| {
            path_of(lane) == Path::Tcp && now.saturating_sub(self.places[usize::from(lane.index)].heard) < SWITCH_MAX
        };
        may_fall_back && self.up().any(is_heard)
    }

    /// Dials every lane that is wanted and whose retry time has come.
    pub(crate) fn dial(&mut self, now: Duration) {
        if !self.connector {
            return;
        }
        for index in 0..LANES_MAX as u16 {
            let wanted = self.wanted(index, now);
            let place = &mut self.places[usize::from(index)];
            let State::Absent { retry_at } = place.state else { continue };
            if !wanted || now < retry_at {
                continue;
            }
            // The session began on generation 0 of lane 0. All other generations are numbered from 1.
            place.generation += 1;
            place.state = State::Dialing;
            place.rail = self.rails[path_at(index) as usize].of_place(nth_place(index)).0;
            self.actions.push_back(Action::Dial(LaneId { index, generation: place.generation }));
        }
    }
}
