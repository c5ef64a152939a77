//! What a command line of `rdcp` requests.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rd_proto::tree::PATH_BYTES_MAX;

use crate::control::frames::{Found, Kind};
use crate::fault::escaped;
use crate::job::Setup;
use crate::options::{TransferOptions, TreeOptions};
use crate::tree::Only;
use crate::tree::manifest::write::Target;

/// Maximum length in bytes of a host's name, including a user.
const HOST_BYTES_MAX: usize = 1024;

/// URL schemes that are not host names.
const SCHEMES: &[&str] = &["scp", "ssh", "sftp", "http", "https", "ftp", "ftps", "file", "s3", "gs", "smb", "nfs"];

/// Returns the length of the user in front of a host, including the @. An @ in a path does not count.
pub(super) fn user_bytes(text: &[u8]) -> usize {
    let end = text.iter().position(|&byte| byte == b':' || byte == b'/').unwrap_or(text.len());
    text[..end].iter().position(|&byte| byte == b'@').map_or(0, |at| at + 1)
}

/// Returns advice about an IPv6 address before a path that lacks its brackets: `fe80::1:/path`.
fn unbracketed(text: &OsStr) -> Option<String> {
    let text = text.to_str().filter(|text| !text.contains('['))?;
    let (user, rest) = text.split_once('@').map_or(("", text), |(user, rest)| (&text[..=user.len()], rest));
    let is_address = |end: &usize| rest[..*end].parse::<std::net::Ipv6Addr>().is_ok();
    let end = rest.rmatch_indices(':').map(|(at, _)| at).find(is_address)?;
    let (address, path) = (&rest[..end], &rest[end + 1..]);
    let words = [user, "[", address, "]:", path].concat();
    Some(format!("an IPv6 address needs brackets: {}", escaped(OsStr::new(&words))))
}

/// One side of a command line: `path`, `host:path`, `-`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spec {
    /// A path on this host.
    Here(OsString),
    /// Standard input or output.
    #[default]
    Standard,
    /// A path on a host, whose name is given to the launcher.
    There(OsString, OsString),
}

impl Spec {
    /// Returns the text that a user may type for it.
    pub(crate) fn typed(&self) -> String {
        let path = escaped(self.path());
        match self {
            Self::There(host, _) if host.as_bytes().contains(&b':') => {
                let (user, address) = host.as_bytes().split_at(user_bytes(host.as_bytes()));
                let [user, address] = [user, address].map(|part| escaped(OsStr::from_bytes(part)));
                format!("{user}[{address}]:{path}")
            }
            Self::There(host, _) => format!("{}:{path}", escaped(host)),
            Self::Here(_) | Self::Standard => path,
        }
    }

    /// Parses an argument. A colon after a slash, or after `./`, is part of a local name.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Ok(Self::Standard);
        }
        if bytes.is_empty() {
            return Err("empty path; use HOST: for the home directory on HOST, . for this directory".to_owned());
        }
        if let Some(rest) = bytes.strip_prefix(b"rsync://") {
            let host = rest.split(|&byte| b":/".contains(&byte)).next().unwrap_or_default();
            let (text, host) = (escaped(text), escaped(OsStr::from_bytes(host)));
            return Err(format!("{text}: rsync daemons are not supported; over ssh, write {host}:PATH"));
        }
        let at = user_bytes(bytes);
        let (host, path) = if bytes[at..].starts_with(b"[") {
            // An address: ssh takes it without the brackets.
            let Some(end) = bytes.windows(2).skip(at).position(|two| two == b"]:").map(|end| at + end) else {
                return Ok(Self::Here(text.to_owned()));
            };
            ([&bytes[..at], &bytes[at + 1..end]].concat(), &bytes[end + 2..])
        } else {
            let colon = bytes.iter().position(|&byte| byte == b':' || byte == b'/');
            let Some(colon) = colon.filter(|&at| bytes[at] == b':') else { return Ok(Self::Here(text.to_owned())) };
            (bytes[..colon].to_vec(), &bytes[colon + 1..])
        };
        if let Some(address) = unbracketed(text) {
            return Err(address);
        }
        if path.starts_with(b"//") && SCHEMES.iter().any(|scheme| host == scheme.as_bytes()) {
            let text = escaped(text);
            // Where scp:// is accepted, it has been translated.
            let forms = if host == b"scp" { "HOST:PATH" } else { "HOST:PATH or scp://HOST/PATH" };
            return Err(format!("{text}: unsupported URL; write {forms}"));
        }
        if path.starts_with(b":") {
            let (text, host) = (escaped(text), escaped(OsStr::from_bytes(&host)));
            return Err(format!("{text}: rsync daemon modules are not supported; over ssh, write {host}:PATH"));
        }
        if host.is_empty() || host.ends_with(b"@") || host.starts_with(b"@") {
            return Err(format!(
                "the host or user is missing in {}; write a local name with a colon as ./NAME",
                escaped(text)
            ));
        }
        // The launcher would take it for an option.
        if host.starts_with(b"-") {
            return Err(format!("a host cannot begin with a dash: {}", escaped(text)));
        }
        if host.len() > HOST_BYTES_MAX || path.len() > PATH_BYTES_MAX {
            let text = escaped(OsStr::from_bytes(&bytes[..64]));
            let most = format!("at most {HOST_BYTES_MAX} bytes of host and {PATH_BYTES_MAX} of path");
            return Err(format!("{text}... is too long: {most}"));
        }
        Ok(Self::There(OsString::from_vec(host), OsString::from_vec(path.to_vec())))
    }

    /// Returns the host's name for the launcher; empty for this host.
    pub(crate) fn host(&self) -> &OsStr {
        match self {
            Self::Here(_) | Self::Standard => OsStr::new(""),
            Self::There(host, _) => host,
        }
    }

    /// Returns the entry with this name in the directory that `self` names.
    pub(crate) fn below(self, name: &OsStr) -> Self {
        let joined = |directory: OsString| Path::new(&directory).join(name).into_os_string();
        match self {
            Self::Here(path) => Self::Here(joined(path)),
            Self::There(host, path) => Self::There(host, joined(path)),
            Self::Standard => Self::Standard,
        }
    }

    pub(crate) fn path(&self) -> &OsStr {
        match self {
            Self::Here(path) | Self::There(_, path) => path,
            Self::Standard => OsStr::new("-"),
        }
    }
}

