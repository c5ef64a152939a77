//! Directories of a tree that is being written: entered by descriptor, finished when the last entry in them is
//! finished.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rd_proto::tree::{Extension, Metadata};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::backup::Backup;
use super::delete::{Extraneous, Remover};
use super::device;
use super::folding::Folding;
use super::implied::{self, TreeRoot, open_beneath};
use super::itemize::differing;
use super::judge::with_same_time;
use super::moves::Moves;
use super::unfinished;
use super::{Fault, Shared, elsewhere, rehearse};
use crate::fs::metadata::{Object, has_default_acl, open_up, permitted, permitted_directory};
use crate::fs::partial::{self, PartialTree, TreeLock, publish_directory};
use crate::fs::{DIRECTORY, PARTIAL, is_directory, is_regular, is_temporary_name, name_beside, sync_directory};
use crate::tree::entries::{Effect, FileKind};
use crate::tree::metadata::{self, Applied, Current, OwnedMetadata, parts};

mod closed;
mod left;
mod replaced;

use closed::Opened;
pub(super) use closed::{close_again, is_removed};

/// A directory of the destination.
///
/// Each file that is still to be written into the directory holds a reference to it. The directory gets its metadata
/// when the walk has left it and the last file has released it. It cannot be earlier, because each new entry changes
/// the directory's time, and its mode may forbid new entries. So no list of directories is needed, and only as many are
/// open as the tree is deep and as files are waiting.
pub(super) struct OpenDirectory {
    pub fd: Arc<OwnedFd>,
    place: Arc<Place>,
    pub shared: Arc<Shared>,
    /// Whether entries made here inherit an ACL.
    pub gives_acl: bool,
    /// Permissions that files made here can get if modes are not kept.
    pub permitted: u32,
    /// Whether files get a partial name here: nameless files are not supported, or older entries may be in the way of
    /// linking. If the directory existed before, making that name also removes what a killed transfer left under it.
    pub wants_names: AtomicBool,
    /// Owner and group of a new file here: those of this process, or the directory's group, depending on its mode and
    /// the mount.
    pub new_owner: OnceLock<(u32, u32)>,
    /// `None` for the top, which belongs to the user who named it.
    last: Option<Last>,
    /// The partial name, as long as the directory has no final one.
    unnamed: Option<Unnamed>,
    /// For the top, or a directory that is merged into it: the mode of DST before DST was opened up, until that mode is
    /// restored.
    closed: Mutex<Option<u32>>,
    /// Whether this directory, or one above it, has no final name yet.
    pub is_unseen: bool,
    /// The directory at the top that has no name yet. It gets its name after this one is finished.
    unseen_root: Option<Arc<OpenDirectory>>,
    /// Entries that an earlier transfer left here and this one has not reached; the value tells whether it is a
    /// directory.
    left: Option<Mutex<BTreeMap<Vec<u8>, bool>>>,
    /// Whether the directory was made by this transfer or by an interrupted one. No entry in it counts as existing.
    pub is_new: bool,
    /// Whether the directory is new, but entries that an earlier transfer left in it are compared. Entries that do not
    /// come are removed.
    pub is_resumed: bool,
    /// Whether this is a dry run and the directory would be made.
    pub is_phantom: bool,
    /// Whether the sender knows that this directory, or one above it, is fresh. Then existing files are not looked for,
    /// neither here nor elsewhere.
    pub is_fresh: bool,
    /// Directories with the same path in earlier generations.
    pub alternates: Vec<Arc<OwnedFd>>,
    /// Files of the destination tree, if they may come under other names.
    pub moves: Option<Arc<Moves>>,
    /// Directories here that are to make way for entries of another kind once these are whole, by name.
    in_the_way: Mutex<BTreeSet<Vec<u8>>>,
    /// With `--delete`: entries of the directory that have not come.
    extraneous: Option<Mutex<Extraneous>>,
    /// Whether the walk has reached any entry of the directory.
    has_met: AtomicBool,
    /// Whether the directory gets no metadata except its former mode.
    keeps_metadata: bool,
    /// Root of the tree in which directories that only lead to others may be links (`--no-implied-dirs`).
    pub(super) root: Option<Arc<TreeRoot>>,
    /// Whether some entries of the source directory will not come.
    is_incomplete: AtomicBool,
    /// Whether the user has named the directory as a source.
    is_source: bool,
    /// Whether several sources are merged here, or in a directory above, and one of them is empty.
    lacks_source: bool,
    pub folding: Folding,
    /// Whether a directory still to come may be taken for this one, so that entries here may belong to that one.
    may_be_two: bool,
}

