//! Gathers the facts about this host, from its files and from verbs.
//!
//! [`from_files`] reads only a [`Root`], so that tests can pass a recorded tree. [`here`] adds what only system calls
//! report. Both accept whatever they find: on a host without RDMA, without permission, or with a kernel that lacks an
//! entry, the facts are absent.

use std::fs::OpenOptions;
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::counters::{self, Counter};
use super::facts::{
    Address, Cpu, Device, Facts, HugePages, Interface, Memlock, Node, Pci, Port, RdmaAddress, Registration, TcpSettings,
};
use super::root::Root;
use crate::fault::errno_of;
use crate::transport::rdma::{self, Adapters, Endpoint, InterfaceAddress, RegisterError};
use crate::transport::{Medium, Pool, is_inner};

/// Bytes that a session registers: its pool, and the memory of two connections themselves.
pub const WANTED_BYTES: u64 = (32 << 20) + 2 * rdma::CONNECTION_LOCKED_BYTES as u64;

/// Smallest pool that is tried, in bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// How long verbs may take to answer, because failed firmware never answers.
const VERBS_MAX: Duration = Duration::from_secs(3);

/// The program that reads drivers' counters, its time limit for all interfaces, and its output limit for each
/// interface.
const ETHTOOL: &str = "/usr/sbin/ethtool";
const ETHTOOL_MAX: Duration = Duration::from_secs(2);
const ETHTOOL_BYTES_MAX: u64 = 1 << 20;

/// The loopback interface, which is not examined.
const LOOPBACK: &str = "lo";

/// How many interfaces may be below an interface: as many as Linux lets stand on each other.
const BELOW_MAX: u32 = 8;

/// Directories in which distributions keep libraries.
const LIBRARY_PLACES: [&str; 5] = ["usr/lib64", "usr/lib", "lib64", "lib", "usr/local/lib"];

/// Maximum number of GID table entries that are read.
const GIDS_MAX: u32 = 64;

/// Returns all facts about this host. Takes some tens of milliseconds, or 3 s if a device does not answer.
pub fn here() -> Facts {
    let root = Root::default();
    let mut facts = from_files(&root);
    // /proc may be hidden in part.
    let names = rustix::system::uname();
    [facts.host, facts.kernel] = [names.nodename(), names.release()].map(|name| name.to_string_lossy().into_owned());
    facts.usable = Some(crate::processors() as u32);
    // In a pod without a token, no file tells.
    facts.is_container |= std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && !sees_kernel(&root);
    add_addresses(&mut facts, rdma::interface_addresses().unwrap_or_default());
    // The client's address and port, then this host's.
    if let [_, _, ours, _] = std::env::var("SSH_CONNECTION").unwrap_or_default().split(' ').collect::<Vec<_>>()[..] {
        facts.ssh = ours.to_owned();
    }
    // On its own thread, because a device that does not answer would block the caller.
    let (post, answer) = flume::bounded(1);
    let asked = crate::spawn("verbs", 2 << 20, move || drop(post.send(ask_verbs())));
    match answer.recv_timeout(VERBS_MAX) {
        Ok(Ok(verbs)) => verbs.into_iter().for_each(|known| add_verbs(&mut facts, known)),
        Ok(Err(reason)) => facts.no_rdma = reason,
        Err(_) if asked.is_err() => facts.no_rdma = "cannot start a thread".to_owned(),
        Err(_) => facts.no_rdma = format!("no answer within {} s", VERBS_MAX.as_secs()),
    }
    ask_ethtool(&mut facts.counters);
    facts.bounded()
}

fn add_addresses(facts: &mut Facts, known: Vec<InterfaceAddress>) {
    let mut unseen = 0;
    let known = known.into_iter().map(InterfaceAddress::without_label);
    for known in known.filter(|known| known.interface != LOOPBACK) {
        let address = Address { ip: known.address, prefix_bits: known.prefix_bits };
        match facts.interfaces.iter_mut().find(|interface| interface.name == known.interface) {
            Some(interface) => interface.addresses.push(address),
            // In a container, /sys may show another network namespace. These are the container's own interfaces, so
            // they come first, in the system's order.
            None => {
                let interface =
                    Interface { name: known.interface, is_up: true, addresses: vec![address], ..Interface::default() };
                facts.interfaces.insert(unseen, interface);
                unseen += 1;
            }
        }
    }
}

