//! What one host is like: values as they were found, without a verdict. An agent gathers them, the caller judges.
//!
//! Facts that come from another host are held to [`LIST_MAX`] and [`TEXT_BYTES_MAX`], and names in them to what may stand
//! in a command, since the fixes that are proposed contain them: each field says by what it is decoded.

use std::net::IpAddr;

use minicbor::decode::Error;
use minicbor::{Decode, Decoder, Encode};

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
    #[cbor(n(0), decode_with = "text")]
    pub host: String,
    /// The version of rdma-pipe that looked.
    #[cbor(n(1), decode_with = "text")]
    pub program: String,
    /// The kernel's release.
    #[cbor(n(2), decode_with = "text")]
    pub kernel: String,
    /// The distribution, for a person.
    #[cbor(n(3), decode_with = "text")]
    pub system: String,
    /// The distribution and those that it descends from: `ID` and `ID_LIKE` of os-release.
    #[cbor(n(4), decode_with = "text")]
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
    #[cbor(n(10), decode_with = "text")]
    pub verbs_library: String,
    /// The file behind librdmacm.so.1.
    #[cbor(n(11), decode_with = "text")]
    pub cm_library: String,
    /// Drivers of libibverbs, as `mlx5`.
    #[cbor(n(12), decode_with = "texts")]
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
    /// Its address in the ssh session that this was gathered in; empty where that is none.
    #[cbor(n(19), decode_with = "text")]
    pub ssh: String,
    /// Processors' speed.
    #[n(20)]
    pub cpu: Cpu,
    /// Huge pages.
    #[n(21)]
    pub huge: HugePages,
    /// The program that configures the firewall: `firewall-cmd`, `ufw`, `nft`, `iptables`; empty where there is none.
    #[cbor(n(22), decode_with = "text")]
    pub firewall: String,
    /// Addresses through which verbs work.
    #[n(23)]
    pub rdma: Vec<RdmaAddress>,
    /// Why there is none.
    #[cbor(n(24), decode_with = "text")]
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
    #[cbor(n(2), decode_with = "text")]
    pub congestion: String,
    /// Controls that are loaded.
    #[cbor(n(3), decode_with = "texts")]
    pub available: Vec<String>,
    /// `default_qdisc`.
    #[cbor(n(4), decode_with = "text")]
    pub qdisc: String,
}

