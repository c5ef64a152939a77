//! `--sync`, walk and sink together: random trees that change at random, compared with their sources.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr,
    mknodat, utimensat,
};
use tempfile::TempDir;

use rd_proto::tree::{Answer, DEPTH_MAX, Extensions, LISTED_MAX, Metadata, Record, Verdict};

use super::check::{Aspect, Finding, Medium, check};
use super::entries::{self, EntryStream};
use super::manifest::{Entry, fuzz, order};
use super::sink::{Destination, Names, Refused, Report, TreeSink};
use super::source::{Next, TreeSource};
use super::walk::{INLINE_BYTES_MAX, Sent};
use super::{Root, local};
use crate::fs::close::tests::where_calls_fail;
use crate::fs::direct::Tally;
use crate::not_run::not_run;
use crate::options::{Rule, Rules, Session, TreeOptions};

mod lists;
mod told;

pub(super) const PART_BYTES: usize = 1 << 20;

pub(super) fn sync() -> TreeOptions {
    TreeOptions { sync: true, ..TreeOptions::default() }
}

/// Copies the contents of `from` to `to`, as between two hosts or within one.
pub(super) fn copy(from: &Path, to: &Path, options: &TreeOptions, is_local: bool) -> (Sent, Report) {
    let (sent, report) = try_copy(from, to, options, is_local);
    (sent, report.expect("a copy"))
}

fn try_copy(from: &Path, to: &Path, options: &TreeOptions, is_local: bool) -> (Sent, Result<Report, Refused>) {
    copy_root(Root::new(from, "root"), to, options, is_local)
}

/// Copies one root in the same way.
fn copy_root(root: Root, to: &Path, options: &TreeOptions, is_local: bool) -> (Sent, Result<Report, Refused>) {
    let part_bytes = if is_local { local::CHUNK_BYTES } else { PART_BYTES };
    let source = TreeSource::new(vec![root], part_bytes, options.clone(), Arc::default()).expect("a source");
    let source = Arc::new(if is_local { source.local() } else { source });
    let (parent, name) = (to.parent().expect("one"), to.file_name().expect("one"));
    let names = Names::Only(name.as_encoded_bytes().to_vec());
    let is_dry = options.dry_run;
    let options = TreeOptions { manifest: true, ..options.clone() };
    let destination = Destination { options, names, is_local, ..Destination::default() };
    let mut sink = TreeSink::new(parent, destination, local::answer(&source)).expect("a sink");
    let listed = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&listed);
    let stream = Arc::new_cyclic(|stream: &Weak<EntryStream>| {
        let stream = Weak::clone(stream);
        EntryStream::new(Box::new(move |told| {
            list.lock().expect("no panic").extend(told);
            stream.upgrade().expect("in use").taken(1);
        }))
    });
    sink.list_to(&stream);
    let report = if is_local {
        local::copy(&source, &mut sink, &Arc::new(AtomicBool::new(false)), || {})
    } else {
        let mut target = vec![0; PART_BYTES];
        loop {
            match source.next(&mut target, PART_BYTES, &Tally::default()) {
                Next::Part(part) => {
                    let bytes = Arc::new(target[..part.length].to_vec());
                    sink.push(part.item, part.position, bytes).expect("taken");
                }
                // A hole that is sent because the destination has something else there.
                Next::Cold(range, cold) => {
                    let outcome = rustix::io::pread(&cold.file, cold.hole(&mut target), cold.hole_offset());
                    source.note_arrival();
                    let part = source.settle(&range, &cold, outcome, &mut target, &Tally::default()).expect("read");
                    let bytes = Arc::new(target[..part.length].to_vec());
                    sink.push(part.item, part.position, bytes).expect("taken");
                }
                Next::Ended => break,
                other => panic!("{other:?}"),
            }
        }
        sink.finish()
    };
    let listed = std::mem::take(&mut *listed.lock().expect("no panic"));
    let listed = listed.into_iter().filter_map(|entry| match entry {
        entries::Entry::Listed(entry) => Some(entry),
        _ => None,
    });
    if !is_dry && report.as_ref().is_ok_and(|report| report.figures.failed == 0) {
        holds(listed.collect(), to);
    }
    (source.sent(), report)
}

