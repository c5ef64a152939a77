//! `rddoctor` between hosts with sshd: ports shut by a firewall, in one direction and in both, hosts that cannot reach
//! each other, and a slow host and a slow pair among eight. `tests/run` makes the hosts, as root, and runs these tests
//! in them. Elsewhere they are not run.

mod rig;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::hosts::*;
use rig::network::*;
use rig::*;
use serde_json::Value;

/// Ports shut by the firewalls here. The kernels for these tests may have no packet filter. A routing rule that drops
/// packets for a port is a firewall too.
const SHUT: &str = "45000-45009";

fn doctor(network: &Network, arguments: &[&str]) -> (i32, Value, Duration) {
    let mut command = Command::new(PROGRAM);
    command.arg("rddoctor");
    command.arg("-F").arg(network.path("ssh_config")).args(["--agent", AGENT, "--json"]).args(arguments);
    let start = Instant::now();
    let mut process = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut stdout = String::new();
    process.stdout().read_to_string(&mut stdout).expect("text");
    let ended = process.wait();
    let report = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {ended:?}"));
    (ended.code, report, start.elapsed())
}

#[track_caller]
fn of_path<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["part"] == "path" && finding["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} in {report:#}"))
}

#[track_caller]
fn text<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap_or_else(|| panic!("no {field} in {finding:#}"))
}

/// A firewall on a host that drops packets for [`SHUT`], for as long as the value lives.
struct Firewall(u32);

impl Firewall {
    fn on(host: u32) -> Self {
        let firewall = Self(host);
        // Rules are tried in order, and the rule for local addresses comes first.
        firewall.rule(&["add", "pref", "100", "lookup", "local"]);
        firewall.rule(&["del", "pref", "0"]);
        firewall.rule(&["add", "pref", "10", "iif", "e0", "ipproto", "6", "dport", SHUT, "blackhole"]);
        for verb in [&["add", "pref", "100", "lookup", "local"][..], &["del", "pref", "0"]] {
            firewall.ip(&[&["-6", "rule"], verb].concat());
        }
        firewall.ip(&["-6", "rule", "add", "pref", "10", "iif", "e0", "ipproto", "6", "dport", SHUT, "blackhole"]);
        firewall
    }

    fn rule(&self, arguments: &[&str]) {
        self.ip(&[&["rule"], arguments].concat());
    }

