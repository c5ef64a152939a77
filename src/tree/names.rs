//! The names of one directory, sorted.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::Fault;
use crate::fault::errno_of;
use crate::fs::sort::{Sorted, Sorter};

/// Maximum bytes of names held in memory. If a directory has more, all its names are sorted in a temporary file.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// Number of names from the current one on that are in memory, if all names are in a file.
const UPCOMING_MAX: usize = 512;

/// Number of bytes before each name in memory: its kind and its length.
const HEAD_BYTES: usize = 3;

/// Explains the error number.
const NO_ROOM: &str =
    "too many names to sort in memory or in the temporary directory; set TMPDIR to one with more space";

/// The names of one directory, each with its kind as the directory reports it. They are sorted, and need no allocation
/// each. Memory is bounded, however many names there are.
#[derive(Default)]
pub struct Names {
    /// For each name: its kind, its length in two bytes, the name, a zero byte.
    bytes: Vec<u8>,
    /// Where each name begins.
    order: Vec<u32>,
    /// Number of names passed.
    next: usize,
    /// All names, if there are many.
    many: Option<Box<Many>>,
}

enum Many {
    Sorting(Sorter),
    /// The current name is the first of `upcoming`.
    Sorted {
        names: Sorted,
        upcoming: VecDeque<(FileType, CString)>,
        passed: CString,
    },
}

impl Names {
    /// Adds a name. It may be longer than any that is sent, as on CIFS and exFAT, where 255 characters may have three
    /// times as many bytes.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for more names, neither in memory nor in a temporary file.
    pub fn push(&mut self, kind: FileType, name: &CStr) -> Result<(), Fault> {
        if let Some(Many::Sorting(sorter)) = self.many.as_deref_mut() {
            return sorter.push(name.to_bytes(), &[bits(kind)]).map_err(no_room);
        }
        let name = name.to_bytes_with_nul();
        let (start, length) = (self.bytes.len(), u16::try_from(name.len() - 1).map_err(|_| Errno::NAMETOOLONG)?);
        self.order.push(start as u32);
        self.bytes.push(bits(kind));
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(name);
        if self.bytes.len() > MEMORY_BYTES_MAX {
            let mut sorter = Sorter::default();
            for &start in &self.order {
                sorter.push(self.name_at(start), &[self.bytes[start as usize]]).map_err(no_room)?;
            }
            *self = Self { many: Some(Box::new(Many::Sorting(sorter))), ..Self::default() };
        }
        Ok(())
    }

    /// Sorts the names, so that they are read from the first on. Removes duplicates, which a directory may report while
    /// it changes.
    ///
    /// # Errors
    ///
    /// Fails if the temporary file cannot be written or read. Then there are no names.
    pub fn sort(&mut self) -> Result<(), Fault> {
        if let Some(many) = self.many.take() {
            let Many::Sorting(sorter) = *many else {
                self.many = Some(many);
                return Ok(());
            };
            let names = sorter.finish().map_err(no_room)?;
            let upcoming = VecDeque::with_capacity(UPCOMING_MAX);
            self.many = Some(Box::new(Many::Sorted { names, upcoming, passed: CString::default() }));
            return self.refill();
        }
        let mut order = std::mem::take(&mut self.order);
        order.sort_unstable_by(|one, other| self.name_at(*one).cmp(self.name_at(*other)));
        order.dedup_by(|one, other| self.name_at(*one) == self.name_at(*other));
        self.order = order;
        Ok(())
    }

    fn name_at(&self, start: u32) -> &[u8] {
        let name = &self.bytes[start as usize + HEAD_BYTES..];
        &name[..self.length_at(start)]
    }

    fn length_at(&self, start: u32) -> usize {
        let start = start as usize;
        u16::from_le_bytes([self.bytes[start + 1], self.bytes[start + 2]]).into()
    }

    /// Returns kind and name of the current entry.
    pub fn current(&self) -> Option<(FileType, &CStr)> {
        self.upcoming(0)
    }

