//! Checks of RDMA devices: their identity, ports, packet sizes, addresses and bus.

use crate::measure::facts::{Device, Facts, Pci, Port};
use crate::measure::finding::{Finding, Level, What};

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

pub(super) fn devices(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, device) in facts.devices.iter().enumerate() {
        let about = |level, what| Finding::about("device", &device.name, level, what);
        findings.push(about(
            Level::Ok,
            What::Device {
                model: device.model.clone(),
                driver: device.driver.clone(),
                firmware: device.firmware.clone(),
                guid: device.node_guid.clone(),
                is_virtual_function: device.is_virtual_function,
            },
        ));
        if is_zero(&device.node_guid) {
            let what = What::GuidZero { is_virtual_function: device.is_virtual_function };
            findings.push(about(Level::Warning, what));
        } else if let Some(other) = facts.devices[..at].iter().find(|other| other.node_guid == device.node_guid) {
            // Functions of the same adapter may share a GUID by design.
            let function =
                |device: &Device| device.pci.as_ref().map(|pci| pci.address.split('.').next().map(str::to_owned));
            if function(other).is_none() || function(other) != function(device) {
                let what = What::GuidTwice { guid: device.node_guid.clone(), other: other.name.clone() };
                findings.push(about(Level::Warning, what));
            }
        }
    }
    findings
}

pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let any_active = ports_of(facts).any(|(_, port)| port.is_active());
    let finding = |(device, port): (&Device, &Port)| {
        let bad = if any_active { Level::Warning } else { Level::Failure };
        let (level, what) = match port.state.as_str() {
            // Some adapters report lanes for Ethernet too, where the number means nothing.
            "ACTIVE"
                if port.lanes == 1 && port.link_layer == "InfiniBand" && !port.is_iwarp && !device.is_software() =>
            {
                (Level::Warning, What::PortNarrow { rate: port.rate_mbps })
            }
            "ACTIVE" => (
                Level::Ok,
                What::Port {
                    link_layer: if port.is_iwarp { "iWARP".to_owned() } else { port.link_layer.clone() },
                    rate: if device.is_software() { 0 } else { port.rate_mbps },
                    interface: port.interface.clone(),
                    guid: port.guid.clone(),
                    is_roce: port.is_roce(),
                },
            ),
            "INIT" | "ARMED" if port.link_layer == "InfiniBand" => (bad, What::PortWaits { state: port.state.clone() }),
            // A second port without a cable is not a mistake.
            _ if any_active => (Level::Ok, What::PortUnused { state: port.state.clone() }),
            _ => (
                Level::Failure,
                What::PortDown {
                    physical: port.physical.clone(),
                    interface: port.interface.clone(),
                    is_ethernet: port.link_layer == "Ethernet",
                },
            ),
        };
        Finding::about("port", label(device, port), level, what)
    };
    ports_of(facts).map(finding).collect()
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
        let interface_mtu = facts.interface(&port.interface).map_or(0, |interface| interface.mtu);
        let reckoned = (port.is_roce() && interface_mtu > 0).then(|| roce_mtu(interface_mtu));
        let bytes = port.mtu.filter(|bytes| *bytes > 0).or(reckoned)?;
        let most = port.mtu_max.filter(|most| *most > 0).unwrap_or(MTUS[MTUS.len() - 1]);
        let enough = if port.is_roce() { most } else { most.min(INFINIBAND_MTU_ENOUGH) };
        let interface = port.interface.clone();
        let (level, what) = if bytes < enough {
            let needed = if port.is_roce() { JUMBO } else { 0 };
            (Level::Warning, What::MtuSmall { bytes, most, interface, interface_mtu, needed })
        } else {
            (Level::Ok, What::Mtu { bytes, most, interface, interface_mtu })
        };
        Some(Finding::about("mtu", label(device, port), level, what))
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
        let (level, what) = if port.gids_routable == 0 && has_address {
            (Level::Warning, What::GidsMissing { interface: port.interface.clone() })
        } else if port.gids_routable > 0 {
            (Level::Ok, What::Gids { routable: port.gids_routable, all: port.gids })
        } else {
            return None;
        };
        Some(Finding::about("gids", label(device, port), level, what))
    };
    ports_of(facts).filter_map(finding).collect()
}

