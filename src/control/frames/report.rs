//! How things end: failures as facts, and results of sessions.

use minicbor::{Decode, Encode};
use rd_proto::control::IoFact;

use super::MESSAGE_BYTES_MAX;
use crate::engine::Figures;
use crate::fault::Exit;
use crate::tree::stats::TreeFigures;

/// Maximum number of failures in one [`super::Message::EntriesFailed`]. It and the maximum sizes of a failure's path
/// and detail are chosen so that all failures together fit in a message.
pub const FAULTS_MAX: usize = 40;
const FAULT_PATH_BYTES_MAX: usize = 4096;
const FAULT_DETAIL_BYTES_MAX: usize = 1024;
const _: () = assert!(FAULTS_MAX * (FAULT_PATH_BYTES_MAX + FAULT_DETAIL_BYTES_MAX + 256) < MESSAGE_BYTES_MAX);

/// A failure, as facts from which a sentence is made.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fault {
    /// The exit code that the failure leads to.
    #[n(0)]
    pub exit: u8,
    /// What was attempted with a file, such as "cannot read". Empty if the failure is not about a file.
    #[n(1)]
    pub what: String,
    /// Path of the file, on the host of the end that reports the failure.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// The error number; 0 if there is none.
    #[n(3)]
    pub errno: i32,
    /// Further details for the user; the whole sentence if the failure is not about a file.
    #[n(4)]
    pub detail: String,
    /// Whether the failure happened at this end. If not, this end has learned of it from the other.
    #[n(5)]
    pub own: bool,
}

impl Fault {
    /// A failure about a file of this host. If the path is longer than any system call accepts, only its end is kept.
    pub fn io(exit: u8, what: &str, fact: &IoFact) -> Self {
        let detail =
            String::from_utf8_lossy(&fact.detail[..fact.detail.len().min(FAULT_DETAIL_BYTES_MAX / 3)]).into_owned();
        let path = end_of(fact.path.clone(), FAULT_PATH_BYTES_MAX);
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

    /// An entry of this host that could not be removed.
    pub fn unremovable(fact: &IoFact) -> Self {
        Self::io(Exit::Source.code(), "cannot remove", fact)
    }

    /// A directory of this host in which not everything could be deleted.
    pub fn undeleted(fact: &IoFact) -> Self {
        Self::io(Exit::Destination.code(), "cannot delete all in", fact)
    }

    /// Whether the sending end of a broadcast's hop no longer keeps the part of the stream
    /// that the other end asked for.
    pub fn is_not_kept(&self) -> bool {
        self.own && self.path.is_empty() && self.errno == libc::ESTALE
    }

    /// The received data differ from the source's.
    pub fn misled(detail: impl Into<String>) -> Self {
        Self { errno: libc::EBADMSG, ..Self::plain(Exit::Integrity.code(), detail) }
    }

    /// Whether this end has found that the received data differ from the source's.
    pub fn is_misled(&self) -> bool {
        self.own && self.exit == Exit::Integrity.code() && self.path.is_empty() && self.errno == libc::EBADMSG
    }

    /// A failure that is not about a file, as a sentence.
    pub fn plain(exit: u8, detail: impl Into<String>) -> Self {
        Self { exit, what: String::new(), path: Vec::new(), errno: 0, detail: detail.into(), own: true }
    }
}

/// Returns the end of a path that is too long, or the whole path.
pub(crate) fn end_of(mut path: Vec<u8>, bytes_max: usize) -> Vec<u8> {
    if path.len() > bytes_max {
        let dots = b"...";
        path.drain(..path.len() - bytes_max + dots.len());
        path.splice(..0, *dots);
    }
    path
}

/// How the session of an end ended.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Report {
    /// The failure that ended the session, if any.
    #[n(0)]
    pub fault: Option<Fault>,
    /// Description of the lane on which payload began, for the user.
    #[n(1)]
    pub route: String,
    /// What the session transferred. The counters are of payload that the receiver has acknowledged.
    #[n(2)]
    pub figures: Figures,
    /// What happened to a tree. The first entries that failed have been named in [`super::Message::EntriesFailed`].
    #[n(3)]
    pub tree: TreeFigures,
}

impl Report {
    /// Whether the end has lost its other end. An agent that hears nothing from its caller after this takes the caller
    /// for lost as well.
    pub fn has_lost_link(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.exit == Exit::LinkLost.code())
    }

    /// Returns what the session transferred. For a tree, only the contents of its files count, not the records that
    /// describe them.
    pub fn moved(&self) -> Figures {
        let mut figures = self.figures.clone();
        if self.tree.amount.entries > 0 {
            figures.counters.bytes = self.tree.amount.bytes;
        }
        figures
    }
}
