//! The simulated source and sinks.

use super::*;

impl Simulation {
    pub(super) fn start_producing(&mut self) {
        if !self.producing && !self.to_fill.is_empty() {
            self.producing = true;
            let pause = if self.luck.below(200) == 0 { 2 * SECOND } else { 0 };
            let most = 2 * self.interval + pause;
            self.after(most, What::Produce);
        }
    }

    pub(super) fn produce(&mut self) {
        self.producing = false;
        if self.ends[SENDER].stopped || !self.ends[SENDER].running() {
            return self.at(self.now + 50 * MS, What::Produce);
        }
        if self.awaits_answers() {
            return;
        }
        let Some((buffer, encrypt)) = self.to_fill.pop_front() else { return };
        if self.produced == self.chunks {
            self.finish_work(SENDER, buffer, Owner::Source, In::Unfilled(buffer));
        } else {
            let sequence = self.produced;
            self.produced += 1;
            let is_final = self.produced == self.chunks;
            let bytes = if is_final { self.luck.between(0, 4096) } else { self.luck.between(1, 4096) } as u32;
            let item = if self.layout == Layout::Tree && !is_final { self.luck.below(3) as u32 } else { 0 };
            let position = match (self.layout, item) {
                (Layout::Tree, 0) => self.stream_position,
                (Layout::Tree, _) => self.luck.below(1 << 40),
                _ => self.position,
            };
            self.stream_position += if item == 0 { u64::from(bytes) } else { 0 };
            // As in the engine, the path at the time of sealing decides.
            let path = self.sender.core_ref().path();
            let sealed = if self.luck.chance(50) { path.is_some_and(|path| self.agreed.seal(path)) } else { encrypt };
            self.ends[SENDER].slots[buffer as usize] = Slot {
                header: Some(ChunkHeader {
                    is_final,
                    sealed,
                    wire_bytes: bytes,
                    plain_bytes: bytes,
                    item,
                    sequence,
                    position,
                    tag: tag_of(sequence, sealed),
                    ..ChunkHeader::default()
                }),
                damaged: false,
                unread: self.luck.below(100) < self.planned_percent,
            };
            self.position += u64::from(bytes);
            let unread = self.ends[SENDER].slots[buffer as usize].unread;
            let told = if unread { In::Planned(buffer) } else { In::Sealed(buffer) };
            self.finish_work(SENDER, buffer, Owner::Source, told);
        }
        self.start_producing();
    }

    /// Returns whether the source of a tree must wait: it continues only once it has the answers to earlier chunks.
    fn awaits_answers(&self) -> bool {
        let told = self.produced.saturating_sub(self.answers_ahead);
        let is_waiting = self.layout == Layout::Tree && self.produced < self.chunks;
        is_waiting && self.answers[2] < (0..told).map(answers_to).sum()
    }

    pub(super) fn start_writing(&mut self, number: u8) {
        let stall = self.sink_stalled_until.saturating_sub(self.now);
        let sink = &mut self.sinks[usize::from(number)];
        if !sink.writing && !sink.to_write.is_empty() {
            sink.writing = true;
            let at = self.now + stall + self.luck.below(2 * sink.interval);
            self.at(at, What::Deliver(number));
        }
    }

    pub(super) fn deliver(&mut self, number: u8) {
        let sink = &mut self.sinks[usize::from(number)];
        sink.writing = false;
        if self.ends[RECEIVER].stopped || !self.ends[RECEIVER].running() {
            return self.at(self.now + 50 * MS, What::Deliver(number));
        }
        let at = if self.layout != Layout::File { 0 } else { self.luck.below(sink.to_write.len() as u64) as usize };
        let Some(buffer) = sink.to_write.remove(at) else { return };
        let slot = self.ends[RECEIVER].slots[buffer as usize];
        let header = slot.header.expect("opened before");
        assert!(!slot.damaged, "damaged bytes reach the sink");
        assert_eq!(self.ends[RECEIVER].owners[buffer as usize], Owner::Sink, "free before every sink has it");
        assert!(self.layout == Layout::File || header.sequence == sink.written.len() as u64, "out of order");
        assert!(sink.written.insert(header.sequence), "chunk {} written twice", header.sequence);
        sink.bytes_written += u64::from(header.plain_bytes);
        if number == 0 && self.layout == Layout::Tree {
            self.tell(RECEIVER, In::Answers(answers_to(header.sequence)));
        }
        let told = In::Written(buffer, number);
        if self.sinks.iter().any(|sink| sink.to_write.contains(&buffer)) {
            self.after(self.work_max, What::Tell(RECEIVER, told));
        } else {
            self.finish_work(RECEIVER, buffer, Owner::Sink, told);
        }
        self.start_writing(number);
    }
}
