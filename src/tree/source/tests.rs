//! The parts that a source gives out are put together again, and must be the tree on the disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rd_proto::tree::{DEPTH_MAX, Order, Record, Special};
use rustix::fs::{CWD, Mode, XattrFlags, mkfifoat, setxattr};

use super::super::walk::hook::set_before_read;
use super::*;
use crate::not_run::not_run;
use crate::options::{Rule, Rules};

mod planned;

const PART_BYTES: usize = 64 << 10;
const INLINE_BYTES: usize = PART_BYTES / 8;

/// A directory that is removed when the test ends.
struct Scratch(PathBuf, #[expect(dead_code, reason = "it is dropped behind")] tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self(directory.path().to_owned(), directory)
    }

    fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) {
        fs::write(self.0.join(path), data).expect("written");
    }

    fn directory(&self, path: impl AsRef<Path>) {
        fs::create_dir_all(self.0.join(path)).expect("made");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path)).expect("removed");
    }

    /// A source with all of the directory as one root, `t`.
    fn source(&self, part_bytes: usize) -> TreeSource {
        self.source_with(part_bytes, TreeOptions::default())
    }

    fn source_with(&self, part_bytes: usize, options: TreeOptions) -> TreeSource {
        TreeSource::new(vec![Root::new(&self.0, "t")], part_bytes, options, Arc::default()).expect("a source")
    }
}

/// A source with one root.
fn source_of(path: &Path, name: &str) -> TreeSource {
    TreeSource::new(vec![Root::new(path, name)], PART_BYTES, TreeOptions::default(), Arc::default()).expect("a source")
}

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8 | 1).collect()
}

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

type Parts = Vec<(Part, Vec<u8>)>;

/// Takes the next part with its bytes.
fn one(source: &TreeSource, part_bytes: usize) -> Option<(Part, Vec<u8>)> {
    let mut target = vec![0xee; part_bytes];
    let tally = Tally::default();
    loop {
        let part = match source.next(&mut target, part_bytes, &tally) {
            Next::Part(part) => Some(part),
            Next::Copy(_) => unreachable!("of a copy within a host"),
            Next::Ended => return None,
            Next::Later => {
                std::thread::yield_now();
                None
            }
            Next::Cold(range, cold) => {
                // The buffer is not aligned, so the direct read is refused, and the data comes through the page cache.
                let outcome = rustix::io::pread(&cold.file, cold.hole(&mut target), cold.hole_offset());
                source.note_arrival();
                source.settle(&range, &cold, outcome, &mut target, &tally)
            }
        };
        if let Some(part) = part {
            assert!(part.length > 0);
            target.truncate(part.length);
            return Some((part, target));
        }
    }
}

fn rest(source: &TreeSource, threads: usize, part_bytes: usize) -> Parts {
    let parts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(part) = one(source, part_bytes) {
                    parts.lock().expect("unharmed").push(part);
                }
            });
        }
    });
    assert_eq!(one(source, part_bytes).map(|(part, _)| part), None);
    parts.into_inner().expect("unharmed")
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Directory,
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Special(Special, u32, u32),
}

#[derive(Debug, Default)]
struct Tree {
    entries: BTreeMap<Vec<u8>, What>,
    modes: BTreeMap<Vec<u8>, u32>,
    xattrs: BTreeMap<Vec<u8>, Vec<Xattr>>,
    /// First names by further names.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Data of large files in chunks of their own, by path.
    large: BTreeMap<Vec<u8>, u64>,
    failures: u64,
}

