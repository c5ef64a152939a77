//! `--find-moves`, walk and sink together.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::sink::Report;
use super::sync_tests::{Maker, copy, picture, scratch, sync};
use super::walk::Sent;
use crate::fs::close::tests::where_calls_fail;
use crate::fs::{PARTIAL, name_beside, partial};
use crate::not_run::not_run;
use crate::options::{Generations, Session, TreeOptions};

fn moving() -> TreeOptions {
    let session = Session { is_last: true, ..Session::default() };
    let generations = Generations { find_moves: true, session, ..Generations::default() };
    TreeOptions { delete: true, delete_after: true, generations, ..sync() }
}

struct Trees(tempfile::TempDir);

impl Trees {
    fn new() -> Self {
        let scratch = scratch();
        fs::create_dir(scratch.path().join("from")).expect("a directory");
        Self(scratch)
    }

    fn from(&self, path: &str) -> PathBuf {
        self.0.path().join("from").join(path)
    }

    fn to(&self, path: &str) -> PathBuf {
        self.0.path().join("to").join(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::create_dir_all(self.from(path).parent().expect("one")).expect("directories");
        fs::write(self.from(path), bytes).expect("a file");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::create_dir_all(self.from(to).parent().expect("one")).expect("directories");
        fs::rename(self.from(from), self.from(to)).expect("renamed");
    }

    fn copy(&self, options: &TreeOptions, is_local: bool) -> (Sent, Report) {
        let (sent, report) = copy(&self.from(""), &self.0.path().join("to"), options, is_local);
        assert_eq!((sent.figures.failed, report.figures.failed), (0, 0), "{:?} {:?}", sent.failures, report.failures);
        (sent, report)
    }

    #[track_caller]
    fn are_equal(&self) {
        assert_eq!(picture(&self.from("")), picture(&self.to("")));
    }
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).expect("it").ino()
}

fn cp(from: &Path, to: &Path) {
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().expect("cp").success());
}

#[test]
fn what_was_renamed_is_linked_and_nothing_of_it_is_sent() {
    for is_local in [false, true] {
        let trees = Trees::new();
        trees.write("b/deep/small", b"12345");
        trees.write("b/deep/large", &vec![3; 3 << 20]);
        trees.write("b/file", b"another");
        trees.write("kept", b"kept");
        trees.copy(&moving(), is_local);
        let before = ["deep/small", "deep/large", "file"].map(|name| inode(trees.to("b").join(name)));
        // Sorted before the old name, and after it.
        for to in ["a", "c/d"] {
            let from = if to == "a" { "b" } else { "a" };
            trees.rename(from, to);
            let (sent, report) = trees.copy(&moving(), is_local);
            assert_eq!(
                (sent.figures.amount.bytes, report.figures.moved),
                (0, 3),
                "to {to}, local {is_local}: {report:?}"
            );
            assert_eq!(before, ["deep/small", "deep/large", "file"].map(|name| inode(trees.to(to).join(name))));
            trees.are_equal();
        }
    }
}

#[test]
fn where_the_old_name_stays_the_new_one_is_a_file_of_its_own() {
    for is_local in [false, true] {
        for to in ["a", "c"] {
            let trees = Trees::new();
            trees.write("b/small", b"12345");
            trees.write("b/large", &vec![3; 3 << 20]);
            trees.copy(&moving(), is_local);
            cp(&trees.from("b"), &trees.from(to));
            // Once more, so that the same file is wanted twice.
            cp(&trees.from("b"), &trees.from("d"));
            let (sent, _) = trees.copy(&moving(), is_local);
            assert_eq!(sent.figures.amount.bytes, 0, "to {to}, local {is_local}");
            trees.are_equal();
            for name in ["small", "large"] {
                let inodes = [to, "b", "d"].map(|directory| inode(trees.to(directory).join(name)));
                assert!(inodes[0] != inodes[1] && inodes[1] != inodes[2] && inodes[0] != inodes[2], "{inodes:?}");
            }
            // Without --delete the old name always stays.
            trees.rename("b", "e");
            let options = TreeOptions { delete: false, delete_after: false, ..moving() };
            let (sent, _) = trees.copy(&options, is_local);
            assert!(sent.figures.amount.bytes == 0 && inode(trees.to("b/small")) != inode(trees.to("e/small")));
        }
    }
}

