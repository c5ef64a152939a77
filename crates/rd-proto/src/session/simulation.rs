//! Simulates a sender and a receiver joined by lanes, thousands of times, each time with other random events.
//!
//! Time is virtual and every choice comes from the seed, so the seed alone reproduces a failure: `RD_SIM_SEED=1234
//! cargo test -p rd-proto simulation -- --nocapture`. `RD_SIM_COUNT` runs more seeds than the default, and
//! `RD_SIM_TRACE=1` prints every event of the seed.
//!
//! The model tracks the owner of each buffer. It panics if a machine uses a buffer that it does not hold, sends without
//! a credit, or sends in clear although the path requires encryption. At the end it compares the data that the sink was
//! given with the data of the source, and the two outcomes with each other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};
use std::time::Duration;

mod judge;
mod loops;
mod streams;
mod wires;

use super::lanes::path_of;
use super::*;
use crate::control::{Endpoint, IoFact};
use crate::frame::ChunkHeader;

/// Number of seeds to run, by default and in a long run of the tests (`RD_LONG`). `RD_SIM_COUNT` overrides both.
const SEEDS: u64 = 4000;
const SEEDS_LONG: u64 = 200_000;

/// Number of control frames that a lane of any transport holds; see `Lane::send_control`.
const CONTROL_QUEUE_MAX: usize = 4 * ANSWERS_MAX;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Time after which no fault, stall or pause begins.
const FAULTS_END: u64 = 12 * SECOND;

/// Time by which every session must have ended, whatever happened.
const END_MAX: u64 = 600 * SECOND;

/// How long TCP waits for a peer that does not answer before it gives the connection up.
const KEEPALIVE: u64 = 20 * SECOND;

/// Maximum time from giving up to the end: [`ABORT_WAIT`], a tick, and scheduling.
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

    /// Draws a number from 0 to `below - 1`.
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

/// An event for an end's loop.
#[derive(Clone, Debug)]
enum In {
    LaneUp(LaneId),
    DialFailed(LaneId),
    Control(LaneId, Frame),
    Garbled(LaneId),
    Chunk {
        lane: LaneId,
        buffer: BufferId,
    },
    Sent(LaneId, BufferId),
    Down(LaneId),
    Sealed(BufferId),
    Planned(BufferId),
    Tag(BufferId, [u8; 16]),
    Unsent(LaneId, BufferId),
    Unfilled(BufferId),
    Opened(BufferId),
    Written(BufferId, u8),
    Committed,
    /// The sink makes this many answers.
    Answers(u64),
    /// The list of endpoints of the listening end has changed.
    Endpoints,
    GiveUp(Cause),
    Stop {
        for_ns: u64,
    },
    Resume,
}

#[derive(Clone, Debug)]
enum Message {
    Control(Frame),
    Garbled,
    Chunk(Slot),
}

/// An event at a point in time.
#[derive(Clone, Debug)]
enum What {
    Wake(usize),
    Tell(usize, In),
    Arrive {
        lane: LaneId,
        to: usize,
        sent: u64,
        message: Message,
    },
    SentDone {
        lane: LaneId,
        buffer: BufferId,
    },
    LaneDown {
        lane: LaneId,
        end: usize,
    },
    Produce,
    /// A sink writes a chunk.
    Deliver(u8),
    Cut {
        seen: [Option<u64>; 2],
        only: Option<Path>,
    },
    Outage {
        path: Option<Path>,
        for_ns: u64,
    },
    Stall {
        for_ns: u64,
    },
    /// From now on no lane can be made.
    Strand,
    Kill(usize),
}

/// Owner of a buffer of the model's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Machine,
    Source,
    Sealer,
    Lane(LaneId),
    Opener,
    Sink,
}

/// Contents of a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    header: Option<ChunkHeader>,
    damaged: bool,
    /// Planned: the data is read and sealed only when it is sent.
    unread: bool,
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
    /// When the end learned of the lane.
    up_at: Option<u64>,
    closing: bool,
    /// Buffers in order: those being sent at the sender, those posted at the receiver.
    held: VecDeque<BufferId>,
    heard: u64,
    /// Arrival times of the last control frame and the last chunk that this side sent; equal on TCP.
    arrives: [u64; 2],
    control_waiting: usize,
    /// Whether everything that this side has sent is discarded.
    reset: bool,
}

