//! One run: the processes, the room they share, and the virtual clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use toolbridge::{
    CallError, CallId, ConnectionState, Event, Identity, Tool, ToolName,
    session::{CallKey, Counter, JobKey, Output, TurnKey},
    transport::TransportEvent,
};

use crate::{
    carry::{Outbox, frame_of},
    plain::Plain,
    reach::{Reach, Reached},
    recorded::{Digests, Observed, SEEDS},
    room::{Room, Scheduled, Us},
    rpc::App,
    rules::{Failure, Ledger, Rule, Verdict},
    schedule::{Actor, Behavior, CLEANUP, END, FULL_PROBES, PROBES, RECOVERY, STEADY, Schedule},
    session::Session,
    work::OpenQuestion,
};

/// Calls that may be open with one owner.
pub(crate) const OPEN: usize = 5;

/// A run has about 500 steps; one with this many is in an endless loop.
const MOST_STEPS: u64 = 50_000;

/// Every so many calls, the caller makes another one as soon as it has the result: its request carries the acknowledgement.
const FOLLOWED: usize = 4;

/// Time in µs by which what is answered to a stranger may delay a call: a round trip.
const MOMENT: Us = 100_000;

/// Time in µs after a loss in which packets may be doubled: 10 s after the sign of it, which a retry shows.
const LOSS_IS_OVER: Us = 12_000_000;
const LOSSES_ARE_OVER: Us = 162_000_000;

/// Packets that one input may cause. A goodbye to every peer and the retransmission of a full table need the most.
const PACKETS_AT_ONCE: usize = 80;

/// The program that a process runs.
pub(crate) enum Program {
    Bridge(Box<Session>),
    /// A plain peer, which knows only the base protocol.
    Plain(Plain),
    /// An app that is called by RPC.
    App(App),
    /// A participant that sends nothing by itself.
    Listener,
}

/// One process, from its start to its end.
pub(crate) struct Process {
    pub(crate) actor: Actor,
    pub(crate) program: Program,
    pub(crate) alive: bool,
    /// Its session has reported `Closed`.
    closed: bool,
    /// Its current join; none while it has no connection.
    pub(crate) join: Option<usize>,
    /// It has joined at least once.
    pub(crate) joined: bool,
    /// It accepts no new requests.
    pub(crate) drained: bool,
    /// The tools that it runs.
    pub(crate) jobs: BTreeMap<JobKey, (CallId, Behavior, Identity)>,
    /// The calls that it made.
    pub(crate) calls: BTreeMap<CallKey, usize>,
    /// The current turn.
    pub(crate) turn: Option<TurnKey>,
    /// How often its tools have changed.
    pub(crate) edition: u32,
    /// Its transport has reported an outage within its current join.
    pub(crate) cut: bool,
    pub(crate) outbox: Outbox,
    /// Until when its transport refuses packets, and what percentage of them.
    pub(crate) refuses: Option<(Us, u64)>,
    /// The doubled packets that it has sent.
    doubles: u64,
    /// The consent questions that its person has not answered.
    pub(crate) questions: BTreeMap<JobKey, OpenQuestion>,
    /// The tools that its person has allowed for one call.
    pub(crate) allowed: BTreeMap<JobKey, Tool>,
    /// The tools that its person has allowed for the session, each with the caller.
    pub(crate) granted: BTreeSet<(ToolName, usize)>,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// The outcome of each call, and when it came.
    pub(crate) verdicts: Vec<Option<(Verdict, Us)>>,
    pub(crate) starts: usize,
    pub(crate) steps: u64,
    pub(crate) reached: Reached,
    pub(crate) digests: Digests,
}

/// All processes, and the room.
pub(crate) struct World<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) base: Instant,
    pub(crate) room: Room,
    pub(crate) ledger: Ledger,
    pub(crate) processes: Vec<Process>,
    /// The current process of each actor.
    pub(crate) current: BTreeMap<Actor, usize>,
    /// Whether forged packets are delivered.
    pub(crate) forgeries_delivered: bool,
    pub(crate) recovered: bool,
    pub(crate) tracing: bool,
    /// The instance that was announced last; forged frames use it.
    pub(crate) last_instance: String,
    /// The id of the stream that was started last.
    pub(crate) last_stream: Arc<str>,
    steps: u64,
    observed: Observed,
}

