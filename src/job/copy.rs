//! The caller's side of a copy: starts the ends, has them meet, and learns what came of it.
//!
//! Each host of the copy is a *side*: the caller's own is an [`end::End`] in this process, any other an agent behind a
//! channel. Both take the same messages, and what they say comes through one queue. So who copies to whom makes a
//! difference only in who listens and who connects.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, unbounded};
use minicbor::bytes::ByteVec;

use crate::agent::end;
use crate::agent::place::{final_name, target};
use crate::cli::json::{self, Event};
use crate::cli::report::line::Copied;
use crate::cli::report::{Reporter, Terminal};
use crate::cli::stream::{Ended, forward_signals};
use crate::control::frames::{
    Begin, Fault, Found, Job, Kept, Kind, MESSAGE_BYTES_MAX, Message, Placed, RULES_BYTES_MAX, Report,
};
use crate::engine::{Monitor, Summary, View};
use crate::fault::{Exit, Failure, escaped};
use crate::job::launching::{News, Post, Remote, Voice, greet, is_same_kernel, may_ask, session_key};
use crate::job::plan::{Plan, Spec};
use crate::tree::Root;
use crate::tree::progress::Amount;

mod examine;
mod interrupt;
mod meet;
mod placing;
mod progress;
mod side;

use progress::Progress;
use side::Side;
pub(crate) use side::told;

/// How long an end may take to answer a question about its files: some file systems are slow to wake.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long the second end may take to tell its outcome after the first.
const SECOND_MAX: Duration = Duration::from_secs(3);

/// Bytes of sources in one message. Beside them the patterns of --exclude and --include fit, and what has bounds of its
/// own: a directory, a host, settings.
const BATCH_BYTES_MAX: usize = MESSAGE_BYTES_MAX - RULES_BYTES_MAX - (16 << 10);

/// Bytes that a source takes in a message, at most: its name may be there twice.
fn message_bytes(found: &Found) -> usize {
    found.path.len() + 2 * found.name.len() + 64
}

/// Messages of other sides that wait while one is asked something.
const UNASKED_MAX: usize = 64;

/// The side that this process itself is. It has the first number.
const HERE: usize = 0;

