//! The agent: the remote end of a copy, or a host of a pipeline, started by the launcher on another host.
//!
//! # When it ends
//!
//! * Its standard input ends in order, because the caller is done or has died, or the launcher was cut off. A running
//!   session of a copy goes on as long as it has a lane, and ends after two seconds without one. If the session's other
//!   end is not the caller and has lost its caller as well, the session ends at once, because no caller is left to
//!   report to. A pipeline, and a copy within this host, end at once.
//! * The network is cut silently. The session has its reconnect window. The agent ends three seconds later, or with a
//!   node of a broadcast a minute later, if nothing has come from the caller meanwhile: the caller is then out of reach
//!   as well. A caller that is there answers the report of a lost link with STILL_HERE.
//! * It gets SIGINT, SIGQUIT, SIGTERM or SIGHUP.
//! * Its standard input contains something that is not a message.
//! * The caller has said that it will request nothing more (END_WHEN_DONE), and each stage and session has reported its
//!   end.

use super::{Agent, Ended};
use std::io::{BufReader, IsTerminal};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, unbounded};

use crate::control::channel::{BEAT, ChannelError, Outbox, receive};
use crate::control::frames::{Fault, Hello, MAGIC, MAJOR, Message, MessageError};
use crate::control::logs;
use crate::control::tunnel::Emit;
use crate::fault::{Exit, Failure};
use crate::fs::{accounts, standard};

/// How long a caller may take to send its HELLO.
const HELLO_MAX: Duration = Duration::from_secs(60);

/// How long the last messages may take to be written.
const FLUSH_MAX: Duration = Duration::from_millis(300);

/// How long a stage of a pipeline waits for the caller to take its messages before it goes on.
const READER_MAX: Duration = Duration::from_secs(3600);

/// How often to check whether a session has lost its link.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

enum Input {
    Message(Message),
    Gone,
    Broken(MessageError),
    Signal(i32),
    /// A stage or a session has reported its end.
    Ended,
}

/// Serves the caller at the other end of standard input and output until the end.
///
/// # Errors
///
/// Exit 1 if a person has started the agent, 3 if it cannot start, 9 if the caller breaks the protocol.
pub(crate) fn serve() -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        return Err(Exit::Usage
            .with("rdcp, rdpipe, rdsh, rdperf and rddoctor start this program on other hosts; do not run it by hand"));
    }
    let system = |error: std::io::Error| Exit::Connect.with(format!("cannot start: {error}"));
    // Relative paths start at the login's home, even if the launcher is not ssh.
    if let Some(home) = accounts::own_home() {
        let _ = std::env::set_current_dir(home);
    }
    // A path may lead to these descriptors. Data written there must not be taken for messages of this agent, and data
    // read there must not be taken from the caller's messages.
    let [stdin, stdout] = standard::take().map_err(system)?;
    let outbox = Outbox::start(stdout, MAGIC, Some(BEAT)).map_err(system)?;
    outbox.send(Message::Hello(Hello::ours()));
    let (post, inputs) = unbounded();
    let (signals, ends) = (post.clone(), post.clone());
    let _forwarding =
        crate::signals::forward(true, move |signal| signals.send(Input::Signal(signal)).is_ok()).map_err(system)?;
    let read = move || {
        let mut stdin = BufReader::new(stdin);
        let last = loop {
            match receive(&mut stdin) {
                Ok(message) => {
                    if post.send(Input::Message(message)).is_err() {
                        return;
                    }
                }
                Err(ChannelError::Message(error)) => break Input::Broken(error),
                Err(_) => break Input::Gone,
            }
        };
        let _ = post.send(last);
    };
    // Without optimization, the code that reads messages takes a quarter of a MiB of stack.
    crate::spawn("caller", 512 << 10, read).map_err(system)?;

    match inputs.recv_timeout(HELLO_MAX) {
        Ok(Input::Message(Message::Hello(theirs))) if theirs.major == MAJOR => {}
        Ok(Input::Broken(error)) => return Err(broken(&error)),
        // This agent's HELLO lets the caller report what is wrong.
        _ => {
            outbox.flush(FLUSH_MAX);
            return Ok(());
        }
    }
    let messages = outbox.clone();
    let say: Emit = Arc::new(move |message| send(&messages, message));
    let messages = outbox.clone();
    let tell: Emit = Arc::new(move |message| {
        send(&messages, message);
        // The writer of standard error waits for its reader, as with a pipe.
        messages.flush(READER_MAX);
    });
    let ended: Ended = Arc::new(move || drop(ends.send(Input::Ended)));
    let mut agent = Agent::new(say, tell, ended, true, true);
    let (mut ends_when_done, mut ended) = (false, 0);
    let mut silence = Silence::default();
    let mut outcome = Ok(());
    loop {
        let input = match inputs.recv_timeout(LOOK_AGAIN) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) if silence.goes_beyond(agent.silence_max()) => break,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if matches!(input, Input::Message(_)) {
            agent.note_caller();
            silence = Silence::default();
        }
        match input {
            Input::Message(Message::TellLog(level)) => logs::tell(&outbox, level),
            Input::Message(Message::EndWhenDone) => ends_when_done = true,
            Input::Message(message) => agent.handle(message),
            Input::Ended => ended += 1,
            Input::Gone => {
                if let Some(number) = wait(&agent.abandon(), &inputs) {
                    agent.stop(number as u8);
                }
                break;
            }
            Input::Signal(number) if number == libc::SIGTSTP => {}
            Input::Signal(number) => {
                agent.stop(number as u8);
                break;
            }
            Input::Broken(error) => {
                agent.stop(libc::SIGTERM as u8);
                outcome = Err(broken(&error));
                break;
            }
        }
        if ends_when_done && ended >= agent.begun {
            break;
        }
    }
    agent.finish();
    outbox.flush(FLUSH_MAX);
    outcome
}

