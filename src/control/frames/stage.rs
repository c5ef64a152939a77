//! What a host is to do in a pipeline, and what it reports of it.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::Fault;

/// Stages that one agent takes at most.
pub const STAGES_MAX: usize = 1024;

/// Words that a shell's command line may have.
pub const SHELL_WORDS_MAX: usize = 32;

/// Bytes of a stage's command and of the shell's words together: with all else they fit a message.
pub const COMMAND_BYTES_MAX: usize = 192 << 10;

/// Bytes of a stage's standard error in one message.
pub const STDERR_BYTES_MAX: usize = 8 << 10;

/// What one stage of a pipeline does.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Action {
    /// Runs a command by the shell.
    #[n(0)]
    Run {
        /// The command, for the shell.
        #[cbor(n(0), with = "minicbor::bytes")]
        command: Vec<u8>,
    },
    /// Sends what a redirection opens.
    #[n(1)]
    Read {
        /// With its operator: `< file`.
        #[cbor(n(0), with = "minicbor::bytes")]
        redirection: Vec<u8>,
    },
    /// Writes to what a redirection opens.
    #[n(2)]
    Write {
        /// With its operator: `> file`, `>> file`.
        #[cbor(n(0), with = "minicbor::bytes")]
        redirection: Vec<u8>,
    },
    /// Writes to a file and passes on.
    #[n(3)]
    Tee {
        /// The file; relative to where stages run.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// It is added to, not replaced.
        #[n(1)]
        append: bool,
    },
}

/// Where a stage's input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Input {
    /// There is none.
    #[n(0)]
    Nothing,
    /// The stage before it, through a session.
    #[n(1)]
    Hop,
    /// The standard input of the caller. Never asked of an agent.
    #[n(2)]
    Standard,
}

/// Where a stage's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Output {
    /// There is none.
    #[n(0)]
    Nothing,
    /// The stage behind it, through a session.
    #[n(1)]
    Hop,
    /// The standard output of the caller. Never asked of an agent.
    #[n(2)]
    Standard,
    /// It is read to its end and dropped.
    #[n(3)]
    Dropped,
    /// To where its standard error goes: several hosts run the same command.
    #[n(4)]
    Error,
}

/// One stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stage {
    /// Its number in the pipeline.
    #[n(0)]
    pub number: u32,
    /// What it does.
    #[n(1)]
    pub action: Action,
    /// Where its input comes from.
    #[n(2)]
    pub input: Input,
    /// Where its output goes.
    #[n(3)]
    pub output: Output,
    /// The shell and its first arguments; `-c` and the command follow.
    #[n(4)]
    pub shell: Vec<ByteVec>,
}

/// How a stage ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StageReport {
    /// Its exit code, where it ended by itself.
    #[n(0)]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[n(1)]
    pub signal: Option<i32>,
    /// Why it could not be started, or what it opens not be opened.
    #[n(2)]
    pub fault: Option<Fault>,
    /// How long it ran, in microseconds.
    #[n(3)]
    pub micros: u64,
}
