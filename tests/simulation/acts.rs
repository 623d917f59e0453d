//! What the schedule makes people, processes and connections do.

use std::time::Duration;

use serde::Serialize;
use toolbridge::{CallError, CallId, ConnectionState, Identity, Request, TransportEvent, Value};

use crate::{
    joins::tools_of,
    plain::Plain,
    random::Random,
    reach::Reach,
    room::Happens,
    rules::{Asked, Rule},
    schedule::{Act, How, Ms, Wanted, Who},
    world::{OPEN, Process, Program, World},
};

/// How long a ghost is listed that nobody replaces.
const GHOST: Ms = 15_000;

/// The arguments of every call: how its tool shall behave.
#[derive(Serialize)]
pub(crate) struct Arguments {
    how: u8,
    pad: &'static str,
}

impl Arguments {
    pub(crate) fn body(how: How) -> Value {
        let pad = if how == How::HugeRequest { PAD } else { "" };
        Value::encode(&Self { how: how.as_u8(), pad }).unwrap()
    }

    pub(crate) fn read(body: &Value) -> How {
        let how = body.get("how").and_then(|how| how.decode::<usize>().ok());
        how.and_then(|how| How::ALL.get(how).copied()).unwrap_or(How::Quick)
    }
}

/// What every tool answers: which process ran which call.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    by: usize,
    of: &'a str,
    pad: &'static str,
}

impl Answer<'_> {
    pub(crate) fn body(process: usize, id: &CallId, how: How) -> Value {
        let pad = if how == How::Huge { PAD } else { "" };
        Value::encode(&Answer { by: process, of: id.as_str(), pad }).unwrap()
    }
}