/// Checks the parts as a receiver would, and more strictly, and puts the tree together.
fn rebuild(mut parts: Parts) -> Tree {
    parts.sort_by_key(|(part, _)| part.sequence);
    let mut tree = Tree::default();
    let (mut order, mut path, mut position) = (Order::new(), Vec::<Vec<u8>>::new(), 0);
    let mut open = BTreeMap::<u32, (Vec<u8>, Vec<u8>, u64, u64)>::new();
    for (sequence, (part, data)) in parts.iter().enumerate() {
        assert_eq!(part.sequence, sequence as u64, "dense, each once");
        assert_eq!(part.is_final, sequence + 1 == parts.len());
        if part.item != 0 {
            let (_, whole, _, sum) = open.get_mut(&part.item).expect("announced before");
            let range = &mut whole[part.position as usize..][..part.length];
            assert!(range.iter().all(|&byte| byte == 0), "a range twice");
            range.copy_from_slice(data);
            *sum += part.length as u64;
            continue;
        }
        assert_eq!(part.position, position);
        position += part.length as u64;
        let mut left = data.as_slice();
        while let Some(record) = Record::decode(&mut left).expect("whole records") {
            order.check(&record).expect("in order");
            let here = path.iter().map(Vec::as_slice).chain(record.name()).collect::<Vec<_>>().join(&b'/');
            let what = match record {
                Record::Directory { name, .. } => {
                    path.push(name.to_vec());
                    What::Directory
                }
                Record::Leave if path.pop().is_some() => continue,
                Record::File { data, .. } => What::File(data.to_vec()),
                Record::Large { item, size, .. } => {
                    open.insert(item, (here.clone(), vec![0; size as usize], size, 0));
                    What::File(Vec::new())
                }
                Record::Symlink { target, .. } => What::Symlink(target.to_vec()),
                Record::HardLink { first, .. } => {
                    tree.links.insert(here.clone(), first.to_vec());
                    tree.entries[first].clone()
                }
                Record::Special { kind, device, .. } => What::Special(kind, device.0, device.1),
                Record::Closed { item, data_bytes, is_intact } => {
                    let (path, data, size, sum) = open.remove(&item).expect("open");
                    assert_eq!(sum, data_bytes);
                    assert_eq!(data.len() as u64, size);
                    let names: Vec<_> = tree.links.iter().filter(|(_, first)| **first == path).collect();
                    for name in names.into_iter().map(|(name, _)| name).chain([&path]) {
                        match is_intact {
                            true => tree.entries.insert(name.clone(), What::File(data.clone())),
                            false => tree.entries.remove(name),
                        };
                    }
                    tree.large.insert(path, data_bytes);
                    continue;
                }
                Record::End { failures } => {
                    tree.failures = failures;
                    continue;
                }
                other => panic!("{other:?}, though no answer was asked for"),
            };
            if let Record::File { metadata, .. } | Record::Directory { metadata, .. } = record {
                tree.modes.insert(here.clone(), metadata.mode);
                let xattrs = metadata.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
                tree.xattrs.insert(here.clone(), xattrs.collect());
            }
            tree.entries.insert(here, what);
        }
    }
    assert!(order.is_ended());
    tree
}

/// Reads the tree from the disk.
fn on_disk(path: &Path, name: &[u8], entries: &mut BTreeMap<Vec<u8>, What>) {
    let stat = fs::symlink_metadata(path).expect("there");
    let kind = stat.file_type();
    let what = if kind.is_dir() {
        for entry in fs::read_dir(path).expect("readable") {
            let entry = entry.expect("readable");
            on_disk(&entry.path(), &[name, entry.file_name().as_bytes()].join(&b'/'), entries);
        }
        What::Directory
    } else if kind.is_symlink() {
        What::Symlink(fs::read_link(path).expect("a link").into_os_string().into_vec())
    } else if kind.is_fifo() {
        What::Special(Special::Fifo, 0, 0)
    } else if kind.is_socket() {
        What::Special(Special::Socket, 0, 0)
    } else {
        What::File(fs::read(path).expect("readable"))
    };
    entries.insert(name.to_vec(), what);
}

fn assert_same(scratch: &Scratch, tree: &Tree) {
    let mut entries = BTreeMap::new();
    on_disk(&scratch.0, b"t", &mut entries);
    let names = |entries: &BTreeMap<Vec<u8>, What>| {
        entries.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&tree.entries), names(&entries));
    for (name, what) in &entries {
        assert!(tree.entries[name] == *what, "{} differs", String::from_utf8_lossy(name));
    }
}

/// Takes all of a tree and compares it with the disk, with one worker and with several.
fn check(scratch: &Scratch, part_bytes: usize) -> Tree {
    let mut last = Tree::default();
    for threads in [1, 4] {
        let source = scratch.source(part_bytes);
        last = rebuild(rest(&source, threads, part_bytes));
        assert_same(scratch, &last);
        let sent = source.sent();
        assert_eq!((&*sent.failures, last.failures), (&[][..], 0));
        assert_eq!((sent.figures.amount.entries, sent.figures.failed), (last.entries.len() as u64, 0));
    }
    last
}

