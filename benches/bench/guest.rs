//! RDMA, in the guest: a stream compared with perftest and qperf, and `rdperf` with perftest, turn
//! by turn within one boot.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::field;
use crate::harness::*;
use crate::record::{self, Kind, Run};
use crate::streams::{Ends, KEY, unwatched};

/// Number of rounds of a run that is not full.
const ROUNDS_FEW: usize = 3;

/// Size of a stream: 300 messages of 1 MiB.
const BYTES: u64 = 300 << 20;
const MIB: f64 = 1_048_576.0;

/// perftest's options to connect through rdma_cm, with as many messages on their way and waiting as
/// with `rdperf --depth 16`.
const CONNECTED: [&str; 5] = ["-R", "-t", "16", "-r", "32"];

/// Runs the rest of the command line with the contestants' programs in memory. The guest's file system is its host's,
/// by 9p, which keeps no pages: data that a program touches for the first time is read through the emulator, by each
/// process again. A stream's clock runs by then, but perftest's clock does not run yet.
const FROM_MEMORY: &str = r#"
set -e
bin=$(mktemp -d)
for name in rdsend rdrecv rdperf; do cp "$RD_BENCH_BIN/$name" "$bin"; done
# One that is missing is reported with its rows.
for name in ib_send_bw ib_send_lat qperf; do cp "$(command -v "$name")" "$bin" || :; done
export RD_BENCH_BIN=$bin PATH="$bin:$PATH"
exec "$@"
"#;

/// Runs this program in the guest, for the rows of `only`, and adds the guest's results.
pub fn guest(device: &str, only: &str, run: &mut Run) -> Result<()> {
    println!("\nguest with {device} (software emulation: ratios carry over, rates do not)");
    let root = record::root();
    let out = record::directory().join(format!("guest-{device}"));
    // Results of an earlier run must not be taken for those of this run.
    let _ = std::fs::remove_dir_all(record::records_in(&out));
    let myself = std::env::current_exe().map_err(text)?;
    // Started in the machine's own network, because the guest's kernel may have to be fetched first. None of the
    // guest's data goes over this loopback.
    let status = field::outside(root.join("tests/testbed/guest"))
        .arg(device)
        .args(["sh", "-c", FROM_MEMORY, "sh"])
        .arg(myself)
        .args(["--in-guest", device, only])
        .current_dir(root)
        .env("RD_BENCH_RUNS", by_kind(runs(), runs().min(ROUNDS_FEW), runs()).to_string())
        .env("RD_BENCH_BIN", bin_directory())
        .env("GUEST_DIR", &out)
        .env("GUEST_TIMEOUT", "2400")
        .stdin(Stdio::null())
        .status()
        .map_err(text)?;
    // Results that the guest found before it ended are kept, however it ended.
    let merged = run.merge(&out, device);
    if !status.success() {
        return Err(format!("the guest with {device} ended with {status}"));
    }
    merged
}

