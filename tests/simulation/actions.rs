//! Performs the actions of the schedule: calls, cancellations, outages, rejoins, kills.

use std::time::Duration;

use serde::Serialize;
use toolbridge::{
    CallError, CallId, ConnectionState, Identity, Value, session::Request, transport::TransportEvent,
};

use crate::{
    joins::tools_of,
    plain::Plain,
    random::Random,
    reach::Reach,
    room::Scheduled,
    rpc::App,
    rules::{CallRecord, Rule},
    schedule::{Action, Actor, Behavior, Ms, RequestedTool},
    world::{OPEN, Process, Program, World},
};

/// How long the room lists a killed participant that is not replaced.
const GHOST: Ms = 15_000;

/// The arguments of every call: how its tool behaves.
#[derive(Serialize)]
pub(crate) struct Arguments {
    how: u8,
    pad: &'static str,
}

impl Arguments {
    pub(crate) fn body(behavior: Behavior) -> Value {
        let pad = if behavior == Behavior::HugeRequest { PAD } else { "" };
        Value::encode(&Self { how: behavior.as_u8(), pad }).unwrap()
    }

    pub(crate) fn read(body: &Value) -> Behavior {
        let behavior = body.get("how").and_then(|number| number.decode::<usize>().ok());
        behavior.and_then(|behavior| Behavior::ALL.get(behavior).copied()).unwrap_or(Behavior::Quick)
    }
}

/// The result of every tool: which process ran which call.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    by: usize,
    of: &'a str,
    pad: &'static str,
}

impl Answer<'_> {
    pub(crate) fn body(process: usize, id: &CallId, behavior: Behavior) -> Value {
        let pad = if behavior == Behavior::Huge { PAD } else { "" };
        Value::encode(&Answer { by: process, of: id.as_str(), pad }).unwrap()
    }
}

