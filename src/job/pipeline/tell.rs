//! What a pipeline tells: standard error of its stages, progress, and at the end who held it up.

use std::ffi::OsStr;
use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Stage;
use crate::agent::end;
use crate::cli::json;
use crate::cli::options::ReportOptions;
use crate::cli::report::line::size_words;
use crate::cli::report::{
    BAR_AFTER, BAR_HZ, LINE_EVERY, Progress, Rate, in_foreground, limiter_now, rate, rate_words, read_line, rounded,
    written_line,
};
use crate::control::frames::Report;
use crate::engine::{Read, Waits};
use crate::fault::{Failure, escaped};
use crate::job::hop::Hop;

/// How often bars are drawn anew.
const BARS_EVERY: Duration = Duration::from_millis(1000 / BAR_HZ as u64);

/// A line of a stage's standard error is passed on when it is that long, without its end.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Share of the time that somebody must have held a pipeline up for to be named, of 1.
const LIMITER_SHARE_MIN: f64 = 0.3;

/// Lines about hops that are said within [`NOTICES_WITHIN`]: of hundreds, what happens to one happens to most.
const NOTICES_MAX: u32 = 3;
const NOTICES_WITHIN: Duration = Duration::from_secs(10);

/// What has been said of hops lately.
struct Notices {
    since: Instant,
    said: u32,
    held: u32,
}

/// Standard error, which stages, bars and we ourselves share.
pub(super) struct Screen {
    quiet: bool,
    progress: Progress,
    began: Instant,
    drawn: Instant,
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    rates: Vec<Rate>,
    notices: Notices,
}

impl Screen {
    /// `may_draw`: nothing else writes to the terminal.
    pub(super) fn new(options: &ReportOptions, may_draw: bool) -> Self {
        let progress = Progress::new(options, may_draw);
        let now = Instant::now();
        Self {
            quiet: options.quiet,
            progress,
            began: now,
            drawn: now,
            bars: None,
            rates: Vec::new(),
            notices: Notices::new(now),
        }
    }

    fn beside_bars(&self, write: impl FnOnce()) {
        match &self.bars {
            Some((bars, _)) => bars.suspend(write),
            None => write(),
        }
    }

    /// Says a line, unless `--quiet`.
    pub(super) fn say(&self, line: &str) {
        if !self.quiet {
            self.beside_bars(|| crate::cli::say(&format!("rdpipe: {line}")));
        }
    }

    /// Says what happens to a hop: a few lines at a time, and then how many more there were.
    pub(super) fn notice(&mut self, line: &str) {
        let (held, may_say) = self.notices.count(Instant::now());
        self.tell_held(held);
        if may_say {
            self.say(line);
        }
    }

    fn tell_held(&self, held: u32) {
        if held > 0 {
            self.say(&format!("{held} more lines like that, of other hops or of these again"));
        }
    }

    /// Says an error.
    pub(super) fn say_always(&self, line: &str) {
        self.beside_bars(|| crate::cli::complain("rdpipe", line));
    }

    /// Writes what a stage has written to its standard error.
    pub(super) fn pass_on(&self, bytes: &[u8]) {
        // Where our own standard error is closed nobody is listening.
        self.beside_bars(|| drop(std::io::stderr().write_all(bytes)));
    }

    /// Shows how far the hops have come.
    pub(super) fn progress(&mut self, hops: &[Hop]) {
        if self.progress == Progress::Off {
            return;
        }
        let now = Instant::now();
        let every = if self.progress == Progress::Bar { BARS_EVERY } else { LINE_EVERY };
        if now - self.drawn < every || now - self.began < BAR_AFTER {
            return;
        }
        self.drawn = now;
        self.rates.resize_with(hops.len(), Rate::default);
        for (rate, hop) in self.rates.iter_mut().zip(hops) {
            rate.add(now, hop.bytes, hop.waits);
        }
        let rate_of = |at: usize| match self.rates[at].bytes_per_second() {
            Some(rate) => rate,
            None => rate(hops[at].bytes, self.began.elapsed().as_secs_f64()),
        };
        let limiter = |at: usize| limiter_now(self.rates[at].waits());
        let moving = hops.iter().enumerate().filter(|(_, hop)| hop.has_met() && !hop.is_over());
        let lines: Vec<String> = moving
            .map(|(at, hop)| {
                let bytes = size_words(hop.bytes);
                let line = format!("{}: {bytes}  {} {}", hop.label(), rate_words(rate_of(at)), limiter(at));
                line.trim_end().to_owned()
            })
            .collect();
        if self.progress == Progress::Lines {
            return lines.iter().for_each(|line| self.say(line));
        }
        if in_foreground() == Some(false) {
            return;
        }
        let (bars, shown) = self.bars.get_or_insert_with(|| {
            (MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(BAR_HZ)), Vec::new())
        });
        while shown.len() < lines.len() {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}").expect("a fixed template");
            shown.push(bars.add(ProgressBar::new_spinner().with_style(style)));
        }
        for (bar, line) in shown.iter().zip(lines.iter().map(String::as_str).chain(std::iter::repeat(""))) {
            bar.set_message(line.to_owned());
            bar.tick();
        }
    }

    /// Takes the bars away.
    pub(super) fn clear(&mut self) {
        let held = std::mem::take(&mut self.notices.held);
        self.tell_held(held);
        if let Some((bars, shown)) = self.bars.take() {
            shown.iter().for_each(ProgressBar::finish_and_clear);
            let _ = bars.clear();
        }
    }
}

