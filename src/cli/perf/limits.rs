//! `rdperf HOST[:PATH] limits`: measures the stages that a copy passes through, and finds the slowest.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::wire::{self, Session, bandwidth};
use super::{PerfArguments, Target, local};
use crate::engine::perf::frames::Load;
use crate::fault::Failure;
use crate::measure::disk::{self, Action};
use crate::measure::mem;
use crate::measure::report::{Limits, MIB, Report, Stage};
use crate::transport::Medium;

/// Size of an operation in bytes: a copy's chunk.
const CHUNK_BYTES: u32 = 1 << 20;

/// Number of connections that a copy makes, over TCP and over RDMA.
const TCP_LANES: u32 = 2;
const RDMA_LANES: u32 = 1;

pub(super) fn measure(arguments: &PerfArguments, target: &Target, path: &OsStr) -> Result<Report, Failure> {
    let load = &arguments.load;
    // The other end is reached first, so that nothing is measured in vain.
    let mut session = wire::open(arguments, target, load.settings(load.qp.unwrap_or(TCP_LANES), CHUNK_BYTES))?;
    let connections = load.qp.unwrap_or(match session.driver.medium() {
        Medium::Tcp => TCP_LANES,
        _ => RDMA_LANES,
    });
    session.grow(connections)?;
    let mut stages = Vec::new();
    let mut add = |stage: Stage| {
        if arguments.output.verbose {
            crate::cli::say(&format!("rdperf: {}: {}", stage.name, rate_of(&stage)));
        }
        stages.push(stage);
    };
    add(wire_stage(arguments, &mut session, connections)?);
    let report = Report { wire: Some(session.wire(arguments, connections)), ..Report::new() };
    let Session { driver, mut launched, .. } = session;
    driver.close();
    add(memory_stage(load.duration));
    add(source_stage(&arguments.source, load.duration)?);
    if let Some(launched) = &mut launched {
        let storage = launched.storage(path, true, load.duration)?;
        let what = format!("{}:{}", launched.label(), path.to_string_lossy());
        let cached = if storage.direct { "" } else { ", through the page cache" };
        let iops = storage.micro_iops as f64 / 1e6;
        add(stage("sink", format!("{what}{cached}"), iops, storage.bytes, storage.depth));
    }
    // In the order in which data passes through the stages.
    let order = ["source", "memory", "wire", "sink"];
    stages.sort_by_key(|stage| order.iter().position(|name| *name == stage.name));
    let limits = judge(stages, launched.is_some());
    Ok(Report { limits: Some(limits), ..report })
}

/// Makes a stage. `operations_s` is the rate of all parallel operations together.
fn stage(name: &str, what: String, operations_s: f64, bytes: u64, parallel: u32) -> Stage {
    Stage {
        name: name.to_owned(),
        what,
        mib_s: operations_s * bytes as f64 / MIB,
        operations_s: operations_s / f64::from(parallel.max(1)),
        bytes,
        parallel,
    }
}

fn wire_stage(arguments: &PerfArguments, session: &mut Session, connections: u32) -> Result<Stage, Failure> {
    let run = arguments.load.run(Load::Stream, CHUNK_BYTES);
    let row = bandwidth(run, &session.run(run, None)?);
    Ok(stage("wire", session.driver.describe(), row.rate_mpps * 1e6, CHUNK_BYTES.into(), connections))
}

fn memory_stage(duration: Duration) -> Stage {
    // As many threads as a copy has workers.
    let row = mem::copies_with(local::threads().clamp(2, 8), duration);
    let what = match row.threads {
        1 => "copies by 1 thread".to_owned(),
        threads => format!("copies by {threads} threads"),
    };
    stage("memory", what, row.mib_s * MIB / f64::from(CHUNK_BYTES), CHUNK_BYTES.into(), row.threads)
}

fn source_stage(path: &Path, duration: Duration) -> Result<Stage, Failure> {
    let row = disk::throughput(path, Action::Read, duration).map_err(local::failed)?;
    let cached = if row.direct { "" } else { ", through the page cache" };
    Ok(stage("source", format!("{}{cached}", row.path), row.iops, row.bytes, row.depth))
}

/// Finds the slowest stage and describes it in a sentence.
fn judge(stages: Vec<Stage>, has_sink: bool) -> Limits {
    let mut by_rate: Vec<&Stage> = stages.iter().collect();
    by_rate.sort_by(|one, other| one.mib_s.total_cmp(&other.mib_s));
    let mut sentence = String::new();
    if let Some(slowest) = by_rate.first() {
        sentence = format!(
            "The {} is the limit: {:.1} operations/s x {} x {} at a time = {}.",
            slowest.name,
            slowest.operations_s,
            size(slowest.bytes),
            slowest.parallel,
            rate_of(slowest)
        );
        if let Some(next) = by_rate.get(1) {
            sentence += &format!(" Next is the {}, {}.", next.name, rate_of(next));
        }
    }
    if !has_sink {
        sentence += " The sink was not measured: rdperf serve writes no files for others.";
    }
    let limit = by_rate.first().map(|stage| stage.name.clone()).unwrap_or_default();
    Limits { stages, limit, sentence }
}

/// In the unit of the table above the sentence.
fn rate_of(stage: &Stage) -> String {
    format!("{} MiB/s", stage.rate())
}

fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_spells_the_product_out() {
        let stages = vec![
            stage("source", "/data".to_owned(), 3000.0, 1 << 20, 8),
            stage("wire", "TCP".to_owned(), 2000.0, 1 << 20, 2),
            stage("sink", "h:/srv".to_owned(), 800.0, 1 << 20, 8),
        ];
        let limits = judge(stages, true);
        assert_eq!(limits.limit, "sink");
        assert_eq!(
            limits.sentence,
            "The sink is the limit: 100.0 operations/s x 1 MiB x 8 at a time = 800 MiB/s. Next is the wire, 2000 MiB/s."
        );
        let slow = judge(vec![stage("wire", "TCP".to_owned(), 0.5, 1 << 20, 1)], true);
        assert!(slow.sentence.ends_with(" = 0.50 MiB/s."), "{}", slow.sentence);
        let text = Report { limits: Some(limits), ..Report::new() }.to_text();
        let rate = text.lines().find_map(|line| line.trim_start().strip_prefix("sink")).expect("its row");
        assert_eq!(rate.split_whitespace().next(), Some("800"), "as in the sentence");
        assert!(judge(Vec::new(), false).sentence.contains("sink was not measured"));
    }
}
