//! The state machine of the protocol: no socket, no clock, no randomness.
//!
//! A [`Session`] is one end of the bridge. Whoever drives it does four things, in a loop:
//!
//! 1. after every input or command, [`poll_output`](Session::poll_output) until it gives nothing, and do
//!    what each [`Output`] says;
//! 2. wait for a packet, for news of the room, or until [`poll_timeout`](Session::poll_timeout);
//! 3. hand that to the `handle_*` method of its name, with the time;
//! 4. begin again.
//!
//! Where tools need a person's consent ([`Config::asks`]), step 1 also takes the questions of
//! [`poll_question`](Session::poll_question), whose answers come back by [`consent`](Session::consent).
//!
//! Bytes from outside can neither panic it nor make it grow past the caps in [`Caps`]. A panic in here
//! is a bug in here.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use toolbridge::{Value, Config, Output, Participant, Peer, Session, Tool};
//!
//! # enum Heard { Joined(Participant), Packet(Peer, Vec<u8>), Nothing }
//! # struct Link;
//! # impl Link {
//! #     fn publish(&self, _to: &[toolbridge::Identity], _bytes: &[u8]) {}
//! #     fn wait_until(&self, _when: Option<Instant>) -> Heard { Heard::Nothing }
//! # }
//! # fn seed() -> [u8; 32] { [0; 32] }
//! # #[expect(clippy::disallowed_methods, reason = "a driver owns the clock")]
//! # fn drive(link: Link) -> Result<(), Box<dyn std::error::Error>> {
//! let mut session = Session::client(Participant::new("phone", "PA_1"), Config::default(), seed());
//! session.offer(Instant::now(), vec![Tool::new("get_battery".parse()?, "Battery level, 0 to 1")])?;
//! loop {
//!     while let Some(output) = session.poll_output() {
//!         match output {
//!             Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
//!             Output::Execute(job) => session.settle(Instant::now(), job.key, Ok(Value::encode(&0.8)?)),
//!             Output::Abort(_) | Output::Settled { .. } => {} // our jobs are done at once; we call nobody
//!             Output::Event(event) => eprintln!("{event:?}"),
//!         }
//!     }
//!     match link.wait_until(session.poll_timeout()) {
//!         Heard::Joined(who) => session.handle_joined(Instant::now(), who),
//!         Heard::Packet(from, bytes) => session.handle_packet(Instant::now(), &from, &bytes),
//!         Heard::Nothing => session.handle_timeout(Instant::now()),
//!     }
//! }
//! # }
//! ```

mod answer;
mod ask_stop;
mod choose;
mod claim;
mod codec;
mod config;
mod consent;
mod either;
mod elsewhere;
mod event;
mod guest;
mod handshake;
mod ids;
mod inbound;
mod job;
mod lane;
mod ledger;
mod life;
mod outbound;
mod outcome;
mod own;
mod owner;
mod past;
mod peer;
mod presence;
mod prompts;
mod ready;
mod receive;
mod register;
mod replay;
mod roles;
mod send;
mod size;
mod stats;
mod stop;
mod stream;
mod table;
mod timers;
mod trace;
mod turn;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Instant,
};

pub(crate) use self::timers::later;
use self::{
    ask_stop::AskedStops,
    consent::Consents,
    guest::Guests,
    ids::Ids,
    job::{HeldByJobs, Running},
    lane::Reliable,
    ledger::Ledger,
    outbound::{Call, Calls},
    past::Past,
    peer::Remote,
    presence::Held,
    roles::Observed,
    send::Complaints,
    size::Large,
    stream::Streams,
    table::Table,
    timers::{Timer, Timers},
    turn::Turns,
};
pub use self::{
    ask_stop::StopError,
    choose::{Candidate, Chooser, SelectionPolicy},
    config::{Caps, Config, Rule, Times},
    consent::{CONSENT_MARGIN, Question},
    event::{
        CallKey, Destination, Event, Job, JobKey, LocalText, Output, Request, SendFailure, SendFrameError,
        Unaccepted,
    },
    ledger::{CallRecord, CallState},
    ready::Readiness,
    send::COMPLAINT_INTERVAL,
    stats::{Counter, Stats},
    turn::{LateResult, TurnKey},
};
use crate::{
    protocol::frame::{Kind, Meta},
    tool::{CallError, CallId, Offer, Outcome, Progress, RegisterError, Tool},
    transport::{CloseReason, ConnectionState, Identity, Lane, Participant, Peer, Role, StreamPart},
    value::Value,
};

