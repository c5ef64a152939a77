//! The commands between hosts, which are network namespaces on one switch: links that fail silently, IPv6, and what is
//! encrypted where. `tests/run` makes the hosts, as root, and runs these tests in them. Elsewhere they are not run.

mod rig;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::*;
use rustix::process::Signal;
use serde_json::Value;

/// A stream from host 1 to host 2, with its output counted.
struct Stream {
    send: Process,
    recv: Process,
    arrived: Arc<AtomicU64>,
    output: JoinHandle<Vec<u8>>,
}

#[track_caller]
fn stream(options: &[&str], recv_options: &[&str], input: Vec<u8>) -> Stream {
    let mut command = rdrecv();
    command.args(["--json-fd=2"]).args(recv_options).args(["0", KEY]);
    let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut command = rdsend();
    command.args(["--json-fd=2", "--bwlimit", "16M"]).args(options);
    command.args([&address(2), &recv.port().to_string(), KEY]);
    let mut send = Process::spawn(on(1, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), input);
    let arrived = Arc::new(AtomicU64::new(0));
    let (mut pipe, count) = (recv.stdout(), Arc::clone(&arrived));
    let output = std::thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(length @ 1..) = pipe.read(&mut piece) {
            all.extend(&piece[..length]);
            count.fetch_add(length as u64, Ordering::SeqCst);
        }
        all
    });
    let stream = Stream { send, recv, arrived, output };
    let until = Instant::now() + PATIENCE;
    while stream.arrived.load(Ordering::SeqCst) < 4 * CHUNK as u64 {
        assert!(Instant::now() < until, "nothing flows: {} {}", stream.send.stderr(), stream.recv.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    stream
}

/// Cuts off the host of the sender or the receiver for a while in the middle of a stream. A lane is dead after 5 s of
/// silence.
#[track_caller]
fn cut_for(host: u32, how: &str, seconds: f64, retries: std::ops::RangeInclusive<u64>) {
    let input = noise(48 * CHUNK);
    let mut stream = stream(&[], &[], input.clone());
    let partition = Partition::start(host, how);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let before = stream.arrived.load(Ordering::SeqCst);
    drop(partition);
    for process in [&mut stream.send, &mut stream.recv] {
        let report = process.wait().expect(0).report();
        let found = report["retries"].as_u64().expect("a number");
        assert!(retries.contains(&found), "{found} retries: {report}");
    }
    let output = stream.output.join().expect("no panic");
    assert!(
        before >= 4 * CHUNK as u64 && before + 8 * CHUNK as u64 <= input.len() as u64,
        "cut in mid-stream: {before}"
    );
    same(&output, &input);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_short_silence_is_nothing() {
    // TCP itself sends lost data again, at the latest as long after the line is back as it was silent. Together this is
    // shorter than the 5 s after which a lane counts as dead.
    cut_for(1, "silent", 2.0, 0..=0);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_silent_partition_of_the_sender() {
    cut_for(1, "silent", 6.5, 1..=40);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_silent_partition_of_the_receiver() {
    cut_for(2, "silent", 6.5, 1..=40);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_cable_that_is_pulled_and_put_back() {
    cut_for(1, "link", 6.5, 1..=40);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_partition_past_the_window_ends_both() {
    let mut stream = stream(&[], &["--reconnect", "2"], noise(64 * CHUNK));
    let _partition = Partition::start(2, "silent");
    let start = Instant::now();
    for process in [&mut stream.send, &mut stream.recv] {
        let ended = process.wait();
        ended.expect(4);
        assert!(ended.stderr.contains("lost the link"), "{}", ended.stderr);
    }
    // 5 s until the lanes are dead, then the window, which is the smaller one of both ends.
    let seconds = start.elapsed().as_secs_f64();
    assert!((5.0..11.0).contains(&seconds), "{seconds}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_signal_during_a_partition() {
    let mut stream = stream(&[], &[], noise(64 * CHUNK));
    let partition = Partition::start(2, "silent");
    stream.send.signal(Signal::INT);
    stream.send.wait().expect(130).within(SOON);
    stream.recv.signal(Signal::TERM);
    stream.recv.wait().expect(143).within(SOON);
    drop(partition);
}

/// Returns the reports of both ends for a line with a round trip of 80 ms.
fn over_a_long_line(options: &[&str]) -> [serde_json::Value; 2] {
    let _line = Line::between(1, 2, 40, 400, 0);
    let input = noise(64 * CHUNK);
    let mut command = rdrecv();
    // Without the short line, which carries more while the machine is busy.
    command.args(["--json-fd=2", "--wait", "60", "--rails", "1"]).args(options).args(["0", KEY]);
    let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut output = recv.stdout();
    let output = std::thread::spawn(move || {
        let mut all = Vec::new();
        output.read_to_end(&mut all).map(|_| all)
    });
    let mut command = rdsend();
    command.args(["--json-fd=2", "--rails", "1"]).args(options).args(["10.8.0.2", &recv.port().to_string(), KEY]);
    let mut send = Process::spawn(on(1, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), input.clone());
    let reports = [&mut send, &mut recv].map(|process| process.wait().expect(0).report());
    same(&output.join().expect("no panic").expect("a pipe"), &input);
    reports
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_long_line_gets_more_connections_unless_told_otherwise() {
    for report in over_a_long_line(&[]) {
        assert!(report["lanes"].as_u64() >= Some(6), "{report}");
        assert_eq!(report["retries"].as_u64(), Some(0), "what is closed by choice is not lost: {report}");
        let round_trip = report["round_trip_ms"].as_f64().expect("measured");
        assert!((80.0..200.0).contains(&round_trip), "{report}");
        assert!(report["buffer_bytes"].as_u64() > Some(32 << 20), "{report}");
    }
    for report in over_a_long_line(&["--lanes", "2", "--buffer", "32M"]) {
        assert_eq!(report["lanes"].as_u64(), Some(2), "{report}");
        assert_eq!(report["buffer_bytes"].as_u64(), Some(32 << 20), "{report}");
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn encrypted_between_hosts_unless_told_otherwise() {
    let input = noise(6 * CHUNK);
    for (options, encrypted) in [(&[][..], true), (&["--encrypt", "never"], false)] {
        let mut stream = stream(options, &[], input.clone());
        for process in [&mut stream.send, &mut stream.recv] {
            assert_eq!(process.wait().expect(0).report()["encrypted"], encrypted);
        }
        same(&stream.output.join().expect("no panic"), &input);
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn not_encrypted_on_one_host_by_its_own_address() {
    let mut command = rdrecv();
    command.args(["--json-fd=2", "0", KEY]);
    let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    let mut command = rdsend();
    command.args(["--json-fd=2", &address(2), &recv.port().to_string(), KEY]);
    let mut send = Process::spawn(on(2, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), noise(1000));
    for process in [&mut send, &mut recv] {
        assert_eq!(process.wait().expect(0).report()["encrypted"], false);
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn by_ipv6() {
    let input = noise(2 * CHUNK);
    let mut command = rdrecv();
    command.args(["--json-fd=2", "0", KEY]);
    let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(recv.stdout());
    let mut command = rdsend();
    command.args(["-v", "fd00:9::2", &recv.port().to_string(), KEY]);
    let mut send = Process::spawn(on(1, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
    feed(send.stdin(), input.clone());
    let send = send.wait();
    assert!(send.expect(0).stderr.contains("[fd00:9::2]:"), "{}", send.stderr);
    assert_eq!(recv.wait().expect(0).report()["encrypted"], true);
    same(&output.join().expect("no panic"), &input);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn rdma_where_there_is_none() {
    let mut command = rdrecv();
    command.args(["0", KEY]);
    let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(recv.stdout());
    let port = recv.port().to_string();
    let send = |transport: &str| {
        let mut command = rdsend();
        command.args(["--transport", transport, &address(2), &port, KEY]);
        let mut send = Process::spawn(on(1, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
        feed(send.stdin(), b"by TCP then".to_vec());
        send.wait()
    };
    let mut command = rdrecv();
    command.args(["--transport", "rdma", "0", KEY]).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = Process::spawn(&mut on(2, &command)).wait();
    ended.expect(3).one_line("rdrecv", &["--transport rdma", "this host has no RDMA device"]);
    send("rdma").expect(3).one_line("rdsend", &["--transport rdma", "this host has no RDMA device"]);
    send("prefer-rdma").expect(0).one_line("rdsend", &["RDMA", "TCP"]);
    recv.wait().expect(0);
    assert_eq!(output.join().expect("no panic"), b"by TCP then");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn an_address_that_does_not_answer() {
    let mut command = rdsend();
    command.args(["--connect-timeout", "2", "10.9.0.77", "7000", KEY]);
    let start = Instant::now();
    let ended = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(3).one_line("rdsend", &["10.9.0.77:7000"]);
    let seconds = start.elapsed().as_secs_f64();
    assert!((1.0..6.0).contains(&seconds), "{seconds}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_disk_that_is_full() {
    let scratch = Scratch::new();
    let disk = scratch.path().to_str().expect("UTF-8").to_owned();
    // Mounted by the process itself in its own mount namespace, with which it disappears.
    let line = format!(
        "mount -t tmpfs -o size=6m none '{disk}' && printf old >'{disk}/target' && \"$@\"; code=$?; \
        ls -A '{disk}'; cat '{disk}/target'; exit $code"
    );
    let mut command = rdrecv();
    command.args(["0", KEY, &format!("{disk}/target")]);
    let mut wrapped = Command::new("unshare");
    let inner = in_shell(&line, &command);
    wrapped.arg("--mount").arg(inner.get_program()).args(inner.get_args());
    let mut recv = Process::spawn(on(2, &wrapped).stdin(Stdio::null()).stdout(Stdio::piped()));
    let listed = drain(recv.stdout());
    let mut command = rdsend();
    command.args(["--bwlimit", "40M", &address(2), &recv.port().to_string(), KEY, "/dev/zero"]);
    let mut send = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    recv.wait().expect(6).one_line("rdrecv", &["target", "errno 28"]);
    send.wait().expect(6).within(SOON).one_line("rdsend", &[&address(2), "target", "errno 28"]);
    let listed = listed.join().expect("no panic");
    assert_eq!(String::from_utf8_lossy(&listed), "target\nold", "the old file, and nothing else");
}

/// An endless stream over two networks from host 1 to host 2. Every byte is compared as it comes out.
struct Rails {
    second: SecondNetwork,
    held: Held,
    send: Process,
    recv: Process,
    arrived: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    checker: JoinHandle<()>,
}

/// Number of bytes after which that stream repeats. No chunk or packet has this length.
const PERIOD: u64 = 251;

/// Rate to which each network is limited. One network then carries a payload of between RAIL_MB and RAIL_MB_MAX MB/s.
/// Over two seconds more may come through, because data may have been held up before.
const RAIL_RATE: &str = "40mbit";
const RAIL_MB: f64 = 4.5;
const RAIL_MB_MAX: f64 = 5.0;

impl Rails {
    #[track_caller]
    fn start(options: &[&str]) -> Self {
        let held = Held::at(1..=2, RAIL_RATE);
        let second = SecondNetwork::of(&[1, 2], RAIL_RATE);
        let mut command = rdrecv();
        command.args(["--json-fd=2", "0", KEY]);
        let mut recv = Process::spawn(on(2, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut command = rdsend();
        command.arg("--json-fd=2").args(options).args([&address(2), &recv.port().to_string(), KEY]);
        let mut send = Process::spawn(on(1, &command).stdin(Stdio::piped()).stdout(Stdio::null()));
        let (arrived, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (mut input, until) = (send.stdin(), Arc::clone(&over));
        std::thread::spawn(move || {
            let block: Vec<u8> = (0..PERIOD * 256).map(|offset| (offset % PERIOD) as u8).collect();
            while !until.load(Ordering::SeqCst) {
                if input.write_all(&block).is_err() {
                    return;
                }
            }
        });
        let (mut output, count) = (recv.stdout(), Arc::clone(&arrived));
        let checker = std::thread::spawn(move || {
            let (mut offset, mut piece) = (0_u64, vec![0; 64 << 10]);
            let expected: Vec<u8> = (0..PERIOD + (64 << 10)).map(|offset| (offset % PERIOD) as u8).collect();
            while let Ok(length @ 1..) = output.read(&mut piece) {
                let from = (offset % PERIOD) as usize;
                assert!(piece[..length] == expected[from..from + length], "at {offset} and up to {length} behind");
                offset += length as u64;
                count.store(offset, Ordering::SeqCst);
            }
        });
        Self { second, held, send, recv, arrived, over, checker }
    }

    /// Returns the rate from now on, over this many seconds, in MB/s.
    fn rate(&self, seconds: f64) -> f64 {
        let (before, start) = (self.arrived.load(Ordering::SeqCst), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        (self.arrived.load(Ordering::SeqCst) - before) as f64 / start.elapsed().as_secs_f64() / 1e6
    }

    /// Ends the stream, and returns the standard error of both ends.
    #[track_caller]
    fn end(mut self) -> [String; 2] {
        self.over.store(true, Ordering::SeqCst);
        let said = [&mut self.send, &mut self.recv].map(|process| process.wait().expect(0).stderr.clone());
        self.checker.join().expect("all bytes are the same");
        drop((self.second, self.held));
        said
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn two_networks_carry_nearly_twice_as_much() {
    let alone = Rails::start(&["--rails", "1"]);
    std::thread::sleep(Duration::from_secs(1));
    let one = alone.rate(2.0).min(RAIL_MB_MAX);
    alone.end();
    let both = Rails::start(&[]);
    // That the second network is worth using is found out during the stream.
    let until = Instant::now() + Duration::from_secs(12);
    let mut two = 0.0;
    while two < 1.8 * one && Instant::now() < until {
        two = both.rate(2.0);
    }
    let [sent, _] = both.end();
    assert!(two >= 1.8 * one, "{two:.1} MB/s by two networks, {one:.1} by one: {sent}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn that_there_is_no_second_network_is_told_if_one_was_asked_for() {
    let input = noise(48 * CHUNK);
    let mut stream = stream(&["--rails", "all"], &[], input.clone());
    let [send, recv] = [&mut stream.send, &mut stream.recv].map(|process| process.wait());
    assert_eq!(send.expect(0).stderr.matches("only one network").count(), 1, "{}", send.stderr);
    assert!(!recv.expect(0).stderr.contains("only one network"), "the end that connects tells it: {}", recv.stderr);
    same(&stream.output.join().expect("no panic"), &input);
}

/// Returns the report of `rdperf HOST rails` on host 1 about host 2.
fn rails_measured(scratch: &Scratch, arguments: &[&str]) -> Value {
    let mut command = rdperf();
    command.args(["rails", "2", "--json", "--agent", rig::AGENT, "--rsh"]).arg(launcher(scratch)).args(arguments);
    let output = on(1, &command).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn each_network_is_measured_by_itself_and_all_at_once() {
    let scratch = Scratch::new();
    let only = rails_measured(&scratch, &["--duration", "0.1"]);
    assert_eq!((only["rails"]["ways"].as_array().map(Vec::len), &only["rails"]["gain"]), (Some(1), &Value::Null));
    let held = Held::at(1..=2, "80mbit");
    let second = SecondNetwork::of(&[1, 2], RAIL_RATE);
    let report = rails_measured(&scratch, &["--duration", "2"]);
    drop((second, held));
    let ways = report["rails"]["ways"].as_array().expect("a list");
    let names: Vec<&str> = ways.iter().map(|way| way["name"].as_str().expect("a name")).collect();
    assert_eq!(names[1..], ["e1 (10.7.0.1 > 10.7.0.2)", "all 2 at once"], "{report}");
    let rates: Vec<f64> = ways.iter().map(|way| way["average_mib_s"].as_f64().expect("a number")).collect();
    assert!((7.5..10.0).contains(&rates[0]) && (3.5..5.0).contains(&rates[1]), "{rates:?}: 80 and 40 Mb/s");
    let sum = rates[0] + rates[1];
    assert!((0.85 * sum..1.1 * sum).contains(&rates[2]), "{rates:?}: the sum at once");
    assert!((report["rails"]["gain"].as_f64().expect("a number") - rates[2] / rates[0]).abs() < 0.01, "{report}");
}

/// Returns how often a sender reports that a network is left, and that one is back.
fn left_and_back(send: &str) -> [usize; 2] {
    let said = |what| send.lines().filter(|line| line.starts_with("rdsend: ") && line.contains(what)).count();
    ["one of several networks", "is back"].map(said)
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_network_that_fails_is_left_and_taken_back() {
    for how in ["silent", "link"] {
        let rails = Rails::start(&["--rails", "all"]);
        std::thread::sleep(Duration::from_secs(1));
        let two = rails.rate(2.0).min(2.0 * RAIL_MB_MAX);
        assert!(two > 1.8 * RAIL_MB, "{two:.1} MB/s by two networks");
        rails.second.set_at(2, how);
        std::thread::sleep(Duration::from_secs(2));
        let left = rails.rate(2.0);
        assert!(left >= 0.9 * two / 2.0, "{how}: {left:.1} MB/s by the network that is left, {two:.1} by both");
        rails.second.set_at(2, "heal");
        let until = Instant::now() + Duration::from_secs(9);
        let mut back = 0.0;
        while back < 0.9 * two && Instant::now() < until {
            back = rails.rate(1.0);
        }
        assert!(back >= 0.9 * two, "{how}: {back:.1} MB/s when it is back, {two:.1} before");
        let [send, _] = rails.end();
        assert_eq!(left_and_back(&send), [1, 1], "{how}: each once, {send}");
        assert!(send.contains("e1 (10.7.0.1 > 10.7.0.2)"), "{send}");
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_network_that_a_session_began_on_may_fail_too() {
    let rails = Rails::start(&["--rails", "all"]);
    std::thread::sleep(Duration::from_secs(2));
    let partition = Partition::start(2, "silent");
    std::thread::sleep(Duration::from_secs(2));
    let left = rails.rate(2.0);
    assert!(left >= 0.9 * RAIL_MB, "{left:.1} MB/s by the network that is left");
    drop(partition);
    rails.end();
}

/// The second network is not needed until the first one fails.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_network_that_was_not_needed_is_used_where_no_other_works() {
    let rails = Rails::start(&["--bwlimit", "2M"]);
    std::thread::sleep(Duration::from_secs(3));
    let partition = Partition::start(2, "silent");
    let until = Instant::now() + Duration::from_secs(12);
    // Data that was already on its way arrives first.
    std::thread::sleep(Duration::from_secs(3));
    while rails.rate(1.0) < 1.5 {
        assert!(Instant::now() < until, "nothing comes by the other network");
    }
    drop(partition);
    // The first network is tried again within seconds.
    std::thread::sleep(Duration::from_secs(8));
    let [send, _] = rails.end();
    assert_eq!(left_and_back(&send), [1, 1], "{send}");
}
