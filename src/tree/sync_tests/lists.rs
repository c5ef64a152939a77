//! `--backup-dir` and `--delete-after`: what is kept, and when entries are deleted.

use rd_proto::tree::Time;
use rustix::fs::OFlags;

use super::super::Only;
use super::*;
use crate::fs::close::tests::fail_where;
use crate::fs::{PARTIAL, name_beside};
use crate::options::{Generations, Listed};
use crate::tree::delta_tests::copy_meanwhile;
use crate::tree::walk::hook;

fn plant(top: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = top.join(path);
        fs::create_dir_all(path.parent().expect("one")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
}

/// Returns the contents of the files in a directory, by path.
fn texts(top: &Path) -> Vec<(String, String)> {
    let (mut all, mut todo) = (Vec::new(), vec![top.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(top).expect("below").to_str().expect("UTF-8").to_owned();
            match fs::symlink_metadata(&path).expect("it") {
                stat if stat.is_dir() => todo.push(path),
                stat if stat.is_symlink() => all.push((name, format!("{:?}", fs::read_link(&path).expect("it")))),
                _ => all.push((name, fs::read_to_string(&path).expect("text"))),
            }
        }
    }
    all.sort();
    all
}

fn owned(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
}

fn backing_up(directory: &str) -> TreeOptions {
    TreeOptions { delete: true, contents: true, backup_dir: Some(directory.as_bytes().to_vec().into()), ..sync() }
}

#[test]
fn what_is_replaced_or_deleted_is_kept_in_the_backup_directory() {
    for (is_local, is_inside) in [(true, true), (false, true), (true, false), (false, false)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(
            &from,
            &[("a", "new a"), ("d/b", "new b"), ("was-directory", "file"), ("was-file/x", "in it"), ("same", "1")],
        );
        let old = [
            ("a", "old"),
            ("d/b", "older"),
            ("d/gone", "g"),
            ("gone/deep/f", "f"),
            ("was-directory/x/y", "y"),
            ("was-file", "w"),
        ];
        plant(&to, &old);
        plant(&to, &[("same", "1")]);
        let modified = fs::metadata(from.join("same")).and_then(|stat| stat.modified()).expect("a time");
        fs::File::open(to.join("same")).and_then(|file| file.set_modified(modified)).expect("ours");
        symlink("nowhere", to.join("link")).expect("a link");
        symlink("elsewhere", from.join("link")).expect("a link");
        fs::set_permissions(to.join("d"), fs::Permissions::from_mode(0o711)).expect("ours");
        fs::hard_link(to.join("a"), scratch.path().join("other name")).expect("a link");
        let bak = if is_inside { to.join("keep/bak") } else { scratch.path().join("bak") };
        let options = backing_up(if is_inside { "keep/bak" } else { "../bak" });
        let (_, report) = copy(&from, &to, &options, is_local);
        assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
        let mut kept = owned(&old);
        kept.push(("link".to_owned(), "\"nowhere\"".to_owned()));
        kept.sort();
        assert_eq!(texts(&bak), kept);
        let (source, other) = (texts(&from), fs::metadata(scratch.path().join("other name")).expect("it"));
        assert_eq!(other.ino(), fs::metadata(bak.join("a")).expect("it").ino(), "it is the file itself");
        assert_eq!(fs::metadata(bak.join("d")).expect("it").mode() & 0o7777, 0o711);
        // DIR stays, and of several files of one name it holds the last.
        plant(&from, &[("a", "newer a")]);
        let (_, report) = copy(&from, &to, &options, is_local);
        assert_eq!((report.figures.failed, report.figures.deleted), (0, 0), "{:?}", report.failures);
        assert_eq!(fs::read_to_string(bak.join("a")).expect("it"), "new a");
        assert_eq!(texts(&bak).len(), kept.len());
        if is_inside {
            fs::remove_dir_all(to.join("keep")).expect("ours");
        }
        assert_eq!(texts(&to).len(), source.len());
    }
}

/// With `--fsync` a name is not removed for good before its backup in DIR is durable.
#[test]
fn what_is_kept_is_synced() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("d")).expect("a directory");
        fs::create_dir_all(scratch.path().join("bak/gone/deep")).expect("a directory");
        plant(&to, &[("d/gone", "g"), ("gone/deep/f", "f")]);
        let options = TreeOptions { fsync: true, ..backing_up("../bak") };
        let (_, report) = where_calls_fail(&[libc::SYS_fsync], libc::EPERM, || copy(&from, &to, &options, is_local));
        assert!(report.figures.failed > 0, "{report:?}");
        assert!(to.join("d/gone").exists() && to.join("gone/deep").exists());
        let (_, report) = copy(&from, &to, &options, is_local);
        assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
        assert_eq!(texts(&scratch.path().join("bak")), owned(&[("d/gone", "g"), ("gone/deep/f", "f")]));
        assert!(!to.join("d/gone").exists() && !to.join("gone").exists());
    }
}

