//! Names of hosts that the user knows: a word that is one of them, where a path or a command was expected, lacks its colon.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::control::names;

/// Bytes that are read of each file.
const BYTES_MAX: u64 = 1 << 20;

/// Whether a word names a host, as far as this host's files tell: it is an address, has a user in front, or stands in ssh's
/// configuration, among the hosts that ssh has seen, or in /etc/hosts. Asks no other host.
pub(crate) fn is_known(word: &str) -> bool {
    let (user, name) = word.rsplit_once('@').unwrap_or(("", word));
    let is_bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if is_bracketed.is_some_and(|name| name.parse::<IpAddr>().is_ok()) {
        return true;
    }
    if name.is_empty() || name.contains(['/', ':']) {
        return false;
    }
    let home = names::own_home().map(PathBuf::from).unwrap_or_default();
    !user.is_empty()
        || name.parse::<IpAddr>().is_ok()
        || in_configuration(&text(&home.join(".ssh/config")), name)
        || in_known_hosts(&text(&home.join(".ssh/known_hosts")), name)
        || in_hosts(&text(Path::new("/etc/hosts")), name)
}

/// The beginning of a file; nothing where it cannot be read.
fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `Host` lines; patterns name nothing.
fn in_configuration(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split([' ', '\t', '=']).filter(|word| !word.is_empty());
        words.next().is_some_and(|word| word.eq_ignore_ascii_case("host")) && words.any(|word| word == name)
    })
}

/// Lines of `NAME,NAME KEYTYPE KEY`; hashed names cannot be read.
fn in_known_hosts(text: &str, name: &str) -> bool {
    text.lines().any(|line| line.split_whitespace().next().is_some_and(|names| names.split(',').any(|it| it == name)))
}

/// Lines of `ADDRESS NAME...`.
fn in_hosts(text: &str, name: &str) -> bool {
    let names = |line: &str| line.split('#').next().unwrap_or_default().split_whitespace().skip(1).any(|it| it == name);
    text.lines().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_files_of_ssh_and_of_the_system() {
        let configuration = "# Host gone\nHost *.lan !bad near far\n\tHostName 10.0.0.1\nhost=other\n";
        for (name, expected) in [("near", true), ("far", true), ("other", true), ("10.0.0.1", false), ("gone", false)] {
            assert_eq!(in_configuration(configuration, name), expected, "{name}");
        }
        let known = "near,10.0.0.1 ssh-ed25519 AAAA\n|1|abc= ssh-rsa AAAA\n";
        assert!(in_known_hosts(known, "near") && in_known_hosts(known, "10.0.0.1"));
        assert!(!in_known_hosts(known, "ssh-ed25519") && !in_known_hosts(known, "AAAA"));
        let hosts = "127.0.0.1 localhost\n10.0.0.2\tfar far.lan # not.this\n";
        assert!(in_hosts(hosts, "far.lan") && !in_hosts(hosts, "10.0.0.2") && !in_hosts(hosts, "not.this"));
    }

    #[test]
    fn addresses_and_users_name_hosts() {
        assert!(["10.0.0.1", "fe80--1", "user@anything", "u@[::1]"].map(is_known) == [true, false, true, true]);
        assert!(!is_known("no-such-host-here") && !is_known("user@") && !is_known("a/b") && !is_known(""));
    }
}
