//! Sorts more lines than memory should hold: sorted runs go to a file without a name, and are merged at the end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;

use crate::fs::unlinked;

/// Keys and lines that are held in memory, in bytes.
const BUFFER_BYTES: usize = 8 << 20;

/// Runs in the file: at so many they are merged to one, so that merging needs no more memory.
const RUNS_MAX: usize = 64;

/// Bytes read or written at once of a run.
const RUN_READ_BYTES: usize = 64 << 10;

/// Lines, sorted by their keys. Of several with one key the last that came counts.
pub(super) struct Sorter {
    /// Keys and lines that are not in a run yet, one behind the other.
    bytes: Vec<u8>,
    /// Where they begin, and the lengths of key and line.
    records: Vec<(usize, usize, usize)>,
    file: File,
    /// Where each run ends in the file.
    runs: Vec<u64>,
    buffer_bytes: usize,
    runs_max: usize,
}

impl Sorter {
    /// The file will be in this directory, without a name there.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new(directory: &std::path::Path) -> io::Result<Self> {
        let file = unlinked(directory)?;
        let (buffer_bytes, runs_max) = (BUFFER_BYTES, RUNS_MAX);
        Ok(Self { bytes: Vec::new(), records: Vec::new(), file, runs: Vec::new(), buffer_bytes, runs_max })
    }

    /// Takes a line.
    ///
    /// # Errors
    ///
    /// The file takes no more.
    pub fn push(&mut self, key: &[u8], line: &[u8]) -> io::Result<()> {
        let used = self.bytes.len() + self.records.len() * size_of::<(usize, usize, usize)>();
        if used > self.buffer_bytes {
            self.spill()?;
        }
        self.records.push((self.bytes.len(), key.len(), line.len()));
        self.bytes.extend(key);
        self.bytes.extend(line);
        Ok(())
    }

    /// Gives all lines, sorted.
    ///
    /// # Errors
    ///
    /// What reading the file, or `take`, answered.
    pub fn finish(mut self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if self.runs.is_empty() {
            self.sort();
            return self.sorted().try_for_each(|(_, line)| take(line));
        }
        self.spill()?;
        merge(&self.file, &self.runs, |_, line| take(line))
    }

    fn key(&self, &(at, key, _): &(usize, usize, usize)) -> &[u8] {
        &self.bytes[at..at + key]
    }

    fn sort(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        // In the order in which they came, where keys are the same.
        records.sort_by(|one, other| self.key(one).cmp(self.key(other)));
        self.records = records;
    }

    /// Keys and lines, once they are sorted; of several with one key the last.
    fn sorted(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let is_last = |at: &usize| {
            let next = self.records.get(at + 1);
            next.is_none_or(|next| self.key(next) != self.key(&self.records[*at]))
        };
        (0..self.records.len()).filter(is_last).map(|at| {
            let record = &self.records[at];
            let line = record.0 + record.1;
            (self.key(record), &self.bytes[line..line + record.2])
        })
    }

    /// Makes what is in memory a run.
    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let mut out = Run::begin(&self.file, self.runs.last().copied().unwrap_or_default());
        for (key, line) in self.sorted() {
            out.write(key, line)?;
        }
        let end = out.end()?;
        self.runs.push(end);
        self.bytes.clear();
        self.records.clear();
        if self.runs.len() == self.runs_max {
            self.merge_runs()?;
        }
        Ok(())
    }

    /// Makes one run of all, in the room behind them, and moves it to the beginning.
    fn merge_runs(&mut self) -> io::Result<()> {
        let start = self.runs.last().copied().unwrap_or_default();
        let mut out = Run::begin(&self.file, start);
        merge(&self.file, &self.runs, |key, line| out.write(key, line))?;
        let end = out.end()?;
        let mut moved = BufWriter::with_capacity(RUN_READ_BYTES, At(&self.file, 0));
        io::copy(&mut At(&self.file, start).take(end - start), &mut moved)?;
        moved.flush()?;
        drop(moved);
        self.file.set_len(end - start)?;
        self.runs = vec![end - start];
        Ok(())
    }
}

/// A place in the file from which it is read or written.
struct At<'a>(&'a File, u64);

impl Read for At<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read_at(target, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }
}

impl Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.write_at(bytes, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A run that is being written: of each line the lengths of key and line, as `u32`, then both.
struct Run<'a>(BufWriter<At<'a>>);

impl<'a> Run<'a> {
    fn begin(file: &'a File, start: u64) -> Self {
        Self(BufWriter::with_capacity(RUN_READ_BYTES, At(file, start)))
    }

    fn write(&mut self, key: &[u8], line: &[u8]) -> io::Result<()> {
        self.0.write_all(&(key.len() as u32).to_le_bytes())?;
        self.0.write_all(&(line.len() as u32).to_le_bytes())?;
        self.0.write_all(key)?;
        self.0.write_all(line)
    }

    /// Where it ends.
    fn end(mut self) -> io::Result<u64> {
        self.0.flush()?;
        Ok(self.0.get_ref().1)
    }
}

/// The lines of several runs, merged.
fn merge(file: &File, ends: &[u64], mut take: impl FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut start = 0;
    let mut runs: Vec<_> = ends
        .iter()
        .map(|&end| {
            let run = BufReader::with_capacity(RUN_READ_BYTES, At(file, start).take(end - start));
            start = end;
            run
        })
        .collect();
    let mut next = |number: usize| -> io::Result<Option<_>> {
        let run = &mut runs[number];
        let mut lengths = [0; 8];
        if run.fill_buf()?.is_empty() {
            return Ok(None);
        }
        run.read_exact(&mut lengths)?;
        let [key, line] = [0, 4].map(|at| u32::from_le_bytes(lengths[at..at + 4].try_into().expect("four")) as usize);
        let (mut key, mut line) = (vec![0; key], vec![0; line]);
        run.read_exact(&mut key)?;
        run.read_exact(&mut line)?;
        // The last run has what came last.
        Ok(Some(Reverse((key, Reverse(number), line))))
    };
    let mut heads = BinaryHeap::new();
    for number in 0..ends.len() {
        heads.extend(next(number)?);
    }
    let mut last: Option<Vec<u8>> = None;
    while let Some(Reverse((key, Reverse(number), line))) = heads.pop() {
        if last.as_ref() != Some(&key) {
            take(&key, &line)?;
            last = Some(key);
        }
        heads.extend(next(number)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever of it is in memory or in runs, merged once or several times: all lines come, sorted, and of each key
        /// the last.
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
            sorter.finish(|line| { came.push(line.to_vec()); Ok(()) }).expect("merged");
            prop_assert_eq!(came, expected.into_values().collect::<Vec<_>>());
        }
    }
}
