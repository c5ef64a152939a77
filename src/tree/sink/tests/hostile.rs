//! A sender, or another process on the host, that tries to change something outside the destination.

use std::sync::atomic::AtomicU64;

use rd_proto::tree::{Extensions, fuzz};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::super::asked::IS_LEFT_OUT;
use super::*;
use crate::options::{Listed, Rule, Rules};
use crate::tree::FIRST_NAME_FAILED;
use crate::tree::IS_UNKNOWN;

#[test]
fn what_cannot_be_a_tree_is_refused() {
    let (data, order) = (|text| Refused::Data(text), Refused::Tree);
    let intact_end = [closed(1, 4), END];
    type Step<'a> = (u32, u64, Vec<Record<'a>>, &'a [u8]);
    let records = |records: &[Record<'static>]| -> Step<'static> { (0, 0, records.to_vec(), b"") };
    let range = |item, position, bytes| -> Step<'static> { (item, position, Vec::new(), bytes) };
    let too_much = data("more data for a file than announced");
    let cases = [
        (vec![records(&[file(b"a", b""), file(b"a", b"")])], order(TreeError::Order)),
        (vec![records(&[file(b"b", b"")]), records(&[file(b"a", b"")])], order(TreeError::Order)),
        (vec![records(&[Record::Leave])], order(TreeError::Depth)),
        (vec![records(&vec![directory(b"d"); DEPTH_MAX + 1])], order(TreeError::Depth)),
        (vec![records(&[END, file(b"a", b"")])], order(TreeError::End)),
        (vec![records(&[file(b"a", b"")])], data("the tree is incomplete")),
        (vec![records(&[directory(b"a"), END])], order(TreeError::Depth)),
        (vec![records(&[large(b"a", 1, 4), closed(1, 4), closed(1, 4)])], order(TreeError::Item)),
        (vec![records(&[large(b"a", 1, 4), END])], order(TreeError::Item)),
        (vec![range(1, 0, b"data")], data("data of a file that is not open")),
        (vec![records(&[large(b"a", 1, 4)]), range(2, 0, b"data")], data("data of a file that is not open")),
        (vec![records(&[large(b"a", 1, 4)]), range(1, 1, b"data")], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4)]), range(1, u64::MAX, b"data")], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4)]), range(1, 0, b"data"), range(1, 0, b"d")], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4), closed(1, 1)]), range(1, 0, b"da")], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4)]), range(1, 0, b"data"), records(&[closed(1, 3)])], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4), closed(1, 5)])], too_much.clone()),
        (vec![records(&[large(b"a", 1, 4)]), records(&intact_end)], data("data of a large file is missing")),
        (
            vec![records(&[large(b"a", 1, 4)]), range(1, 0, b"data"), records(&intact_end), range(1, 0, b"d")],
            data("data of a file that is not open"),
        ),
    ];
    for (steps, error) in cases {
        let scratch = Scratch::new();
        let mut sink = scratch.sink(TreeOptions::default());
        let outcome = steps
            .iter()
            .try_for_each(|(item, position, records, bytes)| {
                let bytes = if *item == 0 { chunk(records) } else { Arc::new(bytes.to_vec()) };
                sink.push(*item, *position, bytes)
            })
            .and_then(|()| sink.finish().map(|_| ()));
        assert_eq!(outcome, Err(error));
        sink.discard();
        scratch.no_temporaries();
        scratch.outside_is_unchanged();
    }
    let scratch = Scratch::new();
    let mut sink = scratch.sink(TreeOptions::default());
    assert_eq!(sink.push(0, 0, Arc::new(vec![77])), Err(order(TreeError::Kind(77))));
}

