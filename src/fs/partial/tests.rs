use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use super::*;
use crate::control::names::without_privileges;
use crate::fs::close::tests::{fail_where, where_calls_fail};
use crate::fs::{UNFINISHED, name_beside};

fn directory(path: &Path) -> OwnedFd {
    openat(rustix::fs::CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("a directory")
}

#[test]
fn what_is_not_ours_alone_is_removed_and_not_written_to() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (other, name) = (scratch.path().join("other"), scratch.path().join("name"));
    let private = |path: &Path| {
        fs::write(path, "precious").expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
    };
    private(&other);
    let make: [(&str, &dyn Fn()); 6] = [
        ("a directory with something in it", &|| fs::create_dir_all(name.join("deep/er")).expect("directories")),
        ("another name of a file", &|| fs::hard_link(&other, &name).expect("a link")),
        ("a link", &|| symlink(&other, &name).expect("a link")),
        ("a link that leads nowhere", &|| symlink("nowhere", &name).expect("a link")),
        ("a file that others may read", &|| fs::write(&name, "x").expect("a file")),
        ("a FIFO", &|| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &name, FileType::Fifo, mode, 0).expect("a FIFO");
        }),
    ];
    for may_adopt in [false, true] {
        for (what, make) in make {
            make();
            let (file, was_there) = open(directory(scratch.path()), "name", may_adopt).expect(what);
            let stat = fstat(&file).expect("open");
            assert!(!was_there && stat.st_nlink == 1 && stat.st_size == 0, "{what}");
            assert_eq!(stat.st_mode, 0o100_600, "{what}");
            assert_eq!(
                open(directory(scratch.path()), "name", may_adopt).expect_err("locked"),
                Errno::BUSY.into(),
                "{what}"
            );
            assert_eq!(fs::read(&other).expect("untouched"), b"precious", "{what}");
            fs::remove_file(&name).expect("made");
        }
    }
    let (mine, _) = open(directory(scratch.path()), "name", false).expect("made");
    let is_mine = || is_named(directory(scratch.path()), "name", &mine);
    assert!(is_mine());
    fs::remove_file(&name).expect("made");
    assert!(!is_mine());
    private(&name);
    assert!(!is_mine(), "another's");
    assert!(open(directory(scratch.path()), "name", true).expect("left behind").1);
    assert!(!open(directory(scratch.path()), "name", false).expect("made anew").1);
    assert!(fs::read(&name).expect("made").is_empty());
}

#[test]
fn a_tree_is_gone_on_with_where_nobody_else_can_have_changed_it() {
    let scratch = tempfile::tempdir().expect("a directory");
    let name = scratch.path().join("name");
    let opened = || open_tree(directory(scratch.path()), "name");
    let chmod = |mode| fs::set_permissions(&name, fs::Permissions::from_mode(mode)).expect("ours");
    let first = opened().expect("made");
    assert!(!first.was_left && fstat(&first.fd).expect("open").st_mode & 0o777 == 0o700);
    fs::write(name.join("file"), "half").expect("a file");
    assert_eq!(opened().expect_err("locked"), Errno::BUSY.into());
    drop(first);
    assert!(opened().expect("left").was_left);
    assert!(name.join("file").exists());
    for mode in [0o750, 0o701] {
        chmod(mode);
        assert!(!opened().expect("made anew").was_left, "{mode:o}");
        assert!(!name.join("file").exists());
        fs::write(name.join("file"), "half").expect("a file");
    }
    // Entries of other kinds are removed, except a file that is being written.
    fs::remove_dir_all(&name).expect("ours");
    symlink(scratch.path(), &name).expect("a link");
    assert!(!opened().expect("made").was_left);
    fs::remove_dir(&name).expect("empty");
    let (held, _) = open(directory(scratch.path()), "name", false).expect("made");
    assert_eq!(opened().expect_err("locked"), Errno::BUSY.into());
    drop(held);
    assert!(!opened().expect("made").was_left);
}

