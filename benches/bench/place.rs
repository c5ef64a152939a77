//! Directories in memory, and files in them.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cold::evict;
use crate::harness::{Result, gib, text, timed};
use crate::process::free_port;

/// A directory in memory with enough room, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn with_room(bytes: u64) -> Result<Self> {
        Self::with_room_for(bytes, 0)
    }

    pub fn with_room_for(bytes: u64, files: u64) -> Result<Self> {
        let places = [PathBuf::from("/dev/shm"), env::temp_dir()];
        let fits = |place: &Path| {
            room("-Pk", place).is_some_and(|kib| kib > bytes >> 10)
                && (files == 0 || room("-Pi", place).is_some_and(|free| free > files))
        };
        let place = places.iter().find(|place| fits(place));
        let place =
            place.ok_or(format!("no room for {:.1} GiB and {files} files in /dev/shm or TMPDIR", gib(bytes)))?;
        let directory = place.join(format!("rdma-pipe-bench.{}.{}", std::process::id(), free_port()?));
        fs::create_dir(&directory).map_err(text)?;
        Ok(Scratch(directory))
    }

    /// Makes a new directory in another one.
    pub fn within(directory: &Path) -> Result<Self> {
        let directory = directory.join(format!("bench-{}", std::process::id()));
        fs::create_dir(&directory).map_err(text)?;
        Ok(Scratch(directory))
    }

    /// Writes text that compresses like text: sources and documents of the crates that this program was built from.
    /// They are repeated if they are too few, at a distance that is longer than any compression here looks back.
    pub fn text_file(&self, bytes: u64) -> Result<PathBuf> {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
        let crates = home.ok_or("there is no home directory")?.join("registry/src");
        let mut names = Vec::new();
        texts_below(&crates, &mut names);
        names.sort();
        let path = self.0.join("text");
        let mut file = BufWriter::new(File::create(&path).map_err(text)?);
        let mut left = bytes;
        while left > 0 {
            let before = left;
            for name in &names {
                left -= io::copy(&mut File::open(name).map_err(text)?.take(left), &mut file).map_err(text)?;
            }
            if left == before {
                return Err(format!("there is no text below {}", crates.display()));
            }
        }
        file.flush().map_err(text)?;
        Ok(path)
    }

    /// Writes bytes that do not compress.
    pub fn random_file(&self, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join("input");
        let mut file = File::create(&path).map_err(text)?;
        let mut state = SEED;
        let mut block = vec![0_u8; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&next(&mut state).to_le_bytes());
            }
            let part = left.min(block.len() as u64);
            file.write_all(&block[..part as usize]).map_err(text)?;
            left -= part;
        }
        Ok(path)
    }

    pub fn hole(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).map_err(text)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file system that shares blocks between files (XFS), in an image in memory. Removed at the end. Requires root.
pub struct Image {
    /// Mount point.
    pub path: PathBuf,
    file: PathBuf,
}

impl Image {
    /// Makes the file system with the command `mkfs`, to whose arguments the image is appended.
    pub fn within(scratch: &Scratch, bytes: u64, mkfs: &[&str]) -> Result<Self> {
        let (path, file) = (scratch.0.join("mounted"), scratch.hole("image", bytes)?);
        fs::create_dir(&path).map_err(text)?;
        timed(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&file))?;
        let image = Image { path, file };
        image.mount()?;
        Ok(image)
    }

    fn mount(&self) -> Result<()> {
        timed(Command::new("mount").args(["-o", "loop"]).args([&self.file, &self.path])).map(|_| ())
    }

    /// Evicts the file system from memory, so that reads come from the disk that holds the image.
    pub fn cool(&self) -> Result<()> {
        timed(Command::new("umount").arg(&self.path))?;
        evict(&self.file)?;
        self.mount()?;
        let device = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&self.path).output().map_err(text)?;
        let device = String::from_utf8_lossy(&device.stdout).trim().to_owned();
        timed(Command::new("losetup").arg("--direct-io=on").arg(device)).map(|_| ())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
        let _ = fs::remove_file(&self.file);
    }
}

/// Finds files of Rust and Markdown at any depth.
fn texts_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => texts_below(&path, found),
            Ok(kind)
                if kind.is_file() && [Some("rs"), Some("md")].contains(&path.extension().and_then(OsStr::to_str)) =>
            {
                found.push(path);
            }
            _ => {}
        }
    }
}

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the next number of the generator xorshift64.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns the free space that `df` reports, in its own unit.
fn room(unit: &str, place: &Path) -> Option<u64> {
    let output = Command::new("df").args([unit, "--"]).arg(place).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}
