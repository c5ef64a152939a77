//! The messages between the caller and an agent, and their bytes.
//!
//! The agent writes [`MAGIC`] at once and HELLO behind it; the caller answers with its own HELLO. From then on either
//! end sends messages as it has something to say. A message is its length (u32, little endian, at most
//! [`MESSAGE_BYTES_MAX`]) and one CBOR item: the array `[number, [fields]]`. Paths are byte strings.
//!
//! # Versions
//!
//! HELLO can be read by every version: its fields keep their places and new ones are added behind them. Ends of one
//! major understand each other; fields that one does not know are skipped, and so are messages whose number is
//! [`OPTIONAL_FROM`] or above. A field that is added after a release is `#[cbor(default)]`: older ends do not send it.

use std::fmt;

mod bounds;
mod broadcast;
mod log;
mod measure;
mod report;
mod stage;
mod tree;

pub use broadcast::{Broadcast, BroadcastProof, BroadcastRole, BroadcastState, SPOOL_BYTES_MAX};
pub use log::{LOG_ABOUT_BYTES_MAX, LOG_TEXT_BYTES_MAX, LogLine};
pub use measure::Storage;
pub use report::{FAULTS_MAX, Fault, Report};
pub use stage::{
    Action, COMMAND_BYTES_MAX, Input, Output, SHELL_WORDS_MAX, STAGES_MAX, STDERR_BYTES_MAX, Stage, StageReport,
};
pub use tree::{
    FOUND_MAX, Found, KEPT_PATH_BYTES_MAX, Kept, Kind, MANIFEST_PIECE_BYTES, MANIFEST_WINDOW, PROGRESS_NAME_BYTES_MAX,
    Place, Placed, RULE_OVERHEAD_BYTES, RULES_BYTES_MAX, Spot, TreeProgress,
};

use minicbor::{Decode, Decoder, Encode};
use rd_proto::session::Notice;
use zeroize::Zeroize;

use crate::engine::Waits;
use crate::options::{TransferOptions, TreeOptions};
use crate::tree::Root;
use crate::tree::entries::Entry;
use crate::tree::proof::Expected;

/// What the agent writes first. Whatever a login script has printed before it is skipped.
pub const MAGIC: &[u8] = b"\x00rdma-pipe agent\x00\n";

/// Noise that is skipped before [`MAGIC`], in bytes.
pub const NOISE_BYTES_MAX: usize = 64 << 10;

/// The longest message, in bytes, without its length.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a message's length.
pub const LENGTH_BYTES: usize = 4;

/// Messages from this number on may be skipped by an end that does not know them.
pub const OPTIONAL_FROM: u64 = 1000;

/// Ends of the same major understand each other.
pub const MAJOR: u32 = 2;

/// Grows with what is added.
pub const MINOR: u32 = 0;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// Not CBOR, or not a message of this version.
    #[error("a message that cannot be read")]
    Malformed,
}

/// Who is there.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// See [`MAJOR`].
    #[n(0)]
    pub major: u32,
    /// See [`MINOR`].
    #[n(1)]
    pub minor: u32,
    /// The program's version.
    #[n(2)]
    pub program: String,
    /// The operating system, as `uname -s` says it.
    #[n(3)]
    pub system: String,
    /// The machine, as `uname -m` says it.
    #[n(4)]
    pub machine: String,
    /// The C library that the program is linked to.
    #[n(5)]
    pub libc: String,
    /// Names the running kernel, so that two ends can tell that they are on one.
    #[cbor(n(6), with = "minicbor::bytes")]
    pub kernel_id: Vec<u8>,
    /// The host's own name.
    #[cbor(n(7), with = "minicbor::bytes")]
    pub host: Vec<u8>,
}

impl Hello {
    /// This program, here.
    pub fn ours() -> Self {
        let uname = rustix::system::uname();
        let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        Self {
            major: MAJOR,
            minor: MINOR,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            system: uname.sysname().to_string_lossy().into_owned(),
            machine: uname.machine().to_string_lossy().into_owned(),
            libc: libc.to_owned(),
            kernel_id: std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            host: uname.nodename().to_bytes().to_vec(),
        }
    }
}