#[test]
fn an_old_name_that_is_not_deleted_shares_no_file() {
    let trees = Trees::new();
    for name in ["x/1", "x/2", "x/3"] {
        trees.write(name, name.as_bytes());
    }
    trees.copy(&moving(), false);
    let old = picture(&trees.to("x"));
    trees.rename("x", "a");
    let options = TreeOptions { max_delete: Some(1), ..moving() };
    let (sent, report) = copy(&trees.from(""), &trees.to(""), &options, false);
    assert_eq!((sent.figures.amount.bytes, report.figures.deleted), (0, 1), "{report:?}");
    let left = picture(&trees.to("x"));
    assert_eq!(left.len(), 2);
    for (path, text) in left {
        assert_eq!(old[&path], text);
        assert_eq!(fs::metadata(trees.to("x").join(path)).expect("it").nlink(), 1);
    }
}

#[test]
fn nothing_is_taken_for_moved_that_is_not_proven() {
    for is_local in [false, true] {
        let trees = Trees::new();
        let large = vec![4; 1 << 20];
        for (name, bytes) in [("b/small", &b"12345"[..]), ("b/large", &large)] {
            trees.write(name, bytes);
        }
        trees.copy(&moving(), is_local);
        let times = ["b/small", "b/large"].map(|name| fs::metadata(trees.from(name)).expect("it").modified());
        trees.rename("b", "a");
        let mut other = large.clone();
        other[700_000] = 5;
        for (name, bytes, time) in [("a/small", &b"54321"[..], &times[0]), ("a/large", &other, &times[1])] {
            trees.write(name, bytes);
            let file = fs::File::options().write(true).open(trees.from(name)).expect("it");
            file.set_modified(*time.as_ref().expect("a time")).expect("set");
        }
        trees.copy(&moving(), is_local);
        assert_eq!(fs::read(trees.to("a/small")).expect("it"), b"54321");
        assert!(fs::read(trees.to("a/large")).expect("it") == other);
        trees.are_equal();
    }
}

/// Its owner and mode were not to be copied from the source, but it has them at the destination.
#[test]
fn a_file_at_an_old_name_that_stays_keeps_its_owner_and_mode() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root");
    }
    for is_local in [false, true] {
        let trees = Trees::new();
        trees.write("b", b"contents");
        fs::create_dir(trees.to("")).expect("a directory");
        cp(&trees.from("b"), &trees.to("a"));
        chown(trees.to("a"), Some(1000), Some(1000)).expect("another's");
        fs::set_permissions(trees.to("a"), fs::Permissions::from_mode(0o4755)).expect("a mode");
        let options = TreeOptions { owner: false, mode: false, xattrs: false, max_delete: Some(0), ..moving() };
        let (_, report) = copy(&trees.from(""), &trees.to(""), &options, is_local);
        assert_eq!(report.figures.moved, 1, "local {is_local}: {report:?}");
        let [old, new] = ["a", "b"].map(|name| fs::metadata(trees.to(name)).expect("there"));
        assert_ne!(old.ino(), new.ino(), "local {is_local}");
        assert_eq!((old.uid(), old.gid(), old.mode() & 0o7777), (1000, 1000, 0o4755), "local {is_local}");
        assert_eq!(old.modified().expect("a time"), new.modified().expect("a time"), "local {is_local}");
    }
}

#[test]
fn a_copy_for_an_old_name_whose_data_may_be_lost_is_not_used() {
    for is_local in [false, true] {
        let trees = Trees::new();
        trees.write("b", b"contents");
        fs::create_dir(trees.to("")).expect("a directory");
        cp(&trees.from("b"), &trees.to("a"));
        let options = TreeOptions { max_delete: Some(0), ..moving() };
        let run = || copy(&trees.from(""), &trees.to(""), &options, is_local);
        // An error that does not stop the whole copy.
        let (_, report) = where_calls_fail(&[libc::SYS_close], libc::EACCES, run);
        assert_eq!((report.figures.moved, report.figures.failed), (1, 2), "local {is_local}: {report:?}");
        let told: Vec<&[u8]> = report.failures.iter().map(|fact| &fact.path[..]).collect();
        assert_eq!(told, [trees.to("a").as_os_str().as_encoded_bytes()], "local {is_local}");
        assert_eq!(inode(trees.to("a")), inode(trees.to("b")), "local {is_local}: the old file stays");
        assert_eq!(fs::read_dir(trees.to("")).expect("a directory").count(), 2, "local {is_local}: nothing else");
    }
}

