//! Translates letters and words that users of scp and rsync are used to typing into options of `rdcp`.
//!
//! A letter whose effect a copy has anyway is accepted silently. A letter that asks for something `rdcp` cannot do is
//! refused, with advice on what to use instead. scp and rsync disagree on some letters; for those the next word
//! decides. `-P` and `-l` take the next word only if it consists of digits and no file has that name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Command, ValueEnum};

use super::wrong;
use crate::fault::escaped;
use crate::options::Compress;

mod letters;
mod looks;
mod meaning;
mod rsync;
mod uri;

pub use letters::{Behind, Here, LETTERS, Letter, NO_KEY, Number};
use letters::{
    NO_BLOCKS, NO_CVS, NO_FILTERS, NO_HELP, NO_LINK_TIMES, NO_MOUNT_POINTS, NO_OWNER, NO_SFTP, NO_SPARSE, NO_TIMES,
};
pub use looks::is_no_key;
use looks::{
    are_jumps, are_rsync_flags, are_scps, is_absent, is_configuration, is_key, is_number, is_program, is_rate,
};
use rsync::{long, taken_back};
use uri::uri;

/// A command line translated for `rdcp`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// The words that `rdcp` is to parse, without the program's name.
    pub words: Vec<OsString>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The value of `-i`.
    pub key: Option<OsString>,
    /// Names the last option that has taken a word as its value; else empty.
    pub besides: String,
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
    let (is_alone, typed) = (words.len() == 1, words.clone());
    let mut done = Translated { is_alone, is_sync, is_listed, ..Translated::default() };
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
                    let name = escaped(&words.next().unwrap_or_default());
                    return Err(format!("--compress {name}: expected one of off, auto, lz4, zstd; see --help"));
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
                    done.notes.extend(words.peek().and_then(|next| not_taken(&word, next, &exists)));
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
    done.besides = wrong::besides(command, &done.words, &typed);
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

/// Returns a note about the word after an option that takes a file only with `=`, if the word is probably meant as that
/// file.
fn not_taken(option: &OsStr, word: &OsStr, exists: &impl Fn(&OsStr) -> bool) -> Option<String> {
    let (option, name) = (option.to_str()?, escaped(word));
    let (what, is_meant) = match option {
        "--json" => ("report", name.ends_with(".json") && !name.contains(':')),
        "--digest-cache" => ("digests", name.starts_with('/')),
        _ => return None,
    };
    let is_meant = is_meant && !exists(word);
    is_meant.then(|| format!("{name} is taken as SRC or DST; a file for the {what} is {option}={name}"))
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
            // A script that means rsync's -h would get help and exit code 0, as after a copy.
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

#[cfg(test)]
mod tests;
