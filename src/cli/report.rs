//! Reports of a transfer: progress on the terminal, lines on standard error, a JSON object at the end.

pub(super) mod area;
mod hops;
mod hosts;
mod itemize;
pub(crate) mod line;
mod nonblocking;
mod outputs;
mod page;
mod record;
mod sink;
mod stats;
mod trace;

use std::cell::RefCell;
use std::io::{ErrorKind, IsTerminal};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rd_proto::session::{LONG_LINE, Notice, TCP_LANES_DEFAULT};

use super::json;
use super::options::ReportOptions;
use crate::fault::{Exit, Failure, escaped, printable};
use crate::job::entries::TakeEntries;
use crate::job::hop::{Hop, Side};
use crate::job::progress::{Copied, Ended, HostShown, HostStanding, Rate, Shown, size_words};
use crate::job::{
    self,
    event::{ceiling, rate},
};
use crate::log;
use area::{ProgressArea, was_drawn};
pub(crate) use hops::HopsConsole;
use hosts::{Hosts, HostsShown};
pub(crate) use itemize::Style;
use line::stream_line;
pub(crate) use nonblocking::NonBlocking;
pub(crate) use outputs::{Moved, are_one_file, is_output};
use page::CameTo;
use record::{Record, Weight};
pub(crate) use sink::Kept;
use sink::Sink;
pub(crate) use stats::{Digits, stats};

use super::words::waited_for;
use crate::agent::words;
use crate::engine::session;
use crate::engine::{Figures, Limiter, Observer, Read, SessionEvent, Wait, Waits};
use crate::fs::direct::write::Written;
use crate::fs::prepared::Prepared;
use crate::fs::standard;
use crate::measure::words::rate_words;
use crate::signals;
use crate::transport::Medium;
use crate::tree::HAS_VANISHED;

/// Shortest transfer for which the limiter is printed. For a shorter transfer it says nothing.
const LIMITED_SECONDS_MIN: f64 = 0.5;

/// How remarks end that are printed with `--quiet`, too: nothing has failed, but less was copied or is kept, or more is
/// stored, than the user expects. The words are those of `agent/tree.rs`.
const WARNINGS: [&str; 3] =
    ["; nothing is linked to it", ", which the file system of DST does not support", HAS_VANISHED];

/// What messages call the output of `--json` and `--report`, and that of `--trace`.
const REPORT: &str = "report";
const TRACE: &str = "trace";

/// Reports to a person on standard error.
pub struct Terminal {
    area: ProgressArea,
    peer: String,
    verbose: bool,
    quiet: bool,
    reconnect_s: u64,
    size_bytes: Option<u64>,
    rate: Rate,
    /// When the link was lost, if there is none now.
    lost: Option<Instant>,
}

impl Terminal {
    /// Makes the terminal's reporter. `may_draw`: nothing else writes to the terminal.
    pub fn new(name: &'static str, options: &ReportOptions, may_draw: bool) -> Self {
        Self {
            area: ProgressArea::new(name, options, may_draw),
            peer: String::new(),
            verbose: options.is_verbose(),
            quiet: options.quiet,
            reconnect_s: 0,
            size_bytes: None,
            rate: Rate::default(),
            lost: None,
        }
    }

    /// Prints a line, unless `--quiet` was given.
    fn remark(&mut self, line: Option<String>) {
        if let (false, Some(line)) = (self.quiet, line) {
            self.area.say(&line);
        }
    }

    /// Shows the progress, as the terminal's width allows.
    fn show(&mut self, shown: &Shown) {
        let without = self.lost.map(|since| no_link(&self.peer, since, self.reconnect_s));
        let shown = match without {
            None => shown.clone(),
            // Earlier waits say nothing about now.
            without => Shown { no_link: without, waits: Waits::default(), ..shown.clone() },
        };
        let has_bar = self.area.is_drawn_anew();
        self.area.show(|columns| vec![if has_bar { shown.line(columns) } else { shown.plain_line(columns) }]);
    }
}

