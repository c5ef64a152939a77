//! Owners, modes and attributes, with `--sync`: what is set is what is compared.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{XattrFlags, lsetxattr};

use super::sync_tests::{copy, copy_as_dst, scratch, sync};
use crate::fs::close::tests::where_calls_fail;
use crate::not_run::{not_run, partly_run};
use crate::options::TreeOptions;

/// Variable that names the place of a test that is run as another user.
const PLACE: &str = "RD_TEST_PLACE_OF_RIGHTS";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As with rsync, a time that counts as the same stays.
#[test]
fn what_differs_in_its_mode_alone_keeps_a_time_within_the_window() {
    for is_local in [true, false] {
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        for (top, mode, seconds) in [(&from, 0o755, 1_000_000_001), (&to, 0o700, 1_000_000_000)] {
            fs::create_dir_all(top.join("d")).expect("directories");
            fs::write(top.join("f"), "contents").expect("a file");
            for name in ["f", "d"] {
                let opened = fs::File::open(top.join(name)).expect("it");
                opened.set_permissions(fs::Permissions::from_mode(mode)).expect("ours");
                opened.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("ours");
            }
        }
        for (modify_window, seconds) in [(2, 1_000_000_000), (0, 1_000_000_001)] {
            copy(&from, &to, &TreeOptions { modify_window, ..sync() }, is_local);
            for name in ["f", "d"] {
                let stat = fs::metadata(to.join(name)).expect("there");
                assert_eq!((stat.mode() & 0o777, stat.mtime()), (0o755, seconds), "{name}");
            }
        }
    }
}

/// As with rsync -rt and --chown.
#[test]
fn owner_and_group_are_decided_each_by_itself() {
    if !is_root() {
        return not_run("needs root");
    }
    // The options, the owner of a new file, and the owner of a file of 5:6 that is otherwise the same.
    let cases = [
        (false, None, (0, 0), (5, 6)),
        (false, Some(":77"), (0, 77), (5, 77)),
        (false, Some("55"), (55, 0), (55, 6)),
        (false, Some("55:77"), (55, 77), (55, 77)),
        (true, None, (12, 34), (12, 34)),
        (true, Some(":77"), (12, 77), (12, 77)),
        (true, Some("55"), (55, 34), (55, 34)),
    ];
    for is_local in [true, false] {
        for (owner, asked, new, kept) in cases {
            let what = format!("owner {owner}, --chown {asked:?}, within a host {is_local}");
            let scratch = scratch();
            let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
            fs::create_dir_all(from.join("d")).expect("directories");
            fs::write(from.join("f"), "contents").expect("a file");
            std::os::unix::fs::symlink("nowhere", from.join("l")).expect("a link");
            for name in ["f", "d", "l"] {
                std::os::unix::fs::lchown(from.join(name), Some(12), Some(34)).expect("another's");
            }
            let options = TreeOptions { owner, chown: asked.map(str::to_owned), ..sync() };
            let has = |expected: (u32, u32), when: &str| {
                for name in ["f", "d", "l"] {
                    let stat = fs::symlink_metadata(to.join(name)).expect("there");
                    assert_eq!((stat.uid(), stat.gid()), expected, "{what}: {name}, {when}");
                }
            };
            assert_eq!(copy(&from, &to, &options, is_local).1.figures.failed, 0, "{what}");
            has(new, "new");
            for name in ["f", "d", "l"] {
                std::os::unix::fs::lchown(to.join(name), Some(5), Some(6)).expect("another's");
            }
            let (sent, report) = copy(&from, &to, &options, is_local);
            assert_eq!((sent.figures.amount.bytes, report.files, report.figures.failed), (0, 0, 0), "{what}");
            has(kept, "kept");
            let before = changed(&to.join("f"));
            copy(&from, &to, &options, is_local);
            assert_eq!(changed(&to.join("f")), before, "{what}: nothing is set twice");
        }
    }
}

fn changed(path: &Path) -> (i64, i64) {
    let stat = fs::symlink_metadata(path).expect("there");
    (stat.ctime(), stat.ctime_nsec())
}

/// Checks that nothing is set again, and that an earlier generation is linked to.
fn is_settled(top: &Path, options: &TreeOptions, is_local: bool, what: &str) {
    let (from, to) = (top.join("from"), top.join(format!("to-{is_local}")));
    assert_eq!(copy(&from, &to, options, is_local).1.figures.failed, 0, "{what}");
    let before = ["", "f", "d"].map(|name| changed(&to.join(name)));
    copy(&from, &to, options, is_local);
    assert_eq!(["", "f", "d"].map(|name| changed(&to.join(name))), before, "{what}: nothing differs");
    let mut options = options.clone();
    options.generations.link_dest = vec![format!("../to-{is_local}").into_bytes().into()];
    let next = top.join(format!("next-{is_local}"));
    copy_as_dst(&from, &next, &options, is_local);
    let inode = |path: &Path| fs::metadata(path.join("f")).expect("there").ino();
    assert_eq!(inode(&next), inode(&to), "{what}: it is linked");
}

