//! Trees of every kind, copied and compared; then everything that can go wrong on the way.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use rustix::fs::{CWD, Mode, RenameFlags, XattrFlags, mknodat, renameat_with, setxattr};
use tempfile::TempDir;

use super::*;
use crate::fs::close::tests::where_closing_fails;

static NEVER: AtomicBool = AtomicBool::new(false);

fn item(source: &Path, destination: &Path) -> Item {
    Item {
        source: source.to_owned(),
        directory: destination.parent().expect("a parent").to_owned(),
        name: destination.file_name().expect("a name").to_owned(),
    }
}

fn copy_to(source: &Path, destination: &Path) -> Report {
    copy(&[item(source, destination)], &Options::archive(&NEVER), &())
}

#[track_caller]
fn assert_whole(report: &Report) {
    assert_eq!((report.failed, &report.first_failure, &report.stopped), (0, &None, &None));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What rsync would have to do to make them equal: nothing.
#[track_caller]
fn assert_same(source: &Path, destination: &Path) {
    let with_slash = |path: &Path| format!("{}/", path.display());
    let rsync = Command::new("rsync")
        .args(["-aHAXn", "--checksum", "--delete", "-i", &with_slash(source), &with_slash(destination)])
        .output()
        .expect("rsync is installed (tests/testbed/deps)");
    assert_eq!(String::from_utf8_lossy(&rsync.stdout), "");
    assert!(rsync.status.success(), "{}", String::from_utf8_lossy(&rsync.stderr));
    // What rsync does not compare.
    assert_eq!(snapshot(source), snapshot(destination));
}

/// Type, mode, time, size and number of names of all that is below a directory, itself included.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, u64, u64)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    let mut record = |path: &Path| {
        let stat = fs::symlink_metadata(path).expect("it was listed");
        let below = path.strip_prefix(root).expect("below").to_owned();
        let (size, names) = if stat.is_dir() { (0, 0) } else { (stat.size(), stat.nlink()) };
        found.insert(below, (stat.mode(), stat.mtime(), stat.mtime_nsec(), size, names));
        stat.is_dir()
    };
    record(root);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("readable") {
            let path = entry.expect("readable").path();
            if record(&path) {
                directories.push(path);
            }
        }
    }
    found
}

/// Names in a directory, temporary ones among them.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).expect("readable").map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().update(&bytes.to_le_bytes()).finalize_xof().fill(&mut noise);
    noise
}

/// Each file takes something else: all that a tree can hold.
fn make_everything(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).expect("made");
    fs::create_dir(root.join("empty")).expect("made");
    for (index, bytes) in
        [0, 1, 4095, 4096, 128 << 10, (128 << 10) + 1, 3 << 20, 16 << 20, (20 << 20) + 12345].into_iter().enumerate()
    {
        fs::write(root.join(format!("a/file{index}")), noise(bytes)).expect("written");
    }
    for (name, islands, bytes) in
        [("small-hole", &[0_u64, 60_000][..], 90_000_u64), ("holes", &[0, 9 << 20, (30 << 20) + 5], 64 << 20)]
    {
        let file = File::create(root.join(name)).expect("made");
        file.set_len(bytes).expect("sparse files");
        for at in islands {
            file.write_all_at(b"island", *at).expect("written");
        }
    }
    fs::write(root.join("a/b/-n ew\nline \u{7}"), "odd").expect("written");
    fs::write(root.join("a").join(std::ffi::OsStr::from_bytes(b"not \xff utf8")), "odd").expect("written");
    fs::write(root.join("x".repeat(255)), "long").expect("written");
    symlink("nowhere", root.join("dangling")).expect("made");
    symlink("a/b", root.join("to-directory")).expect("made");
    fs::hard_link(root.join("a/file3"), root.join("a/b/linked")).expect("linked");
    fs::hard_link(root.join("a/file3"), root.join("linked")).expect("linked");
    fs::hard_link(root.join("a/file8"), root.join("a/b/c/large-linked")).expect("linked");
    fs::hard_link(root.join("dangling"), root.join("a/b/dangling-too")).expect("linked");
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("made");
    for (name, mode) in [("a/file1", 0o4755), ("a/file2", 0o0), ("a/file3", 0o444), ("empty", 0o1777), ("a/b/c", 0o555)]
    {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).expect("set");
    }
    for (name, value) in [(c"user.small", &b"value"[..]), (c"user.long", &[7; 900])] {
        setxattr(root.join("a/file4"), name, value, XattrFlags::empty()).expect("user attributes");
        setxattr(root.join("empty"), name, value, XattrFlags::empty()).expect("user attributes");
    }
    for acl in [["-m", "u:1234:rw", "a/file5"], ["-m", "g:77:x", "fifo"], ["-dm", "u:99:r", "empty"]] {
        let set = Command::new("setfacl").args(acl).current_dir(root).status();
        assert!(set.expect("acl is installed (tests/testbed/deps)").success());
    }
    if is_root() {
        let device = rustix::fs::makedev(1, 3);
        mknodat(CWD, root.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o620), device).expect("made");
        std::os::unix::fs::chown(root.join("a/file6"), Some(1000), Some(1001)).expect("chown");
        std::os::unix::fs::lchown(root.join("dangling"), Some(1002), Some(1003)).expect("chown");
    }
    // Times that no copy has of itself, those of directories last.
    let touch = ["-depth", "-exec", "touch", "-hd", "2001-02-03 04:05:06.789", "{}", "+"];
    assert!(Command::new("find").arg(root).args(touch).status().expect("findutils").success());
}

