mod blocks;
mod hostile;
mod in_place;
mod killed;
mod rights;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rd_proto::tree::{DEPTH_MAX, Metadata, Special, Time, Xattrs};
use rustix::fs::XattrFlags;

use super::*;
use crate::fs::close::tests::{where_calls_fail, where_closing_fails};
use crate::fs::{PARTIAL, name_beside};
use crate::not_run::not_run;
use crate::options::TreeOptions;
use crate::tree::first::FIRST_MAX;

/// A separate directory for each test: `dst` is the destination, `outside` must never change.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir_all(scratch.dst()).expect("a directory");
        fs::create_dir(scratch.outside()).expect("a directory");
        fs::write(scratch.outside().join("file"), "theirs").expect("a file");
        scratch
    }

    fn dst(&self) -> PathBuf {
        self.0.path().join("dst")
    }

    fn outside(&self) -> PathBuf {
        self.0.path().join("outside")
    }

    fn outside_is_unchanged(&self) {
        let names: Vec<_> =
            fs::read_dir(self.outside()).expect("readable").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, ["file"]);
        let file = self.outside().join("file");
        assert_eq!(fs::read(&file).expect("readable"), b"theirs");
        let stat = fs::metadata(&file).expect("there");
        assert_eq!((stat.nlink(), stat.len()), (1, 6));
        assert_ne!(stat.mtime(), META.modified.seconds);
        assert_ne!(fs::metadata(self.outside()).expect("there").mtime(), META.modified.seconds);
    }

    fn sink(&self, options: impl Into<Destination>) -> TreeSink {
        TreeSink::new(&self.dst(), options, Box::new(|_| {})).expect("the destination is there")
    }

    fn sink_with(&self, threads: usize, options: impl Into<Destination>) -> TreeSink {
        TreeSink::with(&self.dst(), options.into(), Box::new(|_| {}), threads, BLOCK_BYTES).expect("a destination")
    }

    /// Takes all records in one chunk.
    fn run(&self, options: impl Into<Destination>, records: &[Record<'_>]) -> Result<Report, Refused> {
        let mut sink = self.sink(options);
        sink.push(0, 0, chunk(records))?;
        sink.finish()
    }

    fn no_temporaries(&self) {
        let found = names_below(&self.dst()).into_iter().filter(|path| {
            let name = path.file_name().expect("a name").as_bytes();
            crate::fs::is_temporary_name(name)
        });
        assert_eq!(found.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in names_below(self.0.path()) {
            if path.symlink_metadata().is_ok_and(|stat| stat.is_dir()) {
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
            }
        }
    }
}

/// All paths below a directory, each directory before its entries.
fn names_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(names_below(&entry.path()));
        }
    }
    found
}

const META: Metadata<'static> = Metadata {
    mode: 0o640,
    modified: Time { seconds: 1_000_000_000, nanoseconds: 123_456_789 },
    accessed: Time { seconds: 1_100_000_000, nanoseconds: 1 },
    ..Metadata::ZERO
};
const END: Record<'static> = Record::End { failures: 0 };

fn file<'a>(name: &'a [u8], data: &'a [u8]) -> Record<'a> {
    Record::File { name, metadata: META, data }
}

fn directory(name: &[u8]) -> Record<'_> {
    Record::Directory { name, metadata: Metadata { mode: 0o750, ..META } }
}

fn large(name: &[u8], item: u32, size: u64) -> Record<'_> {
    Record::Large { name, metadata: META, item, size, is_sparse: false }
}

fn closed(item: u32, data_bytes: u64) -> Record<'static> {
    Record::Closed { item, data_bytes, is_intact: true }
}

fn link<'a>(name: &'a [u8], target: &'a [u8]) -> Record<'a> {
    Record::Symlink { name, metadata: META, target }
}

