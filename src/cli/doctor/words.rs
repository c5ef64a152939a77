//! Texts about a finding: what was found, why it matters, and what fixes it.
//!
//! A fix that is a command is a single line for a POSIX shell run by root. Names in the command come from facts, and
//! are limited to what may stand in a command. Everything else from a host is escaped when it is printed.

use std::ffi::OsStr;
use std::ops::RangeInclusive;

use rd_proto::control::ERRNO_MAX;

use crate::cli::report::rate_words;
use crate::fault::{escaped, os_number};
use crate::measure::finding::Outcome;
use crate::measure::{Facts, Speed, What};

mod many;
mod tcp;

/// Ports that are proposed if the user names none.
const PORTS: RangeInclusive<u16> = 47_000..=47_099;

/// Allows programs to lock as much memory as they ask for, from the next login on.
const MEMLOCK_FIX: &str = "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' >/etc/security/limits.d/rdma.conf # then log in again";

/// The same for sessions started by sshd, which may ignore the limits.
const MEMLOCK_FIX_SSH: &str = "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' >/etc/security/limits.d/rdma.conf; \
    grep -qs pam_limits.so /etc/pam.d/sshd || printf 'session required pam_limits.so\\n' >>/etc/pam.d/sshd # then log in again";

/// How to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fix {
    /// A command to run.
    Run(String),
    /// An instruction, if no command can fix the finding.
    Do(String),
}

/// Texts about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// Code of the finding for programs: the same in every version.
    pub(super) code: &'static str,
    pub(super) found: String,
    /// Why the finding matters; empty if nothing is wrong.
    pub(super) why: String,
    pub(super) fix: Option<Fix>,
}

/// The examined host.
pub(super) struct Examined<'a> {
    pub(super) facts: &'a Facts,
    /// Value of `--port-range`.
    pub(super) ports: Option<RangeInclusive<u16>>,
}

fn well(code: &'static str, found: impl Into<String>) -> Words {
    Words { code, found: found.into(), why: String::new(), fix: None }
}

fn run(code: &'static str, found: impl Into<String>, why: impl Into<String>, command: impl Into<String>) -> Words {
    Words { code, found: found.into(), why: why.into(), fix: Some(Fix::Run(command.into())) }
}

fn advise(code: &'static str, found: impl Into<String>, why: impl Into<String>, advice: impl Into<String>) -> Words {
    Words { code, found: found.into(), why: why.into(), fix: Some(Fix::Do(advice.into())) }
}

/// Reports that the other host could not be examined.
pub(super) fn no_way(found: String, code: &'static str, host: &OsStr) -> Words {
    let host = escaped(host);
    let (why, fix) = match code {
        "agent-missing" => (
            "without it, neither HOST nor the path to it can be examined, and rdcp cannot copy",
            format!("install rdma-pipe on {host}"),
        ),
        "agent-of-another-version" => {
            ("the two programs are not compatible", format!("install the same release on {host}"))
        }
        "agent-lost" => {
            ("the agent exited early, or the connection to it was lost", format!("run rddoctor {host} again"))
        }
        _ => (
            "rddoctor and rdcp reach other hosts through ssh; the route for the data is chosen afterwards",
            format!("make `ssh {host} true` work without a prompt; -P, -i, -J, -F and -o are passed to ssh"),
        ),
    };
    advise(code, found, why, fix)
}

/// Reports that the drill could not be completed.
pub(super) fn no_drill(found: String, host: &OsStr) -> Words {
    advise(
        "drill-not-done",
        found,
        "it is unknown whether faults are detected and survived",
        format!("run rddoctor {} to see what is wrong", escaped(host)),
    )
}

/// Formats a rate, such as "100 Gbit/s"; empty for an unknown rate.
fn rate(mbps: u64) -> String {
    match mbps {
        0 => String::new(),
        1..1000 => format!("{mbps} Mbit/s"),
        _ if mbps.is_multiple_of(1000) => format!("{} Gbit/s", mbps / 1000),
        _ => format!("{:.1} Gbit/s", mbps as f64 / 1000.0),
    }
}

