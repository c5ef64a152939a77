//! Ends a copy early, or stops it for a while, after a signal or the loss of an end; and tells the user about it.

use std::time::Instant;

use super::Copy;
use crate::control::frames::{Kept, Message};
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
