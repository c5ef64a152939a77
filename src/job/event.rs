//! Events of a job, as `--json` prints them: JSON objects, one per line. These types are their definition:
//! `docs/report.schema.json` is generated from them.

use rd_proto::session::{Counters, Notice as SessionNotice};
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::frames::Kind;
use crate::engine::{self, Figures, Waits};
use crate::fault::{Exit, Failure, Site};
use crate::tree::progress::Amount;
use crate::tree::stats::TreeFigures;

mod hosts;

pub use hosts::{HeldUp, HeldUpBy, Host, HostRate, Hosts, Job};

/// The version of the schema. Within a version, keys may be added, but no key is removed or changes its meaning.
pub const SCHEMA: u32 = 1;

/// One line of the output.
#[derive(Serialize, JsonSchema)]
pub struct Line<'a> {
    /// The version of this schema, 1. Keys and events may be added within a version: ignore those that you do not know.
    schema: u32,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

impl<'a> Line<'a> {
    /// Makes the line for `event`.
    pub fn new(event: &'a Event<'a>) -> Self {
        Self { schema: SCHEMA, event }
    }
}

/// An event.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// rdcp -n: a source, and where it would be copied.
    WouldCopy(WouldCopy),
    /// rdpipe -n: what would be run, and which way the data would go.
    WouldRun(WouldRun),
    /// rdcp, every second: progress of the copy.
    Progress(Progress),
    /// rdcp: a change of its connections.
    Notice(Notice<'a>),
    /// rdcp: an entry that is not copied in full, while others are. rdpipe: one of several hosts that failed.
    Failed(Failed<'a>),
    /// rdcp: one host's sources were copied. To several hosts, each number is the largest; `failed` counts all hosts.
    Copied(Copied),
    /// rdcp to several hosts: the name by which rdcp --join adds a host.
    Job(Job),
    /// rdcp and rdpipe to several hosts: the state of a host has changed, or the host that sends to it.
    Host(Host),
    /// rdcp and rdpipe to several hosts, every second: progress of all hosts.
    Hosts(Hosts),
    /// rdcp --check: an entry that differs from the manifest.
    Differs(Differs),
    /// The last line: the outcome of the command.
    End(End<'a>),
}

/// A path on a host, or a host as a whole.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct At {
    /// The host as the command line names it; null for the host that the command runs on.
    pub host: Option<String>,
    /// The path; `-` for a standard stream, empty for a host as a whole. Bytes that are not UTF-8 appear as U+FFFD.
    pub path: String,
    /// The bytes of the path in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
}

impl At {
    /// Describes a path on a host. `host` is empty for this host.
    pub fn new(host: &std::ffi::OsStr, path: &[u8]) -> Self {
        let host = (!host.is_empty()).then(|| host.to_string_lossy().into_owned());
        let hex = || path.iter().map(|byte| format!("{byte:02x}")).collect();
        let path_hex = std::str::from_utf8(path).is_err().then(hex);
        Self { host, path: String::from_utf8_lossy(path).into_owned(), path_hex }
    }
}

/// A source that a dry run would copy.
#[derive(Serialize, JsonSchema)]
pub struct WouldCopy {
    /// The source.
    pub from: At,
    /// The name that the source would get.
    pub to: At,
    /// The kind of the source.
    pub kind: EntryKind,
    /// Size of a regular file in bytes; null for other kinds.
    pub bytes: Option<u64>,
}

/// The kind of a source.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, device, socket or standard stream.
    Other,
}

impl From<Kind> for EntryKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::File => Self::File,
            Kind::Directory => Self::Directory,
            Kind::Symlink => Self::Symlink,
            Kind::Other | Kind::Block => Self::Other,
        }
    }
}

/// A pipeline that a dry run would run.
#[derive(Serialize, JsonSchema)]
pub struct WouldRun {
    /// Parts, whose stages run at the same time. Each part begins when the part before it has finished.
    pub parts: Vec<PlannedPart>,
    /// Hosts on which an agent would be started.
    pub agents: Vec<String>,
}

/// A part of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct PlannedPart {
    /// The stages of the part.
    pub stages: Vec<PlannedStage>,
    /// The hops of the part.
    pub hops: Vec<PlannedHop>,
}