#[test]
fn a_tree_of_everything() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("source"), base.path().join("destination"));
    make_everything(&source);
    for threads in [1, 2, 7] {
        let options = Options { threads: Some(threads), fsync: threads == 2, ..Options::archive(&NEVER) };
        let report = copy(&[item(&source, &destination)], &options, &());
        assert_whole(&report);
        assert_same(&source, &destination);
        assert_eq!(report.hard_links, 4);
        let blocks = |root: &Path, name: &str| fs::metadata(root.join(name)).expect("there").blocks();
        for name in ["holes", "small-hole"] {
            assert!(blocks(&destination, name) <= blocks(&source, name), "{name} has lost its holes");
        }
        // Once more over what is there, so that everything is replaced.
        assert_whole(&copy(&[item(&source, &destination)], &options, &()));
        assert_same(&source, &destination);
        assert_eq!(names(base.path()), ["destination", "source"]);
        fs::remove_dir_all(&destination).expect("removed");
    }
}

#[test]
fn a_real_tree() {
    let base = TempDir::new().expect("made");
    assert_whole(&copy_to(Path::new("/usr/include"), &base.path().join("include")));
    assert_same(Path::new("/usr/include"), &base.path().join("include"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any tree, copied by any number of threads to a new place and then over an older copy of a part of it.
    #[test]
    fn any_tree(
        entries in prop::collection::vec((0_usize..6, 0_usize..5, 0_usize..300_000, 0_u32..8), 1..60),
        threads in 1_usize..5,
    ) {
        let base = TempDir::new().expect("made");
        let (source, destination) = (base.path().join("s"), base.path().join("d"));
        let mut directories = vec![source.clone()];
        fs::create_dir(&source).expect("made");
        let options = Options { threads: Some(threads), ..Options::archive(&NEVER) };
        let half = entries.len() / 2;
        let mut files: Vec<PathBuf> = Vec::new();
        for (index, (kind, place, bytes, mode)) in entries.into_iter().enumerate() {
            if index == half {
                assert_whole(&copy(&[item(&source, &destination)], &options, &()));
            }
            let path = directories[place % directories.len()].join(format!("{index}"));
            match kind {
                0 => {
                    fs::create_dir(&path).expect("made");
                    directories.push(path);
                }
                1 => symlink(format!("{bytes}"), &path).expect("made"),
                2 if !files.is_empty() => {
                    let old = &files[bytes % files.len()];
                    fs::hard_link(old, &path).expect("linked");
                }
                _ => {
                    fs::write(&path, noise(bytes)).expect("written");
                    fs::set_permissions(&path, Permissions::from_mode(0o600 | mode)).expect("set");
                    files.push(path);
                }
            }
        }
        assert_whole(&copy(&[item(&source, &destination)], &options, &()));
        assert_same(&source, &destination);
    }
}

#[test]
fn many_names_of_one_file_met_at_once() {
    let base = TempDir::new().expect("made");
    let source = base.path().join("s");
    for directory in 0..8 {
        let directory = source.join(format!("{directory}"));
        fs::create_dir_all(&directory).expect("made");
        for name in 0..50 {
            let first = source.join("0/0");
            let path = directory.join(format!("{name}"));
            if path == first {
                fs::write(&path, noise(17 << 20)).expect("written");
            } else {
                fs::hard_link(first, path).expect("linked");
            }
        }
    }
    let options = Options { threads: Some(6), ..Options::archive(&NEVER) };
    let report = copy(&[item(&source, &base.path().join("d"))], &options, &());
    assert_whole(&report);
    assert_eq!((report.files, report.hard_links), (1, 399));
    assert_same(&source, &base.path().join("d"));
}

#[test]
fn what_is_off_is_not_kept() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    make_everything(&source);
    let preserve = Preserve {
        mode: false,
        times: false,
        owner: false,
        xattrs: false,
        acls: false,
        symlinks: false,
        hard_links: false,
        sparse: false,
        specials: false,
    };
    let options = Options { preserve, ..Options::archive(&NEVER) };
    assert_whole(&copy(&[item(&source, &destination)], &options, &()));
    let stat = |name: &str| fs::symlink_metadata(destination.join(name)).expect("there");
    assert_eq!(stat("a/file1").mode() & 0o7777, 0o755 & !crate::fs::umask());
    assert_eq!(stat("a/b/linked").nlink(), 1);
    assert!(stat("holes").blocks() * 512 >= 64 << 20);
    assert!(stat("a/file3").mtime() > 1_500_000_000);
    for gone in ["dangling", "to-directory", "fifo"] {
        assert!(fs::symlink_metadata(destination.join(gone)).is_err(), "{gone}");
    }
    let mut list = [0; 512];
    let listed = rustix::fs::listxattr(destination.join("a/file4"), &mut list[..]).expect("listed");
    assert!(!String::from_utf8_lossy(&list[..listed]).contains("user."));
}

#[test]
fn into_an_existing_tree() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    for root in [&source, &destination] {
        fs::create_dir_all(root.join("sub")).expect("made");
    }
    fs::write(source.join("sub/file"), "new").expect("written");
    fs::write(source.join("over-a-directory"), "new").expect("written");
    symlink("new", source.join("link")).expect("made");
    fs::create_dir(source.join("directory")).expect("made");
    fs::write(destination.join("sub/file"), "older and longer").expect("written");
    fs::write(destination.join("sub/kept"), "kept").expect("written");
    fs::create_dir(destination.join("over-a-directory")).expect("made");
    symlink("/", destination.join("directory")).expect("made");
    fs::write(destination.join("link"), "old").expect("written");
    let report = copy_to(&source, &destination);
    assert_eq!(report.failed, 2, "a directory for a file, a link for a directory: {report:?}");
    assert_eq!(fs::read(destination.join("sub/file")).expect("there"), b"new");
    assert_eq!(fs::read(destination.join("sub/kept")).expect("there"), b"kept");
    assert_eq!(fs::read_link(destination.join("link")).expect("there"), Path::new("new"));
    assert_eq!(names(&destination), ["directory", "link", "over-a-directory", "sub"]);
}

