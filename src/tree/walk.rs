//! The walk over a tree that is sent: directories in, packed records out, one chunk at a time.
//!
//! A [`Walk`] can stop after any record and go on later, in another thread. It reads small files itself, straight into
//! the chunk, and opens the large ones for the source, which reads their data beside it.
//!
//! Everything is opened relative to the descriptor of its directory and no link is followed, so a path that is changed
//! under the walk cannot lead it elsewhere.
//!
//! # Memory
//!
//! It holds the names of the directories on the way from the top to where it is, not of those that it has left; of a huge
//! directory they are in a temporary file. Hard links take at most [`LINKS_BYTES_MAX`].

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rd_proto::control::IoFact;
use rd_proto::tree::{DEPTH_MAX, Metadata, PATH_BYTES_MAX, Record, Special, is_name};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, readlinkat_raw, statat};
use rustix::io::Errno;

use self::follow::Treatment;
use self::held::Held;
use self::links::{Links, further_names};
pub(in crate::tree) use self::listed::COMPARED_BYTES_MIN;
pub use self::listed::{Answered, Listed, ListedFile};
use self::listed::{Homes, WantedFile};
use self::place::{Entered, Entry, Layer, Level, Place};
use self::selected::Selected;
pub use self::sent::Sent;
use self::sent::size_of;
use self::spent::{Log, Was, Whereabouts};
pub use self::spent::{Removed, Spent};
use super::ahead::{Ahead, Pace};
use super::digest_cache::DigestCache;
use super::metadata::Reader;
use super::names::Names;
use super::patterns::Patterns;
use super::root::Root;
use super::stats;
use super::{Fault, IS_LEFTOVER};
use crate::fs::direct::Bypass;
use crate::fs::metadata::Object;
use crate::fs::{Identity, described, identity, io_fact, is_temporary_name, plain_fact, std_fact};
use crate::options::TreeOptions;

#[cfg(test)]
pub(super) use self::contents::hook;

mod ahead;
mod contents;
mod count;
mod entered;
mod follow;
mod held;
mod links;
mod listed;
pub(super) mod place;
mod selected;
mod sent;
mod spent;

/// The largest file whose data travels in its record, in bytes; less where the chunks are small.
pub const INLINE_BYTES_MAX: usize = 128 << 10;

/// Memory for what hard links need, in bytes, roughly. Beyond it they are in a temporary file.
pub const LINKS_BYTES_MAX: usize = 8 << 20;

/// How long an announced large file waits for its chunk to fill: others have nothing to read until it goes out, and
/// small files may come slowly from a disk.
const ANNOUNCE_MAX: Duration = Duration::from_millis(10);

/// Files that one chunk lists: the receiver can answer while the next is made.
const LISTED_PER_CHUNK: usize = 512;

/// A file no larger than this is not examined for holes: it fits one block.
const BLOCK_BYTES: u64 = 4096;

const LEADS_NOWHERE: Fault = Fault::Explained(Errno::NOTDIR, "paths below it are listed");

const REPLACED: Fault = Fault::Detail("was replaced while it was read");

/// A large file that has been announced and is to be read.
#[derive(Debug)]
pub struct LargeFile {
    /// Its number.
    pub item: u32,
    /// Open to read.
    pub file: OwnedFd,
    /// As it was when it was announced.
    pub stat: Stat,
    /// Where it is.
    pub path: OsString,
    /// It may have holes, which are to be left out.
    pub is_sparse: bool,
    /// None of it is sent before the receiver has said what it has.
    pub awaits_blocks: bool,
    /// How its ranges are read.
    pub bypass: Bypass,
}

/// A large file that is done with.
#[derive(Debug)]
pub struct Finished {
    /// Its number.
    pub item: u32,
    /// Bytes of data given out.
    pub data_bytes: u64,
    /// It was read whole and has not changed, or what was wrong.
    pub outcome: Result<(), IoFact>,
}

