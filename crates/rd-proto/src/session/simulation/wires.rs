//! The simulated lanes: what they carry, when, and how they end.

use super::*;

impl Simulation {
    /// Connects a lane. `half`: the connecting end does not learn of it.
    pub(super) fn open_lane(&mut self, id: LaneId, half: bool) {
        let side = |heard| Side {
            life: Life::Coming,
            up_at: None,
            closing: false,
            held: VecDeque::new(),
            heard,
            arrives: [0; 2],
            control_waiting: 0,
            reset: false,
        };
        let delay = self.luck.between(MS / 100, self.delay_max);
        let stalls = self.weather != Weather::Calm && self.luck.chance(4);
        let stalled_until = if stalls { self.now + self.luck.below(8 * SECOND) } else { 0 };
        self.retries_possible |= stalls;
        let sides = [side(self.now), side(self.now)];
        let mut lane = SimLane { sides, cut: half, drains_until: 0, delay, stalled_until };
        // The session begins on the first lane, so both ends know of it before anything else.
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

    pub(super) fn dial(&mut self, id: LaneId) {
        // The dial waits without end, where a real engine gives up after some seconds. So a lost list of endpoints ends
        // the session.
        if path_of(id) == Path::Rdma && self.endpoints[1] == 0 {
            return self.waiting_dials.push(id);
        }
        let takes = self.luck.between(self.delay_max, 3 * self.delay_max);
        let acceptor = &self.ends[1 - self.connector];
        let reachable = acceptor.running() && !acceptor.stopped;
        let fails_until = self.dials_fail_until[path_of(id) as usize];
        let is_old = path_of(id) == Path::Rdma && self.endpoints[1] != self.endpoints[0];
        if self.now < fails_until || !reachable || is_old || (self.weather != Weather::Calm && self.luck.chance(3)) {
            let takes = self.luck.pick(&[takes, 100 * MS, 2 * SECOND]);
            let end = self.connector;
            return self.after(2 * takes, What::Tell(end, In::DialFailed(id)));
        }
        let half = self.weather != Weather::Calm && self.luck.chance(3);
        self.open_lane(id, half);
    }

    pub(super) fn cut(&mut self, id: LaneId, seen: [Option<u64>; 2]) {
        self.retries_possible = true;
        let drains_until = if self.luck.chance(50) { self.now } else { 0 };
        let lane = self.lane(id);
        lane.cut = true;
        lane.drains_until = drains_until;
        for (end, seen) in seen.into_iter().enumerate() {
            // The kernel probes a silent TCP connection, but not a queue pair.
            let probed = (path_of(id) == Path::Tcp).then_some(KEEPALIVE);
            if let Some(after) = seen.or(probed) {
                let at = self.now + after;
                self.at(at, What::LaneDown { lane: id, end });
            }
        }
    }

    pub(super) fn lane_down(&mut self, id: LaneId, end: usize) {
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

    pub(super) fn close_lane(&mut self, id: LaneId, end: usize) {
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

    pub(super) fn transmit(&mut self, id: LaneId, from: usize, message: Message) {
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
        self.at(at, What::Arrive { lane: id, to: 1 - from, sent: now, message });
    }

    pub(super) fn arrive(&mut self, id: LaneId, to: usize, sent: u64, message: Message) {
        let now = self.now;
        let lane = self.lane(id);
        let passes = !lane.cut || sent < lane.drains_until;
        if now < lane.stalled_until && passes {
            let at = lane.stalled_until;
            return self.at(at, What::Arrive { lane: id, to, sent, message });
        }
        if matches!(message, Message::Control(_)) {
            lane.sides[1 - to].control_waiting -= 1;
        }
        if !passes || lane.sides[1 - to].reset || lane.sides[to].life == Life::Down {
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
}
