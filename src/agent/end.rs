//! One end of a session: carries out messages, and answers with messages.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender, bounded};
use rd_proto::control::{Cause, IoFact, Role};
use rd_proto::handshake::{Established, Key};
use rd_proto::session::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, SeekFrom, seek};

use super::check::Comparison;
use super::{tree, words};
use crate::agent::place;
use crate::control::endpoints;
use crate::control::frames::{Begin, Endpoint, Fault, Job, MANIFEST_WINDOW, Message, Report, SessionKey};
use crate::control::stages::{Attachment, Inlet, Outlet, Whole};
use crate::control::tunnel::{Emit, Tunnel};
use crate::engine::link::LastWord;
use crate::engine::listen::{Further, Incoming, Listener};
use crate::engine::pace::Pace;
use crate::engine::session::{FirstLane, Obstacle, Session, post_soon};
use crate::engine::{Event, Work, channel, reach};
use crate::fault::{Exit, errno_of, escaped, os};
use crate::fs::sink::{FileSink, StreamSink, Target, Tee};
use crate::fs::source::Source;
use crate::fs::{standard, std_fact};
use crate::options::TreeOptions;
use crate::transport::relay::RelayInput;
use crate::transport::spool::Spool;
use crate::tree::check::Medium;
use crate::tree::entries::EntryStream;
use crate::tree::progress::Progress;
use crate::tree::sink::Destination;
use crate::tree::source::TreeSource;

mod telling;

use telling::{Messenger, plain, report};

/// How long trying all endpoints of the other end may take.
const DIAL_MAX: Duration = Duration::from_millis(3500);

/// How long an address may take to accept. A lost packet is sent again after a second, and a firewall may drop all
/// packets. An address that has accepted has the rest of [`DIAL_MAX`] to prove the key.
const ACCEPT_MAX: Duration = Duration::from_secs(2);

/// How often an end that waits for its stage checks whether it has been stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// State shared by an end's own thread and the threads that direct it.
struct Shared {
    post: Sender<Event>,
    listener: Mutex<Option<Listener>>,
    /// Whether a copy within this host must stop.
    stop: Arc<AtomicBool>,
    /// Whether the end is over: its outcome has been reported, and the input of its command has been let end.
    ended: Arc<AtomicBool>,
    /// Whether the outcome is about to be reported.
    is_told: AtomicBool,
    /// Whether the end ended because its other end could not be reached any more.
    lost: AtomicBool,
    /// Whether the end has met its other end.
    met: AtomicBool,
    progress: Arc<Progress>,
    /// Reports about entries to the caller.
    entries: Arc<EntryStream>,
}

impl Shared {
    /// Reports the outcome of an end that has met no other end.
    fn end_alone(&self, emit: &Emit, report: Report) {
        self.ended.store(true, Ordering::Release);
        emit(Message::Ended(Box::new(report)));
    }
}

/// One end of a session, or a copy within this host, running from the moment it is created.
pub(crate) struct End {
    emit: Emit,
    is_remote: bool,
    tunnel: Arc<Tunnel>,
    key: SessionKey,
    ports: Option<RangeInclusive<u16>>,
    shared: Arc<Shared>,
    peer: Peer,
    pub(super) is_of_pipeline: bool,
    pub(super) is_of_broadcast: bool,
    /// Signalled when both ends of a pipeline's session are ready.
    go: Sender<()>,
    /// What can be counted; `None` once counting has begun.
    countable: tree::Countable,
    /// Takes the manifest that a directory is compared with.
    manifest: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

/// The other end of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Caller,
    Another,
    /// No other end: a copy or comparison within this host.
    Nobody,
}

