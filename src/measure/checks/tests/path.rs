//! Tests the checks of the path between two hosts.

use std::net::IpAddr;

use super::*;
use crate::measure::counters::Counter;
use crate::measure::facts::{Address, RdmaAddress, TcpSettings};
use crate::measure::finding::Outcome;
use crate::measure::probe::Attempt;
use crate::measure::{Path, Speed};

/// Checks a path whose user has named no ports.
fn compare(way: &Path) -> Vec<Finding> {
    super::super::compare(way, None)
}

fn attempt(address: &str, is_rdma: bool, outcome: Outcome) -> Attempt {
    Attempt { address: address.parse::<IpAddr>().expect("an address"), is_rdma, outcome, micros: 150 }
}

/// Returns the path between two healthy hosts that reach each other.
fn path() -> Path {
    let here = facts("connectx");
    let mut there = here.clone();
    there.host = "node2".to_owned();
    there.interfaces[0].addresses = vec![Address { ip: "10.0.0.2".parse().expect("one"), prefix_bits: 24 }];
    there.rdma[0].address = there.interfaces[0].addresses[0].clone();
    let both = |to: &str| Some(Ok(vec![attempt(to, false, Outcome::Connected), attempt(to, true, Outcome::Connected)]));
    let speed = Speed { bytes: 23_000_000_000, micros: 2_000_000, medium: "rdma".to_owned(), ..Speed::default() };
    Path {
        here,
        there,
        agent_micros: 300_000,
        to_there: both("10.0.0.2"),
        to_here: both("10.0.0.1"),
        speed: Some(Ok(speed)),
        ..Path::default()
    }
}

#[test]
fn a_way_that_is_well() {
    let way = path();
    let findings = compare(&way);
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
    let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["ssh", "port", "rdma port", "bandwidth"]);
    let speed = way.speed.as_ref().expect("it").as_ref().expect("it");
    let ceiling = super::super::path::ceiling_mbps(&way, speed);
    assert!((97_000..100_000).contains(&ceiling), "{ceiling}");
    assert!(findings[3].found.contains("% of the link's"), "{}", findings[3].found);
}

#[test]
fn firewalls() {
    let mut way = path();
    way.to_there =
        Some(Ok(vec![attempt("10.0.0.2", false, Outcome::Silent), attempt("10.0.0.2", true, Outcome::Silent)]));
    let found = bad(compare(&way));
    assert_eq!(found.len(), 1, "RDMA works from there: {found:#?}");
    assert_eq!((found[0].code, found[0].level), ("reached-back", Level::Warning));
    way.to_here =
        Some(Ok(vec![attempt("10.0.0.1", false, Outcome::Refused), attempt("10.0.0.1", true, Outcome::Silent)]));
    let found = bad(compare(&way));
    assert_eq!(one_of(&found, "port").level, Level::Failure);
    says(one_of(&found, "port"), "not-reached", "10.0.0.2: no answer");
    assert!(fix(one_of(&found, "port")).starts_with("nft "), "{found:#?}");
    assert_eq!(one_of(&found, "rdma port").level, Level::Failure);
    says(one_of(&found, "rdma port"), "rdma-not-reached", "10.0.0.2: no answer; 10.0.0.1: no answer");
    assert!(fix(one_of(&found, "rdma port")).contains("4791"), "RoCE's port: {found:#?}");
    // Software devices are used only on request.
    way.here.rdma[0].is_hardware = false;
    assert_eq!(one_of(&bad(compare(&way)), "rdma port").level, Level::Warning);
    way.to_there = Some(Err("no port".to_owned()));
    assert!(bad(compare(&way)).iter().any(|finding| finding.code == "probe-failed"));
}

#[test]
fn ports_for_which_there_was_no_time_are_a_warning() {
    let found = bad(compare(&Path { to_there: None, to_here: None, is_untried: true, ..path() }));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].code, found[0].level), ("ports-untried", Level::Warning));
}

/// Returns the path between two hosts, neither of which reaches the other over TCP or RDMA.
fn unreached(outcome: &Outcome, firewall: &str) -> Path {
    let both = |to: &str| Some(Ok(vec![attempt(to, false, outcome.clone()), attempt(to, true, outcome.clone())]));
    let mut way = Path { to_there: both("10.0.0.2"), to_here: both("10.0.0.1"), ..path() };
    way.there.firewall = firewall.to_owned();
    way
}

