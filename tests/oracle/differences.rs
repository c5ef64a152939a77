//! All intended differences of rdcp from cp, each under its heading in the manual page.

use crate::copies::Way;
use crate::snapshot::{Entry, Finding, Snapshot};
use crate::tree::is_temporary;

/// Result of a command line where it differs from the result of cp -a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The copy fails and changes nothing.
    Refused,
    /// The result of `cp -a --remove-destination`.
    Replaced,
    /// The result of cp if this directory exists beforehand.
    Made(&'static str),
    /// The result of cp, without anything that cp makes below this path.
    Without(&'static str),
}

/// Command lines with another result. Patterns match [`crate::forms::Case::shown`]; `*` matches any text.
pub struct Lines {
    pub heading: &'static str,
    pub patterns: &'static [&'static str],
    pub instead: Instead,
}

pub const LINES: &[Lines] = &[
    Lines {
        heading: "Two sources of the same name",
        patterns: &["*d d > *", "*f f > *", "*f deep/f > *", "*d deep/d > *"],
        instead: Instead::Refused,
    },
    Lines {
        heading: "Missing directories",
        patterns: &[
            "*f g > into/new*",
            "*f missing > into/new*",
            "*missing f > into/new*",
            "*d e > into/new*",
            "*d/. e/. > into/new*",
            "*d/ e > into/new*",
            "*f d/. > into/new*",
            "*d/. f > into/new*",
            "*lf ld > into/new*",
            "*d missing > into/new*",
            "f > into/new/",
            "lf > into/new/",
            "lx > into/new/",
            "ld > into/new/",
            "p > into/new/",
            "no -r: f > into/new/",
            "no -r: lf > into/new/",
            "-t f > into/new*",
            "-t d > into/new*",
            "-t d/ > into/new*",
            "-t d/. > into/new*",
            "-t lf > into/new*",
            "-t ld > into/new*",
            "-t ld/ > into/new*",
            "-t ld/. > into/new*",
            "-t lx > into/new*",
            "-t p > into/new*",
        ],
        instead: Instead::Made("into/new"),
    },
    Lines { heading: "A directory into itself", patterns: &["*ld/ > from/*d"], instead: Instead::Without("from/d/ld") },
    Lines {
        heading: "A directory into itself",
        patterns: &["*d > from/d", "*d/ > from/d", "*d > from/ld", "*d/ > from/ld"],
        instead: Instead::Without("from/d/d"),
    },
    Lines {
        heading: "A directory into itself",
        patterns: &["*d e > from/*d", "*d/ e > from/*d", "*d missing > from/*d"],
        instead: Instead::Without("from/d/d"),
    },
    Lines {
        heading: "What is replaced",
        patterns: &["no -r: lf > into/to*", "no -r: lf > into/tl", "no -r: lf > into/tl/", "no -r: lf ld > into/t*"],
        instead: Instead::Replaced,
    },
];

/// Heading for sources that are their own destination.
pub const ITSELF: &str = "A source onto itself";

/// Whether cp complains only that sources are their own destination. Through another host's name rdcp leaves
/// such sources as they are.
pub fn is_itself(way: Way, said: &str) -> bool {
    way != Way::Within && !said.is_empty() && said.lines().all(|line| line.ends_with("are the same file"))
}

/// An intended difference of an entry of a random tree from the result of `cp -a --remove-destination`.
pub struct Entries {
    pub heading: &'static str,
    /// Whether a finding is of this kind.
    pub is_meant: fn(&Finding, &Seen<'_>) -> bool,
}

const TEMPORARY: &str = "Temporary names";
const READ_ONLY: &str = "Read-only directories";

/// Snapshots of one copy, by paths of the destination.
pub struct Seen<'a> {
    pub before: &'a Snapshot,
    pub source: &'a Snapshot,
    pub reference: &'a Snapshot,
    pub got: &'a Snapshot,
    /// Whether an ordinary user made the copy.
    pub is_users: bool,
    pub is_within: bool,
}

impl Seen<'_> {
    /// Whether the existing directory belongs to the user, who may not write to it.
    fn was_closed(&self, path: &[u8]) -> bool {
        let is_closed = |entry: &Entry| entry.kind == "directory" && entry.mode & 0o700 != 0o700;
        self.is_users && self.before.get(path).is_some_and(is_closed)
    }

    /// Returns the heading that explains why rdcp may succeed where cp fails, if any.
    pub fn success_where_cp_fails(&self) -> Option<&'static str> {
        let is_closed = self.before.keys().any(|path| self.was_closed(path));
        let is_passed_over = self.source.keys().any(|path| has_temporary(path));
        is_closed.then_some(READ_ONLY).or(is_passed_over.then_some(TEMPORARY))
    }
}

fn mode(snapshot: &Snapshot, path: &[u8]) -> u32 {
    snapshot.get(path).map_or(0, |entry| entry.mode)
}

