//! Finds the nodes of a chain that hold the others up or are gone, and that must be passed over.

use std::collections::BTreeSet;
use std::time::Duration;

use super::pace::RATE_OVER;
use super::{Action, Chain, Lag, Member, Node, SILENT_MIN, SOURCE, Tree, Why};

/// How long to look for which of two hosts has lost the other before they are connected again.
const SUSPECT: Duration = Duration::from_millis(700);

/// Two hosts that have lost each other are connected again once. How long that link must have held for them to be
/// connected again after the next loss.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long a node must have been slow without a break.
const SLOW_OVER: Duration = Duration::from_secs(2);

/// How long a link must have been up before it is compared with others.
pub(super) const COMPARED_AFTER: Duration = Duration::from_secs(2);

/// How long a tree must have been busy to count as holding up the others, if more than half of these are less busy than
/// `IDLE_PERMILLE`.
const BUSY_OVER: Duration = Duration::from_secs(2);
const IDLE_PERMILLE: u16 = 500;

/// How long a disk may write nothing although there is data before it is given up, unless its node is behind.
const DISK_MAX: Duration = Duration::from_secs(30);

/// How long a node that has the whole stream may go without writing much more of it, for example while a server makes
/// many small files durable. In addition, the node may take as long as a very slow disk needs to write or read back the
/// whole stream, at `FINISH_RATE` bytes a second. No other host waits for it, so a long limit costs nothing but time.
const FINISH_MAX: Duration = Duration::from_secs(30 * 60);
const FINISH_RATE: u64 = 1 << 20;

/// How long a node may take to leave. It may be in the middle of a write, or be making a file durable, and a server of
/// files that fails over may answer none of its writes for more than `DISK_MAX`.
const LEAVE_MAX: Duration = Duration::from_secs(5 * 60);

/// How long a node may be silent, unless it is being copied to, before it is given up.
const SILENT_MAX: Duration = Duration::from_secs(12);

/// The same limit for a node that is out of the chain, when no other node is waited for.
const SILENT_ALONE: Duration = Duration::from_secs(3);

impl Chain {
    /// Finds the nodes that are to blame for broken links.
    pub(super) fn judge(&mut self, now: Duration) {
        // Only the next look at the time ends an outage, after which links are begun again.
        if self.outage.is_some() || self.is_cut_off(now) {
            return;
        }
        let broken = std::mem::take(&mut self.broken);
        let mut kept = Vec::new();
        for one in broken.iter().copied() {
            if !self.are_neighbours(one.from, one.to) {
                continue;
            }
            // If a host is cut off, both of its links break.
            let lost_both = |node: Node| {
                broken.iter().any(|other| other.from == node) && broken.iter().any(|other| other.to == node)
            };
            let hop = (one.from, one.to);
            if one.from == SOURCE && self.is_silent(SOURCE, now) {
                // The node behind it is not to blame, however often that happens.
                self.again.remove(&hop);
                kept.push(one);
            } else if now < self.forgiving_until && self.again.insert(hop) {
                // The network was down for all, so neither end is to blame.
            } else if lost_both(one.to) {
                self.take_out(one.to, Why::CutOff);
            } else if one.from != SOURCE && lost_both(one.from) {
                self.take_out(one.from, Why::CutOff);
            } else if now.saturating_sub(one.since) < SUSPECT {
                kept.push(one);
            } else if one.from != SOURCE && self.is_silent(one.from, now) && !self.is_silent(one.to, now) {
                self.take_out(one.from, Why::CutOff);
            } else if !self.again.insert(hop) {
                self.take_out(one.to, Why::CutOff);
            }
        }
        self.broken = kept;
    }

    /// Reports whether all nodes have fallen silent together, so that the network between them and the caller is rather
    /// down than they are, and not all are back yet. They are waited for, but not for longer than the user allows.
    pub(super) fn is_cut_off(&self, now: Duration) -> bool {
        let (since, until) = match self.outage {
            Some(outage) => (outage.since, outage.until),
            None => (self.heard, self.heard + self.reconnect),
        };
        let is_missing = |member: &&Member| {
            let has_spoken_last = member.spoke <= since && since - member.spoke < SILENT_MIN;
            member.speaks && member.is_heard && has_spoken_last
        };
        let hosts = &self.members[1..];
        let are_missing = match hosts.iter().filter(is_missing).count() {
            0 => false,
            // Hosts that are done go on reporting while their agents run. If these are gone, rather this node is, too.
            1 if self.outage.is_none() => hosts.iter().all(|member| !member.speaks || member.tree != Tree::Done),
            _ => true,
        };
        (since + SILENT_MIN..until).contains(&now) && are_missing
    }

