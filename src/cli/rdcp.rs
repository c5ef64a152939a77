//! `rdcp`: copies files between any two hosts.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use super::Arguments;
use super::check::{self, CheckMedium};
use super::habits::{self, NO_KEY, Translated};
use super::hosts;
use super::listed;
use super::options::ReportOptions;
use super::report::{Console, Digits, Kept, Moved, Style, here, reported, stats};
use super::settings::{Settings, Sources};
use super::watch;
use super::words::{check_rails, unshown};
use super::wrong;
use crate::agent::place::listed_around;
use crate::control::frames::{RULE_OVERHEAD_BYTES, RULES_BYTES_MAX};
use crate::control::launch::{AGENT, Launcher};
use crate::engine::Figures;
use crate::fault::{Exit, Failure, escaped};
use crate::fs::standard;
use crate::job::Setup;
use crate::job::copy::Copy;
use crate::job::launching::{AgentChoice, Otherwise, may_ask};
use crate::job::plan::{Plan, Spec};
use crate::job::progress::{Ended, HostEnded};
use crate::job::targets::failed::FailedHosts;
use crate::job::targets::{expand, is_list};
use crate::job::watch::WatchPlan;
use crate::options::{Listed, Rule, TransferOptions, TreeOptions};
use crate::tree::Only;
use crate::tree::manifest::write::{Form, Target};
use crate::tree::patterns::Patterns;

mod join;
pub(super) mod targets;
mod uses;

use targets::TargetOptions;

/// Environment variable that names the launcher if `--rsh` does not.
const LAUNCHER_VARIABLE: &str = "RDCP_RSH";

/// Returns the launcher that the environment names, if any.
pub(super) fn launcher_of_environment() -> Option<OsString> {
    std::env::var_os(LAUNCHER_VARIABLE).filter(|command| !command.is_empty())
}

/// Copy files between hosts
///
/// SRC and DST are paths on this host, or HOST:PATH, USER@HOST:PATH or `[ADDRESS]:PATH` on a host that ssh reaches. As
/// with cp, SRC is copied into DST if DST is a directory, else to the name DST. Several SRC, and files if DST ends in a
/// slash, are copied into the directory DST, which is created if missing; its parents are not. The HOST of DST may be a
/// list, such as 'gpu[01-08,12]:PATH': SRC is then sent once, and each host passes it on to the next. The data goes
/// directly between the two hosts. On other hosts, `~` and patterns such as '*.txt' are expanded, and a relative path
/// starts in the home directory. `-` is standard input or output. Write a local name that contains a colon as ./NAME.
/// Exits with 0 only if the receiver has verified a digest of every byte; copies within one host are not compared.
/// Files and new directories appear when they are complete. An interrupted copy leaves .HASH.rd-part next to its
/// destination; run the command again to resume.
#[derive(Parser, Debug)]
#[command(
    name = "rdcp",
    version,
    args_override_self = true,
    override_usage = "rdcp [OPTIONS] SRC... DST\n       rdcp [OPTIONS] -t DIR SRC...",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDCP, EXIT_CODES)
)]
pub struct CopyArguments {
    /// Sources and destination
    #[arg(value_name = "SRC... DST")]
    paths: Vec<OsString>,
    /// Copy all SRC arguments into the directory DIR, which may be HOST:DIR
    #[arg(short, long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// Treat DST as the name of the copy, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "snapshot")]
    no_target_directory: bool,
    /// No effect of its own; requires --backup-dir
    #[arg(short, long, requires = "backup_dir")]
    backup: bool,
    /// Copy only the paths listed in FILE (or -), one per line, relative to SRC, with the directories above them (with
    /// SRC's own mode, owner and times if a path begins with ./). A directory is copied whole with -r; one level with a
    /// trailing slash. A FILE of more than 64 MiB is refused: list directories with -r instead of what is in them, or
    /// split it
    #[arg(long, value_name = "FILE", requires = "sync", conflicts_with = "snapshot")]
    files_from: Option<OsString>,
    /// Change nothing; print what would be copied where; with --sync, what would be changed, like --itemize-changes or
    /// -v
    #[arg(short = 'n', long, conflicts_with_all = ["page", "trace"])]
    dry_run: bool,
    /// Keep running: watch SRC, on any host, and copy again what changes, until a signal; try again while a host is
    /// lost, SRC is missing or DST is full. What links lead to (-L, -k, --copy-unsafe-links) is not watched. Each copy
    /// replaces the files of --report and --trace
    #[arg(long, requires = "sync", conflicts_with_all = ["dry_run", "check", "snapshot", "files_from", "remove_source_files"])]
    watch: bool,
    /// Compare DIR, which may be HOST:DIR, with the manifest FILE, which may be - (arguments: FILE DIR), copying
    /// nothing; print differences to standard output
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "disk",
        conflicts_with_all = ["target_directory", "no_target_directory", "dry_run", "to", "hosts", "hosts_failed", "page", "trace"]
    )]
    check: Option<CheckMedium>,
    /// Write path, size, mode, time and BLAKE3 of each file of the copy to FILE, for --check; only if all is copied
    #[arg(long, value_name = "FILE", requires = "recursive", conflicts_with_all = ["dry_run", "check"])]
    manifest: Option<OsString>,
    /// Write the BLAKE3 of each file of the copy to FILE, for b3sum --check in its directory; names with a carriage
    /// return are written in a form unknown to old versions of b3sum, such as 1.2.0
    #[arg(long, value_name = "FILE", requires = "recursive", conflicts_with_all = ["dry_run", "check"])]
    manifest_b3sum: Option<OsString>,
    /// Print statistics at the end, in the format of rsync's --stats
    #[arg(long, help_heading = "Output")]
    stats: bool,
    /// Shorten the numbers of --stats (1.23M, powers of 1000)
    #[arg(long, overrides_with = "no_human_readable", help_heading = "Output")]
    human_readable: bool,
    /// Write the numbers of --stats without commas
    #[arg(long, overrides_with = "human_readable", help_heading = "Output")]
    no_human_readable: bool,
    // rsync's negations: settings with these keys do not apply.
    #[arg(long, value_name = "KEY", hide = true)]
    negated: Vec<String>,
    // Whether letters were read with the meanings that they have without --sync.
    #[arg(long, hide = true)]
    read_without_sync: bool,
    #[command(flatten)]
    targets: TargetOptions,
    #[command(flatten)]
    tree: TreeOptions,
    // Must come after the patterns, which look at this option: parsing an option removes it from the command line.
    /// End each path and each pattern in a FILE at a zero byte, not a newline
    #[arg(short = '0', long)]
    from0: bool,
    #[command(flatten)]
    hosts: HostOptions,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    pub(crate) report: ReportOptions,
}

