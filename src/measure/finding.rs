//! What a check can report: a verdict, and the values that it is based on. Other modules turn findings into sentences.

use minicbor::{Decode, Encode};

use super::counters::Counter;
use super::facts::text;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be, or not needed on this host.
    Ok,
    /// Works, but worse than possible.
    Warning,
    /// Something that this host is meant to do does not work.
    Failure,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The part of the host that the finding is about, such as a device; empty for the host itself.
    pub about: String,
    /// Severity of the finding.
    pub level: Level,
    /// What was found.
    pub what: What,
    /// Whether this host has to fix the problem, although it was found on the path to another host.
    pub is_here: bool,
}

impl Finding {
    /// Makes a finding about a whole host.
    pub fn new(check: &'static str, level: Level, what: What) -> Self {
        Self { check, about: String::new(), level, what, is_here: false }
    }

    /// Makes a finding about a part of a host.
    pub fn about(check: &'static str, about: impl Into<String>, level: Level, what: What) -> Self {
        Self { check, about: about.into(), level, what, is_here: false }
    }
}

/// What was found. Rates are in Mbit/s, sizes in bytes and times in microseconds unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields say what they are")]
pub enum What {
    /// Properties of the host.
    Host { system: String, kernel: String, processors: u32, memory_kib: u64, is_container: bool },
    /// The host has no RDMA device.
    NoDevice,
    /// Interfaces that are up, the fastest first: name, rate and MTU.
    Interfaces(Vec<(String, u32, u32)>),
    /// No interface is up.
    NoInterface,

