//! A drill for `rddoctor --drill`: makes faults on purpose, in copies of its own, and checks that each fault is noticed
//! and survived.
//!
//! The copies go through the launcher's connection, which passes this process, so the drill can damage data on its way.
//! No other process is touched, and the code of the ends knows nothing of the drill. All files are in two directories
//! of the drill, one on each host where temporary files are, and are removed at the end. If the directory on the other
//! host cannot be removed, the user is told. Every wait has a deadline.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;
use rand_core::Rng as _;

use crate::agent::words;
use crate::control::frames::{self, Action, Input, Message, Output, Stage};
use crate::control::tunnel::Passing;
use crate::engine::link::rng;
use crate::fault::{Exit, Failure, escaped};
use crate::job::hop::Side;
use crate::job::{HERE, Job, LOOK_AGAIN, STOP_MAX, Setup, Update};
use crate::measure::{Finding, Fix};
use crate::options::TransferOptions;

/// Size of the file that is copied, the rate, and the number of bytes after which a fault is made: in the middle of
/// half a second.
const FILE_BYTES: usize = 4 << 20;
const RATE_BYTES: u64 = 8 << 20;
const FAULT_AFTER_BYTES: u64 = 1 << 20;

/// Minimum size of a message with payload.
const PAYLOAD_BYTES_MIN: usize = 4 << 10;

/// How long a copy, or a command on the other host, may take.
const COPY_MAX: Duration = Duration::from_secs(40);
const COMMAND_MAX: Duration = Duration::from_secs(10);

/// Report of a failed drill: part of a file is visible under its final name.
const HALF: &str = "a partial file is left under the final name; ";

/// A file that is always full.
const FULL: &str = "/dev/full";

/// The damage done to a copy on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// A connection is closed.
    Cut,
    /// A bit is flipped.
    Flip,
    /// Nothing is damaged: this marks the moment for another fault.
    Nothing,
}

/// Damages a copy, once.
pub(in crate::job) struct Tamper {
    damage: Damage,
    passed_bytes: u64,
    is_done: bool,
}

impl Tamper {
    fn new(damage: Damage) -> Self {
        Self { damage, passed_bytes: 0, is_done: false }
    }

    /// Returns the message that the other end gets instead, and the message that the sender gets back.
    fn pass(&mut self, from: Side, message: Message) -> (Message, Option<Message>) {
        let Message::TunnelData { id, mut bytes } = message else { return (message, None) };
        if from == Side::From {
            self.passed_bytes += bytes.len() as u64;
            if !self.is_done && self.passed_bytes >= FAULT_AFTER_BYTES && bytes.len() >= PAYLOAD_BYTES_MIN {
                self.is_done = true;
                match self.damage {
                    Damage::Cut => return (Message::TunnelClose(id), Some(Message::TunnelClose(id))),
                    Damage::Flip => {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 0x10;
                    }
                    Damage::Nothing => {}
                }
            }
        }
        (Message::TunnelData { id, bytes }, None)
    }
}

impl Job {
    /// Passes a message of a tunnel on to the other end, damaged if a drill asks for that. A host that sends more than
    /// its credit, or returns more than it may, is given up; otherwise the other host would be, for not taking all that
    /// comes, or for sending as much as it was granted.
    pub(in crate::job) fn pass_on(&mut self, hop: usize, side: Side, message: Message) {
        let host = self.hops[hop].host(side);
        match self.hops[hop].passage.pass(side as usize, &message) {
            Passing::On => {}
            Passing::Dropped => return,
            Passing::Refused(id) => return self.send_end(hop, side, &Message::TunnelClose(id)),
            Passing::Ended(id) => {
                self.send_end(hop, side, &Message::TunnelClose(id));
                return self.send_end(hop, side.other(), &Message::TunnelClose(id));
            }
            Passing::Overrun => return self.lose(host, Some(self.unexpected(host))),
        }
        let (message, back) = match &mut self.tamper {
            Some(tamper) => tamper.pass(side, message),
            None => (message, None),
        };
        self.send_end(hop, side.other(), &message);
        if let Some(back) = back {
            self.send_end(hop, side, &back);
        }
    }
}

