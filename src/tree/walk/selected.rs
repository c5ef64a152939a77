//! Listed paths below the only root, to which the copy is limited: `--files-from`, `--relative`.
//!
//! Directories on the way to a path are sent as well. A listed directory is walked if the copy is recursive. Otherwise
//! its entries are copied if its path ends in a slash.

use std::cmp::Ordering;
use std::ffi::{CString, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::IoFact;
use rd_proto::tree::NAME_BYTES_MAX;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use super::Recorder;
use super::place::{Entry, Layer, Level, Place};
use crate::fs::{io_fact, plain_fact};
use crate::tree::Fault;
use crate::tree::names::Names;
use crate::tree::root::Only;

/// Listed paths, in the order of a walk.
pub struct Selected {
    paths: Vec<Selection>,
    is_recursive: bool,
    /// Whether the paths are those where a watch has seen changes, instead of paths from the user.
    pub is_watched: bool,
}

struct Selection {
    path: Vec<u8>,
    /// Whether the path ends in a slash.
    wants_contents: bool,
}

/// Which entries of a directory are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    All,
    /// The entries with the paths of this range, whose names begin at this byte.
    Listed(Range<usize>, usize),
    /// All entries, but only listed ones of what is in subdirectories.
    Flat(Range<usize>, usize),
    /// All entries, and all of what is in subdirectories. Listed ones among them have to exist.
    Whole(Range<usize>, usize),
}

impl Scope {
    /// Returns the range of listed paths, and where their names begin.
    fn listed(&self) -> Option<(&Range<usize>, usize)> {
        match self {
            Self::All => None,
            Self::Listed(range, start) | Self::Flat(range, start) | Self::Whole(range, start) => Some((range, *start)),
        }
    }

    /// Whether entries that are not listed are copied as well.
    fn is_of_all(&self) -> bool {
        !matches!(self, Self::Listed(..))
    }
}

/// Why a link that stands for a directory is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// For what is listed below it.
    Through,
    /// For everything in the directory.
    Itself,
}

fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let names = |path| <[u8]>::split(path, |&byte| byte == b'/');
    names(one).cmp(names(other))
}

impl Selected {
    /// # Errors
    ///
    /// Fails if a path leads out of the root, or is not valid.
    pub fn new(only: &Only) -> Result<Self, IoFact> {
        let mut paths = Vec::with_capacity(only.paths.len());
        for path in &only.paths {
            let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
            let names: Vec<_> = names.collect();
            let is_bad = |name: &&[u8]| *name == b".." || name.len() > NAME_BYTES_MAX || name.contains(&0);
            if names.iter().any(is_bad) {
                return Err(plain_fact(OsStr::from_bytes(path), "leads out of SRC or contains an invalid name"));
            }
            let wants_contents = names.is_empty() || path.ends_with(b"/") || path.ends_with(b"/.");
            paths.push(Selection { path: names.join(&b'/'), wants_contents });
        }
        paths.sort_by(|one, other| compare(&one.path, &other.path).then(other.wants_contents.cmp(&one.wants_contents)));
        paths.dedup_by(|one, other| one.path == other.path);
        Ok(Self { paths, is_recursive: only.recursive, is_watched: only.is_watched })
    }

    /// Returns what is copied of the root.
    pub fn root(&self) -> Scope {
        match self.paths.first() {
            Some(first) if first.path.is_empty() && self.is_recursive => Scope::Whole(1..self.paths.len(), 0),
            Some(first) if first.path.is_empty() => Scope::Flat(1..self.paths.len(), 0),
            _ => Scope::Listed(0..self.paths.len(), 0),
        }
    }

    /// Returns the part of these paths that is the entry of this name, or lies below it.
    fn part(&self, range: &Range<usize>, start: usize, name: &[u8]) -> Range<usize> {
        let first = |selection: &Selection| -> Ordering {
            let rest = &selection.path[start..];
            rest.split(|&byte| byte == b'/').next().unwrap_or_default().cmp(name)
        };
        let paths = &self.paths[range.clone()];
        let begin = paths.partition_point(|selection| first(selection) == Ordering::Less);
        let end = paths.partition_point(|selection| first(selection) != Ordering::Greater);
        range.start + begin..range.start + end
    }

