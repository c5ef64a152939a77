//! Targets of a copy: DST, `--to`, `--hosts`, and options that do not work with several targets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::CopyArguments;
use crate::fault::{Exit, Failure, escaped};
use crate::job::plan::Spec;
use crate::job::targets::{HOSTS_MAX, each, expand_all, is_list, read, without_doubles};
use crate::options::read_bounded;

/// Maximum number of bytes in a file of hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long a program may take to name hosts.
const PROGRAM_MAX: Duration = Duration::from_secs(20);

/// Environment variables in which Slurm gives its processes the nodes of the allocation.
const ALLOCATION_VARIABLES: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// Options for copies to several hosts.
#[derive(Args, Debug)]
#[command(next_help_heading = "Several hosts")]
pub struct TargetOptions {
    /// Also copy to HOST:PATH, or each host of a list such as 'gpu[01-08,12]:PATH'; may be repeated. With one SRC, DST
    /// may be omitted
    #[arg(long, value_name = "HOST:PATH")]
    to: Vec<OsString>,
    /// Copy to the path DST on each host listed in FILE, or standard input (-), one per line; @GROUP is a group of
    /// ClusterShell's nodeset, slurm the nodes of the allocation
    #[arg(long, value_name = "FILE|@GROUP|slurm")]
    pub(super) hosts: Option<OsString>,
    /// Write the hosts that failed to FILE, for --hosts; remove FILE if none failed
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub(super) hosts_failed: Option<PathBuf>,
    /// Bypass a host that accepts no data for SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) stall: u32,
    /// Add HOST, or HOST:PATH, the only argument, to the copy to several hosts that runs here as JOB (the name it
    /// prints when it starts), and wait for the result on that host
    #[arg(
        long,
        value_name = "JOB",
        conflicts_with_all = ["to", "hosts", "hosts_failed", "target_directory", "no_target_directory", "dry_run", "watch", "check"]
    )]
    pub(super) join: Option<String>,
}

impl TargetOptions {
    /// Takes the first `--to` as DST, if SRC is the only word, so that DST was left out.
    ///
    /// # Errors
    ///
    /// Exit 1 if it does not name a host.
    pub(super) fn take_destination(&mut self, words: &[Spec]) -> Result<Option<Spec>, Failure> {
        match self.to.first().filter(|_| words.len() == 1 && self.hosts.is_none()) {
            Some(first) => {
                let first = additional(first)?;
                self.to.remove(0);
                Ok(Some(first))
            }
            None => Ok(None),
        }
    }

    /// Returns DST and all other targets, each once, and the number of duplicates left out.
    ///
    /// # Errors
    ///
    /// Exit 1 if the targets are not valid.
    pub(super) fn resolve(&self, destination: Spec) -> Result<(Vec<Spec>, usize), Failure> {
        let usage = |reason: String| Exit::Usage.with(reason);
        let mut targets = match &self.hosts {
            None => each(destination).map_err(usage)?,
            Some(hosts) => {
                let Spec::Here(path) = &destination else {
                    return Err(usage("with --hosts, DST is a path on each of the hosts, without HOST:".to_owned()));
                };
                hosts_named(hosts, path, "to name hosts, write DST as 'gpu[1-2]:PATH', or use --to").map_err(usage)?
            }
        };
        for target in &self.to {
            let named = |reason: String| usage(format!("--to {}: {reason}", escaped(target)));
            targets.extend(each(additional(target)?).map_err(named)?);
            if targets.len() > HOSTS_MAX {
                return Err(named(format!("a copy can go to {HOSTS_MAX} hosts at most")));
            }
        }
        without_doubles(targets).map_err(usage)
    }
}

/// Parses a value of `--to`.
fn additional(target: &OsStr) -> Result<Spec, Failure> {
    let named = |reason: &str| Exit::Usage.with(format!("--to {}: {reason}", escaped(target)));
    if target.is_empty() {
        return Err(Exit::Usage.with("--to is empty; give HOST:PATH"));
    }
    match Spec::parse(target).map_err(|reason| named(&reason))? {
        there @ Spec::There(..) => Ok(there),
        Spec::Here(host) if !host.as_bytes().contains(&b'/') => {
            Err(named(&format!("give HOST:PATH, such as {}: for its home directory", escaped(&host))))
        }
        _ => Err(named("give HOST:PATH")),
    }
}

/// Whether there are hosts other than this one, and srun reaches all of them: they are nodes of the Slurm allocation in
/// which the command runs, of its first component if the job is heterogeneous. In a container within a job, srun may be
/// missing.
pub(super) fn are_allocated<'a>(hosts: impl Iterator<Item = &'a OsStr>) -> bool {
    let list = ALLOCATION_VARIABLES.iter().find_map(std::env::var_os).unwrap_or_default();
    let nodes =
        if std::env::var_os("SLURM_JOB_ID").is_some() { expand_all(&list).unwrap_or_default() } else { Vec::new() };
    let mut others = hosts.filter(|host| !host.is_empty()).peekable();
    let are_all = others.peek().is_some() && others.all(|host| nodes.iter().any(|node| node == host));
    let has_srun = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join("srun").is_file())
    };
    are_all && has_srun()
}