impl Observer for Terminal {
    fn observe(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Begun { peer, reconnect, size_bytes } => {
                (self.peer, self.reconnect_s, self.size_bytes) = (peer, reconnect.as_secs(), size_bytes);
                self.area.restart();
            }
            SessionEvent::Notice(notice, reason) => {
                match notice {
                    Notice::LinkLost => self.lost = Some(Instant::now()),
                    Notice::LinkRestored => (self.lost, self.rate) = (None, Rate::default()),
                    _ => {}
                }
                let line = notice_line(notice, reason.as_deref(), &self.peer, self.reconnect_s, self.verbose);
                self.remark(line);
            }
            SessionEvent::LaneUp(_, medium, description) if self.verbose => {
                let kind = match medium {
                    Medium::RdmaHardware | Medium::RdmaSoftware => "RDMA connection",
                    Medium::Tcp => "connection",
                };
                self.area.say(&format!("{kind}: {description}"));
            }
            SessionEvent::Progress(counters, waits) if self.area.is_on() => {
                self.rate.add(Instant::now(), counters.bytes, waits);
                let shown = Shown {
                    bytes: counters.bytes,
                    bytes_total: self.size_bytes,
                    is_final: self.size_bytes.is_some(),
                    rate: self.rate.bytes_per_second(),
                    waits: self.rate.waits(),
                    seconds: self.area.began.elapsed().as_secs(),
                    ..Shown::default()
                };
                self.show(&shown);
            }
            other => self.remark(words::remark(&other)),
        }
    }
}

/// Reports a copy to a person and to a program.
pub(crate) struct Console<'a> {
    reporter: &'a Reporter<'a>,
    terminal: Terminal,
    style: Style,
    hosts: Hosts,
    /// Whether a host of a copy to several hosts has answered.
    has_answered: bool,
    remarks: &'a RefCell<Remarks>,
}

/// Remarks and failures of a copy and of the one before it, each kept up to a limit: `--watch` does not repeat them with
/// every copy.
#[derive(Default)]
pub(crate) struct Remarks {
    before: Vec<String>,
    now: Vec<String>,
}

impl Remarks {
    const KEPT_MAX: usize = 64;

    /// Whether this line is new since the copy before.
    fn is_new(&mut self, line: &str) -> bool {
        if self.now.len() < Self::KEPT_MAX {
            self.now.push(line.to_owned());
        }
        !self.before.iter().any(|before| before == line)
    }
}

impl<'a> Console<'a> {
    /// Makes a console. `may_draw`: nothing else writes to the terminal. `style`: how entries are printed, if at all.
    /// `remarks` is what the copy before has left there.
    pub(crate) fn new(reporter: &'a Reporter<'a>, may_draw: bool, style: Style, remarks: &'a RefCell<Remarks>) -> Self {
        remarks.replace_with(|old| Remarks { before: std::mem::take(&mut old.now), now: Vec::new() });
        let terminal = Terminal::new("rdcp", reporter.options, may_draw);
        Self { reporter, terminal, style, hosts: Hosts::default(), has_answered: false, remarks }
    }
}

impl job::Observer for Console<'_> {
    fn event(&mut self, event: &json::Event<'_>) {
        self.reporter.event(event);
    }

    fn measured(&mut self, hop: &Hop, side: Side, bytes: u64, waits: Waits) {
        self.reporter.record(|record| record.measured(hop, side, bytes, waits));
    }

    fn remark(&mut self, line: &str) {
        self.reporter.happened(Weight::Plain, line);
        let is_new = self.remarks.borrow_mut().is_new(line) || self.reporter.options.is_verbose();
        if is_new && (is_warning(line) || !self.reporter.options.quiet) {
            self.terminal.area.say(line);
        }
    }

    fn complain(&mut self, line: &str) {
        self.reporter.happened(Weight::Failed, line);
        if self.remarks.borrow_mut().is_new(line) || self.reporter.options.is_verbose() {
            self.terminal.area.complain(line);
        }
    }

    fn show_hosts(&mut self, hosts: &[HostShown], made: u64, is_all: bool, elapsed: Duration) {
        if !self.has_answered {
            // Waiting for logins is no progress.
            self.has_answered =
                hosts.iter().any(|host| !matches!(host.standing, HostStanding::Starting | HostStanding::Failed));
            self.terminal.area.restart();
        }
        let shown = HostsShown { hosts, made, is_all, elapsed };
        self.hosts.tell(self.reporter, &shown);
        self.terminal.area.show(|columns| vec![self.hosts.line(&shown, columns)]);
    }

    fn finish(&mut self) {
        self.terminal.area.clear();
    }
}

