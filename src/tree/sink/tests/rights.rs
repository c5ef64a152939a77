//! Rights that an entry gives to other users.

use rd_proto::tree::{AclNames, Extension, Extensions};

use super::*;
use crate::fs::accounts;
use crate::not_run::partly_run;

/// A receiver that is not root keeps no owner, even if the sender has chosen the receiver's own user.
#[test]
fn a_sender_who_names_us_as_the_owner_cannot_lend_our_rights() {
    let scratch = Scratch::new();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let metadata = Metadata { mode: 0o6755, uid, gid, ..META };
    let records = [
        Record::Directory { name: b"d", metadata },
        Record::File { name: b"f", metadata, data: b"" },
        Record::Large { name: b"l", metadata, item: 1, size: 0, is_sparse: false },
        Record::Special { name: b"p", metadata, kind: Special::Fifo, device: (0, 0) },
        Record::Leave,
        closed(1, 0),
        END,
    ];
    for in_place in [false, true] {
        let options = TreeOptions { in_place, ..TreeOptions::default() };
        assert_eq!(scratch.run(options, &records).expect("whole").failures, []);
        for (path, lent) in [("d", 0o6000), ("d/f", 0), ("d/l", 0), ("d/p", 0)] {
            let mode = fs::symlink_metadata(scratch.dst().join(path)).expect("there").mode() & 0o7777;
            assert_eq!(mode, if is_root() { 0o6755 } else { 0o755 | lent }, "{path}");
        }
    }
}

/// Others who copy the tree from here compare it with what the source has sent.
#[test]
fn metadata_that_this_host_does_not_keep_is_reported() {
    let is_reported = |metadata: Metadata<'_>, options: TreeOptions| {
        let scratch = Scratch::new();
        let run = || scratch.run(options, &[Record::File { name: b"f", metadata, data: b"" }, END]).expect("whole");
        // As for root of a container.
        where_calls_fail(&[libc::SYS_fsetxattr], libc::EPERM, run).figures.has_less_metadata
    };
    let (all, without_owner) = (TreeOptions::default, || TreeOptions { owner: false, ..TreeOptions::default() });
    assert!(!is_reported(META, all()));
    let set_id = Metadata { mode: 0o4755, ..META };
    assert!(is_reported(set_id, without_owner()));
    assert!(!is_reported(set_id, TreeOptions { mode: false, ..without_owner() }), "modes are not kept anyway");
    // No source sends the first one, and no proof is expected to hold the second one if the process is not root.
    for (name, expected) in [(&b"system.nfs4_acl"[..], false), (&b"security.test"[..], is_root())] {
        let mut xattrs = Vec::new();
        assert!(Xattrs::push(&mut xattrs, name, b"1"));
        let metadata = Metadata { xattrs: Xattrs::new(&xattrs), ..META };
        assert_eq!(is_reported(metadata, all()), expected, "{}", name.escape_ascii());
        assert!(!is_reported(metadata, TreeOptions { xattrs: false, ..all() }), "no attributes are kept anyway");
    }
    let mut extensions = Vec::new();
    assert!(Extensions::push(&mut extensions, Extension::User(b"nobody has this name"), false));
    let metadata = Metadata { uid: 4711, extensions: Extensions::new(&extensions), ..META };
    assert_eq!(is_reported(metadata, all()), is_root());
    assert!(!is_reported(metadata, without_owner()));
}

/// Without modes, the next copy leaves a directory as it is, also if this one does not come to its end.
#[test]
fn without_modes_an_unfinished_directory_is_not_closed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.dst().join("d")).expect("made");
    let before = fs::metadata(scratch.dst().join("d")).expect("there").mode() & 0o777;
    let mut sink = scratch.sink(TreeOptions { mode: false, ..TreeOptions::default() });
    let described = Metadata { mode: 0o777, ..META };
    let [outer, inner] = [&b"d"[..], b"new"].map(|name| Record::Directory { name, metadata: described });
    sink.push(0, 0, chunk(&[outer, inner])).expect("taken");
    sink.discard();
    assert_eq!(fs::metadata(scratch.dst().join("d/new")).expect("there").mode() & 0o777, before);
}

/// The copy may never be run again.
#[test]
fn a_closed_destination_is_closed_again_by_a_copy_that_is_cut() {
    for (is_merged, closed) in [(false, 0o333), (true, 0o333), (false, 0o111)] {
        let scratch = Scratch::new();
        fs::set_permissions(scratch.dst(), fs::Permissions::from_mode(closed)).expect("ours");
        let names = if is_merged { Names::Only(b".".to_vec()) } else { Names::Any };
        let mut sink = scratch.sink(Destination { names, ..Destination::default() });
        sink.push(0, 0, chunk(&[directory(b"d"), file(b"f", b"1")])).expect("taken");
        sink.discard();
        drop(sink);
        let mode = fs::metadata(scratch.dst()).expect("there").mode() & 0o7777;
        assert_eq!(mode, closed, "merged: {is_merged}");
    }
}

