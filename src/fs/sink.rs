//! Sinks: a file that appears complete or not at all, or a stream that is written in order.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rd_proto::control::IoFact;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, fchmod, fdatasync, fstat, fstatfs, openat, stat, statat,
};
use rustix::io::Errno;

use super::direct::write::{WriteBypass, Writes, Written};
use super::metadata::succeed;
use super::text::Text;
use super::write_out::WriteOut;
use super::{
    IS_TEMPORARY, PARTIAL, close, directory_of, io_fact, is_regular, is_serial, is_temporary_name, may, name_beside,
    partial, plain_fact, standard, std_fact, umask,
};

/// Capacity requested for a pipe that is written: enough for a chunk.
const PIPE_BYTES: usize = 1 << 20;

/// How long to wait for a name that another transfer holds. A transfer that was killed releases it within seconds. The
/// other end, which has connected, hears nothing meanwhile.
const HELD_MAX: Duration = Duration::from_secs(4);

/// A destination that has been examined.
#[derive(Clone, Debug)]
pub enum Target {
    /// A regular file, existing or not.
    File(PathBuf),
    /// A device or FIFO, to be opened and written as it is.
    Special(PathBuf),
}

impl Target {
    /// Checks whether FILE can be written. Makes nothing: [`FileSink::create`] makes the partial file once there is
    /// something to write.
    ///
    /// # Errors
    ///
    /// The path and the error number.
    pub fn prepare(path: &Path) -> Result<Self, IoFact> {
        let fact = |error| io_fact(path.as_os_str(), error);
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(fact(Errno::ISDIR));
        }
        if path.file_name().is_some_and(|name| is_temporary_name(name.as_bytes())) {
            return Err(plain_fact(path.as_os_str(), IS_TEMPORARY));
        }
        let resolved = match stat(path) {
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => return Err(fact(Errno::ISDIR)),
                FileType::Socket => return Err(fact(Errno::NXIO)),
                // A link is followed once, as cp does; its target is what is replaced.
                FileType::RegularFile => {
                    may(CWD, path, Access::WRITE_OK).map_err(fact)?;
                    std::fs::canonicalize(path).map_err(|error| std_fact(path.as_os_str(), &error))?
                }
                _ => {
                    may(CWD, path, Access::WRITE_OK).map_err(fact)?;
                    return Ok(Self::Special(path.to_owned()));
                }
            },
            Err(Errno::NOENT) => {
                if path.as_os_str().is_empty() || rustix::fs::lstat(path).is_ok() {
                    // The name is empty, or is a link that leads nowhere.
                    return Err(fact(Errno::NOENT));
                }
                path.to_owned()
            }
            Err(error) => return Err(fact(error)),
        };
        let directory = directory_of(&resolved);
        may(CWD, directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| io_fact(directory.as_os_str(), error))?;
        Ok(Self::File(resolved))
    }
}

/// A file that is being written beside its final name.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    /// Names of the file; `None` if it has its final name already.
    names: Option<Names>,
    path: PathBuf,
    /// Size that was announced, or 0 if none was.
    size_bytes: u64,
    bypass: WriteBypass,
    /// `None` if no data has to go to the disk.
    write_out: Option<WriteOut>,
    writes: Writes,
    /// Held for each write if the file system does one write after the other: waiting for this lock takes no processor.
    turn: Option<Mutex<()>>,
}

/// A file's names before and after it is published.
#[derive(Debug)]
struct Names {
    directory: OwnedFd,
    partial: OsString,
    last: OsString,
}

