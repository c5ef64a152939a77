//! `rdsend`: the sending end of a pipe between two hosts.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgMatches, CommandFactory, Parser};
use rd_proto::control::{Cause, Policy, RdmaKind, Role};
use rd_proto::handshake::Key;
use rd_proto::session::Outcome;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::Arguments;
use super::key;
use super::options::{KeyOptions, ReportOptions, check_file, may_be_key, parse_port_or_hide};
use super::report::{Kept, Moved, NonBlocking, Reporter, Terminal, here, reported};
use super::words::{check_rails, unreached};
use crate::agent::words;
use crate::engine::link::LinkError;
use crate::engine::session::{FirstLane, Obstacle, Session};
use crate::engine::{self, Work, channel};
use crate::fault::{Exit, Failure, escaped};
use crate::fs::source::Source;
use crate::fs::standard;
use crate::job::hop::Side;
use crate::job::progress::Ended;
use crate::job::targets::is_list;
use crate::options::TransferOptions;

/// Pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Minimum time for one attempt to connect.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// Send a stream to rdrecv on another host
///
/// Sends FILE, or standard input, to the rdrecv that waits on PORT of HOST with the same KEY. Exits with 0 only if the
/// receiver has verified a digest of every byte.
#[derive(Parser, Debug)]
#[command(
    name = "rdsend",
    version,
    args_override_self = true,
    override_usage = "rdsend [OPTIONS] HOST PORT [KEY [FILE]]",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDSEND, EXIT_CODES)
)]
pub struct SendArguments {
    /// HOST: name or address of the host that runs rdrecv. PORT: the port that it waits on; HOST:PORT may be one word.
    /// KEY: the same at both ends; if it is `-` or missing, it is read from the environment variable RD_KEY, or asked
    /// for on the terminal if that is not set. FILE: file to send instead of standard input (`-`)
    #[arg(value_name = "HOST PORT [KEY [FILE]]", num_args = 0..=4, allow_negative_numbers = true)]
    positionals: Vec<OsString>,
    /// Seconds to keep trying to connect to HOST and PORT
    #[arg(long, value_name = "SECONDS", default_value_t = 10, allow_negative_numbers = true)]
    connect_timeout: u32,
    #[command(flatten)]
    key: KeyOptions,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    report: ReportOptions,
}

/// The exit codes, for the help of both stream commands.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 data verified; 1 usage error; 2 wrong KEY; 3 cannot \
    connect, or busy; 4 link lost; 5 source error; 6 destination error; 7 corruption; 9 protocol or version; \
    128+n ended by signal n; 141 receiver's output closed";

/// Runs the whole command. `words` begins with its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rdsend", || super::with_arguments(words, send))
}

impl Arguments for SendArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        let word: Option<&OsString> = given.get_many("positionals").unwrap_or_default().next();
        let host = word.map(|word| with_port(word).map_or_else(|| word.clone(), |(host, _)| host));
        host.iter().map(|host| without_brackets(host).to_owned()).collect()
    }

    fn conceal(given: &ArgMatches) {
        let words: Vec<&OsString> = given.get_many("positionals").unwrap_or_default().collect();
        let port = words.first().and_then(|word| with_port(word)).map(|(_, port)| port);
        let (is_typed, next) = (key::is_typed(given), words.get(2).copied());
        let is_key = |word: &&OsString| is_typed && port.is_none() && may_be_key(word, next);
        key::conceal(words.get(1).copied().filter(is_key));
        let before = if port.as_ref().is_some_and(|port| words.get(1) != Some(&port)) { 1 } else { 2 };
        key::conceal(words.get(before).copied().filter(|_| is_typed));
    }
}

/// Splits `HOST:PORT` or `[ADDRESS]:PORT` into two words. `None` for anything else, such as an IPv6 address.
fn with_port(word: &OsStr) -> Option<(OsString, OsString)> {
    let (host, port) = word.to_str()?.rsplit_once(':')?;
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !host.is_empty() && (is_bracketed || !host.contains(':'))).then(|| (host.into(), port.into()))
}

/// Returns an address without its brackets, as a section of a settings file names it.
fn without_brackets(host: &OsStr) -> &OsStr {
    let address = host.as_bytes().strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    address.map_or(host, OsStr::from_bytes)
}

