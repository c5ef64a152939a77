//! Tests, and parts of tests, that this machine cannot run.
//!
//! Once a test has begun, the harness knows only "passed" and "failed". `tests/run` names a file in RD_NOT_RUN; what is
//! listed there it counts as skipped, not as passed.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

/// Reports that the current test has not run. Call it at most once in a test, which then returns.
pub fn not_run(reason: impl Display) {
    list("test", &reason);
}

/// Reports that the current test has run without a part.
pub fn partly_run(reason: impl Display) {
    list("part", &reason);
}

fn list(what: &str, reason: &dyn Display) {
    let thread = std::thread::current();
    let line = format!("{what}\t{}\t{reason}\n", thread.name().unwrap_or("a thread"));
    eprint!("not run: {line}");
    let Some(path) = std::env::var_os("RD_NOT_RUN") else { return };
    // One write, since other processes append to the same file.
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file that tests/run may write to");
    file.write_all(line.as_bytes()).expect("appended");
}
