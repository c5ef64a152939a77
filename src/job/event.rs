//! What becomes of a job, as `--json` prints it: objects, one a line. These types are its definition:
//! `docs/report.schema.json` is made of them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

/// The version of the schema. Keys may be added within one; none goes, and none gets another meaning.
pub const SCHEMA: u32 = 1;

/// One line.
#[derive(Serialize, JsonSchema)]
pub struct Line<'a> {
    /// The version of this schema, 1. Within it keys and events may be added: pass over those that you do not know.
    schema: u32,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

impl<'a> Line<'a> {
    /// A line that tells of `event`.
    pub fn new(event: &'a Event<'a>) -> Self {
        Self { schema: SCHEMA, event }
    }
}

/// What has happened.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// rdcp -n, for each source: it would be copied.
    WouldCopy(WouldCopy),
    /// rdpipe -n: what would be run, and which way the data would go.
    WouldRun(WouldRun),
    /// rdcp, every second: how far it has come.
    Progress(Progress),
    /// rdcp: what has become of its connections.
    Notice(Notice<'a>),
    /// rdcp: an entry that is not copied, or not in full; the others are. rdpipe: one of several hosts that failed.
    Failed(Failed<'a>),
    /// rdcp: sources of one host have been copied; of several hosts that get them, the numbers are those of the one with the most.
    Copied(Copied),
    /// rdcp to several hosts: how others call it that add one, with --join.
    Job(Job),
    /// rdcp and rdpipe to several hosts: one of them stands otherwise than before.
    Host(Host),
    /// rdcp and rdpipe to several hosts, every second: how far they have come.
    Hosts(Hosts),
    /// rdcp --check: an entry that is not as the manifest has it.
    Differs(Differs),
    /// The last line.
    End(End<'a>),
}

/// A path of a host's, or the host as such.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct At {
    /// The host as the command line names it; null for the one that the command runs on.
    pub host: Option<String>,
    /// The path, `-` for a standard stream, empty where it is about the host. Bytes that are no UTF-8 stand as U+FFFD.
    pub path: String,
    /// The path's bytes in hexadecimal, where they are no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
}

impl At {
    /// `host`: empty for this one.
    pub fn new(host: &std::ffi::OsStr, path: &[u8]) -> Self {
        let host = (!host.is_empty()).then(|| host.to_string_lossy().into_owned());
        let hex = || path.iter().map(|byte| format!("{byte:02x}")).collect();
        let path_hex = std::str::from_utf8(path).is_err().then(hex);
        Self { host, path: String::from_utf8_lossy(path).into_owned(), path_hex }
    }

    /// A path of this host's.
    pub fn here(path: &Path) -> Self {
        Self::new(std::ffi::OsStr::new(""), path.as_os_str().as_bytes())
    }
}

/// See [`Event::WouldCopy`].
#[derive(Serialize, JsonSchema)]
pub struct WouldCopy {
    /// The source.
    pub from: At,
    /// The name that it would get.
    pub to: At,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes of a regular file; null where it is none.
    pub bytes: Option<u64>,
}

/// What a source is.
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

/// See [`Event::WouldRun`].
#[derive(Serialize, JsonSchema)]
pub struct WouldRun {
    /// Stages that run at the same time. Each part begins when the one before it has finished.
    pub parts: Vec<PlannedPart>,
    /// Hosts on which an agent would be started.
    pub agents: Vec<String>,
}

/// A part of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct PlannedPart {
    /// Its stages.
    pub stages: Vec<PlannedStage>,
    /// Its hops.
    pub hops: Vec<PlannedHop>,
}

/// A stage of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct PlannedStage {
    /// Its host; `localhost` for this one.
    pub host: String,
    /// What is done there.
    pub action: StageAction,
    /// Its text.
    pub command: String,
}

/// What a stage does.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StageAction {
    /// A shell runs its command.
    Run,
    /// A file is read, without a command.
    Read,
    /// A file is written, without a command.
    Write,
    /// Files are written and the data is passed on, without a command.
    Tee,
}

