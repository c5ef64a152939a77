//! Checks that the data received is what the source has, before its entries get their names: see
//! [`crate::tree::proof`].

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blake3::Hash;
use rd_proto::tree::Record;

use super::entry::Large;
use super::jobs::Job;
use super::judge::Wanted;
use super::{Refused, Shared, TreeSink};
use crate::options::TreeOptions;
use crate::tree::Fault;
use crate::tree::manifest::digest::RangeDigest;
use crate::tree::proof::{Contents, Expected, Outline, Passing};

/// What has been received so far, and what it must be.
pub(super) struct Proving {
    /// The records as the sender has sent them, also of directories that cannot be made here.
    pub(super) outline: Outline,
    expected: Expected,
}

impl Proving {
    pub(super) fn new(expected: Expected, options: &TreeOptions, is_single: bool) -> Self {
        let mut outline = Outline::new(options);
        outline.is_single = is_single;
        Self { outline, expected }
    }
}

impl Shared {
    /// Adds the contents of a file that could not be made to what has been received. They are a part of the tree
    /// nevertheless: an entry that fails must not make the sender look like a forger, and a forger must not be able to
    /// hide behind an entry that fails.
    pub(super) fn sum_unkept(&self, path: &[u8], data: &[u8]) {
        if let Some(contents) = self.contents() {
            contents.add(path, data.len() as u64, blake3::hash(data).as_bytes());
        }
    }

    /// Does the same with a large file of which `data_bytes` have come.
    pub(super) fn sum_large(&self, file: &Passing, data_bytes: u64) {
        if let Some(contents) = self.contents() {
            file.sum(contents, data_bytes);
        }
    }

    pub(super) fn contents(&self) -> Option<&Contents> {
        self.manifest.get()?.contents.as_ref()
    }
}

impl TreeSink {
    /// Adds the contents of a file that is skipped to what has been received.
    pub(super) fn sum_skipped(&self, name: &[u8], data: &[u8]) {
        if let Some(proving) = &self.proving {
            self.shared.sum_unkept(&proving.outline.path(name), data);
        }
    }

    /// Returns where the contents of a large file go that cannot be made; `None` if nothing is compared.
    pub(super) fn unkept(&self, name: &[u8], size: u64) -> Option<Passing> {
        Some(Passing::new(self.proving.as_ref()?.outline.path(name), size))
    }

    /// Whether a tree with another proof is refused.
    pub(super) fn is_bound(&self) -> bool {
        self.proving.as_ref().is_some_and(|proving| proving.expected.is_bound)
    }

    /// Checks that the contents of a listed file come with the metadata that were listed: only those are proven.
    ///
    /// # Errors
    ///
    /// [`Refused::Forged`].
    pub(super) fn check_as_listed(&self, wanted: &Wanted, record: &Record<'_>) -> Result<(), Refused> {
        match record.metadata() {
            Some(came) if self.is_bound() && !wanted.is_as_listed(&came) => Err(Refused::Forged),
            _ => Ok(()),
        }
    }

    /// Compares what has been received with what it must be. All data has been written, and entries held back have no
    /// names yet.
    ///
    /// # Errors
    ///
    /// [`Refused::Forged`].
    pub(super) fn prove(&mut self) -> Result<(), Refused> {
        let Some(Proving { outline, expected }) = self.proving.take() else { return Ok(()) };
        self.shared.finish_manifest();
        self.shared.check()?;
        let Some(contents) = self.shared.contents() else { return Ok(()) };
        if let Some(held) = &self.held {
            for file in &held.files {
                match file.prove() {
                    Some(digest) => contents.add(&file.directory.told_path(&file.name), file.size, digest.as_bytes()),
                    None => file.sum_unkept(),
                }
            }
            if let (Some(Job::Make(chunk, batch)), Some(Some(top))) = (&held.job, self.levels.first()) {
                for record in batch.records((**chunk).as_ref()) {
                    if let Record::File { name, data, .. } = record {
                        let name = top.final_name(name);
                        contents.add(&top.told_path(name), data.len() as u64, blake3::hash(data).as_bytes());
                    }
                }
            }
        }
        // A file held back may have turned out to be unreadable.
        self.shared.check()?;
        let found = outline.finish(contents);
        // A process that is not root cannot give files away, and was given no files of other users.
        let is_root = rustix::process::geteuid().is_root();
        let is_right = found.entries == expected.proof.entries && (!is_root || found.rights == expected.proof.rights);
        if !is_right && expected.is_bound {
            self.shared.is_trusted.store(false, Relaxed);
            return Err(Refused::Forged);
        }
        self.is_other = !is_right;
        Ok(())
    }
}

impl Large {
    /// Adds the contents of the file, which was not made, to what has been received, if all of it has come.
    pub(super) fn sum_unkept(&self) {
        let digest = self.digest.as_ref().filter(|_| self.is_complete.load(Acquire));
        if let (Some(digest), Some(contents)) = (digest, self.shared.contents())
            && let Ok(found) = digest.finish(|_, _| Err(()))
        {
            contents.add(&self.directory.told_path(&self.name), self.size, found.as_bytes());
        }
    }