    /// Has all limits of time run as if no time had passed since the last look at it.
    pub(super) fn skip(&mut self, slept: Duration, now: Duration) {
        let later = |at: Duration| (at + slept).min(now);
        for member in &mut self.members {
            let Member { moved, spoke, wrote, wrote_much, copied, .. } = member;
            for at in [moved, spoke, wrote, &mut wrote_much.0, copied] {
                *at = later(*at);
            }
            let Member { last_since, slow_since, busy_since, stranded, .. } = member;
            for since in [last_since, slow_since, busy_since, stranded] {
                *since = since.map(later);
            }
        }
        self.head_slow_since = self.head_slow_since.map(later);
    }

    /// Gives up nodes that will not be heard of again.
    pub(super) fn give_up(&mut self, now: Duration) {
        let limit = self.silent_max();
        // Without the source, no node gets what it lacks.
        let source_max = if self.members[SOURCE].is_heard { limit.max(self.reconnect) } else { limit };
        self.give_up_source(now, source_max);
        self.give_up_disks(now);
        self.give_up_silent(now, limit, source_max);
        self.give_up_endless(now, limit);
    }

    fn give_up_source(&mut self, now: Duration, limit: Duration) {
        let is_needed =
            self.order.first() == Some(&SOURCE) && self.order.iter().any(|&node| !self.members[node].has_all);
        let source = &mut self.members[SOURCE];
        let is_chain = self.stall < Duration::MAX;
        if is_chain && is_needed && source.is_heard && now.saturating_sub(source.spoke) > limit {
            source.is_heard = false;
            self.take_out(SOURCE, Why::Lost);
        }
    }

    /// Gives up nodes whose disks stand still, if no other unfinished node is at work. A node at work may yet catch up
    /// with one that stands still; a node whose disk stands still as well will not. A node that is behind holds up no
    /// other, and gets its copy once it has left, so it is given up only when it does not leave.
    fn give_up_disks(&mut self, now: Duration) {
        // A command may do without its input for long.
        if self.lag != Lag::Copied {
            return;
        }
        let is_still = |node: Node| {
            let member = &self.members[node];
            let is_made = member.tree == Tree::Open && !member.is_over;
            is_made && member.is_unwritten && self.has_not_written(node, now)
        };
        let is_at_it = |node: Node| self.members[node].tree == Tree::Open && !is_still(node);
        let is_any_at_it = (1..self.members.len()).any(is_at_it);
        let leave_max = LEAVE_MAX.max(self.silent_max());
        let is_hopeless = |node: Node| match self.members[node].is_behind {
            true => now.saturating_sub(self.members[node].wrote) > leave_max,
            false => !is_any_at_it,
        };
        // Nothing is known of the disk of a node that is silent.
        let is_up = |&node: &Node| is_still(node) && !self.is_silent(node, now) && is_hopeless(node);
        let given_up: Vec<Node> = (1..self.members.len()).filter(is_up).collect();
        given_up.into_iter().for_each(|node| self.fail(node, Why::DiskStill));
    }

    /// Reports whether a node has written nothing for so long that it never will.
    pub(super) fn has_not_written(&self, node: Node, now: Duration) -> bool {
        self.is_still_since(self.members[node].wrote, now)
    }

    /// Reports whether a node has written so little that the others must not wait for it, whatever it says.
    pub(super) fn has_hardly_written(&self, node: Node, now: Duration) -> bool {
        self.is_still_since(self.members[node].wrote_much.0, now)
    }

    fn is_still_since(&self, wrote: Duration, now: Duration) -> bool {
        now.saturating_sub(wrote) > DISK_MAX.max(self.silent_max())
    }

    fn silent_max(&self) -> Duration {
        SILENT_MAX.max(self.stall.saturating_mul(2))
    }

