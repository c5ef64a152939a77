//! What a check can say: a verdict, and the values that it rests on. Sentences are made of it elsewhere.

use minicbor::{Decode, Encode};

use super::counters::Counter;
use super::facts::text;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be, or not needed here.
    Ok,
    /// It works, but worse than it could.
    Warning,
    /// Something that this host is meant to do does not work.
    Failure,
}

/// What one check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// What of the host it is about, such as a device; empty for the host itself.
    pub about: String,
    /// How bad it is.
    pub level: Level,
    /// What it is.
    pub what: What,
    /// Found on the way to another host, it is for this one to mend.
    pub is_here: bool,
}

impl Finding {
    /// Of a whole host.
    pub fn new(check: &'static str, level: Level, what: What) -> Self {
        Self { check, about: String::new(), level, what, is_here: false }
    }

    /// Of a part of it.
    pub fn about(check: &'static str, about: impl Into<String>, level: Level, what: What) -> Self {
        Self { check, about: about.into(), level, what, is_here: false }
    }
}

/// What it is. Rates are in Mbit/s, sizes in bytes and times in microseconds unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields say what they are")]
pub enum What {
    /// The host.
    Host { system: String, kernel: String, processors: u32, memory_kib: u64, is_container: bool },
    /// It has no RDMA device.
    NoDevice,
    /// Interfaces that are up, the fastest first: name, rate, MTU.
    Interfaces(Vec<(String, u32, u32)>),
    /// No interface is up.
    NoInterface,

