//! `rdcp -r` while any of its processes is killed, stopped or interrupted at any time.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::copies::{SIDES, again, at, command};
use crate::rig::lab::{Marked, marked};
use crate::rig::*;
use crate::story::Story;
use crate::sweep::{Runs, sweep};
use crate::tree::{self, LARGE_BYTES, Tree};

/// How long a lost link is waited for, in seconds.
pub const RECONNECT: &str = "3";

pub fn signals_to_any_process() {
    let trees = [tree::plant(LARGE_BYTES + 4096, 5 << 20), tree::plant(LARGE_BYTES, LARGE_BYTES)];
    sweep("copies_with_signals_to_any_process", &Runs { short: 32, long: 160, at_once: 4 }, |story| one(story, &trees));
}

/// Process that gets a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Victim {
    Caller,
    Launcher,
    Agent,
    /// The process that ends a stage's command when its agent ends.
    Guard,
    Command,
}

impl Victim {
    pub fn of(process: &Marked, caller: u32) -> Self {
        match process.program.as_str() {
            _ if process.pid == caller => Self::Caller,
            _ if process.arguments.contains("--guard") => Self::Guard,
            program if program.starts_with("faults-") => Self::Launcher,
            "rdma-pipe-agent" if process.name == process.program => Self::Agent,
            // A copy of the agent that is about to become a guard.
            "rdma-pipe-agent" => Self::Guard,
            // A copy of the caller that is about to become a launcher or a guard.
            "rdma-pipe" => Self::Launcher,
            // The shell that becomes the agent.
            _ if process.name == "sh" && process.arguments.ends_with("/rdma-pipe-agent") => Self::Agent,
            _ => Self::Command,
        }
    }
}

/// What is done to the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Blow {
    Kill,
    Interrupt,
    Terminate,
    /// Stopped for this long, then continued.
    Pause(Duration),
    /// Stopped for this long, then killed.
    Freeze(Duration),
}

/// Waits for a random time of at most `within` milliseconds, then strikes a process of `caller`. Returns which process
/// was struck and how; `None` if the caller had already ended.
pub fn strike(story: &mut Story, caller: &mut Process, wanted: &[Victim], within: u64) -> Option<(Victim, Blow)> {
    let moment = Duration::from_millis(story.random.below(within));
    let blow = match story.random.below(7) {
        0 | 1 => Blow::Kill,
        2 => Blow::Interrupt,
        3 => Blow::Terminate,
        4 | 5 => Blow::Pause(Duration::from_millis(story.random.below(9000))),
        _ => Blow::Freeze(Duration::from_millis(story.random.below(9000))),
    };
    let (who, which) = (story.pick(wanted), story.random.next() as usize);
    std::thread::sleep(moment);
    if !caller.is_running() {
        story.tell(format_args!("it had ended before {moment:?}"));
        return None;
    }
    let all = marked(story.lab.0.path());
    let mut fitting: Vec<&Marked> = all.iter().filter(|process| Victim::of(process, caller.pid()) == who).collect();
    if fitting.is_empty() {
        // Processes of this kind do not exist, or not yet.
        fitting = all.iter().filter(|process| process.pid == caller.pid()).collect();
    }
    let victim = *fitting.get(which % fitting.len().max(1))?;
    let kind = Victim::of(victim, caller.pid());
    story.tell(format_args!("{moment:?} after the start {kind:?} ({} {}): {blow:?}", victim.pid, victim.arguments));
    story.disturbed = true;
    let pid = Pid::from_raw(victim.pid as i32).expect("not 0");
    let send = |signal| {
        let _ = kill_process(pid, signal);
    };
    match blow {
        Blow::Kill => send(Signal::KILL),
        Blow::Interrupt => send(Signal::INT),
        Blow::Terminate => send(Signal::TERM),
        Blow::Pause(time) | Blow::Freeze(time) => {
            send(Signal::STOP);
            std::thread::sleep(time);
            send(if matches!(blow, Blow::Pause(_)) { Signal::CONT } else { Signal::KILL });
        }
    }
    Some((kind, blow))
}

/// Returns the allowed exit codes of the caller. A struck caller may have been finished already.
pub fn codes(struck: Option<(Victim, Blow)>) -> Vec<i32> {
    match struck {
        None => vec![0],
        Some((Victim::Caller, Blow::Kill | Blow::Freeze(_))) => vec![0, 137],
        Some((Victim::Caller, Blow::Interrupt)) => vec![0, 130],
        Some((Victim::Caller, Blow::Terminate)) => vec![0, 143],
        // The caller may report late that a link was lost or never made.
        Some(_) => vec![0, 3, 4],
    }
}

