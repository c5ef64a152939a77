//! Facts about a host: values as they were found, without a verdict. An agent gathers them; the caller judges them.
//!
//! Facts from another host are limited to [`LIST_MAX`] and [`TEXT_BYTES_MAX`]. Names in them are limited to what may
//! stand in a command, because the proposed fixes contain these names. Each field names the function that decodes it.

use std::net::IpAddr;

use minicbor::decode::Error;
use minicbor::{Decode, Decoder, Encode};

use super::counters::{COUNTERS_MAX, Counter};
use crate::fault::is_unprintable;
use crate::transport::same_subnet;

/// Maximum number of entries in a list.
pub const LIST_MAX: usize = 64;

/// Maximum length of a text in bytes.
pub const TEXT_BYTES_MAX: usize = 200;

/// Facts about one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Facts {
    /// The host's own name.
    #[cbor(n(0), decode_with = "text")]
    pub host: String,
    /// Version of the rdma-pipe that gathered the facts.
    #[cbor(n(1), decode_with = "text")]
    pub program: String,
    /// The kernel's release.
    #[cbor(n(2), decode_with = "text")]
    pub kernel: String,
    /// The distribution's name, for display.
    #[cbor(n(3), decode_with = "text")]
    pub system: String,
    /// The distribution and its ancestors: `ID` and `ID_LIKE` of os-release.
    #[cbor(n(4), decode_with = "text")]
    pub family: String,
    /// Whether the process that gathered the facts may lock any amount of memory.
    #[n(5)]
    pub is_root: bool,
    /// Whether this is a container, which sees only the devices that were passed to it.
    #[n(6)]
    pub is_container: bool,
    /// Number of logical processors.
    #[n(7)]
    pub processors: u32,
    /// Number of NUMA nodes.
    #[n(8)]
    pub numa_nodes: u32,
    /// Memory in KiB.
    #[n(9)]
    pub memory_kib: u64,
    /// The file behind libibverbs.so.1, whose name ends with rdma-core's release; empty if the library is missing.
    #[cbor(n(10), decode_with = "text")]
    pub verbs_library: String,
    /// The file behind librdmacm.so.1; empty if the library is missing.
    #[cbor(n(11), decode_with = "text")]
    pub cm_library: String,
    /// Drivers of libibverbs, such as `mlx5`.
    #[cbor(n(12), decode_with = "texts")]
    pub providers: Vec<String>,
    /// Whether the kernel's verbs interface is loaded.
    #[n(13)]
    pub has_uverbs: bool,
    /// Whether the kernel's rdma_cm interface is loaded.
    #[n(14)]
    pub has_ucm: bool,
    /// Device files that should exist.
    #[n(15)]
    pub nodes: Vec<Node>,
    /// RDMA devices.
    #[n(16)]
    pub devices: Vec<Device>,
    /// Network interfaces except loopback.
    #[n(17)]
    pub interfaces: Vec<Interface>,
    /// The limit on locked memory; `None` if unknown.
    #[n(18)]
    pub memlock: Option<Memlock>,
    /// The host's address in the ssh session in which the facts were gathered; empty outside of ssh.
    #[cbor(n(19), decode_with = "text")]
    pub ssh: String,
    /// Speed of the processors.
    #[n(20)]
    pub cpu: Cpu,
    /// Huge pages.
    #[n(21)]
    pub huge: HugePages,
    /// The program that configures the firewall: `firewall-cmd`, `ufw`, `nft`, `iptables`; empty if there is none.
    #[cbor(n(22), decode_with = "text")]
    pub firewall: String,
    /// Addresses at which verbs work.
    #[n(23)]
    pub rdma: Vec<RdmaAddress>,
    /// Why verbs work at no address; empty if they work.
    #[cbor(n(24), decode_with = "text")]
    pub no_rdma: String,
    /// Memory that an mlx4 device can register, in bytes.
    #[n(25)]
    pub mlx4_bytes: Option<u64>,
    /// Counters of the host's ports and of its TCP.
    #[n(26)]
    pub counters: Vec<Counter>,
    /// Settings of the host's TCP; `None` if unknown.
    #[n(27)]
    pub tcp: Option<TcpSettings>,
    /// Number of logical processors that the process that gathered the facts may use; `None` if unknown.
    #[n(28)]
    pub usable: Option<u32>,
}

