//! `rdcp` with the rights of a user who does not own the files, and what it must not destroy, within a host and between
//! hosts, with a launcher that runs the agent on this host.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rig::lab::*;
use rig::others::{MEMBER, NOBODY, TEAM, as_member, as_user, with_rights};
use rig::*;

/// Runs a command with its present rights.
const PLAIN: &str = "exec \"$@\"";

/// Runs a command with the rights of a root that may not give files to other users.
const AS_CONTAINED_ROOT: &str = "exec unshare --user --map-root-user -- \"$@\"";

/// Runs a command that can write only 64 KiB into `into`.
const WITH_LITTLE_SPACE: &str =
    "exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size=64k none into && exec \"$@\"' - \"$@\"";

/// Runs rdcp by a shell line that gives it its rights. With these rdcp and its launcher may write to the laboratory.
fn rdcp(lab: &Lab, line: &str, arguments: &[OsString]) -> Ended {
    fs::OpenOptions::new().append(true).create(true).open(lab.join("noted")).expect("the launcher's notes");
    for (name, mode) in [("", 0o777), ("noted", 0o666)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
    let mut command = in_shell(line, command.args(arguments));
    Process::spawn(command.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

/// Returns the shell line that gives the rights of an ordinary user.
fn as_ordinary(lab: &Lab) -> String {
    if rustix::process::geteuid().is_root() { as_user(NOBODY, lab.0.path()) } else { PLAIN.to_owned() }
}

/// Returns a path on a host, or on this one.
fn side(lab: &Lab, host: &str, name: &str) -> OsString {
    if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) }
}

/// Lost metadata is reported as by cp -a, for copies within a host too. The test needs two
/// users, so only root can run it.
#[test]
fn metadata_that_is_lost_is_told() {
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("a directory");
    lab.0.file("from/file", b"1");
    for (number, to) in ["", "h"].into_iter().enumerate() {
        // A directory of another user, which may be written to but not changed.
        let into = format!("into{number}");
        fs::create_dir(lab.join(&into)).expect("a directory");
        fs::set_permissions(lab.join(&into), fs::Permissions::from_mode(0o777)).expect("ours");
        let ended = rdcp(&lab, &as_user(NOBODY, lab.0.path()), &["-r".into(), "from/.".into(), side(&lab, to, &into)]);
        let lines: Vec<&str> = ended.expect(8).stderr.lines().collect();
        assert!(lines.len() == 2 && lines[0].contains("errno 1)") && lines[1].contains("1 entry"), "{lines:?}");
        for part in ["cannot set mode and times of ", &format!("{into}: "), "belongs to root", "--no-mode --no-times"] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        holds(&lab.join(&into).join("file"), b"1");
    }
    std::os::unix::fs::symlink("nowhere", lab.join("from/link")).expect("a link");
    for name in ["from/file", "from/link"] {
        std::os::unix::fs::lchown(lab.join(name), Some(12), Some(34)).expect("chown");
    }
    for (number, to) in ["", "h"].into_iter().enumerate() {
        let given = format!("given{number}");
        let ended = rdcp(&lab, AS_CONTAINED_ROOT, &["-r".into(), "from".into(), side(&lab, to, &given)]);
        let lines: Vec<&str> = ended.expect(8).stderr.lines().collect();
        // One line for all failures of a kind.
        let is_named = ["file", "link"].iter().any(|name| lines[0].contains(&format!("{given}/{name}: ")));
        assert!(is_named && lines[0].contains("cannot set owner of "), "{lines:?}");
        assert!(lines[0].contains("--no-owner"), "{lines:?}");
        assert!(lines.len() == 3 && lines[1].contains("and 1 more") && lines[2].contains("2 entries"), "{lines:?}");
        holds(&lab.join(&given).join("file"), b"1");
        // Users other than root do not expect to keep owners.
        rdcp(
            &lab,
            &as_user(NOBODY, lab.0.path()),
            &["-r".into(), "from".into(), side(&lab, to, &format!("taken{number}"))],
        )
        .expect(0);
    }
}

/// A writable file in a read-only directory: no marker can be made there to say that the file is half-written.
#[test]
fn what_cannot_be_marked_is_written_in_place_only_where_the_next_copy_would_see_that() {
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = Lab::new();
    fs::create_dir(lab.join("into")).expect("a directory");
    for bytes in [5_000, 700_000] {
        let (new, old) = (noise(bytes), noise(bytes / 3));
        lab.0.file("file", &new);
        let place = lab.join("into/file");
        for to in ["", "h"] {
            for option in ["--update", "--size-only", "--modify-window=2", "--append-verify", ""] {
                if option == "--append-verify" && bytes == 5_000 {
                    // The file is replaced instead.
                    continue;
                }
                fs::write(&place, &old).expect("a file");
                let time = std::time::SystemTime::UNIX_EPOCH;
                fs::File::options().write(true).open(&place).expect("it").set_modified(time).expect("a time");
                std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).expect("another's");
                let options = ["--sync", "--in-place", option].into_iter().filter(|option| !option.is_empty());
                let mut arguments: Vec<OsString> = options.map(OsString::from).collect();
                arguments.extend(["file".into(), side(&lab, to, "into/file")]);
                let ended = rdcp(&lab, &as_user(NOBODY, lab.0.path()), &arguments);
                if option.is_empty() {
                    ended.expect(0);
                    holds(&place, &new);
                } else {
                    ended.expect(6).one_line("rdcp", &["into/file", "errno 13", "unfinished"]);
                    holds(&place, &old);
                }
                assert_eq!(fs::read_dir(lab.join("into")).expect("it").count(), 1, "{to} {option}");
            }
        }
    }
}

