//! Hosts that are network namespaces, whose links can be held to a rate. Requires root.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Result, Row, text, timed};
use crate::record;

/// Hosts of the testbed, numbered from 0.
pub struct Net {
    /// The testbed's process, which removes the hosts when its input ends.
    keeper: Child,
    directory: String,
}

impl Net {
    pub fn start(hosts: usize) -> Result<Self> {
        Self::start_by("host", hosts)
    }

    /// Starts hosts that are the nodes of a Slurm cluster, with h1 as the first.
    pub fn in_slurm(nodes: usize) -> Result<Self> {
        Self::start_by("slurm", nodes)
    }

    fn start_by(program: &str, hosts: usize) -> Result<Self> {
        let mut with = testbed(program, "with", &hosts.to_string());
        let with = with.args(["sh", "-c", "echo $RD_HOSTS_DIR; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = with.spawn().map_err(text)?;
        let mut directory = String::new();
        let mut said = BufReader::new(keeper.stdout.take().expect("it is piped"));
        said.read_line(&mut directory).map_err(text)?;
        let net = Net { keeper, directory: directory.trim().to_owned() };
        if net.directory.is_empty() { Err("the testbed made no hosts".into()) } else { Ok(net) }
    }

    /// Returns the testbed's directory, which holds the files of each host.
    pub fn directory(&self) -> &Path {
        Path::new(&self.directory)
    }

    /// Returns the testbed's command line for a host.
    pub fn testbed(&self, verb: &str, host: usize) -> Command {
        let mut command = testbed("host", verb, &(host + 1).to_string());
        command.env("RD_HOSTS_DIR", &self.directory);
        command
    }

    pub fn on(&self, host: usize) -> Command {
        self.testbed("exec", host)
    }

    /// Returns the address of a host for the others.
    pub fn address(host: usize) -> String {
        format!("10.9.0.{}", host + 1)
    }

    /// Returns the congestion control of every connection between the hosts.
    pub fn control(&self) -> Result<String> {
        let said = self.on(0).args(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]).output().map_err(text)?;
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    }

    /// Makes a long line beside the switch, from the first host to [`Net::FAR`] at the second. The line
    /// ends when its input ends.
    pub fn line(&self, delay_ms: u32, rate_mbit: u32, loss_ppm: u32) -> Result<Line> {
        let mut line = testbed("host", "line", "1");
        line.env("RD_HOSTS_DIR", &self.directory).arg("2");
        line.args([delay_ms, rate_mbit, loss_ppm].map(|number| number.to_string()));
        let mut line = Line(line.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(text)?);
        let mut said = String::new();
        BufReader::new(line.0.stdout.take().expect("it is piped")).read_line(&mut said).map_err(text)?;
        if said == "ready\n" { Ok(line) } else { Err("the testbed made no line".into()) }
    }

    /// The second host's address on such a line.
    pub const FAR: &str = "10.8.0.2";

    pub fn hold(&self, host: usize, rate: &str) -> Result<()> {
        timed(self.testbed("rate", host).arg(rate)).map(|_| ())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// The line that [`Net::line`] makes.
pub struct Line(Child);

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn testbed(program: &str, verb: &str, host: &str) -> Command {
    let mut command = Command::new(record::root().join("tests/testbed").join(program));
    command.args([verb, host]);
    command
}

pub fn without_root(row: &str) -> Option<Vec<Row>> {
    (!rustix::process::geteuid().is_root()).then(|| vec![Row::absent(row, "hosts need root")])
}
