//! Measurements with targets: `make bench`, or `cargo bench --bench bench` after `cargo build --release --bins`.
//!
//! `ONLY=tcp,memory` runs some rows ([`ROWS`] lists all names). `RUNS=5` sets the number of rounds, and `SIZE_MIB=1024`
//! the size of streams and of large files, of which sweeps use a part. `FULL=1` runs all rows, with 9 rounds and 4096
//! MiB. `QUICK=1` uses small sizes and few rounds, and leaves out rows that need the guest or a long time: it shows
//! that things work, and supports no claims. `RD_BENCH_VERBOSE=1` prints each turn as it ends.
//!
//! Both ends of everything run on this machine, which should have nothing else to do, in a network namespace (see
//! `field`). Contestants take turns within each round, after a first round that does not count, so that anything that
//! slows the machine for a while slows all of them. Figures are medians, with the interquartile range as their spread.
//! So are ratios, which are taken within each round. How to add a row: docs/performance/adding.md.
//!
//! Results go to the terminal and to build/bench (see `record`). `--report` writes them into docs/performance.
//!
//! Exits with 1 if any row misses its target or, unless the run is quick, could not be measured although it has one.

mod chart;
mod check;
mod cold;
mod copy;
mod field;
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
mod rails;
mod record;
mod report;
mod scaling;
mod shell;
mod site;
mod sizes;
mod slurm;
mod sshd;
mod streams;
mod sync;

use std::process::ExitCode;

use harness::*;
use record::Run;

use How::{By, Contest, Guest};
use When::{Bench, Full, Quick};

type Measure = fn() -> Result<Vec<Row>>;

/// The runs that include a row. With `ONLY`, exactly the named rows are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Only in `make bench-full`.
    Full,
    /// Also in `make bench`.
    Bench,
    /// Also in `make bench` and `make bench-quick`.
    Quick,
}

