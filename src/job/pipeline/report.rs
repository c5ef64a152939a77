//! What a pipeline reports: standard error of its stages and, at the end, what limited its throughput.

use std::ffi::OsStr;

use super::Stage;
use crate::engine::Waits;
use crate::fault::{Failure, escaped};
use crate::job::event::{self, rate, rounded};
use crate::job::hop::Hop;

/// Length at which an unfinished line of a stage's standard error is passed on.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Minimum share of the time (0 to 1) for which a stage or hop must have limited a pipeline to be named.
const LIMITER_SHARE_MIN: f64 = 0.3;

/// Puts a label in front of each line of a stage's standard error, and of each state of a line that is written anew.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    label: Option<String>,
    held: Vec<u8>,
}

impl Labelled {
    pub(super) fn new(label: Option<String>) -> Self {
        Self { label, held: Vec::new() }
    }

    /// Returns the bytes that may be written now.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(label) = &self.label else { return bytes.to_vec() };
        self.held.extend_from_slice(bytes);
        let mut ready = Vec::new();
        // A carriage return that came last may belong to a newline that is still to come.
        let is_end = |at: usize, held: &[u8]| match held[at] {
            b'\r' => held.get(at + 1).is_some_and(|&next| next != b'\n'),
            byte => byte == b'\n',
        };
        while let Some(end) = (0..self.held.len()).find(|&at| is_end(at, &self.held)) {
            if end > 0 || self.held[0] == b'\n' {
                ready.extend_from_slice(label.as_bytes());
                ready.extend_from_slice(b": ");
            }
            ready.extend(self.held.drain(..=end));
        }
        if self.held.len() >= LINE_BYTES_MAX {
            ready.extend(self.rest());
        }
        ready
    }

    /// Returns the last line, if it has no newline.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let Some(label) = self.label.as_ref().filter(|_| !self.held.is_empty()) else { return Vec::new() };
        let mut line = format!("{label}: ").into_bytes();
        line.append(&mut self.held);
        line.push(b'\n');
        line
    }
}

/// Returns what limited the pipeline, and for which share of the time. A stage or hop that itself waits for nothing is
/// waited for by its neighbours. So a command is the limiter for as long as the session before it waits for it to take
/// data and the session behind it waits for its data.
pub(crate) fn limiter(stages: &[Stage], hops: &[Hop]) -> Option<(String, f64)> {
    let [sender, receiver] = [0, 1];
    // The hops of a chain limit each other.
    let hops: Vec<&Hop> = hops.iter().filter(|hop| !hop.is_of_chain()).collect();
    let reports = hops.iter().flat_map(|hop| hop.reports.iter().flatten());
    // Shares are of the time in which anything moved, because a hop that carries one last line is not limited by that
    // line.
    let seconds = reports.map(|report| report.figures.seconds).reduce(f64::max)?.max(1e-6);
    // Returns the share of the time for which an end of a hop waited for the selected causes.
    let share = |hop: &Hop, end: usize, of: fn(Waits) -> f64| {
        hop.reports[end].as_ref().map(|report| of(report.figures.waits) / seconds)
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
    for hop in &hops {
        // The hop is the limiter if neither end waits for anything but the other end, or for what --bwlimit allows.
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

/// Quotes a command for use in a sentence.
pub(super) fn quoted(text: &[u8]) -> String {
    use std::os::unix::ffi::OsStrExt;
    format!("'{}'", escaped(OsStr::from_bytes(text.trim_ascii())))
}

/// Returns the result of the whole pipeline for `--json`.
pub(crate) fn end<'a>(stages: &[Stage], hops: &[Hop], failure: Option<&'a Failure>) -> event::Pipeline<'a> {
    use std::os::unix::ffi::OsStrExt;
    let bytes =
        |end: usize, number: usize| hops.iter().find(|hop| hop.stages[end] == Some(number)).map(|hop| hop.bytes);
    let stage = |(number, stage): (usize, &Stage)| {
        let report = stage.end.as_ref().map(|end| &end.report);
        event::Stage {
            host: stage.spec.label(),
            command: escaped(OsStr::from_bytes(&stage.spec.text)),
            exit: report.and_then(|report| report.code),
            signal: report.and_then(|report| report.signal),
            seconds: report.map(|report| rounded(report.micros as f64 / 1e6)),
            bytes_in: stage.received.or_else(|| bytes(1, number)),
            bytes_out: stage.sent.or_else(|| bytes(0, number)),
        }
    };
    let hop = |hop: &Hop| {
        let figures = hop.figures().unwrap_or_default();
        event::Hop {
            from: hop.names[0].clone(),
            to: hop.names[1].clone(),
            bytes: hop.bytes,
            seconds: rounded(figures.seconds),
            gb_per_s: rounded(rate(figures.counters.bytes, figures.seconds) / 1e9),
            transport: figures.transport(),
            lanes: figures.lanes as u64,
            encrypted: figures.encrypted,
            retries: figures.counters.retries,
            read_direct_bytes: figures.read.direct_bytes,
            read_cached_bytes: figures.read.cached_bytes,
            written_direct_bytes: figures.written.direct_bytes,
            written_buffered_bytes: figures.written.buffered_bytes,
            through_launcher: hop.tunneled,
        }
    };
    let limiter = limiter(stages, hops).map(|(name, share)| event::PipelineLimiter { name, share: rounded(share) });
    event::Pipeline {
        result: event::Result::new(failure),
        stages: stages.iter().enumerate().map(stage).collect(),
        hops: hops.iter().map(hop).collect(),
        limiter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (pieces, shown, rest) in [
            (&["\r10%\r20%\r30%"][..], "\rh: 10%\rh: 20%\r", "h: 30%\n"),
            (&["10%\r", "20%\r"], "h: 10%\r", "h: 20%\r\n"),
            (&["a\r\nb", "\r", "\n"], "h: a\r\nh: b\r\n", ""),
        ] {
            let mut labelled = Labelled::new(Some("h".to_owned()));
            let out: Vec<u8> = pieces.iter().flat_map(|piece| labelled.add(piece.as_bytes())).collect();
            let texts = [out, labelled.rest()].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert_eq!(texts, [shown, rest], "{pieces:?}");
        }
        let mut plain = Labelled::new(None);
        assert_eq!(plain.add(b"a\x1b[1mb"), b"a\x1b[1mb");
        assert!(plain.rest().is_empty());
    }
}
