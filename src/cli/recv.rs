//! `rdrecv`: the receiving end of a pipe between two hosts.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgMatches, CommandFactory, Parser};
use flume::{Receiver, Sender};
use rd_proto::control::{Cause, IoFact, Role};
use rd_proto::handshake::Established;
use rd_proto::session::Outcome;
use rustix::io::Errno;

use super::Arguments;
use super::key;
use super::options::{KeyOptions, ReportOptions, check_file, may_be_key, parse_port_or_hide};
use super::report::{Kept, Moved, NonBlocking, Reporter, Terminal, here, reported};
use super::send::{EXIT_CODES, check_transport};
use super::words::{not_listening, too_many_guesses};
use crate::agent::words;
use crate::engine::listen::{Further, Incoming, Listener};
use crate::engine::session::{self, FirstLane, Obstacle, Session};
use crate::engine::{Event, Work, channel};
use crate::fault::{Exit, Failure, escaped, os, printable, shown_path};
use crate::fs::sink::{NO_TEXT, Target};
use crate::fs::standard;
use crate::job::hop::Side;
use crate::job::progress::Ended;
use crate::options::TransferOptions;
use crate::signals::{self, Forwarding};
use crate::transport::is_inner;
use crate::transport::rdma::interface_addresses;
use crate::transport::unmapped;

/// Receive a stream from rdsend on another host
///
/// Waits on PORT for one rdsend with the same KEY, and writes the data to FILE or standard output. FILE, unless it is a
/// device or FIFO, appears only when all data has arrived and been verified; until then, an existing FILE is unchanged.
/// Without arguments, rdrecv chooses a free port and a key, and prints the rdsend command to run at the other end.
#[derive(Parser, Debug)]
#[command(
    name = "rdrecv",
    version,
    args_override_self = true,
    override_usage = "rdrecv [OPTIONS] [PORT [KEY [FILE]]]",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDRECV, EXIT_CODES)
)]
pub struct RecvArguments {
    /// PORT: the port to wait on; 0 for any free port. KEY: the same at both ends; if it is `-` or missing, it is read
    /// from the environment variable RD_KEY, or generated if that is not set. FILE: file to write instead of standard
    /// output
    #[arg(value_name = "PORT [KEY [FILE]]", num_args = 0..=3, allow_negative_numbers = true)]
    positionals: Vec<OsString>,
    /// Seconds to wait for a sender [default: no limit]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    wait: Option<u32>,
    #[command(flatten)]
    key: KeyOptions,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    report: ReportOptions,
}

/// Runs the whole command. `words` begins with its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rdrecv", || super::with_arguments(words, recv))
}

impl Arguments for RecvArguments {
    /// Returns no host, because the sender is not known beforehand.
    fn hosts(_: &ArgMatches) -> Vec<OsString> {
        Vec::new()
    }

    fn conceal(given: &ArgMatches) {
        let words: Vec<&OsString> = given.get_many("positionals").unwrap_or_default().collect();
        let key = words.get(1).copied();
        let is_typed = key::is_typed(given);
        key::conceal(words.first().copied().filter(|word| is_typed && may_be_key(word, key)));
        key::conceal(key.filter(|_| is_typed));
    }
}

fn recv(mut arguments: RecvArguments) -> Result<(), Failure> {
    arguments.report = arguments.report.begun("rdrecv");
    let mut positionals = std::mem::take(&mut arguments.positionals).into_iter();
    let port = positionals.next();
    let key = if arguments.key.is_elsewhere() { None } else { positionals.next() };
    key::conceal(key.as_ref());
    let file = positionals.next();
    if positionals.next().is_some() {
        return Err(super::usage(
            &RecvArguments::command(),
            "too many arguments: KEY comes from an option, so leave it out here",
        ));
    }
    let may_be_key = !arguments.key.is_elsewhere() && port.as_ref().is_some_and(|word| may_be_key(word, key.as_ref()));
    let port = port.as_ref().map_or(Ok(0), |word| parse_port_or_hide(word, may_be_key)).map_err(|message| {
        let word = port.as_deref().map(escaped).unwrap_or_default();
        let file = if may_be_key { "FILE" } else { &word };
        let begins_name = |letter: char| letter.is_alphabetic() || "./~_".contains(letter);
        let may_be_file = key.is_none() && word.starts_with(begins_name);
        let key = if arguments.key.is_elsewhere() { "" } else { "- " };
        let advice = if may_be_file { format!("; into a file: rdrecv 0 {key}{file}") } else { String::new() };
        Exit::Usage.with(message + &advice)
    })?;
    check_file(file.as_ref())?;
    // The file behind such a name may have been written to by others, and is not to be replaced.
    let file = file.filter(|path| !standard::is_output(path));
    let is_forced = file.as_ref().is_some_and(|path| path == "-");
    let file = file.filter(|_| !is_forced);
    if file.is_none() && !is_forced {
        standard::guard_terminal(false);
    }
    let moved = file.as_ref().map_or(Moved::Output, |path| Moved::File("FILE", Path::new(path)));
    reported("rdrecv", &arguments.report, &[moved], &Kept::default(), |reporter| {
        let to = file.as_ref().map_or_else(|| standard::OUTPUT.to_owned(), |path| escaped(path));
        reporter.record(|record| record.route = [vec![("the sender".to_owned(), String::new())], vec![here(to)]]);
        let ended = transfer(&arguments, reporter, port, key, file.as_ref())?;
        let is_binary =
            matches!(&ended.summary.outcome, Outcome::Aborted(Cause::Sink(fact)) if fact.detail == NO_TEXT.as_bytes());
        let mut ended = Ended::from(ended);
        if is_binary {
            ended.failure = Some(Exit::Usage.with(BINARY));
        }
        Ok(ended)
    })
}

