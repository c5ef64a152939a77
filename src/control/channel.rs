//! Messages over a pair of byte streams, at both ends.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flume::{RecvTimeoutError, Sender, bounded, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zeroize::{Zeroize, Zeroizing};

use super::frames::{LENGTH_BYTES, MAGIC, Message, MessageError, NOISE_BYTES_MAX, decode_length};

/// Maximum number of log lines that wait to be written.
pub const LINES_WAITING_MAX: usize = 1024;

/// Maximum number of states that wait to be written: see [`Message::is_passing`].
pub const STATES_WAITING_MAX: usize = 1024;

/// An agent that has had nothing to send for this long sends STILL_HERE.
pub const BEAT: Duration = Duration::from_secs(15);

/// How many times in a row [`Heeded`] waits in vain for [`LISTEN`]: at least for four beats in all, and for two beats
/// more than sessions wait for a lost link.
const LISTENS_MIN: u32 = 12;
const LISTENS_MORE: u32 = 6;
const LISTEN: Duration = Duration::from_secs(5);

/// Why no more messages can be received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end has closed the stream, between two messages or within one.
    #[error("the channel was closed")]
    Closed,
    /// Nothing came although the other end sends STILL_HERE: see [`Heeded`].
    #[error("no sign of life")]
    Silent,
    /// The stream failed.
    #[error(transparent)]
    Io(std::io::Error),
    /// The received bytes are not a valid message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Too much noise came before the magic.
    #[error("no agent answered")]
    NoMagic,
}

impl From<std::io::Error> for ChannelError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::Closed,
            std::io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}

/// The writing half, shared by all threads that send. A thread of its own does the writing, so that no sender waits for
/// a reader.
#[derive(Clone)]
pub struct Outbox {
    queue: Sender<Item>,
    /// Number of bytes that are queued and not written yet.
    waiting_bytes: Arc<AtomicUsize>,
    /// Number of log lines among them.
    waiting_lines: Arc<AtomicUsize>,
    /// Number of states among them.
    waiting_states: Arc<AtomicUsize>,
}

enum Item {
    /// A message, which may be the message with the key.
    Message {
        bytes: Zeroizing<Vec<u8>>,
        /// The number of waiting messages in which this one is counted.
        counter: Option<Arc<AtomicUsize>>,
    },
    /// Answered when all earlier items have been written.
    Flush(Sender<()>),
    Close,
}

