//! One tree to eight hosts, whose links are held to a rate. The hosts are network namespaces, each with an sshd.
//! All times include logins.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::process::{RUN_LIMIT, spent_by, wait_within};
use crate::record::Kind;
use crate::site::{agent, identical};
use crate::streams::KEY;

/// Number of hosts that get the tree. The caller's host is additional, and has the tree already.
const TARGETS: usize = 8;

const RATE: &str = "200mbit";

/// Size of the tree in `make bench`, and in `make bench-full`.
const BYTES: u64 = 256 << 20;
const FULL_BYTES: u64 = 1 << 30;

const ROUNDS: usize = 3;

/// The host that is disturbed, in the middle of the chain.
const SPOILT: usize = 4;

/// A tenth of [`RATE`].
const SLOW_RATE: &str = "20mbit";

/// The default of `--stall`, in seconds.
const STALL_S: f64 = 5.0;

const SMALL_FILES: usize = 100;

/// Port of a stream between two of the hosts.
const PORT: &str = "7001";

/// The hosts, with the caller's as the first, and a tree.
struct Hosts {
    scratch: Scratch,
    source: PathBuf,
    bytes: u64,
    net: Net,
    servers: Vec<Running>,
    is_compared: Cell<bool>,
}

impl Hosts {
    /// Starts hosts whose links are held to [`RATE`].
    fn held() -> Result<Self> {
        let hosts = Self::start()?;
        (0..=TARGETS).try_for_each(|host| hosts.net.hold(host, RATE))?;
        Ok(hosts)
    }

    fn start() -> Result<Self> {
        let bytes = by_kind(BYTES / 8, BYTES, FULL_BYTES);
        let scratch = Scratch::with_room(bytes * (TARGETS as u64 + 1) + (64 << 20))?;
        let source = scratch.0.join("model");
        fs::create_dir(&source).map_err(text)?;
        fs::rename(scratch.random_file(bytes)?, source.join("weights")).map_err(text)?;
        for number in 0..SMALL_FILES {
            fs::write(source.join(format!("part{number}")), number.to_string()).map_err(text)?;
        }
        let net = Net::start(TARGETS + 1)?;
        let mut hosts = Hosts { scratch, source, bytes, net, servers: Vec::new(), is_compared: Cell::default() };
        hosts.serve()?;
        Ok(hosts)
    }

