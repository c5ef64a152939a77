//! `--snapshot`: a generation beside the earlier ones, and the link `latest` that leads to the last that is whole.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::control::IoFact;
use rd_proto::tree::is_name;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, fsync, openat, readlinkat_raw, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::TreeSink;
use crate::fs::{WHOLE, identity, io_fact, is_temporary_name, name_beside, plain_fact};
use crate::options::{LATEST, TreeOptions};

const IS_NO_LINK: &str = "is not a symbolic link: --snapshot needs the name for one that leads to the last generation";

/// The directory of generations, and the name of the one that is made.
pub(super) struct Snapshot {
    generations: OwnedFd,
    name: Vec<u8>,
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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match above {
            Some(above) => openat(above, ".", flags, Mode::empty()),
            None => openat(top, if is_dst { "." } else { ".." }, flags, Mode::empty()),
        };
        let snapshot = Self { generations: opened.map_err(|error| io_fact(path, error))?, name };
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
        Ok(Some(snapshot))
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
    /// It leads nowhere, or elsewhere (PERM).
    pub fn latest(&self) -> Result<Option<OwnedFd>, Errno> {
        if self.stat(LATEST).is_err_and(|error| error == Errno::NOENT) {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let latest = openat(&self.generations, LATEST, flags, Mode::empty())?;
        let above = statat(&latest, "..", AtFlags::empty())?;
        if identity(&above) != identity(&fstat(&self.generations)?) {
            return Err(Errno::PERM);
        }
        let is_own =
            self.stat(&self.name).is_ok_and(|own| fstat(&latest).is_ok_and(|it| identity(&it) == identity(&own)));
        Ok((!is_own).then_some(latest))
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
        symlinkat(&self.name, &self.generations, &beside)?;
        renameat(&self.generations, &beside, &self.generations, LATEST)?;
        if options.syncs() { fsync(&self.generations) } else { Ok(()) }
    }
}

impl TreeSink {
    /// The generation is the last one from here on, if all of it is there.
    pub(super) fn switch(&self) {
        let shared = &self.shared;
        let is_whole = self.unsent == 0 && shared.spared.load(Relaxed) == 0 && shared.failures().count == 0;
        if let Some(snapshot) = &self.snapshot
            && is_whole
            && !shared.options.dry_run
            && shared.options.generations.session.is_last
            && let Err(error) = snapshot.switch(&shared.options)
        {
            shared.report(LATEST, error);
        }
    }
}
