//! Where a report and a drawing go. Both are opened before anything is measured, so that they cannot be missing in the end.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;

use super::OutputOptions;
use crate::fault::{Exit, Failure, escaped, os, printable};
use crate::fs::prepared::Prepared;
use crate::fs::standard;
use crate::signals;

/// Those of `--json` and `--plot`, where they name one.
pub(super) struct Outputs {
    pub(super) json: Option<Output>,
    pub(super) plot: Option<Output>,
}

/// One of them.
pub(super) struct Output {
    name: String,
    place: Place,
}

enum Place {
    /// It gets its name when it is whole.
    File(Arc<Mutex<Option<Prepared>>>),
    /// A device, a FIFO or standard output, which is written as it is.
    Stream(File),
}

/// Opens what is asked for.
///
/// # Errors
///
/// Exit 1 where it cannot be written.
pub(super) fn open(options: &OutputOptions) -> Result<Outputs, Failure> {
    let json = options.json.as_deref().filter(|path| *path != "-").map(Output::open).transpose()?;
    let plot = options.plot.as_deref().map(Output::open).transpose()?;
    let made = json.iter().chain(&plot).filter_map(|output| match &output.place {
        Place::File(file) => Some(Arc::downgrade(file)),
        Place::Stream(_) => None,
    });
    let made: Vec<_> = made.collect();
    if !made.is_empty() {
        let forwarding = signals::forward(false, move |signal| {
            if signal == libc::SIGTSTP {
                signals::stop_here();
                return true;
            }
            // What has no name yet would be left. One that is held is about to have it.
            for file in made.iter().filter_map(Weak::upgrade) {
                drop(file.try_lock().ok().and_then(|mut file| file.take()));
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            true
        });
        // Where signals cannot be handled, such a file is left: no reason not to measure.
        forwarding.into_iter().for_each(signals::Forwarding::keep);
    }
    Ok(Outputs { json, plot })
}

impl Output {
    fn open(path: &Path) -> Result<Self, Failure> {
        let name = escaped(path.as_os_str());
        let is_file = path.metadata().map_or(true, |found| found.is_file());
        let place = match is_file {
            // By its name a file would be replaced that the tables go to as well.
            _ if path == "/dev/stdout" => standard::output().map(Place::Stream),
            true => Prepared::open(path).map(|file| Place::File(Arc::new(Mutex::new(Some(file))))),
            false => File::options().write(true).open(path).map(Place::Stream),
        };
        let place = place.map_err(|error| unwritable(Exit::Usage, &name, &error))?;
        Ok(Self { name, place })
    }

    /// All there is to write.
    ///
    /// # Errors
    ///
    /// Exit 6.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &self.place {
            Place::File(file) => {
                let file = file.lock().expect("no panic with it locked");
                file.as_ref().map_or(Ok(()), |file| file.publish(bytes))
            }
            Place::Stream(file) => (&*file).write_all(bytes),
        };
        written.map_err(|error| unwritable(Exit::Destination, &self.name, &error))
    }
}

fn unwritable(exit: Exit, name: &str, error: &io::Error) -> Failure {
    let reason = Errno::from_io_error(error).map_or_else(|| printable(&error.to_string()), os);
    Failure::new(exit, format!("cannot write {name}: {reason}"))
}
