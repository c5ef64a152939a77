//! Several hosts in few words: bracket lists such as `gpu[01-08,12]`, files with one host per line, and the file of
//! failed hosts, which is written in the same form.
//!
//! # Invariants
//!
//! * Hosts are counted before any of them is created, because a list of a few bytes can name more than any memory
//!   holds.
//! * A list is expanded from left to right, the last bracket fastest: the order in which racks and nodes are numbered.
//! * The file of failed hosts is read again as the same hosts with the same paths.

use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::plan::{Spec, user_bytes};
use crate::fault::escaped;

pub(crate) mod failed;

/// Maximum number of hosts that a copy goes to.
pub(crate) const HOSTS_MAX: usize = 1024;

/// Maximum number of digits of a number in brackets.
const DIGITS_MAX: usize = 18;

/// Bytes that separate words on a line.
const BLANKS: &[u8] = b" \t\r";

/// Reports whether a host, in the form for the launcher, is a list.
pub(crate) fn is_list(host: &OsStr) -> bool {
    host.as_bytes().contains(&b'[')
}

/// Reports whether a list names more than one host.
pub(crate) fn is_several(list: &OsStr) -> bool {
    expand(list).is_ok_and(|hosts| hosts.len() > 1)
}

/// Returns the hosts that a list names: `rack[1-2]n[01-16]`, `gpu[01-08,12]`, `n[0-10/5]`. A number keeps its leading
/// zeros, and so do all numbers of a range that begins with such a number. Text without brackets is one host.
///
/// # Errors
///
/// A sentence for the user that begins with the list.
pub(crate) fn expand(list: &OsStr) -> Result<Vec<OsString>, String> {
    let failed = |reason: &str| format!("{}: {reason}", escaped(list));
    let parts = parse(list.as_bytes()).map_err(failed)?;
    let count = parts.iter().map(Part::count).fold(1, usize::saturating_mul);
    if count > HOSTS_MAX {
        return Err(failed(&format!("names {count} hosts; the limit is {HOSTS_MAX}")));
    }
    let mut hosts = vec![Vec::new()];
    for part in &parts {
        match part {
            Part::Text(text) => hosts.iter_mut().for_each(|host| host.extend(*text)),
            Part::Numbers(ranges) => {
                let numbers: Vec<String> = ranges.iter().flat_map(Range::numbers).collect();
                let with = |host: &Vec<u8>, number: &String| [host, number.as_bytes()].concat();
                hosts = hosts.iter().flat_map(|host| numbers.iter().map(|number| with(host, number))).collect();
            }
        }
    }
    Ok(hosts.into_iter().map(OsString::from_vec).collect())
}

/// Does the same with several lists separated by commas, as Slurm writes an allocation.
///
/// # Errors
///
/// As [`expand`].
pub(crate) fn expand_all(lists: &OsStr) -> Result<Vec<OsString>, String> {
    let mut depth = 0_usize;
    let is_between = |&byte: &u8| {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        byte == b',' && depth == 0
    };
    let mut hosts = Vec::new();
    for list in lists.as_bytes().split(is_between).filter(|list| !list.is_empty()) {
        hosts.extend(expand(OsStr::from_bytes(list))?);
        if hosts.len() > HOSTS_MAX {
            return Err(too_many());
        }
    }
    Ok(hosts)
}

/// Returns hosts in few words, from which [`expand_all`] makes the same hosts. Names that differ in one number become
/// one list.
pub(crate) fn folded(hosts: &[OsString]) -> OsString {
    // Splits a name into the text before and after the number, and the digits.
    let cut = |host: &OsString| -> Option<([Vec<u8>; 2], String)> {
        let bytes = host.as_bytes();
        let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
        let start = bytes[..end].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
        // The numbers of an address do not form a list, and a name with brackets is a list already.
        let is_name = bytes.iter().all(|byte| !b":[],".contains(byte)) && end - start <= DIGITS_MAX;
        let digits = std::str::from_utf8(&bytes[start..end]).ok()?;
        is_name.then(|| ([bytes[..start].to_vec(), bytes[end..].to_vec()], digits.to_owned()))
    };
    let mut lists: Vec<([Vec<u8>; 2], Vec<String>)> = Vec::new();
    for host in hosts {
        match cut(host) {
            Some((around, digits)) => match lists.iter_mut().find(|(known, all)| *known == around && !all.is_empty()) {
                Some((_, all)) => all.push(digits),
                None => lists.push((around, vec![digits])),
            },
            None => lists.push(([host.as_bytes().to_vec(), Vec::new()], Vec::new())),
        }
    }
    let list = |([before, behind], numbers): ([Vec<u8>; 2], Vec<String>)| match &numbers[..] {
        [] => before,
        [one] => [&before, one.as_bytes(), &behind].concat(),
        _ => [&before, b"[".as_slice(), ranges(&numbers).as_bytes(), b"]", &behind].concat(),
    };
    OsString::from_vec(lists.into_iter().map(list).collect::<Vec<_>>().join(&b','))
}

