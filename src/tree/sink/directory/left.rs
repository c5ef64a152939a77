//! Removes, completes or compares what an earlier transfer has left in a directory.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::{RESUME_BYTES_MIN, Record};
use rustix::fs::{AtFlags, FileType, Mode, openat, statat, unlinkat};
use rustix::io::Errno;

use super::super::unfinished::{self, is_marker};
use super::super::{Fault, SOURCE_IS_EMPTY};
use super::OpenDirectory;
use crate::fs::partial;
use crate::fs::{DIRECTORY, PARTIAL, is_directory, is_regular, is_temporary_name, name_beside};
use crate::options::LATEST;

/// Why nothing is deleted if the source may have entries that are left out. It begins like [`SOURCE_IS_EMPTY`], and so
/// do the others.
const NOTHING_CAME: &str = "was not emptied: the source is empty (not mounted?), or patterns or -m leave out all of \
     it; use --force-empty to delete anyway";

/// Why nothing is deleted that may have come from one of several sources.
const LACKS_SOURCE: &str = "was not emptied: one of the merged SRC is empty (not mounted?), and the rest may have come \
     from it; use --force-empty to delete anyway";

/// Why `latest` is not switched to a generation in which a source is empty.
const LATEST_STAYS: &str = "was not emptied: the source is empty (not mounted?), or patterns or -m leave out all of \
     it; use --force-empty to switch to the empty copy anyway";

/// Why `latest` is not switched to a generation that lacks what may have come from one of several sources.
const LATEST_HAS_MORE: &str = "was not emptied: one of the merged SRC is empty (not mounted?), and the generation \
     before has what may have come from it; use --force-empty to switch anyway";

impl OpenDirectory {
    /// Clears the place for an entry, in a directory that an earlier transfer has left. Returns whether the entry is a
    /// directory that was left as well, and is now completed. A file that was left is replaced or resumed like any
    /// other.
    pub fn make_way(&self, entry: &Record<'_>) -> bool {
        if self.is_resumed {
            self.clear_other_kind(entry);
            return false;
        }
        let (Some(left), Some(name)) = (&self.left, entry.name()) else { return false };
        let mut left = crate::locked(left);
        if matches!(entry, Record::Large { .. }) {
            left.remove(name_beside(name, PARTIAL).as_bytes());
        }
        let is_directory = matches!(entry, Record::Directory { .. });
        match left.remove(name) {
            Some(was_directory) if was_directory != is_directory => {
                // If this fails, making the entry fails as well, and that is reported.
                let _ = partial::remove(&self.fd, name);
                false
            }
            was_directory => was_directory == Some(true),
        }
    }

    /// In a resumed directory, removes a directory where another kind of entry is to be made, or the other way round. A
    /// directory that may have come from a source that is empty now stays, so that the entry fails.
    fn clear_other_kind(&self, entry: &Record<'_>) {
        let stat = entry.name().and_then(|name| Some((name, self.stat(name).ok()?)));
        let is_kept = || self.shared.options.generations.snapshot.is_some() && self.why_kept().is_some();
        if let Some((name, stat)) = stat
            && is_directory(&stat) != matches!(entry, Record::Directory { .. })
            && !(is_directory(&stat) && is_kept())
        {
            let _ = partial::remove(&self.fd, name);
        }
    }

    /// Deletes temporary names that a killed transfer has left for entries that have not come any more; an entry that
    /// has come has taken over its own.
    pub(super) fn delete_leftovers(&self) {
        unfinished::delete_leftovers(self.fd.as_fd());
    }

    /// Removes entries that an earlier transfer has left and this one has not reached.
    pub(super) fn clear(&self) -> Result<(), Fault> {
        let Some(extraneous) = self.extraneous.as_ref().filter(|_| self.is_resumed) else { return Ok(()) };
        // The generation may have the only copy of what cannot be read any more. It stays unfinished.
        if self.is_incomplete() && self.shared.options.generations.snapshot.is_some() {
            return Ok(());
        }
        let mut extraneous = crate::locked(extraneous);
        let mut names = self.without_those_that_came(extraneous.take()?)?;
        // Beside an entry that has come, a leftover may be one that this run has taken over.
        if self.shared.options.generations.snapshot.is_some()
            && (names.current().is_some() || extraneous.has_leftovers && !self.has_met.load(Relaxed))
            && let Some(why) = self.why_kept()
        {
            return Err(why);
        }
        while let Some((_, name)) = names.current() {
            partial::remove(&self.fd, name)?;
            names.advance()?;
        }
        // No other process writes into this directory, and nothing in it is unfinished any more.
        unfinished::remove_stale(self.fd.as_fd())?;
        let is_leftover = |name: &CStr| is_temporary_name(name.to_bytes()) && !is_marker(name.to_bytes());
        partial::for_each(&self.fd, |name| if is_leftover(name) { partial::remove(&self.fd, name) } else { Ok(()) })?;
        Ok(())
    }