impl End {
    /// Begins an end. `emit` takes the end's messages and must not block. In a pipeline, the end transfers nothing
    /// before it hears that its other end is ready too. `moves` is `None` if the stage does not exist.
    pub(crate) fn begin(emit: Emit, is_remote: bool, begin: Begin, moves: Option<Moves>) -> Self {
        let (post, events) = channel();
        let (go, goes) = bounded(1);
        let told = Arc::clone(&emit);
        let entries = Arc::new(EntryStream::new(Box::new(move |entries| told(Message::Entries(entries)))));
        let shared = Arc::new(Shared {
            post,
            listener: Mutex::default(),
            stop: Arc::default(),
            ended: Arc::default(),
            is_told: AtomicBool::default(),
            lost: AtomicBool::default(),
            met: AtomicBool::default(),
            progress: Arc::default(),
            entries,
        });
        let countable = match &begin.job {
            Job::SendTree { roots, settings } | Job::Copy { roots, settings, .. } => {
                Some((roots.clone(), settings.clone()))
            }
            _ => None,
        };
        let mut end = Self {
            tunnel: Tunnel::new(Arc::clone(&emit)),
            emit: Arc::clone(&emit),
            is_remote,
            key: begin.key.clone(),
            ports: begin.options.port_range.clone(),
            shared: Arc::clone(&shared),
            peer: match begin.job {
                Job::Copy { .. } | Job::Check { .. } => Peer::Nobody,
                _ if begin.caller_is_peer => Peer::Caller,
                _ => Peer::Another,
            },
            is_of_pipeline: begin.waits,
            is_of_broadcast: matches!(begin.job, Job::SendBroadcast | Job::ReceiveBroadcast),
            go,
            countable,
            manifest: None,
            thread: None,
        };
        let is_standard = matches!(begin.job, Job::SendStandard | Job::ReceiveStandard);
        let (Some(moves), false) = (moves, is_standard && is_remote) else {
            end.fail(Fault::plain(Exit::Protocol.code(), "invalid job"));
            return end;
        };
        let run: Box<dyn FnOnce() + Send> = match begin.job {
            Job::Copy { roots, directory, names, settings } => {
                let (stop, progress) = (Arc::clone(&shared.stop), Arc::clone(&shared.progress));
                let entries = Arc::clone(&shared.entries);
                let copy = tree::LocalCopy { roots, directory, names, settings, stop, progress, entries };
                Box::new(move || shared.end_alone(&emit, copy.copy(&emit)))
            }
            Job::Check { directory, is_cached } => {
                let (pieces, manifest) = bounded(MANIFEST_WINDOW as usize);
                end.manifest = Some(pieces);
                let medium = if is_cached { Medium::Cache } else { Medium::Disk };
                let (stop, entries) = (Arc::clone(&shared.stop), Arc::clone(&shared.entries));
                let comparison = Comparison { directory, medium, expand: is_remote, manifest, stop, entries };
                Box::new(move || shared.end_alone(&emit, comparison.compare(&emit)))
            }
            _ => {
                let (output, whole, made, last_word) = Default::default();
                let run = Run { emit, is_remote, begin, moves, output, whole, goes, events, shared, made, last_word };
                Box::new(move || run.run())
            }
        };
        match crate::spawn("session", 2 << 20, run) {
            Ok(thread) => end.thread = Some(thread),
            Err(error) => end.fail(Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}"))),
        }
        end
    }

    /// Ends this end before it has begun.
    fn fail(&self, fault: Fault) {
        self.shared.end_alone(&self.emit, Report { fault: Some(fault), ..Report::default() });
    }

    /// Carries out a message. A thread does what may take long or wait, and its answer comes later.
    pub(crate) fn handle(&mut self, message: Message) {
        match message {
            Message::Listen { via } => match self.listen(&via) {
                Ok(endpoints) => self.say(Message::Listening(endpoints)),
                Err(fault) => self.say(Message::Failed(fault)),
            },
            Message::Dial { endpoints, via } => {
                // In a broadcast, one address does not stand for several hosts.
                let may_be_foreign = !self.is_of_broadcast;
                self.dial(move |key| {
                    let reach = |addresses: &[SocketAddr]| {
                        let within = [ACCEPT_MAX, DIAL_MAX].map(|limit| Instant::now() + limit);
                        reach::reach_best(addresses, key, within).map_err(|error| error.to_string())
                    };
                    let why = match endpoints::ranked(&endpoints, &via) {
                        Ok(ranked) => return reach(&ranked),
                        Err(why) => why,
                    };
                    match endpoints::foreign(&endpoints, &via).filter(|_| may_be_foreign) {
                        None => Err(why),
                        Some(foreign) => reach(&[foreign]).map_err(|error| format!("{why}; {foreign}: {error}")),
                    }
                });
            }
            Message::DialTunnel => {
                let tunnel = Arc::clone(&self.tunnel);
                self.dial(move |key| {
                    let address = tunnel.listen().map_err(|error| error.to_string())?;
                    reach::reach(address, key, Instant::now() + DIAL_MAX).map_err(|error| error.to_string())
                });
            }
            Message::Go => drop(self.go.try_send(())),
            // A piece beyond the allowed number of unanswered ones breaks off the comparison.
            Message::Manifest(piece) => {
                self.manifest = self.manifest.take().filter(|pieces| pieces.try_send(piece).is_ok());
            }
            Message::Signal(number) => self.stop(number),
            Message::Count => tree::count(&mut self.countable, &self.shared.progress, &self.shared.ended),
            Message::EntriesTaken(messages) => self.shared.entries.taken(messages),
            Message::OtherLost => self.post(Event::OtherLost),
            message if message.is_tunnel() => self.tunnel.handle(message),
            // Answers, which no end asks for.
            _ => {}
        }
    }

