//! The options of ssh, and which program obeys each.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::fault::escaped;

/// The program for which an option is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// The ssh that starts the agent.
    Launcher,
    /// An ssh that replaces `rdsh` and does all of the work.
    Ssh,
    /// `rdsh` itself.
    Us,
}

/// An option: its letter, the name of its value if it has one, the program for which it is meant, and its help.
struct Known(&'static str, Option<&'static str>, For, &'static str);

/// All options of ssh, in the order of its manual page.
const OPTIONS: [Known; 47] = [
    Known("4", None, For::Launcher, "Use IPv4 only"),
    Known("6", None, For::Launcher, "Use IPv6 only"),
    Known("A", None, For::Launcher, "Forward the SSH agent"),
    Known("a", None, For::Launcher, "Do not forward the SSH agent"),
    Known("B", Some("INTERFACE"), For::Launcher, "Interface from which ssh connects"),
    Known("b", Some("ADDRESS"), For::Launcher, "Address from which ssh connects"),
    Known("C", None, For::Launcher, "Compress ssh's own connection; for the data, see --compress"),
    Known("c", Some("CIPHERS"), For::Launcher, "Ciphers of ssh's own connection"),
    Known("D", Some("FORWARD"), For::Ssh, "SOCKS port forwarding: left to ssh"),
    Known("E", Some("FILE"), For::Launcher, "Log file for ssh"),
    Known("e", Some("CHARACTER"), For::Launcher, "Escape character for terminals"),
    Known("F", Some("FILE"), For::Launcher, "SSH config file"),
    Known("f", None, For::Ssh, "Go to the background after the login: left to ssh"),
    Known("G", None, For::Ssh, "Print the configuration: left to ssh"),
    Known("g", None, For::Ssh, "Let other hosts use forwarded ports: left to ssh"),
    Known("I", Some("FILE"), For::Launcher, "PKCS#11 library with keys"),
    Known("i", Some("FILE"), For::Launcher, "SSH key; may be repeated"),
    Known("J", Some("HOST"), For::Launcher, "SSH jump host"),
    Known("K", None, For::Launcher, "Log in with GSSAPI and forward credentials"),
    Known("k", None, For::Launcher, "Do not forward GSSAPI credentials"),
    Known("L", Some("FORWARD"), For::Ssh, "Forward a local port: left to ssh"),
    Known("l", Some("USER"), For::Launcher, "User to log in as"),
    Known("M", None, For::Launcher, "Be the master of a shared connection"),
    Known("m", Some("MACS"), For::Launcher, "MACs of ssh's own connection"),
    Known("N", None, For::Ssh, "Run no command: left to ssh"),
    Known("n", None, For::Us, "Use /dev/null as standard input"),
    Known("O", Some("COMMAND"), For::Ssh, "Control a shared connection: left to ssh"),
    Known("o", Some("OPTION"), For::Launcher, "SSH option, such as Compression=no; may be repeated"),
    Known("P", Some("TAG"), For::Launcher, "Tag for the SSH config file"),
    Known("p", Some("PORT"), For::Launcher, "SSH port"),
    Known("Q", Some("WHAT"), For::Ssh, "List supported algorithms: left to ssh"),
    Known("q", None, For::Launcher, "Have ssh print errors only"),
    Known("R", Some("FORWARD"), For::Ssh, "Forward a remote port: left to ssh"),
    Known("S", Some("PATH"), For::Launcher, "Socket of a shared connection"),
    Known("s", None, For::Ssh, "Run a subsystem: left to ssh"),
    Known("T", None, For::Launcher, "Allocate no terminal: the default with COMMAND"),
    Known("t", None, For::Ssh, "Allocate a terminal: left to ssh"),
    Known("V", None, For::Ssh, "Print ssh's version"),
    Known(
        "v",
        None,
        For::Launcher,
        "Print the route of the data, or what is left to ssh; -vv gives ssh -v, -vvv gives ssh -vv, and so on",
    ),
    Known("W", Some("HOST:PORT"), For::Ssh, "Connect to a port from HOST: left to ssh"),
    Known("w", Some("TUN"), For::Ssh, "Make a tunnel: left to ssh"),
    Known("X", None, For::Launcher, "Forward X11"),
    Known("x", None, For::Launcher, "Do not forward X11"),
    Known("Y", None, For::Launcher, "Forward X11 and trust it"),
    Known("y", None, For::Launcher, "Have ssh log to syslog"),
    // Options of an obsolete protocol.
    Known("1", None, For::Ssh, ""),
    Known("2", None, For::Launcher, ""),
];

/// Options of `-o` that only an ssh that does all of the work can obey, unless their value says no.
const OF_SSH: [&str; 9] = [
    "requesttty",
    "remotecommand",
    "sessiontype",
    "forkafterauthentication",
    "localforward",
    "remoteforward",
    "dynamicforward",
    "tunnel",
    "stdinnull",
];

/// Value of `sessiontype` that changes nothing.
const SESSION: [&str; 1] = ["default"];

/// Values of the other options in [`OF_SSH`] that change nothing.
const NO: [&str; 3] = ["no", "none", "false"];

/// An option of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    letter: &'static str,
    /// How often the option occurs in a row; 1 if it has a value.
    times: u8,
    value: Option<OsString>,
}

