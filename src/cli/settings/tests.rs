use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::CommandFactory;

use super::*;
use crate::cli::Arguments;
use crate::cli::doctor::DoctorArguments;
use crate::cli::perf::PerfArguments;
use crate::cli::rdcp::CopyArguments;
use crate::cli::rdpipe::PipeArguments;
use crate::cli::rdsh::ShellArguments;
use crate::cli::recv::RecvArguments;
use crate::cli::send::SendArguments;

/// A user's file and the system's file.
struct Files(tempfile::TempDir);

impl Files {
    fn new(user: &str, system: &str) -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        for (path, text) in files.paths().iter().zip([user, system]) {
            fs::write(path, text).expect("written");
        }
        files
    }

    fn paths(&self) -> [PathBuf; 2] {
        ["user", "system"].map(|name| self.0.path().join(name))
    }

    fn settings<T: Arguments>(&self, line: &str, variable: fn(&str) -> Option<OsString>) -> Result<Settings, String> {
        let words = line.split(' ').map(OsString::from).collect();
        let sources = Sources { files: self.paths().to_vec(), are_named: false, variable };
        let failed = |failure: Failure| {
            assert_eq!(failure.exit, Exit::Usage);
            failure.message.expect("a line")
        };
        Settings::new::<T>(&mut T::command(), words, &sources).map_err(failed)
    }

    /// Returns a command line with its settings.
    fn words<T: Arguments>(&self, line: &str) -> String {
        let settings = self.settings::<T>(line, |_| None).unwrap_or_else(|line| panic!("{line}"));
        settings.words.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ")
    }

    /// Returns what `--show-config` prints.
    fn shown<T: Arguments>(&self, line: &str) -> String {
        let settings = self.settings::<T>(line, |_| None).unwrap_or_else(|line| panic!("{line}"));
        settings.shown(&mut T::command())
    }

    /// Returns what is wrong with the user's file.
    fn wrong(text: &str) -> String {
        let files = Self::new(text, "");
        let Err(line) = files.settings::<CopyArguments>("rdcp a b", |_| None) else { panic!("{text}: taken") };
        line.strip_prefix(&*files.paths()[0].to_string_lossy()).expect("the file").to_owned()
    }
}

#[test]
fn the_stronger_place_decides() {
    let files = Files::new("lanes = 3\nquiet = false\n", "lanes = 2\nquiet = true\nbuffer = '8M'\nfsync = true\n");
    assert_eq!(files.words::<CopyArguments>("rdcp a b"), "rdcp --buffer=8M --fsync --lanes=3 a b");
    assert_eq!(files.words::<CopyArguments>("rdcp --lanes 5 a b"), "rdcp --buffer=8M --fsync --lanes 5 a b");
    // A setting for which a command has no option is meant for other commands.
    assert_eq!(files.words::<SendArguments>("rdsend h 7000"), "rdsend --buffer=8M --lanes=3 h 7000");
    // A value without a default is cancelled.
    let files = Files::new("bwlimit = false\nexclude = false\n", "bwlimit = '1M'\nexclude = ['x']\nfsync = true\n");
    assert_eq!(files.words::<CopyArguments>("rdcp a h:b"), "rdcp --fsync a h:b");
    assert!(files.shown::<CopyArguments>("rdcp a h:b").contains("\n# bwlimit is not set "));
}

#[test]
fn the_example_of_the_guide_sets_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/settings.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("\n```toml\n").expect("an example");
    let (example, _) = rest.split_once("\n```\n").expect("its end");
    let files = Files::new(&format!("{example}\n"), "");
    let everywhere = ["--lanes=4", "--bwlimit=200M", "--quiet", "--exclude=.git", "--exclude=*.o"];
    for (host, of_section) in [
        ("gpu7", &["--transport=prefer-rdma", "--via=ib0"]),
        ("backup2.example.com", &["--compress=auto", "--ssh-port=2222"]),
    ] {
        let words = files.words::<CopyArguments>(&format!("rdcp a {host}:b"));
        for word in everywhere.iter().chain(of_section) {
            assert!(words.split(' ').any(|given| given == *word), "{host}: {word}: {words}");
        }
        assert_eq!(words.matches("--").count(), everywhere.len() + of_section.len(), "{host}: {words}");
    }
}