    /// Handles the loss of the caller. A session goes on: if the caller is its other end, the lanes tell whether the
    /// caller is alive; if not, the other end knows whether the caller is still there. A copy within this host ends.
    /// Returns the thread to wait for, and how long to wait.
    pub(crate) fn abandon(&mut self) -> Option<(JoinHandle<()>, Option<Duration>)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.tunnel.close();
        match self.peer {
            Peer::Caller => self.post(Event::Orphaned),
            Peer::Another => self.post(Event::Unwatched),
            Peer::Nobody => {}
        }
        // A session that has not met its other end has created nothing, except perhaps the directory of a file to
        // receive. It may be in a system call that does not return: opening a device, or a file of a server that is
        // gone.
        let limit = (!self.shared.met.load(Ordering::Relaxed)).then_some(ABANDON_MAX);
        self.thread.take().map(|thread| (thread, limit))
    }

    /// Whether the session has lost its other end.
    pub(crate) fn has_lost_its_link(&self) -> bool {
        !self.is_busy() && self.shared.lost.load(Ordering::Relaxed)
    }

    /// The loss of the session's other end counts no longer.
    pub(crate) fn forget_loss(&self) {
        self.shared.lost.store(false, Ordering::Relaxed);
    }

    /// Stops what is running as a signal would: ends it or, for SIGTSTP, has it stop this process.
    pub(crate) fn stop(&self, number: u8) {
        self.shared.stop.fetch_or(i32::from(number) != libc::SIGTSTP, Ordering::Relaxed);
        self.post(Event::Signal(i32::from(number)));
    }

    fn post(&self, event: Event) {
        let _ = post_soon(&self.shared.post, event);
    }

    /// Whether the outcome has not been reported yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.shared.ended.load(Ordering::Acquire)
    }

    /// Whether the outcome has been reported, but the input of the end's command may still have to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_busy() && self.shared.is_told.load(Ordering::Acquire)
    }

    /// Whether this is a session, which has another end.
    pub(crate) fn has_peer(&self) -> bool {
        self.peer != Peer::Nobody
    }

    fn say(&self, message: Message) {
        (self.emit)(message);
    }

    fn listen(&self, via: &[u8]) -> Result<Vec<Endpoint>, Fault> {
        let fault = |detail: String| Fault::plain(Exit::Connect.code(), detail);
        let (key, post) = (Key::from_random(self.key.0), self.shared.post.clone());
        let listener = Listener::start(0, self.ports.clone(), key, post, Further::Lanes).map_err(|error| {
            let errno = os(errno_of(&error));
            match &self.ports {
                Some(ports) => fault(no_port(ports, &errno)),
                None => fault(format!("cannot listen: {errno}")),
            }
        })?;
        let port = listener.port();
        self.tunnel.serve(port);
        *crate::locked(&self.shared.listener) = Some(listener);
        Ok(reachable(port, via, self.is_remote))
    }

    /// Stops listening, then dials. If both hosts have the same address (containers, bridges) and listen on the same
    /// port, an end that still listened could connect to itself, and would prove the key.
    fn dial(&self, reach: impl FnOnce(&Key) -> Result<(std::net::TcpStream, Established), String> + Send + 'static) {
        let mut listener = crate::locked(&self.shared.listener);
        // A channel serves one session, so this end must not begin another beside one that it has accepted.
        let registry = listener.as_ref().map(|it| crate::locked(it.registry()));
        if registry.is_some_and(|mut registry| !registry.close()) {
            return self.say(Message::DialFailed("the other end has already connected".to_owned()));
        }
        drop(listener.take());
        drop(listener);
        let key = Key::from_random(self.key.0);
        let (emit, shared) = (Arc::clone(&self.emit), Arc::clone(&self.shared));
        let run = move || match reach(&key) {
            Ok((stream, established)) => {
                emit(Message::Dialed);
                let _ = shared.post.send(Event::Incoming(Incoming::First(stream, Box::new(established))));
            }
            Err(reason) => emit(Message::DialFailed(reason)),
        };
        if let Err(error) = crate::spawn("reach", 2 << 20, run) {
            self.say(Message::DialFailed(error.to_string()));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The tunnel's threads keep it alive, and wait for messages that no longer reach it.
        self.tunnel.close();
    }
}

