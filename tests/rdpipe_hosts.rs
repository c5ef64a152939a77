//! `rdpipe` between hosts with sshd: the path of the data, links that are cut, hosts that cannot be reached, and what
//! is left on them. `tests/run` makes the hosts, as root, and runs these tests in them. Elsewhere they are not run.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::lab::*;
use rig::network::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Time after which a silent lane is dead.
const SILENT: Duration = Duration::from_secs(5);

impl Network {
    /// Prepares rdpipe on host 1.
    fn rdpipe(&self, arguments: &[OsString]) -> Command {
        let mut command = rdpipe();
        command.arg("-F").arg(self.path("ssh_config")).args(["--agent", AGENT]).args(arguments);
        let mut command = on(1, &command);
        command.env(MARK, self.scratch.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn begin(&self, stages: &[&str]) -> Process {
        Process::spawn(&mut self.rdpipe(&self.arguments(stages)))
    }

    /// Replaces `DIR` in each stage by the scratch directory.
    fn arguments(&self, stages: &[&str]) -> Vec<OsString> {
        let directory = self.scratch.path().display().to_string();
        stages.iter().map(|stage| stage.replace("DIR", &directory).into()).collect()
    }

    /// Runs a pipeline that is fed with `input`.
    #[track_caller]
    fn pipe(&self, stages: &[&str], input: &[u8]) -> (Ended, Vec<u8>) {
        let mut process = Process::spawn(self.rdpipe(&self.arguments(stages)).stdin(Stdio::piped()));
        let fed = feed(process.stdin(), input.to_vec());
        let output = drain(process.stdout());
        let ended = process.wait();
        fed.join().expect("no panic");
        (ended, output.join().expect("no panic"))
    }

    /// Starts a slow pipeline. Returns when its file `name` has grown to some MiB.
    #[track_caller]
    fn flowing(&self, stages: &[&str], name: &str) -> Process {
        let _ = fs::remove_file(self.path(name));
        let process = self.begin(stages);
        let until = Instant::now() + PATIENCE;
        while !fs::metadata(self.path(name)).is_ok_and(|file| file.len() > 2 * CHUNK as u64) {
            assert!(Instant::now() < until, "nothing flows: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        process
    }

    /// Waits until no process that rdpipe has started is left on any host.
    #[track_caller]
    fn deserted(&self, within: Duration) {
        self.deserted_since(Instant::now(), within);
    }

    /// Like [`deserted`](Self::deserted), with a limit that counts from `start`.
    #[track_caller]
    fn deserted_since(&self, start: Instant, within: Duration) {
        none_since(start, within, || marked(self.scratch.path()));
    }

    /// Returns the agents. The guards of their stages are other processes of the same program.
    fn agents(&self, caller: &Process) -> Vec<u32> {
        let all = marked(self.scratch.path()).into_iter().filter(|it| !it.arguments.contains("--guard"));
        all.filter(|it| it.name.starts_with("rdma-pipe") && it.pid != caller.pid()).map(|it| it.pid).collect()
    }
}

/// Returns the hops of the report written by `--json=NAME`.
#[track_caller]
fn hops(network: &Network, name: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(network.path(name)).expect("a report");
    let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    told["hops"].as_array().expect("hops").clone()
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_data_does_not_pass_here() {
    let network = Network::start();
    let bytes = noise(48 * CHUNK);
    network.scratch.file("source", &bytes);
    let before = crossed(1);
    let (ended, _) = network.pipe(&["--json=DIR/report", "h2:< DIR/source", "h3:cat", "h4:> DIR/copy"], b"");
    let passed = crossed(1) - before;
    ended.expect(0);
    network.holds("copy", &bytes);
    assert!(passed < 2 << 20, "{passed} bytes passed the caller's host");
    let told = hops(&network, "report");
    let way: Vec<_> = told.iter().map(|hop| (hop["from"].as_str(), hop["to"].as_str())).collect();
    assert_eq!(way, [(Some("h2"), Some("h3")), (Some("h3"), Some("h4"))]);
    for hop in told {
        assert_eq!((hop["transport"].as_str(), hop["encrypted"].as_bool()), (Some("tcp"), Some(true)), "{hop}");
    }
    // With a stage on the caller's host the data crosses it, there and back, which shows that the counter works.
    let before = crossed(1);
    let (ended, _) = network.pipe(&["h2:< DIR/source", "cat", "h4:> DIR/again"], b"");
    ended.expect(0);
    network.holds("again", &bytes);
    assert!(crossed(1) - before > 2 * bytes.len() as u64);
    // Through the caller, if that is asked for.
    let before = crossed(1);
    network.pipe(&["--relay", "h2:< DIR/source", "h4:> DIR/relayed"], b"").0.expect(0);
    network.holds("relayed", &bytes);
    assert!(crossed(1) - before > 2 * bytes.len() as u64);
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_host_any_number_of_times() {
    let network = Network::start();
    let bytes = noise(3 * CHUNK + 7);
    let stages = ["h2:cat", "h3:cat", "h2:cat", "h4:cat", "h2:cat", "h2:cat", "h1:cat", "cat", "root@[fd00:9::3]:cat"];
    let (ended, output) = network.pipe(&stages, &bytes);
    assert_eq!((ended.expect(0).stderr.as_str(), output.len()), ("", bytes.len()));
    same(&output, &bytes);
    let (ended, output) = network.pipe(&["-p", "7691", "h2:cat", "h2:cat", "h3:cat", "h2:wc -c"], &bytes);
    ended.expect(0);
    assert_eq!(output, format!("{}\n", bytes.len()).into_bytes());
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_examples_of_the_original() {
    let network = Network::start();
    rig::examples::all(network.scratch.path(), ["h2", "h3", "h4"], |words, input| network.pipe(words, input));
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn each_stage_runs_on_its_host() {
    let network = Network::start();
    let name = "uname -n; cat";
    let stages: Vec<String> = ["h4", "h2", "h3"].iter().map(|host| format!("{host}:{name}")).collect();
    let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
    let (ended, output) = network.pipe(&[&stages[..], &[name]].concat(), b"");
    ended.expect(0);
    assert_eq!(String::from_utf8_lossy(&output), "h1\nh3\nh2\nh4\n");
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn two_pipelines_at_once_on_the_same_hosts() {
    let network = Network::start();
    let bytes = noise(24 * CHUNK);
    network.scratch.file("source", &bytes);
    let names = ["one", "two", "three"];
    let processes: Vec<Process> = names
        .iter()
        .map(|name| {
            let out = format!("h4:> DIR/{name}");
            network.begin(&["-p", "7691", "--bwlimit", "16M", "h2:< DIR/source", "h3:cat", "h2:cat", &out])
        })
        .collect();
    for (mut process, name) in processes.into_iter().zip(names) {
        process.wait().expect(0);
        network.holds(name, &bytes);
    }
    network.deserted(GONE);
}

/// Whether a TCP listener has one of these ports on a host.
fn listens(host: u32, ports: std::ops::RangeInclusive<u16>) -> bool {
    let output = on(host, Command::new("cat").args(["/proc/net/tcp", "/proc/net/tcp6"])).output().expect("cat");
    String::from_utf8_lossy(&output.stdout).lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = fields.get(1).and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
        fields.get(3) == Some(&"0A") && port.is_some_and(|port| ports.contains(&port))
    })
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_port_that_is_asked_for() {
    let network = Network::start();
    network.scratch.file("source", &noise(64 * CHUNK));
    let ports = 7691..=7699;
    assert!(!listens(3, ports.clone()));
    let stages = ["-p", "7691", "--bwlimit", "8M", "h2:< DIR/source", "h3:cat", "h4:> DIR/copy"];
    let mut process = network.flowing(&stages, "copy");
    assert!(listens(3, ports.clone()) && listens(4, ports.clone()));
    process.signal(Signal::INT);
    process.wait_for(GONE).expect(130);
    network.deserted(GONE);
    assert!(!listens(3, ports.clone()) && !listens(4, ports));
}

// --- links that are cut ----------------------------------------------------------------------------------------------

/// Cuts a host off in mid-stream for some seconds. All bytes must arrive, and these hops must have been repaired, whose
/// lanes are dead after [`SILENT`].
#[track_caller]
fn cut_for(host: u32, seconds: f64, mended: &[(&str, &str)]) {
    let network = Network::start();
    let bytes = noise(48 * CHUNK);
    network.scratch.file("source", &bytes);
    // A host that has no part in the data does not hold the stream up, so the stream is slower.
    let rate = if mended.is_empty() { "4M" } else { "8M" };
    let stages = ["--json=DIR/report", "--bwlimit", rate, "h2:< DIR/source", "h3:cat", "h4:> DIR/copy"];
    let mut process = network.flowing(&stages, "copy");
    let partition = Partition::start(host, "silent");
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let there = fs::metadata(network.path("copy")).expect("it").len();
    drop(partition);
    process.wait().expect(0);
    assert!(there + 8 * (CHUNK as u64) < bytes.len() as u64, "cut in mid-stream: {there}");
    network.holds("copy", &bytes);
    for hop in hops(&network, "report") {
        let ends = (hop["from"].as_str().expect("a host"), hop["to"].as_str().expect("a host"));
        let retries = hop["retries"].as_u64().expect("a number");
        assert_eq!(retries >= 1, mended.contains(&ends), "{hop}");
    }
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_host_in_the_middle_that_is_cut_off_for_a_while() {
    cut_for(3, 6.5, &[("h2", "h3"), ("h3", "h4")]);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_last_host_that_is_cut_off_for_a_while() {
    cut_for(4, 6.5, &[("h3", "h4")]);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_caller_is_cut_off_for_a_while() {
    // The caller handles none of the data, so nothing needs repair.
    cut_for(1, 6.5, &[]);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_short_silence_is_nothing() {
    // See the test of this name in `hosts`.
    cut_for(3, 2.0, &[]);
}

/// Starts an endless pipeline through hosts 2, 3 and 4, with processes there that do not end by themselves.
#[track_caller]
fn endless(network: &Network, options: &[&str]) -> Process {
    let stages = ["--bwlimit", "8M", "h2:yes; sleep 1000", "h3:sh -c 'sleep 1000 & cat; sleep 1000'", "h4:> DIR/copy"];
    let process = network.flowing(&[options, &stages].concat(), "copy");
    let sleeping = marked(network.scratch.path()).iter().filter(|process| process.name == "sleep").count();
    assert!(sleeping >= 1, "what is not to be left is there");
    process
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_partition_past_the_window_ends_all() {
    let network = Network::start();
    for host in [3, 4] {
        let mut process = endless(&network, &["--reconnect", "2"]);
        let _partition = Partition::start(host, "silent");
        let start = Instant::now();
        let limit = SILENT + Duration::from_secs(2) + GONE;
        let ended = process.wait_for(limit);
        ended.expect(4);
        assert!(ended.stderr.contains(&format!("h{host}")), "{}", ended.stderr);
        network.deserted_since(start, limit);
    }
}

/// Ends the caller half a second after a host was cut off.
#[track_caller]
fn ended_during_a_partition(signal: Signal, code: i32) {
    let network = Network::start();
    let mut process = endless(&network, &["--reconnect", "2"]);
    let _partition = Partition::start(3, "silent");
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    process.signal(signal);
    process.wait_for(GONE).expect(code);
    network.deserted_since(start, SILENT + Duration::from_secs(2) + GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn signals_during_a_partition() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        ended_during_a_partition(signal, code);
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_killed_caller_during_a_partition() {
    ended_during_a_partition(Signal::KILL, 137);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn killed_processes_leave_none() {
    let network = Network::start();
    let mut process = endless(&network, &[]);
    let start = Instant::now();
    process.signal(Signal::KILL);
    process.wait();
    network.deserted_since(start, GONE);
    // Each of the agents in turn.
    let mut victim = 0;
    loop {
        let mut process = endless(&network, &[]);
        let mut agents = network.agents(&process);
        agents.sort_unstable();
        let Some(&pid) = agents.get(victim) else { break };
        let start = Instant::now();
        kill_process(Pid::from_raw(pid as i32).expect("not 0"), Signal::KILL).expect("an agent");
        let ended = process.wait_for(GONE + GONE);
        assert_eq!(ended.code, 4, "the agent that is number {victim}: {}", ended.stderr);
        network.deserted_since(start, GONE + GONE);
        victim += 1;
    }
    assert_eq!(victim, 3, "each of the agents");
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn signals_leave_none() {
    let network = Network::start();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut process = endless(&network, &[]);
        let start = Instant::now();
        process.signal(signal);
        process.wait_for(GONE).expect(code);
        network.deserted_since(start, GONE);
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn ssh_that_is_cut_leaves_none() {
    let network = Network::start();
    for victim in 0..3 {
        let mut process = endless(&network, &[]);
        let launchers = launchers(process.pid());
        assert_eq!(launchers.len(), 3);
        let start = Instant::now();
        kill_process(launchers[victim], Signal::KILL).expect("ssh");
        let ended = process.wait_for(GONE);
        ended.expect(4);
        network.deserted_since(start, GONE);
    }
}

// --- hosts that are out of reach -------------------------------------------------------------------------------------

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn where_only_ssh_gets_through() {
    let network = Network::start();
    let bytes = noise(6 * CHUNK + 11);
    network.scratch.file("source", &bytes);
    // Two hosts that reach this host but not each other.
    let no_way = NoWay::between(2, 3);
    let (ended, _) = network.pipe(&["-v", "h2:< DIR/source", "h3:> DIR/copy"], b"");
    assert!(ended.expect(0).stderr.contains("through ssh"), "{}", ended.stderr);
    network.holds("copy", &bytes);
    let (ended, _) = network.pipe(&["h4:< DIR/source", "h2:cat", "h3:> DIR/quietly"], b"");
    ended.expect(0).one_line("rdpipe", &["h2", "h3", "through ssh"]);
    network.holds("quietly", &bytes);
    drop(no_way);
    // A host that this host reaches only through another.
    let _no_way = NoWay::between(1, 3);
    let (ended, output) = network.pipe(&["-J", "h2", "-v", "h3:cat"], &bytes);
    assert!(ended.expect(0).stderr.contains("through ssh"), "{}", ended.stderr);
    same(&output, &bytes);
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn hosts_that_ssh_does_not_reach() {
    let network = Network::start();
    network.scratch.file("old", b"old");
    let begun = ["h2:touch DIR/begun; cat", "h3:> DIR/old"];
    let with = |options: &[&str], host: &str| {
        let stage = format!("{host}:cat");
        let stages = [options, &[begun[0], &stage, begun[1]]].concat();
        network.pipe(&stages, b"some input").0
    };
    with(&[], "no-such-host.invalid").expect(3).one_line("rdpipe", &["no-such-host.invalid", "resolve"]);
    let ended = network.pipe(&["--ssh-port", "23", "h2:cat"], b"").0;
    ended.expect(3).one_line("rdpipe", &["h2", "refused"]).within(GONE);
    let ended = with(&["-o", "ConnectTimeout=2"], "10.9.0.77");
    // A late message of ssh is passed on.
    assert!(ended.expect(3).stderr.contains("rdpipe: cannot reach 10.9.0.77"), "{}", ended.stderr);
    let mut command = rdpipe();
    command.arg("-F").arg(network.path("ssh_config")).args(["--agent", "/nonexistent/agent", "h2:cat"]);
    let mut command = on(1, &command);
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(3).one_line("rdpipe", &["h2 has no", "--agent"]).within(GONE);
    assert!(!network.path("begun").exists());
    network.holds("old", b"old");
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn rdma_where_there_is_none() {
    let network = Network::start();
    let bytes = noise(CHUNK);
    // No output may look as if it were complete.
    for stages in [&["h2:cat", "h3:cat"][..], &["h2:yes", "h3:cat >DIR/out"]] {
        let (ended, output) = network.pipe(&[&["--transport", "rdma"], stages].concat(), &bytes);
        ended.expect(3).within(Duration::from_secs(15));
        assert!(ended.stderr.contains("has no RDMA device"), "{}", ended.stderr);
        same(&output, b"");
    }
    let (ended, output) = network.pipe(&["--transport", "prefer-rdma", "h2:cat", "h3:cat"], &bytes);
    ended.expect(0);
    same(&output, &bytes);
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn nothing_begins_without_the_rdma_that_was_asked_for() {
    let network = Network::start();
    let (ended, _) = network.pipe(&["--transport", "rdma", "h2:touch DIR/begun; cat", "h3:cat"], b"some input");
    ended.expect(3);
    assert!(!network.path("begun").exists());
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_address_that_the_others_use_for_this_host() {
    let network = Network::start();
    let bytes = noise(2 * CHUNK);
    for name in ["10.9.0.1", "fd00:9::1"] {
        let (ended, output) = network.pipe(&["-v", "-H", name, "h2:cat", "h3:cat"], &bytes);
        ended.expect(0);
        same(&output, &bytes);
    }
    let (ended, _) = network.pipe(&["-n", "-H", "fd00:9::1", "h2:cat", "h3:cat"], b"");
    assert!(ended.code == 0, "{}", ended.stderr);
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_file_system_that_is_full() {
    let network = Network::start();
    fs::create_dir(network.path("disk")).expect("a directory");
    let _disk = SmallDisk::mount(4, &network.path("disk"), 6);
    let start = Instant::now();
    let (ended, _) = network.pipe(&["h2:yes", "h3:cat; sleep 100", "h4:> DIR/disk/full"], b"");
    ended.expect(6);
    let ours: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("rdpipe: ")).collect();
    assert!(
        ours.len() == 1 && ["h4", "disk/full", "errno 28"].iter().all(|part| ours[0].contains(part)),
        "{}",
        ended.stderr
    );
    assert!(start.elapsed() < GONE + GONE, "{:?}", start.elapsed());
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn encryption_between_hosts_and_without_it() {
    let network = Network::start();
    let bytes = noise(2 * CHUNK);
    for (option, encrypted) in [("--encrypt=auto", true), ("--encrypt=never", false)] {
        let (ended, output) = network.pipe(&[option, "--json=DIR/report", "h2:cat", "h3:cat"], &bytes);
        ended.expect(0);
        same(&output, &bytes);
        let told = hops(&network, "report");
        assert!(told.len() == 3 && told.iter().all(|hop| hop["encrypted"] == encrypted), "{told:?}");
    }
    network.deserted(GONE);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn the_output_comes_as_it_is_made() {
    let network = Network::start();
    let mut process = network.begin(&["h2:echo first; sleep 2; echo second", "h3:cat"]);
    let mut output = process.stdout();
    let mut line = [0; 6];
    output.read_exact(&mut line).expect("a line");
    assert_eq!(&line, b"first\n");
    assert!(process.is_running());
    let rest = drain(output);
    process.wait().expect(0);
    assert_eq!(rest.join().expect("no panic"), b"second\n");
    network.deserted(GONE);
}