/// The mode of a file may keep this user from opening it, before or after it is set. As root may open any file, opening
/// fails in another way here.
#[test]
fn a_mode_that_is_set_is_synced_whether_or_not_the_file_can_be_opened() {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let options = TreeOptions { fsync: true, owner: false, ..sync() };
    for can_be_opened in [false, true] {
        let scratch = scratch();
        let file = scratch.path().join("f");
        fs::write(&file, "1").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
        let stat = fs::metadata(&file).expect("it");
        let modified = Time { seconds: stat.mtime(), nanoseconds: stat.mtime_nsec() as u32 };
        let metadata = Metadata { mode: 0o200, modified, ..Metadata::ZERO };
        let records = [Record::Listed { name: b"f", metadata, size: 1 }, Record::End { failures: 0 }];
        let run = || {
            if !can_be_opened {
                fail_where(libc::SYS_openat, (2, u64::from(flags.bits())), libc::EACCES);
            }
            taken(&options, scratch.path(), &records)
        };
        let report = match can_be_opened {
            true => where_calls_fail(&[libc::SYS_syncfs], libc::EPERM, run),
            false => std::thread::scope(|scope| scope.spawn(run).join().expect("its end")),
        };
        let report = report.expect("a tree");
        assert_eq!(report.figures.failed, 0, "{can_be_opened}: {:?}", report.failures);
        assert_eq!(fs::metadata(&file).expect("it").mode() & 0o7777, 0o200, "{can_be_opened}");
    }
}

/// The sender may turn out to be unable to read what is to replace a directory.
#[test]
fn a_directory_stays_until_its_successor_is_whole() {
    let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
    let root = Record::Directory { name: b"root", metadata: Metadata { mode: 0o755, ..metadata } };
    let listed = Record::Listed { name: b"x", metadata, size: 1 };
    let (file, wanted) = (|name| Record::File { name, metadata, data: b"1" }, Record::Wanted { number: 0 });
    let link = |target| Record::Symlink { name: b"x", metadata, target };
    let further = Record::HardLink { name: b"x", first: b"root/a" };
    for (entries, failures, is_replaced) in [
        (&[listed, Record::Gone { number: 0 }][..], 1, false),
        // A link to itself fails here.
        (&[link(b"../root/x")][..], 0, false),
        (&[listed, wanted, file(b"x")][..], 0, true),
        (&[link(b"a")][..], 0, true),
        (&[file(b"a"), further][..], 0, true),
    ] {
        let records = [&[root][..], entries, &[Record::Leave, Record::End { failures }]].concat();
        let at_once = TreeOptions { delete: true, ..sync() };
        for options in [TreeOptions { in_place: true, ..at_once.clone() }, at_once, deleting_after()] {
            let scratch = scratch();
            plant(scratch.path(), &[("root/x/d/f", "old")]);
            let report = taken(&options, scratch.path(), &records).expect("a tree");
            let x = scratch.path().join("root/x");
            assert_eq!(x.join("d/f").exists(), !is_replaced, "{entries:?}: {report:?}");
            assert_eq!(fs::symlink_metadata(&x).expect("it").is_dir(), !is_replaced, "{entries:?}: {report:?}");
            assert_eq!(report.figures.deleted, if is_replaced { 3 } else { 0 }, "{entries:?}: {report:?}");
        }
    }
}

