//! Compares `rdsh` with ssh, on hosts with sshd: the same commands give the same output, standard error and exit code.
//! `tests/run` makes the hosts, as root, and runs these tests in them. Elsewhere they are not run.

mod rig;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rig::hosts::*;
use rig::lab::*;
use rig::network::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process_group};

/// Prepares ssh or rdsh on host 1, with these arguments after those by which it finds the hosts.
fn called(network: &Network, program: &str, arguments: &[&str]) -> Command {
    let mut command = if program == "ssh" { Command::new("ssh") } else { rdsh() };
    if program != "ssh" {
        command.args(["--agent", AGENT]);
    }
    command.arg("-F").arg(network.path("ssh_config")).args(arguments);
    let mut command = on(1, &command);
    command.env(MARK, network.scratch.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn as_ssh_does() {
    let network = Network::start();
    let input = noise(2 * CHUNK + 1);
    for arguments in [
        // HOME here is not the home of the login, which sshd uses.
        &["h2", "uname -n; cd; pwd; echo $0 \"$HOME\" $USER $LOGNAME"][..],
        &["h2", "cat"],
        &["-l", "root", "-p", "22", "-4", "-C", "-q", "-T", "h2", "exit 3"],
        &["h2", "-n", "wc", "-c"],
        &["h2", "echo", "'a  b'", "--", "$((1 + 1))", "/usr/l*"],
        &["h2", "echo out; echo err >&2; exit 200"],
        &["h2", "no-such-command-here"],
        &["h2", "if"],
        &["h2", "head -c 10 | od -c"],
        &["h2", "exec 2>/dev/null; sh -c 'kill -9 $$'; exit $?"],
        &["h2", "echo $SSH_CONNECTION | cut -d' ' -f1; tty"],
        &["h2", "umask; ulimit -n"],
        &["-t", "h2", "echo here"],
        &["-s", "h2", "no-such-subsystem"],
        &["no-such-host-here", "true"],
        &["-p", "1", "h2", "true"],
    ] {
        let [ssh, ours] = ["ssh", "rdsh"].map(|program| {
            let (ended, output) = finish(Process::spawn(&mut called(&network, program, arguments)), &input);
            (ended.code, ended.stderr, output)
        });
        assert_eq!(ours.0, ssh.0, "{arguments:?}: {}", ours.1);
        // If a host cannot be reached, rdsh prints one line of its own that contains ssh's.
        if ssh.0 == 255 && ours.1.starts_with("rdsh: ") {
            assert!(ours.1.contains(ssh.1.trim_end().lines().last().unwrap_or_default()), "{} {}", ours.1, ssh.1);
        } else {
            assert_eq!(ours.1, ssh.1, "{arguments:?}");
        }
        assert_eq!(ours.2.len(), ssh.2.len(), "{arguments:?}");
        same(&ours.2, &ssh.2);
    }
    none_marked(network.scratch.path(), GONE);
}

/// A terminal that closes, Ctrl-\\ and job managers signal the whole process group. That ssh ends as well is no loss of the
/// host.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_signal_to_the_group_is_what_ends_it() {
    let network = Network::start();
    for signal in [Signal::HUP, Signal::QUIT, Signal::TERM, Signal::INT] {
        std::thread::scope(|scope| {
            for round in 0..6 {
                let mut command = called(&network, "rdsh", &["h2", "sleep 20"]);
                scope.spawn(move || {
                    let mut process = Process::spawn(command.stdin(Stdio::null()).process_group(0));
                    // Several logins at once take longer than one.
                    std::thread::sleep(Duration::from_millis(900 + 70 * round));
                    let group = Pid::from_raw(process.pid() as i32).expect("not 0");
                    kill_process_group(group, signal).expect("ours");
                    let ended = process.wait();
                    assert_eq!((ended.code, &*ended.stderr), (128 + signal.as_raw(), ""), "{signal:?}, round {round}");
                });
            }
        });
    }
    none_marked(network.scratch.path(), GONE);
}

/// A tool's data goes beside ssh, encrypted, and back.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn rsync_between_hosts() {
    let network = Network::start();
    fs::create_dir(network.path("from")).expect("a directory");
    for number in 0..40 {
        fs::write(network.path("from").join(number.to_string()), noise(number * 30_011)).expect("a file");
    }
    let ssh = format!("{PROGRAM} rdsh -v --agent {AGENT} -F {}", network.path("ssh_config").display());
    let run = |from: &OsStr, to: &OsStr| {
        let mut command = Command::new("rsync");
        command.args(["-a", "-e", &ssh]).args([from, to]);
        let mut command = on(1, &command);
        command.env(MARK, network.scratch.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = Process::spawn(&mut command).wait();
        let routes: Vec<&str> = ended.expect(0).stderr.lines().collect();
        // One that led through ssh would say so at its end.
        let is_beside =
            |route: &&str| route.starts_with("rdsh: ") && route.contains(": tcp ") && route.ends_with(", encrypted");
        assert!(!routes.is_empty() && routes.iter().all(is_beside), "{routes:?}");
    };
    let local = |name: &str| network.path(name).into_os_string();
    run(&local("from/"), &network.at("root@h2", "there/"));
    run(&network.at("h2", "there/"), &local("back/"));
    for copy in ["there", "back"] {
        let differs = Command::new("diff").arg("-r").arg(network.path("from")).arg(network.path(copy)).status();
        assert!(differs.expect("diff").success(), "{copy}");
    }
    none_marked(network.scratch.path(), GONE);
}
