//! Implements the protocol's state machine. It contains no sockets, no clock and no randomness. [`Session`]
//! describes the event loop.

mod call_log;
mod codec;
mod config;
mod context;
mod core;
mod delivery;
mod disclosure;
mod event;
mod exchange;
mod ids;
mod incoming;
mod jobs;
mod keys;
mod outgoing;
mod peers;
mod ready;
mod recipients;
mod selection;
mod stats;
mod timers;
mod trace;
mod views;

use std::{sync::Arc, time::Duration};

pub use self::{
    call_log::{CallRecord, CallState},
    config::{CallCaps, Caps, Config, FrameCaps, RequestCaps, Times, ToolCaps},
    context::COMPLAINT_INTERVAL,
    event::{
        Destination, Event, LocalText, Output, Question, Request, SendFailure, SendFrameError, Unaccepted,
    },
    jobs::CONSENT_MARGIN,
    keys::{CallKey, SelectionKey, TurnKey},
    outgoing::{LateResult, StopError},
    ready::Readiness,
    selection::{Candidate, Selection, SelectionFn, SelectionPolicy},
    stats::{Counter, Stats},
};
use self::{
    context::Context,
    core::Core,
    delivery::Delivery,
    exchange::Exchange,
    jobs::Jobs,
    outgoing::{not_bound, unregistered, why_nobody, why_not},
    peers::Peers,
};
use crate::{
    clock::Instant,
    protocol::frame::{Kind, Meta},
    tool::{
        CallError, CallId, JobKey, Offer, Outcome, Progress, Reach, RegisterError, ReportError, StopReason,
        Tool, ToolName,
    },
    transport::{CloseReason, Identity, Incoming, Participant, Peer, Role, TOPIC, TransportEvent},
    value::Value,
};

/// A timer firing this late means that the process was suspended: a driver wakes up within milliseconds. Packets that
/// arrived meanwhile have not been handled, so that interval says nothing about peers.
const SUSPENDED: Duration = Duration::from_secs(1);

/// The delay after which a result or stop is sent again that exceeded the driver's or the transport's queue.
const QUEUE_WAIT: Duration = Duration::from_secs(1);

/// One end of the protocol: a client that offers tools, or the assistant that calls them.
///
/// It contains no sockets, no clock and no randomness. Its driver runs a loop:
///
/// 1. After each input or command, call [`poll_output`](Self::poll_output) until it returns `None`, and do what each
///    [`Output`] says.
/// 2. Wait for an event of the transport, or until [`poll_timeout`](Self::poll_timeout).
/// 3. Pass it to the `handle_*` method of that name, with the current time.
///
/// Where tools need a person's consent ([`Config::consent_available`]), the outputs include questions, which are
/// answered with [`consent`](Self::consent).
///
/// Bytes from the network can neither make it panic nor make it grow beyond the limits in [`Caps`].
///
/// ```no_run
/// use std::time::Instant;
///
/// use toolbridge::{
///     Config, Tool, Value,
///     session::{Output, Session},
///     transport::{Participant, TransportEvent},
/// };
///
/// # struct Link;
/// # impl Link {
/// #     fn publish(&self, _to: &[toolbridge::Identity], _bytes: &[u8]) {}
/// #     fn wait_until(&self, _when: Option<Instant>) -> Option<TransportEvent> { None }
/// # }
/// # fn seed() -> [u8; 32] { [0; 32] }
/// # #[expect(clippy::disallowed_methods, reason = "a driver owns the clock")]
/// # fn drive(link: Link) -> Result<(), Box<dyn std::error::Error>> {
/// let mut session = Session::client(Instant::now(), Participant::new("phone", "PA_1"), Config::default(), seed());
/// session.offer(Instant::now(), vec![Tool::new("get_battery".parse()?, "Battery level, 0 to 1")])?;
/// loop {
///     while let Some(output) = session.poll_output() {
///         match output {
///             Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
///             Output::Execute(job) => session.settle(Instant::now(), job.key, Ok(Value::encode(&0.8)?)),
///             Output::Ask(question) => session.consent(Instant::now(), question.key, false), // nobody can be asked
///             Output::Select(selection) => session.select(Instant::now(), selection.key, selection.evaluate()),
///             Output::Abort { .. } | Output::Settled { .. } => {} // jobs end at once, and nothing is called
///             Output::Event(event) => eprintln!("{event:?}"),
///         }
///     }
///     match link.wait_until(session.poll_timeout()) {
///         Some(event) => session.handle_event(Instant::now(), event),
///         None => session.handle_timeout(Instant::now()),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    core: Core,
    exchange: Exchange,
    phase: Phase,
}

