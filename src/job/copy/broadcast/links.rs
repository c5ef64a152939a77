//! The hops of a chain: begins and ends them as the chain decides, and reports their state to the chain.

use std::collections::HashMap;
use std::time::Duration;

use super::chain::{Chain, LinkEnd, LinkId, Why};
use crate::control::frames::{self, Fault};
use crate::fault::Exit;
use crate::job::event::rate;
use crate::job::hop::Side;
use crate::job::{EndOf, Job};
use crate::options::TransferOptions;

/// How long a probe measures what a link could carry.
const PROBE: Duration = Duration::from_millis(400);

/// How long the second end of a failed hop may take to report the failure as well.
const OTHER_END_MAX: Duration = Duration::from_millis(1800);

/// Explains to the user why the other hosts go on without a host. `None` if the host, or its end of a hop, reports the
/// reason itself.
pub(super) fn passed_over(why: Why, host: &str, stall: Duration) -> Option<String> {
    Some(match why {
        Why::Lost => format!("lost {host}"),
        Why::CutOff => format!("{host} is unreachable from its neighbours"),
        Why::StoodStill => format!("{host} has accepted no data for {} s", stall.as_secs()),
        Why::Slow => format!("{host} is much slower than the others"),
        Why::TooFar => format!("{host} is too far behind the others"),
        Why::DiskStill | Why::Endless | Why::Failed | Why::SourceLost | Why::Misled | Why::Lied | Why::Forged => {
            return None;
        }
    })
}

/// Existing hops of a chain.
#[derive(Default)]
pub(super) struct Links {
    links: HashMap<usize, LinkId>,
    /// Hops used only for measuring.
    probes: Vec<usize>,
}

impl Links {
    /// Begins a hop for a link.
    pub(super) fn connect(&mut self, job: &mut Job, options: &TransferOptions, link: LinkId, hosts: [usize; 2]) {
        let hop = hop_of_chain(job, options, hosts, [frames::Job::SendBroadcast, frames::Job::ReceiveBroadcast]);
        self.links.insert(hop, link);
    }

    /// Tells both ends of the link's hop to end.
    pub(super) fn stop(&self, job: &mut Job, link: LinkId) {
        if let Some((&hop, _)) = self.links.iter().find(|(_, one)| **one == link) {
            job.stop(hop, libc::SIGTERM as u8);
        }
    }

    /// Measures how fast the first host can send to the second.
    pub(super) fn probe(&mut self, job: &mut Job, options: &TransferOptions, hosts: [usize; 2]) {
        let send = frames::Job::SendMemory { millis: PROBE.as_millis() as u32 };
        let receive = frames::Job::ReceiveFile { path: b"/dev/null".to_vec() };
        self.probes.push(hop_of_chain(job, options, hosts, [send, receive]));
    }

    /// Whether a hop is used only for measuring.
    pub(super) fn is_probe(&self, hop: usize) -> bool {
        self.probes.contains(&hop)
    }

    /// Returns the link that a hop serves in the chain.
    pub(super) fn link(&self, hop: usize) -> Option<LinkId> {
        self.links.get(&hop).copied()
    }

    /// Returns the hops of the chain.
    pub(super) fn hops(&self) -> impl Iterator<Item = usize> {
        self.links.keys().copied()
    }

    /// Reports hops that have met, and hops that are over, to the chain.
    pub(super) fn settle(&mut self, job: &Job, chain: &mut Chain, now: Duration) {
        for (&hop, &link) in &self.links {
            if job.hops[hop].has_met() {
                chain.link_up(link, now);
            }
        }
        // If the chain is stopping a link, the reason for its end is not needed, so the second end is not awaited: a
        // node's new end replaces its old end.
        let max = |link: LinkId| if chain.is_stopping(link) { Duration::ZERO } else { OTHER_END_MAX };
        let links = self.links.iter().filter(|&(hop, &link)| is_over_within(job, *hop, max(link)));
        let links: Vec<usize> = links.map(|(&hop, _)| hop).collect();
        let probes: Vec<usize> = self.probes.iter().copied().filter(|&hop| is_over(job, hop)).collect();
        for hop in probes {
            self.probes.retain(|other| *other != hop);
            // The source's figures are used, because the other host may want to look fast.
            let sent = job.hops[hop].report(Side::From).filter(|_| !has_failed(job, hop)).map(|report| &report.figures);
            chain.probe_over(sent.map_or(0.0, |sent| rate(sent.counters.bytes, sent.seconds.max(1e-6))));
        }
        for hop in links {
            let link = self.links.remove(&hop).expect("it is there");
            // The receiving end's own report is used: it concerns that end alone.
            if job.hops[hop].report(Side::To).is_some_and(|report| report.figures.counters.bytes == 0) {
                chain.fed_nothing(link);
            }
            chain.link_over(link, how_ended(job, hop), now);
        }
    }
}

