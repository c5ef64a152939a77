//! Checks of the host as a whole: its software, its modules and its processors.

use rustix::io::Errno;

use super::{is_like, load, of_machine};
use crate::fault::os;
use crate::measure::facts::{Facts, Interface, Node};
use crate::measure::finding::{Finding, Fix, Level};
use crate::measure::words::{gib, joined, link_rate, phrase};

/// Maximum number of interfaces that are listed.
const LISTED_MAX: usize = 4;

/// Kernel drivers of adapters that can do RDMA, each with the module that adds RDMA and with the libibverbs driver.
const ADAPTERS: [(&str, &str, &str); 7] = [
    ("mlx5_core", "mlx5_ib", "mlx5"),
    ("mlx4_core", "mlx4_ib", "mlx4"),
    ("qede", "qedr", "qedr"),
    ("cxgb4", "iw_cxgb4", "cxgb4"),
    ("bnxt_en", "bnxt_re", "bnxt_re"),
    ("ice", "irdma", "irdma"),
    ("hns3", "hns_roce_hw_v2", "hns"),
];

/// Number of leading [`ADAPTERS`] whose cards can always do RDMA. Many cards with the other drivers come without RDMA,
/// so the absence of their module is not reported.
const ALWAYS_RDMA: usize = 4;

/// Share of the maximum frequency, in percent, below which the frequency counts as capped.
const CAPPED_PERCENT: u64 = 90;

pub(super) fn host(facts: &Facts) -> Vec<Finding> {
    let parts = [
        if facts.system.is_empty() { "Linux".to_owned() } else { facts.system.clone() },
        phrase("kernel", &facts.kernel),
        match (facts.processors, facts.confined_to()) {
            (0, _) => String::new(),
            (all, Some(usable)) => format!("{all} processors, {usable} usable"),
            (all, None) => format!("{all} processors"),
        },
        if facts.memory_kib > 0 { gib(facts.memory_kib) } else { String::new() },
        if facts.is_container { "a container".to_owned() } else { String::new() },
    ];
    vec![Finding::well("host", "host", joined(parts, ", "))]
}

pub(super) fn network(facts: &Facts) -> Vec<Finding> {
    let mut up: Vec<_> = facts.interfaces.iter().filter(|interface| interface.is_up).collect();
    if up.is_empty() {
        return vec![Finding::warning(
            "network",
            "no-interface",
            "no network interface is up",
            "no other host can be reached",
            Fix::advice("ip link set dev INTERFACE up, and give it an address; `ip link` lists the interfaces"),
        )];
    }
    // The sort is stable: interfaces with the same rate stay in their order.
    up.sort_by_key(|interface| std::cmp::Reverse(interface.rate_mbps));
    let told = |interface: &&Interface| {
        let mtu = if interface.mtu > 0 { format!("MTU {}", interface.mtu) } else { String::new() };
        joined([interface.name.clone(), link_rate(interface.rate_mbps), mtu], " ")
    };
    let told: Vec<String> = up.iter().take(LISTED_MAX).map(told).collect();
    vec![Finding::well("network", "interfaces", told.join(", "))]
}

pub(super) fn libraries(facts: &Facts) -> Vec<Finding> {
    let mut missing = Vec::new();
    for (file, name) in [(&facts.verbs_library, "libibverbs"), (&facts.cm_library, "librdmacm")] {
        if file.is_empty() {
            missing.push(name);
        }
    }
    let installed = || {
        let release = release(&facts.verbs_library);
        let found =
            if release.is_empty() { "rdma-core is installed".to_owned() } else { format!("rdma-core {release}") };
        Finding::well("libraries", "libraries", found)
    };
    if facts.devices.is_empty() {
        let libraries = if missing.is_empty() {
            installed()
        } else {
            let found = "rdma-core is not installed, and nothing here needs it";
            Finding::well("libraries", "libraries-not-needed", found)
        };
        return vec![Finding::well("rdma", "no-device", "no RDMA device; data goes over TCP"), libraries];
    }
    // Libraries that work are somewhere, if only where the linker was told to look.
    if !missing.is_empty() && facts.rdma.is_empty() {
        return vec![Finding::failure(
            "libraries",
            "libraries-missing",
            format!("{} not found", missing.join(" and ")),
            "without rdma-core, the RDMA device cannot be used, and data goes over TCP",
            install(facts, "libibverbs1 librdmacm1 ibverbs-providers", "libibverbs librdmacm rdma-core"),
        )];
    }
    let mut findings = Vec::new();
    for device in &facts.devices {
        let known = ADAPTERS.iter().find(|(driver, ..)| *driver == device.driver);
        let software =
            ["rxe", "siw"].into_iter().find(|kind| device.driver.is_empty() && device.name.starts_with(kind));
        let Some(provider) = known.map(|(_, _, provider)| *provider).or(software) else { continue };
        // A machine that keeps its drivers elsewhere shows no drivers at all.
        if !facts.providers.is_empty() && !facts.providers.iter().any(|name| name == provider) {
            let finding = Finding::failure(
                "libraries",
                "provider-missing",
                format!("libibverbs has no {provider} driver"),
                "programs do not see the device, and data goes over TCP",
                install(facts, "ibverbs-providers", "libibverbs rdma-core"),
            );
            findings.push(finding.about(&device.name));
        }
    }
    if findings.is_empty() {
        findings.push(installed());
    }
    findings
}