/// The state of the session.
#[derive(Debug)]
enum Phase {
    /// No input has arrived. The configured peers are not greeted yet.
    Fresh,
    /// The session accepts inputs and commands.
    Open,
    /// The session has ended.
    Closed(CloseReason),
}

impl Session {
    /// Creates a session that offers tools. The seed must be random and new for each process.
    pub fn client(now: Instant, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        Self::new(now, Role::Client, local, config, seed)
    }

    /// Creates a session that calls tools and may offer its own. The seed must be random and new for each process.
    pub fn assistant(now: Instant, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        Self::new(now, Role::Assistant, local, config, seed)
    }

    fn new(now: Instant, role: Role, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        let core = Core {
            cx: Context::new(now, role, local, config, seed),
            peers: Peers::default(),
            delivery: Delivery::default(),
            jobs: Jobs::default(),
        };
        Self { core, exchange: Exchange::default(), phase: Phase::Fresh }
    }
}

/// Getters.
impl Session {
    /// Returns the local participant in its current join.
    pub fn local(&self) -> &Participant {
        &self.core.cx.local.participant
    }

    /// Returns the role of the local participant.
    pub fn role(&self) -> Role {
        self.core.cx.local.role
    }

    /// Returns the room's name: the configured one, else the first that a peer used, else an empty string.
    pub fn room(&self) -> &str {
        &self.core.cx.config.room
    }

    /// Client: returns the bound assistant. Only this assistant may call the client's tools.
    pub fn bound(&self) -> Option<&Identity> {
        self.core.peers.bound()
    }

    /// Returns all participants that the room announced, without the local one.
    pub fn participants(&self) -> Vec<Participant> {
        self.core.peers.participants()
    }

    /// Returns the tools that can be called: the local ones and, for an assistant, those of its clients.
    pub fn tools(&self) -> Vec<Offer> {
        let local = &self.core.cx.local;
        let local_tools = local.tools.iter().map(|tool| Offer::local(tool.clone(), local.identity().clone()));
        let theirs = self.core.peers.iter().flat_map(|(owner, remote)| {
            let reach = remote.reach(&self.core.cx);
            let offer = move |tool: &Tool| Offer { reach, ..Offer::new(tool.clone(), owner.clone()) };
            remote.tools().iter().map(offer)
        });
        local_tools.chain(theirs).collect()
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        &self.core.cx.stats
    }

    /// Returns the number of calls of the local participant that are not settled.
    pub fn open_calls(&self) -> usize {
        self.exchange.outgoing.open_calls()
    }

    /// Returns the number of running jobs.
    pub fn open_jobs(&self) -> usize {
        self.core.jobs.len()
    }

    /// Returns an open call's id on the wire.
    pub fn call_id(&self, key: CallKey) -> Option<&CallId> {
        self.exchange.outgoing.call_id(key)
    }

    /// Returns the key of the open call with this id.
    pub fn call_key(&self, id: &CallId) -> Option<CallKey> {
        self.exchange.outgoing.key_of(id)
    }

    /// Returns the longest time limit that a call may have.
    pub fn longest_call(&self) -> Duration {
        self.core.cx.config.times.longest_call
    }

    /// Returns whether a packet from [`Output::Transmit`] must still be sent.
    ///
    /// A driver that queues packets checks this before it starts to send a large packet, and between its parts. It
    /// drops a packet that is no longer wanted and reports nothing.
    pub fn is_wanted(&self, packet: u64) -> bool {
        self.core.delivery.wants(packet)
    }

    /// Returns the tool of this name that the local participant offers.
    #[cfg(feature = "vocabulary")]
    pub(crate) fn own_tool(&self, name: &str) -> Option<&Tool> {
        self.core.cx.local.tool(name)
    }

    /// Returns whether more parts of this stream are expected.
    #[cfg(feature = "vocabulary")]
    pub(crate) fn reads_stream(&self, from: &Peer, id: &str) -> bool {
        self.core.delivery.reads_stream(from, id)
    }