fn facts(source: &TreeSource) -> Vec<String> {
    let base =
        |path: &[u8]| String::from_utf8_lossy(path.rsplit(|&byte| byte == b'/').next().unwrap_or(b"")).into_owned();
    let detail = |fact: &IoFact| match fact.errno {
        0 => String::from_utf8_lossy(&fact.detail).into_owned(),
        errno => format!("errno {errno}"),
    };
    source.sent().failures.iter().map(|fact| format!("{}: {}", base(&fact.path), detail(fact))).collect()
}

#[test]
fn a_small_tree_is_one_part() {
    let scratch = Scratch::new();
    scratch.directory("d/e");
    scratch.write("d/e/f", "contents");
    fs::set_permissions(scratch.0.join("d/e/f"), fs::Permissions::from_mode(0o4751)).expect("changed");
    let parts = rest(&scratch.source(PART_BYTES), 1, PART_BYTES);
    assert_eq!(parts.len(), 1);
    let tree = rebuild(parts);
    assert_same(&scratch, &tree);
    assert_eq!(tree.modes[&b"t/d/e/f"[..]], 0o4751);
    let tree = rebuild(rest(&source_of(&scratch.0.join("d/e/f"), "g"), 1, PART_BYTES));
    assert_eq!(tree.entries, BTreeMap::from([(b"g".to_vec(), What::File(b"contents".to_vec()))]));
}

#[test]
fn files_of_any_size() {
    let scratch = Scratch::new();
    let around = |size: usize| [size - 1, size, size + 1];
    let mut sizes = vec![0, 1, 3 * PART_BYTES + 17];
    sizes.extend([INLINE_BYTES, PART_BYTES, 2 * PART_BYTES].into_iter().flat_map(around));
    for (index, size) in sizes.iter().enumerate() {
        scratch.write(index.to_string(), bytes(*size, index));
    }
    let tree = check(&scratch, PART_BYTES);
    assert_eq!(tree.large.len(), sizes.iter().filter(|size| **size > INLINE_BYTES).count());
    check(&scratch, 1 << 20);
}

#[test]
fn a_large_file_does_not_wait_for_slow_small_ones() {
    let scratch = Scratch::new();
    scratch.write("a", bytes(2 * PART_BYTES, 1));
    for index in 0..10 {
        scratch.write(format!("b{index}"), "small");
    }
    set_before_read(Some(Box::new(|_| std::thread::sleep(Duration::from_millis(20)))));
    let source = scratch.source(PART_BYTES);
    let mut parts = vec![one(&source, PART_BYTES).expect("records")];
    assert_eq!(source.sent().figures.amount.entries, 3, "the top, the large file, one small file");
    set_before_read(None);
    parts.extend(rest(&source, 1, PART_BYTES));
    assert_same(&scratch, &rebuild(parts));
}

#[test]
fn more_large_files_than_may_be_open() {
    let scratch = Scratch::new();
    for index in 0..3 * OPEN_MAX {
        scratch.write(format!("{index}"), bytes(INLINE_BYTES + index, index));
        scratch.write(format!("{index}-small"), bytes(index, index));
    }
    check(&scratch, PART_BYTES);
    let parts = rest(&scratch.source(PART_BYTES), 1, PART_BYTES);
    let records = parts.iter().filter(|(part, _)| part.item == 0).count();
    assert!(records < 12, "{records} chunks of records: ends of files took one each");
}

#[test]
fn holes_are_left_out() {
    let scratch = Scratch::new();
    for (name, size, data) in [("all", 9 << 20, None), ("middle", 9 << 20, Some(5 << 20)), ("small", 8192, Some(4096))]
    {
        let file = fs::File::create(scratch.0.join(name)).expect("made");
        file.set_len(size).expect("resized");
        if let Some(offset) = data {
            file.write_all_at(&bytes(4096, 7), offset).expect("written");
        }
    }
    let tree = check(&scratch, PART_BYTES);
    assert_eq!(tree.large[&b"t/all"[..]], 0);
    assert!(tree.large[&b"t/middle"[..]] <= 64 << 10, "{:?}", tree.large);
    assert_eq!(tree.large[&b"t/small"[..]], 4096);
    let options = TreeOptions { sparse: false, ..TreeOptions::default() };
    let tree = rebuild(rest(&scratch.source_with(PART_BYTES, options), 2, PART_BYTES));
    assert_same(&scratch, &tree);
    assert_eq!((tree.large.len(), tree.large[&b"t/all"[..]]), (2, 9 << 20));
}

