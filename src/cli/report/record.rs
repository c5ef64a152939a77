//! The record of a run for `--report` and `--trace`: how far each end of each hop was over time, what it waited for,
//! and what happened. Ends may report any numbers. The size of a record does not grow with the length of the run.

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use super::hosts::Holding;
use crate::engine::Waits;
use crate::job::event::HeldUpBy;
use crate::job::hop::{Hop, Side};
use crate::job::progress::{HostShown, HostStanding};

/// Maximum number of samples of one end. When there are as many, each pair is merged.
const SAMPLES_MAX: usize = 240;

/// Minimum time between two samples, before any are merged.
const SPACING_S: f64 = 0.05;

/// How long an end is assumed to have moved data before its first report, if the report does not say.
const FIRST_S: f64 = 0.1;

/// Maximum number of hops, and of hosts, that are recorded.
const TRACKS_MAX: usize = 2048;

/// Maximum number of events that are recorded. Later events are only counted.
const EVENTS_MAX: usize = 400;

/// Maximum number of bytes in the line of an event.
const LINE_BYTES_MAX: usize = 1000;

/// Maximum number of recorded changes of a host's state.
const CHANGES_MAX: usize = 64;

/// Maximum number of recorded times in which a host held up others.
const HELD_MAX: usize = 400;

/// Two times in which the same host held up others are merged if the gap between them is no longer than this.
const HELD_GAP_S: f64 = 0.5;

/// How far an end has come, and what it has waited for until then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Total {
    pub(crate) bytes: u64,
    pub(crate) waits: Waits,
}

impl Total {
    fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), waits: self.waits.plus(other.waits) }
    }

    /// Returns the larger value of each figure, because totals never fall, whatever is reported.
    fn at_least(self, other: Self) -> Self {
        let (mut waits, others) = (self.waits.to_array(), other.waits.to_array());
        waits.iter_mut().zip(others).for_each(|(one, other)| *one = one.max(other));
        Self { bytes: self.bytes.max(other.bytes), waits: Waits::from_array(waits) }
    }

    /// Returns what was added since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(earlier.bytes), waits: self.waits.since(earlier.waits) }
    }

    /// Returns the total at a point between this one and `later`; `share` is from 0 to 1.
    fn towards(self, later: Self, share: f64) -> Self {
        let step = later.since(self);
        let waits = step.waits.to_array().map(|seconds| seconds * share);
        self.plus(Self { bytes: (step.bytes as f64 * share) as u64, waits: Waits::from_array(waits) })
    }
}

/// A bounded number of totals, each with its time in seconds.
#[derive(Debug, Default)]
pub(crate) struct Series {
    samples: Vec<(f64, Total)>,
    spacing_s: f64,
}

impl Series {
    fn add(&mut self, at: f64, total: Total) {
        self.spacing_s = self.spacing_s.max(SPACING_S);
        if let [.., before, last] = &mut self.samples[..]
            && last.0 - before.0 < self.spacing_s
        {
            *last = (at, total);
            return;
        }
        self.samples.push((at, total));
        if self.samples.len() >= SAMPLES_MAX {
            // A total includes those before it, so the earlier one of each pair can go. The first one stays as the
            // beginning.
            let mut number = 0;
            self.samples.retain(|_| (number += 1, number == 1 || number % 2 == 0).1);
            self.spacing_s *= 2.0;
        }
    }

    /// Returns all samples in order of time.
    pub(crate) fn samples(&self) -> &[(f64, Total)] {
        &self.samples
    }

    /// Returns the times of the first and the last sample.
    pub(crate) fn span(&self) -> Option<(f64, f64)> {
        Some((self.samples.first()?.0, self.samples.last()?.0))
    }

    /// Returns the total at a time.
    pub(crate) fn at(&self, time: f64) -> Total {
        let behind = self.samples.partition_point(|(at, _)| *at <= time);
        let Some(&(before, total)) = behind.checked_sub(1).and_then(|at| self.samples.get(at)) else {
            return self.samples.first().map(|(_, first)| *first).unwrap_or_default();
        };
        match self.samples.get(behind) {
            Some(&(after, later)) if after > before => total.towards(later, (time - before) / (after - before)),
            _ => total,
        }
    }

    /// Returns what was added in each of `count` equal parts of a time.
    pub(crate) fn parts(&self, (from, to): (f64, f64), count: usize) -> Vec<Total> {
        let time = |number: usize| from + (to - from) * number as f64 / count as f64;
        (0..count).map(|number| self.at(time(number + 1)).since(self.at(time(number)))).collect()
    }
}

/// One end of a hop, over all of its sessions.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) series: Series,
    session: Option<u32>,
    before: Total,
    last: Total,
}

impl End {
    fn add(&mut self, session: u32, at: f64, total: Total) {
        if self.session.replace(session) != Some(session) {
            (self.before, self.last) = (self.before.plus(self.last), Total::default());
            let took = total.waits.total();
            let began = at - if took > 0.0 { took } else { FIRST_S };
            let last = self.series.span().map_or(0.0, |(_, last)| last);
            self.series.add(began.clamp(last, at.max(last)), self.before);
        }
        self.last = self.last.at_least(total);
        self.series.add(at, self.before.plus(self.last));
    }

