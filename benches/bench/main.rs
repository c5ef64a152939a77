//! What must hold, measured: `make bench`, or `cargo bench --bench bench` after `cargo build --release --bins`.
//!
//! `ONLY=tcp,memory` runs some rows ([`ROWS`] and the first ones of `streams`, `copy`, `pipe` and `many` name them all). `RUNS=9`
//! sets the number of rounds, `SIZE_MIB=4096` the size of streams and of large files; sweeps take a part of it. `QUICK=1`
//! takes small sizes and few rounds, and leaves out what needs the guest or long: to see that things work, not for claims.
//! `FULL=1` takes also what takes longest.
//! `RD_BENCH_VERBOSE=1` prints each turn as it ends.
//!
//! Both ends of everything run on this machine, which should have nothing else to do. Contestants take turns, one after
//! the other in each round, after a round that does not count: what slows the machine for a while then slows all of them.
//! Figures are medians, with the interquartile range as their spread; so are ratios, taken within each round.
//!
//! Results go to the terminal and to build/bench (see `record`); `--report` puts those into docs/performance.
//!
//! Exits with 1 if any row misses its target.

mod chart;
mod cold;
mod copy;
mod guest;
mod harness;
mod instructions;
mod long;
mod many;
mod net;
mod peers;
mod pipe;
mod place;
mod process;
mod record;
mod report;
mod shell;
mod site;
mod sizes;
mod sshd;
mod streams;
mod sync;

use std::process::ExitCode;

use harness::*;
use record::Record;

type Measure = fn() -> Result<Vec<Row>>;

/// What `ONLY` calls the rows, and what measures them; beside those that one contest of streams serves.
const ROWS: [(&str, Measure); 9] = [
    ("compress", streams::compress),
    ("compress-slow", streams::compress_slow),
    ("lanes", streams::lanes),
    ("sizes", sizes::rows),
    ("sinks", streams::sinks),
    ("cold", cold::rows),
    ("memory", streams::memory),
    ("byte", streams::one_byte),
    ("instructions", instructions::rows),
];

/// Rows in the guest, and the device that they need.
const IN_GUEST: [(&str, &str); 3] = [("rdma", "rxe"), ("perf", "rxe"), ("siw", "siw")];

/// What a quick run takes.
const QUICK: [&str; 12] =
    ["tcp", "encrypted", "scp", "peers", "cpu", "compress", "lanes", "sizes", "sinks", "byte", "copy-small", "hops"];

/// What only `make bench-full` takes: of each kind of work, `make bench` has a row that takes less.
const FULL: [&str; 5] = ["sync-touched", "sync-appended", "sync-million", "many-faults", "many-joins"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<&str>>().as_slice() {
        [] => suite(),
        ["--in-guest", device, only] => {
            let mut record = Record::begin(String::new(), false);
            guest::in_guest(device, only, &mut record);
            ExitCode::SUCCESS // its host judges
        }
        ["--report"] => match report::publish() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("bench: {error}; run `make bench` first");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: bench [--report]");
            ExitCode::from(2)
        }
    }
}

fn suite() -> ExitCode {
    let only = std::env::var("ONLY").unwrap_or_default();
    let measures: Vec<(&str, Measure)> = ROWS
        .into_iter()
        .chain(copy::ROWS)
        .chain(sync::ROWS)
        .chain(pipe::ROWS)
        .chain(shell::ROWS)
        .chain(many::ROWS)
        .chain(long::ROWS)
        .collect();
    let mut known: Vec<&str> = streams::CONTEST.to_vec();
    known.extend(measures.iter().map(|(name, _)| *name).chain(IN_GUEST.map(|(name, _)| name)));
    if let Some(unknown) = only.split(',').find(|name| !name.is_empty() && !known.contains(name)) {
        eprintln!("bench: ONLY={unknown}: no such row; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let wanted = |row: &str| match only.as_str() {
        "" if FULL.contains(&row) => std::env::var_os("FULL").is_some(),
        "" => !quick() || QUICK.contains(&row),
        only => only.split(',').any(|name| name == row),
    };
    let mut record = Record::begin(command(), quick());
    for (name, value) in &record.machine {
        println!("{name}: {value}");
    }
    if quick() {
        println!("A quick run, with small sizes and few rounds: not for claims.");
    }
    if streams::CONTEST.iter().any(|row| wanted(row)) {
        record.found(streams::streams(&wanted).unwrap_or_else(|error| vec![Row::broken("streams", &error)]));
    }
    if wanted("cpu") {
        record.found(copy::cpu().unwrap_or_else(|error| vec![Row::broken("cpu", &error)]));
    }
    for (name, measure) in measures {
        if wanted(name) {
            record.found(measure().unwrap_or_else(|error| vec![Row::broken(name, &error)]));
        }
    }
    for device in ["rxe", "siw"] {
        let rows = IN_GUEST.iter().filter(|(row, of)| *of == device && wanted(row));
        let rows = rows.map(|(row, _)| *row).collect::<Vec<&str>>().join(",");
        if !rows.is_empty()
            && let Err(error) = guest::guest(device, &rows, &mut record)
        {
            record.found(vec![Row::broken(&rows, &error)]);
        }
    }
    report::table(&record.rows);
    println!("\nevery round: {}", record::directory().join("results.json").display());
    if record.rows.iter().any(|row| row.verdict.starts_with("FAIL")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What repeats this run.
fn command() -> String {
    let set = ["ONLY", "RUNS", "SIZE_MIB"]
        .map(|name| std::env::var(name).map(|value| format!("{name}={value} ")).unwrap_or_default());
    format!("{}make bench{}", set.concat(), if quick() { "-quick" } else { "" })
}
