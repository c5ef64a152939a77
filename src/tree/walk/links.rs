//! Files with several names: which have been sent, and under which name first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use rd_proto::tree::{OPEN_LINKS_MAX, PATH_BYTES_MAX, Record};
use rustix::fs::{AtFlags, Stat, StatxFlags, statx};

use super::place::{Entry as Present, Place};
use super::sent::size_of;
use super::spent::Was;
use super::{LINKS_BYTES_MAX, Recorder, Step, wrote};
use crate::fault::errno_of;
use crate::fs::Identity;
use crate::fs::table::Table;
use crate::tree::Fault;

/// Memory for an entry besides its path, in bytes: key and value in a table that is half empty after it has grown, and
/// the allocator's share.
const ENTRY_BYTES: usize = 128;

/// Why further names become separate files.
const LINKS_ARE_LOST: &str = "hard links are copied as separate files: too many to track in memory or in the temporary \
     directory; set TMPDIR to one with more space";

/// Why a further name becomes a separate file: no record can hold the path of the first.
const IS_TOO_LONG: &str = "is copied as a separate file: the path of its first hard link is longer than 4095 bytes";
const _: () = assert!(PATH_BYTES_MAX == 4095);

/// Files of which further names are to come. They are in memory up to a bound, and beyond it in a temporary file.
#[derive(Default)]
pub struct Links {
    first: HashMap<Identity, First>,
    bytes: usize,
    /// Files in the temporary file. A file that cannot be stored or read back is sent in full for each of its names.
    more: Option<Table>,
    /// Why a file could not be stored or read back.
    failure: Option<io::Error>,
    is_told: bool,
}

struct First {
    /// Empty if it is longer than a record can hold.
    path: Box<[u8]>,
    names: Names,
    item: u32,
}

/// What is known about the names of a file, once one has come.
#[derive(Clone, Copy)]
pub struct Names {
    /// Number of names that have not come yet.
    left: u64,
    /// Time of creation in nanoseconds, if the file system tells it (STATX_BTIME of statx(2)). Another file may get the
    /// inode number of a deleted one before the walk is over.
    born: Option<i128>,
}

impl Names {
    /// The type of `left` varies between processors.
    fn new(left: impl Into<u64>, born: Option<i128>) -> Self {
        Self { left: left.into(), born }
    }

    fn are_anothers(&self, others: Self) -> bool {
        self.born.zip(others.born).is_some_and(|(born, other)| born != other)
    }
}

impl First {
    fn bytes(&self) -> Vec<u8> {
        let Names { left, born } = self.names;
        let born = born.unwrap_or(i128::MIN);
        [&left.to_le_bytes()[..], &born.to_le_bytes(), &self.item.to_le_bytes(), &self.path].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (left, rest) = bytes.split_first_chunk()?;
        let (born, rest) = rest.split_first_chunk()?;
        let (item, path) = rest.split_first_chunk()?;
        let born = Some(i128::from_le_bytes(*born)).filter(|born| *born != i128::MIN);
        let names = Names { left: u64::from_le_bytes(*left), born };
        Some(Self { path: path.into(), names, item: u32::from_le_bytes(*item) })
    }
}

impl Links {
    /// Returns the path under which a file was sent first, and its number if it is a large one, otherwise 0. Forgets
    /// the file if another file has its inode number by now.
    pub fn first(&mut self, inode: Identity, names: impl FnOnce() -> Names) -> Option<(Vec<u8>, u32)> {
        let (path, item, known) = match self.first.get(&inode) {
            Some(first) => (first.path.to_vec(), first.item, first.names),
            None => self.far(inode).map(|first| (first.path.into(), first.item, first.names))?,
        };
        if known.are_anothers(names()) {
            self.forget(inode);
            return None;
        }
        Some((path, item))
    }

    fn far(&mut self, inode: Identity) -> Option<First> {
        let found = self.more.as_ref()?.get(inode);
        First::parse(&self.note(found)??)
    }

    fn note<T>(&mut self, done: io::Result<T>) -> Option<T> {
        done.map_err(|error| self.failure.get_or_insert(error).kind()).ok()
    }

