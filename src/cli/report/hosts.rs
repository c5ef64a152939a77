//! Shows a copy to many hosts on one line: the total rate, the slowest, the median and the fastest host, and which host
//! holds up the others. Also reports each host to programs by events.

use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthStr;

use super::Reporter;
use super::line::{cut_end, join, name_words, pair, seconds_left};
use crate::engine::Waits;
use crate::job::event::{self, Event, HeldUp, HeldUpBy, HostRate};
use crate::job::progress::{HostShown, HostStanding, Rate};
use crate::measure::words::rate_words;

/// How far a host must be behind the host before it, or its tree behind what it has received, to count as holding up
/// others. This is a large part of what a host keeps of the stream.
const HOLDS_UP_BYTES: u64 = 16 << 20;

/// How often an event reports the progress of all hosts.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Parts of a line that are kept by moving all parts closer together, if that makes enough room.
const DENSE: [usize; 2] = [5, 4];

/// Says what a rate is of, if there is room.
const IN_ALL: &str = " in all";

/// Maximum width of a host's name in columns.
const NAME_COLUMNS_MAX: usize = 20;

/// How far a copy to several hosts has come.
#[derive(Clone, Copy)]
pub(super) struct HostsShown<'a> {
    pub hosts: &'a [HostShown],
    /// Bytes of the stream that the source has made so far.
    pub made: u64,
    /// Whether the source has made all of the stream.
    pub is_all: bool,
    pub elapsed: Duration,
}

/// What is known of the hosts from earlier updates.
#[derive(Default)]
pub(super) struct Hosts {
    rates: Vec<Rate>,
    /// The state of each host, and from which host it gets the data, as programs were told.
    hops: Vec<Option<(HostStanding, Option<usize>)>>,
    told: Option<Instant>,
}

/// Figures of all hosts for a line.
#[derive(Debug, Default, PartialEq)]
struct Sum {
    /// Number and rate in bytes per second of each host that takes the stream, or a copy if there is no stream, the
    /// slowest first.
    rates: Vec<(usize, f64)>,
    done: usize,
    failed: usize,
    holding: Option<Holding>,
}

/// A host that holds up others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Holding {
    pub(super) host: usize,
    pub(super) by: HeldUpBy,
    /// How many other hosts wait for it.
    pub(super) others: usize,
}

impl Hosts {
    /// Takes an update of all hosts, and passes it on to the record and to programs.
    pub(super) fn tell(&mut self, reporter: &Reporter<'_>, shown: &HostsShown<'_>) {
        let now = Instant::now();
        self.add(now, shown);
        reporter.record(|record| record.hosts(shown.hosts, holding(shown)));
        self.events(now, shown).iter().for_each(|event| reporter.event(event));
    }

    fn add(&mut self, now: Instant, shown: &HostsShown<'_>) {
        self.rates.resize_with(shown.hosts.len(), Rate::default);
        for (rate, host) in self.rates.iter_mut().zip(shown.hosts) {
            rate.add(now, host.received, Waits::default());
        }
    }

    fn sum(&self, shown: &HostsShown<'_>) -> Sum {
        let standing = |standing| shown.hosts.iter().filter(|host| host.standing == standing).count();
        let rate = |at: usize| match self.rates.get(at).and_then(Rate::bytes_per_second) {
            Some(rate) => rate,
            None => shown.hosts[at].received as f64 / shown.elapsed.as_secs_f64().max(0.001),
        };
        // With --sync there is no stream.
        let taking = if shown.made > 0 { HostStanding::Receiving } else { HostStanding::Copying };
        let takes = |at: &usize| shown.hosts[*at].standing == taking;
        let mut rates: Vec<(usize, f64)> = (0..shown.hosts.len()).filter(takes).map(|at| (at, rate(at))).collect();
        rates.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (done, failed) = (standing(HostStanding::Done), standing(HostStanding::Failed));
        Sum { rates, done, failed, holding: holding(shown) }
    }