/// A stage of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct PlannedStage {
    /// The host of the stage; `localhost` for the host that the command runs on.
    pub host: String,
    /// What the stage does.
    pub action: StageAction,
    /// The text of the stage.
    pub command: String,
}

/// What a stage does.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StageAction {
    /// A shell runs the stage's command.
    Run,
    /// A file is read, without a command.
    Read,
    /// A file is written, without a command.
    Write,
    /// Files are written and the data is passed on, without a command.
    Tee,
}

/// The path of the data from one host to the next.
#[derive(Serialize, JsonSchema)]
pub struct PlannedHop {
    /// The sending host.
    pub from: String,
    /// The stage on the sending host; null for standard input.
    pub from_command: Option<String>,
    /// The receiving host.
    pub to: String,
    /// The stage on the receiving host; null for standard output.
    pub to_command: Option<String>,
    /// The host that listens.
    pub listener: String,
    /// The first and the last port that it may listen on; null if it takes any free port.
    pub ports: Option<[u16; 2]>,
    /// Whether the data goes through the launcher's connections instead.
    pub through_launcher: bool,
}

/// Progress of a copy.
#[derive(Default, Serialize, JsonSchema)]
pub struct Progress {
    /// Bytes of files that are at the destination, including those that were there before.
    pub bytes: u64,
    /// Bytes of all files found so far; null if not known.
    pub bytes_total: Option<u64>,
    /// Number of files and other entries copied; null if not known.
    pub entries: Option<u64>,
    /// Number of entries found so far; null if not known.
    pub entries_total: Option<u64>,
    /// Whether the totals are final, because everything has been found.
    pub totals_final: bool,
    /// The rate over the last seconds, in bytes per second; null if not known.
    pub bytes_per_second: Option<f64>,
    /// Seconds left at this rate; null if not known.
    pub seconds_left: Option<u64>,
}

/// A change of the connections of a copy.
#[derive(Serialize, JsonSchema)]
pub struct Notice<'a> {
    /// What has changed.
    pub notice: NoticeCode,
    /// For `lane-lost`: the index of the connection, and how often it had been replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<[u32; 2]>,
    /// The reason, for a person; null if not known.
    pub reason: Option<&'a str>,
}

/// A change of connections.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeCode {
    /// RDMA cannot be used; the data continues over TCP.
    FellBack,
    /// The data goes over RDMA again.
    BackOnRdma,
    /// One connection is lost.
    LaneLost,
    /// All connections are lost; --reconnect says how long to try to restore them.
    LinkLost,
    /// There is a connection again.
    LinkRestored,
    /// One of several paths between the hosts has failed; `reason` names it. The others carry the data.
    RailLeft,
    /// One of several paths between the hosts has become too slow; `reason` names it. The others carry the data.
    RailSlow,
    /// The path that had failed or was too slow is used again.
    RailBack,
}

impl<'a> Notice<'a> {
    /// Makes the event for a session's notice.
    pub fn new(notice: SessionNotice, reason: Option<&'a str>) -> Self {
        let (code, lane) = match notice {
            SessionNotice::FellBack => (NoticeCode::FellBack, None),
            SessionNotice::BackOnRdma => (NoticeCode::BackOnRdma, None),
            SessionNotice::LaneLost(lane) => (NoticeCode::LaneLost, Some([lane.index.into(), lane.generation])),
            SessionNotice::LinkLost => (NoticeCode::LinkLost, None),
            SessionNotice::LinkRestored => (NoticeCode::LinkRestored, None),
            SessionNotice::RailLeft(..) => (NoticeCode::RailLeft, None),
            SessionNotice::RailSlow(..) => (NoticeCode::RailSlow, None),
            SessionNotice::RailBack(..) => (NoticeCode::RailBack, None),
        };
        Self { notice: code, lane, reason }
    }
}

/// What went wrong, and where.
#[derive(Serialize, JsonSchema)]
pub struct Error {
    /// The kind of failure.
    #[schemars(extend("enum" = Exit::names()))]
    pub code: &'static str,
    /// The exit code for this kind of failure.
    pub exit: u8,
    /// The file, or the host that cannot be reached or was lost; null if the failure concerns neither.
    pub at: Option<At>,
    /// The Linux error number; null if there is none.
    pub errno: Option<i32>,
}

