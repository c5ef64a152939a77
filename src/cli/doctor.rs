//! `rddoctor`: examines this host, other hosts, and the ways between them, and says how to fix what is wrong.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, Parser};

use super::options::CommonOptions;
use super::rdcp::HostOptions;
use super::rdcp::targets::hosts_named;
use super::uses::{LAUNCHING, Use};
use super::{Arguments, print, uses};
use crate::fault::{Exit, Failure, escaped};
use crate::job::Setup;
use crate::job::examine::{NoWay, drill, examine_host};
use crate::job::plan::Spec;
use crate::job::targets::{each, is_list, without_doubles};
use crate::measure::matrix::Matrix;
use crate::measure::{Facts, Finding, Fix, Level, Path, compare, examine, gather};
use crate::options::{TransferOptions, Transport, parse_ports};

mod many;
mod output;

/// Maximum time in seconds for which the bandwidth is measured.
const SECONDS_MAX: i64 = 600;

/// How many seconds the bandwidth to a single host is measured by default.
const SECONDS: u32 = 2;

/// Maximum time in seconds for measuring all pairs.
const WITHIN_MAX: i64 = 86_400;

/// Check hosts for fast transfers, and explain how to fix problems
///
/// Without HOST, rddoctor checks this host: RDMA libraries, modules, devices, ports, addresses, limits, processors.
/// With HOST, which ssh must reach, it checks both hosts and the path between them: which ports can be reached over TCP
/// and RDMA, which network carries the data, and how fast. Each check prints a line; a problem comes with the reason
/// why it matters and the command that fixes it. If HOST is a list, such as 'gpu[01-64]', rddoctor checks all of its
/// hosts and measures pairs, as many at once as possible without a host in two of them; it names slow pairs, and the
/// host that slow pairs have in common. Nothing is changed on any host, except that an agent is copied to
/// ~/.cache/rdma-pipe on a host that has none (not with --no-bootstrap).
#[derive(Parser, Debug)]
#[command(
    name = "rddoctor",
    version,
    args_override_self = true,
    override_usage = "rddoctor [OPTIONS] [HOST]",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDDOCTOR, EXIT_CODES)
)]
pub struct DoctorArguments {
    /// Host to check as well: NAME, USER@NAME or an address; or a list such as 'gpu[01-08,12]'
    #[arg(value_name = "HOST")]
    host: Option<OsString>,
    /// Check each host listed in FILE, or standard input (-), one per line; @GROUP is a group of ClusterShell's
    /// nodeset, slurm the nodes of the allocation
    #[arg(id = "hosts", long, value_name = "FILE|@GROUP|slurm", conflicts_with = "host")]
    hosts_from: Option<OsString>,
    /// Print the findings as one JSON object
    #[arg(long, conflicts_with = "fix_script")]
    json: bool,
    /// Print the fixes as a shell script, to review and then run as root on each host
    #[arg(long)]
    fix_script: bool,
    /// In test copies to HOST, cut a connection, flip a bit, fill a disk and kill the agent, and report whether each
    /// fault was detected and survived; all in a separate directory on each host, which is removed
    #[arg(long, conflicts_with = "fix_script")]
    drill: bool,
    /// Seconds to measure the bandwidth to HOST, or of each pair of hosts in each direction; 0 skips this [default: 2,
    /// or 1 for pairs]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=SECONDS_MAX))]
    seconds: Option<u32>,
    /// Total seconds for measuring pairs of several hosts; if that is too short for all pairs, rounds are skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=WITHIN_MAX))]
    within: u32,
    /// Transport for measuring the bandwidth
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    transport: Transport,
    /// Ports to use for tests
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    port_range: Option<RangeInclusive<u16>>,
    #[command(flatten)]
    hosts: HostOptions,
    #[command(flatten)]
    common: CommonOptions,
}

/// What a command line asks to examine.
enum Task {
    Here,
    Host,
    /// A list of hosts, even if it names only one.
    Hosts,
    Drill,
}