/// A default ACL in the destination goes to what is made there only if ACLs are not copied.
#[test]
fn default_acls_of_the_destination() {
    for acls in [true, false] {
        let base = TempDir::new().expect("made");
        let (source, destination) = (base.path().join("s"), base.path().join("d"));
        fs::create_dir_all(source.join("sub/sub")).expect("made");
        fs::create_dir(&destination).expect("made");
        for file in ["file", "sub/sub/file"] {
            fs::write(source.join(file), "text").expect("written");
            fs::set_permissions(source.join(file), Permissions::from_mode(0o664)).expect("set");
        }
        let set = Command::new("setfacl").args(["-dm", "u:1234:rwx,g::-"]).arg(&destination).status();
        assert!(set.expect("acl is installed (tests/testbed/deps)").success());
        let options = Options { preserve: Preserve { acls, ..Preserve::ALL }, ..Options::archive(&NEVER) };
        let items = ["file", "sub"].map(|name| item(&source.join(name), &destination.join(name)));
        assert_whole(&copy(&items, &options, &()));
        for name in ["file", "sub", "sub/sub/file"] {
            let path = destination.join(name);
            let acl = rustix::fs::getxattr(&path, c"system.posix_acl_access", &mut [0; 512][..]);
            assert_eq!(acl.is_ok(), !acls, "{name}");
            assert_eq!(
                fs::metadata(&path).expect("there").mode(),
                fs::metadata(source.join(name)).expect("there").mode()
            );
        }
    }
}

