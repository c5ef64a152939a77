//! Where a tree is written, and how.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::options::TreeOptions;
use crate::tree::entries::EntryStream;
use crate::tree::progress::Progress;
use crate::tree::proof::Expected;

/// The names that entries may have at the top. The sender is not trusted to keep to them.
#[derive(Clone, Debug)]
pub enum Names {
    /// Any: tests of single records, which nobody has asked for.
    #[cfg(test)]
    Any,
    /// The single entry at the top gets this name instead of its own. With `.`, it must be a directory, and what is in it
    /// appears in the destination itself, which gets its metadata.
    Only(Vec<u8>),
    /// These and no others.
    Among(BTreeSet<Vec<u8>>),
}

/// Where a tree is written, and how.
#[derive(Clone)]
pub struct Destination {
    /// What of it, and how. If it is not recursive, nothing but regular files may appear, and no directories: the sender
    /// was asked for the files that links lead to.
    pub options: TreeOptions,
    /// The names at the top.
    pub names: Names,
    /// What has been made and written is counted here as well.
    pub progress: Arc<Progress>,
    /// Where each entry is reported to the caller, if at all.
    pub entries: Option<Arc<EntryStream>>,
    /// The sender is this process, and reads as this user: what it says of owners is so; large files are not resumed, as
    /// comparing them takes longer than copying, and may share their blocks with their sources.
    pub is_local: bool,
    /// What comes is proven only at the end: before [`super::TreeSink::finish`] a directory at the top that was not there, a large
    /// file at the top, and a file that is all of the tree, get no names.
    pub awaits_proof: bool,
    /// What the tree must be; proven likewise.
    pub expected: Option<Expected>,
}

impl Destination {
    /// That of a tree with these options, under these names.
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
