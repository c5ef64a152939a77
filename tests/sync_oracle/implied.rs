//! Compares `--no-implied-dirs` with rsync's, for various entries in place of a directory that
//! only leads to copied ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::copies::limited;
use crate::rig::lab::Lab;
use crate::rig::{AGENT, Ended, rdcp};
use crate::snapshot::{Finding, differences, snapshot};

/// Makes the entries that DST has before the copy.
type Make = fn(&Path);

fn old(directory: &Path) {
    fs::create_dir_all(directory).expect("directories");
    fs::write(directory.join("older"), "stays").expect("a file");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o750)).expect("ours");
}

const SCENES: &[(&str, Make)] = &[
    ("nothing", |_| {}),
    ("directories", |to| old(&to.join("p/foo"))),
    ("a link beside", |to| {
        old(&to.join("p/bar"));
        symlink("bar", to.join("p/foo")).expect("a link");
    }),
    ("a link above", |to| {
        old(&to.join("elsewhere/foo"));
        symlink("./elsewhere", to.join("p")).expect("a link");
    }),
    ("a link up and down", |to| {
        old(&to.join("a/b"));
        fs::create_dir(to.join("p")).expect("a directory");
        symlink("../a/b", to.join("p/foo")).expect("a link");
    }),
    ("an absolute link", |to| {
        old(&to.join("p/bar"));
        symlink(to.join("p/bar"), to.join("p/foo")).expect("a link");
    }),
    ("a link out", |to| {
        fs::create_dir(to.join("p")).expect("a directory");
        symlink("../../out", to.join("p/foo")).expect("a link");
    }),
    ("a link to nothing", |to| {
        fs::create_dir(to.join("p")).expect("a directory");
        symlink("bar", to.join("p/foo")).expect("a link");
    }),
    ("a group that is handed down", |to| {
        old(&to.join("p"));
        // Another group, if the user may set it.
        let _ = chown(to.join("p"), None, Some(12_345));
        fs::set_permissions(to.join("p"), fs::Permissions::from_mode(0o2750)).expect("ours");
    }),
    ("rights that are handed down", |to| {
        old(&to.join("p"));
        let acl = ["setfacl", "-d", "-m", "u::rwx,u:12345:rx,g::rx,m::rwx,o::-"];
        assert!(Command::new(acl[0]).args(&acl[1..]).arg(to.join("p")).status().is_ok_and(|it| it.success()), "acl");
    }),
    ("a file", |to| {
        fs::create_dir(to.join("p")).expect("a directory");
        fs::write(to.join("p/foo"), "a file").expect("a file");
    }),
];

/// Requested paths: SRC or a list. Some of them are missing at the source.
const ASKED: &[&[&str]] = &[
    &["-R", "src/./p/foo/file"],
    &["-R", "src/./p/foo/sub/"],
    &["-R", "--delete", "src/./p/foo/file", "src/./p/foo/sub", "src/./p/top"],
    &["--files-from=list", "src/"],
    &["--delete-after", "--files-from=list", "src/"],
];

fn run(lab: &Lab, mut command: Command, asked: &[&str], to: &str) -> Ended {
    command.current_dir(lab.0.path()).args(asked).arg(to);
    limited(&command, lab.0.path(), false, 0o022, Stdio::null())
}

#[test]
fn directories_that_only_lead_to_others_are_left() {
    for asked in ASKED {
        for (name, make) in SCENES {
            let lab = Lab::new();
            for directory in ["src/p/foo/sub", "src/q", "out"] {
                fs::create_dir_all(lab.join(directory)).expect("directories");
            }
            for file in ["src/p/foo/file", "src/p/foo/sub/below", "src/p/top", "src/q/not asked for"] {
                fs::write(lab.join(file), file).expect("a file");
            }
            fs::hard_link(lab.join("src/p/foo/file"), lab.join("src/p/foo/sub/another name")).expect("linked");
            fs::set_permissions(lab.join("src/p/foo"), fs::Permissions::from_mode(0o711)).expect("ours");
            fs::write(lab.join("list"), "p/foo/file\np/foo/sub/\nq/missing\nr/missing\n").expect("a file");
            for to in ["rsync's", "rdcp's"] {
                fs::create_dir(lab.join(to)).expect("a directory");
                make(&lab.join(to));
            }
            let mut command = Command::new("rsync");
            command.args(["-aHAXS", "-r", "--no-implied-dirs"]);
            let theirs = run(&lab, command, asked, "rsync's/");
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            command.args(["--sync", "-r", "-q", "--no-implied-dirs"]);
            let ours = run(&lab, command, asked, "rdcp's/");
            let what = format!("{asked:?} onto {name}:\n{}{}", theirs.stderr, ours.stderr);
            assert_eq!(theirs.code == 0, ours.code == 0, "{what}");
            // Each absolute link leads into its own destination.
            let is_absolute = *name == "an absolute link";
            let is_other = |found: &Finding| !(is_absolute && found.what == "content" && found.path == b"p/foo");
            let found = differences(&snapshot(&lab.join("rsync's")), &snapshot(&lab.join("rdcp's")), &[]);
            let found: Vec<_> = found.iter().filter(|found| is_other(found) && found.what != "modified").collect();
            let lines: Vec<_> = found.iter().map(|found| found.shown()).collect();
            assert!(lines.is_empty(), "{what}{}", lines.join("\n"));
            assert_eq!(fs::read_dir(lab.join("out")).expect("it").count(), 0, "{what}nothing is written outside");
        }
    }
}
