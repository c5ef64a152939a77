//! This program in the place of ssh: a process between the caller and the agent that forwards their messages. On
//! request it tells the caller that the agent listens at a proxy with faults.

use std::io::{BufReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rdma_pipe::control::channel::{Outbox, receive, skip_to_magic};
use rdma_pipe::control::endpoints::loopback;
use rdma_pipe::control::frames::{Endpoint, MAGIC, Message};

use crate::plan;
use crate::rig::Random;
use crate::rig::proxy::{Damage, Plan, Proxy, Spot, Way};

/// Environment variable that makes this program a launcher.
pub const IS_LAUNCHER: &str = "RD_FAULTS_LAUNCHER";

/// Environment variables: seed of the faults, number of bytes over which they are spread, whether the data flows from
/// the listener, and file that records the faults.
pub const SEED: &str = "RD_FAULTS_SEED";
pub const BYTES: &str = "RD_FAULTS_BYTES";
pub const DOWN: &str = "RD_FAULTS_DOWN";
pub const LOG: &str = "RD_FAULTS_LOG";

/// Environment variable that replaces them: the second connection is reset once this many bytes have gone to the agent.
pub const CUT: &str = "RD_FAULTS_CUT";

/// Exit code of ssh if the connection is lost.
const CONNECTION_LOST: i32 = 255;

/// Runs the command given as the second argument.
pub fn be_launcher() -> ExitCode {
    let command = std::env::args().nth(2).expect("a host and a command");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {command}")]).env_remove(IS_LAUNCHER);
    let mut agent = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let (to_agent, from_agent) = (agent.stdin.take().expect("piped"), agent.stdout.take().expect("piped"));
    if [SEED, CUT].iter().any(|name| std::env::var_os(name).is_some()) {
        edit(to_agent, from_agent);
    } else {
        std::thread::spawn(move || pass_on(std::io::stdin(), to_agent));
        pass_on(from_agent, std::io::stdout());
    }
    let status = agent.wait().expect("a child");
    ExitCode::from(status.code().map_or(CONNECTION_LOST as u8, |code| code as u8))
}

fn pass_on(mut from: impl Read, mut to: impl Write) {
    let mut bytes = vec![0; 32 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) if to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_ok() => {}
            _ => std::process::exit(CONNECTION_LOST),
        }
    }
}

fn edit(to_agent: impl Write + Send + 'static, from_agent: impl Read) {
    std::thread::spawn(move || pass_on(std::io::stdin(), to_agent));
    let mut from_agent = BufReader::new(from_agent);
    if skip_to_magic(&mut from_agent).is_err() {
        return;
    }
    let to_caller = Outbox::start(std::io::stdout(), MAGIC, None).expect("a thread");
    let mut proxies = Vec::new();
    while let Ok(message) = receive(&mut from_agent) {
        to_caller.send(elsewhere(message, &mut proxies));
    }
    to_caller.flush(Duration::from_secs(5));
}

/// Replaces the agent's address in a message by that of a proxy, as an address that the user has asked for.
fn elsewhere(message: Message, proxies: &mut Vec<Proxy>) -> Message {
    match message {
        Message::Listening(endpoints) => {
            let target = endpoints.first().expect("an endpoint").port;
            let number = |name: &str| std::env::var(name).expect("both are set").parse::<u64>().expect("a number");
            let network = || {
                let mut random = Random::new(number(SEED) + proxies.len() as u64);
                let data = if std::env::var_os(DOWN).is_some() { Way::Down } else { Way::Up };
                let log = std::env::var_os(LOG).expect("it is set").into();
                plan::network(&mut random, number(BYTES), data, log)
            };
            let cut = || {
                let spot = Spot { way: Way::Up, connection: Some(1), offset: number(CUT) };
                Plan { damage: vec![(spot, Damage::Reset)], ..Plan::default() }
            };
            let proxy = Proxy::start(target, if std::env::var_os(CUT).is_some() { cut() } else { network() });
            let [endpoint, _] = loopback(proxy.port());
            proxies.push(proxy);
            Message::Listening(vec![Endpoint { is_via: true, ..endpoint }])
        }
        Message::ForEnd { end, message } => {
            let inner = message.decode().expect("a message").expect("of this version");
            elsewhere(inner, proxies).for_end(end).expect("it is as short")
        }
        other => other,
    }
}