/// Why a chunk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkState {
    /// It is full, or should not wait until it is.
    Going,
    /// Another large file may be announced only when one of those has finished.
    AtLimit,
    /// All has been walked; large files have not finished.
    Over,
    /// It has the last record.
    Ended,
}

/// A chunk of records.
#[derive(Debug)]
pub struct Filled {
    /// Its length in bytes.
    pub length: usize,
    /// Why it is not longer.
    pub state: WalkState,
    /// The large files that it announces.
    pub opened: Vec<LargeFile>,
    /// The files that it lists.
    pub listed: Vec<ListedFile>,
    /// Wanted files that it settles.
    pub settled: usize,
    /// What it has added.
    pub sent: Sent,
}

/// A walk and where it is.
pub struct Walk {
    place: Place,
    recorder: Recorder,
    finished: VecDeque<Finished>,
    /// Listed files whose contents are to be sent.
    wanted: VecDeque<WantedFile>,
    settled: usize,
    ahead: Ahead,
    pace: Pace,
}

/// What has come since the walk went on last.
#[derive(Debug, Default)]
pub struct Come {
    /// Large files whose ends are to be recorded.
    pub finished: Vec<Finished>,
    /// Answers of the receiver.
    pub answered: Answered,
    /// How many more files may be listed.
    pub room: usize,
    /// Listed files of which the receiver has said nothing.
    pub unjudged: usize,
}

