//! Files that change because a copy is made. Their changes are copied when something else has changed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, fstat};

use crate::fs::canonical;
use crate::tree::digest_cache;

pub(super) struct Own {
    /// Standard output and standard error, by device and inode, if they are files.
    streams: Vec<[u64; 2]>,
    /// The usual digest cache, and another one.
    digest_caches: Vec<PathBuf>,
}

impl Own {
    pub(super) fn find(digest_cache: Option<&Path>) -> Self {
        // The cache may not exist yet.
        let absolute = |path: PathBuf| {
            let found =
                path.ancestors().find_map(|above| Some((canonical(above).ok()?, path.strip_prefix(above).ok()?)));
            found.map(|(above, rest)| above.join(rest))
        };
        let identity = |fd| {
            let stat = fstat(fd).ok()?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            is_file.then_some([stat.st_dev, stat.st_ino])
        };
        let streams = [rustix::stdio::stdout(), rustix::stdio::stderr()].into_iter().filter_map(identity).collect();
        let caches = digest_cache::default_path().into_iter().chain(digest_cache.map(Path::to_owned));
        Self { streams, digest_caches: caches.filter_map(absolute).collect() }
    }

    pub(super) fn has(&self, path: &Path, found: Option<&Metadata>) -> bool {
        self.digest_caches.iter().any(|cache| cache == path)
            || found.is_some_and(|found| self.streams.contains(&[found.dev(), found.ino()]))
    }
}