/// What to copy, and how.
pub(crate) struct Plan<'a> {
    /// Manifests that list the copy.
    pub manifests: Vec<Target>,
    /// The files of `--json`, `--report` and `--trace`.
    pub(crate) reports: Vec<PathBuf>,
    pub(crate) sources: Vec<Spec>,
    /// If set, only these paths of the only source are copied.
    pub(crate) only: Option<Only>,
    pub(crate) destination: Spec,
    /// The places on several hosts that all get the same copy: each a [`Spec::There`] on a different host, DST first.
    /// Empty for a single destination.
    pub(crate) targets: Vec<Spec>,
    /// How long one of several hosts may take nothing.
    pub(crate) stall: Duration,
    /// Whether the destination must be a directory.
    pub(crate) directory: bool,
    /// Whether the destination is never a directory to copy into.
    pub(crate) exact: bool,
    pub(crate) recursive: bool,
    pub(crate) tree: TreeOptions,
    pub(crate) dry_run: bool,
    pub(crate) setup: Setup,
    pub(crate) transfer: &'a TransferOptions,
    /// Whether details are to be reported as well.
    pub(crate) verbose: bool,
    /// Whether the command was typed with rsync's letters and without `--sync`.
    pub(crate) has_rsync_letters: bool,
}

impl Plan<'_> {
    /// Reports whether the contents of a directory are meant instead of the directory itself: `SRC/` with `--sync`, as
    /// with rsync, and `SRC/.`.
    pub(crate) fn is_contents(&self, found: &Found) -> bool {
        let is_directory = found.kind == Kind::Directory;
        found.name.is_empty() || self.tree.sync && is_directory && found.path.ends_with(b"/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_of_a_command_line() {
        let there = |host: &str, path: &str| Ok(Spec::There(host.into(), path.into()));
        let here = |path: &str| Ok(Spec::Here(path.into()));
        for (text, spec) in [
            ("file", here("file")),
            ("./a:b", here("./a:b")),
            ("/a:b", here("/a:b")),
            ("dir/a:b", here("dir/a:b")),
            ("-", Ok(Spec::Standard)),
            ("h:f", there("h", "f")),
            ("h:", there("h", "")),
            ("u@h:/x:y", there("u@h", "/x:y")),
            ("h:-x", there("h", "-x")),
            ("[fd00::1]:/x", there("fd00::1", "/x")),
            ("u@[fe80::1%e0]:x", there("u@fe80::1%e0", "x")),
            ("[x", here("[x")),
            ("]:@[", there("]", "@[")),
            ("h:x@[1]", there("h", "x@[1]")),
            ("h:/x@[1]:y", there("h", "/x@[1]:y")),
            ("/x@[1]:y", here("/x@[1]:y")),
        ] {
            assert_eq!(Spec::parse(OsStr::new(text)), spec, "{text}");
        }
        for (text, right) in [("fe80::1:/x", "[fe80::1]:/x"), ("u@::1:x", "u@[::1]:x"), ("fd00::2:", "[fd00::2]:")] {
            assert!(Spec::parse(OsStr::new(text)).is_err_and(|line| line.ends_with(right)), "{text}");
        }
        for host in ["u@::1", "::1", "u@fe80::1%e0", "u@h", "h"] {
            let spec = Spec::There(host.into(), "/x".into());
            assert_eq!(Spec::parse(OsStr::new(&spec.typed())), Ok(spec), "{host}");
        }
        let long = |length| "x".repeat(length);
        for text in [
            "",
            "scp://h/x",
            "ssh://h/x",
            "http://h/x",
            "@h:x",
            "h::module/x",
            "u@h::",
            "rsync://h/module",
            ":x",
            "u@:x",
            "-oProxyCommand=x:y",
            &format!("h:{}", long(4096)),
            &format!("{}:", long(1025)),
        ] {
            assert!(Spec::parse(OsStr::new(text)).is_err(), "{text}");
        }
        assert!(Spec::parse(OsStr::new(&format!("{}:{}", long(1024), long(4095)))).is_ok());
    }
}