impl FileSink {
    /// Makes the partial file in the destination's directory. Its mode is 0600, it is locked, and its name is a hash,
    /// so that it is never too long. Any entry under that name, such as one that a killed transfer left, is removed.
    ///
    /// # Errors
    ///
    /// The path and the error number; `EBUSY` if another process is writing to the same destination.
    pub fn create(path: &Path) -> Result<Self, IoFact> {
        let fact = |error| io_fact(path.as_os_str(), error);
        let last = path.file_name().ok_or_else(|| fact(Errno::ISDIR))?.to_owned();
        let directory = directory_of(path);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory =
            openat(CWD, directory, flags, Mode::empty()).map_err(|error| io_fact(directory.as_os_str(), error))?;
        let beside = name_beside(last.as_bytes(), PARTIAL);
        let open = || partial::open(&directory, &beside, false);
        let (file, _) = partial::patiently(Instant::now() + HELD_MAX, || false, open).map_err(|blocked| {
            let at = if blocked.is_in_the_way { path.with_file_name(&beside) } else { path.to_owned() };
            let is_held = blocked == Errno::BUSY.into();
            let detail = if is_held { partial::HELD.into() } else { blocked.why.into_bytes() };
            IoFact { detail, ..io_fact(at.as_os_str(), blocked.error) }
        })?;
        let names = Some(Names { directory, partial: beside.into(), last });
        Ok(Self::new(file.into(), path, names))
    }

    /// Makes a sink of a regular file that is already open, and is written in place.
    pub fn open_already(file: File, path: &Path) -> Self {
        Self::new(file, path, None)
    }

