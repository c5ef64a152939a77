//! Entries that an option excludes or leaves unchanged, beside other entries of their directory and beside their own
//! further names. The other entries must become what rsync makes of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::copies::Way;
use crate::lines::{by_rdcp, by_rsync, wrong};
use crate::rig::lab::Lab;
use crate::snapshot::Finding;
use crate::told;
use crate::typed::{self, set_time};

/// Makes entries, one for each line:
/// `dir PATH`, `file PATH TEXT TIME`, `link PATH TARGET`, `fifo PATH`, `name FIRST PATH`.
fn plant(top: &Path, lines: &[&str]) {
    fs::create_dir_all(top).expect("a directory");
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let path = top.join(words[if words[0] == "name" { 2 } else { 1 }]);
        fs::create_dir_all(path.parent().expect("one")).expect("directories");
        match words[..] {
            ["dir", _] => fs::create_dir_all(&path).expect("a directory"),
            ["file", _, text, time] => {
                fs::write(&path, text).expect("a file");
                set_time(&path, time.parse().expect("a number"));
            }
            ["link", _, target] => symlink(target, &path).expect("a link"),
            ["fifo", _] => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO"),
            ["name", first, _] => fs::hard_link(top.join(first), &path).expect("a link"),
            _ => panic!("{line}"),
        }
        if matches!(words[0], "link" | "fifo") {
            set_time(&path, 1);
        }
    }
    // Making an entry has changed the time of its directory.
    for line in lines {
        let path = top.join(line.split(' ').nth(1).expect("a path"));
        path.ancestors()
            .take_while(|above| *above != top)
            .filter(|above| above.is_dir())
            .for_each(|above| set_time(above, 0));
    }
}

