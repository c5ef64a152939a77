//! `--snapshot`: makes a generation beside the earlier ones, and has the link `latest` lead to the last one that is
//! whole.
//!
//! Like a file that is written in place, a generation is marked by `.HASH.rd-half` beside it. The marker is made before
//! anything of the generation exists, and stays until everything does. An existing generation without a marker is whole
//! and does not change any more, see `check_generation` in `agent/place.rs`. The generation to which `latest` leads is
//! whole, too, even if a kill has kept its marker. The next run goes on with a marked generation, and removes entries
//! that do not come any more. If several entries come into a generation, possibly in several sessions, each existing
//! entry has a marker in it until it comes. If `latest` leads to a generation that its user has removed, the link goes
//! before that generation is made again.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rd_proto::control::IoFact;
use rd_proto::tree::{Record, is_name};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat_raw, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use super::unfinished::{is_marked_in, is_marker, remove_marks};
use super::{HELD_MAX, TreeSink};
use crate::fs::{
    DIRECTORY, PARTIAL, PLACE, UNFINISHED, WHOLE, identity, io_fact, is_directory, is_temporary_name, name_beside,
    partial, plain_fact, sync_directory,
};
use crate::options::{LATEST, TreeOptions};
use crate::tree::Fault;

const NO_MARKER: &str = "cannot create the marker of an unfinished generation beside it";

const MARKED_BY_OTHERS: &str = "this marker is closed to this user, so another user's copy may be writing to the \
                                generation; have it removed if not";

const FINISHED: &str = "another run has just completed this generation, so it is not changed; choose another NAME";

const NOT_UNMARKED: &str = "cannot remove the marker that an interrupted run left beside it";

const NOT_LISTED: &str = "cannot find out whether an interrupted run left it under another spelling";

const NOT_CLEARED: &str = "cannot remove entries that an interrupted run left and SRC no longer has";

const LEADS_OUT: &str = "leads out of the directory of generations; nothing is linked to it";

const LED_HERE: &str = "led to this generation, which has been removed; nothing is linked to it";

const HAS_NO_LINKS: &str = "--snapshot needs a file system with symbolic links, for latest; choose another DST";

const IS_NO_LINK: &str = "is not a symbolic link; --snapshot needs this name for its link to the latest generation";

/// The directory of generations, and the name of the generation that is made.
pub(super) struct Snapshot {
    generations: OwnedFd,
    name: Vec<u8>,
    is_dst: bool,
    /// The marker beside the generation, held; `None` in a dry run.
    marker: Option<OwnedFd>,
    /// Whether an earlier run has left the generation unfinished.
    was_left: bool,
}

impl Snapshot {
    /// Opens the generation of a tree that is written into `top`. `above` is the directory in which a missing `top`
    /// would be made; `top` may be missing in a dry run.
    ///
    /// # Errors
    ///
    /// Fails if the name not a valid name for a generation, or if `latest` is not a link.
    pub fn open(top: &OpenDirectory, above: Option<&OwnedFd>) -> Result<Option<Self>, IoFact> {
        let (root, options) = (top.shared.root_name(), &top.shared.options);
        let generations = &options.generations;
        let Some(name) = &generations.snapshot else { return Ok(None) };
        let (path, name) = (OsStr::from_bytes(name), name.to_vec());
        if !is_name(&name) || name == LATEST || is_temporary_name(&name) {
            return Err(plain_fact(path, "not a valid name for a generation"));
        }
        let is_dst = generations.session.is_dst;
        let opened = match above {
            Some(above) => openat(above, ".", DIRECTORY, Mode::empty()),
            None => openat(&top.fd, if is_dst { "." } else { ".." }, DIRECTORY, Mode::empty()),
        };
        let generations = opened.map_err(|error| io_fact(path, error))?;
        let mut snapshot = Self { generations, name, is_dst, marker: None, was_left: false };
        // If the name were a link, the tree would have been made elsewhere.
        let is_here = match is_dst {
            _ if above.is_some() => true,
            true => root == Some(&snapshot.name[..]),
            false => {
                let both = snapshot.stat(&snapshot.name).ok().zip(fstat(&top.fd).ok());
                both.is_some_and(|(named, top)| is_directory(&named) && identity(&named) == identity(&top))
            }
        };
        if !is_here {
            return Err(plain_fact(path, "is a symbolic link; a generation must be a directory"));
        }
        snapshot.check_latest().map_err(|error| match error {
            Errno::EXIST => plain_fact(OsStr::from_bytes(LATEST), IS_NO_LINK),
            error => io_fact(OsStr::from_bytes(LATEST), error),
        })?;
        if !options.dry_run {
            let marked = snapshot.mark(options).map_err(|error| match error {
                Errno::BUSY => Fault::Explained(error, partial::HELD),
                Errno::EXIST => Fault::Explained(error, FINISHED),
                Errno::ACCESS if snapshot.marker.is_none() && is_marked_in(&snapshot.generations, &snapshot.name) => {
                    Fault::At(error, snapshot.beside().into_bytes(), MARKED_BY_OTHERS.to_owned())
                }
                error => Fault::Explained(error, NO_MARKER),
            });
            marked.map_err(|fault| fault.into_fact(path))?;
            let latest = OsStr::from_bytes(LATEST);
            if snapshot.drop_latest(options).map_err(|error| io_fact(latest, error))? {
                top.shared.remark(plain_fact(latest, LED_HERE));
            }
            snapshot.try_link().map_err(|fault| fault.into_fact(latest))?;
        }
        Ok(Some(snapshot))
    }

