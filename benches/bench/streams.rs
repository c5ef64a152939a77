//! Streams over TCP on this machine: `rdsend` and `rdrecv` compared with their peers, and with
//! the bounds of all of them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rd_proto::compress::{Compressor, Method};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::peers::{MOVERS, STREAMS, Scene, Way};
use crate::process::free_port;
use crate::record::{Contest, Kind};
use crate::sshd::{HOST, Sshd};

pub const KEY: &str = "bench-key-of-no-value";

const PLAIN: &str = "rdsend plain";
const ENCRYPTED: &str = "rdsend encrypted";

/// Target for LZ4 from end to end on two processors.
const LZ4_GB_S: f64 = 0.85;

/// Minimum of comparable processor times: the clock that counts them has steps of 10 ms.
const CPU_S_MIN: f64 = 0.2;

/// How often a run of perftest is started if it does not end. With `-e` it hangs now and then on software
/// devices, more often over siw.
const PERFTEST_TRIES: u32 = 5;

/// Time limit of each end's run. A normal run takes 5 s on these devices.
const PERFTEST_LIMIT: Duration = Duration::from_secs(40);

/// Returns `rdsend FILE` to `rdrecv`, with options of each.
pub fn ours(name: &str, sender: &str, receiver: &str) -> Way {
    let space = |options: &str| if options.is_empty() { String::new() } else { format!(" {options}") };
    Way::new(
        Kind::Ours,
        name,
        &format!("rdrecv --transport tcp{} {{port}} {{secret}} > /dev/null", space(receiver)),
        &format!("rdsend --transport tcp{} 127.0.0.1 {{port}} {{secret}} {{file}}", space(sender)),
    )
}

/// Returns a scene in which `{file}` means `input`.
pub fn scene(input: &Path) -> Scene {
    Scene::default().with("secret", KEY).with("file", input.display())
}

/// Measures one stream of a file in memory to /dev/null. The rows `peers` and `cpu` need all contestants;
/// other rows need only some.
pub fn streams(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let bytes = size();
    let scratch = Scratch::with_room(2 * bytes + (64 << 20))?;
    let input = scratch.random_file(bytes)?;
    let all = wanted("peers") || wanted("cpu");
    let mut scene = scene(&input).out(&scratch.0.join("copy"));
    let mut ways = Vec::new();
    if all || wanted("tcp") || wanted("scp") {
        ways.push(ours(PLAIN, "--encrypt never", ""));
    }
    if all || wanted("encrypted") {
        ways.push(ours(ENCRYPTED, "--encrypt always", ""));
    }
    ways.extend(STREAMS.iter().map(Way::peer).filter(|way| all || way.name == "socat"));
    let ssh = if wanted("scp") { Some(Sshd::start(&scratch.0)?) } else { None };
    if let Some(ssh) = &ssh {
        scene = scene.with("config", ssh.config().display()).with("host", HOST);
        ways.push(Way::new(Kind::Peer, "scp", "", "scp -F {config} -q {file} {host}:/dev/null"));
        // Not scp's default, but a cipher that can be requested: the one that rdsend uses.
        let cipher = "scp -F {config} -c aes256-gcm@openssh.com -q {file} {host}:/dev/null";
        ways.push(Way::new(Kind::Peer, "scp, AES-256-GCM", "", cipher));
    }
    if all {
        ways.push(Way::new(Kind::Limit, "cp, in memory", "", "cp {file} {out}"));
        ways.push(Way::new(Kind::Limit, "dd, which only reads", "", "dd if={file} of=/dev/null bs=128K status=none"));
    }
    let contestants: Vec<Contestant<'_>> = ways.into_iter().map(|way| scene.stream(way, bytes)).collect();
    let lanes = pipe(&[], &input)?.reported("lanes").ok_or("rdsend --json said no \"lanes\"")?;
    let title = format!(
        "{:.2} GiB in memory through TCP over loopback to /dev/null, by wall time; rdsend over {lanes} lanes, each peer \
         over one connection",
        gib(bytes)
    );
    judged("peers", &title, "GB/s", &contestants, runs(), |found| verdicts(found, wanted, bytes))
}