/// Adds the counters of this host's interfaces that only ethtool reports. Does nothing if ethtool is not installed.
fn ask_ethtool(counters: &mut Vec<Counter>) {
    let until = Instant::now() + ETHTOOL_MAX;
    let interfaces = counters::hardware(&Root::default());
    for interface in interfaces {
        let started = Command::new(ETHTOOL)
            .args(["-S", &interface])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut ethtool) = started else { break };
        let (post, answer) = flume::bounded(1);
        let output = ethtool.stdout.take();
        let read = move || {
            let mut text = String::new();
            let _ = output.map(|output| output.take(ETHTOOL_BYTES_MAX).read_to_string(&mut text));
            let _ = post.send(text);
        };
        let is_read = crate::spawn("ethtool", 2 << 20, read).is_ok();
        let text = if is_read { answer.recv_deadline(until).ok() } else { None };
        let _ = ethtool.kill();
        // If a driver hangs, ethtool cannot end. It is not waited for.
        let Some(text) = text else { break };
        let _ = ethtool.wait();
        counters::add_ethtool(counters, &interface, &text);
    }
}

/// Returns what verbs report about each address, and about memory on the first address of each device.
fn ask_verbs() -> Result<Vec<(Endpoint, Option<Registration>)>, String> {
    let endpoints = rdma::endpoints().map_err(|reason| reason.to_string())?;
    let mut asked: Vec<(Endpoint, Option<Registration>)> = Vec::new();
    for endpoint in endpoints {
        let is_new = !asked.iter().any(|(known, _)| known.device == endpoint.device);
        let registration = is_new.then(|| register(&endpoint));
        asked.push((endpoint, registration));
    }
    Ok(asked)
}

fn add_verbs(facts: &mut Facts, (endpoint, registration): (Endpoint, Option<Registration>)) {
    let address = Address { ip: endpoint.address, prefix_bits: endpoint.prefix_bits };
    let interface = facts.interface_of(address.ip).map(|interface| interface.name.clone()).unwrap_or_default();
    if let Some(device) = facts.devices.iter_mut().find(|device| device.name == endpoint.device) {
        device.registration = device.registration.take().or(registration);
        let single = device.ports.len() == 1;
        for port in device.ports.iter_mut().filter(|port| single || port.interface == interface) {
            if port.interface.is_empty() {
                port.interface.clone_from(&interface);
            }
            (port.mtu, port.mtu_max) = (Some(endpoint.mtu_bytes), Some(endpoint.mtu_max_bytes));
            port.is_iwarp = endpoint.is_iwarp;
        }
    }
    facts.rdma.push(RdmaAddress {
        device: endpoint.device,
        address,
        is_hardware: endpoint.medium == Medium::RdmaHardware,
        rate_mbps: endpoint.rate_mbps,
    });
}

/// Registers as much memory as a session would, or as much as possible. Nothing stays registered.
fn register(endpoint: &Endpoint) -> Registration {
    let mut outcome = Registration { wanted_bytes: WANTED_BYTES, ..Registration::default() };
    let mut bytes = WANTED_BYTES;
    while bytes >= LEAST_BYTES {
        let started = Instant::now();
        match register_bytes(endpoint, bytes) {
            Ok(()) => {
                (outcome.bytes, outcome.micros) = (bytes, started.elapsed().as_micros() as u64);
                return outcome;
            }
            Err(reason) => outcome.reason = reason,
        }
        bytes /= 2;
    }
    outcome
}

fn register_bytes(endpoint: &Endpoint, bytes: u64) -> Result<(), String> {
    let buffer = NonZeroUsize::new(LEAST_BYTES as usize).expect("not 0");
    let (pool, _buffers) = Pool::new((bytes / LEAST_BYTES) as u32, buffer).map_err(|error| error.to_string())?;
    match Adapters::new(Arc::clone(&pool)).register(endpoint) {
        Ok(()) => Ok(()),
        Err(RegisterError::MemoryLock { limit_bytes, .. }) => {
            Err(format!("the limit on locked memory is {} kB", limit_bytes >> 10))
        }
        Err(other) => Err(other.to_string()),
    }
}

