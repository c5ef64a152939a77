//! What one host is like: values as they were found, without a verdict. An agent gathers them, the caller judges.
//!
//! Facts that come from another host are held to [`LIST_MAX`], and names in them to what may stand in a command: the
//! fixes that are proposed contain them.

use std::net::IpAddr;

use minicbor::{Decode, Encode};

use super::counters::{COUNTERS_MAX, Counter};
use crate::transport::same_subnet;

/// Entries of any list, at most.
pub const LIST_MAX: usize = 64;

/// Bytes of any text, at most.
pub const TEXT_BYTES_MAX: usize = 200;

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Facts {
    /// Its own name.
    #[n(0)]
    pub host: String,
    /// The version of rdma-pipe that looked.
    #[n(1)]
    pub program: String,
    /// The kernel's release.
    #[n(2)]
    pub kernel: String,
    /// The distribution, for a person.
    #[n(3)]
    pub system: String,
    /// The distribution and those that it descends from: `ID` and `ID_LIKE` of os-release.
    #[n(4)]
    pub family: String,
    /// The process that gathered this may lock any amount of memory.
    #[n(5)]
    pub is_root: bool,
    /// This is a container, which sees the devices that it was given.
    #[n(6)]
    pub is_container: bool,
    /// Logical processors.
    #[n(7)]
    pub processors: u32,
    /// NUMA nodes.
    #[n(8)]
    pub numa_nodes: u32,
    /// Memory in KiB.
    #[n(9)]
    pub memory_kib: u64,
    /// The file behind libibverbs.so.1, whose name ends with rdma-core's release; empty where there is none.
    #[n(10)]
    pub verbs_library: String,
    /// The file behind librdmacm.so.1.
    #[n(11)]
    pub cm_library: String,
    /// Drivers of libibverbs, as `mlx5`.
    #[n(12)]
    pub providers: Vec<String>,
    /// The kernel has its verbs interface loaded.
    #[n(13)]
    pub has_uverbs: bool,
    /// The kernel has rdma_cm's interface loaded.
    #[n(14)]
    pub has_ucm: bool,
    /// Device files that there should be.
    #[n(15)]
    pub nodes: Vec<Node>,
    /// RDMA devices.
    #[n(16)]
    pub devices: Vec<Device>,
    /// Network interfaces, without loopback.
    #[n(17)]
    pub interfaces: Vec<Interface>,
    /// The limit on locked memory.
    #[n(18)]
    pub memlock: Option<Memlock>,
    /// The two ends of the ssh session that this was gathered in: our address, theirs.
    #[n(19)]
    pub ssh: Option<(String, String)>,
    /// Processors' speed.
    #[n(20)]
    pub cpu: Cpu,
    /// Huge pages.
    #[n(21)]
    pub huge: HugePages,
    /// The program that configures the firewall: `firewall-cmd`, `ufw`, `nft`, `iptables`; empty where there is none.
    #[n(22)]
    pub firewall: String,
    /// Addresses through which verbs work.
    #[n(23)]
    pub rdma: Vec<RdmaAddress>,
    /// Why there is none.
    #[n(24)]
    pub no_rdma: String,
    /// Memory that an mlx4 device can register, in bytes.
    #[n(25)]
    pub mlx4_bytes: Option<u64>,
    /// What its ports and its TCP have counted.
    #[n(26)]
    pub counters: Vec<Counter>,
    /// How its TCP is set.
    #[n(27)]
    pub tcp: Option<TcpSettings>,
}

/// Settings of the kernel's TCP, from /proc/sys/net. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TcpSettings {
    /// `tcp_rmem`: the least, the usual and the largest buffer for receiving.
    #[n(0)]
    pub receive: [u64; 3],
    /// `tcp_wmem`: the same for sending.
    #[n(1)]
    pub send: [u64; 3],
    /// `tcp_congestion_control`.
    #[n(2)]
    pub congestion: String,
    /// Controls that are loaded.
    #[n(3)]
    pub available: Vec<String>,
    /// `default_qdisc`.
    #[n(4)]
    pub qdisc: String,
}