/// Runs a schedule to its end, or to the first broken rule.
pub(crate) fn run(schedule: &Schedule, base: Instant, tracing: bool) -> Outcome {
    let first = World::new(schedule, base, true, tracing).run();
    if first.failure.is_some() || !schedule.has(Actor::Stranger) {
        return first;
    }
    // Forged frames change counters only: without them the same run has the same outcomes.
    let mut twin = World::new(schedule, base, false, false).run();
    // What is answered to the stranger shares a queue with the rest, so a copy of a frame may leave a moment later.
    let is_other = |a: &Option<(Verdict, Us)>, b: &Option<(Verdict, Us)>| match (a, b) {
        (Some((a, at)), Some((b, was))) => a != b || at.abs_diff(*was) > MOMENT,
        (a, b) => a != b,
    };
    let differs = first.verdicts.iter().zip(&twin.verdicts).position(|(a, b)| is_other(a, b));
    if twin.failure.is_none() && (differs.is_some() || twin.starts != first.starts) {
        let text = match differs {
            Some(call) => format!(
                "call {call} ends as {:?}, and as {:?} when nothing is forged",
                first.verdicts[call], twin.verdicts[call]
            ),
            None => format!("{} starts, and {} when nothing is forged", first.starts, twin.starts),
        };
        twin.failure = Some(Failure { rule: Rule::Unauthorized, at: END * 1_000, text });
    }
    Outcome { failure: twin.failure, steps: first.steps + twin.steps, ..first }
}

impl<'a> World<'a> {
    /// Returns whether this actor runs a session.
    pub(crate) fn has_session(&self, actor: Actor) -> bool {
        let cast = &self.schedule.cast;
        match actor {
            Actor::Assistant => !cast.plain_assistant,
            Actor::SecondAssistant => true,
            Actor::Client(n) => cast.plain_client != Some(n),
            Actor::Observer | Actor::Stranger | Actor::App => false,
        }
    }

    fn new(schedule: &'a Schedule, base: Instant, forgeries_delivered: bool, tracing: bool) -> Self {
        let mut room = Room::new(schedule.seed, schedule.network.clone());
        for (at, (when, _)) in schedule.actions.iter().enumerate() {
            room.at(when * 1_000, Scheduled::Action(at));
        }
        if schedule.network.backlog {
            room.at(0, Scheduled::BacklogChanges);
        }
        room.at(RECOVERY * 1_000, Scheduled::FaultsEnd);
        room.at((RECOVERY + 5_000) * 1_000, Scheduled::CheckAborted { callers_too: false });
        room.at((RECOVERY + 12_000) * 1_000, Scheduled::CheckAborted { callers_too: true });
        room.at(CLEANUP * 1_000, Scheduled::CancelOpen);
        room.at(PROBES * 1_000, Scheduled::Probe);
        room.at(FULL_PROBES * 1_000, Scheduled::ProbeAtCapacity);
        Self {
            schedule,
            base,
            room,
            ledger: Ledger::without(&schedule.without),
            processes: Vec::new(),
            current: BTreeMap::new(),
            forgeries_delivered,
            recovered: false,
            tracing,
            last_instance: String::new(),
            last_stream: "none".into(),
            steps: 0,
            observed: Observed::new(base, forgeries_delivered && SEEDS.contains(&schedule.seed)),
        }
    }

    fn run(mut self) -> Outcome {
        while self.ledger.failure.is_none() && self.step() {}
        if self.ledger.failure.is_none() {
            self.room.now = END * 1_000;
            self.ledger.now = self.room.now;
            self.check_at_end();
        }
        let mut reached = std::mem::take(&mut self.ledger.reached);
        reached.add(&self.room.reached);
        for (at, process) in self.processes.iter().enumerate() {
            if let Program::Bridge(session) = &process.program {
                reached.count(session.stats());
                self.observed.end(at, session);
            }
        }
        Outcome {
            failure: self.ledger.failure,
            verdicts: self.ledger.calls.into_iter().map(|call| call.outcome).collect(),
            starts: self.ledger.starts.values().map(Vec::len).sum(),
            steps: self.steps,
            reached,
            digests: self.observed.digests(),
        }
    }