    /// Returns whether no call is open, no job runs and every answer is acknowledged. Answers to callers that have left
    /// the room do not count.
    pub fn is_drained(&self) -> bool {
        let reported = self.core.jobs.reported(); // their systems need not end before the participant leaves
        self.exchange.outgoing.open_calls() == reported
            && self.core.jobs.len() == reported
            && !self.exchange.incoming.awaits_acknowledgement()
    }
}

/// Inputs.
impl Session {
    /// Handles an event of the transport. The session ignores packets of other topics than [`TOPIC`]; a packet without
    /// a topic is from a participant without toolbridge.
    pub fn handle_event(&mut self, now: Instant, event: TransportEvent) {
        if !self.begin(now) {
            return;
        }
        let Self { core, exchange, .. } = self;
        match event {
            TransportEvent::Joined(who) => exchange.joined(core, who),
            TransportEvent::Left(who) => exchange.left(core, &who),
            TransportEvent::ConnectionState(state) => exchange.connection_state_changed(core, state),
            TransportEvent::Packet(Incoming { from, lane, topic, payload }) => {
                if topic.is_empty() || topic == TOPIC {
                    exchange.receive(core, from.as_ref(), lane, payload);
                }
            }
            TransportEvent::Stream { from, part } => exchange.receive_stream(core, &from, part),
            TransportEvent::Rpc { from, message } => exchange.receive_rpc(core, from.as_ref(), message),
            TransportEvent::Unreadable { from, why } => {
                if let Some((what, _)) = Counter::UNREADABLE.into_iter().find(|(_, it)| *it == why) {
                    core.cx.complain(from.as_ref().map(Peer::identity), what);
                }
            }
            TransportEvent::Closed(reason) => self.end(reason, false),
        }
    }

    /// Reports that the local participant has rejoined: its new sid and the participants that are present. Its instance
    /// does not change.
    pub fn handle_rejoined(&mut self, now: Instant, local: Participant, present: Vec<Participant>) {
        if self.begin(now) {
            self.exchange.rejoined(&mut self.core, local, present);
        }
    }

    /// Reports the payload bytes that wait on the reliable lane, as far as the driver and the transport know.
    ///
    /// Above a few hundred bytes, small frames are sent on the lossy lane only, without a reliable copy. A driver that
    /// reports this once must continue, at least after each [`poll_timeout`](Session::poll_timeout) that was due.
    pub fn handle_backlog(&mut self, now: Instant, bytes: usize) {
        if self.begin(now) {
            self.core.delivery.handle_backlog(&mut self.core.cx, &self.core.peers, bytes);
        }
    }

    /// Reports that a packet was not sent.
    #[expect(clippy::needless_pass_by_value, reason = "an input takes what it is given")]
    pub fn handle_send_failed(&mut self, now: Instant, id: u64, why: SendFailure) {
        if self.begin(now) {
            self.exchange.unsent(&mut self.core, id, &why);
        }
    }

    /// Handles due timers. Call it at [`poll_timeout`](Session::poll_timeout); an early or late call does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.begin(now) {
            return;
        }
        let now = self.core.cx.now;
        while let Some(timer) = self.core.cx.timers.pop(now) {
            self.exchange.timer_due(&mut self.core, timer);
        }
    }
}

/// Commands.
impl Session {
    /// Replaces the offered tools. After the session has ended, the tools are only checked.
    ///
    /// # Errors
    /// A tool's name is reserved or appears twice, a tool needs a person's consent and nobody can be asked
    /// ([`Config::consent_available`]), or the tools exceed a limit in number or size. The offered tools have not
    /// changed then.
    pub fn offer(&mut self, now: Instant, tools: Vec<Tool>) -> Result<(), RegisterError> {
        let (tools, left_out) = Peers::check_offer(&self.core.cx, tools);
        match left_out.into_iter().next() {
            Some((_, why)) => Err(why),
            None => {
                self.set_tools(now, tools, &[]);
                Ok(())
            }
        }
    }

    /// Replaces the offered tools, without those that [`offer`](Self::offer) would refuse. Returns these with the
    /// reasons. If there are too many tools, the last ones are left out.
    pub fn offer_allowed(&mut self, now: Instant, tools: Vec<Tool>) -> Vec<(ToolName, RegisterError)> {
        self.offer_and_explain(now, tools, &[])
    }

