//! Makes entries of a tree: invisible at first, then given their metadata, then their names, each in one step.
//!
//! A nameless file (`O_TMPFILE`) leaves no name behind if the transfer is killed, and is linked to its place when it is
//! whole. On tmpfs that takes a sixth less time than making, writing and renaming a file. If nameless files are not
//! supported, or the file must outlive this process (large files), the file has a partial name meanwhile. In a
//! directory that has no name of its own yet, a small file cannot be seen by others and gets its name at once: another
//! sixth less.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use rd_proto::control::IoFact;
use rd_proto::tree::answer::BLOCK_BYTES_MIN;
use rd_proto::tree::{Metadata, Record, Special};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, fallocate, fdatasync, fstat, fstatfs, ftruncate,
    ioctl_ficlone, makedev, mknodat, openat, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::basis::{Basis, Compared, OpenBlocks, open_regular, seems_finished};
use super::directory::OpenDirectory;
use super::itemize::{self, Coming};
use super::judge;
use super::links::link_again;
use super::look::{Look, goes_on, has_data_left};
use super::rehearse::Becomes;
use super::target::{Partial, Way, publish};
use super::unfinished::{Appended, has_bytes, have_same};
use super::{Bytes, Local, Shared};
use crate::fault::shown_path;
use crate::fs::copy::{CopyError, copy_range};
use crate::fs::direct::ALIGNMENT;
use crate::fs::direct::write::{WriteBypass, is_cache_only};
use crate::fs::holes::is_zero;
use crate::fs::metadata::Object;
use crate::fs::partial::TRIES_MAX;
use crate::fs::source::SHRANK;
use crate::fs::write_out::WriteOut;
use crate::fs::{
    HASH_READ_BYTES, WHOLE, close, described, evict, io_fact, is_serial, name_beside, plain_fact, read_up_to, write_at,
};
use crate::log;
use crate::tree::contents::Medium;
use crate::tree::entries::{Effect, FileKind};
use crate::tree::manifest::digest::RangeDigest;
use crate::tree::metadata::{self, Current, OwnedMetadata};
use crate::tree::{FIRST_NAME_FAILED, Fault, leads_to};

/// Why a device is not written to. It cannot be emptied first, as a file is.
const HOLES_UNCOMPARED: &str =
    "would keep old data where the source has holes, because it was not compared; run the copy again";

/// Makes an entry that consists of its record alone: a file with its data, a symbolic link, or a special file.
pub(super) fn make(directory: &OpenDirectory, record: &Record<'_>) {
    let Some(name) = record.name() else { return };
    let name = directory.final_name(name);
    let is_alone = matches!(record, Record::Symlink { .. } | Record::Special { .. });
    let is_there = if is_alone { judge::is_there(directory, name, record) } else { Ok(false) };
    let done = match *record {
        _ if !matches!(is_there, Ok(false)) => is_there.map(drop),
        Record::File { metadata, data, .. } => make_file(directory, name, &metadata, data),
        Record::Symlink { target, .. } if is_led_to_itself(directory, name, target) => Err(Errno::LOOP.into()),
        Record::Symlink { metadata, target, .. } => {
            let make = |beside: &str| symlinkat(target, &directory.fd, beside);
            make_other(directory, name, (&metadata, FileType::Symlink, Some(target)), make)
        }
        Record::Special { metadata, kind, device, .. } => {
            let (kind, is_device) = match kind {
                Special::Fifo => (FileType::Fifo, false),
                Special::Socket => (FileType::Socket, false),
                Special::Character => (FileType::CharacterDevice, true),
                Special::Block => (FileType::BlockDevice, true),
            };
            let device = if is_device { makedev(device.0, device.1) } else { 0 };
            let make = |beside: &str| mknodat(&directory.fd, beside, kind, Mode::RUSR | Mode::WUSR, device);
            make_other(directory, name, (&metadata, kind, None), make)
        }
        _ => Ok(()),
    };
    if let Err(fault) = done {
        directory.shared.fail(&directory.path(name), fault);
        if let Record::File { data, .. } = record {
            directory.shared.sum_unkept(&directory.told_path(name), data);
        }
    }
}

