//! The BLAKE3 of a file whose ranges arrive in any order, from several threads.
//!
//! BLAKE3 is a tree: the digest of an aligned range of 1024·2ⁿ bytes, its chaining value, can be computed separately
//! and joined with its sibling's. Data that has arrived is kept as a few such values. Data that never arrived, or could
//! not be joined, is read when the digest is wanted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Mutex;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, max_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{CHUNK_LEN, Hash, Hasher};
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::fs::holes::{is_hole, may_be_in};
use crate::fs::read_up_to;

/// Maximum number of values that one file keeps. Ranges that arrive beyond that are read again.
const NODES_MAX: usize = 4096;

/// Bytes of missing data that are read at once.
const READ_BYTES: usize = 256 << 10;

/// The digest of a file, as far as its data has arrived.
#[derive(Debug)]
pub struct RangeDigest {
    size: u64,
    nodes: Mutex<Nodes>,
}

/// Subtrees by where they begin, with their lengths and values.
#[derive(Debug, Default)]
struct Nodes {
    at: BTreeMap<u64, (u64, ChainingValue)>,
    /// Smallest range around all data that has arrived and is not in `at`.
    loose: Range<u64>,
    /// Whether a range arrived twice, or may have. It is not known which of the two the file has in the end, so all of
    /// it is read.
    is_void: bool,
}

impl RangeDigest {
    /// Creates the digest of a file of this size.
    pub fn new(size: u64) -> Self {
        Self { size, nodes: Mutex::default() }
    }

    /// Adds the contents of a range. Any thread may call this for any range.
    pub fn add(&self, data: &[u8], position: u64) {
        let end = position + data.len() as u64;
        if data.is_empty() || end > self.size {
            return;
        }
        let is_aligned = |at: u64| at.is_multiple_of(CHUNK_LEN as u64);
        let mut pieces = Vec::new();
        if is_aligned(position) && (is_aligned(end) || end == self.size) && self.size > CHUNK_LEN as u64 {
            let mut at = position;
            while at < end {
                let length = self.piece(at, end);
                let data = &data[(at - position) as usize..][..length as usize];
                pieces.push((at, length, Hasher::new().set_input_offset(at).update(data).finalize_non_root()));
                at += length;
            }
        }
        let mut nodes = crate::locked(&self.nodes);
        let before = nodes.at.range(..end).next_back();
        nodes.is_void |= before.is_some_and(|(start, (length, _))| start + length > position)
            || position < nodes.loose.end && nodes.loose.start < end;
        if !pieces.is_empty() && nodes.at.len() + pieces.len() <= NODES_MAX {
            for (at, length, value) in pieces {
                self.join(&mut nodes.at, at, length, value);
            }
        } else if nodes.loose.is_empty() {
            nodes.loose = position..end;
        } else {
            nodes.loose = nodes.loose.start.min(position)..nodes.loose.end.max(end);
        }
    }

    /// Returns the length of the largest subtree, except the root, that begins at `at` and ends by `end`.
    fn piece(&self, at: u64, end: u64) -> u64 {
        let length = max_subtree_len(at).map_or(end - at, |most| most.min(end - at));
        match (at, at + length == self.size) {
            (0, true) => left_subtree_len(self.size),
            (_, true) => length,
            (_, false) => 1 << length.ilog2(),
        }
    }

    /// Adds a subtree. Joins it with its sibling, and the result likewise, as long as siblings have arrived.
    fn join(&self, nodes: &mut BTreeMap<u64, (u64, ChainingValue)>, at: u64, length: u64, value: ChainingValue) {
        let (mut at, mut length, mut value) = (at, length, value);
        loop {
            let is_right = at > 0 && (at + length == self.size || !(at / length).is_multiple_of(2));
            let (start, expected) = match is_right {
                true if at + length == self.size => (at - (1 << at.trailing_zeros()), 1 << at.trailing_zeros()),
                true => (at - length, length),
                false => (at + length, length.min(self.size - at - length)),
            };
            let parent = (at.min(start), length + expected);
            let is_there = nodes.get(&start).is_some_and(|(length, _)| *length == expected);
            if !is_there || parent == (0, self.size) {
                nodes.insert(at, (length, value));
                return;
            }
            let (_, other) = nodes.remove(&start).expect("it is there");
            let (left, right) = if is_right { (other, value) } else { (value, other) };
            ((at, length), value) = (parent, merge_subtrees_non_root(&left, &right, Mode::Hash));
        }
    }

