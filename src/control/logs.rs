//! The log of an agent at its caller. Its lines come over the channel, only few of them may wait, and their times are
//! from another clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::channel::Outbox;
use super::frames::{LOG_ABOUT_BYTES_MAX, LOG_TEXT_BYTES_MAX, LogLine, Message};
use crate::log::{self, Entry, Level, Mark, Step};

/// Number of lines accepted from an agent in one burst, and per second after that. An agent that sends more is broken
/// or hostile.
const BURST_MAX: f64 = 20_000.0;
const LINES_PER_SECOND: f64 = 2000.0;

/// At an agent: from now on, sends the caller log lines up to this level. Lines for which there is no room are dropped
/// and counted.
pub fn tell(outbox: &Outbox, level: u8) {
    let outbox = outbox.clone();
    outbox.try_send_line(&Message::LogLine(Box::new(LogLine { now: log::now(), ..LogLine::default() })));
    let dropped = AtomicU64::new(0);
    log::start(Level::from_number(level), move |entry| {
        let before = dropped.swap(0, Ordering::Relaxed);
        if !outbox.try_send_line(&Message::LogLine(Box::new(line_of(entry, before)))) {
            dropped.fetch_add(before + 1, Ordering::Relaxed);
        }
    });
}

fn line_of(entry: Entry, dropped: u64) -> LogLine {
    let Entry { at, level, about, mark, text, .. } = entry;
    let number = |step: Step| 2 * Step::ALL.iter().position(|&other| other == step).unwrap_or(0) as u8;
    LogLine {
        now: log::now(),
        at,
        level: level as u8,
        about: cut(about, LOG_ABOUT_BYTES_MAX),
        mark: match mark {
            Mark::Moment => 0,
            Mark::Begin(step) => 1 + number(step),
            Mark::End(step) => 2 + number(step),
        },
        text: cut(text, LOG_TEXT_BYTES_MAX),
        dropped,
    }
}

