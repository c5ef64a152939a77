//! Answers of a tree's receiver while the tree is being sent.
//!
//! Answers reach the sender once, whole and in order. Each begins with a byte for its kind. A list in an answer has no
//! count and extends to the answer's end. All of it comes from a peer, so decoding checks every value.

use super::TreeError;
use crate::control::ANSWER_BYTES_MAX;
use crate::reader::{ReadError, Reader};

/// Minimum length of a block for which a digest is made, in bytes.
pub const BLOCK_BYTES_MIN: u64 = 64 << 10;

/// Maximum number of digests in one answer, including absent ones.
pub const DIGESTS_MAX: usize = (ANSWER_BYTES_MAX - BLOCKS_HEAD_BYTES) / (1 + DIGEST_BYTES);

/// Maximum length of the encoded verdicts in one answer, in bytes.
pub const VERDICTS_BYTES_MAX: usize = ANSWER_BYTES_MAX - 9;

const DIGEST_BYTES: usize = 16;

/// Length of the fields before the digests: kind, item, length of a block, and whether the answer is the last.
const BLOCKS_HEAD_BYTES: usize = 7;

/// The first bytes of the BLAKE3 of a block; `None` if the receiver does not have the whole block.
pub type Digest = Option<[u8; DIGEST_BYTES]>;

/// An answer of the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Digests of the next blocks of a large file, as they are at the receiver, from the beginning of the file on.
    Blocks {
        /// Number of the file.
        item: u32,
        /// Length of each block except the file's last, in bytes: a power of two, at least [`BLOCK_BYTES_MIN`], and the
        /// same in all answers about one file.
        block_bytes: u64,
        /// Whether no more digests of this file follow, because the receiver has nothing beyond these blocks.
        is_last: bool,
        /// Digests of the blocks, at most [`DIGESTS_MAX`]. Empty only in the last answer about the file.
        digests: Vec<Digest>,
    },
    /// The receiver had nothing at the place of a directory, so all files below it may be sent with their contents at
    /// once.
    Fresh {
        /// Number of the directory's record among the records of directories.
        directory: u64,
    },
    /// Verdicts on the next listed files.
    Verdicts {
        /// Number of the first of these files.
        first: u64,
        /// One verdict for each file, at least one; encoded at most [`VERDICTS_BYTES_MAX`] bytes.
        verdicts: Vec<Verdict>,
    },
}

/// Verdict of the receiver on a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has the file already.
    Same,
    /// The file is to be sent.
    Wanted,
    /// The file is to be sent. Once its record has come, the receiver answers with digests of the file's blocks that it
    /// has.
    Blocks,
    /// The first bytes of the BLAKE3 of the contents at the receiver. The file is to be sent if its digest differs.
    Digest([u8; DIGEST_BYTES]),
    /// The receiver keeps what it has, whatever that is, or is to have nothing there. Further names of the file are
    /// then sent as separate files.
    Left,
}

impl Verdict {
    /// Returns whether nothing more of the file is to be sent.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Same | Self::Left)
    }

    /// Returns the length of the encoded verdict, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        if matches!(self, Self::Digest(_)) { 1 + DIGEST_BYTES } else { 1 }
    }
}

const KIND_BLOCKS: u8 = 1;
const KIND_FRESH: u8 = 2;
const KIND_VERDICTS: u8 = 3;

impl Answer {
    /// Creates the answer that the receiver has nothing of a large file.
    pub fn nothing(item: u32) -> Self {
        Self::Blocks { item, block_bytes: BLOCK_BYTES_MIN, is_last: true, digests: Vec::new() }
    }

    /// Encodes the answer. The limits of the fields keep it within [`ANSWER_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Blocks { item, block_bytes, is_last, digests } => {
                debug_assert!(block_bytes.is_power_of_two() && *block_bytes >= BLOCK_BYTES_MIN);
                out.push(KIND_BLOCKS);
                out.extend(item.to_le_bytes());
                out.extend([block_bytes.trailing_zeros() as u8, u8::from(*is_last)]);
                for digest in digests {
                    out.push(u8::from(digest.is_some()));
                    out.extend(digest.iter().flatten());
                }
            }
            Self::Fresh { directory } => {
                out.push(KIND_FRESH);
                out.extend(directory.to_le_bytes());
            }
            Self::Verdicts { first, verdicts } => {
                out.push(KIND_VERDICTS);
                out.extend(first.to_le_bytes());
                for verdict in verdicts {
                    match verdict {
                        Verdict::Same => out.push(0),
                        Verdict::Wanted => out.push(1),
                        Verdict::Blocks => out.push(2),
                        Verdict::Digest(digest) => {
                            out.push(3);
                            out.extend(digest);
                        }
                        Verdict::Left => out.push(4),
                    }
                }
            }
        }
        debug_assert!(out.len() <= ANSWER_BYTES_MAX);
        out
    }

    /// Decodes an answer of a peer.
    ///
    /// # Errors
    ///
    /// [`TreeError`] if the answer is cut off, says nothing, or has a value out of bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, TreeError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(TreeError::Length);
        }
        let mut reader = Reader { rest: bytes };
        let answer = match reader.u8()? {
            KIND_BLOCKS => {
                let (item, shift, is_last) = (reader.u32()?, reader.u8()?, reader.bool()?);
                let block_bytes = 1_u64.checked_shl(shift.into()).filter(|&bytes| bytes >= BLOCK_BYTES_MIN);
                let block_bytes = block_bytes.ok_or(TreeError::Value)?;
                let digest = |reader: &mut Reader<'_>| {
                    if reader.bool()? { reader.array().map(Some) } else { Ok(None) }
                };
                let digests = to_the_end(&mut reader, digest)?;
                // Absent digests take one byte each, so the answer's length alone does not limit their number.
                if digests.len() > DIGESTS_MAX || digests.is_empty() && !is_last {
                    return Err(TreeError::Length);
                }
                Self::Blocks { item, block_bytes, is_last, digests }
            }
            KIND_FRESH => Self::Fresh { directory: reader.u64()? },
            KIND_VERDICTS => {
                let first = reader.u64()?;
                let verdicts = to_the_end(&mut reader, |reader| {
                    Ok(match reader.u8()? {
                        0 => Verdict::Same,
                        1 => Verdict::Wanted,
                        2 => Verdict::Blocks,
                        3 => Verdict::Digest(reader.array()?),
                        4 => Verdict::Left,
                        _ => return Err(ReadError::Flag),
                    })
                })?;
                if verdicts.is_empty() || first.checked_add(verdicts.len() as u64).is_none() {
                    return Err(TreeError::Value);
                }
                Self::Verdicts { first, verdicts }
            }
            _ => return Err(TreeError::Value),
        };
        if reader.rest.is_empty() { Ok(answer) } else { Err(TreeError::Length) }
    }
}

