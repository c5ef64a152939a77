//! Hosts of a broadcast in one process. Each is an agent, with sessions over loopback between them. The test is the
//! caller.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use flume::{Receiver, unbounded};

use super::*;
use crate::agent::Agent;
use crate::agent::end::End;
use crate::control::endpoints;
use crate::control::frames::{Begin, Job, SessionKey};
use crate::control::stages::Inlet;
use crate::options::TransferOptions;
use crate::transport::spool::SpoolStatus;
use crate::tree::proof::Expected;
use crate::tree::sync_tests::{Maker, picture, scratch};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

const SPOOL_BYTES: u64 = 4 << 20;

/// Returns a seed from the environment, or a new one, and prints it.
fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    println!("SEED={seed}");
    seed
}

/// One host, and the messages that it has sent.
struct Host {
    agent: Agent,
    said: Receiver<Message>,
    state: BroadcastState,
    proof: Option<BroadcastProof>,
    ended: Option<Report>,
    faults: Vec<Fault>,
    has_kept: bool,
    /// Messages of its ends, by the number of the end.
    ends: HashMap<u32, Vec<Message>>,
    at: PathBuf,
}

impl Host {
    fn new(at: PathBuf) -> Self {
        let (say, said) = unbounded();
        let emit: Emit = Arc::new(move |message| drop(say.send(message)));
        let agent = Agent::new(Arc::clone(&emit), emit, Arc::new(|| {}), false, false);
        let (state, ends) = (BroadcastState::default(), HashMap::new());
        Self { agent, said, state, proof: None, ended: None, faults: Vec::new(), has_kept: false, ends, at }
    }

    fn source(at: &Path, spool_bytes: u64) -> Self {
        let mut host = Self::new(at.to_owned());
        let roots = vec![Root::new(at, "tree")];
        let role = BroadcastRole::Source { roots, settings: TreeOptions::default() };
        host.agent.handle(Message::BeginBroadcast(Box::new(Broadcast { role, spool_bytes, has_next: true })));
        host
    }

    fn copy(at: PathBuf, spool_bytes: u64, has_next: bool) -> Self {
        let mut host = Self::new(at);
        let role = BroadcastRole::Copy {
            directory: host.at.as_os_str().as_encoded_bytes().to_vec(),
            names: vec![b"tree".to_vec().into()],
            settings: TreeOptions::default(),
        };
        host.agent.handle(Message::BeginBroadcast(Box::new(Broadcast { role, spool_bytes, has_next })));
        host
    }

    fn tree(&self) -> PathBuf {
        self.at.join("tree")
    }

    fn listen(&mut self) {
        for message in self.said.try_iter() {
            match message {
                Message::BroadcastState(state) => {
                    assert!(state.received >= self.state.received);
                    self.state = state;
                }
                Message::BroadcastProof(proof) => self.proof = Some(proof),
                Message::BroadcastEnded(report) => {
                    assert!(self.ended.replace(*report).is_none(), "it ends once");
                }
                Message::Kept(_) => self.has_kept = true,
                Message::EntriesFailed(faults) => self.faults.extend(faults),
                Message::ForEnd { end, message } => {
                    let message = message.decode().expect("a message").expect("known");
                    if !matches!(message, Message::Progress { .. }) {
                        self.ends.entry(end).or_default().push(message);
                    }
                }
                _ => {}
            }
        }
    }

    fn ended(&self, end: u32) -> Option<&Report> {
        self.ends.get(&end)?.iter().find_map(|message| match message {
            Message::Ended(report) => Some(&**report),
            _ => None,
        })
    }
}