/// One end of the bridge: a client that offers tools, or the assistant that asks for them.
///
/// See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Session {
    role: Role,
    local: Participant,
    config: Config,
    ids: Ids,
    /// The last stanza that was given, as an absolute value.
    stanza: u32,
    next_packet: u64,
    next_key: u64,
    /// How many peers have registered or spoken.
    arrivals: u64,
    phase: Phase,
    /// We are about to leave: no request is taken any more.
    draining: bool,
    connection: ConnectionState,
    /// The room would not take a packet, since our token does not allow it.
    muted: bool,
    /// Until then others may not have been told that we are here, and cannot answer what they hear of us.
    unknown_until: Option<Instant>,
    peers: BTreeMap<Identity, Remote>,
    held: Held,
    tools: Vec<Tool>,
    bound: Option<Identity>,
    /// The candidates of the last ambiguity that was told.
    ambiguous: Vec<Identity>,
    /// Who hears copies of what we say.
    observers: BTreeSet<Identity>,
    observed: Observed,
    /// Assistant: participants without a role.
    guests: Guests,
    /// Assistant: participants that somebody waits for without a call, and how many do.
    expected: BTreeMap<Identity, u32>,
    /// Counts what may have changed who can be asked.
    registrations: u64,
    /// Client: the participants of which it was last reported that none may be our assistant.
    no_assistant_among: Vec<Identity>,
    calls: Calls,
    past: Past,
    jobs: BTreeMap<JobKey, Running>,
    /// What the jobs of each caller hold.
    held_by_jobs: BTreeMap<Identity, HeldByJobs>,
    tables: BTreeMap<Identity, Table>,
    complaints: Complaints,
    /// Frames that come in parts.
    streams: Streams,
    /// Frames that go in parts.
    large: Large,
    stats: Stats,
    timers: Timers,
    outputs: VecDeque<Output>,
    reliable: Reliable,
    turns: Turns,
    ledger: Ledger,
    consents: Consents,
    asked_stops: AskedStops,
}

/// No input is taken beyond this stanza; what one input makes us say still has numbers (`wire.md`, 2).
const LAST_STANZA: u32 = i32::MAX as u32 - 100_000;

/// How far the session itself has come.
#[derive(Debug)]
enum Phase {
    /// No time was heard yet: those whom the author named are not greeted.
    Fresh,
    /// At work.
    Open,
    /// Over.
    Closed(CloseReason),
}

impl Session {
    /// The end that offers tools. The seed must be random and new for each process.
    pub fn client(local: Participant, config: Config, seed: [u8; 32]) -> Self {
        Self::new(Role::Client, local, config, seed)
    }

    /// The end that asks for tools, and may offer its own. The seed must be random and new for each process.
    pub fn assistant(local: Participant, config: Config, seed: [u8; 32]) -> Self {
        Self::new(Role::Assistant, local, config, seed)
    }

