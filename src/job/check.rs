//! Compares a directory of any host with a manifest on this host: `rdcp --check`.
//!
//! The manifest goes to the agent of the directory's host in pieces, of which only a few are in flight. Differences
//! come back in the same way as entries. So neither side holds all of the manifest or all of the differences.

use std::ffi::OsStr;
use std::io::Read;

use flume::Sender;

use super::entries::TakeEntries;
use super::launching::{Heard, Post};
use super::{HERE, Job, Setup, Update};
use crate::control::frames::{self, Fault, MANIFEST_PIECE_BYTES, MANIFEST_WINDOW, Message};
use crate::fault::{Exit, Failure};
use crate::job::hop::Side;
use crate::options::TransferOptions;
use crate::tree::stats::TreeFigures;

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

/// Compares a directory with a manifest. `host` is that of the directory, empty for this host; `take` receives the
/// differences. With `is_cached`, data in the page cache may be compared instead of data read from the disk.
///
/// # Errors
///
/// Fails with the reason if not everything was compared.
pub(crate) fn compare(
    setup: Setup,
    host: &OsStr,
    directory: Vec<u8>,
    is_cached: bool,
    manifest: impl Read + Send + 'static,
    take: TakeEntries,
) -> Result<TreeFigures, Stopped> {
    let mut job = Job::new(setup, false)?;
    let host = job.host(host)?;
    job.greet()?;
    job.take_entries(take)?;
    let check = frames::Job::Check { directory, is_cached };
    let hop = job.copy_within(host, check, &TransferOptions::default());
    let permits = read(manifest, job.post.clone())?;
    let mut in_flight = 0;
    while let Some(update) = job.next_of(hop) {
        match update {
            Update::Host(HERE, piece @ Message::Manifest(_)) => {
                in_flight += 1;
                job.send_end(hop, Side::From, &piece);
            }
            Update::Host(HERE, Message::Failed(fault)) => return Err(Stopped::Manifest(fault.detail)),
            Update::End(_, _, Message::ManifestTaken) if in_flight > 0 => {
                in_flight -= 1;
                // Fails only once the whole manifest has been read.
                let _ = permits.send(());
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

/// Reads the manifest in a thread, because it may come from a program that is silent for any time, and signals and lost
/// agents must be handled meanwhile. The pieces are posted as messages of this host, the last of them empty; a manifest
/// that cannot be read, as a failure. Each piece takes a permit, so that only a few are on their way. Returns where
/// further permits are given.
///
/// The thread is not waited for. If it is still reading when the process exits, it ends with the process.
///
/// # Errors
///
/// Exit 3 if no thread can be started.
fn read(mut manifest: impl Read + Send + 'static, post: Post) -> Result<Sender<()>, Failure> {
    let (permits, permitted) = flume::bounded(MANIFEST_WINDOW as usize);
    for _ in 0..MANIFEST_WINDOW {
        permits.send(()).expect("there is room, and we hold the receiver");
    }
    let run = move || {
        for () in permitted {
            let mut piece = Vec::with_capacity(MANIFEST_PIECE_BYTES);
            let message = match (&mut manifest).take(MANIFEST_PIECE_BYTES as u64).read_to_end(&mut piece) {
                Ok(_) => Message::Manifest(piece),
                Err(error) => Message::Failed(Fault::plain(Exit::Source.code(), error.to_string())),
            };
            let is_last = !matches!(&message, Message::Manifest(piece) if !piece.is_empty());
            if post.send((HERE, Heard::Message(message))).is_err() || is_last {
                return;
            }
        }
    };
    let failed = |error| Exit::Connect.with(format!("cannot start a thread: {error}"));
    std::thread::Builder::new().name("manifest".to_owned()).stack_size(256 << 10).spawn(run).map_err(failed)?;
    Ok(permits)
}
