//! Long options of rsync that are not options of `rdcp` itself, and their meanings in `rdcp`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::letters::{Here, NO_CVS, NO_DIRLINKS, NO_DIRS};

/// Long options of rsync, and a few of cp, with their meanings in `rdcp`. Names with spaces between them mean the
/// same. A name that ends in `=` takes a value.
pub(super) const WORDS: &[(&str, Here)] = &[
    ("--archive", Here::Means(&["--recursive"])),
    // --no-xattrs and --no-specials leave out more than what these stand for, so they do not take those back.
    ("--acls --devices --specials", Here::Kept),
    ("--group --atimes --whole-file --partial --super --open-noatime --no-inc-recursive", Here::Kept),
    ("--no-i-r --old-args --8-bit-output --no-motd --secluded-args --protect-args --no-whole-file", Here::Kept),
    ("--no-W --fuzzy --executability --preallocate --inc-recursive --i-r --trust-sender --blocking-io", Here::Kept),
    ("--block-size= --checksum-choice= --cc= --checksum-seed= --compress-threads= --skip-compress=", Here::Kept),
    ("--max-alloc= --outbuf= --protocol= --sockopts= --stderr= --zt=", Here::Kept),
    ("--ignore-times", Here::Means(&["--checksum"])),
    ("--force", Here::Refused("--delete replaces directories that are not empty")),
    ("--drop-D --no-D", Here::Means(&["--no-specials"])),
    ("--no-p --no-perms", Here::Means(&["--no-mode"])),
    ("--no-o", Here::Means(&["--no-owner"])),
    ("--no-l --no-links", Here::Means(&["--no-symlinks"])),
    ("--no-t", Here::Means(&["--no-times"])),
    ("--inplace", Here::Means(&["--in-place"])),
    ("--debug=", Here::Refused("-vv and -vvv log what happens at both ends")),
    ("--no-h", Here::Means(&["--no-human-readable"])),
    ("--modify-window=-1", Here::Means(&["--modify-window=0"])),
    ("--delay-updates", Here::Refused("each file appears when complete; with --snapshot, the tree appears as a whole")),
    ("--no-compress --no-z", Here::Means(&["--compress=off"])),
    ("--ignore-non-existing", Here::Means(&["--existing"])),
    ("--ipv4", Here::Means(&["-o", "AddressFamily=inet"])),
    ("--ipv6", Here::Means(&["-o", "AddressFamily=inet6"])),
    ("--no-group --no-g", Here::Refused("--no-owner leaves out both owner and group")),
    ("--ignore-errors", Here::Refused("nothing is deleted where something could not be read; fix that first")),
    ("--keep-dirlinks", Here::Refused(NO_DIRLINKS)),
    ("--copy-dest=", Here::Refused("--link-dest links unchanged files; --find-moves links or copies renamed files")),
    ("--compare-dest=", Here::Refused("--link-dest links unchanged files, so that DST is complete")),
    ("--remote-option=", Here::Refused("options apply to both ends anyway")),
    ("--usermap=", Here::Refused("owners are mapped by name; --chown USER:GROUP sets one")),
    ("--groupmap=", Here::Refused("groups are mapped by name; --chown USER:GROUP sets one")),
    ("--delete-missing-args", Here::Refused("name the directory that contained them, with --delete")),
    ("--ignore-missing-args", Here::Refused("missing sources are reported (exit code 8), and the others are copied")),
    ("--append", Here::Refused("an interrupted copy resumes when run again; --append-verify extends shorter files")),
    ("--compress-level= --compress-choice= --zl= --zc=", Here::Refused("use --compress zstd or --compress lz4")),
    ("--cvs-exclude", Here::Refused(NO_CVS)),
    ("--dirs --old-dirs --old-d", Here::Refused(NO_DIRS)),
    ("--suffix=", Here::Refused("--backup-dir DIR keeps old files under their own names")),
    (
        "--munge-links",
        Here::Refused("links are copied as they are; --safe-links leaves out those that lead out of SRC"),
    ),
    ("--insecure-links", Here::Refused("links are never followed at DST")),
    ("--confine-root=", Here::Refused("nothing is written outside of DST")),
    ("--copy-devices", Here::Refused("a device is read only if it is SRC itself")),
    ("--write-devices", Here::Refused("--in-place writes to DST if it is a block device")),
    ("--fake-super", Here::Refused("only root can set owners; --no-owner leaves owners out")),
    ("--copy-as=", Here::Refused("log in as that user: USER@HOST:PATH")),
    ("--crtimes", Here::Refused("Linux cannot set the creation time of a file")),
    ("--omit-link-times", Here::Refused("links get their times as other entries do; --no-times leaves out all times")),
    ("--iconv=", Here::Refused("names are copied byte for byte")),
    ("--list-only", Here::Refused("-n shows what would be copied, ssh HOST ls -l what exists")),
    ("--contimeout=", Here::Refused("for ssh, use -o ConnectTimeout=SECONDS")),
    ("--stop-after= --time-limit= --stop-at=", Here::Refused("use timeout(1) to end it; run again, the copy resumes")),
    (
        "--write-batch= --only-write-batch= --read-batch=",
        Here::Refused("differences are sent, and cannot be kept in a file"),
    ),
    (
        "--password-file= --early-input= --daemon --config= --dparam= --detach --no-detach",
        Here::Refused("rsync daemons are not supported: name HOST:PATH, to connect by ssh"),
    ),
    ("--address=", Here::Refused("use --via ADDRESS to choose the network")),
    ("--log-file-format= --log-file=", Here::Refused("use --json=FILE, which is for programs")),
    ("--partial-dir=", Here::Refused("received data is kept beside the file, and the same copy resumes with it")),
    ("--temp-dir=", Here::Refused("files are written beside their destination, so that they can be renamed")),
    ("--out-format= --log-format=", Here::Refused("use --json, which is for programs")),
    ("--del --delete-during --delete-delay", Here::Means(&["--delete"])),
    (
        "--delete-before",
        Here::Refused("use --delete, which deletes in each directory after all its entries have been copied"),
    ),
    ("--rsync-path=", Here::Refused("use --agent PATH for the program on other hosts")),
    ("--port=", Here::Refused("ssh's port is -P PORT")),
    ("--no-X", Here::Means(&["--no-xattrs"])),
    ("--no-A --no-acls", Here::Refused("--no-xattrs leaves out ACLs and all other extended attributes")),
    ("--no-H", Here::Means(&["--no-hard-links"])),
    ("--no-S", Here::Means(&["--no-sparse"])),
    ("--no-i-d", Here::Means(&["--no-implied-dirs"])),
    ("--no-devices", Here::Refused("--no-specials leaves out devices, FIFOs and sockets")),
    ("--no-atimes --no-U", Here::Refused("--no-times leaves out access times and modification times")),
    ("--no-super", Here::Refused("--no-owner leaves out owner and group")),
    ("--no-partial", Here::Refused("what has been received is kept, so that the same copy resumes with it")),
    (
        "--no-backup",
        Here::Refused("backups are made only with --backup-dir, or backup-dir in a settings file: leave it out there"),
    ),
    (
        "--no-progress",
        Here::Refused("a terminal shows a progress bar by default; -q hides it, and prints only errors and warnings"),
    ),
    ("--old-compress --new-compress", Here::Means(&["--compress=auto"])),
    ("--remove-sent-files", Here::Means(&["--remove-source-files"])),
    ("--server --sender", Here::Refused("rdcp does not speak rsync's protocol; type rdcp in place of rsync")),
    // Options of cp.
    ("--no-clobber", Here::Refused("use --sync --ignore-existing")),
    ("--parents", Here::Refused("use --sync -R")),
    ("--preserve=", Here::Refused("modes, times, owners, links and attributes are preserved anyway: leave it out")),
    ("--reflink=", Here::Refused("done anyway where file systems can share data: leave it out")),
];

