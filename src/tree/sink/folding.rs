//! Names that differ but that the destination treats as the same, such as `File` and `file` on exFAT, FAT, CIFS and in
//! directories with the casefold flag. The second name would replace the first and lose its data, so it is refused.
//!
//! In a directory that is known to tell names apart, nothing is done. Otherwise names that have come are remembered by
//! a key that is equal for all names that may be treated as the same. Two names with the same key are checked against
//! the directory's entries.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, Stat, fstat, fstatfs, ioctl_getflags, statat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use crate::fs::metadata::restore_times;
use crate::fs::{TMPFS_MAGIC, again, partial};
use crate::tree::Fault;
use crate::tree::names::Names;

/// Maximum number of keys kept for all open directories, at about 16 bytes each.
const KEYS_MAX: usize = 4 << 20;

/// From this number of keys in a directory on, it is worth making a file to learn whether the keys are needed.
const KEYS_UNASKED_MAX: usize = 1024;

const TOO_MANY: &str = "too many names for a directory that may treat some as equal; copy fewer at once";

/// `FS_CASEFOLD_FL`, and the file system types (statfs(2)) on which each directory either has that flag or not, and
/// passes it on to directories made in it: ext4, f2fs, bcachefs, tmpfs.
const CASEFOLD: u32 = 1 << 30;
const HAVE_FLAGS: [u32; 4] = [0xef53, 0xf2f5_2010, 0xca45_1a4e, TMPFS_MAGIC];

const UNKNOWN: u8 = 0;
const TELLS_APART: u8 = 1;
const FOLDS: u8 = 2;
/// Not known, because no file could be made to find out. No other is tried in this directory.
const MAY_FOLD: u8 = 3;

/// What is known of a directory, and the keys of the names that have come.
pub(super) struct Folding {
    state: AtomicU8,
    has_flags: bool,
    device: u64,
    keys: Mutex<HashSet<u64>>,
    /// Number of keys in all directories.
    held: Arc<AtomicUsize>,
    /// Whether a test treats a directory that tells names apart as if it did not.
    #[cfg(test)]
    pub is_emulated: bool,
}

impl Folding {
    fn new(state: u8, has_flags: bool, device: u64) -> Self {
        Self {
            state: AtomicU8::new(state),
            has_flags,
            device,
            keys: Mutex::default(),
            held: Arc::default(),
            #[cfg(test)]
            is_emulated: false,
        }
    }

    /// Returns the state of a directory in which nothing is made that could replace an entry.
    pub fn none() -> Self {
        Self::new(TELLS_APART, false, 0)
    }

    /// Returns the state of a directory of which nothing is known.
    pub fn of(directory: &OwnedFd) -> Self {
        let device = fstat(directory).map_or(0, |stat| stat.st_dev);
        let has_flags = fstatfs(directory).is_ok_and(|system| HAVE_FLAGS.contains(&(system.f_type as u32)));
        Self::new(if has_flags { flagged(directory) } else { UNKNOWN }, has_flags, device)
    }

    /// Returns the state of a directory that was entered, or made, under this name.
    pub fn below(parent: &OpenDirectory, directory: &OwnedFd, stat: &Stat, is_new: bool, name: &[u8]) -> Self {
        let above = &parent.folding;
        if above.known() == UNKNOWN
            && stat.st_dev == above.device
            && let Some(other) = other_case(name)
        {
            let is_listed = |at: OwnedFd| partial::has_any(at, |there| there.to_bytes() == other);
            let is_other = || again(&parent.fd).and_then(is_listed).unwrap_or(true);
            let folds = statat(&parent.fd, &other[..], AtFlags::SYMLINK_NOFOLLOW).is_ok() && !is_other();
            above.decide(folds);
        }
        let mut below = match stat.st_dev == above.device || parent.shared.options.dry_run {
            true if above.has_flags && !is_new => Self::new(flagged(directory), true, above.device),
            true => Self::new(above.known(), above.has_flags, above.device),
            false => Self::of(directory),
        };
        below.held = Arc::clone(&above.held);
        #[cfg(test)]
        if above.is_emulated {
            below.emulate();
        }
        below
    }