    fn new(role: Role, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        Self {
            role,
            local,
            config,
            ids: Ids::new(seed),
            stanza: 0,
            next_packet: 0,
            next_key: 0,
            arrivals: 0,
            phase: Phase::Fresh,
            draining: false,
            connection: ConnectionState::Connected,
            muted: false,
            unknown_until: None,
            peers: BTreeMap::new(),
            held: Held::default(),
            tools: Vec::new(),
            bound: None,
            ambiguous: Vec::new(),
            observers: BTreeSet::new(),
            observed: Observed::default(),
            guests: Guests::default(),
            expected: BTreeMap::new(),
            registrations: 0,
            no_assistant_among: Vec::new(),
            calls: Calls::default(),
            past: Past::default(),
            jobs: BTreeMap::new(),
            held_by_jobs: BTreeMap::new(),
            tables: BTreeMap::new(),
            complaints: Complaints::default(),
            streams: Streams::default(),
            large: Large::default(),
            stats: Stats::default(),
            timers: Timers::default(),
            outputs: VecDeque::new(),
            reliable: Reliable::default(),
            turns: Turns::default(),
            ledger: Ledger::default(),
            consents: Consents::default(),
            asked_stops: AskedStops::default(),
        }
    }
}

/// Getters.
impl Session {
    /// Ourselves, in this join.
    pub fn local(&self) -> &Participant {
        &self.local
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The room's name: the configured one, else the one that the first peer used, else empty.
    pub fn room(&self) -> &str {
        &self.config.room
    }

    /// Client: the assistant that is bound, which alone may ask for tools.
    pub fn bound(&self) -> Option<&Identity> {
        self.bound.as_ref()
    }

    /// Everybody whom the room announced, ourselves left out.
    pub fn participants(&self) -> Vec<Participant> {
        self.peers
            .values()
            .filter(|remote| remote.is_here())
            .filter_map(|remote| remote.who.clone())
            .collect()
    }

    /// The tools that can be asked for: ours, and to an assistant those of its clients.
    pub fn tools(&self) -> Vec<Offer> {
        let ours = self.tools.iter().map(|tool| Offer::new(tool.clone(), self.local.identity().clone()));
        let theirs = self.peers.iter().flat_map(|(owner, remote)| {
            remote.tools.iter().map(|tool| Offer::new(tool.clone(), owner.clone()))
        });
        ours.chain(theirs).collect()
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Calls of ours that have no outcome yet.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Jobs that run.
    pub fn open_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The id on the wire of an open call.
    pub fn call_id(&self, key: CallKey) -> Option<&CallId> {
        self.calls.get(&key).map(|call| &call.id)
    }

    /// The key of the open call of this id.
    #[cfg(feature = "runtime")]
    pub(crate) fn call_key(&self, id: &CallId) -> Option<CallKey> {
        self.calls.key_of(id)
    }

    /// The longest budget that a call may have.
    #[cfg(feature = "runtime")]
    pub(crate) fn longest_call(&self) -> std::time::Duration {
        self.config.times.longest_call
    }

    /// Whether a packet that was given out is still worth sending. A driver that lets packets wait asks before it
    /// begins with a large one, and between its parts; one that is not is dropped, and nothing has to be said of it.
    pub fn is_wanted(&self, packet: u64) -> bool {
        self.wants(packet)
    }

    /// Whether nothing is left to do: no open call, no job, no answer that a caller in the room has not
    /// acknowledged.
    pub fn is_drained(&self) -> bool {
        self.calls.is_empty() && self.jobs.is_empty() && !self.tables.values().any(Table::is_awaited)
    }
}

/// Inputs.
impl Session {
    /// A participant is in the room: it was there, it came, or what is known of it has changed.
    ///
    /// Ourselves too: it says that the others have now been told of us.
    pub fn handle_joined(&mut self, now: Instant, who: Participant) {
        if self.begin(now) {
            self.joined(now, who);
        }
    }

    /// A participant left.
    pub fn handle_left(&mut self, now: Instant, who: &Peer) {
        if self.begin(now) {
            self.left(now, who);
        }
    }

    /// Reports that the connection was lost or restored. Peer timeouts are suspended while it is
    /// [`Reconnecting`](ConnectionState::Reconnecting).
    pub fn handle_connection_state(&mut self, now: Instant, state: ConnectionState) {
        if self.begin(now) {
            self.connection_state_changed(now, state);
        }
    }

    /// We joined anew: another sid of ours, and the room as it is now. Our instance stays.
    pub fn handle_rejoined(&mut self, now: Instant, local: Participant, present: Vec<Participant>) {
        if self.begin(now) {
            self.rejoined(now, local, present);
        }
    }

    /// A packet came on the reliable lane, from this sender as the room says.
    pub fn handle_packet(&mut self, now: Instant, from: &Peer, payload: &[u8]) {
        if self.begin(now) {
            self.receive(now, from, Lane::Reliable, payload);
        }
    }

    /// A packet came on the lossy lane, from this sender as the room says.
    pub fn handle_lossy_packet(&mut self, now: Instant, from: &Peer, payload: &[u8]) {
        if self.begin(now) {
            self.receive(now, from, Lane::Lossy, payload);
        }
    }

    /// So many bytes of payload wait on the reliable lane, as far as the driver and the transport can tell.
    ///
    /// While they are more than a few hundred, small frames get no reliable copy beside the one on the lossy
    /// lane. A driver that says so once must go on, at least after each [`poll_timeout`](Session::poll_timeout)
    /// that was due.
    pub fn handle_backlog(&mut self, now: Instant, bytes: usize) {
        if self.begin(now) {
            self.lane_backlog(now, bytes);
        }
    }

    /// A part of a byte stream came, from this sender as the room says. A whole one is a packet.
    pub fn handle_stream(&mut self, now: Instant, from: &Peer, part: StreamPart) {
        if self.begin(now) {
            self.stream_part(now, from, part);
        }
    }

    /// The packet of this id was not handed to the room.
    pub fn handle_send_failed(&mut self, now: Instant, id: u64, why: SendFailure) {
        if self.begin(now) {
            self.unsent(now, id, why);
        }
    }

    /// The time that [`poll_timeout`](Session::poll_timeout) gave has come. Too early or too late does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.begin(now) {
            return;
        }
        while let Some(timer) = self.timers.pop(now) {
            self.timer_due(now, timer);
        }
    }

