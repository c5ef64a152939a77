//! Describes what limited a run, in the words of `-v`, and what would make it faster or complete.

use super::CameTo;
use crate::cli::report::limiter_line;
use crate::cli::report::record::{HostRecord, Record, Weight};
use crate::engine::{View, Wait, Waits};
use crate::job::event::End;

/// Minimum share of the time for which something must be waited for to be worth changing.
const SHARE_MIN: f64 = 0.4;

/// Returns sentences, the most important first.
pub(super) fn lines(record: &Record, came_to: CameTo<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let retries = match came_to.end {
        End::Transfer(transfer) => transfer.retries,
        End::Pipeline(pipeline) => pipeline.hops.iter().map(|hop| hop.retries).sum(),
    };
    let exit = came_to.end.result().exit;
    if exit > 0 {
        lines.extend(of_failure(record, came_to, exit));
    }
    match came_to.end {
        End::Transfer(transfer) => {
            let figures = came_to.figures.filter(|figures| figures.counters.bytes > 0);
            let limiter = figures.and_then(|figures| figures.waits.limiter());
            lines.extend(figures.and_then(limiter_line).map(|line| capital(&line)));
            match limiter {
                Some(limiter) if limiter.share >= SHARE_MIN => {
                    let view = figures.map_or(View::Both, |figures| figures.view);
                    lines.extend(of_wait(record, limiter.what, view, &transfer.transport, transfer.encrypted));
                }
                Some(_) => {
                    lines.push("No single part was the limit for most of the time: they are well matched.".to_owned())
                }
                None if exit == 0 && transfer.bytes > 0 => {
                    lines.push("The limit is unknown: the ends did not report what they waited for.".to_owned());
                }
                None => {}
            }
        }
        End::Pipeline(pipeline) => match &pipeline.limiter {
            Some(limiter) => {
                lines.push(format!("Limited by {}, for {:.0} % of the time.", limiter.name, limiter.share * 100.0));
                if limiter.name.starts_with("the hop ") {
                    let is_it = |from: &str, to: &str| limiter.name == format!("the hop {from} -> {to}");
                    let hop = pipeline.hops.iter().find(|hop| is_it(&hop.from, &hop.to));
                    let (transport, is_encrypted) = hop.map_or(("", false), |hop| (&*hop.transport, hop.encrypted));
                    let wait = wait_of_hop(record, is_it);
                    lines.extend(of_wait(record, wait, View::Both, transport, is_encrypted));
                } else {
                    lines.push(
                        "This command holds up the others: give it more processors, a faster disk, or less work, such \
                         as a lower compression level."
                            .to_owned(),
                    );
                }
            }
            None if exit == 0 => lines.push("No stage or hop held up the others for long.".to_owned()),
            None => {}
        },
    }
    let lost = record.events.iter().filter(|event| event.weight == Weight::Lost).count();
    if lost > 0 || retries > 0 {
        lines.push(
            "Connections or chunks were lost: rddoctor HOST checks adapter error counters, cables and MTUs at both \
            hosts."
                .to_owned(),
        );
    }
    lines
}

/// Returns what a hop that held up the others waited for most, apart from the commands at its ends.
fn wait_of_hop(record: &Record, is_it: impl Fn(&str, &str) -> bool) -> Wait {
    let track = record.tracks.iter().find(|track| is_it(&track.names[0], &track.names[1]));
    let waits = track.and_then(|track| track.waits(track.span()?, 1).pop()).unwrap_or_default();
    Waits { source: 0.0, sink: 0.0, ..waits }.limiter().map_or(Wait::Wire, |limiter| limiter.what)
}

fn of_failure(record: &Record, came_to: CameTo<'_>, exit: u8) -> Option<String> {
    let line = match (came_to.end, exit) {
        (End::Transfer(_), 2) => "Give both ends the same KEY.",
        (End::Transfer(_), 3) => "rddoctor HOST shows whether the host, its ports and its agent can be reached.",
        (End::Transfer(_), 8) if record.hosts.iter().any(HostRecord::has_failed) => {
            "--hosts-failed FILE lists the hosts that failed. Unless a message says otherwise, --hosts FILE then copies \
             only to those."
        }
        // What a copy has kept, and whether the same command resumes it, only the messages of the failures know.
        _ => return None,
    };
    Some(line.to_owned())
}

/// Returns what to change if this is waited for. `view`: which ends know that.
fn of_wait(record: &Record, wait: Wait, view: View, transport: &str, is_encrypted: bool) -> Vec<String> {
    let line = match wait {
        Wait::Source => {
            "A faster source would help: the disk or program that the data comes from. rdperf HOST:PATH limits \
             measures source, wire and sink separately."
        }
        Wait::Sink if record.command == "rdcp" => {
            "A faster sink would help: the disk or program that the data goes to. --fsync and --verify=disk also \
             wait for the disk. rdperf HOST:PATH limits measures the sink separately."
        }
        Wait::Sink => {
            "A faster sink would help: the disk or program that the data goes to. rdperf HOST:PATH limits measures \
             the sink separately."
        }
        Wait::Cpu if is_encrypted => {
            "The processors are the limit, for encryption and compression: use --compress off, run fewer other \
             programs, or, on a network that you trust, use --encrypt never."
        }
        Wait::Cpu => "The processors are the limit: use --compress off, or run fewer other programs.",
        Wait::Credits => "The receiver had no room: use a larger --buffer there, or a faster sink.",
        // The report of a copy's other end has not arrived.
        Wait::Wire if view != View::Both && record.command == "rdcp" => return Vec::new(),
        Wait::Wire if view != View::Both => {
            let line = "If the other end's --report also names the wire, that is the limit: rdsend --compress auto \
                        sends fewer bytes. Otherwise that report names the limit.";
            return vec![line.to_owned()];
        }
        Wait::Wire => {
            "The wire is the limit: use --compress auto to send fewer bytes, or --via to select a faster network."
        }
        Wait::Limit => "--bwlimit is the limit: raise it, or leave it out.",
    };
    let mut lines = vec![line.to_owned()];
    if wait == Wait::Wire && transport == "tcp" {
        lines.push(
            "The data went over TCP: rddoctor HOST shows whether RDMA could carry it, and what limits TCP on both \
            hosts."
                .to_owned(),
        );
    }
    lines
}

/// Capitalizes a line, and ends it with a full stop.
fn capital(line: &str) -> String {
    let mut letters = line.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>() + ".").unwrap_or_default()
}
