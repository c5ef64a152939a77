//! Runs commands with the rights of another user, who may be unable to enter the directory that contains this project.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// User id of nobody.
pub const NOBODY: u32 = 65534;

/// Returns a shell line for [`in_shell`](super::in_shell) that becomes this user in
/// `directory`, without further rights.
pub fn as_user(user: u32, directory: &Path) -> String {
    as_user_by("", user, directory)
}

/// Like [`as_user`], but through another command, such as `timeout 5`.
pub fn as_user_by(before: &str, user: u32, directory: &Path) -> String {
    with_rights(before, &format!("--reuid={user} --regid={user} --clear-groups"), directory)
}

/// A user id, and a group that the user belongs to besides the group of the same number.
pub const MEMBER: u32 = 4711;
pub const TEAM: u32 = 4712;

/// Like [`as_user`], for user [`MEMBER`] with group [`TEAM`].
#[allow(dead_code, reason = "not all that have others have groups")]
pub fn as_member(directory: &Path) -> String {
    with_rights("", &format!("--reuid={MEMBER} --regid={MEMBER} --groups={TEAM}"), directory)
}

/// Returns a shell line that gives up root as setpriv's options in `rights` say, without any capability.
pub fn with_rights(before: &str, rights: &str, directory: &Path) -> String {
    let run = format!("exec {before} setpriv {rights} --inh-caps=-all --bounding-set=-all -- \"$@\"");
    closed().map_or(run.clone(), |closed| reachable(closed, directory, &run))
}

/// Returns the topmost directory on the way to this project that other users cannot enter,
/// which is usually root's home.
fn closed() -> Option<&'static Path> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_closed = |path: &&Path| std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o001 == 0);
    project.ancestors().filter(is_closed).last()
}

/// Runs the command where the closed directory contains only this project and every user may enter it.
fn reachable(closed: &Path, directory: &Path, run: &str) -> String {
    let quoted = |path: &Path| shell_words::quote(path.to_str().expect("UTF-8")).into_owned();
    let (project, closed) = (quoted(Path::new(env!("CARGO_MANIFEST_DIR"))), quoted(closed));
    let inner = format!(
        "exec 3<{project} && mount -t tmpfs -o mode=755 none {closed} && mkdir -p {project} && \
         mount --no-canonicalize --bind /proc/self/fd/3 {project} && cd {} && exec 3<&- && {run}",
        quoted(directory)
    );
    format!("exec unshare --mount --propagation private sh -ec {} sh \"$@\"", shell_words::quote(&inner))
}
