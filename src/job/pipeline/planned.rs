//! Describes what a pipeline would do, for `--dry-run`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Plan;
use super::grammar::{Part, Placed};
use crate::control::frames::Action;
use crate::fault::escaped;
use crate::job::event;

/// Returns what would be done, for `--dry-run`.
pub(crate) fn planned(plan: &Plan<'_>) -> event::WouldRun {
    let command = |stage: usize| escaped(OsStr::from_bytes(plan.specs[stage].text.trim_ascii()));
    let host = |stage: Option<usize>| stage.map_or("localhost".to_owned(), |stage| plan.specs[stage].label());
    let stage = |stage: &Placed| event::PlannedStage {
        host: host(Some(stage.number)),
        action: match &stage.action {
            Action::Run { .. } => event::StageAction::Run,
            Action::Read { .. } => event::StageAction::Read,
            Action::Write { .. } => event::StageAction::Write,
            Action::Tee { .. } => event::StageAction::Tee,
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
        event::PlannedHop {
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
    let part = |part: &Part| event::PlannedPart {
        stages: part.stages.iter().map(stage).collect(),
        hops: part.hops.iter().chain(&chain(plan, part)).map(hop).collect(),
    };
    event::WouldRun { parts: plan.parts.iter().map(part).collect(), agents }
}

/// Returns the hops between several hosts that get one stream: from each host to the next.
fn chain(plan: &Plan<'_>, part: &Part) -> Vec<(Option<usize>, Option<usize>)> {
    let (Some(feed), Some(branching)) = (part.feed, plan.branching) else { return Vec::new() };
    let stages: Vec<Option<usize>> =
        std::iter::once(feed).chain((branching.first..plan.specs.len()).map(Some)).collect();
    stages.windows(2).map(|two| (two[0], two[1])).collect()
}