fn set_time(path: &Path, nanoseconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("it");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)).expect("ours");
}

#[test]
fn what_was_renamed_is_found_by_a_time_within_the_window() {
    const COUNT: u64 = 5;
    const SECOND_NS: u64 = 1_000_000_000;
    // Of several files with the same size, the name tells which one it is, or else the time.
    for (tick_ns, keeps_names) in [(SECOND_NS, true), (100, false)] {
        for is_local in [false, true] {
            let trees = Trees::new();
            let time = |number: u64| SECOND_NS * SECOND_NS + number * 10_000_007 + 7;
            for number in 0..COUNT {
                let name = format!("b/{number}");
                trees.write(&name, &[number as u8; 9]);
                set_time(&trees.from(&name), time(number));
            }
            let options = TreeOptions { modify_window: 1, ..moving() };
            trees.copy(&options, is_local);
            for number in 0..COUNT {
                // As a file system keeps it whose clock ticks so coarsely.
                set_time(&trees.to(&format!("b/{number}")), time(number) / tick_ns * tick_ns);
            }
            if keeps_names {
                trees.rename("b", "a");
            } else {
                (0..COUNT).for_each(|number| trees.rename(&format!("b/{number}"), &format!("b/x{}", COUNT - number)));
            }
            let (sent, report) = trees.copy(&options, is_local);
            assert_eq!(
                (sent.figures.amount.bytes, report.figures.moved),
                (0, COUNT),
                "{tick_ns} ns, local {is_local}: {report:?}"
            );
        }
    }
}

/// As with rotated logs: each file gets the name of the next.
#[test]
fn names_that_move_up_send_only_what_is_new() {
    let trees = Trees::new();
    for number in 0..6 {
        trees.write(&format!("log.{number}"), &vec![number; 1000 + usize::from(number) * 50_000]);
    }
    trees.copy(&moving(), false);
    for number in (0..6).rev() {
        trees.rename(&format!("log.{number}"), &format!("log.{}", number + 1));
    }
    trees.write("log.0", b"new");
    let (sent, _) = trees.copy(&moving(), false);
    trees.are_equal();
    assert!(sent.figures.amount.bytes < 400_000, "{sent:?}");
}