#[test]
fn commands_of_several_firewalls() {
    for (firewall, command) in [
        ("firewall-cmd", "firewall-cmd --permanent --add-port=47000-47099/tcp"),
        ("ufw", "ufw allow 47000:47099/tcp"),
        ("nft", "nft insert rule inet filter input tcp dport 47000-47099 accept"),
        ("iptables", "iptables -I INPUT -p tcp --dport 47000:47099 -j ACCEPT"),
        ("", "open tcp ports 47000-47099"),
    ] {
        let found = bad(compare(&unreached(&Outcome::Silent, firewall)));
        let told = fix(one_of(&found, "port"));
        assert!(told.starts_with(command), "{firewall}: {told}");
        let told = fix(one_of(&found, "rdma port"));
        assert!(told.contains("4791") && told.contains("udp"), "{firewall}: {told}");
    }
}

#[test]
fn what_is_in_the_way_is_told_apart() {
    for (outcome, found, why) in [
        (Outcome::Silent, "10.0.0.2: no answer", "drops"),
        (Outcome::Refused, "10.0.0.2: refused", "refuses"),
        (Outcome::Unreachable(113), "10.0.0.2: No route to host (errno 113)", "route"),
        (Outcome::Unreachable(i32::MIN), "10.0.0.2: unreachable", "route"),
        (Outcome::Other("x".to_owned()), "10.0.0.2: x", "firewall"),
    ] {
        let findings = super::super::compare(&unreached(&outcome, ""), Some(&(7000..=7000)));
        let port = one_of(&findings, "port");
        assert!(port.found == found && port.why.contains(why), "{port:?}");
        assert_eq!(port.fix, Some(Fix::advice("open tcp ports 7000 in the firewalls between the two hosts")));
    }
}

#[test]
fn a_network_that_is_not_ours_need_not_be_reached() {
    let mut way = path();
    let far = || attempt("10.9.9.2", false, Outcome::Silent);
    way.to_there.as_mut().expect("it").as_mut().expect("it").insert(1, far());
    assert!(bad(compare(&way)).is_empty());
    // An address on a shared network must be reachable.
    way.there.interfaces[0].addresses.push(Address { ip: "10.0.0.3".parse().expect("one"), prefix_bits: 24 });
    way.to_there.as_mut().expect("it").as_mut().expect("it").push(attempt(
        "10.0.0.3",
        false,
        Outcome::Unreachable(113),
    ));
    let found = bad(compare(&way));
    assert_eq!(found[0].code, "reached-some");
    assert!(found[0].found.ends_with("; not reached: 10.0.0.3: No route to host (errno 113)"), "{found:#?}");
}

#[test]
fn addresses_and_mtus_that_do_not_fit() {
    let mut way = path();
    way.there.interfaces[0].addresses = way.here.interfaces[0].addresses.clone();
    way.there.rdma = way.here.rdma.clone();
    way.there.interfaces[0].mtu = 1500;
    let found = bad(compare(&way));
    assert_eq!((found[0].level, found[0].check), (Level::Failure, "addresses"));
    // RDMA uses the larger MTU or the smaller one, and may not work.
    let differ = "enp65s0f0np0 here has MTU 9000, enp65s0f0np0 there has 1500";
    let findings = compare(&way);
    let mtu = one_of(&findings, "path mtu");
    says(mtu, "mtu-differs", &format!("{differ}: RDMA works all the same"));
    assert_eq!(mtu.level, Level::Ok);
    let lost = Path { speed: Some(Err("no connection".to_owned())), ..way.clone() };
    let findings = bad(compare(&lost));
    let mtu = one_of(&findings, "path mtu");
    says(mtu, "mtu-differs", differ);
    let advice = "set enp65s0f0np0 to MTU 1500 on the host where it is 9000; use 9000 at both only if ";
    assert!(matches!(&mtu.fix, Some(Fix::Do(text)) if text.starts_with(advice)), "{mtu:#?}");
    // So may RDMA's, where only TCP has worked.
    let by_tcp = Speed { medium: "tcp".to_owned(), ..way.speed.clone().expect("it").expect("it") };
    let only_tcp = Path { speed: Some(Ok(by_tcp)), ..way.clone() };
    assert_eq!(one_of(&compare(&only_tcp), "path mtu").level, Level::Warning);
    let without = Facts { rdma: Vec::new(), ..only_tcp.there.clone() };
    // The ends of TCP agree on the smaller one, also if other interfaces have RDMA.
    for speed in [&only_tcp.speed, &way.speed] {
        let findings = compare(&Path { there: without.clone(), speed: speed.clone(), ..only_tcp.clone() });
        let mtu = one_of(&findings, "path mtu");
        says(mtu, "mtu-differs", &format!("{differ}: both use the smaller one"));
        assert_eq!(mtu.level, Level::Ok);
    }
    // Two names of the same machine share all addresses.
    way.is_one_machine = true;
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));
    // Bridges to containers have the same addresses on every host.
    way.is_one_machine = false;
    way.here.interfaces[0].name = "docker0".to_owned();
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));

    let mut way = path();
    way.there.rdma[0].address = Address { ip: "10.7.0.2".parse().expect("one"), prefix_bits: 24 };
    assert!(bad(compare(&way)).is_empty(), "a router connects them");
    for tried in [&mut way.to_there, &mut way.to_here] {
        tried.as_mut().expect("it").as_mut().expect("it")[1].outcome = Outcome::Silent;
    }
    assert_eq!(bad(compare(&way))[0].code, "subnet-missing");
    way.there.rdma.clear();
    let findings = compare(&way);
    says(one_of(&findings, "subnets"), "rdma-one-sided", "node2 has no RDMA; data goes over TCP");
    assert!(findings.iter().all(|finding| finding.check != "rdma port"));
}

