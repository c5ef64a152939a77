//! How fast nodes take the stream, as far as that is confirmed, and which of them is slow.
//!
//! Both ends of a hop report how much has gone through it, and each report alone gives a rate. If at most one end lies,
//! the other end's rate is true, whatever the lie. So a node has surely been as fast as the *lower* of the two rates,
//! and may be as fast as the *higher*. The two reports are never mixed into one: an amount that one end reports too
//! soon, and that the other confirms later, would give a rate that never existed.
//!
//! A node is slow if it takes less than half of what another node has surely taken. It is not slow unless the node
//! before it has surely taken more than it has. If that node is slow itself, what it passes on is slow too, and it
//! could hide its own slowness by claiming to have more.
//!
//! So if an honest node is found slow, all of this is true, unless both nodes before it lie: it takes that little,
//! others have taken that much, and the data was there to be had. Words alone make no node slow. What a hostile node
//! can do is pass the stream on slowly, which no other node can tell from a slow node behind it. It can also
//! acknowledge up to a spool of data late, so that this data seems to have come in one second, also by the word of the
//! node before it.

use std::time::Duration;

use super::{Chain, Member, Node, SOURCE};

/// Period over which a rate is taken.
pub(super) const RATE_OVER: Duration = Duration::from_secs(1);

/// A node that is slower than others by less than this factor does not hold them up.
pub(super) const SLOWER: f64 = 2.0;

/// The node before a slow node must have been faster by this factor. With a larger factor, nodes that are slow from the
/// beginning are missed. With a smaller one, the random difference between two equally slow nodes is enough to blame
/// the second.
const SLOWER_THAN_FED: f64 = 1.5;

/// Nodes report at least once a second. After this much silence, reports may have waited and come all at once.
const PILED_AFTER: Duration = Duration::from_secs(2);

/// How fast a node takes the stream, by the word of one node.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// When a rate was last taken, and the amount then.
    mark: Option<(Duration, u64)>,
    /// When the last report came, and until when reports may be ones that have waited.
    heard: Duration,
    piled_until: Duration,
    /// Bytes a second over the last period, and the highest such rate.
    rate: f64,
    best: f64,
}

impl Default for Pace {
    /// Creates a pace of a node that has nothing at the beginning.
    fn default() -> Self {
        let begin = Duration::ZERO;
        Self { mark: Some((begin, 0)), heard: begin, piled_until: begin, rate: 0.0, best: 0.0 }
    }
}

impl Pace {
    /// Records that the next report may not continue the previous ones.
    pub(super) fn interrupt(&mut self) {
        (self.mark, self.rate) = (None, 0.0);
    }

    /// Records that the node has this many bytes now.
    pub(super) fn hear(&mut self, bytes: u64, now: Duration) {
        if now.saturating_sub(self.heard) >= PILED_AFTER {
            self.piled_until = now + RATE_OVER;
        }
        self.heard = now;
        if now < self.piled_until {
            self.interrupt();
            return;
        }
        let (since, before) = *self.mark.get_or_insert((now, bytes));
        let over = now.saturating_sub(since);
        if over >= RATE_OVER {
            self.rate = bytes.saturating_sub(before) as f64 / over.as_secs_f64();
            self.best = self.best.max(self.rate);
            self.mark = Some((now, bytes));
        }
    }
}

impl Member {
    /// Returns how many bytes a second the node may be taking.
    pub(super) fn rate(&self) -> f64 {
        self.taken.rate.max(self.given.rate)
    }

    /// Returns the highest rate that the node has surely taken.
    pub(super) fn peak(&self) -> f64 {
        self.taken.best.min(self.given.best)
    }
}

impl Chain {
    /// Reports whether a node takes much less than it could be given, and than others take.
    pub(super) fn is_outrun(&self, from: Node, node: Node) -> bool {
        let rate = self.members[node].rate();
        let mut others = self.order.iter().filter(|&&other| other != SOURCE && other != node);
        // How much the source has read says nothing of its link: see [`Chain::probe`].
        let is_fed = from == SOURCE || rate * SLOWER_THAN_FED < self.members[from].peak();
        rate > 0.0 && is_fed && others.any(|&other| rate * SLOWER < self.members[other].peak())
    }
}
