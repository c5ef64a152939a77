//! One end of a copy: does what messages ask for, and answers with messages. An agent is one of these behind a channel;
//! the caller runs one itself for what is on its own host.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender, bounded};
use minicbor::bytes::ByteVec;
use rd_proto::control::{Cause, IoFact, Role};
use rd_proto::handshake::{Established, Key};
use rd_proto::session::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{measure, tree};
use crate::agent::examiner::Examiner;
use crate::agent::place;
use crate::cli::send::{STANDARD_INPUT, standard_input};
use crate::cli::stream::{FirstLane, NoWork, NotBegun, Session};
use crate::control::endpoints;
use crate::control::frames::{Begin, Endpoint, FOUND_MAX, Fault, Found, Job, Message, Report, SessionKey};
use crate::control::stages::{Attachment, Inlet, Outlet};
use crate::control::tunnel::{Emit, Tunnel};
use crate::engine::listen::{Incoming, Listener};
use crate::engine::{Event, Work, channel, reach};
use crate::fault::{Exit, escaped, os};
use crate::fs::sink::{Also, FileSink, Sink, StreamSink, Target};
use crate::fs::source::Source;
use crate::fs::std_fact;
use crate::options::TreeOptions;
use crate::transport::relay::{RelayInput, RelayOutput};
use crate::tree::Root;
use crate::tree::progress::Progress;
use crate::tree::source::TreeSource;

mod telling;

use telling::{Messenger, plain, report};
pub(crate) use telling::{notice, summary, waits, written};

/// The longest that trying all the endpoints of the other end may take.
const DIAL_MAX: Duration = Duration::from_millis(3500);

/// How often an end that waits for its stage looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// One end of a copy.
pub(crate) struct End {
    emit: Emit,
    is_agent: bool,
    tunnel: Arc<Tunnel>,
    live: Option<Live>,
    examiner: Examiner,
}

/// A session, or a copy on this host, that has been begun.
struct Live {
    post: Sender<Event>,
    /// Told that both ends of a pipeline's session are ready.
    go: Sender<()>,
    key: SessionKey,
    ports: Option<std::ops::RangeInclusive<u16>>,
    listener: Arc<Mutex<Option<Listener>>>,
    /// This end has connected, not listened.
    dialed: Arc<AtomicBool>,
    /// A copy on this host: told to stop.
    stop: Arc<AtomicBool>,
    /// The session's other end; a copy on this host has none.
    peer: Option<Peer>,
    /// Its end has been, or is just being, told.
    ended: Arc<AtomicBool>,
    /// It ended since its other end could not be reached any more.
    lost: Arc<AtomicBool>,
    /// It has met its other end.
    met: Arc<AtomicBool>,
    progress: Arc<Progress>,
    /// What can be counted, until it is.
    countable: Option<tree::Countable>,
    thread: JoinHandle<()>,
}

/// Who the other end of a session is.
enum Peer {
    Caller,
    Another,
}

impl End {
    /// `emit` takes what this end says and must not wait. An agent expands `~` and patterns, which for the caller's own
    /// host its shell has done; and it has no standard input and output to move.
    pub(crate) fn new(emit: Emit, is_agent: bool) -> Self {
        let (tunnel, examiner) = (Tunnel::new(Arc::clone(&emit)), Examiner::new(Arc::clone(&emit)));
        Self { tunnel, emit, is_agent, live: None, examiner }
    }

