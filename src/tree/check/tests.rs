use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, mknodat, openat};
use tempfile::TempDir;

use super::super::contents::RANGE_BYTES;
use super::super::manifest::fuzz::written;
use super::*;
use crate::fs::close::tests::{fail_where, where_calls_fail};

/// A time before that of any file made here.
const LONG_AGO: SystemTime = SystemTime::UNIX_EPOCH;

/// Returns the entries of a directory, in order.
fn entries(top: &Path) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let stat = fs::symlink_metadata(top.join(&path)).expect("there");
        let kind = match stat.file_type() {
            kind if kind.is_dir() => {
                let names = fs::read_dir(top.join(&path)).expect("readable");
                waiting.extend(names.map(|entry| path.join(entry.expect("an entry").file_name())));
                Kind::Directory
            }
            kind if kind.is_symlink() => {
                Kind::Symlink(fs::read_link(top.join(&path)).expect("a link").as_os_str().as_bytes().to_vec())
            }
            _ => {
                let data = fs::read(top.join(&path)).expect("readable");
                Kind::File { size: data.len() as u64, digest: *blake3::hash(&data).as_bytes() }
            }
        };
        let modified = (stat.mtime(), stat.mtime_nsec() as u32);
        all.push(Entry { path: path.as_os_str().as_bytes().to_vec(), mode: stat.mode() & 0o7777, modified, kind });
    }
    all.sort_by(|one, other| order(&one.path, &other.path));
    all
}

/// Makes files of lengths around those at which their reading changes, on a disk or in memory.
fn tree(at: Option<&str>) -> TempDir {
    let top = at.map_or_else(TempDir::new, TempDir::new_in).expect("a directory");
    fs::create_dir(top.path().join("sub")).expect("a directory");
    for (number, bytes) in
        [0, 1, 4096, RANGE_BYTES - 1, RANGE_BYTES, RANGE_BYTES + 1, 3 * RANGE_BYTES + 5000].into_iter().enumerate()
    {
        let mut data = vec![0; bytes];
        blake3::Hasher::new().update(&[number as u8]).finalize_xof().fill(&mut data);
        fs::write(top.path().join("sub").join(format!("f{number}")), data).expect("a file");
    }
    fs::write(top.path().join("sub.txt"), "text").expect("a file");
    symlink("sub.txt", top.path().join("link")).expect("a link");
    top
}

fn checked(manifest: &[u8], top: &Path, medium: Medium) -> (Result<Checked, CheckError>, Vec<String>) {
    let findings = Mutex::new(Vec::new());
    let tell = |finding| {
        findings.lock().expect("no panic").push(match finding {
            Finding::Differs { path, aspects } => {
                let names: Vec<_> = aspects.into_iter().map(Aspect::name).collect();
                format!("{} {}", names.join(","), String::from_utf8_lossy(&path))
            }
            Finding::Unreadable { path, errno } => format!("errno {errno} {}", String::from_utf8_lossy(&path)),
        });
    };
    let outcome = check(manifest, top, medium, &AtomicBool::new(false), &tell);
    let mut findings = findings.into_inner().expect("no panic");
    findings.sort();
    (outcome, findings)
}

#[test]
fn a_tree_is_as_its_manifest_has_it() {
    for at in [None, Some("/dev/shm")] {
        let top = tree(at);
        let manifest = written(&entries(top.path()));
        for medium in [Medium::Disk, Medium::Cache] {
            let (outcome, findings) = checked(&manifest, top.path(), medium);
            let checked = outcome.expect("compared");
            assert!(findings.is_empty(), "{at:?} {medium:?}: {findings:?}");
            assert_eq!((checked.entries, checked.differing, checked.unreadable), (11, 0, 0));
            assert_eq!(checked.bytes, (6 * RANGE_BYTES + 9101) as u64);
        }
    }
}

/// Every byte counts, in small files and large ones, in the first range and the last.
#[test]
fn a_byte_that_changed_is_found() {
    let top = tree(None);
    let manifest = written(&entries(top.path()));
    for (name, at) in [("f1", 0), ("f3", 70_000), ("f5", RANGE_BYTES), ("f6", 0), ("f6", 3 * RANGE_BYTES + 4999)] {
        let path = top.path().join("sub").join(name);
        let (before, times) = (fs::read(&path).expect("a file"), fs::metadata(&path).expect("a file").modified());
        let write = |data: &[u8]| {
            let file = fs::File::options().write(true).open(&path).expect("a file");
            file.write_all_at(data, 0).expect("written");
            file.set_modified(*times.as_ref().expect("a time")).expect("set");
        };
        let mut after = before.clone();
        after[at] ^= 1;
        write(&after);
        for medium in [Medium::Disk, Medium::Cache] {
            let (outcome, findings) = checked(&manifest, top.path(), medium);
            assert_eq!(findings, [format!("contents sub/{name}")], "{medium:?}");
            assert_eq!(outcome.expect("compared").differing, 1);
        }
        write(&before);
    }
}

