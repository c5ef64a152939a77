//! Messages over a pair of byte streams, at both ends.

use std::io::{Read, Write};
use std::time::Duration;

use flume::{Sender, bounded, unbounded};
use zeroize::Zeroize;

use super::frames::{LENGTH_BYTES, MAGIC, Message, MessageError, NOISE_BYTES_MAX, decode_length};

/// Why there are no more messages.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end has closed the stream, between two messages or in one.
    #[error("the channel was closed")]
    Closed,
    /// The stream failed.
    #[error(transparent)]
    Io(std::io::Error),
    /// Something that is no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Too much noise before the magic.
    #[error("no agent answers")]
    NoMagic,
}

impl From<std::io::Error> for ChannelError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}

/// The writing half, shared by whoever has something to say. A thread writes, so that nobody else waits for a reader.
#[derive(Clone)]
pub struct Outbox(Sender<Item>);

enum Item {
    Message(Message),
    /// Answered when everything before it has been written.
    Flush(Sender<()>),
    Close,
}

impl Outbox {
    /// Writes `preface`, then messages, to `stream`.
    ///
    /// # Errors
    ///
    /// What the system answered to making a thread.
    pub fn start(mut stream: impl Write + Send + 'static, preface: &'static [u8]) -> std::io::Result<Self> {
        let (outbox, queue) = unbounded();
        std::thread::Builder::new().name("messages".to_owned()).stack_size(128 << 10).spawn(move || {
            // A stream that is broken is noticed by the reading half: its end ends too.
            let mut broken = stream.write_all(preface).and_then(|()| stream.flush()).is_err();
            let mut bytes = Vec::new();
            while let Ok(item) = queue.recv() {
                match item {
                    Item::Message(message) if !broken => {
                        broken = message.encode(&mut bytes).is_err() || stream.write_all(&bytes).is_err();
                        broken |= stream.flush().is_err();
                        // It may have been the one with the key.
                        bytes.zeroize();
                    }
                    Item::Message(_) => {}
                    Item::Flush(done) => drop(done.send(())),
                    Item::Close => return,
                }
            }
        })?;
        Ok(Self(outbox))
    }

    /// Queues a message.
    pub fn send(&self, message: Message) {
        let _ = self.0.send(Item::Message(message));
    }

    /// Waits until what was queued has been written, for `limit` at most.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = bounded(1);
        let _ = self.0.send(Item::Flush(done));
        let _ = written.recv_timeout(limit);
    }

    /// Closes the stream behind what is queued.
    pub fn close(&self) {
        let _ = self.0.send(Item::Close);
    }
}

/// Reads up to and with the magic.
///
/// # Errors
///
/// [`ChannelError::NoMagic`] after [`NOISE_BYTES_MAX`] bytes of something else, [`ChannelError::Closed`] if the stream
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
/// [`ChannelError`]; the stream is of no use any more.
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
    fn noise_has_a_limit() {
        let noise = vec![b'x'; NOISE_BYTES_MAX];
        skip_to_magic(&mut &[&noise, MAGIC].concat()[..]).expect("just within");
        assert!(matches!(skip_to_magic(&mut &[&noise, &noise[..]].concat()[..]), Err(ChannelError::NoMagic)));
        assert!(matches!(skip_to_magic(&mut &noise[..]), Err(ChannelError::Closed)));
    }
}
