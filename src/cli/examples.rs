//! Examples of every command, for `--help` and the manual pages.

/// A command line, and its meaning.
pub type Example = (&'static str, &'static str);

/// Examples of `rdcp`.
pub const RDCP: &[Example] = &[
    ("rdcp -r data/ backup:/srv/", "A tree, to another host."),
    ("rdcp -v backup:'snapshots/*.zst' .", "All files that match a pattern, expanded on the other host."),
    ("rdcp gpu1:/data/weights.bin gpu2:/data/", "Directly between two other hosts."),
    ("rdcp -J gate image.raw inner:/srv/", "Via a jump host, to a host without rdma-pipe."),
    ("rdcp -r -T model/ 'gpu[01-64]:/models/model'", "To 64 hosts, each passing the data on to the next."),
    (
        "rdcp -r -T --hosts nodes --hosts-failed failed model/ /models/model",
        "To hosts listed in a file; retry with --hosts failed.",
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
    ("rdrecv >image.raw", "Choose a free port and a key, and print the command for the sender."),
    ("rdrecv 7000 - | zfs receive pool/data", "A snapshot, with KEY in RD_KEY."),
    ("rdrecv --wait 60 7000 KEY image.raw", "A file, which appears when it is complete."),
];

/// Examples of `rdpipe`.
pub const RDPIPE: &[Example] = &[
    ("rdpipe other:'sha256sum' <image.raw", "The checksum of a file here, computed on another host."),
    (
        "rdpipe fs1:'zfs send tank/data@monday' backup:'zfs receive tank/data'",
        "A snapshot from one host to another, bypassing this one.",
    ),
    (
        "rdpipe fs1:'< data.tar' fs2:'tee data.tar' fs3:'tar x'",
        "A file to two more hosts at the cost of one: each passes the data on.",
    ),
    (
        "rdpipe fs1:'zfs send tank/data@monday' 'backup[1-4]:zfs receive tank/data'",
        "To four hosts, sent once: each passes the data on.",
    ),
    ("rdpipe -v db:'pg_dump shop | zstd' :'> shop.zst'", "Print what limits; speed of each hop."),
];

/// Examples of `rdsh`.
pub const RDSH: &[Example] = &[
    ("tar -c data | rdsh backup tar -x -C /srv", "A tree, by tar."),
    ("rdsh -p 2222 -i key me@backup 'zcat dump.gz' >dump", "Options are ssh's."),
    ("rdsh --relay backup 'cat >dump' <dump", "Through the SSH connection, if no other is possible."),
];

/// Examples of `rdperf`.
pub const RDPERF: &[Example] = &[
    ("rdperf gpu2", "Latency and bandwidth to a host that ssh reaches."),
    ("rdperf serve", "Choose a free port, and print the command for the other host."),
    ("rdperf --all --plot sweep.svg gpu2", "All message lengths as SVG."),
    ("rdperf --poll --qp 8 --bidirectional gpu2 bw", "Eight queue pairs, both ways, busy polling."),
    ("rdperf qps gpu2 --json=qps.json", "Throughput by number of queue pairs."),
    ("rdperf rails gpu2", "Each network to gpu2, then all at once."),
    ("rdperf model --clients 64", "How many queue pairs 64 clients may use."),
    ("rdperf --plot both.svg --compare monday.json --compare friday.json", "Two reports of --json in one plot."),
    ("rdperf limits gpu2:/data --source /srv/weights.bin", "What limits a copy to that directory."),
];

/// Examples of `rddoctor`.
pub const RDDOCTOR: &[Example] = &[
    ("rddoctor", "This host."),
    ("rddoctor gpu7", "This host, gpu7 and the path between them, with 2 seconds of traffic."),
    ("rddoctor --fix-script gpu7 >fix.sh", "The fixes, to review and then run as root on both hosts."),
    ("rddoctor --seconds 0 --json gpu7", "JSON for programs, without traffic."),
    ("rddoctor --drill gpu7", "Whether faults are detected and survived."),
    ("rddoctor 'gpu[01-64]'", "All of them, and which hosts and pairs are slow."),
];

/// Examples of `rdma-pipe-agent`.
pub const AGENT: &[Example] =
    &[("rdcp --agent /opt/rdma-pipe/bin/rdma-pipe-agent image.raw backup:", "How it is used.")];

/// Returns the text at the end of a command's `--help`.
pub(crate) fn help(examples: &[Example], exit_codes: &str) -> String {
    let examples = examples.iter().map(|(line, meaning)| format!("  {line}\n      {meaning}\n"));
    format!("Examples:\n{}\n{exit_codes}", examples.collect::<String>())
}
