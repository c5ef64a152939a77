//! Peers from crates.io that `rdcp` is measured against, in versions that stay the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::*;

/// A program and where it comes from.
pub struct Peer {
    pub program: &'static str,
    package: &'static str,
    version: &'static str,
}

/// The peers from crates.io.
pub const PEERS: [Peer; 2] = [
    Peer { program: "syq", package: "syq", version: "0.7.1" },
    Peer { program: "rcp", package: "rcp-tools-rcp", version: "0.41.0" },
];

/// Seconds that building one may take.
const BUILD_LIMIT: &str = "1800";

impl Peer {
    /// The program below build/peers, built there the first time.
    pub fn installed(&self) -> Result<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("build/peers");
        let path = root.join("bin").join(self.program);
        let wanted = format!("\"{} {} (", self.package, self.version);
        let known = fs::read_to_string(root.join(".crates.toml")).unwrap_or_default();
        if !(known.contains(&wanted) && path.is_file()) {
            self.build(&root)?;
        }
        let help = Command::new(&path).arg("--help").stdin(Stdio::null()).output().map_err(text)?;
        if help.status.success() { Ok(path) } else { Err(format!("{} does not start", path.display())) }
    }

    fn build(&self, root: &Path) -> Result<()> {
        println!("building {} {} from crates.io, once", self.package, self.version);
        let mut install = Command::new("timeout");
        install.args([BUILD_LIMIT, "cargo", "install", "--locked", "--force", "--quiet", "--root"]).arg(root);
        install.args([self.package, "--version", &format!("={}", self.version)]);
        install.env("CARGO_TARGET_DIR", root.join("target"));
        let output = install.stdin(Stdio::null()).output().map_err(text)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().rfind(|line| line.contains("error")).unwrap_or("cargo install failed");
        Err(format!("{} {} cannot be built here: {}", self.package, self.version, why.trim()))
    }
}