    /// Does what a message asks for. What may take long, or wait, is done by a thread; then the answer comes later.
    pub(crate) fn handle(&mut self, message: Message) {
        match message {
            Message::Find { patterns, links } => {
                let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| &pattern[..]).collect();
                let (found, missing) = place::find(&patterns, links, self.is_agent);
                tree::tell(missing.iter().map(read_fault), &self.emit);
                self.tell_found(&found);
            }
            Message::Place(asked) => self.say(match place::place(&asked, self.is_agent) {
                Ok(placed) => Message::Placed(placed),
                Err(fault) => Message::Failed(fault),
            }),
            Message::Begin(begin) => {
                self.examiner.rest();
                self.begin(*begin, None);
            }
            Message::Examine | Message::OpenDoor { .. } | Message::Knock(_) => self.examiner.handle(message),
            Message::Copy { roots, directory, names, settings } => self.copy(roots, directory, names, settings),
            Message::Listen { via } => match self.listen(&via) {
                Ok(endpoints) => self.say(Message::Listening(endpoints)),
                Err(fault) => self.say(Message::Failed(fault)),
            },
            Message::Dial { endpoints, via } => {
                self.dial(move |key| {
                    let addresses = endpoints::ranked(&endpoints, &via)?;
                    reach::reach_best(&addresses, key, Instant::now() + DIAL_MAX).map_err(|error| error.to_string())
                });
            }
            Message::DialTunnel => {
                let tunnel = Arc::clone(&self.tunnel);
                self.dial(move |key| {
                    let address = tunnel.listen().map_err(|error| error.to_string())?;
                    reach::reach(address, key, Instant::now() + DIAL_MAX).map_err(|error| error.to_string())
                });
            }
            Message::Go => {
                if let Some(live) = &self.live {
                    let _ = live.go.try_send(());
                }
            }
            Message::Signal(number) => self.stop(number),
            Message::Count => {
                if let Some(live) = &mut self.live
                    && let Some(countable) = live.countable.take()
                {
                    countable.count(&live.progress, Arc::clone(&live.ended));
                }
            }
            Message::OtherLost => self.post(Event::Orphaned),
            Message::Measure { key, ports, via } => {
                let listening = measure::listen(&key, ports, |port| self.reachable(port, &via));
                self.say(listening.map_or_else(Message::Failed, Message::Listening));
            }
            Message::MeasureStorage { path, writes, micros } => {
                measure::measure_storage(path, writes, micros, Arc::clone(&self.emit));
            }
            message if message.is_tunnel() => self.tunnel.handle(message),
            // Answers, which no end is asked for.
            _ => {}
        }
    }

    /// Whoever asked is not heard any more. A session goes on: where the caller is its other end, the lanes tell whether
    /// it is alive, else the other end knows whether somebody is still there. A copy on this host ends. Returns the
    /// thread to wait for, and for how long.
    pub(crate) fn abandon(&mut self) -> Option<(JoinHandle<()>, Option<Duration>)> {
        let live = self.live.take()?;
        live.stop.store(true, Ordering::Relaxed);
        let _ = match live.peer {
            Some(Peer::Caller) => live.post.send(Event::Orphaned),
            Some(Peer::Another) => live.post.send(Event::Unwatched),
            None => return Some((live.thread, Some(ABANDON_MAX))),
        };
        // One that has not met its other end has made nothing, and may be in a system call that does not return: opening
        // a file of a server that is gone, or a device.
        let limit = (!live.met.load(Ordering::Relaxed)).then_some(ABANDON_MAX);
        Some((live.thread, limit))
    }

    /// The last session lost its other end. Where that was not the caller, the caller may be out of reach as well.
    pub(crate) fn has_lost_its_link(&self) -> bool {
        !self.is_busy() && self.live.as_ref().is_some_and(|live| live.lost.load(Ordering::Relaxed))
    }

    /// Does to what is running what a signal would: ends it or, with SIGTSTP, has it stop this process.
    pub(crate) fn stop(&self, number: u8) {
        if let Some(live) = &self.live {
            live.stop.fetch_or(i32::from(number) != libc::SIGTSTP, Ordering::Relaxed);
        }
        self.post(Event::Signal(i32::from(number)));
    }

    fn post(&self, event: Event) {
        if let Some(live) = &self.live {
            let _ = live.post.send(event);
        }
    }

    /// A session has been begun and has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.live.as_ref().is_some_and(|live| !live.ended.load(Ordering::Acquire))
    }

    fn say(&self, message: Message) {
        (self.emit)(message);
    }

    fn tell_found(&self, found: &[Found]) {
        for some in found.chunks(FOUND_MAX) {
            self.say(Message::Found(some.to_vec()));
        }
        self.say(Message::FoundAll);
    }

    /// Begins a session; for a pipeline, one that waits until it is told that its other end is ready as well.
    pub(crate) fn begin(&mut self, begin: Begin, hop: Option<AtHop>) {
        let standard = matches!(begin.job, Job::SendStandard | Job::ReceiveStandard);
        let of_stage = matches!(begin.job, Job::SendStage { .. } | Job::ReceiveStage { .. });
        let has_stage = matches!(hop, Some(AtHop::In(_) | AtHop::Out(_)));
        let fits = !(self.is_busy() || standard && self.is_agent) && of_stage == has_stage;
        if !fits {
            return self.say(ended_with(Fault::plain(Exit::Protocol.code(), "a job that cannot be done")));
        }
        let (post, events) = channel();
        let (listener, dialed) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let ended = Arc::new(AtomicBool::new(false));
        let lost = Arc::new(AtomicBool::new(false));
        let met = Arc::new(AtomicBool::new(false));
        let (go, goes) = bounded(1);
        let (key, ports) = (begin.key.clone(), begin.options.port_range.clone());
        let progress = Arc::default();
        let countable = match &begin.job {
            Job::SendTree { roots, settings } => {
                Some(tree::Countable { roots: roots.clone(), settings: settings.clone() })
            }
            _ => None,
        };
        let peer = Some(if begin.caller_is_peer { Peer::Caller } else { Peer::Another });
        let run = Run {
            emit: Arc::clone(&self.emit),
            is_agent: self.is_agent,
            begin,
            hop: Mutex::new(hop),
            output: Mutex::new(None),
            goes,
            post: post.clone(),
            events,
            listener: Arc::clone(&listener),
            dialed: Arc::clone(&dialed),
            ended: Arc::clone(&ended),
            lost: Arc::clone(&lost),
            met: Arc::clone(&met),
            progress: Arc::clone(&progress),
            made: Mutex::new(None),
        };
        let spawned = std::thread::Builder::new().name("session".to_owned()).spawn(move || run.run());
        match spawned {
            Ok(thread) => {
                let stop = Arc::new(AtomicBool::new(false));
                self.live = Some(Live {
                    post,
                    go,
                    key,
                    ports,
                    listener,
                    dialed,
                    stop,
                    peer,
                    ended,
                    lost,
                    met,
                    progress,
                    countable,
                    thread,
                });
            }
            Err(error) => self.say(ended_with(no_thread(&error))),
        }
    }

    /// Copies on this host.
    fn copy(&mut self, roots: Vec<Root>, directory: Vec<u8>, names: Vec<ByteVec>, settings: TreeOptions) {
        let (emit, stop) = (Arc::clone(&self.emit), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let progress = Arc::<Progress>::default();
        let told = Arc::clone(&progress);
        let countable = tree::Countable { roots: roots.clone(), settings: settings.clone() };
        let here = tree::Here { roots, directory, names, settings, stop: stopped, progress: told };
        let run = move || {
            let report = here.copy(&emit);
            over.store(true, Ordering::Relaxed);
            emit(Message::Ended(Box::new(report)));
        };
        let (post, _) = channel();
        match std::thread::Builder::new().name("copy".to_owned()).spawn(run) {
            Ok(thread) => {
                let key = SessionKey([0; 32]);
                let (listener, dialed, lost, met) = Default::default();
                self.live = Some(Live {
                    post,
                    go: bounded(1).0,
                    key,
                    ports: None,
                    listener,
                    dialed,
                    stop,
                    peer: None,
                    ended,
                    lost,
                    met,
                    progress,
                    countable: Some(countable),
                    thread,
                });
            }
            Err(error) => self.say(ended_with(no_thread(&error))),
        }
    }

    fn listen(&self, via: &[u8]) -> Result<Vec<Endpoint>, Fault> {
        let fault = |detail: String| Fault::plain(Exit::Connect.code(), detail);
        let live = self.live.as_ref().ok_or_else(|| fault("nothing to listen for".to_owned()))?;
        let key = Key::from_random(live.key.0);
        let listener = Listener::start(0, live.ports.clone(), key, live.post.clone()).map_err(|error| {
            let errno = os(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            match &live.ports {
                Some(ports) => fault(format!("no port of {}-{} to listen on: {errno}", ports.start(), ports.end())),
                None => fault(format!("cannot listen: {errno}")),
            }
        })?;
        let port = listener.port();
        self.tunnel.serve(port);
        *live.listener.lock().expect("no panic with it locked") = Some(listener);
        Ok(self.reachable(port, via))
    }

    /// Where this end can be reached at a port.
    fn reachable(&self, port: u16, via: &[u8]) -> Vec<Endpoint> {
        let mut endpoints = endpoints::own(port, via);
        if let Some(address) = endpoints::ssh_address().filter(|_| self.is_agent) {
            // Known to be reachable by the caller: before others that are as near and as fast.
            let port_there = |endpoint: &Endpoint| endpoint.socket_address().is_some_and(|at| at.ip() == address);
            endpoints.sort_by_key(|endpoint| !port_there(endpoint));
        }
        endpoints
    }

    fn dial(&self, reach: impl FnOnce(&Key) -> Result<(std::net::TcpStream, Established), String> + Send + 'static) {
        let Some(live) = &self.live else { return self.say(Message::DialFailed("nothing to connect for".to_owned())) };
        let key = Key::from_random(live.key.0);
        let (emit, post) = (Arc::clone(&self.emit), live.post.clone());
        let (listener, dialed) = (Arc::clone(&live.listener), Arc::clone(&live.dialed));
        let run = move || match reach(&key) {
            Ok((stream, established)) => {
                let mut listener = listener.lock().expect("no panic with it locked");
                // A channel serves one session: no lanes of one that this end has accepted beside one that it began.
                let registry = listener.as_ref().map(|it| it.registry().lock().expect("no panic with it locked"));
                if registry.is_some_and(|mut registry| !registry.begin(&established)) {
                    return emit(Message::DialFailed("the other end has connected already".to_owned()));
                }
                dialed.store(true, Ordering::Relaxed);
                drop(listener.take());
                drop(listener);
                emit(Message::Dialed);
                let _ = post.send(Event::Incoming(Incoming::First(stream, Box::new(established))));
            }
            Err(reason) => emit(Message::DialFailed(reason)),
        };
        if let Err(error) = std::thread::Builder::new().name("reach".to_owned()).spawn(run) {
            self.say(Message::DialFailed(error.to_string()));
        }
    }
}

/// How long a copy on this host, or a session that has not met its other end, may take to end when nobody wants it any
/// more.
const ABANDON_MAX: Duration = Duration::from_secs(2);

fn no_thread(error: &std::io::Error) -> Fault {
    Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}"))
}