#[test]
fn nothing_is_written_through_a_link() {
    let scratch = Scratch::new();
    let outside = scratch.outside();
    let target = outside.as_os_str().as_bytes();
    symlink(&outside, scratch.dst().join("b")).expect("a link");
    let mut sink = scratch.sink(TreeOptions::default());
    let records = [
        link(b"a", target),
        directory(b"b"),
        file(b"file", b"ours"),
        large(b"large", 1, 4),
        directory(b"more"),
        file(b"x", b"x"),
        Record::Leave,
        Record::HardLink { name: b"z", first: b"b/file" },
        Record::Leave,
        Record::HardLink { name: b"c", first: b"a/file" },
        Record::HardLink { name: b"d", first: b"b/file" },
        closed(1, 4),
        END,
    ];
    sink.push(0, 0, chunk(&records)).expect("taken");
    sink.push(1, 0, Arc::new(b"data".to_vec())).expect("taken and dropped");
    let report = sink.finish().expect("whole");
    let told: Vec<_> = report.failures.iter().map(|fact| (fact.errno, &*fact.detail)).collect();
    let not_dir = (Errno::NOTDIR.raw_os_error(), &b""[..]);
    assert_eq!(told, [not_dir, not_dir, (0, FIRST_NAME_FAILED.as_bytes())]);
    assert_eq!(report.failures[0].path, scratch.dst().join("b").as_os_str().as_bytes());
    assert_eq!((report.files, report.others, names_below(&scratch.dst()).len()), (0, 1, 2));
    scratch.outside_is_unchanged();
    assert_eq!(fs::read_link(scratch.dst().join("b")).expect("still a link"), outside);
}

#[test]
fn hard_links_lead_to_what_is_kept_only() {
    let scratch = Scratch::new();
    let target = scratch.outside().join("file");
    symlink(&target, scratch.dst().join("old")).expect("a link");
    let records = [
        directory(b"d"),
        Record::Leave,
        link(b"l", target.as_os_str().as_bytes()),
        Record::HardLink { name: b"m", first: b"d" },
        Record::HardLink { name: b"n", first: b"l" },
        Record::HardLink { name: b"o", first: b"absent" },
        // A path through a link.
        Record::HardLink { name: b"p", first: b"l/file" },
        END,
    ];
    let report = scratch.run(TreeOptions::default(), &records).expect("whole");
    assert_eq!(errnos(&report), [Errno::INVAL, Errno::NOENT, Errno::NOTDIR]);
    let inode = |name: &str| fs::symlink_metadata(scratch.dst().join(name)).expect("there").ino();
    assert_eq!(inode("l"), inode("n"), "the link has two names, and what it leads to has one");
    scratch.outside_is_unchanged();
    // Nor do they lead to an entry that existed before, if no entry of its kind may come.
    let records = [Record::HardLink { name: b"q", first: b"old" }, END];
    for options in [
        TreeOptions { recursive: false, ..TreeOptions::default() },
        TreeOptions { symlinks: false, ..TreeOptions::default() },
    ] {
        assert_eq!(errnos(&scratch.run(options, &records).expect("whole")), [Errno::INVAL]);
    }
    scratch.outside_is_unchanged();
}

/// No sender may replace the file that another transfer is writing, or give that file another name.
#[test]
fn temporary_names_are_not_received() {
    let scratch = Scratch::new();
    let [part, whole, _] = beside(&scratch, "live");
    fs::write(&part, "another transfer's").expect("a file");
    let [part_name, whole_name] = [&part, &whole].map(|path| path.file_name().expect("a name").as_bytes().to_vec());
    let plain = link(b"x", b"y");
    let named = |name: &[u8], record: Record<'_>| {
        let mut sink = scratch.sink(TreeOptions::default());
        sink.push(0, 0, chunk(&[record])).expect("taken");
        match record {
            Record::Large { size, .. } => {
                sink.push(1, 0, Arc::new(vec![b'x'; size as usize])).expect("taken");
                sink.push(0, 0, chunk(&[closed(1, size), plain, END])).expect("taken");
            }
            Record::Directory { .. } => {
                sink.push(0, 0, chunk(&[file(b"in", b"it"), Record::Leave, plain, END])).expect("taken");
            }
            _ => sink.push(0, 0, chunk(&[plain, END])).expect("taken"),
        }
        let report = sink.finish().expect("the others arrive");
        assert_eq!((report.figures.failed, report.others), (1, 1), "{record:?}");
        assert!(report.failures[0].path.ends_with(name) && !report.failures[0].detail.is_empty(), "{record:?}");
    };
    for name in [&part_name, &whole_name] {
        named(name, file(name, b"new"));
        named(name, link(name, b"new"));
        named(name, large(name, 1, 4));
        named(name, directory(name));
        named(name, Record::Special { name, metadata: META, kind: Special::Fifo, device: (0, 0) });
    }
    let records = [Record::HardLink { name: b"another", first: &part_name }, END];
    assert_eq!(errnos(&scratch.run(TreeOptions::default(), &records).expect("whole")), [Errno::INVAL]);
    let renamed = Destination { names: Names::Only(part_name.to_vec()), ..Destination::default() };
    assert_eq!(scratch.run(renamed, &[file(b"a", b"new"), END]).expect("whole").figures.failed, 1);
    assert_eq!(names_below(&scratch.dst()).len(), 2, "the other transfer's, and the link");
    assert_eq!(fs::read(&part).expect("there"), b"another transfer's");
}

