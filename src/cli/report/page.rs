//! `--report FILE.html`: a run as one self-contained page, to be looked at, printed or sent on. The page needs nothing
//! from a network and runs no code.
//!
//! Its numbers are those of the last line of `--json`. Drawings and events come from the run's [`Record`]. Text
//! reported by other hosts is never markup in the page ([`html`]).

mod advice;
mod chart;
mod html;

use self::html::Html;
use super::line::{seconds_words, thousands};
use super::record::{Record, Track, Weight};
use crate::cli::words::waited_for;
use crate::engine::{Figures, View, Wait, Waits};
use crate::job::event::{self, End, HeldUpBy};
use crate::job::progress::{Copied, size_words};
use crate::measure::words::rate_words;

const STYLE: &str = include_str!("page/style.css");

/// Content security policy: nothing is loaded and nothing runs, whatever is in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Maximum numbers of sources or destinations, of hops, of hosts, and of hops from the source that a page shows.
const PLACES_MAX: usize = 12;
const HOPS_MAX: usize = 64;
const HOSTS_MAX: usize = 256;
const SOURCE_HOPS_MAX: usize = 3;

/// Maximum number of lines about hosts that held up others.
const HOLDERS_MAX: usize = 8;

/// Outcome of a run.
#[derive(Clone, Copy)]
pub(super) struct CameTo<'a> {
    pub(super) end: &'a End<'a>,
    pub(super) figures: Option<&'a Figures>,
    pub(super) copied: Option<&'a Copied>,
}

/// Renders the page.
pub(super) fn render(record: &Record, came_to: CameTo<'_>) -> Vec<u8> {
    let outcome = outcome(record, came_to);
    let mut html = Html::new();
    html.element("html", &[("lang", "en")], |html| {
        html.element("head", &[], |html| {
            html.empty("meta", &[("charset", "utf-8")]);
            html.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
            html.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
            html.words("title", "", &format!("{}: {outcome}", record.command));
            html.style(STYLE);
        });
        html.element("body", &[], |html| {
            header(html, record, came_to, &outcome);
            route(html, record);
            match came_to.end {
                End::Transfer(transfer) => self::transfer(html, record, transfer, came_to),
                End::Pipeline(pipeline) => self::pipeline(html, record, pipeline),
            }
            let lines = advice::lines(record, came_to);
            if !lines.is_empty() {
                html.words("h2", "", "What limited the transfer, and what to change");
                html.element("ul", &[], |html| lines.iter().for_each(|line| html.words("li", "", line)));
            }
            events(html, record);
            footer(html, record);
        });
    });
    html.into_bytes()
}

/// Describes the outcome in one sentence.
fn outcome(record: &Record, came_to: CameTo<'_>) -> String {
    let result = came_to.end.result();
    if result.exit > 0 {
        if let Some(error) = result.error {
            return error.to_owned();
        }
        // The failure has no message of its own, so an earlier failure was reported.
        let failed = record.events.iter().rev().find(|event| event.weight == Weight::Failed);
        return match (result.exit, failed) {
            (141, _) => "the reader of standard output closed it".to_owned(),
            (code @ 129.., _) => format!("ended by signal {}", code - 128),
            (_, Some(failed)) => failed.line.clone(),
            _ => "failed".to_owned(),
        };
    }
    match (came_to.end, came_to.copied) {
        (_, Some(copied)) => copied.line(),
        (End::Transfer(transfer), None) => {
            let rate = rate_words(transfer.gb_per_s * 1e9);
            format!("{} in {} ({rate}), verified", size_words(transfer.bytes), seconds_words(transfer.seconds))
        }
        (End::Pipeline(pipeline), None) => {
            let seconds = pipeline.hops.iter().map(|hop| hop.seconds).fold(0.0, f64::max);
            let first = pipeline.hops.first().map(|hop| format!(", {} over the first hop", size_words(hop.bytes)));
            let stages = pipeline.stages.len();
            let stages = if stages == 1 { "1 stage".to_owned() } else { format!("{stages} stages") };
            format!("{stages} done in {}{}", seconds_words(seconds), first.unwrap_or_default())
        }
    }
}

fn header(html: &mut Html, record: &Record, came_to: CameTo<'_>, outcome: &str) {
    let result = came_to.end.result();
    let class = match result.exit {
        0 => "done",
        8 => "partial",
        _ => "failed",
    };
    html.element("header", &[("class", class)], |html| {
        let began = humantime::format_rfc3339_seconds(record.began_at).to_string();
        html.words(
            "p",
            "soft",
            &format!("{}, started {}", record.command, began.replace('T', " ").replace('Z', " UTC")),
        );
        html.words("h1", "", outcome);
        html.element("p", &[("class", "exit")], |html| {
            html.text("Exit code ");
            html.data("exit", &result.exit.to_string(), &result.exit.to_string());
            // Within one host nothing is compared, nor in a dry run.
            let is_compared = came_to.copied.is_none_or(|copied| copied.is_verified);
            let done = if is_compared { "done, and every byte verified" } else { "done" };
            let meaning = result.failure.as_ref().map_or(done, |failure| failure.code);
            html.text(&format!(": {meaning}"));
        });
    });
}