/// The way from one host to the next.
#[derive(Serialize, JsonSchema)]
pub struct PlannedHop {
    /// The sending host.
    pub from: String,
    /// The stage there; null for standard input.
    pub from_command: Option<String>,
    /// The receiving host.
    pub to: String,
    /// The stage there; null for standard output.
    pub to_command: Option<String>,
    /// The host that listens.
    pub listener: String,
    /// The ports that it may listen on, first and last; null where any that is free is taken.
    pub ports: Option<[u16; 2]>,
    /// The data goes through the launcher's connections instead.
    pub through_launcher: bool,
}

/// See [`Event::Progress`].
#[derive(Default, Serialize, JsonSchema)]
pub struct Progress {
    /// Bytes of files that stand at the destination, with those that were there already.
    pub bytes: u64,
    /// Bytes of all files that have been found so far; null where not known.
    pub bytes_total: Option<u64>,
    /// Files and other entries that have been copied; null where not known.
    pub entries: Option<u64>,
    /// Entries that have been found so far; null where not known.
    pub entries_total: Option<u64>,
    /// Nothing more will be found: the totals do not grow any more.
    pub totals_final: bool,
    /// The rate of the last seconds; null where not known.
    pub bytes_per_second: Option<f64>,
    /// Seconds that are left at this rate; null where not known.
    pub seconds_left: Option<u64>,
}

/// See [`Event::Notice`].
#[derive(Serialize, JsonSchema)]
pub struct Notice<'a> {
    /// What has happened.
    pub notice: NoticeCode,
    /// Which connection, for `lane-lost`: its index and how often it had been made anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<[u32; 2]>,
    /// Why, for a person; null where not known.
    pub reason: Option<&'a str>,
}

/// What has become of connections.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeCode {
    /// RDMA cannot be used; the data goes on over TCP.
    FellBack,
    /// The data goes by RDMA again.
    BackOnRdma,
    /// One connection is lost.
    LaneLost,
    /// All are lost; --reconnect says for how long they are tried for.
    LinkLost,
    /// There is one again.
    LinkRestored,
    /// One of several ways between the hosts has failed, which `reason` names; the others carry the data.
    RailLeft,
    /// It is used again.
    RailBack,
}

impl<'a> Notice<'a> {
    /// What a session has noticed.
    pub fn new(notice: SessionNotice, reason: Option<&'a str>) -> Self {
        let (code, lane) = match notice {
            SessionNotice::FellBack => (NoticeCode::FellBack, None),
            SessionNotice::BackOnRdma => (NoticeCode::BackOnRdma, None),
            SessionNotice::LaneLost(lane) => (NoticeCode::LaneLost, Some([lane.index.into(), lane.generation])),
            SessionNotice::LinkLost => (NoticeCode::LinkLost, None),
            SessionNotice::LinkRestored => (NoticeCode::LinkRestored, None),
            SessionNotice::RailLeft(..) => (NoticeCode::RailLeft, None),
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
    /// The exit code that goes with it.
    pub exit: u8,
    /// The file, or the host that cannot be reached or was lost; null where it is about none.
    pub at: Option<At>,
    /// The system's error number, of Linux; null where there is none.
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

/// See [`Event::Failed`].
#[derive(Serialize, JsonSchema)]
pub struct Failed<'a> {
    #[serde(flatten)]
    error: Error,
    /// The line that a person is given.
    reason: &'a str,
}

impl<'a> Failed<'a> {
    /// One that failed.
    pub fn new(failure: &'a Failure) -> Self {
        Self { error: Error::new(failure), reason: failure.message.as_deref().unwrap_or_default() }
    }
}

/// See [`Event::Differs`].
#[derive(Serialize, JsonSchema)]
pub struct Differs {
    /// The entry.
    pub at: At,
    /// In what it differs: `missing`, `extra`, `type`, `mode`, `size`, `mtime`, `target`, `device`, `contents`.
    pub differs: Vec<&'static str>,
}

/// See [`Event::Copied`].
#[derive(Serialize, JsonSchema)]
pub struct Copied {
    /// The host that they are from; `this host` for the one that the command runs on.
    pub from: String,
    /// Files, directories and others that are at the destination now.
    pub entries: u64,
    /// Bytes of files among them.
    pub bytes: u64,
    /// Bytes of those that were there already, of an interrupted copy.
    pub kept_bytes: u64,
    /// Entries other than directories that were there already, and the same: `--sync`.
    pub same: u64,
    /// Entries deleted: `--delete`.
    pub deleted: u64,
    /// Files that were not sent, since they were there under other names: `--find-moves`.
    pub moved: u64,
    /// The size of all files at the source, also of those of which nothing was sent.
    pub size_bytes: u64,
    /// Entries that are not there, or not in full.
    pub failed: u64,
    /// How far the data has come.
    pub level: Level,
    /// `-n` with `--sync`: nothing was done, and all of this is what would have been.
    pub dry_run: bool,
}

impl Copied {
    /// What became of files and trees of this host's.
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

/// How far the data has come.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The kernel has taken it.
    Written,
    /// It is on disk (`--fsync`).
    Synced,
    /// It is on disk, and has been read from there again and compared (`--verify=disk`).
    ReRead,
}

impl Level {
    /// Its name, as in the schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Synced => "synced",
            Self::ReRead => "re-read",
        }
    }
}

