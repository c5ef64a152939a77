//! Sorts more data than memory should hold: sorted runs go to a file without a name, and are merged as they are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Take, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{unlinked, unlinked_anywhere};

/// Maximum size of the keys and values held in memory, in bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// Maximum number of runs in the file. At this number they are merged into one, so that merging needs no more memory.
const RUNS_MAX: usize = 64;

/// Number of bytes of a run read or written at once.
const RUN_READ_BYTES: usize = 16 << 10;

/// Sorts values by their keys. Of several values with one key, the last one pushed counts.
pub(crate) struct Sorter {
    /// Keys and values that are not in a run yet, one after another.
    bytes: Vec<u8>,
    /// For each record, where it begins, and the lengths of its key and value.
    records: Vec<(usize, usize, usize)>,
    /// The file for runs; made when it is first needed.
    file: Option<Arc<File>>,
    /// Where each run ends in the file.
    runs: Vec<u64>,
    buffer_bytes: usize,
    runs_max: usize,
}

impl Default for Sorter {
    /// Makes a sorter whose file, if one is needed, will be in the temporary directory.
    fn default() -> Self {
        let (buffer_bytes, runs_max) = (BUFFER_BYTES, RUNS_MAX);
        Self { bytes: Vec::new(), records: Vec::new(), file: None, runs: Vec::new(), buffer_bytes, runs_max }
    }
}

impl Sorter {
    /// Makes a sorter whose file is in this directory, without a name there.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be made.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(Arc::new(unlinked(directory)?)), ..Self::default() })
    }

    /// Adds a value.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be made, or takes no more.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let used = self.bytes.len() + key.len() + value.len() + self.records.len() * size_of::<(usize, usize, usize)>();
        if used > self.buffer_bytes && !self.records.is_empty() {
            self.spill()?;
        }
        self.records.push((self.bytes.len(), key.len(), value.len()));
        self.bytes.extend(key);
        self.bytes.extend(value);
        Ok(())
    }

    /// Returns all values, to be read in order.
    ///
    /// # Errors
    ///
    /// The error of the read or write that failed.
    pub fn finish(mut self) -> io::Result<Sorted> {
        if self.runs.is_empty() {
            self.sort();
            return Ok(Sorted::Memory { sorter: self, next: 0 });
        }
        self.spill()?;
        Ok(Sorted::Runs(Merge::new(&self.file()?, &self.runs)?))
    }

    fn file(&mut self) -> io::Result<Arc<File>> {
        let file = self.file.take().map_or_else(|| unlinked_anywhere().map(Arc::new), Ok)?;
        Ok(Arc::clone(self.file.insert(file)))
    }

    fn key(&self, &(at, key, _): &(usize, usize, usize)) -> &[u8] {
        &self.bytes[at..at + key]
    }

    fn sort(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        // Records with equal keys stay in the order in which they came.
        records.sort_unstable_by(|one, other| self.key(one).cmp(self.key(other)).then(one.0.cmp(&other.0)));
        self.records = records;
    }

    /// Returns the key and value of a record; `None` if the next record has the same key.
    fn record(&self, at: usize) -> Option<(&[u8], &[u8])> {
        let record = &self.records[at];
        let is_last = self.records.get(at + 1).is_none_or(|next| self.key(next) != self.key(record));
        let value = record.0 + record.1;
        is_last.then(|| (self.key(record), &self.bytes[value..value + record.2]))
    }

    /// Writes the records in memory to the file, as a run.
    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let file = self.file()?;
        let mut out = Run::begin(&file, self.runs.last().copied().unwrap_or_default());
        for (key, value) in (0..self.records.len()).filter_map(|at| self.record(at)) {
            out.write(key, value)?;
        }
        self.runs.push(out.end()?);
        self.bytes.clear();
        self.records.clear();
        if self.runs.len() == self.runs_max {
            self.merge_runs(&file)?;
        }
        Ok(())
    }

    /// Merges all runs into one, which is written behind them and then moved to the beginning of the file.
    fn merge_runs(&mut self, file: &Arc<File>) -> io::Result<()> {
        let start = self.runs.last().copied().unwrap_or_default();
        let mut out = Run::begin(file, start);
        let mut merge = Merge::new(file, &self.runs)?;
        while let Some((key, value)) = merge.next()? {
            out.write(key, value)?;
        }
        let end = out.end()?;
        let mut moved = BufWriter::with_capacity(RUN_READ_BYTES, At(Arc::clone(file), 0));
        io::copy(&mut At(Arc::clone(file), start).take(end - start), &mut moved)?;
        moved.flush()?;
        drop(moved);
        file.set_len(end - start)?;
        self.runs = vec![end - start];
        Ok(())
    }
}