pub(crate) fn ended_with(fault: Fault) -> Message {
    Message::Ended(Box::new(Report { fault: Some(fault), ..Report::default() }))
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

fn gone() -> Fault {
    Fault::plain(Exit::LinkLost.code(), "the other end has gone before it connected")
}

/// What receives into something that a stage has opened: in order, where it is no regular file or is added to.
fn receive_open(file: File, path: &Path) -> Work {
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let appends = rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let is_anew = rustix::fs::tell(&file).is_ok_and(|at| at == 0);
    let path = path.to_owned();
    if is_regular && is_anew && !appends {
        return Work::ReceiveFile(FileSink::open_already(file, &path));
    }
    Work::ReceiveStream(Box::new(move || Ok(StreamSink::new(file, path.as_os_str()))))
}

/// What a stage that is `tee` passes on.
struct Passing(RelayInput);

impl Also for Passing {
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.0.pass(bytes).is_ok()
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }
}

fn read_fault(fact: &IoFact) -> Fault {
    Fault::io(Exit::Source.code(), "cannot read", fact)
}

fn write_fault(fact: &IoFact) -> Fault {
    Fault::io(Exit::Destination.code(), "cannot write", fact)
}

/// The thread that runs one session.
struct Run {
    emit: Emit,
    is_agent: bool,
    begin: Begin,
    hop: Mutex<Option<AtHop>>,
    /// What a command writes to and this end reads, kept open until it has told of its end.
    output: Mutex<Option<File>>,
    goes: Receiver<()>,
    post: Sender<Event>,
    events: Receiver<Event>,
    listener: Arc<Mutex<Option<Listener>>>,
    dialed: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    met: Arc<AtomicBool>,
    progress: Arc<Progress>,
    /// A directory that was made to copy into.
    made: Mutex<Option<place::Made>>,
}

