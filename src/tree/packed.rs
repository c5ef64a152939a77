//! Packs a tree into one stream of bytes, and unpacks the stream: `docs/PROTOCOL.md`, "The stream of a broadcast".
//!
//! The packer reads all of a tree, whatever its receivers have, because no receiver answers. The unpacker takes the
//! stream in pieces of any length. It hands on data of large files where it lies, and records as well if they lie in
//! one piece. Other records are gathered, one packet at a time.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use rd_proto::broadcast::{HEAD_BYTES, Head, Order, PACKET_BYTES_MAX, PAGE_BYTES};
use rustix::io::{Errno, pread};

use super::sink::{Bytes, Refused};
use super::source::{Next, TreeSource};
use crate::fs::direct::{Cold, Tally};
use crate::fs::source::Part;

/// Length of the parts that the source must be made for, in bytes.
pub const PART_BYTES: usize = PACKET_BYTES_MAX;

/// Bytes of data in a packet. With its head, such a packet fills whole segments if it begins with a segment.
const DUE_BYTES: usize = PACKET_BYTES_MAX - PAGE_BYTES as usize;

/// Bytes before the data in a reader's buffer: room for a head, and for padding.
const ROOM_BYTES: usize = 2 * PAGE_BYTES as usize;

/// Number of threads that read the source: while one waits for a disk, the other can read what is cached.
const READERS: usize = 2;

/// A piece of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Bytes of the piece.
    pub bytes: &'a [u8],
    /// The part from which the piece is made: item, position and data. `None` at the end.
    pub part: Option<(u32, u64, &'a [u8])>,
}

/// Which part goes into the stream next, and at which offset.
struct Line<P> {
    sequence: u64,
    offset: u64,
    /// Takes the stream. Returns false if no receiver is left.
    put: P,
    is_over: bool,
}

/// Packs all of a source that is made for [`PART_BYTES`] and [waits for no answers](TreeSource::unanswered). `put`
/// takes the stream piece by piece. If `put` returns false, packing ends. `tally` counts what was read.
///
/// # Errors
///
/// Fails with the system's error if a thread cannot be made.
pub fn pack(source: &TreeSource, tally: &Tally, put: impl FnMut(Packet<'_>) -> bool + Send) -> std::io::Result<()> {
    let line = Mutex::new(Line { sequence: 0, offset: 0, put, is_over: false });
    let moved = Condvar::new();
    let read = || {
        let mut target = AlignedBytes::new();
        loop {
            let part = match source.next(target.data(), DUE_BYTES, tally) {
                Next::Part(part) => part,
                Next::Cold(range, cold) => {
                    let outcome = read_cold(&cold, target.data());
                    source.note_arrival();
                    match source.settle(&range, &cold, outcome, target.data(), tally) {
                        Some(part) => part,
                        None => continue,
                    }
                }
                Next::Later => continue,
                Next::Copy(_) => unreachable!("of a copy within a host"),
                Next::Ended => return,
            };
            let line = crate::locked(&line);
            let waiting = moved.wait_while(line, |line| line.sequence != part.sequence && !line.is_over);
            let mut line = waiting.expect("no panics under it");
            if line.is_over || !line.take(&mut target, &part) {
                line.is_over = true;
                source.cancel();
            }
            moved.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..READERS {
            std::thread::Builder::new().name("read".to_owned()).spawn_scoped(scope, read)?;
        }
        read();
        Ok::<(), std::io::Error>(())
    })?;
    let mut line = line.into_inner().expect("no panics under it");
    if !line.is_over {
        (line.put)(Packet { bytes: &Head::End.encode(), part: None });
    }
    Ok(())
}

impl<P: FnMut(Packet<'_>) -> bool> Line<P> {
    fn take(&mut self, target: &mut AlignedBytes, part: &Part) -> bool {
        let head = Head::Data { item: part.item, length: part.length as u32, position: part.position };
        let padding = head.padding(self.offset + HEAD_BYTES as u64) as usize;
        let bytes = target.with_head(&head, padding, part.length);
        self.sequence += 1;
        self.offset += bytes.len() as u64;
        let data = &bytes[bytes.len() - part.length..];
        (self.put)(Packet { bytes, part: Some((part.item, part.position, data)) })
    }
}

/// A buffer for a part and its head. The part begins with a page, so that it can be read past the page cache.
struct AlignedBytes {
    memory: Vec<u8>,
    skip: usize,
}

impl AlignedBytes {
    fn new() -> Self {
        let memory = vec![0; PAGE_BYTES as usize + ROOM_BYTES + PART_BYTES];
        let skip = memory.as_ptr().align_offset(PAGE_BYTES as usize) + ROOM_BYTES;
        Self { memory, skip }
    }

    fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..][..PART_BYTES]
    }

    /// Returns the head, the padding, and the data after them.
    fn with_head(&mut self, head: &Head, padding: usize, length: usize) -> &[u8] {
        let start = self.skip - padding - HEAD_BYTES;
        self.memory[start..start + HEAD_BYTES].copy_from_slice(&head.encode());
        self.memory[start + HEAD_BYTES..self.skip].fill(0);
        &self.memory[start..self.skip + length]
    }
}