    fn ip(&self, arguments: &[&str]) {
        let status = on(self.0, Command::new("ip").args(arguments)).status().expect("ip");
        assert!(status.success(), "ip {arguments:?}");
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        for family in ["-4", "-6"] {
            for rule in [&["add", "pref", "0", "lookup", "local"][..], &["del", "pref", "10"], &["del", "pref", "100"]]
            {
                let _ = on(self.0, Command::new("ip").arg(family).arg("rule").args(rule)).status();
            }
        }
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn two_hosts_and_nothing_between() {
    let network = Network::start();
    let (code, report, _) = doctor(&network, &["--seconds", "1", "h2"]);
    assert!(code == 0 || code == 10, "{report:#}");
    assert_eq!(of_path(&report, "ssh")["code"], "agent");
    let port = of_path(&report, "port");
    assert_eq!((text(port, "code"), port["level"].as_str()), ("reached", Some("ok")));
    assert!(text(port, "found").starts_with("10.9.0.2 ") || text(port, "found").starts_with("fd00:9::2 "), "{port:#}");
    assert_eq!(of_path(&report, "route")["code"], "route", "sshd says by what it was reached");
    assert!(text(of_path(&report, "route"), "found").contains("e0"));
    let bandwidth = of_path(&report, "bandwidth");
    assert!(text(bandwidth, "found").contains("TCP, encrypted"), "{bandwidth:#}");
    let nodes: Vec<&str> = report["findings"].as_array().expect("a list").iter().map(|it| text(it, "host")).collect();
    assert!(nodes.contains(&"h1") && nodes.contains(&"h2"), "{nodes:?}");
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_firewall_there_and_one_at_both_ends() {
    let network = Network::start();
    let there = Firewall::on(2);
    let arguments = ["--port-range", SHUT, "--seconds", "1", "h2"];
    let (code, report, after) = doctor(&network, &arguments);
    let port = of_path(&report, "port");
    assert_eq!((code, text(port, "code"), text(port, "level")), (10, "reached-back", "warning"), "{report:#}");
    assert!(text(port, "found").contains("10.9.0.2: no answer"), "{port:#}");
    assert!(text(port, "why").contains("drops"), "{port:#}");
    let fix = port["command"].as_str().or(port["advice"].as_str()).expect("one of them");
    assert!(fix.contains("45000") && fix.contains("45009"), "{fix}");
    assert_eq!(text(port, "host"), "h2", "where the fix is to be run");
    assert_eq!(of_path(&report, "bandwidth")["level"], "ok", "the other end connects then");
    assert!(after < Duration::from_secs(25), "{after:?}");
    let _here = Firewall::on(1);
    let (code, report, after) = doctor(&network, &arguments);
    let port = of_path(&report, "port");
    assert_eq!((code, text(port, "code"), text(port, "level")), (11, "not-reached", "failure"), "{report:#}");
    let bandwidth = of_path(&report, "bandwidth");
    assert!(text(bandwidth, "found").contains("through ssh"), "{bandwidth:#}");
    assert!(after < Duration::from_secs(40), "{after:?}");
    drop(there);
    all_gone(SOON);
}

/// One after the other, they would take 35 s.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn firewalls_of_several_hosts_are_waited_for_at_once() {
    let network = Network::of(8);
    let firewalls: Vec<Firewall> = (1..=8).map(Firewall::on).collect();
    let (code, report, after) = doctor(&network, &["--port-range", SHUT, "--seconds", "0", "h[2-8]"]);
    drop(firewalls);
    let findings = report["findings"].as_array().expect("a list");
    let shut: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["code"] == "not-reached")
        .map(|finding| text(finding, "name"))
        .collect();
    assert_eq!((code, shut), (11, vec!["h2", "h3", "h4", "h5", "h6", "h7", "h8"]), "{report:#}");
    assert!(after < Duration::from_secs(25), "{after:?}");
    all_gone(SOON);
}

/// A switch for jumbo frames whose MTU was left at 1500 bytes.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn large_packets_that_are_lost_are_told() {
    let network = Network::start();
    let _second = SecondNetwork::of(&[1, 2], "40mbit");
    for host in 1..=2 {
        let run = |program: &str, words: &str| {
            let status = on(host, Command::new(program).args(words.split(' '))).status().expect(program);
            assert!(status.success(), "{program} {words}");
        };
        run("ip", "link set e1 mtu 9000");
        // Packets larger than the burst are dropped.
        run("tc", "qdisc replace dev e1 root tbf rate 40mbit burst 2000 latency 50ms");
    }
    let (code, report, after) = doctor(&network, &["--via", "10.7.0.2", "--seconds", "1", "h2"]);
    let bandwidth = of_path(&report, "bandwidth");
    assert_eq!((code, text(bandwidth, "code")), (11, "bandwidth-failed"), "{report:#}");
    assert!(text(bandwidth, "found").contains("large packets do not get through"), "{bandwidth:#}");
    assert!(after < Duration::from_secs(40), "{after:?}");
    all_gone(SOON);
}

/// Another link between two hosts, limited to this rate, that carries all traffic between them.
struct SlowWay(u32, u32);