#[test]
fn in_place_keeps_the_file() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    for bytes in [10, 200_000, 17 << 20] {
        fs::write(&source, noise(bytes)).expect("written");
        fs::write(&destination, noise(18 << 20)).expect("written");
        let inode = fs::metadata(&destination).expect("there").ino();
        let options = Options { in_place: true, ..Options::archive(&NEVER) };
        assert_whole(&copy(&[item(&source, &destination)], &options, &()));
        assert_eq!(fs::metadata(&destination).expect("there").ino(), inode);
        assert!(fs::read(&source).expect("there") == fs::read(&destination).expect("there"), "{bytes} bytes");
    }
}

#[test]
fn refusals_change_nothing() {
    let base = TempDir::new().expect("made");
    let path = |name: &str| base.path().join(name);
    fs::create_dir_all(path("s/sub")).expect("made");
    fs::write(path("file"), "text").expect("written");
    fs::hard_link(path("file"), path("same")).expect("linked");
    let before = snapshot(base.path());
    let problem = |source: &str, destination: &str| {
        let report = copy_to(&path(source), &path(destination));
        assert_eq!((report.failed, report.files, report.directories), (1, 0, 0));
        report.first_failure.expect("one").problem
    };
    assert_eq!(problem("s", "s/copy"), Problem::IntoItself);
    assert_eq!(problem("s", "s/sub/copy"), Problem::IntoItself);
    assert_eq!(problem("s", "s"), Problem::SameFile);
    assert_eq!(problem("file", "file"), Problem::SameFile);
    assert_eq!(problem("file", "same"), Problem::SameFile);
    assert_eq!(problem("none", "copy"), Problem::Os(Errno::NOENT));
    assert_eq!(problem("file", "none/copy"), Problem::Os(Errno::NOENT));
    assert_eq!(problem("file", "s"), Problem::Os(Errno::ISDIR));
    assert_eq!(problem("s", "file"), Problem::Os(Errno::NOTDIR));
    let flat = Options { recursive: false, ..Options::archive(&NEVER) };
    let report = copy(&[item(&path("s"), &path("copy"))], &flat, &());
    assert_eq!(report.first_failure.expect("one").problem, Problem::Directory);
    for name in ["", "..", "a/b", "a\0b"] {
        let odd = Item { source: path("file"), directory: path("s"), name: name.into() };
        assert_eq!(copy(&[odd], &flat, &()).first_failure.expect("one").problem, Problem::Os(Errno::INVAL));
    }
    assert_eq!(snapshot(base.path()), before);
}

