//! Translates letters and words that users of scp and rsync are used to typing into options of `rdcp`.
//!
//! A letter whose effect a copy has anyway is accepted silently. A letter that asks for something `rdcp` cannot do is
//! refused, with advice on what to use instead. scp and rsync disagree on some letters; for those the next word
//! decides. `-P` and `-l` take the next word only if it consists of digits and no file has that name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;

use clap::{Command, ValueEnum};

use super::wrong;
use crate::fault::escaped;
use crate::options::{Compress, parse_bytes};

mod meaning;
mod rsync;
mod uri;

use rsync::{long, taken_back};
use uri::uri;

/// What a letter means to `rdcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// An option of `rdcp` itself, or of ssh.
    Own,
    /// An option of `rdcp` itself, or of ssh, with a value.
    OwnValue,
    /// Accepted without effect, because a copy does that anyway.
    Kept,
    /// Stands for these words.
    Means(&'static [&'static str]),
    /// Has scp's meaning if a number follows, otherwise rsync's.
    Number(Number),
    /// Has scp's meaning if such a word follows, otherwise rsync's.
    Word(Behind),
    /// A rule follows: a pattern of names to leave out, or to copy.
    Filter,
    /// With `--sync`, stands for the first word; otherwise refused, with the second text as advice.
    Synced(&'static str, &'static str),
    /// Refused because it would do something else. The text says what to use instead.
    Refused(&'static str),
}

/// The number that follows a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// A port for ssh.
    Port,
    /// A limit as scp takes it, in Kbit/s.
    Limit,
}

/// Words, other than numbers, that give a letter scp's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A cipher, by a name that ssh knows.
    Cipher,
    /// A program to run instead of ssh. The file must be executable.
    Program,
    /// An option for SFTP, which `rdcp` ignores: `nrequests=`, `buffer=`.
    Sftp,
}

/// A letter of scp or rsync, with its meanings.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    /// The letter itself.
    pub letter: char,
    /// Meaning in scp; empty if it has none.
    pub scp: &'static str,
    /// Meaning in rsync; empty if it has none.
    pub rsync: &'static str,
    /// Meaning in `rdcp`.
    pub here: Here,
}

const fn letter(letter: char, scp: &'static str, rsync: &'static str, here: Here) -> Letter {
    Letter { letter, scp, rsync, here }
}

const NO_OWNER: &str = "--no-owner leaves out the group as well; --chown :GROUP sets one";

const NO_DIRLINKS: &str = "rdcp does not write through links in DST: the directory replaces the link, or fails; with \
    -R, --no-implied-dirs keeps links that lead to SRC";

const ONE_PROTOCOL: &str = "rdcp has only one protocol, so leave out scp's -O; rsync's -O needs --sync";

const NO_DIRS: &str = "rdcp copies directories with their contents (-r) or not at all";

const NO_BLOCKS: &str = "the block size depends on the file size: leave it out";

const NO_MOUNT_POINTS: &str = "mount points are copied as empty directories; leave them out with --exclude";

