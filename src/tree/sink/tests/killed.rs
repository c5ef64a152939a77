//! Receivers that are killed.

use super::*;

/// Chunks with 20 000 files of 4 KiB in 200 directories.
fn small_files() -> Vec<Arc<Vec<u8>>> {
    let mut chunks = vec![Vec::new()];
    let mut put = |record: Record<'_>| {
        if chunks.last().is_none_or(|bytes: &Vec<u8>| bytes.len() + record.encoded_bytes() > 1 << 20) {
            chunks.push(Vec::new());
        }
        let bytes = chunks.last_mut().expect("one");
        let at = bytes.len();
        bytes.resize(at + record.encoded_bytes(), 0);
        record.encode(&mut bytes[at..]);
    };
    for number in 0..200 {
        put(directory(format!("d{number:03}").as_bytes()));
        for number in 0..100 {
            put(file(format!("file{number:03}").as_bytes(), &[7; 4096]));
        }
        put(Record::Leave);
    }
    put(END);
    chunks.into_iter().map(Arc::new).collect()
}

/// Measures the sink alone, in the directory `RD_TREE_DIR`.
#[test]
#[ignore = "a measurement, to be run by hand"]
fn measure_small_files() {
    let Some(directory) = std::env::var_os("RD_TREE_DIR").map(PathBuf::from) else { return };
    let chunks = small_files();
    let start = Instant::now();
    let mut sink = TreeSink::new(&directory, Destination::default(), Box::new(|_| {})).expect("a directory");
    for chunk in chunks {
        sink.push(0, 0, chunk).expect("taken");
    }
    let report = sink.finish().expect("whole");
    println!("{:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    assert_eq!((report.files, report.figures.failed), (20_000, 0));
}

/// All paths below a directory, each with its inode.
fn inodes_below(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let inode = |path: PathBuf| path.symlink_metadata().ok().map(|stat| (path, stat.ino()));
    names_below(directory).into_iter().filter_map(inode).collect()
}

#[test]
fn who_is_killed_leaves_no_half_of_a_file() {
    for older_files in [false, true] {
        let scratch = Scratch::new();
        let dst = scratch.dst();
        let whole = |path: &Path| {
            let stat = path.symlink_metadata().expect("there");
            // In a directory that has no name yet, files have their names before they are whole.
            let mut names = path.strip_prefix(&dst).expect("below it").iter();
            let is_unseen = names.any(|name| name.as_bytes().starts_with(b"."));
            is_unseen || !stat.is_file() || stat.len() == 4096 && stat.mode() & 0o777 == 0o640
        };
        for round in 0..if older_files { 4 } else { 1 } {
            let start_one = || {
                let mut child = Command::new(std::env::current_exe().expect("a name"));
                child.args(["--ignored", "--exact", "tree::sink::tests::killed::measure_small_files"]);
                child.env("RD_TREE_DIR", &dst).stdout(std::process::Stdio::null());
                child.spawn().expect("this program again")
            };
            // A file that replaces one of an earlier round has another inode.
            let before = inodes_below(&dst);
            let made =
                || inodes_below(&dst).into_iter().filter(|(path, inode)| before.get(path) != Some(inode)).count();
            let mut child = start_one();
            let start = Instant::now();
            while made() < 300 && start.elapsed().as_secs() < 20 {}
            std::thread::sleep(Duration::from_millis(10 * round));
            child.kill().expect("ours");
            child.wait().expect("ours");
            assert!(made() >= 300, "killed too early");
            let found = names_below(&dst);
            let broken: Vec<_> = found.iter().filter(|path| !whole(path)).collect();
            assert_eq!(broken, Vec::<&PathBuf>::new());
            if !older_files {
                assert!(start_one().wait().expect("ours").success());
                let found = names_below(&dst);
                assert_eq!((found.len(), found.iter().all(|path| whole(path))), (20_200, true));
            }
        }
    }
}

#[test]
fn what_a_killed_transfer_left_of_small_files_goes() {
    let scratch = Scratch::new();
    let below = scratch.dst().join("d");
    fs::create_dir(&below).expect("ours");
    for place in [scratch.dst(), below] {
        fs::write(place.join(name_beside(b"f", PARTIAL)), "half").expect("ours");
    }
    let records = [directory(b"d"), file(b"f", b"whole"), Record::Leave, file(b"f", b"whole"), END];
    assert!(scratch.run(TreeOptions::default(), &records).expect("a walk").failures.is_empty());
    scratch.no_temporaries();
}

/// With `--no-mode` a file keeps the mode of the one that it replaces. What a killed transfer has left was not given its
/// mode yet.
#[test]
fn a_file_that_was_left_half_written_passes_no_mode_on() {
    let scratch = Scratch::new();
    let left = scratch.dst().join(name_beside(b"d", PARTIAL));
    fs::create_dir(&left).expect("ours");
    fs::write(left.join("f"), "half").expect("ours");
    for (path, mode) in [(&left, 0o1700), (&left.join("f"), 0o600)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    }
    let options = TreeOptions { mode: false, compares: true, ..TreeOptions::default() };
    let records = [directory(b"d"), file(b"f", b"whole"), Record::Leave, END];
    assert!(scratch.run(options, &records).expect("a walk").failures.is_empty());
    let made = fs::metadata(scratch.dst().join("d/f")).expect("made");
    assert_eq!((made.len(), made.mode() & 0o777), (5, 0o640));
}
