//! Changes at the sources of `rdcp --watch`. Each host with a source watches it, and is asked for the next change when
//! the copy is made that the previous one led to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;

use super::plan::Spec;
use super::{Job, LONG, Setup, Update};
use crate::control::frames::{Fault, MESSAGE_BYTES_MAX, Message, RULES_BYTES_MAX, Watch};
use crate::fault::Failure;
use crate::options::{Rules, TreeOptions};
use crate::tree::Only;
use crate::tree::watch::Touched;

/// After how long a line says what setting up the watches takes so long with.
const SLOW: Duration = Duration::from_secs(10);

/// Maximum length of the listed paths in one message, with what precedes them, in bytes. The rest is for rules and names.
const ONLY_BYTES_MAX: usize = MESSAGE_BYTES_MAX - RULES_BYTES_MAX - (16 << 10);

/// What is watched.
pub(crate) struct WatchPlan<'a> {
    pub(crate) sources: &'a [Spec],
    /// If set, only these paths of the only source are watched.
    pub(crate) only: Option<&'a Only>,
    /// Options of the copy.
    pub(crate) tree: &'a TreeOptions,
}

impl WatchPlan<'_> {
    /// Returns the listed paths that are watched. Of more than a message holds, the directory where they begin is watched.
    pub(crate) fn only(&self) -> Option<&Only> {
        self.only.filter(|only| bytes(&only.paths) <= ONLY_BYTES_MAX)
    }

    /// Returns the question to a host that has sources at these paths.
    fn question(&self, paths: Vec<ByteVec>) -> Message {
        // Whether a pattern leaves out a link that is followed depends on what it leads to.
        let follows = self.tree.copy_links || self.tree.copy_dirlinks || self.tree.copy_unsafe_links;
        // Without rules, more is watched than necessary.
        let leaves_out = !follows && bytes(&paths) <= ONLY_BYTES_MAX;
        Message::Watch(Watch {
            paths,
            is_one_system: self.tree.one_file_system,
            only: self.only().map(|only| only.paths.clone()).unwrap_or_default(),
            rules: if leaves_out { self.tree.rules.clone() } else { Rules::default() },
            digest_cache: self.tree.digest_cache.clone(),
        })
    }
}

/// Returns the length of paths in a message, with what precedes them.
fn bytes(paths: &[ByteVec]) -> usize {
    paths.iter().map(|path| path.len() + 8).sum()
}

/// The hosts that watch. Dropping this ends their agents.
pub(crate) struct SourceWatch {
    job: Job,
    hosts: Vec<usize>,
    /// Hosts that have been asked for a change, and have not told one yet.
    asked: BTreeSet<usize>,
    /// Whether there are several sources. Their changed directories are not passed on.
    has_several: bool,
}

impl SourceWatch {
    /// Has the host of each source watch it. From then on no change is missed. `say` prints a line if this takes long.
    ///
    /// # Errors
    ///
    /// Exit 3 or 4 for a host that cannot be reached, 5 if a path cannot be watched, 128+n for a signal.
    pub(crate) fn start(setup: Setup, plan: &WatchPlan<'_>, say: &dyn Fn(&str)) -> Result<Self, Failure> {
        let mut job = Job::new(setup, false)?;
        let mut paths: BTreeMap<&OsStr, Vec<_>> = BTreeMap::new();
        for source in plan.sources {
            paths.entry(source.host()).or_default().push(source.path().as_bytes().to_vec().into());
        }
        let mut hosts = Vec::new();
        for (name, paths) in paths {
            hosts.push((job.host(name)?, paths));
        }
        job.greet()?;
        for (host, paths) in &hosts {
            job.send(*host, plan.question(paths.clone()));
        }
        let hosts: Vec<usize> = hosts.into_iter().map(|(host, _)| host).collect();
        await_watches(&mut job, &hosts, SLOW, say)?;
        Ok(Self { job, hosts, asked: BTreeSet::new(), has_several: plan.sources.len() > 1 })
    }

    /// Whether all hosts that watch are still heard, as far as is known by now.
    pub(crate) fn is_there(&self) -> bool {
        self.hosts.iter().all(|&host| !self.job.hosts[host].gone)
    }

    /// Ends the watch. What remains handles signals.
    ///
    /// # Errors
    ///
    /// Exit 3 if signals cannot be handled.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.hosts.clear();
        self.job = Job::new(self.job.setup.clone(), false)?;
        Ok(())
    }

    /// Asks each host for the next change, unless it has been asked already. Must be called when a copy has been made:
    /// an hour later, the host asks for a comparison of everything.
    pub(crate) fn ask(&mut self) {
        for &host in &self.hosts {
            if self.asked.insert(host) {
                self.job.send(host, Message::TellChanges);
            }
        }
    }

    /// Waits until something has changed, and returns in which directories; `None` if nothing has by the deadline.
    ///
    /// # Errors
    ///
    /// Exit 4 for a lost host, 5 if a path can no longer be watched, 128+n for a signal.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Option<Touched>, Failure> {
        while let Some(update) = self.job.next(deadline) {
            match update {
                Update::Host(host, Message::Changed(directories)) if self.asked.remove(&host) => {
                    let directories = directories.filter(|_| !self.has_several);
                    let touched = directories.map(|some| some.into_iter().map(Into::into).collect());
                    return Ok(Some(touched));
                }
                Update::Host(host, Message::Failed(fault)) => return Err(unwatched(&self.job, host, &fault)),
                Update::Host(host, _) => return Err(self.job.unexpected(host)),
                update => self.job.check(update)?,
            }
        }
        Ok(None)
    }

    /// Does nothing for a while, even if a host is lost. What comes meanwhile is kept: a host tells no further change
    /// until it is asked again.
    ///
    /// # Errors
    ///
    /// 128+n for a signal.
    pub(crate) fn rest(&mut self, pause: Duration) -> Result<(), Failure> {
        let (until, mut others) = (Instant::now() + pause, VecDeque::new());
        while let Some(update) = self.job.next(until) {
            match update {
                Update::Signal(_) => self.job.check(update)?,
                other => others.push_back(other),
            }
        }
        self.job.updates = others;
        Ok(())
    }

    /// Drops stop signals after a copy, because the copy has stopped and continued by itself.
    pub(crate) fn forget_stops(&mut self) {
        let mut others = VecDeque::new();
        while let Some(update) = self.job.next(Instant::now()) {
            others.extend(Some(update).filter(|update| !matches!(update, Update::Signal(libc::SIGTSTP))));
        }
        self.job.updates = others;
    }
}

