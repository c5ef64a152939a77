//! Trees that one host has given to another, compared with the source's proof of its own tree.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use rd_proto::tree::{Answer, Extensions, Time, Verdict, Xattrs};

use super::*;
use crate::fs::direct::Tally;
use crate::tree::entries::EntryStream;
use crate::tree::sink::{Destination, Names, Refused, Report, TreeSink};
use crate::tree::source::{Next, TreeSource};
use crate::tree::sync_tests::{Maker, copy, picture, scratch};
use crate::tree::{Root, local, packed};

const PART_BYTES: usize = 1 << 20;

/// Returns the source's proof of a tree.
fn proof(from: &[&Path]) -> TreeProof {
    let roots: Vec<Root> = from.iter().enumerate().map(|(number, at)| Root::new(at, format!("root{number}"))).collect();
    let options = TreeOptions::default();
    let mut summing = Summing::new(roots.len(), &options);
    let source = TreeSource::new(roots, packed::PART_BYTES, options, Arc::default()).expect("a source");
    packed::pack(&source.unanswered(), &Tally::default(), |packet| {
        packet.part.into_iter().for_each(|(item, position, data)| summing.take(item, position, data));
        true
    })
    .expect("threads");
    summing.finish().expect("it can be told")
}

/// Lets one host give the tree to another, which knows what to expect.
fn give(from: &[&Path], to: &Path, options: TreeOptions, expected: Expected) -> Result<Report, Refused> {
    let roots: Vec<Root> = from.iter().enumerate().map(|(number, at)| Root::new(at, format!("root{number}"))).collect();
    let (directory, names) = match &from {
        [_] => (to.parent().expect("one"), Names::Only(to.file_name().expect("one").as_encoded_bytes().to_vec())),
        _ => (to, Names::Among(roots.iter().map(|root| root.name.to_vec()).collect())),
    };
    let source = Arc::new(TreeSource::new(roots, PART_BYTES, options.clone(), Arc::default()).expect("a source"));
    let destination = Destination { options, names, expected: Some(expected), ..Destination::default() };
    let mut sink = TreeSink::new(directory, destination, local::answer(&source)).expect("a sink");
    let stream = Arc::new_cyclic(|stream: &Weak<EntryStream>| {
        let stream = Weak::clone(stream);
        EntryStream::new(Box::new(move |_| stream.upgrade().expect("in use").taken(1)))
    });
    sink.list_to(&stream);
    let mut target = vec![0; PART_BYTES];
    loop {
        let part = match source.next(&mut target, PART_BYTES, &Tally::default()) {
            Next::Part(part) => part,
            Next::Cold(range, cold) => {
                let outcome = rustix::io::pread(&cold.file, cold.hole(&mut target), cold.hole_offset());
                source.note_arrival();
                source.settle(&range, &cold, outcome, &mut target, &Tally::default()).expect("read")
            }
            Next::Ended => break,
            other => panic!("{other:?}"),
        };
        sink.push(part.item, part.position, Arc::new(target[..part.length].to_vec()))?;
    }
    sink.finish()
}

fn encoded(records: &[Record<'_>]) -> Arc<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        let at = bytes.len();
        bytes.resize(at + record.encoded_bytes(), 0);
        record.encode(&mut bytes[at..]).expect("as long as it says");
    }
    Arc::new(bytes)
}

fn bound(proof: TreeProof) -> Expected {
    Expected { proof, is_bound: true }
}

fn random_tree(at: &Path, maker: &mut Maker) {
    fs::create_dir(at).expect("a directory");
    for name in 0..10 {
        maker.make(&at.join(format!("n{name}")), 3);
    }
    let mut data = vec![0; 3 << 20];
    maker.fill(&mut data);
    fs::write(at.join("large"), &data).expect("a file");
    fs::write(at.join("other"), &data[..1 << 20]).expect("a file");
    fs::hard_link(at.join("large"), at.join("n-link")).expect("a link");
    let holes = File::create(at.join("holes")).expect("a file");
    holes.set_len(5 << 20).expect("longer");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"in it", 2_000_000).expect("written");
}

