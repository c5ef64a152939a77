//! Trees over a transport: the destination becomes equal to the source, or nothing of it appears.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rd_proto::control::Cause;
use rd_proto::session::Outcome;
use rd_proto::tree::RESUME_BYTES_MIN;
use rdma_pipe::engine::tree::answer;
use rdma_pipe::engine::{Event, Work};
use rdma_pipe::options::TreeOptions;
use rdma_pipe::tree::Root;
use rdma_pipe::tree::sink::{Destination, Names, TreeSink};
use rdma_pipe::tree::source::TreeSource;

use crate::Case;
use crate::fabric::Fabric;
use crate::script::{Fault, Script, wait_for};
use crate::session::{CHUNK_BYTES, Plan, RECEIVER, SENDER, Session, data};

pub const CASES: &[(&str, Case)] = &[
    ("tree_arrives", tree_arrives),
    ("tree_survives_a_lost_lane", tree_survives_a_lost_lane),
    ("tree_without_entries", tree_without_entries),
    ("large_file_goes_on", large_file_goes_on),
    ("tree_given_up_leaves_old_files", tree_given_up_leaves_old_files),
];

/// Two directories that are removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let base = std::env::var_os("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let scratch = Self(base.join(format!("conformance-tree-{}-{nth}", std::process::id())));
        for side in [scratch.source(), scratch.destination()] {
            fs::create_dir_all(side).expect("a directory");
        }
        scratch
    }

    fn source(&self) -> PathBuf {
        self.0.join("source")
    }

    fn destination(&self) -> PathBuf {
        self.0.join("destination")
    }

    fn start(&self, plan: Plan) -> Session {
        let options = TreeOptions { xattrs: false, ..TreeOptions::default() };
        let root = Root::new(self.source(), "copy");
        let source = TreeSource::new(vec![root], CHUNK_BYTES, options, Arc::default()).expect("a source");
        plan.start_with(Work::SendTree(Box::new(source)), |post| {
            let destination = Destination::new(TreeOptions::default(), Names::Only(b"copy".to_vec()));
            let sink = TreeSink::new(&self.destination(), destination, answer(post.clone()).0).expect("a sink");
            Work::ReceiveTree(Box::new(sink))
        })
    }

    #[track_caller]
    fn is_copied(&self) {
        let (source, copy) = (described(&self.source()), described(&self.destination().join("copy")));
        assert_eq!(source.keys().collect::<Vec<_>>(), copy.keys().collect::<Vec<_>>());
        for (path, was) in &source {
            assert!(*was == copy[path], "{} differs", path.display());
        }
        assert_eq!(fs::read_dir(self.destination()).expect("readable").count(), 1, "only the copy is left");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns every entry below a path: kind and mode, time, whether it has several names, contents or target.
fn described(top: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, bool, Vec<u8>)> {
    fn describe(path: &Path, top: &Path, all: &mut BTreeMap<PathBuf, (u32, i64, i64, bool, Vec<u8>)>) {
        let stat = fs::symlink_metadata(path).expect("an entry");
        let contents = if stat.is_file() {
            fs::read(path).expect("readable")
        } else if stat.is_symlink() {
            fs::read_link(path).expect("a link").into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        let shared = stat.is_file() && stat.nlink() > 1;
        let relative = path.strip_prefix(top).expect("below").to_owned();
        all.insert(relative, (stat.mode(), stat.mtime(), stat.mtime_nsec(), shared, contents));
        if stat.is_dir() {
            for entry in fs::read_dir(path).expect("readable") {
                describe(&entry.expect("an entry").path(), top, all);
            }
        }
    }
    let mut all = BTreeMap::new();
    describe(top, top, &mut all);
    all
}

fn plant(top: &Path) {
    for number in 0..40 {
        let directory = top.join(format!("d{}", number % 7)).join(format!("e{}", number % 3));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(format!("small-{number}")), data(number * 311)).expect("a file");
    }
    for bytes in [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 40 * CHUNK_BYTES + 17] {
        fs::write(top.join(format!("large-{bytes}")), data(bytes)).expect("a file");
    }
    let holes = File::create(top.join("holes")).expect("a file");
    holes.set_len(3 << 20).expect("a length");
    holes.write_all_at(&data(70_000), 1 << 20).expect("written");
    symlink("../nowhere", top.join("link")).expect("a link");
    fs::hard_link(top.join("d1/e1/small-1"), top.join("other-name")).expect("a name");
    fs::create_dir(top.join("empty")).expect("a directory");
    fs::set_permissions(top.join("d2"), fs::Permissions::from_mode(0o555)).expect("a mode");
}

fn tree_arrives(fabric: &Arc<dyn Fabric>) {
    let scratch = Scratch::new();
    plant(&scratch.source());
    let ended = scratch.start(Plan::new(fabric)).end();
    assert_eq!(ended.outcomes(), [&Outcome::Done; 2]);
    scratch.is_copied();
    let sent = ended.summaries[SENDER].sent_tree.as_ref().expect("a tree");
    let received = ended.summaries[RECEIVER].received_tree.as_ref().expect("a tree");
    assert_eq!((sent.figures.failed, received.figures.failed), (0, 0), "{:?}", received.failures);
    assert_eq!(sent.figures.amount.bytes, received.figures.amount.bytes);
    assert_eq!(received.files, 45);
}

fn tree_survives_a_lost_lane(fabric: &Arc<dyn Fabric>) {
    let scratch = Scratch::new();
    plant(&scratch.source());
    let mut plan = Plan::new(fabric);
    plan.script = Script::of(Fault::Lose { index: 0, chunk: 20 });
    let ended = scratch.start(plan).end();
    assert_eq!(ended.outcomes(), [&Outcome::Done; 2]);
    ended.a_lane_was_lost();
    scratch.is_copied();
}

fn tree_without_entries(fabric: &Arc<dyn Fabric>) {
    let scratch = Scratch::new();
    let ended = scratch.start(Plan::new(fabric)).end();
    assert_eq!(ended.outcomes(), [&Outcome::Done; 2]);
    scratch.is_copied();
}

/// Returns the partial file of the only entry that is being transferred.
fn partial(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.extension().is_some_and(|ending| ending == "rd-part"))
}

