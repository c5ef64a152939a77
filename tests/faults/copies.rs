//! `rdcp` through a proxy: trees, files and streams, in every direction.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::launcher;
use crate::rig::*;
use crate::story::Story;
use crate::sweep::{Runs, sweep};
use crate::tree::{self, Tree};

/// Allowed exit codes, the same as for streams.
pub const REFUSALS: [i32; 6] = [0, 2, 3, 4, 7, 9];

/// Hosts of source and destination; an empty name is the caller's.
pub const SIDES: [(&str, &str); 3] = [("", "h1"), ("h1", ""), ("h1", "h2")];

pub fn through_a_bad_network() {
    let tree = tree::plant(3 << 20, 3 << 20);
    sweep("copies_through_a_bad_network", &Runs { short: 24, long: 120, at_once: 5 }, |story| one(story, &tree));
}

/// Prepares `rdcp` with this program as its launcher.
pub fn command(story: &Story, command: Command) -> Command {
    let us = std::env::current_exe().expect("this program");
    let us = us.to_str().expect("a path in UTF-8");
    let mut command = story.lab.command(command, us, AGENT);
    command.env(launcher::IS_LAUNCHER, "1").env_remove("RD_LONG").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Makes the command's sessions, which carry about `bytes` bytes, go through proxies with faults.
/// Returns the proxies' log.
pub fn disturb(story: &mut Story, command: &mut Command, bytes: u64) -> PathBuf {
    let (seed, log) = (story.random.below(u64::from(u32::MAX)), story.lab.join("log"));
    command.env(launcher::SEED, seed.to_string()).env(launcher::BYTES, bytes.to_string()).env(launcher::LOG, &log);
    log
}

/// Returns HOST:PATH, or the path alone without a host.
pub fn at(host: &str, path: &Path) -> OsString {
    if host.is_empty() {
        return path.into();
    }
    let mut text = OsString::from(format!("{host}:"));
    text.push(path);
    text
}

/// Copies again without faults. Afterwards the copy is complete and nothing else is left.
pub fn again(story: &mut Story, tree: &Tree, arguments: &[OsString], directory: &Path) {
    let ended = story.wait(&mut Process::spawn(command(story, rdcp()).args(arguments)));
    story.tell("again, without faults:");
    story.ended("rdcp", &ended, &[0]);
    story.nobody_is_left();
    if ended.code == 0 {
        story.check(tree.equals(&directory.join("copy")));
    }
    let names: Vec<_> = fs::read_dir(directory).expect("ours").flatten().map(|entry| entry.file_name()).collect();
    story.ensure(names == ["copy"], || format!("left after all was copied: {names:?}"));
}

fn one(story: &mut Story, tree: &Tree) {
    let (from, to) = story.pick(&SIDES);
    let encrypt = story.pick(&["always", "never"]);
    let lanes = story.pick(&["1", "2", "3"]);
    let reconnect = story.pick(&["0", "2", "4"]);
    let compress = story.pick(&["off", "lz4"]);
    let (had_old, directory, copy) = tree::destination(story, tree);
    let arguments: Vec<OsString> = vec!["-rT".into(), at(from, &tree.top()), at(to, &copy)];
    story.tell(format_args!(
        "rdcp {arguments:?} --encrypt {encrypt} --lanes {lanes} --reconnect {reconnect} --compress {compress}, old: {had_old}"
    ));
    let mut faulty = command(story, rdcp());
    let log = disturb(story, &mut faulty, tree.bytes);
    if to.is_empty() {
        faulty.env(launcher::DOWN, "1");
    }
    faulty.args(["--encrypt", encrypt, "--lanes", lanes, "--reconnect", reconnect, "--compress", compress]);
    let ended = story.wait(&mut Process::spawn(faulty.args(&arguments)));
    story.outcome = format!("rdcp {}", ended.code);
    story.tell_damage(&log);
    story.ended("rdcp", &ended, &REFUSALS);
    story.nobody_is_left();
    if ended.code == 0 {
        story.check(tree.equals(&copy));
    }
    story.check(tree.is_old_or_new(&copy, had_old));
    let left = tree::temporaries(&directory);
    // A new tree resumes where it was interrupted, and has no name until it is complete.
    let is_named = fs::symlink_metadata(&copy).is_ok();
    let most = usize::from(!had_old && !is_named);
    story.ensure(left.len() <= most && left.iter().all(|path| path.is_dir()), || format!("left: {left:?}"));
    if !had_old && is_named {
        story.check(tree.equals(&copy));
    }
    again(story, tree, &arguments, &directory);
}