    /// Returns, once, why some names are sent as separate files.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        let failure = self.failure.take().filter(|_| !self.is_told);
        self.is_told |= failure.is_some();
        failure
    }

    /// Remembers a file of which further names are to come, if there is room for it.
    pub fn insert(&mut self, inode: Identity, path: Vec<u8>, names: Names, item: u32) {
        self.forget(inode);
        let path = if path.len() > PATH_BYTES_MAX { Vec::new() } else { path };
        let bytes = ENTRY_BYTES + path.len();
        let first = First { path: path.into_boxed_slice(), names, item };
        if self.bytes + bytes <= LINKS_BYTES_MAX {
            self.bytes += bytes;
            self.first.insert(inode, first);
            return;
        }
        if self.more.is_none() {
            let table = Table::new();
            self.more = self.note(table);
        }
        if let Some(more) = &mut self.more {
            let done = more.set(inode, &first.bytes());
            self.note(done);
        }
    }

    /// Changes what is remembered of a file, and forgets the file if `change` returns true.
    fn change(&mut self, inode: Identity, change: impl FnOnce(&mut First) -> bool) {
        if let Entry::Occupied(mut first) = self.first.entry(inode) {
            if change(first.get_mut()) {
                self.bytes -= ENTRY_BYTES + first.remove().path.len();
            }
        } else if let Some(mut first) = self.far(inode)
            && let Some(more) = &mut self.more
        {
            let done = if change(&mut first) { more.remove(inode) } else { more.set(inode, &first.bytes()) };
            self.note(done);
        }
    }

    /// Records that a file turned out to be a large one with this number.
    pub fn set_item(&mut self, inode: Identity, item: u32) {
        self.change(inode, |first| {
            first.item = item;
            false
        });
    }

    /// Counts one more name that has come. With its last name, a file is forgotten.
    pub fn count(&mut self, inode: Identity) {
        self.change(inode, |first| {
            first.names.left = first.names.left.saturating_sub(1);
            first.names.left == 0
        });
    }

    /// Forgets a file that was not sent after all, so that its next name is sent in full.
    pub fn forget(&mut self, inode: Identity) {
        self.change(inode, |_| true);
    }
}

/// Returns what is known about the names of a file that come after the entry's. If the entry is a followed link, its
/// own name is not one of them.
pub fn further_names(entry: &Present<'_>, stat: &Stat) -> Names {
    let flags = if entry.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let told = statx(entry.at, entry.path, flags, StatxFlags::BTIME).ok();
    let told = told.filter(|told| StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::BTIME));
    let born = told.map(|told| i128::from(told.stx_btime.tv_sec) * 1_000_000_000 + i128::from(told.stx_btime.tv_nsec));
    let left = if entry.follow { stat.st_nlink } else { stat.st_nlink - 1 };
    Names::new(left, born)
}

impl Recorder {
    /// Writes the record of a further name of a file that has been sent; `None` if this is its first name, or the first
    /// to which others can be linked.
    pub(super) fn further_name(
        &mut self,
        place: &Place,
        entry: &Present<'_>,
        inode: Identity,
        stat: &Stat,
        target: &mut [u8],
    ) -> Option<Step> {
        let (first, item) = self.links.first(inode, || further_names(entry, stat))?;
        let waiting: u64 = self.open.values().map(|open| open.names).sum();
        // The receiver would link to whatever has the first name at present.
        if self.unsettled.contains(&inode) {
            return Some(Step::AtLimit);
        }
        if first.is_empty() {
            self.links.forget(inode);
            self.fail(Fault::Detail(IS_TOO_LONG).into_fact(&place.source_path(entry)));
            return None;
        }
        if self.open.contains_key(&item) && waiting >= OPEN_LINKS_MAX as u64 {
            return Some(Step::AtLimit);
        }
        let step = wrote(Record::HardLink { name: entry.name, first: &first }.encode(target));
        if let Step::Wrote(_) = step {
            if let Some(open) = self.open.get_mut(&item) {
                open.names += 1;
            }
            if !entry.follow {
                self.links.count(inode);
            }
            self.sent.figures.size_bytes += size_of(stat);
            self.spend(|| place.whereabouts(entry), Was::from(stat), item);
        }
        Some(step)
    }