fn until<T>(hosts: &mut [Host], what: &str, mut found: impl FnMut(&mut [Host]) -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        hosts.iter_mut().for_each(Host::listen);
        let proof = hosts[0].proof;
        // Passes the proof on, as the caller does.
        for host in hosts.iter_mut().skip(1) {
            if let Some(proof) = proof.filter(|_| host.proof.is_none()) {
                host.proof = Some(proof);
                host.agent.handle(Message::BroadcastProof(proof));
            }
        }
        if let Some(found) = found(hosts) {
            return found;
        }
        if Instant::now() > deadline {
            for host in hosts {
                let Host { state, proof, .. } = &host;
                let fault = |report: &Report| report.fault.clone();
                println!("{state:?} {proof:?} {:?} {:?}", host.ended.as_ref().map(fault), status(host));
                for end in host.ends.keys() {
                    println!("  end {end}: {:?}", host.ended(*end).map(fault));
                }
            }
            panic!("{what}: not within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Connects one host to another. Both ends have the number `number`.
fn hop(hosts: &mut [Host], number: u32, from: usize, to: usize, bwlimit: Option<u64>) {
    meet(hosts, number, (from, Job::SendBroadcast), (to, Job::ReceiveBroadcast), bwlimit);
}

fn meet(hosts: &mut [Host], number: u32, sender: (usize, Job), receiver: (usize, Job), bwlimit: Option<u64>) {
    let (from, to) = (sender.0, receiver.0);
    let options = TransferOptions { buffer: Some(2 << 20), reconnect: 1, bwlimit, ..TransferOptions::default() };
    for (host, job) in [receiver, sender] {
        let begin = Begin {
            key: SessionKey([number as u8; 32]),
            job,
            options: options.clone(),
            caller_is_peer: false,
            peer: b"other".to_vec(),
            waits: false,
        };
        tell(&mut hosts[host], number, &Message::Begin(Box::new(begin)));
    }
    tell(&mut hosts[to], number, &Message::Listen { via: Vec::new() });
    let port = until(hosts, "listening", |hosts| {
        hosts[to].ends.get(&number)?.iter().find_map(|message| match message {
            Message::Listening(endpoints) => Some(endpoints.first()?.port),
            _ => None,
        })
    });
    let endpoints = endpoints::loopback(port).to_vec();
    tell(&mut hosts[from], number, &Message::Dial { endpoints, via: Vec::new() });
}

fn status(host: &Host) -> SpoolStatus {
    host.agent.node.as_ref().expect("a node").spool(false).expect("it").status()
}

fn tell(host: &mut Host, end: u32, message: &Message) {
    host.agent.handle(message.for_end(end).expect("short"));
}

fn all_ended(hosts: &mut [Host]) {
    until(hosts, "all end", |hosts| hosts.iter().all(|host| host.ended.is_some()).then_some(()));
}

fn is_right(host: &Host, source: &Path) {
    let report = host.ended.as_ref().expect("it has ended");
    assert_eq!((&report.fault, report.tree.failed, &host.faults[..]), (&None, 0, &[][..]), "{}", host.at.display());
    assert!(picture(&host.tree()) == picture(source), "{}", host.at.display());
}

/// Makes a tree with files of all kinds, and additional files with the lengths in `large`.
fn random_tree(at: &Path, seed: u64, entries: u64, large: &[usize]) {
    let mut maker = Maker(seed);
    fs::create_dir(at).expect("a directory");
    for name in 0..entries {
        maker.make(&at.join(format!("n{name}")), 3);
    }
    for (name, &bytes) in large.iter().enumerate() {
        fs::write(at.join(format!("large{name}")), noise(&mut maker, bytes)).expect("a file");
    }
}

fn noise(maker: &mut Maker, bytes: usize) -> Vec<u8> {
    let mut state = maker.below(u64::MAX) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut all: Vec<u8> = std::iter::repeat_with(next).take(bytes.div_ceil(8)).flatten().collect();
    all.truncate(bytes);
    all
}

#[test]
fn random_trees_come_to_all_hosts_of_a_chain() {
    let seed = seed();
    for case in 0..6 {
        let scratch = scratch();
        let from = scratch.path().join("from");
        random_tree(&from, seed.wrapping_add(case), 20, &[5 << 20, (3 << 20) + 5]);
        let mut hosts = vec![Host::source(&from, SPOOL_BYTES)];
        hosts.extend((1..4).map(|at| Host::copy(scratch.path().join(format!("h{at}")), SPOOL_BYTES, at < 3)));
        (0..3).for_each(|at| hop(&mut hosts, at as u32 + 1, at, at + 1, None));
        all_ended(&mut hosts);
        hosts[1..].iter().for_each(|host| is_right(host, &from));
        let proof = hosts[0].proof.expect("the source has said what its stream was");
        until(&mut hosts, "everything is passed on", |hosts| {
            hosts[..3].iter().all(|host| host.state.passed == proof.bytes && host.state.has_all).then_some(())
        });
        for number in 1..4 {
            let hop = until(&mut hosts, "the hops end", |hosts| hosts[number as usize].ended(number).cloned());
            assert_eq!((hop.fault, hop.figures.counters.bytes), (None, proof.bytes), "sent once");
        }
    }
}

#[test]
fn a_file_that_a_copy_could_resume_is_sent_without_asking() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 3, &[70 << 20]);
    let begun = || vec![Host::source(&from, SPOOL_BYTES), Host::copy(scratch.path().join("h1"), SPOOL_BYTES, false)];
    let mut hosts = begun();
    hop(&mut hosts, 1, 0, 1, Some(30 << 20));
    until(&mut hosts, "some", |hosts| (hosts[1].state.written > 20 << 20).then_some(()));
    hosts[1].agent.handle(Message::BroadcastLeave);
    until(&mut hosts, "it leaves", |hosts| hosts[1].ended.is_some().then_some(()));
    assert!(hosts[1].has_kept, "an ordinary copy can go on with it");
    // The whole file is sent again, over the data that is there.
    let mut hosts = begun();
    hop(&mut hosts, 1, 0, 1, None);
    all_ended(&mut hosts);
    is_right(&hosts[1], &from);
}

#[test]
fn nobody_but_the_source_makes_its_stream() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 3, &[]);
    // The whole stream fits into the spool.
    let mut hosts = vec![Host::source(&from, 64 << 20)];
    let begin = Begin {
        key: SessionKey([1; 32]),
        job: Job::ReceiveBroadcast,
        options: TransferOptions::default(),
        caller_is_peer: false,
        peer: Vec::new(),
        waits: false,
    };
    tell(&mut hosts[0], 1, &Message::Begin(Box::new(begin)));
    let report = until(&mut hosts, "it is refused", |hosts| hosts[0].ended(1).cloned());
    assert_eq!(report.fault.map(|fault| fault.exit), Some(Exit::Protocol.code()));
    all_ended(&mut hosts);
}

