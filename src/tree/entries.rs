//! Entries of a tree that an end reports to its caller while the tree is copied: what has become of each.
//!
//! The entries reach the caller in messages over the control channel. A caller that prints them may wait for its
//! reader. So an end may have [`WINDOW`] messages on the way that the caller has not taken, and threads with more to
//! report wait. Neither end ever holds a list of the tree.

use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use minicbor::{Decode, Encode};
use rd_proto::tree::{DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};

use super::check::{ASPECTS_MAX, Finding};
use super::manifest;

/// Maximum bytes of the entries of one message, unless a single entry has more.
pub const MESSAGE_BYTES: usize = 64 << 10;

/// Maximum number of messages that are on their way to the caller, or wait there to be taken.
pub const WINDOW: u32 = 4;

/// Maximum number of entries in one message, because each counts for at least a few bytes.
pub const ENTRIES_MAX: usize = MESSAGE_BYTES / OVERHEAD_BYTES + 1;

/// Maximum bytes of an entry's path and of what it leads to, together. A path is not bounded by what a system call
/// takes, because each directory is opened from the directory that it lies in.
pub const NAMES_BYTES_MAX: usize = DEPTH_MAX * (NAME_BYTES_MAX + 1) + PATH_BYTES_MAX;

/// Number of bytes that an entry counts for besides its names.
const OVERHEAD_BYTES: usize = 96;

/// How often threads that wait for the caller check whether they still should.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Report on one entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Entry {
    /// The entry has been made, changed or deleted, or would be.
    #[n(0)]
    Changed(#[n(0)] Change),
    /// The entry exists now, for the manifest. Its path is relative to the destination directory.
    #[n(1)]
    Listed(#[n(0)] manifest::Entry),
    /// The entry has been compared with a manifest, and differs.
    #[n(2)]
    Compared(#[n(0)] Finding),
}

impl Entry {
    /// Puts the name of the entry's source in front of its path. `root` is empty for a source whose contents are
    /// copied.
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

    /// Returns the bytes of the entry's names.
    pub fn names_bytes(&self) -> usize {
        match self {
            Self::Changed(change) => change.path.len() + change.leads_to.as_ref().map_or(0, Vec::len),
            Self::Listed(entry) => entry.names_bytes(),
            Self::Compared(Finding::Differs { path, .. } | Finding::Unreadable { path, .. }) => path.len(),
        }
    }

    /// Whether a correct end can have reported this.
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
    /// Path from the destination on. For a single source, path from that source on, and empty for the source itself.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// What was done with the entry.
    #[n(1)]
    pub effect: Effect,
    /// Kind of the entry.
    #[n(2)]
    pub kind: FileKind,
    /// How the entry differs from what was there: bits of [`differs`]; `None` if nothing of its kind was there.
    #[n(3)]
    pub differs: Option<u16>,
    /// Target of a symbolic link, or path of the file to which a hard link leads, in the form of `path`.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub leads_to: Option<Vec<u8>>,
}

/// What was done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Effect {
    /// The contents were sent, or copied.
    #[n(0)]
    Transferred,
    /// The entry was made at the destination from its record alone.
    #[n(1)]
    Made,
    /// The entry became another name of a file.
    #[n(2)]
    Linked,
    /// The entry stayed, with other metadata.
    #[n(3)]
    Kept,
    /// The entry was deleted.
    #[n(4)]
    Deleted,
}

/// Kind of an entry.
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

/// How an entry may differ, as bits.
pub mod differs {
    /// The contents, if they were compared, or the target of a link.
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

/// Sends entries to the caller, without waiting.
pub type SendEntries = Box<dyn Fn(Vec<Entry>) + Send + Sync>;

/// The entries of one end, on their way to its caller.
pub struct EntryStream {
    send: SendEntries,
    waiting: Mutex<Waiting>,
    /// Number of messages that may be sent.
    credit: Mutex<u32>,
    more: Condvar,
    /// Returns whether no thread should wait for the caller any more.
    is_over: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// Entries that have not been sent.
#[derive(Default)]
struct Waiting {
    entries: Vec<Entry>,
    bytes: usize,
}

impl EntryStream {
    /// Creates a stream without entries.
    pub fn new(send: SendEntries) -> Self {
        let (waiting, more, is_over) = Default::default();
        Self { send, waiting, credit: Mutex::new(WINDOW), more, is_over }
    }

    /// From now on, threads stop waiting for the caller once `is_over` returns true, and the entries that they report
    /// are dropped.
    pub fn end_when(&self, is_over: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.is_over.set(Box::new(is_over));
    }

    /// Reports an entry. Waits while the caller has too much to take.
    pub fn tell(&self, entry: Entry) {
        let bytes = entry.names_bytes() + OVERHEAD_BYTES;
        let mut waiting = crate::locked(&self.waiting);
        if waiting.bytes + bytes > MESSAGE_BYTES {
            self.send(&mut waiting);
        }
        waiting.bytes += bytes;
        waiting.entries.push(entry);
    }

    /// Sends the reported entries, unless that would have to wait.
    pub fn send_waiting(&self) {
        // If the lock is held, its holder waits for the caller.
        let Ok(mut waiting) = self.waiting.try_lock() else { return };
        if *crate::locked(&self.credit) > 0 {
            self.send(&mut waiting);
        }
    }

    /// Waits until all reported entries are sent.
    pub fn flush(&self) {
        self.send(&mut crate::locked(&self.waiting));
    }

    /// Records that the caller has taken this many messages.
    pub fn taken(&self, messages: u32) {
        let mut credit = crate::locked(&self.credit);
        *credit = credit.saturating_add(messages).min(WINDOW);
        self.more.notify_all();
    }

    fn send(&self, waiting: &mut Waiting) {
        let Waiting { entries, .. } = std::mem::take(waiting);
        if entries.is_empty() {
            return;
        }
        let mut credit = crate::locked(&self.credit);
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

    /// The longest entry fits into a message, and so do as many of the shortest as are sent together.
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
        // This call does not wait for what the thread waits for.
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
        // Credit never exceeds the window.
        stream.taken(u32::MAX);
        assert_eq!(*crate::locked(&stream.credit), WINDOW);
    }
}