/// rxe has one host, so both ends run on it. siw has several hosts, and sends from h1 to h2.
pub fn in_guest(device: &str, only: &str, run: &mut Run) {
    let rounds = std::env::var("RD_BENCH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or_else(runs);
    let (address, receiver_host, sender_host) =
        if device == "rxe" { ("10.9.0.1", None, None) } else { ("10.9.0.2", Some("2"), Some("1")) };
    let ends = Ends { address, receiver_host, sender_host };
    for row in only.split(',') {
        let found = match row {
            "perf" => perf(&ends, rounds),
            "rails-rdma" => rails(&ends, rounds),
            _ => streams(device, &ends, rounds),
        };
        run.found(found.unwrap_or_else(|error| vec![Row::broken(row, &error)]));
    }
}

/// Measures a stream, in chunks of 1 MiB and of 64 KiB; on rxe also from file to file.
fn streams(device: &str, ends: &Ends<'_>, rounds: usize) -> Result<Vec<Row>> {
    let (row, is_rxe) = if device == "rxe" { ("rdma", true) } else { ("siw", false) };
    let scratch = Scratch::with_room(BYTES)?;
    let input = scratch.random_file(BYTES)?;
    // In TMPDIR, which is a separate tmpfs in the guest.
    let sink = std::env::temp_dir().join("sink");
    let packets_least = std::cell::Cell::new(u64::MAX);
    let lanes_most = std::cell::Cell::new(0.0_f64);
    let send = |receiving: &[&str], by_stdin: bool, sink: Option<&Path>| {
        let before = carried(device, ends)?;
        let receiving = [&["--transport", "rdma"], receiving].concat();
        let run =
            ends.pipe_to(&receiving, &["--transport", "rdma", "--json-fd=2"], &input, by_stdin, sink, unwatched)?;
        packets_least.set(packets_least.get().min(carried(device, ends)? - before));
        lanes_most.set(lanes_most.get().max(run.reported("lanes").unwrap_or(f64::INFINITY)));
        let seconds = run.reported("seconds").ok_or("rdsend --json said no \"seconds\"")?;
        Ok(BYTES as f64 / MIB / seconds)
    };
    let to_null = |receiving: &'static [&'static str]| move || send(receiving, true, None);
    let to_file = || {
        let _ = std::fs::remove_file(&sink);
        send(&[], false, Some(&sink))
    };
    let dd = || {
        let _ = std::fs::remove_file(&sink);
        let mut dd = ends.on(ends.receiver_host, "dd");
        dd.arg(format!("if={}", input.display())).arg(format!("of={}", sink.display())).arg("bs=1M").env("LC_ALL", "C");
        let said = Running::start_saying(&mut dd)?.success()?;
        // "314572800 bytes (315 MB, 300 MiB) copied, 0.123 s, 2.6 GB/s"
        let seconds = said.rsplit_once(" s, ").and_then(|(before, _)| before.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(BYTES as f64 / MIB / seconds.ok_or(format!("dd: {said}"))?)
    };
    let qperf = || qperf(ends);
    const SMALL: &[&str] = &["--chunk", "64K"];
    let pair = |options: &str, sink: &str, source: &str| {
        format!(
            "rdrecv --transport rdma{options} {{port}} {{secret}} {sink} · \
             rdsend --transport rdma {{address}} {{port}} {{secret}} {source}"
        )
    };
    let by_pipe = |options: &str| pair(options, "> /dev/null", "< {file}");
    let mut contestants = vec![
        Contestant::new(Kind::Ours, "rdsend, 1 MiB", &by_pipe(""), to_null(&[])),
        ib_send_bw(ends, "1048576", true),
        Contestant::new(Kind::Ours, "rdsend, 64 KiB", &by_pipe(" --chunk 64K"), to_null(SMALL)),
        ib_send_bw(ends, "65536", true),
        Contestant::new(Kind::Peer, "qperf rc_bw, 1 MiB", "qperf · qperf -cm 1 -t 2 -m 1048576 {address} rc_bw", qperf),
    ];
    if is_rxe {
        contestants.push(Contestant::new(
            Kind::Ours,
            "rdsend FILE to rdrecv FILE",
            &pair("", "{out}", "{file}"),
            to_file,
        ));
        contestants.push(Contestant::new(Kind::Limit, "dd", "dd if={file} of={out} bs=1M", dd));
    }
    let title = format!("{} MiB over {device}, by each one's own clock of the data phase", BYTES >> 20);
    let found = contest(row, &title, "MiB/s", &contestants, rounds)?;
    drop(contestants);

    let (large, small) = ("ib_send_bw -e, 1048576 B", "ib_send_bw -e, 65536 B");
    let ratio = |name: &str, target: f64, pair: [&str; 2]| {
        let row = found.compare(&format!("{device}: {name}"), pair, |ours, theirs| {
            Row::ratio(&format!("{device}: {name}"), target, &ours.values, &theirs.values)
        });
        if is_rxe { row } else { row.for_the_record() }
    };
    let mut rows = vec![
        ratio("against ib_send_bw, 1 MiB", 0.98, ["rdsend, 1 MiB", large]),
        ratio("against ib_send_bw, 64 KiB", 0.98, ["rdsend, 64 KiB", small]),
        ratio("against qperf, 1 MiB", 0.98, ["rdsend, 1 MiB", "qperf rc_bw, 1 MiB"]).for_the_record(),
    ];
    let median = |name: &str| found.entry(name).map(|entry| Spread::of(&entry.values).median);
    if let (true, Some(dd), Some(perftest)) = (is_rxe, median("dd"), median(large)) {
        let slower = if dd < perftest { "dd" } else { large };
        rows.push(ratio(&format!("file to file against {slower}"), 0.95, ["rdsend FILE to rdrecv FILE", slower]));
    }
    let lanes = Row {
        name: format!("{device}: lanes of rdsend, where ib_send_bw has one queue pair"),
        measured: format!("{}, the most of all runs", lanes_most.get()),
        ..Row::default()
    };
    rows.push(lanes.for_the_record());
    let (name, target) = if is_rxe {
        // Each packet carries at most 4 KiB, and rxe counts only its own packets.
        ("rxe: packets sent by the device", BYTES / 4096)
    } else {
        ("siw: bytes out of h1 by the device's port", BYTES)
    };
    rows.push(Row {
        name: name.into(),
        target: format!(">= {target}"),
        measured: format!("{}, the least of all runs", packets_least.get()),
        verdict: fact(packets_least.get() >= target),
    });
    Ok(rows)
}

/// Measures a stream over two adapters in each host, and over one, both with the networks held to a rate and without.
fn rails(ends: &Ends<'_>, rounds: usize) -> Result<Vec<Row>> {
    let tool = std::env::var_os("RD_HOST").ok_or("RD_HOST is not set")?;
    let both = |what: &str, how: &str| {
        ["1", "2"].iter().try_for_each(|host| timed(Command::new(&tool).args([what, host, how])).map(drop))
    };
    let scratch = Scratch::with_room(BYTES)?;
    let input = scratch.random_file(BYTES)?;
    let took = |rails: &str| {
        let sending = ["--transport", "rdma", "--json-fd=2", "--rails", rails];
        let run = ends.pipe_to(&["--transport", "rdma"], &sending, &input, true, None, unwatched)?;
        let used = run.reported("rails");
        // With `auto`, rdsend is to find out how many adapters gain something.
        if rails != "auto" && used != Some(if rails == "1" { 1.0 } else { 2.0 }) {
            return Err(format!("--rails {rails}: it was by {used:?}: {}", run.sender_said));
        }
        run.reported("seconds").ok_or(format!("no \"seconds\": {}", run.sender_said))
    };
    let hold = |rate: &str| {
        both("rail", rate)?;
        both("rate", rate)?;
        // An adapter is present some time before its port, and the first query on a new network may go unanswered.
        std::thread::sleep(Duration::from_secs(2));
        took("all")
    };
    let (mut held, mut held_found, mut free) = (Vec::new(), Vec::new(), Vec::new());
    hold("200mbit")?;
    for _ in 0..rounds {
        let one = took("1")?;
        held.push(one / took("all")?);
        held_found.push(one / took("auto")?);
    }
    hold("10gbit")?;
    for _ in 0..rounds {
        free.push(took("1")? / took("auto")?);
    }
    both("rail", "gone")?;
    let held_found = Row::at_least("rails-rdma: the same, where that is to be found out", 1.8, "x", &held_found);
    Ok(vec![
        Row::at_least("rails-rdma: two adapters, each held to 200 Mbit/s, over one", 1.8, "x", &held),
        held_found.for_the_record(),
        Row::at_least("rails-rdma: two adapters that nothing holds, over one", 1.0, "x", &free),
    ])
}

/// Measures `rdperf` and perftest with the same size, depth and number of messages, both waiting for events or both
/// polling. Both print MB and mean MiB. Latency is half of a round trip; its median is what perftest calls typical.
fn perf(ends: &Ends<'_>, rounds: usize) -> Result<Vec<Row>> {
    const SIZES: [&str; 2] = ["65536", "1048576"];
    let mut rows = Vec::new();
    for events in [true, false] {
        let wait = if events { "by events" } else { "polling" };
        let mut contestants = Vec::new();
        for bytes in SIZES {
            contestants.push(rdperf(ends, "bw", bytes, events));
            contestants.push(ib_send_bw(ends, bytes, events));
        }
        let title = format!("Bandwidth over rxe, both {wait}, 16 messages on their way");
        let found = contest("perf", &title, "MiB/s", &contestants, rounds)?;
        for (bytes, pair) in SIZES.iter().zip(contestants.chunks(2)) {
            let name = format!("perf: rdperf bw / ib_send_bw, {bytes} B, {wait}");
            rows.push(found.compare(&name, [&pair[0].name, &pair[1].name], |ours, theirs| {
                Row::ratio(&name, 0.97, &ours.values, &theirs.values)
            }));
        }
        let contestants = [rdperf(ends, "lat", "2", events), ib_send_lat(ends, events)];
        let title = format!("Latency of 2 bytes over rxe, both {wait}, median of half a round trip");
        let found = contest("perf", &title, "µs", &contestants, rounds)?;
        let name = format!("perf: rdperf lat / ib_send_lat, {wait}");
        rows.push(found.compare(&name, [&contestants[0].name, &contestants[1].name], |ours, theirs| {
            Row::at_most(&name, 1.1, &ours.values, &theirs.values)
        }));
    }
    Ok(rows)
}

/// Returns the number of messages: for large ones as many as `BYTES` holds, for small ones enough for some seconds.
fn iterations(bytes: &str) -> String {
    bytes.parse::<u64>().map_or(1000, |bytes| (BYTES / bytes).min(3000)).to_string()
}

fn rdperf<'a>(ends: &'a Ends<'a>, mode: &'static str, bytes: &'static str, events: bool) -> Contestant<'a> {
    let wait: &[&str] = if events { &[] } else { &["--poll"] };
    let count = iterations(bytes);
    let command = format!(
        "rdperf serve --once {{port}} · rdperf {{address}}:{{port}} {mode} --transport rdma --size {bytes} --iterations {count} --depth 16 {}",
        wait.join(" ")
    );
    let name = format!("rdperf {mode}, {bytes} B{}", if events { "" } else { " --poll" });
    Contestant::new(Kind::Ours, &name, command.trim(), move || {
        let port = free_port()?;
        let program = bin_directory().join("rdperf");
        let mut server = ends.on(ends.receiver_host, &program);
        let server = Running::start(server.env("RD_KEY", KEY).args(["serve", "--once", &port.to_string()]))?;
        ends.wait_listening(port)?;
        let mut client = ends.on(ends.sender_host, &program);
        client.env("RD_KEY", KEY).args([&format!("{}:{port}", ends.address), mode, "--transport", "rdma", "--json"]);
        client.args(["--size", bytes, "--iterations", &count, "--depth", "16"]).args(wait);
        let said = Running::start_saying(&mut client)?.success()?;
        server.success()?;
        let line = said.lines().find(|line| line.starts_with('{')).unwrap_or("");
        let report: serde_json::Value = serde_json::from_str(line).map_err(|error| format!("{error}: {said}"))?;
        let value =
            if mode == "bw" { &report["bandwidth"][0]["average_mib_s"] } else { &report["latency"][0]["p50_us"] };
        value.as_f64().ok_or(format!("no figure in {said}"))
    })
}

fn ib_send_bw<'a>(ends: &'a Ends<'a>, bytes: &'static str, events: bool) -> Contestant<'a> {
    perftest(ends, "ib_send_bw", bytes, events, |said| {
        let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        rows.filter(|fields| fields.len() == 5).find_map(|fields| {
            fields[0].parse::<u64>().ok()?;
            fields[3].parse().ok()
        })
    })
}

