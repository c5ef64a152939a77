//! Compares options that rdcp shares with rsync to rsync itself: links, modes, patterns from files, over random trees.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::forms::settle;
use crate::rig::lab::Lab;
use crate::rig::{AGENT, Process, Random, not_run, rdcp};
use crate::snapshot::{Finding, Snapshot, differences, snapshot};

/// Number of trees in `make test`, and in `make test-long`.
const COUNT: u64 = 6;
const LONG_COUNT: u64 = 100;

/// Contents of the file `rules`.
const RULES: &str = "# a comment\n\n; another\n*.o\n/d0/\nf1\n";

const OPTIONS: &[&[&str]] = &[
    &["-L"],
    &["-k"],
    &["--safe-links"],
    &["--copy-unsafe-links"],
    &["--chmod=D750,F640"],
    &["--chmod=u+rwX,go-w", "--chmod=Dg+s"],
    &["--chmod=a-x,a+X,o="],
    &["--chmod=+w,Fu+s,g=rs"],
    &["--exclude-from=rules"],
    &["--numeric-ids", "-x"],
    &["--chown=12:34"],
];

/// Makes nested directories, files of many modes, and links that lead inside, outside, to directories and nowhere.
fn grow(random: &mut Random, directory: &Path, depth: u32, nowhere: bool) {
    fs::create_dir_all(directory).expect("a directory");
    for number in 0..3 {
        let path = directory.join(["f0", "f1", "a.o"][number]);
        fs::write(&path, format!("{number} {depth}")).expect("a file");
        let mode = random.below(0o1000) as u32 | 0o400;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
    }
    let targets = ["f0", "../f1", "./f0", "../../outside/file", "/etc/hostname", "../../../outside", "nowhere"];
    for number in 0..4 {
        let target = targets[random.below(if nowhere { 7 } else { 3 }) as usize];
        symlink(target, directory.join(format!("l{number}"))).expect("a link");
    }
    symlink("../../outside/dir", directory.join("ld")).expect("a link");
    for number in 0..2 * u64::from(depth > 0) {
        grow(random, &directory.join(format!("d{number}")), depth - 1, nowhere);
    }
}

/// Runs the command and returns its exit code, its standard error, and the entries then present at the place.
fn made(lab: &Lab, mut command: Command, place: &str) -> (i32, String, Snapshot) {
    fs::create_dir(lab.join(place)).expect("a directory");
    let ended = Process::spawn(command.current_dir(lab.0.path())).wait();
    (ended.code, ended.stderr, snapshot(&lab.join(place)))
}

#[test]
fn options_do_what_they_do_with_rsync() {
    let mut seeds = Random::printed("options of rsync");
    let count = if crate::rig::seeds::is_long() { LONG_COUNT } else { COUNT };
    let mut compared = 0;
    for _ in 0..count {
        let seed = seeds.below(1 << 32);
        let (lab, mut random) = (Lab::new(), Random::new(seed));
        let nowhere = random.below(2) == 0;
        fs::create_dir_all(lab.join("outside/dir")).expect("a directory");
        fs::write(lab.join("outside/file"), "outside").expect("a file");
        fs::write(lab.join("outside/dir/inside"), "of a directory").expect("a file");
        fs::write(lab.join("rules"), RULES).expect("a file");
        grow(&mut random, &lab.join("src"), 2, nowhere);
        // Times are old because rsync does not set a directory's time if it differs by less than a second.
        settle(&lab.join("src"));
        settle(&lab.join("outside"));
        for (number, options) in OPTIONS.iter().enumerate() {
            let (ours, theirs) = (format!("ours{number}"), format!("theirs{number}"));
            let mut rsync = Command::new("rsync");
            rsync.args(["-aHAX"]).args(*options).arg("src/").arg(format!("{theirs}/"));
            let (code, said, expected) = made(&lab, rsync, &theirs);
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            let to = if number % 2 == 0 { format!("{ours}/") } else { format!("h1:{}/", lab.join(&ours).display()) };
            command.args(["-rq", "--encrypt", "never"]).args(*options).arg("src/.").arg(to);
            let (own_code, own_said, got) = made(&lab, command, &ours);
            let wrong: Vec<String> = differences(&expected, &got, &[b""]).iter().map(Finding::shown).collect();
            assert!(wrong.is_empty(), "seed {seed}, {options:?}: {}\n{said}\n{own_said}", wrong.join("\n"));
            assert_eq!(code == 0, own_code == 0, "seed {seed}, {options:?}: {said}\n{own_said}");
            compared += expected.len();
        }
    }
    eprintln!("options of rsync: {compared} entries compared");
}

