//! Options and settings that have no meaning for a command line of `rdcp`.

use std::ffi::OsString;
use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use super::targets::TargetOptions;
use super::{CopyArguments, as_standard};
use crate::cli::options::ReportOptions;
use crate::cli::uses::{idle_launching, typed};
use crate::job::plan::Spec;
use crate::job::targets::is_several;
use crate::options::{TransferOptions, TreeOptions};

/// Identifiers of the options, apart from those of trees, targets and transfers, that only a copy obeys.
const OF_COPIES: [&str; 6] = ["files_from", "from0", "backup", "stats", "via", "relay"];

/// Identifiers of options for trees that say what a comparison does anyway.
const DONE_ANYWAY: [&str; 2] = ["recursive", "checksum"];

/// Identifiers of the options, apart from those of reports, that `--join` obeys or that are not the user's.
const OF_JOINING: [&str; 4] = ["paths", "join", "negated", "read_without_sync"];

/// Returns what is wrong with a command line that has an option without a meaning for it. See
/// [`crate::cli::Arguments::refused`].
pub(super) fn refused(given: &ArgMatches) -> Option<String> {
    if !["check", "join"].iter().any(|task| given.contains_id(task)) {
        return None;
    }
    let command = CopyArguments::command();
    let (task, option) = if given.contains_id("check") {
        let copying = TreeOptions::augment_args(TargetOptions::augment_args(Command::new("copies")));
        let copying = TransferOptions::augment_args(copying);
        let ids = copying.get_arguments().map(|option| option.get_id().as_str()).filter(|id| !DONE_ANYWAY.contains(id));
        ("--check", ids.chain(OF_COPIES).find_map(|id| typed(&command, given, id))?)
    } else {
        let reporting = ReportOptions::augment_args(Command::new("reports"));
        let reporting: Vec<&str> = reporting.get_arguments().map(|option| option.get_id().as_str()).collect();
        let ids = command.get_arguments().map(|option| option.get_id().as_str());
        let mut ids = ids.filter(|id| !reporting.contains(id) && !OF_JOINING.contains(id));
        ("--join", ids.find_map(|id| typed(&command, given, id))?)
    };
    Some(format!("{option} cannot be used with {task}; it is for copies"))
}

/// Returns why a setting has no effect. See [`crate::cli::Arguments::idle`].
pub(super) fn idle(given: &ArgMatches, key: &str) -> Option<String> {
    if given.get_many::<String>("negated").is_some_and(|mut keys| keys.any(|negated| negated == key)) {
        return Some("the command line turns it off".to_owned());
    }
    let words = ["paths", "target_directory", "to"].into_iter().filter_map(|id| given.get_many::<OsString>(id));
    let specs: Vec<Spec> = words.flatten().filter_map(|word| Spec::parse(word).ok()).map(as_standard).collect();
    let of_trees = ["verify", "fsync", "sync", "itemize-changes", "chmod", "chown"];
    // With `-r`, a FIFO or a device in SRC is made anew.
    let are_streams = specs.split_last().is_some_and(|(to, from)| {
        is_serial(to) || !from.is_empty() && from.iter().all(is_serial) && !given.get_flag("recursive")
    });
    if of_trees.contains(&key) && (specs.contains(&Spec::Standard) || are_streams) {
        return Some(format!("--{key} is for files and trees"));
    }
    let count = |id| given.get_many::<OsString>(id).map_or(0, |values| values.len());
    let has_destination = count("paths") > 1 || given.contains_id("target_directory");
    let are_several =
        count("to") + usize::from(has_destination) > 1 || specs.iter().any(|spec| is_several(spec.host()));
    // With `--hosts`, `relay` is not dropped: a refusal is better than sending the data another way.
    let may_be_several = are_several || given.contains_id("hosts") && key != "relay";
    if may_be_several && ["stats", "itemize-changes", "relay"].contains(&key) {
        return Some(format!("--{key} is for copies to one host"));
    }
    let report = ReportOptions::from_arg_matches(given);
    if key == "itemize-changes" && report.is_ok_and(|report| report.is_json_on_output()) {
        return Some("--json uses standard output".to_owned());
    }
    if key == "backup-dir" && given.contains_id("snapshot") {
        return Some("--snapshot overwrites nothing".to_owned());
    }
    if key == "find-moves" && given.contains_id("snapshot") {
        return Some("--snapshot makes a new generation, which is empty".to_owned());
    }
    // The hosts of `--hosts` take the place of this one in DST.
    let is_within =
        !given.contains_id("hosts") && specs.len() > 1 && specs.iter().all(|spec| spec.host() == specs[0].host());
    let is_idle = is_within && ["verify", "bwlimit"].contains(&key) && !specs.iter().any(is_stream);
    is_idle.then(|| format!("--{key} is for copies between hosts")).or_else(|| idle_launching(given, key))
}

