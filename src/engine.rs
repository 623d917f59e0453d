//! The engine of a participant whose room belongs to an SDK in another language: a [`Session`], the places in which its jobs run,
//! and the queue of its packets. Like the session, it has no I/O, no clock and no randomness.
//!
//! It is driven as a session is, and its outputs mean the same, but they need no queue: each packet can be sent and each job can
//! run at once. In return it must know when a packet has left ([`sent`](Engine::sent)) and when a function begins
//! ([`start`](Engine::start)). Participants of this crate have the same two parts in other forms: an executor whose jobs are
//! tasks, and a send queue with a lock.

mod places;

use std::collections::VecDeque;

use self::places::{Effect, Places};
use crate::{
    clock::Instant,
    protocol::session::{Config, Event, LateResult, Output, SendFailure, Session},
    tool::{JobKey, Outcome, Progress, ToolOptions},
    transport::{
        CloseReason, Lane, Packet, Participant, Peer, Role, StreamPart, TransportEvent, outbox::Outbox,
    },
};

/// A session with places for its jobs and a queue for its packets.
#[derive(Debug)]
pub struct Engine {
    session: Session,
    places: Places,
    /// None: the room queues packets itself.
    outbox: Option<Outbox<()>>,
    /// How many reliable packets were queued.
    pushed: u64,
    /// The last report to the session: the bytes in the queue, and how many reliable packets had been queued.
    reported: (usize, u64),
    /// The outputs that the places have caused.
    ready: VecDeque<Output>,
    now: Instant,
    is_leaving: bool,
    closed: Option<Output>,
}

impl Engine {
    /// Creates a session of this role. If `has_queue`, the room queues packets itself, and the input
    /// [`handle_backlog`](Session::handle_backlog) tells how many bytes.
    pub fn new(
        now: Instant,
        role: Role,
        local: Participant,
        config: Config,
        seed: [u8; 32],
        has_queue: bool,
    ) -> Self {
        let caps = &config.caps;
        let places = Places::new(caps.requests.running_jobs, caps.requests.waiting_jobs);
        let outbox = (!has_queue).then(|| Outbox::new(caps.frames.max_packet));
        let session = match role {
            Role::Assistant => Session::assistant(now, local, config, seed),
            _ => Session::client(now, local, config, seed),
        };
        let ready = VecDeque::new();
        Self {
            session,
            places,
            outbox,
            pushed: 0,
            reported: (0, 0),
            ready,
            now,
            is_leaving: false,
            closed: None,
        }
    }

    /// Returns the session, for inputs that the engine has no method for.
    pub fn session(&mut self, now: Instant) -> &mut Session {
        self.now = now;
        &mut self.session
    }

    /// Returns the session, for questions about its state.
    pub fn state(&self) -> &Session {
        &self.session
    }

    /// Handles a part of a byte stream. Returns whether the rest of it is to be read.
    pub fn handle_stream(&mut self, now: Instant, from: &Peer, part: StreamPart) -> bool {
        self.now = now;
        let id = match &part {
            StreamPart::Header(header) => header.id.clone(),
            StreamPart::Chunk { id, .. } | StreamPart::Trailer { id, .. } => id.clone(),
        };
        self.session.handle_event(now, TransportEvent::Stream { from: from.clone(), part });
        self.session.reads_stream(from, &id)
    }

    /// Takes the results of calls that a barge-in left running: see [`Session::late_results`].
    pub fn late_results(&mut self) -> Vec<LateResult> {
        self.session.late_results()
    }

    /// Handles that the room has ended: no packet can leave any more.
    pub fn handle_closed(&mut self, now: Instant, reason: CloseReason) {
        self.now = now;
        self.interrupt();
        self.session.handle_event(now, TransportEvent::Closed(reason));
    }

    /// Handles a rejoin: packets that have not left belong to the join before.
    pub fn handle_rejoined(&mut self, now: Instant, local: Participant, present: Vec<Participant>) {
        self.now = now;
        for packet in self.interrupt() {
            self.session.handle_send_failed(now, packet, SendFailure::Interrupted);
        }
        self.session.handle_rejoined(now, local, present);
    }

    /// Handles that a packet was not sent.
    pub fn handle_send_failed(&mut self, now: Instant, packet: u64, why: SendFailure) {
        self.sent(now, packet);
        self.session.handle_send_failed(now, packet, why);
    }

