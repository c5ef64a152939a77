use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rd_proto::tree::{Record, Time};

use super::super::tests::chunk;
use super::super::{KeptState, TreeSink};
use super::*;
use crate::fs::close::tests::where_calls_fail;
use crate::fs::io_fact;
use crate::options::TreeOptions;

const META: Metadata<'static> = Metadata {
    mode: 0o551,
    modified: Time { seconds: 1_000_000_000, nanoseconds: 5 },
    accessed: Time { seconds: 1_000_000_000, nanoseconds: 5 },
    ..Metadata::ZERO
};

fn directory(name: &[u8]) -> Record<'_> {
    Record::Directory { name, metadata: META }
}

fn file(name: &[u8]) -> Record<'_> {
    Record::File { name, metadata: META, data: b"data" }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("there").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// A tree has a partial name until it is whole, then its final name, even if some entries failed.
#[test]
fn a_new_tree_appears_when_it_is_whole() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = |name: &str| scratch.path().join(name);
    let partial = name_beside(b"new", PARTIAL);
    let mut kept = Vec::new();
    for is_cut in [true, true, false] {
        let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
        let (tell, told) = mpsc::channel();
        sink.on_kept(Box::new(move |paths, bytes, state| {
            assert_eq!((bytes, state), (0, KeptState::Begun), "small files are sent again");
            tell.send(paths.to_vec()).expect("it is heard");
        }));
        let begun = [directory(b"new"), directory(b"sub"), file(b"file"), Record::Leave, file(b"there")];
        sink.push(0, 0, chunk(&begun)).expect("taken");
        // A link to an entry of the tree, and a link to an entry that does not exist.
        let links = [(&b"to-file"[..], &b"new/sub/file"[..]), (b"to-none", b"new/sub/none")];
        let links = links.map(|(name, first)| Record::HardLink { name, first });
        sink.push(0, 0, chunk(&links)).expect("taken");
        sink.shared.wait_drained();
        assert!(!at("new").exists());
        assert_eq!(fs::metadata(at(&partial)).expect("there").mode() & 0o777, 0o700);
        if is_cut {
            drop(sink);
            kept = told.try_iter().flatten().collect();
            // An entry that will not come again.
            fs::write(at(&partial).join("sub/stale"), "stale").expect("a file");
            fs::create_dir_all(at(&partial).join("gone/below")).expect("directories");
            fs::set_permissions(at(&partial).join("sub"), fs::Permissions::from_mode(0o500)).expect("ours");
            continue;
        }
        sink.push(0, 0, chunk(&[Record::Leave, Record::End { failures: 0 }])).expect("taken");
        let report = sink.finish().expect("whole");
        assert_eq!((report.figures.failed, report.figures.amount.directories), (1, 2), "{:?}", report.failures);
        drop(sink);
        assert_eq!(told.try_iter().count(), 0);
    }
    assert_eq!(kept, [at(&partial).into_os_string().into_encoded_bytes()]);
    assert_eq!(names(scratch.path()), ["new"]);
    assert_eq!(
        (names(&at("new")), names(&at("new/sub"))),
        (["sub", "there", "to-file"].map(str::to_owned).to_vec(), vec!["file".to_owned()])
    );
    for name in ["new", "new/sub"] {
        let stat = fs::metadata(at(name)).expect("there");
        assert_eq!((stat.mode() & 0o777, stat.mtime()), (0o551, META.modified.seconds), "{name}");
    }
    for name in ["new", "new/sub"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o700)).expect("ours");
    }
}

#[test]
fn a_tree_of_which_nothing_came_leaves_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
    sink.push(0, 0, chunk(&[directory(b"new")])).expect("taken");
    drop(sink);
    assert_eq!(names(scratch.path()), [""; 0]);
}

/// What an interrupted copy has left of it may be cut.
#[test]
fn the_copy_of_what_has_vanished_stays_unless_it_was_left() {
    let top = Record::Directory { name: b"new", metadata: Metadata { mode: 0o755, ..META } };
    let (vanished, end) = (Record::Vanished { name: b"file" }, Record::End { failures: 0 });
    let (listed, wanted) = (Record::Listed { name: b"file", metadata: META, size: 5 }, Record::Wanted { number: 0 });
    let other = Record::Symlink { name: b"a", metadata: META, target: b"x" };
    for (is_listed, is_left) in [(false, false), (true, false), (false, true), (true, true)] {
        let scratch = tempfile::tempdir().expect("a directory");
        let new = scratch.path().join("new");
        let options = TreeOptions { sync: true, delete: true, ..TreeOptions::default() };
        let begin = || TreeSink::new(scratch.path(), options.clone(), Box::new(|_| {})).expect("there");
        if is_left {
            let mut cut = begin();
            cut.push(0, 0, chunk(&[top, file(b"file")])).expect("taken");
            cut.shared.wait_drained();
        } else {
            fs::create_dir(&new).expect("a directory");
            ["file", "stale"].iter().for_each(|name| fs::write(new.join(name), "old").expect("a file"));
        }
        let mut sink = begin();
        let begun = if is_listed { vec![top, other, listed] } else { vec![top, other] };
        sink.push(0, 0, chunk(&begun)).expect("taken");
        sink.shared.wait_drained();
        let mut rest = if is_listed { vec![wanted, vanished] } else { vec![vanished] };
        rest.extend([Record::Leave, end]);
        sink.push(0, 0, chunk(&rest)).expect("taken");
        let report = sink.finish().expect("whole");
        assert_eq!(report.figures.failed, 0, "{is_listed} {is_left}: {:?}", report.failures);
        let there: &[&str] = if is_left { &["a"] } else { &["a", "file"] };
        assert_eq!(names(&new), there, "{is_listed} {is_left}");
    }
}

