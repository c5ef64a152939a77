//! Direct I/O that can be tested only as root, for which reason `tests/run` runs these tests: files too large for the
//! page cache, on the disk that the tests are built on, and a file system that does not report what it has cached. A
//! file is too large if it exceeds a share of the kernel's available memory. Here the kernel reports so little, in a
//! mount namespace of the process under test, that a few MiB are too much.

#![allow(unsafe_code, reason = "a filter of system calls is set between fork and exec")]

mod rig;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use rig::lab::Lab;
use rig::*;

/// Available memory that /proc/meminfo is made to report. The cache gets an eighth of it.
const AVAILABLE_KIB: u64 = 8 << 10;

const SHARE: u64 = AVAILABLE_KIB * 1024 / 8;

/// Size of a page. Less than a page cannot be written past the cache.
const PAGE: u64 = 4096;

/// Wraps the command in a mount namespace with little memory, in which `before` runs first.
fn with_little_memory(scratch: &Scratch, before: &str, command: &Command) -> Command {
    let told = scratch.file("meminfo", format!("MemAvailable:   {AVAILABLE_KIB} kB\n").as_bytes());
    let line = format!("mount --bind '{}' /proc/meminfo && {before} exec \"$@\"", told.display());
    let inner = in_shell(&line, command);
    let mut wrapped = Command::new("unshare");
    wrapped.arg("--mount").arg(inner.get_program()).args(inner.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.get_current_dir().map(|directory| wrapped.current_dir(directory));
    wrapped
}

/// Starts an rdrecv into `target` with little memory.
fn start_with_little_memory(scratch: &Scratch, before: &str, target: &Path) -> (Process, u16) {
    let mut command = rdrecv();
    command.args(["-v", "--json-fd=2", "0", KEY]).arg(target);
    let mut wrapped = with_little_memory(scratch, before, &command);
    let process = Process::spawn(wrapped.stdin(Stdio::null()).stdout(Stdio::piped()));
    let port = process.port();
    (process, port)
}

fn written(ended: &Ended) -> [u64; 2] {
    // rdcp prints reports of its progress before the final one.
    let line = ended.stderr.lines().rfind(|line| line.starts_with('{')).expect("a report");
    let report: serde_json::Value = serde_json::from_str(line).expect("JSON");
    ["written_direct_bytes", "written_buffered_bytes"].map(|key| report[key].as_u64().expect("a number"))
}

/// The rest of the last chunk is written directly only if it is long. Other chunks have whole pages, however many.
#[track_caller]
fn only_the_rest_is_buffered(direct: u64, buffered: u64, length: u64) {
    assert_eq!(direct + buffered, length);
    assert!(direct.is_multiple_of(PAGE) && buffered < 64 << 10, "{length} bytes: {direct} direct, {buffered} buffered");
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_file_that_is_too_large_is_written_past_the_cache() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    for length in [SHARE, SHARE + 1, 5 << 20, (5 << 20) + 4095, (5 << 20) + 4097, (9 << 20) - 1] {
        let data = noise(length as usize);
        let source = scratch.file("source", &data);
        let (mut recv, port) = start_with_little_memory(&scratch, "", &target);
        start_send::<&str>(&[], port, Some(&source)).wait().expect(0);
        let ended = recv.wait();
        ended.expect(0);
        same(&std::fs::read(&target).expect("there"), &data);
        let [direct, buffered] = written(&ended);
        if length <= SHARE {
            assert_eq!([direct, buffered], [0, length]);
        } else {
            only_the_rest_is_buffered(direct, buffered, length);
        }
        let line = ended.stderr.lines().find(|line| line.starts_with("written: ")).expect("the line of -v");
        assert_eq!(line.contains(" direct"), direct > 0, "{line}");
        assert_eq!(line.contains(" buffered"), buffered > 0, "{line}");
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn it_is_not_in_the_cache_then() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    // The length of a chunk depends on the rate, and short chunks go through the cache: at the end of a file, and
    // anywhere on a busy machine.
    for length in [8 << 20, (8 << 20) + (48 << 10)] {
        let source = scratch.file("source", &noise(length));
        let (mut recv, port) = start_with_little_memory(&scratch, "", &target);
        start_send(&["--chunk=64K"], port, Some(&source)).wait().expect(0);
        let [direct, buffered] = written(recv.wait().expect(0));
        assert!(direct > 0 && buffered >= length as u64 % (64 << 10), "{direct} {buffered}");
        assert!(
            cached_bytes(&target) <= buffered,
            "{} in the cache, {buffered} written through it",
            cached_bytes(&target)
        );
    }
}

/// As in a container's own root: cached pages belong to the file system below, and the overlay reports none of them.
#[test]
#[ignore = "needs root: tests/run"]
fn what_is_cached_below_an_overlay_is_read_from_the_cache() {
    let scratch = Scratch::new();
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(scratch.join(name)).expect("a directory");
    }
    let data = noise(8 << 20);
    std::fs::write(scratch.join("lower/source"), &data).expect("written, and cached");
    let mount = "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged";
    let mut recv = Process::spawn(rdrecv().args(["0", KEY]).arg(scratch.join("target")).stdin(Stdio::null()));
    let mut send = rdsend();
    send.args(["--json-fd=2", "127.0.0.1", &recv.port().to_string(), KEY, "merged/source"]);
    let inner = in_shell(&format!("{mount} && exec \"$@\""), &send);
    let mut wrapped = Command::new("unshare");
    wrapped.arg("--mount").arg(inner.get_program()).args(inner.get_args()).current_dir(scratch.path());
    let ended = Process::spawn(wrapped.stdin(Stdio::null())).wait();
    recv.wait().expect(0);
    same(&std::fs::read(scratch.join("target")).expect("there"), &data);
    let report = ended.expect(0).report();
    let read = ["read_direct_bytes", "read_cached_bytes"].map(|key| report[key].as_u64().expect("a number"));
    assert_eq!(read, [0, data.len() as u64]);
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_stream_of_unknown_length_comes_out_right() {
    let scratch = Scratch::new();
    let (target, data) = (scratch.join("target"), noise((6 << 20) + 77));
    let (mut recv, port) = start_with_little_memory(&scratch, "", &target);
    let mut send = start_send::<&str>(&[], port, None);
    feed(send.stdin(), data.clone());
    send.wait().expect(0);
    let ended = recv.wait();
    same(&std::fs::read(&target).expect("there"), &data);
    let [direct, buffered] = written(ended.expect(0));
    assert_eq!(direct + buffered, data.len() as u64);
    assert!(buffered >= SHARE, "its share is used first: {buffered}");
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_memory_file_system_gets_it_through_the_cache() {
    let scratch = Scratch::new();
    let data = noise(4 << 20);
    let source = scratch.file("source", &data);
    std::fs::create_dir(scratch.join("memory")).expect("a directory");
    let memory = scratch.join("memory");
    let before = format!("mount -t tmpfs none '{}' &&", memory.display());
    let (mut recv, port) = start_with_little_memory(&scratch, &before, &memory.join("target"));
    start_send::<&str>(&[], port, Some(&source)).wait().expect(0);
    let ended = recv.wait();
    assert_eq!(written(ended.expect(0)), [0, data.len() as u64]);
    assert!(ended.stderr.lines().any(|line| line == "written: 4.0 MiB buffered"), "{}", ended.stderr);
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_full_disk_is_told_as_ever() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(24 << 20));
    let (image, disk) = (scratch.join("image"), scratch.join("disk"));
    std::fs::create_dir(&disk).expect("a directory");
    let before = format!(
        "truncate -s 16M '{image}' && mkfs.ext4 -q '{image}' && mount -o loop '{image}' '{disk}' && \
        printf old >'{disk}/target' &&",
        image = image.display(),
        disk = disk.display()
    );
    // The files left there can be seen only from inside the namespace.
    let mut command = rdrecv();
    command.args(["--json-fd=2", "0", KEY]).arg(disk.join("target"));
    let line = "\"$@\"; code=$?; ls -A \"$(dirname \"$6\")\"; cat \"$6\"; exit $code";
    let mut wrapped = with_little_memory(&scratch, &before, &in_shell(line, &command));
    let mut recv = Process::spawn(wrapped.stdin(Stdio::null()).stdout(Stdio::piped()));
    let listed = drain(recv.stdout());
    let mut send = start_send::<&str>(&[], recv.port(), Some(&source));
    let ended = recv.wait();
    let lines: Vec<&str> = ended.expect(6).stderr.lines().filter(|line| line.starts_with("rdrecv: cannot")).collect();
    assert!(matches!(lines[..], [line] if line.contains("target") && line.contains("errno 28")), "{}", ended.stderr);
    send.wait().expect(6).within(SOON).one_line("rdsend", &["target", "errno 28"]);
    assert!(written(&ended)[0] > 0, "directly: {}", ended.stderr);
    let listed = String::from_utf8_lossy(&listed.join().expect("no panic")).into_owned();
    assert_eq!(listed.replace("lost+found\n", ""), "target\nold", "the old file, and nothing else");
}

/// Starts rdcp in a laboratory with little memory.
fn copy(lab: &Lab, arguments: &[&str]) -> Process {
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-v", "--json-fd=2"]).args(arguments);
    let mut wrapped = with_little_memory(&lab.0, "", &command);
    Process::spawn(wrapped.stdin(Stdio::null()).stdout(Stdio::null()))
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_copy_is_written_so_and_synced_or_read_back() {
    let lab = Lab::new();
    let data = noise((7 << 20) + 4099);
    lab.0.file("source", &data);
    for option in ["--no-times", "--fsync", "--verify=disk", "--in-place"] {
        let there = format!("h:{}", lab.join("copy").display());
        let mut process = copy(&lab, &[option, "source", &there]);
        let ended = process.wait();
        let [direct, buffered] = written(ended.expect(0));
        same(&std::fs::read(lab.join("copy")).expect("there"), &data);
        only_the_rest_is_buffered(direct, buffered, data.len() as u64);
        assert!(ended.stderr.contains(" MiB direct, "), "{option}: {}", ended.stderr);
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn blocks_of_an_older_file_are_written_so_too() {
    let lab = Lab::new();
    let mut data = noise((7 << 20) + 4099);
    for option in ["--fsync", "--verify=disk"] {
        let older = std::fs::File::open(lab.0.file("copy", &data)).expect("it");
        // Two files that are written within a tick of the kernel's clock have the same time.
        older.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("ours");
        data[3 << 20] ^= 1;
        lab.0.file("source", &data);
        let there = format!("h:{}", lab.join("copy").display());
        let ended = copy(&lab, &["--sync", option, "source", &there]).wait();
        let [direct, buffered] = written(ended.expect(0));
        same(&std::fs::read(lab.join("copy")).expect("there"), &data);
        assert!(direct + buffered >= data.len() as u64, "{direct} {buffered}");
        // Blocks before the first that differs may be read one by one.
        assert!(direct > data.len() as u64 / 2, "{option}: {direct} direct, {buffered} buffered");
    }
}

/// As ext4 tells it when it finds no place for data of the cache, and tells it once.
#[test]
#[ignore = "needs root: tests/run"]
fn an_error_of_early_writing_is_the_files() {
    use seccompiler::{SeccompAction, SeccompFilter, apply_filter};
    let lab = Lab::new();
    let mut data = noise(24 << 20);
    lab.0.file("source", &data);
    data[..1 << 20].fill(7);
    let there = format!("h:{}", lab.join("copy").display());
    let within = lab.join("copy").display().to_string();
    for arguments in [["--no-times", &there], ["--no-times", &within], ["--sync", &there]] {
        lab.0.file("copy", &data);
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["--fsync", "source"]).args(arguments).stdin(Stdio::null());
        let fails = [(libc::SYS_sync_file_range, Vec::new())].into();
        let arch = std::env::consts::ARCH.try_into().expect("known");
        let filter = SeccompFilter::new(fails, SeccompAction::Allow, SeccompAction::Errno(libc::EIO as u32), arch);
        let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
        // SAFETY: between fork and exec, only system calls are made.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
                apply_filter(&program).map_err(std::io::Error::other)
            });
        }
        let ended = Process::spawn(&mut command).wait();
        assert_eq!(ended.code, 6, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("errno 5"), "{arguments:?}: {}", ended.stderr);
        same(&std::fs::read(lab.join("copy")).expect("there"), &data);
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn of_many_files_those_that_the_cache_has_no_room_for() {
    let lab = Lab::new();
    std::fs::create_dir(lab.join("tree")).expect("a directory");
    let data = noise(600 << 10);
    for number in 0..8 {
        lab.0.file(&format!("tree/f{number}"), &data);
    }
    let mut process = copy(&lab, &["-r", "tree", &format!("h:{}", lab.join("copy").display())]);
    let [direct, buffered] = written(process.wait().expect(0));
    assert_eq!(direct + buffered, 8 * data.len() as u64);
    assert!(buffered > SHARE && direct > 0, "{direct} {buffered}");
    for number in 0..8 {
        same(&std::fs::read(lab.join(&format!("copy/f{number}"))).expect("there"), &data);
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_killed_copy_goes_on_with_what_was_written_so() {
    let lab = Lab::new();
    let data = noise((96 << 20) + 12345);
    lab.0.file("source", &data);
    let there = format!("h:{}", lab.join("copy").display());
    let mut process = copy(&lab, &["--bwlimit", "60M", "source", &there]);
    let began = Instant::now();
    let partial = || {
        let names = lab.0.names();
        let name = names.iter().find(|name| name.ends_with(".rd-part"))?;
        let metadata = std::fs::metadata(lab.join(name)).ok()?;
        Some(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512)
    };
    while partial().is_none_or(|there| there < 64 << 20) {
        assert!(process.is_running() && began.elapsed() < PATIENCE, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::KILL);
    process.wait();
    lab.all_gone(Duration::from_secs(10));
    let ended = copy(&lab, &["source", &there]).wait();
    let [direct, buffered] = written(ended.expect(0));
    same(&std::fs::read(lab.join("copy")).expect("there"), &data);
    assert!(direct > 0, "{direct}");
    assert!(direct + buffered <= 64 << 20, "48 MiB at least were there already: {direct} {buffered}");
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_pipeline_writes_a_file_so() {
    let lab = Lab::new();
    std::fs::write(lab.join("home/source"), noise(6 << 20)).expect("a file");
    let report = lab.join("report");
    let mut command = lab.command(rdpipe(), "rsh", AGENT);
    command.arg(format!("--json={}", report.display())).args(["h1:< source", "h2:> target"]);
    let mut wrapped = with_little_memory(&lab.0, "", &command);
    Process::spawn(wrapped.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    same(&std::fs::read(lab.join("home/target")).expect("there"), &noise(6 << 20));
    let text = std::fs::read_to_string(report).expect("written");
    let last: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let hop = &last["hops"][0];
    let [direct, buffered] = ["written_direct_bytes", "written_buffered_bytes"].map(|key| hop[key].as_u64());
    // The size is not known in advance: the cache gets its share, and up to a chunk for each writing thread.
    assert_eq!(direct.zip(buffered).map(|(direct, buffered)| direct + buffered), Some(6 << 20), "{hop}");
    assert!(direct.is_some_and(|direct| direct > 0), "{hop}");
}