/// Whether a shell takes the path literally.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte))
}

/// Result of a copy.
struct Went {
    outcome: Result<(), Failure>,
    /// Notices of the ends about their lanes during the copy.
    noticed: Vec<String>,
}

impl Went {
    fn is_well(&self) -> bool {
        self.outcome.is_ok()
    }

    /// Describes the copy as the next copy after a failed one.
    fn as_next(&self) -> String {
        if self.is_well() {
            "the next copy succeeded and is identical".to_owned()
        } else {
            format!("the next copy: {}", self.said())
        }
    }

    /// Describes the outcome: "exit 4: lost the agent".
    fn said(&self) -> String {
        match &self.outcome {
            Ok(()) => "exit 0".to_owned(),
            Err(failure) => {
                format!("exit {}: {}", failure.exit.code(), failure.message.as_deref().unwrap_or("no message"))
            }
        }
    }
}

struct Drill<'a> {
    job: Job,
    there: usize,
    host: &'a OsStr,
    transfer: TransferOptions,
    here_at: PathBuf,
    there_at: String,
    /// Whether the directory on the other host may exist.
    may_be_there: bool,
    stages: u32,
    contents: Vec<u8>,
}

/// Runs all drills with one host. `complain` takes a line about what could not be removed.
///
/// # Errors
///
/// Fails with the reason if the drill cannot be begun: the host cannot be reached, or has no room. Exit code 128+n for
/// a signal.
pub(crate) fn run(setup: Setup, host: &OsStr, complain: impl Fn(&str)) -> Result<Vec<Finding>, Failure> {
    let name = format!("rddoctor-drill-{:016x}", rng().next_u64());
    let there_at = std::env::temp_dir().join(format!("{name}-there"));
    let there_at = there_at.to_str().filter(|path| is_plain(path)).map(str::to_owned);
    let there_at = there_at
        .ok_or_else(|| Exit::Usage.with("TMPDIR must be an absolute path without special characters; unset it"))?;
    let mut job = Job::new(Setup { relay: true, ..setup }, false)?;
    let there = job.host(host)?;
    job.greet()?;
    let mut contents = vec![0; FILE_BYTES];
    rng().fill_bytes(&mut contents);
    let here_at = std::env::temp_dir().join(&name);
    let cannot = |what: &str, error: std::io::Error| {
        Exit::Source.with(format!("cannot {what} {}: {error}", escaped(here_at.as_os_str())))
    };
    fs::DirBuilder::new().mode(0o700).create(&here_at).map_err(|error| cannot("create", error))?;
    let written = fs::write(here_at.join("source"), &contents).map_err(|error| cannot("write in", error));
    let transfer = TransferOptions { bwlimit: Some(RATE_BYTES), reconnect: 10, ..TransferOptions::default() };
    let (here_at, may_be_there, stages) = (here_at.clone(), false, 0);
    let mut drill = Drill { job, there, host, transfer, here_at, there_at, may_be_there, stages, contents };
    let done = written.and_then(|()| drill.all());
    // Before the directory on this host goes: an interrupted copy must not write there any more.
    let removed = drill.remove();
    if let Err(error) = fs::remove_dir_all(&drill.here_at) {
        let path = escaped(drill.here_at.as_os_str());
        complain(&format!("cannot remove {path}: {error}; run: rm -r {path}"));
    }
    if let Err(failure) = &removed {
        complain(&drill.left_behind(failure));
    }
    let findings = done?;
    removed?;
    Ok(findings)
}

