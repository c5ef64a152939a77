//! Body of the fuzz target. It also runs as a test over the corpus.

use super::*;

/// Everything read from a connection: for each chunk the payload's length and how much of it arrived, the
/// control frames, and the error.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    chunks: Vec<(usize, usize)>,
    frames: Vec<Vec<u8>>,
    error: Option<LaneError>,
}

/// Reads a connection that delivers `step` bytes at a time.
fn read(bytes: &[u8], step: usize) -> Heard {
    let (mut heard, mut chunks, mut start, mut missing) = (Heard::default(), 0_u8, 0_usize, 0_usize);
    let mut end = 0;
    while end < bytes.len() {
        end = (end + step).min(bytes.len());
        loop {
            let landed = missing.min(end - start);
            if let Some((_, have)) = heard.chunks.last_mut() {
                *have += landed;
            }
            start += landed;
            missing -= landed;
            if missing > 0 {
                break;
            }
            let record = match next_record(&bytes[start..end], chunks) {
                Ok(Some(record)) => record,
                Ok(None) => {
                    assert!(end - start < RECORD_BYTES_MAX, "a record that never ends");
                    break;
                }
                Err(error) => {
                    heard.error = Some(error);
                    return heard;
                }
            };
            start += record.bytes();
            match record {
                Record::Chunk { header, wire_bytes } => {
                    assert_eq!(header[0], CHUNK_KIND);
                    chunks = chunks.wrapping_add(1);
                    missing = wire_bytes;
                    heard.chunks.push((wire_bytes, 0));
                }
                Record::Control(sealed) => {
                    assert!((1..=CONTROL_BYTES_MAX).contains(&sealed.len()));
                    heard.frames.push(sealed.to_vec());
                }
            }
        }
    }
    heard
}

/// Reads all records of one connection. The result must be the same however the bytes are split.
pub fn records(bytes: &[u8]) {
    let whole = read(bytes, bytes.len());
    for step in [1, 7, 64, 1000] {
        assert_eq!(read(bytes, step), whole);
    }
}

/// The checked-in corpus: target, name and bytes of each seed.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut header = [0; CHUNK_HEADER_BYTES];
    header[0] = CHUNK_KIND;
    header[4] = 5;
    let mut empty = header;
    empty[4] = 0;
    let frame = |chunks, sealed: &[u8]| {
        let mut record = control_record(sealed);
        set_chunks(&mut record, chunks);
        record
    };
    let mixed = [&frame(0, b"first")[..], &header, b"12345", &empty, &frame(2, b"second")].concat();
    vec![
        ("transport_tcp", "mixed", mixed),
        ("transport_tcp", "longest", frame(0, &[7; CONTROL_BYTES_MAX])),
        ("transport_tcp", "missing-chunk", [&header[..], b"12345", &frame(2, b"x")].concat()),
    ]
}