fn ib_send_lat<'a>(ends: &'a Ends<'a>, events: bool) -> Contestant<'a> {
    perftest(ends, "ib_send_lat", "2", events, |said| {
        let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        rows.filter(|fields| fields.len() >= 7 && fields[0] == "2").find_map(|fields| fields[4].parse().ok())
    })
}

fn perftest<'a>(
    ends: &'a Ends<'a>,
    program: &'static str,
    bytes: &'static str,
    events: bool,
    pick: fn(&str) -> Option<f64>,
) -> Contestant<'a> {
    let mut options = vec!["-s".to_owned(), bytes.to_owned(), "-n".to_owned(), iterations(bytes)];
    // A latency test has one message on its way, and no option for that.
    options
        .extend(CONNECTED.iter().take(if program == "ib_send_lat" { 1 } else { 5 }).map(|&option| option.to_owned()));
    options.extend(events.then(|| "-e".to_owned()));
    let name = format!("{program}{}, {bytes} B", if events { " -e" } else { "" });
    let command = format!("{program} {}", options.join(" "));
    Contestant::new(Kind::Peer, &name, &format!("{command} · {command} {{address}}"), move || {
        ends.perftest(program, &options.iter().map(String::as_str).collect::<Vec<&str>>(), pick)
    })
}