    /// Returns whether paths below an entry of this name are listed, and whether the entry itself is.
    pub fn are_listed(&self, scope: &Scope, name: &[u8]) -> (bool, bool) {
        let Some((range, start)) = scope.listed() else { return (false, false) };
        let part = self.part(range, start, name);
        let is_itself = self.paths[part.clone()].first().is_some_and(|first| first.path.len() == start + name.len());
        (part.len() > usize::from(is_itself), is_itself)
    }

    /// Returns whether paths below an entry of this name are listed, and whether the entry itself is copied.
    pub fn lists(&self, scope: &Scope, name: &[u8]) -> (bool, bool) {
        let (is_on_the_way, is_itself) = self.are_listed(scope, name);
        (is_on_the_way, is_itself || scope.is_of_all())
    }

    /// Whether an entry of this name is listed with a slash at its end.
    pub fn wants_contents(&self, scope: &Scope, name: &[u8]) -> bool {
        let Some((range, start)) = scope.listed() else { return false };
        let first = self.paths[self.part(range, start, name)].first();
        first.is_some_and(|first| first.wants_contents && first.path.len() == start + name.len())
    }

    /// Returns the paths listed below an entry of this name, relative to the entry.
    pub fn paths_below(&self, scope: &Scope, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let (part, below) = match scope.listed() {
            Some((range, start)) => (self.part(range, start, name), start + name.len() + 1),
            None => (0..0, 0),
        };
        self.paths[part].iter().filter_map(move |selection| selection.path.get(below..))
    }

    /// Returns what is copied of a directory of this name. `is_itself`: the directory is copied for its own sake.
    pub fn below(&self, scope: &Scope, name: &[u8], is_itself: bool) -> Scope {
        let Some((range, start)) = scope.listed() else { return Scope::All };
        let mut part = self.part(range, start, name);
        let below = start + name.len() + 1;
        let itself = self.paths[part.clone()].first().filter(|first| first.path.len() < below);
        part.start += usize::from(itself.is_some());
        match itself.filter(|_| is_itself) {
            _ if is_itself && matches!(scope, Scope::Whole(..)) => Scope::Whole(part, below),
            Some(_) if self.is_recursive => Scope::Whole(part, below),
            Some(itself) if itself.wants_contents => Scope::Flat(part, below),
            _ => Scope::Listed(part, below),
        }
    }

    /// Returns the listed paths of a directory whose first name `is_missing`, relative to the directory.
    fn missing<'a>(&'a self, scope: &Scope, is_missing: impl Fn(&[u8]) -> bool + 'a) -> impl Iterator<Item = &'a [u8]> {
        let (range, start) = scope.listed().map_or((0..0, 0), |(range, start)| (range.clone(), start));
        let mut last: Option<(&[u8], bool)> = None;
        self.paths[range].iter().map(move |selection| &selection.path[start..]).filter(move |path| {
            let name = path.split(|&byte| byte == b'/').next().unwrap_or_default();
            match last {
                Some((known, is_it)) if known == name => is_it,
                _ => last.insert((name, is_missing(name))).1,
            }
        })
    }

    /// Returns the names in a directory of which only these paths are copied.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for the names.
    pub fn names(&self, range: &Range<usize>, start: usize) -> Result<Names, Fault> {
        let mut names = Names::default();
        let mut last: &[u8] = b"";
        for selection in &self.paths[range.clone()] {
            let name = selection.path[start..].split(|&byte| byte == b'/').next().unwrap_or_default();
            if name != last {
                names.push(FileType::Unknown, &CString::new(name).map_err(|_| Errno::INVAL)?)?;
                last = name;
            }
        }
        names.sort()?;
        Ok(names)
    }
}

