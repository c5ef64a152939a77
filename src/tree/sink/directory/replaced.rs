//! Directories that make way for entries of another kind: with `--delete` any of which nothing has to stay, otherwise
//! only empty ones. A directory makes way when its successor is whole, because the sender may turn out to be unable to
//! read that.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{AtFlags, Stat, fstat, unlinkat};
use rustix::io::Errno;

use super::super::delete::{Remover, Trial};
use super::super::{Fault, rehearse};
use super::OpenDirectory;
use crate::fault::shown_path;
use crate::fs::is_directory;

const NEEDS_DELETE: &str = "a directory is replaced only with --delete";
const IS_TOO_MUCH: &str =
    "it is to be replaced, but that would delete more than --max-delete still allows; use a higher limit";
const MAY_BE_OTHERS: &str = "it is to be replaced, but one of the merged SRC is empty (not mounted?), and what is in \
     it may have come from there; use --force-empty to delete it anyway";
/// Also keeps the error from being taken for one of making the new entry.
const NOT_REMOVED: &str = "it is to be replaced, but not all of it can be deleted";
const SOME_STAYS: &str =
    "some of it stays, because it changed while it was deleted, or --max-delete was reached; run this again";

impl OpenDirectory {
    /// Checks whether what is in the way of an entry of another kind could make way for it. A directory does so when
    /// that entry is whole ([`Self::remove_replaced_directory`]). In a dry run it counts as removed at once.
    pub fn check_way(&self, name: &[u8], old: &Stat) -> Result<(), Fault> {
        if !is_directory(old) {
            return Ok(());
        }
        match self.shared.options.dry_run {
            true => self.clear_way(name, old)?,
            false => self.check_contents(name, old)?,
        }
        crate::locked(&self.in_the_way).insert(name.to_vec());
        Ok(())
    }

    /// Whether a directory of this name is to make way for an entry of another kind.
    pub fn is_replaced_directory(&self, name: &[u8]) -> bool {
        crate::locked(&self.in_the_way).contains(name)
    }

    /// Removes the directory of this name if it is to make way for an entry, which is whole now.
    pub fn remove_replaced_directory(&self, name: &[u8]) -> Result<(), Fault> {
        if !self.is_replaced_directory(name) {
            return Ok(());
        }
        self.stat(name).map_or(Ok(()), |old| self.clear_way(name, &old))
    }

