//! Tests every check on recorded hosts: what the check finds, and how severe the finding is.

use std::net::IpAddr;

use minicbor::Decoder;
use minicbor::data::Type;

use super::{compare, examine};
use crate::measure::counters::Counter;
use crate::measure::facts::{Address, Facts, TEXT_BYTES_MAX, TcpSettings};
use crate::measure::finding::{Finding, Level, Outcome, What};
use crate::measure::probe::Attempt;
use crate::measure::recorded::facts;
use crate::measure::{Path, Speed, encode};

fn bad(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|finding| finding.level != Level::Ok).collect()
}

/// Returns the only problem of a recorded host.
#[track_caller]
fn only(name: &str) -> Finding {
    let mut found = bad(examine(&facts(name)));
    assert_eq!(found.len(), 1, "{name}: {found:#?}");
    found.remove(0)
}

#[track_caller]
fn one_of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let mut found = findings.iter().filter(|finding| finding.check == check);
    let first = found.next().unwrap_or_else(|| panic!("no {check} in {findings:#?}"));
    assert!(found.next().is_none(), "two of {check} in {findings:#?}");
    first
}

#[test]
fn a_healthy_adapter_has_every_check_and_all_is_well() {
    let findings = examine(&facts("connectx"));
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{:#?}", bad(findings));
    let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
    let all = [
        "host",
        "network",
        "libraries",
        "modules",
        "nodes",
        "device",
        "port",
        "mtu",
        "gids",
        "address",
        "pcie",
        "numa",
        "iommu",
        "memlock",
        "registration",
        "hugepages",
        "cpu",
    ];
    assert_eq!(checks, all);
    assert_eq!(one_of(&findings, "libraries").what, What::Libraries { release: "44.0".to_owned() });
    let mtu = What::Mtu { bytes: 4096, most: 4096, interface: "enp65s0f0np0".to_owned(), interface_mtu: 9000 };
    assert_eq!(one_of(&findings, "mtu").what, mtu);
    assert_eq!(one_of(&findings, "pcie").what, What::Pcie { speed: 160, width: 16, mbps: 252_061 });
    assert_eq!(one_of(&findings, "numa").what, What::Numa { node: 1, nodes: 2 });
    assert_eq!(one_of(&findings, "gids").what, What::Gids { routable: 1, all: 4 });
    let What::Device { firmware, guid, .. } = &one_of(&findings, "device").what else { panic!("{findings:#?}") };
    assert_eq!((firmware.as_str(), guid.as_str()), ("22.38.1002", "0c42:a103:0012:3456"));
    let What::Port { rate, guid, is_roce, .. } = &one_of(&findings, "port").what else { panic!("{findings:#?}") };
    assert_eq!((*rate, guid.as_str(), *is_roce), (100_000, "0e42:a1ff:fe12:3456", true));
}

#[test]
fn a_host_without_a_device_is_well() {
    let findings = examine(&facts("no-device"));
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
    assert_eq!(one_of(&findings, "rdma").what, What::NoDevice);
    assert_eq!(one_of(&findings, "libraries").what, What::LibrariesNotNeeded);
    assert_eq!(one_of(&findings, "memlock").what, What::Memlock { soft: 8 << 20, is_needed: false });
    assert_eq!(one_of(&findings, "network").what, What::Interfaces(vec![("ens3".to_owned(), 0, 1500)]));
}

#[test]
fn a_host_of_which_nothing_can_be_read_is_no_crash() {
    let findings = examine(&Facts::default());
    let wrong = bad(findings);
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert_eq!((wrong[0].level, &wrong[0].what), (Level::Warning, &What::NoInterface));
}

#[test]
fn roce_on_the_mtu_of_ethernet() {
    let found = only("roce-1024");
    let interface = "enp65s0f0np0".to_owned();
    let what = What::MtuSmall { bytes: 1024, most: 4096, interface, interface_mtu: 1500, needed: 9000 };
    assert_eq!((found.check, found.level, found.what), ("mtu", Level::Warning, what));
}

#[test]
fn what_verbs_say_of_the_mtu_counts_more_than_what_it_should_be() {
    let mut recorded = facts("connectx");
    (recorded.devices[0].ports[0].mtu, recorded.devices[0].ports[0].mtu_max) = (Some(2048), Some(4096));
    let found = bad(examine(&recorded));
    assert!(matches!(found[0].what, What::MtuSmall { bytes: 2048, interface_mtu: 9000, .. }), "{found:#?}");
    // This MTU is common on InfiniBand fabrics.
    recorded.devices[0].ports[0].link_layer = "InfiniBand".to_owned();
    assert!(bad(examine(&recorded)).is_empty());
    recorded.devices[0].ports[0].mtu = Some(1024);
    assert!(matches!(bad(examine(&recorded))[0].what, What::MtuSmall { bytes: 1024, needed: 0, .. }));
    recorded.devices[0].ports[0].is_iwarp = true;
    assert!(bad(examine(&recorded)).is_empty(), "iWARP's packets are TCP's");
}

#[test]
fn the_packets_of_roce() {
    for (interface, packets) in
        [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (352, 256), (0, 0)]
    {
        assert_eq!(super::device::roce_mtu(interface), packets, "{interface}");
    }
}

#[test]
fn a_slot_with_too_few_lanes() {
    let found = only("pcie-x4");
    assert_eq!((found.check, found.about.as_str(), found.level), ("pcie", "mlx5_0", Level::Warning));
    let What::PcieSlow { address, width, width_max, mbps, rate, .. } = found.what else { panic!("{found:?}") };
    assert_eq!((address.as_str(), width, width_max, mbps, rate), ("0000:41:00.0", 4, 16, 63_015, 100_000));
}

#[test]
fn limits_on_locked_memory() {
    let found = bad(examine(&facts("memlock-64k")));
    assert_eq!(found.len(), 2, "{found:#?}");
    let what = What::MemlockNone { soft: 64 << 10, hard: Some(64 << 10), is_ssh: true };
    assert_eq!((found[0].level, &found[0].what), (Level::Failure, &what));
    assert_eq!(found[1].level, Level::Failure, "nothing could be registered");
    assert!(matches!(found[1].what, What::NotRegistered { .. }), "{found:#?}");

    let found = bad(examine(&facts("memlock-8m")));
    assert!(found.iter().all(|finding| finding.level == Level::Warning), "{found:#?}");
    assert!(
        matches!(found[0].what, What::MemlockSmall { soft: 0x80_0000, hard: None, is_ssh: false, .. }),
        "{found:#?}"
    );
    assert!(matches!(found[1].what, What::RegisteredLess { .. }), "{found:#?}");

    // The limit does not apply to root, except with siw.
    let mut recorded = facts("memlock-64k");
    recorded.is_root = true;
    recorded.devices[0].registration = None;
    assert!(bad(examine(&recorded)).is_empty());
    (recorded.devices[0].name, recorded.devices[0].driver) = ("siw0".to_owned(), String::new());
    assert_eq!(one_of(&bad(examine(&recorded)), "memlock").level, Level::Failure);
}

#[test]
fn a_virtual_function() {
    let found = only("sriov");
    assert_eq!((found.check, found.level), ("device", Level::Warning));
    assert_eq!(found.what, What::GuidZero { is_virtual_function: true });
    let findings = examine(&facts("sriov"));
    assert!(matches!(one_of(&findings, "pcie").what, What::Pcie { width: 16, .. }), "the adapter's own link counts");
    assert_eq!(one_of(&findings, "iommu").what, What::IommuPassed, "its guest's kernel has no say in that");
}

#[test]
fn infiniband_that_nobody_manages() {
    let found = bad(examine(&facts("no-subnet-manager")));
    let waits = What::PortWaits { state: "INIT".to_owned() };
    assert_eq!((one_of(&found, "port").level, &one_of(&found, "port").what), (Level::Failure, &waits));
}

#[test]
fn an_adapter_without_its_device_files() {
    let found = bad(examine(&facts("container")));
    assert_eq!(found.len(), 2, "{found:#?}");
    for (finding, name) in found.iter().zip(["uverbs0", "rdma_cm"]) {
        let what = What::NodeMissing { path: format!("/dev/infiniband/{name}"), is_container: true };
        assert_eq!((finding.level, &finding.what), (Level::Failure, &what));
    }
    let mut recorded = facts("connectx");
    recorded.nodes[0].errno = 13;
    assert!(matches!(bad(examine(&recorded))[0].what, What::NodeDenied { is_container: false, .. }));
    recorded.nodes[0].errno = -70_000;
    assert!(matches!(bad(examine(&recorded))[0].what, What::NodeBroken { .. }), "a number that is none");
}

#[test]
fn software_that_is_not_there() {
    let found = bad(examine(&facts("nothing-installed")));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(found[0].what, What::LibrariesMissing { missing: vec!["libibverbs", "librdmacm"] });
    assert_eq!(found[1].what, What::ModuleMissing { module: "rdma_ucm" });
    assert!(found.iter().all(|finding| finding.level == Level::Failure));
    let found = only("ethernet-only");
    assert!(matches!(found.what, What::AdapterWithoutModule { module: "mlx5_ib", .. }), "{found:?}");
    assert_eq!(found.level, Level::Warning, "TCP works");
    let mut recorded = facts("connectx");
    recorded.providers = vec!["mlx4".to_owned()];
    assert_eq!(bad(examine(&recorded))[0].what, What::ProviderMissing { provider: "mlx5" });
}

#[test]
fn a_host_that_is_tuned_badly() {
    let found = bad(examine(&facts("badly-tuned")));
    let names: Vec<&str> = found.iter().map(|finding| finding.check).collect();
    // The two functions of one card share a GUID, as they should.
    assert_eq!(names, ["address", "pcie", "iommu", "cpu", "cpu"], "{found:#?}");
    assert!(found.iter().all(|finding| finding.level == Level::Warning));
    let one = "enp65s0f0np0".to_owned();
    let subnet = What::SubnetTwice { one, other: "enp65s0f1np1".to_owned(), address: "10.0.0.2/24".to_owned() };
    assert_eq!(found[0].what, subnet);
    assert!(matches!(found[1].what, What::PcieSlow { speed: 80, speed_max: 160, .. }));
    assert_eq!(found[2].what, What::IommuTranslates { mode: "DMA-FQ".to_owned() });
    assert!(
        matches!(&found[3].what, What::GovernorSaves { governors, .. } if governors == &["performance", "powersave"])
    );
    assert_eq!(found[4].what, What::CpuCapped { allowed_khz: 1_200_000, most_khz: 3_600_000 });
    // Power saving does not matter if no network is fast.
    let mut recorded = facts("no-device");
    recorded.cpu.governors = vec!["powersave".to_owned()];
    assert!(bad(examine(&recorded)).is_empty());
}

#[test]
fn ports_without_an_address_or_a_cable() {
    let found = only("no-address");
    let what = What::AddressMissing { interface: "enp65s0f0np0".to_owned(), is_up: true };
    assert_eq!((found.level, found.what), (Level::Failure, what));
    let found = only("cable-out");
    assert!(matches!(found.what, What::PortDown { is_ethernet: true, .. }), "{found:?}");
    assert_eq!(found.level, Level::Failure);
    // An unused second port of a card whose first port is up.
    let mut recorded = facts("badly-tuned");
    recorded.devices[1].ports[0].state = "DOWN".to_owned();
    let findings = examine(&recorded);
    let port = findings.iter().find(|finding| finding.check == "port" && finding.about == "mlx5_1").expect("it");
    assert_eq!((port.level, &port.what), (Level::Ok, &What::PortUnused { state: "DOWN".to_owned() }));
}

#[test]
fn two_devices_of_one_guid_on_two_cards() {
    let mut recorded = facts("badly-tuned");
    recorded.devices[1].pci.get_or_insert_default().address = "0000:81:00.0".to_owned();
    let found = bad(examine(&recorded));
    let guid = "0c42:a103:0012:3456".to_owned();
    assert_eq!(one_of(&found, "device").what, What::GuidTwice { guid, other: "mlx5_0".to_owned() });
}

#[test]
fn verbs_that_fail_for_no_other_reason() {
    let mut recorded = facts("connectx");
    recorded.no_rdma = "no answer within 3 s".to_owned();
    assert_eq!(bad(examine(&recorded))[0].what, What::VerbsFailed { reason: "no answer within 3 s".to_owned() });
    let mut recorded = facts("container");
    recorded.no_rdma = "no RDMA device".to_owned();
    assert_eq!(bad(examine(&recorded)).len(), 2, "the reason is known");
}

#[test]
fn an_mlx4_with_a_small_table() {
    let mut recorded = facts("connectx");
    recorded.devices[0].driver = "mlx4_core".to_owned();
    recorded.providers = vec!["mlx4".to_owned()];
    recorded.interfaces[0].driver = "mlx4_en".to_owned();
    recorded.mlx4_bytes = Some(32 << 30);
    assert!(matches!(bad(examine(&recorded))[0].what, What::Mlx4Small { .. }));
}

// --- the path between two hosts --------------------------------------------------------------------------------------

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
    let findings = compare(&path());
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
    let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["ssh", "port", "rdma port", "bandwidth"]);
    let What::Bandwidth { ceiling, .. } = findings[3].what else { panic!("{findings:#?}") };
    assert!((97_000..100_000).contains(&ceiling), "{ceiling}");
}

