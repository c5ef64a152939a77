//! Ordinary copies to nodes that are out of the chain without the whole stream, and to nodes that join: which node
//! gives them, and when.

use super::{Action, Chain, CopyEnd, Member, Node, SOURCE, Tree};

/// Maximum number of ordinary copies to one node that are begun.
const COPIES_MAX: u32 = 3;

/// Maximum number of ordinary copies that the source gives at once if there is no chain.
pub(super) const COPIES_AT_ONCE: u32 = 4;

impl Chain {
    /// Records the end of an ordinary copy.
    pub(in crate::job::copy::broadcast) fn copy_over(&mut self, from: Node, to: Node, end: CopyEnd) {
        self.members[from].serves = self.members[from].serves.saturating_sub(1);
        let member = &mut self.members[to];
        member.is_served = false;
        if end == CopyEnd::Made {
            member.tree = Tree::Done;
        } else if end == CopyEnd::ToFailed && from == SOURCE || member.copies >= COPIES_MAX {
            member.tree = Tree::Failed;
        } else {
            member.tried.push(from);
            // If the host cannot write the tree, the giver may have changed the tree. With the source's tree, it is the
            // host's own fault.
            member.wants_source |= matches!(end, CopyEnd::Forged | CopyEnd::ToFailed);
        }
        self.settle();
    }

    /// Whether a node can get its tree only by an ordinary copy.
    fn needs_copy(member: &Member) -> bool {
        member.is_heard && member.tree == Tree::Open && member.is_behind && member.is_over && !member.is_served
    }

    /// Begins all copies that can be begun.
    pub(super) fn copy(&mut self) {
        // A disk that stands still may do so for ever. Its node has the whole stream, so the source is not needed for
        // it.
        let is_still = |node: Node| self.members[node].has_all && self.has_hardly_written(node, self.ticked);
        let is_at_it = |node: Node| self.members[node].tree == Tree::Open && !is_still(node);
        let is_live = self.order.iter().any(|&node| node != SOURCE && is_at_it(node));
        for to in 1..self.members.len() {
            if !Self::needs_copy(&self.members[to]) {
                continue;
            }
            let is_whole = |node: &Node| {
                let member = &self.members[*node];
                let has_tree = member.tree == Tree::Done && *node != SOURCE && member.may_serve;
                // The source gives what no other node can, once the others do not need it.
                let has_tree = has_tree && self.is_provable;
                let is_there = member.is_heard && !self.is_silent(*node, self.ticked);
                is_there && member.serves < self.serves_max && (has_tree || *node == SOURCE && !is_live)
            };
            let tried = &self.members[to].tried;
            let believes_source = self.members[to].wants_source && self.members[SOURCE].is_heard;
            let may_give = |&node: &Node| node != to && (node == SOURCE || !believes_source);
            let whole = || (0..self.members.len()).rev().filter(may_give).filter(is_whole);
            // A node from which a copy has failed is asked again only when there will be no other.
            let again = || whole().next().filter(|_| !is_live);
            let Some(from) = whole().find(|node| !tried.contains(node)).or_else(again) else {
                let is_stranded = !is_live && !self.members.iter().any(|member| member.serves > 0);
                let member = &mut self.members[to];
                member.stranded = member.stranded.or(Some(self.ticked)).filter(|_| is_stranded);
                continue;
            };
            self.members[to].stranded = None;
            self.members[from].serves += 1;
            self.members[to].is_served = true;
            self.members[to].copies += 1;
            self.actions.push_back(Action::Copy { from, to });
        }
    }
}