/// What one end of a session moves.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Job {
    /// Sends the contents of one file, device or FIFO.
    #[n(0)]
    SendFile {
        /// The file.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
    },
    /// Receives the contents of one file, device or FIFO.
    #[n(1)]
    ReceiveFile {
        /// The file.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
    },
    /// Sends standard input. Never asked of an agent: its standard input has the messages.
    #[n(2)]
    SendStandard,
    /// Receives to standard output. Never asked of an agent.
    #[n(3)]
    ReceiveStandard,
    /// Sends files and trees.
    #[n(4)]
    SendTree {
        /// What.
        #[n(0)]
        roots: Vec<Root>,
        /// How.
        #[n(1)]
        settings: TreeOptions,
    },
    /// Receives files and trees.
    #[n(5)]
    ReceiveTree {
        /// Where they are to lie.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// The names that they get there, and no others. A single one is that of the only root, whatever its own is.
        #[n(1)]
        names: Vec<minicbor::bytes::ByteVec>,
        /// How.
        #[n(2)]
        settings: TreeOptions,
        /// What they must be, for every sender.
        #[n(3)]
        expected: Option<Expected>,
    },
    /// Copies files and trees to another place of the same host: a session without another end.
    #[n(8)]
    Copy {
        /// What.
        #[n(0)]
        roots: Vec<Root>,
        /// Where the copies are to lie.
        #[cbor(n(1), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// The name of each copy.
        #[n(2)]
        names: Vec<minicbor::bytes::ByteVec>,
        /// How.
        #[n(3)]
        settings: TreeOptions,
    },
    /// Compares a directory with a manifest that the caller sends. It has no other end.
    #[n(9)]
    Check {
        /// The directory.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// What the page cache has will do, where it has it.
        #[n(1)]
        is_cached: bool,
    },
    /// Sends memory, to measure what is behind it.
    #[n(40)]
    SendMemory {
        /// For so long.
        #[n(0)]
        millis: u32,
    },
    /// Sends what a stage of a pipeline puts out.
    #[n(6)]
    SendStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Receives what a stage of a pipeline takes in.
    #[n(7)]
    ReceiveStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Sends the stream of this host's node of a broadcast, from where the other end says.
    #[n(10)]
    SendBroadcast,
    /// Receives the stream for this host's node of a broadcast, from where that has come to.
    #[n(11)]
    ReceiveBroadcast,
}

/// The key of one session: 256 random bits, wiped when dropped, never shown.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct SessionKey(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(redacted)")
    }
}

impl Drop for SessionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The bytes of a message in another. It may be the one with the key: wiped when dropped, never shown.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Inner(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inner({} bytes)", self.0.len())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Inner {
    /// Reads the message. `None` as with [`Message::decode`].
    ///
    /// # Errors
    ///
    /// [`MessageError`], also for a [`Message::ForEnd`] again.
    pub fn decode(&self) -> Result<Option<Message>, MessageError> {
        match Message::decode(&self.0)? {
            Some(Message::ForEnd { .. }) => Err(MessageError::Malformed),
            other => Ok(other),
        }
    }
}

/// Begins one end of a session; LISTEN or DIAL says how it finds the other.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Begin {
    /// What both ends have in common.
    #[n(0)]
    pub key: SessionKey,
    /// What is moved.
    #[n(1)]
    pub job: Job,
    /// How.
    #[n(2)]
    pub options: TransferOptions,
    /// The caller is the other end of the session: without a word from it, the session's own lanes tell whether it lives.
    #[n(3)]
    pub caller_is_peer: bool,
    /// The other end, as the user named it.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub peer: Vec<u8>,
    /// It belongs to a pipeline: it says AGREED and READY, and moves nothing before GO.
    #[n(5)]
    pub waits: bool,
}