    /// rdma-core is there, of this release.
    Libraries { release: String },
    /// It is not there, and nothing needs it.
    LibrariesNotNeeded,
    /// A device cannot be used without it.
    LibrariesMissing { missing: Vec<&'static str> },
    /// The library has no driver for a device.
    ProviderMissing { provider: &'static str },
    /// All modules are loaded.
    Modules,
    /// One is not.
    ModuleMissing { module: &'static str },
    /// An adapter that can do RDMA, without the module for it.
    AdapterWithoutModule { interface: String, driver: String, module: &'static str },
    /// Device files that could be opened.
    Nodes { count: usize },
    /// One that is not there.
    NodeMissing { path: String, is_container: bool },
    /// One that may not be opened.
    NodeDenied { path: String, is_container: bool },
    /// One that cannot be opened for another reason.
    NodeBroken { path: String, errno: i32 },
    /// Verbs do not work, although there is a device.
    VerbsFailed { reason: String },

    /// A device.
    Device { model: String, driver: String, firmware: String, guid: String, is_virtual_function: bool },
    /// It has no GUID.
    GuidZero { is_virtual_function: bool },
    /// Another device has the same.
    GuidTwice { guid: String, other: String },
    /// A port that is up.
    Port { link_layer: String, rate: u32, interface: String, guid: String, is_roce: bool },
    /// One with a link that no subnet manager has configured.
    PortWaits { state: String },
    /// One that is down.
    PortDown { physical: String, interface: String, is_ethernet: bool },
    /// One that is down while another is up.
    PortUnused { state: String },
    /// An InfiniBand link that came up with one lane.
    PortNarrow { rate: u32 },
    /// Packets' payload, of at most this.
    Mtu { bytes: u32, most: u32, interface: String, interface_mtu: u32 },
    /// It is small for what the port can do. `needed`: the interface's MTU for more; 0 on InfiniBand.
    MtuSmall { bytes: u32, most: u32, interface: String, interface_mtu: u32, needed: u32 },
    /// Entries of the GID table with an address that routers know.
    Gids { routable: u32, all: u32 },
    /// There are none.
    GidsMissing { interface: String },
    /// IP addresses of a port's interface.
    Addresses { interface: String, addresses: Vec<String> },
    /// None, so that rdma_cm cannot name it.
    AddressMissing { interface: String, is_up: bool },
    /// Not even an interface.
    InterfaceMissing,
    /// Two interfaces of this host in one subnet.
    SubnetTwice { one: String, other: String, address: String },
    /// The PCI link, as good as the card can.
    Pcie { speed: u32, width: u32, mbps: u64 },
    /// Worse than the card can.
    PcieSlow { address: String, speed: u32, width: u32, speed_max: u32, width_max: u32, mbps: u64, rate: u32 },
    /// The NUMA node that it is attached to, of so many.
    Numa { node: i32, nodes: u32 },
    /// The IOMMU lets it through, or there is none.
    IommuPassed,
    /// Each of its accesses is translated.
    IommuTranslates { mode: String },

    /// No limit on locked memory, or one that does not count.
    MemlockUnlimited { is_root: bool },
    /// A limit that is enough, or that nothing needs.
    Memlock { soft: u64, is_needed: bool },
    /// One that makes the pool smaller.
    MemlockSmall { soft: u64, hard: Option<u64>, wanted: u64, is_ssh: bool },
    /// One that leaves no room for RDMA.
    MemlockNone { soft: u64, hard: Option<u64>, is_ssh: bool },
    /// The system does not report it.
    MemlockUnknown,
    /// Memory was registered.
    Registered { bytes: u64, micros: u64 },
    /// Less than what was wanted.
    RegisteredLess { bytes: u64, wanted: u64, reason: String },
    /// None at all.
    NotRegistered { wanted: u64, reason: String },
    /// An mlx4 device has room for less than the memory.
    Mlx4Small { bytes: u64, memory_kib: u64 },
    /// Huge pages.
    HugePages { total: u64, free: u64, size_kib: u64, transparent: String },
    /// Processors run as they can.
    Cpu { governors: Vec<String>, most_khz: u64 },
    /// The system does not say how fast they run.
    CpuUnknown,
    /// They save power while a fast network waits for them.
    GovernorSaves { governors: Vec<String>, driver: String },
    /// Their frequency is held below what they can.
    CpuCapped { allowed_khz: u64, most_khz: u64 },

    /// The agent answered.
    Agent { micros: u64, program: String },
    /// It took long.
    AgentSlow { micros: u64 },
    /// Another version.
    Versions { here: String, there: String },
    /// One address at both hosts.
    AddressTwice { address: String, here: String, there: String },
    /// Both have RDMA, in no common subnet.
    SubnetMissing { here: Vec<String>, there: Vec<String> },
    /// RDMA at one end alone. The name of the other.
    RdmaOneSided { without: String },
    /// By what ssh goes, and by what the data: interface and rate of each.
    Route { ssh: (String, u32), data: (String, u32) },
    /// Two interfaces of one network with different MTUs: name and MTU at each end.
    MtuDiffers { here: (String, u32), there: (String, u32) },
    /// A port there could be reached, at all addresses.
    Reached { address: String, micros: u64, addresses: usize },
    /// Not at all of them: those that could not, and what came of it.
    ReachedSome { address: String, micros: u64, not: Vec<(String, Outcome)> },
    /// Only from there to here.
    ReachedBack { not: Vec<(String, Outcome)>, firewall: String },
    /// Neither way.
    NotReached { not: Vec<(String, Outcome)>, firewall: String },
    /// An RDMA connection was made.
    RdmaReached { address: String, micros: u64 },
    /// None was.
    RdmaNotReached { not: Vec<(String, Outcome)>, is_roce: bool, firewall: String },
    /// No port could be opened for that.
    ProbeFailed { reason: String },
    /// The bandwidth, and what is the most: 0 where that is unknown.
    Bandwidth { speed: super::Speed, ceiling: u64 },
    /// Far below the most.
    BandwidthLow { speed: super::Speed, ceiling: u64 },
    /// It could not be measured.
    BandwidthFailed { reason: String },

    /// Connections of TCP carry the line; how many it takes, and the congestion control of each host that says so.
    TcpWell { micros: u64, connections: u64, controls: Vec<String> },
    /// It takes many, since a connection's window is small for the round trip. What `tcp_rmem` and `tcp_wmem` should be.
    TcpWindowSmall { window: u64, micros: u64, mbps: u64, connections: u64, receive: [u64; 3], send: [u64; 3] },
    /// A congestion control that is slow on a line like this; whether losses were seen, and whether `bbr` is loaded.
    Congestion { control: String, micros: u64, lost: bool, has_bbr: bool, qdisc: String },

    /// Nothing bad was counted; segments of TCP that were sent, and sent again.
    NothingLost { sent: u64, again: u64 },
    /// Senders were held back, so that nothing was lost.
    HeldBack(Vec<Counter>),
    /// Packets were lost, or sent again.
    PacketsLost(Vec<Counter>),
    /// TCP sent more of its segments again than a good network has it do.
    SegmentsLost { sent: u64, again: u64 },
    /// A link damages what it carries, or goes down.
    LinkErrors(Vec<Counter>),

    /// The rates of all pairs of several hosts that were measured, from the lowest to the highest, and of what they were.
    Rates { pairs: usize, least: u64, median: u64, most: u64, media: Vec<String> },
    /// Not all rounds of pairs were measured, so that it took no longer than was asked for.
    RoundsLeftOut { rounds: usize, all: usize },
    /// A host is slow with most others: the median of what it sends and of what it receives, where that is slow.
    HostSlow { sends: Option<u64>, receives: Option<u64>, median: u64, with: usize },
    /// A pair is, although both its hosts are not.
    PairSlow { mbps: u64, median: u64, limiter: String },
    /// No connection but through the launcher's; with so many of the others, or between so many hosts.
    HostTunneled { with: usize },
    /// The same of a pair.
    PairTunneled,
    /// Nothing could be sent; with so many of the others, for this reason with the first of them.
    HostUnmeasured { with: usize, reason: String },
    /// The same of a pair.
    PairUnmeasured { reason: String },

    /// A fault that was made on purpose: what was done, and what was seen.
    Drill { done: String, seen: String, is_survived: bool },
}

/// What came of trying to connect.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Outcome {
    /// It connected.
    #[n(0)]
    Connected,
    /// The host answered that nothing listens on the port.
    #[n(1)]
    Refused,
    /// No answer: a firewall drops packets, or there is no such host.
    #[n(2)]
    Silent,
    /// There is no way there from here; the error's number.
    #[n(3)]
    Unreachable(#[n(0)] i32),
    /// There is no RDMA at this end, or the limit on locked memory allows none.
    #[n(4)]
    NoRdma(#[cbor(n(0), decode_with = "text")] String),
    /// Something else.
    #[n(5)]
    Other(#[cbor(n(0), decode_with = "text")] String),
}