/// More bytes than a packet carries.
const PAD: &str = {
    const BYTES: [u8; 2_400] = [b'.'; 2_400];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

impl World<'_> {
    pub(crate) fn action(&mut self, action: Action) {
        match action {
            Action::Enters(actor) => {
                if !self.current.contains_key(&actor) {
                    self.enters(actor, 0);
                }
            }
            Action::Calls { by, tool, named, behavior, limit } => {
                self.make_call(by, tool, named, behavior, limit, false)
            }
            Action::Cancels(call) => self.cancels(call),
            Action::Detaches(call) => self.detaches(call),
            Action::BargesIn(actor) => {
                self.barges_in(actor);
            }
            Action::Rejoins { actor, after } => self.rejoins(actor, after),
            Action::Outage { actor, lasts, reported } => self.outage(actor, lasts, reported),
            Action::SignalingDown { actor, lasts } => {
                if let Some((_, join)) = self.open_join(actor) {
                    self.room.joins[join].signaling_down_until = self.room.now + lasts * 1_000;
                }
            }
            Action::Killed { actor, replaced_after } => self.killed(actor, replaced_after),
            Action::TakenOver(actor) => {
                if self.current.contains_key(&actor) {
                    self.enters(actor, 0);
                }
            }
            Action::Returns { actor, taken, back } => self.taken_over_and_returns(actor, taken, back),
            Action::NamesOtherRoom { from, to, request } => self.send_from_other_room(from, to, request),
            Action::Leaves { actor, replaced_after } => self.leaves(actor, replaced_after),
            Action::Drains(actor) => {
                if let Some(process) = self.current.get(&actor).copied() {
                    let drained = self.drive(process, |session, now| session.drain(now)).is_some();
                    self.processes[process].drained |= drained;
                    self.room.after(1_000, Scheduled::Leaves { actor, replaced_after: 100 });
                }
            }
            Action::ChangesTools(actor) => {
                if let Some(process) = self.current.get(&actor).copied() {
                    self.processes[process].edition += 1;
                    self.processes[process].granted.clear(); // a tool that comes back needs a new consent
                    let tools = tools_of(actor, self.processes[process].edition, self.schedule.cast.consent);
                    self.drive(process, |session, now| session.offer(now, tools).is_ok());
                }
            }
            Action::RefusesPackets { actor, lasts, percent } => {
                if let Some(process) = self.current.get(&actor).copied() {
                    self.processes[process].refuses = Some((self.room.now + lasts * 1_000, percent));
                }
            }
            Action::LosesPacket(actor) => {
                if let Some((_, join)) = self.open_join(actor) {
                    self.room.joins[join].loses_next = true;
                }
            }
            Action::Impersonated { actor, dice } => self.impersonated(actor, dice),
            Action::ForgesAnswer { about, dice } => self.forges_answer(about, dice),
            Action::Forges { what, to, about, dice } => self.forges(what, to, about, dice),
        }
    }

    /// Starts a new process for this actor; it joins after the given time.
    fn enters(&mut self, actor: Actor, after: Ms) {
        let program = match actor {
            Actor::Client(_) if !self.has_session(actor) => Program::Plain(Plain::default()),
            Actor::Assistant if !self.has_session(actor) => Program::Plain(Plain::default()),
            Actor::App => Program::App(App::default()),
            _ => Program::Listener, // the session is created when it has joined
        };
        self.processes.push(Process::new(actor, program));
        let process = self.processes.len() - 1;
        self.current.insert(actor, process);
        self.room.after(after, Scheduled::Joins { process });
    }

    pub(crate) fn make_call(
        &mut self,
        by: Actor,
        tool: RequestedTool,
        named: bool,
        behavior: Behavior,
        limit: Ms,
        probe: bool,
    ) {
        let Some(process) = self.current.get(&by).copied().filter(|process| self.processes[*process].alive)
        else {
            return;
        };
        let (name, owner) = match tool {
            RequestedTool::OfClient(n) => (format!("t{}", Actor::Client(n)), Some(Actor::Client(n))),
            RequestedTool::Shared => ("shared".to_owned(), None),
            RequestedTool::AssistantOnly => ("own".to_owned(), None),
            RequestedTool::Either => ("both".to_owned(), None),
            RequestedTool::Idempotent => ("again".to_owned(), Some(Actor::Client(1))),
            RequestedTool::ConsentOnce => ("careful".to_owned(), Some(Actor::Client(1))),
            RequestedTool::ConsentEachTime => ("grave".to_owned(), Some(Actor::Client(1))),
            RequestedTool::Prompt(n) => ("bridge.choose".to_owned(), Some(Actor::Client(n))),
            RequestedTool::OfApp => ("tapp".to_owned(), Some(Actor::App)),
            RequestedTool::Unknown => ("none".to_owned(), None),
            RequestedTool::Echo(n) => ("bridge.echo".to_owned(), Some(Actor::Client(n))),
        };
        if let Program::Plain(_) = self.processes[process].program {
            return self.plain_calls(
                process,
                &name,
                owner.unwrap_or(Actor::Client(1)),
                behavior,
                limit,
                probe,
            );
        }
        let must = owner.is_some_and(|owner| owner != Actor::App && !self.has_session(owner))
            || matches!(tool, RequestedTool::Echo(_));
        let mut request = Request::new(name, Arguments::body(behavior)).timeout(Duration::from_millis(limit));
        if let Some(owner) = owner.filter(|_| named || must) {
            request = request.to(Identity::from(owner.to_string()));
        }
        let mut call = CallRecord {
            caller: process,
            actor: by,
            key: None,
            id: None,
            behavior,
            tool: Some(tool),
            at: self.room.now,
            limit,
            echo: matches!(tool, RequestedTool::Echo(_)),
            probe,
            idempotent: tool == RequestedTool::Idempotent,
            consent: matches!(tool, RequestedTool::ConsentOnce | RequestedTool::ConsentEachTime),
            may_continue: matches!(
                tool,
                RequestedTool::Shared | RequestedTool::AssistantOnly | RequestedTool::Either
            ),
            cancelled: false,
            detached: false,
            owners: Default::default(),
            sent_plain: false,
            owner_is_recent: false,
            outcome: None,
        };
        let now = self.now();
        let turn = self.processes[process].turn.filter(|_| !probe);
        if let Some(turn) = turn {
            request = request.turn(turn);
        }
        let Program::Bridge(session) = &mut self.processes[process].program else { return };
        match session.call(now, request) {
            Ok(key) => {
                (call.key, call.id) = (Some(key), session.call_id(key).cloned());
                trace!(self, "call {} is {:?}", self.ledger.calls.len(), call.id);
                let call = self.ledger.add_call(call);
                self.processes[process].calls.insert(key, call);
            }
            Err(error) => {
                if matches!(error, CallError::TooManyOpen { open } if open < OPEN) {
                    self.ledger.reached.note(Reach::ArgumentBytesFull);
                }
                let call = self.ledger.add_call(call);
                trace!(self, "call {call} is refused: {error}");
                self.ledger.settled(call, &Err(error));
            }
        }
        self.flush(process);
        self.check_open_per_owner(process, self.ledger.calls.len() - 1);
    }

    /// The calls of this actor that have no outcome.
    /// Calls the same tool of the same client again, right after the result.
    pub(crate) fn follows(&mut self, call: usize) {
        let it = &self.ledger.calls[call];
        if let (false, Some(tool @ RequestedTool::OfClient(_))) = (it.probe, it.tool) {
            self.make_call(it.actor, tool, true, Behavior::Quick, it.limit, false);
        }
    }

    pub(crate) fn open_calls(&self, actor: Actor) -> Vec<usize> {
        let Some(process) = self.current.get(&actor) else { return Vec::new() };
        let calls = self.ledger.calls.iter().enumerate();
        calls.filter(|(_, it)| it.caller == *process && it.outcome.is_none()).map(|(call, _)| call).collect()
    }

    pub(crate) fn cancels(&mut self, call: usize) {
        let Some(it) = self.ledger.calls.get(call) else { return };
        let (process, key) = (it.caller, it.key);
        let Some(key) = key else { return self.plain_cancels(call, CallError::Cancelled) };
        if !self.processes[process].alive {
            return;
        }
        self.ledger.calls[call].cancelled = true;
        self.drive(process, |session, now| session.cancel(now, key));
        let it = &self.ledger.calls[call];
        if it.outcome.is_none() && !it.detached {
            self.ledger.broken(Rule::InTime, format!("call {call} was cancelled, and has no outcome"));
        }
    }

    /// Ends the turn and all its open calls. Some of their tools may continue without a caller.
    fn barges_in(&mut self, actor: Actor) {
        let Some(process) = self.current.get(&actor).copied() else { return };
        let Some(turn) = self.processes[process].turn else {
            return self.open_calls(actor).into_iter().for_each(|call| self.cancels(call));
        };
        let open = self.open_calls(actor);
        for call in &open {
            self.ledger.calls[*call].cancelled = true;
        }
        self.drive(process, |session, now| session.barge_in(now, turn));
        self.processes[process].turn = self.drive(process, |session, _| session.turn());
        for call in open {
            let it = &self.ledger.calls[call];
            if it.outcome.is_none() && !it.detached {
                let text = format!("the turn of call {call} was ended, and the call has no outcome");
                self.ledger.broken(Rule::InTime, text);
            }
        }
    }

    fn detaches(&mut self, call: usize) {
        let Some(it) = self.ledger.calls.get_mut(call).filter(|it| it.outcome.is_none()) else { return };
        let (Some(key), process) = (it.key, it.caller) else { return };
        it.detached = true;
        self.drive(process, |session, now| session.detach(now, key));
    }

    fn rejoins(&mut self, actor: Actor, after: Ms) {
        let Some((process, old)) = self.open_join(actor) else { return };
        let mut dice = Random::of(self.room.seed, &[6, old as u64]);
        self.processes[process].join = None;
        self.room.joins[old].open = false;
        if dice.percent(50) {
            self.room.unlist(old);
        }
        if dice.percent(70) {
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
            });
        }
        self.room.after(after, Scheduled::Joins { process });
    }

    fn taken_over_and_returns(&mut self, actor: Actor, taken: Ms, back: Ms) {
        let Some((process, old)) = self.open_join(actor) else { return };
        self.processes[process].join = None;
        self.room.joins[old].open = false;
        if Random::of(self.room.seed, &[14, old as u64]).percent(70) {
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
            });
        }
        self.enters(actor, taken);
        self.room.after(back, Scheduled::Returns { process });
    }

    /// A process rejoins, and evicts the process that has its identity now.
    pub(crate) fn returns(&mut self, process: usize) {
        let it = &self.processes[process];
        if it.alive && it.join.is_none() && !self.recovered {
            self.current.insert(it.actor, process);
            self.joins(process);
        }
    }

    fn outage(&mut self, actor: Actor, lasts: Ms, reported: bool) {
        let Some((process, join)) = self.open_join(actor) else { return };
        let until = self.room.now + lasts * 1_000;
        let held = &mut self.room.joins[join].held_until;
        *held = until.max(*held);
        if reported {
            self.room.after(300, Scheduled::Connection { process, join, up: false });
            self.room.after(lasts, Scheduled::Connection { process, join, up: true });
        }
    }

    fn killed(&mut self, actor: Actor, replaced_after: Ms) {
        let Some((process, join)) = self.open_join(actor) else { return };
        self.dies(process);
        self.room.joins[join].open = false;
        self.room.after(GHOST, Scheduled::Unlisted(join));
        self.enters(actor, replaced_after);
    }

    pub(crate) fn leaves(&mut self, actor: Actor, replaced_after: Ms) {
        let Some((process, join)) = self.open_join(actor) else { return };
        self.ends(process, join);
        self.enters(actor, replaced_after + 150);
    }

    /// A process sends its goodbye and ends.
    fn ends(&mut self, process: usize, join: usize) {
        self.abandon_large(process, join);
        self.drive(process, |session, now| session.close(now));
        let open = self.ledger.calls.iter().enumerate();
        let mut open = open.filter(|(_, it)| it.caller == process && it.outcome.is_none() && !it.detached);
        if let Some((call, _)) = open.next()
            && let Program::Bridge(_) = self.processes[process].program
        {
            self.ledger.broken(
                Rule::InTime,
                format!("the caller of call {call} has left, and the call has no outcome"),
            );
        }
        if !self.processes[process].jobs.is_empty() {
            let text = format!("{} has left, and its tools still run", self.processes[process].actor);
            self.ledger.broken(Rule::HandlerAborted, text);
        }
        self.dies(process);
        let mut dice = Random::of(self.room.seed, &[7, join as u64]);
        self.room.after(dice.pick(&[1, 30, 150]), Scheduled::Unlisted(join));
    }

    pub(crate) fn open_join(&self, actor: Actor) -> Option<(usize, usize)> {
        let process = *self.current.get(&actor)?;
        let it = &self.processes[process];
        let join = it.join.filter(|join| self.room.joins[*join].open)?;
        it.alive.then_some((process, join))
    }

    /// Ends all faults: disconnected processes rejoin, and the second assistant leaves.
    pub(crate) fn recover(&mut self) {
        self.recovered = true;
        self.room.network.stalls = 0;
        self.room.network.configurations_lost = 0;
        let now = self.room.now;
        for join in &mut self.room.joins {
            join.held_until = join.held_until.min(now);
        }
        let current: Vec<_> = self.current.iter().map(|(actor, process)| (*actor, *process)).collect();
        for (actor, process) in current {
            match self.processes[process].join {
                None if self.processes[process].alive => self.room.after(0, Scheduled::Joins { process }),
                Some(join) => self.room.after(0, Scheduled::Connection { process, join, up: true }),
                None => {}
            }
            if actor == Actor::SecondAssistant
                && let Some((process, join)) = self.open_join(actor)
            {
                self.ends(process, join);
            }
        }
        for join in self.room.listed() {
            if self.processes[self.room.joins[join].process].join != Some(join) {
                self.room.after(2_000, Scheduled::Unlisted(join));
            }
        }
    }
}