/// Options of both programs, the source, and the initial contents of DST.
type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// Copies each source with both programs and compares the results, except findings for which `is_fine` holds.
fn hold(cases: &[Case<'_>], is_fine: impl Fn(&Finding) -> bool) {
    let mut count = 0;
    for (options, source, old) in cases {
        for way in [Way::Within, Way::Push] {
            let lab = Lab::new();
            plant(&lab.join("src"), source);
            ["rsync", "rdcp"].iter().for_each(|place| plant(&lab.join(place), old));
            let sources = ["src/".to_owned()];
            let ended = [by_rsync(&lab, options, &sources, "rsync/"), by_rdcp(&lab, way, options, &sources, "rdcp/")];
            let lines = wrong(&lab, ended, |finding, _| is_fine(finding));
            count += usize::from(!lines.is_empty());
            told(lines, || format!("{options:?} {way:?}: {source:?} over {old:?}"), lab)
                .iter()
                .for_each(|line| eprintln!("{line}"));
        }
    }
    assert!(count == 0, "{count} cases with violations, see above");
}

/// Links and special files have no contents. If their first name is left unchanged at DST, or not made there, there is
/// no file of which the further names could be links.
#[test]
fn further_names_of_links_are_judged_by_themselves() {
    let cases: &[Case<'_>] = &[
        (&["--ignore-existing"], &["link s1 target", "name s1 s2"], &["file s1 data 1"]),
        (&["--ignore-existing"], &["fifo s1", "name s1 s2"], &["file s1 data 1"]),
        (&["--ignore-existing"], &["link s1 target", "name s1 s2"], &["dir s1"]),
        (&["--existing"], &["link l1 new", "name l1 l2"], &["link l2 old"]),
        (&["--existing"], &["fifo l1", "name l1 l2"], &["link l2 old"]),
        (&["--existing"], &["link l1 new", "name l1 l2"], &["dir l1", "link l2 old"]),
    ];
    // If both are made, entries without contents may be separate.
    hold(cases, |finding| finding.what == "first name");
}

const NAMES: &[&str] = &["file a text 1", "name a b", "name a c"];

#[test]
fn a_newer_file_is_not_replaced_by_a_further_name() {
    let cases: &[Case<'_>] = &[
        (&["-u"], NAMES, &["file b newer 9"]),
        (&["-u"], NAMES, &["file a newer 9"]),
        (&["-u"], NAMES, &["file a newer 9", "file c newer 8"]),
        (&["-u"], NAMES, &["link b newer"]),
        (&["-u"], &["link a text", "name a b"], &["file b newer 9"]),
        (&["-u", "-n"], NAMES, &["file b newer 9"]),
    ];
    hold(cases, |_| false);
    // Without times, the first name does not get the source's time, with which the others would be compared.
    let timeless: &[Case<'_>] = &[(&["-u", "--no-times", "-c"], &["file a text 20", "name a b"], &["file b newer 29"])];
    hold(timeless, |finding| finding.what == "modified");
}

/// rsync loses `c` here, because it replaces `b`.
#[test]
fn a_newer_file_stays_where_it_is_not_told_of() {
    for (way, is_large) in [(Way::Within, false), (Way::Push, false), (Way::Push, true)] {
        let lab = Lab::new();
        let text = "x".repeat(if is_large { 3 << 20 } else { 5 });
        plant(&lab.join("src"), &[&format!("file a {text} 1"), "name a b", "name a c"]);
        plant(&lab.join("rdcp"), &["file b older 0", "file c newer 9"]);
        let (said, ..) = typed::by_rdcp(&lab, &["-u"], way, &["-n", "--itemize-changes"]);
        let (done, code, stderr) = typed::by_rdcp(&lab, &["-u"], way, &["--itemize-changes"]);
        assert_eq!((code, &said), (0, &done), "{way:?}: {stderr}");
        assert!(done.iter().any(|line| line.contains(" b")), "{way:?}: {done:?}");
        assert!(!done.iter().any(|line| line.contains(" c")), "{way:?}: {done:?}");
        assert_eq!(fs::read_to_string(lab.join("rdcp/c")).expect("there"), "newer", "{way:?}");
        let [a, b] = ["a", "b"].map(|name| fs::metadata(lab.join("rdcp").join(name)).expect("there").ino());
        assert_eq!(a, b, "{way:?}");
    }
}

/// The sender is not told which further names are left unchanged, so nothing is removed.
#[test]
fn a_name_that_is_left_at_dst_is_not_removed_from_src() {
    for way in [Way::Within, Way::Push] {
        let lab = Lab::new();
        plant(&lab.join("src"), NAMES);
        plant(&lab.join("rdcp"), &["file b newer 9"]);
        let run = || typed::by_rdcp(&lab, &["-u", "--remove-source-files"], way, &[]);
        let there = |top: &str| ["a", "b", "c"].map(|name| fs::read_to_string(lab.join(top).join(name)).ok());
        let all = ["text"; 3].map(|text| Some(text.to_owned()));
        let (_, code, stderr) = run();
        assert!(code == 8 && stderr.contains("nothing is removed from SRC"), "{way:?} {code}: {stderr}");
        assert!(
            stderr.contains("rdcp/b") && stderr.contains("is newer than the source and was kept"),
            "{way:?}: {stderr}"
        );
        assert_eq!(there("src"), all, "{way:?}");
        assert_eq!(there("rdcp"), ["text", "newer", "text"].map(|text| Some(text.to_owned())), "{way:?}");
        fs::remove_file(lab.join("rdcp/b")).expect("removed");
        let (_, code, stderr) = run();
        assert_eq!(code, 0, "{way:?}: {stderr}");
        assert_eq!((there("src"), there("rdcp")), ([None, None, None], all), "{way:?}");
    }
}

#[test]
fn what_is_stale_is_deleted_beside_what_is_passed_over() {
    let links = &["link d/l x", "link e/l /away", "file a text 1"];
    let old = &["file d/stale s 1", "file d/l data 1", "file e/stale s 1", "file e/l/below data 1", "file stale s 1"];
    let to_directory = &["file a text 1", "file d/f text 1", "link sub d", "link other a"];
    let outward = &["file d/f text 1", "link sub ../src/d", "link other ../src/d/f"];
    let fifos = &["fifo p", "fifo d/p", "file d/f text 1"];
    let cases: &[Case<'_>] = &[
        (&["--delete", "--no-links"], links, old),
        (&["--delete-after", "--no-links"], links, old),
        (&["--delete", "--no-links", "--safe-links"], links, old),
        (&["--delete", "--no-links"], &["link l x"], &["file stale s 1"]),
        (&["--delete", "--no-links", "--exclude=l"], links, old),
        (&["--delete", "--delete-excluded", "--no-links", "--exclude=l"], links, old),
        (&["--delete", "--safe-links"], links, old),
        (&["--delete", "--safe-links", "--no-specials"], links, old),
        (&["--delete", "-k", "--safe-links"], outward, &["file stale s 1"]),
        (&["--delete", "--no-specials"], fifos, &["file stale s 1", "file p data 1", "file d/p/below data 1"]),
        (&["--delete", "-L", "--exclude=sub/"], to_directory, &["file stale s 1", "file sub/f kept 1"]),
        (&["--delete", "-L", "--exclude=sub/"], to_directory, &["file stale s 1", "file sub data 1"]),
        // A directory that contains nothing else counts as a directory without files.
        (&["--delete", "--no-links", "-m"], links, old),
        (&["--no-links", "-m"], links, &[]),
        (&["--delete", "--no-specials", "-m"], fifos, &["file stale s 1"]),
    ];
    hold(cases, |_| false);
}

/// A name that is reached through a link is not a name of the inode.
#[test]
fn links_that_are_followed_are_names_of_one_file() {
    let names = &["file b text 1", "name b z"];
    let large = "x".repeat(300_000);
    let large = format!("file b {large} 1");
    let with = |more: &[&'static str]| [&names[..], more].concat();
    let cases: &[Case<'_>] = &[
        (&["-L"], &with(&["link m b"]), &[]),
        (&["-L"], &with(&["link a b", "link m b"]), &[]),
        (&["-L"], &with(&["link a b"]), &["file z older 0"]),
        (&["-L"], &[&large, "name b z", "link a b", "link m b"], &[]),
    ];
    hold(cases, |_| false);
}
