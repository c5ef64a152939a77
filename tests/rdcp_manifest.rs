//! `rdcp --manifest` and `--manifest-b3sum`: what is written, where and when, and that `rdcp --check` agrees with it,
//! on this host and on others.

mod rig;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rig::lab::*;
use rig::*;

const MIB: usize = 1 << 20;

/// Makes a tree in `from` with a file for each way of sending files.
fn plant(lab: &Lab) {
    let top = lab.join("from");
    fs::create_dir_all(top.join("sub/deep")).expect("directories");
    for (name, bytes) in [("empty", 0), ("small", 5000), ("sub/middle", 300_000), ("sub/deep/large", 70 * MIB + 5)] {
        let mut data = vec![0; bytes];
        blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut data);
        fs::write(top.join(name), data).expect("a file");
    }
    let holes = fs::File::create(top.join("holes")).expect("a file");
    holes.set_len(3 * MIB as u64).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", MIB as u64).expect("data");
    fs::write(top.join(std::ffi::OsStr::from_bytes(b"back\\slash\nline")), "odd").expect("a file");
    fs::hard_link(top.join("small"), top.join("sub/again")).expect("a link");
    fs::hard_link(top.join("sub/deep/large"), top.join("sub/deep/other")).expect("a link");
    symlink("small", top.join("link")).expect("a link");
}

fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut rdcp = rdcp();
    rdcp.args(arguments);
    lab.command(rdcp, "rsh", AGENT)
}

#[track_caller]
fn run(lab: &Lab, arguments: &[&str], code: i32) -> String {
    let output = command(lab, arguments).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    text + &String::from_utf8_lossy(&output.stdout)
}