    /// Returns kind and name of the entry `distance` places after the current one. Of names in a file, no more than the
    /// next [`UPCOMING_MAX`] are known.
    pub fn upcoming(&self, distance: usize) -> Option<(FileType, &CStr)> {
        match self.many.as_deref() {
            Some(Many::Sorted { upcoming, .. }) => upcoming.get(distance).map(|(kind, name)| (*kind, &**name)),
            Some(Many::Sorting(_)) => None,
            None => self.entry(self.next + distance),
        }
    }

    /// Passes the current name.
    ///
    /// # Errors
    ///
    /// Fails if the temporary file cannot be read. Then no more names come.
    pub fn advance(&mut self) -> Result<(), Fault> {
        match self.many.as_deref_mut() {
            Some(Many::Sorted { upcoming, passed, .. }) => {
                if let Some((_, name)) = upcoming.pop_front() {
                    *passed = name;
                }
                self.refill()
            }
            Some(Many::Sorting(_)) => Ok(()),
            None => {
                self.next += 1;
                Ok(())
            }
        }
    }

    fn refill(&mut self) -> Result<(), Fault> {
        let Some(Many::Sorted { names, upcoming, .. }) = self.many.as_deref_mut() else { return Ok(()) };
        while upcoming.len() < UPCOMING_MAX {
            let Some((name, kind)) = names.next().map_err(no_room)? else { break };
            let kind = FileType::from_raw_mode(u32::from(kind[0]) << 12);
            upcoming.push_back((kind, CString::new(name).expect("it was one")));
        }
        Ok(())
    }

    /// Returns the name passed last; empty if there is none.
    pub fn passed(&self) -> &[u8] {
        match self.many.as_deref() {
            Some(Many::Sorted { passed, .. }) => passed.to_bytes(),
            _ => self.next.checked_sub(1).and_then(|last| self.entry(last)).map_or(b"", |(_, name)| name.to_bytes()),
        }
    }

    fn entry(&self, index: usize) -> Option<(FileType, &CStr)> {
        let &start = self.order.get(index)?;
        let (kind, name) = (self.bytes[start as usize], &self.bytes[start as usize + HEAD_BYTES..]);
        let name = CStr::from_bytes_with_nul(&name[..=self.length_at(start)]).expect("it was one");
        Some((FileType::from_raw_mode(u32::from(kind) << 12), name))
    }
}

fn bits(kind: FileType) -> u8 {
    (kind.as_raw_mode() >> 12) as u8
}

fn no_room(error: io::Error) -> Fault {
    Fault::Explained(errno_of(&error), NO_ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few and many names come out alike: sorted, once each, with their kinds.
    #[test]
    fn names_come_sorted_in_memory_and_from_a_file() {
        for (count, is_many) in [(0, false), (1, false), (1000, false), (200_000, true)] {
            let mut names = Names::default();
            let name =
                |number: u64| CString::new(format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).expect("one");
            let kind = |number: u64| if number.is_multiple_of(3) { FileType::Directory } else { FileType::RegularFile };
            let mut expected = Vec::new();
            for number in 0..count {
                names.push(kind(number), &name(number)).expect("taken");
                expected.push((name(number), kind(number)));
            }
            for length in [255, 256, 765] {
                let name = CString::new(vec![b'n'; length]).expect("one");
                names.push(FileType::RegularFile, &name).expect("taken");
                expected.push((name, FileType::RegularFile));
            }
            // A directory may report a name twice while it changes.
            for number in 0..count.min(10) {
                names.push(kind(number), &name(number)).expect("taken");
            }
            expected.sort_by(|(one, _), (other, _)| one.cmp(other));
            names.sort().expect("sorted");
            assert_eq!(names.many.is_some(), is_many);
            assert!(names.bytes.capacity() <= 2 * MEMORY_BYTES_MAX);
            assert_eq!(names.passed(), b"");
            for (name, kind) in &expected {
                assert_eq!(names.current(), Some((*kind, &**name)));
                names.advance().expect("read");
                assert_eq!(names.passed(), name.to_bytes());
            }
            assert_eq!(names.current(), None);
        }
    }
}
