//! Reports of a pipeline to a person: standard error of its stages, progress, and at the end what limited it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rd_proto::session::Notice;

use super::area::ProgressArea;
use super::hosts::{Hosts, HostsShown};
use super::record::Weight;
use super::{Reporter, limiter_now, no_link, notice_line, read_line, stream_line, written_line};
use crate::cli::options::ReportOptions;
use crate::engine::{SessionEvent, Waits};
use crate::fs::standard::Unwritten;
use crate::job::copy::route;
use crate::job::event::{Event, rate};
use crate::job::hop::{Hop, Side};
use crate::job::pipeline::Stage;
use crate::job::pipeline::report::limiter;
use crate::job::progress::{HostShown, Rate, size_words};
use crate::job::{self, pipeline};
use crate::measure::words::rate_words;

/// Maximum number of lines about hops that are printed within [`NOTICES_WITHIN`]. With hundreds of hops, what happens
/// to one hop happens to most of them.
const NOTICES_MAX: u32 = 3;
const NOTICES_WITHIN: Duration = Duration::from_secs(10);

/// Minimum number of bytes that a hop must have carried to get a last line.
const LAST_LINE_BYTES_MIN: u64 = 1 << 20;

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
    /// ends at standard output writes to it.
    pub(crate) fn new(reporter: &'a Reporter<'a>, may_draw: bool, is_until_output: bool) -> Self {
        let options = reporter.options;
        Self {
            reporter,
            options,
            area: ProgressArea::new("rdpipe", options, may_draw || is_until_output),
            is_until_output,
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

    /// Prints the result of the hop that has carried most, because its progress bar has been erased.
    pub(crate) fn say_last(&mut self, hops: &[Hop]) {
        let is_put_out =
            |hop: &Hop| hop.stages[1].is_none() && hop.told().is_some_and(|report| report.figures.counters.bytes > 0);
        let may_follow = !self.is_until_output || !hops.iter().any(is_put_out);
        let Some((hop, figures)) = hops
            .iter()
            .filter_map(|hop| Some((hop, hop.figures()?)))
            .max_by_key(|(_, figures)| figures.counters.bytes)
            // No line is needed if the data itself has gone to the terminal, or if there was hardly any data.
            .filter(|(_, figures)| !self.options.quiet && may_follow && figures.counters.bytes >= LAST_LINE_BYTES_MIN)
        else {
            return;
        };
        let label = if hops.len() > 1 { format!("{}: ", hop.label()) } else { String::new() };
        let line = stream_line(figures.counters.bytes, figures.seconds);
        self.area.clear();
        crate::cli::say(&format!("{label}{line}"));
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
        self.area.clear();
        crate::standard_error::write(bytes);
    }

    fn progress(&mut self, hops: &[Hop]) {
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
        area.show(|_| {
            rates.resize_with(hops.len(), Rate::default);
            for (rate, hop) in rates.iter_mut().zip(hops) {
                if lost.contains_key(&hop.ends[0]) {
                    *rate = Rate::default();
                }
                rate.add(Instant::now(), hop.bytes, hop.waits);
            }
            let is_moving = |(_, hop): &(_, &Hop)| hop.has_met() && !hop.is_over() && !hop.is_of_chain();
            let moving = rates.iter().zip(hops).filter(is_moving);
            let line = |(shown, hop): (&Rate, &Hop)| {
                let speed =
                    || shown.bytes_per_second().unwrap_or_else(|| rate(hop.bytes, began.elapsed().as_secs_f64()));
                let speed = match lost.get(&hop.ends[0]) {
                    Some((since, reconnect_s)) => no_link(&hop.names[1], *since, *reconnect_s),
                    None => format!("{} {}", rate_words(speed()), limiter_now(shown.waits())),
                };
                format!("{}: {}  {speed}", hop.label(), size_words(hop.bytes)).trim_end().to_owned()
            };
            moving.map(line).chain(line_of_hosts.take()).collect()
        });
        if let Some(unwritten) = &mut unwritten {
            unwritten.before_first_byte(self.area.clearing());
        }
    }

    fn show_hosts(&mut self, hosts: &[HostShown], made: u64, is_all: bool, elapsed: Duration) {
        let shown = HostsShown { hosts, made, is_all, elapsed };
        self.hosts.tell(self.reporter, &shown);
        self.line_of_hosts = self.area.is_on().then(|| self.hosts.line(&shown, self.area.columns()));
    }

    fn finish(&mut self) {
        let held = std::mem::take(&mut self.notices.held);
        self.tell_held(held);
        self.area.clear();
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