impl Recorder {
    /// Returns whether paths below an entry of the last level are listed, and whether the entry is copied for its own
    /// sake, which it is not if a pattern excludes it. A directory that only leads to listed paths is not subject to
    /// patterns, unless the paths come from a watch.
    pub(super) fn lists(&self, place: &Place, name: &[u8], kind: FileType) -> (bool, bool) {
        let (is_on_the_way, is_itself) = place.lists(name);
        let is_itself = is_itself && !self.is_left_out(place, name, kind);
        (is_on_the_way && (is_itself || !place.is_watched()), is_itself)
    }

    /// Returns why a symbolic link stands for the directory that it leads to: paths below the link are listed, or the
    /// link itself is, with a slash at its end. `None` in all other cases, as with rsync: the rest of the directory is
    /// not copied.
    pub(super) fn way_by_link(&mut self, place: &Place, entry: &Entry<'_>) -> Option<Way> {
        let (selected, level) = place.selected.as_ref().zip(place.levels.last()).filter(|_| place.levels.len() > 1)?;
        // The link has replaced the directory that was watched.
        if selected.is_watched {
            return None;
        }
        let (is_on_the_way, is_itself) = self.lists(place, entry.name, FileType::Directory);
        if is_itself && selected.wants_contents(&level.scope, entry.name) {
            return entry.leads_to_directory().then_some(Way::Itself);
        }
        (is_on_the_way && self.leads_on(place, entry)).then_some(Way::Through)
    }

