//! Entries at the top that get their names only at the end, because the tree must be proven first.

use std::sync::Arc;

use super::directory::OpenDirectory;
use super::entry::Large;
use super::jobs::Job;
use crate::tree::Fault;

/// Maximum number of directories held back, and of files; each of them is open. Further ones are not held.
const HELD_MAX: usize = 64;

/// Maximum number of further names of files held back. They are made at the end, and each may hold a directory open.
const LINKS_MAX: usize = 1024;

/// Why a further name of a file held back is not made.
const TOO_MANY: &str = "cannot be created: too many hard links wait for files that get their names at the end; \
                        copy to this host alone";

/// Entries held back. Dropping them publishes them, or discards them if the sink has been stopped.
#[derive(Default)]
pub(super) struct Held {
    directories: Vec<Arc<OpenDirectory>>,
    pub(super) files: Vec<Arc<Large>>,
    /// Number of further names that wait for the files.
    links: usize,
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

    /// Puts off a further name of the file that is held back and is to get the name `first` at the top. `None` if no
    /// such file is held back.
    ///
    /// # Errors
    ///
    /// Fails if too many names have been put off.
    pub(super) fn link(
        &mut self,
        first: &[u8],
        directory: &Arc<OpenDirectory>,
        name: &[u8],
    ) -> Option<Result<(), Fault>> {
        let file = self.files.iter().find(|file| file.name == first)?;
        if self.links == LINKS_MAX {
            return Some(Err(Fault::Detail(TOO_MANY)));
        }
        self.links += 1;
        file.link_later(Arc::clone(directory), name);
        Some(Ok(()))
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use rd_proto::tree::{Metadata, Record};

    use super::super::tests::chunk;
    use super::super::{Destination, Report, TreeSink};
    use super::*;

    const SIZE: u64 = 1 << 20;

    /// Receives a large file "a", and after all of its data a directory "b" with these further names of it.
    fn receive(top: &Path, is_intact: bool, names: &[Vec<u8>]) -> Report {
        let destination = Destination { awaits_proof: true, ..Destination::default() };
        let mut sink = TreeSink::new(top, destination, Box::new(|_| {})).expect("a sink");
        let metadata = Metadata { mode: 0o640, ..Metadata::ZERO };
        let file = Record::Large { name: b"a", metadata, item: 1, size: SIZE, is_sparse: false };
        sink.push(0, 0, chunk(&[file])).expect("taken");
        sink.push(1, 0, Arc::new(vec![7; SIZE as usize])).expect("taken");
        let mut records = vec![
            Record::Closed { item: 1, data_bytes: SIZE, is_intact },
            Record::Directory { name: b"b", metadata: Metadata { mode: 0o750, ..metadata } },
        ];
        records.extend(names.iter().map(|name| Record::HardLink { name, first: b"a" }));
        records.extend([Record::Leave, Record::End { failures: 0 }]);
        sink.push(0, 0, chunk(&records)).expect("taken");
        sink.finish().expect("whole")
    }

    /// Until the end there may be an older file under the first name.
    #[test]
    fn a_further_name_of_a_file_held_back_is_made_with_that_file() {
        for (has_old, is_intact) in [(true, true), (false, true), (true, false)] {
            let scratch = tempfile::tempdir().expect("a directory");
            let [first, further] = ["a", "b/further"].map(|path| scratch.path().join(path));
            if has_old {
                fs::write(&first, "old").expect("a file");
            }
            let report = receive(scratch.path(), is_intact, &[b"further".to_vec()]);
            let what = format!("{has_old} {is_intact}: {:?}", report.failures);
            assert_eq!(report.figures.failed, u64::from(!is_intact), "{what}");
            if is_intact {
                assert!(fs::read(&further).expect("made") == vec![7; SIZE as usize], "{what}");
                let inode = |path| fs::metadata(path).expect("made").ino();
                assert_eq!(inode(&first), inode(&further), "{what}");
            } else {
                assert!(!further.exists(), "{what}");
                assert_eq!(fs::read(&first).expect("it stays"), b"old", "{what}");
            }
        }
    }

    #[test]
    fn further_names_that_wait_are_bounded() {
        let scratch = tempfile::tempdir().expect("a directory");
        let names: Vec<_> = (0..=LINKS_MAX).map(|number| format!("{number:04}").into_bytes()).collect();
        let report = receive(scratch.path(), true, &names);
        assert_eq!((report.figures.failed, report.others), (1, LINKS_MAX as u64));
        assert_eq!(report.failures[0].detail, TOO_MANY.as_bytes());
        assert_eq!(fs::read_dir(scratch.path().join("b")).expect("a directory").count(), LINKS_MAX);
    }
}