impl job::copy::Observer for Console<'_> {
    fn begin(&mut self) {
        self.reporter.begin();
    }

    fn observe(&mut self, event: SessionEvent) {
        self.reporter.noticed(&event);
        self.terminal.observe(event);
    }

    fn would_copy(&mut self, from: &str, to: &str) {
        if !self.reporter.options.quiet {
            self.terminal.area.say(&format!("would copy {from} to {to}"));
        }
    }

    fn show(&mut self, shown: &Shown) {
        self.terminal.show(shown);
    }

    fn is_watched(&self) -> bool {
        self.terminal.area.is_watched()
    }

    fn entry_printer(&self, is_push: bool) -> TakeEntries {
        itemize::printer(Style { is_push, ..self.style }, self.terminal.area.is_drawn_anew())
    }
}

/// Describes what limits the rate at present, to be shown behind the rate. Empty if nothing does.
pub(crate) fn limiter_now(waits: Waits) -> String {
    let name = |what: Wait| match what {
        Wait::Credits => "receiver full",
        Wait::Limit => "--bwlimit",
        other => other.name(),
    };
    let words = |Limiter { what, share }: Limiter| format!("({} {:.0} %)", name(what), share * 100.0);
    waits.limiter().map(words).unwrap_or_default()
}

/// Returns the text that replaces the rate while there is no link.
fn no_link(peer: &str, since: Instant, reconnect_s: u64) -> String {
    let left = reconnect_s.saturating_sub(since.elapsed().as_secs());
    format!("no link to {peer}, {left} s left")
}

/// Records a notice of a session.
fn noticed(record: &mut Record, event: &SessionEvent) {
    let SessionEvent::Notice(notice, reason) = event else { return };
    let is_healed = matches!(notice, Notice::BackOnRdma | Notice::LinkRestored | Notice::RailBack(..));
    let weight = if is_healed { Weight::Healed } else { Weight::Lost };
    record.happened(weight, &words::notice(*notice, reason.as_deref(), None));
}

/// Records the events of a session, and passes them on.
struct Recording {
    record: Arc<Mutex<Record>>,
    side: Side,
    peer: String,
    inner: Box<dyn Observer>,
}

impl Observer for Recording {
    fn observe(&mut self, event: SessionEvent) {
        if let SessionEvent::Begun { peer, .. } = &event {
            self.peer = escaped(peer.as_ref());
        }
        {
            let mut record = crate::locked(&self.record);
            match &event {
                SessionEvent::Progress(counters, waits) => {
                    record.measured_here(&self.peer, self.side, counters.bytes, *waits);
                }
                event => noticed(&mut record, event),
            }
        }
        self.inner.observe(event);
    }
}

/// Describes a change of the lanes to `peer` for a person. `None` if it needs no line.
pub(crate) fn notice_line(
    notice: Notice,
    reason: Option<&str>,
    peer: &str,
    reconnect_s: u64,
    verbose: bool,
) -> Option<String> {
    let line = words::notice(notice, reason, Some(peer));
    match notice {
        Notice::LinkLost if reconnect_s == 0 => None,
        Notice::LinkLost => Some(format!("{line}; trying to reconnect for {reconnect_s} s")),
        Notice::LaneLost(_) if !verbose => None,
        _ => Some(line),
    }
}

/// Returns this host's name and a path on it, for the page of `--report`.
pub(crate) fn here(path: String) -> (String, String) {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    (format!("{} (this host)", escaped(name.as_ref())), path)
}

