//! `--backup-dir`, walk and sink together.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sink::Report;
use super::sync_tests::{self, scratch, sync};
use crate::fs::close::tests::where_calls_fail;
use crate::fs::{WHOLE, name_beside};
use crate::options::{Generations, Session, TreeOptions};

fn options() -> TreeOptions {
    TreeOptions { delete: true, backup_dir: Some(b"../kept".to_vec().into()), ..sync() }
}

fn copy(top: &Path, options: &TreeOptions, is_local: bool) -> Report {
    let options = TreeOptions { contents: true, ..options.clone() };
    sync_tests::copy(&top.join("from"), &top.join("to"), &options, is_local).1
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().expect("one")).expect("directories");
    fs::write(path, text).expect("a file");
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// DIR may be made in DST when DST has its final time already.
#[test]
fn a_backup_in_dst_leaves_its_time() {
    for (is_local, is_deep) in [(true, true), (false, true), (true, false), (false, false)] {
        let scratch = scratch();
        let top = scratch.path();
        let name = if is_deep { "p/f" } else { "f" };
        write(top.join("from").join(name), "newer");
        write(top.join("to").join(name), "old");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::open(top.join("from")).and_then(|from| from.set_modified(time)).expect("ours");
        let options = TreeOptions { backup_dir: Some(b".bak".to_vec().into()), ..sync() };
        assert_eq!(copy(top, &options, is_local).figures.failed, 0);
        assert_eq!(read(top.join("to/.bak").join(name)), "old");
        assert_eq!(
            fs::metadata(top.join("to")).and_then(|to| to.modified()).expect("it"),
            time,
            "{is_local} {is_deep}"
        );
    }
}

#[test]
fn a_backup_of_an_earlier_copy_is_not_removed_for_a_directory() {
    for is_local in [true, false] {
        // An entry is deleted, or replaced, in a directory that was a file.
        for is_replaced in [false, true] {
            let scratch = scratch();
            let top = scratch.path();
            write(top.join("kept/x"), "precious");
            write(top.join("to/x/file"), "older");
            write(top.join("from/other"), "1");
            if is_replaced {
                write(top.join("from/x/file"), "new contents");
            }
            let report = copy(top, &options(), is_local);
            assert_eq!(report.figures.failed, 1, "{report:?}");
            let reason = String::from_utf8_lossy(&report.failures[0].detail);
            assert!(reason.contains("--backup-dir has a file"), "{reason}");
            assert_eq!(read(top.join("kept/x")), "precious");
            assert_eq!(read(top.join("to/x/file")), "older");
            assert_eq!(read(top.join("to/other")), "1");
            // Moved away, the backup is no longer in the way.
            fs::rename(top.join("kept/x"), top.join("moved")).expect("renamed");
            assert_eq!(copy(top, &options(), is_local).figures.failed, 0);
            assert_eq!(read(top.join("kept/x/file")), "older");
        }
    }
}

#[test]
fn a_directory_of_an_earlier_backup_is_named_where_it_is_in_the_way() {
    for is_local in [true, false] {
        let scratch = scratch();
        let top = scratch.path();
        write(top.join("kept/x/file"), "precious");
        write(top.join("to/x"), "older");
        write(top.join("from/x"), "new contents");
        let report = copy(top, &options(), is_local);
        let reason = String::from_utf8_lossy(&report.failures[0].detail);
        assert!(reason.contains("--backup-dir has a directory") && reason.contains("use another"), "{reason}");
        assert_eq!(
            (read(top.join("kept/x/file")), read(top.join("to/x"))),
            ("precious".to_owned(), "older".to_owned())
        );
        let other = TreeOptions { backup_dir: Some(b"../other".to_vec().into()), ..options() };
        assert_eq!(copy(top, &other, is_local).figures.failed, 0);
        assert_eq!(read(top.join("other/x")), "older");
    }
}

#[test]
fn the_newer_backup_takes_the_place_of_one_of_its_name() {
    for is_local in [true, false] {
        let scratch = scratch();
        let top = scratch.path();
        write(top.join("from/f"), "new");
        write(top.join("to/f"), "older");
        write(top.join("kept/f"), "oldest");
        assert_eq!(copy(top, &options(), is_local).figures.failed, 0);
        assert_eq!((read(top.join("kept/f")), read(top.join("to/f"))), ("older".to_owned(), "new".to_owned()));
    }
}