fn send(mut arguments: SendArguments) -> Result<(), Failure> {
    arguments.report = arguments.report.begun("rdsend");
    let mut positionals = std::mem::take(&mut arguments.positionals).into_iter();
    let (host, port) = match positionals.next() {
        Some(word) => match with_port(&word) {
            // HOST:PORT followed by the same PORT names the port only once.
            Some((host, port)) if positionals.as_slice().first() == Some(&port) => (Some(host), positionals.next()),
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(word), positionals.next()),
        },
        None => (None, None),
    };
    let key = if arguments.key.is_elsewhere() { None } else { positionals.next() };
    key::conceal(key.as_ref());
    let (Some(host), Some(port)) = (&host, port) else {
        let missing = if host.is_some() { "PORT is missing" } else { "HOST and PORT are required" };
        return Err(super::usage(&SendArguments::command(), missing));
    };
    let file = positionals.next();
    if positionals.next().is_some() {
        return Err(super::usage(
            &SendArguments::command(),
            "too many arguments: KEY comes from an option, so leave it out here",
        ));
    }
    if is_list(host) && !host.as_bytes().starts_with(b"[") {
        let line = format!(
            "{0} is a list of hosts, but each rdrecv needs its own sender; to send to several, use rdpipe, which \
             starts both ends: rdpipe '{0}:> FILE' <FILE",
            escaped(host)
        );
        return Err(Exit::Usage.with(line));
    }
    if host.as_bytes().contains(&b'@') {
        let line = format!("{}: HOST takes no USER@, because rdsend does not log in", escaped(host));
        return Err(Exit::Usage.with(line));
    }
    let may_be_key = !arguments.key.is_elsewhere() && may_be_key(&port, key.as_ref());
    let port = parse_port_or_hide(&port, may_be_key).map_err(|message| Exit::Usage.with(message))?;
    if port == 0 {
        return Err(Exit::Usage.with("PORT 0 is only for rdrecv; give the port that rdrecv prints"));
    }
    if host.is_empty() {
        return Err(Exit::Usage.with("HOST is empty"));
    }
    check_file(file.as_ref())?;
    let source = file.as_ref().filter(|path| *path != "-");
    let moved = source.map_or(Moved::Input, |path| Moved::File("FILE", Path::new(path)));
    reported("rdsend", &arguments.report, &[moved], &Kept::default(), |reporter| {
        let from = file.as_ref().map_or_else(|| standard::INPUT.to_owned(), |path| escaped(path));
        let to = format!("port {port}");
        reporter.record(|record| record.route = [vec![here(from)], vec![(escaped(host), to)]]);
        transfer(&arguments, reporter, host, port, key, file.as_ref())
    })
}

fn transfer(
    arguments: &SendArguments,
    reporter: &Reporter<'_>,
    host: &OsString,
    port: u16,
    key: Option<OsString>,
    file: Option<&OsString>,
) -> Result<Ended, Failure> {
    // The key comes first, because it may be read from the same descriptor as the source.
    let key = key::given(key, &arguments.key)?;
    key::warn_of_readers("rdsend", &arguments.key, arguments.report.quiet);
    // Before the receiver is contacted, this checks that the source can be read.
    let (input, name) = match file.filter(|path| *path != "-") {
        Some(path) => (Source::open(Path::new(path)).map_err(|fact| words::source(&fact))?, path.clone()),
        None => (standard::named_input().map_err(|fact| words::source(&fact))?, standard::INPUT.into()),
    };
    let size_bytes = Source::new(input.try_clone().map_err(|_| no_descriptors())?, &name, 1 << 20)
        .map_err(|fact| words::source(&fact))?
        .size_bytes();
    check_transport(&arguments.transfer)?;
    let key = match key {
        Some(key) => key,
        None => key::ask(true)?,
    };
    let patience = Duration::from_secs(u64::from(arguments.connect_timeout));
    let first = reach(host, port, &key, patience, "rdrecv")?;
    // A progress bar would be drawn into the typed text.
    let is_typed = file.is_none_or(|path| path == "-") && std::io::stdin().is_terminal();
    if is_typed && !arguments.report.quiet && std::io::stderr().is_terminal() {
        super::say("rdsend: sending what you type; press ^D to end");
    }
    let peer = first.peer_name.clone();
    let (post, events) = channel();
    let session = Session {
        role: Role::Sender,
        size_bytes,
        listening: None,
        transfer: &arguments.transfer,
        post,
        events,
        observer: reporter
            .recording(Side::From, NonBlocking::start(Terminal::new("rdsend", &arguments.report, !is_typed))),
        takes_signals: true,
        reports_for_both: true,
    };
    let shared = input.try_clone().map_err(|_| no_descriptors())?;
    let mut size_sent = None;
    let make_work = |chunk_bytes| {
        let source = Source::new(input, &name, chunk_bytes).map_err(Obstacle::Source)?;
        // The file may have grown since the receiver was contacted.
        size_sent = source.size_bytes();
        Ok(Work::Send(source))
    };
    let ended = session.run(first, make_work).map_err(|not_begun| words::not_begun(&not_begun))?;
    if let (Outcome::Done, Some(size)) = (&ended.summary.outcome, size_sent) {
        // A file is read by position. The next reader of standard input finds what follows, as after other programs.
        let _ = seek(&shared, SeekFrom::Current(size as i64));
    }
    let is_closed = ended.summary.outcome == Outcome::PeerAborted(Cause::SinkClosed);
    let mut ended = Ended::from(ended);
    // Nothing was closed at this end, so without a message the user would not know why the transfer ended.
    if is_closed {
        ended.failure = Some(Exit::SinkClosed.with(format!("{peer}: the reader of its output closed it")));
    }
    Ok(ended)
}