fn make_file(directory: &OpenDirectory, name: &[u8], metadata: &Metadata<'_>, data: &[u8]) -> Result<(), Fault> {
    let (shared, size) = (&directory.shared, data.len() as u64);
    let differs = directory.compare(name, &Coming { kind: FileType::RegularFile, metadata, size: Some(size) });
    let partial = Partial::create(directory, name, size)?;
    let digest = shared.makes_manifest().then(|| blake3::hash(data));
    let done = write_at(&partial.file, data, 0)
        .and_then(|()| check_stored(shared, &partial.file, data, 0))
        .inspect(|()| {
            shared.writes.note_buffered(data.len());
            shared.progress.wrote(size);
        })
        .and_then(|()| close::settle(&partial.file))
        .map_err(Fault::from);
    done.and_then(|()| partial.publish(directory, name, metadata))
        .inspect(|()| {
            shared.counts.bytes.fetch_add(size, Relaxed);
            crate::locked(&shared.stats).note_transferred(size, size);
            directory.note_whole(size);
            directory.tell(name, (Effect::Transferred, FileKind::Regular), differs, || None);
        })
        .inspect(|()| digest.into_iter().for_each(|digest| directory.list_file(name, &partial.file, digest)))
        .inspect_err(|_| partial.remove(directory, name))
}

/// If the options ask for that, makes the disk return the data: pages are written, dropped from the cache, and read
/// again. If they cannot be dropped, because no disk is behind them or another process holds them, the cache is read
/// instead.
///
/// # Errors
///
/// The error of the system; EIO if the data read differs.
pub(super) fn check_stored(shared: &Shared, file: &OwnedFd, data: &[u8], position: u64) -> Result<(), Errno> {
    if !shared.options.reads_back() {
        return Ok(());
    }
    evict(file, position, data.len() as u64)?;
    let mut stored = vec![0; HASH_READ_BYTES.min(data.len())];
    for (part, at) in data.chunks(HASH_READ_BYTES).zip((position..).step_by(HASH_READ_BYTES)) {
        // A file that ends with a hole gets its length after its data.
        let there = read_up_to(file, &mut stored[..part.len()], at)?;
        if stored[..there] != part[..there] || !is_zero(&part[there..]) {
            return Err(Errno::IO);
        }
    }
    Ok(())
}

/// Gives a file that ends with a hole its length, after its data. Its last byte is written, because a length that is
/// only set may be durable long before data in the cache. A file without a length has no data to lose; one that is all
/// hole takes a block, too.
pub(super) fn reach_length(file: &OwnedFd, size: u64) -> Result<(), Errno> {
    match fstat(file)?.st_size as u64 {
        length if length >= size => Ok(()),
        0 => ftruncate(file, size),
        _ => write_at(file, &[0], size - 1),
    }
}

/// Where the page with the last byte begins. What lies before it may have its length before its data.
pub(super) fn last_page(size: u64) -> u64 {
    size.saturating_sub(1) / ALIGNMENT as u64 * ALIGNMENT as u64
}

