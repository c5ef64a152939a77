//! Files with several names: which have been copied, and where, so that their further names become hard links.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard};

use super::entry::Entry;
use super::tree::{DirectoryRef, Node};
use crate::fs::Identity;

/// Where a file has been copied to.
#[derive(Clone, Debug)]
pub(super) struct Original {
    pub(super) node: Arc<Node>,
    pub(super) name: CString,
}

/// What to do with a name.
pub(super) enum Claim {
    /// It is the first: copy it, then call [`Links::settle`].
    Copy,
    /// The first is being copied; who copies it takes care of this one too.
    Waits,
    /// The first has been copied.
    Link(Original),
}

enum State<'e> {
    Copying { waiting: Vec<(DirectoryRef<'e>, Entry)>, left: u64 },
    Copied { original: Original, left: u64 },
}

/// All files of which several names may be met. A file is forgotten when all of its names have been.
#[derive(Default)]
pub(super) struct Links<'e>(Mutex<HashMap<Identity, State<'e>>>);

impl<'e> Links<'e> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, State<'e>>> {
        self.0.lock().expect("no thread panics with the links locked")
    }

    /// Takes in one of the `names` (2 or more) that a file has.
    pub(super) fn claim(&self, id: Identity, names: u64, directory: &DirectoryRef<'e>, entry: &Entry) -> Claim {
        let mut files = self.lock();
        match files.get_mut(&id) {
            None => {
                files.insert(id, State::Copying { waiting: Vec::new(), left: names - 1 });
                Claim::Copy
            }
            Some(State::Copying { waiting, .. }) => {
                waiting.push((directory.clone(), entry.clone()));
                Claim::Waits
            }
            Some(State::Copied { original, left }) => {
                let original = original.clone();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    files.remove(&id);
                }
                Claim::Link(original)
            }
        }
    }

    /// The first name has been copied to `original`, or could not be. Returns the names that waited for it, which have to
    /// be claimed again.
    pub(super) fn settle(&self, id: Identity, original: Option<Original>) -> Vec<(DirectoryRef<'e>, Entry)> {
        let mut files = self.lock();
        let Some(State::Copying { waiting, left }) = files.remove(&id) else { return Vec::new() };
        if let Some(original) = original {
            files.insert(id, State::Copied { original, left });
        }
        waiting
    }
}