/// Every letter of scp and of rsync.
#[rustfmt::skip]
pub const LETTERS: &[Letter] = &[
    letter('0', "", "--from0", Here::Own),
    letter('3', "through this host", "", Here::Means(&["--relay"])),
    letter('4', "IPv4", "IPv4", Here::Means(&["-o", "AddressFamily=inet"])),
    letter('6', "IPv6", "IPv6", Here::Means(&["-o", "AddressFamily=inet6"])),
    letter('8', "", "--8-bit-output", Here::Kept),
    letter('@', "", "--modify-window", Here::Refused("use --modify-window SECONDS")),
    letter('A', "agent forwarding", "--acls", Here::Kept),
    letter('B', "no password prompts", "--block-size", Here::Means(&["-o", "BatchMode=yes"])),
    letter('C', "compress", "--cvs-exclude", Here::Means(&["--compress=auto"])),
    letter('D', "SFTP server", "--devices --specials", Here::Kept),
    letter('E', "", "--executability", Here::Kept),
    letter('F', "ssh's configuration", "filters of .rsync-filter", Here::OwnValue),
    letter('H', "", "--hard-links", Here::Kept),
    letter('I', "", "--ignore-times", Here::Means(&["--checksum"])),
    letter('J', "jump host", "--omit-link-times", Here::OwnValue),
    letter('K', "", "--keep-dirlinks", Here::Refused(NO_DIRLINKS)),
    letter('L', "", "--copy-links", Here::Own),
    letter('M', "", "--remote-option", Here::Refused("options apply to both ends anyway")),
    letter('N', "", "--crtimes", Here::Refused("Linux cannot set the creation time of a file")),
    letter('O', "the old protocol", "--omit-dir-times", Here::Synced("--omit-dir-times", ONE_PROTOCOL)),
    letter('P', "port", "--partial --progress", Here::Number(Number::Port)),
    letter('R', "directly between hosts", "--relative", Here::Own),
    letter('S', "program for ssh", "--sparse", Here::Word(Behind::Program)),
    letter('T', "no checks of file names", "--temp-dir", Here::Own),
    letter('U', "", "--atimes", Here::Kept),
    letter('V', "", "--version", Here::Own),
    letter('W', "", "--whole-file", Here::Kept),
    letter('X', "an option for SFTP", "--xattrs", Here::Word(Behind::Sftp)),
    letter('a', "", "--archive", Here::Means(&["--recursive"])),
    letter('b', "", "--backup", Here::Own),
    letter('c', "cipher", "--checksum", Here::Word(Behind::Cipher)),
    letter('d', "", "--dirs", Here::Refused(NO_DIRS)),
    letter('e', "", "--rsh", Here::Means(&["--rsh"])),
    letter('f', "", "--filter", Here::Filter),
    letter('g', "", "--group", Here::Kept),
    letter('h', "", "--human-readable", Here::Own),
    letter('i', "ssh's key", "--itemize-changes", Here::OwnValue),
    letter('k', "", "--copy-dirlinks", Here::Own),
    letter('l', "limit in Kbit/s", "--links", Here::Number(Number::Limit)),
    letter('m', "", "--prune-empty-dirs", Here::Own),
    letter('n', "", "--dry-run", Here::Own),
    letter('o', "ssh's option", "--owner", Here::OwnValue),
    letter('p', "keep times and modes", "--perms", Here::Kept),
    letter('q', "quiet", "--quiet", Here::Own),
    letter('r', "--recursive", "--recursive", Here::Own),
    letter('s', "SFTP", "--secluded-args", Here::Kept),
    letter('t', "", "--times", Here::OwnValue),
    letter('u', "", "--update", Here::Own),
    letter('v', "verbose", "--verbose", Here::Own),
    letter('x', "", "--one-file-system", Here::Own),
    letter('y', "", "--fuzzy", Here::Kept),
    letter('z', "", "--compress", Here::Means(&["--compress=auto"])),
];

/// A command line translated for `rdcp`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// The words that `rdcp` is to parse, without the program's name.
    pub words: Vec<OsString>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The value of `-i`.
    pub key: Option<OsString>,
    /// Whether the command line is a single word.
    is_alone: bool,
    /// Whether `--sync` is given, with which letters have rsync's meanings.
    is_sync: bool,
    /// Whether a letter or a limit was read with another meaning than it has with `--sync`.
    pub is_read_without_sync: bool,
    /// Whether `--files-from` is given, with which rsync's `-a` is not recursive.
    is_listed: bool,
    /// Whether rsync's `--ignore-times` is given, which stands for `--checksum`.
    ignores_times: bool,
    /// Whether `--info=name0` is given, so that `-v` names no entries.
    pub has_no_names: bool,
    /// Whether letters that have a meaning only for rsync are used without `--sync`.
    pub has_rsync_letters: bool,
    /// Whether `-R` is given. It means rsync's `--relative`, unless both sides are on other hosts.
    pub is_relative: bool,
}