/// Returns how this host installs a package, which has one name in Debian and another in Red Hat.
fn install(facts: &Facts, debian: &str, red_hat: &str) -> Fix {
    if is_like(facts, &["debian", "ubuntu"]) {
        Fix::command(format!("apt-get install -y {debian}"))
    } else if is_like(facts, &["fedora", "rhel", "centos", "amzn"]) {
        Fix::command(format!("dnf install -y {red_hat}"))
    } else if is_like(facts, &["suse", "opensuse", "sles"]) {
        Fix::command(format!("zypper --non-interactive install {red_hat}"))
    } else if is_like(facts, &["arch"]) {
        Fix::command("pacman -S --needed --noconfirm rdma-core")
    } else {
        Fix::advice("install rdma-core: libibverbs with its drivers, and librdmacm")
    }
}

/// Returns the release of rdma-core: `libibverbs.so.1.14.44.0` belongs to rdma-core 44.0.
fn release(file: &str) -> String {
    let parts: Vec<&str> = file.rsplit('.').take(2).collect();
    match parts[..] {
        [minor, major] if [minor, major].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) => {
            format!("{major}.{minor}")
        }
        _ => String::new(),
    }
}

pub(super) fn modules(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (driver, module, _) in &ADAPTERS[..ALWAYS_RDMA] {
        let used = facts.devices.iter().any(|device| device.driver == *driver);
        let Some(interface) = facts.interfaces.iter().find(|interface| interface.driver == *driver && !used) else {
            continue;
        };
        let name = &interface.name;
        let finding = Finding::warning(
            "modules",
            "adapter-without-module",
            format!("{name} ({driver}) can do RDMA, but {module} is not loaded"),
            "data goes over TCP, which is slower and takes more processor time",
            load(facts, module),
        );
        findings.push(finding.about(name));
    }
    if facts.devices.is_empty() {
        return findings;
    }
    for (is_there, module) in [(facts.has_uverbs, "ib_uverbs"), (facts.has_ucm, "rdma_ucm")] {
        if !is_there {
            findings.push(Finding::failure(
                "modules",
                "module-missing",
                format!("{module} is not loaded"),
                "programs need it to use the RDMA device",
                load(facts, module),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::well("modules", "modules", "ib_uverbs and rdma_ucm are loaded"));
    }
    findings
}

pub(super) fn nodes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A container that was given some of its machine's adapters sees the names of all.
    let is_uverbs = |node: &Node| node.name.contains("uverbs");
    let is_given_some = facts.is_container && facts.nodes.iter().any(|node| is_uverbs(node) && node.errno == 0);
    let is_left_out = |node: &Node| is_given_some && is_uverbs(node) && node.errno == Errno::NOENT.raw_os_error();
    // Without the module there is no device file either, and the missing module is reported already.
    let has_module = |node: &Node| facts.has_ucm || !node.name.ends_with("rdma_cm");
    let expected = || facts.nodes.iter().filter(|node| has_module(node) && !is_left_out(node));
    for node in expected().filter(|node| node.errno != 0) {
        let path = format!("/dev/{}", node.name);
        // Another host may send any number.
        let known = (1..4096).contains(&node.errno).then_some(node.errno);
        findings.push(unopened(&path, known.map_or(Errno::IO, Errno::from_raw_os_error), facts.is_container));
    }
    if findings.is_empty() && expected().count() > 0 {
        let found = format!("{} device files, all accessible", expected().count());
        findings.push(Finding::well("nodes", "nodes", found));
    }
    findings
}

/// Reports a device file that could not be opened.
fn unopened(path: &str, error: Errno, is_container: bool) -> Finding {
    let container = || {
        Fix::advice(format!(
            "start the container with --device {path}, or with --device /dev/infiniband; in Kubernetes, request the \
             adapter from its device plugin"
        ))
    };
    let (code, found, why, fix) = match error {
        Errno::NOENT => {
            let (why, fix) = if is_container {
                ("the container was started without the device", container())
            } else {
                let command =
                    "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc && udevadm settle";
                ("programs need it to use the RDMA device", Fix::command(command))
            };
            ("node-missing", format!("{path} does not exist"), why, fix)
        }
        Errno::ACCESS | Errno::PERM if is_container => (
            "node-denied",
            format!("no permission to open {path}"),
            "the container is not allowed to use the device",
            container(),
        ),
        Errno::ACCESS | Errno::PERM => (
            "node-denied",
            format!("this user has no permission to open {path}"),
            "only root can use RDMA",
            Fix::command(format!(
                "chmod 0666 {path} && printf 'KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\"\\n' >/etc/udev/rules.d/99-rdma-pipe.rules"
            )),
        ),
        other => (
            "node-broken",
            format!("cannot open {path}: {}", os(other)),
            "RDMA cannot be used",
            Fix::advice("check the kernel log: dmesg | grep -i -e infiniband -e mlx"),
        ),
    };
    Finding::failure("nodes", code, found, why, fix)
}

/// Reports that verbs do not answer, although everything that they need seems to be present.
pub(super) fn verbs(facts: &Facts) -> Vec<Finding> {
    let said_already = |findings: Vec<Finding>| findings.iter().any(|finding| finding.level == Level::Failure);
    let is_up = facts.devices.iter().flat_map(|device| &device.ports).any(|port| port.is_active());
    // Without an address, verbs cannot be tried. Another check reports that.
    let has_address = facts.devices.iter().flat_map(|device| &device.ports).any(|port| facts.addressed(port).is_some());
    if facts.no_rdma.is_empty()
        || !is_up
        || !has_address
        || said_already(libraries(facts))
        || said_already(modules(facts))
        || said_already(nodes(facts))
    {
        return Vec::new();
    }
    vec![Finding::failure(
        "verbs",
        "verbs-failed",
        format!("RDMA cannot be used: {}", facts.no_rdma),
        "there is a device with an address, but verbs fail on it",
        Fix::advice("ibv_devinfo -v shows what the library detects, dmesg what the driver reports"),
    )]
}

pub(super) fn cpu(facts: &Facts) -> Vec<Finding> {
    let cpu = &facts.cpu;
    if cpu.governors.is_empty() {
        return vec![Finding::well("cpu", "cpu-unknown", "the system manages the frequency itself")];
    }
    let governors = format!("governor {}", cpu.governors.join(", "));
    let mut findings = Vec::new();
    let saves = cpu.governors.iter().any(|governor| governor != "performance");
    if saves && facts.is_fast() {
        let driver = if cpu.driver.is_empty() { String::new() } else { format!("(driver {})", cpu.driver) };
        findings.push(Finding::warning(
            "cpu",
            "governor-saves",
            joined([governors.clone(), driver], " "),
            "processors in power-saving states add latency, and limit the rate of fast links",
            of_machine(
                facts,
                "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor >/dev/null",
            ),
        ));
    }
    if cpu.allowed_khz > 0 && cpu.allowed_khz / CAPPED_PERCENT < cpu.most_khz / 100 && facts.is_fast() {
        findings.push(Finding::warning(
            "cpu",
            "cpu-capped",
            format!("limited to {:.1} of {:.1} GHz", cpu.allowed_khz as f64 / 1e6, cpu.most_khz as f64 / 1e6),
            "encrypting and copying data is only as fast as the processors",
            of_machine(
                facts,
                "for d in /sys/devices/system/cpu/cpu*/cpufreq; do cat \"$d/cpuinfo_max_freq\" >\"$d/scaling_max_freq\"; done",
            ),
        ));
    }
    if findings.is_empty() {
        let most = if cpu.most_khz > 0 { format!("{:.1} GHz", cpu.most_khz as f64 / 1e6) } else { String::new() };
        findings.push(Finding::well("cpu", "cpu", joined([governors, most], ", ")));
    }
    findings
}
