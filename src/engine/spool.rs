//! Hops of a broadcast: the thread that puts arriving data into a spool, and the messages between the two ends about
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flume::{Sender as Post, unbounded};
use rd_proto::control::IoFact;
use rd_proto::frame::ChunkHeader;
use rd_proto::session::Machine;
use rustix::io::Errno;

use super::work::{Shared, SinkJob};
use super::{Engine, Event, Half};
use crate::transport::spool::{Chunk, Gone, Outgoing, SpoolInput, SpoolOutput};
use crate::tree::sink::Refused;

/// Which end of a hop a session is.
pub(super) enum SpoolEnd {
    /// The sending end.
    Output(Arc<SpoolOutput>),
    /// The receiving end.
    Input(Arc<SpoolInput>),
}

/// Message with ESTALE if the sending end does not keep the requested offset.
const NOT_KEPT: &str = "the part of the stream that the host asked for is no longer kept";

/// Returns the next chunk of the stream, `None` at its end. An error without a fact means that the session is over.
pub(super) fn next(output: &SpoolOutput, bytes_max: usize, over: &AtomicBool) -> Result<Option<Chunk>, Option<IoFact>> {
    let fact =
        |errno: Errno, detail: &str| IoFact { path: Vec::new(), errno: errno.raw_os_error(), detail: detail.into() };
    match output.next(bytes_max, over) {
        Outgoing::Chunk(chunk) => Ok(Some(chunk)),
        Outgoing::Ended => Ok(None),
        Outgoing::NotKept => Err(Some(fact(Errno::STALE, NOT_KEPT))),
        Outgoing::Silent => {
            Err(Some(fact(Errno::TIMEDOUT, "the next host does not say where it wants the stream to start")))
        }
        Outgoing::Gone => Err(unless_over(over)),
    }
}

/// Returns the fact that another session has taken this one's place; `None` if this session is over.
pub(super) fn unless_over(over: &AtomicBool) -> Option<IoFact> {
    (!over.load(Ordering::Relaxed)).then(gone)
}

fn gone() -> IoFact {
    IoFact {
        path: Vec::new(),
        errno: Errno::CANCELED.raw_os_error(),
        detail: b"replaced by another hop, or the broadcast has ended here".to_vec(),
    }
}

/// Starts the thread that puts arriving data into the spool.
///
/// # Errors
///
/// The system's error if the thread cannot be started.
pub(super) fn start(input: Arc<SpoolInput>, shared: Arc<Shared>, post: &Post<Event>) -> std::io::Result<Post<SinkJob>> {
    let wake = post.clone();
    // If many events are waiting, the loop looks for marks anyway.
    input.on_mark(Box::new(move || drop(wake.try_send(Event::Answer))));
    let (jobs, queue) = unbounded();
    let post = post.clone();
    crate::spawn("spool", 128 << 10, move || {
        while let Ok(job) = queue.recv() {
            let event = match job {
                SinkJob::Take(mut buffer) => {
                    let header = ChunkHeader::decode(buffer.header()).expect("opened before");
                    match input.append_from(&mut buffer, header.plain_bytes as usize, &shared.over) {
                        Ok(()) => Event::Written(buffer),
                        Err(Gone) => Event::SinkFailed(buffer, gone()),
                    }
                }
                SinkJob::Commit => Event::Committed(input.end().map(|()| None).map_err(|Gone| Refused::Io(gone()))),
            };
            if post.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(jobs)
}

impl Engine {
    /// Tells the spool and the other end how far this end has got.
    pub(super) fn serve_spool(&mut self) {
        match (&self.spool, &mut self.half) {
            (Some(SpoolEnd::Output(output)), Half::Send { machine, .. }) => output.note_taken(machine.counters().bytes),
            (Some(SpoolEnd::Input(input)), Half::Receive { machine, .. }) if !machine.core_ref().is_ending() => {
                while machine.has_answer_room()
                    && let Some(mark) = input.next_mark()
                {
                    machine.answer(mark);
                }
            }
            _ => {}
        }
    }
}
