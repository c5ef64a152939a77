//! README as a newcomer types it: every command line of its code blocks runs, read from the page, on hosts of the names that
//! it uses. Each host has a root of its own over this machine's, so that `/srv` and `~` are that host's alone. `tests/run`
//! makes the hosts, as root, and runs this in them; elsewhere it is not run.

mod rig;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rig::hosts::*;
use rig::*;
use rustix::process::Signal;

/// README's hosts, by the numbers of ours. Line by line they are different ones, and none is host 1, where README is read.
const NAMES: [(&str, u32); 7] =
    [("backup", 2), ("gpu1", 3), ("gpu2", 4), ("gpu7", 4), ("db", 2), ("archive", 3), ("other_host", 3)];

/// What is not run here, and why.
const NOT_RUN: [(&str, &str); 3] = [
    ("make", "builds for minutes what stands built here, where `make install` looks for it"),
    ("make demo", "builds the release, and makes hosts of its own; CI and people run it"),
    ("make test", "is what runs this test"),
];

/// How a line is typed.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// To its end.
    Alone,
    /// It waits for the next line, which is a sender's.
    Receiver,
    /// The one that the receiver waits for.
    Sender,
}

/// A line of README: what it is known by, where it is typed, and what is there afterwards.
struct Typed {
    known_by: &'static str,
    at: u32,
    how: How,
    check: fn(&World, &str),
}

const TYPED: [Typed; 14] = [
    Typed { known_by: "make install", at: 1, how: How::Alone, check: programs_are_installed },
    Typed {
        known_by: " data/ backup:/srv/",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            world.shell(2, "! command -v rdma-pipe-agent rdma-pipe rdcp"); // it has nothing but ssh
            world.same(1, "~/data", 2, "/srv/data");
            assert_eq!(world.shell(2, "find /srv/data -type f | wc -l"), "300");
        },
    },
    Typed {
        known_by: " gpu2:/data/",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            assert_eq!(world.shell(4, "ls /data"), "a.bin\nb.bin");
            world.same(3, "/data/a.bin", 4, "/data/a.bin");
            world.same(3, "/data/b.bin", 4, "/data/b.bin");
        },
    },
    Typed {
        known_by: "'gpu[1-2]:/srv/'",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            world.same(1, "~/data", 3, "/srv/data");
            world.same(1, "~/data", 4, "/srv/data");
        },
    },
    Typed { known_by: "rdrecv >image.raw", at: 2, how: How::Receiver, check: |_, _| {} },
    Typed {
        known_by: " <image.raw",
        at: 1,
        how: How::Sender,
        check: |world, _| {
            world.same(1, "~/image.raw", 2, "~/image.raw");
        },
    },
    Typed {
        known_by: ">~/.rd-key",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            world.same(1, "~/.rd-key", 2, "~/.rd-key");
            assert_eq!(world.shell(2, "stat -c %a ~/.rd-key"), "600", "nobody else reads the key");
        },
    },
    Typed { known_by: "| zfs receive ", at: 2, how: How::Receiver, check: |_, _| {} },
    Typed {
        known_by: "| rdsend ",
        at: 1,
        how: How::Sender,
        check: |world, _| {
            world.same(1, "/var/zfs/tank_home@monday", 2, "/var/zfs/tank_home");
        },
    },
    Typed {
        known_by: "db:'pg_dump shop' ",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            world.shell(3, "gzip -dc <shop.zst >shop.sql");
            world.same(2, "/var/shop.sql", 3, "~/shop.sql");
        },
    },
    Typed {
        known_by: " other_host:'sha256sum' ",
        at: 1,
        how: How::Alone,
        check: |world, said| {
            assert_eq!(said.trim(), world.shell(1, "sha256sum <myfile"));
        },
    },
    Typed {
        known_by: "rddoctor gpu7",
        at: 1,
        how: How::Alone,
        check: |_, said| {
            assert!(said.contains("this host (h1)\n") && said.contains("gpu7 (h4)\n"), "{said}");
            assert!(said.contains("this host -> gpu7\n"), "{said}");
        },
    },
    Typed {
        known_by: "rdperf gpu7",
        at: 1,
        how: How::Alone,
        check: |_, said| {
            assert!(said.contains("h1 > gpu7: TCP to 10.9.0.4") && said.contains("BW average"), "{said}");
        },
    },
    Typed {
        known_by: "rdcp -v big gpu7:",
        at: 1,
        how: How::Alone,
        check: |world, _| {
            world.same(1, "~/big", 4, "~/big");
        },
    },
];

