//! `--link-dest`, and the rules that keep generations apart: walk and sink together.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;

use super::sink::{Destination, Names, Report, TreeSink};
use super::source::{Next, TreeSource};
use super::sync_tests::{Maker, PART_BYTES, copy, copy_as_dst, picture, scratch, sync};
use super::walk::Sent;
use super::{Root, local};
use crate::fs::close::tests::{fail_where, where_calls_fail};
use crate::fs::direct::Tally;
use crate::fs::{PARTIAL, UNFINISHED, WHOLE, name_beside};
use crate::options::{Generations, Session, Sizes, TreeOptions};

fn linking(to: &[&str]) -> TreeOptions {
    let link_dest = to.iter().map(|path| path.as_bytes().to_vec().into()).collect();
    TreeOptions { generations: Generations { link_dest, ..Generations::default() }, ..sync() }
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).expect("it").ino()
}

/// A source, its first generation, and the place of the second.
struct Generation {
    scratch: tempfile::TempDir,
}

impl Generation {
    fn new() -> Self {
        let scratch = scratch();
        fs::create_dir_all(scratch.path().join("from/d")).expect("a directory");
        Self { scratch }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.scratch.path().join(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::write(self.path(path), bytes).expect("a file");
    }

    fn copy(&self, to: &str, options: &TreeOptions, is_local: bool) -> (Sent, Report) {
        let (sent, report) = copy_as_dst(&self.path("from"), &self.path(to), options, is_local);
        assert_eq!((sent.figures.failed, report.figures.failed), (0, 0), "{:?} {:?}", sent.failures, report.failures);
        (sent, report)
    }
}

#[test]
fn what_is_unchanged_is_linked_and_nothing_of_it_is_sent() {
    for is_local in [false, true] {
        let tree = Generation::new();
        for (name, length) in [("a", 0), ("b", 5000), ("d/large", 3 << 20)] {
            tree.write(&format!("from/{name}"), &vec![7; length]);
        }
        tree.copy("1", &sync(), is_local);
        let (sent, report) = tree.copy("2", &linking(&["../1"]), is_local);
        assert_eq!((sent.figures.amount.bytes, report.files, report.figures.same), (0, 0, 3), "{report:?}");
        for name in ["a", "b", "d/large"] {
            assert_eq!(inode(tree.path("1").join(name)), inode(tree.path("2").join(name)), "{name}");
        }
        // Also with an existing DST, with an absolute path, and with the second of two paths.
        let absolute = tree.path("1").into_os_string().into_string().expect("UTF-8");
        let (sent, report) = tree.copy("3", &linking(&["../none", &absolute]), is_local);
        assert_eq!((sent.figures.amount.bytes, report.without.len()), (0, 1), "{report:?}");
        fs::remove_file(tree.path("3/b")).expect("it");
        let (sent, _) = tree.copy("3", &linking(&["../2"]), is_local);
        assert_eq!((sent.figures.amount.bytes, inode(tree.path("3/b"))), (0, inode(tree.path("1/b"))));
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("3")));
    }
}

#[test]
fn other_metadata_means_a_new_file_and_leaves_the_older_one() {
    for is_local in [false, true] {
        let tree = Generation::new();
        let large = vec![9; 1 << 20];
        for (name, bytes) in [("small", &b"12345"[..]), ("large", &large)] {
            tree.write(&format!("from/{name}"), bytes);
        }
        tree.copy("1", &sync(), is_local);
        let before = picture(&tree.path("1"));
        for name in ["small", "large"] {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(tree.path("from").join(name), mode).expect("a mode");
        }
        let (sent, _) = tree.copy("2", &linking(&["../1"]), is_local);
        assert_eq!(sent.figures.amount.bytes, 0, "copied within the host");
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("2")));
        assert_eq!(picture(&tree.path("1")), before);
        // Once more, onto names that the third generation has linked to the second.
        tree.copy("3", &linking(&["../2"]), is_local);
        let second = picture(&tree.path("2"));
        for name in ["small", "large"] {
            assert_eq!(inode(tree.path("2").join(name)), inode(tree.path("3").join(name)));
            let mode = fs::Permissions::from_mode(0o640);
            fs::set_permissions(tree.path("from").join(name), mode).expect("a mode");
        }
        let (sent, _) = tree.copy("3", &linking(&["../2"]), is_local);
        assert_eq!(sent.figures.amount.bytes, 0);
        assert_eq!(picture(&tree.path("2")), second);
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("3")));
    }
}