/// Runs the transfer of `command` and reports the outcome, even if no session began. `kept`: as for
/// [`Reporter::open`].
pub(crate) fn reported(
    command: &'static str,
    options: &ReportOptions,
    moved: &[Moved<'_>],
    kept: &Kept,
    transfer: impl FnOnce(&Reporter<'_>) -> Result<Ended, Failure>,
) -> Result<(), Failure> {
    let reporter = Reporter::open(command, options, moved, kept)?;
    let (figures, failure, copied) = match transfer(&reporter) {
        Ok(Ended { figures, failure, copied, .. }) => (Some(figures), failure, copied),
        Err(failure) => (None, Some(failure), None),
    };
    let last_line = copied.map(|copied| copied.line());
    reporter.finish(figures.as_ref(), failure, copied.as_ref(), last_line.as_deref())
}

impl From<session::Ended> for Ended {
    fn from(ended: session::Ended) -> Self {
        let session::Ended { summary, peer } = ended;
        let failure = words::outcome(&summary.outcome, summary.reason.as_deref(), &peer);
        Self { figures: summary.figures, failure, copied: None, hosts: Vec::new() }
    }
}

/// Destinations of the reports of `--json`, `--report` and `--trace`. They are opened before anything else is done, so
/// that the reports cannot be missing in the end.
pub struct Reporter<'a> {
    options: &'a ReportOptions,
    /// The destination of `--json`, and what messages call it.
    sink: Option<(Sink, String)>,
    /// The record from which `--report` and `--trace` are made.
    record: Option<Arc<Mutex<Record>>>,
    /// The files of `--report` and `--trace`, without their names until the run has ended.
    page: Option<Prepared>,
    trace: Option<Prepared>,
    /// Whether [`Reporter::begin`] was called: the places of the reports are allowed.
    has_begun: AtomicBool,
}

impl<'a> Reporter<'a> {
    /// Opens the destinations of the reports. Continues the report of `--json` that is `kept`, if any, and else keeps
    /// it.
    ///
    /// # Errors
    ///
    /// Exit code 1 if a destination cannot be opened, or is also a file or stream that the command moves.
    pub(crate) fn open(
        command: &'static str,
        options: &'a ReportOptions,
        moved: &[Moved<'_>],
        kept: &Kept,
    ) -> Result<Self, Failure> {
        let is_on_output = options.is_json_on_output();
        let carried = moved.iter().find_map(|one| match one {
            Moved::Output => Some("data"),
            Moved::Lines => Some("the list of changes"),
            Moved::Input | Moved::File(..) => None,
        });
        if let Some(carried) = carried.filter(|_| is_on_output) {
            let advice = "write the report elsewhere, with --json=FILE or --json-fd FD";
            return Err(Exit::Usage.with(format!("standard output carries {carried}; {advice}")));
        }
        outputs::check(options, moved)?;
        let page = options.page.as_ref().map(|path| prepared("--report FILE.html", REPORT, path)).transpose()?;
        let trace = options.trace.as_ref().map(|path| prepared("--trace FILE", TRACE, path)).transpose()?;
        let is_kept = page.is_some() || trace.is_some();
        let record = is_kept.then(|| Arc::new(Mutex::new(Record::new(command))));
        let (opened, name) = match (&options.json, options.json_fd) {
            _ if is_on_output => (standard::output().map(Sink::stream), standard::OUTPUT.to_owned()),
            (Some(path), _) => (Sink::open(path, command == "rdcp", kept), escaped(path.as_os_str())),
            (None, Some(number)) => (standard::given(number).map(Sink::stream), format!("--json-fd {number}")),
            (None, None) => {
                return Ok(Self { options, sink: None, record, page, trace, has_begun: AtomicBool::new(false) });
            }
        };
        let sink = opened.map_err(|error| unreportable(Exit::Usage, REPORT, &name, &error))?;
        Ok(Self { options, sink: Some((sink, name)), record, page, trace, has_begun: AtomicBool::new(false) })
    }

    /// Must be called once it is sure that the command is not refused. Until then, `rdcp` does not touch an existing
    /// file of `--json`, which may be part of the copy.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Relaxed);
        // A failure to write shows again at the end, and is reported then.
        let _ = self.sink.as_ref().map_or(Ok(()), |(sink, _)| sink.begin());
    }

    /// Reports an event before the end.
    pub(crate) fn event(&self, event: &json::Event<'_>) {
        // A failure to write shows again at the end, and is reported then.
        let _ = self.write(event);
    }

    /// Records something for `--report` and `--trace`, if they were asked for.
    pub(crate) fn record(&self, keep: impl FnOnce(&mut Record)) {
        if let Some(record) = &self.record {
            keep(&mut crate::locked(record));
        }
    }

    /// Records a line that a person reads.
    fn happened(&self, weight: Weight, line: &str) {
        log::info(|| line.to_owned());
        self.record(|record| record.happened(weight, line));
    }

    /// Records a change of lanes.
    fn noticed(&self, event: &SessionEvent) {
        self.record(|record| noticed(record, event));
    }

    /// Returns an observer of the only session that also records events for the page, and passes them on. `side`: which
    /// end this is.
    pub(crate) fn recording(&self, side: Side, inner: Box<dyn Observer>) -> Box<dyn Observer> {
        match &self.record {
            Some(record) => Box::new(Recording { record: Arc::clone(record), side, peer: String::new(), inner }),
            None => inner,
        }
    }

    /// Reports the outcome, if `--json`, `--report` or `--trace` asks for it.
    ///
    /// # Errors
    ///
    /// Exit code 6 if a report cannot be written; 141 without a message if the reader of `--json` has gone.
    pub(crate) fn end(
        &self,
        end: json::End<'_>,
        figures: Option<&Figures>,
        copied: Option<&Copied>,
    ) -> Result<(), Failure> {
        // Nothing was done that could be reported, and the place of a report may be what is not allowed. The exit code
        // does not say that: a command of a pipeline may exit with 1 as well.
        let is_usage = end.result().failure.as_ref().is_some_and(|failure| failure.code == Exit::Usage.name());
        let is_refused = is_usage && !self.has_begun.load(Relaxed);
        let is_left = is_refused && self.sink.as_ref().is_some_and(|(sink, _)| sink.leave());
        let written = if is_refused { Ok(()) } else { self.publish(&end, figures, copied) };
        // The last event has the exit code of the command.
        let mut end = end;
        if end.result().failure.is_none()
            && let Err(failure) = &written
        {
            let result = json::Result::new(Some(failure));
            match &mut end {
                json::End::Transfer(transfer) => transfer.result = result,
                json::End::Pipeline(pipeline) => pipeline.result = result,
            }
        }
        let told = if is_left { Ok(()) } else { self.last(&json::Event::End(end)) };
        written.and(told)
    }

    /// Publishes the files of `--report` and `--trace`.
    fn publish(&self, end: &json::End<'_>, figures: Option<&Figures>, copied: Option<&Copied>) -> Result<(), Failure> {
        let Some(record) = &self.record else { return Ok(()) };
        let record = crate::locked(record);
        let came_to = CameTo { end, figures, copied };
        let page = |file| published(file, REPORT, &page::render(&record, came_to));
        let written = self.page.as_ref().map_or(Ok(()), page);
        let trace = |file| published(file, TRACE, &trace::render(&record, &super::log::kept(), end.result().exit));
        let traced = self.trace.as_ref().map_or(Ok(()), trace);
        written.and(traced)
    }

    /// Reports the last event.
    ///
    /// # Errors
    ///
    /// As [`Reporter::end`].
    pub(crate) fn last(&self, event: &json::Event<'_>) -> Result<(), Failure> {
        let Some((sink, name)) = &self.sink else { return Ok(()) };
        // If a signal has come, the reader was not waited for.
        let signal = |error: &std::io::Error| signals::last_asked().filter(|_| error.kind() == ErrorKind::Interrupted);
        sink.begin().and_then(|()| self.write(event)).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe if self.options.is_json_on_output() => Failure::silent(Exit::SinkClosed),
            _ => signal(&error).map_or_else(
                || unreportable(Exit::Destination, REPORT, name, &error),
                |number| Failure::silent(Exit::Signal(number)),
            ),
        })
    }

    fn write(&self, event: &json::Event<'_>) -> std::io::Result<()> {
        let Some((sink, _)) = &self.sink else { return Ok(()) };
        let mut line = serde_json::to_vec(&json::Line::new(event))?;
        line.push(b'\n');
        sink.write(&line)
    }

    /// Reports what `-v` and `--json` ask for, after success and after failure. `figures`: `None` if nothing began.
    /// `last_line`: what a person at a terminal reads in any case.
    ///
    /// # Errors
    ///
    /// The `failure` of the transfer, which matters most; exit code 6 if the report cannot be written.
    pub(crate) fn finish(
        self,
        figures: Option<&Figures>,
        failure: Option<Failure>,
        copied: Option<&Copied>,
        last_line: Option<&str>,
    ) -> Result<(), Failure> {
        let nothing = Figures::default();
        let begun = figures;
        let figures = figures.unwrap_or(&nothing);
        if self.options.is_verbose() && failure.is_none() {
            let limiter = limiter_line(figures).filter(|_| figures.seconds >= LIMITED_SECONDS_MIN);
            let lines = [line_line(figures), read_line(&figures.read), written_line(&figures.written), limiter];
            for line in lines.into_iter().flatten() {
                super::say(&line);
            }
        }
        let is_asked = self.options.is_verbose() || self.options.progress;
        let is_seen = is_asked || !self.options.quiet && std::io::stderr().is_terminal();
        match last_line {
            Some(line) if is_seen => super::say(line),
            // A dry run has no bandwidth.
            None if self.options.is_verbose() && failure.is_none() && figures.seconds > 0.0 => {
                super::say(&format!("Bandwidth {}", rate_words(rate(figures.counters.bytes, figures.seconds))));
            }
            // The progress bar has been erased, so a last line takes its place.
            None if !self.options.quiet && failure.is_none() && figures.seconds > 0.0 && (is_asked || was_drawn()) => {
                super::say(&stream_line(figures.counters.bytes, figures.seconds));
            }
            _ => {}
        }
        let transfer = Box::new(json::Transfer::new(figures, failure.as_ref()));
        let told = self.end(json::End::Transfer(transfer), begun, copied);
        failure.map_or(told, Err)
    }
}

