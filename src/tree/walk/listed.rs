//! Listed files: announced without their contents, until the receiver has said whether it wants these.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use rd_proto::tree::{LISTED_DIRECTORIES_MAX, LISTED_MAX, RESUME_BYTES_MIN, Record, Verdict};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::links::further_names;
use super::place::{Entry, Place};
use super::spent::{Was, Whereabouts};
use super::{INLINE_BYTES_MAX, REPLACED, Recorder, Step, Walk, wrote};
use crate::fs::metadata::Object;
use crate::fs::source::change;
use crate::fs::{HASH_READ_BYTES, Identity, described, hash_range, here, identity, is_regular};
use crate::tree::Fault;

/// A directory with listed files that are not settled. It stays open until the last of these files is settled.
#[derive(Debug)]
pub struct Home {
    /// `None` for the top, because paths of roots are relative to the working directory.
    directory: Option<Arc<OwnedFd>>,
    /// Path of the directory, for messages.
    path: OsString,
    /// Length of the root's part of `path`, in bytes; `None` at the top.
    root_bytes: Option<usize>,
    /// Number of homes that are open.
    homes: Arc<AtomicUsize>,
}

impl Drop for Home {
    fn drop(&mut self) {
        self.homes.fetch_sub(1, Relaxed);
    }
}

/// A file that has been listed.
#[derive(Debug)]
pub struct ListedFile {
    home: Arc<Home>,
    path: CString,
    name: Vec<u8>,
    follow: bool,
    kind: FileType,
    size: u64,
    /// Whether the file may disappear, see [`Place::may_vanish`].
    may_vanish: bool,
    /// Set if the file has further names.
    pub inode: Option<Identity>,
    /// What the file was, if it is to be removed once it has been sent.
    pub seen: Option<Was>,
}

impl ListedFile {
    /// Whether `stat` describes another file than the listed one. This is known only of a listed file with further
    /// names.
    fn is_other(&self, stat: &Stat) -> bool {
        self.inode.is_some_and(|inode| inode != identity(stat))
    }

    /// Returns where the file is.
    pub fn whereabouts(&self) -> Whereabouts {
        Whereabouts::new(self.source_path(), self.home.root_bytes)
    }

    /// Returns the entry with which the file is opened.
    pub fn entry(&self) -> Entry<'_> {
        let at = self.home.directory.as_ref().map_or(here(), AsFd::as_fd);
        let Self { path, name, follow, kind, .. } = self;
        Entry { at, layer: 0, path, name, kind: *kind, follow: *follow, way: None, is_passed_over: false }
    }

    /// Returns the file's directory and its name there, unless the file is a root or is reached by a link.
    pub fn at(&self) -> Option<(&Arc<OwnedFd>, &CStr)> {
        let directory = self.home.directory.as_ref().filter(|_| !self.follow);
        directory.map(|directory| (directory, &*self.path))
    }

    /// Returns the path of the file, for messages.
    pub fn source_path(&self) -> OsString {
        if self.home.directory.is_none() {
            return OsStr::from_bytes(self.path.to_bytes()).to_owned();
        }
        let mut path = self.home.path.clone();
        if !path.as_bytes().ends_with(b"/") {
            path.push("/");
        }
        path.push(OsStr::from_bytes(self.path.to_bytes()));
        path
    }
}

/// The open directories of listed files that are not settled.
#[derive(Debug, Default)]
pub struct Homes(Arc<AtomicUsize>);

impl Homes {
    /// Returns an entry of the last level as a file that can be found again; `None` while too many directories are
    /// open.
    pub fn file(
        &self,
        place: &Place,
        entry: &Entry<'_>,
        (kind, size): (FileType, u64),
        inode: Option<Identity>,
    ) -> Option<ListedFile> {
        let level = place.levels.last().expect("the top is never left");
        let mut known = level.homes.borrow_mut();
        if known.len() <= entry.layer {
            known.resize(entry.layer + 1, Weak::new());
        }
        let known = &mut known[entry.layer];
        let home = match known.upgrade() {
            Some(home) => home,
            None if self.0.load(Relaxed) >= LISTED_DIRECTORIES_MAX => return None,
            None => {
                self.0.fetch_add(1, Relaxed);
                let (path, directory) = (place.path(entry.layer), level.layers.get(entry.layer));
                let directory = directory.map(|layer| Arc::clone(&layer.directory));
                let root_bytes = level.layers.get(entry.layer).map(|layer| place.root_bytes(layer.root));
                let home = Arc::new(Home { directory, path, root_bytes, homes: Arc::clone(&self.0) });
                *known = Arc::downgrade(&home);
                home
            }
        };
        let (path, name, may_vanish) = (entry.path.to_owned(), entry.name.to_vec(), place.may_vanish(entry.name));
        Some(ListedFile { home, path, name, follow: entry.follow, kind, size, may_vanish, inode, seen: None })
    }
}