fn to_the_end<T>(
    reader: &mut Reader<'_>,
    next: impl Fn(&mut Reader<'_>) -> Result<T, ReadError>,
) -> Result<Vec<T>, ReadError> {
    let mut list = Vec::new();
    while !reader.rest.is_empty() {
        list.push(next(reader)?);
    }
    Ok(list)
}

/// Body of the fuzz target: no input may panic, and what decodes must encode to the same bytes.
#[doc(hidden)]
pub mod fuzz {
    use super::*;

    /// Decodes `bytes` as one answer.
    pub fn tree_answer(bytes: &[u8]) {
        let Ok(answer) = Answer::decode(bytes) else { return };
        assert_eq!(answer.encode(), bytes);
    }

    /// The seeds that are checked in as corpus: target, name and bytes of each.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        samples().into_iter().map(|(name, answer, _)| ("tree_answer", name, answer.encode())).collect()
    }

    /// One answer of each kind, as `docs/PROTOCOL.md` shows it.
    pub fn samples() -> Vec<(&'static str, Answer, &'static str)> {
        let digests = vec![Some([0xaa; 16]), None];
        let verdicts =
            vec![Verdict::Same, Verdict::Wanted, Verdict::Blocks, Verdict::Digest([0xbb; 16]), Verdict::Left];
        vec![
            (
                "blocks",
                Answer::Blocks { item: 7, block_bytes: 16 << 20, is_last: true, digests },
                "01 07000000 18 01 01 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00",
            ),
            ("fresh", Answer::Fresh { directory: 3 }, "02 0300000000000000"),
            (
                "verdicts",
                Answer::Verdicts { first: 9, verdicts },
                "03 0900000000000000 00 01 02 03 bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 04",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_have_these_bytes_and_come_back() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md");
        let document = std::fs::read_to_string(document).expect("the document");
        for (name, answer, golden) in fuzz::samples() {
            let bytes = answer.encode();
            let made: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(made, golden.replace(' ', ""), "{name}");
            assert!(document.contains(golden), "docs/PROTOCOL.md lacks {golden}");
            assert_eq!(Answer::decode(&bytes), Ok(answer));
        }
    }

    #[test]
    fn the_largest_answers_fit() {
        let digests = vec![Some([1; 16]); DIGESTS_MAX];
        let verdicts = vec![Verdict::Digest([1; 16]); VERDICTS_BYTES_MAX / Verdict::Digest([1; 16]).encoded_bytes()];
        for answer in [
            Answer::Blocks { item: 1, block_bytes: 1 << 63, is_last: false, digests },
            Answer::Verdicts { first: 0, verdicts },
            Answer::Verdicts { first: 0, verdicts: vec![Verdict::Same; VERDICTS_BYTES_MAX] },
        ] {
            let bytes = answer.encode();
            assert!(bytes.len() <= ANSWER_BYTES_MAX);
            assert_eq!(Answer::decode(&bytes), Ok(answer));
        }
    }

    #[test]
    fn answers_out_of_bounds_are_refused() {
        let blocks = |shift, is_last, rest: &[u8]| [&[1, 7, 0, 0, 0, shift, is_last], rest].concat();
        let verdicts = |first: u64, rest: &[u8]| [&[3][..], &first.to_le_bytes(), rest].concat();
        for (bytes, error) in [
            (vec![], TreeError::Short),
            (vec![0], TreeError::Value),
            (vec![4], TreeError::Value),
            (blocks(15, 1, &[]), TreeError::Value),
            (blocks(64, 1, &[]), TreeError::Value),
            (blocks(255, 1, &[]), TreeError::Value),
            (blocks(16, 2, &[]), TreeError::Value),
            (blocks(16, 0, &[]), TreeError::Length),
            (blocks(16, 1, &[2]), TreeError::Value),
            (blocks(16, 1, &[1; 16]), TreeError::Short),
            (blocks(16, 1, &[0; DIGESTS_MAX + 1]), TreeError::Length),
            (vec![2; 8], TreeError::Short),
            (vec![2; 10], TreeError::Length),
            (verdicts(0, &[]), TreeError::Value),
            (verdicts(0, &[5]), TreeError::Value),
            (verdicts(0, &[0, 3, 0]), TreeError::Short),
            (verdicts(u64::MAX, &[0]), TreeError::Value),
            (verdicts(0, &[0; VERDICTS_BYTES_MAX + 1]), TreeError::Length),
        ] {
            assert_eq!(Answer::decode(&bytes), Err(error), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(
            kind in 0..5_u8,
            bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..100),
        ) {
            fuzz::tree_answer(&[&[kind], &bytes[..]].concat());
        }
    }
}