impl Notices {
    fn new(now: Instant) -> Self {
        Self { since: now, said: 0, held: 0 }
    }

    /// One more: how many have not been said and are to be told of first, and whether it is to be said.
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

/// Puts a label in front of each line of a stage's standard error.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    label: Option<String>,
    held: Vec<u8>,
}

impl Labelled {
    pub(super) fn new(label: Option<String>) -> Self {
        Self { label, held: Vec::new() }
    }

    /// What may be written now.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(label) = &self.label else { return bytes.to_vec() };
        self.held.extend_from_slice(bytes);
        let mut ready = Vec::new();
        while let Some(end) = self.held.iter().position(|&byte| byte == b'\n') {
            ready.extend_from_slice(label.as_bytes());
            ready.extend_from_slice(b": ");
            ready.extend(self.held.drain(..=end));
        }
        if self.held.len() >= LINE_BYTES_MAX {
            ready.extend(self.rest());
        }
        ready
    }

    /// What is left without an end of its line.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let Some(label) = self.label.as_ref().filter(|_| !self.held.is_empty()) else { return Vec::new() };
        let mut line = format!("{label}: ").into_bytes();
        line.append(&mut self.held);
        line.push(b'\n');
        line
    }
}

/// The report of a hop's sender, or what there is.
fn report(hop: &Hop) -> Option<&Report> {
    hop.reports[0].as_ref().or(hop.reports[1].as_ref())
}

/// One hop, on one line.
pub(super) fn hop_line(hop: &Hop, launcher: &str) -> Option<String> {
    let report = report(hop)?;
    let seconds = report.micros as f64 / 1e6;
    let through = hop.tunneled.then_some(launcher);
    let read = Read { direct_bytes: report.read_direct_bytes, cached_bytes: report.read_cached_bytes };
    // Files that are written through the cache are told of in the report only: that is what everybody does.
    let written = hop.reports[1].as_ref().map(end::written).filter(|written| written.direct_bytes > 0);
    let ways = [read_line(&read), written.as_ref().and_then(written_line)];
    let ways: String = ways.into_iter().flatten().map(|line| format!(", {line}")).collect();
    Some(format!(
        "{}: {}, {}, {}{ways}",
        hop.label(),
        size_words(report.bytes),
        rate_words(rate(report.bytes, seconds)),
        crate::job::copy::route(report, through)
    ))
}

