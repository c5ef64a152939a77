//! Messages between the caller and an agent, and their encoding.
//!
//! The agent first writes [`MAGIC`] and then HELLO; the caller answers with its own HELLO. After that, both ends send
//! messages at any time. A message is its length (u32, little endian, at most [`MESSAGE_BYTES_MAX`]) and one CBOR item:
//! the array `[number, [fields]]`. Paths are byte strings.
//!
//! # Versions
//!
//! Every version can read HELLO: its fields keep their places, and new fields are added behind them. Ends of the same
//! major understand each other: an end skips fields that it does not know, and messages that it does not know if their
//! number is [`OPTIONAL_FROM`] or above. A field added after a release is `#[cbor(default)]`, because older ends do not
//! send it. Each other change raises the major: an installed agent of another major is replaced by the caller's own.

use std::fmt;
use std::sync::OnceLock;

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
pub(crate) use report::end_of;
pub use report::{FAULTS_MAX, Fault, Report};
pub use stage::{
    Action, COMMAND_BYTES_MAX, Input, Output, SHELL_WORDS_MAX, STAGES_MAX, STDERR_BYTES_MAX, Stage, StageReport,
};
pub use tree::{
    FOUND_MAX, Found, KEPT_PATH_BYTES_MAX, Kept, Kind, MANIFEST_PIECE_BYTES, MANIFEST_WINDOW, PROGRESS_NAME_BYTES_MAX,
    Place, Placed, RULE_OVERHEAD_BYTES, RULES_BYTES_MAX, SOURCES_BYTES_MAX, Sources, Spot, TreeProgress,
};

use minicbor::{Decode, Decoder, Encode};
use rd_proto::session::Notice;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::engine::Waits;
use crate::options::{Followed, Rules, TransferOptions, TreeOptions};
use crate::tree::Root;
use crate::tree::entries::Entry;
use crate::tree::proof::Expected;

/// First bytes that the agent writes. The caller skips anything that a login script has printed before them.
pub const MAGIC: &[u8] = b"\x00rdma-pipe agent\x00\n";

/// Maximum number of bytes that the caller skips before [`MAGIC`].
pub const NOISE_BYTES_MAX: usize = 64 << 10;

/// Maximum size of a message in bytes, without its length.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Size of a message's length, in bytes.
pub const LENGTH_BYTES: usize = 4;

/// Lowest number of an optional message: an end that does not know the message may skip it.
pub const OPTIONAL_FROM: u64 = 1000;

/// Number of [`Message::Progress`].
const PROGRESS: u64 = 15;

/// Major version of this protocol. Ends of the same major understand each other. Raised whenever an end of the previous
/// build could not read what is sent, or must not ignore it.
pub const MAJOR: u32 = 5;

/// Minor version of this protocol, raised whenever messages or fields are added that the other end may ignore.
pub const MINOR: u32 = 0;

/// Why bytes cannot be read as a message, or a message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("message too long ({0} bytes)")]
    TooLong(usize),
    /// The bytes are not CBOR, or not a message of this version.
    #[error("malformed message")]
    Malformed,
}

/// Description of an end's program and host.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Major version, see [`MAJOR`].
    #[n(0)]
    pub major: u32,
    /// Minor version, see [`MINOR`].
    #[n(1)]
    pub minor: u32,
    /// The program's version.
    #[n(2)]
    pub program: String,
    /// The operating system, as printed by `uname -s`.
    #[n(3)]
    pub system: String,
    /// The machine, as printed by `uname -m`.
    #[n(4)]
    pub machine: String,
    /// The C library that the program is linked against.
    #[n(5)]
    pub libc: String,
    /// Identifier of the running kernel, by which two ends can tell that they run on the same kernel.
    #[cbor(n(6), with = "minicbor::bytes")]
    pub kernel_id: Vec<u8>,
    /// The name that the host gives itself.
    #[cbor(n(7), with = "minicbor::bytes")]
    pub host: Vec<u8>,
}

impl Hello {
    /// Describes this program on this host.
    pub fn ours() -> Self {
        static KERNEL_ID: OnceLock<Vec<u8>> = OnceLock::new();
        let kernel_id = || std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let uname = rustix::system::uname();
        let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        Self {
            major: MAJOR,
            minor: MINOR,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            system: uname.sysname().to_string_lossy().into_owned(),
            machine: uname.machine().to_string_lossy().into_owned(),
            libc: libc.to_owned(),
            kernel_id: KERNEL_ID.get_or_init(kernel_id).clone(),
            host: uname.nodename().to_bytes().to_vec(),
        }
    }
}