/// The tasks for which each option has a meaning. Options that say how a host is reached are allowed even without a
/// host, because they are the same for all tasks.
const USES: &[Use<Task>] = &[
    (&["color", "show_config", "hosts", "json", "fix_script", "drill"], |_| true, "everything"),
    (LAUNCHING, |_| true, "everything"),
    (
        &["seconds", "transport", "port_range", "via"],
        |task| matches!(task, Task::Host | Task::Hosts),
        "measuring the path to HOST",
    ),
    (&["within"], |task| matches!(task, Task::Hosts), "several hosts"),
    (&["relay"], |task| !matches!(task, Task::Here), "HOST"),
];

/// The exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 no problems; 1 usage error; 6 cannot write standard output; \
    10 warnings: works, but not optimally; 11 failures: something does not work; 128+n ended by signal n; \
    141 standard output closed";

/// Runs the command. The first of `words` is its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rddoctor", || super::with_arguments(words, |arguments| diagnose(&arguments)))
}

impl Arguments for DoctorArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        given.get_one::<OsString>("host").and_then(|host| parse_hosts(host).ok()).unwrap_or_default()
    }

    fn refused(given: &ArgMatches) -> Option<String> {
        let host = given.get_one::<OsString>("host").map(|host| parse_host(host)).transpose().ok()?;
        let (task, name) = match host {
            _ if given.get_flag("drill") => (Task::Drill, "--drill"),
            Some(host) if !is_list(&host) => (Task::Host, "one HOST"),
            None if !given.contains_id("hosts") => (Task::Here, "this host alone"),
            _ => (Task::Hosts, "several hosts"),
        };
        uses::refused(USES, &Self::command(), given, &task, name)
    }

    fn idle(given: &ArgMatches, key: &str) -> Option<String> {
        uses::idle_launching(given, key)
    }

    fn note_set(&mut self, is_set: &dyn Fn(&str) -> bool) {
        self.hosts.note_set(is_set);
    }

    fn explain(error: &clap::Error) -> Option<Failure> {
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
        let is_second = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
        let line = "give several hosts as one list, such as rddoctor 'h[2-3]', or with --hosts FILE";
        is_second.then(|| Exit::Usage.with(line))
    }
}

/// The findings about one host, or about the way between two.
struct Section {
    /// For a person.
    title: String,
    /// For programs: `here`, `there`, `path`, `pairs`, `drill`.
    part: &'static str,
    /// The host on which the fixes are to be run, by the name that `uname -n` prints.
    node: String,
    /// Whether that is this host. Otherwise another host has reported the name, which may be that of yet another host.
    is_here: bool,
    /// The host as named on the command line; empty for this host.
    name: String,
    findings: Vec<Finding>,
}

impl Section {
    /// Returns the host on which the fixes are to be run, as the user knows it.
    fn owner(&self) -> &str {
        if self.is_here { "this host" } else { &self.name }
    }
}

fn diagnose(arguments: &DoctorArguments) -> Result<(), Failure> {
    let usage = |reason: String| Exit::Usage.with(reason);
    let hosts = match (&arguments.hosts_from, &arguments.host) {
        (Some(from), _) => {
            let advice = "to name hosts, type rddoctor 'gpu[1-2]'";
            each_once(hosts_named(from, OsStr::new(""), advice).map_err(usage)?)?
        }
        (None, Some(host)) => parse_hosts(host)?,
        (None, None) => Vec::new(),
    };
    let mut reached = arguments.hosts.clone();
    let is_for_slurm = hosts.len() > 1 || arguments.hosts_from.is_some();
    reached.take_allocated(is_for_slurm, hosts.iter().map(OsString::as_os_str));
    let setup = reached.setup("rddoctor", hosts.iter().map(OsString::as_os_str), false, false)?;
    if arguments.drill {
        let [host] = &hosts[..] else {
            return Err(usage("--drill takes one HOST".to_owned()));
        };
        return drilled(arguments, setup, host);
    }
    let here = gather::here();
    let transfer = TransferOptions {
        transport: arguments.transport,
        port_range: arguments.port_range.clone(),
        // Time for a lane to come up again. This tells a line that loses large packets from one that is gone.
        reconnect: 3,
        ..TransferOptions::default()
    };
    if hosts.len() > 1 {
        return many::examine(&hosts, arguments, setup, &transfer, &here);
    }
    let mut sections = vec![of_host("this host", "here", &here)];
    let format = Format::of(arguments);
    // Examining the other host takes some seconds, in which the user can read this part.
    format.section(&sections)?;
    let host = hosts.into_iter().next();
    if let Some(host) = &host {
        let seconds = arguments.seconds.unwrap_or(SECONDS);
        let lasting = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        let node = here.host.clone();
        let found = examine_host(setup, host, lasting, &transfer, here);
        if let Err(NoWay { failure, .. }) = &found
            && matches!(failure.exit, Exit::Signal(_))
        {
            return Err(Failure::silent(failure.exit));
        }
        let others = of_found(host, arguments, &node, found);
        format.section(&others)?;
        sections.extend(others);
    }
    format.end(&sections, None, host.as_deref())
}

