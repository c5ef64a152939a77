//! Provides an agent on a host that has none installed: one from the host's cache, or the caller's own, which is sent
//! there.
//!
//! One command does everything in one connection, so that a password is asked for once. The command runs the installed
//! agent, and before that announces it in a line that begins with [`MARK`]. If there is none, the command asks the
//! caller for the hash of the right agent, with such a line, and runs the cached agent if its hash matches and it can
//! be loaded. Otherwise the command asks for the program itself, checks the program, keeps it in the cache, and runs
//! it. If a step fails, the command says so in such a line as well.
//!
//! # Who can change the program that is run
//!
//! Only the user that the launcher logs in as, and root on that host. The cache is a directory that belongs to that
//! user, has mode 0700 and is not a symbolic link. The shell enters the cache and checks `.` before it trusts any file
//! there. From then on the shell names each file by a single name relative to that directory. An attacker therefore
//! gains nothing by exchanging a parent directory, or by exchanging anything between a check and its use. A program
//! gets its final name only after its hash was found right, and the hash is checked again before each start.

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

/// Beginning of each line from the script, to tell these from lines that a login script may print.
const MARK: &str = "rdma-pipe-bootstrap ";

/// Number of bytes that are written to the launcher at a time. Each piece that is taken shows that the host is alive.
const PIECE_BYTES: usize = 64 << 10;

/// What the script asks or reports before the agent runs: each at most once, in this order. A host that repeats one
/// could otherwise have the agent sent to it, or a line printed, without end.
const STEPS: [&str; 3] = ["ask", "want", "sent"];

/// An upload that takes longer than this is announced.
const SLOW: Duration = Duration::from_secs(2);

/// Maximum number of characters shown of a reason that the host gives.
const REASON_CHARS_MAX: usize = 300;

/// Advice for the user if the agent cannot be copied to a host.
const CURE: &str = "install rdma-pipe there, or name an agent elsewhere with --agent";

/// The agent that is to run on other hosts.
#[derive(Clone, Debug)]
pub(crate) struct AgentChoice {
    /// Name of the command that needs the agent, for messages.
    pub(crate) command: &'static str,
    pub(crate) program: OsString,
    pub(crate) otherwise: Otherwise,
    /// Prints a remark, such as that the agent was copied to a host. `None` if nothing is to be printed.
    pub(crate) remark: Option<fn(&str)>,
}

/// What to do if a host does not have the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Fail,
    /// Run an agent that was sent earlier. Nothing is changed on the host.
    Cached,
    /// Run an agent that was sent earlier, or else send the caller's own.
    Send,
}

impl AgentChoice {
    /// Returns the failure for a host that has no agent. `because`: the reason, if any, as the end of a sentence.
    pub(super) fn missing(&self, label: &str, because: &str) -> Failure {
        let program = escaped(&self.program);
        let line = match self.otherwise {
            Otherwise::Fail if self.program == AGENT => {
                format!("{label} has no {program}; install rdma-pipe there, or name an agent with --agent")
            }
            Otherwise::Fail => {
                let advice = "name another with --agent; without --agent and --no-bootstrap, one is copied there";
                format!("{label} has no {program}; {advice}")
            }
            Otherwise::Cached => {
                format!(
                    "{label} has no {program}{because}; -n does not copy it there, but this does: rdsh {label} true"
                )
            }
            Otherwise::Send => format!("{label} has no {program}, and it cannot be copied there{because}; {CURE}"),
        };
        Exit::Connect.with(line)
    }
}

/// The caller's own agent: the program next to this one.
pub(super) struct Own {
    bytes: Vec<u8>,
    /// SHA-256 of the agent in hexadecimal digits. Every host has sha256sum, but not BLAKE3.
    hash: String,
}

/// Major and minor version of a C library.
type Version = (u32, u32);

impl Own {
    /// Begins to read the agent in the background, during the first login.
    pub(super) fn prepare() {
        static PREPARED: std::sync::Once = std::sync::Once::new();
        // If no thread can be started, the agent is read when a host asks for it.
        PREPARED.call_once(|| drop(std::thread::Builder::new().name("own agent".to_owned()).spawn(Self::read)));
    }