#[test]
fn sections_are_for_the_hosts_that_are_named() {
    let text =
        "lanes = 1\n[host.'gpu*']\nlanes = 2\n[host.'GPU[1-2].lan']\nlanes = 3\n[host.'db?']\nencrypt = 'always'\n";
    let files = Files::new(text, "[host.'*']\nencrypt = 'auto'\n");
    for (line, words) in [
        ("rdcp a b", "--lanes=1"),
        ("rdcp a me@gpu7:b", "--encrypt=auto --lanes=2"),
        ("rdcp gpu2.lan:a gpu7:b", "--encrypt=auto --lanes=3"),
        ("rdcp a gpu[1-4]:b", "--encrypt=auto --lanes=2"),
        ("rdcp -t db1:x a", "--lanes=1 --encrypt=always"),
        ("rdcp a h:b --to db1:x", "--lanes=1 --encrypt=always"),
        ("rdcp a ./gpu7:b", "--lanes=1"),
    ] {
        let (program, rest) = line.split_once(' ').expect("words");
        assert_eq!(files.words::<CopyArguments>(line), format!("{program} {words} {rest}"), "{line}");
    }
    assert_eq!(files.words::<SendArguments>("rdsend db2 1"), "rdsend --lanes=1 --encrypt=always db2 1");
    let pipe = files.words::<PipeArguments>("rdpipe gpu7:ls");
    assert_eq!(pipe, "rdpipe --encrypt=auto --lanes=2 gpu7:ls");
    assert_eq!(files.words::<PipeArguments>("rdpipe ls"), "rdpipe --lanes=1 ls");
    let pipe = files.words::<PipeArguments>("rdpipe ls db[1-3]:cat");
    assert_eq!(pipe, "rdpipe --lanes=1 --encrypt=always ls db[1-3]:cat");
    for host in ["ssh://me@db1:22", "ssh://db1/", "me@db1"] {
        let shell = files.words::<ShellArguments>(&format!("rdsh {host} ls"));
        assert_eq!(shell, format!("rdsh --lanes=1 --encrypt=always {host} ls"));
    }
    let files = Files::new("[host.'fe80::*']\nlanes = 4\n", "");
    for host in ["ssh://[fe80::1]:22", "ssh://me@[fe80::1]", "fe80::1"] {
        assert_eq!(files.words::<ShellArguments>(&format!("rdsh {host} ls")), format!("rdsh --lanes=4 {host} ls"));
    }
    for to in ["[fe80::1]:7000", "[fe80::1] 7000", "fe80::1 7000"] {
        assert_eq!(files.words::<SendArguments>(&format!("rdsend {to}")), format!("rdsend --lanes=4 {to}"));
    }
}

/// The first rule that matches decides: a typed one, then those of the strongest place, each in the order of its lines.
#[test]
fn rules_follow_the_typed_ones_in_the_order_of_their_lines() {
    let files = Files::new("include = ['*.c', '*.h']\nquiet = true\nexclude = ['*']\n", "");
    for (line, words) in [
        ("a b", "--quiet a b --include=*.c --include=*.h --exclude=*"),
        ("--include k a b", "--quiet --include k a b --exclude=*"),
        ("--exclude-from k a b", "--quiet --exclude-from k a b --include=*.c --include=*.h --exclude=*"),
        ("--fsync -- a b", "--quiet --fsync --include=*.c --include=*.h --exclude=* -- a b"),
    ] {
        assert_eq!(files.words::<CopyArguments>(&format!("rdcp {line}")), format!("rdcp {words}"));
    }
    let user = "exclude = ['u']\n[host.h]\ninclude = ['h', 'i']\nexclude-from = 'f'\n";
    let files = Files::new(user, "exclude = ['s']\ninclude-from = 's'\n");
    let words = files.words::<CopyArguments>("rdcp a h:b");
    assert_eq!(words, "rdcp a h:b --include=h --include=i --exclude-from=f --exclude=u --include-from=s");
    assert_eq!(files.words::<CopyArguments>("rdcp a b"), "rdcp a b --exclude=u --include-from=s");
    let definition = CopyArguments::command();
    assert!(RULES.iter().all(|key| option(&definition, key).is_some()));
}

