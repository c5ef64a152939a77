//! Ordinary copies of the tree from one host to another: begins them, follows how far they get, and ends them.

use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use super::chain::{CopyEnd, Node, SOURCE};
use super::{Copy, Run, Target, links, roots_of};
use crate::agent::place::target;
use crate::control::frames::{self, Found, Kind, MESSAGE_BYTES_MAX, Placed, Report, TreeProgress};
use crate::fault::{Exit, Failure, escaped};
use crate::job::HERE;
use crate::job::copy::{names_of, root_of};
use crate::job::hop::Side;
use crate::options::Session;
use crate::tree::Root;
use crate::tree::progress::Amount;
use crate::tree::proof::Expected;
use crate::tree::stats::TreeFigures;

/// How long the ends of a copy that was stopped may take to end. An end whose disk hangs never does.
const STOPPED_MAX: Duration = Duration::from_secs(30);

/// How much longer than `--reconnect` a copy may stand still in any case: its ends give up a lost link by themselves.
const RECONNECT_MORE: Duration = Duration::from_secs(60);

/// Maximum bytes of the job of an end. The rest of the message has room for fields with bounds of their own: a host,
/// options, a directory.
const JOB_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (16 << 10);

/// An ordinary copy in progress.
#[derive(Default)]
pub(super) struct Going {
    from: Node,
    to: Node,
    /// How far each end has come.
    reached: [Reached; 2],
    /// When its ends were told to end.
    stopped: Option<Instant>,
    /// How long it had stood still, if it was stopped for that.
    still: Option<Duration>,
}

/// How far an end of a copy has come, by its own word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reached {
    bytes: u64,
    done: Amount,
    found: Amount,
    kept_bytes: u64,
    work: u64,
}

impl Going {
    /// Returns the nodes that give and get the copy.
    pub(super) fn nodes(&self) -> (Node, Node) {
        (self.from, self.to)
    }

    /// Whether it was stopped and its ends are no longer waited for.
    fn is_left(&self) -> bool {
        self.stopped.is_some_and(|since| since.elapsed() >= STOPPED_MAX)
    }
}

impl Reached {
    /// Takes a report. Returns whether the end has come further than by its earlier reports.
    fn hear(&mut self, bytes: u64, tree: Option<&TreeProgress>) -> bool {
        let before = *self;
        self.bytes = self.bytes.max(bytes);
        if let Some(tree) = tree {
            self.done = self.done.max(tree.done);
            self.found = self.found.max(tree.found);
            self.kept_bytes = self.kept_bytes.max(tree.kept_bytes);
            self.work = self.work.max(tree.work);
        }
        *self != before
    }
}

