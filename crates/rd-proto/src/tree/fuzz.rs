//! Body of the fuzz target: no input may panic, and what decodes must encode to the same bytes.

use super::*;

/// Decodes `bytes` as the payload of one chunk of records.
pub fn tree_records(bytes: &[u8]) {
    let (mut rest, mut order) = (bytes, Order::new());
    loop {
        let before = rest;
        let Ok(Some(record)) = Record::decode(&mut rest) else { return };
        let mut again = vec![0; record.encoded_bytes()];
        assert_eq!(record.encode(&mut again), Some(before.len() - rest.len()));
        assert_eq!(again, before[..before.len() - rest.len()]);
        if order.check(&record).is_err() {
            return;
        }
        assert!(record.name().is_none_or(is_name));
    }
}

/// The seeds that are checked in as corpus: target, name and bytes of each.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut bytes = Vec::new();
    for record in samples() {
        let at = bytes.len();
        bytes.resize(at + record.encoded_bytes(), 0);
        record.encode(&mut bytes[at..]);
    }
    vec![("tree_records", "every-kind", bytes)]
}

/// A walk with each kind of record.
pub fn samples() -> Vec<Record<'static>> {
    let metadata = Metadata {
        mode: 0o4751,
        uid: 1000,
        gid: 100,
        modified: Time { seconds: -1, nanoseconds: 999_999_999 },
        accessed: Time { seconds: 1 << 33, nanoseconds: 0 },
        xattrs: Xattrs(b"\x06\0user.a\x01\0\0\0v"),
        // A user's name, flags, names in ACLs, and a type that no version knows.
        extensions: Extensions::new(
            b"\x01\0\0\x01\0u\x04\0\x01\x04\0\x10\0\0\0\x07\0\0\x07\0\x02\xea\x03\0\0\x01v\xff\xff\0\x01\0?",
        ),
    };
    vec![
        Record::Directory { name: b"d", metadata },
        Record::File { name: b"a", metadata, data: b"contents" },
        Record::Large { name: b"b", metadata, item: 1, size: 1 << 40, is_sparse: true },
        Record::Directory { name: b"c", metadata },
        Record::HardLink { name: b"x", first: b"d/a" },
        Record::Leave,
        Record::Special { name: b"f", metadata, kind: Special::Character, device: (1, 3) },
        Record::Listed { name: b"g", metadata, size: 5 },
        Record::Vanished { name: b"h" },
        Record::Incomplete,
        Record::Leave,
        Record::Wanted { number: 0 },
        Record::File { name: b"g", metadata, data: b"12345" },
        Record::Same { number: 1 },
        Record::Gone { number: 2 },
        Record::Wanted { number: 4 },
        Record::Vanished { name: b"a" },
        Record::Differs { number: 3 },
        Record::Symlink { name: b"e\xff", metadata, target: b"../d" },
        Record::Closed { item: 1, data_bytes: 12_345, is_intact: true },
        Record::End { failures: 2 },
    ]
}
