//! Large files of which more is to come: which data they may get, and when they are complete.

use std::sync::Arc;

use rd_proto::tree::TreeError;

use super::entry::Large;
use super::jobs::{Job, Local};
use super::{Bytes, Refused, SLOTS_MAX, TreeSink};
use crate::tree::proof::Passing;

/// A large file of which more is to come.
pub(super) struct Slot {
    /// `None` if the file is not wanted: it or its directory has failed, or it changed while it was read.
    pub large: Option<Arc<Large>>,
    pub path: Vec<u8>,
    size: u64,
    received_bytes: u64,
    /// Maximum number of bytes that may come: the file's size, or once it is closed, the number of bytes sent.
    data_bytes_max: u64,
    is_closed: bool,
    pub links: usize,
    /// Where the contents go of a file that cannot be made, if they are compared.
    unkept: Option<Passing>,
}

impl TreeSink {
    pub(super) fn add_slot(
        &mut self,
        item: u32,
        size: u64,
        large: Result<Arc<Large>, Option<Passing>>,
        path: Vec<u8>,
    ) -> Result<(), Refused> {
        if self.slots.len() == SLOTS_MAX {
            return Err(Refused::Data("too many large files without their data"));
        }
        let (large, unkept) = large.map_or_else(|unkept| (None, unkept), |large| (Some(large), None));
        let (received_bytes, is_closed, links) = Default::default();
        let slot = Slot { large, path, size, received_bytes, data_bytes_max: size, is_closed, links, unkept };
        self.slots.insert(item, slot);
        Ok(())
    }

    pub(super) fn take_range(&mut self, item: u32, position: u64, chunk: Bytes) -> Result<(), Refused> {
        let length = (*chunk).as_ref().len() as u64;
        let slot = self.account(item, position, length)?;
        if let Some(unkept) = &slot.unkept {
            unkept.add((*chunk).as_ref(), position);
        }
        // An empty range could not be read at the sender. The record that closes the file tells this.
        if length > 0
            && let Some(large) = slot.large.clone()
            && let Some(range) = large.leave(chunk, position)
        {
            self.hand_on(Job::Write(range, large, position));
        }
        self.settle(item);
        Ok(())
    }

    /// Takes a range of a large file from this host itself. The file's record has arrived before.
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

    /// Counts a range that has arrived, and checks that it is allowed.
    fn account(&mut self, item: u32, position: u64, length: u64) -> Result<&mut Slot, Refused> {
        let slot = self.slots.get_mut(&item).ok_or(Refused::Data("data of a file that is not open"))?;
        slot.received_bytes += length;
        // The sum cannot overflow, because it is checked each time and a chunk is small.
        let is_within = position.checked_add(length).is_some_and(|end| end <= slot.size);
        if !is_within || slot.received_bytes > slot.data_bytes_max {
            return Err(Refused::Data("more data for a file than announced"));
        }
        Ok(slot)
    }

    pub(super) fn close(&mut self, item: u32, data_bytes: u64, is_intact: bool) -> Result<(), Refused> {
        let slot = self.slots.get_mut(&item).ok_or(Refused::Tree(TreeError::Item))?;
        let is_less = data_bytes < slot.received_bytes && !self.shared.is_local;
        if data_bytes > slot.data_bytes_max || is_less {
            return Err(Refused::Data("more data for a file than announced"));
        }
        if self.shared.is_local {
            // Ranges are announced before they are copied. By now all have been copied, or could not be read.
            slot.received_bytes = data_bytes;
        }
        (slot.is_closed, slot.data_bytes_max) = (true, data_bytes);
        if !is_intact {
            self.shared.mark_failed(&slot.path);
            (slot.large, slot.unkept) = (None, None);
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
        let Some(Slot { large, unkept, data_bytes_max, .. }) = self.slots.remove(&item) else { return };
        if let Some(unkept) = unkept {
            self.shared.sum_large(&unkept, data_bytes_max);
        }
        if let Some(large) = large {
            large.complete();
            self.hand_on(Job::Settle(large));
        }
    }
}
