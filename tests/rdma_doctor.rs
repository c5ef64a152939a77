//! `rddoctor` over real RDMA verbs: on one host with soft-RoCE (`RD_TESTBED=rxe`), between hosts with soft-iWARP
//! (`siw`). `tests/run` runs it in the testbed's guest. Elsewhere it cannot run, and is ignored.

mod rig;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::{AGENT, PROGRAM, Process, Scratch};
use serde_json::Value;

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
    let status = on(host, "timeout").args(["20", "sh", "-c", line]).status().expect("a shell");
    assert!(status.success(), "on host {host}: {line}: {status}");
}

fn device() -> &'static str {
    if is_siw() { "siw1" } else { "rxe0" }
}

/// Returns exit code and JSON report of rddoctor on host 1. `wrapped`: the command that runs it.
fn doctor(wrapped: &[&str], arguments: &[&str]) -> (i32, Value) {
    shell(1, &format!("until grep -q ACTIVE /sys/class/infiniband/{}/ports/1/state; do sleep 0.1; done", device()));
    let scratch = Scratch::new();
    let reach: &[u8] = if is_siw() {
        b"#!/bin/sh\nexec \"$RD_HOST\" exec \"$1\" sh -c \"exec $2\"\n"
    } else {
        b"#!/bin/sh\nexec sh -c \"exec $2\"\n"
    };
    let launcher = scratch.file("rsh", reach);
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let words = [wrapped, &[PROGRAM, "rddoctor"]].concat();
    let mut command = on(1, words[0]);
    command.args(&words[1..]).arg("--rsh").arg(launcher).args(["--agent", AGENT, "--json"]).args(arguments);
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut stdout = String::new();
    process.stdout().read_to_string(&mut stdout).expect("text");
    let ended = process.wait();
    let report = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {}", ended.stderr));
    eprintln!("{report:#}"); // shown when the test fails
    (ended.code, report)
}

fn all<'a>(report: &'a Value, part: &str, check: &str) -> Vec<&'a Value> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter(|finding| finding["part"] == part && finding["check"] == check).collect()
}

/// Returns code and text of a check's finding. If there are several, the finding about the device is taken.
#[track_caller]
fn found<'a>(report: &'a Value, part: &str, check: &str) -> (&'a str, &'a str) {
    let all = all(report, part, check);
    let of_device = all.iter().find(|finding| finding["about"] == device()).or(all.first());
    let finding = of_device.unwrap_or_else(|| panic!("no {check} of {part}"));
    (finding["code"].as_str().expect("text"), finding["found"].as_str().expect("text"))
}

#[test]
#[ignore = "needs the testbed's guest"]
fn a_host_with_a_device() {
    let (code, report) = doctor(&["env"], &[]);
    assert!(code == 0 || code == 10, "exit code {code}");
    assert_eq!(found(&report, "here", "libraries").0, "libraries");
    assert_eq!(found(&report, "here", "modules").0, "modules");
    assert_eq!(found(&report, "here", "nodes").0, "nodes");
    assert_eq!(found(&report, "here", "device").0, "device");
    assert!(found(&report, "here", "device").1.contains("software"));
    let port = found(&report, "here", "port");
    assert_eq!(port.0, "port");
    assert!(port.1.contains(if is_siw() { "iWARP" } else { "RoCE" }), "{port:?}");
    assert_eq!(found(&report, "here", "address").0, "addresses");
    assert!(found(&report, "here", "address").1.contains("10.9.0.1"));
    assert_eq!(found(&report, "here", "registration").0, "registered");
    assert_eq!(found(&report, "here", "memlock").0, "memlock-unlimited");
    if is_siw() {
        assert!(all(&report, "here", "mtu").is_empty(), "iWARP's packets are TCP's");
    } else {
        assert!(found(&report, "here", "mtu").1.starts_with("4096 bytes"), "veth0 has MTU 9000");
        assert_eq!(found(&report, "here", "gids").0, "gids");
    }
}

