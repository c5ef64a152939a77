//! `rdcp` with trees and large files between hosts with sshd: real trees there and back, copies that are killed
//! and resume where they stopped, and the remains of killed copies. `tests/run` makes the hosts, as root, and
//! runs these tests in them.

mod rig;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::network::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;

/// Maximum time for a large copy on a busy machine.
const LONG: Duration = Duration::from_secs(150);

/// Checks that two trees are alike: contents, modes, owners, times, links, attributes, ACLs.
#[track_caller]
fn alike(one: &Path, other: &Path) {
    let slashed = |path: &Path| format!("{}/", path.display());
    let mut rsync = Command::new("rsync");
    rsync.args(["-aHAXn", "--checksum", "--delete", "-i"]).args([slashed(one), slashed(other)]);
    let output = rsync.output().expect("rsync");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "rsync: {}", &text[..text.len().min(2000)]);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_real_tree_there_and_back() {
    let network = Network::start();
    let real = Path::new("/usr/include");
    assert!(fs::read_dir(real).expect("headers").count() > 50, "something to copy");
    let copy = |from: OsString, to: OsString| network.start_rdcp(&["-r".into(), from, to]).wait_for(LONG);
    copy(real.into(), network.at("h2", "there")).expect(0);
    alike(real, &network.path("there"));
    copy(network.at("h2", "there"), network.path("back").into()).expect(0);
    alike(real, &network.path("back"));
    // Between two other hosts, over an incomplete copy: missing and different files are sent again.
    fs::rename(network.path("back"), network.path("between")).expect("ours");
    fs::remove_file(network.path("between/stdio.h")).expect("a header");
    fs::write(network.path("between/stdlib.h"), b"wrong").expect("ours");
    copy(network.at("h2", "there/."), network.at("h3", "between")).expect(0);
    alike(real, &network.path("between"));
    all_gone(SOON);
}

/// Writes a file that does not compress.
fn plant(path: &Path, bytes: u64, seed: u64) {
    let (mut random, mut file) = (Random::new(seed), File::create(path).expect("a file"));
    let mut block = vec![0; MIB as usize];
    for _ in 0..bytes / MIB {
        random.fill(&mut block);
        file.write_all(&block).expect("room");
    }
}

/// Writes a file with this much data that does not compress. Three of every four MiB are holes.
fn plant_sparse(path: &Path, bytes: u64, seed: u64) {
    let (mut random, file) = (Random::new(seed), File::create(path).expect("a file"));
    let mut block = vec![0; MIB as usize];
    for number in 0..bytes / MIB {
        random.fill(&mut block);
        // No page and no block begins there.
        file.write_all_at(&block, number * 4 * MIB + 5).expect("room");
    }
    file.set_len(bytes * 4).expect("a length");
}

#[track_caller]
fn equal(one: &Path, other: &Path) {
    let status = Command::new("cmp").args([one, other]).status().expect("cmp");
    assert!(status.success(), "{} and {} differ", one.display(), other.display());
}

/// Returns the partial file in a directory. There may be only one.
fn partial(directory: &Path) -> Option<(PathBuf, u64)> {
    let mut all = partials(directory);
    assert!(all.len() < 2, "one partial file: {all:?}");
    all.pop()
}

/// Returns the number of bytes that a host has sent on its interface.
fn sent(host: u32) -> u64 {
    let mut cat = Command::new("ip");
    cat.args(["-s", "-j", "link", "show", "e0"]);
    let output = on(host, &cat).output().expect("ip");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    json[0]["stats64"]["tx"]["bytes"].as_u64().expect("a number")
}

/// The process that is killed.
#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Caller,
    Agent,
}