fn route(html: &mut Html, record: &Record) {
    let [from, to] = &record.route;
    if from.is_empty() && to.is_empty() {
        return;
    }
    let places = |html: &mut Html, places: &[(String, String)], class: &str| {
        html.element("ul", &[("class", class)], |html| {
            for (host, path) in places.iter().take(PLACES_MAX) {
                html.element("li", &[], |html| {
                    if !host.is_empty() {
                        html.words("span", "host-name", host);
                    }
                    html.words("code", "", path);
                });
            }
            if let Some(more @ 1..) = places.len().checked_sub(PLACES_MAX) {
                html.words("li", "soft", &format!("and {more} more"));
            }
        });
    };
    html.element("section", &[("class", "route")], |html| {
        places(html, from, "from");
        html.words("span", "arrow", "→");
        places(html, to, "to");
    });
}

fn fact(html: &mut Html, name: &str, value: impl FnOnce(&mut Html)) {
    html.element("div", &[("class", "fact")], |html| {
        html.words("dt", "", name);
        html.element("dd", &[], value);
    });
}

fn figure(html: &mut Html, name: &str, key: &str, value: impl ToString, words: &str) {
    fact(html, name, |html| html.data(key, &value.to_string(), words));
}

fn transfer(html: &mut Html, record: &Record, transfer: &event::Transfer<'_>, came_to: CameTo<'_>) {
    let event::Transfer { bytes, seconds, gb_per_s, transport, lanes, encrypted, .. } = transfer;
    let copied = came_to.copied;
    html.element("dl", &[("class", "facts")], |html| {
        figure(html, "Data", "bytes", bytes, &size_words(*bytes));
        if let Some(amount) = copied.map(|copied| copied.tree.amount) {
            figure(html, "Entries", "entries", amount.entries, &thousands(amount.entries));
        }
        figure(html, "Time", "seconds", seconds, &seconds_words(*seconds));
        figure(html, "Mean rate", "gb-per-s", gb_per_s, &rate_words(gb_per_s * 1e9));
        if let Some((done, all)) = copied.and_then(|copied| copied.hosts) {
            fact(html, "Hosts completed", |html| html.text(&format!("{done} of {all}")));
        }
        let is_within = transport.is_empty() && copied.is_some_and(|copied| !copied.is_verified);
        let words = if is_within { "within the host".to_owned() } else { transport_words(transport) };
        // Nothing is known about data that never came to a session.
        if is_within || !transport.is_empty() {
            figure(html, "Transport", "transport", transport, &words);
        }
        if !transport.is_empty() {
            figure(html, "Lanes", "lanes", lanes, &lanes.to_string());
            figure(html, "Encryption", "encrypted", encrypted, if *encrypted { "all data" } else { "none" });
        }
        for (name, count) in
            [("Resent: damaged or lost", transfer.retries), ("Resent: lost connection", transfer.replayed_chunks)]
        {
            if count > 0 {
                fact(html, name, |html| html.text(&format!("{} chunks", thousands(count))));
            }
        }
        html.element("div", &[("class", "fact wide")], |html| {
            html.words("dt", "", "Verification");
            html.words("dd", "proof", proof(transfer.result.exit, copied));
        });
    });
    let view = came_to.figures.map_or(View::Both, |figures| figures.view);
    let Some(span) = span(record) else {
        html.words("p", "soft", "No data was transferred.");
        return;
    };
    if !record.hosts.is_empty() {
        return self::hosts(html, record, span);
    }
    let is_one = record.tracks.len() == 1;
    html.words("h2", "", "Over time");
    for track in record.tracks.iter().take(HOPS_MAX) {
        if !is_one {
            html.words("h3", "", &label(track));
        }
        let total = came_to.figures.filter(|_| is_one).map(|figures| figures.waits);
        if chart::rate(html, track, span, &record.events) {
            chart::limits(html, track, span, total.filter(|total| total.total() > 0.0), view);
        }
    }
    more(html, record.tracks.len(), HOPS_MAX, "hops");
}

/// Describes how certain it is that the data written is the data read.
fn proof(exit: u8, copied: Option<&Copied>) -> &'static str {
    match (exit, copied) {
        (_, Some(copied)) if copied.is_dry => "none: nothing was copied",
        (_, Some(copied)) if !copied.is_verified => "the kernel copied it within the host; nothing was compared",
        (_, Some(copied)) if copied.tree.is_read_back => {
            "the receiver compared digests of every byte, wrote the data to stable storage, and read it back"
        }
        (_, Some(copied)) if copied.tree.is_synced => {
            "the receiver compared digests of every byte, and the data is on stable storage"
        }
        (0, None) | (_, Some(_)) => "the receiver compared digests of every byte",
        (_, None) => "none: the transfer failed",
    }
}

