//! The log of a run, and its trace: one file with the events of both ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::copies::at;
use crate::launcher;
use crate::rig::lab::Lab;
use crate::rig::*;

/// File named by `RDMA_PIPE_LOG`.
const FILE: &str = "run.log";

/// Returns host and text of each line of a log, whose times must not decrease.
#[track_caller]
fn lines(lab: &Lab) -> Vec<(String, String)> {
    let text = fs::read_to_string(lab.join(FILE)).expect("a log");
    let (mut lines, mut last) = (Vec::new(), String::new());
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').expect("a time");
        let (host, rest) = rest.split_once("  ").expect("a host");
        let shape: String = time.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
        assert_eq!(shape, "00:00:00.000", "{line}");
        // A run over midnight continues on another day.
        assert!(time >= &*last || last.starts_with("23:"), "{time} after {last}:\n{text}");
        last = time.to_owned();
        lines.push((host.to_owned(), rest.split_once("  ").map_or(rest, |(_, what)| what).to_owned()));
    }
    lines
}

/// Returns the indexes of the lines that contain `part`, from the other end (`is_there`) or from this end.
fn places(lines: &[(String, String)], is_there: bool, part: &str) -> Vec<usize> {
    let is_it = |(host, what): &(String, String)| (host == "h1") == is_there && what.contains(part);
    (0..lines.len()).filter(|&at| is_it(&lines[at])).collect()
}

/// A cut lane is reported once by each end, with its outcome, in order.
pub fn tells_of_a_lane_that_is_cut_once_from_each_end() {
    let lab = Lab::new();
    let source = lab.0.file("source", &noise(24 * CHUNK));
    let us = std::env::current_exe().expect("this program");
    let mut rdcp = lab.command(rdcp(), us.to_str().expect("a path in UTF-8"), AGENT);
    rdcp.env(launcher::IS_LAUNCHER, "1").stdin(Stdio::null()).stdout(Stdio::null());
    rdcp.env(launcher::CUT, "3000000").env("RDMA_PIPE_LOG", format!("debug:{FILE}"));
    let arguments = [source.into_os_string(), at("h1", &lab.join("copy"))];
    Process::spawn(rdcp.args(["--bwlimit", "20M"]).args(arguments)).wait().expect(0);
    let lines = lines(&lab);
    for is_there in [false, true] {
        let one = |part: &str| match places(&lines, is_there, part)[..] {
            [place] => place,
            ref places => panic!("{part}: {places:?} in {lines:#?}"),
        };
        let up = one("lane 1.1 is up");
        // An end that has the loss from the other has no reason of its own to add.
        let lost = one("lost lane 1.1");
        let again = one("lane 1.2 is up");
        let answered = one("confirmed by the receiver");
        assert!(up < lost && lost < again && again < answered, "{lines:#?}");
    }
    let reasons: Vec<usize> =
        [false, true].iter().flat_map(|&is_there| places(&lines, is_there, "lost lane 1.1: ")).collect();
    assert!(!reasons.is_empty(), "one of them knows why: {lines:#?}");
    for part in ["runs ", "an agent answered", "connecting the two ends", "the two ends are connected"] {
        assert_eq!(places(&lines, false, part).len(), 1, "{part}: {lines:#?}");
    }
    let clock = places(&lines, true, "its clock ");
    assert!(clock.len() == 1 && places(&lines, true, "")[0] == clock[0], "{lines:#?}");
    assert_eq!(places(&lines, true, "the digests match").len(), 1);
}

