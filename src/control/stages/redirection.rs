//! What a redirection opens: a shell reads it, and the descriptor comes back from a program of ours that the shell
//! becomes.

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
use super::guard::Running;
use crate::fs::identity;

/// The argument that asks a program to give a descriptor away.
pub const WORD: &str = "--give-descriptor";

/// The word behind the redirection, which tells that the text was one and nothing else: a `;` keeps it from the program.
const LAST: &str = "end";

/// Bytes of what the shell says that are read.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// Which descriptor a redirection opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Standard input: `<`.
    Input,
    /// Standard output: `>`, `>>`.
    Output,
}

/// A redirection that a shell is to open.
pub struct Opening {
    /// Our end of the socket that the descriptor comes through.
    socket: OwnedFd,
    complaints: std::io::PipeReader,
}

/// Whether two descriptors are of one file.
fn is_one(one: impl AsFd, other: impl AsFd) -> bool {
    let number = |file: rustix::io::Result<Stat>| file.as_ref().map(identity).ok();
    number(fstat(one)) == number(fstat(other))
}

/// What the shell is to be run with.
pub struct Call {
    /// Words behind its `-c`.
    pub words: Vec<OsString>,
    /// Its standard descriptors.
    pub standard: [OwnedFd; 3],
}

impl Opening {
    /// # Errors
    ///
    /// What the system answered.
    pub fn new(redirection: &[u8], side: Side) -> std::io::Result<(Self, Call)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let number = if side == Side::Input { "0" } else { "1" };
        // The program's path is no part of the text: it comes as $1. Where that is another program by now, or none, the shell's
        // parent is one of ours, a guard.
        let own = super::own_program()?;
        let program = if own.as_os_str() == super::OWN { &b"exec /proc/$PPID/exe"[..] } else { b"exec \"$1\"" };
        // A line that ends would keep the last word from the program, too.
        let redirection = redirection.strip_suffix(b"\n").unwrap_or(redirection);
        let parts = [program, WORD.as_bytes(), number.as_bytes(), redirection, LAST.as_bytes()];
        let script = parts.join(&b' ');
        let words = vec![OsString::from_vec(script), "rdpipe".into(), own.into()];
        let (complaints, stderr) = std::io::pipe()?;
        let standard = match side {
            Side::Input => [descriptors::null()?, theirs, stderr.into()],
            Side::Output => [theirs, descriptors::null()?, stderr.into()],
        };
        Ok((Self { socket: ours, complaints }, Call { words, standard }))
    }

    /// Waits as long as opening takes: a FIFO waits for its other end.
    ///
    /// # Errors
    ///
    /// What the shell said of it, its last line.
    pub fn finish(self, running: &Running, redirection: &[u8]) -> Result<(File, PathBuf), String> {
        let stderr = self.complaints.try_clone().map_err(|error| error.to_string())?;
        let complaint = listen(self.complaints).map_err(|error| error.to_string());
        let received = descriptors::receive(&self.socket, &mut [0]).1.pop();
        let _ = running.wait();
        // That is where the shell complains, and who reads it is about to go.
        if received.as_ref().is_some_and(|descriptor| is_one(descriptor, &stderr)) {
            return Err("a redirection has no standard error; 'cat >&2' has".to_owned());
        }
        let Some(descriptor) = received else {
            let complaint = complaint?.recv().unwrap_or_default();
            let text = String::from_utf8_lossy(&complaint);
            let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
            return Err(line.unwrap_or("the shell opened nothing").to_owned());
        };
        let file = File::from(descriptor);
        let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        Ok((file, path.unwrap_or_else(|_| PathBuf::from(OsStr::from_bytes(redirection)))))
    }
}

/// Reads what a shell says while it is at work: with a full pipe it would not come to its end. Gives the beginning.
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

/// Gives away one of standard input and output through the other. The program's own process, from its first argument
/// on.
pub fn main(arguments: &[OsString]) -> bool {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let (given, socket) = match arguments {
        [number, last] if number == "0" && last == LAST => (stdin.as_fd(), stdout.as_fd()),
        [number, last] if number == "1" && last == LAST => (stdout.as_fd(), stdin.as_fd()),
        _ => {
            use std::io::Write;
            let _ = std::io::stderr().write_all(b"more than one file, or a command, behind the operator\n");
            return false;
        }
    };
    descriptors::send(socket, b"d", &[given]).is_ok()
}
