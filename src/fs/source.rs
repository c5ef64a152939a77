//! Sources: a regular file, read in parts by several threads, or a stream, read in order by one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IoSliceMut, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rd_proto::control::IoFact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs, major, minor, tell};
use rustix::io::{Errno, read, readv};
use rustix::net::{RecvFlags, SocketType, recv, sockopt};
use rustix::param::page_size;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use super::direct::{Bypass, Cold, Tally};
use super::{described, io_fact, is_directory, plain_fact, read_up_to, standard};

/// How long a part that is not full waits in all for more data from its stream, counted from its first byte.
const LINGER_MAX: Duration = Duration::from_millis(5);

/// Longest single pause in a stream that does not end its part early.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Longest such pause if a caller waits for an answer. A program that writes without a pause is seldom slower.
const PROMPT_PAUSE_MAX: Duration = Duration::from_micros(100);

/// How often a reader of a silent stream checks whether the stream is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Capacity requested for a pipe that is read, so that reads are fewer and larger.
const PIPE_BYTES: usize = 1 << 20;

/// Where the bytes to be sent come from.
pub enum Source {
    /// A regular file of known size.
    File(FileSource),
    /// A pipe, socket or device, or a file whose size is meaningless.
    Stream(StreamSource),
}

/// One part of a source, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What the part belongs to: 0 for a stream, a single file, or the records of a tree; a large file's number in its
    /// tree.
    pub item: u32,
    /// Number of the part, from 0.
    pub sequence: u64,
    /// Offset of the part's first byte, counted from where the source began.
    pub position: u64,
    /// Length in bytes.
    pub length: usize,
    /// Whether this is the last part.
    pub is_final: bool,
}

impl Source {
    /// Opens a file for reading. Does not wait for the writer of a FIFO: the reader does that, and can be stopped.
    ///
    /// # Errors
    ///
    /// The path and the error number; `EISDIR` for a directory.
    pub fn open(path: &Path) -> Result<File, IoFact> {
        let name = path.as_os_str();
        let is_fifo = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        let wait =
            if rustix::fs::stat(path).is_ok_and(|stat| is_fifo(&stat)) { OFlags::NONBLOCK } else { OFlags::empty() };
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | wait, Mode::empty())
            .map_err(|error| io_fact(name, error))?;
        if !wait.is_empty() {
            rustix::io::ioctl_fionbio(&file, false).map_err(|error| io_fact(name, error))?;
        }
        let stat = fstat(&file).map_err(|error| io_fact(name, error))?;
        if is_directory(&stat) {
            return Err(io_fact(name, Errno::ISDIR));
        }
        if standard::is_taken(&file) || standard::is_input(name) && standard::was_closed(0) {
            return Err(io_fact(name, Errno::BADF));
        }
        Ok(File::from(file))
    }

    /// Makes a source of an open file, from its current offset on. `part_bytes`: the length of each part but the last.
    ///
    /// # Errors
    ///
    /// The name and the error number, if the file cannot be examined.
    pub fn new(file: File, name: &OsStr, part_bytes: usize) -> Result<Self, IoFact> {
        let stat = fstat(&file).map_err(|error| io_fact(name, error))?;
        let name = name.to_owned();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Err(io_fact(&name, Errno::ISDIR)),
            FileType::RegularFile => {
                let start = tell(&file).map_err(|error| io_fact(&name, error))?;
                if let Some(size) = size_after(&file, &stat, start) {
                    let (next, unread) = (Mutex::new((0, 0)), AtomicU64::new(size));
                    return Ok(Self::File(FileSource {
                        file,
                        name,
                        stat,
                        start,
                        size,
                        part_bytes,
                        next,
                        unread,
                        bypass: Bypass::default(),
                        may_grow: false,
                    }));
                }
            }
            FileType::Fifo => {
                let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
            }
            _ => {}
        }
        Ok(Self::Stream(StreamSource::new(Input::File(file), name)))
    }

    /// Makes a source of the pipe that a command writes to. If `cut` is set by the time that the pipe ends, that is not
    /// the end of the data: see [`StreamSource::is_cut`].
    pub fn of_command(pipe: File, cut: Arc<AtomicBool>) -> Self {
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
        Self::Stream(StreamSource { cut, ..StreamSource::new(Input::File(pipe), "pipe".into()) })
    }

    /// Makes a source of meaningless bytes from memory, delivered as fast as they are taken, for `lasting` from the
    /// first part on. Reading then costs nothing, so that the rate is that of the rest of the transfer.
    pub fn memory(lasting: Duration) -> Self {
        Self::Stream(StreamSource::new(Input::Memory(lasting, None), "memory".into()))
    }

    /// Returns the source in a form for callers that wait for an answer: data after a pause goes out at once, and data
    /// without a pause waits at most `PROMPT_PAUSE_MAX` for more. A file may grow meanwhile, as it may for ssh.
    pub fn prompt(self) -> Self {
        match self {
            Self::Stream(stream) => Self::Stream(StreamSource { is_prompt: true, ..stream }),
            Self::File(file) => Self::File(FileSource { may_grow: true, ..file }),
        }
    }

    /// Returns how many bytes will come, if that is known.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::File(file) => Some(file.size),
            Self::Stream(_) => None,
        }
    }
}