impl Outbox {
    /// Starts a thread that writes `preface`, then messages, to `stream`. With `beat`, it writes STILL_HERE whenever
    /// there was nothing else to write for that long.
    ///
    /// # Errors
    ///
    /// The system's error if a thread cannot be started.
    pub fn start(
        mut stream: impl Write + Send + 'static,
        preface: &'static [u8],
        beat: Option<Duration>,
    ) -> std::io::Result<Self> {
        let (sender, queue) = unbounded();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&waiting_bytes);
        crate::spawn("messages", 128 << 10, move || {
            let mut still_here = Vec::new();
            Message::StillHere.encode(&mut still_here).expect("short");
            // The reading half notices a broken stream, because its direction ends too.
            let mut broken = stream.write_all(preface).and_then(|()| stream.flush()).is_err();
            let mut write = |bytes: &[u8]| {
                broken = broken || stream.write_all(bytes).is_err() || stream.flush().is_err();
            };
            loop {
                let item = match beat {
                    Some(beat) => queue.recv_timeout(beat),
                    None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match item {
                    Ok(Item::Message { bytes, counter }) => {
                        write(&bytes);
                        waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                        counter.map(|counter| counter.fetch_sub(1, Ordering::Relaxed));
                    }
                    Ok(Item::Flush(done)) => drop(done.send(())),
                    Err(RecvTimeoutError::Timeout) => write(&still_here),
                    Ok(Item::Close) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { queue: sender, waiting_bytes, waiting_lines: Arc::default(), waiting_states: Arc::default() })
    }

    /// Queues a message that is known to be short. If the message is too long, the stream is closed instead, so that
    /// the peer does not wait for an answer for ever.
    pub fn send(&self, message: Message) {
        if !self.try_send(message) {
            self.close();
        }
    }

    /// Queues a message. Returns false, without sending it, if it is longer than a message may be. A state is left out
    /// if too many are waiting already: the reader may be stopped for days.
    pub fn try_send(&self, message: Message) -> bool {
        if !message.is_passing() {
            return self.put(&message, None);
        }
        self.waiting_states.load(Ordering::Relaxed) >= STATES_WAITING_MAX
            || self.put(&message, Some(&self.waiting_states))
    }

    /// Queues a log line, unless too many lines are waiting already. Returns false if the line is dropped.
    pub fn try_send_line(&self, message: &Message) -> bool {
        self.waiting_lines.load(Ordering::Relaxed) < LINES_WAITING_MAX && self.put(message, Some(&self.waiting_lines))
    }

    fn put(&self, message: &Message, counter: Option<&Arc<AtomicUsize>>) -> bool {
        let mut bytes = Zeroizing::new(Vec::new());
        if message.encode(&mut bytes).is_err() {
            return false;
        }
        self.waiting_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        counter.map(|counter| counter.fetch_add(1, Ordering::Relaxed));
        let _ = self.queue.send(Item::Message { bytes, counter: counter.cloned() });
        true
    }

    /// Returns the number of bytes that are queued and not written yet.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Waits until everything queued so far has been written, for `limit` at most.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = bounded(1);
        let _ = self.queue.send(Item::Flush(done));
        let _ = written.recv_timeout(limit);
    }

    /// Closes the stream after everything queued so far.
    pub fn close(&self) {
        let _ = self.queue.send(Item::Close);
    }
}

/// The reading half of a channel to an agent. A read fails with [`std::io::ErrorKind::TimedOut`] if nothing comes for a
/// minute, or longer, from an agent that sends STILL_HERE. The time during which this process is itself stopped does
/// not count, because only waits that have ended without a byte are counted.
pub struct Heeded<R> {
    stream: R,
    /// How many times in a row to wait in vain for an agent that sends STILL_HERE.
    listens_max: Option<u32>,
    listen: Duration,
}

impl<R: Read + AsFd> Heeded<R> {
    /// Reads without a limit, until [`Heeded::expect_beats`].
    pub fn new(stream: R) -> Self {
        Self { stream, listens_max: None, listen: LISTEN }
    }

    /// From now on, silence is an error. `patience_s`: how many seconds sessions wait for a lost link.
    pub fn expect_beats(&mut self, patience_s: u32) {
        self.listens_max = Some(LISTENS_MIN.max(patience_s / LISTEN.as_secs() as u32 + LISTENS_MORE));
    }

    fn await_byte(&self, listens_max: u32) -> std::io::Result<()> {
        let limit = Timespec::try_from(self.listen).expect("a few seconds");
        let mut in_vain = 0;
        while in_vain < listens_max {
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&limit)) {
                Ok(0) => in_vain += 1,
                Err(Errno::INTR) => {}
                // The end of the stream, or an error, comes with the read.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        Err(std::io::ErrorKind::TimedOut.into())
    }
}

impl<R: Read + AsFd> Read for Heeded<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        if let Some(listens_max) = self.listens_max {
            self.await_byte(listens_max)?;
        }
        self.stream.read(bytes)
    }
}

/// Reads up to the end of the magic.
///
/// # Errors
///
/// [`ChannelError::NoMagic`] after [`NOISE_BYTES_MAX`] bytes without the magic. [`ChannelError::Closed`] if the stream
/// ends before.
pub fn skip_to_magic(stream: &mut impl Read) -> Result<(), ChannelError> {
    let mut last = std::collections::VecDeque::with_capacity(MAGIC.len());
    let mut byte = [0];
    for _ in 0..NOISE_BYTES_MAX + MAGIC.len() {
        stream.read_exact(&mut byte)?;
        if last.len() == MAGIC.len() {
            last.pop_front();
        }
        last.push_back(byte[0]);
        if last.iter().eq(MAGIC) {
            return Ok(());
        }
    }
    Err(ChannelError::NoMagic)
}