/// FUSE answers link(2) with ENOSYS if its server, such as that of sshfs, has no hard links.
#[test]
fn where_nothing_can_be_linked_what_is_unchanged_is_copied_within_the_host() {
    for (error, is_local) in [(libc::ENOSYS, false), (libc::ENOSYS, true), (libc::EPERM, false)] {
        let tree = Generation::new();
        tree.write("from/small", &[7; 5000]);
        tree.write("from/d/large", &vec![7; 3 << 20]);
        tree.copy("1", &sync(), is_local);
        let linked = || tree.copy("2", &linking(&["../1"]), is_local);
        let (sent, _) = where_calls_fail(&[libc::SYS_linkat], error, linked);
        assert_eq!(sent.figures.amount.bytes, 0, "{error} within a host {is_local}");
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("2")));
        assert_ne!(inode(tree.path("1/small")), inode(tree.path("2/small")));
    }
}

/// Its disk has a bad sector. The source has the file, and everything else is to come.
#[test]
fn an_older_file_that_cannot_be_read_stops_nothing() {
    let tree = Generation::new();
    tree.write("from/file", &[7; 200_000]);
    tree.copy("1", &sync(), false);
    symlink("nowhere", tree.path("from/link")).expect("a link");
    let linked = || copy_as_dst(&tree.path("from"), &tree.path("2"), &linking(&["../1"]), false).1;
    fails_with(&where_calls_fail(&[libc::SYS_pread64], libc::EIO, linked), b"2/file", "cannot read it for its digest");
    assert!(inode(tree.path("1/file")) == inode(tree.path("2/file")) && tree.path("2/link").is_symlink());
    fs::set_permissions(tree.path("from/file"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let copied = || {
        // A copy within the host reads so much at once.
        fail_where(libc::SYS_pread64, (2, 128 << 10), libc::EIO);
        tree.copy("3", &linking(&["../1"]), false);
    };
    std::thread::scope(|scope| scope.spawn(copied).join().expect("its end"));
    assert_eq!(picture(&tree.path("from")), picture(&tree.path("3")));
}

#[test]
fn a_large_file_that_has_changed_is_sent_in_part() {
    let tree = Generation::new();
    let mut bytes = vec![0; 8 << 20];
    Maker(3).fill(&mut bytes);
    tree.write("from/large", &bytes);
    tree.copy("1", &sync(), false);
    let before = picture(&tree.path("1"));
    bytes[5 << 20] ^= 1;
    tree.write("from/large", &bytes);
    let (sent, _) = tree.copy("2", &linking(&["../1"]), false);
    assert!(sent.figures.amount.bytes <= 1 << 20, "{sent:?}");
    assert_eq!(picture(&tree.path("from")), picture(&tree.path("2")));
    assert_eq!(picture(&tree.path("1")), before);
}

#[test]
fn with_checksum_only_equal_contents_are_linked() {
    for is_local in [false, true] {
        let tree = Generation::new();
        tree.write("from/same", b"same");
        tree.write("from/other", b"one");
        tree.write("from/large", &vec![1; 1 << 20]);
        tree.copy("1", &sync(), is_local);
        let time = fs::metadata(tree.path("from/other")).expect("it").modified().expect("a time");
        tree.write("from/other", b"two");
        fs::File::options().write(true).open(tree.path("from/other")).expect("it").set_modified(time).expect("a time");
        let options = TreeOptions { checksum: true, ..linking(&["../1"]) };
        let (sent, _) = tree.copy("2", &options, is_local);
        assert_eq!(sent.figures.amount.bytes, 3, "within {is_local}");
        for name in ["same", "large"] {
            assert_eq!(inode(tree.path("1").join(name)), inode(tree.path("2").join(name)), "{name}");
        }
        assert_eq!(fs::read(tree.path("2/other")).expect("it"), b"two");
        assert_eq!(fs::read(tree.path("1/other")).expect("it"), b"one");
    }
}

/// A source and DST, beside an older generation. Their files differ only in contents and, in DST, in time.
fn three_versions(bytes: usize) -> Generation {
    let tree = Generation::new();
    for (name, byte, seconds) in [("from", 1, 1_000_000_000), ("1", 2, 1_000_000_000), ("2", 3, 900_000_000)] {
        fs::create_dir_all(tree.path(name)).expect("a directory");
        let path = format!("{name}/file");
        tree.write(&path, &vec![byte; bytes]);
        let file = fs::File::options().write(true).open(tree.path(&path)).expect("it");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
    }
    tree
}

/// Replaced by the same contents, the file would also replace the only backup of the older version.
#[test]
fn with_checksum_what_is_unchanged_in_dst_stays_whatever_an_older_generation_has() {
    for (bytes, is_local) in [(4, false), (4, true), (1 << 20, false), (1 << 20, true)] {
        for is_backed_up in [false, true] {
            let what = format!("{bytes} bytes, within a host {is_local}, with backup {is_backed_up}");
            let tree = three_versions(bytes);
            let backup_dir = is_backed_up.then(|| b"../kept".to_vec().into());
            let options = TreeOptions { checksum: true, contents: true, backup_dir, ..linking(&["../1"]) };
            tree.copy("2", &options, is_local);
            let is_whole = || fs::read(tree.path("2/file")).expect("it") == vec![1; bytes];
            assert!(is_whole(), "{what}");
            let before = inode(tree.path("2/file"));
            let (sent, report) = tree.copy("2", &options, is_local);
            assert_eq!((sent.figures.amount.bytes, report.files), (0, 0), "{what}");
            assert!(is_whole() && inode(tree.path("2/file")) == before, "{what}");
            assert!(!is_backed_up || fs::read(tree.path("kept/file")).expect("it") == vec![3; bytes], "{what}");
            assert!(fs::read(tree.path("1/file")).expect("it") == vec![2; bytes], "{what}");
        }
    }
}

/// DST may be an older generation, of which the time tells that a file has changed since.
#[test]
fn with_checksum_an_older_version_in_dst_gives_way_to_the_file_of_a_newer_generation() {
    for (bytes, is_local) in [(4, false), (4, true), (1 << 20, false), (1 << 20, true)] {
        let tree = three_versions(bytes);
        fs::remove_file(tree.path("1/file")).expect("it");
        tree.copy("1", &sync(), is_local);
        let (sent, _) = tree.copy("2", &TreeOptions { checksum: true, ..linking(&["../1"]) }, is_local);
        assert_eq!(sent.figures.amount.bytes, 0, "{bytes} bytes, within a host {is_local}");
        assert_eq!(inode(tree.path("2/file")), inode(tree.path("1/file")));
    }
}

/// A user who can write to an older generation cannot lead a copy out of it.
#[test]
fn no_link_within_a_generation_is_followed() {
    let tree = Generation::new();
    tree.write("from/d/file", b"file");
    tree.write("from/file", b"file");
    fs::create_dir_all(tree.path("1")).expect("a directory");
    fs::create_dir(tree.path("outside")).expect("a directory");
    let clock = |from: &str, to: &str| {
        let time = fs::metadata(tree.path(from)).expect("it").modified().expect("a time");
        fs::File::options().write(true).open(tree.path(to)).expect("it").set_modified(time).expect("a time");
    };
    tree.write("outside/file", b"evil");
    clock("from/d/file", "outside/file");
    symlink("../outside", tree.path("1/d")).expect("a link");
    symlink("../outside/file", tree.path("1/file")).expect("a link");
    tree.copy("2", &linking(&["../1"]), false);
    assert_eq!(picture(&tree.path("from")), picture(&tree.path("2")));
}

/// An earlier copy may have put a link into DST. Its author must not have the link's target changed by a later copy.
#[test]
fn no_link_in_dst_is_followed_to_an_older_generation() {
    for is_local in [false, true] {
        let tree = Generation::new();
        fs::create_dir(tree.path("outside")).expect("a directory");
        tree.write("outside/shadow", b"secret");
        symlink("../outside", tree.path("from/old")).expect("a link");
        tree.copy("to", &sync(), is_local);
        tree.write("from/shadow", b"public");
        let time = fs::metadata(tree.path("from/shadow")).expect("it").modified().expect("a time");
        fs::File::options().write(true).open(tree.path("outside/shadow")).expect("it").set_modified(time).expect("it");
        let absolute = tree.path("to/old").into_os_string().into_string().expect("UTF-8");
        for path in ["old", "./old/", "d/../old", "../to/old", "../outside/../to/old", &absolute] {
            let (_, report) = tree.copy("to", &linking(&[path]), is_local);
            assert_eq!(report.without.len(), 1, "{path}: {report:?}");
            assert_eq!(fs::read(tree.path("to/shadow")).expect("it"), b"public", "{path}");
            assert_ne!(inode(tree.path("to/shadow")), inode(tree.path("outside/shadow")), "{path}");
            fs::remove_file(tree.path("to/shadow")).expect("it");
        }
        // Entries beside DST belong to the user.
        symlink("outside", tree.path("latest")).expect("a link");
        for path in ["../latest", "d/../../latest"] {
            tree.copy("to", &linking(&[path]), is_local);
            assert_eq!(inode(tree.path("to/shadow")), inode(tree.path("outside/shadow")), "{path}");
            fs::remove_file(tree.path("to/shadow")).expect("it");
        }
    }
}

#[test]
fn a_relative_path_stays_relative_where_dst_is_missing() {
    let tree = Generation::new();
    tree.write("from/file", b"file");
    tree.copy("1", &sync(), false);
    let absolute = tree.path("1").into_os_string().into_string().expect("UTF-8");
    for (number, (path, is_found)) in
        [("..//1", true), (".././/1/", true), ("./../1", true), (&*format!("../{absolute}"), false), ("1", false)]
            .into_iter()
            .enumerate()
    {
        let to = format!("new{number}");
        let (sent, report) = tree.copy(&to, &linking(&[path]), false);
        assert_eq!(
            (sent.figures.amount.bytes, report.without.len()),
            if is_found { (0, 0) } else { (4, 1) },
            "{path}: {report:?}"
        );
    }
}

/// Random trees change, and each generation stays as it was made.
#[test]
fn no_generation_is_changed_by_later_ones() {
    for seed in 0..40 {
        let (scratch, is_local) = (scratch(), seed % 2 == 0);
        let from = scratch.path().join("from");
        let mut maker = Maker(seed);
        fs::create_dir(&from).expect("a directory");
        for name in 0..10 {
            maker.make(&from.join(format!("n{name}")), 3);
        }
        let mut pictures: Vec<(PathBuf, _)> = Vec::new();
        for round in 0..5 {
            let name = format!("g{round}");
            let older: Vec<String> = (0..round).rev().map(|older| format!("../g{older}")).collect();
            let older: Vec<&str> = older.iter().map(String::as_str).collect();
            let checksum = seed % 3 == 0;
            let options = TreeOptions { delete: true, checksum, ..linking(&older) };
            let to = scratch.path().join(&name);
            // Some generations begin with another state of the source, like those that were interrupted.
            for _ in 0..1 + maker.below(2) {
                maker.change(&from);
                let (sent, report) = copy_as_dst(&from, &to, &options, is_local);
                assert_eq!((sent.figures.failed, report.figures.failed), (0, 0), "seed {seed}: {:?}", report.failures);
                assert_eq!(picture(&from), picture(&to), "seed {seed}, round {round}");
                for (older, before) in &pictures {
                    assert_eq!(&picture(older), before, "seed {seed}, round {round}: {}", older.display());
                }
            }
            pictures.push((to.clone(), picture(&to)));
        }
    }
}

fn snapshot(name: &str) -> TreeOptions {
    let snapshot = Some(name.as_bytes().to_vec().into());
    TreeOptions { generations: Generations { snapshot, ..Generations::default() }, ..sync() }
}

#[test]
fn the_link_latest_leads_to_the_last_generation_that_is_whole() {
    for is_local in [false, true] {
        let tree = Generation::new();
        fs::create_dir(tree.path("to")).expect("a directory");
        let latest = || fs::read_link(tree.path("to/latest")).ok().map(|path| path.into_os_string());
        tree.write("from/same", b"same");
        tree.write("from/changed", b"1");
        tree.copy("to/one", &snapshot("one"), is_local);
        assert_eq!(latest(), Some("one".into()));
        let one = picture(&tree.path("to/one"));
        tree.write("from/changed", b"22");
        // A session that is not the last of its copy does not switch `latest`.
        let mut options = snapshot("two");
        options.generations.session.is_dst = true;
        let (sent, report) = copy(&tree.path("from"), &tree.path("to/two"), &options, is_local);
        assert_eq!((sent.figures.amount.bytes, report.figures.failed, latest()), (2, 0, Some("one".into())));
        let (sent, _) = tree.copy("to/two", &snapshot("two"), is_local);
        assert_eq!((sent.figures.amount.bytes, latest()), (0, Some("two".into())), "it goes on in the same generation");
        assert_eq!(inode(tree.path("to/one/same")), inode(tree.path("to/two/same")));
        // With an absolute link, as scripts make it.
        fs::remove_file(tree.path("to/latest")).expect("it");
        symlink(tree.path("to/two"), tree.path("to/latest")).expect("a link");
        let (sent, report) = tree.copy("to/three", &snapshot("three"), is_local);
        assert_eq!((sent.figures.amount.bytes, report.without.len(), latest()), (0, 0, Some("three".into())));
        assert_eq!(picture(&tree.path("to/one")), one);
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("to/three")));
    }
}

