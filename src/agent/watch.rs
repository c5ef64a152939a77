//! The source host's part of `rdcp --watch`: when asked, reports the directories in which something has changed. So at
//! most one message is in flight, however much changes meanwhile.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use flume::{Receiver, Sender};
use minicbor::bytes::ByteVec;
use rustix::io::Errno;

use crate::control::frames::{Fault, Message};
use crate::control::names;
use crate::control::tunnel::Emit;
use crate::fault::{Exit, escaped, printable};
use crate::fs::io_fact;
use crate::tree::watch::{TreeWatch, WatchError, WatchReason};

/// A watch. Dropping this ends it.
pub(crate) struct Watching {
    asks: Sender<()>,
}

impl Watching {
    /// Starts watching these paths. With `expand`, `~` and patterns are expanded. The answer is WATCHED; FAILED may
    /// come at any time.
    pub(crate) fn begin(paths: &[ByteVec], expand: bool, emit: &Emit) -> Self {
        let (asks, asked) = flume::unbounded();
        let found = |path: &[u8]| if expand { names::expanded(path) } else { vec![OsStr::from_bytes(path).into()] };
        let paths = paths.iter().flat_map(|path| found(path));
        // `host:` stands for the login's home.
        let paths = paths.map(|path: PathBuf| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path });
        let (paths, told) = (paths.collect(), Arc::clone(emit));
        let run = move || {
            if let Err(error) = watch(paths, &asked, &told) {
                told(Message::Failed(fault(&error)));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("watch".to_owned()).spawn(run) {
            emit(Message::Failed(Fault::plain(Exit::Source.code(), format!("cannot start a thread: {error}"))));
        }
        Self { asks }
    }

    /// Asks for the next change.
    pub(crate) fn ask(&self) {
        let _ = self.asks.send(());
    }
}

fn watch(paths: Vec<PathBuf>, asked: &Receiver<()>, emit: &Emit) -> Result<(), WatchError> {
    let mut watch = TreeWatch::start(paths)?;
    emit(Message::Watched);
    while asked.recv().is_ok() {
        let Some(touched) = watch.wait(|| asked.is_disconnected())? else { break };
        emit(Message::Changed(touched.map(|some| some.into_iter().map(Into::into).collect())));
    }
    Ok(())
}

fn fault(error: &WatchError) -> Fault {
    let reason = match &error.reason {
        WatchReason::TooManyDirectories => {
            "too many directories to watch; raise the limit with `sysctl fs.inotify.max_user_watches=1048576`"
                .to_owned()
        }
        // This fault has an error number, because the path may come back.
        WatchReason::Missing => {
            return Fault::io(Exit::Source.code(), "cannot watch", &io_fact(error.path.as_os_str(), Errno::NOENT));
        }
        WatchReason::System(error) => printable(&error.to_string()),
        WatchReason::Other(words) => printable(words),
    };
    Fault::plain(Exit::Source.code(), format!("cannot watch {}: {reason}", escaped(error.path.as_os_str())))
}