fn kind(snapshot: &Snapshot, path: &[u8]) -> &'static str {
    snapshot.get(path).map_or("nothing", |entry| entry.kind)
}

pub const ENTRIES: &[Entries] = &[
    Entries {
        heading: "Attributes of existing directories",
        is_meant: |finding, seen| {
            let has = |snapshot: &Snapshot| {
                snapshot.get(&finding.path).is_some_and(|entry| entry.attributes.contains_key(&finding.what))
            };
            finding.what.starts_with("user.") && has(seen.before) && !has(seen.source) && finding.got.is_none()
        },
    },
    Entries {
        heading: "Modes of directories",
        is_meant: |finding, seen| {
            let [source, reference, got] = [seen.source, seen.reference, seen.got].map(|it| mode(it, &finding.path));
            finding.what == "mode"
                && kind(seen.got, &finding.path) == "directory"
                && got == source
                && reference == got | reference & 0o7000
        },
    },
    Entries {
        heading: "Set-ID files of ordinary users",
        is_meant: |finding, seen| {
            finding.what == "mode"
                && seen.is_users
                && !seen.is_within
                && kind(seen.got, &finding.path) != "directory"
                && mode(seen.got, &finding.path) == mode(seen.reference, &finding.path) & !0o6000
        },
    },
    Entries {
        heading: "What is replaced",
        is_meant: |finding, seen| {
            let before = seen.before.get(&finding.path);
            finding.what == "kind"
                && finding.reference.is_none()
                && before.is_some()
                && before == seen.got.get(&finding.path)
        },
    },
    Entries {
        heading: "Links onto their targets",
        is_meant: |finding, seen| {
            let [source, got, before] = [seen.source, seen.got, seen.before].map(|it| kind(it, &finding.path));
            finding.what == "kind" && source == "link" && before != "link" && got == before
        },
    },
    Entries {
        heading: "Hard links to files that cannot be created",
        is_meant: |finding, seen| {
            let source = seen.source.get(&finding.path).and_then(|entry| entry.first_name.as_ref());
            let is_kept = seen.got.get(&finding.path).map(|entry| &entry.content)
                == seen.before.get(&finding.path).map(|entry| &entry.content);
            let failed = seen.source.iter().any(|(path, entry)| {
                entry.first_name.as_ref() == source && seen.reference.get(path).map(|it| it.kind) != Some(entry.kind)
            });
            source.is_some() && is_kept && failed
        },
    },
    Entries {
        heading: TEMPORARY,
        is_meant: |finding, seen| {
            let got = seen.got.get(&finding.path);
            // An existing entry with a temporary name stays, or is removed by the copy of the entry that it belongs to.
            let is_as_before = got.zip(seen.before.get(&finding.path)).is_some_and(|(got, before)| {
                // Its other hard links may now name another file.
                *got == Entry { first_name: got.first_name.clone(), ..before.clone() }
            });
            let is_passed_over = has_temporary(&finding.path) && (got.is_none() || is_as_before);
            // If some names of a hard-linked file are passed over, the remaining names still belong to one file.
            let group = seen.reference.get(&finding.path).and_then(|entry| entry.first_name.as_ref());
            let same = seen.reference.iter().filter(|(_, entry)| group.is_some() && entry.first_name.as_ref() == group);
            let (passed, others): (Vec<_>, Vec<_>) = same.map(|(path, _)| path).partition(|path| has_temporary(path));
            let first = if others.len() > 1 { others.first().copied() } else { None };
            let is_rest = finding.what == "first name"
                && !passed.is_empty()
                && got.is_some_and(|entry| entry.first_name.as_ref() == first);
            is_passed_over || is_rest
        },
    },
    Entries {
        heading: READ_ONLY,
        is_meant: |finding, seen| {
            let is_copied = kind(seen.got, &finding.path) == kind(seen.source, &finding.path);
            let is_below = |path: &[u8]| {
                let mut ends = (0..=path.len()).filter(|&end| path.get(end).is_none_or(|&byte| byte == b'/'));
                ends.any(|end| seen.was_closed(&path[..end]))
            };
            // If one name of a hard-linked file could not be replaced, its other names belong to another file.
            let is_linked = [seen.source, seen.reference, seen.got].into_iter().any(|snapshot| {
                let group = snapshot.get(&finding.path).and_then(|entry| entry.first_name.as_ref());
                group.is_some()
                    && snapshot.iter().any(|(path, entry)| entry.first_name.as_ref() == group && is_below(path))
            });
            let is_name = finding.what == "first name" && is_linked;
            is_copied && is_below(&finding.path) || is_name
        },
    },
];

fn has_temporary(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(is_temporary)
}

/// Whether the text matches the pattern.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|left| (0..=left.len()).any(|at| left.is_char_boundary(at) && matches(rest, &left[at..]))),
    }
}