#[test]
fn link_local_addresses_are_no_network_between_two_hosts() {
    let mut way = path();
    // As of the network between a host and its management controller.
    for (host, mtu) in [(&mut way.here, 1500), (&mut way.there, 1280)] {
        host.interfaces.push(crate::measure::facts::Interface {
            name: "idrac".to_owned(),
            is_up: true,
            mtu,
            addresses: vec![Address { ip: "169.254.0.2".parse().expect("one"), prefix_bits: 16 }],
            ..Default::default()
        });
    }
    way.to_there.as_mut().expect("it").as_mut().expect("it").push(attempt("169.254.0.2", false, Outcome::Refused));
    let findings = compare(&way);
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
}

#[test]
fn ssh_by_another_network_than_the_data() {
    let mut way = path();
    let slow = |address: &str| crate::measure::facts::Interface {
        name: "eno1".to_owned(),
        is_up: true,
        mtu: 1500,
        rate_mbps: 1000,
        addresses: vec![Address { ip: address.parse().expect("one"), prefix_bits: 24 }],
        ..Default::default()
    };
    way.here.interfaces.push(slow("192.168.1.1"));
    way.there.interfaces.push(slow("192.168.1.2"));
    way.there.ssh = "192.168.1.2".to_owned();
    let found = "ssh uses eno1 1 Gbit/s, the data enp65s0f0np0 100 Gbit/s";
    says(one_of(&compare(&way), "route"), "route", found);
    way.there.ssh = "no address".to_owned();
    assert!(compare(&way).iter().all(|finding| finding.check != "route"));
}

#[test]
fn speeds() {
    let mut way = path();
    let with = |bytes, medium: &str| {
        Some(Ok(Speed { bytes, micros: 2_000_000, medium: medium.to_owned(), ..Speed::default() }))
    };
    way.speed = with(10_000_000_000, "rdma");
    assert_eq!(bad(compare(&way))[0].code, "bandwidth-low", "40 of 100 Gbit/s");
    // As much as four PCIe lanes can carry.
    way.speed = with(11_000_000_000, "rdma");
    way.there.devices[0].pci.as_mut().expect("it").width = 4;
    assert!(bad(compare(&way)).is_empty());
    // A slower adapter in a slower slot beside the one in use does not limit it.
    way = path();
    let mut slow = way.there.devices[0].clone();
    slow.name = "mlx5_9".to_owned();
    slow.pci.as_mut().expect("it").width = 1;
    slow.ports[0].mtu = Some(256);
    way.there.devices.push(slow);
    way.there.rdma.push(RdmaAddress { device: "mlx5_9".to_owned(), rate_mbps: 25_000, ..way.there.rdma[0].clone() });
    way.speed = with(10_000_000_000, "rdma");
    assert_eq!(bad(compare(&way))[0].code, "bandwidth-low", "40 of 100 Gbit/s");
    // The rate of TCP depends on the processors.
    way.speed = with(12_000_000_000, "tcp");
    assert!(bad(compare(&way)).is_empty());
    way.speed = with(1_000_000_000, "tcp");
    assert_eq!(bad(compare(&way))[0].level, Level::Warning);
    // Nor may they all be usable.
    way.speed.as_mut().expect("it").as_mut().expect("it").limiter = "cpu".to_owned();
    (way.there.processors, way.there.usable) = (128, Some(2));
    let found = bad(compare(&way));
    assert!(fix(&found[0]).contains("; give the container or job on node2 more than 2 of 128; use a "), "{found:#?}");
    way.speed.as_mut().expect("it").as_mut().expect("it").limiter = "sink".to_owned();
    assert_eq!(fix(&bad(compare(&way))[0]), "the receiver is behind; see what else runs on node2");
    // Two networks may carry more than one, and how much more is unknown.
    for (bytes, code, found) in [
        (46_000_000_000, "bandwidth", "23.00 GB/s, RDMA, 187 % of one link's 12.25 GB/s"),
        (10_000_000_000, "bandwidth-low", "5.00 GB/s, RDMA, 40 % of one link's 12.25 GB/s"),
    ] {
        way.speed = with(bytes, "rdma");
        way.speed.as_mut().expect("it").as_mut().expect("it").rails = 2;
        says(one_of(&compare(&way), "bandwidth"), code, found);
    }
    // The capacity of software is unknown.
    way.speed = with(1, "rdma-software");
    assert!(bad(compare(&way)).is_empty());
    way.speed = Some(Err("no connection".to_owned()));
    assert_eq!(bad(compare(&way))[0].level, Level::Failure);
    way.speed = None;
    assert!(bad(compare(&way)).is_empty());
    way.agent_micros = 5_000_000;
    way.there.program = "9.9.9".to_owned();
    let found = bad(compare(&way));
    assert_eq!((found[0].code, found[1].code), ("agent-slow", "versions"));
    // A person may have typed all that time.
    assert!(found[0].why.contains(", unless ssh asked for a password"), "{found:#?}");
}