impl SlowWay {
    fn between(one: u32, other: u32, rate: &str) -> Self {
        let way = Self(one, other);
        let target = pid_on(other).to_string();
        let ip = |host: u32, words: &str| {
            let status = on(host, Command::new("ip").args(words.split(' '))).status().expect("ip");
            assert!(status.success(), "ip {words}");
        };
        ip(one, &format!("link add slow type veth peer name slow netns {target}"));
        for (host, to) in [(one, other), (other, one)] {
            ip(host, "link set slow up");
            ip(host, &format!("route add {} dev slow src {}", address(to), address(host)));
            ip(host, &format!("-6 route add blackhole fd00:9::{to}"));
            let shaper = format!("qdisc replace dev slow root tbf rate {rate} burst 32kb latency 20ms");
            assert!(on(host, Command::new("tc").args(shaper.split(' '))).status().expect("tc").success());
        }
        way
    }
}

impl Drop for SlowWay {
    fn drop(&mut self) {
        let _ = on(self.0, Command::new("ip").args(["link", "del", "slow"])).status();
        for (host, to) in [(self.0, self.1), (self.1, self.0)] {
            let _ = on(host, Command::new("ip").args(["-6", "route", "del", &format!("fd00:9::{to}")])).status();
        }
    }
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_slow_host_and_a_slow_pair_of_eight() {
    let network = Network::of(8);
    let held = Held::at(1..=8, "80mbit");
    hold(5, "8mbit");
    let way = SlowWay::between(2, 3, "8mbit");
    let (code, report, after) = doctor(&network, &["h[1-9]"]);
    drop((way, held));
    assert_eq!(code, 11, "there is no ninth: {report:#}");
    let pairs = report["pairs"].as_array().expect("a list");
    assert_eq!(pairs.len(), 8 * 7, "all pairs of those that are there, both ways");
    let told: Vec<String> = report["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|finding| finding["part"] == "pairs" && finding["level"] != "ok")
        .map(|finding| format!("{} {}", text(finding, "code"), text(finding, "about")))
        .collect();
    assert_eq!(told, ["host-slow h5", "pair-slow h2 -> h3", "pair-slow h3 -> h2"], "{report:#}");
    let unreached: Vec<&Value> =
        report["findings"].as_array().expect("a list").iter().filter(|finding| finding["level"] == "failure").collect();
    assert!(unreached.len() == 1 && unreached[0]["name"] == "h9" && unreached[0]["check"] == "ssh", "{unreached:#?}");
    assert!(after < Duration::from_secs(40), "{after:?}");
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn a_host_that_only_a_jump_reaches() {
    let network = Network::start();
    let no_way = NoWay::unreachable(1, 3);
    let (code, report, _) = doctor(&network, &["-J", "h2", "--seconds", "0", "h3"]);
    drop(no_way);
    let port = of_path(&report, "port");
    assert_eq!((code, text(port, "code")), (11, "not-reached"), "{report:#}");
    assert!(text(port, "found").contains("10.9.0.3: No route to host"), "{port:#}");
    assert!(text(port, "why").contains("route"), "{port:#}");
    assert!(of_path(&report, "ssh")["level"] == "ok");
    all_gone(SOON);
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn hosts_that_ssh_does_not_reach() {
    let network = Network::start();
    for (arguments, parts) in [
        (&["no-such-host.invalid"][..], &["no-such-host.invalid", "resolve"][..]),
        (&["-P", "23", "h2"], &["h2", "refused"]),
        (&["--agent", "/nonexistent/agent", "h2"], &["h2 has no", "--agent"]),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("rddoctor");
        command.arg("-F").arg(network.path("ssh_config")).args(arguments);
        let mut process = Process::spawn(on(1, &command).stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut said = String::new();
        process.stdout().read_to_string(&mut said).expect("text");
        process.wait().expect(11);
        let found = said
            .split_once("  FAIL  ssh ")
            .and_then(|(_, rest)| rest.split_once("  why "))
            .unwrap_or_else(|| panic!("{said}"));
        // Lines are wrapped at the width of the screen.
        let found = found.0.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(found.contains(part), "{part}: {said}");
        }
    }
    all_gone(SOON);
}