    /// Reads the agent, once for all hosts.
    ///
    /// # Errors
    ///
    /// Why the agent cannot be read, with its path.
    pub(super) fn read() -> Result<&'static Self, &'static str> {
        static OWN: OnceLock<Result<Own, String>> = OnceLock::new();
        let read = || {
            let path = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name(AGENT);
            let bytes = std::fs::read(&path).map_err(|error| {
                let errno = os(errno_of(&error));
                format!("cannot read {} here: {errno}", escaped(path.as_os_str()))
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

/// Returns the newest glibc version whose symbols a program needs. The names of these versions are among the program's
/// strings.
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

/// Parses the major and minor version from `2.36` or `2.2.5`.
fn version(text: &str) -> Option<Version> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// What comes from a host before its agent.
#[derive(Default)]
pub(super) struct Preface {
    /// The last line that another program has printed, such as a shell that refuses the login.
    pub(super) noise: Option<String>,
    /// Whether the script has found an installed agent, and runs it.
    pub(super) is_installed: bool,
    /// How long the host took to ask for the agent to be sent; 0 if it has not.
    pub(super) login: Duration,
}

/// The command that finds or installs an agent on a host, and the data that this command may ask for.
pub(super) struct Request {
    /// Reads the agent when the host asks for it, and not before, because computing its hash takes some milliseconds.
    own: fn() -> Result<&'static Own, &'static str>,
    choice: AgentChoice,
    label: String,
}

impl Request {
    pub(super) fn new(choice: &AgentChoice, host: &OsStr) -> Self {
        Self { own: Own::read, choice: choice.clone(), label: escaped(host) }
    }

    /// Returns the command, which is the same for all hosts and programs. `past_installed`: whether the installed agent
    /// must not be used.
    ///
    /// Any login shell passes the script to `sh` unchanged, because the script is one line without the characters that
    /// some shell treats as special within single quotes: `'`, `\` (fish), `!` (csh).
    pub(super) fn script(&self, past_installed: bool) -> OsString {
        // By this line the exit code of an agent that cannot be loaded differs from that of a login shell that fails.
        let installed = match past_installed {
            true => String::new(),
            false => format!("command -v $a >/dev/null 2>&1 && {{ echo \"{MARK}found\"; exec $a; }}; "),
        };
        // $h, $n, $k: the program's hash, its length, and the kind of system that the program is for, because systems
        // of several kinds, or with different C libraries, may share a home directory. If the cache has the right
        // agent, this part ends the script by `exec`. `mkdir -m` sets the mode also where a default ACL overrides the
        // umask.
        let cached = format!(
            "a={AGENT}; t=; \
             no() {{ trap \"\" HUP INT TERM PIPE; [ \"$t\" ] && rm -f $t; echo \"{MARK}no $*\" 2>/dev/null; exit 127; }}; \
             is_right() {{ s=$(sha256sum <$1 2>/dev/null); [ \"${{s%% *}}\" = $h ]; }}; \
             runs() {{ [ -f $f ] && [ -x $f ] && [ \"$(uname -sm)\" = \"$k\" ] && is_right $f && \
             ./$f --version >/dev/null 2>&1 </dev/null; }}; \
             [ -t 0 ] && no terminal; \
             {installed}\
             echo \"{MARK}ask\"; read -r h n k || exit 127; f=$a-$h; \
             case \"$XDG_CACHE_HOME\" in /*) d=$XDG_CACHE_HOME;; *) d=${{HOME:+$HOME/.cache}};; esac; \
             [ \"$d\" ] || no home; d=$d/rdma-pipe; \
             [ -L \"$d\" ] && no link \"$d\"; \
             [ -d \"$d\" ] || {}; \
             cd \"$d\" 2>/dev/null || no enter \"$d\"; \
             set -- $(ls -ldn .); case \"$1 $3\" in drwx--[-S]---*\" $(id -u)\") ;; *) no open \"$d\";; esac; \
             [ -L $f ] || {{ runs && exec ./$f; }}; ",
            match self.choice.otherwise {
                Otherwise::Send => "{ e=$( (umask 077; mkdir -p -m 700 \"$d\") 2>&1) || no write \"$e\"; }",
                Otherwise::Cached | Otherwise::Fail => "no none",
            }
        );
        if self.choice.otherwise != Otherwise::Send {
            return format!("sh -c '{cached}no none'").into();
        }
        // Before the upload, an empty script is run to find out whether programs can be run in the cache. If an upload
        // is cut off and no shell is left to remove its file, a later upload removes it, after 26 hours: clocks of
        // hosts that share the home may differ by any time zone. The first of several uploads at once wins: another
        // host that shares the home may have started its program, and over NFS would lose that program with the name.
        // Where there are no hard links, the last one wins. Agents of other releases are removed only if they have not
        // been used for two days, because another caller may be about to start one in use.
        let sent = format!(
            "command -v sha256sum >/dev/null 2>&1 || no sum; \
             find . -name \".new.*\" -mmin +1560 -exec rm -f {{}} + 2>/dev/null; \
             t=$(mktemp ./.new.XXXXXX 2>&1) || {{ e=$t; t=; no write \"$e\"; }}; \
             trap \"no cut\" HUP INT TERM PIPE; \
             e=$( (echo : | cat >$t) 2>&1 && chmod 700 $t 2>&1) || no write \"${{e##*: }}\"; \
             $t 2>/dev/null </dev/null || {{ m=$(df -P . 2>/dev/null | tail -n 1); m=/${{m##* /}}; \
             grep -q \" $m [^ ]* [^ ]*noexec\" /proc/mounts && no noexec \"$m\"; no exec \"$d\"; }}; \
             echo \"{MARK}want $(uname -s) $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)\"; \
             e=$( (head -c $n >$t) 2>&1) || {{ e=${{e##*: }}; \
             no write \"$d: ${{e:-cut off, perhaps by a file size limit (ulimit -f)}}\"; }}; \
             is_right $t || no cut; \
             e=$($t --version 2>&1 >/dev/null </dev/null) || no run \"$e\"; \
             [ -L $f ] && rm -f $f; [ -d $f ] && rm -rf ./$f; \
             ln $t $f 2>/dev/null || runs || e=$(mv -f $t $f 2>&1) || no write \"$e\"; \
             rm -f $t; t=; trap - HUP INT TERM PIPE; \
             find . -name \"$a-*\" -amin +2880 -exec rm -rf {{}} + 2>/dev/null; \
             echo \"{MARK}sent\"; exec ./$f"
        );
        format!("sh -c '{cached}{sent}'").into()
    }

    /// Answers the host's requests until the agent begins to speak. `heard` is when the host last took or sent data.
    /// `preface` is set to what has come before the agent.
    ///
    /// # Errors
    ///
    /// Why the host has no agent. The inner error: the launcher has ended, or the program that answers is not an agent.
    pub(super) fn serve(
        &self,
        stdout: &mut impl BufRead,
        mut stdin: File,
        heard: &Mutex<Instant>,
        preface: &mut Preface,
    ) -> Result<Result<(), ChannelError>, Failure> {
        let mut lines = stdout.take((NOISE_BYTES_MAX + MAGIC.len()) as u64);
        let mut steps = STEPS.iter();
        let began = Instant::now();
        loop {
            let mut line = Vec::new();
            // The magic ends with a line feed, so it is at the end of a line.
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
                preface.noise = Some(line.trim().chars().take(REASON_CHARS_MAX).collect());
            }
            if let Some(end) = end {
                return Ok(Err(end));
            }
            let Some((_, answer)) = answer else { continue };
            let (what, about) = answer.split_once(' ').unwrap_or((answer, ""));
            if STEPS.contains(&what) && steps.next() != Some(&what) {
                let line = format!("the program on {} is not an rdma-pipe agent: an unexpected request", self.label);
                return Err(Exit::Connect.with(line));
            }
            match what {
                "ask" => {
                    let own = self.own()?;
                    let Hello { system, machine, .. } = Hello::ours();
                    // If the host is gone, the next read fails.
                    let _ =
                        stdin.write_all(format!("{} {} {system} {machine}\n", own.hash, own.bytes.len()).as_bytes());
                }
                "want" => {
                    preface.login = began.elapsed();
                    self.send(about, &mut stdin, heard)?;
                }
                "sent" => {
                    *crate::locked(heard) = Instant::now();
                    self.remark("copied", "")?;
                }
                "found" => preface.is_installed = true,
                "no" => return Err(self.refused(about)),
                _ => {}
            }
        }
    }

    fn own(&self) -> Result<&'static Own, Failure> {
        (self.own)().map_err(|reason| self.choice.missing(&self.label, &format!(": {reason}")))
    }

    /// Prints a line about the upload. `done` is the verb, and `added` is the end of the line.
    fn remark(&self, done: &str, added: &str) -> Result<(), Failure> {
        let Some(remark) = self.choice.remark else { return Ok(()) };
        let (command, size) = (self.choice.command, megabytes(self.own()?.bytes.len()));
        remark(&format!("{command}: {done} {AGENT} ({size}) to {}{added}", self.label));
        Ok(())
    }

    /// Sends the program, if it can run on the host. The host's next line tells whether the program has arrived.
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
            *crate::locked(heard) = Instant::now();
        }
        Ok(())
    }

    /// Returns the failure for a reason that the host gives.
    fn refused(&self, answer: &str) -> Failure {
        let (code, about) = answer.split_once(' ').unwrap_or((answer, ""));
        let about: String = about.chars().take(REASON_CHARS_MAX).collect();
        let about = escaped(OsStr::new(&about));
        self.failed(&match code {
            "none" => return self.choice.missing(&self.label, ""),
            // It would change what passes, and the agent's bytes would act as keys.
            "terminal" => {
                let line = format!("an agent on {} would have a terminal as its input", self.label);
                return Exit::Connect.with(format!("{line}; see RequestTTY in ssh's configuration"));
            }
            "home" => format!("HOME is not set there; {CURE}"),
            "link" => format!("{about} is a symbolic link; remove it and try again"),
            "enter" => format!("cannot enter {about}; {CURE}"),
            "open" => {
                format!(
                    "{about} must be owned by the login user and have mode 0700; remove it and try again, or {CURE}"
                )
            }
            "sum" => format!("sha256sum (coreutils) is missing there; {CURE}"),
            "noexec" => format!("{about} is mounted noexec; {CURE}"),
            "exec" => format!("cannot run programs in {about}; {CURE}"),
            "cut" => "it arrived incomplete; try again".to_owned(),
            "run" => format!("it does not run there ({about}); {CURE}"),
            _ => format!("{about}; {CURE}"),
        })
    }

    fn failed(&self, reason: &str) -> Failure {
        Exit::Connect.with(format!("cannot copy {AGENT} to {}: {reason}", self.label))
    }
}

/// Returns why a program for this host's kind of system would not run on another host, described by `host` as `SYSTEM
/// MACHINE LIBRARY VERSION`. `None` if the program would run.
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
    // A statically linked program needs no glibc.
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

/// Formats a size as `5 MB`.
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

