//! Where the lines of `--json` go.
//!
//! A file may turn out to be part of what `rdcp` copies only when the hosts have been asked, and the command is then
//! refused. Until that is known, an existing file therefore keeps its contents, and events are held back.

use std::cell::OnceCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::io::Errno;

use crate::fault::errno_of;
use crate::fs::standard::write_all;
use crate::standard_error::{is_over, write_unless};

/// The destination of `--json`.
pub(super) struct Sink {
    file: File,
    /// Whether it has a reader who may stand still. If so, long lines are written in pieces.
    may_wait: bool,
    state: Mutex<State>,
}

/// How far the report is.
struct State {
    /// `None`: events are written as they come.
    held: Option<Held>,
    /// The first error. Nothing is written after it, because the report would look complete.
    failed: Option<Errno>,
}

impl State {
    /// Returns the first error, if there was one.
    fn so_far(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps the result of the first write that fails.
    fn note(&mut self, written: io::Result<()>) -> io::Result<()> {
        self.failed = written.as_ref().err().map(errno_of);
        written
    }
}

/// The destination that the first of several copies has opened, for the later ones, which continue its report. Empty
/// before the first. Holds no file if it is a regular one.
#[derive(Default)]
pub(crate) struct Kept(OnceCell<Option<File>>);

/// What is held back for a regular file.
struct Held {
    events: Vec<u8>,
    /// The path of the file, if it did not exist before.
    made: Option<PathBuf>,
}

impl Sink {
    /// Makes a sink of an open stream.
    pub(super) fn stream(file: File) -> Self {
        Self::new(file, None)
    }

    fn new(file: File, held: Option<Held>) -> Self {
        let may_wait = file.is_terminal() || file.metadata().is_ok_and(|found| found.file_type().is_fifo());
        Self { file, may_wait, state: Mutex::new(State { held, failed: None }) }
    }

    /// Opens or creates a file, a FIFO or a device, or opens again what is `kept`. `may_be_refused`: the contents of a
    /// file stay until [`Sink::begin`]. Always appends, so that lines stay whole if another process writes to the file
    /// or empties it.
    ///
    /// # Errors
    ///
    /// The system's error from opening it.
    pub(super) fn open(path: &Path, may_be_refused: bool, kept: &Kept) -> io::Result<Self> {
        match kept.0.get() {
            // Opening a FIFO again would wait for another reader.
            Some(Some(file)) => return file.try_clone().map(Self::stream),
            // Another program may have moved the file away, to begin a new one.
            Some(None) => return OpenOptions::new().append(true).create(true).open(path).map(Self::stream),
            None => {}
        }
        let (file, made) = match OpenOptions::new().append(true).create_new(true).open(path) {
            Ok(file) => (file, Some(path.to_owned())),
            // Creates it if it is a link that leads to nothing.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().append(true).create(true).open(path)?, None)
            }
            Err(error) => return Err(error),
        };
        let held = file.metadata()?.is_file().then(|| Held { events: Vec::new(), made });
        let stream = if held.is_some() { None } else { Some(file.try_clone()?) };
        let _ = kept.0.set(stream);
        let sink = Self::new(file, held);
        if !may_be_refused {
            sink.begin()?;
        }
        Ok(sink)
    }

    /// Replaces the contents of a file by the events that were held back, and holds none back from now on.
    ///
    /// # Errors
    ///
    /// The system's first error from writing.
    pub(super) fn begin(&self) -> io::Result<()> {
        let mut state = crate::locked(&self.state);
        let Some(early) = state.held.take() else { return state.so_far() };
        state.note(self.file.set_len(0).and_then(|()| self.write_all(&early.events)))
    }

