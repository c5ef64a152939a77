//! What nodes say of themselves, and how far it is believed.
//!
//! The source is trusted. Any other node may be hostile: it says how much it has and how much it has passed on, and could
//! say so that others look slow. So of each there are two numbers, made of what both ends of its hop say: the most that it
//! may have, by which it is judged itself, and what is sure, by which those behind it are. A lie makes nobody else look
//! worse. How fast they are is judged in `pace.rs`. A node whose claim cannot be true, even if any other node lies, has failed.

use std::time::Duration;

use super::blame::COMPARED_AFTER;
use super::{Action, Chain, Node, SOURCE, Tree, Why};

/// So large a share of the spool has to have moved where only one end of a hop says so.
const ALONE_SHARE: u64 = 8;

impl Chain {
    /// A node has said how much it has and has passed on, in bytes, and whether that is all.
    pub(super) fn claim(&mut self, node: Node, (said, passed, says_all): (u64, u64, bool), now: Duration) {
        let member = &mut self.members[node];
        member.said = member.said.max(said);
        member.passed = passed;
        member.says_all |= says_all;
        self.learn(node, now);
        self.check(node);
        let member = &mut self.members[node];
        member.taken.hear(member.said, now);
        // What it says to have passed on is about the node behind it.
        let behind = self.order.windows(2).find(|two| two[0] == node).map(|two| two[1]);
        if let Some((behind, passed)) = behind.and_then(|behind| Some((behind, self.passed_to(node, behind, now)?))) {
            self.members[behind].given.hear(passed, now);
        }
    }

    /// Makes what is believed of what has been said.
    pub(super) fn learn(&mut self, node: Node, now: Duration) {
        let said = self.members[node].said;
        let Some(before) = self.before(node) else {
            let of_source = self.length.unwrap_or(self.members[SOURCE].received);
            let said = if node == SOURCE { said } else { said.min(of_source) };
            (self.members[node].received, self.members[node].sure) = (said, said);
            return;
        };
        let passed = self.passed_to(before, node, now).unwrap_or(said);
        let most = self.members[before].received;
        // By the word of both, and by that of one: the source does not lie, and of more than a spool a node has to know.
        let by_both = said.min(passed);
        let by_one = match before {
            SOURCE => passed,
            _ => said.max(passed.min(said.saturating_add(self.spool_bytes))).min(most),
        };
        let sure = by_both.min(self.members[before].sure);
        let member = &mut self.members[node];
        // A lie of the node before it ends with that node, so this may become less.
        (member.received, member.sure) = (said.max(passed).min(most), sure);
        // What one of them says alone has to be much: by single bytes it could go on for ever.
        let (of_both, of_one) = member.reached;
        if by_both > of_both || by_one >= of_one.saturating_add(self.spool_bytes / ALONE_SHARE) {
            member.reached = (of_both.max(by_both), of_one.max(by_one));
            member.moved = now;
        }
    }

    /// What a node says to have passed on to the one behind it; none as long as that may be about another one that was
    /// there before. Nobody is passed over in so short a time.
    pub(super) fn passed_to(&self, from: Node, to: Node, now: Duration) -> Option<u64> {
        let mut links = self.links.values().filter(|link| !link.is_stopping);
        let link = links.find(|link| (link.from, link.to) == (from, to))?;
        let is_about_it = link.is_first || now.saturating_sub(link.up_since?) >= COMPARED_AFTER;
        is_about_it.then(|| self.members[from].passed)
    }

    /// The two ends of a hop contradict each other: nobody can tell which of them lies, so none of them is slow.
    pub(super) fn is_disputed(&self, from: Node, to: Node, now: Duration) -> bool {
        let passed = self.passed_to(from, to, now);
        passed.is_some_and(|passed| self.members[to].said > passed.saturating_add(self.spool_bytes))
    }

    /// Looks whether what a node says can be.
    pub(super) fn check(&mut self, node: Node) {
        let member = &mut self.members[node];
        if node == SOURCE {
            member.has_all |= member.says_all;
            return;
        }
        let Some(length) = self.length else { return };
        let cannot_be = member.said > length || member.says_all && member.said < length;
        // Another node may have changed what it got; it finds that out itself.
        let is_its_own = member.is_proof_met || member.fed_by.iter().eq([&SOURCE]);
        if cannot_be && is_its_own {
            self.expose(node, Why::Lied);
        } else {
            member.has_all |= member.says_all && !cannot_be;
        }
    }

    /// A node is not to be trusted.
    fn expose(&mut self, node: Node, why: Why) {
        if self.members[node].tree == Tree::Failed {
            return;
        }
        self.members[node].tree = Tree::Failed;
        if self.order.contains(&node) {
            self.take_out(node, why);
        } else {
            self.actions.push_back(Action::Out(node, why));
        }
    }

    /// What a node got of the stream is not what the source has sent.
    pub(in crate::job::copy::broadcast) fn misled(&mut self, node: Node) {
        let member = &mut self.members[node];
        (member.is_over, member.is_misled, member.wants_source) = (true, true, true);
        self.fall_behind(node);
        self.take_out(node, Why::Misled);
        self.settle();
    }

    /// Finds who has changed the stream, as far as that can be told: a node that says that it got the right one, while all
    /// that it alone has fed say that they did not. Who says that he got the wrong one, and has passed on the right one, lies.
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
            self.expose(node, why);
        }
    }
}
