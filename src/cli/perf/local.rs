//! Measurements that need no other host: storage, memory, the model.

use std::ffi::OsStr;
use std::path::Path;

use rd_proto::control::IoFact;

use super::PerfArguments;
use crate::agent::words;
use crate::fault::{Exit, Failure};
use crate::measure::disk::{self, Action, Settings};
use crate::measure::mem;
use crate::measure::model::Adapter;
use crate::measure::report::Report;

/// Maximum number of threads that copy memory.
const THREADS_MAX: u32 = 64;

pub(super) fn storage(arguments: &PerfArguments, path: &OsStr) -> Result<Report, Failure> {
    let load = &arguments.load;
    let settings = Settings {
        duration: load.duration,
        bytes: load.size.map(|bytes| bytes as usize),
        depth: load.depth.map(u32::from),
    };
    if settings.bytes.is_some_and(|bytes| bytes < 4096) {
        return Err(Exit::Usage.with("the block size of disk must be at least 4K"));
    }
    let rows = disk::measure(Path::new(path), settings, |row| {
        if arguments.output.verbose {
            crate::cli::say(&format!(
                "rdperf: {} {} bytes, depth {}: {:.0} IOPS",
                row.action, row.bytes, row.depth, row.iops
            ));
        }
    });
    Ok(Report { disk: rows.map_err(failed)?, ..Report::new() })
}

/// Returns the failure for storage of this host that cannot be read or written.
pub(super) fn failed((action, fact): (Action, IoFact)) -> Failure {
    match action {
        Action::Read => words::source(&fact),
        Action::Write => words::destination(&fact),
    }
}

pub(super) fn memory(arguments: &PerfArguments) -> Report {
    Report { memory: mem::copies(threads(), arguments.load.duration), ..Report::new() }
}

/// Returns one thread for each processor, up to [`THREADS_MAX`].
pub(super) fn threads() -> u32 {
    (crate::processors() as u32).min(THREADS_MAX)
}

pub(super) fn model(arguments: &PerfArguments) -> Report {
    let options = &arguments.model;
    let mut adapter = Adapter::with_left_at_3000(options.left);
    if let Some(sram_bytes) = options.sram {
        adapter.sram_bytes = sram_bytes as f64;
    }
    Report { model: Some(adapter.report(options.clients)), ..Report::new() }
}
