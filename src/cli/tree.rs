//! What of a tree is copied: the options of `rdcp`, as messages carry them and as the ends take them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use flume::Sender;
use minicbor::bytes::ByteVec;
use rd_proto::control::IoFact;

use crate::agent::place;
use crate::control::frames::{
    FAULTS_MAX, Fault, KEPT_PATH_BYTES_MAX, Kept, MESSAGE_BYTES_MAX, Message, PROGRESS_NAME_BYTES_MAX, Report, Root,
    Sieve, TreeProgress, TreeSettings,
};
use crate::control::tunnel::Emit;
use crate::engine::tree::{Chunk, answer};
use crate::engine::{Event, SentTree, Summary};
use crate::fault::{Exit, Failure, escaped};
use crate::fs::metadata::Keep;
use crate::tree::count;
use crate::tree::local;
use crate::tree::patterns::Patterns;
use crate::tree::progress::Progress;
use crate::tree::sink::{self as tree_sink, TreeSink};
use crate::tree::source::TreeSource;
use crate::tree::walk;

/// Bytes that the patterns may take in a message: half of it, so that paths fit beside them.
pub(crate) const SIEVE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// Bytes in a message for each pattern, beside its own.
const SIEVE_OVERHEAD_BYTES: usize = 8;

/// How often a copy on one host tells how far it has come.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Options of what is copied and how it is written.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Files")]
pub struct TreeOptions {
    /// Leave out what matches PATTERN, as in a .gitignore, but a # in front and spaces behind are part of it; of several
    /// patterns the last that matches decides
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Do not leave out what matches PATTERN, although an --exclude before it does
    #[arg(long, value_name = "PATTERN")]
    include: Vec<OsString>,
    /// Give copies the mode and ACL of new files, not those of their source
    #[arg(long)]
    no_mode: bool,
    /// Do not keep owner and group, which only root can
    #[arg(long)]
    no_owner: bool,
    /// Do not keep the times of last change and access
    #[arg(long)]
    no_times: bool,
    /// Do not keep extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Copy a file with several names once for each of them
    #[arg(long)]
    no_hard_links: bool,
    /// Write out the holes of files that have some
    #[arg(long)]
    no_sparse: bool,
    /// Pass over symbolic links
    #[arg(long)]
    no_symlinks: bool,
    /// Pass over FIFOs, sockets and devices
    #[arg(long)]
    no_specials: bool,
    /// Write into files that are there instead of replacing them when all has arrived
    #[arg(long)]
    in_place: bool,
    /// Have each file, then its directory, on stable storage before the end
    #[arg(long)]
    fsync: bool,
    /// Read all data back from the disk and compare it before its file appears; not for copies on one host
    #[arg(long, value_enum, value_name = "WHERE", require_equals = true)]
    verify: Option<Verify>,
}

/// `--verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// What the disk has stored
    Disk,
}

impl TreeOptions {
    /// As messages carry them. `sieve`: includes and excludes in the order of the command line.
    pub(crate) fn settings(&self, recursive: bool, sieve: Vec<Sieve>) -> TreeSettings {
        TreeSettings {
            recursive,
            mode: !self.no_mode,
            owner: !self.no_owner,
            times: !self.no_times,
            xattrs: !self.no_xattrs,
            hard_links: !self.no_hard_links,
            sparse: !self.no_sparse,
            symlinks: !self.no_symlinks,
            specials: !self.no_specials,
            in_place: self.in_place,
            fsync: self.fsync || self.verify.is_some(),
            read_back: self.verify.is_some(),
            sieve,
        }
    }

