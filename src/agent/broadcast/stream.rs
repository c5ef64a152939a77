//! Nodes of a pipeline: the stream is the output of a command, and other commands take it as input.
//!
//! # What holds
//!
//! * A command gets the end of its input only after the stream has been proven. Until then its guard keeps its input
//!   open: the command must not take a part for the whole.
//! * No thread waits for a command longer than its node lives.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rd_proto::control::IoFact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Shared, proof_of};
use crate::agent::end::{Moves, awaited};
use crate::control::frames::{Fault, Message};
use crate::control::stages::{Attachment, Cut, Inlet, Outlet};
use crate::fault::Exit;
use crate::fs::queue::{DiskQueue, Unqueued};
use crate::fs::{io_fact, sink, source, standard, std_fact};
use crate::transport::spool::Gone;

/// How often to check whether the node still lives while a command keeps it waiting.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Maximum number of bytes read at once: the capacity of a pipe.
const READ_BYTES: usize = 1 << 20;

/// Why no more is written.
enum Unwritten {
    /// The command has closed its input.
    Closed,
    Io(IoFact),
    /// The rest of the stream is no longer wanted.
    Over,
}

impl From<Unqueued> for Unwritten {
    fn from(unqueued: Unqueued) -> Self {
        match unqueued {
            Unqueued::Over => Self::Over,
            Unqueued::Io(fact) => Self::Io(fact),
        }
    }
}

