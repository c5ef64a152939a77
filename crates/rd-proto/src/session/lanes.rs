//! Which lanes a session has, which it wants, and whether they live.
//!
//! Only the end that connected dials; the other accepts. Lane 0 is the TCP connection that the session began on. It
//! stays for as long as it can: where payload goes by RDMA it carries control frames alone, tells of a lost adapter at
//! once, and is there to fall back on.

use std::collections::VecDeque;
use std::time::Duration;

use super::growth::LaneGrowth;
use super::rails::Rails;
use super::ways::{self, Health, LaneState};
use super::{Action, Agreed, Notice, Violation};
use crate::control::{Frame, Path, Policy};
use crate::handshake::LaneId;

mod count;

/// Places for lanes; those from [`RDMA_LANE_FIRST`] on are RDMA, those below it TCP.
pub const LANES_MAX: usize = 32;

/// Place of the first RDMA lane, and so the largest number of TCP lanes.
pub const RDMA_LANE_FIRST: u16 = 16;

/// A lane that has sent nothing for this long shows life.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// A lane that has heard nothing for this long is dead.
pub const HEARD_MAX: Duration = Duration::from_secs(5);

/// While payload takes the second-best path, the best one is tried again this often.
pub const BETTER_PATH_RETRY: Duration = Duration::from_secs(10);

/// First wait before a lost lane is dialled again; doubles up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(100);

/// Longest wait between two attempts while nothing else can carry payload.
const REDIAL_MAX: Duration = Duration::from_secs(1);

/// The shortest window in which the first lane that can carry payload must come up.
const SETUP_MIN: Duration = Duration::from_secs(10);

/// A link that is back sooner than this was never called lost: on a switch of transport it is gone for a moment.
const LOST_TOLD_AFTER: Duration = Duration::from_millis(500);

/// How long a rail that was not worth it is left alone while none works: the one that was in use may be back at once.
const SPARE_RAILS_AFTER: Duration = Duration::from_secs(1);

/// A chunk that so many lanes in a row have taken with them, while nothing else came through either, shows a network that
/// lets no chunk through, however long its idle lanes live: one that loses large packets, say.
const REPLAYS_MAX: u32 = 4;

/// A gap between two time-outs that only a stopped process explains.
const ASLEEP: Duration = Duration::from_secs(3);

/// The transport that a lane's place stands for.
pub fn path_of(lane: LaneId) -> Path {
    path_at(lane.index)
}

fn path_at(index: u16) -> Path {
    if index < RDMA_LANE_FIRST { Path::Tcp } else { Path::Rdma }
}

/// Which of its path's places a lane has.
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
    /// Told to close; not used any more, but not yet down. `lost`: because it does not work, not by choice.
    Closing {
        lost: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// Generation of the current lane, or of the last one.
    generation: u32,
    redial_after: Duration,
    /// When the current lane came up, or the last one.
    since: Duration,
    heard: Duration,
    spoke: Duration,
    /// At the end that accepts: the turn that the last USE on this lane named.
    turn: Option<u32>,
    /// Since when it is to carry no more payload.
    retired: Option<Duration>,
    /// The rail that the current lane goes by, at the end that dials.
    rail: u8,
    health: Health,
    /// The generation before, if that was closed by choice and may still be on its way down.
    left: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    agreed: Agreed,
    connector: bool,
    places: [Place; LANES_MAX],
    path: Option<Path>,
    /// TCP lanes that are wanted on each rail when payload goes by TCP.
    tcp_lanes: u16,
    /// By path.
    rails: [Rails; 2],
    /// At the end that dials, where more lanes may carry more.
    growth: Option<LaneGrowth>,
    /// Bytes that have been seen to move on all lanes so far.
    moved_bytes: u64,
    /// Of this end: no more lanes are tried on a short line. 0 until it is known.
    processors: u16,
    /// How often the path was decided. 0: it went without saying.
    turn: u32,
    /// RDMA has carried payload before, or could not be used: the next change is reported.
    rdma_judged: bool,
    /// Since when nothing can carry payload.
    lost_since: Option<Duration>,
    /// The first loss since payload has moved, or since a lane that carries it has lasted. A network that lets lanes come up
    /// and nothing through is no better than none: coming up does not end the reconnect window.
    vain_since: Option<Duration>,
    /// How many chunks have come through, or more: what has changed while this has not, was in vain.
    carried: u64,
    /// Since nothing has come through: when the first chunk was lost with its lane, and how often the unluckiest one was.
    replays: Option<(Duration, u32)>,
    lost_told: bool,
    had_payload_lane: bool,
    /// The peer has said that it is about to be stopped: bits of lanes whose last frame that was.
    paused: u32,
    last_timeout: Duration,
}

