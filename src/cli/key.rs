//! Obtains KEY, and hides it from other users.

#![allow(unsafe_code, reason = "KEY in argv is overwritten; --key-fd is taken")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rd_proto::handshake::Key;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, kill_current_process_group, set_dumpable_behavior, setrlimit,
};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::options::KeyOptions;
use crate::engine::link::rng;
use crate::fault::{Exit, Failure, escaped, os};
use crate::fs::standard;

/// Environment variable for KEY, used if KEY is `-` or missing.
const KEY_VARIABLE: &str = "RD_KEY";

/// The character ^C.
const INTERRUPT: u8 = 3;

/// The character ^Z.
const SUSPEND: u8 = 26;

/// Mode bit that allows all users to read. The bits of the group may be the mask of an ACL.
const OTHERS_READ: u32 = 0o004;

/// Maximum number of bytes in the first line of a key file.
const KEY_BYTES_MAX: usize = 4096;

/// Keeps secrets out of core dumps and out of the reach of other processes, and overwrites KEY among the arguments that
/// the system shows. Must be called before anything else, because the list of processes shows KEY until then.
pub fn conceal(key: Option<&OsString>) {
    conceal_memory();
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).ok();
    if let Some(key) = key
        && key != "-"
    {
        overwrite_argument(key.as_bytes());
    }
}

/// Hides this process's memory as [`conceal`] does, but keeps the limit on core dumps, which children inherit. A
/// program that this process starts is dumpable again.
pub fn conceal_memory() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Whether KEY, if given, is among the arguments.
pub(super) fn is_typed(given: &clap::ArgMatches) -> bool {
    !["key_file", "key_fd"].iter().any(|option| given.contains_id(option))
}

/// Overwrites the arguments equal to `secret` in the memory that `/proc/PID/cmdline` shows.
fn overwrite_argument(secret: &[u8]) {
    // The kernel tells where it put the arguments: fields 48 and 49 of /proc/self/stat (proc(5)). The second field, the
    // program's name, is in parentheses and may contain spaces.
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    let Some((_, fields)) = stat.rsplit_once(')') else { return };
    let field = |number: usize| fields.split_whitespace().nth(number - 3)?.parse::<usize>().ok();
    let (Some(start), Some(end)) = (field(48), field(49)) else { return };
    if start == 0 || end <= start || end - start > 4 << 20 {
        return;
    }
    // SAFETY: the kernel maps [start, end) writable for the life of the process and reports its bounds; the standard
    // library copies arguments out of it and keeps no reference to its bytes.
    let arguments = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, end - start) };
    for argument in arguments.split_mut(|&byte| byte == 0) {
        if argument == secret {
            argument.fill(b'*');
        }
    }
}

/// Returns the key that the positional KEY, the options or the environment give; `None` if none of them gives a key.
///
/// # Errors
///
/// Exit 1 for an empty key or one that cannot be read.
pub fn given(positional: Option<OsString>, options: &KeyOptions) -> Result<Option<Key>, Failure> {
    let usage = |message: String| Exit::Usage.with(message);
    let bytes = if let Some(path) = &options.key_file {
        let name = escaped(path.as_os_str());
        let line = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(first_line);
        line.map_err(|error| usage(format!("cannot read --key-file {name}: {}", os(error))))?
    } else if let Some(number) = options.key_fd {
        if !standard::is_given(number) {
            return Err(usage(format!("--key-fd {number} is not an open file descriptor")));
        }
        // SAFETY: the descriptor is open and was passed to this process, and nothing else in the process owns it.
        let fd = unsafe { ManuallyDrop::new(OwnedFd::from_raw_fd(number)) };
        let line = first_line(&*fd).map_err(|error| usage(format!("cannot read --key-fd {number}: {}", os(error))))?;
        // A standard stream stays open, because the data to be sent may follow the key.
        if number > 2 {
            drop(ManuallyDrop::into_inner(fd));
        }
        line
    } else {
        match positional {
            Some(key) if key != "-" => Zeroizing::new(key.into_vec()),
            _ => match std::env::var_os(KEY_VARIABLE) {
                Some(key) => Zeroizing::new(key.into_vec()),
                None => return Ok(None),
            },
        }
    };
    let empty = || usage("KEY is empty; give the same non-empty KEY at both ends".into());
    Key::new(bytes.to_vec()).ok_or_else(empty).map(Some)
}