    /// Removes `latest` if it leads to the generation, which is still to be made: its user has removed an earlier one of
    /// this name. Otherwise what comes would be taken for whole from the beginning. Returns whether it did.
    fn drop_latest(&self, options: &TreeOptions) -> Result<bool, Errno> {
        let mut leads_to = [0; 512];
        let length = readlinkat_raw(&self.generations, LATEST, &mut leads_to[..]).unwrap_or(0);
        let leads = statat(&self.generations, LATEST, AtFlags::empty()).map(|latest| identity(&latest));
        let leads_here = last_name(&leads_to[..length]) == self.name
            && leads == self.stat(&self.name).map(|own| identity(&own))
            && !options.generations.session.follows;
        if leads_here {
            unlinkat(&self.generations, LATEST, AtFlags::empty())?;
            if options.syncs() {
                sync_directory(&self.generations)?;
            }
        }
        Ok(leads_here)
    }

    /// Checks that `latest` can be made, before a copy that may take hours. No other run makes this probe, because this
    /// one holds the generation.
    fn try_link(&self) -> Result<(), Fault> {
        if self.stat(LATEST).is_ok() {
            return Ok(());
        }
        let probe = name_beside(&self.name, WHOLE);
        match symlinkat(&self.name, &self.generations, &probe) {
            // A killed run may have left it.
            Ok(()) | Err(Errno::EXIST) => Ok(unlinkat(&self.generations, &probe, AtFlags::empty())?),
            Err(error @ (Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS)) => Err(Fault::Explained(error, HAS_NO_LINKS)),
            Err(error) => Err(error.into()),
        }
    }

    /// Marks the generation as unfinished. If an earlier run has left it, also marks each entry that must come again.
    fn mark(&mut self, options: &TreeOptions) -> Result<(), Errno> {
        let beside = self.beside();
        let open = || partial::open_mark(&self.generations, &beside);
        let opened = partial::patiently(Instant::now() + HELD_MAX, || false, open);
        let (marker, was_there) = opened.map_err(|blocked| blocked.error)?;
        self.marker = Some(marker);
        if options.syncs() {
            sync_directory(&self.generations)?;
        }
        self.was_left = was_there;
        if !was_there && !options.generations.session.follows && self.has_entries() {
            // When it was checked before, the generation was missing or marked: another run has finished it since.
            self.unmark();
            return Err(Errno::EXIST);
        }
        if self.is_dst || !was_there || options.generations.session.follows {
            return Ok(());
        }
        let top = self.open_top()?;
        partial::for_each(&top, |name| {
            if is_temporary_name(name.to_bytes()) {
                return Ok(());
            }
            let beside = name_beside(name.to_bytes(), UNFINISHED);
            partial::open_mark(&top, &beside).map_err(|blocked| blocked.error).map(drop)
        })
    }

    /// Name of the generation's marker.
    fn beside(&self) -> String {
        name_beside(&self.name, UNFINISHED)
    }

    fn open_top(&self) -> Result<OwnedFd, Errno> {
        openat(&self.generations, &self.name, DIRECTORY, Mode::empty())
    }