/// rsync follows the loop until the name is too long.
#[test]
fn a_link_to_a_directory_above_is_named_and_not_followed() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/a/b")).expect("a directory");
    fs::write(lab.join("src/a/b/file"), "x").expect("a file");
    symlink("../..", lab.join("src/a/b/up")).expect("a link");
    symlink(".", lab.join("src/a/self")).expect("a link");
    for (option, to) in [("-L", "to".to_owned()), ("-k", format!("h1:{}", lab.join("there").display()))] {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--encrypt", "never", option, "src", &to]);
        let ended = Process::spawn(command.current_dir(lab.0.path())).wait();
        assert_eq!(ended.code, 8, "{}", ended.stderr);
        for name in ["src/a/b/up", "src/a/self"] {
            let is_named = |line: &str| line.contains(name) && line.contains("contains it");
            assert!(ended.stderr.lines().any(is_named), "{name}: {}", ended.stderr);
        }
    }
    for place in ["to", "there"] {
        assert_eq!(fs::read(lab.join(place).join("a/b/file")).expect("copied"), b"x");
        assert!(!lab.join(place).join("a/b/up").exists() && !lab.join(place).join("a/self").exists());
    }
}

/// Compares with rsync. A file system is mounted below the source, for which the test must run as root.
#[test]
fn what_is_mounted_below_is_not_entered() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount");
    }
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/mounted")).expect("a directory");
    fs::create_dir_all(lab.join("src/plain")).expect("a directory");
    fs::write(lab.join("src/plain/file"), "x").expect("a file");
    settle(&lab.join("src"));
    let mut words = lab.command(rdcp(), "rsh", AGENT);
    words.args(["-rqx", "--encrypt", "never", "src/."]).arg(format!("h1:{}/", lab.join("ours").display()));
    let script = "mount -t tmpfs none src/mounted && echo y >src/mounted/inside && mkdir ours theirs && \
        rsync -aHAXx src/ theirs/ && \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(words.get_program()).args(words.get_args());
    command.envs(words.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = Process::spawn(command.current_dir(lab.0.path())).wait();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(lab.join("ours/mounted").is_dir() && !lab.join("ours/mounted/inside").exists());
    let (expected, got) = (snapshot(&lab.join("theirs")), snapshot(&lab.join("ours")));
    let wrong: Vec<String> = differences(&expected, &got, &[b"", b"mounted"]).iter().map(Finding::shown).collect();
    assert!(wrong.is_empty() && got.contains_key(&b"plain/file"[..]), "{wrong:?}");
}

/// As with rsync, each listed path is a source of its own, on whatever file system it is.
#[test]
fn what_is_listed_on_another_file_system_is_copied() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount");
    }
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/m")).expect("a directory");
    fs::write(lab.join("src/file"), "x").expect("a file");
    fs::write(lab.join("list"), "m/x\nfile\n").expect("a list");
    settle(&lab.join("src"));
    let listed = ["-R src/./m", "-R src/./m/x/", "--files-from=list src", "-R src/./ src/./m/x"];
    for (number, from) in listed.into_iter().enumerate() {
        let [ours, theirs] = ["ours", "theirs"].map(|name| format!("{name}{number}"));
        let there = format!("h1:{}/", lab.join(&ours).display());
        let to = if number % 2 == 0 { format!("{ours}/") } else { there };
        let mut words = lab.command(rdcp(), "rsh", AGENT);
        words.args(["--sync", "-rxq", "--encrypt", "never"]).args(from.split(' ')).arg(to);
        let script = format!(
            "mount -t tmpfs none src/m && mkdir src/m/x {ours} {theirs} && echo y >src/m/x/inside && \
            echo z >src/m/beside && touch -d 2020-02-02 src/m/x/inside src/m/beside src/m/x && rsync -arxHAX {from} {theirs}/ && \"$0\" \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(words.get_program()).args(words.get_args());
        command.envs(words.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ended = Process::spawn(command.current_dir(lab.0.path())).wait();
        assert_eq!(ended.code, 0, "{from}: {}", ended.stderr);
        let (expected, got) = (snapshot(&lab.join(&theirs)), snapshot(&lab.join(&ours)));
        let wrong: Vec<String> = differences(&expected, &got, &[b"", b"m"]).iter().map(Finding::shown).collect();
        assert!(wrong.is_empty() && got.contains_key(&b"m/x/inside"[..]), "{from}: {wrong:?}");
    }
}
