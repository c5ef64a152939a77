//! Checks of RDMA devices: their identity, ports, packet sizes, addresses and bus.

use std::collections::{BTreeMap, BTreeSet};

use super::{is_like, load, of_machine};
use crate::measure::facts::{Device, Facts, Interface, Pci, Port};
use crate::measure::finding::{Finding, Fix, Level};
use crate::measure::words::{joined, link_rate, phrase};

/// Bytes that RoCE adds around the payload of a packet, as the kernel calculates them: GRH, UDP, BTH, the largest
/// extensions, ICRC.
const ROCE_HEADER_BYTES: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// Possible payload sizes of RDMA packets, in bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// From this MTU on, an InfiniBand fabric gets no warning: the gain with 4096 is only some percent.
const INFINIBAND_MTU_ENOUGH: u32 = 2048;

/// MTU to set on an interface that carries RoCE: what switches call jumbo frames.
const JUMBO: u32 = 9000;

fn ports_of(facts: &Facts) -> impl Iterator<Item = (&Device, &Port)> {
    facts.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

fn label(device: &Device, port: &Port) -> String {
    if device.ports.len() == 1 { device.name.clone() } else { format!("{}/{}", device.name, port.number) }
}

fn is_zero(guid: &str) -> bool {
    guid.bytes().all(|byte| matches!(byte, b'0' | b':'))
}

/// Returns the PCI address that all functions of a card have in common.
fn card(device: &Device) -> Option<&str> {
    device.pci.as_ref()?.address.split('.').next()
}

pub(super) fn devices(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, device) in facts.devices.iter().enumerate() {
        let (name, guid) = (&device.name, &device.node_guid);
        let model = if device.is_software() {
            "software".to_owned()
        } else {
            joined([device.model.clone(), device.driver.clone()], " ")
        };
        let function = if device.is_virtual_function { "virtual function".to_owned() } else { String::new() };
        let parts = [model, function, phrase("firmware", &device.firmware), phrase("GUID", guid)];
        findings.push(Finding::well("device", "device", joined(parts, ", ")).about(name));
        if is_zero(guid) {
            let (found, advice) = if device.is_virtual_function {
                let advice = "on the adapter's host: ip link set dev INTERFACE vf N node_guid GUID, with a unique GUID";
                ("the virtual function has no GUID", advice.to_owned())
            } else {
                let advice = format!("the firmware has lost it: mstflint -d {name} query shows what is stored");
                ("the device has no GUID", advice)
            };
            let why = "InfiniBand addresses are derived from it, and devices without one cannot be told apart";
            findings.push(Finding::warning("device", "guid-zero", found, why, Fix::advice(advice)).about(name));
        } else if let Some(other) = facts.devices[..at].iter().find(|other| other.node_guid == *guid) {
            // Functions of the same adapter may share a GUID by design.
            if card(other).is_none() || card(other) != card(device) {
                let finding = Finding::warning(
                    "device",
                    "guid-twice",
                    format!("{} has the same GUID {guid}", other.name),
                    "the fabric delivers packets for one to the other",
                    Fix::advice(format!("give one of them a unique GUID: mstflint -d {name} -guid GUID sg")),
                );
                findings.push(finding.about(name));
            }
        }
    }
    findings
}

pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let any_active = ports_of(facts).any(|(_, port)| port.is_active());
    ports_of(facts).map(|(device, port)| judged(device, port, any_active).about(label(device, port))).collect()
}

/// Judges a port. `any_active`: whether any port of the host is up.
fn judged(device: &Device, port: &Port, any_active: bool) -> Finding {
    match port.state.as_str() {
        // Some adapters report lanes for Ethernet too, where the number means nothing.
        "ACTIVE" if port.lanes == 1 && port.link_layer == "InfiniBand" && !port.is_iwarp && !device.is_software() => {
            Finding::warning(
                "port",
                "port-narrow",
                format!("the link came up with one lane ({})", link_rate(port.rate_mbps)),
                "three of its four lanes carry no data",
                Fix::advice("reseat or replace the cable; iblinkinfo shows both ends"),
            )
        }
        "ACTIVE" => {
            let layer = if port.is_iwarp { "iWARP".to_owned() } else { port.link_layer.clone() };
            let rate = if device.is_software() { String::new() } else { link_rate(port.rate_mbps) };
            let link = joined(["active".to_owned(), layer, rate, phrase("on", &port.interface)], " ");
            let tools = if port.is_roce() {
                "RoCE: ibnodes and other subnet tools do not work on it, by design".to_owned()
            } else {
                String::new()
            };
            Finding::well("port", "port", joined([link, phrase("port GUID", &port.guid), tools], ", "))
        }
        "INIT" | "ARMED" if port.link_layer == "InfiniBand" => {
            let finding = Finding::failure(
                "port",
                "port-waits",
                format!("the link is up, but the port is {}", port.state),
                "no subnet manager has configured it; an InfiniBand fabric needs one",
                Fix::command("systemctl enable --now opensm # on one host of the fabric, if no switch runs one"),
            );
            Finding { level: if any_active { Level::Warning } else { Level::Failure }, ..finding }
        }
        // A second port without a cable is not a mistake.
        _ if any_active => Finding::well("port", "port-unused", format!("{}, not used", port.state.to_lowercase())),
        _ => {
            let (interface, physical) = (&port.interface, &port.physical);
            let found = joined(["down".to_owned(), phrase("on", interface), format!("({physical})")], " ");
            let fix = if port.link_layer == "Ethernet" && !interface.is_empty() && physical == "Disabled" {
                Fix::command(format!("ip link set dev {interface} up"))
            } else {
                Fix::advice("check the cable, transceiver and switch port, and that the interface is up")
            };
            Finding::failure("port", "port-down", found, "no other RDMA port of this host is up", fix)
        }
    }
}

