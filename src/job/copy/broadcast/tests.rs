//! What is said of hosts that failed, and how an interrupted copy is resumed.

use super::*;
use crate::options::Rules;

/// A host that answers is not said to be cut off or down.
#[test]
fn only_one_that_is_not_heard_is_said_not_to_answer() {
    let says_so = |why: Why| why_failed(Some(why), true).starts_with("it no longer answers");
    assert!([Why::StoodStill, Why::CutOff, Why::Slow].into_iter().all(says_so));
    assert!(![Why::DiskStill, Why::Endless, Why::NoGiver].into_iter().any(says_so));
}

fn found(path: &str) -> (usize, Found) {
    let kind = match path.trim_end_matches('/').rsplit('/').next() {
        Some("file") => Kind::File,
        Some("link") if !path.ends_with('/') => Kind::Symlink,
        _ => Kind::Directory,
    };
    let name = crate::control::names::last_name(path.as_bytes()).to_vec();
    (HERE, Found { path: path.into(), name, kind, size_bytes: 0, device: 0, inode: 0 })
}

/// Another run with the words that are added has the same copies in the same places.
#[test]
fn what_is_added_leads_to_the_same_place() {
    const SYNC: Option<&str> = Some(" with --sync");
    const SYNC_T: Option<&str> = Some(" with --sync -T");
    const DST: &[bool] = &[true, true];
    const IN_DST: &[bool] = &[false, false];
    const MIXED: &[bool] = &[true, false];
    for (options, sources, are_dst, patterns, expected) in [
        (&[][..], &["src"][..], DST, &[][..], SYNC_T),
        (&[], &["src"], IN_DST, &[], SYNC),
        (&[], &["src"], MIXED, &[], None),
        (&[], &["src/"], DST, &[], SYNC),
        (&[], &["src/"], IN_DST, &[], None),
        (&[], &["src/"], MIXED, &[], None),
        (&[], &["link/"], IN_DST, &[], None),
        (&[], &["link"], IN_DST, &[], SYNC),
        (&[], &["file"], DST, &[], SYNC),
        (&[], &["file"], MIXED, &[], SYNC),
        (&[], &["src/."], DST, &[], SYNC),
        (&["-T"], &["src"], DST, &[], SYNC),
        (&["-T"], &["src/"], MIXED, &[], SYNC),
        (&["-t"], &["src"], IN_DST, &[], SYNC),
        (&["-t"], &["src/"], IN_DST, &[], None),
        (&["-t"], &["src/."], DST, &[], SYNC),
        (&["-t"], &["src"], DST, &[], None),
        // Several, of which one may be missing.
        (&[], &["src", "file"], IN_DST, &[], SYNC),
        (&[], &["src/", "file"], IN_DST, &[], None),
        (&[], &["src/.", "src"], IN_DST, &[], None),
        (&["missing"], &["src"], IN_DST, &[], SYNC),
        (&["missing"], &["src/"], IN_DST, &[], None),
        (&["missing"], &["src/."], IN_DST, &[], None),
        // Patterns apply to SRC itself, or to paths that begin with it.
        (&[], &["src"], DST, &["*.o", "tmp/"], SYNC_T),
        (&[], &["src"], DST, &["*.o", "/src/x"], None),
        (&[], &["src"], DST, &["src/x"], None),
        (&[], &["src"], DST, &["s**x"], None),
        (&[], &["src"], IN_DST, &["*.o"], None),
        (&[], &["src/"], DST, &["/x", "a/b"], SYNC),
        (&[], &["file"], DST, &["*.o"], None),
        (&[], &["src", "file"], IN_DST, &["*.o"], None),
        (&["-T"], &["src"], DST, &["/x"], SYNC),
        (&["-T"], &["file"], DST, &["*.o"], None),
        // The same command.
        (&["--sync"], &["src"], MIXED, &["/x"], Some("")),
        (&["--sync"], &["src", "file"], IN_DST, &["*.o"], Some("")),
    ] {
        let has = |option: &str| options.contains(&option);
        let rule = |pattern: &&str| Rule { pattern: pattern.as_bytes().to_vec().into(), is_include: false };
        let rules = Rules(patterns.iter().map(rule).collect());
        let tree = TreeOptions { sync: has("--sync"), rules, ..TreeOptions::default() };
        let all: Vec<_> = sources.iter().copied().map(found).collect();
        let several = all.len() > 1 || has("missing");
        let told = again(&tree, has("-T"), has("-t"), several, &all, are_dst);
        assert_eq!(told, expected, "{options:?} {sources:?} {are_dst:?} {patterns:?}");
    }
}
