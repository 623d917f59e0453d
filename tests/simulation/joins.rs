//! Who comes into the room, and what it is told there.

use std::time::Duration;

use toolbridge::{
    BargeIn, Caps, CloseReason, Config, ConnectionState, Consent, Participant, Role, Session, Times, Tool,
    ToolName, ToolOptions, TransportEvent,
};

use crate::{
    reach::Reach,
    room::Happens,
    schedule::Who,
    world::{OPEN, Process, Program, World},
};

/// Frames of a replay that may be on their way at once.
pub(crate) const REPLAY: u64 = 2;

/// The largest packet: where there are streams, many frames are larger.
pub(crate) fn max_packet(has_streams: bool) -> usize {
    if has_streams { 700 } else { 2_000 }
}

impl World<'_> {
    /// A process begins to join.
    pub(crate) fn joins(&mut self, process: usize) {
        let it = &self.processes[process];
        let who = it.who;
        if !it.alive || it.join.is_some() {
            return;
        }
        if self.parts.get(&who) != Some(&process) {
            // Its identity was taken over while it had no connection.
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::Closed(CloseReason::DuplicateIdentity))
            });
            return self.dies(process);
        }
        let sid = format!("PA_{}", self.room.joins.len());
        let participant = match who {
            Who::A | Who::B => Participant::new(who.to_string(), sid).agent(true),
            Who::O => Participant::new(who.to_string(), sid).role(Role::Observer),
            Who::C(_) => Participant::new(who.to_string(), sid).role(Role::Client),
            // Its token names no role. Every second one could change its attributes, too.
            Who::X => Participant::new(who.to_string(), sid).can_update_metadata(!self.admits_only_roles()),
        };
        let join = self.room.add(who, process, participant);
        self.processes[process].join = Some(join);
        self.room.after(0, Happens::Listed(join));
    }

    pub(crate) fn listed(&mut self, join: usize) {
        let (process, who) = (self.room.joins[join].process, self.room.joins[join].who);
        if let Some(old) = self.room.listed_as(&who.to_string()) {
            self.room.unlist(old);
            let evicted = self.room.joins[old].process;
            if evicted != process {
                if evicted > process {
                    self.ledger.reached.note(Reach::InstanceReturned);
                }
                trace!(self, "{who} is evicted by another {who}");
                if self.processes[evicted].join == Some(old) {
                    self.drive(evicted, |session, now| {
                        session.handle_event(now, TransportEvent::Closed(CloseReason::DuplicateIdentity))
                    });
                    self.dies(evicted);
                }
            }
        }
        if self.processes[process].join == Some(join) && self.processes[process].alive {
            trace!(self, "{who} is listed as {}", self.room.joins[join].participant.sid());
            let runs_for_it =
                |it: &Process| it.jobs.values().any(|(.., caller)| caller.as_str() == who.to_string());
            if who == Who::A && !self.is_bridge(who) && self.processes.iter().any(runs_for_it) {
                self.ledger.reached.note(Reach::PlainCallerMoved);
            }
            self.room.list(join);
            let slow = if self.schedule.weather.slow_join && !self.healed { 700 } else { 20 };
            self.room.after(slow, Happens::Opens(join));
        }
    }

    /// A join can hear: it is told who is there.
    pub(crate) fn opens(&mut self, join: usize) {
        if !self.room.joins[join].listed {
            return;
        }
        self.room.joins[join].open = true;
        let present = self.room.listed();
        let others: Vec<_> = present.iter().copied().filter(|other| *other != join).collect();
        let now = self.room.now;
        self.room.joins[join].told.extend(others.iter().map(|other| (*other, now)));
        let here: Vec<_> = others.iter().map(|other| self.room.joins[*other].participant.clone()).collect();
        let (process, local) = (self.room.joins[join].process, self.room.joins[join].participant.clone());
        let again = std::mem::replace(&mut self.processes[process].joined, true);
        if again {
            if self.processes[process].drained {
                self.room.after(200, Happens::Leaves { who: self.processes[process].who, again: 100 });
            }
            self.give_back(process);
            self.processes[process].cut = false;
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected));
                session.handle_rejoined(now, local, here);
            });
            return;
        }
        let who = self.processes[process].who;
        if self.is_bridge(who) {
            self.processes[process].program = Program::Bridge(Box::new(self.session(who, &local, process)));
        }
        if let Who::C(_) = who {
            let tools = tools_of(who, self.processes[process].edition, self.schedule.cast.asks);
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
            self.drive(process, |session, now| session.handle_event(now, TransportEvent::Joined(other)));
        }
    }

    /// The session of this part, with caps that runs reach.
    pub(crate) fn session(&self, who: Who, local: &Participant, number: usize) -> Session {
        let mut caps = Caps::default();
        let cast = &self.schedule.cast;
        caps.frames.max_packet = max_packet(cast.has_streams(who));
        caps.calls.open_per_peer = OPEN;
        caps.calls.open_calls = 4 * OPEN + 2;
        caps.requests.calls_per_second = if self.schedule.cast.rated { OPEN as u32 + 1 } else { 50 };
        caps.requests.table_entries = 12;
        caps.requests.table_bytes = 4_000;
        caps.frames.held_frames = 12;
        caps.calls.equal_calls = 12;
        caps.frames.retransmit_frames = REPLAY as usize;
        // An assistant allows itself more than a client takes: both limits are reached.
        caps.calls.open_bytes = if let Who::C(_) = who { 4_000 } else { 6_000 };
        let mut times = Times::default();
        times.memory = Duration::from_secs(10);
        let config = Config::default().room("room").caps(caps).times(times);
        let config = config.lossy(cast.has_fast_lane(who)).streams(cast.has_streams(who));
        let mut config = config.consent_available(cast.asks).prompts(cast.asks);
        if self.admits_only_roles() {
            config = config.admit_only_roles();
        }
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
            Who::C(_) => Session::client(self.now(), local.clone(), config, seed),
            _ => Session::assistant(self.now(), local.clone(), config, seed),
        }
    }

    /// Whether the assistants of this run admit nobody without a role: then the stranger has an ordinary token.
    fn admits_only_roles(&self) -> bool {
        self.schedule.seed.is_multiple_of(2)
    }

    pub(crate) fn news(&mut self, to: usize, about: usize, joined: bool) {
        let (receiver, listed) = (&self.room.joins[to], self.room.joins[about].listed);
        if !receiver.listed {
            return;
        }
        let untold_until = receiver.held_until.max(receiver.deaf_until);
        if untold_until > self.room.now || !receiver.open {
            let when = untold_until.max(self.room.now + 20_000);
            return self.room.at(when, Happens::News { to, about, joined });
        }
        let process = receiver.process;
        let who = self.room.joins[about].participant.clone();
        if joined {
            // Who left before he was announced is never told of, nor that he left.
            if listed && self.room.joins[to].told.insert(about, self.room.now).is_none() {
                trace!(self, "{} is told of {} {}", self.room.joins[to].who, who.identity(), who.sid());
                self.drive(process, |session, now| session.handle_event(now, TransportEvent::Joined(who)));
            }
        } else if self.room.joins[to].told.remove(&about).is_some() {
            trace!(self, "{} is told that {} {} left", self.room.joins[to].who, who.identity(), who.sid());
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::Left(who.peer().clone()))
            });
        }
    }
}