/// Options for reaching hosts.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Hosts")]
pub struct HostOptions {
    /// Remote shell to use instead of ssh; also set by the environment variable RDCP_RSH
    #[arg(long, value_name = "COMMAND", conflicts_with = "launcher")]
    rsh: Option<OsString>,
    /// How to start programs on hosts: ssh, slurm (srun in an allocation; the default of rdcp and rddoctor for several
    /// of its nodes, or with --hosts, without options for ssh), or a command with %h for the host, and %c for the
    /// remote command unless that is its last word, such as 'mpirun -q -n 1 --host %h sh -c %c'
    #[arg(long, value_name = "ssh|slurm|COMMAND")]
    launcher: Option<OsString>,
    /// Log in to up to N hosts at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// SSH port
    #[arg(short = 'P', long = "ssh-port", value_name = "PORT")]
    port: Option<OsString>,
    // Whether the user has not typed it, but a file of settings has it.
    #[arg(skip)]
    is_port_set: bool,
    /// SSH key; may be repeated
    #[arg(short, value_name = "FILE")]
    identity: Vec<OsString>,
    /// SSH jump host
    #[arg(short = 'J', value_name = "HOST")]
    jump: Option<OsString>,
    /// SSH config file
    #[arg(short = 'F', value_name = "FILE")]
    configuration: Option<OsString>,
    /// SSH option, such as Compression=no; may be repeated
    #[arg(short = 'o', value_name = "OPTION")]
    option: Vec<OsString>,
    /// Agent program on other hosts; if given, none is copied there without --bootstrap [default: rdma-pipe-agent]
    #[arg(long, value_name = "PATH")]
    agent: Option<OsString>,
    /// Fail if a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there
    #[arg(long, overrides_with = "bootstrap")]
    no_bootstrap: bool,
    /// Copy this agent to hosts without one: the default unless --agent is given
    #[arg(long, overrides_with = "no_bootstrap")]
    bootstrap: bool,
    /// Address or interface, at either end, to send the data over
    #[arg(long, value_name = "ADDRESS|INTERFACE")]
    pub(crate) via: Option<OsString>,
    /// Send the data through the SSH connections, by way of this host
    #[arg(long, conflicts_with = "via")]
    pub(crate) relay: bool,
}