pub(super) fn chunk(records: &[Record<'_>]) -> Arc<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        let at = bytes.len();
        bytes.resize(at + record.encoded_bytes(), 0);
        record.encode(&mut bytes[at..]);
    }
    Arc::new(bytes)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn errnos(report: &Report) -> Vec<Errno> {
    report.failures.iter().map(|fact| Errno::from_raw_os_error(fact.errno)).collect()
}

#[test]
fn every_kind_of_entry_arrives_with_its_metadata() {
    for threads in [1, 4] {
        for fsync in [false, true] {
            let scratch = Scratch::new();
            let verify = fsync.then_some(crate::options::Verify::Disk);
            let mut sink = scratch.sink_with(threads, TreeOptions { verify, ..Default::default() });
            let mut xattrs = Vec::new();
            assert!(Xattrs::push(&mut xattrs, b"user.colour", b"blue"));
            let with_xattrs = Metadata { xattrs: Xattrs::new(&xattrs), ..META };
            let first = chunk(&[
                Record::Directory { name: b"d", metadata: Metadata { mode: 0o555, ..with_xattrs } },
                Record::File { name: b"a", metadata: Metadata { mode: 0o444, ..with_xattrs }, data: b"contents" },
                large(b"b", 1, 1 << 30),
                Record::Directory { name: b"c", metadata: Metadata { mode: 0o1700, ..META } },
                Record::HardLink { name: b"x", first: b"d/a" },
                Record::HardLink { name: b"y", first: b"d/b" },
                Record::Leave,
                Record::Special { name: b"f", metadata: META, kind: Special::Fifo, device: (0, 0) },
                Record::Special { name: b"s", metadata: META, kind: Special::Socket, device: (0, 0) },
                Record::Leave,
                link(b"e\xff", b"../d"),
            ]);
            sink.push(0, 0, Arc::clone(&first) as _).expect("taken");
            sink.push(1, 1 << 29, Arc::new(b"in the middle".to_vec())).expect("taken");
            sink.push(0, 0, chunk(&[closed(1, 13 + 4), END])).expect("taken");
            sink.push(1, 0, Arc::new(b"head".to_vec())).expect("taken");
            let report = sink.finish().expect("whole");
            assert_eq!(Arc::strong_count(&first), 1, "the chunk has been let go");
            assert_eq!(report.failures, []);
            assert_eq!(
                (report.files, report.figures.amount.directories, report.others, report.figures.amount.bytes),
                (2, 2, 5, 8 + 17)
            );
            assert_eq!((report.figures.failed, report.figures.is_synced), (0, fsync));

            let dst = scratch.dst();
            let stat = |path: &str| fs::symlink_metadata(dst.join(path)).expect("there");
            for path in ["d", "d/a", "d/b", "d/c", "d/f", "d/s"] {
                let stat = stat(path);
                assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 123_456_789), "{path}");
            }
            let modes = ["d", "d/a", "d/b", "d/c", "d/f", "d/s"].map(|path| stat(path).mode() & 0o7777);
            assert_eq!(modes, [0o555, 0o444, 0o640, 0o1700, 0o640, 0o640]);
            assert_eq!(fs::read(dst.join("d/a")).expect("readable"), b"contents");
            assert_eq!((stat("d/a").ino(), stat("d/a").nlink()), (stat("d/c/x").ino(), 2));
            assert_eq!((stat("d/b").ino(), stat("d/b").nlink()), (stat("d/c/y").ino(), 2));
            assert_eq!(stat("d/b").len(), 1 << 30);
            assert!(stat("d/b").blocks() <= 64, "the hole stays one");
            assert!(stat("d/f").file_type().is_fifo() && stat("d/s").file_type().is_socket());
            let target = dst.join(OsStr::from_bytes(b"e\xff"));
            assert_eq!(fs::read_link(&target).expect("a link"), PathBuf::from("../d"));
            assert_eq!(fs::symlink_metadata(&target).expect("there").mtime_nsec(), 123_456_789);
            let mut value = [0; 8];
            for path in ["d", "d/a"] {
                match rustix::fs::getxattr(dst.join(path), "user.colour", &mut value) {
                    Ok(length) => assert_eq!(&value[..length], b"blue"),
                    Err(error) => assert_eq!((error, report.without_xattrs), (Errno::NODATA, 2), "no attributes here"),
                }
            }
            scratch.no_temporaries();

            // A second time, over existing entries, among them read-only directories.
            let mut sink = scratch.sink_with(threads, TreeOptions { fsync, ..Default::default() });
            sink.push(0, 0, first).expect("taken");
            sink.push(0, 0, chunk(&[closed(1, 0), END])).expect("taken");
            assert_eq!(sink.finish().expect("whole").failures, []);
            assert_eq!(stat("d").mode() & 0o7777, 0o555);
            assert_eq!(stat("d").mtime_nsec(), 123_456_789);
            assert_eq!((stat("d/a").ino(), stat("d/a").nlink()), (stat("d/c/x").ino(), 2));
            scratch.no_temporaries();
        }
    }
}