/// Settings of the kernel's TCP, from /proc/sys/net. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TcpSettings {
    /// `tcp_rmem`: minimum, default and maximum size of the receive buffer.
    #[n(0)]
    pub receive: [u64; 3],
    /// `tcp_wmem`: the same for the send buffer.
    #[n(1)]
    pub send: [u64; 3],
    /// `tcp_congestion_control`: the congestion control in use.
    #[cbor(n(2), decode_with = "text")]
    pub congestion: String,
    /// Congestion controls that are loaded.
    #[cbor(n(3), decode_with = "texts")]
    pub available: Vec<String>,
    /// `default_qdisc`: the default queueing discipline.
    #[cbor(n(4), decode_with = "text")]
    pub qdisc: String,
}

/// A device file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Node {
    /// Path of the file below `/dev`.
    #[cbor(n(0), decode_with = "plain")]
    pub name: String,
    /// Error number of opening the file; 0 if it was opened.
    #[n(1)]
    pub errno: i32,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Device {
    /// Name of the device, such as `mlx5_0`.
    #[cbor(n(0), decode_with = "plain")]
    pub name: String,
    /// Kernel driver of the device, such as `mlx5_core`; empty for a software device.
    #[cbor(n(1), decode_with = "text")]
    pub driver: String,
    /// Model of the device.
    #[cbor(n(2), decode_with = "text")]
    pub model: String,
    /// Version of the firmware.
    #[cbor(n(3), decode_with = "text")]
    pub firmware: String,
    /// GUID of the device, in hexadecimal with colons.
    #[cbor(n(4), decode_with = "text")]
    pub node_guid: String,
    /// The device's PCI link.
    #[n(5)]
    pub pci: Option<Pci>,
    /// The NUMA node that the device is attached to; negative if there is none.
    #[n(6)]
    pub numa_node: i32,
    /// Whether the device is a virtual function of an adapter.
    #[n(7)]
    pub is_virtual_function: bool,
    /// How the IOMMU treats the device: `DMA`, `DMA-FQ`, `identity`, `unknown`; empty without an IOMMU.
    #[cbor(n(8), decode_with = "text")]
    pub iommu: String,
    /// Ports of the device.
    #[cbor(n(9), decode_with = "list::<_, _, LIST_MAX>")]
    pub ports: Vec<Port>,
    /// Outcome of registering memory on the device; `None` if not tried.
    #[n(10)]
    pub registration: Option<Registration>,
}

impl Device {
    /// Whether the device is implemented in software (rxe, siw).
    pub fn is_software(&self) -> bool {
        self.driver.is_empty()
    }
}

/// A PCI link. Speeds are in units of 0.1 GT/s; 0 means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Pci {
    /// PCI address, such as `0000:41:00.0`. For a virtual function this is the address of its adapter.
    #[cbor(n(0), decode_with = "plain")]
    pub address: String,
    /// Current speed of a lane.
    #[n(1)]
    pub speed: u32,
    /// Current number of lanes.
    #[n(2)]
    pub width: u32,
    /// Maximum speed that the card supports.
    #[n(3)]
    pub speed_max: u32,
    /// Maximum number of lanes that the card has.
    #[n(4)]
    pub width_max: u32,
}