/// Returns the hosts that `--hosts` names, each with `path`. `advice` is how else to name hosts, if there is no such
/// file.
pub(in crate::cli) fn hosts_named(hosts: &OsStr, path: &OsStr, advice: &str) -> Result<Vec<Spec>, String> {
    let text = match hosts.as_bytes() {
        b"" => return Err("--hosts is empty; give FILE, @GROUP or slurm".to_owned()),
        b"slurm" => allocation(),
        [b'@', ..] => answer("nodeset", &["-e".as_ref(), hosts]).map(|words| lines(&words)).map_err(|none| {
            let lacks = "groups need nodeset, from ClusterShell, which is not installed here; name a FILE";
            none.unwrap_or_else(|| lacks.to_owned())
        }),
        name => read_bounded(hosts, FILE_BYTES_MAX, "").map_err(|reason| {
            let may_be_hosts = !name.contains(&b'/') && !Path::new(hosts).exists();
            if may_be_hosts { format!("{reason}; {advice}; for a group, --hosts @GROUP") } else { reason }
        }),
    };
    text.and_then(|text| read(&text, path)).map_err(|reason| format!("--hosts {}: {reason}", escaped(hosts)))
}

/// Returns the nodes of the allocation, one per line.
fn allocation() -> Result<Vec<u8>, String> {
    let own = ALLOCATION_VARIABLES.iter().find_map(std::env::var_os).filter(|list| !list.is_empty());
    let lists = components()?;
    // A job that was submitted from a heterogeneous one has inherited the lists of that one.
    let are_own = !lists.is_empty() && own.as_ref().is_none_or(|own| lists.contains(own));
    let list = if are_own { Some(lists.join(OsStr::new(","))) } else { own };
    let list =
        list.ok_or("not in a Slurm allocation (SLURM_JOB_NODELIST is not set); for a file of that name, type ./slurm")?;
    match answer("scontrol", &["show".as_ref(), "hostnames".as_ref(), &list]) {
        Ok(hosts) => Ok(lines(&hosts)),
        // Slurm writes its lists as this package does.
        Err(None) => Ok(expand_all(&list)?.join(OsStr::new("\n")).as_bytes().to_vec()),
        Err(Some(reason)) => Err(reason),
    }
}

/// Returns the lists of nodes of all components of a heterogeneous job; none if the job is not heterogeneous. Its other
/// variables list the nodes of one component, or are missing.
fn components() -> Result<Vec<OsString>, String> {
    let size = std::env::var("SLURM_HET_SIZE").ok().and_then(|size| size.parse::<usize>().ok()).unwrap_or(0);
    let of = |component| {
        let name = format!("SLURM_JOB_NODELIST_HET_GROUP_{component}");
        let lacks = || format!("{name} is not set, so not all nodes of this heterogeneous job are known; name them");
        std::env::var_os(&name).filter(|list| !list.is_empty()).ok_or_else(lacks)
    };
    (0..size).map(of).collect()
}

/// Puts each word on a line of its own.
fn lines(words: &[u8]) -> Vec<u8> {
    words.iter().map(|byte| if byte.is_ascii_whitespace() { b'\n' } else { *byte }).collect()
}

/// Returns the output of a program. The error is `None` if the program is not installed.
fn answer(program: &str, arguments: &[&OsStr]) -> Result<Vec<u8>, Option<String>> {
    let failed = |reason: &str| Some(format!("{program}: {reason}"));
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(None),
        started => started.map_err(|error| failed(&error.to_string()))?,
    };
    let (output, errors) = (collected(child.stdout.take()), collected(child.stderr.take()));
    let until = Instant::now() + PROGRAM_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            ended => {
                let _ = child.kill();
                let _ = child.wait();
                let late = || format!("no answer within {} s", PROGRAM_MAX.as_secs());
                return Err(failed(&ended.map_or_else(|error| error.to_string(), |_| late())));
            }
        }
    };
    // Processes that the program has started may still hold its output open.
    let rest = |until: Instant| until.saturating_duration_since(Instant::now());
    let output = output.recv_timeout(rest(until)).unwrap_or_default();
    if status.success() {
        return Ok(output);
    }
    let errors = errors.recv_timeout(rest(until)).unwrap_or_default();
    let text = String::from_utf8_lossy(&errors);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(|line| escaped(line.as_ref()));
    Err(failed(&line.unwrap_or_else(|| status.to_string())))
}

