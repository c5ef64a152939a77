//! Where the lines of `--json` go.
//!
//! A file may turn out to be part of what is copied only when the hosts have been asked, and the command is then
//! refused. Until it is sure to go on, an existing file therefore keeps its contents, and events are held back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
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

    /// Opens or creates a file, a FIFO or a device. The contents of a file stay for now.
    ///
    /// # Errors
    ///
    /// The system's error from opening it.
    pub(super) fn open(path: &Path, name: String) -> io::Result<Self> {
        let (file, made) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => (file, Some(path.to_owned())),
            // Creates it if it is a link that leads to nothing.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).create(true).truncate(false).open(path)?, None)
            }
            Err(error) => return Err(error),
        };
        let is_regular = file.metadata()?.is_file();
        let held = is_regular.then(|| Held { events: Vec::new(), made });
        Ok(Self { file, name, held: Mutex::new(held) })
    }

    /// Writes a line in one piece, so that a reader sees whole lines. `is_early`: the command may still be refused, so
    /// that the line is held back if nothing has been written to the file.
    ///
    /// # Errors
    ///
    /// The system's error from writing.
    pub(super) fn write(&self, line: &[u8], is_early: bool) -> io::Result<()> {
        let mut held = self.held.lock().expect("no panic with it locked");
        match held.take() {
            Some(mut early) if is_early => {
                early.events.extend(line);
                *held = Some(early);
                Ok(())
            }
            Some(early) => {
                self.file.set_len(0)?;
                (&self.file).write_all(&[&early.events[..], line].concat())
            }
            None => (&self.file).write_all(line),
        }
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
        let sink = Sink::open(&path, String::new()).expect("it");
        sink.write(b"1\n", true).expect("held");
        assert_eq!(read(), "long and precious\n");
        assert!(sink.leave());
        assert_eq!(read(), "long and precious\n");
        let sink = Sink::open(&path, String::new()).expect("it");
        for (line, is_early) in [(b"1\n", true), (b"2\n", false), (b"3\n", true)] {
            sink.write(line, is_early).expect("room");
        }
        assert_eq!(read(), "1\n2\n3\n");
        assert!(!sink.leave());
        assert_eq!(read(), "1\n2\n3\n");
    }

    #[test]
    fn a_new_file_goes_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let sink = Sink::open(&path, String::new()).expect("room");
        assert!(path.exists() && sink.leave() && !path.exists());
        let sink = Sink::open(&path, String::new()).expect("room");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "of another").expect("room");
        assert!(sink.leave() && path.exists());
        // A link that leads to nothing, as with any other redirection.
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("target", &link).expect("a link");
        Sink::open(&link, String::new()).expect("room").write(b"1\n", false).expect("room");
        assert_eq!(fs::read(scratch.path().join("target")).expect("it"), b"1\n");
        assert!(Sink::open(scratch.path(), String::new()).is_err());
        assert!(!Sink::open(Path::new("/dev/null"), String::new()).expect("a device").leave());
    }
}