#[test]
fn a_latest_that_is_none_is_not_followed_or_replaced() {
    let tree = Generation::new();
    fs::create_dir_all(tree.path("to")).expect("a directory");
    tree.write("from/file", b"file");
    tree.copy("outside", &sync(), false);
    // The link leads out of DST.
    symlink("../outside", tree.path("to/latest")).expect("a link");
    let (sent, report) = tree.copy("to/one", &snapshot("one"), false);
    assert_eq!((sent.figures.amount.bytes, report.without.len()), (4, 1), "{report:?}");
    assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
    fs::remove_file(tree.path("to/latest")).expect("it");
    tree.write("to/latest", b"precious");
    let options = snapshot("two");
    let mut destination = Destination::from(options);
    destination.names = Names::Only(b"two".to_vec());
    destination.options.generations.session.is_dst = true;
    let refused = TreeSink::new(&tree.path("to"), destination, Box::new(|_| {}));
    assert!(refused.is_err_and(|fact| fact.path == b"latest"));
    assert_eq!(fs::read(tree.path("to/latest")).expect("it"), b"precious");
}

/// What an interrupted run has made of a new tree is not sent again, and what the source no longer has is removed.
#[test]
fn a_new_tree_that_was_interrupted_goes_on() {
    let tree = Generation::new();
    fs::create_dir(tree.path("to")).expect("a directory");
    for number in 0..100 {
        tree.write(&format!("from/d/f{number:02}"), &vec![number; 50_000]);
    }
    let roots = vec![Root::new(tree.path("from"), "root")];
    let source = Arc::new(TreeSource::new(roots, PART_BYTES, snapshot("one"), Arc::default()).expect("a source"));
    let mut destination = Destination::from(snapshot("one"));
    destination.names = Names::Only(b"one".to_vec());
    destination.options.generations.session.is_dst = true;
    let mut sink = TreeSink::new(&tree.path("to"), destination, local::answer(&source)).expect("a sink");
    let mut target = vec![0; PART_BYTES];
    let mut records = 0;
    while records < 3 {
        match source.next(&mut target, PART_BYTES, &Tally::default()) {
            Next::Part(part) => {
                let bytes = Arc::new(target[..part.length].to_vec());
                sink.push(part.item, part.position, bytes).expect("taken");
                records += u32::from(part.length > 900_000);
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            other => panic!("{other:?}"),
        }
    }
    drop(sink);
    assert!(!tree.path("to/one").exists(), "it has its name before it is whole");
    fs::remove_file(tree.path("from/d/f03")).expect("it");
    let (sent, _) = tree.copy("to/one", &snapshot("one"), false);
    assert!(sent.figures.amount.bytes <= 5_000_000 - 2_500_000, "{sent:?}");
    assert_eq!(picture(&tree.path("from")), picture(&tree.path("to/one")));
}

/// Whether a report has this failure and no other.
#[track_caller]
fn fails_with(report: &Report, path: &[u8], begin: &str) {
    let [fact] = &report.failures[..] else { panic!("{report:?}") };
    let detail = String::from_utf8_lossy(&fact.detail);
    assert!(report.figures.failed == 1 && fact.path.ends_with(path) && detail.starts_with(begin), "{report:?}");
}

/// Its disk may not be mounted, and what an interrupted run has brought may be the only copy.
#[test]
fn an_empty_source_empties_no_unfinished_generation() {
    for is_local in [false, true] {
        let tree = Generation::new();
        fs::create_dir(tree.path("to")).expect("a directory");
        tree.write("from/file", b"1");
        let mut options = snapshot("one");
        options.generations.session = Session { is_dst: true, ..Session::default() };
        copy(&tree.path("from"), &tree.path("to/one"), &options, is_local);
        fs::remove_dir_all(tree.path("from")).expect("it");
        fs::create_dir(tree.path("from")).expect("a directory");
        let dry = TreeOptions { dry_run: true, ..snapshot("one") };
        let (_, report) = copy_as_dst(&tree.path("from"), &tree.path("to/one"), &dry, is_local);
        fails_with(&report, b"latest", "was not emptied: the source is empty");
        let (_, report) = copy_as_dst(&tree.path("from"), &tree.path("to/one"), &snapshot("one"), is_local);
        fails_with(&report, b"to/one", "was not emptied: the source is empty");
        assert!(tree.path("to/one/file").exists() && !tree.path("to/latest").exists());
        // Still unfinished, so that the next run makes it what the source is by then.
        tree.copy("to/one", &TreeOptions { force_empty: true, ..snapshot("one") }, is_local);
        assert_eq!(fs::read_dir(tree.path("to/one")).expect("it").count(), 0);
        assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
    }
}

/// Also if it is one of several sources. A dry run tells the same.
#[test]
fn latest_is_not_switched_to_what_an_empty_source_makes() {
    for (is_local, is_dst) in [(false, true), (true, true), (false, false), (true, false)] {
        let tree = Generation::new();
        tree.write("from/file", b"1");
        let run_as = |name: &str, force_empty: bool, dry_run: bool| {
            let mut options = TreeOptions { force_empty, dry_run, ..snapshot(name) };
            options.generations.session = Session { is_dst, is_last: true, ..Session::default() };
            let to = tree.path("to").join(name);
            fs::create_dir_all(if is_dst { tree.path("to") } else { to.clone() }).expect("a directory");
            copy(&tree.path("from"), &if is_dst { to } else { to.join("home") }, &options, is_local).1
        };
        let run = |name: &str, force_empty: bool| run_as(name, force_empty, false);
        let latest = || fs::read_link(tree.path("to/latest")).expect("a link").into_os_string();
        assert_eq!((run("one", false).figures.failed, latest()), (0, "one".into()));
        assert_eq!(run_as("two", false, true).figures.failed, 0);
        fs::remove_dir_all(tree.path("from")).expect("it");
        fs::create_dir(tree.path("from")).expect("a directory");
        let kept = if is_dst { "latest" } else { "latest/home" };
        assert_eq!(run_as("two", true, true).figures.failed, 0);
        fails_with(&run_as("two", false, true), kept.as_bytes(), "was not emptied: ");
        fails_with(&run("two", false), kept.as_bytes(), "was not emptied: ");
        assert_eq!(latest(), "one");
        assert_eq!((run("two", true).figures.failed, latest()), (0, "two".into()));
        // What was empty before may stay so.
        assert_eq!((run("three", false).figures.failed, latest()), (0, "three".into()));
    }
}

/// Its user has removed the generation to which `latest` leads, and makes it again. Before it is whole, nothing leads
/// to it.
#[test]
fn a_latest_that_leads_to_what_is_still_to_be_made_goes() {
    for (is_local, is_dst) in [(false, true), (true, true), (false, false)] {
        let tree = Generation::new();
        fs::create_dir(tree.path("to")).expect("a directory");
        tree.write("from/file", b"1");
        for leads_to in [PathBuf::from("one"), tree.path("to/one")] {
            symlink(leads_to, tree.path("to/latest")).expect("a link");
            let mut options = snapshot("one");
            options.generations.session.is_dst = is_dst;
            let to = tree.path("to/one");
            if !is_dst {
                fs::create_dir(&to).expect("a directory");
            }
            let (_, report) = copy(&tree.path("from"), &if is_dst { to } else { to.join("home") }, &options, is_local);
            assert_eq!((report.figures.failed, report.without.len()), (0, 1), "{report:?}");
            assert!(tree.path("to/one").exists() && fs::symlink_metadata(tree.path("to/latest")).is_err());
            options.generations.session.is_last = true;
            let to = tree.path(if is_dst { "to/one" } else { "to/one/home" });
            assert_eq!(copy(&tree.path("from"), &to, &options, is_local).1.figures.failed, 0);
            assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
            fs::remove_dir_all(tree.path("to/one")).expect("it");
            fs::remove_file(tree.path("to/latest")).expect("it");
        }
    }
}

/// Found out before anything is copied.
#[test]
fn a_file_system_without_symbolic_links_has_no_generations() {
    for error in [libc::EPERM, libc::EOPNOTSUPP] {
        let tree = Generation::new();
        fs::create_dir(tree.path("to")).expect("a directory");
        let opened = || {
            let mut destination = Destination::from(snapshot("one"));
            destination.names = Names::Only(b"one".to_vec());
            destination.options.generations.session.is_dst = true;
            TreeSink::new(&tree.path("to"), destination, Box::new(|_| {})).map(drop)
        };
        let refused = where_calls_fail(&[libc::SYS_symlinkat], error, opened).expect_err("no links");
        assert_eq!((refused.path.as_slice(), refused.errno), (&b"latest"[..], error));
        assert!(String::from_utf8_lossy(&refused.detail).contains("symbolic links"), "{refused:?}");
        assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 0, "no marker is left");
    }
}

