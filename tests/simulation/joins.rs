//! Joins and rejoins, and how they are announced to others.

use std::time::Duration;

use toolbridge::{
    BargeIn, Caps, CloseReason, ConnectionState, Consent, Role, Times, Tool, ToolName, ToolOptions,
    transport::{Participant, TransportEvent},
};

use crate::{
    reach::Reach,
    room::Scheduled,
    schedule::Actor,
    session::{Config, Session},
    world::{OPEN, Process, Program, World},
};

/// Retransmitted frames that may be in flight at once.
pub(crate) const RETRANSMIT_WINDOW: u64 = 2;

/// The largest packet, in bytes. With streams it is smaller, so that many frames need one.
pub(crate) fn max_packet(has_streams: bool) -> usize {
    if has_streams { 700 } else { 2_000 }
}

impl World<'_> {
    /// A process starts to join.
    pub(crate) fn joins(&mut self, process: usize) {
        let it = &self.processes[process];
        let actor = it.actor;
        if !it.alive || it.join.is_some() {
            return;
        }
        if self.current.get(&actor) != Some(&process) {
            // Another process took over its identity while it had no connection.
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::Closed(CloseReason::DuplicateIdentity))
            });
            return self.dies(process);
        }
        let sid = format!("PA_{}", self.room.joins.len());
        let participant = match actor {
            Actor::Assistant | Actor::SecondAssistant => {
                Participant::new(actor.to_string(), sid).agent(true).client_protocol(2)
            }
            Actor::App => Participant::new(actor.to_string(), sid)
                .client_protocol(self.schedule.cast.app.unwrap_or_default()),
            Actor::Observer => Participant::new(actor.to_string(), sid).role(Role::Observer),
            Actor::Client(_) => Participant::new(actor.to_string(), sid).role(Role::Client),
            // Its token has no role. In every other run it could also change its attributes.
            Actor::Stranger => {
                Participant::new(actor.to_string(), sid).can_update_metadata(!self.admits_only_roles())
            }
        };
        let join = self.room.add(actor, process, participant);
        self.processes[process].join = Some(join);
        self.room.after(0, Scheduled::Listed(join));
    }

    pub(crate) fn listed(&mut self, join: usize) {
        let (process, actor) = (self.room.joins[join].process, self.room.joins[join].actor);
        if let Some(old) = self.room.listed_as(&actor.to_string()) {
            self.room.unlist(old);
            let evicted = self.room.joins[old].process;
            if evicted != process {
                if evicted > process {
                    self.ledger.reached.note(Reach::InstanceReturned);
                }
                trace!(self, "{actor} is evicted by another {actor}");
                if self.processes[evicted].join == Some(old) {
                    self.drive(evicted, |session, now| {
                        session.handle_event(now, TransportEvent::Closed(CloseReason::DuplicateIdentity))
                    });
                    self.dies(evicted);
                }
            }
        }
        if self.processes[process].join == Some(join) && self.processes[process].alive {
            trace!(self, "{actor} is listed as {}", self.room.joins[join].participant.sid());
            let runs_for_it =
                |it: &Process| it.jobs.values().any(|(.., caller)| caller.as_str() == actor.to_string());
            if actor == Actor::Assistant && !self.has_session(actor) && self.processes.iter().any(runs_for_it)
            {
                self.ledger.reached.note(Reach::PlainCallerRejoined);
            }
            self.room.list(join);
            let slow = if self.schedule.network.slow_join && !self.recovered { 700 } else { 20 };
            self.room.after(slow, Scheduled::Opens(join));
        }
    }

    /// A join starts to receive packets, and gets the list of the participants.
    pub(crate) fn opens(&mut self, join: usize) {
        if !self.room.joins[join].listed {
            return;
        }
        self.room.joins[join].open = true;
        let present = self.room.listed();
        let others: Vec<_> = present.iter().copied().filter(|other| *other != join).collect();
        let now = self.room.now;
        self.room.joins[join].announced.extend(others.iter().map(|other| (*other, now)));
        let here: Vec<_> = others.iter().map(|other| self.room.joins[*other].participant.clone()).collect();
        let (process, local) = (self.room.joins[join].process, self.room.joins[join].participant.clone());
        let rejoined = std::mem::replace(&mut self.processes[process].joined, true);
        if rejoined {
            if self.processes[process].drained {
                self.room.after(
                    200,
                    Scheduled::Leaves { actor: self.processes[process].actor, replaced_after: 100 },
                );
            }
            self.return_waiting(process);
            self.processes[process].cut = false;
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected));
                session.handle_rejoined(now, local, here);
            });
            return;
        }
        let actor = self.processes[process].actor;
        if self.has_session(actor) {
            self.processes[process].program = Program::Bridge(Box::new(self.session(actor, &local, process)));
        }
        if let Actor::Client(_) = actor {
            let tools = tools_of(actor, self.processes[process].edition, self.schedule.cast.consent);
            self.drive(process, |session, now| {
                let _ = session.offer(now, tools);
            });
        } else if actor == Actor::Assistant {
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

    /// Creates the session of this actor, with caps that runs reach.
    pub(crate) fn session(&self, actor: Actor, local: &Participant, number: usize) -> Session {
        let mut caps = Caps::default();
        let cast = &self.schedule.cast;
        caps.frames.max_packet = max_packet(cast.has_streams(actor));
        caps.calls.open_per_peer = OPEN;
        caps.calls.open_calls = 4 * OPEN + 2;
        caps.requests.calls_per_second = if self.schedule.cast.rate_limited { OPEN as u32 + 1 } else { 50 };
        caps.requests.table_entries = 12;
        caps.requests.table_bytes = 4_000;
        caps.frames.held_frames = 12;
        caps.calls.equal_calls = if cast.steady { 10_000 } else { 12 };
        caps.frames.retransmit_frames = RETRANSMIT_WINDOW as usize;
        // An assistant allows more bytes than a client accepts, so that runs reach both limits.
        caps.calls.open_bytes = if let Actor::Client(_) = actor { 4_000 } else { 6_000 };
        let mut times = Times::default();
        times.memory = Duration::from_secs(10);
        let config = Config::default().room("room").caps(caps).times(times);
        let config = config.lossy(cast.has_lossy_lane(actor)).streams(cast.has_streams(actor));
        // Compressed frames are packets, and the others are to be streams.
        let config = config.compress(self.schedule.seed.is_multiple_of(2));
        let mut config = config.consent_available(cast.consent).prompts(cast.consent);
        if self.admits_only_roles() {
            config = config.admit_only_roles();
        }
        if self.schedule.cast.configured {
            config = match actor {
                Actor::Client(_) => config.assistant("a"),
                _ => (1..=self.schedule.cast.clients)
                    .fold(config, |it, n| it.admit(Actor::Client(n).to_string())),
            };
        }
        if cast.app.is_some() && matches!(actor, Actor::Assistant | Actor::SecondAssistant) {
            config = config.rpc_tool("app", Tool::new(name("tapp"), "of the app")).rpc_probe(cast.pings);
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.schedule.seed.to_be_bytes());
        seed[8..16].copy_from_slice(&(number as u64).to_be_bytes());
        match actor {
            Actor::Client(_) => Session::client(self.now(), local.clone(), config, seed),
            _ => Session::assistant(self.now(), local.clone(), config, seed),
        }
    }

    /// Returns whether the assistants of this run admit only participants with a role. If so, the stranger has an
    /// ordinary token, which does not let it change its attributes.
    fn admits_only_roles(&self) -> bool {
        self.schedule.seed.is_multiple_of(2)
    }

    pub(crate) fn announced(&mut self, to: usize, about: usize, joined: bool) {
        let (receiver, listed) = (&self.room.joins[to], self.room.joins[about].listed);
        if !receiver.listed {
            return;
        }
        let delayed_until = receiver.held_until.max(receiver.signaling_down_until);
        if delayed_until > self.room.now || !receiver.open {
            let when = delayed_until.max(self.room.now + 20_000);
            return self.room.at(when, Scheduled::Announcement { to, about, joined });
        }
        let process = receiver.process;
        let participant = self.room.joins[about].participant.clone();
        if joined {
            // LiveKit announces neither the join nor the leave of a participant that left before its announcement.
            if listed && self.room.joins[to].announced.insert(about, self.room.now).is_none() {
                trace!(
                    self,
                    "{} is informed of the join of {} {}",
                    self.room.joins[to].actor,
                    participant.identity(),
                    participant.sid()
                );
                self.drive(process, |session, now| {
                    session.handle_event(now, TransportEvent::Joined(participant))
                });
            }
        } else if self.room.joins[to].announced.remove(&about).is_some() {
            trace!(
                self,
                "{} is informed that {} {} left",
                self.room.joins[to].actor,
                participant.identity(),
                participant.sid()
            );
            self.drive(process, |session, now| {
                session.handle_event(now, TransportEvent::Left(participant.peer().clone()))
            });
        }
    }
}

fn name(text: &str) -> ToolName {
    text.parse().unwrap()
}

/// Returns the tools of a client after it has changed them so many times.
pub(crate) fn tools_of(actor: Actor, edition: u32, consent: bool) -> Vec<Tool> {
    let options = ToolOptions::default;
    let mut tools = vec![
        Tool::new(name(&format!("t{actor}")), "its own"),
        Tool::new(name("shared"), "of everybody").options(options().barge_in(BargeIn::Finish)),
    ];
    if actor == Actor::Client(1) {
        let both = options().barge_in(BargeIn::Report);
        tools.push(Tool::new(name("both"), "the assistant's too").options(both));
        tools.push(Tool::new(name("again"), "twice does no harm").options(options().idempotent()));
        if consent {
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

/// Returns the same tool with another description.
fn changed(tool: &Tool) -> Tool {
    let options = tool.tool_options().clone();
    Tool::new(tool.name().clone(), "another one of this name").options(options)
}
