//! The agent for a host that has none: one from the host's own cache, or the caller's, which is sent there.
//!
//! One command does all of it in one connection, so that a password is asked for once. It runs the agent that is
//! installed. Where there is none it asks the caller, with a line that begins with [`MARK`], for the hash of the right one,
//! and runs the cached one if it has that. Else it asks for the program itself, checks and keeps it, and runs it. What it
//! cannot do it says in such a line as well.
//!
//! # Who can change what is run
//!
//! Only the user that the launcher logs in as, and root there. The cache is a directory of that user's with mode 0700 and
//! no symbolic link. The shell enters it and looks at `.` before it trusts anything in it, and from then on names files
//! by one name relative to it: exchanging a parent directory, or what lies between a check and its use, gains nobody
//! anything. A program is under its final name only after its hash was found right, and the hash is found again before
//! each start.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::control::channel::ChannelError;
use crate::control::frames::{Hello, MAGIC, NOISE_BYTES_MAX};
use crate::control::launch::AGENT;
use crate::fault::{Exit, Failure, errno_of, escaped, os};

/// What the script's lines begin with, among what a login script may print.
const MARK: &str = "rdma-pipe-bootstrap ";

/// Bytes that are handed to the launcher at a time: each is a sign that the host takes them.
const PIECE_BYTES: usize = 64 << 10;

/// An upload that takes longer than this is announced.
const SLOW: Duration = Duration::from_secs(2);

/// Characters of a reason that the host gives, at most.
const REASON_CHARS_MAX: usize = 300;

/// What to do where the agent cannot be brought to a host.
const CURE: &str = "install rdma-pipe there, or name an agent elsewhere with --agent";

/// The agent that is to run on other hosts.
#[derive(Clone, Debug)]
pub(crate) struct AgentChoice {
    /// The command that wants it, for what it prints.
    pub(crate) command: &'static str,
    pub(crate) program: OsString,
    pub(crate) otherwise: Otherwise,
    /// Told that it has been sent to a host, unless nothing is to be said.
    pub(crate) remark: Option<fn(&str)>,
}

/// What is done on a host that does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Fail,
    /// An agent that was sent earlier is run. Nothing is changed there.
    Cached,
    /// That, or the caller's own is sent.
    Send,
}

impl AgentChoice {
    /// The host has no agent. `because`: what was said about that.
    pub(super) fn missing(&self, label: &str, because: &str) -> Failure {
        let program = escaped(&self.program);
        let line = match self.otherwise {
            Otherwise::Fail if self.program == AGENT => {
                format!("{label} has no {program}; install rdma-pipe there, or name an agent with --agent")
            }
            Otherwise::Fail => {
                format!(
                    "{label} has no {program}; name another with --agent, or leave --agent out and one is copied there"
                )
            }
            Otherwise::Cached => {
                format!("{label} has no {program}; without -n it would be copied there, as by: rdsh {label} true")
            }
            Otherwise::Send => format!("{label} has no {program}, and it cannot be copied there{because}; {CURE}"),
        };
        Failure::new(Exit::Connect, line)
    }
}

/// The agent beside this program.
pub(super) struct Own {
    bytes: Vec<u8>,
    /// Its SHA-256, in hexadecimal digits. sha256sum is on every host, BLAKE3 is not.
    hash: String,
}

/// A version of a C library.
type Version = (u32, u32);

impl Own {
    /// Begins to read it, while the first login goes on.
    pub(super) fn prepare() {
        static PREPARED: std::sync::Once = std::sync::Once::new();
        // Without a thread it is read when it is asked for.
        PREPARED.call_once(|| drop(std::thread::Builder::new().name("own agent".to_owned()).spawn(Self::read)));
    }

