//! Writes the report and the drawing. Whether they can be written is checked before anything is measured.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::OutputOptions;
use crate::cli::report::{are_one_file, is_output};
use crate::fault::{Exit, Failure, escaped, printable};
use crate::fs::{directory_of, standard};

/// Refuses files that cannot be written, and two names of the same file.
///
/// # Errors
///
/// Exit 1.
pub(super) fn check(options: &OutputOptions) -> Result<(), Failure> {
    let json = options.json.as_deref().filter(|path| *path != "-");
    for path in json.into_iter().chain(options.plot.as_deref()) {
        let may = match path.metadata() {
            Ok(found) if found.is_dir() => Err(Errno::ISDIR),
            Ok(_) => access(path, Access::WRITE_OK),
            Err(_) => access(directory_of(path), Access::WRITE_OK | Access::EXEC_OK),
        };
        may.map_err(|error| unwritable(Exit::Usage, path, &error.into()))?;
    }
    match json.zip(options.plot.as_deref()) {
        Some((json, plot)) if are_one_file(json, plot) => {
            let line = format!("--json and --plot name the same file, {}; name two", escaped(plot.as_os_str()));
            Err(Exit::Usage.with(line))
        }
        _ => Ok(()),
    }
}

/// Writes a file of the report.
///
/// # Errors
///
/// Exit 6 if the file cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    // If standard output were opened by its name, the tables written to the same file would be overwritten.
    let opened = if is_output(path) { standard::output() } else { File::create(path) };
    let written = opened.and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| unwritable(Exit::Destination, path, &error))
}

fn unwritable(exit: Exit, path: &Path, error: &io::Error) -> Failure {
    let (name, reason) = (escaped(path.as_os_str()), printable(&error.to_string()));
    exit.with(format!("cannot write {name}: {reason}"))
}