#[test]
fn a_host_that_dies_is_passed_over() {
    let seed = seed();
    for case in 0..5 {
        let (scratch, mut maker) = (scratch(), Maker(seed.wrapping_add(case)));
        let from = scratch.path().join("from");
        random_tree(&from, maker.0, 10, &[24 << 20]);
        let mut hosts = vec![Host::source(&from, SPOOL_BYTES)];
        hosts.extend((1..5).map(|at| Host::copy(scratch.path().join(format!("h{at}")), SPOOL_BYTES, at < 4)));
        for at in 0..4 {
            hop(&mut hosts, at as u32 + 1, at, at + 1, (at == 0).then_some(80 << 20));
        }
        println!("case {case}");
        // Kills one node or two neighbouring nodes in the middle of the chain, at a random moment.
        let (first, count) = (1 + maker.below(2) as usize, 1 + maker.below(2) as usize);
        let moment = maker.below(23 << 20);
        until(&mut hosts, "a moment", |hosts| (hosts[first].state.received >= moment).then_some(()));
        hosts[first..first + count].iter_mut().for_each(|dead| dead.agent.stop(libc::SIGKILL as u8));
        let (before, behind) = (first - 1, first + count);
        let number = 10;
        // If two neighbours die at once, the node behind them may have had more than the node before them keeps.
        let (sent, received) = until(&mut hosts, "the old hop ends", |hosts| {
            let ended = hosts[behind].ended(behind as u32).is_some();
            ended.then(|| (status(&hosts[before]), status(&hosts[behind])))
        });
        let is_complete = received.has_all;
        assert!(sent.received >= received.received);
        if !is_complete {
            hop(&mut hosts, number, before, behind, None);
        }
        let is_refused = |host: &Host| host.ended(number).is_some_and(|hop| hop.fault.is_some());
        until(&mut hosts, "all end", |hosts| {
            (is_refused(&hosts[before]) || hosts.iter().all(|host| host.ended.is_some())).then_some(())
        });
        if let Some(fault) = hosts[before].ended(number).and_then(|hop| hop.fault.clone()) {
            assert!(count == 2 && fault.is_not_kept(), "case {case}: {fault:?}");
            continue;
        }
        hosts[behind..].iter().for_each(|host| is_right(host, &from));
        let proof = hosts[0].proof.expect("a proof");
        if !is_complete {
            let hop = until(&mut hosts, "the new hop ends", |hosts| hosts[behind].ended(number).cloned());
            assert_eq!(
                (hop.fault, hop.figures.counters.bytes),
                (None, proof.bytes - received.received),
                "case {case}: sent once"
            );
        }
        // The other nodes have received everything over the hops that they had before.
        for at in behind + 1..5 {
            let hop = until(&mut hosts, "the hops end", |hosts| hosts[at].ended(at as u32).cloned());
            assert_eq!((hop.fault, hop.figures.counters.bytes), (None, proof.bytes), "case {case}");
        }
    }
}