#[test]
fn owners_and_set_id_bits_are_kept_by_root_alone() {
    let scratch = Scratch::new();
    let metadata = Metadata { mode: 0o6755, uid: 12, gid: 34, ..META };
    let records = [
        Record::Directory { name: b"d", metadata },
        Record::File { name: b"f", metadata, data: b"" },
        Record::Special { name: b"p", metadata, kind: Special::Fifo, device: (0, 0) },
        Record::Symlink { name: b"s", metadata, target: b"f" },
        Record::Leave,
        END,
    ];
    for owner in [true, false] {
        let report = scratch.run(TreeOptions { owner, ..TreeOptions::default() }, &records).expect("whole");
        assert_eq!(report.failures, []);
        let kept = owner && is_root();
        for path in ["d", "d/f", "d/p", "d/s"] {
            let stat = fs::symlink_metadata(scratch.dst().join(path)).expect("there");
            if kept || path != "d" {
                assert_eq!((stat.uid(), stat.gid()) == (12, 34), kept, "{path}");
            }
            if !stat.file_type().is_symlink() && (kept || path != "d") {
                assert_eq!(stat.mode() & 0o7777, if kept { 0o6755 } else { 0o755 }, "{path}");
            }
        }
    }
}

#[test]
fn devices_are_made_by_root_alone() {
    let scratch = Scratch::new();
    let null = Record::Special { name: b"null", metadata: META, kind: Special::Character, device: (1, 3) };
    let report = scratch.run(TreeOptions::default(), &[null, END]).expect("whole");
    if is_root() {
        assert_eq!(fs::metadata(scratch.dst().join("null")).expect("there").rdev(), 0x103);
    } else {
        assert_eq!(errnos(&report), [Errno::PERM]);
    }
    let scratch = Scratch::new();
    let options = TreeOptions { specials: false, symlinks: false, ..TreeOptions::default() };
    assert_eq!(scratch.run(options, &[link(b"link", b"null"), null, END]).expect("whole").failures, []);
    assert_eq!(names_below(&scratch.dst()), Vec::<PathBuf>::new());
}

/// An ACL in the kernel's format: owner rw-, user 12 r--, group ---, mask r--, others ---.
fn acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 12), (4, 0, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)]
    {
        value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A user whom an existing ACL admits, but the source's does not, must lose access.
#[test]
fn acls_of_what_was_there_before_go() {
    let scratch = Scratch::new();
    let dst = scratch.dst();
    let other: Vec<u8> = acl().into_iter().map(|byte| if byte == 12 { 13 } else { byte }).collect();
    let mut xattrs = Vec::new();
    assert!(Xattrs::push(&mut xattrs, b"system.posix_acl_access", &acl()));
    let metadata = Metadata { xattrs: Xattrs::new(&xattrs), ..META };
    let records = [
        directory(b"a"),
        Record::Leave,
        Record::Directory { name: b"b", metadata },
        Record::Leave,
        file(b"c", b"new"),
        Record::File { name: b"d", metadata, data: b"new" },
        END,
    ];
    for (name, is_directory) in [("a", true), ("b", true), ("c", false), ("d", false)] {
        let path = dst.join(name);
        if is_directory { fs::create_dir(&path) } else { fs::write(&path, "old") }.expect("made");
        for attribute in ["access", "default"].into_iter().take(1 + usize::from(is_directory)) {
            let attribute = format!("system.posix_acl_{attribute}");
            if let Err(error) = rustix::fs::setxattr(&path, &attribute, &other, XattrFlags::empty()) {
                return not_run(format_args!("no ACLs on this file system: {error}"));
            }
        }
    }
    let acl_of = |name: &str, attribute: &str| {
        let mut value = [0; 64];
        let attribute = format!("system.posix_acl_{attribute}");
        rustix::fs::getxattr(dst.join(name), &attribute, &mut value).map(|length| value[..length].to_vec())
    };
    let run = |xattrs| {
        let options = TreeOptions { xattrs, in_place: true, ..TreeOptions::default() };
        assert_eq!(scratch.run(options, &records).expect("whole").failures, []);
    };
    run(false);
    for name in ["a", "b", "c", "d"] {
        assert!(acl_of(name, "access").is_ok(), "{name}: ACLs are not copied");
    }
    run(true);
    for name in ["a", "c"] {
        assert_eq!(acl_of(name, "access"), Err(Errno::NODATA), "{name}");
    }
    for name in ["b", "d"] {
        assert_eq!(acl_of(name, "access"), Ok(acl()), "{name}");
    }
    assert_eq!(["a", "b"].map(|name| acl_of(name, "default")), [Err(Errno::NODATA), Err(Errno::NODATA)]);
    assert_eq!(fs::metadata(dst.join("a")).expect("there").mode() & 0o777, 0o750);
}

#[test]
fn an_existing_file_keeps_its_mode_where_modes_are_not_copied() {
    let scratch = Scratch::new();
    let options = TreeOptions { mode: false, owner: false, times: false, xattrs: false, ..TreeOptions::default() };
    let old = scratch.dst().join("old");
    fs::write(&old, "before").expect("a file");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o604)).expect("ours");
    let records = [file(b"new", b"1"), file(b"old", b"2"), END];
    scratch.run(options, &records).expect("whole");
    assert_eq!(fs::metadata(&old).expect("there").mode() & 0o7777, 0o604);
    assert_eq!(fs::read(&old).expect("readable"), b"2");
    let new = fs::metadata(scratch.dst().join("new")).expect("there");
    assert_eq!(new.mode() & 0o7777 & !0o640, 0);
    assert_ne!(new.mtime(), META.modified.seconds);
}

