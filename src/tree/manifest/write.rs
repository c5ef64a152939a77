//! Writes manifests: entries come in any order, and files appear when they are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rd_proto::control::IoFact;

use super::{Entry, FIRST_LINE, Kind, key};
use crate::fs::prepared::{Prepared, followed};
use crate::fs::sort::Sorter;
use crate::fs::{directory_of, plain_fact, std_fact};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines as [`super`] describes them.
    Manifest,
    /// Lines as `b3sum` writes them, and `b3sum --check` reads them: for files only.
    B3sum,
}

/// A file that is to be written. Nothing has its name before it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path of the file.
    pub path: PathBuf,
    /// Form of the file's lines.
    pub form: Form,
}

impl Target {
    /// Creates a target at `path`. A link there is kept, and goes on leading to the file. A link that leads nowhere, or
    /// that the system does not follow, remains the path, which is then refused.
    pub fn new(path: PathBuf, form: Form) -> Self {
        let real = path.is_symlink().then(|| followed(&path).ok()).flatten();
        Self { path: real.unwrap_or(path), form }
    }

    /// Returns the file's directory, and its name there.
    fn split(&self) -> Result<(&Path, &[u8]), IoFact> {
        let name = self.path.file_name().filter(|_| !self.path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = name.filter(|_| !self.path.is_dir()) else {
            return Err(plain_fact(self.path.as_os_str(), "is a directory; name a file"));
        };
        // Only a regular file is replaced, whatever has been put there by now.
        match self.path.symlink_metadata() {
            Ok(found) if !found.is_file() => Err(plain_fact(self.path.as_os_str(), "not a regular file")),
            _ => Ok((directory_of(&self.path), name.as_bytes())),
        }
    }

    /// Whether both are the same file, however they are named.
    pub fn is_same(&self, other: &Self) -> bool {
        let directory = |target: &Self| directory_of(&target.path).canonicalize().ok();
        self.path == other.path
            || self.path.file_name() == other.path.file_name()
                && directory(self).is_some_and(|one| Some(one) == directory(other))
    }

    /// Checks that a file can be written to the path.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the path cannot be a file.
    pub fn check(&self) -> Result<(), IoFact> {
        self.split().map(drop)
    }
}

/// Totals of what has been written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of entries in the manifest.
    pub entries: u64,
    /// Number of files that `b3sum` has no way to write down.
    pub unwritable: u64,
    /// Path of the first of these files in the tree.
    pub first_unwritable: Vec<u8>,
}

/// Collects entries, and writes the files when all entries have come.
pub struct Writer {
    targets: Vec<Target>,
    sorter: Sorter,
    key: Vec<u8>,
    line: Vec<u8>,
}

impl Writer {
    /// Makes nothing that has a name.
    ///
    /// # Errors
    ///
    /// Fails if one of the files cannot be made in its place.
    pub fn new(targets: Vec<Target>) -> Result<Self, IoFact> {
        let mut sorter = None;
        for target in &targets {
            let (directory, _) = target.split()?;
            sorter = Some(Sorter::new(directory).map_err(|error| std_fact(target.path.as_os_str(), &error))?);
        }
        let sorter = sorter.ok_or_else(|| plain_fact("".as_ref(), "no file to write"))?;
        Ok(Self { targets, sorter, key: Vec::new(), line: Vec::new() })
    }

    /// Adds an entry. Of several entries with one path the last counts.
    ///
    /// # Errors
    ///
    /// Fails if the disk takes no more.
    pub fn push(&mut self, entry: &Entry) -> Result<(), IoFact> {
        self.key.clear();
        self.key.extend(key(&entry.path));
        self.line.clear();
        entry.write(&mut self.line);
        self.sorter.push(&self.key, &self.line).map_err(|error| {
            let path = self.targets.last().map_or(Path::new(""), |target| directory_of(&target.path));
            std_fact(path.as_os_str(), &error)
        })
    }

    /// Writes the files, and gives them their names.
    ///
    /// # Errors
    ///
    /// Fails with what stopped the writing. Complete files have their names.
    pub fn finish(self) -> Result<Written, IoFact> {
        let Self { targets, sorter, .. } = self;
        let mut files = targets.iter().map(Output::open).collect::<Result<Vec<_>, _>>()?;
        let mut written = Written::default();
        let merge = || -> io::Result<()> {
            let mut sorted = sorter.finish()?;
            while let Some((_, line)) = sorted.next()? {
                written.entries += 1;
                for file in &mut files {
                    if !file.write(line)? {
                        written.unwritable += 1;
                        if written.unwritable == 1 {
                            let entry = Entry::parse(line.strip_suffix(b"\n").unwrap_or(line));
                            written.first_unwritable = entry.map(|entry| entry.path).unwrap_or_default();
                        }
                    }
                }
            }
            Ok(())
        };
        let path = targets.first().map_or(Path::new(""), |target| &*target.path);
        merge().map_err(|error| std_fact(path.as_os_str(), &error))?;
        for file in files {
            file.publish(written.entries)?;
        }
        Ok(written)
    }
}

/// A file that is being written.
struct Output<'a> {
    target: &'a Target,
    file: Prepared,
    out: BufWriter<File>,
}

impl<'a> Output<'a> {
    fn open(target: &'a Target) -> Result<Self, IoFact> {
        target.check()?;
        let open = || {
            let file = Prepared::open(&target.path)?;
            let mut out = BufWriter::with_capacity(WRITE_BYTES, file.file()?);
            if target.form == Form::Manifest {
                out.write_all(&[FIRST_LINE, b"\n"].concat())?;
            }
            Ok(Self { target, file, out })
        };
        open().map_err(|error: io::Error| std_fact(target.path.as_os_str(), &error))
    }