/// A listed file that is to be sent or compared.
#[derive(Debug)]
pub struct WantedFile {
    /// Number of the file's record among those of listed files.
    pub number: u64,
    /// The receiver's verdict on the file.
    pub verdict: Verdict,
    /// Where the file is.
    pub file: ListedFile,
}

/// Answers of the receiver since the walk last continued.
#[derive(Debug, Default)]
pub struct Answered {
    /// Numbers of directories of which the receiver has nothing.
    pub fresh: Vec<u64>,
    /// Files to be sent or compared.
    pub wanted: VecDeque<WantedFile>,
    /// Files with further names that the receiver already has.
    pub settled: Vec<Identity>,
    /// Files with further names that the receiver does not have, and will not get under this name.
    pub left: Vec<Identity>,
    /// Files that the receiver already has, and that are to be removed from the source.
    pub spent: Vec<ListedFile>,
    /// Number of files that the receiver leaves as they are. A walk at its limit may list as many more.
    pub same: usize,
}

/// The listed files that are not settled.
#[derive(Debug, Default)]
pub struct Listed {
    next: u64,
    /// Files on which the receiver has given no verdict.
    unjudged: BTreeMap<u64, ListedFile>,
    /// Number of files that the receiver wants and whose records have not been made.
    wanted: usize,
    /// Answers for the walk.
    pub answered: Answered,
}

impl Listed {
    /// Adds files whose records have been made, in order. `settled` is the number of wanted files that are settled.
    pub fn add(&mut self, files: Vec<ListedFile>, settled: usize) {
        for file in files {
            self.unjudged.insert(self.next, file);
            self.next += 1;
        }
        self.wanted -= settled;
    }

    /// Returns how many more files may be listed.
    pub fn room(&self) -> usize {
        LISTED_MAX.saturating_sub(self.unjudged.len() + self.wanted)
    }

    /// Returns the number of files on which the receiver has given no verdict.
    pub fn unjudged(&self) -> usize {
        self.unjudged.len()
    }

    /// Whether all listed files are settled.
    pub fn is_settled(&self) -> bool {
        self.unjudged.is_empty() && self.wanted == 0
    }

    /// Whether there are answers that the walk has not taken.
    pub fn has_news(&self) -> bool {
        let Answered { fresh, wanted, same, .. } = &self.answered;
        !fresh.is_empty() || !wanted.is_empty() || *same > 0
    }

    /// Takes the receiver's verdicts on files from the number `first` on.
    ///
    /// # Errors
    ///
    /// Fails with the reason why no correct receiver would have sent these verdicts.
    pub fn judge(&mut self, first: u64, verdicts: Vec<Verdict>) -> Result<(), &'static str> {
        for (offset, verdict) in verdicts.into_iter().enumerate() {
            let number = first.saturating_add(offset as u64);
            let file = self.unjudged.remove(&number).ok_or("a verdict on a file that was not listed")?;
            if verdict.is_settled() {
                self.answered.same += 1;
                let inodes =
                    if verdict == Verdict::Left { &mut self.answered.left } else { &mut self.answered.settled };
                inodes.extend(file.inode);
                self.answered.spent.extend(Some(file).filter(|file| verdict == Verdict::Same && file.seen.is_some()));
            } else {
                self.wanted += 1;
                self.answered.wanted.push_back(WantedFile { number, verdict, file });
            }
        }
        Ok(())
    }
}

impl Walk {
    /// Sends the contents of the listed file that has been wanted for longest.
    pub(super) fn send_wanted(&mut self, target: &mut [u8], is_whole: bool) -> Step {
        let Some(wanted) = self.wanted.front() else { return Step::Passed };
        let step = match self.recorder.send_wanted(wanted, target) {
            Ok(Step::Full) if is_whole => Err(Fault::Detail("has too much metadata for a chunk")),
            outcome => outcome,
        };
        let step = step.unwrap_or_else(|fault| {
            let WantedFile { number, file, .. } = wanted;
            let has_vanished = self.place.has_vanished(&file.entry(), file.may_vanish, &fault);
            let encoded = match has_vanished {
                true => Record::Wanted { number: *number }.encode(target).and_then(|start| {
                    Some(start + Record::Vanished { name: &file.name }.encode(&mut target[start..])?)
                }),
                false => Record::Gone { number: *number }.encode(target),
            };
            let Some(count) = encoded else { return Step::Full };
            match has_vanished {
                true => self.recorder.tell_vanished(&self.place, &file.source_path()),
                false => self.recorder.fail(fault.into_fact(&file.source_path())),
            }
            if let Some(inode) = wanted.file.inode {
                self.recorder.links.forget(inode);
            }
            Step::Wrote(count)
        });
        if let Step::Wrote(_) = step
            && let Some(wanted) = self.wanted.pop_front()
        {
            self.settled += 1;
            if let Some(inode) = wanted.file.inode {
                self.recorder.unsettled.remove(&inode);
            }
        }
        step
    }
}