#[test]
#[ignore = "needs the testbed's guest"]
fn a_limit_on_locked_memory() {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"];
    let limited = |bytes: &str| {
        let limit = format!("--memlock={bytes}:{bytes}");
        doctor(&[&["prlimit", &limit, "setpriv"][..], &user].concat(), &[])
    };
    let (code, report) = limited("65536");
    assert_eq!(code, 11);
    let memlock = found(&report, "here", "memlock");
    assert_eq!(memlock.0, "memlock-none");
    assert!(memlock.1.contains("64 kB"), "{memlock:?}");
    assert_eq!(found(&report, "here", "registration").0, "not-registered");
    let fix = all(&report, "here", "memlock")[0]["command"].as_str().expect("a command");
    assert!(fix.contains("/etc/security/limits.d/zz-rdma-pipe.conf"), "{fix}");
    let (code, report) = limited("16896000"); // 16500 kB
    assert_eq!(code, 10);
    assert_eq!(found(&report, "here", "memlock").0, "memlock-small");
    let registration = found(&report, "here", "registration");
    assert_eq!(registration.0, "registered-less");
    assert!(registration.1.contains("MiB"), "{registration:?}");
}

#[test]
#[ignore = "needs the testbed's guest"]
fn rxe_the_mtu_of_the_interface_below() {
    shell(1, "ip link set dev veth0 mtu 1500");
    let (code, report) = doctor(&["env"], &[]);
    shell(1, "ip link set dev veth0 mtu 9000");
    assert_eq!(code, 10);
    let mtu = all(&report, "here", "mtu")[0];
    assert_eq!((mtu["code"].as_str(), mtu["level"].as_str()), (Some("mtu-small"), Some("warning")));
    assert!(mtu["found"].as_str().expect("text").contains("1024 of 4096 bytes"), "{mtu:#}");
    assert_eq!(mtu["advice"], "ip link set dev veth0 mtu 9000");
    // What is advised fixes it.
    let (_, report) = doctor(&["env"], &[]);
    assert_eq!(found(&report, "here", "mtu").0, "mtu");
}

#[test]
#[ignore = "needs the testbed's guest"]
fn an_rdma_connection_between_two() {
    let (code, report) = doctor(&["env"], &["--transport", "prefer-rdma", "2"]);
    assert!(code == 0 || code == 10, "exit code {code}");
    assert_eq!(found(&report, "path", "port").0, "reached");
    let rdma = found(&report, "path", "rdma port");
    assert_eq!(rdma.0, "rdma-reached");
    assert!(rdma.1.contains("rdma_cm"), "{rdma:?}");
    let bandwidth = found(&report, "path", "bandwidth");
    assert!(bandwidth.0 == "bandwidth" && bandwidth.1.contains("RDMA in software"), "{bandwidth:?}");
    // Software devices are not used unless they are asked for.
    let (_, report) = doctor(&["env"], &["--seconds", "1", "2"]);
    assert!(found(&report, "path", "bandwidth").1.contains("TCP"));
}

#[test]
#[ignore = "needs the testbed's guest"]
fn siw_a_host_without_a_device() {
    let (code, report) = doctor(&["env"], &["--seconds", "0", "4"]);
    assert!(code == 0 || code == 10, "exit code {code}");
    assert_eq!(found(&report, "there", "rdma").0, "no-device");
    let subnets = found(&report, "path", "subnets");
    assert_eq!(subnets.0, "rdma-one-sided");
    assert!(subnets.1.starts_with("h4 "), "{subnets:?}");
    assert!(all(&report, "path", "rdma port").is_empty());
}

/// Connections of the siw driver are TCP connections inside the kernel, so a rule that drops packets
/// for a port affects them too.
#[test]
#[ignore = "needs the testbed's guest"]
fn siw_a_firewall_that_shuts_rdma_out() {
    let rules = |host: u8, verbs: &[&str]| {
        for verb in verbs {
            for family in ["-4", "-6"] {
                shell(host, &format!("ip {family} rule {verb}"));
            }
        }
    };
    let shut = "add pref 10 iif e0 ipproto 6 dport 45000-45009 blackhole";
    for host in [1, 2] {
        rules(host, &["add pref 100 lookup local", "del pref 0", shut]);
    }
    let start = Instant::now();
    let (code, report) = doctor(&["env"], &["--port-range", "45000-45009", "--seconds", "0", "2"]);
    for host in [1, 2] {
        rules(host, &["add pref 0 lookup local", "del pref 10", "del pref 100"]);
    }
    // The kernel itself would go on trying for two minutes.
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert_eq!(code, 11);
    assert_eq!(found(&report, "path", "port").0, "not-reached");
    let rdma = all(&report, "path", "rdma port")[0];
    // Software devices are not used unless they are asked for, so this is only a warning.
    assert_eq!((rdma["code"].as_str(), rdma["level"].as_str()), (Some("rdma-not-reached"), Some("warning")));
}
