//! Entries of a tree that an end tells its caller of while the tree is copied: what has become of each.
//!
//! They go to the caller in messages, over the control channel. A caller that prints them may wait for its reader; so an
//! end may have [`WINDOW`] messages on their way that the caller has not taken, and those that have more to tell wait.
//! Neither end ever holds a list of the tree.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use minicbor::{Decode, Encode};
use rd_proto::tree::{DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};

use super::check::{ASPECTS_MAX, Finding};
use super::manifest;

/// Bytes of the entries of one message, unless a single one has more.
pub const MESSAGE_BYTES: usize = 64 << 10;

/// Messages that may be on their way to the caller, or wait there to be taken.
pub const WINDOW: u32 = 4;

/// Entries of one message, since each counts for a few bytes at least.
pub const ENTRIES_MAX: usize = MESSAGE_BYTES / OVERHEAD_BYTES + 1;

/// Bytes of an entry's path and of what it leads to, together. A path is not bounded by what a system call takes: each
/// directory is opened from the one that it lies in.
pub const NAMES_BYTES_MAX: usize = DEPTH_MAX * (NAME_BYTES_MAX + 1) + PATH_BYTES_MAX;

/// What an entry takes beside its names, in bytes, as it is counted.
const OVERHEAD_BYTES: usize = 96;