fn kilobytes(bytes: u64) -> String {
    format!("{} kB", bytes >> 10)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn gib(kib: u64) -> String {
    if kib < 1 << 20 { format!("{} MiB", kib >> 10) } else { format!("{} GiB", (kib + (1 << 19)) >> 20) }
}

fn time(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Joins the parts that are not empty.
fn joined<const N: usize>(parts: [String; N], by: &str) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(by)
}

/// Returns a phrase such as "on eth0"; empty without a name.
fn on(interface: &str) -> String {
    if interface.is_empty() { String::new() } else { format!("on {interface}") }
}

/// Returns how this host installs a package, which has one name in Debian and another in Red Hat.
fn install(facts: &Facts, debian: &str, red_hat: &str) -> Fix {
    let is = |names: &[&str]| facts.family.split([' ', '"']).any(|id| names.contains(&id));
    if is(&["debian", "ubuntu"]) {
        Fix::Run(format!("apt-get install -y {debian}"))
    } else if is(&["fedora", "rhel", "centos", "amzn"]) {
        Fix::Run(format!("dnf install -y {red_hat}"))
    } else if is(&["suse", "opensuse", "sles"]) {
        Fix::Run(format!("zypper --non-interactive install {red_hat}"))
    } else if is(&["arch"]) {
        Fix::Run("pacman -S --needed --noconfirm rdma-core".to_owned())
    } else {
        Fix::Do("install rdma-core: libibverbs with its drivers, and librdmacm".to_owned())
    }
}

/// Returns a command that loads a module now and at every boot.
fn load(module: &str) -> String {
    format!("modprobe {module} && echo {module} >/etc/modules-load.d/{module}.conf")
}

/// Returns how to allow connections through this host's firewall. `protocol` is `tcp` or `udp`.
fn let_in(firewall: &str, ports: &RangeInclusive<u16>, protocol: &str) -> Fix {
    let (first, last) = (ports.start(), ports.end());
    let range = |by: &str| if first == last { first.to_string() } else { format!("{first}{by}{last}") };
    match firewall {
        "firewall-cmd" => {
            Fix::Run(format!("firewall-cmd --permanent --add-port={}/{protocol} && firewall-cmd --reload", range("-")))
        }
        "ufw" => Fix::Run(format!("ufw allow {}/{protocol}", range(":"))),
        "nft" => Fix::Run(format!("nft insert rule inet filter input {protocol} dport {} accept", range("-"))),
        "iptables" => Fix::Run(format!("iptables -I INPUT -p {protocol} --dport {} -j ACCEPT", range(":"))),
        _ => Fix::Do(format!("open {protocol} ports {} in the firewalls between the two hosts", range("-"))),
    }
}

/// Lists failed attempts, such as "10.0.0.2 refused, 10.1.0.2 no answer".
fn missed(not: &[(String, Outcome)]) -> String {
    let told = not.iter().map(|(address, outcome)| {
        let outcome = match outcome {
            Outcome::Connected => "connected".to_owned(),
            Outcome::Refused => "refused".to_owned(),
            Outcome::Silent => "no answer".to_owned(),
            Outcome::Unreachable(errno) => match errno {
                1..=ERRNO_MAX => os_number(*errno),
                _ => "unreachable".to_owned(),
            },
            Outcome::NoRdma(reason) | Outcome::Other(reason) => reason.clone(),
        };
        format!("{address}: {outcome}")
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Returns the probable obstacle, judged by what the outcomes have in common.
fn in_the_way(not: &[(String, Outcome)]) -> &'static str {
    let all = |is: fn(&Outcome) -> bool| not.iter().all(|(_, outcome)| is(outcome));
    if all(|outcome| matches!(outcome, Outcome::Silent)) {
        "a firewall drops the packets"
    } else if all(|outcome| matches!(outcome, Outcome::Refused)) {
        "the port was open, so a firewall refuses connections"
    } else if all(|outcome| matches!(outcome, Outcome::Unreachable(_))) {
        "there is no route, or a firewall rejects the packets"
    } else {
        "a firewall or a missing route"
    }
}

/// Returns the texts about a finding. `about` names the device or interface that the finding is about.
pub(super) fn words(what: &What, about: &str, examined: &Examined<'_>) -> Words {
    host_words(what, examined)
        .or_else(|| device_words(what, about, examined))
        .or_else(|| limit_words(what, examined))
        .or_else(|| path_words(what, examined))
        .or_else(|| tcp::words(what))
        .or_else(|| many::counter_words(what))
        .or_else(|| many::drill_words(what))
        .or_else(|| many::pair_words(what, about))
        .expect("every finding belongs to one of these")
}

fn host_words(what: &What, examined: &Examined<'_>) -> Option<Words> {
    let facts = examined.facts;
    let container =
        |device: &str| format!("start the container with --device {device}, or with --device /dev/infiniband");
    Some(match what {
        What::Host { system, kernel, processors, memory_kib, is_container } => {
            let inside = if *is_container { "a container" } else { "" };
            well(
                "host",
                joined(
                    [
                        system.clone(),
                        format!("kernel {kernel}"),
                        if *processors > 0 { format!("{processors} processors") } else { String::new() },
                        if *memory_kib > 0 { gib(*memory_kib) } else { String::new() },
                        inside.to_owned(),
                    ],
                    ", ",
                ),
            )
        }
        What::NoDevice => well("no-device", "no RDMA device; data goes over TCP"),
        What::Interfaces(all) => {
            let one = |(name, mbps, mtu): &(String, u32, u32)| {
                let mtu = if *mtu > 0 { format!("MTU {mtu}") } else { String::new() };
                joined([name.clone(), rate(u64::from(*mbps)), mtu], " ")
            };
            well("interfaces", all.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        What::NoInterface => advise(
            "no-interface",
            "no network interface is up",
            "no other host can be reached",
            "ip link set dev INTERFACE up, and give it an address; `ip link` lists the interfaces",
        ),
        What::Libraries { release } if release.is_empty() => well("libraries", "rdma-core is installed"),
        What::Libraries { release } => well("libraries", format!("rdma-core {release}")),
        What::LibrariesNotNeeded => {
            well("libraries-not-needed", "rdma-core is not installed, and nothing here needs it")
        }
        What::LibrariesMissing { missing } => Words {
            code: "libraries-missing",
            found: format!("{} not found", missing.join(" and ")),
            why: "without rdma-core, the RDMA device cannot be used, and data goes over TCP".to_owned(),
            fix: Some(install(facts, "libibverbs1 librdmacm1 ibverbs-providers", "libibverbs librdmacm rdma-core")),
        },
        What::ProviderMissing { provider } => Words {
            code: "provider-missing",
            found: format!("libibverbs has no {provider} driver"),
            why: "programs do not see the device, and data goes over TCP".to_owned(),
            fix: Some(install(facts, "ibverbs-providers", "libibverbs rdma-core")),
        },
        What::Modules => well("modules", "ib_uverbs and rdma_ucm are loaded"),
        What::ModuleMissing { module } => run(
            "module-missing",
            format!("{module} is not loaded"),
            "programs need it to use the RDMA device",
            load(module),
        ),
        What::AdapterWithoutModule { interface, driver, module } => run(
            "adapter-without-module",
            format!("{interface} ({driver}) can do RDMA, but {module} is not loaded"),
            "data goes over TCP, which is slower and takes more processor time",
            load(module),
        ),
        What::Nodes { count } => well("nodes", format!("{count} device files, all accessible")),
        What::NodeMissing { path, is_container: true } => advise(
            "node-missing",
            format!("{path} does not exist"),
            "the container was started without the device",
            container(path),
        ),
        What::NodeMissing { path, .. } => run(
            "node-missing",
            format!("{path} does not exist"),
            "programs need it to use the RDMA device",
            "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc && udevadm settle",
        ),
        What::NodeDenied { path, is_container: true } => advise(
            "node-denied",
            format!("no permission to open {path}"),
            "the container is not allowed to use the device",
            container(path),
        ),
        What::NodeDenied { path, .. } => run(
            "node-denied",
            format!("this user has no permission to open {path}"),
            "only root can use RDMA",
            format!(
                "chmod 0666 {path} && printf 'KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\"\\n' >/etc/udev/rules.d/90-rdma.rules"
            ),
        ),
        What::NodeBroken { path, errno } => advise(
            "node-broken",
            format!("cannot open {path}: {}", os_number(*errno)),
            "RDMA cannot be used",
            "check the kernel log: dmesg | grep -i -e infiniband -e mlx",
        ),
        What::VerbsFailed { reason } => advise(
            "verbs-failed",
            format!("RDMA cannot be used: {reason}"),
            "there is a device with an address, but verbs fail on it",
            "ibv_devinfo -v shows what the library detects, dmesg what the driver reports",
        ),
        What::Cpu { governors, most_khz } => well(
            "cpu",
            joined(
                [
                    format!("governor {}", governors.join(", ")),
                    if *most_khz > 0 { format!("{:.1} GHz", *most_khz as f64 / 1e6) } else { String::new() },
                ],
                ", ",
            ),
        ),
        What::CpuUnknown => well("cpu-unknown", "the system manages the frequency itself"),
        What::GovernorSaves { governors, driver } => run(
            "governor-saves",
            joined(
                [
                    format!("governor {}", governors.join(", ")),
                    if driver.is_empty() { String::new() } else { format!("(driver {driver})") },
                ],
                " ",
            ),
            "processors in power-saving states add latency, and limit the rate of fast links",
            "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor >/dev/null",
        ),
        What::CpuCapped { allowed_khz, most_khz } => run(
            "cpu-capped",
            format!("limited to {:.1} of {:.1} GHz", *allowed_khz as f64 / 1e6, *most_khz as f64 / 1e6),
            "encrypting and copying data is only as fast as the processors",
            "for d in /sys/devices/system/cpu/cpu*/cpufreq; do cat \"$d/cpuinfo_max_freq\" >\"$d/scaling_max_freq\"; done",
        ),
        _ => return None,
    })
}

fn device_words(what: &What, about: &str, examined: &Examined<'_>) -> Option<Words> {
    let device = about.split('/').next().unwrap_or_default();
    Some(match what {
        What::Device { model, driver, firmware, guid, is_virtual_function } => well(
            "device",
            joined(
                [
                    if driver.is_empty() {
                        "software".to_owned()
                    } else {
                        joined([model.clone(), driver.clone()], " ")
                    },
                    if *is_virtual_function { "virtual function".to_owned() } else { String::new() },
                    if firmware.is_empty() { String::new() } else { format!("firmware {firmware}") },
                    if guid.is_empty() { String::new() } else { format!("GUID {guid}") },
                ],
                ", ",
            ),
        ),
        What::GuidZero { is_virtual_function: true } => advise(
            "guid-zero",
            "the virtual function has no GUID",
            "InfiniBand addresses are derived from it, and devices without one cannot be told apart",
            "on the adapter's host: ip link set dev INTERFACE vf N node_guid GUID, with a unique GUID",
        ),
        What::GuidZero { .. } => advise(
            "guid-zero",
            "the device has no GUID",
            "InfiniBand addresses are derived from it, and devices without one cannot be told apart",
            format!("the firmware has lost it: mstflint -d {device} query shows what is stored"),
        ),
        What::GuidTwice { guid, other } => advise(
            "guid-twice",
            format!("{other} has the same GUID {guid}"),
            "the fabric delivers packets for one to the other",
            format!("give one of them a unique GUID: mstflint -d {device} -guid GUID sg"),
        ),
        What::Port { link_layer, rate: mbps, interface, guid, is_roce } => {
            let tools = "ibnodes and other subnet tools do not work on it, by design";
            well(
                "port",
                joined(
                    [
                        joined(["active".to_owned(), link_layer.clone(), rate(u64::from(*mbps)), on(interface)], " "),
                        if guid.is_empty() { String::new() } else { format!("port GUID {guid}") },
                        if *is_roce { format!("RoCE: {tools}") } else { String::new() },
                    ],
                    ", ",
                ),
            )
        }
        What::PortWaits { state } => run(
            "port-waits",
            format!("the link is up, but the port is {state}"),
            "no subnet manager has configured it; an InfiniBand fabric needs one",
            "systemctl enable --now opensm # on one host of the fabric, if no switch runs one",
        ),
        What::PortDown { physical, interface, is_ethernet } => {
            let found = joined(["down".to_owned(), on(interface), format!("({physical})")], " ");
            let why = "no other RDMA port of this host is up";
            if *is_ethernet && !interface.is_empty() && physical == "Disabled" {
                run("port-down", found, why, format!("ip link set dev {interface} up"))
            } else {
                advise(
                    "port-down",
                    found,
                    why,
                    "check the cable, transceiver and switch port, and that the interface is up",
                )
            }
        }
        What::PortUnused { state } => well("port-unused", format!("{}, not used", state.to_lowercase())),
        What::PortNarrow { rate: mbps } => advise(
            "port-narrow",
            format!("the link came up with one lane ({})", rate(u64::from(*mbps))),
            "three of its four lanes carry no data",
            "reseat or replace the cable; iblinkinfo shows both ends",
        ),
        What::Mtu { bytes, most, interface, interface_mtu } => {
            let below =
                if *interface_mtu > 0 { format!("({interface} has MTU {interface_mtu})") } else { String::new() };
            let of = if bytes < most { format!("{bytes} of {most} bytes") } else { format!("{bytes} bytes") };
            well("mtu", joined([of, below], " "))
        }
        What::MtuSmall { bytes, most, interface, interface_mtu, needed } => {
            let found = format!("packets carry {bytes} of {most} bytes");
            if *needed > *interface_mtu && !interface.is_empty() {
                run(
                    "mtu-small",
                    format!("{found}, because {interface} has MTU {interface_mtu}"),
                    "the same data takes more packets; switches and the other host need the larger MTU too",
                    format!("ip link set dev {interface} mtu {needed}"),
                )
            } else if *interface_mtu > 0 && *needed > 0 {
                run(
                    "mtu-small",
                    format!("{found}, although {interface} has MTU {interface_mtu}"),
                    "the device still uses the MTU from when it was started",
                    format!("ip link set dev {interface} down && ip link set dev {interface} up"),
                )
            } else {
                advise(
                    "mtu-small",
                    found,
                    "the same data takes more packets",
                    "set 4096 in the subnet manager's partitions.conf: Default=0x7fff, ipoib, mtu=5",
                )
            }
        }
        What::Gids { routable, all } => {
            well("gids", format!("{all} in use, {routable} of them RoCE v2 with an IP address"))
        }
        What::GidsMissing { interface } => run(
            "gids-missing",
            format!("none for RoCE v2, although {interface} has an address"),
            "only RoCE v2 is routable, and peers expect it",
            format!("cma_roce_mode -d {device} -m 2"),
        ),
        What::Addresses { interface, addresses } => {
            well("addresses", joined([addresses.join(", "), on(interface)], " "))
        }
        What::AddressMissing { interface, is_up } => {
            let up = if *is_up { String::new() } else { format!("ip link set dev {interface} up && ") };
            let variable: String = interface
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' })
                .collect();
            run(
                "address-missing",
                format!("{interface} has no IP address"),
                "RDMA connections are made to IP addresses; without one the port is not used",
                format!(
                    "{up}ip address add \"${{ADDRESS_{variable}:?set it to an address such as 10.0.0.1/24}}\" dev {interface}"
                ),
            )
        }
        What::InterfaceMissing => run(
            "interface-missing",
            "the port has no network interface",
            "RDMA connections are made to IP addresses; without an interface the port has none",
            load("ib_ipoib"),
        ),
        What::SubnetTwice { one, other, address } => run(
            "subnet-twice",
            format!("{other} ({address}) is in the same subnet as {one}"),
            "packets for one may be answered or sent by the other",
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 # or give each a subnet of its own",
        ),
        What::Pcie { speed, width, mbps } => well("pcie", pcie(*speed, *width, *mbps)),
        What::PcieSlow { address, speed, width, speed_max, width_max, mbps, rate: port } => {
            let bound = if u64::from(*port) > *mbps && *port > 0 {
                format!("the port's {} cannot be reached", rate(u64::from(*port)))
            } else {
                "it may be the bottleneck".to_owned()
            };
            advise(
                "pcie-slow",
                format!("{}; the card supports {}", pcie(*speed, *width, *mbps), gts(*speed_max, *width_max)),
                bound,
                format!(
                    "move the card to a slot with {width_max} lanes, or reseat it; lspci -vv -s {address} shows LnkCap and LnkSta"
                ),
            )
        }
        What::Numa { node, nodes } => well("numa", format!("attached to node {node} of {nodes}")),
        What::IommuPassed => well("iommu-passed", "does not translate the device's accesses"),
        What::IommuTranslates { mode } => {
            let command = if examined
                .facts
                .family
                .split([' ', '"'])
                .any(|id| ["fedora", "rhel", "centos"].contains(&id))
            {
                "grubby --update-kernel=ALL --args=iommu=pt # then restart".to_owned()
            } else {
                "mkdir -p /etc/default/grub.d && printf 'GRUB_CMDLINE_LINUX=\"%s iommu=pt\"\\n' \"\\$GRUB_CMDLINE_LINUX\" \
                 >/etc/default/grub.d/iommu-pt.cfg && update-grub # then restart"
                    .to_owned()
            };
            run(
                "iommu-translates",
                format!("translates every access of the device ({mode})"),
                "registering memory takes longer, and misses in the IOMMU's cache reduce throughput",
                command,
            )
        }
        _ => return None,
    })
}

fn gts(speed: u32, width: u32) -> String {
    let tenth = if speed.is_multiple_of(10) { String::new() } else { format!(".{}", speed % 10) };
    format!("{}{tenth} GT/s x{width}", speed / 10)
}

fn pcie(speed: u32, width: u32, mbps: u64) -> String {
    format!("{}: {:.0} Gbit/s", gts(speed, width), mbps as f64 / 1000.0)
}

fn limit_words(what: &What, examined: &Examined<'_>) -> Option<Words> {
    let memlock = |is_ssh: bool| {
        if examined.facts.is_container {
            Fix::Do("start the container with --ulimit memlock=-1".to_owned())
        } else if is_ssh {
            Fix::Run(MEMLOCK_FIX_SSH.to_owned())
        } else {
            Fix::Run(MEMLOCK_FIX.to_owned())
        }
    };
    let limits = |soft: u64, hard: Option<u64>, is_ssh: bool| {
        let session = if is_ssh { " in an ssh session" } else { "" };
        let hard = match hard {
            Some(hard) if hard == soft => String::new(),
            Some(hard) => format!(", hard limit {}", kilobytes(hard)),
            None => ", hard limit unlimited: `ulimit -l unlimited` raises it for a shell".to_owned(),
        };
        format!("{}{session}{hard}", kilobytes(soft))
    };
    Some(match what {
        What::MemlockUnlimited { is_root: true } => well("memlock-unlimited", "no limit for this user"),
        What::MemlockUnlimited { .. } => well("memlock-unlimited", "unlimited"),
        What::Memlock { soft, is_needed: true } => well("memlock", kilobytes(*soft)),
        What::Memlock { soft, .. } => well("memlock", format!("{}; only RDMA needs more", kilobytes(*soft))),
        What::MemlockUnknown => well("memlock-unknown", "the system does not report the limit"),
        What::MemlockSmall { soft, hard, wanted, is_ssh } => Words {
            code: "memlock-small",
            found: format!("{}; {} recommended", limits(*soft, *hard, *is_ssh), kilobytes(*wanted)),
            why: if *soft < 16_500 << 10 {
                "below 16500 kB, the buffer pool for RDMA is so small that throughput drops".to_owned()
            } else {
                "the buffer pool for RDMA is smaller than it should be".to_owned()
            },
            fix: Some(memlock(*is_ssh)),
        },
        What::MemlockNone { soft, hard, is_ssh } => Words {
            code: "memlock-none",
            found: limits(*soft, *hard, *is_ssh),
            why: "too little for RDMA, which locks its memory (at least 5120 kB, better 16500 kB); data goes over TCP"
                .to_owned(),
            fix: Some(memlock(*is_ssh)),
        },
        What::Registered { bytes, micros } => well("registered", format!("{} in {}", mebibytes(*bytes), time(*micros))),
        What::RegisteredLess { bytes, wanted, reason } => Words {
            code: "registered-less",
            found: format!("{} of {}: {reason}", mebibytes(*bytes), mebibytes(*wanted)),
            why: "the buffer pool for RDMA shrinks to that size".to_owned(),
            fix: Some(memlock(!examined.facts.ssh.is_empty())),
        },
        What::NotRegistered { wanted, reason } if reason.contains("locked memory") => Words {
            code: "not-registered",
            found: format!("none of {}: {reason}", mebibytes(*wanted)),
            why: "RDMA cannot be used, and data goes over TCP".to_owned(),
            fix: Some(memlock(!examined.facts.ssh.is_empty())),
        },
        What::NotRegistered { wanted, reason } => advise(
            "not-registered",
            format!("none of {}: {reason}", mebibytes(*wanted)),
            "RDMA cannot be used, and data goes over TCP",
            "check the kernel log: dmesg | grep -i -e infiniband -e mlx",
        ),
        What::Mlx4Small { bytes, memory_kib } => run(
            "mlx4-small",
            format!("mlx4 can register {} of {}", gib(bytes >> 10), gib(*memory_kib)),
            "programs that register a lot of memory fail",
            "echo 'options mlx4_core log_num_mtt=24' >/etc/modprobe.d/mlx4_core.conf # then restart",
        ),
        What::HugePages { total, free, size_kib, transparent } => {
            let reserved = if *total == 0 {
                "none reserved".to_owned()
            } else {
                format!("{free} of {total} free, {} each", mebibytes(size_kib << 10))
            };
            let transparent =
                if transparent.is_empty() { String::new() } else { format!("transparent: {transparent}") };
            well("huge-pages", joined([reserved, transparent, "none needed".to_owned()], ", "))
        }
        _ => return None,
    })
}

fn path_words(what: &What, examined: &Examined<'_>) -> Option<Words> {
    let ports = examined.ports.clone().unwrap_or(PORTS);
    let named = if examined.ports.is_some() {
        String::new()
    } else {
        format!("; after the fix, use --port-range {}-{}", PORTS.start(), PORTS.end())
    };
    let slow = |name: &str, mbps: u32| joined([name.to_owned(), rate(u64::from(mbps))], " ");
    Some(match what {
        What::Agent { micros, program } => {
            well("agent", format!("the agent answered in {}, rdma-pipe {program}", time(*micros)))
        }
        What::AgentSlow { micros } => advise(
            "agent-slow",
            format!("the agent answered after {}", time(*micros)),
            "every copy takes that long to start",
            "ssh -v shows what it waits for: often UseDNS or GSSAPIAuthentication; set them to `no` in sshd_config",
        ),
        What::Versions { here, there } => advise(
            "versions",
            format!("rdma-pipe {here} here, {there} there"),
            "features that only one of them has cannot be used",
            "install the same release on both hosts",
        ),
        What::AddressTwice { address, here, there } => advise(
            "address-twice",
            format!("both {here} here and {there} there have {address}"),
            "packets to it reach either of the two hosts, or neither",
            format!("give one of the two another address: ip address del {address}/BITS dev INTERFACE, ip address add"),
        ),
        What::SubnetMissing { here, there } => advise(
            "subnet-missing",
            format!("RDMA addresses here: {}; there: {}", here.join(", "), there.join(", ")),
            "no two are in the same subnet, so data needs a router, which InfiniBand cannot have",
            "give both ends of the fast network addresses in one subnet: ip address add ADDRESS/BITS dev INTERFACE",
        ),
        What::RdmaOneSided { without } => well("rdma-one-sided", format!("{without} has no RDMA; data goes over TCP")),
        What::Route { ssh, data } if ssh.0 == data.0 => {
            well("route", format!("ssh and the data use {}", slow(&ssh.0, ssh.1)))
        }
        What::Route { ssh, data } => {
            well("route", format!("ssh uses {}, the data {}", slow(&ssh.0, ssh.1), slow(&data.0, data.1)))
        }
        What::MtuDiffers { here, there } => {
            let less = here.1.min(there.1);
            let small = if here.1 == less { &here.0 } else { &there.0 };
            advise(
                "mtu-differs",
                format!("{} here has MTU {}, {} there has {}", here.0, here.1, there.0, there.1),
                "large packets are dropped silently, and connections stall",
                format!("ip link set dev {small} mtu {} on the host where it is {less}", here.1.max(there.1)),
            )
        }
        What::Reached { address, micros, addresses } => {
            let all = if *addresses > 1 { format!(", the best of {addresses} addresses") } else { String::new() };
            well("reached", format!("{address} over TCP in {}{all}", time(*micros)))
        }
        What::ReachedSome { address, micros, not } => advise(
            "reached-some",
            format!("{address} over TCP in {}; not reached: {}", time(*micros), missed(not)),
            format!("the data may take a slower network than necessary: {}", in_the_way(not)),
            "check the firewalls and addresses on that network; `ip route get ADDRESS` shows the route",
        ),
        What::ReachedBack { not, firewall } => Words {
            code: "reached-back",
            found: format!("from here to there: {}; the other direction works", missed(not)),
            why: format!(
                "{}; copies work, because the other end connects instead, but start later{named}",
                in_the_way(not)
            ),
            fix: Some(let_in(firewall, &ports, "tcp")),
        },
        What::NotReached { not, firewall } => Words {
            code: "not-reached",
            found: missed(not),
            why: format!("{}, in both directions; data goes through ssh, slowly{named}", in_the_way(not)),
            fix: Some(let_in(firewall, &ports, "tcp")),
        },
        What::RdmaReached { address, micros } => {
            well("rdma-reached", format!("{address} over rdma_cm in {}", time(*micros)))
        }
        What::RdmaNotReached { not, is_roce, firewall } => {
            let silent = not.iter().all(|(_, outcome)| matches!(outcome, Outcome::Silent | Outcome::Unreachable(_)));
            let why = if silent {
                "both hosts have RDMA, but packets do not arrive; data goes over TCP"
            } else {
                "both hosts have RDMA, but they cannot connect with it; data goes over TCP"
            };
            let fix = if *is_roce {
                // RoCE v2 always uses this UDP port, whatever port rdma_cm reports.
                let_in(firewall, &(4791..=4791), "udp")
            } else {
                Fix::Do(
                    "try `rping -s` there and `rping -c -a ADDRESS` here; for iWARP, firewalls must allow its TCP ports"
                        .to_owned(),
                )
            };
            Words { code: "rdma-not-reached", found: missed(not), why: why.to_owned(), fix: Some(fix) }
        }
        What::ProbeFailed { reason } => advise(
            "probe-failed",
            format!("cannot open a port for the test: {reason}"),
            "connections were not tested and may fail",
            "choose free ports: --port-range FIRST-LAST",
        ),
        What::Bandwidth { speed, ceiling } => well("bandwidth", bandwidth(speed, *ceiling)),
        What::BandwidthLow { speed, ceiling } => {
            let advice = match speed.limiter.as_str() {
                "cpu" => "the processors are the limit; use --encrypt never, a faster governor, or RDMA",
                "wire" | "credits" => {
                    "look for losses and congestion: ethtool -S INTERFACE, and flow control (PFC) on a RoCE network"
                }
                _ => "run rddoctor with a longer --seconds; other traffic or processes may have interfered",
            };
            advise("bandwidth-low", bandwidth(speed, *ceiling), "the link can carry more", advice)
        }
        What::BandwidthFailed { reason } => advise(
            "bandwidth-failed",
            format!("could not be measured: {reason}"),
            "a copy would fail the same way",
            "see the checks above; if `ping -M do -s SIZE HOST` works only up to some SIZE, large packets are lost; \
             set the same MTU on all interfaces, switches and tunnels of the path (`ip link set INTERFACE mtu 1500`)",
        ),
        _ => return None,
    })
}

fn bandwidth(speed: &Speed, ceiling: u64) -> String {
    let rate = rate_words(speed.bytes as f64 / speed.micros.max(1) as f64 * 1e6);
    let of = if ceiling > 0 {
        let share = speed.mbps() * 100 / ceiling.max(1);
        format!("{share} % of the link's {}", rate_words(ceiling as f64 * 1e6 / 8.0))
    } else {
        String::new()
    };
    let limiter = match speed.limiter.as_str() {
        "source" => "limited by reading memory",
        "cpu" => "limited by processors",
        "credits" | "sink" => "limited by the receiver",
        "wire" => "limited by the network",
        _ => "",
    };
    let medium = match speed.medium.as_str() {
        "rdma" => "RDMA",
        "rdma-software" => "RDMA in software",
        "tcp" if speed.is_encrypted => "TCP, encrypted",
        "tcp" => "TCP",
        _ => "",
    };
    let through = if speed.is_tunneled { "through ssh" } else { "" };
    joined([rate, medium.to_owned(), through.to_owned(), of, limiter.to_owned()], ", ")
}