/// What one end of a session transfers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Job {
    /// Sends the contents of one file, device or FIFO.
    #[n(0)]
    SendFile {
        /// Path of the file.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
    },
    /// Receives the contents of one file, device or FIFO.
    #[n(1)]
    ReceiveFile {
        /// Path of the file.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
    },
    /// Sends standard input. Never asked of an agent, because its standard input carries the messages.
    #[n(2)]
    SendStandard,
    /// Receives to standard output. Never asked of an agent.
    #[n(3)]
    ReceiveStandard,
    /// Sends files and trees.
    #[n(4)]
    SendTree {
        /// The files and trees to send.
        #[n(0)]
        roots: Vec<Root>,
        /// Options of the copy.
        #[n(1)]
        settings: TreeOptions,
    },
    /// Receives files and trees.
    #[n(5)]
    ReceiveTree {
        /// The directory that receives them.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// The only names that may be created there. If there is one name, it is that of the only root, whatever that
        /// root is called at the source.
        #[n(1)]
        names: Vec<minicbor::bytes::ByteVec>,
        /// Options of the copy.
        #[n(2)]
        settings: TreeOptions,
        /// What the trees must be, whichever sender they come from.
        #[n(3)]
        expected: Option<Expected>,
    },
    /// Copies files and trees to another place on the same host. Such a session has no other end.
    #[n(8)]
    Copy {
        /// The files and trees to copy.
        #[n(0)]
        roots: Vec<Root>,
        /// The directory that receives the copies.
        #[cbor(n(1), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// Name of each copy.
        #[n(2)]
        names: Vec<minicbor::bytes::ByteVec>,
        /// Options of the copy.
        #[n(3)]
        settings: TreeOptions,
    },
    /// Compares a directory with a manifest that the caller sends. Such a session has no other end.
    #[n(9)]
    Check {
        /// The directory.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// Whether data in the page cache may be compared instead of data read from the disk.
        #[n(1)]
        is_cached: bool,
    },
    /// Sends memory, to measure everything behind the source.
    #[n(40)]
    SendMemory {
        /// For how long, in milliseconds.
        #[n(0)]
        millis: u32,
    },
    /// Sends the output of a pipeline's stage.
    #[n(6)]
    SendStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Receives the input of a pipeline's stage.
    #[n(7)]
    ReceiveStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Sends the stream from this host's node of a broadcast, starting where the other end asks for.
    #[n(10)]
    SendBroadcast,
    /// Receives the stream for this host's node of a broadcast, starting where the node has got to.
    #[n(11)]
    ReceiveBroadcast,
}

/// Key of one session: 256 random bits, wiped when dropped and never printed.
#[derive(Clone, PartialEq, Eq, Encode, Decode, ZeroizeOnDrop)]
pub struct SessionKey(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(redacted)")
    }
}

/// A message's bytes inside another message. They may contain the key,
/// so they are wiped when dropped and never printed.
#[derive(Clone, PartialEq, Eq, Encode, Decode, ZeroizeOnDrop)]
#[cbor(transparent)]
pub struct Inner(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inner({} bytes)", self.0.len())
    }
}

impl Inner {
    /// Decodes the message. Returns `None` in the same case as [`Message::decode`].
    ///
    /// # Errors
    ///
    /// [`MessageError`], also if the message is itself a [`Message::ForEnd`].
    pub fn decode(&self) -> Result<Option<Message>, MessageError> {
        match Message::decode(&self.0)? {
            Some(Message::ForEnd { .. }) => Err(MessageError::Malformed),
            other => Ok(other),
        }
    }
}

/// Begins one end of a session. LISTEN or DIAL then tells that end how to reach the other.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Begin {
    /// Key shared by both ends.
    #[n(0)]
    pub key: SessionKey,
    /// What this end transfers.
    #[n(1)]
    pub job: Job,
    /// Options of the transfer.
    #[n(2)]
    pub options: TransferOptions,
    /// Whether the caller is the session's other end. If so, the session's own lanes tell whether the caller is alive.
    #[n(3)]
    pub caller_is_peer: bool,
    /// The other end, as named by the user.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub peer: Vec<u8>,
    /// Whether the session belongs to a pipeline.
    /// If so, the end says AGREED and READY, and transfers nothing before GO.
    #[n(5)]
    pub waits: bool,
}