/// Returns the facts from the files below `root`, without the limits of [`Facts::bounded`].
pub fn from_files(root: &Root) -> Facts {
    let library = |name: &str| {
        library_places(root).iter().find_map(|place| {
            let path = format!("{place}/{name}");
            root.link(&path).or_else(|| root.has(&path).then(|| name.to_owned()))
        })
    };
    let text = |path: &str| root.text(path).unwrap_or_default();
    let os = |name: &str| root.field("etc/os-release", name).unwrap_or_default();
    // With many processors, this text is longer than what is read of a file.
    let processors = root.text("proc/cpuinfo").unwrap_or_default();
    let processors = processors.lines().filter(|line| line.starts_with("processor")).count() as u32;
    Facts {
        host: text("proc/sys/kernel/hostname"),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: text("proc/sys/kernel/osrelease"),
        system: os("PRETTY_NAME"),
        family: format!("{} {}", os("ID="), os("ID_LIKE=")),
        is_root: is_root(root),
        is_container: is_container(root),
        processors: processors.max(listed(&text("sys/devices/system/cpu/online"))),
        numa_nodes: listed(&text("sys/devices/system/node/online")),
        memory_kib: root.field("proc/meminfo", "MemTotal").map_or(0, |text| first_number(&text)),
        verbs_library: library("libibverbs.so.1").unwrap_or_default(),
        cm_library: library("librdmacm.so.1").unwrap_or_default(),
        providers: providers(root),
        has_uverbs: root.has("sys/class/infiniband_verbs"),
        has_ucm: root.has("sys/class/misc/rdma_cm"),
        nodes: nodes(root),
        devices: root.names("sys/class/infiniband").iter().map(|name| device(root, name)).collect(),
        interfaces: interfaces(root),
        memlock: memlock(root),
        ssh: String::new(),
        cpu: cpu(root),
        huge: huge_pages(root),
        firewall: firewall(root),
        rdma: Vec::new(),
        no_rdma: String::new(),
        mlx4_bytes: mlx4_bytes(root),
        counters: counters::read(root),
        tcp: tcp(root),
        usable: None,
    }
}

/// Returns the settings of TCP; `None` if the kernel does not report them, as in some containers.
fn tcp(root: &Root) -> Option<TcpSettings> {
    let sizes = |name: &str| {
        let text = root.text(&format!("proc/sys/net/ipv4/{name}"))?;
        let sizes: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        <[u64; 3]>::try_from(sizes).ok()
    };
    let words = |name: &str| root.text(&format!("proc/sys/net/{name}")).unwrap_or_default();
    Some(TcpSettings {
        receive: sizes("tcp_rmem")?,
        send: sizes("tcp_wmem")?,
        congestion: words("ipv4/tcp_congestion_control"),
        available: words("ipv4/tcp_available_congestion_control").split_whitespace().map(str::to_owned).collect(),
        qdisc: words("core/default_qdisc"),
    })
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Counts the numbers in a list such as `0-3,8`.
fn listed(list: &str) -> u32 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').filter_map(count).fold(0, u32::saturating_add)
}

/// Whether the effective capabilities contain CAP_IPC_LOCK, which lifts the limit on locked memory. It has no effect in
/// a user namespace, as that of a container without root.
fn is_root(root: &Root) -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let users = root.text("proc/self/uid_map").unwrap_or_default();
    if !users.is_empty() && users.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"] {
        return false;
    }
    let effective = root.field("proc/self/status", "CapEff").unwrap_or_default();
    u64::from_str_radix(&effective, 16).is_ok_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Whether the kernel's own threads are visible. Then this is not a container, whatever image its files came from.
fn sees_kernel(root: &Root) -> bool {
    root.text("proc/2/comm").is_some_and(|name| name == "kthreadd")
}

fn is_container(root: &Root) -> bool {
    if sees_kernel(root) {
        return false;
    }
    root.has(".dockerenv")
        || root.has("run/.containerenv")
        || root.text("run/systemd/container").is_some()
        || root.has("var/run/secrets/kubernetes.io")
        || root.text("proc/1/cgroup").is_some_and(|text| text.contains("kubepods") || text.contains("docker"))
}

fn library_places(root: &Root) -> Vec<String> {
    let multiarch = root.names("usr/lib").into_iter().filter(|name| name.contains("-linux-gnu"));
    let mut places: Vec<String> = multiarch.map(|name| format!("usr/lib/{name}")).collect();
    places.extend(LIBRARY_PLACES.map(str::to_owned));
    places
}