/// A copy may have been killed when its directory had its final mode, but not yet its name.
#[test]
fn a_tree_that_is_closed_to_its_owner_is_gone_on_with() {
    let scratch = tempfile::tempdir().expect("a directory");
    let name = scratch.path().join("name");
    let opened = || without_privileges(|| open_tree(directory(scratch.path()), "name"));
    drop(opened().expect("made"));
    fs::write(name.join("file"), "half").expect("a file");
    for mode in [0o300, 0] {
        fs::set_permissions(&name, fs::Permissions::from_mode(mode)).expect("ours");
        assert!(opened().expect("left").was_left && name.join("file").exists());
    }
    // It may be anybody's, and stays as it is, where others may rename entries.
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    chmod(&name, 0);
    chmod(scratch.path(), 0o777);
    assert_eq!(opened().expect_err("not marked").error, Errno::ACCESS);
    assert_eq!(fs::metadata(&name).expect("it").permissions().mode() & 0o7777, 0);
    chmod(scratch.path(), 0o700);
    fs::set_permissions(&name, fs::Permissions::from_mode(0o300)).expect("ours");
    let make_way = || without_privileges(|| make_way(directory(scratch.path()).as_fd(), b"name"));
    assert_eq!((make_way(), name.exists()), (Ok(()), false));
}

/// It stays, and is not taken for one that another copy is making.
#[test]
fn a_tree_that_may_not_be_opened_is_told_as_what_it_is() {
    let scratch = tempfile::tempdir().expect("a directory");
    let name = scratch.path().join("name");
    fs::create_dir(&name).expect("a directory");
    let chmod = |mode| fs::set_permissions(&name, fs::Permissions::from_mode(mode)).expect("ours");
    let opened = || without_privileges(|| open_tree(directory(scratch.path()), "name").expect_err("closed"));
    let stale = || {
        fail_where(libc::SYS_openat, (2, u64::from((DIRECTORY | OFlags::LARGEFILE).bits())), libc::ESTALE);
        opened()
    };
    let stale = std::thread::scope(|scope| scope.spawn(stale).join()).expect("its end");
    assert_eq!(stale, Blocked { error: Errno::STALE, is_in_the_way: true, why: String::new() });
    if rustix::process::geteuid().is_root() {
        chmod(0o300);
        chown(&name, Some(12345), None).expect("root may");
        let blocked = opened();
        assert!(blocked.error == Errno::ACCESS && blocked.why.starts_with("it belongs to "), "{blocked:?}");
    }
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1, "no lock is left");
    chmod(0o700);
}