    /// Performs the next event or timeout; false if the run is over.
    fn step(&mut self) -> bool {
        let mut due: Option<(Us, usize)> = None;
        for (process, it) in self.processes.iter().enumerate() {
            if let Program::Bridge(session) = &it.program
                && it.alive
                && let Some(at) = session.poll_timeout()
            {
                let at = self.micros(at);
                if due.is_none_or(|(first, _)| at < first) {
                    due = Some((at, process));
                }
            }
        }
        let next = self.room.next().unwrap_or(Us::MAX);
        let at = due.map_or(next, |(at, _)| at.min(next)).max(self.room.now);
        if at > END * 1_000 {
            return false;
        }
        self.room.now = at;
        self.ledger.now = at;
        self.steps += 1;
        if self.steps > MOST_STEPS {
            self.ledger.broken(Rule::InTime, format!("the run has not ended after {MOST_STEPS} steps"));
        }
        match due {
            Some((due, process)) if due < next => {
                self.drive(process, Session::handle_timeout);
            }
            _ => {
                if let Some(what) = self.room.pop() {
                    self.perform(what);
                }
            }
        }
        true
    }

    fn micros(&self, at: Instant) -> Us {
        let since = at.saturating_duration_since(self.base);
        since.as_nanos().div_ceil(1_000) as Us
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + Duration::from_micros(self.room.now)
    }

    fn perform(&mut self, what: Scheduled) {
        match what {
            Scheduled::Action(at) => {
                if let Some((_, action)) = self.schedule.actions.get(at) {
                    trace!(self, "-- {action:?}");
                    self.action(*action);
                }
            }
            Scheduled::Joins { process } => self.joins(process),
            Scheduled::Returns { process } => self.returns(process),
            Scheduled::Listed(join) => self.listed(join),
            Scheduled::Opens(join) => self.opens(join),
            Scheduled::Unlisted(join) => self.room.unlist(join),
            Scheduled::AtServer { from, to, load } => self.room.relay(from, to, &load),
            Scheduled::Arrives { peer, to, load } => {
                let join = &self.room.joins[to];
                if join.held_until > self.room.now {
                    let when = join.held_until;
                    if !load.is_lossy() {
                        self.room.at(when, Scheduled::Arrives { peer, to, load });
                    }
                    return;
                }
                if join.open {
                    self.arrives(join.process, to, &peer, load);
                }
            }
            Scheduled::Wakes { to } => {
                let join = &self.room.joins[to];
                if join.held_until > self.room.now {
                    let when = join.held_until;
                    self.room.at(when, Scheduled::Wakes { to });
                } else if join.open {
                    self.flush(join.process);
                }
            }
            Scheduled::Announcement { to, about, joined } => self.announced(to, about, joined),
            Scheduled::Connection { process, join, up } => {
                if self.processes[process].join == Some(join) {
                    self.processes[process].cut = !up && !self.recovered;
                    let state = if up { ConnectionState::Connected } else { ConnectionState::Reconnecting };
                    self.drive(process, |session, now| {
                        session.handle_event(now, TransportEvent::ConnectionState(state))
                    });
                }
            }
            Scheduled::Part { process, join } => self.next_part(process, join),
            Scheduled::PersonAnswers { process, key, allowed } => self.person_answers(process, key, allowed),
            Scheduled::JobEnds { process, key } => self.job_ends(process, key),
            Scheduled::JobProgress { process, key, left } => self.job_progress(process, key, left),
            Scheduled::PlainJobEnds { process, caller, call } => self.plain_job_ends(process, &caller, &call),
            Scheduled::AppAnswers { process, id, number } => self.app_answers(process, &id, number),
            Scheduled::AppSends { process, to, load } => self.app_sends(process, &to, [load]),
            Scheduled::PlainDeadline { call } => self.plain_deadline(call),
            Scheduled::BacklogChanges => self.report_backlogs(),
            Scheduled::FaultsEnd => self.recover(),
            Scheduled::CheckAborted { callers_too } => self.check_aborted(callers_too),
            Scheduled::Leaves { actor, replaced_after } => self.leaves(actor, replaced_after),
            Scheduled::CancelOpen => self.cancel_open(),
            Scheduled::Probe => self.probe(1),
            Scheduled::ProbeAtCapacity => self.probe(OPEN),
        }
    }

    /// Passes an input to a session and processes its output.
    pub(crate) fn drive<T>(
        &mut self,
        process: usize,
        action: impl FnOnce(&mut Session, Instant) -> T,
    ) -> Option<T> {
        let now = self.now();
        let it = &mut self.processes[process];
        let Program::Bridge(session) = &mut it.program else { return None };
        if !it.alive {
            return None;
        }
        let result = action(session, now);
        self.flush(process);
        Some(result)
    }