/// A directory under its partial name.
struct Unnamed {
    // Released before the parent, which may then be closed: its file is removed from there.
    _lock: TreeLock,
    parent: Arc<OpenDirectory>,
    partial: String,
    name: Vec<u8>,
}

/// A directory that was made, or existed before.
struct Made {
    fd: OwnedFd,
    is_new: bool,
    /// Whether an earlier transfer made the directory and was killed.
    was_left: bool,
    /// Mode of the directory before it was opened up, if entering it required that.
    closed: Option<u32>,
    unnamed: Option<Unnamed>,
}

/// Metadata that a directory gets at the end.
struct Last {
    mode: Option<u32>,
    current: Current,
    metadata: OwnedMetadata,
}

/// Name of a directory, without its descriptor. Names are linked, so that no long path is stored for each directory.
struct Place {
    parent: Option<Arc<Place>>,
    name: Vec<u8>,
}

/// Why a directory at the top is not merged: it was to become DST, but DST has come into being meanwhile.
const HAS_APPEARED: &str =
    "was not there when this copy began, and another copy may have created it; run this one again to copy into it";

impl OpenDirectory {
    /// Opens the directory in which a missing destination would be made, if that directory exists.
    pub fn open_above(path: &Path) -> Option<OwnedFd> {
        // `foo/..` does not exist if `foo` does not, so the last component is a real name.
        let above = crate::fs::directory_of(path);
        openat(crate::fs::here(), above, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()).ok()
    }

    /// Takes the destination, which is open.
    pub fn top((fd, closed): Opened, path: &[u8], shared: Arc<Shared>) -> Self {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let mut top = Self::new(fd, Arc::new(Place { parent: None, name: path[..end].to_vec() }), shared, None);
        top.closed = Mutex::new(closed);
        top.wants_names.store(true, Ordering::Relaxed);
        top.folding = if top.shared.options.dry_run { Folding::none() } else { Folding::of(&top.fd) };
        top
    }

