//! Trees at an end: makes walks and sinks, and reports on them to the caller.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flume::Sender;
use minicbor::bytes::ByteVec;
use rd_proto::control::IoFact;
use rd_proto::session::Outcome;

use super::place;
use crate::control::frames::{
    FAULTS_MAX, Fault, Job, KEPT_PATH_BYTES_MAX, Kept, Message, PROGRESS_NAME_BYTES_MAX, Report, SOURCES_BYTES_MAX,
    Sources, TreeProgress, end_of,
};
use crate::control::tunnel::Emit;
use crate::engine::tree::answer;
use crate::engine::{Event, Figures, Summary, Waits};
use crate::fault::{Exit, os_number};
use crate::options::TreeOptions;
use crate::tree::Root;
use crate::tree::count;
use crate::tree::entries::EntryStream;
use crate::tree::local;
use crate::tree::progress::{Amount, Progress};
use crate::tree::sink::{Destination, Names, Refused, TreeSink};
use crate::tree::source::TreeSource;
use crate::tree::stats::TreeFigures;

/// How often a copy within one host reports its progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

/// Sources and names that have come for the next job, because its BEGIN has no room for them.
#[derive(Default)]
pub(super) struct Ahead {
    all: Sources,
    bytes: usize,
}

impl Ahead {
    /// Takes more of them.
    ///
    /// # Errors
    ///
    /// Exit 1 if they become too many. Then none is left.
    pub(super) fn take(&mut self, part: Sources) -> Result<(), Fault> {
        self.bytes += part.bytes();
        if self.bytes > SOURCES_BYTES_MAX {
            *self = Self::default();
            let most = SOURCES_BYTES_MAX >> 20;
            let detail = format!("the paths to copy take more than {most} MiB; copy their directory, or fewer of them");
            return Err(Fault::plain(Exit::Usage.code(), detail));
        }
        self.all.add(part);
        Ok(())
    }

    /// Gives them to a job that has none of its own.
    pub(super) fn give(self, job: &mut Job) {
        let Sources { roots: ahead, names: names_ahead } = self.all;
        if let Job::SendTree { roots, .. } | Job::Copy { roots, .. } = job
            && roots.is_empty()
        {
            *roots = ahead;
        }
        if let Job::ReceiveTree { names, .. } | Job::Copy { names, .. } = job
            && names.is_empty()
        {
            *names = names_ahead;
        }
    }
}

/// What a copy may be asked to count ahead of itself; `None` if there is nothing, or once counting has begun.
pub(crate) type Countable = Option<(Vec<Root>, TreeOptions)>;

/// Starts a thread that counts until `is_over`, if there is anything to count.
pub(crate) fn count(countable: &mut Countable, progress: &Arc<Progress>, is_over: &Arc<AtomicBool>) {
    let Some((roots, settings)) = countable.take() else { return };
    let (progress, is_over) = (Arc::clone(progress), Arc::clone(is_over));
    let count = move || count::count(roots, settings, &progress, &|| is_over.load(Ordering::Relaxed));
    // Without the thread, the total stays unknown.
    let _ = crate::spawn("count", count::STACK_BYTES, count);
}

/// Returns the progress of an end in the form that is reported.
pub(crate) fn progress(progress: &Progress) -> TreeProgress {
    let (found, has_found_all) = progress.total();
    TreeProgress {
        done: progress.so_far(),
        kept_bytes: progress.kept_bytes(),
        found,
        has_found_all,
        may_send_more: progress.may_send_more(),
        work: progress.work(),
        name: end_of(progress.name(), PROGRESS_NAME_BYTES_MAX),
    }
}

/// Returns how a tree is written. `names`: the names that may appear in the directory. A single name is given to the
/// only root, whatever the sender calls it.
pub(crate) fn destination(
    names: &[ByteVec],
    options: &TreeOptions,
    progress: &Arc<Progress>,
    entries: &Arc<EntryStream>,
) -> Destination {
    let names = match names {
        [name] => Names::Only(name.to_vec()),
        names => Names::Among(names.iter().map(|name| name.to_vec()).collect()),
    };
    let (options, progress) = (options.clone(), Arc::clone(progress));
    let entries = options.itemize_changes.then(|| Arc::clone(entries));
    Destination { progress, entries, ..Destination::new(options, names) }
}

/// Creates the sink for a tree that a session receives.
pub(crate) fn sink(
    directory: &[u8],
    destination: Destination,
    entries: &Arc<EntryStream>,
    post: &Sender<Event>,
    emit: &Emit,
) -> Result<TreeSink, IoFact> {
    let (answer, is_over) = answer(post.clone());
    entries.end_when(is_over);
    let mut sink = TreeSink::new(&path_of(directory), destination, answer)?;
    sink.list_to(entries);
    tell_kept(&mut sink, emit);
    Ok(sink)
}

