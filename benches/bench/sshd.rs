//! A separate sshd for the measurements.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::*;

/// Name of the server in ssh's configuration.
pub const HOST: &str = "bench";

/// Number of further names of the server, each with an address of its own.
pub const HOSTS: usize = 10;

/// PATH of a login by default.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Returns the name with this number, from 1 to [`HOSTS`].
pub fn numbered(number: usize) -> String {
    format!("{HOST}{number}")
}

/// A separate sshd, with its own port and keys.
pub struct Sshd {
    directory: PathBuf,
    server: Child,
    pub port: u16,
}

impl Sshd {
    pub fn start(scratch: &Path) -> Result<Self> {
        let directory = scratch.join("ssh");
        fs::create_dir(&directory).map_err(text)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).map_err(text)?;
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(directory.join(key));
            Running::start(&mut make)?.success()?;
        }
        let port = free_port()?;
        let root = rustix::process::geteuid().is_root();
        // The start-up files of the measuring user must not count for the tools' time.
        let home = directory.join("home");
        fs::create_dir(&home).map_err(text)?;
        let programs = directory.join("programs");
        fs::create_dir(&programs).map_err(text)?;
        let environment = format!("SetEnv=HOME={} PATH={}:{PATH}", home.display(), programs.display());
        if root {
            fs::create_dir_all("/run/sshd").map_err(text)?;
        }
        let sftp = "/usr/lib/openssh/sftp-server";
        let sftp = if Path::new(sftp).exists() { sftp } else { "internal-sftp" };
        let path = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let log = File::create(directory.join("log")).map_err(text)?;
        let addresses = (1..=HOSTS).flat_map(|number| ["-o".to_owned(), format!("ListenAddress=127.0.0.{number}")]);
        let server = Command::new(path.ok_or("no sshd here")?) // sshd must be called by its whole path
            .args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string(), "-h"])
            .arg(directory.join("host"))
            .args(addresses)
            // Allows as many simultaneous logins as there are names, and some more.
            .args(["-o", "MaxStartups=100", "-o", "StrictModes=no", "-o", "PidFile=none"])
            // If root's password is locked, PAM still accepts the key.
            .args(["-o", if root { "UsePAM=yes" } else { "UsePAM=no" }, "-o", "PermitRootLogin=yes"])
            .args(["-o", &format!("AuthorizedKeysFile={}", directory.join("user.pub").display())])
            .args(["-o", &format!("Subsystem=sftp {sftp}"), "-o", &environment])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(text)?;
        let sshd = Sshd { directory, server, port };
        let mut config = format!("Host {HOST}\n  HostName 127.0.0.1\n");
        for number in 1..=HOSTS {
            config += &format!("Host {}\n  HostName 127.0.0.{number}\n", numbered(number));
        }
        config += &format!(
            "Host *\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile /dev/null\n  \
             StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes\n",
            sshd.key().display()
        );
        fs::write(sshd.config(), config).map_err(text)?;
        wait_listening(port).map_err(|error| {
            let said = fs::read_to_string(sshd.directory.join("log")).unwrap_or_default();
            format!("{error}: {}", said.trim().lines().last().unwrap_or("sshd says nothing"))
        })?;
        Ok(sshd)
    }

    /// Returns the configuration file with which ssh reaches the server as `HOST`.
    pub fn config(&self) -> PathBuf {
        self.directory.join("config")
    }

    /// Returns the file of the login's private key.
    pub fn key(&self) -> PathBuf {
        self.directory.join("user")
    }

    /// Returns the directory in which logins look for programs first.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("programs")
    }

    /// Returns the server's process ID.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Returns a command of ssh or scp that uses this server's configuration.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-F").arg(self.config());
        command
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