#[test]
fn what_stands_in_the_way_is_not_replaced_by_another_kind() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.dst().join("a")).expect("a directory");
    fs::write(scratch.dst().join("b"), "old").expect("a file");
    symlink(scratch.outside().join("file"), scratch.dst().join("c")).expect("a link");
    fs::create_dir(scratch.dst().join("d")).expect("a directory");
    let records = [file(b"a", b"new"), directory(b"b"), Record::Leave, file(b"c", b"new"), link(b"d", b"x"), END];
    let mut sink = scratch.sink_with(1, TreeOptions::default());
    let report = sink.push(0, 0, chunk(&records)).and_then(|()| sink.finish()).expect("whole");
    let mut errors = errnos(&report);
    errors.sort_by_key(|error| error.raw_os_error());
    assert_eq!(errors, [Errno::NOTDIR, Errno::ISDIR, Errno::ISDIR]);
    assert_eq!(fs::read(scratch.dst().join("b")).expect("readable"), b"old");
    assert!(fs::symlink_metadata(scratch.dst().join("c")).expect("there").is_file(), "a file replaces a link");
    scratch.outside_is_unchanged();
    scratch.no_temporaries();
}

#[test]
fn a_hard_link_never_takes_an_old_file_for_its_first() {
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        fs::write(scratch.dst().join(name), "old").expect("a file");
    }
    fs::create_dir(scratch.dst().join("c")).expect("a directory");
    let not_intact = |item| Record::Closed { item, data_bytes: 0, is_intact: false };
    let records = [
        large(b"a", 1, 4),
        not_intact(1),
        large(b"b", 2, 4),
        file(b"c", b"a directory is in the way"),
        Record::HardLink { name: b"d", first: b"a" },
        Record::HardLink { name: b"e", first: b"b" },
        Record::HardLink { name: b"f", first: b"c" },
        not_intact(2),
        END,
    ];
    let report = scratch.run(TreeOptions::default(), &records).expect("whole");
    assert_eq!((report.figures.failed, report.files, report.others), (4, 0, 0));
    for name in ["a", "b"] {
        assert_eq!(fs::read(scratch.dst().join(name)).expect("readable"), b"old");
    }
    assert!(!["d", "e", "f"].iter().any(|name| scratch.dst().join(name).exists()));
    scratch.no_temporaries();
}