#[test]
fn a_directory_of_which_some_would_stay_is_not_emptied() {
    for (is_local, dry_run) in [(true, false), (false, false), (true, true), (false, true)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        let all = [("x/a", "1"), ("x/d/kept.o", "2"), ("x/z", "3")];
        plant(&from, &[("x", "new")]);
        plant(&to, &all);
        let set_mode = |mode| fs::set_permissions(to.join("x/d"), fs::Permissions::from_mode(mode)).expect("ours");
        let rules = Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]);
        let options = TreeOptions { delete: true, dry_run, rules, ..sync() };
        let whole = TreeOptions { delete_excluded: true, ..options.clone() };
        let few = TreeOptions { max_delete: Some(4), ..whole.clone() };
        for (options, why) in [(options, "x/d/kept.o is excluded"), (few, "--max-delete still allows")] {
            // Its owner opens it up to look into it, except in a dry run.
            let mode = if dry_run { 0o755 } else { 0 };
            set_mode(mode);
            let (_, report) = copy(&from, &to, &options, is_local);
            assert!(report.figures.failed > 0 && report.figures.deleted == 0, "{report:?}");
            let Some(fact) = report.failures.first() else { panic!("{report:?}") };
            assert!(String::from_utf8_lossy(&fact.detail).contains(why), "{fact:?}");
            assert_eq!(fs::metadata(to.join("x/d")).expect("there").mode() & 0o7777, mode);
            set_mode(0o755);
            assert_eq!(texts(&to), owned(&all));
        }
        let (_, report) = copy(&from, &to, &whole, is_local);
        assert_eq!((report.figures.failed, report.figures.deleted), (0, 5), "{report:?}");
        assert_eq!(texts(&to) == owned(&[("x", "new")]), !dry_run);
    }
}

/// Otherwise the whole file would be sent first, and again by each run. As root may write anywhere, the answer of the
/// system is replaced here.
#[test]
fn a_directory_that_cannot_be_emptied_is_named_before_anything_is_sent() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(&from, &[("x", "new")]);
        plant(&to, &[("x/d/f", "old")]);
        let options = TreeOptions { delete: true, ..sync() };
        let run = || copy(&from, &to, &options, is_local);
        let (sent, report) = where_calls_fail(&[libc::SYS_faccessat2], libc::EACCES, run);
        assert_eq!((sent.figures.amount.bytes, report.figures.deleted), (0, 0), "{report:?}");
        let Some(fact) = report.failures.first() else { panic!("{report:?}") };
        assert!(String::from_utf8_lossy(&fact.detail).ends_with("x cannot be deleted"), "{fact:?}");
        assert_eq!(fact.errno, libc::EACCES);
        assert_eq!(texts(&to), owned(&[("x/d/f", "old")]));
    }
}

#[test]
fn a_link_and_a_directory_swap_their_names() {
    for (is_local, dry_run) in [(true, true), (false, true), (true, false), (false, false)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(&from, &[("latest/f", "new")]);
        symlink("latest", from.join("data")).expect("a link");
        plant(&to, &[("data/f", "old")]);
        symlink("data", to.join("latest")).expect("a link");
        let (_, report) = copy(&from, &to, &TreeOptions { delete: true, dry_run, ..sync() }, is_local);
        assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
        assert_eq!(texts(&to) == texts(&from), !dry_run);
    }
}

#[test]
fn what_cannot_be_kept_stays() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    // Of another length, because both may have been written within one tick of the clock.
    plant(&from, &[("d/a", "newer"), ("other", "new other")]);
    plant(&to, &[("d/a", "old"), ("d/gone", "gone"), ("other", "o")]);
    let fails = || copy(&from, &to, &backing_up("bak"), false);
    fs::create_dir(to.join("bak")).expect("a directory");
    let (_, report) = where_calls_fail(&[libc::SYS_mkdirat], libc::EINVAL, fails);
    assert!(report.figures.failed > 0, "{report:?}");
    assert_eq!(fs::read_to_string(to.join("d/a")).expect("it"), "old");
    assert!(to.join("d/gone").exists());
    // An earlier backup is in the way: a link that leads out, or a file. It stays, and the link is not followed.
    fs::create_dir(scratch.path().join("outside")).expect("a directory");
    symlink(scratch.path().join("outside"), to.join("bak/d")).expect("a link");
    plant(&to, &[("was-file/x", "x"), ("bak/was-file", "older")]);
    let (_, report) = copy(&from, &to, &backing_up("bak"), false);
    assert!(report.figures.failed >= 2, "{report:?}");
    assert_eq!(fs::read_dir(scratch.path().join("outside")).expect("it").count(), 0, "no link is followed");
    assert_eq!(fs::read_to_string(to.join("bak/was-file")).expect("it"), "older");
    assert!(to.join("bak/d").is_symlink());
    assert_eq!(fs::read_to_string(to.join("d/a")).expect("it"), "old");
    assert!(to.join("d/gone").exists() && to.join("was-file/x").exists());
}