/// The options of a command line, in their order, because ssh obeys the first of two settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SshOptions(Vec<Given>);

impl SshOptions {
    /// Returns the options as given: each as one word, or two if it has a value.
    pub(super) fn words(&self) -> Vec<OsString> {
        words(self.0.iter())
    }

    /// Returns the options for the ssh that starts the agent. The first -v is left out, because it is for `rdsh`.
    pub(super) fn for_launcher(&self) -> Vec<OsString> {
        let mut words = words(self.0.iter().filter(|given| whom(given.letter) == For::Launcher));
        if let Some(ours) = words.iter().position(|word| word == "-v") {
            words.remove(ours);
        }
        words
    }

    /// Returns why ssh must do all of the work, if an option asks for something that only ssh does.
    pub(super) fn asks_ssh(&self) -> Option<String> {
        let given = self.0.iter().find(|given| {
            whom(given.letter) == For::Ssh || given.letter == "o" && given.value.as_deref().is_some_and(is_of_ssh)
        })?;
        Some(match (given.letter, &given.value) {
            ("t", _) => "-t asks for a terminal".to_owned(),
            ("o", Some(value)) => format!("-o {} is ssh's own", escaped(value)),
            (letter, _) => format!("-{letter} is ssh's own"),
        })
    }

    /// Whether `-v` is given.
    pub(super) fn is_verbose(&self) -> bool {
        self.has("v")
    }

    /// Whether `-n` is given.
    pub(super) fn has_no_input(&self) -> bool {
        self.has("n")
    }

    fn has(&self, letter: &str) -> bool {
        self.0.iter().any(|given| given.letter == letter)
    }
}

fn whom(letter: &str) -> For {
    OPTIONS.iter().find(|known| known.0 == letter).map_or(For::Ssh, |known| known.2)
}

fn words<'a>(given: impl Iterator<Item = &'a Given>) -> Vec<OsString> {
    let of = |given: &Given| {
        let letter = OsString::from(format!("-{}", given.letter));
        std::iter::repeat_n(letter, given.times.into()).chain(given.value.clone()).collect::<Vec<_>>()
    };
    given.flat_map(of).collect()
}

/// Whether an option of `-o`, `NAME=VALUE` or `NAME VALUE`, needs an ssh that does all of the work.
fn is_of_ssh(option: &OsStr) -> bool {
    let text = String::from_utf8_lossy(option.as_bytes()).to_ascii_lowercase();
    let text = text.trim();
    let (name, value) = text.split_once(['=', ' ', '\t']).unwrap_or((text, ""));
    let value = value.trim_matches(['=', ' ', '\t', '"']);
    let no = if name == "sessiontype" { &SESSION[..] } else { &NO };
    OF_SSH.contains(&name) && !no.contains(&value)
}

