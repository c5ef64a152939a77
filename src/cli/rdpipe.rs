//! `rdpipe`: runs commands on hosts and streams the output of each straight to the next.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, Parser};

use super::Arguments;
use super::hosts;
use super::json;
use super::options::ReportOptions;
use super::rdcp::HostOptions;
use super::report::{HopsConsole, Kept, Moved, Reporter};
use super::uses::idle_launching;
use super::words::{check_rails, single_quoted, unshown};
use crate::agent::words;
use crate::control::frames::{COMMAND_BYTES_MAX, Input, Output, SHELL_WORDS_MAX, STAGES_MAX};
use crate::fault::{Exit, Failure, escaped};
use crate::fs::standard;
use crate::job::Setup;
use crate::job::pipeline::grammar::{Spec, branches, lay_out};
use crate::job::pipeline::{Branching, Pipeline, Plan, Ran, planned, report};
use crate::job::targets::{expand, is_several};
use crate::options::{TransferOptions, parse_bytes};

/// The shell that runs commands by default.
const SHELL: &str = "sh";

/// How many ports are tried, from the port of `-p` on.
const PORTS: u16 = 64;

/// Run commands on hosts, and stream the output of each to the next
///
/// A shell runs each COMMAND on its HOST, in the home directory; without HOST, or after a lone colon, here. Standard
/// input, unless a terminal, feeds the first command, and the output of the last goes to standard output. The data goes
/// directly from host to host. In place of a command, '< FILE' reads the stream from a file, and '> FILE' or '>> FILE'
/// writes it to one; in the middle they begin or end a part of the pipeline, and the parts run one after the other. The
/// HOST of the last COMMAND may be a list, such as 'n[1-4]:COMMAND': the stream is sent once, each host passes it on to
/// the next, and each runs COMMAND with the whole stream as input and output on standard error.
#[derive(Parser, Debug)]
#[command(
    name = "rdpipe",
    version,
    args_override_self = true,
    override_usage = "rdpipe [OPTIONS] [HOST:]COMMAND...",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDPIPE, EXIT_CODES)
)]
pub struct PipeArguments {
    /// Commands to run
    #[arg(value_name = "[HOST:]COMMAND")]
    stages: Vec<OsString>,
    /// Start nothing; print what would run where, and the connections to be made
    #[arg(short = 'n', long, conflicts_with_all = ["page", "trace"])]
    dry_run: bool,
    /// Listen on PORT, or the next port that is free, instead of a port that the system chooses
    #[arg(short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "port_range")]
    listen: Option<u16>,
    /// Name of this host for adjacent hosts: they connect to NAME, instead of this host to them
    #[arg(short = 'H', value_name = "NAME", conflicts_with_all = ["via", "relay"])]
    name: Option<String>,
    /// Shell to use, called with -c COMMAND
    #[arg(long, value_name = "COMMAND", default_value = SHELL)]
    shell: String,
    /// Do not label lines of standard error; the default for more than one host is to label them
    #[arg(long)]
    no_label: bool,
    #[command(flatten)]
    branches: BranchOptions,
    #[command(flatten)]
    hosts: HostOptions,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    report: ReportOptions,
}

/// Options for one stream to several hosts.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Several hosts")]
struct BranchOptions {
    /// Make all hosts wait for a slow one (hold), or drop it as failed once it has held up the others for --stall
    /// (drop)
    #[arg(long, value_enum, value_name = "hold|drop", default_value_t = Slow::Hold)]
    slow: Slow,
    /// Let each host fall behind by SIZE on its disk (in its TMPDIR, or /var/tmp) before it is slow
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    spool: Option<u64>,
    /// Bypass a host that accepts no data for SECONDS; with --slow=hold, only if it does not answer either
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    stall: u32,
    /// Start without hosts that have not answered within SECONDS of the login
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=120))]
    connect_timeout: u32,
}

/// What happens to a slow host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Slow {
    /// Wait for the host.
    Hold,
    /// Drop the host.
    Drop,
}