    /// Writes a line, to a file in one piece, or holds it back. After a failure, writes nothing more.
    ///
    /// # Errors
    ///
    /// The system's first error from writing.
    pub(super) fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut state = crate::locked(&self.state);
        state.so_far()?;
        if let Some(early) = &mut state.held {
            early.events.extend(line);
            return Ok(());
        }
        state.note(self.write_all(line))
    }

    /// Waits for a reader, but not once a signal has asked this process to end.
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self.may_wait {
            true => Ok(write_unless(self.file.as_fd(), bytes, is_over)?),
            false => write_all(&self.file, bytes),
        }
    }

    /// Leaves a regular file as it was before the command: with its old contents, or missing. Returns whether that is
    /// so; otherwise something has been written, or the destination is a stream.
    pub(super) fn leave(&self) -> bool {
        let Some(held) = crate::locked(&self.state).held.take() else { return false };
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.metadata().ok().filter(|found| found.len() == 0).map(identity);
        // Another process may have put its own file there, or written to this one.
        if let Some(path) = held.made.filter(|path| own.is_some() && path.symlink_metadata().ok().map(identity) == own)
        {
            let _ = fs::remove_file(path);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Makes a FIFO in a directory.
    fn fifo(scratch: &tempfile::TempDir) -> PathBuf {
        let path = scratch.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        path
    }

    #[test]
    fn nothing_follows_a_gap() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = fifo(&scratch);
        let read = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("a reader");
        let reader = read();
        let sink = Sink::open(&path, true, &Kept::default()).expect("it");
        drop(reader);
        assert_eq!(sink.write(b"1\n").expect_err("no reader").kind(), ErrorKind::BrokenPipe);
        let mut reader = read();
        assert_eq!(sink.write(b"2\n").expect_err("as before").kind(), ErrorKind::BrokenPipe);
        assert_eq!(sink.begin().expect_err("as before").kind(), ErrorKind::BrokenPipe);
        drop(sink);
        let mut got = Vec::new();
        reader.read_to_end(&mut got).expect("its end");
        assert_eq!(got, b"");
    }

    #[test]
    fn a_slow_reader_of_a_pipe_that_does_not_block_gets_all() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("a flag");
        let sink = Sink::stream(OwnedFd::from(writer).into());
        let (line, count) = ([b'x'; 5000], 100);
        let reading = std::thread::spawn(move || {
            let mut got = Vec::new();
            std::thread::sleep(std::time::Duration::from_millis(100));
            reader.read_to_end(&mut got).map(|_| got.len())
        });
        (0..count).for_each(|_| sink.write(&line).expect("a reader"));
        drop(sink);
        assert_eq!(reading.join().expect("no panic").expect("all of it"), line.len() * count);
    }

    #[test]
    fn later_copies_continue_the_report() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        fs::write(&path, "old\n").expect("room");
        let kept = Kept::default();
        let tell = |path: &Path, kept: &Kept, line: &[u8]| {
            let sink = Sink::open(path, true, kept).expect("it");
            sink.begin().expect("room");
            sink.write(line).expect("room");
        };
        tell(&path, &kept, b"1\n");
        tell(&path, &kept, b"2\n");
        assert_eq!(fs::read(&path).expect("it"), b"1\n2\n");
        fs::rename(&path, scratch.path().join("moved")).expect("ours");
        tell(&path, &kept, b"3\n");
        assert_eq!(fs::read(&path).expect("a new one"), b"3\n");
        // Nobody could open this FIFO any more.
        let (path, kept) = (fifo(&scratch), Kept::default());
        let mut reader = File::options().read(true).write(true).open(&path).expect("both ends");
        tell(&path, &kept, b"1\n");
        fs::remove_file(&path).expect("ours");
        tell(&path, &kept, b"2\n");
        let mut got = [0; 8];
        assert_eq!(reader.read(&mut got).expect("lines"), 4);
        assert!(!path.exists() && got.starts_with(b"1\n2\n"));
    }

    #[test]
    fn a_file_keeps_its_contents_until_the_command_is_sure_to_go_on() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let read = || fs::read_to_string(&path).expect("it");
        fs::write(&path, "long and precious\n").expect("room");
        let sink = Sink::open(&path, true, &Kept::default()).expect("it");
        sink.write(b"1\n").expect("held");
        assert_eq!(read(), "long and precious\n");
        assert!(sink.leave());
        assert_eq!(read(), "long and precious\n");
        let sink = Sink::open(&path, true, &Kept::default()).expect("it");
        sink.write(b"1\n").expect("held");
        sink.begin().expect("room");
        assert_eq!(read(), "1\n");
        sink.write(b"2\n").expect("room");
        sink.begin().expect("room");
        assert!(!sink.leave());
        assert_eq!(read(), "1\n2\n");
        Sink::open(&path, false, &Kept::default()).expect("it");
        assert_eq!(read(), "", "an old report would be taken for that of a command that was killed");
    }

    #[test]
    fn lines_of_two_copies_into_one_file_stay_whole() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let [refused, one, two] = std::array::from_fn(|_| Sink::open(&path, true, &Kept::default()).expect("room"));
        one.begin().expect("room");
        one.write(b"a long line\n").expect("room");
        two.begin().expect("room");
        for (sink, line) in [(&two, b"2\n"), (&one, b"1\n"), (&two, b"2\n")] {
            sink.write(line).expect("room");
        }
        assert!(refused.leave());
        assert_eq!(fs::read(&path).expect("it"), b"2\n1\n2\n");
    }

    #[test]
    fn a_new_file_goes_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let sink = Sink::open(&path, true, &Kept::default()).expect("room");
        assert!(path.exists() && sink.leave() && !path.exists());
        let sink = Sink::open(&path, true, &Kept::default()).expect("room");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "of another").expect("room");
        assert!(sink.leave() && path.exists());
        // A link that leads to nothing, as with any other redirection.
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("target", &link).expect("a link");
        let sink = Sink::open(&link, false, &Kept::default()).expect("room");
        sink.write(b"1\n").expect("room");
        assert_eq!(fs::read(scratch.path().join("target")).expect("it"), b"1\n");
        assert!(Sink::open(scratch.path(), true, &Kept::default()).is_err());
        let sink = Sink::open(Path::new("/dev/null"), true, &Kept::default());
        assert!(!sink.expect("a device").leave());
    }
}
