//! A table in a file without a name, for data that must be looked up and is more than memory should hold.
//!
//! Open addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, 6.4): one slot for each key,
//! in the order of the keys' hashes, read and written a block at a time. A key keeps its slot when it is removed.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;

use super::{Identity, unlinked_anywhere};

/// Size of a slot in bytes. A slot holds device and inode number, the value's length, and the offset of the value's
/// bytes in the second file. A removed key has [`REMOVED`] in its length. A slot without a key is all zeros.
const SLOT_BYTES: usize = 32;

/// Number of slots read at once.
const BLOCK_SLOTS: u64 = 16;

/// Added to the length in each slot that has a key, so that no such slot is all zeros.
const IS_USED: u64 = 1 << 32;
const REMOVED: u64 = 1 << 33;

/// Number of slots in a new table.
const SLOTS_FIRST: u64 = 1 << 16;

/// Maps device and inode number to a value.
pub(crate) struct Table {
    slots: File,
    values: File,
    values_bytes: u64,
    /// Number of slots, a power of two.
    capacity: u64,
    used: u64,
    hasher: RandomState,
}

struct Slot {
    key: Identity,
    length: u64,
    at: u64,
}

impl Slot {
    fn parse(bytes: &[u8]) -> Self {
        let [device, inode, length, at] =
            [0, 8, 16, 24].map(|start| u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight")));
        Self { key: (device, inode), length, at }
    }

    fn bytes(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let fields = [self.key.0, self.key.1, self.length, self.at];
        bytes.chunks_mut(8).zip(fields).for_each(|(target, field)| target.copy_from_slice(&field.to_le_bytes()));
        bytes
    }
}

impl Table {
    /// Makes an empty table in the temporary directory.
    ///
    /// # Errors
    ///
    /// The error of the system call that failed.
    pub fn new() -> io::Result<Self> {
        let (slots, values) = (unlinked_anywhere()?, unlinked_anywhere()?);
        slots.set_len(SLOTS_FIRST * SLOT_BYTES as u64)?;
        Ok(Self { slots, values, values_bytes: 0, capacity: SLOTS_FIRST, used: 0, hasher: RandomState::new() })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    ///
    /// The error of the read that failed.
    pub fn get(&self, key: Identity) -> io::Result<Option<Vec<u8>>> {
        let (_, slot) = self.find(key)?;
        if slot.length & (IS_USED | REMOVED) != IS_USED {
            return Ok(None);
        }
        let mut value = vec![0; (slot.length & (IS_USED - 1)) as usize];
        self.values.read_exact_at(&mut value, slot.at)?;
        Ok(Some(value))
    }

    /// Sets the value of a key, in place of any earlier value. If it is no longer than that one, it takes no further
    /// room.
    ///
    /// # Errors
    ///
    /// Fails if the files take no more.
    pub fn set(&mut self, key: Identity, value: &[u8]) -> io::Result<()> {
        let (mut place, old) = self.find(key)?;
        let is_new = old.length & IS_USED == 0;
        if is_new && (self.used + 1) * 4 > self.capacity * 3 {
            self.grow()?;
            place = self.find(key)?.0;
        }
        let fits = !is_new && value.len() as u64 <= old.length & (IS_USED - 1);
        let at = if fits { old.at } else { self.values_bytes };
        self.values.write_all_at(value, at)?;
        self.values_bytes = self.values_bytes.max(at + value.len() as u64);
        self.slots.write_all_at(&Slot { key, length: value.len() as u64 | IS_USED, at }.bytes(), place)?;
        self.used += u64::from(is_new);
        Ok(())
    }

    /// Removes the value of a key.
    ///
    /// # Errors
    ///
    /// The error of the read or write that failed.
    pub fn remove(&mut self, key: Identity) -> io::Result<()> {
        let (place, slot) = self.find(key)?;
        if slot.length & IS_USED == 0 {
            return Ok(());
        }
        self.slots.write_all_at(&Slot { length: slot.length | REMOVED, ..slot }.bytes(), place)
    }

    /// Returns the offset and the contents of the slot of a key, or of the free slot that the key would get.
    fn find(&self, key: Identity) -> io::Result<(u64, Slot)> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(key.0);
        hasher.write_u64(key.1);
        let mut index = hasher.finish() & (self.capacity - 1);
        let mut block = [0; BLOCK_SLOTS as usize * SLOT_BYTES];
        loop {
            let count = BLOCK_SLOTS.min(self.capacity - index);
            let bytes = &mut block[..count as usize * SLOT_BYTES];
            self.slots.read_exact_at(bytes, index * SLOT_BYTES as u64)?;
            for (slot, index) in bytes.chunks(SLOT_BYTES).map(Slot::parse).zip(index..) {
                if slot.length == 0 || slot.key == key {
                    return Ok((index * SLOT_BYTES as u64, slot));
                }
            }
            // The search ends, because at least one slot in four is free.
            index = (index + count) & (self.capacity - 1);
        }
    }

    /// Makes room for twice as many keys. Removed keys are dropped.
    fn grow(&mut self) -> io::Result<()> {
        let old = std::mem::replace(&mut self.slots, unlinked_anywhere()?);
        let old_capacity = self.capacity;
        self.capacity *= 2;
        self.used = 0;
        self.slots.set_len(self.capacity * SLOT_BYTES as u64)?;
        let mut block = vec![0; SLOTS_FIRST as usize * SLOT_BYTES / 16];
        for at in (0..old_capacity * SLOT_BYTES as u64).step_by(block.len()) {
            old.read_exact_at(&mut block, at)?;
            for slot in block.chunks(SLOT_BYTES).map(Slot::parse) {
                if slot.length & (IS_USED | REMOVED) == IS_USED {
                    let (place, _) = self.find(slot.key)?;
                    self.slots.write_all_at(&slot.bytes(), place)?;
                    self.used += 1;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The table does what a map in memory does, while it grows several times.
    #[test]
    fn it_holds_what_a_map_holds() {
        let mut table = Table::new().expect("a table");
        let (mut map, mut state) = (HashMap::new(), 1_u64);
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for step in 0..400_000_u64 {
            let key = (random(2), random(150_000));
            match random(4) {
                0 => {
                    table.remove(key).expect("removed");
                    map.remove(&key);
                }
                1 => assert_eq!(table.get(key).expect("read"), map.get(&key).cloned(), "step {step}"),
                _ => {
                    let value = vec![step as u8; random(60) as usize];
                    table.set(key, &value).expect("set");
                    map.insert(key, value);
                }
            }
        }
        assert!(table.capacity >= 4 * SLOTS_FIRST, "it has grown twice");
        for key in (0..2).flat_map(|device| (0..150_000).map(move |inode| (device, inode))) {
            assert_eq!(table.get(key).expect("read"), map.get(&key).cloned());
        }
    }
}
