//! A run of one thread's queue pairs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rd_verbs::{
    CompletionQueue, Depths, Error as VerbsError, Id, MessageRegion, ProtectionDomain, QueuePair, WorkCompletion,
};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::super::cm::Completions;
use super::super::devices::Held;
use super::super::{ConnectError, failure, sleep_on, until};
use super::Account;
use crate::transport::LaneError;
use crate::transport::bundle::{
    Assignment, Flow, Group, LOOK_AGAIN, Measured, Meter, Progress, Settings, Task, WARM_UP, fill_pattern,
    latency_histogram, record_half,
};

/// Number of slots that messages are received into, in turns.
pub(super) const RECEIVE_SLOTS: u32 = 2;

/// The slot that messages are sent from, unless they are sent back from where they arrived.
const SEND_SLOT: u32 = RECEIVE_SLOTS;

pub(super) const SLOTS: u32 = RECEIVE_SLOTS + 1;

/// Length of a credit, and of a greeting. The length alone carries the meaning.
pub(super) const CREDIT_BYTES: usize = 8;

/// Length of a credit if the messages themselves are [`CREDIT_BYTES`] long.
const CREDIT_BYTES_OTHER: usize = 4;

/// Maximum size of an inline send, in bytes, as requested by perftest's latency tests.
const INLINE_BYTES: u32 = 220;

/// Maximum number of completions taken at once.
const COMPLETIONS: usize = 32;

/// Maximum number of messages sent between two polls of the completion queue.
const BURST: usize = 64;

/// Maximum number of bytes that a group has on their way, however deep its queues are. It is many times what any link
/// holds, and little enough to arrive soon after the time of a run is up.
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Number of empty polls between two checks whether the run is over.
const SPINS: u32 = 1024;

/// The purpose of a work request, encoded in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A receive on the queue pair in this place, into this slot.
    Receive {
        place: u32,
        slot: u32,
    },
    Send {
        place: u32,
    },
}

impl Work {
    fn encode(self) -> u64 {
        match self {
            Self::Receive { place, slot } => 1 << 40 | u64::from(slot) << 32 | u64::from(place),
            Self::Send { place } => u64::from(place),
        }
    }

    fn of(completion: &WorkCompletion) -> Self {
        let place = completion.id() as u32;
        match completion.id() >> 40 {
            0 => Self::Send { place },
            _ => Self::Receive { place, slot: (completion.id() >> 32) as u32 & 0xff },
        }
    }
}

/// A queue pair with its flow control.
struct Pair {
    queue_pair: QueuePair,
    /// Numbers of sends posted, and of sends known to have completed.
    posted: u64,
    retired: u64,
    /// For each signalled send that has not completed: the numbers of sends and of messages posted up to it.
    signalled: VecDeque<(u64, u64)>,
    /// Numbers of messages of this run that were posted, and that are known to have completed.
    messages: u64,
    completed: u64,
    /// Number of credits of this run that have arrived.
    credits: u64,
    /// Number of messages received for which no credit has been sent.
    owed: u32,
    is_ready: bool,
    sent_at: Option<Instant>,
    greeted: bool,
}

impl Pair {
    fn outstanding(&self) -> u64 {
        self.posted - self.retired
    }

    fn may_send(&self, account: &Account, depth: u64) -> bool {
        let window = u64::from(account.window) + self.credits * u64::from(account.credit);
        self.outstanding() < depth && self.messages < window
    }

    /// Whether the next send must ask for a completion.
    fn signal_is_due(&self, every: u64) -> bool {
        let last = self.signalled.back().map_or(self.retired, |&(posted, _)| posted);
        self.posted + 1 - last >= every
    }

    /// Whether the last send asked for no completion.
    fn is_loose(&self) -> bool {
        self.signalled.back().map_or(self.retired, |&(posted, _)| posted) < self.posted
    }

    /// Whether all messages have completed, and all credits for them have arrived.
    fn is_settled(&self, account: &Account) -> bool {
        self.completed == self.messages && self.credits == self.messages / u64::from(account.credit)
    }

    /// Posts a send. `message`: whether it is a message of the run, rather than a credit.
    fn send(&mut self, place: u32, slot: u32, bytes: usize, message: bool, signal: bool) -> Result<(), LaneError> {
        self.queue_pair.send_message_inline(Work::Send { place }.encode(), slot, bytes as u32, signal)?;
        self.posted += 1;
        self.messages += u64::from(message);
        if signal {
            self.signalled.push_back((self.posted, self.messages));
        }
        Ok(())
    }

