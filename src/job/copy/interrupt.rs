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
        if self.hop.is_some() && self.plan.destination != Spec::Standard && !self.tell_kept("interrupted") {
            self.say(match have_ended {
                true => "interrupted; nothing kept to resume",
                false => "interrupted; not all hosts answered; run again to resume from what they kept",
            });
        }
        Failure::silent(Exit::Signal(number))
    }

    /// Tells the user what a copy that was given up or has failed has left to resume. Returns false if it has left
    /// nothing.
    pub(super) fn tell_kept(&mut self, how: &str) -> bool {
        let Some(Kept { path, others, bytes, state }) = self.kept.take() else { return false };
        let Some(hop) = self.hop else { return false };
        let path = self.name(self.job.hops[hop].host(Side::To), &path);
        let (are, them) = if others > 0 { ("are", "them") } else { ("is", "it") };
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        self.say(&match bytes {
            _ if state == KeptState::InPlace => {
                format!("{how}; {path}{others} {are} incomplete (written in place), run again to complete {them}")
            }
            0 if state == KeptState::Resumed => {
                format!("{how}; what was there is kept in {path}{others}, run again to resume")
            }
            0 => format!("{how}; nothing usable kept in {path}{others}, run again to start over"),
            _ => format!("{how}; {} kept in {path}{others}, run again to resume", size_words(bytes)),
        });
        true
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