    /// Like [`offer_allowed`](Self::offer_allowed). Assistants are also told why these other tools are not offered.
    pub(crate) fn offer_and_explain(
        &mut self,
        now: Instant,
        tools: Vec<Tool>,
        others: &[(ToolName, RegisterError)],
    ) -> Vec<(ToolName, RegisterError)> {
        let (tools, left_out) = Peers::check_offer(&self.core.cx, tools);
        self.set_tools(now, tools, &[others, &left_out].concat());
        left_out
    }

    /// Assistant: checks the tools of the participants that are called by RPC ([`Config::rpc_tool`]), after the local tools were
    /// offered.
    ///
    /// # Errors
    /// A tool's name is reserved, is that of a local tool, or appears twice at one participant; or a participant has too many
    /// tools.
    pub fn check_rpc_tools(&self) -> Result<(), RegisterError> {
        Peers::check_rpc_tools(&self.core.cx)
    }

    /// Returns the limits on the tools of one participant.
    pub fn tool_caps(&self) -> &ToolCaps {
        &self.core.cx.config.caps.tools
    }

    /// Starts a call. Unless an error is returned, exactly one [`Output::Settled`] follows for the key.
    ///
    /// # Errors
    /// No participant can own the call, too many calls are open, the call is too large, its time limit is not allowed,
    /// or the session has ended.
    pub fn call(&mut self, now: Instant, request: Request) -> Result<CallKey, CallError> {
        self.begin(now);
        self.check_open().map_err(CallError::NotInRoom)?;
        self.exchange.outgoing.call(&mut self.core, request)
    }

    /// Assistant: shows a call to the room that another system makes and runs. It is in the call log and in recordings
    /// like a local call, and nothing runs here. [`progress`](Session::progress) and [`settle`](Session::settle) report
    /// what follows. Without a [`timeout`](Request::timeout) it may take [`Times::longest_call`].
    ///
    /// # Errors
    /// The name or the arguments are not valid, a limit is exceeded, the local participant is a client, or the session
    /// has ended.
    pub fn report(&mut self, now: Instant, request: Request) -> Result<(JobKey, CallId), ReportError> {
        self.begin(now);
        self.check_open().map_err(ReportError::Closed)?;
        let begun = self.exchange.outgoing.report(&mut self.core, request);
        begun.inspect_err(|error| {
            use ReportError::{TooLarge, TooMany, TooOften};
            if matches!(error, TooLarge { .. } | TooMany { .. } | TooOften { .. }) {
                self.core.cx.count(Counter::ReportRefused);
            }
        })
    }

    /// Assistant: shows the state of a view to the clients that list the feature, and to those that join later. At most
    /// ten states of a view are sent in a second; the last is always sent. Nil as content ends the view.
    ///
    /// # Errors
    /// The name is not valid, there are 16 other views, the content and the text exceed 64 KiB, the local participant is
    /// a client, or the session has ended.
    #[expect(clippy::needless_pass_by_value, reason = "a command takes what it is given")]
    pub fn show_view(
        &mut self,
        now: Instant,
        view: &str,
        content: Value,
        text: Option<String>,
    ) -> Result<(), ReportError> {
        self.begin(now);
        self.check_open().map_err(ReportError::Closed)?;
        let shown = self.exchange.views.show(&mut self.core, views::update(view, &content, text));
        shown.inspect_err(|_| self.core.cx.count(Counter::ReportRefused))
    }

    /// Cancels a call of the local participant. It is settled at once, and its owner is asked to stop.
    pub fn cancel(&mut self, now: Instant, key: CallKey) {
        self.cancel_for(now, key, StopReason::Caller);
    }

    /// Cancels a call for this reason, which a recorded session names.
    pub(crate) fn cancel_for(&mut self, now: Instant, key: CallKey, reason: StopReason) {
        // A call that a barge-in settled no longer has a caller, even if its tool still runs.
        if self.begin(now) && self.exchange.outgoing.is_awaited(key) {
            self.exchange.outgoing.cancel_call(&mut self.core, key, reason);
        }
    }

    /// Detaches a call of the local participant from its caller. The call continues, but no [`Output::Settled`]
    /// follows.
    pub fn detach(&mut self, now: Instant, key: CallKey) {
        if self.begin(now) {
            self.exchange.outgoing.detach(key);
        }
    }

    /// Reports the outcome of a job. An aborted or unknown job is ignored.
    pub fn settle(&mut self, now: Instant, key: JobKey, outcome: Outcome) {
        if self.begin(now) {
            let outcome = self.core.jobs.checked_outcome(key, outcome);
            if let Some(ended) = self.core.finish_job(key, outcome) {
                self.exchange.job_ended(&mut self.core, ended);
            }
        }
    }