fn transport_words(transport: &str) -> String {
    let word = |name: &str| match name {
        "" => "none",
        "tcp" => "TCP",
        "rdma" => "RDMA",
        "rdma-software" => "RDMA (software)",
        _ => "unknown",
    };
    transport.split('+').map(word).collect::<Vec<_>>().join(", then ")
}

/// Returns the time span of everything that is drawn.
fn span(record: &Record) -> Option<chart::Span> {
    let tracks = record.tracks.iter().filter_map(Track::span);
    let changed = |host: &super::record::HostRecord| Some((host.changes.first()?.0, host.changes.last()?.0));
    let all = tracks.chain(record.hosts.iter().filter_map(changed));
    let (from, to) = all.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
    Some((from, to.max(from + 1e-3)))
}

fn label(track: &Track) -> String {
    format!("{} → {}", track.names[0], track.names[1])
}

fn more(html: &mut Html, count: usize, shown: usize, what: &str) {
    if let Some(more @ 1..) = count.checked_sub(shown) {
        html.words("p", "soft", &format!("{more} more {what} are not shown."));
    }
}

fn key(html: &mut Html, class: &str, words: &str) {
    html.words("span", &format!("key {class}"), words);
}

fn hosts(html: &mut Html, record: &Record, span: chart::Span) {
    use crate::job::progress::HostStanding::{Behind, Copying, Done, Failed, Finishing, Receiving, Starting};
    html.words("h2", "", "Hosts");
    let held = |number: usize| record.held.iter().filter(move |held| held.host == number).copied().collect::<Vec<_>>();
    html.element("figure", &[], |html| {
        html.element("figcaption", &[], |html| {
            html.words("span", "title", "What each host did, what its hop waited for, and when others waited for it");
            for standing in [Starting, Receiving, Finishing, Behind, Copying, Done, Failed] {
                if record.hosts.iter().any(|host| host.changes.iter().any(|(_, was)| *was == standing)) {
                    let (words, class) = chart::standing(standing);
                    key(html, class, words);
                }
            }
            if !record.held.is_empty() {
                key(html, "is-holding", "others wait for it (bottom line)");
            }
        });
        html.element("figcaption", &[], |html| {
            html.words("span", "soft", "Thin line, waited for:");
            for (wait, _) in Waits::default().named() {
                let words = match wait {
                    Wait::Source => "previous host, or source",
                    wait => waited_for(wait, View::Both),
                };
                key(html, &format!("of-{}", wait.name()), words);
            }
            key(html, "of-unknown", "unknown");
        });
        html.element("div", &[("class", "hosts")], |html| {
            for (number, host) in record.hosts.iter().enumerate().take(HOSTS_MAX) {
                let track = record.tracks.iter().find(|track| track.names[1] == host.name);
                html.element("div", &[("class", "host")], |html| {
                    html.words("span", "name", &host.name);
                    chart::host(html, host, track, &held(number), span);
                    let (at, was) = host.changes.last().copied().unwrap_or((span.0, Receiving));
                    let (words, _) = chart::standing(was);
                    // The data of an ordinary copy is known only from its hop.
                    let moved = track.map_or(0, |track| track.ends[1].total().bytes.max(track.ends[0].total().bytes));
                    let bytes = size_words(host.received.max(moved));
                    let since = if was == Done || was == Failed { format!(" at {at:.1} s") } else { String::new() };
                    html.words("span", "soft", &format!("{words}{since}, {bytes}"));
                });
            }
            chart::across(html, span);
        });
        more(html, record.hosts.len(), HOSTS_MAX, "hosts");
    });
    let mut sums: Vec<(usize, HeldUpBy, f64, usize)> = Vec::new();
    for held in &record.held {
        let seconds = held.to - held.from;
        match sums.iter_mut().find(|(host, by, ..)| (*host, *by) == (held.host, held.by)) {
            Some((.., sum, others)) => (*sum, *others) = (*sum + seconds, (*others).max(held.others)),
            None => sums.push((held.host, held.by, seconds, held.others)),
        }
    }
    sums.sort_by(|one, other| other.2.total_cmp(&one.2));
    // A hop whose sender is none of the several hosts starts at the source.
    let from_source = |track: &&Track| !record.hosts.iter().any(|host| host.name == track.names[0]);
    for track in record.tracks.iter().filter(from_source).take(SOURCE_HOPS_MAX) {
        html.words("h3", "", &format!("From the source: {}", label(track)));
        chart::rate_and_limits(html, track, span, &record.events);
    }
    html.words("h3", "", "Hosts that held others up");
    if sums.is_empty() {
        html.words("p", "soft", "No host fell so far behind that others had to wait for it.");
    }
    html.element("ul", &[], |html| {
        for (host, by, seconds, others) in sums.into_iter().take(HOLDERS_MAX) {
            let what = by.name();
            let name = record.hosts.get(host).map_or("a host", |host| &host.name);
            let others = if others == 1 { "1 other".to_owned() } else { format!("up to {others} others") };
            html.words("li", "", &format!("{name}: its {what} held up {others} for {}", seconds_words(seconds)));
        }
    });
}