/// If DIR was missing at the start, a link from the sender does not lead to it, and directories on its path are not
/// deleted.
#[test]
fn a_link_that_has_come_does_not_lead_to_the_backup_directory() {
    for (is_local, is_absolute) in [(true, true), (false, true), (true, false), (false, false)] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(&from, &[("zz/f", "new")]);
        plant(&to, &[("zz/f", "theirs"), ("kept/other", "o")]);
        fs::create_dir(scratch.path().join("outside")).expect("a directory");
        symlink(scratch.path().join("outside"), from.join("bak")).expect("a link");
        let options = |path: &str| match is_absolute {
            true => backing_up(to.join(path).to_str().expect("UTF-8")),
            false => backing_up(path),
        };
        let (_, report) = copy(&from, &to, &options("bak"), is_local);
        assert!(report.figures.failed > 0, "{report:?}");
        assert_eq!(fs::read_dir(scratch.path().join("outside")).expect("it").count(), 0, "no link is followed");
        fs::remove_file(from.join("bak")).expect("ours");
        plant(&to, &[("zz/f", "theirs"), ("kept/other", "o"), ("gone", "g")]);
        let (_, report) = copy(&from, &to, &options("kept/bak"), is_local);
        assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
        let kept = texts(&to.join("kept"));
        assert!(["other", "bak/gone", "bak/zz/f"].map(|path| kept.iter().any(|(name, _)| name == path)) == [true; 3]);
    }
}

#[test]
fn a_backup_directory_that_cannot_be_is_refused_at_once() {
    let scratch = scratch();
    plant(scratch.path(), &[("to/a", "a")]);
    symlink(".", scratch.path().join("to/link")).expect("a link");
    let names = || Names::Only(b"to".to_vec());
    let refused = |directory: &str| {
        let destination = Destination { options: backing_up(directory), names: names(), ..Destination::default() };
        TreeSink::new(scratch.path(), destination, Box::new(|_| {})).err().expect("refused")
    };
    assert!(String::from_utf8_lossy(&refused(".").detail).contains("DST itself"));
    assert!(refused("link/bak").errno != 0, "no link is followed");
    let absolute = scratch.path().join("to/link/bak");
    assert!(refused(absolute.to_str().expect("UTF-8")).errno != 0, "no link in DST is followed");
    let other = TempDir::new_in("/dev/shm").expect("a directory");
    let is_other = fs::metadata(other.path()).expect("it").dev() != fs::metadata(scratch.path()).expect("it").dev();
    let elsewhere = if is_other { other.path() } else { Path::new("/proc") };
    let fact = refused(elsewhere.join("new").to_str().expect("UTF-8"));
    assert!(String::from_utf8_lossy(&fact.detail).contains("file system"), "{fact:?}");
}

fn deleting_after() -> TreeOptions {
    let mut options = TreeOptions { delete: true, delete_after: true, ..sync() };
    options.generations.session.is_last = true;
    options
}

#[test]
fn deletion_at_the_end_leaves_what_deletion_at_once_leaves() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        let mut maker = Maker(7);
        fs::create_dir(&from).expect("a directory");
        for name in 0..12 {
            maker.make(&from.join(format!("n{name}")), 3);
        }
        let options = deleting_after();
        for round in 0..6 {
            let (sent, report) = copy(&from, &to, &options, is_local);
            let failed = report.figures.failed + sent.figures.failed;
            assert_eq!(failed, 0, "{:?} {:?}", report.failures, sent.failures);
            assert_eq!(picture(&from), picture(&to), "round {round}");
            maker.change(&from);
        }
    }
}

/// If a single file could not be copied, nothing is deleted anywhere. Excluded and further entries stay in any case.
#[test]
fn deletion_at_the_end_needs_all_to_be_copied() {
    let scratch = scratch();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    plant(&from, &[("a/kept", "1"), ("z/linked", "changed")]);
    plant(&to, &[("a/gone", "1"), ("a/gone.o", "1"), ("z/linked", "1"), ("gone/deep/file", "1")]);
    fs::hard_link(to.join("z/linked"), scratch.path().join("other")).expect("a link");
    let exclude = Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]);
    let options = TreeOptions { in_place: true, rules: exclude, ..deleting_after() };
    let (_, report) = copy(&from, &to, &options, false);
    assert_eq!((report.figures.deleted, report.figures.failed), (0, 2), "{:?}", report.failures);
    assert!(to.join("a/gone").exists() && to.join("gone/deep/file").exists() && to.join("a/kept").exists());
    fs::remove_file(scratch.path().join("other")).expect("ours");
    // As if another source had not been found.
    let mut not_all = options.clone();
    not_all.generations.session.is_last = false;
    let (_, report) = copy(&from, &to, &not_all, false);
    assert_eq!((report.figures.deleted, report.figures.failed), (0, 1), "{:?}", report.failures);
    let few = TreeOptions { max_delete: Some(1), ..options.clone() };
    let (_, report) = copy(&from, &to, &few, false);
    assert_eq!(report.figures.deleted, 1, "{:?}", report.failures);
    let (_, report) = copy(&from, &to, &options, false);
    assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
    assert!(!to.join("a/gone").exists() && !to.join("gone").exists() && to.join("a/gone.o").exists());
}