    /// Reads it, once for all hosts.
    ///
    /// # Errors
    ///
    /// A sentence with its path.
    pub(super) fn read() -> Result<&'static Self, &'static str> {
        static OWN: OnceLock<Result<Own, String>> = OnceLock::new();
        let read = || {
            let path = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name(AGENT);
            let bytes = std::fs::read(&path).map_err(|error| {
                let errno = os(errno_of(&error));
                format!("{} here: {errno}", escaped(path.as_os_str()))
            })?;
            Ok(Own { hash: hash(&bytes), bytes })
        };
        OWN.get_or_init(read).as_ref().map_err(String::as_str)
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The newest version of glibc whose symbols a program asks for: their names are among its strings.
fn glibc_needed(program: &[u8]) -> Option<Version> {
    const NAME: &[u8] = b"GLIBC_";
    let starts = program.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    let versions = starts.filter_map(|(at, _)| {
        let rest = &program[at + NAME.len()..];
        let end = rest.iter().take(16).position(|&byte| byte == 0)?;
        version(std::str::from_utf8(&rest[..end]).ok()?)
    });
    versions.max()
}

/// Reads `2.36`, or `2.2.5`.
fn version(text: &str) -> Option<Version> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// A command that finds an agent, and what it may ask for.
pub(super) struct Request {
    /// Reads what is sent, when it is asked for: its hash takes some milliseconds.
    own: fn() -> Result<&'static Own, &'static str>,
    choice: AgentChoice,
    label: String,
}

impl Request {
    pub(super) fn new(choice: &AgentChoice, host: &OsStr) -> Self {
        Self { own: Own::read, choice: choice.clone(), label: escaped(host) }
    }

    /// The command. Nothing in it varies from one host or program to another. `past_installed`: the agent that is installed
    /// is not wanted.
    ///
    /// Any login shell hands it to `sh` as it is: it is one line, and has none of what is special within single quotes in
    /// some shell: `'`, `\` (fish), `!` (csh).
    pub(super) fn script(&self, past_installed: bool) -> OsString {
        let installed = if past_installed { "" } else { "command -v $a >/dev/null 2>&1 && exec $a; " };
        // $h, $n, $k: the program's hash, its length, and the kind of system that it is for; several kinds may share a
        // home. Where the cache is as it should be the script ends with this part, by `exec`.
        let cached = format!(
            "a={AGENT}; t=; \
             no() {{ trap \"\" HUP INT TERM PIPE; [ \"$t\" ] && rm -f $t; echo \"{MARK}no $*\" 2>/dev/null; exit 127; }}; \
             is_right() {{ s=$(sha256sum <$1 2>/dev/null); [ \"${{s%% *}}\" = $h ]; }}; \
             {installed}\
             echo \"{MARK}ask\"; read -r h n k || exit 127; f=$a-$h; \
             case \"$XDG_CACHE_HOME\" in /*) d=$XDG_CACHE_HOME;; *) d=${{HOME:+$HOME/.cache}};; esac; \
             [ \"$d\" ] || no home; d=$d/rdma-pipe; \
             [ -L \"$d\" ] && no link \"$d\"; \
             [ -d \"$d\" ] || {}; \
             cd \"$d\" 2>/dev/null || no enter \"$d\"; \
             set -- $(ls -ldn .); case \"$1 $3\" in drwx--[-S]---*\" $(id -u)\") ;; *) no open \"$d\";; esac; \
             [ -L $f ] || {{ [ -f $f ] && [ -x $f ] && [ \"$(uname -sm)\" = \"$k\" ] && \
             is_right $f && exec ./$f; }}; ",
            match self.choice.otherwise {
                Otherwise::Send => "{ e=$( (umask 077; mkdir -p \"$d\") 2>&1) || no write \"$e\"; }",
                Otherwise::Cached | Otherwise::Fail => "no none",
            }
        );
        if self.choice.otherwise != Otherwise::Send {
            return format!("sh -c '{cached}no none'").into();
        }
        // An empty script shows whether programs can be run there before one is sent. Of an upload that is cut off, by
        // which time there is no shell to remove anything, the next one removes what is left. Agents of other releases go that
        // nobody has used for two days: one that was, another caller may be about to start.
        let sent = format!(
            "command -v sha256sum >/dev/null 2>&1 || no sum; \
             find . -name \".new.*\" -mmin +60 -exec rm -f {{}} + 2>/dev/null; \
             t=$(mktemp ./.new.XXXXXX 2>&1) || {{ e=$t; t=; no write \"$e\"; }}; \
             trap \"no cut\" HUP INT TERM PIPE; \
             e=$( (echo : | cat >$t) 2>&1 && chmod 700 $t 2>&1) || no write \"${{e##*: }}\"; \
             $t 2>/dev/null </dev/null || {{ m=$(df -P . 2>/dev/null | tail -n 1); m=/${{m##* /}}; \
             grep -q \" $m [^ ]* [^ ]*noexec\" /proc/mounts && no noexec \"$m\"; no exec \"$d\"; }}; \
             echo \"{MARK}want $(uname -s) $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)\"; \
             e=$( (head -c $n >$t) 2>&1) || {{ e=${{e##*: }}; \
             no write \"$d there: ${{e:-cut off, perhaps by a limit on the size of files (ulimit -f)}}\"; }}; \
             is_right $t || no cut; \
             e=$($t --version 2>&1 >/dev/null </dev/null) || no run \"$e\"; \
             [ -L $f ] && rm -f $f; [ -d $f ] && rm -rf ./$f; \
             e=$(mv -f $t $f 2>&1) || no write \"$e\"; t=; trap - HUP INT TERM PIPE; \
             find . -name \"$a-*\" -amin +2880 -exec rm -rf {{}} + 2>/dev/null; \
             echo \"{MARK}sent\"; exec ./$f"
        );
        format!("sh -c '{cached}{sent}'").into()
    }

    /// Gives the host what it asks for, until the agent begins to speak. `heard` is when it last took or said something, `noise` the
    /// last line of what others have said before the agent: a shell that refuses the login says so there.
    ///
    /// # Errors
    ///
    /// Why there is no agent. The inner one: the launcher has ended, or what answers is no agent.
    pub(super) fn serve(
        &self,
        stdout: &mut impl BufRead,
        mut stdin: File,
        heard: &Mutex<Instant>,
        noise: &mut Option<String>,
    ) -> Result<Result<(), ChannelError>, Failure> {
        let mut lines = stdout.take((NOISE_BYTES_MAX + MAGIC.len()) as u64);
        loop {
            let mut line = Vec::new();
            // A line ends where the magic does.
            let end = match lines.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(MAGIC) => return Ok(Ok(())),
                Ok(_) if line.ends_with(b"\n") => None,
                Ok(_) if lines.limit() == 0 => return Ok(Err(ChannelError::NoMagic)),
                Ok(_) => Some(ChannelError::Closed),
                Err(error) => return Ok(Err(error.into())),
            };
            let line = String::from_utf8_lossy(&line);
            let answer = line.trim_end().split_once(MARK);
            if answer.is_none() && line.contains(char::is_alphanumeric) {
                *noise = Some(line.trim().chars().take(REASON_CHARS_MAX).collect());
            }
            if let Some(end) = end {
                return Ok(Err(end));
            }
            let Some((_, answer)) = answer else { continue };
            let (what, about) = answer.split_once(' ').unwrap_or((answer, ""));
            match what {
                "ask" => {
                    let own = self.own()?;
                    let Hello { system, machine, .. } = Hello::ours();
                    // A host that is gone says no more, which is noticed next.
                    let _ =
                        stdin.write_all(format!("{} {} {system} {machine}\n", own.hash, own.bytes.len()).as_bytes());
                }
                "want" => self.send(about, &mut stdin, heard)?,
                "sent" => self.remark("copied", "")?,
                "no" => return Err(self.refused(about)),
                _ => {}
            }
        }
    }

    fn own(&self) -> Result<&'static Own, Failure> {
        (self.own)().map_err(|reason| self.choice.missing(&self.label, &format!(": {reason}")))
    }