/// What one end of a pipeline's session moves.
pub(crate) enum AtHop {
    /// The input of a stage, once that is started.
    In(Attachment<Inlet>),
    /// The output of one.
    Out(Attachment<Outlet>),
    /// The caller's standard input or output.
    Standard,
}

/// What is moved, looked at but not begun.
enum Prepared {
    Send(File, std::ffi::OsString, Option<u64>),
    SendMemory(Duration),
    Receive(Option<Target>),
    SendTree(Vec<Root>, TreeOptions),
    ReceiveTree(Vec<u8>, Vec<ByteVec>, TreeOptions),
    /// Of a stage that has not been started.
    Stage(Role),
    SendRelay(RelayOutput),
    ReceiveOpen(File, PathBuf),
    /// Of a stage that is `tee`: its file, or why that cannot be opened, and where it passes on.
    ReceiveTee(Result<File, IoFact>, PathBuf, RelayInput),
}

impl Run {
    fn run(self) {
        let report = match self.transfer() {
            Ok(report) => report,
            Err(fault) => Report { fault: Some(fault), ..Report::default() },
        };
        drop(self.listener.lock().expect("no panic with it locked").take());
        drop(self.made.lock().expect("no panic with it locked").take());
        let is_lost = report.fault.as_ref().is_some_and(|fault| fault.exit == Exit::LinkLost.code());
        self.lost.store(is_lost, Ordering::Relaxed);
        self.ended.store(true, Ordering::Release);
        (self.emit)(Message::Ended(Box::new(report)));
    }