impl Copy<'_> {
    /// Refuses sources whose names take more than one request. With a single host, they would be sent ahead of it.
    pub(super) fn check_request(&self, source: usize, found: &[(usize, Found)]) -> Result<(), Failure> {
        let settings = self.plan.tree.clone();
        // A node on this host is begun without a message, so only the other hosts' requests count, which have no paths. A
        // host that leaves the chain may still need a request with paths, and fails if that is too long.
        let job = if source == HERE && !settings.sync {
            let (directory, names) = (Vec::new(), names_of(&Placed::default(), found));
            frames::Job::ReceiveTree { directory, names, settings, expected: None }
        } else {
            frames::Job::SendTree { roots: roots_of(found), settings }
        };
        too_long(&job).map_or(Ok(()), Err)
    }

    /// Begins an ordinary copy of the tree from a node that has it to another node.
    pub(super) fn copy_node(&mut self, run: &mut Run, from: Node, to: Node) {
        let mut settings = run.settings.clone();
        settings.compares = settings.may_compare();
        if self.has_image(&run.found) {
            settings.modify_window = 0;
        }
        let is_directory = matches!(&run.found[..], [(_, found)] if found.kind == Kind::Directory);
        let placed = run.target(to).placed.as_ref().expect("it is a node");
        let is_dst = placed.as_name.is_some() && (is_directory || placed.is_block);
        settings.generations.session = Session { is_dst, is_last: true, ..Session::default() };
        let roots = match from {
            SOURCE => roots_of(&run.found),
            node => {
                let placed = run.target(node).placed.as_ref().expect("it is a node");
                // The slash tells where patterns that are anchored begin, as at the source.
                let path = |found: &Found| {
                    let mut path = target(placed, found).into_os_string().into_vec();
                    path.extend(found.path.ends_with(b"/").then_some(b'/'));
                    path
                };
                let root = |(_, found): &(usize, Found)| Root { path: path(found).into(), ..root_of(found) };
                run.found.iter().map(root).collect()
            }
        };
        let (directory, names) = (placed.directory.clone(), names_of(placed, &run.found));
        let proof = run.links.proof.and_then(|proof| proof.tree);
        let expected = proof.map(|proof| Expected { proof, is_bound: from != SOURCE });
        let receive = frames::Job::ReceiveTree { directory, names, settings: settings.clone(), expected };
        if from != SOURCE {
            // The giver's tree is what these options have made of the source's.
            settings.chmod.clear();
            (settings.prune_empty_dirs, settings.copy_dirlinks) = (false, false);
        }
        let send = frames::Job::SendTree { roots, settings };
        if let Some(failure) = too_long(&send) {
            // Such a request would fail the host that gives the copy, and with it all others.
            run.target_mut(to).failure = Some(failure);
            return run.chain.copy_over(from, to, CopyEnd::ToFailed);
        }
        let hosts = [from, to].map(|node| run.links.hosts[node]);
        let mut transfer = self.plan.transfer.clone();
        // The copies that a host may give at the same time share the limit. Hosts that join have a share as well.
        let at_once = u64::from(run.chain.copies_at_once()).min(run.targets.len().max(1) as u64);
        transfer.bwlimit = transfer.bwlimit.map(|rate| (rate / at_once).max(1));
        let hop = self.job.session(hosts, [send, receive], &transfer);
        run.copies.insert(hop, Going { from, to, ..Going::default() });
        let target = run.target_mut(to);
        (target.from, target.undeleted) = (Some(hosts[0]), 0);
    }

    /// Tells both ends of a hop to end. If it is a copy, they are not waited for without limit.
    pub(super) fn stop_hop(&mut self, run: &mut Run, hop: usize) {
        if let Some(copy) = run.copies.get_mut(&hop) {
            copy.stopped.get_or_insert_with(Instant::now);
        }
        self.job.stop(hop, libc::SIGTERM as u8);
    }

    /// Ends the copies that a lost host gives or gets. Otherwise the other end would wait as long as a lost link may
    /// take to come back.
    pub(super) fn stop_copies_of(&mut self, run: &mut Run, host: usize) {
        let is_its = |hop: &usize| self.job.hops[*hop].hosts.contains(&host);
        let hops: Vec<usize> = run.copies.keys().copied().filter(is_its).collect();
        hops.into_iter().for_each(|hop| self.stop_hop(run, hop));
    }

    /// Ends the copies that have stood still for too long, as when the file system of the destination hangs.
    pub(super) fn stop_stuck(&mut self, run: &mut Run) {
        let least = Duration::from_secs(self.plan.transfer.reconnect.into()) + RECONNECT_MORE;
        for (node, still) in run.chain.stuck(run.began.elapsed(), least) {
            let is_it = |copy: &Going| copy.to == node && copy.stopped.is_none();
            let Some((&hop, copy)) = run.copies.iter_mut().find(|(_, copy)| is_it(copy)) else { continue };
            copy.still = Some(still);
            self.stop_hop(run, hop);
        }
    }

    /// Reports copies that are over to the chain.
    pub(super) fn settle_copies(&mut self, run: &mut Run) {
        let is_over = |hop: usize, copy: &Going| copy.is_left() || links::is_over(&self.job, hop);
        let over: Vec<usize> =
            run.copies.iter().filter(|(hop, copy)| is_over(**hop, copy)).map(|(hop, _)| *hop).collect();
        over.into_iter().for_each(|hop| self.end_copy(run, hop));
    }

    fn end_copy(&mut self, run: &mut Run, hop: usize) {
        let Some(Going { from, to, still, .. }) = run.copies.remove(&hop) else { return };
        let now = run.began.elapsed();
        let [sent, received] = self.job.hops[hop].reports.clone();
        let end = match copy_end(sent.as_ref(), received.as_ref()) {
            // An end whose disk hangs cannot report that.
            CopyEnd::Broken if still.is_some() => CopyEnd::Stuck,
            end => end,
        };
        let fault = match end {
            CopyEnd::Made | CopyEnd::Stuck => None,
            CopyEnd::Forged | CopyEnd::ToFailed => {
                received.as_ref().and_then(|report| Some((run.links.hosts[to], report.fault.as_ref()?)))
            }
            // If this command stopped the hop, the signal is not the reason for the failure.
            CopyEnd::Broken => {
                let hop = &self.job.hops[hop];
                hop.first_fault().filter(|(_, fault)| !hop.is_stopping || fault.exit <= 128)
            }
        };
        let failure = fault.map(|(host, fault)| self.failure(host, fault));
        let [giver, taker] = [from, to].map(|node| self.label(run.links.hosts[node]));
        let failure = still.map_or(failure, |still| Some(stood_still(&giver, &taker, still)));
        if end == CopyEnd::Forged {
            // The data may be wrong, or entries that failed on the host were not there to be compared.
            self.say(&format!("{taker} could not verify the data from {giver}; it gets its copy from the source"));
            run.target_mut(to).note_forged();
        }
        if received.as_ref().is_some_and(|report| !may_be_copied(&report.tree)) {
            run.chain.keep_to_itself(to);
        }
        let unsent = sent.as_ref().map(|report| report.tree.failed);
        let unsent = unsent.or(received.as_ref().map(|report| report.tree.failed_there)).unwrap_or(0);
        if sent.is_none() {
            self.tell_failed_there(run.links.hosts[from], unsent);
        }
        // Why a host is lost has been recorded already.
        let is_gone = self.job.hosts[run.links.hosts[to]].gone;
        let target = run.target_mut(to);
        target.unsent = unsent;
        if received.is_some() {
            target.report = received;
        }
        if end == CopyEnd::Made {
            // What fails with the source's data too may be all that did not match.
            let is_whole = target.report.as_ref().is_none_or(|report| report.tree.failed == 0);
            target.failure = (target.may_hold_forged && is_whole).then(|| forged_left(&taker));
            target.done_after = Some(now);
        } else if let Some(failure) = failure.filter(|_| !is_gone) {
            target.failure = Some(failure);
        }
        run.chain.copy_over(from, to, end);
    }
}