/// Copies `big` to host 2 over an older `target`, and kills the victim when three quarters have arrived. Returns the
/// partial file that is left, and the number of bytes in it.
#[track_caller]
fn killed_at_three_quarters(network: &Network, bytes: u64, rate: &str, victim: Victim) -> (PathBuf, u64) {
    let target = network.scratch.file("target", b"old");
    let old_inode = fs::metadata(&target).expect("it").ino();
    let arguments = ["--bwlimit".into(), rate.into(), network.path("big").into(), network.at("h2", "target")];
    let mut process = network.start_rdcp(&arguments);
    let until = Instant::now() + LONG;
    while partial(network.scratch.path()).is_none_or(|(_, there)| there < bytes / 4 * 3) {
        assert!(process.is_running(), "it ended before it was killed: {}", process.stderr());
        assert!(Instant::now() < until, "nothing flows: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(2));
    }
    match victim {
        Victim::Caller => process.signal(Signal::KILL),
        Victim::Agent => {
            let agents = running_agents();
            assert_eq!(agents.len(), 1);
            kill_process(Pid::from_raw(agents[0] as i32).expect("not 0"), Signal::KILL).expect("an agent");
        }
    }
    let ended = process.wait();
    ended.expect(if victim == Victim::Caller { 137 } else { 4 });
    all_gone(GONE);
    assert_eq!(fs::read(&target).expect("it"), b"old");
    assert_eq!(fs::metadata(&target).expect("it").ino(), old_inode, "the old file is the same one");
    let (path, kept) = partial(network.scratch.path()).expect("the partial file stays");
    assert!(kept >= bytes / 4 * 3 && kept <= bytes, "{kept}");
    (path, kept)
}

/// Copies `big` again, and returns the number of bytes that host 1 sent for it.
#[track_caller]
fn again(network: &Network, options: &[&str]) -> u64 {
    let mut arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
    arguments.extend([network.path("big").into(), network.at("h2", "target")]);
    let before = sent(1);
    network.start_rdcp(&arguments).wait_for(LONG).expect(0);
    let sent = sent(1) - before;
    equal(&network.path("big"), &network.path("target"));
    assert!(partial(network.scratch.path()).is_none(), "nothing is left beside it");
    sent
}

/// Checks that no more was sent than the missing part, 64 MiB, and 2 % for headers.
#[track_caller]
fn is_little(sent: u64, bytes: u64, kept: u64) {
    let most = bytes - kept + 64 * MIB + bytes / 50;
    assert!(most < bytes, "the bound says something");
    assert!(sent <= most, "{sent} bytes were sent where {kept} of {bytes} were there");
    // Otherwise the counter would not work.
    assert!(sent + 16 * MIB >= bytes - kept, "{sent} bytes were sent where {kept} of {bytes} were there");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_killed_copy_goes_on_where_it_stopped() {
    let network = Network::start();
    let bytes = 256 * MIB;
    plant(&network.path("big"), bytes, 1);
    for victim in [Victim::Caller, Victim::Agent] {
        let (_, kept) = killed_at_three_quarters(&network, bytes, "100M", victim);
        is_little(again(&network, &[]), bytes, kept);
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_killed_copy_of_a_file_with_holes_goes_on_and_keeps_them() {
    let network = Network::start();
    let bytes = 192 * MIB;
    plant_sparse(&network.path("big"), bytes, 5);
    let (path, kept) = killed_at_three_quarters(&network, bytes, "100M", Victim::Agent);
    // The source has a hole there.
    let partial = OpenOptions::new().write(true).open(path).expect("the partial file");
    partial.write_all_at(&[b'x'; 4096], 2 * MIB).expect("ours");
    drop(partial);
    is_little(again(&network, &[]), bytes, kept);
    let [source, copy] = ["big", "target"].map(|name| fs::metadata(network.path(name)).expect("it").blocks() * 512);
    assert!(copy <= source + 4 * MIB, "{copy} bytes of the disk instead of {source}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn what_a_killed_copy_had_finished_is_not_sent_again() {
    let network = Network::start();
    let (bytes, count) = (128 * MIB, 3);
    let (from, to) = (network.path("models"), network.path("there"));
    fs::create_dir(&from).expect("ours");
    for number in 0..count {
        plant(&from.join(number.to_string()), bytes, number);
    }
    let copy = || {
        let before = sent(1);
        network.start_rdcp(&["-rT".into(), from.clone().into(), network.at("h2", "there")]).wait_for(LONG).expect(0);
        for number in 0..count {
            equal(&from.join(number.to_string()), &to.join(number.to_string()));
        }
        sent(1) - before
    };
    assert!(copy() >= count * bytes);
    let again = copy();
    assert!(again < 8 * MIB, "{again} bytes were sent though nothing had changed");
    // One file with the same size and time but a different byte, and one that was not finished.
    let file = File::options().write(true).open(to.join("1")).expect("ours");
    let times = fs::FileTimes::new().set_modified(file.metadata().expect("it").modified().expect("a time"));
    file.write_all_at(b"x", 40 * MIB).expect("ours");
    file.set_times(times).expect("ours");
    fs::remove_file(to.join("2")).expect("ours");
    let again = copy();
    assert!((bytes..bytes + 40 * MIB).contains(&again), "{again}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_partial_file_is_checked_and_never_trusted() {
    let network = Network::start();
    let bytes = 192 * MIB;
    plant(&network.path("big"), bytes, 2);
    let rewrite = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect("the partial file");

    // One bit, in the middle of the data that has arrived.
    let (path, kept) = killed_at_three_quarters(&network, bytes, "100M", Victim::Agent);
    let (file, mut byte) = (rewrite(&path), [0]);
    file.read_exact_at(&mut byte, 40 * MIB + 5).expect("it is there");
    file.write_all_at(&[byte[0] ^ 1], 40 * MIB + 5).expect("ours");
    drop(file);
    is_little(again(&network, &[]), bytes, kept);

    let (path, _) = killed_at_three_quarters(&network, bytes, "100M", Victim::Caller);
    rewrite(&path).set_len(100 * MIB + 7).expect("ours");
    is_little(again(&network, &[]), bytes, 100 * MIB);

    let (path, kept) = killed_at_three_quarters(&network, bytes, "100M", Victim::Agent);
    rewrite(&path).write_all_at(&vec![b'x'; 3 * MIB as usize], bytes).expect("ours");
    is_little(again(&network, &[]), bytes, kept);

    // Different contents of the same size, with the same times.
    killed_at_three_quarters(&network, bytes, "100M", Victim::Agent);
    let times = fs::metadata(network.path("big")).expect("it").modified().expect("a time");
    plant(&network.path("big"), bytes, 3);
    let big = File::options().write(true).open(network.path("big")).expect("ours");
    big.set_times(fs::FileTimes::new().set_modified(times)).expect("ours");
    let sent = again(&network, &[]);
    assert!(sent >= bytes, "all of it is new: {sent}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_killed_copy_goes_on_in_other_chunks_and_lanes() {
    let network = Network::start();
    let bytes = 192 * MIB;
    plant(&network.path("big"), bytes, 4);
    for options in [&["--buffer", "256K"][..], &["--buffer", "4M", "--lanes", "1"]] {
        let (_, kept) = killed_at_three_quarters(&network, bytes, "100M", Victim::Agent);
        is_little(again(&network, options), bytes, kept);
    }
}

/// Returns names and new contents of a tree whose copy takes some seconds at [`TREE_RATE`].
fn tree() -> Vec<(String, Vec<u8>)> {
    let small = (0..300).map(|number| (format!("m/small{number:03}"), noise(2000 + number)));
    let large = ["a", "z"].into_iter().map(|name| (name.to_owned(), noise(24 * CHUNK + name.len())));
    small.chain(large).collect()
}

const TREE_RATE: &str = "8M";

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn what_ends_a_copy_of_a_tree_leaves_no_process_and_no_half_file() {
    let network = Network::start();
    let contents = tree();
    let old = |name: &str| format!("old {name}").into_bytes();
    for top in ["tree", "target"] {
        fs::create_dir_all(network.path(top).join("m")).expect("a directory");
    }
    for (name, bytes) in &contents {
        fs::write(network.path("tree").join(name), bytes).expect("ours");
    }
    let target = network.path("target");
    // Starts a copy over an older tree, and waits until some of it has arrived.
    let start = |from: &OsString, to: &OsString| {
        let mut inodes = Vec::new();
        for directory in [target.clone(), target.join("m")] {
            for entry in fs::read_dir(directory).expect("ours").flatten().filter(|entry| entry.path().is_file()) {
                fs::remove_file(entry.path()).expect("ours");
            }
        }
        for (name, _) in &contents {
            fs::write(target.join(name), old(name)).expect("ours");
            inodes.push(fs::metadata(target.join(name)).expect("ours").ino());
        }
        let mut process =
            network.start_rdcp(&["--bwlimit".into(), TREE_RATE.into(), "-r".into(), from.clone(), to.clone()]);
        let until = Instant::now() + PATIENCE;
        while partials(&target).iter().all(|(_, there)| *there < 2 * CHUNK as u64) {
            assert!(process.is_running() && Instant::now() < until, "nothing flows: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        (process, inodes)
    };
    // Each file is either the unchanged old file, with the same inode, or the complete new one.
    let is_sound = |inodes: &[u64]| {
        let mut left = 0;
        for ((name, new), inode) in contents.iter().zip(inodes) {
            let (path, there) = (target.join(name), fs::read(target.join(name)).expect("it is there"));
            if there == old(name) {
                assert_eq!(fs::metadata(path).expect("it").ino(), *inode, "{name} was made anew");
                left += 1;
            } else {
                assert!(there == *new, "{name} is neither old nor new: {} bytes", there.len());
            }
        }
        assert!(left > 0, "it was ended in the middle");
    };
    let source: OsString = network.path("tree/.").into();
    let flows = [
        (source, network.at("h2", "target"), 1),
        (network.at("h2", "tree/."), network.at("h3", "target"), 2),
        (network.at("h2", "tree/."), network.path("target").into(), 1),
    ];
    for (from, to, agents) in &flows {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, 137)] {
            let (mut process, inodes) = start(from, to);
            let began = Instant::now();
            process.signal(signal);
            process.wait_for(GONE).expect(code);
            all_gone_since(began, GONE);
            is_sound(&inodes);
        }
        for victim in 0..*agents {
            let (mut process, inodes) = start(from, to);
            let mut running = running_agents();
            running.sort_unstable();
            assert_eq!(running.len(), *agents, "an agent for each remote end");
            let began = Instant::now();
            kill_process(Pid::from_raw(running[victim] as i32).expect("not 0"), Signal::KILL).expect("an agent");
            let ended = process.wait_for(GONE);
            ended.expect(4);
            all_gone_since(began, GONE);
            is_sound(&inodes);
        }
    }
}