/// Returns the payload size of RoCE packets on an interface with this MTU.
pub(super) fn roce_mtu(interface_mtu: u32) -> u32 {
    let room = interface_mtu.saturating_sub(ROCE_HEADER_BYTES);
    MTUS.into_iter().rev().find(|mtu| *mtu <= room).unwrap_or(0)
}

pub(super) fn mtu(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, port): (&Device, &Port)| {
        if !port.is_active() || port.is_iwarp {
            return None;
        }
        let interface = &port.interface;
        let interface_mtu = facts.interface(interface).map_or(0, |interface| interface.mtu);
        let reckoned = (port.is_roce() && interface_mtu > 0).then(|| roce_mtu(interface_mtu));
        let bytes = port.mtu.filter(|bytes| *bytes > 0).or(reckoned)?;
        let most = port.mtu_max.filter(|most| *most > 0).unwrap_or(MTUS[MTUS.len() - 1]);
        let enough = if port.is_roce() { most } else { most.min(INFINIBAND_MTU_ENOUGH) };
        let finding = if bytes >= enough {
            let of = if bytes < most { format!("{bytes} of {most} bytes") } else { format!("{bytes} bytes") };
            let below =
                if interface_mtu > 0 { format!("({interface} has MTU {interface_mtu})") } else { String::new() };
            Finding::well("mtu", "mtu", joined([of, below], " "))
        } else {
            let found = format!("packets carry {bytes} of {most} bytes");
            let (found, why, fix) = if port.is_roce() && JUMBO > interface_mtu && !interface.is_empty() {
                (
                    format!("{found}, because {interface} has MTU {interface_mtu}"),
                    "the same data takes more packets; switches and the other host need the larger MTU too",
                    // Not a command: with switches that drop such packets, the host would not be reached any more.
                    Fix::advice(format!("ip link set dev {interface} mtu {JUMBO}")),
                )
            } else if port.is_roce() && interface_mtu > 0 {
                (
                    format!("{found}, although {interface} has MTU {interface_mtu}"),
                    "the device still uses the MTU from when it was started",
                    // Not `ip link set down` and `up`, which would remove routes and global IPv6 addresses.
                    Fix::advice(format!(
                        "restart {interface} with the tool that configured it (nmcli, networkctl, ifup), which sets \
                         its routes and addresses again"
                    )),
                )
            } else {
                let advice = "set 4096 in the subnet manager's partitions.conf: Default=0x7fff, ipoib, mtu=5";
                (found, "the same data takes more packets", Fix::advice(advice))
            };
            Finding::warning("mtu", "mtu-small", found, why, fix)
        };
        Some(finding.about(label(device, port)))
    };
    ports_of(facts).filter_map(finding).collect()
}

pub(super) fn gids(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, port): (&Device, &Port)| {
        if !port.is_active() || !port.is_roce() {
            return None;
        }
        // Without an address there is no such GID either. The missing address is what has to be fixed.
        let has_address = facts.interface(&port.interface).is_some_and(|it| !it.addresses.is_empty());
        let finding = if port.gids_routable == 0 && has_address {
            Finding::warning(
                "gids",
                "gids-missing",
                format!("none for RoCE v2, although {} has an address", port.interface),
                "only RoCE v2 is routable, and peers expect it",
                of_machine(facts, format!("cma_roce_mode -d {} -m 2", device.name)),
            )
        } else if port.gids_routable > 0 {
            let found = format!("{} in use, {} of them RoCE v2 with an IP address", port.gids, port.gids_routable);
            Finding::well("gids", "gids", found)
        } else {
            return None;
        };
        Some(finding.about(label(device, port)))
    };
    ports_of(facts).filter_map(finding).collect()
}

