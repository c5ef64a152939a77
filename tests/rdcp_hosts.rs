//! `rdcp` between hosts with sshd: the path of the data, hosts that cannot be reached, and ssh connections that are
//! cut. `tests/run` makes the hosts, as root, and runs these tests in them. Elsewhere they are not run.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::network::*;
use rig::*;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn both_ways_and_encrypted() {
    let network = Network::start();
    let bytes = noise(4 * CHUNK + 1);
    network.scratch.file("source", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    let up = network.rdcp(&["-v".into(), here("source"), network.at("h2", "up")]);
    assert!(up.expect(0).stderr.contains("data: tcp 10.9.0.1:") && up.stderr.contains(", encrypted"), "{}", up.stderr);
    network.holds("up", &bytes);
    let down = network.rdcp(&["-v".into(), network.at("h2", "source"), here("down")]);
    assert!(down.expect(0).stderr.contains("10.9.0.2:") && down.stderr.contains(", encrypted"), "{}", down.stderr);
    network.holds("down", &bytes);
    // Through an IPv6 address, in brackets.
    let to = format!("root@[fd00:9::3]:{}", network.path("six").display());
    network.rdcp(&[here("source"), to.into()]).expect(0);
    network.holds("six", &bytes);
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn between_two_others_the_data_does_not_pass_here() {
    let network = Network::start();
    let bytes = noise(48 * CHUNK);
    network.scratch.file("source", &bytes);
    let before = crossed(1);
    let ended = network.rdcp(&["-v".into(), network.at("h2", "source"), network.at("h3", "copy")]);
    let passed = crossed(1) - before;
    assert!(ended.expect(0).stderr.contains("10.9.0.2:") && ended.stderr.contains("10.9.0.3:"), "{}", ended.stderr);
    network.holds("copy", &bytes);
    assert!(passed < 2 << 20, "{passed} bytes passed the caller's host");
    // With --relay the data passes, which shows that the counter works.
    let before = crossed(1);
    network.rdcp(&["--relay".into(), network.at("h2", "source"), network.at("h3", "relayed")]).expect(0);
    network.holds("relayed", &bytes);
    assert!(crossed(1) - before > 2 * bytes.len() as u64);
    // Source and destination on one host: the data does not cross the network.
    let before = crossed(2);
    network.rdcp(&[network.at("h2", "source"), network.at("h2", "again")]).expect(0);
    network.holds("again", &bytes);
    assert!(crossed(2) - before < 2 << 20);
    all_gone(SOON);
}

/// A limit changes how fast an entry is copied, not whether.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_low_limit_lets_large_metadata_through() {
    let network = Network::start();
    fs::create_dir(network.path("tree")).expect("a directory");
    let target = "x".repeat(4094);
    std::os::unix::fs::symlink(&target, network.path("tree/link")).expect("a link");
    network.scratch.file("tree/file", b"small");
    // Not all file systems keep this much for a file.
    let (name, value) = ("trusted.large", vec![7; 20_000]);
    let is_kept = setxattr(network.path("tree/file"), name, &value, XattrFlags::empty()).is_ok();
    let from = network.path("tree").into_os_string();
    network.rdcp(&["-r".into(), "--bwlimit".into(), "50K".into(), from, network.at("h2", "copy")]).expect(0);
    assert_eq!(fs::read_link(network.path("copy/link")).expect("a link"), Path::new(&target));
    network.holds("copy/file", b"small");
    if is_kept {
        let mut found = vec![0; value.len()];
        assert_eq!(getxattr(network.path("copy/file"), name, &mut found[..]), Ok(value.len()));
        assert_eq!(found, value);
    }
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn from_several_hosts_to_another() {
    let network = Network::start();
    for name in ["one", "two", "three"] {
        network.scratch.file(name, name.as_bytes());
    }
    fs::create_dir(network.path("into")).expect("a directory");
    let here = network.path("one").into_os_string();
    let ended = network.rdcp(&[here, network.at("h2", "two"), network.at("h3", "three"), network.at("h4", "into")]);
    ended.expect(0);
    for name in ["one", "two", "three"] {
        network.holds(&format!("into/{name}"), name.as_bytes());
    }
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn hosts_that_ssh_does_not_reach() {
    let network = Network::start();
    network.scratch.file("source", b"1");
    let here = network.path("source").into_os_string();
    let to = network.at("no-such-host.invalid", "x");
    network.rdcp(&[here.clone(), to]).expect(3).one_line("rdcp", &["no-such-host.invalid", "resolve"]);
    let to = network.at("h2", "x");
    let ended = network.rdcp(&["-P".into(), "23".into(), here.clone(), to.clone()]);
    ended.expect(3).one_line("rdcp", &["h2", "refused"]).within(GONE);
    // A key that the host does not know.
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(network.path("other_key"));
    assert!(keygen.status().expect("ssh-keygen").success());
    let config = fs::read_to_string(network.path("ssh_config")).expect("it");
    let other = config.replace("user_key", "other_key");
    network.scratch.file("ssh_config", other.as_bytes());
    network.rdcp(&[here.clone(), to.clone()]).expect(3).one_line("rdcp", &["h2", "denied"]).within(GONE);
    network.scratch.file("ssh_config", config.as_bytes());
    let mut command = rdcp();
    command.arg("-F").arg(network.path("ssh_config")).args(["--agent", "/nonexistent/agent"]).args([&here, &to]);
    let ended = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(3).one_line("rdcp", &["h2 has no", "--agent"]).within(GONE);
    assert!(!network.path("x").exists());
    all_gone(SOON);
}

/// As after a fresh build of the program: the other host has no part of it.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_tree_to_a_host_with_nothing_but_ssh() {
    let network = Network::start();
    for number in 0..300 {
        let directory = network.path(&format!("tree/{}", number % 7));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(number.to_string()), noise(1000 * number)).expect("a file");
    }
    let copy = |to: &str| {
        let mut command = rdcp();
        command.arg("-F").arg(network.path("ssh_config")).arg("-r").arg(network.path("tree")).arg(network.at("h2", to));
        let ended = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait();
        let same = Command::new("diff").arg("-r").arg(network.path("tree")).arg(network.path(to)).status();
        assert!(same.expect("diff").success(), "{}", ended.stderr);
        eprintln!("{to}: {:?}", ended.after);
        ended
    };
    copy("first")
        .expect(0)
        .one_line("rdcp", &["copied rdma-pipe-agent (", " MB) to h2"])
        .within(Duration::from_secs(60));
    assert_eq!(copy("second").expect(0).stderr, "", "it is there now");
    let cached = fs::read_dir(network.path("home/.cache/rdma-pipe")).expect("a cache").count();
    assert_eq!(cached, 1);
    lab::none_marked(network.scratch.path(), GONE);
    // If the caller is killed during the upload, nothing of it stays.
    let names = || -> Vec<String> {
        let entries = fs::read_dir(network.path("home/.cache/rdma-pipe")).expect("a cache");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    fs::remove_file(network.path("home/.cache/rdma-pipe").join(&names()[0])).expect("ours");
    let mut command = rdcp();
    command
        .arg("-F")
        .arg(network.path("ssh_config"))
        .args([network.path("ssh_config").into(), network.at("h2", "third")]);
    let process = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null()));
    let until = Instant::now() + PATIENCE;
    while names().is_empty() {
        assert!(Instant::now() < until, "nothing is sent: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(1));
    }
    process.signal(Signal::KILL);
    lab::none_marked(network.scratch.path(), GONE);
    assert!(names().iter().all(|name| name.starts_with("rdma-pipe-agent-")), "{:?}", names());
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn where_only_ssh_gets_through() {
    let network = Network::start();
    let bytes = noise(6 * CHUNK + 11);
    network.scratch.file("source", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    let _no_way = NoWay::between(1, 3);
    for (name, from, to) in
        [("up", here("source"), network.at("h3", "up")), ("down", network.at("h3", "source"), here("down"))]
    {
        // Both ends would listen on the same port, and both have 127.0.0.1. Neither may connect to itself.
        let ports = ["--port-range", "45000-45009"].map(OsString::from);
        let ended = network.rdcp(&[&["-J".into(), "h2".into(), "-v".into()], &ports[..], &[from, to]].concat());
        ended.expect(0);
        assert_eq!(ended.stderr.matches("cannot reach each other's ports").count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(", through ssh"), "{}", ended.stderr);
        network.holds(name, &bytes);
    }
    drop(_no_way);
    // Two hosts that reach this host but not each other.
    let _no_way = NoWay::between(2, 3);
    let ended = network.rdcp(&[network.at("h2", "source"), network.at("h3", "between")]);
    ended.expect(0).one_line("rdcp", &["h2", "h3", "through ssh"]);
    network.holds("between", &bytes);
    all_gone(SOON);
}

/// A second network between hosts 1 and 2, of unknown speed, through whose addresses ssh reaches them.
struct Management;

impl Management {
    fn start(network: &Network) -> Self {
        let own = |host: u32| format!("10.8.0.{host}");
        for (host, other) in [(1, 2), (2, 1)] {
            let link = ["link", "add", "m0", "type", "vxlan", "id", "42", "dstport", "4789"];
            let ends = ["local", &address(host), "remote", &address(other)];
            run_on(host, "ip", &[&link[..], &ends].concat());
            run_on(host, "ip", &["addr", "add", &(own(host) + "/24"), "dev", "m0"]);
            run_on(host, "ip", &["link", "set", "m0", "up"]);
        }
        let config = fs::read_to_string(network.path("ssh_config")).expect("it");
        let names = format!("Host m2\n  HostName {}\n{config}", own(2));
        network.scratch.file("ssh_config", names.as_bytes());
        Self
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        for host in [1, 2] {
            let _ = on(host, Command::new("ip").args(["link", "del", "m0"])).status();
        }
    }
}

/// A network that host 1 shares only with host 3. Host 3 forwards connections to two of its ports to host 2.
struct Translator {
    passing: Vec<Process>,
}

impl Translator {
    const PORT: &str = "45000";

    fn start() -> Self {
        for own in ["10.9.0.1/24", "fd00:9::1/64"] {
            run_on(1, "ip", &["addr", "del", own, "dev", "e0"]);
        }
        for host in [1, 3] {
            run_on(host, "ip", &["addr", "add", &format!("198.51.100.{host}/24"), "dev", "e0"]);
        }
        let ports = [("2022", "22"), (Self::PORT, Self::PORT)];
        let passing = ports.map(|(port, to)| {
            let mut socat = Command::new("socat");
            socat.args(["-dd".to_owned(), format!("TCP-LISTEN:{port},fork,reuseaddr"), format!("TCP:10.9.0.2:{to}")]);
            let socat = Process::spawn(on(3, &socat).stdin(Stdio::null()).stdout(Stdio::null()));
            socat.line_with("listening on");
            socat
        });
        Self { passing: passing.into() }
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.passing.clear();
        for host in [1, 3] {
            let added = format!("198.51.100.{host}/24");
            let _ = on(host, Command::new("ip").args(["addr", "del", &added, "dev", "e0"])).status();
        }
        for own in ["10.9.0.1/24", "fd00:9::1/64"] {
            let _ = on(1, Command::new("ip").args(["addr", "add", own, "dev", "e0"])).status();
        }
    }
}

/// Like a machine in a cloud, whose own address is of no use to other hosts.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_host_whose_address_is_translated_is_reached_where_ssh_got_there() {
    let network = Network::start();
    let bytes = noise(4 * CHUNK + 1);
    network.scratch.file("source", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    let translator = Translator::start();
    let options = || ["-v", "-o", "HostName=198.51.100.3", "-P", "2022", "--port-range"].map(OsString::from);
    // As seen by the sender.
    for (name, from, to, way) in [
        ("up", here("source"), network.at("h2", "up"), "> 198.51.100.3:45000"),
        ("down", network.at("h2", "source"), here("down"), "10.9.0.2:45000 > 10.9.0.3:"),
    ] {
        let mut arguments = options().to_vec();
        arguments.extend([Translator::PORT.into(), from, to]);
        let ended = network.rdcp(&arguments);
        assert!(ended.expect(0).stderr.contains(way), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains(", encrypted"), "{name}: {}", ended.stderr);
        network.holds(name, &bytes);
    }
    // Host 3 does not forward this port.
    let mut arguments = options()[1..].to_vec();
    arguments.extend(["45009".into(), here("source"), network.at("h2", "relayed")]);
    network.rdcp(&arguments).expect(0).one_line("rdcp", &["cannot reach each other's ports", "through ssh"]);
    network.holds("relayed", &bytes);
    // rdperf with the same address.
    let mut command = rdperf();
    command.arg("-F").arg(network.path("ssh_config")).args(["--agent", AGENT]).args(&options()[1..]);
    command.args([Translator::PORT, "--via", "198.51.100.3", "--duration", "0.1", "h2", "lat"]);
    Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    drop(translator);
    all_gone(SOON);
}

#[track_caller]
fn run_on(host: u32, program: &str, arguments: &[&str]) {
    let status = on(host, Command::new(program).args(arguments)).status().expect(program);
    assert!(status.success(), "{program} {arguments:?} on h{host}: {status}");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_by_a_management_name_and_the_data_over_the_fast_network() {
    let network = Network::start();
    let management = Management::start(&network);
    let bytes = noise(32 * CHUNK);
    network.scratch.file("source", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    for (name, from, to) in
        [("up", here("source"), network.at("m2", "up")), ("down", network.at("m2", "source"), here("down"))]
    {
        let before = [crossed_on(2, "m0"), crossed_on(2, "e0")];
        let ended = network.rdcp(&["-v".into(), from.clone(), to.clone()]);
        let (managed, fast) = (crossed_on(2, "m0") - before[0], crossed_on(2, "e0") - before[1]);
        assert!(ended.expect(0).stderr.contains("data: tcp 10.9.0."), "{}", ended.stderr);
        assert!(!ended.stderr.contains("10.8.0."), "{}", ended.stderr);
        network.holds(name, &bytes);
        // ssh used that network, and the data did not.
        assert!((1..2 << 20).contains(&managed) && fast > bytes.len() as u64, "{managed}, {fast}");
        fs::remove_file(network.path(name)).expect("ours");
        // With --via the data uses it, which shows that the counter works.
        let before = crossed_on(2, "m0");
        let ended = network.rdcp(&["-v".into(), "--via".into(), "m0".into(), from, to]);
        assert!(ended.expect(0).stderr.contains("data: tcp 10.8.0."), "{}", ended.stderr);
        assert!(crossed_on(2, "m0") - before > bytes.len() as u64);
        network.holds(name, &bytes);
    }
    drop(management);
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_that_is_cut_does_not_cut_the_copy() {
    let network = Network::start();
    let bytes = noise(32 * CHUNK);
    network.scratch.file("source", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    for (name, from, to) in
        [("up", here("source"), network.at("h2", "up")), ("down", network.at("h2", "source"), here("down"))]
    {
        let mut process = network.slow(&[], from, to);
        let launchers = launchers(process.pid());
        assert_eq!(launchers.len(), 1);
        kill_process(launchers[0], Signal::KILL).expect("ssh");
        process.wait().expect(0);
        network.holds(name, &bytes);
        all_gone(GONE);
    }
}

/// The remaining end tells the caller the outcome.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_to_one_of_two_other_hosts_that_is_cut_does_not_cut_the_copy() {
    let network = Network::start();
    let bytes = noise(32 * CHUNK);
    network.scratch.file("source", &bytes);
    let copy = |name: &str| network.slow(&["-v"], network.at("h2", "source"), network.at("h3", name));
    for (host, name) in [("h2", "without its sender"), ("h3", "without its receiver")] {
        let mut process = copy(name);
        kill_process(launcher_to(process.pid(), host), Signal::KILL).expect("ssh");
        std::thread::sleep(Duration::from_millis(500));
        assert!(!network.path(name).exists(), "cut too late");
        let ended = process.wait();
        assert!(ended.expect(0).stderr.contains("data: tcp "), "{}", ended.stderr);
        network.holds(name, &bytes);
        all_gone(GONE);
    }
    // The caller, or the other ssh, goes as well. Then no process is left to which anything could be reported.
    for caller in [true, false] {
        let mut process = copy("never");
        kill_process(launcher_to(process.pid(), "h2"), Signal::KILL).expect("ssh");
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        if caller {
            process.signal(Signal::KILL);
            process.wait();
        } else {
            kill_process(launcher_to(process.pid(), "h3"), Signal::KILL).expect("ssh");
            let ended = process.wait_for(GONE);
            assert!(ended.expect(4).stderr.contains("lost the agent on h3"), "{}", ended.stderr);
        }
        all_gone_since(start, GONE);
        assert!(!network.path("never").exists());
    }
}

/// The end at which an entry failed can no longer name it, but it has told the other end that one failed.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_that_is_cut_hides_no_failure() {
    let network = Network::start();
    let bytes = noise(32 * CHUNK);
    // `other` cannot replace a non-empty directory.
    fs::create_dir_all(network.path("other/full")).expect("directories");
    fs::create_dir(network.path("in")).expect("a directory");
    network.scratch.file("in/other", b"other");
    network.scratch.file("in/up", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    let cut = |process: &Process| {
        kill_process(launchers(process.pid())[0], Signal::KILL).expect("ssh");
    };
    let mut process = network.slow(&["-r"], here("in/."), network.at("h2", ""));
    cut(&process);
    let ended = process.wait();
    assert!(ended.expect(8).stderr.contains("1 entry failed on h2"), "{}", ended.stderr);
    network.holds("up", &bytes);
    // The source shrinks.
    let mut process = network.slow(&[], network.at("h2", "in/up"), here("down"));
    cut(&process);
    fs::OpenOptions::new().write(true).open(network.path("in/up")).expect("ours").set_len(1).expect("shrunk");
    let ended = process.wait();
    assert!(ended.expect(8).stderr.contains("1 entry failed on h2"), "{}", ended.stderr);
    assert!(!network.path("down").exists());
    all_gone(GONE);
}

/// What only the lost end knows: the entries for a manifest, and which sources it has removed.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_that_is_cut_takes_what_only_that_host_knows() {
    let network = Network::start();
    let bytes = noise(32 * CHUNK);
    fs::create_dir(network.path("in")).expect("a directory");
    network.scratch.file("in/up", &bytes);
    let here = |name: &str| network.path(name).into_os_string();
    let elsewhere = Scratch::new();
    let list = elsewhere.join("list");
    let options = ["-r", "--manifest", list.to_str().expect("text")];
    for run in 0..2 {
        let mut process = network.slow(&options, here("in/up"), network.at("h2", "to"));
        if run == 0 {
            kill_process(launchers(process.pid())[0], Signal::KILL).expect("ssh");
            let ended = process.wait();
            assert!(ended.expect(4).stderr.contains("lost the agent on h2"), "{}", ended.stderr);
        } else {
            process.wait().expect(0);
            network.holds("to", &bytes);
        }
        assert_eq!(list.exists(), run == 1, "a manifest of a copy that is not known to be whole");
        all_gone(GONE);
    }
    let mut process = network.slow(&["--sync", "-r", "--remove-source-files"], network.at("h2", "in/up"), here("down"));
    kill_process(launchers(process.pid())[0], Signal::KILL).expect("ssh");
    let ended = process.wait();
    assert!(ended.expect(4).stderr.contains("some may still be at SRC"), "{}", ended.stderr);
    network.holds("down", &bytes);
    all_gone(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn killed_processes_leave_none() {
    let network = Network::start();
    network.scratch.file("source", &noise(64 * CHUNK));
    network.scratch.file("target", b"old");
    let here = |name: &str| network.path(name).into_os_string();
    for (from, to) in [
        (here("source"), network.at("h2", "target")),
        (network.at("h2", "source"), here("target")),
        (network.at("h2", "source"), network.at("h3", "target")),
    ] {
        let mut process = network.slow(&[], from.clone(), to.clone());
        let start = Instant::now();
        process.signal(Signal::KILL);
        process.wait();
        all_gone_since(start, GONE);
        // Each of the agents in turn.
        let agents = ours_after(&network, &from, &to);
        for victim in 0..agents {
            let mut process = network.slow(&[], from.clone(), to.clone());
            let agents = running_agents();
            let start = Instant::now();
            kill_process(Pid::from_raw(agents[victim] as i32).expect("not 0"), Signal::KILL).expect("an agent");
            let ended = process.wait_for(GONE);
            let line = ended.expect(4).stderr.lines().last().expect("why");
            assert!(line.starts_with("rdcp: lost the agent on h"), "{}", ended.stderr);
            all_gone_since(start, GONE);
        }
        network.holds("target", b"old");
    }
}

/// Returns the number of agents of such a copy.
fn ours_after(network: &Network, from: &OsString, to: &OsString) -> usize {
    let local = network.path("");
    [from, to].into_iter().filter(|side| !Path::new(side).starts_with(&local)).count()
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_partition_past_the_window_ends_all() {
    let network = Network::start();
    network.scratch.file("source", &noise(64 * CHUNK));
    let mut process =
        network.slow(&["--reconnect", "2"], network.path("source").into_os_string(), network.at("h2", "target"));
    let _partition = Partition::start(2, "silent");
    let start = Instant::now();
    let ended = process.wait();
    assert!(ended.expect(4).stderr.contains("lost the link to "), "{}", ended.stderr);
    assert!((5.0..12.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    // 5 s until the lanes are dead, then the window, then the usual time after any end.
    all_gone_since(start, Duration::from_secs(5 + 2 + 5));
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_short_partition_is_survived() {
    let network = Network::start();
    let bytes = noise(24 * CHUNK);
    network.scratch.file("source", &bytes);
    let mut process = network.slow(&[], network.path("source").into_os_string(), network.at("h2", "target"));
    let partition = Partition::start(2, "silent");
    // Longer than the 5 s after which a silent lane is dead.
    std::thread::sleep(Duration::from_millis(6500));
    drop(partition);
    process.wait().expect(0);
    network.holds("target", &bytes);
    all_gone(GONE);
}

/// The lanes come back and the copy goes on, although ssh has given up meanwhile.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_partition_that_ends_ssh_is_survived_within_the_window() {
    let network = Network::start();
    let bytes = noise(24 * CHUNK);
    network.scratch.file("source", &bytes);
    let options = ["--reconnect", "90", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"];
    let mut process = network.slow(&options, network.path("source").into_os_string(), network.at("h2", "target"));
    let partition = Partition::start(2, "silent");
    std::thread::sleep(Duration::from_secs(30));
    let ssh = launchers(process.pid());
    assert!(ssh.iter().all(|pid| !lab::is_alive(pid.as_raw_nonzero().get() as u32)), "ssh is still there: {ssh:?}");
    assert!(process.is_running(), "{}", process.stderr());
    drop(partition);
    process.wait().expect(0);
    network.holds("target", &bytes);
    // sshd has to notice first.
    all_gone(PATIENCE);
}

/// Hosts 2 and 3 with a single address each, on `lo`, to which the other hosts have routes.
struct OnLoopback;

/// Runs ip(8) on a host with these arguments. Returns whether it succeeded.
fn ip(host: u32, words: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(words.split(' ')).stdin(Stdio::null());
    on(host, &command).status().expect("ip").success()
}

impl OnLoopback {
    fn start() -> Self {
        let it = Self;
        for host in [2, 3] {
            assert!(ip(host, &format!("addr add 10.77.0.{host}/32 dev lo")));
            assert!(ip(host, &format!("addr del 10.9.0.{host}/24 dev e0")));
            assert!(ip(host, &format!("addr del fd00:9::{host}/64 dev e0")));
            assert!(ip(host, &format!("route add 10.9.0.0/24 dev e0 src 10.77.0.{host}")));
            assert!(ip(host, &format!("route add 10.77.0.{}/32 dev e0 src 10.77.0.{host}", 5 - host)));
            assert!(ip(1, &format!("route add 10.77.0.{host}/32 dev e0")));
        }
        it
    }
}

impl Drop for OnLoopback {
    fn drop(&mut self) {
        for host in [2, 3] {
            ip(1, &format!("route del 10.77.0.{host}/32 dev e0"));
            ip(host, &format!("route del 10.77.0.{}/32 dev e0", 5 - host));
            ip(host, "route del 10.9.0.0/24 dev e0");
            ip(host, &format!("addr del 10.77.0.{host}/32 dev lo"));
            ip(host, &format!("addr add 10.9.0.{host}/24 dev e0"));
            ip(host, &format!("addr add fd00:9::{host}/64 dev e0 nodad"));
        }
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn hosts_whose_only_addresses_are_on_loopback() {
    let network = Network::start();
    let bytes = noise(4 * CHUNK + 1);
    network.scratch.file("source", &bytes);
    let _moved = OnLoopback::start();
    let mut config = fs::read_to_string(network.path("ssh_config")).expect("it");
    for host in [2, 3] {
        config = config.replace(&format!("HostName 10.9.0.{host}\n"), &format!("HostName 10.77.0.{host}\n"));
    }
    network.scratch.file("ssh_config", config.as_bytes());
    let here = |name: &str| network.path(name).into_os_string();
    for (name, from, to) in [
        ("up", here("source"), network.at("h2", "up")),
        ("down", network.at("h2", "source"), here("down")),
        ("across", network.at("h2", "source"), network.at("h3", "across")),
    ] {
        let ended = network.rdcp(&["-v".into(), from, to]);
        let said = &ended.expect(0).stderr;
        assert!(said.contains("data: tcp ") && said.contains("10.77.0.2:") && !said.contains("through"), "{said}");
        network.holds(name, &bytes);
    }
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_hosts_are_what_the_other_tests_take_them_for() {
    let network = Network::start();
    let mut ssh = Command::new("ssh");
    ssh.arg("-F").arg(network.path("ssh_config")).args(["h3", "hostname"]);
    let mut child = on(1, &ssh).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ssh");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), "h3");
    child.wait().expect("ssh");
}
