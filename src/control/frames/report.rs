//! How things end: failures as facts, and what a session came to.

use minicbor::{Decode, Encode};
use rd_proto::control::IoFact;

use super::MESSAGE_BYTES_MAX;
use crate::engine::Figures;
use crate::fault::Exit;
use crate::tree::stats::TreeFigures;

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
    /// The lane that payload began on, for a person.
    #[n(1)]
    pub route: String,
    /// What it has moved. The counters are of payload that the receiver has answered for.
    #[n(2)]
    pub figures: Figures,
    /// What became of a tree. [`super::Message::EntriesFailed`] has named the first of those that failed.
    #[n(3)]
    pub tree: TreeFigures,
}

impl Report {
    /// What it has moved: of a tree, what is in its files counts, not what tells about them.
    pub fn moved(&self) -> Figures {
        let mut figures = self.figures.clone();
        if self.tree.amount.entries > 0 {
            figures.counters.bytes = self.tree.amount.bytes;
        }
        figures
    }
}