fn programs_are_installed(world: &World, _: &str) {
    let programs = "rdcp rdsend rdrecv rdpipe rdsh rdperf rddoctor rdma-pipe-agent";
    let found = world.shell(1, &format!("command -v {programs}"));
    assert_eq!(found.lines().count(), programs.split(' ').count(), "{found}");
    assert!(found.lines().all(|path| path.starts_with("/usr/local/bin/")), "{found}");
    world.shell(1, "test -s /usr/local/share/man/man1/rdcp.1");
}

/// The hosts, each with its root and an sshd.
struct World {
    scratch: Scratch,
    servers: Vec<Process>,
}

/// Makes the root of a host, in its own mount namespace: ROOT, the built programs' directory, and this project.
const MAKE_ROOT: &str = r#"set -eu
root=$1 built=$2 project=$3 files=$4
mkdir -p "$root"
mount -t tmpfs none "$root"
mkdir "$root/upper" "$root/work" "$root/all"
mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" none "$root/all"
cd "$root/all"
for place in proc sys dev; do mount --rbind "/$place" "$place"; done
for place in root run srv tmp; do mount -t tmpfs -o mode=700 none "$place"; done
chmod 1777 tmp
rm -rf data var/zfs built usr/local/bin/rd*
mkdir -p run/sshd data var/zfs built/release root/.ssh ".$project"
mount --bind "$project" ".$project"
mount --bind "$built" built/release
cp "$files"/etc_hosts etc/hosts
cp "$files"/host_key "$files"/sshd_config run/
cp "$files"/user_key "$files"/ssh_config root/.ssh/
mv root/.ssh/ssh_config root/.ssh/config
cp "$files"/user_key.pub root/.ssh/authorized_keys
for program in zfs zstd pg_dump sudo; do cp "$files/$program" usr/local/bin/; done
chmod 755 usr/local/bin/*
"#;

/// What README has from elsewhere.
const STAND_INS: [(&str, &str); 4] = [
    (
        "zfs",
        "name=/var/zfs/$(printf %s \"$2\" | tr / _)\ncase $1 in send) exec cat \"$name\" ;; receive) exec cat >\"$name\" ;; \
         esac\nexit 2",
    ),
    ("pg_dump", "exec cat \"/var/$1.sql\""),
    ("zstd", "exec gzip -c"),
    ("sudo", "exec \"$@\""),
];

/// The files that README's lines are about, on each host.
const FILES: [(u32, &str); 4] = [
    (
        1,
        "mkdir -p data/sub && for i in $(seq 150); do echo \"$i\" >data/$i; head -c $((i * 100)) /dev/urandom >data/sub/$i; done; \
         for name in image.raw myfile big /var/zfs/tank_home@monday; do head -c 3000000 /dev/urandom >$name; done",
    ),
    (2, "head -c 2000000 /dev/zero >/var/shop.sql"),
    (3, "for name in /data/a.bin /data/b.bin /data/c.txt; do head -c 2000000 /dev/urandom >$name; done"),
    (4, "true"),
];

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        for name in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let names: String = NAMES.iter().map(|(name, host)| format!("{} {name}\n", address(*host))).collect();
        scratch.file("etc_hosts", format!("127.0.0.1 localhost\n{names}").as_bytes());
        // As a newcomer has it: a key that the other hosts know. Of their keys nobody is asked here.
        scratch.file(
            "ssh_config",
            b"Host *\n  User root\n  IdentityFile /root/.ssh/user_key\n  StrictHostKeyChecking accept-new\n  BatchMode yes\n",
        );
        scratch.file(
            "sshd_config",
            b"Port 22\nHostKey /run/host_key\nAuthorizedKeysFile /root/.ssh/authorized_keys\nStrictModes no\nUsePAM no\n\
              PermitRootLogin prohibit-password\nPidFile none\nPrintMotd no\n",
        );
        for (name, body) in STAND_INS {
            scratch.file(name, format!("#!/bin/sh\n{body}\n").as_bytes());
        }
        let mut world = Self { scratch, servers: Vec::new() };
        for (host, files) in FILES {
            let mut make = Command::new("sh");
            let built = Path::new(PROGRAM).parent().expect("a directory");
            make.args(["-c", MAKE_ROOT, "sh"]).arg(world.root(host)).arg(built);
            make.arg(env!("CARGO_MANIFEST_DIR")).arg(world.scratch.path());
            let ended = Process::spawn(on(host, &make).stdin(Stdio::null()).stdout(Stdio::null())).wait();
            ended.expect(0);
            // By its default route a host knows which address is its own.
            world.shell(host, &format!("ip route add default dev e0 && {files}"));
            if host != 1 {
                let sshd = world.typed(host, "exec /usr/sbin/sshd -D -e -f /run/sshd_config", "/");
                let server = Process::spawn(on(host, &sshd).stdin(Stdio::null()).stdout(Stdio::null()));
                server.line_with("listening on 0.0.0.0");
                world.servers.push(server);
            }
        }
        world
    }

    fn root(&self, host: u32) -> PathBuf {
        self.scratch.join(&format!("h{host}"))
    }

    /// A line as it is typed at a host, in that directory.
    fn typed(&self, host: u32, line: &str, directory: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.root(host).join("all")).args(["env", "-i", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]);
        command.args(["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "CARGO_TARGET_DIR=/built"]);
        command.args(["bash", "-o", "pipefail", "-c"]).arg(format!("cd {directory} && {line}"));
        command
    }

    fn start(&self, host: u32, line: &str) -> Process {
        // The project's own lines are typed in the project.
        let is_make = line.split_whitespace().any(|word| word == "make");
        let directory = if is_make { env!("CARGO_MANIFEST_DIR") } else { "~" };
        Process::spawn(on(host, &self.typed(host, line, directory)).stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    /// Runs a line at a host to its end; gives what it wrote.
    #[track_caller]
    fn run(&self, host: u32, line: &str) -> (Ended, String) {
        let mut process = self.start(host, line);
        let output = drain(process.stdout());
        let ended = process.wait();
        (ended, String::from_utf8(output.join().expect("no panic")).expect("text"))
    }

    /// Something of the test's own, which must do.
    #[track_caller]
    fn shell(&self, host: u32, line: &str) -> String {
        let (ended, output) = self.run(host, line);
        assert_eq!(ended.code, 0, "{line}: {output}{}", ended.stderr);
        output.trim_end().to_owned()
    }

    /// Two files or trees are the same, by names and checksums.
    #[track_caller]
    fn same(&self, host: u32, path: &str, other: u32, copy: &str) {
        let sums = |host, path: &str| {
            let line = "find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2";
            self.shell(host, &format!("if [ -d {path} ]; then cd {path} && {line}; else sha256sum <{path}; fi"))
        };
        let (one, two) = (sums(host, path), sums(other, copy));
        assert!(!one.is_empty() && one == two, "{path} on h{host} is not {copy} on h{other}:\n{one}\n{two}");
    }

    /// A sender's line with the address, port and key that its receiver printed, where README has those of an example.
    #[track_caller]
    fn as_printed(&self, line: &str, page: &str, receiver: &Process) -> String {
        let Some(example) = page.lines().find(|shown| shown.starts_with("rdsend ") && line.starts_with(*shown)) else {
            // It has the port that README names, and says nothing.
            let listens = "until grep -q ':1B58 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done";
            assert!(command_of(line).ends_with(" 7000"), "{line}");
            self.shell(2, listens);
            return line.to_owned();
        };
        let printed = receiver.line_with("rdsend ");
        let words = |line: &str| line.split(' ').map(str::len).collect::<Vec<_>>();
        let (shown, real) = (words(example), words(&printed));
        assert_eq!((shown.len(), shown.last()), (real.len(), real.last()), "printed as README has it: {printed}");
        line.replace(example, &printed)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &self.servers {
            server.signal(Signal::TERM);
        }
    }
}

/// The lines to be typed of a page's code blocks, and for a sender what stands above it as printed.
fn lines_to_type(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, body) = block.split_once('\n').expect("the fence's line");
        for line in body.replace("\\\n", " ").lines() {
            match (language, line.strip_prefix("$ ")) {
                ("console", Some(typed)) => lines.push(typed.to_owned()),
                // What a program prints.
                ("console", None) => {}
                ("sh", _) if line.trim().is_empty() => {}
                ("sh", _) => lines.push(line.to_owned()),
                _ => panic!("a block of {language:?}: {line}"),
            }
        }
    }
    lines
}

/// The line without its comment.
fn command_of(line: &str) -> &str {
    line.split(" #").next().expect("one").trim_end()
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn every_command_line_of_readme_does_what_it_says() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README");
    let world = World::new();
    let (mut waiting, mut known, mut skipped): (Option<Process>, Vec<&str>, Vec<&str>) = (None, Vec::new(), Vec::new());
    for line in lines_to_type(&page) {
        if let Some((line, why)) = NOT_RUN.iter().find(|(known, _)| *known == command_of(&line)) {
            eprintln!("not run: {line}: {why}");
            skipped.push(line);
            continue;
        }
        let found: Vec<&Typed> = TYPED.iter().filter(|typed| command_of(&line).contains(typed.known_by)).collect();
        assert!(found.len() == 1, "README has a line that this test has no check for: {line}");
        let typed = found[0];
        known.push(typed.known_by);
        eprintln!("h{}$ {line}", typed.at);
        match typed.how {
            How::Receiver => {
                // Until there, only host 1 had anything of ours but what `rdcp` and others had brought.
                world.shell(typed.at, "make install");
                let process = world.start(typed.at, &line);
                assert!(waiting.replace(process).is_none(), "a receiver waits already: {line}");
            }
            How::Alone => {
                let (ended, said) = world.run(typed.at, &line);
                // Warnings are of the machine that this runs on, and have an exit code of their own.
                let is_well = ended.code == 0 || ended.code == 10 && line.starts_with("rddoctor");
                assert!(is_well, "{line}: exit code {}\n{said}{}", ended.code, ended.stderr);
                (typed.check)(&world, &said);
            }
            How::Sender => {
                let mut receiver = waiting.take().unwrap_or_else(|| panic!("nobody waits for it: {line}"));
                let line = world.as_printed(&line, &page, &receiver);
                let (ended, said) = world.run(typed.at, &line);
                assert_eq!(ended.code, 0, "{line}\n{said}{}", ended.stderr);
                receiver.wait().expect(0);
                (typed.check)(&world, &said);
            }
        }
    }
    assert!(waiting.is_none(), "nobody sent");
    let unused: Vec<&str> = TYPED.iter().map(|typed| typed.known_by).filter(|name| !known.contains(name)).collect();
    assert!(unused.is_empty(), "README has no such lines any more: {unused:?}");
    assert_eq!(skipped.len(), NOT_RUN.len(), "README has no such lines any more: {NOT_RUN:?}, but {skipped:?}");
}