impl Pci {
    /// Returns what a link carries after its line encoding, in Mbit/s.
    pub fn mbps(speed: u32, width: u32) -> u64 {
        // 8b/10b up to 5 GT/s, 128b/130b above.
        let gross = u64::from(speed) * u64::from(width) * 100;
        if speed <= 50 { gross * 8 / 10 } else { gross * 128 / 130 }
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Port {
    /// Number of the port, from 1.
    #[n(0)]
    pub number: u32,
    /// Logical state, such as `ACTIVE`.
    #[cbor(n(1), decode_with = "text")]
    pub state: String,
    /// Physical state, such as `LinkUp`.
    #[cbor(n(2), decode_with = "text")]
    pub physical: String,
    /// `InfiniBand` or `Ethernet`.
    #[cbor(n(3), decode_with = "text")]
    pub link_layer: String,
    /// Rate in Mbit/s; 0 if unknown.
    #[n(4)]
    pub rate_mbps: u32,
    /// Number of lanes of the link, from 1X to 12X; 0 if unknown.
    #[n(5)]
    pub lanes: u32,
    /// The port's network interface.
    #[cbor(n(6), decode_with = "plain")]
    pub interface: String,
    /// Number of GID table entries in use.
    #[n(7)]
    pub gids: u32,
    /// Number of GID table entries that RoCE v2 can route: those with an IP address that is not link-local.
    #[n(8)]
    pub gids_routable: u32,
    /// GUID of the port: the low half of its first GID.
    #[cbor(n(9), decode_with = "text")]
    pub guid: String,
    /// MTU in use, in bytes, as verbs report it.
    #[n(10)]
    pub mtu: Option<u32>,
    /// Largest possible MTU in bytes.
    #[n(11)]
    pub mtu_max: Option<u32>,
    /// Whether the port is iWARP, whose packets are TCP packets.
    #[n(12)]
    pub is_iwarp: bool,
}

impl Port {
    /// Whether the port is up.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether the port uses RoCE: RDMA over Ethernet, but not iWARP.
    pub fn is_roce(&self) -> bool {
        self.link_layer == "Ethernet" && !self.is_iwarp
    }
}

/// Outcome of registering memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Registration {
    /// Bytes that were to be registered.
    #[n(0)]
    pub wanted_bytes: u64,
    /// Bytes that could be registered.
    #[n(1)]
    pub bytes: u64,
    /// Duration of the registration in microseconds.
    #[n(2)]
    pub micros: u64,
    /// Why no more could be registered, for display; empty if everything was registered.
    #[cbor(n(3), decode_with = "text")]
    pub reason: String,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Interface {
    /// Name of the interface.
    #[cbor(n(0), decode_with = "plain")]
    pub name: String,
    /// Whether the interface is up and has a carrier.
    #[n(1)]
    pub is_up: bool,
    /// MTU in bytes.
    #[n(2)]
    pub mtu: u32,
    /// Rate in Mbit/s: of the hardware, or of the fastest that a bond, bridge, VLAN or macvlan stands on. 0 if unknown,
    /// and for other interfaces, whose reported rate is invented.
    #[n(3)]
    pub rate_mbps: u32,
    /// Driver of the interface; empty if there is no hardware.
    #[cbor(n(4), decode_with = "text")]
    pub driver: String,
    /// Addresses of the interface.
    #[cbor(n(5), decode_with = "list::<_, _, LIST_MAX>")]
    pub addresses: Vec<Address>,
    /// PCI address of the interface's hardware. For a virtual function this is the address of its adapter.
    #[cbor(n(6), decode_with = "text")]
    pub pci: String,
    /// The bond or bridge that the interface belongs to; empty if there is none.
    #[cbor(n(7), decode_with = "plain", default)]
    pub master: String,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Address {
    /// The IP address.
    #[n(0)]
    pub ip: IpAddr,
    /// Number of leading bits that name the subnet.
    #[n(1)]
    pub prefix_bits: u8,
}

impl Address {
    /// Whether both addresses are in one subnet.
    pub fn shares_subnet(&self, other: &Self) -> bool {
        let bits = self.prefix_bits.min(other.prefix_bits);
        same_subnet(self.ip, other.ip, bits)
    }
}

/// Limits on locked memory, in bytes. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Memlock {
    /// The limit in effect.
    #[n(0)]
    pub soft: Option<u64>,
    /// The value up to which the soft limit can be raised without being root.
    #[n(1)]
    pub hard: Option<u64>,
}

/// Speed of the processors. Fields are 0 or empty if the system does not report them, as in most virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Cpu {
    /// The governors in use, each listed once.
    #[cbor(n(0), decode_with = "texts")]
    pub governors: Vec<String>,
    /// The driver that scales the frequency.
    #[cbor(n(1), decode_with = "text")]
    pub driver: String,
    /// Highest allowed frequency in kHz, of the processor that is limited most.
    #[n(2)]
    pub allowed_khz: u64,
    /// Highest possible frequency of the same processor in kHz.
    #[n(3)]
    pub most_khz: u64,
}

/// Huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct HugePages {
    /// Number of reserved pages.
    #[n(0)]
    pub total: u64,
    /// Number of reserved pages that are free.
    #[n(1)]
    pub free: u64,
    /// Size of a page in KiB.
    #[n(2)]
    pub size_kib: u64,
    /// Setting of transparent huge pages: `always`, `madvise`, `never`.
    #[cbor(n(3), decode_with = "text")]
    pub transparent: String,
}

