//! `rdcp` under a umask that takes rights from the owner of what is made, as some scripts set it before they write
//! secrets, and onto what its owner may not write to: within a host, and to another host that a launcher simulates.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Stdio;

use rig::lab::*;
use rig::others::{NOBODY, as_user_by};
use rig::*;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs rdcp without the rights of root.
fn rdcp(lab: &Lab, umask: &str, arguments: &[OsString]) -> Ended {
    let line = match is_root() {
        true => as_user_by(&format!("sh -c 'umask {umask} && exec \"$@\"' sh"), NOBODY, lab.0.path()),
        false => format!("umask {umask} && exec \"$@\""),
    };
    let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
    let mut command = in_shell(&line, command.args(arguments));
    Process::spawn(command.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

#[test]
fn a_umask_that_takes_rights_from_the_owner_keeps_no_copy_from_its_own_directories() {
    let lab = Lab::for_users();
    fs::create_dir_all(lab.join("from/sub")).expect("directories");
    lab.0.file("from/sub/file", b"1");
    for (name, mode) in [("from", 0o755), ("from/sub", 0o750), ("from/sub/file", 0o640)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        if is_root() {
            chown(lab.join(name), Some(NOBODY), Some(NOBODY)).expect("root");
        }
    }
    let mode = |name: &str| fs::metadata(lab.join(name)).expect("there").mode() & 0o7777;
    for (umask, to) in [("0777", ""), ("0777", "h"), ("0177", ""), ("0177", "h")] {
        let name = |kind: &str| format!("{kind}{umask}{to}");
        let side = |kind: &str| if to.is_empty() { name(kind).into() } else { lab.there(to, &name(kind)) };
        let run = |options: &[&str], kind: &str| {
            let options = ["-r"].iter().chain(options).map(OsString::from);
            let arguments: Vec<OsString> = options.chain(["from/".into(), side(kind)]).collect();
            rdcp(&lab, umask, &arguments).expect(0);
        };
        let is_whole = |top: &str| {
            holds(&lab.join(top).join("sub/file"), b"1");
            let modes = ["sub", "sub/file"].map(|below| mode(&format!("{top}/{below}")));
            assert_eq!(modes, [0o750, 0o640], "{top}");
        };
        run(&["-T"], "new");
        is_whole(&name("new"));
        fs::create_dir(lab.join(&name("existing"))).expect("a directory");
        fs::set_permissions(lab.join(&name("existing")), fs::Permissions::from_mode(0o777)).expect("ours");
        if is_root() {
            chown(lab.join(&name("existing")), Some(NOBODY), Some(NOBODY)).expect("root");
        }
        let cache = lab.join(&name("cache"));
        let with_cache = format!("--digest-cache={}", cache.display());
        run(&["--sync", "--checksum", &with_cache], "existing");
        is_whole(&name("existing"));
        assert_eq!(mode(&name("cache")), 0o600);
        run(&["--sync", "--snapshot=one"], "generations");
        is_whole(&format!("{}/one", name("generations")));
    }
}

/// An interrupted copy may have given directories their final modes.
#[test]
fn a_closed_directory_that_a_copy_has_left_is_not_in_the_way() {
    let lab = Lab::for_users();
    fs::create_dir_all(lab.join("from/sub")).expect("directories");
    lab.0.file("from/file", b"1");
    lab.0.file("from/sub/file", b"2");
    let user = if is_root() { NOBODY } else { rustix::process::geteuid().as_raw() };
    for to in ["", "h"] {
        let name = format!("to{to}");
        let hash = blake3::hash(format!("{name}/{user}").as_bytes()).to_hex();
        let beside = lab.join(&format!(".{}.rd-part", &hash[..32]));
        fs::create_dir_all(beside.join("sub")).expect("directories");
        fs::write(beside.join("sub/file"), b"older").expect("a file");
        for left in ["sub/file", "sub", ""] {
            chown(beside.join(left), Some(user), None).expect("ours, or root may");
        }
        fs::set_permissions(beside.join("sub"), fs::Permissions::from_mode(0o555)).expect("ours, or root may");
        // With the mark that it gets where others may rename entries.
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o1000)).expect("ours, or root may");
        let side = if to.is_empty() { name.clone().into() } else { lab.there(to, &name) };
        rdcp(&lab, "022", &["-r".into(), "from".into(), side]).expect(0);
        holds(&lab.join(&name).join("file"), b"1");
        holds(&lab.join(&name).join("sub/file"), b"2");
        assert!(!beside.exists());
    }
}