    /// Starts an sshd on each host.
    fn serve(&mut self) -> Result<()> {
        fs::create_dir_all("/run/sshd").map_err(text)?;
        let path = |name: &str| self.scratch.0.join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            let mut make = Command::new("ssh-keygen");
            Running::start(make.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]))?.success()?;
        }
        fs::create_dir(path("home")).map_err(text)?;
        let server = format!(
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n\
             PidFile none\nMaxStartups 100\nPrintMotd no\nSetEnv HOME={}\n",
            path("host_key"),
            path("user_key.pub"),
            path("home")
        );
        fs::write(path("sshd_config"), server).map_err(text)?;
        let mut client = File::create(path("ssh_config")).map_err(text)?;
        for host in 1..=TARGETS {
            writeln!(client, "Host h{host}\n  HostName {}", Net::address(host)).map_err(text)?;
        }
        let options = "UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes";
        writeln!(client, "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  {options}", path("user_key"))
            .map_err(text)?;
        for host in 0..=TARGETS {
            let mut server = self.net.on(host);
            server.args(["/usr/sbin/sshd", "-D", "-e", "-f", &path("sshd_config")]);
            self.servers.push(Running::start(&mut server)?);
        }
        for host in 1..=TARGETS {
            let to = format!("h{host}");
            let reaches = || {
                let mut ssh = self.net.on(0);
                let ssh = ssh.args(["ssh", "-F", &path("ssh_config"), &to, "true"]);
                ssh.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
            };
            wait_until("an sshd to answer", reaches)?;
        }
        Ok(())
    }

    fn place(&self, host: usize) -> PathBuf {
        self.scratch.0.join(format!("at{host}"))
    }

    /// Returns `rdcp` to the first `targets` hosts, each with a separate empty directory.
    fn copy(&self, targets: usize) -> Result<Command> {
        let mut command = self.net.on(0);
        command.arg(bin_directory().join("rdcp")).arg("-F").arg(self.scratch.0.join("ssh_config"));
        command.arg("--agent").arg(agent()).arg("-r").arg(&self.source);
        for host in 1..=TARGETS {
            let _ = fs::remove_dir_all(self.place(host));
            fs::create_dir(self.place(host)).map_err(text)?;
            if host <= targets {
                let to = format!("h{host}:{}", self.place(host).join("copy").display());
                command.args(if host == 1 { &[][..] } else { &["--to"] }).arg(to);
            }
        }
        Ok(command)
    }

    /// Measures processor time of `rdsend` on the caller's host, in seconds for each GB.
    fn bare_send(&self) -> Result<f64> {
        let [recv, send] = ["rdrecv", "rdsend"].map(|name| bin_directory().join(name));
        let options = ["--encrypt", "always"];
        let receiver = Running::start(self.net.on(1).arg(recv).args(options).args([PORT, KEY]))?;
        let mut command = self.net.on(0);
        command.arg(send).args(options).args([&Net::address(1), PORT, KEY]).arg(self.source.join("weights"));
        let spent_s = Running::start(&mut command)?.done()?.cpu_s;
        receiver.success()?;
        Ok(spent_s / (self.bytes as f64 / 1e9))
    }

    fn all_have_it(&self, targets: usize, but: Option<usize>) -> Result<()> {
        let mut others = (1..=targets).filter(|&host| Some(host) != but);
        others.try_for_each(|host| identical(&self.source, &self.place(host).join("copy")))
    }

    fn well(&self, targets: usize) -> Result<f64> {
        let seconds = timed(&mut self.copy(targets)?)?;
        if targets < TARGETS || !self.is_compared.replace(true) {
            self.all_have_it(targets, None)?;
        }
        Ok(seconds)
    }

    /// Copies to all hosts, and disturbs one of them when half of the tree has arrived there. Returns
    /// the seconds for the others.
    fn spoilt(&self, spoil: &dyn Fn() -> Result<()>, heal: &dyn Fn() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        let running = Running::start(&mut self.copy(TARGETS)?)?;
        // Computed from the links' rate, after the logins.
        let wire_s = self.bytes as f64 * 8.0 / 200e6;
        std::thread::sleep(Duration::from_secs_f64(wire_s / 2.0 + 0.5));
        spoil()?;
        let ended = running.end();
        heal()?;
        // An agent that was cut off learns late of the caller's end. It must not be taken for the next copy's agent.
        self.end_agent(SPOILT)?;
        let ended = ended?;
        if ended.code != 8 {
            return Err(format!("exit code {}: {}", ended.code, ended.said.trim()));
        }
        self.all_have_it(TARGETS, Some(SPOILT))?;
        Ok((ended.at - start).as_secs_f64())
    }

    /// Copies to all hosts, one of which has a link of a tenth of the rate. Returns the seconds for the others.
    fn one_slow(&self) -> Result<f64> {
        self.net.hold(SPOILT, SLOW_RATE)?;
        let start = Instant::now();
        let running = Running::start(&mut self.copy(TARGETS)?)?;
        let have = || (1..=TARGETS).all(|host| host == SPOILT || self.place(host).join("copy").exists());
        let had = wait_within("the others", RUN_LIMIT, have);
        let seconds = start.elapsed().as_secs_f64();
        // The slow host would take ten times as long as the others.
        timed(Command::new("kill").arg(running.id.to_string()))?;
        let ended = running.end();
        self.net.hold(SPOILT, RATE)?;
        self.end_agent(SPOILT)?;
        had.and(ended)?;
        self.all_have_it(TARGETS, Some(SPOILT))?;
        Ok(seconds)
    }

    /// Copies to all hosts except the last, which is added when nine tenths have arrived. Returns the seconds for the
    /// others, and the seconds for the last host from the request on.
    fn joined(&self) -> Result<[f64; 2]> {
        let report = self.scratch.0.join("report");
        let (start, others) = (Instant::now(), TARGETS - 1);
        let _ = fs::remove_file(&report);
        let running = Running::start(self.copy(others)?.arg(format!("--json={}", report.display())))?;
        let mut job = String::new();
        wait_until("the name of the job", || {
            let text = fs::read_to_string(&report).unwrap_or_default();
            let name = text.split(r#""job":""#).nth(1).and_then(|rest| rest.split('"').next());
            job = name.unwrap_or_default().to_owned();
            !job.is_empty()
        })?;
        let wire_s = self.bytes as f64 * 8.0 / 200e6;
        std::thread::sleep(Duration::from_secs_f64(0.9 * wire_s));
        let (asked, mut join) = (Instant::now(), self.net.on(0));
        let to = format!("h{TARGETS}:{}", self.place(TARGETS).join("copy").display());
        let joining = Running::start(join.arg(bin_directory().join("rdcp")).args(["--join", &job, &to]))?;
        // A new directory has no name before it is proven.
        let have = || (1..=others).all(|host| self.place(host).join("copy").exists());
        wait_until("the others", have)?;
        let others_s = start.elapsed().as_secs_f64();
        let joined_s = (joining.done()?.at - asked).as_secs_f64();
        running.success()?;
        self.all_have_it(TARGETS, None)?;
        Ok([others_s, joined_s])
    }

    fn end_agent(&self, host: usize) -> Result<()> {
        while let Ok(agent) = self.agent_on(host) {
            timed(Command::new("kill").args(["-KILL", &agent]))?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Finds the agent of a host, not a process that the agent has started to outlive it.
    fn agent_on(&self, host: usize) -> Result<String> {
        let output = self.net.testbed("pid", host).output().map_err(text)?;
        let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let of_host = network(String::from_utf8_lossy(&output.stdout).trim());
        let is_it = |pid: &String| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let runs = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == agent());
            runs && network(pid) == of_host && !words.windows(7).any(|word| word == b"--guard")
        };
        let entries = fs::read_dir("/proc").map_err(text)?.flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        pids.find(is_it).ok_or(format!("no agent on h{host}"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for server in &self.servers {
            let _ = Command::new("kill").arg(server.id.to_string()).status();
        }
    }
}

fn title(hosts: &Hosts, what: &str) -> String {
    format!("{:.2} GiB and {SMALL_FILES} small files to {what}, each link at 200 Mb/s", gib(hosts.bytes))
}

/// Measures all of `rdcp`, to one host and to eight.
pub fn many() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("many") {
        return Ok(absent);
    }
    let hosts = Hosts::held()?;
    let contestants = [
        Contestant::new(Kind::Ours, "1 host", "rdcp -r {from} h1:{to}", || hosts.well(1)),
        Contestant::new(Kind::Ours, "8 hosts", "rdcp -r {from} h[1-8]:{to}", || hosts.well(TARGETS)),
    ];
    judged("many", &title(&hosts, "1 and 8 hosts"), "s", &contestants, runs().min(ROUNDS), |found| {
        let [one, all] = [0, 1].map(|at| &found.entries[at].values);
        vec![Row::at_most("many: 8 hosts, over 1", 1.15, all, one)]
    })
}

/// Measures the same with a host that fails in the middle.
pub fn faults() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("many-faults") {
        return Ok(absent);
    }
    let hosts = Hosts::held()?;
    let kill = || timed(Command::new("kill").args(["-KILL", &hosts.agent_on(SPOILT)?])).map(|_| ());
    let cut_off = || timed(hosts.net.testbed("partition", SPOILT).arg("silent")).map(|_| ());
    let heal = || timed(&mut hosts.net.testbed("heal", SPOILT)).map(|_| ());
    let command = "rdcp -r {from} h[1-8]:{to}";
    let contestants = [
        Contestant::new(Kind::Ours, "1 host", "rdcp -r {from} h1:{to}", || hosts.well(1)),
        Contestant::new(Kind::Ours, "8 hosts, one killed", command, || hosts.spoilt(&kill, &|| Ok(()))),
        Contestant::new(Kind::Ours, "8 hosts, one cut off", command, || hosts.spoilt(&cut_off, &heal)),
        Contestant::new(Kind::Ours, "8 hosts, one at 20 Mb/s", command, || hosts.one_slow()),
    ];
    let found =
        contest("many-faults", &title(&hosts, "8 hosts, of which one fails"), "s", &contestants, runs().min(ROUNDS))?;
    let values = |at: usize| &found.entries[at].values;
    let beyond = |at: usize| -> Vec<f64> {
        values(at).iter().zip(values(0)).map(|(seconds, one)| seconds - 1.15 * one).collect()
    };
    Ok(vec![
        Row::limit("many-faults: one killed, beyond 1.15 x of 1 host", 2.0, "s", &beyond(1)),
        Row::limit("many-faults: one cut off, beyond 1.15 x of 1 host", STALL_S + 3.0, "s", &beyond(2)),
        Row::at_most("many-faults: the others of one at a tenth, over 1 host", 1.2, values(3), values(0)),
    ])
}

