//! Sealing and opening of one lane's control frames, in order.

use std::fmt;

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
pub struct ControlChannel {
    noise: StatelessTransportState,
    /// Number of the next frame to seal.
    to_seal: u64,
    /// Number of the next frame to open.
    to_open: u64,
    is_closed: bool,
}

impl ControlChannel {
    pub(super) fn new(noise: StatelessTransportState) -> Self {
        Self { noise, to_seal: 0, to_open: 0, is_closed: false }
    }

    /// Seals the next frame and replaces the contents of `out` with the sealed frame, which is 16 bytes longer than
    /// `plain`. `plain` has at most [`CONTROL_PLAIN_BYTES_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// [`ControlError::Length`] if `plain` is longer; [`ControlError::Closed`] after a failure in either direction.
    /// `out` is then empty.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        out.clear();
        if self.is_closed {
            return Err(ControlError::Closed);
        }
        if plain.len() > CONTROL_PLAIN_BYTES_MAX {
            return Err(ControlError::Length(plain.len()));
        }
        out.resize(plain.len() + TAG_BYTES, 0);
        // Fails only after 2^64 - 1 frames.
        if self.noise.write_message(self.to_seal, plain, out).is_err() {
            out.clear();
            self.is_closed = true;
            return Err(ControlError::Closed);
        }
        self.to_seal += 1;
        Ok(())
    }

    /// Opens the next frame and replaces the contents of `out` with the plain frame.
    ///
    /// # Errors
    ///
    /// [`ControlError::Length`] if the frame is shorter than its tag or longer than [`CONTROL_BYTES_MAX`];
    /// [`ControlError::Forged`] if it is not the peer's next frame; [`ControlError::Closed`] for every frame after such
    /// a failure. `out` is then empty.
    pub fn open(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), ControlError> {
        out.clear();
        if self.is_closed {
            return Err(ControlError::Closed);
        }
        let opened = match sealed.len() {
            TAG_BYTES..=CONTROL_BYTES_MAX => {
                out.resize(sealed.len() - TAG_BYTES, 0);
                self.noise.read_message(self.to_open, sealed, out).map_err(|_| ControlError::Forged)
            }
            bytes => Err(ControlError::Length(bytes)),
        };
        match opened {
            Ok(_) => {
                self.to_open += 1;
                Ok(())
            }
            Err(error) => {
                out.zeroize();
                self.is_closed = true;
                Err(error)
            }
        }
    }
}

impl fmt::Debug for ControlChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to_seal, to_open, .. } = self;
        f.debug_struct("ControlChannel").field("to_seal", to_seal).field("to_open", to_open).finish_non_exhaustive()
    }
}