/// How often `rdrecv` looks, while it waits for a sender, whether its standard output still has a reader.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Error message for data that is not text when standard output is a terminal.
const BINARY: &str = "not writing binary data to a terminal: name a FILE or redirect standard output; to write it \
    anyway, give - as FILE, as in rdrecv 0 - -";

fn transfer(
    arguments: &RecvArguments,
    reporter: &Reporter<'_>,
    port: u16,
    key: Option<OsString>,
    file: Option<&OsString>,
) -> Result<session::Ended, Failure> {
    // Before any sender connects, this checks that the destination can be written. Nothing is created yet.
    match file {
        Some(path) => drop(Target::prepare(Path::new(path)).map_err(|fact| unwritable(&fact))?),
        None => drop(standard::named_output().map_err(|fact| words::destination(&fact))?),
    }
    check_transport(&arguments.transfer)?;
    let (key, generated) = key::given_or_made(key, &arguments.key)?;
    key::warn_of_readers("rdrecv", &arguments.key, arguments.report.quiet);
    let (mut post, mut events) = channel();
    let mut taking = take_signals(&post)?;
    let ports = &arguments.transfer.port_range;
    let listener = Listener::start(port, ports.clone(), key, post.clone(), Further::Lanes)
        .map_err(|error| not_listening(&error, port, ports.as_ref()))?;
    if let Some(text) = &generated {
        let (first, others) = own_addresses();
        super::say(&format!("rdsend {first} {} {text}", listener.port()));
        if !others.is_empty() && !arguments.report.quiet {
            super::say(&format!("rdrecv: or at {}", others.join(", ")));
        }
    } else if port == 0 || arguments.report.is_verbose() {
        // Printed also with --quiet, because otherwise no sender could connect.
        super::say(&format!("rdrecv: waiting on port {}", listener.port()));
    }
    let wait = arguments.wait.map(|seconds| Duration::from_secs(u64::from(seconds)));
    let deadline = wait.map(|wait| Instant::now() + wait);
    let may_draw = file.is_some() || !std::io::stdout().is_terminal();
    let mut strangers = 0;
    // Why no session began with the last sender that had KEY.
    let mut failed: Option<Failure> = None;
    loop {
        let next = next_sender(&events, deadline, file.is_none(), arguments.report.is_verbose(), &mut strangers)?;
        // The session takes signals itself.
        drop(taking);
        let Some(first) = next else {
            let (port, seconds) = (listener.port(), arguments.wait.unwrap_or_default());
            if let Some(failure) = failed {
                let cause = failure.message.unwrap_or_default();
                let message = format!("no sender could be served on port {port} within {seconds} s: {cause}");
                return Err(Exit::Connect.with(message));
            }
            let message = match strangers {
                0 => format!("no sender connected to port {port} within {seconds} s; see --wait"),
                _ => {
                    let who = if strangers == 1 { "one".to_owned() } else { format!("{strangers} connections") };
                    format!(
                        "no sender with this KEY connected to port {port} within {seconds} s: {who} had a different \
                         KEY, or was damaged in transit"
                    )
                }
            };
            return Err(Exit::Connect.with(message));
        };
        let session = Session {
            role: Role::Receiver,
            size_bytes: None,
            listening: Some(listener.registry()),
            transfer: &arguments.transfer,
            post,
            events: events.clone(),
            observer: reporter
                .recording(Side::To, NonBlocking::start(Terminal::new("rdrecv", &arguments.report, may_draw))),
            takes_signals: true,
            reports_for_both: true,
        };
        let make_work = |_chunk_bytes| {
            // FILE may be something else by now, because the wait has no limit.
            let target = file.map(|path| Target::prepare(Path::new(path))).transpose();
            target.and_then(|target| Work::receive(target.as_ref())).map_err(Obstacle::Destination)
        };
        match session.run(first, make_work) {
            Ok(ended) => return Ok(ended),
            Err(not_begun) if !not_begun.is_peers => return Err(words::not_begun(&not_begun)),
            Err(not_begun) => {
                // The next sender may do better.
                let failure = words::not_begun(&not_begun);
                super::complain("rdrecv", failure.message.as_deref().unwrap_or_default());
                failed = Some(failure);
                // The next session gets a channel of its own, because lanes of the failed session may still report to
                // the old one.
                let old = events;
                (post, events) = channel();
                taking = take_signals(&post)?;
                listener.registry().lock().expect("no panic with it locked").clear(post.clone());
                // A lane that waits in the old channel holds the channel, and the channel holds the lane.
                drop(old.drain());
            }
        }
    }
}

