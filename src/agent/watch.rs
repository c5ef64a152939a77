//! The source host's part of `rdcp --watch`: when asked, reports the directories in which something has changed. So at
//! most one message is in flight, however much changes meanwhile.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use minicbor::bytes::ByteVec;
use rustix::io::Errno;

use crate::control::frames::{Fault, Message, Watch};
use crate::control::names;
use crate::control::tunnel::Emit;
use crate::fault::{Exit, escaped, printable};
use crate::fs::io_fact;
use crate::tree::patterns::Patterns;
use crate::tree::watch::{TreeWatch, WatchError, WatchOptions, WatchReason, WatchedPath, watched_below};

/// A watch. Dropping this ends it.
pub(crate) struct Watching {
    asks: UnixStream,
}

impl Watching {
    /// Starts watching. With `expand`, `~` and patterns are expanded. The answer is WATCHED; FAILED may come at any
    /// time.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for two descriptors or a thread.
    pub(crate) fn begin(asked: Watch, expand: bool, emit: &Emit) -> std::io::Result<Self> {
        let (asks, asked_by) = UnixStream::pair()?;
        let told = Arc::clone(emit);
        let Watch { paths, is_one_system, only, rules, digest_cache } = asked;
        // An empty path means the usual place.
        let digest_cache = digest_cache.filter(|path| !path.is_empty());
        let options = WatchOptions {
            is_one_system,
            patterns: Patterns::new(&rules.0).unwrap_or_default(),
            digest_cache: digest_cache.map(|path| OsStr::from_bytes(&path).into()),
        };
        let found = move |path: &[u8]| {
            if expand { names::expanded(path) } else { vec![OsStr::from_bytes(path).into()] }
        };
        let find = move || {
            let paths = paths.iter().flat_map(|path| found(path));
            // `host:` stands for the login's home.
            let paths = paths.map(|path: PathBuf| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path });
            paths.flat_map(|path| watched_at(path, &only)).collect()
        };
        let run = move || {
            if let Err(error) = watch(find, options, &asked_by, &told) {
                told(Message::Failed(fault(&error)));
            }
        };
        crate::spawn("watch", 2 << 20, run)?;
        Ok(Self { asks })
    }

    /// Asks for the next change.
    pub(crate) fn ask(&self) {
        // If the watch has failed, it has said so.
        let _ = (&self.asks).write_all(b"?");
    }
}

/// Returns what is watched of a source: all of it, or only what is listed below it.
fn watched_at(path: PathBuf, only: &[ByteVec]) -> Vec<WatchedPath> {
    if only.is_empty() {
        let bytes = path.as_os_str().as_bytes();
        let name: &[u8] = if bytes.ends_with(b"/") { &[] } else { names::last_name(bytes) };
        // With -T the contents are copied, with a slash or without.
        let names = vec![PathBuf::new(), OsStr::from_bytes(name).into()];
        return vec![WatchedPath { path, names }];
    }
    let parts = |path: &Path| path.components().filter(|part| matches!(part, Component::Normal(_))).count();
    let watched = only.iter().map(|listed| {
        let name = watched_below(&path, listed);
        // Patterns do not apply to what only leads to a listed path, so nothing is left out there.
        let is_it = parts(&name) == parts(Path::new(OsStr::from_bytes(listed)));
        WatchedPath { path: path.join(&name), names: if is_it { vec![name] } else { Vec::new() } }
    });
    watched.collect()
}

fn watch(
    find: impl Fn() -> Vec<WatchedPath> + Send + 'static,
    options: WatchOptions,
    asked: &UnixStream,
    emit: &Emit,
) -> Result<(), WatchError> {
    let mut watch = TreeWatch::start(find, options)?;
    emit(Message::Watched);
    while let Some(touched) = watch.next(asked)? {
        emit(Message::Changed(touched.map(|some| some.into_iter().map(Into::into).collect())));
    }
    Ok(())
}

fn fault(error: &WatchError) -> Fault {
    // A fault has an error number if its cause may pass: the path may come back, or an earlier watch may end.
    let (reason, errno) = match &error.reason {
        WatchReason::TooManyDirectories => (
            "too many directories to watch; raise the limit with `sysctl fs.inotify.max_user_watches=1048576`"
                .to_owned(),
            libc::ENOSPC,
        ),
        WatchReason::TooManyWatches => (
            "too many inotify instances of this user; raise the limit with `sysctl fs.inotify.max_user_instances=1024`"
                .to_owned(),
            libc::EMFILE,
        ),
        WatchReason::System(Errno::NOENT) => {
            return Fault::io(Exit::Source.code(), "cannot watch", &io_fact(error.path.as_os_str(), Errno::NOENT));
        }
        WatchReason::System(errno) => (printable(&errno.to_string()), 0),
    };
    let line = format!("cannot watch {}: {reason}", escaped(error.path.as_os_str()));
    Fault { errno, ..Fault::plain(Exit::Source.code(), line) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_names_that_patterns_apply_to() {
        let shown = |path: &PathBuf| path.to_str().expect("ours").trim_end_matches('/').to_owned();
        let at = |path: &str, only: &[&str]| -> Vec<Vec<String>> {
            let only: Vec<ByteVec> = only.iter().map(|path| path.as_bytes().to_vec().into()).collect();
            let watched = watched_at(path.into(), &only).into_iter();
            watched.map(|one| [one.path].iter().chain(&one.names).map(shown).collect()).collect()
        };
        assert_eq!(at("a/src/", &[]), [["a/src", "", ""]]);
        assert_eq!(at("a/src", &[]), [["a/src", "", "src"]]);
        assert_eq!(at(".", &[]), [[".", "", ""]]);
        assert_eq!(at("/proc/", &["/self//./gone", "sys"]), [vec!["/proc"], vec!["/proc/sys", "sys"]]);
    }

    #[test]
    fn only_causes_that_may_pass_have_a_number() {
        for (reason, errno, words) in [
            (WatchReason::TooManyDirectories, libc::ENOSPC, "too many directories"),
            (WatchReason::TooManyWatches, libc::EMFILE, "too many inotify instances"),
            (WatchReason::System(Errno::NOENT), libc::ENOENT, ""),
            (WatchReason::System(Errno::ACCESS), 0, "cannot watch /d: "),
        ] {
            let fault = fault(&WatchError { path: "/d".into(), reason });
            assert!(fault.errno == errno && fault.detail.contains(words), "{fault:?}");
        }
    }
}
