//! Makes the records of a walk: looks at, opens and describes one entry at a time.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rd_proto::control::IoFact;
use rd_proto::tree::{DEPTH_MAX, Metadata, PATH_BYTES_MAX, Record, Special};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, readlinkat_raw, statat};
use rustix::io::{Errno, retry_on_intr};

use super::follow::{self, Treatment};
use super::links::{Links, further_names};
use super::listed::{Homes, ListedFile};
use super::place::{Entry, Layer, Place};
use super::sent::{Sent, size_of};
use super::spent::{Log, Was, Whereabouts};
use super::{Finished, LEADS_NOWHERE, LargeFile, REPLACED};
use crate::fs::metadata::Object;
use crate::fs::{
    DIRECTORY, Identity, UNFINISHED, described, identity, is_regular, is_temporary_name, name_beside, partial,
    plain_fact,
};
use crate::options::TreeOptions;
use crate::tree::digest_cache::DigestCache;
use crate::tree::metadata::Reader;
use crate::tree::patterns::Patterns;
use crate::tree::{Fault, HAS_VANISHED, IS_LEFTOVER, stats};

/// Why the mark of an unfinished entry is not passed over like what else an interrupted copy leaves.
const IS_MARK: &str =
    "marks an entry beside it as unfinished, whose copy would count as complete; finish or remove that entry";

/// Maximum number of marks whose entries are looked for at once.
const MARKS_MAX: usize = if cfg!(test) { 4 } else { 16 << 10 };

/// Result of one step.
pub(super) enum Step {
    /// This many bytes were written.
    Wrote(usize),
    /// Nothing was written, and the entry is finished.
    Passed,
    /// The target has no room for the record.
    Full,
    /// The entry must wait until an earlier large or listed file has finished.
    AtLimit,
    /// There are no more entries.
    Over,
}

/// What a visited entry has turned out to be.
#[derive(Default)]
pub(super) struct Visited {
    /// The open directory, if the entry is one.
    pub(super) directory: Option<OwnedFd>,
    /// Whether the directory was entered through a link, for what is listed below the link.
    pub(super) is_through: bool,
    /// Whether the entry is not a directory although paths below it are listed.
    pub(super) leads_nowhere: bool,
}

/// A large file that has been announced.
pub(super) struct Open {
    /// Set if the file has further names.
    pub(super) inode: Option<Identity>,
    /// Number of further names that have been sent.
    pub(super) names: u64,
    /// Names of the file that `--remove-source-files` removes if all contents have been read.
    pub(super) spent: Vec<(Whereabouts, Was)>,
}

/// Makes records of entries.
pub(super) struct Recorder {
    pub(super) options: TreeOptions,
    pub(super) patterns: Patterns,
    pub(super) inline_bytes_max: usize,
    /// Whether reading leaves access times as they are. Given up once the kernel refuses it, as for other users' files.
    pub(super) noatime: bool,
    pub(super) links: Links,
    pub(super) items: u32,
    pub(super) open: BTreeMap<u32, Open>,
    pub(super) opened: Vec<LargeFile>,
    /// What has been sent since the last chunk.
    pub(super) sent: Sent,
    /// Number of failures since the beginning.
    pub(super) failures: u64,
    pub(super) reader: Reader,
    /// Buffer for hashing files.
    pub(super) scratch: Vec<u8>,
    /// Number of directories with a record.
    pub(super) directories: u64,
    pub(super) homes: Homes,
    /// Files that this chunk lists; `room` is how many more may be listed.
    pub(super) listed: Vec<ListedFile>,
    pub(super) room: usize,
    /// Files with further names that are listed and not settled.
    pub(super) unsettled: HashSet<Identity>,
    pub(super) cache: Option<Arc<DigestCache>>,
    /// Sent entries to remove, with `--remove-source-files`.
    pub(super) spent: Option<Log>,
}

/// An entry that was opened as a place only, and its metadata at that time.
pub(super) type Seen = Option<(OwnedFd, Stat)>;

impl Recorder {
    pub(super) fn fail(&mut self, fact: IoFact) {
        self.fail_also(1);
        self.sent.failures.keep(fact);
    }

    pub(super) fn fail_also(&mut self, count: u64) {
        self.failures += count;
        self.sent.figures.failed += count;
    }

