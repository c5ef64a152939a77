//! The format of a TCP connection, as a function of its bytes: chunks and control frames in sequence.

use rd_proto::frame::{CHUNK_HEADER_BYTES, CONTROL_BYTES_MAX};

use crate::transport::LaneError;

/// First byte of a control record.
const CONTROL_KIND: u8 = b'F';

/// First byte of a chunk: the magic of its header.
const CHUNK_KIND: u8 = b'C';

/// Number of bytes before a control frame: kind, number of chunks so far (modulo 256), length.
const CONTROL_PREFIX_BYTES: usize = 4;

/// Maximum number of bytes in a record, not counting a chunk's payload.
pub(super) const RECORD_BYTES_MAX: usize = CONTROL_BYTES_MAX + CONTROL_PREFIX_BYTES;

/// The record at the front of the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// A chunk's header; `wire_bytes` of payload follow. Only the header's first byte has been checked.
    Chunk { header: &'a [u8; CHUNK_HEADER_BYTES], wire_bytes: usize },
    /// A whole control frame, sealed: 1 to [`CONTROL_BYTES_MAX`] bytes.
    Control(&'a [u8]),
}

impl Record<'_> {
    /// Number of bytes that the record takes up, without a chunk's payload.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Chunk { .. } => CHUNK_HEADER_BYTES,
            Self::Control(sealed) => CONTROL_PREFIX_BYTES + sealed.len(),
        }
    }
}

/// Encodes a control frame. [`set_chunks`] fills in the number of chunks when the frame is sent.
pub(crate) fn control_record(sealed: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(CONTROL_PREFIX_BYTES + sealed.len());
    record.extend([CONTROL_KIND, 0]);
    record.extend((sealed.len() as u16).to_le_bytes());
    record.extend(sealed);
    record
}

/// Sets how many chunks, modulo 256, went before this control record on its connection.
pub(super) fn set_chunks(record: &mut [u8], chunks: u8) {
    record[1] = chunks;
}

/// Reads the record at the front of `staged`; `None` while the record is incomplete. `chunks` is the number of chunks
/// before it on this connection, modulo 256. At most [`RECORD_BYTES_MAX`] bytes are ever needed.
///
/// # Errors
///
/// [`LaneError::Framing`] if the record is invalid; then nothing after it can be read either.
pub(crate) fn next_record(staged: &[u8], chunks: u8) -> Result<Option<Record<'_>>, LaneError> {
    match staged.first() {
        None => Ok(None),
        Some(&CHUNK_KIND) => Ok(staged.first_chunk::<CHUNK_HEADER_BYTES>().map(|header| {
            let wire_bytes = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes")) as usize;
            Record::Chunk { header, wire_bytes }
        })),
        Some(&CONTROL_KIND) => {
            let Some(prefix) = staged.first_chunk::<CONTROL_PREFIX_BYTES>() else { return Ok(None) };
            let length = usize::from(u16::from_le_bytes([prefix[2], prefix[3]]));
            if length == 0 || length > CONTROL_BYTES_MAX {
                return Err(LaneError::Framing("a control frame of invalid length"));
            }
            if prefix[1] != chunks {
                // Nothing else would reveal this: the lane is alive, but the session would wait for
                // a chunk that never comes.
                return Err(LaneError::Framing("chunks are missing or repeated"));
            }
            Ok(staged[CONTROL_PREFIX_BYTES..].get(..length).map(Record::Control))
        }
        Some(_) => Err(LaneError::Framing("neither a chunk nor a control frame")),
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut record = control_record(b"sealed");
        set_chunks(&mut record, 9);
        assert_eq!(record[..4], [b'F', 9, 6, 0]);
        assert_eq!(next_record(&record, 9), Ok(Some(Record::Control(b"sealed"))));
        for cut in 0..record.len() {
            assert_eq!(next_record(&record[..cut], 9), Ok(None), "cut at {cut}");
        }
        assert!(next_record(&record, 8).is_err());
    }

    #[test]
    fn bad_beginnings_are_refused_at_once() {
        for bytes in [&b"X"[..], &[CONTROL_KIND, 0, 0, 0], &[CONTROL_KIND, 0, 0xff, 0xff]] {
            assert!(next_record(bytes, 0).is_err(), "{bytes:?}");
        }
    }
}
