//! Compares a directory of any host with a manifest on this host: `rdcp --check`.
//!
//! The manifest goes to the agent of the directory's host in pieces, of which only a few are in flight. Differences
//! come back in the same way as entries. So neither side holds all of the manifest or all of the differences.

use std::ffi::OsStr;
use std::io::{self, Read};

use super::entries::TakeEntries;
use super::{Job, Setup, Update};
use crate::control::frames::{self, MANIFEST_PIECE_BYTES, MANIFEST_WINDOW, Message};
use crate::fault::{Exit, Failure};
use crate::job::hop::Side;
use crate::options::TransferOptions;
use crate::tree::stats::TreeFigures;

/// Parameters of a comparison.
pub(crate) struct Check<'a> {
    /// Host of the directory; empty for this host.
    pub(crate) host: &'a OsStr,
    pub(crate) directory: Vec<u8>,
    /// Whether data in the page cache may be compared instead of data read from the disk.
    pub(crate) is_cached: bool,
}

/// What stopped a comparison.
pub(crate) enum Stopped {
    /// The manifest is invalid or cannot be read, for this reason.
    Manifest(String),
    /// Any other failure.
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Check<'_> {
    /// Makes the comparison. `take` receives the differences.
    ///
    /// # Errors
    ///
    /// Fails with the reason if not everything was compared.
    pub(crate) fn run(self, setup: Setup, manifest: impl Read, take: TakeEntries) -> Result<TreeFigures, Stopped> {
        let mut job = Job::new(setup, false)?;
        let host = job.host(self.host)?;
        job.greet()?;
        job.take_entries(take)?;
        let check = frames::Job::Check { directory: self.directory, is_cached: self.is_cached };
        let hop = job.copy_within(host, check, &TransferOptions::default());
        let mut pieces = Pieces { manifest, left: MANIFEST_WINDOW, is_over: false };
        pieces.send(&mut job, hop)?;
        while let Some(update) = job.next_of(hop) {
            match update {
                Update::End(_, _, Message::ManifestTaken) => {
                    pieces.left = (pieces.left + 1).min(MANIFEST_WINDOW);
                    pieces.send(&mut job, hop)?;
                }
                update => job.check(update)?,
            }
        }
        let report = job.hops[hop].report(Side::From).cloned().ok_or_else(|| job.lost(host))?;
        match &report.fault {
            Some(fault) if fault.exit == Exit::Source.code() => Err(Stopped::Manifest(fault.detail.clone())),
            Some(fault) => Err(job.failure(host, fault).into()),
            None => Ok(report.tree),
        }
    }
}

/// The manifest while it is being sent.
struct Pieces<R> {
    manifest: R,
    /// Number of pieces that may be sent now.
    left: u32,
    is_over: bool,
}

impl<R: Read> Pieces<R> {
    /// Sends as many pieces as may be in flight.
    fn send(&mut self, job: &mut Job, hop: usize) -> Result<(), Stopped> {
        while self.left > 0 && !self.is_over {
            let mut piece = Vec::with_capacity(MANIFEST_PIECE_BYTES);
            let read = (&mut self.manifest).take(MANIFEST_PIECE_BYTES as u64).read_to_end(&mut piece);
            read.map_err(|error: io::Error| Stopped::Manifest(error.to_string()))?;
            self.left -= 1;
            self.is_over = piece.is_empty();
            job.send_end(hop, Side::From, &Message::Manifest(piece));
        }
        Ok(())
    }
}