    fn transfer(&self) -> Result<Report, Fault> {
        // Before the other end is met: what is to be read or written can be. Nothing is made yet.
        let prepared = self.prepare()?;
        let (stream, established) = self.first_lane()?;
        self.met.store(true, Ordering::Relaxed);
        let peer_name = escaped(OsStr::from_bytes(&self.begin.peer));
        let first = FirstLane { stream, established, peer_name, is_named: true };
        let registry =
            self.listener.lock().expect("no panic with it locked").as_ref().map(|it| Arc::clone(it.registry()));
        let listening = registry.filter(|_| !self.dialed.load(Ordering::Relaxed));
        let lanes = Arc::new(Mutex::new(Vec::new()));
        let is_tree = matches!(self.begin.job, Job::SendTree { .. } | Job::ReceiveTree { .. });
        let teller = Messenger {
            emit: Arc::clone(&self.emit),
            lanes: Arc::clone(&lanes),
            progress: is_tree.then(|| Arc::clone(&self.progress)),
        };
        let session = Session {
            transfer: &self.begin.options,
            post: self.post.clone(),
            events: self.events.clone(),
            teller: &teller,
            heeds_signals: false,
            tells_for_both: if self.begin.caller_is_peer {
                !self.is_agent
            } else {
                matches!(
                    self.begin.job,
                    Job::SendFile { .. } | Job::SendTree { .. } | Job::SendStage { .. } | Job::SendMemory { .. }
                )
            },
        };
        let (role, size_bytes) = match &prepared {
            Prepared::Send(_, _, size_bytes) => (Role::Sender, *size_bytes),
            Prepared::SendTree(..) | Prepared::SendRelay(_) | Prepared::SendMemory(_) => (Role::Sender, None),
            Prepared::Receive(_) | Prepared::ReceiveTree(..) | Prepared::ReceiveOpen(..) | Prepared::ReceiveTee(..) => {
                (Role::Receiver, None)
            }
            Prepared::Stage(role) => (*role, None),
        };
        let mut stage_fault = None;
        // The one place where it is decided what a session reads from or writes to.
        let make_work = |chunk_bytes| {
            let prepared = match self.await_hop(prepared) {
                Ok(prepared) => prepared,
                Err(Fault { exit: exit @ 129.., .. }) => return Err(NoWork::Stopped(exit - 128)),
                Err(fault) => {
                    let (path, detail) = (fault.path.clone(), fault.detail.clone().into_bytes());
                    let fact = IoFact { errno: fault.errno, path, detail };
                    stage_fault = Some(fault);
                    return Err(NoWork::Io(fact));
                }
            };
            self.work(prepared, chunk_bytes).map_err(NoWork::from)
        };
        match session.run(first, role, size_bytes, listening.as_ref(), make_work) {
            Ok(ended) => {
                tree::tell_failed(&ended.summary, &self.emit);
                let mut report = report(&ended, &lanes.lock().expect("no panic with it locked"));
                if ended.summary.outcome == Outcome::PeerAborted(Cause::SinkClosed) && !self.is_writing_on() {
                    report.fault = None;
                }
                Ok(report)
            }
            Err(NotBegun::Peer(failure)) => Err(Fault { own: false, ..plain(&failure) }),
            Err(NotBegun::Here(failure)) => Err(stage_fault.unwrap_or_else(|| plain(&failure))),
        }
    }