    /// Returns what is known, for a directory below, where a file may be made.
    fn known(&self) -> u8 {
        match self.state.load(Relaxed) {
            MAY_FOLD => UNKNOWN,
            known => known,
        }
    }

    fn decide(&self, folds: bool) {
        self.state.store(if folds { FOLDS } else { TELLS_APART }, Relaxed);
        if !folds {
            let keys = std::mem::take(&mut *crate::locked(&self.keys));
            self.held.fetch_sub(keys.len(), Relaxed);
        }
    }

    fn has_many(&self) -> bool {
        crate::locked(&self.keys).len() >= KEYS_UNASKED_MAX
    }

    /// Adds a name that has come. Returns whether no earlier name may be treated as the same; `None` if there is no
    /// room.
    fn add(&self, name: &[u8]) -> Option<bool> {
        let mut keys = crate::locked(&self.keys);
        let hash = keys.hasher().hash_one(key(name));
        if keys.contains(&hash) {
            return Some(false);
        }
        if self.held.fetch_add(1, Relaxed) >= KEYS_MAX {
            self.held.fetch_sub(1, Relaxed);
            return None;
        }
        Some(keys.insert(hash))
    }

    fn has(&self, name: &[u8]) -> bool {
        let keys = crate::locked(&self.keys);
        keys.contains(&keys.hasher().hash_one(key(name)))
    }

    #[cfg(test)]
    pub fn emulate(&mut self) {
        (self.is_emulated, self.state) = (true, AtomicU8::new(FOLDS));
    }
}

impl Drop for Folding {
    fn drop(&mut self) {
        self.held.fetch_sub(self.keys.get_mut().expect("no panics under it").len(), Relaxed);
    }
}

impl OpenDirectory {
    /// Checks a name that has come. `settle` makes the entries before it.
    ///
    /// # Errors
    ///
    /// Fails if the name would be taken for the name of an earlier entry.
    pub(super) fn admit(&self, name: &[u8], settle: impl FnOnce()) -> Result<(), Fault> {
        let folding = &self.folding;
        if folding.state.load(Relaxed) == TELLS_APART || name == b"." {
            return Ok(());
        }
        let is_first = folding.add(name);
        let is_new = is_first == Some(true);
        let is_unasked = is_new && !folding.has_many();
        if is_unasked || !self.may_fold() || is_new {
            return Ok(());
        }
        if is_first.is_none() {
            return Err(Fault::Detail(TOO_MANY));
        }
        settle();
        self.tell_apart(name)
    }

    /// Whether an entry that has not come under this name has come under another spelling.
    pub(super) fn has_come_otherwise(&self, name: &[u8]) -> bool {
        let may_have = self.folding.state.load(Relaxed) != TELLS_APART && self.folding.has(name);
        may_have && self.may_fold() && self.tell_apart(name).is_err()
    }

    /// Returns those of the names to be deleted that do not belong to an entry that has come.
    pub(super) fn without_those_that_came(&self, mut names: Names) -> Result<Names, Fault> {
        if self.folding.state.load(Relaxed) == TELLS_APART {
            return Ok(names);
        }
        let mut others = Names::default();
        while let Some((kind, name)) = names.current() {
            if !self.has_come_otherwise(name.to_bytes()) {
                others.push(kind, name)?;
            }
            names.advance()?;
        }
        others.sort()?;
        Ok(others)
    }

    /// Returns the names under which the directory lists the entry that this name leads to; none if it lists this name
    /// itself.
    pub(super) fn other_spellings(&self, name: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        if self.folding.state.load(Relaxed) == TELLS_APART || !self.leads_to_any(name) {
            return Ok(Vec::new());
        }
        let alike = self.alike(name)?;
        Ok(if alike.iter().any(|there| there == name) { Vec::new() } else { alike })
    }

    /// Whether the directory is known to treat names that differ only in case as the same. If nothing is known yet, a
    /// file is made to find out.
    pub(super) fn folds(&self) -> bool {
        let state = &self.folding.state;
        if state.load(Relaxed) == UNKNOWN {
            match makes_one_of_two(&self.fd) {
                Ok(folds) => self.folding.decide(folds),
                Err(_) => _ = state.compare_exchange(UNKNOWN, MAY_FOLD, Relaxed, Relaxed),
            }
        }
        state.load(Relaxed) == FOLDS
    }