    /// Writes the line of an entry. Returns false if this file has no way to write it.
    fn write(&mut self, line: &[u8]) -> io::Result<bool> {
        if self.target.form == Form::Manifest {
            self.out.write_all(line)?;
            return Ok(true);
        }
        let entry = Entry::parse(line.strip_suffix(b"\n").unwrap_or(line)).map_err(io::Error::other)?;
        let Kind::File { digest, .. } = entry.kind else { return Ok(true) };
        let Some(line) = b3sum_line(&entry.path, digest) else { return Ok(false) };
        self.out.write_all(line.as_bytes())?;
        Ok(true)
    }

    fn publish(mut self, entries: u64) -> Result<(), IoFact> {
        let mut publish = || {
            self.out.flush()?;
            let last = if self.target.form == Form::Manifest { format!("end {entries}\n") } else { String::new() };
            self.file.publish(last.as_bytes())
        };
        publish().map_err(|error| std_fact(self.target.path.as_os_str(), &error))
    }
}

/// Returns what `b3sum` writes for a file; `None` if it has no way to write the name so that it would read the same
/// again.
fn b3sum_line(path: &[u8], digest: [u8; 32]) -> Option<String> {
    let path = std::str::from_utf8(path).ok().filter(|path| !path.contains(char::REPLACEMENT_CHARACTER))?;
    // By itself, `-` means standard input.
    let path = if path == "-" { "./-" } else { path };
    let is_escaped = path.contains(['\\', '\n', '\r']);
    let path = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    let digest = blake3::Hash::from_bytes(digest).to_hex();
    Some(format!("{}{digest}  {path}\n", if is_escaped { "\\" } else { "" }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::OFlags;

    use super::super::Reader;
    use super::super::fuzz::{sample, written};
    use super::*;
    use crate::fs::close::tests::fail_where;

    fn targets(directory: &Path) -> Vec<Target> {
        let target = |name: &str, form| Target::new(directory.join(name), form);
        vec![target("manifest", Form::Manifest), target("sums", Form::B3sum)]
    }

    #[test]
    fn a_manifest_is_written_from_entries_in_any_order() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut writer = Writer::new(targets(scratch.path())).expect("a place");
        for entry in sample().iter().rev() {
            writer.push(entry).expect("taken");
        }
        let names = || fs::read_dir(scratch.path()).expect("there").count();
        assert_eq!(names(), 0, "nothing is there before all is");
        let done = writer.finish().expect("written");
        assert_eq!((done.entries, done.unwritable, names()), (sample().len() as u64, 1, 2));
        assert_eq!(done.first_unwritable, b"a/\xff\\ \n\x1b");
        let bytes = fs::read(scratch.path().join("manifest")).expect("there");
        assert!(bytes == written(&sample()));
        let mut reader = Reader::new(&bytes[..]).expect("a manifest");
        while reader.next().expect("whole").is_some() {}
    }

    /// A failure leaves the older file, and nothing else.
    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("manifest"), "older").expect("a file");
        let all = targets(scratch.path());
        let writer = Writer::new(all.clone()).expect("a place");
        fs::create_dir(scratch.path().join("sums")).expect("a directory");
        assert!(writer.finish().is_err());
        assert_eq!(fs::read(scratch.path().join("manifest")).expect("there"), b"older");
        assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 2);
        assert!(Writer::new(all).is_err(), "a directory is no file");
        let nowhere = Target::new(scratch.path().join("none/manifest"), Form::Manifest);
        assert!(Writer::new(vec![nowhere]).is_err());
    }

    #[test]
    fn a_link_leads_where_it_led_or_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [link, old, other] = ["link", "old", "other"].map(|name| scratch.path().join(name));
        fs::write(&old, "old").expect("a file");
        fs::write(&other, "other").expect("a file");
        symlink(&old, &link).expect("a link");
        let written = || Writer::new(vec![Target::new(link.clone(), Form::Manifest)]).and_then(Writer::finish);
        assert_eq!(written().expect("written").entries, 0);
        let manifest = fs::read(&old).expect("there");
        assert!(link.is_symlink() && manifest != b"old");
        let writer = Writer::new(vec![Target::new(link.clone(), Form::Manifest)]).expect("a place");
        fs::remove_file(&link).and_then(|()| symlink(&other, &link)).expect("another link");
        fs::remove_file(&old).expect("ours");
        writer.finish().expect("written where the link led");
        // As for a link of another user in a sticky directory.
        let refused = || {
            let following = OFlags::PATH | OFlags::CLOEXEC | OFlags::LARGEFILE;
            fail_where(libc::SYS_openat, (2, u64::from(following.bits())), libc::EACCES);
            Target::new(link.clone(), Form::Manifest).check().is_err() && written().is_err()
        };
        assert!(std::thread::scope(|scope| scope.spawn(refused).join().expect("its end")));
        assert_eq!((fs::read(&old).expect("there"), fs::read(&other).expect("there")), (manifest, b"other".to_vec()));
        assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 3);
    }

    #[test]
    fn names_are_written_as_b3sum_writes_them() {
        let digest = *blake3::hash(b"").as_bytes();
        let hex = blake3::hash(b"").to_hex();
        for (path, expected) in [
            (&b"a/b"[..], Some(format!("{hex}  a/b\n"))),
            (b"a\\b\nc\rd", Some(format!("\\{hex}  a\\\\b\\nc\\rd\n"))),
            (b"-", Some(format!("{hex}  ./-\n"))),
            (b"\xff", None),
            ("\u{fffd}".as_bytes(), None),
        ] {
            assert_eq!(b3sum_line(path, digest), expected);
        }
    }
}
