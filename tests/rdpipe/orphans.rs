//! Processes of ours whose parent has ended. Process 1 of a container may be a program that never waits for them.

#![allow(unsafe_code, reason = "a process is made a subreaper between fork and exec")]

use std::os::unix::process::CommandExt;

use rustix::process::{getpid, set_child_subreaper};

use super::*;

/// Runs the command, which must succeed, below a process that gets all orphans and waits for none. Returns how many
/// there are.
fn orphans_of(lab: &Lab, command: &Command) -> usize {
    let mut shell = in_shell("(\"$@\"; echo $? >code) & exec sleep 1000", command);
    // SAFETY: two system calls are made between fork and exec, and nothing else.
    unsafe { shell.pre_exec(|| Ok(set_child_subreaper(Some(getpid()))?)) };
    let process = Process::spawn(shell.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null()));
    let children = || {
        let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.pid())).expect("a process");
        text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect::<Vec<u32>>()
    };
    let until = Instant::now() + PATIENCE;
    while !lab.join("code").exists() || children().into_iter().any(is_alive) {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lab.text_of("code"), "0\n", "{}", process.stderr());
    children().len() - 1
}

#[test]
fn no_helper_is_left_for_process_1_to_wait_for() {
    let copy: fn(&Lab) -> Command = |lab| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.arg(lab.0.file("from", b"data")).arg(lab.there("h", "to"));
        command
    };
    let pipe: fn(&Lab) -> Command = |lab| {
        let mut command = lab.rdpipe_by("rsh");
        command.args(["h:echo one", "cat"]);
        command
    };
    for command in [copy, pipe] {
        // A busy machine may take longer to end a helper than it is waited for.
        let mut orphans = (0..30).map(|_| Lab::new()).map(|lab| orphans_of(&lab, &command(&lab)));
        assert!(orphans.any(|count| count == 0));
    }
}