impl Walk {
    /// Prepares to send `roots` in chunks of `chunk_bytes`.
    ///
    /// # Errors
    ///
    /// The path and the error number or what else is wrong: a root that is not there, a directory without
    /// [`TreeOptions::recursive`] (EISDIR), a name that cannot be one, a name given twice without [`TreeOptions::sync`].
    pub fn new(mut roots: Vec<Root>, chunk_bytes: usize, options: TreeOptions) -> Result<Self, IoFact> {
        roots.sort_by(|one, other| one.name.cmp(&other.name));
        let patterns = Patterns::new(&options.rules.0)
            .map_err(|(rule, reason)| plain_fact(OsStr::from_bytes(&rule.pattern), reason))?;
        let mut names = Names::default();
        let mut paths: Vec<Vec<CString>> = Vec::new();
        for (at, root) in roots.iter().enumerate() {
            let path = root.path().as_os_str();
            let name = CString::new(root.name.to_vec()).ok().filter(|name| is_name(name.as_bytes()));
            let name = name.ok_or_else(|| plain_fact(path, "cannot be created: its name is not valid here"))?;
            let open = CString::new(path.as_bytes()).map_err(|_| io_fact(path, Errno::INVAL))?;
            let flags = if options.recursive { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
            let stat = statat(CWD, &open, flags).map_err(|error| io_fact(path, error))?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && !options.recursive {
                return Err(io_fact(path, Errno::ISDIR));
            }
            match paths.last_mut().filter(|_| at > 0 && roots[at - 1].name == root.name) {
                Some(_) if !options.sync => return Err(plain_fact(path, "has the same name as another source")),
                Some(merged) => merged.push(open),
                None => {
                    names.push(FileType::Unknown, &name).map_err(|fault| fault.into_fact(path))?;
                    paths.push(vec![open]);
                }
            }
        }
        let selected = match &roots[..] {
            [Root { only: Some(only), .. }] => Some(Selected::new(only)?),
            _ => None,
        };
        let place = Place {
            selected,
            follow_roots: !options.recursive,
            follow_to_directories: options.copy_links || options.copy_dirlinks,
            roots: paths,
            levels: vec![Level { is_fresh: !options.lists(), ..Level::new(Vec::new(), names) }],
        };
        let (cache, without) = DigestCache::asked(&options);
        let mut sent = Sent::default();
        sent.without.extend(without);
        let spent = Log::asked(&options).map_err(|error| std_fact(std::env::temp_dir().as_os_str(), &error))?;
        let reader = Reader::new(&options).map_err(|reason| plain_fact(OsStr::new("--chmod"), reason))?;
        let recorder = Recorder {
            options,
            patterns,
            inline_bytes_max: (chunk_bytes / 8).min(INLINE_BYTES_MAX),
            noatime: true,
            links: Links::default(),
            items: 0,
            open: BTreeMap::new(),
            opened: Vec::new(),
            sent,
            failures: 0,
            listing: Vec::new(),
            reader,
            scratch: Vec::new(),
            directories: 0,
            homes: Homes::default(),
            listed: Vec::new(),
            room: 0,
            unsettled: HashSet::new(),
            cache,
            spent,
        };
        let ahead = Ahead::new(recorder.inline_bytes_max, recorder.options.xattrs);
        Ok(Self {
            place,
            recorder,
            finished: VecDeque::new(),
            wanted: VecDeque::new(),
            settled: 0,
            ahead,
            pace: Pace::begin(),
        })
    }

    /// `--digest-cache`.
    pub(super) fn cache(&self) -> Option<Arc<DigestCache>> {
        self.recorder.cache.clone()
    }

    /// Large files that have been announced and not closed.
    pub fn open_files(&self) -> usize {
        self.recorder.open.len()
    }

    /// Puts the next records into `target`, those of what has `come` first, until there are so many `bytes`. Ends early,
    /// perhaps with nothing, where it would have to wait, and when it is `cancelled`.
    pub fn fill(&mut self, target: &mut [u8], bytes: usize, come: Come, cancelled: &AtomicBool) -> Filled {
        let Come { finished, answered, room, unjudged } = come;
        self.finished.extend(finished);
        self.pace = Pace::begin();
        answered.wanted.iter().for_each(|wanted| self.look_at_wanted(wanted));
        self.wanted.extend(answered.wanted);
        self.recorder.room = room;
        for inode in answered.settled {
            self.recorder.unsettled.remove(&inode);
        }
        for inode in answered.left {
            self.recorder.unsettled.remove(&inode);
            self.recorder.links.forget(inode);
        }
        for file in answered.spent {
            if let Some(seen) = file.seen {
                self.recorder.spend(|| file.whereabouts(), seen, 0);
            }
        }
        for number in answered.fresh {
            // One that has been left meanwhile needs it no more.
            if let Some(at) = self.place.levels.iter().position(|level| level.number == Some(number)) {
                self.place.levels[at..].iter_mut().for_each(|level| level.is_fresh = true);
            }
        }
        let mut length = 0;
        let state = self.fill_until(target, bytes, &mut length, unjudged, cancelled);
        let (recorder, settled) = (&mut self.recorder, std::mem::take(&mut self.settled));
        let (opened, listed) = (std::mem::take(&mut recorder.opened), std::mem::take(&mut recorder.listed));
        Filled { length, state, opened, listed, settled, sent: std::mem::take(&mut recorder.sent) }
    }

    fn fill_until(
        &mut self,
        target: &mut [u8],
        bytes: usize,
        length: &mut usize,
        unjudged: usize,
        cancelled: &AtomicBool,
    ) -> WalkState {
        while let Some(finished) = self.finished.front() {
            let (item, is_intact) = (finished.item, finished.outcome.is_ok());
            let record = Record::Closed { item, data_bytes: finished.data_bytes, is_intact };
            let Some(count) = record.encode(&mut target[*length..]) else { return WalkState::Going };
            *length += count;
            if let Some(finished) = self.finished.pop_front() {
                self.recorder.close(finished);
            }
        }
        let mut announced = None;
        while *length < bytes && !cancelled.load(Ordering::Relaxed) {
            let is_waited_for = !self.recorder.opened.is_empty();
            if is_waited_for && announced.get_or_insert_with(Instant::now).elapsed() >= ANNOUNCE_MAX {
                return WalkState::Going;
            }
            if self.recorder.listed.len() >= LISTED_PER_CHUNK {
                return WalkState::Going;
            }
            let (rest, is_whole) = (&mut target[*length..], *length == 0);
            let step =
                if self.wanted.is_empty() { self.step(rest, is_whole) } else { self.send_wanted(rest, is_whole) };
            self.ahead.passed(&mut self.pace);
            let is_settled = unjudged == 0 && self.recorder.listed.is_empty();
            self.recorder.tell_lost_links();
            match step {
                Step::Wrote(count) => *length += count,
                Step::Passed => {}
                Step::Full => return WalkState::Going,
                Step::AtLimit => return WalkState::AtLimit,
                Step::Over if self.recorder.open.is_empty() && is_settled => {
                    let record = Record::End { failures: self.recorder.failures };
                    let Some(count) = record.encode(&mut target[*length..]) else { return WalkState::Going };
                    *length += count;
                    return WalkState::Ended;
                }
                Step::Over => return WalkState::Over,
            }
        }
        WalkState::Going
    }

    /// Processes the next entry. `is_whole`: `target` is a whole chunk, so what does not fit never will.
    fn step(&mut self, target: &mut [u8], is_whole: bool) -> Step {
        let Some(entry) = self.place.entry() else {
            if self.place.levels.len() == 1 {
                return Step::Over;
            }
            if let Some(step) = self.leave_held() {
                return step;
            }
            let is_incomplete = self.place.levels.last().is_some_and(|level| level.is_incomplete);
            let incomplete = if is_incomplete { Record::Incomplete.encode(target) } else { Some(0) };
            let Some(start) = incomplete else { return Step::Full };
            let Some(count) = Record::Leave.encode(&mut target[start..]) else { return Step::Full };
            self.place.levels.pop();
            return Step::Wrote(start + count);
        };
        self.look_ahead();
        // In front of what comes in them.
        let (start, count, are_all) = self.place.write_held(target);
        if !are_all && !is_whole {
            return Step::Full;
        }
        let mut entered = Visited::default();
        let failures = self.recorder.failures;
        let visited = match are_all {
            true => self.recorder.visit(&self.place, &entry, &mut target[start..], &mut entered),
            false => Ok(Step::Full),
        };
        let step = match visited {
            Ok(Step::Full) if is_whole && count > 0 => {
                self.release(count);
                return Step::Wrote(start);
            }
            Ok(Step::Full) if is_whole => Err(Fault::Detail("has too much metadata for a chunk")),
            outcome => outcome,
        };
        let step = step.unwrap_or_else(|fault| {
            self.recorder.fail(fault.into_fact(&self.place.source_path(&entry)));
            Step::Passed
        });
        let Visited { directory, is_through, leads_nowhere } = entered;
        let entered = directory.filter(|_| matches!(step, Step::Wrote(_)));
        let is_held = entered.is_some() && self.recorder.holds(&self.place, entry.name);
        let held = match step {
            Step::Wrote(bytes) if is_held => {
                let record = target[start..start + bytes].to_vec();
                Some(Held { record, is_implied: self.recorder.is_implied(&self.place, entry.name) })
            }
            _ => None,
        };
        let leads_nowhere = leads_nowhere && matches!(step, Step::Wrote(_));
        if leads_nowhere {
            self.recorder.fail(LEADS_NOWHERE.into_fact(&self.place.source_path(&entry)));
        }
        let entered =
            entered.map(|directory| Entered { is_through, ..self.recorder.enter(&self.place, &entry, directory) });
        let step = match step {
            Step::Wrote(_) if is_held => Step::Wrote(0),
            Step::Wrote(bytes) => {
                self.release(count);
                Step::Wrote(start + bytes)
            }
            step => step,
        };
        if !matches!(step, Step::Full | Step::AtLimit) {
            let level = self.place.levels.last_mut().expect("the top is never left");
            // What is passed over by wish is known to the receiver, by its options or by a record.
            let has_failed = matches!(step, Step::Passed) && self.recorder.failures > failures;
            level.is_incomplete |= self.recorder.options.delete && has_failed;
            // As with rsync: what was meant by them may be there under another name.
            level.is_incomplete |= leads_nowhere;
            self.advance(entered, held);
        }
        step
    }

    /// The entry is done with; if it is a directory that was `entered`, what is in it comes next.
    /// `held`: its record, if that has not been sent.
    fn advance(&mut self, entered: Option<Entered>, held: Option<Held>) {
        let level = self.place.levels.last_mut().expect("the top is never left");
        if let Err(fault) = level.advance() {
            level.is_incomplete = true;
            self.recorder.fail(fault.into_fact(&self.place.path(0)));
        }
        if let Some(entered) = entered {
            let is_left =
                |layer: &Layer| self.recorder.options.one_file_system && follow::is_mounted(&self.place, layer);
            let (left, walked): (Vec<_>, Vec<_>) = entered.layers.into_iter().partition(is_left);
            let lacks_layer = entered.lacks_layer || !left.is_empty();
            let above = self.place.levels.last();
            let (is_fresh, lacks_layer) =
                above.map_or((false, lacks_layer), |above| (above.is_fresh, lacks_layer || above.lacks_layer));
            let mut level = match walked.is_empty() {
                true => Level::new(left, Names::default()),
                false => self.recorder.scoped(&self.place, walked, entered.is_through),
            };
            level.is_incomplete |= lacks_layer;
            level.handed_out = self.recorder.handed_out(&self.place, &level).into();
            let number = held.is_none().then_some(self.recorder.directories);
            self.place.levels.push(Level { is_fresh, lacks_layer, number, held, ..level });
            self.recorder.directories += u64::from(number.is_some());
        }
    }
}

/// What became of one step.
enum Step {
    /// So many bytes were written.
    Wrote(usize),
    /// Nothing was written, and the entry is done with.
    Passed,
    /// There is no room.
    Full,
    /// A large file, or one more name of it, must wait until one has finished.
    AtLimit,
    /// There are no more entries.
    Over,
}

/// What an entry that has been visited has turned out to be.
#[derive(Default)]
struct Visited {
    /// Of a directory.
    directory: Option<OwnedFd>,
    /// It was entered by a link, for what is listed below that.
    is_through: bool,
    /// It is none, although paths below it are listed.
    leads_nowhere: bool,
}

/// A large file that has been announced.
struct Open {
    /// If it has further names.
    inode: Option<Identity>,
    /// Names that refer to it and that have been sent.
    names: u64,
    /// Its names that `--remove-source-files` is to remove, if all of its contents have been read.
    spent: Vec<(Whereabouts, Was)>,
}

/// Makes records of entries.
struct Recorder {
    options: TreeOptions,
    patterns: Patterns,
    inline_bytes_max: usize,
    /// Reading leaves access times as they are; given up once it is refused, as it is for other users' files.
    noatime: bool,
    links: Links,
    items: u32,
    open: BTreeMap<u32, Open>,
    opened: Vec<LargeFile>,
    /// Since the last chunk.
    sent: Sent,
    /// Since the beginning.
    failures: u64,
    /// A block of directory entries.
    listing: Vec<u8>,
    reader: Reader,
    /// To hash files with.
    scratch: Vec<u8>,
    /// Directories with a record.
    directories: u64,
    homes: Homes,
    /// Files that this chunk lists, and how many more may be.
    listed: Vec<ListedFile>,
    room: usize,
    /// Files with further names that are listed and not settled.
    unsettled: HashSet<Identity>,
    cache: Option<Arc<DigestCache>>,
    /// `--remove-source-files`.
    spent: Option<Log>,
}

/// An entry that was opened as a place only, and what it was then.
type Seen = Option<(OwnedFd, Stat)>;

impl Recorder {
    fn fail(&mut self, fact: IoFact) {
        self.fail_also(1);
        self.sent.failures.keep(fact);
    }