#[test]
fn further_names_of_a_file() {
    let scratch = Scratch::new();
    scratch.directory("a");
    scratch.directory("b");
    scratch.write("a/small", "s");
    scratch.write("a/large", bytes(3 * PART_BYTES, 1));
    for (first, name) in [("a/small", "b/z"), ("a/small", "a.s"), ("a/large", "b/large"), ("a/large", "c")] {
        fs::hard_link(scratch.0.join(first), scratch.0.join(name)).expect("linked");
    }
    let tree = check(&scratch, PART_BYTES);
    let links = [("t/a.s", "t/a/small"), ("t/b/large", "t/a/large"), ("t/b/z", "t/a/small"), ("t/c", "t/a/large")];
    assert!(
        tree.links
            .iter()
            .map(|(name, first)| (&name[..], &first[..]))
            .eq(links.map(|(name, first)| (name.as_bytes(), first.as_bytes())))
    );
    let options = TreeOptions { hard_links: false, ..TreeOptions::default() };
    let tree = rebuild(rest(&scratch.source_with(PART_BYTES, options), 1, PART_BYTES));
    assert_same(&scratch, &tree);
    assert!(tree.links.is_empty());
}

#[test]
fn a_file_that_failed_is_sent_under_its_next_name() {
    let scratch = Scratch::new();
    for (first, size) in [("l", 2 * PART_BYTES), ("s", 10)] {
        scratch.write(format!("{first}1"), bytes(size, 1));
        for further in [2, 3] {
            fs::hard_link(scratch.0.join(format!("{first}1")), scratch.0.join(format!("{first}{further}")))
                .expect("linked");
        }
    }
    for index in 0..20 {
        scratch.write(format!("l1-{index:02}"), bytes(INLINE_BYTES, index));
    }
    let source = scratch.source(PART_BYTES);
    let path = scratch.0.join("s1");
    set_before_read(Some(Box::new(move |name| {
        if name == b"s1" {
            fs::write(&path, "quite otherwise").expect("written");
        }
    })));
    // The chunk that announces l1 is full before the walk comes to l2.
    let mut parts = vec![one(&source, PART_BYTES).expect("records")];
    let file = fs::OpenOptions::new().write(true).open(scratch.0.join("l1")).expect("there");
    file.set_len(PART_BYTES as u64).expect("resized");
    while crate::locked(&source.shared).state == WalkState::Going {
        parts.push(one(&source, PART_BYTES).expect("a part"));
    }
    parts.extend(rest(&source, 1, PART_BYTES));
    set_before_read(None);
    let tree = rebuild(parts);
    // The second and third name of the large file were sent before its failure was known, because the walk goes first.
    assert_eq!(facts(&source), ["s1: changed size while it was read", "l1: shrank while it was read"]);
    assert_eq!((tree.failures, source.sent().figures.failed), (4, 4));
    assert_eq!(tree.links[&b"t/s3"[..]], b"t/s2");
    assert_eq!(tree.entries[&b"t/s2"[..]], What::File(b"quite otherwise".to_vec()));
    assert!(!tree.entries.contains_key(&b"t/l2"[..]));
}

#[test]
fn small_files_that_change_while_they_are_read() {
    let scratch = Scratch::new();
    for name in ["a", "empty", "grows", "shrinks", "touched", "z"] {
        scratch.write(name, if name == "empty" { "" } else { "contents" });
    }
    let base = scratch.0.clone();
    set_before_read(Some(Box::new(move |name| {
        let path = base.join(std::ffi::OsStr::from_bytes(name));
        std::thread::sleep(Duration::from_millis(20)); // the clock of a file system ticks 100 times a second or more
        match name {
            b"grows" => fs::write(path, "contents and more"),
            b"shrinks" | b"empty" => fs::write(path, "con"),
            b"touched" => fs::write(path, "CONTENTS"),
            _ => Ok(()),
        }
        .expect("written");
    })));
    let source = scratch.source(PART_BYTES);
    let tree = rebuild(rest_here(&source));
    set_before_read(None);
    assert_eq!(
        facts(&source),
        [
            "empty: changed size while it was read",
            "grows: changed size while it was read",
            "shrinks: shrank while it was read",
            "touched: was changed while it was read",
        ]
    );
    assert_eq!(tree.failures, 4);
    assert_eq!(tree.entries.keys().map(|name| &name[..]).collect::<Vec<_>>(), [&b"t"[..], b"t/a", b"t/z"]);
}

