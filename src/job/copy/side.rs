//! The hosts of a copy, as the caller knows them.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use crate::agent::end::End;
use crate::control::frames::Fault;
use crate::fault::{Exit, Failure, escaped, os_number, shown_path};
use crate::job::launching::{News, Post, Voice};

/// One host of a copy.
pub(super) struct Side {
    /// As the launcher is given it; empty for this host.
    pub(super) host: OsString,
    pub(super) voice: Voice<End>,
    /// Its agent is not heard any more.
    pub(super) gone: bool,
    /// Entries of this session that it has named, since it failed with them.
    pub(super) named: u64,
}

impl Side {
    pub(super) fn new(host: OsString, voice: Voice<End>) -> Self {
        Self { host, voice, gone: false, named: 0 }
    }

    /// One that is in this process. What it says is posted under its number.
    pub(super) fn here(number: usize, post: Post) -> Self {
        let end = End::new(Arc::new(move |message| drop(post.send((number, News::Message(message))))), false);
        Self::new(OsString::new(), Voice::Here(end))
    }

    /// A path of this side's, for a person.
    pub(super) fn name(&self, path: &[u8]) -> String {
        name_at(&self.host, path)
    }

    /// The side, for a person.
    pub(super) fn label(&self) -> String {
        if self.host.is_empty() { "this host".to_owned() } else { escaped(&self.host) }
    }

    /// What went wrong there, for a person.
    pub(super) fn failure(&self, fault: &Fault) -> Failure {
        told(&self.host, fault)
    }
}

fn name_at(host: &OsStr, path: &[u8]) -> String {
    let path = shown_path(path);
    match (host.is_empty(), path.strip_prefix("./")) {
        (true, _) => path,
        (false, Some(below)) => format!("{}:{below}", escaped(host)),
        (false, None) => format!("{}:{path}", escaped(host)),
    }
}

/// What went wrong on a host, for a person; the host is empty where it is this one.
pub(crate) fn told(host: &OsStr, fault: &Fault) -> Failure {
    let label = escaped(host);
    let mut exit = Exit::from_code(fault.exit);
    if let (Exit::Signal(number), false) = (exit, host.is_empty()) {
        return Failure::new(Exit::LinkLost, format!("{label} was ended by signal {number}"));
    }
    if exit == Exit::SinkClosed || (matches!(exit, Exit::Signal(_)) && fault.detail.is_empty()) {
        return Failure::silent(exit);
    }
    if fault.exit == 0 {
        exit = Exit::Protocol;
    }
    let detail = escaped(OsStr::new(&fault.detail));
    if fault.what.is_empty() {
        let told_by = if host.is_empty() || !fault.own { String::new() } else { format!("{label}: ") };
        return Failure::new(exit, format!("{told_by}{detail}"));
    }
    let mut line = format!("{} {}", escaped(OsStr::new(&fault.what)), name_at(host, &fault.path));
    if fault.errno != 0 {
        line += &format!(": {}", os_number(fault.errno));
    }
    if !detail.is_empty() {
        line += &format!(": {detail}");
    }
    Failure::new(exit, line).about(host, &fault.path, fault.errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_as_they_would_be_typed() {
        for (host, path, name) in [
            ("", "./x", "./x"),
            ("", "a//b", "a/b"),
            ("h", "./x", "h:x"),
            ("h", "/tmp//new//x", "h:/tmp/new/x"),
            ("u@h", ".", "u@h:."),
        ] {
            assert_eq!(name_at(OsStr::new(host), path.as_bytes()), name);
        }
    }
}