#[test]
fn what_differs_is_named_by_what_differs() {
    let top = tree(None);
    let sub = top.path().join("sub");
    let manifest = written(&entries(top.path()));
    let times = fs::metadata(&sub).expect("there").modified().expect("a time");
    fs::remove_file(sub.join("f0")).expect("removed");
    fs::remove_file(sub.join("f2")).expect("removed");
    fs::create_dir(sub.join("f2")).expect("a directory");
    fs::write(sub.join("f2/inside"), "x").expect("a file");
    fs::write(sub.join("more"), "x").expect("a file");
    fs::set_permissions(sub.join("f1"), fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::File::options().append(true).open(sub.join("f3")).expect("a file").set_len(5).expect("shorter");
    fs::File::open(&sub).expect("there").set_modified(times).expect("set");
    let top_times = fs::metadata(top.path()).expect("there").modified().expect("a time");
    fs::remove_file(top.path().join("link")).expect("removed");
    symlink("elsewhere", top.path().join("link")).expect("a link");
    fs::File::open(top.path()).expect("there").set_modified(top_times).expect("set");
    let (outcome, findings) = checked(&manifest, top.path(), Medium::Cache);
    let expected =
        ["extra sub/more", "missing sub/f0", "mode sub/f1", "mtime,size sub/f3", "mtime,target link", "type sub/f2"];
    assert_eq!(findings, expected);
    assert_eq!(outcome.expect("compared").differing, 6);
}

/// Nothing is reported about entries that a manifest may have lost when it was cut.
#[test]
fn a_manifest_that_was_cut_ends_the_check() {
    let top = tree(None);
    let whole = written(&entries(top.path()));
    let second_line = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(2).expect("a line").0;
    let (outcome, findings) = checked(&whole[..=second_line], top.path(), Medium::Cache);
    assert!(matches!(outcome, Err(CheckError::Manifest(ManifestError::Cut(3)))), "{outcome:?}");
    assert!(findings.is_empty(), "{findings:?}");
}

/// A link in a directory's place is not followed.
#[test]
fn a_link_leads_nowhere() {
    let (top, elsewhere) = (tree(None), tree(None));
    let manifest = written(&entries(top.path()));
    fs::remove_dir_all(top.path().join("sub")).expect("removed");
    symlink(elsewhere.path().join("sub"), top.path().join("sub")).expect("a link");
    let (_, findings) = checked(&manifest, top.path(), Medium::Cache);
    assert!(findings.contains(&"type sub".to_owned()) && findings.contains(&"missing sub/f1".to_owned()));
}

/// Contents of another size are not compared, so such a file is read ahead or not at all.
#[test]
fn what_comes_next_is_read_ahead_where_it_is_cold() {
    use super::super::ahead::cold::{are_cached_soon, is_cached, tree};
    let top = tree(3, 70);
    let mut all = entries(top.path());
    for entry in &mut all {
        if let Kind::File { size, .. } = &mut entry.kind {
            *size += 1;
        }
    }
    // Making the entries has read the files.
    for directory in fs::read_dir(top.path()).expect("it") {
        for file in fs::read_dir(directory.expect("it").path()).expect("it") {
            let file = fs::File::open(file.expect("it").path()).expect("open");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicted");
        }
    }
    let (manifest, stop) = (written(&all), AtomicBool::new(false));
    for (medium, is_cold) in
        [(Medium::Disk, false), (Medium::Disk, true), (Medium::Cache, false), (Medium::Cache, true)]
    {
        let checker = Checker::new(top.path(), medium, &stop, &|_| {});
        if is_cold {
            checker.ahead.stay_on();
        }
        let directory = openat(here(), top.path(), OFlags::DIRECTORY, Mode::empty()).expect("open");
        let (jobs, _queue) = bounded(1);
        checker.walk(&manifest[..], directory, &jobs).expect("walked");
        assert_eq!(crate::locked(&checker.totals).differing, 3 * 70);
        assert_eq!(checker.ahead.has_begun(), is_cold, "{medium:?}: a directory in memory is read by one thread");
        match medium {
            // All but the first, which the walk reaches at once.
            Medium::Cache if is_cold => are_cached_soon(top.path(), (1..210).map(|at| (at / 70, at % 70))),
            // Of what is read from the disk itself, only the inodes are looked up.
            _ => assert!(!is_cached(top.path(), 1, 0)),
        }
    }
}

/// It is not taken for a file whose contents are damaged.
#[test]
fn a_file_that_is_written_to_meanwhile_has_another_time() {
    let top = tree(None);
    let open = |name: &str| {
        let path = top.path().join("sub").join(name);
        fs::File::options().write(true).open(path).expect("a file")
    };
    ["f2", "f3", "f4"].into_iter().for_each(|name| open(name).set_modified(LONG_AGO).expect("ours"));
    let (manifest, stop) = (written(&entries(top.path())), AtomicBool::new(false));
    let findings = Mutex::new(Vec::new());
    let tell = |finding: Finding| findings.lock().expect("no panic").push(finding);
    let checker = Checker::new(top.path(), Medium::Cache, &stop, &tell);
    let directory = openat(here(), top.path(), OFlags::DIRECTORY, Mode::empty()).expect("open");
    let (jobs, queue) = bounded(100);
    checker.walk(&manifest[..], directory, &jobs).expect("walked");
    drop(jobs);
    open("f2").write_all_at(b"other contents", 0).expect("written");
    open("f3").set_len(5).expect("shorter");
    // With a bad sector, a direct read of a file of the same length ends with the error of a shorter one.
    open("f4").set_modified(SystemTime::now()).expect("ours");
    let found = |entry: &Entry, found| if entry.path == b"sub/f4" { Err(Errno::NODATA) } else { found };
    contents::work(&queue, None, || false, |entry, file, read| checker.take(&entry, file, found(&entry, read)));
    let differs = |path: &[u8], aspect| Finding::Differs { path: path.to_vec(), aspects: vec![Aspect::Time, aspect] };
    let expected = [differs(b"sub/f2", Aspect::Contents), differs(b"sub/f3", Aspect::Size)];
    let findings = findings.lock().expect("no panic");
    assert_eq!(findings[..2], expected);
    assert!(matches!(&findings[2..], [Finding::Unreadable { .. }]), "{findings:?}");
}

/// What is in it counts neither as missing nor as unreadable.
#[test]
fn a_directory_that_cannot_be_read_stands_for_what_is_in_it() {
    let top = tree(None);
    let manifest = written(&entries(top.path()));
    // Only directories below the top are opened so.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = flags | OFlags::NOATIME | OFlags::LARGEFILE;
    let run = || {
        fail_where(libc::SYS_openat, (2, u64::from(flags.bits())), libc::EACCES);
        checked(&manifest, top.path(), Medium::Cache)
    };
    let (outcome, findings) = std::thread::scope(|scope| scope.spawn(run).join().expect("its end"));
    assert_eq!(findings, ["errno 13 sub"]);
    let checked = outcome.expect("compared");
    assert_eq!((checked.entries, checked.differing, checked.unreadable), (11, 0, 1));
}

/// Nothing is wrong with the directory whose names find no room.
#[test]
fn a_full_temporary_directory_ends_the_check() {
    let top = tree(Some("/dev/shm"));
    let manifest = written(&entries(top.path()));
    let sub = fs::File::open(top.path().join("sub")).expect("a directory");
    for number in 0..16_000 {
        mknodat(&sub, format!("{number:0250}"), FileType::RegularFile, Mode::RUSR, 0).expect("a file");
    }
    let run = || checked(&manifest, top.path(), Medium::Cache).0;
    match where_calls_fail(&[libc::SYS_write, libc::SYS_pwrite64], libc::ENOSPC, run) {
        Err(CheckError::Directory(fact)) => {
            assert_eq!((fact.errno, &fact.path[..]), (libc::ENOSPC, top.path().join("sub").as_os_str().as_bytes()));
            assert!(String::from_utf8_lossy(&fact.detail).contains("TMPDIR"), "{fact:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn access_times_stay() {
    let top = tree(None);
    let manifest = written(&entries(top.path()));
    let paths = ["", "sub", "sub/f2", "sub/f6"].map(|path| top.path().join(path));
    let times = fs::FileTimes::new().set_accessed(LONG_AGO + Duration::from_secs(1));
    paths.iter().for_each(|path| fs::File::open(path).expect("it").set_times(times).expect("ours"));
    for medium in [Medium::Disk, Medium::Cache] {
        let (_, findings) = checked(&manifest, top.path(), medium);
        assert!(findings.is_empty(), "{findings:?}");
        for path in &paths {
            let accessed = fs::metadata(path).expect("it").accessed().expect("a time");
            assert_eq!(accessed, LONG_AGO + Duration::from_secs(1), "{medium:?} {}", path.display());
        }
    }
}