/// Where generations are copied to another disk, an unfinished one would count as whole without its mark.
#[test]
fn a_mark_of_what_is_copied_is_a_failure() {
    for is_local in [false, true] {
        let tree = Generation::new();
        tree.write("from/half", b"half of it");
        for (name, ending, failed) in
            [("half", PARTIAL, 0), ("removed", UNFINISHED, 0), ("half", UNFINISHED, 1), ("d", UNFINISHED, 2)]
        {
            tree.write(&format!("from/{}", name_beside(name.as_bytes(), ending)), b"");
            let (sent, report) = copy(&tree.path("from"), &tree.path("to"), &sync(), is_local);
            assert_eq!(
                (sent.figures.failed, report.figures.failed),
                (failed, 0),
                "{name} {ending}: {:?}",
                sent.failures
            );
        }
        assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 2);
    }
}

/// However many names and marks a directory has.
#[test]
fn a_mark_without_its_entry_is_passed_over() {
    let tree = Generation::new();
    fs::create_dir(tree.path("to")).expect("a directory");
    let mark = |name: &str| tree.write(&format!("from/{}", name_beside(name.as_bytes(), UNFINISHED)), b"");
    for number in 0..5000 {
        tree.write(&format!("from/{number}"), b"");
        if number < 20 {
            mark(&number.to_string());
            mark(&format!("{number} is gone"));
        }
    }
    let options = TreeOptions { dry_run: true, ..sync() };
    let (sent, _) = copy(&tree.path("from"), &tree.path("to"), &options, true);
    assert_eq!(sent.figures.failed, 20, "{:?}", sent.failures);
}

