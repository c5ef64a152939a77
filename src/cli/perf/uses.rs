//! Tasks for which each option has a meaning.

use super::Mode::{Bandwidth, Both, Connections, Latency, Ping, Rails};
use super::Target::{Launched, Server};
use super::Task::{self, Compare, Limits, Memory, Model, Serve, Storage, Wire};
use super::{MODES, Target};
use crate::cli::uses::{LAUNCHING, Use};

pub(super) const USES: &[Use<Task>] = &[
    (&["color", "show_config", "verbose"], |_| true, "everything"),
    (&["all"], |task| matches!(task, Wire(_, Both | Bandwidth | Latency | Ping | Rails)), "bw, lat, ping and rails"),
    (
        &["size"],
        |task| matches!(task, Storage(_) | Wire(_, Both | Bandwidth | Latency | Ping | Rails)),
        "bw, lat, ping, rails and disk",
    ),
    (&["iterations"], |task| matches!(task, Wire(..)), "bw, lat, ping, qps and rails"),
    (&["duration"], |task| !matches!(task, Serve(_) | Model | Compare), "tasks that take time"),
    (
        &["qp"],
        |task| matches!(task, Limits(..) | Wire(_, Both | Bandwidth | Connections | Rails)),
        "bw, qps, rails and limits",
    ),
    (&["depth"], |task| matches!(task, Wire(..) | Limits(..) | Storage(_)), "HOST and disk"),
    (&["bidirectional", "reverse"], |task| matches!(task, Wire(_, Both | Bandwidth | Rails)), "bw and rails"),
    (&["poll", "transport"], |task| matches!(task, Wire(..) | Limits(..)), "HOST"),
    (&["source"], |task| matches!(task, Limits(..)), "limits"),
    (&["json"], |task| !matches!(task, Serve(_) | Compare), "tasks that measure"),
    (&["plot", "compare"], |task| !matches!(task, Serve(_)), "tasks that measure"),
    (&["clients", "sram", "left"], |task| matches!(task, Model), "model"),
    (&["once"], |task| matches!(task, Serve(_)), "serve"),
    (&["port_range"], |task| matches!(task, Serve(_)) || is_launched(task), "serve, and HOST without PORT"),
    (
        &["key_file", "key_fd"],
        |task| matches!(task, Serve(_) | Wire(Server(..), _) | Limits(Server(..), _)),
        "serve and HOST:PORT",
    ),
    (LAUNCHING, is_launched, "HOST without PORT"),
    (
        &["via"],
        |task| is_launched(task) && !matches!(task, Wire(_, Rails)),
        "HOST without PORT, except rails, which measures every network",
    ),
    (&["relay"], |_| false, "copies: a stream through ssh does not measure the network"),
];

/// Whether the launcher starts the other end.
fn is_launched(task: &Task) -> bool {
    matches!(task, Wire(Launched(_), _) | Limits(Launched(_), _))
}

/// Returns the name of a task.
pub(super) fn name(task: &Task) -> String {
    let other_end = |target: &Target| match target {
        Launched(_) => "HOST",
        Server(..) => "HOST:PORT",
    };
    match task {
        Serve(_) => "serve".to_owned(),
        Storage(_) => "disk".to_owned(),
        Memory => "mem".to_owned(),
        Model => "model".to_owned(),
        Compare => "--compare alone".to_owned(),
        Limits(target, _) => format!("{} limits", other_end(target)),
        Wire(target, mode) => {
            let mode = MODES.iter().find(|(_, known)| known == mode).map(|(word, _)| format!(" {word}"));
            format!("{}{}", other_end(target), mode.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::perf::PerfArguments;
    use crate::cli::{Arguments, uses};

    #[test]
    fn every_option_is_for_something() {
        uses::hold_to(USES, &PerfArguments::command());
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        let said = |line: &str| {
            let given = PerfArguments::command().try_get_matches_from(line.split(' '));
            PerfArguments::refused(&given.unwrap_or_else(|error| panic!("{line}: {error}")))
        };
        for (line, expected) in [
            ("mem --size 4K", "--size cannot be used with mem; it is for bw, lat, ping, rails and disk"),
            ("mem --all", "--all cannot be used with mem; it is for bw, lat, ping and rails"),
            ("mem --port-range 1-2", "--port-range cannot be used with mem; it is for serve, and HOST without PORT"),
            ("disk . --transport tcp", "--transport cannot be used with disk; it is for HOST"),
            ("disk . --all", "--all cannot be used with disk; it is for bw, lat, ping and rails"),
            ("model --reverse", "--reverse cannot be used with model; it is for bw and rails"),
            ("h lat --once", "--once cannot be used with HOST lat; it is for serve"),
            ("lat h --qp 2", "--qp cannot be used with HOST lat; it is for bw, qps, rails and limits"),
            ("h lat --bidirectional", "--bidirectional cannot be used with HOST lat; it is for bw and rails"),
            ("h --key-file nokey", "--key-file cannot be used with HOST; it is for serve and HOST:PORT"),
            ("h:7 -J x bw", "-J cannot be used with HOST:PORT bw; it is for HOST without PORT"),
            ("h:7 limits --agent x", "--agent cannot be used with HOST:PORT limits; it is for HOST without PORT"),
            (
                "h rails --via e0",
                "--via cannot be used with HOST rails; it is for HOST without PORT, except rails, which measures \
                every network",
            ),
            (
                "h:7 --relay",
                "--relay cannot be used with HOST:PORT; it is for copies: a stream through ssh does not measure the \
                network",
            ),
            ("h qps --all", "--all cannot be used with HOST qps; it is for bw, lat, ping and rails"),
            ("serve --json", "--json cannot be used with serve; it is for tasks that measure"),
            (
                "--plot x.svg --compare x --json",
                "--json cannot be used with --compare alone; it is for tasks that measure",
            ),
        ] {
            assert_eq!(said(&format!("rdperf {line}")).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "mem --duration 1 --json --plot x.svg -v",
            "model --clients 3 --sram 1M --left 0.5 --json",
            "disk . --size 4K --depth 2 --duration 1",
            "serve 7000 --once --port-range 1-2 --key-file x -v",
            "h lat --depth 16 --poll --transport rdma --iterations 3 --all",
            "h ping --size 2 --iterations 3 -J x -P 3 -o x --via e0",
            "h --qp 2 --reverse --size 4",
            "h qps --iterations 3 --qp 3 --depth 2",
            "h rails --all --qp 2 --bidirectional --port-range 1-9",
            "h:7 limits --source x --qp 2 --key-fd 3",
            // The task is not known; the code that parses these words reports that.
            "--once",
            "h nothing --once",
        ] {
            assert_eq!(said(&format!("rdperf {line}")), None, "{line}");
        }
    }
}
