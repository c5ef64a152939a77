//! Adds a host to a running copy: another command of the same user requests it over a unix socket.
//!
//! The socket has the job's name and lies in a directory that only the user can access. A command that connects can
//! request nothing but a host and a path. The copy reaches that host as it reaches any other, by its own launcher.
//! Neither the host nor the command gets a key.
//!
//! A message is its length in four bytes, big-endian, followed by CBOR. Each connection carries one request, followed
//! by states of the host. The last state has an outcome.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use minicbor::{Decode, Encode};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::fault::{escaped, printable};

/// Maximum length of a message in bytes: a host with a path, or a sentence.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// How long a request may take to arrive.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Maximum interval between two states of a host.
pub const STATE_EVERY: Duration = Duration::from_secs(1);

/// How long a copy may stay silent before it is considered stalled.
const SILENT_MAX: Duration = Duration::from_secs(60);

/// How long to wait before accepting or connecting again after a failure that may pass.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Maximum number of directory entries that one search for sockets of dead jobs examines.
const STALE_MAX: usize = 100;

/// Extension of the name of a job's socket, and of a socket that does not listen yet.
const SOCKET: &str = "sock";
const NEW_SOCKET: &str = "new";

/// Variable of the environment that names the directory for sockets of the user's processes.
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// Length of a job's name in bytes.
const NAME_BYTES: usize = 8;

/// Whether the string can be a job's name: hexadecimal digits.
fn is_name(name: &str) -> bool {
    name.len() == NAME_BYTES && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A request to add a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct JoinRequest {
    /// HOST or HOST:PATH.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub target: Vec<u8>,
}

/// The state of a requested host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct JoinState {
    /// Number of bytes that the host has received.
    #[n(0)]
    pub bytes: u64,
    /// The outcome, after which no further state follows.
    #[n(1)]
    pub outcome: Option<JoinOutcome>,
}

/// The outcome of adding a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct JoinOutcome {
    /// The exit code of the copy to this host.
    #[n(0)]
    pub exit: u8,
    /// The result, or the reason of the failure, for the user.
    #[n(1)]
    pub line: String,
}

/// Why the outcome for a host is unknown.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No copy has this name, or the copy is over.
    #[error("no copy with this name is running here")]
    NoJob,
    /// The copy has ended, or does not accept this user.
    #[error("the copy ended without reporting the outcome for the host")]
    Closed,
    /// The copy has been silent for too long.
    #[error("no sign of life from the copy for {} s", SILENT_MAX.as_secs())]
    Silent,
    /// The copy's answer is not a valid message.
    #[error("the answer is not from a copy of this version")]
    Protocol,
    /// A system call failed.
    #[error("{0}")]
    Io(String),
}

/// Returns the directories in which copies of this user may listen. A copy listens in the first of them that only this
/// user can access. `runtime`: the value of XDG_RUNTIME_DIR.
fn directories(runtime: Option<OsString>) -> Vec<PathBuf> {
    let uid = geteuid().as_raw();
    let given = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    let runtimes = given.into_iter().chain([PathBuf::from(format!("/run/user/{uid}"))]);
    // A batch job inherits the variable from a login node, but its own node may lack the directory. Under su(1) it is
    // another user's, who could not remove what this user made there.
    let is_own = |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid);
    let own = runtimes.filter(is_own).map(|path| path.join("rdma-pipe"));
    own.chain([std::env::temp_dir().join(format!("rdma-pipe-{uid}"))]).collect()
}

/// Makes a directory that only this user can access, or checks that an existing one is.
fn made(path: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(format!("{}: {}", escaped(path.as_os_str()), printable(&error.to_string())))
        }
        _ => checked(path),
    }
}

/// Checks that only this user can access a directory.
fn checked(path: &Path) -> Result<(), String> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let reason = match openat(CWD, path, flags, Mode::empty()).and_then(fstat) {
        Ok(stat) if stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o077 == 0 => return Ok(()),
        Ok(_) => "it must belong to you and have mode 0700, so that nobody else can reach its contents".to_owned(),
        Err(error) => printable(&error.to_string()),
    };
    Err(format!("{}: {reason}", escaped(path.as_os_str())))
}

