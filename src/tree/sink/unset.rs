//! Metadata that could not be set on entries whose data is all there. One line covers all entries with the same
//! failure, because there may be as many as the tree has entries.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::control::IoFact;
use rustix::io::Errno;

use super::Shared;
use crate::fs::{accounts, io_fact};
use crate::tree::metadata::{Applied, Unset, parts};
use crate::tree::stops_everything;

/// Metadata that could not be set on an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// What failed, for example "cannot set the owner of".
    pub what: String,
    /// The first entry, the reason, and the remedy.
    pub fact: IoFact,
}

/// Failures by kind of metadata and error number.
pub(super) type AllLacking = BTreeMap<(u8, i32), Lacking>;

impl Shared {
    /// Records that metadata could not be set on an entry that was published all the same.
    pub(super) fn note(&self, applied: Applied, path: impl FnOnce() -> Vec<u8>) {
        self.note_unsupported(applied);
        let Some(unset) = applied.unset else { return };
        // A group over its quota is no reason to stop: further files may have another group, or be given none.
        let is_of_group = unset.parts == parts::OWNER && unset.error == Errno::DQUOT;
        if stops_everything(unset.error) && !is_of_group {
            return self.report(&path(), unset.error);
        }
        let mut failures = crate::locked(&self.failures);
        failures.count += 1;
        failures.lacking.entry((unset.parts, unset.error.raw_os_error())).or_insert_with(|| lacking(unset, &path()));
    }

    pub(super) fn note_unsupported(&self, applied: Applied) {
        self.counts.without_xattrs.fetch_add(u64::from(applied.is_unsupported), Relaxed);
    }
}

fn lacking(unset: Unset, path: &[u8]) -> Lacking {
    let (mut words, mut options) = (Vec::new(), Vec::new());
    for (part, word, option) in [
        (parts::OWNER, "owner", "--no-owner"),
        (parts::ACL, "ACL", "--no-xattrs"),
        (parts::ATTRIBUTES, "attributes", "--no-xattrs"),
        (parts::MODE, "mode", "--no-mode"),
        (parts::TIMES, "times", "--no-times"),
    ] {
        if unset.parts & part != 0 {
            words.push(word);
            options.push(option);
        }
    }
    options.dedup();
    let own = rustix::process::geteuid();
    let whose = if own.is_root() || own.as_raw() == unset.owner {
        String::new()
    } else {
        let user = accounts::shown_user(unset.owner).unwrap_or_else(|| format!("user {}", unset.owner));
        format!("it belongs to {user}; ")
    };
    let mut fact = io_fact(OsStr::from_bytes(path), unset.error);
    if !fact.detail.is_empty() {
        fact.detail.extend(b"; ");
    }
    fact.detail.extend(format!("{whose}its data was copied; use {} to skip this", options.join(" ")).bytes());
    Lacking { what: format!("cannot set {} of", words.join(" and ")), fact }
}