/// Checks that the manifest of a copy matches the destination, except for entries that the copy does not concern.
fn holds(mut listed: Vec<Entry>, to: &Path) {
    let top = to.file_name().expect("one").as_encoded_bytes();
    for entry in &mut listed {
        let path = entry.path.strip_prefix(top).expect("below it");
        entry.path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
    }
    listed.sort_by(|one, other| order(&one.path, &other.path));
    let manifest = fuzz::written(&listed);
    let findings = Mutex::new(Vec::new());
    let tell = |finding| match finding {
        Finding::Differs { aspects, .. } if aspects == [Aspect::Extra] => {}
        finding => findings.lock().expect("no panic").push(finding),
    };
    let checked = check(&manifest[..], to, Medium::Cache, &AtomicBool::new(false), &tell).expect("compared");
    assert_eq!((checked.entries, findings.into_inner().expect("no panic")), (listed.len() as u64, vec![]));
}

/// Returns the attributes that a user has set, with their values.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, &mut names).unwrap_or(0);
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    let names = names.split_terminator('\0').filter(|name| name.starts_with("user."));
    let value = |name: &str| {
        let mut value = vec![0; 4096];
        let length = lgetxattr(path, name, &mut value).expect("a value");
        value[..length].to_vec()
    };
    names.map(|name| (name.to_owned(), value(name))).collect()
}

/// Copies in the same way; `to` is DST itself, to which directories of other generations are relative.
pub(super) fn copy_as_dst(from: &Path, to: &Path, options: &TreeOptions, is_local: bool) -> (Sent, Report) {
    let mut options = options.clone();
    options.generations.session = Session { is_dst: true, is_last: true, ..Session::default() };
    copy(from, to, &options, is_local)
}

/// Describes all of a tree: kind, mode, time, attributes and contents. A file with several names is known by the first.
pub(crate) fn picture(top: &Path) -> BTreeMap<PathBuf, String> {
    let (mut all, mut inodes, mut todo) = (BTreeMap::new(), BTreeMap::new(), vec![top.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let (stat, name) = (fs::symlink_metadata(&path).expect("it"), path.strip_prefix(top).expect("below"));
            let of = inodes.entry(stat.ino()).or_insert_with(|| name.to_owned());
            let first = if name < &**of { name.to_owned() } else { of.clone() };
            *of = first;
            if stat.is_dir() {
                todo.push(path);
            }
        }
    }
    let mut todo = vec![top.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let stat = fs::symlink_metadata(&path).expect("it");
            let what = match () {
                () if stat.is_dir() => {
                    todo.push(path.clone());
                    String::new()
                }
                () if stat.is_symlink() => format!("{:?}", fs::read_link(&path).expect("a link")),
                () if stat.is_file() => blake3::hash(&fs::read(&path).expect("a file")).to_string(),
                () => stat.rdev().to_string(),
            };
            let text = format!(
                "{:o} {}:{} {}.{} {what} {:?} {:?}",
                stat.mode(),
                stat.uid(),
                stat.gid(),
                stat.mtime(),
                stat.mtime_nsec(),
                inodes[&stat.ino()],
                attributes(&path)
            );
            all.insert(path.strip_prefix(top).expect("below").to_owned(), text);
        }
    }
    all
}

/// Makes and changes trees. The number is the state of its random number generator (SplitMix64).
pub(crate) struct Maker(pub u64);