impl Args for SshOptions {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, Known(letter, value, _, help)| {
            let option = Arg::new(*letter).short(letter.chars().next()).help(*help).hide(help.is_empty());
            command.arg(match value {
                Some(name) => option
                    .value_name(*name)
                    .action(ArgAction::Append)
                    .allow_hyphen_values(true)
                    .value_parser(clap::value_parser!(OsString)),
                // ssh counts these options.
                None if ["t", "v"].contains(letter) => option.action(ArgAction::Count),
                None => option.action(ArgAction::SetTrue),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SshOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given: Vec<(usize, Given)> = Vec::new();
        for Known(letter, value, ..) in &OPTIONS {
            if matches.value_source(letter) != Some(ValueSource::CommandLine) {
                continue;
            }
            let places = matches.indices_of(letter).into_iter().flatten();
            let one = |times: u8, value: Option<&OsString>| Given { letter, times, value: value.cloned() };
            match value {
                Some(_) => {
                    let values = matches.get_many::<OsString>(letter).into_iter().flatten();
                    given.extend(places.zip(values).map(|(place, value)| (place, one(1, Some(value)))));
                }
                None => {
                    let times = matches.try_get_one::<u8>(letter).ok().flatten().copied().unwrap_or(1);
                    given.push((places.max().unwrap_or_default(), one(times, None)));
                }
            }
        }
        given.sort_by_key(|(place, _)| *place);
        Ok(Self(given.into_iter().map(|(_, given)| given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::ShellArguments;
    use super::*;

    fn parsed(line: &str) -> ShellArguments {
        ShellArguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn joined(words: &[OsString]) -> String {
        words.join(OsStr::new(" ")).into_string().expect("text")
    }

    #[test]
    fn words_are_read_as_ssh_reads_them() {
        for (line, options, host, command) in [
            ("rdsh h ls", "", "h", "ls"),
            ("rdsh h ls -l -- -x", "", "h", "ls -l -- -x"),
            (
                "rdsh -l me h rsync --server -vlogDtpre.iLsfxCIvu . dir",
                "-l me",
                "h",
                "rsync --server -vlogDtpre.iLsfxCIvu . dir",
            ),
            // Options may also follow the host.
            ("rdsh h -p 22 ls -n", "-p 22", "h", "ls -n"),
            ("rdsh -p22 -oA=b -4vvi key -o C=d h ls", "-p 22 -o A=b -4 -v -v -i key -o C=d", "h", "ls"),
            ("rdsh -o -odd h ls", "-o -odd", "h", "ls"),
            ("rdsh -- h ls", "", "h", "ls"),
            ("rdsh h -- ls -a", "", "h", "ls -a"),
            ("rdsh -i a -p 1 -i b h", "-i a -p 1 -i b", "h", ""),
            ("rdsh --relay h --agent x ls --relay", "", "h", "ls --relay"),
        ] {
            let arguments = parsed(line);
            let host = Some(OsString::from(host));
            assert_eq!((joined(&arguments.ssh.words()), &arguments.host), (options.to_owned(), &host), "{line}");
            assert_eq!(joined(&arguments.command), command, "{line}");
        }
        for line in ["rdsh -p", "rdsh -Z h ls", "rdsh --no-such h ls"] {
            assert!(ShellArguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn what_only_ssh_does_is_left_to_it() {
        for line in [
            "-t h ls",
            "-tt h ls",
            "-N h",
            "-f h ls",
            "-L 1:h:2 h ls",
            "-R 1 h ls",
            "-D 1 h ls",
            "-W h:1 g",
            "-s h sftp",
            "-V",
            "-G h",
            "-Q key",
            "-O check h",
            "-w 0 h ls",
            "-o RequestTTY=force h ls",
            "-o sessiontype=none h",
            "-oLocalForward=1:h:2 h ls",
            "-o ForkAfterAuthentication=yes h ls",
            "-1 h ls",
        ] {
            assert!(parsed(&format!("rdsh {line}")).ssh.asks_ssh().is_some(), "{line}");
        }
        for line in [
            "-n h ls",
            "-v h ls",
            "-T h ls",
            "-A h ls",
            "-C h ls",
            "-q -x -a h ls",
            "-o RequestTTY=no h ls",
            "-o SessionType=default h ls",
            "-o Compression=yes h ls",
            "-l t h ls",
            "h ls -t",
            "-2 h ls",
            "-S none -M h ls",
        ] {
            assert!(parsed(&format!("rdsh {line}")).ssh.asks_ssh().is_none(), "{line}");
        }
        let kept = parsed("rdsh -n -v -p 1 h ls").ssh;
        assert_eq!(joined(&kept.for_launcher()), "-p 1", "standard input of ssh is the agent's, and -v ours");
        assert_eq!(joined(&parsed("rdsh -vvv h ls").ssh.for_launcher()), "-v -v");
        assert_eq!(joined(&parsed("rdsh -v -p 1 -v h ls").ssh.for_launcher()), "-p 1 -v");
        assert!(kept.has_no_input() && kept.is_verbose());
    }
}