fn large_file_goes_on(fabric: &Arc<dyn Fabric>) {
    let scratch = Scratch::new();
    let bytes = RESUME_BYTES_MIN as usize + (33 << 20) + 5;
    fs::write(scratch.source().join("large"), data(bytes)).expect("a file");
    let mut plan = Plan::new(fabric);
    // The second half takes more than a second, so that the signal comes before the end on a busy machine too.
    plan.bwlimit = Some(40 << 20);
    let session = scratch.start(plan);
    wait_for("half", Duration::from_secs(60), || session.progress[RECEIVER].load(Ordering::Relaxed) > bytes as u64 / 2);
    let _ = session.posts[RECEIVER].send(Event::Signal(libc::SIGTERM));
    let ended = session.end();
    assert_eq!(*ended.outcomes()[RECEIVER], Outcome::Aborted(Cause::Signal(libc::SIGTERM as u8)), "too fast to stop");
    // The partial file is in the tree, which does not have its own name yet.
    let tree = partial(&scratch.destination()).expect("what was made is kept");
    let left = partial(&tree).expect("what was written is kept");

    // A flipped bit, a missing end or added bytes are found and repaired.
    let file = OpenOptions::new().read(true).write(true).open(left).expect("ours");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1000).expect("there");
    file.write_all_at(&[!byte[0]], 1000).expect("written");
    file.set_len(bytes as u64 + 4321).expect("a length");
    drop(file);
    let ended = scratch.start(Plan::new(fabric)).end();
    assert_eq!(ended.outcomes(), [&Outcome::Done; 2]);
    scratch.is_copied();
    let sent = ended.summaries[SENDER].sent_tree.as_ref().expect("a tree");
    assert_eq!(sent.figures.amount.bytes + sent.figures.kept_bytes, bytes as u64);
    // Half, except the block with the flipped byte and incomplete blocks.
    assert!(sent.figures.kept_bytes >= 16 << 20, "kept {} of {bytes}", sent.figures.kept_bytes);
    assert!(sent.figures.amount.bytes >= 16 << 20, "the block of the flipped byte was not sent");
}

fn tree_given_up_leaves_old_files(fabric: &Arc<dyn Fabric>) {
    let scratch = Scratch::new();
    fs::write(scratch.source().join("file"), data(40 << 20)).expect("a file");
    let old = scratch.destination().join("copy/file");
    fs::create_dir_all(old.parent().expect("a directory")).expect("made");
    fs::write(&old, b"old").expect("a file");
    let before = fs::metadata(&old).expect("there").ino();
    let mut plan = Plan::new(fabric);
    plan.bwlimit = Some(20 << 20);
    let session = scratch.start(plan);
    wait_for("some bytes", Duration::from_secs(30), || session.progress[SENDER].load(Ordering::Relaxed) > 1 << 20);
    let _ = session.posts[SENDER].send(Event::Signal(libc::SIGINT));
    let ended = session.end();
    assert_eq!(*ended.outcomes()[RECEIVER], Outcome::PeerAborted(Cause::Signal(libc::SIGINT as u8)));
    assert_eq!(
        (fs::metadata(&old).expect("there").ino(), fs::read(&old).expect("readable")),
        (before, b"old".to_vec())
    );
    assert_eq!(partial(old.parent().expect("a directory")), None, "too small to be gone on with");
}
