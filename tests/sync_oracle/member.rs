//! Compares with rsync for an ordinary user who is in another group: which groups are kept, and
//! which changes are itemized.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};

use crate::itemize::printed;
use crate::modes::BASE;
use crate::rig::lab::Lab;
use crate::rig::others::{MEMBER, TEAM, as_member};
use crate::rig::{AGENT, Process, in_shell, not_run, rdcp};
use crate::snapshot::{Finding, differences, snapshot};

/// Options of both programs, and the shell command that changes both copies before.
const CASES: &[(&[&str], &str)] = &[
    (&[], "true"),
    (&[], "chgrp -hR 4711 ."),
    (&[], "chmod -R g-w . && chgrp 4712 own own/private"),
    (&["--no-times"], "chgrp 4711 file"),
    (&["--chown=:4712"], "true"),
    (&["--chown=:4711"], "chgrp 4712 own"),
    (&["--checksum"], "chgrp 4711 d && echo 2 >file"),
];

#[test]
fn groups_of_a_member_are_kept_and_told_as_by_rsync() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to become another user");
    }
    let plant = format!(
        "umask 022 && mkdir -p from/d from/own from/foreign && cd from && echo 1 >file && echo 1 >d/below && mkfifo fifo \
            && echo 1 >own/private && ln -s nowhere link && chgrp -h {TEAM} file d d/below fifo link && ln file further \
            && chmod 640 file own/private && chmod 770 d && chmod 660 d/below fifo && find . | xargs touch -hd @1000000000"
    );
    for host in ["", "h:"] {
        let lab = Lab::new();
        fs::set_permissions(lab.join(""), fs::Permissions::from_mode(0o777)).expect("ours");
        let line = as_member(lab.0.path());
        let by_member = |script: &str, directory: &str| {
            let command = &mut in_shell(&line, Command::new("sh").args(["-c", script]));
            Process::spawn(command.current_dir(lab.join(directory)).stdin(Stdio::null())).wait().expect(0);
        };
        by_member(&plant, "");
        fs::write(lab.join("from/foreign/file"), "another's").expect("a file");
        chown(lab.join("from/foreign/file"), Some(12), Some(34)).expect("chown");
        for name in ["noted", "printed"] {
            fs::write(lab.join(name), "").expect("a file");
            fs::set_permissions(lab.join(name), fs::Permissions::from_mode(0o666)).expect("ours");
        }
        let mut groups = 0;
        for (number, (options, before)) in CASES.iter().enumerate() {
            if number > 0 {
                by_member(before, "ours");
                by_member(before, "theirs");
            }
            // The second run finds nothing to do.
            for is_again in [false, true] {
                let what = format!("{host}{options:?} after {before:?}, again: {is_again}");
                let mut rsync = Command::new("rsync");
                rsync.arg("-i").args(BASE).args(options.iter()).args(["from/", "theirs/"]);
                let expected = printed(&lab, &in_shell(&line, &rsync));
                let mut command = lab.command(rdcp(), "rsh", AGENT);
                command
                    .args(["-r", "--sync", "--itemize-changes", "--encrypt", "never", "--numeric-ids"])
                    .args(options.iter());
                let to =
                    if host.is_empty() { "ours/".to_owned() } else { format!("{host}{}/", lab.join("ours").display()) };
                command.arg("from/").arg(to);
                let mut got = printed(&lab, &in_shell(&line, &command));
                // rdcp prints `<` because it sends to another host; rsync copies within this host.
                got.lines.iter_mut().for_each(|line| *line = line.replacen('<', ">", 1));
                got.lines.sort_unstable();
                assert_eq!(
                    (expected.ended.code, got.ended.code),
                    (0, 0),
                    "{what}: {}\n{}",
                    expected.ended.stderr,
                    got.ended.stderr
                );
                if number > 0 {
                    assert_eq!(got.lines, expected.lines, "{what}");
                }
                assert!(!is_again || got.lines.is_empty(), "{what}: {:?}", got.lines);
                groups += got.lines.iter().filter(|line| line.as_bytes()[7] == b'g').count();
                let (there, here) = (snapshot(&lab.join("theirs")), snapshot(&lab.join("ours")));
                let wrong: Vec<String> = differences(&there, &here, &[]).iter().map(Finding::shown).collect();
                assert!(wrong.is_empty(), "{what}: {wrong:?}");
                assert!(here.values().all(|entry| entry.owner.0 == MEMBER));
            }
        }
        assert!(groups > 8, "{groups}");
    }
}