/// If nothing of a single source can be copied, that is the failure itself, and not a failure of a part.
#[test]
fn a_directory_that_cannot_be_read_is_no_part_of_a_copy() {
    let lab = Lab::new();
    for (name, mode) in [("closed", 0o000), ("closed too", 0o000), ("locked", 0o555), ("open", 0o755)] {
        fs::create_dir(lab.join(name)).expect("a directory");
        if name == "open" {
            lab.0.file("open/file", b"1");
        }
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let line = as_ordinary(&lab);
    for (number, (from, to)) in [("", "h"), ("h", ""), ("h1", "h2"), ("", ""), ("h", "h")].into_iter().enumerate() {
        let into = format!("into{number}");
        fs::create_dir(lab.join(&into)).expect("a directory");
        fs::set_permissions(lab.join(&into), fs::Permissions::from_mode(0o777)).expect("ours");
        let copy = |sources: &[&str], to_name: &str| {
            let sources = sources.iter().map(|name| side(&lab, from, name));
            let arguments: Vec<OsString> = ["-r".into()].into_iter().chain(sources).collect();
            rdcp(&lab, &line, &[arguments, vec![side(&lab, to, to_name)]].concat())
        };
        let new = format!("new{number}");
        copy(&["closed"], &new).expect(5).one_line("rdcp", &["closed", "errno 13"]);
        assert!(!lab.join(&new).exists());
        copy(&["closed"], &into).expect(5).one_line("rdcp", &["closed", "errno 13"]);
        copy(&["open"], "locked").expect(6).one_line("rdcp", &["locked/open", "errno 13"]);
        // Each of several sources is a part.
        let ended = copy(&["closed", "closed too"], &into);
        assert!(ended.expect(8).stderr.contains("nothing was copied: 2 entries failed"), "{}", ended.stderr);
        assert_eq!(fs::read_dir(lab.join(&into)).expect("it").count(), 0);
        let ended = copy(&["closed", "open"], &into);
        assert!(ended.expect(8).stderr.contains("1 entry was not copied in full; the others were copied"));
        holds(&lab.join(&into).join("open/file"), b"1");
    }
}

/// Users who may no longer read their own directory may still delete in it, at the end as well as
/// when the directory is left.
#[test]
fn what_may_not_be_read_is_deleted_in() {
    for option in ["--delete", "--delete-after"] {
        for (number, to) in ["", "h"].into_iter().enumerate() {
            let lab = Lab::new();
            let line = as_ordinary(&lab);
            fs::create_dir_all(lab.join("src/closed")).expect("directories");
            lab.0.file("src/closed/kept", b"1");
            fs::write(lab.join("src/closed/gone"), b"2").expect("a file");
            for name in ["src", "src/closed"] {
                fs::set_permissions(lab.join(name), fs::Permissions::from_mode(0o755)).expect("ours");
            }
            let copy = |options: &[&str]| {
                let options = ["-r", "--sync"].iter().chain(options).map(OsString::from);
                let paths = [OsString::from("src/"), side(&lab, to, &format!("dst{number}"))];
                rdcp(&lab, &line, &options.chain(paths).collect::<Vec<_>>())
            };
            copy(&[]).expect(0);
            fs::remove_file(lab.join("src/closed/gone")).expect("ours");
            copy(&[option, "--chmod=D300"]).expect(0);
            let closed = lab.join(&format!("dst{number}/closed"));
            let mode = fs::metadata(&closed).expect("it").permissions().mode() & 0o777;
            assert_eq!((mode, closed.join("gone").exists()), (0o300, false), "{option} {to}");
            holds(&closed.join("kept"), b"1");
            // Otherwise the laboratory could not be removed.
            for path in [&closed, &lab.join(&format!("dst{number}"))] {
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("root, or ours");
            }
        }
    }
}

/// A failure that ends a copy is reported once, and not for an entry as well.
#[test]
fn a_full_disk_is_told_once() {
    let lab = Lab::new();
    for name in ["from", "into"] {
        fs::create_dir(lab.join(name)).expect("ours");
    }
    lab.0.file("from/file", &[1; 1 << 20]);
    for to in ["into".into(), lab.there("h", "into")] {
        let ended = rdcp(&lab, WITH_LITTLE_SPACE, &["-r".into(), "from".into(), to]);
        ended.expect(6).one_line("rdcp", &["into/from/file", "errno 28"]);
    }
}

/// A link that replaced its own target would lead to itself, and the data would be lost.
#[test]
fn a_link_does_not_replace_what_it_leads_to() {
    let lab = Lab::new();
    for name in ["links", "files"] {
        fs::create_dir(lab.join(name)).expect("ours");
    }
    lab.0.file("files/one", b"data");
    std::os::unix::fs::symlink("../files/one", lab.join("links/one")).expect("a link");
    for to in ["files".into(), lab.there("h", "files")] {
        rdcp(&lab, PLAIN, &["-r".into(), "links/.".into(), to]).expect(8);
        holds(&lab.join("files/one"), b"data");
        assert!(lab.join("files/one").symlink_metadata().expect("there").is_file());
    }
    for to in ["files/one".into(), lab.there("h", "files/one")] {
        assert_ne!(rdcp(&lab, PLAIN, &["-r".into(), "links/one".into(), to]).code, 0);
        holds(&lab.join("files/one"), b"data");
    }
}

/// As with rsync: the owner of a directory may remove its entries, even if the mode denies that to the owner. A
/// directory that stays keeps its mode.
#[test]
fn directories_that_are_closed_to_their_owner_are_deleted() {
    let options: [&[&str]; 4] =
        [&["--delete"], &["--delete-after"], &["--delete", "--backup-dir=kept"], &["--delete", "--exclude=spared"]];
    for (to, options) in ["", "h"].into_iter().flat_map(|to| options.map(|options| (to, options))) {
        let lab = Lab::new();
        let line = as_ordinary(&lab);
        let plant = "mkdir -p from/d/plain && echo 1 >from/plain && cp -r from into && cd into && rm -r d plain \
            && for name in 555 000 300; do mkdir -p d/$name/below && echo 1 >d/$name/below/file \
                && echo 1 >d/$name/spared && chmod $name d/$name/below d/$name; done \
            && mkdir plain && echo 1 >plain/file && chmod 555 plain";
        fs::set_permissions(lab.join(""), fs::Permissions::from_mode(0o777)).expect("ours");
        let mut command = std::process::Command::new("sh");
        let mut planting = in_shell(&line, command.args(["-c", plant]));
        Process::spawn(planting.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
        let arguments: Vec<OsString> = ["--sync", "-r"].iter().chain(options).map(OsString::from).collect();
        let ended = rdcp(&lab, &line, &[arguments, vec!["from/".into(), side(&lab, to, "into")]].concat());
        ended.expect(0);
        holds(&lab.join("into/plain"), b"1\n");
        for (name, mode) in [("555", 0o555), ("000", 0), ("300", 0o300)] {
            let place = lab.join("into/d").join(name);
            if options.contains(&"--exclude=spared") {
                assert_eq!(fs::metadata(&place).expect("it stays").permissions().mode() & 0o777, mode, "{to} {name}");
                assert!(place.join("spared").exists() && !place.join("below").exists() || !is_root(), "{to} {name}");
            } else {
                assert!(!place.exists(), "{to} {options:?} {name}");
            }
        }
        open_all(&lab);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Opens all directories, so that they can be removed.
fn open_all(lab: &Lab) {
    let opened = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(lab.0.path()).status();
    assert!(opened.expect("chmod").success());
}

/// Messages name what could not be removed from SRC, and DST if `--max-delete` has kept something.
#[test]
fn what_stays_is_told_by_its_own_name() {
    for to in ["", "h"] {
        let lab = Lab::new();
        fs::set_permissions(lab.join(""), fs::Permissions::from_mode(0o777)).expect("ours");
        fs::create_dir_all(lab.join("from/closed")).expect("directories");
        lab.0.file("from/closed/file", b"1");
        fs::set_permissions(lab.join("from/closed"), fs::Permissions::from_mode(0o555)).expect("ours");
        let line = as_ordinary(&lab);
        let options = ["--sync", "-r", "--remove-source-files"].map(OsString::from);
        let ended = rdcp(&lab, &line, &[&options[..], &["from/".into(), side(&lab, to, "into")]].concat());
        let lines: Vec<&str> = ended.expect(8).stderr.lines().collect();
        assert!(lines[0].contains("cannot remove ") && lines[0].contains("from/closed/file: "), "{lines:?}");
        assert!(lines[0].contains("(errno 13)") && !ended.stderr.contains("os error"), "{lines:?}");
        fs::create_dir(lab.join("other")).expect("a directory");
        lab.0.file("other/file", b"1");
        for name in ["into/one", "into/two"] {
            lab.0.file(name, b"1");
        }
        fs::set_permissions(lab.join("from/closed"), fs::Permissions::from_mode(0o755)).expect("ours");
        let options = ["--sync", "-r", "--delete", "--max-delete=0"].map(OsString::from);
        let ended = rdcp(&lab, PLAIN, &[&options[..], &["other/".into(), side(&lab, to, "into")]].concat());
        let lines: Vec<&str> = ended.expect(8).stderr.lines().collect();
        assert!(lines[0].contains("into: --max-delete keeps ") && lines.len() == 1, "{lines:?}");
    }
}

/// Runs a command that can write nothing into `full`.
const WITH_FULL_DISK: &str = "exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size=16k none full \
    && { head -c 100000 /dev/zero >full/all 2>/dev/null; exec \"$@\"; }' - \"$@\"";

/// Runs a command that can write to a file system without attributes.
const WITHOUT_XATTRS: &str =
    "exec unshare --user --map-root-user --mount sh -c 'mount -t ramfs none into && exec \"$@\"' - \"$@\"";

/// Lets a command find no /proc, as in a chroot.
const WITHOUT_PROC: &str =
    "exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /proc && exec \"$@\"' - \"$@\"";

#[test]
fn without_proc_the_cause_is_told() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("a directory");
    lab.0.file("from/a", b"1");
    fs::hard_link(lab.join("from/a"), lab.join("from/b")).expect("ours");
    std::os::unix::fs::symlink("a", lab.join("from/link")).expect("ours");
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, lab.join("from/fifo"), rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    // Attributes of a FIFO cannot be read without it.
    let told = ["from/fifo", "(errno 38)", "/proc is not mounted"];
    let ended = rdcp(&lab, WITHOUT_PROC, &["-r", "from", "all"].map(OsString::from));
    assert_eq!(ended.expect(8).stderr.lines().filter(|line| told.iter().all(|part| line.contains(part))).count(), 1);
    // Symbolic links hardly ever have any.
    assert_eq!(fs::read_link(lab.join("all/link")).expect("made"), std::path::Path::new("a"), "{}", ended.stderr);
    // All else can be done without it since Linux 6.10.
    let ended = rdcp(&lab, WITHOUT_PROC, &["-r", "--no-xattrs", "from", "into"].map(OsString::from));
    if ended.code == 0 {
        assert_eq!(fs::metadata(lab.join("into/fifo")).expect("made").permissions().mode() & 0o777, 0o640);
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(lab.join("into/b")).expect("made")), 2);
    } else {
        assert!(ended.expect(8).stderr.contains("/proc is not mounted"), "{}", ended.stderr);
    }
    let mut command = in_shell(WITHOUT_PROC, rdpipe().arg("true"));
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(3).one_line("rdpipe", &["cannot start a guard", "/proc"]);
}

/// Copied anew instead, the files would fill the disk.
#[test]
fn without_proc_what_is_unchanged_is_linked_all_the_same() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("a directory");
    lab.0.file("from/file", &noise(5000));
    rustix::fs::setxattr(lab.join("from/file"), "user.colour", b"blue", rustix::fs::XattrFlags::empty()).expect("kept");
    let copy = |line: &str, name: &str| {
        rdcp(&lab, line, &["-r", "--sync", "--snapshot", name, "from/", "into"].map(OsString::from))
    };
    copy(PLAIN, "one").expect(0);
    let ended = copy(WITHOUT_PROC, "two");
    if ended.code == 0 {
        let inode = |name: &str| {
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(lab.join("into").join(name).join("file")).expect("made"))
        };
        assert_eq!(inode("one"), inode("two"));
    } else {
        // Before Linux 6.10.
        assert!(ended.expect(8).stderr.contains("/proc is not mounted"), "{}", ended.stderr);
    }
}