pub(super) fn tell_kept(sink: &mut TreeSink, emit: &Emit) {
    let emit = Emit::clone(emit);
    sink.on_kept(Box::new(move |paths, bytes, state| {
        if let [path, others @ ..] = paths {
            let path = end_of(path.clone(), KEPT_PATH_BYTES_MAX);
            emit(Message::Kept(Kept { path, others: others.len() as u64, bytes, state }));
        }
    }));
}

/// Returns what became of a tree. A copy within this host has a sender's and a receiver's part, and reports on both.
pub(crate) fn figures(summary: &Summary) -> TreeFigures {
    let failed_there = summary.figures.counters.unmade;
    let sent = summary.sent_tree.as_ref().map(|sent| TreeFigures { failed_there, ..sent.figures });
    match (sent, summary.received_tree.as_ref().map(|received| received.figures)) {
        (Some(sent), Some(received)) => sent.joined(received),
        (one, other) => one.or(other).unwrap_or_default(),
    }
}

/// `--remove-source-files`: removes what has been sent, if the receiver has acknowledged everything and nothing has
/// failed there.
pub(crate) fn remove_spent(summary: &mut Summary, emit: &Emit) {
    let (Some(spent), Some(sent)) = (summary.spent.take(), &mut summary.sent_tree) else { return };
    if summary.outcome != Outcome::Done {
        return;
    }
    // It is not known here which entries failed there.
    let unmade =
        summary.figures.counters.unmade + summary.received_tree.as_ref().map_or(0, |received| received.figures.failed);
    if unmade > 0 {
        emit(Message::Say("nothing is removed from SRC, because not all of it was copied to DST".to_owned()));
        return;
    }
    let removed = spent.remove();
    sent.figures.failed += removed.failed;
    sent.unremoved.extend(removed.failures);
}

/// Reports the entries of a tree with which this end has failed.
pub(crate) fn tell_failed(summary: &Summary, emit: &Emit) {
    let sent = summary.sent_tree.iter().flat_map(|sent| {
        sent.failures.iter().map(Fault::unreadable).chain(sent.unremoved.iter().map(Fault::unremovable))
    });
    let received = summary.received_tree.iter().flat_map(|received| {
        let lacking = received.lacking.iter().map(|one| Fault::io(Exit::Destination.code(), &one.what, &one.fact));
        received
            .failures
            .iter()
            .map(Fault::unwritable)
            .chain(lacking)
            .chain(received.spared.iter().map(Fault::undeleted))
    });
    tell(sent.chain(received), emit);
    let sent = summary.sent_tree.iter().flat_map(|sent| sent.without.iter());
    for fact in sent.chain(summary.received_tree.iter().flat_map(|received| &received.without)) {
        let path = Path::new(OsStr::from_bytes(&fact.path)).display();
        emit(Message::Say(match fact.errno {
            0 => format!("{path} {}", String::from_utf8_lossy(&fact.detail)),
            errno => format!("{path}: {}; nothing is linked to it", os_number(errno)),
        }));
    }
    // Not a failure, because the file system can keep nothing else, but not silent either: not even with `--quiet`,
    // which knows such remarks by how they end (`WARNINGS` of `cli/report.rs`).
    let without_xattrs = summary.received_tree.as_ref().map_or(0, |received| received.without_xattrs);
    if without_xattrs > 0 {
        let entries =
            if without_xattrs == 1 { "1 entry has".to_owned() } else { format!("{without_xattrs} entries have") };
        emit(Message::Say(format!(
            "{entries} lost ACLs or other extended attributes, which the file system of DST does not support"
        )));
    }
    // Entries that are not copied, without being failures.
    for leftover in summary.sent_tree.iter().flat_map(|sent| sent.leftovers.iter()) {
        let path = Path::new(OsStr::from_bytes(&leftover.path));
        emit(Message::Say(format!("skipped {}, left by an interrupted copy", path.display())));
    }
}

/// Reports entries with their failures, split into messages.
pub(crate) fn tell(faults: impl Iterator<Item = Fault>, emit: &Emit) {
    let mut faults = faults.peekable();
    while faults.peek().is_some() {
        emit(Message::EntriesFailed(faults.by_ref().take(FAULTS_MAX).collect()));
    }
}

/// A copy within this host.
pub(crate) struct LocalCopy {
    pub(crate) roots: Vec<Root>,
    pub(crate) directory: Vec<u8>,
    pub(crate) names: Vec<ByteVec>,
    pub(crate) settings: TreeOptions,
    /// Set by another thread to end the copy.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) entries: Arc<EntryStream>,
}

