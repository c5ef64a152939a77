//! Trees within one host: the walk of a tree and the sink of a tree, joined in this process.
//!
//! The copying thread walks. It reads small files into chunks of records, as for another host, and the sink's threads
//! make the entries. The sink's threads also copy large files, range by range. Where the file system can, large files
//! share their blocks with the source, or are copied by the server that has both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flume::{Receiver, Sender, bounded};

use super::sink::{Local, Refused, Report, SendAnswer, TreeSink};
use super::source::{Next, TreeSource};
use crate::fs::direct::Tally;
use crate::fs::source::Part;

/// Size of a chunk in bytes, large enough for the walk to take files of 128 KiB into their records.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A chunk is handed on when it has this many bytes, so that the sink is not without work for long.
const DUE_BYTES: usize = 128 << 10;

/// Number of chunks in use.
const CHUNKS: usize = 8;

/// A chunk of records. Its buffer is given back for more records when its entries have been made.
struct Chunk {
    bytes: Vec<u8>,
    length: usize,
    free: Sender<Vec<u8>>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let _ = self.free.send(std::mem::take(&mut self.bytes));
    }
}

/// Copies all of `source`. Ends early when `stop` is set. `tick` is called several times a second.
///
/// # Errors
///
/// [`Refused`]: what stopped the copy. Published files are kept.
pub fn copy(
    source: &Arc<TreeSource>,
    sink: &mut TreeSink,
    stop: &Arc<AtomicBool>,
    mut tick: impl FnMut(),
) -> Result<Report, Refused> {
    let (free, chunks) = bounded(CHUNKS);
    for _ in 0..CHUNKS {
        let _ = free.send(Vec::new());
    }
    let done = give(source, sink, stop, &mut tick, (&free, &chunks));
    if done.is_err() {
        source.cancel();
        sink.discard();
    }
    done?;
    sink.finish()
}

fn give(
    source: &Arc<TreeSource>,
    sink: &mut TreeSink,
    stop: &Arc<AtomicBool>,
    tick: &mut impl FnMut(),
    (free, chunks): (&Sender<Vec<u8>>, &Receiver<Vec<u8>>),
) -> Result<(), Refused> {
    let mut target = chunks.recv().expect("we hold a sender ourselves");
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Refused::Data("the copy of the tree was aborted"));
        }
        tick();
        target.resize(CHUNK_BYTES, 0);
        match source.next(&mut target, DUE_BYTES, &Tally::default()) {
            Next::Part(Part { position, length, .. }) => {
                let bytes = std::mem::take(&mut target);
                sink.push(0, position, Arc::new(Chunk { bytes, length, free: free.clone() }))?;
                target = chunks.recv().expect("we hold a sender ourselves");
            }
            Next::Copy(range) => sink.copy(Local { range, stop: Arc::clone(stop), source: Arc::clone(source) })?,
            Next::Cold(..) => unreachable!("nothing is read of a source within this host"),
            Next::Later => sink.check()?,
            Next::Ended => return Ok(()),
        }
    }
}