/// Takes all remaining parts in this thread, which has the hook.
fn rest_here(source: &TreeSource) -> Parts {
    std::iter::from_fn(|| one(source, PART_BYTES)).collect()
}

#[test]
fn large_files_that_change_while_they_are_read() {
    let scratch = Scratch::new();
    for name in ["grows", "intact", "shrinks", "touched"] {
        scratch.write(name, bytes(3 * PART_BYTES, 1));
    }
    for threads in [1, 4] {
        let source = scratch.source(PART_BYTES);
        let mut parts = vec![one(&source, PART_BYTES).expect("what announces them")];
        let open = |name| fs::OpenOptions::new().write(true).open(scratch.0.join(name)).expect("there");
        std::thread::sleep(Duration::from_millis(20));
        let size = |name: &str| fs::metadata(scratch.0.join(name)).expect("there").len();
        open("grows").set_len(size("grows") + 1).expect("resized");
        open("shrinks").set_len(size("shrinks") - PART_BYTES as u64 - 1).expect("resized");
        open("touched").write_all_at(b"x", 5).expect("written");
        parts.extend(rest(&source, threads, PART_BYTES));
        let tree = rebuild(parts);
        let mut facts = facts(&source);
        facts.sort();
        assert_eq!(
            facts,
            [
                "grows: changed size while it was read",
                "shrinks: shrank while it was read",
                "touched: was changed while it was read"
            ]
        );
        assert_eq!(tree.failures, 3);
        assert_eq!(tree.entries.keys().map(|name| &name[..]).collect::<Vec<_>>(), [&b"t"[..], b"t/intact"]);
    }
}

#[test]
fn what_is_gone_or_replaced_when_its_turn_comes() {
    let scratch = Scratch::new();
    scratch.directory("elsewhere");
    scratch.write("elsewhere/secret", "secret");
    scratch.directory("t");
    for index in 0..20 {
        scratch.write(format!("t/a{index}"), bytes(INLINE_BYTES, index));
    }
    for name in ["b-gone", "c-link", "d-fifo", "e-directory", "z"] {
        scratch.write(format!("t/{name}"), name);
    }
    for name in ["t/f-gone", "t/g-link", "t/h-file"] {
        scratch.directory(name);
    }
    let source = source_of(&scratch.0.join("t"), "t");
    let mut parts = vec![one(&source, PART_BYTES).expect("the first files")];
    for name in ["b-gone", "c-link", "d-fifo", "e-directory"] {
        scratch.remove(&format!("t/{name}"));
    }
    for name in ["f-gone", "g-link", "h-file"] {
        fs::remove_dir(scratch.0.join("t").join(name)).expect("removed");
    }
    symlink("../elsewhere/secret", scratch.0.join("t/c-link")).expect("linked");
    symlink("../elsewhere", scratch.0.join("t/g-link")).expect("linked");
    mkfifoat(CWD, scratch.0.join("t/d-fifo"), Mode::RUSR).expect("made");
    scratch.directory("t/e-directory");
    scratch.write("t/h-file", "");
    parts.extend(rest(&source, 2, PART_BYTES));
    let tree = rebuild(parts);
    let replaced = ["c-link", "d-fifo", "e-directory", "g-link", "h-file"];
    assert_eq!(facts(&source), replaced.map(|name| format!("{name}: was replaced while it was read")));
    let sent = source.sent();
    let told: Vec<_> = sent.without.iter().map(|fact| &fact.path[..]).collect();
    assert_eq!(told, ["t/b-gone", "t/f-gone"].map(|name| scratch.0.join(name).into_os_string().into_vec()));
    assert_eq!(tree.failures, 5);
    assert_eq!(tree.entries.len(), 22);
    assert_eq!(tree.entries[&b"t/z"[..]], What::File(b"z".to_vec()));
}