/// Returns the verdicts from the contest of streams.
fn verdicts(found: &Contest, wanted: &dyn Fn(&str) -> bool, bytes: u64) -> Vec<Row> {
    let all = wanted("peers") || wanted("cpu");
    let mut rows = Vec::new();
    for (row, name, target, pair) in [
        ("tcp", "tcp: plain against socat", 1.0, [PLAIN, "socat"]),
        ("encrypted", "encrypted: against plain socat", 1.0, [ENCRYPTED, "socat"]),
        ("scp", "scp: plain against scp", 6.0, [PLAIN, "scp"]),
    ] {
        if wanted(row) {
            rows.push(found.compare(name, pair, |ours, theirs| Row::ratio(name, target, &ours.values, &theirs.values)));
        }
    }
    if wanted("scp") && (all || wanted("encrypted")) {
        let name = "scp: encrypted against scp, AES-256-GCM";
        let row = found.compare(name, [ENCRYPTED, "scp, AES-256-GCM"], |ours, theirs| {
            Row::ratio(name, 1.0, &ours.values, &theirs.values)
        });
        rows.push(row.for_the_record());
    }
    if wanted("peers") {
        for (ours, target) in [(PLAIN, Some(1.1)), (ENCRYPTED, None)] {
            let name = format!("peers: {ours} / best of {}", MOVERS.join(", "));
            let best = found.highest(&MOVERS).map_or("socat", |best| best.name.as_str());
            // The best of the peers that are present is not the best of all.
            let absent = found.absent.iter().find(|(name, _)| MOVERS.contains(&name.as_str()));
            let row = match absent {
                Some((absent, _)) => found.missing(&name, absent),
                None => found.compare(&name, [ours, best], |ours, theirs| {
                    let row = Row::ratio(&name, target.unwrap_or(1.0), &ours.values, &theirs.values);
                    Row { measured: format!("{} {best}", row.measured), ..row }
                }),
            };
            rows.push(if target.is_some() { row } else { row.for_the_record() });
        }
        for limit in ["iperf3", "iperf3 -l 1M", "cp, in memory", "dd, which only reads"] {
            let name = format!("peers: {PLAIN} / {limit}");
            let row = found
                .compare(&name, [PLAIN, limit], |ours, theirs| Row::ratio(&name, 1.0, &ours.values, &theirs.values));
            rows.push(row.for_the_record());
        }
    }
    if wanted("cpu") {
        let name = "cpu: plain, both ends / socat";
        rows.push(found.compare(name, [PLAIN, "socat"], |ours, theirs| {
            let costs = [ours.cpu_of_both(), theirs.cpu_of_both()];
            let least = costs.iter().flatten().copied().fold(f64::INFINITY, f64::min) * bytes as f64 / 1e9;
            if least < CPU_S_MIN {
                return Row::absent(name, "a run is too short for a clock of 10 ms");
            }
            Row::at_most(name, 1.2, &costs[0], &costs[1])
        }));
    }
    rows
}

