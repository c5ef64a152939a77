//! Connections that are reset or fall silent in mid-stream: the session goes on, or ends in time.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::rig::proxy::{Plan, Proxy, Way};
use crate::rig::*;

const MODES: [&str; 2] = ["always", "never"];

/// Sends through a proxy with a plan. Returns the outcome, and the proxy, which knows what it did.
#[track_caller]
fn through(plan: Plan, options: &[&str], input: &[u8]) -> (Transferred, Proxy) {
    through_from(None, plan, options, input)
}

/// Like [`through`], with a file that holds the input, if any.
#[track_caller]
fn through_from(file: Option<&Path>, plan: Plan, options: &[&str], input: &[u8]) -> (Transferred, Proxy) {
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, plan);
    let mut all = vec!["--json-fd=2"];
    all.extend(options);
    let mut send = start_send(&all, proxy.port(), file);
    if file.is_none() {
        feed(send.stdin(), input.to_vec());
    }
    let (send, recv) = (send.wait(), recv.wait());
    (Transferred { send, recv, output: output.join().expect("no panic") }, proxy)
}

#[test]
fn a_reset_in_mid_stream() {
    let input = noise(16 * CHUNK);
    for encrypt in MODES {
        // On a single lane this is the middle of a chunk.
        let cut_at = (5 * CHUNK + CHUNK / 2) as u64;
        let plan = Plan { resets_at: vec![cut_at], ..Plan::default() };
        let (both, proxy) = through(plan, &["--lanes", "1", "--encrypt", encrypt], &input);
        both.well(&input);
        assert_eq!(proxy.resets(), 1);
        let by_connection = proxy.forwarded_by_connection(Way::Up);
        // The first connection carried everything before the cut, and later connections the rest.
        let (before, after) = (by_connection[0], by_connection[1..].iter().sum::<u64>());
        assert!(before >= cut_at && after > 5 * CHUNK as u64, "{by_connection:?}");
        let report = both.send.report();
        assert!(report["retries"].as_u64() >= Some(1), "{report}");
        assert!(report["replayed_chunks"].as_u64() >= Some(1), "{report}");
        assert_eq!(report["bytes"], input.len());
        assert!(both.recv.report()["retries"].as_u64() >= Some(1));
    }
}

#[test]
fn several_resets() {
    let input = noise(24 * CHUNK);
    for lanes in ["1", "4"] {
        let resets_at: Vec<u64> = (1..=5).map(|cut| cut * 4 * CHUNK as u64).collect();
        let plan = Plan { resets_at: resets_at.clone(), ..Plan::default() };
        let (both, proxy) = through(plan, &["--lanes", lanes], &input);
        both.well(&input);
        assert_eq!(proxy.resets(), resets_at.len());
        assert!(both.send.report()["retries"].as_u64() >= Some(5), "{}", both.send.stderr);
    }
}

#[test]
fn resets_at_random_places() {
    let mut random = Random::printed("resets_at_random_places");
    for _ in 0..6 {
        let input = noise(6 * CHUNK);
        let mut resets_at: Vec<u64> = (0..3).map(|_| 600 + random.below(6 * CHUNK as u64)).collect();
        resets_at.sort_unstable();
        let encrypt = MODES[random.below(2) as usize];
        let lanes = ["1", "2", "3"][random.below(3) as usize];
        eprintln!("resets at {resets_at:?}, --encrypt {encrypt} --lanes {lanes}");
        let plan = Plan { resets_at, ..Plan::default() };
        let (both, proxy) = through(plan, &["--encrypt", encrypt, "--lanes", lanes], &input);
        both.well(&input);
        // The first of three places is before the end of the input.
        assert!(proxy.resets() >= 1, "nothing was reset");
    }
}

#[test]
fn a_file_published_through_a_reset() {
    let scratch = Scratch::new();
    let input = noise(12 * CHUNK);
    let source = scratch.file("source", &input);
    let target = scratch.file("target", b"old");
    let (mut recv, port) = start_recv(&["--json-fd=2"], Some(&target));
    let proxy = Proxy::start(port, Plan { resets_at: vec![4 << 20, 9 << 20], ..Plan::default() });
    start_send::<&str>(&[], proxy.port(), Some(&source)).wait().expect(0);
    recv.wait().expect(0);
    assert_eq!(proxy.resets(), 2);
    same(&std::fs::read(&target).expect("there"), &input);
    assert_eq!(scratch.names(), ["source", "target"]);
}