/// Options that [`super::translate`] handles by themselves.
const BY_THEMSELVES: &[&str] =
    &["--filter", "--info", "--no-R", "--no-relative", "--no-timeout", "--relative", "--timeout"];

/// Negations, of options or of other negations, each with the words that it takes back. Settings that say the same as a
/// long word do not apply either. Letters take nothing back, because `-a` and `-avHX` are typed out of habit.
pub(super) const NEGATED: &[(&[&str], &[&str])] = &[
    (&["--no-v", "--no-verbose"], &["-v", "--verbose"]),
    (&["--no-r", "--no-recursive"], &["-r", "--recursive"]),
    (&["--no-c", "--no-checksum"], &["--checksum"]),
    (&["--no-i", "--no-itemize-changes"], &["--itemize-changes"]),
    (&["--no-u", "--no-update"], &["-u", "--update"]),
    (&["--no-m", "--no-prune-empty-dirs"], &["-m", "--prune-empty-dirs"]),
    (&["--no-O", "--no-omit-dir-times"], &["--omit-dir-times"]),
    (&["--no-x", "--no-one-file-system"], &["-x", "--one-file-system"]),
    (&["--no-append"], &["--append-verify"]),
    (&["--no-bwlimit"], &["--bwlimit"]),
    (&["--no-from0"], &["-0", "--from0"]),
    (&["--no-inplace"], &["--in-place"]),
    (&["--no-mkpath"], &["--mkpath"]),
    (&["--no-numeric-ids"], &["--numeric-ids"]),
    (&["--i-d", "--implied-dirs"], &["--no-implied-dirs"]),
    // --group takes nothing back: the owner would come back as well.
    (&["--owner"], &["--no-owner"]),
    (&["--perms"], &["--no-mode"]),
    (&["--times"], &["--no-times"]),
    (&["--links"], &["--no-symlinks"]),
    (&["--hard-links"], &["--no-hard-links"]),
    (&["--xattrs"], &["--no-xattrs"]),
    (&["--sparse"], &["--no-sparse"]),
    (&["--no-d", "--no-dirs", "--no-y", "--no-fuzzy", "--no-J", "--no-omit-link-times", "--no-N", "--no-crtimes"], &[]),
    (&["--no-s", "--no-secluded-args", "--no-protect-args", "--no-old-args", "--no-8", "--no-8-bit-output"], &[]),
    (&["--no-force", "--no-ignore-errors", "--no-delay-updates", "--no-munge-links", "--no-write-devices"], &[]),
    (&["--no-iconv", "--no-blocking-io", "--no-open-noatime", "--no-contimeout"], &[]),
    (&["--msgs2stderr", "--no-msgs2stderr", "--motd", "--qsort"], &[]),
];