/// Entries that the source no longer has when a generation is resumed do not stay in it, whatever kind they were.
#[test]
fn an_unfinished_generation_becomes_what_the_source_is_by_then() {
    for is_local in [false, true] {
        let tree = Generation::new();
        fs::create_dir_all(tree.path("to")).expect("a directory");
        fs::create_dir_all(tree.path("from/was-directory/deep")).expect("directories");
        for name in ["same", "gone", "d/gone", "was-directory/deep/file", "was-file"] {
            tree.write(&format!("from/{name}"), name.as_bytes());
        }
        let mut options = snapshot("one");
        options.generations.session = Session { is_dst: true, ..Session::default() };
        copy(&tree.path("from"), &tree.path("to/one"), &options, is_local);
        assert!(tree.path("to/one/gone").exists());
        for name in ["gone", "d/gone", "was-file"] {
            fs::remove_file(tree.path("from").join(name)).expect("it");
        }
        fs::remove_dir_all(tree.path("from/was-directory")).expect("it");
        fs::create_dir(tree.path("from/was-file")).expect("a directory");
        tree.write("from/was-directory", b"file");
        let (sent, report) = tree.copy("to/one", &snapshot("one"), is_local);
        assert_eq!((sent.figures.amount.bytes, report.figures.failed), (4, 0), "what is there is not sent again");
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("to/one")));
        assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
        assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 2, "no marker is left");
    }
}