    /// Returns the digest. `read` fills a buffer from a position on, with data that is missing.
    ///
    /// # Errors
    ///
    /// Fails with the error of `read`.
    pub fn finish<E>(&self, mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>) -> Result<Hash, E> {
        let mut nodes = crate::locked(&self.nodes);
        if nodes.is_void {
            nodes.at.clear();
        }
        if nodes.at.is_empty() {
            return Ok(self.read(0, self.size, &mut read)?.finalize());
        }
        let left = left_subtree_len(self.size);
        let (left, right) =
            (self.value(&nodes.at, 0, left, &mut read)?, self.value(&nodes.at, left, self.size - left, &mut read)?);
        Ok(merge_subtrees_root(&left, &right, Mode::Hash))
    }

    /// Returns the digest. Missing data is read from `file`, except for holes, of which an image may have a TiB.
    /// Changes the offset of the open file.
    ///
    /// # Errors
    ///
    /// Fails with the error of the read, with `ENODATA` if the file has become shorter, or with `ECANCELED` once
    /// `is_stopped`.
    pub fn finish_from(&self, file: impl AsFd, is_stopped: impl Fn() -> bool) -> Result<Hash, Errno> {
        // To ask for holes may cost a round trip each time.
        let has_holes = fstat(&file).is_ok_and(|stat| may_be_in(&stat));
        self.finish(|target, at| {
            if is_stopped() {
                return Err(Errno::CANCELED);
            }
            if has_holes && is_hole(&file, at, target.len() as u64) {
                target.fill(0);
                return Ok(());
            }
            match read_up_to(&file, target, at)? {
                count if count < target.len() => Err(Errno::NODATA),
                _ => Ok(()),
            }
        })
    }

