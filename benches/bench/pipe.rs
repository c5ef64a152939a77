//! `rdpipe`: what must hold of it, against `rdsend` and `rdrecv`, pipes through ssh, and socat. All hosts are this one.
//!
//! Where ssh is not what is measured, a script of two lines stands in for it, which runs the agent here: then a hop's
//! time and processor time are the commands' own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, set_child_subreaper, wait};

use crate::harness::*;
use crate::sshd::{HOSTS, Sshd, numbered};
use crate::streams::{pipe, socat};

type Measure = fn() -> Result<Vec<Row>>;

/// What `ONLY` calls the rows, and what measures them.
pub const ROWS: [(&str, Measure); 4] =
    [("pipe-hop", hop), ("pipe-three", three), ("pipe-cpu", processor_time), ("pipe-setup", setup)];

/// Data in clear: what is compared here does not encrypt either.
const PLAIN: [&str; 4] = ["--transport", "tcp", "--encrypt", "never"];

// --- rows ------------------------------------------------------------------------------------------------------------

/// One hop from a file to /dev/null, by wall time from the start of the command until it has exited, in it the start of
/// two agents by the script. Against `rdsend FILE` to `rdrecv >/dev/null`, from rdsend's start until both have exited,
/// rdrecv listening before: lanes, checks and files are the same, and what rdpipe has to do beside is in its time only.
fn hop() -> Result<Vec<Row>> {
    let bytes = size();
    let place = Place::new(bytes)?;
    let input = place.scratch.random_file(bytes)?;
    let rounds = runs();
    println!("\n{:.2} GiB in memory: one hop, '< FILE' to '> /dev/null', in clear; 1 + {rounds} rounds", gib(bytes));
    println!("GB/s by wall time; rdpipe: {}", place.told(&hop_stages(&input))?);
    let contestants: [Contestant<'_>; 2] = [
        (
            "rdpipe, agents started here".into(),
            Box::new(|| rate(bytes, timed(&mut place.rdpipe(&hop_stages(&input)))?)),
        ),
        (
            "rdsend FILE, rdrecv listening".into(),
            Box::new(|| rate(bytes, pipe(&["--encrypt", "never"], &input)?.wall.as_secs_f64())),
        ),
    ];
    let rates = contest(&contestants, rounds, "GB/s")?;
    Ok(vec![Row::ratio("pipe-hop: rdpipe / rdsend to rdrecv", 0.95, &rates[0], &rates[1])])
}

/// Four commands on four hosts, with three hops between them: `cat FILE`, `cat`, `cat`, `cat >/dev/null`. Against
/// `ssh host 'cat FILE' | ssh host cat | …`, which brings everything back here between two commands. Both start by real
/// ssh to the same sshd, which is in the time of both. ssh encrypts, so the target is for `--encrypt always`; in clear,
/// as rdpipe has it by itself within one machine, for the record.
fn three() -> Result<Vec<Row>> {
    let bytes = size();
    let site = Site::start(bytes)?;
    let input = site.place.scratch.random_file(bytes)?;
    let rounds = runs();
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
    println!("\n{:.2} GiB in memory through four commands on four hosts; 1 + {rounds} rounds", gib(bytes));
    println!("GB/s by wall time, ssh's start in it");
    let ours = |encrypt: &'static str| {
        let (site, stages) = (&site, &stages);
        move || rate(bytes, timed(site.rdpipe(&["--encrypt", encrypt]).args(stages))?)
    };
    let contestants: [Contestant<'_>; 3] = [
        ("rdpipe --encrypt always".into(), Box::new(ours("always"))),
        ("rdpipe --encrypt never".into(), Box::new(ours("never"))),
        ("ssh | ssh | ssh | ssh".into(), Box::new(|| rate(bytes, timed(&mut bash(&of_ssh))?))),
    ];
    let rates = contest(&contestants, rounds, "GB/s")?;
    let mut plain = Row::ratio("pipe-three: in clear, over ssh", 3.0, &rates[1], &rates[2]);
    (plain.target, plain.verdict) = ("(no target)".into(), "for the record".into());
    Ok(vec![Row::ratio("pipe-three: encrypted, over ssh", 3.0, &rates[0], &rates[2]), plain])
}

