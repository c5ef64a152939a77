//! `--trace FILE`: a run in the format that Perfetto and chrome://tracing draw. The trace shows the run's [`Record`],
//! which has each end's progress and waits, and the run's log, which has the steps of every host.
//!
//! Each host is drawn as a process. Each session or host that it logs about is a thread of that process. Spans of a
//! thread always nest, whatever other hosts send.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::record::{Record, Weight};
use crate::cli::log::Kept;
use crate::fault::printable;
use crate::log::{Entry, Mark, Step};

/// Makes an event in Chrome's trace format. Times are in microseconds since the run began.
fn event(name: &str, ph: &str, ts: u64, (pid, tid): (usize, usize), args: Value) -> Value {
    json!({ "name": name, "ph": ph, "ts": ts, "pid": pid, "tid": tid, "args": args })
}

/// Sorts events by time. Of events that begin at the same time, the one that encloses the others comes first.
fn sort(events: &mut [Value]) {
    let number = |event: &Value, key: &str| event[key].as_u64().unwrap_or(0);
    events.sort_by_key(|event| (number(event, "ts"), u64::MAX - number(event, "dur")));
}

/// Numbers of hosts, and of the sessions and hosts that each host logs about.
#[derive(Default)]
struct Places {
    hosts: BTreeMap<String, usize>,
    threads: BTreeMap<(usize, String), usize>,
}

/// Number of the host on which the command runs.
const HERE: usize = 1;

impl Places {
    fn host(&mut self, name: &str) -> usize {
        // Names that hops and hosts use for the host on which the command runs.
        if matches!(name, "" | "this host" | "localhost") {
            return HERE;
        }
        let next = HERE + 1 + self.hosts.len();
        *self.hosts.entry(name.to_owned()).or_insert(next)
    }

    fn thread(&mut self, host: usize, about: &str) -> usize {
        let next = 1 + self.threads.len();
        *self.threads.entry((host, about.to_owned())).or_insert(next)
    }

    /// Returns events that give hosts and threads their names.
    fn names(&self) -> Vec<Value> {
        let name = |what: &str, place, name: &str| event(what, "M", 0, place, json!({ "name": name }));
        let here = name("process_name", (HERE, 0), "this host");
        let hosts = self.hosts.iter().map(|(host, &pid)| name("process_name", (pid, 0), host));
        let threads = self
            .threads
            .iter()
            .map(|((pid, about), &tid)| name("thread_name", (*pid, tid), if about.is_empty() { "run" } else { about }));
        [here].into_iter().chain(hosts).chain(threads).collect()
    }
}

/// Renders the trace. `kept` is the log.
pub(super) fn render(record: &Record, kept: &Kept, exit: u8) -> Vec<u8> {
    let mut places = Places::default();
    let end = micros(record.now());
    let mut events = spans(record.began_micros, &kept.entries, end, &mut places);
    events.extend(counters(record, &mut places));
    events.extend(instants(record, &mut places));
    sort(&mut events);
    let mut all = places.names();
    all.append(&mut events);
    let began = humantime::format_rfc3339_millis(record.began_at).to_string();
    let trace = json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "command": record.command,
            "version": env!("CARGO_PKG_VERSION"),
            "began": began,
            "exit": exit,
            "left_out": kept.left_out + record.events_left_out,
        },
        "traceEvents": all,
    });
    let mut bytes = trace.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// A step that has begun and not ended.
struct Open {
    step: Step,
    from: u64,
    text: String,
}

/// Returns the steps and moments of each host as events. A step that ends also ends the steps within it. A step that
/// never ends lasts until the end of the run.
fn spans(began: u64, entries: &[Entry], end: u64, places: &mut Places) -> Vec<Value> {
    let mut events = Vec::new();
    let mut open: BTreeMap<(usize, usize), Vec<Open>> = BTreeMap::new();
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by_key(|entry| entry.at);
    let span = |place, Open { step, from, text }: Open, to: u64, last: Value| {
        let mut span = event(step.name(), "X", from, place, json!({ "begins": text, "ends": last }));
        span["dur"] = to.saturating_sub(from).into();
        span
    };
    for entry in sorted {
        let at = entry.at.saturating_sub(began).min(end);
        let pid = places.host(&printable(entry.host.as_deref().unwrap_or("")));
        let place = (pid, places.thread(pid, &printable(&entry.about)));
        let text = printable(&entry.text);
        match entry.mark {
            Mark::Moment => events.push(instant(&text, at, place, "t")),
            Mark::Begin(step) => open.entry(place).or_default().push(Open { step, from: at, text }),
            Mark::End(step) => {
                let steps = open.entry(place).or_default();
                let Some(first) = steps.iter().rposition(|open| open.step == step) else {
                    events.push(instant(&text, at, place, "t"));
                    continue;
                };
                for inner in steps.drain(first..) {
                    let last = if inner.step == step { json!(text) } else { Value::Null };
                    events.push(span(place, inner, at, last));
                }
            }
        }
    }
    for (place, steps) in open {
        events.extend(steps.into_iter().map(|step| span(place, step, end, Value::Null)));
    }
    events
}

