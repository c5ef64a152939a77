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
use std::io::{BufRead, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::control::channel::ChannelError;
use crate::control::frames::{Hello, MAGIC, NOISE_BYTES_MAX};
use crate::control::launch::AGENT;
use crate::fault::{Exit, Failure, errno_of, escaped, os};

/// Beginning of each line from the script, to tell these from lines that a login script may print.
const MARK: &str = "rdma-pipe-bootstrap ";

/// Number of bytes of the agent that are hashed at a time, and written to the launcher at a time. Each piece that is
/// taken shows that the host is alive.
const PIECE_BYTES: usize = 64 << 10;

/// What the script asks or reports before the agent runs: each at most once, in this order. A host that repeats one
/// could otherwise have the agent sent to it, or a line printed, without end.
const STEPS: [&str; 3] = ["ask", "want", "sent"];

/// An upload that takes longer than this is announced.
const SLOW: Duration = Duration::from_secs(2);

/// How long a host may take for what the launcher still holds of the agent, before its silence counts.
const REST_MAX: Duration = Duration::from_secs(600);

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
    path: PathBuf,
    file: File,
    bytes: usize,
    /// SHA-256 of the agent in hexadecimal digits. Every host has sha256sum, but not BLAKE3.
    hash: String,
    /// The agent itself, once a host is sent it. Most have it.
    program: OnceLock<Result<Vec<u8>, String>>,
}

/// Major and minor version of a C library.
type Version = (u32, u32);

impl Own {
    /// Begins to compute the agent's hash in the background, during the first login.
    pub(super) fn prepare() {
        static PREPARED: std::sync::Once = std::sync::Once::new();
        // If no thread can be started, the hash is computed when a host asks for it.
        PREPARED.call_once(|| drop(std::thread::Builder::new().name("own agent".to_owned()).spawn(Self::find)));
    }

    /// Opens the agent and computes its hash, once for all hosts.
    ///
    /// # Errors
    ///
    /// Why the agent cannot be read, with its path.
    pub(super) fn find() -> Result<&'static Self, &'static str> {
        static OWN: OnceLock<Result<Own, String>> = OnceLock::new();
        let find = || {
            let path = std::env::current_exe().map_err(|error| error.to_string())?;
            Self::at(path.with_file_name(AGENT))
        };
        OWN.get_or_init(find).as_ref().map_err(String::as_str)
    }

    fn at(path: PathBuf) -> Result<Self, String> {
        let found = File::open(&path).and_then(|file| Ok((hash(&file)?, file)));
        let ((bytes, hash), file) = found.map_err(|error| unreadable(&path, &error))?;
        Ok(Self { path, file, bytes, hash, program: OnceLock::new() })
    }

