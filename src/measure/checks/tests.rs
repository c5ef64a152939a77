//! Tests every check on recorded hosts: what the check finds, and how severe the finding is.

use std::net::IpAddr;
use std::process::Command;

use minicbor::Decoder;
use minicbor::data::Type;

use super::examine;
use crate::measure::counters::Counter;
use crate::measure::facts::{Address, Facts, TEXT_BYTES_MAX, TcpSettings};
use crate::measure::finding::{Finding, Fix, Level, Outcome};
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

/// Checks a path whose user has named no ports.
fn compare(way: &Path) -> Vec<Finding> {
    super::compare(way, None)
}

#[track_caller]
fn says(finding: &Finding, code: &str, found: &str) {
    assert_eq!((finding.code, finding.found.as_str()), (code, found), "{finding:#?}");
}

/// Whether a finding has this code, and its text begins with `found`.
fn begins(finding: &Finding, code: &str, found: &str) -> bool {
    finding.code == code && finding.found.starts_with(found)
}

#[track_caller]
fn fix(finding: &Finding) -> &str {
    match &finding.fix {
        Some(Fix::Run(text) | Fix::Do(text)) => text,
        None => panic!("no fix: {finding:#?}"),
    }
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
    for (check, found) in [
        ("libraries", "rdma-core 44.0"),
        ("mtu", "4096 bytes (enp65s0f0np0 has MTU 9000)"),
        ("pcie", "16 GT/s x16: 252 Gbit/s"),
        ("numa", "attached to node 1 of 2"),
        ("gids", "4 in use, 1 of them RoCE v2 with an IP address"),
    ] {
        says(one_of(&findings, check), check, found);
    }
    let device = &one_of(&findings, "device").found;
    assert!(device.ends_with(", firmware 22.38.1002, GUID 0c42:a103:0012:3456"), "{device}");
    let port = "active Ethernet 100 Gbit/s on enp65s0f0np0, port GUID 0e42:a1ff:fe12:3456, RoCE: ";
    assert!(begins(one_of(&findings, "port"), "port", port), "{findings:#?}");
}

#[test]
fn a_host_without_a_device_is_well() {
    let findings = examine(&facts("no-device"));
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
    says(one_of(&findings, "rdma"), "no-device", "no RDMA device; data goes over TCP");
    assert_eq!(one_of(&findings, "libraries").code, "libraries-not-needed");
    says(one_of(&findings, "memlock"), "memlock", "8192 kB; only RDMA needs more");
    says(one_of(&findings, "network"), "interfaces", "ens3 MTU 1500");
}

#[test]
fn a_host_of_which_nothing_can_be_read_is_no_crash() {
    let findings = examine(&Facts::default());
    let wrong = bad(findings);
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert_eq!((wrong[0].level, wrong[0].code), (Level::Warning, "no-interface"));
}

#[test]
fn roce_on_the_mtu_of_ethernet() {
    let found = only("roce-1024");
    assert_eq!((found.check, found.level), ("mtu", Level::Warning));
    says(&found, "mtu-small", "packets carry 1024 of 4096 bytes, because enp65s0f0np0 has MTU 1500");
    // No command: a script that runs it could cut the host off.
    assert_eq!(found.fix, Some(Fix::advice("ip link set dev enp65s0f0np0 mtu 9000")));
}

#[test]
fn what_verbs_say_of_the_mtu_counts_more_than_what_it_should_be() {
    let mut recorded = facts("connectx");
    (recorded.devices[0].ports[0].mtu, recorded.devices[0].ports[0].mtu_max) = (Some(2048), Some(4096));
    let found = bad(examine(&recorded));
    says(&found[0], "mtu-small", "packets carry 2048 of 4096 bytes, although enp65s0f0np0 has MTU 9000");
    let is_advice = matches!(&found[0].fix, Some(Fix::Do(advice)) if advice.starts_with("restart enp65s0f0np0 with"));
    assert!(is_advice, "{found:#?}");
    // This MTU is common on InfiniBand fabrics.
    recorded.devices[0].ports[0].link_layer = "InfiniBand".to_owned();
    assert!(bad(examine(&recorded)).is_empty());
    recorded.devices[0].ports[0].mtu = Some(1024);
    says(&bad(examine(&recorded))[0], "mtu-small", "packets carry 1024 of 4096 bytes");
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
    says(&found, "pcie-slow", "16 GT/s x4: 63 Gbit/s; the card supports 16 GT/s x16");
    assert!(found.why.contains("100 Gbit/s") && fix(&found).contains("lspci -vv -s 0000:41:00.0"), "{found:#?}");
}