/// Translates a command line, without the program's name, into options of `rdcp`, which `command` defines. `exists`
/// says whether a file has a given name.
///
/// # Errors
///
/// A sentence that says what cannot be done.
pub fn translate(
    words: impl IntoIterator<Item = OsString>,
    command: &Command,
    exists: impl Fn(&OsStr) -> bool,
) -> Result<Translated, String> {
    let words: Vec<OsString> = words.into_iter().collect();
    let has = |option: &str| words.iter().take_while(|word| *word != "--").any(|word| word == option);
    let of_owner = |word: &&OsString| ["--owner", "--no-owner", "--no-o"].iter().any(|option| *word == option);
    let last_of_owner = words.iter().take_while(|word| *word != "--").filter(of_owner).last();
    let (is_sync, is_without_owner) = (has("--sync"), last_of_owner.is_some_and(|word| word != "--owner"));
    let has_no_group = has("--no-group") || has("--no-g");
    let mut options = words.iter().take_while(|word| *word != "--");
    let is_listed = has("--files-from") || options.any(|word| word.as_bytes().starts_with(b"--files-from="));
    let mut done = Translated { is_alone: words.len() == 1, is_sync, is_listed, ..Translated::default() };
    let mut words = words.into_iter().peekable();
    let (mut ports, mut operands, mut timeout) = (BTreeSet::new(), Vec::new(), None);
    while let Some(mut word) = words.next() {
        if word == "--" {
            operands.push(word);
            for word in words {
                operands.push(uri(word, &mut ports)?);
            }
            break;
        }
        if is_unlimited(&word, words.peek()) {
            words.next_if(|_| word == "--bwlimit");
            word = "--no-bwlimit".into();
        }
        let bytes = word.as_bytes();
        if word == "--relative" {
            done.is_relative = true;
            continue;
        }
        if word == "--no-relative" || word == "--no-R" {
            if is_listed {
                return Err(format!("{}: paths of --files-from keep their directories in DST", escaped(&word)));
            }
            done.is_relative = false;
            continue;
        }
        if let Some(taken) = taken_back(&word) {
            take_back(&mut done.words, taken, command);
            let keys = taken.iter().filter_map(|word| word.strip_prefix("--"));
            done.words.extend(keys.map(|key| OsString::from(format!("--negated={key}"))));
            // --no-checksum does not negate --ignore-times.
            if done.ignores_times && taken.contains(&"--checksum") {
                done.words.push("--checksum".into());
            }
            continue;
        }
        // rsync can leave out the owner, the group, or both. --no-owner leaves out both.
        if is_without_owner && (word == "--no-group" || word == "--no-g") {
            continue;
        }
        if word == "--no-o" && !has_no_group {
            return Err(format!("--no-o: {NO_OWNER}"));
        }
        if let Some(flags) = value_of(&word, "--info", &mut words) {
            let flags = flags.to_string_lossy();
            done.has_no_names |= flags.split(',').any(|flag| flag.eq_ignore_ascii_case("name0"));
            done.words.extend(information(&flags, is_sync)?.into_iter().map(OsString::from));
            continue;
        }
        if let Some(rule) = value_of(&word, "--filter", &mut words) {
            done.words.push(filter(&rule)?);
            continue;
        }
        if let Some(seconds) = value_of(&word, "--timeout", &mut words) {
            // A silent peer is waited for this long. With 0 rsync waits without end, so nothing is set.
            let is_set = seconds.as_bytes().iter().any(|&byte| byte != b'0');
            timeout = is_set.then_some(seconds);
            continue;
        }
        if word == "--no-timeout" {
            timeout = None;
            continue;
        }
        if word == "--archive" && is_listed {
            continue;
        }
        if bytes.starts_with(b"--") {
            done.is_read_without_sync |= limit(&word, words.peek(), is_sync)?;
            match long(&word)? {
                Some((instead, has_value)) => {
                    done.ignores_times |= word == "--ignore-times";
                    done.words.extend(instead.iter().map(OsString::from));
                    if has_value {
                        words.next();
                    }
                }
                // With rsync, --compress has no value.
                None if word == "--compress"
                    && words.peek().is_some_and(|next| is_other_compression(next, &exists)) =>
                {
                    let name = words.next().unwrap_or_default();
                    return Err(format!("--compress {}: expected one of off, auto, lz4, zstd", escaped(&name)));
                }
                None if word == "--verify" && words.peek().is_some_and(|next| *next == "disk" && !exists(next)) => {
                    words.next();
                    done.words.push("--verify=disk".into());
                }
                None if word == "--modify-window" && words.peek().is_some_and(|next| *next == "-1") => {
                    words.next();
                    done.words.push("--modify-window=0".into());
                }
                None if word == "--compress" && !words.peek().is_some_and(|next| is_compression(next)) => {
                    done.words.push("--compress=auto".into());
                }
                None if MAY_BEGIN_WITH_HYPHEN.iter().any(|option| word == *option)
                    && words.peek().is_some_and(|next| is_hyphened(next)) =>
                {
                    let value = words.next().unwrap_or_default();
                    done.words.push(OsString::from_vec([bytes, b"=", value.as_bytes()].concat()));
                }
                None => {
                    done.notes.extend(words.peek().filter(|_| word == "--json").and_then(|next| report(next, &exists)));
                    let is_value_next = wrong::takes_next(command, &word);
                    done.words.push(word);
                    if is_value_next {
                        done.words.extend(words.next());
                    }
                }
            }
            continue;
        }
        if !bytes.starts_with(b"-") || bytes.len() == 1 {
            done.words.push(uri(word, &mut ports)?);
            continue;
        }
        let single_dash = wrong::single_dash(&word, command, rsync::names());
        if let Some(reason) = single_dash.or_else(|| joined_sync(bytes, &exists)) {
            return Err(reason);
        }
        cluster(&bytes[1..], &mut words, &exists, &mut done)?;
    }
    let mut others = done.words.clone();
    take_back(&mut others, &["-x", "--one-file-system"], command);
    if done.words.len() - others.len() > 1 {
        return Err(format!("-xx: {NO_MOUNT_POINTS}"));
    }
    // The hosts of these options are reached by the same launcher.
    for (at, word) in done.words.iter().enumerate() {
        let value_of = |option: &str| match word.to_str()?.strip_prefix(option)? {
            "" => done.words.get(at + 1).cloned(),
            rest => rest.strip_prefix('=').map(OsString::from),
        };
        let target = ["-t", "--target-directory", "--to"].into_iter().find_map(value_of);
        if value_of("--hosts").is_some() || target.is_some_and(|target| uri::is_there(&target)) {
            ports.insert(None);
        }
    }
    // As with scp, it counts more than a typed -P.
    if let Some(Some(port)) = ports.pop_last() {
        // One launcher reaches all hosts.
        if !ports.is_empty() {
            return Err("scp:// names a port of one host only; set the port of each in ssh's configuration".to_owned());
        }
        done.words.extend([OsString::from("-P"), port]);
    }
    done.words.append(&mut operands);
    if let Some(seconds) = timeout {
        done.words.splice(0..0, [OsString::from("--reconnect"), seconds]);
    }
    Ok(done)
}