/// Whether a path leads to a file of this host whose type is one for which `is` holds.
fn leads_to(spec: &Spec, is: impl Fn(FileType) -> bool) -> bool {
    matches!(spec, Spec::Here(path) if std::fs::metadata(path).is_ok_and(|found| is(found.file_type())))
}

/// Whether a path on this host is read or written as a stream.
fn is_stream(spec: &Spec) -> bool {
    *spec == Spec::Standard || leads_to(spec, |kind| !kind.is_file() && !kind.is_dir())
}

/// Whether a path leads to a FIFO or a character device of this host. Block devices can be read and written as files.
fn is_serial(spec: &Spec) -> bool {
    leads_to(spec, |kind| kind.is_fifo() || kind.is_char_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting must not make copies impossible that do not need it.
    #[test]
    fn settings_for_trees_do_not_concern_streams() {
        let is_idle = |line: &str| {
            let given = CopyArguments::command().try_get_matches_from(line.split(' '));
            idle(&given.unwrap_or_else(|error| panic!("{line}: {error}")), "fsync").is_some()
        };
        for line in ["rdcp h:file /dev/null", "rdcp /dev/zero h:file", "rdcp -r h:tree /dev/null", "rdcp - h:file"] {
            assert!(is_idle(line), "{line}");
        }
        for line in ["rdcp -r /dev/null h:tree", "rdcp -r /dev h:tree", "rdcp file h:null", "rdcp file /dev/zero h:d"] {
            assert!(!is_idle(line), "{line}");
        }
    }

    #[test]
    fn settings_that_a_new_generation_has_no_use_for_do_not_concern_it() {
        for key in ["backup-dir", "find-moves"] {
            for (line, expected) in [("rdcp --sync --snapshot one a b", true), ("rdcp --sync a b", false)] {
                let given = CopyArguments::command().try_get_matches_from(line.split(' ')).expect("options");
                assert_eq!(idle(&given, key).is_some(), expected, "{key} with {line}");
            }
        }
    }

    #[test]
    fn what_a_comparison_does_not_obey_is_refused() {
        let said = |line: &str| {
            let given = CopyArguments::command().try_get_matches_from(line.split(' '));
            refused(&given.unwrap_or_else(|error| panic!("{line}: {error}")))
        };
        for option in ["--exclude=x", "--exclude-from=x", "--sync", "--no-mode", "--copy-links", "--from0", "--stall=3"]
        {
            let name = option.split('=').next().expect("a name");
            let expected = format!("{name} cannot be used with --check; it is for copies");
            assert_eq!(said(&format!("rdcp --check m d {option}")), Some(expected));
            assert_eq!(said(&format!("rdcp m d {option}")), None);
        }
        for option in ["--stats", "--via=ib0", "--relay", "--encrypt=always", "--bwlimit=1M", "--rails=all"] {
            let line = format!("rdcp --check m d {option}");
            assert!(said(&line).is_some_and(|said| said.contains(" with --check; ")), "{line}");
        }
        for line in ["rdcp --check m h:d -r --checksum -v -q --json=x -P 3 --human-readable", "rdcp a h:"] {
            assert_eq!(said(line), None, "{line}");
        }
    }

    #[test]
    fn what_the_copy_decides_that_a_host_joins_is_refused() {
        let said = |line: &str| {
            let given = CopyArguments::command().try_get_matches_from(line.split(' '));
            refused(&given.unwrap_or_else(|error| panic!("{line}: {error}")))
        };
        for option in ["--recursive", "--encrypt=always", "--exclude=x", "--agent=x", "--ssh-port=3", "--stall=3"] {
            let name = option.split('=').next().expect("a name");
            let expected = format!("{name} cannot be used with --join; it is for copies");
            assert_eq!(said(&format!("rdcp --join j h {option}")), Some(expected));
        }
        let line = "rdcp --read-without-sync --join j h: -v -q --progress --json=x --report=x --trace=x --color=never";
        assert_eq!(said(line), None);
    }
}