    /// Whether a directory that only leads to listed paths leads to any of them. As with rsync, it is not copied for
    /// paths that are missing, which are reported, or that a pattern excludes.
    pub(super) fn leads_on(&mut self, place: &Place, entry: &Entry<'_>) -> bool {
        let flags = if self.options.copy_links { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let mut missing = Vec::new();
        for below in place.listed_below(entry.name) {
            let stat = CString::new([entry.path.to_bytes(), b"/", below].concat()).map_err(|_| Errno::INVAL);
            match stat.and_then(|path| statat(entry.at, &path, flags)) {
                Err(error @ (Errno::NOENT | Errno::NOTDIR)) => {
                    let path = [place.source_path(entry).as_bytes(), b"/", below].concat();
                    missing.push(io_fact(OsStr::from_bytes(&path), error));
                }
                // The walk reports other errors when it reaches the path.
                Err(_) => return true,
                Ok(stat) => {
                    let path = [entry.name, b"/", below].concat();
                    if !self.is_left_out(place, &path, FileType::from_raw_mode(stat.st_mode)) {
                        return true;
                    }
                }
            }
        }
        missing.into_iter().for_each(|fact| self.fail(fact));
        false
    }

    /// Returns the level of the directory entered last, with those of its entries that are copied. `is_through`: the
    /// directory was entered through a link.
    pub(super) fn scoped(&mut self, place: &Place, layers: Vec<Layer>, is_through: bool) -> Level {
        let is_itself = |name: &[u8]| !is_through && self.lists(place, name, FileType::Directory).1;
        let scope = place.scope(is_itself);
        let selected = place.selected.as_ref();
        let (Scope::Listed(range, start), Some(selected)) = (&scope, selected) else {
            return self.list_whole(place, layers, scope);
        };
        let names = selected.names(range, *start).unwrap_or_else(|fault| {
            self.fail(fault.into_fact(&place.entered_path(0, b"")));
            Names::default()
        });
        // Entries that are not listed are not known to be gone. A generation has only what is listed.
        let is_incomplete = self.options.generations.snapshot.is_none();
        Level { layers, names, is_incomplete, scope, ..Level::default() }
    }

    /// Lists a directory that is copied whole. Reports listed paths that do not exist, which the walk would never
    /// reach. Paths from a watch are exempt, because they may have gone since.
    fn list_whole(&mut self, place: &Place, layers: Vec<Layer>, scope: Scope) -> Level {
        let level = self.list(place, layers);
        let selected = place.selected.as_ref().filter(|selected| !selected.is_watched);
        let (Some(selected), [layer]) = (selected, &level.layers[..]) else { return Level { scope, ..level } };
        let is_missing = |name: &[u8]| {
            let found = statat(&layer.directory, name, AtFlags::SYMLINK_NOFOLLOW);
            matches!(found, Err(Errno::NOENT))
        };
        for path in selected.missing(&scope, is_missing) {
            self.fail(io_fact(&place.entered_path(0, path), Errno::NOENT));
        }
        Level { scope, ..level }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(paths: &[&str], recursive: bool) -> Selected {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec().into()).collect();
        Selected::new(&Only { paths, recursive, ..Only::default() }).expect("paths")
    }

    fn names(selected: &Selected, scope: &Scope) -> Vec<String> {
        let Scope::Listed(range, start) = scope else { panic!("{scope:?}") };
        let mut names = selected.names(range, *start).expect("room");
        let mut all = Vec::new();
        while let Some((_, name)) = names.current() {
            all.push(name.to_str().expect("UTF-8").to_owned());
            names.advance().expect("in memory");
        }
        all
    }

    #[test]
    fn directories_on_the_way_come_with_what_is_listed_in_them() {
        let list = ["b/c/d", "./a", "b/c", "b-c", "b//e/", "a", "/z"];
        let selected = selected(&list, false);
        let root = selected.root();
        assert_eq!(names(&selected, &root), ["a", "b", "b-c", "z"]);
        assert_eq!(selected.lists(&root, b"b"), (true, false));
        assert_eq!(selected.lists(&root, b"a"), (false, true));
        let below = selected.below(&root, b"b", true);
        assert_eq!(names(&selected, &below), ["c", "e"]);
        let paths: Vec<&[u8]> = selected.paths_below(&root, b"b").collect();
        assert_eq!(paths, [&b"c"[..], b"c/d", b"e"]);
        assert_eq!(names(&selected, &selected.below(&below, b"c", true)), ["d"]);
        assert!(matches!(selected.below(&below, b"e", true), Scope::Flat(..)), "its path ends in a slash");
        assert_eq!(names(&selected, &selected.below(&root, b"z", true)), [""; 0], "no recursion");
    }

    #[test]
    fn a_listed_directory_is_whole_where_the_copy_is_recursive() {
        let selected = selected(&["b/c/d", "b/c", "x/y"], true);
        let root = selected.root();
        let below = selected.below(&root, b"b", true);
        let whole = selected.below(&below, b"c", true);
        assert!(matches!(whole, Scope::Whole(..)) && selected.lists(&whole, b"other") == (false, true));
        assert_eq!([&b"other"[..], b"d"].map(|name| selected.are_listed(&whole, name).1), [false, true]);
        let deeper = selected.below(&whole, b"d", true);
        assert!(matches!(deeper, Scope::Whole(..)), "and what is in directories in it");
        assert_eq!(names(&selected, &selected.below(&whole, b"d", false)), [""; 0], "unless it is left out");
        assert_eq!(names(&selected, &selected.below(&root, b"x", true)), ["y"]);
        assert!(matches!(self::selected(&["a", "."], true).root(), Scope::Whole(..)));
        assert!(matches!(self::selected(&["a", "."], false).root(), Scope::Flat(..)));
    }

    #[test]
    fn what_is_listed_below_a_whole_directory_has_to_be_there() {
        let selected = selected(&["a", "a/b", "a/b/c", "a/d/e", "a/d/f", "a/g"], true);
        let whole = selected.below(&selected.root(), b"a", true);
        let missing: Vec<&[u8]> = selected.missing(&whole, |name| name != b"b").collect();
        assert_eq!(missing, [&b"d/e"[..], b"d/f", b"g"]);
        assert_eq!(selected.missing(&Scope::All, |_| true).count(), 0);
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        let long = "x".repeat(256);
        for path in ["..", "a/../b", "../a", "a/..", "a\0b", &long] {
            let paths = vec![path.as_bytes().to_vec().into()];
            let only = Only { paths, recursive: true, ..Only::default() };
            assert!(Selected::new(&only).is_err(), "{path:?}");
        }
    }
}
