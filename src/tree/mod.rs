//! Trees: the walk that sends a tree, the sink that receives one, and both joined for copies within a host.

mod ahead;
#[cfg(test)]
mod backup_tests;
pub mod check;
mod contents;
pub mod count;
#[cfg(test)]
mod delta_tests;
mod digest_cache;
pub mod entries;
pub mod first;
#[cfg(test)]
mod generations_tests;
pub mod local;
pub mod manifest;
mod metadata;
#[cfg(test)]
mod moves_tests;
mod names;
mod owners;
pub mod packed;
pub mod patterns;
#[cfg(test)]
mod plain_tests;
pub mod progress;
pub mod proof;
#[cfg(test)]
mod rights_tests;
mod root;
pub mod sink;
pub mod source;
pub mod stats;
#[cfg(test)]
pub(crate) mod sync_tests;
#[cfg(test)]
mod unfinished_tests;
pub mod walk;
pub mod watch;

pub use root::{Only, Root, is_itself};

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::IoFact;
use rustix::fs::{AtFlags, FileType, Stat, statat};
use rustix::io::Errno;

use crate::fault::shown_path;
use crate::fs::{identity, io_fact, plain_fact};
use crate::options::TreeOptions;

/// Whether every further file would meet the same failure to write: the destination is full, over its quota, read-only
/// or broken.
fn stops_everything(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// Whether a symbolic link in `directory` with this target leads to what `old` describes, which is not a link itself.
/// Put in the place of `old`, the link would lead to itself, and the old contents would be lost.
fn leads_to<P: rustix::path::Arg>(directory: BorrowedFd<'_>, target: P, old: &Stat) -> bool {
    FileType::from_raw_mode(old.st_mode) != FileType::Symlink
        && statat(directory, target, AtFlags::empty()).is_ok_and(|found| identity(&found) == identity(old))
}

/// Whether a symbolic link leads out of its tree, as rsync sees it. The link lies `depth` directories deep. An absolute
/// target leads out. A target with `..` after any other name, or with more than one `..` at its end, might.
fn leads_out(target: &[u8], depth: usize) -> bool {
    let (mut rest, mut up) = (target, 0);
    while let Some(below) = rest.strip_prefix(b"../") {
        rest = &below[below.iter().take_while(|&&byte| byte == b'/').count()..];
        up += 1;
    }
    let may_return = rest.windows(4).any(|part| part == b"/../") || (target.len() > 3 && target.ends_with(b"/.."));
    target.is_empty() || target.starts_with(b"/") || may_return || up + usize::from(rest == b"..") > depth
}

/// Returns the depth of a link below `levels` levels, including the top, as rsync counts it. With `--sync`, a directory
/// that is copied under its own name counts as a directory of the tree, like those below it.
fn depth_of_link(options: &TreeOptions, levels: usize, is_renamed: bool) -> usize {
    levels.saturating_sub(if options.sync && !options.contents && !is_renamed { 1 } else { 2 })
}

/// Why an entry is not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    System(Errno),
    /// With an explanation.
    Explained(Errno, &'static str),
    /// About this path, which is not the entry's, with an explanation.
    At(Errno, Vec<u8>, String),
    Detail(&'static str),
    /// The destination does not distinguish the name from another that is copied, which may be there already.
    TakenFor(Option<Vec<u8>>),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl Fault {
    fn errno(&self) -> Option<Errno> {
        match *self {
            Self::System(error) | Self::Explained(error, _) | Self::At(error, ..) => Some(error),
            Self::Detail(_) | Self::TakenFor(_) => None,
        }
    }

    fn into_fact(self, path: &OsStr) -> IoFact {
        match self {
            Self::System(error) => io_fact(path, error),
            Self::Explained(error, detail) => IoFact { detail: detail.into(), ..io_fact(path, error) },
            Self::At(error, path, why) => {
                IoFact { detail: why.into_bytes(), ..io_fact(OsStr::from_bytes(&path), error) }
            }
            Self::Detail(detail) => plain_fact(path, detail),
            Self::TakenFor(other) => {
                let other = other.map_or("another name in this copy".to_owned(), |name| shown_path(&name));
                plain_fact(
                    path,
                    &format!("this file system cannot distinguish it from {other}; rename one of them at the source"),
                )
            }
        }
    }
}

/// What is reported of a temporary name that the user asked for.
const IS_LEFTOVER: &str = "is a partial file of an interrupted copy, skipped; copy the file itself again";

/// Why a file is not written in place.
const HAS_OTHER_NAMES: &str = "has other hard links, which --in-place would change too; copy without --in-place";

/// Why an entry with an unknown critical extension is not made.
const IS_UNKNOWN: &str = "has required metadata that this version does not support; install the sender's version here";

/// What a directory is said to do in which not everything was deleted, before how much.
pub(crate) const KEEPS_SPARED: &str = "--max-delete keeps";

/// What is reported of an entry that is no longer there when its turn comes, after its path. It is no failure.
pub(crate) const HAS_VANISHED: &str = "disappeared before it was copied";

/// Failure of DST if nothing was deleted there at the end. The caller does not count it as an entry that was not copied.
pub(crate) const NOT_PRUNED: &str = "was not pruned: nothing was deleted, because not everything was copied";

/// Why nothing is deleted.
const SOURCE_IS_EMPTY: &str = "was not emptied: the source is empty (not mounted?); use --force-empty to delete anyway";

/// Why a further name of an entry is not made.
const FIRST_NAME_FAILED: &str = "is a hard link to an entry that was not copied";
