//! One run: processes in a room, on virtual time, and everything they do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use toolbridge::{
    CallId, CallKey, ConnectionState, Event, Identity, JobKey, Output, Session, Tool, ToolName,
    TransportEvent, TurnKey,
};

use crate::{
    carry::Outbox,
    plain::Plain,
    reach::Reached,
    room::{Happens, Room, Us},
    rules::{Failure, Ledger, Rule, Verdict},
    schedule::{CLEARED, END, FULL_HOUSE, HEALED, How, PROBES, Schedule, Who},
    work::Asking,
};

/// Calls that may be open with one owner, in a run.
pub(crate) const OPEN: usize = 5;

/// A run has about 500 steps; one with so many goes round in circles.
const MOST_STEPS: u64 = 50_000;

/// Packets that one input may cause. A goodbye to everybody, and a full table that is sent again, are the most.
const PACKETS_AT_ONCE: usize = 80;

/// What runs at one participant.
pub(crate) enum Program {
    Bridge(Box<Session>),
    /// It knows only the seed's messages.
    Plain(Plain),
    /// It hears, and says nothing of its own.
    Watcher,
}

/// One run of one program.
pub(crate) struct Process {
    pub(crate) who: Who,
    pub(crate) program: Program,
    pub(crate) alive: bool,
    /// It has said that it is over.
    closed: bool,
    /// Its present join; none while it has no connection.
    pub(crate) join: Option<usize>,
    /// It was in the room before.
    pub(crate) joined: bool,
    /// It takes no more requests.
    pub(crate) drained: bool,
    /// What it runs.
    pub(crate) jobs: BTreeMap<JobKey, (CallId, How, Identity)>,
    /// What it asked for.
    pub(crate) calls: BTreeMap<CallKey, usize>,
    /// The present turn.
    pub(crate) turn: Option<TurnKey>,
    /// Its tools, by how often they were changed.
    pub(crate) edition: u32,
    /// The room has told it that nothing passes, though its join stands.
    pub(crate) cut: bool,
    pub(crate) outbox: Outbox,
    /// The questions that its person has not answered.
    pub(crate) questions: BTreeMap<JobKey, Asking>,
    /// What its person said yes to.
    pub(crate) allowed: BTreeMap<JobKey, Tool>,
    /// The tools that its person allowed once and for all, and to which caller.
    pub(crate) granted: BTreeSet<(ToolName, usize)>,
}

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// How each call ended, and when.
    pub(crate) verdicts: Vec<Option<(Verdict, Us)>>,
    pub(crate) starts: usize,
    pub(crate) steps: u64,
    pub(crate) reached: Reached,
}

/// Everybody, and the room.
pub(crate) struct World<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) base: Instant,
    pub(crate) room: Room,
    pub(crate) ledger: Ledger,
    pub(crate) processes: Vec<Process>,
    /// The process that plays each part now.
    pub(crate) parts: BTreeMap<Who, usize>,
    /// Whether what the stranger forges reaches anybody.
    pub(crate) forgeries_count: bool,
    pub(crate) healed: bool,
    pub(crate) tracing: bool,
    /// The instance that was shown last, by anybody: the stranger has stolen it.
    pub(crate) last_instance: String,
    /// The id of the stream that began last.
    pub(crate) last_stream: Arc<str>,
    steps: u64,
}

/// Runs a schedule to its end, or to the first broken rule.
pub(crate) fn run(schedule: &Schedule, base: Instant, tracing: bool) -> Outcome {
    let first = World::new(schedule, base, true, tracing).run();
    if first.failure.is_some() || !schedule.has(Who::X) {
        return first;
    }
    // A stranger moves counters only: without his frames the same run ends the same.
    let mut twin = World::new(schedule, base, false, false).run();
    if twin.failure.is_none() && (&twin.verdicts, twin.starts) != (&first.verdicts, first.starts) {
        let differs = first.verdicts.iter().zip(&twin.verdicts).position(|(a, b)| a != b);
        let text = match differs {
            Some(call) => format!(
                "call {call} ends as {:?}, and as {:?} when nothing is forged",
                first.verdicts[call], twin.verdicts[call]
            ),
            None => format!("{} starts, and {} when nothing is forged", first.starts, twin.starts),
        };
        twin.failure = Some(Failure { rule: Rule::Stranger, at: END * 1_000, text });
    }
    Outcome { failure: twin.failure, steps: first.steps + twin.steps, ..first }
}

