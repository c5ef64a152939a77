//! The kinds of launchers, their command lines and their messages.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{Explains, Launcher};

/// How often ssh asks for an answer, in seconds, and how many times in vain at least before it ends the connection.
const SSH_ASKS_S: u32 = 15;
const SSH_ASKS_MIN: u32 = 3;

/// Override settings of the user's configuration that are meant for logins, and would spoil an agent's messages or its
/// start. scp does the same, except that RemoteCommand is missing here: an ssh before 7.6 would not start with that.
const SSH_BARE: [&str; 4] = ["-o", "RequestTTY=no", "-o", "PermitLocalCommand=no"];
const SSH_NO_FORWARDS: [&str; 2] = ["-o", "ClearAllForwardings=yes"];

/// Beginnings of the user's words that request a forwarding: these options of ssh, and the names of those given with
/// -o.
const SSH_FORWARDS: [&str; 6] = ["-L", "-R", "-D", "localforward", "remoteforward", "dynamicforward"];

/// Messages of ssh about its own failure: beginnings of lines. `SSH_REFUSED` may be anywhere in a line.
const SSH_CAUSES: [&str; 7] = [
    "ssh: connect to host ",
    "ssh: Could not resolve hostname ",
    "channel 0: open failed: ",
    SSH_KEY_REFUSED,
    "Connection closed by ",
    "Connection reset by ",
    "Received disconnect from ",
];
const SSH_REFUSED: &str = ": Permission denied (";

/// The reason why ssh does not accept a host's key. ssh prints it before [`SSH_KEY_REFUSED`], and the location of the
/// old key if the host had another key before.
const SSH_KEY_REFUSED: &str = "Host key verification failed";
const SSH_KEY_REASON: &str = "you have requested strict checking";
const SSH_OLD_KEY: &str = "Offending ";

/// Messages of ssh if a connection is closed before the handshake, and those of [`SSH_CAUSES`] that only say so again.
const SSH_UNHEARD: [&str; 2] = ["kex_exchange_identification: ", "ssh_exchange_identification: "];
const SSH_CLOSED: [&str; 2] = ["Connection closed by ", "Connection reset by "];

/// Beginning of ssh's message that a terminal is asked for by its configuration, and that an agent gets none.
const SSH_NO_TERMINAL: &str = "Pseudo-terminal will not be allocated";

/// Words by which another program, such as a ProxyCommand, says that it has not reached a host.
const UNREACHED: [&str; 7] =
    ["refused", "o route to host", "timed out", "unreachable", "not found", "not known", "resol"];

/// Messages of ssh that explain nothing: those that follow when the command that was to connect it has failed and has
/// given its reason, and those about what ssh has done before.
const SSH_FOLLOWS: [&str; 8] = [
    "Connection closed by UNKNOWN port",
    "Connection reset by UNKNOWN port",
    "banner exchange: Connection to UNKNOWN port",
    "kex_exchange_identification: ",
    "ssh_exchange_identification: ",
    "stdio forwarding failed",
    "Disconnected from ",
    "Warning: Permanently added ",
];

/// The template for a task of Slurm on one node. `--overlap`: runs beside other tasks of the allocation, which have all
/// of its processors. `--unbuffered`: otherwise the daemon at the other end keeps incomplete lines. `--mpi=none` and
/// `--cpu-bind=none`: the agent is not part of the job's own work, and may use everything that the job has on the node.
/// `--chdir`: the agent changes to the home directory itself, and the current directory may be missing there.
pub(super) const SRUN: [&str; 14] = [
    "srun",
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--unbuffered",
    "--quiet",
    "--mpi=none",
    "--cpu-bind=none",
    "--chdir=/",
    "--nodelist",
    "%h",
    "sh",
    "-c",
    "%c",
];

/// Variables that srun takes for options of its own, but that describe the job, or what a person wants to see of it.
pub(super) const SRUN_NOT_OURS: [&str; 12] = [
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_CPUS_PER_GPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_GRES",
    "SLURM_TRES_PER_TASK",
    "SLURM_EXPORT_ENV",
    "SLURM_DEBUG",
    "SLURM_LABELIO",
];

