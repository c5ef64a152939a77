//! An end that cannot be told over a control channel that its other end has died, because one of the two has no control
//! channel any more. Only the lanes show whether the other end lives.

use std::time::Duration;

use rd_proto::session::Outcome;

/// How long such an end goes on without a lane. A new lane may be on its way, but an end whose other end has been
/// killed must not stay for the whole reconnect window.
const BARE_MAX: Duration = Duration::from_secs(2);

/// An end that is killed loses lanes and channel together. If the lanes went longer than this before the channel, the
/// network was gone, and the channel has ended by a timeout.
const TOGETHER_MAX: Duration = Duration::from_secs(5);

/// How long an end without a caller goes on without a lane after that: the end of its input shows that the network is
/// back, and a caller that lives brings new lanes at once.
const RETURN_MAX: Duration = Duration::from_secs(30);

/// Whether an end is an orphan, and since when it has had no lane.
#[derive(Debug, Default)]
pub struct Orphan {
    /// How long it may be without a lane, and from when that counts; `None` as long as both channels are there.
    patience: Option<(Duration, Duration)>,
    /// Whether the received data has been published under its final name. Losing the other end is then no longer a
    /// failure.
    pub has_published: bool,
    bare_since: Option<Duration>,
}

impl Orphan {
    /// Records that the control channel of this end is lost, or that of the other.
    pub fn lose_channel(&mut self, is_own: bool, now: Duration) {
        let are_together = self.bare_since.is_none_or(|since| now <= since + TOGETHER_MAX);
        let patience = match are_together {
            true => (BARE_MAX, Duration::ZERO),
            false if is_own => (RETURN_MAX, now),
            // The network may still be gone. The reconnect window is for that.
            false => (Duration::MAX, now),
        };
        self.patience = Some(self.patience.map_or(patience, |before| before.min(patience)));
    }

    /// Returns how the end finishes, once it has been an orphan without lanes for long enough. Must be called from time
    /// to time for every end.
    pub fn over(&mut self, is_bare: bool, now: Duration) -> Option<Outcome> {
        self.bare_since = if is_bare { self.bare_since.or(Some(now)) } else { None };
        let (patience, from) = self.patience?;
        let (patience, outcome) = match self.has_published {
            true => (BARE_MAX, Outcome::Done),
            false => (patience, Outcome::LinkLost { unanswered: false }),
        };
        (now >= self.bare_since?.max(from).saturating_add(patience)).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_orphan_without_lanes_is_over_and_not_at_once() {
        let at = Duration::from_secs;
        let mut end = Orphan::default();
        let over = |end: &mut Orphan, is_bare, seconds| end.over(is_bare, at(seconds));
        let lost = Some(Outcome::LinkLost { unanswered: false });
        assert_eq!((over(&mut end, true, 96), over(&mut end, true, 100)), (None, None));
        end.lose_channel(false, at(101));
        assert_eq!(over(&mut end, true, 101), lost, "without one for a while before");
        assert_eq!((over(&mut end, false, 102), over(&mut end, true, 103)), (None, None));
        assert_eq!((over(&mut end, true, 104), over(&mut end, true, 105)), (None, lost));
        end.has_published = true;
        assert_eq!(over(&mut end, true, 106), Some(Outcome::Done));
    }

    #[test]
    fn an_end_whose_lanes_went_long_before_the_channel_is_not_over_at_once() {
        let at = Duration::from_secs;
        let lost = || Some(Outcome::LinkLost { unanswered: false });
        for is_own in [false, true] {
            let mut end = Orphan::default();
            assert_eq!(end.over(true, at(5)), None);
            end.lose_channel(is_own, at(50));
            assert_eq!(
                (end.over(true, at(79)), end.over(true, at(500))),
                (None, lost().filter(|_| is_own)),
                "{is_own}"
            );
            // The lanes came back, and went again.
            assert_eq!(
                (end.over(false, at(501)), end.over(true, at(601)), end.over(true, at(630))),
                (None, None, None)
            );
            assert_eq!(end.over(true, at(631)), lost().filter(|_| is_own), "{is_own}");
            end.has_published = true;
            assert_eq!(end.over(true, at(632)), Some(Outcome::Done), "there is nothing to wait for");
            end.has_published = false;
            // With these lanes, the other channel is lost as well.
            assert_eq!((end.over(false, at(700)), end.over(true, at(701))), (None, None));
            end.lose_channel(false, at(702));
            assert_eq!(end.over(true, at(703)), lost());
        }
    }
}
