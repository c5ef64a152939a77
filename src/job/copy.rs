//! A copy: its sources, the destination of each source, one session for each host and directory, and the outcome.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;
use rd_proto::session::Notice as SessionNotice;

use super::entries::TakeEntries;
use super::event::{self, Event};
use super::hop::Side;
use super::plan::{Plan, Spec};
use super::progress::{Copied, Ended, Shown};
use super::{HERE, Job, Update, name_at};
use crate::agent::place::{final_name, target};

use crate::control::frames::{
    self, Fault, Found, Kept, Kind, MESSAGE_BYTES_MAX, Message, Placed, RULES_BYTES_MAX, Report, Sources,
};
use crate::engine::{Figures, SessionEvent};
use crate::fault::{Exit, Failure, escaped};
use crate::options::{Session, TreeOptions};
use crate::tree::progress::Amount;
use crate::tree::stats::TreeFigures;
use crate::tree::{KEEPS_SPARED, NOT_PRUNED, Root};

pub(super) mod broadcast;
mod interrupt;
mod manifest;
mod placing;
mod progress;

use progress::Progress;

const NO_DELETE_AFTER: &str = "--delete-after (also --find-moves with --delete) does not support SRC on several hosts; \
     copy from one at a time, or use --delete";

/// Beginning of what a receiver says of a directory in which nothing was deleted.
const NOT_EMPTIED: &str = "was not emptied";

/// End of what a receiver says if it does not know the user or the group of `--chown`.
const UNKNOWN_OWNERS: [(&str, &str); 2] =
    [("--chown: this host has no such user", "user"), ("--chown: this host has no such group", "group")];

/// Beginning of what an agent says of an entry that it passes over. The path follows.
const SKIPPED: &str = "skipped ";

/// How long an end may take to answer a question about its files. Some file systems are slow to wake.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long an end may take to find the next entry that matches a pattern: `h:/lustre/*/*/rare` lists many directories.
const SEARCH_MAX: Duration = Duration::from_secs(15 * 60);

/// Limits on what is printed for another host: lines, and failed entries other than the sources that the user named. An
/// honest end stays below both limits; a hostile end could go on for ever.
const FAILURES_MAX: u64 = 1000;
const LINES_MAX: u64 = 300;

/// Length of a message above which the message counts as several.
const TOLD_BYTES: usize = 8 << 10;

/// Maximum bytes of sources in one message. The rest of the message has room for the patterns of --exclude and
/// --include, and for fields with bounds of their own: a directory, a host, settings.
const BATCH_BYTES_MAX: usize = MESSAGE_BYTES_MAX - RULES_BYTES_MAX - (16 << 10);

/// Returns the maximum number of bytes that a source takes in a message. Its name may appear there twice.
fn message_bytes(found: &Found) -> usize {
    found.path.len() + 2 * found.name.len() + 64
}

/// Receives what a copy reports.
pub(crate) trait Observer: super::Observer {
    /// Reports that the copy is not refused any more, so that its reports may be written.
    fn begin(&mut self);
    /// Reports what becomes of a session, from its beginning on.
    fn observe(&mut self, event: SessionEvent);
    /// Reports that a source would be copied (`--dry-run`): from where and to where, for a person.
    fn would_copy(&mut self, from: &str, to: &str);
    /// Shows how far the copy has come.
    fn show(&mut self, shown: &Shown);
    /// Whether a person is shown the progress.
    fn is_watched(&self) -> bool;
    /// Returns the printer of changed entries. `is_push`: whether they are on another host.
    fn entry_printer(&self, is_push: bool) -> TakeEntries;
}

/// How many failures and lines a host has had printed, and how many more were suppressed.
#[derive(Default)]
struct Told {
    failures: u64,
    lines: u64,
    unsaid: u64,
}

impl Told {
    /// Counts a failure or line, of which at most `most` are printed. Returns false if this one exceeds the limit.
    fn may_say(count: &mut u64, bytes: usize, most: u64, unsaid: &mut u64) -> bool {
        let is_said = *count < most;
        *count = count.saturating_add(1 + (bytes / TOLD_BYTES) as u64);
        *unsaid = unsaid.saturating_add(u64::from(!is_said));
        is_said
    }
}