impl<'a> World<'a> {
    /// Whether a session plays this part.
    pub(crate) fn is_bridge(&self, who: Who) -> bool {
        let cast = &self.schedule.cast;
        match who {
            Who::A => !cast.plain_assistant,
            Who::B => true,
            Who::C(n) => cast.plain_client != Some(n),
            Who::O | Who::X => false,
        }
    }

    fn new(schedule: &'a Schedule, base: Instant, forgeries_count: bool, tracing: bool) -> Self {
        let mut room = Room::new(schedule.seed, schedule.weather.clone());
        for (at, (when, _)) in schedule.acts.iter().enumerate() {
            room.at(when * 1_000, Happens::Act(at));
        }
        if schedule.weather.crowded {
            room.at(0, Happens::Second);
        }
        room.at(HEALED * 1_000, Happens::Heals);
        room.at((HEALED + 5_000) * 1_000, Happens::Stopped { callers_too: false });
        room.at((HEALED + 12_000) * 1_000, Happens::Stopped { callers_too: true });
        room.at(CLEARED * 1_000, Happens::Clears);
        room.at(PROBES * 1_000, Happens::Probes);
        room.at(FULL_HOUSE * 1_000, Happens::FullHouse);
        Self {
            schedule,
            base,
            room,
            ledger: Ledger::default(),
            processes: Vec::new(),
            parts: BTreeMap::new(),
            forgeries_count,
            healed: false,
            tracing,
            last_instance: String::new(),
            last_stream: "none".into(),
            steps: 0,
        }
    }

    fn run(mut self) -> Outcome {
        while self.ledger.failure.is_none() && self.step() {}
        if self.ledger.failure.is_none() {
            self.room.now = END * 1_000;
            self.ledger.now = self.room.now;
            self.judge_the_end();
        }
        let mut reached = std::mem::take(&mut self.ledger.reached);
        reached.add(&self.room.reached);
        for process in &self.processes {
            if let Program::Bridge(session) = &process.program {
                reached.count(session.stats());
            }
        }
        Outcome {
            failure: self.ledger.failure,
            verdicts: self.ledger.calls.into_iter().map(|call| call.outcome).collect(),
            starts: self.ledger.starts.values().map(Vec::len).sum(),
            steps: self.steps,
            reached,
        }
    }