    /// Reports the progress of a job to its caller. At most ten updates a second are sent; the last is always sent.
    pub fn progress(&mut self, now: Instant, key: JobKey, progress: Progress) {
        if self.begin(now) {
            self.core.report_progress(key, progress);
        }
    }

    /// Sends a frame of a type that the session does not handle itself.
    ///
    /// # Errors
    /// The type is reserved for the session, the frame is too large or has no destination, or the session has ended.
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
        self.check_open().map_err(SendFrameError::Closed)?;
        self.core.delivery.send_frame(&mut self.core.cx, &self.core.peers, to, kind, &meta, body)
    }

    /// Refuses all further requests as `busy`, without running them. Open calls and jobs continue.
    pub fn drain(&mut self, now: Instant) {
        if self.begin(now) {
            self.exchange.incoming.drain(&mut self.core);
        }
    }

    /// Leaves the room: sends a goodbye to every peer that may know this one, settles open calls as closed and
    /// stops jobs.
    ///
    /// [`poll_output`](Session::poll_output) still returns the last packets. Later inputs have no effect.
    pub fn close(&mut self, now: Instant) {
        if self.begin(now) {
            self.end(CloseReason::Closed, true);
        }
    }
}

/// Polls.
impl Session {
    /// Returns the next output, or `None` if there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.core.cx.next_output()
    }

    /// Returns the time at which [`handle_timeout`](Session::handle_timeout) is due, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.core.cx.timers.next()
    }
}

/// Waits for a participant.
impl Session {
    /// Starts to wait for this participant, as a call that names it does: greets it and applies the timeout of
    /// [`Times::silence`]. Each call must be followed by one [`stop_expecting`](Session::stop_expecting).
    pub fn expect_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            self.exchange.outgoing.begin_expecting(&mut self.core, id);
        }
    }

    /// Ends one wait for this participant.
    pub fn stop_expecting(&mut self, id: &Identity) {
        self.exchange.outgoing.stop_expecting(id);
    }

    /// Pings a participant that completed the handshake but has not registered. Without a ping it never becomes
    /// [`NotBound`](Readiness::NotBound).
    pub fn probe_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            for id in unregistered(&self.core, Some(id)) {
                self.core.peers.probe(&mut self.core.cx, &mut self.core.delivery, &id);
            }
        }
    }

    /// Returns whether this participant is ready for calls.
    pub fn readiness(&self, id: &Identity) -> Readiness {
        let why_not = || why_not(&self.core, "", id);
        let Some(remote) = self.core.peers.get(id).filter(|remote| remote.is_here()) else {
            return Readiness::NotYet(why_not());
        };
        match remote.reach(&self.core.cx) {
            _ if remote.is_observer() => Readiness::Never(why_not()),
            Some(Reach::Plain) if !remote.is_registered() && !remote.is_configured() => Readiness::Silent,
            Some(_) if remote.is_registered() || remote.is_plain() => {
                Readiness::Ready(remote.tools().to_vec())
            }
            _ if not_bound(&self.core, Some(id)).is_empty() => Readiness::NotYet(why_not()),
            _ => Readiness::NotBound,
        }
    }

    /// Returns the error of a call of a tool that no participant offers now.
    pub fn why_not_offered(&self, tool: &str) -> CallError {
        why_nobody(&self.core, tool, None)
    }

    /// Returns a count of the changes that may affect the readiness of a participant: a driver asks for
    /// [`readiness`](Self::readiness) again when it has grown.
    pub fn registrations(&self) -> u64 {
        self.core.peers.changes()
    }
}

/// Consent, turns and stops.
impl Session {
    /// Reports the answer to a question. If the person agrees, the job follows as [`Output::Execute`]. Otherwise its
    /// caller receives `permission_denied`, and nothing has run. An answer to a withdrawn question is ignored.
    pub fn consent(&mut self, now: Instant, key: JobKey, is_allowed: bool) {
        if self.begin(now)
            && let Some(ended) = self.core.answer_question(key, is_allowed)
        {
            self.exchange.job_ended(&mut self.core, ended);
        }
    }

