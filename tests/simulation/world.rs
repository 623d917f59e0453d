//! One run: processes in a room, on virtual time, and everything they do.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use toolbridge::{
    BargeIn, Body, CallId, CallKey, CloseReason, Config, Event, Identity, Job, JobKey, LinkState, Output,
    Participant, Peer, Progress, Role, Session, Tool, ToolError, ToolName, ToolOptions, Unsent,
    session::{Caps, Times, TurnKey},
    wire::Frame,
};

use crate::{
    acts::{Answer, Arguments},
    plain::Plain,
    room::{Happens, Room, Us},
    rules::{Failure, Ledger, Rule, Verdict},
    schedule::{CLEARED, END, FULL_HOUSE, HEALED, How, PROBES, Schedule, Who},
    trace,
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
}

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// How each call ended, and when.
    pub(crate) verdicts: Vec<Option<(Verdict, Us)>>,
    pub(crate) starts: usize,
    pub(crate) steps: u64,
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
        Outcome {
            failure: self.ledger.failure,
            verdicts: self.ledger.calls.into_iter().map(|call| call.outcome).collect(),
            starts: self.ledger.starts.values().map(Vec::len).sum(),
            steps: self.steps,
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
            Happens::Listed(join) => self.listed(join),
            Happens::Opens(join) => self.opens(join),
            Happens::Ends(join) => self.room.unlist(join),
            Happens::AtServer { from, to, lane, bytes } => self.room.relay(from, to, lane, &bytes),
            Happens::Arrives { from, peer, to, lane, bytes } => {
                let join = &self.room.joins[to];
                if join.held_until > self.room.now {
                    let when = join.held_until;
                    return self.room.at(when, Happens::Arrives { from, peer, to, lane, bytes });
                }
                if join.open {
                    self.arrives(join.process, &peer, &bytes);
                }
            }
            Happens::News { to, about, joined } => self.news(to, about, joined),
            Happens::Link { process, join, up } => {
                if self.processes[process].join == Some(join) {
                    let state = if up { LinkState::Up } else { LinkState::Down };
                    self.drive(process, |session, now| session.handle_link(now, state));
                }
            }
            Happens::JobEnds { process, key } => self.job_ends(process, key),
            Happens::JobTalks { process, key, left } => self.job_talks(process, key, left),
            Happens::PlainJobEnds { process, caller, call } => self.plain_job_ends(process, &caller, &call),
            Happens::PlainDeadline { call } => self.plain_deadline(call),
            Happens::Heals => self.heals(),
            Happens::Stopped { callers_too } => self.judge_stopped(callers_too),
            Happens::Leaves { who, again } => self.leaves(who, again),
            Happens::Clears => self.clears(),
            Happens::Probes => self.probe(1),
            Happens::FullHouse => self.probe(OPEN),
        }
    }

    /// A process begins to join.
    fn joins(&mut self, process: usize) {
        let it = &self.processes[process];
        let who = it.who;
        if !it.alive || it.join.is_some() {
            return;
        }
        if self.parts.get(&who) != Some(&process) {
            // Its identity was taken over while it had no connection.
            self.drive(process, |session, now| session.handle_closed(now, CloseReason::DuplicateIdentity));
            return self.dies(process);
        }
        let sid = format!("PA_{}", self.room.joins.len());
        let participant = match who {
            Who::A | Who::B => Participant::new(who.to_string(), sid).agent(true),
            Who::O => Participant::new(who.to_string(), sid).role(Role::Observer),
            Who::C(_) => Participant::new(who.to_string(), sid).role(Role::Client),
            Who::X => Participant::new(who.to_string(), sid),
        };
        let join = self.room.add(who, process, participant);
        self.processes[process].join = Some(join);
        self.room.after(0, Happens::Listed(join));
    }

    fn listed(&mut self, join: usize) {
        let (process, who) = (self.room.joins[join].process, self.room.joins[join].who);
        if let Some(old) = self.room.listed_as(&who.to_string()) {
            self.room.unlist(old);
            let evicted = self.room.joins[old].process;
            if evicted != process {
                trace!(self, "{who} is evicted by another {who}");
                self.drive(evicted, |session, now| {
                    session.handle_closed(now, CloseReason::DuplicateIdentity)
                });
                self.dies(evicted);
            }
        }
        if self.processes[process].join == Some(join) && self.processes[process].alive {
            trace!(self, "{who} is listed as {}", self.room.joins[join].participant.sid());
            self.room.list(join);
            let slow = if self.schedule.weather.slow_join && !self.healed { 700 } else { 20 };
            self.room.after(slow, Happens::Opens(join));
        }
    }

    /// A join can hear: it is told who is there.
    fn opens(&mut self, join: usize) {
        if !self.room.joins[join].listed {
            return;
        }
        self.room.joins[join].open = true;
        let present = self.room.listed();
        let others: Vec<_> = present.iter().copied().filter(|other| *other != join).collect();
        self.room.joins[join].told.extend(&others);
        let here: Vec<_> = others.iter().map(|other| self.room.joins[*other].participant.clone()).collect();
        let (process, local) = (self.room.joins[join].process, self.room.joins[join].participant.clone());
        let again = std::mem::replace(&mut self.processes[process].joined, true);
        if again {
            if self.processes[process].drained {
                self.room.after(200, Happens::Leaves { who: self.processes[process].who, again: 100 });
            }
            self.drive(process, |session, now| {
                session.handle_link(now, LinkState::Up);
                session.handle_rejoined(now, local, here);
            });
            return;
        }
        let who = self.processes[process].who;
        if self.is_bridge(who) {
            self.processes[process].program = Program::Bridge(Box::new(self.session(who, &local, process)));
        }
        if let Who::C(_) = who {
            let tools = tools_of(who, 0);
            self.drive(process, |session, now| {
                let _ = session.offer(now, tools);
            });
        } else if who == Who::A {
            let own = ToolOptions::default().barge_in(BargeIn::Finish);
            let both = ToolOptions::default().barge_in(BargeIn::Report).prefer_client();
            let tools = vec![
                Tool::new(name("own"), "the assistant's own").options(own.clone()),
                Tool::new(name("both"), "a client may run it too").options(both),
                Tool::new(name("shared"), "any client may run it too").options(own.prefer_client()),
            ];
            self.processes[process].turn = self.drive(process, |session, now| {
                session.offer(now, tools).unwrap();
                session.turn()
            });
        }
        for other in here {
            self.drive(process, |session, now| session.handle_joined(now, other));
        }
    }

    /// The session of this part, with caps that runs reach.
    pub(crate) fn session(&self, who: Who, local: &Participant, number: usize) -> Session {
        let mut caps = Caps::default();
        caps.max_packet = 2_000;
        caps.open_per_peer = OPEN;
        caps.open_calls = 4 * OPEN + 2;
        caps.calls_per_second = if self.schedule.cast.rated { OPEN as u32 + 1 } else { 50 };
        caps.table_entries = 8;
        caps.table_bytes = 4_000;
        caps.held_frames = 12;
        let mut times = Times::default();
        times.memory = Duration::from_secs(10);
        let mut config = Config::default().room("room").caps(caps).times(times);
        if self.schedule.cast.configured {
            config = match who {
                Who::C(_) => config.assistant("a"),
                _ => (1..=self.schedule.cast.clients).fold(config, |it, n| it.admit(Who::C(n).to_string())),
            };
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.schedule.seed.to_be_bytes());
        seed[8..16].copy_from_slice(&(number as u64).to_be_bytes());
        match who {
            Who::C(_) => Session::client(local.clone(), config, seed),
            _ => Session::assistant(local.clone(), config, seed),
        }
    }

    fn news(&mut self, to: usize, about: usize, joined: bool) {
        let (receiver, listed) = (&self.room.joins[to], self.room.joins[about].listed);
        if !receiver.listed {
            return;
        }
        if receiver.held_until > self.room.now || !receiver.open {
            let when = receiver.held_until.max(self.room.now + 20_000);
            return self.room.at(when, Happens::News { to, about, joined });
        }
        let process = receiver.process;
        let who = self.room.joins[about].participant.clone();
        if joined {
            // Who left before he was announced is never told of, nor that he left.
            if listed && self.room.joins[to].told.insert(about) {
                trace!(self, "{} is told of {} {}", self.room.joins[to].who, who.identity(), who.sid());
                self.drive(process, |session, now| session.handle_joined(now, who));
            }
        } else if self.room.joins[to].told.remove(&about) {
            trace!(self, "{} is told that {} {} left", self.room.joins[to].who, who.identity(), who.sid());
            self.drive(process, |session, now| session.handle_left(now, who.peer()));
        }
    }

    fn arrives(&mut self, process: usize, peer: &Peer, bytes: &[u8]) {
        if !self.processes[process].alive {
            return;
        }
        if let Ok(frame) = Frame::decode(bytes.to_vec()) {
            trace!(
                self,
                "{} hears {} of {}",
                self.processes[process].who,
                trace::show(&frame),
                trace::peer(peer)
            );
            self.ledger.received(process, peer, &frame);
            if let Some(instance) = frame.meta_str("bridge.instance") {
                self.last_instance = instance.to_owned();
            }
            if let Program::Watcher | Program::Plain(_) = self.processes[process].program {
                return self.heard_by_others(process, peer, &frame);
            }
        }
        self.drive(process, |session, now| session.handle_packet(now, peer, bytes));
        // One that the room said has left is not heard any more, not even its goodbye.
        let Program::Bridge(session) = &self.processes[process].program else { return };
        if !session.participants().iter().any(|who| who.peer() == peer) {
            return;
        }
        let mut jobs = self.processes[process].jobs.values();
        if let Some((id, ..)) = jobs.find(|(id, ..)| self.ledger.is_over(process, peer, id)) {
            let text = format!("{id:?} runs on after the goodbye of {}", trace::peer(peer));
            self.ledger.broken(Rule::Goodbye, text);
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
        let mut packets = 0;
        loop {
            let it = &mut self.processes[process];
            let Program::Bridge(session) = &mut it.program else { return };
            let Some(output) = session.poll_output() else { break };
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
                Output::Abort(key) => match self.processes[process].jobs.remove(&key) {
                    Some((id, ..)) => {
                        trace!(self, "{} stops {id:?}", self.processes[process].who);
                        self.ledger.ended(process, &id, None);
                    }
                    None => {
                        let text =
                            format!("{} stops {key:?}, which does not run", self.processes[process].who);
                        self.ledger.broken(Rule::StopHeard, text);
                    }
                },
                Output::Settled { key, result } => {
                    let call = self.processes[process].calls.get(&key).copied();
                    match call {
                        Some(call) => {
                            trace!(self, "call {call} is {}", Verdict::of(&result).word);
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

    fn transmit(&mut self, process: usize, packet: toolbridge::Packet) {
        let frame = match Frame::decode(packet.payload.clone()) {
            Ok(frame) if packet.is_addressed() => frame,
            _ => return self.ledger.broken(Rule::ForWhom, format!("a packet for nobody: {packet:?}")),
        };
        let to = (!packet.is_broadcast()).then(|| packet.to.clone());
        let it = &self.processes[process];
        let Some(join) = it.join.filter(|join| self.room.joins[*join].open) else {
            // Without a connection it is taken and lost, or not taken.
            if self.schedule.weather.swallows {
                self.ledger.sent(process, &frame, to.as_deref());
            } else if let Program::Bridge(session) = &mut self.processes[process].program {
                session.handle_unsent(
                    self.base + Duration::from_micros(self.room.now),
                    packet.id,
                    Unsent::Closed,
                );
            }
            return;
        };
        trace!(self, "{} says {} to {to:?}", it.who, trace::show(&frame));
        self.ledger.sent(process, &frame, to.as_deref());
        self.room.send(join, to, packet.lane, packet.payload);
    }

    fn execute(&mut self, process: usize, job: &Job) {
        let how = Arguments::read(&job.arguments);
        let it = &mut self.processes[process];
        let names = it.who.to_string();
        trace!(self, "{names} begins {:?} of {} ({how:?})", job.call, job.caller);
        let it = &mut self.processes[process];
        it.jobs.insert(job.key, (job.call.clone(), how, job.caller.clone()));
        let ran = how != How::BadArguments;
        if self.processes[process].drained {
            let text = format!("{names} begins {:?}, and takes no more requests", job.call);
            self.ledger.broken(Rule::OneStart, text);
        }
        self.ledger.started(process, &names, &job.caller, &job.call, ran);
        let now = self.now();
        if let Program::Bridge(session) = &mut self.processes[process].program
            && ran
        {
            session.progress(now, job.key, Progress::started());
        }
        if let Some(takes) = how.takes() {
            self.room.after(takes, Happens::JobEnds { process, key: job.key });
        }
        if how == How::Talks {
            self.room.after(10, Happens::JobTalks { process, key: job.key, left: 20 });
        }
    }

    fn job_talks(&mut self, process: usize, key: JobKey, left: u32) {
        if !self.processes[process].jobs.contains_key(&key) {
            return;
        }
        self.drive(process, |session, now| session.progress(now, key, Progress::started()));
        if left > 0 {
            self.room.after(30, Happens::JobTalks { process, key, left: left - 1 });
        }
    }

    fn job_ends(&mut self, process: usize, key: JobKey) {
        let Some((id, how, _)) = self.processes[process].jobs.remove(&key) else {
            // It was stopped, and says so too late: nothing happens.
            self.drive(process, |session, now| session.settle(now, key, Ok(Body::empty())));
            return;
        };
        let outcome = match how {
            How::Fails => Err(ToolError::new("odd", "it went wrong")),
            How::Panics => {
                Err(ToolError::new("execution_error", ToolError::LOCAL_MESSAGE).with_source("a panic"))
            }
            How::BadArguments => Err(ToolError::new("invalid_parameters", "at /n: not a number")),
            How::SaysBusy => Err(ToolError::new("busy", "the printer is busy")),
            _ => Ok(Answer::body(process, &id, how)),
        };
        trace!(self, "{} ends {id:?}", self.processes[process].who);
        self.ledger.ended(process, &id, Some(outcome.is_ok()));
        self.drive(process, |session, now| session.settle(now, key, outcome));
    }

    fn event(&mut self, process: usize, event: &Event) {
        if self.tracing
            && !matches!(event, Event::Frame { .. } | Event::Progress { .. } | Event::Requested { .. })
        {
            trace!(self, "     {}: {event:?}", self.processes[process].who);
        }
        if let Event::LateResult { call, .. } = event {
            let told = self.ledger.by_id.get(call).and_then(|at| self.ledger.calls[*at].outcome.as_ref());
            let detached = told.is_some_and(|(verdict, _)| verdict.word == "detached");
            let text = format!("{call:?} was told as {told:?}, and now ends once more");
            if !detached || !self.ledger.late.insert(call.clone()) {
                self.ledger.broken(Rule::OneOutcome, text);
            }
        }
        if let Event::Delivered { call, owner } = event
            && !self.ledger.was_delivered(call)
        {
            let text = format!("{call:?} is told as delivered to {owner}, which did not hear of it");
            self.ledger.broken(Rule::OwnersAnswer, text);
        }
    }

    /// A process is gone, with all that it ran.
    pub(crate) fn dies(&mut self, process: usize) {
        let it = &mut self.processes[process];
        it.alive = false;
        it.join = None;
        it.jobs.clear();
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
        }
    }
}

fn name(text: &str) -> ToolName {
    text.parse().unwrap()
}

/// What a client offers, by how often it has changed its mind.
pub(crate) fn tools_of(who: Who, edition: u32) -> Vec<Tool> {
    let options = ToolOptions::default;
    let mut tools = vec![
        Tool::new(name(&format!("t{who}")), "its own"),
        Tool::new(name("shared"), "of everybody").options(options().barge_in(BargeIn::Finish)),
    ];
    if who == Who::C(1) {
        let both = options().barge_in(BargeIn::Report);
        tools.push(Tool::new(name("both"), "the assistant's too").options(both));
        tools.push(Tool::new(name("again"), "twice does no harm").options(options().idempotent()));
    }
    if edition % 2 == 1 {
        tools.truncate(1);
    }
    tools
}