fn pipeline(html: &mut Html, record: &Record, pipeline: &event::Pipeline<'_>) {
    let number = |number: Option<i32>| number.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), size_words);
    html.words("h2", "", "Stages");
    table(html, &["Host", "Command", "Ended", "Time", "From the previous hop", "To the next hop"], |html| {
        for stage in &pipeline.stages {
            html.element("tr", &[], |html| {
                html.words("td", "", &stage.host);
                html.element("td", &[], |html| html.words("code", "", &stage.command));
                let ended = match stage.signal {
                    Some(signal) => format!("signal {signal}"),
                    None => format!("exit code {}", number(stage.exit)),
                };
                html.words("td", "", &ended);
                html.words("td", "time", &stage.seconds.map_or_else(|| "unknown".to_owned(), seconds_words));
                html.words("td", "time", &size(stage.bytes_in));
                html.words("td", "time", &size(stage.bytes_out));
            });
        }
    });
    if let (false, Some(span)) = (record.hosts.is_empty(), span(record)) {
        hosts(html, record, span);
    }
    html.words("h2", "", "Hops");
    let mut tracks: Vec<&Track> = record.tracks.iter().collect();
    tracks.sort_by_key(|track| track.stages);
    for hop in pipeline.hops.iter().take(HOPS_MAX) {
        let of_hop = |track: &&Track| track.names[0] == hop.from && track.names[1] == hop.to;
        let track = tracks.iter().position(of_hop).map(|at| tracks.remove(at));
        html.words("h3", "", &format!("{} → {}", hop.from, hop.to));
        html.element("dl", &[("class", "facts")], |html| {
            figure(html, "Data", "bytes", hop.bytes, &size_words(hop.bytes));
            figure(html, "Time", "seconds", hop.seconds, &seconds_words(hop.seconds));
            figure(html, "Mean rate", "gb-per-s", hop.gb_per_s, &rate_words(hop.gb_per_s * 1e9));
            let through = if hop.through_launcher { ", through the launcher" } else { "" };
            let transport = transport_words(&hop.transport) + through;
            figure(html, "Transport", "transport", &hop.transport, &transport);
            figure(html, "Lanes", "lanes", hop.lanes, &hop.lanes.to_string());
            figure(html, "Encryption", "encrypted", hop.encrypted, if hop.encrypted { "all data" } else { "none" });
            if hop.retries > 0 {
                fact(html, "Resent", |html| html.text(&format!("{} chunks", thousands(hop.retries))));
            }
        });
        if let (Some(track), Some(span)) = (track, span(record)) {
            chart::rate_and_limits(html, track, span, &record.events);
        }
    }
    more(html, pipeline.hops.len(), HOPS_MAX, "hops");
}

fn table(html: &mut Html, heads: &[&str], rows: impl FnOnce(&mut Html)) {
    html.element("div", &[("class", "scroll")], |html| {
        html.element("table", &[], |html| {
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| heads.iter().for_each(|head| html.words("th", "", head)));
            });
            html.element("tbody", &[], rows);
        });
    });
}

fn events(html: &mut Html, record: &Record) {
    html.words("h2", "", "Events");
    if record.events.is_empty() {
        html.words("p", "soft", "Nothing was lost, resumed or left out.");
        return;
    }
    table(html, &["", "Time", "What"], |html| {
        for (number, event) in record.events.iter().enumerate() {
            html.element("tr", &[("class", chart::weight_class(event.weight))], |html| {
                html.words("td", "number", &(number + 1).to_string());
                html.words("td", "time", &format!("{:.1} s", event.at));
                html.words("td", "what", &event.line);
            });
        }
    });
    if record.events_left_out > 0 {
        html.words("p", "soft", &format!("{} more are not listed.", thousands(record.events_left_out)));
    }
}

fn footer(html: &mut Html, record: &Record) {
    let version = env!("CARGO_PKG_VERSION");
    html.words(
        "footer",
        "",
        &format!(
            "{} {version}. Times count from the start of the command. Sizes are in powers of 1024, rates in powers \
            of 1000.",
            record.command
        ),
    );
}

#[cfg(test)]
mod tests;
