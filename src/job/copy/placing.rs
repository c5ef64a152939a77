//! Finds the sources of a copy, and where each of them will be placed, by asking the hosts before anything is begun.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use minicbor::bytes::ByteVec;

use rd_proto::tree::PATH_BYTES_MAX;

use super::{ANSWER_MAX, BATCH_BYTES_MAX, Copy, HERE, SEARCH_MAX, message_bytes};
use crate::agent::place::{SAME_FILE, target};
use crate::control::frames::{Fault, Found, Kind, Message, Place, Placed};
use crate::control::names;
use crate::fault::{Exit, Failure, escaped};
use crate::job::event::{self, At, Event};
use crate::job::plan::Spec;
use crate::options::Followed;

/// Maximum memory for what is found on other hosts, in bytes: some hundred thousand paths.
const FOUND_BYTES_MAX: usize = 64 << 20;

/// Why a path that begins with `~USER` does not exist.
const NO_USER: &str = "no such user there";

/// Why a destination refuses sources.
struct Objection {
    failure: Failure,
    /// Whether the only source is its own destination.
    is_itself: bool,
}

/// Returns how many sources to ask about at once. They are from one side, because whether inodes can be compared is the
/// same for all sources of a side.
pub(super) fn batch(rest: &[(usize, Found)]) -> usize {
    let mut bytes = 0;
    let fits = rest.iter().take_while(|(side, found)| {
        bytes += message_bytes(found);
        *side == rest[0].0 && bytes <= BATCH_BYTES_MAX
    });
    fits.count().max(1)
}

