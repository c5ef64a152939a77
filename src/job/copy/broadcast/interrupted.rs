//! What an interrupted broadcast has left behind, and how to go on from there.

use super::{Copy, Run};
use crate::control::frames::{Found, Kind};
use crate::job::progress::size_words;
use crate::options::{Rule, TreeOptions};

impl Copy<'_> {
    /// Tells the user how far an interrupted copy has come, and how it goes on with less to send.
    pub(super) fn tell_interrupted(&mut self, run: &Run, kept_bytes: u64, have_answered: bool) {
        let all = (0..run.targets.len()).filter(|&at| run.counts(at));
        let (done, lacking): (Vec<usize>, Vec<usize>) = all.partition(|&at| run.targets[at].is_complete());
        let others = if done.is_empty() { "" } else { " on the others" };
        let own = run.targets.iter().filter(|target| !target.is_extra && !target.is_replaced);
        // A host that was not reached has nothing to resume.
        let placed = own.filter_map(|target| target.placed.as_ref());
        let are_dst: Vec<bool> = placed.map(|placed| placed.as_name.is_some()).collect();
        let (plan, several) = (&self.plan, self.are_several(&run.found));
        let again = again(&plan.tree, plan.exact, plan.directory, several, &run.found, &are_dst);
        let anew = anew(plan.exact, &run.found, &are_dst, done.len());
        // A host that has not answered may have kept all that had come.
        let received: u64 = lacking.iter().map(|&at| run.targets[at].state.received).sum();
        let most = if have_answered { kept_bytes } else { kept_bytes.max(received) };
        let length = run.source_state.has_all.then_some(run.source_state.received);
        let is_less = plan.tree.sync || is_less_with_sync(length, lacking.len(), most);
        let again = |joint: &str, from: &str| match again {
            Some(with) if is_less => format!("{joint} run again{with} to resume{from}"),
            Some(with) => format!("; run the same command again{anew}, because{with} the source may have more to send"),
            None => String::new(),
        };
        let kept = match (kept_bytes, have_answered) {
            (0, true) => format!("nothing kept{others} to resume"),
            (0, false) => format!("not all hosts answered{}", again(";", " from what they may have kept")),
            (bytes, _) => {
                let least = if have_answered { "" } else { "at least " };
                format!("{least}{} kept{others} in total{}", size_words(bytes), again(",", ""))
            }
        };
        let (done, all) = (done.len(), done.len() + lacking.len());
        self.say(&format!("interrupted; {done} of {all} hosts are complete; {kept}"));
    }
}

/// Whether less is to be sent with `--sync`, by which the source sends each of the `lacking` hosts what it lacks, than by
/// the same command again, which sends everything once. `length`: bytes of everything, if known. `kept`: bytes that
/// these hosts have together.
pub(super) fn is_less_with_sync(length: Option<u64>, lacking: usize, kept: u64) -> bool {
    let others = lacking.saturating_sub(1) as u64;
    others == 0 || length.is_some_and(|bytes| bytes.saturating_mul(others) < kept)
}

/// Returns what to add to the command so that another run, without `--sync`, has its copies in the same places: `done`
/// hosts have theirs by now, and where that is DST, SRC would go into it.
pub(super) fn anew(exact: bool, found: &[(usize, Found)], are_dst: &[bool], done: usize) -> &'static str {
    let is_named = |found: &Found| found.kind == Kind::Directory && !found.name.is_empty();
    match found {
        [(_, found)] if is_named(found) && !exact && done > 0 && are_dst.contains(&true) => " with -T",
        _ => "",
    }
}

/// Returns what to add to the command so that another run resumes, in the same places and with the same entries: with
/// `--sync`, SRC/ becomes DST and SRC goes into DST, whether DST exists or not. `None` if no words suit all hosts.
/// `are_dst`: for each host that the command names, whether the copy there is DST itself.
pub(super) fn again(
    tree: &TreeOptions,
    exact: bool,
    directory: bool,
    several: bool,
    found: &[(usize, Found)],
    are_dst: &[bool],
) -> Option<&'static str> {
    let is_slashed = |found: &Found| found.kind == Kind::Directory && found.path.ends_with(b"/");
    let are_all = |is: bool| are_dst.iter().all(|&is_dst| is_dst == is);
    // With -T, the name of SRC is no longer a part of the paths that such a pattern may match.
    let has_path = |rule: &Rule| rule.pattern.windows(2).any(|two| two[0] == b'/' || two == b"**");
    let (with, is_contents) = match found {
        _ if tree.sync => return Some(""),
        [(_, found)] if !several => match found.kind == Kind::Directory {
            is_directory if !is_directory || exact || found.name.is_empty() => (" with --sync", is_directory),
            _ if are_all(is_slashed(found)) => (" with --sync", is_slashed(found)),
            _ if are_all(true) && !directory && !tree.rules.0.iter().any(has_path) => (" with --sync -T", true),
            _ => return None,
        },
        all if all.iter().all(|(_, found)| !found.name.is_empty() && !is_slashed(found)) => (" with --sync", false),
        _ => return None,
    };
    // With --sync, patterns apply to SRC itself, too, unless its contents are copied.
    (is_contents || tree.rules.0.is_empty()).then_some(with)
}