impl Run {
    /// Records how far an end of a hop is, if the hop is an ordinary copy.
    pub(super) fn note_copied(&mut self, hop: usize, side: Side, bytes: u64, tree: Option<TreeProgress>) {
        let Some(copy) = self.copies.get_mut(&hop) else { return };
        let to = copy.to;
        if copy.reached[side as usize].hear(bytes, tree.as_ref()) {
            self.chain.copy_moved(to, self.began.elapsed());
        }
        // Only the receiver knows what is complete there.
        if side == Side::To && tree.is_some() {
            self.target_mut(to).state.tree = tree;
        }
    }

    /// Returns the failure of a host that got another version of the source than that of the stream, which another host
    /// has: the source had changed when it gave this host its copy.
    pub(super) fn other_version(&self, at: usize) -> Option<Failure> {
        // A host where the source itself stands has nothing that was copied.
        let has_first = |other: usize| {
            let target = &self.targets[other];
            let is_first = target.report.as_ref().is_some_and(|report| !report.tree.is_other);
            is_first && self.counts(other) && target.is_complete()
        };
        let has_failed = self.has_other_version(at) && (0..self.targets.len()).any(has_first);
        has_failed.then(|| version_differs(&escaped(self.targets[at].spec.host())))
    }

    /// Reports whether several hosts got their copies from a source that had changed, and no host has the version of the
    /// stream. The source may have changed again between these copies.
    pub(super) fn may_differ(&self) -> bool {
        let is_one = |&at: &usize| self.counts(at) && self.has_other_version(at);
        let all: Vec<usize> = (0..self.targets.len()).filter(is_one).collect();
        all.len() > 1 && self.other_version(all[0]).is_none()
    }