/// Why `--append-verify` leaves a file out, as when a log has been rotated. Otherwise it might replace a longer copy.
const IS_SHORTER: &str = "became shorter after it was listed; a copy at the destination was left as it is";

/// Minimum size of a file that is compared without `--sync`. Smaller files are sent at once: the receiver takes as long
/// to read a file of one block as to make it, and its record, the digest and the reply cost nearly a tenth of the file
/// itself.
pub(in crate::tree) const COMPARED_BYTES_MIN: u64 = 4 << 10;

/// Returns the size of a file.
fn size(entry: &Entry<'_>, seen: Option<&(OwnedFd, Stat)>) -> Result<u64, Errno> {
    let flags = if entry.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let size = match seen {
        Some((_, stat)) => stat.st_size,
        None => statat(entry.at, entry.path, flags)?.st_size,
    };
    Ok(size as u64)
}

impl Recorder {
    /// Whether a file is listed for the receiver to compare. Without `--sync`, files that are too small, and files so
    /// large that they are resumed, are not.
    pub(super) fn is_compared(&self, entry: &Entry<'_>, seen: Option<&(OwnedFd, Stat)>) -> Result<bool, Fault> {
        if !self.options.compares {
            return Ok(true);
        }
        Ok((COMPARED_BYTES_MIN..RESUME_BYTES_MIN).contains(&size(entry, seen)?))
    }

    /// Whether the size options leave a file's copy as it is. The file is listed all the same, so that its copy is not
    /// deleted.
    pub(super) fn is_left(&self, entry: &Entry<'_>, seen: Option<&(OwnedFd, Stat)>) -> Result<bool, Fault> {
        let copied = self.options.sizes.copied();
        copied.map_or(Ok(false), |copied| Ok(!copied.contains(&size(entry, seen)?)))
    }