/// A copy of everything but `.ssh` must not bring `.ssh/authorized_keys`.
#[test]
fn what_a_pattern_excludes_is_not_received() {
    let records = [directory(b"home"), directory(b"a"), file(b"x", b"1"), Record::Leave, Record::Leave, END];
    let modes = [
        TreeOptions { contents: true, ..TreeOptions::default() },
        TreeOptions { sync: true, ..TreeOptions::default() },
        TreeOptions::default(),
    ];
    // Whether the pattern excludes `home/a/x`, or a directory on the way to it, in each of these modes. In the last, it
    // is not known of several SRC whether paths begin with their names. A single one is as with `sync`.
    for (pattern, excludes) in [
        ("x", [true, true, true]),
        ("a/", [true, true, true]),
        ("a/x", [true, true, true]),
        ("x/", [false, false, false]),
        ("/x", [false, false, false]),
        ("/a/x", [true, false, false]),
        ("/home/a/x", [false, true, false]),
        ("/home", [false, true, false]),
    ] {
        let rule = Rule { pattern: pattern.as_bytes().to_vec().into(), is_include: false };
        let rules = Rules(vec![rule]);
        // Without `sync`, patterns do not apply to what the user has named.
        let of_one = [excludes[0], excludes[1], excludes[1] && pattern != "/home"];
        for (mode, options) in modes.iter().enumerate() {
            for (name, names, excludes) in
                [("home", Names::Any, excludes), ("there", Names::Only(b"there".to_vec()), of_one)]
            {
                let is_excluded = excludes[mode];
                for listed in [None, Some(Listed::Part)] {
                    let scratch = Scratch::new();
                    let options = TreeOptions { rules: rules.clone(), listed, ..options.clone() };
                    let destination = Destination { names: names.clone(), ..Destination::from(options) };
                    let report = scratch.run(destination, &records).expect("a tree");
                    let is_refused = is_excluded && listed.is_none();
                    let what = format!("{pattern} {name} {listed:?}: {report:?}");
                    assert_eq!(scratch.dst().join(name).join("a/x").exists(), !is_refused, "{what}");
                    assert_eq!(report.figures.failed, u64::from(is_refused), "{what}");
                    assert!(report.failures.iter().all(|fact| fact.detail == IS_LEFT_OUT.as_bytes()), "{what}");
                }
            }
        }
    }
}