/// Removes these options, with their values. Another option's value that looks like one of them stays.
fn take_back(words: &mut Vec<OsString>, taken: &[&str], command: &Command) {
    let (mut is_value, mut is_kept) = (false, true);
    words.retain(|word| {
        let rest = |taken: &&str| word.as_bytes().strip_prefix(taken.as_bytes());
        is_kept =
            if is_value { is_kept } else { !taken.iter().filter_map(rest).any(|rest| matches!(rest, [] | [b'=', ..])) };
        is_value = !is_value && wrong::takes_next(command, word);
        is_kept
    });
}

/// Whether words choose a method of compression. The last one counts.
fn have_method(words: &[OsString]) -> bool {
    let is_choice = |word: &OsString| word == "--compress" || word.as_bytes().starts_with(b"--compress=");
    let Some(at) = words.iter().rposition(is_choice) else { return false };
    let attached = words[at].as_bytes().strip_prefix(b"--compress=");
    let method = attached.or_else(|| words.get(at + 1).map(|word| word.as_bytes()));
    method.is_some_and(|method| [&b"lz4"[..], b"zstd"].contains(&method))
}

/// Refuses letters that end in `sync`, such as -rsync: by the meanings of its letters, it is a dry run.
fn joined_sync(word: &[u8], exists: &impl Fn(&OsStr) -> bool) -> Option<String> {
    let front = word.strip_suffix(b"sync")?;
    // What follows -J is a host.
    let are_flags = front.len() > 1 && !front.contains(&b'J') && are_rsync_flags(OsStr::from_bytes(&front[1..]));
    // What follows -i or -t may be the name of a file.
    let valued = word.iter().position(|byte| b"it".contains(byte));
    let is_file = valued.is_some_and(|at| exists(OsStr::from_bytes(&word[at + 1..])));
    let [word, front] = [word, front].map(|text| escaped(OsStr::from_bytes(text)));
    (are_flags && !is_file).then(|| format!("{word}: did you mean {front} --sync? see --help"))
}

/// Returns a note about the word after `--json`, if it is probably meant as the file of the report.
fn report(word: &OsStr, exists: &impl Fn(&OsStr) -> bool) -> Option<String> {
    let name = escaped(word);
    let is_meant = name.ends_with(".json") && !name.contains(':') && !exists(word);
    is_meant.then(|| format!("{name} is taken as SRC or DST; a file for the report is --json={name}"))
}

/// Options that take the next word as their value even if it begins with a hyphen, as with rsync.
const MAY_BEGIN_WITH_HYPHEN: [&str; 3] = ["--chmod", "--exclude", "--include"];

/// Whether a word can be a value that begins with a hyphen. If it begins with two, the value is more likely missing,
/// and an option such as --dry-run would be lost.
fn is_hyphened(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes().starts_with(b"-") && !word.as_bytes().starts_with(b"--")
}

fn is_compression(word: &OsStr) -> bool {
    word.to_str().is_some_and(|word| Compress::from_str(word, false).is_ok())
}

/// Whether a word is what other programs call a compression, or none, and no file has that name.
fn is_other_compression(word: &OsStr, exists: &impl Fn(&OsStr) -> bool) -> bool {
    let others = ["gzip", "zlib", "zlibx", "bzip2", "xz", "lzma", "lzo", "brotli", "snappy", "none", "no", "yes", "on"];
    others.iter().any(|other| word == *other) && !exists(word)
}