/// Those that say that the job has a number of GPUs on all its nodes together, or for each socket.
pub(super) const TOTAL_VARIABLES: [&str; 2] = ["SLURM_GPUS", "SLURM_GPUS_PER_SOCKET"];

/// Messages of srun about a task that has ended, and about missing support for binding processors.
const SRUN_NOISE: [&str; 2] = ["Exited with exit code", "cluster configuration lacks support for cpu binding"];

/// Programs that run commands on hosts but cannot carry the agent's messages, with the reason.
const UNFIT: [(&str, &str); 2] =
    [("clush", "forwards only whole lines, without carriage returns"), ("pdsh", "forwards no input")];

/// Splits a command into words as a shell would.
pub(super) fn words_of(command: &OsStr) -> Result<Vec<OsString>, String> {
    let text = command.to_str().ok_or("is not UTF-8")?;
    let words = shell_words::split(text).map_err(|_| "has an unclosed quote".to_owned())?;
    let program = words.first().ok_or("is empty")?.rsplit('/').next().unwrap_or_default();
    if let Some((name, flaw)) = UNFIT.iter().find(|(name, _)| *name == program) {
        return Err(format!(
            "is {name}, which {flaw}, and so cannot reach an agent; ssh can, and --hosts @GROUP takes a group's names"
        ));
    }
    if program == "srun" && !words.iter().any(|word| word == "-u" || word == "--unbuffered") {
        return Err("is srun without --unbuffered, which holds back incomplete lines; use --launcher slurm".to_owned());
    }
    Ok(words.into_iter().map(OsString::from).collect())
}

/// How a launcher is given the host and the command.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Behind its words, as with ssh.
    Shell {
        /// ssh's options, as the user gave them.
        options: Vec<OsString>,
        /// Whether the launcher starts only agents, regardless of ssh's configuration for logins.
        is_bare: bool,
    },
    /// As a task of `srun`, within a Slurm allocation. The words are the template [`SRUN`].
    Slurm,
    /// In its words, which are a template: `%h` stands for the host, `%c` for the command.
    Template,
}

impl Launcher {
    /// Whether this is ssh, whose options and messages are known.
    pub(super) fn is_ssh(&self) -> bool {
        matches!(self.kind, Kind::Shell { .. }) && self.name() == "ssh"
    }

    /// Returns the complete command line on this host that runs `command` on `host`.
    pub(super) fn words(&self, host: &OsStr, command: &OsStr) -> Vec<OsString> {
        let Kind::Shell { options, is_bare } = &self.kind else {
            return self.words.iter().map(|word| filled(word, host, command).expect("it was checked")).collect();
        };
        let mut words = [&self.words[..], options].concat();
        let forwards = words.iter().skip(1).any(|word| is_forward(word));
        // The user's options take precedence over those that come after them.
        if self.is_ssh() {
            // Without these, a host that is cut off is noticed only when the system gives up the connection, after
            // about a quarter of an hour.
            let asks = (self.patience_s / SSH_ASKS_S + 1).max(SSH_ASKS_MIN);
            for option in [format!("ServerAliveInterval={SSH_ASKS_S}"), format!("ServerAliveCountMax={asks}")] {
                words.extend(["-o".into(), option.into()]);
            }
            if *is_bare {
                words.extend(SSH_BARE.map(OsString::from));
                // This option would also clear forwardings of the command line.
                if !forwards {
                    words.extend(SSH_NO_FORWARDS.map(OsString::from));
                }
            }
        }
        words.extend([host.to_owned(), command.to_owned()]);
        words
    }

    /// Reports whether the command is interpreted by a shell on the host, of whatever kind.
    pub fn has_shell(&self) -> bool {
        match self.kind {
            // Only ssh is known to hand the command to a shell.
            Kind::Shell { .. } => self.is_ssh(),
            Kind::Slurm | Kind::Template => self.words.windows(2).any(|two| two[0] == "-c" && two[1] == "%c"),
        }
    }