/// An entry with a critical extension of a later version fails with a message. An extension that is not critical is
/// ignored.
#[test]
fn an_unknown_critical_extension_fails_its_entry_and_no_other() {
    // Type 700, empty: with the critical flag, and without.
    let [critical, other] = [&b"\xbc\x02\x01\0\0"[..], b"\xbc\x02\0\0\0"]
        .map(|bytes| Metadata { extensions: Extensions::new(bytes), ..META });
    let scratch = Scratch::new();
    let mut sink = scratch.sink(TreeOptions::default());
    let records = [
        Record::Directory { name: b"a", metadata: critical },
        file(b"in", b"it"),
        Record::Leave,
        Record::File { name: b"b", metadata: critical, data: b"new" },
        Record::Large { name: b"c", metadata: critical, item: 1, size: 4, is_sparse: false },
        Record::Symlink { name: b"d", metadata: critical, target: b"t" },
        Record::Special { name: b"e", metadata: critical, kind: Special::Fifo, device: (0, 0) },
        Record::File { name: b"f", metadata: other, data: b"new" },
        Record::HardLink { name: b"g", first: b"b" },
    ];
    sink.push(0, 0, chunk(&records)).expect("taken");
    sink.push(1, 0, Arc::new(b"data".to_vec())).expect("taken and dropped");
    sink.push(0, 0, chunk(&[closed(1, 4), END])).expect("taken");
    let report = sink.finish().expect("the others arrive");
    let told = |fact: &IoFact| (fact.path.last().copied(), String::from_utf8_lossy(&fact.detail).into_owned());
    let mut expected: Vec<_> = b"abcde".iter().map(|&name| (Some(name), IS_UNKNOWN.to_owned())).collect();
    expected.push((Some(b'g'), FIRST_NAME_FAILED.to_owned()));
    assert_eq!(report.failures.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!((report.figures.failed, report.files), (6, 1));
    assert_eq!(names_below(&scratch.dst()), [scratch.dst().join("f")]);
}

/// It waits for an answer about any file that is compared, however small it is, and would wait for ever.
#[test]
fn who_sends_a_compared_file_that_is_not_made_is_answered() {
    const SIZE: u64 = 1 << 20;
    let scratch = Scratch::new();
    fs::write(scratch.dst().join("a"), vec![1; SIZE as usize]).expect("a file");
    let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
    let answer = {
        let answers = Arc::clone(&answers);
        Box::new(move |answer| crate::locked(&answers).push(answer))
    };
    let options = TreeOptions { sync: true, ..TreeOptions::default() };
    let mut sink = TreeSink::new(&scratch.dst(), options, answer).expect("there");
    sink.push(0, 0, chunk(&[Record::Listed { name: b"a", metadata: META, size: SIZE }])).expect("taken");
    sink.shared.wait_drained();
    let unknown = Metadata { extensions: Extensions::new(b"\xbc\x02\x01\0\0"), ..META };
    let large = Record::Large { name: b"a", metadata: unknown, item: 1, size: SIZE, is_sparse: false };
    sink.push(0, 0, chunk(&[Record::Wanted { number: 0 }, large, closed(1, 0), END])).expect("taken");
    assert_eq!(sink.finish().expect("whole").figures.failed, 1);
    let verdicts = Answer::Verdicts { first: 0, verdicts: vec![Verdict::Blocks] };
    assert_eq!(*crate::locked(&answers), [verdicts, Answer::nothing(1)]);
}

/// Temporary names beside `name`, as an attacker may have planted them.
fn beside(scratch: &Scratch, name: &str) -> [PathBuf; 3] {
    ["rd-part", "rd-link", "rd-half"].map(|ending| scratch.dst().join(name_beside(name.as_bytes(), ending)))
}

#[test]
fn what_is_planted_under_a_partial_name_is_not_written_to() {
    let plants: [fn(&Path, &Path); 4] = [
        |target, name| symlink(target, name).expect("a link"),
        |target, name| fs::hard_link(target, name).expect("a link"),
        |_, name| fs::write(name, "left by a killed transfer").expect("a file"),
        |_, name| assert!(Command::new("mkfifo").arg(name).status().expect("mkfifo").success()),
    ];
    for plant in plants {
        let scratch = Scratch::new();
        for name in ["file", "large", "link", "hard"] {
            fs::write(scratch.dst().join(name), "old").expect("a file");
            beside(&scratch, name).iter().for_each(|path| plant(&scratch.outside().join("file"), path));
        }
        let records = [
            file(b"file", b"new"),
            Record::HardLink { name: b"hard", first: b"file" },
            large(b"large", 1, 0),
            link(b"link", b"target"),
            closed(1, 0),
            END,
        ];
        let report = scratch.run(TreeOptions::default(), &records).expect("whole");
        assert_eq!(report.failures, []);
        for name in ["file", "hard"] {
            assert_eq!(fs::read(scratch.dst().join(name)).expect("readable"), b"new");
        }
        // Which planted names were in the way, and are gone, depends on the file system and on this user's rights.
        for path in ["file", "hard", "large", "link"].iter().flat_map(|name| beside(&scratch, name)) {
            let _ = fs::remove_file(path);
        }
        assert_eq!(fs::read(scratch.dst().join("large")).expect("readable"), b"");
        scratch.outside_is_unchanged();
    }
}

/// Tells a thread that the test is over, even if it ends by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_directory_that_is_exchanged_for_a_link_leads_nowhere() {
    let scratch = Scratch::new();
    let (real, other) = (scratch.dst().join("d"), scratch.0.path().join("link"));
    symlink(scratch.outside(), &other).expect("a link");
    let (is_over, exchanges) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                // The directory is not there before the end of the first round.
                let exchanged = renameat_with(CWD, &real, CWD, &other, RenameFlags::EXCHANGE);
                exchanges.fetch_add(u64::from(exchanged.is_ok()), Relaxed);
            }
        });
        let names: Vec<String> = (0..50).map(|number| format!("f{number:02}")).collect();
        let mut records = vec![directory(b"d"), file(b"file", b"ours")];
        records.push(Record::HardLink { name: b"file2", first: b"d/file" });
        records.push(Record::Directory { name: b"inner", metadata: META });
        records.extend(names.iter().map(|name| file(name.as_bytes(), b"ours")));
        records.extend([Record::Leave, link(b"s", b"t"), Record::Leave]);
        records.extend([Record::HardLink { name: b"z", first: b"d/file" }, END]);
        let (start, mut rounds, mut failed) = (Instant::now(), 0, 0);
        let is_met = |rounds: u64, failed: u64| failed > 0 && exchanges.load(Relaxed) > rounds;
        while start.elapsed().as_millis() < 500 || !is_met(rounds, failed) && start.elapsed().as_secs() < 20 {
            // Entries may fail. What counts is that none appears outside.
            let mut sink = scratch.sink_with(2, TreeOptions::default());
            sink.push(0, 0, chunk(&records)).expect("taken");
            failed += u64::from(sink.finish().expect("whole").figures.failed > 0);
            rounds += 1;
        }
        assert!(is_met(rounds, failed), "{rounds} rounds, {failed} failed, {exchanges:?} exchanges");
    });
    scratch.outside_is_unchanged();
}

