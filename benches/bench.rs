//! What must hold, measured: `make bench`, or `cargo bench --bench bench` after `cargo build --release --bins`.
//!
//! `ONLY=tcp,memory` runs some rows (tcp, encrypted, scp, rdma, siw, memory, byte), `RUNS=9` sets the number of rounds,
//! `SIZE_MIB=4096` the stream's size for tcp, encrypted and scp. Both ends of everything run on this machine, which
//! should have nothing else to do. Contestants take turns, one after the other in each round, after a round that does
//! not count: what slows the machine for a while then slows all of them. Figures are medians, with the interquartile
//! range as their spread; so are ratios, taken within each round.
//!
//! Exits with 1 if any row misses its target.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const KEY: &str = "bench-key-of-no-value";
/// No run takes as long; one that does is killed and fails the row.
const RUN_LIMIT: Duration = Duration::from_secs(300);
const READY_LIMIT: Duration = Duration::from_secs(30);
const RUNS_MIN: usize = 9;
const GIB: u64 = 1 << 30;

/// What `ib_send_bw` is asked for, and what rdsend has to beat: 300 messages of 1 MiB.
const VERBS_OPTIONS: &[&str] = &["-R", "-e", "-s", "1048576", "-n", "300", "-t", "16", "-r", "32"];
const VERBS_BYTES: u64 = 300 << 20;

type Result<T> = std::result::Result<T, String>;

/// A name, and one run of it: GB/s.
type Contestant<'a> = (String, Box<dyn Fn() -> Result<f64> + 'a>);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, device] = arguments.as_slice()
        && flag == "--in-guest"
    {
        return finish(in_guest(device));
    }
    let only = std::env::var("ONLY").unwrap_or_default();
    let wanted = |row: &str| only.is_empty() || only.split(',').any(|name| name == row);
    let known = ["tcp", "encrypted", "scp", "rdma", "siw", "memory", "byte"];
    if let Some(unknown) = only.split(',').find(|name| !name.is_empty() && !known.contains(name)) {
        eprintln!("bench: ONLY={unknown}: no such row; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    describe_machine();
    let mut rows = Vec::new();
    if ["tcp", "encrypted", "scp"].iter().any(|row| wanted(row)) {
        rows.extend(throughput(&wanted).unwrap_or_else(|error| vec![Row::broken("tcp, encrypted, scp", &error)]));
    }
    if wanted("memory") {
        rows.extend(memory().unwrap_or_else(|error| vec![Row::broken("memory", &error)]));
    }
    if wanted("byte") {
        rows.push(one_byte().unwrap_or_else(|error| Row::broken("byte", &error)));
    }
    let mut guests_ok = true;
    for (row, device) in [("rdma", "rxe"), ("siw", "siw")] {
        if wanted(row) {
            guests_ok &= guest(device);
        }
    }
    if rows.is_empty() {
        return ExitCode::from(u8::from(!guests_ok));
    }
    let code = finish(Ok(rows));
    if guests_ok { code } else { ExitCode::FAILURE }
}

fn finish(rows: Result<Vec<Row>>) -> ExitCode {
    let rows = rows.unwrap_or_else(|error| vec![Row::broken("bench", &error)]);
    println!("\n{:<34} {:<20} {:<40} verdict", "row", "target", "measured (median, quartiles)");
    for row in &rows {
        println!("{:<34} {:<20} {:<40} {}", row.name, row.target, row.measured, row.verdict);
    }
    if rows.iter().any(|row| row.verdict.starts_with("FAIL")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One line of the table.
struct Row {
    name: String,
    target: String,
    measured: String,
    verdict: String,
}

impl Row {
    fn broken(name: &str, error: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: error.into(), verdict: "FAIL: not measured".into() }
    }

    /// `ours` against `theirs`, both rates, round by round.
    fn ratio(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        let ratio = Spread::of(&ratios);
        let mut verdict = if ratio.median >= target { "PASS".to_owned() } else { "FAIL".to_owned() };
        if ratio.contains(target) {
            verdict += ", target within the spread";
        }
        if ratio.contains(1.0) {
            verdict += "; difference not shown";
        }
        Row { name: name.into(), target: format!(">= {target:.2} x"), measured: format!("{ratio} x"), verdict }
    }
}

/// Median and quartiles.
#[derive(Clone, Copy)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let place = quantile * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Spread { low: at(0.25), median: at(0.5), high: at(0.75) }
    }

    fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.median, self.low, self.high)
    }
}

