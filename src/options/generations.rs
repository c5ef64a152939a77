//! Existing files at the destination that a copy may use, beside those under the same names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rd_proto::tree::is_name;

/// Maximum number of `--link-dest` options, as with rsync, and maximum length of their paths in all. They travel in one
/// message.
const LINK_DEST_MAX: usize = 20;
const LINK_DEST_BYTES_MAX: usize = 8 << 10;

/// Name of the symbolic link that leads to the last generation.
pub const LATEST: &[u8] = b"latest";

/// Options that reuse files of earlier generations, or files that have been moved.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Generations {
    /// Hard-link unchanged files to those in DIR, an earlier copy; a relative DIR begins at DST; may be repeated
    #[arg(long, value_name = "DIR", requires = "sync", conflicts_with = "in_place", value_parser = link_dest())]
    #[n(0)]
    pub link_dest: Vec<ByteVec>,
    /// Copy into DST/NAME, hard-linking what is unchanged since the generation DST/latest points to. On success, latest
    /// points to NAME, which never changes again; until then, run the same command again to continue. -c reads all of
    /// the earlier generation, also with --digest-cache
    #[arg(long, value_name = "NAME", requires = "sync", conflicts_with = "in_place", value_parser = snapshot())]
    #[n(1)]
    pub snapshot: Option<ByteVec>,
    /// Link or copy files within the destination that were moved or renamed at the source (found by size and time,
    /// proven by digest); --delete then deletes at the end; not with --snapshot, --in-place or --append-verify
    // A file that is being appended to might be linked to another name at the same moment. Files that `--link-dest` and
    // `--snapshot` link to are not appended to, because they have other names or are in another directory.
    #[arg(long, requires = "sync", conflicts_with_all = ["in_place", "append_verify"])]
    #[n(2)]
    pub find_moves: bool,
    /// Place of this session within the whole copy; set by the caller.
    #[arg(skip)]
    #[n(3)]
    pub session: Session,
}

/// The place of one session within a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Session {
    /// Whether the only root of the session becomes DST itself, instead of coming into it: a directory does, or DST is a
    /// block device.
    #[n(0)]
    pub is_dst: bool,
    /// Whether no other session follows, and all earlier ones have succeeded.
    #[n(1)]
    pub is_last: bool,
    /// Whether another session of the same copy has gone before.
    #[n(2)]
    pub follows: bool,
    /// Whether DST was missing when the copy was planned. If it has appeared since, this source is not merged into it.
    #[n(3)]
    pub is_missing: bool,
}

impl Generations {
    /// Checks whether a command line could express these options.
    ///
    /// # Errors
    ///
    /// What is wrong with the options.
    pub fn check(&self) -> Result<(), String> {
        let bytes: usize = self.link_dest.iter().map(|directory| directory.len()).sum();
        if self.link_dest.len() > LINK_DEST_MAX || bytes > LINK_DEST_BYTES_MAX {
            return Err(format!(
                "--link-dest takes at most {LINK_DEST_MAX} directories, whose paths have at most {} KiB in total",
                LINK_DEST_BYTES_MAX >> 10
            ));
        }
        Ok(())
    }

    /// Returns why an option makes no sense beside `--snapshot`, if one is given that does not.
    pub fn refused(&self, has_backup_dir: bool, existing: bool) -> Option<&'static str> {
        self.snapshot.as_ref()?;
        match () {
            () if has_backup_dir => {
                Some("--backup-dir has nothing to back up with --snapshot, which overwrites nothing; leave one out")
            }
            () if existing => {
                Some("--existing creates no files, and --snapshot always creates a new generation; leave one out")
            }
            () if self.find_moves => {
                Some("--find-moves searches DST, and with --snapshot that is a new, empty generation; leave one out")
            }
            () => None,
        }
    }

    /// Reports whether files at the destination may be hard links to files of other copies. Such files are not changed.
    pub fn share_files(&self) -> bool {
        !self.link_dest.is_empty() || self.snapshot.is_some()
    }
}

fn link_dest() -> impl TypedValueParser<Value = ByteVec> {
    OsStringValueParser::new().try_map(|path: OsString| {
        let path = path.into_vec();
        if path.is_empty() { Err("the path is empty") } else { Ok(ByteVec::from(path)) }
    })
}

fn snapshot() -> impl TypedValueParser<Value = ByteVec> {
    OsStringValueParser::new().try_map(|name: OsString| {
        let name = name.into_vec();
        match is_name(&name) && name != LATEST {
            true => Ok(ByteVec::from(name)),
            false => Err("must be a single name without a slash, and not latest"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_generation_has_no_use_for_is_refused_beside_it() {
        let plain = Generations { find_moves: true, ..Generations::default() };
        let new = Generations { snapshot: Some(b"one".to_vec().into()), ..Generations::default() };
        let moves = Generations { find_moves: true, ..new.clone() };
        for (generations, others, option) in [
            (&new, (true, false), "--backup-dir "),
            (&new, (false, true), "--existing "),
            (&moves, (false, false), "--find-moves "),
        ] {
            let refused = generations.refused(others.0, others.1).expect(option);
            assert!(refused.starts_with(option) && refused.contains("--snapshot"), "{refused}");
        }
        assert_eq!(new.refused(false, false), None);
        assert_eq!(plain.refused(true, true), None);
    }
}