impl Error {
    fn new(failure: &Failure) -> Self {
        let site: Option<&Site> = failure.site.as_deref();
        Self {
            code: failure.exit.name(),
            exit: failure.exit.code(),
            at: site.map(|site| At::new(&site.host, &site.path)),
            errno: site.map(|site| site.errno).filter(|&errno| errno != 0),
        }
    }
}

/// An entry that is not copied in full, or a host that failed.
#[derive(Serialize, JsonSchema)]
pub struct Failed<'a> {
    #[serde(flatten)]
    error: Error,
    /// The error message for a person.
    reason: &'a str,
}

impl<'a> Failed<'a> {
    /// Makes the event for a failure.
    pub fn new(failure: &'a Failure) -> Self {
        Self { error: Error::new(failure), reason: failure.message.as_deref().unwrap_or_default() }
    }
}

/// An entry that differs from the manifest.
#[derive(Serialize, JsonSchema)]
pub struct Differs {
    /// The entry.
    pub at: At,
    /// The differences: `missing`, `extra`, `type`, `mode`, `size`, `mtime`, `target`, `device`, `contents`.
    pub differs: Vec<&'static str>,
}

/// Sources of one host that have been copied.
#[derive(Serialize, JsonSchema)]
pub struct Copied {
    /// The host of the sources; `this host` for the host that the command runs on.
    pub from: String,
    /// Number of files, directories and other entries that are at the destination now.
    pub entries: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
    /// Bytes of large files that were not sent, because an earlier copy had left them at the destination.
    pub kept_bytes: u64,
    /// Number of entries, other than directories, that were already there and the same (without `--sync`: files).
    pub same: u64,
    /// Number of entries deleted: `--delete`.
    pub deleted: u64,
    /// Number of files not sent because they were at the destination under other names: `--find-moves`.
    pub moved: u64,
    /// Total size of all files and links at the source, including those of which nothing was sent.
    pub size_bytes: u64,
    /// Number of entries that are not at the destination, or not in full.
    pub failed: u64,
    /// How far the data has reached.
    pub level: Level,
    /// Whether nothing was done, so that all numbers say what would have been done: `-n` with `--sync`.
    pub dry_run: bool,
}

impl Copied {
    /// Makes the event for the files and trees of one host.
    pub fn new(from: String, tree: &TreeFigures, dry_run: bool) -> Self {
        let &TreeFigures { amount, kept_bytes, same, deleted, moved, size_bytes, failed, .. } = tree;
        let Amount { entries, bytes, .. } = amount;
        let level = match (tree.is_read_back, tree.is_synced) {
            (true, _) => Level::ReRead,
            (false, true) => Level::Synced,
            (false, false) => Level::Written,
        };
        Self { from, entries, bytes, kept_bytes, same, deleted, moved, size_bytes, failed, level, dry_run }
    }
}

/// How far the data has reached.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The kernel has accepted the data.
    Written,
    /// The data is on disk (`--fsync`).
    Synced,
    /// The data is on disk, and has been read back from there and compared (`--verify=disk`).
    ReRead,
}

/// The outcome of a command.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum End<'a> {
    /// For all commands except rdpipe.
    Transfer(Box<Transfer<'a>>),
    /// For rdpipe.
    Pipeline(Pipeline<'a>),
}

impl End<'_> {
    /// How the command ended.
    pub(crate) fn result(&self) -> &Result<'_> {
        match self {
            Self::Transfer(transfer) => &transfer.result,
            Self::Pipeline(pipeline) => &pipeline.result,
        }
    }
}

/// How a command ended.
#[derive(Serialize, JsonSchema)]
pub struct Result<'a> {
    /// The exit code of the command.
    pub exit: u8,
    /// The error message for a person; null if nothing went wrong.
    pub error: Option<&'a str>,
    /// What went wrong, and where; null if nothing did.
    pub failure: Option<Error>,
}

impl<'a> Result<'a> {
    /// Makes the result. `failure`: `None` if nothing went wrong.
    pub fn new(failure: Option<&'a Failure>) -> Self {
        Self {
            exit: failure.map_or(0, |failure| failure.exit.code()),
            error: failure.and_then(|failure| failure.message.as_deref()),
            failure: failure.map(Error::new),
        }
    }
}

