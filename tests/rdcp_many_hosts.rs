//! `rdcp` to eight hosts with sshd, over links of limited rate. Hosts die, are cut off, stop, become slow, or have a full
//! disk at random moments. The others get equal trees, and each failed host is named. `tests/run` makes the hosts, as root, and
//! runs these tests in them. Elsewhere they are not run.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::network::*;
use rig::seeds::seeds;
use rig::*;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// The hosts that get the tree. Host 1 has the source and the caller.
const TARGETS: std::ops::RangeInclusive<u32> = 2..=9;

/// Value of `--stall` in these tests.
const STALL: Duration = Duration::from_secs(2);

/// Rate of each link, size of the tree, and time that the tree then takes.
const RATE: &str = "100mbit";
const TREE_BYTES: usize = 24 << 20;
const FLOWS: Duration = Duration::from_millis(2100);

/// Of this many faults at random moments or more, at least half must strike before the end.
const TIMED_MIN: u32 = 5;

/// Rate of the link of a slow host, and how long it is slow. The rest of the tree would take much longer.
const SLOW_RATE: &str = "10mbit";
const SLOW_FOR: Duration = Duration::from_secs(3);

/// What happens to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    CutOff,
    Stopped,
    /// The host's disk has room for this many MiB, which are less than the tree.
    FullDisk(u64),
    /// The host's link is slow for a while. That fails nobody.
    Slow,
}

impl Fault {
    fn of(seed: u64, random: &mut Random) -> Self {
        match seed % 5 {
            0 => Self::Killed,
            1 => Self::CutOff,
            2 => Self::Stopped,
            3 => Self::FullDisk(1 + random.below((TREE_BYTES >> 20) as u64 - 1)),
            _ => Self::Slow,
        }
    }

    /// Whether the host fails if, and only if, the fault strikes before the end.
    fn is_timed(self) -> bool {
        !matches!(self, Self::FullDisk(_) | Self::Slow)
    }
}

/// A stopped process, which is continued when the value is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Makes nine hosts, and a tree on the first.
fn network() -> Network {
    let network = Network::of(*TARGETS.end());
    (1..=*TARGETS.end()).for_each(|host| hold(host, RATE));
    let top = network.path("src");
    fs::create_dir_all(top.join("sub/empty")).expect("directories");
    for number in 0..200 {
        fs::write(top.join(format!("sub/small{number}")), noise(number * 11)).expect("a file");
    }
    for name in ["one", "two"] {
        fs::write(top.join(name), noise(TREE_BYTES / 2)).expect("a file");
    }
    symlink("sub/small9", top.join("link")).expect("a link");
    network
}

fn place(host: u32) -> String {
    format!("at{host}")
}

/// Starts `rdcp -r` of the tree to all hosts, each with its own directory, because the hosts share their file systems.
fn start(network: &Network, options: &[&str]) -> Process {
    let mut arguments: Vec<OsString> = vec!["-r".into(), format!("--stall={}", STALL.as_secs()).into()];
    arguments.extend(options.iter().map(OsString::from));
    arguments.push(network.path("src").into());
    for host in TARGETS {
        let to = network.at(&format!("h{host}"), &format!("{}/copy", place(host)));
        if host > *TARGETS.start() {
            arguments.push("--to".into());
        }
        arguments.push(to);
    }
    network.start_rdcp(&arguments)
}

/// Removes all copies, and makes the directories anew.
fn clean(network: &Network) {
    for host in TARGETS {
        let _ = fs::remove_dir_all(network.path(&place(host)));
        fs::create_dir(network.path(&place(host))).expect("a directory");
    }
}

/// Returns the differences between the tree and a host's copy.
fn differs(network: &Network, host: u32) -> Option<String> {
    let copy = network.path(&format!("{}/copy", place(host)));
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).arg(network.path("src")).arg(copy).output();
    let told = diff.expect("diff");
    let text = [told.stdout, told.stderr].concat();
    (!told.status.success()).then(|| format!("h{host}: {}", String::from_utf8_lossy(&text)))
}