#[test]
fn what_is_not_kept_is_told_apart() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 3, &[12 << 20]);
    let mut hosts = vec![Host::source(&from, 1 << 20)];
    hosts.extend((1..3).map(|at| Host::copy(scratch.path().join(format!("h{at}")), 1 << 20, false)));
    hop(&mut hosts, 1, 0, 1, None);
    until(&mut hosts, "the first has all", |hosts| hosts[1].ended.is_some().then_some(()));
    is_right(&hosts[1], &from);
    hop(&mut hosts, 2, 0, 2, None);
    let [ours, theirs] = [0, 2].map(|at| {
        let report = until(&mut hosts, "it is refused", |hosts| hosts[at].ended(2).cloned());
        report.fault.expect("it is refused")
    });
    assert!(ours.is_not_kept() && ours.exit == Exit::Source.code(), "{ours:?}");
    assert!(!theirs.own && !theirs.is_not_kept(), "{theirs:?}");
}

/// A hop that its other end was told to end is no reason to think that the caller is out of reach.
#[test]
fn a_hop_that_was_stopped_is_no_lost_link() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 3, &[24 << 20]);
    let mut hosts = vec![Host::source(&from, SPOOL_BYTES), Host::copy(scratch.path().join("h1"), SPOOL_BYTES, false)];
    hop(&mut hosts, 1, 0, 1, Some(4 << 20));
    until(&mut hosts, "some", |hosts| (hosts[1].state.received > 0).then_some(()));
    tell(&mut hosts[0], 1, &Message::Signal(libc::SIGTERM as u8));
    let hop = until(&mut hosts, "the hop ends", |hosts| hosts[1].ended(1).cloned());
    assert_eq!(hop.fault.map(|fault| (fault.exit, fault.own)), Some((Exit::LinkLost.code(), false)));
    let is_over = |host: &Host| !host.agent.ends.values().any(End::is_busy);
    until(&mut hosts, "the end is over", |hosts| is_over(&hosts[1]).then_some(()));
    assert_eq!(hosts[1].agent.silence_max(), None);
}

#[test]
fn a_tree_that_is_to_leave_holds_nobody() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 10, &[24 << 20]);
    let mut hosts = vec![Host::source(&from, SPOOL_BYTES)];
    hosts.extend((1..4).map(|at| Host::copy(scratch.path().join(format!("h{at}")), SPOOL_BYTES, at < 3)));
    (0..3).for_each(|at| hop(&mut hosts, at as u32 + 1, at, at + 1, (at == 0).then_some(60 << 20)));
    until(&mut hosts, "some", |hosts| (hosts[1].state.received > 5 << 20).then_some(()));
    hosts[1].agent.handle(Message::BroadcastLeave);
    all_ended(&mut hosts);
    let fault = hosts[1].ended.as_ref().and_then(|report| report.fault.clone()).expect("it has left");
    assert_eq!(fault.exit, Exit::Partial.code(), "{fault:?}");
    assert!(hosts[1].state.is_behind && !hosts[1].tree().exists());
    hosts[2..].iter().for_each(|host| is_right(host, &from));
}