/// Makes faults on purpose between this host and another, and reports what became of each.
fn drilled(arguments: &DoctorArguments, setup: Setup, host: &OsStr) -> Result<(), Failure> {
    let (here, label) = (gather::here(), escaped(host));
    let complain = |line: &str| super::complain("rddoctor", line);
    let findings = match drill::run(setup, host, complain) {
        Ok(findings) => findings,
        Err(failure) if matches!(failure.exit, Exit::Signal(_)) => return Err(failure),
        Err(failure) => vec![Finding::failure(
            "drill",
            "drill-not-done",
            failure.message.unwrap_or_default(),
            "it is unknown whether faults are detected and survived",
            Fix::advice(format!("run rddoctor {label} to see what is wrong")),
        )],
    };
    let title = format!("drill with {label}");
    let sections = vec![Section { title, part: "drill", node: here.host, is_here: true, name: label, findings }];
    let format = Format::of(arguments);
    format.section(&sections)?;
    format.end(&sections, None, None)
}

/// Returns the named hosts without duplicates.
fn each_once(named: Vec<Spec>) -> Result<Vec<OsString>, Failure> {
    let (once, _) = without_doubles(named).map_err(|reason| Exit::Usage.with(reason))?;
    Ok(once.iter().map(|spec| spec.host().to_owned()).collect())
}

/// Parses a host, or a list of hosts.
fn parse_hosts(text: &OsStr) -> Result<Vec<OsString>, Failure> {
    let host = parse_host(text)?;
    if !is_list(&host) {
        // The launcher would take it for the name of one host.
        if host.as_bytes().contains(&b',') {
            let line = "commas are allowed only inside brackets, as in 'h[1-2,7]'; for other names, use --hosts FILE";
            return Err(Exit::Usage.with(format!("{}: {line}", escaped(text))));
        }
        return Ok(vec![host]);
    }
    let each = each(Spec::There(host, OsString::new())).map_err(|reason| Exit::Usage.with(reason))?;
    each_once(each)
}

/// Parses a host into the form that the launcher takes.
fn parse_host(text: &OsStr) -> Result<OsString, Failure> {
    let usage = |message: String| Exit::Usage.with(message);
    // As with `rdcp`, but the colon is optional.
    let mut with_colon = text.to_owned();
    if !text.as_bytes().ends_with(b":") {
        with_colon.push(":");
    }
    match Spec::parse(&with_colon) {
        Ok(Spec::There(host, path)) if path.is_empty() => Ok(host),
        // An IPv6 address without brackets.
        _ if text.to_str().is_some_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok()) => Ok(text.to_owned()),
        _ => Err(usage(format!("HOST must be a name or an address, not {:?}; see --help", escaped(text)))),
    }
}

fn of_host(label: &str, part: &'static str, facts: &Facts) -> Section {
    let title = if label == facts.host { label.to_owned() } else { format!("{label} ({})", facts.host) };
    let (node, name, findings) = (facts.host.clone(), String::new(), examine(facts));
    Section { title, part, node, is_here: true, name, findings }
}

