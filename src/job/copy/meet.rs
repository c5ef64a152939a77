//! How the two ends of a copy find each other: one listens and the other connects, or through the channels.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::Copy;
use crate::control::endpoints;
use crate::control::frames::Message;
use crate::fault::{Exit, Failure, escaped};

/// How long an end may take to listen, or to try all endpoints of the other.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// Whether two ends have met.
enum Met {
    /// Yes, or one of them has failed and says so itself.
    Yes,
    /// They cannot reach each other that way.
    No(String),
    /// The one that was to listen cannot.
    NotListening(String),
}

impl Copy<'_> {
    /// Has two ends meet: one listens and the other connects, then the other way round, then through the channels. An
    /// end that fails for another reason is left for [`Self::outcomes`] to be told of.
    pub(super) fn connect(&mut self, listener: usize, dialer: usize) -> Result<(), Failure> {
        let mut listening = None;
        let mut reason = String::new();
        for (listener, dialer) in [(listener, dialer), (dialer, listener)] {
            match self.meet(listener, dialer)? {
                Met::Yes => return Ok(()),
                Met::No(why) => {
                    listening.get_or_insert((listener, dialer));
                    reason = why;
                }
                Met::NotListening(failure) if listening.is_none() => reason = failure,
                Met::NotListening(_) => {}
            }
        }
        let Some((listener, dialer)) = listening else {
            return Err(Failure::new(Exit::Connect, reason));
        };
        if self.plan.via.is_some() {
            return Err(Failure::new(Exit::Connect, format!("no connection by --via: {reason}")));
        }
        if !self.plan.relay {
            let (one, other) = (self.sides[listener].label(), self.sides[dialer].label());
            let launcher = self.launcher_name();
            self.say(&format!(
                "{one} and {other} cannot reach a port of each other ({reason}); the data goes through {launcher}, slower"
            ));
        }
        self.tunneled = true;
        self.send(dialer, Message::DialTunnel);
        match self.told_of_meeting(listener, dialer, CONNECT_MAX)? {
            Met::Yes => Ok(()),
            Met::No(why) | Met::NotListening(why) => {
                Err(Failure::new(Exit::Connect, format!("no connection through {}: {why}", self.launcher_name())))
            }
        }
    }

    fn meet(&mut self, listener: usize, dialer: usize) -> Result<Met, Failure> {
        let via = self.plan.via.as_ref().map_or(Vec::new(), |via| via.as_bytes().to_vec());
        self.send(listener, Message::Listen { via: via.clone() });
        let endpoints = match self.answer(listener, CONNECT_MAX)? {
            Message::Listening(endpoints) => endpoints,
            Message::Failed(fault) => {
                return Ok(Met::NotListening(self.sides[listener].failure(&fault).message.unwrap_or_default()));
            }
            ended @ Message::Ended(_) => {
                self.later.push_back((listener, ended));
                return Ok(Met::Yes);
            }
            _ => return Err(self.unexpected(listener)),
        };
        if self.plan.relay {
            return Ok(Met::No("--relay".to_owned()));
        }
        let (endpoints, via) = endpoints::offered(endpoints, &via, self.same_kernel(listener, dialer));
        self.send(dialer, Message::Dial { endpoints, via });
        self.told_of_meeting(listener, dialer, CONNECT_MAX)
    }

    fn told_of_meeting(&mut self, listener: usize, dialer: usize, within: Duration) -> Result<Met, Failure> {
        let deadline = Instant::now() + within;
        loop {
            match self.next(deadline)? {
                Some((side, Message::Dialed)) if side == dialer => return Ok(Met::Yes),
                Some((side, Message::DialFailed(why))) if side == dialer => {
                    return Ok(Met::No(escaped(OsStr::new(&why))));
                }
                // An end that cannot do its part says so, before it meets the other.
                Some((side, ended @ Message::Ended(_))) => {
                    self.later.push_back((side, ended));
                    return Ok(Met::Yes);
                }
                Some(_) => {}
                None => {
                    let [one, other] = [dialer, listener].map(|side| self.sides[side].label());
                    let within = within.as_secs();
                    return Err(Failure::new(
                        Exit::Connect,
                        format!(
                            "no connection from {one} to {other} within {within} s; rddoctor tells more, or use --relay"
                        ),
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser;

    use super::super::{HERE, Side};
    use super::*;
    use crate::agent::end::End;
    use crate::cli::options::ReportOptions;
    use crate::cli::report::Reporter;
    use crate::control::launch::Launcher;
    use crate::job::launching::{AgentChoice, Otherwise, Voice};
    use crate::job::plan::{Plan, Spec};
    use crate::options::{TransferOptions, TreeOptions};

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        transfer: TransferOptions,
        #[command(flatten)]
        report: ReportOptions,
    }

    /// Of several hosts, those that were to meet.
    #[test]
    fn two_that_do_not_meet_are_named() {
        let options = Options::try_parse_from(["rdcp"]).expect("no option is needed");
        let plan = Plan {
            sources: Vec::new(),
            destination: Spec::Standard,
            directory: false,
            exact: false,
            recursive: false,
            tree: TreeOptions::default(),
            dry_run: false,
            relay: false,
            via: None,
            launcher: Launcher::new(OsStr::new("rsh"), Vec::new()).expect("a command"),
            agent: AgentChoice { command: "rdcp", program: "agent".into(), otherwise: Otherwise::Fail, quiet: false },
            transfer: &options.transfer,
            report: &options.report,
        };
        let reporter = Reporter::open(&options.report, false).expect("none was asked for");
        let (post, news) = flume::unbounded();
        let mut copy = Copy::heedless(&plan, &reporter, post, news);
        for host in ["h1", "h2", "h3"] {
            let voice = Voice::Here(End::new(Arc::new(|_| {}), true));
            copy.sides.push(Side::new(host.into(), voice));
        }
        for (listener, dialer, words) in
            [(3, 1, "from h1 to h3"), (3, 2, "from h2 to h3"), (2, HERE, "from this host to h2")]
        {
            let told = copy.told_of_meeting(listener, dialer, Duration::ZERO);
            let failure = told.err().expect("nobody said anything");
            assert_eq!(failure.exit, Exit::Connect);
            assert!(failure.message.as_ref().is_some_and(|line| line.contains(words)), "{failure:?}");
        }
    }
}