impl Lanes {
    pub(crate) fn new(agreed: Agreed, connector: bool) -> Self {
        let absent = Place {
            state: State::Absent { retry_at: Duration::ZERO },
            generation: 0,
            redial_after: REDIAL_MIN,
            since: Duration::ZERO,
            heard: Duration::ZERO,
            spoke: Duration::ZERO,
            turn: None,
            retired: None,
            rail: 0,
            health: Health::new(Duration::ZERO),
            left: None,
        };
        Self {
            agreed,
            connector,
            places: [absent; LANES_MAX],
            path: (!agreed.try_rdma).then_some(Path::Tcp),
            tcp_lanes: agreed.tcp_lanes,
            rails: [Rails::one(), Rails::one()],
            growth: None,
            moved_bytes: 0,
            processors: 0,
            turn: 0,
            rdma_judged: false,
            lost_since: Some(Duration::ZERO),
            vain_since: None,
            carried: 0,
            replays: None,
            lost_told: false,
            had_payload_lane: false,
            paused: 0,
            last_timeout: Duration::ZERO,
        }
    }

    /// This end dials the lanes.
    pub(crate) fn is_connector(&self) -> bool {
        self.connector
    }

    /// The peer has said that it is about to be stopped, and nothing since.
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

    /// Lanes that carry payload on the present path.
    ///
    /// At the end that accepts, a lane is one only once the connecting end has said so on that very lane: otherwise
    /// receives would be posted on a new TCP lane that is not meant for payload, and could not be called back.
    pub(crate) fn payload(&self) -> impl Iterator<Item = LaneId> + use<> {
        let path = self.path;
        let (knows, turn, places) = (self.connector || self.turn == 0, self.turn, self.places);
        self.up().filter(move |&lane| {
            let place = &places[usize::from(lane.index)];
            Some(path_of(lane)) == path && (knows || place.turn == Some(turn)) && place.retired.is_none()
        })
    }

    pub(crate) fn tcp_lanes(&self) -> u16 {
        self.tcp_lanes
    }

    /// Lanes that are up and are to be closed, and since when.
    pub(crate) fn all_retired(&self) -> impl Iterator<Item = (LaneId, Duration)> + use<> {
        let places = self.places;
        self.up().filter_map(move |lane| places[usize::from(lane.index)].retired.map(|since| (lane, since)))
    }