/// Makes a file with setuid and setgid, and a directory with setgid.
fn make(from: &Path) {
    fs::create_dir_all(from.join("d")).expect("directories");
    fs::write(from.join("f"), "contents").expect("a file");
    for (name, mode) in [("f", 0o6755), ("d", 0o2755)] {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
}

#[test]
fn set_id_bits_that_are_left_out_do_not_differ() {
    let without_owner = TreeOptions { owner: false, ..sync() };
    let chown = TreeOptions { chown: Some(":77".to_owned()), ..sync() };
    for (what, options) in [("without owner", without_owner), ("given away", chown)] {
        if options.chown.is_some() && !is_root() {
            partly_run("needs root, for --chown");
            continue;
        }
        for is_local in [true, false] {
            let scratch = scratch();
            make(&scratch.path().join("from"));
            is_settled(scratch.path(), &options, is_local, what);
            // Setgid on a directory lends no rights, so it stays, as with rsync.
            for (name, expected) in [("f", 0o755), ("d", 0o2755)] {
                let mode = fs::metadata(scratch.path().join(format!("to-{is_local}/{name}"))).expect("there").mode();
                assert_eq!(mode & 0o7777, expected, "{what}: {name}");
            }
        }
    }
}

#[test]
fn what_only_root_may_set_does_not_differ_for_others() {
    if std::env::var_os(PLACE).is_some() {
        return;
    }
    if !is_root() {
        return not_run("needs root");
    }
    let scratch = scratch();
    let from = scratch.path().join("from");
    make(&from);
    chown(from.join("f"), Some(12), Some(34)).expect("another's");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    if let Err(error) = lsetxattr(from.join("f"), "security.test", b"1", XattrFlags::empty()) {
        return not_run(format_args!("no such attribute: {error}"));
    }
    let output = Command::new(std::env::current_exe().expect("a name"))
        .args(["--exact", "tree::rights_tests::as_another_user"])
        .env(PLACE, scratch.path())
        .env_remove("RD_NOT_RUN")
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => not_run(error),
        Err(error) => panic!("{error}"),
    }
}

/// The part of the test above that runs as another user.
#[test]
fn as_another_user() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    for is_local in [true, false] {
        is_settled(Path::new(&place), &sync(), is_local, "as another user");
    }
}

