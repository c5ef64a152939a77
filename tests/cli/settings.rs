//! Settings in a user's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::rig::lab::Lab;
use crate::rig::*;

/// Variable by which other tests avoid this machine's files.
const FILE: &str = "RDMA_PIPE_CONFIG";

fn ended(command: &mut Command) -> Ended {
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

/// Makes a settings file in a user's configuration directory.
fn own(scratch: &Scratch, text: &str) -> std::path::PathBuf {
    fs::create_dir_all(scratch.join("config/rdma-pipe")).expect("directories");
    scratch.file("config/rdma-pipe/config.toml", text.as_bytes())
}

#[test]
fn the_user_s_file_has_defaults_which_the_command_line_overrides() {
    let scratch = Scratch::new();
    own(&scratch, "include = ['keep.o']\nexclude = ['*.o']\nquiet = true\n");
    fs::create_dir(scratch.join("tree")).expect("a directory");
    for name in ["a.o", "b.c", "keep.o"] {
        scratch.file(&format!("tree/{name}"), b"x");
    }
    let copy = |to: &str, options: &[&str]| {
        let mut command = rdcp();
        command.env_remove(FILE).env("XDG_CONFIG_HOME", scratch.join("config")).arg("-r").args(options);
        ended(command.arg(scratch.join("tree")).arg(scratch.join(to))).expect(0);
        let mut names: Vec<_> =
            fs::read_dir(scratch.join(to)).expect("a copy").map(|it| it.expect("read").file_name()).collect();
        names.sort();
        names
    };
    // The rules follow the lines of the file.
    assert_eq!(copy("one", &[]), ["b.c", "keep.o"]);
    assert_eq!(copy("two", &["--exclude", "*.c"]), ["a.o", "keep.o"]);
    // A typed rule comes before those of the file.
    assert_eq!(copy("three", &["--include", "a.o"]), ["a.o", "b.c"]);
}

/// A file of lines, which a command without `-0` needs.
#[test]
fn a_file_of_patterns_counts_with_zero_bytes_as_well() {
    let scratch = Scratch::new();
    let patterns = scratch.file("patterns", b"*.o\n*.a\n");
    let settings = own(&scratch, &format!("exclude-from = '{}'\n", patterns.display()));
    fs::create_dir_all(scratch.join("tree/sub")).expect("directories");
    for name in ["a.o", "b.c"] {
        scratch.file(&format!("tree/sub/{name}"), b"x");
    }
    scratch.file("list", b"sub\0");
    let mut command = rdcp();
    command.current_dir(scratch.path()).env(FILE, settings).args(["--sync", "-r", "-0", "--files-from=list"]);
    ended(command.args(["tree/", "copy"])).expect(0);
    assert!(scratch.join("copy/sub/b.c").exists() && !scratch.join("copy/sub/a.o").exists());
}

#[test]
fn a_typed_option_may_need_one_that_is_set() {
    let scratch = Scratch::new();
    let settings = own(&scratch, "sync = true\nrecursive = true\n");
    fs::create_dir(scratch.join("tree")).expect("a directory");
    scratch.file("tree/a", b"x");
    let copy = |file: &std::path::Path| {
        let mut command = rdcp();
        command.env(FILE, file).args(["-u", "--max-size=1M"]);
        ended(command.arg(scratch.join("tree")).arg(scratch.join("copy")))
    };
    copy(&settings).expect(0);
    assert!(scratch.join("copy").exists());
    copy(&own(&scratch, "recursive = true\n")).expect(1).one_line("rdcp", &[" needs --sync"]);
    // Not if letters of rsync would keep another meaning: the copy would go the other way, and delete there.
    let settings = own(&scratch, "sync = true\nrecursive = true\n");
    for words in [
        &["-t", "tree/", "copy/", "--delete"][..],
        &["-C", "--delete", "copy/", "tree/"],
        &["-i", "k", "-u", "copy/tree/a", "tree/"],
    ] {
        let mut command = rdcp();
        command.current_dir(scratch.path()).env(FILE, &settings).args(words);
        ended(&mut command).expect(1).one_line("rdcp", &[" needs --sync"]);
        assert_eq!(fs::read(scratch.join("tree/a")).expect("it stays"), b"x");
    }
}

/// rsync's negations win over what is set.
#[test]
fn what_is_set_can_be_turned_off() {
    let scratch = Scratch::new();
    let settings = own(&scratch, "sync = true\nrecursive = true\nmkpath = true\n");
    fs::create_dir(scratch.join("tree")).expect("a directory");
    scratch.file("tree/a", b"x");
    let copy = |options: &[&str]| {
        let mut command = rdcp();
        command.env(FILE, &settings).args(options);
        ended(command.arg(scratch.join("tree/")).arg(scratch.join("deep/er/copy")))
    };
    assert_ne!(copy(&["--no-mkpath"]).stderr, "");
    assert!(!scratch.join("deep").exists());
    copy(&[]).expect(0);
    assert!(scratch.join("deep/er/copy").exists());
}

#[test]
fn without_home_it_is_the_account_s() {
    let home = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("accounts").expect("one of them").dir;
    let mut command = rdcp();
    command.env_remove(FILE).env_remove("HOME").env_remove("XDG_CONFIG_HOME");
    let output = command.args(["--show-config", "a", "far:b"]).output().expect("run");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(&format!("{}/.config/rdma-pipe/config.toml", home.display())), "{text}");
}