    fn new(file: File, path: &Path, names: Option<Names>) -> Self {
        let (bypass, writes) = (WriteBypass::default(), Writes::new(None));
        let kind = fstatfs(&file).map_or(0, |system| system.f_type as u32);
        let is_there = |names: &Names| statat(&names.directory, &names.last, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let write_out = WriteOut::new(kind, names.as_ref().is_some_and(is_there), false);
        let turn = is_serial(kind).then(Mutex::default);
        Self { file, names, path: path.to_owned(), size_bytes: 0, bypass, write_out, writes, turn }
    }

    /// Records the size that the sender has announced. The sender is not held to it.
    pub fn announce(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// Returns how much has been written past the page cache and through it.
    pub fn written(&self) -> Written {
        self.writes.written()
    }

    /// Writes `bytes` at a position.
    ///
    /// # Errors
    ///
    /// The path and the error number.
    pub fn write_at(&self, bytes: &[u8], position: u64) -> Result<(), IoFact> {
        // Direct writes wait for the disk, which several can do at once.
        let turn = self.turn.as_ref().filter(|_| !self.writes.are_direct(self.size_bytes));
        let turn = turn.map(crate::locked);
        let written = self.bypass.write(&self.file, bytes, position, self.size_bytes, &self.writes);
        drop(turn);
        let write_out = || self.write_out.as_ref().map_or(Ok(()), |it| it.note(&self.file, bytes.len()));
        written.and_then(|()| write_out()).map_err(|error| io_fact(self.path.as_os_str(), error))
    }

    /// Gives the file its mode and its name. The mode, the ACL and, where this process may set it, the owner are those
    /// of the file that is replaced, if there is one.
    ///
    /// # Errors
    ///
    /// The path and the error number. The old file is then as it was.
    pub fn publish(&self) -> Result<(), IoFact> {
        let fact = |error| io_fact(self.path.as_os_str(), error);
        self.bypass.settle(&self.file).map_err(fact)?;
        let Some(Names { directory, partial: beside, last }) = &self.names else { return Ok(()) };
        match statat(directory, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(old) if is_regular(&old) => {
                let new = fstat(&self.file).map_err(fact)?;
                let mut owner = (new.st_uid, new.st_gid);
                let mode = succeed(&self.file, &mut owner, directory, last.as_os_str(), &old, true);
                set_mode(&self.file, mode).map_err(fact)?;
            }
            _ => set_mode(&self.file, 0o666 & !umask()).map_err(fact)?,
        }
        partial::publish(directory, beside.as_os_str(), &self.file, last).map_err(|error| match error {
            Errno::STALE => IoFact { detail: partial::REPLACED.into(), ..fact(error) },
            error => fact(error),
        })?;
        crate::log::trace("", || format!("published {}", crate::fault::escaped(self.path.as_os_str())));
        Ok(())
    }

    /// Removes the partial file unless it has been published: then it has another name. Dropping does so too, but where
    /// other threads hold the sink as the process ends, nothing is dropped.
    pub fn discard(&self) {
        if let Some(names) = &self.names {
            partial::remove_named(&names.directory, names.partial.as_os_str(), &self.file);
        }
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Sets the mode of a file that is complete. A file system or server that does not let modes be set is no reason to
/// throw its data away.
pub(super) fn set_mode(file: impl AsFd, mode: u32) -> Result<(), Errno> {
    match fchmod(file, Mode::from_raw_mode(mode)) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => done,
    }
}

/// A stream, written in order.
pub struct StreamSink {
    /// `None` if the file could not be opened.
    file: Option<File>,
    name: OsString,
    tee: Option<Box<dyn Tee>>,
    /// Why the file has not got everything that went to the tee.
    failed: Option<IoFact>,
    /// Check that nothing but text is written; `None` if anything may be.
    text: Option<Text>,
    /// Whether this is standard output and nothing has been written to it yet.
    is_unbegun_output: bool,
}

/// Explanation of EBUSY for a block device.
pub(crate) const IN_USE: &str = "it is mounted or in use";

/// Error message if what is to be written to a terminal is not text.
pub const NO_TEXT: &str = "it is a terminal, and the data is not text";

/// A second destination of a stream, which gets all data after the file. As with `tee`, it gets the data even if the
/// file cannot be opened or written. The stream then fails at its end.
pub trait Tee: Send {
    /// Takes all of `bytes`. Returns false if no reader is left.
    fn take(&mut self, bytes: &[u8]) -> bool;
    /// Notes that all bytes have been taken. A destination that is dropped without this has got only a part.
    fn end(&mut self);
    /// Reports whether no reader is left.
    fn is_gone(&self) -> bool;
}

impl StreamSink {
    /// Opens a device or FIFO. Opening a FIFO waits for its reader, as the shell's `>` does.
    ///
    /// # Errors
    ///
    /// The path and the error number; `EBUSY` if a block device is mounted or in use.
    pub fn open(path: &Path) -> Result<Self, IoFact> {
        let is_device = stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice);
        // EXCL without CREATE fails for a device that is mounted, or that swap or another device uses.
        let exclusive = if is_device { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | exclusive;
        let file = openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
            Errno::BUSY if is_device => IoFact { detail: IN_USE.into(), ..io_fact(path.as_os_str(), error) },
            error => io_fact(path.as_os_str(), error),
        })?;
        if standard::is_taken(&file) {
            return Err(io_fact(path.as_os_str(), Errno::BADF));
        }
        Ok(Self::new(file.into(), path.as_os_str()))
    }

    /// Makes a sink without a file. Data goes only to the destination given to [`StreamSink::and`], and the sink fails
    /// at its end.
    pub fn without_file(reason: IoFact) -> Self {
        let (file, name, tee, failed) = (None, OsString::new(), None, Some(reason));
        Self { file, name, tee, failed, text: None, is_unbegun_output: false }
    }

    /// Makes a sink of an open file.
    pub fn new(file: File, name: &OsStr) -> Self {
        if fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
        }
        let is_unbegun_output = name == standard::OUTPUT;
        // Data that is not text is not written, and ends the stream with [`NO_TEXT`].
        let text = standard::guard().filter(|_| is_unbegun_output);
        Self { file: Some(file), name: name.to_owned(), tee: None, failed: None, text, is_unbegun_output }
    }

    /// Adds a second destination for everything that is written.
    pub fn and(self, tee: impl Tee + 'static) -> Self {
        Self { tee: Some(Box::new(tee)), ..self }
    }

    /// Reports whether no reader is left.
    pub fn is_unread(&self) -> bool {
        match &self.tee {
            Some(tee) => tee.is_gone(),
            None => self.file.as_ref().is_some_and(standard::is_unread),
        }
    }

    /// Ends the stream after its last byte, and asks the file system for the result of all writes.
    ///
    /// # Errors
    ///
    /// The name and the error number.
    pub fn settle(&mut self) -> Result<(), IoFact> {
        // As with `tee`, also if the file has failed.
        if let Some(tee) = &mut self.tee {
            tee.end();
        }
        if let Some(text) = &mut self.text {
            let (shown, is_text) = text.end();
            self.write_file(&shown)?;
            if !is_text {
                return Err(plain_fact(&self.name, NO_TEXT));
            }
        }
        match (&self.file, &self.failed) {
            (_, Some(failed)) => Err(failed.clone()),
            (Some(file), None) => settle_open(file).map_err(|error| io_fact(&self.name, error)),
            (None, None) => Ok(()),
        }
    }