#[test]
fn what_a_killed_copy_left_is_taken_over() {
    let base = TempDir::new().expect("made");
    let path = |name: &str| base.path().join(name);
    fs::create_dir_all(path("s/sub")).expect("made");
    fs::write(path("s/sub/file"), "text").expect("written");
    fs::write(path("file"), "text").expect("written");
    let temporary = |name: &std::ffi::CStr| path(place::temporary(name).to_str().expect("ASCII"));
    let left = temporary(c"d");
    fs::create_dir_all(left.join("deep/er")).expect("made");
    fs::write(left.join("deep/half"), "ha").expect("written");
    fs::set_permissions(left.join("deep"), Permissions::from_mode(0o555)).expect("set");
    fs::write(temporary(c"f"), "a half of something longer").expect("written");
    assert_whole(&copy_to(&path("s"), &path("d")));
    assert_whole(&copy_to(&path("file"), &path("f")));
    assert_same(&path("s"), &path("d"));
    assert_eq!(fs::read(path("f")).expect("there"), b"text");
    assert_eq!(names(base.path()), ["d", "f", "file", "s"]);
    // One that lives is left alone.
    let lives = File::create(temporary(c"g")).expect("made");
    rustix::fs::flock(&lives, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let report = copy_to(&path("file"), &path("g"));
    assert_eq!(report.first_failure.expect("one").problem, Problem::Os(Errno::BUSY));
    assert!(temporary(c"g").exists() && !path("g").exists());
}

#[test]
fn items_of_one_name_are_merged_in_their_order() {
    let base = TempDir::new().expect("made");
    let path = |name: &str| base.path().join(name);
    for root in ["a", "b"] {
        fs::create_dir_all(path(root).join("x")).expect("made");
        fs::write(path(root).join("x/both"), root).expect("written");
        fs::write(path(root).join("x").join(root), root).expect("written");
    }
    let items = ["a/x", "b/x"].map(|source| item(&path(source), &path("x")));
    assert_whole(&copy(&items, &Options::archive(&NEVER), &()));
    assert_eq!(names(&path("x")), ["a", "b", "both"]);
    assert_eq!(fs::read(path("x/both")).expect("there"), b"b");
}

#[test]
fn patterns_leave_out() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    fs::create_dir_all(source.join("build/deep")).expect("made");
    fs::create_dir_all(source.join("src/build.rs")).expect("made");
    for file in ["a.o", "a.c", "keep.o", "build/deep/x", "src/b.o"] {
        fs::write(source.join(file), "").expect("written");
    }
    let mut options = Options::archive(&NEVER);
    for line in ["*.o", "!keep.o", "/build/"] {
        options.leave_out.push(line.as_bytes(), false).expect("a pattern");
    }
    assert_whole(&copy(&[item(&source, &destination)], &options, &()));
    assert_eq!(names(&destination), ["a.c", "keep.o", "src"]);
    assert_eq!(names(&destination.join("src")), ["build.rs"]);
}

/// Runs a closure at each event, and keeps the failures.
struct Told<F: Fn(u64) + Sync> {
    count: AtomicU64,
    at: F,
    failures: Mutex<Vec<Failure>>,
}

impl<F: Fn(u64) + Sync> Told<F> {
    fn new(at: F) -> Self {
        Self { count: AtomicU64::new(0), at, failures: Mutex::default() }
    }
}

impl<F: Fn(u64) + Sync> Events for Told<F> {
    fn progress(&self, _: u64) {
        (self.at)(self.count.fetch_add(1, Ordering::Relaxed));
    }

    fn failed(&self, failure: &Failure) {
        self.failures.lock().expect("not poisoned").push(failure.clone());
    }
}

#[test]
fn a_source_that_changes_is_named_and_the_rest_goes_on() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("grows", |path| {
            let file = File::options().append(true).open(path).expect("there");
            std::io::Write::write_all(&mut &file, b"more").expect("written");
        }),
        ("shrinks", |path| File::options().write(true).open(path).expect("there").set_len(1 << 20).expect("cut")),
        ("changes", |path| {
            File::options().write(true).open(path).expect("there").write_all_at(b"x", 5).expect("written");
        }),
        ("vanishes", |path| fs::remove_file(path).expect("there")),
    ];
    for (what, change) in changes {
        fs::create_dir_all(&source).expect("made");
        fs::create_dir(&destination).expect("made");
        fs::write(source.join("odd"), noise(40 << 20)).expect("written");
        fs::write(source.join("even"), noise(1000)).expect("written");
        let odd = source.join("odd");
        // At the first piece of the large file; one that has been opened does not vanish.
        let told = Told::new(|count| {
            if count == 0 {
                change(&odd);
            }
        });
        let options = Options { threads: Some(1), ..Options::archive(&NEVER) };
        let mut items =
            vec![item(&odd, &destination.join("odd")), item(&source.join("even"), &destination.join("even"))];
        if what == "vanishes" {
            items.reverse();
        }
        let report = copy(&items, &options, &told);
        let expected = if what == "vanishes" { Problem::Os(Errno::NOENT) } else { Problem::Changed };
        let failure = Failure { side: Side::Source, path: odd.clone(), problem: expected };
        assert_eq!(*told.failures.lock().expect("not poisoned"), [failure], "{what}");
        assert_eq!((report.files, report.failed), (1, 1), "{what}");
        assert_eq!(names(&destination), ["even"], "{what}");
        fs::remove_dir_all(&source).expect("removed");
        fs::remove_dir_all(&destination).expect("removed");
    }
}