#[test]
fn show_config_tells_where_each_value_is_from() {
    let scratch = Scratch::new();
    let path = own(&scratch, "[host.far]\nlanes = 4\n");
    let mut command = rdcp();
    command.env_remove(FILE).env("XDG_CONFIG_HOME", scratch.join("config")).env("RDCP_RSH", "mine");
    let output = command.args(["--show-config", "--fsync", "a", "far:b"]).output().expect("run");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    for (value, place) in [
        ("lanes = 4", format!("{}:2", path.display())),
        ("rsh = \"mine\"", "environment variable RDCP_RSH".to_owned()),
        ("fsync = true", "command line".to_owned()),
        ("sync = false", "default".to_owned()),
    ] {
        let is_it = |line: &&str| line.starts_with(&format!("{value} ")) && line.ends_with(&format!("# {place}"));
        assert_eq!(text.lines().filter(is_it).count(), 1, "{value} # {place}: {text}");
    }
}

#[test]
fn what_is_for_copies_between_hosts_spoils_none_within_one() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"x");
    let settings = own(&scratch, "bwlimit = '200M'\nverify = true\n");
    let copy =
        |options: &[&str]| ended(rdcp().env(FILE, &settings).args(options).args([&source, &scratch.join("copy")]));
    assert_eq!(copy(&[]).expect(0).stderr, "");
    copy(&["--bwlimit", "1M"]).expect(1).one_line("rdcp", &["--bwlimit is for copies between hosts"]);
}

#[test]
fn what_is_for_one_host_spoils_no_copy_to_several() {
    let lab = Lab::new();
    let source = lab.0.file("source", b"x");
    let settings = own(&lab.0, "stats = true\nitemize-changes = true\nrelay = true\nbackup-dir = 'before'\n");
    let mut copy = lab.command(rdcp(), "rsh", AGENT);
    copy.env(FILE, &settings).arg(&source).arg("--to").arg(lab.there("h1", "1")).arg("--to").arg(lab.there("h2", "2"));
    ended(&mut copy).expect(0);
    assert!(lab.join("1").exists() && lab.join("2").exists());
    fs::create_dir(lab.join("tree")).expect("a directory");
    let mut copy = lab.command(rdcp(), "rsh", AGENT);
    copy.env(FILE, &settings).args(["--sync", "-r", "--json=-", "--snapshot=1"]);
    ended(copy.arg(lab.join("tree")).arg(lab.there("h1", "generations"))).expect(0);
    let pipe = "printf x | \"$@\"";
    let mut pipeline = in_shell(pipe, lab.command(rdpipe(), "rsh", AGENT).env(FILE, &settings).arg("h[1-2]:cat"));
    ended(&mut pipeline).expect(0);
}

#[test]
fn a_file_that_cannot_be_taken_is_one_line_and_nothing_is_done() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"x");
    let run = |path: &std::path::Path, parts: &[&str]| {
        let mut command = rdcp();
        command.env(FILE, path).arg(&source).arg(scratch.join("copy"));
        ended(&mut command).expect(1).one_line("rdcp", parts);
        assert!(!scratch.join("copy").exists());
    };
    run(&own(&scratch, "\nlanse = 4\n"), &["config.toml:2: ", "lanse", "did you mean lanes?"]);
    run(&own(&scratch, "delete = true\n"), &["config.toml:1: delete cannot be set in a file"]);
    run(&own(&scratch, "lanes = \n"), &["config.toml:1: "]);
    run(&scratch.join("none"), &["none", "which does not exist"]);
    let path = own(&scratch, "lanes = 4\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
    run(&path, &["can be written by others; read the file, ", ", then type: chmod go-w ", "config.toml"]);
    // Help is printed even so.
    let mut command = rdcp();
    ended(command.env(FILE, &path).arg("--help")).expect(0);
}

#[test]
fn no_file_is_read_on_other_hosts() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("home/.config/rdma-pipe")).expect("directories");
    fs::write(lab.join("home/.config/rdma-pipe/config.toml"), "lanse = 4\n").expect("written");
    fs::write(lab.join("source"), b"x").expect("written");
    let body = format!("unset {FILE}; exec sh -c \"$2\"");
    lab.script("unset", &body);
    let mut command = lab.command(rdcp(), "unset", AGENT);
    ended(command.arg(lab.join("source")).arg(lab.there("h1", "copy"))).expect(0);
    assert_eq!(fs::read(lab.join("copy")).expect("a copy"), b"x");
    // The caller reads the file.
    let mut command = lab.command(rdcp(), "unset", AGENT);
    command.env_remove(FILE).env_remove("XDG_CONFIG_HOME");
    ended(command.arg(lab.join("source")).arg(lab.there("h1", "again"))).expect(1).one_line("rdcp", &["lanse"]);
}
