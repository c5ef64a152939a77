//! A TCP group of a bundle: one connection, with blocking calls like those of a TCP lane.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{
    Assignment, Flow, Group, LOOK_AGAIN, Measured, Meter, NO_THREAD, Progress, STACK_BYTES, Task, WARM_UP,
    fill_pattern, latency_histogram, record_half,
};
use crate::fault::errno_of;
use crate::transport::{LaneError, tcp};

/// A group of one connection.
pub struct TcpGroup {
    socket: TcpStream,
    poll: bool,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl TcpGroup {
    /// Takes a connected socket. `poll`: whether to poll the socket all the time instead of sleeping until data comes.
    ///
    /// # Errors
    ///
    /// The system's error from setting the socket options.
    pub fn new(socket: TcpStream, poll: bool) -> std::io::Result<Self> {
        tcp::tune(&socket)?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(LOOK_AGAIN))?;
        socket.set_write_timeout(Some(LOOK_AGAIN))?;
        Ok(Self { socket, poll, outgoing: Vec::new(), incoming: Vec::new() })
    }

    /// Allocates buffers for messages of this run's length. Buffers for the largest length from the start would be too
    /// much, because there may be thousands of connections.
    fn make_room(&mut self, plan: &Assignment) {
        let (out, back) = match plan.part {
            Task::Ask => (plan.message_bytes, plan.message_bytes),
            Task::Answer => (0, plan.message_bytes),
            Task::Stream { sends, receives } => (
                if sends { plan.message_bytes } else { 0 },
                if receives { plan.message_bytes.max(plan.receive_bytes) } else { 0 },
            ),
        };
        for (room, bytes) in [(&mut self.outgoing, out), (&mut self.incoming, back)] {
            if room.len() != bytes {
                *room = vec![0; bytes];
            }
        }
    }
}

/// A socket, with the conditions that end a wait on it.
#[derive(Clone, Copy)]
struct Wire<'a> {
    socket: &'a TcpStream,
    poll: bool,
    progress: &'a Progress,
    deadline: Instant,
}

impl Wire<'_> {
    fn check(&self) -> Result<(), LaneError> {
        if self.progress.is_stopped() { Err(LaneError::Closed) } else { Ok(()) }
    }

    /// Fails if a wait must end.
    fn goes_on(&self) -> Result<(), LaneError> {
        self.check()?;
        if Instant::now() >= self.deadline {
            return Err(LaneError::Os { what: "waiting for the other end", error: Errno::TIMEDOUT });
        }
        Ok(())
    }

    fn send_all(&self, message: &[u8]) -> Result<(), LaneError> {
        self.check()?;
        let mut done = 0;
        while done < message.len() {
            match send(self.socket, &message[done..], SendFlags::NOSIGNAL) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.goes_on()?,
                Err(error) => return Err(LaneError::Os { what: "send", error }),
            }
        }
        Ok(())
    }

    /// Receives some bytes; returns 0 if none came within [`LOOK_AGAIN`], or within a number of attempts.
    fn receive(&self, target: &mut [u8]) -> Result<usize, LaneError> {
        let flags = if self.poll { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        self.check()?;
        for _ in 0..1024 {
            match recv(self.socket, &mut *target, flags) {
                Ok((0, _)) => return Err(LaneError::PeerClosed),
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.poll => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(LaneError::Os { what: "receive", error }),
            }
        }
        Ok(0)
    }

    fn receive_all(&self, target: &mut [u8]) -> Result<(), LaneError> {
        let mut done = 0;
        while done < target.len() {
            match self.receive(&mut target[done..])? {
                0 => self.goes_on()?,
                count => done += count,
            }
        }
        Ok(())
    }

    fn ask(&self, plan: &Assignment, out: &mut [u8], back: &mut [u8]) -> Result<Measured, LaneError> {
        let mut outcome = Measured { latency: Some(latency_histogram()), ..Measured::default() };
        let warm_up = if plan.verify.is_some() || plan.messages == 0 { 0 } else { WARM_UP };
        let messages = plan.messages.saturating_add(warm_up);
        let (mut sent, mut received) = (Meter::new(plan), Meter::new(plan));
        let start = Instant::now();
        let mut now = start;
        sent.begin(start);
        let recorded = |outcome: &Measured| outcome.latency.as_ref().map_or(0, |latency| latency.len());
        while sent.flow.messages < messages
            && recorded(&outcome) < plan.messages
            && now.duration_since(start) < plan.duration
        {
            let number = sent.flow.messages;
            if let Some(seed) = plan.verify {
                fill_pattern(out, seed, number);
                now = Instant::now();
            }
            let before = now;
            self.send_all(out)?;
            self.receive_all(back)?;
            now = Instant::now();
            sent.count(1, now);
            received.count(1, now);
            if plan.verify.is_some() && out != back {
                outcome.damaged += 1;
            }
            let is_warm = number >= warm_up || before.duration_since(start) > plan.duration / 10;
            // The last one always counts: on a slow line it may be the only one.
            if (is_warm || now.duration_since(start) >= plan.duration)
                && let Some(latency) = &mut outcome.latency
            {
                record_half(latency, now - before);
            }
        }
        (outcome.sent, outcome.received) = (sent.flow, received.flow);
        Ok(outcome)
    }

    fn answer(&self, message: &mut [u8]) -> Result<Measured, LaneError> {
        // Takes no times: the asking end has them, and here they would only cost.
        let mut flow = Flow::default();
        let mut have = 0;
        while !self.progress.is_complete() {
            match self.receive(&mut message[have..])? {
                0 => self.goes_on()?,
                count => have += count,
            }
            if have == message.len() {
                have = 0;
                self.send_all(message)?;
                flow.messages += 1;
                self.progress.count_received(1);
            }
        }
        Ok(Measured { sent: flow.clone(), received: flow, ..Measured::default() })
    }

    fn stream_out(&self, plan: &Assignment, message: &[u8]) -> Result<Meter, LaneError> {
        let mut meter = Meter::new(plan);
        let start = Instant::now();
        meter.begin(start);
        let mut now = start;
        while meter.flow.messages < plan.messages && now.duration_since(start) < plan.duration {
            self.send_all(message)?;
            now = Instant::now();
            meter.count(1, now);
        }
        Ok(meter)
    }

    fn stream_in(&self, plan: &Assignment, target: &mut [u8]) -> Result<Meter, LaneError> {
        let mut meter = Meter::new(plan);
        let mut part = 0;
        while !self.progress.is_complete() {
            match self.receive(target)? {
                0 => self.goes_on()?,
                count => part += count,
            }
            let whole = part / plan.message_bytes;
            if whole > 0 {
                part %= plan.message_bytes;
                meter.count(whole as u64, Instant::now());
                self.progress.count_received(whole as u64);
            }
        }
        Ok(meter)
    }
}