impl HostOptions {
    /// Returns how `command` reaches these hosts.
    ///
    /// # Errors
    ///
    /// Exit code 1 if the launcher is not valid.
    pub(crate) fn setup<'a>(
        &self,
        command: &'static str,
        hosts: impl IntoIterator<Item = &'a OsStr>,
        quiet: bool,
        is_dry_run: bool,
    ) -> Result<Setup, Failure> {
        let hosts: BTreeSet<&OsStr> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
        Ok(Setup {
            launcher: self.launcher()?,
            agent: self.agent(command, quiet, is_dry_run),
            parallel: self.parallel.into(),
            relay: self.relay,
            via: self.via.clone().map(OsStringExt::into_vec).unwrap_or_default(),
            name: None,
            may_ask: may_ask(hosts.len()),
        })
    }

    /// Returns the launcher that the options ask for.
    fn launcher(&self) -> Result<Launcher, Failure> {
        let (command, source) = match (&self.launcher, &self.rsh, launcher_of_environment()) {
            (Some(launcher), ..) if launcher == "ssh" => (launcher.clone(), "--launcher"),
            (Some(launcher), ..) => return self.other_launcher(launcher),
            (None, Some(command), _) => (command.clone(), "--rsh"),
            (None, None, Some(command)) => (command, LAUNCHER_VARIABLE),
            (None, None, None) => (OsString::from("ssh"), "--rsh"),
        };
        let mut options = Vec::new();
        let mut add = |name: &str, values: &mut dyn Iterator<Item = &OsString>| {
            for value in values {
                options.push(OsString::from(name));
                options.push(value.clone());
            }
        };
        add("-p", &mut self.port.iter());
        add("-i", &mut self.identity.iter());
        add("-J", &mut self.jump.iter());
        add("-F", &mut self.configuration.iter());
        add("-o", &mut self.option.iter());
        Launcher::bare(&command, options)
            .map_err(|reason| Exit::Usage.with(format!("the command of {source} {reason}")))
    }

    /// Returns a launcher that is not called in the way ssh is.
    fn other_launcher(&self, launcher: &OsStr) -> Result<Launcher, Failure> {
        let usage = |reason: String| Exit::Usage.with(reason);
        if self.port.is_some() || self.has_words_for_ssh() {
            let line = "-P, -i, -J, -F and -o are for ssh, which --launcher replaces; leave them out, or add them to \
                its command";
            return Err(usage(line.to_owned()));
        }
        if launcher == "slurm" {
            return Ok(Launcher::slurm());
        }
        Launcher::template(launcher).map_err(|reason| usage(format!("the command of --launcher {reason}")))
    }

    /// Whether there are options for ssh besides the port.
    fn has_words_for_ssh(&self) -> bool {
        self.jump.is_some() || self.configuration.is_some() || !self.identity.is_empty() || !self.option.is_empty()
    }

    /// Notes which values come from files of settings. See [`Arguments::note_set`].
    pub(super) fn note_set(&mut self, is_set: &dyn Fn(&str) -> bool) {
        self.is_port_set = is_set("ssh-port");
    }

    /// Selects srun for nodes of the Slurm allocation that this process runs in, if no other launcher is named, and no
    /// option for ssh is typed. `is_wanted`: whether the command concerns a list of these nodes.
    pub(super) fn take_allocated<'a>(&mut self, is_wanted: bool, hosts: impl Iterator<Item = &'a OsStr>) {
        let is_named = self.launcher.is_some() || self.rsh.is_some() || launcher_of_environment().is_some();
        let is_ssh = self.has_words_for_ssh() || self.port.is_some() && !self.is_port_set;
        if is_wanted && !is_named && !is_ssh && targets::are_allocated(hosts) {
            self.launcher = Some("slurm".into());
            self.port = None;
        }
    }

    /// Returns the choice of agent on other hosts for `command`.
    fn agent(&self, command: &'static str, quiet: bool, is_dry_run: bool) -> AgentChoice {
        let otherwise = match is_dry_run {
            // An agent that the user has named is run, or none.
            _ if self.no_bootstrap || self.agent.is_some() && !self.bootstrap => Otherwise::Fail,
            true => Otherwise::Cached,
            false => Otherwise::Send,
        };
        let program = self.agent.clone().unwrap_or_else(|| OsString::from(AGENT));
        AgentChoice { command, program, otherwise, remark: (!quiet).then_some(super::say) }
    }
}

/// The exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 done, every byte verified (copies within one host are not compared); \
    1 usage error; 2 authentication failed; 3 cannot connect, or no agent; 4 link lost; 5 source error; \
    6 destination error; 7 corruption; 8 some files failed; 9 protocol or version; 128+n ended by signal n; \
    141 standard output closed";

/// Runs the whole command. `words` begins with its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rdcp", || {
        let command = CopyArguments::command();
        let of_file = wrong::of_file(&words);
        let done = habits::translate(words.into_iter().skip(1), &command, exists);
        let mut done = done.map_err(|reason| {
            Exit::Usage.with(of_file.iter().fold(reason, |reason, advice| format!("{reason}; {advice}")))
        })?;
        let marker = done.is_read_without_sync.then(|| OsString::from("--read-without-sync"));
        let words = std::iter::once(OsString::from("rdcp")).chain(marker).chain(std::mem::take(&mut done.words));
        super::with_arguments(words.collect(), |arguments: CopyArguments| {
            if !arguments.report.quiet {
                done.notes.iter().for_each(|note| super::say(&format!("rdcp: {note}")));
            }
            copy(arguments, &done, of_file)
        })
    })
}

