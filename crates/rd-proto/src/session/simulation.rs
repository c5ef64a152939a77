//! A sender and a receiver joined by simulated lanes, thousands of times, each time with other luck.
//!
//! Time is virtual and every choice comes from the seed, so a failure is repeated by its seed alone:
//! `RD_SIM_SEED=1234 cargo test -p rd-proto simulation -- --nocapture`. `RD_SIM_COUNT` runs more seeds than the
//! default, `RD_SIM_TRACE=1` prints every event of the seed.
//!
//! The model keeps who owns each buffer and panics when a machine uses one that it does not hold, sends without a
//! credit, or sends in clear where the path asks for encryption. At the end it compares what the sink was given with
//! what the source gave, and the two outcomes with each other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};
use std::time::Duration;

use super::lanes::path_of;
use super::*;
use crate::control::IoFact;

/// Seeds run where `RD_SIM_COUNT` asks for no other number, and in a long run of the tests (`RD_LONG`).
const SEEDS: u64 = 4000;
const SEEDS_LONG: u64 = 200_000;

/// Control frames that a lane of every transport holds; see `Lane::send_control`.
const CONTROL_QUEUE_MAX: usize = 64;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// No fault, stall or pause begins after this.
const FAULTS_END: u64 = 12 * SECOND;

/// By when everything must have ended, whatever happened.
const END_MAX: u64 = 600 * SECOND;

/// When TCP gives up a connection whose peer does not answer.
const KEEPALIVE: u64 = 20 * SECOND;

/// Time from a giving up to its end: [`ABORT_WAIT`], a tick, and being scheduled.
const ABORT_END_MAX: u64 = 1800 * MS;

/// SplitMix64.
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `below - 1`.
    fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// What reaches an end's loop.
#[derive(Clone, Debug)]
enum In {
    LaneUp(LaneId),
    DialFailed(LaneId),
    Control(LaneId, Frame),
    Garbled(LaneId),
    Chunk { lane: LaneId, buffer: BufferId },
    Sent(LaneId, BufferId),
    Down(LaneId),
    Sealed(BufferId),
    Unfilled(BufferId),
    Opened(BufferId),
    Written(BufferId),
    Committed,
    GiveUp(Cause),
    Stop { for_ns: u64 },
    Resume,
}

#[derive(Clone, Debug)]
enum Message {
    Control(Frame),
    Garbled,
    Chunk(Slot),
}

/// What happens at a point in time.
#[derive(Clone, Debug)]
enum What {
    Wake(usize),
    Tell(usize, In),
    Arrive { lane: LaneId, to: usize, message: Message },
    SentDone { lane: LaneId, buffer: BufferId },
    LaneDown { lane: LaneId, end: usize },
    Produce,
    Deliver,
    Cut { seen: [Option<u64>; 2], only: Option<Path> },
    Outage { path: Option<Path>, for_ns: u64 },
    Stall { for_ns: u64 },
    Kill(usize),
}

/// Who holds a buffer of the model's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Machine,
    Source,
    Sealer,
    Lane(LaneId),
    Opener,
    Sink,
}

/// What is in a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    header: Option<ChunkHeader>,
    damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Coming,
    Up,
    Down,
}

#[derive(Debug)]
struct Side {
    life: Life,
    closing: bool,
    /// Being sent at the sender, posted at the receiver, in order.
    held: VecDeque<BufferId>,
    heard: u64,
    /// When what this side sent last arrives: control and chunks. The same on TCP.
    arrives: [u64; 2],
    control_waiting: usize,
    /// What this side has sent is thrown away.
    reset: bool,
}

#[derive(Debug)]
struct SimLane {
    sides: [Side; 2],
    cut: bool,
    delay: u64,
    stalled_until: u64,
}

struct End {
    inbox: VecDeque<In>,
    wake: u64,
    ticked: u64,
    stopped: bool,
    dead: bool,
    owners: Vec<Owner>,
    slots: Vec<Slot>,
    ended: Option<(Outcome, u64)>,
    gave_up: Option<(Cause, u64)>,
    notices: u32,
}

impl End {
    fn new(buffers: u32) -> Self {
        Self {
            inbox: VecDeque::new(),
            wake: u64::MAX,
            ticked: 0,
            stopped: false,
            dead: false,
            owners: vec![Owner::Machine; buffers as usize],
            slots: vec![Slot::default(); buffers as usize],
            ended: None,
            gave_up: None,
            notices: 0,
        }
    }

    fn running(&self) -> bool {
        self.ended.is_none() && !self.dead
    }
}

/// How rough a seed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// No faults: exact outcomes are due.
    Calm,
    /// Faults that every session must outlive.
    Rough,
    /// Anything, also what nobody outlives.
    Storm,
}