/// A copy in progress.
pub(crate) struct Copy<'a> {
    plan: &'a Plan<'a>,
    observer: &'a mut dyn Observer,
    job: Job,
    /// The current session.
    hop: Option<usize>,
    /// The end of the current session that reports progress and changes of lanes.
    told_by: Side,
    /// Whether the current session copies a stream, of which nothing can be resumed.
    of_stream: bool,
    /// Number of failed entries of the current session that each end has named.
    named: [u64; 2],
    total: Figures,
    /// Number of entries that could not be copied, and the exit code of the first of them.
    failed: u64,
    first_failed: Option<Exit>,
    /// Whether an entry could not be written.
    is_unwritable: bool,
    /// Number of these failures that only kept something from being deleted.
    undeleted: u64,
    /// Number of entries that the sessions so far have deleted.
    deleted: u64,
    /// Number of sources that are not copied and have been named.
    left_out: u64,
    /// The same number by host, until it has been reported.
    left_out_of: BTreeMap<usize, u64>,
    /// Output of other hosts, by host name: a host that is added again keeps its counts.
    told_by_host: BTreeMap<OsString, Told>,
    /// Number of entries that are now at the destination.
    arrived: u64,
    copied: Copied,
    told: Instant,
    progress: Progress,
    /// What the receiver of the current session, having given up, keeps for a later run.
    kept: Option<Kept>,
    /// Name of the only source of the next session; see [`super::hop::Hop::root`].
    root: Option<Vec<u8>>,
    /// The destination that is being asked about: the plan's destination, or one of several targets.
    destination: Spec,
}

impl<'a> Copy<'a> {
    /// # Errors
    ///
    /// Exit code 3 if signals cannot be handled.
    pub(crate) fn new(plan: &'a Plan<'a>, observer: &'a mut dyn Observer) -> Result<Self, Failure> {
        Ok(Self {
            plan,
            observer,
            job: Job::new(plan.setup.clone(), false)?,
            hop: None,
            told_by: Side::From,
            of_stream: false,
            named: [0; 2],
            total: Figures::default(),
            failed: 0,
            first_failed: None,
            is_unwritable: false,
            undeleted: 0,
            deleted: 0,
            left_out: 0,
            left_out_of: BTreeMap::new(),
            told_by_host: BTreeMap::new(),
            arrived: 0,
            copied: Copied::default(),
            told: Instant::now(),
            progress: Progress::new(plan.tree.sync),
            kept: None,
            root: None,
            destination: plan.destination.clone(),
        })
    }

    /// Makes the copy.
    ///
    /// # Errors
    ///
    /// Fails with the reason if nothing was begun. Later failures are part of the returned value.
    pub(crate) fn run(mut self) -> Result<Ended, Failure> {
        let ended = if self.plan.targets.is_empty() { self.copy() } else { self.broadcast() };
        self.tell_unsaid();
        ended
    }

    fn copy(&mut self) -> Result<Ended, Failure> {
        let sources: Vec<usize> = self.plan.sources.iter().map(|spec| self.host_of(spec)).collect::<Result<_, _>>()?;
        let destination = self.host_of(&self.plan.destination)?;
        self.job.greet()?;
        let mut found = self.find(&sources)?;
        let placed = self.place(destination, &mut found)?;
        self.tell_nested(&found, placed.as_ref());
        self.check_options(&found, destination, placed.as_ref())?;
        self.check_reports(&found, destination, placed.as_ref())?;
        let manifest = self.begin_manifest(&found, destination, placed.as_ref())?;
        self.take_entries(destination, manifest.clone())?;
        self.observer.begin();
        if self.plan.dry_run && !self.plan.tree.sync {
            self.tell_plan(&found, destination, placed.as_ref());
            let failure = (self.left_out > 0).then_some(Failure::silent(Exit::Partial));
            return Ok(Ended { figures: Figures::default(), failure, copied: None, hosts: Vec::new() });
        }
        let size_bytes = found.iter().fold(0, |sum: u64, (_, found)| sum.saturating_add(found.size_bytes));
        let known = found.iter().all(|(_, found)| found.kind == Kind::File);
        self.watch(&sources, destination);
        let entries = found.len() as u64;
        self.progress.expect(known.then_some(Amount { entries, directories: 0, bytes: size_bytes }));
        let failure = self.copy_all(&found, destination, placed.as_ref());
        self.observer.finish();
        let failure = failure.err().or_else(|| self.partial(&found));
        let failure = self.end_manifest(manifest.as_ref(), failure);
        let copied = self.came_to(failure.as_ref());
        Ok(Ended { figures: std::mem::take(&mut self.total), failure, copied, hosts: Vec::new() })
    }