#[test]
fn the_old_file_stays_whole_until_the_new_one_is() {
    for in_the_end in ["publish", "discard", "drop"] {
        let scratch = Scratch::new();
        let (old, other) = (scratch.dst().join("large"), scratch.dst().join("small"));
        fs::write(&old, "before").expect("a file");
        fs::write(&other, "before").expect("a file");
        let inode = fs::metadata(&old).expect("there").ino();
        let mut sink = scratch.sink(TreeOptions::default());
        sink.push(0, 0, chunk(&[large(b"large", 1, 8), file(b"small", b"after")])).expect("taken");
        sink.push(1, 4, Arc::new(b"ter!".to_vec())).expect("taken");
        sink.shared.wait_drained();
        assert_eq!(fs::read(&old).expect("readable"), b"before");
        assert_eq!(fs::metadata(&old).expect("there").ino(), inode);
        assert_eq!(fs::read(&other).expect("readable"), b"after");
        match in_the_end {
            "publish" => {
                sink.push(0, 0, chunk(&[closed(1, 8), END])).expect("taken");
                sink.push(1, 0, Arc::new(b"\0\0af".to_vec())).expect("taken");
                sink.finish().expect("whole");
                assert_eq!(fs::read(&old).expect("readable"), b"\0\0after!");
            }
            "discard" => {
                sink.discard();
                assert!(matches!(sink.push(0, 0, chunk(&[END])), Err(Refused::Data(_))));
                assert!(sink.finish().is_err());
            }
            _ => drop(sink),
        }
        if in_the_end != "publish" {
            assert_eq!(fs::metadata(&old).expect("there").ino(), inode);
            assert_eq!(fs::read(&old).expect("readable"), b"before");
        }
        scratch.no_temporaries();
    }
}

#[test]
fn a_partial_file_that_is_being_written_is_left_alone() {
    let scratch = Scratch::new();
    let mut first = scratch.sink(TreeOptions::default());
    first.push(0, 0, chunk(&[large(b"a", 1, 4)])).expect("taken");
    let report = scratch.run(TreeOptions::default(), &[large(b"a", 1, 0), closed(1, 0), END]).expect("whole");
    assert_eq!(errnos(&report), [Errno::BUSY]);
    first.push(1, 0, Arc::new(b"data".to_vec())).expect("taken");
    first.push(0, 0, chunk(&[closed(1, 4), END])).expect("taken");
    assert_eq!(first.finish().expect("whole").figures.failed, 0);
    assert_eq!(fs::read(scratch.dst().join("a")).expect("readable"), b"data");
}

#[test]
fn the_root_gets_another_name() {
    let scratch = Scratch::new();
    fs::write(scratch.dst().join("mine"), "mine").expect("a file");
    let options = || Destination { names: Names::Only(b"other".to_vec()), ..Destination::default() };
    let records = [
        directory(b"root"),
        file(b"a", b"data"),
        Record::HardLink { name: b"b", first: b"root/a" },
        Record::Leave,
        END,
    ];
    assert_eq!(scratch.run(options(), &records).expect("whole").failures, []);
    assert_eq!(fs::metadata(scratch.dst().join("other/b")).expect("there").nlink(), 2);
    assert!(!scratch.dst().join("root").exists());
    let foreign = [directory(b"root"), Record::HardLink { name: b"b", first: b"mine" }];
    assert!(matches!(scratch.run(options(), &foreign), Err(Refused::Data(_))));
    assert!(matches!(scratch.run(options(), &[file(b"a", b""), file(b"b", b""), END]), Err(Refused::Data(_))));
    let bad = Destination { names: Names::Only(b"../other".to_vec()), ..Destination::default() };
    assert!(TreeSink::new(&scratch.dst(), bad, Box::new(|_| {})).is_err());
    let scratch = Scratch::new();
    scratch.run(options(), &[file(b"a", b"data"), END]).expect("whole");
    assert_eq!(fs::read(scratch.dst().join("other")).expect("readable"), b"data");
}