fn socket_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.{SOCKET}"))
}

/// Connects without waiting. If too many connections wait to be accepted, as at a copy that is stopped, the error is
/// [`io::ErrorKind::WouldBlock`]. A blocking socket would wait without limit.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Removes sockets without a listener, such as those of copies that were killed.
fn remove_stale(directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == SOCKET);
    for path in entries.take(STALE_MAX).map(|entry| entry.path()).filter(is_socket) {
        if connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the other end belongs to this user or to root.
fn is_ours(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

/// A copy's listener for requests to add a host. Dropping this ends it.
pub struct JoinListener {
    name: String,
    path: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl JoinListener {
    /// Starts listening in a thread. `number` gives the job its name. `take` gets each requester, and returns whether
    /// it accepts more.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    pub fn start(number: u32, take: impl Fn(Joiner) -> bool + Send + 'static) -> Result<Self, String> {
        Self::start_in_any(&directories(std::env::var_os(RUNTIME_VARIABLE)), &format!("{number:08x}"), take)
    }

    fn start_in_any(
        directories: &[PathBuf],
        name: &str,
        take: impl Fn(Joiner) -> bool + Send + 'static,
    ) -> Result<Self, String> {
        let mut refused = None;
        for directory in directories {
            match made(directory) {
                Ok(()) => return Self::start_in(directory, name, take),
                Err(reason) => _ = refused.get_or_insert(reason),
            }
        }
        Err(refused.unwrap_or_default())
    }

    fn start_in(directory: &Path, name: &str, take: impl Fn(Joiner) -> bool + Send + 'static) -> Result<Self, String> {
        remove_stale(directory);
        let (name, path) = (name.to_owned(), socket_of(directory, name));
        let failed = |error: io::Error| format!("{}: {}", escaped(path.as_os_str()), printable(&error.to_string()));
        // Other copies remove sockets to which nobody listens. So this one gets its name only once it listens.
        let new = path.with_extension(NEW_SOCKET);
        let listener = UnixListener::bind(&new).map_err(failed)?;
        let named = std::fs::set_permissions(&new, Permissions::from_mode(0o600));
        if let Err(error) = named.and_then(|()| std::fs::rename(&new, &path)) {
            let _ = std::fs::remove_file(&new);
            return Err(failed(error));
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let accept = move || serve(|| listener.accept().map(|(stream, _)| stream), &ends, take);
        crate::spawn("join", 128 << 10, accept).map_err(failed)?;
        Ok(Self { name, path, is_over })
    }

    /// Returns the job's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for JoinListener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // This connection wakes the thread, which then checks the flag.
        let _ = connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes requests until the copy is over, or no more are wanted. `accept` waits for the next connection.
fn serve(mut accept: impl FnMut() -> io::Result<UnixStream>, is_over: &AtomicBool, take: impl Fn(Joiner) -> bool) {
    loop {
        let accepted = accept();
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = accepted else {
            // Such as too many open files for the moment.
            std::thread::sleep(AGAIN_AFTER);
            continue;
        };
        let request = is_ours(&stream).then(|| read::<JoinRequest>(&stream, Instant::now() + REQUEST_MAX));
        if let Some(Ok(request)) = request
            && stream.set_nonblocking(true).is_ok()
            && !take(Joiner { request, stream, is_gone: false })
        {
            return;
        }
    }
}

/// A command that has requested a host and waits for the outcome.
pub struct Joiner {
    /// The request.
    pub request: JoinRequest,
    stream: UnixStream,
    is_gone: bool,
}

impl Joiner {
    /// Sends the state of the host. A requester that does not read is not waited for, and gets no further states.
    pub fn tell(&mut self, state: &JoinState) {
        let bytes = encoded(state);
        let is_sent = |stream: &mut UnixStream| stream.write(&bytes).is_ok_and(|count| count == bytes.len());
        self.is_gone = self.is_gone || !is_sent(&mut self.stream);
    }
}

/// Requests a host from a copy, and waits for the outcome. `take` gets each state before that.
///
/// # Errors
///
/// See [`JoinError`].
pub fn ask(name: &str, request: &JoinRequest, take: impl FnMut(&JoinState)) -> Result<JoinOutcome, JoinError> {
    ask_any(&directories(std::env::var_os(RUNTIME_VARIABLE)), name, request, take)
}

/// Does the same with the first of these directories in which the copy listens. The copy may have been started with
/// another environment, and so may listen in any of them.
fn ask_any(
    directories: &[PathBuf],
    name: &str,
    request: &JoinRequest,
    mut take: impl FnMut(&JoinState),
) -> Result<JoinOutcome, JoinError> {
    let (mut refused, mut is_any_searched) = (None, false);
    for directory in directories.iter().filter(|directory| directory.exists()) {
        if let Err(reason) = checked(directory) {
            refused.get_or_insert(reason);
            continue;
        }
        match ask_in(directory, name, request, &mut take) {
            Err(JoinError::NoJob) => is_any_searched = true,
            answered => return answered,
        }
    }
    // Where others have access no copy listens, so this is the reason only if there is no other place.
    Err(refused.filter(|_| !is_any_searched).map_or(JoinError::NoJob, JoinError::Io))
}

fn ask_in(
    directory: &Path,
    name: &str,
    request: &JoinRequest,
    mut take: impl FnMut(&JoinState),
) -> Result<JoinOutcome, JoinError> {
    if !is_name(name) {
        return Err(JoinError::NoJob);
    }
    let failed = |error: io::Error| JoinError::Io(printable(&error.to_string()));
    let path = socket_of(directory, name);
    let deadline = Instant::now() + SILENT_MAX;
    let mut stream = loop {
        match connect(&path) {
            Ok(stream) => break stream,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Err(JoinError::NoJob),
                io::ErrorKind::WouldBlock if Instant::now() < deadline => std::thread::sleep(AGAIN_AFTER),
                io::ErrorKind::WouldBlock => return Err(JoinError::Silent),
                _ => return Err(failed(error)),
            },
        }
    };
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_write_timeout(Some(REQUEST_MAX)).map_err(failed)?;
    stream.write_all(&encoded(request)).map_err(|_| JoinError::Closed)?;
    loop {
        let state: JoinState = read(&stream, Instant::now() + SILENT_MAX)?;
        match state.outcome {
            Some(outcome) => return Ok(outcome),
            None => take(&state),
        }
    }
}

fn encoded<T: Encode<()>>(message: &T) -> Vec<u8> {
    let body = minicbor::to_vec(message).unwrap_or_default();
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}

/// Reads one message.
fn read<T: for<'b> Decode<'b, ()>>(stream: &UnixStream, deadline: Instant) -> Result<T, JoinError> {
    let mut length = [0; 4];
    read_exact(stream, &mut length, deadline)?;
    let mut body = vec![0; checked_length(length)?];
    read_exact(stream, &mut body, deadline)?;
    minicbor::decode(&body).map_err(|_| JoinError::Protocol)
}

fn checked_length(length: [u8; 4]) -> Result<usize, JoinError> {
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX { Err(JoinError::Protocol) } else { Ok(length) }
}

fn read_exact(mut stream: &UnixStream, mut into: &mut [u8], deadline: Instant) -> Result<(), JoinError> {
    while !into.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(JoinError::Silent);
        }
        stream.set_read_timeout(Some(left)).map_err(|error| JoinError::Io(printable(&error.to_string())))?;
        match stream.read(into) {
            Ok(0) => return Err(JoinError::Closed),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(JoinError::Silent);
            }
            Err(_) => return Err(JoinError::Closed),
        }
    }
    Ok(())
}