/// Returns two hosts on a line of 1 Gbit/s and 50 ms, with the kernel's defaults: 6.25 MB are in flight, a window is 2
/// MiB.
fn long_line() -> Path {
    let settings = || TcpSettings {
        receive: [4096, 131_072, 6 << 20],
        send: [4096, 16_384, 4 << 20],
        congestion: "cubic".to_owned(),
        available: vec!["reno".to_owned(), "cubic".to_owned()],
        qdisc: "fq_codel".to_owned(),
    };
    let mut way = path();
    for host in [&mut way.here, &mut way.there] {
        assert_eq!(host.tcp, Some(settings()), "as it is recorded");
        host.interfaces[0].rate_mbps = 1000;
    }
    for attempts in [&mut way.to_there, &mut way.to_here] {
        attempts.as_mut().expect("it").as_mut().expect("it").iter_mut().for_each(|one| one.micros = 50_000);
    }
    way.speed = Some(Ok(Speed { bytes: 220_000_000, micros: 2_000_000, medium: "tcp".to_owned(), ..Speed::default() }));
    way
}

fn of_tcp(way: &Path) -> Vec<Finding> {
    compare(way).into_iter().filter(|finding| finding.check == "tcp").collect()
}

#[test]
fn windows_for_the_line() {
    let mut way = long_line();
    says(&of_tcp(&way)[0], "tcp", "round trip 50.0 ms, 3 connections fill the link, opened as needed, cubic");
    // With four times the round trip, the windows of both hosts are small.
    way.to_there.as_mut().expect("it").as_mut().expect("it")[0].micros = 200_000;
    let found = of_tcp(&way);
    assert_eq!(found.len(), 2, "{found:#?}");
    for (finding, host) in found.iter().zip(["node1", "node2"]) {
        assert_eq!((finding.about.as_str(), finding.level), (host, Level::Warning));
        let small = "a connection has at most 2.0 MiB in flight; at a round trip of 200.0 ms it takes 12 of them for ";
        assert!(begins(finding, "tcp-window-small", small), "{finding:#?}");
        // The proposal is four times the bytes in flight, in whole MiB. The other values stay.
        let most = 95 << 20;
        let buffers = format!("net.ipv4.tcp_rmem='4096 131072 {most}' net.ipv4.tcp_wmem='4096 16384 {most}'");
        assert!(fix(finding).starts_with(&format!("sysctl -w {buffers} #")), "{finding:#?}");
    }
    // With the proposed values, nothing is reported.
    for host in [&mut way.here, &mut way.there] {
        let settings = host.tcp.as_mut().expect("set");
        (settings.receive[2], settings.send[2]) = (96 << 20, 96 << 20);
    }
    assert!(of_tcp(&way)[0].found.contains(", one connection fills the link"), "{:#?}", of_tcp(&way));
    // Nothing is reported without TCP settings, through ssh, over RDMA, or within one machine.
    (way.here.tcp, way.there.tcp) = (None, None);
    assert!(of_tcp(&way).is_empty());
    for change in [
        |way: &mut Path| way.is_one_machine = true,
        |way: &mut Path| way.to_there = None,
        |way: &mut Path| way.speed.as_mut().expect("it").as_mut().expect("it").is_tunneled = true,
        |way: &mut Path| way.speed.as_mut().expect("it").as_mut().expect("it").medium = "rdma".to_owned(),
    ] {
        let mut way = long_line();
        assert_eq!(of_tcp(&way).len(), 1);
        change(&mut way);
        assert!(of_tcp(&way).is_empty());
    }
}