impl Copy<'_> {
    /// Tells the user if a source looks like a pattern but is the name of an entry. It then stands for that entry
    /// alone, and the user may miss the other matches.
    fn tell_literal(&mut self, side: usize, asked: &[ByteVec], found: &[Found]) {
        let looks_like_one = |path: &[u8]| path.iter().any(|byte| b"*?".contains(byte));
        for found in found.iter().filter(|found| side != HERE && looks_like_one(&found.path)) {
            if asked.iter().any(|pattern| **pattern == *found.path) {
                let name = self.name(side, &found.path);
                self.say(&format!("{name} is an existing name, so it is not used as a pattern"));
            }
        }
    }

    /// Returns all existing sources, each with its host, in the order of the command line. Missing ones are reported to
    /// the user.
    pub(super) fn find(&mut self, sides: &[usize]) -> Result<Vec<(usize, Found)>, Failure> {
        let specs = &self.plan.sources;
        let mut all = Vec::new();
        let mut found_bytes = 0;
        let mut at = 0;
        while at < specs.len() {
            if specs[at] == Spec::Standard {
                let (path, name) = (b"-".to_vec(), Vec::new());
                all.push((HERE, Found { path, name, kind: Kind::Other, size_bytes: 0, device: 0, inode: 0 }));
                at += 1;
                continue;
            }
            let (side, mut patterns, mut bytes) = (sides[at], Vec::new(), 0);
            while at < specs.len() && sides[at] == side && specs[at] != Spec::Standard && bytes < BATCH_BYTES_MAX {
                patterns.push(ByteVec::from(specs[at].path().as_bytes().to_vec()));
                bytes += specs[at].path().len() + 8;
                at += 1;
            }
            let asked = patterns.clone();
            let tree = &self.plan.tree;
            let links = Followed { all: tree.copy_links || !self.plan.recursive, ..tree.followed() };
            self.job.send(side, Message::Find { patterns, links });
            let before = all.len();
            let mut unanswered = asked.len();
            let (names_max, missing_before) = (asked.len().saturating_mul(names::MATCHES_MAX), self.left_out);
            let is_search = asked.iter().any(|path| names::is_pattern(path));
            let within = if is_search { SEARCH_MAX } else { ANSWER_MAX };
            loop {
                // The host reports what it finds while it searches. So each part of the answer renews the time for the
                // next part, if the part names something.
                match self.job.answer(side, within)? {
                    Message::Found(found) if !found.is_empty() => {
                        self.check_found(side, &asked, &found)?;
                        self.tell_literal(side, &asked, &found);
                        let bytes = |found: &Found| found.path.len() + found.name.len() + size_of::<(usize, Found)>();
                        found_bytes += if side == HERE { 0 } else { found.iter().map(bytes).sum() };
                        if found_bytes > FOUND_BYTES_MAX {
                            return Err(self.too_much_found(side));
                        }
                        all.extend(found.into_iter().map(|found| (side, found)));
                        if all.len() - before > names_max {
                            return Err(self.job.unexpected(side));
                        }
                    }
                    Message::EntriesFailed(missing) if !missing.is_empty() => {
                        self.count_left_out(side, missing.len() as u64);
                        if self.left_out - missing_before > names_max as u64 {
                            return Err(self.job.unexpected(side));
                        }
                        // Missing sources that the user has named are all reported, however many they are.
                        let (named, others) = missing.split_at(missing.len().min(unanswered));
                        unanswered -= named.len();
                        named.iter().for_each(|fault| self.tell_failed(&self.unfound(side, fault)));
                        self.tell_failures(side, others);
                    }
                    Message::FoundAll => break,
                    Message::Failed(fault) => return Err(self.failure(side, &fault)),
                    _ => return Err(self.job.unexpected(side)),
                }
            }
        }
        let is_single = !self.are_several(&all);
        let (directories, mut all): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, found)| found.kind == Kind::Directory && !self.plan.recursive);
        for (side, found) in directories {
            let name = self.name(side, &found.path);
            let failure = Exit::Usage.with(format!("{name} is a directory; -r copies directories")).about(
                &self.job.hosts[side].name,
                &found.path,
                libc::EISDIR,
            );
            if is_single {
                return Err(failure);
            }
            self.leave_out(side, &failure);
        }
        self.is_any_left(&all)?;
        all.shrink_to_fit();
        self.check_merged(&all)?;
        Ok(all)
    }

    /// Returns the failure for a missing source.
    fn unfound(&self, side: usize, fault: &Fault) -> Failure {
        let failure = self.failure(side, fault);
        if side == HERE || fault.errno != libc::ENOENT {
            return failure;
        }
        let path = escaped(OsStr::from_bytes(&fault.path));
        let line = if fault.path.starts_with(b"~") {
            failure.message.as_ref().map(|line| format!("{line}; {NO_USER}"))
        } else if fault.path.iter().any(|byte| b"*?".contains(byte)) {
            Some(format!("{}: no file matches {path}", self.label(side)))
        } else {
            None
        };
        match line {
            Some(line) => Failure { message: Some(line), ..failure },
            None => failure,
        }
    }

    /// Refuses sources that would become one entry, unless they can be merged: with `--sync`, from one host, in one
    /// session.
    fn check_merged(&self, found: &[(usize, Found)]) -> Result<(), Failure> {
        let are_contents = self.are_contents(found);
        let mut own: Vec<&[u8]> = found.iter().map(|(_, found)| &found.name[..]).collect();
        own.sort_unstable();
        let twice = own.windows(2).find(|two| two[0] == two[1] && !two[0].is_empty() && !are_contents);
        let what = match twice {
            Some(twice) => {
                Some(format!("two sources would both become {} in DST", escaped(OsStr::from_bytes(twice[0]))))
            }
            None => (are_contents && found.len() > 1)
                .then(|| "the contents of several SRC/ would be merged in DST".to_owned()),
        };
        let is_one_host = found.windows(2).all(|two| two[0].0 == two[1].0);
        let bytes: usize = found.iter().map(|(_, found)| message_bytes(found)).sum();
        let is_directory = found.iter().any(|(_, found)| found.kind == Kind::Directory);
        let advice = if !self.plan.tree.sync {
            Some(if is_directory { "use --sync to merge directories" } else { "give one of them another name in DST" })
        } else if !self.plan.targets.is_empty() {
            Some("merging works for one destination host at a time, so name only one")
        } else if !is_one_host || bytes > BATCH_BYTES_MAX {
            Some(
                "only a few directories of one host can be merged; copy one at a time, and last the one whose files \
                 are to win",
            )
        } else {
            None
        };
        if let Some((what, advice)) = what.zip(advice) {
            return Err(Exit::Usage.with(format!("{what}; {advice}")));
        }
        // Entries that came from the missing sources would be deleted.
        let last = |spec: &Spec| names::last_name(spec.path().as_bytes()).to_vec();
        let mut asked: Vec<_> = self.plan.sources.iter().map(last).collect();
        asked.sort_unstable();
        // Of a pattern, some directories may have been found, and others could not be looked at.
        let are_below_several = |spec: &Spec| names::is_below_pattern(spec.path().as_bytes());
        let are_merged = are_contents
            || asked.windows(2).any(|two| two[0] == two[1])
            || self.plan.sources.iter().any(are_below_several);
        if self.left_out > 0 && self.plan.tree.delete && are_merged {
            return Err(would_delete("the missing or unreadable SRC"));
        }
        Ok(())
    }

    /// Reports whether the contents of each source are meant, so that all of them become DST.
    pub(super) fn are_contents(&self, found: &[(usize, Found)]) -> bool {
        let is_contents = |(_, found): &(usize, Found)| found.kind == Kind::Directory && self.plan.is_contents(found);
        self.plan.tree.sync && !found.is_empty() && found.iter().all(is_contents)
    }

    /// Returns the only root of everything that is copied, or the first of several roots that are merged into one.
    pub(super) fn only_root<'f>(&self, found: &'f [(usize, Found)]) -> Option<&'f Found> {
        let (_, first) = found.first()?;
        let is_same = |(_, other): &(usize, Found)| other.name == first.name && !first.name.is_empty();
        (found.len() == 1 || self.are_contents(found) || found.iter().all(is_same)).then_some(first)
    }

    fn too_much_found(&self, side: usize) -> Failure {
        let (label, most) = (self.label(side), FOUND_BYTES_MAX >> 20);
        let message = format!(
            "the patterns match too much on {label} (more than {most} MiB of names); copy the directory instead, \
             with -r and --exclude"
        );
        Exit::Usage.with(message)
    }

    /// Checks that an agent has found only what was requested. Its names become names on this host, so a name that
    /// leads elsewhere would be written to.
    fn check_found(&self, side: usize, asked: &[ByteVec], found: &[Found]) -> Result<(), Failure> {
        let is_asked = |name: &[u8]| asked.iter().any(|pattern| names::may_be_named(pattern, name));
        // On this host the user's shell has expanded the patterns, so paths are taken as given.
        if side == HERE {
            return Ok(());
        }
        if found.iter().any(|found| found.path.len() > PATH_BYTES_MAX) {
            return Err(self.job.unexpected(side));
        }
        let Some(other) = found.iter().find(|found| !is_asked(&found.name)) else { return Ok(()) };
        let label = self.label(side);
        let name = escaped(OsStr::from_bytes(&other.name));
        Err(Exit::Protocol.with(format!("the agent on {label} offered {name}, which was not requested")))
    }

    /// Reports whether more than one source was named, existing or not. Only a single source can get DST as its name.
    pub(super) fn are_several(&self, found: &[(usize, Found)]) -> bool {
        (found.len() as u64).saturating_add(self.left_out) > 1
    }

    /// Reports a source that is not copied while the others are.
    pub(super) fn leave_out(&mut self, side: usize, failure: &Failure) {
        self.count_left_out(side, 1);
        self.tell_failed(failure);
    }

    fn count_left_out(&mut self, side: usize, count: u64) {
        self.left_out = self.left_out.saturating_add(count);
        let of_side = self.left_out_of.entry(side).or_default();
        *of_side = of_side.saturating_add(count);
    }

    /// Tells a user who has typed rsync's letters that a trailing slash means something else than with rsync.
    pub(super) fn tell_nested(&mut self, found: &[(usize, Found)], placed: Option<&Placed>) {
        let is_into = self.plan.has_rsync_letters && placed.is_some_and(|placed| placed.as_name.is_none());
        let nested = |(_, found): &&(usize, Found)| found.kind == Kind::Directory && found.path.ends_with(b"/");
        let Some((side, found)) = found.iter().find(nested).filter(|_| is_into) else { return };
        let (source, path) = (self.name(*side, &found.path), self.destination.path().as_bytes());
        let destination = self.destination.typed();
        let above = if path.is_empty() || path.ends_with(b"/") { path.to_vec() } else { [path, b"/"].concat() };
        let name = [&above[..], &found.name].concat();
        self.say(&format!(
            "{source} is copied into {destination} as {}, like cp; rdcp --sync copies its contents there, like rsync",
            escaped(OsStr::from_bytes(&name))
        ));
    }

    fn is_any_left(&self, found: &[(usize, Found)]) -> Result<(), Failure> {
        // The missing sources have been reported before.
        let exit = self.first_failed.filter(|_| found.is_empty());
        exit.map_or(Ok(()), |exit| Err(Failure::silent(exit)))
    }

    /// Returns where the sources are placed; `None` for standard output. If there are several, those that cannot be
    /// placed are reported and removed from `found`.
    pub(super) fn place(&mut self, side: usize, found: &mut Vec<(usize, Found)>) -> Result<Option<Placed>, Failure> {
        let several = self.are_several(found) && !self.are_contents(found);
        if self.destination == Spec::Standard {
            if several {
                return Err(Exit::Usage.with("only one file can be copied to standard output"));
            }
            return Ok(None);
        }
        let all = std::mem::take(found);
        let mut rest = &all[..];
        let mut placed = None;
        while !rest.is_empty() {
            let (some, others) = rest.split_at(batch(rest));
            rest = others;
            self.place_some(side, some, several, found, &mut placed)?;
        }
        self.is_any_left(found)?;
        // A source that is left out may be DST itself. What only this source has would be deleted.
        let mut counts: HashMap<&[u8], [usize; 2]> = HashMap::new();
        all.iter().for_each(|(_, one)| counts.entry(&one.name).or_default()[0] += 1);
        found.iter().for_each(|(_, one)| counts.entry(&one.name).or_default()[1] += 1);
        if self.plan.tree.delete && counts.values().any(|&[named, kept]| named > 1 && kept < named) {
            return Err(would_delete("the SRC that is not copied"));
        }
        Ok(placed)
    }

    /// Asks about sources of one host. Those that can be placed are added to `found`.
    fn place_some(
        &mut self,
        side: usize,
        some: &[(usize, Found)],
        several: bool,
        found: &mut Vec<(usize, Found)>,
        placed: &mut Option<Placed>,
    ) -> Result<(), Failure> {
        let failure = match self.ask_place(side, some, several)? {
            Ok(answer) => {
                found.extend_from_slice(some);
                let is_there = placed.as_ref().is_some_and(|placed| placed.is_there) || answer.is_there;
                *placed = Some(Placed { is_there, ..answer });
                return Ok(());
            }
            Err(Objection { failure, is_itself: true }) if matches!(some, [(from, _)] if *from != side) => {
                // As with scp, the data is already where it should be.
                self.say(&format!("{}; left unchanged", failure.message.unwrap_or_default()));
                return Ok(());
            }
            Err(objection) if !several => return Err(objection.failure),
            Err(objection) => objection.failure,
        };
        // The failure may be about DST and not about the sources.
        if placed.is_none() {
            *placed = Some(self.ask_place(side, &[], several)?.map_err(|objection| objection.failure)?);
        }
        match some {
            [(from, _)] => self.leave_out(*from, &failure),
            _ => {
                let (first, second) = some.split_at(some.len() / 2);
                self.place_some(side, first, several, found, placed)?;
                self.place_some(side, second, several, found, placed)?;
            }
        }
        Ok(())
    }

    /// Asks the destination about sources. The inner error is the destination's objection to them.
    fn ask_place(
        &mut self,
        side: usize,
        some: &[(usize, Found)],
        several: bool,
    ) -> Result<Result<Placed, Objection>, Failure> {
        let mut asked = self.place_question(side, some, several)?;
        // Only within one kernel can it be known that a source is its own destination.
        let may_be_itself = asked.same_kernel;
        let is_one_kernel = || some.first().is_some_and(|(from, _)| self.job.is_one_kernel(*from, side));
        let only = self.plan.only.as_ref().filter(|only| only.recursive && is_one_kernel());
        let mut lists = only.map(|only| only.batches(BATCH_BYTES_MAX / 2)).unwrap_or_default();
        loop {
            asked.listed = lists.pop_front().map(|only| only.paths).unwrap_or_default();
            self.job.send(side, Message::Place(asked.clone()));
            match self.job.answer(side, ANSWER_MAX)? {
                Message::Failed(fault) => {
                    return Ok(Err(Objection {
                        failure: self.unplaceable(side, some, several, &fault),
                        is_itself: may_be_itself && is_same_file(&fault),
                    }));
                }
                answer if lists.is_empty() => return Ok(Ok(self.placed(side, answer, several)?)),
                answer => _ = self.placed(side, answer, several)?,
            }
        }
    }

    /// Returns the question to a host about its destination.
    pub(super) fn place_question(&self, side: usize, some: &[(usize, Found)], several: bool) -> Result<Place, Failure> {
        let standard = some.first().is_some_and(|(from, found)| self.is_standard(*from, found));
        // A source that is read becomes a file, whatever it is.
        let is_read = |found: &Found| self.is_read(found) || found.kind == Kind::Block && !self.plan.recursive;
        let becomes = |(from, found): &(usize, Found)| match self.is_standard(*from, found) || is_read(found) {
            true => Found { kind: Kind::File, ..found.clone() },
            false => found.clone(),
        };
        // As with rsync, SRC/ means the contents and SRC means the directory itself, in the first run and in all
        // others.
        let is_directory = some.iter().any(|(_, found)| found.kind == Kind::Directory);
        let is_synced = self.plan.tree.sync && is_directory;
        let is_contents = is_synced && some.iter().any(|(_, found)| self.plan.is_contents(found));
        if is_contents && several {
            return Err(Exit::Usage.with("with --sync, either all SRC must end in a slash or none"));
        }
        let exact = self.plan.exact || standard || is_contents;
        let path = self.destination.path().as_bytes();
        // A single directory becomes `new/`, as with cp. Anything else goes into it.
        let names_directory = path.ends_with(b"/") && some.iter().any(|(_, found)| found.kind != Kind::Directory);
        let is_generation = self.plan.tree.generations.snapshot.is_some();
        let is_into = names_directory || is_synced || is_generation;
        Ok(Place {
            path: path.to_vec(),
            directory: self.plan.directory && !is_contents || several || is_into && !exact,
            exact,
            sources: some.iter().map(becomes).collect(),
            // A list of paths may well be copied into the directory with which the paths begin.
            same_kernel: !standard
                && self.plan.only.is_none()
                && some.first().is_some_and(|(from, _)| self.job.is_one_kernel(*from, side)),
            is_generation,
            // A stream opens an existing file.
            makes_path: self.plan.tree.mkpath && !standard && !some.iter().any(|(_, found)| is_read(found)),
            listed: Vec::new(),
            one_file_system: self.plan.tree.one_file_system,
        })
    }

    /// Takes the answer of a host that has no objection.
    pub(super) fn placed(&self, side: usize, answer: Message, several: bool) -> Result<Placed, Failure> {
        match answer {
            // Only a single source gets another name than its own, however many sources are asked about at once.
            Message::Placed(placed) if placed.directory.len() <= PATH_BYTES_MAX => {
                Ok(Placed { as_name: placed.as_name.filter(|_| !several), ..placed })
            }
            _ => Err(self.job.unexpected(side)),
        }
    }

    /// Returns why the destination refuses a copy, and what to do about it.
    pub(super) fn unplaceable(&self, side: usize, some: &[(usize, Found)], several: bool, fault: &Fault) -> Failure {
        let standard = some.first().is_some_and(|(from, found)| self.is_standard(*from, found));
        let mut failure = self.failure(side, fault);
        let advice = match fault.errno {
            libc::ENOENT if fault.path.starts_with(b"~") && side != HERE => NO_USER.to_owned(),
            libc::EISDIR if standard => {
                let directory = self.destination.typed();
                let slash = if directory.ends_with([':', '/']) { "" } else { "/" };
                let line = format!("standard input has no name; name a file in DST: {directory}{slash}FILE");
                return Failure { message: Some(line), ..failure };
            }
            libc::ENOENT => {
                let path = escaped(OsStr::from_bytes(&fault.path));
                let host = if side == HERE { String::new() } else { format!(" on {}", self.label(side)) };
                format!("create it{host} with: mkdir -p {}", shell_words::quote(&path))
            }
            libc::ENOTDIR if fault.detail.is_empty() && several => "several sources need a directory as DST".to_owned(),
            _ => return failure,
        };
        if let Some(line) = &mut failure.message {
            *line += &format!("; {advice}");
        }
        failure
    }

    /// Reports whether a source is standard input.
    pub(super) fn is_standard(&self, from: usize, found: &Found) -> bool {
        from == HERE && found.path == b"-" && self.plan.sources.contains(&Spec::Standard)
    }

    /// Reports whether a source that is not a file is read, as cp does without `-r`, instead of being made anew.
    pub(super) fn is_read(&self, found: &Found) -> bool {
        let is_image = self.plan.tree.sync && found.kind == Kind::Block;
        matches!(found.kind, Kind::Other | Kind::Block) && !self.plan.recursive && !is_image
    }

    /// Reports whether one of the sources is a block device whose contents are copied. Its time does not say whether
    /// they have changed, so no copy of it may count as the same because its time is close to another.
    pub(super) fn has_image(&self, found: &[(usize, Found)]) -> bool {
        !self.plan.recursive && found.iter().any(|(_, found)| found.kind == Kind::Block)
    }

    /// Reports whether a source is copied as a stream, because the source or the destination is not a file.
    pub(super) fn is_stream(&self, from: usize, found: &Found, placed: Option<&Placed>) -> bool {
        let tree = &self.plan.tree;
        let is_written_to = |placed: &Placed| placed.is_special && !(placed.is_block && tree.sync && tree.in_place);
        self.is_standard(from, found) || self.is_read(found) || placed.is_none_or(is_written_to)
    }

    /// Refuses options that are not supported for streams or within a host, instead of ignoring them silently.
    pub(super) fn check_options(
        &self,
        found: &[(usize, Found)],
        to: usize,
        placed: Option<&Placed>,
    ) -> Result<(), Failure> {
        let tree = &self.plan.tree;
        let asked = [(tree.reads_back(), "--verify=disk"), (self.plan.transfer.bwlimit.is_some(), "--bwlimit")];
        if let Some((_, option)) = asked.into_iter().find(|(is_asked, _)| *is_asked)
            && found.iter().any(|(from, found)| *from == to && !self.is_stream(*from, found, placed))
        {
            return Err(Exit::Usage.with(format!("{option} is for copies between hosts")));
        }
        let asked = [
            (tree.reads_back(), "--verify=disk"),
            (tree.in_place, "--in-place"),
            (tree.syncs(), "--fsync"),
            (tree.sync, "--sync"),
            (tree.itemize_changes, "--itemize-changes"),
            (tree.manifest, "--manifest"),
            (!tree.chmod.is_empty(), "--chmod"),
            (tree.chown.is_some(), "--chown"),
        ];
        let option = asked.into_iter().find(|(is_asked, _)| *is_asked);
        let stream = found.iter().find(|(from, found)| self.is_stream(*from, found, placed));
        let (Some((_, option)), Some((side, found))) = (option, stream) else { return Ok(()) };
        let name = self.name(*side, &found.path);
        // With both options, the source is written to a device block by block.
        let is_image = matches!(found.kind, Kind::File | Kind::Block) && !self.is_standard(*side, found);
        let message = match placed.filter(|placed| placed.is_block && is_image && (tree.sync || tree.in_place)) {
            Some(placed) => {
                let device = self.name(to, target(placed, found).as_os_str().as_bytes());
                let (given, other) = if tree.sync { ("--sync", "--in-place") } else { ("--in-place", "--sync") };
                format!("{given} writes to the block device {device} only with {other}")
            }
            None => format!("{option} is for files and trees, but {name} is copied as a stream"),
        };
        Err(Exit::Usage.with(message))
    }

    pub(super) fn tell_plan(&mut self, found: &[(usize, Found)], side: usize, placed: Option<&Placed>) {
        for (from, found) in found {
            let target = placed.map_or(b"-".to_vec(), |placed| target(placed, found).into_os_string().into_vec());
            let to = if placed.is_some() { self.name(side, &target) } else { "-".to_owned() };
            let source = self.name(*from, &found.path);
            self.observer.would_copy(&source, &to);
            self.observer.event(&Event::WouldCopy(event::WouldCopy {
                from: At::new(&self.job.hosts[*from].name, &found.path),
                to: At::new(&self.job.hosts[side].name, &target),
                kind: found.kind.into(),
                bytes: (found.kind == Kind::File).then_some(found.size_bytes),
            }));
        }
    }
}

/// The failure of a copy that would merge only some of the sources.
fn would_delete(lacking: &str) -> Failure {
    let line = format!("nothing copied: with merged sources, --delete would delete what came from {lacking}");
    Exit::Source.with(line)
}

/// Whether a destination has refused a source because the source is what stands there.
pub(super) fn is_same_file(fault: &Fault) -> bool {
    fault.exit == Exit::Usage.code() && fault.errno == SAME_FILE
}