    /// Reads the agent, once for all hosts that are sent it. If it has been written to since its hash was computed, the
    /// hosts notice.
    ///
    /// # Errors
    ///
    /// Why the agent cannot be read, with its path.
    fn program(&self) -> Result<&[u8], &str> {
        let read = || {
            let mut program = vec![0; self.bytes];
            let read = self.file.read_exact_at(&mut program, 0);
            read.map(|()| program).map_err(|error| unreadable(&self.path, &error))
        };
        self.program.get_or_init(read).as_deref().map_err(String::as_str)
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {} here: {}", escaped(path.as_os_str()), os(errno_of(error)))
}

/// Returns the size and the hash of a program.
fn hash(mut program: impl Read) -> std::io::Result<(usize, String)> {
    let (mut bytes, mut hash, mut piece) = (0, Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match program.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => {
                bytes += count;
                hash.update(&piece[..count]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let digits = hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok((bytes, digits))
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
    /// Finds the agent when the host asks for it, and not before, because computing its hash takes some milliseconds.
    own: fn() -> Result<&'static Own, &'static str>,
    choice: AgentChoice,
    label: String,
}

impl Request {
    pub(super) fn new(choice: &AgentChoice, host: &OsStr) -> Self {
        Self { own: Own::find, choice: choice.clone(), label: escaped(host) }
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
            false => format!("command -v $_rd_a >/dev/null 2>&1 && {{ echo \"{MARK}found\"; exec $_rd_a; }}; "),
        };
        // The variables have names that no login exports: an exported one would pass what is assigned here on to the
        // agent and its commands. $_rd_h, $_rd_n, $_rd_k: the program's hash, its length, and the kind of system that
        // the program is for, because systems of several kinds, or with different C libraries, may share a home
        // directory. If the cache has the right agent, this part ends the script by `exec`. `mkdir -m` sets the mode
        // also where a default ACL overrides the umask.
        let cached = format!(
            "_rd_a={AGENT}; _rd_t=; \
             no() {{ trap \"\" HUP INT TERM PIPE; [ \"$_rd_t\" ] && rm -f $_rd_t; \
             echo \"{MARK}no $*\" 2>/dev/null; exit 127; }}; \
             is_right() {{ _rd_s=$(sha256sum <$1 2>/dev/null); [ \"${{_rd_s%% *}}\" = $_rd_h ]; }}; \
             runs() {{ [ -f $_rd_f ] && [ -x $_rd_f ] && [ \"$(uname -sm)\" = \"$_rd_k\" ] && is_right $_rd_f && \
             ./$_rd_f --version >/dev/null 2>&1 </dev/null; }}; \
             [ -t 0 ] && no terminal; \
             {installed}\
             echo \"{MARK}ask\"; read -r _rd_h _rd_n _rd_k || exit 127; _rd_f=$_rd_a-$_rd_h; \
             case \"$XDG_CACHE_HOME\" in /*) _rd_d=$XDG_CACHE_HOME;; *) _rd_d=${{HOME:+$HOME/.cache}};; esac; \
             [ \"$_rd_d\" ] || no home; _rd_d=$_rd_d/rdma-pipe; \
             [ -L \"$_rd_d\" ] && no link \"$_rd_d\"; \
             [ -d \"$_rd_d\" ] || {}; \
             cd \"$_rd_d\" 2>/dev/null || no enter \"$_rd_d\"; \
             set -- $(ls -ldn .); case \"$1 $3\" in drwx--[-S]---*\" $(id -u)\") ;; *) no open \"$_rd_d\";; esac; \
             [ -L $_rd_f ] || {{ runs && exec ./$_rd_f; }}; ",
            match self.choice.otherwise {
                Otherwise::Send => "{ _rd_e=$( (umask 077; mkdir -p -m 700 \"$_rd_d\") 2>&1) || no write \"$_rd_e\"; }",
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
             _rd_t=$(mktemp ./.new.XXXXXX 2>&1) || {{ _rd_e=$_rd_t; _rd_t=; no write \"$_rd_e\"; }}; \
             trap \"no cut\" HUP INT TERM PIPE; \
             _rd_e=$( (echo : | cat >$_rd_t) 2>&1 && chmod 700 $_rd_t 2>&1) || no write \"${{_rd_e##*: }}\"; \
             $_rd_t 2>/dev/null </dev/null || {{ _rd_m=$(df -P . 2>/dev/null | tail -n 1); _rd_m=/${{_rd_m##* /}}; \
             grep -q \" $_rd_m [^ ]* [^ ]*noexec\" /proc/mounts && no noexec \"$_rd_m\"; no exec \"$_rd_d\"; }}; \
             echo \"{MARK}want $(uname -s) $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)\"; \
             _rd_e=$( (head -c $_rd_n >$_rd_t) 2>&1) || {{ _rd_e=${{_rd_e##*: }}; \
             no write \"$_rd_d: ${{_rd_e:-cut off, perhaps by a file size limit (ulimit -f)}}\"; }}; \
             is_right $_rd_t || no cut; \
             _rd_e=$($_rd_t --version 2>&1 >/dev/null </dev/null) || no run \"$_rd_e\"; \
             [ -L $_rd_f ] && rm -f $_rd_f; [ -d $_rd_f ] && rm -rf ./$_rd_f; \
             ln $_rd_t $_rd_f 2>/dev/null || runs || _rd_e=$(mv -f $_rd_t $_rd_f 2>&1) || no write \"$_rd_e\"; \
             rm -f $_rd_t; _rd_t=; trap - HUP INT TERM PIPE; \
             find . -name \"$_rd_a-*\" -amin +2880 -exec rm -rf {{}} + 2>/dev/null; \
             echo \"{MARK}sent\"; exec ./$_rd_f"
        );
        format!("sh -c '{cached}{sent}'").into()
    }

    /// Answers the host's requests until the agent begins to speak. `heard` is set to when the host has last taken or
    /// sent data, or will have taken what was sent. `preface` is set to what has come before the agent.
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
                    let _ = stdin.write_all(format!("{} {} {system} {machine}\n", own.hash, own.bytes).as_bytes());
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
        (self.own)().map_err(|reason| self.unreadable(reason))
    }

    fn unreadable(&self, reason: &str) -> Failure {
        self.choice.missing(&self.label, &format!(": {reason}"))
    }

    /// Prints a line about the upload. `done` is the verb, and `added` is the end of the line.
    fn remark(&self, done: &str, added: &str) -> Result<(), Failure> {
        let Some(remark) = self.choice.remark else { return Ok(()) };
        let (command, size) = (self.choice.command, megabytes(self.own()?.bytes));
        remark(&format!("{command}: {done} {AGENT} ({size}) to {}{added}", self.label));
        Ok(())
    }

    /// Sends the program, if it can run on the host. The host's next line tells whether the program has arrived.
    fn send(&self, host: &str, stdin: &mut File, heard: &Mutex<Instant>) -> Result<(), Failure> {
        let program = self.own()?.program().map_err(|reason| self.unreadable(reason))?;
        if let Some(reason) = misfit(host, &Hello::ours(), glibc_needed(program)) {
            return Err(self.failed(&reason));
        }
        let (began, mut is_slow) = (Instant::now(), false);
        for piece in program.chunks(PIECE_BYTES) {
            if stdin.write_all(piece).is_err() {
                return Ok(());
            }
            if !is_slow && began.elapsed() >= SLOW {
                is_slow = true;
                self.remark("copying", ", once")?;
            }
            *crate::locked(heard) = Instant::now();
        }
        *crate::locked(heard) = rest_taken(began, Instant::now());
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

/// Returns when a host will have taken the whole agent, of which the launcher has taken the last piece `now`. ssh holds
/// up to 2 MiB (its window), a third of the agent: that takes no longer than what came before.
fn rest_taken(began: Instant, now: Instant) -> Instant {
    // Time for which this process was stopped is in it, too.
    now + now.duration_since(began).min(REST_MAX)
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

    fn own_in(directory: &Path) -> Own {
        let path = directory.join(AGENT);
        std::fs::write(&path, [7; 200_000]).expect("room");
        Own::at(path).expect("a program")
    }

    fn request(otherwise: Otherwise) -> Request {
        let own = || {
            static OWN: OnceLock<Own> = OnceLock::new();
            Ok(OWN.get_or_init(|| own_in(tempfile::tempdir().expect("a directory").path())))
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
                assert_eq!(inner.contains("exec $_rd_a;"), !past_installed);
                assert_eq!(inner.contains("mktemp") || inner.contains("mkdir"), otherwise == Otherwise::Send);
            }
        }
    }

    #[test]
    fn the_hash_is_the_one_that_sha256sum_prints() {
        for (program, expected) in [
            (&b"abc"[..], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (&[b'a'; 1_000_000], "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ] {
            assert_eq!(hash(program).expect("bytes"), (program.len(), expected.to_owned()));
        }
    }

    #[test]
    fn the_agent_is_read_when_it_is_sent_and_from_the_file_that_was_hashed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(AGENT);
        let own = own_in(directory.path());
        assert!(own.program.get().is_none());
        // Another one is installed in its place.
        std::fs::remove_file(&path).expect("there");
        std::fs::write(&path, b"another").expect("room");
        assert!(own.program() == Ok(&[7; 200_000][..]));
        // A host that was told the length would wait for the rest of one that has been cut.
        let cut = own_in(directory.path());
        File::options().write(true).open(&path).and_then(|file| file.set_len(1000)).expect("ours");
        let reason = cut.program().expect_err("too short");
        assert!(reason.starts_with("cannot read ") && reason.contains(AGENT), "{reason}");
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

    /// Returns what the script for a host contains about the agent.
    fn answer(ours: &Hello) -> String {
        let (bytes, hash) = hash([7_u8; 200_000].as_slice()).expect("bytes");
        format!("{hash} {bytes} {} {}\n", ours.system, ours.machine)
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
        let answer = answer(&ours);
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
    fn a_host_that_still_takes_what_ssh_holds_is_not_silent_yet() {
        let began = Instant::now();
        for (sent, rest) in [(0, 0), (100, 100), (600, 600), (8 * 3600, 600)] {
            let [sent, rest] = [sent, rest].map(Duration::from_secs);
            assert_eq!(rest_taken(began, began + sent), began + sent + rest, "{sent:?}");
        }
    }

    #[test]
    fn a_host_asks_for_each_thing_once_and_in_order() {
        let ours = Hello::ours();
        let (ask, sent) = (format!("{MARK}ask\n"), format!("{MARK}sent\n"));
        let want = format!("{MARK}want {} {} \n", ours.system, ours.machine);
        let answer = answer(&ours).len();
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