/// As with rsync: the mode that a copy has given a file does not keep the next copy from writing to it.
#[test]
fn files_that_their_owner_may_not_write_to_are_written_in_place() {
    let lab = Lab::for_users();
    let user = is_root().then_some(NOBODY);
    let own = |name: &str, mode| {
        chown(lab.join(name), user, user).expect("ours, or root may");
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours, or root may");
    };
    fs::create_dir(lab.join("into")).expect("a directory");
    own("into", 0o755);
    let place = lab.join("into/file");
    let plant = |new: &[u8], old: &[u8], mode| {
        for (name, bytes, mode) in [("file", new, 0o440), ("into/file", old, mode)] {
            let _ = fs::remove_file(lab.join(name));
            lab.0.file(name, bytes);
            own(name, mode);
        }
    };
    for to in ["", "h"] {
        let run = |options: &[&str]| {
            let side = if to.is_empty() { "into/file".into() } else { lab.there(to, "into/file") };
            let options = ["--sync"].iter().chain(options).map(OsString::from);
            rdcp(&lab, "022", &options.chain(["file".into(), side]).collect::<Vec<_>>())
        };
        for (bytes, options, mode, becomes) in [
            (5_000, &["--in-place"][..], 0o444, 0o440),
            (5_000, &["--in-place"], 0, 0o440),
            (5_000, &["--in-place", "--no-mode"], 0o444, 0o444),
            (700_000, &["--in-place"], 0o444, 0o440),
            (700_000, &["--in-place"], 0, 0o440),
            (700_000, &["--append-verify"], 0o444, 0o440),
        ] {
            let new = noise(bytes);
            plant(&new, &new[..bytes / 3], mode);
            let inode = fs::metadata(&place).expect("there").ino();
            run(options).expect(0);
            holds(&place, &new);
            let stat = fs::metadata(&place).expect("there");
            assert_eq!((stat.ino(), stat.mode() & 0o7777), (inode, becomes), "{to} {options:?} {mode:o}");
            assert_eq!(fs::read_dir(lab.join("into")).expect("it").count(), 1, "{to} {options:?} {mode:o}");
        }
        // The large file from above is the same, although its mode had to be changed for a moment.
        let ended = run(&["--in-place", "--checksum", "-v"]);
        let line = ended.expect(0).stderr.lines().last().expect("a line").to_owned();
        assert!(line.contains("1 file compared") && line.contains(": none "), "{to}: {line}");
        assert_eq!(fs::metadata(&place).expect("there").mode() & 0o7777, 0o440);
        plant(b"new", b"of another length", 0o444);
        fs::hard_link(&place, lab.join("other")).expect("ours, or root may");
        run(&["--in-place"]).expect(6).one_line("rdcp", &["into/file", "has other hard links"]);
        holds(&place, b"of another length");
        assert_eq!(fs::metadata(&place).expect("there").mode() & 0o7777, 0o444);
        fs::remove_file(lab.join("other")).expect("ours, or root may");
    }
}

/// The marker is closed to this user, so whether the other one's copy is still writing cannot be seen.
#[test]
fn what_another_user_has_marked_is_not_written_to() {
    if !is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = Lab::for_users();
    for name in ["from", "into"] {
        fs::create_dir(lab.join(name)).expect("a directory");
        lab.0.file(&format!("{name}/file"), b"1");
    }
    for (name, mode) in [("into", 0o777), ("into/file", 0o666)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let marks = ["file", "one"].map(|name| {
        let name = format!("into/{}", name_beside(name, "rd-half"));
        lab.0.file(&name, b"");
        fs::set_permissions(lab.join(&name), fs::Permissions::from_mode(0o600)).expect("ours");
        chown(lab.join(&name), Some(4_000_001), None).expect("root");
        lab.join(&name)
    });
    for to in ["", "h"] {
        let run = |options: &[&str], from: &str, into: &str| {
            let side = if to.is_empty() { into.into() } else { lab.there(to, into) };
            let options = ["--sync"].iter().chain(options).map(OsString::from);
            rdcp(&lab, "022", &options.chain([from.into(), side]).collect::<Vec<_>>())
        };
        for option in ["--in-place", "--append-verify"] {
            // A large file, because a small one is not appended to.
            let (new, old) = (noise(700_000), noise(300_000));
            lab.0.file("file", &new);
            fs::write(lab.join("into/file"), &old).expect("a file");
            let ended = run(&[option], "file", "into/file");
            ended.expect(6).one_line("rdcp", &[".rd-half: ", "it belongs to 4000001; have it removed"]);
            holds(&lab.join("into/file"), &old);
        }
        let ended = run(&["-r", "--snapshot=one"], "from/", "into");
        assert!(
            ended.stderr.contains(".rd-half: ") && ended.stderr.contains("is closed to this user"),
            "{}",
            ended.stderr
        );
        assert!(marks.iter().all(|mark| mark.exists()) && !lab.join("into/one").exists());
    }
}

/// Nothing was made because of the destination, whatever else could not be read.
#[test]
fn a_destination_that_cannot_be_made_outweighs_what_cannot_be_read() {
    let lab = Lab::for_users();
    for name in ["from", "closed"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    lab.0.file("from/secret", b"1");
    for (name, mode) in [("from", 0o755), ("from/secret", 0), ("closed", 0o555)] {
        fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    for to in ["", "h"] {
        let new = if to.is_empty() { "closed/new".into() } else { lab.there(to, "closed/new") };
        let ended = rdcp(&lab, "022", &["-r".into(), "from".into(), new]);
        ended.expect(6);
        assert!(ended.stderr.contains("closed/new: Permission denied (errno 13)"), "{}", ended.stderr);
        assert!(!to.is_empty() || ended.stderr.contains("cannot read from/secret"), "{}", ended.stderr);
    }
    rdcp(&lab, "022", &["-r".into(), "from".into(), lab.there("h", "new")]).expect(8);
}