    /// Returns the summary of the whole copy. `None` if the copy was given up, or if its data went to standard output
    /// and `--verbose` was not given.
    fn came_to(&self, failure: Option<&Failure>) -> Option<Copied> {
        let is_told = failure.is_none_or(|failure| failure.exit == Exit::Partial && self.arrived > 0);
        if !is_told || self.plan.destination == Spec::Standard && !self.plan.verbose {
            return None;
        }
        let failed = self.failed.saturating_add(self.left_out);
        Some(Copied { tree: TreeFigures { failed, ..self.copied.tree }, seconds: self.total.seconds, ..self.copied })
    }

    /// Returns the host that a part of the command line names. A new host is started.
    fn host_of(&mut self, spec: &Spec) -> Result<usize, Failure> {
        self.job.host(spec.host())
    }

    /// Formats a path on a host for a person.
    fn name(&self, host: usize, path: &[u8]) -> String {
        name_at(&self.job.hosts[host].name, path)
    }

    fn label(&self, host: usize) -> String {
        self.job.hosts[host].label()
    }

    /// Describes a fault on a host for a person.
    fn failure(&self, host: usize, fault: &Fault) -> Failure {
        let mut failure = self.job.failure(host, fault);
        // Of a list, the path at DST tells which source is empty.
        let is_source = fault.detail.starts_with(NOT_EMPTIED) && self.plan.only.is_none();
        if let (Some(line), [source], true) = (&mut failure.message, &self.plan.sources[..], is_source) {
            *line = line.replace("the source is", &format!("{} is", name_at(source.host(), source.path().as_bytes())));
        }
        let unknown = UNKNOWN_OWNERS.into_iter().find(|(end, _)| fault.detail.ends_with(*end));
        if let (Some((_, what)), Some(chown)) = (unknown, &self.plan.tree.chown) {
            let (user, group) = chown.split_once(':').unwrap_or((chown, ""));
            let name = escaped(OsStr::new(if what == "user" { user } else { group }));
            failure.message = Some(format!("{} has no {what} {name} (--chown)", self.label(host)));
        }
        failure
    }

    /// Acts on an update from the job.
    fn heed(&mut self, update: Update) -> Result<(), Failure> {
        match update {
            Update::End(_, side, message) => self.hear(side, message),
            Update::Say(line) => self.say(&line),
            // The outcome is taken from the hop. Hosts answer questions only before there is a hop.
            Update::Agreed | Update::Ended(..) | Update::Host(..) | Update::Arrived(_) | Update::Join(_) => {}
            Update::Unmet(_, reason) => {
                self.stop_all(libc::SIGTERM as u8);
                return Err(Exit::Connect.with(reason));
            }
            Update::Gone(_, Some(failure)) | Update::Failed(failure) => {
                self.stop_all(libc::SIGTERM as u8);
                return Err(failure);
            }
            Update::Gone(host, None) => self.lose(host)?,
            Update::Signal(number) if number == libc::SIGTSTP => self.job.suspend(),
            Update::Signal(number) => return Err(self.interrupt(number as u8)),
        }
        Ok(())
    }

    /// Handles a message from an end of the current session.
    fn hear(&mut self, side: Side, message: Message) {
        let Some(hop) = self.hop else { return };
        let host = self.job.hops[hop].host(side);
        match message {
            Message::Say(line) => self.say_for(host, &line),
            Message::Progress { bytes, waits, tree } => self.hear_progress(hop, side, bytes, waits, tree),
            Message::Kept(kept) if self.job.hops[hop].sides().last() == Some(&side) => self.kept = Some(kept),
            Message::Notice(notice, reason) if side == self.told_by => {
                let reason = reason.map(|reason| escaped(OsStr::new(&reason)));
                if matches!(notice, SessionNotice::LinkRestored) {
                    self.progress.forget_rates();
                }
                self.observer.observe(SessionEvent::Notice(notice, reason.clone()));
                self.observer.event(&Event::Notice(event::Notice::new(notice, reason.as_deref())));
            }
            Message::EntriesFailed(faults) => {
                self.named[side as usize] += faults.len() as u64;
                self.tell_failures(host, &faults);
            }
            _ => {}
        }
    }