/// Formats numbers for a list, with consecutive numbers as ranges.
fn ranges(numbers: &[String]) -> String {
    let mut runs: Vec<(&String, &String)> = Vec::new();
    for number in numbers {
        let follows = |last: &String| {
            last.parse::<u64>().ok().map(|last| last + 1) == number.parse().ok()
                && (last.len() == number.len() || !number.starts_with('0') && !last.starts_with('0'))
        };
        match runs.last_mut().filter(|(_, last)| follows(last)) {
            Some((_, last)) => *last = number,
            None => runs.push((number, number)),
        }
    }
    let run = |(first, last): (&String, &String)| if first == last { first.clone() } else { format!("{first}-{last}") };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

fn too_many() -> String {
    format!("more than {HOSTS_MAX} hosts, which is the limit")
}

/// A part of a list.
enum Part<'a> {
    Text(&'a [u8]),
    Numbers(Vec<Range>),
}

impl Part<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().map(Range::count).fold(0, usize::saturating_add),
        }
    }
}

/// `first-last/step`, with at least `width` digits.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    width: usize,
}

impl Range {
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        const USAGE: &str =
            "brackets must contain numbers and ranges, such as [01-08,12]; write a local name as ./NAME";
        let digits = |text: &[u8]| {
            let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty() && text.len() <= DIGITS_MAX)?;
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let number = |text: &[u8]| digits(text).ok_or(USAGE);
        let (range, step) = match text.iter().position(|&byte| byte == b'/') {
            Some(at) => (&text[..at], number(&text[at + 1..])?),
            None => (text, 1),
        };
        let (first, last) = match range.iter().position(|&byte| byte == b'-') {
            Some(at) => (&range[..at], &range[at + 1..]),
            None if text.len() > range.len() => return Err(USAGE),
            None => (range, range),
        };
        let is_padded = |text: &[u8]| text.len() > 1 && text[0] == b'0';
        if first.len() > last.len() && is_padded(first) || is_padded(last) && first.len() != last.len() {
            return Err("with a leading 0, both ends of a range must have the same number of digits");
        }
        let width = if is_padded(first) { first.len() } else { 1 };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err("a range must begin with its smaller number");
        }
        if step == 0 {
            return Err("a step must be 1 or more");
        }
        Ok(Self { first, last, step, width })
    }

    fn count(&self) -> usize {
        usize::try_from((self.last - self.first) / self.step).unwrap_or(usize::MAX).saturating_add(1)
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let Self { first, step, width, .. } = *self;
        (0..self.count() as u64).map(move |at| format!("{:0width$}", first + at * step))
    }
}

