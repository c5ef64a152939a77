//! Memory of the pool: idle pages go back to the system, and a long line may use a part of the free memory.

use std::path::Path;
use std::time::Duration;

use rd_proto::session::LONG_LINE;

use super::Engine;
use crate::fs::direct::write::available_bytes;
use crate::options::part_of_memory;

/// Number of ticks (about 3 s) in which each buffer is checked once. A buffer that was unused for that long gives its
/// pages back. The system needs about a millisecond per MiB to provide them again, so this does not pay for shorter
/// pauses.
const ROUND_TICKS: u32 = 30;

/// How often to check how much memory is free.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Memory {
    /// Whether the number of buffers may grow, and the user has set no limit.
    is_shared: bool,
    asked: Duration,
    /// The buffer at which the next check begins.
    hand: u32,
}

impl Memory {
    pub(super) fn new(is_shared: bool) -> Self {
        Self { is_shared, asked: Duration::ZERO, hand: 0 }
    }
}

impl Engine {
    /// Does this tick's share of the work.
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

    /// Has some of the buffers give their pages back if they are idle. That concerns free buffers, and buffers that
    /// lanes have posted but do not use, because a lane takes the buffer posted last.
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