impl Group for TcpGroup {
    fn connections(&self) -> usize {
        1
    }

    fn run(
        &mut self,
        plan: &Assignment,
        progress: &Progress,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, LaneError> {
        self.make_room(plan);
        let Self { socket, outgoing, incoming, poll } = self;
        let deadline = Instant::now() + plan.duration.min(Duration::from_secs(1 << 20)) + plan.limit;
        let wire = Wire { socket, poll: *poll, progress, deadline };
        match plan.part {
            Task::Ask => {
                let outcome = wire.ask(plan, outgoing, incoming)?;
                sent(outcome.sent.messages);
                Ok(outcome)
            }
            Task::Answer => {
                // The other end's number of messages ends this run. The other end does not need a number from here.
                sent(0);
                wire.answer(incoming)
            }
            Task::Stream { sends, receives } => {
                let out = || -> Result<_, LaneError> {
                    if !sends {
                        sent(0);
                        return Ok(Meter::new(plan));
                    }
                    let meter = wire.stream_out(plan, outgoing)?;
                    sent(meter.flow.messages);
                    Ok(meter)
                };
                let (out, back) = if sends && receives {
                    thread::scope(|scope| {
                        let thread = thread::Builder::new().name("perf".to_owned()).stack_size(STACK_BYTES);
                        let out = thread
                            .spawn_scoped(scope, out)
                            .map_err(|error| LaneError::Os { what: NO_THREAD, error: errno_of(&error) })?;
                        let back = wire.stream_in(plan, incoming);
                        Ok::<_, LaneError>((out.join().expect("no panic in it"), back))
                    })?
                } else if receives {
                    (out(), wire.stream_in(plan, incoming))
                } else {
                    (out(), Ok(Meter::new(plan)))
                };
                Ok(Measured { sent: out?.flow, received: back?.flow, ..Measured::default() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_round_trip_that_outlasts_the_run_is_measured() {
        let listener = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut other, _) = listener.accept().expect("connected");
        let slow = thread::spawn(move || {
            let mut message = [0; 8];
            other.read_exact(&mut message).expect("a message");
            thread::sleep(Duration::from_millis(50));
            other.write_all(&message).expect("it waits");
        });
        let plan = Assignment {
            part: Task::Ask,
            start: Instant::now(),
            message_bytes: 8,
            receive_bytes: 0,
            messages: u64::MAX,
            duration: Duration::from_millis(20),
            limit: Duration::from_secs(20),
            verify: None,
        };
        let mut group = TcpGroup::new(socket, false).expect("a socket");
        let measured = group.run(&plan, &Progress::default(), &|_| {}).expect("it goes well");
        slow.join().expect("no panic");
        let latency = measured.latency.expect("an echo");
        assert_eq!(latency.len(), 1);
        assert!(latency.min() >= 20_000_000, "half of 50 ms: {}", latency.min());
    }
}
