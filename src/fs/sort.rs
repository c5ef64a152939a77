//! Sorts more data than memory should hold: sorted runs go to a file without a name, and are merged as they are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Take, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use minicbor::bytes::{ByteSlice, ByteVec};

use super::{append, take_next, unlinked, unlinked_anywhere};

/// Maximum size of the keys and values held in memory, in bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// Number of runs of one level that are merged into one of the next. So each record is merged once for each level, and
/// a thousand times as much data has less than two levels more.
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
    /// Where each run ends in the file, and its level: how often its records have been merged. Later runs have lower
    /// levels.
    runs: Vec<(u64, u8)>,
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
        Ok(Sorted::Runs(Merge::new(&self.file()?, 0, &self.runs)?))
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
        let mut out = writer(&file, self.runs.last().map_or(0, |run| run.0));
        for (key, value) in (0..self.records.len()).filter_map(|at| self.record(at)) {
            append(&mut out, (<&ByteSlice>::from(key), <&ByteSlice>::from(value)))?;
        }
        self.runs.push((out.into_inner()?.1, 0));
        self.bytes.clear();
        self.records.clear();
        while let Some(first) = self.full_level() {
            self.merge_runs(&file, first)?;
        }
        Ok(())
    }

    /// Returns the index of the first run of the lowest level, if there are as many of that level as may be.
    fn full_level(&self) -> Option<usize> {
        let first = self.runs.partition_point(|run| run.1 > self.runs[self.runs.len() - 1].1);
        (self.runs.len() - first == self.runs_max).then_some(first)
    }

    /// Merges the runs from `first` on into one, which is written behind them and then moved to their place.
    fn merge_runs(&mut self, file: &Arc<File>, first: usize) -> io::Result<()> {
        let base = if first == 0 { 0 } else { self.runs[first - 1].0 };
        let (start, level) = self.runs[self.runs.len() - 1];
        let mut out = writer(file, start);
        let mut merge = Merge::new(file, base, &self.runs[first..])?;
        while let Some((key, value)) = merge.next()? {
            append(&mut out, (<&ByteSlice>::from(key), <&ByteSlice>::from(value)))?;
        }
        let end = out.into_inner()?.1;
        let mut moved = writer(file, base);
        io::copy(&mut At(Arc::clone(file), start).take(end - start), &mut moved)?;
        moved.into_inner()?;
        let end = base + (end - start);
        file.set_len(end)?;
        self.runs.truncate(first);
        self.runs.push((end, level + 1));
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

/// Returns a writer that begins at this position of the file.
fn writer(file: &Arc<File>, start: u64) -> BufWriter<At> {
    BufWriter::with_capacity(RUN_READ_BYTES, At(Arc::clone(file), start))
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
    /// Begins with the first records of these runs, which lie one behind another from `base` on.
    fn new(file: &Arc<File>, base: u64, runs: &[(u64, u8)]) -> io::Result<Self> {
        let starts = [base].into_iter().chain(runs.iter().map(|run| run.0));
        let run = |(start, (end, _)): (u64, &(u64, u8))| {
            BufReader::with_capacity(RUN_READ_BYTES, At(Arc::clone(file), start).take(end - start))
        };
        let count = runs.len();
        let runs = starts.zip(runs).map(run).collect();
        let mut merge = Self { runs, heads: BinaryHeap::new(), last: None };
        (0..count).try_for_each(|number| merge.read(number))?;
        Ok(merge)
    }

    /// Adds the next record of a run to the heap.
    fn read(&mut self, number: usize) -> io::Result<()> {
        if let Some((key, value)) = take_next::<(ByteVec, ByteVec)>(&mut self.runs[number])? {
            self.heads.push(Reverse((key.into(), Reverse(number), value.into())));
        }
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
                let lowest = sorter.runs.last().map_or(0, |run| run.1);
                let of_lowest = sorter.runs.iter().filter(|run| run.1 == lowest).count();
                prop_assert!(sorter.bytes.len() <= buffer_bytes + 100 && of_lowest < runs_max);
                prop_assert!(sorter.runs.is_sorted_by(|one, next| one.1 >= next.1 && one.0 < next.0));
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

    #[test]
    fn what_is_merged_grows_with_the_logarithm_of_the_data() {
        let mut sorter = Sorter::new(&std::env::temp_dir()).expect("a file");
        (sorter.buffer_bytes, sorter.runs_max) = (1, 4);
        // Each record but the last is a run.
        for number in 0..=1000_u32 {
            sorter.push(&number.to_be_bytes(), b"value").expect("taken");
        }
        let levels: Vec<u8> = sorter.runs.iter().map(|run| run.1).collect();
        assert_eq!(levels, [4, 4, 4, 3, 3, 3, 2, 2, 1, 1], "1000 to base 4");
        let mut sorted = sorter.finish().expect("sorted");
        for number in 0..=1000_u32 {
            let (key, value) = sorted.next().expect("read").expect("a record");
            assert_eq!((key, value), (&number.to_be_bytes()[..], &b"value"[..]));
        }
        assert!(sorted.next().expect("read").is_none());
    }
}