    /// rdma-core of this release is installed.
    Libraries { release: String },
    /// rdma-core is not installed, but nothing needs it.
    LibrariesNotNeeded,
    /// A device cannot be used because libraries of rdma-core are missing.
    LibrariesMissing { missing: Vec<&'static str> },
    /// The library has no driver for a device.
    ProviderMissing { provider: &'static str },
    /// All needed modules are loaded.
    Modules,
    /// A needed module is not loaded.
    ModuleMissing { module: &'static str },
    /// An adapter can do RDMA, but the module for RDMA is not loaded.
    AdapterWithoutModule { interface: String, driver: String, module: &'static str },
    /// All device files could be opened; `count` is their number.
    Nodes { count: usize },
    /// A device file does not exist.
    NodeMissing { path: String, is_container: bool },
    /// Permission to open a device file is denied.
    NodeDenied { path: String, is_container: bool },
    /// A device file cannot be opened for another reason.
    NodeBroken { path: String, errno: i32 },
    /// Verbs do not work, although there is a device.
    VerbsFailed { reason: String },

    /// Properties of a device.
    Device { model: String, driver: String, firmware: String, guid: String, is_virtual_function: bool },
    /// The device has no GUID.
    GuidZero { is_virtual_function: bool },
    /// Another device has the same GUID.
    GuidTwice { guid: String, other: String },
    /// A port is up.
    Port { link_layer: String, rate: u32, interface: String, guid: String, is_roce: bool },
    /// A port has a link, but no subnet manager has configured the port.
    PortWaits { state: String },
    /// A port is down, and no other port is up.
    PortDown { physical: String, interface: String, is_ethernet: bool },
    /// A port is down while another port is up.
    PortUnused { state: String },
    /// An InfiniBand link came up with a single lane.
    PortNarrow { rate: u32 },
    /// The payload of a packet is large enough for the port.
    Mtu { bytes: u32, most: u32, interface: String, interface_mtu: u32 },
    /// The payload of a packet is small for what the port can do. `needed` is the interface MTU that allows more; 0 on
    /// InfiniBand.
    MtuSmall { bytes: u32, most: u32, interface: String, interface_mtu: u32, needed: u32 },
    /// The GID table has entries with a routable address.
    Gids { routable: u32, all: u32 },
    /// The GID table has no entry with a routable address.
    GidsMissing { interface: String },
    /// IP addresses of a port's interface.
    Addresses { interface: String, addresses: Vec<String> },
    /// The port's interface has no IP address, so rdma_cm cannot address the port.
    AddressMissing { interface: String, is_up: bool },
    /// The port has no network interface.
    InterfaceMissing,
    /// Two interfaces of this host are in one subnet.
    SubnetTwice { one: String, other: String, address: String },
    /// The PCI link is as fast as the card supports.
    Pcie { speed: u32, width: u32, mbps: u64 },
    /// The PCI link is slower than the card supports.
    PcieSlow { address: String, speed: u32, width: u32, speed_max: u32, width_max: u32, mbps: u64, rate: u32 },
    /// The NUMA node that the device is attached to, and the number of nodes.
    Numa { node: i32, nodes: u32 },
    /// The IOMMU passes the device's accesses through, or there is no IOMMU.
    IommuPassed,
    /// The IOMMU translates each access of the device.
    IommuTranslates { mode: String },

    /// Locked memory is unlimited, or the limit does not apply.
    MemlockUnlimited { is_root: bool },
    /// The limit on locked memory is sufficient, or nothing needs locked memory.
    Memlock { soft: u64, is_needed: bool },
    /// The limit on locked memory makes the pool smaller.
    MemlockSmall { soft: u64, hard: Option<u64>, wanted: u64, is_ssh: bool },
    /// The limit on locked memory leaves no room for RDMA.
    MemlockNone { soft: u64, hard: Option<u64>, is_ssh: bool },
    /// The system does not report the limit on locked memory.
    MemlockUnknown,
    /// All wanted memory was registered.
    Registered { bytes: u64, micros: u64 },
    /// Less memory was registered than wanted.
    RegisteredLess { bytes: u64, wanted: u64, reason: String },
    /// No memory could be registered.
    NotRegistered { wanted: u64, reason: String },
    /// An mlx4 device can register less than the host's memory.
    Mlx4Small { bytes: u64, memory_kib: u64 },
    /// Settings of huge pages.
    HugePages { total: u64, free: u64, size_kib: u64, transparent: String },
    /// The processors run at full speed.
    Cpu { governors: Vec<String>, most_khz: u64 },
    /// The system does not report the speed of the processors.
    CpuUnknown,
    /// The processors save power although the network is fast.
    GovernorSaves { governors: Vec<String>, driver: String },
    /// The frequency of the processors is limited to less than they support.
    CpuCapped { allowed_khz: u64, most_khz: u64 },

    /// The agent answered in time.
    Agent { micros: u64, program: String },
    /// The agent took a long time to answer.
    AgentSlow { micros: u64 },
    /// The two hosts have different versions of the program.
    Versions { here: String, there: String },
    /// Both hosts have the same address.
    AddressTwice { address: String, here: String, there: String },
    /// Both hosts have RDMA, but share no subnet.
    SubnetMissing { here: Vec<String>, there: Vec<String> },
    /// Only one of the hosts has RDMA. `without` is the name of the other host.
    RdmaOneSided { without: String },
    /// The interfaces that ssh and the data use, each with its rate.
    Route { ssh: (String, u32), data: (String, u32) },
    /// Two interfaces of one network have different MTUs: name and MTU on each host.
    MtuDiffers { here: (String, u32), there: (String, u32) },
    /// A port on the other host was reached at every address on a shared network.
    Reached { address: String, micros: u64, addresses: usize },
    /// A port on the other host was reached, but not at the addresses in `not`, listed with the outcome at each.
    ReachedSome { address: String, micros: u64, not: Vec<(String, Outcome)> },
    /// Ports can be reached only from the other host to this one.
    ReachedBack { not: Vec<(String, Outcome)>, firewall: String },
    /// Ports can be reached in neither direction.
    NotReached { not: Vec<(String, Outcome)>, firewall: String },
    /// An RDMA connection was made.
    RdmaReached { address: String, micros: u64 },
    /// No RDMA connection could be made.
    RdmaNotReached { not: Vec<(String, Outcome)>, is_roce: bool, firewall: String },
    /// No port could be opened for the test.
    ProbeFailed { reason: String },
    /// The bandwidth, and the most that the link allows (0 if unknown).
    Bandwidth { speed: super::Speed, ceiling: u64 },
    /// The bandwidth is far below what the link allows.
    BandwidthLow { speed: super::Speed, ceiling: u64 },
    /// The bandwidth could not be measured.
    BandwidthFailed { reason: String },

    /// TCP can use the whole line: the number of connections needed, and the congestion control of each host that
    /// reports it.
    TcpWell { micros: u64, connections: u64, controls: Vec<String> },
    /// TCP needs many connections, because the window of a connection is small for the round trip. `receive` and `send`
    /// are the values that `tcp_rmem` and `tcp_wmem` should have.
    TcpWindowSmall { window: u64, micros: u64, mbps: u64, connections: u64, receive: [u64; 3], send: [u64; 3] },
    /// The congestion control is slow on such a line. Also whether losses were seen, and whether `bbr` is loaded.
    Congestion { control: String, micros: u64, lost: bool, has_bbr: bool, qdisc: String },

    /// No errors were counted. Also the TCP segments sent, and those sent again.
    NothingLost { sent: u64, again: u64 },
    /// Senders were held back, so nothing was lost.
    HeldBack(Vec<Counter>),
    /// Packets were lost or sent again.
    PacketsLost(Vec<Counter>),
    /// TCP sent more segments again than it would on a good network.
    SegmentsLost { sent: u64, again: u64 },
    /// A link corrupts data, or goes down.
    LinkErrors(Vec<Counter>),

    /// Lowest, median and highest rate of all measured pairs of hosts, and the media that carried the data.
    Rates { pairs: usize, least: u64, median: u64, most: u64, media: Vec<String> },
    /// Some rounds of pairs were not measured, so that the measurement kept to the requested time.
    RoundsLeftOut { rounds: usize, all: usize },
    /// A host is slow with most other hosts. `sends` and `receives` are the median rates of the directions that are
    /// slow.
    HostSlow { sends: Option<u64>, receives: Option<u64>, median: u64, with: usize },
    /// A pair is slow, although neither of its hosts is slow in general.
    PairSlow { mbps: u64, median: u64, limiter: String },
    /// A host has only the launcher's connection with `with` other hosts. If the finding is about no single host,
    /// `with` is the number of affected hosts.
    HostTunneled { with: usize },
    /// A pair of hosts has only the launcher's connection.
    PairTunneled,
    /// Nothing could be sent between a host and `with` other hosts. `reason` is the error of the first pair.
    HostUnmeasured { with: usize, reason: String },
    /// Nothing could be sent between a pair of hosts.
    PairUnmeasured { reason: String },

    /// A fault was caused on purpose: what was done, and what was observed.
    Drill { done: String, seen: String, is_survived: bool },
}

/// Outcome of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Outcome {
    /// The connection was made.
    #[n(0)]
    Connected,
    /// The host answered that no program listens on the port.
    #[n(1)]
    Refused,
    /// No answer came: a firewall drops packets, or the host does not exist.
    #[n(2)]
    Silent,
    /// The address is unreachable from here. The error number.
    #[n(3)]
    Unreachable(#[n(0)] i32),
    /// This end has no RDMA, or the limit on locked memory does not allow it.
    #[n(4)]
    NoRdma(#[cbor(n(0), decode_with = "text")] String),
    /// Another outcome.
    #[n(5)]
    Other(#[cbor(n(0), decode_with = "text")] String),
}