#[test]
fn the_stronger_of_two_that_override_each_other_counts() {
    let user = "human-readable = true\nno-bootstrap = true\n";
    let files = Files::new(user, "no-human-readable = true\nbootstrap = true\n");
    assert_eq!(files.words::<CopyArguments>("rdcp a b"), "rdcp --human-readable --no-bootstrap a b");
    let typed = files.words::<CopyArguments>("rdcp --no-human-readable a b");
    assert_eq!(typed, "rdcp --no-bootstrap --no-human-readable a b");
    let text = files.shown::<CopyArguments>("rdcp a b");
    assert!(text.contains("\nhuman-readable = true ") && text.contains("\nno-human-readable = false "), "{text}");
    let ignored = text.lines().find(|line| line.starts_with("# --no-human-readable ")).expect("a line");
    assert!(ignored.ends_with(":1, ignored: a stronger value overrides it"), "{text}");
    // Of two lines in a file, the later is the stronger.
    let files = Files::new("human-readable = true\nno-human-readable = true\n", "");
    assert_eq!(files.words::<CopyArguments>("rdcp a b"), "rdcp --no-human-readable a b");
}

#[test]
fn a_typed_option_takes_what_it_needs_from_a_setting() {
    let files = Files::new("via = 'ib0'\nsync = true\nrecursive = true\n", "relay = true\nfsync = true\n");
    for typed in ["-u", "--max-size=1M", "--watch", "--delete", "--link-dest=x", "--manifest=m", "-u --manifest=m"] {
        let words = files.words::<CopyArguments>(&format!("rdcp {typed} a h:b"));
        // The weaker of two settings that conflict is still left out.
        assert_eq!(words, format!("rdcp --fsync --via=ib0 --sync --recursive {typed} a h:b"));
    }
    // If no setting helps, the words are left as they are, so that the error is about a typed option.
    let files = Files::new("update = true\nfsync = true\n", "");
    assert_eq!(files.words::<CopyArguments>("rdcp --max-size=1M a h:b"), "rdcp --max-size=1M a h:b");
}

#[test]
fn a_value_that_one_command_refuses_is_left_out_there() {
    let files = Files::new("connect-timeout = 300\n", "");
    assert_eq!(files.words::<SendArguments>("rdsend h 1"), "rdsend --connect-timeout=300 h 1");
    assert_eq!(files.words::<PipeArguments>("rdpipe h:ls"), "rdpipe h:ls");
    let text = files.shown::<PipeArguments>("rdpipe h:ls");
    assert!(text.contains(":1, ignored: --connect-timeout 300: give 1 to 120\n"), "{text}");
    assert!(text.contains("\nconnect-timeout = 30 "), "{text}");
    // No command accepts this value.
    assert_eq!(Files::wrong("connect-timeout = 'soon'\n"), ":1: --connect-timeout soon: not a number");
}

#[test]
fn a_value_for_one_command_spoils_no_other() {
    let mut known: Vec<Command> = definitions().into();
    let keys: BTreeSet<String> =
        known.iter().flat_map(Command::get_arguments).filter_map(Arg::get_long).map(str::to_owned).collect();
    for number in ["0", "300", "4000000000"] {
        let mut text = String::new();
        for key in &keys {
            let entry = Entry { hosts: None, key: key.clone(), value: Value::Text(number.to_owned()), line: 1 };
            if check(&mut known, &entry).is_ok() {
                text.push_str(&format!("{key} = {number}\n"));
            }
        }
        assert!(text.contains("connect-timeout"), "{text}");
        let files = Files::new(&text, "");
        // Each panics if the file is refused.
        files.words::<CopyArguments>("rdcp a h:b");
        files.words::<SendArguments>("rdsend h 1");
        files.words::<RecvArguments>("rdrecv 1");
        files.words::<PipeArguments>("rdpipe h:ls");
        files.words::<ShellArguments>("rdsh h ls");
        files.words::<PerfArguments>("rdperf h");
        files.words::<DoctorArguments>("rddoctor h");
    }
}