/// Runs qperf, whose MB are 10⁶ bytes.
fn qperf(ends: &Ends<'_>) -> Result<f64> {
    let port = free_port()?;
    let listen = ["-lp".to_owned(), port.to_string()];
    let _server = Running::start(ends.on(ends.receiver_host, "qperf").args(&listen))?;
    ends.wait_listening(port)?;
    let mut client = ends.on(ends.sender_host, "qperf");
    client.args(&listen).args([
        "-cm",
        "1",
        "-t",
        "2",
        "-m",
        "1048576",
        "--unify_units",
        "--precision",
        "6",
        ends.address,
        "rc_bw",
    ]);
    let said = Running::start_saying(&mut client)?.success()?;
    let fields: Vec<&str> = said.split_whitespace().collect();
    let rate = fields
        .iter()
        .position(|field| *field == "=")
        .and_then(|at| fields.get(at + 1)?.replace(',', "").parse::<f64>().ok());
    match (rate, fields.last()) {
        (Some(rate), Some(&"bytes/sec")) => Ok(rate / MIB),
        (Some(rate), Some(&"MB/sec")) => Ok(rate * 1e6 / MIB),
        _ => Err(format!("qperf: {said}")),
    }
}

/// Returns how much the device has carried so far. rxe counts packets. siw counts nothing itself, but its data leaves
/// through its port, where `--transport rdma` lets no other payload pass.
fn carried(device: &str, ends: &Ends<'_>) -> Result<u64> {
    let path = if device == "rxe" {
        "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
    } else {
        "/sys/class/net/e0/statistics/tx_bytes"
    };
    let output = ends.on(ends.sender_host, "cat").arg(path).output().map_err(text)?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| format!("cannot read {path}"))
}