#[test]
fn entries_of_every_kind_and_odd_names() {
    let scratch = Scratch::new();
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"-rf", b"$(x)", &[b'n'; 255], b"\x1b[31m"] {
        scratch.write(std::ffi::OsStr::from_bytes(name), name);
    }
    symlink("/nowhere\n", scratch.0.join("link")).expect("linked");
    mkfifoat(CWD, scratch.0.join("fifo"), Mode::RUSR).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(scratch.0.join("socket")).expect("bound");
    check(&scratch, PART_BYTES);
    let options = TreeOptions { specials: false, ..TreeOptions::default() };
    let tree = rebuild(rest(&scratch.source_with(PART_BYTES, options), 1, PART_BYTES));
    assert_eq!((tree.entries.len(), tree.failures), (9, 0));
    let options = TreeOptions { symlinks: false, specials: false, ..TreeOptions::default() };
    let tree = rebuild(rest(&scratch.source_with(PART_BYTES, options), 1, PART_BYTES));
    assert_eq!((tree.entries.len(), tree.failures), (8, 0));
    let tree = rebuild(rest(&source_of(Path::new("/dev/null"), "null"), 1, PART_BYTES));
    assert_eq!(tree.entries[&b"null"[..]], What::Special(Special::Character, 1, 3));
}

#[test]
fn extended_attributes() {
    let scratch = Scratch::new();
    scratch.directory("d");
    scratch.write("d/f", "contents");
    let set = |path: &str, name: &str, value: &[u8]| setxattr(scratch.0.join(path), name, value, XattrFlags::empty());
    if set("d", "user.a", b"1") == Err(Errno::OPNOTSUPP) {
        return not_run(format_args!("no extended attributes in {}", scratch.0.display()));
    }
    set("d/f", "user.b", b"").expect("set");
    set("d/f", "user.c", &[0, 1]).expect("set");
    let mut tree = check(&scratch, PART_BYTES);
    let found = tree.xattrs.get_mut(&b"t/d/f"[..]).expect("there");
    found.retain(|(name, _)| name.starts_with(b"user."));
    found.sort();
    assert_eq!(*found, [(b"user.b".to_vec(), vec![]), (b"user.c".to_vec(), vec![0, 1])]);
    assert!(tree.xattrs[&b"t/d"[..]].contains(&(b"user.a".to_vec(), b"1".to_vec())));
    let options = TreeOptions { xattrs: false, ..TreeOptions::default() };
    let tree = rebuild(rest(&scratch.source_with(PART_BYTES, options), 1, PART_BYTES));
    assert!(tree.xattrs.values().all(Vec::is_empty));
    // More than fits into a chunk.
    set("d/f", "user.b", &[7; 2000]).expect("set");
    let source = scratch.source(1024);
    assert_eq!(rebuild(rest(&source, 1, 1024)).failures, 1);
    assert_eq!(facts(&source), ["f: has too much metadata for a chunk"]);
}

#[test]
fn files_that_lie_about_their_size() {
    let take = |path: &str| {
        let source = source_of(Path::new(path), "x");
        let tree = rebuild(rest(&source, 1, PART_BYTES));
        (tree.entries.get(&b"x"[..]).cloned(), facts(&source))
    };
    let version = fs::read("/proc/version").expect("a system with /proc");
    assert_eq!(take("/proc/version"), (Some(What::File(version)), vec![]));
    if let Ok(sequence) = fs::read("/sys/kernel/uevent_seqnum") {
        assert!(fs::metadata("/sys/kernel/uevent_seqnum").expect("there").len() > sequence.len() as u64);
        let (found, faults) = take("/sys/kernel/uevent_seqnum");
        assert!(matches!(&found, Some(What::File(bytes)) if bytes.ends_with(b"\n")) && faults.is_empty(), "{faults:?}");
    }
    if fs::read("/proc/kallsyms").is_ok_and(|symbols| symbols.len() > INLINE_BYTES) {
        let fault = "kallsyms: reports a size of 0 but has too much data to copy";
        assert_eq!(take("/proc/kallsyms"), (None, vec![fault.to_owned()]));
    }
}

#[test]
fn directories_nested_too_deeply() {
    let scratch = Scratch::new();
    scratch.directory("d/".repeat(DEPTH_MAX));
    scratch.write("z", "z");
    let source = scratch.source(PART_BYTES);
    let tree = rebuild(rest(&source, 2, PART_BYTES));
    assert_eq!(facts(&source), ["d: is nested too deeply"]);
    assert_eq!(tree.entries.len(), DEPTH_MAX + 1);
}