#[test]
fn what_does_not_go_with_a_stronger_one_is_left_out() {
    let files = Files::new("via = 'ib0'\nupdate = true\nlauncher = 'slurm'\n", "rsh = 'x'\nsync = true\n");
    assert_eq!(files.words::<CopyArguments>("rdcp a b"), "rdcp --sync --via=ib0 --update --launcher=slurm a b");
    let relayed = files.words::<CopyArguments>("rdcp --relay a b");
    assert_eq!(relayed, "rdcp --sync --update --launcher=slurm --relay a b");
    // RDCP_RSH is stronger than the files, and the command reads it itself.
    let variable = |name: &str| (name == "RDCP_RSH").then(|| OsString::from("mine"));
    let settings = files.settings::<CopyArguments>("rdcp a b", variable).unwrap_or_else(|line| panic!("{line}"));
    assert_eq!(settings.words, ["rdcp", "--sync", "--via=ib0", "--update", "a", "b"]);
    // The environment gives way to typed words.
    let files = Files::new("color = 'always'\n", "");
    let variable = |name: &str| (name == "NO_COLOR").then(|| OsString::from("1"));
    let settings =
        files.settings::<CopyArguments>("rdcp --color=auto a b", variable).unwrap_or_else(|line| panic!("{line}"));
    assert_eq!(settings.words, ["rdcp", "--color=auto", "a", "b"]);
    let settings = files.settings::<CopyArguments>("rdcp a b", variable).unwrap_or_else(|line| panic!("{line}"));
    assert_eq!(settings.words, ["rdcp", "a", "b"]);
}

#[test]
fn what_is_for_ssh_gives_way_to_another_launcher() {
    let files = Files::new("ssh-port = 2222\n", "launcher = 'slurm'\n");
    for (line, words) in [
        ("a h:b", "rdcp --ssh-port=2222 a h:b"),
        ("--launcher slurm a h:b", "rdcp --launcher slurm a h:b"),
        ("--launcher ssh a h:b", "rdcp --ssh-port=2222 --launcher ssh a h:b"),
    ] {
        assert_eq!(files.words::<CopyArguments>(&format!("rdcp {line}")), words);
    }
    assert_eq!(files.words::<PipeArguments>("rdpipe --launcher x h:ls"), "rdpipe --launcher x h:ls");
    assert_eq!(files.words::<PerfArguments>("rdperf --launcher x h"), "rdperf --launcher x h");
    assert_eq!(files.words::<DoctorArguments>("rddoctor --launcher x h"), "rddoctor --launcher x h");
    let shown = files.shown::<CopyArguments>("rdcp --launcher slurm a h:b");
    assert!(shown.contains("ignored: it is for ssh, which --launcher slurm replaces\n"), "{shown}");
    let files = Files::new("launcher = 'slurm'\n", "");
    for typed in ["-P 3", "-i key", "-J j", "-F file", "-o X=y"] {
        assert_eq!(files.words::<CopyArguments>(&format!("rdcp {typed} a h:b")), format!("rdcp {typed} a h:b"));
    }
}