/// Reads a pipe up to a limit, in a thread.
fn collected(pipe: Option<impl std::io::Read + Send + 'static>) -> flume::Receiver<Vec<u8>> {
    let (give, taken) = flume::bounded(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = std::io::Read::read_to_end(&mut std::io::Read::take(pipe, FILE_BYTES_MAX), &mut bytes);
        }
        let _ = give.send(bytes);
    });
    taken
}

/// An option that does not work with several targets: whether it is given, and what to do instead.
type Refusal = (fn(&CopyArguments) -> bool, &'static str);

const REFUSED: &[Refusal] = &[
    (|it| it.tree.generations.snapshot.is_some(), "--snapshot keeps generations on one host; name one"),
    (|it| it.watch, "--watch copies to one host; name one"),
    (|it| it.files_from.is_some(), "--files-from copies to one host at a time; name one, or leave it out"),
    (|it| it.dry_run && it.tree.sync, "-n compares with one host at a time; name one, or leave out --sync"),
    (|it| it.tree.itemize_changes, "--itemize-changes lists changes on one host at a time; name one"),
    (|it| it.stats, "--stats covers one copy; name one host, or use -v or --json, which cover all"),
    (|it| it.tree.remove_source_files, "--remove-source-files works with one host at a time; name one"),
    (|it| it.tree.in_place, "--in-place writes to one host at a time; name one, or leave it out"),
    (|it| it.tree.append_verify, "--append-verify appends on one host at a time; name one"),
    (
        |it| it.manifest.is_some() || it.manifest_b3sum.is_some(),
        "a manifest covers one copy; name one host, and check the others with --check",
    ),
    (|it| it.hosts.relay, "--relay sends all data through this host, once per target; name one host, or leave it out"),
];

/// Refuses standard input as SRC if it is the list of hosts. Called before it is read for `--hosts`.
///
/// # Errors
///
/// Exit 1.
pub(super) fn check_input(arguments: &CopyArguments, sources: &[Spec]) -> Result<(), Failure> {
    let reads_hosts = arguments.targets.hosts.as_ref().is_some_and(|hosts| hosts == "-");
    if reads_hosts && sources.contains(&Spec::Standard) {
        let line = "standard input (-) cannot be both the list of --hosts and another input";
        return Err(Exit::Usage.with(line));
    }
    Ok(())
}

/// Refuses anything that does not work with so many targets, before any host is contacted.
///
/// # Errors
///
/// Exit 1.
pub(super) fn check(arguments: &CopyArguments, sources: &[Spec], targets: &[Spec]) -> Result<(), Failure> {
    let refuse = |line: String| Err(Exit::Usage.with(line));
    if let Some(source) = sources.iter().find(|source| is_list(source.host())) {
        return refuse(format!("{} is a list of hosts, which only DST and --to may be", escaped(source.host())));
    }
    if targets.len() < 2 {
        return Ok(());
    }
    let to = format!("with {} hosts", targets.len());
    if let Some(local) = targets.iter().find(|target| !matches!(target, Spec::There(..))) {
        let local = escaped(local.path());
        return refuse(format!(
            "{to}, each target must be HOST:PATH, which {local} is not; the last argument is a target too"
        ));
    }
    if sources.contains(&Spec::Standard) {
        return refuse(format!("{to}: standard input (-) can be read only once; copy a file, or name one host"));
    }
    match REFUSED.iter().find(|(is_asked, _)| is_asked(arguments)) {
        Some((_, instead)) => refuse(format!("{to}: {instead}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parsed(words: &[&str]) -> CopyArguments {
        CopyArguments::try_parse_from([&["rdcp", "a", "h1:b"], words].concat()).expect("options")
    }

    fn resolved(destination: &str, words: &[&str]) -> Result<(Vec<String>, usize), String> {
        let destination = Spec::parse(destination.as_ref()).expect("a destination");
        let (targets, again) = parsed(words).targets.resolve(destination).map_err(|failure| {
            assert_eq!(failure.exit, Exit::Usage);
            failure.message.expect("a line")
        })?;
        let shown = |target: &Spec| format!("{}:{}", target.host().display(), target.path().display());
        Ok((targets.iter().map(shown).collect(), again))
    }

    #[test]
    fn dst_comes_first_and_each_host_once() {
        let (targets, again) = resolved("g[1-2]:m", &["--to", "g2:m", "--to", "[fd00::1]:x"]).expect("targets");
        assert_eq!((&targets[..], again), (&["g1:m", "g2:m", "fd00::1:x"].map(str::to_owned)[..], 1));
        for (to, word) in [("x", "HOST:PATH"), ("-", "HOST:PATH"), ("g1:y", "two paths"), ("n[2-1]:x", "smaller")] {
            let line = resolved("g1:m", &["--to", to]).expect_err(to);
            assert!(line.contains(word), "{line}");
        }
    }

    #[test]
    fn with_one_source_the_first_of_to_may_be_dst() {
        let destination = |words: &[&str], options: &[&str]| {
            let words: Vec<Spec> = words.iter().map(|word| Spec::parse(word.as_ref()).expect("a word")).collect();
            let mut targets = parsed(options).targets;
            let taken = targets.take_destination(&words).map_err(|failure| failure.message.expect("a line"));
            (taken.map(|taken| taken.map(|taken| taken.host().to_owned())), targets.to.len())
        };
        let to = ["--to", "h2:x", "--to", "h3:x"];
        assert_eq!(destination(&["a"], &to), (Ok(Some("h2".into())), 1));
        assert_eq!(destination(&["a", "h1:x"], &to), (Ok(None), 2));
        assert_eq!(destination(&["a", "b"], &to), (Ok(None), 2), "b would be DST, and is no host's");
        assert_eq!(destination(&["a"], &[]), (Ok(None), 0));
        assert_eq!(destination(&["a"], &[&to[..], &["--hosts", "f"]].concat()), (Ok(None), 2));
        for (word, line) in [
            ("gpu2", "--to gpu2: give HOST:PATH, such as gpu2: for its home directory"),
            ("/b", "--to /b: give HOST:PATH"),
            ("", "--to is empty; give HOST:PATH"),
        ] {
            assert_eq!(destination(&["a"], &["--to", word]), (Err(line.to_owned()), 1));
        }
    }

    #[test]
    fn hosts_of_a_file_have_dst_as_their_path() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("hosts");
        std::fs::write(&file, "a # 1\nb\na\n").expect("written");
        let file = file.to_str().expect("UTF-8");
        let (targets, again) = resolved("/m", &["--hosts", file, "--to", "c:x"]).expect("targets");
        assert_eq!((&targets[..], again), (&["a:/m", "b:/m", "c:x"].map(str::to_owned)[..], 1));
        assert!(resolved("h:/m", &["--hosts", file]).is_err_and(|line| line.contains("without HOST:")));
        assert!(resolved("-", &["--hosts", file]).is_err());
        let none = resolved("/m", &["--hosts", "/no/such/file"]).expect_err("no file");
        assert!(none.starts_with("--hosts /no/such/file: "), "{none}");
        let none = resolved("/m", &["--hosts", ""]).expect_err("no name");
        assert_eq!(none, "--hosts is empty; give FILE, @GROUP or slurm");
        let none = resolved("/m", &["--hosts", "gpu1,gpu2"]).expect_err("no file");
        assert!(none.contains("(errno 2); to name hosts, write DST as 'gpu[1-2]:PATH', or use --to; "), "{none}");
    }

    #[test]
    fn each_refusal_is_one_line_and_only_for_several() {
        let targets = ["h1:b", "h2:b"].map(|text| Spec::parse(text.as_ref()).expect(text));
        let sources = [Spec::Here("a".into())];
        for words in [
            &["--itemize-changes"][..],
            &["--stats"],
            &["--sync", "--snapshot", "s"],
            &["--sync", "--watch"],
            &["--sync", "--files-from", "f"],
            &["--sync", "-n"],
            &["--in-place"],
            &["--sync", "--append-verify"],
            &["-r", "--manifest", "m"],
            &["-r", "--manifest-b3sum", "m"],
            &["--relay"],
        ] {
            let arguments = parsed(words);
            let line = check(&arguments, &sources, &targets).expect_err("refused").message.expect("a line");
            assert!(line.starts_with("with 2 hosts: ") && !line.contains('\n'), "{line}");
            assert!(check(&arguments, &sources, &targets[..1]).is_ok(), "{words:?}");
        }
        let plain = parsed(&[]);
        assert!(check(&plain, &sources, &targets).is_ok());
        assert!(check(&plain, &[Spec::Standard], &targets).is_err());
        assert!(check(&plain, &sources, &[targets[0].clone(), sources[0].clone()]).is_err());
        let listed = Spec::There("g[1-2]".into(), "a".into());
        assert!(check(&plain, &[listed], &targets[..1]).is_err());
        let listed = parsed(&["--hosts", "-"]);
        assert!(check_input(&listed, &[Spec::Standard]).is_err() && check_input(&listed, &sources).is_ok());
    }

    #[test]
    fn a_program_answers_or_says_why_not() {
        let sh = |script: &str| answer("sh", &["-c".as_ref(), script.as_ref()]);
        assert_eq!(sh("echo a b; echo c"), Ok(b"a b\nc\n".to_vec()));
        assert_eq!(lines(b"a b\nc\n"), b"a\nb\nc\n");
        assert_eq!(sh("echo one >&2; echo two >&2; exit 3"), Err(Some("sh: two".to_owned())));
        assert_eq!(answer("no-such-program-here", &[]), Err(None));
    }
}
