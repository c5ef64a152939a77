//! What is said of hosts that failed, and how an interrupted copy is resumed.

use super::chain::CopyEnd;
use super::interrupted::{again, anew, is_less_with_sync};
use super::*;
use crate::options::{Rule, Rules};

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

/// With --sync the source sends each host what it lacks. The same command again sends everything once.
#[test]
fn what_is_advised_has_less_to_send() {
    for (length, lacking, kept, is_less) in [
        (None, 1, 1, true),
        (Some(100), 1, 1, true),
        (Some(100), 2, 100, false),
        (Some(100), 2, 101, true),
        (Some(100), 64, 6300, false),
        (Some(100), 64, 6301, true),
        // It may be much longer than what has come.
        (None, 2, 101, false),
    ] {
        assert_eq!(is_less_with_sync(length, lacking, kept), is_less, "{length:?} {lacking} {kept}");
    }
}

/// Where one of three hosts is complete and has the copy as DST, SRC would go into that.
#[test]
fn what_is_sent_anew_goes_to_the_same_place() {
    for (exact, source, is_dst, done, expected) in [
        (false, "src", true, 1, " with -T"),
        (false, "src/", true, 1, " with -T"),
        (false, "src", true, 0, ""),
        (false, "src", false, 1, ""),
        (true, "src", true, 1, ""),
        (false, "src/.", true, 1, ""),
        (false, "file", true, 1, ""),
    ] {
        assert_eq!(anew(exact, &[found(source)], &[is_dst; 3], done), expected, "{exact} {source} {is_dst} {done}");
    }
}

/// Returns a run in which all hosts have their copies, and whether each copy is of another version than the stream.
fn with_versions(are_other: &[bool]) -> Run {
    let target = |(at, &is_other): (usize, &bool)| {
        let report = Report { tree: TreeFigures { is_other, ..TreeFigures::default() }, ..Report::default() };
        let spec = Spec::There(format!("h{}", at + 1).into(), "/x".into());
        Target { spec, report: Some(report), done_after: Some(Duration::ZERO), ..Target::default() }
    };
    let targets: Vec<Target> = are_other.iter().enumerate().map(target).collect();
    let mut chain = Chain::of_copies(targets.len());
    for _ in &targets {
        let node = chain.join(true);
        chain.copy_over(SOURCE, node, CopyEnd::Made);
    }
    Run {
        nodes: (0..targets.len()).collect(),
        targets,
        rows: Vec::new(),
        streaming: 0,
        chain,
        has_begun: true,
        told_joiners: Instant::now(),
        quickest: None,
        source: HERE,
        found: Vec::new(),
        settings: TreeOptions::default(),
        began: Instant::now(),
        source_state: BroadcastState::default(),
        source_report: None,
        source_failure: None,
        links: Links::default(),
        copies: HashMap::new(),
        kept: HashMap::new(),
    }
}

/// A host with another version than the stream's has failed if any host has that. Otherwise none has failed, but the
/// hosts may differ.
#[test]
fn another_version_is_a_failure_if_any_host_has_the_first() {
    for (are_other, failed, may_differ) in [
        (&[false, true, true][..], &[1, 2][..], false),
        (&[false, false], &[], false),
        (&[true, true], &[], true),
        (&[true], &[], false),
    ] {
        let run = with_versions(are_other);
        for at in 0..are_other.len() {
            let has_failed = failed.contains(&at);
            assert_eq!(run.other_version(at).is_some(), has_failed, "{at} of {are_other:?}");
            let expected = if has_failed { HostStanding::Failed } else { HostStanding::Done };
            assert_eq!(run.shown(at).standing, expected, "{at} of {are_other:?}");
        }
        assert_eq!(run.may_differ(), may_differ, "{are_other:?}");
    }
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