#[test]
fn limits_on_locked_memory() {
    let found = bad(examine(&facts("memlock-64k")));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(found[0].level, Level::Failure);
    says(&found[0], "memlock-none", "64 kB in an ssh session");
    assert_eq!(found[1].level, Level::Failure, "nothing could be registered");
    assert_eq!(found[1].code, "not-registered");

    let found = bad(examine(&facts("memlock-8m")));
    assert!(found.iter().all(|finding| finding.level == Level::Warning), "{found:#?}");
    assert!(begins(&found[0], "memlock-small", "8192 kB, hard limit unlimited: "), "{found:#?}");
    assert_eq!(found[1].code, "registered-less");

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
    says(&found, "guid-zero", "the virtual function has no GUID");
    let findings = examine(&facts("sriov"));
    assert!(one_of(&findings, "pcie").found.contains("x16"), "the adapter's own link counts");
    assert_eq!(one_of(&findings, "iommu").code, "iommu-passed", "its guest's kernel has no say in that");
}

#[test]
fn infiniband_that_nobody_manages() {
    let found = bad(examine(&facts("no-subnet-manager")));
    assert_eq!(one_of(&found, "port").level, Level::Failure);
    says(one_of(&found, "port"), "port-waits", "the link is up, but the port is INIT");
}

#[test]
fn an_adapter_without_its_device_files() {
    let found = bad(examine(&facts("container")));
    assert_eq!(found.len(), 2, "{found:#?}");
    for (finding, name) in found.iter().zip(["uverbs0", "rdma_cm"]) {
        assert_eq!(finding.level, Level::Failure);
        says(finding, "node-missing", &format!("/dev/infiniband/{name} does not exist"));
        assert!(finding.why.contains("container"), "{finding:#?}");
    }
    let mut recorded = facts("connectx");
    recorded.nodes[0].errno = 13;
    let found = bad(examine(&recorded));
    assert!(begins(&found[0], "node-denied", "this user has no permission to open /dev/"));
    assert!(fix(&found[0]).ends_with(" >/etc/udev/rules.d/99-rdma-pipe.rules"), "a file of its own: {found:#?}");
    recorded.nodes[0].errno = -70_000;
    assert_eq!(bad(examine(&recorded))[0].code, "node-broken", "a number that is none");
}

#[test]
fn software_that_is_not_there() {
    let found = bad(examine(&facts("nothing-installed")));
    assert_eq!(found.len(), 2, "{found:#?}");
    says(&found[0], "libraries-missing", "libibverbs and librdmacm not found");
    says(&found[1], "module-missing", "rdma_ucm is not loaded");
    assert!(found.iter().all(|finding| finding.level == Level::Failure));
    let found = only("ethernet-only");
    assert_eq!(found.code, "adapter-without-module");
    assert!(found.found.ends_with("but mlx5_ib is not loaded"), "{found:?}");
    assert_eq!(found.level, Level::Warning, "TCP works");
    let mut recorded = facts("connectx");
    recorded.providers = vec!["mlx4".to_owned()];
    says(&bad(examine(&recorded))[0], "provider-missing", "libibverbs has no mlx5 driver");
}

#[test]
fn a_host_that_is_tuned_badly() {
    let found = bad(examine(&facts("badly-tuned")));
    let names: Vec<&str> = found.iter().map(|finding| finding.check).collect();
    // The two functions of one card share a GUID, as they should.
    assert_eq!(names, ["address", "pcie", "iommu", "cpu", "cpu"], "{found:#?}");
    assert!(found.iter().all(|finding| finding.level == Level::Warning));
    says(&found[0], "subnet-twice", "enp65s0f1np1 (10.0.0.2/24) is in the same subnet as enp65s0f0np0");
    assert!(begins(&found[1], "pcie-slow", "8 GT/s x16"), "{found:#?}");
    assert!(found[1].found.ends_with("the card supports 16 GT/s x16"), "{found:#?}");
    says(&found[2], "iommu-translates", "translates every access of the device (DMA-FQ)");
    assert!(begins(&found[3], "governor-saves", "governor performance, powersave"), "{found:#?}");
    says(&found[4], "cpu-capped", "limited to 1.2 of 3.6 GHz");
    // Power saving does not matter if no network is fast.
    let mut recorded = facts("no-device");
    recorded.cpu.governors = vec!["powersave".to_owned()];
    assert!(bad(examine(&recorded)).is_empty());
}