#[test]
fn a_stream_with_any_byte_changed_harms_nothing() {
    let mut records = fuzz::samples();
    records.retain(|record| !matches!(record, Record::Large { .. } | Record::Closed { .. }));
    let good = chunk(&records);
    let scratch = Scratch::new();
    // A changed byte must not make device nodes with arbitrary numbers.
    let options = TreeOptions { specials: false, ..TreeOptions::default() };
    for at in 0..good.len() {
        for mask in [1, 0x80, 0xff] {
            let mut bad = good.to_vec();
            bad[at] ^= mask;
            let mut sink = scratch.sink_with(1, options.clone());
            let _ = sink.push(0, 0, Arc::new(bad)).and_then(|()| sink.finish().map(|_| ()));
        }
    }
    scratch.no_temporaries();
    scratch.outside_is_unchanged();
}

/// A file that was asked for must not become another name of a file that existed before.
#[test]
fn a_link_to_what_was_not_asked_for() {
    let scratch = Scratch::new();
    fs::write(scratch.dst().join("a"), b"1").expect("a file");
    let names = Names::Among([b"b".to_vec(), b"c".to_vec()].into());
    let options = Destination { names, ..Destination::default() };
    let records =
        [Record::File { name: b"b", metadata: META, data: b"2" }, Record::HardLink { name: b"c", first: b"a" }, END];
    let refused = scratch.run(options, &records).expect_err("not asked for");
    assert!(matches!(refused, Refused::Data(_)), "{refused}");
    assert!(!scratch.dst().join("c").exists());
}