#[test]
fn the_root_is_merged_into_the_destination() {
    let scratch = Scratch::new();
    let dst = scratch.dst();
    fs::write(dst.join("mine"), "mine").expect("a file");
    fs::create_dir_all(dst.join("b/x")).expect("a directory");
    let names = || Names::Only(b".".to_vec());
    let options = || Destination { names: names(), ..TreeOptions { fsync: true, ..TreeOptions::default() }.into() };
    let records = [
        directory(b"root"),
        file(b"a", b"data"),
        file(b"b", b"data"),
        directory(b"c"),
        Record::HardLink { name: b"d", first: b"root/a" },
        large(b"e", 1, 4),
        Record::HardLink { name: b"f", first: b"root/c/e" },
        Record::Leave,
        Record::Leave,
    ];
    let mut sink = scratch.sink(options());
    sink.push(0, 0, chunk(&records)).expect("taken");
    sink.push(1, 0, Arc::new(b"data".to_vec())).expect("taken");
    sink.push(0, 0, chunk(&[closed(1, 4), END])).expect("taken");
    let report = sink.finish().expect("whole");
    let failed: Vec<_> = report.failures.iter().map(|fact| PathBuf::from(OsStr::from_bytes(&fact.path))).collect();
    assert_eq!(failed, [dst.join("b")], "by the path that it has");
    assert_eq!(errnos(&report), [Errno::ISDIR]);
    assert_eq!(fs::read(dst.join("mine")).expect("left alone"), b"mine");
    for name in ["a", "c/e"] {
        assert_eq!(fs::metadata(dst.join(name)).expect("there").nlink(), 2, "{name}");
    }
    let top = fs::metadata(&dst).expect("there");
    assert_eq!((top.mode() & 0o7777, top.mtime()), (0o750, META.modified.seconds));
    // Only a directory can become the destination itself.
    for other in [file(b"root", b""), link(b"root", b"x")] {
        let report = scratch.run(options(), &[other, END]).expect("whole");
        assert_eq!((report.figures.failed, report.files + report.others), (1, 0), "{report:?}");
    }
    scratch.no_temporaries();
}

#[test]
fn in_place_keeps_the_inode_and_follows_no_link() {
    let scratch = Scratch::new();
    let old = scratch.dst().join("a");
    fs::write(&old, "longer than the new one").expect("a file");
    symlink(scratch.outside().join("file"), scratch.dst().join("b")).expect("a link");
    let inode = fs::metadata(&old).expect("there").ino();
    let options = TreeOptions { in_place: true, ..TreeOptions::default() };
    let records = [file(b"a", b"new"), file(b"b", b"new"), file(b"c", b"new"), END];
    let report = scratch.run(options, &records).expect("whole");
    assert_eq!(report.files, 2);
    assert_eq!(errnos(&report), [Errno::LOOP]);
    assert_eq!(fs::read(&old).expect("readable"), b"new");
    assert_eq!(fs::metadata(&old).expect("there").ino(), inode);
    scratch.outside_is_unchanged();
}

#[test]
fn a_tree_may_be_as_deep_as_the_protocol_allows() {
    let scratch = Scratch::new();
    let mut records = vec![directory(b"d"); DEPTH_MAX];
    records.push(file(b"f", b"deep"));
    records.extend(vec![Record::Leave; DEPTH_MAX]);
    records.push(END);
    let report = scratch.run(TreeOptions::default(), &records).expect("whole");
    assert_eq!((report.figures.amount.directories, report.files, report.failures), (DEPTH_MAX as u64, 1, Vec::new()));
    let deepest = scratch.dst().join("d/".repeat(DEPTH_MAX));
    assert_eq!(fs::read(deepest.join("f")).expect("readable"), b"deep");
    assert_eq!(fs::metadata(deepest).expect("there").mtime(), META.modified.seconds);
}

#[test]
fn failures_are_bounded_and_counted() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..FIRST_MAX + 50).map(|number| format!("{number:05}")).collect();
    for name in &names {
        fs::create_dir(scratch.dst().join(name)).expect("a directory");
    }
    let mut records: Vec<_> = names.iter().map(|name| file(name.as_bytes(), b"")).collect();
    records.push(END);
    let report = scratch.run(TreeOptions::default(), &records).expect("whole");
    assert_eq!((report.figures.failed, report.failures.len()), (names.len() as u64, FIRST_MAX));
}