#[test]
fn without_a_temporary_directory_nothing_is_deleted_at_the_end() {
    for to in ["", "h"] {
        let lab = Lab::new();
        for name in ["a", "b"] {
            fs::create_dir_all(lab.join(&format!("from/{name}"))).expect("directories");
            fs::create_dir_all(lab.join(&format!("into/{name}/gone"))).expect("directories");
        }
        let temporary = lab.join("missing");
        let line = format!("exec env TMPDIR={} \"$@\"", temporary.display());
        let arguments = ["-r", "--sync", "--delete-after", "from/"].map(OsString::from);
        let ended = rdcp(&lab, &line, &[&arguments[..], &[side(&lab, to, "into")]].concat());
        let lines: Vec<&str> = ended.expect(8).stderr.lines().collect();
        let expected =
            format!("{}: No such file or directory (errno 2): the list of entries to delete", temporary.display());
        assert!(lines.len() == 2 && lines[0].contains(&expected), "{lines:?}");
        assert!(lab.join("into/a/gone").exists() && lab.join("into/b/gone").exists());
    }
}

/// Lets a command write nothing into its home.
const WITH_CLOSED_HOME: &str =
    "exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o ro none home && exec \"$@\"' - \"$@\"";

#[test]
fn a_digest_cache_whose_directory_cannot_be_made_says_why() {
    let lab = Lab::new();
    lab.0.file("from", b"1");
    let line = format!("unset XDG_CACHE_HOME; {WITH_CLOSED_HOME}");
    let ended = rdcp(&lab, &line, &["--sync", "-c", "--digest-cache", "from", "into"].map(OsString::from));
    let lines: Vec<&str> = ended.expect(0).stderr.lines().collect();
    let expected = "/rdma-pipe/digests is not used: Read-only file system (errno 30)";
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(expected)), "{lines:?}");
}