#[test]
fn a_link_that_stays_away_past_the_window() {
    let input = noise(64 * CHUNK);
    let (mut recv, port) = start_recv(&["--reconnect", "2"], None);
    let _output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan::default());
    let mut send = start_send(&["--bwlimit", "16M"], proxy.port(), None);
    feed(send.stdin(), input);
    wait_until(|| proxy.forwarded(Way::Up) > 4 * CHUNK as u64);
    proxy.refuse(true);
    proxy.reset_all();
    let start = Instant::now();
    // The shorter of the two windows applies to both ends.
    for (mut process, name) in [(send, "rdsend"), (recv, "rdrecv")] {
        let ended = process.wait();
        ended.expect(4);
        let line = ended.stderr.lines().last().expect("a line");
        assert!(
            line.starts_with(name) && line.contains("lost the link to ") && line.contains("(--reconnect)"),
            "{line}"
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    assert!((1.8..4.5).contains(&seconds), "{seconds}");
}

#[test]
fn reconnect_0_gives_up_at_once() {
    let (mut recv, port) = start_recv(&["--reconnect", "0"], None);
    let _output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan { resets_at: vec![3 << 20], ..Plan::default() });
    let mut send = start_send(&["--bwlimit", "16M"], proxy.port(), Some(std::path::Path::new("/dev/zero")));
    wait_until(|| proxy.resets() == 1);
    send.wait().expect(4).within(Duration::from_secs(1));
    recv.wait().expect(4).within(Duration::from_secs(1));
}

#[test]
fn a_short_stall_is_nothing() {
    let input = noise(12 * CHUNK);
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan::default());
    let mut send = start_send(&["--json-fd=2", "--bwlimit", "16M"], proxy.port(), None);
    feed(send.stdin(), input.clone());
    wait_until(|| proxy.forwarded(Way::Up) > 2 * CHUNK as u64);
    proxy.stall(true);
    std::thread::sleep(Duration::from_secs(3));
    proxy.stall(false);
    for ended in [send.wait(), recv.wait()] {
        assert_eq!(ended.expect(0).report()["retries"], 0);
    }
    same(&output.join().expect("no panic"), &input);
}

#[test]
fn a_silent_stall_replaces_the_lanes() {
    // Nothing passes, and neither end is told. Both must find out by themselves and then go on.
    let input = noise(12 * CHUNK);
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan::default());
    let mut send = start_send(&["--json-fd=2", "--bwlimit", "16M"], proxy.port(), None);
    feed(send.stdin(), input.clone());
    wait_until(|| proxy.forwarded(Way::Up) > 2 * CHUNK as u64);
    proxy.stall(true);
    std::thread::sleep(Duration::from_millis(6500));
    let before = proxy.forwarded(Way::Up);
    proxy.stall(false);
    for ended in [send.wait(), recv.wait()] {
        assert!(ended.expect(0).report()["retries"].as_u64() >= Some(1), "{}", ended.stderr);
    }
    same(&output.join().expect("no panic"), &input);
    assert!(proxy.forwarded(Way::Up) > before + CHUNK as u64, "bytes flowed after the stall");
}

#[test]
fn signals_end_both_ends_of_a_dead_link_in_time() {
    let (mut recv, port) = start_recv(&["--reconnect", "3"], None);
    let _output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan::default());
    let mut send = start_send(&["--bwlimit", "16M"], proxy.port(), Some(std::path::Path::new("/dev/zero")));
    wait_until(|| proxy.forwarded(Way::Up) > 2 * CHUNK as u64);
    proxy.stall(true);
    send.signal(rustix::process::Signal::INT);
    send.wait().expect(130).within(SOON);
    recv.signal(rustix::process::Signal::TERM);
    recv.wait().expect(143).within(SOON);
}

/// Cuts while the ends agree on the end: after the last payload byte, before the answer has arrived.
#[test]
fn a_cut_around_the_end() {
    let scratch = Scratch::new();
    for bytes in [50_000, 2 * CHUNK + 100] {
        let input = noise(bytes);
        let source = scratch.file("source", &input);
        let run = |plan| {
            let (both, proxy) = through_from(Some(&source), plan, &["--lanes", "1"], &input);
            both.well(&input);
            proxy
        };
        // Total number of bytes of an undisturbed session. One that takes longer has more heartbeats.
        let whole = (0..3).map(|_| run(Plan::default()).forwarded(Way::Up)).min().expect("three of them");
        let places = (0..240_u64).step_by(24);
        let is_cut = |place: &u64| run(Plan { resets_at: vec![whole - place], ..Plan::default() }).resets() > 0;
        let cut = places.clone().filter(is_cut).count();
        // A cut in the last message, or in a session with fewer heartbeats, may come too late. How many chunks a longer
        // input has, and so how many bytes, depends on how fast the machine is.
        let is_counted = bytes < CHUNK;
        assert!(!is_counted || 2 * cut >= places.count(), "most sessions of {whole} bytes ended before the cut");
    }
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
