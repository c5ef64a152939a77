//! `--snapshot`: a generation beside the earlier ones, and the link `latest` that leads to the last that is whole.
//!
//! A generation is marked, as a file that is written in place is, before anything of it is there, until all of it is:
//! `.HASH.rd-half` beside it. One that is there without the marker is whole and does not change any more, see
//! `check_generation` in `agent/place.rs`; so is one that `latest` leads to, of which a kill has kept the marker. With one
//! that is marked the next run goes on, and what does not come any more is removed. Where several entries come into it, maybe
//! with several sessions, each that was there is marked in it until it comes.

use std::ffi::{CStr, CString, OsStr};
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
    DIRECTORY, PARTIAL, PLACE, UNFINISHED, WHOLE, identity, io_fact, is_temporary_name, name_beside, partial,
    plain_fact, sync_directory,
};
use crate::options::{LATEST, TreeOptions};
use crate::tree::Fault;

const NO_MARKER: &str = "what marks the generation as unfinished cannot be made beside it";

const FINISHED: &str = "another run has finished this generation meanwhile, so it is not changed: choose another NAME";

const NOT_CLEARED: &str = "what an interrupted run has left in it, and SRC has no more, cannot be removed";

const LEADS_OUT: &str = "leads out of the directory of generations; nothing is linked to what is there";

const IS_NO_LINK: &str = "is not a symbolic link: --snapshot needs the name for one that leads to the last generation";

/// The directory of generations, and the name of the one that is made.
pub(super) struct Snapshot {
    generations: OwnedFd,
    name: Vec<u8>,
    is_dst: bool,
    /// The marker beside it, held; none in a dry run.
    marker: Option<OwnedFd>,
    /// An earlier run has not finished it.
    was_left: bool,
}

impl Snapshot {
    /// Where `top` is what a tree is written into, and `root` the name of its only root, if it gets one. `above`: the directory
    /// that `top` would be made in, where it is missing, as it may be in a dry run.
    ///
    /// # Errors
    ///
    /// The name cannot be that of a generation, or `latest` is something else.
    pub fn open(
        top: &OwnedFd,
        above: Option<&OwnedFd>,
        root: Option<&[u8]>,
        options: &TreeOptions,
    ) -> Result<Option<Self>, IoFact> {
        let generations = &options.generations;
        let Some(name) = generations.snapshot.as_ref().map(|name| name.to_vec()) else { return Ok(None) };
        let path = OsStr::from_bytes(generations.snapshot.as_deref().map_or(b"", |name| &name[..]));
        if !is_name(&name) || name == LATEST || is_temporary_name(&name) {
            return Err(plain_fact(path, "cannot be the name of a generation"));
        }
        let is_dst = generations.session.is_dst;
        let opened = match above {
            Some(above) => openat(above, ".", DIRECTORY, Mode::empty()),
            None => openat(top, if is_dst { "." } else { ".." }, DIRECTORY, Mode::empty()),
        };
        let generations = opened.map_err(|error| io_fact(path, error))?;
        let mut snapshot = Self { generations, name, is_dst, marker: None, was_left: false };
        // A link there would have had the tree made elsewhere.
        let is_here = match is_dst {
            _ if above.is_some() => true,
            true => root == Some(&snapshot.name[..]),
            false => snapshot.stat(&snapshot.name).ok().zip(fstat(top).ok()).is_some_and(|(named, top)| {
                FileType::from_raw_mode(named.st_mode) == FileType::Directory && identity(&named) == identity(&top)
            }),
        };
        if !is_here {
            return Err(plain_fact(path, "is a link: a generation is a directory"));
        }
        snapshot.check_latest().map_err(|error| match error {
            Errno::EXIST => plain_fact(OsStr::from_bytes(LATEST), IS_NO_LINK),
            error => io_fact(OsStr::from_bytes(LATEST), error),
        })?;
        if !options.dry_run {
            let marked = snapshot.mark(options).map_err(|error| match error {
                Errno::BUSY => Fault::Explained(error, partial::HELD),
                Errno::EXIST => Fault::Explained(error, FINISHED),
                error => Fault::Explained(error, NO_MARKER),
            });
            marked.map_err(|fault| fault.into_fact(path))?;
        }
        Ok(Some(snapshot))
    }

    /// Marks it as unfinished, and of one that an earlier run has left each entry that is to come once more.
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
            // Looked at before, it was missing, or marked.
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

    /// The name of its marker.
    fn beside(&self) -> String {
        name_beside(&self.name, UNFINISHED)
    }

    fn open_top(&self) -> Result<OwnedFd, Errno> {
        openat(&self.generations, &self.name, DIRECTORY, Mode::empty())
    }