impl Arguments for CopyArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        let words = ["paths", "target_directory", "to"].into_iter().filter_map(|id| given.get_many::<OsString>(id));
        let hosts = words.flatten().filter_map(|word| match Spec::parse(word) {
            Ok(Spec::There(host, _)) => Some(host),
            _ => None,
        });
        hosts.flat_map(|host| expand(&host).unwrap_or_default()).collect()
    }

    fn refused(given: &ArgMatches) -> Option<String> {
        uses::refused(given)
    }

    fn is_read_without(given: &ArgMatches, key: &str) -> bool {
        key == "sync" && given.get_flag("read_without_sync")
    }

    fn idle(given: &ArgMatches, key: &str) -> Option<String> {
        uses::idle(given, key)
    }

    fn note_set(&mut self, is_set: &dyn Fn(&str) -> bool) {
        self.hosts.note_set(is_set);
    }
}

/// Returns the launcher of a command line, changed so that it asks the user for nothing. `None` if that launcher has no
/// such mode.
pub(super) fn unasking_launcher(words: Vec<OsString>) -> Option<Launcher> {
    let mut definition = CopyArguments::command();
    let settings = Settings::new::<CopyArguments>(&mut definition, words, &Sources::of_process()).ok()?;
    let given = definition.try_get_matches_from_mut(&settings.words).ok()?;
    CopyArguments::from_arg_matches(&given).ok()?.hosts.launcher().ok()?.unasking()
}

/// Reports which paths of a copy within this host are probably host names without their colon: no file has that name.
fn note_hosts(sources: &[Spec], destination: &Spec) {
    let is_host = |path: &OsStr| {
        let names = if is_list(path) { expand(path).unwrap_or_default() } else { vec![path.to_owned()] };
        names.iter().any(|name| name.to_str().is_some_and(hosts::is_known))
    };
    let host = |spec: &Spec| match spec {
        Spec::Here(path) if !exists(path) && is_host(path) => Some(match is_list(path) {
            true => format!("'{}:'", escaped(path)),
            false => format!("{}:", escaped(path)),
        }),
        _ => None,
    };
    let bare = |host: &str| host.trim_matches('\'').trim_end_matches(':').to_owned();
    for host in sources.iter().filter_map(host) {
        super::say(&format!("rdcp: no local file is named {0}; did you mean {0}:PATH?", bare(&host)));
    }
    if let Some(host) = host(destination) {
        super::say(&format!("rdcp: copying to a local file named {}; did you mean {host}?", bare(&host)));
    }
}

/// Returns what a destination means: another name of standard output is standard output.
fn as_standard(destination: Spec) -> Spec {
    match destination {
        Spec::Here(path) if standard::is_output(&path) => Spec::Standard,
        other => other,
    }
}

/// Whether standard output is a file or /dev/null, so that no other program handles the data.
fn is_file_or_null() -> bool {
    let is_file = standard::output().and_then(|file| file.metadata()).is_ok_and(|found| found.is_file());
    is_file || standard::is_null(std::io::stdout())
}

fn exists(name: &OsStr) -> bool {
    std::path::Path::new(name).symlink_metadata().is_ok()
}

/// Fails with a usage failure if the patterns are invalid or too many.
fn check_rules(rules: &[Rule]) -> Result<(), Failure> {
    Patterns::new(rules).map_err(|(rule, reason)| {
        let option = if rule.is_include { "--include" } else { "--exclude" };
        let pattern = escaped(OsStr::from_bytes(&rule.pattern));
        Exit::Usage.with(format!("{option} '{pattern}': the pattern {reason}"))
    })?;
    let bytes: usize = rules.iter().map(|rule| rule.pattern.len() + RULE_OVERHEAD_BYTES).sum();
    if bytes > RULES_BYTES_MAX {
        let (bytes, limit) = (bytes.div_ceil(1024), RULES_BYTES_MAX >> 10);
        let line = format!(
            "the patterns of --exclude, --include and their files take {bytes} KiB (limit: {limit} KiB); use fewer, \
            with more wildcards"
        );
        return Err(Exit::Usage.with(line));
    }
    Ok(())
}