    /// Writes the record of a file without its contents.
    pub(super) fn list_file(&mut self, place: &Place, entry: &Entry<'_>, target: &mut [u8]) -> Result<Step, Fault> {
        // A followed link, and a root, which may be a path, are opened. For other entries the name is enough.
        let is_plain = !entry.follow && place.levels.len() > 1;
        let opened = match is_plain {
            true => None,
            false => {
                let mut flags = OFlags::PATH | OFlags::CLOEXEC;
                flags.set(OFlags::NOFOLLOW, !entry.follow);
                Some(openat(entry.at, entry.path, flags, Mode::empty())?)
            }
        };
        let (object, mut stat) = match &opened {
            Some(file) => (Object::Path(file.as_fd()), fstat(file)?),
            None => (Object::Named(entry.at, entry.path), statat(entry.at, entry.path, AtFlags::SYMLINK_NOFOLLOW)?),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.is_image(place, kind) {
            // The time of a device does not say whether its contents have changed, so it must never equal its copy's
            // time. The caller sets no `--modify-window` for a session with a device.
            (_, stat) = self.open(entry, kind, None, OFlags::empty())?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (stat.st_mtime, stat.st_mtime_nsec) = (now.as_secs() as i64, now.subsec_nanos().into());
        } else if kind != FileType::RegularFile {
            return Err(REPLACED);
        }
        let inode = self.inode(&stat);
        if let Some(step) = inode.and_then(|inode| self.further_name(place, entry, inode, &stat, target)) {
            return Ok(step);
        }
        let size = stat.st_size as u64;
        let listed = if self.room > 0 { self.homes.file(place, entry, (kind, size), inode) } else { None };
        let Some(mut listed) = listed else { return Ok(Step::AtLimit) };
        listed.seen = (self.spent.is_some() && kind == FileType::RegularFile).then(|| Was::from(&stat));
        let metadata = self.reader.read(&self.options, object, &stat)?;
        let step = wrote(Record::Listed { name: entry.name, metadata, size }.encode(target));
        if let Step::Wrote(_) = step {
            self.listed.push(listed);
            self.room -= 1;
            self.sent.figures.size_bytes += size;
            if let Some(inode) = inode {
                self.links.insert(inode, place.tree_path(entry.name), further_names(entry, &stat), 0);
                self.unsettled.insert(inode);
            }
        }
        Ok(step)
    }

    /// Returns the digest of a file from the cache.
    fn cached(&self, wanted: &WantedFile) -> Option<[u8; 16]> {
        // A source that is to be removed is always read: the cache alone does not decide on a removal.
        let cache = self.cache.as_ref().filter(|_| wanted.file.seen.is_none())?;
        let entry = wanted.file.entry();
        let flags = if entry.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = statat(entry.at, entry.path, flags).ok()?;
        let is_regular = is_regular(&stat);
        // In a dry run the receiver's digest of a large file is that of its contents.
        let is_told = wanted.file.size <= INLINE_BYTES_MAX as u64 || !self.options.dry_run;
        let is_it = is_regular && is_told && stat.st_size as u64 == wanted.file.size && !wanted.file.is_other(&stat);
        if !is_it {
            return None;
        }
        cache.get(entry.at, &stat).or_else(|| {
            // A root or what a link leads to may be on another file system than the directory by which it was found.
            let no_link = if entry.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
            let file = openat(entry.at, entry.path, OFlags::PATH | OFlags::CLOEXEC | no_link, Mode::empty()).ok()?;
            cache.get(&file, &stat)
        })
    }

    /// Writes that the receiver already has a file.
    fn same(&mut self, wanted: &WantedFile, target: &mut [u8]) -> Step {
        let step = wrote(Record::Same { number: wanted.number }.encode(target));
        if let (Step::Wrote(_), Some(seen)) = (&step, wanted.file.seen) {
            self.spend(|| wanted.file.whereabouts(), seen, 0);
        }
        step
    }

    /// Writes the record of a listed file with its contents, or that its contents are the same.
    fn send_wanted(&mut self, wanted: &WantedFile, target: &mut [u8]) -> Result<Step, Fault> {
        let (number, entry) = (wanted.number, wanted.file.entry());
        // The digest of a large file is that of its blocks. If no digest is known here, the blocks are compared.
        let is_large = wanted.file.size > INLINE_BYTES_MAX as u64 && !self.options.dry_run;
        if matches!(wanted.verdict, Verdict::Digest(theirs) if self.cached(wanted) == Some(theirs)) {
            return Ok(self.same(wanted, target));
        }
        let began = SystemTime::now();
        let (file, stat) = self.open(&entry, entry.kind, None, OFlags::empty())?;
        if self.options.append_verify && (stat.st_size as u64) < wanted.file.size {
            return Err(Fault::Detail(IS_SHORTER));
        }
        // Further names of the listed file are not names of the file that has replaced it.
        if let Some(inode) = wanted.file.inode.filter(|_| wanted.file.is_other(&stat)) {
            self.links.forget(inode);
        }
        if let (Verdict::Digest(theirs), false) = (wanted.verdict, is_large) {
            self.scratch.resize(HASH_READ_BYTES, 0);
            let ours = hash_range(&file, 0, stat.st_size as u64, &mut self.scratch)?;
            if let Some(change) = change(&stat, &described(&file)?) {
                return Err(Fault::Detail(change));
            }
            if let Some(cache) = self.cache.as_ref().filter(|_| stat.st_size as usize <= INLINE_BYTES_MAX) {
                cache.put(began, &file, &stat, ours);
            }
            if ours == theirs {
                return Ok(self.same(wanted, target));
            }
        }
        if self.options.dry_run {
            return Ok(wrote(Record::Differs { number }.encode(target)));
        }
        let Some(start) = (Record::Wanted { number }).encode(target) else { return Ok(Step::Full) };
        let is_awaited = wanted.verdict == Verdict::Blocks || is_large && matches!(wanted.verdict, Verdict::Digest(_));
        let path = || wanted.file.source_path();
        let (step, item) = self.contents(&entry, file, &stat, is_awaited, path, &mut target[start..])?;
        if let (Step::Wrote(_), Some(inode)) = (&step, wanted.file.inode) {
            self.links.set_item(inode, item);
        }
        if let (Step::Wrote(_), Some(seen)) = (&step, wanted.file.seen) {
            self.spend(|| wanted.file.whereabouts(), seen, item);
        }
        Ok(match step {
            Step::Wrote(count) => Step::Wrote(start + count),
            other => other,
        })
    }
}
