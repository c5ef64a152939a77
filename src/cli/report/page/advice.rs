//! Describes what limited a run, in the words of `-v`, and what would make it faster or complete.

use super::CameTo;
use crate::cli::report::limiter_line;
use crate::cli::report::record::{Record, Weight};
use crate::engine::Wait;
use crate::job::event::End;

/// Minimum share of the time for which something must be waited for to be worth changing.
const SHARE_MIN: f64 = 0.4;

/// Returns sentences, the most important first.
pub(super) fn lines(record: &Record, came_to: CameTo<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let (result, retries) = match came_to.end {
        End::Transfer(transfer) => (&transfer.result, transfer.retries),
        End::Pipeline(pipeline) => (&pipeline.result, pipeline.hops.iter().map(|hop| hop.retries).sum()),
    };
    if result.exit > 0 {
        lines.extend(of_failure(record, came_to, result.exit));
    }
    match came_to.end {
        End::Transfer(transfer) => {
            let figures = came_to.figures.filter(|figures| figures.counters.bytes > 0);
            let limiter = figures.and_then(|figures| figures.waits.limiter());
            lines.extend(figures.and_then(limiter_line).map(|line| capital(&line)));
            match limiter {
                Some(limiter) if limiter.share >= SHARE_MIN => {
                    lines.extend(of_wait(limiter.what, &transfer.transport, transfer.encrypted));
                }
                Some(_) => lines.push("No part limited it for most of the time: they are well matched.".to_owned()),
                None if result.exit == 0 && transfer.bytes > 0 => {
                    lines.push("What limited is unknown: its ends did not say what they waited for.".to_owned());
                }
                None => {}
            }
        }
        End::Pipeline(pipeline) => match &pipeline.limiter {
            Some(limiter) => {
                lines.push(format!("Limited by {}, for {:.0} % of the time.", limiter.name, limiter.share * 100.0));
                if limiter.name.starts_with("the hop ") {
                    let transport = pipeline.hops.first().map_or("", |hop| &*hop.transport);
                    lines.extend(of_wait(Wait::Wire, transport, pipeline.hops.iter().any(|hop| hop.encrypted)));
                } else {
                    lines.push(
                        "A command that holds the others up: give it more processors or a faster disk, or an option that \
                         makes it do less, such as a lower level of compression."
                            .to_owned(),
                    );
                }
            }
            None if result.exit == 0 => lines.push("No stage or hop held the others up for long.".to_owned()),
            None => {}
        },
    }
    let lost = record.events.iter().filter(|event| event.weight == Weight::Lost).count();
    if lost > 0 || retries > 0 {
        lines.push(
            "Connections or chunks were lost on the way: rddoctor HOST looks at the adapters' error counters, cables and \
             MTUs of both hosts."
                .to_owned(),
        );
    }
    lines
}

fn of_failure(record: &Record, came_to: CameTo<'_>, exit: u8) -> Option<String> {
    let line = match (came_to.end, exit) {
        (End::Transfer(_), 2) => "Both ends must be given the same KEY.",
        (End::Transfer(_), 3) => "rddoctor HOST says whether the host, its ports and its agent can be reached.",
        (End::Transfer(_), 8) if !record.hosts.is_empty() => {
            "--hosts-failed FILE writes down the hosts that failed; --hosts FILE copies to those alone."
        }
        (End::Transfer(_), _) if record.command == "rdcp" => {
            "Run the same command again: what has arrived of large files is not sent again, and --sync sends only what \
             is missing."
        }
        _ => return None,
    };
    Some(line.to_owned())
}

fn of_wait(wait: Wait, transport: &str, is_encrypted: bool) -> Vec<String> {
    let line = match wait {
        Wait::Source => {
            "A faster source would help: the disk or the program that is read. rdperf HOST:PATH limits measures source, \
             line and sink each by itself."
        }
        Wait::Sink => {
            "A faster sink would help: the disk or the program that is written. --fsync and --verify=disk wait for the disk \
             as well. rdperf HOST:PATH limits measures it by itself."
        }
        Wait::Cpu if is_encrypted => {
            "Processors limit: encryption and compression take them. --compress off, fewer other programs, or, on a network \
             that you trust, --encrypt never."
        }
        Wait::Cpu => "Processors limit: --compress off, or fewer other programs.",
        Wait::Credits => "The receiver had no room: a larger --buffer there, or a faster sink.",
        Wait::Wire => {
            "The line limits: --compress auto sends fewer bytes of what can be compressed, --via names a faster one."
        }
        Wait::Limit => "--bwlimit limits: raise it, or leave it out.",
    };
    let mut lines = vec![line.to_owned()];
    if wait == Wait::Wire && transport == "tcp" {
        lines.push(
            "The data went over TCP: rddoctor HOST says whether RDMA could carry it, and what TCP lacks on both hosts."
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