/// See [`Event::End`].
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum End<'a> {
    /// Of all commands but rdpipe.
    Transfer(Box<Transfer<'a>>),
    /// Of rdpipe.
    Pipeline(Pipeline<'a>),
}

/// How a command ended.
#[derive(Serialize, JsonSchema)]
pub struct Result<'a> {
    /// Its exit code.
    pub exit: u8,
    /// What went wrong, for a person; null where nothing did.
    pub error: Option<&'a str>,
    /// Where it went wrong; null where nothing did.
    pub failure: Option<Error>,
}

impl<'a> Result<'a> {
    /// `None`: it went well.
    pub fn new(failure: Option<&'a Failure>) -> Self {
        Self {
            exit: failure.map_or(0, |failure| failure.exit.code()),
            error: failure.and_then(|failure| failure.message.as_deref()),
            failure: failure.map(Error::new),
        }
    }
}

/// The end of a stream or a copy.
#[derive(Serialize, JsonSchema)]
pub struct Transfer<'a> {
    #[serde(flatten)]
    pub(crate) result: Result<'a>,
    /// Bytes that were sent; of a copy, of all its sessions.
    pub bytes: u64,
    /// From the first connection to the end.
    pub seconds: f64,
    /// Their ratio, in 10^9 bytes a second.
    pub gb_per_s: f64,
    /// `tcp`, `rdma`, `rdma-software`, joined by `+` where it changed; empty for a copy within a host.
    pub transport: String,
    /// The most connections that carried data at once.
    pub lanes: usize,
    /// Networks that TCP connections went by, as pairs of addresses; of several sessions, the most.
    pub rails: usize,
    /// The shortest round trip that the system has measured on a TCP connection; null where there was none.
    pub round_trip_ms: Option<f64>,
    /// How much of the buffer could be in use at once: more than it began with where the line holds more.
    pub buffer_bytes: u64,
    /// All data was encrypted.
    pub encrypted: bool,
    /// Chunks that were sent again as they were damaged or lost.
    pub retries: u64,
    /// Chunks that were sent again after a lost connection.
    pub replayed_chunks: u64,
    /// Chunks that did not match their checksum.
    pub corrupt_chunks: u64,
    /// Bytes of files that were read past the page cache.
    pub read_direct_bytes: u64,
    /// Bytes of files that were read from it.
    pub read_cached_bytes: u64,
    /// Bytes of files that were written past the page cache.
    pub written_direct_bytes: u64,
    /// Bytes of files that were written through it.
    pub written_buffered_bytes: u64,
    /// What was waited for, and for how long.
    pub wait_seconds: WaitSeconds,
    /// What was waited for most; null where nothing was sent.
    pub limiter: Option<Limiter>,
}

