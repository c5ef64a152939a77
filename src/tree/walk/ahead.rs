//! What a walk reads [ahead](crate::tree::ahead): the next entries of its directory, and files that the receiver wants.

use super::place::{Level, Place};
use super::{Recorder, Walk, WantedFile};
use crate::tree::ahead::{ENTRIES_OF_DIRECTORY, HandedOut};

impl Walk {
    /// Hands out the entries after the current one in the walk's directory.
    pub(super) fn look_ahead(&self) {
        let Some(level) = self.place.levels.last().filter(|_| self.ahead.is_on()) else { return };
        let [layer] = &level.layers[..] else { return };
        let how = (level.is_fresh, self.recorder.entries_ahead(&self.place));
        let handed = &mut level.handed_out.borrow_mut();
        self.ahead.look(&layer.directory, (&level.names, level.passed), handed, how, |name, kind| {
            self.recorder.is_left_out(&self.place, name.to_bytes(), kind)
        });
    }

    /// Hands out a file whose contents are to be sent.
    pub(super) fn look_at_wanted(&self, wanted: &WantedFile) {
        if let Some((at, name)) = wanted.file.at().filter(|_| self.ahead.is_on()) {
            self.ahead.look_at(at, name);
        }
    }
}

impl Recorder {
    /// Returns how many entries of each directory to come are certain to be copied.
    fn entries_ahead(&self, place: &Place) -> usize {
        if self.patterns.is_empty() && place.selected.is_none() { ENTRIES_OF_DIRECTORY } else { 0 }
    }

    /// Returns what has been handed out of a directory that is being entered, which the last level has just passed.
    pub(super) fn handed_out(&self, place: &Place, entered: &Level) -> HandedOut {
        let Some(above) = place.levels.last() else { return HandedOut::default() };
        let number = above.passed.wrapping_sub(1);
        HandedOut::of_entered(&above.handed_out.borrow(), number, &entered.names, self.entries_ahead(place))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::super::{Come, Walk};
    use crate::options::{Rule, Rules, TreeOptions};
    use crate::tree::ahead::cold::{are_cached_soon, is_cached, tree};
    use crate::tree::ahead::{DIRECTORIES_AHEAD, ENTRIES_OF_DIRECTORY};
    use crate::tree::root::Root;

    const DIRECTORIES: usize = 11;
    const FILES: usize = 70;

    /// Walks over the root and the first directories, up to the first file of the last of these.
    fn walk_to(top: &Path, directory: usize, is_cold: bool, rules: Rules) -> Walk {
        let options = TreeOptions { rules, ..TreeOptions::default() };
        let mut walk = Walk::new(vec![Root::new(top, "t")], 1 << 20, options).expect("a tree");
        if is_cold {
            walk.ahead.stay_on();
        }
        let mut target = vec![0; 1 << 20];
        // The root, the directories with their files and ends, and one more directory with its first file.
        for _ in 0..1 + directory * (FILES + 2) + 2 {
            let filled = walk.fill(&mut target, 1, Come { room: 1, ..Come::default() }, &AtomicBool::new(false));
            assert!(filled.length > 0);
        }
        walk
    }

    #[test]
    fn what_comes_next_is_read_and_no_more() {
        let top = tree(DIRECTORIES, FILES);
        let top = top.path();
        let walk = walk_to(top, 1, true, Rules::default());
        let next =
            (2..2 + DIRECTORIES_AHEAD).flat_map(|directory| (0..ENTRIES_OF_DIRECTORY).map(move |at| (directory, at)));
        are_cached_soon(top, (0..FILES).map(|file| (1, file)).chain(next));
        drop(walk);
        assert!(!is_cached(top, 3, ENTRIES_OF_DIRECTORY), "beyond the first entries of a directory");
        assert!(!is_cached(top, 2 + DIRECTORIES_AHEAD, 0), "beyond the next directories");
    }

    #[test]
    fn a_tree_that_is_not_cold_and_what_is_left_out_are_left_alone() {
        let top = tree(DIRECTORIES, FILES);
        let top = top.path();
        let walk = walk_to(top, 0, false, Rules::default());
        assert!(!walk.ahead.has_begun(), "no thread has begun");
        let out = ["f1*", "d02"].map(|pattern| Rule { pattern: pattern.as_bytes().to_vec().into(), is_include: false });
        let walk = walk_to(top, 0, true, Rules(out.to_vec()));
        are_cached_soon(top, (0..FILES).filter(|file| file / 10 != 1).map(|file| (0, file)));
        drop(walk);
        assert!((10..20).all(|file| !is_cached(top, 0, file)));
        assert!((0..FILES).all(|file| !is_cached(top, 2, file)));
    }
}