/// An address of this host at which verbs work.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RdmaAddress {
    /// Name of the device.
    #[cbor(n(0), decode_with = "plain")]
    pub device: String,
    /// The IP address and its subnet.
    #[n(1)]
    pub address: Address,
    /// Whether the device is hardware.
    #[n(2)]
    pub is_hardware: bool,
    /// Rate of the device's port in Mbit/s; a software device invents its rate.
    #[n(3)]
    pub rate_mbps: u32,
}

impl Facts {
    /// Decodes facts that another host sent. Lists and texts are limited, and entries whose names might not stand in a
    /// command are left out. `None` if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut facts: Self = super::decode(bytes)?;
        // Scripts quote the host's name. Values that are no host name are common, such as "(none)".
        if facts.host.is_empty() || facts.host.len() > 64 || facts.host.chars().any(is_unprintable) {
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

    /// Applies the limits for facts from other hosts to the facts of this host.
    pub fn bounded(&self) -> Self {
        Self::decode(&super::encode(self)).expect("our own")
    }

    /// Returns how many processors the process may use, if that is less than the host has.
    pub fn confined_to(&self) -> Option<u32> {
        self.usable.filter(|usable| *usable < self.processors)
    }

    /// Returns the interface with this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Returns the interface that has the addresses of an RDMA port: the port's own, or the bond or bridge that it
    /// belongs to. `None` if neither has an address.
    pub fn addressed(&self, port: &Port) -> Option<&Interface> {
        let own = self.interface(&port.interface)?;
        [Some(own), self.interface(&own.master)].into_iter().flatten().find(|it| !it.addresses.is_empty())
    }

    /// Returns the interface that has this address.
    pub fn interface_of(&self, ip: IpAddr) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.addresses.iter().any(|own| own.ip == ip))
    }

    /// Whether the network is fast enough for processor speed to matter: an RDMA adapter, or at least 10 Gbit/s.
    pub fn is_fast(&self) -> bool {
        let hardware = self.devices.iter().any(|device| !device.is_software());
        hardware || self.interfaces.iter().any(|interface| interface.is_up && interface.rate_mbps >= 10_000)
    }
}

/// Whether a name can stand in a command without quotes and cannot end the command.
fn is_plain(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@/".contains(&byte))
}

/// Removes entries without a name, and entries beyond the first `most`.
fn hold<T>(list: &mut Vec<T>, most: usize, name: impl Fn(&T) -> &String) {
    list.retain(|entry| !name(entry).is_empty());
    list.truncate(most);
}

/// Decodes a list and keeps the first `MOST` entries.
pub(super) fn list<'b, C, T, const MOST: usize>(decoder: &mut Decoder<'b>, context: &mut C) -> Result<Vec<T>, Error>
where
    T: Decode<'b, C>,
{
    let mut list: Vec<T> = decoder.decode_with(context)?;
    list.truncate(MOST);
    Ok(list)
}

/// Decodes a list of texts and keeps the first [`LIST_MAX`].
fn texts<C>(decoder: &mut Decoder<'_>, context: &mut C) -> Result<Vec<String>, Error> {
    let texts = list::<_, &str, LIST_MAX>(decoder, context)?;
    Ok(texts.into_iter().map(cut).collect())
}

/// Decodes a text and cuts it to [`TEXT_BYTES_MAX`].
pub(super) fn text<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<String, Error> {
    decoder.str().map(cut)
}

/// Decodes a name that may stand in a command; returns an empty name if it may not.
pub(super) fn plain<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<String, Error> {
    decoder.str().map(|name| if is_plain(name) { name.to_owned() } else { String::new() })
}

fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Body of the fuzz target: facts of a hostile host stay within their limits, and no check panics on them.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_facts(bytes: &[u8]) {
    let Some(facts) = Facts::decode(bytes) else { return };
    assert!(facts.devices.len() <= LIST_MAX && facts.interfaces.len() <= LIST_MAX && facts.host.len() <= 64);
    let again = Facts::decode(&super::encode(&facts));
    assert_eq!(again.as_ref(), Some(&facts));
    super::examine(&facts);
    let after = Some([facts.counters.clone(), facts.counters.clone()]);
    super::compare(&super::Path { here: facts.clone(), there: facts, after, ..super::Path::default() }, None);
}