    fn fail_also(&mut self, count: u64) {
        self.failures += count;
        self.sent.failed += count;
    }

    /// Accounts for a large file whose end has been recorded.
    fn close(&mut self, finished: Finished) {
        let open = self.open.remove(&finished.item).expect("it was announced");
        let Err(fact) = finished.outcome else { return self.spend_all(open.spent) };
        self.fail(fact);
        self.fail_also(open.names);
        if let Some(inode) = open.inode {
            self.links.forget(inode);
        }
    }

    /// Whether a pattern leaves an entry out; what was asked for by name is only with `--sync`, as by rsync, to which a shell's
    /// `*` gives all names.
    fn is_left_out(&self, place: &Place, name: &[u8], kind: FileType) -> bool {
        (place.levels.len() > 1 || self.options.sync && !self.options.contents)
            && !self.patterns.is_empty()
            && self.patterns.leave_out(&self.transfer_path(place, name), kind == FileType::Directory)
    }

    /// The path of an entry from the transfer's root on.
    fn transfer_path(&self, place: &Place, name: &[u8]) -> Vec<u8> {
        if self.options.contents { place.path_below_root(name) } else { place.tree_path(name) }
    }

    /// Whether what is in a block device is to be copied, which was named itself.
    fn is_image(&self, place: &Place, kind: FileType) -> bool {
        let is_asked_for = self.options.sync && !self.options.recursive && place.levels.len() == 1;
        is_asked_for && kind == FileType::BlockDevice
    }