    fn work(&self, prepared: Prepared, chunk_bytes: usize) -> Result<Work, IoFact> {
        match prepared {
            Prepared::Send(file, name, _) => Source::new(file, &name, chunk_bytes).map(Work::Send),
            Prepared::SendMemory(lasting) => Ok(Work::Send(Source::memory(lasting))),
            Prepared::SendTree(roots, settings) => {
                let source = TreeSource::new(roots, chunk_bytes, settings, Arc::clone(&self.progress))?;
                Ok(Work::SendTree(Box::new(source)))
            }
            Prepared::SendRelay(relay) => Ok(Work::SendRelay(relay)),
            Prepared::ReceiveOpen(file, path) => Ok(receive_open(file, &path)),
            Prepared::ReceiveTee(file, path, relay) => {
                let sink = match file {
                    Ok(file) => StreamSink::new(file, path.as_os_str()),
                    Err(fact) => StreamSink::without_file(fact),
                };
                Ok(Work::ReceiveStream(Box::new(move || Ok(sink.and(Passing(relay))))))
            }
            Prepared::Stage(_) => unreachable!("has been started"),
            Prepared::ReceiveTree(directory, names, settings) => {
                self.make(&directory)?;
                let sink = tree::sink(&directory, &names, &settings, &self.post, &self.emit, &self.progress)?;
                Ok(Work::ReceiveTree(Box::new(sink)))
            }
            Prepared::Receive(target) => crate::cli::recv::open(target.as_ref()),
        }
    }

    /// Makes the directory to copy into where it is missing.
    fn make(&self, directory: &[u8]) -> Result<(), IoFact> {
        let made = place::make(directory)?;
        *self.made.lock().expect("no panic with it locked") = made;
        Ok(())
    }

