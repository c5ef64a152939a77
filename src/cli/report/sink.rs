//! Where the lines of `--json` go.
//!
//! A file may turn out to be part of what `rdcp` copies only when the hosts have been asked, and the command is then
//! refused. Until that is known, an existing file therefore keeps its contents, and events are held back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The destination of `--json`.
pub(super) struct Sink {
    file: File,
    /// What messages call it.
    pub(super) name: String,
    /// `None`: events are written as they come.
    held: Mutex<Option<Held>>,
}

/// What is held back for a regular file.
struct Held {
    events: Vec<u8>,
    /// The path of the file, if it did not exist before.
    made: Option<PathBuf>,
}

impl Sink {
    /// Makes a sink of an open stream.
    pub(super) fn stream(file: File, name: String) -> Self {
        Self { file, name, held: Mutex::new(None) }
    }

    /// Opens or creates a file, a FIFO or a device. `may_be_refused`: the contents of a file stay until
    /// [`Sink::begin`].
    ///
    /// # Errors
    ///
    /// The system's error from opening it.
    pub(super) fn open(path: &Path, name: String, may_be_refused: bool) -> io::Result<Self> {
        let (file, made) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => (file, Some(path.to_owned())),
            // Creates it if it is a link that leads to nothing.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).create(true).truncate(false).open(path)?, None)
            }
            Err(error) => return Err(error),
        };
        let held = file.metadata()?.is_file().then(|| Held { events: Vec::new(), made });
        let sink = Self { file, name, held: Mutex::new(held) };
        if !may_be_refused {
            sink.begin()?;
        }
        Ok(sink)
    }

    /// Replaces the contents of a file by the events that were held back, and holds none back from now on.
    ///
    /// # Errors
    ///
    /// The system's error from writing.
    pub(super) fn begin(&self) -> io::Result<()> {
        let mut held = self.held.lock().expect("no panic with it locked");
        let Some(early) = &*held else { return Ok(()) };
        self.file.set_len(0)?;
        (&self.file).rewind()?;
        (&self.file).write_all(&early.events)?;
        *held = None;
        Ok(())
    }

    /// Writes a line in one piece, so that a reader sees whole lines, or holds it back.
    ///
    /// # Errors
    ///
    /// The system's error from writing.
    pub(super) fn write(&self, line: &[u8]) -> io::Result<()> {
        match &mut *self.held.lock().expect("no panic with it locked") {
            Some(early) => early.events.extend(line),
            None => (&self.file).write_all(line)?,
        }
        Ok(())
    }

    /// Leaves a regular file as it was before the command: with its old contents, or missing. Returns whether that is
    /// so; otherwise something has been written, or the destination is a stream.
    pub(super) fn leave(&self) -> bool {
        let Some(held) = self.held.lock().expect("no panic with it locked").take() else { return false };
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.metadata().ok().map(identity);
        // Another process may have put its own file there.
        if let Some(path) = held.made.filter(|path| path.symlink_metadata().ok().map(identity) == own) {
            let _ = fs::remove_file(path);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_contents_until_the_command_is_sure_to_go_on() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let read = || fs::read_to_string(&path).expect("it");
        fs::write(&path, "long and precious\n").expect("room");
        let sink = Sink::open(&path, String::new(), true).expect("it");
        sink.write(b"1\n").expect("held");
        assert_eq!(read(), "long and precious\n");
        assert!(sink.leave());
        assert_eq!(read(), "long and precious\n");
        let sink = Sink::open(&path, String::new(), true).expect("it");
        sink.write(b"1\n").expect("held");
        sink.begin().expect("room");
        assert_eq!(read(), "1\n");
        sink.write(b"2\n").expect("room");
        sink.begin().expect("room");
        assert!(!sink.leave());
        assert_eq!(read(), "1\n2\n");
        Sink::open(&path, String::new(), false).expect("it");
        assert_eq!(read(), "", "an old report would be taken for that of a command that was killed");
    }

    #[test]
    fn a_new_file_goes_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let sink = Sink::open(&path, String::new(), true).expect("room");
        assert!(path.exists() && sink.leave() && !path.exists());
        let sink = Sink::open(&path, String::new(), true).expect("room");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "of another").expect("room");
        assert!(sink.leave() && path.exists());
        // A link that leads to nothing, as with any other redirection.
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("target", &link).expect("a link");
        Sink::open(&link, String::new(), false).expect("room").write(b"1\n").expect("room");
        assert_eq!(fs::read(scratch.path().join("target")).expect("it"), b"1\n");
        assert!(Sink::open(scratch.path(), String::new(), true).is_err());
        assert!(!Sink::open(Path::new("/dev/null"), String::new(), true).expect("a device").leave());
    }
}
