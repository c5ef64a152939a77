//! Limits on the resources of this process.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Returns the soft limit and the hard limit on a resource. `None` if there is no limit, or if the system call is
/// refused, as by systemd's `SystemCallFilter=~@resources`. With rustix, a refusal would be undefined behaviour.
pub(crate) fn both(resource: Resource) -> (Option<u64>, Option<u64>) {
    let (soft, hard) = getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    let known = |limit| Some(limit).filter(|&limit| limit != RLIM_INFINITY);
    (known(soft), known(hard))
}

/// Returns the soft limit, which is the limit in force.
pub(crate) fn soft(resource: Resource) -> Option<u64> {
    both(resource).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn limits_that_nobody_may_ask_for_are_none() {
        assert!(soft(Resource::RLIMIT_NOFILE).is_some());
        let refused = || both(Resource::RLIMIT_NOFILE);
        assert_eq!(where_calls_fail(&[libc::SYS_prlimit64], libc::EPERM, refused), (None, None));
    }
}