/// Returns sections about another host and the way to it. `node` is the name of this host.
fn of_found(host: &OsStr, arguments: &DoctorArguments, node: &str, found: Result<Path, NoWay>) -> Vec<Section> {
    let label = escaped(host);
    let path_title = format!("this host -> {label}");
    let path_of = |node: String, is_here, findings| {
        let (title, name) = (path_title.clone(), label.clone());
        Section { title, part: "path", node, is_here, name, findings }
    };
    match found {
        Ok(path) => {
            // If the other host seems to be this one, by another name, that is only what its agent reports.
            let there = Section { is_here: false, name: label.clone(), ..of_host(&label, "there", &path.there) };
            let found = compare(&path, arguments.port_range.as_ref());
            // Settings of this host are fixed here; everything else on the way is fixed on the other host.
            let (ours, theirs): (Vec<_>, Vec<_>) = found.into_iter().partition(|finding| finding.is_here);
            let mut sections = vec![there, path_of(path.there.host, false, theirs)];
            if !ours.is_empty() {
                let title = format!("this host, on the path to {label}");
                let node = path.here.host;
                sections.push(Section { title, part: "path", node, is_here: true, name: label, findings: ours });
            }
            sections
        }
        Err(no_way) => {
            let found = no_way.failure.message.unwrap_or_else(|| "cannot examine it".to_owned());
            let (code, why, advice) = match (no_way.lacks_agent, no_way.failure.exit) {
                (true, _) => (
                    "agent-missing",
                    "without it, neither HOST nor the path to it can be examined, and rdcp cannot copy",
                    format!("install rdma-pipe on {label}"),
                ),
                (false, Exit::Protocol) => (
                    "agent-of-another-version",
                    "the two programs are not compatible",
                    format!("install the same release on {label}"),
                ),
                (false, Exit::LinkLost) => (
                    "agent-lost",
                    "the agent exited early, or the connection to it was lost",
                    format!("run rddoctor {label} again"),
                ),
                (false, _) => (
                    "agent-unreachable",
                    "rddoctor and rdcp reach other hosts through ssh; the route for the data is chosen afterwards",
                    format!("make `ssh {label} true` work without a prompt; -P, -i, -J, -F and -o are passed to ssh"),
                ),
            };
            let finding = Finding::failure("ssh", code, found, why, Fix::advice(advice));
            vec![path_of(node.to_owned(), true, vec![finding])]
        }
    }
}

/// Format of the report.
#[derive(Clone, Copy)]
enum Format {
    /// Prints sections as they come.
    Text(output::Painter),
    /// Prints when all sections are known.
    Json,
    Script,
}

impl Format {
    fn of(arguments: &DoctorArguments) -> Self {
        match (arguments.json, arguments.fix_script) {
            (true, _) => Self::Json,
            (false, true) => Self::Script,
            (false, false) => Self::Text(output::Painter::of_output()),
        }
    }

    fn section(self, sections: &[Section]) -> Result<(), Failure> {
        match self {
            Self::Text(painter) => print(&output::text(sections, painter)),
            Self::Json | Self::Script => Ok(()),
        }
    }

    fn end(self, sections: &[Section], matrix: Option<&Matrix>, host: Option<&OsStr>) -> Result<(), Failure> {
        let worst = sections.iter().flat_map(|section| &section.findings).map(|finding| finding.level).max();
        let exit = match worst {
            Some(Level::Failure) => Some(Exit::Failures),
            Some(Level::Warning) => Some(Exit::Warnings),
            Some(Level::Ok) | None => None,
        };
        print(&match self {
            Self::Text(painter) => output::sum(sections, painter, host),
            Self::Json => output::json(sections, matrix, exit.map_or(0, Exit::code)),
            Self::Script => output::script(sections),
        })?;
        exit.map_or(Ok(()), |exit| Err(Failure::silent(exit)))
    }
}

#[cfg(test)]
mod tests;
