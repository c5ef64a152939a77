//! `rdcp` in place of `scp`: the same command lines by both, through a real sshd on this host. Whatever scp does right,
//! rdcp does too. Which cases these are is found by running scp, and compared with the table here.

mod rig;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rig::*;

/// An sshd on its own port, keys, and the configuration by which ssh finds and enters it.
struct Server {
    scratch: Scratch,
    port: u16,
    _process: Process,
}

impl Server {
    fn start() -> Self {
        let scratch = Scratch::new();
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").expect("root");
        }
        for name in ["host_key", "user_key", "other_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let port = free_port();
        let path = |name: &str| scratch.join(name).display().to_string();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nListenAddress ::1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
             UsePAM no\nPermitRootLogin prohibit-password\nPidFile none\nMaxStartups 100\nPrintMotd no\n\
             Subsystem sftp internal-sftp\n",
            path("host_key"),
            path("user_key.pub"),
        );
        scratch.file("sshd_config", server.as_bytes());
        let client = |key: &str| {
            format!(
                "Host named\n  HostName 127.0.0.1\nHost *\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
                 UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes\n  \
                 ConnectTimeout 10\n",
                path(key)
            )
        };
        scratch.file("ssh_config", client("user_key").as_bytes());
        scratch.file("keyless_config", client("none").as_bytes());
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &path("sshd_config")]).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::spawn(&mut command);
        process.line_with("listening on 127.0.0.1");
        Self { scratch, port, _process: process }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Scp,
    Rdcp,
}

/// The directory for one run of one tool.
struct Place<'a> {
    server: &'a Server,
    directory: PathBuf,
    /// Path of a name for it below the home, for cases with `~`.
    below_home: PathBuf,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.below_home);
    }
}

impl Place<'_> {
    fn join(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        let path = self.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, bytes).expect("a file");
    }

    fn holds(&self, name: &str, bytes: &[u8]) -> bool {
        fs::read(self.join(name)).is_ok_and(|got| got == bytes)
    }

    fn same(&self, one: &str, other: &str) -> bool {
        fs::read(self.join(one)).is_ok_and(|bytes| self.holds(other, &bytes))
    }

    /// Fills in a word of a command line: `{d}` is this directory, `{home}` its name below the home, `{k}`
    /// the directory of the keys.
    fn word(&self, word: &str) -> OsString {
        let home = self.below_home.file_name().expect("a name").to_string_lossy().into_owned();
        let filled = word
            .replace("{d}", &self.directory.display().to_string())
            .replace("{k}", &self.server.scratch.path().display().to_string())
            .replace("{home}", &home)
            .replace("{port}", &self.server.port.to_string())
            .replace("{user}", &user());
        filled.into()
    }
}