    fn value<E>(
        &self,
        nodes: &BTreeMap<u64, (u64, ChainingValue)>,
        at: u64,
        length: u64,
        read: &mut impl FnMut(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<ChainingValue, E> {
        match nodes.get(&at) {
            Some((known, value)) if *known == length => return Ok(*value),
            _ => {}
        }
        if nodes.range(at..at + length).next().is_none() {
            return Ok(self.read(at, length, read)?.finalize_non_root());
        }
        let left = left_subtree_len(length);
        let (left, right) = (self.value(nodes, at, left, read)?, self.value(nodes, at + left, length - left, read)?);
        Ok(merge_subtrees_non_root(&left, &right, Mode::Hash))
    }

    fn read<E>(
        &self,
        at: u64,
        length: u64,
        read: &mut impl FnMut(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<Hasher, E> {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(at);
        let mut scratch = vec![0; READ_BYTES.min(length as usize)];
        let mut done = 0;
        while done < length {
            let wanted = (length - done).min(READ_BYTES as u64) as usize;
            read(&mut scratch[..wanted], at + done)?;
            hasher.update(&scratch[..wanted]);
            done += wanted as u64;
        }
        Ok(hasher)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        Hasher::new().update(b"noise").finalize_xof().fill(&mut data);
        data
    }

    /// Returns the digest, and the number of bytes that were read again.
    fn finish(digest: &RangeDigest, data: &[u8]) -> (Hash, usize) {
        let mut again = 0;
        let read = |target: &mut [u8], at: u64| {
            again += target.len();
            target.copy_from_slice(&data[at as usize..][..target.len()]);
            Ok::<(), ()>(())
        };
        let hash = digest.finish(read).expect("read");
        (hash, again)
    }

    proptest! {
        /// Ranges of any length arrive in any order, and some never do. The digest is that of the file, and no data
        /// that has arrived is read.
        #[test]
        fn ranges_in_any_order_give_the_digest(
            bytes in 0_usize..200_000,
            range in 1_usize..40,
            order in any::<u64>(),
            missing in 0_usize..4,
        ) {
            let data = noise(bytes);
            let digest = RangeDigest::new(bytes as u64);
            let mut ranges: Vec<usize> = (0..bytes).step_by(range * CHUNK_LEN).collect();
            ranges.sort_by_key(|at| blake3::hash(&(*at as u64 ^ order).to_le_bytes()).to_string());
            let left_out: usize = ranges.drain(..missing.min(ranges.len())).map(|at| (bytes - at).min(range * 1024)).sum();
            for at in ranges {
                digest.add(&data[at..bytes.min(at + range * CHUNK_LEN)], at as u64);
            }
            let (hash, again) = finish(&digest, &data);
            prop_assert_eq!(hash, blake3::hash(&data));
            prop_assert!(again == left_out || bytes <= CHUNK_LEN, "{} read again, {} missing", again, left_out);
        }
    }

    #[test]
    fn what_came_in_order_is_kept_as_a_few_values() {
        let data = noise(3 << 20);
        let digest = RangeDigest::new(data.len() as u64);
        for (number, piece) in data.chunks(4096).enumerate() {
            digest.add(piece, number as u64 * 4096);
            assert!(crate::locked(&digest.nodes).at.len() <= 12);
        }
        assert_eq!(finish(&digest, &data), (blake3::hash(&data), 0));
    }

    #[test]
    fn what_came_twice_is_read() {
        let data = noise(1 << 20);
        let digest = RangeDigest::new(data.len() as u64);
        digest.add(&noise(300_000)[1000..][..4096], 0);
        digest.add(&data[..8192], 0);
        digest.add(&data[8192..], 8192);
        assert_eq!(finish(&digest, &data), (blake3::hash(&data), data.len()));
    }

    /// Of two ranges that threads hash and write at the same time, the one that is hashed may be the one that is
    /// overwritten.
    #[test]
    fn what_came_twice_is_read_even_if_only_one_of_the_two_is_kept() {
        let data = noise(1 << 20);
        let (loose, kept) = (4097..4098, 4096..5120);
        for twice in [[&loose, &kept], [&kept, &loose]] {
            let digest = RangeDigest::new(data.len() as u64);
            for range in twice.into_iter().chain([&(0..4096), &(5120..data.len())]) {
                digest.add(&data[range.clone()], range.start as u64);
            }
            assert_eq!(finish(&digest, &data), (blake3::hash(&data), data.len()), "{twice:?}");
        }
    }

    #[test]
    fn what_cannot_be_joined_is_read() {
        let data = noise(1 << 20);
        let digest = RangeDigest::new(data.len() as u64);
        digest.add(&data[100..5000], 100);
        digest.add(&data[1 << 19..], 1 << 19);
        assert_eq!(finish(&digest, &data), (blake3::hash(&data), 1 << 19));
    }

    #[test]
    fn holes_are_not_read_and_nothing_is_once_it_is_stopped() {
        const START: usize = 1 << 20;
        let (mut data, written) = (vec![0; 3 * START], noise(64 << 10));
        data[START..][..written.len()].copy_from_slice(&written);
        let file = tempfile::tempfile().expect("a file");
        file.set_len(data.len() as u64).expect("a length");
        file.write_all_at(&written, START as u64).expect("written");
        let (whole, lacking) = (RangeDigest::new(data.len() as u64), RangeDigest::new(data.len() as u64));
        whole.add(&written, START as u64);
        let finish = |digest: &RangeDigest, is_stopped: bool| {
            where_calls_fail(&[libc::SYS_pread64], libc::EIO, || digest.finish_from(&file, || is_stopped))
        };
        assert_eq!(finish(&whole, false), Ok(blake3::hash(&data)));
        assert_eq!(finish(&lacking, false), Err(Errno::IO), "there is data");
        assert_eq!(finish(&whole, true), Err(Errno::CANCELED));
    }
}
