//! Where the files of a copy are and where their copies will be, by the rules of `cp -a`. Placing only looks; `make`
//! creates the directory.

use std::ffi::{OsStr, OsString};
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
    OwnerAccess, PARTIAL, UNFINISHED, canonical, identity, io_fact, is_temporary_name, name_beside, partial,
    plain_fact, std_fact, sync_directory,
};
use crate::options::{Followed, LATEST, TreeOptions};

/// The name under which a directory is merged into the directory to copy into.
const ITSELF: &[u8] = b".";

/// The error number of a refusal because a source is its own destination. No other refusal has it.
pub(crate) const SAME_FILE: i32 = libc::EEXIST;

/// Passes the entries that match the paths and patterns to `take`, each as soon as it is found, and why others may be
/// missing. `links`: which symbolic links stand for what they lead to. With `expand`, `~` and patterns are expanded.
pub(crate) fn find(patterns: &[&[u8]], links: Followed, expand: bool, mut take: impl FnMut(Result<Found, IoFact>)) {
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
fn source(path: PathBuf, links: Followed) -> Result<Found, IoFact> {
    // `host:` stands for the login's home.
    let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
    let looked = if links.all { std::fs::metadata(&path) } else { std::fs::symlink_metadata(&path) };
    let mut metadata = looked.map_err(|error| std_fact(path.as_os_str(), &error))?;
    // The walk reports a link that leads nowhere, unless the link is excluded.
    if metadata.is_symlink()
        && links.follows_root(&path)
        && let Ok(target) = std::fs::metadata(&path)
    {
        metadata = target;
    }
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
        Ok(directory) => partial::has_any(directory, |_| true) != Ok(false),
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
    let detail = if latest.is_ok_and(|latest| identity(&latest) == identity(&itself)) {
        "it is complete (latest points to it); choose another NAME"
    } else if itself.is_dir() && has_entries(bare(path)) && !is_unfinished(path) {
        "it is not marked as unfinished, so it counts as complete; choose another NAME, or remove it"
    } else {
        return Ok(());
    };
    Err(Fault::io(Exit::Usage.code(), "cannot change", &plain_fact(bare(path).as_os_str(), detail)))
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
    let (path, _access) = (Path::new(OsStr::from_bytes(directory)), OwnerAccess::grant());
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
    partial::has_any(directory, |name| !is_temporary_name(name.to_bytes())) == Ok(false)
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
        let base = Path::new(OsStr::from_bytes(&source.path));
        if let Some(listed) = listed_around(base, &asked.listed, &target, asked.one_file_system) {
            return Err(usage(listed));
        }
        // The walk does not come to another file system.
        let is_beyond = asked.one_file_system && spot(&target).is_some_and(|spot| spot.device != source.device);
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
/// target and would be copied into itself without end. With `one_file_system`, the walk does not come from an entry to
/// a target on another file system.
pub(crate) fn listed_around(source: &Path, listed: &[ByteVec], target: &Path, one_file_system: bool) -> Option<String> {
    if listed.is_empty() {
        return None;
    }
    let target = std::path::absolute(target).ok()?;
    let real = target.ancestors().find_map(|above| canonical(above).ok())?;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let is_beyond = |listed: &Path| one_file_system && device(listed) != device(&real);
    let holds = |path: &&ByteVec| {
        let below = path.iter().position(|&byte| byte != b'/').map_or(&b""[..], |at| &path[at..]);
        let listed = canonical(&source.join(OsStr::from_bytes(below)));
        listed.is_ok_and(|listed| real.starts_with(&listed) && !is_beyond(&listed))
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
mod tests;