    /// Gives up nodes that are silent, and nodes to which no other node can give a copy. It may be the source that is
    /// silent, so these are waited for as long as the source is, unless it is lost.
    fn give_up_silent(&mut self, now: Duration, limit: Duration, source_max: Duration) {
        // A node that has been passed over may come back while others are still working. Otherwise it is not waited
        // for.
        let is_at_it = |node: Node| {
            let member = &self.members[node];
            member.tree == Tree::Open && (member.is_served || !self.is_silent(node, now))
        };
        let limit_if_out = if (1..self.members.len()).any(is_at_it) { limit } else { SILENT_ALONE.max(self.stall) };
        for node in 1..self.members.len() {
            let member = &self.members[node];
            if member.tree != Tree::Open || member.is_served {
                continue;
            }
            // A node that has left has nothing to report until it is copied to.
            let speech_max = if member.is_out { limit_if_out } else { limit };
            let is_silent = !member.is_over && now.saturating_sub(member.spoke) > speech_max;
            let is_stranded = member.stranded.is_some_and(|since| now.saturating_sub(since) > source_max);
            if is_silent {
                self.take_out(node, Why::CutOff);
                self.members[node].tree = Tree::Failed;
            } else if is_stranded {
                self.fail(node, Why::NoGiver);
            }
        }
    }

    /// Gives up nodes that only have to finish their own part and do not, however much they report meanwhile.
    fn give_up_endless(&mut self, now: Duration, limit: Duration) {
        // If a command takes the stream, the node ends when the command does.
        if self.lag != Lag::Copied {
            return;
        }
        let for_all = Duration::from_secs(self.length.unwrap_or(0) / FINISH_RATE);
        for node in 1..self.members.len() {
            let member = &mut self.members[node];
            let is_last = member.is_out || member.has_all && self.has_proof;
            let is_due = is_last && member.tree == Tree::Open && !member.is_over;
            member.last_since = is_due.then(|| member.last_since.unwrap_or(now));
            let Some(since) = member.last_since else { continue };
            let has_passed = |since: Duration, most: Duration| now.saturating_sub(since) > most.max(limit);
            let is_endless = match member.has_all {
                true => {
                    has_passed(member.wrote_much.0.max(since), FINISH_MAX) && has_passed(since, FINISH_MAX + for_all)
                }
                // The node was told to leave with what it has.
                false => has_passed(since, LEAVE_MAX),
            };
            if is_endless {
                self.fail(node, Why::Endless);
            }
        }
    }

    /// Returns a node that takes nothing even though the node before it has data for it. A node that is also silent is
    /// blamed first; otherwise the last such node of the chain, because those before it may only be waiting for it.
    pub(super) fn still(&self, now: Duration) -> Option<Node> {
        let is_still = |two: &&[Node]| {
            let is_up = self.link(two[0], two[1]).is_some_and(|link| link.up_since.is_some() && !link.is_stopping);
            let is_still = now.saturating_sub(self.members[two[1]].moved) >= self.stall;
            self.waits(two[0], two[1]) && is_up && is_still && !self.is_held(two[1], now)
        };
        let links = || self.order.windows(2).rev().filter(is_still);
        let silent = links().flatten().copied().filter(|&node| node != SOURCE).find(|&node| self.is_silent(node, now));
        silent.or_else(|| links().next().map(|two| two[1]))
    }

    /// Whether a node takes nothing because a command there or behind it is slow, and slow nodes are to be waited for.
    fn is_held(&self, node: Node, now: Duration) -> bool {
        let is_heard = |node: Node| !self.is_silent(node, now);
        let from_it_on = self.order.iter().skip_while(|&&other| other != node);
        let is_slow = |&node: &Node| self.members[node].is_unwritten && is_heard(node);
        self.lag == Lag::Held && is_heard(node) && from_it_on.copied().any(|node| is_slow(&node))
    }

    /// Reports whether one node has something that the other, which is behind it, lacks.
    pub(super) fn waits(&self, from: Node, to: Node) -> bool {
        let (from, to) = (&self.members[from], &self.members[to]);
        from.sure > to.received || self.length == Some(from.sure) && !to.has_all
    }

    /// Records that nodes without anything to take do not stand still. While the source is silent, it gives nothing
    /// either.
    pub(super) fn excuse(&mut self, now: Duration) {
        for at in 1..self.order.len() {
            let (from, to) = (self.order[at - 1], self.order[at]);
            if !self.waits(from, to) || from == SOURCE && self.is_silent(SOURCE, now) {
                self.members[to].moved = now;
            }
        }
    }