/// A device file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Node {
    /// Its path below `/dev`.
    #[n(0)]
    pub name: String,
    /// What opening it answered; 0 if it was opened.
    #[n(1)]
    pub errno: i32,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Device {
    /// Its name, as `mlx5_0`.
    #[n(0)]
    pub name: String,
    /// Its kernel driver, as `mlx5_core`; empty for a software device.
    #[n(1)]
    pub driver: String,
    /// Its model.
    #[n(2)]
    pub model: String,
    /// Its firmware's version.
    #[n(3)]
    pub firmware: String,
    /// Its GUID, in hexadecimal with colons.
    #[n(4)]
    pub node_guid: String,
    /// Its place on the PCI bus.
    #[n(5)]
    pub pci: Option<Pci>,
    /// The NUMA node that it is attached to; negative where there is none.
    #[n(6)]
    pub numa_node: i32,
    /// It is a virtual function of an adapter.
    #[n(7)]
    pub is_virtual_function: bool,
    /// How the IOMMU treats it: `DMA`, `DMA-FQ`, `identity`; empty without one.
    #[n(8)]
    pub iommu: String,
    /// Its ports.
    #[n(9)]
    pub ports: Vec<Port>,
    /// What came of registering memory on it.
    #[n(10)]
    pub registration: Option<Registration>,
}

impl Device {
    /// It is made of software: rxe, siw.
    pub fn is_software(&self) -> bool {
        self.driver.is_empty()
    }
}

/// A PCI link. Speeds are in units of 0.1 GT/s; 0 stands for unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Pci {
    /// As `0000:41:00.0`; of a virtual function, that of the adapter that it belongs to.
    #[n(0)]
    pub address: String,
    /// The speed of a lane.
    #[n(1)]
    pub speed: u32,
    /// Lanes.
    #[n(2)]
    pub width: u32,
    /// The most that the card can do.
    #[n(3)]
    pub speed_max: u32,
    /// The most that the card has.
    #[n(4)]
    pub width_max: u32,
}

impl Pci {
    /// What the link carries, in Mbit/s, after its encoding.
    pub fn mbps(speed: u32, width: u32) -> u64 {
        // 8b/10b up to 5 GT/s, 128b/130b above.
        let gross = u64::from(speed) * u64::from(width) * 100;
        if speed <= 50 { gross * 8 / 10 } else { gross * 128 / 130 }
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Port {
    /// Its number, from 1.
    #[n(0)]
    pub number: u32,
    /// As `ACTIVE`.
    #[n(1)]
    pub state: String,
    /// As `LinkUp`.
    #[n(2)]
    pub physical: String,
    /// `InfiniBand` or `Ethernet`.
    #[n(3)]
    pub link_layer: String,
    /// In Mbit/s; 0 where it is unknown.
    #[n(4)]
    pub rate_mbps: u32,
    /// Lanes of the link: 1X to 12X; 0 where it is unknown.
    #[n(5)]
    pub lanes: u32,
    /// The network interface on it.
    #[n(6)]
    pub interface: String,
    /// Entries of its GID table that are in use.
    #[n(7)]
    pub gids: u32,
    /// Those that RoCE v2 can route: with an IP address that is not link-local.
    #[n(8)]
    pub gids_routable: u32,
    /// The port's GUID: the low half of its first GID.
    #[n(9)]
    pub guid: String,
    /// The MTU in use, as verbs report it, in bytes.
    #[n(10)]
    pub mtu: Option<u32>,
    /// The largest MTU, in bytes.
    #[n(11)]
    pub mtu_max: Option<u32>,
    /// It is iWARP, whose packets are TCP's.
    #[n(12)]
    pub is_iwarp: bool,
}

impl Port {
    /// It is up.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// RDMA over Ethernet's own frames.
    pub fn is_roce(&self) -> bool {
        self.link_layer == "Ethernet" && !self.is_iwarp
    }
}

/// What came of registering memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Registration {
    /// What was asked for, in bytes.
    #[n(0)]
    pub wanted_bytes: u64,
    /// What could be registered, in bytes.
    #[n(1)]
    pub bytes: u64,
    /// How long that took, in microseconds.
    #[n(2)]
    pub micros: u64,
    /// Why not more, for a person; empty if all could be.
    #[n(3)]
    pub reason: String,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Interface {
    /// Its name.
    #[n(0)]
    pub name: String,
    /// It is up and has a carrier.
    #[n(1)]
    pub is_up: bool,
    /// In bytes.
    #[n(2)]
    pub mtu: u32,
    /// In Mbit/s; 0 where it is unknown, and for interfaces without hardware, which make theirs up.
    #[n(3)]
    pub rate_mbps: u32,
    /// Its driver; empty where there is no hardware.
    #[n(4)]
    pub driver: String,
    /// Its addresses.
    #[n(5)]
    pub addresses: Vec<Address>,
    /// Where its hardware is on the PCI bus.
    #[n(6)]
    pub pci: String,
}

/// An address of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Address {
    /// 4 or 16 bytes.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub bytes: Vec<u8>,
    /// Leading bits that name the subnet.
    #[n(1)]
    pub prefix_bits: u8,
}

impl Address {
    /// Of an IP address.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Self {
        let bytes = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        Self { bytes, prefix_bits }
    }

