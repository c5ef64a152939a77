//! How a job handles what it receives.

use super::*;
use crate::control::frames::{Fault, Report};
use crate::job::launching::Otherwise;

/// Returns a job whose hosts are not started.
pub(super) fn job() -> Job {
    let launcher = Launcher::new(OsStr::new("rsh"), Vec::new()).expect("a command");
    let agent = AgentChoice { command: "rddoctor", program: "a".into(), otherwise: Otherwise::Fail, remark: None };
    let (parallel, via) = (0, Vec::new());
    let setup = Setup { launcher, agent, parallel, relay: false, via, name: None, may_ask: false };
    Job::without_signals(setup, false)
}

#[test]
fn a_host_that_answers_too_late_fails_no_other() {
    let mut job = job();
    let [late, asked] = ["late", "asked"].map(|name| job.host(OsStr::new(name)).expect("a host"));
    job.hosts[late].gone = true;
    for host in [late, asked] {
        job.updates.push_back(Update::Host(host, Message::Watched));
    }
    assert_eq!(job.answer(asked, Duration::from_secs(1)).expect("its own"), Message::Watched);
    job.updates.push_back(Update::Host(late, Message::Watched));
    job.hosts[late].gone = false;
    assert_eq!(job.answer(asked, Duration::from_secs(1)).expect_err("unasked").exit, Exit::Protocol);
}

/// If hosts fail alone, a host that sends what was not requested is lost, and no other host.
#[test]
fn a_host_that_speaks_unasked_fails_no_other() {
    let mut job = job();
    job.fails_alone = true;
    let [loud, asked] = ["loud", "asked"].map(|name| job.host(OsStr::new(name)).expect("a host"));
    for host in [loud, loud, asked] {
        job.updates.push_back(Update::Host(host, Message::Watched));
    }
    assert_eq!(job.answer(asked, Duration::from_secs(1)).expect("its own"), Message::Watched);
    let Some(Update::Gone(lost, Some(failure))) = job.updates.pop_front() else { panic!("nobody is lost") };
    assert_eq!((lost, failure.exit, job.updates.len()), (loud, Exit::Protocol, 0));
    assert!(job.hosts[loud].gone && !job.hosts[asked].gone);
}

/// A host that sends data through the channels without credit is lost, and not the host that cannot take it so fast.
#[test]
fn a_host_that_floods_a_tunnel_is_lost_alone() {
    let mut job = job();
    let hosts = ["floods", "slow"].map(|name| job.host(OsStr::new(name)).expect("a host"));
    let names = ["floods".to_owned(), "slow".to_owned()];
    let hop = job.add(Hop::new(hosts, names, [0, 1], false, &job.setup));
    job.hops[hop].tunneled = true;
    job.hear_end(hop, Side::From, Message::TunnelOpen(0));
    let mut sent = 0;
    while job.updates.is_empty() && sent < 4096 {
        job.hear_end(hop, Side::From, Message::TunnelData { id: 0, bytes: vec![0; 64 << 10] });
        sent += 1;
    }
    let Some(Update::Gone(lost, Some(failure))) = job.updates.pop_front() else { panic!("nobody is lost") };
    assert_eq!((lost, failure.exit, sent), (hosts[0], Exit::Protocol, 33));
}

/// Returns a job with two hosts and a hop between them.
fn job_with_hop() -> (Job, [usize; 2], usize) {
    let mut job = job();
    let hosts = ["from", "to"].map(|name| job.host(OsStr::new(name)).expect("a host"));
    let hop = job.add(Hop::new(hosts, ["from".to_owned(), "to".to_owned()], [0, 1], false, &job.setup));
    (job, hosts, hop)
}

/// What the receiver lists may take longer on a slow line than an end may take to report its outcome.
#[test]
fn a_receiver_that_lists_entries_is_awaited() {
    let (short, long) = (2 * SECOND_MAX, 2 * LISTING_MAX);
    for (lists, is_lost, has_failed, silent, is_settled) in [
        (false, false, false, short, true),
        (true, false, false, short, false),
        (true, false, false, long, true),
        (true, true, false, short, true),
        (true, false, true, short, true),
    ] {
        let (mut job, [_, to], hop) = job_with_hop();
        if lists {
            job.take_entries(Box::new(|_| Ok(()))).expect("a thread");
        }
        let fault = has_failed.then(|| Fault::plain(Exit::Source.code(), "gone"));
        job.hops[hop].note_ended(Side::From, Report { fault, ..Report::default() });
        job.hops[hop].ended_since = Instant::now().checked_sub(silent);
        job.hosts[to].gone = is_lost;
        assert_eq!(job.is_settled(hop), is_settled, "{lists} {is_lost} {has_failed} {silent:?}");
    }
}

/// What stands at the destination is known there alone. A copy within a host has only one end.
#[test]
fn a_sender_that_lists_entries_is_lost() {
    for (side, is_within) in [(Side::From, false), (Side::To, false), (Side::From, true)] {
        let (mut job, [from, to], mut hop) = job_with_hop();
        if is_within {
            hop = job.add(Hop::within(to, "to".to_owned(), 2));
        }
        job.take_entries(Box::new(|_| Ok(()))).expect("a thread");
        job.hear_end(hop, side, Message::Entries(Vec::new()));
        let is_refused = side == Side::From && !is_within;
        assert_eq!(job.hosts.iter().filter(|host| host.gone).count(), usize::from(is_refused), "{side:?} {is_within}");
        if is_refused {
            let Some(Update::Gone(lost, Some(failure))) = job.updates.pop_front() else { panic!("nobody is lost") };
            assert_eq!((lost, failure.exit), (from, Exit::Protocol));
        }
    }
}

/// The job may wait for the reader of its output for days.
#[test]
fn own_states_that_are_not_taken_are_bounded() {
    let mut job = job();
    let state = |bytes| Message::Progress { bytes, waits: Waits::default(), tree: None };
    for message in (0..10_000).map(state).chain([Message::Watched]) {
        post_own(&job.post, message.for_end(0).expect("short"));
        post_own(&job.post, message);
    }
    assert!(job.post.len() <= STATES_WAITING_MAX + 2, "{}", job.post.len());
    let last = std::iter::from_fn(|| job.next(Instant::now())).last();
    assert!(matches!(last, Some(Update::Host(HERE, Message::Watched))), "any other message comes");
}
