//! `rdpipe` with a launcher that runs the agent on this host: which words are hosts, where data goes, failures, and
//! what is left. `tests/rdpipe_hosts.rs` has real hosts and sshd.
//!
//! Every process that a pipeline starts inherits a mark in its environment. So "nothing is left" also covers
//! grandchildren in their own groups and sessions.

#[path = "../rig/mod.rs"]
mod rig;

mod data;
mod ends;
mod failures;
mod forms;
mod limits;
mod operators;
mod orphans;
mod told;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::*;

/// Maximum time for all processes to end, after any kind of end of the pipeline.
const GONE: Duration = Duration::from_secs(5);

/// Maximum time for a pipeline to end after a stage has failed: 2 s for stages that do not end by themselves, as much
/// again for those that SIGTERM does not end, and the delays of a busy machine.
const FAILED: Duration = Duration::from_secs(8);

/// Outcome of a pipeline.
struct Ran {
    ended: Ended,
    output: Vec<u8>,
}

impl Ran {
    /// Checks for exit code 0 and this output.
    #[track_caller]
    fn gives(&self, output: &[u8]) -> &Self {
        self.ended.expect(0);
        same(&self.output, output);
        self
    }

    /// Checks for exit code 0, this output, and nothing on standard error.
    #[track_caller]
    fn quietly_gives(&self, output: &str) -> &Self {
        assert_eq!((self.text().as_str(), self.ended.stderr.as_str()), (output, ""));
        self.gives(output.as_bytes())
    }

    #[track_caller]
    fn quietly_gives_bytes(&self, output: &[u8]) -> &Self {
        assert_eq!(self.ended.stderr, "");
        self.gives(output)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Checks for this exit code, and for exactly one line of rdpipe that contains all `parts`.
    #[track_caller]
    fn fails(&self, code: i32, parts: &[&str]) -> &Self {
        self.ended.expect(code);
        let ours = self.ended.stderr.lines().filter(|line| line.starts_with("rdpipe: "));
        let told = ours.filter(|line| parts.iter().all(|part| line.contains(part))).count();
        assert_eq!(told, 1, "one line of ours with {parts:?}: {}", self.ended.stderr);
        self
    }
}

impl Lab {
    fn rdpipe_by(&self, launcher: &str) -> Command {
        let mut command = self.command(rdpipe(), launcher, AGENT);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Starts rdpipe with these arguments and with its input and output piped.
    fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        Process::spawn(self.rdpipe_by("rsh").args(arguments).stdin(Stdio::piped()))
    }

    /// Runs a pipeline without input.
    fn pipe<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        run(self.rdpipe_by("rsh").args(arguments))
    }

    /// Runs a pipeline that is fed with `input`.
    fn pipe_with<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> Ran {
        let mut process = self.start(arguments);
        let fed = feed(process.stdin(), input.to_vec());
        let ran = finish(process, PATIENCE);
        fed.join().expect("no panic");
        ran
    }

    /// Waits until no agent and no process started by a command here is left.
    #[track_caller]
    fn deserted(&self, within: Duration) {
        none_marked(self.0.path(), within);
    }

    /// Like [`deserted`](Self::deserted), with a limit that counts from `start`.
    #[track_caller]
    fn deserted_since(&self, start: Instant, within: Duration) {
        none_since(start, within, || marked(self.0.path()));
    }

    /// Returns the contents of a file here, as text.
    #[track_caller]
    fn text_of(&self, name: &str) -> String {
        let path = self.join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns the hosts on which anything was launched, sorted.
    fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> = self.launches().into_iter().map(|(_, host, _)| host).collect();
        hosts.sort();
        hosts
    }

    /// Makes a launcher that cannot reach the host `away` and finds no agent on `bare`; `far` takes a while.
    fn patchy(&self) -> &'static str {
        self.script(
            "patchy",
            "case $1 in away) echo 'no route to away' >&2; exit 255;; bare) exit 127;; far) sleep 1;; esac\n\
             exec sh -c \"exec $2\"",
        );
        "patchy"
    }
}

fn run(command: &mut Command) -> Ran {
    finish(Process::spawn(command), PATIENCE)
}

/// Reads all output of a process, and waits for its end.
#[track_caller]
fn finish(mut process: Process, limit: Duration) -> Ran {
    let stdout = process.stdout();
    let pipe = pipe_name(&stdout);
    let output = drain(stdout);
    let ended = process.wait_for(limit);
    let output = read_whole(output, &pipe, ended.at + PATIENCE);
    Ran { ended, output }
}

/// Returns the report written by `--json=NAME`, which is a single object.
#[track_caller]
fn report(path: &Path) -> serde_json::Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}