/// Reads data that is not in the page cache, as far as one read goes.
fn read_cold(cold: &Cold, target: &mut [u8]) -> Result<usize, Errno> {
    pread(&*cold.file, cold.hole(target), cold.hole_offset())
}

/// Takes a packed stream apart.
#[derive(Default)]
pub struct Unpacker {
    order: Order,
    offset: u64,
    expects: Expects,
}

enum Expects {
    Head {
        bytes: [u8; HEAD_BYTES],
        length: usize,
    },
    /// Padding, and then the rest of a range of a large file, in bytes.
    Range {
        padding: usize,
        item: u32,
        position: u64,
        left: usize,
    },
    /// Records of `length` bytes in all.
    Records {
        position: u64,
        length: usize,
        gathered: Vec<u8>,
    },
}

impl Default for Expects {
    fn default() -> Self {
        Self::Head { bytes: [0; HEAD_BYTES], length: 0 }
    }
}

/// Error for a stream that is not a packed tree.
const BROKEN: Refused = Refused::Data("the broadcast stream is not a valid tree");

/// A range of a shared buffer.
struct Piece {
    whole: Bytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &(*self.whole).as_ref()[self.range.clone()]
    }
}

impl Unpacker {
    /// Takes the next piece of the stream, and hands its parts to `push`: item, position and data, as for
    /// [`TreeSink::push`](super::sink::TreeSink::push).
    ///
    /// # Errors
    ///
    /// Fails if the stream is not a packed tree, or with the error of `push`. Nothing more must be taken after that.
    pub fn take(
        &mut self,
        whole: &Bytes,
        mut push: impl FnMut(u32, u64, Bytes) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let all = (**whole).as_ref();
        let mut at = 0;
        while at < all.len() {
            let rest = &all[at..];
            let taken = match &mut self.expects {
                Expects::Head { bytes, length } => {
                    let taken = (HEAD_BYTES - *length).min(rest.len());
                    bytes[*length..*length + taken].copy_from_slice(&rest[..taken]);
                    *length += taken;
                    if *length == HEAD_BYTES {
                        let head = Head::decode(bytes).ok_or(BROKEN)?;
                        self.order.check(&head).ok_or(BROKEN)?;
                        self.expects = Expects::after(&head, self.offset + taken as u64);
                    }
                    taken
                }
                Expects::Range { padding: padding @ 1.., .. } => {
                    let taken = (*padding).min(rest.len());
                    *padding -= taken;
                    taken
                }
                Expects::Range { item, position, left, .. } => {
                    let taken = (*left).min(rest.len());
                    push(*item, *position, Arc::new(Piece { whole: Arc::clone(whole), range: at..at + taken }))?;
                    *position += taken as u64;
                    *left -= taken;
                    if *left == 0 {
                        self.expects = Expects::default();
                    }
                    taken
                }
                Expects::Records { position, length, gathered } => {
                    let taken = (*length - gathered.len()).min(rest.len());
                    if taken == *length {
                        push(0, *position, Arc::new(Piece { whole: Arc::clone(whole), range: at..at + taken }))?;
                        self.expects = Expects::default();
                    } else {
                        gathered.reserve_exact(*length - gathered.len());
                        gathered.extend_from_slice(&rest[..taken]);
                        if gathered.len() == *length {
                            push(0, *position, Arc::new(std::mem::take(gathered)))?;
                            self.expects = Expects::default();
                        }
                    }
                    taken
                }
            };
            at += taken;
            self.offset += taken as u64;
        }
        Ok(())
    }

    /// Returns how many bytes of the stream have been taken.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the end of the stream has come.
    pub fn has_ended(&self) -> bool {
        self.order.has_ended()
    }
}

impl Expects {
    /// Returns what follows a head that ends at this offset of the stream.
    fn after(head: &Head, end: u64) -> Self {
        match (*head, head.padding(end)) {
            (Head::End, _) => Self::default(),
            (Head::Data { item: 0, length, position }, _) => {
                Self::Records { position, length: length as usize, gathered: Vec::new() }
            }
            (Head::Data { item, length, position }, padding) => {
                Self::Range { padding: padding as usize, item, position, left: length as usize }
            }
        }
    }
}

#[cfg(test)]
mod tests;
