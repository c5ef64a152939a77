//! Hosts with the names used on the pages, at which lines are typed. Each has its own root on top of this machine's, so
//! that `/srv` and `~` belong to that host alone, an sshd, and stand-ins for third-party programs that the pages use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::page::command_of;
use crate::rig::hosts::{address, on};
use crate::rig::{Ended, PROGRAM, Process, Scratch, drain};

/// The pages' host names, with the number of the testbed's host for each. Different names in one
/// line have different numbers.
const NAMES: [(&str, u32); 34] = [
    ("backup", 2),
    ("nas", 2),
    ("fileserver", 2),
    ("storage", 2),
    ("db", 2),
    ("fs1", 1),
    ("db1", 2),
    ("src", 1),
    ("gpu1", 3),
    ("gpu01", 3),
    ("archive", 3),
    ("other_host", 3),
    ("fs2", 3),
    ("db2", 3),
    ("node7", 3),
    ("h2", 2),
    ("gpu2", 4),
    ("gpu02", 4),
    ("gpu7", 4),
    ("logs", 4),
    ("caps", 4),
    ("gpu3", 2),
    ("gpu03", 2),
    ("gpu65", 2),
    ("backup1", 2),
    ("backup2", 3),
    ("backup3", 4),
    ("n1", 2),
    ("n2", 3),
    ("n3", 4),
    ("cache", 2),
    ("node1", 1),
    ("h1", 1),
    ("here", 1),
];

/// The hosts, each with its own root and an sshd.
pub struct World {
    scratch: Scratch,
    servers: Vec<Process>,
}

/// Path of this project on a host. Lines typed there change only the host's own layer. What is removed before
/// another page is elsewhere.
const PROJECT: &str = "/project";

