//! Letters of scp and rsync with their meanings, and advice for those that are refused.

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

pub(super) const NO_OWNER: &str = "--no-owner leaves out the group as well; --chown :GROUP sets one";

pub(super) const NO_DIRLINKS: &str = "rdcp does not write through links in DST: the directory replaces the link, or \
    fails; with -R, --no-implied-dirs keeps links that lead to SRC";

pub(super) const ONE_PROTOCOL: &str = "rdcp has only one protocol, so leave out scp's -O; rsync's -O needs --sync";

pub(super) const NO_DIRS: &str = "rdcp copies directories with their contents (-r) or not at all";

pub(super) const NO_BLOCKS: &str = "the block size depends on the file size: leave it out";

pub(super) const NO_MOUNT_POINTS: &str = "mount points are copied as empty directories; leave them out with --exclude";

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

/// Advice if the value of `-i` is not a key.
pub const NO_KEY: &str = "-i takes ssh's key; for rsync's -i, type --itemize-changes";

/// Advice for `-h` among other words.
pub(super) const NO_HELP: &str = "for help, type it alone, or --help; for rsync's -h, type --human-readable";

/// Advice for `-C` with `--sync`, which may be meant as rsync's.
pub(super) const NO_CVS: &str =
    "rsync's -C excludes what CVS ignores: use --exclude or --exclude-from; to compress, use -z";

/// Advice for `-S` with `--sync`, which may be meant as either.
pub(super) const NO_SPARSE: &str = "rsync's -S is done anyway: leave it out; ssh's program is --rsh PROGRAM";

/// Advice for `-D` before a program, which may be meant as either.
pub(super) const NO_SFTP: &str =
    "rdcp does not use SFTP, so leave out scp's -D and its path; rsync's -D is done anyway";

/// Advice for `-F` where it may be meant as rsync's.
pub(super) const NO_FILTERS: &str = "rsync's .rsync-filter files are not read: use --exclude-from; ssh's configuration \
    is --rsh 'ssh -F FILE'";

/// Advice for `-J` where it may be meant as rsync's.
pub(super) const NO_LINK_TIMES: &str = "links get their times as other entries do, so leave out rsync's -J; ssh's jump \
    host is -o ProxyJump=HOST";

/// Advice for `-t` with `--sync`, which may be meant as rsync's.
pub(super) const NO_TIMES: &str =
    "rsync's -t is done anyway: leave it out; name the directory to copy into with --target-directory DIR, or last";