/// Returns the drivers of libibverbs. Each is a file such as `libmlx5-rdmav34.so` in the directory `libibverbs` beside
/// the library.
fn providers(root: &Root) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for place in library_places(root) {
        for name in root.names(&format!("{place}/libibverbs")) {
            if let Some((provider, _)) = name.strip_prefix("lib").and_then(|rest| rest.split_once("-rdmav")) {
                found.push(provider.to_owned());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Opens each device file that should exist.
fn nodes(root: &Root) -> Vec<Node> {
    let verbs = root.names("sys/class/infiniband_verbs").into_iter().filter(|name| name.starts_with("uverbs"));
    let mut names: Vec<String> = verbs.collect();
    if names.is_empty() {
        return Vec::new();
    }
    names.push("rdma_cm".to_owned());
    let open = |name: String| {
        let name = format!("infiniband/{name}");
        let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY).bits() as i32;
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(root.path(&format!("dev/{name}")));
        let errno = opened.err().map_or(0, |error| errno_of(&error).raw_os_error());
        Node { name, errno }
    };
    names.into_iter().map(open).collect()
}

fn device(root: &Root, name: &str) -> Device {
    let at = format!("sys/class/infiniband/{name}");
    let text = |file: &str| root.text(&format!("{at}/{file}")).unwrap_or_default();
    let hardware = format!("{at}/device");
    let driver = root.link(&format!("{hardware}/driver")).unwrap_or_default();
    let own_address = root.link(&hardware).unwrap_or_default();
    // A virtual function has no link of its own, so the adapter's link counts.
    let physical = root.link(&format!("{hardware}/physfn"));
    let link_at = if physical.is_some() { format!("{hardware}/physfn") } else { hardware.clone() };
    let pci = root.has(&format!("{link_at}/max_link_speed")).then(|| Pci {
        address: physical.clone().unwrap_or(own_address),
        speed: tenths(&root.text(&format!("{link_at}/current_link_speed")).unwrap_or_default()),
        width: root.number(&format!("{link_at}/current_link_width")).unwrap_or(0),
        speed_max: tenths(&root.text(&format!("{link_at}/max_link_speed")).unwrap_or_default()),
        width_max: root.number(&format!("{link_at}/max_link_width")).unwrap_or(0),
    });
    let ports = root.names(&format!("{at}/ports"));
    let model = text("hca_type");
    Device {
        name: name.to_owned(),
        model: if model.is_empty() { text("board_id") } else { model },
        firmware: text("fw_ver"),
        node_guid: text("node_guid"),
        numa_node: root.number(&format!("{hardware}/numa_node")).unwrap_or(-1),
        is_virtual_function: physical.is_some(),
        iommu: match root.text(&format!("{hardware}/iommu_group/type")) {
            Some(kind) => kind,
            // Kernels before 4.19 do not say how.
            None if root.has(&format!("{hardware}/iommu_group")) => "unknown".to_owned(),
            None => String::new(),
        },
        ports: ports.iter().filter_map(|number| Some(port(root, &at, &driver, number.parse().ok()?))).collect(),
        registration: None,
        driver,
        pci,
    }
}

/// Parses a speed in tenths: "16.0 GT/s PCIe" is 160.
fn tenths(text: &str) -> u32 {
    text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).map_or(0, |speed| (speed * 10.0) as u32)
}

fn port(root: &Root, device: &str, driver: &str, number: u32) -> Port {
    let at = format!("{device}/ports/{number}");
    let text = |file: &str| root.text(&format!("{at}/{file}")).unwrap_or_default();
    // Such as "4: ACTIVE" or "5: LinkUp".
    let named = |file: &str| text(file).rsplit(' ').next().unwrap_or_default().to_owned();
    let rate = text("rate");
    // Such as "100 Gb/sec (4X EDR)".
    let rate_gbps: f64 = rate.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let lanes =
        rate.split_once('(').and_then(|(_, rest)| rest.split_once('X')).and_then(|(lanes, _)| lanes.parse().ok());
    let mut port = Port {
        number,
        state: named("state"),
        physical: named("phys_state"),
        link_layer: text("link_layer"),
        rate_mbps: (rate_gbps * 1000.0) as u32,
        lanes: lanes.unwrap_or(0),
        interface: root.text(&format!("{at}/gid_attrs/ndevs/0")).unwrap_or_default(),
        is_iwarp: driver == "iw_cxgb4",
        ..Port::default()
    };
    for index in 0..GIDS_MAX {
        let Some(gid) = root.text(&format!("{at}/gids/{index}")) else { break };
        if gid.bytes().all(|byte| matches!(byte, b'0' | b':')) {
            continue;
        }
        port.gids += 1;
        if port.guid.is_empty() && gid.len() == 39 {
            port.guid = gid[20..].to_owned();
        }
        let kind = root.text(&format!("{at}/gid_attrs/types/{index}")).unwrap_or_default();
        if kind == "RoCE v2" && !gid.starts_with("fe80:") {
            port.gids_routable += 1;
        }
    }
    if port.interface.is_empty() {
        // A software device names its underlying interface. For hardware, this is the function's interface with this
        // port number.
        let of_port = |name: &String| {
            let id = root.text(&format!("sys/class/net/{name}/dev_port")).unwrap_or_default();
            id.is_empty() || id.parse() == Ok(number - 1)
        };
        let names = root.names(&format!("{device}/device/net"));
        let found = names.iter().find(|name| of_port(name)).or(names.first()).cloned();
        port.interface = root.text(&format!("{device}/parent")).or(found).unwrap_or_default();
    }
    port
}

/// Returns the rate of an interface's hardware, or of the fastest up to `depth` interfaces below: what goes between two
/// hosts may use one port of a bond.
fn rate_mbps(root: &Root, name: &str, depth: u32) -> u32 {
    let at = format!("sys/class/net/{name}");
    if root.has(&format!("{at}/device/driver")) {
        return root.number::<i64>(&format!("{at}/speed")).and_then(|rate| rate.try_into().ok()).unwrap_or(0);
    }
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let entries = root.names(&at);
    let below = entries.iter().filter_map(|entry| entry.strip_prefix("lower_"));
    below.map(|name| rate_mbps(root, name, depth)).max().unwrap_or(0)
}

fn interfaces(root: &Root) -> Vec<Interface> {
    let names = root.names("sys/class/net").into_iter().filter(|name| name != LOOPBACK);
    let interface = |name: String| {
        let at = format!("sys/class/net/{name}");
        let driver = root.link(&format!("{at}/device/driver")).unwrap_or_default();
        let state = root.text(&format!("{at}/operstate")).unwrap_or_default();
        // An interface in a VRF, or of Open vSwitch, has a master too.
        let has_addresses_of_ports = |master: &String| {
            ["bonding", "bridge"].iter().any(|kind| root.has(&format!("sys/class/net/{master}/{kind}")))
        };
        let carrier = root.text(&format!("{at}/carrier")).is_some_and(|text| text == "1");
        Interface {
            is_up: state == "up" || state == "unknown" && carrier,
            mtu: root.number(&format!("{at}/mtu")).unwrap_or(0),
            rate_mbps: rate_mbps(root, &name, BELOW_MAX),
            pci: ["device/physfn", "device"]
                .iter()
                .find_map(|link| root.link(&format!("{at}/{link}")))
                .filter(|_| !driver.is_empty())
                .unwrap_or_default(),
            driver,
            addresses: Vec::new(),
            master: root.link(&format!("{at}/master")).filter(has_addresses_of_ports).unwrap_or_default(),
            name,
        }
    };
    // The interfaces of this network namespace; /sys may show another namespace.
    let ours = root.text("proc/self/net/dev").unwrap_or_default();
    let is_ours = |name: &String| {
        ours.is_empty()
            || ours
                .lines()
                .any(|line| line.trim_start().strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(':')))
    };
    let names = names.filter(|name| root.has(&format!("sys/class/net/{name}/mtu")) && is_ours(name));
    let mut interfaces: Vec<Interface> = names.map(interface).collect();
    // Of many interfaces only the first are kept, so those that lead to guests or containers come last.
    let leads_inside = |name: &str| is_inner(name) || name.starts_with("veth");
    interfaces.sort_by_key(|one| (leads_inside(&one.name), !one.is_up, one.driver.is_empty()));
    interfaces
}