impl Maker {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.below(256) as u8);
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.below(12) {
            0 => 0,
            1..8 => self.below(9000),
            8..11 => (128 << 10) - 2 + self.below(4),
            _ => (1 << 20) + self.below(3 << 20),
        };
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes);
        bytes
    }

    /// Makes an entry of any kind; `depth` bounds directories.
    pub fn make(&mut self, path: &Path, depth: u64) {
        match self.below(10) {
            0..2 if depth > 0 => {
                fs::create_dir(path).expect("a directory");
                for name in 0..self.below(7) {
                    self.make(&path.join(format!("n{name}")), depth - 1);
                }
            }
            2 => symlink(format!("to{}", self.below(3)), path).expect("a link"),
            3 => {
                let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
                mknodat(CWD, &name, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
            }
            4 if path.parent().expect("one").join("n0").is_file() => {
                let _ = fs::hard_link(path.parent().expect("one").join("n0"), path);
            }
            _ => {
                fs::write(path, self.bytes()).expect("a file");
                let mode = 0o400 | self.below(0o400) as u32;
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
            }
        }
        self.touch(path);
    }

    fn touch(&mut self, path: &Path) {
        let time = Timespec { tv_sec: self.below(1 << 30) as i64, tv_nsec: self.below(1_000_000_000) as i64 };
        let times = Timestamps { last_access: time, last_modification: time };
        let name = format!("user.n{}", self.below(2));
        // Links and FIFOs have no user attributes, and on some file systems no file has.
        let _ = match self.below(6) {
            0 => lsetxattr(path, name, &[self.below(2) as u8], XattrFlags::empty()),
            1 => lremovexattr(path, name),
            _ => Ok(()),
        };
        // Changes only attributes.
        if self.below(4) == 0 {
            return;
        }
        if fs::symlink_metadata(path).is_ok() {
            utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("a time");
        }
    }

    /// Changes some entries of a tree.
    pub fn change(&mut self, directory: &Path) {
        let mut names: Vec<_> = fs::read_dir(directory).expect("it").map(|entry| entry.expect("one").path()).collect();
        names.sort();
        for path in names {
            let stat = fs::symlink_metadata(&path).expect("it");
            match self.below(12) {
                0 => remove(&path),
                1 => {
                    remove(&path);
                    self.make(&path, 2);
                }
                2 => self.touch(&path),
                3 if !stat.is_symlink() => {
                    let mode = fs::Permissions::from_mode(0o700 | self.below(0o100) as u32);
                    fs::set_permissions(&path, mode).expect("a mode");
                }
                4 if stat.is_file() && stat.len() > 0 => {
                    let mut bytes = fs::read(&path).expect("it");
                    let at = self.below(stat.len()) as usize;
                    bytes[at] ^= 1;
                    fs::write(&path, bytes).expect("written");
                    self.touch(&path);
                }
                5 => {
                    let other = directory.join(format!("moved{}", self.below(5)));
                    if fs::symlink_metadata(&other).is_err() {
                        fs::rename(&path, other).expect("renamed");
                    }
                }
                _ if stat.is_dir() => self.change(&path),
                _ => {}
            }
        }
        if self.below(2) == 0 {
            let path = directory.join(format!("new{}", self.below(9)));
            if fs::symlink_metadata(&path).is_err() {
                self.make(&path, 2);
            }
        }
        self.touch(directory);
    }
}

fn remove(path: &Path) {
    if fs::symlink_metadata(path).expect("it").is_dir() {
        fs::remove_dir_all(path).expect("removed");
    } else {
        fs::remove_file(path).expect("removed");
    }
}

pub(crate) fn scratch() -> TempDir {
    TempDir::new_in("/dev/shm").expect("a directory")
}

#[test]
fn a_tree_that_changes_is_followed() {
    for seed in 0..60 {
        let (scratch, is_local) = (scratch(), seed % 2 == 0);
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        let mut maker = Maker(seed);
        fs::create_dir(&from).expect("a directory");
        for name in 0..12 {
            maker.make(&from.join(format!("n{name}")), 3);
        }
        let checksum = seed % 3 == 0;
        let options = TreeOptions { delete: true, checksum, ..sync() };
        for round in 0..4 {
            let (sent, report) = copy(&from, &to, &options, is_local);
            let failed = report.figures.failed + sent.figures.failed;
            assert_eq!(failed, 0, "seed {seed}: {:?} {:?}", report.failures, sent.failures);
            assert_eq!(picture(&from), picture(&to), "seed {seed}, round {round}");
            let (sent, report) = copy(&from, &to, &options, is_local);
            let moved = (sent.figures.amount.bytes, report.files, report.figures.deleted);
            assert_eq!(moved, (0, 0, 0), "seed {seed}: nothing is sent twice");
            assert_eq!(picture(&from), picture(&to), "seed {seed}, round {round}, once more");
            maker.change(&from);
        }
    }
}

