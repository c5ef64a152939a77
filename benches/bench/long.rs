//! Streams over a long line, which a process of the testbed emulates, because the kernel may have no netem. All
//! contestants use the same line in turns.

use std::cell::Cell;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::process::Killed;
use crate::record::Kind;
use crate::streams::KEY;

const DELAY_MS: u32 = 150;
const RATE_MBIT: u32 = 300;
const LOSS_PPM: u32 = 1000;

/// When counting begins, after the start.
const FROM: Duration = Duration::from_secs(10);

/// Returns when counting ends, after the start.
fn until() -> Duration {
    Duration::from_secs(by_kind(12, 20, 25))
}

/// Share of payload in a packet of 1500 bytes: the rest is headers of IP and TCP, with time stamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;

/// The result of a stream over such a line.
struct Carried {
    /// Payload in Mbit/s, from [`FROM`] to [`until`] after the receiver was started.
    rate: f64,
    /// Number of connections at the end.
    connections: usize,
}

fn carry(net: &Net, loss_ppm: u32, receive: &[&str], send: &[&str]) -> Result<Carried> {
    let _line = net.line(DELAY_MS, RATE_MBIT, loss_ppm)?;
    let start = |host: usize, words: &[&str], output: Stdio| -> Result<Killed> {
        let mut command = net.on(host);
        let zeros = std::fs::File::open("/dev/zero").map_err(text)?;
        command.args(words).stdin(zeros).stdout(output).stderr(Stdio::null());
        command.spawn().map(Killed).map_err(text)
    };
    let mut receiver = start(1, receive, Stdio::piped())?;
    std::thread::sleep(Duration::from_millis(500));
    let _sender = start(0, send, Stdio::null())?;
    let mut output = receiver.0.stdout.take().expect("it is piped");
    let (began, mut piece, mut bytes) = (Instant::now(), vec![0; 1 << 20], 0_u64);
    while began.elapsed() < until() {
        let length = output.read(&mut piece).map_err(text)?;
        if length == 0 {
            return Err("the receiver has ended".into());
        }
        if began.elapsed() >= FROM {
            bytes += length as u64;
        }
    }
    // Includes the time before the first counted byte arrived: a line that stands still is slow, not fast.
    let seconds = began.elapsed().saturating_sub(FROM).as_secs_f64();
    let listed = net.on(0).args(["ss", "-Htn", "state", "established", "dst", Net::FAR]).output().map_err(text)?;
    let connections = String::from_utf8_lossy(&listed.stdout).lines().count();
    Ok(Carried { rate: bytes as f64 * 8.0 / 1e6 / seconds, connections })
}

/// Measures a stream of rdsend and rdrecv, with options of both ends. Each stream has its own port, because the one
/// before may still be ending.
fn ours(net: &Net, loss_ppm: u32, port: u16, options: &[&str]) -> Result<Carried> {
    let [recv, send] = ["rdrecv", "rdsend"].map(|name| bin_directory().join(name).display().to_string());
    let port = port.to_string();
    let receive = [&[recv.as_str(), "--transport", "tcp"], options, &[&port, KEY]].concat();
    // The hosts have another network in common, which has no long delay.
    let send = [&[send.as_str(), "--transport", "tcp", "--rails", "1"], options, &[Net::FAR, &port, KEY]].concat();
    carry(net, loss_ppm, &receive, &send)
}

const COMMAND: &str = "rdsend --transport tcp --rails 1 {host} {port} {secret}";

/// Describes the line, for a title.
fn line(net: &Net, what: &str) -> Result<String> {
    let control = net.control()?;
    Ok(format!("{what}, {} ms there and back, {RATE_MBIT} Mbit/s, {control} for all", 2 * DELAY_MS))
}