fn name(text: &str) -> ToolName {
    text.parse().unwrap()
}

/// What a client offers, by how often it has changed its mind.
pub(crate) fn tools_of(who: Who, edition: u32, asks: bool) -> Vec<Tool> {
    let options = ToolOptions::default;
    let mut tools = vec![
        Tool::new(name(&format!("t{who}")), "its own"),
        Tool::new(name("shared"), "of everybody").options(options().barge_in(BargeIn::Finish)),
    ];
    if who == Who::C(1) {
        let both = options().barge_in(BargeIn::Report);
        tools.push(Tool::new(name("both"), "the assistant's too").options(both));
        tools.push(Tool::new(name("again"), "twice does no harm").options(options().idempotent()));
        if asks {
            let once = options().consent(Consent::OncePerSession);
            tools.push(Tool::new(name("careful"), "asks once").options(once));
            tools.push(Tool::new(name("grave"), "asks each time").options(ToolOptions::destructive()));
        }
    }
    match edition % 3 {
        0 => tools,
        1 => tools.iter().map(changed).collect(),
        _ => {
            tools.truncate(1);
            tools
        }
    }
}

/// The same tool, but for what it says of itself.
fn changed(tool: &Tool) -> Tool {
    let options = tool.tool_options().clone();
    Tool::new(tool.name().clone(), "another one of this name").options(options)
}