/// There an entry may be a directory that others could neither read nor remove by themselves.
#[test]
fn where_others_may_rename_entries_only_what_a_copy_has_made_is_its_own() {
    let own = rustix::process::geteuid();
    let foreign = own.is_root().then_some((0o755, Some(12345), true));
    let places = [(0o755, None, false), (0o1777, None, false), (0o777, None, true), (0o2775, None, true)];
    for (mode, owner, is_shared) in places.into_iter().chain(foreign) {
        let scratch = tempfile::tempdir().expect("a directory");
        let (top, name) = (directory(scratch.path()), scratch.path().join("name"));
        chown(scratch.path(), owner, None).expect("ours, or root may");
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        chmod(scratch.path(), mode);
        let plant = || {
            fs::create_dir(&name).expect("a directory");
            fs::write(name.join("file"), "precious").expect("a file");
        };
        let opened = || open_tree(&top, "name");
        for mode in [0o700, 0o755] {
            plant();
            chmod(&name, mode);
            if !is_shared {
                let was_left = opened().expect("a copy's").was_left;
                assert_eq!((was_left, name.join("file").exists()), (mode == 0o700, mode == 0o700));
                assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
                continue;
            }
            let blocked = Blocked { error: Errno::NOTEMPTY, is_in_the_way: true, why: NOT_MADE.to_owned() };
            assert_eq!(opened().expect_err("anybody's"), blocked);
            assert_eq!(open(&top, "name", true).expect_err("anybody's"), blocked);
            assert_eq!(make_way(top.as_fd(), b"name"), Err(Errno::NOTEMPTY));
            fs::remove_file(name.join("file")).expect("it stays");
            assert_eq!(opened().expect("empty").was_left, mode == 0o700);
            assert_eq!(fs::metadata(&name).expect("there").permissions().mode() & 0o1777, 0o1700);
            assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
        }
        let bits = || fs::metadata(&name).expect("there").permissions().mode() & 0o1777;
        let made = opened().expect("made");
        assert_eq!((made.was_left, bits()), (false, if is_shared { 0o1700 } else { 0o700 }));
        drop(made);
        fs::write(name.join("file"), "half").expect("a file");
        assert!(opened().expect("left").was_left && name.join("file").exists());
        // Also if the copy was killed while it removed it.
        drop(remove_files(&opened().expect("left").fd));
        fs::write(name.join("file"), "half").expect("a file");
        assert!(opened().expect("left").was_left);
        for (mode, expected) in [(0o1700, 0o700), (0o1755, 0o1755)] {
            chmod(&name, mode);
            unmark(&opened_by(&top));
            assert_eq!(bits(), expected, "the mode of the source stays");
        }
        chmod(&name, 0o1700);
        assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
        if !is_shared {
            continue;
        }
        // In a file system without the bit, a copy can be made, but not be gone on with.
        let without_marks = || {
            fail_where(libc::SYS_mkdirat, (2, 0o1700), libc::EPERM);
            // Also where the directory has got setgid.
            for mode in [0o1700, 0o3700] {
                fail_where(libc::SYS_fchmod, (1, mode), libc::EPERM);
            }
            assert!(!opened().expect("made").was_left);
        };
        std::thread::scope(|scope| scope.spawn(without_marks).join()).expect("its end");
        fs::write(name.join("file"), "half").expect("a file");
        assert_eq!(opened().expect_err("nothing shows whose it is").error, Errno::NOTEMPTY);
        // Where it cannot be found out whether modes are kept, that is the reason.
        let unprobed = || {
            let probe = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            fail_where(libc::SYS_openat, (2, u64::from((probe | OFlags::LARGEFILE).bits())), libc::EROFS);
            opened().expect_err("no probe")
        };
        let blocked = std::thread::scope(|scope| scope.spawn(unprobed).join()).expect("its end");
        assert_eq!((blocked.error, blocked.why), (Errno::ROFS, String::new()));
    }
}

fn opened_by(top: &OwnedFd) -> OwnedFd {
    open_directory(top, c"name").expect("a directory")
}

/// Anybody who may make directories may give them these names.
#[test]
fn a_directory_under_the_name_of_a_lock_or_mark_is_not_emptied() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = directory(scratch.path());
    let mut chain = vec!["name".to_owned()];
    for above in 0..2000 {
        chain.push(lock_of(chain[above].as_bytes()));
    }
    let calls: [fn(&OwnedFd) -> bool; 3] = [
        |top| open_tree(top, "name").is_ok(),
        |top| make_way(top.as_fd(), b"name").is_ok(),
        |top| open_mark(top, "name").is_ok(),
    ];
    for call in calls {
        for name in &chain {
            let made = mkdirat(&top, &**name, Mode::RWXU);
            assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        }
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let is_ok = std::thread::scope(|scope| thread.spawn_scoped(scope, || call(&top)).expect("a thread").join());
        assert!(is_ok.expect("its end"));
    }
    let (lock, mark) = (lock_of(b"tree"), name_beside(b"file", UNFINISHED));
    for name in [&lock, &mark] {
        fs::create_dir(scratch.path().join(name)).expect("a directory");
        fs::write(scratch.path().join(name).join("file"), "precious").expect("a file");
    }
    drop(open_tree(&top, "tree").expect("without that lock"));
    let blocked = Blocked { error: Errno::NOTEMPTY, is_in_the_way: true, why: NOT_MADE.to_owned() };
    assert_eq!(open_mark(&top, &mark).expect_err("a directory"), blocked);
    assert_eq!(make_way(top.as_fd(), mark.as_bytes()), Err(Errno::NOTEMPTY));
    assert_eq!([lock, mark].map(|name| scratch.path().join(name).join("file").exists()), [true, true]);
}