/// Returns the exit code of a command that was struck.
pub fn code_of_command(blow: Blow) -> i32 {
    match blow {
        Blow::Kill | Blow::Freeze(_) => 137,
        Blow::Interrupt => 130,
        Blow::Terminate => 143,
        Blow::Pause(_) => 0,
    }
}

/// Summarizes the outcome.
pub fn outcome(struck: Option<(Victim, Blow)>, code: i32) -> String {
    match struck {
        None => format!("nobody: {code}"),
        Some((victim, Blow::Pause(_))) => format!("{victim:?} Pause: {code}"),
        Some((victim, Blow::Freeze(_))) => format!("{victim:?} Freeze: {code}"),
        Some((victim, blow)) => format!("{victim:?} {blow:?}: {code}"),
    }
}

fn one(story: &mut Story, trees: &[Tree]) {
    let sides = [&SIDES[..], &[("", ""), ("h1", "h1")]].concat();
    let (from, to) = story.pick(&sides);
    let which = usize::from(story.random.below(4) == 0);
    let tree = &trees[which];
    let (had_old, directory, copy) = tree::destination(story, tree);
    let encrypt = story.pick(&["always", "never"]);
    // Without -T, the next run would copy into an incomplete copy of that name, as into any directory.
    let mut arguments: Vec<OsString> = vec!["-r".into(), at(from, &tree.top()), at(to, &copy)];
    if had_old {
        arguments[0] = "-rT".into();
    }
    // Some copies are fast, so that signals also arrive near the end.
    let rate = story.pick(&["4M", "8M", "200M"]);
    let mut struck = command(story, rdcp());
    let options = ["--encrypt", encrypt, "--reconnect", RECONNECT, "--bwlimit", rate];
    let options = if from == to { &[][..] } else { &options[..] };
    struck.args(options).args(&arguments);
    story.tell(format_args!("rdcp {options:?} {arguments:?}, old: {had_old}"));
    let mut process = Process::spawn(&mut struck);
    // A copy within a host takes almost no time.
    let within = if from == to { story.pick(&[10, 40, 120]) } else { story.pick(&[30, 150, 600, 1500]) };
    let wanted = [Victim::Caller, Victim::Launcher, Victim::Agent, Victim::Agent];
    let hit = strike(story, &mut process, &wanted, within);
    let ended = story.wait(&mut process);
    story.outcome = outcome(hit, ended.code);
    story.ended("rdcp", &ended, &codes(hit));
    story.nobody_is_left();
    if ended.code == 0 {
        story.check(tree.equals(&copy));
    }
    // A new tree has no name until it is complete.
    let is_named = fs::symlink_metadata(&copy).is_ok();
    story.check(if had_old || !is_named { tree.is_old_or_new(&copy, had_old) } else { tree.equals(&copy) });
    // If the process that makes entries was killed, it may leave them incomplete. Otherwise only what the
    // next copy resumes is left.
    let maker_was_killed = match hit {
        Some((Victim::Caller, Blow::Kill | Blow::Freeze(_))) => to.is_empty() || from == to,
        // A caller that was stopped until the link was lost may end while its threads still write.
        Some((Victim::Caller, Blow::Pause(_))) => to.is_empty() && ended.code == 4,
        Some((Victim::Agent, _)) => !to.is_empty(),
        _ => false,
    };
    let left = tree::temporaries(&directory);
    let is_kept = |path: &PathBuf| {
        let stat = fs::symlink_metadata(path).expect("nobody is there to remove it");
        // A new tree resumes where it was interrupted. So does a large file in an existing tree, except within a host.
        let is_tree = stat.is_dir() && !had_old;
        let is_partial = path.extension().is_some_and(|ending| ending == "rd-part") && from != to;
        is_tree || is_partial && stat.is_file() && stat.len() <= [LARGE_BYTES + 4096, LARGE_BYTES][which]
    };
    story.ensure(maker_was_killed || left.iter().all(is_kept) && left.len() < 2, || format!("left: {left:?}"));
    if is_named {
        arguments[0] = "-rT".into();
    }
    again(story, tree, &arguments, &directory);
}
