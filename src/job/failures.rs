//! Failures of hosts, and lines about hosts and their paths, for a person.

use std::ffi::OsStr;

use super::Job;
use crate::agent::words::ended_by;
use crate::control::frames::Fault;
use crate::fault::{Exit, Failure, escaped, os_number, shown_path};

impl Job {
    /// Returns the failure for what a host has reported.
    pub(super) fn failure(&self, host: usize, fault: &Fault) -> Failure {
        let host = &*self.hosts[host].name;
        let label = escaped(host);
        let mut exit = Exit::from_code(fault.exit);
        if let (Exit::Signal(number), false) = (exit, host.is_empty()) {
            return Exit::LinkLost.with(format!("{label} {}", ended_by(number))).on(host);
        }
        if exit == Exit::SinkClosed || (matches!(exit, Exit::Signal(_)) && fault.detail.is_empty()) {
            return Failure::silent(exit);
        }
        if fault.exit == 0 {
            exit = Exit::Protocol;
        }
        let detail = escaped(OsStr::new(&fault.detail));
        if fault.what.is_empty() {
            let is_there = !host.is_empty() && fault.own;
            return exit.with(if is_there { there(&label, &detail) } else { detail });
        }
        // Such a detail is a sentence about the path, and not a reason why something failed.
        let is_sentence = detail.starts_with("was not ");
        let what = if is_sentence { String::new() } else { format!("{} ", escaped(OsStr::new(&fault.what))) };
        let mut line = format!("{what}{}", name_at(host, &fault.path));
        if fault.errno != 0 {
            line += &format!(": {}", os_number(fault.errno));
        }
        if !detail.is_empty() {
            let joint = if what.is_empty() {
                " "
            } else if fault.errno != 0 && detail.starts_with("cannot ") {
                // This is one more reason, and not what the file is for.
                "; "
            } else {
                ": "
            };
            line += &format!("{joint}{detail}");
        }
        exit.with(line).about(host, &fault.path, fault.errno)
    }

    /// Returns the failure for a host that is no longer heard.
    pub(super) fn lost(&self, host: usize) -> Failure {
        let (label, launcher) = (self.hosts[host].label(), self.setup.launcher_name());
        let line = if self.hosts[host].is_silent {
            format!(
                "lost the agent on {label}: no sign of life for a minute or more; it, {launcher} or the host is stopped"
            )
        } else {
            format!("lost the agent on {label}: it or {launcher} exited")
        };
        Exit::LinkLost.with(line).on(&self.hosts[host].name)
    }

    /// Returns the failure for a host that has sent what it must not send.
    pub(super) fn unexpected(&self, host: usize) -> Failure {
        let label = self.hosts[host].label();
        Exit::Protocol.with(format!("the agent on {label} broke the protocol"))
    }
}

/// Returns a sentence of another host with the host's name: as part of the file's name if the sentence says which file
/// could not be opened, or else in front.
fn there(label: &str, sentence: &str) -> String {
    let of_file = |what: &str| sentence.strip_prefix(what).filter(|file| file.starts_with('/'));
    let named = ["cannot read ", "cannot write "].into_iter().find_map(|what| Some((what, of_file(what)?)));
    named.map_or_else(|| format!("{label}: {sentence}"), |(what, file)| format!("{what}{label}:{file}"))
}

/// Returns the name of a path for a person. `host` is empty for this host.
pub(crate) fn name_at(host: &OsStr, path: &[u8]) -> String {
    let path = shown_path(path);
    match (host.is_empty(), path.strip_prefix("./")) {
        (true, _) => path,
        (false, Some(below)) => format!("{}:{below}", escaped(host)),
        (false, None) => format!("{}:{path}", escaped(host)),
    }
}

/// Returns a line about a host, with the host's name in front unless the line has it already.
pub(super) fn line_of(label: &str, line: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || "-_".contains(character);
    let is_named = line.match_indices(label).any(|(at, _)| {
        let (before, behind) = (&line[..at], &line[at + label.len()..]);
        !before.ends_with(|last| is_part(last) || last == '.')
            && !behind.starts_with(is_part)
            && !behind.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_part))
    });
    if is_named { line.to_owned() } else { format!("{label}: {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_host_names_it_once() {
        for (label, line, told) in [
            ("h1", "lost h1; the others go on", "lost h1; the others go on"),
            ("h1", "h1:/x: cannot be written", "h1:/x: cannot be written"),
            ("h1.net", "lost h1.net.", "lost h1.net."),
            ("h1", "h10 does not answer", "h1: h10 does not answer"),
            ("h1", "lost h1.net", "h1: lost h1.net"),
            ("a", "it does not answer", "a: it does not answer"),
        ] {
            assert_eq!(line_of(label, line), told);
        }
    }

    #[test]
    fn a_file_of_another_host_is_named_in_one_form() {
        for (sentence, told) in [
            ("cannot write /root/: Is a directory (errno 21)", "cannot write h1:/root/: Is a directory (errno 21)"),
            ("cannot read /x", "cannot read h1:/x"),
            ("cannot write standard output", "h1: cannot write standard output"),
            ("cannot start a thread", "h1: cannot start a thread"),
        ] {
            assert_eq!(there("h1", sentence), told);
        }
    }

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