    /// The same, or no file can be made, as on a full disk.
    fn may_fold(&self) -> bool {
        self.folds() || self.folding.state.load(Relaxed) == MAY_FOLD
    }

    /// Checks a name against the directory's entries after another spelling of it has come, or the other way round. The
    /// names belong to two entries if both are listed, or if only the other is listed and this one leads to nothing.
    /// For entries that do not exist yet, it is known only that the directory folds names.
    fn tell_apart(&self, name: &[u8]) -> Result<(), Fault> {
        let alike = self.alike(name)?;
        let is_apart = match alike.iter().any(|there| there == name) {
            true => alike.len() > 1,
            false if alike.is_empty() => self.shared.options.existing,
            false => !self.leads_to_any(name),
        };
        if is_apart { Ok(()) } else { Err(Fault::TakenFor(alike.into_iter().find(|there| there != name))) }
    }

    /// Returns the directory's entries that may be treated as the same as this name.
    fn alike(&self, name: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let (wanted, mut alike) = (key(name), Vec::new());
        partial::for_each::<Errno>(again(&self.fd)?, |there| {
            if key(there.to_bytes()) == wanted {
                alike.push(there.to_bytes().to_vec());
            }
            Ok(())
        })?;
        Ok(alike)
    }

    fn leads_to_any(&self, name: &[u8]) -> bool {
        #[cfg(test)]
        if self.folding.is_emulated {
            return true;
        }
        self.has(name)
    }
}

/// Returns a key that is equal for all names that may be treated as the same. FAT and Windows also drop dots and blanks
/// at the end.
fn key(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    // Converted both ways, because several small letters may share one capital, and some capitals are several letters.
    text.trim_end_matches(['.', ' ']).to_uppercase().to_lowercase()
}

/// Swaps capital and small letters; `None` if the name has no letters.
fn other_case(name: &[u8]) -> Option<Vec<u8>> {
    let swap =
        |byte: &u8| if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() };
    let other: Vec<u8> = name.iter().map(swap).collect();
    (other != name).then_some(other)
}

fn flagged(directory: &OwnedFd) -> u8 {
    let has_flag = ioctl_getflags(directory).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
    if has_flag { FOLDS } else { TELLS_APART }
}