#[test]
fn firewalls() {
    let mut way = path();
    way.to_there =
        Some(Ok(vec![attempt("10.0.0.2", false, Outcome::Silent), attempt("10.0.0.2", true, Outcome::Silent)]));
    let found = bad(compare(&way));
    assert_eq!(found.len(), 1, "RDMA works from there: {found:#?}");
    assert!(matches!(found[0].what, What::ReachedBack { .. }) && found[0].level == Level::Warning, "{found:#?}");
    way.to_here =
        Some(Ok(vec![attempt("10.0.0.1", false, Outcome::Refused), attempt("10.0.0.1", true, Outcome::Silent)]));
    let found = bad(compare(&way));
    assert_eq!(one_of(&found, "port").level, Level::Failure);
    let What::NotReached { not, firewall } = &one_of(&found, "port").what else { panic!("{found:#?}") };
    assert_eq!((not[0].1.clone(), firewall.as_str()), (Outcome::Silent, "nft"));
    assert_eq!(one_of(&found, "rdma port").level, Level::Failure);
    let What::RdmaNotReached { not, is_roce, .. } = &one_of(&found, "rdma port").what else { panic!("{found:#?}") };
    assert!(not.len() == 2 && *is_roce);
    // Software devices are used only on request.
    way.here.rdma[0].is_hardware = false;
    assert_eq!(one_of(&bad(compare(&way)), "rdma port").level, Level::Warning);
    way.to_there = Some(Err("no port".to_owned()));
    assert!(bad(compare(&way)).iter().any(|finding| matches!(finding.what, What::ProbeFailed { .. })));
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
    let What::ReachedSome { not, .. } = &found[0].what else { panic!("{found:#?}") };
    assert_eq!(not[..], [("10.0.0.3".to_owned(), Outcome::Unreachable(113))]);
}