/// Measures plain, encrypted and compressed streams, of text and of data that does not compress.
pub fn compress() -> Result<Vec<Row>> {
    let bytes = part_of_size(4);
    let scratch = Scratch::with_room(bytes + (64 << 20))?;
    let mut rows = Vec::new();
    for (data, path) in [("text", scratch.text_file(bytes)?), ("random", scratch.random_file(bytes)?)] {
        let contestants: Vec<Contestant<'_>> = [
            ("plain", "--encrypt never"),
            ("encrypted", "--encrypt always"),
            ("lz4", "--encrypt never --compress lz4"),
            ("zstd", "--encrypt never --compress zstd"),
            ("zstd, encrypted", "--encrypt always --compress zstd"),
            ("auto", "--encrypt never --compress auto"),
        ]
        .into_iter()
        .map(|(name, options)| scene(&path).stream(ours(name, options, ""), bytes))
        .collect();
        let title = format!("{:.2} GiB of {data} through TCP over loopback to /dev/null", gib(bytes));
        let name = format!("compress: auto / plain, {data}");
        rows.extend(judged("compress", &title, "GB/s", &contestants, runs(), |found| {
            let auto = found
                .compare(&name, ["auto", "plain"], |auto, plain| Row::ratio(&name, 0.95, &auto.values, &plain.values));
            let lz4 = found.entries.iter().filter(|entry| entry.name == "lz4" && data == "text");
            let lz4 = lz4.map(|lz4| Row::at_least("compress: lz4, text", LZ4_GB_S, "GB/s", &lz4.values));
            std::iter::once(auto).chain(lz4).collect()
        })?);
        if data == "text" {
            rows.extend(compressor_alone(&path)?);
        }
    }
    Ok(rows)
}

/// Measures LZ4 alone on text: with two threads and chunks as in a stream; and the `lz4` program with one thread.
fn compressor_alone(path: &Path) -> Result<Vec<Row>> {
    const GB_S: f64 = 1.4;
    const BYTES_MAX: u64 = 256 << 20;
    const CHUNK_BYTES: usize = 1 << 20;
    const THREADS: usize = 2;
    const OURS: &str = "lz4, 2 threads";
    let mut text_of = Vec::new();
    File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text_of)).map_err(text)?;
    let length = text_of.len();
    let compress = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for half in text_of.chunks(length.div_ceil(THREADS)) {
                scope.spawn(move || {
                    let (mut compressor, mut room) = (Compressor::default(), vec![0; CHUNK_BYTES]);
                    for chunk in half.chunks(CHUNK_BYTES) {
                        compressor.compress(Method::Lz4, chunk, &mut room);
                    }
                });
            }
        });
        Ok(length as f64 / 1e9 / start.elapsed().as_secs_f64())
    };
    let itself = || {
        let output = Command::new("lz4").args(["-b1", "-B6", "-i1"]).arg(path).output().map_err(text)?;
        lz4_rate(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat())).ok_or("lz4 tells no rate".into())
    };
    let contestants = [
        Contestant::new(Kind::Ours, OURS, "rd_proto's Compressor, MiB by MiB", compress),
        Contestant::new(Kind::Peer, "lz4 itself, 1 thread", "lz4 -b1 -B6 -i1 {file}", itself),
    ];
    let title = format!("{} MiB of text compressed in memory, and nothing else", length >> 20);
    judged("compress", &title, "GB/s", &contestants, runs(), |found| {
        let ours = found.entries.iter().filter(|entry| entry.name == OURS);
        ours.map(|lz4| Row::at_least("compress: lz4 alone, text", GB_S, "GB/s", &lz4.values)).collect()
    })
}

/// Returns GB/s of compression from the lines that `lz4 -b` redraws: bytes before -> bytes after
/// (ratio), MB/s, MB/s back.
fn lz4_rate(drawn: &str) -> Option<f64> {
    let (_, rates) = drawn.rsplit_once("), ")?;
    rates.split_once(" MB/s")?.0.trim().parse::<f64>().ok().map(|rate| rate / 1e3)
}

