//! Checks of memory: how much may be locked, and how much can be registered.

use crate::measure::facts::Facts;
use crate::measure::finding::{Finding, Level, What};
use crate::measure::gather::WANTED_BYTES;

/// Locked memory in bytes below which the original programs did not start. This program uses a smaller pool instead.
const RECOMMENDED_BYTES: u64 = 16_500 << 10;

/// Locked memory in bytes below which a session does not use RDMA: the smallest pool, and what its lanes lock.
const USELESS_BYTES: u64 = 5 << 20;

pub(super) fn memlock(facts: &Facts) -> Vec<Finding> {
    let one = |level, what| vec![Finding::new("memlock", level, what)];
    let Some(limit) = facts.memlock else { return one(Level::Ok, What::MemlockUnknown) };
    // siw counts what root locks as well.
    let is_free = facts.is_root && !facts.devices.iter().any(|device| device.name.starts_with("siw"));
    let Some(soft) = limit.soft.filter(|_| !is_free) else {
        return one(Level::Ok, What::MemlockUnlimited { is_root: limit.soft.is_some() });
    };
    let (hard, is_ssh) = (limit.hard, !facts.ssh.is_empty());
    if facts.devices.is_empty() {
        return one(Level::Ok, What::Memlock { soft, is_needed: false });
    }
    if soft < USELESS_BYTES {
        return one(Level::Failure, What::MemlockNone { soft, hard, is_ssh });
    }
    if soft < WANTED_BYTES.max(RECOMMENDED_BYTES) {
        return one(Level::Warning, What::MemlockSmall { soft, hard, wanted: WANTED_BYTES, is_ssh });
    }
    one(Level::Ok, What::Memlock { soft, is_needed: true })
}

pub(super) fn registration(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &facts.devices {
        let Some(done) = &device.registration else { continue };
        let (level, what) = if done.bytes >= done.wanted_bytes {
            (Level::Ok, What::Registered { bytes: done.bytes, micros: done.micros })
        } else if done.bytes > 0 {
            let (bytes, wanted, reason) = (done.bytes, done.wanted_bytes, done.reason.clone());
            (Level::Warning, What::RegisteredLess { bytes, wanted, reason })
        } else {
            (Level::Failure, What::NotRegistered { wanted: done.wanted_bytes, reason: done.reason.clone() })
        };
        findings.push(Finding::about("registration", &device.name, level, what));
    }
    let has_mlx4 = facts.devices.iter().any(|device| device.driver == "mlx4_core");
    if let Some(bytes) = facts.mlx4_bytes.filter(|bytes| has_mlx4 && bytes >> 10 < facts.memory_kib) {
        let what = What::Mlx4Small { bytes, memory_kib: facts.memory_kib };
        findings.push(Finding::new("registration", Level::Warning, what));
    }
    findings
}

pub(super) fn huge_pages(facts: &Facts) -> Vec<Finding> {
    let huge = &facts.huge;
    let what = What::HugePages {
        total: huge.total,
        free: huge.free,
        size_kib: huge.size_kib,
        transparent: huge.transparent.clone(),
    };
    vec![Finding::new("hugepages", Level::Ok, what)]
}