/// A regular file, from an offset to the end that it had when it was opened.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    name: OsString,
    stat: Stat,
    start: u64,
    size: u64,
    part_bytes: usize,
    /// Number and position of the next part.
    next: Mutex<(u64, u64)>,
    /// Number of bytes for which [`FileSource::note_read`] has not been called yet.
    unread: AtomicU64,
    bypass: Bypass,
    /// Whether a file that has grown while it was read is no failure, also if it was changed besides. What was appended
    /// is not read.
    may_grow: bool,
}

impl FileSource {
    /// Takes the next part to read, of at most `bytes` bytes; `None` when all have been taken.
    pub fn next_part(&self, bytes: usize) -> Option<Part> {
        let mut next = crate::locked(&self.next);
        let (sequence, position) = *next;
        if position == self.size {
            return None;
        }
        let length = (self.size - position).min(self.part_bytes.min(bytes) as u64);
        *next = (sequence + 1, position + length);
        let is_final = position + length == self.size;
        Some(Part { item: 0, sequence, position, length: length as usize, is_final })
    }

    /// Reads a part, or as much of it as the page cache has. In the latter case, the returned [`Cold`] tells how to
    /// read the rest.
    ///
    /// # Errors
    ///
    /// The name and the error number; without a number if the file has become shorter.
    pub fn read(&self, part: &Part, target: &mut [u8], tally: &Tally) -> Result<Option<Cold>, IoFact> {
        self.bypass.read(&self.file, &self.name, self.start + part.position, target, part.length, tally)
    }

    /// Completes a part after its direct read, whose result is `outcome`.
    ///
    /// # Errors
    ///
    /// Those of [`FileSource::read`].
    pub fn finish(
        &self,
        cold: &Cold,
        outcome: Result<usize, Errno>,
        target: &mut [u8],
        tally: &Tally,
    ) -> Result<(), IoFact> {
        self.bypass.finish(&self.file, &self.name, cold, outcome, target, tally)
    }

    /// Reads a part if that takes no waiting for a disk: if it is in the page cache, or the file is in memory anyway.
    /// Returns false if it is not, or cannot be read.
    pub fn read_cached(&self, part: &Part, target: &mut [u8], tally: &Tally) -> bool {
        self.bypass.read_cached(&self.file, self.start + part.position, &mut target[..part.length], tally)
    }

    /// Must be called for every part that has been read, with its length, before the part is reported. Of several
    /// threads that read at the same time, the last to call checks that the file is unchanged. What has been sent until
    /// then lacks at least that thread's part, so that no receiver takes it for the file.
    ///
    /// # Errors
    ///
    /// The name and what has changed. The part then counts as not read.
    pub fn note_read(&self, bytes: usize) -> Result<(), IoFact> {
        let bytes = bytes as u64;
        if self.unread.fetch_sub(bytes, Ordering::AcqRel) > bytes {
            return Ok(());
        }
        if self.may_grow && described(&self.file).is_ok_and(|now| now.st_size > self.stat.st_size) {
            return Ok(());
        }
        check_unchanged(&self.file, &self.name, &self.stat).inspect_err(|_| {
            self.unread.fetch_add(bytes, Ordering::AcqRel);
        })
    }
}

