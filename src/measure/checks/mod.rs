//! The checks: functions from facts to findings. They do no I/O and never fail: facts that are absent are a finding, or
//! nothing to say.
//!
//! What counts as a failure is what a user would call one. A host without an RDMA device is none: TCP works. One with a
//! device that cannot be used is.

mod device;
mod host;
mod memory;
mod path;
mod tcp;

pub use path::compare;

use super::facts::Facts;
use super::finding::Finding;

/// The checks of one host, in the order in which they are reported.
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

#[cfg(test)]
mod tests;