/// Returns why no port of `--port-range` can be listened on, and what to do.
pub(crate) fn no_port(ports: &RangeInclusive<u16>, errno: &str) -> String {
    let (first, last) = (ports.start(), ports.end());
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    format!("cannot listen on a port of --port-range {range}: {errno}; choose other ports")
}

/// Returns where this host can be reached at a port. `is_remote`: whether the host was reached by ssh, so that the
/// address used for that is known.
pub(super) fn reachable(port: u16, via: &[u8], is_remote: bool) -> Vec<Endpoint> {
    // The caller can reach the address that ssh used, so it comes before others that are as near and as fast.
    endpoints::own(port, via, endpoints::ssh_address().filter(|_| is_remote))
}

/// How long a copy within this host, or a session that has not met its other end,
/// may take to end once it is no longer wanted.
const ABANDON_MAX: Duration = Duration::from_secs(2);

pub(crate) fn ended_with(fault: Fault) -> Message {
    Message::Ended(Box::new(Report { fault: Some(fault), ..Report::default() }))
}

fn gone() -> Fault {
    Fault::plain(Exit::LinkLost.code(), "the other end exited before it connected")
}

/// Returns the work of receiving into a file that a stage has opened. Data are written in order unless the file is
/// regular and not appended to.
fn receive_open(file: File, path: PathBuf) -> Work {
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let appends = rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let is_anew = rustix::fs::tell(&file).is_ok_and(|at| at == 0);
    if is_regular && is_anew && !appends {
        return Work::ReceiveFile(FileSink::open_already(file, &path));
    }
    Work::ReceiveStream(Box::new(move || Ok(StreamSink::new(file, path.as_os_str()))))
}

/// What a stage that is `tee` passes on.
struct Passing(RelayInput);

impl Tee for Passing {
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.0.pass(bytes).is_ok()
    }

    fn end(&mut self) {
        self.0.end();
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }
}

/// The thread that runs one session.
struct Run {
    emit: Emit,
    is_remote: bool,
    begin: Begin,
    moves: Moves,
    /// The pipe that a command writes and this end reads, kept open until this end has reported its outcome.
    output: Mutex<Option<File>>,
    /// What lets the input of a command end.
    whole: Mutex<Option<Whole>>,
    goes: Receiver<()>,
    events: Receiver<Event>,
    shared: Arc<Shared>,
    /// The directory that was made to copy into.
    made: Mutex<Option<place::Made>>,
    /// The connection with the last word to the other end, kept until the caller has been told too.
    last_word: Mutex<Option<LastWord>>,
}

/// What one end of a session transfers.
pub(crate) enum Moves {
    /// Into the input of a stage, once the stage has been started.
    Input(Attachment<Inlet>),
    /// From the output of a stage.
    Output(Attachment<Outlet>),
    /// The stream of this host's node of a broadcast, in either direction.
    Stream(Arc<Spool>),
    /// What the job names.
    Named,
}

/// What will be transferred, checked but not begun.
struct Prepared<'a> {
    size_bytes: Option<u64>,
    /// Opens the source or the destination, for chunks of the agreed size.
    open: Box<dyn FnOnce(usize) -> Result<Work, IoFact> + 'a>,
}