/// Returns paths below a directory that a watch has seen touched.
fn touched(paths: &[&str]) -> Only {
    let paths = paths.iter().map(|path| [path.as_bytes(), b"/"].concat().into()).collect();
    Only { paths, recursive: false, is_watched: true }
}

/// An entry has gone since its directory was read. With a watch, the next event reports that. Otherwise a line
/// names it, and it is a failure only if the user has named the entry.
#[test]
fn what_goes_while_it_is_looked_at_is_the_next_event() {
    let paths = ["d/a", "d/b", "d/c"].map(|path| path.as_bytes().to_vec().into()).to_vec();
    let named = Only { paths, ..Only::default() };
    for (only, failed, told) in [(Some(touched(&["", "d"])), 0, 0), (None, 0, 1), (Some(named), 1, 0)] {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        plant(scratch.path(), &[("from/f", "f")]);
        copy(&at("from"), &at("to"), &sync(), false);
        plant(scratch.path(), &[("from/d/a", "a"), ("from/d/b", "b"), ("from/d/c", "c")]);
        let gone = at("from/d/b");
        hook::set_before_read(Some(Box::new(move |name| {
            if name == b"a" {
                fs::remove_file(&gone).expect("it");
            }
        })));
        let root = Root { only, ..Root::new(at("from"), "root") };
        let (sent, report) = copy_root(root, &at("to"), &sync(), false);
        hook::set_before_read(None);
        assert_eq!((sent.figures.failed, report.expect("a copy").figures.failed), (failed, 0), "{:?}", sent.failures);
        assert_eq!(sent.without.len(), told, "{:?}", sent.without);
        assert!(at("to/d/a").exists() && !at("to/d/b").exists() && at("to/d/c").exists());
    }
}

/// What DST has of it stays: the source may have it under another name by now, which has not come. Nothing else stays
/// for its sake.
#[test]
fn what_disappears_keeps_nothing_but_its_copy() {
    let delete = TreeOptions { delete: true, ..sync() };
    for options in [delete, deleting_after()] {
        let scratch = scratch();
        let at = |name: &str| scratch.path().join(name);
        plant(scratch.path(), &[("from/a", "new a"), ("from/b", "new b"), ("from/d/e", "e")]);
        ["from/c", "from/z"].iter().for_each(|name| fs::hard_link(at("from/b"), at(name)).expect("a link"));
        plant(scratch.path(), &[("to/a", "old"), ("to/b", "old"), ("to/stale", "s"), ("to/d/stale", "s")]);
        let gone = at("from/b");
        let (sent, report) = copy_meanwhile(&at("from/a"), &at("to/a"), &options, move |_| {
            let _ = fs::remove_file(&gone);
        });
        assert_eq!((sent.figures.failed, report.figures.failed, report.figures.deleted), (0, 0, 2), "{report:?}");
        assert_eq!(sent.without.len(), 1, "{:?}", sent.without);
        let expected = [("a", "new a"), ("b", "old"), ("c", "new b"), ("d/e", "e"), ("z", "new b")];
        assert_eq!(texts(&at("to")), owned(&expected));
    }
}

#[test]
fn a_generation_is_whole_without_what_has_disappeared() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    plant(scratch.path(), &[("from/a", "a"), ("from/b", "b")]);
    fs::create_dir(at("to")).expect("a directory");
    let session = Session { is_dst: true, is_last: true, ..Session::default() };
    let generations = Generations { snapshot: Some(b"one".to_vec().into()), session, ..Generations::default() };
    let gone = at("from/b");
    let options = TreeOptions { generations, ..sync() };
    let (sent, report) = copy_meanwhile(&at("from/a"), &at("to/one/a"), &options, move |_| {
        let _ = fs::remove_file(&gone);
    });
    assert_eq!((sent.figures.failed, sent.without.len(), report.figures.failed), (0, 1, 0), "{report:?}");
    assert_eq!(texts(&at("to/one")), owned(&[("a", "a")]));
    assert_eq!(fs::read_link(at("to/latest")).expect("a link"), Path::new("one"));
}