/// Returns the rate that `--bwlimit` gives; empty if the word is another one.
fn rate<'a>(word: &'a OsStr, next: Option<&'a OsString>) -> &'a str {
    let Some(rest) = word.to_str().and_then(|word| word.strip_prefix("--bwlimit")) else { return "" };
    let rate = if rest.is_empty() { next.and_then(|next| next.to_str()) } else { rest.strip_prefix('=') };
    rate.unwrap_or_default()
}

/// Whether a limit is 0, which is none with rsync.
fn is_unlimited(word: &OsStr, next: Option<&OsString>) -> bool {
    let number = rate(word, next).trim_end_matches(|c: char| c.is_ascii_alphabetic());
    number.contains('0') && number.bytes().all(|byte| b"0.".contains(&byte))
}

/// Returns whether a limit has no unit: rsync would take that as about a thousand times higher, so it is refused with
/// `--sync`.
fn limit(word: &OsStr, next: Option<&OsString>, is_sync: bool) -> Result<bool, String> {
    let rate = rate(word, next);
    let is_bare = !rate.is_empty() && rate.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_bare && is_sync {
        return Err(format!("--bwlimit {rate}: rsync takes KiB/s, rdcp bytes/s; type {rate}K or {rate}B"));
    }
    Ok(is_bare)
}

/// Returns the value of the option, if `word` is that option.
fn value_of(word: &OsStr, option: &str, words: &mut impl Iterator<Item = OsString>) -> Option<OsString> {
    let rest = word.as_bytes().strip_prefix(option.as_bytes())?;
    match rest {
        b"" => Some(words.next().unwrap_or_default()),
        [b'=', value @ ..] => Some(OsStr::from_bytes(value).to_owned()),
        _ => None,
    }
}

/// Translates a rule of rsync's `--filter` into a pattern whose sign says what it does.
fn filter(rule: &OsStr) -> Result<OsString, String> {
    let text = rule.as_bytes();
    let kinds = [(&b"-"[..], b"- "), (b"exclude", b"- "), (b"+", b"+ "), (b"include", b"+ ")];
    let pattern = kinds.into_iter().find_map(|(kind, sign)| match text.strip_prefix(kind)? {
        [b' ' | b'_', pattern @ ..] => Some([&sign[..], pattern].concat()),
        _ => None,
    });
    let pattern = match text {
        b"!" | b"clear" => Some(b"!".to_vec()),
        _ => pattern,
    };
    let pattern = pattern.ok_or_else(|| {
        let rule = escaped(rule);
        format!("--filter '{rule}': rules are '- PATTERN', '+ PATTERN' or '!'; --exclude-from reads them from a file")
    })?;
    // As one word, because "- x" by itself would be taken for an option.
    Ok(OsString::from_vec([b"--exclude=", &pattern[..]].concat()))
}

/// Translates what rsync's `--info` asks for. Whatever it turns off is not printed anyway.
fn information(flags: &str, is_sync: bool) -> Result<Vec<&'static str>, String> {
    let mut words = Vec::new();
    for flag in flags.split(',').map(|flag| flag.to_ascii_lowercase()) {
        match flag.trim_end_matches(|c: char| c.is_ascii_digit()) {
            _ if flag.ends_with('0') => {}
            "progress" => words.push("--progress"),
            "stats" => words.push("--stats"),
            "name" | "del" if is_sync && words.contains(&"--verbose") => {}
            "name" | "del" if is_sync => words.push("--verbose"),
            _ => return Err(format!("--info={flag}: use --progress, --stats or --itemize-changes")),
        }
    }
    Ok(words)
}