fn home() -> PathBuf {
    let output = Command::new("sh").args(["-c", "getent passwd \"$(id -u)\" | cut -d: -f6"]).output().expect("getent");
    PathBuf::from(String::from_utf8(output.stdout).expect("text").trim())
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().expect("id");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// One command line.
struct Case {
    name: &'static str,
    words: &'static [&'static str],
    /// Whether scp does it right. rdcp must do it right in any case. `None` if it depends on the release and the user.
    by_scp: Option<bool>,
    make: fn(&Place<'_>),
    /// Whether the copy was made right.
    is_right: fn(&Place<'_>, &Ended) -> bool,
}

impl Case {
    fn run(&self, tool: Tool, server: &Server) -> (bool, Ended) {
        let directory = server.scratch.join(&format!("{}-{tool:?}", self.name));
        fs::create_dir(&directory).expect("a directory");
        let below_home = home().join(format!(".rd-scp-{}-{}-{tool:?}", std::process::id(), self.name));
        let place = Place { server, directory, below_home };
        (self.make)(&place);
        let mut command = match tool {
            Tool::Scp => Command::new("scp"),
            Tool::Rdcp => rdcp(),
        };
        let has_configuration = self.words.contains(&"-F");
        if !has_configuration && !self.words.is_empty() {
            command.arg("-F").arg(server.scratch.join("ssh_config"));
        }
        if tool == Tool::Rdcp && !self.words.is_empty() {
            command.args(["--agent", AGENT]);
        }
        command.args(self.words.iter().map(|word| place.word(word)));
        command.current_dir(&place.directory).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = Process::spawn(&mut command).wait();
        ((self.is_right)(&place, &ended), ended)
    }
}

fn nothing(_: &Place<'_>) {}

fn fails(_: &Place<'_>, ended: &Ended) -> bool {
    ended.code != 0
}

/// Makes a file to copy.
fn src(place: &Place<'_>) {
    place.file("src", b"what is copied");
}

fn is_dst(place: &Place<'_>, ended: &Ended) -> bool {
    ended.code == 0 && place.holds("dst", b"what is copied")
}

fn in_dst(place: &Place<'_>, ended: &Ended) -> bool {
    ended.code == 0 && place.holds("dst/src", b"what is copied")
}

fn is_refused(place: &Place<'_>, ended: &Ended) -> bool {
    ended.code != 0 && !place.join("dst").exists()
}

fn sized(place: &Place<'_>, bytes: usize) {
    place.file("src", &noise(bytes));
}

fn is_same(place: &Place<'_>, ended: &Ended) -> bool {
    ended.code == 0 && place.same("src", "dst")
}

fn two(place: &Place<'_>) {
    place.file("src1", b"one");
    place.file("src2", b"two, longer");
}

fn has_two(place: &Place<'_>, ended: &Ended) -> bool {
    ended.code == 0 && place.same("src1", "dst/src1") && place.same("src2", "dst/src2")
}

fn tree(place: &Place<'_>) {
    place.file("src_dir/a", b"a");
    place.file("src_dir/below/b", b"b");
    fs::create_dir(place.join("src_dir/empty")).expect("a directory");
}

fn is_tree(place: &Place<'_>, name: &str) -> bool {
    place.same("src_dir/a", &format!("{name}/a"))
        && place.same("src_dir/below/b", &format!("{name}/below/b"))
        && place.join(name).join("empty").is_dir()
}

fn with(make: fn(&Place<'_>), place: &Place<'_>) {
    make(place);
    fs::create_dir(place.join("dst")).expect("a directory");
}

fn many(place: &Place<'_>, count: usize) {
    for number in 0..count {
        place.file(&format!("src_dir/sub{}/file{number}", number % 7), &noise(number * 13));
    }
}

fn has_many(place: &Place<'_>, ended: &Ended, count: usize) -> bool {
    let is_there = |number: usize| {
        let name = format!("sub{}/file{number}", number % 7);
        place.same(&format!("src_dir/{name}"), &format!("dst/{name}"))
    };
    ended.code == 0 && (0..count).all(is_there)
}

/// Names that a shell, a line-based format or a text would not preserve.
const ODD: &[&[u8]] =
    &[b"with space", b"two\nlines", b"'single' \"double\"", b"$HOME `id` \\", b"\xff\xfe", b"*?[a]", b"-r", b"a:b"];

fn odd(place: &Place<'_>) {
    fs::create_dir(place.join("src_dir")).expect("a directory");
    for name in ODD {
        fs::write(place.join("src_dir").join(OsStr::from_bytes(name)), name).expect("a file");
    }
}

fn has_odd(place: &Place<'_>, ended: &Ended) -> bool {
    let is_there =
        |name: &&&[u8]| fs::read(place.join("dst").join(OsStr::from_bytes(name))).is_ok_and(|bytes| bytes == **name);
    ended.code == 0 && ODD.iter().filter(is_there).count() == ODD.len()
}

macro_rules! case {
    ($name:literal, $words:expr, $by_scp:expr, $make:expr, $is_right:expr) => {
        Case { name: $name, words: &$words, by_scp: $by_scp, make: $make, is_right: $is_right }
    };
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    case!("no-arguments", [], Some(true), nothing, fails),
    case!("help", ["--help"], Some(false), nothing, |_, ended| ended.code == 0),
    // Beside other words it may be rsync's.
    case!("letter-of-help", ["-h"], Some(true), nothing, fails),
    case!("one-argument", ["src"], Some(true), src, fails),
    case!("hosts-that-are-none", ["a.invalid:a", "b.invalid:b", "c.invalid:c"], Some(true), nothing, fails),
    case!("a-host-that-is-none", ["src", "a.invalid:dst"], Some(true), src, fails),
    case!("missing-source-push", ["none", "localhost:{d}/dst"], Some(true), nothing, is_refused),
    case!("missing-source-pull", ["localhost:{d}/none", "dst"], Some(true), nothing, is_refused),
    case!("push-64", ["src", "localhost:{d}/dst"], Some(true), |place| sized(place, 64), is_same),
    case!("pull-64", ["localhost:{d}/src", "dst"], Some(true), |place| sized(place, 64), is_same),
    case!("push-4096", ["src", "localhost:{d}/dst"], Some(true), |place| sized(place, 4096), is_same),
    case!("pull-4096", ["localhost:{d}/src", "dst"], Some(true), |place| sized(place, 4096), is_same),
    case!("push-128M", ["src", "localhost:{d}/dst"], Some(true), |place| sized(place, 128 << 20), is_same),
    case!("pull-128M", ["localhost:{d}/src", "dst"], Some(true), |place| sized(place, 128 << 20), is_same),
    case!("push-0", ["src", "localhost:{d}/dst"], Some(true), |place| sized(place, 0), is_same),
    case!("pull-0", ["localhost:{d}/src", "dst"], Some(true), |place| sized(place, 0), is_same),
    case!("by-user", ["src", "{user}@localhost:{d}/dst"], Some(true), src, is_dst),
    case!("by-address", ["src", "127.0.0.1:{d}/dst"], Some(true), src, is_dst),
    case!("by-uri", ["src", "scp://localhost:{port}/{d}/dst"], Some(true), src, is_dst),
    case!("push-v6", ["src", "[::1]:{d}/dst"], Some(true), src, is_dst),
    case!("pull-v6", ["[::1]:{d}/src", "dst"], Some(true), src, is_dst),
    case!("push-user-v6", ["src", "{user}@[::1]:{d}/dst"], Some(true), src, is_dst),
    case!("pull-user-v6", ["{user}@[::1]:{d}/src", "dst"], Some(true), src, is_dst),
    case!("between", ["localhost:{d}/src", "127.0.0.1:{d}/dst"], Some(true), src, is_dst),
    case!("between-3", ["-3", "localhost:{d}/src", "127.0.0.1:{d}/dst"], Some(true), src, is_dst),
    case!("within", ["src", "dst"], Some(true), src, is_dst),
    case!("two-push", ["src1", "src2", "localhost:{d}/dst"], Some(true), |place| with(two, place), has_two),
    case!("two-pull", ["localhost:{d}/src1", "localhost:{d}/src2", "dst"], Some(true), |place| with(two, place), has_two),
    case!("two-push-missing", ["src1", "src2", "localhost:{d}/dst"], None, two, has_two),
    case!("two-pull-missing", ["localhost:{d}/src1", "localhost:{d}/src2", "dst"], None, two, has_two),
    case!("two-to-a-file", ["src1", "src2", "localhost:{d}/dst"], Some(true), |place| { two(place); place.file("dst", b"old") },
        |place, ended| ended.code != 0 && place.holds("dst", b"old")),
    case!("slash-push", ["src", "localhost:{d}/dst/"], Some(false), src, in_dst),
    case!("slash-pull", ["localhost:{d}/src", "dst/"], Some(false), src, in_dst),
    case!("into-push", ["src", "localhost:{d}/dst"], Some(true), |place| with(src, place), in_dst),
    case!("into-pull", ["localhost:{d}/src", "{d}/dst"], Some(true), |place| with(src, place), in_dst),
    case!("below-a-file-push", ["src", "localhost:{d}/dst/src"], Some(true), |place| { src(place); place.file("dst", b"old") },
        |place, ended| ended.code != 0 && place.holds("dst", b"old")),
    case!("below-a-file-pull", ["localhost:{d}/src", "dst/src"], Some(true), |place| { src(place); place.file("dst", b"old") },
        |place, ended| ended.code != 0 && place.holds("dst", b"old")),
    case!("tree-without-r", ["src_dir", "localhost:{d}/dst"], Some(true), tree, is_refused),
    case!("tree-push", ["-r", "src_dir", "localhost:{d}/dst"], Some(true), tree,
        |place, ended| ended.code == 0 && is_tree(place, "dst")),
    case!("tree-pull", ["-r", "localhost:{d}/src_dir", "dst"], Some(true), tree,
        |place, ended| ended.code == 0 && is_tree(place, "dst")),
    case!("tree-between", ["-r", "localhost:{d}/src_dir", "127.0.0.1:{d}/dst"], Some(true), tree,
        |place, ended| ended.code == 0 && is_tree(place, "dst")),
    case!("tree-into-push", ["-r", "src_dir", "localhost:{d}/dst"], Some(true), |place| with(tree, place),
        |place, ended| ended.code == 0 && is_tree(place, "dst/src_dir")),
    case!("tree-into-pull", ["-r", "localhost:{d}/src_dir", "dst"], Some(true), |place| with(tree, place),
        |place, ended| ended.code == 0 && is_tree(place, "dst/src_dir")),
    case!("tree-archive", ["-rp", "src_dir", "localhost:{d}/dst"], Some(true),
        |place| { tree(place); fs::set_permissions(place.join("src_dir/a"), fs::Permissions::from_mode(0o640)).expect("ours") },
        |place, ended| ended.code == 0 && is_tree(place, "dst")
            && fs::metadata(place.join("dst/a")).is_ok_and(|found| found.mode() & 0o7777 == 0o640)),
    case!("overwrite-push", ["src", "localhost:{d}/dst"], Some(true), |place| { src(place); place.file("dst", b"old") }, is_dst),
    case!("overwrite-larger-push", ["src", "localhost:{d}/dst"], Some(true), |place| { src(place); place.file("dst", &noise(9999)) }, is_dst),
    case!("overwrite-larger-pull", ["localhost:{d}/src", "dst"], Some(true), |place| { src(place); place.file("dst", &noise(9999)) }, is_dst),
    case!("home-pull", ["localhost:~/{home}/src", "dst"], Some(true), |place| {
        fs::create_dir(&place.below_home).expect("ours");
        fs::write(place.below_home.join("src"), b"what is copied").expect("a file");
    }, is_dst),
    case!("home-push", ["src", "localhost:~/{home}"], Some(true), |place| { src(place); fs::create_dir(&place.below_home).expect("ours") },
        |place, ended| ended.code == 0 && fs::read(place.below_home.join("src")).is_ok_and(|got| got == b"what is copied")),
    case!("home-itself", ["{home}", "localhost:~"], Some(true), |place| {
        let name = place.below_home.file_name().expect("a name").to_string_lossy().into_owned();
        place.file(&name, b"what is copied");
    }, |place, ended| {
        let is_right = ended.code == 0 && fs::read(&place.below_home).is_ok_and(|got| got == b"what is copied");
        let _ = fs::remove_file(&place.below_home);
        is_right
    }),
    case!("home-of-a-user", ["localhost:~{user}/{home}/src", "dst"], Some(true), |place| {
        fs::create_dir(&place.below_home).expect("ours");
        fs::write(place.below_home.join("src"), b"what is copied").expect("a file");
    }, is_dst),
    case!("relative-to-home", ["localhost:{home}/src", "dst"], Some(true), |place| {
        fs::create_dir(&place.below_home).expect("ours");
        fs::write(place.below_home.join("src"), b"what is copied").expect("a file");
    }, is_dst),
    case!("pattern-files", ["localhost:{d}/src*", "dst"], Some(true), |place| with(two, place), has_two),
    case!("pattern-files-missing", ["localhost:{d}/src*", "dst"], None, two, has_two),
    case!("pattern-trees", ["-r", "localhost:{d}/src*", "dst"], Some(true), |place| with(tree, place),
        |place, ended| ended.code == 0 && is_tree(place, "dst/src_dir")),
    case!("pattern-trees-missing", ["-r", "localhost:{d}/src*", "dst"], None, |place| { tree(place); two(place) },
        |place, ended| ended.code == 0 && is_tree(place, "dst/src_dir") && has_two(place, ended)),
    case!("pattern-without-match", ["localhost:{d}/none*", "dst"], Some(true), src, is_refused),
    case!("same-file-push", ["src", "localhost:{d}/src"], Some(true), |place| sized(place, 300_000),
        |place, ended| ended.code == 0 && place.holds("src", &noise(300_000))),
    case!("same-file-pull", ["localhost:{d}/src", "{d}/src"], Some(true), |place| sized(place, 300_000),
        |place, ended| ended.code == 0 && place.holds("src", &noise(300_000))),
    case!("read-only", ["src", "localhost:{d}/dst"], Some(true), |place| {
        src(place);
        fs::set_permissions(place.join("src"), fs::Permissions::from_mode(0o444)).expect("ours");
    }, is_dst),
    case!("read-only-again", ["src", "localhost:{d}/dst"], None, |place| {
        src(place);
        place.file("dst", b"old");
        for name in ["src", "dst"] {
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o444)).expect("ours");
        }
    }, is_dst),
    case!("many-push", ["-r", "src_dir", "localhost:{d}/dst"], Some(true), |place| many(place, 500),
        |place, ended| has_many(place, ended, 500)),
    case!("many-pull", ["-r", "localhost:{d}/src_dir", "dst"], Some(true), |place| many(place, 100),
        |place, ended| has_many(place, ended, 100)),
    case!("odd-names-push", ["-r", "src_dir", "localhost:{d}/dst"], Some(true), odd, has_odd),
    case!("odd-names-pull", ["-r", "localhost:{d}/src_dir", "dst"], Some(true), odd, has_odd),
    case!("a-space", ["localhost:{d}/with space", "localhost:{d}/an other"], Some(true), |place| place.file("with space", b"1"),
        |place, ended| ended.code == 0 && place.holds("an other", b"1")),
    case!("link-without-r", ["link", "localhost:{d}/dst"], Some(true), |place| { src(place); symlink("src", place.join("link")).expect("a link") },
        |place, ended| is_dst(place, ended) && !fs::symlink_metadata(place.join("dst")).is_ok_and(|found| found.is_symlink())),
    case!("link-in-a-tree", ["-r", "src_dir", "localhost:{d}/dst"], Some(true), |place| { tree(place); symlink("a", place.join("src_dir/link")).expect("a link") },
        |place, ended| ended.code == 0 && is_tree(place, "dst") && place.holds("dst/link", b"a")),
    case!("link-that-leads-nowhere", ["-r", "src_dir", "localhost:{d}/dst"], Some(false), |place| { tree(place); symlink("nowhere", place.join("src_dir/link")).expect("a link") },
        |place, ended| ended.code == 0 && is_tree(place, "dst")),
    case!("port", ["-P", "{port}", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("port-attached", ["-P{port}", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("wrong-port", ["-P", "1", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("v4", ["-4", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("v6", ["-6", "src", "[::1]:{d}/dst"], Some(true), src, is_dst),
    case!("v4-to-v6", ["-4", "src", "[::1]:{d}/dst"], Some(true), src, is_refused),
    case!("v6-to-v4", ["-6", "src", "127.0.0.1:{d}/dst"], Some(true), src, is_refused),
    case!("quiet", ["-q", "src", "localhost:{d}/dst"], Some(true), src,
        |place, ended| is_dst(place, ended) && ended.stderr.is_empty()),
    case!("quiet-verbose", ["-vvv", "-q", "src", "localhost:{d}/dst"], Some(false), src,
        |place, ended| is_dst(place, ended) && ended.stderr.is_empty()),
    case!("verbose", ["-v", "src", "localhost:{d}/dst"], Some(true), src, |place, ended| is_dst(place, ended) && !ended.stderr.is_empty()),
    case!("compressed", ["-C", "src", "localhost:{d}/dst"], Some(true), |place| place.file("src", &text(3 << 20)), is_same),
    case!("configuration", ["-F", "{k}/ssh_config", "src", "named:{d}/dst"], Some(true), src, is_dst),
    case!("key", ["-F", "{k}/keyless_config", "-i", "{k}/user_key", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("wrong-key", ["-F", "{k}/keyless_config", "-i", "{k}/other_key", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("option", ["-o", "Port={port}", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("wrong-option", ["-o", "Port=1", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("cipher", ["-c", "aes128-ctr", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("no-cipher", ["-c", "none-ctr", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("jump", ["-J", "127.0.0.1", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("wrong-jump", ["-J", "127.0.0.1:1", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("program", ["-S", "/usr/bin/ssh", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
    case!("wrong-program", ["-S", "/bin/false", "src", "localhost:{d}/dst"], Some(true), src, is_refused),
    case!("letters", ["-Cpqr", "src_dir", "localhost:{d}/dst"], Some(true), tree,
        |place, ended| ended.code == 0 && is_tree(place, "dst")),
    case!("sftp", ["-s", "-X", "nrequests=8", "src", "localhost:{d}/dst"], Some(true), src, is_dst),
];

#[test]
fn what_scp_does_rdcp_does() {
    let server = Server::start();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for (tool, expected) in [(Tool::Scp, case.by_scp), (Tool::Rdcp, Some(true))] {
                        let (is_right, ended) = case.run(tool, &server);
                        if expected.is_some_and(|expected| expected != is_right) {
                            let how = if is_right { "is right" } else { "is wrong" };
                            let line =
                                format!("{}: {tool:?} {how}: exit {}: {}", case.name, ended.code, ended.stderr.trim());
                            wrong.lock().expect("no panic").push(line);
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

/// The limit is in Kbit/s for scp, and in KiB/s or with a unit for rsync.
#[test]
fn limits_are_kept() {
    let server = Server::start();
    for (tool, words) in [
        (Tool::Scp, &["-l", "100000", "src", "localhost:{d}/dst"]),
        (Tool::Rdcp, &["-l", "100000", "src", "localhost:{d}/dst"]),
    ] {
        let make = |place: &Place<'_>| sized(place, 20 << 20);
        let case = Case { name: "limit", words, by_scp: Some(true), make, is_right: is_same };
        let (is_right, ended) = case.run(tool, &server);
        assert!(is_right, "{tool:?}: {}", ended.stderr);
        // 100,000 Kbit/s are 12.2 MiB/s, and the first data to be read is not waited for.
        assert!(ended.after > Duration::from_millis(1200), "{tool:?} took {:?}", ended.after);
    }
}
