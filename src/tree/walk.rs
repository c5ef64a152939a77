//! The walk over a tree that is sent: reads directories and writes packed records, one chunk at a time.
//!
//! A [`Walk`] can stop after any record and continue later in another thread. The walk reads small files itself,
//! straight into the chunk. It opens large files for the source, which reads their data in parallel.
//!
//! Each entry is opened relative to the descriptor of its directory, and no link is followed. So a path that changes
//! during the walk cannot lead the walk elsewhere.
//!
//! # Memory
//!
//! The walk holds the names of the directories from the top to the current one, not of those that it has left. The
//! names of a huge directory are in a temporary file. Hard links take at most [`LINKS_BYTES_MAX`].

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rd_proto::control::IoFact;
use rd_proto::tree::{Record, is_name};
use rustix::fs::{AtFlags, FileType, Stat, statat};
use rustix::io::Errno;

use self::held::Held;
use self::links::Links;
pub(in crate::tree) use self::listed::COMPARED_BYTES_MIN;
pub use self::listed::{Answered, Listed, ListedFile};
use self::listed::{Homes, WantedFile};
use self::place::{Entered, Layer, Level, Place};
use self::recorder::{Open, Recorder, Seen, Step, Visited, wrote};
use self::selected::Selected;
pub use self::sent::Sent;
use self::spent::Log;
pub use self::spent::{Removed, Spent};
use super::Fault;
use super::ahead::{Ahead, Pace};
use super::digest_cache::DigestCache;
use super::metadata::Reader;
use super::names::Names;
use super::patterns::Patterns;
use super::root::Root;
use crate::fs::direct::Bypass;
use crate::fs::{here, io_fact, is_directory, plain_fact, std_fact};
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
mod recorder;
mod selected;
mod sent;
mod spent;

/// Maximum size of a file whose data travels in its record, in bytes. Small chunks lower this limit.
pub const INLINE_BYTES_MAX: usize = 128 << 10;

/// Approximate memory for hard links, in bytes. Beyond this they are kept in a temporary file.
pub const LINKS_BYTES_MAX: usize = 8 << 20;

/// How long an announced large file waits for its chunk to fill. Until the chunk goes out, other workers have nothing
/// to read, and small files may come slowly from a disk.
const ANNOUNCE_MAX: Duration = Duration::from_millis(10);

/// Maximum number of files that a chunk lists, so that the receiver can answer while the next chunk is made.
const LISTED_PER_CHUNK: usize = 512;

/// Maximum size of a file that is not examined for holes, in bytes: such a file fits into one block.
const BLOCK_BYTES: u64 = 4096;

const LEADS_NOWHERE: Fault = Fault::Explained(Errno::NOTDIR, "paths below it are listed");

const REPLACED: Fault = Fault::Detail("was replaced while it was read");

/// A large file that has been announced and is to be read.
#[derive(Debug)]
pub struct LargeFile {
    /// Number of the file.
    pub item: u32,
    /// The file, open for reading.
    pub file: OwnedFd,
    /// Metadata of the file when it was announced.
    pub stat: Stat,
    /// Path of the file.
    pub path: OsString,
    /// Whether the file may have holes, which are left out.
    pub is_sparse: bool,
    /// Whether none of the file is sent before the receiver has said what it has.
    pub awaits_blocks: bool,
    /// How the file's ranges are read.
    pub bypass: Bypass,
}

/// A large file that is finished.
#[derive(Debug)]
pub struct Finished {
    /// Number of the file.
    pub item: u32,
    /// Bytes of data handed out.
    pub data_bytes: u64,
    /// `Ok` if the file was read whole and has not changed.
    pub outcome: Result<(), IoFact>,
}

/// Why a chunk has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkState {
    /// The chunk is full, or should not wait until it is.
    #[default]
    Going,
    /// No further entry may be announced or listed until an earlier one has finished.
    AtLimit,
    /// The whole tree has been walked, but large files have not finished.
    Over,
    /// The chunk has the last record.
    Ended,
}

/// A chunk of records.
#[derive(Debug)]
pub struct Filled {
    /// Length of the chunk in bytes.
    pub length: usize,
    /// Why the chunk is not longer.
    pub state: WalkState,
    /// Large files that the chunk announces.
    pub opened: Vec<LargeFile>,
    /// Files that the chunk lists.
    pub listed: Vec<ListedFile>,
    /// Number of wanted files that the chunk settles.
    pub settled: usize,
    /// What the chunk adds to the totals.
    pub sent: Sent,
}

/// A walk and its position.
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

/// What has arrived since the walk last continued.
#[derive(Debug, Default)]
pub struct Come {
    /// Finished large files, whose ends are to be recorded.
    pub finished: Vec<Finished>,
    /// The receiver's answers.
    pub answered: Answered,
    /// How many more files may be listed.
    pub room: usize,
    /// Number of listed files that the receiver has not judged yet.
    pub unjudged: usize,
}

/// If there are more roots, they are not looked at before the walk begins, because the other end is waiting: a root that
/// cannot be sent then fails alone. Roots that are merged are always looked at: a missing one would be passed over, and
/// what DST has of it deleted.
const LOOKED_AT_MAX: usize = 1024;

