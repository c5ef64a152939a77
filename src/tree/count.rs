//! Counts what a copy will amount to, in parallel with the copy, for a user who watches its progress.
//!
//! Counting takes a fiftieth of one processor, at the lowest priority. The result need not be exact: entries that
//! cannot be read, or that change meanwhile, are not counted. The copy's own walk corrects the totals in the end.

use std::time::Duration;

use rd_proto::control::IoFact;
use rustix::time::{ClockId, clock_gettime};

use super::progress::Progress;
use super::root::Root;
use super::walk::Walk;
use crate::options::TreeOptions;

/// Number of entries between two reports, and between two pauses.
const REPORT_EVERY: u64 = 256;

/// Length of a pause as a multiple of the time worked before it. On tmpfs this counts some 25,000 entries a second.
const PAUSE_TIMES: u32 = 49;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Stack size of a counting thread, in bytes.
pub const STACK_BYTES: usize = 1 << 20;

/// Counts what lies below `roots` until `is_over` returns true.
///
/// # Errors
///
/// The errors of [`Walk::new`].
pub fn count(
    roots: Vec<Root>,
    options: TreeOptions,
    progress: &Progress,
    is_over: &dyn Fn() -> bool,
) -> Result<(), IoFact> {
    // On Linux this sets the priority of the calling thread alone.
    let _ = rustix::process::setpriority_process(None, 19);
    let mut walk = Walk::new(roots, 0, options)?;
    let mut until = worked();
    loop {
        let (met, is_all) = walk.count(REPORT_EVERY);
        progress.counted(met, is_all);
        if is_all {
            return Ok(());
        }
        std::thread::sleep((worked().saturating_sub(until) * PAUSE_TIMES).min(PAUSE_MAX));
        until = worked();
        if is_over() {
            return Ok(());
        }
    }
}

/// Returns the processor time that the calling thread has used.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::progress::Amount;
    use super::*;
    use crate::options::{Rule, Rules};

    /// Counts in a thread of its own, because the thread's priority is lowered.
    fn counted(roots: &[Root], options: TreeOptions, is_over: bool) -> Progress {
        let progress = Progress::default();
        let (counting, roots) = (&progress, roots.to_vec());
        std::thread::scope(|scope| {
            let counter = scope.spawn(move || count(roots, options, counting, &|| is_over));
            counter.join().expect("no panic").expect("counted");
        });
        progress
    }

    #[test]
    fn all_that_a_copy_would_make_is_counted() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("deep/deeper")).expect("directories");
        for (name, bytes) in [("a", 10), ("deep/b", 200), ("deep/deeper/c", 3000), ("deep/left.o", 40_000)] {
            fs::write(top.join(name), vec![1; bytes]).expect("a file");
        }
        fs::hard_link(top.join("a"), top.join("deep/again")).expect("a link");
        symlink("nowhere", top.join("link")).expect("a link");
        let roots = [Root::new(&top, "name.o")];
        let counted = |options: TreeOptions| counted(&roots, options, false).total();
        let met = |entries, directories, bytes| (Amount { entries, directories, bytes }, true);
        assert_eq!(counted(TreeOptions::default()), met(9, 3, 43_210));
        assert_eq!(counted(TreeOptions { hard_links: false, ..TreeOptions::default() }), met(9, 3, 43_220));
        assert_eq!(counted(TreeOptions { symlinks: false, ..TreeOptions::default() }), met(8, 3, 43_210));
        let rules = Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]);
        assert_eq!(
            counted(TreeOptions { rules, ..TreeOptions::default() }),
            met(8, 3, 3210),
            "the root itself never is left out"
        );
    }

    #[test]
    fn it_ends_when_the_copy_does() {
        let scratch = tempfile::tempdir().expect("a directory");
        for number in 0..2 * REPORT_EVERY {
            fs::write(scratch.path().join(number.to_string()), "x").expect("a file");
        }
        let progress = counted(&[Root::new(scratch.path(), "name")], TreeOptions::default(), true);
        let (met, is_all) = progress.total();
        assert!(!is_all && met.entries < 2 * REPORT_EVERY, "{met:?}");
    }
}