/// Adds what the user may have meant to the failure to reach a host of the command line.
fn with_hint<'a>(failure: Failure, mut specs: impl Iterator<Item = &'a Spec>) -> Failure {
    let line = failure.message.clone().unwrap_or_default();
    let is_unreached = |spec: &&Spec| line.contains(&format!("cannot reach {} by ", escaped(spec.host())));
    let Some(spec) = specs.find(is_unreached) else { return failure };
    let Spec::There(host, path) = spec else { return failure };
    let file = [host.as_bytes(), b":", path.as_bytes()].concat();
    let hint = if Path::new(OsStr::from_bytes(&file)).symlink_metadata().is_ok() {
        format!("for the file {0}, type ./{0}", spec.typed())
    } else if host.as_bytes().contains(&b',') {
        "for several hosts, use --to, or a list such as h[1-2]".to_owned()
    } else {
        return failure;
    };
    Failure { message: Some(format!("{line}; {hint}")), ..failure }
}

/// Returns a place as the reports see it. `None` if the place is on another host.
fn is_moved<'a>((spec, what, standard): (&'a Spec, &'static str, Moved<'a>)) -> Option<Moved<'a>> {
    match spec {
        Spec::Standard => Some(standard),
        Spec::Here(path) => Some(Moved::File(what, Path::new(path))),
        Spec::There(..) => None,
    }
}

/// Returns the files that `--manifest` and `--manifest-b3sum` name.
fn manifests(arguments: &CopyArguments) -> Result<Vec<Target>, Failure> {
    let asked = [
        (&arguments.manifest, "--manifest", Form::Manifest),
        (&arguments.manifest_b3sum, "--manifest-b3sum", Form::B3sum),
    ];
    let mut targets: Vec<Target> = Vec::new();
    for (file, option, form) in asked {
        let Some(file) = file else { continue };
        let Ok(Spec::Here(path)) = Spec::parse(file) else {
            let line = format!("{option} {}: must be a file on this host", escaped(file));
            return Err(Exit::Usage.with(line));
        };
        let target = Target::new(path.into(), form);
        if targets.iter().any(|other| other.is_same(&target)) {
            return Err(Exit::Usage.with("--manifest and --manifest-b3sum name the same file; name two"));
        }
        target.check().map_err(|fact| {
            let reason = String::from_utf8_lossy(&fact.detail);
            Exit::Usage.with(format!("cannot write the manifest {}: {reason}", escaped(file)))
        })?;
        targets.push(target);
    }
    Ok(targets)
}

/// Returns the paths to copy from the only source, with --files-from or -R.
fn select(arguments: &mut CopyArguments, sources: &mut Vec<Spec>, is_relative: bool) -> Result<Option<Only>, Failure> {
    let usage = |reason: String| Exit::Usage.with(reason);
    let recursive = arguments.tree.recursive;
    let only = match &arguments.files_from {
        None if is_relative => {
            let (base, only) = listed::relative(sources, recursive).map_err(usage)?;
            *sources = vec![base];
            only
        }
        None => return Ok(None),
        Some(file) => {
            let [source] = &mut sources[..] else {
                return Err(usage("--files-from takes only one SRC".to_owned()));
            };
            // As with rsync, listed paths are inside SRC, whether or not SRC ends in a slash.
            *source = source.clone().below(OsStr::new(""));
            listed::read(file, arguments.from0, recursive).map_err(usage)?
        }
    };
    arguments.tree.recursive = true;
    // As with rsync, SRC itself is a directory on the way to a path that begins so.
    let leads_through_root = !arguments.tree.no_implied_dirs && only.paths.iter().any(|path| path.starts_with(b"./"));
    arguments.tree.keeps_root = !(only.is_root() || leads_through_root);
    arguments.tree.listed = Some(if only.is_root() { Listed::Root } else { Listed::Part });
    Ok(Some(only))
}

/// Refuses a list with a directory that contains DST, because DST would be copied into itself without end.
fn check_lists(only: &Only, source: &Spec, destination: &Spec, one_file_system: bool) -> Result<(), Failure> {
    let (Spec::Here(source), Spec::Here(destination), true) = (source, destination, only.recursive) else {
        return Ok(());
    };
    let around = listed_around(Path::new(source), &only.paths, Path::new(destination), one_file_system);
    around.map_or(Ok(()), |reason| Err(Exit::Usage.with(reason)))
}

/// Returns a source or destination with its host, for the page of `--report`.
fn place(spec: &Spec) -> (String, String) {
    let path = escaped(spec.path());
    match spec {
        Spec::There(host, _) => (escaped(host), path),
        Spec::Here(_) | Spec::Standard => here(path),
    }
}

