//! Ordinary copies to nodes that are out of the chain without the whole stream, and to nodes that join: which node
//! gives them, when, and for how long they may stand still.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Action, Chain, CopyEnd, Member, Node, SOURCE, Tree};

/// Maximum number of ordinary copies to one node that are begun.
const COPIES_MAX: u32 = 3;

/// Maximum number of ordinary copies that the source gives at once if there is no chain.
pub(super) const COPIES_AT_ONCE: u32 = 4;

/// How long a copy may get no further. Its receiver may be making a file durable, which it does not report. Neither
/// does it report how much it has read back for the proof, so a very slow disk gets the time to read the whole tree in
/// addition, at `STILL_RATE` bytes a second.
const STILL_MAX: Duration = Duration::from_secs(30 * 60);
const STILL_RATE: u64 = 1 << 20;

/// The same if another node waits for the giver of the copy.
const WAITED_MAX: Duration = Duration::from_secs(5 * 60);
const WAITED_RATE: u64 = 32 << 20;

impl Chain {
    /// Returns how many ordinary copies a node may give at once.
    pub(in crate::job::copy::broadcast) fn copies_at_once(&self) -> u32 {
        self.serves_max
    }

    /// Records the end of an ordinary copy.
    pub(in crate::job::copy::broadcast) fn copy_over(&mut self, from: Node, to: Node, end: CopyEnd) {
        let giver = &mut self.members[from];
        giver.serves = giver.serves.saturating_sub(1);
        giver.stuck += u32::from(end == CopyEnd::Stuck);
        let may_be_its_fault = matches!(end, CopyEnd::ToFailed | CopyEnd::Stuck);
        let member = &mut self.members[to];
        member.is_served = false;
        if end == CopyEnd::Made {
            member.tree = Tree::Done;
        } else if may_be_its_fault && from == SOURCE || member.copies >= COPIES_MAX {
            member.tree = Tree::Failed;
        } else {
            member.tried.push(from);
            // If the host cannot write the tree, the giver may have changed the tree. With the source's tree, it is the
            // host's own fault. If the copy got stuck, a copy from the source shows which of the two hangs.
            member.wants_source |= may_be_its_fault || end == CopyEnd::Forged;
        }
        self.settle();
    }

    /// Records that the copy to a node has got further.
    pub(in crate::job::copy::broadcast) fn copy_moved(&mut self, to: Node, now: Duration) {
        self.members[to].copied = now;
    }

    /// Returns the nodes whose copies have got no further for too long, and for how long. A copy may stand still for
    /// `least` in any case.
    pub(in crate::job::copy::broadcast) fn stuck(&self, now: Duration, least: Duration) -> Vec<(Node, Duration)> {
        let for_all = |rate: u64| Duration::from_secs(self.length.unwrap_or(0) / rate);
        let is_stuck = |&(to, still): &(Node, Duration)| {
            still > least
                && still > WAITED_MAX + for_all(WAITED_RATE)
                && (still > STILL_MAX + for_all(STILL_RATE) || self.is_waited_for(to))
        };
        let served = (1..self.members.len()).filter(|&node| self.members[node].is_served);
        served.map(|node| (node, now.saturating_sub(self.members[node].copied))).filter(is_stuck).collect()
    }

    /// Whether another node could get its copy if the copy to this one ended. Without a chain, as with `--sync`, that
    /// does not count: what a receiver makes durable is not reported, and the size of the tree is not known.
    fn is_waited_for(&self, to: Node) -> bool {
        let (giver, is_live) = (self.members[to].giver, self.is_live());
        let waits = |node: Node| Self::needs_copy(&self.members[node]) && self.can_give(giver, node, is_live);
        self.serves_max == 1 && (1..self.members.len()).any(waits)
    }

    /// Whether a node can get its tree only by an ordinary copy.
    fn needs_copy(member: &Member) -> bool {
        member.is_heard && member.tree == Tree::Open && member.is_behind && member.is_over && !member.is_served
    }

    /// Reports whether a node other than the source may give its tree to this one, now or later.
    pub(in crate::job::copy::broadcast) fn may_get_from_others(&self, node: Node) -> bool {
        let may_give = |other: Node| {
            let member = &self.members[other];
            other != node && member.is_heard && member.may_serve && member.tree != Tree::Failed
        };
        (self.is_provable || !self.has_proof) && (1..self.members.len()).any(may_give)
    }

    /// Whether nodes of the chain are still at work, and so need the source.
    fn is_live(&self) -> bool {
        // A disk that stands still may do so for ever. Its node has the whole stream, so the source is not needed for
        // it.
        let is_still = |node: Node| self.members[node].has_all && self.has_hardly_written(node, self.ticked);
        let is_at_it = |node: Node| self.members[node].tree == Tree::Open && !is_still(node);
        self.order.iter().any(|&node| node != SOURCE && is_at_it(node))
    }

    /// Whether one node may give its tree to another, once it gives fewer copies than it can give at once.
    fn can_give(&self, from: Node, to: Node, is_live: bool) -> bool {
        let (giver, taker) = (&self.members[from], &self.members[to]);
        let is_there = from != to && giver.is_heard && !self.is_silent(from, self.ticked);
        if from == SOURCE {
            // The source gives what no other node can, once the others do not need it.
            return is_there && !is_live;
        }
        let believes_source = taker.wants_source && self.members[SOURCE].is_heard;
        is_there && giver.tree == Tree::Done && giver.may_serve && self.is_provable && !believes_source
    }

    /// Begins all copies that can be begun.
    pub(super) fn copy(&mut self) {
        let is_live = self.is_live();
        for to in 1..self.members.len() {
            if !Self::needs_copy(&self.members[to]) {
                continue;
            }
            let is_free = |from: &Node| self.members[*from].serves < self.serves_max;
            let is_whole = |from: &Node| is_free(from) && self.can_give(*from, to, is_live);
            let tried = &self.members[to].tried;
            // A node with two copies that got stuck hangs, so it gives none while others will be able to.
            let hangs = |from: &Node| self.members[*from].stuck > 1;
            let is_other = |from: Node| !hangs(&from) && self.can_give(from, to, false);
            let are_others = (0..self.members.len()).any(is_other);
            let whole = || (0..self.members.len()).filter(is_whole).filter(|from| !are_others || !hangs(from));
            // A node of which one copy got stuck comes after others. Among equals, the source is the last.
            let rank = |from: &Node| (self.members[*from].stuck, Reverse(*from));
            // A node from which a copy has failed is asked again only when there will be no other.
            let again = || whole().min_by_key(rank).filter(|_| !is_live);
            let untried = whole().filter(|node| !tried.contains(node)).min_by_key(rank);
            let Some(from) = untried.or_else(again) else {
                let is_stranded = !is_live && !self.members.iter().any(|member| member.serves > 0);
                let member = &mut self.members[to];
                member.stranded = member.stranded.or(Some(self.ticked)).filter(|_| is_stranded);
                continue;
            };
            self.members[from].serves += 1;
            let member = &mut self.members[to];
            (member.stranded, member.is_served, member.giver, member.copied) = (None, true, from, self.ticked);
            member.copies += 1;
            self.actions.push_back(Action::Copy { from, to });
        }
    }
}
