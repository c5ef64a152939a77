//! Opens a redirection: a shell interprets it, then executes this program as a helper, which sends the descriptor back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use flume::{Receiver, bounded};
use rustix::fs::{Stat, fstat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::descriptors;
use super::guard::{LINGER_MAX, Running};
use crate::fs::identity;

/// The argument that asks this program to give a descriptor away.
pub const WORD: &str = "--give-descriptor";

/// What the shell calls itself in its messages.
pub const NAME: &str = "rdpipe";

/// What is said of a shell that has ended without a word.
pub const NO_FILE: &str = "the shell opened no file";

/// The word after the redirection. It proves that the text was only a redirection: after a `;` the helper would not get
/// it.
const LAST: &str = "end";

/// Maximum number of bytes read from the shell's standard error.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// The descriptor that a redirection opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Standard input: `<`.
    Input,
    /// Standard output: `>`, `>>`.
    Output,
}

/// A redirection that a shell is about to open.
pub struct Opening {
    /// This process's end of the socket through which the descriptor comes.
    socket: OwnedFd,
    complaints: std::io::PipeReader,
}

/// Whether two descriptors refer to the same file.
fn is_one(one: impl AsFd, other: impl AsFd) -> bool {
    let number = |file: rustix::io::Result<Stat>| file.as_ref().map(identity).ok();
    number(fstat(one)) == number(fstat(other))
}

/// How to run the shell.
pub struct Call {
    /// Words after the shell's `-c`.
    pub words: Vec<OsString>,
    /// The shell's standard descriptors.
    pub standard: [OwnedFd; 3],
}

impl Opening {
    /// Prepares a redirection: returns its opening, and how to run the shell for it.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn new(redirection: &[u8], side: Side) -> std::io::Result<(Self, Call)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let number = if side == Side::Input { "0" } else { "1" };
        // The program's path is not part of the text but passed as $1. If another program, or none, is at that path by
        // now, the shell executes the program of its parent, which is a guard and so this program.
        let own = super::own_program()?;
        let program = if own.as_os_str() == super::OWN { &b"exec /proc/$PPID/exe"[..] } else { b"exec \"$1\"" };
        // A trailing newline would keep the last word from the helper, too.
        let redirection = redirection.strip_suffix(b"\n").unwrap_or(redirection);
        let parts = [program, WORD.as_bytes(), number.as_bytes(), redirection, LAST.as_bytes()];
        let script = parts.join(&b' ');
        let words = vec![OsString::from_vec(script), NAME.into(), own.into()];
        let (complaints, stderr) = std::io::pipe()?;
        let standard = match side {
            Side::Input => [descriptors::null()?, theirs, stderr.into()],
            Side::Output => [theirs, descriptors::null()?, stderr.into()],
        };
        Ok((Self { socket: ours, complaints }, Call { words, standard }))
    }

    /// Waits for as long as opening takes; a FIFO waits for its other end.
    ///
    /// # Errors
    ///
    /// The last line that the shell has written about the failure.
    pub fn finish(self, running: &Running, redirection: &[u8]) -> Result<(File, PathBuf), String> {
        let stderr = self.complaints.try_clone().map_err(|error| error.to_string())?;
        let complaint = listen(self.complaints).map_err(|error| error.to_string());
        let received = descriptors::receive(&self.socket, &mut [0]).1.pop();
        let _ = running.wait();
        // The descriptor is the pipe for the shell's messages, whose reader is about to go.
        if received.as_ref().is_some_and(|descriptor| is_one(descriptor, &stderr)) {
            return Err("a redirection cannot write to standard error; use 'cat >&2'".to_owned());
        }
        let Some(descriptor) = received else {
            let complaint = complaint?.recv_timeout(LINGER_MAX).unwrap_or_default();
            let text = String::from_utf8_lossy(&complaint);
            let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
            return Err(line.unwrap_or(NO_FILE).to_owned());
        };
        let file = File::from(descriptor);
        let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        Ok((file, path.unwrap_or_else(|_| PathBuf::from(OsStr::from_bytes(redirection)))))
    }
}

/// Reads the shell's messages while it runs, because with a full pipe the shell would never end. Keeps their beginning.
fn listen(mut stderr: std::io::PipeReader) -> std::io::Result<Receiver<Vec<u8>>> {
    let (told, complaint) = bounded(1);
    std::thread::Builder::new().name("complaint".to_owned()).stack_size(64 << 10).spawn(move || {
        let mut beginning = Vec::new();
        let _ = stderr.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut beginning);
        let _ = told.send(beginning);
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    })?;
    Ok(complaint)
}

/// Gives away standard input through standard output, or the reverse. This is the main function of the helper process,
/// with the arguments after its first.
pub fn main(arguments: &[OsString]) -> bool {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let (given, socket) = match arguments {
        [number, last] if number == "0" && last == LAST => (stdin.as_fd(), stdout.as_fd()),
        [number, last] if number == "1" && last == LAST => (stdout.as_fd(), stdin.as_fd()),
        _ => {
            use std::io::Write;
            let _ = std::io::stderr().write_all(b"more than one file, or a command, after the operator\n");
            return false;
        }
    };
    descriptors::send(socket, b"d", &[given]).is_ok()
}