#[test]
fn a_host_that_changes_a_byte_is_found_out_by_all_behind_it() {
    let seed = seed();
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed, 6, &[2 << 20]);
    let options = || TreeOptions::default();
    let source = TreeSource::new(vec![Root::new(&from, "tree")], packed::PART_BYTES, options(), Arc::default());
    let mut stream = Vec::new();
    packed::pack(&source.expect("a source").unanswered(), &Tally::default(), |packet| {
        stream.extend_from_slice(packet.bytes);
        true
    })
    .expect("packed");
    let digest = *blake3::hash(&stream).as_bytes();
    let proof = BroadcastProof { bytes: stream.len() as u64, digest, tree: None };
    let mut maker = Maker(seed);
    for case in 0..12 {
        let mut forged = stream.clone();
        let at = maker.below(if case < 6 { 2000 } else { forged.len() as u64 }) as usize;
        match case {
            0 => {}
            1 => forged.truncate(at),
            2 => forged.extend_from_slice(b"more"),
            _ => forged[at] ^= 1 << maker.below(8),
        }
        let middle = Host::copy(scratch.path().join(format!("m{case}")), SPOOL_BYTES, true);
        let last = Host::copy(scratch.path().join(format!("l{case}")), SPOOL_BYTES, false);
        let mut hosts = vec![middle, last];
        let spool = hosts[0].agent.node.as_ref().expect("a node").spool(true).expect("it");
        let feeding = std::thread::spawn(move || {
            let input = spool.input();
            let _ = input.append(&forged, &AtomicBool::new(false)).and_then(|()| input.end());
        });
        hop(&mut hosts, 1, 0, 1, None);
        hosts[0].proof = Some(proof);
        hosts[0].agent.handle(Message::BroadcastProof(proof));
        all_ended(&mut hosts);
        feeding.join().expect("no panic");
        for host in &hosts {
            if case == 0 {
                is_right(host, &from);
                continue;
            }
            let fault = host.ended.as_ref().and_then(|report| report.fault.clone()).expect("it is refused");
            assert_eq!(fault.exit, Exit::Integrity.code(), "case {case}, byte {at}: {fault:?}");
            assert!(!host.tree().exists(), "case {case}, byte {at}: {:?}", host.at);
        }
    }
}

#[test]
fn a_node_that_lacks_nothing_ends_well_without_its_caller() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 10, &[8 << 20]);
    let mut hosts = vec![Host::source(&from, SPOOL_BYTES)];
    hosts.extend((1..3).map(|at| Host::copy(scratch.path().join(format!("h{at}")), SPOOL_BYTES, at < 2)));
    (0..2).for_each(|at| hop(&mut hosts, at as u32 + 1, at, at + 1, (at == 1).then_some(4 << 20)));
    until(&mut hosts, "the first has all", |hosts| (hosts[1].state.has_all && hosts[1].proof.is_some()).then_some(()));
    // The second node does not have the whole stream.
    for at in [2, 1] {
        for (thread, _) in hosts[at].agent.abandon() {
            let deadline = Instant::now() + LIMIT;
            while !thread.is_finished() {
                assert!(Instant::now() < deadline, "{at} does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    all_ended(&mut hosts);
    is_right(&hosts[1], &from);
    let fault = hosts[2].ended.as_ref().and_then(|report| report.fault.clone()).expect("it is given up");
    assert_eq!(fault.exit, Exit::Signal(libc::SIGHUP as u8).code());
    assert!(!hosts[2].tree().exists());
}

#[test]
fn a_destination_that_cannot_be_written_holds_nobody() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 5, &[12 << 20]);
    fs::write(scratch.path().join("file"), "in the way").expect("a file");
    let mut hosts = vec![Host::source(&from, SPOOL_BYTES)];
    hosts.push(Host::copy(scratch.path().join("file/h1"), SPOOL_BYTES, true));
    hosts.push(Host::copy(scratch.path().join("h2"), SPOOL_BYTES, false));
    (0..2).for_each(|at| hop(&mut hosts, at as u32 + 1, at, at + 1, None));
    all_ended(&mut hosts);
    let fault = hosts[1].ended.as_ref().and_then(|report| report.fault.clone()).expect("it cannot be written");
    assert_eq!((fault.exit, fault.errno), (Exit::Destination.code(), libc::ENOTDIR), "{fault:?}");
    is_right(&hosts[2], &from);
}

#[test]
fn a_receiver_that_lies_about_what_it_has_ends_its_hop() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 3, &[12 << 20]);
    let mut hosts = vec![Host::source(&from, 1 << 20)];
    hosts.extend((1..3).map(|at| Host::copy(scratch.path().join(format!("h{at}")), 1 << 20, at == 1)));
    hop(&mut hosts, 1, 0, 1, Some(20 << 20));
    until(&mut hosts, "some", |hosts| (hosts[1].state.received > 0).then_some(()));
    hosts[1].agent.node.as_ref().expect("a node").spool(false).expect("it").lie(1 << 40);
    let report = until(&mut hosts, "the hop ends", |hosts| hosts[0].ended(1).cloned());
    let fault = report.fault.expect("it was no answer");
    assert_eq!((fault.exit, fault.own), (Exit::Protocol.code(), true), "{fault:?}");
    // The node itself is unharmed.
    assert!(hosts[0].ended.is_none());
}