/// The same options are refused if they are typed.
#[test]
fn what_means_nothing_for_a_copy_is_left_out() {
    let files = Files::new("bwlimit = '200M'\nverify = true\nfsync = true\n", "itemize-changes = true\nsync = true\n");
    let between = "--itemize-changes --sync --bwlimit=200M --verify --fsync";
    for (line, words) in [
        ("a b", "--itemize-changes --sync --fsync"),
        ("h:a h:b", "--itemize-changes --sync --fsync"),
        ("-t b a", "--itemize-changes --sync --fsync"),
        ("a h:b", between),
        ("h:a g:b", between),
        ("a h:b --to g:c", "--sync --bwlimit=200M --verify --fsync"),
        ("a h[1-2]:b", "--sync --bwlimit=200M --verify --fsync"),
        ("--hosts f a /b", "--sync --bwlimit=200M --verify --fsync"),
        ("-t g:b --to h:b a", "--sync --bwlimit=200M --verify --fsync"),
        ("--json=- a h:b", "--sync --bwlimit=200M --verify --fsync"),
        ("- h:b", "--bwlimit=200M"),
        ("h:a -", "--bwlimit=200M"),
        ("/dev/zero b", "--bwlimit=200M"),
    ] {
        assert_eq!(files.words::<CopyArguments>(&format!("rdcp {line}")), format!("rdcp {words} {line}"));
    }
    let rights = Files::new("chmod = 'F600'\nchown = ':4711'\n", "");
    assert_eq!(rights.words::<CopyArguments>("rdcp a h:b"), "rdcp --chmod=F600 --chown=:4711 a h:b");
    assert_eq!(rights.words::<CopyArguments>("rdcp - h:b"), "rdcp - h:b");
    let quiet = Files::new("quiet = true\n", "");
    for (line, words) in [("a b", "--quiet a b"), ("-v a b", "-v a b"), ("a --progress b", "a --progress b")] {
        assert_eq!(quiet.words::<CopyArguments>(&format!("rdcp {line}")), format!("rdcp {words}"));
    }
    for (text, line, ignored) in [
        ("verbose = 2\n", "rdcp -q a b", ":1, ignored: --quiet is given or set"),
        ("progress = true\nquiet = true\n", "rdcp a b", ":1, ignored: --quiet is given or set"),
        ("quiet = true\nprogress = true\n", "rdcp a b", ":1, ignored: --progress is given or set"),
    ] {
        let shown = Files::new(text, "").shown::<CopyArguments>(line);
        assert!(shown.lines().any(|line| line.ends_with(ignored)), "{text}: {shown}");
    }
    let typed = files.words::<CopyArguments>("rdcp --bwlimit 1M a b");
    assert_eq!(typed, "rdcp --itemize-changes --sync --fsync --bwlimit 1M a b");
}

#[test]
fn what_is_wrong_is_one_line_with_its_place() {
    for (text, expected) in [
        ("\nlanse = 3\n", ":2: unknown setting lanse; did you mean lanes?"),
        ("bogus = 3\n", ":1: unknown setting bogus"),
        ("x = true\n", ":1: unknown setting x; did you mean one-file-system?"),
        ("P = 22\n", ":1: unknown setting P; did you mean ssh-port?"),
        ("i = 'key'\n", ":1: unknown setting i; options of ssh that are only a letter belong in ~/.ssh/config"),
        ("5 = 1\n", ":1: unknown setting 5"),
        ("n = true\n", ":1: unknown setting n"),
        ("t = 'x'\n", ":1: unknown setting t"),
        ("b = true\n", ":1: unknown setting b"),
        ("0 = true\n", ":1: unknown setting 0"),
        ("H = 'desk'\n", ":1: unknown setting H"),
        ("q = true\n", ":1: unknown setting q; did you mean quiet?"),
        ("port_range = '1-2'\n", ":1: unknown setting port_range; did you mean port-range?"),
        ("[host.x]\nlanes = 99\n", ":2: --lanes 99: give 1 to 16"),
        ("transport = 'pigeon'\n", ":1: --transport pigeon: expected one of auto, rdma, prefer-rdma, tcp"),
        ("buffer = true\n", ":1: buffer takes a value, in quotes unless it is a number"),
        ("encrypt = false\n", ":1: encrypt takes a value, in quotes unless it is a number"),
        ("quiet = 'yes'\n", ":1: quiet must be true or false"),
        ("lanes = [1, 2]\n", ":1: lanes does not take a list"),
        ("[host.'a[1']\nlanes = 1\n", ":2: a[1: a bracket is not closed"),
        ("[host.'a[x]']\nlanes = 1\n", ":2: a[x]: brackets must contain numbers and ranges, such as [01-08,12]"),
        ("[host.'g[2-1]']\nlanes = 1\n", ":2: g[2-1]: a range must begin with its smaller number"),
    ] {
        assert_eq!(Files::wrong(text), expected, "{text}");
    }
}