/// An address at which an end listens.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Endpoint {
    /// An IP address, in 4 or 16 bytes.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub address: Vec<u8>,
    /// TCP port.
    #[n(1)]
    pub port: u16,
    /// Number of leading bits of the address that identify its subnet.
    #[n(2)]
    pub prefix_bits: u8,
    /// Speed of the link in Mbit/s; 0 if unknown.
    #[n(3)]
    pub rate_mbps: u32,
    /// Whether `--via` names this address.
    #[n(4)]
    pub is_via: bool,
    /// Number of the interface that has this address, if any.
    #[n(5)]
    pub interface: Option<u8>,
}

/// What a host is asked to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Watch {
    /// Paths and patterns, given as the user wrote them.
    #[n(0)]
    pub paths: Vec<minicbor::bytes::ByteVec>,
    /// Whether only what is on the same file system as each path is watched.
    #[n(1)]
    pub is_one_system: bool,
    /// If there are any, only these paths below the paths are watched, as they are. They may be missing.
    #[n(2)]
    pub only: Vec<minicbor::bytes::ByteVec>,
    /// What these rules leave out need not be watched.
    #[n(3)]
    pub rules: Rules,
    /// A digest cache whose changes are not told, besides the usual one.
    #[n(4)]
    pub digest_cache: Option<minicbor::bytes::ByteVec>,
}