/// Whether a remark is printed with `--quiet`, too.
fn is_warning(line: &str) -> bool {
    WARNINGS.iter().any(|end| line.ends_with(end))
}

/// Describes for a person the resources that a line was given. `None` if they are what every line begins with.
fn line_line(figures: &Figures) -> Option<String> {
    let (lanes, rails) = (figures.lanes, figures.line.rails);
    let by = if rails > 1 { format!(" over {rails} networks") } else { String::new() };
    match figures.line.round_trip_us.map(Duration::from_micros).filter(|trip| *trip >= LONG_LINE) {
        Some(round_trip) => Some(format!(
            "link: {:.0} ms round trip; up to {lanes} connections{by}, {} of buffer",
            round_trip.as_secs_f64() * 1e3,
            size_words(figures.line.buffer_bytes)
        )),
        None => (rails > 1 || lanes > TCP_LANES_DEFAULT.into()).then(|| format!("link: up to {lanes} connections{by}")),
    }
}

/// Describes for a person how files were read. `None` if none were read.
pub(crate) fn read_line(read: &Read) -> Option<String> {
    ways("read", [(read.direct_bytes, "direct"), (read.cached_bytes, "cached")])
}

/// Describes for a person how files were written. `None` if none were written.
pub(crate) fn written_line(written: &Written) -> Option<String> {
    ways("written", [(written.direct_bytes, "direct"), (written.buffered_bytes, "buffered")])
}