    /// Writes all of `bytes`. Waits without limit for a reader that stands still.
    ///
    /// # Errors
    ///
    /// The name and the error number; `EPIPE` if the reader has gone.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), IoFact> {
        if std::mem::take(&mut self.is_unbegun_output) {
            standard::begin_output();
        }
        let written = match &mut self.text {
            _ if self.failed.is_some() => Ok(()),
            Some(text) => {
                let (shown, is_text) = text.take(bytes);
                self.write_file(&shown)?;
                if is_text { Ok(()) } else { Err(plain_fact(&self.name, NO_TEXT)) }
            }
            None => self.write_file(bytes),
        };
        let Some(tee) = &mut self.tee else { return written };
        match written {
            // EPIPE would end tee(1) as well.
            Err(fact) if fact.errno == Errno::PIPE.raw_os_error() => return Err(fact),
            Err(fact) => self.failed = Some(fact),
            Ok(()) => {}
        }
        if tee.take(bytes) { Ok(()) } else { Err(io_fact(&self.name, Errno::PIPE)) }
    }

    fn write_file(&self, bytes: &[u8]) -> Result<(), IoFact> {
        let Some(file) = &self.file else { return Ok(()) };
        standard::write_all(file, bytes).map_err(|error| std_fact(&self.name, &error))
    }
}

/// Asks the file system, or the device, for the result of all writes to a file.
pub(crate) fn settle_open(file: &File) -> Result<(), Errno> {
    fstat(file).and_then(|stat| settle(file, FileType::from_raw_mode(stat.st_mode)))
}

/// Does so for a file of this kind.
fn settle(file: &File, kind: FileType) -> Result<(), Errno> {
    if kind == FileType::BlockDevice {
        // Closing a device does not tell whether the data could be written.
        fdatasync(file)?;
    }
    close::settle(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn a_device_is_asked_whether_the_data_could_be_written() {
        let file = tempfile::tempfile().expect("a file");
        let settled = |kind| where_calls_fail(&[libc::SYS_fdatasync], libc::EIO, || settle(&file, kind));
        assert_eq!(settled(FileType::BlockDevice), Err(Errno::IO));
        assert_eq!(settled(FileType::RegularFile), Ok(()));
    }

    #[test]
    fn a_closed_socket_has_no_reader_although_nothing_was_lost() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let mut sink = StreamSink::new(File::from(OwnedFd::from(ours)), OsStr::new("socket"));
        sink.write_all(b"1").expect("room");
        std::io::Read::read_exact(&mut theirs, &mut [0]).expect("it");
        theirs.shutdown(std::net::Shutdown::Write).expect("open");
        assert!(!sink.is_unread(), "it only has nothing to say");
        drop(theirs);
        assert!(sink.is_unread());
    }

    #[test]
    fn a_file_is_published_where_modes_cannot_be_set() {
        for (error, is_published) in
            [(libc::EPERM, true), (libc::EOPNOTSUPP, true), (libc::ENOSYS, true), (libc::EIO, false)]
        {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("file");
            let published = where_calls_fail(&[libc::SYS_fchmod], error, || {
                let sink = FileSink::create(&path).expect("made");
                sink.write_at(b"data", 0).expect("written");
                sink.publish()
            });
            assert_eq!((published.is_ok(), path.exists()), (is_published, is_published), "{error}");
        }
    }

    #[test]
    fn a_partial_file_that_is_gone_is_told_as_the_reason() {
        let directory = tempfile::tempdir().expect("a directory");
        let sink = FileSink::create(&directory.path().join("file")).expect("made");
        std::fs::remove_file(directory.path().join(name_beside(b"file", PARTIAL))).expect("it has that name");
        let fact = sink.publish().expect_err("it cannot be renamed");
        assert_eq!((fact.errno, &fact.detail[..]), (Errno::STALE.raw_os_error(), partial::REPLACED.as_bytes()));
    }
}