fn cut(mut text: String, bytes_max: usize) -> String {
    let end = (0..=bytes_max.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.truncate(end);
    text
}

fn mark_of(number: u8) -> Mark {
    let Some(before) = number.checked_sub(1) else { return Mark::Moment };
    let Some(&step) = Step::ALL.get(usize::from(before / 2)) else { return Mark::Moment };
    if before % 2 == 0 { Mark::Begin(step) } else { Mark::End(step) }
}

/// The time at which an agent was asked for its log, by this host's clock; 0 until then.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<AtomicU64>);

impl Asked {
    /// Asks for the log if this process has a log itself.
    pub fn ask(&self, outbox: &Outbox) {
        if let Some(level) = log::level() {
            self.0.store(log::now(), Ordering::Release);
            outbox.send(Message::TellLog(level as u8));
        }
    }
}

/// At the caller: the log of one agent. Any part of it may be false.
#[derive(Debug)]
pub struct LogOfHost {
    host: String,
    asked: Asked,
    /// Difference to add to the agent's times to convert them to this host's clock, once known.
    ahead: Option<i64>,
    /// When the last line came. `budget` is the number of further lines that were allowed then.
    came: u64,
    budget: f64,
    refused: u64,
}

impl LogOfHost {
    /// Creates the log. `host` is its name for the user.
    pub fn new(host: &str, asked: Asked) -> Self {
        Self { host: host.to_owned(), asked, ahead: None, came: log::now(), budget: BURST_MAX, refused: 0 }
    }

    /// Passes a line on to this process's log.
    pub fn take(&mut self, line: LogLine) {
        if let Some(entry) = self.entry(line, log::now()) {
            log::pass(entry);
        }
    }

    /// Converts a line that has come at the time `now` to an entry of this process's log.
    fn entry(&mut self, line: LogLine, now: u64) -> Option<Entry> {
        let asked = self.asked.0.load(Ordering::Acquire);
        if asked == 0 {
            return None;
        }
        let passed_s = now.saturating_sub(self.came) as f64 / 1e6;
        self.budget = (self.budget + passed_s * LINES_PER_SECOND).min(BURST_MAX);
        self.came = now;
        if self.budget < 1.0 {
            self.refused = self.refused.saturating_add(1);
            return None;
        }
        self.budget -= 1.0;
        let LogLine { now: theirs, at, level, about, mark, mut text, dropped } = line;
        let is_first = self.ahead.is_none();
        // The agent read its clock halfway between the question and the answer, plus or minus half of the time between
        // them.
        let half = now.saturating_sub(asked) / 2;
        let ahead = *self.ahead.get_or_insert_with(|| {
            let ahead = (asked + half).wrapping_sub(theirs) as i64;
            // If the difference is within that uncertainty, times are left unchanged: it is one host, or both use NTP.
            if ahead.unsigned_abs() > half { ahead } else { 0 }
        });
        if is_first {
            let text = match ahead {
                0 => format!("its clock matches ours, +-{}", millis(half)),
                _ => {
                    let (differs, way) = (millis(ahead.unsigned_abs()), if ahead < 0 { "ahead of" } else { "behind" });
                    format!("its clock is {differs} {way} ours, +-{}; its times are converted", millis(half))
                }
            };
            let (host, about) = (Some(self.host.clone()), String::new());
            return Some(Entry { at: now, host, level: Level::Debug, about, mark: Mark::Moment, text });
        }
        let lost = dropped.saturating_add(std::mem::take(&mut self.refused));
        if lost > 0 {
            text = format!("({lost} lines before this one were lost) {text}");
        }
        // Whatever time the line claims, it was sent between the question and now.
        let at = at.wrapping_add(ahead as u64).clamp(asked, now.max(asked));
        let (host, level) = (Some(self.host.clone()), Level::from_number(level));
        Some(Entry { at, host, level, about, mark: mark_of(mark), text })
    }
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(asked: u64) -> LogOfHost {
        let log = LogOfHost::new("h1", Asked(Arc::new(AtomicU64::new(asked))));
        LogOfHost { came: asked, ..log }
    }

    fn line(now: u64, at: u64) -> LogLine {
        LogLine { now, at, level: 2, text: "x".to_owned(), ..LogLine::default() }
    }

    #[test]
    fn times_of_another_clock_become_ours() {
        for (clock, words) in [(5_000_000_u64, "behind"), (90_000_000, "ahead of")] {
            let asked = 50_000_000;
            let mut heard = heard(asked);
            // A round trip of 4 ms: the agent read its clock 2 ms after the question.
            let said = heard.entry(line(clock + 2000, 0), asked + 4000).expect("its clock");
            assert!(said.text.contains(words) && said.text.contains("+-2.0 ms"), "{}", said.text);
            let entry = heard.entry(line(clock + 9000, clock + 8000), asked + 11_000).expect("a line");
            assert_eq!(entry.at, asked + 8000);
        }
        // A difference within the uncertainty counts as none.
        let mut heard = heard(1_000_000);
        let said = heard.entry(line(1_001_000, 0), 1_004_000).expect("its clock");
        assert_eq!(said.text, "its clock matches ours, +-2.0 ms");
        assert_eq!(heard.entry(line(1_006_000, 1_005_000), 1_007_000).expect("a line").at, 1_005_000);
    }

    /// Tests times that a hostile agent may send.
    #[test]
    fn no_line_is_from_before_the_question_or_from_the_future() {
        let mut heard = heard(1000);
        heard.entry(line(u64::MAX, 0), 2000);
        for (at, now) in [(0, 3000), (u64::MAX, 4000), (u64::MAX / 2, 5000)] {
            let entry = heard.entry(line(at, at), now).expect("a line");
            assert!((1000..=now).contains(&entry.at), "{at}: {}", entry.at);
        }
        let mut unasked = self::heard(0);
        assert!(unasked.entry(line(0, 0), 10).is_none(), "nobody has asked");
    }

    #[test]
    fn a_flood_is_dammed_and_counted() {
        let mut heard = heard(1000);
        let taken = (0..100_000).filter(|_| heard.entry(line(1, 1), 1000).is_some()).count();
        assert_eq!(taken, BURST_MAX as usize);
        let entry = heard.entry(LogLine { dropped: 5, ..line(1, 1) }, 1_001_000).expect("a second later");
        assert!(entry.text.starts_with("(80005 lines"), "{}", entry.text);
    }

    #[test]
    fn marks_come_out_as_they_went_in() {
        for step in Step::ALL {
            for mark in [Mark::Moment, Mark::Begin(step), Mark::End(step)] {
                let entry =
                    Entry { at: 1, host: None, level: Level::Debug, about: String::new(), mark, text: String::new() };
                assert_eq!(mark_of(line_of(entry, 0).mark), mark);
            }
        }
        assert_eq!(mark_of(255), Mark::Moment);
        assert_eq!(cut("é".repeat(5), 3), "é");
    }
}
