//! Prints what protection and compression cost on this machine, on one core, with chunks of 1 MiB in the cache.
//!
//! `cargo run --release -p rd-proto --example speed`

#![allow(clippy::disallowed_types, clippy::disallowed_macros, reason = "it measures, which rd-proto itself never does")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rd_proto::compress::{Compressor, Decompressor, Method};
use rd_proto::frame::{CHUNK_BYTES_MAX, ChunkHeader};
use rd_proto::record::{Accept, PayloadKeys, PayloadSecret};

/// How long each figure is measured.
const MEASURED: Duration = Duration::from_millis(300);

fn main() {
    let plain: Vec<u8> = (0..CHUNK_BYTES_MAX as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let bytes = CHUNK_BYTES_MAX as u32;
    for sealed in [true, false] {
        let name = if sealed { "AES-256-GCM" } else { "checksum" };
        let mut header = ChunkHeader { sealed, wire_bytes: bytes, plain_bytes: bytes, ..Default::default() };
        let mut payload = plain.clone();
        print_rate(&format!("{name} seal"), || keys.seal(&mut header, &mut payload));
        let (mut header, mut payload) = (header, plain.clone());
        keys.seal(&mut header, &mut payload);
        let ciphertext = payload.clone();
        print_rate(&format!("{name} open, with a copy"), || {
            payload.copy_from_slice(&ciphertext);
            assert!(keys.open(&header, &mut payload), "untouched");
        });
    }
    let text = (0..).flat_map(|line: u32| format!("{line} the quick brown fox {}\n", line % 977).into_bytes());
    let text: Vec<u8> = text.take(CHUNK_BYTES_MAX).collect();
    let (mut compressor, mut decompressor) = (Compressor::default(), Decompressor::default());
    let mut wire = vec![0; CHUNK_BYTES_MAX];
    let mut back = vec![0; CHUNK_BYTES_MAX];
    let levels = [-5, 1, 3, 6].map(|level| Method::Zstd { level });
    for method in [Method::Lz4].into_iter().chain(levels) {
        let wire_bytes = compressor.compress(method, &text, &mut wire).expect("text shrinks");
        let name = format!("{method:?} {:.1}:1", CHUNK_BYTES_MAX as f64 / wire_bytes as f64);
        print_rate(&format!("{name} compress"), || {
            black_box(compressor.compress(method, &text, &mut wire));
        });
        print_rate(&format!("{name} decompress"), || {
            decompressor
                .decompress(method.kind(), &wire[..wire_bytes], &mut back, CHUNK_BYTES_MAX)
                .expect("as announced");
        });
        print_rate(&format!("{method:?} compress of noise"), || {
            black_box(compressor.compress(method, &plain, &mut wire));
        });
    }
}

fn print_rate(name: &str, mut once: impl FnMut()) {
    once();
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < MEASURED {
        once();
        count += 1;
    }
    let seconds = start.elapsed().as_secs_f64() / f64::from(count);
    println!("{name:36} {:8.2} GB/s", CHUNK_BYTES_MAX as f64 / seconds / 1e9);
}
