//! A line of an agent's log, as it goes to the caller.

use minicbor::{Decode, Encode};

/// Bytes of what a line says.
pub const LOG_TEXT_BYTES_MAX: usize = 2000;
/// Bytes of what it is about.
pub const LOG_ABOUT_BYTES_MAX: usize = 500;

/// One line. Times are microseconds of the agent's clock, whatever that is set to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct LogLine {
    /// When it was sent.
    #[n(0)]
    pub now: u64,
    /// When that happened which it tells of.
    #[n(1)]
    pub at: u64,
    /// 1 to 3: what the command prints anyway, what becomes of sessions, what becomes of files; 0: only the clock.
    #[n(2)]
    pub level: u8,
    /// The session that it is about.
    #[n(3)]
    pub about: String,
    /// The step that begins or ends with it; 0 for none.
    #[n(4)]
    pub mark: u8,
    /// What has happened.
    #[n(5)]
    pub text: String,
    /// Lines before it that were dropped.
    #[n(6)]
    pub dropped: u64,
}