    /// What an entry is, if it is to be copied.
    ///
    /// A directory mostly tells that. Then what is opened next is the first look at it, and the only one.
    fn look(&mut self, place: &Place, entry: &mut Entry<'_>) -> Result<Option<(FileType, Seen)>, Fault> {
        let mut seen = if [FileType::Directory, FileType::RegularFile].contains(&entry.kind) {
            None
        } else {
            let mut flags = OFlags::PATH | OFlags::CLOEXEC;
            flags.set(OFlags::NOFOLLOW, !entry.follow);
            let file = openat(entry.at, entry.path, flags, Mode::empty())?;
            let stat = fstat(&file)?;
            Some((file, stat))
        };
        let mut is_skipped = false;
        if let Some((link, stat)) = &seen
            && FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
        {
            let treatment = follow::treatment(&self.options, place, entry, link)?;
            if treatment != Treatment::Followed {
                entry.way = self.way_by_link(place, entry);
            }
            match if entry.way.is_some() { Treatment::Followed } else { treatment } {
                Treatment::Copied => {}
                Treatment::Skipped => is_skipped = true,
                Treatment::Followed => {
                    entry.follow = true;
                    let file = openat(entry.at, entry.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
                    let file = file.map_err(|error| Fault::Explained(error, "where the link leads"))?;
                    let stat = fstat(&file)?;
                    seen = Some((file, stat));
                }
            }
        }
        let kind = seen.as_ref().map_or(entry.kind, |(_, stat)| FileType::from_raw_mode(stat.st_mode));
        let (is_on_the_way, is_itself) = self.lists(place, entry.name, kind);
        if !is_itself && !is_on_the_way {
            return Ok(None);
        }
        if !is_itself && kind == FileType::Symlink {
            // What is wrong with what is listed below it has been said.
            return Ok(None);
        }
        if !is_itself && kind != FileType::Directory {
            return Err(LEADS_NOWHERE);
        }
        if is_temporary_name(entry.name) {
            if place.levels.len() == 1 {
                return Err(Fault::Detail(IS_LEFTOVER));
            }
            self.sent.leftovers.keep(plain_fact(&place.source_path(entry), IS_LEFTOVER));
            return Ok(None);
        }
        if !is_itself && entry.way.is_none() && !self.leads_on(place, entry) {
            return Ok(None);
        }
        let is_wanted = match kind {
            FileType::Directory if place.levels.len() > DEPTH_MAX => {
                return Err(Fault::Detail("is nested too deeply"));
            }
            FileType::Directory if !self.options.recursive => return Err(Errno::ISDIR.into()),
            FileType::Directory | FileType::RegularFile => true,
            kind if self.is_image(place, kind) => true,
            FileType::Symlink => self.options.symlinks && !is_skipped,
            _ => self.options.specials,
        };
        entry.is_passed_over = !is_wanted;
        Ok(is_wanted.then_some((kind, seen)))
    }

    /// Writes an entry's record, and notes in `visited` what the caller needs to know of it.
    fn visit(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        target: &mut [u8],
        visited: &mut Visited,
    ) -> Result<Step, Fault> {
        let entry = &mut entry.clone();
        let found = self.look(place, entry)?;
        let entry = &*entry;
        let Some((kind, seen)) = found else { return Ok(self.pass_over(place, entry, target)) };
        let is_implied = self.is_implied(place, entry.name);
        let step = match (kind, seen) {
            (FileType::Directory, seen) => {
                let (directory, stat, is_place) = self.open_directory(place, entry, seen)?;
                if follow::is_loop(place, entry, &stat) {
                    return Err(follow::IS_LOOP);
                }
                if self.is_pruned(place, entry.name, &directory) {
                    return Ok(Step::Passed);
                }
                let metadata = match is_implied {
                    true => Metadata::IMPLIED,
                    false => self.reader.read(&self.options, Object::opened(&directory, is_place), &stat)?,
                };
                let step = wrote(Record::Directory { name: entry.name, metadata }.encode(target));
                *visited = Visited { directory: Some(directory), is_through: entry.is_through(), ..*visited };
                step
            }
            (FileType::RegularFile, seen) => self.file(place, entry, seen, target)?,
            (kind, _) if self.is_image(place, kind) => self.list_file(place, entry, target)?,
            (_, Some((file, stat))) => self.other(place, entry, &file, &stat, target)?,
            (_, None) => unreachable!("only directories and files are not looked at"),
        };
        // Of a link that has been said, and what a watch has seen touched need not be there any more.
        visited.leads_nowhere = ![FileType::Directory, FileType::Symlink].contains(&kind)
            && !place.is_watched()
            && place.lists(entry.name).0;
        let is_held = kind == FileType::Directory && self.holds(place, entry.name);
        if matches!(step, Step::Wrote(_)) && !is_held {
            // As with rsync, a root of which only some entries are copied is none, and nor is what only leads to them.
            self.count_sent(kind, (!self.options.keeps_root || place.levels.len() > 1) && !is_implied);
        }
        Ok(step)
    }

    /// Whether a directory only leads to what is listed, and nothing of it is to be copied.
    fn is_implied(&self, place: &Place, name: &[u8]) -> bool {
        self.options.no_implied_dirs && self.lists(place, name, FileType::Directory) == (true, false)
    }

    /// The record of an entry has been sent. `is_found`: it counts among those of the source.
    fn count_sent(&mut self, kind: FileType, is_found: bool) {
        self.sent.entries += 1;
        self.sent.directories += u64::from(kind == FileType::Directory);
        if is_found {
            self.sent.found.add(stats::kind(kind));
        }
    }

    /// Opens an entry and looks at it; it must be of a `kind`, and what was `seen` before, if anything was.
    fn open(&mut self, entry: &Entry<'_>, kind: FileType, seen: Seen, flags: OFlags) -> Result<(OwnedFd, Stat), Fault> {
        // Not to wait, should it be a FIFO by now.
        let mut flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, !entry.follow);
        flags.set(OFlags::NOATIME, self.noatime);
        let file = loop {
            match openat(entry.at, entry.path, flags, Mode::empty()) {
                Ok(file) => break file,
                Err(Errno::INTR) => {}
                Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => {
                    self.noatime = false;
                    flags.remove(OFlags::NOATIME);
                }
                // Another process holds a lease on the file; to wait makes it give that up.
                Err(Errno::AGAIN) if flags.contains(OFlags::NONBLOCK) => flags.remove(OFlags::NONBLOCK),
                Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(REPLACED),
                Err(error) => return Err(error.into()),
            }
        };
        let mut stat = described(&file)?;
        if kind == FileType::BlockDevice {
            // The rights of its node say nothing of a file, which gets those of a new one.
            let umask = if self.options.mode { crate::fs::umask() } else { 0 };
            stat.st_mode = (stat.st_mode & !0o7777) | (0o666 & !umask);
        }
        let is_same = seen.is_none_or(|(_, seen)| identity(&seen) == identity(&stat));
        if is_same && FileType::from_raw_mode(stat.st_mode) == kind { Ok((file, stat)) } else { Err(REPLACED) }
    }