impl Shared {
    /// Makes the stream from the output of a command, or from standard input.
    pub(super) fn read_stream(&self, moves: Option<Moves>) -> Result<(), Fault> {
        let (file, path, cut) = match moves {
            Some(Moves::Output(outlet)) => match self.await_stage(&outlet)? {
                Outlet::Command(pipe, cut) => (pipe, PathBuf::from("pipe"), cut),
                Outlet::File(file, path) => (file, path, Cut::default()),
                Outlet::Relay(_) => return Err(impossible()),
            },
            Some(Moves::Named) => {
                let input = standard::named_input().map_err(|fact| Fault::unreadable(&fact))?;
                (input, standard::INPUT.into(), Cut::default())
            }
            _ => return Err(impossible()),
        };
        // This fails if the file is not a pipe, which does no harm.
        let _ = rustix::pipe::fcntl_setpipe_size(&file, READ_BYTES);
        let unreadable = |error| Fault::unreadable(&io_fact(path.as_os_str(), error));
        let before = source::steady(&file).map_err(unreadable)?;
        let (input, mut hasher) = (self.spool.input(), blake3::Hasher::new());
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if self.is_stopped() {
                return Err(self.given_up());
            }
            if !is_ready(&file, PollFlags::IN) {
                continue;
            }
            let length = match rustix::io::read(&file, &mut buffer[..]) {
                Ok(0) if cut.load(Ordering::Acquire) => return Err(self.given_up()),
                Ok(0) => break,
                Ok(length) => length,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(unreadable(error)),
            };
            hasher.update(&buffer[..length]);
            if input.append(&buffer[..length], &self.stop).is_err() {
                return Err(self.given_up());
            }
        }
        if let Some(before) = before {
            source::check_unchanged(&file, path.as_os_str(), &before).map_err(|fact| Fault::unreadable(&fact))?;
        }
        // The proof is sent before any node can have the end of the stream.
        (self.emit)(Message::BroadcastProof(proof_of(&hasher, None)));
        input.end().map_err(|_| self.given_up())
    }

    /// Passes the stream to a command, or to the file that a redirection opens. Up to `disk_bytes` may wait on disk for
    /// it.
    pub(super) fn write_stream(&self, moves: Option<Moves>, disk_bytes: u64) -> Result<(), Fault> {
        // Whether this node is too slow is decided by the caller, which knows what the user wants.
        self.spool.hold();
        let Some(Moves::Input(inlet)) = moves else { return Err(impossible()) };
        let (file, path, whole) = match self.await_stage(&inlet)? {
            Inlet::Command(pipe, whole) => (pipe, "pipe".into(), Some(whole)),
            Inlet::File(file, path) => (file, path, None),
            Inlet::Tee(..) => return Err(impossible()),
        };
        let done = self.write_all(&file, &path, disk_bytes).map_err(|fault| {
            match fault.exit == Exit::SinkClosed.code() && whole.is_none() {
                // A file, such as a FIFO whose reader has gone, is to have all of the stream. A command may want less.
                true => Fault::unwritable(&io_fact(path.as_os_str(), Errno::PIPE)),
                false => fault,
            }
        });
        if let (Ok(()), Some(whole)) = (&done, &whole) {
            whole.tell();
        }
        done
    }

    fn write_all(&self, file: &File, path: &Path, disk_bytes: u64) -> Result<(), Fault> {
        let unwritable = |error| Fault::unwritable(&io_fact(path.as_os_str(), error));
        // With a non-blocking pipe, a full pipe is noticed at once instead of blocking the write.
        let flags = rustix::fs::fcntl_getfl(file).map_err(unwritable)?;
        rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(unwritable)?;
        let _ = rustix::pipe::fcntl_setpipe_size(file, READ_BYTES);
        match disk_bytes {
            0 => self.take_all(|bytes| self.write_some(file, path, bytes))?,
            bytes => self.write_by_disk(file, path, bytes)?,
        }
        sink::settle_open(file).map_err(unwritable)
    }

    /// Does the same by way of a queue on disk.
    fn write_by_disk(&self, file: &File, path: &Path, disk_bytes: u64) -> Result<(), Fault> {
        let queue = DiskQueue::new(disk_bytes).map_err(|fact| Fault::unwritable(&fact))?;
        let is_over = AtomicBool::new(false);
        let goes_on = || !is_over.load(Ordering::Relaxed) && !self.is_stopped() && self.spool.status().has_tree;
        let write = || -> Result<(), Unwritten> {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match queue.take(&mut buffer, goes_on)? {
                    0 => return Ok(()),
                    length => self.write_some(file, path, &buffer[..length])?,
                }
            }
        };
        std::thread::scope(|scope| {
            let writer = std::thread::Builder::new().name("broadcast-disk".to_owned()).spawn_scoped(scope, || {
                let written = write();
                if written.is_err() {
                    // From now on the rest of the stream is not needed either.
                    is_over.store(true, Ordering::Relaxed);
                    self.spool.leave(false);
                }
                written
            });
            let writer = writer
                .map_err(|error| Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}")))?;
            let taken = self.take_all(|bytes| queue.put(bytes, goes_on).map_err(Unwritten::from));
            match taken {
                // The queue is ended only here, after the stream has been proven.
                Ok(()) => queue.end(),
                Err(_) => {
                    is_over.store(true, Ordering::Relaxed);
                    // The command may read nothing for a long time, which the writer would wait for.
                    self.spool.leave(false);
                }
            }
            match writer.join().expect("it does not panic") {
                Ok(()) | Err(Unwritten::Over) => taken,
                Err(unwritten) => Err(self.why_unwritten(unwritten)),
            }
        })
    }

    /// Takes the whole stream, which is proven at its end.
    fn take_all(&self, mut put: impl FnMut(&[u8]) -> Result<(), Unwritten>) -> Result<(), Fault> {
        let mut hasher = blake3::Hasher::new();
        while let Some(slice) = self.spool.take().map_err(|Gone| self.left_out())? {
            hasher.update(slice.as_ref());
            put(slice.as_ref()).map_err(|unwritten| self.why_unwritten(unwritten))?;
        }
        let proof = self.await_proof()?;
        if proof_of(&hasher, proof.tree) != proof {
            let detail = "data from an earlier host does not match the source";
            return Err(Fault::plain(Exit::Integrity.code(), detail));
        }
        Ok(())
    }

    fn why_unwritten(&self, unwritten: Unwritten) -> Fault {
        match unwritten {
            Unwritten::Closed => Fault::plain(Exit::SinkClosed.code(), ""),
            Unwritten::Io(fact) => Fault::unwritable(&fact),
            Unwritten::Over => self.left_out(),
        }
    }

    fn write_some(&self, mut file: &File, path: &Path, bytes: &[u8]) -> Result<(), Unwritten> {
        let mut done = 0;
        while done < bytes.len() {
            match file.write(&bytes[done..]) {
                Ok(0) => return Err(Unwritten::Io(io_fact(path.as_os_str(), Errno::IO))),
                Ok(count) => {
                    done += count;
                    // The spool does not know how much of a queue on disk its command has taken.
                    self.progress.wrote(count as u64);
                }
                Err(error) => match error.kind() {
                    std::io::ErrorKind::Interrupted => {}
                    std::io::ErrorKind::WouldBlock => {
                        while !is_ready(file, PollFlags::OUT) {
                            if self.is_stopped() || !self.spool.status().has_tree {
                                return Err(Unwritten::Over);
                            }
                        }
                    }
                    std::io::ErrorKind::BrokenPipe => return Err(Unwritten::Closed),
                    _ => return Err(Unwritten::Io(std_fact(path.as_os_str(), &error))),
                },
            }
        }
        Ok(())
    }

    /// Waits until the stage has been started, for as long as the node lives.
    fn await_stage<T>(&self, attachment: &Attachment<T>) -> Result<T, Fault> {
        awaited(attachment, || if self.is_stopped() { Err(self.given_up()) } else { Ok(()) })?
    }

    /// Returns why a stage gets no more of the stream. The caller knows a more precise reason.
    fn left_out(&self) -> Fault {
        if self.is_stopped() {
            return self.given_up();
        }
        Fault::plain(Exit::Partial.code(), "the other hosts no longer wait for it")
    }
}

/// Waits a moment until the file can be read or written. Returns true also if that would fail.
fn is_ready(file: &File, flags: PollFlags) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
    let polled = poll(&mut [PollFd::new(file, flags)], Some(&limit));
    !matches!(polled, Ok(0) | Err(Errno::INTR))
}

fn impossible() -> Fault {
    Fault::plain(Exit::Protocol.code(), "invalid job")
}
