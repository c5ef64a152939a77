//! Holes of sparse files: ranges that are known to be zero need not be read.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::{SeekFrom, Stat, fstat, seek};
use rustix::io::Errno;

use super::{hash_range, hash16};

/// Bytes of a page, the least that can be a hole on most file systems.
pub(crate) const PAGE_BYTES: usize = 4 << 10;

/// Hashes like [`hash_range`], for a file that may have holes, which are not read. An image of a TiB with 1 GiB of data
/// takes no longer than that 1 GiB. Changes the offset of the open file.
///
/// # Errors
///
/// Those of [`hash_range`].
pub(crate) fn hash_sparse(file: impl AsFd, start: u64, length: u64, scratch: &mut [u8]) -> Result<[u8; 16], Errno> {
    if is_hole(&file, start, length) { Ok(hash_of_zeros(length)) } else { hash_range(file, start, length, scratch) }
}

/// Reports whether a file may have holes: it takes less of the disk than its length. A compressed file does so, too.
pub(crate) fn may_be_in(stat: &Stat) -> bool {
    (stat.st_blocks as u64) < (stat.st_size as u64).div_ceil(512)
}

/// Reports whether a range of a file is entirely a hole, as far as the file system tells.
pub(crate) fn is_hole(file: impl AsFd, start: u64, length: u64) -> bool {
    let end = start + length;
    next_data(&file, start, end) == end && fstat(file).is_ok_and(|stat| stat.st_size as u64 >= end)
}

/// Returns the first range of data at or after an offset. Without any, the range is empty and lies at `size`, the
/// file's size.
pub(crate) fn data_from(file: impl AsFd, offset: u64, size: u64) -> (u64, u64) {
    let start = next_data(&file, offset, size);
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    // A range has at least one byte, or the search would not end.
    (start, if end > start { end.min(size) } else { size })
}

/// Returns the offset at which data begins at or after `offset`, or `size` if there is none before that. A file system
/// that cannot tell is taken to have only data.
fn next_data(file: impl AsFd, offset: u64, size: u64) -> u64 {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start.clamp(offset, size),
        Err(Errno::NXIO) => size,
        Err(_) => offset,
    }
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Returns the ranges of `bytes` that are left if those of `unit_bytes` that contain only zeros are left out.
pub(crate) fn data_in(bytes: &[u8], unit_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let is_data = move |at: usize| !is_zero(&bytes[at..bytes.len().min(at + unit_bytes)]);
    let mut at = 0;
    std::iter::from_fn(move || {
        let next = |from: usize, wanted: bool| {
            let mut units = (from..bytes.len()).step_by(unit_bytes);
            units.find(|&unit| is_data(unit) == wanted).unwrap_or(bytes.len())
        };
        let start = next(at, true);
        at = next(start, false);
        (start < at).then_some(start..at)
    })
}

/// Returns the digest of `length` zeros. That of each power of two is computed only once, since all blocks of a file but
/// the last have such a length.
pub(crate) fn hash_of_zeros(length: u64) -> [u8; 16] {
    static OF_POWERS: [OnceLock<[u8; 16]>; 64] = [const { OnceLock::new() }; 64];
    let hash = || {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), length), &mut hasher).expect("it takes all");
        hash16(&hasher.finalize())
    };
    if length.is_power_of_two() { *OF_POWERS[length.trailing_zeros() as usize].get_or_init(hash) } else { hash() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn units_of_zeros_are_left_out() {
        for (bytes, unit_bytes, expected) in [
            (&[1_u8; 5][..], 2, &[(0, 5)][..]),
            (&[0; 5], 2, &[]),
            (&[], 2, &[]),
            (&[0, 0, 1, 0, 0, 1, 0, 0, 0], 2, &[(2, 6)]),
            (&[1, 0, 0, 0, 0, 0, 7], 2, &[(0, 2), (6, 7)]),
            (&[0, 1, 0, 0, 0, 0], 3, &[(0, 3)]),
            (&[0, 0, 1], 3, &[(0, 3)]),
        ] {
            let found: Vec<(usize, usize)> = data_in(bytes, unit_bytes).map(|data| (data.start, data.end)).collect();
            assert_eq!(found, expected, "{bytes:?}");
        }
    }

    #[test]
    fn ranges_have_the_digest_of_what_is_read_there() {
        const BLOCK: u64 = 64 << 10;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8 * BLOCK + 5).expect("a length");
        file.write_all_at(b"data", 3 * BLOCK + 100).expect("written");
        let mut scratch = vec![0; 4096];
        for number in 0..9 {
            let (start, length) = (number * BLOCK, if number == 8 { 5 } else { BLOCK });
            let read = hash_range(&file, start, length, &mut scratch).expect("read");
            assert_eq!(hash_sparse(&file, start, length, &mut scratch), Ok(read), "block {number}");
        }
        assert!(is_hole(&file, 0, BLOCK) && !is_hole(&file, 3 * BLOCK, BLOCK), "this file system has holes");
        // Beyond the end of the file is nothing, not even zeros.
        assert!(!is_hole(&file, 8 * BLOCK, 6));
        assert_eq!(hash_sparse(&file, 8 * BLOCK, BLOCK, &mut scratch), Err(Errno::NODATA));
    }
}
