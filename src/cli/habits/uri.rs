//! The form in which scp takes a path on another host, with the port of ssh.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::looks::is_number;
use crate::fault::escaped;
use crate::job::plan::Spec;

/// Turns `scp://[USER@]HOST[:PORT][/PATH]` into `[USER@]HOST:PATH`. Other words are returned unchanged. If the path is
/// on another host, adds the port to `ports`, or `None` if none is named.
pub(super) fn uri(word: OsString, ports: &mut BTreeSet<Option<OsString>>) -> Result<OsString, String> {
    let Some(rest) = word.as_bytes().strip_prefix(b"scp://") else {
        if is_there(&word) {
            ports.insert(None);
        }
        return Ok(word);
    };
    let wrong = || format!("not of the form scp://[USER@]HOST[:PORT][/PATH]: {}", escaped(&word));
    let slash = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let path = path.strip_prefix(b"/").unwrap_or(path);
    // If an address is in brackets, the port's colon follows them.
    let from = authority.iter().rposition(|&byte| byte == b']').unwrap_or(0);
    let colon = authority[from..].iter().position(|&byte| byte == b':').map(|at| from + at);
    let (host, named) = match colon {
        Some(colon) => (&authority[..colon], Some(OsStr::from_bytes(&authority[colon + 1..]))),
        None => (authority, None),
    };
    if named.is_some_and(|named| !is_number(named)) {
        return Err(wrong());
    }
    ports.insert(named.map(OsStr::to_owned));
    let (host, path) = (decoded(host).ok_or_else(wrong)?, decoded(path).ok_or_else(wrong)?);
    if host.is_empty() {
        return Err(wrong());
    }
    Ok(OsString::from_vec([&host[..], b":", &path].concat()))
}

/// Whether a path is on another host.
pub(super) fn is_there(path: &OsStr) -> bool {
    matches!(Spec::parse(path), Ok(Spec::There(..)))
}

/// Decodes each `%XX` into a byte; `None` if XX is not hexadecimal, or is zero.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok().filter(|&byte| byte != 0)?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}
