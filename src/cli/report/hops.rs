//! Reports of a pipeline to a person: standard error of its stages, progress, and at the end what limited it.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rd_proto::session::Notice;
use unicode_width::UnicodeWidthStr;

use super::area::{ProgressArea, was_drawn};
use super::hosts::{Hosts, HostsShown};
use super::line::{cut_end, stream_line};
use super::record::Weight;
use super::{Reporter, no_link, notice_line, read_line, written_line};
use crate::cli::options::ReportOptions;
use crate::engine::{SessionEvent, Waits};
use crate::fs::standard::Unwritten;
use crate::job::copy::route;
use crate::job::event::{Event, rate};
use crate::job::hop::{Hop, Side};
use crate::job::pipeline::Stage;
use crate::job::pipeline::report::limiter;
use crate::job::progress::{HostShown, Rate, Shown, Streamed, size_words};
use crate::job::{self, pipeline};
use crate::measure::words::rate_words;

/// Maximum number of lines about hops that are printed within [`NOTICES_WITHIN`]. With hundreds of hops, what happens
/// to one hop happens to most of them.
const NOTICES_MAX: u32 = 3;
const NOTICES_WITHIN: Duration = Duration::from_secs(10);

/// Minimum number of bytes that a hop must have carried to get a last line that was not asked for.
const LAST_LINE_BYTES_MIN: u64 = 1 << 20;

/// Number of columns that the names of a hop leave for its figures, up to half of the line.
const FIGURES_COLUMNS: usize = 40;

/// How long a line without an end is not drawn over.
const UNFINISHED_MAX: Duration = Duration::from_secs(2);

/// Counts of recent lines about hops.
struct Notices {
    since: Instant,
    said: u32,
    held: u32,
}

/// Standard error, shared by the stages, the progress display and the command itself.
pub(crate) struct HopsConsole<'a> {
    reporter: &'a Reporter<'a>,
    options: &'a ReportOptions,
    area: ProgressArea,
    /// Whether drawing stops as soon as there is something on standard output.
    is_until_output: bool,
    /// Whether there is a command on this host, and no data has moved yet: it may be asking something at the terminal.
    may_ask: bool,
    /// Since when the last line of a stage has no end. A line that is written over again and again is not drawn over.
    unfinished: Option<Instant>,
    /// Whether a hop has met.
    has_begun: bool,
    /// Hops without a link, by number of their sender's end: since when, and for how many seconds a reconnection is
    /// tried.
    lost: HashMap<u32, (Instant, u64)>,
    /// Several hosts that get one stream, and the line about them.
    hosts: Hosts,
    line_of_hosts: Option<String>,
    rates: Vec<Rate>,
    notices: Notices,
}

impl<'a> HopsConsole<'a> {
    /// Makes a console. `may_draw`: nothing else writes to the terminal. `is_until_output`: nothing but a session that
    /// ends at standard output writes to it. `may_ask`: a command may ask something there before any data moves.
    pub(crate) fn new(reporter: &'a Reporter<'a>, may_draw: bool, is_until_output: bool, may_ask: bool) -> Self {
        let options = reporter.options;
        Self {
            reporter,
            options,
            area: ProgressArea::new("rdpipe", options, may_draw || is_until_output),
            is_until_output,
            may_ask,
            unfinished: None,
            has_begun: false,
            lost: HashMap::new(),
            hosts: Hosts::default(),
            line_of_hosts: None,
            rates: Vec::new(),
            notices: Notices::new(Instant::now()),
        }
    }

    /// Prints a line, unless `--quiet` was given.
    fn say(&mut self, line: &str) {
        if !self.options.quiet {
            self.area.say(line);
        }
    }

    /// Prints a few lines at a time, and after that the number of suppressed ones.
    fn say_some(&mut self, line: &str) {
        let (held, may_say) = self.notices.count(Instant::now());
        self.tell_held(held);
        if may_say {
            self.say(line);
        }
    }

    fn tell_held(&mut self, held: u32) {
        if held > 0 {
            self.say(&format!("{held} more lines like these, about these or other hops"));
        }
    }

    /// Prints the last line, if there is a reader for it: what became of a stream to several hosts (`streamed`), or
    /// what the hop that has carried most has carried. `is_done`: whether the pipeline has succeeded.
    pub(crate) fn say_last(&mut self, hops: &[Hop], streamed: Option<&Streamed>, is_done: bool) {
        let (progress, verbose) = (self.options.progress, self.options.is_verbose());
        let is_seen = match streamed {
            Some(_) => progress || verbose || std::io::stderr().is_terminal(),
            // With -v, each hop has its line. At a terminal, the line takes the place of the bars, which were erased.
            None => is_done && (progress || was_drawn() && !verbose),
        };
        if self.options.quiet || !is_seen {
            return;
        }
        if let Some(line) = streamed.map(Streamed::line).or_else(|| self.hop_that_carried_most(hops)) {
            self.area.clear();
            crate::cli::say(&line);
        }
    }

