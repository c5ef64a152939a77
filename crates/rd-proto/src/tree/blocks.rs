//! Digests of the blocks that the receiver has of a file, so that the sender can leave out blocks that are the same.
//!
//! The receiver hashes block by block and answers whenever some digests are ready. The sender may begin with the first
//! of them. A file of any length has at most [`BLOCKS_MAX`] blocks, which bounds what the sender keeps.

use std::collections::VecDeque;

use super::answer::{BLOCK_BYTES_MIN, Digest};

/// Maximum number of blocks of one file.
pub const BLOCKS_MAX: u64 = 1 << 20;

/// Number of blocks up to which a file's blocks may be as short as [`BLOCK_BYTES_MIN`].
const SHORT_BLOCKS_MAX: u64 = 1 << 16;

/// Block length that is exceeded only if there would otherwise be more than [`BLOCKS_MAX`] blocks, in bytes.
const SHORT_BLOCK_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of blocks without a digest that one step looks at. A step is taken for each part that is sent. The
/// peer, which makes the run of such blocks as long as it likes, must not make each of them cost as much as all.
const RUN_MAX: usize = 64;

/// Returns the length of the blocks of a file of `size` bytes: a power of two, at least `wanted`. Long files have
/// longer blocks, so that digests stay small compared with the data and there are not too many of them.
pub fn block_bytes(size: u64, wanted: u64) -> u64 {
    let short = size.div_ceil(SHORT_BLOCKS_MAX).min(SHORT_BLOCK_BYTES_MAX);
    size.div_ceil(BLOCKS_MAX).max(short).max(wanted).max(BLOCK_BYTES_MIN).next_power_of_two()
}

/// Digests that the sender has received for one file and has not used.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Length of a block, in bytes; 0 until digests have arrived.
    block_bytes: u64,
    /// Number of the first block in `digests`.
    first: u64,
    digests: VecDeque<Digest>,
    /// Whether no more digests follow these.
    is_whole: bool,
}

/// What the sender must do at a position of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more digests.
    Wait,
    /// Compare the block that ends at this position with this digest.
    Compare(u64, [u8; 16]),
    /// Send up to this position without comparing. What follows may not have to be compared either.
    Send(u64),
}

