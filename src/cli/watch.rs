//! `rdcp --watch`: repeats a copy whenever something has changed at the source.
//!
//! The watch is started before the first scan, so that no change is missed between the two. It tells only which
//! directories to look into; `--sync` finds out what has changed there. If changes may have been missed, the whole tree
//! is compared.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::fault::{Exit, Failure, escaped};
use crate::fs::{canonical, directory_of};
use crate::job::Setup;
use crate::job::plan::Spec;
use crate::job::watch::{SourceWatch, WatchPlan};
use crate::tree::Only;
use crate::tree::watch::{Touched, bound, watched_below};

/// Pauses in seconds before another attempt after a loss. The last one is used from then on.
const PAUSES: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// How long no room for a watch is waited for: longer than an agent that was cut off keeps its watch.
const SHORT_MAX: Duration = Duration::from_secs(20 * 60);

/// How long after a comparison of everything the next change leads to another one, if entries could not be copied.
const FAILED_AGAIN: Duration = Duration::from_secs(10 * 60);

/// How long a single wait lasts before it is repeated.
const LONG: Duration = Duration::from_secs(3600);

/// Copies again and again, until a signal arrives or a failure that no later copy can repair. `copy` makes one copy, of
/// everything or of the entries of some directories, and handles signals meanwhile. `say` prints lines for a person.
/// `waiting` is called before waiting for changes. The files `written` with each copy must not be in a watched
/// directory.
///
/// # Errors
///
/// Exit 5 if a source cannot be watched at the start; otherwise the failure of the last copy, or the signal.
pub(super) fn run(
    setup: &Setup,
    plan: &WatchPlan<'_>,
    written: &[PathBuf],
    say: impl Fn(&str),
    waiting: impl Fn(),
    mut copy: impl FnMut(Option<Only>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    check(plan, written)?;
    let start = || SourceWatch::start(setup.clone(), plan, &say);
    let mut watch = start()?;
    // A failure is not reported again until a copy has been made, or another failure has been reported.
    let (mut touched, mut has_copied, mut lost, mut said) = (None, false, 0, None);
    let (mut is_watched, mut short_since) = (true, None);
    // Whether entries could not be copied since everything was compared last, and what was said of them.
    let (mut lacks, mut lacking, mut compared_at) = (false, None::<String>, Instant::now());
    loop {
        if lacks && compared_at.elapsed() >= FAILED_AGAIN {
            touched = None;
        }
        let is_whole = touched.is_none();
        let copied = copy(touched.replace(BTreeSet::new()).map(entries_of));
        watch.forget_stops();
        if is_whole {
            (lacks, compared_at) = (false, Instant::now());
        }
        let mut failure = match copied {
            Err(failure) if is_loss(&failure) && has_copied => Some(failure),
            // The message names what failed. The next change beside it makes another attempt, and any after a while.
            Err(failure) if failure.exit == Exit::Partial || has_copied && is_told_entry(&failure) => {
                if let Some(line) = failure.message.filter(|line| lacking.as_ref() != Some(line)) {
                    tell(Some(&line));
                    lacking = Some(line);
                }
                lacks = true;
                None
            }
            done => {
                done?;
                lacking = None;
                None
            }
        };
        if failure.is_none() {
            (has_copied, lost, said) = (true, 0, None);
            waiting();
            failure = gather(&mut watch, &mut touched)?;
            is_watched = failure.is_none();
        }
        // Repeats until the source is watched again.
        while let Some(Failure { message, exit, .. }) = failure.take() {
            touched = None;
            let pause = Duration::from_secs(PAUSES[lost.min(PAUSES.len() - 1)]);
            lost += 1;
            let is_new = said.as_deref().map(cause_of) != message.as_deref().map(cause_of);
            if is_new {
                tell(message.as_deref());
                said = message;
            }
            if is_new || is_pause_told(lost) {
                say(&format!("trying again in {} s", pause.as_secs()));
            }
            watch.rest(pause)?;
            is_watched &= exit != Exit::Source && watch.is_there();
            if is_watched {
                break;
            }
            // There may be no room for a second watch of all of SRC.
            watch.end()?;
            match start() {
                Ok(started) => (watch, is_watched, short_since) = (started, true, None),
                Err(error) if is_loss(&error) || is_short_for_now(&error, &mut short_since) => {
                    // A login that was stopped has stopped this process already.
                    watch.forget_stops();
                    failure = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns what a line says besides how much is kept, which differs with each attempt.
fn cause_of(line: &str) -> &str {
    let is_of_rest = |&(at, _): &(usize, &str)| {
        [" kept in ", " are kept, run again", " may have kept", " incomplete (written in place), "]
            .iter()
            .any(|words| line[at..].contains(words))
    };
    line.rmatch_indices("; ").find(is_of_rest).map_or(line, |(at, _)| &line[..at])
}

/// Whether the pause before this attempt is told, although the failure was reported before: only until all further
/// pauses are equal, so that an outage of days does not fill a log.
fn is_pause_told(attempt: usize) -> bool {
    attempt <= PAUSES.len()
}

/// Prints what has failed. A failure without a message has been reported by the copy.
fn tell(message: Option<&str>) {
    if let Some(line) = message {
        super::complain("rdcp", line);
    }
}

/// Waits for a change, and takes all other changes that have arrived by then. Returns the failure if a host or source
/// was lost, or if there was no room to watch everything anew.
fn gather(watch: &mut SourceWatch, touched: &mut Touched) -> Result<Option<Failure>, Failure> {
    let mut has_changed = false;
    watch.ask();
    loop {
        match watch.next(Instant::now() + if has_changed { Duration::ZERO } else { LONG }) {
            Ok(Some(changed)) => {
                has_changed = true;
                *touched = touched.take().zip(changed).map(|(mut some, others)| {
                    some.extend(others);
                    some
                });
                bound(touched);
            }
            Ok(None) if has_changed => return Ok(None),
            Ok(None) => {}
            Err(failure) if is_loss(&failure) || is_shortage(&failure) => return Ok(Some(failure)),
            Err(failure) => return Err(failure),
        }
    }
}

/// Whether a failure may be temporary: a host is lost, SRC is missing, as it is while it is being replaced, or there is
/// no room at DST.
fn is_loss(failure: &Failure) -> bool {
    match failure.exit {
        Exit::Connect | Exit::LinkLost => true,
        Exit::Source => has_errno(failure, &[Errno::NOENT]),
        Exit::Destination => has_errno(failure, &[Errno::NOSPC, Errno::DQUOT]),
        _ => false,
    }
}

/// Whether there was no room for a watch, and it may come back. `since`: when this was first so.
fn is_short_for_now(failure: &Failure, since: &mut Option<Instant>) -> bool {
    is_shortage(failure) && since.get_or_insert_with(Instant::now).elapsed() < SHORT_MAX
}

/// Whether there was no room for a watch.
fn is_shortage(failure: &Failure) -> bool {
    failure.exit == Exit::Source && has_errno(failure, &[Errno::NOSPC, Errno::MFILE])
}

fn has_errno(failure: &Failure, errors: &[Errno]) -> bool {
    failure.site.as_ref().is_some_and(|site| errors.iter().any(|error| error.raw_os_error() == site.errno))
}

/// Whether nothing of SRC could be copied because of an entry, and the copy has said so: for example because SRC is one
/// file, which is being written at the moment. If SRC had other entries, they would have been copied.
fn is_told_entry(failure: &Failure) -> bool {
    matches!(failure, Failure { exit: Exit::Source | Exit::Destination, message: None, site: None, .. })
}

/// Selects the entries of these directories, and of the source itself.
fn entries_of(directories: BTreeSet<Vec<u8>>) -> Only {
    let paths = [Vec::new()].into_iter().chain(directories);
    Only { paths: paths.map(|path| [&path[..], b"/"].concat().into()).collect(), recursive: false, is_watched: true }
}

/// Refuses sources that cannot be watched, and written files that lie in a source.
fn check(plan: &WatchPlan<'_>, written: &[PathBuf]) -> Result<(), Failure> {
    let usage = |line: String| Err(Exit::Usage.with(line));
    if plan.sources.contains(&Spec::Standard) {
        return usage("--watch: SRC cannot be standard input, which does not change".to_owned());
    }
    let here = plan.sources.iter().filter(|source| matches!(source, Spec::Here(_)));
    let paths = here.map(|source| PathBuf::from(source.path())).flat_map(|path| match plan.only() {
        Some(only) => only.paths.iter().map(|listed| path.join(watched_below(&path, listed))).collect(),
        None => vec![path],
    });
    let directories: Vec<_> = paths.filter_map(|path| canonical(&path).ok()).filter(|path| path.is_dir()).collect();
    // The path `-` is standard output.
    for file in written.iter().filter(|file| file.as_os_str() != "-") {
        let directory = directory_of(file).canonicalize().unwrap_or_default();
        if directories.iter().any(|path| directory.starts_with(path)) {
            return usage(format!(
                "--watch: {} is in SRC, so each copy would start another",
                escaped(file.as_os_str())
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::watch::tests::without_room;
    use crate::options::TreeOptions;

    #[test]
    fn room_that_is_lacking_for_a_renewed_watch_is_waited_for() {
        let failure = gather(&mut without_room(), &mut None).expect("it may come back").expect("no room");
        assert!(is_shortage(&failure), "{failure:?}");
    }

    #[test]
    fn only_a_source_that_has_gone_may_come_back() {
        let failure = || Exit::Source.with("it");
        let with = |error: Errno| failure().about("h".as_ref(), b"from", error.raw_os_error());
        assert!(is_loss(&with(Errno::NOENT)) && is_loss(&Exit::LinkLost.with("it")));
        assert!(!is_loss(&failure()) && !is_loss(&with(Errno::NOSPC)) && !is_loss(&with(Errno::ACCESS)));
    }

    #[test]
    fn room_for_a_watch_may_come_back() {
        let with = |exit: Exit, error: Errno| exit.with("it").about("h".as_ref(), b"", error.raw_os_error());
        assert!([Errno::NOSPC, Errno::MFILE].into_iter().all(|error| is_shortage(&with(Exit::Source, error))));
        assert!(!is_shortage(&with(Exit::Source, Errno::ACCESS)) && !is_shortage(&with(Exit::Usage, Errno::NOSPC)));
        assert!(!is_shortage(&Exit::Source.with("it")));
        // Waiting for longer cures no shortage, and would hide it.
        let (short, mut since) = (with(Exit::Source, Errno::NOSPC), None);
        assert!(is_short_for_now(&short, &mut since) && since.is_some());
        since = Instant::now().checked_sub(SHORT_MAX);
        assert!(
            !is_short_for_now(&short, &mut since) && !is_short_for_now(&with(Exit::Source, Errno::ACCESS), &mut None)
        );
    }

    #[test]
    fn how_much_is_kept_is_no_other_cause() {
        let line = |kept: &str| format!("cannot write h:to: No space left on device; {kept}");
        let cause = line("43 MiB kept in h:.1.rd-part, make room and run again to resume");
        assert_eq!(cause_of(&cause), "cannot write h:to: No space left on device");
        assert_eq!(cause_of(&cause), cause_of(&line("nothing usable kept in h:.1.rd-part, run again, or remove it")));
        for kept in
            ["files received in full are kept, run again to resume", "run again to resume from what h may have kept"]
        {
            assert_eq!(cause_of(&line(kept)), cause_of(&cause));
        }
        let in_place =
            |others: &str| line(&format!("a/b{others} incomplete (written in place), run again to complete it"));
        assert_eq!(cause_of(&in_place(" is")), cause_of(&in_place(" and 3 more are")));
        assert_eq!(cause_of("lost h; see it"), "lost h; see it");
    }

    #[test]
    fn each_pause_is_told_once() {
        let told: Vec<usize> = (1..1440).filter(|&attempt| is_pause_told(attempt)).collect();
        assert_eq!(told, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_file_that_each_copy_writes_must_not_be_in_src() {
        let refused = |only: Option<&Only>, file: &str| {
            let plan = WatchPlan { sources: &[Spec::Here("./".into())], only, tree: &TreeOptions::default() };
            check(&plan, &[PathBuf::from(file)]).is_err()
        };
        assert!(refused(None, "log") && refused(None, "src/log") && !refused(None, "/log"));
        assert!(!refused(None, "-"), "standard output is no file");
        // With -R, SRC is what is listed, and not where its path begins.
        let only = Only { paths: vec![b"src/cli".to_vec().into()], ..Only::default() };
        assert!(refused(Some(&only), "src/cli/log") && !refused(Some(&only), "src/log"));
    }

    #[test]
    fn only_room_may_come_back_at_the_destination() {
        let failure = || Exit::Destination.with("it");
        let with = |error: Errno| failure().about("h".as_ref(), b"to", error.raw_os_error());
        assert!(is_loss(&with(Errno::NOSPC)) && is_loss(&with(Errno::DQUOT)));
        assert!(!is_loss(&failure()) && !is_loss(&with(Errno::NOENT)) && !is_loss(&with(Errno::ROFS)));
    }
}