/// Sorted values with their keys, each key once.
pub(crate) enum Sorted {
    /// All values fitted in memory.
    Memory {
        /// The sorter that holds the records.
        sorter: Sorter,
        /// Index of the next record.
        next: usize,
    },
    /// The values are in the file.
    Runs(Merge),
}

impl Sorted {
    /// Returns the next key with its value.
    ///
    /// # Errors
    ///
    /// The error of the read that failed.
    pub fn next(&mut self) -> io::Result<Option<(&[u8], &[u8])>> {
        match self {
            Self::Memory { sorter, next } => {
                let found = (*next..sorter.records.len()).find(|&at| sorter.record(at).is_some());
                *next = found.map_or(sorter.records.len(), |at| at + 1);
                Ok(found.and_then(|at| sorter.record(at)))
            }
            Self::Runs(merge) => merge.next(),
        }
    }
}

/// A position in the file, for reading or writing.
struct At(Arc<File>, u64);

impl Read for At {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read_at(target, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }
}

impl Write for At {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.write_at(bytes, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A run that is being written. Each record is the lengths of key and value, as `u32`, then both.
struct Run(BufWriter<At>);

impl Run {
    fn begin(file: &Arc<File>, start: u64) -> Self {
        Self(BufWriter::with_capacity(RUN_READ_BYTES, At(Arc::clone(file), start)))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.0.write_all(&(key.len() as u32).to_le_bytes())?;
        self.0.write_all(&(value.len() as u32).to_le_bytes())?;
        self.0.write_all(key)?;
        self.0.write_all(value)
    }

    /// Finishes the run, and returns where it ends.
    fn end(mut self) -> io::Result<u64> {
        self.0.flush()?;
        Ok(self.0.get_ref().1)
    }
}

/// A key, the number of its run, and its value. Of records with one key, that of the last run is the greatest.
type Head = Reverse<(Vec<u8>, Reverse<usize>, Vec<u8>)>;

/// The values of several runs, merged.
pub(crate) struct Merge {
    runs: Vec<BufReader<Take<At>>>,
    heads: BinaryHeap<Head>,
    /// The key and value that were returned last.
    last: Option<(Vec<u8>, Vec<u8>)>,
}

impl Merge {
    fn new(file: &Arc<File>, ends: &[u64]) -> io::Result<Self> {
        let starts = [0].into_iter().chain(ends.iter().copied());
        let run = |(start, end): (u64, &u64)| {
            BufReader::with_capacity(RUN_READ_BYTES, At(Arc::clone(file), start).take(end - start))
        };
        let runs = starts.zip(ends).map(run).collect();
        let mut merge = Self { runs, heads: BinaryHeap::new(), last: None };
        (0..ends.len()).try_for_each(|number| merge.read(number))?;
        Ok(merge)
    }

    /// Adds the next record of a run to the heap.
    fn read(&mut self, number: usize) -> io::Result<()> {
        let run = &mut self.runs[number];
        if run.fill_buf()?.is_empty() {
            return Ok(());
        }
        let mut lengths = [0; 8];
        run.read_exact(&mut lengths)?;
        let [key, value] = [0, 4].map(|at| u32::from_le_bytes(lengths[at..at + 4].try_into().expect("four")) as usize);
        let (mut key, mut value) = (vec![0; key], vec![0; value]);
        run.read_exact(&mut key)?;
        run.read_exact(&mut value)?;
        self.heads.push(Reverse((key, Reverse(number), value)));
        Ok(())
    }

    fn next(&mut self) -> io::Result<Option<(&[u8], &[u8])>> {
        while let Some(Reverse((key, Reverse(number), value))) = self.heads.pop() {
            self.read(number)?;
            // The last run has the value that came last.
            if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
                let (key, value) = self.last.insert((key, value));
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whether records are in memory or in runs, merged once or several times: all keys come, sorted, each with its
        /// last value.
        #[test]
        fn lines_come_sorted(
            lines in proptest::collection::vec((0_u16..300, 0_usize..40), 0..800),
            buffer_bytes in 1_usize..4000,
            runs_max in 2_usize..6,
        ) {
            let mut sorter = Sorter::new(&std::env::temp_dir()).expect("a file");
            (sorter.buffer_bytes, sorter.runs_max) = (buffer_bytes, runs_max);
            let mut expected = BTreeMap::new();
            for (number, (key, length)) in lines.into_iter().enumerate() {
                let (key, line) = (key.to_string().into_bytes(), format!("{number}{}", " ".repeat(length)).into_bytes());
                sorter.push(&key, &line).expect("taken");
                prop_assert!(sorter.bytes.len() <= buffer_bytes + 100 && sorter.runs.len() < runs_max);
                expected.insert(key, line);
            }
            let mut came = Vec::new();
            let mut sorted = sorter.finish().expect("sorted");
            while let Some((key, value)) = sorted.next().expect("read") {
                came.push((key.to_vec(), value.to_vec()));
            }
            prop_assert_eq!(came, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
