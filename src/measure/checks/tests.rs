//! Tests every check on recorded hosts: what the check finds, and how severe the finding is.

use std::process::Command;

use minicbor::Decoder;
use minicbor::data::Type;

use super::examine;
use crate::measure::encode;
use crate::measure::facts::{Address, Facts, Interface, Node, TEXT_BYTES_MAX};
use crate::measure::finding::{Finding, Fix, Level};
use crate::measure::recorded::facts;

mod path;

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
        ("numa", "attached to node 1; there are 2 nodes"),
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
    assert!(fix(&found).starts_with("move the card to a slot of 16 GT/s x16, "), "{found:#?}");
    // Both ports of a card share its link.
    let pcie = |rate_mbps| {
        let mut recorded = facts("badly-tuned");
        recorded.devices.iter_mut().for_each(|device| device.ports[0].rate_mbps = rate_mbps);
        recorded.interfaces.iter_mut().for_each(|interface| interface.rate_mbps = rate_mbps);
        examine(&recorded).into_iter().find(|finding| finding.check == "pcie").expect("it")
    };
    assert!(pcie(100_000).why.contains("200 Gbit/s"));
    says(&pcie(50_000), "pcie", "8 GT/s x16: 126 Gbit/s");
    assert_eq!(pcie(0).code, "pcie-slow", "it is unknown what they need");
    // Interfaces of partitions and virtual functions have no port of their own.
    let mut recorded = facts("connectx");
    recorded.devices[0].pci.as_mut().expect("it").speed = 80;
    let own = recorded.interfaces[0].clone();
    let partition = Interface { name: "ib0.8001".to_owned(), ..own.clone() };
    recorded.interfaces.extend([partition, facts("sriov").interfaces[0].clone()]);
    says(one_of(&examine(&recorded), "pcie"), "pcie", "8 GT/s x16: 126 Gbit/s");
    // A bond has one device for both ports, with the rate of one.
    recorded.interfaces.push(Interface { pci: "0000:41:00.1".to_owned(), ..own });
    let findings = examine(&recorded);
    assert!(one_of(&findings, "pcie").why.contains("200 Gbit/s"), "{findings:#?}");
    // A virtual function has only its own share.
    recorded.devices[0].is_virtual_function = true;
    assert_eq!(one_of(&examine(&recorded), "pcie").code, "pcie");
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
fn a_container_that_was_given_one_adapter_of_several() {
    let mut recorded = facts("connectx");
    recorded.is_container = true;
    for number in 1..8 {
        let mut device = recorded.devices[0].clone();
        (device.name, device.node_guid) = (format!("mlx5_{number}"), format!("0c42:a103:0012:346{number}"));
        (device.registration, device.ports[0].interface) = (None, String::new());
        recorded.devices.push(device);
        let node = Node { name: format!("infiniband/uverbs{number}"), errno: 2 };
        recorded.nodes.insert(number, node);
    }
    let findings = examine(&recorded);
    assert!(bad(findings.clone()).is_empty(), "{:#?}", bad(findings));
    says(one_of(&findings, "nodes"), "nodes", "2 device files, all accessible");
    // Without any adapter that works, the files are missing, and so are the interfaces.
    recorded.nodes[0].errno = 2;
    recorded.rdma.clear();
    let found = bad(examine(&recorded));
    let missing = |code: &str| found.iter().filter(|finding| finding.code == code).collect::<Vec<_>>();
    assert_eq!((missing("node-missing").len(), missing("interface-missing").len()), (8, 7), "{found:#?}");
    // IPoIB is no interface for RoCE.
    assert!(fix(missing("interface-missing")[0]).starts_with("load the adapter's Ethernet driver"), "{found:#?}");
    recorded.devices[7].ports[0].link_layer = "InfiniBand".to_owned();
    let found = bad(examine(&recorded));
    let last = found.iter().rfind(|finding| finding.code == "interface-missing").expect("it");
    assert!(matches!(&last.fix, Some(Fix::Do(advice)) if advice.contains(": modprobe ib_ipoib")), "{last:#?}");
}