/// Makes a file, and checks whether it can also be found under another name. Nothing of the file is left.
fn makes_one_of_two(directory: &OwnedFd) -> Result<bool, Errno> {
    let before = fstat(directory)?;
    let is_there = |name: &str| statat(directory, name.to_uppercase(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let folds = partial::with_probe(directory.as_fd(), |name, _| is_there(name))?;
    let _ = restore_times(directory, &before);
    Ok(folds)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rd_proto::tree::{Metadata, Record, Time};

    use super::super::tests::chunk;
    use super::super::{Report, TreeSink};
    use super::*;
    use crate::fs::{UNFINISHED, name_beside};
    use crate::options::{Generations, Session, TreeOptions};

    const META: Metadata<'static> =
        Metadata { mode: 0o755, modified: Time { seconds: 1_000_000_000, nanoseconds: 5 }, ..Metadata::ZERO };

    fn directory(name: &[u8]) -> Record<'_> {
        Record::Directory { name, metadata: META }
    }

    fn file(name: &[u8]) -> Record<'_> {
        Record::File { name, metadata: META, data: name }
    }

    /// Receives a tree in a directory that treats different names as the same, or in a directory that tells them apart
    /// but is not known to.
    fn take(top: &Path, options: TreeOptions, folds: bool, records: &[Record<'_>]) -> Report {
        let mut sink = TreeSink::new(top, options, Box::new(|_| {})).expect("there");
        let open = sink.levels[0].as_mut().and_then(Arc::get_mut).expect("the top");
        if folds {
            open.folding.emulate();
        } else {
            open.folding.state = AtomicU8::new(UNKNOWN);
        }
        sink.push(0, 0, chunk(records)).expect("taken");
        sink.push(0, 0, chunk(&[Record::End { failures: 0 }])).expect("taken");
        sink.finish().expect("whole")
    }

    fn failed(report: &Report) -> Vec<String> {
        report.failures.iter().map(|fact| String::from_utf8_lossy(&fact.path).into_owned()).collect()
    }

    #[test]
    fn the_second_of_two_names_that_are_taken_for_one_is_refused() {
        let first = Record::HardLink { name: "d\u{e4}".as_bytes(), first: b"D/x" };
        let records = [
            directory(b"D"),
            file(b"x"),
            Record::Leave,
            file(b"File"),
            file(b"Other"),
            directory(b"d"),
            file(b"below"),
            file(b"x"),
            Record::Leave,
            first,
            file(b"file"),
            Record::Symlink { name: b"file.", metadata: META, target: b"to" },
            file("\u{c4}".as_bytes()),
            file("\u{e4}".as_bytes()),
        ];
        for folds in [true, false] {
            let scratch = tempfile::tempdir().expect("a directory");
            let top = scratch.path();
            let report =
                take(top, TreeOptions { symlinks: true, recursive: true, ..TreeOptions::default() }, folds, &records);
            let mut there: Vec<_> =
                fs::read_dir(top).expect("there").map(|entry| entry.expect("one").file_name()).collect();
            there.sort();
            if !folds {
                assert_eq!((report.figures.failed, there.len()), (0, 9), "{:?}", failed(&report));
                continue;
            }
            assert_eq!(there, ["D", "File", "Other", "d\u{e4}", "\u{c4}"]);
            let at = |name: &str| top.join(name).to_str().expect("UTF-8").to_owned();
            assert_eq!(failed(&report), ["d", "file", "file.", "\u{e4}"].map(at));
            let detail = String::from_utf8_lossy(&report.failures[1].detail).into_owned();
            assert_eq!(detail, "this file system cannot distinguish it from File; rename one of them at the source");
            assert_eq!(fs::read(top.join("File")).expect("there"), b"File");
        }
    }

    /// Holds for any number of names in one directory.
    #[test]
    fn names_are_remembered_until_it_is_known_that_they_are_told_apart() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
        let open = sink.levels[0].as_mut().and_then(Arc::get_mut).expect("the top");
        open.folding.state = AtomicU8::new(UNKNOWN);
        for number in 1..KEYS_UNASKED_MAX + 10 {
            let admitted = open.admit(number.to_string().as_bytes(), || panic!("no two are alike"));
            assert!(admitted.is_ok(), "{number}");
            assert_eq!(open.folding.held.load(Relaxed), if number < KEYS_UNASKED_MAX { number } else { 0 });
        }
    }

    /// On a full disk, for instance. Nothing must be deleted for want of the file that the test needs.
    #[test]
    fn a_directory_in_which_no_file_can_be_made_may_treat_names_as_the_same() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path().join("top");
        fs::create_dir(&top).expect("a directory");
        let mut sink = TreeSink::new(&top, TreeOptions::default(), Box::new(|_| {})).expect("there");
        let open = sink.levels[0].as_mut().and_then(Arc::get_mut).expect("the top");
        open.folding.state = AtomicU8::new(UNKNOWN);
        fs::remove_dir(&top).expect("empty");
        assert!(open.admit(b"File", || panic!("no two are alike")).is_ok());
        assert!(open.may_fold() && !open.folds());
        assert!(open.has_come_otherwise(b"file"), "it may be the same file");
        assert_eq!(open.folding.state.load(Relaxed), MAY_FOLD, "it is not tried for each entry");
    }

    /// A file that is not published yet cannot be seen, but its name is known.
    #[test]
    fn a_large_file_keeps_its_name_before_it_has_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let size = 100 << 20;
        let large = Record::Large { name: b"Large", metadata: META, item: 1, size, is_sparse: true };
        let closed = Record::Closed { item: 1, data_bytes: 0, is_intact: true };
        let report = take(scratch.path(), TreeOptions::default(), true, &[large, file(b"large"), closed]);
        assert_eq!(failed(&report), [scratch.path().join("large").to_str().expect("UTF-8")]);
        assert_eq!(fs::metadata(scratch.path().join("Large")).expect("there").len(), size);
    }

    /// An earlier copy took another directory for this one and put its entries here: they are not missing at the
    /// source. Neither is an entry that has come and exists here under another spelling.
    #[test]
    fn nothing_is_deleted_that_is_at_the_source_by_another_spelling() {
        let two = [directory(b"D"), file(b"x"), Record::Leave, directory(b"d"), file(b"y"), Record::Leave];
        let listed = Record::Listed { name: b"RENAMED", metadata: META, size: 3 };
        let left = TreeOptions { existing: true, ..TreeOptions::default() };
        for (folds, below, options, there) in [
            (true, &two[..], TreeOptions::default(), &["D/x", "D/y", "gone", "renamed"][..]),
            (false, &two[..], TreeOptions::default(), &["D/x", "d/y"]),
            (true, &two[..3], TreeOptions::default(), &["D/x"]),
            // The name leads to nothing here, because the directory only pretends to fold names.
            (true, &[listed][..], left.clone(), &["renamed"]),
            (false, &[listed][..], left, &[]),
        ] {
            let scratch = tempfile::tempdir().expect("a directory");
            let at = |name: &str| scratch.path().join("src").join(name);
            fs::create_dir_all(at("D")).expect("directories");
            ["D/y", "gone", "renamed"].iter().for_each(|name| fs::write(at(name), "old").expect("a file"));
            let options = TreeOptions { sync: true, delete: true, recursive: true, ..options };
            let records = [&[directory(b"src")], below, &[Record::Leave]].concat();
            let report = take(scratch.path(), options, folds, &records);
            let found = ["D/x", "D/y", "d/y", "gone", "renamed"].into_iter().filter(|name| at(name).exists());
            assert_eq!(found.collect::<Vec<_>>(), there, "{folds} {report:?}");
        }
    }

    /// An entry that an interrupted run has left is the one that has come, if that came by another spelling.
    #[test]
    fn what_is_resumed_stays_when_it_comes_by_another_spelling() {
        let scratch = tempfile::tempdir().expect("a directory");
        let one = scratch.path().join("one");
        for name in ["d", "e", "old"] {
            fs::create_dir_all(one.join(name)).expect("directories");
        }
        ["d/gone", "d/renamed"].iter().for_each(|name| fs::write(one.join(name), "left").expect("a file"));
        fs::write(scratch.path().join(name_beside(b"one", UNFINISHED)), "").expect("a marker");
        let session = Session { is_last: true, ..Session::default() };
        let generations = Generations { snapshot: Some(b"one".to_vec().into()), session, ..Generations::default() };
        // The names lead to nothing here, so nothing may be made by them.
        let options =
            TreeOptions { sync: true, recursive: true, existing: true, generations, ..TreeOptions::default() };
        let listed = Record::Listed { name: b"RENAMED", metadata: META, size: 3 };
        let records = [directory(b"E"), Record::Leave, directory(b"d"), listed, Record::Leave];
        let report = take(&one, options.clone(), true, &records);
        assert_eq!(report.figures.failed, 0, "{:?}", failed(&report));
        let there = ["d/gone", "d/renamed", "e", "old"].into_iter().filter(|name| one.join(name).exists());
        assert_eq!(there.collect::<Vec<_>>(), ["d/renamed", "e"]);
        assert!(scratch.path().join("latest").is_symlink());
        assert_eq!(fs::read_dir(&one).expect("it").count(), 2, "no mark is left");

        // If it is not known what is there, nothing may be removed at the end.
        fs::write(scratch.path().join(name_beside(b"one", UNFINISHED)), "").expect("a marker");
        let mut sink = TreeSink::new(&one, options, Box::new(|_| {})).expect("there");
        sink.levels[0].as_mut().and_then(Arc::get_mut).expect("the top").folding.emulate();
        let top = sink.levels[0].clone().expect("the top");
        fs::remove_dir_all(&one).expect("ours");
        assert!(!sink.was_left(&top, &directory(b"E")));
        assert_eq!(crate::locked(&sink.shared.failures).count, 1);
    }
}
