//! Targets for `rdpipe`, compared with `rdsend` and `rdrecv`, pipes through ssh, and socat. This
//! machine stands for all hosts.
//!
//! If ssh is not to be measured, a script of two lines replaces it and runs the agent here. Then the time and processor
//! time of a hop are those of the commands alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::harness::*;
use crate::peers::{STREAMS, Way};
use crate::process::{adopt, spent};
use crate::record::{self, Contest, Entry, Kind};
use crate::sizes::slope;
use crate::sshd::{HOSTS, Sshd, numbered};
use crate::streams::{ours, scene};

/// Data in clear, because the programs compared here do not encrypt either.
const PLAIN: [&str; 4] = ["--transport", "tcp", "--encrypt", "never"];

// --- rows ------------------------------------------------------------------------------------------------------------

/// Measures one hop from a file to /dev/null: the time from the start of the command to its exit, including the start
/// of two agents by the script. The comparison is `rdsend FILE` to `rdrecv >/dev/null`, from rdsend's start until
/// both have exited, with rdrecv listening before. Lanes, checks and files are the same, and only rdpipe's time
/// includes its additional work.
pub fn hop() -> Result<Vec<Row>> {
    let bytes = size();
    let place = Place::new(bytes)?;
    let input = place.scratch.random_file(bytes)?;
    println!("\nrdpipe: {}", place.verbose_report(&hop_stages(&input))?);
    let contestants = [
        Contestant::new(Kind::Ours, "rdpipe, agents started here", "rdpipe 'h1:< {file}' 'h2:> /dev/null'", || {
            rate(bytes, timed(&mut place.rdpipe(&hop_stages(&input)))?)
        }),
        scene(&input).stream(ours("rdsend FILE, rdrecv listening", "--encrypt never", ""), bytes),
    ];
    let title = format!("{:.2} GiB in memory: one hop, '< FILE' to '> /dev/null', in clear", gib(bytes));
    judged("pipe-hop", &title, "GB/s", &contestants, runs(), |found| {
        let [rdpipe, rdsend] = [&found.entries[0], &found.entries[1]];
        vec![Row::ratio("pipe-hop: rdpipe / rdsend to rdrecv", 0.95, &rdpipe.values, &rdsend.values)]
    })
}

/// Measures `cat` on one host after another, with 1 to 4 hops between the first and the last. On one machine all hops
/// share the processors, so each hop costs as much as the one before, but must not cost more. The first case has no
/// `cat` and none of its pipes, so the power is that of the time beyond the first case. With the first case, equal
/// steps would look like growth.
pub fn hops() -> Result<Vec<Row>> {
    let bytes = part_of_size(2);
    let place = Place::new(bytes)?;
    let input = place.scratch.random_file(bytes)?;
    let pipelines: Vec<Vec<String>> = (1..=4)
        .map(|hops| {
            let between = (2..=hops).map(|host| format!("h{host}:cat"));
            let first = format!("h1:< {}", input.display());
            std::iter::once(first).chain(between).chain([format!("h{}:> /dev/null", hops + 1)]).collect()
        })
        .collect();
    let contestants: Vec<Contestant<'_>> = pipelines
        .iter()
        .map(|stages| {
            let (hops, place) = (stages.len() - 1, &place);
            let command = format!("rdpipe 'h1:< {{file}}' {}'h{}:> /dev/null'", "hN:cat ".repeat(hops - 1), hops + 1);
            Contestant::new(Kind::Ours, &format!("{hops} hops"), &command, move || timed(&mut place.rdpipe(stages)))
        })
        .collect();
    let title = format!("{:.2} GiB in memory through pipelines of 1 to 4 hops, all on this machine", gib(bytes));
    println!("\n{title}; 1 + {} rounds", runs());
    let busy = busy();
    let (mut entries, absent) = turns(&contestants, runs())?;
    for entry in &mut entries {
        entry.print("s");
        entry.at = entry.name.split(' ').next().and_then(|hops| hops.parse().ok());
    }
    let row = match entries.iter().find(|entry| entry.at == Some(1.0)) {
        Some(first) => {
            let beyond = |entry: &Entry| Entry {
                at: entry.at.map(|hops| hops - 1.0),
                values: entry.values.iter().zip(&first.values).map(|(all, first)| all - first).collect(),
                ..entry.clone()
            };
            let beyond: Vec<Entry> = entries.iter().map(beyond).collect();
            let cost: Vec<&Entry> = beyond.iter().collect();
            slope("hops: time beyond the first hop", &cost, 1.0, |entry| entry.values.clone())
        }
        None => Row::absent("hops: time beyond the first hop", "one hop could not be measured"),
    };
    let name = "rdpipe".to_owned();
    let (row_name, place, across) = ("hops".into(), "here".into(), Some("hops".into()));
    let entries = entries.into_iter().map(|entry| Entry { name: name.clone(), ..entry }).collect();
    record::add(&Contest { row: row_name, place, title, unit: "s".into(), across, busy, entries, absent });
    Ok(vec![row])
}

