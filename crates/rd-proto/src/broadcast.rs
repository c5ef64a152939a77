//! A tree as one stream for many hosts: the answers of a hop's receiving end, and the packing of a tree into the
//! stream.
//!
//! A hop of a broadcast is a session that transfers the stream from some offset to its end. The receiving end answers
//! with offsets, which [`Marks`] decodes: the first answer says where to start sending, each later answer says below
//! which offset the sending end need not keep anything.
//!
//! The stream itself consists of the parts of a tree ([`crate::tree`]) as packets: a [`Head`], then data. All of it
//! comes from a peer, so decoding checks every value.

use crate::reader::Reader;

/// Maximum length of the data of one packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 1 << 20;

/// Length of a packet's head, in bytes.
pub const HEAD_BYTES: usize = 16;

/// Alignment in the stream of the data of large files, in bytes, so that the data can be written from where it lies.
pub const PAGE_BYTES: u64 = 4096;

/// Item number in the head of the packet that ends the stream.
const END_ITEM: u32 = u32::MAX;

/// Meaning of one answer of a hop's receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The stream is to be sent from this offset on. Always the first answer.
    From(u64),
    /// Nothing below this offset needs to be kept.
    Keep(u64),
}

/// Encodes an offset as an answer.
pub fn encode_mark(offset: u64) -> Vec<u8> {
    offset.to_le_bytes().to_vec()
}

/// Answers that the sending end of a hop has received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    has_begun: bool,
    keep: u64,
}

impl Marks {
    /// Returns whether the first answer has arrived.
    pub fn have_begun(&self) -> bool {
        self.has_begun
    }

    /// Decodes the next answer. `sent` is the offset up to which the stream has been sent.
    ///
    /// `None` if the answer is not an offset, or if the offset goes back or lies beyond `sent`. The first offset is not
    /// compared with anything: the caller must check that the stream can be sent from there.
    pub fn take(&mut self, bytes: &[u8], sent: u64) -> Option<Mark> {
        let mut reader = Reader { rest: bytes };
        let offset = reader.u64().ok()?;
        if !reader.rest.is_empty() {
            return None;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Mark::From(offset));
        }
        if offset < self.keep || offset > sent {
            return None;
        }
        self.keep = offset;
        Some(Mark::Keep(offset))
    }
}

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Records (item 0) or data of a large file follow.
    Data {
        /// Number of the file; 0 for records.
        item: u32,
        /// Number of bytes that follow, at least one.
        length: u32,
        /// Position of these bytes in the item.
        position: u64,
    },
    /// The stream ends here.
    End,
}

impl Head {
    /// Encodes the head.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let (item, length, position) = match *self {
            Self::Data { item, length, position } => (item, length, position),
            Self::End => (END_ITEM, 0, 0),
        };
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&item.to_le_bytes());
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..].copy_from_slice(&position.to_le_bytes());
        bytes
    }

    /// Decodes the head of a packet.
    ///
    /// `None` if `bytes` is not exactly one head, if the length of the data is zero or too large, or if position plus
    /// length exceeds 64 bits.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: bytes };
        let (item, length, position) = (reader.u32().ok()?, reader.u32().ok()?, reader.u64().ok()?);
        if !reader.rest.is_empty() {
            return None;
        }
        match (item, length, position) {
            (END_ITEM, 0, 0) => Some(Self::End),
            (END_ITEM, ..) | (_, 0, _) => None,
            (item, length, position) if length as usize <= PACKET_BYTES_MAX => {
                position.checked_add(length.into())?;
                Some(Self::Data { item, length, position })
            }
            _ => None,
        }
    }

    /// Returns the number of bytes between this head and its data. `end` is the offset of the head's end in the stream.
    pub fn padding(&self, end: u64) -> u64 {
        match self {
            Self::Data { item: 1.., .. } => end.next_multiple_of(PAGE_BYTES) - end,
            _ => 0,
        }
    }
}

/// Checks the order of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    records_bytes: u64,
    has_ended: bool,
}

impl Order {
    /// Checks the next head. `None` if records do not begin where the previous records ended, or if the stream has
    /// already ended.
    #[must_use]
    pub fn check(&mut self, head: &Head) -> Option<()> {
        match *head {
            _ if self.has_ended => return None,
            Head::End => self.has_ended = true,
            Head::Data { item: 0, position, .. } if position != self.records_bytes => return None,
            Head::Data { item: 0, length, .. } => self.records_bytes += u64::from(length),
            Head::Data { .. } => {}
        }
        Some(())
    }

    /// Returns whether the packet that ends the stream has arrived.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Bodies of the fuzz targets: no input may panic, and what decodes must encode to the same bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::*;