    /// Makes a directory, or enters an existing one. Only a real directory is entered, because a link may lead
    /// anywhere. `was_left`: whether an earlier transfer left the directory, see [`Self::make_way`].
    pub fn enter(parent: &Arc<Self>, name: &[u8], described: &Metadata<'_>, was_left: bool) -> Result<Self, Fault> {
        let shared = &parent.shared;
        let was_left = was_left || parent.is_resumed;
        let is_implied = shared.is_implied(described);
        let made = if shared.options.dry_run {
            let entered = parent.rehearse_entering(name, is_implied)?;
            let (is_new, fd) = (entered.is_none(), entered.map_or_else(rehearse::nowhere, Ok)?);
            Made { fd, is_new, was_left: false, closed: None, unnamed: None }
        } else if parent.is_top() && name != b"." {
            Self::make_at_top(parent, name, was_left)?
        } else {
            Self::make_below(parent, name, described, was_left, is_implied)?
        };
        let Made { fd, is_new, was_left, closed, unnamed } = made;
        // A directory merged into the top has the mode that the top had.
        let closed = closed.or_else(|| if name == b"." { parent.take_closed() } else { None });
        let mut stat = fstat(&fd)?;
        stat.st_mode = closed.unwrap_or(stat.st_mode);
        let options = &shared.options;
        let is_resumed = was_left && options.lists();
        let was_closed = closed.is_some() || (!is_new || was_left) && !options.dry_run && open_up(&fd, &stat)?;
        let left = if was_left && !is_resumed { Some(Mutex::new(left::sweep(&fd)?)) } else { None };
        let keeps_metadata = options.keeps_root && parent.last.is_none() || is_implied;
        let mode = if keeps_metadata {
            // The mode that mkdir gives when all permissions are requested.
            let made =
                || permitted(&parent.fd, parent.gives_acl, crate::fs::umask()) | stat.st_mode & Mode::SGID.bits();
            is_new.then(made).or(was_closed.then_some(stat.st_mode & 0o7777))
        } else if options.mode {
            Some(metadata::mode(options, described, 0o777))
        } else if is_new {
            // If the group is inherited, mkdir has set the bit for that, which is kept.
            let permitted = permitted_directory(parent.permitted, shared.umask);
            Some(metadata::mode(options, described, permitted) & 0o777 | stat.st_mode & Mode::SGID.bits())
        } else {
            was_closed.then_some(stat.st_mode & 0o7777)
        };
        let current = Current::new(&stat, parent.gives_acl, !is_new || was_left);
        let last = Last { mode, current, metadata: OwnedMetadata::new(described) };
        let differs = (!is_new && !keeps_metadata && shared.is_told())
            .then(|| differing(shared, Object::Open(fd.as_fd()), &stat, described, mode));
        let place = match name {
            // The directory is merged into its parent.
            b"." => Arc::clone(&parent.place),
            _ => Arc::new(Place { parent: Some(Arc::clone(&parent.place)), name: name.to_vec() }),
        };
        let is_unseen = parent.is_unseen || unnamed.is_some();
        if is_resumed {
            shared.counts.is_resumed.store(true, Ordering::Relaxed);
        }
        let mut entered = Self::new(fd, place, Arc::clone(shared), Some(last));
        entered.wants_names.store(!is_new, Ordering::Relaxed);
        let named = unnamed.as_ref().map_or(name, |unnamed| unnamed.partial.as_bytes());
        entered.folding = Folding::below(parent, &entered.fd, &stat, is_new, named);
        entered.may_be_two = options.delete && !is_new && name != b"." && parent.folds();
        (entered.unnamed, entered.is_unseen, entered.left) = (unnamed, is_unseen, left);
        entered.unseen_root = parent.unseen_root.clone().or(parent.unnamed.is_some().then(|| Arc::clone(parent)));
        (entered.is_new, entered.is_resumed, entered.is_phantom) = (is_new, is_resumed, is_new && options.dry_run);
        let is_dst = parent.last.is_none() && options.generations.session.is_dst;
        entered.alternates = match is_dst {
            true => parent.alternates.clone(),
            false => elsewhere::below(&parent.alternates, name),
        };
        entered.moves = parent.moves.clone();
        entered.keeps_metadata = keeps_metadata;
        entered.closed = Mutex::new((was_closed && name == b".").then_some(stat.st_mode));
        entered.root = implied::root(&entered, parent)?;
        let lacks_one = described.extensions.iter().find_map(|extension| match extension {
            Extension::Source { lacks_one } => Some(lacks_one),
            _ => None,
        });
        // The sender says the same, but it may be hostile, and everything else in DST would be deleted.
        entered.is_incomplete = AtomicBool::new(parent.is_top() && options.lists_some());
        entered.is_source = parent.is_top() || lacks_one.is_some();
        entered.lacks_source = parent.lacks_source || lacks_one == Some(true);
        // With `--existing` nothing is made in a new directory, so the sender must ask about each file.
        let is_asked = options.lists() && !options.dry_run && !options.existing;
        if parent.last.is_none() && options.generations.find_moves && options.lists() && !is_new {
            entered.moves = Some(entered.find_files()?);
        }
        entered.is_fresh = parent.is_fresh || is_asked && is_new && !is_resumed && !entered.looks_elsewhere();
        if options.delete && !is_new || is_resumed {
            entered.extraneous = Some(Mutex::new(Extraneous::of(&entered.fd)?));
        }
        if differs != Some(0) && !keeps_metadata {
            let effect = if is_new { Effect::Made } else { Effect::Kept };
            entered.tell(b"", (effect, FileKind::Directory), differs, || None);
        }
        Ok(entered)
    }