    /// The next thing happens.
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
            self.ledger.broken(Rule::InTime, "it does not come to rest".to_owned());
        }
        match due {
            Some((due, process)) if due < next => {
                self.drive(process, Session::handle_timeout);
            }
            _ => {
                if let Some(what) = self.room.pop() {
                    self.happens(what);
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

    fn happens(&mut self, what: Happens) {
        match what {
            Happens::Act(at) => {
                if let Some((_, act)) = self.schedule.acts.get(at) {
                    trace!(self, "-- {act:?}");
                    self.act(*act);
                }
            }
            Happens::Joins { process } => self.joins(process),
            Happens::Returns { process } => self.returns(process),
            Happens::Listed(join) => self.listed(join),
            Happens::Opens(join) => self.opens(join),
            Happens::Ends(join) => self.room.unlist(join),
            Happens::AtServer { from, to, load } => self.room.relay(from, to, &load),
            Happens::Arrives { peer, to, load } => {
                let join = &self.room.joins[to];
                if join.held_until > self.room.now {
                    let when = join.held_until;
                    if !load.is_lossy() {
                        self.room.at(when, Happens::Arrives { peer, to, load });
                    }
                    return;
                }
                if join.open {
                    self.arrives(join.process, to, &peer, load);
                }
            }
            Happens::News { to, about, joined } => self.news(to, about, joined),
            Happens::Link { process, join, up } => {
                if self.processes[process].join == Some(join) {
                    self.processes[process].cut = !up && !self.healed;
                    let state = if up { ConnectionState::Connected } else { ConnectionState::Reconnecting };
                    self.drive(process, |session, now| {
                        session.handle_event(now, TransportEvent::ConnectionState(state))
                    });
                }
            }
            Happens::Part { process, join } => self.next_part(process, join),
            Happens::PersonAnswers { process, key, allowed } => self.person_answers(process, key, allowed),
            Happens::JobEnds { process, key } => self.job_ends(process, key),
            Happens::JobTalks { process, key, left } => self.job_talks(process, key, left),
            Happens::PlainJobEnds { process, caller, call } => self.plain_job_ends(process, &caller, &call),
            Happens::PlainDeadline { call } => self.plain_deadline(call),
            Happens::Second => self.tells_everybody(),
            Happens::Heals => self.heals(),
            Happens::Stopped { callers_too } => self.judge_stopped(callers_too),
            Happens::Leaves { who, again } => self.leaves(who, again),
            Happens::Clears => self.clears(),
            Happens::Probes => self.probe(1),
            Happens::FullHouse => self.probe(OPEN),
        }
    }

    /// Gives a session something to do, and does what it says.
    pub(crate) fn drive<T>(
        &mut self,
        process: usize,
        act: impl FnOnce(&mut Session, Instant) -> T,
    ) -> Option<T> {
        let now = self.now();
        let it = &mut self.processes[process];
        let Program::Bridge(session) = &mut it.program else { return None };
        if !it.alive {
            return None;
        }
        let result = act(session, now);
        self.flush(process);
        Some(result)
    }

    pub(crate) fn flush(&mut self, process: usize) {
        let (mut packets, mut told) = (0, false);
        loop {
            let it = &mut self.processes[process];
            let Program::Bridge(session) = &mut it.program else { return };
            let Some(output) = session.poll_output() else {
                if std::mem::replace(&mut told, true) || !self.tells_backlog(process) {
                    break;
                }
                continue;
            };
            if it.closed {
                let who = it.who;
                return self.ledger.broken(Rule::AfterEnd, format!("{who} says after its end: {output:?}"));
            }
            match output {
                Output::Transmit(packet) => {
                    packets += 1;
                    self.transmit(process, packet);
                }
                Output::Execute(job) => self.execute(process, &job),
                Output::Ask(question) => self.person_is_asked(process, &question),
                Output::Abort(key) => self.aborts(process, key),
                Output::Settled { key, result } => {
                    let call = self.processes[process].calls.get(&key).copied();
                    match call {
                        Some(call) => {
                            trace!(self, "call {call} is {}", Verdict::of(&result).word);
                            self.ledger.calls[call].owner_is_news = self.owner_is_news(call);
                            self.ledger.settled(call, &result);
                        }
                        None => {
                            let text = format!("{key:?} settles, and nobody asked");
                            self.ledger.broken(Rule::OneOutcome, text);
                        }
                    }
                }
                Output::Event(Event::Closed(_)) => self.processes[process].closed = true,
                Output::Event(event) => self.event(process, &event),
            }
        }
        if packets > PACKETS_AT_ONCE {
            let text = format!("one input makes {} send {packets} packets", self.processes[process].who);
            self.ledger.broken(Rule::Caps, text);
        }
        self.judge_caps(process);
    }

    /// A process is gone, with all that it ran.
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
    pub(crate) fn new(who: Who, program: Program) -> Self {
        Self {
            who,
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
            questions: BTreeMap::new(),
            allowed: BTreeMap::new(),
            granted: BTreeSet::new(),
        }
    }
}