fn parse(list: &[u8]) -> Result<Vec<Part<'_>>, &'static str> {
    let mut parts = Vec::new();
    let mut rest = list;
    while let Some(open) = rest.iter().position(|&byte| byte == b'[' || byte == b']') {
        if rest[open] == b']' {
            return Err("unmatched closing bracket");
        }
        let close = rest[open..].iter().position(|&byte| byte == b']').map(|at| open + at);
        let close = close.ok_or("a bracket is not closed; write a local name with a colon as ./NAME")?;
        let ranges = rest[open + 1..close].split(|&byte| byte == b',').map(Range::parse);
        parts.push(Part::Text(&rest[..open]));
        parts.push(Part::Numbers(ranges.collect::<Result<_, _>>()?));
        rest = &rest[close + 1..];
    }
    if !parts.is_empty() && list.iter().scan(0, outside).any(|byte| byte == Some(b',')) {
        return Err("commas are allowed only inside brackets; rdcp and rddoctor take other names from --hosts FILE");
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// Returns a byte if it is outside brackets. `depth` is the number of open brackets.
fn outside(depth: &mut u32, &byte: &u8) -> Option<Option<u8>> {
    match byte {
        b'[' => *depth += 1,
        b']' => *depth -= 1,
        _ => {}
    }
    Some((*depth == 0).then_some(byte))
}

/// Returns a path on a host, as a command line would name it.
///
/// # Errors
///
/// As [`Spec::parse`].
pub(crate) fn at(host: &OsStr, path: &OsStr) -> Result<Spec, String> {
    let bytes = host.as_bytes();
    let (user, name) = bytes.split_at(user_bytes(bytes));
    let text = match name.contains(&b':') {
        true => [user, b"[", name, b"]:", path.as_bytes()].concat(),
        false => [bytes, b":", path.as_bytes()].concat(),
    };
    match Spec::parse(&OsString::from_vec(text))? {
        there @ Spec::There(..) => Ok(there),
        _ => Err(format!("{} is not a host", escaped(host))),
    }
}

/// Returns everything that a target names. If the host is a list, that is the path on each of its hosts.
///
/// # Errors
///
/// A sentence for the user.
pub(crate) fn each(target: Spec) -> Result<Vec<Spec>, String> {
    match target {
        Spec::There(host, path) if is_list(&host) => expand(&host)?.iter().map(|host| at(host, &path)).collect(),
        one => Ok(vec![one]),
    }
}

/// Returns the hosts of a file, with one host, one list, or one HOST:PATH per line; `#` begins a comment. `path` is
/// used for lines without a path.
///
/// # Errors
///
/// A sentence for the user, with the number of the line.
pub(crate) fn read(text: &[u8], path: &OsStr) -> Result<Vec<Spec>, String> {
    let mut targets = Vec::new();
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = without_comment(line);
        if !line.is_empty() {
            targets.extend(read_line(line, path).map_err(|reason| format!("line {}: {reason}", at + 1))?);
        }
        if targets.len() > HOSTS_MAX {
            return Err(too_many());
        }
    }
    if targets.is_empty() { Err("it names no hosts".to_owned()) } else { Ok(targets) }
}

fn without_comment(line: &[u8]) -> &[u8] {
    let begins = |at: &usize| line[*at] == b'#' && (*at == 0 || BLANKS.contains(&line[at - 1]));
    let mut line = &line[..(0..line.len()).find(begins).unwrap_or(line.len())];
    while let Some((_, rest)) = line.split_first().filter(|(byte, _)| BLANKS.contains(byte)) {
        line = rest;
    }
    while let Some((_, rest)) = line.split_last().filter(|(byte, _)| BLANKS.contains(byte)) {
        line = rest;
    }
    line
}

fn read_line(line: &[u8], path: &OsStr) -> Result<Vec<Spec>, String> {
    let text = OsStr::from_bytes(line);
    let name = &line[user_bytes(line)..];
    if is_address(name) {
        return Ok(vec![at(text, path)?]);
    }
    if let Some(address) = name.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).filter(|it| is_address(it))
    {
        let host = [&line[..line.len() - name.len()], address].concat();
        return Ok(vec![at(&OsString::from_vec(host), path)?]);
    }
    let colon = line.iter().position(|&byte| byte == b':');
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if colon.is_some_and(|at| is_number(&line[at + 1..])) {
        return Err(format!("{}: a PATH must follow the colon, not a number of slots", escaped(text)));
    }
    if colon.is_some() {
        return match Spec::parse(text)? {
            target @ Spec::There(..) => each(target),
            _ => Err(format!("{} is not a host", escaped(text))),
        };
    }
    if line.iter().any(|byte| BLANKS.contains(byte)) {
        return Err(format!("{}: only one host is allowed per line", escaped(text)));
    }
    expand(text)?.iter().map(|host| at(host, path)).collect()
}

fn is_address(name: &[u8]) -> bool {
    let name = std::str::from_utf8(name).unwrap_or_default();
    name.split('%').next().is_some_and(|name| name.parse::<Ipv6Addr>().is_ok())
}

/// Returns the line that [`read`] reads as this target if `path` is the default path. `None` if no line can express it.
pub(crate) fn line_of(target: &Spec, path: Option<&OsStr>) -> Option<Vec<u8>> {
    let Spec::There(host, own) = target else { return None };
    let bytes = host.as_bytes();
    let (user, name) = bytes.split_at(user_bytes(bytes));
    let host = match name.contains(&b':') {
        true => [user, b"[", name, b"]"].concat(),
        false => bytes.to_vec(),
    };
    let line = match path == Some(own) {
        true => host,
        false => [&host, &b":"[..], own.as_bytes()].concat(),
    };
    let is_read_again = !line.contains(&b'\n')
        && without_comment(&line) == line
        && read_line(&line, path.unwrap_or_default()).as_deref() == Ok(std::slice::from_ref(target));
    is_read_again.then_some(line)
}

/// Returns the targets without repetitions, and the number of repetitions.
///
/// # Errors
///
/// Fails if a host is named with two paths.
pub(crate) fn without_doubles(targets: Vec<Spec>) -> Result<(Vec<Spec>, usize), String> {
    let mut kept: std::collections::HashMap<OsString, OsString> = Default::default();
    let before = targets.len();
    let mut once = Vec::new();
    for target in targets {
        match kept.get(target.host()) {
            Some(path) if path == target.path() => continue,
            Some(path) => {
                let (host, path, other) = (escaped(target.host()), escaped(path), escaped(target.path()));
                return Err(format!(
                    "{host} is named with two paths, {path} and {other}; use a separate copy for each"
                ));
            }
            None => drop(kept.insert(target.host().to_owned(), target.path().to_owned())),
        }
        once.push(target);
    }
    let again = before - once.len();
    Ok((once, again))
}

#[cfg(test)]
mod tests;
