//! Options given to both programs: those of `rdcp --sync`, and those with which rsync does the same.

use crate::rig::Random;

/// Everything that `rdcp -r` preserves, with times compared in nanoseconds.
pub const BASE: &[&str] = &["-aHAXS", "--numeric-ids", "--modify-window=-1"];

/// Kind of patterns that a seed gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patterns {
    None,
    /// Several `--exclude`.
    Excludes,
    /// Lists of `--include` and `--exclude`, in which the order counts.
    Mixed,
}

/// Which part of the source is requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Selects {
    All,
    /// The paths in the file `list`, given by `--files-from`.
    Listed,
    /// One path after `/./`, with `--relative`.
    Relative,
}

/// Options of both programs.
pub struct Mode {
    pub name: &'static str,
    pub rdcp: &'static [&'static str],
    pub rsync: &'static [&'static str],
    /// Kind of patterns, chosen by the seed.
    pub patterns: Patterns,
    /// Whether only some paths of the source are copied.
    pub selects: Selects,
    /// Whether files have several names. With `--inplace`, rsync writes through each name, which rdcp refuses.
    pub has_links: bool,
    /// Whether an empty destination becomes equal to its source.
    pub is_whole: bool,
}

pub const fn same(name: &'static str, options: &'static [&'static str]) -> Mode {
    Mode {
        name,
        rdcp: options,
        rsync: options,
        patterns: Patterns::None,
        selects: Selects::All,
        has_links: true,
        is_whole: true,
    }
}

pub const MODES: &[Mode] = &[
    same("plain", &[]),
    same("delete", &["--delete"]),
    same("checksum", &["--checksum", "--delete"]),
    Mode { rdcp: &["--in-place"], rsync: &["--inplace"], has_links: false, ..same("inplace", &[]) },
    Mode { patterns: Patterns::Excludes, is_whole: false, ..same("excludes", &["--delete"]) },
    Mode {
        patterns: Patterns::Excludes,
        is_whole: false,
        ..same("delete-excluded", &["--delete", "--delete-excluded"])
    },
    Mode { is_whole: false, ..same("existing", &["--existing", "--delete"]) },
    same("ignore-existing", &["--ignore-existing"]),
    same("update", &["--update"]),
    same("window", &["--modify-window=2"]),
    Mode { patterns: Patterns::Mixed, has_links: false, is_whole: false, ..same("patterns", &["--delete"]) },
    same("delete-after", &["--delete-after"]),
    Mode {
        patterns: Patterns::Excludes,
        selects: Selects::Listed,
        rsync: &["-r", "--delete", "--from0", "--files-from=list"],
        is_whole: false,
        ..same("files-from", &["--delete", "--from0", "--files-from=list"])
    },
    Mode {
        selects: Selects::Relative,
        has_links: false,
        is_whole: false,
        ..same("relative", &["--relative", "--delete"])
    },
    Mode {
        patterns: Patterns::Excludes,
        selects: Selects::Listed,
        rsync: &["-r", "--delete", "--from0", "--files-from=list", "--no-implied-dirs"],
        is_whole: false,
        ..same("files-from-no-implied", &["--delete", "--from0", "--files-from=list", "--no-implied-dirs"])
    },
    Mode {
        selects: Selects::Relative,
        has_links: false,
        is_whole: false,
        ..same("relative-no-implied", &["--relative", "--delete", "--no-implied-dirs"])
    },
    // The backup directory is beside `into/copy`, or beside `into`.
    same("backup-dir", &["--delete", "--backup-dir=../kept"]),
];

/// Patterns for names, for paths anchored at the transfer's root, and for directories.
const PATTERNS: &[&str] =
    &["plain*", "*.txt", "/a*", ".hidden*", "with space", "/plain[0-4]*", "-*", "*/a", "[~#!]*", "z*/"];

/// The other forms of the pattern dialect.
const DIALECT: &[&str] = &[
    "*/",
    "*",
    "a/***",
    "/*/***",
    "plain*/**",
    "**/plain*",
    "/**/plain*",
    "*/plain*",
    "/src/*/*",
    "/*/*/",
    "**.txt",
    "a**a*",
    "/src/***",
    "plain*/",
    "[a-m]*/[!a-m]*",
    "!",
    "- *.txt",
    "+ plain*",
    "a\\*",
    "/src/a*",
];

/// Returns options with a few random patterns.
pub fn patterns(random: &mut Random, kind: Patterns) -> Vec<String> {
    let pick = |random: &mut Random, list: &[&'static str]| list[random.below(list.len() as u64) as usize];
    match kind {
        // Random numbers are drawn in either case, so that a seed's tree is the same with and without patterns.
        Patterns::None | Patterns::Excludes => {
            let count = 1 + random.below(3);
            let some: Vec<_> = (0..count).map(|_| format!("--exclude={}", pick(random, PATTERNS))).collect();
            if kind == Patterns::None { Vec::new() } else { some }
        }
        Patterns::Mixed => {
            let count = 1 + random.below(6);
            let option = |random: &mut Random| ["--exclude=", "--exclude=", "--include="][random.below(3) as usize];
            let list = |random: &mut Random| if random.below(2) == 0 { PATTERNS } else { DIALECT };
            (0..count)
                .map(|_| {
                    let (option, list) = (option(random), list(random));
                    format!("{option}{}", pick(random, list))
                })
                .collect()
        }
    }
}