/// Translates the letters of one word.
fn cluster(
    letters: &[u8],
    words: &mut std::iter::Peekable<impl Iterator<Item = OsString>>,
    exists: &impl Fn(&OsStr) -> bool,
    done: &mut Translated,
) -> Result<(), String> {
    for (at, &byte) in letters.iter().enumerate() {
        let rest = OsStr::from_bytes(&letters[at + 1..]);
        let short = OsString::from_vec(vec![b'-', byte]);
        done.has_rsync_letters |= !done.is_sync && b"az".contains(&byte);
        let attached = !rest.is_empty();
        let value = if attached { Some(rest) } else { words.peek().map(OsString::as_os_str) };
        let known = LETTERS.iter().find(|letter| letter.letter == char::from(byte));
        match known.map(|letter| letter.here) {
            // clap reports the unknown letter.
            None => {
                done.words.push(OsString::from_vec([b"-", &letters[at..]].concat()));
                return Ok(());
            }
            Some(Here::Own) if byte == b'R' => done.is_relative = true,
            // By itself, -h asks for help. Among other letters, or with --sync, it is rsync's --human-readable.
            Some(Here::Own) if byte == b'h' && (letters.len() > 1 || done.is_sync) => {
                done.words.push("--human-readable".into())
            }
            // Help for whoever means rsync's would end with 0, as a copy does.
            Some(Here::Own) if byte == b'h' && !done.is_alone => return Err(format!("-h: {NO_HELP}")),
            Some(Here::Own) => done.words.push(short),
            // rsync's -D has no value. Of scp's, the program would be copied as one more source.
            Some(Here::Kept)
                if byte == b'D'
                    && !done.is_sync
                    && !attached
                    && are_scps(&letters[..at])
                    && value.is_some_and(is_program) =>
            {
                return Err(format!("-D: {NO_SFTP}"));
            }
            Some(Here::Kept) => {
                let is_missing = |value: &&OsStr| byte == b'p' && !attached && is_number(value) && !exists(value);
                let number = value.filter(is_missing).map(escaped);
                done.notes.extend(number.map(|number| format!("{number} is taken as a SRC; ssh's port is -P PORT")));
            }
            Some(Here::Filter) => {
                let rule = if attached { Some(rest.to_owned()) } else { words.next() };
                let rule = rule.unwrap_or_default();
                let is_operand = exists(&rule) || rule.as_bytes().contains(&b':');
                if !attached && is_operand && filter(&rule).is_err() {
                    return Err("-f is rsync's --filter; overwriting needs no option".to_owned());
                }
                done.words.push(filter(&rule)?);
                return Ok(());
            }
            Some(Here::Synced(word, _)) if done.is_sync => done.words.push(word.into()),
            Some(Here::Synced(_, instead) | Here::Refused(instead)) => {
                return Err(format!("-{}: {instead}", char::from(byte)));
            }
            Some(_) if byte == b'C' && done.is_sync => return Err(format!("-C: {NO_CVS}")),
            Some(_) if byte == b'B' && done.is_sync => return Err(format!("-B: {NO_BLOCKS}")),
            Some(Here::Means(&["--rsh"])) | Some(Here::OwnValue) => {
                // rsync's letters `t` and `o` have no value: -rlptgoD, or -o by itself.
                let is_flag = match (byte, value) {
                    // If the next word were its value, the copy would go the other way, and delete there.
                    (b't', _) if done.is_sync && at > 0 && !attached => true,
                    (b't', _) if done.is_sync && !attached => return Err(format!("-t: {NO_TIMES}")),
                    // cp's -rt DIR SRC, or rsync's -rt SRC DST? Taken for the wrong one, the copy would go the other way.
                    (b't', _) if at > 0 && !attached => {
                        return Err(format!("-{}: {NO_TIMES}", String::from_utf8_lossy(letters)));
                    }
                    (b't', Some(value)) => attached && are_rsync_flags(value) && !exists(value),
                    (b'o', Some(value)) => !value.as_bytes().iter().any(|byte| b"= \t".contains(byte)),
                    (b'o', None) => true,
                    _ => false,
                };
                if is_flag {
                    continue;
                }
                // -in is a dry run, and no key is named `n`.
                let are_letters = value.is_some_and(|value| {
                    let others = value.as_bytes().iter().copied().filter(|byte| !b"46F".contains(byte));
                    attached && are_rsync_flags(&OsString::from_vec(others.collect())) && !exists(value)
                });
                // rsync's -F and -J have no value. As ssh's, they would take a source or letters as one, and what came
                // from that source would be deleted.
                if let (b'F' | b'J', Some(value)) = (byte, value) {
                    let is_sshs =
                        if byte == b'F' { is_configuration(value) } else { are_jumps(value, attached, exists) };
                    let is_meant = if done.is_sync { is_sshs && at == 0 } else { is_sshs || are_scps(&letters[..at]) };
                    if !is_meant || byte == b'F' && are_letters {
                        let instead = if byte == b'F' { NO_FILTERS } else { NO_LINK_TIMES };
                        return Err(format!("-{}: {instead}", char::from(byte)));
                    }
                    done.is_read_without_sync |= !(done.is_sync || is_sshs && at == 0);
                }
                // Here the letter is more likely rsync's -i. As ssh's it would take a source or letters as its value.
                let is_rsyncs =
                    |value: &OsStr| at > 0 || done.is_sync || are_letters || value.as_bytes().starts_with(b"-");
                if byte == b'i' && value.is_some_and(|value| is_rsyncs(value) && !is_key(value)) {
                    let letters = String::from_utf8_lossy(letters);
                    return Err(format!("-{letters}: {NO_KEY}"));
                }
                if byte == b'i' {
                    done.key = value.map(OsStr::to_owned);
                }
                let is_read_otherwise = match byte {
                    b'i' => !value.is_some_and(is_key),
                    b't' => !attached,
                    _ => false,
                };
                done.is_read_without_sync |= is_read_otherwise && !done.is_sync;
                done.words.push(if byte == b'e' { "--rsh".into() } else { short });
                done.words.extend(if attached { Some(rest.to_owned()) } else { words.next() });
                return Ok(());
            }
            // rsync's --sparse: the next word is a source, which may well be executable.
            Some(Here::Word(Behind::Program)) if !are_scps(&letters[..at]) => {}
            Some(Here::Word(Behind::Program)) if done.is_sync => {
                if at == 0 && !attached && value.is_some_and(is_program) {
                    return Err(format!("-S: {NO_SPARSE}"));
                }
            }
            Some(Here::Word(Behind::Program)) if !attached && value.is_some_and(|value| is_absent(value, exists)) => {
                let program = value.map(escaped).unwrap_or_default();
                return Err(format!("-{} {program}: no such program", char::from(byte)));
            }
            Some(Here::Word(behind)) => {
                if !value.is_some_and(|value| behind.is_meant(value, attached, exists)) {
                    if behind == Behind::Cipher {
                        done.words.push("--checksum".into());
                    }
                    continue;
                }
                let value = if attached { Some(rest.to_owned()) } else { words.next() };
                let value = value.unwrap_or_default();
                match behind {
                    Behind::Cipher => {
                        let mut option = OsString::from("Ciphers=");
                        option.push(value);
                        done.words.extend(["-o".into(), option]);
                    }
                    Behind::Program => {
                        done.is_read_without_sync = true;
                        done.words.extend(["--rsh".into(), value]);
                    }
                    Behind::Sftp => {}
                }
                return Ok(());
            }
            Some(Here::Means(_)) if byte == b'a' && done.is_listed => {}
            // As with rsync, a method that was chosen stays.
            Some(Here::Means(_)) if b"Cz".contains(&byte) && have_method(&done.words) => {}
            Some(Here::Means(instead)) => {
                done.ignores_times |= byte == b'I';
                done.is_read_without_sync |= b"BC".contains(&byte) && !done.is_sync;
                done.words.extend(instead.iter().map(OsString::from));
            }
            Some(Here::Number(number)) => {
                if let (Number::Limit, Some(rate)) = (number, value.filter(|value| is_rate(value) && !exists(value))) {
                    let rate = escaped(rate);
                    return Err(format!(
                        "-l {rate}: takes Kbit/s, without a unit; for bytes per second, use --bwlimit {rate}"
                    ));
                }
                let value = value.filter(|value| is_number(value) && (attached || !exists(value)));
                match (number, value) {
                    (Number::Port, None) => {
                        done.has_rsync_letters |= !done.is_sync;
                        done.words.push("--progress".into());
                    }
                    (_, None) => {}
                    (Number::Port, Some(value)) => done.words.extend(["-P".into(), value.to_owned()]),
                    (Number::Limit, Some(value)) => {
                        let kilobits: u64 = value.to_str().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
                        let bytes = kilobits.saturating_mul(1024 / 8);
                        done.words.push(format!("--bwlimit={bytes}").into());
                    }
                }
                if value.is_some() {
                    if !attached {
                        words.next();
                    }
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

impl Behind {
    /// Whether a word is the value of scp's letter. `attached` says whether it is in the same word as the letter, where
    /// more letters of rsync may follow.
    fn is_meant(self, word: &OsStr, attached: bool, exists: &impl Fn(&OsStr) -> bool) -> bool {
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

/// Advice if the value of `-i` is not a key.
pub const NO_KEY: &str = "-i takes ssh's key; for rsync's -i, type --itemize-changes";

/// Advice for `-h` among other words.
const NO_HELP: &str = "for help, type it alone, or --help; for rsync's -h, type --human-readable";

/// Advice for `-C` with `--sync`, which may be meant as rsync's.
const NO_CVS: &str = "rsync's -C excludes what CVS ignores: use --exclude or --exclude-from; to compress, use -z";

/// Advice for `-S` with `--sync`, which may be meant as either.
const NO_SPARSE: &str = "rsync's -S is done anyway: leave it out; ssh's program is --rsh PROGRAM";

/// Advice for `-D` before a program, which may be meant as either.
const NO_SFTP: &str = "rdcp does not use SFTP, so leave out scp's -D and its path; rsync's -D is done anyway";

/// Advice for `-F` where it may be meant as rsync's.
const NO_FILTERS: &str = "rsync's .rsync-filter files are not read: use --exclude-from; ssh's configuration is \
    --rsh 'ssh -F FILE'";

/// Advice for `-J` where it may be meant as rsync's.
const NO_LINK_TIMES: &str = "links get their times as other entries do, so leave out rsync's -J; ssh's jump host is \
    -o ProxyJump=HOST";

/// Advice for `-t` with `--sync`, which may be meant as rsync's.
const NO_TIMES: &str =
    "rsync's -t is done anyway: leave it out; name the directory to copy into with --target-directory DIR, or last";

/// How a private key begins, and how much of a file is searched for that.
const KEY_BEGIN: [u8; 11] = *b"-----BEGIN ";
const KEY_SEARCHED_BYTES: u64 = 4096;

/// Whether a word is the path of a key for ssh.
fn is_key(word: &OsStr) -> bool {
    let mut public = word.to_owned();
    public.push(".pub");
    let begins = |path: &OsStr| {
        let mut start = [0; KEY_BEGIN.len()];
        std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == KEY_BEGIN
    };
    std::path::Path::new(&public).exists() || begins(word)
}

/// Whether a word is a file or directory that ssh cannot take as a key. It takes a public key, because its agent may
/// have the other half, and a key with text before it.
pub fn is_no_key(word: &OsStr) -> bool {
    let Ok(found) = std::fs::metadata(word) else { return false };
    if !found.is_file() || is_key(word) {
        return found.is_dir();
    }
    let mut text = Vec::new();
    let read = std::fs::File::open(word).and_then(|file| file.take(KEY_SEARCHED_BYTES).read_to_end(&mut text));
    let is_public = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| text.starts_with(kind.as_bytes()));
    read.is_ok() && !is_public && !text.windows(KEY_BEGIN.len()).any(|part| part == KEY_BEGIN)
}

/// Whether ssh can take a word as its configuration. A directory is a source, and letters are rsync's `-FF`.
fn is_configuration(word: &OsStr) -> bool {
    word == "none" || std::fs::metadata(word).is_ok_and(|found| !found.is_dir())
}

/// Whether a word can name jump hosts for ssh: `[USER@]HOST[:PORT]`, with commas between them. `attached`: in the same
/// word as the letter, where more letters of rsync may follow.
fn are_jumps(word: &OsStr, attached: bool, exists: &impl Fn(&OsStr) -> bool) -> bool {
    let is_jump = |jump: &str| {
        let jump = jump.strip_prefix("ssh://").map_or(jump, |jump| jump.strip_suffix('/').unwrap_or(jump));
        let port = jump.rsplit_once(':').filter(|_| !jump.ends_with(']')).map_or("22", |(_, port)| port);
        !jump.is_empty() && !jump.starts_with('-') && !jump.contains('/') && is_number(OsStr::new(port))
    };
    !(exists(word) || attached && are_rsync_flags(word)) && word.to_string_lossy().split(',').all(is_jump)
}

/// Whether all these letters are letters of scp as well.
fn are_scps(letters: &[u8]) -> bool {
    letters.iter().all(|&byte| LETTERS.iter().any(|own| own.letter == char::from(byte) && !own.scp.is_empty()))
}

/// Whether a word is the path of a program, named with a slash.
fn is_program(word: &OsStr) -> bool {
    let is_executable = |found: std::fs::Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
    word.as_bytes().contains(&b'/') && std::fs::metadata(word).is_ok_and(is_executable)
}

/// Whether a word is an absolute path where nothing exists.
fn is_absent(word: &OsStr, exists: &impl Fn(&OsStr) -> bool) -> bool {
    word.as_bytes().starts_with(b"/") && !exists(word) && !is_program(word)
}

/// Whether a word is a number with a unit.
fn is_rate(word: &OsStr) -> bool {
    word.to_str().is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()) && parse_bytes(text).is_ok())
        && !is_number(word)
}

fn is_number(word: &OsStr) -> bool {
    !word.is_empty() && word.as_bytes().iter().all(u8::is_ascii_digit)
}

/// Whether a word consists of letters that rsync takes without a value.
fn are_rsync_flags(word: &OsStr) -> bool {
    word.as_bytes().iter().all(|&byte| {
        let letter = LETTERS.iter().find(|letter| letter.letter == char::from(byte));
        letter.is_some_and(|letter| letter.rsync.starts_with("--") && !b"BMTef@".contains(&byte))
    })
}

#[cfg(test)]
mod tests;