#[test]
fn a_full_disk_stops_everything() {
    struct Mount(PathBuf);
    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let scratch = Scratch::new();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(scratch.dst()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return not_run("a small file system cannot be mounted here");
    }
    let _mount = Mount(scratch.dst());
    let mut sink = scratch.sink(TreeOptions::default());
    let data = Arc::new(vec![1_u8; 1 << 20]);
    sink.push(0, 0, chunk(&[large(b"a", 1, 4 << 20)])).expect("taken");
    for part in 0..4 {
        let _ = sink.push(1, part << 20, Arc::clone(&data) as _);
    }
    let _ = sink.push(0, 0, chunk(&[closed(1, 4 << 20), END]));
    let Err(Refused::Io(fact)) = sink.finish() else { panic!("it cannot have fitted") };
    assert_eq!(fact.errno, Errno::NOSPC.raw_os_error());
    assert_eq!(fact.path, scratch.dst().join("a").as_os_str().as_bytes());
    assert!(matches!(sink.push(0, 0, chunk(&[END])), Err(Refused::Io(_))));
    sink.discard();
    assert_eq!(names_below(&scratch.dst()), Vec::<PathBuf>::new());
}

#[test]
fn a_failure_told_at_close_is_one() {
    for in_place in [false, true] {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.dst()).expect("made");
        let refused = where_closing_fails(|| {
            let small = scratch.run(TreeOptions { in_place, ..Default::default() }, &[file(b"small", b"bytes"), END]);
            let mut sink = scratch.sink(TreeOptions { in_place, ..TreeOptions::default() });
            sink.push(0, 0, chunk(&[large(b"large", 1, 1 << 20)])).expect("taken");
            sink.push(1, 0, Arc::new(vec![1; 1 << 20])).expect("taken");
            let _ = sink.push(0, 0, chunk(&[closed(1, 1 << 20), END]));
            [small, sink.finish()].map(|outcome| outcome.expect_err("it must be told"))
        });
        let expected = [scratch.dst().join("small"), scratch.dst().join("large")];
        for (refused, path) in refused.into_iter().zip(&expected) {
            let Refused::Io(fact) = refused else { panic!("{refused:?}") };
            assert_eq!(fact.errno, Errno::DQUOT.raw_os_error());
            assert_eq!(fact.path, path.as_os_str().as_bytes());
        }
        let are_there = expected.map(|path| path.exists());
        assert_eq!(are_there, [false, in_place], "no name but that of a large file written in place");
    }
}

/// CIFS and some FUSE file systems can sync files only.
#[test]
fn directories_that_cannot_be_synced_fail_nothing_but_files_do() {
    let options = || TreeOptions { fsync: true, symlinks: true, recursive: true, ..TreeOptions::default() };
    let metadata = META;
    let inner = [Record::Directory { name: b"d", metadata }, Record::Symlink { name: b"l", metadata, target: b"to" }];
    for (errno, failed) in [(libc::EINVAL, 0), (libc::EBADF, 0), (libc::EPERM, 2)] {
        let (scratch, records) = (Scratch::new(), [&inner[..], &[Record::Leave, END]].concat());
        let report = where_calls_fail(&[libc::SYS_fsync], errno, || scratch.run(options(), &records));
        assert_eq!(report.expect("whole").figures.failed, failed, "{errno}");
    }
    let scratch = Scratch::new();
    let one = [Record::File { name: b"f", metadata, data: b"1" }, END];
    let report = where_calls_fail(&[libc::SYS_fsync], libc::EINVAL, || scratch.run(options(), &one));
    assert_eq!(report.expect("whole").figures.failed, 1);
}

