//! What nodes say of themselves, and how far they are believed.
//!
//! The source is trusted. Any other node may be hostile. It reports how much it has and how much it has passed on, and
//! may try to make others look slow that way. So two numbers are derived for each node from the words of both ends of
//! its hop: the most that it may have, by which the node itself is judged, and what it surely has, by which the nodes
//! behind it are judged. A lie makes no other node look worse. How fast nodes are is judged in `pace.rs`. A node has
//! failed if its claim cannot be true even if any other node lies.

use std::time::Duration;

use super::blame::COMPARED_AFTER;
use super::{Chain, Node, SOURCE, Why};

/// If only one end of a hop reports progress, this share of the spool must have moved (an eighth).
const ALONE_SHARE: u64 = 8;

impl Chain {
    /// Takes a node's report: how many bytes it has and has passed on, and whether that is all.
    pub(super) fn claim(&mut self, node: Node, (said, passed, says_all): (u64, u64, bool), now: Duration) {
        let member = &mut self.members[node];
        member.said = member.said.max(said);
        member.passed = passed;
        member.says_all |= says_all;
        self.learn(node, now);
        self.check(node);
        let member = &mut self.members[node];
        member.taken.hear(member.said, now);
        // How much it says to have passed on concerns the node behind it.
        let behind = self.order.windows(2).find(|two| two[0] == node).map(|two| two[1]);
        if let Some((behind, passed)) = behind.and_then(|behind| Some((behind, self.passed_to(node, behind, now)?))) {
            self.members[behind].given.hear(passed, now);
        }
    }

    /// Derives what is believed of a node from what has been reported.
    pub(super) fn learn(&mut self, node: Node, now: Duration) {
        let member = &self.members[node];
        // A node that has taken everything cannot hide that, so that it need not pass it on.
        let said = self.length.filter(|_| member.is_fed).unwrap_or(member.said);
        let Some(before) = self.before(node) else {
            let of_source = self.length.unwrap_or(self.members[SOURCE].received);
            let said = if node == SOURCE { said } else { said.min(of_source) };
            (self.members[node].received, self.members[node].sure) = (said, said);
            return;
        };
        let passed = self.passed_to(before, node, now).unwrap_or(said);
        let most = self.members[before].received;
        // By the word of both ends, and by the word of one. The source does not lie. Any other node's word counts for
        // at most one spool more than the node's own, because a node must know of more than that.
        let by_both = said.min(passed);
        let by_one = match before {
            SOURCE => passed,
            _ => said.max(passed.min(said.saturating_add(self.spool_bytes))).min(most),
        };
        let sure = by_both.min(self.members[before].sure);
        let member = &mut self.members[node];
        // A lie of the node before it ends with that node, so these numbers may become smaller.
        (member.received, member.sure) = (said.max(passed).min(most), sure);
        // Progress that only one end reports must be large. Otherwise it could go on for ever by single bytes.
        let (of_both, of_one) = member.reached;
        if by_both > of_both || by_one >= of_one.saturating_add(self.spool_bytes / ALONE_SHARE) {
            member.reached = (of_both.max(by_both), of_one.max(by_one));
            member.moved = now;
        }
    }

    /// Returns how much a node says to have passed on to the node behind it. `None` while that may concern another node
    /// that was there before. In so short a time no node is passed over.
    pub(super) fn passed_to(&self, from: Node, to: Node, now: Duration) -> Option<u64> {
        let mut links = self.links.values().filter(|link| !link.is_stopping);
        let link = links.find(|link| (link.from, link.to) == (from, to))?;
        let is_about_it = link.is_first || now.saturating_sub(link.up_since?) >= COMPARED_AFTER;
        is_about_it.then(|| self.members[from].passed)
    }

    /// Reports whether the two ends of a hop contradict each other. It cannot be known which of them lies, so neither
    /// is slow.
    pub(super) fn is_disputed(&self, from: Node, to: Node, now: Duration) -> bool {
        let passed = self.passed_to(from, to, now);
        passed.is_some_and(|passed| self.members[to].said > passed.saturating_add(self.spool_bytes))
    }

    /// Checks whether a node's reports can be true.
    pub(super) fn check(&mut self, node: Node) {
        let member = &mut self.members[node];
        if node == SOURCE {
            member.has_all |= member.says_all;
            return;
        }
        let Some(length) = self.length else { return };
        let cannot_be = member.said > length || member.says_all && member.said < length;
        // Another node may have changed what this node got; the node finds that out itself.
        let is_its_own = member.is_proof_met || member.fed_by.iter().eq([&SOURCE]);
        if cannot_be && is_its_own {
            self.fail(node, Why::Lied);
        } else {
            member.has_all |= member.says_all && !cannot_be;
        }
    }

    /// Records that the stream that a node got is not what the source has sent.
    pub(in crate::job::copy::broadcast) fn misled(&mut self, node: Node) {
        let member = &mut self.members[node];
        (member.is_over, member.is_misled, member.wants_source) = (true, true, true);
        self.fall_behind(node);
        self.take_out(node, Why::Misled);
        self.settle();
    }

    /// Finds the nodes that have changed the stream, as far as that can be known. A node has forged the stream if it
    /// says that it got the right one, while a node that it alone has fed says otherwise and does not lie. A node lies
    /// if it says that it got the wrong stream, but has passed on the right one or was fed by the source alone.
    pub(super) fn blame_forgers(&mut self) {
        let is_open = |&node: &Node| node != SOURCE && !self.members[node].is_over && self.members[node].is_heard;
        if !self.members.iter().any(|member| member.is_misled) || self.order.iter().any(is_open) {
            return;
        }
        let alone = |node: Node| self.members.iter().filter(move |member| member.fed_by.iter().eq([&node]));
        let mut found = Vec::new();
        for node in 1..self.members.len() {
            let member = &self.members[node];
            if member.is_misled && (alone(node).any(|fed| fed.is_proof_met) || member.fed_by.iter().eq([&SOURCE])) {
                found.push((node, Why::Lied));
            }
        }
        for node in 1..self.members.len() {
            let is_believed = |fed: Node| self.members[fed].is_misled && !found.contains(&(fed, Why::Lied));
            let is_fed = |&fed: &Node| self.members[fed].fed_by.iter().eq([&node]);
            if self.members[node].is_proof_met && (1..self.members.len()).filter(is_fed).any(is_believed) {
                found.push((node, Why::Forged));
            }
        }
        for (node, why) in found {
            self.fail(node, why);
        }
    }
}