    /// Reports the participant that the author's function selected ([`Selection::evaluate`]). An answer that no longer
    /// matters is ignored.
    pub fn select(&mut self, now: Instant, key: SelectionKey, named: Option<Identity>) {
        if self.begin(now) {
            let Self { core, exchange, .. } = self;
            match key.0 {
                Some(call) => exchange.outgoing.owner_selected(core, call, named),
                None => core.peers.bind_selected(&mut core.cx, &mut core.delivery, named),
            }
        }
    }

    /// Starts a turn. Its calls name it in [`Request::turn`]. At most 256 turns are open; a further one ends the
    /// oldest.
    pub fn turn(&mut self) -> TurnKey {
        self.exchange.outgoing.begin_turn()
    }

    /// Ends a turn because the user interrupted. Each of its open calls is settled at once, according to its tool's
    /// rule. Later calls of this turn are refused.
    pub fn barge_in(&mut self, now: Instant, turn: TurnKey) {
        self.exchange.outgoing.end_turn(turn);
        if self.begin(now) {
            self.exchange.outgoing.barge_in(&mut self.core, turn);
        }
    }

    /// Ends a turn without an interruption. Its open calls continue; later calls of this turn are refused.
    pub fn end_turn(&mut self, turn: TurnKey) {
        self.exchange.outgoing.end_turn(turn);
    }

    /// Takes the results of calls that a barge-in left running, oldest first. At most [`CallCaps::late_results`] and
    /// [`CallCaps::late_bytes`] are kept.
    pub fn late_results(&mut self) -> Vec<LateResult> {
        self.exchange.outgoing.late_results()
    }

    /// Client: asks the bound assistant to stop this call or, with `None`, each call that a barge-in would stop. The
    /// assistant complies if its driver lets this client stop calls ([`Participant::allowed_to_stop`]).
    ///
    /// # Errors
    /// No assistant is bound, or the session has ended.
    pub fn ask_to_stop(&mut self, now: Instant, call: Option<&CallId>) -> Result<(), StopError> {
        self.begin(now);
        self.check_open().map_err(StopError::Closed)?;
        self.exchange.outgoing.request_stop(&mut self.core, call)
    }

    /// Returns the last settled calls, oldest first, then the open ones. It includes the calls that the local
    /// participant requested and those that it ran.
    pub fn records(&self) -> Vec<CallRecord> {
        self.core.cx.log.records()
    }

    /// Returns the record of this call, if it is open or was settled recently. Callers choose the ids: of several with one
    /// id, it is that of an open call, or else of the one that was settled last.
    pub fn record(&self, call: &CallId) -> Option<&CallRecord> {
        self.core.cx.log.record(call)
    }
}

/// Inputs that replaying a recorded session needs.
#[cfg(feature = "record")]
impl Session {
    /// Starts a call with a recorded id.
    pub(crate) fn call_as(
        &mut self,
        now: Instant,
        request: Request,
        id: CallId,
    ) -> Result<CallKey, CallError> {
        self.core.cx.ids.give(Some(id));
        let key = self.call(now, request);
        self.core.cx.ids.give(None); // an error may have occurred before the id was used
        key
    }

    /// Reports a call of another system with a recorded id.
    pub(crate) fn report_as(
        &mut self,
        now: Instant,
        request: Request,
        id: CallId,
    ) -> Result<JobKey, ReportError> {
        self.core.cx.ids.give(Some(id));
        let begun = self.report(now, request);
        self.core.cx.ids.give(None);
        begun.map(|(key, _)| key)
    }

    /// Sends a job's waiting progress at once.
    pub(crate) fn progress_at_once(&mut self, now: Instant, key: JobKey) {
        self.core.cx.now = now;
        self.core.report_due(key);
    }

    /// Sends the views at once that wait because they were shown too soon.
    pub(crate) fn send_views_at_once(&mut self, now: Instant) {
        self.core.cx.now = now;
        self.exchange.views.send_held(&mut self.core);
    }

    /// Returns the `bridge.to` value that addresses this session.
    pub(crate) fn address(&self) -> String {
        ids::address_of(self.core.cx.ids.instance())
    }
}