#[test]
fn ports_without_an_address_or_a_cable() {
    let found = only("no-address");
    assert_eq!(found.level, Level::Failure);
    says(&found, "address-missing", "enp65s0f0np0 has no IP address");
    assert!(fix(&found).starts_with("ip address add "), "the interface is up: {found:?}");
    let found = only("cable-out");
    assert_eq!((found.level, found.code), (Level::Failure, "port-down"));
    // An unused second port of a card whose first port is up.
    let mut recorded = facts("badly-tuned");
    recorded.devices[1].ports[0].state = "DOWN".to_owned();
    let findings = examine(&recorded);
    let port = findings.iter().find(|finding| finding.check == "port" && finding.about == "mlx5_1").expect("it");
    assert_eq!(port.level, Level::Ok);
    says(port, "port-unused", "down, not used");
}

#[test]
fn two_devices_of_one_guid_on_two_cards() {
    let mut recorded = facts("badly-tuned");
    recorded.devices[1].pci.get_or_insert_default().address = "0000:81:00.0".to_owned();
    let found = bad(examine(&recorded));
    says(one_of(&found, "device"), "guid-twice", "mlx5_0 has the same GUID 0c42:a103:0012:3456");
}

#[test]
fn verbs_that_fail_for_no_other_reason() {
    let mut recorded = facts("connectx");
    recorded.no_rdma = "no answer within 3 s".to_owned();
    says(&bad(examine(&recorded))[0], "verbs-failed", "RDMA cannot be used: no answer within 3 s");
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
    recorded.memory_kib = 250 << 20;
    // In 250 GiB of memory there are 2^26 pages, rounded up; with twice that, each segment has 1, 8 or 128.
    for (per_segment, options) in [("0", "log_num_mtt=27"), ("3", "log_num_mtt=24"), ("7", "log_num_mtt=20")] {
        let found = bad(examine(&recorded));
        assert_eq!(found[0].code, "mlx4-small");
        let scratch = tempfile::tempdir().expect("a directory");
        let usual = "options mlx4_core port_type_array=2,2 log_num_mtt=20\n";
        put(scratch.path(), "etc/modprobe.d/mlx4_core.conf", usual);
        put(scratch.path(), "sys/module/mlx4_core/parameters/log_mtts_per_seg", &format!("{per_segment}\n"));
        repair(scratch.path(), fix(&found[0]));
        let kept = text(scratch.path(), "etc/modprobe.d/mlx4_core.conf");
        assert_eq!(kept.as_deref(), Some(usual));
        let own = text(scratch.path(), "etc/modprobe.d/zz-rdma-pipe.conf");
        assert_eq!(own, Some(format!("options mlx4_core {options}\n")));
    }
    // Hostile hosts report any size.
    for memory_kib in [u64::MAX, 1 << 63, 1] {
        (recorded.memory_kib, recorded.mlx4_bytes) = (memory_kib, Some(0));
        assert_eq!(bad(examine(&recorded))[0].code, "mlx4-small");
    }
}

fn put(root: &std::path::Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("ours");
    std::fs::write(path, text).expect("ours");
}

fn text(root: &std::path::Path, name: &str) -> Option<String> {
    std::fs::read_to_string(root.join(name)).ok()
}

/// Runs a command that fixes a finding, as the script of fixes does, with the system's files below `root`.
#[track_caller]
fn repair(root: &std::path::Path, command: &str) {
    let root = root.to_str().expect("text");
    let command = command.replace("/etc/", &format!("{root}/etc/")).replace("/sys/", &format!("{root}/sys/"));
    let output = Command::new("sh").args(["-euc", &command]).output().expect("sh");
    assert!(output.status.success(), "{command}: {output:?}");
}

