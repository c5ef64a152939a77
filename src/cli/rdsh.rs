//! `rdsh`: runs a command on a host as ssh does, and transfers its input and output by sessions.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, Parser};
use rustix::fs::{SeekFrom, seek, tell};

use super::Arguments;
use super::options::CommonOptions;
use super::rdcp::launcher_of_environment;
use super::words::{check_rails, split_login};
use crate::control::frames::COMMAND_BYTES_MAX;
use crate::control::launch::{AGENT, Launcher};
use crate::fault::{Exit, Failure, errno_of, escaped, os};
use crate::fs::{source, standard};
use crate::job::Setup;
use crate::job::launching::{AgentChoice, Otherwise, dismiss_helpers};
use crate::job::shell::{self, Call, LOGIN_SHELL_BYTES, Ran};
use crate::options::TransferOptions;

mod ssh;

use ssh::SshOptions;

/// ssh's exit code for its own failures.
pub(super) const SSH_FAILED: u8 = 255;

/// The command's name.
pub(super) const NAME: &str = "rdsh";

/// Run a command on a host, as ssh does, with fast standard input and output
///
/// Tools that call rdsh instead of ssh move their data by RDMA, or by TCP beside ssh's own connection: `rsync -e rdsh`,
/// `borg --rsh rdsh`, `tar c . | rdsh HOST tar x`. Standard error, the exit code and all options mean what they mean to
/// ssh, which logs in and starts an agent on HOST. What ssh does better is left to ssh, run with the same arguments:
/// terminals, forwarding, a login without COMMAND, and hosts where no agent can be started. -v says when that happens.
#[derive(Parser, Debug)]
#[command(
    name = "rdsh",
    version,
    args_override_self = true,
    override_usage = "rdsh [OPTIONS] [USER@]HOST COMMAND [ARGUMENT]...",
    disable_version_flag = true,
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDSH, EXIT_CODES)
)]
pub struct ShellArguments {
    /// Host, as ssh takes it
    #[arg(value_name = "HOST", index = 1)]
    host: Option<OsString>,
    /// Command for the login shell on HOST; the words are joined by spaces
    #[arg(value_name = "COMMAND", index = 2, trailing_var_arg = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    ssh: SshOptions,
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Command to use as ssh; also set by RDCP_RSH in the environment
    #[arg(long, value_name = "COMMAND", help_heading = "Hosts")]
    rsh: Option<OsString>,
    /// Agent program on the host [default: rdma-pipe-agent]
    #[arg(long, value_name = "PATH", help_heading = "Hosts")]
    agent: Option<OsString>,
    /// Use plain ssh if a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there
    #[arg(long, help_heading = "Hosts")]
    no_bootstrap: bool,
    /// Address or interface, at either end, to send the data over
    #[arg(long, value_name = "ADDRESS|INTERFACE", help_heading = "Hosts")]
    via: Option<OsString>,
    /// Send the data through the SSH connection
    #[arg(long, conflicts_with = "via", help_heading = "Hosts")]
    relay: bool,
    #[command(flatten)]
    transfer: TransferOptions,
    /// `--color`, `--show-config`.
    #[command(flatten)]
    common: CommonOptions,
}

/// The exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 128+n COMMAND or rdsh ended by signal n; 255 rdsh or ssh failed: \
    wrong arguments, host not reached, link lost; else the exit code of COMMAND";

/// Runs the command. The first of `words` is its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run(NAME, || super::with_arguments(words, call))
}

impl Arguments for ShellArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        given.get_one::<OsString>("host").map(|host| without_uri(host)).into_iter().collect()
    }
}

/// Returns the host, with its user, from `ssh://user@host:port`, the form in ssh(1). An address loses its brackets.
/// Other texts are returned unchanged.
fn without_uri(host: &OsStr) -> OsString {
    let uri = host.as_bytes().strip_prefix(b"ssh://").map(|rest| rest.strip_suffix(b"/").unwrap_or(rest));
    let Some(authority) = uri else { return host.to_owned() };
    let at = authority.iter().rposition(|byte| *byte == b':');
    let is_port = |rest: &[u8]| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
    let named = at.filter(|&at| is_port(&authority[at + 1..])).map_or(authority, |at| &authority[..at]);
    let (user, name) = split_login(named);
    let address = name.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).filter(|rest| rest.contains(&b':'));
    OsString::from_vec([user, address.unwrap_or(name)].concat())
}

/// Turns a failure of `rdsh` itself into one of ssh, for the caller.
pub(super) fn as_ssh(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Stage(_) | Exit::Signal(_) => failure,
        _ => Failure { exit: Exit::Stage(SSH_FAILED), ..failure },
    }
}