    /// Returns the digest of the file that will get this name, before it does; `None` if none will.
    fn prove(&self) -> Option<Hash> {
        if !self.is_complete.load(Acquire) || self.has_failed.load(Relaxed) {
            return None;
        }
        let all = RangeDigest::new(self.size);
        let is_stopped = || self.shared.is_stopped.load(Relaxed);
        let found = match &self.basis {
            Some(basis) if basis.is_all(self.directory.fd.as_fd(), &self.name) => {
                all.finish_from(basis.file(), is_stopped).map_err(Fault::from)
            }
            _ => self
                .fill()
                .and_then(|()| Ok(self.digest.as_ref().unwrap_or(&all).finish_from(&self.partial.file, is_stopped)?)),
        };
        let fail = |fault: &Fault| {
            self.fail_once(fault.clone());
            // What came whole is summed without being read.
            let is_known = || self.digest.as_ref().is_some_and(|digest| digest.finish(|_, _| Err(())).is_ok());
            if self.shared.is_bound() && !is_known() {
                self.shared.report_unread(&self.path(), fault.clone(), false);
            }
        };
        found.inspect_err(fail).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::sync::Arc;

    use rd_proto::tree::{Metadata, Time};

    use super::super::Destination;
    use super::super::tests::chunk;
    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::tree::entries::EntryStream;
    use crate::tree::proof::TreeProof;

    const END: Record<'static> = Record::End { failures: 0 };

    /// A sink that expects another tree than comes.
    fn sink(top: &Path, options: TreeOptions, is_bound: bool) -> TreeSink {
        let expected = Some(Expected { proof: TreeProof::default(), is_bound });
        let destination = Destination { expected, ..options.into() };
        let mut sink = TreeSink::new(top, destination, Box::new(|_| {})).expect("a sink");
        sink.list_to(&Arc::new(EntryStream::new(Box::new(|_| {}))));
        sink
    }

    /// Without its contents, the tree may be another one, and the sender is not to blame for that. The source itself may
    /// send another.
    #[test]
    fn a_kept_file_that_cannot_be_read_makes_nobody_a_forger() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("f"), "contents").expect("a file");
        let stat = fs::metadata(scratch.path().join("f")).expect("it");
        let modified = Time { seconds: stat.mtime(), nanoseconds: stat.mtime_nsec() as u32 };
        let (uid, gid, mode) = (stat.uid(), stat.gid(), stat.mode() & 0o7777);
        let metadata = Metadata { uid, gid, mode, modified, ..Metadata::ZERO };
        let kept = Record::Listed { name: b"f", metadata, size: stat.len() };
        let run = |is_bound| {
            let mut sink = sink(scratch.path(), TreeOptions { sync: true, ..TreeOptions::default() }, is_bound);
            sink.push(0, 0, chunk(&[kept, END])).expect("taken");
            sink.finish().map(|report| report.figures.failed)
        };
        for error in [libc::EIO, libc::EACCES, libc::ESTALE] {
            let refused = where_calls_fail(&[libc::SYS_pread64], error, || run(true));
            assert!(matches!(&refused, Err(Refused::Io(fact)) if fact.errno == error), "{refused:?}");
            let failed = where_calls_fail(&[libc::SYS_pread64], error, || run(false));
            assert_eq!(failed, Ok(1), "the source's own copy, of which this file fails");
        }
        assert_eq!((run(true), run(false)), (Err(Refused::Forged), Ok(0)), "it can be read");
    }

    /// It is read for the manifest alone.
    #[test]
    fn a_further_name_that_cannot_be_read_fails_alone() {
        let run = || {
            let scratch = tempfile::tempdir().expect("a directory");
            let mut sink = sink(scratch.path(), TreeOptions { manifest: true, ..TreeOptions::default() }, true);
            let metadata = Metadata { mode: 0o640, ..Metadata::ZERO };
            let file = Record::File { name: b"f", metadata, data: b"contents" };
            let link = Record::HardLink { name: b"g", first: b"f" };
            sink.push(0, 0, chunk(&[file, link, END])).expect("taken");
            let outcome = sink.finish().map(drop);
            (outcome, crate::locked(&sink.shared.failures).count)
        };
        let unread = where_calls_fail(&[libc::SYS_pread64], libc::EIO, run);
        assert_eq!(unread, (Err(Refused::Forged), 1), "the tree has been compared");
        assert_eq!(run(), (Err(Refused::Forged), 0), "it can be read");
    }

    /// A range that cannot be joined with others is read for the digest: at the top before the file gets its name, and
    /// further down after that.
    #[test]
    fn nor_does_a_new_file_that_cannot_be_read_back() {
        const SIZE: u64 = 1 << 20;
        let run = |is_held: bool| {
            let scratch = tempfile::tempdir().expect("a directory");
            let mut sink = sink(scratch.path(), TreeOptions::default(), true);
            let metadata = Metadata { mode: 0o750, ..Metadata::ZERO };
            if !is_held {
                sink.push(0, 0, chunk(&[Record::Directory { name: b"d", metadata }]))?;
            }
            let file = Record::Large { name: b"f", metadata, item: 1, size: SIZE, is_sparse: true };
            sink.push(0, 0, chunk(&[file]))?;
            sink.push(1, 0, Arc::new(vec![7; 4000]))?;
            sink.push(0, 0, chunk(&[Record::Closed { item: 1, data_bytes: 4000, is_intact: true }]))?;
            if !is_held {
                sink.push(0, 0, chunk(&[Record::Leave]))?;
            }
            sink.push(0, 0, chunk(&[END]))?;
            sink.finish().map(drop)
        };
        for is_held in [true, false] {
            for error in [libc::EIO, libc::EACCES, libc::ESTALE] {
                let refused = where_calls_fail(&[libc::SYS_pread64], error, || run(is_held));
                assert!(matches!(&refused, Err(Refused::Io(fact)) if fact.errno == error), "{is_held} {refused:?}");
            }
            assert_eq!(run(is_held), Err(Refused::Forged), "it can be read");
        }
    }
}
