//! Messages over a pair of byte streams, at both ends.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

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

/// The writing half, shared by whoever has something to say.
#[derive(Clone)]
pub struct Writer(Arc<Mutex<Box<dyn Write + Send>>>);

impl Writer {
    /// Writes messages to `stream`.
    pub fn new(stream: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(stream))))
    }

    /// Writes one message; waits while the other end does not read.
    ///
    /// # Errors
    ///
    /// What the stream answered, or that the message is too long.
    pub fn send(&self, message: &Message) -> Result<(), ChannelError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes)?;
        let sent = self.write(&bytes);
        // It may have been the one with the key.
        bytes.zeroize();
        sent
    }

    /// Writes the magic that an agent begins with.
    ///
    /// # Errors
    ///
    /// What the stream answered.
    pub fn send_magic(&self) -> Result<(), ChannelError> {
        self.write(MAGIC)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), ChannelError> {
        let mut stream = self.0.lock().expect("no panic with it locked");
        stream.write_all(bytes)?;
        Ok(stream.flush()?)
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
        bytes.extend(b"\x06\0\0\0\x82\x19\x03\xe8\x81\x01"); // optional, unknown
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
