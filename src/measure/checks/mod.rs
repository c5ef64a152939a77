//! The checks: functions from facts to findings. They do no I/O and never fail. If facts are absent, a check reports
//! that, or reports nothing.
//!
//! A finding is a failure if a user would call it a failure. A host without an RDMA device is not a failure, because
//! TCP works. A device that cannot be used is a failure.

mod device;
mod host;
mod memory;
mod path;
mod tcp;

pub use path::compare;

use super::facts::Facts;
use super::finding::{Finding, Fix};

/// Runs the checks of a host, in the order in which their findings are reported.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let checks: [fn(&Facts) -> Vec<Finding>; 18] = [
        host::host,
        host::network,
        host::libraries,
        host::modules,
        host::nodes,
        host::verbs,
        device::devices,
        device::ports,
        device::mtu,
        device::gids,
        device::addresses,
        device::pcie,
        device::numa,
        device::iommu,
        memory::memlock,
        memory::registration,
        memory::huge_pages,
        host::cpu,
    ];
    checks.iter().flat_map(|check| check(facts)).collect()
}

/// Whether a host's distribution is one of these, or descends from one.
fn is_like(facts: &Facts, names: &[&str]) -> bool {
    facts.family.split([' ', '"']).any(|id| names.contains(&id))
}

/// Returns a command that changes a machine's kernel. In a container it cannot be run, so it is an advice there.
fn of_machine(facts: &Facts, command: impl Into<String>) -> Fix {
    let command = command.into();
    if facts.is_container {
        return Fix::advice(format!("on the container's machine, as root: {command}"));
    }
    Fix::command(command)
}

/// Returns a command that loads a module now and at every boot.
fn load(facts: &Facts, module: &str) -> Fix {
    of_machine(facts, format!("modprobe {module} && echo {module} >/etc/modules-load.d/{module}.conf"))
}

#[cfg(test)]
mod tests;
