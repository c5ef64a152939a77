//! A file that is being written, and how it gets its name.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::Metadata;
use rustix::fs::{Mode, OFlags, Stat, fdatasync, fstat, fsync, ftruncate, openat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::device;
use super::directory::OpenDirectory;
use super::links::link;
use super::unfinished::Marker;
use crate::fault::shown_path;
use crate::fs::metadata::{Object, succeed};
use crate::fs::partial::{self, REPLACED};
use crate::fs::{PARTIAL, is_regular, name_beside};
use crate::log;
use crate::tree::metadata::{self, Current};
use crate::tree::{Fault, HAS_OTHER_NAMES};

/// Explains `ESTALE` for a file in place: what was written is not under its name.
const LOST_NAME: &str = "its name is gone or belongs to another file; run it again";

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Partial {
    pub file: OwnedFd,
    pub(super) way: Way,
    /// Whether an earlier transfer has made the file under its temporary name. It then has the group, ACL and attributes
    /// that it got from that transfer.
    pub(super) is_adopted: bool,
}

/// Renames a finished entry from its temporary name to its own, as [`partial::publish`] does.
pub(super) fn publish(
    directory: impl AsFd,
    beside: impl Arg + Copy,
    entry: impl AsFd,
    name: impl Arg,
) -> Result<(), Fault> {
    partial::publish(directory, beside, entry, name).map_err(|error| match error {
        Errno::STALE => Fault::Explained(error, REPLACED),
        error => error.into(),
    })
}

/// Opens a file of this user for writing, even if its mode forbids that. An earlier copy may have given it that mode, so
/// that the copy can be run again. The file keeps its mode, because rights are checked only at opening.
fn open_write_protected(directory: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Fault> {
    let place = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&place)?;
    if !is_regular(&stat) || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS.into());
    }
    if stat.st_nlink > 1 {
        return Err(Fault::Detail(HAS_OTHER_NAMES));
    }
    let set_mode = |mode| Object::Path(place.as_fd()).set_mode(mode);
    set_mode(stat.st_mode & 0o7777 | 0o600)?;
    let opened = openat(directory, name, flags, Mode::empty());
    set_mode(stat.st_mode & 0o7777)?;
    Ok(opened?)
}

/// How a file gets its name.
#[derive(Debug)]
pub(super) enum Way {
    /// The file has no name yet, and is linked.
    Nameless,
    /// The file has a temporary name, and is renamed.
    Named(String),
    /// The file already has its name, in a directory that has none yet. The next transfer makes a half-written file
    /// there anew.
    Unseen,
    /// The file already has its name: `--in-place`, `--append-verify`.
    InPlace {
        /// Whether the file is new.
        is_new: bool,
        /// Marks the file as incomplete. Not set before something is written.
        marker: OnceLock<Result<Option<Marker>, Fault>>,
    },
    /// A block device already has its name, too.
    Device,
}

impl Partial {
    fn new(file: OwnedFd, way: Way) -> Self {
        Self { file, way, is_adopted: false }
    }

