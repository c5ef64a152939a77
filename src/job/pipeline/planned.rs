//! What a pipeline would do, for `--dry-run`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Plan;
use super::grammar::{Part, Placed};
use crate::cli::json;
use crate::control::frames::Action;
use crate::fault::escaped;

/// What would be done, for `--dry-run`.
pub(crate) fn planned(plan: &Plan<'_>) -> json::WouldRun {
    let command = |stage: usize| escaped(OsStr::from_bytes(plan.specs[stage].text.trim_ascii()));
    let host = |stage: Option<usize>| stage.map_or("localhost".to_owned(), |stage| plan.specs[stage].label());
    let stage = |stage: &Placed| json::PlannedStage {
        host: host(Some(stage.number)),
        action: match &stage.action {
            Action::Run { .. } => json::StageAction::Run,
            Action::Read { .. } => json::StageAction::Read,
            Action::Write { .. } => json::StageAction::Write,
            Action::Tee { .. } => json::StageAction::Tee,
        },
        command: command(stage.number),
    };
    let hop = |&(from, to): &(Option<usize>, Option<usize>)| {
        let here = |stage: Option<usize>| stage.is_none_or(|stage| plan.specs[stage].host.is_empty());
        let sender_listens = match (here(from), here(to)) {
            (false, true) => plan.setup.name.is_none(),
            (true, false) => plan.setup.name.is_some(),
            _ => false,
        };
        json::PlannedHop {
            from: host(from),
            from_command: from.map(command),
            to: host(to),
            to_command: to.map(command),
            listener: host(if sender_listens { from } else { to }),
            ports: plan.transfer.port_range.as_ref().map(|ports| [*ports.start(), *ports.end()]),
            through_launcher: plan.setup.relay,
        }
    };
    let mut agents: Vec<String> =
        plan.specs.iter().filter(|spec| !spec.host.is_empty()).map(|spec| escaped(&spec.host)).collect();
    agents.sort_unstable();
    agents.dedup();
    let part = |part: &Part| json::PlannedPart {
        stages: part.stages.iter().map(stage).collect(),
        hops: part.hops.iter().map(hop).collect(),
    };
    json::WouldRun { parts: plan.parts.iter().map(part).collect(), agents }
}

/// The same, for a person.
pub(crate) fn lines(planned: &json::WouldRun, plan: &Plan<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, part) in planned.parts.iter().enumerate() {
        if planned.parts.len() > 1 {
            let after = if number > 0 { ", when the one before has finished" } else { "" };
            lines.push(format!("part {}{after}", number + 1));
        }
        for stage in &part.stages {
            let how = match stage.action {
                json::StageAction::Run => "runs",
                json::StageAction::Read => "reads",
                json::StageAction::Write => "writes",
                json::StageAction::Tee => "writes and passes on",
            };
            lines.push(format!("{} {how} '{}'", stage.host, stage.command));
        }
        for hop in &part.hops {
            let port = match hop.ports {
                _ if hop.through_launcher => "through the launcher".to_owned(),
                Some([first, last]) => format!("a port of {first}-{last}"),
                None => "a free port".to_owned(),
            };
            let end = |host: &str, command: &Option<String>, standard: &str| match command {
                Some(command) => format!("{host} ('{command}')"),
                None => format!("{host} ({standard})"),
            };
            let source = end(&hop.from, &hop.from_command, "standard input");
            let target = end(&hop.to, &hop.to_command, "standard output");
            lines.push(format!("data: {source} -> {target}; {} listens, {port}", hop.listener));
        }
    }
    for host in &planned.agents {
        lines.push(format!(
            "agent: {} {host} {}",
            escaped(plan.setup.launcher.name()),
            escaped(&plan.setup.agent.program)
        ));
    }
    lines
}