impl<'a> Prepared<'a> {
    fn new(open: impl FnOnce(usize) -> Result<Work, IoFact> + 'a) -> Self {
        Self { size_bytes: None, open: Box::new(open) }
    }
}

impl Run {
    fn run(self) {
        let report = match self.transfer() {
            Ok(report) => report,
            Err(fault) => Report { fault: Some(fault), ..Report::default() },
        };
        drop(crate::locked(&self.shared.listener).take());
        // A lane that has come too late and waits in the channel keeps the channel alive, and the channel keeps the
        // lane alive.
        drop(self.events.drain());
        drop(crate::locked(&self.made).take());
        let is_whole = report.fault.is_none();
        self.shared.is_told.store(true, Ordering::Release);
        // The caller must hear how this end ended before it hears about the command.
        (self.emit)(Message::Ended(Box::new(report)));
        if let Some(whole) = self.whole.into_inner().expect("no panic with it locked").filter(|_| is_whole) {
            whole.tell();
        }
        // From here on, the agent may end its stages.
        self.shared.ended.store(true, Ordering::Release);
    }

    fn transfer(&self) -> Result<Report, Fault> {
        // Before the other end is met, checks that the source or target can be used. At most the directory of a file to
        // receive is created yet.
        let prepared = self.prepare()?;
        let (stream, established) = self.first_lane()?;
        self.shared.met.store(true, Ordering::Relaxed);
        let peer_name = escaped(OsStr::from_bytes(&self.begin.peer));
        let first = FirstLane { stream, established, peer_name, is_named: true };
        let listening = crate::locked(&self.shared.listener).as_ref().map(|it| Arc::clone(it.registry()));
        let lanes = Arc::new(Mutex::new(Vec::new()));
        let is_tree = matches!(self.begin.job, Job::SendTree { .. } | Job::ReceiveTree { .. });
        let observer = Messenger {
            emit: Arc::clone(&self.emit),
            lanes: Arc::clone(&lanes),
            progress: is_tree.then(|| Arc::clone(&self.shared.progress)),
            entries: Arc::clone(&self.shared.entries),
        };
        let role = match self.begin.job {
            Job::SendFile { .. }
            | Job::SendStandard
            | Job::SendTree { .. }
            | Job::SendStage { .. }
            | Job::SendMemory { .. }
            | Job::SendBroadcast => Role::Sender,
            _ => Role::Receiver,
        };
        let session = Session {
            role,
            size_bytes: prepared.size_bytes,
            listening: listening.as_ref(),
            transfer: &self.begin.options,
            post: self.shared.post.clone(),
            events: self.events.clone(),
            observer: Box::new(observer),
            takes_signals: false,
            reports_for_both: if self.begin.caller_is_peer { !self.is_remote } else { role == Role::Sender },
        };
        let (mut stage_fault, mut size_sent) = (None, None);
        let unopened = if role == Role::Sender { Obstacle::Source } else { Obstacle::Destination };
        let make_work = |chunk_bytes| {
            let prepared = match self.await_stage(prepared) {
                Ok(prepared) => prepared,
                Err(Fault { exit: exit @ 129.., .. }) => return Err(Obstacle::Signal(exit - 128)),
                Err(fault) => {
                    let (path, detail) = (fault.path.clone(), fault.detail.clone().into_bytes());
                    let fact = IoFact { errno: fault.errno, path, detail };
                    stage_fault = Some(fault);
                    return Err(unopened(fact));
                }
            };
            let work = (prepared.open)(chunk_bytes).map_err(unopened)?;
            if let Work::Send(source) = &work {
                size_sent = source.size_bytes();
            }
            Ok(work)
        };
        match session.run(first, make_work) {
            Ok(mut ended) => {
                tree::remove_spent(&mut ended.summary, &self.emit);
                tree::tell_failed(&ended.summary, &self.emit);
                let is_of_input = matches!(self.begin.job, Job::SendStandard) && !self.begin.options.prompt;
                if let (Outcome::Done, Some(size), true) = (&ended.summary.outcome, size_sent, is_of_input) {
                    // A file is read by position. The next reader of standard input finds what follows, as after other
                    // programs.
                    let _ = seek(std::io::stdin(), SeekFrom::Current(size as i64));
                }
                let mut report = report(&ended, &crate::locked(&lanes));
                // An other end that was stopped, and said so, is no reason to think that the caller is out of reach.
                let is_lost = matches!(ended.summary.outcome, Outcome::LinkLost { .. });
                self.shared.lost.store(is_lost, Ordering::Relaxed);
                if ended.summary.outcome == Outcome::PeerAborted(Cause::SinkClosed) && !self.is_writing_on() {
                    report.fault = None;
                }
                Ok(report)
            }
            Err(mut not_begun) => {
                *crate::locked(&self.last_word) = not_begun.last_word.take();
                let fault = Fault { own: !not_begun.is_peers, ..plain(&words::not_begun(&not_begun)) };
                Err(stage_fault.filter(|_| fault.own).unwrap_or(fault))
            }
        }
    }