fn wait_until(what: &str, process: &mut Process, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(process.is_running() && Instant::now() < until, "no {what}: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn eight_hosts_get_what_the_source_sends_once() {
    let network = network();
    clean(&network);
    let tree_bytes = (TREE_BYTES + (0..200).map(|number| number * 11).sum::<usize>()) as f64;
    let crossed = || (1..=*TARGETS.end()).map(crossed).collect::<Vec<u64>>();
    let before = crossed();
    start(&network, &[]).wait().expect(0);
    let carried = std::iter::zip(crossed(), before).map(|(now, before)| (now - before) as f64 / tree_bytes);
    let mut shares: Vec<f64> = carried.collect();
    assert_eq!(TARGETS.filter_map(|host| differs(&network, host)).collect::<Vec<_>>(), [""; 0]);
    eprintln!("the links carried these shares of the bytes, the source's first: {shares:.3?}");
    assert!(shares[0] <= 1.03, "on the source's link: {shares:.3?}");
    // One host is the last. The others receive the tree, and send it.
    shares[1..].sort_by(f64::total_cmp);
    assert!(shares[1] <= 1.03 && shares[2..].iter().all(|share| *share <= 2.06), "{shares:.3?}");
    all_gone(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn those_that_are_left_have_it_all() {
    let network = network();
    let (mut timed, mut struck) = (0, 0);
    for seed in seeds("rdcp_many_hosts", 1..9, 200) {
        let mut random = Random::new(seed);
        let fault = Fault::of(seed, &mut random);
        let host = *TARGETS.start() + random.below(8) as u32;
        let after = Duration::from_millis(random.below(FLOWS.as_millis() as u64));
        eprintln!("RD_SEED={seed}: h{host} {fault:?} after {after:?}");
        let has_struck = case(&network, fault, host, after);
        if fault.is_timed() {
            timed += 1;
            struck += u32::from(has_struck);
        }
    }
    eprintln!("{struck} of {timed} hosts failed before they had the tree");
    assert!(timed < TIMED_MIN || 2 * struck >= timed, "only {struck} of {timed} faults were in time");
}

/// Makes a fault, and checks what becomes of the copies. Returns false if all hosts had the tree before the fault.
fn case(network: &Network, fault: Fault, host: u32, after: Duration) -> bool {
    clean(network);
    let disk = match fault {
        Fault::FullDisk(mib) => Some(SmallDisk::mount(host, &network.path(&place(host)), mib)),
        _ => None,
    };
    let before = crossed(1);
    let mut process = start(network, &[]);
    // Waits for the stream, which begins once all hosts are there. Logins transfer far less.
    wait_until("flow", &mut process, || crossed(1) > before + (1 << 20));
    let agent = agent_on(host).expect("an agent");
    std::thread::sleep(after);
    let (mut partition, mut stopped) = (None, None);
    let send = |signal| match kill_process(agent, signal) {
        // The agent may have finished by then.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("the agent of h{host}: {error}"),
    };
    match fault {
        Fault::Killed => send(Signal::KILL),
        Fault::CutOff => partition = Some(Partition::start(host, "silent")),
        Fault::Stopped => {
            send(Signal::STOP);
            stopped = Some(Stopped(agent));
        }
        Fault::FullDisk(_) => {}
        Fault::Slow => {
            hold(host, SLOW_RATE);
            std::thread::sleep(SLOW_FOR);
            hold(host, RATE);
        }
    }
    let since = Instant::now();
    let ended = process.wait();
    eprintln!("ended {:.1} s later with {}: {}", since.elapsed().as_secs_f64(), ended.code, ended.stderr.trim());
    drop((partition, stopped));
    if fault == Fault::Slow {
        ended.expect(0);
    }
    if ended.code == 0 && disk.is_none() {
        assert_eq!(TARGETS.filter_map(|at| differs(network, at)).collect::<Vec<_>>(), [""; 0]);
        all_gone(GONE);
        return false;
    }
    ended.expect(8);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("1 of 8 hosts failed; 7 succeeded"), "{}", ended.stderr);
    let words = match fault {
        Fault::FullDisk(_) => "No space left on device",
        Fault::Killed => "lost the agent",
        Fault::CutOff | Fault::Stopped => "it no longer answers",
        Fault::Slow => unreachable!("it fails nobody"),
    };
    let name = format!("h{host}");
    let is_named = |line: &str| line.contains(&name) && line.contains(words);
    assert!(ended.stderr.lines().any(is_named), "{}", ended.stderr);
    let wrong: Vec<String> = TARGETS.filter(|&at| at != host).filter_map(|at| differs(network, at)).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {}", ended.stderr);
    all_gone(GONE);
    match disk {
        // As after any failed copy, data that can be resumed from is kept, under another name.
        Some(disk) => assert!(!disk.names().lines().any(|name| !name.ends_with(".rd-part")), "{}", disk.names()),
        None => {
            let copy = network.path(&format!("{}/copy", place(host)));
            assert!(!copy.exists() || differs(network, host).is_none(), "half a tree under its name");
        }
    }
    true
}