impl Drill<'_> {
    fn all(&mut self) -> Result<Vec<Finding>, Failure> {
        // If the answer is lost, the directory may have been made all the same.
        self.may_be_there = true;
        self.may_be_there = self.succeeds(&format!("umask 077 && mkdir {}", self.there_at))?;
        if !self.may_be_there {
            let place = format!("{}:{}", self.job.hosts[self.there].label(), self.there_at);
            let line = format!("cannot create {place}; set TMPDIR to a directory that exists on both hosts");
            return Err(Exit::Destination.with(line));
        }
        Ok(vec![
            self.damaged("lane", Damage::Cut, "a connection was cut during a copy")?,
            self.damaged("bit", Damage::Flip, "a bit was flipped during a copy")?,
            self.full()?,
            self.kill()?,
        ])
    }

    /// Removes the directory on the other host, also after an interruption. A lost agent is started again for that.
    fn remove(&mut self) -> Result<(), Failure> {
        if !self.may_be_there {
            return Ok(());
        }
        // An interrupted copy must not write there any more.
        for hop in 0..self.job.hops.len() {
            self.job.stop(hop, libc::SIGTERM as u8);
        }
        self.job.forget_hops();
        // That an agent was lost before must not count as a failure of its successor.
        self.job.updates.retain(|update| !matches!(update, Update::Gone(..)));
        let command = format!("rm -rf {}", self.there_at);
        self.back()?;
        match self.command(&command) {
            // The agent is lost, which was noticed only now, or does not answer. Another one does it.
            Err(Failure { exit: Exit::LinkLost | Exit::Connect, .. }) => {
                self.job.hosts[self.there].gone = true;
                self.back()?;
                self.command(&command)
            }
            removed => removed,
        }
    }

    /// Says which directory could not be removed, and what to do.
    fn left_behind(&self, failure: &Failure) -> String {
        let (host, path) = (escaped(self.host), &self.there_at);
        let because = failure.message.as_ref().map(|line| format!(": {line}")).unwrap_or_default();
        format!("cannot remove {host}:{path}{because}; run there: rm -r {path}")
    }

    fn there_path(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.there_at).into_bytes()
    }

    /// Checks that a copy damaged on its way arrives whole, and that an end has noticed the damage.
    fn damaged(&mut self, about: &'static str, damage: Damage, done: &str) -> Result<Finding, Failure> {
        self.job.tamper = Some(Tamper::new(damage));
        let went = self.send(about)?;
        let is_done = self.job.tamper.take().is_some_and(|tamper| tamper.is_done);
        let is_equal = went.is_well() && self.is_equal(about)?;
        let noticed = match &went.noticed[..] {
            [] => "neither end detected it".to_owned(),
            all => all.join(", "),
        };
        let copy = match (went.is_well(), is_equal) {
            (true, true) => "the copy succeeded and is identical".to_owned(),
            (true, false) => "the copy is NOT identical".to_owned(),
            (false, _) => went.said(),
        };
        let is_survived = is_done && is_equal && !went.noticed.is_empty();
        Ok(finding(about, is_survived, done, &format!("{noticed}; {copy}")))
    }

    /// Copies to a full disk. The copy must report that and leave no partial file under its name, and the next copy
    /// must work.
    fn full(&mut self) -> Result<Finding, Failure> {
        let small = self.small_disk()?;
        let (path, done) = match &small {
            Some(path) => (format!("{path}/copy"), "copied to a file system of 1 MiB".to_owned()),
            None => (
                FULL.to_owned(),
                format!("copied to {FULL}, because mounting a small file system is not allowed there"),
            ),
        };
        let went = self.copy(HERE, self.path("source"), self.there, path.clone().into_bytes())?;
        let failure = went.outcome.as_ref().err();
        let errno = failure.and_then(|failure| failure.site.as_ref()).map_or(0, |site| site.errno);
        let is_noticed = failure.is_some_and(|failure| failure.exit == Exit::Destination) && errno == libc::ENOSPC;
        let is_there = small.is_some() && self.is_there(&path)?;
        let next = self.send("next")?;
        let is_survived = is_noticed && !is_there && next.is_well() && self.is_equal("next")?;
        let seen = format!("{}; {}{}", went.said(), if is_there { HALF } else { "" }, next.as_next());
        Ok(finding("disk", is_survived, &done, &seen))
    }

    /// Makes a file system that is visible only to one of this drill's processes, and lasts as long as that process. It
    /// is in a mount namespace of its own, and is reached through that process. `None` if the host does not allow that.
    fn small_disk(&mut self) -> Result<Option<String>, Failure> {
        let at = self.there_at.clone();
        self.stage(&format!(
            "mkdir {at}/disk && exec unshare $([ \"$(id -u)\" = 0 ] || echo --user --map-root-user) --mount sh -c \
             'mount -t tmpfs -o size=1m none {at}/disk && ln -s /proc/$$/root{at}/disk {at}/small && exec sleep 60' \
             2>/dev/null"
        ));
        let is_made = self.succeeds(&format!(
            "i=0; until [ -d {at}/small/. ]; do i=$((i+1)); [ $i -lt 30 ] || exit 1; sleep 0.1; done"
        ))?;
        Ok(is_made.then(|| format!("{at}/small")))
    }

    /// Kills the agent during a copy. The copy must report that and leave no partial file under its name, and the next
    /// copy must work.
    fn kill(&mut self) -> Result<Finding, Failure> {
        self.job.tamper = Some(Tamper::new(Damage::Nothing));
        let went = self.send("agent")?;
        let is_noticed = went.outcome.as_ref().is_err_and(|failure| failure.exit == Exit::LinkLost);
        self.back()?;
        let is_there = self.is_there(&format!("{}/agent", self.there_at))?;
        let next = self.send("agent")?;
        let is_survived = is_noticed && !is_there && next.is_well() && self.is_equal("agent")?;
        let seen = format!("{}; {}{}", went.said(), if is_there { HALF } else { "" }, next.as_next());
        Ok(finding("agent", is_survived, "the agent was killed during a copy", &seen))
    }

    fn is_there(&mut self, path: &str) -> Result<bool, Failure> {
        self.succeeds(&format!("test -e {path}"))
    }

    /// Starts the agent again if it is lost.
    fn back(&mut self) -> Result<(), Failure> {
        self.job.tamper = None;
        self.there = self.job.host(self.host)?;
        self.job.greet()
    }

    fn path(&self, name: &str) -> Vec<u8> {
        self.here_at.join(name).as_os_str().as_bytes().to_vec()
    }

    fn send(&mut self, name: &str) -> Result<Went, Failure> {
        self.copy(HERE, self.path("source"), self.there, self.there_path(name))
    }

    /// Whether the file on the other host comes back as it was sent.
    fn is_equal(&mut self, name: &str) -> Result<bool, Failure> {
        let back: OsString = self.here_at.join("back").into();
        let went = self.copy(self.there, self.there_path(name), HERE, back.as_bytes().to_vec())?;
        let is_equal = went.is_well() && fs::read(Path::new(&back)).is_ok_and(|bytes| bytes == self.contents);
        let _ = fs::remove_file(&back);
        Ok(is_equal)
    }

    /// Copies a file by a session of its own. The error is a signal.
    fn copy(&mut self, from: usize, source: Vec<u8>, to: usize, path: Vec<u8>) -> Result<Went, Failure> {
        let jobs = [frames::Job::SendFile { path: source }, frames::Job::ReceiveFile { path }];
        let hop = self.job.session([from, to], jobs, &self.transfer);
        let mut deadline = Instant::now() + COPY_MAX;
        let (mut noticed, mut failure, mut is_killed) = (Vec::new(), None, false);
        while !self.job.is_settled(hop) {
            let now = Instant::now();
            if now >= deadline {
                if failure.is_some() {
                    break;
                }
                let late = format!("the copy was still running after {} s", COPY_MAX.as_secs());
                failure = Some(Exit::LinkLost.with(late));
                self.job.stop(hop, libc::SIGTERM as u8);
                deadline = now + STOP_MAX;
            }
            let is_moment =
                self.job.tamper.as_ref().is_some_and(|tamper| tamper.is_done && tamper.damage == Damage::Nothing);
            if is_moment && !is_killed {
                is_killed = true;
                self.kill_agent();
            }
            match self.job.next(deadline.min(now + LOOK_AGAIN)) {
                Some(Update::End(_, side, Message::Notice(notice, reason))) => {
                    let host = self.job.hops[hop].host(side);
                    let line = words::notice(notice, reason.as_deref(), None);
                    noticed.push(format!("{}: {line}", self.job.hosts[host].label()));
                }
                Some(update @ Update::Signal(_)) => self.job.check(update)?,
                Some(update) => {
                    if let Err(found) = self.job.check(update) {
                        failure.get_or_insert(found);
                        self.job.stop(hop, libc::SIGTERM as u8);
                        deadline = deadline.min(Instant::now() + STOP_MAX);
                    }
                }
                None => {}
            }
        }
        let fault = self.job.hops[hop].first_fault().map(|(host, fault)| self.job.failure(host, fault));
        let outcome = failure.or(fault).map_or(Ok(()), Err);
        self.job.forget_hops();
        Ok(Went { outcome, noticed })
    }

    fn stage(&mut self, command: &str) -> u32 {
        self.stages += 1;
        let stage = Stage {
            number: self.stages,
            action: Action::Run { command: command.as_bytes().to_vec() },
            input: Input::Nothing,
            output: Output::Dropped,
            shell: vec![ByteVec::from(b"/bin/sh".to_vec())],
        };
        self.job.send(self.there, Message::Stage(Box::new(stage)));
        self.job.send(self.there, Message::StartStages);
        self.stages
    }

    /// Has the agent killed: the agent is the parent of the guard of the shell.
    fn kill_agent(&mut self) {
        self.stage("read -r _ _ _ agent _ </proc/$PPID/stat && kill -KILL \"$agent\"");
    }

    /// Runs a command on the other host.
    fn command(&mut self, command: &str) -> Result<(), Failure> {
        if self.succeeds(command)? {
            return Ok(());
        }
        let label = self.job.hosts[self.there].label();
        Err(Exit::Destination.with(format!("{label}: `{command}` failed")))
    }

    /// Whether a command on the other host ends with exit code 0.
    fn succeeds(&mut self, command: &str) -> Result<bool, Failure> {
        let number = self.stage(command);
        let deadline = Instant::now() + COMMAND_MAX;
        loop {
            match self.job.next(deadline) {
                Some(Update::Host(_, Message::StageEnded { stage, report })) if stage == number => {
                    return match report.fault {
                        None => Ok(report.code == Some(0)),
                        Some(fault) => Err(self.job.failure(self.there, &fault)),
                    };
                }
                // An agent that was given up before its successor was started.
                Some(Update::Gone(host, _)) if host != self.there => {}
                Some(update) => self.job.check(update)?,
                None => {
                    let (label, within) = (self.job.hosts[self.there].label(), COMMAND_MAX.as_secs());
                    let line = format!("{label}: `{command}` did not finish within {within} s");
                    return Err(Exit::Connect.with(line));
                }
            }
        }
    }
}