impl LocalCopy {
    /// Makes the copy. Reports to `emit` its progress and the entries that could not be copied.
    pub(crate) fn copy(&self, emit: &Emit) -> Report {
        let start = Instant::now();
        let mut summary = Summary::default();
        let fault = self.join(emit, &mut summary).err();
        if fault.is_none() {
            remove_spent(&mut summary, emit);
        }
        tell_failed(&summary, emit);
        let mut tree = figures(&summary);
        let mut figures = Figures { seconds: start.elapsed().as_secs_f64(), ..Figures::default() };
        figures.counters.bytes = tree.amount.bytes;
        if fault.is_some() {
            // Not everything that was read has been written, and what was written is not published.
            figures.counters.bytes = self.progress.so_far().bytes;
            tree.amount = Amount::default();
        }
        Report { fault, route: "copied within the host".to_owned(), figures, tree }
    }

    fn join(&self, emit: &Emit, summary: &mut Summary) -> Result<(), Fault> {
        let Self { roots, directory, names, settings, stop, progress, entries } = self;
        // Users and groups have the same numbers at both ends.
        let settings = &TreeOptions { numeric_ids: true, ..settings.clone() };
        let unwritable = |fact: IoFact| Fault::unwritable(&fact);
        let source = TreeSource::new(roots.clone(), local::CHUNK_BYTES, settings.clone(), Arc::clone(progress));
        let source = Arc::new(source.map_err(|fact| Fault::unreadable(&fact))?.local());
        // Made before the sink, because the sink must have removed everything unpublished when `_made` is dropped.
        let _made = if settings.dry_run { None } else { place::make(directory, settings).map_err(unwritable)? };
        let is_stopped = Arc::clone(stop);
        entries.end_when(move || is_stopped.load(Ordering::Relaxed));
        let options = Destination { is_local: true, ..destination(names, settings, progress, entries) };
        let mut sink = TreeSink::new(&path_of(directory), options, local::answer(&source)).map_err(unwritable)?;
        sink.list_to(entries);
        tell_kept(&mut sink, emit);
        let mut last = Instant::now();
        let tick = || {
            if last.elapsed() >= PROGRESS_EVERY {
                last = Instant::now();
                entries.send_waiting();
                let tree = self::progress(progress);
                emit(Message::Progress { bytes: tree.done.bytes, waits: Waits::default(), tree: Some(tree) });
            }
        };
        let copied = local::copy(&source, &mut sink, stop, tick);
        summary.sent_tree = Some(source.sent());
        summary.spent = source.take_spent().map(Arc::new);
        match copied {
            Ok(received) => summary.received_tree = Some(received),
            Err(_) if stop.load(Ordering::Relaxed) => {
                return Err(Fault::plain(Exit::Signal(libc::SIGTERM as u8).code(), ""));
            }
            Err(Refused::Io(fact)) => return Err(unwritable(fact)),
            Err(refused) => return Err(Fault::plain(Exit::Protocol.code(), refused.to_string())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Only;

    #[test]
    fn a_job_gets_what_has_come_ahead_of_it() {
        let path = |number: usize| ByteVec::from(format!("d/{number:04}").into_bytes());
        let only = Only { paths: (0..2000).map(path).collect(), recursive: true, ..Only::default() };
        let all = Sources {
            roots: vec![Root { only: Some(only), ..Root::new("/from", "from") }],
            names: (0..2000).map(path).collect(),
        };
        let mut ahead = Ahead::default();
        all.clone().parts(4096).for_each(|part| ahead.take(part).expect("few"));
        let copy = |roots, names| Job::Copy { roots, directory: Vec::new(), names, settings: TreeOptions::default() };
        let mut job = copy(Vec::new(), Vec::new());
        std::mem::take(&mut ahead).give(&mut job);
        assert_eq!(job, copy(all.roots.clone(), all.names.clone()));
        // Nothing is left for the next job, which has its own.
        ahead.give(&mut job);
        assert_eq!(job, copy(all.roots, all.names));
    }

    #[test]
    fn what_comes_ahead_without_end_is_refused() {
        let part = || Sources { roots: vec![Root::new("/from", "from")], names: Vec::new() };
        let mut ahead = Ahead::default();
        ahead.take(part()).expect("few");
        ahead.bytes = SOURCES_BYTES_MAX;
        assert!(ahead.take(part()).is_err_and(|fault| fault.exit == Exit::Usage.code()));
        assert_eq!((ahead.all, ahead.bytes), (Sources::default(), 0));
    }
}