/// Begins a hop of a chain. A broken hop is repaired by the chain, at once, so the session does not reconnect.
fn hop_of_chain(job: &mut Job, options: &TransferOptions, hosts: [usize; 2], jobs: [frames::Job; 2]) -> usize {
    let [from, to] = hosts;
    let [send, receive] = jobs;
    let end = |host: usize, what| EndOf { host, stage: None, name: job.hosts[host].label(), job: what };
    let (sender, receiver) = (end(from, send), end(to, receive));
    job.connect(sender, receiver, &TransferOptions { reconnect: 0, ..options.clone() }, false)
}

/// Whether a hop is over, or has failed and its second end is no longer awaited.
pub(super) fn is_over(job: &Job, hop: usize) -> bool {
    is_over_within(job, hop, OTHER_END_MAX)
}

fn is_over_within(job: &Job, hop: usize, other_end_max: Duration) -> bool {
    let since = job.hops[hop].ended_since;
    job.is_settled(hop) || since.is_some_and(|since| since.elapsed() >= other_end_max) && has_failed(job, hop)
}

fn has_failed(job: &Job, hop: usize) -> bool {
    job.hops[hop].reports.iter().flatten().any(|report| report.fault.is_some())
}

fn how_ended(job: &Job, hop: usize) -> LinkEnd {
    let hop = &job.hops[hop];
    let fault = |side: Side| hop.report(side).and_then(|report| report.fault.as_ref());
    if hop.reports.iter().flatten().count() == 2 && hop.reports.iter().flatten().all(|report| report.fault.is_none()) {
        return LinkEnd::Done;
    }
    how_failed(fault(Side::From), fault(Side::To))
}

/// Returns how a link ended if its ends have reported these faults.
fn how_failed(from: Option<&Fault>, to: Option<&Fault>) -> LinkEnd {
    let is_own = |fault: Option<&Fault>, exit: Exit| fault.is_some_and(|fault| fault.own && fault.exit == exit.code());
    match from {
        Some(fault) if fault.is_not_kept() => LinkEnd::NotKept,
        Some(fault) if is_own(from, Exit::Source) && is_timeout(fault) => LinkEnd::ToSilent,
        _ if is_own(from, Exit::Source) => LinkEnd::FromFailed,
        _ if is_own(to, Exit::Destination) => LinkEnd::ToFailed,
        _ => LinkEnd::Broken,
    }
}

/// Whether a sending end has waited in vain for the other end to say where it wants the stream to start.
fn is_timeout(fault: &Fault) -> bool {
    fault.path.is_empty() && fault.errno == libc::ETIMEDOUT
}

#[cfg(test)]
mod tests {
    use rd_proto::control::IoFact;

    use super::*;

    /// A sending end that was not asked for anything has not failed.
    #[test]
    fn an_end_fails_for_its_own_faults_alone() {
        let fact = |errno, path: &str| IoFact { path: path.into(), errno, detail: Vec::new() };
        let from = |errno, path| how_failed(Some(&Fault::unreadable(&fact(errno, path))), None);
        assert_eq!(from(libc::ETIMEDOUT, ""), LinkEnd::ToSilent);
        assert_eq!(from(libc::ETIMEDOUT, "file"), LinkEnd::FromFailed);
        assert_eq!(from(libc::EIO, ""), LinkEnd::FromFailed);
        assert_eq!(from(libc::ESTALE, ""), LinkEnd::NotKept);
        let to = Fault::unwritable(&fact(libc::ENOSPC, "file"));
        assert_eq!(how_failed(None, Some(&to)), LinkEnd::ToFailed);
        let told = Fault { own: false, ..Fault::unreadable(&fact(libc::ETIMEDOUT, "")) };
        assert_eq!(how_failed(Some(&told), Some(&Fault { own: false, ..to })), LinkEnd::Broken);
    }
}
