//! Checks of memory: how much may be locked, and how much can be registered.

use super::of_machine;
use crate::measure::facts::Facts;
use crate::measure::finding::{Finding, Fix};
use crate::measure::gather::WANTED_BYTES;
use crate::measure::words::{gib, joined, phrase, time};

/// Locked memory in bytes below which the original programs did not start. This program uses a smaller pool instead.
const RECOMMENDED_BYTES: u64 = 16_500 << 10;

/// Locked memory in bytes below which a session does not use RDMA: the smallest pool, and what its lanes lock.
const USELESS_BYTES: u64 = 5 << 20;

/// Allows programs to lock as much memory as they ask for, from the next login on.
const MEMLOCK_FIX: &str = "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' >/etc/security/limits.d/zz-rdma-pipe.conf # then log in again";

/// The same for sessions started by sshd, which may ignore the limits. The file of sshd must not be created: some
/// systems have theirs elsewhere, and a file with only this line would replace it, so that nobody could log in.
const MEMLOCK_FIX_SSH: &str = "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' >/etc/security/limits.d/zz-rdma-pipe.conf; \
    [ ! -f /etc/pam.d/sshd ] || grep -q pam_limits.so /etc/pam.d/sshd || \
    printf 'session required pam_limits.so\\n' >>/etc/pam.d/sshd # then log in again";

fn kilobytes(bytes: u64) -> String {
    format!("{} kB", bytes >> 10)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Returns how to raise the limit on locked memory.
fn raise_limit(facts: &Facts) -> Fix {
    if facts.is_container {
        Fix::advice("start the container with --ulimit memlock=-1; in Kubernetes, add the capability IPC_LOCK")
    } else if facts.ssh.is_empty() {
        Fix::command(MEMLOCK_FIX)
    } else {
        Fix::command(MEMLOCK_FIX_SSH)
    }
}

pub(super) fn memlock(facts: &Facts) -> Vec<Finding> {
    vec![limit(facts)]
}

fn limit(facts: &Facts) -> Finding {
    let Some(limit) = facts.memlock else {
        return Finding::well("memlock", "memlock-unknown", "the system does not report the limit");
    };
    // siw counts what root locks as well.
    let is_free = facts.is_root && !facts.devices.iter().any(|device| device.name.starts_with("siw"));
    let Some(soft) = limit.soft.filter(|_| !is_free) else {
        let found = if limit.soft.is_some() { "no limit for this user" } else { "unlimited" };
        return Finding::well("memlock", "memlock-unlimited", found);
    };
    if facts.devices.is_empty() {
        return Finding::well("memlock", "memlock", format!("{}; only RDMA needs more", kilobytes(soft)));
    }
    if soft >= WANTED_BYTES.max(RECOMMENDED_BYTES) {
        return Finding::well("memlock", "memlock", kilobytes(soft));
    }
    let session = if facts.ssh.is_empty() { "" } else { " in an ssh session" };
    let hard = match limit.hard {
        Some(hard) if hard == soft => String::new(),
        Some(hard) => format!(", hard limit {}", kilobytes(hard)),
        None => ", hard limit unlimited: `ulimit -l unlimited` raises it for a shell".to_owned(),
    };
    let found = format!("{}{session}{hard}", kilobytes(soft));
    if soft < USELESS_BYTES {
        let why = "too little for RDMA, which locks its memory (at least 5120 kB, better 16500 kB); data goes over TCP";
        return Finding::failure("memlock", "memlock-none", found, why, raise_limit(facts));
    }
    let found = format!("{found}; {} recommended", kilobytes(WANTED_BYTES));
    let why = if soft < RECOMMENDED_BYTES {
        "below 16500 kB, the buffer pool for RDMA is so small that throughput drops"
    } else {
        "the buffer pool for RDMA is smaller than it should be"
    };
    Finding::warning("memlock", "memlock-small", found, why, raise_limit(facts))
}

pub(super) fn registration(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &facts.devices {
        let Some(done) = &device.registration else { continue };
        let (bytes, wanted, reason) = (mebibytes(done.bytes), mebibytes(done.wanted_bytes), &done.reason);
        let finding = if done.bytes >= done.wanted_bytes {
            Finding::well("registration", "registered", format!("{bytes} in {}", time(done.micros)))
        } else if done.bytes > 0 {
            Finding::warning(
                "registration",
                "registered-less",
                format!("{bytes} of {wanted}: {reason}"),
                "the buffer pool for RDMA shrinks to that size",
                raise_limit(facts),
            )
        } else {
            Finding::failure(
                "registration",
                "not-registered",
                format!("none of {wanted}: {reason}"),
                "RDMA cannot be used, and data goes over TCP",
                if reason.contains("locked memory") {
                    raise_limit(facts)
                } else {
                    Fix::advice("check the kernel log: dmesg | grep -i -e infiniband -e mlx")
                },
            )
        };
        findings.push(finding.about(&device.name));
    }
    let has_mlx4 = facts.devices.iter().any(|device| device.driver == "mlx4_core");
    if let Some(bytes) = facts.mlx4_bytes.filter(|bytes| has_mlx4 && bytes >> 10 < facts.memory_kib) {
        findings.push(Finding::warning(
            "registration",
            "mlx4-small",
            format!("mlx4 can register {} of {}", gib(bytes >> 10), gib(facts.memory_kib)),
            "programs that register a lot of memory fail",
            enlarge_mlx4(facts),
        ));
    }
    findings
}

/// Returns how to make the translation table of mlx4 large enough for twice the memory, as the driver's own default is.
/// The file sorts after those in which the module's options usually are, and keeps them.
fn enlarge_mlx4(facts: &Facts) -> Fix {
    let kib = facts.memory_kib.saturating_mul(2).max(1);
    // The logarithm, rounded up. A page has 4 KiB, and the driver takes 2^31 of them at most.
    let log_pages = (u64::BITS - (kib - 1).leading_zeros()).saturating_sub(2).min(31);
    let command = format!(
        "echo \"options mlx4_core log_num_mtt=$(({log_pages} - $(cat /sys/module/mlx4_core/parameters/log_mtts_per_seg)))\" \
         >/etc/modprobe.d/zz-rdma-pipe.conf # then restart"
    );
    of_machine(facts, command)
}

pub(super) fn huge_pages(facts: &Facts) -> Vec<Finding> {
    let huge = &facts.huge;
    let reserved = if huge.total == 0 {
        "none reserved".to_owned()
    } else {
        format!("{} of {} free, {} each", huge.free, huge.total, mebibytes(huge.size_kib << 10))
    };
    let parts = [reserved, phrase("transparent:", &huge.transparent), "none needed".to_owned()];
    vec![Finding::well("hugepages", "huge-pages", joined(parts, ", "))]
}