/// Temporary names whose entries are not sent any more, so that no transfer reaches them. Those of a killed transfer
/// are removed where entries are deleted, and those that a transfer holds stay.
#[test]
fn what_a_killed_transfer_has_left_is_deleted() {
    use crate::fs::{PARTIAL, WHOLE, name_beside};
    for (is_local, delete) in [(true, true), (false, true), (true, false)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("below")).expect("a directory");
        fs::write(from.join("below/file"), "contents").expect("a file");
        copy(&from, &to, &sync(), is_local);
        let beside = |name: &[u8], ending| to.join("below").join(name_beside(name, ending));
        let (left, link, held) = (beside(b"gone", PARTIAL), beside(b"link", WHOLE), beside(b"other", PARTIAL));
        fs::write(&left, "a part").expect("a file");
        symlink("anywhere", &link).expect("a link");
        let other = fs::File::create(&held).expect("a file");
        rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        copy(&from, &to, &TreeOptions { delete, dry_run: true, ..sync() }, is_local);
        assert!(left.exists() && link.is_symlink(), "nothing is deleted in a dry run");
        let (_, report) = copy(&from, &to, &TreeOptions { delete, ..sync() }, is_local);
        assert_eq!((report.figures.failed, report.figures.deleted), (0, 0), "{report:?}");
        assert_eq!((left.exists(), link.is_symlink(), held.exists()), (!delete, !delete, true), "{is_local}");
    }
}

/// A full disk or quota at the end makes the copy fail, as it does before.
#[test]
fn a_disk_that_takes_nothing_at_the_end_is_a_failure() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir(&from).expect("a directory");
        fs::write(from.join("file"), "contents").expect("a file");
        copy(&from, &to, &sync(), is_local);
        fs::write(to.join("extraneous"), "").expect("a file");
        let mut options = TreeOptions { delete: true, delete_after: true, ..sync() };
        options.generations.session.is_last = true;
        let fails = |options: &TreeOptions, to: &Path, call| {
            let (_, report) = where_calls_fail(&[call], libc::EDQUOT, || try_copy(&from, to, options, is_local));
            assert!(matches!(&report, Err(Refused::Io(fact)) if fact.errno == libc::EDQUOT), "{report:?}");
        };
        fails(&options, &to, libc::SYS_unlinkat);
        assert!(to.join("extraneous").exists());
        let mut options = sync();
        options.generations.snapshot = Some(b"one".to_vec().into());
        options.generations.session = Session { is_dst: true, is_last: true, ..Session::default() };
        let latest = scratch.path().join("generations/latest");
        fs::create_dir(scratch.path().join("generations")).expect("a directory");
        symlink("earlier", &latest).expect("a link");
        fails(&options, &scratch.path().join("generations/one"), libc::SYS_symlinkat);
        assert_eq!(fs::read_link(&latest).expect("a link"), Path::new("earlier"));
    }
}

#[test]
fn attributes_that_the_source_has_no_more_are_removed() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("directory")).expect("a directory");
        fs::write(from.join("file"), "contents").expect("a file");
        copy(&from, &to, &sync(), is_local);
        for name in ["file", "directory"] {
            if let Err(error) = lsetxattr(to.join(name), "user.old", b"x", XattrFlags::empty()) {
                assert_eq!(error, rustix::io::Errno::OPNOTSUPP);
                return not_run(format_args!("{} has no attributes", to.display()));
            }
        }
        assert_ne!(picture(&from), picture(&to));
        let (sent, report) = copy(&from, &to, &sync(), is_local);
        assert_eq!((sent.figures.amount.bytes, report.figures.failed), (0, 0));
        assert_eq!(picture(&from), picture(&to));
    }
}

#[test]
fn what_is_not_at_the_source_stays_unless_it_is_to_be_deleted() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    for path in ["from/d/e", "to/d/e", "to/old/deep"] {
        fs::create_dir_all(scratch.path().join(path)).expect("a directory");
    }
    for path in ["from/a", "from/x.o", "to/d/old", "to/old/deep/file", "to/keep.o", "to/old/keep.o"] {
        fs::write(scratch.path().join(path), path).expect("a file");
    }
    let there = |path: &str| fs::symlink_metadata(to.join(path)).is_ok();
    let exclude = Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]);
    let options = TreeOptions { rules: exclude, ..sync() };
    copy(&from, &to, &options, false);
    assert!(there("a") && !there("x.o") && there("d/old") && there("old/deep/file"));
    let few = TreeOptions { delete: true, max_delete: Some(1), ..options.clone() };
    let (_, report) = copy(&from, &to, &few, false);
    assert_eq!((report.figures.deleted, report.figures.failed > 0), (1, true), "{report:?}");
    let (_, report) = copy(&from, &to, &TreeOptions { delete: true, ..options.clone() }, false);
    assert!(!there("d/old") && !there("old/deep") && there("old/keep.o") && there("keep.o"), "excluded ones stay");
    assert_eq!(report.figures.failed, 0, "{report:?}");
    copy(&from, &to, &TreeOptions { delete: true, delete_excluded: true, ..options }, false);
    assert!(!there("old") && !there("keep.o") && there("a"));
}