    fn file(&mut self, place: &Place, entry: &Entry<'_>, seen: Seen, target: &mut [u8]) -> Result<Step, Fault> {
        let is_listed = self.options.dry_run || place.levels.last().is_some_and(|level| !level.is_fresh);
        if is_listed && self.is_compared(entry, seen.as_ref())? || self.is_left(entry, seen.as_ref())? {
            return self.list_file(place, entry, target);
        }
        let (file, stat) = self.open(entry, FileType::RegularFile, seen, OFlags::empty())?;
        let inode = self.inode(&stat);
        if let Some(step) = inode.and_then(|inode| self.further_name(place, entry, inode, &stat, target)) {
            return Ok(step);
        }
        let (step, item) = self.contents(entry, file, &stat, false, || place.source_path(entry), target)?;
        if matches!(step, Step::Wrote(_)) {
            self.sent.size_bytes += size_of(&stat);
            self.spend(|| place.whereabouts(entry), Was::from(&stat), item);
        }
        if let (Step::Wrote(_), Some(inode)) = (&step, inode) {
            self.links.insert(inode, place.tree_path(entry.name), further_names(entry, &stat), item);
        }
        Ok(step)
    }

    /// What an entry that may have further names is known by.
    fn inode(&self, stat: &Stat) -> Option<Identity> {
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Whether what is there is newer is known of the first name's copy only if that has the time of the source.
        let is_judged = self.options.update && !self.options.keeps_times(false) && is_regular;
        (self.options.hard_links && stat.st_nlink > 1 && !is_judged).then_some(identity(stat))
    }