impl Walk {
    /// Prepares to send `roots` in parts of at most `part_bytes`.
    ///
    /// # Errors
    ///
    /// Returns the path with the error number or another reason: a root that is looked at (see `LOOKED_AT_MAX`) does not
    /// exist, or is a directory without [`TreeOptions::recursive`] (EISDIR); a name is not valid; or a name is given twice
    /// without [`TreeOptions::sync`].
    pub fn new(mut roots: Vec<Root>, part_bytes: usize, options: TreeOptions) -> Result<Self, IoFact> {
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
            let is_same = |other: Option<&Root>| other.is_some_and(|other| other.name == root.name);
            let is_merged =
                is_same(at.checked_sub(1).and_then(|before| roots.get(before))) || is_same(roots.get(at + 1));
            if roots.len() <= LOOKED_AT_MAX || is_merged {
                let stat = statat(here(), &open, flags).map_err(|error| io_fact(path, error))?;
                if is_directory(&stat) && !options.recursive {
                    return Err(io_fact(path, Errno::ISDIR));
                }
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
        // Many names are in a sorter by now, and can be read only once they are sorted.
        names.sort().map_err(|fault| fault.into_fact(std::env::temp_dir().as_os_str()))?;
        let selected = match &roots[..] {
            [Root { only: Some(only), .. }] => Some(Selected::new(only)?),
            _ => None,
        };
        let place = Place {
            selected,
            follow_roots: !options.recursive,
            follow_to_directories: options.copy_links || options.copy_dirlinks,
            may_follow: options.copy_links || options.copy_dirlinks || options.copy_unsafe_links,
            roots: paths,
            levels: vec![Level { names, is_fresh: !options.lists(), ..Level::default() }],
        };
        let (cache, without) = DigestCache::asked(&options);
        let mut sent = Sent::default();
        sent.without.extend(without);
        let spent = Log::asked(&options).map_err(|error| std_fact(std::env::temp_dir().as_os_str(), &error))?;
        let reader = Reader::new(&options).map_err(|reason| plain_fact(OsStr::new("--chmod"), reason))?;
        let recorder = Recorder {
            options,
            patterns,
            inline_bytes_max: (part_bytes / 8).min(INLINE_BYTES_MAX),
            noatime: true,
            links: Links::default(),
            items: 0,
            open: BTreeMap::new(),
            opened: Vec::new(),
            sent,
            failures: 0,
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

    /// Returns the cache of `--digest-cache`.
    pub(super) fn cache(&self) -> Option<Arc<DigestCache>> {
        self.recorder.cache.clone()
    }

    /// Returns the number of large files that have been announced and not closed.
    pub fn open_files(&self) -> usize {
        self.recorder.open.len()
    }

    /// Writes the next records into `target` until there are `bytes` bytes, first those that follow from `come`.
    /// Returns early, possibly without any record, if the walk would have to wait or is `cancelled`.
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
            // A directory that the walk has left meanwhile no longer needs the mark.
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

    /// Processes the next entry. `is_whole`: `target` is a whole chunk, so a record that does not fit will never fit.
    fn step(&mut self, target: &mut [u8], is_whole: bool) -> Step {
        let Some(entry) = self.recorder.entry(&self.place) else {
            if self.place.levels.len() == 1 {
                return Step::Over;
            }
            if let Some(step) = self.leave_held(target) {
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
        // These records go before those of the entries inside.
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
        let visited = match visited {
            Err(fault) if self.place.has_vanished(&entry, self.place.may_vanish(entry.name), &fault) => {
                Ok(self.recorder.pass_vanished(&self.place, &entry, &mut target[start..]))
            }
            visited => visited,
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
            // The receiver knows which entries are passed over on request, from its own options or from a record.
            let has_failed = matches!(step, Step::Passed) && self.recorder.failures > failures;
            let options = &self.recorder.options;
            level.is_incomplete |= (options.delete || options.generations.snapshot.is_some()) && has_failed;
            // As with rsync: the listed paths may exist under another name.
            level.is_incomplete |= leads_nowhere;
            self.advance(entered, held);
        }
        step
    }

    /// Goes on to the next entry. If the entry is a directory that was `entered`, its contents come next. `held`: the
    /// entry's record, if that has not been sent.
    fn advance(&mut self, entered: Option<Entered>, held: Option<Held>) {
        let level = self.place.levels.last_mut().expect("the top is never left");
        if let Err(fault) = level.advance() {
            level.is_incomplete = true;
            self.recorder.fail(fault.into_fact(&self.place.path(0)));
        }
        if let Some(entered) = entered {
            let is_mounted =
                |layer: &Layer| self.recorder.options.one_file_system && follow::is_mounted(&self.place, layer);
            // As with rsync, each listed path is a source of its own, and nothing else is copied on the way to it.
            let (leads_on, is_listed) = self.place.entered_is_listed();
            let is_left = |layer: &Layer| !leads_on && !is_listed && is_mounted(layer);
            let (left, walked): (Vec<_>, Vec<_>) = entered.layers.into_iter().partition(is_left);
            let is_through = entered.is_through || leads_on && !is_listed && walked.iter().any(is_mounted);
            // A generation is what a new copy would be, which has nothing of what is passed over.
            let passes_over = !left.is_empty() && self.recorder.options.generations.snapshot.is_none();
            let lacks_layer = entered.lacks_layer || passes_over;
            let above = self.place.levels.last();
            let (is_fresh, lacks_layer) =
                above.map_or((false, lacks_layer), |above| (above.is_fresh, lacks_layer || above.lacks_layer));
            let mut level = match walked.is_empty() {
                true => Level { layers: left, ..Level::default() },
                false => self.recorder.scoped(&self.place, walked, is_through),
            };
            level.is_incomplete |= lacks_layer;
            level.handed_out = self.recorder.handed_out(&self.place, &level).into();
            let number = held.is_none().then_some(self.recorder.directories);
            self.place.levels.push(Level { is_fresh, lacks_layer, number, held, ..level });
            self.recorder.directories += u64::from(number.is_some());
        }
    }
}