/// Measures four commands on four hosts, with three hops between them: `cat FILE`, `cat`, `cat`, `cat >/dev/null`. The
/// comparison is `ssh host 'cat FILE' | ssh host cat | …`, which brings all data back here between two commands. Both
/// start through real ssh to the same sshd, so both times include it. ssh encrypts, so the target is for `--encrypt
/// always`. Data in clear, which is rdpipe's default within one machine, is measured for the record.
pub fn three() -> Result<Vec<Row>> {
    let bytes = part_of_size(2);
    let site = Site::start(bytes)?;
    let input = site.place.scratch.random_file(bytes)?;
    let commands = [format!("cat {}", input.display()), "cat".into(), "cat".into(), "cat >/dev/null".into()];
    let stages: Vec<String> =
        commands.iter().enumerate().map(|(place, command)| format!("{}:{command}", numbered(place + 1))).collect();
    let config = site.ssh.config();
    let of_ssh: Vec<String> = commands
        .iter()
        .enumerate()
        .map(|(place, command)| format!("ssh -F {} {} '{command}'", config.display(), numbered(place + 1)))
        .collect();
    let of_ssh = of_ssh.join(" | ");
    let shown = "h1:'cat {file}' h2:cat h3:cat h4:'cat >/dev/null'";
    let ours = |encrypt: &'static str| {
        let (site, stages) = (&site, &stages);
        let run = move || rate(bytes, timed(site.rdpipe(&["--encrypt", encrypt]).args(stages))?);
        let name = format!("rdpipe --encrypt {encrypt}");
        Contestant::new(Kind::Ours, &name, &format!("{name} {shown}"), run)
    };
    let by_ssh = "ssh h1 'cat {file}' | ssh h2 cat | ssh h3 cat | ssh h4 'cat >/dev/null'";
    let contestants = [
        ours("always"),
        ours("never"),
        Contestant::new(Kind::Peer, "ssh | ssh | ssh | ssh", by_ssh, || rate(bytes, timed(&mut bash(&of_ssh))?)),
    ];
    let title = format!("{:.2} GiB in memory through four commands on four hosts, ssh's start in it", gib(bytes));
    judged("pipe-three", &title, "GB/s", &contestants, runs(), |found| {
        let over_ssh = |name: &str, ours: &str| {
            found.compare(name, [ours, "ssh | ssh | ssh | ssh"], |ours, ssh| {
                Row::ratio(name, 3.0, &ours.values, &ssh.values)
            })
        };
        vec![
            over_ssh("pipe-three: encrypted, over ssh", "rdpipe --encrypt always"),
            over_ssh("pipe-three: in clear, over ssh", "rdpipe --encrypt never").for_the_record(),
        ]
    })
}