pub(super) fn addresses(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let addressed = |port: &Port| facts.interface(&port.interface).filter(|interface| !interface.addresses.is_empty());
    let any = ports_of(facts).any(|(_, port)| port.is_active() && addressed(port).is_some());
    let bad = if any { Level::Warning } else { Level::Failure };
    for (device, port) in ports_of(facts).filter(|(_, port)| port.is_active()) {
        let interface = port.interface.clone();
        // rdma_cm has found an address by itself, although the port does not name its interface.
        let by_verbs: Vec<String> = facts
            .rdma
            .iter()
            .filter(|known| known.device == device.name)
            .map(|known| known.address.ip.to_string())
            .collect();
        let (level, what) = match (addressed(port), facts.interface(&interface)) {
            (Some(known), _) => {
                let addresses = known.addresses.iter().map(|address| address.ip.to_string());
                (Level::Ok, What::Addresses { interface, addresses: addresses.collect() })
            }
            (None, _) if !by_verbs.is_empty() => (Level::Ok, What::Addresses { interface, addresses: by_verbs }),
            (None, Some(known)) => (bad, What::AddressMissing { interface, is_up: known.is_up }),
            (None, None) => (bad, What::InterfaceMissing),
        };
        findings.push(Finding::about("address", label(device, port), level, what));
    }
    findings.extend(shared_subnets(facts));
    findings
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
        for address in interface.addresses.iter().filter(|address| address.ip.is_ipv4()) {
            let near = seen.iter().find(|(name, other)| *name != interface.name && other.shares_subnet(address));
            if let Some((one, _)) = near {
                let subnet = format!("{}/{}", address.ip, address.prefix_bits);
                let what = What::SubnetTwice { one: (*one).to_owned(), other: interface.name.clone(), address: subnet };
                findings.push(Finding::about("address", &interface.name, Level::Warning, what));
            }
            seen.push((&interface.name, address));
        }
    }
    findings
}

pub(super) fn pcie(facts: &Facts) -> Vec<Finding> {
    let finding = |device: &Device| {
        let pci = device.pci.as_ref()?;
        // In a virtual machine the link data is often invented or missing.
        if [pci.speed, pci.width, pci.speed_max, pci.width_max].contains(&0) {
            return None;
        }
        let mbps = Pci::mbps(pci.speed, pci.width);
        let (level, what) = if pci.speed < pci.speed_max || pci.width < pci.width_max {
            (
                Level::Warning,
                What::PcieSlow {
                    address: pci.address.clone(),
                    speed: pci.speed,
                    width: pci.width,
                    speed_max: pci.speed_max,
                    width_max: pci.width_max,
                    mbps,
                    rate: device.ports.iter().map(|port| port.rate_mbps).max().unwrap_or(0),
                },
            )
        } else {
            (Level::Ok, What::Pcie { speed: pci.speed, width: pci.width, mbps })
        };
        Some(Finding::about("pcie", &device.name, level, what))
    };
    facts.devices.iter().filter_map(finding).collect()
}

pub(super) fn numa(facts: &Facts) -> Vec<Finding> {
    let attached = facts.devices.iter().filter(|device| device.numa_node >= 0 && facts.numa_nodes > 1);
    let finding = |device: &Device| {
        let what = What::Numa { node: device.numa_node, nodes: facts.numa_nodes };
        Finding::about("numa", &device.name, Level::Ok, what)
    };
    attached.map(finding).collect()
}

pub(super) fn iommu(facts: &Facts) -> Vec<Finding> {
    let hardware = facts.devices.iter().filter(|device| !device.is_software());
    let finding = |device: &Device| {
        // A virtual function passed to a guest is always translated, but not by this kernel.
        let (level, what) = if device.iommu.starts_with("DMA") && !device.is_virtual_function {
            (Level::Warning, What::IommuTranslates { mode: device.iommu.clone() })
        } else {
            (Level::Ok, What::IommuPassed)
        };
        Finding::about("iommu", &device.name, level, what)
    };
    hardware.map(finding).collect()
}
