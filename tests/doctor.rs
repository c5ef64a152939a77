//! `rddoctor`, on this host and with a launcher that runs the agent on it: exit codes, the three forms of its report,
//! and hosts that cannot be examined. Findings of each check are tested beside its code, over recorded hosts
//! (`tests/doctor/*.tree`). `tests/doctor_hosts.rs` has real hosts and firewalls.

mod rig;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Maximum time to examine a host without a peer.
const QUICK: Duration = Duration::from_secs(2);

/// Exit code and output of a run, on both streams.
struct Said {
    code: i32,
    stdout: String,
    stderr: String,
    after: Duration,
}

impl Said {
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "one line: {} {}", self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {}", self.stdout))
    }
}

/// A scratch directory with a launcher in it.
struct Lab(Scratch);

impl Lab {
    fn new() -> Self {
        let lab = Self(Scratch::new());
        lab.script("rsh", "exec sh -c \"exec $2\"");
        lab
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.0.file(name, format!("#!/bin/sh\n{body}\n").as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    fn command(&self, launcher: &str, arguments: &[&str]) -> Command {
        let mut command = rddoctor();
        command.arg("--rsh").arg(self.0.join(launcher)).args(arguments).env("HOME", self.0.path());
        command
    }

    fn run(&self, launcher: &str, arguments: &[&str]) -> Said {
        said(&mut self.command(launcher, arguments))
    }
}

fn rddoctor() -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("rddoctor");
    command.env_remove("RDCP_RSH").env_remove("SSH_CONNECTION").stdin(Stdio::null());
    command
}

fn said(command: &mut Command) -> Said {
    let start = Instant::now();
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let mut stdout = String::new();
    process.stdout().read_to_string(&mut stdout).expect("text");
    let ended = process.wait();
    Said { code: ended.code, stdout, stderr: ended.stderr, after: start.elapsed() }
}

#[track_caller]
fn finding<'a>(report: &'a Value, part: &str, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings
        .iter()
        .find(|finding| finding["part"] == part && finding["check"] == check)
        .unwrap_or_else(|| panic!("no {check} of {part} in {report:#}"))
}

/// Checks what every report must have. Returns the exit code that follows from its findings.
#[track_caller]
fn hold_to_schema(report: &Value) -> i32 {
    assert_eq!(report["version"], 1);
    assert_eq!(report["program"], env!("CARGO_PKG_VERSION"));
    let (mut warnings, mut failures) = (0, 0);
    for finding in report["findings"].as_array().expect("a list") {
        for field in ["part", "host", "name", "check", "about", "level", "code", "found", "why"] {
            assert!(finding[field].is_string(), "{field} of {finding:#}");
        }
        assert!(["here", "there", "path", "pairs", "drill"].contains(&finding["part"].as_str().expect("text")));
        assert!(!finding["found"].as_str().expect("text").is_empty(), "{finding:#}");
        let code = finding["code"].as_str().expect("text");
        assert!(code.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{code}");
        let is_fixed = finding["command"].is_string() != finding["advice"].is_string();
        match finding["level"].as_str().expect("text") {
            "ok" => assert!(finding["command"].is_null() && finding["advice"].is_null(), "{finding:#}"),
            "warning" => warnings += 1,
            "failure" => failures += 1,
            other => panic!("{other}"),
        }
        if finding["level"] != "ok" {
            assert!(is_fixed && finding["why"] != "", "a reason and one fix: {finding:#}");
        }
    }
    assert_eq!((&report["warnings"], &report["failures"]), (&Value::from(warnings), &Value::from(failures)));
    let exit = if failures > 0 {
        11
    } else if warnings > 0 {
        10
    } else {
        0
    };
    assert_eq!(report["exit"], exit);
    exit
}

#[test]
fn this_host_is_examined_at_once() {
    // A single slow run may be due to a busy machine; three slow runs are not.
    let fastest = (0..3).map(|_| said(&mut rddoctor()).after).min().expect("three");
    assert!(fastest < QUICK, "{fastest:?}");
    let json = said(rddoctor().arg("--json"));
    let exit = hold_to_schema(&json.json());
    assert_eq!((json.code, json.stderr.as_str()), (exit, ""));
    let text = said(&mut rddoctor());
    assert_eq!((text.code, text.stderr.as_str()), (exit, ""));
    assert!(text.stdout.starts_with("this host ("), "{}", text.stdout);
    assert!(!text.stdout.contains('\x1b'), "colours are for terminals");
    let lines = |mark: &str| text.stdout.lines().filter(|line| line.starts_with(mark)).count();
    let findings = json.json()["findings"].as_array().expect("a list").len();
    assert_eq!(lines("  ok    ") + lines("  warn  ") + lines("  FAIL  "), findings, "a line for each: {}", text.stdout);
}

#[test]
fn a_host_without_an_adapter_has_not_failed() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        // A host with adapters is tested in the guest, whose devices are known.
        let report = said(rddoctor().arg("--json")).json();
        assert!(report["findings"].as_array().expect("a list").iter().any(|finding| finding["check"] == "device"));
        return partly_run("this host has an adapter");
    }
    let said = said(rddoctor().arg("--json"));
    assert!(said.code == 0 || said.code == 10, "{}", said.stdout);
    assert_eq!(finding(&said.json(), "here", "rdma")["code"], "no-device");
}

