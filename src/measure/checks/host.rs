//! Checks of the host as a whole: its software, its modules and its processors.

use rustix::io::Errno;

use crate::measure::facts::Facts;
use crate::measure::finding::{Finding, Level, What};

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
    let system = if facts.system.is_empty() { "Linux".to_owned() } else { facts.system.clone() };
    let what = What::Host {
        system,
        kernel: facts.kernel.clone(),
        processors: facts.processors,
        memory_kib: facts.memory_kib,
        is_container: facts.is_container,
    };
    vec![Finding::new("host", Level::Ok, what)]
}

pub(super) fn network(facts: &Facts) -> Vec<Finding> {
    let mut up: Vec<_> = facts.interfaces.iter().filter(|interface| interface.is_up).collect();
    if up.is_empty() {
        return vec![Finding::new("network", Level::Warning, What::NoInterface)];
    }
    // The sort is stable: interfaces with the same rate stay in the order of their names.
    up.sort_by_key(|interface| std::cmp::Reverse(interface.rate_mbps));
    let told = up.iter().take(LISTED_MAX).map(|interface| (interface.name.clone(), interface.rate_mbps, interface.mtu));
    vec![Finding::new("network", Level::Ok, What::Interfaces(told.collect()))]
}

pub(super) fn libraries(facts: &Facts) -> Vec<Finding> {
    let mut missing = Vec::new();
    for (file, name) in [(&facts.verbs_library, "libibverbs"), (&facts.cm_library, "librdmacm")] {
        if file.is_empty() {
            missing.push(name);
        }
    }
    if facts.devices.is_empty() {
        let none = if missing.is_empty() {
            What::Libraries { release: release(&facts.verbs_library) }
        } else {
            What::LibrariesNotNeeded
        };
        return vec![Finding::new("rdma", Level::Ok, What::NoDevice), Finding::new("libraries", Level::Ok, none)];
    }
    if !missing.is_empty() {
        return vec![Finding::new("libraries", Level::Failure, What::LibrariesMissing { missing })];
    }
    let mut findings = Vec::new();
    for device in &facts.devices {
        let known = ADAPTERS.iter().find(|(driver, ..)| *driver == device.driver);
        let software =
            ["rxe", "siw"].into_iter().find(|kind| device.driver.is_empty() && device.name.starts_with(kind));
        let Some(provider) = known.map(|(_, _, provider)| *provider).or(software) else { continue };
        // A machine that keeps its drivers elsewhere shows no drivers at all.
        if !facts.providers.is_empty() && !facts.providers.iter().any(|name| name == provider) {
            findings.push(Finding::about(
                "libraries",
                &device.name,
                Level::Failure,
                What::ProviderMissing { provider },
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new("libraries", Level::Ok, What::Libraries { release: release(&facts.verbs_library) }));
    }
    findings
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
        let what =
            What::AdapterWithoutModule { interface: interface.name.clone(), driver: interface.driver.clone(), module };
        findings.push(Finding::about("modules", &interface.name, Level::Warning, what));
    }
    if facts.devices.is_empty() {
        return findings;
    }
    for (is_there, module) in [(facts.has_uverbs, "ib_uverbs"), (facts.has_ucm, "rdma_ucm")] {
        if !is_there {
            findings.push(Finding::new("modules", Level::Failure, What::ModuleMissing { module }));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new("modules", Level::Ok, What::Modules));
    }
    findings
}

pub(super) fn nodes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Without the module there is no device file either, and the missing module is reported already.
    let expected = || facts.nodes.iter().filter(|node| facts.has_ucm || !node.name.ends_with("rdma_cm"));
    for node in expected().filter(|node| node.errno != 0) {
        let (path, is_container) = (format!("/dev/{}", node.name), facts.is_container);
        // Another host may send any number.
        let known = (1..4096).contains(&node.errno).then_some(node.errno);
        let what = match known.map_or(Errno::IO, Errno::from_raw_os_error) {
            Errno::NOENT => What::NodeMissing { path, is_container },
            Errno::ACCESS | Errno::PERM => What::NodeDenied { path, is_container },
            other => What::NodeBroken { path, errno: other.raw_os_error() },
        };
        findings.push(Finding::new("nodes", Level::Failure, what));
    }
    if findings.is_empty() && expected().count() > 0 {
        findings.push(Finding::new("nodes", Level::Ok, What::Nodes { count: expected().count() }));
    }
    findings
}

/// Reports that verbs do not answer, although everything that they need seems to be present.
pub(super) fn verbs(facts: &Facts) -> Vec<Finding> {
    let said_already = |findings: Vec<Finding>| findings.iter().any(|finding| finding.level == Level::Failure);
    let is_up = facts.devices.iter().flat_map(|device| &device.ports).any(|port| port.is_active());
    // Without an address, verbs cannot be tried. Another check reports that.
    let has_address = facts
        .devices
        .iter()
        .flat_map(|device| &device.ports)
        .filter_map(|port| facts.interface(&port.interface))
        .any(|interface| !interface.addresses.is_empty());
    if facts.no_rdma.is_empty()
        || !is_up
        || !has_address
        || said_already(libraries(facts))
        || said_already(modules(facts))
        || said_already(nodes(facts))
    {
        return Vec::new();
    }
    vec![Finding::new("verbs", Level::Failure, What::VerbsFailed { reason: facts.no_rdma.clone() })]
}

pub(super) fn cpu(facts: &Facts) -> Vec<Finding> {
    let cpu = &facts.cpu;
    if cpu.governors.is_empty() {
        return vec![Finding::new("cpu", Level::Ok, What::CpuUnknown)];
    }
    let (governors, driver) = (cpu.governors.clone(), cpu.driver.clone());
    let mut findings = Vec::new();
    let saves = governors.iter().any(|governor| governor != "performance");
    if saves && facts.is_fast() {
        findings.push(Finding::new("cpu", Level::Warning, What::GovernorSaves { governors, driver }));
    }
    if cpu.allowed_khz > 0 && cpu.allowed_khz / CAPPED_PERCENT < cpu.most_khz / 100 && facts.is_fast() {
        let what = What::CpuCapped { allowed_khz: cpu.allowed_khz, most_khz: cpu.most_khz };
        findings.push(Finding::new("cpu", Level::Warning, what));
    }
    if findings.is_empty() {
        let what = What::Cpu { governors: cpu.governors.clone(), most_khz: cpu.most_khz };
        findings.push(Finding::new("cpu", Level::Ok, what));
    }
    findings
}