    /// The patterns, in the order in which they were given.
    ///
    /// # Errors
    ///
    /// A usage failure for a pattern that is none.
    pub(crate) fn sieve(&self, matches: &clap::ArgMatches) -> Result<Vec<Sieve>, Failure> {
        let mut all: Vec<(usize, Sieve)> = Vec::new();
        for (name, patterns, is_include) in [("exclude", &self.exclude, false), ("include", &self.include, true)] {
            let places = matches.indices_of(name).into_iter().flatten();
            for (place, pattern) in places.zip(patterns) {
                all.push((place, Sieve { pattern: ByteVec::from(pattern.as_bytes().to_vec()), is_include }));
            }
        }
        all.sort_by_key(|(place, _)| *place);
        let sieve: Vec<Sieve> = all.into_iter().map(|(_, sieve)| sieve).collect();
        patterns(&sieve).map_err(|detail| Failure::new(Exit::Usage, detail))?;
        let bytes: usize = sieve.iter().map(|sieve| sieve.pattern.len() + SIEVE_OVERHEAD_BYTES).sum();
        if bytes > SIEVE_BYTES_MAX {
            let limit = SIEVE_BYTES_MAX >> 10;
            let message = format!(
                "the patterns of --exclude and --include take {} KiB, {limit} KiB at most; use fewer with more wildcards",
                bytes.div_ceil(1024)
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(sieve)
    }
}

/// What the patterns leave out.
///
/// # Errors
///
/// A sentence with the first pattern that is refused.
fn patterns(sieve: &[Sieve]) -> Result<Patterns, String> {
    let mut patterns = Patterns::default();
    for Sieve { pattern, is_include } in sieve {
        patterns.push(pattern, *is_include).map_err(|reason| {
            let option = if *is_include { "--include" } else { "--exclude" };
            format!("{option} '{}': the pattern {reason}", escaped(OsStr::from_bytes(pattern)))
        })?;
    }
    Ok(patterns)
}

/// Whether an entry is left out, by its path below the source. The source itself never is: it was asked for by name.
fn is_left_out(patterns: &Patterns, path: &Path, is_directory: bool) -> bool {
    let mut components = path.components();
    components.next();
    let below = components.as_path().as_os_str();
    !below.is_empty() && patterns.leave_out(below.as_bytes(), is_directory)
}

fn path_of(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

/// How a tree is walked.
///
/// # Errors
///
/// As [`patterns`].
fn walk_options(settings: &TreeSettings, progress: &Arc<Progress>) -> Result<walk::Options, String> {
    let patterns = patterns(&settings.sieve)?;
    let filter = (!patterns.is_empty())
        .then(|| -> walk::Filter { Box::new(move |path, is_directory| !is_left_out(&patterns, path, is_directory)) });
    Ok(walk::Options {
        xattrs: settings.xattrs,
        hard_links: settings.hard_links,
        symlinks: settings.symlinks,
        specials: settings.specials,
        sparse: settings.sparse,
        recursive: settings.recursive,
        follow_roots: !settings.recursive,
        filter,
        progress: Arc::clone(progress),
    })
}

fn walk_roots(roots: &[Root]) -> Vec<walk::Root> {
    let root = |root: &Root| walk::Root { path: path_of(&root.path), name: OsString::from_vec(root.name.to_vec()) };
    roots.iter().map(root).collect()
}

/// The sending end of a tree.
pub(crate) fn source(
    roots: &[Root],
    settings: &TreeSettings,
    chunk_bytes: usize,
    progress: &Arc<Progress>,
) -> Result<TreeSource, IoFact> {
    let options =
        walk_options(settings, progress).map_err(|detail| crate::fs::plain_fact(OsStr::new("--exclude"), &detail))?;
    TreeSource::new(walk_roots(roots), chunk_bytes, options)
}

/// What a copy may be asked to count ahead of itself.
#[derive(Debug)]
pub(crate) struct Countable {
    pub(crate) roots: Vec<Root>,
    pub(crate) settings: TreeSettings,
}

impl Countable {
    /// Counts, in a thread of its own, until `is_over`.
    pub(crate) fn count(self, progress: &Arc<Progress>, is_over: Arc<AtomicBool>) {
        let Ok(options) = walk_options(&self.settings, progress) else { return };
        let progress = Arc::clone(progress);
        let count = move || {
            count::count(&walk_roots(&self.roots), &options, &progress, &|| is_over.load(Ordering::Relaxed));
        };
        // Without one, nobody knows how much it is.
        let _ = std::thread::Builder::new().name("count".to_owned()).stack_size(count::STACK_BYTES).spawn(count);
    }
}

/// How far an end has come, as it is told.
pub(crate) fn told(progress: &Progress) -> TreeProgress {
    let (done, (found, has_found_all)) = (progress.so_far(), progress.total());
    TreeProgress {
        entries: done.entries,
        directories: done.directories,
        bytes: done.bytes,
        kept_bytes: progress.kept_bytes(),
        found_entries: found.entries,
        found_directories: found.directories,
        found_bytes: found.bytes,
        has_found_all,
        name: end_of(progress.name(), PROGRESS_NAME_BYTES_MAX),
    }
}

/// The end of a path that is too long.
fn end_of(mut path: Vec<u8>, bytes_max: usize) -> Vec<u8> {
    if path.len() > bytes_max {
        let dots = b"...";
        path.drain(..path.len() - bytes_max + dots.len());
        path.splice(..0, *dots);
    }
    path
}

/// How a tree is written. `names`: what may appear in the directory; one name is given to the only root, whatever the
/// sender calls it.
fn sink_options(names: &[ByteVec], settings: &TreeSettings, progress: &Arc<Progress>) -> tree_sink::Options {
    let keep = Keep {
        mode: settings.mode,
        owner: settings.owner,
        times: settings.times,
        xattrs: settings.xattrs,
        symlinks: settings.symlinks,
        specials: settings.specials,
    };
    let names: Vec<OsString> = names.iter().map(|name| OsString::from_vec(name.to_vec())).collect();
    let mut options = tree_sink::Options {
        keep,
        fsync: settings.fsync,
        read_back: settings.read_back,
        in_place: settings.in_place,
        files_only: !settings.recursive,
        progress: Arc::clone(progress),
        ..Default::default()
    };
    match <[OsString; 1]>::try_from(names) {
        Ok([name]) => options.rename_root = Some(name),
        Err(names) => options.names = Some(names.into_iter().map(OsString::into_vec).collect()),
    }
    options
}

/// The receiving end of a tree. `names`: see [`sink_options`].
pub(crate) fn sink(
    directory: &[u8],
    names: &[ByteVec],
    settings: &TreeSettings,
    post: &Sender<Event>,
    emit: &Emit,
    progress: &Arc<Progress>,
) -> Result<TreeSink<Chunk>, IoFact> {
    let options = sink_options(names, settings, progress);
    let mut sink = TreeSink::new(&path_of(directory), options, answer(post.clone()))?;
    tell_kept(&mut sink, emit);
    Ok(sink)
}

fn tell_kept<C: AsRef<[u8]> + Send + Sync + 'static>(sink: &mut TreeSink<C>, emit: &Emit) {
    let emit = Emit::clone(emit);
    sink.on_kept(Box::new(move |paths, bytes| {
        if let [path, others @ ..] = paths {
            let path = end_of(path.clone(), KEPT_PATH_BYTES_MAX);
            emit(Message::Kept(Kept { path, others: others.len() as u64, bytes }));
        }
    }));
}

/// Adds what became of a tree to an end's report.
pub(crate) fn add_to(report: &mut Report, summary: &Summary) {
    if let Some(sent) = &summary.sent_tree {
        report.entries = sent.counts.entries;
        report.directories = sent.counts.directories;
        report.data_bytes = sent.counts.bytes;
        report.kept_bytes = sent.counts.kept_bytes;
        report.failed = sent.counts.failures;
        report.failed_there = summary.counters.unmade;
    }
    if let Some(received) = &summary.received_tree {
        report.entries = received.files + received.directories + received.others;
        report.directories = received.directories;
        report.data_bytes = received.bytes;
        report.failed = received.failed;
        report.failed_there = received.unsent;
        report.is_synced = received.is_synced;
        report.is_read_back = received.is_read_back;
    }
}

/// Names the entries of a tree that this end has failed with.
pub(crate) fn tell_failed(summary: &Summary, emit: &Emit) {
    let sent = summary.sent_tree.iter().flat_map(|sent| faults(&sent.failures, Exit::Source, "cannot read"));
    let received = summary.received_tree.iter();
    let received = received.flat_map(|received| faults(&received.failures, Exit::Destination, "cannot write"));
    tell(sent.chain(received), emit);
    let leftovers = summary.sent_tree.iter().flat_map(|sent| &sent.leftovers);
    tell_leftovers(leftovers.map(Path::new), emit);
}

/// Names what is not copied and is no failure.
fn tell_leftovers<'a>(paths: impl Iterator<Item = &'a Path>, emit: &Emit) {
    for path in paths {
        emit(Message::Say(format!("passed over {}, which an interrupted copy left", path.display())));
    }
}

fn faults<'a>(facts: &'a [IoFact], exit: Exit, what: &'a str) -> impl Iterator<Item = Fault> + 'a {
    facts.iter().map(move |fact| Fault::io(exit.code(), what, fact))
}

/// Names entries with what is wrong with them.
pub(crate) fn tell(faults: impl Iterator<Item = Fault>, emit: &Emit) {
    let mut faults = faults.peekable();
    while faults.peek().is_some() {
        emit(Message::EntriesFailed(faults.by_ref().take(FAULTS_MAX).collect()));
    }
}

/// A copy on this host.
pub(crate) struct Here {
    pub(crate) roots: Vec<Root>,
    pub(crate) directory: Vec<u8>,
    pub(crate) names: Vec<ByteVec>,
    pub(crate) settings: TreeSettings,
    /// Set by another thread, it ends the copy.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) progress: Arc<Progress>,
}

impl Here {
    /// Makes the copy, and tells `emit` how far it is, and which entries could not be copied.
    pub(crate) fn copy(&self, emit: &Emit) -> Report {
        let start = Instant::now();
        let mut summary = Summary::default();
        let fault = self.join(emit, &mut summary).err();
        tell_failed(&summary, emit);
        let mut report = Report { media: vec!["local".to_owned()], ..Report::default() };
        add_to(&mut report, &summary);
        // Both ends are this one.
        let unsent = summary.sent_tree.map_or(0, |sent| sent.counts.failures);
        report.failed = unsent + summary.received_tree.map_or(0, |received| received.failed);
        report.failed_there = 0;
        report.bytes = report.data_bytes;
        report.fault = fault;
        report.micros = start.elapsed().as_micros() as u64;
        report
    }