    /// Returns a line for a terminal with this many columns, of which the last stays free.
    pub(super) fn line(&self, shown: &HostsShown<'_>, columns: usize) -> String {
        let room = columns.saturating_sub(1);
        let Sum { rates, done, failed, holding } = self.sum(shown);
        let count = shown.hosts.len();
        // The host that has received least decides when the copy is complete.
        let unfinished = |host: &&HostShown| !matches!(host.standing, HostStanding::Failed | HostStanding::Starting);
        let least = shown.hosts.iter().filter(unfinished).map(|host| host.received).min().unwrap_or(shown.made);
        let share = (shown.is_all && shown.made > 0).then(|| least as f64 / shown.made as f64);
        let slowest = rates.first().copied();
        let left = slowest.filter(|(_, rate)| shown.is_all && *rate >= 1.0).map(|(at, rate)| {
            seconds_left((shown.made.saturating_sub(shown.hosts[at].received) as f64 / rate).ceil() as u64)
        });
        let name = |at: usize| cut_end(&name_words(shown.hosts[at].host.as_bytes()), NAME_COLUMNS_MAX);
        let total: f64 = rates.iter().map(|(_, rate)| rate).sum();
        let mut parts = [
            share.map(|share| format!("{:.0} %", (share.min(1.0) * 100.0).floor())),
            Some(format!("{done}/{count} hosts")),
            (failed > 0).then(|| format!("{failed} failed")),
            (shown.made > 0).then(|| pair(least, Some(shown.made), shown.is_all)),
            (!rates.is_empty()).then(|| format!("{}{IN_ALL}", rate_words(total))),
            left,
            holding.map(|holding| holding_words(&name(holding.host), holding)),
            slowest.filter(|_| rates.len() > 1).map(|(at, rate)| format!("slowest {} {}", name(at), rate_words(rate))),
            (rates.len() > 2).then(|| {
                let (middle, fastest) = (rates[rates.len() / 2].1, rates[rates.len() - 1].1);
                format!("median {}, fastest {}", rate_words(middle), rate_words(fastest))
            }),
        ];
        let mut line = join(&parts, "  ");
        // Parts that matter least are dropped first. Which host holds up all matters more than which is slowest.
        for drop in [8, 7, 3, 6, 5, 4] {
            if line.width() <= room {
                return line;
            }
            line = line.replace(IN_ALL, "");
            if line.width() <= room {
                return line;
            }
            let dense = join(&parts, " ").replace(IN_ALL, "");
            if DENSE.contains(&drop) && dense.width() <= room {
                return dense;
            }
            parts[drop] = None;
            line = join(&parts, "  ");
        }
        if line.width() > room { cut_end(&join(&parts, " ").replace(IN_ALL, ""), room) } else { line }
    }

