//! Body of the fuzz target, and the messages of its corpus.

use rd_proto::control::{IoFact, Path};
use rd_proto::handshake::LaneId;
use rd_proto::session::Counters;

use super::*;
use crate::engine::{Figures, Line};
use crate::options::{Compress, Encryption, Followed, Rule, Rules, Transport, Verify};
use crate::transport::Medium;
use crate::tree::check::{Aspect, Finding};
use crate::tree::entries::{Change, Effect, FileKind, differs};
use crate::tree::manifest;
use crate::tree::progress::Amount;
use crate::tree::proof::{Expected, TreeProof};
use crate::tree::sink::KeptState;
use crate::tree::stats::{Kinds, Stats, TreeFigures};

/// Decodes any input without a panic. A decoded message must be the same after encoding and decoding.
pub fn message(bytes: &[u8]) {
    let Ok(Some(message)) = Message::decode(bytes) else { return };
    let mut again = Vec::new();
    // A message may be longer in this encoder's form than the bytes that it was decoded from.
    if message.encode(&mut again).is_ok() {
        assert_eq!(Message::decode(&again[LENGTH_BYTES..]), Ok(Some(message)));
    }
}

/// Returns the corpus that is checked in: target, name and bytes of each seed.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let seed = |(name, message): (&'static str, Message)| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).expect("short");
        ("agent_message", name, bytes.split_off(LENGTH_BYTES))
    };
    samples().into_iter().map(seed).collect()
}