    pub(crate) fn flush(&mut self, process: usize) {
        let at = self.now();
        let (mut packets, mut reported, mut next) = (0, false, Vec::new());
        loop {
            let it = &mut self.processes[process];
            let Program::Bridge(session) = &mut it.program else { return };
            let Some(output) = session.poll_output() else {
                if std::mem::replace(&mut reported, true) || !self.report_backlog(process) {
                    break;
                }
                continue;
            };
            self.observed.output(process, at, &output, frame_of);
            if it.closed {
                let actor = it.actor;
                return self.ledger.broken(
                    Rule::AfterClose,
                    format!("{actor} produces output after it has closed: {output:?}"),
                );
            }
            match output {
                Output::Transmit(packet) => {
                    packets += 1;
                    self.transmit(process, packet);
                }
                Output::Execute(job) => self.execute(process, &job),
                Output::Ask(question) => self.ask_for_consent(process, &question),
                Output::Select(selection) => {
                    let named = selection.evaluate();
                    let now = self.now();
                    if let Program::Bridge(session) = &mut self.processes[process].program {
                        session.select(now, selection.key, named);
                    }
                }
                Output::Abort { key, .. } => self.aborts(process, key),
                Output::Settled { key, result } => {
                    let call = self.processes[process].calls.get(&key).copied();
                    match call {
                        Some(call) => {
                            trace!(self, "call {call} is {}", Verdict::of(&result).outcome);
                            if self.ledger.calls[call].owners.contains("app")
                                && matches!(result, Err(CallError::Lost { .. }))
                                && self.room.listed_as("app").is_some()
                            {
                                self.ledger.reached.note(Reach::AppLostByPings);
                            }
                            self.ledger.calls[call].owner_is_recent = self.owner_is_recent(call);
                            self.check_answer(call, &result);
                            self.ledger.settled(call, &result);
                            if result.is_ok() && call.is_multiple_of(FOLLOWED) {
                                next.push(call);
                            }
                        }
                        None => {
                            let text = format!("{key:?} settles, but was never called");
                            self.ledger.broken(Rule::OneOutcome, text);
                        }
                    }
                }
                Output::Event(Event::Closed(_)) => self.processes[process].closed = true,
                Output::Event(event) => self.event(process, &event),
            }
        }
        for call in next {
            self.follows(call);
        }
        if packets > PACKETS_AT_ONCE {
            let text = format!("{} sends {packets} packets after one input", self.processes[process].actor);
            self.ledger.broken(Rule::Caps, text);
        }
        if let Program::Bridge(session) = &self.processes[process].program {
            self.observed.state(process, at, session);
        }
        self.check_caps(process);
        self.check_doubles(process);
    }

    /// Checks that no packet is doubled long after the last loss.
    fn check_doubles(&mut self, process: usize) {
        let it = &mut self.processes[process];
        let Program::Bridge(session) = &it.program else { return };
        let before = std::mem::replace(&mut it.doubles, session.stats().count(Counter::FastDoubles));
        let since = self.room.now - self.room.last_loss;
        // A loss shows when the next frame is answered: while calls are made without a pause, at once.
        let is_steady = self.schedule.cast.steady && self.room.now < STEADY * 1_000;
        // Losses that go on make each time longer, up to 160 s.
        let over = if self.room.losses > 1 { LOSSES_ARE_OVER } else { LOSS_IS_OVER };
        if is_steady && it.doubles > before && since > over {
            let text = format!("{} doubles a packet {} ms after the last loss", it.actor, since / 1_000);
            self.ledger.broken(Rule::Doubles, text);
        }
    }

    /// A process ends, and its tools with it.
    pub(crate) fn dies(&mut self, process: usize) {
        let it = &mut self.processes[process];
        it.alive = false;
        it.join = None;
        it.jobs.clear();
        it.outbox = Outbox::default();
        self.ledger.died(process);
    }
}

impl Process {
    pub(crate) fn new(actor: Actor, program: Program) -> Self {
        Self {
            actor,
            program,
            alive: true,
            closed: false,
            join: None,
            joined: false,
            drained: false,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            turn: None,
            edition: 0,
            cut: false,
            outbox: Outbox::default(),
            refuses: None,
            doubles: 0,
            questions: BTreeMap::new(),
            allowed: BTreeMap::new(),
            granted: BTreeSet::new(),
        }
    }
}