    fn hop_that_carried_most(&self, hops: &[Hop]) -> Option<String> {
        let is_put_out =
            |hop: &Hop| hop.stages[1].is_none() && hop.told().is_some_and(|report| report.figures.counters.bytes > 0);
        let figures = hops.iter().filter_map(|hop| Some((hop, hop.figures()?)));
        let (hop, figures) = figures.max_by_key(|(_, figures)| figures.counters.bytes)?;
        let bytes = figures.counters.bytes;
        // No line is needed if the data itself has gone to the terminal, or if there was hardly any data.
        if self.area.is_drawn_anew() && self.is_until_output && hops.iter().any(is_put_out)
            || bytes < LAST_LINE_BYTES_MIN && !self.options.progress
        {
            return None;
        }
        let label = if hops.len() > 1 { format!("{}: ", hop.label()) } else { String::new() };
        Some(format!("{label}{}", stream_line(bytes, figures.seconds)))
    }

    /// Prints what `-v` asks for at the end of a successful pipeline.
    pub(crate) fn sum_up(&mut self, stages: &[Stage], hops: &[Hop], launcher: &str) {
        for line in hops.iter().filter_map(|hop| hop_line(hop, launcher)) {
            self.say(&line);
        }
        if let Some((name, share)) = limiter(stages, hops) {
            self.say(&format!("limited by {name}, for {:.0} % of the time", share * 100.0));
        }
    }
}

impl job::Observer for HopsConsole<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.reporter.event(event);
    }

    fn measured(&mut self, hop: &Hop, side: Side, bytes: u64, waits: Waits) {
        self.reporter.record(|record| record.measured(hop, side, bytes, waits));
    }

    fn remark(&mut self, line: &str) {
        self.reporter.happened(Weight::Plain, line);
        self.say(line);
    }

    fn complain(&mut self, line: &str) {
        self.reporter.happened(Weight::Failed, line);
        self.area.complain(line);
    }

    fn show_hosts(&mut self, hosts: &[HostShown], made: u64, is_all: bool, elapsed: Duration) {
        let shown = HostsShown { hosts, made, is_all, elapsed };
        self.hosts.tell(self.reporter, &shown);
        self.may_ask &= made == 0 && !is_all;
        self.line_of_hosts = self.area.is_on().then(|| self.hosts.line(&shown, self.area.columns()));
    }

    fn finish(&mut self) {
        let held = std::mem::take(&mut self.notices.held);
        self.tell_held(held);
        self.area.clear();
    }
}

impl pipeline::Observer for HopsConsole<'_> {
    fn notice(&mut self, line: &str) {
        self.reporter.happened(Weight::Plain, line);
        self.say_some(line);
    }

    fn lanes(&mut self, hop: &Hop, notice: Notice, reason: Option<&str>, reconnect_s: u64) {
        let event = SessionEvent::Notice(notice, reason.map(|reason| format!("{}, {reason}", hop.label())));
        self.reporter.noticed(&event);
        match notice {
            Notice::LinkLost => drop(self.lost.insert(hop.ends[0], (Instant::now(), reconnect_s))),
            Notice::LinkRestored => drop(self.lost.remove(&hop.ends[0])),
            _ => {}
        }
        if let Some(line) = notice_line(notice, reason, &hop.names[1], reconnect_s, self.options.is_verbose()) {
            self.say_some(&format!("{}: {line}", hop.label()));
        }
    }

    fn pass_on(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.unfinished = (bytes.last() != Some(&b'\n')).then(Instant::now);
        self.area.clear();
        crate::standard_error::write(bytes);
    }

    fn progress(&mut self, hops: &[Hop]) {
        self.may_ask &= hops.iter().all(|hop| hop.bytes == 0);
        let is_unfinished = self.unfinished.is_some_and(|since| since.elapsed() < UNFINISHED_MAX);
        if self.area.is_drawn_anew() && (self.may_ask || is_unfinished) {
            return;
        }
        let guarded = self.is_until_output && self.area.is_drawn_anew();
        let mut unwritten = if guarded { Unwritten::hold() } else { None };
        if guarded && unwritten.is_none() {
            return;
        }
        // Progress begins when a hop has met: logins take as long as they take.
        if !self.has_begun {
            self.has_begun = hops.iter().any(Hop::has_met);
            self.area.restart();
        }
        let Self { area, rates, lost, line_of_hosts, .. } = self;
        let began = area.began;
        area.show(|columns| {
            rates.resize_with(hops.len(), Rate::default);
            for (rate, hop) in rates.iter_mut().zip(hops) {
                if lost.contains_key(&hop.ends[0]) {
                    *rate = Rate::default();
                }
                rate.add(Instant::now(), hop.bytes, hop.waits);
            }
            let is_moving = |(_, hop): &(_, &Hop)| hop.has_met() && !hop.is_over() && !hop.is_of_chain();
            let moving = rates.iter().zip(hops).filter(is_moving);
            let line = |(lately, hop): (&Rate, &Hop)| {
                let average = || rate(hop.bytes, began.elapsed().as_secs_f64());
                let without = lost.get(&hop.ends[0]);
                let shown = Shown {
                    bytes: hop.bytes,
                    rate: Some(lately.bytes_per_second().unwrap_or_else(average)),
                    // Earlier waits say nothing about a link that is lost.
                    waits: if without.is_some() { Waits::default() } else { lately.waits() },
                    seconds: began.elapsed().as_secs(),
                    no_link: without.map(|(since, reconnect_s)| no_link(&hop.names[1], *since, *reconnect_s)),
                    ..Shown::default()
                };
                moving_line(&hop.label(), &shown, columns)
            };
            moving.map(line).chain(line_of_hosts.take()).collect()
        });
        if let Some(unwritten) = &mut unwritten {
            unwritten.before_first_byte(self.area.clearing());
        }
    }
}