    /// Reports that a file could not be remembered. This is a failure of the copy, because one file becomes several.
    pub(super) fn tell_lost_links(&mut self) {
        if let Some(error) = self.links.take_failure() {
            let path = std::env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into());
            self.fail(Fault::Explained(errno_of(&error), LINKS_ARE_LOST).into_fact(&path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicBool;

    use rustix::fs::{Mode, OFlags, linkat, mkdirat, openat};

    use super::super::{Come, Walk, WalkState};
    use super::*;
    use crate::options::TreeOptions;
    use crate::tree::root::Root;

    fn left(left: u64) -> Names {
        Names { left, born: None }
    }

    #[test]
    fn a_file_is_forgotten_with_its_last_name() {
        let mut links = Links::default();
        links.insert((1, 2), b"d/a".to_vec(), left(2), 7);
        assert_eq!(links.first((1, 2), || left(0)), Some((b"d/a".to_vec(), 7)));
        links.count((1, 2));
        assert!(links.first((1, 2), || left(0)).is_some());
        links.count((1, 2));
        assert!(links.first((1, 2), || left(0)).is_none());
        links.count((1, 2));
        assert_eq!(links.bytes, 0);
    }

    #[test]
    fn the_number_of_a_file_that_has_gone_is_no_name_of_it() {
        for far in [false, true] {
            let mut links = Links::default();
            if far {
                links.bytes = LINKS_BYTES_MAX;
            }
            let born = |at| Names { left: 1, born: Some(at) };
            links.insert((1, 2), b"a".to_vec(), born(5), 0);
            assert_eq!(links.first((1, 2), || born(5)), Some((b"a".to_vec(), 0)));
            assert!(links.first((1, 2), || left(0)).is_some(), "where the file system does not tell");
            assert_eq!((links.first((1, 2), || born(6)), links.first((1, 2), || born(6))), (None, None));
            assert_eq!(links.more.is_some(), far);
        }
    }

    /// The result is as if all files were in memory, while the memory used stays within its bound.
    #[test]
    fn more_than_there_is_room_for_is_in_a_file() {
        let mut links = Links::default();
        let path = |inode: u64| [&inode.to_le_bytes()[..], &[b'p'; PATH_BYTES_MAX - 8]].concat();
        let count = (LINKS_BYTES_MAX / PATH_BYTES_MAX) as u64 + 1000;
        for inode in 0..count {
            links.insert((0, inode), path(inode), left(2), inode as u32);
        }
        assert!(links.bytes <= LINKS_BYTES_MAX && links.bytes > LINKS_BYTES_MAX - 2 * PATH_BYTES_MAX);
        assert!(links.more.is_some());
        links.forget((0, 1));
        links.set_item((0, count - 1), 7);
        links.forget((0, count - 2));
        links.insert((0, count - 3), b"other".to_vec(), left(1), 8);
        let expected = |inode: u64| match inode {
            1 => None,
            inode if inode == count - 1 => Some((path(inode), 7)),
            inode if inode == count - 2 => None,
            inode if inode == count - 3 => Some((b"other".to_vec(), 8)),
            inode => Some((path(inode), inode as u32)),
        };
        for round in 0..2 {
            for inode in 0..count {
                assert!(links.first((0, inode), || left(0)) == expected(inode), "{inode}");
            }
            links.insert((0, count - 3), b"other".to_vec(), left(2 - round), 8);
            (0..count).for_each(|inode| links.count((0, inode)));
        }
        assert!((0..count).all(|inode| links.first((0, inode), || left(0)).is_none()));
        assert_eq!(links.bytes, 0);
    }

    /// No record can lead to the first name. Names that follow one of which a record can hold the path are links.
    #[test]
    fn each_name_that_has_no_first_to_be_linked_to_is_told() {
        let scratch = tempfile::tempdir().expect("a directory");
        std::fs::write(scratch.path().join("y"), "data").expect("a file");
        let open = |at: &OwnedFd, name: &str| {
            openat(at, name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("a directory")
        };
        let top = OwnedFd::from(File::open(scratch.path()).expect("a directory"));
        let (mut deep, name) = (open(&top, "."), "d".repeat(220));
        for _ in 0..20 {
            mkdirat(&deep, &name, Mode::RWXU).expect("a directory");
            deep = open(&deep, &name);
        }
        for (at, name) in [(&deep, "a"), (&deep, "b"), (&top, "z")] {
            linkat(&top, "y", at, name, AtFlags::empty()).expect("a link");
        }
        let roots = vec![Root::new(scratch.path(), "t")];
        let mut walk = Walk::new(roots, 1 << 20, TreeOptions::default()).expect("a tree");
        let mut target = vec![0; 1 << 20];
        let filled = walk.fill(&mut target, 1 << 20, Come::default(), &AtomicBool::new(false));
        let (mut rest, mut names) = (&target[..filled.length], Vec::new());
        while let Ok(Some(record)) = Record::decode(&mut rest) {
            match record {
                Record::File { name, .. } => names.push((name, None)),
                Record::HardLink { name, first } => names.push((name, Some(first))),
                _ => {}
            }
        }
        assert_eq!(names, [(&b"a"[..], None), (b"b", None), (b"y", None), (b"z", Some(&b"t/y"[..]))]);
        let failures = &filled.sent.failures;
        assert!(failures.iter().all(|fact| fact.detail == IS_TOO_LONG.as_bytes()), "{failures:?}");
        assert_eq!((filled.state, filled.sent.figures.failed), (WalkState::Ended, 2));
    }
}
