//! What must hold, measured: `make bench`, or `cargo bench --bench bench` after `cargo build --release --bins`.
//!
//! `ONLY=tcp,memory` runs some rows: tcp, encrypted, scp, cold, rdma, siw, memory and byte of the stream commands; copy-small,
//! copy-big, copy-byte, copy-local, copy-memory and copy-resume of rdcp; pipe-hop, pipe-three, pipe-cpu and pipe-setup of
//! rdpipe. `RUNS=9` sets the number of rounds, `SIZE_MIB=4096` the size of streams for tcp, encrypted, scp and rdpipe, and
//! of rdcp's large files. Both ends of everything run on
//! this machine, which should have nothing else to do. Contestants take turns, one after the other in each round, after
//! a round that does not count: what slows the machine for a while then slows all of them. Figures are medians, with the
//! interquartile range as their spread; so are ratios, taken within each round.
//!
//! Exits with 1 if any row misses its target.

mod cold;
mod copy;
mod guest;
mod harness;
mod peers;
mod pipe;
mod sshd;
mod streams;

use std::process::ExitCode;

use guest::{guest, in_guest};
use harness::*;
use streams::{memory, one_byte, throughput};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, device] = arguments.as_slice()
        && flag == "--in-guest"
    {
        return finish(in_guest(device));
    }
    let only = std::env::var("ONLY").unwrap_or_default();
    let wanted = |row: &str| only.is_empty() || only.split(',').any(|name| name == row);
    let streams = ["tcp", "encrypted", "scp", "cold", "rdma", "siw", "memory", "byte"];
    let known = [&streams[..], &copy::ROWS.map(|(name, _)| name), &pipe::ROWS.map(|(name, _)| name)].concat();
    if let Some(unknown) = only.split(',').find(|name| !name.is_empty() && !known.contains(name)) {
        eprintln!("bench: ONLY={unknown}: no such row; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    describe_machine();
    let mut rows = Vec::new();
    if ["tcp", "encrypted", "scp"].iter().any(|row| wanted(row)) {
        rows.extend(throughput(&wanted).unwrap_or_else(|error| vec![Row::broken("tcp, encrypted, scp", &error)]));
    }
    if wanted("cold") {
        rows.extend(cold::rows().unwrap_or_else(|error| vec![Row::broken("cold", &error)]));
    }
    if wanted("memory") {
        rows.extend(memory().unwrap_or_else(|error| vec![Row::broken("memory", &error)]));
    }
    if wanted("byte") {
        rows.push(one_byte().unwrap_or_else(|error| Row::broken("byte", &error)));
    }
    for (name, measure) in copy::ROWS.into_iter().chain(pipe::ROWS) {
        if wanted(name) {
            rows.extend(measure().unwrap_or_else(|error| vec![Row::broken(name, &error)]));
        }
    }
    let mut guests_ok = true;
    for (row, device) in [("rdma", "rxe"), ("siw", "siw")] {
        if wanted(row) {
            guests_ok &= guest(device);
        }
    }
    if rows.is_empty() {
        return ExitCode::from(u8::from(!guests_ok));
    }
    let code = finish(Ok(rows));
    if guests_ok { code } else { ExitCode::FAILURE }
}

fn finish(rows: Result<Vec<Row>>) -> ExitCode {
    let rows = rows.unwrap_or_else(|error| vec![Row::broken("bench", &error)]);
    println!("\n{:<42} {:<20} {:<40} verdict", "row", "target", "measured (median, quartiles)");
    for row in &rows {
        println!("{:<42} {:<20} {:<40} {}", row.name, row.target, row.measured, row.verdict);
    }
    if rows.iter().any(|row| row.verdict.starts_with("FAIL")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
