//! The commands over real RDMA verbs: on one host with soft-RoCE (`RD_TESTBED=rxe`), between hosts with soft-iWARP
//! (`siw`). `tests/run` runs them in the testbed's guest. Elsewhere they cannot run, and are ignored.

mod rig;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rig::hosts::{Partition, launcher};
use rig::lab::Lab;
use rig::{Ended, KEY, PROGRAM, Process, Scratch, disk_bytes_below, drain, noise, same};
use rustix::process::{Pid, Signal, kill_process};

/// Under emulation the guest moves some tens of MB/s. This many bytes take several seconds at [`HELD_BACK`].
const STREAM_BYTES: usize = 40 << 20;

/// A rate that leaves time to cause failures in mid-stream.
const HELD_BACK: [&str; 2] = ["--bwlimit", "5MB"];

/// Maximum time for a transfer here, with all disturbances.
const LONG: Duration = Duration::from_secs(100);

fn is_siw() -> bool {
    match std::env::var("RD_TESTBED").as_deref() {
        Ok("siw") => true,
        Ok("rxe") => false,
        other => panic!("RD_TESTBED must name the testbed, not {other:?}"),
    }
}

/// Prepares a program to run on a host of the testbed. With soft-RoCE there is only one host.
fn on(host: u8, program: &str) -> Command {
    if !is_siw() {
        return Command::new(program);
    }
    let mut command = Command::new(std::env::var_os("RD_HOST").expect("the testbed's tool"));
    command.args(["exec", &host.to_string(), program]);
    command
}

fn shell(host: u8, line: &str) {
    let mut command = on(host, "timeout");
    let status = command.args(["20", "sh", "-c", line]).status().expect("a shell");
    assert!(status.success(), "on host {host}: {line}: {status}");
}

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;

fn address(host: u8) -> String {
    format!("10.9.0.{}", if is_siw() { host } else { 1 })
}

fn remove_device() {
    shell(SENDER, if is_siw() { "rdma link delete siw1" } else { "rdma link delete rxe0" });
}

fn add_device() {
    shell(
        SENDER,
        if is_siw() { "rdma link add siw1 type siw netdev e0" } else { "rdma link add rxe0 type rxe netdev veth0" },
    );
}

/// Puts the device back when dropped, even if the test has failed.
struct WithoutDevice;

impl WithoutDevice {
    fn begin() -> Self {
        remove_device();
        Self
    }
}

impl Drop for WithoutDevice {
    fn drop(&mut self) {
        add_device();
    }
}

fn recv_on(host: u8, options: &[&str]) -> (Process, String) {
    let mut command = on(host, PROGRAM);
    command.arg("rdrecv");
    command.args(options).args(["0", KEY]).stdin(Stdio::null()).stdout(Stdio::piped());
    let process = Process::spawn(&mut command);
    let port = process.port().to_string();
    (process, port)
}

fn send_on(host: u8, to: &str, port: &str, options: &[&str], file: &PathBuf) -> Process {
    let mut command = on(host, PROGRAM);
    command.arg("rdsend");
    command.args(options).args([to, port, KEY]).arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(&mut command)
}

/// Waits until the devices' ports are active, which is some time after the devices appear.
fn await_devices() {
    let hosts: &[(u8, &str)] = if is_siw() { &[(SENDER, "siw1"), (RECEIVER, "siw2")] } else { &[(SENDER, "rxe0")] };
    for (host, device) in hosts {
        shell(*host, &format!("until grep -q ACTIVE /sys/class/infiniband/{device}/ports/1/state; do sleep 0.1; done"));
    }
}

struct Stream {
    send: Process,
    recv: Process,
    output: std::thread::JoinHandle<Vec<u8>>,
    came: Arc<AtomicUsize>,
    input: Vec<u8>,
    _scratch: Scratch,
}