    fn prepare(&self) -> Result<Prepared, Fault> {
        match &self.begin.job {
            Job::SendFile { path } => {
                let path = path_of(path.clone());
                let file = Source::open(&path).map_err(|fact| read_fault(&fact))?;
                Self::sized(file, path.into_os_string())
            }
            Job::SendStandard => {
                let input = standard_input().map_err(|fact| read_fault(&fact))?;
                Self::sized(input, STANDARD_INPUT.into())
            }
            Job::ReceiveFile { path } => {
                let path = path_of(path.clone());
                if let Some(directory) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
                    self.make(directory.as_os_str().as_bytes()).map_err(|fact| write_fault(&fact))?;
                }
                let target = Sink::prepare(&path).map_err(|fact| write_fault(&fact))?;
                Ok(Prepared::Receive(Some(target)))
            }
            Job::ReceiveStandard => Ok(Prepared::Receive(None)),
            Job::SendMemory { millis } => Ok(Prepared::SendMemory(Duration::from_millis((*millis).into()))),
            Job::SendTree { roots, settings } => Ok(Prepared::SendTree(roots.clone(), settings.clone())),
            Job::ReceiveTree { directory, names, settings } => {
                Ok(Prepared::ReceiveTree(directory.clone(), names.clone(), settings.clone()))
            }
            Job::SendStage { .. } | Job::ReceiveStage { .. } => {
                let sends = matches!(self.begin.job, Job::SendStage { .. });
                Ok(Prepared::Stage(if sends { Role::Sender } else { Role::Receiver }))
            }
        }
    }

    /// In a pipeline: waits until the stage has been started and what it reads or writes is there, and then until the
    /// other end is as far. No lane lives yet, so that this may take as long as it does.
    fn await_hop(&self, prepared: Prepared) -> Result<Prepared, Fault> {
        let Some(hop) = self.hop.lock().expect("no panic with it locked").take() else { return Ok(prepared) };
        (self.emit)(Message::Agreed);
        let prepared = match hop {
            AtHop::Standard => prepared,
            AtHop::In(inlet) => match self.await_one(&inlet)?? {
                Inlet::File(file, path) => Prepared::ReceiveOpen(file, path),
                Inlet::Tee(file, path, relay) => Prepared::ReceiveTee(file, path, relay),
            },
            AtHop::Out(outlet) => match self.await_one(&outlet)?? {
                Outlet::File(file, path) => Self::sized(file, path.into_os_string())?,
                Outlet::Command(pipe) => {
                    *self.output.lock().expect("no panic with it locked") = pipe.try_clone().ok();
                    Self::sized(pipe, "pipe".into())?
                }
                Outlet::Relay(relay) => Prepared::SendRelay(relay),
            },
        };
        (self.emit)(Message::Ready);
        self.await_one(&self.goes)?;
        Ok(prepared)
    }

    /// Waits for something, or for a reason not to.
    fn await_one<T>(&self, from: &Receiver<T>) -> Result<T, Fault> {
        loop {
            match from.recv_timeout(LOOK_AGAIN) {
                Ok(one) => return Ok(one),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Fault::plain(Exit::LinkLost.code(), "the stage was never started"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.events.try_iter().try_for_each(|event| heed(&event))?;
        }
    }

    /// The reader of what a command writes has gone. Whether the command writes on, and so is hit by that: then what it makes
    /// of it is no failure. One that ends without writing on ends for reasons of its own. Waits for either.
    fn is_writing_on(&self) -> bool {
        let output = self.output.lock().expect("no panic with it locked");
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

    fn sized(file: File, name: std::ffi::OsString) -> Result<Prepared, Fault> {
        let again = file.try_clone().map_err(|error| read_fault(&std_fact(&name, &error)))?;
        let source = Source::new(again, &name, 1 << 20).map_err(|fact| read_fault(&fact))?;
        let size_bytes = source.size_bytes();
        Ok(Prepared::Send(file, name, size_bytes))
    }

    /// Waits for the other end, which has connected to us or been connected to.
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

/// What an event means to an end that has not met the other: stop this process, give up, or nothing.
fn heed(event: &Event) -> Result<(), Fault> {
    match event {
        Event::Signal(libc::SIGTSTP) => crate::cli::stop_here(),
        Event::Signal(number) => return Err(Fault::plain(Exit::Signal(*number as u8).code(), "")),
        Event::Orphaned | Event::Unwatched => return Err(gone()),
        _ => {}
    }
    Ok(())
}