    /// Serves a host that sends `said`. Returns the number of bytes sent to the host, and the outcome.
    fn served(mut said: &[u8]) -> (usize, Result<Result<(), ChannelError>, Failure>) {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let taken = std::thread::spawn(move || read.read_to_end(&mut Vec::new()).expect("a pipe"));
        let stdin = File::from(std::os::fd::OwnedFd::from(write));
        let (heard, mut preface) = (Mutex::new(Instant::now()), Preface::default());
        let outcome = request(Otherwise::Send).serve(&mut said, stdin, &heard, &mut preface);
        (taken.join().expect("no panic"), outcome)
    }

    #[test]
    fn a_host_gets_what_it_asks_for() {
        let ours = Hello::ours();
        let ask = format!("{MARK}ask\n");
        let want = format!("welcome{MARK}want {} {} \n", ours.system, ours.machine);
        let (sent, outcome) = served(b"rdma-pipe-bootstrap ask\nbye\n");
        let answer = format!("{} 200000 {} {}\n", hash(&[7; 200_000]), ours.system, ours.machine);
        assert!(sent == answer.len() && matches!(outcome, Ok(Err(ChannelError::Closed))), "{sent} {outcome:?}");
        let (sent, outcome) = served(&[ask.as_bytes(), want.as_bytes(), b"noise\n", MAGIC].concat());
        assert!(sent == answer.len() + 200_000 && matches!(outcome, Ok(Ok(()))), "{sent} {outcome:?}");
        let (sent, outcome) = served(&[b"no newline", MAGIC].concat());
        assert!(sent == 0 && matches!(outcome, Ok(Ok(()))), "{sent} {outcome:?}");
        let (sent, outcome) = served(b"rdma-pipe-bootstrap ask\nrdma-pipe-bootstrap want Plan9 mips\n");
        assert_eq!(sent, answer.len());
        assert!(outcome.is_err_and(|failure| failure.message.is_some_and(|line| line.contains("Plan9"))));
        let (_, outcome) = served(b"bye\n");
        assert!(matches!(outcome, Ok(Err(ChannelError::Closed))), "{outcome:?}");
        let (_, outcome) = served(&vec![b'\n'; NOISE_BYTES_MAX + MAGIC.len() + 1]);
        assert!(matches!(outcome, Ok(Err(ChannelError::NoMagic))), "{outcome:?}");
    }