/// The variable is also set in a shell that a pod has opened on its machine.
#[test]
fn a_pod_is_a_container_unless_it_sees_the_kernel() {
    let report = said(rddoctor().arg("--json").env("KUBERNETES_SERVICE_HOST", "10.96.0.1")).json();
    let sees_kernel = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    let host = &finding(&report, "here", "host")["found"];
    assert_eq!(host.as_str().expect("text").ends_with(", a container"), !sees_kernel, "{host}");
}

#[test]
fn both_hosts_and_the_way_between() {
    let lab = Lab::new();
    let said = lab.run("rsh", &["--agent", AGENT, "--seconds", "1", "--json", "node7"]);
    let report = said.json();
    assert_eq!(said.code, hold_to_schema(&report), "{report:#}");
    assert_ne!(said.code, 11, "{report:#}");
    for part in ["here", "there"] {
        for check in ["host", "network", "libraries", "memlock", "hugepages", "cpu"] {
            finding(&report, part, check);
        }
    }
    assert_eq!(finding(&report, "path", "ssh")["code"], "agent");
    assert_eq!(finding(&report, "path", "port")["code"], "reached");
    let bandwidth = finding(&report, "path", "bandwidth");
    assert_eq!(bandwidth["code"], "bandwidth");
    let rate: f64 =
        bandwidth["found"].as_str().expect("text").split(' ').next().expect("a word").parse().expect("a rate");
    assert!(rate > 0.05, "{bandwidth:#}");
    assert!(said.after > Duration::from_secs(1), "it was measured for a second: {:?}", said.after);
    // With `--seconds 0` nothing is measured.
    let said = lab.run("rsh", &["--agent", AGENT, "--seconds", "0", "node7"]);
    assert!(said.stdout.contains("node7 (") && said.stdout.contains("this host -> node7\n"), "{}", said.stdout);
    assert!(!said.stdout.contains("bandwidth"), "{}", said.stdout);
}