/// Returns the size of a regular file from `start` on, if it is known and not 0. Files made by the kernel claim to be
/// empty (/proc) or to have a page (sysfs).
fn size_after(file: &File, stat: &Stat, start: u64) -> Option<u64> {
    let size = (stat.st_size as u64).saturating_sub(start);
    (size > 0 && !is_of_sysfs(file)).then_some(size)
}

/// Describes an open file whose contents must not change while it is read to its end. `None` for a stream, and for a
/// file whose size and times say nothing about its contents.
pub(crate) fn steady(file: &File) -> Result<Option<Stat>, Errno> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(if is_file && size_after(file, &stat, tell(file)?).is_some() { Some(stat) } else { None })
}

/// Whether a file is one of sysfs, where the size and the times say nothing about the contents: statfs(2).
pub(crate) fn is_of_sysfs(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|system| system.f_type as u32 == 0x6265_6572)
}

/// Error message for a file that ends before its previous size.
pub(crate) const SHRANK: &str = "shrank while it was read";

/// Fills `target` from `offset` on, or fails with the name of the file.
pub(crate) fn read_at(file: impl AsFd, name: &OsStr, offset: u64, target: &mut [u8]) -> Result<(), IoFact> {
    match read_up_to(file, target, offset) {
        Ok(count) if count == target.len() => Ok(()),
        Ok(_) => Err(plain_fact(name, SHRANK)),
        Err(error) => Err(io_fact(name, error)),
    }
}

/// Fails if an open file is not as it was before: if its size or its times have changed.
pub(crate) fn check_unchanged(file: impl AsFd, name: &OsStr, before: &Stat) -> Result<(), IoFact> {
    let now = described(file).map_err(|error| io_fact(name, error))?;
    change(before, &now).map_or(Ok(()), |change| Err(plain_fact(name, change)))
}

/// Returns what has happened to the contents of a file between two looks at it, if anything.
///
/// A later time of last change (`ctime`) normally shows that the file was written to and got its old `mtime` back. But
/// if the file was given a name, or lost one, that explains the later `ctime`. A change of mode or owner does not,
/// because a process that writes a file in place sets those as well.
pub(crate) fn change(before: &Stat, now: &Stat) -> Option<&'static str> {
    let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
    let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    let kept = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
    let has_name = now.st_nlink != before.st_nlink && kept(now) == kept(before);
    if now.st_size != before.st_size {
        Some("changed size while it was read")
    } else if modified(now) != modified(before) || changed(now) != changed(before) && !has_name {
        Some("was changed while it was read")
    } else {
        None
    }
}

/// A stream, read in order.
#[derive(Debug)]
pub struct StreamSource {
    input: Input,
    name: OsString,
    /// How much room each read needs, in bytes, because the kernel throws away what of a message does not fit:
    /// `usize::MAX` for messages of any length.
    room: usize,
    /// What a read of a pipe has taken beyond the end of its part. It begins the next part.
    carried: Vec<u8>,
    sequence: u64,
    position: u64,
    ended: bool,
    is_prompt: bool,
    /// Whether it is a terminal, of which a shell gives each job its turn. Not so the other end of one (its master).
    is_terminal: bool,
    cut: Arc<AtomicBool>,
}

/// What a stream is read from.
#[derive(Debug)]
enum Input {
    File(File),
    /// Memory: each part holds what its buffer happens to contain, until this long after the first part.
    Memory(Duration, Option<Instant>),
}

/// Major device number of SCSI tapes (devices.txt of the kernel).
const TAPE: u32 = 9;

/// Device number of the masters of pseudo-terminals.
const MASTER: (u32, u32) = (5, 2);

/// Distance between the bytes that are touched in a part of memory. A page that was never written to has no memory of
/// its own.
const TOUCH_BYTES: usize = 4096;