    /// Whether an entry at the top, where `top` is, was left by an earlier run, and has not come yet. One of another kind is
    /// removed.
    fn was_left(&self, top: &OpenDirectory, name: &[u8], is_directory: bool) -> bool {
        if !self.was_left || self.is_dst {
            return self.was_left;
        }
        let Some(name) = CString::new(name).ok().filter(|name| is_marked_in(&top.fd, name.to_bytes())) else {
            return false;
        };
        let found = statat(&top.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        let was_directory = found.map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        if was_directory.is_ok_and(|was_directory| was_directory != is_directory) {
            // Where that fails, so does making the entry, which is reported.
            let _ = partial::remove(&top.fd, &name);
        }
        top.clear_mark(name.to_bytes());
        was_directory == Ok(true)
    }

    /// Removes what an earlier run has left at the top, and what has not come to this one.
    fn clear(&self) -> Result<(), Errno> {
        if !self.was_left || self.is_dst {
            return Ok(());
        }
        let top = self.open_top()?;
        partial::for_each(&top, |name: &CStr| match name.to_bytes() {
            temporary if is_marker(temporary) => Ok(()),
            temporary if is_temporary_name(temporary) => partial::make_way(top.as_fd(), name),
            left if is_marked_in(&top, left) => partial::remove(&top, name),
            _ => Ok(()),
        })?;
        remove_marks(top.as_fd(), |_| false)
    }

    /// Whether anything is there under its name.
    fn has_entries(&self) -> bool {
        let is_empty = |top| partial::for_each(top, |_| Err(Errno::EXIST)).is_ok();
        match self.open_top() {
            Err(error) => error != Errno::NOENT,
            Ok(top) => !is_empty(&top),
        }
    }

    /// Whether nothing of it is there.
    fn is_void(&self) -> bool {
        !self.has_entries()
            && self.stat(name_beside(&self.name, PARTIAL).as_bytes()).is_err_and(|error| error == Errno::NOENT)
    }

    /// It is whole, and `latest` leads to it. Markers of generations that are not there any more go as well; another that is
    /// there is not whole without its own.
    fn unmark(&self) {
        if let Some(marker) = &self.marker {
            partial::remove_named(&self.generations, &*self.beside(), marker);
            let _ = remove_marks(self.generations.as_fd(), |_| false);
        }
    }

    fn stat(&self, name: &[u8]) -> Result<Stat, Errno> {
        statat(&self.generations, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// # Errors
    ///
    /// EXIST if `latest` is there and is no link.
    fn check_latest(&self) -> Result<(), Errno> {
        match self.stat(LATEST) {
            Err(Errno::NOENT) => Ok(()),
            found if FileType::from_raw_mode(found?.st_mode) == FileType::Symlink => Ok(()),
            _ => Err(Errno::EXIST),
        }
    }

    /// The generation that `latest` leads to; none if there is none, or it is the one that is made.
    ///
    /// # Errors
    ///
    /// It leads nowhere, or elsewhere.
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

    /// The newest generation that is not whole, where it is newer than what `latest` leads to: each night some entry may fail, and
    /// all the others be there.
    pub fn last_marked(&self) -> Option<OwnedFd> {
        let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
        let latest = statat(&self.generations, LATEST, AtFlags::empty()).ok();
        let mut newest = latest.as_ref().map(|latest| (changed(latest), None));
        let look = |name: &CStr| {
            let bytes = name.to_bytes();
            let found =
                self.stat(bytes).ok().filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
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

    /// What `latest` leads to is whole, also once it does not any more: a kill may have kept its marker.
    fn unmark_latest(&self, leads_to: &[u8]) {
        let name = leads_to.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
        let latest = statat(&self.generations, LATEST, AtFlags::empty()).map(|latest| identity(&latest));
        if is_name(name)
            && latest.is_ok_and(|latest| self.stat(name).is_ok_and(|named| identity(&named) == latest))
            && let Ok(beside) = CString::new(name_beside(name, UNFINISHED))
        {
            let _ = partial::make_way(self.generations.as_fd(), &beside);
        }
    }

    /// Has `latest` lead to the generation, in one step.
    ///
    /// # Errors
    ///
    /// What the system answered; it leads where it did then.
    pub fn switch(&self, options: &TreeOptions) -> Result<(), Errno> {
        if FileType::from_raw_mode(self.stat(&self.name)?.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        self.check_latest()?;
        let mut leads_to = [0; 512];
        let read = readlinkat_raw(&self.generations, LATEST, &mut leads_to[..]);
        if read.is_ok_and(|length| leads_to[..length] == self.name) {
            return Ok(());
        }
        let beside = name_beside(LATEST, WHOLE);
        match unlinkat(&self.generations, &beside, AtFlags::empty()) {
            // A run that was killed has left it.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.unmark_latest(&leads_to[..read.unwrap_or(0)]);
        symlinkat(&self.name, &self.generations, &beside)?;
        renameat(&self.generations, &beside, &self.generations, LATEST)?;
        if options.syncs() { sync_directory(&self.generations) } else { Ok(()) }
    }
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
    /// Whether what stands where an entry is to come was left there by an earlier run, so that this one goes on with it.
    pub(super) fn was_left(&self, directory: &OpenDirectory, entry: &Record<'_>) -> bool {
        let (Some(snapshot), Some(name)) = (&self.snapshot, entry.name()) else { return false };
        let is_directory = matches!(entry, Record::Directory { .. });
        directory.is_top() && snapshot.was_left(directory, directory.final_name(name), is_directory)
    }

    /// The generation is the last one from here on, if all of it is there.
    pub(super) fn switch(&self) {
        let shared = &self.shared;
        let is_whole = self.unsent == 0 && shared.counts.spared.load(Relaxed) == 0 && shared.failures().count == 0;
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