/// Each name in the table is an option, and the table includes all options that delete.
#[test]
fn what_files_may_not_set_is_refused_with_the_reason() {
    let commands = definitions();
    let all: BTreeSet<&str> = commands.iter().flat_map(Command::get_arguments).filter_map(Arg::get_long).collect();
    for (reason, keys) in REFUSED {
        for &key in keys {
            assert!(all.contains(key) || ["help", "version"].contains(&key), "{key} is an option");
            assert_eq!(
                Files::wrong(&format!("{key} = true\n")),
                format!(":1: {key} cannot be set in a file: {reason}")
            );
            assert!(Files::wrong(&format!("[host.x]\n{key} = true\n")).starts_with(":2: "));
        }
    }
    let deleting: Vec<_> = all.iter().filter(|key| key.starts_with("delete")).collect();
    assert!(deleting.len() >= 3, "{deleting:?}");
    for key in deleting.into_iter().chain(&["in-place", "append-verify", "force-empty"]) {
        assert!(REFUSED.iter().any(|(_, keys)| keys.contains(key)), "{key}");
    }
    assert!(Files::wrong("encrypt = 'never'\n").contains("encrypt cannot be set to never in a file"));
}

#[test]
fn every_other_option_can_be_set() {
    let mut count = 0;
    for mut command in definitions() {
        let keys: Vec<String> = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
        for key in keys.iter().filter(|key| !REFUSED.iter().any(|(_, keys)| keys.contains(&&***key))) {
            let option = option(&command, key).expect("one of them");
            let values = if option.get_action().takes_values() {
                ["7", "64K", "auto", "9-9", "disk", "u+r", "/x.svg", "0.5", "hold"]
                    .map(|text| Value::Text(text.to_owned()))
                    .to_vec()
            } else {
                vec![Value::Switch(true)]
            };
            let entry = |value| Entry { hosts: None, key: key.clone(), value, line: 1 };
            let known = std::slice::from_mut(&mut command);
            assert!(values.into_iter().any(|value| check(known, &entry(value)).is_ok()), "{key}");
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn no_file_is_no_setting_unless_it_is_named() {
    let nowhere = vec![Path::new("/nonexistent/config.toml").to_owned()];
    let settings = |are_named| {
        let sources = Sources { files: nowhere.clone(), are_named, variable: |_| None };
        Settings::new::<CopyArguments>(&mut CopyArguments::command(), vec!["rdcp".into()], &sources)
    };
    assert!(settings(false).is_ok_and(|settings| settings.words == ["rdcp"]));
    assert!(settings(true).is_err_and(|failure| failure.message.is_some_and(|line| line.contains("does not exist"))));
}

/// The home of another user concerns that user alone.
#[test]
fn a_home_out_of_reach_is_no_setting_and_is_shown_as_such() {
    // Root may look up everything.
    if rustix::process::geteuid().is_root() {
        return;
    }
    let files = Files::new("lanes = 3\n", "");
    let mode = |mode| fs::set_permissions(files.0.path(), fs::Permissions::from_mode(mode)).expect("a mode");
    mode(0);
    let shown = files.shown::<CopyArguments>("rdcp a b");
    mode(0o700);
    assert!(shown.contains("user, which this user may not look up\n") && !shown.contains("lanes = 3"), "{shown}");
}

/// As with rsync's `--no-x`.
#[test]
fn what_the_command_line_turns_off_is_left_out() {
    let user = "sync = true\none-file-system = true\nitemize-changes = true\nno-implied-dirs = true\n";
    let files = Files::new(user, "");
    let set = "--sync --one-file-system --itemize-changes --no-implied-dirs";
    assert_eq!(files.words::<CopyArguments>("rdcp a h:b"), format!("rdcp {set} a h:b"));
    let typed = ["--no-x", "--no-itemize-changes", "--implied-dirs", "a", "h:b"].map(OsString::from);
    let command = CopyArguments::command();
    let done = crate::cli::habits::translate(typed, &command, |_| false).expect("options of rsync");
    let line = done.words.join(OsStr::new(" ")).into_string().expect("text");
    assert_eq!(files.words::<CopyArguments>(&format!("rdcp {line}")), format!("rdcp --sync {line}"));
    let shown = files.shown::<CopyArguments>(&format!("rdcp {line}"));
    assert!(shown.contains("ignored: the command line turns it off\n") && !shown.contains("negated"), "{shown}");
    // Typed again, it counts.
    let words = files.words::<CopyArguments>("rdcp --negated=one-file-system -x a h:b");
    assert_eq!(words, "rdcp --sync --itemize-changes --no-implied-dirs --negated=one-file-system -x a h:b");
}

#[test]
fn every_value_is_shown_with_its_place() {
    let files = Files::new("lanes = 3\nvia = 'ib\"0'\n[host.b]\nexclude = ['x', 'y']\n", "quiet = true\n");
    let variable = |name: &str| (name == "RDCP_RSH").then(|| OsString::from("mine"));
    let line = "rdcp --relay --chunk 64K --sync --delete --show-config a b:";
    let settings = files.settings::<CopyArguments>(line, variable).unwrap_or_else(|line| panic!("{line}"));
    let text = settings.shown(&mut CopyArguments::command());
    let [user, system] = files.paths().map(|path| path.to_str().expect("text").to_owned());
    let place = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {text}"));
        let (value, place) = line.split_once(" # ").expect("a place");
        (value.trim_end().to_owned(), place.to_owned())
    };
    for (key, value, from) in [
        ("lanes", "lanes = 3", format!("{user}:1")),
        ("exclude", "exclude = [\"x\", \"y\"]", format!("{user}:4")),
        ("quiet", "quiet = true", format!("{system}:1")),
        ("rsh", "rsh = \"mine\"", "environment variable RDCP_RSH".to_owned()),
        ("chunk", "chunk = \"64K\"", "command line".to_owned()),
        ("relay", "relay = true", "command line".to_owned()),
        ("delete ", "delete = true", "command line".to_owned()),
        ("transport", "transport = \"auto\"", "default".to_owned()),
        ("fsync", "fsync = false", "default".to_owned()),
        ("# bwlimit", "# bwlimit is not set", "default".to_owned()),
        ("# via", "# via is not set", "default".to_owned()),
        ("# --via", "# --via=ib\"0", format!("{user}:2, ignored: --via cannot be used with --relay")),
    ] {
        assert_eq!(place(key), (value.to_owned(), from), "{text}");
    }
    assert!(!text.contains("show-config =") && !text.contains("delete-after"), "{text}");
    // The whole output is TOML.
    toml::de::DeTable::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(shown_value("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
}

#[test]
fn a_setting_that_is_ignored_names_the_option_that_it_needs() {
    let files = Files::new("update = true\n", "");
    let settings = files.settings::<CopyArguments>("rdcp --show-config a b:", |_| None);
    let settings = settings.unwrap_or_else(|line| panic!("{line}"));
    let text = settings.shown(&mut CopyArguments::command());
    assert!(text.contains("ignored: needs --sync\n"), "{text}");
}

fn shown_value(text: &str) -> String {
    shown::quoted(OsStr::new(text))
}

#[test]
fn patterns_of_hosts() {
    for (pattern, host, expected) in [
        ("gpu*", "gpu1", true),
        ("gpu*", "GPU", true),
        ("*.lan", "a.b.lan", true),
        ("*.lan", "lan", false),
        ("a*b*c", "a-b-bc", true),
        ("a*b*c", "a-b-bd", false),
        ("g?", "g", false),
        ("*", "", true),
        ("", "a", false),
        ("FD00::1", "fd00::1", true),
    ] {
        assert_eq!(fits(pattern.as_bytes(), host.as_bytes()), expected, "{pattern} {host}");
    }
    let many = "a".repeat(2000);
    assert!(!fits("*a".repeat(500).as_bytes(), format!("{many}b").as_bytes()), "in no time");
}
