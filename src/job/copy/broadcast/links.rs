//! A chain on its hosts: begins and ends hops, and tells nodes what to do, as the chain decides. Reports the state of
//! the hops to the chain.

use std::collections::HashMap;
use std::time::Duration;

use super::chain::{Action, Chain, LinkEnd, LinkId, Node, SOURCE, Why};
use crate::control::frames::{self, BroadcastProof, Fault, Message};
use crate::fault::Exit;
use crate::job::event::rate;
use crate::job::hop::Side;
use crate::job::pipeline::grammar;
use crate::job::{EndOf, Job};
use crate::options::TransferOptions;

/// How long a probe measures what a link could carry.
const PROBE: Duration = Duration::from_millis(400);

/// How long the second end of a failed hop may take to report the failure as well.
const OTHER_END_MAX: Duration = Duration::from_millis(1800);

/// Returns the line for the user about hosts none of which is heard, or that are heard again.
pub(super) fn silence(within: Option<Duration>) -> String {
    match within {
        Some(within) => format!("no host answers; waiting up to {} s for the network", within.as_secs()),
        None => "hosts answer again".to_owned(),
    }
}

/// Explains to the user why the other hosts go on without a host. `None` if the host, or its end of a hop, reports the
/// reason itself.
pub(super) fn passed_over(why: Why, host: &str, stall: Duration) -> Option<String> {
    Some(match why {
        Why::Lost => format!("lost {host}"),
        Why::CutOff => format!("{host} is unreachable from its neighbours"),
        Why::StoodStill => format!("{host} has accepted no data for {} s", stall.as_secs()),
        Why::Slow => format!("{host} is much slower than the others"),
        Why::TooFar => format!("{host} is too far behind the others"),
        Why::DiskStill
        | Why::Endless
        | Why::Failed
        | Why::SourceLost
        | Why::NoGiver
        | Why::Misled
        | Why::Lied
        | Why::Forged => return None,
    })
}

/// The nodes of a chain on their hosts, and the existing hops between them.
#[derive(Default)]
pub(super) struct Links {
    /// The host of each node.
    pub(super) hosts: Vec<usize>,
    /// What the stream must have been, once the source has reported it.
    pub(super) proof: Option<BroadcastProof>,
    /// Whether hops name their hosts as those of a pipeline do.
    is_pipeline: bool,
    options: TransferOptions,
    links: HashMap<usize, LinkId>,
    /// Hops used only for measuring.
    probes: Vec<usize>,
}

impl Links {
    pub(super) fn new(hosts: Vec<usize>, options: &TransferOptions) -> Self {
        // A broken hop is repaired by the chain, at once, so the session does not reconnect.
        Self { hosts, options: TransferOptions { reconnect: 0, ..options.clone() }, ..Self::default() }
    }

    /// Makes the same for the hosts of a pipeline.
    pub(super) fn of_pipeline(hosts: Vec<usize>, options: &TransferOptions) -> Self {
        Self { is_pipeline: true, ..Self::new(hosts, options) }
    }

    /// Returns the node on a host.
    pub(super) fn node_of(&self, host: usize) -> Option<Node> {
        self.hosts.iter().position(|&other| other == host)
    }

    /// Carries out an action of the chain. Returns the action if it concerns more than hops and messages to nodes.
    pub(super) fn act(&mut self, job: &mut Job, action: Action) -> Option<Action> {
        match action {
            Action::Connect { link, from, to } => {
                let end = |node: Node, task| {
                    let host = self.hosts[node];
                    let name = match self.is_pipeline {
                        true => grammar::label(&job.hosts[host].name),
                        false => job.hosts[host].label(),
                    };
                    EndOf { host, stage: None, name, job: task }
                };
                let [from, to] = [end(from, frames::Job::SendBroadcast), end(to, frames::Job::ReceiveBroadcast)];
                let hop = job.connect(from, to, &self.options, false);
                self.links.insert(hop, link);
            }
            Action::Stop(link) => {
                if let Some((&hop, _)) = self.links.iter().find(|(_, one)| **one == link) {
                    job.stop(hop, libc::SIGTERM as u8);
                }
            }
            Action::Next(node, has_next) => self.tell(job, node, Message::BroadcastNext(has_next)),
            Action::Leave(node) => self.tell(job, node, Message::BroadcastLeave),
            Action::Prove(node) => {
                if let Some(proof) = self.proof {
                    self.tell(job, node, Message::BroadcastProof(proof));
                }
            }
            Action::Probe(node) => {
                let hosts = [self.hosts[SOURCE], self.hosts[node]];
                self.probes.push(job.begin_measuring(hosts, PROBE, &self.options));
            }
            Action::Copy { .. } | Action::Out(..) | Action::Silence(_) | Action::End => return Some(action),
        }
        None
    }