    /// Records that a signalled send has completed, and with it all sends before. Returns how many messages of
    /// the run were among them.
    fn sent(&mut self) -> u64 {
        let Some((posted, messages)) = self.signalled.pop_front() else { return 0 };
        self.retired = posted;
        let new = messages - self.completed;
        self.completed = messages;
        new
    }
}

/// The queue pairs on one completion queue.
pub(super) struct RdmaGroup {
    pairs: Vec<Pair>,
    account: Account,
    pub(super) settings: Settings,
    completions: Completions,
    region: Arc<MessageRegion>,
    domain: Arc<ProtectionDomain>,
    held: Held,
    spins: u32,
}

impl RdmaGroup {
    pub(super) fn new(
        queue: &Arc<CompletionQueue>,
        region: MessageRegion,
        domain: Arc<ProtectionDomain>,
        held: &Held,
        account: Account,
        settings: Settings,
    ) -> Self {
        let (completions, region, held) = (Completions::new(queue), Arc::new(region), held.clone());
        Self { pairs: Vec::new(), account, settings, completions, region, domain, held, spins: 0 }
    }

    /// Makes a queue pair, which is not added yet.
    pub(super) fn queue_pair(&self, id: Id) -> Result<QueuePair, VerbsError> {
        let depths = Depths {
            sends: self.account.sends,
            receives: self.account.receives,
            segments: 1,
            inline_bytes: INLINE_BYTES.min(self.settings.message_bytes_max.max(CREDIT_BYTES as u32)),
        };
        QueuePair::new(id, &self.domain, &self.completions.queue, &self.region, depths)
    }

    /// Posts all receives of connection `place`. Must be called before its first message may come.
    pub(super) fn post_receives(&self, queue_pair: &QueuePair, place: u32) -> Result<(), VerbsError> {
        (0..self.account.receives)
            .map(|number| number % RECEIVE_SLOTS)
            .try_for_each(|slot| queue_pair.receive_message(Work::Receive { place, slot }.encode(), slot))
    }

    pub(super) fn add(&mut self, queue_pair: QueuePair) {
        self.pairs.push(Pair {
            queue_pair,
            posted: 0,
            retired: 0,
            signalled: VecDeque::new(),
            messages: 0,
            completed: 0,
            credits: 0,
            owed: 0,
            is_ready: false,
            sent_at: None,
            greeted: false,
        });
    }

    /// Sends a greeting on each connection that has not had one, and waits until all of them have been sent.
    pub(super) fn greet(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        for (place, pair) in self.pairs.iter_mut().enumerate().filter(|(_, pair)| !pair.greeted) {
            pair.send(place as u32, SEND_SLOT, CREDIT_BYTES, false, true)?;
            pair.greeted = true;
        }
        // Sends of an echo that asked for no completion stay outstanding until a later one covers them.
        while self.pairs.iter().any(|pair| !pair.signalled.is_empty()) {
            self.step("sending the first messages", deadline)?;
        }
        Ok(())
    }

    /// Waits for the greeting on each connection that has not had one.
    pub(super) fn await_greetings(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        while self.pairs.iter().any(|pair| !pair.greeted) {
            self.step("waiting for the first messages", deadline)?;
        }
        Ok(())
    }

    /// Handles what has completed between two runs, or sleeps until something has.
    fn step(&mut self, what: &'static str, deadline: Instant) -> Result<(), ConnectError> {
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        let taken = self.take(&mut completions)?;
        for completion in &completions[..taken] {
            match Work::of(completion) {
                // May be of the last run, which does not wait for all of its sends.
                Work::Send { place } => drop(self.pairs[place as usize].sent()),
                Work::Receive { place, slot } => {
                    self.post_receive(place, slot)?;
                    self.pairs[place as usize].greeted = true;
                }
            }
        }
        if taken == 0 {
            if until(deadline).is_zero() {
                return Err(ConnectError::Timeout(what));
            }
            self.sleep()?;
        }
        Ok(())
    }

    /// Takes completions. Fails if one of them is not successful.
    fn take(&self, completions: &mut [WorkCompletion]) -> Result<usize, LaneError> {
        let taken = self.completions.queue.poll(completions)?;
        for completion in &completions[..taken] {
            if !completion.is_success() {
                self.held.check()?;
                return Err(failure(completion));
            }
        }
        Ok(taken)
    }