/// How a row is measured.
#[derive(Clone, Copy)]
enum How {
    By(Measure),
    /// In the contest of streams, which all such rows share.
    Contest,
    /// In the guest with this device.
    Guest(&'static str),
}

/// All rows in the order of their measurement: rows with a fixed target first. docs/performance/method.md describes
/// each of them. `make bench` runs the rows that decide something, and for each kind of work a row that takes less
/// time. It takes at most 25 minutes on two processors.
const ROWS: [(&str, When, How); 52] = [
    ("tcp", Quick, Contest),
    ("encrypted", Quick, Contest),
    ("scp", Quick, Contest),
    ("peers", Quick, Contest),
    ("cpu", Quick, Contest),
    ("compress", Quick, By(streams::compress)),
    ("compress-slow", Bench, By(streams::compress_slow)),
    ("sizes", Quick, By(sizes::rows)),
    ("cold", Bench, By(cold::rows)),
    ("memory", Bench, By(streams::memory)),
    ("byte", Quick, By(streams::one_byte)),
    ("copy-small", Quick, By(copy::small)),
    ("copy-big", Bench, By(copy::big)),
    ("copy-byte", Bench, By(copy::byte)),
    ("copy-local", Bench, By(copy::local)),
    ("copy-resume", Bench, By(copy::resume)),
    ("copy-cold", Bench, By(copy::cold)),
    ("sync-small", Bench, By(sync::small)),
    ("sync-login", Bench, By(sync::login)),
    ("sync-delta", Bench, By(sync::delta)),
    ("sync-renamed", Bench, By(sync::renamed)),
    ("check", Bench, By(check::rows)),
    ("pipe-hop", Bench, By(pipe::hop)),
    ("hops", Quick, By(pipe::hops)),
    ("pipe-three", Bench, By(pipe::three)),
    ("pipe-cpu", Bench, By(pipe::processor_time)),
    ("pipe-setup", Bench, By(pipe::setup)),
    ("rdsh", Bench, By(shell::rows)),
    ("many", Bench, By(many::many)),
    ("long", Bench, By(long::long)),
    ("rails", Bench, By(rails::rails)),
    ("rails-rdma", Bench, Guest("siw")),
    ("rdma", Bench, Guest("rxe")),
    ("scaling", Bench, By(scaling::rows)),
    ("rdsh-tools", Full, By(shell::tools)),
    ("sync-reflink", Full, By(sync::reflinked)),
    ("sync-touched", Full, By(sync::touched)),
    ("sync-appended", Full, By(sync::appended)),
    ("sync-million", Full, By(sync::million)),
    ("copy-memory", Full, By(copy::memory)),
    ("many-faults", Full, By(many::faults)),
    ("many-joins", Full, By(many::joins)),
    ("many-cpu", Full, By(many::processor_time)),
    ("sbcast", Full, By(slurm::rows)),
    ("long-lanes", Full, By(long::lanes)),
    ("perf", Full, Guest("rxe")),
    ("siw", Full, Guest("siw")),
    // Rows without a target.
    ("sync-pages", Full, By(sync::pages)),
    ("lanes", Full, By(streams::lanes)),
    ("sinks", Full, By(streams::sinks)),
    ("trees", Full, By(copy::trees)),
    ("instructions", Full, By(instructions::rows)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<&str>>().as_slice() {
        [] => {
            field::enter();
            suite()
        }
        ["--in-guest", device, only] => {
            let mut run = Run::begin(String::new(), false);
            guest::in_guest(device, only, &mut run);
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
    let known = ROWS.map(|(name, ..)| name);
    if let Some(unknown) = only.split(',').find(|name| !name.is_empty() && !known.contains(name)) {
        eprintln!("bench: ONLY={unknown}: no such row; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let least = by_kind(Quick, Bench, Full);
    let is_wanted = |name: &str, when: When| match only.as_str() {
        "" => least == Full || when == Quick || when == least,
        only => only.split(',').any(|other| other == name),
    };
    let wanted = ROWS.iter().filter(|(name, when, _)| is_wanted(name, *when));
    let wanted: Vec<&(&str, When, How)> = wanted.collect();
    let wants = |row: &str| wanted.iter().any(|(name, ..)| *name == row);
    let mut run = Run::begin(command(), quick());
    for (name, value) in &run.head.machine {
        println!("{name}: {value}");
    }
    println!("congestion control over loopback: {}", run.head.control);
    if quick() {
        println!("A quick run, with small sizes and few rounds: not for claims.");
    }
    let mut begun: Vec<&str> = Vec::new();
    for (name, _, how) in &wanted {
        match how {
            By(measure) => run.found(measure().unwrap_or_else(|error| vec![Row::broken(name, &error)])),
            // The first of these rows measures all of them that are wanted.
            Contest if !begun.contains(&"streams") => {
                begun.push("streams");
                run.found(streams::streams(&wants).unwrap_or_else(|error| vec![Row::broken("streams", &error)]));
                if wants("cpu") {
                    run.found(copy::cpu().unwrap_or_else(|error| vec![Row::broken("cpu", &error)]));
                }
            }
            Guest(device) if !begun.contains(device) => {
                begun.push(device);
                let rows = wanted.iter().filter(|(.., how)| matches!(how, Guest(of) if of == device));
                let rows = rows.map(|(row, ..)| *row).collect::<Vec<&str>>().join(",");
                if let Err(error) = guest::guest(device, &rows, &mut run) {
                    run.found(vec![Row::broken(&rows, &error)]);
                }
            }
            _ => {}
        }
    }
    report::table(&run);
    println!("every round: {}", record::records_in(&record::directory()).display());
    let rows = run.rows();
    let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let [failed, open, unmeasured] = [Row::has_failed, Row::is_open, Row::is_unmeasured].map(count);
    println!("{} rows: {failed} FAIL, {open} NOT SHOWN, {unmeasured} with a target NOT MEASURED", rows.len());
    if failed > 0 || (unmeasured > 0 && !quick()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the command that repeats this run.
fn command() -> String {
    let set = ["ONLY", "RUNS", "SIZE_MIB"]
        .map(|name| std::env::var(name).map(|value| format!("{name}={value} ")).unwrap_or_default());
    format!("{}make bench{}", set.concat(), by_kind("-quick", "", "-full"))
}