/// Over NFS, SMB and FUSE, the lock of a directory does not reach other hosts. Here the process that has the
/// directory is on another host, so only the lock of the file beside it is seen.
#[test]
fn a_tree_that_another_host_is_making_is_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = directory(scratch.path());
    let theirs = open_tree(&top, "name").expect("made");
    let PartialTree { fd, lock, .. } = theirs;
    drop(fd);
    fs::write(scratch.path().join("name/file"), "theirs").expect("a file");
    assert_eq!(open_tree(&top, "name").expect_err("held"), Errno::BUSY.into());
    assert_eq!(make_way(top.as_fd(), b"name"), Err(Errno::BUSY));
    assert_eq!(make_way(top.as_fd(), lock_of(b"name").as_bytes()), Err(Errno::BUSY));
    assert!(scratch.path().join("name/file").exists());
    drop(lock);
    drop(open_tree(&top, "name").expect("left"));
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1, "no lock is left");
    // A killed process leaves the file of its lock, which the next one takes over.
    fs::write(scratch.path().join(lock_of(b"name")), "").expect("a file");
    assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 0);
}

/// Over NFS, flock(2) gives EBADF for an exclusive lock through a descriptor that is open for reading only.
#[test]
fn what_is_left_is_opened_for_writing_before_it_is_locked() {
    let scratch = tempfile::tempdir().expect("a directory");
    let name = scratch.path().join("name");
    fs::write(&name, "").expect("a file");
    let top = directory(scratch.path());
    let is_writable = |name: &[u8]| {
        let opened = open_to_lock(top.as_fd(), name).expect("it can be read");
        rustix::fs::fcntl_getfl(opened).expect("open").contains(OFlags::RDWR)
    };
    assert!(is_writable(b"name"));
    fs::set_permissions(&name, fs::Permissions::from_mode(0o400)).expect("ours");
    assert_eq!(is_writable(b"name"), rustix::process::geteuid().is_root());
    assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
    assert!(!name.exists());
    // A shared lock is enough to remove a file, if a live copy has not locked it, but not to write to it.
    let where_exclusive_locks_fail = || {
        fail_where(libc::SYS_flock, (1, (libc::LOCK_EX | libc::LOCK_NB) as u64), libc::EBADF);
        fs::write(&name, "").expect("a file");
        assert_eq!(open(&top, "name", true).expect_err("no lock").error, Errno::BADF);
        let held = fs::File::open(&name).expect("it");
        flock(&held, FlockOperation::LockExclusive).expect("a lock");
        assert_eq!(make_way(top.as_fd(), b"name"), Err(Errno::BUSY));
        drop(held);
        assert_eq!(make_way(top.as_fd(), b"name"), Ok(()));
    };
    std::thread::scope(|scope| scope.spawn(where_exclusive_locks_fail).join()).expect("its end");
    // ETXTBSY on most kernels.
    let own = std::env::current_exe().expect("this program");
    let above = directory(own.parent().expect("a directory"));
    let own = own.file_name().expect("a name").as_encoded_bytes();
    assert!(open_to_lock(above.as_fd(), own).is_ok());
}