/// As deep as can be copied. The threads have small stacks.
#[test]
fn deep_directories_are_deleted_and_make_way() {
    for (is_local, takes_place) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir(&from).expect("a directory");
        let deep = to.join("x").join(vec!["d"; DEPTH_MAX - 2].join("/"));
        fs::create_dir_all(&deep).expect("directories");
        fs::write(deep.join("file"), "1").expect("a file");
        fs::write(from.join(if takes_place { "x" } else { "y" }), "2").expect("a file");
        let (_, report) = copy(&from, &to, &TreeOptions { delete: true, ..sync() }, is_local);
        assert_eq!(report.figures.failed, 0, "{report:?}");
        assert_eq!(picture(&from), picture(&to));
    }
}

#[test]
fn an_empty_source_empties_nothing_unasked() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).expect("a directory");
    fs::create_dir(&to).expect("a directory");
    fs::write(to.join("file"), "1").expect("a file");
    let options = TreeOptions { delete: true, ..sync() };
    let (_, report) = copy(&from, &to, &options, false);
    assert!(to.join("file").exists() && report.figures.failed == 1, "{report:?}");
    copy(&from, &to, &TreeOptions { force_empty: true, ..options }, false);
    assert!(!to.join("file").exists());
}

#[test]
fn only_what_is_there_or_what_is_not_or_what_is_older() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir_all(from.join("new")).expect("a directory");
    fs::create_dir(&to).expect("a directory");
    for (path, text) in [("from/both", "from"), ("from/new/file", "new"), ("from/only", "only"), ("to/both", "older")] {
        fs::write(scratch.path().join(path), text).expect("a file");
    }
    let mut maker = Maker(1);
    let both = || fs::read_to_string(to.join("both")).expect("a file");
    copy(&from, &to, &TreeOptions { ignore_existing: true, existing: true, ..sync() }, false);
    assert!(both() == "older" && !to.join("only").exists() && !to.join("new").exists());
    fs::File::options()
        .write(true)
        .open(to.join("both"))
        .expect("it")
        .set_modified(std::time::SystemTime::now())
        .expect("set");
    maker.touch(&from.join("both"));
    copy(&from, &to, &TreeOptions { update: true, existing: true, ..sync() }, false);
    assert_eq!(both(), "older");
    copy(&from, &to, &TreeOptions { existing: true, ..sync() }, false);
    assert!(both() == "from" && !to.join("only").exists() && !to.join("new").exists());
    // A directory replaces a file, and nothing comes into it, even once the sender knows that the directory is new.
    (0..2000).for_each(|number| fs::write(from.join(format!("new/{number}")), "").expect("a file"));
    fs::write(from.join("new/large"), vec![1; 2 * INLINE_BYTES_MAX]).expect("a file");
    fs::write(to.join("new"), "a file").expect("a file");
    copy(&from, &to, &TreeOptions { existing: true, ..sync() }, false);
    assert_eq!(fs::read_dir(to.join("new")).expect("a directory").count(), 0);
    fs::remove_dir(to.join("new")).expect("removed");
    copy(&from, &to, &TreeOptions { ignore_existing: true, ..sync() }, false);
    assert!(to.join("only").exists() && to.join("new/file").exists());
}

/// A file that stays whatever it is has nothing to do with a further name of the file that the source has there.
#[test]
fn a_further_name_of_what_is_left_has_the_contents_of_the_source() {
    let new = |name: &str| (name == "newer").then_some("another, and newer");
    for (options, old, expected) in [
        (TreeOptions { ignore_existing: true, ..sync() }, Some("first"), ["older", "source", "source"]),
        (TreeOptions { update: true, ..sync() }, Some("newer"), ["another, and newer", "source", "source"]),
        (TreeOptions { append_verify: true, ..sync() }, Some("newer"), ["another, and newer", "source", "source"]),
        (TreeOptions { existing: true, ..sync() }, None, ["", "source", ""]),
    ] {
        for (is_local, dry_run) in [(false, true), (false, false), (true, true), (true, false)] {
            let (from, to) = (scratch(), scratch());
            let (from, to) = (from.path().join("x"), to.path().join("x"));
            for top in [&from, &to] {
                fs::create_dir(top).expect("a directory");
            }
            fs::write(from.join("a"), "source").expect("a file");
            for name in ["b", "c"] {
                fs::hard_link(from.join("a"), from.join(name)).expect("linked");
            }
            match old {
                Some(old) => fs::write(to.join("a"), new(old).unwrap_or("older")).expect("a file"),
                None => fs::write(to.join("b"), "older").expect("a file"),
            }
            if old == Some("newer") {
                let file = fs::File::options().write(true).open(to.join("a")).expect("it");
                file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(10)).expect("set");
            }
            let before = picture(&to);
            copy(&from, &to, &TreeOptions { dry_run, ..options.clone() }, is_local);
            if dry_run {
                assert_eq!(picture(&to), before);
                continue;
            }
            let got = ["a", "b", "c"].map(|name| fs::read_to_string(to.join(name)).unwrap_or_default());
            assert_eq!(got, expected, "{options:?}, local {is_local}");
            let inode = |name| fs::metadata(to.join(name)).ok().map(|stat| stat.ino());
            assert!(old.is_none() || inode("b") == inode("c"), "the others are linked");
        }
    }
}