    fn say(&mut self, line: &str) {
        self.observer.remark(line);
    }

    /// Prints a line from an agent.
    fn say_for(&mut self, host: usize, line: &str) {
        let shown = escaped(OsStr::new(line));
        if host == HERE {
            return self.say(&shown);
        }
        let Told { lines, unsaid, .. } = self.told_by_host.entry(self.job.hosts[host].name.clone()).or_default();
        if Told::may_say(lines, shown.len(), LINES_MAX, unsaid) {
            self.say(&match line.strip_prefix(SKIPPED) {
                Some(path) => format!("{SKIPPED}{}", self.name(host, path.as_bytes())),
                None => format!("{}: {shown}", self.label(host)),
            });
        }
    }

    /// Reports how many lines of each host were not shown.
    fn tell_unsaid(&mut self) {
        for (name, Told { unsaid, failures, .. }) in std::mem::take(&mut self.told_by_host) {
            if unsaid > 0 {
                let lines = if unsaid == 1 { "line" } else { "lines" };
                let line = format!("and {unsaid} more {lines} from {}, not shown", escaped(&name));
                if failures > FAILURES_MAX {
                    let exit = self.first_failed.unwrap_or(Exit::Partial);
                    self.observer.event(&Event::Failed(event::Failed::new(&exit.with(line.as_str()))));
                }
                self.complain(&line);
            }
        }
    }

    /// Prints an error, also with `--quiet`.
    fn complain(&mut self, line: &str) {
        self.observer.complain(line);
    }

    /// Handles the loss of an agent. If the session's other end is still there, the session continues as long as it has
    /// lanes, or may get new ones if it lost them long before. It does not continue if only the lost end knows what is
    /// to be printed or written to a manifest.
    fn lose(&mut self, host: usize) -> Result<(), Failure> {
        let Some(hop) = self.hop else { return Err(self.job.lost(host)) };
        let sides = self.job.hops[hop].sides();
        let Some(&lost) = sides.iter().find(|&&side| self.job.hops[hop].host(side) == host) else { return Ok(()) };
        let is_heeded = lost == Side::To && self.job.entries.is_some() && self.job.hops[hop].report(lost).is_none();
        let other = sides.iter().copied().find(|&side| !self.job.hosts[self.job.hops[hop].host(side)].gone);
        let other = other.filter(|_| !is_heeded);
        if let Some(other) = other.filter(|&other| other != lost && self.job.hops[hop].has_met()) {
            self.told_by = other;
            self.job.send_end(hop, other, &Message::OtherLost);
            return Ok(());
        }
        self.stop_all(libc::SIGTERM as u8);
        Err(self.job.lost(host))
    }

    fn watch(&mut self, sources: &[usize], destination: usize) {
        let other = sources.iter().copied().find(|&host| host != HERE).unwrap_or(destination);
        let peer = self.label(if destination == HERE { other } else { destination });
        let reconnect = Duration::from_secs(u64::from(self.plan.transfer.reconnect));
        self.observer.observe(SessionEvent::Begun { peer, reconnect, size_bytes: None });
    }