    /// Decodes all of `bytes` as answers of a hop's receiving end. After the first answer, 1 MiB beyond its offset
    /// counts as sent.
    pub fn broadcast_marks(bytes: &[u8]) {
        let (mut marks, mut last, mut sent) = (Marks::default(), 0, u64::MAX);
        for answer in bytes.chunks(8) {
            match marks.take(answer, sent) {
                Some(Mark::From(offset)) => {
                    assert_eq!(encode_mark(offset), answer);
                    sent = offset.saturating_add(1 << 20);
                }
                Some(Mark::Keep(offset)) => {
                    assert_eq!(encode_mark(offset), answer);
                    assert!(last <= offset && offset <= sent);
                    last = offset;
                }
                None => return,
            }
        }
    }

    /// Decodes all of `bytes` as heads of packets.
    pub fn broadcast_heads(bytes: &[u8]) {
        let mut order = Order::default();
        for bytes in bytes.chunks(HEAD_BYTES) {
            let Some(head) = Head::decode(bytes) else { return };
            assert_eq!(head.encode(), bytes);
            if order.check(&head).is_none() {
                return;
            }
            assert_eq!(order.has_ended(), head == Head::End);
        }
    }

    /// The seeds that are checked in as corpus: target, name and bytes of each.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let marks = [1 << 20, 0, 4096, (2 << 20) - 1].map(encode_mark).concat();
        let heads = samples().map(|(head, _)| head.encode()).concat();
        vec![("broadcast_marks", "healed", marks), ("broadcast_heads", "every-kind", heads)]
    }

    /// One packet of each kind, with its head as `docs/PROTOCOL.md` shows it.
    pub fn samples() -> [(Head, &'static str); 3] {
        [
            (Head::Data { item: 0, length: 300, position: 0 }, "00000000 2c010000 0000000000000000"),
            (Head::Data { item: 7, length: 1 << 20, position: 1 << 32 }, "07000000 00001000 0000000001000000"),
            (Head::End, "ffffffff 00000000 0000000000000000"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn heads_and_marks_have_these_bytes_and_come_back() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md");
        let document = std::fs::read_to_string(document).expect("the document");
        for (head, golden) in fuzz::samples() {
            assert_eq!(hexadecimal(&head.encode()), golden.replace(' ', ""));
            assert!(document.contains(golden), "docs/PROTOCOL.md lacks {golden}");
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
        let golden = "0000a00000000000";
        assert_eq!(hexadecimal(&encode_mark(10 << 20)), golden);
        assert!(document.contains(golden), "docs/PROTOCOL.md lacks {golden}");
    }

    #[test]
    fn marks_that_no_receiver_says_are_refused() {
        let begun = |from: u64| {
            let mut marks = Marks::default();
            assert_eq!(marks.take(&encode_mark(from), 0), Some(Mark::From(from)));
            marks
        };
        for length in [0, 1, 7, 9, 16] {
            assert_eq!(Marks::default().take(&vec![0; length], 10), None, "{length}");
            assert_eq!(begun(0).take(&vec![0; length], 10), None, "{length}");
        }
        let mut marks = begun(100);
        // A receiver may have to keep less than its first offset: the host behind it may have less of the stream.
        assert_eq!(marks.take(&encode_mark(60), 150), Some(Mark::Keep(60)));
        assert_eq!(marks.take(&encode_mark(59), 150), None);
        assert_eq!(marks.take(&encode_mark(60), 150), Some(Mark::Keep(60)));
        assert_eq!(marks.take(&encode_mark(151), 150), None);
        assert_eq!(marks.take(&encode_mark(150), 150), Some(Mark::Keep(150)));
    }

    #[test]
    fn packets_out_of_bounds_or_order_are_refused() {
        let head = |item: u32, length: u32, position: u64| {
            [&item.to_le_bytes()[..], &length.to_le_bytes(), &position.to_le_bytes()].concat()
        };
        let most = PACKET_BYTES_MAX as u32;
        for bytes in [
            vec![],
            vec![0; 15],
            vec![0; 17],
            head(0, 0, 0),
            head(1, most + 1, 0),
            head(1, u32::MAX, 0),
            head(1, 1, u64::MAX),
            head(END_ITEM, 1, 0),
            head(END_ITEM, 0, 1),
        ] {
            assert_eq!(Head::decode(&bytes), None, "{bytes:?}");
        }
        let records = |position| Head::Data { item: 0, length: 10, position };
        let mut order = Order::default();
        for (head, outcome) in [
            (records(1), None),
            (records(0), Some(())),
            (records(0), None),
            (Head::Data { item: 3, length: 1, position: 0 }, Some(())),
            (records(10), Some(())),
            (Head::End, Some(())),
            (Head::End, None),
            (records(20), None),
        ] {
            assert_eq!(order.check(&head), outcome, "{head:?}");
        }
    }

    #[test]
    fn data_of_files_begins_with_a_page() {
        let data = |item| Head::Data { item, length: 1, position: 0 };
        assert_eq!((data(0).padding(16), Head::End.padding(16)), (0, 0));
        assert_eq!([0, 1, 4095, 4096, 4097].map(|end| data(1).padding(end)), [0, 4095, 1, 0, 4095]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..100)) {
            fuzz::broadcast_marks(&bytes);
            fuzz::broadcast_heads(&bytes);
        }
    }
}