/// How often those who wait for the caller look whether they still should.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is reported of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Entry {
    /// It has been made, changed or deleted, or would be.
    #[n(0)]
    Changed(#[n(0)] Change),
    /// It is there now, for the manifest: its path is from the directory of the destination on.
    #[n(1)]
    Listed(#[n(0)] manifest::Entry),
    /// It has been compared with a manifest, and differs.
    #[n(2)]
    Compared(#[n(0)] Finding),
}

impl Entry {
    /// Puts the name of its source in front of its path; that of a source whose contents are meant is empty.
    pub fn place_in(&mut self, root: &[u8]) {
        let place = |path: &mut Vec<u8>| match (root.is_empty(), path.is_empty()) {
            (true, true) => path.push(b'.'),
            (true, false) => {}
            (false, true) => path.extend(root),
            (false, false) => drop(path.splice(..0, [root, b"/"].concat())),
        };
        let Self::Changed(change) = self else { return };
        place(&mut change.path);
        if change.effect == Effect::Linked {
            change.leads_to.iter_mut().for_each(place);
        }
    }

    /// Bytes of its names.
    pub fn names_bytes(&self) -> usize {
        match self {
            Self::Changed(change) => change.path.len() + change.leads_to.as_ref().map_or(0, Vec::len),
            Self::Listed(entry) => entry.names_bytes(),
            Self::Compared(Finding::Differs { path, .. } | Finding::Unreadable { path, .. }) => path.len(),
        }
    }

    /// Whether an end can have said that.
    pub fn is_valid(&self) -> bool {
        let is_valid = match self {
            Self::Changed(_) | Self::Compared(Finding::Unreadable { .. }) => true,
            Self::Listed(entry) => entry.check().is_ok(),
            Self::Compared(Finding::Differs { aspects, .. }) => aspects.len() <= ASPECTS_MAX,
        };
        is_valid && self.names_bytes() <= NAMES_BYTES_MAX
    }
}

/// What has become of an entry of the destination.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Change {
    /// Where it is, from the destination on; of a single source, from that on, and empty for that itself.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// What was done.
    #[n(1)]
    pub effect: Effect,
    /// What it is.
    #[n(2)]
    pub kind: FileKind,
    /// In what it differs from what was there: bits of [`differs`]; `None` where nothing of its kind was.
    #[n(3)]
    pub differs: Option<u16>,
    /// What a symbolic link leads to, or the path of the file that a hard link is to, as `path`.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub leads_to: Option<Vec<u8>>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Effect {
    /// Its contents were sent, or copied.
    #[n(0)]
    Transferred,
    /// It was made at the destination from its record alone.
    #[n(1)]
    Made,
    /// It became another name of a file.
    #[n(2)]
    Linked,
    /// It stayed, with other metadata.
    #[n(3)]
    Kept,
    /// It was deleted.
    #[n(4)]
    Deleted,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    /// A regular file.
    #[n(0)]
    Regular,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symbolic link.
    #[n(2)]
    Symlink,
    /// A block or character device.
    #[n(3)]
    Device,
    /// A FIFO or socket.
    #[n(4)]
    Special,
}

/// What an entry may differ in.
pub mod differs {
    /// The contents, where those were compared; or what a link leads to.
    pub const CONTENTS: u16 = 1;
    /// The size.
    pub const SIZE: u16 = 2;
    /// The time of last modification.
    pub const TIME: u16 = 4;
    /// The permissions.
    pub const MODE: u16 = 8;
    /// The owner.
    pub const OWNER: u16 = 16;
    /// The group.
    pub const GROUP: u16 = 32;
    /// The ACL.
    pub const ACL: u16 = 64;
    /// Other extended attributes.
    pub const XATTRS: u16 = 128;
}

/// Sends entries to the caller; does not wait.
pub type SendEntries = Box<dyn Fn(Vec<Entry>) + Send + Sync>;

/// The entries of one end on their way to its caller.
pub struct EntryStream {
    send: SendEntries,
    waiting: Mutex<Waiting>,
    /// Messages that may be sent.
    credit: Mutex<u32>,
    more: Condvar,
    /// Whether nobody should wait for the caller any more.
    is_over: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// Entries that have not been sent.
#[derive(Default)]
struct Waiting {
    entries: Vec<Entry>,
    bytes: usize,
}

impl EntryStream {
    /// One on which nothing has been told.
    pub fn new(send: SendEntries) -> Self {
        let (waiting, more, is_over) = Default::default();
        Self { send, waiting, credit: Mutex::new(WINDOW), more, is_over }
    }

    /// From now on those who wait for the caller go on once `is_over`, and what they tell is dropped.
    pub fn end_when(&self, is_over: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.is_over.set(Box::new(is_over));
    }

    /// Tells of an entry; waits while the caller has too much to take.
    pub fn tell(&self, entry: Entry) {
        let bytes = entry.names_bytes() + OVERHEAD_BYTES;
        let mut waiting = self.waiting();
        if waiting.bytes + bytes > MESSAGE_BYTES {
            self.send(&mut waiting);
        }
        waiting.bytes += bytes;
        waiting.entries.push(entry);
    }

    /// Sends what has been told, unless that would have to wait.
    pub fn send_waiting(&self) {
        // Held, it is by somebody who waits for the caller.
        let Ok(mut waiting) = self.waiting.try_lock() else { return };
        if *self.credit() > 0 {
            self.send(&mut waiting);
        }
    }

    /// Waits until all that has been told is sent.
    pub fn flush(&self) {
        self.send(&mut self.waiting());
    }

    /// The caller has taken so many messages.
    pub fn taken(&self, messages: u32) {
        let mut credit = self.credit();
        *credit = credit.saturating_add(messages).min(WINDOW);
        self.more.notify_all();
    }

    fn send(&self, waiting: &mut Waiting) {
        let Waiting { entries, .. } = std::mem::take(waiting);
        if entries.is_empty() {
            return;
        }
        let mut credit = self.credit();
        while *credit == 0 {
            if self.is_over.get().is_some_and(|is_over| is_over()) {
                return;
            }
            credit = self.more.wait_timeout(credit, LOOK_AGAIN).expect("no panics under it").0;
        }
        *credit -= 1;
        drop(credit);
        (self.send)(entries);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panics under it")
    }

    fn credit(&self) -> MutexGuard<'_, u32> {
        self.credit.lock().expect("no panics under it")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    fn entry(path: Vec<u8>) -> Entry {
        let (effect, kind) = (Effect::Made, FileKind::Directory);
        Entry::Changed(Change { path, effect, kind, differs: None, leads_to: None })
    }

    fn stream() -> (Arc<EntryStream>, flume::Receiver<Vec<Entry>>) {
        let (send, sent) = flume::unbounded();
        (Arc::new(EntryStream::new(Box::new(move |entries| drop(send.send(entries))))), sent)
    }

    /// The longest entry, and as many of the shortest as come together, fit a message.
    #[test]
    fn messages_are_bounded_and_lose_nothing() {
        let (stream, sent) = stream();
        let told = std::thread::scope(|scope| {
            let telling = scope.spawn(|| {
                let lengths = (0..30_000).map(|number| if number % 1000 == 7 { NAMES_BYTES_MAX } else { number % 300 });
                let told: Vec<Entry> = lengths.map(|length| entry(vec![b'p'; length])).collect();
                told.iter().for_each(|entry| stream.tell(entry.clone()));
                stream.flush();
                told
            });
            let mut got = Vec::new();
            while !telling.is_finished() || !sent.is_empty() {
                let Ok(entries) = sent.recv_timeout(Duration::from_millis(100)) else { continue };
                assert!(sent.len() <= WINDOW as usize, "more than may be on its way");
                assert!(entries.len() <= ENTRIES_MAX);
                let bytes: usize = entries.iter().map(|entry| entry.names_bytes() + OVERHEAD_BYTES).sum();
                assert!(bytes <= MESSAGE_BYTES || entries.len() == 1, "{bytes} bytes");
                got.extend(entries);
                stream.taken(1);
            }
            let told = telling.join().expect("no panic");
            assert!(told == got, "{} of {}", got.len(), told.len());
            told.len()
        });
        assert_eq!(told, 30_000);
    }

    #[test]
    fn nobody_waits_once_it_is_over() {
        let (stream, sent) = stream();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        stream.end_when(move || is_over.load(Ordering::Relaxed));
        let telling = Arc::clone(&stream);
        let thread =
            std::thread::spawn(move || (0..100).for_each(|_| telling.tell(entry(vec![b'p'; MESSAGE_BYTES / 2]))));
        let deadline = Instant::now() + Duration::from_secs(20);
        while sent.len() < WINDOW as usize && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(3 * LOOK_AGAIN);
        assert_eq!(sent.len(), WINDOW as usize);
        // It does not wait for what a thread waits for.
        stream.send_waiting();
        assert!(!thread.is_finished());
        over.store(true, Ordering::Relaxed);
        thread.join().expect("it has ended");
        stream.flush();
        assert_eq!(sent.len(), WINDOW as usize);
    }

    #[test]
    fn what_waits_is_sent_when_asked_for() {
        let (stream, sent) = stream();
        stream.send_waiting();
        assert!(sent.is_empty());
        stream.tell(entry(b"a".to_vec()));
        assert!(sent.is_empty());
        stream.send_waiting();
        assert_eq!(sent.try_recv(), Ok(vec![entry(b"a".to_vec())]));
        // No more credit is given than there is.
        stream.taken(u32::MAX);
        assert_eq!(*stream.credit(), WINDOW);
    }
}