/// `typed`: the command line, including what the arguments leave out. `of_file`: what to type for a file in it.
fn copy(mut arguments: CopyArguments, typed: &Translated, of_file: Option<String>) -> Result<(), Failure> {
    let usage = |message: &str| Exit::Usage.with(message);
    let lacks = if arguments.target_directory.is_some() { "SRC is required" } else { "SRC and DST are required" };
    let missing = || match (&typed.key, &of_file) {
        (_, Some(advice)) => usage(&format!("{lacks}; {advice}")),
        (Some(key), None) => usage(&format!("{lacks} besides -i {}: {NO_KEY}", escaped(key))),
        (None, None) => super::usage(&CopyArguments::command(), &format!("{lacks}{}", typed.besides)),
    };
    arguments.report = arguments.report.begun("rdcp");
    if let Some(medium) = arguments.check {
        return check::check(&arguments.paths, medium, &arguments.hosts, &arguments.report);
    }
    if let Some(job) = &arguments.targets.join {
        return join::join(job, &arguments.paths, &arguments.report);
    }
    let parse = |text: &OsString| Spec::parse(text).map_err(|reason| Exit::Usage.with(reason));
    let mut sources: Vec<Spec> = arguments.paths.iter().map(parse).collect::<Result<_, _>>()?;
    let destination = match &arguments.target_directory {
        Some(directory) => parse(directory)?,
        None => match arguments.targets.take_destination(&sources)? {
            Some(first) => first,
            None => sources.pop().ok_or_else(missing)?,
        },
    };
    let destination = as_standard(destination);
    if sources.is_empty() {
        return Err(missing());
    }
    // rsync's -i and cp's have no value: this is a source, and would not be copied.
    if let Some(source) = typed.key.as_ref().filter(|key| habits::is_no_key(key)) {
        return Err(usage(&format!("-i {}: {NO_KEY}", escaped(source))));
    }
    if let (Some(first), Some(Spec::There(home, path)), Spec::There(..), false) =
        (sources.first(), sources.last(), &destination, arguments.tree.recursive)
        && sources.len() > 1
        && path.is_empty()
    {
        let [first, destination] = [first, &destination].map(Spec::typed);
        let home = escaped(home);
        return Err(usage(&format!(
            "{home}: is a directory; use -r to copy directories; to copy to several hosts: rdcp {first} {home}: --to \
            {destination}"
        )));
    }
    targets::check_input(&arguments, &sources)?;
    let (mut targets, named_again) = arguments.targets.resolve(destination)?;
    targets::check(&arguments, &sources, &targets)?;
    let mut destination = targets[0].clone();
    if targets.len() == 1 {
        targets.clear();
    }
    if let Some(name) = &arguments.tree.generations.snapshot {
        destination = destination.below(OsStr::from_bytes(name));
    }
    if sources.len() > 1 && arguments.no_target_directory {
        return Err(usage("-T takes only one SRC"));
    }
    if arguments.target_directory.is_some() && sources.contains(&Spec::Standard) && destination != Spec::Standard {
        return Err(usage("standard input has no name, so it cannot go into the directory of -t; name a file as DST"));
    }
    if sources.contains(&Spec::Standard) && sources.len() > 1 {
        return Err(usage("standard input (-) cannot be one of several SRC"));
    }
    // scp's -R asks for what a copy between two other hosts does anyway. rsync's -R makes the directories that lead to
    // SRC.
    let is_there = |spec: &Spec| matches!(spec, Spec::There(..));
    let is_relative = typed.is_relative && arguments.tree.sync;
    let typed_sources = sources.clone();
    let only = select(&mut arguments, &mut sources, is_relative)?;
    if only.as_ref().is_some_and(|only| only.paths.is_empty()) {
        // As with rsync, an empty list is no failure: the program that makes the list may well have found nothing.
        if !arguments.report.quiet {
            super::say("rdcp: the list is empty; nothing to copy");
        }
        let nothing = Ended { figures: Figures::default(), failure: None, copied: None, hosts: Vec::new() };
        return reported("rdcp", &arguments.report, &[], &Kept::default(), |_| Ok(nothing));
    }
    if only.is_some() && !targets.is_empty() {
        return Err(usage("-R copies to one host at a time; name one, or leave it out"));
    }
    if let Some(only) = &only {
        check_lists(only, &sources[0], &destination, arguments.tree.one_file_system)?;
    }
    let ends = || sources.iter().chain([&destination]);
    let (is_any_there, are_all_there) = (ends().any(is_there), ends().all(is_there));
    if typed.is_relative && !is_relative && !are_all_there {
        return Err(usage(
            "-R creates the directories that lead to SRC only with --sync; without it, name the last of them in DST",
        ));
    }
    arguments.tree.delete |= arguments.tree.delete_after || arguments.tree.delete_excluded;
    // Nothing is deleted before all moved files are found.
    arguments.tree.delete_after |= arguments.tree.delete && arguments.tree.generations.find_moves;
    check_rules(&arguments.tree.rules.0)?;
    if is_any_there && !are_all_there {
        check_rails(&arguments.transfer.rails, true)?;
    }
    arguments.tree.generations.check().map_err(|reason| usage(&reason))?;
    let TreeOptions { backup_dir, existing, generations, .. } = &arguments.tree;
    if let Some(reason) = generations.refused(backup_dir.is_some(), *existing) {
        return Err(usage(reason));
    }
    if !arguments.report.quiet && !is_any_there {
        note_hosts(&sources, &destination);
    }
    if !arguments.report.quiet && named_again > 0 {
        let which =
            if named_again == 1 { "1 duplicate target".to_owned() } else { format!("{named_again} duplicate targets") };
        super::say(&format!("rdcp: {which} ignored"));
    }
    let hosts = sources.iter().chain([&destination]).chain(&targets).map(Spec::host);
    let is_for_slurm = !targets.is_empty() || arguments.targets.hosts.is_some();
    arguments.hosts.take_allocated(is_for_slurm, hosts.clone());
    let mut setup = arguments.hosts.setup("rdcp", hosts, arguments.report.quiet, arguments.dry_run)?;
    setup.launcher.patience_s = arguments.transfer.reconnect;
    let (report, tree) = (&arguments.report, &mut arguments.tree);
    tree.dry_run = arguments.dry_run && tree.sync;
    let is_json_there = report.is_json_on_output();
    // As with rsync, changes are not listed with -q.
    tree.itemize_changes &= !report.quiet;
    // With -v, only names are listed.
    let is_named = report.is_verbose() && tree.sync && !typed.has_no_names;
    let only_names = is_named && !tree.itemize_changes && !is_json_there && targets.is_empty();
    // Unlike rsync, whose -n alone prints nothing, a dry run lists the changes.
    tree.itemize_changes |= only_names || tree.dry_run && !report.quiet && !is_json_there;
    let manifests = if arguments.dry_run { Vec::new() } else { manifests(&arguments)? };
    arguments.tree.manifest = !manifests.is_empty();
    let hosts_failed = arguments.targets.hosts_failed.as_ref().filter(|_| !arguments.dry_run);
    let hosts_failed = hosts_failed.map(|path| FailedHosts::open(path, &typed_sources)).transpose()?;
    let (report, is_short, is_plain) = (&arguments.report, arguments.human_readable, arguments.no_human_readable);
    arguments.tree.stats = arguments.stats && !report.quiet;
    let digits = match (is_short, is_plain) {
        (true, _) => Digits::Short,
        (_, true) => Digits::Plain,
        _ => Digits::Separated,
    };
    // Only a regular file's contents could be copied, or deleted with the rest of DST: a FIFO or terminal may be there.
    let is_other = |path: &Path| path.as_os_str() == "-" || path.metadata().is_ok_and(|found| !found.is_file());
    let files = || report.json.iter().chain(&report.page).chain(&report.trace);
    let reports = files().filter(|path| !is_other(path));
    let reports = reports.map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let log = super::log::file();
    if destination == Spec::Standard {
        standard::guard_terminal(true);
    }
    let (watched_by, tree) = (setup.clone(), arguments.tree.clone());
    let mut plan = Plan {
        manifests,
        reports,
        sources,
        only,
        destination,
        targets,
        stall: Duration::from_secs(arguments.targets.stall.into()),
        directory: arguments.target_directory.is_some(),
        exact: arguments.no_target_directory,
        recursive: arguments.tree.recursive,
        tree: arguments.tree,
        dry_run: arguments.dry_run,
        setup,
        transfer: &arguments.transfer,
        verbose: arguments.report.is_verbose(),
        has_rsync_letters: typed.has_rsync_letters,
    };
    let (sources, selected) = (plan.sources.clone(), plan.only.clone());
    let destination = Some(plan.destination.clone()).filter(|_| !plan.dry_run);
    let mut moved: Vec<Moved<'_>> = Vec::new();
    moved.extend(plan.tree.itemize_changes.then_some(Moved::Lines));
    moved.extend(sources.iter().map(|spec| (spec, "SRC", Moved::Input)).filter_map(is_moved));
    moved.extend(destination.iter().map(|spec| (spec, "DST", Moved::Output)).filter_map(is_moved));
    // An entry that is copied into a directory has a name of its own there.
    let inside: Vec<PathBuf> = match &destination {
        Some(Spec::Here(directory)) if Path::new(directory).is_dir() => sources
            .iter()
            .filter_map(|spec| Some(Path::new(directory).join(Path::new(spec.path()).file_name()?)))
            .collect(),
        _ => Vec::new(),
    };
    moved.extend(inside.iter().map(|path| Moved::File("the copy in DST", path)));
    let named = [
        ("--files-from", arguments.files_from.as_deref().map(Path::new)),
        ("--hosts", arguments.targets.hosts.as_deref().map(Path::new)),
        ("--manifest", arguments.manifest.as_deref().map(Path::new)),
        ("--manifest-b3sum", arguments.manifest_b3sum.as_deref().map(Path::new)),
        ("--hosts-failed", arguments.targets.hosts_failed.as_deref()),
        ("the log (RDMA_PIPE_LOG)", log.map(PathBuf::as_path)),
    ];
    moved.extend(named.iter().filter_map(|(option, path)| Some(Moved::File(option, (*path)?))));
    // The hosts that failed, once it is known for each.
    let (failed, remarks) = (RefCell::new(None::<Vec<(Spec, String)>>), RefCell::default());
    let kept = Kept::default();
    let mut copy = |touched: Option<Only>| {
        // Changed paths do not restrict a copy with a manifest, which covers everything, or a copy of listed paths
        // (-R).
        plan.only = selected.clone().or(touched.filter(|_| plan.manifests.is_empty()));
        reported("rdcp", &arguments.report, &moved, &kept, |reporter| {
            let all = if plan.targets.is_empty() { std::slice::from_ref(&plan.destination) } else { &plan.targets };
            let places = |specs: &[Spec]| specs.iter().map(place).collect();
            reporter.record(|record| record.route = [places(&plan.sources), places(all)]);
            // The program that reads the pipe may write to the terminal as well.
            let is_shown = plan.destination == Spec::Standard && !is_file_or_null();
            let may_draw = !is_shown && !plan.tree.itemize_changes;
            let style = Style { is_push: false, no_times: !plan.tree.times, only_names };
            let mut console = Console::new(reporter, may_draw, style, &remarks);
            let ended = Copy::new(&plan, &mut console)?.run();
            let mut ended =
                ended.map_err(|failure| with_hint(failure, plan.sources.iter().chain([&plan.destination])))?;
            ended.failure = ended.failure.map(unshown);
            if !ended.hosts.is_empty() || ended.failure.is_none() {
                *failed.borrow_mut() = Some(ended.hosts.iter().filter_map(HostEnded::failed).collect());
            }
            if let Some(text) =
                ended.copied.as_ref().filter(|_| plan.tree.stats).and_then(|copied| stats(copied, digits))
            {
                // If data or a report goes to standard output, a program reads it.
                let printed = match is_json_there || plan.destination == Spec::Standard {
                    true => {
                        super::say(text.trim_end());
                        Ok(())
                    }
                    false => super::print(&text),
                };
                ended.failure = ended.failure.or(printed.err());
            }
            Ok(ended)
        })
    };
    if !arguments.watch {
        let outcome = copy(None);
        // As after a kill, a copy that is interrupted, or has no SRC to copy to any host, leaves the file as it is.
        let is_untold = failed.borrow().is_none() && !plan.targets.is_empty();
        let leaves_it = |exit: Exit| matches!(exit, Exit::Signal(_)) || exit == Exit::Source && is_untold;
        let is_left = outcome.as_ref().is_err_and(|failure| leaves_it(failure.exit));
        let Some(file) = hosts_failed.filter(|_| !is_left) else { return outcome };
        let cause = outcome.as_ref().err().map(|failure| failure.message.as_deref().unwrap_or_default());
        let failed = failed.take();
        let one = std::slice::from_ref(&plan.destination);
        let targets = if plan.targets.is_empty() { one } else { &plan.targets };
        let failed: Vec<_> = match (&failed, cause) {
            // The command may have failed all the same: a source was missing, or the report could not be written.
            (Some(failed), _) => failed.iter().map(|(spec, cause)| (spec, &**cause)).collect(),
            // No host has the copy.
            (None, Some(cause)) => targets.iter().map(|target| (target, cause)).collect(),
            (None, None) => Vec::new(),
        };
        let written = file.finish(targets, &failed);
        if let (Err(_), Err(Failure { message: Some(line), .. })) = (&outcome, &written) {
            super::say(&format!("rdcp: {line}"));
        }
        return outcome.and(written);
    }
    let say = |line: &str| {
        if !arguments.report.quiet {
            super::say(&format!("rdcp: {line}"));
        }
    };
    let written: Vec<PathBuf> = [&arguments.manifest, &arguments.manifest_b3sum]
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .chain(files().cloned())
        .chain(log.cloned())
        .collect();
    let waiting = || {
        if arguments.report.is_verbose() || std::io::stderr().is_terminal() {
            say("waiting for changes; press ^C to stop");
        }
    };
    let watched = WatchPlan { sources: &sources, only: selected.as_ref(), tree: &tree };
    watch::run(&watched_by, &watched, &written, say, waiting, copy)
}
