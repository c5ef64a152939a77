//! `rdcp` on file systems in images: `--sync` of a large file where blocks are shared between files, or of block devices
//! as source and destination; `--check` of what the page cache no longer tells; names that differ only in case. Images and
//! loop devices need root, for which reason `tests/run` runs these tests.

mod rig;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rig::lab::Lab;
use rig::*;

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 512 * MIB;

const CASES: &[(&str, fn())] = &[
    ("ext4_copies_equal_blocks", || equal_blocks("ext4", false)),
    ("a_device_gets_what_differs", a_device_gets_what_differs),
    ("a_device_gets_zeros_where_a_small_source_has_holes", a_device_gets_zeros_where_a_small_source_has_holes),
    ("a_device_is_not_written_to_otherwise", a_device_is_not_written_to_otherwise),
    ("what_is_in_a_device_is_copied", what_is_in_a_device_is_copied),
    ("btrfs_shares_equal_blocks", || if_kernel_has("btrfs", || equal_blocks("btrfs", true))),
    ("xfs_shares_equal_blocks", || if_kernel_has("xfs", || equal_blocks("xfs", true))),
    ("btrfs_writes_no_old_blocks_into_a_clone", || if_kernel_has("btrfs", no_old_blocks_in_a_clone)),
    ("a_check_reads_past_the_page_cache", a_check_reads_past_the_page_cache),
    ("ext4_takes_two_names_for_one", two_names_that_are_one),
];

fn main() -> ExitCode {
    run_cases(CASES)
}

/// Runs a case on a file system of this kind, or reports that it has not run. Not an ignored case: `tests/run` gives
/// this program `--include-ignored`.
fn if_kernel_has(kind: &str, case: fn()) {
    let is_listed = || {
        let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines().any(|line| line.split_whitespace().next_back() == Some(kind))
    };
    let load = || Command::new("modprobe").args(["-q", kind]).status();
    if is_listed() || load().is_ok_and(|status| status.success()) && is_listed() {
        case();
    } else {
        not_run(format!("this kernel has no {kind}"));
    }
}