    /// Prints a line about the upload: `done` is the verb, `added` the end of the line.
    fn remark(&self, done: &str, added: &str) -> Result<(), Failure> {
        let Some(remark) = self.choice.remark else { return Ok(()) };
        let (command, size) = (self.choice.command, megabytes(self.own()?.bytes.len()));
        remark(&format!("{command}: {done} {AGENT} ({size}) to {}{added}", self.label));
        Ok(())
    }

    /// Sends the program to a host that fits it. Whether it came through is in what the host says next.
    fn send(&self, host: &str, stdin: &mut File, heard: &Mutex<Instant>) -> Result<(), Failure> {
        let bytes = &self.own()?.bytes;
        if let Some(reason) = misfit(host, &Hello::ours(), glibc_needed(bytes)) {
            return Err(self.failed(&reason));
        }
        let (began, mut is_slow) = (Instant::now(), false);
        for piece in bytes.chunks(PIECE_BYTES) {
            if stdin.write_all(piece).is_err() {
                break;
            }
            if !is_slow && began.elapsed() >= SLOW {
                is_slow = true;
                self.remark("copying", ", once")?;
            }
            *heard.lock().expect("no panic with it locked") = Instant::now();
        }
        Ok(())
    }

    /// The host gives a reason.
    fn refused(&self, answer: &str) -> Failure {
        let (code, about) = answer.split_once(' ').unwrap_or((answer, ""));
        let about: String = about.chars().take(REASON_CHARS_MAX).collect();
        let about = escaped(OsStr::new(&about));
        self.failed(&match code {
            "none" => return self.choice.missing(&self.label, ""),
            "home" => format!("HOME is not set there; {CURE}"),
            "link" => format!("{about} there is a symbolic link; remove it and try again"),
            "enter" => format!("{about} there cannot be entered; {CURE}"),
            "open" => format!(
                "{about} there must belong to the user that logs in and have mode 0700; remove it and try again"
            ),
            "sum" => format!("there is no sha256sum (coreutils); {CURE}"),
            "noexec" => format!("{about} there is mounted noexec; {CURE}"),
            "exec" => format!("programs in {about} there cannot be run; {CURE}"),
            "cut" => "it did not arrive whole; try again".to_owned(),
            "run" => format!("it does not run there ({about}); {CURE}"),
            _ => format!("{about}; {CURE}"),
        })
    }

