//! Where the files of a copy are and where their copies will be, by the rules of `cp -a`. Placing only looks; `make`
//! creates the directory.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use minicbor::bytes::ByteVec;
use rd_proto::control::IoFact;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, syncfs};
use rustix::io::Errno;

use crate::control::endpoints;
use crate::control::frames::{Fault, Found, Kind, Place, Placed, Spot};
use crate::control::names;
use crate::fault::{Exit, errno_of, escaped};
use crate::fs::{
    PARTIAL, UNFINISHED, canonical, identity, io_fact, is_temporary_name, name_beside, partial, plain_fact, std_fact,
    sync_directory,
};
use crate::options::{LATEST, TreeOptions};

/// The name under which a directory is merged into the directory to copy into.
const ITSELF: &[u8] = b".";

/// The error number of a refusal because a source is its own destination. No other refusal has it.
pub(crate) const SAME_FILE: i32 = libc::EEXIST;

/// Passes the entries that match the paths and patterns to `take`, each as soon as it is found, and why others may be
/// missing. With `links`, symbolic links are copied instead of followed. With `expand`, `~` and patterns are expanded.
pub(crate) fn find(patterns: &[&[u8]], links: bool, expand: bool, mut take: impl FnMut(Result<Found, IoFact>)) {
    for pattern in patterns {
        if expand {
            let unread = names::search(pattern, |path| take(source(path, links)));
            unread.into_iter().for_each(|fact| take(Err(fact)));
        } else {
            take(source(PathBuf::from(OsStr::from_bytes(pattern)), links));
        }
    }
}

/// Returns what is at a path, as a source.
fn source(path: PathBuf, links: bool) -> Result<Found, IoFact> {
    // `host:` stands for the login's home.
    let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
    let looked = if links { std::fs::symlink_metadata(&path) } else { std::fs::metadata(&path) };
    let metadata = looked.map_err(|error| std_fact(path.as_os_str(), &error))?;
    Ok(Found {
        name: last_name(&path),
        kind: kind(&metadata),
        size_bytes: if metadata.is_file() { metadata.len() } else { 0 },
        device: metadata.dev(),
        inode: metadata.ino(),
        path: path.into_os_string().into_vec(),
    })
}

/// Returns the name of the copy of a path.
fn last_name(path: &Path) -> Vec<u8> {
    names::last_name(path.as_os_str().as_bytes()).to_vec()
}

fn kind(metadata: &Metadata) -> Kind {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => Kind::Directory,
        () if kind.is_file() => Kind::File,
        () if kind.is_symlink() => Kind::Symlink,
        () if kind.is_block_device() => Kind::Block,
        () => Kind::Other,
    }
}