#[derive(Debug)]
struct SimLane {
    sides: [Side; 2],
    cut: bool,
    /// Until when data that was on its way before the cut still arrives.
    drains_until: u64,
    delay: u64,
    stalled_until: u64,
}

struct End {
    inbox: VecDeque<In>,
    wake: u64,
    ticked: u64,
    stopped: bool,
    /// Whether the end has been stopped before, so that its times prove nothing.
    was_stopped: bool,
    dead: bool,
    owners: Vec<Owner>,
    slots: Vec<Slot>,
    ended: Option<(Outcome, u64)>,
    gave_up: Option<(Cause, u64)>,
    /// When the end was told to end although it had published.
    left: Option<u64>,
    notices: u32,
}

impl End {
    fn new(buffers: u32) -> Self {
        Self {
            inbox: VecDeque::new(),
            wake: u64::MAX,
            ticked: 0,
            stopped: false,
            was_stopped: false,
            dead: false,
            owners: vec![Owner::Machine; buffers as usize],
            slots: vec![Slot::default(); buffers as usize],
            ended: None,
            gave_up: None,
            left: None,
            notices: 0,
        }
    }

    fn running(&self) -> bool {
        self.ended.is_none() && !self.dead
    }
}

/// Severity of the faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// No faults, so the outcomes must be exact.
    Calm,
    /// Faults that every session must survive.
    Rough,
    /// Any faults, including those that no session survives.
    Storm,
}

/// A sink of the receiver.
struct Sink {
    to_write: VecDeque<BufferId>,
    writing: bool,
    interval: u64,
    written: HashSet<u64>,
    bytes_written: u64,
}

impl Sink {
    fn new(luck: &mut Luck) -> Self {
        Self {
            to_write: VecDeque::new(),
            writing: false,
            interval: luck.pick(&[MS / 100, MS / 100, MS, 30 * MS]),
            written: HashSet::new(),
            bytes_written: 0,
        }
    }
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
    /// RDMA lanes that wait for endpoints before they can be dialled.
    waiting_dials: Vec<LaneId>,
    /// How often the list of endpoints has changed at the listening end, and as received by the other end.
    endpoints: [usize; 2],
    stranded: bool,
    /// When the connecting end gave up because it found no RDMA.
    no_rdma_at: Option<u64>,
    corrupt_left: u32,
    corrupt_asked: u32,
    corrupt_permille: u64,
    // The source.
    chunks: u64,
    produced: u64,
    position: u64,
    /// Position in item 0, if there are other items.
    stream_position: u64,
    interval: u64,
    to_fill: VecDeque<(BufferId, bool)>,
    producing: bool,
    work_max: u64,
    /// Percentage of chunks that are planned, to be read by the lanes' own threads. Some of them cannot be read without
    /// waiting.
    planned_percent: u64,
    layout: Layout,
    sinks: Vec<Sink>,
    sink_stalled_until: u64,
    committed: bool,
    retries_possible: bool,
    /// Number of answers that the sink has made, that the receiver has taken, and that have reached the source.
    answers: [u64; 3],
    /// Number of chunks that the source may read ahead of the answers to them.
    answers_ahead: u64,
}

/// Returns how many answers the sink of a tree gives to a chunk: often none, now and then more than may be on the way.
fn answers_to(sequence: u64) -> u64 {
    match sequence % 40 {
        7 => 100,
        other => other % 4,
    }
}