fn memlock(root: &Root) -> Option<Memlock> {
    let line = root.field("proc/self/limits", "Max locked memory")?;
    let limit = |word: &str| if word == "unlimited" { Some(None) } else { word.parse().ok().map(Some) };
    let mut words = line.split_whitespace();
    Some(Memlock { soft: limit(words.next()?)?, hard: limit(words.next()?)? })
}

fn cpu(root: &Root) -> Cpu {
    let mut cpu = Cpu::default();
    let names = root.names("sys/devices/system/cpu");
    for name in names.iter().filter(|name| name.starts_with("cpu")) {
        let at = format!("sys/devices/system/cpu/{name}/cpufreq");
        let Some(governor) = root.text(&format!("{at}/scaling_governor")) else { continue };
        if !cpu.governors.contains(&governor) {
            cpu.governors.push(governor);
        }
        let number = |file: &str| root.number(&format!("{at}/{file}")).unwrap_or(0);
        let (allowed, most): (u64, u64) = (number("scaling_max_freq"), number("cpuinfo_max_freq"));
        // Cores may be of several kinds, each with its own maximum. Of all processors the most limited one counts, and
        // of equally limited ones the fastest.
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        let order = product(allowed, cpu.most_khz).cmp(&product(cpu.allowed_khz, most));
        if allowed > 0 && order.then(cpu.most_khz.cmp(&most)).is_lt() {
            (cpu.allowed_khz, cpu.most_khz) = (allowed, most);
        }
        if cpu.driver.is_empty() {
            cpu.driver = root.text(&format!("{at}/scaling_driver")).unwrap_or_default();
        }
    }
    cpu
}

