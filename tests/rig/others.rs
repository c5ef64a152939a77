//! Commands with the rights of another user, who may not be able to enter the directory that this project is in.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The user id of nobody.
pub const NOBODY: u32 = 65534;

/// A line of the shell for [`in_shell`](super::in_shell) that, in `directory`, becomes this user, with no rights beside.
pub fn as_user(user: u32, directory: &Path) -> String {
    as_user_by("", user, directory)
}

/// The same by way of another command, such as `timeout 5`.
pub fn as_user_by(before: &str, user: u32, directory: &Path) -> String {
    with_rights(before, &format!("--reuid={user} --regid={user} --clear-groups"), directory)
}

/// A user, and a group that they are in besides that of the same number.
pub const MEMBER: u32 = 4711;
pub const TEAM: u32 = 4712;

/// As [`as_user`], of that member.
#[allow(dead_code, reason = "not all that have others have groups")]
pub fn as_member(directory: &Path) -> String {
    with_rights("", &format!("--reuid={MEMBER} --regid={MEMBER} --groups={TEAM}"), directory)
}

/// What setpriv makes of root, without any capability.
pub fn with_rights(before: &str, rights: &str, directory: &Path) -> String {
    let run = format!("exec {before} setpriv {rights} --inh-caps=-all --bounding-set=-all -- \"$@\"");
    closed().map_or(run.clone(), |closed| reachable(closed, directory, &run))
}

/// The first directory on the way to this project that others cannot enter: root's home, mostly.
fn closed() -> Option<&'static Path> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_closed = |path: &&Path| std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o001 == 0);
    project.ancestors().filter(is_closed).last()
}

/// Runs it where this directory has nothing in it but this project, and all may enter it.
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
