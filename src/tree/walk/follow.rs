//! Symbolic links that stand for what they lead to, and mount points that are not entered: `-L`, `-k`,
//! `--copy-unsafe-links`, `--safe-links`, `-x`. Also entries left out by kind: `--no-symlinks`, `--no-specials`.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rd_proto::tree::{Metadata, PATH_BYTES_MAX, Record, Special};
use rustix::fs::{FileType, Stat, fstat, readlinkat_raw};
use rustix::io::Errno;

use super::place::{Entry, Layer, Place};
use super::{Recorder, Step, wrote};
use crate::fs::identity;
use crate::options::{Followed, TreeOptions};
use crate::tree::{Fault, depth_of_link, leads_out};

/// Why a directory is not entered through a link.
pub const IS_LOOP: Fault =
    Fault::Detail("leads to a directory that contains it, so following it would never end; exclude it");

/// What is done with a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The link is copied as a link.
    Copied,
    /// What the link leads to is copied under its name.
    Followed,
    /// The link is left out.
    Skipped,
}

/// Returns what is done with a symbolic link, on which `link` is open.
pub fn treatment(options: &TreeOptions, place: &Place, entry: &Entry<'_>, link: &OwnedFd) -> Result<Treatment, Fault> {
    let is_out = || {
        let mut target = [0; PATH_BYTES_MAX + 1];
        let length = readlinkat_raw(link, c"", &mut target[..])?;
        Ok::<_, Errno>(leads_out(&target[..length], depth_of_link(options, place.levels.len(), false)))
    };
    // As with rsync, --safe-links is about what is still a link then.
    Ok(match () {
        () if options.followed().follows(|| entry.leads_to_directory(), is_out)? => Treatment::Followed,
        () if options.safe_links && is_out()? => Treatment::Skipped,
        () => Treatment::Copied,
    })
}

impl Followed {
    /// Whether a symbolic link stands for what it leads to. What the answer does not depend on is not looked at.
    fn follows<E>(
        self,
        leads_to_directory: impl FnOnce() -> bool,
        leads_out: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        Ok(self.all || self.to_directories && leads_to_directory() || self.leading_out && leads_out()?)
    }

    /// Whether the walk will follow a root that is this symbolic link. A root lies in no directory of its tree.
    pub(crate) fn follows_root(self, link: &Path) -> bool {
        let is_out = || Ok::<_, std::io::Error>(leads_out(std::fs::read_link(link)?.as_os_str().as_bytes(), 0));
        self.follows(|| link.is_dir(), is_out).unwrap_or(false)
    }
}

/// Whether an entry is a followed link to a directory that the walk is in, so that the walk would not end. A link that
/// is followed for listed paths is not such a loop, because the list ends.
pub fn is_loop(place: &Place, entry: &Entry<'_>, stat: &Stat) -> bool {
    let mut open = place.levels.iter().flat_map(|level| &level.layers);
    let is_it = |layer: &Layer| fstat(&layer.directory).is_ok_and(|above| identity(&above) == identity(stat));
    entry.follow && entry.way.is_none() && open.any(is_it)
}

/// Whether the directory entered last is on another file system than the directory that it is in. A root never is.
pub fn is_mounted(place: &Place, layer: &Layer) -> bool {
    let above = place.levels.last().map_or(&[][..], |level| &level.layers);
    let device = |layer: &Layer| fstat(&layer.directory).ok().map(|stat| stat.st_dev);
    above.iter().find(|above| above.root == layer.root).is_some_and(|above| device(above) != device(layer))
}

impl Recorder {
    /// Passes over an entry. With `--delete` or `--prune-empty-dirs` the receiver has to learn the entry's name. So it
    /// gets a record that its own options leave out, and whatever has that name there stays. As with rsync, a directory
    /// with such an entry is not empty.
    pub(super) fn pass_over(&self, place: &Place, entry: &Entry<'_>, target: &mut [u8]) -> Step {
        let options = &self.options;
        let matters = options.delete || options.prune_empty_dirs;
        if !entry.is_passed_over || !matters || place.levels.len() == 1 {
            return Step::Passed;
        }
        let (name, metadata) = (entry.name, Metadata::ZERO);
        let record = match options.symlinks && !options.safe_links {
            // The cache of digests. No option leaves out a file.
            _ if entry.kind == FileType::RegularFile => Record::Vanished { name },
            true => Record::Special { name, metadata, kind: Special::Fifo, device: (0, 0) },
            // A target that leads out of any directory.
            false => Record::Symlink { name, metadata, target: b"/" },
        };
        wrote(record.encode(target))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tree::sync_tests;

    #[test]
    fn a_link_to_a_directory_is_followed_before_it_is_judged() {
        for is_local in [true, false] {
            let scratch = sync_tests::scratch();
            let at = |name: &str| scratch.path().join(name);
            fs::create_dir_all(at("outside/directory")).expect("directories");
            fs::create_dir(at("from")).expect("a directory");
            fs::write(at("outside/directory/file"), "in it").expect("a file");
            fs::write(at("outside/file"), "beside it").expect("a file");
            for name in ["directory", "file"] {
                symlink(at("outside").join(name), at("from").join(name)).expect("a link");
            }
            let options = TreeOptions { copy_dirlinks: true, safe_links: true, ..sync_tests::sync() };
            sync_tests::copy(&at("from"), &at("to"), &options, is_local);
            assert!(!at("to/directory").is_symlink());
            assert_eq!(fs::read_to_string(at("to/directory/file")).expect("copied"), "in it");
            assert!(!at("to/file").exists(), "it leads out, and not to a directory");
        }
    }
}