#[test]
fn buffers_are_those_of_one_host_even_if_both_have_the_same_name() {
    let mut way = long_line();
    way.there.host.clone_from(&way.here.host);
    let settings = way.there.tcp.as_mut().expect("set");
    (settings.receive[2], settings.congestion) = (24_000, "reno".to_owned());
    let is_here = |way: &Path| of_tcp(way).iter().map(|finding| finding.is_here).collect::<Vec<_>>();
    assert_eq!(is_here(&way), [false, false], "{:#?}", of_tcp(&way));
    std::mem::swap(&mut way.here.tcp, &mut way.there.tcp);
    assert_eq!(is_here(&way), [true, true], "{:#?}", of_tcp(&way));
}

#[test]
fn what_a_peer_says_of_its_buffers_is_no_more_than_a_number() {
    let mut way = long_line();
    for sizes in [[0; 3], [u64::MAX; 3]] {
        let settings = way.there.tcp.as_mut().expect("set");
        (settings.receive, settings.send) = (sizes, sizes);
        way.speed = Some(Ok(Speed { bytes: u64::MAX, micros: 1, medium: "tcp".to_owned(), ..Speed::default() }));
        assert!(!of_tcp(&way).is_empty());
    }
}

#[test]
fn congestion_control_on_a_long_line() {
    let control = |way: &Path| {
        let finding = of_tcp(way).into_iter().find(|finding| finding.code == "congestion-control");
        finding.map(|finding| (finding.about.clone(), finding.found.clone(), fix(&finding).to_owned()))
    };
    let mut way = long_line();
    assert_eq!(control(&way), None, "cubic is right where nothing is lost");
    way.there.tcp.as_mut().expect("set").congestion = "reno".to_owned();
    let (about, found, command) = control(&way).expect("reno is slow");
    assert_eq!((about.as_str(), found.as_str()), ("node2", "reno at a round trip of 50.0 ms"));
    let set = "sysctl -w net.ipv4.tcp_congestion_control=bbr";
    let fair = format!("modprobe tcp_bbr && {set} net.core.default_qdisc=fq #");
    assert!(command.starts_with(&fair), "{command}");
    let settings = way.there.tcp.as_mut().expect("set");
    settings.qdisc = "fq".to_owned();
    settings.available.push("bbr".to_owned());
    let (_, _, command) = control(&way).expect("reno is slow");
    assert!(command.starts_with(&format!("{set} #")), "{command}");
    // Another network namespace has no qdisc of its own, and a container cannot change its machine.
    let settings = way.there.tcp.as_mut().expect("set");
    settings.qdisc.clear();
    let (_, _, command) = control(&way).expect("reno is slow");
    assert!(command.starts_with(&format!("{set} #")), "{command}");
    way.there.is_container = true;
    let found = of_tcp(&way);
    let Some(Fix::Do(advice)) = &found[0].fix else { panic!("{found:#?}") };
    assert!(advice.starts_with(&format!("on the container's machine, as root: {set} #")), "{advice}");
    assert!(advice.ends_with("; a container with a network of its own takes it over when it is started"), "{advice}");
    // Within a building the congestion control does not matter.
    way.to_there.as_mut().expect("it").as_mut().expect("it")[0].micros = 500;
    assert_eq!(control(&way), None);
    // With observed losses.
    let mut way = long_line();
    let counted = |sent, again| {
        [("OutSegs", sent), ("RetransSegs", again)]
            .map(|(name, count)| Counter { of: "tcp".to_owned(), name: name.to_owned(), count })
            .to_vec()
    };
    way.here.counters = counted(0, 0);
    way.after = Some([counted(100_000, 1500), Vec::new()]);
    let (about, found, _) = control(&way).expect("cubic is slow");
    assert_eq!((about.as_str(), found.as_str()), ("node1", "cubic at a round trip of 50.0 ms, and packets are lost"));
    way.here.tcp.as_mut().expect("set").congestion = "bbr".to_owned();
    way.there.tcp.as_mut().expect("set").congestion = "bbr".to_owned();
    assert_eq!(control(&way), None);
}