#[test]
fn a_tree_is_the_same_wherever_it_lies() {
    for seed in 0..12 {
        let scratch = scratch();
        let [from, giver, fresh, old] = ["from", "giver", "fresh", "old"].map(|name| scratch.path().join(name));
        let mut maker = Maker(seed);
        random_tree(&from, &mut maker);
        copy(&from, &old, &TreeOptions::default(), false);
        maker.change(&from);
        let said = proof(&[&from]);
        copy(&from, &giver, &TreeOptions::default(), false);
        assert_eq!(proof(&[&giver]), said, "seed {seed}");
        let report = give(&[&giver], &fresh, TreeOptions::default(), bound(said)).expect("the same");
        assert_eq!((report.figures.failed, report.figures.is_other), (0, false), "seed {seed}");
        assert_eq!(picture(&fresh), picture(&from), "seed {seed}");
        // Over an older copy, so that only differences are sent.
        let compares = TreeOptions { compares: true, ..TreeOptions::default() };
        match give(&[&giver], &old, compares, bound(said)) {
            // A directory in the place of a file stays, and the file fails, which is nobody's forgery.
            Ok(report) => {
                assert!(!report.figures.is_other, "seed {seed}");
                assert!(report.figures.failed == 0 || picture(&old) != picture(&from), "seed {seed}");
            }
            // What fails with a directory may not have been sent, so it cannot be compared.
            Err(refused) => {
                assert_eq!((refused, picture(&old) == picture(&from)), (Refused::Forged, false), "seed {seed}")
            }
        }
    }
}

#[test]
fn several_roots_and_single_files_are_proven() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    let mut maker = Maker(3);
    fs::create_dir(at("to")).expect("a directory");
    random_tree(&at("a"), &mut maker);
    fs::write(at("b"), b"a file").expect("a file");
    let roots = [at("a"), at("b")];
    let roots: Vec<&Path> = roots.iter().map(|root| &**root).collect();
    let said = proof(&roots);
    give(&roots, &at("to"), TreeOptions::default(), bound(said)).expect("the same");
    assert_eq!(picture(&at("to/root0")), picture(&at("a")));
    for bytes in [0, 9, 3 << 20] {
        let mut data = vec![0; bytes];
        maker.fill(&mut data);
        fs::write(at("file"), &data).expect("a file");
        let said = proof(&[&at("file")]);
        give(&[&at("file")], &at("copied"), TreeOptions::default(), bound(said)).expect("the same");
        assert!(fs::read(at("copied")).expect("there") == data);
        fs::remove_file(at("copied")).expect("there");
        data.push(7);
        fs::write(at("file"), &data).expect("a file");
        let refused = give(&[&at("file")], &at("copied"), TreeOptions::default(), bound(said)).map(drop);
        assert_eq!((refused, at("copied").exists()), (Err(Refused::Forged), false), "{bytes}");
    }
}