#[test]
fn a_changed_part_of_a_large_file_is_all_that_is_sent() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).expect("a directory");
    let mut maker = Maker(2);
    let mut bytes = vec![0; 40 << 20];
    maker.fill(&mut bytes);
    fs::write(from.join("large"), &bytes).expect("a file");
    copy(&from, &to, &sync(), false);
    bytes[30 << 20] ^= 1;
    bytes.extend([7; 1000]);
    fs::write(from.join("large"), &bytes).expect("a file");
    let (sent, report) = copy(&from, &to, &sync(), false);
    assert!(fs::read(to.join("large")).expect("it") == bytes);
    assert!(sent.figures.amount.bytes < 20 << 20 && report.figures.failed == 0, "{sent:?}");
    maker.touch(&from.join("large"));
    let (sent, _) = copy(&from, &to, &sync(), false);
    assert_eq!(sent.figures.amount.bytes, 0);
    assert_eq!(picture(&from), picture(&to));
}

/// Returns what a sink makes of these records.
fn taken(options: &TreeOptions, to: &Path, records: &[Record<'_>]) -> Result<Report, Refused> {
    let mut sink = TreeSink::new(to, options.clone(), Box::new(|_| {})).expect("a sink");
    for record in records {
        let mut bytes = vec![0; record.encoded_bytes()];
        record.encode(&mut bytes).expect("as long as it says");
        sink.push(0, 0, Arc::new(bytes))?;
        // Leaves time for verdicts to be made.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    sink.finish()
}

/// An entry that the receiver cannot make prevents deletion beside it, and nowhere else.
#[test]
fn nothing_is_deleted_beside_what_has_failed() {
    // Extension of type 700, empty and critical.
    let unknown = Metadata { extensions: Extensions::new(b"\xbc\x02\x01\0\0"), ..Metadata::ZERO };
    let metadata = Metadata { mode: 0o755, ..Metadata::ZERO };
    let directory = |name| Record::Directory { name, metadata };
    let file = |name, metadata| Record::File { name, metadata, data: b"1" };
    let records = [
        directory(b"a"),
        file(b"f", unknown),
        Record::Leave,
        directory(b"b"),
        file(b"f", metadata),
        Record::Leave,
        Record::End { failures: 0 },
    ];
    for delete_after in [false, true] {
        let scratch = scratch();
        for name in ["a", "b"] {
            fs::create_dir(scratch.path().join(name)).expect("a directory");
            fs::write(scratch.path().join(name).join("extra"), "1").expect("a file");
        }
        let options = TreeOptions { delete: true, delete_after, ..sync() };
        let report = taken(&options, scratch.path(), &records).expect("a tree");
        assert_eq!(report.figures.failed, 1 + u64::from(delete_after), "{:?}", report.failures);
        let is_there = |name| scratch.path().join(name).exists();
        assert_eq!(["a/extra", "b/extra", "b/f"].map(is_there), [true, delete_after, true]);
    }
}

/// Only the caller may say that a directory merely leads to others, because a link in its place is then followed.
#[test]
fn a_sender_cannot_have_a_link_followed() {
    let metadata = Metadata { mode: 0o755, ..Metadata::ZERO };
    let records = [
        Record::Directory { name: b"root", metadata },
        Record::Directory { name: b"link", metadata: Metadata::IMPLIED },
        Record::File { name: b"f", metadata, data: b"1" },
        Record::Leave,
        Record::Leave,
        Record::End { failures: 0 },
    ];
    for (no_implied_dirs, target) in [(false, "there"), (true, "there"), (true, "/"), (true, "there/../..")] {
        let scratch = scratch();
        let at = |name: &str| scratch.path().join("root").join(name);
        fs::create_dir_all(at("there")).expect("directories");
        std::os::unix::fs::symlink(target, at("link")).expect("a link");
        let outcome = taken(&TreeOptions { no_implied_dirs, ..sync() }, scratch.path(), &records).expect("a tree");
        let is_followed = no_implied_dirs && target == "there";
        assert_eq!(at("there/f").exists(), is_followed, "{target}");
        assert_eq!(at("link").is_symlink(), no_implied_dirs, "{target}");
        assert_eq!(outcome.figures.failed == 0, !no_implied_dirs || is_followed, "{target}: {:?}", outcome.failures);
        assert!(!Path::new("/f").exists() && !scratch.path().join("f").exists());
    }
}

#[test]
fn what_no_sender_sends_is_refused() {
    let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
    let (end, listed) = (Record::End { failures: 0 }, Record::Listed { name: b"a", metadata, size: 1 });
    let file = |name| Record::File { name, metadata, data: b"1" };
    let wanted = |number| Record::Wanted { number };
    let plain = TreeOptions::default();
    let refused = |options: &TreeOptions, records: &[Record<'_>]| {
        let scratch = scratch();
        let outcome = taken(options, scratch.path(), records);
        let names = fs::read_dir(scratch.path()).expect("it").count();
        assert!(matches!(outcome, Err(Refused::Data(_) | Refused::Tree(_))) && names == 0, "{records:?}: {outcome:?}");
    };
    refused(&plain, &[listed, end]);
    for records in [
        &[wanted(0), file(b"a"), end][..],
        &[listed, end],
        &[listed, wanted(1), file(b"a"), end],
        &[listed, wanted(0), file(b"b"), end],
        &[listed, wanted(0), end],
        &[listed, wanted(0), wanted(0), end],
        &[listed, Record::Same { number: 1 }, end],
        &[listed, Record::Gone { number: 7 }, end],
        &[listed, listed, end],
        &[listed, Record::Gone { number: 0 }, wanted(0), file(b"a"), end],
        &[listed, Record::Differs { number: 0 }, end],
    ] {
        refused(&sync(), records);
    }
    let dry = TreeOptions { dry_run: true, ..sync() };
    let large = Record::Large { name: b"b", metadata, item: 1, size: 1, is_sparse: false };
    for records in [&[listed, wanted(0), file(b"a"), end][..], &[file(b"a"), end], &[large, end]] {
        refused(&dry, records);
    }
    refused(&dry, &[listed, Record::Differs { number: 1 }, end]);
    let scratch = scratch();
    let report = taken(&sync(), scratch.path(), &[listed, wanted(0), file(b"a"), end]).expect("a tree");
    assert!(report.files == 1 && fs::read(scratch.path().join("a")).expect("a file") == b"1");
}

#[test]
fn what_no_receiver_answers_is_refused() {
    let scratch = scratch();
    fs::create_dir(scratch.path().join("d")).expect("a directory");
    fs::write(scratch.path().join("d/a"), "1").expect("a file");
    let roots = vec![Root::new(scratch.path(), "root")];
    let source = TreeSource::new(roots, PART_BYTES, sync(), Arc::default()).expect("a source");
    let verdicts = |first, count| Answer::Verdicts { first, verdicts: vec![Verdict::Wanted; count] };
    assert!(source.handle_answer(verdicts(0, 1)).is_err(), "nothing is listed");
    assert!(source.handle_answer(Answer::Fresh { directory: 0 }).is_err(), "nothing is sent");
    let mut target = vec![0; PART_BYTES];
    assert!(matches!(source.next(&mut target, PART_BYTES, &Tally::default()), Next::Part(_)));
    for wrong in [verdicts(1, 1), verdicts(u64::MAX, 2)] {
        assert!(source.handle_answer(wrong).is_err());
    }
    let fresh = [2, 1, 1, 0].map(|directory| source.handle_answer(Answer::Fresh { directory }).is_ok());
    assert_eq!(fresh, [false, true, false, false], "each directory once, in order");
    assert!(source.handle_answer(verdicts(0, 1)).is_ok());
    assert!(source.handle_answer(verdicts(0, 1)).is_err(), "each file once");
}

/// In a dry run the sender sends no contents, whatever a receiver asks for.
#[test]
fn a_dry_run_brings_no_contents() {
    let scratch = scratch();
    fs::create_dir(scratch.path().join("d")).expect("a directory");
    for (name, bytes) in [("d/a", 100), ("d/b", 300 << 10)] {
        fs::write(scratch.path().join(name), b"contents".repeat(bytes / 8)).expect("a file");
    }
    let roots = vec![Root::new(scratch.path(), "root")];
    let options = TreeOptions { dry_run: true, ..sync() };
    let source = TreeSource::new(roots, PART_BYTES, options, Arc::default()).expect("a source");
    let (mut target, mut sent) = (vec![0; PART_BYTES], Vec::new());
    let mut next = || match source.next(&mut target, PART_BYTES, &Tally::default()) {
        Next::Part(part) => sent.extend_from_slice(&target[..part.length]),
        Next::Ended => sent.push(b'!'),
        other => panic!("{other:?}"),
    };
    next();
    source.handle_answer(Answer::Fresh { directory: 0 }).expect("it was sent");
    let verdicts = vec![Verdict::Wanted, Verdict::Blocks];
    source.handle_answer(Answer::Verdicts { first: 0, verdicts }).expect("they were listed");
    (0..3).for_each(|_| next());
    assert!(sent.ends_with(b"!") && !sent.windows(8).any(|bytes| bytes == b"contents"), "{}", sent.escape_ascii());
}

/// A walk that has listed as many files as may wait goes on even if none of them is wanted.
#[test]
fn a_walk_at_its_limit_goes_on_when_all_is_there() {
    const FILES: usize = LISTED_MAX + 500;
    let scratch = scratch();
    for number in 0..FILES {
        fs::write(scratch.path().join(number.to_string()), "").expect("a file");
    }
    let roots = vec![Root::new(scratch.path(), "root")];
    let source = TreeSource::new(roots, PART_BYTES, sync(), Arc::default()).expect("a source").local();
    let (mut target, mut listed, mut judged) = (vec![0; PART_BYTES], 0, 0);
    loop {
        match source.next(&mut target, PART_BYTES, &Tally::default()) {
            Next::Part(part) => {
                let mut records = &target[..part.length];
                while let Some(record) = Record::decode(&mut records).expect("records") {
                    listed += usize::from(matches!(record, Record::Listed { .. }));
                }
            }
            Next::Later => {
                assert!(judged < listed, "it waits for nothing");
                let verdicts = vec![Verdict::Same; 1000.min(listed - judged)];
                let first = judged as u64;
                judged += verdicts.len();
                source.handle_answer(Answer::Verdicts { first, verdicts }).expect("taken");
            }
            Next::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((listed, judged), (FILES, FILES));
}

/// A file that takes the name of a listed file with further names does not get these names as well.
#[test]
fn names_of_a_file_that_is_replaced_are_not_its_successors() {
    let scratch = scratch();
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("a"), "old").expect("a file");
    ["b", "c"].iter().for_each(|name| fs::hard_link(path("a"), path(name)).expect("a link"));
    let roots = vec![Root::new(scratch.path(), "root")];
    let source = TreeSource::new(roots, PART_BYTES, sync(), Arc::default()).expect("a source").local();
    let (mut target, mut listed, mut judged, mut linked) = (vec![0; PART_BYTES], 0, 0, Vec::new());
    loop {
        match source.next(&mut target, PART_BYTES, &Tally::default()) {
            Next::Part(part) => {
                let mut records = &target[..part.length];
                while let Some(record) = Record::decode(&mut records).expect("records") {
                    match record {
                        Record::Listed { .. } => listed += 1,
                        Record::HardLink { name, first } => linked.push((name.to_vec(), first.to_vec())),
                        _ => {}
                    }
                }
            }
            Next::Later => {
                if judged == 0 {
                    fs::write(path("new"), "new").expect("a file");
                    fs::rename(path("new"), path("a")).expect("its name");
                }
                let verdicts = vec![Verdict::Wanted; listed - judged];
                let first = judged as u64;
                judged = listed;
                source.handle_answer(Answer::Verdicts { first, verdicts }).expect("taken");
            }
            Next::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((listed, linked), (2, vec![(b"c".to_vec(), b"root/b".to_vec())]));
}