#[test]
fn roots() {
    let scratch = Scratch::new();
    scratch.directory("d");
    scratch.write("d/f", "f");
    scratch.write("d/skip", "s");
    scratch.directory("d/pass");
    scratch.write("d/pass/x", "x");
    symlink("d", scratch.0.join("l")).expect("linked");
    let at = |path: &str, name: &str| Root::new(scratch.0.join(path), name);
    let errno = |roots: Vec<Root>, options| {
        TreeSource::new(roots, PART_BYTES, options, Arc::default()).err().map(|fact| fact.errno)
    };
    assert_eq!(errno(vec![at("d/f", "f"), at("none", "n")], TreeOptions::default()), Some(Errno::NOENT.raw_os_error()));
    assert_eq!(
        errno(vec![at("d", "d")], TreeOptions { recursive: false, ..TreeOptions::default() }),
        Some(Errno::ISDIR.raw_os_error())
    );
    assert_eq!(errno(vec![at("d/f", "f"), at("d/skip", "f")], TreeOptions::default()), Some(0));
    assert_eq!(errno(vec![at("d/f", "../f")], TreeOptions::default()), Some(0));

    let take = |roots, options| {
        let source = TreeSource::new(roots, PART_BYTES, options, Arc::default()).expect("a source");
        rebuild(rest(&source, 2, PART_BYTES))
    };
    let tree = take(vec![at("l", "2"), at("d/f", "3"), at("d/", "1")], TreeOptions::default());
    let names: Vec<_> = tree.entries.keys().map(|name| String::from_utf8_lossy(name)).collect();
    assert_eq!(names, ["1", "1/f", "1/pass", "1/pass/x", "1/skip", "2", "3"]);
    assert_eq!(tree.entries[&b"2"[..]], What::Symlink(b"d".to_vec()));
    let rule = |pattern: &[u8]| Rule { pattern: pattern.to_vec().into(), is_include: false };
    let rules = Rules(vec![rule(b"skip"), rule(b"pass/"), rule(b"f/"), rule(b"2")]);
    let tree = take(vec![at("d", "2")], TreeOptions { rules, ..TreeOptions::default() });
    let names: Vec<_> = tree.entries.keys().map(|name| String::from_utf8_lossy(name)).collect();
    assert_eq!(names, ["2", "2/f"], "the root itself never is left out");
    symlink("d/f", scratch.0.join("k")).expect("linked");
    let tree = take(vec![at("k", "4")], TreeOptions { recursive: false, ..TreeOptions::default() });
    assert_eq!(tree.entries[&b"4"[..]], What::File(b"f".to_vec()));
}

#[test]
fn cancelling_wakes_who_waits() {
    let scratch = Scratch::new();
    scratch.write("f", "f");
    let source = scratch.source(PART_BYTES);
    let (entered, has_entered) = channel();
    let (let_go, is_let_go) = channel::<()>();
    std::thread::scope(|scope| {
        let source = &source;
        scope.spawn(move || {
            set_before_read(Some(Box::new(move |_| {
                entered.send(()).expect("awaited");
                is_let_go.recv().expect("sent");
            })));
            one(source, PART_BYTES)
        });
        has_entered.recv().expect("a walk");
        let waits = scope.spawn(|| one(source, PART_BYTES));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        source.cancel();
        assert_eq!(waits.join().expect("no panic"), None);
        let_go.send(()).expect("awaited");
    });
    assert_eq!(one(&source, PART_BYTES), None);
}

