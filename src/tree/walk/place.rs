//! Where a walk is: the directories that are open within each other, with their names.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, Weak};

use rustix::fs::{AtFlags, CWD, FileType, statat};
use rustix::io::Errno;

use super::held::Held;
use super::listed::Home;
use super::selected::{Scope, Selected, Way};
use crate::tree::Fault;
use crate::tree::ahead::HandedOut;
use crate::tree::names::Names;

/// Where a walk is.
pub struct Place {
    /// Symbolic links among the roots stand for what they lead to.
    pub follow_roots: bool,
    /// So do those that lead to directories.
    pub follow_to_directories: bool,
    /// So may any others.
    pub may_follow: bool,
    /// The paths of the roots, as the top's names are sorted; of one name several where directories are merged.
    pub roots: Vec<Vec<CString>>,
    /// The top, which holds the roots, and the directories that are open within each other.
    pub levels: Vec<Level>,
    /// What is copied of the only root, if that is not all.
    pub selected: Option<Selected>,
}

/// One directory on the way, or the top.
pub struct Level {
    /// None for the top. Several directories of one name are merged: what more than one has is that of the first.
    pub layers: Vec<Layer>,
    pub names: Names,
    /// How many of them have been passed.
    pub passed: usize,
    /// The number of its record among those of directories; of the top, and of what is held, none.
    pub number: Option<u64>,
    /// Its record, until something comes into it.
    pub held: Option<Held>,
    /// Nothing is there at the receiver: files are sent with their contents.
    pub is_fresh: bool,
    /// Not all of its entries have been sent.
    pub is_incomplete: bool,
    /// Another directory of its name, or of one above it, is not walked: what is not found here may be there.
    pub lacks_layer: bool,
    /// Which of its entries are copied.
    pub scope: Scope,
    /// Where files that are listed are found again, for each layer.
    pub homes: RefCell<Vec<Weak<Home>>>,
    /// What is read ahead.
    pub handed_out: RefCell<HandedOut>,
}

/// An open directory.
pub struct Layer {
    pub directory: Arc<OwnedFd>,
    /// Which of the roots of one name it is, or is below.
    pub root: usize,
}

/// What has been entered under one name.
pub struct Entered {
    pub layers: Vec<Layer>,
    /// By a link, for what is listed below that.
    pub is_through: bool,
    /// Some of it could not be.
    pub lacks_layer: bool,
}

/// What a directory says of an entry.
#[derive(Clone)]
pub struct Entry<'a> {
    pub at: BorrowedFd<'a>,
    /// Which layer of the last level it is in; at the top, which of the roots of its name it is.
    pub layer: usize,
    /// To open it with, relative to `at`.
    pub path: &'a CStr,
    /// At the destination.
    pub name: &'a [u8],
    pub kind: FileType,
    /// If it is a link, what it leads to is meant.
    pub follow: bool,
    /// It is, since it stands for a directory in a path that is listed.
    pub way: Option<Way>,
    /// An option leaves it out by what it is, and not by its name: what has that at the destination stays.
    pub is_passed_over: bool,
}

impl Entry<'_> {
    /// Only what is listed below it comes.
    pub fn is_through(&self) -> bool {
        self.way == Some(Way::Through)
    }
}

