//! Entries at the top that get their names only at the end, because the tree must be proven first.

use std::sync::Arc;

use super::directory::OpenDirectory;
use super::entry::Large;
use super::jobs::Job;

/// Maximum number of directories held back, and of files; each of them is open. Further ones are not held.
const HELD_MAX: usize = 64;

/// Entries held back. Dropping them publishes them, or discards them if the sink has been stopped.
#[derive(Default)]
pub(super) struct Held {
    directories: Vec<Arc<OpenDirectory>>,
    pub(super) files: Vec<Arc<Large>>,
    /// The only entry, if it is a small file.
    pub(super) job: Option<Job>,
}

impl Held {
    pub(super) fn hold_directory(&mut self, directory: &Arc<OpenDirectory>) {
        if self.directories.len() < HELD_MAX {
            self.directories.push(Arc::clone(directory));
        }
    }

    pub(super) fn hold_file(&mut self, file: &Arc<Large>) {
        if self.files.len() < HELD_MAX {
            self.files.push(Arc::clone(file));
        }
    }

    /// Holds a job back. Returns the job if it makes nothing, asks the sender for something, or is not the first.
    pub(super) fn hold_job(&mut self, job: Job) -> Option<Job> {
        if self.job.is_some() || matches!(&job, Job::Make(_, batch) if batch.offsets.is_empty() || batch.has_listed()) {
            return Some(job);
        }
        // The chunk goes back to the session, which waits for all of them before it ends.
        self.job = Some(match job {
            Job::Make(chunk, batch) => Job::Make(Arc::new((*chunk).as_ref().to_vec()), batch),
            other => other,
        });
        None
    }
}