/// `--in-place` never changes the contents of another name, and says why it fails.
#[test]
fn in_place_refuses_a_file_with_other_names() {
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        fs::hard_link(scratch.outside().join("file"), scratch.dst().join(name)).expect("a link");
    }
    let options = TreeOptions { in_place: true, ..TreeOptions::default() };
    let report = scratch.run(options, &[file(b"a", b"x"), large(b"b", 1, 0), closed(1, 0), END]).expect("whole");
    assert_eq!((report.figures.failed, report.files), (2, 0));
    assert!(report.failures.iter().all(|fact| fact.detail.starts_with(b"has other hard links")), "{report:?}");
    for name in ["a", "b"] {
        fs::remove_file(scratch.dst().join(name)).expect("ours");
    }
    scratch.outside_is_unchanged();
}

#[test]
fn acls_are_set_and_inherited_ones_are_not() {
    let scratch = Scratch::new();
    let mut xattrs = Vec::new();
    assert!(Xattrs::push(&mut xattrs, b"system.posix_acl_access", &acl()));
    let metadata = Metadata { xattrs: Xattrs::new(&xattrs), ..META };
    let with_acl = Record::File { name: b"a", metadata, data: b"" };
    match rustix::fs::setxattr(scratch.dst(), "system.posix_acl_default", &acl(), XattrFlags::empty()) {
        Ok(()) => {}
        Err(error) => {
            // Then the group's bits are only a mask, and must not become the group's permissions.
            assert_eq!(scratch.run(TreeOptions::default(), &[with_acl, END]).expect("whole").without_xattrs, 1);
            assert_eq!(fs::metadata(scratch.dst().join("a")).expect("there").mode() & 0o777, 0o600);
            return partly_run(format_args!("no ACLs on this file system: {error}"));
        }
    }
    let report = scratch.run(TreeOptions::default(), &[with_acl, file(b"b", b""), directory(b"c"), Record::Leave, END]);
    assert_eq!(report.expect("whole").failures, []);
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(scratch.dst().join("a"), "system.posix_acl_access", &mut value).expect("an ACL");
    assert_eq!(value[..length], acl());
    for (name, attribute) in [("b", "access"), ("c", "access"), ("c", "default")] {
        let attribute = format!("system.posix_acl_{attribute}");
        assert_eq!(rustix::fs::getxattr(scratch.dst().join(name), &attribute, &mut value), Err(Errno::NODATA));
    }
    assert_eq!(fs::metadata(scratch.dst().join("b")).expect("there").mode() & 0o777, 0o640);
    // Without its ACL, the file gives its group nothing.
    scratch.run(TreeOptions { xattrs: false, ..TreeOptions::default() }, &[with_acl, END]).expect("whole");
    assert_eq!(fs::metadata(scratch.dst().join("a")).expect("there").mode() & 0o070, 0);
}

/// Where others may rename a directory under its partial name, it has the sticky bit, by which the next copy knows it.
#[test]
fn the_mark_of_an_unfinished_directory_goes_with_its_partial_name() {
    let all = TreeOptions::default;
    for (options, keeps_mode) in [
        (all(), true),
        (TreeOptions { sync: true, ..all() }, true),
        (TreeOptions { mode: false, ..all() }, false),
        (TreeOptions { keeps_root: true, ..all() }, false),
    ] {
        for (sent, has_failed) in [(0o750, false), (0o1750, false), (0o750, true)] {
            let scratch = Scratch::new();
            fs::set_permissions(scratch.dst(), fs::Permissions::from_mode(0o777)).expect("ours");
            let mode = |name: &str| fs::metadata(scratch.dst().join(name)).expect("there").mode();
            let top = Record::Directory { name: b"d", metadata: Metadata { mode: sent, ..META } };
            let mut sink = scratch.sink(options.clone());
            sink.push(0, 0, chunk(&[top, file(b"f", b"1")])).expect("taken");
            sink.shared.wait_drained();
            drop(sink);
            let left = name_beside(b"d", PARTIAL);
            assert_eq!(mode(&left) & 0o1777, 0o1700, "{options:?}");
            fs::create_dir(scratch.dst().join(&left).join("stale")).expect("a directory");
            let mut sink = scratch.sink(options.clone());
            sink.push(0, 0, chunk(&[top, file(b"f", b"1")])).expect("the same is gone on with");
            sink.shared.wait_drained();
            let mut finish = || sink.push(0, 0, chunk(&[Record::Leave])).expect("taken");
            match has_failed {
                true => where_calls_fail(&[libc::SYS_unlinkat], libc::EPERM, &mut finish),
                false => finish(),
            }
            sink.push(0, 0, chunk(&[END])).expect("taken");
            let report = sink.finish().expect("whole");
            assert_eq!(report.figures.failed, u64::from(has_failed), "{options:?}: {report:?}");
            let is_sticky = keeps_mode && !has_failed && sent & 0o1000 != 0;
            assert_eq!(mode("d") & 0o1000 != 0, is_sticky, "{options:?} {sent:o} {has_failed}");
        }
    }
}

