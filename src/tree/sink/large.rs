//! Large files of which more is to come: what their data may be, and when there is no more.

use std::sync::Arc;

use rd_proto::tree::TreeError;

use super::entry::Large;
use super::jobs::{Job, Local};
use super::{Bytes, Refused, SLOTS_MAX, TreeSink};

/// A large file of which more is to come.
pub(super) struct Slot {
    /// None if it is not wanted: its directory or itself has failed, or it changed while it was read.
    pub large: Option<Arc<Large>>,
    pub path: Vec<u8>,
    size: u64,
    received_bytes: u64,
    /// No more than this may come: the size, and once it is closed what was sent.
    data_bytes_max: u64,
    is_closed: bool,
    pub links: usize,
}

impl TreeSink {
    pub(super) fn add_slot(
        &mut self,
        item: u32,
        size: u64,
        large: Option<Arc<Large>>,
        path: Vec<u8>,
    ) -> Result<(), Refused> {
        if self.slots.len() == SLOTS_MAX {
            return Err(Refused::Data("too many large files without their data"));
        }
        let slot = Slot { large, path, size, received_bytes: 0, data_bytes_max: size, is_closed: false, links: 0 };
        self.slots.insert(item, slot);
        Ok(())
    }

    pub(super) fn take_range(&mut self, item: u32, position: u64, chunk: Bytes) -> Result<(), Refused> {
        let length = (*chunk).as_ref().len() as u64;
        let slot = self.account(item, position, length)?;
        // One of nothing could not be read, which its record says when it is closed.
        if length > 0
            && let Some(large) = slot.large.clone()
            && let Some(range) = large.leave(chunk, position)
        {
            self.hand_on(Job::Write(range, large, position));
        }
        self.settle(item);
        Ok(())
    }

    /// Takes a range of a large file whose record has come before, from this host itself.
    ///
    /// # Errors
    ///
    /// As [`TreeSink::push`].
    pub fn copy(&mut self, local: Local) -> Result<(), Refused> {
        self.shared.check()?;
        let range = &local.range;
        let slot = self.account(range.file.item, range.position, range.length as u64)?;
        match slot.large.clone() {
            Some(large) => self.hand_on(Job::Copy(local, large)),
            None => local.source.copied(&local.range, Ok(())),
        }
        Ok(())
    }

    /// Takes note of a range that has come.
    fn account(&mut self, item: u32, position: u64, length: u64) -> Result<&mut Slot, Refused> {
        let slot = self.slots.get_mut(&item).ok_or(Refused::Data("data of a file that is not open"))?;
        slot.received_bytes += length;
        // The sum cannot overflow: it is checked each time, and a chunk is small.
        let is_within = position.checked_add(length).is_some_and(|end| end <= slot.size);
        if !is_within || slot.received_bytes > slot.data_bytes_max {
            return Err(Refused::Data("more data of a file than announced"));
        }
        Ok(slot)
    }

    pub(super) fn close(&mut self, item: u32, data_bytes: u64, is_intact: bool) -> Result<(), Refused> {
        let slot = self.slots.get_mut(&item).ok_or(Refused::Tree(TreeError::Item))?;
        let is_less = data_bytes < slot.received_bytes && !self.shared.is_local;
        if data_bytes > slot.data_bytes_max || is_less {
            return Err(Refused::Data("more data of a file than announced"));
        }
        if self.shared.is_local {
            // Ranges are announced before they are copied; by now all have been, or could not be read.
            slot.received_bytes = data_bytes;
        }
        (slot.is_closed, slot.data_bytes_max) = (true, data_bytes);
        if !is_intact {
            self.shared.mark_failed(&slot.path);
            slot.large = None;
        }
        self.settle(item);
        Ok(())
    }

    /// Releases a large file when no more of it will come.
    fn settle(&mut self, item: u32) {
        let is_done = |slot: &Slot| slot.is_closed && slot.received_bytes == slot.data_bytes_max;
        if !self.slots.get(&item).is_some_and(is_done) {
            return;
        }
        if let Some(large) = self.slots.remove(&item).and_then(|slot| slot.large) {
            large.complete();
            self.hand_on(Job::Settle(large));
        }
    }
}