    /// Returns events for programs: each host whose state has changed, or that gets the data from another host than
    /// before, and once a second the progress of all hosts.
    fn events(&mut self, now: Instant, shown: &HostsShown<'_>) -> Vec<Event<'static>> {
        let host = |at: usize| shown.hosts[at].host.clone();
        self.hops.resize(shown.hosts.len(), None);
        let mut events = Vec::new();
        for (at, (known, shown)) in self.hops.iter_mut().zip(shown.hosts).enumerate() {
            // A host that is done gets nothing more.
            let is_over = matches!(shown.standing, HostStanding::Done | HostStanding::Failed);
            let hop = Some((shown.standing, shown.before.filter(|_| !is_over)));
            if *known != hop {
                *known = hop;
                let (state, from) = (shown.standing, shown.before.map(host));
                events.push(Event::Host(event::Host { host: host(at), state, bytes: shown.received, from }));
            }
        }
        if self.told.is_none_or(|told| now - told >= TOLD_EVERY) {
            self.told = Some(now);
            events.push(Event::Hosts(self.progress(shown)));
        }
        events
    }

    fn progress(&self, shown: &HostsShown<'_>) -> event::Hosts {
        let host = |at: usize| shown.hosts[at].host.clone();
        let Sum { rates, done, failed, holding } = self.sum(shown);
        let rate = |&(at, bytes_per_second): &(usize, f64)| {
            let bytes = shown.hosts[at].received;
            HostRate { host: host(at), bytes, bytes_per_second }
        };
        let held_up = |Holding { host: at, by, others }| HeldUp { host: host(at), by, hosts: others as u64 };
        event::Hosts {
            hosts: shown.hosts.len() as u64,
            done: done as u64,
            failed: failed as u64,
            bytes: shown.made,
            bytes_final: shown.is_all,
            bytes_per_second: rates.iter().map(|(_, rate)| rate).sum(),
            slowest: rates.first().map(rate),
            median_bytes_per_second: rates.get(rates.len() / 2).map(|(_, rate)| *rate),
            fastest: rates.last().map(rate),
            held_up: holding.map(held_up),
        }
    }
}

fn holding_words(name: &str, holding: Holding) -> String {
    let what = holding.by.name();
    match holding.others {
        0 => format!("{name}'s {what} is slow"),
        others => format!("{name}'s {what} holds up {others}"),
    }
}

/// Returns the host that lags most behind the host before it, or whose tree lags most behind what it has received. A
/// host keeps only a bounded part of the stream, so hosts before it wait for it, and hosts after it get nothing sooner.
/// The link of the first host is not judged: it is also the source's link, and some link has to be the narrowest.
fn holding(shown: &HostsShown<'_>) -> Option<Holding> {
    let takes = |host: &HostShown| host.standing == HostStanding::Receiving;
    let lag = |at: usize| {
        let HostShown { received, written, before, .. } = shown.hosts[at];
        let disk = received.saturating_sub(written);
        let link = before.map_or(0, |before| shown.hosts[before].received.saturating_sub(received));
        (disk.max(link), if disk >= link { HeldUpBy::Disk } else { HeldUpBy::Link })
    };
    let worst = (0..shown.hosts.len()).filter(|&at| takes(&shown.hosts[at])).max_by_key(|&at| lag(at).0)?;
    let (bytes, by) = lag(worst);
    let others = (0..shown.hosts.len()).filter(|&at| at != worst && takes(&shown.hosts[at])).count();
    (bytes >= HOLDS_UP_BYTES).then_some(Holding { host: worst, by, others })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn host(number: usize, standing: HostStanding, received: u64) -> HostShown {
        let host = format!("gpu{number:02}");
        HostShown { host, standing, received, written: received, before: number.checked_sub(1) }
    }

    /// Returns eight hosts in a chain that have received 100 MB/s for three seconds.
    fn eight(change: impl Fn(&mut Vec<HostShown>)) -> (Hosts, Vec<HostShown>, Instant) {
        let mut hosts = Hosts::default();
        let begun = Instant::now();
        let mut all: Vec<HostShown> = Vec::new();
        for second in 0..=3 {
            all = (0..8)
                .map(|at| host(at, HostStanding::Receiving, second * 100_000_000 - (at as u64 * second)))
                .collect();
            change(&mut all);
            let elapsed = Duration::from_secs(second);
            hosts.add(begun + elapsed, &HostsShown { hosts: &all, made: 1 << 30, is_all: true, elapsed });
        }
        (hosts, all, begun + Duration::from_secs(3))
    }

    fn shown(all: &[HostShown], is_all: bool) -> HostsShown<'_> {
        HostsShown { hosts: all, made: 300_000_000 + 20 * MIB, is_all, elapsed: Duration::from_secs(3) }
    }

    fn lines(hosts: &Hosts, all: &[HostShown], is_all: bool) -> [String; 3] {
        [160, 80, 40].map(|columns| hosts.line(&shown(all, is_all), columns))
    }

    #[test]
    fn eight_hosts_on_a_wide_line_80_and_40_columns() {
        let (hosts, all, _) = eight(|all| {
            all[6].standing = HostStanding::Failed;
            all[7].standing = HostStanding::Done;
        });
        let expected = [
            "1/8 hosts  1 failed  286 of 306+ MiB  600 MB/s in all  slowest gpu05 100 MB/s  median 100 MB/s, fastest 100 MB/s",
            "1/8 hosts  1 failed  286 of 306+ MiB  600 MB/s in all  slowest gpu05 100 MB/s",
            "1/8 hosts  1 failed  600 MB/s in all",
        ];
        assert_eq!(lines(&hosts, &all, false), expected);
        let expected = [
            "93 %  1/8 hosts  1 failed  286/306 MiB  600 MB/s in all  1 s  slowest gpu05 100 MB/s  median 100 MB/s, fastest 100 MB/s",
            "93 %  1/8 hosts  1 failed  286/306 MiB  600 MB/s  1 s  slowest gpu05 100 MB/s",
            "93 % 1/8 hosts 1 failed 600 MB/s 1 s",
        ];
        assert_eq!(lines(&hosts, &all, true), expected);
    }

