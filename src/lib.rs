//! rdma-pipe: pipes, files and pipelines between hosts, at the link's speed.
//!
//! The layers, each of which names only layers to its right: `cli` → `job` → `agent` → `control`, `engine`, `measure` →
//! `transport`, `tree` → `fs` → `rd_proto`. See `docs/ARCHITECTURE.md`.

mod agent;
pub mod cli;
pub mod control;
pub mod engine;
mod fault;
pub mod fs;
mod job;
mod limits;
pub mod log;
pub mod measure;
#[cfg(test)]
#[path = "../tests/rig/not_run.rs"]
mod not_run;
pub mod options;
mod signals;
mod standard_error;
pub mod transport;
pub mod tree;

/// Number of processors that this process may use, at least one. The system is asked only once, because the answer
/// takes a dozen system calls.
fn processors() -> usize {
    static PROCESSORS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Locks a mutex under which nothing panics.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no panics under it")
}

/// Starts a thread.
fn spawn<T: Send + 'static>(
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(stack_bytes).spawn(body)
}
