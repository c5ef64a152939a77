//! What all rows are measured with: turns, medians, processes with a limit, a place in memory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// No run takes as long; one that does is killed and fails the row.
pub const RUN_LIMIT: Duration = Duration::from_secs(300);
pub const READY_LIMIT: Duration = Duration::from_secs(30);
pub const RUNS_MIN: usize = 9;
pub const GIB: u64 = 1 << 30;

pub type Result<T> = std::result::Result<T, String>;

/// A name, and one run of it: GB/s, or seconds.
pub type Contestant<'a> = (String, Box<dyn Fn() -> Result<f64> + 'a>);

/// One line of the table.
pub struct Row {
    pub name: String,
    pub target: String,
    pub measured: String,
    pub verdict: String,
}

impl Row {
    pub fn broken(name: &str, error: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: error.into(), verdict: "FAIL: not measured".into() }
    }

    /// `ours` against `theirs`, both rates, round by round.
    pub fn ratio(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
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

    /// `ours` at most `target` times `theirs`, both times, round by round.
    pub fn at_most(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        Row::limit(name, target, "x", &ratios)
    }

    /// `ours` at least `target` times as fast as `theirs`, both times, round by round.
    pub fn faster(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        Row::ratio(name, target, theirs, ours)
    }

    /// The median of `values` at most `limit`.
    pub fn limit(name: &str, limit: f64, unit: &str, values: &[f64]) -> Self {
        let spread = Spread::of(values);
        let mut verdict = verdict(spread.median <= limit);
        if spread.contains(limit) {
            verdict += ", target within the spread";
        }
        Row {
            name: name.into(),
            target: format!("<= {limit:.2} {unit}"),
            measured: format!("{spread} {unit}"),
            verdict,
        }
    }

    /// A peer that is not here, or does not work here.
    pub fn absent(name: &str, why: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: why.into(), verdict: "NOT MEASURED".into() }
    }
}

/// Median and quartiles.
#[derive(Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Self {
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

pub fn describe_machine() {
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

pub fn runs() -> usize {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS_MIN)
}

/// What large files and streams hold.
pub fn size() -> u64 {
    std::env::var("SIZE_MIB").ok().and_then(|size| size.parse().ok()).unwrap_or(4096_u64) << 20
}

/// The seconds that a command takes, which must succeed.
pub fn timed(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    Running::start(command)?.success()?;
    Ok(start.elapsed().as_secs_f64())
}

/// A round that does not count, then `rounds` that do: a list of rates for each contestant.
pub fn alternate(contestants: &[Contestant<'_>], rounds: usize) -> Result<Vec<Vec<f64>>> {
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

pub fn verdict(holds: bool) -> String {
    if holds { "PASS".into() } else { "FAIL".into() }
}

pub fn bin_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os("RD_BENCH_BIN") {
        return directory.into();
    }
    // target/release/deps/bench-… → target/release
    let myself = std::env::current_exe().unwrap_or_default();
    myself.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned()
}

/// A process whose end is waited for by a thread, so that there is a limit to it and the time is exact.
pub struct Running {
    pub name: String,
    pub id: u32,
    ended: mpsc::Receiver<io::Result<std::process::Output>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::start_with_input(command.stdin(Stdio::null()))
    }

    /// With the standard input that the command has been given. Standard output of a receiver is the sink: /dev/null
    /// itself, except where it is read for what it says.
    pub fn start_with_input(command: &mut Command) -> Result<Self> {
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
    pub fn end(self) -> Result<(i32, String)> {
        match self.ended.recv_timeout(RUN_LIMIT) {
            Ok(Ok(output)) => {
                let said = [output.stdout, output.stderr].concat();
                Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned()))
            }
            Ok(Err(error)) => Err(format!("{}: {error}", self.name)),
            Err(_) => Err(format!("{}: has not ended in {} s", self.name, RUN_LIMIT.as_secs())),
        }
    }

    pub fn success(self) -> Result<String> {
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
pub struct Memory(thread::JoinHandle<Vec<f64>>);

impl Memory {
    pub fn watch(ids: &[u32]) -> Self {
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

    pub fn highest<const N: usize>(self) -> [f64; N] {
        let highest = self.0.join().unwrap_or_default();
        std::array::from_fn(|index| highest.get(index).copied().unwrap_or(0.0))
    }
}

pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    listener.local_addr().map(|address| address.port()).map_err(text)
}

pub fn wait_listening(port: u16) -> Result<()> {
    wait_until(&format!("port {port} to listen"), || {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .any(|path| listens(&fs::read_to_string(path).unwrap_or_default(), port))
    })
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
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
pub fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

/// A directory in memory where there is room, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn with_room(bytes: u64) -> Result<Self> {
        Self::with_room_for(bytes, 0)
    }

    pub fn with_room_for(bytes: u64, files: u64) -> Result<Self> {
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let fits = |place: &Path| {
            room("-Pk", place).is_some_and(|kib| kib > bytes >> 10)
                && (files == 0 || room("-Pi", place).is_some_and(|free| free > files))
        };
        let place = places.iter().find(|place| fits(place));
        let place =
            place.ok_or(format!("no room for {:.1} GiB and {files} files in /dev/shm or TMPDIR", gib(bytes)))?;
        let directory = place.join(format!("rdma-pipe-bench.{}.{}", std::process::id(), free_port()?));
        fs::create_dir(&directory).map_err(text)?;
        Ok(Scratch(directory))
    }

    /// Bytes that do not compress.
    pub fn random_file(&self, bytes: u64) -> Result<PathBuf> {
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

    pub fn hole(&self, name: &str, bytes: u64) -> Result<PathBuf> {
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

/// What `df` says to be free, in its own unit.
fn room(unit: &str, place: &Path) -> Option<u64> {
    let output = Command::new("df").args([unit, "--"]).arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

pub fn text(error: io::Error) -> String {
    error.to_string()
}