/// The outcome of a stream or a copy.
#[derive(Serialize, JsonSchema)]
pub struct Transfer<'a> {
    #[serde(flatten)]
    pub(crate) result: Result<'a>,
    /// Bytes sent; for a copy, by all its sessions.
    pub bytes: u64,
    /// Seconds from the first connection to the end.
    pub seconds: f64,
    /// The average rate, in 10^9 bytes per second.
    pub gb_per_s: f64,
    /// `tcp`, `rdma` or `rdma-software`, joined by `+` if it changed; empty for a copy within a host.
    pub transport: String,
    /// Maximum number of connections that carried data at once.
    pub lanes: usize,
    /// Number of networks (pairs of addresses) used by TCP connections; of several sessions, the maximum.
    pub rails: usize,
    /// The shortest round trip that the system measured on a TCP connection; null if there was none.
    pub round_trip_ms: Option<f64>,
    /// How much of the buffer could be in use at once: more than at the start if the line holds more.
    pub buffer_bytes: u64,
    /// Whether all data was encrypted.
    pub encrypted: bool,
    /// Number of chunks sent again because they were damaged or lost.
    pub retries: u64,
    /// Number of chunks sent again after a lost connection.
    pub replayed_chunks: u64,
    /// Number of chunks that did not match their checksum.
    pub corrupt_chunks: u64,
    /// Bytes of files read past the page cache.
    pub read_direct_bytes: u64,
    /// Bytes of files read from the page cache.
    pub read_cached_bytes: u64,
    /// Bytes of files written past the page cache.
    pub written_direct_bytes: u64,
    /// Bytes of files written through the page cache.
    pub written_buffered_bytes: u64,
    /// Seconds spent waiting, by cause.
    pub wait_seconds: WaitSeconds,
    /// What was waited for most; null if nothing was sent.
    pub limiter: Option<Limiter>,
}

/// Seconds spent waiting, by cause.
#[derive(Serialize, JsonSchema)]
pub struct WaitSeconds {
    /// Waiting for the file or program that is read.
    pub source: f64,
    /// Waiting for processors.
    pub cpu: f64,
    /// Waiting for room at the receiver.
    pub credits: f64,
    /// Waiting for the network.
    pub wire: f64,
    /// Waiting for the file or program that is written.
    pub sink: f64,
    /// Waiting because of --bwlimit.
    pub limit: f64,
}

impl WaitSeconds {
    fn new(waits: Waits) -> Self {
        let [source, cpu, credits, wire, sink, limit] = waits.to_array().map(rounded);
        Self { source, cpu, credits, wire, sink, limit }
    }
}

/// What limited a transfer.
#[derive(Serialize, JsonSchema)]
pub struct Limiter {
    /// The cause: a key of `wait_seconds`.
    pub name: &'static str,
    /// The share of the time spent waiting for it, 0 to 1.
    pub share: f64,
    /// The rate that this part would allow by itself, in 10^9 bytes per second.
    pub ceiling_gb_per_s: f64,
}

impl<'a> Transfer<'a> {
    /// Makes the outcome of a transfer.
    pub fn new(figures: &Figures, failure: Option<&'a Failure>) -> Self {
        let Counters { bytes, retries, replayed, corrupt, .. } = figures.counters;
        let limiter = figures.waits.limiter().filter(|_| bytes > 0);
        Self {
            result: Result::new(failure),
            bytes,
            seconds: rounded(figures.seconds),
            gb_per_s: rounded(rate(bytes, figures.seconds) / 1e9),
            transport: figures.transport(),
            lanes: figures.lanes,
            rails: figures.line.rails,
            round_trip_ms: figures.line.round_trip_us.map(|micros| rounded(micros as f64 / 1e3)),
            buffer_bytes: figures.line.buffer_bytes,
            encrypted: figures.encrypted,
            retries,
            replayed_chunks: replayed,
            corrupt_chunks: corrupt,
            read_direct_bytes: figures.read.direct_bytes,
            read_cached_bytes: figures.read.cached_bytes,
            written_direct_bytes: figures.written.direct_bytes,
            written_buffered_bytes: figures.written.buffered_bytes,
            wait_seconds: WaitSeconds::new(figures.waits),
            limiter: limiter.map(|limiter| Limiter {
                name: limiter.what.name(),
                share: rounded(limiter.share),
                ceiling_gb_per_s: rounded(ceiling(figures, &limiter) / 1e9),
            }),
        }
    }
}

