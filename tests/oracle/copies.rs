//! Runs one copy by cp and by rdcp, from every place to every place.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::lab::Lab;
use crate::rig::others::as_user_by;
use crate::rig::{AGENT, Ended, Process, in_shell, rdcp};
use crate::tree::USER;

/// Maximum duration of a copy. A copy that takes longer waits for something that never comes, and fails.
const LIMIT: Duration = Duration::from_secs(25);

/// Runs the command to its end, as [`USER`] or as the user running the test.
pub fn limited(command: &Command, directory: &Path, is_users: bool, umask: u32, stdout: Stdio) -> Ended {
    let limit = format!("timeout -k 1 {}", LIMIT.as_secs());
    let run = match is_users && rustix::process::geteuid().is_root() {
        true => as_user_by(&limit, USER, directory),
        false => format!("exec {limit} \"$@\""),
    };
    let mut shell = in_shell(&format!("umask {umask:03o}; {run}"), command);
    shell.current_dir(directory).stdin(Stdio::null()).stdout(stdout);
    Process::spawn(&mut shell).wait()
}

/// Which hosts hold the sources and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Within,
    Push,
    Pull,
    Between,
    /// The first source is here, the next on another host, and so on. The destination is here.
    Mixed,
}

pub const WAYS: &[Way] = &[Way::Within, Way::Push, Way::Pull, Way::Between, Way::Mixed];

impl Way {
    pub fn source(self, number: usize) -> &'static str {
        match self {
            Way::Within | Way::Push => "",
            Way::Mixed if number.is_multiple_of(2) => "",
            Way::Pull | Way::Between | Way::Mixed => "h1:",
        }
    }

    pub fn destination(self) -> &'static str {
        match self {
            Way::Within | Way::Pull | Way::Mixed => "",
            Way::Push => "h1:",
            Way::Between => "h2:",
        }
    }
}

/// How the names on a command line are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// `-T`
    Exact,
    /// `-t`
    Into,
    /// Without `-r`: only files and the targets of links.
    Files,
}

/// A command line without its program and hosts. Paths are absolute.
#[derive(Clone, Debug)]
pub struct Line {
    pub form: Form,
    pub sources: Vec<OsString>,
    pub destination: OsString,
    /// Whether [`USER`] makes the copy instead of root.
    pub is_users: bool,
    pub umask: u32,
}

impl Line {
    fn arguments(&self, source: impl Fn(usize) -> &'static str, destination: &str) -> Vec<OsString> {
        let on = |host: &str, path: &OsString| {
            let mut text = OsString::from(host);
            text.push(path);
            text
        };
        let mut sources: Vec<OsString> =
            self.sources.iter().enumerate().map(|(number, path)| on(source(number), path)).collect();
        let destination = on(destination, &self.destination);
        match self.form {
            Form::Plain | Form::Files => sources.push(destination),
            Form::Exact => sources.extend(["-T".into(), destination]),
            Form::Into => sources.extend(["-t".into(), destination]),
        }
        sources
    }

    fn recursion(&self) -> Option<&'static str> {
        (self.form != Form::Files).then_some("-r")
    }

    /// Runs the copy with cp.
    pub fn by_cp(&self, lab: &Lab, options: &[&str]) -> Ended {
        let mut command = Command::new("cp");
        // What it says is compared.
        command
            .env("LC_ALL", "C")
            .arg(if self.form == Form::Files { "--preserve=all" } else { "-a" })
            .args(options)
            .args(self.arguments(|_| "", ""));
        limited(&command, lab.0.path(), self.is_users, self.umask, Stdio::null())
    }

    /// Runs the copy with rdcp.
    pub fn by_rdcp(&self, lab: &Lab, way: Way) -> Ended {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(self.recursion()).args(["-q", "--encrypt", "never"]);
        command.args(self.arguments(|number| way.source(number), way.destination()));
        limited(&command, lab.0.path(), self.is_users, self.umask, Stdio::null())
    }

    /// Returns the command line as a user would write it.
    pub fn shown(&self, way: Way) -> String {
        let arguments = self.arguments(|number| way.source(number), way.destination());
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let user = if self.is_users { format!(", as user {USER}") } else { String::new() };
        format!("rdcp {} {}   (umask {:03o}{user})", self.recursion().unwrap_or_default(), words.join(" "), self.umask)
    }
}