#[test]
fn a_stopped_copy_leaves_nothing_half_made() {
    for (after, into_existing) in [(0, true), (0, false), (7, true), (7, false), (12, false)] {
        let base = TempDir::new().expect("made");
        let (source, destination) = (base.path().join("s"), base.path().join("d"));
        fs::create_dir_all(source.join("sub")).expect("made");
        for index in 0..10 {
            let bytes = if index % 3 == 0 { 30 << 20 } else { 100 };
            fs::write(source.join(format!("sub/{index}")), noise(bytes)).expect("written");
        }
        if into_existing {
            fs::create_dir_all(destination.join("sub")).expect("made");
            fs::write(destination.join("sub/0"), "old").expect("written");
        }
        let cancel = AtomicBool::new(false);
        let told = Told::new(|count| cancel.store(count >= after, Ordering::Relaxed));
        let report = copy(&[item(&source, &destination)], &Options::archive(&cancel), &told);
        assert_eq!((report.stopped, report.failed), (Some(Stop::Cancelled), 0));
        // No tree appears that lacks something.
        let is_all_done = after == 12;
        if !into_existing && !is_all_done {
            assert_eq!(names(base.path()), ["s"]);
        } else if !into_existing && destination.exists() {
            assert_same(&source, &destination);
        } else if !is_all_done {
            let times =
                [&source, &destination].map(|path| fs::metadata(path).expect("there").modified().expect("a time"));
            assert!(times[0] != times[1], "it does not look like a whole one");
        }
        for name in destination.join("sub").exists().then(|| names(&destination.join("sub"))).into_iter().flatten() {
            let copied = fs::read(destination.join("sub").join(&name)).expect("there");
            let is_whole = copied == fs::read(source.join("sub").join(&name)).expect("a name of the source's");
            assert!(is_whole || into_existing && copied == b"old", "sub/{name}");
        }
    }
}