impl Session {
    /// Takes the time of an input or command and returns whether the session is open. The first call greets the
    /// configured peers.
    fn begin(&mut self, now: Instant) -> bool {
        // A caller may have read the clock before another one, and have waited for its turn.
        let now = now.max(self.core.cx.now);
        self.core.cx.now = now;
        let late = self.core.cx.timers.lateness(now);
        if late >= SUSPENDED {
            tracing::debug!(?late, "the process was suspended");
            let Core { cx, peers, delivery, .. } = &mut self.core;
            cx.timers.postpone(late);
            delivery.restart_timeouts(now);
            peers.restart_peer_timeouts(now);
        }
        match self.phase {
            Phase::Open if !self.core.delivery.is_exhausted() => true,
            Phase::Open => {
                let reason = "all stanza numbers are used; rejoin the room";
                self.end(CloseReason::ConnectionLost(Arc::from(reason)), false);
                false
            }
            Phase::Closed(_) => false,
            Phase::Fresh => {
                self.phase = Phase::Open;
                let Core { cx, peers, delivery, .. } = &mut self.core;
                cx.await_announcement();
                peers.greet_named(cx, delivery);
                true
            }
        }
    }

    fn set_tools(&mut self, now: Instant, tools: Vec<Tool>, left_out: &[(ToolName, RegisterError)]) {
        self.core.cx.local.left_out =
            left_out.iter().map(|(name, why)| (name.clone(), why.to_string())).collect();
        if let Phase::Fresh = self.phase {
            // `begin` greets the configured peers. They may be sent a registration at once, so the tools are set first.
            self.core.cx.local.tools = tools;
            self.begin(now);
        } else if self.begin(now) {
            let Core { cx, peers, delivery, jobs } = &mut self.core;
            cx.local.tools = tools;
            jobs.withdraw_consents(cx);
            peers.announce_tools(cx, delivery);
        }
    }

    fn check_open(&self) -> Result<(), CloseReason> {
        match &self.phase {
            Phase::Closed(reason) => Err(reason.clone()),
            Phase::Fresh | Phase::Open => Ok(()),
        }
    }

    /// Ends the session. `is_orderly` states whether peers are sent a goodbye.
    fn end(&mut self, reason: CloseReason, is_orderly: bool) {
        self.exchange.end(&mut self.core, &reason, is_orderly);
        self.phase = Phase::Closed(reason);
    }
}

#[cfg(test)]
mod tests {
    mod cost;

    use super::*;

    /// Returns an instant for a test to count from.
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    pub(super) fn an_instant() -> Instant {
        Instant::now()
    }

    #[test]
    fn session_can_move_to_another_thread() {
        fn is_send<T: Send>(_: T) {}
        is_send(Session::client(an_instant(), Participant::new("phone", "PA_1"), Config::default(), [0; 32]));
    }

    #[test]
    fn session_that_used_all_stanzas_ends_with_an_event() {
        let mut session =
            Session::assistant(an_instant(), Participant::new("a", "PA_1"), Config::default(), [0; 32]);
        let now = an_instant();
        let key = session.call(now, Request::new("t", Value::empty())).unwrap();
        session.core.delivery.exhaust();
        session.handle_timeout(now);
        let outputs: Vec<_> = std::iter::from_fn(|| session.poll_output()).collect();
        assert!(
            outputs.iter().any(|it| matches!(it, Output::Settled { key: settled, .. } if *settled == key))
        );
        assert!(matches!(outputs.last(), Some(Output::Event(Event::Closed(CloseReason::ConnectionLost(_))))));
        assert!(matches!(session.call(now, Request::new("t", Value::empty())), Err(CallError::NotInRoom(_))));
        assert_eq!(session.poll_timeout(), None);
    }

    #[test]
    fn invalid_call_is_an_error_at_once() {
        let mut session =
            Session::assistant(an_instant(), Participant::new("a", "PA_1"), Config::default(), [0; 32]);
        let now = an_instant();
        let mut ask = |request: Request| session.call(now, request).unwrap_err();
        let request = || Request::new("t", Value::empty());
        assert!(matches!(ask(request().timeout(Duration::ZERO)), CallError::Limit { .. }));
        assert!(matches!(ask(request().timeout(Duration::from_secs(601))), CallError::Limit { .. }));
        assert!(matches!(ask(Request::new("bridge.wipe", Value::empty())), CallError::UnknownTool { .. }));
        assert!(matches!(ask(Request::new("a b", Value::empty())), CallError::UnknownTool { .. }));
        let list = Value::encode(&[1, 2]).unwrap();
        assert!(matches!(ask(Request::new("t", list)), CallError::Arguments(_)));
        assert!(session.poll_output().is_none());
    }
}