/// A place where an end listens.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Endpoint {
    /// An IP address, in 4 or 16 bytes.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub address: Vec<u8>,
    /// TCP port.
    #[n(1)]
    pub port: u16,
    /// Leading bits of the address that name its subnet.
    #[n(2)]
    pub prefix_bits: u8,
    /// The link's speed in Mbit/s; 0 where it is unknown.
    #[n(3)]
    pub rate_mbps: u32,
    /// It is what `--via` names.
    #[n(4)]
    pub is_via: bool,
    /// Numbers its interface, if it is the address of one.
    #[n(5)]
    pub interface: Option<u8>,
}

/// One message. The numbers are part of the format.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Message {
    /// Who is there. The first message in both directions.
    #[n(0)]
    Hello(#[n(0)] Hello),
    /// Asks for sources: paths and patterns as they were given.
    #[n(1)]
    Find {
        /// Paths and patterns.
        #[n(0)]
        patterns: Vec<minicbor::bytes::ByteVec>,
        /// A symbolic link is copied as such, not followed: `-r`.
        #[n(1)]
        links: bool,
    },
    /// Sources, at most [`FOUND_MAX`] of them; FOUND_ALL follows.
    #[n(2)]
    Found(#[n(0)] Vec<Found>),
    /// All sources have been told.
    #[n(3)]
    FoundAll,
    /// Asks where things will come to lie. Nothing is made.
    #[n(4)]
    Place(#[n(0)] Place),
    /// Where.
    #[n(5)]
    Placed(#[n(0)] Placed),
    /// A question could not be answered, or a session not begun.
    #[n(6)]
    Failed(#[n(0)] Fault),
    /// Begins one end of a session.
    #[n(7)]
    Begin(#[n(0)] Box<Begin>),
    /// Listen for the other end. `via`: an interface or address; endpoints that it names are marked.
    #[n(8)]
    Listen {
        /// An address or an interface's name.
        #[cbor(n(0), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Where this end listens.
    #[n(9)]
    Listening(#[n(0)] Vec<Endpoint>),
    /// Connect to the best of these that is the other end.
    #[n(10)]
    Dial {
        /// Where the other end listens.
        #[n(0)]
        endpoints: Vec<Endpoint>,
        /// An address or an interface's name to go out by.
        #[cbor(n(1), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Connect through the channel.
    #[n(11)]
    DialTunnel,
    /// This end has connected and authenticated.
    #[n(12)]
    Dialed,
    /// None of them could be connected to; why the last one could not.
    #[n(13)]
    DialFailed(#[n(0)] String),
    /// A line for the user.
    #[n(14)]
    Say(#[n(0)] String),
    /// How far the session has come.
    #[n(15)]
    Progress {
        /// Payload.
        #[n(0)]
        bytes: u64,
        /// Where the time went until now.
        #[n(1)]
        waits: Waits,
        /// Of files and trees.
        #[n(2)]
        tree: Option<TreeProgress>,
    },
    /// The session has ended.
    #[n(17)]
    Ended(#[n(0)] Box<Report>),
    /// The session must end as by this signal; its other end gets an ABORT. With SIGTSTP, the session does not end:
    /// this end stops its own process.
    #[n(18)]
    Signal(#[n(0)] u8),
    /// A connection through the channel begins.
    #[n(20)]
    TunnelOpen(#[n(0)] u32),
    /// Its bytes.
    #[n(21)]
    TunnelData {
        /// The connection.
        #[n(0)]
        id: u32,
        /// At most [`super::tunnel::DATA_BYTES_MAX`].
        #[cbor(n(1), with = "minicbor::bytes")]
        bytes: Vec<u8>,
    },
    /// So many more bytes may be sent.
    #[n(22)]
    TunnelCredit {
        /// The connection.
        #[n(0)]
        id: u32,
        /// Bytes.
        #[n(1)]
        bytes: u32,
    },
    /// It has ended.
    #[n(23)]
    TunnelClose(#[n(0)] u32),
    /// To or from one of several ends behind a channel.
    #[n(24)]
    ForEnd {
        /// The end's number.
        #[n(0)]
        end: u32,
        /// A message without its length. None of this kind: a message has no depth.
        #[n(1)]
        message: Inner,
    },
    /// Takes a stage of a pipeline, and does nothing yet.
    #[n(25)]
    Stage(#[n(0)] Box<Stage>),
    /// Starts all stages that have been told of and not started.
    #[n(26)]
    StartStages,
    /// A stage has ended.
    #[n(27)]
    StageEnded {
        /// Its number.
        #[n(0)]
        stage: u32,
        /// How.
        #[n(1)]
        report: StageReport,
    },
    /// What a stage has written to standard error.
    #[n(28)]
    StageStderr {
        /// Its number.
        #[n(0)]
        stage: u32,
        /// At most [`STDERR_BYTES_MAX`].
        #[cbor(n(1), with = "minicbor::bytes")]
        bytes: Vec<u8>,
    },
    /// Ends a stage, with everything that it has started, by a signal.
    #[n(29)]
    EndStage {
        /// Its number.
        #[n(0)]
        stage: u32,
        /// The signal's number.
        #[n(1)]
        signal: u8,
    },
    /// The two ends of a pipeline's session have agreed on how; this one waits for its stage to be started.
    #[n(30)]
    Agreed,
    /// The stage has been started, and the session can begin as soon as the other end can.
    #[n(31)]
    Ready,
    /// The other end is ready as well, or is before this one.
    #[n(32)]
    Go,
    /// Entries that this end could not read or write, at most [`FAULTS_MAX`] at a time, before ENDED.
    #[n(33)]
    EntriesFailed(#[n(0)] Vec<Fault>),
    /// What has become of entries, in messages of which few may be on their way: see `tree::entries`.
    #[n(34)]
    Entries(#[n(0)] Vec<Entry>),
    /// The caller has taken so many of those messages.
    #[n(35)]
    EntriesTaken(#[n(0)] u32),
    /// The next bytes of a manifest, of which [`MANIFEST_WINDOW`] messages may be on their way; none are its end.
    #[n(36)]
    Manifest(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// One of those messages has been taken.
    #[n(37)]
    ManifestTaken,
    /// Asks what this end's host is like.
    #[n(40)]
    Examine,
    /// The facts: see `measure::facts`.
    #[n(41)]
    Examined(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Opens ports to be tried, for some seconds, until the next session begins or the next such message.
    #[n(42)]
    OpenProbe {
        /// First and last port to choose from.
        #[n(0)]
        ports: Option<(u16, u16)>,
    },
    /// Where they are: `measure::probe::ProbeTargets`.
    #[n(43)]
    ProbeOpened(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Tries ports that the other end has opened: `measure::probe::ProbeRequest`.
    #[n(44)]
    Probe(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// What came of each: see `measure::probe`.
    #[n(45)]
    Probed(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Listen for one measurement of the wire. LISTENING or FAILED answers.
    #[n(50)]
    Measure {
        /// What both ends have in common.
        #[n(0)]
        key: SessionKey,
        /// Ports to choose from, first and last.
        #[n(1)]
        ports: Option<(u16, u16)>,
        /// An address or an interface's name; endpoints that it names are marked.
        #[cbor(n(2), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Measure storage: read a file, or read or write a file of the agent's own in a directory. STORAGE or FAILED answers.
    #[n(51)]
    MeasureStorage {
        /// The file or directory; empty for where relative paths start.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// Writes, which needs a directory.
        #[n(1)]
        writes: bool,
        /// For how long, in microseconds, a minute at most.
        #[n(2)]
        micros: u64,
    },
    /// What came of it.
    #[n(52)]
    Storage(#[n(0)] Storage),
    /// Begins this host's node of a broadcast. BROADCAST_ENDED answers in the end.
    #[n(53)]
    BeginBroadcast(#[n(0)] Box<Broadcast>),
    /// How far the node has come.
    #[n(54)]
    BroadcastState(#[n(0)] BroadcastState),
    /// From the source's node: what the stream was. To a copy's node: what it must have been. Until it has heard that, it
    /// finishes nothing.
    #[n(55)]
    BroadcastProof(#[n(0)] BroadcastProof),
    /// Whether another host is behind this one from now on.
    #[n(56)]
    BroadcastNext(#[n(0)] bool),
    /// The node's own tree has been read or made, or never will be. It goes on giving the stream to the host behind it.
    #[n(57)]
    BroadcastEnded(#[n(0)] Box<Report>),
    /// The node's own tree holds the others up: it is to take no more of the stream.
    #[n(58)]
    BroadcastLeave,
    /// Watches these paths, or what they stand for as patterns. WATCHED answers, or FAILED, now or at any time.
    #[n(60)]
    Watch(#[n(0)] Vec<minicbor::bytes::ByteVec>),
    /// From now on no change is missed.
    #[n(61)]
    Watched,
    /// Asks for the next change. CHANGED answers once there is one.
    #[n(62)]
    TellChanges,
    /// Something has changed, in these directories: paths from the only one that is watched on, at most `TOUCHED_MAX` of
    /// them; none if it may be anywhere.
    #[n(63)]
    Changed(#[n(0)] Option<Vec<minicbor::bytes::ByteVec>>),
    /// The agent of the session's other end is not heard any more: only the lanes tell whether that end lives.
    #[n(1000)]
    OtherLost,
    /// Somebody watches: count all that this end has to send, or to copy on its host. PROGRESS tells what it comes to.
    #[n(1001)]
    Count,
    /// What a tree that was given up has left for the same copy, run again, to resume.
    #[n(1002)]
    Kept(#[n(0)] Kept),
    /// Tell your log, up to this level: LOG_LINE at once, from which the caller knows the agent's clock, and then as there is
    /// something to tell.
    #[n(1003)]
    TellLog(#[n(0)] u8),
    /// A line of it.
    #[n(1004)]
    LogLine(#[n(0)] Box<LogLine>),
    /// The caller will ask for nothing more: the agent ends by itself once all stages and sessions that it has been told of
    /// have told how they ended.
    #[n(1005)]
    EndWhenDone,
    /// What became of the session's lanes, and why. One that this version does not know is skipped as well.
    #[n(1006)]
    Notice(#[n(0)] Notice, #[n(1)] Option<String>),
}

impl Message {
    /// Appends the message to `out`, with its length.
    ///
    /// # Errors
    ///
    /// [`MessageError::TooLong`]; `out` is then as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), MessageError> {
        let start = out.len();
        out.extend([0; LENGTH_BYTES]);
        minicbor::encode(self, &mut *out).expect("a vector takes everything");
        let length = out.len() - start - LENGTH_BYTES;
        if length > MESSAGE_BYTES_MAX {
            out[start..].zeroize();
            out.truncate(start);
            return Err(MessageError::TooLong(length));
        }
        out[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }

    /// The message for, or of, one of several ends.
    ///
    /// # Errors
    ///
    /// [`MessageError::TooLong`].
    pub fn for_end(&self, end: u32) -> Result<Self, MessageError> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes)?;
        bytes.drain(..LENGTH_BYTES);
        Ok(Self::ForEnd { end, message: Inner(bytes) })
    }

    /// Reads a message without its length. `None`: one that this version does not know and may skip.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong(bytes.len()));
        }
        let mut decoder = Decoder::new(bytes);
        match decoder.decode() {
            Ok(message) if decoder.position() == bytes.len() && Self::is_within_bounds(&message) => Ok(Some(message)),
            Err(error) if error.is_unknown_variant() && may_skip(bytes) => Ok(None),
            _ => Err(MessageError::Malformed),
        }
    }

    /// Whether this belongs to a connection through the channel.
    pub fn is_tunnel(&self) -> bool {
        matches!(self, Self::TunnelOpen(_) | Self::TunnelData { .. } | Self::TunnelCredit { .. } | Self::TunnelClose(_))
    }
}

fn may_skip(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new(bytes);
    matches!(decoder.array(), Ok(Some(2))) && decoder.u64().is_ok_and(|number| number >= OPTIONAL_FROM)
}

/// The length in front of a message.
///
/// # Errors
///
/// [`MessageError::TooLong`].
pub fn decode_length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, MessageError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > MESSAGE_BYTES_MAX { Err(MessageError::TooLong(length)) } else { Ok(length) }
}

/// Body of the fuzz target. It also runs as a test over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests;