    /// Returns the total of all sessions.
    pub(crate) fn total(&self) -> Total {
        self.before.plus(self.last)
    }
}

/// A hop between two hosts, or to one of several hosts from whichever host gives it the data.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) names: [String; 2],
    pub(crate) stages: [Option<usize>; 2],
    /// The ends at the sender and at the receiver.
    pub(crate) ends: [End; 2],
}

impl Track {
    /// Returns the time from the first to the last sample of either end.
    pub(crate) fn span(&self) -> Option<(f64, f64)> {
        let spans = self.ends.iter().filter_map(|end| end.series.span());
        spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// Returns what the hop waited for in each of `count` parts of a time, from the reports of both ends.
    pub(crate) fn waits(&self, span: (f64, f64), count: usize) -> Vec<Waits> {
        let [sent, received] = self.ends.each_ref().map(|end| end.series.parts(span, count));
        let joined = |(sent, received): (&Total, &Total)| match sent.waits.total() > 0.0 {
            true => sent.waits.joined(received.waits),
            false => received.waits,
        };
        sent.iter().zip(&received).map(joined).collect()
    }
}

/// What an event means to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Plain,
    /// Something is lost, but the run continues.
    Lost,
    /// Something that was lost is available again.
    Healed,
    /// Something has failed.
    Failed,
}

/// An event of a run.
#[derive(Debug)]
pub(crate) struct Happened {
    pub(crate) at: f64,
    pub(crate) weight: Weight,
    pub(crate) line: String,
}

/// The record of one of several hosts.
#[derive(Debug)]
pub(crate) struct HostRecord {
    pub(crate) name: String,
    /// The host's states, and the time at which each began.
    pub(crate) changes: Vec<(f64, HostStanding)>,
    pub(crate) received: u64,
}

impl HostRecord {
    /// Whether the host has failed in the end.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.changes.last(), Some((_, HostStanding::Failed)))
    }
}

/// A time during which others waited for a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) host: usize,
    pub(crate) by: HeldUpBy,
    pub(crate) others: usize,
}

/// The record of a run.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) command: &'static str,
    began: Instant,
    pub(crate) began_at: SystemTime,
    /// When the run began, as a time of the log.
    pub(crate) began_micros: u64,
    /// Sources and destinations, each with its host, which may be empty.
    pub(crate) route: [Vec<(String, String)>; 2],
    pub(crate) tracks: Vec<Track>,
    tracks_of: HashMap<u32, usize>,
    pub(crate) events: Vec<Happened>,
    pub(crate) events_left_out: u64,
    pub(crate) hosts: Vec<HostRecord>,
    pub(crate) held: Vec<Held>,
}

