//! Equal conditions for all contestants: a separate network namespace with one congestion control, in which everything
//! over loopback is measured, including ssh's servers.
//!
//! rdma-pipe asks for reno on a connection within the host, and its peers use the system's choice. With reno for all
//! contestants, no row gains from that. The namespace needs root. Without root, the results state that there were
//! two congestion controls.

use std::ffi::OsStr;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, Stdio};

/// Congestion control of every connection in the namespace. Every kernel has it and allows it to every user.
const CONTROL: &str = "reno";

/// Set if this program runs in the namespace.
const INSIDE: &str = "RD_BENCH_FIELD";

/// Set if this program does not run in the namespace; the value is the reason.
const OUTSIDE: &str = "RD_BENCH_NO_FIELD";

/// In addition to loopback, the namespace has an address by which agents are reached, as a host has. Without that
/// address, data would go through ssh's own connection. Data to that address goes over loopback.
const PREPARE: &str = "ip link set lo up && ip link add field0 type veth peer name field1 && ip link set field1 up && \
    ip address add 10.10.0.1/24 dev field0 && ip link set field0 up && echo \"$0\" >/proc/sys/net/ipv4/tcp_congestion_control";

/// Restarts this program in such a namespace. Returns if the program is in one already, or if none can be made.
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

/// Returns the condition under which every figure was measured.
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

/// Returns a command that runs in the machine's own network, from which this program was started.
pub fn outside(program: impl AsRef<OsStr>) -> Command {
    if std::env::var_os(INSIDE).is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", parent_id())).arg("--").arg(program);
    command
}