struct Simulation {
    luck: Luck,
    trace: bool,
    weather: Weather,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, What>,
    sender: Sender,
    receiver: Receiver,
    ends: [End; 2],
    agreed: Agreed,
    connector: usize,
    lanes: BTreeMap<(u16, u32), SimLane>,
    delay_max: u64,
    /// Until when dialling by TCP and by RDMA fails.
    dials_fail_until: [u64; 2],
    corrupt_left: u32,
    corrupt_permille: u64,
    // The source.
    chunks: u64,
    produced: u64,
    position: u64,
    interval: u64,
    to_fill: VecDeque<(BufferId, bool)>,
    producing: bool,
    work_max: u64,
    // The sink.
    ordered: bool,
    to_write: VecDeque<BufferId>,
    writing: bool,
    sink_interval: u64,
    sink_stalled_until: u64,
    written: HashSet<u64>,
    bytes_written: u64,
    committed: bool,
    retries_possible: bool,
}

fn tag_of(sequence: u64, sealed: bool) -> [u8; 16] {
    let mut tag = [u8::from(sealed); 16];
    tag[..8].copy_from_slice(&sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    tag
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut luck = Luck(seed);
        let weather = luck.pick(&[Weather::Calm, Weather::Rough, Weather::Rough, Weather::Rough, Weather::Storm]);
        let try_rdma = luck.chance(60);
        let policy = match (try_rdma, luck.below(10)) {
            (true, 0..3) => Policy::Rdma,
            (true, _) => Policy::PreferRdma,
            (false, 0..5) => Policy::Tcp,
            (false, _) => Policy::Auto,
        };
        let (seal_tcp, seal_rdma) = luck.pick(&[(true, false), (true, false), (true, true), (false, false)]);
        let reconnect_s = if weather == Weather::Storm { luck.pick(&[0, 2, 10, 30]) } else { 40 };
        let agreed = Agreed {
            policy,
            try_rdma,
            seal_tcp,
            seal_rdma,
            tcp_lanes: luck.between(1, 4) as u16,
            rdma_lanes: luck.between(1, 3) as u16,
            chunk_bytes: 4096,
            reconnect: Duration::from_secs(reconnect_s),
        };
        let connector = luck.below(2) as usize;
        let pool = |luck: &mut Luck| luck.pick(&[4, 4, 5, 8, 16, 64]);
        let (sender_pool, receiver_pool) = (pool(&mut luck), pool(&mut luck));
        let ordered = luck.chance(50);
        let mut simulation = Self {
            trace: std::env::var_os("RD_SIM_TRACE").is_some(),
            weather,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            sender: Sender::new(agreed, connector == SENDER, sender_pool),
            receiver: Receiver::new(agreed, connector == RECEIVER, receiver_pool, ordered),
            ends: [End::new(sender_pool), End::new(receiver_pool)],
            agreed,
            connector,
            lanes: BTreeMap::new(),
            delay_max: luck.pick(&[MS / 10, MS, 5 * MS, 60 * MS]),
            dials_fail_until: [0; 2],
            corrupt_left: luck.pick(&[0, 0, 0, 1, 4]),
            corrupt_permille: 5,
            chunks: luck.pick(&[1, 2, 3, 7, 40, 150, 400]),
            produced: 0,
            position: 0,
            interval: luck.pick(&[MS / 100, MS / 100, MS, 20 * MS, 60 * MS]),
            to_fill: VecDeque::new(),
            producing: false,
            work_max: luck.pick(&[MS / 50, MS / 2, 10 * MS]),
            ordered,
            to_write: VecDeque::new(),
            writing: false,
            sink_interval: luck.pick(&[MS / 100, MS / 100, MS, 30 * MS]),
            sink_stalled_until: 0,
            written: HashSet::new(),
            bytes_written: 0,
            committed: false,
            retries_possible: false,
            luck,
        };
        if weather == Weather::Calm {
            simulation.corrupt_left = 0;
        }
        simulation.open_lane(LaneId { index: 0, generation: 0 }, false);
        simulation.schedule_luck();
        simulation
    }

    /// Decides what goes wrong, and when.
    fn schedule_luck(&mut self) {
        // Where the transfer is short, so is the time in which something goes wrong.
        let span = self.luck.pick(&[5 * MS, 100 * MS, 2 * SECOND, FAULTS_END]);
        if self.luck.chance(if self.weather == Weather::Calm { 40 } else { 20 }) {
            let end = self.luck.below(2) as usize;
            let cause = match (self.luck.below(3), end) {
                (0, _) => Cause::Signal(15),
                (_, SENDER) => Cause::Source(IoFact { errno: 5, path: b"in".to_vec(), detail: Vec::new() }),
                (1, _) => Cause::SinkClosed,
                (_, _) => Cause::Sink(IoFact { errno: 28, path: b"out".to_vec(), detail: Vec::new() }),
            };
            let at = self.luck.below(2 * span);
            self.at(at, What::Tell(end, In::GiveUp(cause)));
        }
        if self.weather == Weather::Calm {
            return;
        }
        let storm = self.weather == Weather::Storm;
        let mut outages = if storm { 6 } else { 2 };
        for _ in 0..self.luck.between(1, if storm { 16 } else { 8 }) {
            let at = self.luck.below(span);
            let seen = |luck: &mut Luck| luck.chance(60).then(|| luck.below(200 * MS));
            match self.luck.below(8) {
                0..3 => {
                    let seen = [seen(&mut self.luck), seen(&mut self.luck)];
                    let only = self.luck.pick(&[None, Some(Path::Rdma), Some(Path::Tcp)]);
                    self.at(at, What::Cut { seen, only });
                }
                3 | 4 if outages > 0 => {
                    outages -= 1;
                    let for_ns = self.luck.between(MS, if storm { 25 } else { 5 } * SECOND);
                    let path = self.luck.pick(&[None, Some(Path::Rdma), Some(Path::Rdma), Some(Path::Tcp)]);
                    self.at(at, What::Outage { path, for_ns });
                }
                5 => {
                    let for_ns = self.luck.between(MS, 7 * SECOND);
                    self.at(at, What::Stall { for_ns });
                }
                6 => {
                    let end = self.luck.below(2) as usize;
                    let for_ns = self.luck.between(100 * MS, if storm { 60 } else { 8 } * SECOND);
                    self.at(at, What::Tell(end, In::Stop { for_ns }));
                }
                _ => {
                    let until = at + self.luck.below(10 * SECOND);
                    self.sink_stalled_until = self.sink_stalled_until.max(until);
                }
            }
        }
        if storm && self.luck.chance(20) {
            let at = self.luck.below(2 * span);
            let end = self.luck.below(2) as usize;
            self.at(at, What::Kill(end));
        }
    }

    fn at(&mut self, at: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse((at.max(self.now), self.order)));
        self.due.insert(self.order, what);
    }

    fn after(&mut self, most: u64, what: What) {
        let at = self.now + self.luck.below(most);
        self.at(at, what);
    }

    fn wake_at(&mut self, end: usize, at: u64) {
        if at < self.ends[end].wake {
            self.ends[end].wake = at;
            self.at(at, What::Wake(end));
        }
    }

    fn time(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn machine(&mut self, end: usize) -> &mut dyn Machine {
        if end == SENDER { &mut self.sender } else { &mut self.receiver }
    }

    #[track_caller]
    fn own(&mut self, end: usize, buffer: BufferId, from: Owner, to: Owner) {
        let owner = &mut self.ends[end].owners[buffer as usize];
        assert_eq!(*owner, from, "end {end} moves buffer {buffer} to {to:?}");
        *owner = to;
    }

    fn run(mut self) -> Self {
        while !self.ends.iter().all(|end| !end.running()) {
            let Some(Reverse((at, order))) = self.queue.pop() else { panic!("nothing is due and no end has ended") };
            assert!(at <= END_MAX, "no end after {at} ns: {}", self.describe());
            self.now = at;
            let what = self.due.remove(&order).expect("queued with it");
            self.happen(what);
        }
        self
    }

    fn describe(&self) -> String {
        format!(
            "connector {}, {:?}, ordered {}, produced {}/{}, written {}, outcomes {:?} {:?}, lanes {:?}\n{:?}\n{:?}",
            self.connector,
            self.agreed,
            self.ordered,
            self.produced,
            self.chunks,
            self.written.len(),
            self.ends[0].ended,
            self.ends[1].ended,
            self.lanes
                .iter()
                .map(|(id, lane)| (id, lane.cut, lane.sides[0].life, lane.sides[1].life))
                .collect::<Vec<_>>(),
            self.ends[0].owners,
            self.ends[1].owners,
        )
    }

    fn happen(&mut self, what: What) {
        if self.trace && !matches!(what, What::Wake(_)) {
            println!("{:>12} {what:?}", self.now / 1000);
        }
        match what {
            What::Wake(end) => self.wake(end),
            What::Tell(end, event) => self.tell(end, event),
            What::Arrive { lane, to, message } => self.arrive(lane, to, message),
            What::SentDone { lane, buffer } => {
                let lane_state = self.lanes.get_mut(&(lane.index, lane.generation)).expect("made");
                let side = &mut lane_state.sides[SENDER];
                if side.life != Life::Up || lane_state.cut {
                    return;
                }
                if let Some(at) = side.held.iter().position(|&held| held == buffer) {
                    side.held.remove(at);
                    side.heard = self.now;
                    self.own(SENDER, buffer, Owner::Lane(lane), Owner::Machine);
                    self.tell(SENDER, In::Sent(lane, buffer));
                }
            }
            What::LaneDown { lane, end } => self.lane_down(lane, end),
            What::Produce => self.produce(),
            What::Deliver => self.deliver(),
            What::Cut { seen, only } => {
                let up: Vec<(u16, u32)> = self.whole_lanes(only);
                if !up.is_empty() {
                    let (index, generation) = self.luck.pick(&up);
                    self.cut(LaneId { index, generation }, seen);
                }
            }
            What::Outage { path, for_ns } => {
                for (at, affected) in [Path::Tcp, Path::Rdma].into_iter().enumerate() {
                    if path.is_none_or(|path| path == affected) {
                        self.dials_fail_until[at] = self.dials_fail_until[at].max(self.now + for_ns);
                    }
                }
                for (index, generation) in self.whole_lanes(path) {
                    let seen = [0, 0].map(|_| self.luck.chance(50).then(|| self.luck.below(MS * 100)));
                    self.cut(LaneId { index, generation }, seen);
                }
            }
            What::Stall { for_ns } => {
                let up = self.whole_lanes(None);
                if !up.is_empty() {
                    let id = self.luck.pick(&up);
                    let lane = self.lanes.get_mut(&id).expect("listed");
                    lane.stalled_until = lane.stalled_until.max(self.now + for_ns);
                    self.retries_possible = true;
                }
            }
            What::Kill(end) => {
                if !self.ends[end].running() {
                    return;
                }
                self.ends[end].dead = true;
                for (index, generation) in self.whole_lanes(None) {
                    let seen = self.luck.chance(50).then(|| self.luck.below(MS * 100));
                    self.cut(LaneId { index, generation }, [seen; 2]);
                }
            }
        }
    }

    fn whole_lanes(&self, path: Option<Path>) -> Vec<(u16, u32)> {
        let of_path = |index: u16| path.is_none_or(|path| path_of(LaneId { index, generation: 0 }) == path);
        let whole = |lane: &SimLane| !lane.cut && lane.sides.iter().any(|side| side.life != Life::Down);
        self.lanes.iter().filter(|(id, lane)| of_path(id.0) && whole(lane)).map(|(&id, _)| id).collect()
    }

    fn lane(&mut self, id: LaneId) -> &mut SimLane {
        self.lanes.get_mut(&(id.index, id.generation)).expect("a lane that was made")
    }

    // Lanes.

    /// Connects a lane; `half`: the connecting end does not learn of it.
    fn open_lane(&mut self, id: LaneId, half: bool) {
        let side = |heard| Side {
            life: Life::Coming,
            closing: false,
            held: VecDeque::new(),
            heard,
            arrives: [0; 2],
            control_waiting: 0,
            reset: false,
        };
        let delay = self.luck.between(MS / 100, self.delay_max);
        let mut lane = SimLane { sides: [side(self.now), side(self.now)], cut: half, delay, stalled_until: 0 };
        // The session begins on the first lane: both ends know of it before anything else.
        let first = id == LaneId { index: 0, generation: 0 };
        let up = [0, 0].map(|_| if first { 0 } else { self.now + self.luck.below(2 * delay) });
        // Nothing reaches an end before it knows of the lane.
        lane.sides[0].arrives = [up[1] + 1; 2];
        lane.sides[1].arrives = [up[0] + 1; 2];
        let fresh = self.lanes.insert((id.index, id.generation), lane).is_none();
        assert!(fresh, "{id:?} is dialled twice");
        for end in [SENDER, RECEIVER] {
            if half && end == self.connector {
                self.lane(id).sides[end].life = Life::Down;
                self.at(up[end], What::Tell(end, In::DialFailed(id)));
            } else if first {
                self.tell(end, In::LaneUp(id));
            } else {
                self.at(up[end], What::Tell(end, In::LaneUp(id)));
            }
        }
        if half {
            let end = 1 - self.connector;
            let seen = if self.luck.chance(50) { self.luck.below(200 * MS) } else { KEEPALIVE };
            self.at(up[end] + seen + 1, What::LaneDown { lane: id, end });
        }
    }

    fn dial(&mut self, id: LaneId) {
        let takes = self.luck.between(self.delay_max, 3 * self.delay_max);
        let acceptor = &self.ends[1 - self.connector];
        let reachable = acceptor.running() && !acceptor.stopped;
        let fails_until = self.dials_fail_until[path_of(id) as usize];
        if self.now < fails_until || !reachable || (self.weather != Weather::Calm && self.luck.chance(3)) {
            let takes = self.luck.pick(&[takes, 100 * MS, 2 * SECOND]);
            let end = self.connector;
            return self.after(2 * takes, What::Tell(end, In::DialFailed(id)));
        }
        let half = self.weather != Weather::Calm && self.luck.chance(3);
        self.open_lane(id, half);
    }

    fn cut(&mut self, id: LaneId, seen: [Option<u64>; 2]) {
        self.retries_possible = true;
        self.lane(id).cut = true;
        for (end, seen) in seen.into_iter().enumerate() {
            // The kernel probes a silent TCP connection; nothing does that for a queue pair.
            let probed = (path_of(id) == Path::Tcp).then_some(KEEPALIVE);
            if let Some(after) = seen.or(probed) {
                let at = self.now + after;
                self.at(at, What::LaneDown { lane: id, end });
            }
        }
    }

    fn lane_down(&mut self, id: LaneId, end: usize) {
        let now = self.now;
        let side = &mut self.lane(id).sides[end];
        match side.life {
            Life::Down => {}
            Life::Coming => self.at(now + MS, What::LaneDown { lane: id, end }),
            Life::Up => {
                side.life = Life::Down;
                let buffers: Vec<BufferId> = side.held.drain(..).collect();
                for &buffer in &buffers {
                    self.own(end, buffer, Owner::Lane(id), Owner::Machine);
                }
                self.tell(end, In::Down(id));
            }
        }
    }

    fn close_lane(&mut self, id: LaneId, end: usize) {
        let ending = self.machine(end).core_ref().is_ending();
        let drops = !ending && self.luck.chance(30);
        let (now, down) = (self.now, self.now + self.luck.below(200 * MS));
        let lane = self.lane(id);
        if lane.sides[end].closing || lane.sides[end].life == Life::Down {
            return;
        }
        lane.sides[end].closing = true;
        lane.sides[end].reset = drops;
        let last = *lane.sides[end].arrives.iter().max().expect("two");
        let peer_at = last.max(now + lane.delay).max(lane.stalled_until) + 1;
        let cut = lane.cut;
        self.at(down, What::LaneDown { lane: id, end });
        if !cut {
            self.at(peer_at, What::LaneDown { lane: id, end: 1 - end });
        }
    }

    fn transmit(&mut self, id: LaneId, from: usize, message: Message) {
        let now = self.now;
        let jitter = self.luck.between(0, self.delay_max);
        let rdma = path_of(id) == Path::Rdma;
        let lane = self.lane(id);
        let control = matches!(message, Message::Control(_));
        let side = &mut lane.sides[from];
        if side.life != Life::Up || side.closing {
            return;
        }
        if control {
            side.control_waiting += 1;
            assert!(side.control_waiting <= CONTROL_QUEUE_MAX, "control frames pile up on {id:?}");
        }
        let stream = usize::from(rdma && !control);
        let at = (now + lane.delay + jitter).max(side.arrives[stream] + 1);
        side.arrives[stream] = at;
        self.at(at, What::Arrive { lane: id, to: 1 - from, message });
    }

    fn arrive(&mut self, id: LaneId, to: usize, message: Message) {
        let now = self.now;
        let lane = self.lane(id);
        if now < lane.stalled_until && !lane.cut {
            let at = lane.stalled_until;
            return self.at(at, What::Arrive { lane: id, to, message });
        }
        if matches!(message, Message::Control(_)) {
            lane.sides[1 - to].control_waiting -= 1;
        }
        if lane.cut || lane.sides[1 - to].reset || lane.sides[to].life == Life::Down {
            return;
        }
        assert_eq!(lane.sides[to].life, Life::Up, "events of a lane come after it is known");
        lane.sides[to].heard = now;
        match message {
            Message::Garbled => self.tell(to, In::Garbled(id)),
            Message::Control(frame) => self.tell(to, In::Control(id, frame)),
            Message::Chunk(slot) => {
                let buffer = lane.sides[RECEIVER].held.pop_front().expect("a chunk for which no receive was posted");
                self.own(RECEIVER, buffer, Owner::Lane(id), Owner::Machine);
                self.ends[RECEIVER].slots[buffer as usize] = slot;
                self.tell(RECEIVER, In::Chunk { lane: id, buffer });
            }
        }
    }

    // The loops of the two ends.

    fn tell(&mut self, end: usize, event: In) {
        if let In::LaneUp(id) = event {
            let now = self.now;
            let side = &mut self.lane(id).sides[end];
            side.life = Life::Up;
            side.heard = now;
        }
        if !self.ends[end].running() {
            return;
        }
        if matches!(event, In::Resume) {
            self.ends[end].stopped = false;
            // What the process did not read while it stood still, it reads now.
            let now = self.now;
            for lane in self.lanes.values_mut().filter(|lane| !lane.cut) {
                lane.sides[end].heard = now;
            }
            self.ends[end].inbox.push_front(event);
        } else {
            self.ends[end].inbox.push_back(event);
        }
        let at = self.now + self.luck.below(MS / 10);
        self.wake_at(end, at);
    }

    fn wake(&mut self, end: usize) {
        if self.ends[end].wake != self.now || !self.ends[end].running() {
            return;
        }
        self.ends[end].wake = u64::MAX;
        if self.ends[end].stopped {
            return;
        }
        let batch = self.luck.pick(&[1, 1, 2, 64]);
        for _ in 0..batch {
            let Some(event) = self.ends[end].inbox.pop_front() else { break };
            self.handle(end, event);
            if self.ends[end].stopped {
                return;
            }
        }
        let now = self.time();
        if self.now - self.ends[end].ticked >= TICK.as_nanos() as u64 {
            self.ends[end].ticked = self.now;
            let heard: Vec<(LaneId, u64)> = self
                .lanes
                .iter()
                .filter(|(_, lane)| lane.sides[end].life == Life::Up)
                .map(|(&(index, generation), lane)| (LaneId { index, generation }, lane.sides[end].heard))
                .collect();
            for (id, heard) in heard {
                self.machine(end).handle_heard(id, Duration::from_nanos(heard));
            }
            self.machine(end).handle_timeout(now);
        }
        self.machine(end).advance(now);
        self.act(end);
        let wait = self.machine(end).next_timeout(now).min(TICK).as_nanos() as u64;
        assert!(wait > 0, "end {end} spins");
        let next = if self.ends[end].inbox.is_empty() { self.now + wait } else { self.now + 1000 };
        self.wake_at(end, next);
    }

    fn handle(&mut self, end: usize, event: In) {
        let now = self.time();
        match event {
            In::LaneUp(id) => self.machine(end).handle_lane_up(id, now),
            In::DialFailed(id) => self.machine(end).handle_dial_failed(id, now),
            In::Control(id, frame) => {
                if let Err(violation) = self.machine(end).handle_frame(id, frame.clone(), now) {
                    panic!("end {end} refuses {frame:?} on {id:?}: {violation}; {}", self.describe());
                }
            }
            In::Garbled(id) => self.machine(end).handle_corrupt(id, now),
            In::Chunk { lane, buffer } => {
                let header = self.ends[RECEIVER].slots[buffer as usize].header;
                if let Err(violation) = self.receiver.handle_chunk(lane, buffer, header.as_ref()) {
                    assert!(header.is_none(), "{violation} of {header:?}");
                    self.receiver.handle_corrupt(lane, now);
                }
            }
            In::Sent(id, buffer) => self.sender.handle_sent(id, buffer),
            In::Down(id) => self.machine(end).handle_lane_down(id, now),
            In::Sealed(buffer) => {
                let header = self.ends[SENDER].slots[buffer as usize].header.expect("sealed");
                self.sender.handle_sealed(buffer, &header);
            }
            In::Unfilled(buffer) => self.sender.handle_unfilled(buffer),
            In::Opened(buffer) => {
                let genuine = !self.ends[RECEIVER].slots[buffer as usize].damaged;
                self.receiver.handle_opened(buffer, genuine, now);
            }
            In::Written(buffer) => self.receiver.handle_written(buffer, now),
            In::Committed => self.receiver.handle_committed(now),
            In::GiveUp(cause) => {
                if self.committed && !matches!(cause, Cause::Signal(_)) && end == RECEIVER {
                    return;
                }
                if self.produced == self.chunks && matches!(cause, Cause::Source(_)) {
                    return;
                }
                if !self.machine(end).core_ref().is_ending() {
                    self.ends[end].gave_up = Some((cause.clone(), self.now));
                }
                self.machine(end).abort(cause, now);
            }
            In::Stop { for_ns } => {
                self.machine(end).handle_pause(true, now);
                self.act(end);
                if self.ends[end].running() {
                    self.ends[end].stopped = true;
                    let at = self.now + for_ns;
                    self.at(at, What::Tell(end, In::Resume));
                }
            }
            In::Resume => self.machine(end).handle_pause(false, now),
        }
    }

    fn act(&mut self, end: usize) {
        while let Some(action) = self.machine(end).poll_action() {
            if self.trace {
                println!("{:>12} end {end}: {action:?}", self.now / 1000);
            }
            assert!(self.ends[end].ended.is_none(), "{action:?} after the end");
            match action {
                Action::Dial(id) => {
                    assert_eq!(end, self.connector);
                    self.dial(id);
                }
                Action::Close(id) => self.close_lane(id, end),
                Action::Send(id, frame) => {
                    let message = if self.corrupts() { Message::Garbled } else { Message::Control(frame) };
                    self.transmit(id, end, message);
                }
                Action::Fill { buffer, encrypt } => {
                    self.own(end, buffer, Owner::Machine, Owner::Source);
                    self.to_fill.push_back((buffer, encrypt));
                    self.start_producing();
                }
                Action::Encrypt(buffer) => {
                    self.own(end, buffer, Owner::Machine, Owner::Sealer);
                    let header = self.ends[SENDER].slots[buffer as usize].header.as_mut().expect("sealed before");
                    assert!(!header.sealed, "nothing is encrypted twice");
                    header.sealed = true;
                    header.tag = tag_of(header.sequence, true);
                    self.finish_work(SENDER, buffer, Owner::Sealer, In::Sealed(buffer));
                }
                Action::SendChunk(id, buffer) => self.send_chunk(id, buffer),
                Action::PostReceive(id, buffer) => {
                    self.own(end, buffer, Owner::Machine, Owner::Lane(id));
                    let side = &mut self.lane(id).sides[RECEIVER];
                    if side.life == Life::Up {
                        side.held.push_back(buffer);
                    } else {
                        self.own(end, buffer, Owner::Lane(id), Owner::Machine);
                    }
                }
                Action::Open(buffer) => {
                    self.own(end, buffer, Owner::Machine, Owner::Opener);
                    self.finish_work(RECEIVER, buffer, Owner::Opener, In::Opened(buffer));
                }
                Action::Write(buffer) => {
                    self.own(end, buffer, Owner::Machine, Owner::Sink);
                    self.to_write.push_back(buffer);
                    self.start_writing();
                }
                Action::Commit => {
                    assert!(!self.committed, "published twice");
                    assert_eq!(self.written.len() as u64, self.chunks, "published before all was there");
                    assert_eq!(self.bytes_written, self.position);
                    self.committed = true;
                    self.after(5 * MS, What::Tell(RECEIVER, In::Committed));
                }
                Action::Notice(_) => self.ends[end].notices += 1,
                Action::End(outcome) => {
                    self.ends[end].ended = Some((outcome, self.now));
                    let ids: Vec<_> = self.lanes.keys().copied().collect();
                    for (index, generation) in ids {
                        self.close_lane(LaneId { index, generation }, end);
                    }
                }
            }
        }
    }

    fn corrupts(&mut self) -> bool {
        let hit = self.corrupt_left > 0 && self.luck.below(1000) < self.corrupt_permille;
        self.corrupt_left -= u32::from(hit);
        self.retries_possible |= hit;
        hit
    }

    fn finish_work(&mut self, end: usize, buffer: BufferId, from: Owner, event: In) {
        // The buffer belongs to the machine again when it is told; nothing looks at it before.
        self.own(end, buffer, from, Owner::Machine);
        let most = self.work_max;
        self.after(most, What::Tell(end, event));
    }

    fn send_chunk(&mut self, id: LaneId, buffer: BufferId) {
        self.own(SENDER, buffer, Owner::Machine, Owner::Lane(id));
        let mut slot = self.ends[SENDER].slots[buffer as usize];
        let header = slot.header.expect("sealed");
        assert!(header.sealed || !self.agreed.seal(path_of(id)), "chunk {} goes in clear by {id:?}", header.sequence);
        if self.lane(id).sides[SENDER].life != Life::Up {
            return self.own(SENDER, buffer, Owner::Lane(id), Owner::Machine);
        }
        self.lane(id).sides[SENDER].held.push_back(buffer);
        if self.corrupts() {
            slot.damaged = true;
            if self.luck.chance(30) {
                slot.header = None;
            }
        }
        self.transmit(id, SENDER, Message::Chunk(slot));
        let arrives = self.lane(id).sides[SENDER].arrives[usize::from(path_of(id) == Path::Rdma)];
        let sent = match path_of(id) {
            Path::Tcp => self.now + self.luck.below(arrives.saturating_sub(self.now) * 2),
            Path::Rdma => arrives + self.luck.below(MS),
        };
        self.at(sent, What::SentDone { lane: id, buffer });
    }

    // The source.

    fn start_producing(&mut self) {
        if !self.producing && !self.to_fill.is_empty() {
            self.producing = true;
            let pause = if self.luck.below(200) == 0 { 2 * SECOND } else { 0 };
            let most = 2 * self.interval + pause;
            self.after(most, What::Produce);
        }
    }

    fn produce(&mut self) {
        self.producing = false;
        if self.ends[SENDER].stopped || !self.ends[SENDER].running() {
            return self.at(self.now + 50 * MS, What::Produce);
        }
        let Some((buffer, encrypt)) = self.to_fill.pop_front() else { return };
        if self.produced == self.chunks {
            self.finish_work(SENDER, buffer, Owner::Source, In::Unfilled(buffer));
        } else {
            let sequence = self.produced;
            self.produced += 1;
            let is_final = self.produced == self.chunks;
            let bytes = if is_final { self.luck.between(0, 4096) } else { self.luck.between(1, 4096) } as u32;
            // As the engine does: by the path at the time when it is sealed.
            let path = self.sender.core_ref().path();
            let sealed = if self.luck.chance(50) { path.is_some_and(|path| self.agreed.seal(path)) } else { encrypt };
            self.ends[SENDER].slots[buffer as usize] = Slot {
                header: Some(ChunkHeader {
                    is_final,
                    sealed,
                    wire_bytes: bytes,
                    plain_bytes: bytes,
                    sequence,
                    position: self.position,
                    tag: tag_of(sequence, sealed),
                    ..ChunkHeader::default()
                }),
                damaged: false,
            };
            self.position += u64::from(bytes);
            self.finish_work(SENDER, buffer, Owner::Source, In::Sealed(buffer));
        }
        self.start_producing();
    }

    // The sink.

    fn start_writing(&mut self) {
        if !self.writing && !self.to_write.is_empty() {
            self.writing = true;
            let stall = self.sink_stalled_until.saturating_sub(self.now);
            let at = self.now + stall + self.luck.below(2 * self.sink_interval);
            self.at(at, What::Deliver);
        }
    }

    fn deliver(&mut self) {
        self.writing = false;
        if self.ends[RECEIVER].stopped || !self.ends[RECEIVER].running() {
            return self.at(self.now + 50 * MS, What::Deliver);
        }
        let at = if self.ordered { 0 } else { self.luck.below(self.to_write.len() as u64) as usize };
        let Some(buffer) = self.to_write.remove(at) else { return };
        let slot = self.ends[RECEIVER].slots[buffer as usize];
        let header = slot.header.expect("opened before");
        assert!(!slot.damaged, "damaged bytes reach the sink");
        assert!(!self.ordered || header.sequence == self.written.len() as u64, "out of order");
        assert!(self.written.insert(header.sequence), "chunk {} written twice", header.sequence);
        self.bytes_written += u64::from(header.plain_bytes);
        self.finish_work(RECEIVER, buffer, Owner::Sink, In::Written(buffer));
        self.start_writing();
    }

    // What must have come of it.

    fn judge(&self) {
        let outcome = |end: usize| self.ends[end].ended.as_ref().map(|(outcome, _)| outcome.clone());
        let (sent, received) = (outcome(SENDER), outcome(RECEIVER));
        let gave_up = self.ends.iter().any(|end| end.gave_up.is_some());
        if sent == Some(Outcome::Done) || received == Some(Outcome::Done) {
            assert!(self.committed, "success without the sink's word");
            assert_eq!(self.written.len() as u64, self.chunks);
        }
        for end in [SENDER, RECEIVER] {
            if let (Some((cause, at)), Some((outcome, ended))) = (&self.ends[end].gave_up, &self.ends[end].ended) {
                let stops = self.weather != Weather::Calm;
                assert!(stops || ended - at <= ABORT_END_MAX, "end {end} gave up at {at} and ended at {ended}");
                assert_eq!(*outcome, Outcome::Aborted(cause.clone()));
            }
            if let Some(Outcome::PeerAborted(cause)) = outcome(end) {
                let theirs = &self.ends[1 - end].gave_up;
                assert_eq!(theirs.as_ref().map(|(cause, _)| cause), Some(&cause));
            }
        }
        if let Some(Outcome::Aborted(cause)) = sent.as_ref().or(received.as_ref()) {
            assert!(!matches!(cause, Cause::Protocol | Cause::Integrity), "{cause:?} between honest ends");
        }
        match self.weather {
            Weather::Calm if gave_up => {
                let quitter = usize::from(self.ends[SENDER].gave_up.is_none());
                let (cause, _) = self.ends[quitter].gave_up.clone().expect("one did");
                let other = outcome(1 - quitter).expect("alive");
                let both = self.ends.iter().all(|end| end.gave_up.is_some());
                assert!(both || other == Outcome::PeerAborted(cause) || (self.committed && other == Outcome::Done));
            }
            Weather::Calm | Weather::Rough if !gave_up => {
                if [&sent, &received].contains(&&Some(Outcome::NoRdma)) {
                    assert!(self.agreed.policy == Policy::Rdma && self.weather == Weather::Rough);
                    let told = [sent, received];
                    // The word of it may be lost; there is no second attempt.
                    let fits = |outcome| matches!(outcome, &Some(Outcome::NoRdma | Outcome::LinkLost { .. }));
                    assert!(told.iter().all(fits), "{told:?}");
                    return;
                }
                assert_eq!(sent, Some(Outcome::Done));
                assert_eq!(received, Some(Outcome::Done));
            }
            Weather::Calm | Weather::Rough => {}
            Weather::Storm => {
                if received == Some(Outcome::Done) && !gave_up && !self.ends[SENDER].dead {
                    let unanswered = Outcome::LinkLost { unanswered: true };
                    assert!(sent == Some(Outcome::Done) || sent == Some(unanswered), "{sent:?}");
                }
            }
        }
        if self.weather == Weather::Calm && !self.retries_possible {
            assert_eq!((self.sender.counters().retries, self.receiver.counters().retries), (0, 0));
            assert_eq!(self.sender.counters().corrupt + self.receiver.counters().corrupt, 0);
        }
        if sent == Some(Outcome::Done) {
            assert_eq!(self.sender.counters().bytes, self.position);
            assert_eq!(self.receiver.counters().bytes, self.position);
        }
    }
}

fn run_seed(seed: u64) {
    let guard = Seed(seed);
    let simulation = Simulation::new(seed).run();
    simulation.judge();
    std::mem::forget(guard);
}

/// Names the seed when a run panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        eprintln!("repeat with: RD_SIM_SEED={} cargo test -p rd-proto simulation", self.0);
    }
}

#[test]
fn every_session_ends_as_it_should() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("RD_SIM_SEED") {
        return run_seed(seed);
    }
    for seed in
        0..number("RD_SIM_COUNT").unwrap_or(if std::env::var_os("RD_LONG").is_some() { SEEDS_LONG } else { SEEDS })
    {
        run_seed(seed);
    }
}