    /// The connection is gone for good: open calls are lost, jobs stop.
    pub fn handle_closed(&mut self, now: Instant, reason: CloseReason) {
        if self.begin(now) {
            self.end(now, reason, false);
        }
    }
}

/// Commands.
impl Session {
    /// Offers these tools, in place of those before. Once the session is over they are only checked.
    ///
    /// # Errors
    /// A name that is reserved or double; a tool that needs a person's consent, while nobody can be asked
    /// ([`Config::asks`]); more or larger tools than allowed. Nothing has changed then.
    pub fn offer(&mut self, now: Instant, tools: Vec<Tool>) -> Result<(), RegisterError> {
        if let Phase::Fresh = self.phase {
            // Those whom the author named are greeted now, and a registration may follow at once.
            self.check_offer(&tools)?;
            self.tools = tools;
            self.begin(now);
            return Ok(());
        }
        if self.begin(now) { self.offer_tools(now, tools) } else { self.check_offer(&tools) }
    }

    /// Asks for a call. Unless an error is returned, exactly one [`Output::Settled`] follows for the key.
    ///
    /// # Errors
    /// What is known at once: nobody can own it, too many are open, it is too large, the limit is not
    /// allowed, the session is closed.
    pub fn call(&mut self, now: Instant, request: Request) -> Result<CallKey, CallError> {
        self.begin(now);
        self.admit_to_turn(&request)?;
        self.ask(now, request)
    }

    /// Ends a call of ours: it settles at once as cancelled, and its owner is told to stop.
    pub fn cancel(&mut self, now: Instant, key: CallKey) {
        // A call that a barge-in settled is no caller's any more, even where the work goes on.
        if self.begin(now) && self.calls.get(&key).is_some_and(|call| call.rest.is_none()) {
            self.settle_call(now, key, Err(CallError::Cancelled));
        }
    }