/// The outcome of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct Pipeline<'a> {
    /// How the command ended.
    #[serde(flatten)]
    pub result: Result<'a>,
    /// The stages, from first to last.
    pub stages: Vec<Stage>,
    /// The hops between the stages.
    pub hops: Vec<Hop>,
    /// What limited the pipeline; null if nothing did for long.
    pub limiter: Option<PipelineLimiter>,
}

/// The outcome of a stage.
#[derive(Serialize, JsonSchema)]
pub struct Stage {
    /// The host of the stage; `localhost` for the host that the command runs on.
    pub host: String,
    /// The text of the stage.
    pub command: String,
    /// The exit code of the stage; null if a signal ended the stage, or if the code is not known.
    pub exit: Option<i32>,
    /// The signal that ended the stage; null if none did.
    pub signal: Option<i32>,
    /// How many seconds the stage ran; null if not known.
    pub seconds: Option<f64>,
    /// Bytes sent to the stage; null if none come from another host.
    pub bytes_in: Option<u64>,
    /// Bytes sent by the stage; null if none go to another host.
    pub bytes_out: Option<u64>,
}

/// The outcome of a hop.
#[derive(Serialize, JsonSchema)]
pub struct Hop {
    /// The sending end.
    pub from: String,
    /// The receiving end.
    pub to: String,
    /// Bytes sent.
    pub bytes: u64,
    /// Seconds from the first connection to the end.
    pub seconds: f64,
    /// The average rate, in 10^9 bytes per second.
    pub gb_per_s: f64,
    /// The transport, as for a transfer.
    pub transport: String,
    /// Maximum number of connections that carried data at once.
    pub lanes: u64,
    /// Whether all data was encrypted.
    pub encrypted: bool,
    /// Number of chunks sent again because they were damaged or lost.
    pub retries: u64,
    /// Bytes of files read past the page cache.
    pub read_direct_bytes: u64,
    /// Bytes of files read from the page cache.
    pub read_cached_bytes: u64,
    /// Bytes of files written past the page cache.
    pub written_direct_bytes: u64,
    /// Bytes of files written through the page cache.
    pub written_buffered_bytes: u64,
    /// Whether the data went through the launcher's connections.
    pub through_launcher: bool,
}

/// What limited a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct PipelineLimiter {
    /// A stage or a hop, for a person.
    pub name: String,
    /// Its share of the time, 0 to 1.
    pub share: f64,
}

/// Returns the schema of a line, as JSON Schema.
pub fn schema() -> String {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<Line<'static>>();
    let mut text = serde_json::to_string_pretty(&schema).expect("names and numbers");
    text.push('\n');
    text
}

/// Returns the average rate, in bytes per second.
pub(crate) fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-9)
}