    fn send(&self, source: Source) -> Work {
        Work::Send(if self.begin.options.prompt { source.prompt() } else { source })
    }

    /// Makes the directory to copy into if it is missing.
    fn make(&self, directory: &[u8], settings: &TreeOptions) -> Result<(), IoFact> {
        let made = place::make(directory, settings)?;
        *crate::locked(&self.made) = made;
        Ok(())
    }

    /// Decides what the session reads from or writes to. Commands' ends are added by `await_stage`.
    fn prepare(&self) -> Result<Prepared<'_>, Fault> {
        Ok(match &self.begin.job {
            Job::SendFile { path } => {
                let path = tree::path_of(path);
                let file = Source::open(&path).map_err(|fact| Fault::unreadable(&fact))?;
                self.sized(file, path.into_os_string())?
            }
            Job::SendStandard => {
                let input = standard::named_input().map_err(|fact| Fault::unreadable(&fact))?;
                self.sized(input, standard::INPUT.into())?
            }
            Job::ReceiveFile { path } => {
                let path = tree::path_of(path);
                if let Some(directory) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
                    self.make(directory.as_os_str().as_bytes(), &TreeOptions::default())
                        .map_err(|fact| Fault::unwritable(&fact))?;
                }
                let target = Target::prepare(&path).map_err(|fact| Fault::unwritable(&fact))?;
                Prepared::new(move |_| Work::receive(Some(&target)))
            }
            Job::ReceiveStandard => Prepared::new(|_| Work::receive(None)),
            Job::SendMemory { millis } => {
                let lasting = Duration::from_millis((*millis).into());
                Prepared::new(move |_| Ok(Work::Send(Source::memory(lasting))))
            }
            Job::SendTree { roots, settings } => Prepared::new(move |chunk_bytes| {
                let progress = Arc::clone(&self.shared.progress);
                // Under a low limit a small file is not sent at once either.
                let part_bytes = Pace::new(self.begin.options.bwlimit).part_bytes(chunk_bytes);
                let source = TreeSource::new(roots.clone(), part_bytes, settings.clone(), progress)?;
                Ok(Work::SendTree(Box::new(source)))
            }),
            Job::ReceiveTree { directory, names, settings, expected } => Prepared::new(move |_| {
                if !settings.dry_run {
                    self.make(directory, settings)?;
                }
                let Shared { post, progress, entries, .. } = &*self.shared;
                let destination =
                    Destination { expected: *expected, ..tree::destination(names, settings, progress, entries) };
                Ok(Work::ReceiveTree(Box::new(tree::sink(directory, destination, entries, post, &self.emit)?)))
            }),
            Job::Copy { .. } | Job::Check { .. } => unreachable!("has no other end"),
            Job::SendBroadcast => Prepared::new(move |_| Ok(Work::SendSpool(self.spool().output()))),
            Job::ReceiveBroadcast => Prepared::new(move |_| Ok(Work::ReceiveSpool(self.spool().input()))),
            Job::SendStage { .. } | Job::ReceiveStage { .. } => Prepared::new(|_| unreachable!("has been started")),
        })
    }

    fn spool(&self) -> &Arc<Spool> {
        let Moves::Stream(spool) = &self.moves else { unreachable!("an end without a node never begins") };
        spool
    }

    /// In a pipeline, waits until the stage has been started and its input or output exists, and then until the other
    /// end is ready too. This may take any time, because no lane is up yet.
    fn await_stage<'a>(&'a self, prepared: Prepared<'a>) -> Result<Prepared<'a>, Fault> {
        if !self.begin.waits {
            return Ok(prepared);
        }
        (self.emit)(Message::Agreed);
        let check = || self.events.try_iter().try_for_each(|event| heed(&event));
        let prepared = match &self.moves {
            Moves::Named | Moves::Stream(_) => prepared,
            Moves::Input(inlet) => match awaited(inlet, check)?? {
                Inlet::Command(pipe, whole) => {
                    *crate::locked(&self.whole) = Some(whole);
                    Prepared::new(move |_| Ok(receive_open(pipe, "pipe".into())))
                }
                Inlet::File(file, path) => Prepared::new(move |_| Ok(receive_open(file, path))),
                Inlet::Tee(file, path, relay) => Prepared::new(move |_| {
                    let sink = match file {
                        Ok(file) => StreamSink::new(file, path.as_os_str()),
                        Err(fact) => StreamSink::without_file(fact),
                    };
                    Ok(Work::ReceiveStream(Box::new(move || Ok(sink.and(Passing(relay))))))
                }),
            },
            Moves::Output(outlet) => match awaited(outlet, check)?? {
                Outlet::File(file, path) => self.sized(file, path.into_os_string())?,
                Outlet::Command(pipe, cut) => {
                    *crate::locked(&self.output) = pipe.try_clone().ok();
                    Prepared::new(move |_| Ok(self.send(Source::of_command(pipe, cut))))
                }
                Outlet::Relay(relay) => Prepared::new(move |_| Ok(Work::SendRelay(relay))),
            },
        };
        (self.emit)(Message::Ready);
        awaited(&self.goes, check)?;
        Ok(prepared)
    }

    /// Whether the command writes on, after the reader of its output has gone. If it does, the closed pipe hits it, and
    /// its reaction is not a failure. A command that ends without writing on ends for its own reasons. Blocks until
    /// either is known.
    fn is_writing_on(&self) -> bool {
        let output = crate::locked(&self.output);
        let Some(output) = &*output else { return true };
        let look_again = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
        loop {
            let mut polled = [PollFd::new(output, PollFlags::IN)];
            if poll(&mut polled, Some(&look_again)).is_ok_and(|count| count > 0) {
                return polled[0].revents().contains(PollFlags::IN);
            }
            if self.events.try_iter().any(|event| heed(&event).is_err()) {
                return true;
            }
        }
    }

    fn sized(&self, file: File, name: std::ffi::OsString) -> Result<Prepared<'_>, Fault> {
        let again = file.try_clone().map_err(|error| Fault::unreadable(&std_fact(&name, &error)))?;
        let source = Source::new(again, &name, 1 << 20).map_err(|fact| Fault::unreadable(&fact))?;
        let open = Prepared::new(move |chunk_bytes| Ok(self.send(Source::new(file, &name, chunk_bytes)?)));
        Ok(Prepared { size_bytes: source.size_bytes(), ..open })
    }

    /// Waits for the other end to connect, or to be connected to.
    fn first_lane(&self) -> Result<(std::net::TcpStream, Established), Fault> {
        loop {
            match self.events.recv() {
                Ok(Event::Incoming(Incoming::First(stream, established))) => return Ok((stream, *established)),
                Ok(event) => heed(&event)?,
                Err(_) => return Err(gone()),
            }
        }
    }
}

/// Waits for a value from a stage for as long as `check` finds no reason to stop waiting.
pub(super) fn awaited<T>(from: &Receiver<T>, check: impl Fn() -> Result<(), Fault>) -> Result<T, Fault> {
    loop {
        match from.recv_timeout(LOOK_AGAIN) {
            Ok(one) => return Ok(one),
            Err(RecvTimeoutError::Timeout) => check()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Fault::plain(Exit::LinkLost.code(), "the stage was never started"));
            }
        }
    }
}

/// Reacts to an event before the other end has been met: stops this process, fails to give up, or does nothing.
fn heed(event: &Event) -> Result<(), Fault> {
    match event {
        Event::Signal(libc::SIGTSTP) => crate::signals::stop_here(),
        Event::Signal(number) => return Err(Fault::plain(Exit::Signal(*number as u8).code(), "")),
        Event::Orphaned | Event::Unwatched => return Err(gone()),
        _ => {}
    }
    Ok(())
}