/// Measures text over a line that is slower than any compression.
pub fn compress_slow() -> Result<Vec<Row>> {
    const RATE: &str = "200mbit";
    if let Some(absent) = without_root("compress-slow") {
        return Ok(absent);
    }
    let bytes = by_kind(16, 128, 256) << 20;
    let scratch = Scratch::with_room(bytes + (64 << 20))?;
    let path = scratch.text_file(bytes)?;
    let net = Net::start(2)?;
    for host in 0..2 {
        net.hold(host, RATE)?;
    }
    let program = |name: &str| bin_directory().join(name).display().to_string();
    let port = free_port()?.to_string();
    let run = |how: &str| -> Result<f64> {
        let receive = format!("exec {} --transport tcp {port} {KEY} > /dev/null", program("rdrecv"));
        let receiver = Running::start(net.on(1).args(["sh", "-c", &receive]))?;
        let mut send = net.on(0);
        let send = send.arg(program("rdsend")).args(["--transport", "tcp", "--compress", how, &Net::address(1), &port]);
        let seconds = timed(send.arg(KEY).arg(&path))?;
        receiver.success()?;
        Ok(seconds)
    };
    let command = |how: &str| format!("rdsend --transport tcp --compress {how} {{host}} {{port}} {{secret}} {{file}}");
    let ways: &[&str] = by_kind(&["off", "auto"], &["off", "auto"], &["off", "auto", "lz4", "zstd"]);
    let contestants: Vec<Contestant<'_>> =
        ways.iter().map(|how| Contestant::new(Kind::Ours, how, &command(how), || run(how))).collect();
    let title = format!("{:.2} GiB of text over a line of 200 Mb/s", gib(bytes));
    let name = "compress-slow: off / auto";
    judged("compress-slow", &title, "s", &contestants, runs().min(3), |found| {
        vec![found.compare(name, ["off", "auto"], |off, auto| Row::faster(name, 1.9, &auto.values, &off.values))]
    })
}

/// Measures one, two and four connections.
pub fn lanes() -> Result<Vec<Row>> {
    let bytes = part_of_size(2);
    let scratch = Scratch::with_room(bytes + (64 << 20))?;
    let input = scratch.random_file(bytes)?;
    let mut contestants = Vec::new();
    for (name, encrypt) in [("plain", "never"), ("encrypted", "always")] {
        for lanes in ["1", "2", "4"] {
            let (name, options) = (format!("{name}, lanes {lanes}"), format!("--lanes {lanes}"));
            contestants
                .push(scene(&input).stream(ours(&name, &format!("{options} --encrypt {encrypt}"), &options), bytes));
        }
    }
    let title = format!("{:.2} GiB over 1, 2 and 4 TCP connections to /dev/null", gib(bytes));
    contest("lanes", &title, "GB/s", &contestants, runs())?;
    Ok(Vec::new())
}

/// Measures writing into files: in memory, and on the disk of this build, whose cache takes the data.
pub fn sinks() -> Result<Vec<Row>> {
    let bytes = part_of_size(4);
    let scratch = Scratch::with_room(2 * bytes + (64 << 20))?;
    let input = scratch.random_file(bytes)?;
    let disk = Scratch::within(&bin_directory())?;
    let mut rows = Vec::new();
    for (place, directory) in [("memory", &scratch.0), ("disk", &disk.0)] {
        let scene = scene(&input).out(&directory.join("out"));
        let contestants: Vec<Contestant<'_>> = [
            Way::new(
                Kind::Ours,
                "rdsend to rdrecv FILE",
                "rdrecv --transport tcp {port} {secret} {out}",
                "rdsend --transport tcp --encrypt never 127.0.0.1 {port} {secret} {file}",
            ),
            Way::new(
                Kind::Peer,
                "socat",
                "socat -u -b 1048576 TCP-LISTEN:{port},reuseaddr OPEN:{out},creat,wronly",
                "socat -u -b 1048576 OPEN:{file},rdonly TCP:127.0.0.1:{port}",
            ),
            Way::new(Kind::Limit, "cp", "", "cp --reflink=never {file} {out}"),
        ]
        .into_iter()
        .map(|way| scene.stream(way, bytes))
        .collect();
        let title = format!("{:.2} GiB in memory through TCP over loopback to a file, {place}", gib(bytes));
        let found = contest("sinks", &title, "GB/s", &contestants, runs())?;
        for (peer, rival) in [("socat", "socat"), ("cp", "cp")] {
            let name = format!("sinks: {place}, plain / {peer}");
            let row = found.compare(&name, ["rdsend to rdrecv FILE", rival], |ours, theirs| {
                Row::ratio(&name, 1.0, &ours.values, &theirs.values)
            });
            rows.push(row.for_the_record());
        }
    }
    Ok(rows)
}