/// Who held the pipeline up, and for which share of the time. What waits for nobody is waited for by its neighbours: a
/// command is the limiter as far as the session before it waits for it to take data, and the one behind it for data.
pub(super) fn limiter(stages: &[Stage], hops: &[Hop]) -> Option<(String, f64)> {
    let [sender, receiver] = [0, 1];
    let reports = hops.iter().flat_map(|hop| hop.reports.iter().flatten());
    // Of the time in which anything moved: a hop that carries a last line is not held up by it.
    let seconds = reports.map(|report| report.micros).max()?.max(1) as f64 / 1e6;
    // For which share an end of a hop waited for these.
    let share = |hop: &Hop, end: usize, of: fn(Waits) -> f64| {
        hop.reports[end].as_ref().map(|report| of(end::waits(&report.waits)) / seconds)
    };
    let mut found: Vec<(String, f64)> = Vec::new();
    for (number, stage) in stages.iter().enumerate() {
        let before = hops.iter().find(|hop| hop.stages[receiver] == Some(number));
        let behind = hops.iter().find(|hop| hop.stages[sender] == Some(number));
        let shares = [
            before.and_then(|hop| share(hop, receiver, |waits| waits.sink)),
            behind.and_then(|hop| share(hop, sender, |waits| waits.source)),
        ];
        if let Some(least) = shares.into_iter().flatten().reduce(f64::min) {
            found.push((format!("{}'s {}", stage.spec.label(), quoted(&stage.spec.text)), least));
        }
    }
    for hop in hops {
        // Neither end waits for anything but the other, or for what --bwlimit allows.
        let shares = [
            share(hop, sender, |waits| waits.cpu + waits.credits + waits.wire + waits.limit),
            share(hop, receiver, |waits| waits.cpu + waits.wire),
        ];
        if let Some(least) = shares.into_iter().flatten().reduce(f64::min) {
            found.push((format!("the hop {}", hop.label()), least));
        }
        let standard = [
            (sender, share(hop, sender, |waits| waits.source), "standard input"),
            (receiver, share(hop, receiver, |waits| waits.sink), "standard output"),
        ];
        for (end, share, name) in standard {
            if let (None, Some(share)) = (hop.stages[end], share) {
                found.push((name.to_owned(), share));
            }
        }
    }
    let (name, share) = found.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    (share >= LIMITER_SHARE_MIN).then_some((name, share.min(1.0)))
}

/// A command as it may stand in a sentence.
pub(super) fn quoted(text: &[u8]) -> String {
    use std::os::unix::ffi::OsStrExt;
    format!("'{}'", escaped(OsStr::from_bytes(text.trim_ascii())))
}

/// The whole pipeline, for `--json`.
pub(super) fn end<'a>(stages: &[Stage], hops: &[Hop], failure: Option<&'a Failure>) -> json::Pipeline<'a> {
    use std::os::unix::ffi::OsStrExt;
    let bytes =
        |end: usize, number: usize| hops.iter().find(|hop| hop.stages[end] == Some(number)).map(|hop| hop.bytes);
    let stage = |(number, stage): (usize, &Stage)| {
        let report = stage.end.as_ref().map(|end| &end.report);
        json::Stage {
            host: stage.spec.label(),
            command: escaped(OsStr::from_bytes(&stage.spec.text)),
            exit: report.and_then(|report| report.code),
            signal: report.and_then(|report| report.signal),
            seconds: report.map(|report| rounded(report.micros as f64 / 1e6)),
            bytes_in: bytes(1, number),
            bytes_out: bytes(0, number),
        }
    };
    let hop = |hop: &Hop| {
        let report = report(hop).cloned().unwrap_or_default();
        let written = hop.reports[1].as_ref().map(end::written).unwrap_or_default();
        let seconds = report.micros as f64 / 1e6;
        json::Hop {
            from: hop.names[0].clone(),
            to: hop.names[1].clone(),
            bytes: hop.bytes,
            seconds: rounded(seconds),
            gb_per_s: rounded(rate(report.bytes, seconds) / 1e9),
            transport: report.media.join("+"),
            lanes: report.lanes.into(),
            encrypted: report.encrypted,
            retries: report.retries,
            read_direct_bytes: report.read_direct_bytes,
            read_cached_bytes: report.read_cached_bytes,
            written_direct_bytes: written.direct_bytes,
            written_buffered_bytes: written.buffered_bytes,
            through_launcher: hop.tunneled,
        }
    };
    let limiter = limiter(stages, hops).map(|(name, share)| json::PipelineLimiter { name, share: rounded(share) });
    json::Pipeline {
        result: json::Result::new(failure),
        stages: stages.iter().enumerate().map(stage).collect(),
        hops: hops.iter().map(hop).collect(),
        limiter,
    }
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

    #[test]
    fn each_line_is_labelled_once_and_its_rest_at_the_end() {
        let mut labelled = Labelled::new(Some("h".to_owned()));
        let mut out = Vec::new();
        for piece in ["one\ntw", "o", "\n\nthr", "ee"] {
            out.extend(labelled.add(piece.as_bytes()));
        }
        out.extend(labelled.rest());
        assert_eq!(String::from_utf8_lossy(&out), "h: one\nh: two\nh: \nh: three\n");
        assert!(labelled.rest().is_empty());
        let long = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(labelled.add(&long).len(), LINE_BYTES_MAX + 4, "does not wait for its end");
        let mut plain = Labelled::new(None);
        assert_eq!(plain.add(b"a\x1b[1mb"), b"a\x1b[1mb");
        assert!(plain.rest().is_empty());
    }
}