    /// Sends a message to a node that is still heard.
    pub(super) fn tell(&self, job: &mut Job, node: Node, message: Message) {
        let host = self.hosts[node];
        if !job.hosts[host].gone {
            job.send(host, message);
        }
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

    /// Whether all hops of the chain are over.
    pub(super) fn are_over(&self, job: &Job) -> bool {
        self.links.keys().all(|&hop| is_over(job, hop))
    }

    /// Returns the nodes that are connected with the node that gives them the stream.
    pub(super) fn reached(&self, job: &Job, chain: &Chain) -> impl Iterator<Item = Node> {
        let links = self.links.iter().filter(move |&(&hop, &link)| is_up(job, hop) && !chain.is_stopping(link));
        links.filter_map(move |(_, &link)| chain.ends(link)).map(|(_, to)| to)
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

/// Ends a hop of which one end has failed: the other end may not have noticed that.
pub(super) fn end_failed(job: &mut Job, hop: usize) {
    if has_failed(job, hop) && !job.hops[hop].is_stopping {
        job.stop(hop, libc::SIGTERM as u8);
    }
}

/// Whether the ends of a hop have met, and neither has ended.
pub(super) fn is_up(job: &Job, hop: usize) -> bool {
    job.hops[hop].has_met() && job.hops[hop].ended_since.is_none()
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
    use std::ffi::OsStr;

    use rd_proto::control::IoFact;

    use super::super::chain::Lag;
    use super::*;
    use crate::control::endpoints;
    use crate::control::frames::Report;
    use crate::control::launch::Launcher;
    use crate::job::Setup;
    use crate::job::launching::{AgentChoice, Otherwise};

    /// A node that sends to another is not connected by that, and neither is one whose hop has ended.
    #[test]
    fn only_a_hop_to_a_node_reaches_it() {
        let agent = AgentChoice { command: "rdpipe", program: "a".into(), otherwise: Otherwise::Fail, remark: None };
        let launcher = Launcher::new(OsStr::new("rsh"), Vec::new()).expect("a command");
        let setup = Setup { launcher, agent, parallel: 0, relay: false, via: Vec::new(), name: None, may_ask: false };
        let mut job = Job::without_signals(setup, false);
        let hosts = ["src", "h1", "h2"].map(|name| job.host(OsStr::new(name)).expect("a host"));
        let mut chain = Chain::new(3, 1 << 20, Duration::from_secs(5), Lag::Held);
        let mut links = Links::of_pipeline(hosts.to_vec(), &TransferOptions::default());
        while let Some(action) = chain.poll() {
            links.act(&mut job, action);
        }
        let reached = |job: &Job| links.reached(job, &chain).collect::<Vec<Node>>();
        assert!(reached(&job).is_empty());
        let last = (0..job.hops.len()).find(|&hop| job.hops[hop].hosts == [hosts[1], hosts[2]]).expect("it was begun");
        let endpoints = vec![endpoints::given(([10, 0, 0, 1], 7000).into())];
        job.hops[last].handle(Side::To, Message::Listening(endpoints), &job.setup);
        job.hops[last].handle(Side::From, Message::Dialed, &job.setup);
        assert_eq!(reached(&job), [2_usize]);
        job.hops[last].note_ended(Side::From, Report::default());
        assert!(reached(&job).is_empty());
    }

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
