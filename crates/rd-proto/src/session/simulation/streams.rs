//! The source and the sink.

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
            // As the engine does: by the path at the time when it is sealed.
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

    pub(super) fn start_writing(&mut self) {
        if !self.writing && !self.to_write.is_empty() {
            self.writing = true;
            let stall = self.sink_stalled_until.saturating_sub(self.now);
            let at = self.now + stall + self.luck.below(2 * self.sink_interval);
            self.at(at, What::Deliver);
        }
    }

    pub(super) fn deliver(&mut self) {
        self.writing = false;
        if self.ends[RECEIVER].stopped || !self.ends[RECEIVER].running() {
            return self.at(self.now + 50 * MS, What::Deliver);
        }
        let at = if self.layout != Layout::File { 0 } else { self.luck.below(self.to_write.len() as u64) as usize };
        let Some(buffer) = self.to_write.remove(at) else { return };
        let slot = self.ends[RECEIVER].slots[buffer as usize];
        let header = slot.header.expect("opened before");
        assert!(!slot.damaged, "damaged bytes reach the sink");
        assert!(self.layout == Layout::File || header.sequence == self.written.len() as u64, "out of order");
        assert!(self.written.insert(header.sequence), "chunk {} written twice", header.sequence);
        self.bytes_written += u64::from(header.plain_bytes);
        self.finish_work(RECEIVER, buffer, Owner::Sink, In::Written(buffer));
        self.start_writing();
    }
}