/// Returns a message of each kind, in the order of their numbers, and two of some kinds.
pub fn samples() -> Vec<(&'static str, Message)> {
    let hello = Hello {
        major: 1,
        minor: 0,
        program: "0.1.0".to_owned(),
        system: "Linux".to_owned(),
        machine: "x86_64".to_owned(),
        libc: "gnu".to_owned(),
        kernel_id: b"0123-4567".to_vec(),
        host: b"h1".to_vec(),
    };
    let found = Found {
        path: b"/a/\xff\n".to_vec(),
        name: b"-x$(y)".to_vec(),
        kind: Kind::Directory,
        size_bytes: 1 << 40,
        device: 3,
        inode: u64::MAX,
    };
    let fault = Fault::io(6, "cannot write", &IoFact { errno: 28, path: b"/x".to_vec(), detail: b"d".to_vec() });
    let options = TransferOptions {
        transport: Transport::Rdma,
        encrypt: Encryption::Never,
        compress: Compress::Zstd,
        lanes: Some(4),
        port_range: Some(7000..=7009),
        ..TransferOptions::default()
    };
    let begin = |job| Begin {
        key: SessionKey([7; 32]),
        job,
        options: options.clone(),
        caller_is_peer: true,
        peer: b"h1".to_vec(),
        waits: false,
    };
    let tree = TreeOptions {
        owner: false,
        specials: false,
        rules: Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]),
        verify: Some(Verify::Disk),
        ..TreeOptions::default()
    };
    let only = crate::tree::Only { paths: vec![b"a/b".to_vec().into()], recursive: true, is_watched: true };
    let root = Root { path: b"/from/d".to_vec().into(), name: b"d".to_vec().into(), only: Some(only) };
    let names = vec![b"d".to_vec().into()];
    let endpoint = Endpoint {
        address: vec![10, 0, 0, 1],
        port: 7000,
        prefix_bits: 24,
        rate_mbps: 100_000,
        is_via: true,
        interface: Some(1),
    };
    let waits = Waits { source: 1e-6, cpu: 2e-6, credits: 3e-6, wire: 4e-6, sink: 5e-6, limit: 6e-6 };
    let report = Report {
        fault: Some(fault.clone()),
        route: "TCP to 10.0.0.1".to_owned(),
        figures: Figures {
            counters: Counters { bytes: 9, ..Counters::default() },
            seconds: 1.5,
            waits,
            media: vec![Medium::RdmaHardware, Medium::Tcp],
            line: Line { round_trip_us: Some(81_000), buffer_bytes: 1 << 25, rails: 2 },
            ..Figures::default()
        },
        tree: TreeFigures {
            stats: Stats { found: Kinds { regular: 3, directories: 1, ..Kinds::default() }, ..Stats::default() },
            is_synced: true,
            ..TreeFigures::default()
        },
    };
    let place = Place {
        path: Vec::new(),
        directory: true,
        exact: false,
        sources: vec![found.clone()],
        same_kernel: true,
        is_generation: false,
        makes_path: false,
        listed: Vec::new(),
        one_file_system: true,
    };
    let stage = Stage {
        number: 2,
        action: Action::Tee { path: b"~/\xfe".to_vec(), append: true },
        input: Input::Hop,
        output: Output::Dropped,
        shell: vec![b"sh".to_vec().into()],
    };
    let progress = TreeProgress {
        done: Amount { entries: 812, directories: 3, bytes: 53 << 20 },
        kept_bytes: 1 << 20,
        found: Amount { entries: 3003, directories: 4, bytes: 107 << 20 },
        has_found_all: true,
        name: b"sub/file-812.dat\xff".to_vec(),
        may_send_more: true,
        work: 3 << 30,
    };
    let link = Entry::Changed(Change {
        path: b"sub/link\xff".to_vec(),
        effect: Effect::Made,
        kind: FileKind::Symlink,
        differs: Some(differs::CONTENTS | differs::TIME),
        leads_to: Some(b"../file".to_vec()),
    });
    let (effect, kind) = (Effect::Deleted, FileKind::Directory);
    let deleted = Entry::Changed(Change { path: b"sub/d".to_vec(), effect, kind, differs: None, leads_to: None });
    let check = Job::Check { directory: b"/to".to_vec(), is_cached: true };
    let differs = Finding::Differs { path: b"sub/f\xff".to_vec(), aspects: vec![Aspect::Mode, Aspect::Contents] };
    let unreadable = Finding::Unreadable { path: b"sub/d".to_vec(), errno: 13 };
    let placed =
        |as_name| Message::Placed(Placed { directory: b".".to_vec(), as_name, is_there: true, ..Placed::default() });
    let proof = TreeProof { entries: [3; 32], rights: [4; 32] };
    let expected = Some(Expected { proof, is_bound: true });
    let receive =
        Job::ReceiveTree { directory: b"/to".to_vec(), names: names.clone(), settings: tree.clone(), expected };
    let copy = Job::Copy {
        roots: vec![root.clone()],
        directory: b"/to".to_vec(),
        names: names.clone(),
        settings: tree.clone(),
    };
    vec![
        ("hello", Message::Hello(hello)),
        (
            "find",
            Message::Find {
                patterns: vec![b"*.\xfe".to_vec().into()],
                links: Followed { to_directories: true, ..Followed::default() },
            },
        ),
        ("found", Message::Found(vec![found])),
        ("found-all", Message::FoundAll),
        ("place", Message::Place(place)),
        ("placed", placed(None)),
        ("placed-name", placed(Some(b"n".to_vec()))),
        ("failed", Message::Failed(fault.clone())),
        ("begin-file", Message::Begin(Box::new(begin(Job::ReceiveFile { path: b"/to".to_vec() })))),
        ("begin-tree", Message::Begin(Box::new(begin(receive)))),
        ("begin-copy", Message::Begin(Box::new(begin(copy)))),
        ("begin-send-broadcast", Message::Begin(Box::new(begin(Job::SendBroadcast)))),
        ("begin-check", Message::Begin(Box::new(begin(check)))),
        ("listen", Message::Listen { via: b"ib0".to_vec() }),
        ("listening", Message::Listening(vec![endpoint.clone()])),
        ("dial", Message::Dial { endpoints: vec![endpoint], via: Vec::new() }),
        ("dial-tunnel", Message::DialTunnel),
        ("dialed", Message::Dialed),
        ("dial-failed", Message::DialFailed("refused".to_owned())),
        ("say", Message::Say("a line".to_owned())),
        ("progress", Message::Progress { bytes: 1 << 40, waits, tree: None }),
        ("progress-tree", Message::Progress { bytes: 1 << 40, waits: Waits::default(), tree: Some(progress) }),
        ("ended", Message::Ended(Box::new(report.clone()))),
        ("signal", Message::Signal(2)),
        ("tunnel-open", Message::TunnelOpen(1)),
        ("tunnel-data", Message::TunnelData { id: 1, bytes: vec![0; 100] }),
        ("tunnel-credit", Message::TunnelCredit { id: 1, bytes: 1 << 20 }),
        ("tunnel-close", Message::TunnelClose(1)),
        ("for-end", Message::Listen { via: Vec::new() }.for_end(5).expect("short")),
        ("stage", Message::Stage(Box::new(stage))),
        ("start-stages", Message::StartStages),
        (
            "stage-ended",
            Message::StageEnded { stage: 2, report: StageReport { signal: Some(9), ..StageReport::default() } },
        ),
        ("stage-stderr", Message::StageStderr { stage: 2, bytes: b"\xff".to_vec() }),
        ("end-stage", Message::EndStage { stage: 2, signal: 15 }),
        ("agreed", Message::Agreed),
        ("ready", Message::Ready),
        ("go", Message::Go),
        ("entries-failed", Message::EntriesFailed(vec![fault])),
        ("entries", Message::Entries(vec![link, deleted])),
        ("entries-listed", Message::Entries(manifest::fuzz::sample().into_iter().map(Entry::Listed).collect())),
        ("entries-compared", Message::Entries([differs, unreadable].map(Entry::Compared).into())),
        ("entries-taken", Message::EntriesTaken(1)),
        ("manifest", Message::Manifest(b"rdcp manifest 1\n".to_vec())),
        ("manifest-taken", Message::ManifestTaken),
        ("sources", Message::Sources(Sources { roots: vec![root.clone()], names: names.clone() })),
        ("sources-taken", Message::SourcesTaken),
        ("examine", Message::Examine),
        ("examined", Message::Examined(b"facts".to_vec())),
        ("open-probe", Message::OpenProbe { ports: Some((7000, 7009)) }),
        ("probe-opened", Message::ProbeOpened(b"targets".to_vec())),
        ("probe", Message::Probe(b"request".to_vec())),
        ("probed", Message::Probed(b"came".to_vec())),
        ("measure", Message::Measure { key: SessionKey([9; 32]), ports: Some((7000, 7009)), via: b"ib0".to_vec() }),
        ("measure-storage", Message::MeasureStorage { path: b"/srv".to_vec(), writes: true, micros: 1_000_000 }),
        ("storage", Message::Storage(Storage { micro_iops: 1_234_500_000, bytes: 1 << 20, depth: 8, direct: true })),
        (
            "begin-broadcast-source",
            Message::BeginBroadcast(Box::new(Broadcast {
                role: BroadcastRole::Source { roots: vec![root], settings: tree.clone() },
                spool_bytes: 32 << 20,
                has_next: true,
            })),
        ),
        (
            "begin-broadcast-copy",
            Message::BeginBroadcast(Box::new(Broadcast {
                role: BroadcastRole::Copy { directory: b"/to".to_vec(), names, settings: tree },
                spool_bytes: 1 << 20,
                has_next: false,
            })),
        ),
        (
            "begin-broadcast-source-stage",
            Message::BeginBroadcast(Box::new(Broadcast {
                role: BroadcastRole::SourceStage { stage: 1 },
                spool_bytes: 1 << 20,
                has_next: true,
            })),
        ),
        (
            "begin-broadcast-source-standard",
            Message::BeginBroadcast(Box::new(Broadcast {
                role: BroadcastRole::SourceStandard,
                spool_bytes: 1 << 20,
                has_next: true,
            })),
        ),
        (
            "begin-broadcast-stage",
            Message::BeginBroadcast(Box::new(Broadcast {
                role: BroadcastRole::Stage { stage: 2, disk_bytes: 1 << 40 },
                spool_bytes: 1 << 20,
                has_next: false,
            })),
        ),
        (
            "broadcast-state",
            Message::BroadcastState(BroadcastState {
                received: 1 << 40,
                written: 7,
                passed: 5,
                has_all: true,
                is_behind: true,
                tree: Some(TreeProgress {
                    done: Amount { entries: 3, ..Amount::default() },
                    name: b"d/f".to_vec(),
                    ..TreeProgress::default()
                }),
                busy_permille: 900,
            }),
        ),
        (
            "broadcast-proof",
            Message::BroadcastProof(BroadcastProof { bytes: 1 << 33, digest: [9; 32], tree: Some(proof) }),
        ),
        ("broadcast-next", Message::BroadcastNext(true)),
        ("broadcast-ended", Message::BroadcastEnded(Box::new(report))),
        ("broadcast-leave", Message::BroadcastLeave),
        (
            "watch",
            Message::Watch(Watch {
                paths: vec![b"~/photos/".to_vec().into()],
                is_one_system: true,
                only: vec![b"a/b".to_vec().into()],
                rules: Rules(vec![Rule { pattern: b"*.o".to_vec().into(), is_include: false }]),
                digest_cache: Some(b"/c".to_vec().into()),
            }),
        ),
        ("watched", Message::Watched),
        ("tell-changes", Message::TellChanges),
        ("changed", Message::Changed(Some(vec![b"a".to_vec().into(), b"a/b".to_vec().into()]))),
        ("changed-anywhere", Message::Changed(None)),
        ("other-lost", Message::OtherLost),
        ("count", Message::Count),
        (
            "kept",
            Message::Kept(Kept {
                path: b"/srv/.x.rd-part".to_vec(),
                others: 2,
                bytes: 50 << 20,
                state: KeptState::Resumed,
            }),
        ),
        ("tell-log", Message::TellLog(2)),
        (
            "log-line",
            Message::LogLine(Box::new(LogLine {
                now: 1_764_115_200_000_000,
                at: 1_764_115_199_999_000,
                level: 2,
                about: "to h2".to_owned(),
                mark: 3,
                text: "lost lane 1.0 (reset)\u{1b}[31m".to_owned(),
                dropped: 7,
            })),
        ),
        ("end-when-done", Message::EndWhenDone),
        ("notice", Message::Notice(Notice::BackOnRdma, None)),
        (
            "notice-lane",
            Message::Notice(Notice::LaneLost(LaneId { index: 16, generation: 3 }), Some("reset".to_owned())),
        ),
        ("notice-rail", Message::Notice(Notice::RailLeft(Path::Rdma, 1), None)),
        ("still-here", Message::StillHere),
    ]
}