    /// A directory at the top gets its name when everything that comes into it is done: a half-filled directory would
    /// be taken for a destination to copy into.
    fn make_at_top(parent: &Arc<Self>, name: &[u8], was_left: bool) -> Result<Made, Fault> {
        let session = &parent.shared.options.generations.session;
        let is_there = |there: Result<Opened, Errno>| match there {
            Ok(_) if session.is_missing && !was_left => Err(Fault::Detail(HAS_APPEARED)),
            Ok((fd, closed)) => Ok(Made { fd, is_new: was_left, was_left, closed, unnamed: None }),
            Err(error) => Err(error.into()),
        };
        match parent.open(name) {
            Err(Errno::NOENT) => {}
            there => return is_there(there),
        }
        let beside = name_beside(name, PARTIAL);
        let open = || partial::open_tree(&parent.fd, &beside);
        let PartialTree { fd, was_left: has_left, lock } = parent.patiently(&beside, open)?;
        // Another copy that was making the directory may have finished while this one waited.
        match parent.open(name) {
            Err(Errno::NOENT) => {}
            there => {
                if partial::is_named(&parent.fd, &*beside, &fd) {
                    // A partial directory in which an earlier copy has left entries stays.
                    let _ = unlinkat(&parent.fd, &*beside, AtFlags::REMOVEDIR);
                }
                return is_there(there);
            }
        }
        let unnamed = Some(Unnamed { parent: Arc::clone(parent), partial: beside, name: name.to_vec(), _lock: lock });
        Ok(Made { fd, is_new: true, was_left: has_left, closed: None, unnamed })
    }