/// User and system time of everything that one hop from a file to /dev/null takes, for each GB: the caller, two scripts
/// in ssh's place, two agents and whatever they start; against that of two socats that do the same. It is what the
/// kernel has added up for this program's children (`cutime` and `cstime`), also of those whose parent has left them:
/// they become children of this program, and a round waits for them. Time that the kernel spends on loopback counts for
/// whoever is interrupted by it, for both alike. The clock ticks in hundredths of a second: sizes should be seconds.
fn processor_time() -> Result<Vec<Row>> {
    const TARGET: f64 = 1.2;
    let bytes = size();
    let place = Place::new(bytes)?;
    let input = place.scratch.random_file(bytes)?;
    let rounds = runs();
    set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| error.to_string())?;
    println!("\n{:.2} GiB in memory: one hop, '< FILE' to '> /dev/null', in clear; 1 + {rounds} rounds", gib(bytes));
    println!("seconds of processor time for each GB, of all processes of both ends");
    let contestants: [Contestant<'_>; 2] = [
        (
            "rdpipe, agents started here".into(),
            Box::new(|| spent(bytes, || timed(&mut place.rdpipe(&hop_stages(&input))).map(drop))),
        ),
        ("socat -u -b 1048576, 1 connection".into(), Box::new(|| spent(bytes, || socat(&input, bytes).map(drop)))),
    ];
    let times = contest(&contestants, rounds, "s/GB");
    set_child_subreaper(None).map_err(|error| error.to_string())?;
    let times = times?;
    Ok(vec![Row::at_most("pipe-cpu: rdpipe / socat", TARGET, &times[0], &times[1])])
}

/// One byte through `cat` on 1, 3 and 10 hosts, which are addresses of this machine with one sshd, each called up by ssh.
/// Real hosts would each do their part of ssh's start; here one machine does all of it. So what must hold is said of the
/// time beyond that of as many `ssh host true` at once; and the time beyond a single one is told for the record, which is
/// what must hold with as many machines as hosts.
fn setup() -> Result<Vec<Row>> {
    const MILLISECONDS_FOR_TEN: f64 = 100.0;
    let site = Site::start(1 << 20)?;
    let byte = site.place.scratch.random_file(1)?;
    let rounds = runs();
    println!("\n1 byte through cat on 1, 3 and {HOSTS} hosts, all of them this one; 1 + {rounds} rounds");
    let mut rows = Vec::new();
    for hosts in [1, 3, HOSTS] {
        let stages: Vec<String> = (1..=hosts).map(|number| format!("{}:cat", numbered(number))).collect();
        let logins: Vec<String> = (1..=hosts)
            .map(|number| {
                format!("ssh -n -F {} {} true & all=\"$all $!\"", site.ssh.config().display(), numbered(number))
            })
            .collect();
        // Each of them is waited for by itself, so that one that fails is noticed.
        let logins = format!("all=\n{}\nfor one in $all; do wait $one || exit; done", logins.join("\n"));
        let contestants: [Contestant<'_>; 3] = [
            (
                format!("rdpipe, {hosts} hosts"),
                Box::new(|| {
                    let input = fs::File::open(&byte).map_err(text)?;
                    let start = Instant::now();
                    Running::start_with_input(site.rdpipe(&[]).args(&stages).stdin(input))?.success()?;
                    Ok(start.elapsed().as_secs_f64())
                }),
            ),
            (format!("ssh host true, {hosts} at once"), Box::new(|| timed(&mut bash(&logins)))),
            ("ssh host true".into(), Box::new(|| timed(site.ssh.client("ssh").args([&numbered(1), "true"])))),
        ];
        let times = contest(&contestants, rounds, "s")?;
        let beyond = |other: usize| -> Vec<f64> {
            times[0].iter().zip(&times[other]).map(|(ours, theirs)| (ours - theirs) * 1e3).collect()
        };
        let allowed = MILLISECONDS_FOR_TEN * hosts.div_ceil(10) as f64;
        rows.push(Row::limit(&format!("pipe-setup: {hosts} hosts, beyond their ssh"), allowed, "ms", &beyond(1)));
        let mut one = Row::limit(&format!("pipe-setup: {hosts} hosts, beyond one ssh"), allowed, "ms", &beyond(2));
        if hosts > 1 {
            one.verdict = "for the record".into();
            rows.push(one);
        }
    }
    Ok(rows)
}