    /// Lets a call of ours finish unseen: it goes on as it would have, and no [`Output::Settled`] follows.
    pub fn detach(&mut self, now: Instant, key: CallKey) {
        if self.begin(now) {
            self.detach_call(key);
        }
    }

    /// Brings the outcome of a job. Of a job that was aborted or is unknown, nothing happens.
    pub fn settle(&mut self, now: Instant, key: JobKey, outcome: Outcome) {
        if self.begin(now) {
            let outcome = self.outcome_of_asked(key, outcome);
            self.finish_job(now, key, outcome);
        }
    }

    /// Tells a job's caller how far it has come. At most ten a second are sent; the last is kept.
    pub fn progress(&mut self, now: Instant, key: JobKey, progress: Progress) {
        if self.begin(now) {
            self.job_progress(now, key, progress);
        }
    }

    /// Sends a frame of a type that is not the session's.
    ///
    /// # Errors
    /// A type of the session's own, a frame that is too large or for nobody, a closed session.
    #[expect(clippy::needless_pass_by_value, reason = "a command takes what it is given")]
    pub fn send(
        &mut self,
        now: Instant,
        to: Destination,
        kind: Kind,
        meta: Meta,
        body: Value,
    ) -> Result<(), SendFrameError> {
        self.begin(now);
        self.send_frame(to, kind, &meta, body)
    }

    /// Takes no more requests: each is refused as `busy`, and nothing of it runs. What is open goes on.
    pub fn drain(&mut self, now: Instant) {
        if self.begin(now) {
            self.draining = true;
            self.give_claims_back(now);
        }
    }

    /// Leaves in order: goodbye to everybody we shook hands with. Our calls settle as closed, our jobs
    /// stop. What is to be sent still comes out of [`poll_output`](Session::poll_output); every later
    /// input does nothing.
    pub fn close(&mut self, now: Instant) {
        if self.begin(now) {
            self.end(now, CloseReason::Closed, true);
        }
    }
}

/// Polls.
impl Session {
    /// The next thing to do, until there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Session::handle_timeout) is due, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }
}

impl Session {
    /// Whether the session is open. The first time greets those whom the author named.
    fn begin(&mut self, now: Instant) -> bool {
        self.reliable.now = Some(now);
        self.ledger.set_now(now);
        match self.phase {
            Phase::Open if self.stanza < LAST_STANZA => true,
            Phase::Open => {
                let reason = "all stanza numbers are used; join again";
                self.end(now, CloseReason::ConnectionLost(Arc::from(reason)), false);
                false
            }
            Phase::Closed(_) => false,
            Phase::Fresh => {
                self.phase = Phase::Open;
                self.unknown_until = Some(later(now, self.config.times.announcement));
                self.greet_named(now);
                true
            }
        }
    }

    fn timer_due(&mut self, now: Instant, timer: Timer) {
        match timer {
            Timer::Greet(who) => self.greet_again(now, &who),
            Timer::Ask(who) => self.ask_again_for_configuration(now, &who),
            Timer::Provisional(who) => self.still_unannounced(now, &who),
            Timer::Hold(who) => self.hold_over(&who),
            Timer::Unannounced => self.unannounced_over(now),
            Timer::Grace(who) => self.grace_over(now, &who),
            Timer::Silent(who) => self.silent(now, &who),
            Timer::Register(who) => self.register_again(now, &who),
            Timer::Replay(who) => self.replay(now, &who),
            Timer::Heartbeat(who) => self.heartbeat_stopped(now, &who),
            Timer::Ping(who) => self.look_after(now, &who),
            Timer::OwnerWait(key) => self.no_owner(now, key),
            Timer::Deadline(key) => self.deadline(now, key),
            Timer::JobDeadline(key) => self.job_deadline(now, key),
            Timer::Progress(key) => self.progress_due(now, key),
            Timer::Table(who) => self.expire_table(now, &who),
            Timer::Past => self.expire_past(now),
            Timer::Complaints => self.tell_complaints(now),
            Timer::Streams => self.streams_due(now),
            Timer::Queue(who) => self.queue_has_room(now, &who),
            Timer::Lane(who) => self.lane_due(now, &who),
            Timer::ClaimWindow(key) => self.nobody_claimed(now, key),
            Timer::ClaimDeadline(key) => self.claim_deadline(now, key),
            Timer::Consent(key) => self.consent_silent(now, key),
            Timer::Unbound => self.nobody_bound(),
        }
    }

