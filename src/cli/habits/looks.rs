//! What a word is by its looks, or by the file that has its name.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use super::letters::{Behind, LETTERS};
use super::uri::is_there;
use crate::options::parse_bytes;

impl Behind {
    /// Whether a word is the value of scp's letter. `attached` says whether it is in the same word as the letter, where
    /// more letters of rsync may follow.
    pub(super) fn is_meant(self, word: &OsStr, attached: bool, exists: &impl Fn(&OsStr) -> bool) -> bool {
        let text = word.to_string_lossy();
        match self {
            Self::Cipher => {
                let kinds = ["-ctr", "-cbc", "-gcm@openssh.com", "-poly1305@openssh.com"];
                text.split(',').all(|cipher| kinds.iter().any(|kind| cipher.ends_with(kind))) && !exists(word)
            }
            // The name has a slash, so it is unlikely to be a file that is to be copied.
            Self::Program => !attached && is_program(word),
            Self::Sftp => text.starts_with("nrequests=") || text.starts_with("buffer="),
        }
    }
}

/// How a private key begins, and how much of a file is searched for that.
const KEY_BEGIN: [u8; 11] = *b"-----BEGIN ";
const KEY_SEARCHED_BYTES: u64 = 4096;

/// Whether a word is the path of a key for ssh.
pub(super) fn is_key(word: &OsStr) -> bool {
    let mut public = word.to_owned();
    public.push(".pub");
    let begins = |path: &OsStr| {
        let mut start = [0; KEY_BEGIN.len()];
        std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == KEY_BEGIN
    };
    std::path::Path::new(&public).exists() || begins(word)
}

/// Whether a word is a file or directory that ssh cannot take as a key, or a path on another host. ssh takes a public
/// key, because its agent may have the other half, a key with text before it, and `pkcs11:` with the name of a token.
pub fn is_no_key(word: &OsStr) -> bool {
    let Ok(found) = std::fs::metadata(word) else {
        return is_there(word) && !word.as_bytes().starts_with(b"pkcs11:");
    };
    if !found.is_file() || is_key(word) {
        return found.is_dir();
    }
    let mut text = Vec::new();
    let read = std::fs::File::open(word).and_then(|file| file.take(KEY_SEARCHED_BYTES).read_to_end(&mut text));
    let is_public = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| text.starts_with(kind.as_bytes()));
    read.is_ok() && !is_public && !text.windows(KEY_BEGIN.len()).any(|part| part == KEY_BEGIN)
}

/// Whether ssh can take a word as its configuration. A directory is a source, and letters are rsync's `-FF`.
pub(super) fn is_configuration(word: &OsStr) -> bool {
    word == "none" || std::fs::metadata(word).is_ok_and(|found| !found.is_dir())
}

/// Whether a word can name jump hosts for ssh: `[USER@]HOST[:PORT]`, with commas between them. `attached`: in the same
/// word as the letter, where more letters of rsync may follow.
pub(super) fn are_jumps(word: &OsStr, attached: bool, exists: &impl Fn(&OsStr) -> bool) -> bool {
    let is_jump = |jump: &str| {
        let jump = jump.strip_prefix("ssh://").map_or(jump, |jump| jump.strip_suffix('/').unwrap_or(jump));
        let port = jump.rsplit_once(':').filter(|_| !jump.ends_with(']')).map_or("22", |(_, port)| port);
        !jump.is_empty() && !jump.starts_with('-') && !jump.contains('/') && is_number(OsStr::new(port))
    };
    !(exists(word) || attached && are_rsync_flags(word)) && word.to_string_lossy().split(',').all(is_jump)
}

/// Whether all these letters are letters of scp as well.
pub(super) fn are_scps(letters: &[u8]) -> bool {
    letters.iter().all(|&byte| LETTERS.iter().any(|own| own.letter == char::from(byte) && !own.scp.is_empty()))
}

/// Whether a word is the path of a program, named with a slash.
pub(super) fn is_program(word: &OsStr) -> bool {
    let is_executable = |found: std::fs::Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
    word.as_bytes().contains(&b'/') && std::fs::metadata(word).is_ok_and(is_executable)
}

/// Whether a word is an absolute path where nothing exists.
pub(super) fn is_absent(word: &OsStr, exists: &impl Fn(&OsStr) -> bool) -> bool {
    word.as_bytes().starts_with(b"/") && !exists(word) && !is_program(word)
}

/// Whether a word is a number with a unit.
pub(super) fn is_rate(word: &OsStr) -> bool {
    word.to_str().is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()) && parse_bytes(text).is_ok())
        && !is_number(word)
}

pub(super) fn is_number(word: &OsStr) -> bool {
    !word.is_empty() && word.as_bytes().iter().all(u8::is_ascii_digit)
}

/// Whether a word consists of letters that rsync takes without a value.
pub(super) fn are_rsync_flags(word: &OsStr) -> bool {
    word.as_bytes().iter().all(|&byte| {
        let letter = LETTERS.iter().find(|letter| letter.letter == char::from(byte));
        letter.is_some_and(|letter| letter.rsync.starts_with("--") && !b"BMTef@".contains(&byte))
    })
}