#[test]
fn a_hundred_thousand_empty_files_in_one_directory() {
    let scratch = Scratch::new();
    for index in 0..100_000 {
        fs::File::create(scratch.0.join(format!("file-{index}"))).expect("made");
    }
    let began = Instant::now();
    let source = scratch.source(1 << 20);
    let tree = rebuild(rest(&source, 1, 1 << 20));
    assert_eq!((tree.entries.len(), tree.failures), (100_001, 0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[derive(Clone, Debug)]
enum Node {
    File(usize),
    Sparse(u64, u64),
    Link(Vec<u8>),
    Again(usize),
    Directory(BTreeMap<Vec<u8>, Node>),
}

fn nodes() -> impl Strategy<Value = BTreeMap<Vec<u8>, Node>> {
    let name = prop_oneof!["[a-c.]{1,3}", "[ -~]{1,12}"].prop_map(|name| name.replace('/', "_").into_bytes());
    let name = name.prop_filter("a name", |name| rd_proto::tree::is_name(name));
    let leaf = prop_oneof![
        4 => (0..200_usize).prop_map(Node::File),
        2 => (0..40_000_usize).prop_map(Node::File),
        1 => (1..400_000_u64, 0..400_000_u64).prop_map(|(size, at)| Node::Sparse(size, at)),
        1 => "[a-z/.]{1,30}".prop_map(|target| Node::Link(target.into_bytes())),
        1 => any::<usize>().prop_map(Node::Again),
    ];
    let node = leaf.prop_recursive(4, 40, 8, {
        let name = name.clone();
        move |node| proptest::collection::btree_map(name.clone(), node, 0..8).prop_map(Node::Directory)
    });
    proptest::collection::btree_map(name, node, 0..8)
}

fn make(path: &Path, nodes: &BTreeMap<Vec<u8>, Node>, files: &mut Vec<PathBuf>) {
    for (name, node) in nodes {
        let path = path.join(std::ffi::OsStr::from_bytes(name));
        match node {
            Node::File(size) => {
                fs::write(&path, bytes(*size, *size)).expect("written");
                files.push(path);
            }
            Node::Sparse(size, at) => {
                let file = fs::File::create(&path).expect("made");
                file.write_all_at(&bytes(100, 3), *at).expect("written");
                let size = file.metadata().expect("there").size() + size;
                file.set_len(size).expect("resized");
                files.push(path);
            }
            Node::Link(target) => symlink(std::ffi::OsStr::from_bytes(target), &path).expect("linked"),
            Node::Again(which) if !files.is_empty() => {
                fs::hard_link(&files[which % files.len()], &path).expect("linked");
            }
            Node::Again(_) => {}
            Node::Directory(nodes) => {
                fs::create_dir(&path).expect("made");
                make(&path, nodes, files);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_arrives(nodes in nodes(), shift in 0..8_u32) {
        let scratch = Scratch::new();
        make(&scratch.0, &nodes, &mut Vec::new());
        check(&scratch, 8192 << shift);
    }
}

#[test]
fn large_files_that_are_cold_are_read_past_the_cache() {
    // Memory file systems have no way past their cache. The disk on which the tests are built has.
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let directory = tempfile::tempdir_in(beside).expect("a directory");
    let data = bytes(20 * PART_BYTES + 777, 5);
    let path = directory.path().join("large");
    fs::write(&path, &data).expect("written");
    let file = fs::File::open(&path).expect("there");
    file.sync_all().expect("synced");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicted");
    let source = source_of(directory.path(), "t");
    let tally = Tally::default();
    let (mut got, mut waiting) = (vec![0; data.len()], VecDeque::new());
    let buffer = || {
        let bytes = vec![0xee_u8; PART_BYTES + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        (bytes, start)
    };
    // One thread has several ranges in progress, and settles one whenever there is nothing else to do.
    let (mut is_told, mut laters) = (false, 0);
    loop {
        let (mut target, start) = buffer();
        match source.next(&mut target[start..start + PART_BYTES], PART_BYTES, &tally) {
            Next::Ended => break,
            Next::Part(_) => {}
            Next::Cold(range, cold) => waiting.push_back((range, cold, target, start)),
            Next::Copy(_) => unreachable!("of a copy within a host"),
            Next::Later => laters += 1,
        }
        if waiting.len() == 4 || waiting.iter().map(|(range, ..)| range.length).any(|length| length < PART_BYTES) {
            while let Some((range, cold, mut target, start)) = waiting.pop_front() {
                let target = &mut target[start..start + PART_BYTES];
                let outcome = rustix::io::pread(&cold.file, cold.hole(target), cold.hole_offset());
                source.note_arrival();
                // All ranges have been given out, and one is not settled: the next worker is sent to settle it.
                if !is_told && waiting.is_empty() && range.length < PART_BYTES {
                    let (mut other, other_start) = buffer();
                    let next = source.next(&mut other[other_start..other_start + PART_BYTES], PART_BYTES, &tally);
                    assert!(matches!(next, Next::Later), "{next:?}");
                    is_told = true;
                }
                let part = source.settle(&range, &cold, outcome, target, &tally).expect("read");
                let at = part.position as usize;
                got[at..at + part.length].copy_from_slice(&target[..part.length]);
            }
        }
    }
    assert!(got == data);
    assert!(is_told && laters == 0);
    assert_eq!(tally.direct_bytes.load(Ordering::Relaxed), data.len() as u64);
    assert_eq!(tally.cached_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(source.sent().figures.amount.bytes, data.len() as u64);
}