/// A log contains no key, wherever it came from, and no password given to a launcher.
pub fn has_no_secrets_in_it() {
    let lab = Lab::new();
    let log = format!("trace:{}", lab.join(FILE).display());
    let (listens, connects) = (format!("{log}.to"), format!("{log}.from"));
    let mut recv = rdrecv();
    recv.args(["0", KEY]).env("RDMA_PIPE_LOG", listens).stdin(Stdio::null()).stdout(Stdio::null());
    let mut recv = Process::spawn(&mut recv);
    let port = recv.port().to_string();
    let mut send = rdsend();
    send.args(["127.0.0.1", &port]).env("RD_KEY", KEY).env("RDMA_PIPE_LOG", connects);
    Process::spawn(send.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    recv.wait().expect(0);
    let mut rdcp = rdcp();
    rdcp.args(["--rsh", "env SSHPASS=hunter2 sshpass -p hunter2 ssh"]).arg(lab.there("h1", "x")).arg(lab.join("y"));
    Process::spawn(rdcp.env("RDMA_PIPE_LOG", log).stdin(Stdio::null()).stdout(Stdio::null())).wait();
    for (name, part) in [("", "h1: runs"), (".to", "agreed"), (".from", "agreed")] {
        let text = fs::read_to_string(lab.join(&format!("{FILE}{name}"))).expect("a log");
        assert!(text.contains(part) && !text.contains(KEY) && !text.contains("hunter2"), "{text}");
    }
}

/// Returns the events of a trace and the names of its hosts. All times must be in order, and the spans
/// of each thread must nest.
#[track_caller]
fn trace(path: &Path) -> (Vec<Value>, Vec<String>) {
    let trace: Value = serde_json::from_slice(&fs::read(path).expect("a trace")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events").clone();
    let mut last = 0;
    let mut open: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
    for event in &events {
        let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key}: {event}"));
        let (at, place) = (number("ts"), (number("pid"), number("tid")));
        assert!(at >= last, "{at} after {last}: {event}");
        last = at;
        if event["ph"] == "X" {
            let (around, end) = (open.entry(place).or_default(), at + number("dur"));
            around.retain(|&end| end > at);
            assert!(around.last().is_none_or(|&around| end <= around), "it ends after what it is in: {event}");
            around.push(end);
        }
    }
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names = names.map(|event| event["args"]["name"].as_str().expect("a name").to_owned()).collect();
    (events, names)
}

/// Returns the number of spans with this name, and the number of hosts that have any.
fn spans(events: &[Value], name: &str) -> (usize, usize) {
    let is_it = |event: &&Value| event["ph"] == "X" && event["name"] == name;
    let hosts: BTreeSet<_> = events.iter().filter(is_it).map(|event| event["pid"].as_u64()).collect();
    (events.iter().filter(is_it).count(), hosts.len())
}

/// The trace of a run with a cut lane contains both ends, and so does the log of `-vv`. The page has the loss.
pub fn a_trace_has_both_ends() {
    let lab = Lab::new();
    let source = lab.0.file("source", &noise(24 * CHUNK));
    let us = std::env::current_exe().expect("this program");
    let mut rdcp = lab.command(rdcp(), us.to_str().expect("a path in UTF-8"), AGENT);
    rdcp.env(launcher::IS_LAUNCHER, "1").env(launcher::CUT, "3000000").stdin(Stdio::null()).stdout(Stdio::null());
    rdcp.args(["-vv", "--bwlimit", "20M", "--trace"]).arg(lab.join("trace"));
    rdcp.arg("--report").arg(lab.join("page.html"));
    let ended = Process::spawn(rdcp.arg(source).arg(at("h1", &lab.join("copy")))).wait();
    let logged: Vec<&str> = ended.expect(0).stderr.lines().filter(|line| line.contains("lost lane 1.1")).collect();
    let from_there = logged.iter().filter(|line| line.contains(" h1  debug  ")).count();
    assert_eq!((logged.len(), from_there), (2, 1), "{}", ended.stderr);
    let page = fs::read_to_string(lab.join("page.html")).expect("a page");
    assert!(page.contains("lost connection 1.1"), "{page}");
    let (events, names) = trace(&lab.join("trace"));
    assert_eq!(names, ["this host", "h1"]);
    for (name, expected) in [
        ("launch", (1, 1)),
        ("meet", (1, 1)),
        ("session", (2, 2)),
        ("connect", (2, 2)),
        ("transfer", (2, 2)),
        ("verify", (2, 2)),
        ("publish", (1, 1)),
    ] {
        assert_eq!(spans(&events, name), expected, "{name}");
    }
    for counter in ["MB/s (to h1)", "MB/s (from this host)", "waits for, % (to h1)", "waits for, % (from this host)"] {
        let count = events.iter().filter(|event| event["ph"] == "C" && event["name"] == counter).count();
        assert!(count > 3, "{counter}: {count}");
    }
    let has = |event: &&Value| {
        event["ph"] == "i" && event["name"].as_str().is_some_and(|name| name.contains("lost lane 1.1"))
    };
    let hosts: Vec<_> = events.iter().filter(has).map(|event| event["pid"].as_u64()).collect();
    assert_eq!(hosts.len(), 2);
    assert_ne!(hosts[0], hosts[1], "each end tells of it once");
}

/// A trace is written for a run that fails, and for a run that never began.
pub fn a_trace_is_there_of_a_run_that_fails() {
    let lab = Lab::new();
    let source = lab.0.file("source", b"x");
    lab.0.file("file", b"");
    lab.script("none", "exit 255");
    for (launcher, to, code) in [("rsh", "file/copy", 6), ("none", "copy", 3)] {
        let mut rdcp = lab.command(rdcp(), launcher, AGENT);
        rdcp.arg("--trace").arg(lab.join("trace")).arg(&source).arg(at("h1", &lab.join(to)));
        Process::spawn(rdcp.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(code);
        let (events, _) = trace(&lab.join("trace"));
        assert_eq!(spans(&events, "launch"), (1, 1));
        let text = fs::read_to_string(lab.join("trace")).expect("a trace");
        assert!(text.contains(&format!("\"exit\":{code}")), "{text}");
        fs::remove_file(lab.join("trace")).expect("it is there");
    }
}