/// Checks the sums against the files, with b3sum if it is installed, otherwise by its rules.
#[track_caller]
fn sums_hold(sums: &Path, top: &Path) {
    let text = fs::read_to_string(sums).expect("sums");
    assert_eq!(text.lines().count(), 8, "{text}");
    for line in text.lines() {
        let (line, is_escaped) = line.strip_prefix('\\').map_or((line, false), |rest| (rest, true));
        let (digest, path) = line.split_once("  ").expect("two fields");
        let path = if is_escaped { path.replace("\\n", "\n").replace("\\\\", "\\") } else { path.to_owned() };
        let data = fs::read(top.join(&path)).expect("a file that is there");
        assert_eq!(digest, blake3::hash(&data).to_string(), "{path}");
    }
    if let Ok(output) = Command::new("b3sum").arg("--check").arg(sums).current_dir(top).output() {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Within a host, to another, from another and between two; for the first time, again, and after a change.
#[test]
fn the_manifest_of_a_copy_holds_and_is_the_same_wherever_it_is_made() {
    let lab = Lab::new();
    plant(&lab);
    let mut first = None;
    for (number, [from, to]) in [["", ""], ["", "a"], ["a", ""], ["a", "b"]].into_iter().enumerate() {
        let name = format!("to{number}");
        let at = |host: &str, name: &str| {
            if host.is_empty() { name.to_owned() } else { lab.there(host, name).into_string().expect("text") }
        };
        let (from, to) = (at(from, "from"), at(to, &name));
        for run_number in 0..3 {
            let options = ["-r", "--sync", "-T", "--manifest", "list", "--manifest-b3sum", "sums"];
            let options = if run_number == 0 { [&options[..1], &options[2..]].concat() } else { options.to_vec() };
            run(&lab, &[&options[..], &[&from, &to]].concat(), 0);
            let list = fs::read(lab.join("list")).expect("a manifest");
            let expected = first.get_or_insert_with(|| list.clone());
            assert!(*expected == list, "{from} {to} {run_number}");
            sums_hold(&lab.join("sums"), &lab.join(&name));
            for check in ["--check", "--check=cached"] {
                assert_eq!(run(&lab, &[check, "list", &to], 0), "");
            }
            if run_number == 1 {
                // Differences that the last run must find.
                let large = lab.join(&name).join("sub/deep/large");
                let data = fs::read(&large).expect("it");
                fs::write(&large, &data[..MIB]).expect("shorter");
                fs::remove_file(lab.join(&name).join("holes")).expect("it");
                let found = run(&lab, &["--check", "list", &to], 7);
                for line in [format!("missing {to}/holes"), format!("mtime,size {to}/sub/deep/large")] {
                    assert!(found.contains(&line), "{line}: {found}");
                }
            }
        }
    }
    assert!(partials(&lab.join(".")).is_empty());
}

#[test]
fn several_sources_are_listed_from_the_directory_that_they_come_into() {
    let lab = Lab::new();
    plant(&lab);
    fs::write(lab.join("one"), "one").expect("a file");
    fs::create_dir(lab.join("to")).expect("a directory");
    let there = |host: &str, name: &str| lab.there(host, name).into_string().expect("text");
    run(&lab, &["-r", "--manifest", "list", "one", &there("a", "from"), &there("b", "to")], 0);
    let list = fs::read_to_string(lab.join("list")).expect("a manifest");
    for path in ["one", "from", "from/sub/deep/large"] {
        assert!(list.lines().any(|line| line.ends_with(&format!("\t{path}"))), "{path}: {list}");
    }
    run(&lab, &["--check", "list", "to"], 0);
    run(&lab, &["-r", "--manifest", "list", "one", "from", "to"], 0);
    assert_eq!(fs::read_to_string(lab.join("list")).expect("a manifest"), list);
}

#[test]
fn it_is_not_written_where_it_would_list_itself_or_be_copied() {
    let lab = Lab::new();
    plant(&lab);
    fs::create_dir(lab.join("to")).expect("a directory");
    symlink("to", lab.join("alias")).expect("a link");
    symlink("from/sub", lab.join("elsewhere")).expect("a link");
    for file in ["to/list", "alias/list", "from/list", "elsewhere/list", "to/../to/list"] {
        for option in ["--manifest", "--manifest-b3sum"] {
            let told = run(&lab, &["-r", "--sync", option, file, "from/", "to"], 1);
            assert!(told.contains("which it lists") && told.lines().count() == 1, "{told}");
        }
    }
    // In a directory that the copy itself would make.
    run(&lab, &["-r", "--manifest", "new", "from", "new"], 1);
    for (arguments, part) in [
        (&["--manifest", "list", "from/small", "copy"][..], "--recursive"),
        (&["-r", "--manifest", "host:list", "from", "copy"], "on this host"),
        (&["-rn", "--manifest", "list", "from", "copy"], "cannot be used with"),
        (&["-r", "--manifest", "list", "--manifest-b3sum", "list", "from", "copy"], "the same file"),
    ] {
        let told = run(&lab, arguments, 1);
        assert!(told.contains(part), "{told}");
    }
    let told = run(&lab, &["-r", "--manifest", "none/list", "from", "copy"], 6);
    assert!(told.contains("cannot write the manifest") && told.lines().count() == 1, "{told}");
    assert!(!lab.join("copy").exists() && fs::read_dir(lab.join("to")).expect("it").next().is_none());
}

/// The older manifest stays, and a line says so.
#[test]
fn a_copy_that_leaves_something_out_has_no_manifest() {
    let lab = Lab::new();
    plant(&lab);
    fs::write(lab.join("list"), "older").expect("a file");
    fs::create_dir_all(lab.join("to/from/small")).expect("in its way");
    fs::write(lab.join("to/from/small/file"), "").expect("a file");
    for to in ["to".to_owned(), lab.there("a", "to").into_string().expect("text")] {
        let told = run(&lab, &["-r", "--manifest", "list", "from", &to], 8);
        assert!(told.contains("no manifest is written to list"), "{told}");
        assert_eq!(fs::read(lab.join("list")).expect("it"), b"older");
    }
    assert!(partials(&lab.join(".")).is_empty());
}

/// Errors in a manifest or a directory of another host have the same exit code as on this host.
#[test]
fn a_directory_of_another_host_is_checked_there() {
    let lab = Lab::new();
    plant(&lab);
    run(&lab, &["-r", "--manifest", "list", "from", "copy"], 0);
    let copy = lab.there("a", "copy").into_string().expect("text");
    let list = fs::read(lab.join("list")).expect("it");
    fs::write(lab.join("cut"), &list[..list.len() - 3]).expect("a file");
    let told = run(&lab, &["--check", "cut", &copy], 5);
    assert!(told.contains("cannot read the manifest cut") && told.contains("truncated after line"), "{told}");
    run(&lab, &["--check", "none", &copy], 5);
    let told = run(&lab, &["--check", "list", &lab.there("a", "none").into_string().expect("text")], 6);
    assert!(told.contains("cannot read a:") && told.lines().count() == 1, "{told}");
    fs::write(lab.join("copy/more"), "").expect("a file");
    let told = run(&lab, &["--check", "--json", "list", &copy], 7);
    assert!(told.contains(r#""host":"a""#) && told.contains(r#""differs":["extra"]"#), "{told}");
}

/// A manifest replaces only a regular file, which is checked before anything is copied. A link keeps its
/// target, and the file its mode.
#[test]
fn only_files_are_replaced() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("a directory");
    lab.0.file("from/file", b"1");
    let name = |name: &str| lab.join(name).into_os_string().into_string().expect("UTF-8");
    let (from, to) = (name("from"), name("to"));
    let node = |path: &str, kind, device| {
        rustix::fs::mknodat(rustix::fs::CWD, lab.join(path), kind, rustix::fs::Mode::from_raw_mode(0o600), device)
    };
    node("fifo", rustix::fs::FileType::Fifo, 0).expect("a FIFO");
    symlink("fifo", lab.join("leads-to-fifo")).expect("a link");
    let mut others = vec!["fifo", "leads-to-fifo"];
    // A device such as /dev/null, which only root can make.
    if node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)).is_ok() {
        others.push("null");
    }
    for (other, option) in others.iter().flat_map(|other| [(other, "--manifest"), (other, "--manifest-b3sum")]) {
        let before = fs::symlink_metadata(lab.join(other)).expect("it").file_type();
        let told = run(&lab, &["-r", option, &name(other), &from, &to], 1);
        assert!(told.contains("not a regular file") && told.contains(other), "{told}");
        assert!(!lab.join("to").exists(), "{option} {other}");
        assert_eq!(fs::symlink_metadata(lab.join(other)).expect("it").file_type(), before);
    }
    lab.0.file("manifest", b"older");
    fs::set_permissions(lab.join("manifest"), fs::Permissions::from_mode(0o600)).expect("ours");
    symlink("manifest", lab.join("leads-to-manifest")).expect("a link");
    run(&lab, &["-r", "--manifest", &name("leads-to-manifest"), &from, &to], 0);
    assert!(fs::symlink_metadata(lab.join("leads-to-manifest")).expect("it").is_symlink());
    assert_eq!(fs::metadata(lab.join("manifest")).expect("it").permissions().mode() & 0o7777, 0o600);
    run(&lab, &["--check", &name("manifest"), &to], 0);
    // Two names of one file.
    fs::remove_dir_all(lab.join("to")).expect("it");
    for (one, other) in [("new", "./new"), ("new", "from/../new"), ("manifest", "leads-to-manifest")] {
        let told = run(&lab, &["-r", "--manifest", &name(one), "--manifest-b3sum", &name(other), &from, &to], 1);
        assert!(told.contains("name the same file") && !lab.join("to").exists(), "{told}");
    }
}