/// Returns the names of all these options, without hyphens.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let words = WORDS.iter().flat_map(|(names, _)| names.split(' '));
    let others = NEGATED.iter().flat_map(|(names, _)| names.iter()).chain(BY_THEMSELVES);
    words.chain(others.copied()).map(|name| name.trim_start_matches('-').trim_end_matches('='))
}

/// Returns the words that an option takes back; `None` if it is no negation.
pub(super) fn taken_back(word: &OsStr) -> Option<&'static [&'static str]> {
    NEGATED.iter().find(|(names, _)| names.iter().any(|name| word == *name)).map(|(_, words)| *words)
}

/// Translates a long option of rsync, and says whether the next word is its value. `None` if rsync has no such option.
pub(super) fn long(word: &OsStr) -> Result<Option<(&'static [&'static str], bool)>, String> {
    let text = word.as_bytes();
    let is = |name: &str| match name.strip_suffix('=') {
        Some(name) => text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'='),
        None => text == name.as_bytes(),
    };
    let has_value = |name: &str| name.ends_with('=') && !text.contains(&b'=');
    match WORDS.iter().find_map(|(names, here)| Some((names.split(' ').find(|name| is(name))?, here))) {
        Some((_, Here::Means(words))) => Ok(Some((words, false))),
        Some((name, Here::Refused(instead))) => Err(format!("{}: {instead}", name.trim_end_matches('='))),
        Some((name, _)) => Ok(Some((&[], has_value(name)))),
        None => Ok(None),
    }
}