    /// The IP address, if the bytes are one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.bytes.len() {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(&self.bytes[..]).ok()?)),
            16 => Some(IpAddr::from(<[u8; 16]>::try_from(&self.bytes[..]).ok()?)),
            _ => None,
        }
    }

    /// Whether the two are in one subnet.
    pub fn shares_subnet(&self, other: &Self) -> bool {
        let bits = self.prefix_bits.min(other.prefix_bits);
        self.ip().zip(other.ip()).is_some_and(|(one, other)| same_subnet(one, other, bits))
    }
}

/// Limits on locked memory, in bytes; `None` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Memlock {
    /// What counts.
    #[n(0)]
    pub soft: Option<u64>,
    /// What it can be raised to without being root.
    #[n(1)]
    pub hard: Option<u64>,
}

/// Processors' speed; 0 and empty where the system does not report it, as in most virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Cpu {
    /// The governors in use, each once.
    #[n(0)]
    pub governors: Vec<String>,
    /// What scales the frequency.
    #[n(1)]
    pub driver: String,
    /// The highest frequency that is allowed, in kHz.
    #[n(2)]
    pub allowed_khz: u64,
    /// The highest that there is.
    #[n(3)]
    pub most_khz: u64,
}

/// Huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct HugePages {
    /// Reserved pages.
    #[n(0)]
    pub total: u64,
    /// Those that are free.
    #[n(1)]
    pub free: u64,
    /// Of this size, in KiB.
    #[n(2)]
    pub size_kib: u64,
    /// Transparent ones: `always`, `madvise`, `never`.
    #[n(3)]
    pub transparent: String,
}

/// An address of this host through which verbs work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RdmaAddress {
    /// The device.
    #[n(0)]
    pub device: String,
    /// The address.
    #[n(1)]
    pub address: Address,
    /// It is hardware.
    #[n(2)]
    pub is_hardware: bool,
    /// The rate of its port in Mbit/s; software makes it up.
    #[n(3)]
    pub rate_mbps: u32,
}