    /// Passes over an entry of the last level that has disappeared since its directory was read. With `--delete` the
    /// receiver has to learn the name: what it has there stays, because the source may have the same under a name that
    /// was not there yet.
    pub(super) fn pass_vanished(&mut self, place: &Place, entry: &Entry<'_>, target: &mut [u8]) -> Step {
        let step = match self.options.delete && place.levels.len() > 1 {
            true => wrote(Record::Vanished { name: entry.name }.encode(target)),
            false => Step::Passed,
        };
        if !matches!(step, Step::Full) {
            self.tell_vanished(place, &place.source_path(entry));
        }
        step
    }

    /// Reports an entry that has disappeared, which is no failure. A watch does that by its next event.
    pub(super) fn tell_vanished(&mut self, place: &Place, path: &OsStr) {
        if !place.is_watched() {
            self.sent.without.keep(plain_fact(path, HAS_VANISHED));
        }
    }

    /// Accounts for a large file whose end has been recorded.
    pub(super) fn close(&mut self, finished: Finished) {
        let open = self.open.remove(&finished.item).expect("it was announced");
        let Err(fact) = finished.outcome else { return self.spend_all(open.spent) };
        self.fail(fact);
        self.fail_also(open.names);
        if let Some(inode) = open.inode {
            self.links.forget(inode);
        }
    }

    /// Whether a pattern leaves an entry out. Patterns apply to roots only with `--sync`, as in rsync, to which a shell
    /// passes all names for `*`.
    pub(super) fn is_left_out(&self, place: &Place, name: &[u8], kind: FileType) -> bool {
        (place.levels.len() > 1 || self.options.sync && !self.options.contents)
            && !self.patterns.is_empty()
            && self.patterns.leave_out(&self.transfer_path(place, name), kind == FileType::Directory)
    }

    /// Like [`Self::is_left_out`]. If the entry is not known to be a directory or not, it is left out if excluded as
    /// either.
    fn is_left_out_as(&self, place: &Place, name: &[u8], is_directory: Option<bool>) -> bool {
        let is_left_out = |kind| self.is_left_out(place, name, kind);
        match is_directory {
            Some(true) => is_left_out(FileType::Directory),
            Some(false) => is_left_out(FileType::RegularFile),
            None => is_left_out(FileType::Directory) || is_left_out(FileType::RegularFile),
        }
    }

