//! How fast nodes take the stream, as far as that is borne out, and which of them is slow.
//!
//! Both ends of a hop say how much has gone through it, and each of them alone tells a rate. Where at most one of them lies,
//! the rate of the other is true, whatever the lie. So a node has surely been as fast as the *lower* of the two says, and
//! may be as fast as the *higher* of them says. The two are never mixed into one: an amount that one end has told of too
//! soon, and that the other confirms later, would be a rate that there never was.
//!
//! A node is slow if it takes less than half of what another one has surely taken. It is not if the node before it has not
//! surely taken more than that itself: where that one is what is slow, what it passes on is slow too, and of its own
//! slowness it may keep others from knowing, by saying that it has more.
//!
//! So of a node that does not lie all of this is true, if not both the node before it and the one before that do lie: it
//! takes so little, others have taken so much, and it was there to be had. Words alone make nobody slow. What a node can do is
//! to pass the stream on slowly, which no other can tell from a slow one behind it; and to acknowledge late what it was
//! sent, up to a spool, so that by the word of the one before it too it has come in one second.

use std::time::Duration;

use super::{Chain, Member, Node, SOURCE};

/// Over how long a rate is taken.
pub(super) const RATE_OVER: Duration = Duration::from_secs(1);

/// A node that is slower than others by this factor does not hold them up.
pub(super) const SLOWER: f64 = 2.0;

/// By this factor the node before it must have been faster. With more, nodes that are slow from the beginning are missed; with
/// less, what rates of two equally slow nodes differ by is enough to blame the second.
const SLOWER_THAN_FED: f64 = 1.5;

/// Nodes say something at least once a second. After so long without a word what comes may have waited, and come at once.
const PILED_AFTER: Duration = Duration::from_secs(2);

/// How fast a node takes the stream, by the word of one node.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// When a rate was taken last, and how much there was then.
    mark: Option<(Duration, u64)>,
    /// When something was said last, and until when that may be what has waited.
    heard: Duration,
    piled_until: Duration,
    /// Bytes a second, over the last while, and the most that it was.
    rate: f64,
    best: f64,
}

impl Pace {
    /// There is nothing yet.
    pub(super) fn from(now: Duration) -> Self {
        Self { mark: Some((now, 0)), heard: now, piled_until: now, rate: 0.0, best: 0.0 }
    }

    /// What is said next may not follow from what was said before.
    pub(super) fn interrupt(&mut self) {
        (self.mark, self.rate) = (None, 0.0);
    }

    /// It has so many bytes now.
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
    /// Bytes a second that it may take.
    pub(super) fn rate(&self) -> f64 {
        self.taken.rate.max(self.given.rate)
    }

    /// The most that it has surely taken.
    pub(super) fn peak(&self) -> f64 {
        self.taken.best.min(self.given.best)
    }
}

impl Chain {
    /// A node takes much less than it could be given, and than others take.
    pub(super) fn is_outrun(&self, from: Node, node: Node) -> bool {
        let rate = self.members[node].rate();
        let mut others = self.order.iter().filter(|&&other| other != SOURCE && other != node);
        // What the source has read says nothing of its link: see [`Chain::probe`].
        let is_fed = from == SOURCE || rate * SLOWER_THAN_FED < self.members[from].peak();
        rate > 0.0 && is_fed && others.any(|&other| rate * SLOWER < self.members[other].peak())
    }
}