fn no_descriptors() -> Failure {
    Exit::Source.with("out of file descriptors; raise the limit (ulimit -n)")
}

/// Checks, before the other end is reached, that this end can provide what was asked for.
pub(crate) fn check_transport(transfer: &TransferOptions) -> Result<(), Failure> {
    let lacks = transfer.transport.policy() == Policy::Rdma && engine::rdma::available() == RdmaKind::None;
    if lacks { Err(words::no_device("this host")) } else { check_rails(&transfer.rails, false) }
}

/// Ranks a failure to connect to one of several addresses by the hope that it leaves: 0 if this host cannot connect and
/// never will, 1 if this host has no route there, 2 if there may be a listener in a moment, 3 if the host is there but
/// has no listener yet.
fn hope(error: &LinkError) -> u8 {
    match error {
        LinkError::Os { error: Errno::ACCESS | Errno::PERM | Errno::AFNOSUPPORT | Errno::INVAL, .. } => 0,
        LinkError::Os { error: Errno::NETUNREACH | Errno::ADDRNOTAVAIL, .. } => 1,
        LinkError::Os { error: Errno::CONNREFUSED, .. } => 3,
        _ => 2,
    }
}

/// Connects and authenticates. While there is no listener yet, tries again until `patience` is used up. `program`: the
/// program that should listen there.
pub(crate) fn reach(
    host: &OsString,
    port: u16,
    key: &Key,
    patience: Duration,
    program: &str,
) -> Result<FirstLane, Failure> {
    let deadline = Instant::now() + patience;
    let host_name = escaped(host);
    let bare = host_name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host_name);
    let peer_name = if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") };
    let addresses = engine::reach::resolve(bare, port, patience.max(ATTEMPT_MIN)).map_err(|reason| {
        Exit::Connect.with(format!("unknown host {bare}: {reason}; check the name, or give an address"))
    })?;
    let mut last_reason: Option<LinkError> = None;
    loop {
        let mut failure: Option<LinkError> = None;
        for &address in &addresses {
            // There is at least one attempt, however short the patience is.
            match engine::reach::reach(address, key, deadline.max(Instant::now() + ATTEMPT_MIN)) {
                Ok((stream, established)) => return Ok(FirstLane { stream, established, peer_name, is_named: true }),
                Err(error @ (LinkError::Os { .. } | LinkError::TimedOut | LinkError::Closed)) => {
                    if failure.as_ref().is_none_or(|before| hope(&error) > hope(before)) {
                        failure = Some(error);
                    }
                }
                Err(error) => return Err(unreached(&error, &peer_name, program)),
            }
        }
        let failure = failure.unwrap_or(LinkError::TimedOut);
        if let LinkError::Os { .. } = failure {
            last_reason = Some(failure.clone());
        }
        if hope(&failure) == 0 || Instant::now() + RETRY_PAUSE >= deadline {
            // The last attempt may have been too short to learn what the system said about earlier attempts.
            let told = last_reason.filter(|_| matches!(failure, LinkError::TimedOut)).unwrap_or(failure);
            return Err(unreached(&told, &peer_name, program));
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}