/// A generation is what a new copy would be, which has nothing of a file that has grown too large.
#[test]
fn what_is_left_out_by_now_does_not_stay_in_an_unfinished_generation() {
    for is_local in [false, true] {
        let tree = Generation::new();
        fs::create_dir(tree.path("to")).expect("a directory");
        tree.write("from/log", b"1");
        let sizes = Sizes { max_size: Some(50), ..Sizes::default() };
        let mut options = TreeOptions { sizes, ..snapshot("one") };
        let finished = options.clone();
        options.generations.session = Session { is_dst: true, ..Session::default() };
        copy(&tree.path("from"), &tree.path("to/one"), &options, is_local);
        assert!(tree.path("to/one/log").exists());
        tree.write("from/log", &[1; 60]);
        tree.copy("to/one", &finished, is_local);
        assert!(!tree.path("to/one/log").exists(), "within {is_local}");
        assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
    }
}

/// Entries of several hosts come in several sessions: no session removes what an earlier one has brought.
#[test]
fn an_unfinished_generation_of_several_sources_becomes_what_they_are_by_then() {
    for is_local in [false, true] {
        resume_several(is_local);
    }
}

/// Without locks, nothing tells whether a live copy holds a file that was just made, such as the mark of an entry. If a
/// mark stayed, its entry would be removed at the end, although it has come.
#[test]
fn an_unfinished_generation_of_several_sources_is_resumed_without_locks() {
    for error in [libc::ENOSYS, libc::ENOLCK, libc::EBADF] {
        where_calls_fail(&[libc::SYS_flock], error, || resume_several(false));
    }
}