/// Makes an event without a duration. `scope`: `t` for a thread, `g` for the whole run.
fn instant(name: &str, ts: u64, place: (usize, usize), scope: &str) -> Value {
    let mut instant = event(name, "i", ts, place, json!({}));
    instant["s"] = scope.into();
    instant
}

/// Returns the rate of each end over time, and what it waited for.
fn counters(record: &Record, places: &mut Places) -> Vec<Value> {
    let mut events = Vec::new();
    for track in &record.tracks {
        for (side, (end, way)) in track.ends.iter().zip(["to", "from"]).enumerate() {
            if end.series.samples().is_empty() {
                continue;
            }
            let pid = places.host(&track.names[side]);
            let peer = &track.names[1 - side];
            let counter = |what: &str, ts: f64, args: Value| {
                event(&format!("{what} ({way} {peer})"), "C", micros(ts), (pid, 0), args)
            };
            // The value of a counter holds until its next event.
            for pair in end.series.samples().windows(2) {
                let [(from, before), (to, total)] = pair else { continue };
                let (passed, step) = (to - from, total.since(*before));
                if passed <= 0.0 {
                    continue;
                }
                events.push(counter("MB/s", *from, json!({ "rate": step.bytes as f64 / passed / 1e6 })));
                let whole = step.waits.total().max(f64::MIN_POSITIVE);
                let shares =
                    step.waits.named().map(|(wait, seconds)| (wait.name().to_owned(), json!(100.0 * seconds / whole)));
                events.push(counter("waits for, %", *from, Value::Object(shares.into_iter().collect())));
            }
            if let Some((_, last)) = end.series.span() {
                events.push(counter("MB/s", last, json!({ "rate": 0.0 })));
            }
        }
    }
    events
}

/// Returns the lines that the command printed, and the changes of state of several hosts.
fn instants(record: &Record, places: &mut Places) -> Vec<Value> {
    let weight = |weight| match weight {
        Weight::Plain => "note",
        Weight::Lost => "lost",
        Weight::Healed => "restored",
        Weight::Failed => "failed",
    };
    let run = (HERE, places.thread(HERE, ""));
    let mut events = Vec::new();
    for event in &record.events {
        let name = format!("{}: {}", weight(event.weight), printable(&event.line));
        events.push(instant(&name, micros(event.at), run, "g"));
    }
    for host in &record.hosts {
        let place = (places.host(&host.name), 0);
        for (at, standing) in &host.changes {
            let code = json!(standing);
            events.push(instant(code.as_str().unwrap_or_default(), micros(*at), place, "t"));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Level;

    /// The log entries are arbitrary, as a hostile agent may send them.
    #[test]
    fn spans_of_a_thread_nest_and_stay_within_the_run() {
        let (mut number, mut entries) = (1_u64, Vec::new());
        for _ in 0..3000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let step = Step::ALL[(number >> 33) as usize % Step::ALL.len()];
            let mark = match number >> 60 {
                0..6 => Mark::Begin(step),
                6..12 => Mark::End(step),
                _ => Mark::Moment,
            };
            let (at, about) = ((number >> 20) % 5000, format!("to h{}\n", (number >> 40) % 2));
            let (host, text) = (Some("\u{1b}h1".to_owned()), "x".to_owned());
            entries.push(Entry { at, host, level: Level::Debug, about, mark, text });
        }
        let mut places = Places::default();
        let mut events = spans(1000, &entries, 3000, &mut places);
        sort(&mut events);
        let number = |event: &Value, key: &str| event[key].as_u64().expect("a number");
        let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let (from, around) = (number(event, "ts"), open.entry(number(event, "tid")).or_default());
            let end = from + number(event, "dur");
            around.retain(|&end| end > from);
            assert!(end <= 3000 && around.last().is_none_or(|&around| end <= around), "{event}");
            around.push(end);
        }
        assert!(events.iter().filter(|event| event["ph"] == "X").count() > 1000);
        assert!(places.names().iter().all(|event| !event["args"].to_string().contains("\\u001b")));
    }
}