/// Measures a host that is added when nine tenths have arrived: how long it takes from then on, and
/// how long the others take.
pub fn joins() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("many-joins") {
        return Ok(absent);
    }
    let hosts = Hosts::held()?;
    // One run measures both. The contestant whose turn is first runs it, and leaves the other's value.
    let left = [Cell::new(None), Cell::new(None)];
    let joined = |which: usize| -> Result<f64> {
        if let Some(seconds) = left[which].take() {
            return Ok(seconds);
        }
        let seconds = hosts.joined()?;
        left[1 - which].set(Some(seconds[1 - which]));
        Ok(seconds[which])
    };
    let contestants = [
        Contestant::new(Kind::Ours, "1 host", "rdcp -r {from} h1:{to}", || hosts.well(1)),
        Contestant::new(Kind::Ours, "7 hosts", "rdcp -r {from} h[1-7]:{to}", || hosts.well(TARGETS - 1)),
        Contestant::new(Kind::Ours, "7 hosts, while one joins", "rdcp -r {from} h[1-7]:{to}", || joined(0)),
        Contestant::new(Kind::Ours, "the one that joins", "rdcp --join {job} h8:{to}", || joined(1)),
    ];
    let what = "7 hosts, and one that joins at 90 %";
    let found = contest("many-joins", &title(&hosts, what), "s", &contestants, runs().min(ROUNDS))?;
    let [one, seven, others, added] = [0, 1, 2, 3].map(|at| &found.entries[at].values);
    Ok(vec![
        Row::at_most("many-joins: one that joins at 90 %, over 1", 1.15, added, one),
        Row::at_most("many-joins: others while one joins, over 7 alone", 1.05, others, seven),
    ])
}