/// The exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 usage error; 2 authentication failed; 3 cannot connect, or no agent; \
    4 link lost; 5 cannot read '< FILE' or standard input; 6 cannot write '> FILE' or standard output; 7 corruption; \
    8 some hosts failed; 9 protocol or version; 141 standard output closed; 128+n ended by signal n; \
    else that of the last command that failed. A command has not failed if its reader ended first and SIGPIPE \
    ended it, or, except before a list of hosts, it failed after writing more than its reader wanted";

/// Runs the command. The first of `words` is its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rdpipe", || super::with_arguments(words, pipe))
}

impl Arguments for PipeArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        let stages = given.get_many::<OsString>("stages").unwrap_or_default();
        let hosts = stages.filter_map(|stage| Spec::parse(stage).ok()).map(|spec| spec.host);
        // A stage of this host has none.
        hosts.filter(|host| !host.is_empty()).flat_map(|host| expand(&host).unwrap_or_default()).collect()
    }

    fn idle(given: &ArgMatches, key: &str) -> Option<String> {
        let last = given.get_many::<OsString>("stages").and_then(|mut stages| Spec::parse(stages.next_back()?).ok());
        let are_several = last.is_some_and(|spec| is_several(&spec.host));
        let relay = (key == "relay" && are_several).then(|| "--relay is for one host at a time".to_owned());
        relay.or_else(|| idle_launching(given, key))
    }
}

fn pipe(mut arguments: PipeArguments) -> Result<(), Failure> {
    let usage = |message: String| Exit::Usage.with(message);
    arguments.report = arguments.report.begun("rdpipe");
    if arguments.stages.is_empty() {
        return Err(super::usage(&PipeArguments::command(), "COMMAND is required"));
    }
    let mut specs: Vec<Spec> =
        arguments.stages.iter().map(|stage| Spec::parse(stage)).collect::<Result<_, _>>().map_err(usage)?;
    let shell = shell_words::split(&arguments.shell).unwrap_or_default();
    if !(1..=SHELL_WORDS_MAX).contains(&shell.len()) {
        return Err(usage(format!("--shell '{}' is not a command", escaped(OsStr::new(&arguments.shell)))));
    }
    if shell == [SHELL]
        && let Some(line) = unquoted(&arguments.stages, &specs, is_command)
    {
        return Err(usage(line));
    }
    let has_input = has_input();
    let first = branches(&mut specs, has_input).map_err(usage)?;
    if first.is_some() && arguments.hosts.relay {
        return Err(usage("--relay sends all data through this host, once per host; leave it out".to_owned()));
    }
    if specs.len() > STAGES_MAX {
        return Err(usage(format!("too many stages; the limit is {STAGES_MAX}")));
    }
    let BranchOptions { stall, connect_timeout, .. } = arguments.branches;
    let [stall, connect_max] = [stall, connect_timeout].map(|seconds| Duration::from_secs(seconds.into()));
    let (drops_slow, disk_bytes) = (arguments.branches.slow == Slow::Drop, arguments.branches.spool.unwrap_or(0));
    let branching = first.map(|first| Branching { first, drops_slow, stall, disk_bytes, connect_max });
    let shell_bytes: usize = shell.iter().map(String::len).sum();
    if let Some(number) = specs.iter().position(|spec| spec.text.len() + shell_bytes > COMMAND_BYTES_MAX) {
        let (bytes, most) = ((specs[number].text.len() + shell_bytes).div_ceil(1024), COMMAND_BYTES_MAX >> 10);
        let line =
            format!("stage {} takes {bytes} KiB with its shell (limit: {most} KiB); put it into a script", number + 1);
        return Err(usage(line));
    }
    let parts = lay_out(&specs, has_input, shell == [SHELL], first);
    let output = parts.last().and_then(|part| part.stages.last()).map(|stage| stage.output);
    let mut transfer = arguments.transfer;
    let is_fed = parts.first().and_then(|part| part.stages.first()).is_some_and(|first| first.input != Input::Nothing);
    if is_fed || matches!(output, Some(Output::Standard | Output::Hop)) || specs.iter().any(|spec| spec.host.is_empty())
    {
        check_rails(&transfer.rails, true)?;
    }
    if let Some(first) = arguments.listen {
        transfer.port_range = Some(first..=first.saturating_add(PORTS - 1));
    }
    let hosts = specs.iter().map(|spec| &*spec.host);
    let setup = arguments.hosts.setup("rdpipe", hosts, arguments.report.quiet, arguments.dry_run)?;
    let mut setup = Setup { name: arguments.name, ..setup };
    setup.launcher.patience_s = transfer.reconnect;
    let plan = Plan {
        specs,
        parts,
        shell: shell.into_iter().map(|word| word.into_bytes().into()).collect(),
        label: !arguments.no_label,
        setup,
        transfer: &transfer,
        branching,
    };
    if arguments.dry_run {
        let planned = planned::planned(&plan);
        let asked = &arguments.report;
        if asked.json.is_some() || asked.json_fd.is_some() {
            let reporter = Reporter::open("rdpipe", asked, &[], &Kept::default())?;
            reporter.event(&json::Event::WouldRun(planned));
            let end = report::end(&[], &[], None);
            return reporter.last(&json::Event::End(json::End::Pipeline(end)));
        }
        if asked.quiet {
            return Ok(());
        }
        let text: String = planned_lines(&planned, &plan).iter().map(|line| format!("{line}\n")).collect();
        return super::print(&text);
    }
    let is_put_out = matches!(output, Some(Output::Standard | Output::Hop));
    // If standard input were closed, /dev/null would be read instead: no data, and no error.
    if is_fed {
        standard::named_input().map_err(|fact| words::source(&fact))?;
    }
    if is_put_out {
        standard::named_output().map_err(|fact| words::destination(&fact))?;
        standard::guard_terminal(true);
    }
    let moved: Vec<_> = is_fed.then_some(Moved::Input).into_iter().chain(is_put_out.then_some(Moved::Output)).collect();
    let reporter = Reporter::open("rdpipe", &arguments.report, &moved, &Kept::default())?;
    let may_draw = matches!(output, Some(Output::Nothing | Output::Error)) || !std::io::stdout().is_terminal();
    let is_until_output = output == Some(Output::Hop) && !may_draw;
    // A command here has this terminal.
    let may_ask = plan.specs.iter().any(|spec| spec.host.is_empty() && spec.is_run());
    let mut console = HopsConsole::new(&reporter, may_draw, is_until_output, may_ask);
    let Ran { stages, hops, streamed, failure } = match Pipeline::new(&plan, &mut console) {
        Ok(pipeline) => pipeline.run(),
        Err(failure) => Ran { stages: Vec::new(), hops: Vec::new(), streamed: None, failure: Some(failure) },
    };
    let failure = failure.map(unshown);
    if arguments.report.is_verbose() && failure.is_none() {
        console.sum_up(&stages, &hops, &plan.setup.launcher_name());
    }
    console.say_last(&hops, streamed.as_ref(), failure.is_none());
    let end = json::End::Pipeline(report::end(&stages, &hops, failure.as_ref()));
    let told = reporter.end(end, None, None);
    // The failure itself matters more than a failure to report it.
    failure.map_or(told, Err)
}

