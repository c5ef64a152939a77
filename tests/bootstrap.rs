//! Hosts without an agent: the agent is sent there, cached, checked before each start, and replaced.
//!
//! The other host is simulated by a launcher that sets its own PATH and HOME. Like `ssh`, it passes
//! its arguments to a shell.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::*;
use rustix::process::Signal;

/// Records the command, and runs the last argument as sshd does: in the home, by a shell, with the host's own PATH.
const LAUNCHER: &str = "#!/bin/sh
for last; do :; done
printf '%.30s\\n' \"$last\" >>DIR/noted
export HOME=DIR/home PATH=DIR/bin:/usr/bin:/bin
unset XDG_CACHE_HOME
cd \"$HOME\"
EXTRA
exec sh -c \"$last\"
";

struct Far(Scratch);

impl Far {
    fn new() -> Self {
        Self::with("", "")
    }

    /// `extra`: shell text that runs on the host before the command, which is in `$last`. `home`:
    /// appended to the host's home.
    fn with(extra: &str, home: &str) -> Self {
        let far = Self(Scratch::new());
        for name in ["home", "bin"] {
            fs::create_dir(far.join(name)).expect("a directory");
        }
        let text = LAUNCHER.replace("EXTRA", extra).replace("DIR/home", &format!("DIR/home{home}"));
        let text = text.replace("DIR", far.0.path().to_str().expect("UTF-8"));
        for name in ["ssh", "rsh"] {
            far.program(name, &text);
        }
        far.0.file("source", b"12345");
        far
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.file(name, text.as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        path
    }

    /// Prepares a copy to the host.
    fn command(&self, launcher: &str, options: &[&str]) -> Command {
        let mut command = rdcp();
        let mut target = OsString::from("far:");
        target.push(self.join("copy"));
        command.arg("--rsh").arg(self.join(launcher)).args(options).arg("source").arg(target);
        command.current_dir(self.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn copy(&self, options: &[&str]) -> Ended {
        Process::spawn(&mut self.command("ssh", options)).wait()
    }

    fn arrived(&self) {
        assert_eq!(fs::read(self.join("copy")).expect("a copy"), b"12345");
        fs::remove_file(self.join("copy")).expect("ours");
    }

    /// Copies successfully, with an agent that is sent.
    #[track_caller]
    fn sends(&self) {
        let ended = self.copy(&[]);
        ended.expect(0);
        // If sending takes long, a notice is printed before.
        let said: Vec<&str> = ended.stderr.lines().filter(|line| !line.contains("copying rdma-pipe-agent")).collect();
        assert_eq!(said, [self.line("rdcp", "far").trim_end()]);
        self.arrived();
    }

    /// Returns the line that reports a sent agent.
    fn line(&self, program: &str, host: &str) -> String {
        let bytes = fs::metadata(AGENT).expect("the agent").len();
        format!("{program}: copied rdma-pipe-agent ({} MB) to {host}\n", (bytes + 500_000) / 1_000_000)
    }

    /// Copies successfully, without sending or printing anything.
    #[track_caller]
    fn finds(&self) {
        let ended = self.copy(&[]);
        ended.expect(0);
        assert_eq!(ended.stderr, "");
        self.arrived();
    }

    /// Fails to copy, with one line that contains all `parts`, and leaves nothing.
    #[track_caller]
    fn refuses(&self, parts: &[&str]) {
        let ended = self.copy(&[]);
        ended.expect(3).one_line("rdcp", &["far"]).one_line("rdcp", parts);
        assert!(!self.join("copy").exists());
    }

    fn cache(&self) -> PathBuf {
        self.join("home/.cache/rdma-pipe")
    }

    /// Returns the files in the cache, including hidden ones.
    fn cached(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache()).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// Returns the only file in the cache, which must be the agent of this build.
    #[track_caller]
    fn agent(&self) -> PathBuf {
        let cached = self.cached();
        assert_eq!(cached.len(), 1, "{cached:?}");
        assert!(cached[0].symlink_metadata().expect("it").is_file());
        assert!(fs::read(&cached[0]).expect("the agent") == fs::read(AGENT).expect("the agent"), "the same program");
        cached[0].clone()
    }

    /// Returns the commands that the launcher was told to run, shortened, and forgets them.
    fn launches(&self) -> Vec<String> {
        let noted = fs::read_to_string(self.join("noted")).unwrap_or_default();
        fs::write(self.join("noted"), "").expect("ours");
        noted.lines().map(str::to_owned).collect()
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("it").mode() & 0o7777
}

#[test]
fn a_slow_upload_is_announced() {
    let far = Far::new();
    far.program("bin/head", "#!/bin/sh\nsleep 4\nexec /usr/bin/head \"$@\"\n");
    let ended = far.copy(&[]);
    ended.expect(0);
    let copied = far.line("rdcp", "far");
    let copying = copied.replace("copied", "copying").replace(" to far", " to far, once");
    assert_eq!(ended.stderr, copying + &copied);
    far.arrived();
}

/// The agent may be on its way to many hosts over one line. A host that takes it for long is not late, however quick a
/// host was that has one.
#[test]
fn a_copy_to_several_hosts_waits_for_one_that_is_sent_the_agent() {
    let far = Far::with("case \" $* \" in *\" far \"*) PATH=DIR/slow:/usr/bin:/bin ;; esac", "");
    symlink(AGENT, far.join("bin/rdma-pipe-agent")).expect("a link");
    fs::create_dir(far.join("slow")).expect("a directory");
    let takes_a_part = "do /usr/bin/head -c $part; rest=$((rest - part)); sleep 0.9; done";
    let slowly = format!("rest=$2 part=$(($2 / 8))\nwhile [ $rest -gt $part ]; {takes_a_part}");
    far.program("slow/head", &format!("#!/bin/sh\n{slowly}\nexec /usr/bin/head -c $rest\n"));
    let mut command = rdcp();
    command.arg("--rsh").arg(far.join("ssh")).arg("source");
    for host in ["near", "far"] {
        command.arg("--to").arg(format!("{host}:{}", far.join(host).display()));
    }
    let mut process = Process::spawn(command.current_dir(far.0.path()).stdin(Stdio::null()).stdout(Stdio::null()));
    let ended = process.wait();
    ended.expect(0);
    assert!(ended.after > Duration::from_secs(5) && !ended.stderr.contains("not answered yet"), "{}", ended.stderr);
    assert!(far.cached().len() == 1 && ended.stderr.contains(&far.line("rdcp", "far")), "{}", ended.stderr);
    for host in ["near", "far"] {
        assert_eq!(fs::read(far.join(host)).expect("a copy"), b"12345");
    }
}

#[test]
fn it_is_sent_once_and_in_one_connection() {
    let far = Far::new();
    far.sends();
    assert_eq!(far.launches().len(), 1, "a password would be asked for once");
    let agent = far.agent();
    for path in [&agent, &far.cache(), &far.join("home/.cache")] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    let sum = Command::new("sha256sum").arg(AGENT).output().expect("coreutils").stdout;
    let name = format!("rdma-pipe-agent-{}", String::from_utf8_lossy(&sum[..64]));
    assert_eq!(agent.file_name().expect("a name").to_str(), Some(&*name));
    let first = fs::metadata(&agent).expect("it");
    far.finds();
    assert_eq!(far.launches().len(), 1);
    let second = fs::metadata(far.agent()).expect("it");
    assert_eq!((first.ino(), first.ctime_nsec()), (second.ino(), second.ctime_nsec()), "it is as it was");
}

#[test]
fn quiet_is_quiet() {
    let far = Far::new();
    assert_eq!(far.copy(&["-q"]).expect(0).stderr, "");
    far.agent();
}

#[test]
fn the_umask_and_the_directory_of_the_host_are_those_of_its_login() {
    let far = Far::with("umask 027", "");
    for _ in 0..2 {
        let mut command = rdcp();
        command.arg("--rsh").arg(far.join("ssh")).args(["-q", "-", "far:here"]).current_dir(far.0.path());
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
        assert_eq!(mode(&far.join("home/here")), 0o640);
        fs::remove_file(far.join("home/here")).expect("it is in the home");
    }
}

/// The agent and its commands inherit what the login exports, under whatever names.
#[test]
fn what_the_login_exports_reaches_the_command() {
    let far = Far::with("export a=1 d=1 e=1 f=1 h=1 k=1 m=1 n=1 s=1 t=1", "");
    for is_cached in [false, true] {
        assert_eq!(!far.cached().is_empty(), is_cached);
        let mut command = rdsh();
        command.arg("--rsh").arg(far.join("ssh")).args(["far", "echo $a $d $e $f $h $k $m $n $s $t"]);
        // No login: the shell is `sh`.
        command.current_dir(far.0.path()).env_remove("SHELL").stdin(Stdio::piped()).stdout(Stdio::piped());
        let (ended, output) = finish(Process::spawn(&mut command), b"");
        assert_eq!((ended.expect(0).stderr.as_str(), &*output), ("", &b"1 1 1 1 1 1 1 1 1 1\n"[..]));
    }
    far.agent();
}

#[test]
fn one_that_was_changed_is_replaced() {
    let far = Far::new();
    far.sends();
    let agent = far.agent();
    let damage: [&dyn Fn(); 5] = [
        &|| {
            let mut bytes = fs::read(AGENT).expect("the agent");
            *bytes.last_mut().expect("not empty") ^= 1;
            fs::write(&agent, bytes).expect("ours");
        },
        &|| fs::write(&agent, "").expect("ours"),
        &|| fs::set_permissions(&agent, fs::Permissions::from_mode(0o600)).expect("ours"),
        // Links are not followed, even if they lead to the right program.
        &|| symlink(AGENT, &agent).expect("a link"),
        &|| symlink("/nonexistent", &agent).expect("a link"),
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        if number > 2 {
            fs::remove_file(&agent).expect("ours");
        }
        damage();
        far.sends();
        assert_eq!((far.agent(), mode(&agent)), (agent.clone(), 0o700));
    }
}

#[test]
fn another_version_goes_that_nobody_has_used_for_days_also_while_it_runs() {
    let far = Far::new();
    fs::create_dir_all(far.cache()).expect("directories");
    fs::set_permissions(far.cache(), fs::Permissions::from_mode(0o700)).expect("ours");
    let old = far.cache().join(format!("rdma-pipe-agent-{}", "0".repeat(64)));
    fs::copy("/bin/sleep", &old).expect("a program");
    let mut running = Process::spawn(Command::new(&old).arg("60").stdin(Stdio::null()).stdout(Stdio::null()));
    // Files of an upload that was interrupted long ago, and of one in progress, for which another host's clock counts.
    let [stale, fresh] = ["stale1", "fresh1"].map(|name| far.cache().join(format!(".new.{name}")));
    for path in [&stale, &fresh] {
        fs::write(path, "x").expect("ours");
    }
    // Another caller may be about to start this agent.
    let used = far.cache().join(format!("rdma-pipe-agent-{}", "1".repeat(64)));
    fs::write(&used, "x").expect("ours");
    for (path, options) in
        [(&stale, ["-d", "2 days ago"]), (&fresh, ["-d", "2 hours ago"]), (&old, ["-ad", "3 days ago"])]
    {
        let touched = Command::new("touch").args(options).arg(path).status();
        assert!(touched.expect("coreutils").success());
    }
    far.sends();
    assert!(running.is_running() && !old.exists() && !stale.exists() && fresh.exists() && used.exists());
    running.signal(Signal::KILL);
    for path in [fresh, used] {
        fs::remove_file(path).expect("ours");
    }
    far.agent();
}

#[test]
fn a_cache_that_others_could_change_is_not_used() {
    let far = Far::new();
    far.sends();
    let agent = far.agent();
    let cache = far.cache();
    for open in [0o777, 0o770, 0o720, 0o702, 0o755] {
        fs::set_permissions(&cache, fs::Permissions::from_mode(open)).expect("ours");
        far.refuses(&[".cache/rdma-pipe", "mode 0700", "remove it", "--agent"]);
    }
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).expect("ours");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&cache, Some(65534), None).expect("root");
        far.refuses(&[".cache/rdma-pipe", "must be owned by the login user"]);
        std::os::unix::fs::chown(&cache, Some(0), None).expect("root");
    } else {
        partly_run("needs root, for a cache of another user");
    }
    far.finds();
    fs::rename(&cache, far.join("elsewhere")).expect("ours");
    symlink(far.join("elsewhere"), &cache).expect("a link");
    far.refuses(&[".cache/rdma-pipe is a symbolic link; remove it"]);
    fs::remove_file(&cache).expect("ours");
    fs::write(&cache, "").expect("ours");
    far.refuses(&["File exists", "--agent"]);
    let there = far.join("elsewhere").join(agent.file_name().expect("a name"));
    assert_eq!(fs::read(there).expect("it is as it was").len() as u64, fs::metadata(AGENT).expect("it").len());
}

/// A default ACL overrides the umask.
#[test]
fn a_cache_below_a_directory_that_others_are_to_use_is_closed_to_them() {
    let far = Far::new();
    let parent = far.join("home/.cache");
    fs::create_dir(&parent).expect("a directory");
    let given = Command::new("setfacl").args(["-dm", "g::rwx,o::rx"]).arg(&parent).status();
    if !given.is_ok_and(|status| status.success()) {
        return not_run("setfacl is missing, or there are no ACLs here");
    }
    far.sends();
    assert_eq!(mode(&far.cache()), 0o700);
    far.finds();
}

/// Returns an `extra` for a host whose home is a separate file system.
fn mounted(options: &str) -> String {
    let user = if rustix::process::geteuid().is_root() { "" } else { "--user --map-root-user" };
    format!(
        "exec unshare {user} --mount sh -c 'mount -t tmpfs -o size=64k none \"$HOME\" && cd \"$HOME\" && mkdir .cache && \
         mount -o remount,{options} none \"$HOME\" && sh -c \"$1\"; code=$?; find . >DIR/left; exit $code' sh \"$last\""
    )
}

#[test]
fn homes_in_which_no_program_can_be_kept() {
    for (options, parts) in [
        ("noexec", &["DIR/home is mounted noexec", "install rdma-pipe there", "--agent"][..]),
        ("ro", &["Read-only file system", "--agent"]),
        ("rw", &["/rdma-pipe: No space left on device", "--agent"]),
    ] {
        let far = Far::with(&mounted(options), "");
        let directory = far.0.path().to_str().expect("UTF-8").to_owned();
        let parts: Vec<String> = parts.iter().map(|part| part.replace("DIR", &directory)).collect();
        far.refuses(&parts.iter().map(|part| &**part).collect::<Vec<_>>());
        let left = fs::read_to_string(far.join("left")).expect("what is left there");
        assert!(!left.contains(".new") && !left.contains("rdma-pipe-agent"), "{options}: {left}");
    }
    Far::with("unset HOME", "").refuses(&["HOME is not set there", "--agent"]);
    Far::with("", "/../source").refuses(&["Not a directory", "--agent"]);
    // The directory is where the specification of XDG_CACHE_HOME says.
    let far = Far::with("export XDG_CACHE_HOME=$HOME/other", "");
    assert!(far.copy(&[]).expect(0).stderr.contains("copied"));
    assert!(far.join("home/other/rdma-pipe").is_dir() && !far.cache().exists());
}

#[test]
fn hosts_that_it_does_not_fit() {
    for (name, text, parts) in [
        ("uname", "case $1 in -m) echo aarch64;; *) echo Linux;; esac", &["it runs Linux aarch64", "install"][..]),
        ("uname", "case $1 in -s) echo FreeBSD;; *) echo x86_64;; esac", &["it runs FreeBSD", "install"]),
        ("getconf", "echo glibc 2.3", &["glibc is 2.3,", "or later", "install"]),
        ("getconf", "exit 1", &["it has no glibc", "install"]),
        ("sha256sum", "exit 127", &["it arrived incomplete"]),
        ("head", "exec /usr/bin/head -c 1000", &["it arrived incomplete", "try again"]),
        ("head", "echo head: Disk quota exceeded >&2; exit 1", &["rdma-pipe: Disk quota exceeded", "--agent"]),
        ("mktemp", "echo no names; exit 1", &["no names", "--agent"]),
    ] {
        let far = Far::new();
        far.program(&format!("bin/{name}"), &format!("#!/bin/sh\n{text}\n"));
        far.refuses(parts);
        assert!(far.cached().is_empty(), "{name}: {:?}", far.cached());
    }
}

/// Hosts of different kinds may share a home.
#[test]
fn a_cached_one_of_another_kind_is_not_run() {
    let far = Far::new();
    far.sends();
    far.program("bin/uname", "#!/bin/sh\ncase $1 in -m) echo aarch64;; *) echo Linux;; esac\n");
    far.refuses(&["it runs Linux aarch64", "install"]);
    far.copy(&["-n"]).expect(3).one_line("rdcp", &["far has no rdma-pipe-agent"]);
    fs::remove_file(far.join("bin/uname")).expect("ours");
    far.finds();
}

/// Hosts with different C libraries may share a home.
#[test]
fn a_cached_one_that_cannot_be_loaded_is_replaced() {
    let far = Far::new();
    far.sends();
    let agent = far.agent();
    fs::write(&agent, "#!/bin/sh\nexit 1\n").expect("ours");
    let sum = Command::new("sha256sum").arg(&agent).output().expect("coreutils").stdout;
    let (is, seems) = (String::from_utf8_lossy(&sum[..64]), agent.to_str().expect("UTF-8").rsplit('-').next());
    let (sum, seems) = ("/usr/bin/sha256sum", seems.expect("a hash"));
    far.program("bin/sha256sum", &format!("#!/bin/sh\n{sum} | sed s/{is}/{seems}/\n"));
    let getconf = far.program("bin/getconf", "#!/bin/sh\necho glibc 2.3\n");
    far.refuses(&["glibc is 2.3,", "or later", "install"]);
    far.copy(&["-n"]).expect(3).one_line("rdcp", &["far has no rdma-pipe-agent"]);
    fs::remove_file(getconf).expect("ours");
    far.sends();
    far.agent();
}

/// Another host that shares the home has got the agent in the meantime, and may have started it.
#[test]
fn one_that_has_come_meanwhile_is_not_replaced() {
    let far = Far::new();
    far.sends();
    let agent = far.agent();
    let other = far.join("other");
    fs::rename(&agent, &other).expect("ours");
    let inode = fs::metadata(&other).expect("it").ino();
    let come = format!("mv {} {}", other.display(), agent.display());
    far.program("bin/head", &format!("#!/bin/sh\n/usr/bin/head \"$@\" && {come}\n"));
    far.sends();
    assert_eq!(fs::metadata(far.agent()).expect("it").ino(), inode);
}

/// If the program does not run there, the error line shows the program's own message, and the program is not kept.
#[test]
fn one_that_does_not_run_there() {
    let far = Far::new();
    // The script replaces the uploaded file after its hash was found right.
    far.program(
        "bin/sha256sum",
        "#!/bin/sh\nset -- $(/usr/bin/sha256sum)\nf=$(ls .new.* 2>/dev/null)\n\
         [ -n \"$f\" ] && printf '#!/bin/sh\\necho \"libc.so.6: version GLIBC_2.99 not found\" >&2; exit 1\\n' >\"$f\"\n\
         echo \"$1  -\"\n",
    );
    far.refuses(&["does not run there", "GLIBC_2.99 not found", "install"]);
    assert!(far.cached().is_empty());
}

#[test]
fn what_was_asked_for_otherwise() {
    let far = Far::new();
    let nothing = |options: &[&str], parts: &[&str]| {
        far.copy(options).expect(3).one_line("rdcp", parts);
        assert!(far.0.names().iter().all(|name| name != "copy") && !far.join("home/.cache").exists());
    };
    nothing(&["--no-bootstrap"], &["far has no rdma-pipe-agent; install", "--agent"]);
    nothing(&["--bootstrap", "--no-bootstrap"], &["far has no rdma-pipe-agent"]);
    nothing(&["-n"], &["far has no rdma-pipe-agent", "-n does not copy it there"]);
    nothing(&["--agent", "/nonexistent/agent"], &["far has no /nonexistent/agent", "--agent"]);
    let advice = "without --agent and --no-bootstrap, one is copied there";
    nothing(&["--no-bootstrap", "--agent", "/nonexistent/agent"], &["far has no /nonexistent/agent", advice]);
    // The last one counts.
    far.copy(&["--agent", "/nonexistent/agent", "--no-bootstrap", "--bootstrap"]).expect(0);
    far.arrived();
    // A dry run uses a cached agent too, but does not replace it.
    far.copy(&["-n"]).expect(0).one_line("rdcp", &["would copy source to far:"]);
    far.copy(&["--no-bootstrap"]).expect(3);
    fs::write(far.agent(), "damaged").expect("ours");
    far.copy(&["-n"]).expect(3).one_line("rdcp", &["-n does not copy it there"]);
    assert_eq!(fs::read(&far.cached()[0]).expect("it"), b"damaged");
}

/// A HELLO message of another major version.
const OTHER: &str =
    r"printf '\0rdma-pipe agent\0\n\027\0\0\0\202\0\201\211\011\007\1439.9\141L\141m\141c\100\100\144more'";

#[test]
fn one_that_is_installed_and_of_no_use() {
    for (launcher, installed) in [
        ("ssh", &*format!("#!/bin/sh\n{OTHER}\nexec cat >/dev/null\n")),
        ("rsh", &*format!("#!/bin/sh\n{OTHER}\nexec cat >/dev/null\n")),
        ("ssh", "#!/nonexistent/interpreter\n"),
        ("rsh", "#!/nonexistent/interpreter\n"),
        ("ssh", "#!/bin/sh\necho 'libc.so.6: version GLIBC_2.99 not found' >&2; exit 1\n"),
        ("ssh", "#!/bin/sh\necho 'GLIBC_2.99 not found' >&2; exit 2\n"),
    ] {
        let far = Far::new();
        far.program("bin/rdma-pipe-agent", installed);
        for sent in [true, false] {
            let ended = Process::spawn(&mut far.command(launcher, &[])).wait();
            assert_eq!(ended.expect(0).stderr, if sent { far.line("rdcp", "far") } else { String::new() });
            far.arrived();
            assert_eq!(far.launches().len(), 2);
        }
        let ended = Process::spawn(&mut far.command(launcher, &["--no-bootstrap"])).wait();
        if installed.contains("9.9") {
            ended.expect(9).one_line("rdcp", &["far has rdma-pipe 9.9", "9.7", "--agent"]);
        } else if installed.contains("GLIBC") {
            ended.expect(3).one_line("rdcp", &["no agent answered on far", "GLIBC_2.99 not found"]);
        } else {
            ended.expect(3).one_line("rdcp", &["far has no rdma-pipe-agent"]);
        }
    }
    // A working installed agent is used, and none is sent.
    let far = Far::new();
    symlink(AGENT, far.join("bin/rdma-pipe-agent")).expect("a link");
    far.finds();
    assert!(far.cached().is_empty());
}

/// Another agent would not start either, such as where the user may have no more processes.
#[test]
fn one_that_is_installed_and_cannot_start() {
    let far = Far::new();
    far.program("bin/rdma-pipe-agent", "#!/bin/sh\necho 'rdma-pipe-agent: cannot start: x' >&2; exit 3\n");
    for options in [&[][..], &["-n"]] {
        let told = far.copy(options);
        told.expect(3).one_line("rdcp", &["no agent answered on far", "cannot start: x"]);
        assert!(!told.stderr.contains("check that"), "the login is well: {}", told.stderr);
        assert_eq!((far.launches().len(), far.cached()), (1, Vec::new()), "{options:?}");
    }
}

/// Other launchers may not run a shell at the other end, so they are first given a plain program name.
#[test]
fn launchers_that_are_not_ssh() {
    let far = Far::new();
    let run = |launcher: &str| Process::spawn(&mut far.command(launcher, &[])).wait();
    assert_eq!(run("rsh").expect(0).stderr, far.line("rdcp", "far"));
    far.arrived();
    let launches = far.launches();
    assert!(
        launches.len() == 2 && launches[0] == "rdma-pipe-agent" && launches[1].starts_with("sh -c "),
        "{launches:?}"
    );
    assert_eq!(run("rsh").expect(0).stderr, "");
    far.program("exec", "#!/bin/sh\nshift\nPATH=/usr/bin:/bin exec \"$@\"\n");
    run("exec").expect(3).one_line("rdcp", &["far has no rdma-pipe-agent", "cannot be copied", "install", "--agent"]);
    symlink(AGENT, far.join("rdma-pipe-agent")).expect("a link");
    far.program("exec", &format!("#!/bin/sh\nshift\nPATH={} exec \"$@\"\n", far.0.path().display()));
    run("exec").expect(0);
}

/// The host's `sh` may be any of several shells.
#[test]
fn any_shell_does() {
    let mut tried = 0;
    for shell in ["dash", "bash", "busybox"] {
        let Some(path) = ["/bin", "/usr/bin"].map(|bin| Path::new(bin).join(shell)).into_iter().find(|it| it.exists())
        else {
            partly_run(format_args!("{shell} is not installed"));
            continue;
        };
        let far = Far::with("PATH=$PATH:DIR", "");
        // With busybox, every program on the host is busybox.
        let applets: &[&str] = match shell {
            "busybox" => &[
                "sh",
                "sha256sum",
                "mkdir",
                "ls",
                "id",
                "find",
                "rm",
                "mktemp",
                "chmod",
                "df",
                "tail",
                "grep",
                "uname",
                "head",
                "ln",
                "mv",
            ],
            _ => &["sh"],
        };
        for name in applets {
            symlink(&path, far.join(&format!("bin/{name}"))).expect("a link");
        }
        far.sends();
        far.finds();
        fs::write(far.agent(), "damaged").expect("ours");
        far.sends();
        fs::set_permissions(far.cache(), fs::Permissions::from_mode(0o777)).expect("ours");
        far.refuses(&["mode 0700"]);
        tried += 1;
    }
    assert!(tried > 1, "two shells at least");
}

#[test]
fn every_command_that_starts_agents_sends_it() {
    let far = Far::new();
    let run = |mut command: Command, arguments: &[&str]| {
        let _ = fs::remove_dir_all(far.cache());
        command.arg("--rsh").arg(far.join("ssh")).args(arguments).current_dir(far.0.path());
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let output = drain(process.stdout());
        let ended = process.wait();
        assert_eq!(mode(&far.agent()), 0o700);
        (ended, output.join().expect("no panic"))
    };
    let (ended, output) = run(rdpipe(), &["far:echo 1"]);
    assert_eq!((ended.code, &*ended.stderr, &*output), (0, &*far.line("rdpipe", "far"), &b"1\n"[..]));
    let (ended, _) = run(rdperf(), &["--duration", "0.05", "far"]);
    assert!(ended.expect(0).stderr.contains(&far.line("rdperf", "far")), "{}", ended.stderr);
    let mut doctor = Command::new(PROGRAM);
    doctor.arg("rddoctor");
    let (ended, output) = run(doctor, &["--json", "--seconds", "0", "far"]);
    assert_eq!(ended.stderr, far.line("rddoctor", "far"));
    let report: serde_json::Value = serde_json::from_slice(&output).expect("JSON and nothing else");
    assert!(
        report["findings"].as_array().is_some_and(|found| found.iter().any(|one| one["code"] == "agent")),
        "{report}"
    );
}

/// Several hosts share a home, and each of them gets the agent at the same time.
#[test]
fn several_hosts_at_once() {
    let far = Far::new();
    let mut command = rdpipe();
    command.arg("--rsh").arg(far.join("ssh")).args(["h1:echo 1", "h2:cat", "h3:cat"]).current_dir(far.0.path());
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(process.stdout());
    let ended = process.wait();
    ended.expect(0);
    assert_eq!(output.join().expect("no panic"), b"1\n");
    // The first host needs the agent. Later hosts may find it there.
    let copied = ended.stderr.lines().filter(|line| line.starts_with("rdpipe: copied rdma-pipe-agent (")).count();
    assert!((1..=3).contains(&copied) && copied == ended.stderr.lines().count(), "{}", ended.stderr);
    far.agent();
}

/// A signal ends the upload while the host is slow. Nothing is left there under a name that would be run.
#[test]
fn a_signal_ends_it() {
    let far = Far::new();
    far.program("bin/head", "#!/bin/sh\nexec sleep 30\n");
    let mut process = Process::spawn(&mut far.command("ssh", &[]));
    let until = Instant::now() + PATIENCE;
    while far.cached().is_empty() {
        assert!(Instant::now() < until, "nothing is sent: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    process.signal(Signal::INT);
    process.wait_for(Duration::from_secs(5)).expect(130);
    let would_be_run =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rdma-pipe-agent"));
    assert!(!far.cached().iter().any(would_be_run), "{:?}", far.cached());
    fs::remove_file(far.join("bin/head")).expect("ours");
    assert!(far.copy(&[]).expect(0).stderr.contains("copied"));
}

#[test]
fn a_shell_that_refuses_the_login_says_why() {
    let far = Far::new();
    // The script behaves as nologin(8).
    fs::create_dir(far.join("refusing")).expect("a directory");
    far.program("refusing/ssh", "#!/bin/sh\nprintf 'Welcome.\\nThis account is \\033[1mnot available.\\n'\nexit 1\n");
    let ended = Process::spawn(&mut far.command("refusing/ssh", &[])).wait();
    ended.expect(3).one_line(
        "rdcp",
        &[
            "no agent answered on far",
            "exit code 1: last output: This account is \\u{1b}[1mnot available; check that `ssh far true` works",
        ],
    );
}

/// `RequestTTY force` in ssh's configuration, or in what `--rsh` names. The agent's bytes would act as keys there.
#[test]
fn nothing_is_sent_to_a_terminal() {
    let far = Far::with("exec script -qec \"$last\" /dev/null", "");
    for is_installed in [false, true] {
        if is_installed {
            symlink(AGENT, far.join("bin/rdma-pipe-agent")).expect("a link");
        }
        far.refuses(&["an agent on far would have a terminal as its input; see RequestTTY"]);
        assert!(far.launches().len() == 1 && !far.cache().exists());
        let mut command = rdsh();
        command.arg("--rsh").arg(far.join("ssh")).args(["far", "tty; exit 5"]).current_dir(far.0.path());
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let output = drain(process.stdout());
        assert_eq!(process.wait().expect(5).stderr, "");
        let output = output.join().expect("no panic");
        assert!(output.starts_with(b"/dev/pts/"), "{}", String::from_utf8_lossy(&output));
        assert_eq!(far.launches().len(), 2, "the agent, then the command");
    }
}

#[test]
fn a_directory_of_the_programs_name_makes_way() {
    let far = Far::new();
    far.sends();
    let agent = far.agent();
    fs::remove_file(&agent).expect("ours");
    fs::create_dir(&agent).expect("a directory");
    assert_eq!(far.copy(&[]).expect(0).stderr.lines().count(), 1, "it was sent, and nothing else is said");
    assert!(agent.is_file());
    far.finds();
}

/// `timeout` also sends its signal to the launcher, whose end may be noticed first.
#[test]
fn a_signal_that_reaches_the_launcher_first() {
    let far = Far::new();
    far.program("waits", &format!("#!/bin/sh\necho $$ >{}\nexec sleep 30\n", far.join("pid").display()));
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = Process::spawn(&mut far.command("waits", &[]));
        let until = Instant::now() + PATIENCE;
        let launcher = loop {
            let known = fs::read_to_string(far.join("pid")).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = known.and_then(rustix::process::Pid::from_raw) {
                break pid;
            }
            assert!(Instant::now() < until, "no launcher: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        };
        fs::remove_file(far.join("pid")).expect("ours");
        rustix::process::kill_process(launcher, signal).expect("a process of ours");
        std::thread::sleep(Duration::from_millis(30));
        process.signal(signal);
        let ended = process.wait_for(Duration::from_secs(5));
        assert_eq!((ended.code, &*ended.stderr), (128 + signal.as_raw(), ""), "{signal:?}");
    }
    // A signal that rdcp itself has not received is reported as the end of the launcher.
    far.program("killed", "#!/bin/sh\nkill -TERM $$\n");
    Process::spawn(&mut far.command("killed", &[]))
        .wait()
        .expect(3)
        .one_line("rdcp", &["no agent answered on far", "exit code 143"]);
}

/// Other commands may share the connection of an ssh (`ControlMaster`). Such an ssh goes on after its own command, with
/// a socket at which it listens and one for each of them.
#[test]
fn an_ssh_whose_connection_others_share_is_left_to_them() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let far = Far::with("echo $$ >DIR/pid; sh -c \"$last\"; exec sleep 60 </dev/null >/dev/null", "");
    symlink(AGENT, far.join("bin/rdma-pipe-agent")).expect("a link");
    let address = SocketAddr::from_abstract_name(format!("rdcp-shared-{}", std::process::id())).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a socket");
    let _joined = UnixStream::connect_addr(&address).expect("a connection");
    let (accepted, _) = listener.accept().expect("a connection");
    let alone = far.command("ssh", &[]);
    let mut shared = in_shell("exec \"$@\" 3<&0 4<&1 </dev/null >/dev/null", &alone);
    shared.current_dir(far.0.path()).stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(accepted));
    for (mut command, is_shared) in [(alone, false), (shared, true)] {
        Process::spawn(&mut command).wait().expect(0);
        far.arrived();
        let pid = fs::read_to_string(far.join("pid")).expect("a number").trim().parse().expect("a number");
        if is_shared {
            // The process that ends launchers after their caller has done so by now.
            std::thread::sleep(Duration::from_millis(1500));
        }
        assert_eq!(lab::is_alive(pid), is_shared);
        if is_shared {
            let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
            rustix::process::kill_process(pid, Signal::KILL).expect("a process of ours");
        }
    }
}

/// The agent beside the program is read only when a host needs it. If it is missing, a line says so.
#[test]
fn a_program_without_its_agent() {
    let far = Far::new();
    let alone = far.join("alone");
    fs::copy(PROGRAM, &alone).expect("a program");
    let copy = || {
        let mut command = Command::new(&alone);
        let mut target = OsString::from("far:");
        target.push(far.join("copy"));
        command.arg("rdcp").arg("--rsh").arg(far.join("ssh")).arg("source").arg(target).current_dir(far.0.path());
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait()
    };
    let path = far.join("rdma-pipe-agent").display().to_string();
    copy().expect(3).one_line("rdcp", &["far has no rdma-pipe-agent", &path, "errno 2", "install", "--agent"]);
    symlink(AGENT, far.join("bin/rdma-pipe-agent")).expect("a link");
    assert_eq!(copy().expect(0).stderr, "");
}
