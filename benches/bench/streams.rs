//! Streams over TCP on this machine: `rdsend` and `rdrecv` against socat and scp.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::guest::VERBS_OPTIONS;
use crate::harness::*;
use crate::sshd::{HOST, Sshd};

const KEY: &str = "bench-key-of-no-value";

pub fn throughput(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let bytes = size();
    let scratch = Scratch::with_room(bytes + (64 << 20))?;
    let input = scratch.random_file(bytes)?;
    let ssh = if wanted("scp") { Some(Sshd::start(&scratch.0)?) } else { None };
    let rounds = runs();
    println!("\n{:.2} GiB in memory -> TCP over loopback -> /dev/null; 1 + {rounds} rounds", gib(bytes));
    println!("GB/s by wall time from the sender's start until both ends have exited");

    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    let ours = |encrypt: &'static str| {
        let input = input.clone();
        move || Ok(bytes as f64 / pipe(&["--encrypt", encrypt], &input)?.wall.as_secs_f64() / 1e9)
    };
    let lanes = pipe(&["--encrypt", "never"], &input)?.lanes();
    let plain = wanted("tcp") || wanted("scp");
    if plain {
        contestants.push((format!("rdsend, plain, {lanes}"), Box::new(ours("never"))));
    }
    if wanted("encrypted") {
        let lanes = pipe(&["--encrypt", "always"], &input)?.lanes();
        contestants.push((format!("rdsend, encrypted, {lanes}"), Box::new(ours("always"))));
    }
    if wanted("tcp") || wanted("encrypted") {
        contestants.push(("socat -u -b 1048576, plain, 1 connection".into(), Box::new(|| socat(&input, bytes))));
    }
    if let Some(ssh) = &ssh {
        contestants.push(("scp, 1 connection".into(), Box::new(|| scp(ssh, &input, bytes))));
    }

    let rates = alternate(&contestants, rounds)?;
    let mut of = contestants.iter().zip(&rates).map(|((name, _), rates)| {
        println!("    {name:<42} {} GB/s", Spread::of(rates));
        (name.as_str(), rates)
    });
    let all: Vec<_> = of.by_ref().collect();
    let find = |part: &str| all.iter().find(|(name, _)| name.contains(part)).map(|(_, rates)| rates.as_slice());
    let mut rows = Vec::new();
    for (row, name, target, our, their) in [
        ("tcp", "tcp: plain against socat", 1.0, "rdsend, plain", "socat"),
        ("encrypted", "encrypted: against plain socat", 0.7, "rdsend, encrypted", "socat"),
        ("scp", "scp: plain against scp", 6.0, "rdsend, plain", "scp"),
    ] {
        if let (true, Some(our), Some(their)) = (wanted(row), find(our), find(their)) {
            rows.push(Row::ratio(name, target, our, their));
        }
    }
    Ok(rows)
}

fn socat(input: &Path, bytes: u64) -> Result<f64> {
    let port = free_port()?;
    let mut receiver = Command::new("socat");
    receiver.args(["-u", "-b", "1048576", &format!("TCP-LISTEN:{port},reuseaddr"), "OPEN:/dev/null,wronly"]);
    let receiver = Running::start(&mut receiver)?;
    wait_listening(port)?;
    let mut sender = Command::new("socat");
    sender.args(["-u", "-b", "1048576"]).arg(format!("OPEN:{},rdonly", input.display()));
    sender.arg(format!("TCP:127.0.0.1:{port}"));
    let start = Instant::now();
    let sender = Running::start(&mut sender)?;
    sender.success()?;
    receiver.success()?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
}

fn scp(ssh: &Sshd, input: &Path, bytes: u64) -> Result<f64> {
    let mut scp = ssh.client("scp");
    scp.arg("-q").arg(input).arg(format!("{HOST}:/dev/null"));
    Ok(bytes as f64 / timed(&mut scp)? / 1e9)
}

pub fn memory() -> Result<Vec<Row>> {
    const GROWTH_MAX: f64 = 4.0;
    const MIB_MAX: f64 = 128.0;
    const ROUNDS: usize = 3;
    // A file that is all hole: read as zeros, and in memory it takes no room.
    let scratch = Scratch::with_room(64 << 20)?;
    let (small, large) = (scratch.hole("1GiB", GIB)?, scratch.hole("64GiB", 64 * GIB)?);
    println!("\nresident memory at its highest (VmHWM, asked every 10 ms), plain and encrypted, {ROUNDS} runs of each");
    let mut rows = Vec::new();
    for encrypt in ["never", "always"] {
        let (mut growth, mut highest) = (f64::MIN, 0.0_f64);
        let mut by_end = [(f64::MAX, 0.0_f64); 2];
        for _ in 0..ROUNDS {
            for (input, is_large) in [(&small, false), (&large, true)] {
                let run = pipe(&["--encrypt", encrypt, "--compress", "off"], input)?;
                for (end, mib) in [run.sender_mib, run.receiver_mib].into_iter().enumerate() {
                    highest = highest.max(mib);
                    let (low, high) = &mut by_end[end];
                    if is_large { *high = high.max(mib) } else { *low = low.min(mib) }
                }
            }
        }
        for (end, (at_small, at_large)) in ["rdsend", "rdrecv"].iter().zip(by_end) {
            println!(
                "    {end}, --encrypt {encrypt}: least at 1 GiB {at_small:.1} MiB, most at 64 GiB {at_large:.1} MiB"
            );
            growth = growth.max(at_large - at_small);
        }
        rows.push(Row {
            name: format!("memory: growth, --encrypt {encrypt}"),
            target: format!("<= {GROWTH_MAX} MiB"),
            measured: format!("{growth:.1} MiB, the worst of both ends"),
            verdict: verdict(growth <= GROWTH_MAX),
        });
        rows.push(Row {
            name: format!("memory: highest, --encrypt {encrypt}"),
            target: format!("< {MIB_MAX} MiB"),
            measured: format!("{highest:.1} MiB, the worst of both ends"),
            // A figure of nothing has not been measured: the process was gone before it was asked.
            verdict: verdict(highest < MIB_MAX && highest > 1.0),
        });
    }
    Ok(rows)
}