/// Returns where the copies of the sources will be.
///
/// The rules are those of `cp -a`, except that a directory to copy into may be missing, as with rsync: see [`make`].
/// Sources go into DST if DST is a directory and `exact` is not set. Several sources need a directory, and keep their
/// names. A single source becomes DST itself. If DST is a symbolic link, a file replaces the link's target, a directory
/// is refused, and any other source replaces the link. Only files are written to a device or FIFO.
///
/// # Errors
///
/// Exit 6 if the destination cannot be written, exit 1 if the copy makes no sense.
pub(crate) fn place(asked: &Place, expand: bool) -> Result<Placed, Fault> {
    let path = if expand { names::home_expanded(&asked.path) } else { PathBuf::from(OsStr::from_bytes(&asked.path)) };
    let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
    if asked.is_generation {
        check_generation(&path)?;
    }
    let are_files = asked.sources.iter().all(|source| source.kind == Kind::File);
    let is_link = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    let placed = match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() && !asked.exact => merged(&path, asked),
        Ok(metadata) if asked.directory && !metadata.is_dir() => return Err(no_directory(&path, &path)),
        _ if is_link && !are_files && !asked.directory => named(&path),
        Ok(metadata) => {
            let is_special = are_files && !metadata.is_file() && !metadata.is_dir();
            // The link is followed once, and its target is replaced.
            let real = canonical(&path).unwrap_or_else(|_| path.clone());
            let is_block = is_special && metadata.file_type().is_block_device();
            Placed { is_special, is_block, ..named(if is_special && !is_block { &path } else { &real }) }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let plain = bare(&path);
            let is_dangling = std::fs::symlink_metadata(plain).is_ok_and(|found| found.is_symlink());
            if is_dangling && (asked.directory || is_link) {
                let fact = plain_fact(path.as_os_str(), "it is a dangling symbolic link; remove it or name its target");
                return Err(Fault::unwritable(&fact));
            }
            let is_directory = asked.sources.iter().all(|source| source.kind == Kind::Directory);
            if !asked.directory && path.as_os_str().as_bytes().ends_with(b"/") && !is_directory {
                let fact = IoFact { errno: Errno::NOTDIR.raw_os_error(), ..plain_fact(path.as_os_str(), NO_NAME) };
                return Err(Fault::unwritable(&fact));
            }
            let placed = named(&path);
            let parent = Path::new(OsStr::from_bytes(&placed.directory));
            let is_missing = |path: &Path| {
                let found = std::fs::symlink_metadata(bare(path));
                found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
            };
            // For the first generation, the directory of all generations is made as well.
            let mut looked_at = if asked.is_generation && is_missing(parent) { above(parent) } else { parent };
            while asked.makes_path && is_missing(looked_at) && above(looked_at) != looked_at {
                looked_at = above(looked_at);
            }
            match std::fs::metadata(looked_at) {
                Ok(metadata) if !metadata.is_dir() => return Err(no_directory(&path, looked_at)),
                Err(error) => return Err(unwritable(bare(looked_at), &error)),
                Ok(_) if asked.directory => merged(&path, asked),
                Ok(_) => Placed { is_missing: true, ..placed },
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            let is_other = |above: &&Path| std::fs::metadata(above).is_ok_and(|found| !found.is_dir());
            let other = path.ancestors().find(is_other).unwrap_or(&path);
            return Err(no_directory(&path, other));
        }
        Err(error) => return Err(unwritable(&path, &error)),
    };
    check_targets(asked, &placed)?;
    let directories = || asked.sources.iter().filter(|source| source.kind == Kind::Directory);
    let is_there = directories().any(|source| has_entries(&target(&placed, source)));
    let has_left = directories().any(|source| left(&target(&placed, source)).is_some_and(|path| has_entries(&path)));
    let spot = spot(Path::new(OsStr::from_bytes(&placed.directory)));
    Ok(Placed { is_there, has_left, spot, addresses: endpoints::own(0, b"", None), ..placed })
}

/// Returns the directory to which a path leads, whether it exists or not.
fn spot(path: &Path) -> Option<Spot> {
    let path = std::path::absolute(path).ok()?;
    let (above, found) = path.ancestors().find_map(|above| Some((above, std::fs::metadata(above).ok()?)))?;
    let rest = path.strip_prefix(above).ok()?.as_os_str().as_bytes().to_vec();
    Some(Spot { device: found.dev(), inode: found.ino(), rest })
}

/// Returns where an interrupted copy of a new directory has left what it had received.
fn left(target: &Path) -> Option<PathBuf> {
    Some(target.with_file_name(name_beside(target.file_name()?.as_bytes(), PARTIAL)))
}

/// Whether a directory has entries. The directory is read only if that leaves no trace (`O_NOATIME`). If that is not
/// permitted, entries are assumed.
fn has_entries(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(directory) => partial::for_each(directory, |_| Err(Errno::EXIST)).is_err(),
        Err(error) => error == Errno::PERM,
    }
}

/// Checks that a generation may still be changed.
///
/// # Errors
///
/// Exit 1 if the generation is complete: later generations may be linked to it, so it must not change any more. A
/// generation is complete if it is not marked as unfinished, or if `latest` leads to it.
fn check_generation(path: &Path) -> Result<(), Fault> {
    let identity = |found: &Metadata| (found.dev(), found.ino());
    let Ok(itself) = std::fs::symlink_metadata(bare(path)) else { return Ok(()) };
    let latest = std::fs::metadata(above(path).join(OsStr::from_bytes(LATEST)));
    let name = escaped(bare(path).as_os_str());
    let detail = if latest.is_ok_and(|latest| identity(&latest) == identity(&itself)) {
        format!("{name} is complete (latest points to it) and is not changed; choose another NAME")
    } else if itself.is_dir() && has_entries(bare(path)) && !is_unfinished(path) {
        format!(
            "{name} exists and is not marked as unfinished, so it counts as complete and is not changed; \
             choose another NAME, or remove it"
        )
    } else {
        return Ok(());
    };
    Err(Fault::plain(Exit::Usage.code(), detail))
}

/// Whether a generation has the marker of a run that has not finished it.
fn is_unfinished(path: &Path) -> bool {
    let beside = |name: &OsStr| above(path).join(name_beside(name.as_bytes(), UNFINISHED));
    let marker = bare(path).file_name().map(beside);
    marker.is_some_and(|marker| std::fs::symlink_metadata(marker).is_ok_and(|found| found.is_file()))
}

