//! Files with several names: which were sent, and under which name first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rd_proto::tree::PATH_BYTES_MAX;

use super::LINKS_BYTES_MAX;
use crate::fs::Identity;

/// What an entry takes beside its path, in bytes: key and value in a table that is half empty after it has grown, and
/// the allocator's share.
const ENTRY_BYTES: usize = 128;

/// The files of which further names are to come.
#[derive(Default)]
pub struct Links {
    first: HashMap<Identity, First>,
    bytes: usize,
}

struct First {
    path: Box<[u8]>,
    /// Names that have not come yet.
    left: u64,
    item: u32,
}

impl Links {
    /// Under which path a file was sent, and its number if it is a large one, otherwise 0.
    pub fn first(&self, inode: Identity) -> Option<(&[u8], u32)> {
        self.first.get(&inode).map(|first| (&*first.path, first.item))
    }

    /// Remembers a file of which `left` names are to come, if there is room for it.
    pub fn insert(&mut self, inode: Identity, path: Vec<u8>, left: impl Into<u64>, item: u32) {
        let bytes = ENTRY_BYTES + path.len();
        if path.len() <= PATH_BYTES_MAX && self.bytes + bytes <= LINKS_BYTES_MAX {
            self.forget(inode);
            self.bytes += bytes;
            self.first.insert(inode, First { path: path.into_boxed_slice(), left: left.into(), item });
        }
    }

    /// The file turned out to be a large one with this number.
    pub fn set_item(&mut self, inode: Identity, item: u32) {
        if let Some(first) = self.first.get_mut(&inode) {
            first.item = item;
        }
    }

    /// One more name has come; with the last the file is forgotten.
    pub fn count(&mut self, inode: Identity) {
        if let Entry::Occupied(mut first) = self.first.entry(inode) {
            first.get_mut().left -= 1;
            if first.get().left == 0 {
                self.bytes -= ENTRY_BYTES + first.remove().path.len();
            }
        }
    }

    /// The file was not sent after all: its next name is to be sent in full.
    pub fn forget(&mut self, inode: Identity) {
        if let Some(first) = self.first.remove(&inode) {
            self.bytes -= ENTRY_BYTES + first.path.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_forgotten_with_its_last_name() {
        let mut links = Links::default();
        links.insert((1, 2), b"d/a".to_vec(), 2_u64, 7);
        assert_eq!(links.first((1, 2)), Some((&b"d/a"[..], 7)));
        links.count((1, 2));
        assert!(links.first((1, 2)).is_some());
        links.count((1, 2));
        assert!(links.first((1, 2)).is_none());
        links.count((1, 2));
        assert_eq!(links.bytes, 0);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut links = Links::default();
        let path = vec![b'p'; PATH_BYTES_MAX];
        for inode in 0.. {
            links.insert((0, inode), path.clone(), 1_u64, 0);
            if links.first((0, inode)).is_none() {
                break;
            }
        }
        assert!(links.bytes <= LINKS_BYTES_MAX && links.bytes > LINKS_BYTES_MAX - 2 * PATH_BYTES_MAX);
        links.forget((0, 0));
        links.insert((1, 0), path, 1_u64, 0);
        assert!(links.first((1, 0)).is_some());
        links.insert((1, 1), vec![b'p'; PATH_BYTES_MAX + 1], 1_u64, 0);
        assert!(links.first((1, 1)).is_none());
    }
}
