//! Memory of the pool: what is idle goes back to the system, and what a long line would have is a part of what is free.

use std::path::Path;
use std::time::Duration;

use rd_proto::session::LONG_LINE;

use super::Engine;
use crate::fs::direct::write::available_bytes;
use crate::options::part_of_memory;

/// Ticks in which each buffer is looked at once: about 3 s. One that was not used for as long gives its pages back. To have
/// them again takes the system about a millisecond for each MiB, so a pause that is shorter is not worth it.
const ROUND_TICKS: u32 = 30;

/// How often it is asked how much memory is free.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Memory {
    /// The number of buffers may grow, and nobody has said how far.
    is_shared: bool,
    asked: Duration,
    /// The buffer from which on they are looked at next.
    hand: u32,
}

impl Memory {
    pub(super) fn new(is_shared: bool) -> Self {
        Self { is_shared, asked: Duration::ZERO, hand: 0 }
    }
}

impl Engine {
    /// Called with each tick.
    pub(super) fn spare_memory(&mut self, now: Duration) {
        self.give_back_idle();
        let is_long = self.half.machine_ref().core_ref().round_trip().is_some_and(|round_trip| round_trip >= LONG_LINE);
        if self.memory.is_shared && is_long && now - self.memory.asked >= ASK_EVERY {
            self.memory.asked = now;
            if let Some(bytes) = available_bytes(Path::new("/")) {
                let buffers = part_of_memory(bytes) / self.chunk_bytes as u64;
                self.half.machine().handle_room(u32::try_from(buffers).unwrap_or(u32::MAX));
            }
        }
    }

    /// Has a part of the buffers give their pages back if they are idle: those that are free, and those that lanes have
    /// posted and do not use, as they take the one that was posted last.
    fn give_back_idle(&mut self) {
        let count = self.buffers.len() as u32;
        let buffers = self.memory.hand..count.min(self.memory.hand + count.div_ceil(ROUND_TICKS));
        for id in buffers.clone() {
            if self.half.machine_ref().is_free(id)
                && let Some(buffer) = &mut self.buffers[id as usize]
            {
                buffer.give_back_if_idle();
            }
        }
        for live in self.lanes.values_mut() {
            live.lane.give_back_idle(&buffers);
        }
        self.memory.hand = if buffers.end == count { 0 } else { buffers.end };
    }
}
