//! Where a walk is: the directories that are open within each other, with their names.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, Weak};

use rustix::fs::{CWD, FileType};

use super::listed::Home;

/// Where a walk is.
pub struct Place {
    /// Symbolic links among the roots stand for what they lead to.
    pub follow_roots: bool,
    /// The paths of the roots, as the top's names are sorted.
    pub roots: Vec<CString>,
    /// The top, which holds the roots, and the directories that are open within each other.
    pub levels: Vec<Level>,
}

/// One directory on the way, or the top.
pub struct Level {
    /// None for the top.
    pub directory: Option<Arc<OwnedFd>>,
    pub names: Names,
    /// Which of them comes next.
    pub next: usize,
    /// The number of its record among those of directories; of the top, none.
    pub number: Option<u64>,
    /// Nothing is there at the receiver: files are sent with their contents.
    pub is_fresh: bool,
    /// Not all of its entries have been sent.
    pub is_incomplete: bool,
    /// Where files that are listed are found again.
    pub home: RefCell<Weak<Home>>,
}

/// What a directory says of an entry.
#[derive(Clone)]
pub struct Entry<'a> {
    pub at: BorrowedFd<'a>,
    /// To open it with, relative to `at`.
    pub path: &'a CStr,
    /// At the destination.
    pub name: &'a [u8],
    pub kind: FileType,
    /// If it is a link, what it leads to is meant.
    pub follow: bool,
}

impl Place {
    /// The next entry of the last level, if that has more.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let level = self.levels.last().expect("the top is never left");
        let (kind, name) = level.names.entry(level.next)?;
        let (at, path, follow) = match &level.directory {
            Some(directory) => (directory.as_fd(), name, false),
            None => (CWD, self.roots[level.next].as_c_str(), self.follow_roots),
        };
        Some(Entry { at, path, name: name.to_bytes(), kind, follow })
    }

    /// Where an entry of the last level will be at the destination, from the top.
    pub fn tree_path(&self, name: &[u8]) -> Vec<u8> {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        above.iter().map(Level::entered).chain([name]).collect::<Vec<_>>().join(&b'/')
    }

    /// The same, from below its root, as patterns take it.
    pub fn path_below_root(&self, name: &[u8]) -> Vec<u8> {
        let above = self.levels.iter().skip(1).take(self.levels.len().saturating_sub(2));
        above.map(Level::entered).chain([name]).collect::<Vec<_>>().join(&b'/')
    }

    /// Where an entry of the last level is, for messages.
    pub fn source_path(&self, entry: &Entry<'_>) -> OsString {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        self.path_below(above, entry.path.to_bytes())
    }

    /// Where the last level is, for messages; empty for the top.
    pub fn path(&self) -> OsString {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        if above.is_empty() { OsString::new() } else { self.path_below(above, b"") }
    }

    /// Where the directory is that has been entered last, or what it holds under a name, for messages.
    pub fn entered_path(&self, name: &[u8]) -> OsString {
        self.path_below(&self.levels, name)
    }

    fn path_below(&self, levels: &[Level], name: &[u8]) -> OsString {
        let root = levels.first().map(|top| self.roots[top.next - 1].as_bytes());
        let mut path = Vec::new();
        for name in root.into_iter().chain(levels.iter().skip(1).map(Level::entered)).chain([name]) {
            if !path.is_empty() && !path.ends_with(b"/") && !name.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
        }
        OsString::from_vec(path)
    }
}

impl Level {
    /// A directory of which nothing has been sent; the top has none.
    pub fn new(directory: Option<OwnedFd>, names: Names) -> Self {
        let (directory, home) = (directory.map(Arc::new), RefCell::default());
        Self { directory, names, next: 0, number: None, is_fresh: false, is_incomplete: false, home }
    }

    /// The name of the directory in it that was entered last.
    fn entered(&self) -> &[u8] {
        self.names.entry(self.next - 1).map_or(b"", |(_, name)| name.to_bytes())
    }
}

/// The names of one directory, each with what the directory says of its kind; sorted, without an allocation for each.
#[derive(Default)]
pub struct Names {
    /// For each: its kind, its length, the name, a zero.
    bytes: Vec<u8>,
    /// Where each begins.
    order: Vec<u32>,
}

impl Names {
    /// Whether there was room: 4 GiB of names.
    pub fn push(&mut self, kind: FileType, name: &CStr) -> bool {
        let Ok(start) = u32::try_from(self.bytes.len()) else { return false };
        let name = name.to_bytes_with_nul();
        self.order.push(start);
        self.bytes.extend([(kind.as_raw_mode() >> 12) as u8, (name.len() - 1) as u8]);
        self.bytes.extend(name);
        true
    }

    fn name_at(&self, start: u32) -> &[u8] {
        let start = start as usize;
        &self.bytes[start + 2..start + 2 + usize::from(self.bytes[start + 1])]
    }

    /// Sorts the names and takes out those that are there twice, as may be in a directory that changes.
    pub fn sort(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.sort_unstable_by(|one, other| self.name_at(*one).cmp(self.name_at(*other)));
        order.dedup_by(|one, other| self.name_at(*one) == self.name_at(*other));
        self.order = order;
    }

    /// Kind and name of one of them, as they are sorted.
    pub fn entry(&self, index: usize) -> Option<(FileType, &CStr)> {
        let start = *self.order.get(index)? as usize;
        let end = start + 3 + usize::from(self.bytes[start + 1]);
        let name = CStr::from_bytes_with_nul(&self.bytes[start + 2..end]).expect("it was one");
        Some((FileType::from_raw_mode(u32::from(self.bytes[start]) << 12), name))
    }
}
