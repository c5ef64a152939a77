//! Checks the results of a run.

use super::*;

impl Simulation {
    pub(super) fn judge(&self) {
        let outcome = |end: usize| self.ends[end].ended.as_ref().map(|(outcome, _)| outcome.clone());
        let (sent, received) = (outcome(SENDER), outcome(RECEIVER));
        let gave_up = self.ends.iter().any(|end| end.gave_up.is_some());
        if sent == Some(Outcome::Done) || received == Some(Outcome::Done) {
            assert!(self.committed, "success without the sink's word");
            assert!(self.sinks.iter().all(|sink| sink.written.len() as u64 == self.chunks));
        }
        for end in [SENDER, RECEIVER] {
            if let (Some((cause, at)), Some((outcome, ended))) = (&self.ends[end].gave_up, &self.ends[end].ended) {
                let stopped = self.ends[end].was_stopped;
                assert!(stopped || ended - at <= ABORT_END_MAX, "end {end} gave up at {at} and ended at {ended}");
                assert_eq!(*outcome, Outcome::Aborted(cause.clone()));
            }
            if let Some(Outcome::PeerAborted(cause)) = outcome(end) {
                let theirs = &self.ends[1 - end].gave_up;
                assert_eq!(theirs.as_ref().map(|(cause, _)| cause), Some(&cause));
            }
        }
        let receiver = &self.ends[RECEIVER];
        if self.receiver.core_ref().linger_until.is_some() && receiver.gave_up.is_none() && !receiver.dead {
            assert_eq!(received, Some(Outcome::Done), "what is published stays so");
        }
        if let (Some(at), Some((_, ended))) = (receiver.left, &receiver.ended) {
            assert!(receiver.was_stopped || ended - at <= ABORT_END_MAX, "told to end at {at}, ended at {ended}");
        }
        if let Some(Outcome::Aborted(cause)) = sent.as_ref().or(received.as_ref()) {
            assert!(!matches!(cause, Cause::Protocol | Cause::Integrity), "{cause:?} between honest ends");
        }
        match self.weather {
            Weather::Calm if gave_up => {
                let quitter = usize::from(self.ends[SENDER].gave_up.is_none());
                let (cause, _) = self.ends[quitter].gave_up.clone().expect("one did");
                let other = outcome(1 - quitter).expect("alive");
                let both = self.ends.iter().all(|end| end.gave_up.is_some());
                assert!(both || other == Outcome::PeerAborted(cause) || (self.committed && other == Outcome::Done));
            }
            // No lane could be made any more, so the last one may have been lost.
            Weather::Rough if self.stranded => {}
            // The answer may have been lost with the link, and the receiver did not stay to repeat it.
            Weather::Rough if receiver.left.is_some() => {}
            Weather::Calm | Weather::Rough if !gave_up => {
                if [&sent, &received].contains(&&Some(Outcome::NoRdma)) {
                    assert!(self.agreed.policy == Policy::Rdma && self.weather == Weather::Rough);
                    let (ours, theirs) = (outcome(self.connector), outcome(1 - self.connector));
                    assert_eq!(ours, Some(Outcome::NoRdma));
                    if theirs != Some(Outcome::NoRdma) {
                        assert!(matches!(theirs, Some(Outcome::LinkLost { .. })), "{theirs:?}");
                        // ABORT was lost with each lane that was up until the wait for an answer was over.
                        let until = self.no_rdma_at.expect("it gave up") + ABORT_WAIT.as_nanos() as u64;
                        assert!(self.ends[self.connector].ended.as_ref().is_some_and(|(_, ended)| *ended >= until));
                        let carries = |lane: &SimLane| {
                            let up_at = lane.sides[self.connector].up_at;
                            !lane.cut && lane.stalled_until == 0 && up_at.is_some_and(|up_at| up_at + MS <= until)
                        };
                        let was_stopped = self.ends.iter().any(|end| end.was_stopped);
                        let is_excused = was_stopped || self.corrupt_left < self.corrupt_asked;
                        assert!(is_excused || !self.lanes.values().any(carries), "the other end was not told");
                    }
                    return;
                }
                assert_eq!(sent, Some(Outcome::Done));
                assert_eq!(received, Some(Outcome::Done));
            }
            Weather::Calm | Weather::Rough => {}
            Weather::Storm => {
                if received == Some(Outcome::Done) && !gave_up && !self.ends[SENDER].dead {
                    let unanswered = Outcome::LinkLost { unanswered: true };
                    assert!(sent == Some(Outcome::Done) || sent == Some(unanswered), "{sent:?}");
                }
            }
        }
        if self.weather == Weather::Calm && !self.retries_possible {
            assert_eq!((self.sender.counters().retries, self.receiver.counters().retries), (0, 0));
            assert_eq!(self.sender.counters().corrupt + self.receiver.counters().corrupt, 0);
        }
        if sent == Some(Outcome::Done) {
            assert_eq!(self.sender.counters().bytes, self.position);
            assert_eq!(self.receiver.counters().bytes, self.position);
        }
    }
}