    #[test]
    fn a_host_asks_for_each_thing_once_and_in_order() {
        let ours = Hello::ours();
        let (ask, sent) = (format!("{MARK}ask\n"), format!("{MARK}sent\n"));
        let want = format!("{MARK}want {} {} \n", ours.system, ours.machine);
        let answer = format!("{} 200000 {} {}\n", hash(&[7; 200_000]), ours.system, ours.machine).len();
        let all = answer + 200_000;
        for (said, taken) in [
            (&[&ask, &ask][..], answer),
            (&[&want], 0),
            (&[&sent], 0),
            (&[&ask, &sent], answer),
            (&[&ask, &want, &want], all),
            (&[&ask, &want, &ask], all),
            (&[&ask, &want, &sent, &sent], all),
            (&[&ask, &want, &sent, &want], all),
        ] {
            let said: String = said.iter().copied().map(String::as_str).collect();
            let (bytes, outcome) = served(&[said.as_bytes(), MAGIC].concat());
            let failure = outcome.expect_err("an unexpected request");
            assert_eq!((bytes, failure.exit), (taken, Exit::Connect), "{said}: {failure:?}");
        }
        let (bytes, outcome) = served(&[ask.as_bytes(), want.as_bytes(), sent.as_bytes(), MAGIC].concat());
        assert!(bytes == all && matches!(outcome, Ok(Ok(()))), "{bytes} {outcome:?}");
    }

    #[test]
    fn a_host_with_a_terminal_is_sent_nothing() {
        let (sent, outcome) = served(&[MARK.as_bytes(), b"no terminal\r\n"].concat());
        let line = outcome.expect_err("a refusal").message.expect("a line");
        assert!(sent == 0 && line.contains("a terminal as its input; see RequestTTY"), "{line}");
    }

    #[test]
    fn what_a_host_says_is_bounded_and_escaped() {
        let said = [MARK.as_bytes(), b"no write \x1b[31m", &[b'x'; 5000], b"\n"].concat();
        let failure = served(&said).1.expect_err("a refusal");
        let line = failure.message.expect("a line");
        assert!(line.len() < 600 && !line.contains('\x1b') && line.contains("--agent"), "{line}");
    }
}