    /// Handles that the deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.session.handle_timeout(now);
        self.places.handle_timeout(now);
    }

    /// Reports that a packet was sent: the next one can leave.
    pub fn sent(&mut self, now: Instant, packet: u64) {
        self.now = now;
        if let Some(outbox) = &mut self.outbox
            && let Some(priority) = outbox.priority_of(packet)
        {
            outbox.done(priority);
        }
    }

    /// Reports that the function of a job begins: its arguments are valid. Returns false if the job has ended, and the function must
    /// not run.
    pub fn start(&mut self, now: Instant, key: JobKey) -> bool {
        self.now = now;
        let may_start = self.places.start(key);
        if may_start {
            self.session.progress(now, key, Progress::started());
        }
        may_start
    }

    /// Reports that the function of a job has ended, or does not run, and the job's outcome, which an earlier one precedes.
    pub fn settle(&mut self, now: Instant, key: JobKey, outcome: Outcome) {
        self.now = now;
        self.places.end(key);
        self.session.settle(now, key, outcome);
    }

    /// Leaves the room: see [`Session::close`]. The outputs that follow have all packets that are left, except the large ones, for
    /// which the goodbye would wait.
    pub fn close(&mut self, now: Instant) {
        self.now = now;
        self.places.refuse_unstarted(now);
        self.pass_effects(); // before the goodbye, which ends the calls that are left as perhaps run
        self.session.close(now);
        if let Some(outbox) = &mut self.outbox {
            outbox.retain(|_, is_large, ()| !is_large);
        }
        self.is_leaving = true;
    }

    /// Returns the next output, or `None` if there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            self.pass_effects();
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            match self.session.poll_output() {
                Some(Output::Transmit(packet)) => self.queue(packet),
                Some(Output::Execute(job)) => {
                    let tool = self.session.own_tool(job.tool.as_str());
                    let grace = tool.and_then(|tool| tool.tool_options().cancel_grace);
                    self.places.execute(job, grace.unwrap_or(ToolOptions::DEFAULT_CANCEL_GRACE));
                }
                // The last output, also after the last packets.
                Some(closed @ Output::Event(Event::Closed(_))) => self.closed = Some(closed),
                Some(Output::Abort { key, reason }) if self.places.abort(self.now, key, reason) => {}
                Some(output) => return Some(output),
                None => match self.next_packet() {
                    Some(packet) => return Some(Output::Transmit(packet)),
                    None if self.reports_backlog() => {}
                    None => return self.closed.take(),
                },
            }
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.session.poll_timeout(), self.places.poll_timeout()].into_iter().flatten().min()
    }

    fn pass_effects(&mut self) {
        while let Some(effect) = self.places.poll() {
            match effect {
                Effect::Run(job) => self.ready.push_back(Output::Execute(job)),
                Effect::Stop(key, reason) => self.ready.push_back(Output::Abort { key, reason }),
                Effect::Settle(key, error) => self.session.settle(self.now, key, Err(error)),
            }
        }
    }

    fn queue(&mut self, packet: Packet) {
        let Some(outbox) = &mut self.outbox else { return self.ready.push_back(Output::Transmit(packet)) };
        if outbox.is_full(&packet) {
            return self.session.handle_send_failed(self.now, packet.id, SendFailure::QueueFull);
        }
        self.pushed += u64::from(packet.lane == Lane::Reliable);
        outbox.push(packet, ());
    }

    /// Takes the next packet that can be sent now. A participant that leaves waits for none.
    fn next_packet(&mut self) -> Option<Packet> {
        let outbox = self.outbox.as_mut()?;
        if self.is_leaving {
            return outbox.pop();
        }
        let session = &self.session;
        let mut order = outbox.order().into_iter();
        order.find_map(|priority| outbox.take(priority, |packet, ()| session.is_wanted(packet.id)))
    }

    /// Tells the session how many bytes wait, if that has changed in a way that it cannot know.
    fn reports_backlog(&mut self) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        let now = (outbox.bytes(), self.pushed);
        if std::mem::replace(&mut self.reported, now) == now {
            return false;
        }
        self.session.handle_backlog(self.now, now.0);
        true
    }

    /// Gives up all packets, and returns their ids.
    fn interrupt(&mut self) -> Vec<u64> {
        let outbox = self.outbox.as_mut();
        outbox.map_or_else(Vec::new, |outbox| outbox.interrupt().collect())
    }
}