/// Runs a command to its end.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A file system in an image, mounted until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(lab: &Lab, kind: &str) -> Self {
        Self::with(lab, kind, &[])
    }

    fn with(lab: &Lab, kind: &str, options: &[&str]) -> Self {
        let (image, at) = (lab.join("image"), lab.join("mounted"));
        File::create(&image).expect("a file").set_len(IMAGE_BYTES).expect("a length");
        run(&format!("mkfs.{kind}"), &[&["-q"][..], options, &[image.to_str().expect("text")]].concat());
        fs::create_dir(&at).expect("a directory");
        run("mount", &["-o", "loop", image.to_str().expect("text"), at.to_str().expect("text")]);
        Self(at)
    }

    /// Returns the number of bytes in use, once everything is written.
    fn used(&self) -> u64 {
        run("sync", &["-f", self.0.to_str().expect("text")]);
        let system = rustix::fs::statfs(&self.0).expect("mounted");
        (system.f_blocks - system.f_bfree) * system.f_bsize as u64
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A loop device: a block device backed by a file.
struct Loop(String);

impl Loop {
    fn new(lab: &Lab, name: &str, bytes: &[u8]) -> Self {
        let path = lab.0.file(name, bytes);
        Self(run("losetup", &["--find", "--show", path.to_str().expect("text")]))
    }

    fn contents(&self) -> Vec<u8> {
        // When a device is closed, the kernel writes its cache back.
        fs::read(&self.0).expect("a device")
    }

    fn write(&self, bytes: &[u8], at: u64) {
        let device = File::options().write(true).open(&self.0).expect("a device");
        device.write_all_at(bytes, at).expect("written");
    }

    /// Returns the number of bytes written to the device.
    fn written(&self) -> u64 {
        let name = Path::new(&self.0).file_name().expect("a name").to_str().expect("text");
        let text = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("the kernel's account");
        text.split_whitespace().nth(6).expect("sectors written").parse::<u64>().expect("a number") * 512
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Runs rdcp with these options, source and destination.
fn rdcp(lab: &Lab, options: &[&str], from: &std::ffi::OsStr, to: &std::ffi::OsStr) -> Ended {
    let mut command = lab.command(rig::rdcp(), "rsh", AGENT);
    command.arg("-q").args(options).arg(from).arg(to).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(&mut command).wait()
}

/// The old file is still open while the new one is made, so both take space unless they share blocks.
fn equal_blocks(kind: &str, are_shared: bool) {
    const SIZE: u64 = 96 * MIB;
    let lab = Lab::new();
    let mounted = Mounted::new(&lab, kind);
    let mut bytes = noise(SIZE as usize);
    let (from, to) = (lab.0.file("file", &bytes), mounted.0.join("file"));
    fs::copy(&from, &to).expect("a copy");
    let (before, old) = (mounted.used(), File::open(&to).expect("it"));
    let old_bytes = bytes.clone();
    for at in [0, SIZE / 2 + 70_000, SIZE - 1] {
        bytes[at as usize] ^= 1;
    }
    lab.0.file("file", &bytes);
    rdcp(&lab, &["--sync"], from.as_os_str(), &lab.there("h", "mounted/file")).expect(0);
    same(&fs::read(&to).expect("it"), &bytes);
    let mut found = vec![0; SIZE as usize];
    old.read_exact_at(&mut found, 0).expect("read");
    same(&found, &old_bytes);
    assert_ne!(old.metadata().expect("it").ino(), fs::metadata(&to).expect("it").ino(), "a new file took its name");
    let grown = mounted.used().saturating_sub(before);
    assert_eq!(grown < SIZE / 4, are_shared, "{grown} bytes more are in use on {kind}");
    assert_eq!(
        fs::read_dir(&mounted.0).expect("it").flatten().filter(|one| one.file_name() != "lost+found").count(),
        1
    );
}

/// The old file can be no origin of a clone here, because its blocks have no checksums; the source can.
fn no_old_blocks_in_a_clone() {
    const SIZE: u64 = 64 * MIB;
    let lab = Lab::new();
    let mounted = Mounted::new(&lab, "btrfs");
    let (from, to) = (mounted.0.join("source"), mounted.0.join("file"));
    let mut bytes = noise(SIZE as usize);
    File::create(&to).expect("a file");
    run("chattr", &["+C", to.to_str().expect("text")]);
    fs::write(&to, &bytes).expect("written");
    // The first difference begins the clone while most of the old file is still to be compared.
    for at in (0..SIZE).step_by(MIB as usize) {
        bytes[at as usize] ^= 1;
    }
    fs::write(&from, &bytes).expect("a file");
    rdcp(&lab, &["--sync", "--checksum"], from.as_os_str(), to.as_os_str()).expect(0);
    same(&fs::read(&to).expect("it"), &bytes);
}

/// As when a disk has lost what was written to it long ago.
fn a_check_reads_past_the_page_cache() {
    const BLOCK: usize = 4096;
    let lab = Lab::new();
    let mounted = Mounted::new(&lab, "ext4");
    let (from, tree, list, bytes) = (lab.join("from"), mounted.0.join("tree"), lab.join("list"), noise(MIB as usize));
    fs::create_dir(&from).expect("a directory");
    fs::write(from.join("file"), &bytes).expect("a file");
    rdcp(&lab, &["-r", "--manifest", "list"], from.as_os_str(), tree.as_os_str()).expect(0);
    // Now it is in the image as well.
    mounted.used();
    let check = |option: &str| rdcp(&lab, &[option], list.as_os_str(), tree.as_os_str());
    check("--check").expect(0);
    same(&fs::read(tree.join("file")).expect("it"), &bytes);
    let image = File::options().read(true).write(true).open(lab.join("image")).expect("it");
    let mut block = [0; BLOCK];
    let is_first = |at: &u64| {
        image.read_exact_at(&mut block, *at).expect("read");
        block[..] == bytes[..BLOCK]
    };
    let at = (0..IMAGE_BYTES).step_by(BLOCK).find(is_first).expect("in the image");
    image.write_all_at(&[bytes[100] ^ 1], at + 100).expect("written");
    check("--check=cached").expect(0);
    check("--check").expect(7);
}

/// None of them is lost, and a file that is now spelled otherwise is not deleted.
fn two_names_that_are_one() {
    let _ = Command::new("modprobe").args(["-q", "ext4"]).status();
    if !Path::new("/sys/fs/ext4/features/casefold").exists() {
        return not_run("this kernel's ext4 has no casefold");
    }
    let lab = Lab::new();
    let mounted = Mounted::with(&lab, "ext4", &["-O", "casefold"]);
    let (from, to) = (lab.join("from"), mounted.0.join("to"));
    for directory in [&from, &to] {
        fs::create_dir(directory).expect("a directory");
    }
    run("chattr", &["+F", to.to_str().expect("text")]);
    for (name, text) in [("File", "one"), ("file", "two"), ("other", "three")] {
        fs::write(from.join(name), text).expect("a file");
    }
    let copy = || rdcp(&lab, &["--sync", "-r", "--delete"], from.join("").as_os_str(), &lab.there("h", "mounted/to/"));
    let text = |name: &str| fs::read_to_string(to.join(name)).expect(name);
    for _ in 0..2 {
        let ended = copy();
        assert!(ended.expect(8).stderr.contains("cannot distinguish it from"), "{}", ended.stderr);
        assert_eq!(["File", "other"].map(text), ["one", "three"]);
    }
    fs::remove_file(from.join("File")).expect("removed");
    copy().expect(0);
    assert_eq!(["file", "other"].map(text), ["two", "three"]);
    assert_eq!(fs::read_dir(&to).expect("it").count(), 2);
}

fn a_device_gets_what_differs() {
    let lab = Lab::new();
    let (mut image, old) = (noise(6 * MIB as usize + 4097), noise(9 * MIB as usize));
    let device = Loop::new(&lab, "disk", &old);
    // Like the links to logical volumes.
    symlink(&device.0, lab.join("volume")).expect("a link");
    let mut expected = old.clone();
    let to = lab.there("h", "volume");
    for turn in 0..3 {
        let from = lab.0.file("vm.img", &image);
        let before = device.written();
        rdcp(&lab, &["--sync", "--inplace"], from.as_os_str(), &to).expect(0);
        expected[..image.len()].copy_from_slice(&image);
        same(&device.contents(), &expected);
        let written = device.written() - before;
        assert!(if turn == 0 { written > 6 * MIB } else { written <= 256 << 10 }, "{turn}: {written} bytes written");
        // A change by another program at the destination is replaced too.
        image[turn * 3_000_000 + 5] ^= 1;
        device.write(b"other", 4 * MIB);
    }
    // Small enough for a single record.
    let from = lab.0.file("small.img", &image[..10_000]);
    rdcp(&lab, &["--sync", "--in-place"], from.as_os_str(), &to).expect(0);
    same(&device.contents()[..10_000], &image[..10_000]);
    assert!(fs::symlink_metadata(lab.join("volume")).expect("it").is_symlink());
    assert!(fs::metadata(&device.0).expect("it").file_type().is_block_device());
}

/// A file is emptied before it gets holes, but a device has other data there.
fn a_device_gets_zeros_where_a_small_source_has_holes() {
    const SIZE: u64 = 96 << 10;
    let lab = Lab::new();
    let (old, data) = (noise(MIB as usize), noise(4096));
    let path = lab.join("sparse.img");
    let file = File::create(&path).expect("a file");
    file.set_len(SIZE).expect("a length");
    file.write_all_at(&data, SIZE / 2).expect("written");
    file.sync_all().expect("written");
    assert!(file.metadata().expect("it").blocks() * 512 < SIZE, "this file system has holes");
    let mut expected = old.clone();
    expected[..SIZE as usize].copy_from_slice(&fs::read(&path).expect("it"));
    for (name, is_local) in [("near", true), ("far", false)] {
        let device = Loop::new(&lab, name, &old);
        let mut to = std::ffi::OsString::from(if is_local { "" } else { "h:" });
        to.push(&device.0);
        rdcp(&lab, &["--sync", "--in-place"], path.as_os_str(), &to).expect(0);
        same(&device.contents(), &expected);
    }
}

fn a_device_is_not_written_to_otherwise() {
    let lab = Lab::new();
    let old = noise(8 * MIB as usize);
    let device = Loop::new(&lab, "disk", &old);
    let (image, large) =
        (lab.0.file("vm.img", &noise(2 * MIB as usize)), lab.0.file("large", &noise(9 * MIB as usize)));
    let to = {
        let mut to = std::ffi::OsString::from("h:");
        to.push(&device.0);
        to
    };
    let refused = |options: &[&str], from: &Path, to: &std::ffi::OsStr, part: &str| {
        let ended = rdcp(&lab, options, from.as_os_str(), to);
        assert!(ended.code != 0 && ended.stderr.contains(part), "{options:?}: {} {}", ended.code, ended.stderr);
    };
    refused(&["--sync"], &image, &to, "only with --in-place");
    refused(&["--in-place"], &image, &to, "only with --sync");
    refused(&["--sync", "--in-place"], &large, &to, "smaller");
    same(&device.contents(), &old);
    let opened = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    let held = rustix::fs::open(&*device.0, opened, rustix::fs::Mode::empty()).expect("nobody else's");
    refused(&["--sync", "--in-place"], &image, &to, "mounted or in use");
    drop(held);
    // Within a copied tree a device is not a destination, even if it has the name of a file.
    fs::create_dir(lab.join("tree")).expect("a directory");
    fs::create_dir(lab.join("copy")).expect("a directory");
    fs::copy(&image, lab.join("tree/node")).expect("a copy");
    run("cp", &["-a", &device.0, lab.join("copy/node").to_str().expect("text")]);
    let there = lab.there("h", "copy");
    rdcp(&lab, &["--sync", "--in-place", "-r"], std::ffi::OsStr::new("tree/"), &there).expect(0);
    same(&fs::read(lab.join("copy/node")).expect("a file"), &fs::read(&image).expect("it"));
    same(&device.contents(), &old);
    // Neither is a device in the directory that was named, even if it has the name of the file.
    fs::create_dir(lab.join("into")).expect("a directory");
    run("cp", &["-a", &device.0, lab.join("into/vm.img").to_str().expect("text")]);
    rdcp(&lab, &["--sync", "--in-place"], image.as_os_str(), &lab.there("h", "into")).expect(0);
    assert!(fs::symlink_metadata(lab.join("into/vm.img")).expect("there").is_file());
    same(&fs::read(lab.join("into/vm.img")).expect("a file"), &fs::read(&image).expect("it"));
    same(&device.contents(), &old);
    // Neither is a FIFO.
    run("mkfifo", &[lab.join("fifo").to_str().expect("text")]);
    refused(&["--sync", "--in-place"], &image, &lab.there("h", "fifo"), "as a stream");
    assert!(fs::symlink_metadata(lab.join("fifo")).expect("it").file_type().is_fifo());
    drop(device);
    let formatted = Loop::new(&lab, "other", &vec![0; 16 * MIB as usize]);
    run("mkfs.ext4", &["-q", &formatted.0]);
    fs::create_dir(lab.join("mounted")).expect("a directory");
    run("mount", &[&formatted.0, lab.join("mounted").to_str().expect("text")]);
    let _mounted = Mounted(lab.join("mounted"));
    let before = formatted.written();
    let to = {
        let mut to = std::ffi::OsString::from("h:");
        to.push(&formatted.0);
        to
    };
    refused(&["--sync", "--in-place"], &image, &to, "mounted or in use");
    assert_eq!(formatted.written(), before);
}

fn what_is_in_a_device_is_copied() {
    let lab = Lab::new();
    let mut bytes = noise(5 * MIB as usize);
    let device = Loop::new(&lab, "disk", &bytes);
    let to = lab.join("copy.img");
    let umask = 0o666 & !fs::metadata(lab.0.file("any", b"")).expect("a file").mode();
    let from = {
        let mut from = std::ffi::OsString::from("h:");
        from.push(&device.0);
        from
    };
    for turn in 0..3_u8 {
        rdcp(&lab, &["--sync"], &from, to.as_os_str()).expect(0);
        same(&fs::read(&to).expect("a copy"), &bytes);
        // The mode is that of a new file, as without --sync, and it stays.
        let mode = fs::metadata(&to).expect("it").mode() & 0o7777;
        assert_eq!(mode, if turn == 0 { 0o666 & !umask } else { 0o640 });
        fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).expect("ours");
        // A mounted file system changes the device in the same way: the time of the device node stays.
        bytes[2_000_000] = turn;
        let mut disk = File::options().write(true).open(lab.join("disk")).expect("a file");
        disk.write_all_at(&[turn], 2_000_000).expect("written");
        disk.flush().expect("nothing is kept back");
        run("blockdev", &["--flushbufs", &device.0]);
    }
    // The copy has the time of the device node, which may be close to that of the next run.
    for turn in 3..5_u8 {
        bytes[3_000_000] = turn;
        device.write(&[turn], 3_000_000);
        run("touch", &[&device.0]);
        rdcp(&lab, &["--sync", "--modify-window", "3600"], &from, to.as_os_str()).expect(0);
        same(&fs::read(&to).expect("a copy"), &bytes);
    }
    // To another device.
    let other = Loop::new(&lab, "other", &vec![0; 5 * MIB as usize]);
    let to = {
        let mut to = std::ffi::OsString::from("h:");
        to.push(&other.0);
        to
    };
    rdcp(&lab, &["--sync", "--in-place"], std::ffi::OsStr::new(&device.0), &to).expect(0);
    same(&other.contents(), &bytes);
}