/// Describes what a pipeline would do, for a person.
fn planned_lines(planned: &json::WouldRun, plan: &Plan<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, part) in planned.parts.iter().enumerate() {
        if planned.parts.len() > 1 {
            let after = if number > 0 { ", after the previous part has finished" } else { "" };
            lines.push(format!("part {}{after}", number + 1));
        }
        for stage in &part.stages {
            let how = match stage.action {
                json::StageAction::Run => "runs",
                json::StageAction::Read => "reads",
                json::StageAction::Write => "writes",
                json::StageAction::Tee => "writes and passes on",
            };
            lines.push(format!("{} {how} '{}'", stage.host, stage.command));
        }
        for hop in &part.hops {
            let port = match hop.ports {
                _ if hop.through_launcher => ", through the launcher".to_owned(),
                Some([first, last]) => format!(" on a port of {first}-{last}"),
                None => " on a free port".to_owned(),
            };
            let end = |host: &str, command: &Option<String>, standard: &str| match command {
                Some(command) => format!("{host} ('{command}')"),
                None => format!("{host} ({standard})"),
            };
            let source = end(&hop.from, &hop.from_command, "standard input");
            let target = end(&hop.to, &hop.to_command, "standard output");
            lines.push(format!("data: {source} -> {target}; {} listens{port}", hop.listener));
        }
    }
    for host in &planned.agents {
        lines.push(format!(
            "agent: {} {host} {}",
            escaped(plan.setup.launcher.name()),
            escaped(&plan.setup.agent.program)
        ));
    }
    lines
}