    /// The connecting end wants no more payload on this lane.
    pub(crate) fn retired(&mut self, lane: LaneId, now: Duration) -> Result<(), Violation> {
        // The first lane of each path is the one that all others may be missed for.
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

    /// A retired lane has sent what it had, or has had its time.
    pub(crate) fn close_retired(&mut self, lane: LaneId, actions: &mut VecDeque<Action>) {
        self.close_because(lane, false, actions);
    }

    /// The rails of a path.
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

    /// By what the rate is measured: what the system has seen move, where it tells. What the receiver has taken, `taken`, waits
    /// for the slowest lane where it is written in order, and then comes all at once.
    fn carried_bytes(&self, taken: u64) -> u64 {
        if self.moved_bytes > 0 { self.moved_bytes } else { taken }
    }

    /// Gives up the lanes of a way that has stopped working, while another one works.
    fn leave_failed(&mut self, now: Duration, actions: &mut VecDeque<Action>) {
        let Some(path) = self.path.filter(|_| !self.is_peer_paused()) else { return };
        let health = |lane: LaneId| self.places[usize::from(lane.index)].health;
        let lanes: Vec<Health> = self.payload().map(health).collect();
        let Some(way) = ways::failed(&lanes, now) else { return };
        for lane in self.up().filter(|&lane| path_of(lane) == path) {
            if self.places[usize::from(lane.index)].health.way == way {
                self.close(lane, actions);
            }
        }
    }

    /// The rail of its path that a lane goes by; 0 is the one that the path began on.
    pub(crate) fn rail_of(&self, lane: LaneId) -> u8 {
        self.places[usize::from(lane.index)].rail
    }

    pub(crate) fn is_up(&self, lane: LaneId) -> bool {
        let place = &self.places[usize::from(lane.index)];
        place.state == State::Up && place.generation == lane.generation
    }

    /// Returns false for a lane that comes too late: a later generation has its place.
    pub(crate) fn lane_up(&mut self, lane: LaneId, now: Duration, actions: &mut VecDeque<Action>) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if lane.generation < place.generation {
            actions.push_back(Action::Close(lane));
            return false;
        }
        if matches!(place.state, State::Up | State::Closing { .. }) && place.generation != lane.generation {
            actions.push_back(Action::Close(LaneId { index: lane.index, generation: place.generation }));
        }
        let is_left = place.retired.is_some() || place.state == State::Closing { lost: false };
        *place = Place {
            state: State::Up,
            generation: lane.generation,
            redial_after: REDIAL_MIN,
            since: now,
            heard: now,
            spoke: Duration::ZERO,
            turn: None,
            retired: None,
            rail: place.rail,
            health: Health::new(now),
            left: is_left.then_some(place.generation),
        };
        // Nobody authenticates while he is stopped.
        self.peer_is(0, now);
        if self.connector {
            if path_of(lane) == Path::Rdma && self.path != Some(Path::Rdma) {
                self.switch(Path::Rdma, now, actions);
            } else if let Some(path) = self.path {
                actions.push_back(Action::Send(lane, Frame::Use { path, turn: self.turn }));
            }
        }
        self.note_rail(lane, true, now, actions);
        if self.connector {
            // Rails may have been found while it was dialled, and its place been given to another.
            self.keep_lanes(path_of(lane), now, actions);
        }
        self.note_payload(now, actions);
        true
    }

    /// Turns away a lane that the other end has given up before it was known here.
    pub(crate) fn refuse(&mut self, lane: LaneId, actions: &mut VecDeque<Action>) {
        let place = &mut self.places[usize::from(lane.index)];
        if place.state == State::Dialing && place.generation == lane.generation {
            place.state = State::Closing { lost: true };
        }
        actions.push_back(Action::Close(lane));
    }

