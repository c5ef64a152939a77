//! `tests/testbed/deps`: what `make test` and `make check` install as root, and what they print otherwise. Here package
//! managers and Rust's tools are scripts that record their arguments.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Tools that a test removes, or that it must not really run.
const OWN: [&str; 10] =
    ["apt-get", "apt-cache", "cargo", "rustc", "rustup", "cargo-deny", "id", "shellcheck", "patch", "git"];

/// A simulated machine with this machine's programs, except those in [`OWN`].
struct Machine {
    scratch: tempfile::TempDir,
}

impl Machine {
    /// `user`: user id of the caller; `version`: version of Rust.
    fn new(user: u32, version: &str) -> Self {
        let machine = Self { scratch: tempfile::tempdir().expect("a directory") };
        fs::create_dir(machine.path("bin")).expect("a directory");
        for directory in ["/usr/sbin", "/usr/bin"] {
            for entry in fs::read_dir(directory).expect("programs").flatten() {
                let name = entry.file_name();
                if !OWN.iter().any(|own| name == *own) {
                    let _ = symlink(entry.path(), machine.path("bin").join(name));
                }
            }
        }
        machine.program("id", &format!("echo {user}"));
        machine.program("rustc", &format!("echo 'rustc {version} (0 2026-01-01)'"));
        let bin = machine.path("bin").display().to_string();
        let made = format!("for name; do :; done; echo >\"{bin}/$name\"; chmod +x \"{bin}/$name\"");
        // The last word is the program that an installation makes; `fmt` and `clippy` stand for the components.
        machine.program("cargo", &format!("case $1 in install) {made} ;; *) test -e '{bin}/components' ;; esac"));
        machine.program("rustup", &format!("case $1 in component) echo >'{bin}/components' ;; esac"));
        machine.program("apt-get", &format!("case $1 in install) {made} ;; esac"));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a program that records its name and arguments, if they change something, and then runs this shell text.
    fn program(&self, name: &str, body: &str) {
        let noted = self.path("noted");
        let note =
            format!("case $1 in install|update|default|component) echo {name} \"$*\" >>'{}' ;; esac", noted.display());
        let path = self.path("bin").join(name);
        // Removed first, because it may be a link to this machine's program.
        let _ = fs::remove_file(&path);
        fs::write(&path, format!("#!/bin/sh\n{note}\n{body}\n")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    fn has(self, names: &[&str]) -> Self {
        names.iter().for_each(|name| self.program(name, ""));
        self
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("/bin/bash");
        command.arg("tests/testbed/deps").arg(what).current_dir(ROOT).env_clear();
        // The guest's packages contain files, not only programs. They may be missing on a machine without RDMA.
        command.env("PATH", self.path("bin")).env("HOME", self.scratch.path()).env("SKIP_RDMA", "1");
        command
    }

    fn deps(&self, what: &str) -> Output {
        self.command(what).output().expect("bash")
    }

    /// Returns the recorded installations.
    fn installed(&self) -> Vec<String> {
        let noted = fs::read_to_string(self.path("noted")).unwrap_or_default();
        noted.lines().map(str::to_owned).collect()
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

#[test]
fn tests_need_neither_clippy_nor_cargo_deny() {
    let machine = Machine::new(1000, "1.99.0");
    let output = machine.deps("test");
    // This machine may lack other packages.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || said.contains("apt-get install"), "{output:?}");
    assert!(!said.contains("cargo") && !said.contains("rustup"), "{said}");
    assert_eq!(machine.installed(), [""; 0]);
}

#[test]
fn root_has_what_checks_need_installed() {
    let machine = Machine::new(0, "1.99.0").has(&["patch", "git"]);
    let output = machine.deps("check");
    assert!(output.status.success(), "{output:?}");
    let expected = [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 shellcheck",
        "rustup component add rustfmt clippy",
        "cargo install --quiet --locked cargo-deny",
    ];
    assert_eq!(machine.installed(), expected);
    assert!(lines(&output.stdout).iter().any(|line| line.contains("takes some minutes")), "{output:?}");
    let again = machine.deps("check");
    assert!(again.status.success() && machine.installed().len() == expected.len(), "once: {again:?}");
}

#[test]
fn others_are_given_one_command_and_nothing_is_done() {
    let machine = Machine::new(1000, "1.20.0").has(&["git"]);
    let output = machine.deps("check");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(machine.installed(), [""; 0]);
    let said = lines(&output.stderr);
    let [_, command] = &said[..] else { panic!("a line and a command: {said:?}") };
    assert_eq!(
        command.trim(),
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends shellcheck patch \
         && rustup default stable && rustup update stable && rustup component add rustfmt clippy \
         && cargo install --locked cargo-deny"
    );
    // The printed command has complete syntax.
    assert!(Command::new("bash").args(["-nc", command]).status().expect("bash").success(), "{command}");
}

#[test]
fn what_cannot_be_installed_is_an_error() {
    let machine = Machine::new(0, "1.99.0").has(&["patch", "git", "shellcheck"]);
    machine.program("cargo", "exit 1");
    assert!(!machine.deps("check").status.success());
    let machine = Machine::new(0, "1.99.0").has(&["patch", "git"]);
    machine.program("apt-get", "");
    let output = machine.deps("check");
    assert_eq!(output.status.code(), Some(1));
    assert!(lines(&output.stderr).iter().any(|line| line.contains("still missing: shellcheck")), "{output:?}");
}

#[test]
fn without_apt_get_nobody_is_told_to_use_it() {
    for user in [0, 1000] {
        let machine = Machine::new(user, "1.99.0").has(&["patch", "git"]);
        fs::remove_file(machine.path("bin/apt-get")).expect("ours");
        let output = machine.deps("check");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(lines(&output.stderr), ["deps: there is no apt-get here; install what Debian calls: shellcheck"]);
        assert_eq!(machine.installed(), [""; 0]);
    }
}

#[test]
fn where_no_guest_can_run_it_says_how_to_do_without() {
    let machine = Machine::new(0, "1.99.0");
    machine.program("uname", "echo aarch64");
    let output = machine.deps("guest");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "deps: the guest for RDMA needs an x86_64 machine, which this one is not";
    assert_eq!(lines(&output.stderr), [expected]);
    for what in ["test", "bench"] {
        let output = machine.command(what).env_remove("SKIP_RDMA").output().expect("bash");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(lines(&output.stderr), [format!("{expected}; with SKIP_RDMA=1, the rest runs")]);
    }
    assert_eq!(machine.installed(), [""; 0]);

    machine.program("uname", "echo x86_64");
    machine.program("apt-cache", "echo '  Candidate: (none)'");
    let _ = fs::remove_file(machine.path("bin/qemu-system-x86_64"));
    let temporary = machine.path("temporary");
    fs::create_dir(&temporary).expect("a directory");
    let output = machine.command("guest").env("TMPDIR", &temporary).output().expect("bash");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "deps: the guest for RDMA needs qemu-system-x86, which apt does not have here";
    assert_eq!(lines(&output.stderr), [expected]);
    assert_eq!(machine.installed(), ["apt-get update -qq"]);
    assert_eq!(fs::read_dir(&temporary).expect("ours").count(), 0, "its log is removed");

    fs::remove_file(machine.path("bin/apt-get")).expect("ours");
    let output = machine.deps("guest");
    assert_eq!(lines(&output.stderr), ["deps: the guest for RDMA needs Debian's or Ubuntu's kernel and qemu"]);
}

#[test]
fn the_two_commands_install_what_they_need() {
    let make = |target: &str| {
        let mut command = Command::new("make");
        // The make that runs this test would otherwise affect the output.
        command.args(["-n", "--no-print-directory", target]).current_dir(ROOT);
        for variable in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
            command.env_remove(variable);
        }
        let output = command.output().expect("make");
        lines(&output.stdout).first().cloned()
    };
    assert_eq!(make("test").as_deref(), Some("tests/testbed/deps test"));
    assert_eq!(make("check").as_deref(), Some("tests/testbed/deps check"));
    let main_job = fs::read_to_string(Path::new(ROOT).join(".ci/run")).expect("the main job");
    let commands: Vec<&str> = main_job.lines().filter(|line| line.starts_with("timeout ")).collect();
    let run = |line: &&str| line.split(' ').skip(2).collect::<Vec<_>>().join(" ");
    assert_eq!(commands.iter().map(run).collect::<Vec<_>>(), ["make check", "make", "make test"]);
    assert!(["deps", "rustup", "cargo install"].iter().all(|word| !main_job.contains(word)));
}

/// `sudo` does not pass CARGO_TARGET_DIR on.
#[test]
fn make_install_takes_what_make_has_built() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (built, note) = (scratch.path().join("built"), scratch.path().join("note"));
    fs::create_dir_all(built.join("release")).expect("a directory");
    let make = |arguments: &[&str], target: Option<&Path>| {
        let mut command = Command::new("make");
        command.arg("--no-print-directory").args(arguments).current_dir(ROOT).env("TARGET_NOTE", &note);
        for variable in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CARGO_TARGET_DIR", "TARGET_DIR"] {
            command.env_remove(variable);
        }
        command.envs(target.map(|target| ("CARGO_TARGET_DIR", target)));
        let output = command.output().expect("make");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    make(&["build", "CARGO=true"], Some(&built));
    // Another user may have built here before.
    make(&["build", "CARGO=true", "TARGET_NOTE=/dev/null/note"], Some(&built));
    let takes = |said: &str, from: &Path| said.contains(&format!("install -m 755 \"{}/release/", from.display()));
    let said = make(&["-n", "install"], None);
    assert!(takes(&said, &built), "{said}");
    let other = Path::new("/other");
    let said = make(&["-n", "install"], Some(other));
    assert!(takes(&said, other), "{said}");
    let said = make(&["-n", "install", "TARGET_DIR=/other"], Some(&built));
    assert!(takes(&said, other), "{said}");
}

/// An empty directory may be the system's, as `/usr/local/bin` of a fresh Debian is.
#[test]
fn uninstalling_removes_files_and_no_directory() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join("usr/local").join(name);
    let installed = [
        ("bin", "rdcp"),
        ("share/man/man1", "rdcp.1"),
        ("share/bash-completion/completions", "rdcp"),
        ("share/fish/vendor_completions.d", "rdcp.fish"),
        ("share/zsh/site-functions", "_rdcp"),
        ("lib/systemd/system", "rdrecv@.service"),
    ];
    for (directory, file) in installed {
        fs::create_dir_all(at(directory)).expect("a directory");
        fs::write(at(directory).join(file), "").expect("a file");
    }
    let mut command = Command::new("make");
    command.args(["uninstall", "PREFIX=/usr/local"]).arg(format!("DESTDIR={}", scratch.path().display()));
    for variable in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ZSHDIR"] {
        command.env_remove(variable);
    }
    let output = command.current_dir(ROOT).output().expect("make");
    assert!(output.status.success(), "{output:?}");
    for (directory, file) in installed {
        assert!(at(directory).is_dir(), "{directory} is left: {output:?}");
        assert!(!at(directory).join(file).exists(), "{directory}/{file} is removed: {output:?}");
    }
}