#[test]
fn several_hosts_and_their_pairs() {
    let lab = Lab::new();
    lab.script("rsh", "[ $1 != n2 ] || { echo 'ssh: no such host' >&2; exit 255; }\nexec sh -c \"exec $2\"");
    let said = lab.run("rsh", &["--agent", AGENT, "--json", "n[1-4]"]);
    let report = said.json();
    assert_eq!((said.code, hold_to_schema(&report)), (11, 11), "one host is not there: {report:#}");
    assert_eq!(report["hosts"], serde_json::json!(["n1", "n2", "n3", "n4"]));
    assert_eq!((&report["rounds"]["measured"], &report["rounds"]["all"]), (&Value::from(3), &Value::from(3)));
    let pairs = report["pairs"].as_array().expect("a list");
    let mut met: Vec<String> =
        pairs.iter().map(|pair| format!("{} {}", pair["from"], pair["to"]).replace('"', "")).collect();
    met.sort();
    assert_eq!(met, ["n1 n3", "n1 n4", "n3 n1", "n3 n4", "n4 n1", "n4 n3"]);
    assert!(pairs.iter().all(|pair| pair["mbps"].as_u64().is_some_and(|mbps| mbps > 100)), "{report:#}");
    let of = |name: &str, check: &str| {
        let findings = report["findings"].as_array().expect("a list").iter();
        findings.filter(|finding| finding["name"] == name && finding["check"] == check).count()
    };
    for name in ["n1", "n3", "n4"] {
        for check in ["host", "memlock", "port", "counters"] {
            assert!(of(name, check) > 0, "{check} of {name}: {report:#}");
        }
    }
    assert_eq!((of("n2", "ssh"), of("n2", "host")), (1, 0));
    // Without pairs, with hosts from a file, and as text.
    let file = lab.0.file("hosts", b"n1 # the first\nn3\nn[4-5]\n").display().to_string();
    let said = lab.run("rsh", &["--agent", AGENT, "--seconds", "0", "--hosts", &file]);
    assert!(said.code == 0 || said.code == 10, "{} {}", said.stdout, said.stderr);
    assert!(said.stdout.starts_with("4 hosts and this one\n") && !said.stdout.contains("pairs"), "{}", said.stdout);
    assert!(said.stdout.contains("n[1,3-5]"), "{}", said.stdout);
}

/// Progress is shown only at a terminal that can redraw a line, and only in its foreground.
#[test]
fn progress_of_several_hosts() {
    let lab = Lab::new();
    let rsh = lab.0.join("rsh");
    let line = format!("{PROGRAM} rddoctor --rsh {} --agent {AGENT} --seconds 0 'n[1-2]'", rsh.display());
    let background = format!("set -m; {line} & wait");
    for (terminal, line, is_shown) in
        [("xterm-256color", &line, true), ("dumb", &line, false), ("xterm-256color", &background, false)]
    {
        let mut script = Command::new("script");
        script.args(["-qefc", line.as_str(), "/dev/null"]).stdin(Stdio::null());
        script.env("TERM", terminal).env("NO_COLOR", "1").env("HOME", lab.0.path());
        let said = said(script.env_remove("RDCP_RSH").env_remove("SSH_CONNECTION"));
        assert!(said.stdout.contains("2 hosts and this one"), "{line}: {}", said.stdout);
        let shown = (said.stdout.contains(" of 2 hosts contacted"), said.stdout.contains("\u{1b}["));
        assert_eq!(shown, (is_shown, is_shown), "{terminal}: {line}: {:?}", said.stdout);
    }
}

/// Deliberate faults are noticed and survived, and leave nothing behind.
#[test]
fn a_drill() {
    let lab = Lab::new();
    let scratch = lab.0.join("tmp");
    fs::create_dir(&scratch).expect("a directory");
    let said = said(lab.command("rsh", &["--agent", AGENT, "--drill", "--json", "n1"]).env("TMPDIR", &scratch));
    let report = said.json();
    assert_eq!((said.code, hold_to_schema(&report)), (0, 0), "{report:#} {}", said.stderr);
    let seen = |about: &str| {
        let findings = report["findings"].as_array().expect("a list");
        let found = findings.iter().find(|finding| finding["about"] == about);
        found.unwrap_or_else(|| panic!("no {about} in {report:#}"))["found"].as_str().expect("text").to_owned()
    };
    for (about, parts) in [
        ("lane", &["lost connection", "the copy succeeded and is identical"][..]),
        ("bit", &["n1: lost connection", "the copy succeeded and is identical"]),
        ("disk", &["exit 6: cannot write n1:", "errno 28", "the next copy succeeded and is identical"]),
        ("agent", &["exit 4: lost the agent on n1", "the next copy succeeded and is identical"]),
    ] {
        for part in parts {
            assert!(seen(about).contains(part), "{part}: {}", seen(about));
        }
    }
    // Only a user who may not mount gets the stand-in that is always full.
    if rustix::process::geteuid().is_root() {
        assert!(seen("disk").contains("a file system of 1 MiB"), "root may mount: {}", seen("disk"));
    }
    assert_eq!(fs::read_dir(&scratch).expect("it").count(), 0, "all of it is removed");
    let said = lab.run("rsh", &["--agent", "/nonexistent/agent", "--drill", "--json", "n1"]);
    assert_eq!((said.code, hold_to_schema(&said.json())), (11, 11));
    assert_eq!(finding(&said.json(), "drill", "drill")["code"], "drill-not-done");
}