/// Starts a transfer of noise from host 1 to host 2.
fn stream(bytes: usize, to: &str, send_options: &[&str], recv_options: &[&str]) -> Stream {
    await_devices();
    let scratch = Scratch::new();
    let input = noise(bytes);
    let file = scratch.file("input", &input);
    let recv_options = [&["--json-fd=2"], recv_options].concat();
    let send_options = [&["--json-fd=2"], send_options].concat();
    let (mut recv, port) = recv_on(RECEIVER, &recv_options);
    let came = Arc::new(AtomicUsize::new(0));
    let (mut pipe, counter) = (recv.stdout(), Arc::clone(&came));
    let output = std::thread::spawn(move || {
        let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(count @ 1..) = pipe.read(&mut part) {
            bytes.extend(&part[..count]);
            counter.store(bytes.len(), Ordering::Relaxed);
        }
        bytes
    });
    let send = send_on(SENDER, to, &port, &send_options, &file);
    Stream { send, recv, output, came, input, _scratch: scratch }
}

impl Stream {
    /// Waits until some of the data, but not all, has come out at the other end.
    #[track_caller]
    fn flowing(&self) {
        let start = Instant::now();
        while self.came.load(Ordering::Relaxed) < 4 << 20 {
            assert!(start.elapsed() < LONG, "nothing flows; {} {}", self.send.stderr(), self.recv.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.came.load(Ordering::Relaxed) < self.input.len(), "over too soon to be broken in mid-stream");
    }

    fn wait(mut self) -> (Ended, Ended, Vec<u8>, Vec<u8>) {
        let send = self.send.wait_for(LONG);
        let recv = self.recv.wait_for(LONG);
        (send, recv, self.output.join().expect("no panic"), self.input)
    }

    #[track_caller]
    fn well(self) -> (Ended, Ended) {
        let (send, recv, output, input) = self.wait();
        send.expect(0);
        recv.expect(0);
        same(&output, &input);
        (send, recv)
    }
}

fn transport(ended: &Ended) -> String {
    ended.report()["transport"].as_str().expect("a string").to_owned()
}

fn times(ended: &Ended, part: &str) -> usize {
    ended.stderr.lines().filter(|line| line.contains(part)).count()
}

/// Returns what the sender has put on its network: packets of the device for rxe, bytes of the interface for siw.
fn device_counter() -> u64 {
    let path = if is_siw() {
        "/sys/class/net/e0/statistics/tx_bytes"
    } else {
        "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
    };
    let output = on(SENDER, "cat").arg(path).output().expect("cat");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a counter")
}

#[test]
#[ignore = "needs the testbed's guest"]
fn a_stream_goes_over_rdma() {
    let before = device_counter();
    let (send, recv) = stream(STREAM_BYTES, &address(RECEIVER), &["--transport", "rdma"], &[]).well();
    let counted = device_counter() - before;
    // rxe counts packets of at most 4 KiB. For siw the bytes of the interface are counted.
    let expected = if is_siw() { STREAM_BYTES as u64 } else { STREAM_BYTES as u64 / 4096 };
    assert!(counted >= expected, "the device carried it: {counted} of {expected}");
    for ended in [send, recv] {
        assert_eq!(transport(&ended), "rdma-software");
        assert_eq!(ended.report()["retries"], 0);
        assert_eq!(ended.report()["encrypted"], false);
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn sizes_around_the_chunk() {
    // `conformance` takes more sizes over the same device.
    for bytes in [0, rig::CHUNK + 1] {
        stream(bytes, &address(RECEIVER), &["--transport", "rdma"], &[]).well();
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn ipv6_and_encryption_and_lanes() {
    let to = if is_siw() { "fd00:9::2" } else { "fd00:9::1" };
    let options = ["--transport", "rdma", "--encrypt", "always", "--lanes", "2"];
    let (send, _) = stream(4 << 20, to, &options, &[]).well();
    assert_eq!(transport(&send), "rdma-software");
    assert_eq!(send.report()["encrypted"], true);
    assert_eq!(send.report()["lanes"], 2);
}

#[test]
#[ignore = "needs the testbed's guest"]
fn auto_does_not_count_software_devices() {
    let (send, recv) = stream(1 << 20, &address(RECEIVER), &[], &[]).well();
    assert_eq!(transport(&send), "tcp");
    assert_eq!(times(&send, "RDMA") + times(&recv, "RDMA"), 0, "nothing to be said of it");
}

#[test]
#[ignore = "needs the testbed's guest"]
fn a_device_that_goes_and_returns() {
    let options = [&HELD_BACK[..], &["--transport", "prefer-rdma"]].concat();
    let stream = stream(STREAM_BYTES * 2, &address(RECEIVER), &options, &[]);
    stream.flowing();
    let start = Instant::now();
    let without = WithoutDevice::begin();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "removing the device took {took:?}");
    stream.send.line_with("continuing over TCP");
    std::thread::sleep(Duration::from_secs(2));
    drop(without);
    stream.send.line_with("RDMA is back");
    let (send, recv) = stream.well();
    for ended in [&send, &recv] {
        assert_eq!(transport(ended), "rdma-software+tcp");
        assert_eq!(times(ended, "continuing over TCP"), 1, "{}", ended.stderr);
        assert_eq!(times(ended, "RDMA is back"), 1, "{}", ended.stderr);
        assert!(ended.report()["retries"].as_u64() >= Some(1), "{}", ended.stderr);
        assert_eq!(ended.report()["bytes"], STREAM_BYTES as u64 * 2);
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn rdma_alone_ends_when_its_device_stays_away() {
    let options = [&HELD_BACK[..], &["--transport", "rdma", "--reconnect", "4"]].concat();
    let stream = stream(STREAM_BYTES, &address(RECEIVER), &options, &[]);
    stream.flowing();
    let without = WithoutDevice::begin();
    let start = Instant::now();
    let (send, recv, output, input) = stream.wait();
    assert!(start.elapsed() < Duration::from_secs(15), "both ended after {:?}", start.elapsed());
    send.expect(4);
    recv.expect(4);
    assert!(!output.is_empty() && output.len() < input.len(), "bytes flowed before: {}", output.len());
    same(&output, &input[..output.len()]);
    drop(without);
}

#[test]
#[ignore = "needs the testbed's guest"]
fn rdma_alone_goes_on_when_its_device_returns() {
    let options = [&HELD_BACK[..], &["--transport", "rdma"]].concat();
    let stream = stream(STREAM_BYTES, &address(RECEIVER), &options, &[]);
    stream.flowing();
    let without = WithoutDevice::begin();
    std::thread::sleep(Duration::from_secs(2));
    drop(without);
    let (send, recv) = stream.well();
    for ended in [&send, &recv] {
        assert_eq!(transport(ended), "rdma-software");
        assert!(ended.report()["retries"].as_u64() >= Some(1), "{}", ended.stderr);
    }
}

/// On its only host rxe talks to itself, whatever its link does.
#[test]
#[ignore = "needs the testbed's guest"]
fn siw_a_link_that_goes_down_and_up() {
    let options = [&HELD_BACK[..], &["--transport", "rdma"]].concat();
    let stream = stream(STREAM_BYTES, &address(RECEIVER), &options, &[]);
    stream.flowing();
    let partition = Partition::start(SENDER.into(), "silent");
    std::thread::sleep(Duration::from_secs(8));
    drop(partition);
    let (send, recv) = stream.well();
    assert!(send.report()["retries"].as_u64() >= Some(1), "{}", send.stderr);
    assert_eq!(recv.report()["bytes"], STREAM_BYTES as u64);
}

/// A second network between sender and receiver, with a separate adapter at each. Both networks are limited to a rate.
struct SecondAdapter;

impl SecondAdapter {
    const RATE: &str = "40mbit";

    fn add() -> Self {
        for host in [SENDER, RECEIVER] {
            Self::bed(&["rail", &host.to_string(), Self::RATE]);
            Self::bed(&["rate", &host.to_string(), Self::RATE]);
            let state = format!("/sys/class/infiniband/siw{host}-1/ports/1/state");
            shell(host, &format!("until grep -q ACTIVE {state}; do sleep 0.1; done"));
        }
        // The first neighbour request on a new network may go unanswered.
        let ask = "bash -c ': </dev/tcp/10.7.0.2/9' 2>/dev/null";
        shell(SENDER, &format!("until ip neigh show 10.7.0.2 | grep -q lladdr; do {ask}; sleep 0.1; done"));
        Self
    }

    fn bed(arguments: &[&str]) {
        let status = Command::new(std::env::var_os("RD_HOST").expect("the testbed's tool")).args(arguments).status();
        assert!(status.expect("the testbed's tool").success(), "{arguments:?}");
    }

    /// Sets the state of the second network: `silent`, `heal` or `link`.
    fn set(&self, how: &str) {
        Self::bed(&["rail", &RECEIVER.to_string(), how]);
    }
}

impl Drop for SecondAdapter {
    fn drop(&mut self) {
        for host in [SENDER, RECEIVER] {
            Self::bed(&["rail", &host.to_string(), "gone"]);
            Self::bed(&["rate", &host.to_string(), "10gbit"]);
        }
    }
}

const RDMA_ONLY: [&str; 2] = ["--transport", "rdma"];

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_two_adapters_carry_nearly_twice_as_much() {
    let _second = SecondAdapter::add();
    let took = |rails: &str, used: u64| {
        let options = [&RDMA_ONLY[..], &["--rails", rails]].concat();
        let (send, _) = stream(30 << 20, &address(RECEIVER), &options, &RDMA_ONLY).well();
        assert_eq!(
            (transport(&send).as_str(), send.report()["rails"].as_u64()),
            ("rdma-software", Some(used)),
            "{rails}"
        );
        send.report()["seconds"].as_f64().expect("a number")
    };
    // A busy machine slows the run with two adapters more than the run with one.
    let (mut tries, mut gained) = (Vec::new(), false);
    while !gained && tries.len() < 3 {
        let (one, two) = (took("1", 1), took("all", 2));
        gained = one >= 1.6 * two;
        tries.push((one, two));
    }
    assert!(gained, "seconds by one adapter, and by two: {tries:.2?}");
    took("auto", 2);
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_each_adapter_is_measured_by_itself_and_all_at_once() {
    let _second = SecondAdapter::add();
    let scratch = Scratch::new();
    let mut command = on(SENDER, PROGRAM);
    command.args([
        "rdperf",
        "rails",
        "2",
        "--transport",
        "rdma",
        "--qp",
        "1",
        "--json",
        "--agent",
        rig::AGENT,
        "--rsh",
    ]);
    let output = command.arg(launcher(&scratch)).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let ways = report["rails"]["ways"].as_array().expect("a list");
    let media: Vec<&str> = ways.iter().filter_map(|way| way["medium"].as_str()).collect();
    assert_eq!((ways.len(), &media[..]), (3, &["rdma-software"; 2][..]), "{report}");
    // Both networks are limited to the same rate.
    let gain = report["rails"]["gain"].as_f64().expect("a number");
    assert!((1.5..2.2).contains(&gain), "{report}");
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_an_adapter_that_fails_is_left_and_taken_back() {
    for how in ["silent", "link"] {
        let second = SecondAdapter::add();
        let options = [&RDMA_ONLY[..], &["-v", "--rails", "all"]].concat();
        let stream = stream(2 * STREAM_BYTES, &address(RECEIVER), &options, &RDMA_ONLY);
        let await_words = |word: &str, count: usize| {
            let start = Instant::now();
            while stream.send.stderr().matches(word).count() < count {
                assert!(start.elapsed() < LONG / 4, "{how}: not said: {word}; {}", stream.send.stderr());
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        await_words("RDMA connection: ", 2);
        stream.flowing();
        second.set(how);
        await_words("one of several networks stopped answering", 1);
        let left = stream.came.load(Ordering::Relaxed);
        let start = Instant::now();
        while stream.came.load(Ordering::Relaxed) == left {
            assert!(start.elapsed() < LONG / 4, "{how}: nothing goes on by the adapter that is left");
            std::thread::sleep(Duration::from_millis(20));
        }
        second.set("heal");
        await_words("a network is back", 1);
        let (send, _) = stream.well();
        assert_eq!(transport(&send), "rdma-software", "{how}");
        for word in ["one of several networks", "a network is back"] {
            assert_eq!(times(&send, word), 1, "{how}: {}", send.stderr);
        }
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_a_host_without_rdma() {
    const BARE: u8 = 4;
    let scratch = Scratch::new();
    let input = noise(1 << 20);
    let file = scratch.file("input", &input);
    let (mut recv, port) = recv_on(BARE, &[]);
    let output = drain(recv.stdout());
    let mut send = send_on(SENDER, &address(BARE), &port, &["--transport", "rdma"], &file);
    send.wait().expect(3).within(Duration::from_secs(12)).one_line("rdsend", &["has no RDMA device"]);
    let mut send = send_on(SENDER, &address(BARE), &port, &["--transport", "prefer-rdma"], &file);
    send.wait().expect(0).one_line("rdsend", &["no RDMA device", "using TCP"]);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}

/// Starts rdcp on host 1, which reaches hosts through the testbed's own tool.
fn rdcp_on_first(scratch: &Scratch, arguments: &[&str]) -> Process {
    let mut command = on(SENDER, PROGRAM);
    command.arg("rdcp");
    command.arg("--rsh").arg(launcher(scratch)).args(["--agent", rig::AGENT]).args(arguments);
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Makes a tree below the scratch directory.
fn plant_tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.join("tree");
    std::fs::create_dir_all(top.join("sub")).expect("a directory");
    for number in 0..100 {
        std::fs::write(top.join(format!("sub/small{number}")), noise(number * 41)).expect("room");
    }
    std::fs::write(top.join("large"), noise(12 << 20)).expect("room");
    top
}

#[track_caller]
fn is_copied(tree: &PathBuf, copy: &PathBuf) {
    let status = Command::new("diff").arg("-r").args([tree, copy]).status().expect("diff");
    assert!(status.success(), "{} is not {}", copy.display(), tree.display());
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_rdcp_copies_a_tree_over_rdma() {
    await_devices();
    let scratch = Scratch::new();
    let tree = plant_tree(&scratch);
    let path = |name: &str| scratch.join(name).display().to_string();
    for (number, (from, to)) in [("", "2:"), ("2:", ""), ("2:", "3:")].into_iter().enumerate() {
        let name = format!("copy{number}");
        let (from, to) = (format!("{from}{}", path("tree")), format!("{to}{}", path(&name)));
        let policy = if number == 1 { "rdma" } else { "prefer-rdma" };
        let mut process = rdcp_on_first(&scratch, &["-v", "--json-fd=2", "-r", "--transport", policy, &from, &to]);
        let ended = process.wait_for(LONG);
        ended.expect(0);
        let last = ended.stderr.lines().rfind(|line| line.starts_with('{')).expect("a report");
        assert!(last.contains("\"rdma-software"), "{from} {to}: {}", ended.stderr);
        is_copied(&tree, &scratch.join(&name));
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_rdcp_to_a_host_without_rdma() {
    await_devices();
    let scratch = Scratch::new();
    let tree = plant_tree(&scratch);
    let path = |name: &str| scratch.join(name).display().to_string();
    let to = format!("4:{}", path("copy"));
    let ended = rdcp_on_first(&scratch, &["-r", "--transport", "rdma", &path("tree"), &to]).wait_for(LONG);
    ended.expect(3).one_line("rdcp", &["has no RDMA device"]).within(Duration::from_secs(15));
    assert!(!scratch.join("copy").exists());
    let ended = rdcp_on_first(&scratch, &["-r", "--transport", "prefer-rdma", &path("tree"), &to]).wait_for(LONG);
    ended.expect(0).one_line("rdcp", &["no RDMA device on 4", "using TCP"]);
    is_copied(&tree, &scratch.join("copy"));
}

/// The hosts that get a tree from host 1, in the order of the chain. With soft-RoCE all of them are this host. With
/// soft-iWARP the last has no device.
const TARGETS: [&str; 3] = ["2", "3", "4"];

/// Returns a directory with a launcher that reaches these hosts, and a tree in it, of which one file is larger than the
/// memory for data on its way.
fn several() -> (Lab, PathBuf) {
    await_devices();
    let lab = Lab::new();
    if is_siw() {
        lab.script("rsh", "exec \"$RD_HOST\" exec \"$1\" sh -c \"exec $2\"");
    }
    let tree = plant_tree(&lab.0);
    std::fs::write(tree.join("large"), noise(STREAM_BYTES)).expect("room");
    (lab, tree)
}

/// Starts a copy of a tree to all of [`TARGETS`], each with its own directory, because the hosts share their file
/// systems.
fn start_rdcp_to_several(lab: &Lab, tree: &Path, options: &[&str]) -> Process {
    let mut command = on(SENDER, PROGRAM);
    command.arg("rdcp");
    let mut command = lab.command(command, "rsh", rig::AGENT);
    command.env("RDMA_PIPE_LOG", format!("debug:{}", lab.join("log").display()));
    command.args(["-r", "--json-fd=2", "--transport", "prefer-rdma"]).args(options).arg(tree);
    for host in TARGETS {
        std::fs::create_dir(lab.join(host)).expect("a directory");
        command.arg("--to").arg(lab.there(host, &format!("{host}/copy")));
    }
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Asserts that data came to a host from the host before it, over RDMA or, with `is_bare`, over TCP alone.
#[track_caller]
fn has_come(lab: &Lab, from: &str, host: &str, is_bare: bool) {
    let log = std::fs::read_to_string(lab.join("log")).expect("a log");
    let about = format!(" {host}  debug  from {from}: lane ");
    let lines = log.lines().filter(|line| line.contains(&about));
    let lanes: Vec<&str> = lines.filter_map(|line| Some(line.split_once(" is up: ")?.1)).collect();
    let is_rdma = |lane: &&str| lane.contains("(software)");
    assert!(!lanes.is_empty() && lanes.iter().any(is_rdma) != is_bare, "{from} to {host}: {lanes:?} in {log}");
}

/// Returns the last event of `--json`.
fn end_of(ended: &Ended) -> serde_json::Value {
    let line = ended.stderr.lines().rfind(|line| line.starts_with('{')).expect("a report");
    serde_json::from_str(line).expect("JSON")
}

/// Each hop of the chain uses the transport that its two ends have in common.
#[test]
#[ignore = "needs the testbed's guest"]
fn rdcp_to_several_hosts() {
    let (lab, tree) = several();
    let ended = start_rdcp_to_several(&lab, &tree, &[]).wait_for(LONG);
    ended.expect(0);
    TARGETS.iter().for_each(|host| is_copied(&tree, &lab.join(host).join("copy")));
    for (from, host) in [("this host", "2"), ("2", "3"), ("3", "4")] {
        has_come(&lab, from, host, is_siw() && host == "4");
    }
    let transport = if is_siw() { "rdma-software+tcp" } else { "rdma-software" };
    assert_eq!(end_of(&ended)["transport"], transport, "{}", ended.stderr);
    lab.all_gone(LONG);
}

/// The host behind a host that dies gets the rest from the host before it, over RDMA as well.
#[test]
#[ignore = "needs the testbed's guest"]
fn rdcp_to_several_hosts_of_which_one_dies() {
    let (lab, tree) = several();
    let mut process = start_rdcp_to_several(&lab, &tree, &["--bwlimit", "8MB"]);
    let start = Instant::now();
    while disk_bytes_below(&lab.join("3")) < 4 << 20 {
        assert!(process.is_running() && start.elapsed() < LONG, "nothing flows: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (agent, ..) = lab.launches().into_iter().find(|(_, host, _)| host == "2").expect("it was started");
    kill_process(Pid::from_raw(agent as i32).expect("not 0"), Signal::KILL).expect("it runs");
    let ended = process.wait_for(LONG);
    ended.expect(8);
    for said in ["lost the agent on 2", "1 of 3 hosts failed; 2 succeeded"] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    ["3", "4"].iter().for_each(|host| is_copied(&tree, &lab.join(host).join("copy")));
    assert!(!lab.join("2/copy").exists(), "half a tree under its name");
    has_come(&lab, "this host", "3", false);
    let transport = end_of(&ended)["transport"].as_str().expect("a string").to_owned();
    assert!(transport.starts_with("rdma-software"), "{transport}: {}", ended.stderr);
    lab.all_gone(LONG);
}

/// Runs a pipeline from host 1; `2:`, `3:` and `4:` are the other hosts.
fn rdpipe_on_first(scratch: &Scratch, arguments: &[&str], input: &[u8]) -> (Ended, Vec<u8>) {
    let mut command = on(SENDER, PROGRAM);
    command.arg("rdpipe");
    command.arg("--rsh").arg(launcher(scratch)).args(["--agent", rig::AGENT]).args(arguments);
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let fed = rig::feed(process.stdin(), input.to_vec());
    let output = drain(process.stdout());
    let ended = process.wait_for(LONG);
    fed.join().expect("no panic");
    (ended, output.join().expect("no panic"))
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_rdpipe_goes_over_rdma() {
    await_devices();
    let scratch = Scratch::new();
    let input = noise(12 << 20);
    let path = |name: &str| scratch.join(name).display().to_string();
    scratch.file("input", &input);
    let report = path("report");
    let json = format!("--json={report}");
    for policy in ["rdma", "prefer-rdma"] {
        // Between the three hosts with an adapter, back to the first of them, and from file to file.
        let stages = ["2:cat", "3:cat", "2:cat"];
        let (ended, output) =
            rdpipe_on_first(&scratch, &[&["--transport", policy, &json], &stages[..]].concat(), &input);
        ended.expect(0);
        same(&output, &input);
        assert_eq!(over_rdma(&report), 4, "{policy}");
        let (from, to) = (format!("2:< {}", path("input")), format!("3:> {}", path("copy")));
        let (ended, _) = rdpipe_on_first(&scratch, &["--transport", policy, &json, &from, &to], b"");
        ended.expect(0);
        same(&std::fs::read(path("copy")).expect("a copy"), &input);
        assert_eq!(over_rdma(&report), 1, "{policy}");
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_rdpipe_the_examples_of_the_original() {
    await_devices();
    let scratch = Scratch::new();
    let report = scratch.join("report").display().to_string();
    let json = format!("--json={report}");
    rig::examples::all(scratch.path(), ["2", "3", "2"], |words, input| {
        let ran = rdpipe_on_first(&scratch, &[&["--transport", "rdma", &json], words].concat(), input);
        assert!(over_rdma(&report) > 0, "{words:?}");
        ran
    });
}

/// Returns the number of hops in a report. All must have used RDMA, except hops whose stages ended
/// before they were connected.
#[track_caller]
fn over_rdma(report: &str) -> usize {
    let told: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(report).expect("a report")).expect("JSON");
    let hops = told["hops"].as_array().expect("hops");
    let by_rdma = |hop: &serde_json::Value| hop["transport"] == "rdma-software";
    let never_connected = |hop: &serde_json::Value| hop["transport"] == "" && hop["bytes"] == 0;
    assert!(hops.iter().all(|hop| by_rdma(hop) || never_connected(hop)), "{told}");
    hops.iter().filter(|hop| by_rdma(hop)).count()
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_rdpipe_to_a_host_without_rdma() {
    await_devices();
    let scratch = Scratch::new();
    let (ended, output) = rdpipe_on_first(&scratch, &["--transport", "rdma", "2:cat", "4:cat"], b"some input");
    ended.expect(3).within(Duration::from_secs(15));
    assert!(ended.stderr.contains("has no RDMA device"), "{}", ended.stderr);
    same(&output, b"");
    let input = noise(3 << 20);
    let (ended, output) = rdpipe_on_first(&scratch, &["--transport", "prefer-rdma", "2:cat", "4:cat"], &input);
    ended.expect(0);
    assert!(ended.stderr.contains("no RDMA device on 4"), "{}", ended.stderr);
    same(&output, &input);
}

#[test]
#[ignore = "needs the testbed's guest"]
fn a_signal_at_either_end() {
    for at_sender in [true, false] {
        let options = [&HELD_BACK[..], &["--transport", "rdma"]].concat();
        let stream = stream(STREAM_BYTES, &address(RECEIVER), &options, &[]);
        stream.flowing();
        let ended = if at_sender { &stream.send } else { &stream.recv };
        ended.signal(Signal::INT);
        let start = Instant::now();
        let (send, recv, ..) = stream.wait();
        assert!(start.elapsed() < Duration::from_secs(4), "both ended after {:?}", start.elapsed());
        let (here, there) = if at_sender { (send, recv) } else { (recv, send) };
        here.expect(130);
        there.expect(4);
    }
}

/// Runs both ends as an ordinary user with this limit on locked memory, in KiB.
fn with_memlock(limit_kib: u64, options: &[&str]) -> (Ended, Ended) {
    await_devices();
    let input = noise(6 << 20);
    // In a directory that the ordinary user can reach, unlike root's own.
    let file = PathBuf::from(format!("/dev/shm/rd-memlock-{limit_kib}"));
    std::fs::write(&file, &input).expect("room");
    let wrapped = |host: u8, program: &str| {
        let mut command = on(host, "prlimit");
        command.arg(format!("--memlock={0}:{0}", limit_kib << 10));
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        command.arg(program);
        command
    };
    let mut command = wrapped(RECEIVER, PROGRAM);
    command.arg("rdrecv");
    command
        .args(["--json-fd=2", "--wait", "20"])
        .args(options)
        .args(["0", KEY])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut recv = Process::spawn(&mut command);
    let port = recv.port().to_string();
    let mut pipe = recv.stdout();
    let mut command = wrapped(SENDER, PROGRAM);
    command.arg("rdsend");
    command.args(["--json-fd=2"]).args(options).args([&address(RECEIVER), &port, KEY]).arg(&file);
    let mut send = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let mut output = Vec::new();
    pipe.read_to_end(&mut output).expect("a pipe");
    let ends = (send.wait(), recv.wait());
    let _ = std::fs::remove_file(&file);
    if ends.0.code == 0 {
        same(&output, &input);
    }
    ends
}

#[test]
#[ignore = "needs the testbed's guest"]
fn locked_memory_that_does_not_suffice() {
    // The original program needed 16500 kB.
    let (send, recv) = with_memlock(16500, &["--transport", "rdma"]);
    for ended in [&send, &recv] {
        ended.expect(0);
        assert_eq!(transport(ended), "rdma-software");
        assert_eq!(times(ended, "/etc/security/limits.d/zz-rdma-pipe.conf"), 1, "{}", ended.stderr);
        assert_eq!(times(ended, "lets RDMA use"), 1, "{}", ended.stderr);
    }
    let (send, recv) = with_memlock(2048, &["--transport", "prefer-rdma"]);
    for ended in [&send, &recv] {
        ended.expect(0);
        assert_eq!(transport(ended), "tcp");
        assert_eq!(times(ended, "too small for RDMA"), 1, "{}", ended.stderr);
    }
    let (send, _recv) = with_memlock(2048, &["--transport", "rdma"]);
    send.expect(3);
    assert_eq!(times(&send, "too small for RDMA"), 1, "{}", send.stderr);
}