    /// A symbolic link, a FIFO, a socket, a device.
    fn other(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        file: &OwnedFd,
        stat: &Stat,
        target: &mut [u8],
    ) -> Result<Step, Fault> {
        let TreeOptions { existing, ignore_existing, safe_links, .. } = self.options;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        // Where each is judged by where it is, or by what is there, which may be left under the first name, each is sent itself.
        let is_judged = safe_links && is_link || existing || ignore_existing;
        let inode = self.inode(stat).filter(|_| !is_judged);
        if let Some(step) = inode.and_then(|inode| self.further_name(place, entry, inode, stat, target)) {
            return Ok(step);
        }
        let (name, metadata) = (entry.name, self.reader.read(&self.options, Object::Path(file.as_fd()), stat)?);
        let special = |kind, device| Record::Special { name, metadata, kind, device: (major(device), minor(device)) };
        let mut leads_to = [0; PATH_BYTES_MAX + 1];
        let record = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => match readlinkat_raw(file, c"", &mut leads_to[..])? {
                0 => return Err(Fault::Detail("leads nowhere")),
                length if length > PATH_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
                length => Record::Symlink { name, metadata, target: &leads_to[..length] },
            },
            FileType::Fifo => special(Special::Fifo, 0),
            FileType::Socket => special(Special::Socket, 0),
            FileType::CharacterDevice => special(Special::Character, stat.st_rdev),
            FileType::BlockDevice => special(Special::Block, stat.st_rdev),
            _ => return Err(Fault::Detail("is of a kind that is not known")),
        };
        let step = wrote(record.encode(target));
        if let Step::Wrote(_) = step {
            self.sent.size_bytes += size_of(stat);
            self.spend(|| place.whereabouts(entry), Was::from(stat), 0);
            if let Some(inode) = inode {
                self.links.insert(inode, place.tree_path(name), further_names(entry, stat), 0);
            }
        }
        Ok(step)
    }
}

fn wrote(length: Option<usize>) -> Step {
    length.map_or(Step::Full, Step::Wrote)
}