    fn has_other_version(&self, at: usize) -> bool {
        let target = &self.targets[at];
        // What failed on the host cannot have been compared, and counts already.
        let is_other = |report: &Report| report.tree.is_other && report.tree.failed == 0;
        target.is_complete() && target.report.as_ref().is_some_and(is_other)
    }
}

impl Target {
    /// Records that the host was given data that is not the source's. In a directory that had entries before, entries
    /// appear as they come, and the later copy from the source leaves alone what the source does not have.
    pub(super) fn note_forged(&mut self) {
        self.may_hold_forged |= self.placed.as_ref().is_some_and(|placed| placed.is_there);
    }
}

/// Whether others may copy a tree from the host that has reported this about it. They compare what they receive with
/// what the source has sent, so a tree without some of its metadata would look as if the host had altered it.
pub(super) fn may_be_copied(tree: &TreeFigures) -> bool {
    !tree.is_other && tree.failed == 0 && !tree.has_less_metadata
}

/// Returns how a copy has ended, by the reports of its two ends. Only what the receiver has found out itself is its
/// failure. If it reports only that the other end is lost, or that it was stopped, any other host may still give the
/// copy.
fn copy_end(sent: Option<&Report>, received: Option<&Report>) -> CopyEnd {
    let Some(received) = received else { return CopyEnd::Broken };
    let its_own = [Exit::Destination, Exit::Integrity, Exit::Protocol];
    match (&received.fault, sent.and_then(|sent| sent.fault.as_ref())) {
        (None, None) => CopyEnd::Made,
        (Some(fault), _) if fault.is_misled() => CopyEnd::Forged,
        (Some(fault), _) if fault.own && its_own.contains(&Exit::from_code(fault.exit)) => CopyEnd::ToFailed,
        _ => CopyEnd::Broken,
    }
}

/// Returns the failure of a copy with so many sources that an end cannot be asked to handle all of them.
fn too_long(job: &frames::Job) -> Option<Failure> {
    let bytes = minicbor::to_vec(job).expect("a vector takes everything").len();
    let [kib, most] = [bytes.div_ceil(1024), JOB_BYTES_MAX >> 10];
    let line = format!(
        "too many SRC for a copy to several hosts: their names and the options take {kib} KiB, and a request has room for {most} KiB; \
         copy their directory instead, with -r, or fewer at a time"
    );
    (bytes > JOB_BYTES_MAX).then(|| Exit::Usage.with(line))
}

/// The failure of a host whose copy was stopped because it got no further.
fn stood_still(giver: &str, taker: &str, still: Duration) -> Failure {
    let minutes = still.as_secs() / 60;
    let line = format!(
        "{taker}: the copy from {giver} made no progress for {minutes} minutes; check whether the file systems of \
         {giver} and {taker} still answer, and copy to {taker} again"
    );
    Exit::LinkLost.with(line)
}

/// The failure of a host that was copied to after the source had changed.
fn version_differs(host: &str) -> Failure {
    let line = format!("{host} has another version than the others, because the source has changed; copy to all again");
    Exit::Partial.with(line)
}