/// Syncing takes long. A receiver that is killed meanwhile leaves a file of its own that the next transfer resumes.
#[test]
fn a_file_that_is_being_synced_is_one_to_go_on_with() {
    const SIZE: u64 = 64 << 20;
    let scratch = Scratch::new();
    let metadata = Metadata { uid: 12, gid: 34, ..META };
    let large = Record::Large { name: b"large", metadata, item: 1, size: SIZE, is_sparse: false };
    assert!(Record::awaits_have(SIZE));
    // EROFS stands for a kill: a failure that stops everything leaves a file to resume. EIO leaves none, because the
    // page cache may hold data that is not on the disk.
    let fails = |errno| {
        where_calls_fail(&[libc::SYS_fsync, libc::SYS_fdatasync], errno, || {
            let mut sink = scratch.sink(TreeOptions { fsync: true, ..TreeOptions::default() });
            sink.push(0, 0, chunk(&[large])).expect("taken");
            sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
            let _ = sink.push(0, 0, chunk(&[closed(1, SIZE), END]));
            sink.finish().expect_err("it must be told")
        })
    };
    for errno in [libc::EIO, libc::EROFS] {
        assert!(names_below(&scratch.dst()).is_empty());
        let refused = fails(errno);
        assert!(matches!(&refused, Refused::Io(fact) if fact.errno == errno), "{refused:?}");
    }
    let left = names_below(&scratch.dst());
    let [partial] = &left[..] else { panic!("{left:?}") };
    let stat = fs::metadata(partial).expect("there");
    assert_eq!((stat.mode() & 0o7777, stat.uid()), (0o600, rustix::process::geteuid().as_raw()));
    let looked = Arc::new(Mutex::new(None));
    let told = Arc::clone(&looked);
    let answer = Box::new(move |answer| _ = told.lock().expect("no panic").insert(answer));
    let mut sink = TreeSink::new(&scratch.dst(), TreeOptions::default(), answer).expect("there");
    sink.push(0, 0, chunk(&[large, closed(1, 0), END])).expect("taken");
    sink.finish().expect("whole");
    let answer = looked.lock().expect("no panic").take().expect("it was asked");
    let Answer::Blocks { digests, .. } = &answer else { panic!("{answer:?}") };
    assert!(!digests.is_empty() && digests.iter().all(Option::is_some), "{answer:?}");
}

#[test]
fn why_nothing_can_be_written_is_told() {
    let scratch = Scratch::new();
    let made = where_calls_fail(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN, || {
        TreeSink::new(&scratch.dst(), TreeOptions::default(), Box::new(|_| {})).map(drop)
    });
    let detail = String::from_utf8(made.expect_err("no thread").detail).expect("text");
    assert!(detail.contains(&format!("os error {}", libc::EAGAIN)), "{detail}");
}

/// Runs all tests above once more without root's rights.
#[test]
fn all_of_it_holds_for_another_user() {
    const MARK: &str = "RD_TEST_AS_ANOTHER_USER";
    if std::env::var_os(MARK).is_some() {
        return;
    }
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let output = Command::new(std::env::current_exe().expect("a name"))
        .args(["tree::sink::tests::"])
        .env(MARK, "1")
        .env_remove("RD_NOT_RUN") // each has run as root, and this test is counted once
        .env("TMPDIR", std::env::temp_dir())
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            // A run in which the filter matches no test succeeds as well.
            let before = text.split_once(" passed;").map(|(before, _)| before);
            let passed = before.and_then(|before| before.rsplit(' ').next()?.parse::<usize>().ok());
            assert!(output.status.success() && passed > Some(20), "{text}");
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => not_run(error),
        Err(error) => panic!("{error}"),
    }
}

/// A file capability gives root's rights, so it must be given by the file's own owner.
#[test]
fn capabilities_go_with_owner_and_mode() {
    const NAME: &str = "security.capability";
    let scratch = Scratch::new();
    // Revision 2: CAP_SETUID, permitted and effective.
    let value = [0x0200_0001_u32, 1 << 7, 0, 0, 0].map(u32::to_le_bytes).concat();
    let probe = scratch.dst().join("probe");
    fs::write(&probe, b"").expect("a file");
    if let Err(error) = rustix::fs::setxattr(&probe, NAME, &value, XattrFlags::empty()) {
        assert!(!is_root() || error == Errno::PERM, "root of a container may not: {error}");
        return not_run(format_args!("may not set {NAME}: {error}"));
    }
    let mut xattrs = Vec::new();
    assert!(Xattrs::push(&mut xattrs, NAME.as_bytes(), &value));
    let metadata = Metadata { xattrs: Xattrs::new(&xattrs), uid: 12, ..META };
    for (owner, mode) in [(true, true), (true, false), (false, true), (false, false)] {
        let options = TreeOptions { owner, mode, ..TreeOptions::default() };
        let name = format!("f{owner}{mode}");
        let records = [Record::File { name: name.as_bytes(), metadata, data: b"" }, END];
        assert_eq!(scratch.run(options, &records).expect("whole").failures, []);
        let is_set = rustix::fs::getxattr(scratch.dst().join(name), NAME, &mut [0_u8; 64]).is_ok();
        assert_eq!(is_set, owner && mode, "owner: {owner}, mode: {mode}");
    }
}