/// Somebody swaps a directory for a link out of the tree while it is copied, at either end.
#[test]
fn links_swapped_in_lead_nowhere() {
    let base = TempDir::new().expect("made");
    let path = |name: &str| base.path().join(name);
    for root in ["s", "d"] {
        fs::create_dir_all(path(root).join("sub")).expect("made");
    }
    fs::create_dir_all(path("outside")).expect("made");
    fs::write(path("outside/secret"), "secret").expect("written");
    for index in 0..40 {
        fs::write(path("s/sub").join(format!("{index}")), "public").expect("written");
    }
    let outside = snapshot(&path("outside"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for root in ["s", "d"] {
            let (real, link, done) = (path(root).join("sub"), path(&format!("link-{root}")), &done);
            symlink(path("outside"), &link).expect("made");
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let swapped = renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE);
                    swapped.expect("both are always there");
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
        }
        for _ in 0..200 {
            copy_to(&path("s"), &path("d"));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(snapshot(&path("outside")), outside);
    let secrets = snapshot(base.path()).into_keys().filter(|name| name.ends_with("secret")).count();
    assert_eq!(secrets, 1, "read through a link");
}

#[test]
fn a_deep_tree() {
    let base = TempDir::new().expect("made");
    let mut deep = base.path().join("s");
    for _ in 0..400 {
        deep.push("level");
    }
    fs::create_dir_all(&deep).expect("made");
    fs::write(deep.join("file"), "deep").expect("written");
    let report = copy_to(&base.path().join("s"), &base.path().join("d"));
    assert_whole(&report);
    assert_eq!((report.directories, report.files), (401, 1));
}

/// Set in a process that [`run_elsewhere`] has started.
const ELSEWHERE: &str = "RD_COPY_TEST_ELSEWHERE";

/// Runs a test once more in a process of its own: `nobody`'s, or one with a file system of 1 MiB. Returns whether this
/// is that process.
fn run_elsewhere(test: &str, as_nobody: bool) -> bool {
    if std::env::var_os(ELSEWHERE).is_some() {
        return true;
    }
    if !is_root() {
        // As nobody we may be already; a file system can be mounted by root alone.
        return as_nobody;
    }
    let base = TempDir::new().expect("made");
    fs::set_permissions(base.path(), Permissions::from_mode(0o777)).expect("set");
    let program = base.path().join("tests");
    fs::copy(std::env::current_exe().expect("known"), &program).expect("copied");
    let run = "exec \"$0\" --exact --test-threads=1 \"fs::copy::tests::$1\"";
    let script = match as_nobody {
        true => run.to_owned(),
        false => format!("mkdir \"$TMPDIR/small\" && mount -t tmpfs -o size=1m small \"$TMPDIR/small\" && {run}"),
    };
    let mut command = Command::new("unshare");
    command.arg("-m").args(if as_nobody {
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..]
    } else {
        &[]
    });
    let output = command
        .args(["sh", "-c", &script])
        .arg(&program)
        .arg(test)
        .env("TMPDIR", base.path())
        .env(ELSEWHERE, "1")
        .output();
    let output = output.expect("util-linux is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}

#[test]
fn without_root() {
    if !run_elsewhere("without_root", true) {
        return;
    }
    assert!(!is_root());
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    make_everything(&source);
    fs::set_permissions(source.join("a"), Permissions::from_mode(0o555)).expect("set");
    let told = Told::new(|_| {});
    let report = copy(&[item(&source, &destination)], &Options::archive(&NEVER), &told);
    // The file of mode 0 cannot be read; everything else is there, also what lies in directories of mode 0555.
    assert_eq!((report.failed, report.stopped), (1, None));
    let unreadable = Failure { side: Side::Source, path: source.join("a/file2"), problem: Problem::Os(Errno::ACCESS) };
    assert_eq!(*told.failures.lock().expect("not poisoned"), [unreadable]);
    fs::set_permissions(source.join("a"), Permissions::from_mode(0o755)).expect("set");
    fs::remove_file(source.join("a/file2")).expect("removed");
    let mut expected = snapshot(&source);
    let mut copied = snapshot(&destination);
    for list in [&mut expected, &mut copied] {
        list.remove(Path::new("a"));
    }
    assert_eq!(copied, expected);
    let (a, old) = (fs::metadata(destination.join("a")).expect("there"), fs::metadata(destination.join("empty")));
    assert_eq!((a.mode() & 0o7777, a.mtime()), (0o555, old.expect("there").mtime()));
    for directory in ["a", "a/b/c"] {
        fs::set_permissions(destination.join(directory), Permissions::from_mode(0o755)).expect("set");
    }
    fs::set_permissions(source.join("a/b/c"), Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn a_failure_told_at_close_is_one() {
    let base = TempDir::new().expect("made");
    let (source, destination) = (base.path().join("s"), base.path().join("d"));
    fs::write(&source, noise(100_000)).expect("written");
    fs::write(&destination, b"old").expect("written");
    let report = where_closing_fails(|| copy_to(&source, &destination));
    let Some(Stop::Fatal(failure)) = report.stopped else { panic!("{report:?}") };
    assert_eq!((failure.side, failure.problem), (Side::Destination, Problem::Os(Errno::DQUOT)));
    assert_eq!(fs::read(&destination).expect("there"), b"old");
    assert_eq!(names(base.path()), ["d", "s"]);
}

#[test]
fn on_a_full_disk() {
    if !run_elsewhere("on_a_full_disk", false) {
        return;
    }
    let base = TempDir::new().expect("made");
    let (source, small) = (base.path().join("s"), std::env::temp_dir().join("small"));
    fs::create_dir(&source).expect("made");
    for index in 0..30 {
        fs::write(source.join(format!("{index}")), noise(100_000)).expect("written");
    }
    fs::write(source.join("large"), noise(20 << 20)).expect("written");
    let report = copy_to(&source, &small.join("d"));
    let Some(Stop::Fatal(failure)) = report.stopped else { panic!("{report:?}") };
    assert_eq!((failure.side, failure.problem), (Side::Destination, Problem::Os(Errno::NOSPC)));
    assert!(names(&small).is_empty(), "it is not kept full");
}