/// Whether a link with this target would lead to the entry that it replaces. Then only a link to itself would be left.
/// If a directory makes way for the link, another link that leads there does not count: the directory may have swapped
/// names with that one, which is then still to be replaced.
fn is_led_to_itself(directory: &OpenDirectory, name: &[u8], target: &[u8]) -> bool {
    let names_link = || {
        // With a slash behind its name, a link is followed.
        let end = target.iter().rposition(|&byte| byte != b'/').map_or(target.len(), |last| last + 1);
        let found = statat(&directory.fd, &target[..end], AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
    };
    // In this order, because that link may be replaced meanwhile.
    !(directory.is_replaced_directory(name) && names_link())
        && directory.stat(name).is_ok_and(|old| leads_to(directory.fd.as_fd(), target, &old))
}

/// Makes a symbolic link or special file under a temporary name, and sets its metadata through a descriptor.
fn make_other(
    directory: &OpenDirectory,
    name: &[u8],
    (described, kind, target): (&Metadata<'_>, FileType, Option<&[u8]>),
    make: impl Fn(&str) -> Result<(), Errno>,
) -> Result<(), Fault> {
    let shared = &directory.shared;
    let differs = directory.compare(name, &Coming { kind, metadata: described, size: None });
    let told = (Effect::Made, itemize::kind(kind));
    let target = || target.map(<[u8]>::to_vec);
    if shared.options.dry_run {
        shared.made(&shared.counts.others);
        directory.tell(name, told, differs, target);
        directory.plan(name, told.1, described, None, Becomes::New);
        return Ok(());
    }
    let beside = name_beside(name, WHOLE);
    make_beside(directory, &beside, || make(&beside))?;
    let name_it = || {
        let fd = openat(&directory.fd, &beside, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&fd)?;
        // Another user who can write to the directory may have put a file there to make this process give the file
        // away.
        if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_nlink != 1 {
            return Err(Errno::BUSY.into());
        }
        let has_mode = kind != FileType::Symlink;
        let mode = has_mode.then(|| metadata::mode(&shared.options, described, directory.permitted));
        let current = Current::new(&stat, has_mode && directory.gives_acl, false);
        let applied = shared.setter.apply(&shared.options, Object::Path(fd.as_fd()), described, mode, current);
        directory.remove_replaced_directory(name)?;
        directory.keep_replaced(name, &beside)?;
        publish(&directory.fd, &*beside, &fd, name)?;
        directory.clear_mark(name, true);
        shared.made(&shared.counts.others);
        shared.note(applied, || directory.path(name));
        directory.list(name, Medium::Cache);
        directory.tell(name, told, differs, target);
        Ok(())
    };
    name_it().inspect_err(|_| _ = unlinkat(&directory.fd, &beside, AtFlags::empty()))
}

/// Calls `make`, which makes the name `beside`. An entry that a killed transfer has left under that name is removed.
pub(super) fn make_beside(
    directory: &OpenDirectory,
    beside: &str,
    make: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    for _ in 0..TRIES_MAX {
        match make() {
            Err(Errno::EXIST) => match unlinkat(&directory.fd, beside, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            },
            done => return done,
        }
    }
    Err(Errno::BUSY)
}

/// A file whose data comes in ranges.
///
/// Threads that still write to the file hold a reference to it. When the last releases it, the file is published if it
/// is complete, and removed otherwise.
pub(super) struct Large {
    // Declared before the directory, which must be finished last.
    pub(super) partial: Partial,
    bypass: WriteBypass,
    /// `None` if no data has to go to the disk.
    write_out: Option<WriteOut>,
    pub(super) name: Vec<u8>,
    metadata: OwnedMetadata,
    pub(super) size: u64,
    /// Whether the sender leaves out holes of the file where it was given no digest.
    pub(super) is_sparse: bool,
    /// The existing file, under the final name or elsewhere, with which the file is compared block by block.
    pub(super) basis: Option<Basis>,
    /// Set if data is appended to the existing file.
    appended: Option<Appended>,
    pub(super) look: Look,
    /// How the file differs from the file it replaces, as reported to the caller.
    differs: Option<u16>,
    /// Set if the basis turns out to be the whole file, and stays.
    is_kept: OnceLock<()>,
    /// Whether a later transfer may resume the file.
    is_lasting: bool,
    /// Whether ranges of the file are written one after the other.
    is_serial: bool,
    /// Ranges for the thread that is writing to the file; `None` if no thread is.
    waiting: Mutex<Option<VecDeque<(Bytes, u64)>>>,
    /// Whether all data has arrived, and the sender found the file intact.
    pub(super) is_complete: AtomicBool,
    pub(super) has_failed: AtomicBool,
    /// Whether the partial file must not be kept: it ran out of space, and would be in the way of the next transfer as
    /// well; or its disk has failed.
    is_worthless: AtomicBool,
    written_bytes: AtomicU64,
    /// Digest of the data written, for a manifest; `None` if the file also takes data that existed before.
    pub(super) digest: Option<RangeDigest>,
    /// Result of adding the data that is not sent.
    filled: OnceLock<Result<(), Fault>>,
    /// Whether the file shares all blocks with a file of this host.
    is_shared: OnceLock<bool>,
    /// Hard links to the file that came before its end.
    links: Mutex<Vec<(Arc<OpenDirectory>, Vec<u8>)>>,
    pub(super) directory: Arc<OpenDirectory>,
    pub(super) shared: Arc<Shared>,
    /// Existing data was not read before this time.
    began: SystemTime,
}

impl Large {
    /// Makes the partial file. Ranges that are never written become holes. `may_resume`: whether a partial file of an
    /// earlier transfer may be used. `compared`: the existing file, of this name or elsewhere, to use whatever its size
    /// and time.
    pub fn create(
        directory: &Arc<OpenDirectory>,
        name: &[u8],
        metadata: &Metadata<'_>,
        (size, is_sparse): (u64, bool),
        may_resume: bool,
        compared: Option<Compared>,
    ) -> Result<Self, Fault> {
        let (shared, began) = (&directory.shared, SystemTime::now());
        let differs = directory.compare(name, &Coming { kind: FileType::RegularFile, metadata, size: Some(size) });
        let (in_place, is_compared) = (directory.is_in_place(name), compared.is_some());
        let named = || open_regular(directory.fd.as_fd(), name);
        let (old, elsewhere) = match compared {
            // The sender of a broadcast waits for no answers, so an older block might be written over one that came.
            _ if !may_resume || shared.awaits_proof => (None, None),
            Some(Compared::Named) => (named(), None),
            _ if in_place => (None, None),
            Some(Compared::Elsewhere(elsewhere)) => (elsewhere.open(), Some(elsewhere)),
            None => (named().filter(|(_, stat)| seems_finished(stat, metadata, size)), None),
        };
        // A file that an earlier transfer left half-written may have its full length, or be longer. A file with other
        // names, which may belong to other copies, stays as it is: a new file is made of it.
        let is_appended = |(_, stat): &(OwnedFd, Stat)| {
            stat.st_nlink == 1 && ((stat.st_size as u64) < size || directory.is_marked(name))
        };
        let is_appended = shared.options.append_verify && elsewhere.is_none() && old.as_ref().is_some_and(is_appended);
        let in_place = in_place || is_appended;
        // The sender of a broadcast asks for no digests. Data that is left would stay where the source has holes.
        let may_adopt = may_resume && !(is_sparse && shared.awaits_proof);
        let partial = match in_place {
            true => Partial::in_place(directory, name, size, old.is_some())?,
            false => Partial::named(directory, name, may_adopt)?,
        };
        let is_device = matches!(partial.way, Way::Device);
        if is_device && is_sparse && !is_compared {
            return Err(Fault::Detail(HOLES_UNCOMPARED));
        }
        let old = match is_device && is_compared {
            true => Some((fcntl_dupfd_cloexec(&partial.file, 0)?, described(&partial.file)?)),
            false => old,
        };
        let has_left = goes_on(&partial, is_sparse, size).inspect_err(|_| partial.remove(directory, name))?;
        // A sparse file's block that differs comes with its holes, so it should be short.
        let wanted = if is_compared || is_sparse { BLOCK_BYTES_MIN } else { shared.block_bytes };
        let blocks = (has_left || old.is_some()).then(|| OpenBlocks::new(size, wanted, &shared.open_blocks));
        let old = old.zip(blocks.as_ref());
        let mut basis = old.map(|(old, blocks)| Basis::new(old, elsewhere, size, blocks.bytes, is_sparse));
        let prepared = match &mut basis {
            Some(basis) if !has_left => basis.begin(&partial.file, in_place, shared.is_local),
            _ => Ok(()),
        };
        // A file in place that already has its length keeps its time until something is written.
        let has_length = is_device || in_place && basis.as_ref().is_some_and(|basis| basis.stat.st_size as u64 == size);
        // A new file grows with its data. A length that is set first may be durable long before data in the cache:
        // after a power loss, zeros would have the size and time to come and count as the same. But direct writes that
        // extend a file would wait for each other, and XFS would fill the holes between extending writes with blocks.
        // So such files have their length first up to the last page, which goes through the cache.
        let is_in_target = basis.as_ref().is_some_and(|basis| basis.is_in_target);
        let is_new = matches!(partial.way, Way::Named(_)) && !is_in_target;
        let (least, most) = match is_new {
            true if is_sparse => (last_page(size), last_page(size)),
            true if shared.writes.are_direct(size) => (last_page(size), size),
            true => (0, size),
            false => (size, size),
        };
        let set_length = || {
            if has_length {
                return Ok(());
            }
            // A file of an earlier transfer may be longer, and so may one that was cloned in part. A sparse one then
            // lacks its last page, too: it may have little else than its length.
            let there = fstat(&partial.file)?.st_size as u64;
            let length = there.clamp(least, most);
            if length == there {
                return Ok(());
            }
            partial.mark(directory, name)?;
            ftruncate(&partial.file, length).map_err(Fault::from)
        };
        if let Err(fault) = prepared.and_then(|()| set_length()) {
            if let Some(marker) = partial.marker().filter(|_| basis.is_some()) {
                marker.take_back(directory);
            }
            partial.remove(directory, name);
            return Err(fault);
        }
        let appended = basis.as_ref().filter(|_| is_appended).map(|basis| Appended::new(basis.stat));
        log::trace("", || format!("begins {} ({size} bytes)", shown_path(&directory.path(name))));
        // Reading back and direct writes both wait for the disk, but several ranges can wait at once.
        // A device's descriptor tells the file system of its name.
        let kind = if is_device { 0 } else { fstatfs(&partial.file).map_or(0, |system| system.f_type as u32) };
        let waits = !is_cache_only(kind) && (shared.options.reads_back() || shared.writes.are_direct(size));
        let is_serial = is_serial(kind) && !waits;
        let comes_whole = blocks.is_none();
        let replaces = matches!(partial.way, Way::Named(_)) && directory.has(name);
        let write_out = WriteOut::new(kind, replaces, is_device || shared.options.syncs());
        Ok(Self {
            partial,
            bypass: WriteBypass::default(),
            write_out,
            size,
            is_sparse,
            is_serial,
            waiting: Mutex::default(),
            basis,
            appended,
            differs,
            look: Look::new(has_left, blocks),
            is_kept: OnceLock::new(),
            is_lasting: may_resume,
            name: name.to_vec(),
            metadata: OwnedMetadata::new(metadata),
            is_complete: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_worthless: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
            digest: (shared.makes_manifest() && comes_whole).then(|| RangeDigest::new(size)),
            filled: OnceLock::new(),
            is_shared: OnceLock::new(),
            links: Mutex::default(),
            directory: Arc::clone(directory),
            shared: Arc::clone(shared),
            began,
        })
    }

    /// Hands a range to the thread that is writing to the file, which writes it before it releases the file. Returns
    /// the range if no thread is writing, or if several may write at once.
    pub fn leave(&self, range: Bytes, position: u64) -> Option<Bytes> {
        match &mut *crate::locked(&self.waiting) {
            Some(waiting) => {
                waiting.push_back((range, position));
                None
            }
            None => Some(range),
        }
    }

    /// Writes a range, and the ranges that are handed to this thread meanwhile. The caller has checked that they lie
    /// within the file's size.
    pub fn take(&self, range: Bytes, position: u64) {
        if !self.is_serial {
            return self.write((*range).as_ref(), position);
        }
        let mut next = Some((range, position));
        {
            let mut waiting = crate::locked(&self.waiting);
            match &mut *waiting {
                Some(waiting) => return waiting.extend(next),
                nobody => *nobody = Some(VecDeque::new()),
            }
        }
        while let Some((range, position)) = next {
            self.write((*range).as_ref(), position);
            // Returns the chunk at once.
            drop(range);
            let mut waiting = crate::locked(&self.waiting);
            next = waiting.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *waiting = None;
            }
        }
    }

    fn write(&self, data: &[u8], position: u64) {
        if let Some(digest) = &self.digest {
            digest.add(data, position);
        }
        if self.has_failed.load(Relaxed) {
            return;
        }
        if let Err(fault) = self.partial.mark(&self.directory, &self.name) {
            return self.fail_once(fault);
        }
        let file = &self.partial.file;
        let has = |length| has_bytes(file, &data[..length], position);
        let there = self.appended.as_ref().map_or(0, |appended| appended.there(position, data.len(), has));
        let (rest, from) = (&data[there..], position + there as u64);
        let written = if self.is_made_hole(rest, from) { Ok(()) } else { self.write_past(rest, from) };
        let written = written.and_then(|()| self.begin_writing_out(data.len()));
        match written.and_then(|()| check_stored(&self.shared, file, data, position)) {
            Ok(()) => {
                if let Some(basis) = &self.basis {
                    basis.note_came(position, data.len() as u64);
                }
                self.written_bytes.fetch_add(data.len() as u64, Relaxed);
                self.shared.progress.wrote(data.len() as u64);
                self.shared.progress.at(|| self.directory.tree_path(&self.name));
            }
            Err(error) => self.fail_once(error),
        }
    }

    /// Writes data past the cache if that gains anything. The last page of a file with a partial name always goes
    /// through the cache: a direct write there would make the length durable before other data in the cache.
    fn write_past(&self, data: &[u8], position: u64) -> Result<(), Errno> {
        let end = if matches!(self.partial.way, Way::Named(_)) { last_page(self.size) } else { self.size };
        let before = end.saturating_sub(position).min(data.len() as u64) as usize;
        let write = |part: &[u8], at| self.bypass.write(&self.partial.file, part, at, self.size, &self.shared.writes);
        // The rest is too short to be written directly.
        let (pages, last) = data.split_at(before);
        write(pages, position)?;
        write(last, position + before as u64)
    }

    /// Makes the range a hole if the file is sparse and the data is zero; returns whether it did. The sender sends
    /// holes as zeros if the receiver has told of other data there, which may be in the file already.
    fn is_made_hole(&self, data: &[u8], position: u64) -> bool {
        let is_new = matches!(self.partial.way, Way::Nameless | Way::Named(_) | Way::Unseen);
        is_new
            && self.is_sparse
            && self.look.blocks.is_some()
            && is_zero(data)
            && fallocate(
                &self.partial.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                position,
                data.len() as u64,
            )
            .is_ok()
    }

    /// Copies a range of a file of this host, sharing the blocks if the file system supports that.
    ///
    /// # Errors
    ///
    /// Fails if the source cannot be read. If writing fails, only this file is marked as failed.
    pub fn copy(&self, Local { range, stop, .. }: &Local) -> Result<(), IoFact> {
        if self.has_failed.load(Relaxed) {
            return Ok(());
        }
        if let Some(basis) = &self.basis {
            basis.note_came(range.position, range.length as u64);
        }
        if let Err(fault) = self.partial.mark(&self.directory, &self.name) {
            self.fail_once(fault);
            return Ok(());
        }
        let (source, file) = (&range.file.file, &self.partial.file);
        let has = |length| have_same(source, file, range.position, length);
        let there = self.appended.as_ref().map_or(0, |appended| appended.there(range.position, range.length, has));
        // The first thread clones the whole file; others wait for it.
        if *self.is_shared.get_or_init(|| self.may_share() && ioctl_ficlone(file, source).is_ok()) {
            self.note_copied(range.length);
            self.digest_copied(range.position, range.length);
            return Ok(());
        }
        let goes_on = |bytes| {
            self.note_copied(bytes);
            let is_stopped = stop.load(Relaxed) || self.shared.is_stopped.load(Relaxed);
            if is_stopped {
                // The walk may not have seen the stop yet, and may still record the file's end.
                self.has_failed.store(true, Relaxed);
            }
            !is_stopped && !self.has_failed.load(Relaxed)
        };
        self.note_copied(there);
        let end = range.position + range.length as u64;
        match copy_range(source, file, range.position + there as u64..end, goes_on) {
            Ok(()) => {
                self.digest_copied(range.position, range.length);
                Ok(())
            }
            Err(CopyError::Read(Errno::NODATA)) => Err(plain_fact(&range.file.path, SHRANK)),
            Err(CopyError::Read(error)) => Err(io_fact(&range.file.path, error)),
            Err(CopyError::Write(error)) => {
                self.fail_once(error);
                Ok(())
            }
        }
    }

    /// Whether the file may become a clone of its source. Blocks of an older file that are copied as they are hashed
    /// would be written over those of the clone, holes would be made in it, and nothing is copied into a clone afterwards.
    pub(super) fn may_share(&self) -> bool {
        self.shared.options.sparse
            && self.appended.is_none()
            && !self.may_clear()
            && self.basis.as_ref().is_none_or(|basis| basis.is_in_target)
    }

    fn note_copied(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
        self.shared.writes.note_buffered(bytes);
        self.begin_writing_out(bytes).unwrap_or_else(|error| self.fail_once(error));
        self.shared.progress.wrote(bytes as u64);
        self.shared.progress.at(|| self.directory.tree_path(&self.name));
    }

    fn begin_writing_out(&self, bytes: usize) -> Result<(), Errno> {
        self.write_out.as_ref().map_or(Ok(()), |write_out| write_out.note(&self.partial.file, bytes))
    }

    /// Writes a piece of the older file to this one, without the holes that this one may have. Short pieces go through
    /// the cache, because a disk is slow with short writes of which each is waited for.
    pub(super) fn write_older(&self, basis: &Basis, piece: &[u8], position: u64) -> Result<(), Errno> {
        let (file, writes) = (&self.partial.file, &self.shared.writes);
        let mut is_any = false;
        for run in basis.runs(piece) {
            let (data, at) = (&piece[run.clone()], position + run.start as u64);
            if data.len() < HASH_READ_BYTES {
                write_at(file, data, at)?;
                writes.note_buffered(data.len());
            } else {
                self.write_past(data, at)?;
            }
            is_any = true;
        }
        if !is_any {
            return Ok(());
        }
        self.begin_writing_out(piece.len())?;
        check_stored(&self.shared, file, piece, position)
    }

    /// Hashes data that the kernel has copied, while it is cached. If reading fails here, the data is read again at the
    /// end, and the failure is reported then.
    fn digest_copied(&self, position: u64, length: usize) {
        let Some(digest) = &self.digest else { return };
        let mut scratch = vec![0; HASH_READ_BYTES.min(length)];
        for start in (0..length).step_by(HASH_READ_BYTES) {
            let data = &mut scratch[..HASH_READ_BYTES.min(length - start)];
            let at = position + start as u64;
            if read_up_to(&self.partial.file, data, at) != Ok(data.len()) {
                return;
            }
            digest.add(data, at);
        }
    }

    /// Lists the file, which has its final name, in the manifest.
    fn list(&self) {
        let Some(digest) = &self.digest else { return self.directory.list(&self.name, Medium::Cache) };
        match digest.finish_from(&self.partial.file, || self.shared.is_stopped.load(Relaxed)) {
            Ok(digest) => self.directory.list_file(&self.name, &self.partial.file, digest),
            Err(error) if self.shared.is_bound() => self.shared.report_unread(&self.path(), error.into(), false),
            Err(error) => self.shared.report(&self.path(), error),
        }
    }

    /// Adds the data that is not sent, and makes sure that the kernel has all data.
    pub(super) fn fill(&self) -> Result<(), Fault> {
        let fill = || -> Result<(), Fault> {
            let file = &self.partial.file;
            if let Some(basis) = &self.basis {
                let write = |data: &[u8], position| {
                    if self.shared.is_stopped.load(Relaxed) {
                        return Err(Errno::CANCELED);
                    }
                    self.shared.progress.note_work(data.len() as u64);
                    self.write_older(basis, data, position)
                };
                basis.fill(file, self.metadata.borrow().modified, &write)?;
            }
            if matches!(self.partial.way, Way::Named(_)) {
                reach_length(file, self.size)?;
            }
            Ok(self.bypass.settle(file)?)
        };
        self.filled.get_or_init(fill).clone()
    }

    pub fn fail_once(&self, fault: impl Into<Fault>) {
        if !self.has_failed.swap(true, Relaxed) {
            self.fail(fault);
        }
    }

    fn fail(&self, fault: impl Into<Fault>) {
        let mut fault: Fault = fault.into();
        // After an I/O error the cache may hold data that is not on the disk, so a kept file could not be trusted.
        if let Fault::System(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) = fault
            && matches!(self.partial.way, Way::Named(_))
        {
            self.is_worthless.store(true, Relaxed);
            fault = Fault::Explained(error, "its partial file was removed");
        }
        self.shared.fail(&self.path(), fault);
    }

    /// Records that all data has arrived: the last holder to release the file publishes it.
    pub fn complete(&self) {
        self.is_complete.store(true, Release);
    }

    /// Adds another name, to be made when the file is published.
    pub fn link_later(&self, directory: Arc<OpenDirectory>, name: &[u8]) {
        crate::locked(&self.links).push((directory, name.to_vec()));
    }

    pub fn path(&self) -> Vec<u8> {
        self.directory.path(&self.name)
    }

    fn settle(&self) -> bool {
        let is_whole = self.is_complete.load(Acquire) && !self.has_failed.load(Relaxed);
        if !is_whole || self.shared.is_stopped.load(Acquire) {
            return false;
        }
        let mut taken = None;
        if let Some(basis) = &self.basis
            && basis.is_all(self.directory.fd.as_fd(), &self.name)
        {
            let (directory, name, metadata) = (&self.directory, &self.name, self.metadata.borrow());
            let kept = match basis.elsewhere() {
                None => judge::keep_compared(directory, name, &metadata, &basis.stat),
                Some(elsewhere) => elsewhere.link(directory, name, &metadata),
            };
            match kept {
                Ok(true) => {
                    if let (Some(cache), Some(digest)) = (&self.shared.cache, self.of_blocks()) {
                        cache.put(self.began, basis.file(), &basis.stat, digest);
                    }
                    self.partial.remove(directory, name);
                    directory.clear_mark(name, false);
                    let _ = self.is_kept.set(());
                    return true;
                }
                // A new file is made from the basis.
                Ok(false) => taken = basis.elsewhere(),
                Err(fault) => {
                    self.shared.fail(&self.path(), fault);
                    return false;
                }
            }
        }
        let settled = self.fill();
        // Slow steps come while another transfer could still resume the file. Once publishing has set the owner and
        // mode, the file would no longer be recognized as this user's. Only owner and mode are left to sync after that.
        let is_in_place = matches!(self.partial.way, Way::InPlace { .. });
        let is_synced_first = self.is_lasting && self.shared.options.syncs() && !is_in_place;
        let sync = || if is_synced_first { fdatasync(&self.partial.file) } else { Ok(()) };
        let publish = || self.partial.publish(&self.directory, &self.name, &self.metadata.borrow());
        match settled.and_then(|()| Ok(sync()?)).and_then(|()| publish()) {
            Ok(()) => {
                let written_bytes = self.written_bytes.load(Relaxed);
                self.shared.counts.bytes.fetch_add(written_bytes, Relaxed);
                crate::locked(&self.shared.stats).note_transferred(self.size, written_bytes);
                taken.into_iter().for_each(|elsewhere| elsewhere.count(&self.shared));
                let told = (Effect::Transferred, FileKind::Regular);
                self.directory.tell(&self.name, told, self.differs, || None);
                self.directory.note_whole(self.size);
                self.list();
                true
            }
            Err(error) => {
                if !self.shared.is_stopped.load(Relaxed) {
                    self.fail(error);
                }
                false
            }
        }
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let is_published = self.settle();
        if !is_published && !self.shared.is_stopped.load(Acquire) {
            self.sum_unkept();
        }
        // If the transfer itself was given up, the next one can resume a large file.
        let is_given_up =
            self.is_lasting && self.shared.is_stopped.load(Acquire) && self.shared.is_trusted.load(Relaxed);
        let is_usable = || match self.partial.way {
            Way::Named(_) if self.is_sparse => has_data_left(&self.partial.file, self.size),
            _ => true,
        };
        let is_kept = !is_published && is_given_up && !self.is_worthless.load(Relaxed) && is_usable();
        if let (true, Way::Named(beside)) = (is_kept, &self.partial.way) {
            // This includes data left by earlier transfers, but not blocks that XFS has reserved beyond the end.
            let held = |stat: Stat| (stat.st_blocks as u64 * 512).min(stat.st_size as u64).min(self.size);
            let held = fstat(&self.partial.file).map_or(0, held);
            // Complete blocks are not sent again.
            let rest = if held == self.size || self.is_sparse { 0 } else { held % super::BLOCK_BYTES };
            self.shared.counts.resumable_bytes.fetch_add(held - rest, Relaxed);
            if !self.directory.is_unseen {
                self.shared.keep(self.directory.path(beside.as_bytes()));
            }
        }
        if !is_published && !is_kept {
            self.partial.remove(&self.directory, &self.name);
        }
        let marker = self.partial.marker().filter(|_| !is_published);
        let is_undone = marker.is_some_and(|marker| {
            let is_undone = !marker.was_there && self.appended.as_ref().is_some_and(|it| it.undo(&self.partial.file));
            if is_undone {
                marker.take_back(&self.directory);
            }
            is_undone
        });
        let is_device = matches!(self.partial.way, Way::Device) && self.written_bytes.load(Relaxed) > 0;
        let is_incomplete = marker.is_some() && !is_undone || is_device && !is_published;
        if is_incomplete && self.shared.is_stopped.load(Acquire) {
            if !self.directory.is_unseen {
                crate::locked(&self.shared.incomplete).push(self.path());
            } else if self.shared.options.sync {
                // Its directory is named instead. Without `--sync`, the next copy begins the file anew.
                self.shared.counts.resumable_bytes.fetch_add(self.written_bytes.load(Relaxed), Relaxed);
            }
        }
        for (directory, name) in std::mem::take(self.links.get_mut().expect("no panics under it")) {
            let kept = self.basis.as_ref().filter(|_| self.is_kept.get().is_some());
            let file = kept.map_or(self.partial.file.as_fd(), Basis::file);
            let linked = if is_published {
                link_again(file, &directory, &name, self.directory.told_path(&self.name))
            } else {
                Err(Fault::Detail(FIRST_NAME_FAILED))
            };
            directory.note_link(linked, &name);
        }
    }
}
