//! Tests, and parts of tests, that this machine cannot run.
//!
//! Once a test has begun, the harness knows only "passed" and "failed". `tests/run` names a file in RD_NOT_RUN; what is
//! listed there it counts as skipped, not as passed.

use std::cell::Cell;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

thread_local! {
    /// The case that runs in this thread, where the harness does not name its threads after their tests.
    static CASE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Names the case that begins in this thread.
#[allow(dead_code, reason = "only for test binaries with their own `main`")]
pub fn in_case(name: &'static str) {
    CASE.set(Some(name));
}

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
    let name = CASE.get().or(thread.name()).unwrap_or("a thread");
    let line = format!("{what}\t{name}\t{reason}\n");
    eprint!("not run: {line}");
    let Some(path) = std::env::var_os("RD_NOT_RUN") else { return };
    // One write, since other processes append to the same file.
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file that tests/run may write to");
    file.write_all(line.as_bytes()).expect("appended");
}
