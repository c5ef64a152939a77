//! Hosts with an sshd on each, and the processes of this project that run on them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::hosts::{address, on, pid_on};
use super::lab::{MARK, none_since};
use super::{AGENT, CHUNK, Ended, PATIENCE, PROGRAM, Process, Scratch, partials, rdcp, same};

/// Maximum time for all processes to exit after one of them was killed.
pub const GONE: Duration = Duration::from_secs(5);

/// Default for the number of hosts with an sshd, counted from host 1.
pub const HOSTS: u32 = 4;

/// An sshd on each host with its own keys, and the configuration by which ssh finds them.
pub struct Network {
    pub scratch: Scratch,
    servers: Vec<Process>,
}

impl Network {
    pub fn start() -> Self {
        Self::of(HOSTS)
    }

    /// Starts an sshd on hosts 1 to `hosts`.
    pub fn of(hosts: u32) -> Self {
        let scratch = Scratch::new();
        fs::create_dir_all("/run/sshd").expect("root");
        // A home of its own, because the output of the testing user's login shell must not mix with that of the hosts.
        fs::create_dir_all(scratch.join("home")).expect("a home");
        for name in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let path = |name: &str| scratch.join(name).display().to_string();
        let server = format!(
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n\
             PidFile none\nMaxStartups 100\nPrintMotd no\nSetEnv {MARK}={} HOME={}\n",
            path("host_key"),
            path("user_key.pub"),
            scratch.path().display(),
            path("home")
        );
        scratch.file("sshd_config", server.as_bytes());
        let mut client = String::new();
        for host in 1..=hosts {
            client += &format!("Host h{host}\n  HostName {}\n", address(host));
        }
        client += &format!(
            "Host *\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile /dev/null\n  \
             StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes\n",
            path("user_key")
        );
        scratch.file("ssh_config", client.as_bytes());
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &path("sshd_config")]);
        let servers: Vec<Process> = (1..=hosts)
            .map(|host| Process::spawn(on(host, &command).stdin(Stdio::null()).stdout(Stdio::null())))
            .collect();
        for server in &servers {
            server.line_with("listening on 0.0.0.0");
        }
        Self { scratch, servers }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Returns HOST:PATH for a file here. The hosts share their file systems.
    pub fn at(&self, host: &str, name: &str) -> OsString {
        format!("{host}:{}", self.path(name).display()).into()
    }

    /// Starts rdcp on host 1.
    pub fn start_rdcp(&self, arguments: &[OsString]) -> Process {
        let mut command = rdcp();
        command.arg("-F").arg(self.path("ssh_config")).args(["--agent", AGENT]).args(arguments);
        Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null()))
    }

    pub fn rdcp(&self, arguments: &[OsString]) -> Ended {
        self.start_rdcp(arguments).wait()
    }

    #[track_caller]
    pub fn holds(&self, name: &str, bytes: &[u8]) {
        same(&fs::read(self.path(name)).expect("a copy"), bytes);
    }

    /// Starts a slow copy, and waits until some of its data has arrived.
    #[track_caller]
    pub fn slow(&self, options: &[&str], from: OsString, to: OsString) -> Process {
        // The partial file of a killed copy would be mistaken for data that has arrived.
        for (partial, _) in partials(self.scratch.path()) {
            fs::remove_file(partial).expect("ours");
        }
        let mut arguments: Vec<OsString> = vec!["--bwlimit".into(), "8M".into()];
        arguments.extend(options.iter().map(OsString::from));
        arguments.extend([from, to]);
        let process = self.start_rdcp(&arguments);
        let until = Instant::now() + PATIENCE;
        while !partials(self.scratch.path()).iter().any(|(_, bytes)| *bytes > 2 * CHUNK as u64) {
            assert!(Instant::now() < until, "nothing flows: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        process
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Ends their children too, which a test may have left behind.
        for server in &self.servers {
            server.signal(Signal::TERM);
        }
    }
}

/// Returns the processes, on any host, that run a program of this project.
pub fn ours() -> Vec<u32> {
    let programs = [AGENT, PROGRAM].map(Path::new);
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| programs.contains(&exe.as_path())))
        .collect()
}

/// Returns the agent that runs on this host.
pub fn agent_on(host: u32) -> Option<Pid> {
    let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let of_host = network(pid_on(host));
    let agent = running_agents().into_iter().find(|&pid| network(pid) == of_host)?;
    Pid::from_raw(agent as i32)
}

/// Returns the agents that run on any host. Guards, which run the same program, are left out.
pub fn running_agents() -> Vec<u32> {
    let is_agent = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        exe == Path::new(AGENT) && !words.windows(7).any(|word| word == b"--guard")
    };
    ours().into_iter().filter(is_agent).collect()
}

#[track_caller]
pub fn all_gone(within: Duration) {
    all_gone_since(Instant::now(), within);
}

/// Like [`all_gone`], with a limit that counts from `start`.
#[track_caller]
pub fn all_gone_since(start: Instant, within: Duration) {
    none_since(start, within, ours);
}

/// Returns the number of bytes that have crossed a host's interface e0, in both directions.
pub fn crossed(host: u32) -> u64 {
    crossed_on(host, "e0")
}

/// Returns the number of bytes that have crossed this interface, in both directions.
pub fn crossed_on(host: u32, interface: &str) -> u64 {
    let count = |name: &str| {
        // Not read from /sys, because the mounted /sys is the machine's and not the host's.
        let output = on(host, Command::new("ip").args(["-s", "-j", "link", "show", interface])).output().expect("ip");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json[0]["stats64"][name]["bytes"].as_u64().expect("a number")
    };
    count("rx") + count("tx")
}

/// Returns the launchers that a process has started.
pub fn launchers(pid: u32) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("a process");
    let is_ssh = |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ssh");
    let number = |pid: &str| Pid::from_raw(pid.parse().expect("a number")).expect("not 0");
    text.split_whitespace().filter(is_ssh).map(number).collect()
}

/// Returns the launcher that the process has started for that host.
pub fn launcher_to(pid: u32, host: &str) -> Pid {
    let arguments = |pid: Pid| fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).expect("a process");
    let is_to = |pid: &Pid| arguments(*pid).split(|&byte| byte == 0).any(|argument| argument == host.as_bytes());
    launchers(pid).into_iter().find(is_to).expect("an ssh to that host")
}