impl Blocks {
    /// Takes the digests of the next blocks of a file of `size` bytes, as received from the peer.
    ///
    /// # Errors
    ///
    /// Fails if no correct receiver would have sent this, with the reason.
    pub fn take(
        &mut self,
        block_bytes: u64,
        digests: Vec<Digest>,
        is_last: bool,
        size: u64,
    ) -> Result<(), &'static str> {
        if self.is_whole {
            return Err("digests after the last block");
        }
        if block_bytes < BLOCK_BYTES_MIN || self.block_bytes != 0 && block_bytes != self.block_bytes {
            return Err("block length");
        }
        let end = self.first + (self.digests.len() + digests.len()) as u64;
        if end > size.div_ceil(block_bytes).min(BLOCKS_MAX) {
            return Err("digests of more blocks than the file has");
        }
        self.block_bytes = block_bytes;
        self.digests.extend(digests);
        self.is_whole = is_last;
        Ok(())
    }

    /// Returns what to do at `position`, which never goes back, of a file of `size` bytes.
    pub fn step(&mut self, position: u64, size: u64) -> Step {
        if self.block_bytes == 0 {
            return Step::Wait;
        }
        let number = position / self.block_bytes;
        while self.first < number && self.digests.pop_front().is_some() {
            self.first += 1;
        }
        let end = |blocks: u64| (number + blocks).saturating_mul(self.block_bytes).min(size);
        match self.digests.front() {
            None if self.is_whole => Step::Send(size),
            None => Step::Wait,
            Some(Some(digest)) if position.is_multiple_of(self.block_bytes) => Step::Compare(end(1), *digest),
            Some(Some(_)) => Step::Send(end(1)),
            Some(None) => {
                let run = self.digests.iter().take(RUN_MAX).take_while(|digest| digest.is_none()).count();
                Step::Send(end(run as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES_MIN;
    const SIZE: u64 = 401 * BLOCK - 1;

    fn some(count: usize) -> Vec<Digest> {
        vec![Some([7; 16]); count]
    }

    #[test]
    fn blocks_are_compared_as_they_are_told_and_waited_for_else() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.step(0, SIZE), Step::Wait);
        let mut digests = some(200);
        digests[1..4].fill(None);
        blocks.take(BLOCK, digests, false, SIZE).expect("honest");
        assert_eq!(blocks.step(0, SIZE), Step::Compare(BLOCK, [7; 16]));
        assert_eq!(blocks.step(BLOCK, SIZE), Step::Send(4 * BLOCK));
        assert_eq!(blocks.step(BLOCK + 1, SIZE), Step::Send(4 * BLOCK));
        assert_eq!(blocks.step(4 * BLOCK + 1, SIZE), Step::Send(5 * BLOCK));
        assert_eq!(blocks.step(200 * BLOCK, SIZE), Step::Wait);
        blocks.take(BLOCK, some(201), true, SIZE).expect("honest");
        for number in 200..401 {
            let end = ((number + 1) * BLOCK).min(SIZE);
            assert_eq!(blocks.step(number * BLOCK, SIZE), Step::Compare(end, [7; 16]), "{number}");
        }
        let mut blocks = Blocks::default();
        blocks.take(BLOCK, Vec::new(), true, SIZE).expect("nothing is there");
        assert_eq!(blocks.step(0, SIZE), Step::Send(SIZE));
    }

    #[test]
    fn one_step_looks_at_a_bounded_run_of_blocks() {
        let (size, run) = (BLOCKS_MAX * BLOCK, RUN_MAX as u64);
        let mut blocks = Blocks::default();
        blocks.take(BLOCK, vec![None; BLOCKS_MAX as usize], true, size).expect("honest");
        let (mut position, mut steps) = (0, 0);
        while position < size {
            let Step::Send(end) = blocks.step(position, size) else { panic!("all is sent: {position}") };
            assert_eq!(end, position + run * BLOCK, "part of the run, and more than nothing");
            (position, steps) = (end, steps + 1);
        }
        assert_eq!((position, steps), (size, BLOCKS_MAX / run));
    }

    #[test]
    fn no_file_has_more_blocks_than_are_kept() {
        for size in [0, 1, 1 << 30, BLOCKS_MAX * BLOCK, BLOCKS_MAX * BLOCK + 1, i64::MAX as u64] {
            for wanted in [0, BLOCK, 1 << 20, 3 << 20, 16 << 20] {
                let block = block_bytes(size, wanted);
                assert!(size.div_ceil(block) <= BLOCKS_MAX && block >= wanted.max(BLOCK), "{size} {wanted}");
                assert!(block.is_power_of_two());
            }
        }
        assert_eq!(block_bytes(1 << 44, 16 << 20), 16 << 20);
        assert_eq!(block_bytes(1 << 45, 16 << 20), 32 << 20);
        for (shift, short) in [(0, 16), (32, 16), (34, 18), (36, 20), (40, 20), (41, 21)] {
            assert_eq!(block_bytes(1 << shift, 0), 1 << short, "{shift}");
        }
    }

    #[test]
    fn what_no_receiver_says_is_refused() {
        let (length, more, behind) =
            ("block length", "digests of more blocks than the file has", "digests after the last block");
        for (said, error) in [
            (vec![(0, 1, false)], length),
            (vec![(BLOCK / 2, 1, false)], length),
            (vec![(BLOCK, 1, false), (2 * BLOCK, 1, true)], length),
            (vec![(BLOCK, 402, true)], more),
            (vec![(BLOCK, 200, false), (BLOCK, 202, true)], more),
            (vec![(1 << 63, 2, true)], more),
            (vec![(BLOCK, 0, true), (BLOCK, 1, true)], behind),
        ] {
            let mut blocks = Blocks::default();
            let outcome =
                said.iter().try_for_each(|&(bytes, count, is_last)| blocks.take(bytes, some(count), is_last, SIZE));
            assert_eq!(outcome, Err(error), "{said:?}");
        }
        let size = 2 * BLOCKS_MAX * BLOCK;
        assert_eq!(Blocks::default().take(BLOCK, some(BLOCKS_MAX as usize + 1), false, size), Err(more));
    }
}