/// Reads the next message that this version knows.
///
/// # Errors
///
/// [`ChannelError`]; the stream is unusable afterwards.
pub fn receive(stream: &mut impl Read) -> Result<Message, ChannelError> {
    loop {
        let mut length = [0; LENGTH_BYTES];
        stream.read_exact(&mut length)?;
        let mut bytes = vec![0; decode_length(length)?];
        stream.read_exact(&mut bytes)?;
        let decoded = Message::decode(&bytes);
        bytes.zeroize();
        if let Some(message) = decoded? {
            return Ok(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_skipped_and_messages_follow() {
        let mut bytes = [b"Welcome!\n\0rdma-pipe ag", MAGIC].concat();
        Message::Signal(2).encode(&mut bytes).expect("short");
        bytes.extend(b"\x06\0\0\0\x82\x19\x07\xcf\x81\x01"); // optional, unknown
        Message::FoundAll.encode(&mut bytes).expect("short");
        let mut stream = &bytes[..];
        skip_to_magic(&mut stream).expect("the magic");
        assert_eq!(receive(&mut stream).expect("a message"), Message::Signal(2));
        assert_eq!(receive(&mut stream).expect("a message"), Message::FoundAll);
        assert!(matches!(receive(&mut stream), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_message_that_is_too_long_is_neither_sent_nor_taken() {
        use super::super::frames::MESSAGE_BYTES_MAX;
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let outbox = Outbox::start(write, b"", None).expect("a thread");
        let long = Message::Listen { via: vec![0; MESSAGE_BYTES_MAX] };
        assert!(!outbox.try_send(long.clone()) && outbox.try_send(Message::FoundAll));
        assert_eq!(receive(&mut read).expect("the next one"), Message::FoundAll);
        outbox.flush(Duration::from_secs(20));
        assert_eq!(outbox.waiting_bytes(), 0);
        outbox.send(long);
        assert!(matches!(receive(&mut read), Err(ChannelError::Closed)));
        let length = (MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes();
        // The length alone shows the error: nothing more is read or allocated.
        let Err(ChannelError::Message(error)) = receive(&mut &length[..]) else { panic!("no error") };
        assert_eq!(error, MessageError::TooLong(MESSAGE_BYTES_MAX + 1));
    }

    #[test]
    fn what_nobody_reads_is_counted() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let outbox = Outbox::start(write, b"", None).expect("a thread");
        for _ in 0..100 {
            outbox.send(Message::Say("x".repeat(100_000)));
        }
        assert!(outbox.waiting_bytes() > 9_000_000);
        drop(read);
        outbox.flush(Duration::from_secs(20));
        assert_eq!(outbox.waiting_bytes(), 0, "a stream that is broken keeps nothing");
    }

    #[test]
    fn states_that_nobody_reads_are_bounded() {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let outbox = Outbox::start(write, b"", None).expect("a thread");
        let state = |bytes| {
            let state = Message::Progress { bytes, waits: crate::engine::Waits::default(), tree: None };
            state.for_end(7).expect("short")
        };
        assert!((0..100_000).all(|bytes| outbox.try_send(state(bytes))));
        assert!(outbox.waiting_states.load(Ordering::Relaxed) <= STATES_WAITING_MAX);
        // Any other message comes, and so do states once there is room again.
        outbox.send(Message::FoundAll);
        let mut came = 0;
        while receive(&mut read).expect("a message") != Message::FoundAll {
            came += 1;
        }
        assert!((STATES_WAITING_MAX..20_000).contains(&came), "{came}");
        outbox.send(state(1));
        assert_eq!(receive(&mut read).expect("a message"), state(1));
    }

    #[test]
    fn an_agent_that_has_nothing_to_say_is_heard_and_one_that_is_stopped_is_not() {
        let (listen, beat) = (Duration::from_millis(20), Duration::from_millis(60));
        let (read, write) = std::io::pipe().expect("a pipe");
        let outbox = Outbox::start(write, b"", Some(beat)).expect("a thread");
        let mut stream = Heeded { listen, ..Heeded::new(read) };
        stream.expect_beats(0);
        for _ in 0..3 {
            assert_eq!(receive(&mut stream).expect("a beat"), Message::StillHere);
        }
        outbox.close();
        assert!(matches!(receive(&mut stream), Err(ChannelError::Closed)));
        // Not before sessions give up a lost link.
        for (patience_s, listens) in [(0, 12), (30, 12), (150, 36)] {
            let (read, mut write) = std::io::pipe().expect("a pipe");
            let mut stream = Heeded { listen, ..Heeded::new(read) };
            stream.expect_beats(patience_s);
            // A part of a message is a sign of life too.
            write.write_all(&[9, 0]).expect("a pipe");
            let start = std::time::Instant::now();
            assert!(matches!(receive(&mut stream), Err(ChannelError::Silent)));
            assert!(start.elapsed() >= listen * listens);
        }
    }

    #[test]
    fn noise_has_a_limit() {
        let noise = vec![b'x'; NOISE_BYTES_MAX];
        skip_to_magic(&mut &[&noise, MAGIC].concat()[..]).expect("just within");
        assert!(matches!(skip_to_magic(&mut &[&noise, &noise[..]].concat()[..]), Err(ChannelError::NoMagic)));
        assert!(matches!(skip_to_magic(&mut &noise[..]), Err(ChannelError::Closed)));
    }
}