    /// Whether an earlier run has left this entry of `top`, and it has not come yet. An entry of another kind is
    /// removed. The entry's mark is removed, perhaps one for another spelling of its name.
    fn was_left(&self, top: &OpenDirectory, name: &[u8], is_directory: bool) -> bool {
        if !self.was_left || self.is_dst {
            return self.was_left;
        }
        let is_marked = |name: &[u8]| is_marked_in(&top.fd, name);
        let spellings = if is_marked(name) { Ok(vec![name.to_vec()]) } else { top.other_spellings(name) };
        let marked: Vec<_> = match spellings {
            Ok(names) => names.into_iter().filter(|name| is_marked(name)).collect(),
            Err(error) => {
                top.shared.fail(&top.path(name), Fault::Explained(error, NOT_LISTED));
                return false;
            }
        };
        if marked.is_empty() {
            return false;
        }
        let found = statat(&top.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let was_directory = found.map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        if was_directory.is_ok_and(|was_directory| was_directory != is_directory) {
            // If this fails, making the entry fails as well, and that is reported.
            let _ = partial::remove(&top.fd, name);
        }
        // No other run holds the mark, because this one holds the generation. An entry that is still marked at the end
        // would be removed, so the generation must not be finished then.
        for marked in &marked {
            match unlinkat(&top.fd, name_beside(marked, UNFINISHED), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => top.shared.fail(&top.path(name), Fault::Explained(error, NOT_UNMARKED)),
            }
        }
        was_directory == Ok(true)
    }

    /// Removes entries at the top that an earlier run has left and that have not come in this one.
    fn clear(&self) -> Result<(), Errno> {
        if !self.was_left || self.is_dst {
            return Ok(());
        }
        let top = self.open_top()?;
        partial::for_each(&top, |name: &CStr| match name.to_bytes() {
            temporary if is_marker(temporary) => Ok(()),
            temporary if is_temporary_name(temporary) => partial::make_way(top.as_fd(), temporary),
            left if is_marked_in(&top, left) => {
                partial::remove(&top, name)?;
                unlinkat(&top, name_beside(left, UNFINISHED), AtFlags::empty())
            }
            _ => Ok(()),
        })?;
        remove_marks(top.as_fd(), |_| false)
    }

    /// Whether anything exists under the generation's name.
    fn has_entries(&self) -> bool {
        match self.open_top() {
            Err(error) => error != Errno::NOENT,
            Ok(top) => partial::has_any(top, |_| true) != Ok(false),
        }
    }

    /// Whether nothing of the generation exists.
    fn is_void(&self) -> bool {
        !self.has_entries()
            && self.stat(name_beside(&self.name, PARTIAL).as_bytes()).is_err_and(|error| error == Errno::NOENT)
    }

    /// Removes the marker of the generation, which is whole. Also removes markers of generations that no longer exist,
    /// unless a new generation is on the way, which has no name yet. Another existing generation keeps its marker,
    /// because without the marker it would count as whole.
    fn unmark(&self) {
        let Some(marker) = &self.marker else { return };
        partial::remove_named(&self.generations, &*self.beside(), marker);
        // The locks of markers alone do not tell: not every file system has locks that reach other hosts.
        let is_made = |name: &CStr| {
            let is_partial = is_temporary_name(name.to_bytes()) && name.to_bytes().ends_with(PARTIAL.as_bytes());
            is_partial && self.stat(name.to_bytes()).is_ok_and(|found| is_directory(&found))
        };
        if partial::has_any(&self.generations, is_made) == Ok(false) {
            let _ = remove_marks(self.generations.as_fd(), |_| false);
        }
    }

    fn stat(&self, name: &[u8]) -> Result<Stat, Errno> {
        statat(&self.generations, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Checks that `latest`, if it exists, is a link.
    ///
    /// # Errors
    ///
    /// EXIST if it is not.
    fn check_latest(&self) -> Result<(), Errno> {
        match self.stat(LATEST) {
            Err(Errno::NOENT) => Ok(()),
            found if FileType::from_raw_mode(found?.st_mode) == FileType::Symlink => Ok(()),
            _ => Err(Errno::EXIST),
        }
    }

    /// Opens the generation to which `latest` leads; `None` if there is none, or if it is the one that is made.
    ///
    /// # Errors
    ///
    /// Fails if `latest` leads nowhere, or out of the directory of generations.
    pub fn latest(&self) -> Result<Option<OwnedFd>, Fault> {
        if self.stat(LATEST).is_err_and(|error| error == Errno::NOENT) {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let latest = openat(&self.generations, LATEST, flags, Mode::empty())?;
        let above = statat(&latest, "..", AtFlags::empty())?;
        if identity(&above) != identity(&fstat(&self.generations)?) {
            return Err(Fault::Detail(LEADS_OUT));
        }
        let is_own =
            self.stat(&self.name).is_ok_and(|own| fstat(&latest).is_ok_and(|it| identity(&it) == identity(&own)));
        Ok((!is_own).then_some(latest))
    }

    /// Opens the newest generation that is not whole, if it is newer than the one to which `latest` leads. Some entry
    /// may fail every night, while all the others are there.
    pub fn last_marked(&self) -> Option<OwnedFd> {
        let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
        let latest = statat(&self.generations, LATEST, AtFlags::empty()).ok();
        let mut newest = latest.as_ref().map(|latest| (changed(latest), None));
        let look = |name: &CStr| {
            let bytes = name.to_bytes();
            let found = self.stat(bytes).ok().filter(is_directory);
            let is_newer = |stat: &Stat| newest.as_ref().is_none_or(|(known, _)| changed(stat) > *known);
            if let Some(stat) = found.filter(is_newer)
                && bytes != self.name
                && !is_temporary_name(bytes)
                && is_marked_in(&self.generations, bytes)
            {
                newest = Some((changed(&stat), Some(name.to_owned())));
            }
            Ok::<(), Errno>(())
        };
        partial::for_each(&self.generations, look).ok()?;
        openat(&self.generations, newest?.1?, PLACE, Mode::empty()).ok()
    }

    /// Removes the marker that a kill may have kept of the generation to which `latest` leads. That generation is
    /// whole, and stays whole when `latest` leads elsewhere.
    fn unmark_latest(&self, leads_to: &[u8]) {
        let name = last_name(leads_to);
        let latest = statat(&self.generations, LATEST, AtFlags::empty()).map(|latest| identity(&latest));
        if is_name(name) && latest.is_ok_and(|latest| self.stat(name).is_ok_and(|named| identity(&named) == latest)) {
            let _ = partial::make_way(self.generations.as_fd(), name_beside(name, UNFINISHED).as_bytes());
        }
    }

    /// Makes `latest` lead to the generation, in one step.
    ///
    /// # Errors
    ///
    /// The error of the system; then `latest` leads where it did before.
    pub fn switch(&self, options: &TreeOptions) -> Result<(), Errno> {
        if !is_directory(&self.stat(&self.name)?) {
            return Err(Errno::NOTDIR);
        }
        self.check_latest()?;
        let mut leads_to = [0; 512];
        let read = readlinkat_raw(&self.generations, LATEST, &mut leads_to[..]);
        if read.is_ok_and(|length| leads_to[..length] == self.name) {
            return Ok(());
        }
        // No other run uses this name, because this one holds the generation.
        let beside = name_beside(&self.name, WHOLE);
        match unlinkat(&self.generations, &beside, AtFlags::empty()) {
            // A killed run has left this name.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.unmark_latest(&leads_to[..read.unwrap_or(0)]);
        symlinkat(&self.name, &self.generations, &beside)?;
        renameat(&self.generations, &beside, &self.generations, LATEST)?;
        if options.syncs() { sync_directory(&self.generations) } else { Ok(()) }
    }
}

/// Returns the last name of the path to which a link leads.
fn last_name(leads_to: &[u8]) -> &[u8] {
    leads_to.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or_default()
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(marker) = &self.marker
            && self.is_void()
        {
            partial::remove_named(&self.generations, &*self.beside(), marker);
        }
    }
}

impl TreeSink {
    /// Whether an earlier run has left an entry where this one is to come, so that this run goes on with it.
    pub(super) fn was_left(&self, directory: &OpenDirectory, entry: &Record<'_>) -> bool {
        let (Some(snapshot), Some(name)) = (&self.snapshot, entry.name()) else { return false };
        let is_directory = matches!(entry, Record::Directory { .. });
        directory.is_top() && snapshot.was_left(directory, directory.final_name(name), is_directory)
    }

    /// Makes `latest` lead to the generation, if all of it is there.
    pub(super) fn switch(&self) {
        let shared = &self.shared;
        let is_whole =
            self.unsent == 0 && shared.counts.spared.load(Relaxed) == 0 && crate::locked(&shared.failures).count == 0;
        let is_last = shared.options.generations.session.is_last && !shared.options.dry_run;
        let Some(snapshot) = self.snapshot.as_ref().filter(|_| is_whole && is_last) else { return };
        if let Err(error) = snapshot.clear() {
            return shared.report(&snapshot.name, Fault::Explained(error, NOT_CLEARED));
        }
        match snapshot.switch(&shared.options) {
            Ok(()) => snapshot.unmark(),
            Err(error) => shared.report(LATEST, error),
        }
    }
}