fn describe_machine() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_matches([' ', '\t', ':']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load: f64 = read("/proc/loadavg").split(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0.0);
    println!("{cores} processors, {model}, Linux {}", read("/proc/sys/kernel/osrelease").trim());
    if load > 0.5 {
        println!("WARNING: load {load}: this machine is not idle, and what follows is worth that much less");
    }
}

fn runs() -> usize {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS_MIN)
}

// --- streams over TCP ------------------------------------------------------------------------------------------------

fn throughput(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let bytes = std::env::var("SIZE_MIB").ok().and_then(|size| size.parse().ok()).unwrap_or(4096_u64) << 20;
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
        contestants.push(("scp, 1 connection".into(), Box::new(|| ssh.copy(&input, bytes))));
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

/// A round that does not count, then `rounds` that do: a list of rates for each contestant.
fn alternate(contestants: &[Contestant<'_>], rounds: usize) -> Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for ((name, run), rates) in contestants.iter().zip(&mut rates) {
            let rate = run().map_err(|error| format!("{name}: {error}"))?;
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    Ok(rates)
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

/// An sshd of our own, on a port and with keys of its own.
struct Sshd {
    port: u16,
    directory: PathBuf,
    server: Child,
}

impl Sshd {
    fn start(scratch: &Path) -> Result<Self> {
        let directory = scratch.join("ssh");
        fs::create_dir(&directory).map_err(text)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).map_err(text)?;
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(directory.join(key));
            Running::start(&mut make)?.success()?;
        }
        let port = free_port()?;
        let root = fs::metadata("/proc/self").map_err(text)?.uid_is_root();
        if root {
            fs::create_dir_all("/run/sshd").map_err(text)?;
        }
        let sftp = "/usr/lib/openssh/sftp-server";
        let sftp = if Path::new(sftp).exists() { sftp } else { "internal-sftp" };
        let path = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let log = File::create(directory.join("log")).map_err(text)?;
        let server = Command::new(path.ok_or("no sshd here")?) // it wants to be called by its whole path
            .args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string(), "-h"])
            .arg(directory.join("host"))
            .args(["-o", "ListenAddress=127.0.0.1", "-o", "StrictModes=no", "-o", "PidFile=none"])
            // Where root's password is locked, PAM lets its key in all the same.
            .args(["-o", if root { "UsePAM=yes" } else { "UsePAM=no" }, "-o", "PermitRootLogin=yes"])
            .args(["-o", &format!("AuthorizedKeysFile={}", directory.join("user.pub").display())])
            .args(["-o", &format!("Subsystem=sftp {sftp}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(text)?;
        let sshd = Sshd { port, directory, server };
        wait_listening(port)?;
        Ok(sshd)
    }

    fn copy(&self, input: &Path, bytes: u64) -> Result<f64> {
        let mut scp = Command::new("scp");
        scp.args(["-q", "-F", "/dev/null", "-P", &self.port.to_string(), "-i"]).arg(self.directory.join("user"));
        scp.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]);
        scp.args(["-o", "BatchMode=yes"]).arg(input).arg("127.0.0.1:/dev/null");
        let start = Instant::now();
        Running::start(&mut scp)?.success()?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

trait Owner {
    fn uid_is_root(&self) -> bool;
}

impl Owner for fs::Metadata {
    fn uid_is_root(&self) -> bool {
        std::os::unix::fs::MetadataExt::uid(self) == 0
    }
}

// --- memory and small streams ----------------------------------------------------------------------------------------

fn memory() -> Result<Vec<Row>> {
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

fn one_byte() -> Result<Row> {
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

fn verdict(holds: bool) -> String {
    if holds { "PASS".into() } else { "FAIL".into() }
}

// --- RDMA, in the guest ----------------------------------------------------------------------------------------------

/// Runs this very program in the guest; it prints its own table there.
fn guest(device: &str) -> bool {
    println!("\nguest with {device} (software emulation: ratios carry over, rates do not)");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(myself) = std::env::current_exe() else { return false };
    let status = Command::new(root.join("tests/testbed/guest"))
        .arg(device)
        .arg(myself)
        .args(["--in-guest", device])
        .current_dir(root)
        .env("RD_BENCH_RUNS", runs().to_string())
        .env("RD_BENCH_BIN", bin_directory())
        .env("GUEST_TIMEOUT", "1500")
        .stdin(Stdio::null())
        .status();
    let ok = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    if !ok {
        println!("FAIL: guest with {device}: {}", status.map_or_else(|error| error.to_string(), |s| s.to_string()));
    }
    ok
}

/// rxe has one host, so both ends run on it; siw has several, and sends from h1 to h2.
fn in_guest(device: &str) -> Result<Vec<Row>> {
    let rounds = std::env::var("RD_BENCH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS_MIN);
    let (address, receiver_host, sender_host) =
        if device == "rxe" { ("10.9.0.1", None, None) } else { ("10.9.0.2", Some("2"), Some("1")) };
    let ends = Ends { address, receiver_host, sender_host };
    let scratch = Scratch::with_room(VERBS_BYTES)?;
    let input = scratch.random_file(VERBS_BYTES)?;
    println!(
        "300 MiB, stdin -> RDMA -> /dev/null; 1 + {rounds} rounds; MiB/s of the data phase by each one's own clock"
    );

    let (mut ours, mut walls, mut theirs, mut lanes) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    let mut packets_least = u64::MAX;
    for round in 0..=rounds {
        let before = carried(device, &ends)?;
        let run = ends.pipe(&["--transport", "rdma", "--encrypt", "auto", "--json"], &input, true)?;
        let sent = carried(device, &ends)? - before;
        let seconds = run.reported("seconds").ok_or("rdsend --json said no \"seconds\"")?;
        lanes = run.lanes();
        let theirs_now = ends.ib_send_bw()?;
        if round > 0 {
            ours.push(VERBS_BYTES as f64 / f64::from(1 << 20) / seconds);
            walls.push(VERBS_BYTES as f64 / f64::from(1 << 20) / run.wall.as_secs_f64());
            theirs.push(theirs_now);
            packets_least = packets_least.min(sent);
        }
    }
    println!("    {:<42} {}", format!("rdsend, {lanes}"), Spread::of(&ours));
    println!("    {:<42} {}", "the same with start and end, by wall time", Spread::of(&walls));
    println!("    {:<42} {}", "ib_send_bw, 1 queue pair", Spread::of(&theirs));

    let mut rate = Row::ratio(&format!("{device}: against ib_send_bw"), 0.97, &ours, &theirs);
    let (name, target) = if device == "rxe" {
        // Each packet carries at most 4 KiB, and rxe counts none that are not its own.
        ("rxe: packets sent by the device", VERBS_BYTES / 4096)
    } else {
        rate.target = "(no target)".into();
        rate.verdict = "for the record".into();
        ("siw: bytes out of h1 by the device's port", VERBS_BYTES)
    };
    let counters = Row {
        name: name.into(),
        target: format!(">= {target}"),
        measured: format!("{packets_least}, the least of all runs"),
        verdict: verdict(packets_least >= target),
    };
    Ok(vec![rate, counters])
}

/// What the device has carried so far: rxe counts packets. siw counts nothing itself; what it sends leaves by its port,
/// where `--transport rdma` lets nothing else of the payload go.
fn carried(device: &str, ends: &Ends<'_>) -> Result<u64> {
    let path = if device == "rxe" {
        "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
    } else {
        "/sys/class/net/e0/statistics/tx_bytes"
    };
    let output = ends.on(ends.sender_host, "cat").arg(path).output().map_err(text)?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| format!("cannot read {path}"))
}

// --- one stream ------------------------------------------------------------------------------------------------------

/// Where the two ends run.
struct Ends<'a> {
    address: &'a str,
    receiver_host: Option<&'a str>,
    sender_host: Option<&'a str>,
}

/// What one stream took.
struct Run {
    wall: Duration,
    sender_mib: f64,
    receiver_mib: f64,
    sender_said: String,
}

impl Run {
    /// A number from the sender's JSON report.
    fn reported(&self, key: &str) -> Option<f64> {
        let (_, after) = self.sender_said.split_once(&format!("\"{key}\":"))?;
        let number: String =
            after.trim_start().chars().take_while(|c| c.is_ascii_digit() || "+-.eE".contains(*c)).collect();
        number.parse().ok()
    }

    fn lanes(&self) -> String {
        match self.reported("lanes") {
            Some(1.0) => "1 lane".into(),
            Some(lanes) => format!("{lanes} lanes"),
            None => "lanes not reported".into(),
        }
    }
}

/// rdsend FILE → rdrecv → /dev/null over TCP on this machine.
fn pipe(options: &[&str], input: &Path) -> Result<Run> {
    let ends = Ends { address: "127.0.0.1", receiver_host: None, sender_host: None };
    ends.pipe(&[options, &["--transport", "tcp", "--json"]].concat(), input, false)
}

impl Ends<'_> {
    fn on(&self, host: Option<&str>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match host {
            None => Command::new(program),
            Some(host) => {
                let mut command = Command::new(std::env::var_os("RD_HOST").unwrap_or_default());
                command.args(["exec", host]).arg(program);
                command
            }
        }
    }

    fn pipe(&self, options: &[&str], input: &Path, by_stdin: bool) -> Result<Run> {
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
    fn ib_send_bw(&self) -> Result<f64> {
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

fn bin_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os("RD_BENCH_BIN") {
        return directory.into();
    }
    // target/release/deps/bench-… → target/release
    let myself = std::env::current_exe().unwrap_or_default();
    myself.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned()
}

/// A process whose end is waited for by a thread, so that there is a limit to it and the time is exact.
struct Running {
    name: String,
    id: u32,
    ended: mpsc::Receiver<io::Result<std::process::Output>>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        Self::start_with_input(command.stdin(Stdio::null()))
    }

    /// With the standard input that the command has been given. Standard output of a receiver is the sink: /dev/null
    /// itself, except where it is read for what it says.
    fn start_with_input(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        let says = name.contains("ib_send_bw");
        command.stdout(if says { Stdio::piped() } else { Stdio::null() }).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let id = child.id();
        let (report, ended) = mpsc::channel();
        thread::spawn(move || {
            let _ = report.send(child.wait_with_output());
        });
        Ok(Running { name, id, ended })
    }

    /// Its exit code and all that it said.
    fn end(self) -> Result<(i32, String)> {
        match self.ended.recv_timeout(RUN_LIMIT) {
            Ok(Ok(output)) => {
                let said = [output.stdout, output.stderr].concat();
                Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned()))
            }
            Ok(Err(error)) => Err(format!("{}: {error}", self.name)),
            Err(_) => Err(format!("{}: has not ended in {} s", self.name, RUN_LIMIT.as_secs())),
        }
    }

    fn success(self) -> Result<String> {
        let name = self.name.clone();
        match self.end()? {
            (0, said) => Ok(said),
            (code, said) => Err(format!("{name}: exit code {code}: {}", said.trim())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not known to have ended: then it must not disturb what comes next.
        if matches!(self.ended.try_recv(), Err(mpsc::TryRecvError::Empty)) {
            let _ = Command::new("kill").args(["-KILL", &self.id.to_string()]).stderr(Stdio::null()).status();
        }
    }
}

/// The highest resident memory of some processes, asked until they have ended.
struct Memory(thread::JoinHandle<Vec<f64>>);

impl Memory {
    fn watch(ids: &[u32]) -> Self {
        let paths: Vec<String> = ids.iter().map(|id| format!("/proc/{id}/status")).collect();
        Memory(thread::spawn(move || {
            let mut highest = vec![0.0; paths.len()];
            loop {
                let mut alive = false;
                for (path, highest) in paths.iter().zip(&mut highest) {
                    let status = fs::read_to_string(path).unwrap_or_default();
                    let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
                    if let Some(kib) = field.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()) {
                        *highest = kib / 1024.0;
                        alive = true;
                    }
                }
                if !alive {
                    return highest;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }))
    }

    fn highest<const N: usize>(self) -> [f64; N] {
        let highest = self.0.join().unwrap_or_default();
        std::array::from_fn(|index| highest.get(index).copied().unwrap_or(0.0))
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    listener.local_addr().map(|address| address.port()).map_err(text)
}

fn wait_listening(port: u16) -> Result<()> {
    wait_until(&format!("port {port} to listen"), || {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .any(|path| listens(&fs::read_to_string(path).unwrap_or_default(), port))
    })
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > READY_LIMIT {
            return Err(format!("waited {} s for {what}", READY_LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether a table of /proc/net has a socket in state LISTEN (0A) on the port.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

/// A directory in memory where there is room, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn with_room(bytes: u64) -> Result<Self> {
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let place = places.iter().find(|place| room(place).is_some_and(|free| free > bytes));
        let place = place.ok_or(format!("no {:.1} GiB of room in /dev/shm or TMPDIR", gib(bytes)))?;
        let directory = place.join(format!("rdma-pipe-bench.{}.{}", std::process::id(), free_port()?));
        fs::create_dir(&directory).map_err(text)?;
        Ok(Scratch(directory))
    }

    /// Bytes that do not compress.
    fn random_file(&self, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join("input");
        let mut file = File::create(&path).map_err(text)?;
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut block = vec![0_u8; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let part = left.min(block.len() as u64);
            file.write_all(&block[..part as usize]).map_err(text)?;
            left -= part;
        }
        Ok(path)
    }

    fn hole(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).map_err(text)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn room(place: &Path) -> Option<u64> {
    let output = Command::new("df").args(["-Pk", "--"]).arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

fn text(error: io::Error) -> String {
    error.to_string()
}
