//! Examples of every command, for `--help` and the manual pages.

/// A command line, and its meaning.
pub type Example = (&'static str, &'static str);

/// Examples of `rdcp`.
pub const RDCP: &[Example] = &[
    ("rdcp -r data/ backup:/srv/", "A tree, to another host."),
    ("rdcp -v backup:'snapshots/*.zst' .", "All files of that pattern, which is expanded on the other host."),
    ("rdcp gpu1:/data/weights.bin gpu2:/data/", "Directly between two other hosts."),
    ("rdcp -J gate image.raw inner:/srv/", "Through a jump host, to one without rdma-pipe."),
    ("rdcp -r model/ 'gpu[01-64]:/models/'", "To 64 hosts, each of which passes on what it receives."),
    (
        "rdcp -r --hosts nodes --hosts-failed failed model/ /models/",
        "To the hosts in a file; run again with --hosts failed.",
    ),
];

/// Examples of `rdsend`.
pub const RDSEND: &[Example] = &[
    ("zfs send pool/data@monday | rdsend backup 7000 -", "A snapshot, with KEY in RD_KEY."),
    ("tar -c tree | rdsend --key-file key backup 7000", "A tree, with KEY in a file."),
    ("rdsend -v backup 7000 KEY image.raw", "A file; the receiver sees how large it is."),
];

/// Examples of `rdrecv`.
pub const RDRECV: &[Example] = &[
    ("rdrecv >image.raw", "Takes a free port, makes a key and prints the line to run at the sender."),
    ("rdrecv 7000 - | zfs receive pool/data", "A snapshot, with KEY in RD_KEY."),
    ("rdrecv --wait 60 7000 KEY image.raw", "A file, which appears when all of it has arrived."),
];

/// Examples of `rdpipe`.
pub const RDPIPE: &[Example] = &[
    ("rdpipe other:'sha256sum' <image.raw", "The checksum of a file here, computed on another host."),
    (
        "rdpipe fs1:'zfs send tank/data@monday' backup:'zfs receive tank/data'",
        "A snapshot from one host to another; nothing of it passes here.",
    ),
    (
        "rdpipe fs1:'< data.tar' fs2:'tee data.tar' fs3:'tar x'",
        "A file to two more hosts at the cost of one: each passes on what it gets.",
    ),
    (
        "rdpipe fs1:'zfs send tank/data@monday' 'backup[1-4]:zfs receive tank/data'",
        "To four hosts, sent once: each passes on what it gets.",
    ),
    ("rdpipe -v db:'pg_dump shop | zstd' :'> shop.zst'", "What limits, and how fast each hop was."),
];

/// Examples of `rdsh`.
pub const RDSH: &[Example] = &[
    ("tar -c data | rdsh backup tar -x -C /srv", "A tree, by tar."),
    ("rdsh -p 2222 -i key me@backup 'zcat dump.gz' >dump", "Options are ssh's."),
    ("rdsh --relay backup 'cat >dump' <dump", "Through ssh's own connection, where no other is possible."),
];

/// Examples of `rdperf`.
pub const RDPERF: &[Example] = &[
    ("rdperf gpu2", "Latency and bandwidth to another host, which ssh reaches."),
    ("rdperf serve", "Takes a free port and prints the line to run at the other host."),
    ("rdperf --all --plot sweep.svg gpu2", "All message lengths, drawn."),
    ("rdperf --poll --qp 8 --bidirectional gpu2 bw", "Eight queue pairs, both ways, without sleeping."),
    ("rdperf qps gpu2 --json=qps.json", "Throughput against the number of queue pairs."),
    ("rdperf rails gpu2", "Each network to gpu2 by itself, and all at once."),
    ("rdperf model --clients 64", "How many queue pairs 64 clients may use."),
    ("rdperf --plot both.svg --compare monday.json --compare friday.json", "Two reports of --json over each other."),
    ("rdperf limits gpu2:/data --source /srv/weights.bin", "What limits a copy to that directory."),
];

/// Examples of `rddoctor`.
pub const RDDOCTOR: &[Example] = &[
    ("rddoctor", "This host."),
    ("rddoctor gpu7", "This host, gpu7, and the way between them, with two seconds of traffic."),
    ("rddoctor --fix-script gpu7 >fix.sh", "The fixes, to be read and then run as root on both hosts."),
    ("rddoctor --seconds 0 --json gpu7", "For a program, and without traffic."),
    ("rddoctor --drill gpu7", "Whether what goes wrong is noticed and survived."),
    ("rddoctor 'gpu[01-64]'", "All of them, and which hosts and pairs of them are slow."),
];

/// Examples of `rdma-pipe-agent`.
pub const AGENT: &[Example] =
    &[("rdcp --agent /opt/rdma-pipe/bin/rdma-pipe-agent image.raw backup:", "How it is used.")];

/// Returns the text at the end of a command's `--help`.
pub(crate) fn help(examples: &[Example], exit_codes: &str) -> String {
    let examples = examples.iter().map(|(line, meaning)| format!("  {line}\n      {meaning}\n"));
    format!("Examples:\n{}\n{exit_codes}", examples.collect::<String>())
}