    /// Returns the command-line option that selects this launcher, for messages.
    pub fn option(&self) -> &'static str {
        match self.kind {
            Kind::Shell { .. } => "--rsh",
            Kind::Slurm | Kind::Template => "--launcher",
        }
    }

    /// Returns the same launcher in a form that never asks the user and fails instead. `None` if there is no such form.
    pub fn unasking(&self) -> Option<Self> {
        match &self.kind {
            Kind::Shell { options, is_bare } if self.is_ssh() && self.words.len() == 1 => {
                // These come first, because ssh uses the first of two settings of the same option.
                let quiet = ["-o", "BatchMode=yes"].map(OsString::from);
                let kind = Kind::Shell { options: [&quiet, &options[..]].concat(), is_bare: *is_bare };
                Some(Self { kind, ..self.clone() })
            }
            _ => None,
        }
    }

    /// Reports whether a line is a routine message of the launcher that explains nothing.
    pub(super) fn is_noise(&self, line: &str) -> bool {
        self.lacks_terminal(line)
            || matches!(self.kind, Kind::Slurm)
                && line.starts_with("srun: ")
                && SRUN_NOISE.iter().any(|words| line.contains(words))
    }

    /// Reports whether a line says that ssh's configuration asks for a terminal, and that there is none.
    pub(super) fn lacks_terminal(&self, line: &str) -> bool {
        self.is_ssh() && line.starts_with(SSH_NO_TERMINAL)
    }

    /// Returns an earlier, more specific reason for a cause. `text` is all the output available.
    pub(super) fn reason_of(&self, cause: &str, text: &str) -> Option<String> {
        let find = |words| text.lines().map(str::trim).find(|line| line.contains(words));
        let is_key = self.is_ssh() && cause.starts_with(SSH_KEY_REFUSED);
        let reason = is_key.then(|| find(SSH_KEY_REASON)).flatten()?.trim_end_matches('.');
        Some(match find(SSH_OLD_KEY) {
            Some(old) => format!("{reason} ({old}); if the host was reinstalled, remove that key"),
            None => reason.to_owned(),
        })
    }

    /// Reports whether, by all the output available, a server or a jump host has closed ssh's connection before the
    /// handshake, without any other cause. It may have too many logins at once, as sshd's MaxStartups allows.
    pub(super) fn is_turned_away(&self, text: &str) -> bool {
        let begins = |line: &str, with: &[&str]| with.iter().any(|beginning| line.starts_with(beginning));
        let lines = || text.lines().map(str::trim);
        let has_cause = |line: &str| match self.explains(line) {
            Some(explains) => explains == Explains::Cause && !begins(line, &SSH_CLOSED),
            None => UNREACHED.iter().any(|words| line.contains(words)),
        };
        self.is_ssh() && lines().any(|line| begins(line, &SSH_UNHEARD)) && !lines().any(has_cause)
    }

    /// Returns what a line of the launcher's own explains; `None` if the line is not known.
    pub(super) fn explains(&self, line: &str) -> Option<Explains> {
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| line.starts_with(beginning));
        if !self.is_ssh() {
            None
        } else if begins(&SSH_FOLLOWS) {
            Some(Explains::Nothing)
        } else {
            let is_cause =
                begins(&SSH_CAUSES) || [SSH_REFUSED, SSH_KEY_REASON].iter().any(|words| line.contains(words));
            is_cause.then_some(Explains::Cause)
        }
    }
}

/// Whether a word requests a forwarding from ssh.
fn is_forward(word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    let option = word.strip_prefix("-o").unwrap_or(&word).trim_start();
    SSH_FORWARDS.iter().any(|forward| match forward.strip_prefix('-') {
        Some(_) => word.starts_with(forward),
        None => option.get(..forward.len()).is_some_and(|name| name.eq_ignore_ascii_case(forward)),
    })
}

