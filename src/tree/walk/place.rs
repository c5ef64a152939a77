//! The position of a walk: the directories that are open within each other, with their names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, Weak};

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use super::held::Held;
use super::listed::Home;
use super::selected::{Scope, Selected, Way};
use crate::fs::{here, is_directory};
use crate::tree::Fault;
use crate::tree::ahead::HandedOut;
use crate::tree::names::Names;

/// The position of a walk.
pub struct Place {
    /// Whether symbolic links among the roots stand for what they lead to.
    pub follow_roots: bool,
    /// Whether links that lead to directories do as well.
    pub follow_to_directories: bool,
    /// Whether any other links may as well.
    pub may_follow: bool,
    /// Paths of the roots, in the order of the top's names. One name has several paths if directories are merged.
    pub roots: Vec<Vec<CString>>,
    /// The top, which holds the roots, followed by the directories that are open within each other.
    pub levels: Vec<Level>,
    /// The part of the only root that is copied, if not all of it is.
    pub selected: Option<Selected>,
}

/// One open directory on the way, or the top.
#[derive(Default)]
pub struct Level {
    /// Empty for the top. Directories of one name are merged; an entry that several of them have is that of the first.
    pub layers: Vec<Layer>,
    pub names: Names,
    /// Number of names that have been passed.
    pub passed: usize,
    /// Number of its record among those of directories; `None` for the top, and while its record is held.
    pub number: Option<u64>,
    /// The directory's record, until something comes into the directory.
    pub held: Option<Held>,
    /// Whether the receiver has nothing there, so that files are sent with their contents.
    pub is_fresh: bool,
    /// Whether some of its entries have not been sent.
    pub is_incomplete: bool,
    /// Whether another directory of its name, or of a name above, is not walked. An entry that is missing here may be
    /// there.
    pub lacks_layer: bool,
    /// Which entries of the directory are copied.
    pub scope: Scope,
    /// For each layer, where listed files are found again.
    pub homes: RefCell<Vec<Weak<Home>>>,
    /// What has been handed out for reading ahead.
    pub handed_out: RefCell<HandedOut>,
}

/// An open directory.
pub struct Layer {
    pub directory: Arc<OwnedFd>,
    /// Which of the roots of one name the directory is, or is below.
    pub root: usize,
    /// Marks of unfinished entries to which the walk comes next, and whether each has its entry beside it.
    pub marks: RefCell<BTreeMap<Vec<u8>, bool>>,
}

/// The directories entered under one name.
pub struct Entered {
    pub layers: Vec<Layer>,
    /// Whether they were entered through a link, for what is listed below the link.
    pub is_through: bool,
    /// Whether some of the directories could not be entered.
    pub lacks_layer: bool,
}

/// What a directory says about an entry.
#[derive(Clone)]
pub struct Entry<'a> {
    pub at: BorrowedFd<'a>,
    /// Index of the entry's layer in the last level. At the top, index among the roots of its name.
    pub layer: usize,
    /// Path to open the entry with, relative to `at`.
    pub path: &'a CStr,
    /// Name at the destination.
    pub name: &'a [u8],
    pub kind: FileType,
    /// Whether the entry, if it is a link, stands for what it leads to.
    pub follow: bool,
    /// Set if the link is followed because it stands for a directory in a listed path.
    pub way: Option<Way>,
    /// Whether an option leaves the entry out by its kind, not by its name, or the entry is the cache of digests. Then
    /// what has its name at the destination stays.
    pub is_passed_over: bool,
}

impl Entry<'_> {
    /// Whether only what is listed below the entry is copied.
    pub fn is_through(&self) -> bool {
        self.way == Some(Way::Through)
    }

    /// Whether the entry is a directory, or a link that leads to one.
    pub fn leads_to_directory(&self) -> bool {
        statat(self.at, self.path, AtFlags::empty()).is_ok_and(|stat| is_directory(&stat))
    }
}