/// Returns the function by which the sink answers the source: that nothing of a file exists. Within a host, comparing
/// takes longer than copying.
pub fn answer(source: &Arc<TreeSource>) -> SendAnswer {
    let source = Arc::clone(source);
    Box::new(move |answer| source.handle_answer(answer).expect("the sink of this process keeps to the protocol"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;
    use crate::options::TreeOptions;
    use crate::tree::Root;
    use crate::tree::sink::{Destination, Names};

    const RANGE_BYTES: usize = 32 << 20;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    /// Copies `from` to the name `copy` in `to`. `tick` gets the flag that stops the copy.
    fn copied(from: &Path, to: &Path, mut tick: impl FnMut(&AtomicBool)) -> Result<Report, Refused> {
        let roots = vec![Root::new(from, "copy")];
        let source = Arc::new(
            TreeSource::new(roots, CHUNK_BYTES, TreeOptions::default(), Arc::default()).expect("a source").local(),
        );
        let names = Names::Only(b"copy".to_vec());
        let options = Destination { names, is_local: true, ..Destination::default() };
        let mut sink = TreeSink::new(to, options, answer(&source)).expect("a sink");
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        copy(&source, &mut sink, &stop, move || tick(&told))
    }

    /// Files of lengths around those at which the treatment of a file changes.
    fn tree(directory: &Path) -> Vec<(String, Vec<u8>)> {
        let lengths = [0, 1, 4096, (128 << 10) - 1, 128 << 10, (128 << 10) + 1, CHUNK_BYTES, RANGE_BYTES + 5];
        let files: Vec<(String, Vec<u8>)> = lengths.iter().map(|&bytes| (format!("f{bytes}"), noise(bytes))).collect();
        fs::create_dir_all(directory.join("sub")).expect("a directory");
        for (name, bytes) in &files {
            fs::write(directory.join(name), bytes).expect("a file");
            fs::write(directory.join("sub").join(name), bytes).expect("a file");
        }
        files
    }

    fn directories() -> (TempDir, TempDir) {
        // The kernel copies nothing between two kinds of file systems, so the data is read and written.
        (TempDir::new().expect("a directory"), TempDir::new_in("/dev/shm").expect("a directory"))
    }

    #[test]
    fn files_of_all_lengths_within_a_file_system_and_across() {
        let (disk, memory) = directories();
        for (from, to) in [(disk.path(), disk.path()), (disk.path(), memory.path()), (memory.path(), memory.path())] {
            let files = tree(&from.join("tree"));
            let report = copied(&from.join("tree"), to, |_| {}).expect("a copy");
            assert_eq!(
                (report.files, report.figures.amount.directories, report.figures.failed),
                (2 * files.len() as u64, 2, 0)
            );
            assert_eq!(report.figures.amount.bytes, 2 * files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
            for (name, bytes) in &files {
                for path in [to.join("copy").join(name), to.join("copy/sub").join(name)] {
                    assert!(&fs::read(&path).expect("a copy") == bytes, "{}", path.display());
                }
            }
            fs::remove_dir_all(to.join("copy")).expect("it is there");
        }
    }

    #[test]
    fn holes_stay_holes() {
        let (disk, memory) = directories();
        for directory in [disk.path(), memory.path()] {
            let path = directory.join("sparse");
            let file = fs::File::create(&path).expect("a file");
            file.set_len(200 << 20).expect("a length");
            file.write_all_at(&noise(10_000), 100 << 20).expect("data");
            let report = copied(&path, directory, |_| {}).expect("a copy");
            let (copy, source) = (fs::metadata(directory.join("copy")).expect("a copy"), file.metadata().expect("it"));
            assert_eq!(copy.len(), source.len());
            assert!(copy.blocks() <= source.blocks() + 8, "{} of {} blocks", copy.blocks(), source.blocks());
            assert!(report.figures.amount.bytes < 1 << 20, "{} bytes", report.figures.amount.bytes);
            let mut data = vec![0; 10_000];
            let copy = fs::File::open(directory.join("copy")).expect("a copy");
            copy.read_exact_at(&mut data, 100 << 20).expect("data");
            assert!(data == noise(10_000));
        }
    }

    #[test]
    fn a_copy_that_is_stopped_gives_nothing_its_name() {
        let (disk, _) = directories();
        tree(&disk.path().join("tree"));
        let mut ticks = 0;
        let start = Instant::now();
        let stopped = copied(&disk.path().join("tree"), disk.path(), |stop| {
            ticks += 1;
            stop.store(ticks == 2, Ordering::Relaxed);
        });
        assert!(stopped.is_err() && start.elapsed() < Duration::from_secs(10));
        assert!(!disk.path().join("copy").exists());
        copied(&disk.path().join("tree"), disk.path(), |_| {}).expect("run again, it goes on");
        let names: Vec<_> =
            fs::read_dir(disk.path()).expect("it").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names.len(), 2, "nothing is left: {names:?}");
    }

    #[test]
    fn a_file_that_is_stopped_in_the_middle_is_not_published() {
        let (disk, memory) = directories();
        fs::write(disk.path().join("large"), noise(RANGE_BYTES)).expect("a file");
        let roots = vec![Root::new(disk.path().join("large"), "large")];
        let source = Arc::new(
            TreeSource::new(roots, CHUNK_BYTES, TreeOptions::default(), Arc::default()).expect("a source").local(),
        );
        let options = Destination { is_local: true, ..Destination::default() };
        let mut sink = TreeSink::new(memory.path(), options, answer(&source)).expect("a sink");
        let mut target = vec![0; CHUNK_BYTES];
        loop {
            // The caller notices the stop only after the last record.
            let stop = Arc::new(AtomicBool::new(true));
            match source.next(&mut target, DUE_BYTES, &Tally::default()) {
                Next::Part(part) => {
                    let bytes = Arc::new(target[..part.length].to_vec());
                    sink.push(0, part.position, bytes).expect("taken");
                }
                Next::Copy(range) => sink.copy(Local { range, stop, source: Arc::clone(&source) }).expect("taken"),
                Next::Later => {}
                other => {
                    assert!(matches!(other, Next::Ended));
                    break;
                }
            }
        }
        sink.finish().expect("all records have come");
        assert!(!memory.path().join("large").exists());
    }

    #[test]
    fn a_file_that_shrinks_is_named_and_the_others_are_copied() {
        let (disk, memory) = directories();
        let tree_path = disk.path().join("tree");
        tree(&tree_path);
        let large = tree_path.join(format!("f{}", RANGE_BYTES + 5));
        let roots = vec![Root::new(tree_path, "copy")];
        let source = Arc::new(
            TreeSource::new(roots, CHUNK_BYTES, TreeOptions::default(), Arc::default()).expect("a source").local(),
        );
        let options = Destination { is_local: true, ..Destination::default() };
        let mut sink = TreeSink::new(memory.path(), options, answer(&source)).expect("a sink");
        let stop = Arc::default();
        let mut is_shrunk = false;
        let report = copy(&source, &mut sink, &stop, || {
            // When the file has been announced, as the eighth entry, and none of it has been read.
            if !is_shrunk && source.sent().figures.amount.entries >= 8 {
                is_shrunk = true;
                fs::File::options().write(true).open(&large).expect("it").set_len(10).expect("shorter");
            }
        });
        let report = report.expect("the others");
        let failures = source.sent().failures;
        assert!(is_shrunk && failures.len() == 1, "{failures:?}");
        assert_eq!(report.figures.failed_there, 1, "{report:?}");
        assert!(!memory.path().join("copy").join(large.file_name().expect("a name")).exists());
    }
}