    /// Returns true if the lane was lost, rather than closed by choice.
    pub(crate) fn lane_down(&mut self, lane: LaneId, now: Duration, actions: &mut VecDeque<Action>) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if place.generation != lane.generation {
            return place.left != Some(lane.generation);
        }
        // A TCP lane that goes while payload goes by RDMA carries nothing that could be lost.
        // An RDMA lane does, also where the word of the fall-back has come before its end.
        let matters = path_of(lane) == Path::Rdma || self.path == Some(Path::Tcp);
        let lost = match place.state {
            State::Up => matters && place.retired.is_none(),
            State::Closing { lost } => lost,
            State::Absent { .. } | State::Dialing => return false,
        };
        place.state = State::Absent { retry_at: now + place.redial_after };
        if lost {
            self.note_rail(lane, false, now, actions);
        }
        self.peer_is(self.paused, now);
        self.fall_back_if_lost(now, actions);
        if self.path == Some(Path::Tcp) {
            self.rest();
        }
        self.note_payload(now, actions);
        lost
    }

    /// RDMA that came up a second time and did not last is left alone for as long as RDMA that did not come up: each time
    /// it fails payload stands still, and path after path could pass with nothing carried.
    fn rest(&mut self) {
        for place in &mut self.places[usize::from(RDMA_LANE_FIRST)..] {
            if let State::Absent { retry_at } = &mut place.state
                && place.generation > 1
            {
                *retry_at = (*retry_at).max(place.since + BETTER_PATH_RETRY);
            }
        }
    }

    /// Returns true if the session is over: RDMA is all that is allowed, and it never came up.
    pub(crate) fn dial_failed(&mut self, lane: LaneId, now: Duration, actions: &mut VecDeque<Action>) -> bool {
        let place = &mut self.places[usize::from(lane.index)];
        if place.state != State::Dialing || place.generation != lane.generation {
            return false;
        }
        place.redial_after = (place.redial_after * 2).min(REDIAL_MAX);
        let better_path = path_of(lane) == Path::Rdma && self.path == Some(Path::Tcp);
        let wait = if better_path { BETTER_PATH_RETRY } else { place.redial_after };
        place.state = State::Absent { retry_at: now + wait };
        self.note_rail(lane, false, now, actions);
        // Each has one attempt: of several that are tried again and again, one would always be on its way.
        let is_first = |place: &Place| place.state == State::Dialing && place.generation == 1;
        let has_hope = self.places[usize::from(RDMA_LANE_FIRST)..].iter().any(is_first);
        if path_of(lane) == Path::Rdma && self.path.is_none() && !has_hope {
            if self.agreed.policy == Policy::Rdma {
                return true;
            }
            self.switch(Path::Tcp, now, actions);
            self.note_payload(now, actions);
        }
        false
    }

    /// Closes a lane that does not work.
    pub(crate) fn close(&mut self, lane: LaneId, actions: &mut VecDeque<Action>) {
        self.close_because(lane, true, actions);
    }

    fn close_because(&mut self, lane: LaneId, lost: bool, actions: &mut VecDeque<Action>) {
        if self.is_up(lane) {
            let place = &mut self.places[usize::from(lane.index)];
            // Nothing is lost with a lane that was to go.
            place.state = State::Closing { lost: lost && place.retired.is_none() };
            actions.push_back(Action::Close(lane));
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

    /// A frame has come, PAUSE or another. One that was sent before PAUSE may come behind it by another lane.
    pub(crate) fn peer_spoke(&mut self, lane: LaneId, pauses: bool, now: Duration) {
        let (up, bit) = (self.up().fold(0, |bits, lane| bits | 1 << lane.index), 1 << lane.index);
        let is_awake = !pauses && self.paused & bit != 0;
        self.peer_is(if is_awake { 0 } else { (self.paused & up) | (u32::from(pauses) * bit) }, now);
    }

    fn peer_is(&mut self, paused: u32, now: Duration) {
        // A stopped peer's kernel keeps answering on TCP; nothing does on RDMA. Without TCP, being stopped is no
        // excuse for silence, or a peer that never comes back would be waited for without end.
        let paused = if self.up().any(|lane| path_of(lane) == Path::Tcp) { paused } else { 0 };
        if self.is_peer_paused() && paused == 0 {
            self.woke(now);
        }
        self.paused = paused;
    }

    /// Forgets how long nothing has been heard: one of the two ends was stopped.
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

    /// The connecting end has said which path to take.
    pub(crate) fn use_path(
        &mut self,
        lane: LaneId,
        path: Path,
        turn: u32,
        now: Duration,
        actions: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
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
                self.switch(path, now, actions);
            }
            self.turn = turn;
        }
        self.note_payload(now, actions);
        Ok(())
    }

    fn switch(&mut self, path: Path, now: Duration, actions: &mut VecDeque<Action>) {
        match path {
            Path::Tcp => actions.push_back(Action::Notice(Notice::FellBack)),
            Path::Rdma if self.rdma_judged => actions.push_back(Action::Notice(Notice::BackOnRdma)),
            Path::Rdma => {}
        }
        self.rdma_judged = true;
        let before = self.path.replace(path);
        if !self.connector {
            return;
        }
        self.turn += 1;
        for lane in self.up() {
            // Receives that are posted on TCP lanes cannot be called back but by closing them; lane 0 is then dialled
            // anew, without credits.
            if path == Path::Rdma && before == Some(Path::Tcp) && path_of(lane) == Path::Tcp {
                self.close_because(lane, false, actions);
            } else {
                self.spoke(lane, now);
                actions.push_back(Action::Send(lane, Frame::Use { path, turn: self.turn }));
            }
            // Rails may have been found while it was dialled, and its place been given to another.
            self.keep_lanes(path_of(lane), now, actions);
        }
        if path == Path::Tcp {
            for place in &mut self.places[..usize::from(RDMA_LANE_FIRST)] {
                if let State::Absent { retry_at } = &mut place.state {
                    *retry_at = (*retry_at).min(now);
                }
            }
        }
    }

    fn fall_back_if_lost(&mut self, now: Duration, actions: &mut VecDeque<Action>) {
        let may_fall_back = self.connector && self.path == Some(Path::Rdma) && self.agreed.policy != Policy::Rdma;
        if may_fall_back && self.payload().next().is_none() {
            self.switch(Path::Tcp, now, actions);
        }
    }

    /// A chunk has come through.
    pub(crate) fn carried(&mut self) {
        self.vain_since = None;
        self.carried += 1;
        self.replays = None;
    }

    /// Changes with each chunk that comes through.
    pub(crate) fn carried_mark(&self) -> u64 {
        self.carried
    }

    /// Lanes come up and nothing comes through any more: that a chunk was lost is said on a lane that has come up since.
    pub(crate) fn come_up_in_vain(&self) -> bool {
        let is_since = |(told, _)| self.places.iter().any(|place| place.since + HEARTBEAT > told);
        self.replays.is_some_and(is_since)
    }

    /// A chunk was lost with its lane, so many times since one has come through.
    pub(crate) fn replayed(&mut self, times: u32, now: Duration) {
        let (since, most) = self.replays.unwrap_or((now, 0));
        self.replays = Some((since, most.max(times)));
    }

    fn note_payload(&mut self, now: Duration, actions: &mut VecDeque<Action>) {
        match (self.payload().next().is_some(), self.lost_since) {
            (true, Some(_)) => {
                self.lost_since = None;
                self.had_payload_lane = true;
                if std::mem::take(&mut self.lost_told) {
                    actions.push_back(Action::Notice(Notice::LinkRestored));
                }
            }
            (false, None) => {
                self.lost_since = Some(now);
                self.vain_since.get_or_insert(now);
                self.rails.iter_mut().for_each(|rails| rails.hurry(now));
            }
            (false, Some(since)) => {
                let due = self.had_payload_lane && now.saturating_sub(since) >= LOST_TOLD_AFTER;
                if due && !self.lost_told {
                    self.lost_told = true;
                    actions.push_back(Action::Notice(Notice::LinkLost));
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

    /// Returns true when the reconnect window has passed.
    pub(crate) fn timeout(&mut self, now: Duration, actions: &mut VecDeque<Action>) -> bool {
        if now.saturating_sub(self.last_timeout) > ASLEEP {
            self.woke(now);
        }
        self.last_timeout = now;
        for lane in self.up() {
            let place = self.places[usize::from(lane.index)];
            if !self.is_peer_paused() && now.saturating_sub(place.heard) >= HEARD_MAX {
                self.close(lane, actions);
            } else if now.saturating_sub(place.spoke) >= HEARTBEAT && !self.is_peer_paused() {
                self.spoke(lane, now);
                actions.push_back(Action::Send(lane, Frame::Ping));
            }
        }
        self.leave_failed(now, actions);
        // A lane that is being closed cannot carry payload any more, whenever its transport is done with it.
        self.fall_back_if_lost(now, actions);
        self.note_payload(now, actions);
        let is_lost = self.lost_since.is_some_and(|since| now.saturating_sub(since) >= SPARE_RAILS_AFTER);
        let is_vain = self.replays.is_some_and(|(since, _)| now.saturating_sub(since) >= HEARD_MAX);
        self.rails.iter_mut().for_each(|rails| rails.set_lost(is_lost || is_vain));
        // Silence is not lasting: a lane that is about to be closed for it has not been of use.
        let lasts = |lane: LaneId| {
            let place = &self.places[usize::from(lane.index)];
            place.heard.saturating_sub(place.since) >= HEARD_MAX
        };
        if self.payload().any(lasts) {
            self.vain_since = None;
        }
        let window = if self.had_payload_lane { self.agreed.reconnect } else { self.agreed.reconnect.max(SETUP_MIN) };
        let since = self.lost_since.map(|lost| self.vain_since.map_or(lost, |vain| vain.min(lost)));
        let in_vain = self.replays.and_then(|(since, times)| (times >= REPLAYS_MAX).then_some(since));
        [since, in_vain].into_iter().flatten().any(|since| now.saturating_sub(since) >= window)
    }

    /// Dials every lane that is wanted and whose time has come.
    pub(crate) fn dial(&mut self, now: Duration, actions: &mut VecDeque<Action>) {
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
            // Lane 0 of generation 0 is the one that the session began on; all others are numbered on from there.
            place.generation += 1;
            place.state = State::Dialing;
            place.rail = self.rails[path_at(index) as usize].of_place(nth_place(index)).0;
            actions.push_back(Action::Dial(LaneId { index, generation: place.generation }));
        }
    }
}