#[test]
fn a_moved_file_with_other_metadata_is_copied_and_one_with_other_names_too() {
    let trees = Trees::new();
    trees.write("b/mode", b"12345");
    trees.write("b/linked", b"1234567");
    fs::hard_link(trees.from("b/linked"), trees.from("b/second")).expect("a link");
    trees.copy(&moving(), false);
    trees.rename("b", "a");
    fs::set_permissions(trees.from("a/mode"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let (sent, _) = trees.copy(&moving(), false);
    assert_eq!(sent.figures.amount.bytes, 0);
    trees.are_equal();
}

/// Ten thousand files, with every top directory renamed.
#[test]
fn a_tree_of_renamed_directories_sends_no_contents() {
    let trees = Trees::new();
    let mut maker = Maker(1);
    for directory in 0..1000 {
        for file in 0..10 {
            let mut bytes = vec![0; 512];
            maker.fill(&mut bytes);
            trees.write(&format!("d{directory:04}/f{file}"), &bytes);
        }
    }
    trees.copy(&moving(), false);
    for directory in 0..1000 {
        trees.rename(&format!("d{directory:04}"), &format!("new-{directory:04}"));
    }
    let (sent, report) = trees.copy(&moving(), false);
    assert_eq!((sent.figures.amount.bytes, report.figures.moved), (0, 10_000), "{sent:?} {report:?}");
    trees.are_equal();
}

/// Random trees with random renames end as a plain copy makes them.
#[test]
fn random_renames_end_as_a_copy_does() {
    for seed in 0..60 {
        let (trees, is_local) = (Trees::new(), seed % 2 == 0);
        let mut maker = Maker(seed);
        for name in 0..10 {
            maker.make(&trees.from(&format!("n{name}")), 3);
        }
        for round in 0..4 {
            let checksum = seed % 5 == 0;
            let options = TreeOptions { checksum, ..moving() };
            trees.copy(&options, is_local);
            assert_eq!(picture(&trees.from("")), picture(&trees.to("")), "seed {seed}, round {round}");
            let (sent, report) = trees.copy(&options, is_local);
            assert_eq!(
                (sent.figures.amount.bytes, report.files, report.figures.moved),
                (0, 0, 0),
                "seed {seed}, round {round}"
            );
            for _ in 0..1 + maker.below(5) {
                shuffle(&mut maker, &trees.from(""));
            }
            if maker.below(2) == 0 {
                maker.change(&trees.from(""));
            }
        }
    }
}

/// Renames, copies or hard-links an entry to another place.
fn shuffle(maker: &mut Maker, top: &Path) {
    let mut all: Vec<PathBuf> = picture(top).into_keys().collect();
    all.sort();
    if all.is_empty() {
        return;
    }
    let directories: Vec<PathBuf> = all.iter().filter(|path| top.join(path).is_dir()).cloned().collect();
    let what = &all[maker.below(all.len() as u64) as usize];
    let into = match maker.below(directories.len() as u64 + 1) as usize {
        0 => PathBuf::new(),
        at => directories[at - 1].clone(),
    };
    let (from, to) = (top.join(what), top.join(&into).join(format!("{}x", maker.below(50))));
    let is_into_itself = into.starts_with(what);
    if fs::symlink_metadata(&to).is_ok() || is_into_itself {
        return;
    }
    match maker.below(4) {
        0 => cp(&from, &to),
        1 if !from.is_dir() => fs::hard_link(&from, &to).expect("a link"),
        _ => fs::rename(&from, &to).expect("renamed"),
    }
}

/// The old name stays, and that file gets another time while it is copied, perhaps together with other contents. They
/// are proven once more, and what is not proven gets no name.
#[test]
fn what_gets_another_time_while_it_is_copied_is_copied_once_more() {
    for (is_local, is_other) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("within a host {is_local}, other contents {is_other}");
        let trees = Trees::new();
        trees.write("b", b"12345");
        trees.copy(&moving(), is_local);
        fs::rename(trees.to("b"), trees.to("a")).expect("renamed");
        let old = trees.to("a").canonicalize().expect("there");
        // While another transfer holds the partial name, the old file has been opened and is not copied yet.
        let top = fs::File::open(trees.to("")).expect("there");
        let (held, _) = partial::open(&top, &name_beside(b"b", PARTIAL), false).expect("made");
        let options = TreeOptions { delete: false, delete_after: false, ..moving() };
        let is_open = || {
            let mut links = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
            links.any(|link| fs::read_link(link.path()).is_ok_and(|path| path == old))
        };
        let (sent, report) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while !is_open() && start.elapsed() < Duration::from_secs(20) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Once it is open, it is proven at once.
                std::thread::sleep(Duration::from_millis(500));
                let file = fs::File::options().write(true).open(&old).expect("it");
                if is_other {
                    file.write_all_at(b"54321", 0).expect("written");
                }
                file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
                drop(held);
            });
            copy(&trees.from(""), &trees.0.path().join("to"), &options, is_local)
        });
        let expected = if is_other { (0, 0, 1) } else { (0, 1, 0) };
        assert_eq!(
            (sent.figures.amount.bytes, report.figures.moved, report.figures.failed),
            expected,
            "{what}: {report:?}"
        );
        let copied = fs::read(trees.to("b")).ok();
        assert_eq!(copied.as_deref(), (!is_other).then_some(&b"12345"[..]), "{what}");
        assert_eq!(fs::metadata(&old).expect("it").modified().expect("a time"), SystemTime::UNIX_EPOCH, "{what}");
    }
}

#[test]
fn a_dry_run_knows_further_names_of_what_has_moved() {
    for is_local in [true, false] {
        let trees = Trees::new();
        trees.write("b", b"contents");
        trees.copy(&moving(), is_local);
        fs::hard_link(trees.from("b"), trees.from("a")).expect("a link");
        let (_, report) = trees.copy(&TreeOptions { dry_run: true, ..moving() }, is_local);
        assert_eq!(report.figures.moved, 1, "{report:?}");
        trees.copy(&moving(), is_local);
        assert_eq!(inode(trees.to("a")), inode(trees.to("b")));
    }
}