/// Measures user and system time for each GB of all processes that one hop from a file to /dev/null takes: the caller,
/// two scripts instead of ssh, two agents and the processes that they start. The comparison is two socats that do the
/// same. The time is what the kernel has added up for this program's children (`cutime` and `cstime`). Processes whose
/// parents have ended count too: they become children of this program, and a round waits for them. Time that the kernel
/// spends on loopback counts for the process that it interrupts, for both contestants alike. The clock ticks in
/// hundredths of a second, so sizes should take seconds.
pub fn processor_time() -> Result<Vec<Row>> {
    const TARGET: f64 = 1.2;
    let bytes = size();
    let place = Place::new(bytes)?;
    let input = place.scratch.random_file(bytes)?;
    let adopted = adopt()?;
    let (socat, scene) =
        (STREAMS.iter().map(Way::peer).find(|way| way.name == "socat").ok_or("no socat")?, scene(&input));
    let contestants = [
        Contestant::new(Kind::Ours, "rdpipe, agents started here", "rdpipe 'h1:< {file}' 'h2:> /dev/null'", || {
            spent(None, bytes, || timed(&mut place.rdpipe(&hop_stages(&input))).map(drop))
        }),
        Contestant::new(Kind::Peer, "socat", &socat.command(), || {
            spent(None, bytes, || scene.run(&socat, bytes).map(drop))
        }),
    ];
    let title = format!("Processor time for each GB, {:.2} GiB in memory: one hop to /dev/null, in clear", gib(bytes));
    let name = "pipe-cpu: rdpipe / socat";
    let rows = judged("pipe-cpu", &title, "s/GB", &contestants, runs(), |found| {
        vec![found.compare(name, ["rdpipe, agents started here", "socat"], |ours, socat| {
            Row::at_most(name, TARGET, &ours.values, &socat.values)
        })]
    });
    drop(adopted);
    rows
}

/// Measures one byte through `cat` on 1, 3 and 10 hosts. The hosts are addresses of this machine with one sshd, each
/// reached by ssh. Real hosts would each do their part of starting ssh; here one machine does all of it. So the target
/// applies to the time beyond that of as many `ssh host true` at once. The time beyond a single one is shown for the
/// record: with as many machines as hosts, the target would apply to that.
pub fn setup() -> Result<Vec<Row>> {
    const MILLISECONDS_FOR_TEN: f64 = 100.0;
    const LOGIN: &str = "ssh host true";
    let site = Site::start(1 << 20)?;
    let byte = site.place.scratch.random_file(1)?;
    let mut rows = Vec::new();
    let counts: &[usize] = by_kind(&[HOSTS], &[HOSTS], &[1, 3, HOSTS]);
    for &hosts in counts {
        let stages: Vec<String> = (1..=hosts).map(|number| format!("{}:cat", numbered(number))).collect();
        let logins: Vec<String> = (1..=hosts)
            .map(|number| {
                format!("ssh -n -F {} {} true & all=\"$all $!\"", site.ssh.config().display(), numbered(number))
            })
            .collect();
        // Each login is waited for separately, so that a failed one is noticed.
        let logins = format!("all=\n{}\nfor one in $all; do wait $one || exit; done", logins.join("\n"));
        let config = "-F {config}";
        let (ours, at_once) = (format!("rdpipe, {hosts} hosts"), format!("{LOGIN}, {hosts} at once"));
        let contestants = [
            Contestant::new(Kind::Ours, &ours, "rdpipe {hosts:cat} < {file}", || {
                timed_with_input(site.rdpipe(&[]).args(&stages), &byte)
            }),
            Contestant::new(Kind::Limit, &at_once, &format!("ssh {config} {{host}} true & …"), || {
                timed(&mut bash(&logins))
            }),
            Contestant::new(Kind::Limit, LOGIN, &format!("ssh {config} {{host}} true"), || {
                timed(site.ssh.client("ssh").args([&numbered(1), "true"]))
            }),
        ];
        let title = format!("1 byte through cat on {hosts} hosts, all of them this one");
        let found = contest("pipe-setup", &title, "s", &contestants, runs())?;
        let login = found.entry(&at_once).and(found.entry(LOGIN)).ok_or("ssh does not work here")?;
        let allowed = MILLISECONDS_FOR_TEN * hosts.div_ceil(10) as f64;
        let beyond = |what: &str, other: &str| {
            let name = format!("pipe-setup: {hosts} hosts, beyond {what}");
            found.compare(&name, [&ours, other], |ours, other| {
                Row::limit(&name, allowed, "ms", &milliseconds_beyond(&ours.values, &other.values))
            })
        };
        rows.push(beyond("their ssh", &at_once));
        if hosts > 1 {
            rows.push(Row { verdict: "for the record".into(), ..beyond("one ssh", LOGIN) });
        }
        if hosts == HOSTS {
            rows.push(setup_elsewhere(&site.place, &byte, Spread::of(&login.values).median, allowed)?);
        }
    }
    Ok(rows)
}