    /// With --sync, four hosts get their copies at a time, and the others wait.
    #[test]
    fn copies_without_a_stream_have_rates() {
        let (hosts, all, _) = eight(|all| {
            all[..4].iter_mut().for_each(|host| host.standing = HostStanding::Copying);
            all[4..].iter_mut().for_each(|host| (host.standing, host.received) = (HostStanding::Behind, 0));
        });
        let shown = HostsShown { made: 0, ..shown(&all, false) };
        let line = "0/8 hosts  400 MB/s in all  slowest gpu03 100 MB/s  median 100 MB/s, fastest 100 MB/s";
        assert_eq!(hosts.line(&shown, 160), line);
        assert_eq!(hosts.progress(&shown).slowest.map(|slowest| slowest.host).as_deref(), Some("gpu03"));
    }

    #[test]
    fn who_holds_up_whom() {
        let (hosts, all, _) = eight(|all| all[3].written = all[3].received.saturating_sub(20 * MIB));
        assert_eq!(holding(&shown(&all, true)), Some(Holding { host: 3, by: HeldUpBy::Disk, others: 7 }));
        assert_eq!(
            lines(&hosts, &all, true)[1],
            "93 %  0/8 hosts  286/306 MiB  800 MB/s in all  1 s  gpu03's disk holds up 7"
        );
        let (_, all, _) =
            eight(|all| all[5..].iter_mut().for_each(|host| host.received = host.received.saturating_sub(20 * MIB)));
        assert_eq!(holding(&shown(&all, true)), Some(Holding { host: 5, by: HeldUpBy::Link, others: 7 }));
        // Neither a host that has left the stream nor the link of the first host holds up others.
        let (_, all, _) = eight(|all| {
            all[5].received /= 2;
            all[5].standing = HostStanding::Behind;
            all.truncate(6);
        });
        assert_eq!(holding(&shown(&all, true)), None);
        assert_eq!(holding(&HostsShown { made: 1 << 40, ..shown(&all, true) }), None);
    }

    #[test]
    fn programs_are_told_of_each_change_and_of_all_every_second() {
        let (mut hosts, mut all, now) = eight(|_| {});
        let events = hosts.events(now, &shown(&all, false));
        assert_eq!(events.len(), 9, "each host, and all");
        all[2].standing = HostStanding::Done;
        let events = hosts.events(now, &shown(&all, false));
        let [Event::Host(changed)] = &events[..] else { panic!("{}", events.len()) };
        let from = Some("gpu01".to_owned());
        let expected =
            event::Host { host: "gpu02".to_owned(), state: HostStanding::Done, bytes: all[2].received, from };
        assert_eq!(*changed, expected);
        // The host after it gets the stream from the host before it, which concerns the host itself no more.
        (all[2].before, all[3].before) = (None, Some(1));
        let events = hosts.events(now, &shown(&all, false));
        let [Event::Host(healed)] = &events[..] else { panic!("{}", events.len()) };
        assert_eq!((&*healed.host, healed.from.as_deref()), ("gpu03", Some("gpu01")));
        assert_eq!(healed.state, HostStanding::Receiving);
        let events = hosts.events(now + TOLD_EVERY, &shown(&all, true));
        let [Event::Hosts(told)] = &events[..] else { panic!("{}", events.len()) };
        assert_eq!((told.hosts, told.done, told.failed, told.bytes_final), (8, 1, 0, true));
        assert_eq!(told.slowest.as_ref().map(|slowest| &*slowest.host), Some("gpu07"));
        assert!(told.fastest.is_some() && told.median_bytes_per_second.is_some_and(|rate| rate > 9e7));
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        for columns in 1..140 {
            let (hosts, all, _) = eight(|all| {
                all[2].host = "a-host-with-quite-a-long-name.example.org".to_owned();
                all[2].received /= 3;
                all[5].standing = HostStanding::Failed;
            });
            let shown =
                HostsShown { hosts: &all, made: 1 << 40, is_all: columns % 2 == 0, elapsed: Duration::from_secs(3) };
            let line = hosts.line(&shown, columns);
            assert!(line.width() < columns.max(2), "{columns}: {line}");
        }
    }
}
