//! The content of regular files: small ones in one go, large ones in ranges by all threads, sparse ones without their
//! holes, and none of it where the file system can share the blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{
    FallocateFlags, FileType, SeekFrom, Stat, fallocate, fstat, fstatfs, fsync, ftruncate, ioctl_ficlone, seek,
};
use rustix::io::{Errno, pread, read, write};

use super::entry::{At, Entry, at_destination, at_source};
use super::place::Output;
use super::tree::{Directory, DirectoryRef};
use super::work::{BUFFER_BYTES, Engine, Worker};
use super::{Note, Problem, Side};
use crate::fs::Identity;
use crate::fs::copy::metadata::{self, Attribute, Metadata, Present};
use crate::fs::metadata::{Object, keep_acl};
use crate::fs::{TMPFS_MAGIC, close, write_at};

/// Files of at least this size are copied in ranges by several threads.
const LARGE_BYTES: u64 = 16 << 20;

/// A range: what a thread takes at once, and the longest it goes on after a signal.
const RANGE_BYTES: u64 = 4 << 20;

type Failed = (Side, Problem);

/// A regular file on its way: opened, examined, and made in the destination.
struct Transfer {
    source: OwnedFd,
    stat: Stat,
    attributes: Vec<Attribute>,
    output: Output,
}

impl<'e> Worker<'e, '_> {
    /// Copies a regular file that has been opened. A large one is only begun: whoever leaves it last finishes it.
    pub(super) fn copy_file(
        &mut self,
        directory: &DirectoryRef<'e>,
        entry: &Entry,
        source: OwnedFd,
        stat: &Stat,
        id: Option<Identity>,
    ) -> Result<(), Failed> {
        let engine = self.engine;
        let old = self.look(directory, entry, stat)?;
        let attributes = metadata::read_attributes(Object::Open(source.as_fd()), &engine.options.preserve).source()?;
        let size = stat.st_size as u64;
        let is_sparse = engine.options.preserve.sparse && (stat.st_blocks as u64) < size.div_ceil(512);
        // Read before anything is made: most files are done with one call.
        let mut first = None;
        if size <= BUFFER_BYTES as u64 && !is_sparse && (size == 0 || engine.cannot_clone.load(Ordering::Relaxed)) {
            first = Some(read_some(&source, &mut self.buffer).source()?);
        }
        let output = make_output(engine, directory, entry, stat, &attributes, old);
        let output = output.map_err(|problem| (Side::Destination, problem))?;
        let transfer = Transfer { source, stat: *stat, attributes, output };
        let is_cloned = first.is_none() && is_cloned(engine, &transfer);
        if size >= LARGE_BYTES && !is_cloned {
            let large = Large::new(directory.clone(), entry.clone(), id, transfer, is_sparse);
            if let Err(errno) = large.reserve() {
                large.settle(self, Some(at_destination(errno)));
                return Ok(());
            }
            let large = Arc::new(large);
            self.crew.share(&large);
            large.copy_ranges(self);
            return Ok(());
        }
        let copied = if is_cloned { Ok(size) } else { self.copy_content(&transfer, first, is_sparse) };
        match copied {
            Ok(bytes) => {
                engine.count(bytes);
                finish(engine, directory, entry, transfer)?;
            }
            Err(failed) => {
                transfer.output.discard(&directory.destination, entry.name());
                return Err(failed);
            }
        }
        self.finished(directory, entry, FileType::RegularFile, id);
        Ok(())
    }

    /// Copies what a file holds, `first` bytes of which are in the buffer already; returns how much that is.
    fn copy_content(&mut self, transfer: &Transfer, first: Option<usize>, is_sparse: bool) -> Result<u64, Failed> {
        let engine = self.engine;
        let (source, file) = (&transfer.source, &transfer.output.file);
        let size = transfer.stat.st_size as u64;
        if is_sparse {
            copy_data(engine, source, file, 0..size, &mut self.buffer)?;
            ftruncate(file, size).destination()?;
            return Ok(size);
        }
        let mut have = match first {
            Some(first) => first,
            None => read_some(source, &mut self.buffer).source()?,
        };
        let mut total = 0;
        while have > 0 {
            total += have as u64;
            // The kernel's own files (/proc) say that they are empty and are not.
            if size > 0 && total > size {
                break;
            }
            write_all(file, &self.buffer[..have]).destination()?;
            // A regular file gives less than is asked for at its end only.
            if total == size && have < self.buffer.len() {
                break;
            }
            if engine.is_stopped() {
                return Err(at_destination(Errno::CANCELED));
            }
            have = read_some(source, &mut self.buffer).source()?;
        }
        if size > 0 && total != size { Err((Side::Source, Problem::Changed)) } else { Ok(total) }
    }
}

