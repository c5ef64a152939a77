//! RDMA, in the guest.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::*;
use crate::streams::Ends;

/// What `ib_send_bw` is asked for, and what rdsend has to beat: 300 messages of 1 MiB.
pub const VERBS_OPTIONS: &[&str] = &["-R", "-e", "-s", "1048576", "-n", "300", "-t", "16", "-r", "32"];
pub const VERBS_BYTES: u64 = 300 << 20;

/// Runs this very program in the guest; it prints its own table there.
pub fn guest(device: &str) -> bool {
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
pub fn in_guest(device: &str) -> Result<Vec<Row>> {
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
