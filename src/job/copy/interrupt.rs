//! What ends a copy early, or stops it for a while: a signal, or an end that is lost; and what is said of it.

use std::time::{Duration, Instant};

use super::{Copy, HERE};
use crate::cli::report::line::size_words;
use crate::control::frames::{Kept, Message};
use crate::fault::{Exit, Failure};
use crate::job::launching::{News, Voice};
use crate::job::plan::Spec;

/// How long the ends may take to end after a signal.
const INTERRUPT_MAX: Duration = Duration::from_millis(2500);

impl Copy<'_> {
    pub(super) fn suspend(&self) {
        match &self.sides[HERE].voice {
            // The session tells its other end before it stops this process. A copy within this host has none.
            Voice::Here(end) if end.is_busy() && self.session != Some((HERE, HERE)) => end.stop(libc::SIGTSTP as u8),
            _ => crate::cli::stop_here(),
        }
    }

    /// Tells all ends that this signal ends the copy, and waits until they have ended.
    pub(super) fn interrupt(&mut self, number: u8) -> Failure {
        let have_ended = self.stop_all(number);
        if self.session.is_some() && self.plan.destination != Spec::Standard && !self.tell_kept() {
            self.say(match have_ended {
                true => "interrupted; nothing kept to resume",
                false => "interrupted; not all ends have answered: run again to resume what they have kept",
            });
        }
        Failure::silent(Exit::Signal(number))
    }

    /// Says what a copy that was given up has left, if anything.
    pub(super) fn tell_kept(&mut self) -> bool {
        let Some(Kept { path, others, bytes }) = self.kept.take() else { return false };
        let Some((_, to)) = self.session else { return false };
        let path = self.sides[to].name(&path);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        self.say(&match bytes {
            0 => format!("interrupted; nothing of use kept in {path}{others}, run again to start over"),
            _ => format!("interrupted; {} kept in {path}{others}, run again to resume", size_words(bytes)),
        });
        true
    }

    /// Whether all have said how they ended.
    pub(super) fn stop_all(&mut self, number: u8) -> bool {
        let Some((one, other)) = self.session else { return true };
        let mut waited: Vec<usize> = [one, other].into_iter().filter(|&side| !self.sides[side].gone).collect();
        waited.dedup();
        for &side in &waited {
            self.send(side, Message::Signal(number));
        }
        let deadline = Instant::now() + INTERRUPT_MAX;
        let mut have_ended = waited.len() == if one == other { 1 } else { 2 };
        while !waited.is_empty() {
            match self.news.recv_deadline(deadline) {
                Ok((side, News::Message(Message::Ended(_)))) => waited.retain(|&other| other != side),
                Ok((side, News::Gone | News::Broken(_))) => {
                    waited.retain(|&other| other != side);
                    have_ended = false;
                }
                Ok((side, News::Message(said @ (Message::Say(_) | Message::Kept(_))))) => drop(self.hear(side, said)),
                // Asked twice: no more waiting.
                Ok((_, News::Signal(again))) if again != libc::SIGTSTP => return false,
                Ok((side, News::Message(message))) if message.is_tunnel() => {
                    self.send(if side == one { other } else { one }, message);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        have_ended
    }
}