/// Makes the file that is written.
fn make_output(
    engine: &Engine<'_>,
    directory: &Directory<'_>,
    entry: &Entry,
    stat: &Stat,
    attributes: &[Attribute],
    old: Option<Stat>,
) -> Result<Output, Problem> {
    let (parent, name) = (&directory.destination, entry.name());
    if directory.is_unseen {
        // An attribute can be set only while the owner may write.
        let mode = if attributes.is_empty() { stat.st_mode } else { 0o600 };
        let mut output = Output::unseen(parent, name, mode, engine.umask)?;
        output.made_mode = output.made_mode.filter(|_| !directory.gives_acls);
        return Ok(output);
    }
    let is_file = old.is_some_and(|old| FileType::from_raw_mode(old.st_mode) == FileType::RegularFile);
    if engine.options.in_place && (is_file || old.is_none()) {
        return Output::in_place(parent, name, old, stat);
    }
    Ok(Output::beside(parent, name, old.filter(|_| is_file))?)
}

/// Checks that the source is what it was, dresses the copy and gives it its name; or removes it.
fn finish(engine: &Engine<'_>, directory: &Directory<'_>, entry: &Entry, transfer: Transfer) -> Result<(), Failed> {
    match dress(engine, directory, entry, &transfer) {
        Ok(()) => transfer.output.publish(&directory.destination, entry.name()).destination(),
        Err(failed) => {
            transfer.output.discard(&directory.destination, entry.name());
            Err(failed)
        }
    }
}

fn dress(engine: &Engine<'_>, directory: &Directory<'_>, entry: &Entry, transfer: &Transfer) -> Result<(), Failed> {
    let Transfer { source, stat, attributes, output } = transfer;
    if stat.st_size > 0 {
        let now = fstat(source).source()?;
        let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        let change = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
        // A name of it that comes or goes sets the time of change as well, and says nothing of the content.
        let is_renamed = now.st_nlink != stat.st_nlink;
        if content(&now) != content(stat) || change(&now) != change(stat) && !is_renamed {
            return Err((Side::Source, Problem::Changed));
        }
    }
    let preserve = &engine.options.preserve;
    let file = output.file.as_fd();
    let was_there = engine.options.in_place && output.old.is_some();
    let mut metadata = Metadata::from(stat);
    let mut preserve = *preserve;
    let new_mode = metadata::source_mode(Object::Open(source.as_fd()), metadata.mode, &preserve);
    let mode = match (preserve.mode, &output.old) {
        (true, _) => new_mode,
        (false, None) => new_mode & directory.permitted,
        (false, Some(old)) => {
            // A file that was there keeps its mode, and with it what that mode means: its owner.
            (metadata.uid, metadata.gid) = (old.st_uid, old.st_gid);
            preserve.owner = true;
            let mode = old.st_mode & 0o7777;
            if was_there { mode } else { keep_acl(file, &directory.destination, entry.name(), mode) }
        }
    };
    let owner = directory.is_ours.then_some(engine.us);
    let present = Present { owner, mode: output.made_mode, gets_acl: directory.gives_acls, was_there };
    let kind = FileType::RegularFile;
    let lost = metadata::apply(Object::Open(file), kind, &metadata, Some(mode), attributes, &preserve, present)
        .destination()?;
    for lost in lost {
        engine.note(directory, entry, Note::Lost(&lost.what, lost.errno));
    }
    close::settle(file).destination()?;
    if engine.options.fsync { fsync(file).destination() } else { Ok(()) }
}

/// Shares the source's blocks, where the file system can.
fn is_cloned(engine: &Engine<'_>, transfer: &Transfer) -> bool {
    // Holes would be shared as well.
    let may_clone = engine.options.preserve.sparse && !engine.cannot_clone.load(Ordering::Relaxed);
    if !may_clone || transfer.stat.st_size == 0 {
        return false;
    }
    match ioctl_ficlone(&transfer.output.file, &transfer.source) {
        Ok(()) => true,
        Err(errno) => {
            // Others are about this file alone.
            if matches!(errno, Errno::NOTSUP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) {
                engine.cannot_clone.store(true, Ordering::Relaxed);
            }
            false
        }
    }
}

/// A large file whose ranges are copied by several threads.
pub(super) struct Large<'e> {
    directory: DirectoryRef<'e>,
    entry: Entry,
    id: Option<Identity>,
    is_sparse: bool,
    size: u64,
    ranges: Mutex<Ranges>,
}

struct Ranges {
    /// Gone when the file has been finished or given up.
    transfer: Option<Arc<Transfer>>,
    next: u64,
    /// Threads that copy a range.
    busy: u32,
    failed: Option<Failed>,
}