    /// Copies all sources. Those of one host that follow each other take one session, because several names of one file
    /// are recognized only within a session. A stream takes one of its own, and so do the contents of a directory.
    fn copy_all(&mut self, found: &[(usize, Found)], to: usize, placed: Option<&Placed>) -> Result<(), Failure> {
        let (mut rest, mut follows) = (found, false);
        while let Some((from, first)) = rest.first() {
            if let Some(gone) = [*from, to].into_iter().find(|&host| self.job.hosts[host].gone) {
                return Err(self.job.lost(gone));
            }
            let is_stream = self.is_stream(*from, first, placed);
            let goes_along = |found: &Found| !self.is_read(found) && !found.name.is_empty();
            let some = rest.iter().take_while(|(side, found)| side == from && goes_along(found));
            // The contents of a directory are merged with the destination, as the only root of their session.
            let count = if is_stream {
                1
            } else if self.are_contents(rest) {
                rest.len()
            } else {
                some.count().max(1)
            };
            let (some, others) = rest.split_at(count);
            rest = others;
            if self.plan.tree.delete_after && !rest.is_empty() {
                return Err(Exit::Usage.with(NO_DELETE_AFTER));
            }
            self.progress.begin(!is_stream && placed.is_some(), !rest.is_empty(), self.total.waits);
            self.of_stream = is_stream;
            let mut ended = match placed {
                Some(placed) if !is_stream => self.copy_tree((*from, some), to, placed, (follows, rest.is_empty())),
                placed => self.copy_stream(*from, first, to, placed),
            };
            if let Ok((_, Some(failure))) | Err(failure) = &mut ended {
                self.add_kept(failure);
            }
            follows = true;
            self.hop = None;
            self.job.forget_hops();
            self.progress.end();
            let (figures, failure) = ended?;
            self.total.add(&figures);
            match failure {
                // A source that cannot be read does not prevent the others from being copied.
                Some(failure) if is_stream && failure.exit == Exit::Source && self.are_several(found) => {
                    self.leave_out(*from, &failure);
                }
                Some(failure) => return Err(failure),
                None if is_stream => {
                    self.arrived = self.arrived.saturating_add(1);
                    self.copied.add(Copied::of_stream(figures.counters.bytes, to == HERE));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Copies the contents of one source if the source or the destination is not a regular file.
    fn copy_stream(
        &mut self,
        from: usize,
        found: &Found,
        to: usize,
        placed: Option<&Placed>,
    ) -> Result<Outcomes, Failure> {
        if found.kind == Kind::Directory {
            let name = self.name(from, &found.path);
            return Err(Exit::Usage.with(format!("{name} is a directory; it can be copied only to a directory")));
        }
        let send = if self.is_standard(from, found) {
            frames::Job::SendStandard
        } else {
            frames::Job::SendFile { path: found.path.clone() }
        };
        let receive = placed.map_or(frames::Job::ReceiveStandard, |placed| frames::Job::ReceiveFile {
            path: target(placed, found).into_os_string().into_vec(),
        });
        self.session([from, to], [send, receive])
    }

    /// Copies files and trees from one host.
    fn copy_tree(
        &mut self,
        (from, found): (usize, &[(usize, Found)]),
        to: usize,
        placed: &Placed,
        (follows, is_last): (bool, bool),
    ) -> Result<Outcomes, Failure> {
        let only = &self.plan.only;
        let mut roots: Vec<_> = found.iter().map(|(_, found)| Root { only: only.clone(), ..root_of(found) }).collect();
        let mut names = names_of(placed, found);
        let root = self.only_root(found);
        if root.is_some() {
            let name = roots[0].name.clone();
            roots.iter_mut().for_each(|root| root.name.clone_from(&name));
            names.truncate(1);
        }
        self.root = root.map(|root| if self.plan.is_contents(root) { Vec::new() } else { root.name.clone() });
        let directory = placed.directory.clone();
        let contents = root.is_some_and(|root| self.is_root(root));
        let mut settings = TreeOptions { contents, ..self.plan.tree.clone() };
        // The limit is for the whole copy, and each receiver knows only its session.
        settings.max_delete = settings.max_delete.map(|most| most.saturating_sub(self.deleted));
        // The permissions of a device node say nothing about a file: an existing file keeps its own.
        if !self.plan.recursive && found.iter().all(|(_, found)| found.kind == Kind::Block) {
            settings.mode &= !settings.chmod.is_empty();
            settings.owner &= settings.chown.is_some();
        }
        if self.has_image(found) {
            settings.modify_window = 0;
        }
        // Within a host, reading both files takes as long as copying.
        settings.compares = (placed.is_there || placed.has_left) && from != to && settings.may_compare();
        let is_dst = placed.as_name.is_some() && (found[0].1.kind == Kind::Directory || placed.is_block);
        let is_last = is_last && self.first_failed.is_none();
        let is_missing = is_dst && placed.is_missing && !settings.sync;
        settings.generations.session = Session { is_dst, is_last, follows, is_missing };
        if from == to {
            let Sources { roots, names } = self.send_ahead(from, Sources { roots, names })?;
            let job = frames::Job::Copy { roots, directory, names, settings };
            let hop = self.job.copy_within(from, job, self.plan.transfer);
            return self.outcomes(hop, Side::From);
        }
        // Another run finds the files of a directory that was there.
        let finds_files = placed.is_there && (settings.sync || settings.may_compare());
        let Sources { roots, .. } = self.send_ahead(from, Sources { roots, names: Vec::new() })?;
        let Sources { names, .. } = self.send_ahead(to, Sources { roots: Vec::new(), names })?;
        let send = frames::Job::SendTree { roots, settings: settings.clone() };
        let receive = frames::Job::ReceiveTree { directory, names, settings, expected: None };
        let (figures, mut failure) = self.session([from, to], [send, receive])?;
        if let Some(Failure { exit: Exit::LinkLost, message: Some(line), .. }) = &mut failure
            && let Some(hop) = self.hop
            && figures.counters.bytes > 0
            && !self.plan.dry_run
            && line.contains("lost the link to ")
        {
            let received = self.job.hops[hop].report(Side::To);
            let has_kept = self.kept.is_some();
            interrupt::explain_loss(line, &self.label(to), received, (is_last, has_kept, finds_files));
        }
        Ok((figures, failure))
    }

    /// Sends sources and names ahead of a job that has no room for them. Returns those that the job is to have.
    fn send_ahead(&mut self, host: usize, sources: Sources) -> Result<Sources, Failure> {
        if sources.bytes() <= BATCH_BYTES_MAX {
            return Ok(sources);
        }
        for part in sources.parts(BATCH_BYTES_MAX) {
            // Awaited, because the ends have little time to meet once they have their jobs.
            match self.job.ask(host, Message::Sources(part), ANSWER_MAX)? {
                Message::SourcesTaken => {}
                _ => return Err(self.job.unexpected(host)),
            }
        }
        Ok(Sources::default())
    }

    /// Returns the failure of a copy that has left entries out.
    fn partial(&self, found: &[(usize, Found)]) -> Option<Failure> {
        let exit = self.first_failed?;
        // For a single file, or a single directory of which nothing arrived, the failure already reported says
        // everything.
        let single = matches!(found, [(_, found)] if found.kind != Kind::Directory || self.arrived == 0);
        if single && self.left_out == 0 {
            // If DST could not be made, that is the reason, whatever else could not be read.
            let exit = if self.arrived == 0 && self.is_unwritable { Exit::Destination } else { exit };
            return Some(Failure::silent(exit));
        }
        let failed = self.failed.saturating_add(self.left_out).saturating_sub(self.undeleted);
        if failed == 0 {
            // Everything was copied. What was not deleted has been reported.
            return Some(Failure::silent(Exit::Partial));
        }
        let count = entries(failed);
        let message = match (self.arrived, failed) {
            _ if self.plan.dry_run => format!("{count} would not be copied; nothing was changed"),
            (1.., _) if self.plan.tree.remove_source_files => {
                format!("not copied in full, or still at SRC: {count}; the others were copied")
            }
            (0, _) => format!("nothing was copied: {count} failed"),
            (_, 1) => format!("{count} was not copied in full; the others were copied"),
            _ => format!("{count} were not copied in full; the others were copied"),
        };
        Some(Exit::Partial.with(message))
    }

    /// Reports single entries that an end could not read or write.
    fn tell_failures(&mut self, host: usize, faults: &[Fault]) {
        for fault in faults {
            self.undeleted = self.undeleted.saturating_add(u64::from(is_undeleted(fault)));
            let failure = self.failure(host, fault);
            self.is_unwritable |= failure.exit == Exit::Destination && !is_undeleted(fault);
            let bytes = failure.message.as_ref().map_or(0, String::len);
            let Told { failures, unsaid, .. } = self.told_by_host.entry(self.job.hosts[host].name.clone()).or_default();
            if host == HERE || Told::may_say(failures, bytes, FAILURES_MAX, unsaid) {
                self.tell_failed(&failure);
            }
        }
    }

    fn tell_failed(&mut self, failure: &Failure) {
        self.first_failed.get_or_insert(failure.exit);
        self.observer.event(&Event::Failed(event::Failed::new(failure)));
        self.complain(failure.message.as_deref().unwrap_or_default());
    }

    /// Counts all failed entries of an end, and reports how many of them the end has not named.
    fn count_failures(&mut self, hop: usize, side: Side, count: u64) {
        self.failed = self.failed.saturating_add(count);
        let unnamed = count.saturating_sub(std::mem::take(&mut self.named[side as usize]));
        if unnamed > 0 {
            self.first_failed.get_or_insert(Exit::Partial);
            self.say(&format!("and {unnamed} more on {}", self.label(self.job.hops[hop].host(side))));
        }
    }

    /// Reports how many entries failed at an end that was lost before it could name them. The other end has their
    /// number.
    fn tell_failed_there(&mut self, silent: usize, count: u64) {
        if count == 0 {
            return;
        }
        let exit = self.first_failed.unwrap_or(Exit::Partial);
        let label = self.label(silent);
        let line =
            format!("{} failed on {label}, which was lost before it could name them; run it again", entries(count));
        self.tell_failed(&exit.with(line));
    }

    /// Runs one session between two hosts, or between two ends on one host.
    fn session(&mut self, hosts: [usize; 2], jobs: [frames::Job; 2]) -> Result<Outcomes, Failure> {
        let hop = self.job.session(hosts, jobs, self.plan.transfer);
        self.outcomes(hop, if hosts[1] == HERE { Side::To } else { Side::From })
    }

    /// Waits until the ends have reported the outcome.
    fn outcomes(&mut self, at: usize, told_by: Side) -> Result<Outcomes, Failure> {
        (self.hop, self.told_by, self.named) = (Some(at), told_by, [0; 2]);
        self.job.hops[at].root = self.root.take();
        self.job.hops[at].removes = self.plan.tree.remove_source_files;
        while let Some(update) = self.job.next_of(at) {
            if let Err(failure) = self.heed(update) {
                // The data reported so far was sent all the same.
                if let Some(told) = self.job.hops[at].reports.iter().flatten().next() {
                    self.total.add(&told.moved());
                }
                return Err(failure);
            }
        }
        let hop = &self.job.hops[at];
        let (reports, tunneled, is_within) = (hop.reports.clone(), hop.tunneled, hop.sides().len() == 1);
        let figures = hop.figures().unwrap_or_default();
        let [from, to] = hop.hosts;
        for (side, report) in [Side::From, Side::To].into_iter().zip(&reports) {
            if let Some(Report { figures, tree, .. }) = report {
                let bytes = if is_within { tree.amount.bytes } else { figures.counters.bytes };
                self.observer.measured(&self.job.hops[at], side, bytes, figures.waits);
            }
            self.count_failures(at, side, report.as_ref().map_or(0, |report| report.tree.failed));
        }
        let unnamed = match &reports {
            [Some(sent), None] if !is_within => Some((to, sent.tree.failed_there)),
            [None, Some(received)] => Some((from, received.tree.failed_there)),
            _ => None,
        };
        if let Some((silent, count)) = unnamed {
            self.failed = self.failed.saturating_add(count);
            self.tell_failed_there(silent, count);
        }
        let [sent, received] = &reports;
        // The sender's report is preferred because it comes last.
        let summed = sent.as_ref().or(received.as_ref());
        if let Some(report) = summed
            && self.plan.verbose
        {
            let launcher = self.plan.setup.launcher_name();
            self.say(&format!("data: {}", route(report, tunneled.then_some(&launcher))));
        }
        // Only the receiver knows what it has made of a tree, what was there before, and what was deleted. Only the
        // sender knows what it did not send. Within one host, one end knows both. A sender that has not failed has the
        // receiver's answer for the whole tree.
        let options = &self.plan.tree;
        let tree = match &reports {
            [Some(sent), None] if is_within => Some(sent.tree),
            [Some(sent), None] if sent.fault.is_none() && !options.sync => Some(sent.tree),
            [Some(sent), Some(received)] => Some(sent.tree.joined(received.tree)),
            [None, Some(received)] => Some(received.tree),
            _ => None,
        };
        self.arrived = self.arrived.saturating_add(tree.map_or(0, |tree| tree.amount.entries));
        self.deleted = self.deleted.saturating_add(tree.map_or(0, |tree| tree.deleted));
        if let (Some(summed), Some(mut tree)) = (summed, tree.filter(|tree| tree.amount.entries > 0)) {
            let sent_bytes = summed.figures.counters.bytes;
            let is_compared = options.sync && !options.dry_run && !is_within;
            self.copied.add(Copied {
                tree,
                is_sync: options.sync,
                compared: is_compared.then_some(sent_bytes),
                totals: match &reports {
                    [Some(_), None] if is_within => Some([0; 2]),
                    [Some(_), Some(_)] if to == HERE => Some([tree.stats.answered_bytes, sent_bytes]),
                    [Some(_), Some(_)] => Some([sent_bytes, tree.stats.answered_bytes]),
                    _ => None,
                },
                is_verified: from != to && !options.dry_run,
                is_dry: options.dry_run,
                ..Copied::default()
            });
            // Sources that could not be sent at all are counted with the first session of their host.
            tree.failed = tree.failed.saturating_add(self.left_out_of.remove(&from).unwrap_or_default());
            self.observer.event(&Event::Copied(event::Copied::new(self.label(from), &tree, options.dry_run)));
        }
        // A failure of one end outweighs success reported by the other.
        let failure = self.job.hops[at].first_fault().map(|(host, fault)| self.failure(host, fault));
        // If an agent is gone, the session failed to reconnect for that reason, and not because time ran out.
        let gone = [from, to].into_iter().find(|&host| self.job.hosts[host].gone);
        // Some of the entries that only the receiver lists are missing then.
        let lacks_list = !is_within && reports[Side::To as usize].is_none() && self.job.entries.is_some();
        let failure = match (failure, gone) {
            (None, _) if lacks_list => Some(self.job.lost(to)),
            (Some(Failure { exit: Exit::LinkLost, .. }), Some(gone)) => Some(self.job.lost(gone)),
            (None, Some(gone)) if options.remove_source_files && sent.is_none() => {
                let mut failure = self.job.lost(gone);
                if let Some(line) = &mut failure.message {
                    *line += "; all files were copied, but some may still be at SRC";
                }
                Some(failure)
            }
            (failure, _) => failure,
        };
        Ok((figures, failure))
    }
}

/// Whether a fault only kept something from being deleted.
fn is_undeleted(fault: &Fault) -> bool {
    [NOT_EMPTIED, NOT_PRUNED, KEEPS_SPARED].iter().any(|words| fault.detail.starts_with(*words))
}

/// Describes a source as a root. A source without a name is the only root, and its name is replaced later.
fn root_of(found: &Found) -> Root {
    let name = if found.name.is_empty() { b"top".to_vec() } else { found.name.clone() };
    Root { path: found.path.clone().into(), name: name.into(), only: None }
}

/// Returns the names that the sources get at the destination.
fn names_of(placed: &Placed, found: &[(usize, Found)]) -> Vec<ByteVec> {
    found.iter().map(|(_, found)| final_name(placed, found).to_vec().into()).collect()
}

/// Outcome of one session.
type Outcomes = (Figures, Option<Failure>);

pub(crate) fn entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

/// Describes on one line the way that the data took.
pub(crate) fn route(report: &Report, through: Option<&str>) -> String {
    let Figures { media, lanes, encrypted, .. } = &report.figures;
    if media.is_empty() {
        return if report.route.is_empty() { "none".to_owned() } else { escaped(OsStr::new(&report.route)) };
    }
    let by_way = through.map(|launcher| format!(", through {launcher}")).unwrap_or_default();
    let lanes = if *lanes == 1 { "1 lane".to_owned() } else { format!("{lanes} lanes") };
    let sealed = if *encrypted { "encrypted" } else { "not encrypted" };
    let others: String = media.iter().skip(1).map(|medium| format!(" and {}", medium.name())).collect();
    format!("{}{others}, {lanes}, {sealed}{by_way}", escaped(OsStr::new(&report.route)))
}