impl StreamSource {
    fn new(input: Input, name: OsString) -> Self {
        let (room, is_terminal) = match &input {
            Input::File(file) => (room_for(file), file.is_terminal() && !is_master(file)),
            Input::Memory(..) => (1, false),
        };
        let (carried, cut) = (Vec::new(), Arc::default());
        Self { input, name, room, carried, sequence: 0, position: 0, ended: false, is_prompt: false, is_terminal, cut }
    }

    /// Whether each read takes one message, of any length. Its end is lost if a part has no room for it.
    pub fn has_messages(&self) -> bool {
        self.room == usize::MAX
    }

    /// Whether the stream has been ended before its time, so that its end is not that of its data.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Returns the next part without contents, which is always full. The stream ends after `lasting`.
    fn memory_part(&mut self, target: &mut [u8]) -> Part {
        if let Input::Memory(lasting, until) = &mut self.input {
            let until = *until.get_or_insert_with(|| Instant::now() + *lasting);
            self.ended = Instant::now() >= until;
        }
        target.iter_mut().step_by(TOUCH_BYTES).for_each(|byte| *byte = byte.wrapping_add(1));
        self.part(target.len())
    }

    fn part(&mut self, length: usize) -> Part {
        let part = Part { item: 0, sequence: self.sequence, position: self.position, length, is_final: self.ended };
        self.sequence += 1;
        self.position += length as u64;
        part
    }

    /// Waits until there is something to read, for about `wait` at most. What is typed for another job does not count.
    fn is_ready(&self, file: &File, wait: Duration) -> Result<bool, IoFact> {
        let is_ready = is_ready(file, &self.name, wait)?;
        let is_others = is_ready && self.is_terminal && is_others_turn(file);
        if is_others {
            std::thread::sleep(wait);
        }
        Ok(is_ready && !is_others)
    }

    /// Reads the next part into `target`, filling it if the stream is fast. Waits without limit for the first byte.
    ///
    /// A part that is not full is returned once the stream has paused for a millisecond, but not while `is_congested`
    /// says that it could not be sent yet anyway; see also [`Source::prompt`]. `None` after the end, and once `over` is
    /// set.
    ///
    /// # Errors
    ///
    /// The name and the error number.
    pub fn next_part(
        &mut self,
        target: &mut [u8],
        is_congested: &AtomicBool,
        over: &AtomicBool,
    ) -> Result<Option<Part>, IoFact> {
        if self.ended {
            return Ok(None);
        }
        let Input::File(file) = &self.input else { return Ok(Some(self.memory_part(target))) };
        let was_silent = self.is_prompt && !self.is_ready(file, PROMPT_PAUSE_MAX)?;
        let pause_max = match (self.is_prompt, was_silent) {
            (_, true) => Duration::ZERO,
            (true, false) => PROMPT_PAUSE_MAX,
            (false, false) => PAUSE_MAX,
        };
        // Not by a read without limit: the stream's writer would not notice that the stream is no longer read.
        while self.carried.is_empty() && !self.is_ready(file, LOOK_EVERY)? {
            if over.load(Ordering::Relaxed) {
                self.ended = true;
                return Ok(None);
            }
        }
        let mut length = self.carried.len().min(target.len());
        target[..length].copy_from_slice(&self.carried[..length]);
        self.carried.drain(..length);
        let mut first_byte = (length > 0).then(Instant::now);
        while length < target.len() {
            if let Some(since) = first_byte {
                let is_congested = is_congested.load(Ordering::Relaxed);
                let pause = match (is_congested, since.elapsed() >= LINGER_MAX) {
                    (true, _) => LINGER_MAX,
                    (false, true) => Duration::ZERO,
                    (false, false) => pause_max,
                };
                if !self.is_ready(file, pause)? {
                    if is_congested {
                        if over.load(Ordering::Relaxed) {
                            self.ended = true;
                            return Ok(None);
                        }
                        // Polls again instead of reading: a read might wait without limit, and the data already here
                        // with it.
                        continue;
                    }
                    break;
                }
                if self.has_messages() && !fits(file, target.len() - length) {
                    break;
                }
            }
            match read_once(file, &mut target[length..], self.room, &mut self.carried) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => {
                    length += count;
                    first_byte.get_or_insert_with(Instant::now);
                }
                Err(Errno::INTR) => {}
                // Another process shares this standard input and has made it non-blocking.
                Err(Errno::AGAIN) => {
                    self.is_ready(file, Duration::from_secs(1))?;
                }
                Err(error) => return Err(io_fact(&self.name, error)),
            }
        }
        Ok(Some(self.part(length)))
    }
}

