//! The log of a run: one file with what happened at both ends.

use std::fs;
use std::process::Stdio;

use crate::copies::at;
use crate::launcher;
use crate::rig::lab::Lab;
use crate::rig::*;

/// The file that `RDMA_PIPE_LOG` names.
const FILE: &str = "run.log";

/// The lines of a log, of which the times must not go back: host and text of each.
#[track_caller]
fn lines(lab: &Lab) -> Vec<(String, String)> {
    let text = fs::read_to_string(lab.join(FILE)).expect("a log");
    let (mut lines, mut last) = (Vec::new(), String::new());
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').expect("a time");
        let (host, rest) = rest.split_once("  ").expect("a host");
        let shape: String = time.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
        assert_eq!(shape, "00:00:00.000", "{line}");
        // A run over midnight is for another day.
        assert!(time >= &*last || last.starts_with("23:"), "{time} after {last}:\n{text}");
        last = time.to_owned();
        lines.push((host.to_owned(), rest.split_once("  ").map_or(rest, |(_, what)| what).to_owned()));
    }
    lines
}

/// Where the lines are that have this, of the other end or of this one.
fn places(lines: &[(String, String)], is_there: bool, part: &str) -> Vec<usize> {
    let is_it = |(host, what): &(String, String)| (host == "h1") == is_there && what.contains(part);
    (0..lines.len()).filter(|&at| is_it(&lines[at])).collect()
}

/// A lane that is cut is told of once by each end, with what became of it, in order.
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
        let lost = one("lost lane 1.1: ");
        let again = one("lane 1.2 is up");
        let answered = one("the receiver has answered for them");
        assert!(up < lost && lost < again && again < answered, "{lines:#?}");
    }
    for part in ["runs ", "an agent answers", "the two ends are to meet", "they have met"] {
        assert_eq!(places(&lines, false, part).len(), 1, "{part}: {lines:#?}");
    }
    let clock = places(&lines, true, "its clock is");
    assert!(clock.len() == 1 && places(&lines, true, "")[0] == clock[0], "{lines:#?}");
    assert_eq!(places(&lines, true, "the digests are the same").len(), 1);
}

/// No key is in a log, wherever it came from, nor a password that a launcher is given.
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