impl Notices {
    fn new(now: Instant) -> Self {
        Self { since: now, said: 0, held: 0 }
    }

    /// Counts one more line. Returns the number of suppressed lines to report first, and whether this line is printed.
    fn count(&mut self, now: Instant) -> (u32, bool) {
        let mut held = 0;
        if now.saturating_duration_since(self.since) > NOTICES_WITHIN {
            held = self.held;
            *self = Self::new(now);
        }
        let may_say = self.said < NOTICES_MAX;
        *(if may_say { &mut self.said } else { &mut self.held }) += 1;
        (held, may_say)
    }
}

/// Describes how far a hop is, on one line for a terminal with this many columns. What does not fit is left out.
fn moving_line(label: &str, shown: &Shown, columns: usize) -> String {
    let label = cut_end(label, (columns / 2).max(columns.saturating_sub(FIGURES_COLUMNS)));
    let label = label.trim_end();
    format!("{label}: {}", shown.plain_line(columns.saturating_sub(label.width() + 2))).trim_end().to_owned()
}

/// Describes a hop on one line.
fn hop_line(hop: &Hop, launcher: &str) -> Option<String> {
    let (report, figures) = (hop.told()?, hop.figures()?);
    let through = hop.tunneled.then_some(launcher);
    // Files written through the cache appear only in the report, because that is the usual way.
    let written = Some(figures.written).filter(|written| written.direct_bytes > 0);
    let ways = [read_line(&figures.read), written.as_ref().and_then(written_line)];
    let ways: String = ways.into_iter().flatten().map(|line| format!(", {line}")).collect();
    Some(format!(
        "{}: {}, {}, {}{ways}",
        hop.label(),
        size_words(figures.counters.bytes),
        rate_words(rate(figures.counters.bytes, figures.seconds)),
        route(report, through)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_whole_words() {
        let waits = Waits { limit: 1.0, ..Waits::default() };
        let shown = Shown { bytes: 47 << 20, rate: Some(22e6), waits, seconds: 3, ..Shown::default() };
        let line = |label: &str, columns| moving_line(label, &shown, columns);
        assert_eq!(line("h1 -> h2", 80), "h1 -> h2: 47 MiB  22 MB/s (--bwlimit 100 %)  in 3 s");
        assert_eq!(line("h1 -> h2", 40), "h1 -> h2: 47 MiB  22 MB/s  in 3 s");
        assert_eq!(line("h1 -> h2", 25), "h1 -> h2: 47 MiB in 3 s");
        assert_eq!(line("storage.example.org -> h2", 40), "storage.example.org: 47 MiB in 3 s");
        for columns in 0..120 {
            for label in ["h1 -> h2", "a-host-with-a-long-name.example.org -> another.example.org"] {
                let line = line(label, columns);
                assert!(line.width() < columns.max(3), "{columns}: {line:?}");
            }
        }
    }

    #[test]
    fn of_many_notices_few_are_said_and_the_rest_counted() {
        let start = Instant::now();
        let mut notices = Notices::new(start);
        let said = (0..800).filter(|_| notices.count(start).1).count();
        assert_eq!((said, notices.held), (NOTICES_MAX as usize, 800 - NOTICES_MAX));
        let later = start + NOTICES_WITHIN + Duration::from_secs(1);
        assert_eq!(notices.count(later), (800 - NOTICES_MAX, true));
        assert_eq!(notices.count(later), (0, true));
    }
}