/// Finds a stage that is a single word and not a command of this host, next to another stage, and returns advice on
/// what was probably meant: a host without its colon, or the rest of a command that lacks its quotes. `None` if every
/// stage may be meant as it is.
fn unquoted(words: &[OsString], specs: &[Spec], is_command: impl Fn(&OsStr) -> bool) -> Option<String> {
    let is_bare = |number: usize| specs[number].host.is_empty() && !words[number].as_bytes().starts_with(b":");
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-@/".contains(byte);
    let is_none = |number: &usize| {
        is_bare(*number) && words[*number].as_bytes().iter().all(is_word) && !is_command(&words[*number])
    };
    let number = (0..words.len()).find(is_none)?;
    let rest: Vec<&OsStr> = (number..words.len()).take_while(|&at| is_bare(at)).map(|at| &*words[at]).collect();
    let joined = |words: &[&OsStr]| words.iter().map(|word| escaped(word)).collect::<Vec<_>>().join(" ");
    let word = escaped(&words[number]);
    let host = specs[..number].last().filter(|before| !before.host.is_empty() && before.is_run());
    match (host, &rest[1..]) {
        (Some(before), _) => {
            let command = format!("{} {}", escaped(OsStr::from_bytes(&before.text)), joined(&rest));
            Some(format!("no command {word} here; did you mean {}:{}?", before.label(), single_quoted(&command)))
        }
        (None, []) if hosts::is_known(&word) => {
            Some(format!("no command {word} here, but a host of that name; {word}:COMMAND runs on it"))
        }
        (None, [_, ..]) if number == 0 => {
            Some(format!("no command {word} here; did you mean {word}:{}?", single_quoted(&joined(&rest[1..]))))
        }
        _ => None,
    }
}

/// Whether the shell finds a command of this name: a program or a builtin.
fn is_command(name: &OsStr) -> bool {
    let mut shell = std::process::Command::new(SHELL);
    shell.args(["-c", "command -v -- \"$1\"", SHELL]).arg(name);
    let null = std::process::Stdio::null;
    // bash exits with 1, dash with 127. If the shell cannot be run, or is killed, the name may be a command.
    let asked = shell.stdin(null()).stdout(null()).stderr(null()).status();
    !asked.is_ok_and(|status| matches!(status.code(), Some(1 | 127)))
}

/// Whether there is a standard input to read. A terminal or the null device does not count. A closed standard input
/// counts, so that the failure to read it is reported.
fn has_input() -> bool {
    let stdin = std::io::stdin();
    standard::named_input().is_err() || !stdin.is_terminal() && !standard::is_null(&stdin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_commands_have_lost_a_colon_or_quotes() {
        let line = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let specs: Vec<Spec> = words.iter().map(|word| Spec::parse(word).expect("a stage")).collect();
            unquoted(&words, &specs, |word| ["cat", "wc", "sort"].iter().any(|known| word == *known))
        };
        let meant = |words: &[&str]| {
            line(words)
                .map(|line| line.rsplit_once("did you mean ").expect("advice").1.trim_end_matches('?').to_owned())
        };
        assert_eq!(meant(&["h1", "cat"]).as_deref(), Some("h1:'cat'"));
        assert_eq!(meant(&["me@h1", "wc", "-c"]).as_deref(), Some("me@h1:'wc -c'"));
        assert_eq!(meant(&["h1:zfs", "send", "x@y", "h2:cat"]).as_deref(), Some("h1:'zfs send x@y'"));
        assert_eq!(meant(&["h1:grep", "it's"]), None, "not a bare word");
        assert_eq!(meant(&["cat", "h1:cat", "sort"]), None);
        assert_eq!(meant(&["nothing"]), None, "the shell says it");
        assert_eq!(meant(&[":nothing", "cat"]), None, "this host is named");
        assert_eq!(meant(&["h1:cat", "> f", "nothing"]), None);
        assert_eq!(single_quoted("it's"), "'it'\\''s'");
    }
}