/// A host that later gives its tree to another host can give nothing except what the source had.
#[test]
fn what_a_host_gives_later_is_proven_against_the_source() {
    let scratch = scratch();
    let from = scratch.path().join("from");
    random_tree(&from, seed(), 8, &[5 << 20]);
    let mut hosts = vec![Host::source(&from, SPOOL_BYTES), Host::copy(scratch.path().join("h1"), SPOOL_BYTES, false)];
    hop(&mut hosts, 1, 0, 1, None);
    all_ended(&mut hosts);
    let proof = hosts[0].proof.and_then(|proof| proof.tree).expect("it is told");
    for at in 2..4 {
        hosts.push(Host::new(scratch.path().join(format!("h{at}"))));
        let expected = Some(Expected { proof, is_bound: true });
        let (settings, names) = (TreeOptions::default(), vec![b"tree".to_vec().into()]);
        let roots = vec![Root::new(hosts[1].tree(), "tree")];
        let send = Job::SendTree { roots, settings: settings.clone() };
        let directory = hosts[at].at.as_os_str().as_encoded_bytes().to_vec();
        let receive = Job::ReceiveTree { directory, names, settings, expected };
        meet(&mut hosts, at as u32, (1, send), (at, receive), None);
        let report = until(&mut hosts, "it ends", |hosts| hosts[at].ended(at as u32).cloned());
        if at == 2 {
            assert_eq!(report.fault, None);
            assert!(picture(&hosts[at].tree()) == picture(&from));
        } else {
            let fault = report.fault.expect("it is refused");
            assert!(fault.is_misled() && fault.exit == Exit::Integrity.code(), "{fault:?}");
            assert!(!hosts[at].at.exists(), "nothing of it stays");
        }
        // The first host is hostile from now on.
        let large = hosts[1].tree().join("large0");
        let modified = fs::metadata(&large).and_then(|found| found.modified()).expect("there");
        let mut data = fs::read(&large).expect("there");
        data[3 << 20] ^= 1;
        fs::write(&large, data).expect("ours");
        fs::File::open(&large).and_then(|file| file.set_modified(modified)).expect("ours");
    }
}

/// How much a command has been given of its queue on disk is reported. All of that has left the spool long before.
#[test]
fn what_a_command_gets_from_its_queue_on_disk_is_progress() {
    let data = noise(&mut Maker(seed()), 4 << 20);
    let (say, said) = unbounded();
    let emit: Emit = Arc::new(move |message| drop(say.send(message)));
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let (attach, attached) = unbounded();
    let file = fs::File::from(OwnedFd::from(writer));
    assert!(attach.send(Ok(Inlet::File(file, "pipe".into()))).is_ok());
    let role = BroadcastRole::Stage { stage: 0, disk_bytes: 64 << 20 };
    let broadcast = Broadcast { role, spool_bytes: SPOOL_BYTES, has_next: false };
    let mut node = Node::begin(emit, broadcast, Some(Moves::Input(attached)));
    let input = node.spool(true).expect("it is no source").input();
    assert!(input.append(&data, &AtomicBool::new(false)).is_ok() && input.end().is_ok());
    let (bytes, digest) = (data.len() as u64, *blake3::hash(&data).as_bytes());
    node.handle(&Message::BroadcastProof(BroadcastProof { bytes, digest, tree: None }));
    let given = |state: &BroadcastState| state.tree.as_ref().map_or(0, |tree| tree.done.bytes);
    let until = |what: &str, is_so: &dyn Fn(&BroadcastState) -> bool| {
        let deadline = Instant::now() + LIMIT;
        loop {
            match said.recv_deadline(deadline).expect(what) {
                Message::BroadcastState(state) if is_so(&state) => return state,
                _ => {}
            }
        }
    };
    let state = until("all is in the queue", &|state: &BroadcastState| state.written == bytes);
    assert!(given(&state) <= 1 << 20, "a pipe holds no more: {state:?}");
    let mut read = vec![0; 2 << 20];
    reader.read_exact(&mut read).expect("there is more");
    until("a part is read", &|state: &BroadcastState| given(state) >= 2 << 20);
    reader.read_to_end(&mut read).expect("the rest");
    assert!(read == data);
    until("all is read", &|state: &BroadcastState| given(state) == bytes);
}