impl Place {
    /// The next entry of the last level, if that has more. `is_left_out`: what is passed over has no part in the choice among
    /// those of one name; its other argument says whether it is a directory, if that is known.
    pub fn entry(&self, is_left_out: impl Fn(&[u8], Option<bool>) -> bool) -> Option<Entry<'_>> {
        let level = self.levels.last().expect("the top is never left");
        let (kind, name) = level.names.current()?;
        if self.layers(level) == 1 {
            return Some(Entry { kind, ..self.candidate(level, name, 0) });
        }
        let found = (0..self.layers(level)).filter_map(|layer| self.found(level, name, layer));
        let (left_out, found): (Vec<_>, Vec<_>) =
            found.partition(|(entry, is_directory)| is_left_out(entry.name, *is_directory));
        let found = if found.is_empty() { left_out } else { found };
        // A directory comes before what is none, as with rsync.
        let at = found.iter().position(|(_, is_directory)| *is_directory == Some(true)).unwrap_or(0);
        let entry = found.into_iter().nth(at).map(|(entry, _)| entry);
        entry.or_else(|| Some(Entry { kind, ..self.candidate(level, name, 0) }))
    }

    /// The directories that are merged with this one.
    pub fn others<'a>(&'a self, entry: &Entry<'_>) -> impl Iterator<Item = Entry<'a>> {
        let level = self.levels.last().expect("the top is never left");
        let name = level.names.current().map(|(_, name)| name);
        let found = move |layer| name.and_then(|name| self.found(level, name, layer));
        let directories = (entry.layer + 1..self.layers(level))
            .filter_map(found)
            .filter(|(_, is_directory)| *is_directory == Some(true));
        directories.map(|(entry, _)| Entry { follow: entry.follow || entry.kind == FileType::Symlink, ..entry })
    }

    /// How many directories may have the next entry of a level.
    fn layers(&self, level: &Level) -> usize {
        if level.layers.is_empty() { self.roots[level.passed].len() } else { level.layers.len() }
    }

    /// The next entry of a level, if this layer has it.
    fn candidate<'a>(&'a self, level: &'a Level, name: &'a CStr, layer: usize) -> Entry<'a> {
        let (at, path, follow) = match level.layers.get(layer) {
            Some(Layer { directory, .. }) => (directory.as_fd(), name, false),
            None => (CWD, self.roots[level.passed][layer].as_c_str(), self.follow_roots),
        };
        let (name, kind, way) = (name.to_bytes(), FileType::Unknown, None);
        Entry { at, layer, path, name, kind, follow, way, is_passed_over: false }
    }

    /// The same, looked at: `None` if it is not there; and whether it is a directory, or will be taken for one. What cannot be
    /// looked at may be one; a link that leads nowhere is not known to be anything.
    fn found<'a>(&'a self, level: &'a Level, name: &'a CStr, layer: usize) -> Option<(Entry<'a>, Option<bool>)> {
        let entry = self.candidate(level, name, layer);
        let kind = |follow| {
            let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
            statat(entry.at, entry.path, flags).map(|stat| FileType::from_raw_mode(stat.st_mode))
        };
        let own = match kind(entry.follow) {
            Err(Errno::NOENT) => return None,
            Err(_) => return Some((entry, Some(true))),
            Ok(own) => own,
        };
        let led_to = if own == FileType::Symlink && self.may_follow { kind(true) } else { Ok(own) };
        let is_directory = match led_to {
            Ok(FileType::Directory) => Some(own == FileType::Directory || self.follow_to_directories),
            Ok(_) => Some(false),
            Err(_) => None,
        };
        Some((Entry { kind: own, ..entry }, is_directory))
    }

    /// Which of the roots of one name an entry of the last level is, or is below.
    pub fn root_of(&self, entry: &Entry<'_>) -> usize {
        let layers = self.levels.last().map_or(&[][..], |level| &level.layers);
        layers.get(entry.layer).map_or(entry.layer, |layer| layer.root)
    }

    /// What is copied of the directory that has been entered last. `is_itself`: whether one of this name is copied for its own
    /// sake.
    pub fn scope(&self, is_itself: impl FnOnce(&[u8]) -> bool) -> Scope {
        self.levels.last().map_or(Scope::All, |level| self.scope_of(level.entered(), is_itself))
    }

    /// The same of an entry of the last level.
    pub fn scope_of(&self, name: &[u8], is_itself: impl FnOnce(&[u8]) -> bool) -> Scope {
        let (Some(selected), Some(level)) = (&self.selected, self.levels.last()) else { return Scope::All };
        if self.levels.len() == 1 { selected.root() } else { selected.below(&level.scope, name, is_itself(name)) }
    }

    /// Whether paths below an entry of the last level are listed, and whether the entry itself is.
    pub fn lists(&self, name: &[u8]) -> (bool, bool) {
        match (&self.selected, self.levels.last()) {
            (Some(selected), Some(level)) if self.levels.len() > 1 => selected.lists(&level.scope, name),
            _ => (false, true),
        }
    }

    /// Whether the user has listed an entry of the last level.
    pub fn is_listed(&self, name: &[u8]) -> bool {
        self.selected.is_some() && !self.is_watched() && self.levels.len() > 1 && self.lists(name).1
    }

    /// Whether what is listed is what a watch has seen touched.
    pub fn is_watched(&self) -> bool {
        self.selected.as_ref().is_some_and(|selected| selected.is_watched)
    }

    /// Whether what was to be read is not there any more, of which the watch will tell.
    pub fn may_be_gone(&self, fault: &Fault) -> bool {
        self.is_watched() && matches!(fault, Fault::System(Errno::NOENT))
    }

    /// Whether what is in a directory of the last level comes: not where a watch has seen nothing change in it.
    pub fn is_walked(&self, name: &[u8]) -> bool {
        match (&self.selected, self.levels.last()) {
            (Some(selected), Some(level)) if selected.is_watched && self.levels.len() > 1 => {
                selected.wants_contents(&level.scope, name)
            }
            _ => true,
        }
    }

    /// The paths that are listed below an entry of the last level, from there on.
    pub fn listed_below(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let selected = self.selected.as_ref().zip(self.levels.last()).filter(|_| self.levels.len() > 1);
        selected.into_iter().flat_map(move |(selected, level)| selected.paths_below(&level.scope, name))
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
        self.path_below(above, self.root_of(entry), entry.path.to_bytes())
    }

    /// Where a layer of the last level is, for messages; empty for the top.
    pub fn path(&self, layer: usize) -> OsString {
        let (last, above) = self.levels.split_last().expect("the top is never left");
        last.layers.get(layer).map_or_else(OsString::new, |layer| self.path_below(above, layer.root, b""))
    }

    /// Where the directory is that has been entered last, below this one of the roots of its name, or what it holds under a
    /// name, for messages.
    pub fn entered_path(&self, root: usize, name: &[u8]) -> OsString {
        self.path_below(&self.levels, root, name)
    }

    /// How many bytes of the paths below one of the roots of a name are that root's.
    pub fn root_bytes(&self, root: usize) -> usize {
        self.levels.first().map_or(0, |top| self.roots[top.passed - 1][root].count_bytes())
    }

    fn path_below(&self, levels: &[Level], root: usize, name: &[u8]) -> OsString {
        let root = levels.first().map(|top| self.roots[top.passed - 1][root].as_bytes());
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

impl Layer {
    pub fn new(directory: OwnedFd, root: usize) -> Self {
        Self { directory: Arc::new(directory), root }
    }
}

impl Level {
    /// Directories of which nothing has been sent; the top has none.
    pub fn new(layers: Vec<Layer>, names: Names) -> Self {
        Self {
            layers,
            names,
            passed: 0,
            number: None,
            held: None,
            is_fresh: false,
            is_incomplete: false,
            lacks_layer: false,
            scope: Scope::All,
            homes: RefCell::default(),
            handed_out: RefCell::default(),
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