pub(super) fn addresses(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let works = !facts.rdma.is_empty();
    let any = works || ports_of(facts).any(|(_, port)| port.is_active() && facts.addressed(port).is_some());
    let bad = if any { Level::Warning } else { Level::Failure };
    for (device, port) in ports_of(facts).filter(|(_, port)| port.is_active()) {
        // rdma_cm has found an address by itself, although the port does not name its interface.
        let by_verbs: Vec<String> = facts
            .rdma
            .iter()
            .filter(|known| known.device == device.name)
            .map(|known| known.address.ip.to_string())
            .collect();
        let well = |addresses: Vec<String>, interface: &str| {
            Finding::well("address", "addresses", joined([addresses.join(", "), phrase("on", interface)], " "))
        };
        let finding = match (facts.addressed(port), facts.interface(&port.interface)) {
            (Some(known), _) => {
                well(known.addresses.iter().map(|address| address.ip.to_string()).collect(), &known.name)
            }
            (None, _) if !by_verbs.is_empty() => well(by_verbs, &port.interface),
            // A VLAN on the bond may have the address.
            (None, Some(known)) if works && !known.master.is_empty() => {
                Finding::well("address", "addresses", format!("{} belongs to {}", known.name, known.master))
            }
            (None, Some(known)) => Finding { level: bad, ..address_missing(known) },
            // A container that was given some of its machine's adapters sees the ports of all.
            (None, None) if works && facts.is_container => continue,
            (None, None) => {
                let fix = if port.link_layer == "InfiniBand" {
                    load(facts, "ib_ipoib")
                } else {
                    Fix::advice("load the adapter's Ethernet driver; if this is a container, give it the interface")
                };
                let finding = Finding::failure(
                    "address",
                    "interface-missing",
                    "the port has no network interface",
                    "RDMA connections are made to IP addresses; without an interface the port has none",
                    fix,
                );
                Finding { level: bad, ..finding }
            }
        };
        findings.push(finding.about(label(device, port)));
    }
    findings.extend(shared_subnets(facts));
    findings
}

fn address_missing(interface: &Interface) -> Finding {
    let (name, master) = (&interface.name, &interface.master);
    let why = "RDMA connections are made to IP addresses; without one the port is not used";
    if !master.is_empty() {
        // Not a command: packets to an address of a bond's or bridge's port would go to the bond or bridge.
        let fix = Fix::advice(format!("give {master} an address, or take {name} out of it and give {name} one"));
        let found = format!("{name} belongs to {master}, and neither has an IP address");
        return Finding::failure("address", "address-missing", found, why, fix);
    }
    let up = if interface.is_up { String::new() } else { format!("ip link set dev {name} up && ") };
    let variable: String = name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' })
        .collect();
    Finding::failure(
        "address",
        "address-missing",
        format!("{name} has no IP address"),
        why,
        Fix::command(format!(
            "{up}ip address add \"${{ADDRESS_{variable}:?set it to an address such as 10.0.0.1/24}}\" dev {name}"
        )),
    )
}

/// Reports interfaces of RDMA devices that share a subnet: the kernel may answer a packet to one interface through the
/// other.
fn shared_subnets(facts: &Facts) -> Vec<Finding> {
    let mut seen: Vec<(&str, &crate::measure::facts::Address)> = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    let on_devices = facts.interfaces.iter().filter(|interface| {
        ports_of(facts).any(|(device, port)| port.interface == interface.name && !device.is_software())
    });
    for interface in on_devices {
        let name = &interface.name;
        for address in interface.addresses.iter().filter(|address| address.ip.is_ipv4()) {
            let near = seen.iter().find(|(other, known)| *other != name && known.shares_subnet(address));
            if let Some((one, _)) = near {
                let finding = Finding::warning(
                    "address",
                    "subnet-twice",
                    format!("{name} ({}/{}) is in the same subnet as {one}", address.ip, address.prefix_bits),
                    "packets for one may be answered or sent by the other",
                    of_machine(
                        facts,
                        "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 # or give each a subnet of its own",
                    ),
                );
                findings.push(finding.about(name));
            }
            seen.push((name, address));
        }
    }
    findings
}

fn gts(speed: u32, width: u32) -> String {
    let tenth = if speed.is_multiple_of(10) { String::new() } else { format!(".{}", speed % 10) };
    format!("{}{tenth} GT/s x{width}", speed / 10)
}