/// Returns the directory that contains the entry at this path.
fn above(path: &Path) -> &Path {
    let parent = bare(path).parent().unwrap_or(path);
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

/// Why a name with a trailing slash cannot be the name of a file.
const NO_NAME: &str = "a trailing slash means a directory, and SRC is not one";

fn unwritable(path: &Path, error: &std::io::Error) -> Fault {
    let errno = errno_of(error);
    Fault::unwritable(&io_fact(path.as_os_str(), errno))
}

/// Returns the failure for a path that needs a directory. `other` is what is not a directory: the path itself, or an
/// ancestor.
fn no_directory(path: &Path, other: &Path) -> Fault {
    let other = bare(other);
    let detail =
        if other == bare(path) { String::new() } else { format!("{} is not a directory", escaped(other.as_os_str())) };
    let fact = IoFact { errno: Errno::NOTDIR.raw_os_error(), ..plain_fact(bare(path).as_os_str(), &detail) };
    Fault::unwritable(&fact)
}

/// Returns a path without its trailing slashes.
fn bare(path: &Path) -> &Path {
    let text = path.as_os_str().as_bytes();
    let end = text.iter().rposition(|&byte| byte != b'/').map_or(text.len().min(1), |last| last + 1);
    Path::new(OsStr::from_bytes(&text[..end]))
}

/// A directory to copy into that this run has made, or that another run may have made, together with the directory
/// above if that was made for it. Dropping this removes those that this run has made, if they are empty and no other
/// run holds them: a killed run may end only after the next one has begun.
pub(crate) struct Made {
    path: PathBuf,
    is_own: bool,
    /// The open directory, locked by every run that copies into it; `None` if it cannot be opened.
    held: Option<OwnedFd>,
    #[expect(dead_code, reason = "it is dropped behind")]
    above: Option<Box<Self>>,
}

impl Drop for Made {
    fn drop(&mut self) {
        let is_others = |held| {
            flock(held, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) || !is_at(&self.path, held)
        };
        if self.is_own && !self.held.as_ref().is_some_and(is_others) {
            // This fails if the directory is not empty; its entries stay.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Makes the last directory of a destination that [`place`] has found missing; `None` if it exists and is to stay.
/// Above it, nothing is made except the directory of all generations for the first generation, and with `--mkpath` all
/// missing directories.
///
/// # Errors
///
/// Fails if the directory does not exist and cannot be made.
pub(crate) fn make(directory: &[u8], options: &TreeOptions) -> Result<Option<Made>, IoFact> {
    let path = Path::new(OsStr::from_bytes(directory));
    let generations = &options.generations;
    let is_generation = generations.snapshot.is_some() && !generations.session.is_dst;
    let first = match () {
        () if options.mkpath => make_above(path, options.syncs())?,
        () if is_generation => make_one(above(path), None, options.syncs())?.map(Box::new),
        () => None,
    };
    make_one(path, first, options.syncs())
}

/// Makes the missing directories above a path.
fn make_above(path: &Path, is_synced: bool) -> Result<Option<Box<Made>>, IoFact> {
    let above = above(path);
    if above == path || above.is_dir() {
        return Ok(None);
    }
    let first = make_above(above, is_synced)?;
    Ok(make_one(above, first, is_synced)?.map(Box::new))
}

fn make_one(path: &Path, first: Option<Box<Made>>, is_synced: bool) -> Result<Option<Made>, IoFact> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let mut tries = 0;
    loop {
        let is_own = match std::fs::create_dir(path) {
            Ok(()) => true,
            Err(_) if path.is_dir() => false,
            Err(error) => return Err(std_fact(path.as_os_str(), &error)),
        };
        let held = openat(CWD, path, flags, Mode::empty()).ok();
        if !is_own && held.as_ref().is_some_and(|held| !may_go(held)) {
            return Ok(None);
        }
        let is_free = |held| flock(held, FlockOperation::NonBlockingLockShared) != Err(Errno::AGAIN);
        tries += 1;
        // The run that has made the directory is about to remove it, or has done so. If it stays locked, that has
        // another reason.
        if tries < HOLD_TRIES && held.as_ref().map_or(!path.is_dir(), |held| !is_free(held) || !is_at(path, held)) {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let made = Made { path: path.to_owned(), is_own, held, above: first };
        if is_synced {
            sync_name(path, made.held.as_ref()).map_err(|error| io_fact(path.as_os_str(), error))?;
        }
        return Ok(Some(made));
    }
}

/// Makes the name of a new directory durable. The directory above may not be readable.
fn sync_name(path: &Path, new: Option<&OwnedFd>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match (openat(CWD, above(path), flags, Mode::empty()), new) {
        (Err(Errno::ACCESS), Some(new)) => syncfs(new),
        (above, _) => sync_directory(above?),
    }
}

/// Maximum number of attempts to hold a directory.
const HOLD_TRIES: usize = 5;

/// Whether a directory contains only unfinished entries, so that the run that has made it may still remove it.
fn may_go(directory: &OwnedFd) -> bool {
    let look = |name: &CStr| if is_temporary_name(name.to_bytes()) { Ok(()) } else { Err(Errno::EXIST) };
    partial::for_each(directory, look).is_ok()
}

/// Whether a path still leads to this directory.
fn is_at(path: &Path, directory: &OwnedFd) -> bool {
    let named = std::fs::metadata(path);
    named.is_ok_and(|named| fstat(directory).is_ok_and(|here| identity(&here) == (named.dev(), named.ino())))
}

/// Returns the placement of sources that go into a directory. The contents of `dir/.` become contents of that
/// directory.
fn merged(path: &Path, asked: &Place) -> Placed {
    let is_contents = |source: &Found| source.name.is_empty();
    // A path through links would hide that a directory is about to be copied into itself.
    let real = canonical(path).ok().filter(|_| asked.sources.iter().any(is_contents));
    let as_name = matches!(&asked.sources[..], [source] if is_contents(source)).then(|| ITSELF.to_vec());
    Placed { directory: bytes(&real.unwrap_or_else(|| path.to_owned())), as_name, ..Placed::default() }
}

/// Splits a path into a directory and a name in it.
fn named(path: &Path) -> Placed {
    let name = last_name(path);
    let text = bytes(path);
    let cut = text.iter().rposition(|&byte| byte != b'/').map_or(0, |end| end + 1).saturating_sub(name.len());
    if name.is_empty() {
        return Placed { directory: text, as_name: Some(ITSELF.to_vec()), ..Placed::default() };
    }
    let directory = if cut == 0 { b".".to_vec() } else { text[..cut].to_vec() };
    Placed { directory, as_name: Some(name), ..Placed::default() }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Returns the name of a source's copy in the directory to copy into; [`ITSELF`] if the source becomes that directory.
pub(crate) fn final_name<'a>(placed: &'a Placed, source: &'a Found) -> &'a [u8] {
    match &placed.as_name {
        Some(name) => name,
        None if source.name.is_empty() => ITSELF,
        None => &source.name,
    }
}

/// Returns the path of a source's copy.
pub(crate) fn target(placed: &Placed, source: &Found) -> PathBuf {
    let name = final_name(placed, source);
    let directory = PathBuf::from(OsString::from_vec(placed.directory.clone()));
    if name == ITSELF { directory } else { directory.join(OsStr::from_bytes(name)) }
}

fn check_targets(asked: &Place, placed: &Placed) -> Result<(), Fault> {
    let usage = |detail: String| Fault::plain(Exit::Usage.code(), detail);
    for source in &asked.sources {
        let target = target(placed, source);
        // The walk does not come to another file system.
        let is_beyond = asked.one_file_system && spot(&target).is_some_and(|spot| spot.device != source.device);
        if !is_beyond
            && let Some(listed) = listed_around(Path::new(OsStr::from_bytes(&source.path)), &asked.listed, &target)
        {
            return Err(usage(listed));
        }
        if asked.same_kernel && source.kind == Kind::Directory && !is_beyond && lies_within(&target, source) {
            let path = escaped(OsStr::from_bytes(&source.path));
            return Err(usage(format!("cannot copy the directory {path} into itself")));
        }
        // Looks at the entry that would be replaced, see `place`.
        let looked = if source.kind == Kind::File { std::fs::metadata } else { std::fs::symlink_metadata };
        let Ok(there) = looked(&target) else { continue };
        if asked.same_kernel && (there.dev(), there.ino()) == (source.device, source.inode) {
            let (from, to) = (escaped(OsStr::from_bytes(&source.path)), escaped(target.as_os_str()));
            return Err(Fault { errno: SAME_FILE, ..usage(format!("{from} and {to} are the same file")) });
        }
        // The generation is unfinished, see `check_generation`: its remaining entries give way.
        if asked.is_generation && !asked.exact {
            continue;
        }
        let (clash, detail) = match (source.kind == Kind::Directory, there.is_dir()) {
            (true, false) if there.is_symlink() && target.is_dir() && !asked.is_generation => {
                (Errno::NOTDIR, through_link(asked, placed, &target))
            }
            (true, false) => (Errno::NOTDIR, "cannot be replaced by a directory".to_owned()),
            (false, true) => (Errno::ISDIR, "cannot be replaced by a file".to_owned()),
            _ => continue,
        };
        let fact = IoFact { errno: clash.raw_os_error(), ..plain_fact(target.as_os_str(), &detail) };
        return Err(Fault::unwritable(&fact));
    }
    Ok(())
}

/// Returns what to type instead if a symbolic link to a directory is in the way of a directory.
fn through_link(asked: &Place, placed: &Placed, target: &Path) -> String {
    let how = match placed.as_name {
        // The link is DST itself.
        Some(_) => format!("type it with a slash: {}/", escaped(OsStr::from_bytes(&asked.path))),
        None => format!("copy this source by itself, with -T and {}/ as DST", escaped(target.as_os_str())),
    };
    format!("it is a symbolic link to a directory; to copy into what it leads to, {how}")
}

/// Returns why a target is not allowed: a listed entry of a source, which is copied with everything in it, contains the
/// target and would be copied into itself without end.
pub(crate) fn listed_around(source: &Path, listed: &[ByteVec], target: &Path) -> Option<String> {
    if listed.is_empty() {
        return None;
    }
    let target = std::path::absolute(target).ok()?;
    let real = target.ancestors().find_map(|above| canonical(above).ok())?;
    let holds = |path: &&ByteVec| {
        let below = path.iter().position(|&byte| byte != b'/').map_or(&b""[..], |at| &path[at..]);
        canonical(&source.join(OsStr::from_bytes(below))).is_ok_and(|listed| real.starts_with(listed))
    };
    let path = escaped(OsStr::from_bytes(listed.iter().find(holds)?));
    Some(format!("{path}, which is listed, contains DST and would be copied into itself"))
}

/// Whether the directory in which a target will be made is the source or lies below it.
fn lies_within(target: &Path, source: &Found) -> bool {
    // The parent of the root is the root itself. Missing parts of the path will be made.
    let or_here = |above: &'_ Path| canonical(if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let Some(real) = above(target).ancestors().find_map(|above| or_here(above).ok()) else { return false };
    real.ancestors().any(|above| {
        std::fs::metadata(above).is_ok_and(|found| (found.dev(), found.ino()) == (source.device, source.inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    fn find(patterns: &[&[u8]], links: bool, expand: bool) -> (Vec<Found>, Vec<IoFact>) {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        super::find(patterns, links, expand, |one| match one {
            Ok(one) => found.push(one),
            Err(fact) => missing.push(fact),
        });
        (found, missing)
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rd-place-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(path.join("dir/below")).expect("a directory");
            std::fs::write(path.join("file"), b"1").expect("a file");
            std::fs::write(path.join("other"), b"22").expect("a file");
            Self(path)
        }

        fn find(&self, name: &str) -> Found {
            let path = self.0.join(name);
            find(&[path.as_os_str().as_bytes()], true, false).0.remove(0)
        }

        /// Returns where the first source's copy will be, below the scratch directory.
        fn place(&self, sources: &[&str], to: &str, directory: bool, exact: bool) -> Result<String, (u8, i32)> {
            let asked = Place {
                path: format!("{}/{to}", self.0.display()).into_bytes(),
                directory,
                exact,
                sources: sources.iter().map(|name| self.find(name)).collect(),
                same_kernel: true,
                ..Place::default()
            };
            let placed = place(&asked, false).map_err(|fault| (fault.exit, fault.errno))?;
            let target = target(&placed, &asked.sources[0]);
            Ok(target.strip_prefix(&self.0).expect("below").display().to_string())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_are_the_last_component() {
        for (path, name) in [
            ("a", "a"),
            ("a/b/", "b"),
            ("/x//", "x"),
            ("..", ""),
            ("a/.", ""),
            ("a/..", ""),
            ("/", ""),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(last_name(Path::new(path)), name.as_bytes(), "{path}");
        }
    }

    #[test]
    fn placement_is_as_with_cp() {
        let scratch = Scratch::new("cp");
        let placed = |sources: &[&str], to, directory, exact| scratch.place(sources, to, directory, exact);
        assert_eq!(placed(&["file"], "dir", false, false), Ok("dir/file".into()));
        assert_eq!(placed(&["file"], "new", false, false), Ok("new".into()));
        assert_eq!(placed(&["file"], "dir/new", false, false), Ok("dir/new".into()));
        assert_eq!(placed(&["file"], "other", false, false), Ok("other".into()));
        assert_eq!(placed(&["dir"], "new", false, false), Ok("new".into()));
        assert_eq!(placed(&["dir"], "new/", false, false), Ok("new".into()));
        assert_eq!(placed(&["file", "other"], "dir", true, false), Ok("dir/file".into()));
        let (noent, notdir, isdir) = (2, 20, 21);
        assert_eq!(placed(&["file"], "new/", false, false), Err((6, notdir)));
        assert_eq!(placed(&["file"], "none/new", false, false), Err((6, noent)));
        assert_eq!(placed(&["file"], "other/new", false, false), Err((6, notdir)));
        assert_eq!(placed(&["file", "other"], "new", true, false), Ok("new/file".into()), "as with rsync");
        assert_eq!(placed(&["file"], "new/", true, false), Ok("new/file".into()), "as with rsync");
        assert_eq!(placed(&["file", "other"], "none/new", true, false), Err((6, noent)));
        assert_eq!(placed(&["file", "other"], "other/new/", true, false), Err((6, notdir)));
        assert_eq!(placed(&["file", "other"], "file", true, false), Err((6, notdir)));
        assert_eq!(placed(&["dir"], "file", false, false), Err((6, notdir)));
        assert_eq!(placed(&["file"], "dir", false, true), Err((6, isdir)));
    }

    #[test]
    fn contents_become_contents() {
        let scratch = Scratch::new("contents");
        std::os::unix::fs::symlink("dir/below", scratch.0.join("link")).expect("a link");
        let asked = |sources: &[&str], path: &[u8], exact| Place {
            path: path.to_vec(),
            directory: sources.len() > 1,
            exact,
            sources: sources.iter().map(|name| scratch.find(name)).collect(),
            same_kernel: true,
            ..Place::default()
        };
        let real = std::fs::canonicalize(&scratch.0).expect("a directory");
        std::fs::create_dir(real.join("to")).expect("a directory");
        let to = real.join("to");
        // Of several sources, those with a name keep it.
        let asked_for = asked(&["dir/.", "file", "dir/below/.."], bytes(&to).as_slice(), false);
        let placed = place(&asked_for, false).expect("placed");
        let targets: Vec<PathBuf> = asked_for.sources.iter().map(|source| target(&placed, source)).collect();
        assert_eq!(targets, [to.clone(), to.join("file"), to.clone()]);
        assert_eq!(final_name(&placed, &asked_for.sources[0]), ITSELF);
        // A single source goes to callers that know of no others.
        for (path, exact) in
            [(bytes(&to), false), (b"/".to_vec(), false), (b"/".to_vec(), true), (b"//".to_vec(), true)]
        {
            let asked_for = asked(&["dir/."], &path, exact);
            let placed = place(&asked_for, false).expect("placed");
            assert!(placed.as_name.is_some(), "{placed:?}");
            let expected = std::fs::canonicalize(OsStr::from_bytes(&path)).expect("it is there");
            assert_eq!(target(&placed, &asked_for.sources[0]), expected);
        }
        let refused =
            |sources: &[&str], path: &Path| place(&asked(sources, &bytes(path), false), false).map_err(|it| it.exit);
        assert_eq!(refused(&["dir/."], &real.join("link")), Err(1), "into itself");
        assert_eq!(refused(&["file", "dir/."], &real.join("dir")), Err(1), "onto itself");
        assert_eq!(refused(&["dir/.", "file"], &real.join("none/new")), Err(6));
    }

    /// A file replaces the target of a link at the destination, a directory is refused, and any other source replaces
    /// the link.
    #[test]
    fn links_at_the_destination() {
        use std::os::unix::fs::symlink;
        let scratch = Scratch::new("links");
        for (target, name) in [("file", "to-file"), ("dir", "to-dir"), ("nowhere", "dangling"), ("itself", "itself")] {
            symlink(target, scratch.0.join(name)).expect("a link");
        }
        let fifo = scratch.0.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
        let placed = |source: &str, to, exact| scratch.place(&[source], to, false, exact);
        for source in ["to-file", "fifo"] {
            assert_eq!(placed("other", "to-file", false), Ok("file".into()));
            let others =
                if source == "fifo" { ["to-file", "dangling", "itself"] } else { ["dangling", "itself", "fifo"] };
            for to in others {
                assert_eq!(placed(source, to, false), Ok(to.into()), "{source} {to}");
                assert_eq!(placed(source, to, true), Ok(to.into()), "{source} {to}");
            }
            assert_eq!(placed(source, "to-dir", false), Ok(format!("to-dir/{source}")));
            assert_eq!(placed(source, "to-dir", true), Ok("to-dir".into()));
        }
        assert_eq!(placed("to-file", "to-file", false), Err((1, SAME_FILE)), "the same link");
        let (notdir, isdir, r#loop) = (20, 21, 40);
        for (source, to, exact, answer) in [
            ("dir/below", "to-file", false, notdir),
            ("dir/below", "dangling", false, notdir),
            ("dir/below", "to-dir", true, notdir),
            ("to-file", "dir", true, isdir),
            ("to-file", "to-dir/", true, isdir),
            ("other", "dangling", false, 0),
            ("other", "itself", false, r#loop),
            ("other", "dangling/", false, notdir),
        ] {
            assert_eq!(placed(source, to, exact), Err((6, answer)), "{source} {to}");
        }
        for to in ["dangling", "dangling/"] {
            assert_eq!(
                scratch.place(&["other", "file"], to, true, false),
                Err((6, 0)),
                "{to}: nothing is made through it"
            );
        }
        std::fs::create_dir(scratch.0.join("into")).expect("a directory");
        symlink("../dir", scratch.0.join("into/below")).expect("a link");
        let at = |name: &str| format!("{}/{name}", scratch.0.display());
        for (to, exact, advice) in [
            ("to-dir", true, format!("type it with a slash: {}/", at("to-dir"))),
            ("into", false, format!("with -T and {}/ as DST", at("into/below"))),
            ("to-file", true, "cannot be replaced by a directory".to_owned()),
        ] {
            let sources = vec![scratch.find("dir/below")];
            let asked = Place { path: at(to).into_bytes(), exact, sources, ..Place::default() };
            let said = place(&asked, false).expect_err("a link is in the way").detail;
            assert!(said.ends_with(&advice), "{said}");
        }
        // With a trailing slash, a link stands for its target.
        let real = std::fs::canonicalize(&scratch.0).expect("it").join("dir");
        let asked = Place {
            path: [bytes(&scratch.0), b"/to-dir/".to_vec()].concat(),
            directory: false,
            exact: true,
            sources: vec![Found { device: 0, inode: 0, ..scratch.find("dir/below") }],
            same_kernel: false,
            ..Place::default()
        };
        assert_eq!(target(&place(&asked, false).expect("a directory"), &asked.sources[0]), real);
    }

    #[test]
    fn one_directory_is_made_and_removed_again() {
        let scratch = Scratch::new("make");
        let at = |name: &str| bytes(&scratch.0.join(name));
        let made = |path: &[u8]| {
            let made = make(path, &TreeOptions::default());
            made.map(|made| made.is_some_and(|made| made.is_own)).map_err(|fact| fact.errno)
        };
        let new = make(&at("new/"), &TreeOptions::default()).expect("can be made").expect("was not there");
        assert_eq!(made(&at("new")), Ok(false), "it is there");
        assert_eq!(made(b"."), Ok(false));
        assert_eq!(made(&at("none/new")), Err(2));
        assert_eq!(made(&at("file")), Err(17));
        std::fs::write(scratch.0.join("new/arrived"), b"").expect("a file");
        drop(new);
        assert!(scratch.0.join("new/arrived").exists(), "what has arrived stays");
        assert_eq!(made(&at("other-new")), Ok(true));
        assert!(!scratch.0.join("other-new").exists(), "nothing has come into it");
        for fsync in [true, false] {
            let options = TreeOptions { fsync, ..TreeOptions::default() };
            let made = || make(&at("synced"), &options).map(drop).is_ok();
            assert_eq!(where_calls_fail(&[libc::SYS_fsync], libc::EIO, made), !fsync);
        }
    }

    #[test]
    fn a_generation_that_is_whole_is_refused_and_the_first_makes_the_directory_of_them() {
        let scratch = Scratch::new("generations");
        let placed = |sources: &[&str], to: &str, exact: bool| {
            let asked = Place {
                path: format!("{}/{to}", scratch.0.display()).into_bytes(),
                directory: !exact,
                exact,
                sources: sources.iter().map(|name| scratch.find(name)).collect(),
                same_kernel: true,
                is_generation: true,
                ..Place::default()
            };
            place(&asked, false).map(|placed| placed.directory).map_err(|fault| (fault.exit, fault.errno))
        };
        let at = |name: &str| bytes(&scratch.0.join(name));
        assert_eq!(placed(&["dir/."], "new/one", true), Ok([at("new"), b"/".to_vec()].concat()));
        assert_eq!(placed(&["file"], "new/one", false), Ok(at("new/one")));
        assert_eq!(placed(&["file"], "none/new/one", false), Err((6, 2)));
        assert_eq!(placed(&["file"], "file/one", false), Err((6, 20)));
        assert_eq!(placed(&["dir"], "dir/new/one", false), Err((1, 0)), "into itself");
        let snapshot = Some(b"one".to_vec().into());
        let generations = crate::options::Generations { snapshot, ..Default::default() };
        let options = TreeOptions { generations, ..TreeOptions::default() };
        drop(make(&at("new/one"), &options).expect("can be made").expect("was not there"));
        assert!(!scratch.0.join("new").exists(), "nothing has come into it");
        assert!(make(&at("none/new/one"), &options).is_err());
        let made = make(&at("new/one"), &options).expect("can be made");
        std::fs::write(scratch.0.join("new/one/file"), b"").expect("a file");
        drop(made);
        assert!(scratch.0.join("new/one/file").exists());
        assert!(make(&at("new/one"), &options).expect("is there").is_none(), "it stays in any case");
        // A killed run may end only after the next run has begun.
        for is_left in [false, true] {
            let killed = make(&at("again/one"), &options).expect("can be made");
            let left = scratch.0.join("again/one").join(name_beside(b"file", PARTIAL));
            if is_left {
                std::fs::write(&left, b"").expect("a file");
            }
            let next = make(&at("again/one"), &options).expect("is there");
            if is_left {
                std::fs::remove_file(&left).expect("it");
            }
            drop(killed);
            assert!(scratch.0.join("again/one").exists(), "another run copies into it");
            drop(next);
            std::fs::remove_dir_all(scratch.0.join("again")).expect("it");
        }
        std::fs::create_dir(scratch.0.join("new/two")).expect("a directory");
        let marker = |name: &str| scratch.0.join("new").join(name_beside(name.as_bytes(), UNFINISHED));
        let is_refused = |name: &str| placed(&["file"], &format!("new/{name}"), false) == Err((1, 0));
        assert!(is_refused("one"), "it is whole");
        std::fs::write(marker("one"), b"").expect("a file");
        assert!(!is_refused("one"), "it is not whole yet");
        assert!(!is_refused("two"), "nothing is in it");
        for target in ["one", "./one/", "../new/one"] {
            std::os::unix::fs::symlink(target, scratch.0.join("new/latest")).expect("a link");
            for (sources, exact) in [(["file"], false), (["dir/."], true)] {
                assert_eq!(placed(&sources, "new/one", exact), Err((1, 0)), "a kill has kept the marker");
                assert!(placed(&sources, "new/two", exact).is_ok());
            }
            std::fs::remove_file(scratch.0.join("new/latest")).expect("it");
        }
    }

    #[test]
    fn a_pattern_whose_directory_cannot_be_read_is_not_taken_for_one_that_matches_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new("unread");
        let directory = scratch.0.join("dir");
        let set_mode = |mode| {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).expect("ours");
        };
        let (unread, all) = (directory.join("*"), scratch.0.join("fil*"));
        let patterns = [&unread, &all].map(|path| path.as_os_str().as_bytes());
        set_mode(0o311);
        let (found, missing) = names::without_privileges(|| find(&patterns, true, true));
        set_mode(0o755);
        assert_eq!(found.iter().map(|found| &found.name[..]).collect::<Vec<_>>(), [b"file"]);
        assert_eq!(missing, [std_fact(directory.as_os_str(), &std::io::Error::from(Errno::ACCESS))]);
    }

    /// With `-x`, a copy of `/` may go to a file system that is mounted below.
    #[test]
    fn a_copy_that_crosses_no_mount_point_may_go_behind_one() {
        let refused = |one_file_system| {
            let asked = Place {
                path: b"/dev/shm/rd-place-none".to_vec(),
                exact: true,
                sources: find(&[&b"/"[..]], true, false).0,
                same_kernel: true,
                one_file_system,
                ..Place::default()
            };
            place(&asked, false).err().map(|fault| fault.exit)
        };
        assert_eq!((refused(false), refused(true)), (Some(1), None));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let scratch = Scratch::new("nonsense");
        for (sources, to, errno) in [
            (&["file"][..], "file", SAME_FILE),
            (&["file"], "dir/../file", SAME_FILE),
            (&["file"], "", SAME_FILE),
            (&["dir"], "dir/below", 0),
            (&["dir"], "dir/new", 0),
            (&["dir"], "dir", 0),
        ] {
            assert_eq!(scratch.place(sources, to, false, false), Err((1, errno)), "{sources:?} {to:?}");
        }
    }
}
