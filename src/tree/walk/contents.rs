//! Contents of files: small files travel in their records, large files are announced.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::resource::Resource;
use rd_proto::tree::{Metadata, OPEN_MAX, Record};
use rustix::fs::{SeekFrom, Stat, seek};

use super::place::Entry;
use super::{BLOCK_BYTES, LargeFile, Open, Recorder, Step, wrote};
use crate::fs::direct::Bypass;
use crate::fs::holes;
use crate::fs::metadata::Object;
use crate::fs::source::{SHRANK, change, is_of_sysfs};
use crate::fs::{described, read_up_to};
use crate::limits;
use crate::tree::Fault;

/// Part of the limit on open files that large files may take. Within a host, each takes several: one at either end, as
/// many to go past the page cache, and that of an older file.
const OPEN_PART: u64 = 16;

/// Returns how many large files may be open at once, with this limit on open files.
fn open_max(limit: Option<u64>) -> usize {
    limit.map_or(OPEN_MAX, |files| (files / OPEN_PART).clamp(1, OPEN_MAX as u64) as usize)
}

impl Recorder {
    /// Writes the record of a file with its contents, or that of a large file. Returns the number of the large file, or
    /// 0. `is_awaited`: the receiver has announced that it will answer with what it has.
    pub(super) fn contents(
        &mut self,
        entry: &Entry<'_>,
        file: OwnedFd,
        stat: &Stat,
        is_awaited: bool,
        path: impl FnOnce() -> OsString,
        target: &mut [u8],
    ) -> Result<(Step, u32), Fault> {
        let (size, inode) = (stat.st_size as u64, self.inode(stat));
        let is_sparse = self.options.sparse && is_sparse(&file, stat);
        let is_inline = size <= self.inline_bytes_max as u64 && !is_sparse;
        if !is_inline && self.open.len() >= open_max(limits::soft(Resource::RLIMIT_NOFILE)) {
            return Ok((Step::AtLimit, 0));
        }
        let metadata = self.reader.read(&self.options, Object::Open(file.as_fd()), stat)?;
        if is_inline {
            let (step, bytes) = small_file(entry, &file, stat, &metadata, self.inline_bytes_max, target)?;
            self.sent.figures.amount.bytes += bytes;
            return Ok((step, 0));
        }
        let item = self.items.checked_add(1).ok_or(Fault::Detail("too many large files"))?;
        let step = wrote(Record::Large { name: entry.name, metadata, item, size, is_sparse }.encode(target));
        if let Step::Wrote(_) = step {
            self.items = item;
            self.open.insert(item, Open { inode, names: 0, spent: Vec::new() });
            let (stat, path, bypass) = (*stat, path(), Bypass::default());
            let awaits_blocks = is_awaited || Record::awaits_have(size);
            self.opened.push(LargeFile { item, file, stat, path, is_sparse, awaits_blocks, bypass });
        }
        Ok((step, item))
    }
}

/// Writes the record of a file with its data, which is read straight into the record. Returns also the bytes of data.
fn small_file(
    entry: &Entry<'_>,
    file: &OwnedFd,
    stat: &Stat,
    metadata: &Metadata<'_>,
    bytes_max: usize,
    target: &mut [u8],
) -> Result<(Step, u64), Fault> {
    let mut size = stat.st_size as usize;
    let Some(head) = Record::encode_file_head(entry.name, metadata, size, target) else { return Ok((Step::Full, 0)) };
    #[cfg(test)]
    hook::before_read(entry.name);
    if size > 0 {
        let length = read_up_to(file, &mut target[head..head + size], 0)?;
        if length < size {
            // Each file of sysfs claims to have a page, and its times say nothing about what is read.
            if !is_of_sysfs(file) {
                return Err(Fault::Detail(SHRANK));
            }
            Record::encode_file_head(entry.name, metadata, length, target).expect("it has been read there");
            return Ok((Step::Wrote(head + length), length as u64));
        }
    } else {
        // Files of the kernel (/proc) claim to be empty and are not.
        let room = (target.len() - head).min(bytes_max);
        size = read_up_to(file, &mut target[head..head + room], 0)?;
        if size == room && room < bytes_max {
            return Ok((Step::Full, 0));
        }
        if size == room {
            return Err(Fault::Detail("reports a size of 0 but has too much data to copy"));
        }
        Record::encode_file_head(entry.name, metadata, size, target).expect("it has been read there");
    }
    // A file that was empty both times has not changed.
    if size > 0
        && let Some(change) = change(stat, &described(file)?)
    {
        return Err(Fault::Detail(change));
    }
    Ok((Step::Wrote(head + size), size as u64))
}

/// Whether a file has holes to leave out. Few blocks may also mean a file system that compresses. Its small files are
/// to travel in their records, and what has arrived of a large one is to be kept wherever the transfer is cut.
pub(super) fn is_sparse(file: &OwnedFd, stat: &Stat) -> bool {
    let size = stat.st_size as u64;
    let may_be = size > BLOCK_BYTES && holes::may_be_in(stat);
    may_be && seek(file, SeekFrom::Hole(0)).is_ok_and(|hole| hole < size)
}

/// Lets a test act at a certain moment.
#[cfg(test)]
pub(in crate::tree) mod hook {
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut(&[u8])>;

    thread_local! {
        static BEFORE_READ: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Sets a hook that runs in this thread between the look at a small file and its reading, and gets the file's name.
    pub(in crate::tree) fn set_before_read(hook: Option<Hook>) {
        BEFORE_READ.set(hook);
    }

    pub(in crate::tree) fn before_read(name: &[u8]) {
        BEFORE_READ.with_borrow_mut(|hook| hook.as_mut().map(|hook| hook(name)));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn large_files_leave_room_below_the_limit_on_open_files() {
        let limits = [None, Some(1 << 30), Some(1024), Some(64), Some(8)];
        assert_eq!(limits.map(open_max), [OPEN_MAX, OPEN_MAX, OPEN_MAX, 4, 1]);
    }

    #[test]
    fn few_blocks_are_no_hole() {
        const SIZE: u64 = 1 << 20;
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[1; SIZE as usize], 0).expect("written");
        let file = OwnedFd::from(file);
        let whole = fstat(&file).expect("open");
        // As a compressing file system reports it.
        let mut compressed = whole;
        compressed.st_blocks = 8;
        assert_eq!([&whole, &compressed].map(|stat| is_sparse(&file, stat)), [false, false]);
        rustix::fs::ftruncate(&file, 2 * SIZE).expect("longer");
        let longer = fstat(&file).expect("open");
        assert!(is_sparse(&file, &longer));
    }
}