    fn failed(&self, reason: &str) -> Failure {
        Failure::new(Exit::Connect, format!("cannot copy {AGENT} to {}: {reason}", self.label))
    }
}

/// Why a program of this host's kind would not run on a host, which is described as `SYSTEM MACHINE LIBRARY VERSION`.
fn misfit(host: &str, ours: &Hello, glibc: Option<Version>) -> Option<String> {
    let mut words = host.split(' ');
    let (system, machine) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if (system, machine) != (&*ours.system, &*ours.machine) {
        let theirs = escaped(OsStr::new(&format!("{system} {machine}")));
        return Some(format!(
            "it runs {theirs}, and the agent here is for {} {}; install rdma-pipe for {theirs} there",
            ours.system, ours.machine
        ));
    }
    // A program that is linked statically asks for none.
    let needed = glibc?;
    let found = words.nth(1).and_then(version);
    let found = match found {
        Some(found) if found >= needed => return None,
        Some((major, minor)) => format!("its glibc is {major}.{minor}"),
        None => "it has no glibc".to_owned(),
    };
    let (major, minor) = needed;
    Some(format!(
        "{found}, and the agent here needs {major}.{minor} or later; build rdma-pipe on such a system and install it there"
    ))
}

/// "5 MB".
fn megabytes(bytes: usize) -> String {
    format!("{} MB", (bytes + 500_000) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(otherwise: Otherwise) -> AgentChoice {
        AgentChoice { command: "rdcp", program: AGENT.into(), otherwise, remark: None }
    }

    fn request(otherwise: Otherwise) -> Request {
        let own = || {
            static OWN: OnceLock<Own> = OnceLock::new();
            Ok(OWN.get_or_init(|| Own { bytes: vec![7; 200_000], hash: hash(&[7; 200_000]) }))
        };
        Request { own, ..Request::new(&choice(otherwise), OsStr::new("h")) }
    }

    #[test]
    fn the_script_is_one_word_for_any_shell() {
        for otherwise in [Otherwise::Cached, Otherwise::Send] {
            for past_installed in [false, true] {
                let script = request(otherwise).script(past_installed);
                let script = script.to_str().expect("text");
                let inner = script.strip_prefix("sh -c '").and_then(|rest| rest.strip_suffix('\'')).expect("quoted");
                assert!(!inner.contains(['\'', '\\', '!', '\n']), "{inner}");
                assert_eq!(inner.contains("exec $a;"), !past_installed);
                assert_eq!(inner.contains("mktemp") || inner.contains("mkdir"), otherwise == Otherwise::Send);
            }
        }
    }

    #[test]
    fn the_hash_is_the_one_that_sha256sum_prints() {
        assert_eq!(hash(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_oldest_c_library_that_does() {
        let program = b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.99 in a sentence\0";
        assert_eq!(glibc_needed(program), Some((2, 34)));
        assert_eq!(glibc_needed(b"linked statically\0GLIBC_"), None);
    }

    #[test]
    fn hosts_that_it_fits() {
        let ours = Hello { system: "Linux".to_owned(), machine: "x86_64".to_owned(), ..Hello::ours() };
        let misfit = |host: &str, glibc| misfit(host, &ours, glibc);
        for version in ["2.34", "2.40", "3.0", "2.34.9000"] {
            let host = format!("Linux x86_64 glibc {version}");
            assert_eq!(misfit(&host, Some((2, 34))), None);
        }
        assert_eq!(misfit("Linux x86_64 ", None), None, "it brings its library with it");
        for (host, parts) in [
            ("Linux aarch64 glibc 2.40", ["Linux aarch64", "for Linux x86_64"]),
            ("FreeBSD amd64 ", ["FreeBSD amd64", "for Linux x86_64"]),
            ("Linux x86_64 glibc 2.28", ["glibc is 2.28", "needs 2.34 or later"]),
            ("Linux x86_64 ", ["no glibc", "needs 2.34"]),
            ("", ["for Linux", "install"]),
        ] {
            let said = misfit(host, Some((2, 34))).expect(host);
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }

    /// What is sent to a host that says this, and what comes of it.
    fn served(mut said: &[u8]) -> (usize, Result<Result<(), ChannelError>, Failure>) {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let taken = std::thread::spawn(move || read.read_to_end(&mut Vec::new()).expect("a pipe"));
        let stdin = File::from(std::os::fd::OwnedFd::from(write));
        let outcome = request(Otherwise::Send).serve(&mut said, stdin, &Mutex::new(Instant::now()), &mut None);
        (taken.join().expect("no panic"), outcome)
    }

    #[test]
    fn a_host_gets_what_it_asks_for() {
        let ours = Hello::ours();
        let want = format!("welcome{MARK}want {} {} \n", ours.system, ours.machine);
        let (sent, outcome) = served(b"rdma-pipe-bootstrap ask\nbye\n");
        let answer = format!("{} 200000 {} {}\n", hash(&[7; 200_000]), ours.system, ours.machine);
        assert!(sent == answer.len() && matches!(outcome, Ok(Err(ChannelError::Closed))), "{sent} {outcome:?}");
        let (sent, outcome) = served(&[want.as_bytes(), b"noise\n", MAGIC].concat());
        assert!(sent == 200_000 && matches!(outcome, Ok(Ok(()))), "{sent} {outcome:?}");
        let (sent, outcome) = served(&[b"no newline", MAGIC].concat());
        assert!(sent == 0 && matches!(outcome, Ok(Ok(()))), "{sent} {outcome:?}");
        let (sent, outcome) = served(b"rdma-pipe-bootstrap want Plan9 mips\n");
        assert!(sent == 0 && outcome.is_err_and(|failure| failure.message.is_some_and(|line| line.contains("Plan9"))));
        let (_, outcome) = served(b"bye\n");
        assert!(matches!(outcome, Ok(Err(ChannelError::Closed))), "{outcome:?}");
        let (_, outcome) = served(&vec![b'\n'; NOISE_BYTES_MAX + MAGIC.len() + 1]);
        assert!(matches!(outcome, Ok(Err(ChannelError::NoMagic))), "{outcome:?}");
    }

    #[test]
    fn what_a_host_says_is_bounded_and_escaped() {
        let said = [MARK.as_bytes(), b"no write \x1b[31m", &[b'x'; 5000], b"\n"].concat();
        let failure = served(&said).1.expect_err("a refusal");
        let line = failure.message.expect("a line");
        assert!(line.len() < 600 && !line.contains('\x1b') && line.contains("--agent"), "{line}");
    }
}
