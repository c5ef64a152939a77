//! Sealing and opening of one lane's control frames, in order.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use snow::StatelessTransportState;
use zeroize::Zeroize as _;

use super::noise::TAG_BYTES;
use crate::frame::CONTROL_BYTES_MAX;

/// Maximum length of a control frame before it is sealed, in bytes.
pub const CONTROL_PLAIN_BYTES_MAX: usize = CONTROL_BYTES_MAX - TAG_BYTES;

/// Why a control frame was not sealed or not opened. In every case the lane is no longer usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The frame is longer than a control frame may be. When sealing this is a bug of the caller, and the channel stays
    /// open.
    #[error("control frame of invalid length ({0} bytes)")]
    Length(usize),
    /// The frame is not the next one that the peer sealed: it is damaged, repeated, out of order or not the peer's.
    #[error("control frame failed authentication")]
    Forged,
    /// An earlier frame failed, so no more frames are sealed or opened.
    #[error("control channel is closed")]
    Closed,
}

/// The control channel of one lane in one generation: Noise transport messages (section 5 of the specification) without
/// associated data. Messages are numbered from 0 in each direction, and the number is not sent.
///
/// The transport must keep frames whole and in order. After the first frame that does not open, the channel refuses all
/// others in both directions.
#[derive(Debug)]
pub struct ControlChannel {
    sealer: ControlSealer,
    opener: ControlOpener,
}

/// The sending half of a [`ControlChannel`].
pub struct ControlSealer {
    shared: Arc<Shared>,
    next: u64,
}

/// The receiving half of a [`ControlChannel`].
pub struct ControlOpener {
    shared: Arc<Shared>,
    next: u64,
}

struct Shared {
    noise: StatelessTransportState,
    closed: AtomicBool,
}

impl ControlChannel {
    pub(super) fn new(noise: StatelessTransportState) -> Self {
        let shared = Arc::new(Shared { noise, closed: AtomicBool::new(false) });
        Self {
            sealer: ControlSealer { shared: Arc::clone(&shared), next: 0 },
            opener: ControlOpener { shared, next: 0 },
        }
    }

    /// Splits the channel into its two halves, for two threads. A failure of one half closes both.
    pub fn split(self) -> (ControlSealer, ControlOpener) {
        (self.sealer, self.opener)
    }

    /// Seals the next frame; see [`ControlSealer::seal`].
    ///
    /// # Errors
    ///
    /// [`ControlError::Length`] or [`ControlError::Closed`].
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        self.sealer.seal(plain, out)
    }

    /// Opens the next frame; see [`ControlOpener::open`].
    ///
    /// # Errors
    ///
    /// Any [`ControlError`], after which the channel is closed.
    pub fn open(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        self.opener.open(sealed, out)
    }
}

impl ControlSealer {
    /// Seals the next frame and replaces the contents of `out` with the sealed frame, which is 16 bytes longer than
    /// `plain`. `plain` has at most [`CONTROL_PLAIN_BYTES_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// [`ControlError::Length`] if `plain` is longer; [`ControlError::Closed`] after a failure of either half. `out` is
    /// then empty.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        out.clear();
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(ControlError::Closed);
        }
        if plain.len() > CONTROL_PLAIN_BYTES_MAX {
            return Err(ControlError::Length(plain.len()));
        }
        out.resize(plain.len() + TAG_BYTES, 0);
        // Fails only after 2^64 - 1 frames.
        if self.shared.noise.write_message(self.next, plain, out).is_err() {
            out.clear();
            self.shared.closed.store(true, Ordering::Relaxed);
            return Err(ControlError::Closed);
        }
        self.next += 1;
        Ok(())
    }
}

impl ControlOpener {
    /// Opens the next frame and replaces the contents of `out` with the plain frame.
    ///
    /// # Errors
    ///
    /// [`ControlError::Length`] if the frame is shorter than its tag or longer than [`CONTROL_BYTES_MAX`];
    /// [`ControlError::Forged`] if it is not the peer's next frame; [`ControlError::Closed`] for every frame after such
    /// a failure. `out` is then empty.
    pub fn open(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        out.clear();
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(ControlError::Closed);
        }
        let opened = match sealed.len() {
            TAG_BYTES..=CONTROL_BYTES_MAX => {
                out.resize(sealed.len() - TAG_BYTES, 0);
                self.shared.noise.read_message(self.next, sealed, out).map_err(|_| ControlError::Forged)
            }
            bytes => Err(ControlError::Length(bytes)),
        };
        match opened {
            Ok(_) => {
                self.next += 1;
                Ok(())
            }
            Err(error) => {
                out.zeroize();
                self.shared.closed.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for ControlSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlSealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl fmt::Debug for ControlOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlOpener").field("next", &self.next).finish_non_exhaustive()
    }
}