/// How long an agent whose session has lost its other end has waited in vain for a word from its caller. Only waits
/// count: while this process is itself stopped, messages may be coming.
#[derive(Default)]
struct Silence(Duration);

impl Silence {
    /// Counts another wait of [`LOOK_AGAIN`], unless nothing is lost (`limit` is `None`). Reports whether the limit has
    /// passed.
    fn goes_beyond(&mut self, limit: Option<Duration>) -> bool {
        self.0 = limit.map_or(Duration::ZERO, |_| self.0 + LOOK_AGAIN);
        limit.is_some_and(|limit| self.0 > limit)
    }
}

fn broken(error: &MessageError) -> Failure {
    Exit::Protocol.with(format!("the caller broke the protocol: {error}"))
}

/// Sends a message. If it is too long, the caller gets a failure instead, because it may be waiting for an answer.
fn send(outbox: &Outbox, message: Message) {
    if !outbox.try_send(message) {
        outbox.send(Message::Failed(Fault::plain(Exit::Protocol.code(), "the answer is too long for one message")));
    }
}

/// Waits until each session has ended or its limit has passed. Returns the signal that ends the wait, if one comes.
/// SIGTSTP is ignored, as it is while there is a caller.
fn wait(sessions: &[(JoinHandle<()>, Option<Duration>)], inputs: &Receiver<Input>) -> Option<i32> {
    let start = Instant::now();
    let is_awaited = |(session, limit): &(JoinHandle<()>, Option<Duration>)| {
        !session.is_finished() && limit.is_none_or(|limit| start.elapsed() < limit)
    };
    while sessions.iter().any(is_awaited) {
        let signal = inputs.try_iter().find_map(|input| match input {
            Input::Signal(number) if number != libc::SIGTSTP => Some(number),
            _ => None,
        });
        if signal.is_some() {
            return signal;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits of several sessions run at the same time. A signal is for all of them.
    #[test]
    fn abandoned_sessions_are_waited_for_together() {
        let sessions = |limit: Option<Duration>| {
            let (hold, held) = unbounded::<()>();
            let session = |_| {
                let held = held.clone();
                let run = move || {
                    let _ = held.recv();
                };
                (std::thread::spawn(run), limit)
            };
            let sessions: Vec<(JoinHandle<()>, Option<Duration>)> = (0..10).map(session).collect();
            (hold, sessions)
        };
        let (post, inputs) = unbounded();
        let (_hold, limited) = sessions(Some(Duration::from_millis(500)));
        let start = Instant::now();
        post.send(Input::Signal(libc::SIGTSTP)).expect("a queue");
        assert_eq!(wait(&limited, &inputs), None);
        let waited = start.elapsed();
        assert!((500..4000).contains(&waited.as_millis()), "{waited:?}");
        let (_hold, unlimited) = sessions(None);
        for number in [libc::SIGTSTP, libc::SIGTERM] {
            post.send(Input::Signal(number)).expect("a queue");
        }
        assert_eq!(wait(&unlimited, &inputs), Some(libc::SIGTERM));
    }

    /// What was lost before and has been replaced does not count, and neither does time with nothing lost.
    #[test]
    fn only_silence_after_a_loss_ends_an_agent() {
        let (limit, mut silence) = (Some(4 * LOOK_AGAIN), Silence::default());
        for _ in 0..3 {
            assert!((0..100).all(|_| !silence.goes_beyond(None)));
            assert!((0..4).all(|_| !silence.goes_beyond(limit)));
        }
        assert!(silence.goes_beyond(limit));
    }
}
