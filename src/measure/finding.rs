//! What a check can report: a verdict, what it is based on, why that matters, and what fixes it.
//!
//! A fix that is a command is a single line for a POSIX shell run by root. Names in the command come from facts, and
//! are limited to what may stand in a command. Everything else from a host is escaped when it is printed.

use minicbor::{Decode, Encode};

use super::facts::text;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be, or not needed on this host.
    Ok,
    /// Works, but worse than possible.
    Warning,
    /// Something that this host is meant to do does not work.
    Failure,
}

/// How to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// A command to run.
    Run(String),
    /// An instruction, if no command can fix the finding.
    Do(String),
}

impl Fix {
    /// Makes a fix from a command.
    pub fn command(command: impl Into<String>) -> Self {
        Self::Run(command.into())
    }

    /// Makes a fix from an instruction.
    pub fn advice(advice: impl Into<String>) -> Self {
        Self::Do(advice.into())
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The part of the host that the finding is about, such as a device; empty for the host itself.
    pub about: String,
    /// Severity of the finding.
    pub level: Level,
    /// Code of the finding for programs: the same in every version.
    pub code: &'static str,
    /// What was found.
    pub found: String,
    /// Why the finding matters; empty if nothing is wrong.
    pub why: String,
    /// How to fix it; `None` if nothing is wrong.
    pub fix: Option<Fix>,
    /// Whether this host has to fix the problem, although it was found on the path to another host.
    pub is_here: bool,
}

impl Finding {
    /// Makes a finding about a whole host: nothing is wrong.
    pub fn well(check: &'static str, code: &'static str, found: impl Into<String>) -> Self {
        let (level, about, found, why) = (Level::Ok, String::new(), found.into(), String::new());
        Self { check, about, level, code, found, why, fix: None, is_here: false }
    }

    /// Makes a finding about a whole host: something works, but worse than possible.
    pub fn warning(
        check: &'static str,
        code: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self { level: Level::Warning, why: why.into(), fix: Some(fix), ..Self::well(check, code, found) }
    }

    /// Makes a finding about a whole host: something does not work.
    pub fn failure(
        check: &'static str,
        code: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self { level: Level::Failure, ..Self::warning(check, code, found, why, fix) }
    }

    /// Makes it a finding about a part of the host.
    pub fn about(self, about: impl Into<String>) -> Self {
        Self { about: about.into(), ..self }
    }
}

/// Outcome of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Outcome {
    /// The connection was made.
    #[n(0)]
    Connected,
    /// The host answered that no program listens on the port.
    #[n(1)]
    Refused,
    /// No answer came: a firewall drops packets, or the host does not exist.
    #[n(2)]
    Silent,
    /// The address is unreachable from here. The error number.
    #[n(3)]
    Unreachable(#[n(0)] i32),
    /// This end has no RDMA, or the limit on locked memory does not allow it.
    #[n(4)]
    NoRdma(#[cbor(n(0), decode_with = "text")] String),
    /// Another outcome.
    #[n(5)]
    Other(#[cbor(n(0), decode_with = "text")] String),
}
