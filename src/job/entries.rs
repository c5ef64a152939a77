//! Entries that ends report, on their way to standard output or a file.
//!
//! A thread takes them, so that the job's loop does not wait for a reader, and can still handle signals, lost hosts and
//! the ends' deadlines. What waits for the thread is bounded, because an end sends no more entries than it has credit
//! for.

use std::time::Instant;

use flume::Sender;

use super::launching::Heard;
use super::{HERE, Job, Update};
use crate::control::frames::Message;
use crate::fault::{Exit, Failure};
use crate::job::hop::Side;
use crate::tree::entries::{Entry, WINDOW};

/// Takes entries of a tree, with paths that begin with the source's name. May wait.
pub(crate) type TakeEntries = Box<dyn FnMut(Vec<Entry>) -> Result<(), Failure> + Send>;

/// The queue of the thread that takes entries, with the number of the end that has reported them.
pub(crate) type EntryQueue = Sender<(u32, Vec<Entry>)>;

impl Job {
    /// Has `take` take the entries that ends report from now on, in a thread that posts a confirmation for each message
    /// taken. Without it, an end that reports entries breaks the protocol.
    ///
    /// # Errors
    ///
    /// Exit 3 if no thread can be started.
    pub(super) fn take_entries(&mut self, mut take: TakeEntries) -> Result<(), Failure> {
        let (queue, told) = flume::unbounded::<(u32, Vec<Entry>)>();
        let post = self.post.clone();
        let run = move || {
            for (end, entries) in told {
                let taken = take(entries);
                let has_failed = taken.is_err();
                if post.send((HERE, Heard::EntriesTaken(end, taken))).is_err() || has_failed {
                    return;
                }
            }
        };
        let failed = |error| Exit::Connect.with(format!("cannot start a thread: {error}"));
        std::thread::Builder::new().name("entries".to_owned()).stack_size(256 << 10).spawn(run).map_err(failed)?;
        self.entries = Some(queue);
        Ok(())
    }

    /// Takes entries that an end of a hop reports. Only the end that makes or compares them may do so: the source's host
    /// must not decide what is said of the destination.
    pub(super) fn hear_entries(&mut self, hop: usize, side: Side, mut entries: Vec<Entry>) {
        let (end, host) = (self.hops[hop].ends[side as usize], self.hops[hop].host(side));
        if let Some(root) = &self.hops[hop].root {
            entries.iter_mut().for_each(|entry| entry.place_in(root));
        }
        let is_maker = self.hops[hop].sides().last() == Some(&side);
        let of_hop = &mut self.hops[hop];
        let untaken = &mut of_hop.untaken[side as usize];
        match &self.entries {
            Some(queue) if is_maker && *untaken < WINDOW => {
                *untaken += 1;
                of_hop.ended_since = of_hop.ended_since.map(|_| Instant::now());
                // Fails only if the thread has failed, which it has posted.
                let _ = queue.send((end, entries));
            }
            _ => self.lose(host, Some(self.unexpected(host))),
        }
    }

    /// Records that a message of an end has been taken, or could not be.
    pub(super) fn note_entries_taken(&mut self, end: u32, taken: Result<(), Failure>) {
        if let Err(failure) = taken {
            self.entries = None;
            return self.updates.push_back(Update::Failed(failure));
        }
        let Some(&(hop, side)) = self.ends.get(&end) else { return };
        self.hops[hop].note_taken(side);
        if !self.hosts[self.hops[hop].host(side)].gone {
            self.send_end(hop, side, &Message::EntriesTaken(1));
        }
    }
}