/// Filters of system calls that are older than renameat2 refuse it, with EPERM or ENOSYS.
#[test]
fn a_directory_is_published_without_renameat2_and_replaces_only_an_empty_one() {
    for error in [libc::EPERM, libc::ENOSYS] {
        for (old, expected) in
            [("", Ok(())), ("empty", Ok(())), ("full", Err(Errno::NOTEMPTY)), ("file", Err(Errno::NOTDIR))]
        {
            let scratch = tempfile::tempdir().expect("a directory");
            let name = scratch.path().join("name");
            fs::create_dir_all(scratch.path().join("made/below")).expect("directories");
            match old {
                "" => {}
                "file" => fs::write(&name, "precious").expect("a file"),
                _ => fs::create_dir(&name).expect("a directory"),
            }
            if old == "full" {
                fs::write(name.join("file"), "precious").expect("a file");
            }
            let top = directory(scratch.path());
            let publish = || publish_directory(top.as_fd(), c"made", c"name");
            assert_eq!(where_calls_fail(&[libc::SYS_renameat2], error, publish), expected, "{old}");
            assert_eq!(name.join("below").exists(), expected.is_ok(), "{old}");
        }
    }
}

/// Without locks, an untouched entry counts as a killed copy's; until then, the explanation given for it is true.
#[test]
fn without_locks_what_is_quiet_is_gone_on_with() {
    let wait_where_locks_fail = |error| {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = || directory(scratch.path());
        where_calls_fail(&[libc::SYS_flock], error, || {
            let tree = scratch.path().join("tree/below/it");
            let open_tree = || open_tree(top(), "tree").map(|tree| (tree.fd, tree.was_left));
            let both = || [open(top(), "file", true), open_tree()];
            assert!(both().iter().all(|made| made.as_ref().is_ok_and(|(_, was_there)| !was_there)));
            fs::create_dir_all(&tree).expect("directories");
            fs::create_dir_all(tree.with_file_name("beside")).expect("directories");
            let is_said = |blocked: &Blocked| blocked.is_in_the_way && blocked.why == NO_LOCKS;
            let are_held = || {
                let made = both();
                made.map(|made| made.is_err_and(|blocked| blocked.error == Errno::BUSY && is_said(&blocked)))
            };
            assert_eq!(are_held(), [true, true]);
            std::thread::sleep(Duration::from_millis(3100));
            // A finished file has the modification time of its source.
            let file = fs::File::create(tree.join("file")).expect("a file");
            file.set_modified(std::time::UNIX_EPOCH).expect("ours");
            assert_eq!(are_held(), [false, true]);
            std::thread::sleep(Duration::from_millis(3100));
            assert!(both().iter().all(|made| made.as_ref().is_ok_and(|(_, was_there)| *was_there)));
        });
    };
    std::thread::scope(|scope| {
        for error in [libc::ENOSYS, libc::ENOLCK, libc::EOPNOTSUPP] {
            scope.spawn(move || wait_where_locks_fail(error));
        }
    });
    // No other error is a sign of another copy.
    let scratch = tempfile::tempdir().expect("a directory");
    let top = || directory(scratch.path());
    drop(open(top(), "file", true).expect("made"));
    where_calls_fail(&[libc::SYS_flock], libc::EIO, || {
        assert_eq!(open(top(), "file", true).expect_err("unlocked").error, Errno::IO);
    });
}

/// A transfer that was just killed holds its files for a moment longer.
#[test]
fn a_lock_is_waited_for_but_not_for_long() {
    let scratch = tempfile::tempdir().expect("a directory");
    let attempt = || open(directory(scratch.path()), "name", true);
    let (held, _) = attempt().expect("made");
    let soon = || Instant::now() + Duration::from_millis(300);
    assert_eq!(patiently(soon(), || false, attempt).expect_err("locked"), Errno::BUSY.into());
    assert_eq!(patiently(soon() + Duration::from_secs(60), || true, attempt).expect_err("over").error, Errno::BUSY);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let late = Instant::now() + Duration::from_secs(60);
        assert!(patiently(late, || false, attempt).expect("it was released").1);
    });
}
