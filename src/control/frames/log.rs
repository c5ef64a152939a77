//! A line of an agent's log, as sent to the caller.

use minicbor::{Decode, Encode};

/// Maximum size of a line's text, in bytes.
pub const LOG_TEXT_BYTES_MAX: usize = 2000;
/// Maximum size of the name of the session that a line is about, in bytes.
pub const LOG_ABOUT_BYTES_MAX: usize = 500;

/// A line of the log. Times are microseconds of the agent's clock, whatever that clock is set to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct LogLine {
    /// When the line was sent.
    #[n(0)]
    pub now: u64,
    /// When the event happened.
    #[n(1)]
    pub at: u64,
    /// Level of the line. 1: what the command prints anyway; 2: what happens to sessions; 3: what happens to files; 0:
    /// no event, only the clock.
    #[n(2)]
    pub level: u8,
    /// The session that the line is about.
    #[n(3)]
    pub about: String,
    /// The step that begins or ends with this line; 0 for none.
    #[n(4)]
    pub mark: u8,
    /// What has happened.
    #[n(5)]
    pub text: String,
    /// Number of lines that were dropped just before this line.
    #[n(6)]
    pub dropped: u64,
}
