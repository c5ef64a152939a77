//! One copy, by cp and by rdcp from and to everywhere.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::lab::Lab;
use crate::rig::{AGENT, Ended, Process, in_shell, rdcp};
use crate::tree::USER;

/// The longest that a copy takes; a longer one waits for something that does not come, and fails.
const LIMIT: Duration = Duration::from_secs(25);

/// Runs it to its end, as [`USER`] or as who we are.
pub fn limited(command: &Command, directory: &Path, is_users: bool, umask: u32, stdout: Stdio) -> Ended {
    let is_users = is_users && rustix::process::geteuid().is_root();
    let user = format!("setpriv --reuid={USER} --regid={USER} --clear-groups --bounding-set=-all -- ");
    let run = format!("exec timeout -k 1 {} {}\"$@\"", LIMIT.as_secs(), if is_users { &user } else { "" });
    let run = match closed().filter(|_| is_users) {
        Some(closed) => reachable(closed, directory, &run),
        None => run,
    };
    let mut shell = in_shell(&format!("umask {umask:03o}; {run}"), command);
    shell.current_dir(directory).stdin(Stdio::null()).stdout(stdout);
    Process::spawn(&mut shell).wait()
}

/// The first directory on the way to this project that others cannot enter: root's home, mostly.
fn closed() -> Option<&'static Path> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_closed = |path: &&Path| std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o001 == 0);
    project.ancestors().filter(is_closed).last()
}

/// Runs it where this directory has nothing in it but this project, and all may enter it.
fn reachable(closed: &Path, directory: &Path, run: &str) -> String {
    let quoted = |path: &Path| shell_words::quote(path.to_str().expect("UTF-8")).into_owned();
    let (project, closed) = (quoted(Path::new(env!("CARGO_MANIFEST_DIR"))), quoted(closed));
    let inner = format!(
        "exec 3<{project} && mount -t tmpfs -o mode=755 none {closed} && mkdir -p {project} && \
         mount --no-canonicalize --bind /proc/self/fd/3 {project} && cd {} && exec 3<&- && {run}",
        quoted(directory)
    );
    format!("exec unshare --mount --propagation private sh -ec {} sh \"$@\"", shell_words::quote(&inner))
}

/// Where the sources and the destination are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Within,
    Push,
    Pull,
    Between,
    /// The first source here, the next on another host, and so on; the destination here.
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

/// How the names on a command line are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// `-T`
    Exact,
    /// `-t`
    Into,
    /// Without `-r`: files, and what links lead to.
    Files,
}

/// A command line, but for what copies. Paths are absolute.
#[derive(Clone, Debug)]
pub struct Line {
    pub form: Form,
    pub sources: Vec<OsString>,
    pub destination: OsString,
    /// As [`USER`], not as root.
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

    /// What cp makes of it.
    pub fn by_cp(&self, lab: &Lab, options: &[&str]) -> Ended {
        let mut command = Command::new("cp");
        command
            .arg(if self.form == Form::Files { "--preserve=all" } else { "-a" })
            .args(options)
            .args(self.arguments(|_| "", ""));
        limited(&command, lab.0.path(), self.is_users, self.umask, Stdio::null())
    }

    /// What rdcp makes of it.
    pub fn by_rdcp(&self, lab: &Lab, way: Way) -> Ended {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(self.recursion()).args(["-q", "--encrypt", "never"]);
        command.args(self.arguments(|number| way.source(number), way.destination()));
        limited(&command, lab.0.path(), self.is_users, self.umask, Stdio::null())
    }

    /// As somebody would write it.
    pub fn shown(&self, way: Way) -> String {
        let arguments = self.arguments(|number| way.source(number), way.destination());
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let user = if self.is_users { format!(", as user {USER}") } else { String::new() };
        format!("rdcp {} {}   (umask {:03o}{user})", self.recursion().unwrap_or_default(), words.join(" "), self.umask)
    }
}