/// Waits until all of these hosts watch. To read all directories of a large tree may take hours. A host that is lost
/// meanwhile ends the wait.
fn await_watches(job: &mut Job, hosts: &[usize], slow: Duration, say: &dyn Fn(&str)) -> Result<(), Failure> {
    let (mut left, mut wait) = (BTreeSet::from_iter(hosts), slow);
    while !left.is_empty() {
        match job.next(Instant::now() + wait) {
            Some(Update::Host(host, Message::Watched)) if left.remove(&host) => {}
            Some(Update::Host(host, Message::Failed(fault))) => return Err(unwatched(job, host, &fault)),
            Some(Update::Host(host, _)) => return Err(job.unexpected(host)),
            Some(update) => job.check(update)?,
            None => {
                say("still reading the directories that are to be watched");
                wait = LONG;
            }
        }
    }
    Ok(())
}

/// Returns the failure of a host that cannot watch, with the error number, which tells whether the cause may pass.
fn unwatched(job: &Job, host: usize, fault: &Fault) -> Failure {
    let failure = job.failure(host, fault);
    if fault.errno == 0 { failure } else { failure.about(&job.hosts[host].name, &fault.path, fault.errno) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::fault::Exit;
    use crate::job::HERE;
    use crate::job::launching::Heard;
    use crate::job::tests::job;
    use crate::options::Rule;

    /// Returns a watch whose host has ended it, because there is no room for it any more.
    pub(crate) fn without_room() -> SourceWatch {
        let mut job = job();
        let fault = Fault { errno: libc::ENOSPC, ..Fault::plain(Exit::Source.code(), "cannot watch d: too many") };
        job.updates.push_back(Update::Host(HERE, Message::Failed(fault)));
        SourceWatch { job, hosts: vec![HERE], asked: BTreeSet::new(), has_several: false }
    }

    #[test]
    fn a_watch_is_waited_for_as_long_as_its_host_is_heard() {
        let (mut job, said) = (job(), Cell::new(0));
        let begin = |job: &mut Job, hosts: &[usize]| {
            await_watches(job, hosts, Duration::from_millis(20), &|_: &str| said.set(said.get() + 1))
        };
        let post = job.post.clone();
        let answer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            post.send((HERE, Heard::Message(Message::Watched))).is_ok()
        });
        begin(&mut job, &[HERE]).expect("watched");
        assert!(answer.join().expect("no panic") && said.get() == 1, "{} lines", said.get());
        let lost = job.host(OsStr::new("lost")).expect("a host");
        job.updates.push_back(Update::Host(HERE, Message::Watched));
        job.lose(lost, None);
        assert_eq!(begin(&mut job, &[HERE, lost]).expect_err("lost").exit, Exit::LinkLost);
    }

    #[test]
    fn a_watch_for_which_there_is_no_room_is_told_by_its_number() {
        let mut job = without_room().job;
        let begun = await_watches(&mut job, &[HERE], LONG, &|_: &str| ());
        for failure in [begun.expect_err("no room"), without_room().next(Instant::now()).expect_err("no room")] {
            assert_eq!(failure.message.as_deref(), Some("cannot watch d: too many"));
            assert_eq!(failure.site.expect("a site").errno, libc::ENOSPC);
        }
    }

    /// Otherwise a host could have one copy made after the other, without a pause.
    #[test]
    fn a_change_that_was_not_asked_for_ends_the_watch() {
        let mut watch = without_room();
        let changed = || Update::Host(HERE, Message::Changed(None));
        watch.job.updates = VecDeque::from([changed(), changed()]);
        watch.asked.insert(HERE);
        assert_eq!(watch.next(Instant::now()).expect("asked for"), Some(None));
        assert_eq!(watch.next(Instant::now()).expect_err("not asked for").exit, Exit::Protocol);
    }

    #[test]
    fn what_links_lead_to_may_be_copied_whatever_their_names() {
        let rules = Rules(vec![Rule { pattern: b"*".to_vec().into(), is_include: false }]);
        let rules_with = |tree: TreeOptions| {
            let plan = WatchPlan { sources: &[], only: None, tree: &tree };
            let Message::Watch(asked) = plan.question(Vec::new()) else { unreachable!() };
            asked.rules
        };
        let tree = TreeOptions { rules: rules.clone(), ..TreeOptions::default() };
        assert_eq!(rules_with(TreeOptions { copy_dirlinks: true, ..tree.clone() }), Rules::default());
        assert_eq!(rules_with(tree), rules);
    }
}
