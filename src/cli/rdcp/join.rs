//! `rdcp --join`: adds a host to a copy that runs on this host, and waits for the outcome.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::cli::options::ReportOptions;
use crate::cli::report::{Kept, Reporter};
use crate::control::join::{JoinError, JoinRequest, ask};
use crate::fault::{Exit, Failure, escaped};

/// Adds the host named by `paths`: HOST or HOST:PATH.
///
/// # Errors
///
/// Fails as the copy to the new host does. Exit 3 if there is no such job; exit 4 if the job ends without telling the
/// outcome for the host.
pub(super) fn join(job: &str, paths: &[OsString], options: &ReportOptions) -> Result<(), Failure> {
    let [target] = paths else { return Err(Exit::Usage.with("--join takes one argument: HOST or HOST:PATH")) };
    let reporter = Reporter::open("rdcp", options, &[], &Kept::default())?;
    reporter.begin();
    let request = JoinRequest { target: target.as_bytes().to_vec() };
    // The job itself shows the progress.
    let (failure, last_line) = match ask(job, &request, |_| {}) {
        Ok(outcome) => {
            // The line comes from another process.
            let line = escaped(outcome.line.as_ref());
            match outcome.exit {
                0 => (None, Some(line)),
                code => (Some(Exit::from_code(code).with(line)), None),
            }
        }
        Err(error) => {
            let exit = match error {
                JoinError::Closed | JoinError::Silent => Exit::LinkLost,
                JoinError::Protocol => Exit::Protocol,
                JoinError::NoJob | JoinError::Io(_) => Exit::Connect,
            };
            (Some(exit.with(format!("job {}: {error}", escaped(job.as_ref())))), None)
        }
    };
    reporter.finish(None, failure, None, last_line.as_deref())
}