    /// Why nothing is removed from a source's directory if nothing has come into it, or if it lacks what would have come
    /// from one of several sources.
    pub(super) fn why_kept(&self) -> Option<Fault> {
        let (shared, options) = (&self.shared, &self.shared.options);
        let is_empty = self.is_source && !self.has_met.load(Relaxed);
        if options.force_empty || !is_empty && !self.lacks_source {
            return None;
        }
        let is_filtered = !shared.patterns.is_empty() || options.prune_empty_dirs;
        Some(Fault::Detail(match (is_empty, is_filtered) {
            (true, true) => NOTHING_CAME,
            (true, false) => SOURCE_IS_EMPTY,
            (false, _) => LACKS_SOURCE,
        }))
    }

    /// Reports a source's directory in a generation into which nothing has come, if an earlier generation has something
    /// there: `latest` is not to lead to what may be the copy of an unmounted disk. Where one of several sources is
    /// empty, anything that only an earlier generation has may have come from it. A dry run, which makes nothing, does
    /// not know that.
    pub(super) fn check_emptied(&self) {
        let (options, generations) = (&self.shared.options, &self.shared.options.generations);
        if generations.snapshot.is_none() || self.keeps_metadata || options.force_empty {
            return;
        }
        let is_dry = options.dry_run;
        let is_void = self.is_source && !self.has_met.load(Relaxed) && (is_dry || !has_any(&self.fd, |_| true));
        if !is_void && (is_dry || !self.lacks_source) {
            return;
        }
        let is_missing = |name: &CStr| is_void || !self.has(name.to_bytes());
        let had_more =
            |at: &OwnedFd| openat(at, ".", DIRECTORY, Mode::empty()).is_ok_and(|at| has_any(&at, is_missing));
        // An unfinished generation is not emptied either; without a dry run, [`Self::clear`] has checked that.
        let unfinished = (is_dry && !self.is_phantom).then_some(&self.fd);
        let may_lack_some = || self.is_incomplete() || self.shared.has_failed_in(&self.own_path());
        if self.alternates.iter().chain(unfinished).any(|at| had_more(at)) && !may_lack_some() {
            let (names, above) = (self.names(), if generations.session.is_dst { 2 } else { 1 });
            let why = Fault::Detail(if is_void { LATEST_STAYS } else { LATEST_HAS_MORE });
            self.shared.report(&[&[LATEST][..], &names[above..]].concat().join(&b'/'), why);
        }
    }
}

/// Whether a directory has an entry that is wanted, apart from those under temporary names.
fn has_any(directory: &OwnedFd, is_wanted: impl Fn(&CStr) -> bool) -> bool {
    partial::has_any(directory, |name| !is_temporary_name(name.to_bytes()) && is_wanted(name)) != Ok(false)
}

/// Maximum number of entries whose names are kept, in a directory that an earlier transfer has left.
const LEFT_MAX: usize = 4096;

/// Whether the name is that of a file with a part of its data, which grows with them.
fn is_partial(name: &CStr) -> bool {
    is_temporary_name(name.to_bytes()) && name.to_bytes().ends_with(PARTIAL.as_bytes())
}

/// Removes entries that are not worth resuming from a directory that an earlier transfer has left. Returns the entries
/// that stay, by name, at most [`LEFT_MAX`]: directories, and files so large that resuming may save sending them again.
pub(super) fn sweep(fd: &OwnedFd) -> Result<BTreeMap<Vec<u8>, bool>, Errno> {
    let mut left = BTreeMap::new();
    partial::for_each(fd, |name| {
        let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // A marker counts as long as its file exists.
        if is_marker(name.to_bytes()) && is_regular(&stat) {
            return Ok(());
        }
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            _ if left.len() == LEFT_MAX => return partial::remove(fd, name),
            FileType::Directory => true,
            FileType::RegularFile if stat.st_size as u64 >= RESUME_BYTES_MIN || is_partial(name) => false,
            _ => return unlinkat(fd, name, AtFlags::empty()),
        };
        left.insert(name.to_bytes().to_vec(), is_directory);
        Ok(())
    })?;
    Ok(left)
}
