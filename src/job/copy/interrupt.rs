//! Ends a copy early, or stops it for a while, after a signal or the loss of an end; and tells the user about it.

use std::time::Instant;

use super::Copy;
use crate::agent::words::UNANSWERED;
use crate::control::frames::{Kept, Message, Report};
use crate::fault::{Exit, Failure};
use crate::job::hop::Side;
use crate::job::plan::Spec;
use crate::job::progress::size_words;
use crate::job::{STOP_MAX, Update};
use crate::tree::sink::KeptState;

impl Copy<'_> {
    /// Tells all ends that this signal ends the copy, and waits until they have ended.
    pub(super) fn interrupt(&mut self, number: u8) -> Failure {
        let have_ended = self.stop_all(number);
        if self.hop.is_some() && self.plan.destination != Spec::Standard {
            let kept = self.kept_words("run again").unwrap_or_else(|| {
                let words = match have_ended {
                    true => "nothing kept to resume",
                    false if self.of_stream => "not all hosts answered; run again to start over",
                    false => "not all hosts answered; run again to resume from what they may have kept",
                };
                words.to_owned()
            });
            self.say(&format!("interrupted; {kept}"));
        }
        Failure::silent(Exit::Signal(number))
    }

    /// Adds to the failure of a copy what the copy has left to resume.
    pub(super) fn add_kept(&mut self, failure: &mut Failure) {
        let is_full = failure.site.as_ref().is_some_and(|site| [libc::ENOSPC, libc::EDQUOT].contains(&site.errno));
        let Some(kept) = self.kept_words(if is_full { "make room and run again" } else { "run again" }) else { return };
        match &mut failure.message {
            Some(line) => *line += &format!("; {kept}"),
            None => self.say(&format!("not finished; {kept}")),
        }
    }

    /// Returns what a copy that was given up or has failed has left to resume, and what to do (`again`) to resume it.
    fn kept_words(&mut self, again: &str) -> Option<String> {
        let Kept { path, others, bytes, state } = self.kept.take()?;
        let path = self.name(self.job.hops[self.hop?].host(Side::To), &path);
        let (are, them) = if others > 0 { ("are", "them") } else { ("is", "it") };
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        Some(match bytes {
            _ if state == KeptState::InPlace => {
                format!("{path}{others} {are} incomplete (written in place), {again} to complete {them}")
            }
            0 if state == KeptState::Resumed => {
                format!("what was there is kept in {path}{others}, {again} to resume")
            }
            0 => format!("nothing usable kept in {path}{others}, {again} to start over, or remove {them}"),
            _ => format!("{} kept in {path}{others}, {again} to resume", size_words(bytes)),
        })
    }

    /// Has all ends of the copy end, as by this signal. Returns whether all of them have reported their end.
    pub(super) fn stop_all(&mut self, number: u8) -> bool {
        let Some(hop) = self.hop else { return true };
        self.job.stop(hop, number);
        let deadline = Instant::now() + STOP_MAX;
        while self.job.is_heard(hop) {
            // An end that keeps talking without ending is waited for no longer than a silent one.
            match self.job.next(deadline).filter(|_| Instant::now() < deadline) {
                Some(Update::End(_, side, said @ (Message::Say(_) | Message::Kept(_)))) => self.hear(side, said),
                // After a second signal the wait is over.
                Some(Update::Signal(again)) if again != libc::SIGTSTP => return false,
                Some(_) => {}
                None => return false,
            }
        }
        self.job.hops[hop].is_over()
    }
}

/// Adds to the line of a session that has lost its link what has become of the copy, as far as the receiver has reported
/// it. `is_last`: whether no other session follows, and nothing has failed before. `has_kept`: whether the receiver
/// has said what it keeps, which [`Copy::add_kept`] adds. `finds_files`: whether another run finds the files that this one
/// has completed.
pub(super) fn explain_loss(
    line: &mut String,
    label: &str,
    received: Option<&Report>,
    (is_last, has_kept, finds_files): (bool, bool, bool),
) {
    let is_unanswered = line.contains(UNANSWERED);
    match received {
        Some(Report { fault: None, tree, .. }) if is_unanswered => {
            let is_whole = is_last && (tree.failed, tree.failed_there) == (0, 0);
            let but =
                if is_whole { "the copy is complete" } else { "all that was sent is copied, except what has failed" };
            *line = format!("lost the link to {label} {UNANSWERED}, but {but}");
        }
        _ if is_unanswered && has_kept => *line = format!("lost the link to {label} before the copy was complete"),
        // It may be complete. If DST is a new directory then, the same command would copy into it.
        _ if is_unanswered || has_kept => {}
        Some(_) if finds_files => *line += "; files received in full are kept, run again to resume",
        Some(_) => {}
        None => *line += &format!("; run again to resume from what {label} may have kept"),
    }
}

#[cfg(test)]
mod tests {
    use rd_proto::session::Outcome;

    use super::*;
    use crate::agent::words;
    use crate::control::frames::Fault;

    /// Nothing is promised that may not be so, and a copy that may be complete is not to be made again inside itself.
    #[test]
    fn a_lost_link_is_told_with_what_became_of_the_copy() {
        const UNKNOWN: &str =
            " before its answer: all data was sent, but the outcome is unknown; look there before running it again";
        let (well, mut partly) = (Report::default(), Report::default());
        partly.tree.failed = 1;
        let lost = Report { fault: Some(Fault::plain(Exit::LinkLost.code(), "")), ..Report::default() };
        for (unanswered, received, has_kept, finds_files, expected) in [
            (false, Some(&lost), true, true, ""),
            (false, Some(&lost), false, true, "; files received in full are kept, run again to resume"),
            (false, Some(&lost), false, false, ""),
            (false, None, true, true, ""),
            (false, None, false, false, "; run again to resume from what h may have kept"),
            (true, Some(&well), false, true, " before its answer, but the copy is complete"),
            (
                true,
                Some(&partly),
                false,
                true,
                " before its answer, but all that was sent is copied, except what has failed",
            ),
            (true, Some(&lost), true, true, " before the copy was complete"),
            (true, Some(&lost), false, true, UNKNOWN),
            (true, None, true, true, " before the copy was complete"),
            (true, None, false, true, UNKNOWN),
        ] {
            let told = words::outcome(&Outcome::LinkLost { unanswered }, None, "h");
            let mut line = told.and_then(|failure| failure.message).expect("a line");
            explain_loss(&mut line, "h", received, (true, has_kept, finds_files));
            assert_eq!(line.strip_prefix("lost the link to h"), Some(expected), "{unanswered} {received:?} {has_kept}");
        }
        let mut line = format!("lost the link to h {UNANSWERED}");
        explain_loss(&mut line, "h", Some(&well), (false, false, true));
        assert_eq!(
            line,
            "lost the link to h before its answer, but all that was sent is copied, except what has failed"
        );
    }
}
