use super::*;
use proptest::prelude::*;

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = vec![0; record.encoded_bytes()];
    assert_eq!(record.encode(&mut bytes), Some(bytes.len()));
    bytes
}

#[test]
fn every_kind_comes_back_and_is_in_order() {
    let mut order = Order::new();
    for record in fuzz::samples() {
        let bytes = encoded(&record);
        let mut rest = bytes.as_slice();
        assert_eq!(Record::decode(&mut rest), Ok(Some(record)));
        assert!(rest.is_empty());
        assert_eq!(record.encode(&mut vec![0; bytes.len() - 1]), None);
        if let Record::File { name, metadata, data } = record {
            let mut whole = vec![0; bytes.len()];
            assert_eq!(Record::encode_file_head(name, &metadata, data.len() + 1, &mut whole), None);
            let head = Record::encode_file_head(name, &metadata, data.len(), &mut whole).expect("room");
            whole[head..].copy_from_slice(data);
            assert_eq!(whole, bytes);
        }
        for length in 1..bytes.len() {
            assert!(Record::decode(&mut &bytes[..length]).is_err(), "{record:?} cut at {length}");
        }
        assert!(!order.is_ended());
        order.check(&record).expect("in order");
    }
    assert!(order.is_ended());
    assert_eq!(order.check(&Record::Leave), Err(TreeError::End));
}

fn file(name: &[u8]) -> Record<'_> {
    Record::File { name, metadata: Metadata::default(), data: b"" }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"/a", b"a\0", &[b'a'; 256]] {
        assert!(!is_name(name));
        let mut bytes = encoded(&file(b"a"));
        bytes.splice(1..3, [&[name.len() as u8], name].concat());
        assert!(Record::decode(&mut bytes.as_slice()).is_err(), "{name:?}");
    }
    for first in [&b".."[..], b"a/../b", b"/a", b"a//b", b"a/", b"a\0"] {
        let mut bytes = encoded(&Record::HardLink { name: b"z", first: b"a" });
        bytes.splice(3.., [&(first.len() as u16).to_le_bytes(), first].concat());
        assert_eq!(Record::decode(&mut bytes.as_slice()), Err(TreeError::Name), "{first:?}");
    }
}

#[test]
fn what_cannot_be_a_walk_is_refused() {
    let metadata = Metadata::default();
    let directory = |name| Record::Directory { name, metadata };
    let large = |name, item| Record::Large { name, metadata, item, size: 0, is_sparse: false };
    let closed = |item| Record::Closed { item, data_bytes: 0, is_intact: true };
    let end = Record::End { failures: 0 };
    for (records, error) in [
        (vec![file(b"b"), file(b"a")], TreeError::Order),
        (vec![file(b"a"), file(b"a")], TreeError::Order),
        (vec![directory(b"a"), Record::Leave, file(b"a")], TreeError::Order),
        (vec![file(b"b"), Record::Vanished { name: b"a" }], TreeError::Order),
        (vec![Record::Wanted { number: 0 }, Record::Gone { number: 0 }], TreeError::Wanted),
        (vec![Record::Leave], TreeError::Depth),
        (vec![directory(b"a"), end], TreeError::Depth),
        (vec![directory(b"a"); DEPTH_MAX + 1], TreeError::Depth),
        (vec![large(b"a", 2)], TreeError::Item),
        (vec![large(b"a", 1), large(b"b", 1)], TreeError::Item),
        (vec![large(b"a", 1), closed(1), closed(1)], TreeError::Item),
        (vec![large(b"a", 1), end], TreeError::Item),
        (vec![closed(1)], TreeError::Item),
        (vec![Record::HardLink { name: b"a", first: b"a" }], TreeError::Order),
        (vec![file(b"a"), Record::HardLink { name: b"b", first: b"c" }], TreeError::Order),
        (vec![directory(b"b"), Record::HardLink { name: b"c", first: b"b/d" }], TreeError::Order),
    ] {
        let mut order = Order::new();
        let outcome = records.iter().try_for_each(|record| order.check(record));
        assert_eq!(outcome, Err(error), "{records:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz::tree_records(&bytes);
    }

    #[test]
    fn attributes_come_back(pairs in proptest::collection::vec(("[a-z.]{1,20}", proptest::collection::vec(any::<u8>(), 0..50)), 0..8)) {
        let mut buffer = Vec::new();
        for (name, value) in &pairs {
            prop_assert!(Xattrs::push(&mut buffer, name.as_bytes(), value));
        }
        let metadata = Metadata { xattrs: Xattrs::new(&buffer), ..Metadata::default() };
        let bytes = encoded(&Record::Directory { name: b"d", metadata });
        let Ok(Some(Record::Directory { metadata, .. })) = Record::decode(&mut bytes.as_slice()) else {
            return Err(TestCaseError::fail("not a directory"));
        };
        let back: Vec<_> = metadata.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let pairs: Vec<_> = pairs.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
        prop_assert_eq!(back, pairs);
    }
}