pub fn long() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("long") {
        return Ok(absent);
    }
    let net = Net::start(2)?;
    let socat = |loss: u32, port: &str| {
        let (listen, far) = (format!("TCP-LISTEN:{port},reuseaddr"), format!("TCP:{}:{port}", Net::FAR));
        let receive = ["socat", "-u", "-b", "1048576", &listen, "-"];
        carry(&net, loss, &receive, &["socat", "-u", "-b", "1048576", "-", &far]).map(|carried| carried.rate)
    };
    let peers = "socat -u -b 1048576 - TCP:{host}:{port}";
    let lossy = ["rdsend, packets lost", "socat, packets lost"];
    let mut contestants = vec![
        Contestant::new(Kind::Ours, "rdsend", COMMAND, || ours(&net, 0, 7001, &[]).map(|carried| carried.rate)),
        Contestant::new(Kind::Ours, lossy[0], COMMAND, || ours(&net, LOSS_PPM, 7003, &[]).map(|carried| carried.rate)),
        Contestant::new(Kind::Peer, lossy[1], peers, || socat(LOSS_PPM, "7004")),
    ];
    // Not used for any verdict.
    if full() {
        contestants.push(Contestant::new(Kind::Peer, "socat", peers, || socat(0, "7002")));
    }
    let title = line(&net, "A stream from the 10th second on; no packet lost, or 0.1 %")?;
    let name = "long: 0.1 % lost, over socat";
    judged("long", &title, "Mbit/s", &contestants, Rounds::all(by_kind(1, 2, 3)), |found| {
        let of_line = |rate: &f64| rate / (f64::from(RATE_MBIT) * PAYLOAD);
        let share: Vec<f64> = found.entries[0].values.iter().map(of_line).collect();
        vec![
            Row::at_least("long: part of the line from the 10th second on", 0.9, "x", &share),
            found.compare(name, lossy, |ours, socat| Row::ratio(name, 2.0, &ours.values, &socat.values)),
        ]
    })
}

/// Compares how many lanes a stream uses with how many it needs for the same rate.
pub fn lanes() -> Result<Vec<Row>> {
    const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
    const ENOUGH: f64 = 0.95;
    const TIMES_MAX: f64 = 2.0;
    if let Some(absent) = without_root("long-lanes") {
        return Ok(absent);
    }
    let net = Net::start(2)?;
    let mut rows = Vec::new();
    for (what, loss_ppm, port) in [("no packet lost", 0, 7100), ("0.1 % of packets lost", LOSS_PPM, 7200)] {
        let chosen = Cell::new(0);
        let counts = COUNTS.map(|count| (format!("--lanes {count}"), count.to_string()));
        let mut contestants: Vec<Contestant<'_>> = counts
            .iter()
            .zip(port..)
            .map(|((name, count), port)| {
                let net = &net;
                let run = move || ours(net, loss_ppm, port, &["--lanes", count]).map(|carried| carried.rate);
                Contestant::new(Kind::Ours, name, COMMAND, run)
            })
            .collect();
        contestants.push(Contestant::new(Kind::Ours, "as many as it takes", COMMAND, || {
            let carried = ours(&net, loss_ppm, port + 50, &[])?;
            if carried.connections == 0 {
                return Err("`ss` lists none of the stream's connections".into());
            }
            chosen.set(carried.connections.max(chosen.get()));
            Ok(carried.rate)
        }));
        let title = line(&net, &format!("Lanes, from the 10th second on; {what}"))?;
        rows.extend(judged("long-lanes", &title, "Mbit/s", &contestants, Rounds::all(by_kind(1, 1, 2)), |found| {
            let medians = || found.entries.iter().map(|entry| Spread::of(&entry.values).median);
            let best = medians().fold(0.0, f64::max);
            let fewest = COUNTS.into_iter().zip(medians()).find(|(_, rate)| *rate >= ENOUGH * best);
            let (fewest, taken) = (fewest.map_or(COUNTS[COUNTS.len() - 1], |(count, _)| count), chosen.get());
            vec![Row {
                name: format!("long-lanes: {what}, over the fewest that reach 95 %"),
                target: format!("<= {TIMES_MAX:.2} x"),
                measured: format!("{taken} connections at most, where {fewest} are enough"),
                verdict: fact(taken as f64 <= TIMES_MAX * fewest as f64),
            }]
        })?);
    }
    Ok(rows)
}
