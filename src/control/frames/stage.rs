//! What a host does in a pipeline, and what it reports about that.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::Fault;

/// Maximum number of stages that one agent accepts.
pub const STAGES_MAX: usize = 1024;

/// Maximum number of words in a shell's command line.
pub const SHELL_WORDS_MAX: usize = 32;

/// Maximum size of a stage's command and the shell's words together, in bytes.
/// With the other fields they fit in a message.
pub const COMMAND_BYTES_MAX: usize = 192 << 10;

/// Maximum number of bytes of a stage's standard error in one message.
pub const STDERR_BYTES_MAX: usize = 8 << 10;

/// What one stage of a pipeline does.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Action {
    /// Runs a command in the shell.
    #[n(0)]
    Run {
        /// The command, as passed to the shell.
        #[cbor(n(0), with = "minicbor::bytes")]
        command: Vec<u8>,
    },
    /// Sends what a redirection opens.
    #[n(1)]
    Read {
        /// The redirection with its operator: `< file`.
        #[cbor(n(0), with = "minicbor::bytes")]
        redirection: Vec<u8>,
    },
    /// Writes to what a redirection opens.
    #[n(2)]
    Write {
        /// The redirection with its operator: `> file`, `>> file`.
        #[cbor(n(0), with = "minicbor::bytes")]
        redirection: Vec<u8>,
    },
    /// Writes its input to a file and also passes it on.
    #[n(3)]
    Tee {
        /// Path of the file; a relative path starts where stages run.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// Whether to append to the file instead of replacing it.
        #[n(1)]
        append: bool,
    },
}

/// Where a stage's input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Input {
    /// There is no input.
    #[n(0)]
    Nothing,
    /// The stage before this one, through a session.
    #[n(1)]
    Hop,
    /// The caller's standard input. Never asked of an agent.
    #[n(2)]
    Standard,
}

/// Where a stage's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Output {
    /// There is no output.
    #[n(0)]
    Nothing,
    /// The stage behind this one, through a session.
    #[n(1)]
    Hop,
    /// The caller's standard output. Never asked of an agent.
    #[n(2)]
    Standard,
    /// The output is read to its end and dropped.
    #[n(3)]
    Dropped,
    /// The output goes where standard error goes, because several hosts run the same command.
    #[n(4)]
    Error,
}

/// One stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stage {
    /// Number of the stage in the pipeline.
    #[n(0)]
    pub number: u32,
    /// What the stage does.
    #[n(1)]
    pub action: Action,
    /// Where the stage's input comes from.
    #[n(2)]
    pub input: Input,
    /// Where the stage's output goes.
    #[n(3)]
    pub output: Output,
    /// The shell and its first arguments; `-c` and the command follow them.
    #[n(4)]
    pub shell: Vec<ByteVec>,
}

/// How a stage ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StageReport {
    /// The exit code, if the stage ended by itself.
    #[n(0)]
    pub code: Option<i32>,
    /// The signal that ended the stage, if any.
    #[n(1)]
    pub signal: Option<i32>,
    /// Why the stage could not be started, or why its redirection or file could not be opened.
    #[n(2)]
    pub fault: Option<Fault>,
    /// How long the stage ran, in microseconds.
    #[n(3)]
    pub micros: u64,
}