pub(super) fn pcie(facts: &Facts) -> Vec<Finding> {
    let finding = |device: &Device| {
        let pci = device.pci.as_ref()?;
        // In a virtual machine the link data is often invented or missing.
        if [pci.speed, pci.width, pci.speed_max, pci.width_max].contains(&0) {
            return None;
        }
        let mbps = Pci::mbps(pci.speed, pci.width);
        let found = format!("{}: {:.0} Gbit/s", gts(pci.speed, pci.width), mbps as f64 / 1000.0);
        // All ports of a card share the link; those of virtual functions are the same ones.
        let is_function = |other: &Device| card(other) == card(device) && !other.is_virtual_function;
        let shares =
            |other: &&Device| std::ptr::eq(*other, device) || is_function(other) && !device.is_virtual_function;
        let ports = facts.devices.iter().filter(shares).flat_map(|device| &device.ports);
        let by_ports: u64 = ports.filter(|port| port.is_active()).map(|port| u64::from(port.rate_mbps)).sum();
        // The device of a bond has the rate of one port. Of a function's interfaces, such as those of partitions, the
        // fastest counts.
        let on_card = facts.interfaces.iter().filter(|one| one.is_up && one.pci.split('.').next() == card(device));
        let known: BTreeSet<(&str, u32)> = on_card.map(|one| (&*one.pci, one.rate_mbps)).collect();
        let functions: BTreeMap<&str, u32> = known.into_iter().collect();
        let by_interfaces: u64 = functions.into_values().map(u64::from).sum();
        let needed = if device.is_virtual_function { by_ports } else { by_ports.max(by_interfaces) };
        let is_enough = (1..=mbps).contains(&needed);
        let finding = if (pci.speed < pci.speed_max || pci.width < pci.width_max) && !is_enough {
            let why = if needed > 0 {
                format!("the {} of the card's ports cannot be reached", link_rate(needed))
            } else {
                "it may be the bottleneck".to_owned()
            };
            let (address, most) = (&pci.address, gts(pci.speed_max, pci.width_max));
            Finding::warning(
                "pcie",
                "pcie-slow",
                format!("{found}; the card supports {most}"),
                why,
                Fix::advice(format!(
                    "move the card to a slot of {most}, or reseat it; the BIOS may limit the slot; lspci -vv -s {address} \
                     shows LnkCap and LnkSta"
                )),
            )
        } else {
            Finding::well("pcie", "pcie", found)
        };
        Some(finding.about(&device.name))
    };
    facts.devices.iter().filter_map(finding).collect()
}

pub(super) fn numa(facts: &Facts) -> Vec<Finding> {
    let attached = facts.devices.iter().filter(|device| device.numa_node >= 0 && facts.numa_nodes > 1);
    let finding = |device: &Device| {
        // Numbers of nodes may have gaps.
        let found = format!("attached to node {}; there are {} nodes", device.numa_node, facts.numa_nodes);
        Finding::well("numa", "numa", found).about(&device.name)
    };
    attached.map(finding).collect()
}

pub(super) fn iommu(facts: &Facts) -> Vec<Finding> {
    let hardware = facts.devices.iter().filter(|device| !device.is_software());
    let finding = |device: &Device| {
        // A virtual function passed to a guest is always translated, but not by this kernel.
        let finding = if device.iommu.starts_with("DMA") && !device.is_virtual_function {
            // The first word is x86's, the second is also ARM's. A container's system is not the machine's.
            let is_like = |names: &[&str]| !facts.is_container && is_like(facts, names);
            let fix = if is_like(&["fedora", "rhel", "centos", "amzn"]) {
                Fix::command("grubby --update-kernel=ALL --args='iommu=pt iommu.passthrough=1' # then restart")
            } else if is_like(&["debian", "ubuntu"]) {
                Fix::command(
                    "mkdir -p /etc/default/grub.d && printf 'GRUB_CMDLINE_LINUX=\"%s iommu=pt iommu.passthrough=1\"\\n' \
                     \"\\$GRUB_CMDLINE_LINUX\" >/etc/default/grub.d/iommu-pt.cfg && update-grub # then restart",
                )
            } else {
                Fix::advice(
                    "add iommu=pt iommu.passthrough=1 to the kernel's command line in the boot loader's settings, then \
                     restart",
                )
            };
            Finding::warning(
                "iommu",
                "iommu-translates",
                format!("translates every access of the device ({})", device.iommu),
                "registering memory takes longer, and misses in the IOMMU's cache reduce throughput",
                fix,
            )
        } else if device.is_virtual_function || matches!(&*device.iommu, "" | "identity") {
            Finding::well("iommu", "iommu-passed", "does not translate the device's accesses")
        } else {
            Finding::well("iommu", "iommu-unknown", "the system does not tell whether it translates")
        };
        finding.about(&device.name)
    };
    hardware.map(finding).collect()
}