    /// Returns the next entry of a walk.
    pub(super) fn entry<'a>(&self, place: &'a Place) -> Option<Entry<'a>> {
        place.entry(|name, is_directory| self.is_left_out_as(place, name, is_directory))
    }

    /// Returns the path of an entry from the transfer's root on. With `--sync`, either all roots are copied as contents
    /// or none; otherwise each that ends in a slash counts as contents, however many there are.
    pub(super) fn transfer_path(&self, place: &Place, name: &[u8]) -> Vec<u8> {
        let is_contents = self.options.contents || !self.options.sync && place.is_below_slash();
        if is_contents { place.path_below_root(name) } else { place.tree_path(name) }
    }

    /// Whether an entry is a block device that was named itself, so that its contents are copied.
    pub(super) fn is_image(&self, place: &Place, kind: FileType) -> bool {
        let is_asked_for = self.options.sync && !self.options.recursive && place.levels.len() == 1;
        is_asked_for && kind == FileType::BlockDevice
    }

    /// Returns the kind of an entry, if the entry is to be copied.
    ///
    /// The directory usually tells the kind. Then the entry is first examined when it is opened, and only then.
    pub(super) fn look(&mut self, place: &Place, entry: &mut Entry<'_>) -> Result<Option<(FileType, Seen)>, Fault> {
        let mut seen = if [FileType::Directory, FileType::RegularFile].contains(&entry.kind) {
            None
        } else {
            let mut flags = OFlags::PATH | OFlags::CLOEXEC;
            flags.set(OFlags::NOFOLLOW, !entry.follow);
            let file = openat(entry.at, entry.path, flags, Mode::empty())?;
            let stat = fstat(&file)?;
            Some((file, stat))
        };
        let mut is_skipped = false;
        if let Some((link, stat)) = &seen
            && FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
        {
            let treatment = follow::treatment(&self.options, place, entry, link)?;
            if treatment != Treatment::Followed {
                entry.way = self.way_by_link(place, entry);
            }
            match if entry.way.is_some() { Treatment::Followed } else { treatment } {
                Treatment::Copied => {}
                Treatment::Skipped => is_skipped = true,
                Treatment::Followed => {
                    entry.follow = true;
                    let file = match openat(entry.at, entry.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                        Ok(file) => file,
                        // An excluded link need not lead anywhere, unless it is listed.
                        Err(_) if !place.is_listed(entry.name) && self.is_left_out_as(place, entry.name, None) => {
                            return Ok(None);
                        }
                        Err(error) => return Err(Fault::Explained(error, "the target of the symbolic link")),
                    };
                    let stat = fstat(&file)?;
                    seen = Some((file, stat));
                }
            }
        }
        let kind = seen.as_ref().map_or(entry.kind, |(_, stat)| FileType::from_raw_mode(stat.st_mode));
        let (is_on_the_way, is_itself) = self.lists(place, entry.name, kind);
        if !is_itself && !is_on_the_way {
            return Ok(None);
        }
        if !is_itself && kind == FileType::Symlink {
            // Failures of the paths listed below the link have been reported.
            return Ok(None);
        }
        if !is_itself && kind != FileType::Directory {
            return Err(LEADS_NOWHERE);
        }
        if is_temporary_name(entry.name) {
            if place.levels.len() == 1 {
                return Err(Fault::Detail(IS_LEFTOVER));
            }
            let layer = place.levels.last().and_then(|level| level.layers.get(entry.layer));
            if layer.is_some_and(|layer| is_mark(layer, entry)) {
                return Err(Fault::Detail(IS_MARK));
            }
            self.sent.leftovers.keep(plain_fact(&place.source_path(entry), IS_LEFTOVER));
            return Ok(None);
        }
        if !is_itself && entry.way.is_none() && !self.leads_on(place, entry) {
            return Ok(None);
        }
        let is_wanted = match kind {
            FileType::Directory if place.levels.len() > DEPTH_MAX => {
                return Err(Fault::Detail("is nested too deeply"));
            }
            FileType::Directory if !self.options.recursive => return Err(Errno::ISDIR.into()),
            FileType::RegularFile if self.is_cache(place, entry, seen.as_ref()) => {
                // Its directory may not have told.
                entry.kind = kind;
                false
            }
            FileType::Directory | FileType::RegularFile => true,
            kind if self.is_image(place, kind) => true,
            FileType::Symlink => self.options.symlinks && !is_skipped,
            _ => self.options.specials,
        };
        entry.is_passed_over = !is_wanted;
        Ok(is_wanted.then_some((kind, seen)))
    }

    /// Whether a file is the cache of digests, which changes while it is read, and is not what the user has named.
    fn is_cache(&self, place: &Place, entry: &Entry<'_>, seen: Option<&(OwnedFd, Stat)>) -> bool {
        let stat = || match seen {
            Some((_, stat)) => Ok(*stat),
            None => statat(entry.at, entry.path, AtFlags::SYMLINK_NOFOLLOW),
        };
        let cache = self.cache.as_ref().filter(|_| place.levels.len() > 1 && !place.is_named(entry.name));
        cache.is_some_and(|cache| cache.is_at(entry.path.to_bytes(), stat))
    }

    /// Writes an entry's record, and records in `visited` what the caller needs to know about the entry.
    pub(super) fn visit(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        target: &mut [u8],
        visited: &mut Visited,
    ) -> Result<Step, Fault> {
        let entry = &mut entry.clone();
        let found = self.look(place, entry)?;
        let entry = &*entry;
        let Some((kind, seen)) = found else { return Ok(self.pass_over(place, entry, target)) };
        let is_implied = self.is_implied(place, entry.name);
        let step = match (kind, seen) {
            (FileType::Directory, seen) => {
                let (directory, stat, is_place) = self.open_directory(place, entry, seen)?;
                if follow::is_loop(place, entry, &stat) {
                    return Err(follow::IS_LOOP);
                }
                if self.is_pruned(place, entry.name, &directory) {
                    return Ok(Step::Passed);
                }
                let (source, mut extensions) = (self.as_source(place, entry), Vec::new());
                let mut metadata = match is_implied {
                    true => Metadata::IMPLIED,
                    false => self.reader.read(&self.options, Object::opened(&directory, is_place), &stat)?,
                };
                if let Some(source) = source {
                    metadata.extensions = metadata.extensions.with(source, &mut extensions);
                }
                let step = wrote(Record::Directory { name: entry.name, metadata }.encode(target));
                *visited = Visited { directory: Some(directory), is_through: entry.is_through(), ..*visited };
                step
            }
            (FileType::RegularFile, seen) => self.file(place, entry, seen, target)?,
            (kind, _) if self.is_image(place, kind) => self.list_file(place, entry, target)?,
            (_, Some((file, stat))) => self.other(place, entry, &file, &stat, target)?,
            (_, None) => unreachable!("only directories and files are not looked at"),
        };
        // For links this has been reported already. Paths from a watch need not exist any more.
        visited.leads_nowhere = ![FileType::Directory, FileType::Symlink].contains(&kind)
            && !place.is_watched()
            && place.lists(entry.name).0;
        let is_held = kind == FileType::Directory && self.holds(place, entry.name);
        if matches!(step, Step::Wrote(_)) && !is_held {
            // As with rsync, a root of which only some entries are copied does not count, nor does a directory that
            // only leads to listed paths.
            self.count_sent(kind, (!self.options.keeps_root || place.levels.len() > 1) && !is_implied);
        }
        Ok(step)
    }

    /// Whether a directory only leads to listed paths, and nothing of the directory itself is copied.
    pub(super) fn is_implied(&self, place: &Place, name: &[u8]) -> bool {
        self.options.no_implied_dirs && self.lists(place, name, FileType::Directory) == (true, false)
    }

    /// Counts an entry whose record has been sent. `is_found`: the entry counts among those found at the source.
    pub(super) fn count_sent(&mut self, kind: FileType, is_found: bool) {
        let figures = &mut self.sent.figures;
        figures.amount.entries += 1;
        figures.amount.directories += u64::from(kind == FileType::Directory);
        if is_found {
            figures.stats.found.add(stats::kind(kind));
        }
    }

    /// Opens an entry and reads its metadata. The entry must be of this `kind`, and still be what was `seen` before, if
    /// set.
    pub(super) fn open(
        &mut self,
        entry: &Entry<'_>,
        kind: FileType,
        seen: Seen,
        flags: OFlags,
    ) -> Result<(OwnedFd, Stat), Fault> {
        // Does not block if the entry has become a FIFO.
        let mut flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, !entry.follow);
        flags.set(OFlags::NOATIME, self.noatime);
        let file = loop {
            match retry_on_intr(|| openat(entry.at, entry.path, flags, Mode::empty())) {
                Ok(file) => break file,
                Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => {
                    self.noatime = false;
                    flags.remove(OFlags::NOATIME);
                }
                // Another process holds a lease on the file. A blocking open makes that process give the lease up.
                Err(Errno::AGAIN) if flags.contains(OFlags::NONBLOCK) => flags.remove(OFlags::NONBLOCK),
                Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(REPLACED),
                Err(error) => return Err(error.into()),
            }
        };
        let mut stat = described(&file)?;
        if kind == FileType::BlockDevice {
            // The rights of a device node say nothing about a file, so the copy gets those of a new file.
            let umask = if self.options.mode { crate::fs::umask() } else { 0 };
            stat.st_mode = (stat.st_mode & !0o7777) | (0o666 & !umask);
        }
        let is_same = seen.is_none_or(|(_, seen)| identity(&seen) == identity(&stat));
        if is_same && FileType::from_raw_mode(stat.st_mode) == kind { Ok((file, stat)) } else { Err(REPLACED) }
    }

    pub(super) fn file(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        seen: Seen,
        target: &mut [u8],
    ) -> Result<Step, Fault> {
        let is_listed = self.options.dry_run || place.levels.last().is_some_and(|level| !level.is_fresh);
        if is_listed && self.is_compared(entry, seen.as_ref())? || self.is_left(entry, seen.as_ref())? {
            return self.list_file(place, entry, target);
        }
        let (file, stat) = self.open(entry, FileType::RegularFile, seen, OFlags::empty())?;
        let inode = self.inode(&stat);
        if let Some(step) = inode.and_then(|inode| self.further_name(place, entry, inode, &stat, target)) {
            return Ok(step);
        }
        let (step, item) = self.contents(entry, file, &stat, false, || place.source_path(entry), target)?;
        if matches!(step, Step::Wrote(_)) {
            self.sent.figures.size_bytes += size_of(&stat);
            self.spend(|| place.whereabouts(entry), Was::from(&stat), item);
        }
        if let (Step::Wrote(_), Some(inode)) = (&step, inode) {
            self.links.insert(inode, place.tree_path(entry.name), further_names(entry, &stat), item);
        }
        Ok(step)
    }

    /// Returns the identity of an entry that may have further names.
    pub(super) fn inode(&self, stat: &Stat) -> Option<Identity> {
        // The first name's copy shows whether the destination is newer only if the copy has the source's time.
        let is_judged = self.options.update && !self.options.keeps_times(false) && is_regular(stat);
        (self.options.hard_links && stat.st_nlink > 1 && !is_judged).then_some(identity(stat))
    }

    /// Writes the record of a symbolic link, a FIFO, a socket or a device.
    pub(super) fn other(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        file: &OwnedFd,
        stat: &Stat,
        target: &mut [u8],
    ) -> Result<Step, Fault> {
        let TreeOptions { existing, ignore_existing, safe_links, .. } = self.options;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        // If each name is judged by its place or by what the destination has there, the first name may not have been
        // copied. Then each name is sent as an entry of its own.
        let is_judged = safe_links && is_link || existing || ignore_existing;
        let inode = self.inode(stat).filter(|_| !is_judged);
        if let Some(step) = inode.and_then(|inode| self.further_name(place, entry, inode, stat, target)) {
            return Ok(step);
        }
        let (name, metadata) = (entry.name, self.reader.read(&self.options, Object::Path(file.as_fd()), stat)?);
        let special = |kind, device| Record::Special { name, metadata, kind, device: (major(device), minor(device)) };
        let mut leads_to = [0; PATH_BYTES_MAX + 1];
        let record = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => match readlinkat_raw(file, c"", &mut leads_to[..])? {
                0 => return Err(Fault::Detail("has an empty target")),
                length if length > PATH_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
                length => Record::Symlink { name, metadata, target: &leads_to[..length] },
            },
            FileType::Fifo => special(Special::Fifo, 0),
            FileType::Socket => special(Special::Socket, 0),
            FileType::CharacterDevice => special(Special::Character, stat.st_rdev),
            FileType::BlockDevice => special(Special::Block, stat.st_rdev),
            _ => return Err(Fault::Detail("is of an unknown type")),
        };
        let step = wrote(record.encode(target));
        if let Step::Wrote(_) = step {
            self.sent.figures.size_bytes += size_of(stat);
            self.spend(|| place.whereabouts(entry), Was::from(stat), 0);
            if let Some(inode) = inode {
                self.links.insert(inode, place.tree_path(name), further_names(entry, stat), 0);
            }
        }
        Ok(step)
    }
}

