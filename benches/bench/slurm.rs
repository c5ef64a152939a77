//! A file sent to the nodes of a Slurm allocation, whose links are held to a rate, by `rdcp` and
//! by Slurm's own `sbcast`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::record::Kind;
use crate::site::agent;

/// Number of nodes that get the file. The controller's node is additional, and has the file already.
const TARGETS: usize = 4;

const RATE: &str = "200mbit";
const BYTES: u64 = 100_000_000;
const ROUNDS: usize = 3;

/// A job on all nodes except the first. No command runs in it.
struct Allocation {
    net: Net,
    source: PathBuf,
    job: String,
    _scratch: Scratch,
}

impl Allocation {
    fn start() -> Result<Self> {
        let scratch = Scratch::with_room(BYTES + (64 << 20))?;
        let source = scratch.random_file(by_kind(BYTES / 8, BYTES, BYTES))?;
        let net = Net::in_slurm(TARGETS + 1)?;
        (0..=TARGETS).try_for_each(|host| net.hold(host, RATE))?;
        let mut allocation = Allocation { net, source, job: String::new(), _scratch: scratch };
        let mut salloc = allocation.command("salloc");
        let said =
            Running::start(salloc.args(["--no-shell", "-N", &TARGETS.to_string(), "-w", &nodes()]))?.success()?;
        let number = said.split_whitespace().find(|word| word.parse::<u32>().is_ok());
        allocation.job = number.ok_or(format!("salloc said {said:?}"))?.to_owned();
        Ok(allocation)
    }

    /// Returns a command that runs on the controller's node, within the job once the job exists.
    fn command(&self, program: &str) -> Command {
        let mut command = self.net.on(0);
        command.arg(program).env("SLURM_CONF", self.net.directory().join("slurm/slurm.conf"));
        if !self.job.is_empty() {
            command.env("SLURM_JOB_ID", &self.job).env("SLURM_JOB_NODELIST", nodes());
        }
        command
    }

    /// Destination directory, of which each node has its own.
    fn place(&self) -> PathBuf {
        self.net.directory().join("slurm/node/copy")
    }

    fn by_rdcp(&self) -> Result<f64> {
        let rdcp = bin_directory().join("rdcp");
        let mut command = self.command(&rdcp.display().to_string());
        command.args(["--hosts", "slurm", "--agent"]).arg(agent()).args([&self.source, &self.place()]);
        self.seconds(&mut command)
    }

    fn by_sbcast(&self) -> Result<f64> {
        let mut command = self.command("sbcast");
        command.args([&self.source, &self.place()]);
        self.seconds(&mut command)
    }

    fn seconds(&self, command: &mut Command) -> Result<f64> {
        let seconds = timed(command)?;
        for node in 1..=TARGETS {
            let on_node = |program: &str, paths: &[&Path]| timed(self.net.on(node).arg(program).args(paths));
            on_node("cmp", &[&self.source, &self.place()])?;
            on_node("rm", &[&self.place()])?;
        }
        Ok(seconds)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _ = timed(self.command("scancel").arg(&self.job));
    }
}

fn nodes() -> String {
    format!("h[2-{}]", TARGETS + 1)
}

pub fn rows() -> Result<Vec<Row>> {
    const NAME: &str = "sbcast: rdcp / sbcast";
    if let Some(absent) = without_root("sbcast") {
        return Ok(absent);
    }
    let allocation = Allocation::start()?;
    let contestants = [
        Contestant::new(Kind::Ours, "rdcp", "rdcp --hosts slurm {file} {to}", || allocation.by_rdcp()),
        Contestant::new(Kind::Peer, "sbcast", "sbcast {file} {to}", || allocation.by_sbcast()),
    ];
    let megabytes = fs::metadata(&allocation.source).map_err(text)?.len() / 1_000_000;
    let title = format!("{megabytes} MB to {TARGETS} nodes of Slurm, each link at 200 Mb/s");
    judged("sbcast", &title, "s", &contestants, runs().min(ROUNDS), |found| {
        vec![found.compare(NAME, ["rdcp", "sbcast"], |ours, peer| Row::at_most(NAME, 0.33, &ours.values, &peer.values))]
    })
}