#[test]
fn the_limit_of_ssh_sessions_is_raised_and_nobody_is_locked_out() {
    let found = bad(examine(&facts("memlock-64k")));
    let command = fix(one_of(&found, "memlock"));
    let (other, limits) = ("auth include common-auth\n", "session required pam_limits.so\n");
    // A system whose file is elsewhere gets none, because a new file would hide that one.
    for (before, after) in [
        (None, None),
        (Some(other.to_owned()), Some(format!("{other}{limits}"))),
        (Some(format!("{limits}{other}")), Some(format!("{limits}{other}"))),
    ] {
        let scratch = tempfile::tempdir().expect("a directory");
        put(scratch.path(), "etc/security/limits.d/rdma.conf", "# of another package\n");
        put(scratch.path(), "etc/pam.d/login", other);
        if let Some(before) = &before {
            put(scratch.path(), "etc/pam.d/sshd", before);
        }
        repair(scratch.path(), command);
        assert_eq!(text(scratch.path(), "etc/pam.d/sshd"), after, "{command}");
        let own = text(scratch.path(), "etc/security/limits.d/zz-rdma-pipe.conf").expect("a file of its own");
        assert_eq!(own, "* - memlock unlimited\nroot - memlock unlimited\n");
        let others = text(scratch.path(), "etc/security/limits.d/rdma.conf");
        assert_eq!(others.as_deref(), Some("# of another package\n"));
    }
}

#[test]
fn the_kernels_command_line_of_several_systems() {
    let advice = "add iommu=pt to the kernel's command line";
    for (family, is_command, begin) in [
        ("debian ", true, "mkdir -p /etc/default/grub.d && "),
        ("ubuntu debian", true, "mkdir -p /etc/default/grub.d && "),
        ("rocky rhel centos fedora", true, "grubby --update-kernel=ALL"),
        ("amzn ", true, "grubby --update-kernel=ALL"),
        ("opensuse-leap suse opensuse", false, advice),
        ("arch ", false, advice),
        ("", false, advice),
    ] {
        let found = bad(examine(&Facts { family: family.to_owned(), ..facts("badly-tuned") }));
        let found = one_of(&found, "iommu");
        assert_eq!(matches!(found.fix, Some(Fix::Run(_))), is_command, "{family}: {found:#?}");
        assert!(fix(found).starts_with(begin), "{family}: {found:#?}");
    }
}

#[test]
fn packages_of_several_systems() {
    for (family, command) in [
        ("debian ", "apt-get install -y"),
        ("ubuntu debian", "apt-get install -y"),
        ("rocky rhel centos fedora", "dnf install -y"),
        ("opensuse-leap suse opensuse", "zypper --non-interactive install"),
        ("arch ", "pacman -S"),
        ("nixos ", "install rdma-core"),
    ] {
        let found = bad(examine(&Facts { family: family.to_owned(), ..facts("nothing-installed") }));
        let told = fix(one_of(&found, "libraries"));
        assert!(told.starts_with(command), "{family}: {told}");
    }
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
    let way = path();
    let findings = compare(&way);
    assert!(bad(findings.clone()).is_empty(), "{findings:#?}");
    let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["ssh", "port", "rdma port", "bandwidth"]);
    let speed = way.speed.as_ref().expect("it").as_ref().expect("it");
    let ceiling = super::path::ceiling_mbps(&way, speed);
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
        let findings = super::compare(&unreached(&outcome, ""), Some(&(7000..=7000)));
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
    way.there.interfaces[0].mtu = 1500;
    let found = bad(compare(&way));
    assert_eq!((found[0].level, found[0].check), (Level::Failure, "addresses"));
    says(&found[1], "mtu-differs", "enp65s0f0np0 here has MTU 9000, enp65s0f0np0 there has 1500");
    // Two names of the same machine share all addresses.
    way.is_one_machine = true;
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));
    // Bridges to containers have the same addresses on every host.
    way.is_one_machine = false;
    way.here.interfaces[0].name = "docker0".to_owned();
    assert!(bad(compare(&way)).iter().all(|finding| finding.check != "addresses"));

    let mut way = path();
    way.there.rdma[0].address = Address { ip: "10.7.0.2".parse().expect("one"), prefix_bits: 24 };
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
    assert_eq!((found[0].code, found[1].code), ("agent-slow", "versions"));
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
