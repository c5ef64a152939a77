//! The loops of the two ends, which work as the engine's loop does.

use super::*;

impl Simulation {
    pub(super) fn tell(&mut self, end: usize, event: In) {
        if let In::LaneUp(id) = event {
            let now = self.now;
            let side = &mut self.lane(id).sides[end];
            side.life = Life::Up;
            side.up_at = Some(now);
            side.heard = now;
        }
        if !self.ends[end].running() {
            return;
        }
        if matches!(event, In::Resume) {
            self.ends[end].stopped = false;
            // The process now reads everything that arrived while it was stopped.
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

    pub(super) fn wake(&mut self, end: usize) {
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
            if end == self.connector && self.agreed.tcp_lanes_max > self.agreed.tcp_lanes && self.luck.chance(4) {
                let lanes = self.luck.between(1, self.agreed.tcp_lanes_max.into()) as u16;
                let core = self.machine(end).core();
                if core.path() == Some(Path::Tcp) {
                    core.lanes.keep_tcp_lanes(lanes, now);
                }
            }
            if end == self.connector && self.luck.chance(4) {
                let (count, all) = (self.luck.between(1, 5) as u8, self.luck.chance(50));
                let path = self.luck.pick(&[Path::Tcp, Path::Rdma]);
                self.machine(end).handle_rails(path, count, all, now);
            }
            self.stall_ways(end);
            self.machine(end).handle_timeout(now);
        }
        while end == RECEIVER && self.receiver.has_answer_room() && self.answers[1] < self.answers[0] {
            self.receiver.answer(self.answers[1].to_le_bytes().to_vec());
            self.answers[1] += 1;
        }
        self.machine(end).advance(now);
        self.act(end);
        let wait = self.machine(end).next_timeout(now).min(TICK).as_nanos() as u64;
        assert!(wait > 0, "end {end} spins");
        let next = if self.ends[end].inbox.is_empty() { self.now + wait } else { self.now + 1000 };
        self.wake_at(end, next);
    }

    /// In bad weather the ways stop moving one after another, each at both ends at once.
    fn stall_ways(&mut self, end: usize) {
        let now = self.time();
        let up = |(&(index, generation), lane): (&(u16, u32), &SimLane)| {
            (lane.sides[end].life == Life::Up).then_some(LaneId { index, generation })
        };
        let lanes: Vec<LaneId> = self.lanes.iter().filter_map(up).collect();
        for id in lanes {
            let way = (id.index % 3) as u8;
            let is_stalled = self.weather != Weather::Calm && now.as_secs() / 2 % 5 == u64::from(way);
            self.retries_possible |= is_stalled;
            let moved_bytes = Some(if is_stalled { 1 << 50 } else { now.as_nanos() as u64 });
            let state = LaneState { round_trip: Some(Duration::from_millis(1)), is_unanswered: true, moved_bytes };
            self.machine(end).handle_way(id, way);
            self.machine(end).handle_lane_state(id, state, now);
        }
    }

    pub(super) fn handle(&mut self, end: usize, event: In) {
        let now = self.time();
        match event {
            In::LaneUp(id) => self.machine(end).handle_lane_up(id, now),
            In::DialFailed(id) => {
                let was_ending = self.machine(end).core_ref().is_ending();
                self.machine(end).handle_dial_failed(id, now);
                if !was_ending && self.machine(end).core_ref().is_ending() {
                    self.no_rdma_at = Some(self.now);
                }
            }
            In::Control(id, frame) => {
                if let Err(violation) = self.machine(end).handle_frame(id, frame.clone(), now) {
                    panic!("end {end} refuses {frame:?} on {id:?}: {violation}; {}", self.describe());
                }
            }
            In::Garbled(id) => self.machine(end).handle_corrupt(id, now),
            In::Chunk { lane, buffer } => {
                let header = self.ends[RECEIVER].slots[buffer as usize].header;
                if let Err(violation) = self.receiver.handle_chunk(lane, buffer, header.as_ref()) {
                    // Either this chunk is damaged, or a damaged chunk has taken its sequence.
                    let number = |header: Option<ChunkHeader>| header.map(|header| header.sequence);
                    let is_taken_for_it = |slot: &Slot| slot.damaged && number(slot.header) == number(header);
                    let explained = self.ends[RECEIVER].slots.iter().any(is_taken_for_it);
                    assert!(explained, "{violation} of {header:?}");
                    self.receiver.handle_corrupt(lane, now);
                }
            }
            In::Sent(id, buffer) => self.sender.handle_sent(id, buffer, now),
            In::Down(id) => self.machine(end).handle_lane_down(id, now),
            In::Sealed(buffer) => {
                let header = self.ends[SENDER].slots[buffer as usize].header.expect("sealed");
                self.sender.handle_sealed(buffer, &header);
            }
            In::Planned(buffer) => {
                let header = self.ends[SENDER].slots[buffer as usize].header.expect("planned");
                self.sender.handle_sealed(buffer, &ChunkHeader { tag: [0; 16], ..header });
            }
            In::Tag(buffer, tag) => self.sender.handle_tag(buffer, tag),
            In::Unsent(lane, buffer) => {
                self.own(SENDER, buffer, Owner::Lane(lane), Owner::Sealer);
                self.sender.handle_unsent(lane, buffer);
                self.ends[SENDER].slots[buffer as usize].unread = false;
                self.finish_work(SENDER, buffer, Owner::Sealer, In::Sealed(buffer));
            }
            In::Unfilled(buffer) => self.sender.handle_unfilled(buffer),
            In::Opened(buffer) => {
                let genuine = !self.ends[RECEIVER].slots[buffer as usize].damaged;
                self.receiver.handle_opened(buffer, genuine, now);
            }
            In::Written(buffer, sink) => self.receiver.handle_written(buffer, sink, now),
            In::Answers(count) => self.answers[0] += count,
            In::Committed => self.receiver.handle_committed(0, now),
            In::Endpoints => {
                // The list grows with each change, so its length tells its age.
                self.endpoints[0] += 1;
                let address = "10.0.0.1:4791".parse().expect("an address");
                let endpoint = Endpoint { hardware: false, address, prefix_bits: 24, rate_mbps: 0 };
                let endpoints = vec![endpoint; self.endpoints[0]];
                self.machine(end).handle_endpoints(endpoints, now);
            }
            In::GiveUp(cause) => {
                if self.committed && !matches!(cause, Cause::Signal(_)) && end == RECEIVER {
                    return;
                }
                if self.produced == self.chunks && matches!(cause, Cause::Source(_)) {
                    return;
                }
                let core = self.machine(end).core_ref();
                if core.linger_until.is_some() {
                    self.ends[end].left = Some(self.now);
                } else if !core.is_ending() {
                    self.ends[end].gave_up = Some((cause.clone(), self.now));
                }
                self.machine(end).abort(cause, now);
            }
            In::Stop { for_ns } => {
                self.machine(end).handle_pause(true, now);
                self.act(end);
                if self.ends[end].running() {
                    self.ends[end].stopped = true;
                    self.ends[end].was_stopped = true;
                    let at = self.now + for_ns;
                    self.at(at, What::Tell(end, In::Resume));
                }
            }
            In::Resume => self.machine(end).handle_pause(false, now),
        }
    }

    pub(super) fn act(&mut self, end: usize) {
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
                // The rails are found above, without these addresses.
                Action::Addresses(_) => {}
                Action::Endpoints(endpoints) => {
                    assert_eq!(end, self.connector, "the listening end is told where it listens");
                    assert!(endpoints.len() > self.endpoints[1], "told again, or of an older list");
                    assert!(endpoints.len() <= self.endpoints[0]);
                    self.endpoints[1] = endpoints.len();
                    for id in std::mem::take(&mut self.waiting_dials) {
                        self.dial(id);
                    }
                }
                Action::Fill { buffer, encrypt } => {
                    self.own(end, buffer, Owner::Machine, Owner::Source);
                    self.to_fill.push_back((buffer, encrypt));
                    self.start_producing();
                }
                Action::Encrypt(buffer) => {
                    self.own(end, buffer, Owner::Machine, Owner::Sealer);
                    let slot = &mut self.ends[SENDER].slots[buffer as usize];
                    slot.unread = false;
                    let header = slot.header.as_mut().expect("sealed before");
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
                    for sink in 0..self.sinks.len() as u8 {
                        self.sinks[usize::from(sink)].to_write.push_back(buffer);
                        self.start_writing(sink);
                    }
                }
                Action::Answer(bytes) => {
                    assert_eq!(bytes, self.answers[2].to_le_bytes(), "an answer twice or out of order");
                    self.answers[2] += 1;
                    self.start_producing();
                }
                Action::Commit => {
                    assert!(!self.committed, "published twice");
                    for sink in &self.sinks {
                        assert_eq!(sink.written.len() as u64, self.chunks, "published before all was there");
                        assert_eq!(sink.bytes_written, self.position);
                    }
                    self.committed = true;
                    self.after(5 * MS, What::Tell(RECEIVER, In::Committed));
                    if self.weather != Weather::Calm && self.luck.chance(10) {
                        // End the receiver while it lingers, after its answer was lost with the link.
                        let at = self.now + 5 * MS;
                        self.at(at, What::Outage { path: None, for_ns: SECOND });
                        self.after(2 * SECOND, What::Tell(RECEIVER, In::GiveUp(Cause::Signal(15))));
                    }
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

    pub(super) fn corrupts(&mut self) -> bool {
        let hit = self.corrupt_left > 0 && self.luck.below(1000) < self.corrupt_permille;
        self.corrupt_left -= u32::from(hit);
        self.retries_possible |= hit;
        hit
    }

    pub(super) fn finish_work(&mut self, end: usize, buffer: BufferId, from: Owner, event: In) {
        // The buffer belongs to the machine again once the event is handled. No other owner reads it before.
        self.own(end, buffer, from, Owner::Machine);
        let most = self.work_max;
        self.after(most, What::Tell(end, event));
    }

    pub(super) fn send_chunk(&mut self, id: LaneId, buffer: BufferId) {
        self.own(SENDER, buffer, Owner::Machine, Owner::Lane(id));
        let mut slot = self.ends[SENDER].slots[buffer as usize];
        let header = slot.header.expect("sealed");
        assert!(header.sealed || !self.agreed.seal(path_of(id)), "chunk {} goes in clear by {id:?}", header.sequence);
        if self.lane(id).sides[SENDER].life != Life::Up {
            return self.own(SENDER, buffer, Owner::Lane(id), Owner::Machine);
        }
        self.lane(id).sides[SENDER].held.push_back(buffer);
        if slot.unread && self.luck.chance(10) {
            self.lane(id).sides[SENDER].held.retain(|&held| held != buffer);
            return self.tell(SENDER, In::Unsent(id, buffer));
        }
        if std::mem::take(&mut slot.unread) {
            self.ends[SENDER].slots[buffer as usize].unread = false;
            self.tell(SENDER, In::Tag(buffer, header.tag));
        }
        if self.corrupts() {
            slot.damaged = true;
            match self.luck.below(3) {
                0 => slot.header = None,
                // The sequence of another chunk: one that has been sent, is on its way, or comes later.
                1 => slot.header = Some(ChunkHeader { sequence: self.luck.below(header.sequence + 16), ..header }),
                _ => {}
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
}
