use super::*;
use crate::fs::close::tests::where_calls_fail;

fn find(patterns: &[&[u8]], links: Followed, expand: bool) -> (Vec<Found>, Vec<IoFact>) {
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
        find(&[path.as_os_str().as_bytes()], Followed::default(), false).0.remove(0)
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
    for (path, exact) in [(bytes(&to), false), (b"/".to_vec(), false), (b"/".to_vec(), true), (b"//".to_vec(), true)] {
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
        let others = if source == "fifo" { ["to-file", "dangling", "itself"] } else { ["dangling", "itself", "fifo"] };
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
        assert_eq!(scratch.place(&["other", "file"], to, true, false), Err((6, 0)), "{to}: nothing is made through it");
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
    let (found, missing) = names::without_privileges(|| find(&patterns, Followed::default(), true));
    set_mode(0o755);
    assert_eq!(found.iter().map(|found| &found.name[..]).collect::<Vec<_>>(), [b"file"]);
    assert_eq!(missing, [std_fact(directory.as_os_str(), &std::io::Error::from(Errno::ACCESS))]);
}

#[test]
fn a_link_that_the_walk_will_follow_is_what_it_leads_to() {
    use Kind::{Directory, File, Symlink};
    let scratch = Scratch::new("followed");
    let out = |name: &str| scratch.0.join(name);
    let links: [(&str, PathBuf); 5] = [
        ("to-dir", "dir".into()),
        ("to-file", "file".into()),
        ("out-dir", out("dir")),
        ("out-file", out("file")),
        ("lost", out("nowhere")),
    ];
    for (name, target) in &links {
        std::os::unix::fs::symlink(target, scratch.0.join(name)).expect("a link");
    }
    let paths = links.map(|(name, _)| bytes(&scratch.0.join(name)));
    let patterns = paths.each_ref().map(|path| &path[..]);
    let none = Followed::default();
    let to_directories = Followed { to_directories: true, ..none };
    for (links, expected, lost) in [
        (none, &[Symlink; 5][..], 0),
        (to_directories, &[Directory, Symlink, Directory, Symlink, Symlink], 0),
        (Followed { leading_out: true, ..none }, &[Symlink, Symlink, Directory, File, Symlink], 0),
        (Followed { all: true, ..none }, &[Directory, File, Directory, File], 1),
    ] {
        let (found, missing) = find(&patterns, links, false);
        let kinds: Vec<Kind> = found.iter().map(|found| found.kind).collect();
        assert_eq!((&kinds[..], missing.len()), (expected, lost), "{links:?}");
    }
    let sources = find(&patterns[..1], to_directories, false).0;
    let path = bytes(&scratch.0.join("dir/new"));
    let asked = Place { path, sources, same_kernel: true, ..Place::default() };
    assert_eq!(place(&asked, false).map_err(|fault| fault.exit), Err(1), "into itself");
}

/// With `-x`, a copy of `/` may go to a file system that is mounted below.
#[test]
fn a_copy_that_crosses_no_mount_point_may_go_behind_one() {
    let refused = |one_file_system| {
        let asked = Place {
            path: b"/dev/shm/rd-place-none".to_vec(),
            exact: true,
            sources: find(&[&b"/"[..]], Followed::default(), false).0,
            same_kernel: true,
            one_file_system,
            ..Place::default()
        };
        place(&asked, false).err().map(|fault| fault.exit)
    };
    assert_eq!((refused(false), refused(true)), (Some(1), None));
    let around = |listed: &str, one_file_system| {
        let (source, listed) = (Path::new("/"), [ByteVec::from(listed.as_bytes().to_vec())]);
        listed_around(source, &listed, Path::new("/dev/shm/rd-place-none"), one_file_system).is_some()
    };
    assert_eq!((around("/", false), around("/", true)), (true, false));
    assert!(around("/dev/shm/", true), "what is listed is copied wherever it is mounted");
    assert!(!around("/tmp", false), "it does not contain DST");
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