#[test]
fn what_a_watch_has_seen_touched_may_be_anything_by_now() {
    for is_local in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        let before = [("from/a/f", "a"), ("from/b/sub/f", "b"), ("from/c/sub/f", "c"), ("from/left/out/f", "left")];
        plant(scratch.path(), &before);
        plant(scratch.path(), &[("out/sub/secret", "secret")]);
        let options = TreeOptions { delete: true, ..sync() };
        copy(&at("from"), &at("to"), &options, is_local);
        ["from/a", "from/b/sub", "from/c"].iter().for_each(|name| fs::remove_dir_all(at(name)).expect("removed"));
        symlink(at("out"), at("from/a")).expect("a link");
        plant(scratch.path(), &[("from/c", "no directory"), ("from/left/out/f", "changed")]);
        let only = touched(&["", "a", "a/sub", "b", "b/sub", "c", "c/sub", "left", "left/out"]);
        let rules = Rules(vec![Rule { pattern: b"left".to_vec().into(), is_include: false }]);
        let root = Root { only: Some(only), ..Root::new(at("from"), "root") };
        let (sent, report) = copy_root(root, &at("to"), &TreeOptions { rules, ..options }, is_local);
        let report = report.expect("a copy");
        assert_eq!((sent.figures.failed, report.figures.failed), (0, 0), "{:?} {:?}", sent.failures, report.failures);
        assert_eq!(fs::read_link(at("to/a")).expect("a link, not what it leads to"), at("out"));
        assert!(at("to/b").is_dir() && !at("to/b/sub").exists());
        assert_eq!(fs::read_to_string(at("to/c")).expect("a file"), "no directory");
        assert_eq!(fs::read_to_string(at("to/left/out/f")).expect("there"), "left", "it is excluded");
    }
}

/// Directories that were not touched come without contents. This is no reason to leave them out, nor to keep entries
/// beside them.
#[test]
fn directories_that_a_watch_has_not_seen_touched_are_pruned_as_ever() {
    for is_local in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        let before = [("from/a/f", "a"), ("from/b/in/g", "b"), ("from/left/only.o", "o"), ("from/top", "top")];
        plant(scratch.path(), &before);
        fs::create_dir_all(at("from/empty/in/it")).expect("directories");
        let rules = Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]);
        let options = TreeOptions { delete: true, prune_empty_dirs: true, rules, ..sync() };
        let all = [("a/f", "a"), ("b/in/g", "b"), ("top", "top")];
        copy(&at("from"), &at("to"), &options, is_local);
        assert_eq!(texts(&at("to")), owned(&all));
        let watched = |paths: &[&str]| {
            let root = Root { only: Some(touched(paths)), ..Root::new(at("from"), "root") };
            let (sent, report) = copy_root(root, &at("to"), &options, is_local);
            assert_eq!((sent.figures.failed, report.expect("a copy").figures.failed), (0, 0));
        };
        fs::remove_file(at("from/top")).expect("removed");
        watched(&[""]);
        assert_eq!(texts(&at("to")), owned(&all[..2]));
        assert!(!at("to/empty").exists() && !at("to/left").exists());
        fs::remove_file(at("from/a/f")).expect("removed");
        watched(&["", "a"]);
        assert_eq!(texts(&at("to")), owned(&all[1..2]));
        assert!(!at("to/a").exists());
    }
}

/// What is on another file system is passed over, so it is not known to be empty. What DST has there stays, and nothing
/// else.
#[test]
fn what_is_passed_over_is_kept_but_not_what_is_beside_it() {
    for (is_local, is_watched) in [(true, false), (false, false), (true, true), (false, true)] {
        let scratch = scratch();
        let at = |name: &str| scratch.path().join(name);
        plant(scratch.path(), &[("from/f", "f"), ("to/z", "z"), ("to/m/keep", "m"), ("to/p/m/keep", "p")]);
        fs::create_dir(at("from/p")).expect("a directory");
        ["from/m", "from/p/m"].iter().for_each(|name| symlink("/proc", at(name)).expect("a link"));
        let skips = TreeOptions { one_file_system: true, copy_dirlinks: true, mode: false, ..sync() };
        let options = TreeOptions { delete: true, prune_empty_dirs: true, ..skips };
        let root = Root { only: is_watched.then(|| touched(&[""])), ..Root::new(at("from"), "root") };
        let (sent, report) = copy_root(root, &at("to"), &options, is_local);
        let report = report.expect("a copy");
        assert_eq!((sent.figures.failed, report.figures.failed), (0, 0), "{:?} {:?}", sent.failures, report.failures);
        let kept = [("f", "f"), ("m/keep", "m"), ("p/m/keep", "p")];
        assert_eq!(texts(&at("to")), owned(&kept), "{is_local} {is_watched}");
    }
}