    /// The first call asks for an event, and the second sleeps until it comes. Returns whether the
    /// queue is worth polling now.
    fn sleep(&mut self) -> Result<bool, LaneError> {
        if !self.completions.may_sleep()? {
            return Ok(true);
        }
        // The removal of the device does not wake this sleep. A further descriptor would cost time, and the
        // removal is noticed soon enough.
        let [readable] = sleep_on([self.completions.queue.as_fd()], LOOK_AGAIN);
        if readable && self.completions.take_event()? {
            return Ok(true);
        }
        self.held.check()?;
        Ok(false)
    }

    /// Called if nothing has completed: sleeps, or goes on polling. Returns whether some time has passed without any
    /// completion. The clock is read only then, because on some hosts that is slower than sending a message.
    fn idle(&mut self, deadline: Instant) -> Result<bool, LaneError> {
        if self.settings.poll {
            self.spins = self.spins.wrapping_add(1);
            if !self.spins.is_multiple_of(SPINS) {
                std::hint::spin_loop();
                return Ok(false);
            }
            self.held.check()?;
        } else if self.sleep()? {
            return Ok(false);
        }
        if Instant::now() >= deadline {
            return Err(LaneError::Os { what: "waiting for the other end", error: Errno::TIMEDOUT });
        }
        Ok(true)
    }

    fn post_receive(&mut self, place: u32, slot: u32) -> Result<(), LaneError> {
        let work = Work::Receive { place, slot };
        let queue_pair = &self.pairs[place as usize].queue_pair;
        Ok(queue_pair.receive_message(work.encode(), slot)?)
    }

    fn ask(&mut self, plan: &Assignment, progress: &Progress, deadline: Instant) -> Result<Measured, LaneError> {
        let mut latency = latency_histogram();
        let mut damaged = 0;
        let (mut sent, mut received) = (Meter::new(plan), Meter::new(plan));
        let warm_up = if plan.verify.is_some() || plan.messages == 0 { 0 } else { WARM_UP };
        let messages = plan.messages.saturating_add(warm_up);
        let signal_every = u64::from(self.account.sends) / 2;
        let mut contents = vec![0; plan.message_bytes];
        let start = Instant::now();
        sent.begin(start);
        let mut now = start;
        let mut posted = 0;
        let mut under_way = 0_usize;
        // Connections whose turn it is to send.
        let mut turn: VecDeque<u32> = (0..self.pairs.len() as u32).collect();
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        loop {
            let enough = posted >= messages || latency.len() >= plan.messages;
            let over = enough || now.duration_since(start) >= plan.duration;
            if over && under_way == 0 {
                break;
            }
            let due = if over { 0 } else { turn.len() };
            for _ in 0..due {
                let place = turn.pop_front().expect("as many as were counted");
                let pair = &mut self.pairs[place as usize];
                if pair.outstanding() >= u64::from(self.account.sends) || posted >= messages {
                    turn.push_back(place);
                    continue;
                }
                if let Some(seed) = plan.verify {
                    fill_pattern(&mut contents, seed, posted);
                    self.region.write(SEND_SLOT, &[&contents]);
                    now = Instant::now();
                }
                pair.sent_at = Some(now);
                let signal = pair.signal_is_due(signal_every);
                pair.send(place, SEND_SLOT, plan.message_bytes, true, signal)?;
                posted += 1;
                under_way += 1;
            }
            let taken = self.take(&mut completions)?;
            if progress.is_stopped() {
                return Err(LaneError::Closed);
            }
            if taken == 0 {
                self.idle(deadline)?;
                continue;
            }
            now = Instant::now();
            for completion in &completions[..taken] {
                match Work::of(completion) {
                    Work::Send { place } => drop(self.pairs[place as usize].sent()),
                    Work::Receive { place, slot } => {
                        let pair = &mut self.pairs[place as usize];
                        let sent_at = pair.sent_at.take();
                        let Some(sent_at) = sent_at.filter(|_| completion.bytes() as usize == plan.message_bytes)
                        else {
                            return Err(LaneError::Framing("an unexpected message"));
                        };
                        let is_warm = sent_at.duration_since(start) > plan.duration / 10;
                        let expired = now.duration_since(start) >= plan.duration;
                        // The last ones always count: on a slow line there may be no others.
                        let counts = is_warm || expired || received.flow.messages >= warm_up;
                        let enough = posted >= messages || latency.len() + u64::from(counts) >= plan.messages;
                        let over = enough || expired;
                        let room = pair.outstanding() < u64::from(self.account.sends);
                        if !over && room && plan.verify.is_none() {
                            // The next message is sent first, because counting this one can wait.
                            pair.sent_at = Some(now);
                            let signal = pair.signal_is_due(signal_every);
                            pair.send(place, SEND_SLOT, plan.message_bytes, true, signal)?;
                            posted += 1;
                        } else {
                            under_way -= 1;
                            turn.push_back(place);
                        }
                        self.post_receive(place, slot)?;
                        if counts && latency.len() < plan.messages {
                            record_half(&mut latency, now - sent_at);
                        }
                        if plan.verify.is_some() && self.region.read(slot, 0, plan.message_bytes) != contents {
                            damaged += 1;
                        }
                        received.count(1, now);
                        sent.count(1, now);
                    }
                }
            }
        }
        Ok(Measured { sent: sent.flow, received: received.flow, latency: Some(latency), damaged })
    }

