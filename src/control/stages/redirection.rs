//! What a redirection opens: a shell reads it, and the descriptor comes back from a program of ours that the shell
//! becomes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use flume::{Receiver, bounded};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The word by which a program is told to give a descriptor away.
pub const WORD: &str = "--give-descriptor";

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

/// Has a shell (up to and with `-c`) open what `redirection` names. Waits as long as that takes: a FIFO waits for its
/// other end.
///
/// # Errors
///
/// What the shell said of it, its last line.
pub fn open(mut shell: Command, program: &Path, redirection: &[u8], side: Side) -> Result<(File, PathBuf), String> {
    let system = |error: rustix::io::Errno| error.to_string();
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(system)?;
    let number = if side == Side::Input { "0" } else { "1" };
    // The program's path is no part of the text: it comes as $1.
    let script = [b"exec \"$1\" ", WORD.as_bytes(), b" ", number.as_bytes(), b" ", redirection].concat();
    let name = shell.get_program().to_owned();
    shell.arg(OsString::from_vec(script)).arg(name).arg(program).stderr(Stdio::piped());
    match side {
        Side::Input => shell.stdin(Stdio::null()).stdout(theirs),
        Side::Output => shell.stdin(theirs).stdout(Stdio::null()),
    };
    let mut child = shell.spawn().map_err(|error| format!("cannot run {}: {error}", shell.get_program().display()))?;
    // Its own end of the socket must not stay open here.
    drop(shell);
    let complaint = child.stderr.take().map(listen).transpose().map_err(|error| error.to_string());
    let received = receive(&ours);
    let _ = child.wait();
    let Some(descriptor) = received else {
        let complaint = complaint?.and_then(|complaint| complaint.recv().ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&complaint);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        return Err(line.unwrap_or("the shell opened nothing").to_owned());
    };
    let file = File::from(descriptor);
    let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    Ok((file, path.unwrap_or_else(|_| PathBuf::from(OsStr::from_bytes(redirection)))))
}

/// Reads what a shell says while it is at work: with a full pipe it would not come to its end. Gives the beginning.
fn listen(mut stderr: ChildStderr) -> std::io::Result<Receiver<Vec<u8>>> {
    let (told, complaint) = bounded(1);
    std::thread::Builder::new().name("complaint".to_owned()).stack_size(64 << 10).spawn(move || {
        let mut beginning = Vec::new();
        let _ = stderr.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut beginning);
        let _ = told.send(beginning);
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    })?;
    Ok(complaint)
}

/// Takes a descriptor from the other end of a socket; `None` when that is closed without.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Gives away one of standard input and output through the other. The program's own process, from its first argument
/// on.
pub fn main(arguments: &[OsString]) -> bool {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let (given, socket) = match arguments {
        [number] if number == "0" => (stdin.as_fd(), stdout.as_fd()),
        [number] if number == "1" => (stdout.as_fd(), stdin.as_fd()),
        _ => {
            use std::io::Write;
            let _ = std::io::stderr().write_all(b"more than one file behind the operator\n");
            return false;
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given = [given];
    control.push(SendAncillaryMessage::ScmRights(&given))
        && sendmsg(socket, &[IoSlice::new(b"d")], &mut control, SendFlags::NOSIGNAL).is_ok()
}