/// Describes a destination that cannot be written. Most often its directory is missing.
fn unwritable(fact: &IoFact) -> Failure {
    let mut failure = words::destination(fact);
    if let (Some(line), libc::ENOENT) = (&mut failure.message, fact.errno) {
        let path = Path::new(OsStr::from_bytes(&fact.path));
        // Under the name of a link that leads nowhere, mkdir cannot make a directory.
        let there = path.ancestors().find(|path| path.symlink_metadata().is_ok());
        *line += &match there.filter(|path| path.metadata().is_err()) {
            Some(link) => {
                let link = escaped(link.as_os_str());
                format!("; {link} is a link that leads nowhere: remove it, or name its target")
            }
            None => format!("; create it with: mkdir -p {}", shell_words::quote(&shown_path(&fact.path))),
        };
    }
    failure
}

/// Makes signals events while a sender is waited for. Otherwise they would end this process without a report, as they do
/// while the first messages of a sender are awaited.
fn take_signals(post: &Sender<Event>) -> Result<Forwarding, Failure> {
    let post = post.clone();
    signals::forward(false, move |signal| post.send(Event::Signal(signal)).is_ok())
        .map_err(|error| Exit::Connect.with(format!("cannot handle signals: {}", printable(&error.to_string()))))
}

/// Waits for a sender. `None` if no sender has come by the deadline. Ends if the data would go to standard output, and
/// nobody reads that any more. Counts connections with another key in `strangers`.
fn next_sender(
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    to_output: bool,
    verbose: bool,
    strangers: &mut u32,
) -> Result<Option<FirstLane>, Failure> {
    let mut look = to_output.then(|| Instant::now() + LOOK_EVERY);
    loop {
        if look.is_some_and(|look| Instant::now() >= look) {
            // As in `rdrecv | command`, where the command has failed at once.
            if standard::is_unread(std::io::stdout()) {
                return Err(Failure::silent(Exit::SinkClosed));
            }
            look = Some(Instant::now() + LOOK_EVERY);
        }
        let event = match deadline.into_iter().chain(look).min() {
            Some(until) => events.recv_deadline(until).ok(),
            None => events.recv().ok(),
        };
        match event {
            Some(Event::Incoming(Incoming::First(stream, established))) => {
                let established: Established = *established;
                let peer = stream.peer_addr();
                let peer_name = peer.map_or("the sender".to_owned(), |peer| unmapped(peer).ip().to_string());
                return Ok(Some(FirstLane { stream, established, peer_name, is_named: false }));
            }
            Some(Event::Incoming(Incoming::TooManyGuesses)) => return Err(too_many_guesses()),
            Some(Event::Incoming(Incoming::NoDescriptor)) => {
                let message = format!("cannot accept a connection: {}; raise the limit (ulimit -n)", os(Errno::MFILE));
                return Err(Exit::Connect.with(message));
            }
            Some(Event::Incoming(Incoming::Stranger(address))) => {
                *strangers += 1;
                if verbose {
                    super::say(&format!("rdrecv: {} has a different KEY", unmapped(address).ip()));
                }
            }
            Some(Event::Signal(libc::SIGTSTP)) => signals::stop_here(),
            Some(Event::Signal(number)) => return Err(Failure::silent(Exit::Signal(number as u8))),
            None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => return Ok(None),
            Some(_) | None => {}
        }
    }
}

/// Returns the addresses of this host: the address that others are likely to reach, and the rest.
fn own_addresses() -> (String, Vec<String>) {
    let first = own_address();
    let mut all = interface_addresses().unwrap_or_default();
    all.sort_by_key(|known| is_inner(&known.interface));
    let others = all.into_iter().map(|known| known.address.to_string()).filter(|address| *address != first).collect();
    (first, others)
}

/// Returns an address of this host that others are likely to reach: the source address of packets to the outside.
pub(crate) fn own_address() -> String {
    // Connecting a datagram socket sends nothing; it only makes the system choose an address. The target address is
    // reserved for documentation (RFC 5737), so it is routed like the address of any stranger.
    let outside = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let chosen = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(outside).and_then(|()| socket.local_addr()));
    match chosen {
        Ok(address) => address.ip().to_string(),
        // Without a default route, this host has no address for strangers, but perhaps one for its neighbours, who may
        // not know its name.
        Err(_) => {
            let known = interface_addresses().unwrap_or_default();
            let address = known.iter().min_by_key(|known| (is_inner(&known.interface), known.address.is_ipv6()));
            let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
            address.map_or_else(name, |known| known.address.to_string())
        }
    }
}