/// Whatever a giver changes in its tree, no other host publishes it. Only the source's own tree may be another.
#[test]
fn what_a_giver_has_changed_is_refused() {
    type Change = fn(&Path);
    /// Changes a file without a trace in its metadata.
    fn change(at: &Path, how: impl FnOnce(&Path)) {
        let modified = fs::metadata(at).and_then(|found| found.modified()).expect("a time");
        how(at);
        File::options().append(true).open(at).and_then(|file| file.set_modified(modified)).expect("ours");
    }
    fn keeps_time(at: &Path, how: impl FnOnce()) {
        let modified = fs::metadata(at).and_then(|found| found.modified()).expect("a time");
        how();
        File::open(at).and_then(|file| file.set_modified(modified)).expect("ours");
    }
    fn with_byte(at: &Path, position: usize) {
        let mut data = fs::read(at).expect("there");
        data[position] ^= 1;
        fs::write(at, data).expect("ours");
    }
    let changes: [(&str, Change); 9] = [
        ("a byte of a large file", |at| change(&at.join("large"), |large| with_byte(large, 2 << 20))),
        ("a byte of a small file", |at| change(&at.join("d/small"), |small| with_byte(small, 0))),
        ("a file more", |at| keeps_time(&at.join("d"), || fs::write(at.join("d/more"), b"").expect("ours"))),
        ("a file less", |at| keeps_time(&at.join("d"), || fs::remove_file(at.join("d/small")).expect("there"))),
        ("a mode", |at| fs::set_permissions(at.join("d/small"), fs::Permissions::from_mode(0o4755)).expect("ours")),
        ("a time", |at| fs::write(at.join("d/small"), b"small").expect("ours")),
        ("a target", |at| {
            keeps_time(&at.join("d"), || {
                fs::remove_file(at.join("d/link")).expect("there");
                symlink("/etc/passwd", at.join("d/link")).expect("a link");
            });
        }),
        ("two names", |at| {
            keeps_time(at, || {
                fs::rename(at.join("one"), at.join("x")).expect("there");
                fs::rename(at.join("two"), at.join("one")).expect("there");
                fs::rename(at.join("x"), at.join("two")).expect("there");
            });
        }),
        ("a directory", |at| keeps_time(at, || fs::create_dir(at.join("z")).expect("ours"))),
    ];
    for (what, tamper) in changes {
        let scratch = scratch();
        let [from, giver, to] = ["from", "giver", "to"].map(|name| scratch.path().join(name));
        random_tree(&from, &mut Maker(1));
        fs::create_dir(from.join("d")).expect("a directory");
        fs::write(from.join("d/small"), b"small").expect("a file");
        symlink("small", from.join("d/link")).expect("a link");
        // Same size, same time, different contents.
        for (name, data) in [("one", b"1"), ("two", b"2")] {
            fs::write(from.join(name), data).expect("a file");
            let file = File::options().append(true).open(from.join(name)).expect("ours");
            file.set_modified(std::time::UNIX_EPOCH).expect("ours");
        }
        copy(&from, &giver, &TreeOptions::default(), false);
        let said = proof(&[&from]);
        tamper(&giver);
        let refused = give(&[&giver], &to, TreeOptions::default(), bound(said));
        assert_eq!((refused.map(drop), to.exists()), (Err(Refused::Forged), false), "{what}");
        let names: Vec<_> = fs::read_dir(scratch.path()).expect("there").collect();
        assert_eq!(names.len(), 2, "{what}: nothing of it stays: {names:?}");
        let report = give(&[&giver], &to, TreeOptions::default(), Expected { proof: said, is_bound: false });
        assert!(report.expect("what it is now").figures.is_other, "{what}");
        assert!(to.exists());
    }
}

/// Memory does not grow with the tree: a sum of two kibibytes, and the names of the directories above an entry.
#[test]
fn the_order_of_files_does_not_matter_and_their_paths_do() {
    let sum = |files: &[(&str, u8)]| {
        let contents = Contents::default();
        for (path, digest) in files {
            contents.add(path.as_bytes(), 1, &[*digest; 32]);
        }
        Outline::new(&TreeOptions::default()).finish(&contents)
    };
    assert_eq!(sum(&[("a", 1), ("b", 2), ("c", 3)]), sum(&[("c", 3), ("a", 1), ("b", 2)]));
    assert_ne!(sum(&[("a", 1), ("b", 2)]), sum(&[("a", 2), ("b", 1)]));
    assert_ne!(sum(&[("a", 1)]), sum(&[("a", 1), ("a", 1)]));
}