/// Two hosts may have other numbers for the same user. Once the ACL is here, nothing differs.
#[test]
fn users_in_acls_are_those_of_the_same_name() {
    let scratch = Scratch::new();
    let daemon = accounts::user_number(b"daemon").expect("each system has one");
    let [theirs, ours] = [4711, daemon].map(|user| {
        let mut acl = acl();
        acl[16..20].copy_from_slice(&user.to_le_bytes());
        acl
    });
    let (mut xattrs, mut names, mut extensions) = (Vec::new(), Vec::new(), Vec::new());
    assert!(Xattrs::push(&mut xattrs, b"system.posix_acl_access", &theirs));
    assert!(AclNames::push(&mut names, AclNames::USER, 4711, b"daemon"));
    assert!(Extensions::push(&mut extensions, Extension::AclNames(AclNames::new(&names)), false));
    let metadata = Metadata { xattrs: Xattrs::new(&xattrs), extensions: Extensions::new(&extensions), ..META };
    let directory = Record::Directory { name: b"d", metadata: Metadata { mode: 0o750, ..metadata } };
    let file = Record::File { name: b"f", metadata, data: b"1" };
    let report = scratch.run(TreeOptions::default(), &[directory, file, Record::Leave, END]).expect("whole");
    if report.without_xattrs > 0 {
        return not_run("no ACLs on this file system");
    }
    assert_eq!((&report.failures[..], report.figures.has_less_metadata), (&[][..], false));
    for path in ["d", "d/f"] {
        let mut value = [0; 64];
        rustix::fs::getxattr(scratch.dst().join(path), "system.posix_acl_access", &mut value).expect("an ACL");
        // The other entries follow the mode.
        assert_eq!(value[12..20], ours[12..20], "{path}");
    }
    let again = || {
        let mut sink = scratch.sink(TreeOptions { sync: true, ..TreeOptions::default() });
        sink.push(0, 0, chunk(&[directory, Record::Listed { name: b"f", metadata, size: 1 }])).expect("taken");
        sink.shared.wait_drained();
        sink.push(0, 0, chunk(&[Record::Leave, END])).expect("taken");
        sink.finish().expect("whole").failures
    };
    assert_eq!(where_calls_fail(&[libc::SYS_setxattr, libc::SYS_fsetxattr], libc::EPERM, again), []);
}

/// An interrupted copy has made it, perhaps in another group, as with newgrp(1), or before the directory got setgid. If
/// it was killed at the very end, it has set attributes that the source may have lost since.
#[test]
fn a_resumed_file_gets_its_group_and_other_files_get_theirs() {
    if !is_root() {
        return not_run("needs root");
    }
    for order in [["left", "new"], ["new", "left"]] {
        let scratch = Scratch::new();
        let partial = scratch.dst().join(name_beside(b"left", PARTIAL));
        fs::write(&partial, "half").expect("a file");
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o600)).expect("ours");
        std::os::unix::fs::chown(&partial, None, Some(77)).expect("permitted");
        let attribute = c"user.colour";
        let is_set = rustix::fs::setxattr(&partial, attribute, b"blue", XattrFlags::empty()).is_ok();
        let sink = scratch.sink(Destination::default());
        let top = sink.levels[0].clone().expect("the top");
        for name in order {
            let is_left = name == "left";
            let metadata = Metadata { gid: if is_left { 0 } else { 77 }, ..META };
            let large = Large::create(&top, name.as_bytes(), &metadata, (4, false), true, None).expect("begun");
            assert_eq!(large.partial.is_adopted, is_left);
            large.complete();
            drop(large);
            let path = scratch.dst().join(name);
            assert_eq!(fs::metadata(&path).expect("published").gid(), metadata.gid, "{order:?}");
            let kept = rustix::fs::getxattr(&path, attribute, &mut [0; 8]);
            assert!(!is_set || kept == Err(Errno::NODATA), "{order:?}");
        }
    }
}