/// Measures processor time of a host that receives and passes on, without a limit on links, compared with that of a
/// host that only receives, and of a bare sender.
pub fn processor_time() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("many-cpu") {
        return Ok(absent);
    }
    let hosts = Hosts::start()?;
    let of_first = |targets: usize| {
        spent_by(hosts.servers[1].id, hosts.bytes, || {
            timed(&mut hosts.copy(targets)?)?;
            hosts.all_have_it(targets, None)
        })
    };
    let contestants = [
        Contestant::new(Kind::Ours, "a host that receives", "rdcp -r {from} h1:{to}", || of_first(1)),
        Contestant::new(Kind::Ours, "one that passes on as well", "rdcp -r {from} h[1-2]:{to}", || of_first(2)),
        Contestant::new(Kind::Ours, "a bare sender", "rdsend --encrypt always h1 {port} {key} {file}", || {
            hosts.bare_send()
        }),
    ];
    let title = format!("Processor time for each GB, {:.2} GiB in memory: the first of two hosts", gib(hosts.bytes));
    judged("many-cpu", &title, "s/GB", &contestants, runs(), |found| {
        let [receives, passes_on, sends] = [0, 1, 2].map(|at| &found.entries[at].values);
        let both: Vec<f64> = receives.iter().zip(sends).map(|(receives, sends)| receives + 1.2 * sends).collect();
        vec![Row::at_most("many-cpu: inner host, over a receiver and 1.2 x a bare send", 1.0, passes_on, &both)]
    })
}
