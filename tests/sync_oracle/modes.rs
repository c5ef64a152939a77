//! What is asked of both programs: the options of `rdcp --sync`, and those with which rsync does the same.

use crate::rig::Random;

/// All that `rdcp -r` preserves; times compared in nanoseconds.
pub const BASE: &[&str] = &["-aHAXS", "--numeric-ids", "--modify-window=-1"];

/// Options of both.
pub struct Mode {
    pub name: &'static str,
    pub rdcp: &'static [&'static str],
    pub rsync: &'static [&'static str],
    /// With patterns of the seed's.
    pub has_patterns: bool,
    /// Files have several names. In place, rsync writes through each of them, and rdcp refuses to.
    pub has_links: bool,
    /// A destination without anything in it becomes equal to its source.
    pub is_whole: bool,
}

pub const fn same(name: &'static str, options: &'static [&'static str]) -> Mode {
    Mode { name, rdcp: options, rsync: options, has_patterns: false, has_links: true, is_whole: true }
}

pub const MODES: &[Mode] = &[
    same("plain", &[]),
    same("delete", &["--delete"]),
    same("checksum", &["--checksum", "--delete"]),
    Mode { rdcp: &["--in-place"], rsync: &["--inplace"], has_links: false, ..same("inplace", &[]) },
    Mode { has_patterns: true, is_whole: false, ..same("excludes", &["--delete"]) },
    Mode { has_patterns: true, is_whole: false, ..same("delete-excluded", &["--delete", "--delete-excluded"]) },
    Mode { is_whole: false, ..same("existing", &["--existing", "--delete"]) },
    same("ignore-existing", &["--ignore-existing"]),
    same("update", &["--update"]),
    same("window", &["--modify-window=2"]),
];

/// Patterns that both programs read alike: of names, anchored at the source, and of directories.
const PATTERNS: &[&str] =
    &["plain*", "*.txt", "/a*", ".hidden*", "with space", "/plain[0-4]*", "-*", "*/a", "[~#!]*", "z*/"];

/// `--exclude` of a few.
pub fn patterns(random: &mut Random) -> Vec<String> {
    let count = 1 + random.below(3);
    (0..count).map(|_| format!("--exclude={}", PATTERNS[random.below(PATTERNS.len() as u64) as usize])).collect()
}