pub fn one_byte() -> Result<Row> {
    const MILLISECONDS_MAX: f64 = 50.0;
    let scratch = Scratch::with_room(1 << 20)?;
    let input = scratch.random_file(1)?;
    let rounds = runs().max(21);
    let mut times = Vec::new();
    for round in 0..=rounds {
        let wall = pipe(&[], &input)?.wall.as_secs_f64() * 1e3;
        if round > 0 {
            times.push(wall);
        }
    }
    let time = Spread::of(&times);
    println!("\n1 byte, rdrecv listening: from rdsend's start until both ends have exited: {time} ms ({rounds} runs)");
    Ok(Row {
        name: "byte: a stream of 1 byte".into(),
        target: format!("< {MILLISECONDS_MAX} ms"),
        measured: format!("{time} ms"),
        verdict: verdict(time.median < MILLISECONDS_MAX),
    })
}

/// Where the two ends run.
pub struct Ends<'a> {
    pub address: &'a str,
    pub receiver_host: Option<&'a str>,
    pub sender_host: Option<&'a str>,
}

/// What one stream took.
pub struct Run {
    pub wall: Duration,
    pub sender_mib: f64,
    pub receiver_mib: f64,
    pub sender_said: String,
}

impl Run {
    /// A number from the sender's JSON report.
    pub fn reported(&self, key: &str) -> Option<f64> {
        let (_, after) = self.sender_said.split_once(&format!("\"{key}\":"))?;
        let number: String =
            after.trim_start().chars().take_while(|c| c.is_ascii_digit() || "+-.eE".contains(*c)).collect();
        number.parse().ok()
    }

    pub fn lanes(&self) -> String {
        match self.reported("lanes") {
            Some(1.0) => "1 lane".into(),
            Some(lanes) => format!("{lanes} lanes"),
            None => "lanes not reported".into(),
        }
    }
}

/// rdsend FILE → rdrecv → /dev/null over TCP on this machine.
pub fn pipe(options: &[&str], input: &Path) -> Result<Run> {
    let ends = Ends { address: "127.0.0.1", receiver_host: None, sender_host: None };
    ends.pipe(&[options, &["--transport", "tcp", "--json"]].concat(), input, false)
}

impl Ends<'_> {
    pub fn on(&self, host: Option<&str>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match host {
            None => Command::new(program),
            Some(host) => {
                let mut command = Command::new(std::env::var_os("RD_HOST").unwrap_or_default());
                command.args(["exec", host]).arg(program);
                command
            }
        }
    }

    pub fn pipe(&self, options: &[&str], input: &Path, by_stdin: bool) -> Result<Run> {
        let port = free_port()?;
        let bin = bin_directory();
        let common: Vec<&str> = match options.iter().position(|option| *option == "--transport") {
            Some(at) => vec![options[at], options[at + 1]],
            None => Vec::new(),
        };
        let mut receiver = self.on(self.receiver_host, bin.join("rdrecv"));
        receiver.args(common).args([&port.to_string(), KEY]);
        let receiver = Running::start(&mut receiver)?;
        self.wait_listening(port)?;
        let mut sender = self.on(self.sender_host, bin.join("rdsend"));
        sender.args(options).args([self.address, &port.to_string(), KEY]);
        if by_stdin {
            sender.stdin(File::open(input).map_err(text)?);
        } else {
            sender.arg(input).stdin(Stdio::null());
        }
        let start = Instant::now();
        let sender = Running::start_with_input(&mut sender)?;
        let memory = Memory::watch(&[sender.id, receiver.id]);
        let sent = sender.success()?;
        receiver.success()?;
        let wall = start.elapsed();
        let [sender_mib, receiver_mib] = memory.highest();
        Ok(Run { wall, sender_mib, receiver_mib, sender_said: sent })
    }

    fn wait_listening(&self, port: u16) -> Result<()> {
        match self.receiver_host {
            None => wait_listening(port),
            Some(_) => wait_until(&format!("port {port} to listen on the receiver's host"), || {
                let output = self.on(self.receiver_host, "cat").args(["/proc/net/tcp", "/proc/net/tcp6"]).output();
                output.is_ok_and(|output| listens(&String::from_utf8_lossy(&output.stdout), port))
            }),
        }
    }

    /// MiB/s as its sending end reports them.
    pub fn ib_send_bw(&self) -> Result<f64> {
        let port = free_port()?.to_string();
        let mut server = self.on(self.receiver_host, "ib_send_bw");
        server.args(VERBS_OPTIONS).args(["-p", &port]);
        let server = Running::start(&mut server)?;
        // It listens by rdma_cm, which no file under /proc shows; a client that comes too early is refused at once.
        let start = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(200));
            let mut client = self.on(self.sender_host, "ib_send_bw");
            client.args(VERBS_OPTIONS).args(["-p", &port, self.address]);
            let (code, said) = Running::start(&mut client)?.end()?;
            let average = said.lines().find_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                (fields.len() == 5 && fields[0] == "1048576").then(|| fields[3].parse::<f64>().ok()).flatten()
            });
            if let (0, Some(average)) = (code, average) {
                server.success()?;
                return Ok(average);
            }
            if start.elapsed() > READY_LIMIT {
                return Err(format!("ib_send_bw ended with {code}: {said}"));
            }
        }
    }
}