/// A device file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Node {
    /// Its path below `/dev`.
    #[cbor(n(0), decode_with = "plain")]
    pub name: String,
    /// What opening it answered; 0 if it was opened.
    #[n(1)]
    pub errno: i32,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Device {
    /// Its name, as `mlx5_0`.
    #[cbor(n(0), decode_with = "plain")]
    pub name: String,
    /// Its kernel driver, as `mlx5_core`; empty for a software device.
    #[cbor(n(1), decode_with = "text")]
    pub driver: String,
    /// Its model.
    #[cbor(n(2), decode_with = "text")]
    pub model: String,
    /// Its firmware's version.
    #[cbor(n(3), decode_with = "text")]
    pub firmware: String,
    /// Its GUID, in hexadecimal with colons.
    #[cbor(n(4), decode_with = "text")]
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
    #[cbor(n(8), decode_with = "text")]
    pub iommu: String,
    /// Its ports.
    #[cbor(n(9), decode_with = "list::<_, _, LIST_MAX>")]
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
    #[cbor(n(0), decode_with = "plain")]
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
    #[cbor(n(1), decode_with = "text")]
    pub state: String,
    /// As `LinkUp`.
    #[cbor(n(2), decode_with = "text")]
    pub physical: String,
    /// `InfiniBand` or `Ethernet`.
    #[cbor(n(3), decode_with = "text")]
    pub link_layer: String,
    /// In Mbit/s; 0 where it is unknown.
    #[n(4)]
    pub rate_mbps: u32,
    /// Lanes of the link: 1X to 12X; 0 where it is unknown.
    #[n(5)]
    pub lanes: u32,
    /// The network interface on it.
    #[cbor(n(6), decode_with = "plain")]
    pub interface: String,
    /// Entries of its GID table that are in use.
    #[n(7)]
    pub gids: u32,
    /// Those that RoCE v2 can route: with an IP address that is not link-local.
    #[n(8)]
    pub gids_routable: u32,
    /// The port's GUID: the low half of its first GID.
    #[cbor(n(9), decode_with = "text")]
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
    #[cbor(n(3), decode_with = "text")]
    pub reason: String,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Interface {
    /// Its name.
    #[cbor(n(0), decode_with = "plain")]
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
    #[cbor(n(4), decode_with = "text")]
    pub driver: String,
    /// Its addresses.
    #[cbor(n(5), decode_with = "list::<_, _, LIST_MAX>")]
    pub addresses: Vec<Address>,
    /// Where its hardware is on the PCI bus.
    #[cbor(n(6), decode_with = "text")]
    pub pci: String,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Address {
    /// The IP address.
    #[n(0)]
    pub ip: IpAddr,
    /// Leading bits that name the subnet.
    #[n(1)]
    pub prefix_bits: u8,
}

impl Address {
    /// Whether the two are in one subnet.
    pub fn shares_subnet(&self, other: &Self) -> bool {
        let bits = self.prefix_bits.min(other.prefix_bits);
        same_subnet(self.ip, other.ip, bits)
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
    #[cbor(n(0), decode_with = "texts")]
    pub governors: Vec<String>,
    /// What scales the frequency.
    #[cbor(n(1), decode_with = "text")]
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
    #[cbor(n(3), decode_with = "text")]
    pub transparent: String,
}

/// An address of this host through which verbs work.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RdmaAddress {
    /// The device.
    #[cbor(n(0), decode_with = "plain")]
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
    /// As they have come from another host: lists and texts bounded, and without entries whose names might not stand in
    /// a command. `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut facts: Self = super::decode(bytes)?;
        // It is quoted where it stands in a script, and names that are no host's are common: "(none)".
        if facts.host.is_empty() || facts.host.len() > 64 || facts.host.chars().any(char::is_control) {
            facts.host = "unnamed".to_owned();
        }
        hold(&mut facts.nodes, LIST_MAX, |node| &node.name);
        hold(&mut facts.interfaces, LIST_MAX, |interface| &interface.name);
        hold(&mut facts.rdma, LIST_MAX, |known| &known.device);
        hold(&mut facts.devices, LIST_MAX, |device| &device.name);
        for device in &mut facts.devices {
            device.pci = device.pci.take().filter(|pci| !pci.address.is_empty());
        }
        facts.counters.retain(|counter| !counter.of.is_empty());
        hold(&mut facts.counters, COUNTERS_MAX, |counter| &counter.name);
        Some(facts)
    }

    /// Holds what was found here to what another host would be held to.
    pub fn bounded(&self) -> Self {
        Self::decode(&super::encode(self)).expect("our own")
    }

    /// The interface of that name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interface that has an address.
    pub fn interface_of(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.addresses.iter().any(|own| own.ip == ip))
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

/// Leaves out entries without a name, and all behind the first `most`.
fn hold<T>(list: &mut Vec<T>, most: usize, name: impl Fn(&T) -> &String) {
    list.retain(|entry| !name(entry).is_empty());
    list.truncate(most);
}

/// The first `MOST` entries.
pub(super) fn list<'b, C, T, const MOST: usize>(decoder: &mut Decoder<'b>, context: &mut C) -> Result<Vec<T>, Error>
where
    T: Decode<'b, C>,
{
    let mut list: Vec<T> = decoder.decode_with(context)?;
    list.truncate(MOST);
    Ok(list)
}

/// The first [`LIST_MAX`] texts.
fn texts<C>(decoder: &mut Decoder<'_>, context: &mut C) -> Result<Vec<String>, Error> {
    let texts = list::<_, &str, LIST_MAX>(decoder, context)?;
    Ok(texts.into_iter().map(cut).collect())
}

/// A text of at most [`TEXT_BYTES_MAX`]; a longer one is cut.
pub(super) fn text<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<String, Error> {
    decoder.str().map(cut)
}

/// What may stand in a command; empty where it may not.
pub(super) fn plain<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<String, Error> {
    decoder.str().map(|name| if is_plain(name) { name.to_owned() } else { String::new() })
}

fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Body of the fuzz target: facts of a hostile host are bounded, and no check panics over them.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_facts(bytes: &[u8]) {
    let Some(facts) = Facts::decode(bytes) else { return };
    assert!(facts.devices.len() <= LIST_MAX && facts.interfaces.len() <= LIST_MAX && facts.host.len() <= 64);
    let again = Facts::decode(&super::encode(&facts));
    assert_eq!(again.as_ref(), Some(&facts));
    super::examine(&facts);
    let after = Some([facts.counters.clone(), facts.counters.clone()]);
    super::compare(&super::Path { here: facts.clone(), there: facts, after, ..super::Path::default() });
}
