//! The thread that hands chunks to the sink of a tree, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flume::{RecvTimeoutError, Sender as Post, bounded, unbounded};
use rd_proto::frame::ChunkHeader;
use rd_proto::tree::Answer;

use super::Event;
use super::work::{Shared, SinkJob};
use crate::transport::Buffer;
use crate::tree::sink::{SendAnswer, TreeSink};

/// An opened chunk in the sink. When the last thread that writes parts of it drops it, the buffer goes back to the
/// loop.
pub struct Chunk {
    buffer: Option<Buffer>,
    bytes: usize,
    post: Post<Event>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.as_ref().expect("until it is dropped").payload()[..self.bytes]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // Fails only if the loop has ended.
            let _ = self.post.send(Event::Written(buffer));
        }
    }
}

/// Maximum number of answers waiting for the loop to send them. A thread of the sink with a further answer waits.
const ANSWERS_WAITING: usize = 64;

/// How often to check for a failure that stops the whole sink while no chunk comes. The sender may be waiting for an
/// answer that will never come.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Returns a function with which a sink answers the sender through the loop, and a function that reports whether the
/// loop has ended. After that, answers are dropped and no thread waits.
pub fn answer(post: Post<Event>) -> (SendAnswer, impl Fn() -> bool + Send + Sync + 'static) {
    let (answers, queue) = bounded(ANSWERS_WAITING);
    // The loop does not run yet. If the peer has filled its channel, waiting for room would never end. The queue is
    // dropped instead: that peer gets no answers.
    let _ = post.try_send(Event::Answers(queue));
    let waiting = answers.clone();
    let answer = Box::new(move |answer: Answer| {
        if answers.send(answer.encode()).is_ok() {
            let _ = post.send(Event::Answer);
        }
    });
    (answer, move || waiting.is_disconnected())
}

/// The running thread.
pub struct Running {
    pub(super) thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Makes the sink's current call end early, because the session is over. A call may wait for existing files to be
    /// hashed, or for a name that another transfer holds.
    pub(super) fn stop(self) -> JoinHandle<()> {
        self.stop.store(true, Ordering::Release);
        self.thread
    }
}

/// Starts the thread. When the sender of jobs is dropped, the thread removes unpublished data and ends. Once the
/// session is over, waiting chunks are dropped, because small files would otherwise delay the end for seconds.
///
/// # Errors
///
/// The system's error if the thread cannot be started.
pub fn start(mut sink: TreeSink, shared: Arc<Shared>, post: Post<Event>) -> std::io::Result<(Post<SinkJob>, Running)> {
    let (jobs, queue) = unbounded();
    let stop = sink.stopper();
    let thread = crate::spawn("tree", 256 << 10, move || {
        let mut is_refused = false;
        loop {
            let buffer = match queue.recv_timeout(LOOK_EVERY) {
                Ok(SinkJob::Take(_)) if shared.over.load(Ordering::Relaxed) => continue,
                Ok(SinkJob::Take(buffer)) => buffer,
                Ok(SinkJob::Commit) => {
                    let _ = post.send(Event::Committed(sink.finish().map(|report| Some(Box::new(report)))));
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(refused) = sink.check()
                        && !std::mem::replace(&mut is_refused, true)
                    {
                        let _ = post.send(Event::Refused(refused));
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let header = ChunkHeader::decode(buffer.header()).expect("opened before");
            let chunk =
                Arc::new(Chunk { bytes: header.plain_bytes as usize, buffer: Some(buffer), post: post.clone() });
            if let Err(refused) = sink.push(header.item, header.position, Arc::clone(&chunk) as _) {
                // The report is sent before the chunk is given back, which would mean that the chunk is in the tree.
                let _ = post.send(Event::Refused(refused));
            }
        }
        sink.discard();
    })?;
    Ok((jobs, Running { thread, stop }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_does_not_hold_up_the_sink() {
        let (post, _events) = bounded(1);
        post.send(Event::Cut).expect("room");
        let (tell, told) = bounded(1);
        std::thread::spawn(move || {
            let (answer, is_over) = answer(post);
            answer(Answer::Fresh { directory: 1 });
            tell.send(is_over())
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true), "no thread waits for answers to be taken");
    }
}
