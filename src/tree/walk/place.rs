//! Where a walk is: the directories that are open within each other, with their names.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, Weak};

use rustix::fs::{CWD, FileType};

use super::listed::Home;
use super::selected::{Scope, Selected};
use crate::tree::Fault;
use crate::tree::names::Names;

/// Where a walk is.
pub struct Place {
    /// Symbolic links among the roots stand for what they lead to.
    pub follow_roots: bool,
    /// The paths of the roots, as the top's names are sorted.
    pub roots: Vec<CString>,
    /// The top, which holds the roots, and the directories that are open within each other.
    pub levels: Vec<Level>,
    /// What is copied of the only root, if that is not all.
    pub selected: Option<Selected>,
}

/// One directory on the way, or the top.
pub struct Level {
    /// None for the top.
    pub directory: Option<Arc<OwnedFd>>,
    pub names: Names,
    /// How many of them have been passed.
    pub passed: usize,
    /// The number of its record among those of directories; of the top, none.
    pub number: Option<u64>,
    /// Nothing is there at the receiver: files are sent with their contents.
    pub is_fresh: bool,
    /// Not all of its entries have been sent.
    pub is_incomplete: bool,
    /// Which of its entries are copied.
    pub scope: Scope,
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
        let (kind, name) = level.names.current()?;
        let (at, path, follow) = match &level.directory {
            Some(directory) => (directory.as_fd(), name, false),
            None => (CWD, self.roots[level.passed].as_c_str(), self.follow_roots),
        };
        Some(Entry { at, path, name: name.to_bytes(), kind, follow })
    }

    /// What is copied of the directory that has been entered last.
    pub fn scope(&self) -> Scope {
        let (Some(selected), Some(level)) = (&self.selected, self.levels.last()) else { return Scope::All };
        if self.levels.len() == 1 { selected.root() } else { selected.below(&level.scope, level.entered()) }
    }

    /// Whether paths below an entry of the last level are listed, and whether the entry itself is copied for its own sake.
    pub fn lists(&self, name: &[u8]) -> (bool, bool) {
        match (&self.selected, self.levels.last()) {
            (Some(selected), Some(level)) if self.levels.len() > 1 => selected.lists(&level.scope, name),
            _ => (false, true),
        }
    }

    /// Where an entry of the last level will be at the destination, from the top.
    pub fn tree_path(&self, name: &[u8]) -> Vec<u8> {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        above.iter().map(Level::entered).chain([name]).collect::<Vec<_>>().join(&b'/')
    }

    /// The same, from below its root.
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
        let root = levels.first().map(|top| self.roots[top.passed - 1].as_bytes());
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
        Self {
            directory,
            names,
            passed: 0,
            number: None,
            is_fresh: false,
            is_incomplete: false,
            scope: Scope::All,
            home,
        }
    }

    /// Comes to the next entry.
    ///
    /// # Errors
    ///
    /// The names that are left cannot be read.
    pub fn advance(&mut self) -> Result<(), Fault> {
        self.passed += 1;
        self.names.advance()
    }

    /// The name of the directory in it that was entered last.
    fn entered(&self) -> &[u8] {
        self.names.passed()
    }
}