fn call(arguments: ShellArguments) -> Result<(), Failure> {
    check_rails(&arguments.transfer.rails, true)?;
    let rsh = arguments.rsh();
    let mut launcher = Launcher::new(&rsh, arguments.ssh.for_launcher())
        .map_err(|reason| Exit::Usage.with(format!("the command of --rsh {reason}")))?;
    launcher.patience_s = arguments.transfer.reconnect;
    // Further words of the command may contain a password.
    let program = escaped(launcher.program());
    if launcher.name() == "rdsh" {
        return Err(Exit::Usage.with("rdsh would start itself; name an ssh with --rsh"));
    }
    if let Some(reason) = arguments.host.as_deref().and_then(unusable) {
        return Err(Exit::Usage.with(reason));
    }
    let command = arguments.command.join(OsStr::new(" ")).into_vec();
    let is_verbose = arguments.ssh.is_verbose();
    let remark = |line: &str| {
        if is_verbose {
            super::say(&format!("rdsh: {line}"));
        }
    };
    let asked = arguments.ssh.asks_ssh();
    let reason = match (&asked, &arguments.host) {
        (Some(reason), _) => reason,
        (None, None) => return Err(super::usage(&ShellArguments::command(), "HOST is required")),
        (None, Some(_)) if command.is_empty() => "no COMMAND",
        (None, Some(_)) if command.len() + LOGIN_SHELL_BYTES > COMMAND_BYTES_MAX => "COMMAND is too long for an agent",
        (None, Some(host)) => {
            let call = Call {
                setup: arguments.setup(launcher, is_verbose),
                host: host.clone(),
                command,
                has_input: has_input(&arguments.ssh),
                has_output: standard::named_output().is_ok(),
                transfer: &TransferOptions { prompt: true, ..arguments.transfer.clone() },
                pass_on: crate::standard_error::write,
                remark: &remark,
            };
            match shell::run(call)? {
                Ran::Ended(0) => return Ok(()),
                Ran::Ended(code) => return Err(Failure::silent(Exit::Stage(code))),
                Ran::LeftToSsh(failure) => &failure.message.unwrap_or_default(),
            }
        }
    };
    remark(&format!("left to {program}: {reason}"));
    Err(arguments.become_ssh())
}

/// Returns why a word cannot be the host.
fn unusable(host: &OsStr) -> Option<String> {
    let without_uri = without_uri(host);
    let (_, name) = split_login(without_uri.as_bytes());
    // Without a name, the command would run on this host. Most likely a variable of a script is not set.
    if name.is_empty() {
        return Some("HOST is empty".to_owned());
    }
    // The host followed "--", but the program that --rsh starts may not know that.
    if host.as_bytes().starts_with(b"-") {
        return Some(format!("{}: a host name cannot begin with a dash", escaped(host)));
    }
    // ssh takes an address in brackets.
    let is_list = name.contains(&b',') || name[1..].contains(&b'[');
    let advice = "for several: rdpipe true 'h[1-2]:COMMAND' (true is an empty input)";
    is_list.then(|| format!("{}: rdsh takes one host; {advice}", escaped(host)))
}

impl ShellArguments {
    /// Returns the command to run as ssh.
    fn rsh(&self) -> OsString {
        self.rsh.clone().or_else(launcher_of_environment).unwrap_or_else(|| "ssh".into())
    }

    fn setup(&self, launcher: Launcher, is_verbose: bool) -> Setup {
        let otherwise = if self.no_bootstrap || self.agent.is_some() { Otherwise::Fail } else { Otherwise::Send };
        let program = self.agent.clone().unwrap_or_else(|| OsString::from(AGENT));
        let remark = is_verbose.then_some(super::say as fn(&str));
        Setup {
            launcher,
            agent: AgentChoice { command: "rdsh", program, otherwise, remark },
            parallel: 1,
            relay: self.relay,
            via: self.via.clone().map(OsStringExt::into_vec).unwrap_or_default(),
            name: None,
            may_ask: true,
        }
    }

    /// Becomes ssh with the same arguments, except that the first -v is for `rdsh`. Returns only if ssh cannot be run.
    fn become_ssh(&self) -> Failure {
        // The launcher has split the command before.
        let words = shell_words::split(&self.rsh().to_string_lossy()).unwrap_or_default();
        let mut options = self.ssh.words();
        // What ssh prints with -v would bury the line that says why the work is left to ssh.
        if let Some(ours) = options.iter().position(|word| word == "-v") {
            options.remove(ours);
        }
        let mut ssh = std::process::Command::new(&words[0]);
        ssh.args(&words[1..]).args(options).args(&self.host);
        // ssh also reads options after the host. What --rsh names has to know `--`, too.
        if self.command.first().is_some_and(|word| word.as_bytes().starts_with(b"-")) {
            ssh.arg("--");
        }
        ssh.args(&self.command);
        if let Some(input) = input_anew() {
            ssh.stdin(input);
        }
        super::log::finish();
        dismiss_helpers();
        let errno = os(errno_of(&ssh.exec()));
        Exit::Connect.with(format!("cannot run {}: {errno}; see --rsh", escaped(OsStr::new(&words[0]))))
    }
}

/// Opens standard input once more, at the same place, if it is a file that `rdsh` itself would read by position. ssh
/// would take the list of hosts from a loop. `None` for all else, and if the file cannot be opened again.
fn input_anew() -> Option<File> {
    let input = standard::input().ok()?;
    source::steady(&input).ok()??;
    let anew = File::open("/proc/self/fd/0").ok()?;
    seek(&anew, SeekFrom::Start(tell(&input).ok()?)).ok()?;
    Some(anew)
}

/// Whether there is a standard input for the command.
fn has_input(ssh: &SshOptions) -> bool {
    !ssh.has_no_input() && standard::named_input().is_ok() && !standard::is_null(std::io::stdin())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_is_one() {
        for host in ["", "@", "user@", "ssh://", "ssh://user@", "ssh://:22"] {
            assert_eq!(unusable(OsStr::new(host)).as_deref(), Some("HOST is empty"), "{host:?}");
        }
        for host in ["h[1-2]", "user@h[1-2", "h1,h2", "{h1,h2}", "[h1,h2]"] {
            let reason = unusable(OsStr::new(host)).unwrap_or_else(|| panic!("{host} is taken"));
            assert!(reason.starts_with(&format!("{host}: rdsh takes one host; for several: ")), "{reason}");
            assert!(reason.ends_with("' (true is an empty input)"), "{reason}");
        }
        for host in ["h", "user@h.lan", "fe80::1%e0", "[fe80::1]", "user@[fe80::1]", "ssh://user@[fe80::1]:22", "@h"] {
            assert_eq!(unusable(OsStr::new(host)), None, "{host}");
        }
    }
}