#[test]
fn what_a_container_cannot_change_is_no_command() {
    let recorded = Facts { is_container: true, ..facts("badly-tuned") };
    let found = bad(examine(&recorded));
    assert_eq!(found.len(), 5, "{found:#?}");
    for finding in found {
        let Some(Fix::Do(advice)) = &finding.fix else { panic!("{finding:#?}") };
        // Its system may be another than the machine's.
        assert!(!advice.contains("update-grub"), "{advice}");
        // Nor is a container to be started anew for what its machine does.
        assert!(!advice.contains("is started"), "{advice}");
    }
}

#[test]
fn processors_that_may_not_be_used() {
    let host = |facts: &Facts| one_of(&examine(facts), "host").found.clone();
    let found = |processors, usable| host(&Facts { processors, usable, ..Facts::default() });
    assert_eq!(found(128, Some(2)), "Linux, 128 processors, 2 usable");
    for usable in [None, Some(128), Some(u32::MAX)] {
        assert_eq!(found(128, usable), "Linux, 128 processors");
    }
    // Nor is the kernel known where /proc is hidden.
    assert_eq!(found(0, Some(1)), "Linux");
}

#[test]
fn what_an_iommu_does_is_not_guessed() {
    let mut recorded = facts("connectx");
    for (iommu, code) in
        [("", "passed"), ("identity", "passed"), ("DMA", "translates"), ("unknown", "unknown"), ("blocked", "unknown")]
    {
        recorded.devices[0].iommu = iommu.to_owned();
        assert_eq!(one_of(&examine(&recorded), "iommu").code, format!("iommu-{code}"), "{iommu}");
    }
}

#[test]
fn software_that_is_not_there() {
    let found = bad(examine(&facts("nothing-installed")));
    assert_eq!(found.len(), 2, "{found:#?}");
    says(&found[0], "libraries-missing", "libibverbs and librdmacm not found");
    says(&found[1], "module-missing", "rdma_ucm is not loaded");
    assert!(found.iter().all(|finding| finding.level == Level::Failure));
    // Libraries that work are only somewhere else.
    let mut recorded = facts("nothing-installed");
    recorded.rdma = facts("connectx").rdma;
    says(one_of(&examine(&recorded), "libraries"), "libraries", "rdma-core is installed");
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
fn the_ports_of_a_bond_or_bridge_have_its_address() {
    let mut recorded = facts("badly-tuned");
    // An active-backup bond: its GIDs are at one of its adapters.
    let addresses = std::mem::take(&mut recorded.interfaces[0].addresses);
    for interface in &mut recorded.interfaces {
        interface.addresses.clear();
        interface.master = "bond0".to_owned();
    }
    let bond = Interface { name: "bond0".to_owned(), is_up: true, addresses, ..Interface::default() };
    recorded.interfaces.push(bond);
    let of_addresses = |recorded: &Facts| -> Vec<Finding> {
        examine(recorded).into_iter().filter(|finding| finding.check == "address").collect()
    };
    let found = of_addresses(&recorded);
    assert_eq!(found.len(), 2, "{found:#?}");
    found.iter().for_each(|finding| says(finding, "addresses", "10.0.0.1 on bond0"));
    // A VLAN on the bond has the address.
    recorded.interfaces.retain(|interface| interface.name != "bond0");
    let found = of_addresses(&recorded);
    assert!(bad(found.clone()).is_empty(), "{found:#?}");
    says(&found[1], "addresses", "enp65s0f1np1 belongs to bond0");
    // No address at all. An address of a port itself would not be reached.
    recorded.rdma.clear();
    let found = of_addresses(&recorded);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!((found[0].level, found[0].code), (Level::Failure, "address-missing"));
    let is_advice = matches!(&found[0].fix, Some(Fix::Do(advice)) if advice.starts_with("give bond0 an address"));
    assert!(is_advice, "{found:#?}");
    // Verbs work at no address, although the bridge has one.
    recorded.no_rdma = "no RDMA device".to_owned();
    let address = Address { ip: "10.0.0.1".parse().expect("one"), prefix_bits: 24 };
    recorded.interfaces.push(Interface { name: "bond0".to_owned(), addresses: vec![address], ..Interface::default() });
    assert_eq!(one_of(&bad(examine(&recorded)), "verbs").code, "verbs-failed");
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
    let advice = "add iommu=pt iommu.passthrough=1 to the kernel's command line";
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
        assert!(fix(found).contains("iommu=pt iommu.passthrough=1"), "x86 and ARM: {family}: {found:#?}");
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