/// Returns an access ACL: the owner, this user, the group, the mask and others.
fn acl(mask: u16, others: u16) -> Vec<u8> {
    let user = rustix::process::geteuid().as_raw();
    let entries = [(1_u16, 7, u32::MAX), (2, 7, user), (4, 5, u32::MAX), (16, mask, u32::MAX), (32, others, u32::MAX)];
    let entries = entries
        .iter()
        .flat_map(|(tag, may, id)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Rights that --chmod takes away are taken from the ACL as well, so that nothing differs after that.
#[test]
fn an_acl_that_chmod_changes_does_not_differ() {
    const NAME: &str = "system.posix_acl_access";
    for is_local in [true, false] {
        let scratch = scratch();
        let from = scratch.path().join("from");
        make(&from);
        for name in ["f", "d"] {
            if let Err(error) = lsetxattr(from.join(name), NAME, &acl(7, 6), XattrFlags::empty()) {
                return not_run(format_args!("no ACLs: {error}"));
            }
            let mode = fs::metadata(from.join(name)).expect("it").mode() & 0o777;
            assert_eq!(mode, 0o776, "the group's part is the mask");
        }
        let options = TreeOptions { chmod: vec!["go-w".to_owned()], ..sync() };
        is_settled(scratch.path(), &options, is_local, "with an ACL");
        for name in ["f", "d"] {
            let path = scratch.path().join(format!("to-{is_local}/{name}"));
            let mut there = [0_u8; 64];
            let length = rustix::fs::lgetxattr(&path, NAME, &mut there).expect("an ACL");
            assert_eq!(there[..length], acl(5, 4), "{name}");
            assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o754, "{name}");
        }
    }
}

/// Attributes that root sets are compared like any other, and so are the user's.
#[test]
fn attributes_that_are_set_are_compared() {
    for (name, is_roots) in [("user.test", false), ("security.test", true)] {
        if is_roots && !is_root() {
            partly_run("needs root, for security.test");
            continue;
        }
        for is_local in [true, false] {
            let scratch = scratch();
            let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
            make(&from);
            copy(&from, &to, &sync(), is_local);
            if let Err(error) = lsetxattr(from.join("f"), name, b"1", XattrFlags::empty()) {
                return not_run(format_args!("no such attribute: {error}"));
            }
            copy(&from, &to, &sync(), is_local);
            let mut value = [0; 8];
            assert_eq!(rustix::fs::lgetxattr(to.join("f"), name, &mut value), Ok(1), "{name}");
            lsetxattr(to.join("f"), name, b"2", XattrFlags::empty()).expect("set");
            copy(&from, &to, &sync(), is_local);
            rustix::fs::lgetxattr(to.join("f"), name, &mut value).expect("there");
            assert_eq!(value[0], b'1', "{name}");
        }
    }
}

/// Otherwise each generation would be a full copy. Each thread finds out by one file what it cannot set.
#[test]
fn attributes_that_cannot_be_set_do_not_differ() {
    const FILES: usize = 64;
    let calls = [libc::SYS_setxattr, libc::SYS_fsetxattr];
    for (name, value, error, is_roots) in [
        ("user.test", b"1".to_vec(), libc::EOPNOTSUPP, false),
        ("system.posix_acl_access", acl(7, 6), libc::EOPNOTSUPP, false),
        ("security.test", b"1".to_vec(), libc::EPERM, true),
    ] {
        if is_roots && !is_root() {
            partly_run("needs root, for security.test");
            continue;
        }
        for is_local in [true, false] {
            let what = format!("{name}, within a host {is_local}");
            let scratch = scratch();
            let [from, to, next] = ["from", "to", "next"].map(|name| scratch.path().join(name));
            fs::create_dir(&from).expect("a directory");
            let files: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
            for file in &files {
                fs::write(from.join(file), file).expect("a file");
                if let Err(error) = lsetxattr(from.join(file), name, &value, XattrFlags::empty()) {
                    return partly_run(format_args!("no such attribute, {name}: {error}"));
                }
            }
            let mut options = sync();
            options.generations.link_dest = vec![b"../to".to_vec().into()];
            let reports = where_calls_fail(&calls, error, || {
                let (_, first) = copy(&from, &to, &sync(), is_local);
                [first, copy_as_dst(&from, &next, &options, is_local).1]
            });
            assert_eq!(reports.map(|report| report.figures.failed), [0, 0], "{what}");
            let inode = |top: &Path, file: &String| fs::metadata(top.join(file)).expect("there").ino();
            let linked = files.iter().filter(|file| inode(&to, file) == inode(&next, file)).count();
            assert!(linked > FILES / 2, "{what}: only {linked} of {FILES} are linked");
        }
    }
}

/// A program whose capabilities were revoked at the source must not keep them in the copy.
#[test]
fn file_capabilities_that_the_source_has_no_more_are_removed() {
    const NAME: &str = "security.capability";
    if !is_root() {
        return not_run("needs root");
    }
    // Revision 2, effective: CAP_NET_BIND_SERVICE.
    let mut value = [0; 20];
    value[..6].copy_from_slice(&[1, 0, 0, 2, 0, 4]);
    let read = |path: &Path| rustix::fs::lgetxattr(path, NAME, &mut [0; 64]);
    // The last one writes to the existing file.
    for (is_local, in_place) in [(true, false), (false, false), (false, true)] {
        let what = format!("within a host {is_local}, in place {in_place}");
        let scratch = scratch();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        let options = TreeOptions { in_place, ..sync() };
        make(&from);
        copy(&from, &to, &options, is_local);
        let [source, target] = [&from, &to].map(|top| top.join("f"));
        for path in [&source, &target] {
            if let Err(error) = lsetxattr(path, NAME, &value, XattrFlags::empty()) {
                return not_run(format_args!("no such attribute: {error}"));
            }
        }
        let before = changed(&target);
        copy(&from, &to, &options, is_local);
        assert_eq!((changed(&target), read(&target)), (before, Ok(20)), "{what}: nothing differs");
        rustix::fs::lremovexattr(&source, NAME).expect("ours");
        let (sent, report) = copy(&from, &to, &options, is_local);
        assert_eq!((sent.figures.amount.bytes, report.files, report.figures.failed), (0, 0, 0), "{what}");
        assert_eq!(read(&target), Err(rustix::io::Errno::NODATA), "{what}");
        let before = changed(&target);
        copy(&from, &to, &options, is_local);
        assert_eq!(changed(&target), before, "{what}: it is not removed twice");
        // Without the owner, the file may not get them, as it may not get setuid. Those of the source may be fewer by now.
        for (mode, left) in [(false, Ok(20)), (true, Err(rustix::io::Errno::NODATA))] {
            for path in [&source, &target] {
                lsetxattr(path, NAME, &value, XattrFlags::empty()).expect("as before");
            }
            copy(&from, &to, &TreeOptions { owner: false, mode, ..options.clone() }, is_local);
            assert_eq!(read(&target), left, "{what}: with mode {mode}");
        }
    }
}