/// Returns an access control list in the kernel's format (acl(5), posix_acl_xattr.h). One additional user may read.
fn acl() -> Vec<u8> {
    let entries = [(1_u16, 6_u16, u32::MAX), (2, 4, 0), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let entries = entries
        .iter()
        .flat_map(|(tag, may, id)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Reported in a line. It is not a failure, because nothing could be done about it there.
#[test]
fn what_the_file_system_cannot_keep_is_told() {
    for to in ["", "h"] {
        let lab = Lab::new();
        for name in ["from", "into"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        let set = |name: &str, attribute: &str, value: &[u8]| {
            rustix::fs::setxattr(lab.join(name), attribute, value, rustix::fs::XattrFlags::empty()).expect("kept here");
        };
        for name in ["from/one", "from/other"] {
            lab.0.file(name, b"1");
            set(name, "user.colour", b"blue");
        }
        let paths = ["-r".into(), "from/.".into(), side(&lab, to, "into")];
        let ended = rdcp(&lab, WITHOUT_XATTRS, &paths);
        let lines: Vec<&str> = ended.expect(0).stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains("2 entries have lost ACLs or other"), "{to}: {lines:?}");
        set("from/one", "system.posix_acl_access", &acl());
        let ended = rdcp(&lab, WITHOUT_XATTRS, &[&[OsString::from("-q")][..], &paths].concat());
        let lines: Vec<&str> = ended.expect(0).stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains("2 entries have lost ACLs or other"), "{to}: {lines:?}");
    }
}

/// With several hosts, each of them is named.
#[test]
fn what_the_file_systems_of_several_hosts_cannot_keep_is_told() {
    let lab = Lab::new();
    for name in ["from", "into"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    let file = lab.0.file("from/one", b"1");
    rustix::fs::setxattr(file, "user.colour", b"blue", rustix::fs::XattrFlags::empty()).expect("kept here");
    let arguments = ["--sync", "-r", "from/", "--to"].map(OsString::from);
    let targets = [side(&lab, "h2", "into/two"), side(&lab, "h1", "into/one")];
    let ended = rdcp(&lab, WITHOUT_XATTRS, &[&arguments[..], &targets].concat());
    ended.expect(0);
    for host in ["h1", "h2"] {
        let line = format!("{host}: 1 entry has lost ACLs or other");
        assert_eq!(ended.stderr.matches(&line).count(), 1, "{}", ended.stderr);
    }
}

/// SRC has been removed by then, or the generation does not change any more, and the message says so.
#[test]
fn a_manifest_that_cannot_be_written_says_that_src_is_gone() {
    let given = ["--remove-source-files", "--snapshot=one", "--no-times"];
    for (to, option) in ["", "h"].into_iter().flat_map(|to| given.map(|option| (to, option))) {
        let lab = Lab::new();
        for name in ["from", "full"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        lab.0.file("from/file", b"1");
        let options = ["--sync", "-r", "--manifest", "full/manifest", option];
        let (removes, is_generation) = (option == "--remove-source-files", option == "--snapshot=one");
        let paths = ["from/".into(), side(&lab, to, "into")];
        let ended =
            rdcp(&lab, WITH_FULL_DISK, &[options.iter().map(OsString::from).collect(), paths.to_vec()].concat());
        ended.expect(6).one_line("rdcp", &["full/manifest", "errno 28"]);
        holds(&lab.join(if is_generation { "into/latest/file" } else { "into/file" }), b"1");
        assert_eq!(ended.stderr.contains("copied and removed from SRC"), removes, "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("choose another NAME"), is_generation, "{}", ended.stderr);
        assert_eq!(lab.join("from/file").exists(), !removes);
    }
}

/// Makes a directory with a file in it, of an ordinary user and of a time of its own. Returns the path of the file.
fn plant_of_ordinary(lab: &Lab, directory: &str) -> std::path::PathBuf {
    fs::create_dir(lab.join(directory)).expect("a directory");
    let path = lab.0.file(&format!("{directory}/f"), b"contents");
    let file = fs::File::options().write(true).open(&path).expect("ours");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("a time");
    for (path, mode) in [(&lab.join(directory), 0o755), (&path, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        if is_root() {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root");
        }
    }
    path
}

/// As with rsync.
#[test]
fn attributes_of_ones_own_file_change_even_if_it_is_read_only() {
    let sides = ["", "h"].into_iter().flat_map(|to| ["--one-file-system", "--no-mode"].map(|option| (to, option)));
    for (to, option) in sides {
        let lab = Lab::new();
        let line = as_ordinary(&lab);
        let paths = ["from", "into"].map(|name| plant_of_ordinary(&lab, name));
        for (path, name) in paths.iter().zip(["user.new", "user.old"]) {
            rustix::fs::setxattr(path, name, b"blue", rustix::fs::XattrFlags::empty()).expect("kept here");
            fs::set_permissions(path, fs::Permissions::from_mode(0o444)).expect("ours");
        }
        let arguments = ["--sync", "-r", option, "from/"].map(OsString::from);
        rdcp(&lab, &line, &[&arguments[..], &[side(&lab, to, "into")]].concat()).expect(0);
        let found = ["user.old", "user.new"].map(|name| rustix::fs::getxattr(&paths[1], name, &mut [0; 8]));
        assert_eq!(found, [Err(rustix::io::Errno::NODATA), Ok(4)], "{to} {option}");
        assert_eq!(fs::metadata(&paths[1]).expect("there").permissions().mode() & 0o777, 0o444, "{to} {option}");
        holds(&paths[1], b"contents");
    }
}

/// Beside other generations a file with several names never changes, and this user cannot make a new one of it.
#[test]
fn a_file_with_several_names_that_may_not_be_read_is_sent_beside_other_generations() {
    for to in ["", "h"] {
        let lab = Lab::new();
        let line = as_ordinary(&lab);
        fs::create_dir(lab.join("earlier")).expect("a directory");
        for name in ["from", "into"] {
            let path = plant_of_ordinary(&lab, name);
            fs::hard_link(path, lab.join(name).join("g")).expect("ours");
        }
        let into = ["f", "g"].map(|name| lab.join("into").join(name));
        fs::set_permissions(&into[0], fs::Permissions::from_mode(0o0)).expect("ours");
        let before = inode(&into[0]);
        let arguments = ["--sync", "-r", "--link-dest=../earlier", "from/"].map(OsString::from);
        rdcp(&lab, &line, &[&arguments[..], &[side(&lab, to, "into")]].concat()).expect(0);
        for path in &into {
            assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o644, "{to}");
            holds(path, b"contents");
        }
        assert!(inode(&into[0]) == inode(&into[1]) && inode(&into[0]) != before, "{to}: both are a new file");
    }
}

fn inode(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("there"))
}

/// Lists the paths below a directory with owner, group and mode, and what `more` asks find(1) for.
fn rights(lab: &Lab, directory: &str, more: &str) -> Vec<String> {
    let mut find = std::process::Command::new("find");
    find.current_dir(lab.join(directory)).args([".", "-printf", &format!("%P %U:%G %m{more}\\n")]);
    let output = find.output().expect("find");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// As with cp -a and rsync -a: an ordinary user's copies keep the groups of which the user is a member, and rights that
/// the directory would hand down do not become the group's.
#[test]
fn groups_of_which_the_user_is_a_member_are_kept() {
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let plant = format!(
        "umask 022 && mkdir -p from/d from/own from/foreign && cd from && echo 1 >file && echo 1 >set && echo 1 >d/below \
            && echo 1 >own/private && mkfifo fifo && ln -s nowhere link && chgrp -h {TEAM} file set d d/below fifo link \
            && ln file further && chmod 640 file own/private && chmod 2755 set && chmod 2770 d && chmod 660 d/below fifo \
            && cd .. && for name in expected into0 into1; do mkdir $name && chgrp {TEAM} $name && chmod 2770 $name; done"
    );
    for (number, to) in ["", "h"].into_iter().enumerate() {
        let lab = Lab::new();
        fs::set_permissions(lab.join(""), fs::Permissions::from_mode(0o777)).expect("ours");
        let line = as_member(lab.0.path());
        let by_member = |command: &mut std::process::Command| {
            let mut command = in_shell(&line, command);
            Process::spawn(command.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null())).wait()
        };
        by_member(std::process::Command::new("sh").args(["-c", &plant])).expect(0);
        // Owned by another user, one with the team's group and one with a group that the user is not in.
        for (name, group, mode) in [("from/foreign", TEAM, 0o2775), ("from/foreign/file", 34, 0o755)] {
            if name.ends_with("file") {
                fs::write(lab.join(name), b"1").expect("a file");
            }
            std::os::unix::fs::chown(lab.join(name), Some(12), Some(group)).expect("chown");
            fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        }
        by_member(std::process::Command::new("cp").args(["-a", "from", "expected"])).expect(0);
        let into = format!("into{number}");
        let (tree, option) = (format!("{into}/from"), |option: &str| OsString::from(option));
        rdcp(&lab, &line, &[option("-r"), option("from"), side(&lab, to, &into)]).expect(0);
        let mut expected = rights(&lab, "expected", "");
        // As in the manual page: with cp, directories keep a setgid bit that they inherit. From another host files
        // lose setgid, because the sender would choose what runs with this user's rights. A directory keeps its setgid
        // bit, whoever owns the source.
        let without = ["from ", "from/own ", if to.is_empty() { "none" } else { "from/set " }];
        for line in expected.iter_mut().filter(|line| without.iter().any(|name| line.starts_with(name))) {
            *line = line.replace(" 2755", " 755");
        }
        assert_eq!(rights(&lab, &into, ""), expected, "{to}");

        // Entries with another group get the source's group again, and are not touched after that.
        let sync = |more: &[&str], sources: &str| {
            let mut arguments: Vec<OsString> = ["--sync", "-r"].iter().chain(more).map(OsString::from).collect();
            arguments.extend([option(sources), side(&lab, to, &tree)]);
            rdcp(&lab, &line, &arguments)
        };
        let regroup = format!("chgrp -hR {MEMBER} {tree} && chgrp {TEAM} {tree}/foreign/file");
        by_member(std::process::Command::new("sh").args(["-c", &regroup])).expect(0);
        sync(&[], "from/").expect(0);
        assert_eq!(rights(&lab, &into, ""), expected, "{to}, again");
        let before = rights(&lab, &into, " %C@");
        sync(&[], "from/").expect(0);
        assert_eq!(rights(&lab, &into, " %C@"), before, "{to}: nothing differs");

        sync(&["--chmod", "D2770"], "from/").expect(0);
        assert!(
            rights(&lab, &tree, "/%y").iter().all(|line| line.ends_with("2770/d") || !line.ends_with("/d")),
            "{to}"
        );
        let chown = format!("--chown={MEMBER}:{TEAM}");
        for chown in ["--chown=:4712", &chown] {
            sync(&[chown], "from/").expect(0);
            let has_team = |line: &String| line.contains(&format!(" {MEMBER}:{TEAM} "));
            assert!(rights(&lab, &tree, "").iter().all(has_team), "{:?}", rights(&lab, &tree, ""));
        }
        sync(&["--chown=:34"], "from/").expect(6).one_line("rdcp", &["--chown", "not in"]);
        sync(&["--chown=12:4712"], "from/").expect(6).one_line("rdcp", &["--chown", "only root"]);
    }
}

/// A directory that its owner may not open is not a failure: it is opened up, and gets its mode back.
#[test]
fn directories_of_ones_own_that_are_closed_are_written_into() {
    // With capabilities, root's own directories are no different from others'. In many containers root has none.
    let without_capabilities = |lab: &Lab| with_rights("", "", lab.0.path());
    let as_users: &[&dyn Fn(&Lab) -> String] = &[&as_ordinary, &without_capabilities];
    for as_one in &as_users[..if is_root() { 2 } else { 1 }] {
        for (to, mode) in ["", "h"].into_iter().flat_map(|to| ["000", "300", "500", "555"].map(|mode| (to, mode))) {
            let lab = Lab::new();
            let line = as_one(&lab);
            fs::create_dir_all(lab.join("from/d/below")).expect("directories");
            for name in ["from", "from/d", "from/d/below"] {
                fs::set_permissions(lab.join(name), fs::Permissions::from_mode(0o755)).expect("ours");
            }
            let sync = |more: &[&str], to: OsString| {
                let mut arguments: Vec<OsString> = ["--sync", "-r"].iter().chain(more).map(OsString::from).collect();
                arguments.extend(["from/".into(), to]);
                rdcp(&lab, &line, &arguments)
            };
            let chmod = format!("--chmod=D{mode}");
            for (number, more) in
                [&[&chmod[..]][..], &[&chmod], &["--no-mode"], &[&chmod, "--delete"]].into_iter().enumerate()
            {
                let text = format!("{number}");
                lab.0.file("from/d/file", text.as_bytes());
                lab.0.file("from/d/below/file", text.as_bytes());
                sync(more, side(&lab, to, "into")).expect(0);
                let modes = ["into", "into/d", "into/d/below"]
                    .map(|name| fs::metadata(lab.join(name)).expect("it").permissions().mode() & 0o777);
                assert_eq!(modes, [u32::from_str_radix(mode, 8).expect("octal"); 3], "{to} {mode} {more:?}");
                holds(&lab.join("into/d/file"), text.as_bytes());
                holds(&lab.join("into/d/below/file"), text.as_bytes());
            }
            // A refusal before anything is copied leaves the mode unchanged, too.
            sync(&["--backup-dir", "d/file"], side(&lab, to, "into")).expect(6);
            let into = fs::metadata(lab.join("into")).expect("it").permissions().mode() & 0o777;
            assert_eq!(into, u32::from_str_radix(mode, 8).expect("octal"), "{to}");
            open_all(&lab);
        }
    }
}

/// As with rsync and `cp --parents`: reaching a listed entry does not require the right to list its directory.
#[test]
fn directories_that_may_only_be_entered_lead_to_what_is_listed() {
    for to in ["", "h"] {
        let lab = Lab::new();
        let line = as_ordinary(&lab);
        let has_user = is_root();
        fs::create_dir_all(lab.join("from/entered/sub")).expect("directories");
        lab.0.file("from/entered/sub/file", b"1");
        lab.0.file("list", b"entered/sub/file\n");
        let attribute =
            rustix::fs::setxattr(lab.join("from/entered"), "user.colour", b"blue", rustix::fs::XattrFlags::empty());
        for (name, mode) in [("list", 0o644), ("from", 0o711), ("from/entered", 0o711), ("from/entered/sub", 0o755)] {
            let mode = if has_user || name == "list" || mode == 0o755 { mode } else { 0o111 };
            fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        }
        let copy = |more: &[&str], source: &str, into: &str| {
            let mut arguments: Vec<OsString> = ["--sync", "-r"].iter().chain(more).map(OsString::from).collect();
            arguments.extend([source.into(), side(&lab, to, into)]);
            rdcp(&lab, &line, &arguments).expect(0);
            holds(&lab.join(into).join("entered/sub/file"), b"1");
            let mode = fs::metadata(lab.join(into).join("entered")).expect("it").permissions().mode() & 0o777;
            assert_eq!(mode, if has_user { 0o711 } else { 0o111 }, "{more:?} {attribute:?}");
        };
        copy(&["-R"], "from/./entered/sub/file", "into");
        copy(&["-R"], "from/./entered/sub", "whole");
        copy(&["--files-from=list"], "from/", "listed");
        // Entries beside it cannot be found.
        let ended = rdcp(&lab, &line, &["--sync".into(), "-r".into(), "from/".into(), side(&lab, to, "all")]);
        ended.expect(5).one_line("rdcp", &["from", "errno 13"]);
        open_all(&lab);
    }
}

/// In a shared directory, this user can neither lock nor remove what another user's copy has left, and
/// waiting does not help. Such remains block no name. If they are under the name that belongs to this user's
/// copy, the error names their owner.
#[test]
fn what_another_user_has_left_blocks_no_name() {
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = Lab::new();
    lab.0.file("file", b"whole");
    fs::create_dir(lab.join("tree")).expect("a directory");
    lab.0.file("tree/file", b"whole");
    fs::create_dir(lab.join("shared")).expect("a directory");
    fs::set_permissions(lab.join("shared"), fs::Permissions::from_mode(0o1777)).expect("ours");
    let left = |user: &str, name: &str| {
        let hash = blake3::hash(format!("{name}{user}").as_bytes()).to_hex();
        let beside = lab.join(&format!("shared/.{}.rd-part", &hash[..32]));
        if name == "tree" {
            fs::create_dir(&beside).expect("a directory");
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o700)).expect("ours");
        } else {
            fs::write(&beside, "half").expect("a file");
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("ours");
        }
        std::os::unix::fs::chown(&beside, Some(4_000_001), None).expect("root");
    };
    let copy = |name: &str| {
        rdcp(
            &lab,
            &as_user(NOBODY, lab.0.path()),
            &["-r".into(), name.into(), side(&lab, "h", &format!("shared/{name}"))],
        )
    };
    // Left by root, and by another user under that user's own temporary name.
    for user in ["", "/4000001"] {
        ["file", "tree"].iter().for_each(|name| left(user, name));
    }
    for name in ["file", "tree"] {
        copy(name).expect(0);
        left(&format!("/{NOBODY}"), name);
        let to = lab.join("shared").join(name);
        if name == "tree" { fs::remove_dir_all(to) } else { fs::remove_file(to) }.expect("there");
        copy(name).expect(6).one_line("rdcp", &[".rd-part: ", "it belongs to 4000001; have it removed"]);
    }
}

/// A generation that another entry has left unfinished may have the only copy of what cannot be read any more.
#[test]
fn an_unfinished_generation_keeps_what_cannot_be_read_any_more() {
    for to in ["", "h"] {
        let lab = Lab::new();
        for directory in ["from/d", "to"] {
            fs::create_dir_all(lab.join(directory)).expect("a directory");
        }
        for name in ["from/d/file", "from/closed"] {
            lab.0.file(name, b"1");
        }
        for name in ["from", "from/d", "from/d/file", "from/closed", "to"] {
            if is_root() {
                std::os::unix::fs::chown(lab.join(name), Some(NOBODY), Some(NOBODY)).expect("root");
            }
        }
        let mode = |name: &str, mode| {
            fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        };
        let run = || {
            let words = ["-r", "--sync", "--snapshot=one", "from/"].map(OsString::from);
            rdcp(&lab, &as_ordinary(&lab), &[&words[..], &[side(&lab, to, "to")]].concat())
        };
        mode("from/closed", 0);
        run().expect(8);
        assert!(lab.join("to/one/d/file").exists());
        mode("from/d", 0);
        run().expect(8);
        assert!(lab.join("to/one/d/file").exists(), "it cannot be read any more");
        mode("from/closed", 0o644);
        mode("from/d", 0o755);
        fs::remove_dir_all(lab.join("from/d")).expect("ours");
        run().expect(0);
        assert!(!lab.join("to/one/d").exists(), "it is gone from the source");
    }
}