fn listing(paths: &[&str], recursive: bool) -> Only {
    let paths = paths.iter().map(|path| path.as_bytes().to_vec().into()).collect();
    Only { paths, recursive, ..Only::default() }
}

/// Its disk may not be mounted.
#[test]
fn a_listed_directory_that_is_empty_empties_nothing_unasked() {
    let lists = [(&["disk"][..], true), (&["disk/"], false), (&["disk/", "f", "other"], true), (&["", "disk"], true)];
    let modes = [(true, false), (false, false), (true, true), (false, true)];
    for ((paths, recursive), (is_local, delete_after)) in
        lists.into_iter().flat_map(|list| modes.map(|mode| (list, mode)))
    {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(&from, &[("f", "f"), ("other/f", "f")]);
        fs::create_dir(from.join("disk")).expect("a directory");
        plant(&to, &[("disk/1", "1"), ("disk/d/2", "2"), ("other/f", "f")]);
        let run = |dry_run, force_empty| {
            let only = listing(paths, recursive);
            let keeps_root = !only.is_root();
            let options = TreeOptions { keeps_root, delete_after, dry_run, force_empty, ..deleting_after() };
            let root = Root { only: Some(only), ..Root::new(&from, "root") };
            copy_root(root, &to, &options, is_local).1.expect("a copy")
        };
        for dry_run in [true, false] {
            let report = run(dry_run, false);
            let [fact] = &report.failures[..] else { panic!("{paths:?}: {report:?}") };
            let why = b"was not emptied: the source is empty";
            assert!(fact.path.ends_with(b"to/disk") && fact.detail.starts_with(why), "{paths:?}: {report:?}");
            assert_eq!(report.figures.deleted, 0, "{paths:?}: {report:?}");
            assert!(to.join("disk/1").exists() && to.join("disk/d/2").exists(), "{paths:?}");
        }
        let report = run(false, true);
        assert_eq!(report.figures.failed, 0, "{paths:?}: {report:?}");
        assert_eq!(fs::read_dir(to.join("disk")).expect("it").count(), 0, "{paths:?}");
    }
}

#[test]
fn latest_is_not_switched_to_what_an_empty_listed_directory_makes() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        plant(&from, &[("disk/1", "1"), ("other/f", "f")]);
        fs::create_dir(&to).expect("a directory");
        let run = |name: &str, force_empty| {
            let mut options = TreeOptions { keeps_root: true, force_empty, ..sync() };
            options.generations.snapshot = Some(name.as_bytes().to_vec().into());
            options.generations.session = Session { is_dst: true, is_last: true, ..Session::default() };
            let root = Root { only: Some(listing(&["disk", "other"], true)), ..Root::new(&from, "root") };
            let report = copy_root(root, &to.join(name), &options, is_local).1.expect("a copy");
            (report, fs::read_link(to.join("latest")).expect("a link").into_os_string())
        };
        let (report, latest) = run("one", false);
        assert_eq!((report.figures.failed, latest), (0, "one".into()), "{report:?}");
        fs::remove_file(from.join("disk/1")).expect("it");
        let (report, latest) = run("two", false);
        let [fact] = &report.failures[..] else { panic!("{report:?}") };
        assert!(fact.path == b"latest/disk" && fact.detail.starts_with(b"was not emptied: "), "{report:?}");
        assert_eq!(latest, "one");
        let (report, latest) = run("two", true);
        assert_eq!((report.figures.failed, latest), (0, "two".into()), "{report:?}");
    }
}

/// An older sender does not tell which directories are sources, and what it has sent is done as ever.
#[test]
fn what_may_have_come_from_an_empty_source_stays() {
    let metadata = Metadata { mode: 0o755, ..Metadata::ZERO };
    let [listed, merged] = [&b"\x08\0\x01\x01\0\0"[..], b"\x08\0\x01\x01\0\x01"]
        .map(|source| Metadata { extensions: Extensions::new(source), ..metadata });
    for (root, below, force_empty, kept) in [
        (metadata, metadata, false, [false, false]),
        (metadata, listed, false, [false, true]),
        (merged, metadata, false, [true, true]),
        (metadata, listed, true, [false, false]),
        (merged, metadata, true, [false, false]),
    ] {
        let scratch = scratch();
        plant(scratch.path(), &[("root/old", "1"), ("root/d/old", "2")]);
        let directory = |name, metadata| Record::Directory { name, metadata };
        let (leave, end) = (Record::Leave, Record::End { failures: 0 });
        let records = [directory(b"root", root), directory(b"d", below), leave, leave, end];
        let options = TreeOptions { delete: true, force_empty, ..sync() };
        let report = taken(&options, scratch.path(), &records).expect("a tree");
        assert_eq!(["root/old", "root/d/old"].map(|name| scratch.path().join(name).exists()), kept, "{report:?}");
        assert_eq!(report.figures.failed, kept.iter().filter(|&&is_kept| is_kept).count() as u64, "{report:?}");
        assert!(report.failures.iter().all(|fact| fact.detail.starts_with(b"was not emptied: ")), "{report:?}");
    }
}