/// Returns the `room` of a [`StreamSource`] that reads this file.
fn room_for(file: &File) -> usize {
    let Ok(stat) = fstat(file) else { return 1 };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket if sockopt::socket_type(file) != Ok(SocketType::STREAM) => usize::MAX,
        // A read takes one block, of any length.
        FileType::CharacterDevice if major(stat.st_rdev) == TAPE => usize::MAX,
        // A writer with O_DIRECT, which this end cannot see, writes messages of at most a page.
        FileType::Fifo => page_size(),
        _ => 1,
    }
}

/// Whether the message that a socket has next is no longer than this. Never for a tape, which does not tell.
fn fits(file: &File, length_max: usize) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    recv(file, &mut [0_u8; 0], flags).is_ok_and(|(_, length)| length <= length_max)
}

/// Reads once, from a file that needs this much room. What does not fit into `target` goes to `beyond`, which is empty.
/// `EMSGSIZE` if a socket's message is longer than `target`.
fn read_once(file: &File, target: &mut [u8], room: usize, beyond: &mut Vec<u8>) -> Result<usize, Errno> {
    let length = target.len();
    if length >= room {
        return read(file, target);
    }
    if room < usize::MAX {
        beyond.resize(room, 0);
        let taken = readv(file, &mut [IoSliceMut::new(target), IoSliceMut::new(beyond)]);
        beyond.truncate(taken.map_or(0, |taken| taken.saturating_sub(length)));
        return taken.map(|taken| taken.min(length));
    }
    match recv(file, &mut *target, RecvFlags::TRUNC) {
        Ok((_, taken)) if taken > length => Err(Errno::MSGSIZE),
        Err(Errno::NOTSOCK) => read(file, target),
        received => received.map(|(_, taken)| taken),
    }
}

/// Whether this is the terminal of this process, and another job is in its foreground. A read would then stop this
/// process and its sessions by SIGTTIN, or fail if no shell is left that could continue it.
pub(crate) fn is_others_turn(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|owner| owner != getpgrp())
}

/// Whether this is the end of a terminal at which a program types. It tells the job that is in the foreground at the
/// other end.
fn is_master(file: &File) -> bool {
    fstat(file).is_ok_and(|stat| (major(stat.st_rdev), minor(stat.st_rdev)) == MASTER)
}