/// Checks a template, and splits it into words.
pub(super) fn template_words(template: &OsStr) -> Result<Vec<OsString>, String> {
    const OTHER: &str = "has a % that is not part of %h (the host), %c (the command to run there) or %%";
    let mut words = words_of(template)?;
    let with = |host: &str, command: &str| {
        let all = words.iter().map(|word| filled(word, host.as_ref(), command.as_ref()));
        all.collect::<Option<Vec<_>>>().ok_or(OTHER)
    };
    let bare = with("", "")?;
    if bare == with("h", "")? {
        return Err("names no host; give ssh, slurm, or a command in which %h stands for the host".to_owned());
    }
    if bare == with("", "c")? {
        words.push("%c".into());
    }
    Ok(words)
}

/// Puts the host and the command into a word of a template. `None` if the word has another %.
fn filled(word: &OsStr, host: &OsStr, command: &OsStr) -> Option<OsString> {
    let (mut text, mut bytes) = (Vec::new(), word.as_bytes().iter());
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next()? {
                b'h' => text.extend(host.as_bytes()),
                b'c' => text.extend(command.as_bytes()),
                b'%' => text.push(b'%'),
                _ => return None,
            },
            _ => text.push(byte),
        }
    }
    Some(OsString::from_vec(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_split_as_a_shell_would() {
        let launcher = Launcher::new(OsStr::new("/opt/my\\ ssh -o 'A b' \"c d\""), Vec::new()).expect("words");
        assert_eq!(launcher.words("h".as_ref(), "a".as_ref()), ["/opt/my ssh", "-o", "A b", "c d", "h", "a"]);
        assert_eq!(launcher.name(), "my ssh");
        assert!(Launcher::new(OsStr::new("ssh 'x"), Vec::new()).is_err());
        assert!(Launcher::new(OsStr::new(" "), Vec::new()).is_err());
    }

    #[test]
    fn an_agent_s_ssh_has_no_terminal_nor_forwardings() {
        let given = |command: &str, options: &[&str]| {
            let options = options.iter().map(OsString::from).collect();
            let words = Launcher::bare(OsStr::new(command), options).expect("words").words("h".as_ref(), "a".as_ref());
            words.join(OsStr::new(" ")).into_string().expect("text")
        };
        let alive = "-o ServerAliveInterval=15 -o ServerAliveCountMax=3";
        let bare = format!("{alive} -o RequestTTY=no -o PermitLocalCommand=no");
        let none = "-o ClearAllForwardings=yes";
        // The additions come after the user's options.
        assert_eq!(
            given("ssh -x", &["-o", "RequestTTY=force"]),
            format!("ssh -x -o RequestTTY=force {bare} {none} h a")
        );
        for asked in ["-L1:h:2", "-oLocalForward=1 h:2", "-o 'remoteforward 1 h:2'", "-D 1", "-R 1"] {
            let command = format!("ssh {asked}");
            assert!(given(&command, &[]).ends_with(&format!(" {bare} h a")), "{asked}");
        }
        assert!(given("ssh -oLogLevel=ERROR -l R", &[]).ends_with(&format!("{none} h a")));
        assert_eq!(given("rsh", &["-v"]), "rsh -v h a");
        // A launcher that is not only for agents keeps the settings of ssh's configuration.
        let launcher = Launcher::new(OsStr::new("ssh"), Vec::new()).expect("words");
        assert_eq!(launcher.words("h".as_ref(), "a".as_ref()).join(OsStr::new(" ")), *format!("ssh {alive} h a"));
    }

    #[test]
    fn only_ssh_can_be_told_to_ask_nothing() {
        let launcher = |text: &str| Launcher::new(OsStr::new(text), vec!["-v".into()]).expect("words");
        let quiet = launcher("/usr/bin/ssh").unasking().expect("ssh");
        let words = quiet.words("h".as_ref(), "a".as_ref());
        assert_eq!(words[..4], ["/usr/bin/ssh", "-o", "BatchMode=yes", "-v"]);
        assert!(launcher("ssh -x").unasking().is_none() && launcher("rsh").unasking().is_none());
        assert!(launcher("ssh -x").has_shell() && !launcher("rsh").has_shell());
    }

    #[test]
    fn a_template_has_the_host_and_what_is_run() {
        let words = |template: &str| {
            let launcher = Launcher::template(template.as_ref())?;
            Ok::<_, String>((launcher.words("h1".as_ref(), "run %h".as_ref()), launcher.has_shell()))
        };
        let expect = |template: &str, expected: &[&str], has_shell: bool| {
            let expected = expected.iter().map(OsString::from).collect::<Vec<_>>();
            assert_eq!(words(template), Ok((expected, has_shell)), "{template}");
        };
        expect("mpirun --host %h", &["mpirun", "--host", "h1", "run %h"], false);
        expect("on '%h-ib' sh -c %c", &["on", "h1-ib", "sh", "-c", "run %h"], true);
        expect("on %h %%h%% 'x: %c'", &["on", "h1", "%h%", "x: run %h"], false);
        for (template, word) in
            [("mpirun", "%h"), ("on %h %x", "%c"), ("on %h %", "%c"), ("", "empty"), ("'%h", "quote")]
        {
            let reason = words(template).expect_err(template);
            assert!(reason.contains(word), "{template}: {reason}");
        }
    }

    #[test]
    fn what_cannot_carry_bytes_is_refused() {
        for (command, word) in [
            ("clush -w %h", "whole lines"),
            ("/usr/bin/pdsh -w %h", "no input"),
            ("srun -w %h sh -c %c", "--launcher slurm"),
        ] {
            for refused in [Launcher::template(command.as_ref()), Launcher::new(command.as_ref(), Vec::new())] {
                let reason = refused.expect_err(command);
                assert!(reason.contains(word), "{reason}");
            }
        }
        assert!(Launcher::template("srun -u -w %h sh -c %c".as_ref()).is_ok());
    }

    #[test]
    fn what_srun_says_of_each_task_explains_nothing() {
        let noise = [
            "srun: error: h2: task 0: Exited with exit code 7",
            "srun: cluster configuration lacks support for cpu binding",
        ];
        let slurm = Launcher::slurm();
        assert!(noise.iter().all(|line| slurm.is_noise(line)));
        assert!(
            !slurm.is_noise(
                "srun: error: Unable to create step for job 7: Requested node configuration is not available"
            )
        );
        assert!(!slurm.is_noise("sh: 1: Exited with exit code: not found"));
    }

    #[test]
    fn a_login_that_is_turned_away_has_no_other_cause() {
        const CUT: &str = "kex_exchange_identification: Connection closed by remote host\r\n";
        let ssh = Launcher::new(OsStr::new("ssh"), Vec::new()).expect("words");
        for (text, expected) in [
            (CUT.to_owned(), true),
            (format!("{CUT}Connection closed by 10.0.0.1 port 22\r\n"), true),
            (format!("banner\r\n{CUT}Connection closed by UNKNOWN port 65535\r\n"), true),
            ("kex_exchange_identification: read: Connection reset by peer\r\n".to_owned(), true),
            (format!("ssh: connect to host gate port 22: Connection refused\r\n{CUT}"), false),
            (format!("me@gate: Permission denied (publickey).\r\n{CUT}"), false),
            (format!("channel 0: open failed: connect failed: refused\r\nstdio forwarding failed\r\n{CUT}"), false),
            (format!("nc: connect to h1 port 22 (tcp) failed: No route to host\n{CUT}"), false),
            (format!("nc: getaddrinfo for host \"h1\" port 22: Name or service not known\n{CUT}"), false),
            ("Connection closed by 10.0.0.1 port 22\r\n".to_owned(), false),
        ] {
            assert_eq!(ssh.is_turned_away(&text), expected, "{text}");
        }
        assert!(!Launcher::new(OsStr::new("rsh"), Vec::new()).expect("words").is_turned_away(CUT));
    }

    #[test]
    fn a_task_of_slurm_gets_one_word_for_its_shell() {
        let words = Launcher::slurm().words("n1".as_ref(), "a 'b c'".as_ref());
        assert_eq!(words[words.len() - 5..], ["--nodelist", "n1", "sh", "-c", "a 'b c'"]);
    }
}
