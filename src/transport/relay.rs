//! A relay from one session's receiver to another session's sender within this process. Each chunk is copied once, from
//! the buffer that it arrived in to an outgoing one, without a pipe in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flume::{Receiver, RecvTimeoutError, Sender, bounded};

use super::Buffer;

/// How often an output that waits for input checks whether its transfer is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The receiver's end of a relay, where data goes in. Dropping it ends the stream: well after [`RelayInput::end`],
/// otherwise as one of which a part is missing.
#[derive(Debug)]
pub struct RelayInput {
    empty: Receiver<(Buffer, usize)>,
    full: Sender<(Buffer, usize)>,
    is_whole: Arc<AtomicBool>,
}

/// The sender's end of a relay, where data comes out.
#[derive(Debug)]
pub struct RelayOutput {
    empty: Sender<(Buffer, usize)>,
    /// Takes back an empty buffer that the input has not used when the stream ends.
    untaken: Receiver<(Buffer, usize)>,
    full: Receiver<(Buffer, usize)>,
    is_whole: Arc<AtomicBool>,
}

/// Error if the output has been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Returned when there is nothing more to take from a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// The transfer is over, or the other end is gone and has taken the buffer with it.
    Over,
    /// The stream has ended before its time.
    Cut,
}

/// Makes a relay.
pub fn relay() -> (RelayInput, RelayOutput) {
    let (give_empty, empty) = bounded(1);
    let (give_full, full) = bounded(1);
    let is_whole = Arc::default();
    let input = RelayInput { empty: empty.clone(), full: give_full, is_whole: Arc::clone(&is_whole) };
    (input, RelayOutput { empty: give_empty, untaken: empty, full, is_whole })
}

impl RelayInput {
    /// Passes on all bytes. Waits without limit while the sender stands still.
    ///
    /// # Errors
    ///
    /// [`Gone`] if the output has been dropped.
    pub fn pass(&self, mut bytes: &[u8]) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let (mut buffer, room) = self.empty.recv().map_err(|_| Gone)?;
            let length = bytes.len().min(room);
            buffer.payload_mut()[..length].copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            self.full.send((buffer, length)).map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Records that the stream is whole. Nothing may be passed on after this.
    pub fn end(&self) {
        self.is_whole.store(true, Ordering::Release);
    }

    /// Whether the output has been dropped.
    pub fn is_gone(&self) -> bool {
        self.full.is_disconnected()
    }
}

impl RelayOutput {
    /// Has a buffer filled with at most `bytes` bytes. Waits for data until some comes, or the transfer is `over`.
    /// Returns the buffer and the number of bytes in it, 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// See [`Empty`].
    pub fn fill(&self, buffer: Buffer, bytes: usize, over: &AtomicBool) -> Result<(Buffer, usize), Empty> {
        let room = bytes.min(buffer.payload().len());
        self.empty.send((buffer, room)).map_err(|_| Empty::Over)?;
        loop {
            match self.full.recv_timeout(LOOK_EVERY) {
                Ok(filled) => return Ok(filled),
                Err(RecvTimeoutError::Timeout) if over.load(Ordering::Relaxed) => return Err(Empty::Over),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if !self.is_whole.load(Ordering::Acquire) => {
                    drop(self.untaken.try_recv());
                    return Err(Empty::Cut);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return self.untaken.try_recv().map(|(buffer, _)| (buffer, 0)).map_err(|_| Empty::Over);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::transport::Pool;

    #[test]
    fn what_goes_in_comes_out_in_pieces_that_fit() {
        let (_, mut buffers) = Pool::new(2, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let (input, output) = relay();
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
        let given = bytes.clone();
        let feeding = std::thread::spawn(move || {
            input.pass(&given).expect("taken");
            input.pass(b"end").expect("taken");
            input.end();
        });
        let mut got = Vec::new();
        let mut buffer = buffers.pop().expect("one");
        loop {
            let (filled, length) = output.fill(buffer, 3000, &AtomicBool::new(false)).expect("given back");
            assert!(length <= 3000);
            if length == 0 {
                break;
            }
            got.extend_from_slice(&filled.payload()[..length]);
            buffer = filled;
        }
        feeding.join().expect("no panic");
        assert!(got == [&bytes[..], b"end"].concat());
    }

    #[test]
    fn a_transfer_that_is_over_is_not_waited_for() {
        let (_, mut buffers) = Pool::new(1, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let (_input, output) = relay();
        let filled = output.fill(buffers.pop().expect("one"), 1, &AtomicBool::new(true));
        assert_eq!(filled.err(), Some(Empty::Over));
    }

    #[test]
    fn a_part_of_a_stream_does_not_end_as_the_whole() {
        let (_, buffers) = Pool::new(2, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let (input, output) = relay();
        drop(input);
        // Another buffer may be waiting already.
        for buffer in buffers {
            assert_eq!(output.fill(buffer, 1, &AtomicBool::new(false)).err(), Some(Empty::Cut));
        }
    }

    #[test]
    fn an_input_whose_output_has_gone_says_so() {
        let (input, output) = relay();
        assert!(!input.is_gone());
        drop(output);
        assert!(input.is_gone());
        assert_eq!(input.pass(b"x"), Err(Gone));
    }
}