/// A copy that is being made.
pub(crate) struct Copy<'a> {
    plan: &'a Plan<'a>,
    reporter: &'a Reporter<'a>,
    sides: Vec<Side>,
    post: Post,
    news: Receiver<(usize, News)>,
    /// Said while something else was waited for.
    later: VecDeque<(usize, Message)>,
    terminal: Option<Terminal>,
    /// Whose progress and notices are told.
    teller: usize,
    /// The two sides of the session, while there is one: a channel that ends then is no failure yet.
    session: Option<(usize, usize)>,
    /// Its ends have met: there are lanes.
    met: bool,
    /// Its data goes through the channels.
    tunneled: bool,
    total: Summary,
    /// Entries that could not be copied, and the exit code of the first of them.
    failed: u64,
    first_failed: Option<Exit>,
    /// Sources that are not copied, and have been named.
    left_out: u64,
    /// Entries that have come to lie at the destination.
    arrived: u64,
    copied: Copied,
    told: Instant,
    progress: Progress,
    /// What the receiver of the session at hand keeps, having given up.
    kept: Option<Kept>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>, reporter: &'a Reporter<'a>) -> Result<Self, Failure> {
        let (post, news) = unbounded();
        let signals = post.clone();
        forward_signals(false, move |signal| signals.send((HERE, News::Signal(signal))).is_ok())
            .map_err(|error| Failure::new(Exit::Connect, format!("cannot handle signals: {error}")))?;
        Ok(Self::heedless(plan, reporter, post, news))
    }

    /// One that no signal ends.
    fn heedless(plan: &'a Plan<'a>, reporter: &'a Reporter<'a>, post: Post, news: Receiver<(usize, News)>) -> Self {
        Self {
            plan,
            reporter,
            sides: vec![Side::here(HERE, post.clone())],
            post,
            news,
            later: VecDeque::new(),
            terminal: None,
            teller: HERE,
            session: None,
            met: false,
            tunneled: false,
            total: Summary::default(),
            failed: 0,
            first_failed: None,
            left_out: 0,
            arrived: 0,
            copied: Copied::default(),
            told: Instant::now(),
            progress: Progress::new(),
            kept: None,
        }
    }

    /// Makes the copy.
    ///
    /// # Errors
    ///
    /// Why nothing was begun. What happens later is in what is returned.
    pub(crate) fn run(mut self) -> Result<Ended, Failure> {
        let sources: Vec<usize> = self.plan.sources.iter().map(|spec| self.side_of(spec)).collect::<Result<_, _>>()?;
        let destination = self.side_of(&self.plan.destination)?;
        self.greet()?;
        let mut found = self.find(&sources)?;
        let placed = self.place(destination, &mut found)?;
        self.check_options(&found, destination, placed.as_ref())?;
        if self.plan.dry_run {
            self.tell_plan(&found, destination, placed.as_ref());
            let failure = (self.left_out > 0).then_some(Failure::silent(Exit::Partial));
            return Ok(Ended { summary: self.total, failure, last_line: None });
        }
        let size_bytes = found.iter().fold(0, |sum: u64, (_, found)| sum.saturating_add(found.size_bytes));
        let known = found.iter().all(|(_, found)| found.kind == Kind::File);
        self.watch(&sources, destination);
        let entries = found.len() as u64;
        self.progress.expect(known.then_some(Amount { entries, directories: 0, bytes: size_bytes }));
        let failure = self.copy_all(&found, destination, placed.as_ref());
        self.terminal = None;
        let failure = failure.err().or_else(|| self.partial(&found));
        let last_line = self.last_line(failure.as_ref());
        Ok(Ended { summary: self.total, failure, last_line })
    }

    /// What it all came to; `None` where it was given up, and beside data on standard output unless it is asked for.
    fn last_line(&self, failure: Option<&Failure>) -> Option<String> {
        let report = self.plan.report;
        let is_told = failure.is_none_or(|failure| failure.exit == Exit::Partial && self.arrived > 0);
        if !is_told || self.plan.destination == Spec::Standard && !report.verbose {
            return None;
        }
        let failed = self.failed.saturating_add(self.left_out);
        Some(Copied { seconds: self.total.seconds, failed, ..self.copied }.line())
    }

    /// The side that a part of the command line is on, started if it is a new one.
    fn side_of(&mut self, spec: &Spec) -> Result<usize, Failure> {
        let Spec::There(host, _) = spec else { return Ok(HERE) };
        if let Some(known) = self.sides.iter().position(|side| side.host == *host) {
            return Ok(known);
        }
        self.start(host)
    }

    fn start(&mut self, host: &OsStr) -> Result<usize, Failure> {
        let number = self.sides.len();
        let may_ask = may_ask(self.plan.hosts());
        let remote = Remote::start(&self.plan.launcher, host, &self.plan.agent, number, self.post.clone(), may_ask)?;
        self.sides.push(Side::new(host.to_owned(), Voice::There(Box::new(remote))));
        Ok(number)
    }

    /// Another side on the host of this one: a session has two.
    fn second(&mut self, side: usize) -> Result<usize, Failure> {
        let is_one = |other: &Side| other.host == self.sides[side].host && !other.gone;
        if let Some(known) = (0..self.sides.len()).find(|&other| other != side && is_one(&self.sides[other])) {
            return Ok(known);
        }
        if side == HERE {
            self.sides.push(Side::here(self.sides.len(), self.post.clone()));
            return Ok(self.sides.len() - 1);
        }
        let host = self.sides[side].host.clone();
        let second = self.start(&host)?;
        self.greet()?;
        Ok(second)
    }

    /// Waits until every agent has said who it is.
    fn greet(&mut self) -> Result<(), Failure> {
        let agents = self.sides.iter_mut().filter_map(|side| side.voice.agent());
        greet(agents, &self.news, &self.plan.launcher)
    }

    fn send(&mut self, side: usize, message: Message) {
        match &mut self.sides[side].voice {
            Voice::Here(end) => end.handle(message),
            Voice::There(remote) => remote.send(message),
        }
    }

    /// The next thing that is said, after what it means for both sides has been done.
    fn next(&mut self, deadline: Instant) -> Result<Option<(usize, Message)>, Failure> {
        if let Some(said) = self.later.pop_front() {
            return Ok(Some(said));
        }
        loop {
            let (side, news) = match self.news.recv_deadline(deadline) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            };
            match news {
                News::Message(message) if message.is_tunnel() => {
                    if let Some((one, other)) = self.session {
                        self.send(if side == one { other } else { one }, message);
                    }
                }
                News::Message(message) => {
                    if let Some(message) = self.hear(side, message) {
                        return Ok(Some((side, message)));
                    }
                }
                News::Gone => self.lose(side)?,
                News::Broken(failure) => {
                    self.sides[side].gone = true;
                    self.stop_all(libc::SIGTERM as u8);
                    return Err(failure);
                }
                News::Signal(number) if number == libc::SIGTSTP => self.suspend(),
                News::Signal(number) => return Err(self.interrupt(number as u8)),
            }
        }
    }

    /// Tells what is for the user; gives back what is for the copy.
    fn hear(&mut self, side: usize, message: Message) -> Option<Message> {
        match message {
            Message::Say(line) => {
                let line = escaped(OsStr::new(&line));
                let line = if side == HERE { line } else { format!("{}: {line}", self.sides[side].label()) };
                self.say(&line);
            }
            Message::Progress { bytes, waits, tree } => self.hear_progress(side, bytes, &waits, tree),
            Message::Kept(kept) => {
                if self.session.is_some_and(|(_, to)| side == to) {
                    self.kept = Some(kept);
                }
            }
            Message::Notice { code, index, generation, reason } if side == self.teller => {
                if let (Some(notice), Some(terminal)) = (end::notice(code, index, generation), &mut self.terminal) {
                    let reason = reason.map(|reason| escaped(OsStr::new(&reason)));
                    terminal.notice(notice, reason.as_deref());
                    self.reporter.event(&Event::Notice(json::Notice::new(notice, reason.as_deref())));
                }
            }
            Message::Notice { .. } => {}
            Message::EntriesFailed(faults) => self.tell_failures(side, &faults),
            other => return Some(other),
        }
        None
    }

    fn say(&mut self, line: &str) {
        match &mut self.terminal {
            _ if self.plan.report.quiet => {}
            Some(terminal) => terminal.say(line),
            None => crate::cli::say(&format!("rdcp: {line}")),
        }
    }

    /// Says an error, also with `--quiet`.
    fn complain(&mut self, line: &str) {
        match &mut self.terminal {
            Some(terminal) => terminal.complain(line),
            None => crate::cli::complain("rdcp", line),
        }
    }

    /// An agent is not heard any more. A session of which the other end still is goes on as long as it has lanes.
    fn lose(&mut self, side: usize) -> Result<(), Failure> {
        self.sides[side].gone = true;
        let other = match self.session {
            Some((one, other)) if side == one => Some(other),
            Some((one, other)) if side == other => Some(one),
            Some(_) => return Ok(()),
            None => None,
        };
        if let Some(other) = other.filter(|&other| self.met && !self.sides[other].gone) {
            self.teller = other;
            self.send(other, Message::OtherLost);
            return Ok(());
        }
        self.stop_all(libc::SIGTERM as u8);
        Err(self.lost(side))
    }

    fn lost(&self, side: usize) -> Failure {
        let label = self.sides[side].label();
        Failure::new(Exit::LinkLost, format!("lost the agent on {label}: it ended, or {} did", self.launcher_name()))
    }

    fn launcher_name(&self) -> String {
        escaped(self.plan.launcher.name())
    }

    /// The answer of one side to a question.
    fn answer(&mut self, side: usize, limit: Duration) -> Result<Message, Failure> {
        let deadline = Instant::now() + limit;
        let mut others = VecDeque::new();
        loop {
            match self.next(deadline)? {
                Some((from, message)) if from == side => {
                    self.later.append(&mut others);
                    return Ok(message);
                }
                Some((from, _)) if others.len() >= UNASKED_MAX => return Err(self.unexpected(from)),
                Some(other) => others.push_back(other),
                None => {
                    let label = self.sides[side].label();
                    let within = limit.as_secs();
                    let message = format!("{label} does not answer within {within} s; try again");
                    return Err(Failure::new(Exit::Connect, message));
                }
            }
        }
    }

    fn unexpected(&self, side: usize) -> Failure {
        Failure::new(Exit::Protocol, format!("the agent on {} does not keep to the protocol", self.sides[side].label()))
    }

    fn same_kernel(&self, one: usize, other: usize) -> bool {
        one == other || is_same_kernel(&self.sides[one].voice.kernel_id(), &self.sides[other].voice.kernel_id())
    }

    fn watch(&mut self, sources: &[usize], destination: usize) {
        let other = sources.iter().copied().find(|&side| side != HERE).unwrap_or(destination);
        let peer = self.sides[if destination == HERE { other } else { destination }].label();
        let reconnect = Duration::from_secs(u64::from(self.plan.transfer.reconnect));
        let may_draw = self.plan.destination != Spec::Standard;
        self.terminal = Some(Terminal::new("rdcp", &peer, self.plan.report, reconnect, None, may_draw));
    }

    /// Copies all sources: those of one side with one session, or a few where their paths do not fit into one message or
    /// where directories are to be merged.
    fn copy_all(&mut self, found: &[(usize, Found)], to: usize, placed: Option<&Placed>) -> Result<(), Failure> {
        let mut rest = found;
        while let Some((from, first)) = rest.first() {
            if let Some(gone) = [*from, to].into_iter().find(|&side| self.sides[side].gone) {
                return Err(self.lost(gone));
            }
            let is_stream = self.is_stream(*from, first, placed);
            let mut bytes = 0;
            let some = rest.iter().take_while(|(side, found)| {
                bytes += message_bytes(found);
                side == from && bytes <= BATCH_BYTES_MAX && !self.is_read(found) && !found.name.is_empty()
            });
            // The contents of a directory are merged with what is there, as the only root of their session.
            let count = if is_stream { 1 } else { some.count().max(1) };
            let (some, others) = rest.split_at(count);
            rest = others;
            self.progress.begin(!is_stream && placed.is_some(), !rest.is_empty(), self.total.waits);
            let ended = match placed {
                Some(placed) if !is_stream => self.copy_tree(*from, some, to, placed),
                placed => self.copy_stream(*from, first, to, placed),
            };
            if !matches!(ended, Ok((_, None))) {
                self.tell_kept();
            }
            self.session = None;
            self.progress.end();
            let (summary, failure) = ended?;
            self.add(&summary);
            match failure {
                // One that cannot be read does not keep the others.
                Some(failure) if is_stream && failure.exit == Exit::Source && self.are_several(found) => {
                    self.leave_out(&failure);
                }
                Some(failure) => return Err(failure),
                None if is_stream => {
                    self.arrived = self.arrived.saturating_add(1);
                    let amount = Amount { entries: 1, directories: 0, bytes: summary.counters.bytes };
                    self.add_copied(Copied { amount, is_verified: true, ..Copied::default() });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Copies the contents of one source from or to something that is no regular file.
    fn copy_stream(
        &mut self,
        from: usize,
        found: &Found,
        to: usize,
        placed: Option<&Placed>,
    ) -> Result<Outcomes, Failure> {
        if found.kind == Kind::Directory {
            let name = self.sides[from].name(&found.path);
            return Err(Failure::new(Exit::Usage, format!("{name} is a directory, which only a directory can take")));
        }
        let to = if from == to { self.second(from)? } else { to };
        let send =
            if self.is_standard(from, found) { Job::SendStandard } else { Job::SendFile { path: found.path.clone() } };
        let receive = placed.map_or(Job::ReceiveStandard, |placed| Job::ReceiveFile {
            path: target(placed, found).into_os_string().into_vec(),
        });
        self.session(from, send, to, receive)
    }

    /// Copies files and trees of one side.
    fn copy_tree(
        &mut self,
        from: usize,
        found: &[(usize, Found)],
        to: usize,
        placed: &Placed,
    ) -> Result<Outcomes, Failure> {
        // One root has any name: it gets another.
        let own_name = |found: &Found| if found.name.is_empty() { b"top".to_vec() } else { found.name.clone() };
        let roots: Vec<Root> = found
            .iter()
            .map(|(_, found)| Root { path: found.path.clone().into(), name: own_name(found).into() })
            .collect();
        let names: Vec<ByteVec> = found.iter().map(|(_, found)| final_name(placed, found).to_vec().into()).collect();
        let (directory, settings) = (placed.directory.clone(), self.plan.tree.clone());
        if from == to {
            self.session = Some((from, to));
            self.teller = from;
            self.send(from, Message::Copy { roots, directory, names, settings });
            return self.outcomes(from, to);
        }
        let send = Job::SendTree { roots, settings: settings.clone() };
        self.session(from, send, to, Job::ReceiveTree { directory, names, settings })
    }

    /// The failure of a copy that has left entries out.
    fn partial(&self, found: &[(usize, Found)]) -> Option<Failure> {
        let exit = self.first_failed?;
        // A single source of which nothing is there, as any file that was named, is all there was.
        let single = matches!(found, [(_, found)] if found.kind != Kind::Directory || self.arrived == 0);
        if single && self.left_out == 0 {
            return Some(Failure::silent(exit));
        }
        let failed = self.failed.saturating_add(self.left_out);
        let count = entries(failed);
        let message = match (self.arrived, failed) {
            (0, _) => format!("nothing was copied: {count} failed"),
            (_, 1) => format!("{count} was not copied in full; the others are there"),
            _ => format!("{count} were not copied in full; the others are there"),
        };
        Some(Failure::new(Exit::Partial, message))
    }

    /// Tells of single entries that an end could not read or write.
    fn tell_failures(&mut self, side: usize, faults: &[Fault]) {
        self.sides[side].named += faults.len() as u64;
        for fault in faults {
            let failure = self.sides[side].failure(fault);
            self.tell_failed(&failure);
        }
    }

    fn tell_failed(&mut self, failure: &Failure) {
        self.first_failed.get_or_insert(failure.exit);
        self.reporter.event(&Event::Failed(json::Failed::new(failure)));
        self.complain(failure.message.as_deref().unwrap_or_default());
    }

    /// Counts them all, and tells how many it has not named.
    fn count_failures(&mut self, side: usize, count: u64) {
        self.failed = self.failed.saturating_add(count);
        let untold = count.saturating_sub(std::mem::take(&mut self.sides[side].named));
        if untold > 0 {
            self.first_failed.get_or_insert(Exit::Partial);
            self.say(&format!("and {untold} more on {}", self.sides[side].label()));
        }
    }

    /// Tells how many entries failed at an end that was lost before it could name them: it has told the other end.
    fn tell_failed_there(&mut self, silent: usize, count: u64) {
        if count == 0 {
            return;
        }
        self.failed = self.failed.saturating_add(count);
        let exit = *self.first_failed.get_or_insert(Exit::Partial);
        let label = self.sides[silent].label();
        let line =
            format!("{} failed on {label}, which was lost before it could name them; run it again", entries(count));
        self.reporter.event(&Event::Failed(json::Failed::new(&Failure::new(exit, line.as_str()))));
        self.complain(&line);
    }

    /// Tells what has become of a tree. Only the receiver knows what it has made of it, only the sender what it did not
    /// send; within one host they are one.
    fn tell_copied(&self, from: usize, sent: &Report, received: &Report, is_one: bool) {
        let level = match (received.is_read_back, received.is_synced) {
            (true, _) => json::Level::ReRead,
            (false, true) => json::Level::Synced,
            (false, false) => json::Level::Written,
        };
        let kept = sent.kept_bytes;
        self.reporter.event(&Event::Copied(json::Copied {
            from: self.sides[from].label(),
            entries: received.entries,
            bytes: received.data_bytes,
            kept_bytes: kept,
            failed: if is_one { sent.failed } else { sent.failed.saturating_add(received.failed) },
            level,
        }));
    }

    /// Runs one session between two sides.
    fn session(&mut self, from: usize, send: Job, to: usize, receive: Job) -> Result<Outcomes, Failure> {
        let key = session_key();
        let caller_is_peer = from == HERE || to == HERE;
        self.teller = if caller_is_peer { HERE } else { from };
        self.session = Some((from, to));
        (self.met, self.tunneled) = (false, false);
        for (side, other, job) in [(from, to, send), (to, from, receive)] {
            let begin = Begin {
                key: key.clone(),
                job,
                options: self.plan.transfer.clone(),
                caller_is_peer,
                peer: self.sides[other].label().into_bytes(),
            };
            self.send(side, Message::Begin(Box::new(begin)));
        }
        // A remote end listens: the firewall of whoever sits in front of a terminal is the likelier one to be shut.
        let (listener, dialer) = if to == HERE { (from, to) } else { (to, from) };
        let connected = self.connect(listener, dialer);
        if let Err(failure) = connected {
            self.stop_all(libc::SIGTERM as u8);
            return Err(failure);
        }
        self.met = true;
        self.outcomes(from, to)
    }

    /// Waits until the ends have told how it ended.
    fn outcomes(&mut self, from: usize, to: usize) -> Result<Outcomes, Failure> {
        let mut reports: Vec<(usize, Report)> = Vec::new();
        let mut deadline = None;
        let wanted = if from == to { 1 } else { 2 };
        while reports.len() < wanted {
            // In a session with this end, this end's own word is enough: it has heard the other's.
            let lost = |side: usize| self.sides[side].gone && !reports.iter().any(|(told, _)| *told == side);
            if !reports.is_empty() && (lost(from) || lost(to)) {
                break;
            }
            let wait = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            match self.next(wait)? {
                Some((side, Message::Ended(report)))
                    if [from, to].contains(&side) && !reports.iter().any(|(told, _)| *told == side) =>
                {
                    if report.fault.as_ref().is_some_and(|fault| fault.own) && wanted == 2 && reports.is_empty() {
                        // The other end may not have met it, and would wait.
                        let other = if side == from { to } else { from };
                        self.wake(other);
                    }
                    reports.push((side, *report));
                    deadline.get_or_insert_with(|| Instant::now() + SECOND_MAX);
                }
                Some(_) => {}
                // That all went well is for this end to say where it is one of the two: the other may be lying, and has at
                // least not told it.
                None if deadline.is_some() => {
                    let ours_is_due = (from == HERE || to == HERE) && !reports.iter().any(|(side, _)| *side == HERE);
                    if !ours_is_due || reports.iter().any(|(_, report)| report.fault.is_some()) {
                        break;
                    }
                    deadline = None;
                }
                None => {}
            }
        }
        for (side, report) in &reports {
            self.count_failures(*side, report.failed);
        }
        if let [(side, report)] = &reports[..]
            && wanted == 2
        {
            let silent = if *side == from { to } else { from };
            self.tell_failed_there(silent, report.failed_there);
        }
        // The sender's word counts where there is one: it is told last.
        let sent = reports.iter().find(|(side, _)| *side == from).or(reports.first());
        let mut summary = sent.map(|(_, report)| end::summary(report)).unwrap_or_default();
        if let Some((_, report)) = sent
            && self.plan.report.verbose
        {
            let launcher = self.launcher_name();
            self.say(&format!("data: {}", route(report, self.tunneled.then_some(&launcher))));
        }
        let received = reports.iter().find(|(side, _)| *side == to).map(|(_, report)| report);
        if let Some(received) = received {
            self.arrived = self.arrived.saturating_add(received.entries);
            if received.entries > 0 {
                let (entries, directories, bytes) = (received.entries, received.directories, received.data_bytes);
                self.add_copied(Copied {
                    amount: Amount { entries, directories, bytes },
                    kept_bytes: sent.map_or(0, |(_, sent)| sent.kept_bytes),
                    is_verified: from != to,
                    is_synced: received.is_synced,
                    is_read_back: received.is_read_back,
                    ..Copied::default()
                });
            }
            summary.written = end::written(received);
            if sent.is_some_and(|(side, _)| *side == from) {
                summary.waits = summary.waits.joined(end::waits(&received.waits));
                summary.view = View::Both;
            }
        }
        if let (Some((_, sent)), Some(received)) = (sent, received.filter(|report| report.entries > 0)) {
            self.tell_copied(from, sent, received, from == to);
        }
        // No end's word that all is well stands against a failure of the other.
        let faults = || reports.iter().filter_map(|(side, report)| Some((*side, report.fault.as_ref()?)));
        let told = faults().find(|(_, fault)| fault.own && fault.exit < 128).or_else(|| faults().next());
        let failure = told.map(|(side, fault)| self.sides[side].failure(fault));
        // That it could not reconnect is then not for want of time.
        let gone = [from, to].into_iter().find(|&side| self.sides[side].gone);
        let failure = match (failure, gone) {
            (Some(Failure { exit: Exit::LinkLost, .. }), Some(gone)) => Some(self.lost(gone)),
            (failure, _) => failure,
        };
        Ok((summary, failure))
    }

    fn add_copied(&mut self, some: Copied) {
        let all = &mut self.copied;
        if all.amount.entries == 0 {
            *all = some;
            return;
        }
        all.amount = all.amount.plus(some.amount);
        all.kept_bytes = all.kept_bytes.saturating_add(some.kept_bytes);
        all.is_verified &= some.is_verified;
        all.is_synced &= some.is_synced;
        all.is_read_back &= some.is_read_back;
    }

    /// An end that has not met the other, which has failed, is told to stop.
    fn wake(&mut self, side: usize) {
        if !self.sides[side].gone {
            self.send(side, Message::Signal(libc::SIGTERM as u8));
        }
    }

    fn add(&mut self, summary: &Summary) {
        let total = &mut self.total;
        // As an agent told them: any number.
        for (sum, part) in [
            (&mut total.counters.bytes, summary.counters.bytes),
            (&mut total.counters.retries, summary.counters.retries),
            (&mut total.counters.replayed, summary.counters.replayed),
            (&mut total.counters.corrupt, summary.counters.corrupt),
        ] {
            *sum = sum.saturating_add(part);
        }
        total.seconds += summary.seconds;
        total.lanes = total.lanes.max(summary.lanes);
        total.encrypted = summary.encrypted && (total.encrypted || total.media.is_empty());
        total.read.direct_bytes += summary.read.direct_bytes;
        total.read.cached_bytes += summary.read.cached_bytes;
        total.written.direct_bytes += summary.written.direct_bytes;
        total.written.buffered_bytes += summary.written.buffered_bytes;
        for medium in &summary.media {
            if !total.media.contains(medium) {
                total.media.push(*medium);
            }
        }
        total.waits = total.waits.plus(summary.waits);
        total.view = summary.view;
    }
}

/// What one transfer came to.
type Outcomes = (Summary, Option<Failure>);

fn entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

/// The way that the data took, on one line.
pub(crate) fn route(report: &Report, through: Option<&str>) -> String {
    let by_way = through.map(|launcher| format!(", through {launcher}")).unwrap_or_default();
    let lanes = if report.lanes == 1 { "1 lane".to_owned() } else { format!("{} lanes", report.lanes) };
    let sealed = if report.encrypted { "encrypted" } else { "not encrypted" };
    match report.media.first().map(String::as_str) {
        Some("local") => "copied within the host".to_owned(),
        None => "none".to_owned(),
        Some(_) => {
            let others: String = report.media.iter().skip(1).map(|medium| format!(" and {medium}")).collect();
            format!("{}{others}, {lanes}, {sealed}{by_way}", escaped(OsStr::new(&report.route)))
        }
    }
}
