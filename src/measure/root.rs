//! The kernel's files about its host, below one root: `/`, or a recorded tree in tests.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// Maximum number of bytes read from a file. The longest files of interest are the lists of modules and of mounts.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of entries read from a directory.
const ENTRIES_MAX: usize = 4096;

/// The directory that contains `/sys`, `/proc`, `/dev` and `/usr/lib`. Files that cannot be read count as absent. A
/// kernel without a feature, a container, and a user without permission all look like that.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Root {
    /// Uses another root than `/`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns where a path lies; `path` has no leading slash.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file without surrounding whitespace, up to 64 KiB. Invalid UTF-8 is replaced.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number that a file begins with.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns the text after `name` in a file of lines such as `MemTotal:  1024 kB`.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim_start_matches([':', '=']).trim().trim_matches('"').to_owned())
    }

    /// Returns the names in a directory, sorted by length and then by name, at most 4096. Names that are not UTF-8 are
    /// left out.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
        names
    }

    /// Whether an entry exists at this path.
    pub fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// Returns the last component of a symbolic link's target, such as a driver or a bus address.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_absent() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        fs::create_dir_all(root.path("proc/dir")).expect("ours");
        fs::write(root.path("proc/meminfo"), "MemTotal:   77 kB\nX: \"y\"\n").expect("ours");
        fs::write(root.path("proc/raw"), b"\xff 12\n").expect("ours");
        fs::write(root.path("proc/long"), vec![b'1'; 100 << 10]).expect("ours");
        std::os::unix::fs::symlink("../../drivers/mlx5_core", root.path("proc/driver")).expect("ours");
        assert_eq!(root.field("proc/meminfo", "MemTotal").as_deref(), Some("77 kB"));
        assert_eq!(root.field("proc/meminfo", "X").as_deref(), Some("y"));
        assert_eq!(root.field("proc/meminfo", "Y"), None);
        assert_eq!(root.number::<u32>("proc/raw"), None);
        assert_eq!(root.text("proc/long").map(|text| text.len()), Some(FILE_BYTES_MAX as usize));
        assert_eq!(root.link("proc/driver").as_deref(), Some("mlx5_core"));
        assert_eq!(root.names("proc"), ["dir", "raw", "long", "driver", "meminfo"]);
        assert!(root.text("proc/dir").is_none() && root.names("proc/none").is_empty() && !root.has("none"));
    }
}