    /// Removes a directory where an entry of another kind is to be made: only an empty directory, or with `--delete`
    /// any. Nothing is removed if it is known beforehand that some of it would stay. Part of it is removed if others
    /// change it meanwhile, or use up `--max-delete`. Entries of other kinds are replaced by the new one in one step.
    pub fn clear_way(&self, name: &[u8], old: &Stat) -> Result<(), Fault> {
        if !is_directory(old) {
            return Ok(());
        }
        // Once more, because others may have made entries since, and the limit may have been reached.
        self.check_contents(name, old)?;
        let options = &self.shared.options;
        if options.delete {
            return match self.remove_with_contents(name, old, None) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Fault::Explained(Errno::NOTEMPTY, SOME_STAYS)),
                Err(Fault::System(error)) if error != Errno::BUSY => Err(Fault::Explained(error, NOT_REMOVED)),
                Err(fault) => Err(fault),
            };
        }
        match if options.dry_run { Ok(()) } else { unlinkat(&self.fd, name, AtFlags::REMOVEDIR) } {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error @ (Errno::NOTEMPTY | Errno::EXIST)) => Err(Fault::Explained(error, NEEDS_DELETE)),
            Err(error) => Err(Fault::Explained(error, NOT_REMOVED)),
        }
    }

    /// Checks that a directory, and with `--delete` everything in it, could be removed.
    ///
    /// # Errors
    ///
    /// Names the first entry that would stay. With `--max-delete`, all entries count as kept if they are too many.
    fn check_contents(&self, name: &[u8], old: &Stat) -> Result<(), Fault> {
        let (shared, own_path) = (&self.shared, self.path(name));
        // As for every EBUSY, the reason is added where the failure is recorded.
        if old.st_dev != fstat(&self.fd)?.st_dev {
            return Err(Errno::BUSY.into());
        }
        let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let is_empty = || rehearse::is_empty(&self.fd, &c_name);
        if self.why_kept().is_some() && is_empty() != Ok(true) {
            return Err(Fault::Explained(Errno::NOTEMPTY, MAY_BE_OTHERS));
        }
        if !shared.options.delete {
            return match is_empty() {
                Ok(false) => Err(Fault::Explained(Errno::NOTEMPTY, NEEDS_DELETE)),
                Err(error) if shared.options.dry_run => Err(error.into()),
                _ => Ok(()),
            };
        }
        let trial = RefCell::default();
        let tried = self.remove_with_contents(name, old, Some(&trial));
        let Trial { count, first_kept } = trial.into_inner();
        if let Some((inner, fault)) = first_kept {
            let Fault::Explained(error, why) = fault else { return Err(fault) };
            let shown = shown_path(&[&own_path[..], &inner].concat());
            return Err(Fault::At(error, own_path, format!("it is to be replaced, but {shown} {why}")));
        }
        tried?;
        let most = shared.options.max_delete.unwrap_or(u64::MAX);
        if shared.counts.deleted.load(Relaxed).saturating_add(count) > most {
            shared.counts.spared.fetch_add(count, Relaxed);
            return Err(Fault::Explained(Errno::NOTEMPTY, IS_TOO_MUCH));
        }
        Ok(())
    }

    /// Removes a directory and everything in it, or tries whether that would be possible. Returns whether it is gone.
    fn remove_with_contents(&self, name: &[u8], old: &Stat, trial: Option<&RefCell<Trial>>) -> Result<bool, Fault> {
        let path = self.path_below_top(name);
        let remover = Remover { shared: &self.shared, device: old.st_dev, is_room: true, trial };
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        remover.remove(self.fd.as_fd(), &name, self.shared.below_destination(&path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::Ordering::Release;

    use rd_proto::tree::Metadata;

    use super::super::super::TreeSink;
    use super::super::super::target::Partial;
    use super::*;
    use crate::options::TreeOptions;

    fn sink(top: &Path, delete: bool) -> TreeSink {
        fs::create_dir(top.join("x")).expect("a directory");
        let options = TreeOptions { sync: true, delete, ..TreeOptions::default() };
        TreeSink::new(top, options, Box::new(|_| {})).expect("a sink")
    }

    #[test]
    fn a_mount_point_does_not_make_way() {
        for delete in [false, true] {
            let scratch = tempfile::tempdir().expect("a directory");
            let sink = sink(scratch.path(), delete);
            let top = sink.levels[0].as_ref().expect("the top");
            let mut old = top.stat(b"x").expect("there");
            old.st_dev += 1;
            assert_eq!(top.check_way(b"x", &old), Err(Errno::BUSY.into()));
            assert_eq!(top.clear_way(b"x", &old), Err(Errno::BUSY.into()));
            assert!(scratch.path().join("x").exists());
        }
    }

    /// A file is resumed only if it has neither its final mode nor its final owner yet.
    #[test]
    fn a_file_can_be_resumed_until_a_directory_has_made_way_for_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let sink = sink(scratch.path(), true);
        let top = sink.levels[0].as_ref().expect("the top");
        top.check_way(b"x", &top.stat(b"x").expect("there")).expect("it can go");
        let partial = Partial::named(top, b"x", true).expect("a file");
        sink.shared.is_stopped.store(true, Release);
        let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
        assert!(partial.publish(top, b"x", &metadata).is_err());
        assert_eq!(fstat(&partial.file).expect("open").st_mode & 0o7777, 0o600);
        assert!(scratch.path().join("x").exists());
    }
}