    fn join(&self, emit: &Emit, summary: &mut Summary) -> Result<(), Fault> {
        let Self { roots, directory, names, settings, stop, progress } = self;
        let unreadable = |fact: IoFact| Fault::io(Exit::Source.code(), "cannot read", &fact);
        let unwritable = |fact: IoFact| Fault::io(Exit::Destination.code(), "cannot write", &fact);
        let source = Arc::new(source(roots, settings, local::CHUNK_BYTES, progress).map_err(unreadable)?);
        // Before the sink, which must have removed what it has not published when this is dropped.
        let _made = place::make(directory).map_err(unwritable)?;
        let options = tree_sink::Options {
            is_local: true,
            may_share: settings.sparse,
            ..sink_options(names, settings, progress)
        };
        let mut sink = TreeSink::new(&path_of(directory), options, local::answer(&source)).map_err(unwritable)?;
        tell_kept(&mut sink, emit);
        let mut last = Instant::now();
        let tick = || {
            if last.elapsed() >= PROGRESS_EVERY {
                last = Instant::now();
                let tree = told(progress);
                emit(Message::Progress { bytes: tree.bytes, waits: Vec::new(), tree: Some(tree) });
            }
        };
        let copied = local::copy(&source, &mut sink, stop, tick);
        let (failures, leftovers) = (source.take_failures(), source.take_leftovers());
        summary.sent_tree = Some(SentTree { counts: source.counts(), failures, leftovers });
        match copied {
            Ok(received) => summary.received_tree = Some(received),
            Err(_) if stop.load(Ordering::Relaxed) => {
                return Err(Fault::plain(Exit::Signal(libc::SIGTERM as u8).code(), ""));
            }
            Err(tree_sink::Refused::Io(fact)) => return Err(unwritable(fact)),
            Err(refused) => return Err(Fault::plain(Exit::Protocol.code(), refused.to_string())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        tree: TreeOptions,
    }

    #[test]
    fn each_option_changes_what_it_names() {
        let settings = |arguments: &[&str]| {
            let parsed = <Only as clap::Parser>::try_parse_from([&["rdcp"], arguments].concat());
            parsed.expect("an option").tree.settings(false, Vec::new())
        };
        let plain = settings(&[]);
        let TreeSettings { mode, owner, times, xattrs, hard_links, sparse, symlinks, specials, .. } = plain;
        let kept = [mode, owner, times, xattrs, hard_links, sparse, symlinks, specials];
        assert!(kept.into_iter().all(|is_kept| is_kept));
        assert!(!plain.in_place && !plain.fsync && !plain.read_back);
        let with = |change: &dyn Fn(&mut TreeSettings)| {
            let mut settings = plain.clone();
            change(&mut settings);
            settings
        };
        for (option, expected) in [
            ("--no-mode", with(&|it| it.mode = false)),
            ("--no-owner", with(&|it| it.owner = false)),
            ("--no-times", with(&|it| it.times = false)),
            ("--no-xattrs", with(&|it| it.xattrs = false)),
            ("--no-hard-links", with(&|it| it.hard_links = false)),
            ("--no-sparse", with(&|it| it.sparse = false)),
            ("--no-symlinks", with(&|it| it.symlinks = false)),
            ("--no-specials", with(&|it| it.specials = false)),
            ("--in-place", with(&|it| it.in_place = true)),
            ("--fsync", with(&|it| it.fsync = true)),
            ("--verify=disk", with(&|it| (it.fsync, it.read_back) = (true, true))),
        ] {
            assert_eq!(settings(&[option]), expected, "{option}");
        }
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let sieve =
            |pattern: &str, is_include| Sieve { pattern: ByteVec::from(pattern.as_bytes().to_vec()), is_include };
        let patterns =
            patterns(&[sieve("*.o", false), sieve("keep.o", true), sieve("/top", false), sieve("dir/", false)])
                .expect("patterns");
        let left_out = |path: &str, is_dir| is_left_out(&patterns, Path::new(path), is_dir);
        assert!(left_out("copy/a/b.o", false) && !left_out("b.o", false));
        assert!(!left_out("copy/a/keep.o", false));
        assert!(left_out("copy/top", false) && !left_out("copy/a/top", false));
        assert!(left_out("copy/a/dir", true) && !left_out("copy/a/dir", false));
    }
}