fn resume_several(is_local: bool) {
    let tree = Generation::new();
    for (name, bytes) in [("a/d/file", "1"), ("a/gone/below", "2"), ("b/d/other", "3")] {
        fs::create_dir_all(tree.path(name).parent().expect("one")).expect("directories");
        tree.write(name, bytes.as_bytes());
    }
    fs::create_dir_all(tree.path("to/one")).expect("a directory");
    let run = |names: &[&str], is_cut: bool| {
        for (number, name) in names.iter().enumerate() {
            let (from, follows, is_last) = (tree.path(name), number > 0, !is_cut && number + 1 == names.len());
            let mut options = snapshot("one");
            options.generations.session = Session { is_last, follows, ..Session::default() };
            let to = tree.path("to/one").join(from.file_name().expect("one"));
            let (sent, report) = copy(&from, &to, &options, is_local);
            let failed = sent.figures.failed + report.figures.failed;
            assert_eq!(failed, 0, "{name}: {:?} {:?}", sent.failures, report.failures);
        }
    };
    run(&["a/gone", "a/d"], true);
    assert!(tree.path("to/one/gone/below").exists() && tree.path("to/one/d/file").exists());
    fs::remove_file(tree.path("a/d/file")).expect("it");
    tree.write("a/d/new", b"4");
    tree.write("to/one/a file", b"of a source that is not named any more");
    // Sources of one name are merged.
    run(&["a/d", "b/d"], false);
    let listed = picture(&tree.path("to/one")).into_keys().collect::<Vec<_>>();
    assert_eq!(listed, ["d", "d/new", "d/other"].map(PathBuf::from));
    assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
    assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 2, "no marker is left");
}

/// A kill between the switch of `latest` and the end leaves the marker of a whole generation. The marker is removed
/// before `latest` is switched again.
#[test]
fn a_marker_of_what_latest_leads_to_is_no_mark_any_more() {
    let tree = Generation::new();
    fs::create_dir(tree.path("to")).expect("a directory");
    tree.write("from/file", b"file");
    tree.copy("to/one", &snapshot("one"), false);
    let marker = tree.path("to").join(name_beside(b"one", UNFINISHED));
    fs::write(&marker, "").expect("a file");
    fs::write(tree.path("to").join(name_beside(b"removed by its user", UNFINISHED)), "").expect("a file");
    tree.copy("to/two", &snapshot("two"), false);
    assert!(!marker.exists());
    assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 3, "two generations and the link");
}