pub fn memory() -> Result<Vec<Row>> {
    const GROWTH_MAX: f64 = 4.0;
    const MIB_MAX: f64 = 128.0;
    /// A value near zero is no measurement: the process ended before its memory was read.
    const MIB_MIN: f64 = 1.0;
    const ENDS: [&str; 2] = ["rdsend", "rdrecv"];
    const ROUNDS: usize = 3;
    // A file that is one hole: it is read as zeros, and takes no room in memory.
    let scratch = Scratch::with_room(64 << 20)?;
    let most = by_kind(2, 16, 64);
    let (small, large) = (scratch.hole("small", GIB)?, scratch.hole("large", most * GIB)?);
    println!("\nresident memory at its highest (VmHWM, asked every 10 ms), plain and encrypted, {ROUNDS} runs of each");
    let mut rows = Vec::new();
    for encrypt in ["never", "always"] {
        // For each end: the values of every run with 1 GiB, and of every run with the large size.
        let mut by_end: [[Vec<f64>; 2]; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (which, input) in [&small, &large].into_iter().enumerate() {
                let options = &[TCP, &["--encrypt", encrypt, "--compress", "off"]].concat();
                let run = LOOPBACK.pipe_to(TCP, options, input, false, None, Memory::watch)?;
                for (end, mib) in run.watched.highest::<2>().into_iter().enumerate() {
                    if mib <= MIB_MIN {
                        return Err(format!("the memory of {} was not seen in one of the runs", ENDS[end]));
                    }
                    by_end[end][which].push(mib);
                }
            }
        }
        let (mut growth, mut highest) = (f64::MIN, 0.0_f64);
        for (end, runs) in ENDS.iter().zip(&by_end) {
            // Medians, because the number of buffers that a short run never touches differs between runs.
            let [at_small, at_large] = [Spread::of(&runs[0]), Spread::of(&runs[1])];
            println!("    {end}, --encrypt {encrypt}: at 1 GiB {at_small} MiB, at {most} GiB {at_large} MiB");
            growth = growth.max(at_large.median - at_small.median);
            highest = runs.iter().flatten().fold(highest, |highest, mib| highest.max(*mib));
        }
        rows.push(Row {
            name: format!("memory: growth, --encrypt {encrypt}"),
            target: format!("<= {GROWTH_MAX} MiB"),
            measured: format!("{growth:.1} MiB by medians, the worst of both ends"),
            verdict: fact(growth <= GROWTH_MAX),
        });
        rows.push(Row {
            name: format!("memory: highest, --encrypt {encrypt}"),
            target: format!("< {MIB_MAX} MiB"),
            measured: format!("{highest:.1} MiB, the worst of both ends"),
            verdict: fact(highest < MIB_MAX),
        });
    }
    Ok(rows)
}

pub fn one_byte() -> Result<Vec<Row>> {
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
    Ok(vec![Row::limit("byte: a stream of 1 byte", MILLISECONDS_MAX, "ms", &times)])
}

/// Where the two ends run.
pub struct Ends<'a> {
    pub address: &'a str,
    pub receiver_host: Option<&'a str>,
    pub sender_host: Option<&'a str>,
}

/// The result of one stream.
pub struct Run<T = ()> {
    pub wall: Duration,
    /// The result of watching both ends meanwhile.
    pub watched: T,
    pub sender_said: String,
}

