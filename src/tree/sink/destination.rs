//! Where a tree is written, and how.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::options::TreeOptions;
use crate::tree::entries::EntryStream;
use crate::tree::progress::Progress;
use crate::tree::proof::Expected;

/// Names that entries may have at the top. The sender is not trusted to keep to them.
#[derive(Clone, Debug)]
pub enum Names {
    /// Any name, for tests that send single records.
    #[cfg(test)]
    Any,
    /// The single entry at the top gets this name instead of its own. If the name is `.`, the entry must be a
    /// directory: its contents appear in the destination itself, which gets its metadata.
    Only(Vec<u8>),
    /// Only these names.
    Among(BTreeSet<Vec<u8>>),
}

/// Where a tree is written, and how.
#[derive(Clone)]
pub struct Destination {
    /// What is copied, and how. Unless `recursive` is set, only regular files may appear, no directories, because the
    /// sender was asked for the files that links lead to.
    pub options: TreeOptions,
    /// Names allowed at the top.
    pub names: Names,
    /// Also counts the entries made and the bytes written.
    pub progress: Arc<Progress>,
    /// Where each entry is reported to the caller, if anywhere.
    pub entries: Option<Arc<EntryStream>>,
    /// Whether the sender is this process, reading as this user. Then its owners are taken as they are. Large files are
    /// not resumed, because comparing takes longer than copying, and may share their blocks with their sources.
    pub is_local: bool,
    /// Whether the tree is proven only at the end. Until [`super::TreeSink::finish`], some entries get no final name: a
    /// directory at the top that did not exist, a large file at the top, and a file that is the whole tree. Nothing that
    /// exists is compared, because nobody waits for the answers.
    pub awaits_proof: bool,
    /// What the tree must be, if known. This is also proven at the end.
    pub expected: Option<Expected>,
}

impl Destination {
    /// Returns the destination of a tree with these options and top names.
    pub fn new(options: TreeOptions, names: Names) -> Self {
        Self {
            options,
            names,
            progress: Arc::default(),
            entries: None,
            is_local: false,
            awaits_proof: false,
            expected: None,
        }
    }
}

#[cfg(test)]
impl From<TreeOptions> for Destination {
    fn from(options: TreeOptions) -> Self {
        Self::new(options, Names::Any)
    }
}

#[cfg(test)]
impl Default for Destination {
    fn default() -> Self {
        TreeOptions::default().into()
    }
}
