//! How things end: failures as facts, and what a session came to.

use minicbor::{Decode, Encode};
use rd_proto::control::IoFact;

use super::MESSAGE_BYTES_MAX;
use crate::fault::Exit;
use crate::tree::stats::Stats;

/// Failures in one [`super::Message::EntriesFailed`], and the most bytes of a path and of the words about it: all of them together
/// fit a message.
pub const FAULTS_MAX: usize = 40;
const FAULT_PATH_BYTES_MAX: usize = 4096;
const FAULT_DETAIL_BYTES_MAX: usize = 1024;
const _: () = assert!(FAULTS_MAX * (FAULT_PATH_BYTES_MAX + FAULT_DETAIL_BYTES_MAX + 256) < MESSAGE_BYTES_MAX);

/// Something that went wrong, as facts for a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fault {
    /// The exit code that it leads to.
    #[n(0)]
    pub exit: u8,
    /// What was tried with a file, such as "cannot read". Empty where the failure is about no file.
    #[n(1)]
    pub what: String,
    /// The file, on the host of the end that tells.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// The error's number, 0 if it has none.
    #[n(3)]
    pub errno: i32,
    /// More, for a person; all there is to say where the failure is about no file.
    #[n(4)]
    pub detail: String,
    /// It happened at this end; else this end has it from the other.
    #[n(5)]
    pub own: bool,
}

impl Fault {
    /// A failure about a file of this host. Of a path that is longer than any system call takes, only its end is kept.
    pub fn io(exit: u8, what: &str, fact: &IoFact) -> Self {
        let detail =
            String::from_utf8_lossy(&fact.detail[..fact.detail.len().min(FAULT_DETAIL_BYTES_MAX / 3)]).into_owned();
        let path = match fact.path.len().checked_sub(FAULT_PATH_BYTES_MAX) {
            None | Some(0) => fact.path.clone(),
            Some(over) => [b"...", &fact.path[over + 3..]].concat(),
        };
        Self { exit, what: what.to_owned(), path, errno: fact.errno, detail, own: true }
    }

    /// A file of this host that cannot be read.
    pub fn unreadable(fact: &IoFact) -> Self {
        Self::io(Exit::Source.code(), "cannot read", fact)
    }

    /// A file of this host that cannot be written.
    pub fn unwritable(fact: &IoFact) -> Self {
        Self::io(Exit::Destination.code(), "cannot write", fact)
    }

    /// An entry of this host that was to be removed.
    pub fn unremovable(fact: &IoFact) -> Self {
        Self::io(Exit::Source.code(), "cannot remove", fact)
    }

    /// A directory of this host in which more was to be deleted.
    pub fn undeleted(fact: &IoFact) -> Self {
        Self::io(Exit::Destination.code(), "cannot delete all in", fact)
    }

    /// The sending end of a broadcast's hop does not keep what the other has asked for.
    pub fn is_not_kept(&self) -> bool {
        self.own && self.path.is_empty() && self.errno == libc::ESTALE
    }

    /// What came is not what the source has.
    pub fn misled(detail: impl Into<String>) -> Self {
        Self { errno: libc::EBADMSG, ..Self::plain(Exit::Integrity.code(), detail) }
    }

    /// This end has found that what came is not what the source has.
    pub fn is_misled(&self) -> bool {
        self.own && self.exit == Exit::Integrity.code() && self.path.is_empty() && self.errno == libc::EBADMSG
    }

    /// A failure about no file, as a sentence.
    pub fn plain(exit: u8, detail: impl Into<String>) -> Self {
        Self { exit, what: String::new(), path: Vec::new(), errno: 0, detail: detail.into(), own: true }
    }
}

/// How an end's session ended.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Report {
    /// What went wrong, if anything.
    #[n(0)]
    pub fault: Option<Fault>,
    /// Payload bytes that the receiver has answered for.
    #[n(1)]
    pub bytes: u64,
    /// From the first lane to the end, in microseconds.
    #[n(2)]
    pub micros: u64,
    /// The media that payload went by, as the reports name them.
    #[n(3)]
    pub media: Vec<String>,
    /// The lane that payload began on, for a person.
    #[n(4)]
    pub route: String,
    /// The most lanes that carried payload at once.
    #[n(5)]
    pub lanes: u32,
    /// All payload was encrypted.
    #[n(6)]
    pub encrypted: bool,
    /// Lost lanes.
    #[n(7)]
    pub retries: u64,
    /// Chunks sent again.
    #[n(8)]
    pub replayed: u64,
    /// Chunks that arrived damaged.
    #[n(9)]
    pub corrupt: u64,
    /// Where the time went, in microseconds: source, CPU, credits, wire, sink, rate limit.
    #[n(10)]
    pub waits: Vec<u64>,
    /// Entries of trees: files, directories, links and others.
    #[n(11)]
    pub entries: u64,
    /// Data of files, as it was read or written.
    #[n(12)]
    pub data_bytes: u64,
    /// Data that was not sent, since an earlier copy had left it at the destination.
    #[n(13)]
    pub kept_bytes: u64,
    /// Entries that this end could not read or write; [`super::Message::EntriesFailed`] has named the first of them.
    #[n(14)]
    pub failed: u64,
    /// All that was published is on stable storage.
    #[n(16)]
    pub is_synced: bool,
    /// And has been read back from there.
    #[n(17)]
    pub is_read_back: bool,
    /// Bytes of files that were read past the page cache.
    #[n(18)]
    pub read_direct_bytes: u64,
    /// Bytes of files that were read from or through it.
    #[n(19)]
    pub read_cached_bytes: u64,
    /// Bytes of files that were written past the page cache.
    #[n(20)]
    pub written_direct_bytes: u64,
    /// Bytes of files that were written through it.
    #[n(21)]
    pub written_buffered_bytes: u64,
    /// Entries that the other end has failed with, as it has told this one.
    #[n(22)]
    pub failed_there: u64,
    /// Those of the entries that are directories.
    #[n(23)]
    pub directories: u64,
    /// Entries that were there already, of `entries`: `--sync`.
    #[n(24)]
    pub same: u64,
    /// Entries deleted: `--delete`.
    #[n(25)]
    pub deleted: u64,
    /// Files that were there under other names, of `entries`: `--find-moves`.
    #[n(26)]
    pub moved: u64,
    /// The size of all files that the sender met, also of those of which nothing was sent.
    #[n(27)]
    pub size_bytes: u64,
    /// What `--stats` tells.
    #[n(28)]
    pub stats: Stats,
    /// The tree is whole, and another one than was expected.
    #[n(29)]
    pub is_other: bool,
    /// The shortest round trip of a TCP lane, in microseconds; 0 where none was measured.
    #[n(30)]
    pub round_trip_us: u64,
    /// What of the pool could be in use at once.
    #[n(31)]
    pub buffer_bytes: u64,
    /// Networks that its TCP connections went by.
    #[n(32)]
    pub rails: u32,
}
