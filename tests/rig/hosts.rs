//! Hosts that are network namespaces on one switch, as `tests/testbed/host` makes them.

use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Scratch;

/// Returns a call of the testbed's program, `tests/testbed/host`.
pub fn testbed(arguments: &[&str]) -> Command {
    let host = std::env::var_os("RD_HOST").expect("RD_HOST is not set: run tests/run, or tests/testbed/host with 4 …");
    let mut command = Command::new(host);
    command.args(arguments);
    command
}

/// Wraps `command` to run on a host.
pub fn on(host: u32, command: &Command) -> Command {
    let mut wrapped = testbed(&["exec", &host.to_string()]);
    wrapped.arg(command.get_program()).args(command.get_args()).env_remove("RD_KEY");
    wrapped
}

/// Makes a launcher for `--rsh` that reaches hosts in place of ssh.
pub fn launcher(scratch: &Scratch) -> PathBuf {
    let launcher = scratch.file("rsh", b"#!/bin/sh\nexec \"$RD_HOST\" exec \"$1\" sh -c \"exec $2\"\n");
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).expect("ours");
    launcher
}

pub fn address(host: u32) -> String {
    format!("10.9.0.{host}")
}

/// Returns the pid of a process in the host's namespaces.
pub fn pid_on(host: u32) -> u32 {
    let output = testbed(&["pid", &host.to_string()]).output().expect("the testbed");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// Limits a host's link to this rate in both directions, in tc(8) notation.
pub fn hold(host: u32, rate: &str) {
    let status = testbed(&["rate", &host.to_string(), rate]).status().expect("the testbed");
    assert!(status.success());
}

/// Limits the links of these hosts in both directions for as long as the value lives.
pub struct Held(RangeInclusive<u32>);

impl Held {
    pub fn at(hosts: RangeInclusive<u32>, rate: &str) -> Self {
        let held = Self(hosts);
        held.0.clone().for_each(|host| hold(host, rate));
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for host in self.0.clone() {
            // The rate that the testbed gives to every link.
            let _ = testbed(&["rate", &host.to_string(), "10gbit"]).status();
        }
    }
}

/// A second network between these hosts: interface e1 of each, limited in both directions, for
/// as long as the value lives.
pub struct SecondNetwork(&'static [u32]);

impl SecondNetwork {
    pub fn of(hosts: &'static [u32], rate: &str) -> Self {
        let network = Self(hosts);
        network.set(rate);
        network
    }

    /// Changes the rate at all hosts, makes the network fail as a [`Partition`] does (`silent`,
    /// `link`), or restores it (`heal`).
    pub fn set(&self, what: &str) {
        self.0.iter().for_each(|&host| self.set_at(host, what));
    }

    pub fn set_at(&self, host: u32, what: &str) {
        let status = testbed(&["rail", &host.to_string(), what]).status().expect("the testbed");
        assert!(status.success());
    }
}

impl Drop for SecondNetwork {
    fn drop(&mut self) {
        self.set("gone");
    }
}

/// A long line beside the switch, from 10.8.0.1 on the first host to 10.8.0.2 on the second, for
/// as long as the value lives.
pub struct Line(std::process::Child);

impl Line {
    /// Makes the line. `delay_ms` is the delay one way; `loss_ppm` is the number of packets lost in a million.
    pub fn between(one: u32, other: u32, delay_ms: u32, rate_mbit: u32, loss_ppm: u32) -> Self {
        let numbers = [one, other, delay_ms, rate_mbit, loss_ppm].map(|number| number.to_string());
        let mut command = testbed(&["line"]);
        command.args(numbers).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut line = command.spawn().expect("the testbed");
        let mut said = [0; 6];
        let output = line.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(output, &mut said).expect("it says that it is ready");
        assert_eq!(&said, b"ready\n");
        Self(line)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Cuts a host off from the switch, without FIN or RST, for as long as the value lives.
pub struct Partition(u32);

impl Partition {
    pub fn start(host: u32, how: &str) -> Self {
        let status = testbed(&["partition", &host.to_string(), how]).status().expect("the testbed");
        assert!(status.success());
        Self(host)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = testbed(&["heal", &self.0.to_string()]).status();
    }
}

/// A small file system in a host's own mount namespace, for as long as the value lives.
pub struct SmallDisk(u32, String);

impl SmallDisk {
    pub fn mount(host: u32, at: &Path, mib: u64) -> Self {
        let disk = Self(host, at.display().to_string());
        let mount = ["-t", "tmpfs", "-o", &format!("size={mib}m"), "none", &disk.1];
        assert!(on(host, Command::new("mount").args(mount)).status().expect("mount").success());
        disk
    }

    /// Returns the names in it.
    pub fn names(&self) -> String {
        let output = on(self.0, Command::new("ls").args(["-A", &self.1])).output().expect("ls");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = on(self.0, Command::new("umount").args(["-l", &self.1])).status();
    }
}

/// Keeps two hosts from reaching each other, for as long as the value lives.
pub struct NoWay {
    hosts: (u32, u32),
    /// The kind of their routes to each other, in ip-route(8) notation.
    route: &'static str,
}

impl NoWay {
    pub fn between(one: u32, other: u32) -> Self {
        Self::by("blackhole", one, other)
    }

    /// Like [`between`](Self::between). Connecting fails with EHOSTUNREACH.
    pub fn unreachable(one: u32, other: u32) -> Self {
        Self::by("unreachable", one, other)
    }

    fn by(route: &'static str, one: u32, other: u32) -> Self {
        let way = Self { hosts: (one, other), route };
        way.routes("add");
        way
    }

    fn routes(&self, verb: &str) {
        let (one, other) = self.hosts;
        for (at, to) in [(one, other), (other, one)] {
            for target in [address(to), format!("fd00:9::{to}")] {
                let status = on(at, Command::new("ip").args(["route", verb, self.route, &target])).status();
                assert!(status.expect("ip").success() || verb == "del");
            }
        }
    }
}

impl Drop for NoWay {
    fn drop(&mut self) {
        self.routes("del");
    }
}