/// A line's delay is paid once, and not for each directory.
#[test]
fn directories_are_listed_before_any_answer_has_come() {
    const DIRECTORIES: usize = 200;
    let scratch = scratch();
    for number in 0..DIRECTORIES {
        plant(&scratch.path().join(number.to_string()), &[("f", "1")]);
    }
    let roots = vec![Root::new(scratch.path(), "root")];
    let source = TreeSource::new(roots, PART_BYTES, sync(), Arc::default()).expect("a source").local();
    let (mut target, mut listed) = (vec![0; PART_BYTES], 0);
    // Within a host a source that has to wait says so.
    while let Next::Part(part) = source.next(&mut target, PART_BYTES, &Tally::default()) {
        let mut records = &target[..part.length];
        while let Some(record) = Record::decode(&mut records).expect("records") {
            listed += usize::from(matches!(record, Record::Listed { .. }));
        }
    }
    assert_eq!(listed, DIRECTORIES);
}

/// An honest sender says that more may be there. What is deleted below the top is its word in any case.
#[test]
fn beside_what_is_listed_nothing_is_deleted_whatever_the_sender_says() {
    let metadata = Metadata { mode: 0o755, ..Metadata::ZERO };
    let root = Record::Directory { name: b"root", metadata };
    let file = Record::File { name: b"f", metadata, data: b"1" };
    let records = [root, file, Record::Leave, Record::End { failures: 0 }];
    for (listed, is_kept) in [(Some(Listed::Part), true), (Some(Listed::Root), false), (None, false)] {
        for options in [TreeOptions { delete: true, ..sync() }, deleting_after()] {
            let scratch = scratch();
            plant(scratch.path(), &[("root/old", "1"), ("root/d/old", "2")]);
            let report = taken(&TreeOptions { listed, ..options }, scratch.path(), &records).expect("a tree");
            assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
            let are_there = ["root/old", "root/d/old"].map(|name| scratch.path().join(name).exists());
            assert_eq!(are_there, [is_kept; 2], "{listed:?}");
        }
    }
}

#[test]
fn what_an_interrupted_copy_has_left_keeps_nothing_beside_it() {
    for is_local in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        plant(scratch.path(), &[("from/f", "f"), ("to/f", "f"), ("to/stale", "s")]);
        fs::write(scratch.path().join("from").join(name_beside(b"g", PARTIAL)), "half").expect("a file");
        let (sent, report) = copy(
            &scratch.path().join("from"),
            &scratch.path().join("to"),
            &TreeOptions { delete: true, ..sync() },
            is_local,
        );
        assert_eq!((sent.figures.failed, report.figures.failed), (0, 0));
        assert_eq!(texts(&scratch.path().join("to")), owned(&[("f", "f")]));
    }
}

/// The entry under the first name may then be anything, and is not a name of the source's entry.
#[test]
fn a_further_name_of_what_may_have_been_left_is_refused_but_of_a_file() {
    let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
    let directory = Record::Directory { name: b"root", metadata: Metadata { mode: 0o755, ..metadata } };
    let link = Record::Symlink { name: b"a", metadata, target: b"source" };
    let further = Record::HardLink { name: b"b", first: b"root/a" };
    for (ignore_existing, existing) in [(false, false), (true, false), (false, true)] {
        let scratch = scratch();
        fs::create_dir(scratch.path().join("root")).expect("a directory");
        symlink("there", scratch.path().join("root/a")).expect("a link");
        symlink("other", scratch.path().join("root/b")).expect("a link");
        let options = TreeOptions { ignore_existing, existing, ..sync() };
        let records = [directory, link, further, Record::Leave, Record::End { failures: 0 }];
        let report = taken(&options, scratch.path(), &records).expect("a tree");
        let is_refused = ignore_existing || existing;
        assert_eq!(report.figures.failed == 1, is_refused, "{:?}", report.failures);
        let target = fs::read_link(scratch.path().join("root/b")).expect("a link");
        assert_eq!(target == Path::new("other"), is_refused, "{}", target.display());
    }
}