/// FUSE answers link(2) with ENOSYS if its server, such as that of sshfs, has no hard links.
#[test]
fn what_cannot_be_linked_is_moved_into_the_backup() {
    for (error, is_local) in [(libc::ENOSYS, true), (libc::ENOSYS, false), (libc::EPERM, false)] {
        let scratch = scratch();
        let top = scratch.path();
        write(top.join("from/f"), "newer");
        write(top.join("to/f"), "old");
        let report = where_calls_fail(&[libc::SYS_linkat], error, || copy(top, &options(), is_local));
        assert_eq!(report.figures.failed, 0, "{report:?}");
        assert_eq!((read(top.join("kept/f")), read(top.join("to/f"))), ("old".to_owned(), "newer".to_owned()));
    }
}

/// Where the file system makes no links, the old file is moved into the backup, and would then be missing in DST.
#[test]
fn what_no_link_can_replace_stays() {
    for is_local in [true, false] {
        let scratch = scratch();
        let top = scratch.path();
        write(top.join("from/f"), "newer");
        fs::hard_link(top.join("from/f"), top.join("from/g")).expect("a link");
        write(top.join("to/g"), "old");
        fs::create_dir(top.join("to").join(name_beside(b"g", WHOLE))).expect("where the link would be made");
        let report = copy(top, &options(), is_local);
        assert_eq!(report.figures.failed, 1, "{report:?}");
        assert_eq!((read(top.join("to/f")), read(top.join("to/g"))), ("newer".to_owned(), "old".to_owned()));
        assert!(!top.join("kept").exists());
    }
}

/// A deletion at the end makes DIR in a directory that is finished.
#[test]
fn a_backup_at_the_end_leaves_the_times_of_directories() {
    for (directory, is_local) in
        [(".kept", true), ("sub/deep/kept", true), ("./sub/kept", false), ("sub/../kept", false)]
    {
        let scratch = scratch();
        let top = scratch.path();
        write(top.join("to/sub/deep/gone"), "gone");
        fs::create_dir_all(top.join("from/sub/deep")).expect("directories");
        let times = ["sub/deep", "sub", "."].map(|name| {
            let opened = fs::File::open(top.join("from").join(name)).expect("a directory");
            opened.set_modified(std::time::UNIX_EPOCH).expect("ours");
            name
        });
        let session = Session { is_last: true, ..Session::default() };
        let generations = Generations { session, ..Generations::default() };
        let backup_dir = Some(directory.as_bytes().to_vec().into());
        let options = TreeOptions { delete_after: true, force_empty: true, backup_dir, generations, ..options() };
        assert_eq!(copy(top, &options, is_local).figures.failed, 0);
        assert_eq!(read(top.join("to").join(directory).join("sub/deep/gone")), "gone");
        for name in times {
            assert_eq!(fs::metadata(top.join("to").join(name)).expect("it").mtime(), 0, "{directory}: {name}");
        }
    }
}

/// Later changes of a moved file must not reach its backup. In place, the file has one name.
#[test]
fn a_moved_file_and_its_backup_are_two() {
    for (is_local, bytes) in [(true, 5_000), (false, 5_000), (true, 700_000), (false, 700_000)] {
        let scratch = scratch();
        let top = scratch.path();
        let text = "contents ".repeat(bytes / 9);
        write(top.join("from/old"), &text);
        let session = Session { is_last: true, ..Session::default() };
        let generations = Generations { find_moves: true, session, ..Generations::default() };
        let options = TreeOptions { delete_after: true, generations, ..options() };
        assert_eq!(copy(top, &options, is_local).figures.failed, 0);
        fs::rename(top.join("from/old"), top.join("from/new")).expect("renamed");
        let report = copy(top, &options, is_local);
        assert_eq!((report.figures.failed, report.figures.amount.bytes, report.figures.moved), (0, 0, 1), "{report:?}");
        assert!(read(top.join("to/new")) == text && read(top.join("kept/old")) == text);
        assert!(!top.join("to/old").exists());
        let stat = |path: &str| fs::metadata(top.join(path)).expect("there");
        assert_ne!(stat("to/new").ino(), stat("kept/old").ino(), "{is_local} {bytes}");
        assert_eq!((stat("to/new").nlink(), stat("kept/old").nlink()), (1, 1));
        fs::set_permissions(top.join("from/new"), fs::Permissions::from_mode(0o600)).expect("ours");
        copy(top, &options, is_local);
        assert_eq!((stat("to/new").mode() & 0o777, stat("kept/old").mode() & 0o777), (0o600, 0o644));
    }
}
