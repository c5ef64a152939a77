//! Compares a directory of this host with a manifest from the caller: `rdcp --check`.

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError};

use crate::control::frames::{Fault, Message, Report};
use crate::control::names;
use crate::control::tunnel::Emit;
use crate::fault::Exit;
use crate::tree::check::{CheckError, Checked, Medium, check};
use crate::tree::entries::{Entry, EntryStream};

/// How often a comparison that waits for the manifest checks whether it has been stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A comparison to be made.
pub(crate) struct Comparison {
    pub(crate) directory: Vec<u8>,
    pub(crate) medium: Medium,
    /// Whether `~` stands for the home directory of the login.
    pub(crate) expand: bool,
    /// Pieces of the manifest as they arrive; an empty piece is its end.
    pub(crate) manifest: Receiver<Vec<u8>>,
    /// Set by another thread to end the comparison.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) entries: Arc<EntryStream>,
}

impl Comparison {
    /// Compares the directory, and reports each difference to the caller.
    pub(crate) fn compare(self, emit: &Emit) -> Report {
        let start = Instant::now();
        let Self { directory, medium, expand, manifest, stop, entries } = self;
        let is_stopped = Arc::clone(&stop);
        entries.end_when(move || is_stopped.load(Ordering::Relaxed));
        let directory =
            if expand { names::home_expanded(&directory) } else { PathBuf::from(OsString::from_vec(directory)) };
        // `host:` stands for the home directory of the login.
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        let stream = Manifest { pieces: manifest, piece: Vec::new(), at: 0, is_over: false, stop: &stop, emit };
        let tell = |finding| entries.tell(Entry::Compared(finding));
        let outcome = check(BufReader::new(stream), &directory, medium, &stop, &tell);
        entries.flush();
        let mut report = Report::default();
        report.figures.seconds = start.elapsed().as_secs_f64();
        match outcome {
            _ if stop.load(Ordering::Relaxed) => {
                report.fault = Some(Fault::plain(Exit::Signal(libc::SIGTERM as u8).code(), ""));
            }
            Ok(Checked { entries, unreadable, bytes, .. }) => {
                report.tree.failed = unreadable;
                (report.tree.amount.entries, report.tree.amount.bytes) = (entries, bytes);
            }
            Err(CheckError::Manifest(error)) => {
                report.fault = Some(Fault::plain(Exit::Source.code(), error.to_string()));
            }
            Err(CheckError::Directory(fact)) => {
                report.fault = Some(Fault::io(Exit::Destination.code(), "cannot read", &fact));
            }
        }
        report
    }
}

/// Reader of the manifest as the caller sends it.
struct Manifest<'a> {
    pieces: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    is_over: bool,
    stop: &'a AtomicBool,
    emit: &'a Emit,
}

impl Read for Manifest<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.is_over {
            match self.pieces.recv_timeout(LOOK_AGAIN) {
                Ok(piece) => {
                    self.is_over = piece.is_empty();
                    (self.piece, self.at) = (piece, 0);
                    (self.emit)(Message::ManifestTaken);
                }
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::Relaxed) => {}
                Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        let count = target.len().min(self.piece.len() - self.at);
        target[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
