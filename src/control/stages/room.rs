//! Whether a host has room for its share of a pipeline.
//!
//! Each end of a hop takes some threads, and each thread takes some memory mappings. If these run out while threads are
//! being created, some failures are not returned as errors: a thread that cannot map its signal stack ends the process.
//! So the need is computed before anything is started.

use std::fs;
use std::path::Path;

use nix::sys::resource::Resource;
use rustix::process::geteuid;

use crate::fs::group_limits;
use crate::limits;

/// Number of ends that are never refused. If a limit is lower than that, the operation that fails reports it.
const FEW: u64 = 64;

/// Mappings of one thread: its stack and its signal stack, each with a guard page.
const THREAD_MAPPINGS: u64 = 4;

/// Mappings of one end besides those of its threads: its pool, and what the allocator maps by itself.
const END_MAPPINGS: u64 = 4;

/// Descriptors of one end: two lanes, a listener, a pipe, and files that are open only briefly.
const END_FILES: u64 = 8;

/// Threads and processes of one stage: this program's thread, the guard's two, a shell and the command that it runs.
const STAGE_TASKS: u64 = 5;

/// Fraction of what a limit leaves that a pipeline may take.
const SHARE: (u64, u64) = (7, 8);

/// A host's share of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Number of stages that run on the host.
    pub stages: usize,
    /// Number of ends of hops.
    pub ends: usize,
    /// Maximum number of threads of each end.
    pub threads: usize,
}

/// A kind of resource that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mappings,
    Tasks,
    Files,
}

/// The name of a limit, the resource it applies to, and how much it leaves.
type Left = (&'static str, Kind, u64);

impl Share {
    /// Returns a sentence why this host has no room for the share; `None` if it has room.
    pub fn is_too_much(&self) -> Option<String> {
        (self.ends as u64 > FEW).then(|| self.refusal(&left(Path::new("/")))).flatten()
    }

    fn refusal(&self, left: &[Left]) -> Option<String> {
        let Self { stages, ends, .. } = self;
        let (what, name, need, left) = left.iter().find_map(|&(name, kind, left)| {
            let (what, need) = self.need(kind);
            (need > left / SHARE.1 * SHARE.0).then_some((what, name, need, left))
        })?;
        Some(format!(
            "too many stages on one host: {stages} stages with {ends} connection ends need up to {need} {what}, but \
             {name} leaves {left}; spread them over more hosts, run several in one shell, or raise the limit"
        ))
    }

    fn need(&self, kind: Kind) -> (&'static str, u64) {
        let (stages, ends, threads) = (self.stages as u64, self.ends as u64, self.threads as u64);
        match kind {
            Kind::Mappings => ("memory mappings", (ends * threads + stages) * THREAD_MAPPINGS + ends * END_MAPPINGS),
            Kind::Tasks => ("threads and processes", ends * threads + stages * STAGE_TASKS),
            Kind::Files => ("open files", ends * END_FILES + stages),
        }
    }
}

/// Returns what the limits of this process leave. `root` is the directory that contains proc and sys.
fn left(root: &Path) -> Vec<Left> {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let number = |path: &str| text(path).trim().parse::<u64>().ok();
    let mut left = Vec::new();
    if let Some(most) = limits::soft(Resource::RLIMIT_NOFILE) {
        left.push(("the limit on open files (ulimit -n)", Kind::Files, most));
    }
    if let Some(most) = number("proc/sys/vm/max_map_count") {
        let used = text("proc/self/maps").lines().count() as u64;
        left.push(("vm.max_map_count", Kind::Mappings, most.saturating_sub(used)));
    }
    // proc_loadavg(5): the fourth field is the number of running tasks and of all tasks.
    let loads = text("proc/loadavg");
    let tasks = loads.split(' ').nth(3).and_then(|field| field.split('/').nth(1)?.parse().ok()).unwrap_or(0);
    for (path, name) in
        [("proc/sys/kernel/threads-max", "kernel.threads-max"), ("proc/sys/kernel/pid_max", "kernel.pid_max")]
    {
        left.extend(number(path).map(|most| (name, Kind::Tasks, most.saturating_sub(tasks))));
    }
    for (group, most) in group_limits(root, "pids", ["pids.max"; 2]) {
        let used = fs::read_to_string(group.join("pids.current")).ok().and_then(|used| used.trim().parse().ok());
        left.push(("the control group's pids.max", Kind::Tasks, most.saturating_sub(used.unwrap_or(0))));
    }
    // The limit does not bind root. The user's other processes are not counted, because the system does not say how
    // many there are.
    if let Some(most) = limits::soft(Resource::RLIMIT_NPROC).filter(|_| !geteuid().is_root()) {
        left.push(("the limit on processes (ulimit -u)", Kind::Tasks, most));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_and_what_is_used_is_taken_off() {
        let root = tempfile::tempdir().expect("a directory");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
            fs::write(path, text).expect("a file");
        };
        put("proc/sys/vm/max_map_count", "65530\n");
        put("proc/self/maps", "one\ntwo\n");
        put("proc/loadavg", "0.1 0.2 0.3 2/300 12345\n");
        put("proc/sys/kernel/threads-max", "9000\n");
        put("proc/self/cgroup", "0::/a\n");
        put("sys/fs/cgroup/a/pids.max", "500\n");
        put("sys/fs/cgroup/a/pids.current", "100\n");
        put("sys/fs/cgroup/pids.max", "max\n");
        let left = left(root.path());
        for wanted in [
            ("vm.max_map_count", Kind::Mappings, 65_528),
            ("kernel.threads-max", Kind::Tasks, 8_700),
            ("the control group's pids.max", Kind::Tasks, 400),
        ] {
            assert!(left.contains(&wanted), "{wanted:?} in {left:?}");
        }
        assert!(!left.iter().any(|(name, ..)| *name == "kernel.pid_max"), "{left:?}");
    }

    #[test]
    fn a_thousand_stages_are_refused_by_what_they_need() {
        let maps = [("vm.max_map_count", Kind::Mappings, 65_000)];
        let share = |stages| Share { stages, ends: 2 * stages, threads: 12 };
        assert_eq!(share(500).refusal(&maps), None);
        let line = share(1000).refusal(&maps).expect("refused");
        assert!(line.contains("1000 stages") && line.contains("108000") && line.contains("vm.max_map_count"), "{line}");
        for (kind, enough) in [(Kind::Tasks, 40_000), (Kind::Files, 25_000)] {
            assert_eq!(share(1000).refusal(&[("l", kind, enough)]), None);
            assert!(share(1000).refusal(&[("l", kind, enough / 2)]).is_some());
        }
    }
}
