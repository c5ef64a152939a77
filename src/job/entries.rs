//! Entries that ends tell of, on their way to whatever takes them: standard output, or a file.
//!
//! A thread takes them, so that the loop of the job waits for no reader: signals, hosts that are lost and the ends' deadlines
//! are heeded meanwhile. What waits for it is bounded, since an end sends no more than it has been given leave for.

use flume::Sender;

use super::launching::{Heard, Post};
use super::{HERE, Job, Update};
use crate::control::frames::Message;
use crate::fault::{Exit, Failure};
use crate::job::hop::Side;
use crate::tree::entries::{Entry, WINDOW};

/// Takes entries of a tree, with their paths from the source's name on; may wait.
pub(crate) type TakeEntries = Box<dyn FnMut(Vec<Entry>) -> Result<(), Failure> + Send>;

/// Where what ends tell goes.
pub(crate) struct EntrySink {
    queue: Sender<(u32, Vec<Entry>)>,
}

impl EntrySink {
    /// Starts the thread, which posts what it has taken.
    fn start(post: Post, mut take: TakeEntries) -> std::io::Result<Self> {
        let (queue, told) = flume::unbounded::<(u32, Vec<Entry>)>();
        let run = move || {
            for (end, entries) in told {
                let taken = take(entries);
                let has_failed = taken.is_err();
                if post.send((HERE, Heard::EntriesTaken(end, taken))).is_err() || has_failed {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("entries".to_owned()).stack_size(256 << 10).spawn(run)?;
        Ok(Self { queue })
    }
}

impl Job {
    /// Has `take` take the entries that ends tell of from now on. Without it, an end that tells of any breaks the protocol.
    ///
    /// # Errors
    ///
    /// Exit 3 where there is no thread to be had.
    pub(super) fn take_entries(&mut self, take: TakeEntries) -> Result<(), Failure> {
        let failed = |error| Failure::new(Exit::Connect, format!("cannot start a thread: {error}"));
        self.entries = Some(EntrySink::start(self.post.clone(), take).map_err(failed)?);
        Ok(())
    }

    /// An end of a hop tells of entries.
    pub(super) fn hear_entries(&mut self, hop: usize, side: Side, mut entries: Vec<Entry>) {
        let (end, host) = (self.hops[hop].ends[side as usize], self.hops[hop].host(side));
        if let Some(root) = &self.hops[hop].root {
            entries.iter_mut().for_each(|entry| entry.place_in(root));
        }
        let untaken = &mut self.hops[hop].untaken[side as usize];
        match &self.entries {
            Some(sink) if *untaken < WINDOW => {
                *untaken += 1;
                // It fails only where the thread has failed, which it has posted.
                let _ = sink.queue.send((end, entries));
            }
            _ => self.lose(host, Some(self.unexpected(host))),
        }
    }

    /// A message of an end has been taken, or could not be.
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