#[test]
fn addresses_and_mtus_that_do_not_fit() {
    let mut way = path();
    way.there.interfaces[0].addresses = way.here.interfaces[0].addresses.clone();
    way.there.interfaces[0].mtu = 1500;
    let found = bad(compare(&way));
    assert_eq!((found[0].level, found[0].check), (Level::Failure, "addresses"));
    let name = || "enp65s0f0np0".to_owned();
    assert_eq!(found[1].what, What::MtuDiffers { here: (name(), 9000), there: (name(), 1500) });
    // Two names of the same machine share all addresses.
    way.is_one_machine = true;
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));
    // Bridges to containers have the same addresses on every host.
    way.is_one_machine = false;
    way.here.interfaces[0].name = "docker0".to_owned();
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));

    let mut way = path();
    way.there.rdma[0].address = Address { ip: "10.7.0.2".parse().expect("one"), prefix_bits: 24 };
    assert!(matches!(bad(compare(&way))[0].what, What::SubnetMissing { .. }));
    way.there.rdma.clear();
    let findings = compare(&way);
    assert_eq!(one_of(&findings, "subnets").what, What::RdmaOneSided { without: "node2".to_owned() });
    assert!(findings.iter().all(|finding| finding.check != "rdma port"));
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
    let (ssh, data) = (("eno1".to_owned(), 1000), ("enp65s0f0np0".to_owned(), 100_000));
    assert_eq!(one_of(&compare(&way), "route").what, What::Route { ssh, data });
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
    assert!(matches!(bad(compare(&way))[0].what, What::BandwidthLow { .. }), "40 of 100 Gbit/s");
    // As much as four PCIe lanes can carry.
    way.speed = with(11_000_000_000, "rdma");
    way.there.devices[0].pci.as_mut().expect("it").width = 4;
    assert!(bad(compare(&way)).is_empty());
    // The rate of TCP depends on the processors.
    way.speed = with(12_000_000_000, "tcp");
    assert!(bad(compare(&way)).is_empty());
    way.speed = with(1_000_000_000, "tcp");
    assert_eq!(bad(compare(&way))[0].level, Level::Warning);
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
    assert!(matches!(found[0].what, What::AgentSlow { .. }) && matches!(found[1].what, What::Versions { .. }));
}

