//! `rdperf serve`: the end that answers.

use super::PerfArguments;
use crate::agent::measure::session;
use crate::cli::key;
use crate::cli::recv::own_address;
use crate::cli::words::{measured, not_listening, too_many_guesses};
use crate::engine::listen::{Further, Incoming, Listener};
use crate::engine::{Event, channel};
use crate::fault::Failure;
use crate::transport::unmapped;

pub(super) fn serve(arguments: &PerfArguments, port: u16) -> Result<(), Failure> {
    let (key, generated) = key::given_or_made(None, &arguments.key)?;
    key::warn_of_readers("rdperf", &arguments.key, false);
    let (post, mut events) = channel();
    let ports = arguments.serve.port_range.clone();
    let listener = Listener::start(port, ports.clone(), key, post, Further::Reported)
        .map_err(|error| not_listening(&error, port, ports.as_ref()))?;
    match &generated {
        Some(text) => {
            let address = own_address();
            let address = if address.contains(':') { format!("[{address}]") } else { address };
            crate::cli::say(&format!("RD_KEY={text} rdperf {address}:{}", listener.port()));
        }
        None => crate::cli::say(&format!("rdperf: waiting on port {}", listener.port())),
    }
    let verbose = arguments.output.verbose;
    loop {
        // The server runs until a signal ends it.
        let Ok(event) = events.recv() else { return Ok(()) };
        match event {
            Event::Incoming(Incoming::First(stream, established)) => {
                let peer = stream.peer_addr().map_or("?".to_owned(), |peer| unmapped(peer).ip().to_string());
                if verbose {
                    crate::cli::say(&format!("rdperf: {peer} is measuring"));
                }
                let outcome = session(&events, stream, *established, ports.as_ref());
                if let Err(error) = &outcome {
                    let failure = measured(error, &peer);
                    crate::cli::complain("rdperf", &failure.message.unwrap_or_default());
                }
                if arguments.serve.once {
                    return outcome.map_err(|error| Failure::silent(measured(&error, &peer).exit));
                }
                let (post, fresh) = channel();
                // Connections of the finished session are dropped with its channel.
                events = fresh;
                crate::locked(listener.registry()).clear(post);
            }
            Event::Incoming(Incoming::TooManyGuesses) => return Err(too_many_guesses()),
            Event::Incoming(Incoming::Stranger(address)) if verbose => {
                crate::cli::say(&format!("rdperf: {} has a different KEY", unmapped(address).ip()));
            }
            _ => {}
        }
    }
}