/// Measures as many hosts as if each had its own processors for a login: instead of ssh, a script waits for as long as
/// one ssh takes. The work of rdpipe and its agents is still done by this machine alone.
fn setup_elsewhere(place: &Place, byte: &Path, login: f64, allowed: f64) -> Result<Row> {
    let launcher = launcher(&place.scratch, "wait-and-run", &format!("sleep {login:.3}; "))?;
    let stages: Vec<String> = (1..=HOSTS).map(|number| format!("127.0.0.{number}:cat")).collect();
    let contestants = [
        Contestant::new(
            Kind::Ours,
            &format!("rdpipe, {HOSTS} hosts"),
            "rdpipe --rsh {script} {hosts:cat} < {file}",
            || timed_with_input(rdpipe().arg("--rsh").arg(&launcher).args(&stages), byte),
        ),
        Contestant::new(Kind::Limit, "one login", "{script} {host} true", || {
            timed(Command::new(&launcher).args(["127.0.0.1", "true"]))
        }),
    ];
    let title = format!("1 byte through cat on {HOSTS} hosts, which let in as if they were machines of their own");
    let name = format!("pipe-setup: {HOSTS} hosts, beyond one login");
    let found = contest("pipe-setup", &title, "s", &contestants, runs())?;
    Ok(found.compare(&name, [&format!("rdpipe, {HOSTS} hosts"), "one login"], |ours, login| {
        Row::limit(&name, allowed, "ms", &milliseconds_beyond(&ours.values, &login.values))
    }))
}

// --- what they share -------------------------------------------------------------------------------------------------

fn hop_stages(input: &Path) -> [String; 2] {
    [format!("h1:< {}", input.display()), "h2:> /dev/null".into()]
}

fn rate(bytes: u64, seconds: f64) -> Result<f64> {
    Ok(bytes as f64 / seconds / 1e9)
}

/// Returns how long a command takes that reads a file.
fn timed_with_input(command: &mut Command, input: &Path) -> Result<f64> {
    let input = fs::File::open(input).map_err(text)?;
    let start = Instant::now();
    let ended = Running::start_with_input(command.stdin(input))?.done()?;
    Ok((ended.at - start).as_secs_f64())
}

/// Makes a script to use instead of ssh, which runs everything here, after the commands in `first`.
fn launcher(scratch: &Scratch, name: &str, first: &str) -> Result<PathBuf> {
    let launcher = scratch.0.join(name);
    fs::write(&launcher, format!("#!/bin/sh\n{first}exec sh -c \"exec $2\"\n")).map_err(text)?;
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).map_err(text)?;
    Ok(launcher)
}

/// A place in memory, with a script to use instead of ssh.
struct Place {
    scratch: Scratch,
    launcher: PathBuf,
}

impl Place {
    fn new(bytes: u64) -> Result<Self> {
        let scratch = Scratch::with_room(bytes + (64 << 20))?;
        let launcher = launcher(&scratch, "rsh", "")?;
        Ok(Place { scratch, launcher })
    }

    /// Agents are started by the script, and data is in clear.
    fn rdpipe(&self, stages: &[String]) -> Command {
        let mut command = rdpipe();
        command.arg("--rsh").arg(&self.launcher).args(PLAIN).args(stages);
        command
    }

    /// Returns the path of the data, in rdpipe's own words.
    fn verbose_report(&self, stages: &[String]) -> Result<String> {
        let said = Running::start(self.rdpipe(stages).arg("-v"))?.success()?;
        let line = said.lines().find(|line| line.contains(" -> "));
        Ok(line.map_or("did not say which way the data went", str::trim).to_owned())
    }
}

/// A place with an sshd.
struct Site {
    // Declared first, so that sshd ends before its directory is removed.
    ssh: Sshd,
    place: Place,
}

impl Site {
    fn start(bytes: u64) -> Result<Self> {
        let place = Place::new(bytes)?;
        Ok(Site { ssh: Sshd::start(&place.scratch.0)?, place })
    }

    /// Agents are started by ssh.
    fn rdpipe(&self, options: &[&str]) -> Command {
        let mut command = rdpipe();
        command.arg("-F").arg(self.ssh.config()).args(options);
        command
    }
}

fn rdpipe() -> Command {
    let bin = bin_directory();
    let mut command = Command::new(bin.join("rdpipe"));
    command.arg("--agent").arg(bin.join("rdma-pipe-agent"));
    command
}

fn bash(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", script]);
    command
}