impl Place {
    /// Returns the next entry of the last level, if there is one. If several layers have the name, an entry for which
    /// `is_left_out` holds gives way to others. The second argument of `is_left_out` says whether the entry is a
    /// directory, if that is known.
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
        // As with rsync, a directory takes precedence over an entry that is not one.
        let at = found.iter().position(|(_, is_directory)| *is_directory == Some(true)).unwrap_or(0);
        let entry = found.into_iter().nth(at).map(|(entry, _)| entry);
        entry.or_else(|| Some(Entry { kind, ..self.candidate(level, name, 0) }))
    }

    /// Returns the directories that are merged with this one.
    pub fn others<'a>(&'a self, entry: &Entry<'_>) -> impl Iterator<Item = Entry<'a>> {
        let level = self.levels.last().expect("the top is never left");
        let name = level.names.current().map(|(_, name)| name);
        let found = move |layer| name.and_then(|name| self.found(level, name, layer));
        let directories = (entry.layer + 1..self.layers(level))
            .filter_map(found)
            .filter(|(_, is_directory)| *is_directory == Some(true));
        directories.map(|(entry, _)| Entry { follow: entry.follow || entry.kind == FileType::Symlink, ..entry })
    }

    /// Returns the number of directories that may have the next entry of a level.
    fn layers(&self, level: &Level) -> usize {
        if level.layers.is_empty() { self.roots[level.passed].len() } else { level.layers.len() }
    }

    /// Returns the next entry of a level, as it would be in this layer.
    fn candidate<'a>(&'a self, level: &'a Level, name: &'a CStr, layer: usize) -> Entry<'a> {
        let (at, path, follow) = match level.layers.get(layer) {
            Some(Layer { directory, .. }) => (directory.as_fd(), name, false),
            None => (here(), self.roots[level.passed][layer].as_c_str(), self.follow_roots),
        };
        let (name, kind, way) = (name.to_bytes(), FileType::Unknown, None);
        Entry { at, layer, path, name, kind, follow, way, is_passed_over: false }
    }

    /// Like [`Self::candidate`], but examines the entry: `None` if this layer does not have it. Returns also whether
    /// the entry is, or counts as, a directory. An entry that cannot be examined may be a directory. A link that leads
    /// nowhere is not known to be anything.
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

    /// Returns which of the roots of one name an entry of the last level is, or is below.
    pub fn root_of(&self, entry: &Entry<'_>) -> usize {
        let layers = self.levels.last().map_or(&[][..], |level| &level.layers);
        layers.get(entry.layer).map_or(entry.layer, |layer| layer.root)
    }

    /// Returns what is copied of the directory entered last. `is_itself`: whether a directory of this name is copied
    /// for its own sake.
    pub fn scope(&self, is_itself: impl FnOnce(&[u8]) -> bool) -> Scope {
        self.levels.last().map_or(Scope::All, |level| self.scope_of(level.entered(), is_itself))
    }

    /// Returns the same for an entry of the last level.
    pub fn scope_of(&self, name: &[u8], is_itself: impl FnOnce(&[u8]) -> bool) -> Scope {
        let (Some(selected), Some(level)) = (&self.selected, self.levels.last()) else { return Scope::All };
        if self.levels.len() == 1 { selected.root() } else { selected.below(&level.scope, name, is_itself(name)) }
    }

    /// Returns whether paths below an entry of the last level are listed, and whether the entry itself is copied.
    pub fn lists(&self, name: &[u8]) -> (bool, bool) {
        match (&self.selected, self.levels.last()) {
            (Some(selected), Some(level)) if self.levels.len() > 1 => selected.lists(&level.scope, name),
            _ => (false, true),
        }
    }

    /// Whether an entry of the last level is itself in the user's list, and not only a directory that it is in.
    pub fn is_named(&self, name: &[u8]) -> bool {
        let selected = self.selected.as_ref().zip(self.levels.last()).filter(|(selected, _)| !selected.is_watched);
        selected.is_some_and(|(selected, level)| selected.are_listed(&level.scope, name).1)
    }

    /// Whether the user has listed an entry of the last level.
    pub fn is_listed(&self, name: &[u8]) -> bool {
        self.selected.is_some() && !self.is_watched() && self.levels.len() > 1 && self.lists(name).1
    }

    /// Returns whether the user has listed paths below the directory entered last, and whether the directory itself.
    pub fn entered_is_listed(&self) -> (bool, bool) {
        let selected = self.selected.as_ref().zip(self.levels.last());
        let selected = selected.filter(|(selected, _)| self.levels.len() > 1 && !selected.is_watched);
        selected.map_or((false, false), |(selected, level)| selected.are_listed(&level.scope, level.entered()))
    }

    /// Whether the listed paths come from a watch that has seen changes there.
    pub fn is_watched(&self) -> bool {
        self.selected.as_ref().is_some_and(|selected| selected.is_watched)
    }

    /// Whether an entry of the last level may disappear after its directory was read. What the user has named has to
    /// exist, and another of several merged directories may have an entry of the same name.
    pub fn may_vanish(&self, name: &[u8]) -> bool {
        let level = self.levels.last().expect("the top is never left");
        let is_unnamed = |selected: &Selected| selected.are_listed(&level.scope, name) == (false, false);
        level.layers.len() == 1 && self.selected.as_ref().is_none_or(is_unnamed)
    }

    /// Whether the fault only means that an entry has disappeared, which it may if `may_vanish`, or if a watch reports
    /// it. What an automounter cannot mount, and a link that leads nowhere, are still there.
    pub fn has_vanished(&self, entry: &Entry<'_>, may_vanish: bool, fault: &Fault) -> bool {
        let is_gone = || statat(entry.at, entry.path, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT);
        matches!(fault, Fault::System(Errno::NOENT)) && (self.is_watched() || may_vanish && is_gone())
    }

    /// Whether the contents of a directory of the last level are copied. They are not if a watch has seen no change in
    /// it.
    pub fn is_walked(&self, name: &[u8]) -> bool {
        match (&self.selected, self.levels.last()) {
            (Some(selected), Some(level)) if selected.is_watched && self.levels.len() > 1 => {
                selected.wants_contents(&level.scope, name)
            }
            _ => true,
        }
    }

    /// Returns the paths listed below an entry of the last level, relative to the entry.
    pub fn listed_below(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let selected = self.selected.as_ref().zip(self.levels.last()).filter(|_| self.levels.len() > 1);
        selected.into_iter().flat_map(move |(selected, level)| selected.paths_below(&level.scope, name))
    }

    /// Returns the path of an entry of the last level at the destination, from the top.
    pub fn tree_path(&self, name: &[u8]) -> Vec<u8> {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        above.iter().map(Level::entered).chain([name]).collect::<Vec<_>>().join(&b'/')
    }

    /// Returns the same path, from below its root.
    pub fn path_below_root(&self, name: &[u8]) -> Vec<u8> {
        let above = self.levels.iter().skip(1).take(self.levels.len().saturating_sub(2));
        above.map(Level::entered).chain([name]).collect::<Vec<_>>().join(&b'/')
    }

    /// Whether the last level is below a root that was given with a slash at its end.
    pub fn is_below_slash(&self) -> bool {
        let roots = self.levels.first().filter(|_| self.levels.len() > 1).map(|top| &self.roots[top.passed - 1]);
        roots.is_some_and(|roots| roots.iter().all(|root| root.as_bytes().ends_with(b"/")))
    }

    /// Returns the path of an entry of the last level at the source, for messages.
    pub fn source_path(&self, entry: &Entry<'_>) -> OsString {
        let (_, above) = self.levels.split_last().expect("the top is never left");
        self.path_below(above, self.root_of(entry), entry.path.to_bytes())
    }

    /// Returns the path of a layer of the last level, for messages; empty for the top.
    pub fn path(&self, layer: usize) -> OsString {
        let (last, above) = self.levels.split_last().expect("the top is never left");
        last.layers.get(layer).map_or_else(OsString::new, |layer| self.path_below(above, layer.root, b""))
    }

    /// Returns the path of `name` in the directory entered last, or of the directory itself if `name` is empty, for
    /// messages. `root` selects one of the roots of its name.
    pub fn entered_path(&self, root: usize, name: &[u8]) -> OsString {
        self.path_below(&self.levels, root, name)
    }

    /// Returns how many bytes of the paths below one of the roots of a name belong to that root.
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
        Self { directory: Arc::new(directory), root, marks: RefCell::default() }
    }
}

impl Level {
    /// Goes on to the next entry.
    ///
    /// # Errors
    ///
    /// Fails if the remaining names cannot be read.
    pub fn advance(&mut self) -> Result<(), Fault> {
        self.passed += 1;
        self.names.advance()
    }

    /// Returns the name of the directory in this level that was entered last.
    fn entered(&self) -> &[u8] {
        self.names.passed()
    }
}