    /// Makes a file that is written at once and published.
    pub fn create(directory: &OpenDirectory, name: &[u8], size: u64) -> Result<Self, Fault> {
        // A file that does not exist gets its name when it is whole, even with `--in-place`.
        if directory.is_in_place(name) && directory.has(name) {
            return Self::in_place(directory, name, size, false);
        }
        if directory.is_unseen {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(&directory.fd, name, flags, Mode::RUSR | Mode::WUSR) {
                // An earlier transfer has left the file.
                Err(Errno::EXIST) => return Self::named(directory, name, false),
                file => return Ok(Self::new(file?, Way::Unseen)),
            }
        }
        let nameless = directory.shared.can_link_nameless.load(Relaxed) && !directory.wants_names.load(Relaxed);
        if nameless {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match openat(&directory.fd, ".", flags, Mode::RUSR | Mode::WUSR) {
                // EISDIR is the answer of a kernel that does not know the flag.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    directory.wants_names.store(true, Relaxed);
                }
                file => return Ok(Self::new(file?, Way::Nameless)),
            }
        }
        Self::named(directory, name, false)
    }

    /// Opens a file under a partial name. `may_adopt`: whether a file left by a killed transfer is kept.
    pub(super) fn named(directory: &OpenDirectory, name: &[u8], may_adopt: bool) -> Result<Self, Fault> {
        let beside = name_beside(name, PARTIAL);
        let open = || partial::open(&directory.fd, &beside, may_adopt);
        let (file, is_adopted) = directory.patiently(&beside, open)?;
        Ok(Self { file, way: Way::Named(beside), is_adopted })
    }

    /// Opens a file or device to be written in place. `size` is the number of bytes to come. With `keeps_data` the old
    /// data is kept, so that only differences are written.
    pub(super) fn in_place(directory: &OpenDirectory, name: &[u8], size: u64, keeps_data: bool) -> Result<Self, Fault> {
        if let Some(file) = device::open(directory, name, size)? {
            return Ok(Self::new(file, Way::Device));
        }
        let shared = &directory.shared;
        let is_read = shared.options.reads_back() || shared.makes_manifest() || keeps_data;
        let access = if is_read { OFlags::RDWR } else { OFlags::WRONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let marker = OnceLock::new();
        let (file, is_new) = match openat(&directory.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                // The marker comes before the file, because an empty file has a time, too.
                marker.get_or_init(|| Marker::make(directory, name)).as_ref().map_err(Clone::clone)?;
                let new = flags | OFlags::CREATE | OFlags::EXCL;
                let made = match openat(&directory.fd, name, new, Mode::RUSR | Mode::WUSR) {
                    // Another process was first.
                    Err(Errno::EXIST) => openat(&directory.fd, name, flags, Mode::empty()).map(|file| (file, false)),
                    made => made.map(|file| (file, true)),
                };
                made.inspect_err(|_| {
                    if let Some(Ok(Some(marker))) = marker.get() {
                        marker.take_back(directory);
                    }
                })?
            }
            Err(Errno::ACCESS) => (open_write_protected(&directory.fd, name, flags)?, false),
            file => (file?, false),
        };
        let stat = fstat(&file)?;
        if !is_regular(&stat) {
            return Err(Errno::EXIST.into());
        }
        // Another name may be the source, if both hosts have the same files; or an entry that is still to come here.
        if stat.st_nlink > 1 {
            let refused = Fault::Detail(HAS_OTHER_NAMES);
            if !keeps_data {
                return Err(refused);
            }
            // Only an error if a byte differs: then the mark, without which nothing is written, cannot be made.
            let _ = marker.set(Err(refused));
        }
        let target = Self::new(file, Way::InPlace { is_new, marker });
        if !keeps_data {
            target.mark(directory, name)?;
            ftruncate(&target.file, 0)?;
        }
        Ok(target)
    }

    /// Marks a file in place as incomplete. Must be called before anything is written.
    ///
    /// # Errors
    ///
    /// Fails if the file must not be written to.
    pub fn mark(&self, directory: &OpenDirectory, name: &[u8]) -> Result<(), Fault> {
        let Way::InPlace { marker, .. } = &self.way else { return Ok(()) };
        marker.get_or_init(|| Marker::make(directory, name)).as_ref().map(drop).map_err(Clone::clone)
    }

    /// The marker, if the file has been marked.
    pub fn marker(&self) -> Option<&Marker> {
        let Way::InPlace { marker, .. } = &self.way else { return None };
        marker.get()?.as_ref().ok()?.as_ref()
    }

    /// Gives the file its metadata and its name, durably if the options ask for that.
    pub fn publish(&self, directory: &OpenDirectory, name: &[u8], described: &Metadata<'_>) -> Result<(), Fault> {
        let (shared, options) = (&directory.shared, &directory.shared.options);
        if matches!(self.way, Way::Device) {
            // Closing a device does not tell whether the data could be written.
            fdatasync(&self.file)?;
            shared.made(&shared.counts.files);
            return Ok(());
        }
        if matches!(self.way, Way::Named(_)) {
            // This may take long. A file with its final owner and mode could not be resumed if it were interrupted.
            directory.remove_replaced_directory(name)?;
        }
        let own = |stat: &Stat| (stat.st_uid, stat.st_gid);
        let mut old_mode = 0o600;
        let mut owner = match (&self.way, directory.new_owner.get()) {
            (Way::InPlace { .. }, _) => {
                let stat = fstat(&self.file)?;
                old_mode = stat.st_mode & 0o7777;
                own(&stat)
            }
            _ if self.is_adopted => own(&fstat(&self.file)?),
            (_, Some(&owner)) => owner,
            (_, None) => {
                let owner = own(&fstat(&self.file)?);
                *directory.new_owner.get_or_init(|| owner)
            }
        };
        let mut mode = metadata::mode(options, described, directory.permitted);
        if !options.mode {
            mode &= 0o777;
            let is_new = directory.is_new || matches!(self.way, Way::Unseen | Way::InPlace { is_new: true, .. });
            let old = if is_new { None } else { directory.stat(name).ok() };
            if let Some(old) = old.filter(is_regular) {
                mode = succeed(&self.file, &mut owner, &directory.fd, name, &old, !options.owner) & 0o777;
            }
        }
        if matches!(self.way, Way::InPlace { .. }) {
            if options.syncs() {
                // If the host crashes, a file with the size and time to come would count as the same.
                fdatasync(&self.file)?;
            }
            if !partial::is_named(&directory.fd, name, &self.file) {
                // What has the name now was not written by a copy. If the marker stayed, `-u` would overwrite it.
                if let Some(marker) = self.marker() {
                    marker.remove(directory);
                }
                return Err(Fault::Explained(Errno::STALE, LOST_NAME));
            }
        }
        let gets_acl = directory.gives_acl;
        let was_there = self.is_adopted || matches!(self.way, Way::InPlace { is_new: false, .. });
        let current = Current { uid: owner.0, gid: owner.1, mode: old_mode, is_directory: false, gets_acl, was_there };
        let applied = shared.setter.apply(options, Object::Open(self.file.as_fd()), described, Some(mode), current);
        if options.syncs() {
            fsync(&self.file)?;
        }
        match &self.way {
            Way::Nameless => link(self.file.as_fd(), directory, name)?,
            Way::Named(beside) => {
                directory.keep_replaced(name, beside)?;
                publish(&directory.fd, &**beside, &self.file, name)?;
                directory.clear_mark(name, true);
            }
            Way::InPlace { .. } => match self.marker() {
                Some(marker) => marker.remove(directory),
                None => directory.clear_mark(name, false),
            },
            // In a directory that an earlier transfer has left, a half-written file of this name may have been marked.
            Way::Unseen => directory.clear_mark(name, true),
            Way::Device => {}
        }
        shared.made(&shared.counts.files);
        shared.progress.at(|| directory.tree_path(name));
        log::trace("", || format!("published {}", shown_path(&directory.path(name))));
        shared.note(applied, || directory.path(name));
        Ok(())
    }

    /// Removes the file, except data written in place.
    pub fn remove(&self, directory: &OpenDirectory, name: &[u8]) {
        let name = match &self.way {
            Way::Named(beside) => beside.as_bytes(),
            Way::Unseen => name,
            Way::Nameless | Way::InPlace { .. } | Way::Device => return,
        };
        partial::remove_named(&directory.fd, name, &self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rd_proto::tree::Record;

    use super::super::tests::chunk;
    use super::super::{Destination, TreeSink};
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    const SIZE: u64 = 1 << 20;
    const PART: u64 = 256 << 10;

    /// After a power loss, a file that had its length before its data would be full of zeros and count as the same.
    #[test]
    fn a_large_file_gets_its_length_with_its_data() {
        // Nothing sets a length. What is missing at the end is a hole, of which the last byte is written.
        where_calls_fail(&[libc::SYS_ftruncate], libc::EIO, || has_length_until_its_end(false, PART));
        // One that may have holes has all of its length but the last page.
        has_length_until_its_end(true, SIZE - 4096);
    }

    fn has_length_until_its_end(is_sparse: bool, expected: u64) {
        let scratch = tempfile::tempdir().expect("a directory");
        let metadata = Metadata { mode: 0o640, ..Metadata::ZERO };
        let file = Record::Large { name: b"f", metadata, item: 1, size: SIZE, is_sparse };
        let mut sink = TreeSink::new(scratch.path(), Destination::default(), Box::new(|_| {})).expect("a sink");
        sink.push(0, 0, chunk(&[file])).expect("taken");
        sink.push(1, 0, Arc::new(vec![7; PART as usize])).expect("taken");
        let beside = scratch.path().join(name_beside(b"f", PARTIAL));
        let length = || fs::metadata(&beside).expect("it has that name").len();
        let until = Instant::now() + Duration::from_secs(20);
        while sink.shared.writes.written().buffered_bytes < PART {
            assert!(Instant::now() < until, "it is not written");
            sleep(Duration::from_millis(1));
        }
        assert_eq!(length(), expected);
        // Whatever the sender leaves out is a hole, at the end as well.
        let closed = Record::Closed { item: 1, data_bytes: PART, is_intact: true };
        sink.push(0, 0, chunk(&[closed, Record::End { failures: 0 }])).expect("taken");
        assert_eq!(sink.finish().expect("whole").figures.failed, 0);
        let expected = [vec![7; PART as usize], vec![0; (SIZE - PART) as usize]].concat();
        assert!(fs::read(scratch.path().join("f")).expect("made") == expected);
    }
}