/// The failure of a host that has the source's tree, but may also have entries of a host that altered the data.
fn forged_left(host: &str) -> Failure {
    let line = format!(
        "{host} has all of the source, but was first sent altered data, and other files there may have been added or \
         replaced by that; compare with `rdcp -rn --sync --delete`, which lists what the source does not have"
    );
    Exit::Integrity.with(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frames::Fault;

    /// If the giver dies, or the two ends do not meet, the receiver reports that alone, or first.
    #[test]
    fn only_what_a_receiver_finds_out_itself_is_its_failure() {
        let report = |fault: Option<Fault>| Some(Report { fault, ..Report::default() });
        let fault = |exit: Exit, own: bool| report(Some(Fault { own, ..Fault::plain(exit.code(), "") }));
        let (well, lost) = (|| report(None), || fault(Exit::LinkLost, false));
        let ended = || fault(Exit::Signal(15), true);
        for (sent, received, end) in [
            (well(), well(), CopyEnd::Made),
            (None, well(), CopyEnd::Made),
            (None, lost(), CopyEnd::Broken),
            (lost(), lost(), CopyEnd::Broken),
            (lost(), well(), CopyEnd::Broken),
            (lost(), None, CopyEnd::Broken),
            (None, ended(), CopyEnd::Broken),
            (ended(), ended(), CopyEnd::Broken),
            (None, None, CopyEnd::Broken),
            (fault(Exit::Source, true), fault(Exit::Source, false), CopyEnd::Broken),
            (None, fault(Exit::Connect, true), CopyEnd::Broken),
            (fault(Exit::Destination, false), fault(Exit::Destination, true), CopyEnd::ToFailed),
            (None, fault(Exit::Integrity, true), CopyEnd::ToFailed),
            (None, fault(Exit::Protocol, true), CopyEnd::ToFailed),
            (None, report(Some(Fault::misled("other data"))), CopyEnd::Forged),
        ] {
            assert_eq!(copy_end(sent.as_ref(), received.as_ref()), end, "{sent:?} {received:?}");
        }
    }

    #[test]
    fn others_copy_only_a_tree_that_is_all_that_the_source_has() {
        let whole = TreeFigures::default();
        assert!(may_be_copied(&whole));
        for tree in [
            TreeFigures { failed: 1, ..whole },
            TreeFigures { is_other: true, ..whole },
            TreeFigures { has_less_metadata: true, ..whole },
        ] {
            assert!(!may_be_copied(&tree), "{tree:?}");
        }
    }

    /// Comparing a large file at the receiver counts too: the sender reports what need not be sent. So does what the
    /// receiver deletes, or copies from files of its own.
    #[test]
    fn any_count_that_grows_is_progress_and_a_repeated_report_is_none() {
        let tree = |done: u64, found: u64, kept_bytes: u64, work: u64| {
            let amount = |entries: u64| Amount { entries, directories: 0, bytes: 0 };
            TreeProgress {
                done: amount(done),
                kept_bytes,
                found: amount(found),
                has_found_all: false,
                name: vec![done as u8],
                may_send_more: true,
                work,
            }
        };
        let mut reached = Reached::default();
        for (bytes, tree, has_moved) in [
            (0, None, false),
            (0, Some(tree(0, 0, 0, 0)), false),
            (1, None, true),
            (1, Some(tree(0, 3, 0, 0)), true),
            (1, Some(tree(2, 3, 0, 0)), true),
            (1, Some(tree(2, 3, 8 << 20, 0)), true),
            (1, Some(tree(2, 3, 8 << 20, 0)), false),
            (0, Some(tree(1, 2, 0, 0)), false),
            (1, Some(tree(2, 3, 9 << 20, 0)), true),
            (1, Some(tree(2, 3, 9 << 20, 1)), true),
            (1, Some(tree(2, 3, 9 << 20, 1)), false),
        ] {
            assert_eq!(reached.hear(bytes, tree.as_ref()), has_moved, "{bytes} {tree:?}");
        }
    }
}
