//! Memory does not grow with a tree, neither at the end that reads nor at the end that writes, whether its
//! entries are in one directory, in many, nested, or have several names. An agent's memory does not grow with
//! the number of hosts either.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::*;

/// Maximum memory in KiB that a larger tree may take beyond a small one, at either end. Without a bound the larger
/// trees would take twice as much.
const GROWTH_KIB_MAX: u64 = 6 << 10;

/// Maximum time for a copy of the larger trees on a busy machine: half of what `make test` gives all tests here.
const LONG: Duration = Duration::from_secs(300);

/// Makes this many entries in a directory.
type Make = fn(&Path, u64);

/// Returns a name of almost the maximum length.
fn name(number: u64) -> String {
    format!("{number:0>200}")
}

fn flat(directory: &Path, entries: u64) {
    for number in 0..entries {
        fs::write(directory.join(name(number)), b"").expect("a file");
    }
}

/// Makes files with two names each, far from each other.
fn linked(directory: &Path, entries: u64) {
    for part in ["a", "b"] {
        fs::create_dir(directory.join(part)).expect("a directory");
    }
    flat(&directory.join("a"), entries / 2);
    for number in 0..entries / 2 {
        let (first, second) = (directory.join("a").join(name(number)), directory.join("b").join(name(number)));
        fs::hard_link(first, second).expect("linked");
    }
}

/// Makes as many directories as `entries` says, nested as deep as possible.
fn deep(directory: &Path, entries: u64) {
    for chain in 0..entries / 400 {
        let mut path = directory.join(chain.to_string());
        (0..400).for_each(|_| path.push("d"));
        fs::create_dir_all(path).expect("directories");
    }
}

fn there(path: &Path) -> OsString {
    let mut text = OsString::from("h:");
    text.push(path);
    text
}

/// Returns the peak memory of a process in KiB; 0 once it has ended.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Calls `look` every few milliseconds until a copy has ended well. Fails after [`LONG`].
#[track_caller]
fn watched(mut process: Process, mut look: impl FnMut(&Process)) {
    let start = Instant::now();
    while process.is_running() {
        assert!(start.elapsed() < LONG, "still running after {LONG:?}: {}", process.stderr());
        look(&process);
        std::thread::sleep(Duration::from_millis(5));
    }
    process.wait().expect(0);
}

/// Copies twice. Returns the peak memory of the command and of its agent, in KiB.
fn peaks(make: Make, entries: u64, push: bool) -> [u64; 2] {
    let (lab, scratch) = (Lab::new(), tempfile::TempDir::new_in("/dev/shm").expect("a directory"));
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).expect("a directory");
    make(&from, entries);
    // The contents of the directory.
    let from = from.join("");
    let mut peaks = [0; 2];
    for round in 0..2 {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--sync", "--delete", "--buffer", "4M"]);
        match push {
            true => command.arg(from.as_os_str()).arg(there(&to)),
            false => command.arg(there(&from)).arg(&to),
        };
        watched(Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())), |process| {
            let agent = lab.launches().get(round).map(|(pid, ..)| *pid);
            for (peak, pid) in peaks.iter_mut().zip([Some(process.pid()), agent]) {
                *peak = (*peak).max(pid.map_or(0, peak_kib));
            }
        });
    }
    peaks
}

#[track_caller]
fn memory_does_not_grow(cases: [(&str, Make); 2], push: bool) {
    for (what, make) in cases {
        let (small, large) = (peaks(make, 60_000, push), peaks(make, 160_000, push));
        println!("{what}, push {push}: {small:?} KiB, then {large:?} KiB");
        for (small, large) in small.into_iter().zip(large) {
            assert!(small > 1000 && large < small + GROWTH_KIB_MAX, "{what}, push {push}: {small}, {large} KiB");
        }
    }
}

#[test]
fn memory_does_not_grow_with_a_tree_that_is_sent() {
    memory_does_not_grow([("flat", flat), ("linked", linked)], true);
}

#[test]
fn memory_does_not_grow_with_a_tree_that_is_fetched() {
    memory_does_not_grow([("flat", flat), ("deep", deep)], false);
}

/// A hundred times as many files in one directory as in the small tree. Needs two million inodes in /dev/shm.
#[test]
#[ignore = "makes two million files: make test-long"]
fn memory_does_not_grow_with_a_million_entries() {
    for push in [true, false] {
        let (small, large) = (peaks(flat, 10_000, push), peaks(flat, 1_000_000, push));
        println!("push {push}: {small:?} KiB, then {large:?} KiB");
        for (small, large) in small.into_iter().zip(large) {
            assert!(small > 1000 && large < small + GROWTH_KIB_MAX, "push {push}: {small}, {large} KiB");
        }
    }
}

/// Returns an agent's peak memory, in KiB, while a small tree is copied to this many hosts.
fn peak_among(hosts: usize) -> u64 {
    let (lab, scratch) = (Lab::new(), tempfile::TempDir::new_in("/dev/shm").expect("a directory"));
    let from = scratch.path().join("from");
    fs::create_dir(&from).expect("a directory");
    (0..200).for_each(|number| fs::write(from.join(number.to_string()), noise(4096)).expect("a file"));
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--buffer", "4M"]).arg(&from);
    for host in 1..=hosts {
        let there = format!("h{host}:{}", scratch.path().join(host.to_string()).display());
        command.args(if host == 1 { &[][..] } else { &["--to"] }).arg(there);
    }
    let mut peaks = std::collections::BTreeMap::new();
    watched(Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())), |_| {
        for (pid, ..) in lab.launches() {
            let peak: &mut u64 = peaks.entry(pid).or_default();
            *peak = (*peak).max(peak_kib(pid));
        }
    });
    assert_eq!(peaks.len(), hosts);
    peaks.into_values().max().unwrap_or(0)
}

/// An agent's memory does not grow with the number of hosts that get a tree.
#[test]
#[ignore = "starts 64 agents: make test-long"]
fn memory_of_an_agent_does_not_grow_with_hosts() {
    let (few, many) = (peak_among(8), peak_among(64));
    println!("8 hosts: {few} KiB, 64 hosts: {many} KiB");
    assert!(few > 1000 && many * 10 <= few * 11, "{few} KiB with 8 hosts, {many} KiB with 64");
}