/// Users and groups have other numbers on other hosts, so their entries may also be in another order.
#[test]
fn acls_are_compared_by_names() {
    let proof = |ids: [u32; 2], permissions: u8, names: Option<[&[u8]; 2]>| {
        let [one, other] = ids.map(u32::to_le_bytes);
        let acl = [&[2, 0, 0, 0, 2, 0, permissions, 0][..], &one, &[2, 0, 4, 0], &other].concat();
        let (mut xattrs, mut pushed, mut extensions) = (Vec::new(), Vec::new(), Vec::new());
        assert!(Xattrs::push(&mut xattrs, ACLS[0], &acl));
        for (id, name) in std::iter::zip(ids, names.unwrap_or_default()) {
            assert!(name.is_empty() || AclNames::push(&mut pushed, AclNames::USER, id, name));
        }
        if names.is_some() {
            assert!(Extensions::push(&mut extensions, Extension::AclNames(AclNames::new(&pushed)), false));
        }
        let (xattrs, extensions) = (Xattrs::new(&xattrs), Extensions::new(&extensions));
        let mut outline = Outline::new(&TreeOptions::default());
        outline.take(&Record::Directory { name: b"d", metadata: Metadata { xattrs, extensions, ..Metadata::ZERO } });
        outline.finish(&Contents::default()).entries
    };
    let said = proof([1001, 1002], 4, Some([b"alice", b"bob"]));
    for ids in [[1001, 1002], [7, 1001]] {
        assert_eq!(proof(ids, 4, Some([b"alice", b"bob"])), said);
        assert_eq!(proof(ids, 4, Some([b"bob", b"alice"])), said, "the other way round");
        assert_ne!(proof(ids, 4, Some([b"alice", b"carol"])), said);
        assert_ne!(proof(ids, 4, Some([b"alice", b""])), said);
        assert_ne!(proof(ids, 6, Some([b"alice", b"bob"])), said);
        assert_ne!(proof(ids, 4, None), said);
    }
    // The receiver takes no name for 0, which would make root of the user.
    assert_ne!(proof([0, 1002], 4, Some([b"alice", b"bob"])), said);
    assert_eq!(proof([0, 7], 4, Some([b"alice", b"bob"])), proof([0, 8], 4, Some([b"", b"bob"])));
    // What has no name is compared by its number.
    assert_ne!(proof([1, 2], 4, Some([b"", b"bob"])), proof([3, 4], 4, Some([b"", b"bob"])));
    assert_eq!(proof([1, 2], 4, Some([b"", b"bob"])), proof([1, 4], 4, Some([b"", b"bob"])));
    assert_ne!(proof([1, 2], 4, None), proof([3, 4], 4, None));
}

/// With numbers, or for root, the receiver does not heed the name of an owner.
#[test]
fn owners_are_compared_by_names_where_these_count() {
    let [by_name, by_number] = [false, true].map(|numeric_ids| TreeOptions { numeric_ids, ..TreeOptions::default() });
    let proof = |options: &TreeOptions, (uid, user): (u32, &[u8]), (gid, group): (u32, &[u8])| {
        let mut extensions = Vec::new();
        for (name, extension) in [(user, Extension::User(user)), (group, Extension::Group(group))] {
            assert!(name.is_empty() || Extensions::push(&mut extensions, extension, false));
        }
        let metadata = Metadata { uid, gid, extensions: Extensions::new(&extensions), ..Metadata::ZERO };
        let mut outline = Outline::new(options);
        outline.take(&Record::Directory { name: b"d", metadata });
        outline.finish(&Contents::default()).rights
    };
    let said = proof(&by_name, (1001, b"alice"), (100, b"staff"));
    assert_eq!(proof(&by_name, (7, b"alice"), (8, b"staff")), said);
    assert_ne!(proof(&by_name, (0, b"alice"), (100, b"staff")), said);
    assert_ne!(proof(&by_name, (1001, b"alice"), (0, b"staff")), said);
    assert_eq!(proof(&by_name, (0, b"alice"), (0, b"staff")), proof(&by_name, (0, b""), (0, b"")));
    // A number may have the bytes of a name.
    let aaaa = u32::from_le_bytes(*b"aaaa");
    let said = proof(&by_number, (aaaa, b""), (aaaa, b""));
    assert_ne!(proof(&by_number, (1001, b"aaaa"), (aaaa, b"")), said);
    assert_ne!(proof(&by_number, (aaaa, b""), (1001, b"aaaa")), said);
    assert_eq!(proof(&by_number, (aaaa, b"alice"), (aaaa, b"staff")), said);
}