/// Body of the fuzz target. It also runs as a test over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::*;

    /// No input may panic, and a decoded message survives encoding and decoding.
    pub fn message(bytes: &[u8]) {
        let Some((length, body)) = bytes.split_first_chunk() else { return };
        let Ok(length) = checked_length(*length) else { return };
        let body = &body[..length.min(body.len())];
        if let Ok(request) = minicbor::decode::<JoinRequest>(body) {
            assert_eq!(minicbor::decode(&encoded(&request)[4..]).ok(), Some(request));
        }
        if let Ok(state) = minicbor::decode::<JoinState>(body) {
            assert_eq!(minicbor::decode(&encoded(&state)[4..]).ok(), Some(state));
        }
    }

    /// The corpus under version control: target, name and bytes of each seed.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let request = JoinRequest { target: b"h5:/models".to_vec() };
        let outcome = JoinOutcome { exit: 8, line: "h5: no space".to_owned() };
        vec![
            ("agent_join", "request", encoded(&request)),
            ("agent_join", "state", encoded(&JoinState { bytes: 1 << 40, outcome: None })),
            ("agent_join", "outcome", encoded(&JoinState { bytes: 7, outcome: Some(outcome) })),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "0123abcd";

    fn request() -> JoinRequest {
        JoinRequest { target: b"h5:/models".to_vec() }
    }

    #[test]
    fn who_asks_hears_how_it_ends_and_nobody_else_may_ask() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("own");
        made(&directory).expect("it is ours");
        let (give, asked) = flume::unbounded();
        let listener = JoinListener::start_in(&directory, NAME, move |joiner| give.send(joiner).is_ok()).expect("free");
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&socket_of(&directory, NAME))), (0o700, 0o600));
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut joiner = asked.recv_timeout(REQUEST_MAX).expect("it asks");
                assert_eq!(joiner.request, request());
                joiner.tell(&JoinState { bytes: 5, outcome: None });
                let outcome = JoinOutcome { exit: 6, line: "full".to_owned() };
                joiner.tell(&JoinState { bytes: 7, outcome: Some(outcome) });
            });
            let mut bytes = 0;
            let outcome = ask_in(&directory, NAME, &request(), |state| bytes = state.bytes);
            (bytes, outcome.expect("it answers"))
        });
        assert_eq!((told.0, told.1.exit, &*told.1.line), (5, 6, "full"));
        for name in ["0123abce", "../own/x", "0123abc", "0123ABCD"] {
            assert!(matches!(ask_in(&directory, name, &request(), |_| {}), Err(JoinError::NoJob)), "{name}");
        }
        drop(listener);
        assert!(!socket_of(&directory, NAME).exists());
    }

    /// The variable may name a directory of another host or user. A relative one would depend on where a command is
    /// started.
    #[test]
    fn a_runtime_directory_that_is_not_there_or_not_ours_is_ignored() {
        let scratch = tempfile::tempdir().expect("a directory");
        let others = directories(None);
        assert!(!others.is_empty());
        let foreign = if geteuid().is_root() { scratch.path().join("foreign") } else { PathBuf::from("/") };
        if geteuid().is_root() {
            std::fs::create_dir(&foreign).expect("a directory");
            std::os::unix::fs::chown(&foreign, Some(65_534), None).expect("root may");
        }
        for ignored in [scratch.path().join("missing"), PathBuf::from("src"), foreign] {
            assert_eq!(directories(Some(ignored.into_os_string())), others);
        }
        let all = directories(Some(scratch.path().as_os_str().to_owned()));
        assert_eq!((&all[0], &all[1..]), (&scratch.path().join("rdma-pipe"), &others[..]));
    }

    /// The copy may have been started with another environment. A directory that others can access is not used.
    #[test]
    fn a_copy_is_found_in_any_directory_of_the_user() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [missing, open, empty, own] = ["missing", "open", "empty", "own"].map(|name| scratch.path().join(name));
        [&open, &empty, &own].into_iter().for_each(|path| made(path).expect("it is ours"));
        let answer = |mut joiner: Joiner| {
            joiner.tell(&JoinState { bytes: 7, outcome: Some(JoinOutcome { exit: 0, line: "added".to_owned() }) });
            true
        };
        let _listeners = [&open, &own].map(|path| JoinListener::start_in(path, NAME, answer).expect("free"));
        std::fs::set_permissions(&open, Permissions::from_mode(0o755)).expect("ours");
        let all = [missing, open, empty, own];
        let ask = |directories: &[PathBuf]| ask_any(directories, NAME, &request(), |_| {});
        assert_eq!(ask(&all).expect("it answers").line, "added");
        assert!(matches!(ask(&all[..3]), Err(JoinError::NoJob)));
        assert!(matches!(ask(&all[..2]), Err(JoinError::Io(reason)) if reason.contains("0700")));
        assert!(matches!(ask(&all[..1]), Err(JoinError::NoJob)));
    }

    #[test]
    fn a_copy_listens_in_the_first_directory_that_is_its_own() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [open, own] = ["open", "own"].map(|name| scratch.path().join(name));
        std::fs::create_dir(&open).expect("a directory");
        std::fs::set_permissions(&open, Permissions::from_mode(0o755)).expect("ours");
        let start = |directories: &[PathBuf]| JoinListener::start_in_any(directories, NAME, |_| true);
        assert!(start(std::slice::from_ref(&open)).is_err_and(|reason| reason.contains("0700")));
        let _listener = start(&[open.clone(), own.clone()]).expect("the second is made");
        assert!(socket_of(&own, NAME).exists() && !socket_of(&open, NAME).exists());
    }

    /// A requester that sends nothing, or too much, is not waited for. The next one is heard.
    #[test]
    fn what_is_no_request_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (give, asked) = flume::unbounded();
        let _listener = JoinListener::start_in(scratch.path(), NAME, move |it| give.send(it).is_ok()).expect("free");
        for bytes in [&b""[..], b"\xff\xff\xff\xff", b"\0\0\0\x01\xff", b"\0\0\0\x40short"] {
            let mut stream = UnixStream::connect(socket_of(scratch.path(), NAME)).expect("it listens");
            stream.write_all(bytes).expect("a short one");
            stream.shutdown(std::net::Shutdown::Write).expect("a socket");
            assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0);
        }
        let mut stream = UnixStream::connect(socket_of(scratch.path(), NAME)).expect("it listens");
        stream.write_all(&encoded(&request())).expect("a short one");
        assert_eq!(asked.recv_timeout(REQUEST_MAX).expect("it is heard").request, request());
        assert!(asked.try_recv().is_err());
    }

    #[test]
    fn a_directory_of_others_is_refused_and_what_the_dead_have_left_goes() {
        let scratch = tempfile::tempdir().expect("a directory");
        let open = scratch.path().join("open");
        std::fs::create_dir(&open).expect("a directory");
        std::fs::set_permissions(&open, Permissions::from_mode(0o755)).expect("ours");
        assert!(made(&open).is_err_and(|reason| reason.contains("0700")));
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(scratch.path(), &link).expect("a link");
        assert!(made(&link).is_err());
        let (stale, other) = (socket_of(scratch.path(), "00000000"), socket_of(scratch.path(), NAME));
        drop(UnixListener::bind(&stale).expect("free"));
        // As if another copy were about to listen.
        let new = scratch.path().join("11111111.new");
        drop(UnixListener::bind(&new).expect("free"));
        let _alive = JoinListener::start_in(scratch.path(), NAME, |_| true).expect("free");
        assert!(!stale.exists() && other.exists() && new.exists());
        assert!(!other.with_extension(NEW_SOCKET).exists());
    }

    /// A copy that is stopped accepts nothing. Others neither wait for it nor remove its socket.
    #[test]
    fn a_copy_that_accepts_nothing_holds_nobody() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = socket_of(scratch.path(), "00000000");
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&*path).expect("a short path")).expect("free");
        rustix::net::listen(&socket, 0).expect("bound");
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let _other = JoinListener::start_in(scratch.path(), NAME, |_| true).expect("free");
        assert!(path.exists());
    }

    /// A connection that cannot be accepted does not keep the next one from being heard.
    #[test]
    fn a_failure_to_accept_passes() {
        let (mut asking, asked) = UnixStream::pair().expect("two sockets");
        asking.write_all(&encoded(&request())).expect("a short one");
        let errors = [libc::EMFILE, libc::ECONNABORTED].map(|number| Err(io::Error::from_raw_os_error(number)));
        let mut accepted = errors.into_iter().chain([Ok(asked)]);
        let (give, heard) = flume::unbounded();
        let take = |joiner: Joiner| {
            give.send(joiner.request).expect("it is heard");
            false
        };
        serve(|| accepted.next().expect("no more is wanted"), &AtomicBool::new(false), take);
        assert_eq!(heard.try_recv().expect("it was taken"), request());
    }
}