/// Whether an entry is the mark of an unfinished one beside it.
fn is_mark(layer: &Layer, entry: &Entry<'_>) -> bool {
    let found = || statat(entry.at, entry.path, AtFlags::SYMLINK_NOFOLLOW);
    let ending = UNFINISHED.as_bytes();
    if !entry.name.ends_with(ending) || !found().is_ok_and(|stat| is_regular(&stat) && stat.st_size == 0) {
        return false;
    }
    let mut marks = layer.marks.borrow_mut();
    if !marks.contains_key(entry.name) {
        match marks_from(entry) {
            Ok(found) => *marks = found,
            // It may be one.
            Err(_) => return true,
        }
    }
    marks.remove(entry.name) == Some(true)
}

/// Returns the marks in a directory from this one on, as many as are looked for at once, and whether each has its entry
/// beside it. The walk comes to them in this order.
fn marks_from(first: &Entry<'_>) -> Result<BTreeMap<Vec<u8>, bool>, Errno> {
    let beside = openat(first.at, ".", DIRECTORY, Mode::empty())?;
    let mut marks = BTreeMap::from([(first.name.to_vec(), false)]);
    partial::for_each::<Errno>(&beside, |name| {
        let name = name.to_bytes();
        if name > first.name && is_temporary_name(name) && name.ends_with(UNFINISHED.as_bytes()) {
            marks.insert(name.to_vec(), false);
        }
        if marks.len() > MARKS_MAX {
            marks.pop_last();
        }
        Ok(())
    })?;
    partial::for_each::<Errno>(&beside, |name| {
        if let Some(is_marked) = marks.get_mut(name_beside(name.to_bytes(), UNFINISHED).as_bytes()) {
            *is_marked = true;
        }
        Ok(())
    })?;
    Ok(marks)
}