impl Facts {
    /// As they travel.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("a vector takes everything")
    }

    /// As they have come from another host: lists and texts bounded, and without entries whose names might not stand in
    /// a command. `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut facts: Self = minicbor::decode(bytes).ok()?;
        facts.bound();
        Some(facts)
    }

    /// Holds everything to its bounds.
    pub fn bound(&mut self) {
        for text in [
            &mut self.host,
            &mut self.program,
            &mut self.kernel,
            &mut self.system,
            &mut self.family,
            &mut self.verbs_library,
            &mut self.cm_library,
            &mut self.firewall,
            &mut self.no_rdma,
            &mut self.cpu.driver,
            &mut self.huge.transparent,
        ] {
            cut(text);
        }
        // It is quoted where it stands in a script, and names that are no host's are common: "(none)".
        if self.host.is_empty() || self.host.len() > 64 || self.host.chars().any(char::is_control) {
            self.host = "unnamed".to_owned();
        }
        for list in [&mut self.providers, &mut self.cpu.governors] {
            list.truncate(LIST_MAX);
            list.iter_mut().for_each(cut);
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.available.truncate(LIST_MAX);
            [&mut tcp.congestion, &mut tcp.qdisc].into_iter().chain(&mut tcp.available).for_each(cut);
        }
        self.nodes.retain(|node| is_plain(&node.name));
        self.nodes.truncate(LIST_MAX);
        self.interfaces.retain(|interface| is_plain(&interface.name));
        self.interfaces.truncate(LIST_MAX);
        for interface in &mut self.interfaces {
            cut(&mut interface.driver);
            cut(&mut interface.pci);
            interface.addresses.retain(|address| address.ip().is_some());
            interface.addresses.truncate(LIST_MAX);
        }
        self.rdma.retain(|known| is_plain(&known.device) && known.address.ip().is_some());
        self.rdma.truncate(LIST_MAX);
        self.devices.retain(|device| is_plain(&device.name));
        self.devices.truncate(LIST_MAX);
        for device in &mut self.devices {
            for text in
                [&mut device.driver, &mut device.model, &mut device.firmware, &mut device.node_guid, &mut device.iommu]
            {
                cut(text);
            }
            if device.pci.as_ref().is_some_and(|pci| !is_plain(&pci.address)) {
                device.pci = None;
            }
            if let Some(registration) = &mut device.registration {
                cut(&mut registration.reason);
            }
            device.ports.truncate(LIST_MAX);
            for port in &mut device.ports {
                for text in [&mut port.state, &mut port.physical, &mut port.link_layer, &mut port.guid] {
                    cut(text);
                }
                if !is_plain(&port.interface) {
                    port.interface.clear();
                }
            }
        }
        self.counters.retain(|counter| is_plain(&counter.of) && is_plain(&counter.name));
        self.counters.truncate(COUNTERS_MAX);
        if let Some((ours, theirs)) = &mut self.ssh {
            cut(ours);
            cut(theirs);
        }
    }

    /// The interface of that name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interface that has an address.
    pub fn interface_of(&self, address: &Address) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.addresses.iter().any(|own| own.bytes == address.bytes))
    }

    /// Whether the network is fast enough for the processors to matter: from 10 Gbit/s on.
    pub fn is_fast(&self) -> bool {
        let hardware = self.devices.iter().any(|device| !device.is_software());
        hardware || self.interfaces.iter().any(|interface| interface.is_up && interface.rate_mbps >= 10_000)
    }
}

/// What may stand in a command without quotes, and in no way end it.
fn is_plain(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@/".contains(&byte))
}

fn cut(text: &mut String) {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.truncate(end);
}

/// Body of the fuzz target: facts of a hostile host are bounded, and no check panics over them.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_facts(bytes: &[u8]) {
    let Some(facts) = Facts::decode(bytes) else { return };
    assert!(facts.devices.len() <= LIST_MAX && facts.interfaces.len() <= LIST_MAX && facts.host.len() <= 64);
    let again = Facts::decode(&facts.encode());
    assert_eq!(again.as_ref(), Some(&facts));
    super::examine(&facts);
    let after = Some([facts.counters.clone(), facts.counters.clone()]);
    super::compare(&super::Path { here: facts.clone(), there: facts, after, ..super::Path::default() });
}