/// The launcher is killed with the drill, as by Ctrl-C. Another one removes the directory on the host. If the host is
/// out of reach, a line names what is left there.
#[test]
fn an_interrupted_drill_leaves_nothing_or_names_it() {
    for is_away in [false, true] {
        let lab = Lab::new();
        let scratch = lab.0.join("tmp");
        fs::create_dir(&scratch).expect("a directory");
        let [pid, away] = ["pid", "away"].map(|name| lab.0.join(name));
        let refusal = format!("[ ! -e '{}' ] || {{ echo 'no route' >&2; exit 255; }}", away.display());
        lab.script("rsh", &format!("{refusal}\necho $$ >'{}'\nexec sh -c \"exec $2\"", pid.display()));
        let mut command = lab.command("rsh", &["--agent", AGENT, "--drill", "n1"]);
        let mut process = Process::spawn(command.env("TMPDIR", &scratch).stdout(Stdio::null()));
        let left = || {
            let mut paths = fs::read_dir(&scratch).expect("it").map(|entry| entry.expect("an entry").path());
            paths.find(|path| path.to_string_lossy().ends_with("-there"))
        };
        let until = Instant::now() + PATIENCE;
        while left().is_none() {
            assert!(Instant::now() < until && process.is_running(), "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        if is_away {
            fs::write(&away, "").expect("written");
        }
        let agent: i32 = fs::read_to_string(&pid).expect("it").trim().parse().expect("a number");
        let agent = Pid::from_raw(agent).expect("not 0");
        // While it is stopped, the agent cannot remove anything.
        kill_process(agent, Signal::STOP).expect("it runs");
        process.signal(Signal::INT);
        kill_process(agent, Signal::KILL).expect("it is there");
        let ended = process.wait();
        ended.expect(130);
        match left() {
            Some(path) => {
                assert!(is_away, "{}", ended.stderr);
                let path = path.display().to_string();
                let (told, advice) = (format!("cannot remove n1:{path}: "), format!("rm -r {path}"));
                ended.one_line("rddoctor", &[&*told, "cannot reach n1 by rsh: no route", &*advice]);
            }
            None => assert_eq!((is_away, &*ended.stderr), (false, "")),
        }
        assert_eq!(fs::read_dir(&scratch).expect("it").count(), usize::from(is_away), "nothing else is left");
    }
}

#[test]
fn rounds_that_there_is_no_time_for_are_left_out() {
    let lab = Lab::new();
    let said = lab.run("rsh", &["--agent", AGENT, "--within", "1", "--json", "n[1-4]"]);
    let report = said.json();
    assert_eq!((&report["rounds"]["measured"], &report["rounds"]["all"]), (&Value::from(1), &Value::from(3)));
    assert_eq!(report["pairs"].as_array().expect("a list").len(), 4);
    assert_eq!(finding(&report, "pairs", "rounds")["code"], "rounds-left-out");
}

#[test]
fn ports_of_a_range_are_taken() {
    let lab = Lab::new();
    let range = ["--agent", AGENT, "--seconds", "1", "--json", "--port-range"];
    let said = lab.run("rsh", &[&range[..], &["45100-45199", "h"]].concat());
    assert_eq!(finding(&said.json(), "path", "port")["code"], "reached");
    assert_eq!(finding(&said.json(), "path", "bandwidth")["code"], "bandwidth");
    let taken = std::net::TcpListener::bind("[::]:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let said = lab.run("rsh", &[&range[..], &[&format!("{port}-{port}"), "h"]].concat());
    let report = said.json();
    assert_eq!(hold_to_schema(&report), said.code);
    assert_eq!(finding(&report, "path", "port")["code"], "probe-failed");
    assert!(finding(&report, "path", "port")["advice"].as_str().expect("text").contains("--port-range"));
}

/// The agent is sent at the first time only, which takes a time of its own.
#[test]
fn a_slow_login_is_noticed_at_the_first_time_too() {
    let lab = Lab::new();
    lab.script("ssh", "sleep 3.2; for last; do :; done; export PATH=/usr/bin:/bin; exec sh -c \"$last\"");
    for is_sent in [true, false] {
        let mut command = lab.command("ssh", &["--seconds", "0", "--json", "far"]);
        let said = said(command.env_remove("XDG_CACHE_HOME"));
        assert_eq!(said.stderr.contains("copied rdma-pipe-agent"), is_sent, "{}", said.stderr);
        assert_eq!(finding(&said.json(), "path", "ssh")["code"], "agent-slow", "{}", said.stdout);
    }
}

#[test]
fn hosts_that_cannot_be_examined() {
    let lab = Lab::new();
    lab.script("dead", "echo 'ssh: connect to host h port 22: No route to host' >&2; exit 255");
    // A launcher that kept running without a greeting would be given 120 s, the time to enter a password.
    lab.script("mute", "echo; exit 0");
    lab.script("quits", "exec sh -c \"exec $2\" </dev/null");
    for (launcher, agent, code, parts) in [
        ("dead", AGENT, "agent-unreachable", &["cannot reach h by dead", "No route to host"][..]),
        ("rsh", "/nonexistent/agent", "agent-missing", &["h has no /nonexistent/agent", "--agent"]),
        ("nonexistent", AGENT, "agent-unreachable", &["cannot run", "/nonexistent: "]),
        ("mute", AGENT, "agent-unreachable", &["no agent answered on h", "exit code 0"]),
        ("quits", AGENT, "agent-lost", &["h"]),
    ] {
        let said = lab.run(launcher, &["--agent", agent, "--json", "h"]);
        let report = said.json();
        assert_eq!((said.code, hold_to_schema(&report)), (11, 11), "{launcher}: {report:#} {}", said.stderr);
        let ssh = finding(&report, "path", "ssh");
        assert_eq!(ssh["level"], "failure");
        assert_eq!(ssh["code"], code, "{ssh:#}");
        for part in parts {
            assert!(ssh["found"].as_str().expect("text").contains(part), "{part}: {ssh:#}");
        }
        // Findings that could be made are reported all the same.
        finding(&report, "here", "memlock");
        assert!(said.after < Duration::from_secs(10), "{launcher}: {:?}", said.after);
    }
}

#[test]
fn an_agent_of_another_version_or_without_sense() {
    let lab = Lab::new();
    // HELLO of major 9: [0, [[9, 0, "9.0", "L", "m", "c", h'', h'']]]
    let hello = "\\000rdma-pipe agent\\000\\n\\022\\000\\000\\000\\202\\000\\201\\210\\011\\000\\1439.0\\141L\\141m\\141c\\100\\100";
    lab.script("other", &format!("printf '{hello}'; sleep 1"));
    let said = lab.run("other", &["--json", "h"]);
    let report = said.json();
    assert_eq!(said.code, 11, "{report:#}");
    assert_eq!(finding(&report, "path", "ssh")["code"], "agent-of-another-version", "{report:#}");
    // An agent of this version that sends invalid facts: [41, [h'ff']]
    let hello = hello.replace("\\201\\210\\011", "\\201\\210\\001");
    lab.script(
        "mad",
        &format!("printf '{hello}'; printf '\\006\\000\\000\\000\\202\\030\\051\\201\\101\\377'; sleep 1"),
    );
    let said = lab.run("mad", &["--json", "h"]);
    assert_eq!((said.code, hold_to_schema(&said.json())), (11, 11));
    assert!(
        finding(&said.json(), "path", "ssh")["found"].as_str().expect("text").contains("protocol"),
        "{}",
        said.stdout
    );
}

#[test]
fn the_script_of_fixes() {
    let lab = Lab::new();
    let said = lab.run("rsh", &["--agent", "/nonexistent/agent", "--fix-script", "h"]);
    assert_eq!(said.code, 11, "the exit code is that of the diagnosis");
    assert!(said.stdout.starts_with("#!/bin/sh\n") && said.stdout.contains("set -eu\n"), "{}", said.stdout);
    let script = lab.0.file("fix.sh", said.stdout.as_bytes());
    for (program, options) in [("sh", &["-n"][..]), ("shellcheck", &[])] {
        let status = Command::new(program).args(options).arg(&script).status();
        assert!(status.unwrap_or_else(|error| panic!("{program}: {error}")).success(), "{program}: {}", said.stdout);
    }
    // The script does nothing on a host that it does not name. The part for this host is not run here.
    assert!(said.stdout.contains("no fixes for $(uname -n)"), "{}", said.stdout);
}

#[test]
fn command_lines_that_make_no_sense() {
    let lab = Lab::new();
    for (arguments, part) in [
        (&["a:b"][..], "HOST must be a name"),
        (&["a", "b"], "give several hosts as one list"),
        (&["--seconds", "601", "h"], "601"),
        (&["n[2-1]"], "smaller"),
        (&["n[1-2],m"], "--hosts FILE"),
        (&["n1,n2"], "n1,n2: commas are allowed only inside brackets"),
        (&["--drill"], "one HOST"),
        (&["--drill", "n[1-2]"], "one HOST"),
        (&["--hosts", "/no/such/file"], "--hosts /no/such/file"),
        (&["--hosts", "x", "h"], "cannot be used with"),
        (&["--json", "--fix-script"], "cannot be used with"),
        (&["--seconds", "3"], "--seconds cannot be used with this host alone"),
        (&["--port-range", "7000-7001"], "--port-range cannot be used with this host alone"),
        (&["--transport", "tcp"], "--transport cannot be used with this host alone"),
        (&["--relay"], "--relay cannot be used with this host alone"),
        (&["--within", "5", "h"], "--within cannot be used with one HOST; it is for several hosts"),
        (&["--within", "5", "[fd00::1]"], "--within cannot be used with one HOST"),
        (&["--drill", "--seconds", "3", "h"], "--seconds cannot be used with --drill"),
        (&["--drill", "--port-range", "7000-7001", "h"], "--port-range cannot be used with --drill"),
        (&["--", "-oProxyCommand=x"], "HOST must be a name"),
        (&["--rsh", "ssh 'x", "h"], "quote"),
    ] {
        let said = said(rddoctor().args(arguments));
        assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.starts_with("rddoctor: ") && said.stderr.contains(part), "{arguments:?}: {}", said.stderr);
    }
    drop(lab);
}

#[test]
fn an_output_that_is_closed_and_one_that_is_full() {
    let mut command = in_shell("{ \"$@\"; echo $? >&2; } | true", &rddoctor());
    // `true` may still be running when the short output is written.
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    let code = ended.stderr.lines().last().unwrap_or_default().to_owned();
    assert!(["0", "10", "11", "141"].contains(&code.as_str()), "{}", ended.stderr);
    let mut command = in_shell("\"$@\" >/dev/full", &rddoctor());
    let ended = Process::spawn(command.stdin(Stdio::null())).wait();
    ended.expect(6).one_line("rddoctor", &["standard output", "No space"]);
    let mut command = in_shell("\"$@\" >&-", &rddoctor());
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(6).one_line("rddoctor", &["standard output", "errno 9"]);
}

/// Returns how much processor time a process has used. Unlike its counters of bytes, that is not only for root to read.
fn processor_time(pid: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The fields after the name are numbered from 3; utime and stime are 14 and 15, in ticks of 10 ms.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

#[test]
fn a_signal_ends_it_and_its_agent() {
    let lab = Lab::new();
    lab.script("rsh", &format!("echo $$ >'{}'; exec sh -c \"exec $2\"", lab.0.join("pid").display()));
    let mut command = lab.command("rsh", &["--agent", AGENT, "--seconds", "60", "h"]);
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let until = Instant::now() + PATIENCE;
    while fs::read_to_string(lab.0.join("pid")).unwrap_or_default().trim().is_empty() {
        assert!(Instant::now() < until && process.is_running(), "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = fs::read_to_string(lab.0.join("pid")).expect("it").trim().to_owned();
    // During the measurement: only receiving at full speed takes the agent so long.
    let until = Instant::now() + PATIENCE;
    while processor_time(&pid) < Duration::from_secs(1) {
        assert!(Instant::now() < until && process.is_running(), "nothing is measured: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::INT);
    let ended = process.wait();
    ended.expect(130);
    let until = Instant::now() + Duration::from_secs(5);
    while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < until, "the agent is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