    /// Returns a node that holds the others up: the node before it keeps as much for it as it can, and could have gone
    /// much faster.
    pub(super) fn slow(&mut self, now: Duration) -> Option<Node> {
        let lags = |from: Node, to: Node| self.lag(from, to) >= self.spool_bytes / 2;
        let is_slow = |at: usize| {
            let (from, node) = (self.order[at - 1], self.order[at]);
            // A node that is not heard is not slow, whatever it was before, and makes the next one seem so. A node that
            // waits for the next one speaks only once a second.
            let silent = |node: Node| now.saturating_sub(self.members[node].spoke);
            self.is_measured(from, node, now)
                && silent(from) <= SILENT_MIN
                && silent(node) <= RATE_OVER
                && !self.is_blocked(at, now)
                && !self.is_disputed(from, node, now)
                && lags(from, node)
                && self.is_outrun(from, node)
        };
        let slow: BTreeSet<Node> = (1..self.order.len()).filter(|&at| is_slow(at)).map(|at| self.order[at]).collect();
        for (node, member) in self.members.iter_mut().enumerate() {
            member.slow_since = slow.contains(&node).then(|| member.slow_since.unwrap_or(now));
        }
        // A node that continues after being held up by another node seems slow for the time of that hold-up.
        let over = self.patience(SLOW_OVER);
        let is_long =
            |node: &Node| self.members[*node].slow_since.is_some_and(|since| now.saturating_sub(since) >= over);
        self.order.iter().rev().copied().find(is_long)
    }

    /// Returns how long a node that holds the others up is waited for. If it cannot get its data later, it gets the
    /// time that the user allows.
    fn patience(&self, least: Duration) -> Duration {
        if self.lag == Lag::Copied { least } else { least.max(self.stall) }
    }

    /// Whether the node at this place is itself held up: it has no room for more, because it keeps what the next node
    /// but one lacks. One of the two nodes behind it may lie, so each report that could tell is used. How much a node
    /// has passed on is known only from the node itself.
    fn is_blocked(&self, at: usize, now: Duration) -> bool {
        let is_full = |bytes: u64| bytes >= self.spool_bytes / 2;
        let keeps = |two: &[Node]| {
            let passed = self.passed_to(two[0], two[1], now);
            passed.is_none_or(|passed| is_full(self.members[two[0]].received.saturating_sub(passed)))
        };
        let lacks = |&next: &Node| is_full(self.members[self.order[at]].sure.saturating_sub(self.members[next].said));
        self.order[at..].windows(2).take(2).any(keeps) || self.order.get(at + 2).is_some_and(lacks)
    }

    /// Whether a link has been up for long enough to be compared with others.
    fn is_measured(&self, from: Node, to: Node, now: Duration) -> bool {
        let up_since = self.link(from, to).and_then(|link| link.up_since);
        up_since.is_some_and(|since| now.saturating_sub(since) >= COMPARED_AFTER)
    }

    /// Has another link measured if the first link is holding up all nodes, because then nothing is known of the
    /// capacity of the others.
    pub(super) fn probe(&mut self, now: Duration) {
        let &[SOURCE, head, behind, ..] = &self.order[..] else { return };
        let waits = self.lag(SOURCE, head) >= self.spool_bytes / 2;
        // Otherwise the head may be waiting for the nodes behind it.
        let passes = self.lag(head, behind) < self.spool_bytes / 4 && !self.is_blocked(1, now);
        // A source that is not heard may itself be what holds up all.
        let is_heard = now.saturating_sub(self.members[SOURCE].spoke) <= SILENT_MIN;
        let is_slow =
            is_heard && self.is_measured(SOURCE, head, now) && waits && passes && self.members[head].rate() > 0.0;
        self.head_slow_since = is_slow.then(|| self.head_slow_since.unwrap_or(now));
        // Waits, so that the rate is not from a time when something else held the head up.
        let is_long = self.head_slow_since.is_some_and(|since| now.saturating_sub(since) >= SLOW_OVER);
        if is_long && self.probed.insert(head) {
            self.actions.push_back(Action::Probe(behind));
        }
    }

    /// Returns a node whose own tree holds most others up. It passes the stream on, and gets its tree later.
    pub(super) fn busy(&self, now: Duration) -> Option<Node> {
        let live = || self.order.iter().copied().filter(|&node| node != SOURCE);
        let live = || live().filter(|&node| self.members[node].tree == Tree::Open && !self.members[node].is_behind);
        // Nothing is known of the tree of a node that is silent.
        let live = || live().filter(|&node| !self.is_silent(node, now));
        let over = self.patience(BUSY_OVER);
        let is_held =
            |node: &Node| self.members[*node].busy_since.is_some_and(|since| now.saturating_sub(since) >= over);
        let node = live().find(is_held)?;
        let others = || live().filter(|&other| other != node);
        let idle = others().filter(|&other| self.members[other].busy_permille < IDLE_PERMILLE).count();
        // Not all, because two slow trees would then keep each other in the chain. If most are slow, the rest waits.
        (2 * idle > others().count()).then_some(node)
    }
}