    fn answer(&mut self, plan: &Assignment, progress: &Progress, deadline: Instant) -> Result<Measured, LaneError> {
        // Takes no times: the asking end has them, and here they would only cost.
        let mut flow = Flow::default();
        let signal_every = u64::from(self.account.sends) / 2;
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        // With several connections, messages of all of them land in the same slots. Then only
        // their length is sent back.
        let intact = self.pairs.len() == 1;
        // Messages that the send queue has no room to send back yet.
        let mut late: VecDeque<(u32, u32)> = VecDeque::new();
        while !progress.is_complete() || !late.is_empty() {
            let taken = self.take(&mut completions)?;
            if progress.is_stopped() {
                return Err(LaneError::Closed);
            }
            if taken == 0 {
                self.idle(deadline)?;
                continue;
            }
            let mut came = 0;
            for completion in &completions[..taken] {
                match Work::of(completion) {
                    Work::Send { place } => drop(self.pairs[place as usize].sent()),
                    Work::Receive { .. } if completion.bytes() as usize != plan.message_bytes => {
                        return Err(LaneError::Framing("a message of unexpected length"));
                    }
                    Work::Receive { place, slot } => {
                        late.push_back((place, slot));
                        came += 1;
                    }
                }
            }
            for _ in 0..late.len() {
                let (place, slot) = late.pop_front().expect("as many as were counted");
                let pair = &mut self.pairs[place as usize];
                if pair.outstanding() >= u64::from(self.account.sends) {
                    late.push_back((place, slot));
                    continue;
                }
                let signal = pair.signal_is_due(signal_every);
                let from = if intact { slot } else { SEND_SLOT };
                pair.send(place, from, plan.message_bytes, true, signal)?;
                // Posted after the send: the message that may arrive now uses the receive of the other slot.
                self.post_receive(place, slot)?;
            }
            if came > 0 {
                flow.messages += came;
                progress.count_received(came);
            }
        }
        Ok(Measured { sent: flow.clone(), received: flow, ..Measured::default() })
    }