#[test]
fn facts_survive_the_way_and_hostile_ones_are_bounded() {
    let mut known = facts("connectx");
    assert_eq!(Facts::decode(&encode(&known)), Some(known.clone()));
    assert_eq!(Facts::decode(b"no facts"), None);
    known.host = "x\n rm -rf /".to_owned();
    known.kernel = "\u{e9}".repeat(4000);
    known.interfaces[0].name = "$(reboot)".to_owned();
    known.devices[0].ports[0].interface = "-x".to_owned();
    known.devices[0].pci.as_mut().expect("it").address = "a b".to_owned();
    known.devices = vec![known.devices[0].clone(); 1000];
    known.devices[1].name = "a\nb".to_owned();
    let bounded = Facts::decode(&encode(&known)).expect("facts");
    assert_eq!((bounded.host.as_str(), bounded.kernel.len(), bounded.interfaces.len()), ("unnamed", 200, 0));
    assert_eq!(bounded.devices.len(), crate::measure::facts::LIST_MAX);
    assert!(bounded.devices.iter().all(|device| device.pci.is_none() && device.ports[0].interface.is_empty()));
}

/// Lengthens each text in turn, whatever its field, so that a new field cannot be forgotten.
#[test]
fn no_text_of_hostile_facts_is_long() {
    let places = |bytes: &[u8]| {
        let (mut decoder, mut places) = (Decoder::new(bytes), Vec::new());
        while decoder.position() < bytes.len() {
            let (start, kind) = (decoder.position(), decoder.datatype().expect("our own"));
            let passed = if kind == Type::Array { decoder.array().map(drop) } else { decoder.skip() };
            passed.expect("our own");
            places.extend((kind == Type::String).then(|| start..decoder.position()));
        }
        places
    };
    let (bytes, long) = (encode(&facts("connectx")), encode(&"x".repeat(1000)));
    let texts = places(&bytes);
    assert!(texts.len() > 30, "{}", texts.len());
    for text in texts {
        let hostile = [&bytes[..text.start], &long[..], &bytes[text.end..]].concat();
        let bounded = encode(&Facts::decode(&hostile).expect("facts"));
        assert!(places(&bounded).iter().all(|text| text.len() <= 2 + TEXT_BYTES_MAX), "{text:?}");
    }
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
    let What::TcpWell { connections: 3, micros: 50_000, .. } = of_tcp(&way)[0].what else { panic!("{way:#?}") };
    // With four times the round trip, the windows of both hosts are small.
    way.to_there.as_mut().expect("it").as_mut().expect("it")[0].micros = 200_000;
    let found = of_tcp(&way);
    assert_eq!(found.len(), 2, "{found:#?}");
    for (finding, host) in found.iter().zip(["node1", "node2"]) {
        let What::TcpWindowSmall { window, connections, receive, send, .. } = &finding.what else {
            panic!("{found:#?}")
        };
        assert_eq!((finding.about.as_str(), finding.level), (host, Level::Warning));
        assert_eq!((*window, *connections), (2 << 20, 12));
        // The proposal is four times the bytes in flight, in whole MiB. The other values stay.
        assert_eq!((receive[..2].to_vec(), send[..2].to_vec()), (vec![4096, 131_072], vec![4096, 16_384]));
        assert!(receive[2] == send[2] && receive[2].is_multiple_of(1 << 20) && receive[2] >= 96_000_000, "{receive:?}");
    }
    // With the proposed values, nothing is reported.
    for host in [&mut way.here, &mut way.there] {
        let settings = host.tcp.as_mut().expect("set");
        (settings.receive[2], settings.send[2]) = (96 << 20, 96 << 20);
    }
    assert!(matches!(of_tcp(&way)[0].what, What::TcpWell { connections: 1, .. }), "{:#?}", of_tcp(&way));
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
        of_tcp(way).into_iter().find_map(|finding| match finding.what {
            What::Congestion { control, lost, .. } => Some((finding.about, control, lost)),
            _ => None,
        })
    };
    let mut way = long_line();
    assert_eq!(control(&way), None, "cubic is right where nothing is lost");
    way.there.tcp.as_mut().expect("set").congestion = "reno".to_owned();
    assert_eq!(control(&way), Some(("node2".to_owned(), "reno".to_owned(), false)));
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
    assert_eq!(control(&way), Some(("node1".to_owned(), "cubic".to_owned(), true)));
    way.here.tcp.as_mut().expect("set").congestion = "bbr".to_owned();
    way.there.tcp.as_mut().expect("set").congestion = "bbr".to_owned();
    assert_eq!(control(&way), None);
}