    fn make_below(
        parent: &Self,
        name: &[u8],
        described: &Metadata<'_>,
        was_left: bool,
        is_implied: bool,
    ) -> Result<Made, Fault> {
        let (options, umask) = (&parent.shared.options, parent.shared.umask);
        // With a mode of its own, it gets that when all that comes into it is done. Without one, the next copy would not
        // open a directory that an interrupted copy has left closed to others.
        let open = || metadata::mode(options, described, permitted_directory(parent.permitted, umask)) & 0o777;
        let mode = Mode::RWXU | if options.mode { Mode::empty() } else { Mode::from_raw_mode(open()) };
        let mut is_new = match mkdirat(&parent.fd, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        if !is_new
            && !is_implied
            && parent.shared.options.sync
            && !parent.shared.options.ignore_existing
            && name != b"."
            && parent.stat(name).is_ok_and(|old| !is_directory(&old))
        {
            parent.clear_for_directory(name)?;
            mkdirat(&parent.fd, name, mode)?;
            parent.clear_mark(name, true);
            is_new = true;
        }
        let mut opened = parent.open(name);
        if is_implied && opened.is_err() {
            opened = Ok((parent.open_implied(name)?, None));
        }
        let (fd, closed) = opened?;
        let was_left = was_left && !is_new;
        Ok(Made { fd, is_new: is_new || was_left, was_left, closed, unnamed: None })
    }

    fn new(fd: OwnedFd, place: Arc<Place>, shared: Arc<Shared>, last: Option<Last>) -> Self {
        let gives_acl = has_default_acl(&fd);
        let permitted = if shared.options.mode { 0o777 } else { permitted(&fd, gives_acl, shared.umask) };
        Self {
            fd: Arc::new(fd),
            place,
            shared,
            gives_acl,
            permitted,
            wants_names: AtomicBool::new(false),
            new_owner: OnceLock::new(),
            last,
            unnamed: None,
            closed: Mutex::default(),
            is_unseen: false,
            unseen_root: None,
            left: None,
            is_new: false,
            is_resumed: false,
            is_phantom: false,
            is_fresh: false,
            alternates: Vec::new(),
            moves: None,
            in_the_way: Mutex::default(),
            extraneous: None,
            has_met: AtomicBool::new(false),
            keeps_metadata: false,
            root: None,
            is_incomplete: AtomicBool::new(false),
            is_source: false,
            lacks_source: false,
            folding: Folding::none(),
            may_be_two: false,
        }
    }

    /// Whether files that are to come into the directory may exist elsewhere on this host.
    pub fn looks_elsewhere(&self) -> bool {
        !self.alternates.is_empty() || self.moves.is_some()
    }

    /// Whether an entry of this name exists.
    pub fn has(&self, name: &[u8]) -> bool {
        self.stat(name).is_ok()
    }

    /// Whether a file of this name is written in place. With `--sync`, an existing link, special file or directory is
    /// replaced by a new file, because it cannot be written to.
    pub fn is_in_place(&self, name: &[u8]) -> bool {
        let options = &self.shared.options;
        let gives_way = |old: Stat| !is_regular(&old) && !device::is_target(self, &old);
        options.in_place && !(options.sync && self.stat(name).is_ok_and(gives_way))
    }

    /// Records that the walk has reached an entry of the directory. `is_there`: the source still has it. A directory of
    /// which every entry has disappeared is an empty source.
    pub fn meet(&self, name: &[u8], is_there: bool) {
        self.has_met.fetch_or(is_there, Ordering::Relaxed);
        if let Some(extraneous) = &self.extraneous {
            crate::locked(extraneous).meet(name);
        }
    }

    /// Passes over an entry that has disappeared at the source. What has its name here stays, except what an interrupted
    /// copy has left, which may be cut.
    pub fn pass_vanished(&self, name: &[u8]) {
        if !self.is_resumed || is_temporary_name(name) {
            return;
        }
        match partial::remove(&self.fd, name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => self.shared.fail(&self.path(name), error),
        }
    }

    /// Records that nothing may be deleted here, because the source may have more entries than come.
    pub fn note_incomplete(&self) {
        self.is_incomplete.store(true, Ordering::Relaxed);
    }

    fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Whether this is the destination itself.
    pub fn is_top(&self) -> bool {
        self.last.is_none()
    }

    /// Whether an earlier transfer may have left something in the directory.
    pub fn has_past(&self) -> bool {
        !self.is_new || self.is_resumed || self.left.is_some()
    }

    /// Path of an entry of the directory, relative to the top. An empty name stands for the directory itself.
    pub fn path_below_top(&self, name: &[u8]) -> Vec<u8> {
        self.names_to(name)[1..].join(&b'/')
    }

    /// With `--backup-dir`, keeps the entry that another, under the name `beside`, is about to replace.
    pub fn keep_replaced(&self, name: &[u8], beside: &str) -> Result<(), Fault> {
        match &self.shared.backup {
            // Nothing that is in the way in a new directory is worth keeping.
            Some(backup) if !self.is_new => {
                let path = self.path_below_top(name);
                backup.keep_replaced(self.fd.as_fd(), name, beside, self.shared.below_destination(&path))
            }
            _ => Ok(()),
        }
    }

    /// Removes an entry that is not a directory where a directory is to be made.
    fn clear_for_directory(&self, name: &[u8]) -> Result<(), Fault> {
        let path = self.path_below_top(name);
        match &self.shared.backup {
            Some(backup) => backup.keep_deleted(self.fd.as_fd(), name, self.shared.below_destination(&path)),
            None => Ok(unlinkat(&self.fd, name, AtFlags::empty())?),
        }
    }

    /// Deletes entries that have not come.
    fn delete(&self) {
        let Some(extraneous) = &self.extraneous else { return };
        let mut extraneous = crate::locked(extraneous);
        let has_failed = self.is_incomplete() || self.shared.has_failed_in(&self.own_path());
        if has_failed {
            return;
        }
        if extraneous.has_leftovers && !self.shared.options.dry_run {
            self.delete_leftovers();
        }
        let unlisted = |fault| {
            let fault = match fault {
                Fault::System(error) => Fault::Explained(error, "cannot delete extraneous entries in it"),
                fault => fault,
            };
            self.shared.report(&self.own_path(), fault);
        };
        let mut names = match extraneous.take().and_then(|names| self.without_those_that_came(names)) {
            Ok(names) => names,
            Err(error) => return unlisted(error),
        };
        if names.current().is_none() {
            return;
        }
        if let Some(why) = self.why_kept() {
            return self.shared.report(&self.own_path(), why);
        }
        if self.shared.options.delete_after || self.may_be_two {
            return self.defer(&mut names).unwrap_or_else(unlisted);
        }
        let device = fstat(&self.fd).map_or(0, |stat| stat.st_dev);
        let remover = Remover { shared: &self.shared, device, is_room: false, trial: None };
        let top = self.top_path();
        while let Some((_, name)) = names.current() {
            remover.delete(self.fd.as_fd(), name, &top, &self.path_below_top(name.to_bytes()));
            if let Err(error) = names.advance() {
                return unlisted(error);
            }
        }
    }

    /// Path of an entry of the directory, for reports.
    pub fn path(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.own_path();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend(name);
        path
    }

    /// Path of an entry as it is reported to the caller: relative to the destination, or to a single source. An empty
    /// name stands for the directory itself.
    pub fn told_path(&self, name: &[u8]) -> Vec<u8> {
        let names = self.names_to(name);
        names[(1 + usize::from(self.shared.has_named_root())).min(names.len())..].join(&b'/')
    }

    /// Path of an entry relative to the destination, or, below a single root, relative to that root.
    pub fn tree_path(&self, name: &[u8]) -> Vec<u8> {
        let names = self.names_to(name);
        let is_below_root = names.len() > 2 && self.shared.has_named_root();
        names[1 + usize::from(is_below_root)..].join(&b'/')
    }

    /// The destination's path with a slash at the end.
    pub fn top_path(&self) -> Vec<u8> {
        [self.names()[0], b"/"].concat()
    }

    /// Path of the single root in the destination, or of the destination itself.
    pub fn root_path(&self) -> Vec<u8> {
        match self.shared.root_name().filter(|name| *name != b".") {
            Some(name) => self.path(name),
            None => self.own_path(),
        }
    }

    fn own_path(&self) -> Vec<u8> {
        let path = self.names().join(&b'/');
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// The destination's path, followed by the names of the directories down to this one.
    pub fn names(&self) -> Vec<&[u8]> {
        self.names_to(b"")
    }

    /// The same, followed by the name of an entry here, unless that is empty.
    pub fn names_to<'a>(&'a self, name: &'a [u8]) -> Vec<&'a [u8]> {
        let places = successors(Some(&self.place), |place| place.parent.as_ref()).map(|place| &*place.name);
        let mut names: Vec<_> = Some(name).filter(|name| !name.is_empty()).into_iter().chain(places).collect();
        names.reverse();
        names
    }

    /// Name that an entry gets here: its own, unless it is the root and gets another name.
    pub fn final_name<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        match (&self.last, self.shared.root_name()) {
            (None, Some(other)) => other,
            _ => name,
        }
    }

    fn finish(&self) -> Result<(), Fault> {
        let options = &self.shared.options;
        if self.is_resumed {
            self.clear()?
        } else {
            self.delete();
            // This includes markers of files that have just been deleted.
            let has_leftovers = |all: &Mutex<Extraneous>| crate::locked(all).has_leftovers;
            if self.extraneous.as_ref().is_some_and(has_leftovers) && !options.dry_run {
                let _ = unfinished::remove_stale(self.fd.as_fd());
            }
        }
        self.check_emptied();
        if options.dry_run {
            return Ok(());
        }
        for name in self.left.iter().flat_map(|left| std::mem::take(&mut *crate::locked(left))) {
            match if self.has_come_otherwise(&name.0) { Ok(()) } else { partial::remove(&self.fd, &name.0) } {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.left.is_some() {
            unfinished::remove_stale(self.fd.as_fd())?;
        }
        let opened = Object::Open(self.fd.as_fd());
        // A directory merged into the top gets its mode with its other metadata.
        let closed = self.take_closed().filter(|_| self.is_top());
        closed.map_or(Ok(()), |mode| opened.set_mode(mode & 0o7777))?;
        let held = self.shared.backup.as_ref().map(Backup::hold);
        let applied = self.last.as_ref().map_or_else(Applied::default, |last| {
            if self.keeps_metadata {
                let mut applied = Applied::default();
                let set = last.mode.map_or(Ok(()), |mode| opened.set_mode(mode));
                applied.note(parts::MODE, set);
                return applied.of(last.current.uid);
            }
            let described = last.metadata.borrow();
            let stat = fstat(&self.fd).ok().filter(|_| options.sync);
            if stat.is_some_and(|stat| differing(&self.shared, opened, &stat, &described, last.mode) == 0) {
                return Applied::default();
            }
            let described = stat.map_or(described, |stat| with_same_time(options, &stat, &described));
            self.shared.setter.apply(options, opened, &described, last.mode, last.current)
        });
        drop(held);
        let is_set = applied.unset.is_none();
        self.shared.note(applied, || self.own_path());
        if options.syncs() {
            if let Some(backup) = &self.shared.backup {
                backup.sync(self.shared.below_destination(&self.path_below_top(b"")))?;
            }
            sync_directory(&self.fd)?;
        }
        if self.last.is_some() && is_set { Ok(self.list_itself()?) } else { Ok(()) }
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        // After a failure the directory stays as it is, open to its owner, so that the copy can be run again.
        let is_stopped = || self.shared.is_stopped.load(Ordering::Acquire);
        if !is_stopped()
            && let Err(error) = self.finish()
        {
            self.shared.report(&self.own_path(), error);
            // It gets its name all the same.
            if self.unnamed.is_some() && !is_stopped() {
                partial::unmark(&self.fd);
            }
        }
        // DST itself was there before, and the copy may never be run again.
        if let Some(mode) = self.take_closed() {
            let _ = Object::Open(self.fd.as_fd()).set_mode(mode & 0o7777);
        }
        let Some(Unnamed { parent, partial, name, .. }) = &self.unnamed else { return };
        let is_ours = || partial::is_named(&parent.fd, &**partial, &self.fd);
        // If no entry of a list has come, there is no directory, as with rsync, unless a path leads through SRC itself.
        let is_unused = || self.keeps_metadata && unlinkat(&parent.fd, partial, AtFlags::REMOVEDIR).is_ok();
        if is_ours() && is_unused() {
            return;
        }
        let mut is_offered = false;
        if !is_stopped() {
            let publish = || publish_directory(parent.fd.as_fd(), partial, name);
            match if is_ours() { publish() } else { Err(Errno::STALE) } {
                Ok(()) => return,
                Err(error @ (Errno::NOTEMPTY | Errno::EXIST)) => {
                    is_offered = true;
                    self.shared.fail(&self.own_path(), Fault::Explained(error, MADE_MEANWHILE));
                }
                Err(error) => self.shared.fail(&self.own_path(), error),
            }
        }
        if !self.shared.is_trusted.load(Ordering::Relaxed) && is_ours() {
            let _ = partial::remove(&parent.fd, partial);
        }
        // An empty partial directory is of no use.
        if is_ours() && unlinkat(&parent.fd, partial, AtFlags::REMOVEDIR).is_err() {
            // It may have its final mode, which it keeps if it is whole.
            if !is_offered {
                partial::take_back_tree(&parent.fd, &self.fd);
            }
            self.shared.keep(parent.path(partial.as_bytes()));
        }
    }
}

const MADE_MEANWHILE: &str = "created by someone else in the meantime; the copied data is beside it in .HASH.rd-part";

/// Opens the entry at `path` below the top as a place only, without following a link at any step.
///
/// # Errors
///
/// The error that stopped the way to it; EINVAL if the entry is not of a `wanted` kind, or is a directory.
pub(super) fn find(top: &OpenDirectory, path: &[u8], wanted: impl Fn(FileType) -> bool) -> Result<OwnedFd, Errno> {
    let mut here: Option<OwnedFd> = None;
    if top.shared.options.no_implied_dirs && !path.split(|&byte| byte == b'/').any(is_temporary_name) {
        here = open_beneath(&top.fd, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).ok();
    }
    let mut names = path.split(|&byte| byte == b'/').peekable();
    let is_found = here.is_some();
    while let Some(name) = names.next().filter(|_| !is_found) {
        if is_temporary_name(name) {
            return Err(Errno::INVAL);
        }
        let mut flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECTORY, names.peek().is_some());
        let from = here.as_ref().map_or(top.fd.as_fd(), AsFd::as_fd);
        here = Some(match openat(from, name, flags, Mode::empty()) {
            // The first component may be a tree that is not done yet, under its partial name.
            Err(Errno::NOENT) if here.is_none() => {
                openat(from, name_beside(name, PARTIAL), flags | OFlags::DIRECTORY, Mode::empty())?
            }
            found => found?,
        });
    }
    let found = here.ok_or(Errno::NOENT)?;
    let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if kind != FileType::Directory && wanted(kind) { Ok(found) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests;