    fn stream(
        &mut self,
        plan: &Assignment,
        (sends, receives): (bool, bool),
        progress: &Progress,
        deadline: Instant,
        tell_sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, LaneError> {
        let credit_bytes = if plan.message_bytes == CREDIT_BYTES { CREDIT_BYTES_OTHER } else { CREDIT_BYTES };
        let in_flight = IN_FLIGHT_BYTES_MAX / plan.message_bytes / self.pairs.len().max(1);
        let depth = u64::from(self.account.depth).min(in_flight as u64).max(1);
        let signal_every = (depth / 2).clamp(1, 32);
        let (mut sent, mut received) = (Meter::new(plan), Meter::new(plan));
        let mut ready: VecDeque<u32> = VecDeque::new();
        for (place, pair) in self.pairs.iter_mut().enumerate() {
            pair.is_ready = sends;
            if sends {
                ready.push_back(place as u32);
            }
        }
        let mut sending = sends;
        if !sends {
            tell_sent(0);
        }
        let pairs = self.pairs.len() as u64;
        let quota = |place: u32| match plan.messages {
            u64::MAX => u64::MAX,
            messages => messages / pairs + u64::from(u64::from(place) < messages % pairs),
        };
        let start = Instant::now();
        let mut now = start;
        let mut posted = 0;
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        if sends {
            sent.begin(start);
        }
        loop {
            if sending {
                let expired = now.duration_since(start) >= plan.duration;
                for _ in 0..BURST {
                    let Some(place) = ready.pop_front() else { break };
                    let quota = quota(place);
                    let pair = &mut self.pairs[place as usize];
                    pair.is_ready = false;
                    // When the time is up, one more message asks for a completion, which covers all sends before it.
                    if pair.messages >= quota || expired && !pair.is_loose() {
                        continue;
                    }
                    let signal = expired || pair.messages + 1 == quota || pair.signal_is_due(signal_every);
                    pair.send(place, SEND_SLOT, plan.message_bytes, true, signal)?;
                    posted += 1;
                    if pair.may_send(&self.account, depth) {
                        pair.is_ready = true;
                        ready.push_back(place);
                    }
                }
                let closing = expired || posted >= plan.messages;
                if closing && self.pairs.iter().all(|pair| pair.is_settled(&self.account)) {
                    sending = false;
                    tell_sent(sent.flow.messages);
                }
            }
            // The other end waits for the credits of everything that it has sent.
            let owes = |pair: &Pair| pair.owed >= self.account.credit;
            if !sending && (!receives || progress.is_complete() && !self.pairs.iter().any(owes)) {
                break;
            }
            let taken = self.take(&mut completions)?;
            if progress.is_stopped() {
                return Err(LaneError::Closed);
            }
            if taken == 0 {
                if self.idle(deadline)? {
                    now = Instant::now();
                }
                continue;
            }
            now = Instant::now();
            let mut came = 0;
            let mut gone = 0;
            for completion in &completions[..taken] {
                let place = match Work::of(completion) {
                    Work::Send { place } => {
                        gone += self.pairs[place as usize].sent();
                        self.pay(place, credit_bytes)?;
                        place
                    }
                    Work::Receive { place, slot } => {
                        self.post_receive(place, slot)?;
                        let bytes = completion.bytes() as usize;
                        if sends && bytes == credit_bytes {
                            self.pairs[place as usize].credits += 1;
                        } else if receives && bytes == plan.message_bytes {
                            came += 1;
                            self.pairs[place as usize].owed += 1;
                            self.pay(place, credit_bytes)?;
                        } else {
                            return Err(LaneError::Framing("a message of unexpected length"));
                        }
                        place
                    }
                };
                let pair = &mut self.pairs[place as usize];
                if sending && !pair.is_ready && pair.may_send(&self.account, depth) {
                    pair.is_ready = true;
                    ready.push_back(place);
                }
            }
            if gone > 0 {
                sent.count(gone, now);
            }
            if came > 0 {
                received.count(came, now);
                progress.count_received(came);
            }
        }
        Ok(Measured { sent: sent.flow, received: received.flow, ..Measured::default() })
    }

    /// Sends the credits that are due and fit the send queue. The others are sent when there is room.
    fn pay(&mut self, place: u32, credit_bytes: usize) -> Result<(), LaneError> {
        let Account { credit, sends, .. } = self.account;
        let pair = &mut self.pairs[place as usize];
        while pair.owed >= credit && pair.outstanding() < u64::from(sends) {
            pair.owed -= credit;
            pair.send(place, SEND_SLOT, credit_bytes, false, true)?;
        }
        Ok(())
    }
}

impl Group for RdmaGroup {
    fn connections(&self) -> usize {
        self.pairs.len()
    }

    fn run(
        &mut self,
        plan: &Assignment,
        progress: &Progress,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, LaneError> {
        for pair in &mut self.pairs {
            (pair.messages, pair.completed, pair.credits, pair.owed, pair.sent_at) = (0, 0, 0, 0, None);
            for (_, messages) in &mut pair.signalled {
                *messages = 0;
            }
        }
        let deadline = Instant::now() + plan.duration.min(Duration::from_secs(1 << 20)) + plan.limit;
        match plan.part {
            Task::Ask => {
                let outcome = self.ask(plan, progress, deadline)?;
                sent(outcome.sent.messages);
                Ok(outcome)
            }
            Task::Answer => {
                sent(0);
                self.answer(plan, progress, deadline)
            }
            Task::Stream { sends, receives } => self.stream(plan, (sends, receives), progress, deadline, sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_numbers_are_distinct() {
        let all = [
            Work::Receive { place: 7, slot: 0 },
            Work::Receive { place: 7, slot: 1 },
            Work::Receive { place: 8, slot: 0 },
            Work::Send { place: 7 },
            Work::Send { place: u32::MAX },
        ];
        let numbers: std::collections::HashSet<u64> = all.iter().map(|work| work.encode()).collect();
        assert_eq!(numbers.len(), all.len());
    }
}
