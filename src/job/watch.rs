//! Changes at the sources of `rdcp --watch`. Each host with a source watches it, and is asked for the next change when
//! the copy is made that the previous one led to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::plan::Spec;
use super::{Job, Setup, Update};
use crate::control::frames::Message;
use crate::fault::Failure;
use crate::tree::watch::Touched;

/// How long setting up the watch of a large tree may take.
const START_MAX: Duration = Duration::from_secs(600);

/// The hosts that watch. Dropping this ends their agents.
pub(crate) struct SourceWatch {
    job: Job,
    hosts: Vec<usize>,
    /// Hosts that have been asked for a change, and have not told one yet.
    asked: BTreeSet<usize>,
    /// Whether there are several sources. Their changed directories are not passed on.
    has_several: bool,
}

/// What has come while the hosts watched.
pub(crate) enum Watched {
    /// Something has changed in these directories.
    Changed(Touched),
    /// Nothing has changed by the deadline.
    Nothing,
}

impl SourceWatch {
    /// Has the host of each source watch it, with `is_one_system` only what is on the same file system. From then on no
    /// change is missed.
    ///
    /// # Errors
    ///
    /// Exit 3 or 4 for a host that cannot be reached, 5 if a path cannot be watched, 128+n for a signal.
    pub(crate) fn start(setup: Setup, sources: &[Spec], is_one_system: bool) -> Result<Self, Failure> {
        let mut job = Job::new(setup, false)?;
        let mut paths: BTreeMap<&OsStr, Vec<_>> = BTreeMap::new();
        for source in sources {
            paths.entry(source.host()).or_default().push(source.path().as_bytes().to_vec().into());
        }
        let mut hosts = Vec::new();
        for (name, paths) in paths {
            hosts.push((job.host(name)?, paths));
        }
        job.greet()?;
        for (host, paths) in &hosts {
            if job.ask(*host, Message::Watch(paths.clone(), is_one_system), START_MAX)? != Message::Watched {
                return Err(job.unexpected(*host));
            }
        }
        let hosts = hosts.into_iter().map(|(host, _)| host).collect();
        Ok(Self { job, hosts, asked: BTreeSet::new(), has_several: sources.len() > 1 })
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

    /// Waits until something has changed.
    ///
    /// # Errors
    ///
    /// Exit 4 for a lost host, 5 if a path can no longer be watched, 128+n for a signal.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Watched, Failure> {
        while let Some(update) = self.job.next(deadline) {
            match update {
                Update::Host(host, Message::Changed(directories)) => {
                    self.asked.remove(&host);
                    let directories = directories.filter(|_| !self.has_several);
                    let touched = directories.map(|some| some.into_iter().map(Into::into).collect());
                    return Ok(Watched::Changed(touched));
                }
                Update::Host(host, Message::Failed(fault)) => return Err(self.job.failure(host, &fault)),
                Update::Host(host, _) => return Err(self.job.unexpected(host)),
                update => self.job.check(update)?,
            }
        }
        Ok(Watched::Nothing)
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