/// Rounds a number to six places.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns the rate that the limiter of a transfer would have allowed if the transfer had never waited for anything
/// else, in bytes per second.
pub(crate) fn ceiling(figures: &Figures, limiter: &engine::Limiter) -> f64 {
    rate(figures.counters.bytes, limiter.share * figures.waits.total())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::job::progress::HostStanding;

    /// Whether `schema` allows `value`. Supports only the keywords that the schema of these types uses.
    fn allows(schema: &Value, root: &Value, value: &Value) -> bool {
        let Some(schema) = schema.as_object() else { return schema == &Value::Bool(true) };
        let is = |name: &str| match name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("type {other}"),
        };
        let each = |list: &Value| list.as_array().expect("a list").clone();
        schema.iter().all(|(keyword, wanted)| match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" => true,
            "$ref" => {
                let place = wanted.as_str().and_then(|place| place.strip_prefix('#')).expect("a place in the schema");
                allows(root.pointer(place).expect("a definition"), root, value)
            }
            "type" if wanted.is_array() => each(wanted).iter().any(|name| is(name.as_str().expect("a name"))),
            "type" => is(wanted.as_str().expect("a name")),
            "const" => value == wanted,
            "enum" => each(wanted).contains(value),
            "oneOf" => each(wanted).iter().filter(|one| allows(one, root, value)).count() == 1,
            "anyOf" => each(wanted).iter().any(|one| allows(one, root, value)),
            "allOf" => each(wanted).iter().all(|one| allows(one, root, value)),
            "required" => each(wanted).iter().all(|key| value.get(key.as_str().expect("a key")).is_some()),
            "properties" => wanted
                .as_object()
                .expect("an object")
                .iter()
                .all(|(key, inner)| value.get(key).is_none_or(|value| allows(inner, root, value))),
            "items" => value.as_array().is_none_or(|list| list.iter().all(|item| allows(wanted, root, item))),
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().expect("a number")),
            "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= wanted.as_u64().expect("a number")),
            "maxItems" => value.as_array().is_none_or(|list| list.len() as u64 <= wanted.as_u64().expect("a number")),
            other => panic!("the keyword {other}"),
        })
    }

    #[test]
    fn every_event_is_as_the_schema_says() {
        let at = || At::new(std::ffi::OsStr::new("h"), b"a\xff");
        let failure = Exit::Source.with("cannot read it").about(std::ffi::OsStr::new("h"), b"a\xff", 13);
        let stage = || PlannedStage { host: "h".to_owned(), action: StageAction::Tee, command: "> a".to_owned() };
        let hop = PlannedHop {
            from: "h".to_owned(),
            from_command: None,
            to: "i".to_owned(),
            to_command: Some("wc".to_owned()),
            listener: "h".to_owned(),
            ports: Some([1, 2]),
            through_launcher: false,
        };
        let parts = vec![PlannedPart { stages: vec![stage()], hops: vec![hop] }];
        let lane = rd_proto::handshake::LaneId { index: 1, generation: 2 };
        let figures = Figures { counters: Counters { bytes: 1, ..Counters::default() }, ..Figures::default() };
        let pipeline = Pipeline {
            result: Result::new(None),
            stages: vec![Stage {
                host: "h".to_owned(),
                command: "wc".to_owned(),
                exit: None,
                signal: Some(9),
                seconds: Some(1.5),
                bytes_in: Some(1),
                bytes_out: None,
            }],
            hops: Vec::new(),
            limiter: Some(PipelineLimiter { name: "it".to_owned(), share: 0.5 }),
        };
        let copied = |is_synced, is_read_back| {
            let tree = TreeFigures { is_synced, is_read_back, ..TreeFigures::default() };
            Event::Copied(Copied::new("h".to_owned(), &tree, false))
        };
        let events = [
            Event::WouldCopy(WouldCopy { from: at(), to: at(), kind: EntryKind::File, bytes: Some(1) }),
            Event::WouldRun(WouldRun { parts, agents: vec!["h".to_owned()] }),
            Event::Progress(Progress::default()),
            Event::Progress(Progress { seconds_left: Some(1), entries: Some(1), ..Progress::default() }),
            Event::Host(Host { host: "h".to_owned(), state: HostStanding::Done, bytes: 1, from: Some("i".to_owned()) }),
            Event::Hosts(Hosts::default()),
            Event::Hosts(Hosts {
                slowest: Some(HostRate { host: "h".to_owned(), bytes: 1, bytes_per_second: 1.5 }),
                held_up: Some(HeldUp { host: "h".to_owned(), by: HeldUpBy::Link, hosts: 2 }),
                ..Hosts::default()
            }),
            Event::Notice(Notice::new(SessionNotice::LaneLost(lane), Some("it broke"))),
            Event::Notice(Notice::new(SessionNotice::FellBack, None)),
            Event::Failed(Failed::new(&failure)),
            copied(true, true),
            copied(false, false),
            Event::End(End::Transfer(Box::new(Transfer::new(&figures, Some(&failure))))),
            Event::End(End::Transfer(Box::new(Transfer::new(&figures, None)))),
            Event::End(End::Pipeline(pipeline)),
        ];
        let schema: Value = serde_json::from_str(&schema()).expect("JSON");
        for event in &events {
            let line = serde_json::to_value(Line::new(event)).expect("JSON");
            assert!(allows(&schema, &schema, &line), "{line}");
            for key in line.as_object().expect("an object").keys() {
                let mut poorer = line.clone();
                poorer.as_object_mut().expect("an object").remove(key);
                let is_optional = ["lane", "path_hex"].contains(&key.as_str());
                assert!(is_optional || !allows(&schema, &schema, &poorer), "{key} may be missing in {line}");
            }
        }
    }
}