    fn end(&mut self, now: Instant, reason: CloseReason, orderly: bool) {
        let calls: Vec<_> = self.calls.keys().collect();
        if orderly {
            self.say_goodbye();
        } else {
            self.peers.clear(); // nobody can be told anything
            self.observers.clear();
        }
        for key in calls {
            let error = match self.calls.get(&key).and_then(Call::owner) {
                Some(owner) if !orderly => CallError::Lost { owner },
                _ => CallError::Closed(reason.clone()),
            };
            self.settle_call(now, key, Err(error));
        }
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        for key in jobs {
            self.abort_job(now, key);
        }
        self.timers.clear();
        self.peers.clear();
        self.observers.clear();
        self.tables.clear();
        self.past = Past::default();
        self.held = Held::default();
        self.streams = Streams::default();
        self.bound = None;
        self.event(Event::Closed(reason.clone()));
        self.phase = Phase::Closed(reason);
    }

    fn event(&mut self, event: Event) {
        self.note_event(&event);
        self.outputs.push_back(Output::Event(event));
    }

    fn is_client(&self) -> bool {
        self.role == Role::Client
    }
}

#[cfg(test)]
mod tests {
    mod cost;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn an_instant() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_session_can_move_to_another_thread() {
        fn is_send<T: Send>(_: T) {}
        is_send(Session::client(Participant::new("phone", "PA_1"), Config::default(), [0; 32]));
    }

    #[test]
    fn a_session_that_used_all_stanzas_ends_and_says_so() {
        let mut session = Session::assistant(Participant::new("a", "PA_1"), Config::default(), [0; 32]);
        let now = an_instant();
        let key = session.call(now, Request::new("t", Value::empty())).unwrap();
        session.stanza = LAST_STANZA;
        session.handle_timeout(now);
        let outputs: Vec<_> = std::iter::from_fn(|| session.poll_output()).collect();
        assert!(
            outputs.iter().any(|it| matches!(it, Output::Settled { key: settled, .. } if *settled == key))
        );
        assert!(matches!(outputs.last(), Some(Output::Event(Event::Closed(CloseReason::ConnectionLost(_))))));
        assert!(matches!(session.call(now, Request::new("t", Value::empty())), Err(CallError::Closed(_))));
        assert_eq!(session.poll_timeout(), None);
    }

    #[test]
    fn what_cannot_be_asked_is_an_error_at_once() {
        let mut session = Session::assistant(Participant::new("a", "PA_1"), Config::default(), [0; 32]);
        let now = an_instant();
        let mut ask = |request: Request| session.call(now, request).unwrap_err();
        let request = || Request::new("t", Value::empty());
        assert!(matches!(ask(request().timeout(std::time::Duration::ZERO)), CallError::Limit { .. }));
        assert!(matches!(
            ask(request().timeout(std::time::Duration::from_secs(601))),
            CallError::Limit { .. }
        ));
        assert!(matches!(ask(Request::new("bridge.wipe", Value::empty())), CallError::UnknownTool { .. }));
        assert!(matches!(ask(Request::new("a b", Value::empty())), CallError::UnknownTool { .. }));
        let list = Value::encode(&[1, 2]).unwrap();
        assert!(matches!(ask(Request::new("t", list)), CallError::Arguments(_)));
        assert!(session.poll_output().is_none());
    }
}