/// A message. The numbers of messages and fields are part of the format.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Message {
    /// Describes the end that sends it. The first message in both directions.
    #[n(0)]
    Hello(#[n(0)] Hello),
    /// Asks for the sources that match paths and patterns, given as the user wrote them.
    #[n(1)]
    Find {
        /// Paths and patterns.
        #[n(0)]
        patterns: Vec<minicbor::bytes::ByteVec>,
        /// Which symbolic links among the sources stand for what they lead to.
        #[n(1)]
        links: Followed,
    },
    /// Sources, at most [`FOUND_MAX`] of them. FOUND_ALL follows the last of these messages.
    #[n(2)]
    Found(#[n(0)] Vec<Found>),
    /// All sources have been sent.
    #[n(3)]
    FoundAll,
    /// Asks where copies would be placed. Nothing is created.
    #[n(4)]
    Place(#[n(0)] Place),
    /// Answers PLACE.
    #[n(5)]
    Placed(#[n(0)] Placed),
    /// A question could not be answered, or a session could not begin.
    #[n(6)]
    Failed(#[n(0)] Fault),
    /// Begins one end of a session.
    #[n(7)]
    Begin(#[n(0)] Box<Begin>),
    /// Asks an end to listen for the session's other end. Endpoints that `via` names are marked.
    #[n(8)]
    Listen {
        /// An address or the name of an interface.
        #[cbor(n(0), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Addresses at which this end listens.
    #[n(9)]
    Listening(#[n(0)] Vec<Endpoint>),
    /// Asks an end to connect to the best of these endpoints that turns out to be the session's other end.
    #[n(10)]
    Dial {
        /// Addresses at which the other end listens.
        #[n(0)]
        endpoints: Vec<Endpoint>,
        /// Address or interface name to connect from.
        #[cbor(n(1), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Asks an end to connect through the channel.
    #[n(11)]
    DialTunnel,
    /// This end has connected and authenticated.
    #[n(12)]
    Dialed,
    /// No endpoint could be connected to; contains the reason for the last of them.
    #[n(13)]
    DialFailed(#[n(0)] String),
    /// A line to print for the user.
    #[n(14)]
    Say(#[n(0)] String),
    /// Progress of the session.
    #[n(15)]
    Progress {
        /// Bytes of payload.
        #[n(0)]
        bytes: u64,
        /// Where the time has gone so far.
        #[n(1)]
        waits: Waits,
        /// Progress of files and trees.
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
    /// Opens a connection through the channel.
    #[n(20)]
    TunnelOpen(#[n(0)] u32),
    /// Data of a connection through the channel.
    #[n(21)]
    TunnelData {
        /// Number of the connection.
        #[n(0)]
        id: u32,
        /// The data, at most [`super::tunnel::DATA_BYTES_MAX`] bytes.
        #[cbor(n(1), with = "minicbor::bytes")]
        bytes: Vec<u8>,
    },
    /// Allows this many more bytes to be sent on a connection through the channel.
    #[n(22)]
    TunnelCredit {
        /// Number of the connection.
        #[n(0)]
        id: u32,
        /// Number of bytes.
        #[n(1)]
        bytes: u32,
    },
    /// One direction of a connection through the channel has ended.
    #[n(23)]
    TunnelClose(#[n(0)] u32),
    /// A message to or from one of several ends that share a channel.
    #[n(24)]
    ForEnd {
        /// Number of the end.
        #[n(0)]
        end: u32,
        /// The message, without its length. Never another `ForEnd`: messages do not nest.
        #[n(1)]
        message: Inner,
    },
    /// Announces a stage of a pipeline, without starting it.
    #[n(25)]
    Stage(#[n(0)] Box<Stage>),
    /// Starts all stages that have been announced but not started.
    #[n(26)]
    StartStages,
    /// A stage has ended.
    #[n(27)]
    StageEnded {
        /// Number of the stage.
        #[n(0)]
        stage: u32,
        /// How the stage ended.
        #[n(1)]
        report: StageReport,
    },
    /// Standard error of a stage.
    #[n(28)]
    StageStderr {
        /// Number of the stage.
        #[n(0)]
        stage: u32,
        /// The output, at most [`STDERR_BYTES_MAX`] bytes.
        #[cbor(n(1), with = "minicbor::bytes")]
        bytes: Vec<u8>,
    },
    /// Ends a stage and everything that it has started by a signal.
    #[n(29)]
    EndStage {
        /// Number of the stage.
        #[n(0)]
        stage: u32,
        /// Number of the signal.
        #[n(1)]
        signal: u8,
    },
    /// The two ends of a pipeline's session have exchanged offers. This end now waits for its stage to be started.
    #[n(30)]
    Agreed,
    /// The stage has been started. The session can begin as soon as the other end is ready too.
    #[n(31)]
    Ready,
    /// The other end is ready. It may be ready before this end is.
    #[n(32)]
    Go,
    /// Entries that this end could not read or write, at most [`FAULTS_MAX`] in each message. Sent before ENDED.
    #[n(33)]
    EntriesFailed(#[n(0)] Vec<Fault>),
    /// What happened to entries. Only a few of these messages may be unanswered, see `tree::entries`.
    #[n(34)]
    Entries(#[n(0)] Vec<Entry>),
    /// The caller has taken this many ENTRIES messages.
    #[n(35)]
    EntriesTaken(#[n(0)] u32),
    /// The next bytes of a manifest. At most [`MANIFEST_WINDOW`] of these messages may be unanswered; an empty message
    /// ends the manifest.
    #[n(36)]
    Manifest(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// One MANIFEST message has been taken.
    #[n(37)]
    ManifestTaken,
    /// Sources and names for the host's next BEGIN, which has none of its own because they do not fit into one message.
    /// A host takes up to [`SOURCES_BYTES_MAX`] of them. The answer is SOURCES_TAKEN or FAILED.
    #[n(38)]
    Sources(#[n(0)] Sources),
    /// One SOURCES message has been taken.
    #[n(39)]
    SourcesTaken,
    /// Asks for facts about the host of this end.
    #[n(40)]
    Examine,
    /// Facts about the host, see `measure::facts`.
    #[n(41)]
    Examined(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Opens ports for probing, for some seconds: until the next session begins or the next of these messages arrives.
    #[n(42)]
    OpenProbe {
        /// First and last port to choose from.
        #[n(0)]
        ports: Option<(u16, u16)>,
    },
    /// Where the ports are: `measure::probe::ProbeTargets`.
    #[n(43)]
    ProbeOpened(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Asks for probes of the ports that the other end has opened: `measure::probe::ProbeRequest`.
    #[n(44)]
    Probe(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Result of each probe, see `measure::probe`.
    #[n(45)]
    Probed(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Asks the end to listen for one measurement of the wire. The answer is LISTENING or FAILED.
    #[n(50)]
    Measure {
        /// Key shared by both ends.
        #[n(0)]
        key: SessionKey,
        /// First and last port to choose from.
        #[n(1)]
        ports: Option<(u16, u16)>,
        /// An address or the name of an interface. Endpoints that it names are marked.
        #[cbor(n(2), with = "minicbor::bytes")]
        via: Vec<u8>,
    },
    /// Asks for a measurement of storage: of reading a file, or of reading or writing the agent's own file in a
    /// directory. The answer is STORAGE or FAILED.
    #[n(51)]
    MeasureStorage {
        /// The file or directory; empty for the directory where relative paths start.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// Whether writing is measured, which needs a directory.
        #[n(1)]
        writes: bool,
        /// How long to measure, in microseconds, at most a minute.
        #[n(2)]
        micros: u64,
    },
    /// Result of a measurement of storage.
    #[n(52)]
    Storage(#[n(0)] Storage),
    /// Begins this host's node of a broadcast. BROADCAST_ENDED is the final answer.
    #[n(53)]
    BeginBroadcast(#[n(0)] Box<Broadcast>),
    /// Progress of the node.
    #[n(54)]
    BroadcastState(#[n(0)] BroadcastState),
    /// Proof of the stream. The source's node reports what the stream was. The node of a copy receives what the stream
    /// must have been, and finishes nothing before that.
    #[n(55)]
    BroadcastProof(#[n(0)] BroadcastProof),
    /// Whether there is another host behind this one from now on.
    #[n(56)]
    BroadcastNext(#[n(0)] bool),
    /// The node's own tree has been read or written, or never will be. The node goes on passing the stream to the host
    /// behind it.
    #[n(57)]
    BroadcastEnded(#[n(0)] Box<Report>),
    /// The node's own tree holds up the others: it must take no more of the stream.
    #[n(58)]
    BroadcastLeave,
    /// Watches these paths, after expanding patterns. The answer is WATCHED; FAILED may come instead or at any later
    /// time.
    #[n(60)]
    Watch(#[n(0)] Watch),
    /// From now on no change is missed.
    #[n(61)]
    Watched,
    /// Asks for the next change. CHANGED answers as soon as there is a change.
    #[n(62)]
    TellChanges,
    /// Something has changed in these directories, given by their paths from the only watched path. There are at most
    /// `TOUCHED_MAX` of them; `None` if the change may be anywhere.
    #[n(63)]
    Changed(#[n(0)] Option<Vec<minicbor::bytes::ByteVec>>),
    /// The agent of the session's other end has fallen silent, so only the lanes tell whether that end is alive.
    #[n(1000)]
    OtherLost,
    /// Asks for a count of everything that this end has to send, or to copy on its host, because a user is watching.
    /// PROGRESS reports the count.
    #[n(1001)]
    Count,
    /// What a cancelled tree has left behind for the same copy to resume when it is run again.
    #[n(1002)]
    Kept(#[n(0)] Kept),
    /// Asks for the agent's log, up to this level. The first LOG_LINE comes at once, to tell the caller the agent's
    /// clock; the others come as lines are logged.
    #[n(1003)]
    TellLog(#[n(0)] u8),
    /// A line of the agent's log.
    #[n(1004)]
    LogLine(#[n(0)] Box<LogLine>),
    /// The caller will ask for nothing more. The agent ends by itself once all stages and sessions that it knows of
    /// have reported how they ended.
    #[n(1005)]
    EndWhenDone,
    /// What happened to the session's lanes, and why. A notice that this version does not know is skipped too.
    #[n(1006)]
    Notice(#[n(0)] Notice, #[n(1)] Option<String>),
    /// The agent is there, and had nothing else to send for [`channel::BEAT`](super::channel::BEAT). Or the caller is
    /// there, although a link of the agent's has been lost.
    #[n(1007)]
    StillHere,
}

impl Message {
    /// Appends the message, with its length, to `out`.
    ///
    /// # Errors
    ///
    /// [`MessageError::TooLong`]; `out` is left unchanged.
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

    /// Wraps the message as one to or from one of several ends.
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

    /// Decodes a message without its length. Returns `None` for a message that this version does not know and may skip.
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

    /// Whether the message belongs to a connection through the channel.
    pub fn is_tunnel(&self) -> bool {
        matches!(self, Self::TunnelOpen(_) | Self::TunnelData { .. } | Self::TunnelCredit { .. } | Self::TunnelClose(_))
    }

    /// Whether the message is a state, which the next one replaces.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Progress { .. } => true,
            Self::ForEnd { message, .. } => number_of(&message.0) == Some(PROGRESS),
            _ => false,
        }
    }
}

fn may_skip(bytes: &[u8]) -> bool {
    number_of(bytes).is_some_and(|number| number >= OPTIONAL_FROM)
}

/// Returns the number of an encoded message.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let mut decoder = Decoder::new(bytes);
    decoder.array().ok().flatten().filter(|&items| items == 2)?;
    decoder.u64().ok()
}

/// Decodes the length in front of a message.
///
/// # Errors
///
/// [`MessageError::TooLong`].
pub fn decode_length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, MessageError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > MESSAGE_BYTES_MAX { Err(MessageError::TooLong(length)) } else { Ok(length) }
}

/// Body of the fuzz target, also run as a test over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests;
