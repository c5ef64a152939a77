//! The manifest of a copy: where it may be, and what it lists.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rd_proto::control::IoFact;

use super::{Copy, HERE};
use crate::agent::place::target;
use crate::control::frames::{Found, Kind, Placed};
use crate::fault::{Exit, Failure, escaped, os_number, printable};
use crate::fs::directory_of;
use crate::tree::entries;
use crate::tree::manifest::Entry;
use crate::tree::manifest::write::Writer;

/// Takes the entries for the manifest while the copy is made.
#[derive(Clone)]
pub(super) struct Manifest {
    writer: Arc<Mutex<Option<Writer>>>,
    /// The name of the tree at the destination, if the manifest lists that tree and not the directory that contains it.
    root: Option<Vec<u8>>,
}

impl Copy<'_> {
    /// Begins the manifest, if one was requested.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written, or would be part of what it lists.
    pub(super) fn begin_manifest(
        &self,
        found: &[(usize, Found)],
        to: usize,
        placed: Option<&Placed>,
    ) -> Result<Option<Manifest>, Failure> {
        let targets = &self.plan.manifests;
        let Some(placed) = placed.filter(|_| !targets.is_empty()) else { return Ok(None) };
        if found.is_empty() {
            return Err(Exit::Usage.with("nothing is copied, so there is nothing to list in a manifest"));
        }
        let is_tree = found.iter().any(|(_, one)| one.kind == Kind::Directory);
        let root = self.only_root(found).filter(|_| is_tree).map(|one| target(placed, one));
        let tree = root.clone().unwrap_or_else(|| OsStr::from_bytes(&placed.directory).into());
        for file in targets {
            let what = ("the manifest", &*file.path, "which it lists");
            self.check_place(what, found, to, std::slice::from_ref(&tree))?;
        }
        // If the contents of a directory are copied, the destination itself is listed.
        let root = root.filter(|tree| *tree != Path::new(OsStr::from_bytes(&placed.directory)));
        let root = root.and_then(|tree| Some(tree.file_name()?.as_bytes().to_vec()));
        let writer = Writer::new(targets.clone()).map_err(|fact| unwritable(&fact))?;
        Ok(Some(Manifest { writer: Arc::new(Mutex::new(Some(writer))), root }))
    }

    /// Refuses a report (`--json`, `--report`, `--trace`) that would be part of what is copied.
    ///
    /// # Errors
    ///
    /// As [`Copy::check_place`].
    pub(super) fn check_reports(
        &self,
        found: &[(usize, Found)],
        to: usize,
        placed: Option<&Placed>,
    ) -> Result<(), Failure> {
        if self.plan.reports.is_empty() {
            return Ok(());
        }
        let trees: Vec<PathBuf> =
            placed.map(|placed| found.iter().map(|(_, one)| target(placed, one)).collect()).unwrap_or_default();
        let mut reports = self.plan.reports.iter();
        reports.try_for_each(|file| self.check_place(("the report", file, "which is copied"), found, to, &trees))
    }

    /// Refuses a file that would be part of the copy or of its source. Otherwise the file, and what is written beside
    /// it, would get into one of them meanwhile.
    fn check_place(
        &self,
        (what, file, why): (&str, &Path, &str),
        found: &[(usize, Found)],
        to: usize,
        trees: &[PathBuf],
    ) -> Result<(), Failure> {
        let refused = |host: usize, path: &Path| {
            let (file, tree) = (escaped(file.as_os_str()), self.name(host, path.as_os_str().as_bytes()));
            Err(Exit::Usage.with(format!("{what} {file} would be in {tree}, {why}; choose another path")))
        };
        let identity = |stat: std::fs::Metadata| (stat.dev(), stat.ino());
        let fact = |error: &std::io::Error| unwritable(&crate::fs::std_fact(file.as_os_str(), error));
        let directory = directory_of(file).canonicalize().map_err(|error| fact(&error))?;
        let own = file.symlink_metadata().ok();
        let around = directory.ancestors().filter_map(|path| path.metadata().ok());
        let around: BTreeSet<_> = own.into_iter().chain(around).map(identity).collect();
        for (from, source) in found {
            let is_here = *from == HERE || self.job.is_one_kernel(*from, HERE);
            if is_here && around.contains(&(source.device, source.inode)) {
                return refused(*from, Path::new(OsStr::from_bytes(&source.path)));
            }
        }
        for tree in trees.iter().filter(|tree| to == HERE || self.job.is_one_kernel(to, HERE) && tree.is_absolute()) {
            // If the tree does not exist yet, the only possible conflict is that the file has the tree's path.
            let is_itself = directory_of(tree).canonicalize().ok().as_ref() == Some(&directory)
                && tree.file_name() == file.file_name();
            if is_itself || tree.metadata().is_ok_and(|stat| around.contains(&identity(stat))) {
                return refused(to, tree);
            }
        }
        Ok(())
    }

    /// Has the entries that the ends report written to the manifest, and printed.
    pub(super) fn take_entries(&mut self, to: usize, manifest: Option<Manifest>) -> Result<(), Failure> {
        let mut print = self.plan.tree.itemize_changes.then(|| self.observer.entry_printer(to != HERE));
        if manifest.is_none() && print.is_none() {
            return Ok(());
        }
        self.job.take_entries(Box::new(move |told| {
            for entry in &told {
                if let (entries::Entry::Listed(entry), Some(manifest)) = (entry, &manifest) {
                    manifest.add(entry.clone())?;
                }
            }
            print.as_mut().map_or(Ok(()), |print| print(told))
        }))
    }

    /// Completes the manifest of a copy that has succeeded. Returns why that, or the copy, has failed.
    pub(super) fn end_manifest(&mut self, manifest: Option<&Manifest>, failure: Option<Failure>) -> Option<Failure> {
        let Some(writer) = manifest.and_then(|manifest| crate::locked(&manifest.writer).take()) else { return failure };
        if let Some(failure) = failure {
            if failure.exit == Exit::Partial {
                let files: Vec<_> = self.plan.manifests.iter().map(|file| escaped(file.path.as_os_str())).collect();
                self.complain(&format!("incomplete copy; no manifest is written to {}", files.join(" and ")));
            }
            return Some(failure);
        }
        match writer.finish() {
            Ok(written) if written.unwritable > 0 => {
                let first = escaped(OsStr::from_bytes(&written.first_unwritable));
                let (count, names) = match written.unwritable {
                    1 => ("1 file is".to_owned(), "its name"),
                    count => (format!("{count} files are"), "their names"),
                };
                let line = format!("{count} not in the manifest for b3sum, which cannot read {names}: {first}");
                Some(Exit::Partial.with(line))
            }
            Ok(_) => None,
            Err(fact) => {
                let (mut failure, tree) = (unwritable(&fact), &self.plan.tree);
                let line = failure.message.get_or_insert_default();
                if tree.remove_source_files {
                    *line += "; all files were copied and removed from SRC";
                }
                if tree.generations.snapshot.is_some() {
                    *line += "; the generation is complete without it, so choose another NAME to run this again";
                }
                Some(failure)
            }
        }
    }
}

impl Manifest {
    /// Adds an entry, whose path begins at the destination's directory.
    ///
    /// # Errors
    ///
    /// Exit 6 if the disk is full, 9 if the entry is not part of the copy.
    pub(super) fn add(&self, mut entry: Entry) -> Result<(), Failure> {
        if let Some(root) = &self.root {
            let below = entry.path.strip_prefix(&root[..]).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
            let Some(below) = below else {
                return Err(Exit::Protocol.with("a host reported an entry that is not part of the copy"));
            };
            entry.path = below.strip_prefix(b"/").unwrap_or_default().to_vec();
        }
        let mut writer = crate::locked(&self.writer);
        writer.as_mut().map_or(Ok(()), |writer| writer.push(&entry).map_err(|fact| unwritable(&fact)))
    }
}

fn unwritable(fact: &IoFact) -> Failure {
    let path = escaped(OsStr::from_bytes(&fact.path));
    let reason = match fact.errno {
        0 => printable(&String::from_utf8_lossy(&fact.detail)),
        errno => os_number(errno),
    };
    Exit::Destination.with(format!("cannot write the manifest {path}: {reason}")).about(
        "".as_ref(),
        &fact.path,
        fact.errno,
    )
}