// --- what they share -------------------------------------------------------------------------------------------------

fn hop_stages(input: &Path) -> [String; 2] {
    [format!("h1:< {}", input.display()), "h2:> /dev/null".into()]
}

fn rate(bytes: u64, seconds: f64) -> Result<f64> {
    Ok(bytes as f64 / seconds / 1e9)
}

fn contest(contestants: &[Contestant<'_>], rounds: usize, unit: &str) -> Result<Vec<Vec<f64>>> {
    let values = alternate(contestants, rounds)?;
    for ((name, _), values) in contestants.iter().zip(&values) {
        println!("    {name:<42} {} {unit}", Spread::of(values));
    }
    Ok(values)
}

/// Seconds of processor time that `run`'s processes take for each GB.
fn spent(bytes: u64, run: impl Fn() -> Result<()>) -> Result<f64> {
    let before = of_children()?;
    run()?;
    all_ended()?;
    Ok((of_children()? - before) / (bytes as f64 / 1e9))
}

/// Waits for those that were left to us, where nothing else of ours runs. Whoever runs on would not be counted.
fn all_ended() -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match wait(WaitOptions::NOHANG) {
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.to_string()),
            Ok(Some(_)) => {}
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return Err("a process is left over".to_owned()),
        }
    }
}

/// Seconds of processor time of all children that have been waited for, and theirs.
fn of_children() -> Result<f64> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).map_err(text)?;
    // Behind the name, which may have anything in it, the third field comes first: cutime and cstime are 16 and 17.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
    let sum = ticks(13).zip(ticks(14)).map(|(user, system)| user + system);
    Ok(sum.ok_or(format!("no times in {path}"))? / rustix::param::clock_ticks_per_second() as f64)
}

/// A place in memory, with a script in ssh's place.
struct Place {
    scratch: Scratch,
    launcher: PathBuf,
}

impl Place {
    fn new(bytes: u64) -> Result<Self> {
        let scratch = Scratch::with_room(bytes + (64 << 20))?;
        let launcher = scratch.0.join("rsh");
        fs::write(&launcher, "#!/bin/sh\nexec sh -c \"exec $2\"\n").map_err(text)?;
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).map_err(text)?;
        Ok(Place { scratch, launcher })
    }

    /// Agents started by the script, data in clear.
    fn rdpipe(&self, stages: &[String]) -> Command {
        let mut command = rdpipe();
        command.arg("--rsh").arg(&self.launcher).args(PLAIN).args(stages);
        command
    }

    /// How the data goes, in rdpipe's own words.
    fn told(&self, stages: &[String]) -> Result<String> {
        let said = Running::start(self.rdpipe(stages).arg("-v"))?.success()?;
        let line = said.lines().find(|line| line.contains(" -> "));
        Ok(line.map_or("did not say which way the data went", str::trim).to_owned())
    }
}

/// A place with an sshd.
struct Site {
    // Ends before its directory goes.
    ssh: Sshd,
    place: Place,
}

impl Site {
    fn start(bytes: u64) -> Result<Self> {
        let place = Place::new(bytes)?;
        Ok(Site { ssh: Sshd::start(&place.scratch.0)?, place })
    }

    /// Agents started by ssh.
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