impl<T> Run<T> {
    /// Returns a number from the sender's JSON report.
    pub fn reported(&self, key: &str) -> Option<f64> {
        let (_, after) = self.sender_said.split_once(&format!("\"{key}\":"))?;
        let number: String =
            after.trim_start().chars().take_while(|c| c.is_ascii_digit() || "+-.eE".contains(*c)).collect();
        number.parse().ok()
    }
}

const LOOPBACK: Ends<'_> = Ends { address: "127.0.0.1", receiver_host: None, sender_host: None };
const TCP: &[&str] = &["--transport", "tcp"];

/// Watches nothing, because watching both ends while they run takes processor time from them.
pub fn unwatched(_: &[u32]) {}

/// Runs rdsend FILE → rdrecv → /dev/null over TCP on this machine.
pub fn pipe(options: &[&str], input: &Path) -> Result<Run> {
    LOOPBACK.pipe_to(TCP, &[options, TCP, &["--json-fd=2"]].concat(), input, false, None, unwatched)
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

    /// Runs a stream with options of each end, into a file or to /dev/null. `watch` is given the process
    /// IDs of rdsend and rdrecv.
    pub fn pipe_to<T>(
        &self,
        receiving: &[&str],
        options: &[&str],
        input: &Path,
        by_stdin: bool,
        sink: Option<&Path>,
        watch: impl FnOnce(&[u32]) -> T,
    ) -> Result<Run<T>> {
        let port = free_port()?;
        let bin = bin_directory();
        let mut receiver = self.on(self.receiver_host, bin.join("rdrecv"));
        receiver.args(receiving).args([&port.to_string(), KEY]).args(sink);
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
        let watched = watch(&[sender.id, receiver.id]);
        let sent = sender.done()?;
        let wall = receiver.done()?.at.max(sent.at) - start;
        Ok(Run { wall, watched, sender_said: sent.said })
    }

    pub fn wait_listening(&self, port: u16) -> Result<()> {
        match self.receiver_host {
            None => wait_listening(port),
            Some(_) => wait_until(&format!("port {port} to listen on the receiver's host"), || {
                let output = self.on(self.receiver_host, "cat").args(["/proc/net/tcp", "/proc/net/tcp6"]).output();
                output.is_ok_and(|output| listens(&String::from_utf8_lossy(&output.stdout), port))
            }),
        }
    }

    /// Returns the result that a program of perftest prints at its end, extracted by `pick`.
    pub fn perftest(&self, program: &str, options: &[&str], pick: fn(&str) -> Option<f64>) -> Result<f64> {
        // On software devices its server sometimes hangs while connecting. A new one on another port works.
        let mut outcome = self.perftest_once(program, options, pick);
        for _ in 1..PERFTEST_TRIES {
            outcome = outcome.or_else(|_| self.perftest_once(program, options, pick));
        }
        outcome
    }

    fn perftest_once(&self, program: &str, options: &[&str], pick: fn(&str) -> Option<f64>) -> Result<f64> {
        let port = free_port()?.to_string();
        let mut server = self.on(self.receiver_host, program);
        server.args(options).args(["-p", &port]);
        let server = Running::start(&mut server)?.within(PERFTEST_LIMIT);
        // The server listens through rdma_cm, which no file under /proc shows. A client that comes too
        // early is refused at once.
        let start = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(200));
            let mut client = self.on(self.sender_host, program);
            client.args(options).args(["-p", &port, self.address]);
            let ended = Running::start_saying(&mut client)?.within(PERFTEST_LIMIT).end()?;
            if let (0, Some(value)) = (ended.code, pick(&ended.said)) {
                server.success()?;
                // Now and then its clock stands still on such a device, and it prints 0.
                return if value > 0.0 {
                    Ok(value)
                } else {
                    Err(format!("{program} measured nothing: {}", ended.said))
                };
            }
            if start.elapsed() > READY_LIMIT {
                return Err(format!("{program} ended with {}: {}", ended.code, ended.said));
            }
        }
    }
}
