//! What `rdcp` preserves of each kind of entry, and what must not be mistaken for an entry: its own temporary names,
//! other names of files, rights that come from the destination. Within a host and between hosts, with a launcher that
//! runs the agent on this host.

mod rig;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rig::lab::*;
use rig::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, listxattr, makedev, mknodat, setxattr};

/// Hosts of source and destination.
const WAYS: [(&str, &str); 3] = [("", "h"), ("h", ""), ("", "")];

fn side(lab: &Lab, host: &str, name: &str) -> OsString {
    if host.is_empty() { lab.join(name).into() } else { lab.there(host, name) }
}

fn rdcp(lab: &Lab, arguments: &[OsString]) -> Ended {
    let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
    Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("installed (tests/testbed/deps)");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn setfacl(arguments: &[&str], path: &Path) {
    run(Command::new("setfacl").args(arguments).arg(path));
}

/// Returns getfacl's output for a tree: modes, owners, ACLs.
fn rights(top: &Path) -> String {
    run(Command::new("getfacl").args(["-RPn", "."]).current_dir(top))
}

/// Returns the attributes in the user's and root's namespaces, with their values.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut list, mut value) = (vec![0; 65536], vec![0; 65536]);
    let length = listxattr(path, &mut list[..]).expect("a list");
    let names = list[..length].split(|&byte| byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    let ours = names.filter(|name| name.starts_with("user.") || name.starts_with("trusted."));
    ours.map(|name| {
        let length = getxattr(path, &name, &mut value[..]).expect("a value");
        (name, value[..length].to_vec())
    })
    .collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A file, and what an interrupted update has left beside it.
#[test]
fn what_a_cut_copy_left_is_not_copied() {
    const MIB: usize = 1 << 20;
    let lab = Lab::new();
    fs::create_dir_all(lab.join("data/sub")).expect("ours");
    for (number, (from, to)) in WAYS.into_iter().enumerate() {
        for (bytes, option) in [(64 * MIB, ""), (2 * MIB, "--verify=disk"), (2 * MIB, ""), (9, "")] {
            if !option.is_empty() && (from, to) == ("", "") {
                continue;
            }
            let (whole, left) = (noise(bytes), noise(bytes + 1));
            lab.0.file("data/foo", &whole);
            let leftovers = [
                name_beside("foo", "rd-part"),
                format!("sub/{}", name_beside("foo", "rd-link")),
                // Of any file, even one that does not exist.
                name_beside("bar", "rd-part"),
            ];
            for name in &leftovers {
                let path = lab.0.file(&format!("data/{name}"), &left[1..]);
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
            }
            let backup = format!("backup{number}-{bytes}{option}");
            let mut arguments: Vec<OsString> = vec!["-r".into(), side(&lab, from, "data"), side(&lab, to, &backup)];
            arguments.extend((!option.is_empty()).then(|| option.into()));
            let ended = rdcp(&lab, &arguments);
            for name in &leftovers {
                assert!(ended.expect(0).stderr.contains(name), "{name} is named: {}", ended.stderr);
            }
            assert_eq!(ended.stderr.lines().count(), 3, "{}", ended.stderr);
            let backup = lab.join(&backup);
            holds(&backup.join("foo"), &whole);
            assert_eq!((names(&backup), names(&backup.join("sub"))), (vec!["foo".into(), "sub".into()], vec![]));
        }
        // A temporary name is refused as a source, and as the name of a new file.
        let part = name_beside("foo", "rd-part");
        let ended = rdcp(&lab, &[side(&lab, from, &format!("data/{part}")), side(&lab, to, "taken")]);
        ended.expect(5).one_line("rdcp", &[&part, "interrupted copy"]);
        let ended = rdcp(&lab, &[side(&lab, from, "data/foo"), side(&lab, to, &part)]);
        ended.expect(6).one_line("rdcp", &[&part, "name"]);
        assert!(!lab.join("taken").exists() && !lab.join(&part).exists());
    }
}

/// A file with several names is not written in place: another name may be the source, or another destination.
#[test]
fn in_place_spares_what_has_other_names() {
    let lab = Lab::new();
    for (number, (from, to)) in WAYS.into_iter().enumerate() {
        let (source, target) = (format!("from{number}"), format!("to{number}"));
        for name in [&source, &target] {
            fs::create_dir(lab.join(name)).expect("ours");
        }
        let (source, target) = (lab.join(&source), lab.join(&target));
        for name in ["alone", "one", "other", "shared"] {
            fs::write(source.join(name), format!("new {name}")).expect("ours");
        }
        fs::write(source.join("large"), noise(3 << 20)).expect("ours");
        for name in ["shared", "large"] {
            fs::hard_link(source.join(name), target.join(name)).expect("ours");
        }
        fs::write(target.join("one"), "old").expect("ours");
        fs::hard_link(target.join("one"), target.join("other")).expect("ours");
        fs::write(target.join("alone"), "old").expect("ours");
        let inode = fs::metadata(target.join("alone")).expect("it").ino();
        let contents = side(&lab, from, &format!("from{number}/."));
        let ended = rdcp(&lab, &["-r".into(), "--in-place".into(), contents, side(&lab, to, &format!("to{number}"))]);
        for name in ["one", "other", "shared", "large"] {
            let line = ended.stderr.lines().find(|line| line.contains(&format!("/{name}")));
            assert!(
                line.is_some_and(|line| line.contains("other hard links") || line.contains("same file")),
                "{}",
                ended.stderr
            );
        }
        ended.expect(8);
        holds(&source.join("shared"), b"new shared");
        holds(&source.join("large"), &noise(3 << 20));
        holds(&target.join("one"), b"old");
        holds(&target.join("alone"), b"new alone");
        assert_eq!(fs::metadata(target.join("alone")).expect("it").ino(), inode);
    }
}

/// A link leads from the source to what would be written over. With `--sync` such a file is the same.
#[test]
fn in_place_spares_what_a_link_of_the_source_leads_to() {
    let lab = Lab::new();
    let contents = [("large", noise(200_000)), ("small", noise(500))];
    for name in ["from", "to"] {
        fs::create_dir(lab.join(name)).expect("ours");
    }
    for (name, bytes) in &contents {
        fs::write(lab.join("to").join(name), bytes).expect("ours");
        symlink(format!("../to/{name}"), lab.join("from").join(name)).expect("a link");
    }
    fs::write(lab.join("from/new"), "new").expect("ours");
    for (option, code) in [("", 8), ("--sync", 0)] {
        let paths = [side(&lab, "", "from/."), side(&lab, "", "to")];
        let options = ["-rL", "--in-place", option].into_iter().filter(|option| !option.is_empty());
        let ended = rdcp(&lab, &options.map(OsString::from).chain(paths).collect::<Vec<_>>());
        for (name, bytes) in &contents {
            holds(&lab.join("to").join(name), bytes);
            let is_itself = |line: &str| line.contains(name) && line.contains("is the source itself");
            assert_eq!(ended.stderr.lines().any(is_itself), code == 8, "{}", ended.stderr);
        }
        ended.expect(code);
        holds(&lab.join("to/new"), b"new");
    }
}

/// Users admitted by an ACL of the destination's directory get no access to entries that have their own mode.
#[test]
fn what_is_no_file_keeps_no_acl_of_the_destination() {
    if !is_root() {
        return not_run("needs root, to make devices");
    }
    let lab = Lab::new();
    let from = lab.join("from");
    fs::create_dir(&from).expect("ours");
    let make = |name: &str, kind, device| {
        mknodat(CWD, from.join(name), kind, Mode::from_raw_mode(0o660), device).expect("root's");
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(0o660)).expect("ours");
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("null", FileType::CharacterDevice, makedev(1, 3));
    make("loop", FileType::BlockDevice, makedev(7, 200));
    setfacl(&["-m", "u:77:rw"], &from.join("fifo"));
    for (number, (from_host, to)) in WAYS.into_iter().enumerate() {
        let target = format!("to{number}");
        fs::create_dir(lab.join(&target)).expect("ours");
        setfacl(&["-dm", "u:1000:rw"], &lab.join(&target));
        rdcp(&lab, &["-r".into(), side(&lab, from_host, "from"), side(&lab, to, &target)]).expect(0);
        assert_eq!(rights(&from), rights(&lab.join(&target).join("from")));
        // One by one: each is a root of the copy, in a directory that is not made anew.
        let each = names(&from).into_iter().map(|name| side(&lab, from_host, &format!("from/{name}")));
        let arguments: Vec<OsString> = ["-r".into()].into_iter().chain(each).chain([side(&lab, to, &target)]).collect();
        rdcp(&lab, &arguments).expect(0);
        for name in names(&from) {
            let acl = |top: &Path| run(Command::new("getfacl").args(["-n", &name]).current_dir(top));
            assert_eq!(acl(&from), acl(&lab.join(&target)), "{name}");
        }
        let mut open = Command::new("setpriv");
        open.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", "exec 3>null"]);
        // The attempt may fail earlier, because a directory on the way may be closed.
        let status = open.current_dir(lab.join(&target)).stderr(Stdio::null()).status().expect("util-linux");
        assert!(!status.success(), "another user opens a device");
    }
}

/// Without modes, new entries get the same rights as with cp: those from the umask or the directory's default ACL.
#[test]
fn no_mode_is_as_cp_without_p() {
    let lab = Lab::new();
    let from = lab.join("from");
    fs::create_dir_all(from.join("sub/below")).expect("ours");
    for (name, mode) in [("file", 0o666), ("program", 0o4777), ("sub/private", 0o600), ("sub/below/read", 0o444)] {
        fs::write(from.join(name), "text").expect("ours");
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    lab.0.fifo("from/sub/fifo");
    for (name, mode) in [("from/sub/fifo", 0o666), ("from/sub/below", 0o777), ("from/sub", 0o2750)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    for (number, (from_host, to)) in WAYS.into_iter().enumerate() {
        for (acl, mode) in [(None, 0o2755), (Some("u:1000:rwx,g::r-x,o::-"), 0o755), (Some("m::rx,u:1000:rw"), 0o2777)]
        {
            let tops = ["ours", "cp's"].map(|who| lab.join(&format!("{who}{number}{acl:?}{mode}")));
            for top in &tops {
                fs::create_dir(top).expect("ours");
                if is_root() {
                    std::os::unix::fs::chown(top, None, Some(1234)).expect("root's");
                }
                fs::set_permissions(top, fs::Permissions::from_mode(mode)).expect("ours");
                acl.inspect(|acl| setfacl(&["-dm", acl], top));
                // An existing file keeps its mode and its ACL.
                fs::write(top.join("kept"), "old").expect("ours");
                setfacl(&["-b", "-m", "u:77:rw,g::-"], &top.join("kept"));
            }
            fs::write(from.join("kept"), "new").expect("ours");
            let [ours, theirs] = tops;
            for name in ["file", "program", "sub", "kept"] {
                run(Command::new("cp").arg("-r").arg(from.join(name)).arg(&theirs));
            }
            let options = ["-r", "--no-mode", "--no-owner", "--no-times"].map(OsString::from).into_iter();
            let sources = ["file", "program", "sub", "kept"].map(|name| side(&lab, from_host, &format!("from/{name}")));
            let name = ours.file_name().expect("a name").to_str().expect("text");
            let arguments: Vec<OsString> = options.chain(sources).chain([side(&lab, to, name)]).collect();
            rdcp(&lab, &arguments).expect(0);
            assert_eq!(rights(&ours), rights(&theirs), "{from_host}>{to} {acl:?} {mode:o}");
        }
    }
}

/// A stream has no mode of its own. If it replaces a file, it gets that file's rights, including its ACL.
#[test]
fn a_stream_keeps_the_acl_of_the_file_that_it_replaces() {
    let lab = Lab::new();
    let copy = |to: OsString| {
        let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
        let input = fs::File::open(lab.0.file("input", b"new")).expect("ours");
        Process::spawn(command.arg("-").arg(to).stdin(input).stdout(Stdio::null())).wait()
    };
    for host in ["", "h"] {
        for (name, acl) in [("more", "u:77:rw,g::-,o::r"), ("less", "u:77:-,g::rw,m::rw"), ("plain", "g::r")] {
            let path = lab.0.file(name, b"old");
            setfacl(&["-m", acl], &path);
            let rights = || run(Command::new("getfacl").args(["-n", name]).current_dir(lab.0.path()));
            let before = rights();
            copy(side(&lab, host, name)).expect(0);
            holds(&path, b"new");
            assert_eq!(rights(), before, "{host} {name}");
        }
        copy(side(&lab, host, &name_beside("file", "rd-part")))
            .expect(6)
            .one_line("rdcp", &["rd-part", "choose another"]);
    }
}

/// The group bits of a file with an ACL are the ACL's mask. Without the ACL they must not become the group's rights.
#[test]
fn without_its_acl_a_file_gives_its_group_no_more() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("ours");
    lab.0.fifo("from/fifo");
    for name in ["read", "none", "masked"] {
        lab.0.file(&format!("from/{name}"), b"text");
    }
    fs::create_dir(lab.join("from/sub")).expect("ours");
    let acls = [
        ("read", "u:77:rwx,g::r"),
        ("none", "u:77:rwx,g::-"),
        ("masked", "u:77:r,g::rwx,m::r"),
        ("sub", "u:77:rwx,g::rx"),
        ("fifo", "u:77:rw,g::-"),
    ];
    for (name, acl) in acls {
        setfacl(&["-m", acl], &lab.join("from").join(name));
    }
    for (number, (from, to)) in WAYS.into_iter().enumerate() {
        for option in ["--no-xattrs", "--no-mode"] {
            let target = format!("to{number}{option}");
            rdcp(&lab, &["-r".into(), option.into(), side(&lab, from, "from"), side(&lab, to, &target)]).expect(0);
            let bits = |name: &str| {
                let metadata = fs::symlink_metadata(lab.join(&target).join(name)).expect("copied");
                metadata.mode() >> 3 & 7
            };
            let all = ["read", "none", "masked", "sub", "fifo"].map(bits);
            assert_eq!(all, [4, 0, 4, 5, 0], "{from}>{to} {option}");
            let text = rights(&lab.join(&target));
            assert!(!text.contains("user:77"), "{text}");
        }
    }
}

/// Several names of one entry, of any kind, are names of one copy.
#[test]
fn entries_of_every_kind_keep_their_further_names() {
    let lab = Lab::new();
    let from = lab.join("from");
    fs::create_dir_all(from.join("a")).expect("ours");
    fs::create_dir(from.join("z")).expect("ours");
    fs::write(from.join("a/file"), "text").expect("ours");
    fs::write(from.join("a/large"), noise(3 << 20)).expect("ours");
    symlink("nowhere", from.join("a/link")).expect("ours");
    symlink("..", from.join("a/up")).expect("ours");
    lab.0.fifo("from/a/fifo");
    mknodat(CWD, from.join("a/socket"), FileType::Socket, Mode::from_raw_mode(0o600), 0).expect("ours");
    if is_root() {
        mknodat(CWD, from.join("a/null"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, 3))
            .expect("root's");
    }
    for name in names(&from.join("a")) {
        for other in [format!("a/{name}-too"), format!("z/{name}")] {
            fs::hard_link(from.join("a").join(&name), from.join(other)).expect("ours");
        }
    }
    for (number, (from_host, to)) in WAYS.into_iter().enumerate() {
        for again in [false, true] {
            let target = format!("to{number}");
            if again {
                // Over existing entries of the same and of other kinds.
                for name in ["a/link", "a/fifo-too", "z/socket", "z/file"] {
                    let path = lab.join(&target).join(name);
                    fs::remove_file(&path).expect("ours");
                    fs::write(path, "old").expect("ours");
                }
            }
            rdcp(&lab, &["-rT".into(), side(&lab, from_host, "from"), side(&lab, to, &target)]).expect(0);
            let groups = |top: &Path| {
                let mut groups: BTreeMap<u64, (bool, Vec<PathBuf>)> = BTreeMap::new();
                for directory in ["a", "z"] {
                    for name in names(&top.join(directory)) {
                        let path = Path::new(directory).join(name);
                        let stat = fs::symlink_metadata(top.join(&path)).expect("listed");
                        let group = groups.entry(stat.ino()).or_default();
                        group.0 = stat.file_type().is_fifo();
                        group.1.push(path);
                    }
                }
                let mut groups: Vec<_> = groups.into_values().collect();
                groups.sort();
                groups
            };
            assert_eq!(groups(&from), groups(&lab.join(&target)), "{from_host}>{to} {again}");
        }
        // A link to an entry of an excluded kind is not copied, and neither are its other names.
        let bare = format!("bare{number}");
        let options = ["-rT", "--no-symlinks", "--no-specials"].map(OsString::from).into_iter();
        let both = [side(&lab, from_host, "from"), side(&lab, to, &bare)];
        rdcp(&lab, &options.chain(both).collect::<Vec<_>>()).expect(0);
        assert_eq!(names(&lab.join(&bare).join("z")), ["file", "large"]);
    }
}

/// An existing directory, and a file that is written in place, get exactly the attributes of their sources.
#[test]
fn attributes_of_what_was_there_before_go() {
    let lab = Lab::new();
    for (number, (from_host, to)) in WAYS.into_iter().enumerate() {
        let (from, target) = (lab.join(&format!("from{number}")), lab.join(&format!("to{number}")));
        for top in [&from, &target] {
            fs::create_dir_all(top.join("sub")).expect("ours");
            fs::write(top.join("sub/file"), top.to_str().expect("text")).expect("ours");
        }
        for name in [".", "sub", "sub/file"] {
            for (top, attributes) in [(&from, ["user.new", "user.both"]), (&target, ["user.stale", "user.both"])] {
                for attribute in attributes {
                    let value = top.as_os_str().as_encoded_bytes();
                    setxattr(top.join(name), attribute, value, XattrFlags::empty()).expect("user attributes");
                }
            }
            setfacl(&["-m", "u:99:rx"], &target.join(name));
            if is_root() {
                // Must not be removed, because its purpose is unknown.
                setxattr(target.join(name), "trusted.kept", b"1", XattrFlags::empty()).expect("root's");
            }
        }
        setfacl(&["-dm", "u:99:rx"], &target.join("sub"));
        let contents = side(&lab, from_host, &format!("from{number}/."));
        let into = side(&lab, to, &format!("to{number}"));
        // Nothing changes if attributes are not preserved.
        let ended =
            rdcp(&lab, &["-r".into(), "--in-place".into(), "--no-xattrs".into(), contents.clone(), into.clone()]);
        ended.expect(0);
        assert!([".", "sub", "sub/file"].iter().all(|name| attributes(&target.join(name)).contains_key("user.stale")));
        rdcp(&lab, &["-r".into(), "--in-place".into(), contents, into]).expect(0);
        for name in [".", "sub", "sub/file"] {
            let mut there = attributes(&target.join(name));
            assert_eq!(there.remove("trusted.kept").is_some(), is_root(), "{name}");
            assert_eq!(there, attributes(&from.join(name)), "{from_host}>{to} {name}");
        }
        assert_eq!(rights(&from), rights(&target));
    }
}

/// Like [`rdcp`], with temporary files in a directory of the laboratory, which may be missing.
fn rdcp_with_temporary(lab: &Lab, temporary: &str, arguments: &[OsString]) -> Ended {
    let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
    command.env("TMPDIR", lab.join(temporary)).args(arguments);
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

/// More hard links than fit in memory go to a temporary file. Without that file some become separate files,
/// which is always reported.
#[test]
fn hard_links_that_are_lost_are_a_failure() {
    let lab = Lab::new();
    // With long paths, few files are enough.
    let mut deep = PathBuf::from("tree");
    (0..12).for_each(|_| deep.push("d".repeat(250)));
    for directory in [Path::new("tmp"), Path::new("tree/later"), &deep] {
        fs::create_dir_all(lab.join(directory.to_str().expect("UTF-8"))).expect("a directory");
    }
    const FILES: usize = 3500;
    for number in 0..FILES {
        let first = lab.join(deep.to_str().expect("UTF-8")).join(format!("{number}"));
        fs::write(&first, b"").expect("a file");
        fs::hard_link(&first, lab.join("tree/later").join(format!("{number}"))).expect("a link");
    }
    for (number, (from, to)) in WAYS.into_iter().enumerate() {
        for (temporary, code) in [("tmp", 0), ("none", 8)] {
            let name = format!("{temporary}{number}");
            let ended =
                rdcp_with_temporary(&lab, temporary, &["-r".into(), side(&lab, from, "tree"), side(&lab, to, &name)]);
            ended.expect(code);
            let later = fs::read_dir(lab.join(&name).join("later")).expect("it").map(|entry| entry.expect("it"));
            let linked = later.filter(|entry| entry.metadata().expect("it").nlink() == 2).count();
            assert_eq!(linked == FILES, code == 0, "{linked}");
            let lines =
                ended.stderr.lines().filter(|line| line.contains("hard links are copied as separate files")).count();
            assert_eq!(lines, usize::from(code != 0), "{}", ended.stderr);
            let is_named = ended.stderr.contains("/none: No such file or directory") && ended.stderr.contains("TMPDIR");
            assert_eq!(is_named, code != 0, "{}", ended.stderr);
            run(Command::new("rm").arg("-r").arg(lab.join(&name)));
        }
    }
}

/// More names of one directory than fit in memory are sorted in a temporary file. If that file cannot be made, the
/// error does not blame the directory.
#[test]
fn names_that_cannot_be_sorted_are_said_to_be_so() {
    let lab = Lab::new();
    for directory in ["tmp", "tree/huge", "small/huge"] {
        fs::create_dir_all(lab.join(directory)).expect("a directory");
    }
    for number in 0..16_500 {
        fs::write(lab.join("tree/huge").join(format!("{number:0250}")), b"").expect("a file");
    }
    fs::write(lab.join("small/huge/other"), b"").expect("a file");
    for (number, (from, to)) in WAYS.into_iter().enumerate() {
        let name = format!("to{number}");
        let copy = |temporary, source: &str| {
            let mut arguments: Vec<OsString> = ["-r", "--sync", "--delete"].map(Into::into).into();
            arguments.extend([side(&lab, from, source), side(&lab, to, &name)]);
            rdcp_with_temporary(&lab, temporary, &arguments)
        };
        let expect = |ended: Ended, what: &str| {
            ended.expect(8);
            let is_said = |line: &str| line.contains(what) && line.contains("temporary directory");
            assert!(ended.stderr.lines().any(is_said), "{from} {to}: {}", ended.stderr);
        };
        expect(copy("none", "tree/"), "cannot read");
        copy("tmp", "tree/").expect(0);
        expect(copy("none", "small/"), "cannot write");
        copy("tmp", "small/").expect(0);
        assert_eq!(fs::read_dir(lab.join(&name).join("huge")).expect("it").count(), 1);
    }
}