/// It may just be emptied, or a file system that was mounted there be gone.
#[test]
fn a_source_of_which_every_entry_has_vanished_deletes_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let there = scratch.path().join("there");
    fs::create_dir(&there).expect("a directory");
    ["file", "stale"].iter().for_each(|name| fs::write(there.join(name), "old").expect("a file"));
    let options = TreeOptions { sync: true, delete: true, ..TreeOptions::default() };
    let mut sink = TreeSink::new(scratch.path(), options, Box::new(|_| {})).expect("there");
    let top = Record::Directory { name: b"there", metadata: Metadata { mode: 0o755, ..META } };
    let records = [top, Record::Vanished { name: b"file" }, Record::Leave, Record::End { failures: 0 }];
    sink.push(0, 0, chunk(&records)).expect("taken");
    let report = sink.finish().expect("whole");
    assert_eq!(report.figures.failed, 1, "{:?}", report.failures);
    assert_eq!(names(&there), ["file", "stale"]);
}

/// Another process has made an entry of that name meanwhile. That entry stays, and so does the data that has arrived.
#[test]
fn a_name_that_was_taken_meanwhile_is_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    // Others may rename entries here, so an unfinished tree is marked.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
    sink.push(0, 0, chunk(&[directory(b"new"), file(b"file")])).expect("taken");
    fs::create_dir(scratch.path().join("new")).expect("made");
    fs::write(scratch.path().join("new/theirs"), "theirs").expect("a file");
    sink.push(0, 0, chunk(&[Record::Leave, Record::End { failures: 0 }])).expect("taken");
    let report = sink.finish().expect("whole");
    assert_eq!(report.figures.failed, 1);
    assert_eq!(names(&scratch.path().join("new")), ["theirs"]);
    let beside = scratch.path().join(name_beside(b"new", PARTIAL));
    assert_eq!(names(&beside), ["file"]);
    // It is whole, so it is open to those to whom its source is.
    assert_eq!(fs::metadata(&beside).expect("there").mode() & 0o7777, META.mode);
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o700)).expect("ours");
}

/// It may have its final owner and mode by then. The next copy goes on only with what is this user's and closed to
/// others.
#[test]
fn a_tree_that_could_not_get_its_name_is_gone_on_with() {
    let scratch = tempfile::tempdir().expect("a directory");
    let beside = name_beside(b"new", PARTIAL);
    let metadata = Metadata { uid: 12, ..META };
    let records =
        [Record::Directory { name: b"new", metadata }, file(b"file"), Record::Leave, Record::End { failures: 0 }];
    // A failure that stops everything.
    let copied = where_calls_fail(&[libc::SYS_renameat2], libc::EROFS, || {
        let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
        sink.push(0, 0, chunk(&records)).and_then(|()| sink.finish())
    });
    assert!(copied.is_err());
    let stat = fs::metadata(scratch.path().join(&beside)).expect("it is kept");
    assert_eq!((stat.mode() & 0o7777, stat.uid()), (0o700, rustix::process::geteuid().as_raw()));
    let top = fs::File::open(scratch.path()).expect("there");
    assert!(partial::open_tree(&top, &beside).expect("ours").was_left);
    assert_eq!(names(&scratch.path().join(&beside)), ["file"]);
}

/// As the working directory may have been.
#[test]
fn nothing_is_begun_in_a_directory_that_has_been_removed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let gone = scratch.path().join("gone");
    fs::create_dir(&gone).expect("a directory");
    let held = fs::File::open(&gone).expect("there");
    fs::remove_dir(&gone).expect("empty");
    let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let refused = TreeSink::new(&path, TreeOptions::default(), Box::new(|_| {})).err();
    assert_eq!(refused, Some(io_fact(path.as_os_str(), Errno::NOENT)));
}

/// Another copy was making the directory, and finished while this copy waited for it. This copy goes on in that
/// directory.
#[test]
fn a_copy_that_has_waited_for_another_one_goes_on_in_what_that_has_made() {
    for has_left in [false, true] {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        let beside = name_beside(b"new", PARTIAL);
        let top = fs::File::open(scratch.path()).expect("there");
        let held = partial::open_tree(&top, &beside).expect("made");
        fs::write(at(&beside).join("theirs"), "theirs").expect("a file");
        let mut sink = TreeSink::new(scratch.path(), TreeOptions::default(), Box::new(|_| {})).expect("there");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(200));
                if has_left {
                    // A third copy, which was killed, has left a file.
                    fs::create_dir(at("made")).expect("made");
                    fs::write(at("made/theirs"), "theirs").expect("a file");
                    fs::rename(at("made"), at("new")).expect("published");
                } else {
                    fs::rename(at(&beside), at("new")).expect("published");
                }
                drop(held);
            });
            sink.push(0, 0, chunk(&[directory(b"new"), file(b"file")])).expect("taken");
        });
        sink.push(0, 0, chunk(&[Record::Leave, Record::End { failures: 0 }])).expect("taken");
        let report = sink.finish().expect("whole");
        assert_eq!(report.figures.failed, 0, "{:?}", report.failures);
        assert_eq!(names(&at("new")), ["file", "theirs"]);
        // This copy leaves nothing. What was left before is not its own to remove.
        let there = if has_left { vec![beside, "new".to_owned()] } else { vec!["new".to_owned()] };
        assert_eq!(names(scratch.path()), there);
    }
}