/// Seconds that were spent waiting.
#[derive(Serialize, JsonSchema)]
pub struct WaitSeconds {
    /// For the file or program that is read.
    pub source: f64,
    /// For processors.
    pub cpu: f64,
    /// For room at the receiver.
    pub credits: f64,
    /// For the network.
    pub wire: f64,
    /// For the file or program that is written.
    pub sink: f64,
    /// As --bwlimit asks for.
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
    /// A key of `wait_seconds`.
    pub name: &'static str,
    /// Its share of the time, 0 to 1.
    pub share: f64,
    /// The rate that it would allow by itself, in 10^9 bytes a second.
    pub ceiling_gb_per_s: f64,
}

impl<'a> Transfer<'a> {
    /// A transfer that ended so.
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

/// The end of a pipeline.
#[derive(Serialize, JsonSchema)]
pub struct Pipeline<'a> {
    /// How it ended.
    #[serde(flatten)]
    pub result: Result<'a>,
    /// Its stages, from first to last.
    pub stages: Vec<Stage>,
    /// The ways between them.
    pub hops: Vec<Hop>,
    /// What held it up; null where nothing did for long.
    pub limiter: Option<PipelineLimiter>,
}

/// What became of a stage.
#[derive(Serialize, JsonSchema)]
pub struct Stage {
    /// Its host; `localhost` for this one.
    pub host: String,
    /// Its text.
    pub command: String,
    /// Its exit code; null where it was ended by a signal, or is not known.
    pub exit: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How long it ran.
    pub seconds: Option<f64>,
    /// Bytes that it was sent; null where none come from another host.
    pub bytes_in: Option<u64>,
    /// Bytes that it sent; null where none go to another host.
    pub bytes_out: Option<u64>,
}

/// What became of a hop.
#[derive(Serialize, JsonSchema)]
pub struct Hop {
    /// The sending end.
    pub from: String,
    /// The receiving end.
    pub to: String,
    /// Bytes that were sent.
    pub bytes: u64,
    /// From the first connection to the end.
    pub seconds: f64,
    /// Their ratio, in 10^9 bytes a second.
    pub gb_per_s: f64,
    /// As that of a transfer.
    pub transport: String,
    /// The most connections that carried data at once.
    pub lanes: u64,
    /// All data was encrypted.
    pub encrypted: bool,
    /// Chunks that were sent again as they were damaged or lost.
    pub retries: u64,
    /// Bytes of files that were read past the page cache.
    pub read_direct_bytes: u64,
    /// Bytes of files that were read from it.
    pub read_cached_bytes: u64,
    /// Bytes of files that were written past the page cache.
    pub written_direct_bytes: u64,
    /// Bytes of files that were written through it.
    pub written_buffered_bytes: u64,
    /// The data went through the launcher's connections.
    pub through_launcher: bool,
}

/// What held a pipeline up.
#[derive(Serialize, JsonSchema)]
pub struct PipelineLimiter {
    /// A stage or a hop, for a person.
    pub name: String,
    /// Its share of the time, 0 to 1.
    pub share: f64,
}

/// The schema of a line, as JSON Schema.
pub fn schema() -> String {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<Line<'static>>();
    let mut text = serde_json::to_string_pretty(&schema).expect("names and numbers");
    text.push('\n');
    text
}

/// The average rate, in bytes a second.
pub(crate) fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-9)
}

/// A number to six places.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// What the limiter of a transfer would have allowed if it had never waited for anything else, in bytes a second.
pub(crate) fn ceiling(figures: &Figures, limiter: &engine::Limiter) -> f64 {
    rate(figures.counters.bytes, limiter.share * figures.waits.total())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::job::progress::HostStanding;

    /// Whether `schema` allows `value`: what the schema of these types makes use of, and nothing else.
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
        let failure = Failure::new(Exit::Source, "cannot read it").about(std::ffi::OsStr::new("h"), b"a\xff", 13);
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