/// More than a packet carries.
const PAD: &str = {
    const BYTES: [u8; 2_400] = [b'.'; 2_400];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

impl World<'_> {
    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Enters(who) => {
                if !self.parts.contains_key(&who) {
                    self.enters(who, 0);
                }
            }
            Act::Asks { by, tool, named, how, limit } => self.asks(by, tool, named, how, limit, false),
            Act::Cancels(call) => self.cancels(call),
            Act::Detaches(call) => self.detaches(call),
            Act::BargesIn(who) => {
                self.barges_in(who);
            }
            Act::Rejoins { who, after } => self.rejoins(who, after),
            Act::Gap { who, lasts, told } => self.gap(who, lasts, told),
            Act::Deaf { who, lasts } => {
                if let Some((_, join)) = self.open_join(who) {
                    self.room.joins[join].deaf_until = self.room.now + lasts * 1_000;
                }
            }
            Act::Killed { who, again } => self.killed(who, again),
            Act::TakenOver(who) => {
                if self.parts.contains_key(&who) {
                    self.enters(who, 0);
                }
            }
            Act::Returns { who, taken, back } => self.is_taken_over_and_returns(who, taken, back),
            Act::FromElsewhere { from, to, request } => self.comes_from_elsewhere(from, to, request),
            Act::Leaves { who, again } => self.leaves(who, again),
            Act::Drains(who) => {
                if let Some(process) = self.parts.get(&who).copied() {
                    let drained = self.drive(process, |session, now| session.drain(now)).is_some();
                    self.processes[process].drained |= drained;
                    self.room.after(1_000, Happens::Leaves { who, again: 100 });
                }
            }
            Act::Offers(who) => {
                if let Some(process) = self.parts.get(&who).copied() {
                    self.processes[process].edition += 1;
                    self.processes[process].granted.clear(); // a tool that is gone or back is another one
                    let tools = tools_of(who, self.processes[process].edition, self.schedule.cast.asks);
                    self.drive(process, |session, now| session.offer(now, tools).is_ok());
                }
            }
            Act::Forges { what, to, about, dice } => self.forges(what, to, about, dice),
        }
    }

    /// A new process for this part, which joins after a while.
    fn enters(&mut self, who: Who, after: Ms) {
        let program = match who {
            Who::C(_) if !self.is_bridge(who) => Program::Plain(Plain::default()),
            Who::A if !self.is_bridge(who) => Program::Plain(Plain::default()),
            _ => Program::Watcher, // a session is made when it has joined
        };
        self.processes.push(Process::new(who, program));
        let process = self.processes.len() - 1;
        self.parts.insert(who, process);
        self.room.after(after, Happens::Joins { process });
    }

    pub(crate) fn asks(&mut self, by: Who, tool: Wanted, named: bool, how: How, limit: Ms, probe: bool) {
        let Some(process) = self.parts.get(&by).copied().filter(|process| self.processes[*process].alive)
        else {
            return;
        };
        let (name, owner) = match tool {
            Wanted::Of(n) => (format!("t{}", Who::C(n)), Some(Who::C(n))),
            Wanted::Shared => ("shared".to_owned(), None),
            Wanted::Own => ("own".to_owned(), None),
            Wanted::Either => ("both".to_owned(), None),
            Wanted::Again => ("again".to_owned(), Some(Who::C(1))),
            Wanted::Careful => ("careful".to_owned(), Some(Who::C(1))),
            Wanted::Grave => ("grave".to_owned(), Some(Who::C(1))),
            Wanted::Prompt(n) => ("bridge.choose".to_owned(), Some(Who::C(n))),
            Wanted::Nobodys => ("none".to_owned(), None),
            Wanted::Echo(n) => ("bridge.echo".to_owned(), Some(Who::C(n))),
        };
        if let Program::Plain(_) = self.processes[process].program {
            return self.plain_asks(process, &name, owner.unwrap_or(Who::C(1)), how, limit, probe);
        }
        let must = owner.is_some_and(|owner| !self.is_bridge(owner)) || matches!(tool, Wanted::Echo(_));
        let mut request = Request::new(name, Arguments::body(how)).timeout(Duration::from_millis(limit));
        if let Some(owner) = owner.filter(|_| named || must) {
            request = request.to(Identity::from(owner.to_string()));
        }
        let mut call = Asked {
            caller: process,
            who: by,
            key: None,
            id: None,
            how,
            tool: Some(tool),
            at: self.room.now,
            limit,
            echo: matches!(tool, Wanted::Echo(_)),
            probe,
            again: tool == Wanted::Again,
            asks: matches!(tool, Wanted::Careful | Wanted::Grave),
            rests: matches!(tool, Wanted::Shared | Wanted::Own | Wanted::Either),
            cancelled: false,
            detached: false,
            owners: Default::default(),
            plainly: false,
            owner_is_news: false,
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
                let call = self.ledger.asked(call);
                self.processes[process].calls.insert(key, call);
            }
            Err(error) => {
                if matches!(error, CallError::TooManyOpen { open } if open < OPEN) {
                    self.ledger.reached.note(Reach::ArgumentBytesFull);
                }
                let call = self.ledger.asked(call);
                trace!(self, "call {call} is refused: {error}");
                self.ledger.settled(call, &Err(error));
            }
        }
        self.flush(process);
        self.judge_places(process, self.ledger.calls.len() - 1);
    }

    /// The calls of this part that have no outcome.
    pub(crate) fn open_calls(&self, who: Who) -> Vec<usize> {
        let Some(process) = self.parts.get(&who) else { return Vec::new() };
        let calls = self.ledger.calls.iter().enumerate();
        calls.filter(|(_, it)| it.caller == *process && it.outcome.is_none()).map(|(call, _)| call).collect()
    }

    pub(crate) fn cancels(&mut self, call: usize) {
        let Some(it) = self.ledger.calls.get(call) else { return };
        let (process, key) = (it.caller, it.key);
        let Some(key) = key else { return self.plain_gives_up(call, CallError::Cancelled) };
        if !self.processes[process].alive {
            return;
        }
        self.ledger.calls[call].cancelled = true;
        self.drive(process, |session, now| session.cancel(now, key));
        let it = &self.ledger.calls[call];
        if it.outcome.is_none() && !it.detached {
            self.ledger.broken(Rule::InTime, format!("call {call} is cancelled, and does not end at once"));
        }
    }

    /// The turn ends, and with it every call of it for whoever asked; some may go on unheard.
    fn barges_in(&mut self, who: Who) {
        let Some(process) = self.parts.get(&who).copied() else { return };
        let Some(turn) = self.processes[process].turn else {
            return self.open_calls(who).into_iter().for_each(|call| self.cancels(call));
        };
        let open = self.open_calls(who);
        for call in &open {
            self.ledger.calls[*call].cancelled = true;
        }
        self.drive(process, |session, now| session.barge_in(now, turn));
        self.processes[process].turn = self.drive(process, |session, _| session.turn());
        for call in open {
            let it = &self.ledger.calls[call];
            if it.outcome.is_none() && !it.detached {
                let text = format!("the turn of call {call} is over, and it does not end at once");
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

    fn rejoins(&mut self, who: Who, after: Ms) {
        let Some((process, old)) = self.open_join(who) else { return };
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
        self.room.after(after, Happens::Joins { process });
    }

    fn is_taken_over_and_returns(&mut self, who: Who, taken: Ms, back: Ms) {
        let Some((process, old)) = self.open_join(who) else { return };
        self.processes[process].join = None;
        self.room.joins[old].open = false;
        if Random::of(self.room.seed, &[14, old as u64]).percent(70) {
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
            });
        }
        self.enters(who, taken);
        self.room.after(back, Happens::Returns { process });
    }

    /// It joins anew, and so the process that has its identity now is put out.
    pub(crate) fn returns(&mut self, process: usize) {
        let it = &self.processes[process];
        if it.alive && it.join.is_none() && !self.healed {
            self.parts.insert(it.who, process);
            self.joins(process);
        }
    }

    fn gap(&mut self, who: Who, lasts: Ms, told: bool) {
        let Some((process, join)) = self.open_join(who) else { return };
        let until = self.room.now + lasts * 1_000;
        let held = &mut self.room.joins[join].held_until;
        *held = until.max(*held);
        if told {
            self.room.after(300, Happens::Link { process, join, up: false });
            self.room.after(lasts, Happens::Link { process, join, up: true });
        }
    }

    fn killed(&mut self, who: Who, again: Ms) {
        let Some((process, join)) = self.open_join(who) else { return };
        self.dies(process);
        self.room.joins[join].open = false;
        self.room.after(GHOST, Happens::Ends(join));
        self.enters(who, again);
    }

    pub(crate) fn leaves(&mut self, who: Who, again: Ms) {
        let Some((process, join)) = self.open_join(who) else { return };
        self.ends(process, join);
        self.enters(who, again + 150);
    }

    /// A process says goodbye and is gone.
    fn ends(&mut self, process: usize, join: usize) {
        self.leave_large_behind(process, join);
        self.drive(process, |session, now| session.close(now));
        let open = self.ledger.calls.iter().enumerate();
        let mut open = open.filter(|(_, it)| it.caller == process && it.outcome.is_none() && !it.detached);
        if let Some((call, _)) = open.next()
            && let Program::Bridge(_) = self.processes[process].program
        {
            self.ledger.broken(Rule::InTime, format!("its caller has left, and call {call} has no outcome"));
        }
        if !self.processes[process].jobs.is_empty() {
            let text = format!("{} has left, and its tools run", self.processes[process].who);
            self.ledger.broken(Rule::StopHeard, text);
        }
        self.dies(process);
        let mut dice = Random::of(self.room.seed, &[7, join as u64]);
        self.room.after(dice.pick(&[1, 30, 150]), Happens::Ends(join));
    }

    pub(crate) fn open_join(&self, who: Who) -> Option<(usize, usize)> {
        let process = *self.parts.get(&who)?;
        let it = &self.processes[process];
        let join = it.join.filter(|join| self.room.joins[*join].open)?;
        it.alive.then_some((process, join))
    }

    /// The network is whole: everybody comes back, and the second agent leaves.
    pub(crate) fn heals(&mut self) {
        self.healed = true;
        self.room.weather.stalls = 0;
        self.room.weather.halves_lost = 0;
        let now = self.room.now;
        for join in &mut self.room.joins {
            join.held_until = join.held_until.min(now);
        }
        let parts: Vec<_> = self.parts.iter().map(|(who, process)| (*who, *process)).collect();
        for (who, process) in parts {
            match self.processes[process].join {
                None if self.processes[process].alive => self.room.after(0, Happens::Joins { process }),
                Some(join) => self.room.after(0, Happens::Link { process, join, up: true }),
                None => {}
            }
            if who == Who::B
                && let Some((process, join)) = self.open_join(who)
            {
                self.ends(process, join);
            }
        }
        for join in self.room.listed() {
            if self.processes[self.room.joins[join].process].join != Some(join) {
                self.room.after(2_000, Happens::Ends(join));
            }
        }
    }
}