fn finding(about: &str, is_survived: bool, done: &str, seen: &str) -> Finding {
    let found = format!("{done}: {seen}");
    let finding = if is_survived {
        Finding::well("drill", "drill-survived", found)
    } else {
        Finding::failure(
            "drill",
            "drill-failed",
            found,
            "the fault was not detected, or not survived",
            Fix::advice("run it again; if it fails again, report it with the output of rddoctor --drill --json"),
        )
    };
    finding.about(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(tamper: &mut Tamper, from: Side) -> (Vec<u8>, bool) {
        match tamper.pass(from, Message::TunnelData { id: 3, bytes: vec![0; 64 << 10] }) {
            (Message::TunnelData { bytes, .. }, back) => (bytes, back.is_some()),
            (Message::TunnelClose(3), Some(Message::TunnelClose(3))) => (Vec::new(), true),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn damage_is_done_once_and_to_what_the_sender_sends() {
        for damage in [Damage::Flip, Damage::Cut, Damage::Nothing] {
            let mut tamper = Tamper::new(damage);
            let mut damaged = 0;
            for _ in 0..64 {
                assert_eq!(passed(&mut tamper, Side::To), (vec![0; 64 << 10], false), "{damage:?}");
                let (bytes, is_cut) = passed(&mut tamper, Side::From);
                damaged += usize::from(is_cut || bytes.iter().filter(|byte| **byte != 0).count() == 1);
            }
            assert_eq!((damaged, tamper.is_done), (usize::from(damage != Damage::Nothing), true), "{damage:?}");
        }
    }
}