/// Says so if other users of this host can read the file of `--key-file`. `command` is the command's name. Names of
/// descriptors, such as /dev/fd/3, are not looked at, because their files were opened by another program.
pub(super) fn warn_of_readers(command: &str, options: &KeyOptions, is_quiet: bool) {
    let own = |path: &&PathBuf| !is_quiet && !path.starts_with("/dev") && !path.starts_with("/proc");
    let Some(path) = options.key_file.as_ref().filter(own) else { return };
    if path.metadata().is_ok_and(|found| found.is_file() && found.mode() & OTHERS_READ != 0) {
        let name = escaped(path.as_os_str());
        let typed = shell_words::quote(&name);
        super::say(&format!("{command}: --key-file {name} can be read by others; type: chmod 600 {typed}"));
    }
}

/// Returns the given key. If none is given, makes one of 128 random bits, and also returns the text that the other end
/// needs.
///
/// # Errors
///
/// As [`given`].
pub fn given_or_made(positional: Option<OsString>, options: &KeyOptions) -> Result<(Key, Option<String>), Failure> {
    if let Some(key) = given(positional, options)? {
        return Ok((key, None));
    }
    let (key, text) = Key::generate(&mut rng());
    Ok((key, Some(text)))
}

/// Asks for KEY on the terminal, without showing what is typed. `is_argument` says whether the command also takes KEY
/// as an argument.
///
/// # Errors
///
/// Exit 1 if there is no terminal, or the key is empty.
pub fn ask(is_argument: bool) -> Result<Key, Failure> {
    let line = match is_argument {
        true => "KEY is missing; give it as an argument, or with RD_KEY, --key-file or --key-fd",
        false => "KEY is missing; give it with RD_KEY, --key-file or --key-fd",
    };
    let no_key = || Exit::Usage.with(line);
    let mut terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| no_key())?;
    let mut line = loop {
        let line = prompt(&mut terminal).map_err(|_| no_key())?;
        if !line.contains(&SUSPEND) {
            break line;
        }
        // Stops the whole pipeline, as the terminal would. If no process could continue it, the system ignores the
        // signal.
        let _ = kill_current_process_group(Signal::TSTP);
    };
    while let Some(b'\n' | b'\r') = line.last() {
        line.pop();
    }
    if line.contains(&INTERRUPT) {
        return Err(Failure::silent(Exit::Signal(libc::SIGINT as u8)));
    }
    Key::new(line.to_vec()).ok_or_else(no_key)
}

/// Reads a line from the terminal without echo. ^C and ^Z also end the line, and are its last character.
fn prompt(terminal: &mut File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let before = tcgetattr(&*terminal)?;
    let mut silent = before.clone();
    // Signals are turned off, because a signal would leave the terminal without echo.
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
    silent.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
    silent.special_codes[SpecialCodeIndex::VEOL2] = SUSPEND;
    // This comes before the prompt, because it discards what has been typed. Once the prompt is shown, the user may
    // type.
    let _ = tcsetattr(&*terminal, OptionalActions::Flush, &silent);
    let _ = terminal.write_all(b"KEY: ");
    // A terminal returns one line per read.
    let mut line = Zeroizing::new(vec![0; KEY_BYTES_MAX]);
    let length = terminal.read(&mut line);
    let _ = tcsetattr(&*terminal, OptionalActions::Flush, &before);
    let _ = terminal.write_all(b"\n");
    line.truncate(length?);
    Ok(line)
}

/// Reads up to the end of a line and not a byte further, because the bytes that follow may be for another reader.
fn first_line(file: impl AsFd) -> rustix::io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX));
    let mut byte = Zeroizing::new([0]);
    while retry_on_intr(|| read(&file, &mut byte[..]))? == 1 && byte[0] != b'\n' {
        if line.len() == KEY_BYTES_MAX {
            // If it were cut short, it would be a different key from the one intended.
            return Err(Errno::FBIG);
        }
        line.push(byte[0]);
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}