fn tag_of(sequence: u64, sealed: bool) -> [u8; 16] {
    let mut tag = [2 + u8::from(sealed); 16];
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
            tcp_lanes_max: luck.between(1, 6) as u16,
            rdma_lanes: luck.between(1, 3) as u16,
            chunk_bytes: 4096,
            reconnect: Duration::from_secs(reconnect_s),
        };
        let connector = luck.below(2) as usize;
        let pool = |luck: &mut Luck| luck.pick(&[4, 4, 5, 8, 16, 64]);
        let (sender_pool, receiver_pool) = (pool(&mut luck), pool(&mut luck));
        let layout = luck.pick(&[Layout::File, Layout::Stream, Layout::Tree]);
        let sinks = luck.pick(&[1, 1, 2, 3]);
        let sender = Sender::new(agreed, connector == SENDER, sender_pool);
        let mut simulation = Self {
            trace: std::env::var_os("RD_SIM_TRACE").is_some(),
            weather,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            sender: if layout == Layout::Tree { sender.with_answers() } else { sender },
            receiver: Receiver::new(agreed, connector == RECEIVER, receiver_pool, layout, sinks),
            ends: [End::new(sender_pool), End::new(receiver_pool)],
            agreed,
            connector,
            lanes: BTreeMap::new(),
            delay_max: luck.pick(&[MS / 10, MS, 5 * MS, 60 * MS]),
            dials_fail_until: [0; 2],
            waiting_dials: Vec::new(),
            endpoints: [0; 2],
            stranded: false,
            no_rdma_at: None,
            corrupt_left: 0,
            corrupt_asked: luck.pick(&[0, 0, 0, 1, 4]),
            corrupt_permille: 5,
            chunks: luck.pick(&[1, 2, 3, 7, 40, 150, 400]),
            produced: 0,
            position: 0,
            stream_position: 0,
            interval: luck.pick(&[MS / 100, MS / 100, MS, 20 * MS, 60 * MS]),
            to_fill: VecDeque::new(),
            producing: false,
            work_max: luck.pick(&[MS / 50, MS / 2, 10 * MS]),
            planned_percent: luck.pick(&[0, 0, 50, 100]),
            layout,
            sinks: (0..sinks).map(|_| Sink::new(&mut luck)).collect(),
            sink_stalled_until: 0,
            committed: false,
            retries_possible: false,
            answers: [0; 3],
            answers_ahead: luck.pick(&[1, 8, 40]),
            luck,
        };
        if weather == Weather::Calm {
            simulation.corrupt_asked = 0;
        }
        simulation.corrupt_left = simulation.corrupt_asked;
        // The assumed round trip of the line, and how many buffers the pool may use at first.
        for (end, pool) in [(SENDER, sender_pool), (RECEIVER, receiver_pool)] {
            let (first, round_trip) = (simulation.luck.between(4, pool.into()), simulation.luck.between(MS, 400 * MS));
            simulation.machine(end).begin_with_buffers(first as u32);
            simulation.machine(end).core().pool.set_round_trip(Duration::from_nanos(round_trip));
        }
        simulation.open_lane(LaneId { index: 0, generation: 0 }, false);
        simulation.schedule_luck();
        simulation
    }

    /// Decides which faults happen, and when.
    fn schedule_luck(&mut self) {
        // Faults must come early to hit a short transfer.
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
        if self.agreed.try_rdma {
            let listener = 1 - self.connector;
            let at = self.luck.pick(&[0, 0, MS, 200 * MS]);
            self.at(at, What::Tell(listener, In::Endpoints));
        }
        if self.weather == Weather::Calm {
            return;
        }
        for _ in 0..self.luck.below(3) {
            // Later than the first change, in any order.
            let at = self.luck.between(201 * MS, 201 * MS + span);
            let listener = 1 - self.connector;
            self.at(at, What::Tell(listener, In::Endpoints));
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
        if self.agreed.policy == Policy::PreferRdma && self.luck.chance(20) {
            let at = self.luck.below(span);
            self.at(at, What::Outage { path: Some(Path::Rdma), for_ns: END_MAX });
        }
        if self.luck.chance(15) {
            let at = self.luck.below(span);
            self.at(at, What::Strand);
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
            "connector {}, {:?}, {:?}, produced {}/{}, written {}, outcomes {:?} {:?}, lanes {:?}\n{:?}\n{:?}",
            self.connector,
            self.agreed,
            self.layout,
            self.produced,
            self.chunks,
            self.sinks.iter().map(|sink| sink.written.len()).min().unwrap_or(0),
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
            What::Arrive { lane, to, sent, message } => self.arrive(lane, to, sent, message),
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
            What::Deliver(sink) => self.deliver(sink),
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
            What::Strand => {
                self.stranded = true;
                self.dials_fail_until = [END_MAX; 2];
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
}

fn run_seed(seed: u64) {
    let guard = Seed(seed);
    let simulation = Simulation::new(seed).run();
    simulation.judge();
    std::mem::forget(guard);
}

/// Prints the seed if a run panics.
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