fn is_ready(file: &File, name: &OsStr, wait: Duration) -> Result<bool, IoFact> {
    let wait = Timespec::try_from(wait).expect("short");
    match poll(&mut [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)], Some(&wait)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(io_fact(name, error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "a terminal is made")]

    use std::io::Write;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::process::Command;
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::fs::direct::write::is_cache_only;

    #[test]
    fn a_patient_reader_lets_go_when_nobody_wants_it_any_more() {
        let (read, mut write) = std::io::pipe().expect("a pipe");
        write.write_all(b"1").expect("written");
        let file = File::from(std::os::fd::OwnedFd::from(read));
        let Ok(Source::Stream(mut stream)) = Source::new(file, OsStr::new("pipe"), 1000) else { panic!("a stream") };
        let (is_congested, over) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| stream.next_part(&mut [0; 1000], &is_congested, &over));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!reader.is_finished(), "it waits for more");
            over.store(true, Ordering::Relaxed);
            assert_eq!(reader.join().expect("no panic"), Ok(None));
        });
    }

    #[test]
    fn a_master_is_read_while_a_job_has_its_terminal() {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: there is room for two descriptors, which are new and belong to nobody else.
        let [master, slave] = unsafe {
            assert_eq!(libc::openpty(&raw mut master, &raw mut slave, null_mut(), null(), null()), 0);
            [master, slave].map(|end| OwnedFd::from_raw_fd(end))
        };
        let source = Source::new(File::from(master), OsStr::new("master"), 1000);
        let Ok(Source::Stream(mut stream)) = source else { panic!("a stream") };
        let mut job = Command::new("setsid");
        job.args(["-c", "sh", "-c", "echo typed; exec sleep 1000"]);
        job.stdin(slave.try_clone().expect("a terminal")).stdout(slave);
        let mut child = job.spawn().expect("setsid");
        let (mut target, is_congested, over) = ([0_u8; 1000], AtomicBool::new(false), AtomicBool::new(false));
        let part = std::thread::scope(|scope| {
            let reader = scope.spawn(|| stream.next_part(&mut target, &is_congested, &over));
            let until = Instant::now() + Duration::from_secs(20);
            while !reader.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            over.store(true, Ordering::Relaxed);
            reader.join().expect("no panic")
        });
        let ended = child.try_wait().expect("ours");
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(target.starts_with(b"typed") && ended.is_none(), "{part:?} {ended:?}");
    }

    /// Returns the parts of a stream, up to its last part or its failure. Waits until they are full.
    fn parts(file: impl Into<std::os::fd::OwnedFd>, part_bytes: usize) -> (Vec<Vec<u8>>, Option<IoFact>) {
        let source = Source::new(File::from(file.into()), OsStr::new("stream"), part_bytes);
        let Ok(Source::Stream(mut stream)) = source else { panic!("a stream") };
        let (mut parts, mut position) = (Vec::new(), 0);
        let (is_congested, over) = (AtomicBool::new(true), AtomicBool::new(false));
        loop {
            let mut target = vec![0; part_bytes];
            match stream.next_part(&mut target, &is_congested, &over) {
                Ok(None) => return (parts, None),
                Ok(Some(part)) => {
                    assert_eq!(part.position, position);
                    position += part.length as u64;
                    target.truncate(part.length);
                    parts.push(target);
                }
                Err(fact) => return (parts, Some(fact)),
            }
        }
    }

    #[test]
    fn no_message_is_cut_and_short_ones_share_a_part() {
        use rustix::net::{AddressFamily, SocketFlags, socketpair};
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.expect("sockets");
        for bytes in [100, 300, 600, 600, 600, 1000, 1500] {
            assert_eq!(rustix::io::write(&ours, &[7; 1500][..bytes]), Ok(bytes));
        }
        let too_long = io_fact(OsStr::new("stream"), Errno::MSGSIZE);
        assert_eq!(parts(theirs, 1000), ([1000, 600, 600, 1000].map(|bytes| vec![7; bytes]).into(), Some(too_long)));
    }

    /// Data is written past the page cache only if it begins at a page.
    #[test]
    fn parts_of_a_pipe_are_full_however_it_is_written() {
        let page = page_size();
        for (flags, bytes) in [(OFlags::empty(), page + 1), (OFlags::DIRECT, 3000), (OFlags::DIRECT, page)] {
            for part_bytes in [100, 2 * page, 2 * page + 100] {
                let (read, mut write) = std::io::pipe().expect("a pipe");
                // Only the writer's end is told to keep what it writes apart.
                rustix::fs::fcntl_setfl(&write, flags).expect("a flag");
                let all: Vec<u8> = (0..7 * bytes).map(|at| (at / 3) as u8).collect();
                let written = all.clone();
                let writer = std::thread::spawn(move || {
                    for piece in written.chunks(bytes) {
                        write.write_all(piece).expect("a reader");
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
                let (parts, failed) = parts(read, part_bytes);
                writer.join().expect("no panic");
                let (_, full) = parts.split_last().expect("some");
                assert!(full.iter().all(|part| part.len() == part_bytes), "{flags:?} {bytes} {part_bytes}");
                assert!(parts.concat() == all && failed.is_none(), "{flags:?} {bytes} {part_bytes}: {failed:?}");
            }
        }
    }

    #[test]
    fn names_are_not_contents() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        std::fs::write(&path, "contents").expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("there");
        let before = described(&file).expect("described");
        let modified = file.metadata().and_then(|known| known.modified()).expect("a time");
        let since = || {
            // The clock of a file system ticks at least 100 times a second.
            std::thread::sleep(Duration::from_millis(20));
            change(&before, &described(&file).expect("described"))
        };
        std::thread::sleep(Duration::from_millis(20));
        std::fs::hard_link(&path, scratch.path().join("name")).expect("linked");
        assert_eq!(since(), None);
        std::fs::remove_file(scratch.path().join("name")).expect("there");
        std::thread::sleep(Duration::from_millis(20));
        (&file).write_all(b"CONTENTS").expect("written");
        file.set_modified(modified).expect("ours");
        assert!(since().is_some(), "written to, and given its old time");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("ours");
        assert!(since().is_some(), "and given rights");
    }

    #[test]
    fn a_file_system_that_cannot_tell_what_it_has_in_memory_is_not_read_by_a_lane() {
        let read = |place: &Path| {
            let directory = tempfile::tempdir_in(place).expect("a directory");
            let path = directory.path().join("f");
            std::fs::write(&path, [7; 4096]).expect("a file");
            let source = Source::new(Source::open(&path).expect("a file"), OsStr::new("f"), 4096);
            let Ok(Source::File(file)) = source else { panic!("a file") };
            let part = file.next_part(usize::MAX).expect("one");
            where_calls_fail(&[libc::SYS_preadv2], libc::EOPNOTSUPP, || {
                file.read_cached(&part, &mut [0; 4096], &Tally::default())
            })
        };
        let kind = |place: &Path| rustix::fs::statfs(place).expect("a place").f_type as u32;
        for place in [concat!(env!("CARGO_MANIFEST_DIR"), "/target"), "/dev/shm"].map(Path::new) {
            assert_eq!(read(place), is_cache_only(kind(place)), "{place:?}");
        }
    }

    #[test]
    fn parts_of_any_length_make_up_the_file() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10_000).expect("some");
        let Ok(Source::File(file)) = Source::new(file, OsStr::new("f"), 4096) else { panic!("a file") };
        let parts = [1000, usize::MAX, 5, 1 << 20].map(|bytes| file.next_part(bytes).expect("a part"));
        assert_eq!(parts.map(|part| (part.sequence, part.position)), [(0, 0), (1, 1000), (2, 5096), (3, 5101)]);
        let last = file.next_part(4096).expect("the last");
        assert_eq!((last.sequence, last.position, last.length), (4, 9197, 803));
        assert_eq!((parts.map(|part| part.is_final), last.is_final), ([false; 4], true));
        assert_eq!(file.next_part(1), None);
    }

    #[test]
    fn a_file_that_changes_is_found_by_the_reader_of_its_last_part() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        std::fs::write(&path, [7; 2500]).expect("a file");
        let source = |path: &Path| Source::new(Source::open(path).expect("a file"), OsStr::new("f"), 1000);
        let Ok(Source::File(file)) = source(&path) else { panic!("a file") };
        for length in [1000, 1000, 500] {
            assert_eq!(file.note_read(length), Ok(()));
        }
        let Ok(Source::File(file)) = source(&path) else { panic!("a file") };
        assert_eq!(file.note_read(1000), Ok(()));
        std::fs::write(&path, [8; 2600]).expect("a file");
        assert_eq!(file.note_read(1000), Ok(()), "parts are missing still, so that nobody takes it for the file");
        for _ in 0..2 {
            assert_eq!(file.note_read(500), Err(plain_fact(OsStr::new("f"), "changed size while it was read")));
        }
    }

    /// As a log does while ssh reads it.
    #[test]
    fn a_file_may_grow_for_who_waits_for_an_answer() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        for (contents, is_well) in [(&[7; 2600][..], true), (&[8; 2500], false), (&[7; 2400], false)] {
            std::fs::write(&path, [7; 2500]).expect("a file");
            let source = Source::new(Source::open(&path).expect("a file"), OsStr::new("f"), 5000).map(Source::prompt);
            let Ok(Source::File(file)) = source else { panic!("a file") };
            // The clock of a file system ticks at least 100 times a second.
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(&path, contents).expect("a file");
            assert_eq!(file.note_read(2500).is_ok(), is_well, "{} bytes", contents.len());
        }
    }
}