impl<'e> Large<'e> {
    fn new(
        directory: DirectoryRef<'e>,
        entry: Entry,
        id: Option<Identity>,
        transfer: Transfer,
        is_sparse: bool,
    ) -> Self {
        let size = transfer.stat.st_size as u64;
        let ranges = Ranges { transfer: Some(Arc::new(transfer)), next: 0, busy: 0, failed: None };
        Self { directory, entry, id, is_sparse, size, ranges: Mutex::new(ranges) }
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().expect("no thread panics with the ranges locked")
    }

    /// Gives the file its size, and asks for the space, so that a full disk is known at once and the ranges do not
    /// scatter.
    fn reserve(&self) -> Result<(), Errno> {
        let transfer = self.lock().transfer.clone().expect("not finished");
        let file = &transfer.output.file;
        ftruncate(file, self.size)?;
        if self.is_sparse || fstatfs(file).is_ok_and(|fs| fs.f_type == i64::from(TMPFS_MAGIC)) {
            return Ok(());
        }
        match fallocate(file, FallocateFlags::empty(), 0, self.size) {
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => Ok(()),
            other => other,
        }
    }

    /// Copies ranges until none is left. The last thread to leave publishes the file.
    pub(super) fn copy_ranges(self: Arc<Self>, worker: &mut Worker<'e, '_>) {
        let engine = worker.engine;
        loop {
            let mut ranges = self.lock();
            if engine.is_stopped() && ranges.next < self.size {
                ranges.failed.get_or_insert(at_destination(Errno::CANCELED));
            }
            if ranges.next >= self.size || ranges.failed.is_some() {
                let failed = ranges.failed;
                let is_last = ranges.busy == 0 && ranges.transfer.is_some();
                drop(ranges);
                worker.crew.unshare(&self);
                if is_last {
                    self.settle(worker, failed);
                }
                return;
            }
            let Some(transfer) = ranges.transfer.clone() else { return };
            let range = ranges.next..(ranges.next + RANGE_BYTES).min(self.size);
            ranges.next = range.end;
            ranges.busy += 1;
            drop(ranges);
            let length = range.end - range.start;
            let (source, file) = (&transfer.source, &transfer.output.file);
            let copied = if self.is_sparse {
                copy_data(engine, source, file, range, &mut worker.buffer)
            } else {
                copy_range(source, file, range, &mut worker.buffer)
            };
            drop(transfer);
            if copied.is_ok() {
                engine.count(length);
                engine.events.at(&self.directory.node.paths(&self.entry));
            }
            let mut ranges = self.lock();
            ranges.busy -= 1;
            if let Err(failed) = copied {
                ranges.failed.get_or_insert(failed);
            }
        }
    }

    /// Finishes the file, or gives it up. Nobody copies a range of it any more.
    fn settle(&self, worker: &mut Worker<'e, '_>, failed: Option<Failed>) {
        let engine = worker.engine;
        let Some(transfer) = self.lock().transfer.take().and_then(Arc::into_inner) else { return };
        let (directory, entry) = (&self.directory, &self.entry);
        let finished = match failed {
            None => finish(engine, directory, entry, transfer),
            Some(failed) => {
                transfer.output.discard(&directory.destination, entry.name());
                Err(failed)
            }
        };
        match finished {
            Ok(()) => worker.finished(directory, entry, FileType::RegularFile, self.id),
            Err(failed) => {
                engine.fail(directory, entry, failed);
                if let Some(id) = self.id {
                    worker.settle(id, None);
                }
            }
        }
    }
}

/// Copies the data in a range and leaves out the holes.
fn copy_data(
    engine: &Engine<'_>,
    source: &OwnedFd,
    file: &OwnedFd,
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
) -> Result<(), Failed> {
    let mut at = range.start;
    while at < range.end {
        if engine.is_stopped() {
            return Err(at_destination(Errno::CANCELED));
        }
        // Both move the offset that all threads share, which nobody uses.
        let data = match seek(source, SeekFrom::Data(at)) {
            Ok(data) if data < range.end => data,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(errno) => return Err(at_source(errno)),
        };
        let hole = seek(source, SeekFrom::Hole(data)).source()?;
        let end = hole.min(range.end).min(data.saturating_add(RANGE_BYTES));
        copy_range(source, file, data..end, buffer)?;
        at = end;
    }
    Ok(())
}

fn copy_range(source: &OwnedFd, file: &OwnedFd, range: std::ops::Range<u64>, buffer: &mut [u8]) -> Result<(), Failed> {
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(BUFFER_BYTES as u64) as usize;
        let have = match pread(source, &mut buffer[..wanted], at) {
            Ok(0) => return Err((Side::Source, Problem::Changed)),
            Ok(have) => have,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(at_source(errno)),
        };
        write_at(file.as_fd(), &buffer[..have], at).destination()?;
        at += have as u64;
    }
    Ok(())
}

fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match read(file, &mut *buffer) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