/// Without its marker, the remains of an interrupted generation would be taken for a whole one.
#[test]
fn a_generation_that_is_not_whole_stays_marked_when_another_is() {
    let tree = Generation::new();
    tree.write("from/file", b"file");
    fs::create_dir_all(tree.path("to/half/d")).expect("a directory");
    // Where the source itself becomes the generation, an unfinished generation has no name of its own yet.
    let nameless = tree.path("to").join(name_beside(b"cut", PARTIAL));
    fs::create_dir(&nameless).expect("a directory");
    fs::set_permissions(&nameless, fs::Permissions::from_mode(0o1700)).expect("ours");
    fs::write(nameless.join("file"), "half of it").expect("a file");
    let marker = |name: &[u8]| tree.path("to").join(name_beside(name, UNFINISHED));
    for name in [&b"half"[..], b"cut"] {
        fs::write(marker(name), "").expect("a file");
    }
    tree.copy("to/one", &snapshot("one"), false);
    // No process holds them here. Nor is it seen everywhere whether a process on another host does.
    assert!(marker(b"half").exists() && marker(b"cut").exists());
    for name in ["half", "cut"] {
        tree.copy(&format!("to/{name}"), &snapshot(name), false);
        assert_eq!(picture(&tree.path("from")), picture(&tree.path("to").join(name)), "it is gone on with");
        assert!(!marker(name.as_bytes()).exists());
    }
}

/// Another run may be about to switch `latest` in the same moment.
#[test]
fn the_link_that_becomes_latest_is_shared_with_no_other_run() {
    let tree = Generation::new();
    fs::create_dir(tree.path("to")).expect("a directory");
    tree.write("from/file", b"file");
    let beside = |name: &[u8]| tree.path("to").join(name_beside(name, WHOLE));
    for name in [&b"one"[..], b"two", b"latest"] {
        symlink("nowhere", beside(name)).expect("a link");
    }
    tree.copy("to/one", &snapshot("one"), false);
    assert_eq!(fs::read_link(tree.path("to/latest")).expect("a link"), Path::new("one"));
    let are_there = [&b"one"[..], b"two", b"latest"].map(|name| beside(name).symlink_metadata().is_ok());
    assert_eq!(are_there, [false, true, true], "only its own goes, which a killed run may have left");
}

/// The generation was missing, or not whole, when this run looked, and another run has finished it since. It does not
/// change any more.
#[test]
fn a_generation_that_another_run_has_finished_meanwhile_stays() {
    let tree = Generation::new();
    fs::create_dir(tree.path("to")).expect("a directory");
    tree.write("from/file", b"file");
    tree.copy("to/one", &snapshot("one"), false);
    let mut destination = Destination::from(snapshot("one"));
    destination.names = Names::Only(b"one".to_vec());
    destination.options.generations.session.is_dst = true;
    let refused = TreeSink::new(&tree.path("to"), destination, Box::new(|_| {})).map(drop).expect_err("it is whole");
    assert_eq!((refused.path.as_slice(), refused.errno), (&b"one"[..], Errno::EXIST.raw_os_error()));
    assert_eq!(fs::read_dir(tree.path("to")).expect("it").count(), 2, "no marker is left");
}

#[test]
fn a_latest_that_leads_out_of_the_generations_is_told_as_what_it_is() {
    let tree = Generation::new();
    fs::create_dir_all(tree.path("to")).expect("a directory");
    fs::create_dir(tree.path("outside")).expect("a directory");
    symlink("../outside", tree.path("to/latest")).expect("a link");
    let (_, report) = tree.copy("to/one", &snapshot("one"), false);
    let [fact] = &report.without[..] else { panic!("{report:?}") };
    assert!(fact.errno == 0 && String::from_utf8_lossy(&fact.detail).contains("leads out"), "{fact:?}");
}

#[test]
fn a_dry_run_knows_further_names_of_what_would_be_linked() {
    for is_local in [false, true] {
        let tree = Generation::new();
        tree.write("from/a", b"contents");
        fs::hard_link(tree.path("from/a"), tree.path("from/b")).expect("a link");
        tree.copy("one", &sync(), is_local);
        // This call fails if an entry would not be made.
        tree.copy("two", &TreeOptions { dry_run: true, ..linking(&["../one"]) }, is_local);
        assert!(!tree.path("two").exists());
        tree.copy("two", &linking(&["../one"]), is_local);
        assert_eq!(inode(tree.path("two/b")), inode(tree.path("one/a")));
    }
}
