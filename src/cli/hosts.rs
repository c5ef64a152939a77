//! Finds names of hosts that the user knows, from the files of ssh. Shells complete these names. If such a name stands
//! where a path or a command was expected, its colon is probably missing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::control::names;
use crate::fs::accounts;

/// Maximum number of bytes read of each file.
const BYTES_MAX: u64 = 1 << 20;

/// Maximum number of files read of ssh's configuration.
const FILES_MAX: usize = 256;

/// How deeply files of ssh's configuration may include each other, as in ssh.
const DEPTH_MAX: usize = 16;

/// Directory of ssh's files for all users.
const SYSTEM: &str = "/etc/ssh";

/// Whether a word names a host, as far as the files of this host tell. It does if it is an address, or has a user in
/// front, or is in ssh's configuration, among the hosts that ssh has seen, or in /etc/hosts. No other host is asked.
pub(crate) fn is_known(word: &str) -> bool {
    let (user, name) = word.rsplit_once('@').unwrap_or(("", word));
    let is_bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if is_bracketed.is_some_and(|name| name.parse::<IpAddr>().is_ok()) {
        return true;
    }
    if name.is_empty() || name.contains(['/', ':']) {
        return false;
    }
    !user.is_empty()
        || name.parse::<IpAddr>().is_ok()
        || of_ssh(None).contains(name)
        || in_hosts(&text(Path::new("/etc/hosts")), name)
}

/// Returns the hosts that ssh's configuration names, and those that ssh has seen, unless their names are hashed.
/// `configuration` is the file of `-F`, which replaces the user's and the system's.
pub(crate) fn of_ssh(configuration: Option<&Path>) -> BTreeSet<String> {
    let home = accounts::own_home().map(PathBuf::from).unwrap_or_default();
    let own = home.join(".ssh");
    let mut found = Configuration { hosts: BTreeSet::new(), files: 0 };
    match configuration {
        Some(file) => found.read(file, &own, 0),
        None => {
            found.read(&own.join("config"), &own, 0);
            found.read(&Path::new(SYSTEM).join("ssh_config"), Path::new(SYSTEM), 0);
        }
    }
    let system = Path::new(SYSTEM);
    for file in [own.join("known_hosts"), own.join("known_hosts2"), system.join("ssh_known_hosts")] {
        found.hosts.extend(known_hosts(&text(&file)).map(str::to_owned));
    }
    found.hosts
}

/// Hosts found in ssh's configuration.
struct Configuration {
    hosts: BTreeSet<String>,
    files: usize,
}

impl Configuration {
    /// Reads the `Host` lines of a file and of the files that it includes. Relative paths of `Include` start at
    /// `directory`.
    fn read(&mut self, file: &Path, directory: &Path, depth: usize) {
        self.files += 1;
        if self.files > FILES_MAX || depth > DEPTH_MAX {
            return;
        }
        for line in text(file).lines() {
            let mut words = words(line);
            let Some(keyword) = words.next() else { continue };
            if keyword.eq_ignore_ascii_case("host") {
                self.hosts.extend(words.filter(|word| is_name(word)).map(str::to_owned));
            } else if keyword.eq_ignore_ascii_case("include") {
                for pattern in words {
                    let pattern = names::home_expanded(pattern.as_bytes());
                    // A relative path starts at ssh's directory, wherever the including file is.
                    for file in names::expanded(directory.join(pattern).as_os_str().as_bytes()) {
                        self.read(&file, directory, depth + 1);
                    }
                }
            }
        }
    }
}

/// Returns the words of a line of ssh's configuration. The keyword may end in `=`, and values may be in quotes.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split([' ', '\t', '=', '"']).filter(|word| !word.is_empty());
    words.take_while(|word| !word.starts_with('#'))
}

/// Whether a word is not a pattern, and can be typed.
fn is_name(word: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || "-._:%+".contains(letter);
    !word.starts_with('-') && !word.is_empty() && word.chars().all(is_letter)
}

/// Returns the beginning of a file; an empty text if it cannot be read.
fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the names in lines of `NAME,NAME KEYTYPE KEY`. Hashed names cannot be read. Names with a port, as in
/// `[NAME]:PORT`, are left out, because the port would have to be given in another way.
fn known_hosts(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.starts_with(['@', '#', '|']));
    let names = lines.flat_map(|line| line.split_whitespace().next().unwrap_or_default().split(','));
    names.filter(|name| is_name(name))
}

/// Whether a line `ADDRESS NAME...` has this name.
fn in_hosts(text: &str, name: &str) -> bool {
    let names = |line: &str| line.split('#').next().unwrap_or_default().split_whitespace().skip(1).any(|it| it == name);
    text.lines().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_files_of_ssh_and_of_the_system() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).expect("written");
        let outside = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&outside, "Host outside").expect("written");
        file("a.conf", "Host included\nInclude a.conf\n");
        file("b.conf", "host=\"quoted name\" # comment\n");
        let include = outside.path().display();
        let configuration =
            "# Host gone\nHost *.lan !bad near far $(x) -o gpu? n[1]\n\tHostName 10.0.0.1\nhost=other\n";
        file("config", &format!("{configuration}Include *.conf missing {include}\n"));
        let mut found = Configuration { hosts: BTreeSet::new(), files: 0 };
        found.read(&scratch.path().join("config"), scratch.path(), 0);
        let expected = ["far", "included", "name", "near", "other", "outside", "quoted"];
        assert!(found.hosts.iter().eq(expected), "{:?}", found.hosts);
        let known = "near,10.0.0.1 ssh-ed25519 AAAA\n|1|abc= ssh-rsa AAAA\n@revoked bad ssh-rsa AAAA\n# x\n[far]:22 ssh-rsa A\n";
        assert!(known_hosts(known).eq(["near", "10.0.0.1"]));
        let hosts = "127.0.0.1 localhost\n10.0.0.2\tfar far.lan # not.this\n";
        assert!(in_hosts(hosts, "far.lan") && !in_hosts(hosts, "10.0.0.2") && !in_hosts(hosts, "not.this"));
    }

    #[test]
    fn addresses_and_users_name_hosts() {
        assert!(["10.0.0.1", "fe80--1", "user@anything", "u@[::1]"].map(is_known) == [true, false, true, true]);
        assert!(!is_known("no-such-host-here") && !is_known("user@") && !is_known("a/b") && !is_known(""));
    }
}