pub(super) fn wrote(length: Option<usize>) -> Step {
    length.map_or(Step::Full, Step::Wrote)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicBool;

    use super::super::{Come, Walk};
    use super::*;
    use crate::options::{Rule, Rules};
    use crate::tree::root::{Only, Root};

    /// With `--delete` the receiver learns of it. What the user has named has to exist.
    #[test]
    fn what_has_vanished_since_its_directory_was_read_is_no_failure() {
        for (delete, paths, failed, vanished) in [
            (true, None, 0, &[&b"d"[..], b"file"][..]),
            (false, None, 0, &[][..]),
            (true, Some([".", "file"]), 1, &[&b"d"[..]][..]),
        ] {
            let scratch = tempfile::tempdir().expect("a directory");
            fs::create_dir(scratch.path().join("d")).expect("a directory");
            for name in ["a", "d/x", "file", "z"] {
                fs::write(scratch.path().join(name), "").expect("a file");
            }
            let paths = paths.map(|paths| paths.map(|path| path.as_bytes().to_vec().into()).to_vec());
            let only = paths.map(|paths| Only { paths, recursive: true, ..Only::default() });
            let root = Root { only, ..Root::new(scratch.path(), "t") };
            let options = TreeOptions { sync: true, delete, ..TreeOptions::default() };
            let mut walk = Walk::new(vec![root], 1 << 20, options).expect("a tree");
            let (mut target, mut found, mut told, mut failures) = (vec![0; 1 << 20], Vec::new(), 0, None);
            // First the record of the root, with which the names in it are read.
            let mut bytes = 1;
            while failures.is_none() {
                let come = Come { room: 10, ..Come::default() };
                let filled = walk.fill(&mut target, bytes, come, &AtomicBool::new(false));
                if bytes == 1 {
                    fs::remove_dir_all(scratch.path().join("d")).expect("it");
                    fs::remove_file(scratch.path().join("file")).expect("it");
                    bytes = 1 << 20;
                }
                told += filled.sent.without.len() as u64;
                let mut rest = &target[..filled.length];
                while let Some(record) = Record::decode(&mut rest).expect("whole records") {
                    match record {
                        Record::Vanished { name } => found.push(name.to_vec()),
                        Record::End { failures: count } => failures = Some(count),
                        _ => {}
                    }
                }
            }
            assert_eq!((failures, told), (Some(failed), 2 - failed), "{delete}");
            assert_eq!(found, vanished);
        }
    }

    #[test]
    fn an_anchored_pattern_begins_in_each_root_that_ends_in_a_slash() {
        let scratch = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            fs::create_dir(scratch.path().join(name)).expect("a directory");
            for file in ["cache", "other"] {
                fs::write(scratch.path().join(name).join(file), "").expect("a file");
            }
        }
        let roots = ["a/", "b/", "c"].map(|path| Root::new(scratch.path().join(path), path.trim_end_matches('/')));
        for (pattern, left_out) in [("/cache", 2), ("/a/cache", 0), ("/c/cache", 1), ("cache", 3)] {
            let rules = Rules(vec![Rule { pattern: pattern.as_bytes().to_vec().into(), is_include: false }]);
            let options = TreeOptions { rules, ..TreeOptions::default() };
            let mut walk = Walk::new(roots.to_vec(), 1 << 20, options).expect("a tree");
            let (met, are_all) = walk.count(u64::MAX);
            assert_eq!((met.entries, are_all), (9 - left_out, true), "{pattern}");
        }
    }

    /// Their names do not fit into the memory that names may take.
    #[test]
    fn many_roots_are_all_sent() {
        let scratch = tempfile::NamedTempFile::new().expect("a file");
        let roots = (0..6000).map(|number| Root::new(scratch.path(), format!("{number:0200}"))).collect();
        let mut walk = Walk::new(roots, 1 << 20, TreeOptions::default()).expect("a tree");
        let (met, are_all) = walk.count(u64::MAX);
        assert_eq!((met.entries, are_all), (6000, true));
    }
}
