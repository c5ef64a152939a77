//! One field for all: a network namespace of its own for everything that is measured over loopback, ssh's servers among it,
//! with one congestion control.
//!
//! rdma-pipe asks for reno on a connection that does not leave the host, and its peers take what the system gives. With
//! reno for everybody, no row owes anything to that. It needs root; without, what was measured says that it had two.

use std::ffi::OsStr;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, Stdio};

/// What every connection has here. Every kernel has it, and lets everybody have it.
const CONTROL: &str = "reno";

/// Set where this program runs in the namespace.
const INSIDE: &str = "RD_BENCH_FIELD";

/// Why it does not, where it does not.
const OUTSIDE: &str = "RD_BENCH_NO_FIELD";

/// Beside the loopback it has an address, as a host has, by which its agents are reached: without one, data would go through
/// ssh's own connection. What is sent there goes over the loopback.
const PREPARE: &str = "ip link set lo up && ip link add field0 type veth peer name field1 && ip link set field1 up && \
    ip address add 10.10.0.1/24 dev field0 && ip link set field0 up && echo \"$0\" >/proc/sys/net/ipv4/tcp_congestion_control";

/// Begins this program anew in such a namespace. Comes back where it is in one, or there can be none.
pub fn enter() {
    if std::env::var_os(INSIDE).is_some() || std::env::var_os(OUTSIDE).is_some() {
        return;
    }
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", script, CONTROL]).stdin(Stdio::null());
        command
    };
    let why = if !rustix::process::geteuid().is_root() {
        "not root".to_owned()
    } else {
        match within(PREPARE).output() {
            Ok(tried) if tried.status.success() => String::new(),
            Ok(tried) => String::from_utf8_lossy(&tried.stderr).lines().last().unwrap_or("it failed").to_owned(),
            Err(error) => format!("unshare: {error}"),
        }
    };
    let Ok(myself) = std::env::current_exe() else { return };
    let mut again = if why.is_empty() {
        let mut again = within(&format!("{PREPARE} && exec \"$@\""));
        again.arg(myself).env(INSIDE, CONTROL);
        again
    } else {
        let mut again = Command::new(myself);
        again.env(OUTSIDE, why);
        again
    };
    let error = again.args(std::env::args_os().skip(1)).exec();
    eprintln!("bench: cannot begin anew: {error}");
}

/// What is said of every figure.
pub fn condition() -> String {
    match std::env::var(INSIDE) {
        Ok(control) => format!("{control} for all, in a network namespace of its own"),
        Err(_) => {
            let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
            let why = std::env::var(OUTSIDE).unwrap_or_else(|_| "no namespace".to_owned());
            format!("NOT ONE FOR ALL: {} for peers, {CONTROL} for rdma-pipe within this host ({why})", system.trim())
        }
    }
}

/// A command where the machine's network is, which is where this program was begun from.
pub fn outside(program: impl AsRef<OsStr>) -> Command {
    if std::env::var_os(INSIDE).is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", parent_id())).arg("--").arg(program);
    command
}