fn huge_pages(root: &Root) -> HugePages {
    let number = |name: &str| root.field("proc/meminfo", name).map_or(0, |text| first_number(&text));
    let transparent = root.text("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = transparent.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word);
    HugePages {
        total: number("HugePages_Total"),
        free: number("HugePages_Free"),
        size_kib: number("Hugepagesize"),
        transparent: chosen.to_owned(),
    }
}

fn firewall(root: &Root) -> String {
    let is_there =
        |name: &str| ["usr/sbin", "sbin", "usr/bin"].iter().any(|place| root.has(&format!("{place}/{name}")));
    ["firewall-cmd", "ufw", "nft", "iptables"].into_iter().find(|name| is_there(name)).unwrap_or_default().to_owned()
}

/// Returns how many bytes the translation table of an mlx4 device can map.
fn mlx4_bytes(root: &Root) -> Option<u64> {
    let parameter = |name: &str| root.number::<u32>(&format!("sys/module/mlx4_core/parameters/{name}"));
    let (tables, entries) = (parameter("log_num_mtt")?, parameter("log_mtts_per_seg")?);
    // With 0 the driver chooses the size, and allows for twice the memory.
    (tables > 0).then(|| 4096_u64.saturating_mul(1 << tables.min(40)).saturating_mul(1 << entries.min(10)))
}

#[cfg(test)]
mod tests {
    use super::super::facts::LIST_MAX;
    use super::*;

    fn put(root: &Root, path: &str, text: &str) {
        let path = root.path(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("ours");
        std::fs::write(path, text).expect("ours");
    }

    /// The kernel looks at the right in the first user namespace.
    #[test]
    fn a_right_in_a_user_namespace_lifts_no_limit() {
        for (users, is_free) in
            [(None, true), (Some("         0          0 4294967295"), true), (Some("0 1000 1"), false)]
        {
            let directory = tempfile::tempdir().expect("a directory");
            let root = Root::at(directory.path());
            put(&root, "proc/self/status", "CapEff:\t000001ffffffffff\n");
            users.iter().for_each(|users| put(&root, "proc/self/uid_map", users));
            assert_eq!(is_root(&root), is_free, "{users:?}");
        }
    }

    #[test]
    fn a_pod_is_a_container_and_a_machine_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        put(&root, "proc/1/cgroup", "0::/\n");
        assert!(!is_container(&root));
        put(&root, "var/run/secrets/kubernetes.io/serviceaccount/token", "x");
        assert!(is_container(&root));
        put(&root, "proc/2/comm", "kthreadd\n");
        assert!(!is_container(&root));
    }

    #[test]
    fn an_adapter_is_kept_among_many_interfaces() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        let inner = (0..LIST_MAX).map(|number| format!("veth{number}"));
        for name in inner.chain(["br-1", "bond0", "enp65s0f0np0"].map(str::to_owned)) {
            put(&root, &format!("sys/class/net/{name}/mtu"), "1500\n");
        }
        let driver = root.path("sys/class/net/enp65s0f0np0/device/driver");
        std::fs::create_dir(driver.parent().expect("one")).expect("ours");
        std::os::unix::fs::symlink("../../drivers/mlx5_core", driver).expect("ours");
        let mut facts = from_files(&root);
        let known = |interface: &str, address: &str| InterfaceAddress {
            interface: interface.to_owned(),
            address: address.parse().expect("an address"),
            prefix_bits: 24,
        };
        let addresses = vec![
            known("br-1", "10.1.0.1"),
            known("eth0", "10.2.0.1"),
            known("lo", "10.3.0.1"),
            known("eth1", "10.4.0.1"),
            known("eth0", "10.5.0.1"),
        ];
        add_addresses(&mut facts, addresses);
        let kept = facts.bounded().interfaces;
        let names: Vec<&str> = kept.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names[..5], ["eth0", "eth1", "enp65s0f0np0", "bond0", "br-1"]);
        assert_eq!((kept.len(), kept[0].addresses.len(), kept[4].addresses.len()), (LIST_MAX, 2, 1));
    }

    #[test]
    fn what_stands_on_others_has_the_rate_of_hardware_and_a_veth_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        let above = ["br1", "vxlan1", "br0.5", "br0", "bond0", "veth1"].map(|name| (name, 50_000));
        for (name, rate) in above.into_iter().chain([("eth1", 25_000)]) {
            let at = format!("sys/class/net/{name}");
            put(&root, &format!("{at}/mtu"), "1500\n");
            put(&root, &format!("{at}/speed"), &format!("{rate}\n"));
        }
        put(&root, "sys/class/net/eth1/device/driver", "");
        let stacked = [("br1", "vxlan1"), ("vxlan1", "br0.5"), ("br0.5", "br0"), ("br0", "bond0"), ("bond0", "eth1")];
        for (above, below) in stacked.into_iter().chain([("br0", "veth1")]) {
            put(&root, &format!("sys/class/net/{above}/lower_{below}"), "");
        }
        std::os::unix::fs::symlink("../bond0", root.path("sys/class/net/veth1/master")).expect("ours");
        put(&root, "sys/class/net/bond0/bonding/slaves", "eth1\n");
        let facts = from_files(&root).bounded();
        let known = |name: &str| facts.interface(name).expect("it");
        let rates = above.map(|(name, _)| known(name).rate_mbps);
        assert_eq!(rates, [25_000, 25_000, 25_000, 25_000, 25_000, 0]);
        assert_eq!(["bond0", "veth1"].map(|name| known(name).master.as_str()), ["", "bond0"]);
    }

    #[test]
    fn all_processors_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        let one = |number| format!("processor\t: {number}\nflags\t\t:{}\n\n", " avx".repeat(400));
        put(&root, "proc/cpuinfo", &(0..128).map(one).collect::<String>());
        put(&root, "sys/devices/system/cpu/online", "0-63,128-191\n");
        assert_eq!(from_files(&root).processors, 128);
        assert_eq!(["0", "0-3,8,10-11", "", "3-1", "x"].map(listed), [1, 7, 0, 0, 0]);
    }

    #[test]
    fn the_limit_of_a_processor_is_compared_with_its_own_maximum() {
        let found = |processors: [[u64; 2]; 3]| {
            let directory = tempfile::tempdir().expect("a directory");
            let root = Root::at(directory.path());
            for (number, [allowed, most]) in processors.into_iter().enumerate() {
                let at = format!("sys/devices/system/cpu/cpu{number}/cpufreq");
                put(&root, &format!("{at}/scaling_governor"), "performance\n");
                put(&root, &format!("{at}/scaling_max_freq"), &allowed.to_string());
                put(&root, &format!("{at}/cpuinfo_max_freq"), &most.to_string());
            }
            let cpu = cpu(&root);
            [cpu.allowed_khz, cpu.most_khz]
        };
        let (slow, fast) = ([3_800_000; 2], [5_200_000; 2]);
        assert_eq!(found([slow, fast, slow]), fast);
        assert_eq!(found([fast, slow, fast]), fast);
        let limited = [1_200_000, 3_800_000];
        assert_eq!(found([fast, limited, slow]), limited);
        let limited = [3_800_000, 5_200_000];
        assert_eq!(found([limited, slow, fast]), limited);
    }
}
