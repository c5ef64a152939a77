//! An end that cannot be told over a control channel that its other end has died, because one of the two has no control
//! channel any more. Only the lanes show whether the other end lives.

use std::time::Duration;

use rd_proto::session::Outcome;

/// How long such an end goes on without a lane. A new lane may be on its way, but an end whose other end has been
/// killed must not stay for the whole reconnect window.
const BARE_MAX: Duration = Duration::from_secs(2);

/// Whether an end is an orphan, and since when it has had no lane.
#[derive(Debug, Default)]
pub struct Orphan {
    /// Whether this end is an orphan.
    pub is_one: bool,
    /// Whether the received data has been published under its final name. Losing the other end is then no longer a
    /// failure.
    pub has_published: bool,
    bare_since: Option<Duration>,
}

impl Orphan {
    /// Returns how the end finishes, once it has been an orphan without lanes for long enough. Must be called from time
    /// to time for every end.
    pub fn over(&mut self, is_bare: bool, now: Duration) -> Option<Outcome> {
        self.bare_since = if is_bare { self.bare_since.or(Some(now)) } else { None };
        let is_over = self.is_one && self.bare_since.is_some_and(|since| now >= since + BARE_MAX);
        let outcome = if self.has_published { Outcome::Done } else { Outcome::LinkLost { unanswered: false } };
        is_over.then_some(outcome)
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
        assert_eq!((over(&mut end, true, 0), over(&mut end, true, 100)), (None, None));
        end.is_one = true;
        assert_eq!(over(&mut end, true, 101), lost, "without one for long before");
        assert_eq!((over(&mut end, false, 102), over(&mut end, true, 103)), (None, None));
        assert_eq!((over(&mut end, true, 104), over(&mut end, true, 105)), (None, lost));
        end.has_published = true;
        assert_eq!(over(&mut end, true, 106), Some(Outcome::Done));
    }
}