impl Record {
    pub(crate) fn new(command: &'static str) -> Self {
        Self {
            command,
            began: Instant::now(),
            began_at: SystemTime::now(),
            began_micros: crate::log::now(),
            route: Default::default(),
            tracks: Vec::new(),
            tracks_of: HashMap::new(),
            events: Vec::new(),
            events_left_out: 0,
            hosts: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Returns the seconds since the run began.
    pub(crate) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Records a line shown to the user.
    pub(crate) fn happened(&mut self, weight: Weight, line: &str) {
        if self.events.len() == EVENTS_MAX {
            self.events_left_out += 1;
            return;
        }
        let end = (0..=LINE_BYTES_MAX.min(line.len())).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        let at = self.now();
        self.events.push(Happened { at, weight, line: line[..end].to_owned() });
    }

    /// Records how far an end of a hop has come.
    pub(crate) fn measured(&mut self, hop: &Hop, side: Side, bytes: u64, waits: Waits) {
        let session = hop.ends[side as usize];
        let track = match self.tracks_of.get(&session) {
            Some(&track) => track,
            None => {
                // One of several hosts may get its data from different hosts, one after the other.
                let is_one_copy = self.hosts.is_empty();
                let is_it = |track: &Track| match is_one_copy {
                    true => track.names == hop.names && track.stages == hop.stages,
                    false => track.names[1] == hop.names[1],
                };
                let Some(track) = self.track_of(is_it, || (hop.names.clone(), hop.stages)) else { return };
                self.tracks_of.insert(session, track);
                track
            }
        };
        let at = self.now();
        self.tracks[track].ends[side as usize].add(session, at, Total { bytes, waits });
    }

    /// Records how far this process, an end of the only session, has come.
    pub(crate) fn measured_here(&mut self, peer: &str, side: Side, bytes: u64, waits: Waits) {
        let names = || match side {
            Side::From => ["this host".to_owned(), peer.to_owned()],
            Side::To => [peer.to_owned(), "this host".to_owned()],
        };
        let Some(track) = self.track_of(|_| true, || (names(), [None; 2])) else { return };
        let at = self.now();
        self.tracks[track].ends[side as usize].add(0, at, Total { bytes, waits });
    }

    fn track_of(
        &mut self,
        is_it: impl Fn(&Track) -> bool,
        new: impl FnOnce() -> ([String; 2], [Option<usize>; 2]),
    ) -> Option<usize> {
        let known = self.tracks.iter().position(is_it);
        known.or_else(|| {
            let (names, stages) = new();
            let number = self.tracks.len();
            (number < TRACKS_MAX).then(|| self.tracks.push(Track { names, stages, ends: Default::default() }))?;
            Some(number)
        })
    }

    /// Records the state of each of several hosts, and the host for which others wait.
    pub(super) fn hosts(&mut self, hosts: &[HostShown], holding: Option<Holding>) {
        let at = self.now();
        for shown in &hosts[self.hosts.len().min(hosts.len())..hosts.len().min(TRACKS_MAX)] {
            self.hosts.push(HostRecord { name: shown.host.clone(), changes: Vec::new(), received: 0 });
        }
        for (host, shown) in self.hosts.iter_mut().zip(hosts) {
            host.received = host.received.max(shown.received);
            match host.changes.last() {
                Some((_, last)) if *last == shown.standing => {}
                _ if host.changes.len() < CHANGES_MAX => host.changes.push((at, shown.standing)),
                // The final state matters most.
                _ => host.changes[CHANGES_MAX - 1] = (at, shown.standing),
            }
        }
        let Some(Holding { host, by, others }) = holding else { return };
        match self.held.last_mut() {
            Some(last) if (last.host, last.by) == (host, by) && at - last.to <= HELD_GAP_S => {
                (last.to, last.others) = (at, last.others.max(others));
            }
            _ => self.held.push(Held { from: at, to: at, host, by, others }),
        }
        self.held.truncate(HELD_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(bytes: u64, wire: f64, source: f64) -> Total {
        Total { bytes, waits: Waits { wire, source, ..Waits::default() } }
    }

    #[test]
    fn a_run_of_any_length_takes_bounded_samples_and_loses_no_byte() {
        let mut series = Series::default();
        for number in 0..100_000_u32 {
            let at = f64::from(number) / 10.0;
            series.add(at, total(u64::from(number) * 1000, at, 0.0));
            assert!(series.samples.len() < SAMPLES_MAX);
        }
        let (from, to) = series.span().expect("samples");
        assert_eq!((from, to), (0.0, 9999.9));
        let parts = series.parts((from, to), 50);
        let sum: u64 = parts.iter().map(|part| part.bytes).sum();
        assert!((99_999_000 - 50..=99_999_000).contains(&sum), "{sum}");
        assert!(parts.iter().all(|part| (1_990_000..2_010_000).contains(&part.bytes)), "an even rate stays even");
    }

    #[test]
    fn sessions_add_up_and_totals_never_fall() {
        let mut end = End::default();
        end.add(7, 1.0, total(100, 0.5, 0.0));
        assert_eq!(end.series.span(), Some((0.5, 1.0)), "it had run for half a second");
        end.add(7, 2.0, total(90, 0.4, 1.0));
        assert_eq!(end.total(), total(100, 0.5, 1.0));
        end.add(9, 4.0, total(50, 0.0, 0.0));
        assert_eq!(end.total().bytes, 150);
        assert_eq!((end.series.at(3.0).bytes, end.series.at(0.0).bytes, end.series.at(99.0).bytes), (100, 0, 150));
    }

    /// The numbers are those that a hostile agent may report.
    #[test]
    fn numbers_that_cannot_be_do_no_harm() {
        let mut end = End::default();
        for number in 0..1000_u32 {
            let bytes = if number % 2 == 0 { u64::MAX } else { 0 };
            let huge = u64::MAX as f64 / 1e6;
            end.add(number / 3, f64::from(number), total(bytes, huge, huge));
        }
        let parts = end.series.parts((0.0, 1000.0), 120);
        assert!(parts.iter().all(|part| part.waits.total().is_finite()));
        assert_eq!(end.total().bytes, u64::MAX);
    }

    #[test]
    fn events_and_their_lines_are_bounded() {
        let mut record = Record::new("rdcp");
        for _ in 0..EVENTS_MAX + 5 {
            record.happened(Weight::Plain, &"é".repeat(5000));
        }
        assert_eq!((record.events.len(), record.events_left_out), (EVENTS_MAX, 5));
        assert!(record.events.iter().all(|event| event.line.len() <= LINE_BYTES_MAX));
    }

    #[test]
    fn a_host_that_holds_others_up_for_a_while_does_so_once() {
        let mut record = Record::new("rdcp");
        let host =
            |name: &str, standing| HostShown { host: name.to_owned(), standing, received: 5, written: 0, before: None };
        let holding = Holding { host: 1, by: HeldUpBy::Disk, others: 1 };
        for standing in [HostStanding::Receiving, HostStanding::Receiving, HostStanding::Done] {
            record.hosts(&[host("a", standing), host("b", standing)], Some(holding));
        }
        assert_eq!(record.held.len(), 1);
        let standings: Vec<_> = record.hosts[0].changes.iter().map(|(_, standing)| *standing).collect();
        assert_eq!(standings, [HostStanding::Receiving, HostStanding::Done]);
    }
}