/// Makes the root of a host in its own mount namespace. Arguments: ROOT, the directory of the
/// built programs, this project.
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
mkdir -p run/sshd data var/zfs built/release root/.ssh project "$root/project" "$root/project.work"
mount -t overlay -o "lowerdir=$project,upperdir=$root/project,workdir=$root/project.work" none project
mount --bind "$built" built/release
mount -o remount,ro,bind built/release
cp "$files"/etc_hosts etc/hosts
cp "$files"/host_key "$files"/sshd_config run/
cp "$files"/user_key "$files"/ssh_config root/.ssh/
mv root/.ssh/ssh_config root/.ssh/config
cp "$files"/user_key.pub root/.ssh/authorized_keys
for program in $files/bin/*; do cp "$program" usr/local/bin/; done
cp "$project/tests/testbed/zfs" usr/local/bin/
ln -sf zfs usr/local/bin/zpool
chmod 755 usr/local/bin/*
"#;

/// Stand-ins for third-party programs on the pages. `zfs` is tests/testbed/zfs.
const STAND_INS: [(&str, &str); 8] = [
    // Without a packet filter in the kernel, the rules are only read.
    ("nft", "/usr/sbin/nft list ruleset >/dev/null 2>&1 || exit 0\nexec /usr/sbin/nft \"$@\""),
    ("psql", "exec cat >\"/var/$1.sql\""),
    // A container is a directory.
    (
        "docker",
        "[ \"$1 $2\" = 'exec -i' ] || exit 125\ncd \"/containers/$3\" && shift 3 && export HOME=$PWD && exec \"$@\"",
    ),
    ("train", "ls \"$1\""),
    (
        "syncoid",
        "at=$PROJECT/build/sanoid\n[ -x \"$at/usr/sbin/syncoid\" ] || at=\nexec perl -I \"$at/usr/share/perl5\" \"$at/usr/sbin/syncoid\" \"$@\"",
    ),
    ("pg_dump", "exec cat \"/var/$1.sql\""),
    ("zstd", "exec gzip -c"),
    ("sudo", "exec \"$@\""),
];

/// Makes the files used by README's lines, on each host.
const FILES: [(u32, &str); 4] = [
    (
        1,
        "mkdir -p data/sub && for i in $(seq 150); do echo \"$i\" >data/$i; head -c $((i * 100)) /dev/urandom >data/sub/$i; done; \
         for name in image.raw myfile big; do head -c 3000000 /dev/urandom >$name; done && zfs create tank/home && \
         cp big /var/zfs/tank/home/data && zfs snapshot tank/home@monday",
    ),
    (2, "head -c 2000000 /dev/zero >/var/shop.sql"),
    (3, "for name in /data/a.bin /data/b.bin /data/c.txt; do head -c 2000000 /dev/urandom >$name; done"),
    (4, "true"),
];

impl World {
    /// Makes hosts of which only the first has programs of this project.
    pub fn new() -> Self {
        let scratch = Scratch::new();
        for name in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let names: String = NAMES.iter().map(|(name, host)| format!("{} {name}\n", address(*host))).collect();
        scratch.file("etc_hosts", format!("127.0.0.1 localhost\n{names}").as_bytes());
        // As for a newcomer: a key that the other hosts know. Host keys are accepted without a question.
        scratch.file(
            "ssh_config",
            b"Host *\n  User root\n  IdentityFile /root/.ssh/user_key\n  StrictHostKeyChecking accept-new\n  BatchMode yes\n",
        );
        scratch.file(
            "sshd_config",
            b"Port 22\nPort 2222\nHostKey /run/host_key\nAuthorizedKeysFile /root/.ssh/authorized_keys\nStrictModes no\nUsePAM no\n\
              PermitRootLogin prohibit-password\nPidFile none\nPrintMotd no\n",
        );
        std::fs::create_dir(scratch.join("bin")).expect("a directory");
        for (name, body) in STAND_INS {
            scratch.file(&format!("bin/{name}"), format!("#!/bin/sh\n{body}\n").as_bytes());
        }
        let mut world = Self { scratch, servers: Vec::new() };
        for (host, files) in FILES {
            let mut make = Command::new("sh");
            let built = Path::new(PROGRAM).parent().expect("a directory");
            make.args(["-c", MAKE_ROOT, "sh"]).arg(world.root(host)).arg(built);
            make.arg(env!("CARGO_MANIFEST_DIR")).arg(world.scratch.path());
            let ended = Process::spawn(on(host, &make).stdin(Stdio::null()).stdout(Stdio::null())).wait();
            ended.expect(0);
            // A host finds its own address by its default route.
            world.shell(host, &format!("ip route replace default dev e0 && {files}"));
            {
                let sshd = world.typed(host, "exec /usr/sbin/sshd -D -e -f /run/sshd_config", "/");
                let server = Process::spawn(on(host, &sshd).stdin(Stdio::null()).stdout(Stdio::null()));
                server.line_with("listening on 0.0.0.0");
                world.servers.push(server);
            }
        }
        world
    }

    /// Prepares for another page: every host gets everything that `make install` installs, and only the
    /// files common to all pages.
    pub fn begin_anew(&self) {
        let anew = "find . /srv /tmp /data /var/zfs -mindepth 1 -maxdepth 1 ! -name .ssh -exec rm -rf {} +; \
            rm -rf /models /node /backup /containers /var/shop.sql /usr/local/bin/rd*; cd /usr/local/bin && \
            for name in rdcp rdsend rdrecv rdpipe rdsh rdperf rddoctor rdma-pipe; do ln -s /built/release/rdma-pipe $name; done && \
            ln -s /built/release/rdma-pipe-agent . && cd &&";
        let all: Vec<Process> =
            FILES.into_iter().map(|(host, files)| self.start(host, &format!("{anew} {files}"))).collect();
        for mut process in all {
            process.wait().expect(0);
        }
    }

    fn root(&self, host: u32) -> PathBuf {
        self.scratch.join(&format!("h{host}"))
    }

    /// Prepares a line as typed at a host in that directory.
    fn typed(&self, host: u32, line: &str, directory: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.root(host).join("all")).args(["env", "-i", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]);
        command.args(["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "CARGO_TARGET_DIR=/built"]);
        command.args(["PROJECT=/project", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes"]);
        command.args(["bash", "-o", "pipefail", "-c"]).arg(format!("cd {directory} && {line}"));
        command
    }

    pub fn start(&self, host: u32, line: &str) -> Process {
        // Lines that build the project are typed in its directory.
        let is_make = line.split_whitespace().any(|word| word == "make");
        let directory = if is_make { PROJECT } else { "~" };
        Process::spawn(on(host, &self.typed(host, line, directory)).stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    /// Runs a line at a host to its end. Returns how it ended, and its output.
    #[track_caller]
    pub fn run(&self, host: u32, line: &str) -> (Ended, String) {
        let mut process = self.start(host, line);
        let output = drain(process.stdout());
        let ended = process.wait();
        (ended, String::from_utf8(output.join().expect("no panic")).expect("text"))
    }

    /// Runs a line of the test itself, which must succeed.
    #[track_caller]
    pub fn shell(&self, host: u32, line: &str) -> String {
        let (ended, output) = self.run(host, line);
        assert_eq!(ended.code, 0, "{line}: {output}{}", ended.stderr);
        output.trim_end().to_owned()
    }

    /// Checks that two files or trees are the same, by names and checksums.
    #[track_caller]
    pub fn same(&self, host: u32, path: &str, other: u32, copy: &str) {
        let sums = |host, path: &str| {
            let line = "find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2";
            self.shell(host, &format!("if [ -d {path} ]; then cd {path} && {line}; else sha256sum <{path}; fi"))
        };
        let (one, two) = (sums(host, path), sums(other, copy));
        assert!(!one.is_empty() && one == two, "{path} on h{host} is not {copy} on h{other}:\n{one}\n{two}");
    }

    /// Waits until a process listens on that port of a host.
    #[track_caller]
    pub fn listens(&self, host: u32, port: u16) {
        self.shell(
            host,
            &format!("until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done"),
        );
    }

    /// Returns a sender's line in which the page's example is replaced by the address, port and key
    /// that its receiver printed.
    #[track_caller]
    pub fn as_printed(&self, line: &str, page: &str, receiver: &Process) -> String {
        let Some(example) = page.lines().find(|shown| shown.starts_with("rdsend ") && line.starts_with(*shown)) else {
            // The receiver has the port that the page names, and prints nothing.
            assert!(command_of(line).ends_with(" 7000"), "{line}");
            self.listens(2, 7000);
            return line.to_owned();
        };
        let printed = receiver.line_with("rdsend ");
        let words = |line: &str| line.split(' ').map(str::len).collect::<Vec<_>>();
        let (shown, real) = (words(example), words(&printed));
        assert_eq!((shown.len(), shown.last()), (real.len(), real.last()), "printed as the page has it: {printed}");
        line.replace(example, &printed)
    }
}

/// Returns the number of the host with that name.
pub fn host_of(name: &str) -> Option<u32> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, host)| *host)
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &self.servers {
            server.signal(Signal::TERM);
        }
        // Otherwise they would stay as long as the hosts exist.
        for (host, _) in FILES {
            let _ = on(host, Command::new("umount").arg("-Rl").arg(self.root(host))).status();
        }
    }
}