/// The proof covers the metadata of a listed file as they are listed.
#[test]
fn contents_come_with_the_metadata_that_were_listed() {
    let (mut attribute, listed) = (Vec::new(), Metadata { mode: 0o600, ..Metadata::ZERO });
    assert!(Xattrs::push(&mut attribute, b"user.one", b"1"));
    let later = Time { seconds: 1, nanoseconds: 0 };
    for (what, came, is_right) in [
        ("as listed", Metadata { accessed: later, ..listed }, true),
        ("a mode", Metadata { mode: 0o4777, ..listed }, false),
        ("an owner", Metadata { uid: 1, ..listed }, false),
        ("a group", Metadata { gid: 1, ..listed }, false),
        ("a time", Metadata { modified: later, ..listed }, false),
        ("an attribute", Metadata { xattrs: Xattrs::new(&attribute), ..listed }, false),
    ] {
        let (scratch, options) = (scratch(), TreeOptions { compares: true, ..TreeOptions::default() });
        let top = Record::Directory { name: b"root0", metadata: Metadata { mode: 0o700, ..Metadata::ZERO } };
        let file = |metadata| Record::File { name: b"f", metadata, data: b"1" };
        let mut summing = Summing::new(1, &options);
        summing.take(0, 0, &encoded(&[top, file(listed), Record::Leave, Record::End { failures: 0 }]));
        let expected = summing.finish().map(bound);
        let names = Names::Only(b"to".to_vec());
        let (tell, told) = mpsc::channel();
        let answer = Box::new(move |answer: Answer| tell.send(answer).expect("it is heard"));
        let destination = Destination { options, names, expected, ..Destination::default() };
        let mut sink = TreeSink::new(scratch.path(), destination, answer).expect("a sink");
        sink.push(0, 0, encoded(&[top, Record::Listed { name: b"f", metadata: listed, size: 1 }])).expect("listed");
        let next = || told.recv_timeout(Duration::from_secs(20)).ok();
        let wanted = Answer::Verdicts { first: 0, verdicts: vec![Verdict::Wanted] };
        assert!(std::iter::from_fn(next).any(|answer| answer == wanted));
        let contents = [Record::Wanted { number: 0 }, file(came), Record::Leave, Record::End { failures: 0 }];
        let taken = sink.push(0, 0, encoded(&contents)).and_then(|()| sink.finish().map(drop));
        drop(sink);
        assert_eq!(taken, if is_right { Ok(()) } else { Err(Refused::Forged) }, "{what}");
        assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), usize::from(is_right), "{what}");
    }
}

/// Whether a receiver deletes other entries does not change the proof of a tree.
#[test]
fn names_that_are_passed_over_are_nothing_of_a_tree() {
    let metadata = Metadata::ZERO;
    let link = |target| Record::Symlink { name: b"a", metadata, target };
    let fifo = Record::Special { name: b"a", metadata, kind: rd_proto::tree::Special::Fifo, device: (0, 0) };
    let all = TreeOptions::default();
    let (no_links, safe) =
        (TreeOptions { symlinks: false, ..all.clone() }, TreeOptions { safe_links: true, ..all.clone() });
    let no_specials = TreeOptions { specials: false, ..all.clone() };
    for (options, record, is_left_out) in [
        (&no_links, link(b"/"), true),
        (&no_links, fifo, false),
        (&safe, link(b"/"), true),
        (&safe, link(b"b"), false),
        (&no_specials, fifo, true),
        (&no_specials, link(b"/"), false),
        (&all, link(b"/"), false),
        (&all, fifo, false),
    ] {
        let (mut with, without) = (Outline::new(options), Outline::new(options));
        with.take(&record);
        let [with, without] = [with, without].map(|outline| outline.finish(&Contents::default()));
        assert_eq!(with == without, is_left_out, "{record:?} {options:?}");
    }
}