fn ways(what: &str, parts: [(u64, &str); 2]) -> Option<String> {
    let parts =
        parts.iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, way)| format!("{} {way}", size_words(*bytes)));
    let parts = parts.collect::<Vec<_>>().join(", ");
    (!parts.is_empty()).then(|| format!("{what}: {parts}"))
}

/// Describes for a person what limited a transfer. `None` if nothing was transferred.
fn limiter_line(figures: &Figures) -> Option<String> {
    let limiter = figures.waits.limiter().filter(|_| figures.counters.bytes > 0)?;
    let name = waited_for(limiter.what, figures.view);
    let ceiling = ceiling(figures, &limiter);
    Some(format!(
        "limited by {name}, for {:.0} % of the time: it allows {}",
        limiter.share * 100.0,
        rate_words(ceiling)
    ))
}

/// Creates the file of a report, without its final name. `option`: how the option is meant to be used. `what`: what the
/// file is to contain.
fn prepared(option: &str, what: &str, path: &Path) -> Result<Prepared, Failure> {
    if path.as_os_str() == "-" {
        let name = option.split(' ').next().unwrap_or_default();
        return Err(Exit::Usage.with(format!("{name} needs a file name: {option}")));
    }
    let name = escaped(path.as_os_str());
    Prepared::open(path).map_err(|error| unreportable(Exit::Usage, what, &name, &error))
}

/// Writes a report, and gives its file the final name.
fn published(file: &Prepared, what: &str, text: &[u8]) -> Result<(), Failure> {
    let name = escaped(file.path().as_os_str());
    file.publish(text).map_err(|error| unreportable(Exit::Destination, what, &name, &error))
}

fn unreportable(exit: Exit, what: &str, name: &str, error: &std::io::Error) -> Failure {
    exit.with(format!("cannot write the {what} to {name}: {}", printable(&error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_quiet_copy_does_not_have_is_named() {
        assert!(is_warning(&format!("h: from/a {HAS_VANISHED}")), "as in a backup every night");
        assert!(!is_warning("skipped h:from/a, left by an interrupted copy"));
    }
}
