//! The small world: a client, two assistants and a stranger in one room, on virtual time. Packets arrive at once, in
//! order. What the sessions do is judged by what really happened.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::json;
use toolbridge::{
    CallError, Config, ConnectionState, Consent, ErrorCode, Event as Said, Identity, Progress, Role, Tool,
    ToolError, ToolOptions, Value,
    frame::{
        Configuration, Frame, Kind, Message, Meta, RegisteredTool, ToolUseRequest, ToolUseResult,
        ToolsRegister,
    },
    session::{CallKey, Counter, Job, JobKey, Output, Request, SendFailure, Session, TurnKey},
    tools::{Execution, LossCause, StopReason},
    transport::{Form, Lane, Packet, Participant, Peer, RpcMessage, RpcRequest, RpcResponse, TransportEvent},
};

use crate::{
    event::{Called, Event, Seat, Token},
    reach::{Reach, Reached},
    recorded::{Digests, Observed},
    rules::{Breach, Broken, Rule},
};

/// The reconnect grace period, and the time that a session may take to notice its end.
const GRACE: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(2);

/// How long a client keeps the results of an assistant that has gone.
const MEMORY: Duration = Duration::from_secs(60);

/// How long calls of a run may take: longer than a schedule of an exhausted world.
const LIMIT: Duration = Duration::from_secs(300);

/// Time that passes after each step, so that what the sessions hold back for some milliseconds is sent.
const SETTLES: Duration = Duration::from_millis(20);

/// What a program is.
pub(crate) enum Body {
    /// It runs a session.
    Session(Box<Session>),
    /// It calls by RPC, and does not know the handshake.
    Caller,
    /// It has no rights, and what it sends is forged.
    Stranger(Token),
}

/// One run of a program, over all its joins.
pub(crate) struct Program {
    pub(crate) seat: Seat,
    pub(crate) body: Body,
    /// It has said goodbye, or its process has ended.
    pub(crate) is_over: bool,
    /// It left with its role.
    had_role: bool,
    /// Since when it is not in the room.
    gone_since: Option<Instant>,
    /// When it joined last, and when it last called by RPC.
    joined: Instant,
    called_by_rpc: Option<Instant>,
    turn: Option<TurnKey>,
    /// The state of its view; none if it shows none.
    view: Option<u32>,
    states: u32,
    /// The views that it sees: of which assistant, and which state.
    seen: BTreeMap<(String, String), u32>,
    /// The calls that it may have made, as the id of its last one.
    last_call: Option<usize>,
}

/// A join: who has an identity now.
pub(crate) struct Join {
    pub(crate) program: usize,
    pub(crate) who: Participant,
    pub(crate) has_role: bool,
    pub(crate) announced: bool,
    /// The room took its role while the client was not connected, which may have an answer for it.
    lost_unseen: bool,
}

/// A call, as its caller knows it.
pub(crate) struct Call {
    pub(crate) id: String,
    by: Seat,
    program: usize,
    by_rpc: bool,
    tool: Called,
    key: Option<CallKey>,
    began: Instant,
    /// How often it started, anywhere.
    starts: u32,
    /// How often it started at its caller.
    own_starts: u32,
    /// It returned while its caller had the role.
    returned_by_right: bool,
    /// The other program at which it started last.
    ran_at: Option<usize>,
    /// Its outcome says that nothing ran.
    ran_nothing: bool,
    ended: bool,
    answers: BTreeSet<String>,
}

/// A tool that runs, or a question that waits.
pub(crate) struct Running {
    at: usize,
    key: JobKey,
    call: usize,
}

/// What moves to a join.
enum Load {
    Packet(Lane, Bytes),
    Rpc(RpcMessage),
}

/// All of it.
pub(crate) struct World {
    base: Instant,
    /// When all processes were suspended last.
    slept_at: Option<Instant>,
    pub(crate) now: Instant,
    seed: u64,
    lossy: bool,
    pub(crate) programs: Vec<Program>,
    pub(crate) joins: BTreeMap<Seat, Join>,
    /// The program of each seat that may rejoin.
    away: BTreeMap<Seat, usize>,
    /// Since when nobody with rights has the seat.
    rightless: BTreeMap<Seat, Instant>,
    /// The joins that have ended.
    gone: Vec<Peer>,
    queue: VecDeque<(Peer, Seat, Load)>,
    pub(crate) calls: Vec<Call>,
    pub(crate) running: Vec<Running>,
    pub(crate) questions: Vec<Running>,
    /// The consents: the client's program, and the program that it was given to.
    granted: BTreeSet<(usize, usize)>,
    /// The instances that the stranger has been shown: whose, and under which identity.
    stolen: BTreeMap<(Seat, Seat), String>,
    /// The stops that have arrived: at which program, of which call.
    stopped: BTreeSet<(usize, usize)>,
    /// When a Configuration has arrived first: at which program, of which program.
    configured: BTreeMap<(usize, usize), Instant>,
    /// The goodbyes that have arrived: at which program, of which program.
    goodbyes: BTreeSet<(usize, usize)>,
    refused: BTreeSet<Seat>,
    muted: BTreeSet<Seat>,
    lost: BTreeSet<Seat>,
    sids: u32,
    stanza: i32,
    /// Tools return at once, and people agree at once.
    answers_at_once: bool,
    pub(crate) broken: Broken,
    pub(crate) reached: Reached,
    pub(crate) trace: bool,
    steps: u64,
    observed: Observed,
}

macro_rules! say {
    ($world:expr, $($what:tt)*) => {
        if $world.trace {
            println!("{:>9.3}  {}", $world.now.duration_since($world.base).as_secs_f64(), format_args!($($what)*));
        }
    };
}

impl World {
    pub(crate) fn new(base: Instant, seed: u64, lossy: bool, trace: bool) -> Self {
        Self {
            base,
            slept_at: None,
            now: base,
            seed,
            lossy,
            programs: Vec::new(),
            joins: BTreeMap::new(),
            away: BTreeMap::new(),
            rightless: BTreeMap::new(),
            gone: Vec::new(),
            queue: VecDeque::new(),
            calls: Vec::new(),
            running: Vec::new(),
            questions: Vec::new(),
            granted: BTreeSet::new(),
            stolen: BTreeMap::new(),
            stopped: BTreeSet::new(),
            configured: BTreeMap::new(),
            goodbyes: BTreeSet::new(),
            refused: BTreeSet::new(),
            muted: BTreeSet::new(),
            lost: BTreeSet::new(),
            sids: 0,
            stanza: 0,
            answers_at_once: false,
            broken: Broken::new(),
            reached: Reached::default(),
            trace,
            steps: 0,
            observed: Observed::new(base, false),
        }
    }

    /// Notes from here on what the sessions do.
    pub(crate) fn observe(&mut self) {
        self.observed = Observed::new(self.base, true);
    }

    /// Returns what the sessions have done.
    pub(crate) fn digests(&mut self) -> Digests {
        let mut observed = std::mem::replace(&mut self.observed, Observed::new(self.base, false));
        for (at, program) in self.programs.iter().enumerate() {
            if let Body::Session(session) = &program.body {
                observed.end(at, session);
            }
        }
        observed.digests()
    }

    fn breaks(&mut self, breach: Breach, text: String) {
        say!(self, "BROKEN {breach:?}: {text}");
        self.broken.entry(breach).or_insert(text);
    }

    /// Performs a step, and lets the sessions settle.
    pub(crate) fn step(&mut self, event: Event) {
        say!(self, "-- {event:?}");
        self.perform(event);
        self.deliver();
        self.pass(SETTLES);
        self.check();
    }

    /// Returns the steps that are possible now.
    pub(crate) fn possible(&self) -> Vec<Event> {
        let mut all = Vec::new();
        for seat in Seat::ALL {
            let assists = seat != Seat::Phone;
            let Some(join) = self.joins.get(&seat) else {
                all.push(Event::Enters(seat));
                if self.away.contains_key(&seat) {
                    all.extend([Event::Returns(seat), Event::ReturnsUnnoticed(seat)]);
                }
                if seat == Seat::A {
                    all.push(Event::CallerEnters(seat));
                }
                if seat != Seat::B && self.stranger().is_none() {
                    for token in [Token::NoRole, Token::AgentThatObserves] {
                        for announced in [true, false] {
                            let differs = (token, announced) == (Token::AgentThatObserves, false);
                            if !(differs || seat == Seat::Phone && token == Token::AgentThatObserves) {
                                all.push(Event::StrangerEnters { seat, token, announced });
                            }
                        }
                    }
                }
                continue;
            };
            let program = &self.programs[join.program];
            if let Body::Stranger(_) = program.body {
                continue;
            }
            all.push(Event::Drops(seat));
            all.push(if join.has_role { Event::LosesRole(seat) } else { Event::GetsRole(seat) });
            if assists {
                all.push(Event::CallsByRpc(seat, Called::Plain));
            }
            if seat == Seat::A {
                all.push(Event::CallsByRpc(seat, Called::Careful));
            }
            if seat == Seat::B {
                all.push(Event::CallsByRpc(seat, Called::Prompt));
            }
            if assists && !self.calls.is_empty() {
                all.push(Event::CallsByRpcWithUsedId(seat));
            }
            if !matches!(program.body, Body::Session(_)) || program.is_over {
                continue;
            }
            all.push(Event::SaysGoodbye(seat));
            if assists {
                all.push(Event::Calls(seat, Called::Plain));
            }
            if seat == Seat::A {
                all.extend([Called::Careful, Called::Both].map(|tool| Event::Calls(seat, tool)));
                all.push(Event::Shows(seat));
                if program.last_call.is_some_and(|call| !self.calls[call].ended) {
                    all.extend([Event::Cancels(seat), Event::Interrupts(seat)]);
                }
            }
            if seat != Seat::B {
                all.push(Event::Mutes(seat));
                if !self.refused.contains(&seat) {
                    all.push(Event::Refuses(seat));
                }
                if !self.lost.contains(&seat) {
                    all.push(Event::Loses(seat));
                }
            }
        }
        if self.stranger().is_some() {
            all.extend([Event::StrangerLeaves, Event::StrangerActs, Event::StrangerCallsByRpc]);
        }
        if !self.running.is_empty() {
            all.extend([Event::Answers, Event::FailsAsUnknown]);
        }
        if !self.questions.is_empty() {
            all.push(Event::Agrees);
        }
        all.extend([Event::Ticks, Event::Waits, Event::Sleeps]);
        all
    }

    fn perform(&mut self, event: Event) {
        match event {
            Event::Enters(seat) => self.enters(seat),
            Event::Returns(seat) => self.returns(seat, true),
            Event::ReturnsUnnoticed(seat) => self.returns(seat, false),
            Event::CallerEnters(seat) if self.joins.contains_key(&seat) => {}
            Event::CallerEnters(seat) => {
                let program = self.program(seat, Body::Caller);
                let who = self.rightful(seat);
                self.joins_as(program, &who, true);
            }
            Event::Drops(seat) => self.drops(seat),
            Event::SaysGoodbye(seat) => {
                if let Some(program) = self.session_at(seat) {
                    self.programs[program].is_over = true;
                    self.drive(program, |session, now| session.close(now));
                    self.away.remove(&seat);
                    self.reached.note(Reach::Goodbye);
                }
            }
            Event::LosesRole(seat) => self.changes_role(seat, false),
            Event::GetsRole(seat) => self.changes_role(seat, true),
            Event::StrangerEnters { seat, token, announced } => self.stranger_enters(seat, token, announced),
            Event::StrangerLeaves => {
                if let Some(seat) = self.stranger() {
                    self.drops(seat);
                }
            }
            Event::StrangerActs => self.stranger_acts(),
            Event::StrangerCallsByRpc => {
                if let Some(seat) = self.stranger() {
                    self.calls_by_rpc(seat, Called::Plain, None);
                }
            }
            Event::Calls(seat, tool) => self.makes_call(seat, tool),
            Event::CallsByRpc(seat, tool) => self.calls_by_rpc(seat, tool, None),
            Event::CallsByRpcWithUsedId(seat) => {
                let Some((id, tool)) = self.calls.last().map(|call| (call.id.clone(), call.tool)) else {
                    return;
                };
                self.reached.note(Reach::UsedId);
                self.calls_by_rpc(seat, tool, Some(id));
            }
            Event::Cancels(seat) => {
                let Some(program) = self.session_at(seat) else { return };
                if let Some(key) = self.programs[program].last_call.and_then(|call| self.calls[call].key) {
                    self.drive(program, |session, now| session.cancel(now, key));
                }
            }
            Event::Interrupts(seat) => {
                let Some(program) = self.session_at(seat) else { return };
                if let Some(turn) = self.programs[program].turn.take() {
                    self.drive(program, |session, now| session.barge_in(now, turn));
                    self.programs[program].turn = self.drive(program, |session, _| session.turn());
                }
            }
            Event::Shows(seat) => self.shows(seat),
            Event::Answers => {
                if !self.running.is_empty() {
                    self.answers(0);
                }
            }
            Event::FailsAsUnknown => {
                if !self.running.is_empty() {
                    let job = self.running.remove(0);
                    self.reached.note(Reach::FailedAsUnknown);
                    let failure = ToolError::new(ErrorCode::UNKNOWN_TOOL, "the tool knows no such tool");
                    self.drive(job.at, |session, now| session.settle(now, job.key, Err(failure)));
                }
            }
            Event::Agrees => {
                if !self.questions.is_empty() {
                    self.agrees(0, true);
                }
            }
            Event::Refuses(seat) => {
                self.refused.insert(seat);
            }
            Event::Mutes(seat) if !self.joins.contains_key(&seat) => {}
            Event::Mutes(seat) => {
                let muted = !self.muted.contains(&seat);
                self.mutes(seat, muted);
            }
            Event::Loses(seat) => {
                self.lost.insert(seat);
            }
            Event::Sleeps => self.sleeps(Duration::from_secs(60)),
            Event::Ticks => {
                let next = self
                    .next_deadline()
                    .map_or(Duration::ZERO, |(at, _)| at.saturating_duration_since(self.now));
                self.pass(next);
            }
            Event::Waits => self.pass(Duration::from_secs(6)),
        }
    }

    // --- Joins ---

    fn program(&mut self, seat: Seat, body: Body) -> usize {
        self.programs.push(Program {
            seat,
            body,
            is_over: false,
            had_role: true,
            gone_since: None,
            joined: self.now,
            called_by_rpc: None,
            turn: None,
            view: None,
            states: 0,
            seen: BTreeMap::new(),
            last_call: None,
        });
        self.programs.len() - 1
    }

    /// Returns the next participant of a seat, with the rights that belong to it.
    fn rightful(&mut self, seat: Seat) -> Participant {
        self.sids += 1;
        let who = Participant::new(seat.name(), format!("PA_{}", self.sids));
        who.role(if seat == Seat::Phone { Role::Client } else { Role::Assistant })
    }

    fn enters(&mut self, seat: Seat) {
        if self.joins.contains_key(&seat) {
            return;
        }
        let who = self.rightful(seat);
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&self.seed.to_be_bytes());
        seed[8..16].copy_from_slice(&(self.programs.len() as u64).to_be_bytes());
        let config = Config::default().room("room").lossy(self.lossy).streams(false).admit_only_roles();
        let name = |tool: Called| Tool::new(tool.name().parse().unwrap(), "");
        let mut session = match seat {
            Seat::Phone => {
                let config = config.answer_rpc().rpc_caller("b").consent_available(true).prompts(true);
                Session::client(self.now, who.clone(), config, seed)
            }
            _ => Session::assistant(self.now, who.clone(), config, seed),
        };
        let tools = match seat {
            Seat::Phone => vec![
                name(Called::Plain),
                name(Called::Careful).options(ToolOptions::default().consent(Consent::OncePerSession)),
                name(Called::Both),
            ],
            _ => vec![name(Called::Both).options(ToolOptions::default().prefer_client())],
        };
        session.offer(self.now, tools).unwrap();
        let turn = (seat != Seat::Phone).then(|| session.turn());
        let program = self.program(seat, Body::Session(Box::new(session)));
        self.programs[program].turn = turn;
        if let Some(old) = self.away.insert(seat, program) {
            self.programs[old].is_over = true;
            self.ends(old);
        }
        let others = self.announced();
        self.joins_as(program, &who, true);
        for other in others {
            self.drive(program, |session, now| session.handle_event(now, TransportEvent::Joined(other)));
        }
    }

    fn returns(&mut self, seat: Seat, is_noticed: bool) {
        let Some(program) = self.away.get(&seat).copied().filter(|_| !self.joins.contains_key(&seat)) else {
            return;
        };
        let who = self.rightful(seat);
        let others = self.announced();
        self.reached.note(Reach::Rejoined);
        self.joins_as(program, &who, true);
        if !is_noticed {
            let gone: Vec<_> =
                self.gone.iter().chain(others.iter().map(Participant::peer)).cloned().collect();
            self.drive(program, |session, now| {
                for other in gone {
                    session.handle_event(now, TransportEvent::Left(other));
                }
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected));
                for other in &others {
                    session.handle_event(now, TransportEvent::Joined(other.clone()));
                }
            });
            if !self.queue.is_empty() {
                self.reached.note(Reach::SentBeforeItsRejoin);
            }
            self.deliver();
        }
        self.drive(program, |session, now| session.handle_rejoined(now, who, others));
    }

    /// A program gets a seat.
    fn joins_as(&mut self, program: usize, who: &Participant, announced: bool) {
        let seat = self.programs[program].seat;
        let has_role = !matches!(self.programs[program].body, Body::Stranger(_));
        say!(self, "{seat} is {} of program {program}", who.sid());
        self.programs[program].gone_since = None;
        self.programs[program].joined = self.now;
        self.joins.insert(seat, Join { program, who: who.clone(), has_role, announced, lost_unseen: false });
        self.notes_rights(seat);
        if announced {
            self.announce(seat, who);
        }
    }

    fn announce(&mut self, seat: Seat, who: &Participant) {
        for (other, program) in self.sessions() {
            if other != seat {
                self.drive(program, |session, now| {
                    session.handle_event(now, TransportEvent::Joined(who.clone()))
                });
            }
        }
    }

    /// Loses its connection, or leaves.
    fn drops(&mut self, seat: Seat) {
        let Some(join) = self.joins.remove(&seat) else { return };
        self.muted.remove(&seat);
        self.gone.push(join.who.peer().clone());
        let program = &mut self.programs[join.program];
        (program.gone_since, program.had_role) = (Some(self.now), join.has_role || join.lost_unseen);
        if matches!(program.body, Body::Session(_)) && program.is_over {
            self.ends(join.program);
        }
        self.notes_rights(seat);
        let observes = matches!(self.programs[join.program].body, Body::Stranger(Token::AgentThatObserves));
        let is_stranger = matches!(self.programs[join.program].body, Body::Stranger(_));
        if observes || !join.has_role && !is_stranger {
            self.rightless.insert(seat, self.now); // that it was bound is a breach already
        }
        self.drive(join.program, |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
        });
        if join.announced {
            for (_, program) in self.sessions() {
                let peer = join.who.peer().clone();
                self.drive(program, |session, now| session.handle_event(now, TransportEvent::Left(peer)));
            }
        }
    }

    /// A process has ended, and its tools with it.
    fn ends(&mut self, program: usize) {
        self.running.retain(|it| it.at != program);
        self.questions.retain(|it| it.at != program);
    }

    fn changes_role(&mut self, seat: Seat, has_role: bool) {
        let who = self.rightful(seat);
        let lost_unseen = !has_role && self.session_at(Seat::Phone).is_none();
        let Some(join) = self.joins.get_mut(&seat).filter(|join| join.has_role != has_role) else { return };
        (join.has_role, join.lost_unseen) = (has_role, lost_unseen);
        let who = Participant::new(seat.name(), join.who.sid().clone())
            .attributes(who.all_attributes().filter(|_| has_role))
            .can_update_metadata(false);
        join.who = who.clone();
        self.notes_rights(seat);
        self.reached.note(if has_role { Reach::RoleGivenBack } else { Reach::RoleTaken });
        self.announce(seat, &who);
    }

    /// The room lets a participant publish or not, and tells it so.
    fn mutes(&mut self, seat: Seat, muted: bool) {
        match muted {
            true => self.muted.insert(seat),
            false => self.muted.remove(&seat),
        };
        let Some(join) = self.joins.get_mut(&seat) else { return };
        join.who = join.who.clone().can_publish_data(!muted);
        let (who, program) = (join.who.clone(), join.program);
        self.drive(program, |session, now| session.handle_event(now, TransportEvent::Joined(who.clone())));
        self.announce(seat, &who);
    }

    fn notes_rights(&mut self, seat: Seat) {
        if self.joins.get(&seat).is_some_and(|join| join.has_role) {
            self.rightless.remove(&seat);
        } else {
            self.rightless.entry(seat).or_insert(self.now);
        }
    }

    /// Returns whether the client cannot know that this join has lost its role, and takes it for another program than the one
    /// whose grace period goes on.
    fn is_unseen(&self, join: &Join) -> bool {
        let since = self.joins.get(&Seat::Phone).map(|phone| self.programs[phone.program].joined);
        join.lost_unseen && since.is_none_or(|since| self.now <= since + GRACE + SLACK)
    }

    fn announced(&self) -> Vec<Participant> {
        self.joins.values().filter(|join| join.announced).map(|join| join.who.clone()).collect()
    }

    /// The sessions that are in the room.
    fn sessions(&self) -> Vec<(Seat, usize)> {
        let joins = self.joins.iter().map(|(seat, join)| (*seat, join.program));
        joins.filter(|(_, program)| matches!(self.programs[*program].body, Body::Session(_))).collect()
    }

    /// The program of a seat, if it runs a session that has not ended.
    fn session_at(&self, seat: Seat) -> Option<usize> {
        let program = self.joins.get(&seat)?.program;
        let it = &self.programs[program];
        (matches!(it.body, Body::Session(_)) && !it.is_over).then_some(program)
    }

    pub(crate) fn session(&self, seat: Seat) -> Option<&Session> {
        match &self.programs[self.session_at(seat)?].body {
            Body::Session(session) => Some(session),
            _ => None,
        }
    }

    // --- The stranger ---

    fn stranger(&self) -> Option<Seat> {
        let is_stranger = |join: &Join| matches!(self.programs[join.program].body, Body::Stranger(_));
        self.joins.iter().find(|(_, join)| is_stranger(join)).map(|(seat, _)| *seat)
    }

    fn stranger_enters(&mut self, seat: Seat, token: Token, announced: bool) {
        if self.joins.contains_key(&seat) || self.stranger().is_some() {
            return;
        }
        self.sids += 1;
        let who = Participant::new(seat.name(), format!("PA_{}", self.sids)).can_update_metadata(false);
        let who = match token {
            Token::NoRole => who,
            Token::AgentThatObserves => who.role(Role::Observer).agent(true),
        };
        let program = self.program(seat, Body::Stranger(token));
        self.joins_as(program, &who, announced);
        self.reached.note(match token {
            Token::AgentThatObserves => Reach::AgentThatObserves,
            Token::NoRole if announced => Reach::StrangerAnnounced,
            Token::NoRole => Reach::StrangerUnannounced,
        });
        for other in Seat::ALL.into_iter().filter(|other| *other != seat) {
            let stolen = self.stolen.get(&(seat, other)).cloned();
            if stolen.is_some() {
                self.reached.note(Reach::StolenInstance);
            }
            let instance = stolen.unwrap_or_else(|| "00112233445566778899aabbccddeeff".to_owned());
            let meta = Meta::new().with_text("bridge.instance", &instance).with_bool("bridge.heard", true);
            let features = ["tool_use", "tool_register", "tool_progress", "tool_ack", "view_update"];
            let mut greeting = Configuration::default();
            greeting.features = Some(features.map(String::from).to_vec());
            self.sends(seat, other, &meta, &Message::Configuration(greeting));
        }
    }

    /// The stranger acts with the rights of the identity that it has: it calls, or answers and offers a tool.
    fn stranger_acts(&mut self) {
        let Some(seat) = self.stranger() else { return };
        if seat == Seat::Phone {
            let mut tool = RegisteredTool::default();
            tool.name = "evil".to_owned();
            let mut offers = ToolsRegister::default();
            offers.tools = vec![tool];
            let open: Vec<_> = self
                .calls
                .iter()
                .filter(|it| !it.ended && !it.by_rpc)
                .map(|it| (it.by, it.id.clone()))
                .collect();
            for to in [Seat::A, Seat::B] {
                self.sends(seat, to, &Meta::new(), &Message::ToolsRegister(offers.clone()));
                for (_, id) in open.iter().filter(|(by, _)| *by == to) {
                    let mut forged = ToolUseResult::new(id.parse().unwrap(), true);
                    forged.result = Some(Value::from(json!({"forged": 1})));
                    self.sends(seat, to, &Meta::new(), &Message::ToolUseResult(forged));
                }
            }
            return;
        }
        let id = format!("stranger-{}", self.calls.len());
        self.add_call(seat, id.clone(), false, Called::Plain, None);
        let request = ToolUseRequest::new(
            id.parse().unwrap(),
            Called::Plain.name(),
            Value::empty(),
            Ok(Execution::Client),
        );
        self.sends(seat, Seat::Phone, &Meta::new(), &Message::ToolUseRequest(request));
    }

    /// A program without a session sends a frame.
    fn sends(&mut self, from: Seat, to: Seat, meta: &Meta, message: &Message) {
        self.stanza += 1;
        let stanza = if from == Seat::Phone { self.stanza } else { -self.stanza };
        let bytes = Frame::write(stanza, "room", meta, message).unwrap();
        let Some(peer) = self.joins.get(&from).map(|join| join.who.peer().clone()) else { return };
        self.queue.push_back((peer, to, Load::Packet(Lane::Reliable, bytes)));
    }

    // --- Calls ---

    fn add_call(&mut self, by: Seat, id: String, by_rpc: bool, tool: Called, key: Option<CallKey>) -> usize {
        let program = self.joins[&by].program;
        self.calls.push(Call {
            id,
            by,
            program,
            by_rpc,
            tool,
            key,
            began: self.now,
            starts: 0,
            own_starts: 0,
            returned_by_right: false,
            ran_at: None,
            ran_nothing: false,
            ended: false,
            answers: BTreeSet::new(),
        });
        self.calls.len() - 1
    }

    fn makes_call(&mut self, seat: Seat, tool: Called) {
        let Some(program) = self.session_at(seat) else { return };
        let now = self.now;
        let turn = self.programs[program].turn;
        let Body::Session(session) = &mut self.programs[program].body else { return };
        // Each call has other arguments: equal ones are limited.
        let arguments = Value::from(json!({"n": self.calls.len()}));
        let mut request = Request::new(tool.name(), arguments).timeout(LIMIT);
        if let Some(turn) = turn {
            request = request.turn(turn);
        }
        if let Ok(key) = session.call(now, request)
            && let Some(id) = session.call_id(key).map(ToString::to_string)
        {
            let call = self.add_call(seat, id, false, tool, Some(key));
            self.programs[program].last_call = Some(call);
        }
        self.flush(program);
    }

    fn calls_by_rpc(&mut self, seat: Seat, tool: Called, id: Option<String>) {
        let Some(join) = self.joins.get(&seat) else { return };
        let (peer, program) = (join.who.peer().clone(), join.program);
        let id = id.unwrap_or_else(|| format!("rpc-{}", self.calls.len()));
        self.add_call(seat, id.clone(), true, tool, None);
        if self.joins.contains_key(&Seat::Phone) {
            self.programs[program].called_by_rpc = Some(self.now);
        }
        if self.programs[program].is_over {
            self.reached.note(Reach::RpcAfterGoodbye);
        }
        let payload = match tool {
            Called::Prompt => json!({"text": "Which?", "choices": ["one", "two"]}).to_string(),
            _ => "{}".to_owned(),
        };
        let request = RpcRequest::new(id, tool.name(), payload, LIMIT.as_millis() as u32);
        self.queue.push_back((peer, Seat::Phone, Load::Rpc(RpcMessage::Request(request))));
    }

    fn shows(&mut self, seat: Seat) {
        let Some(program) = self.session_at(seat) else { return };
        let it = &mut self.programs[program];
        it.states += 1;
        // Each third state ends the view.
        it.view = (!it.states.is_multiple_of(3)).then_some(it.states);
        let content = it.view.map_or_else(Value::nil, |state| Value::from(json!({ "state": state })));
        self.drive(program, |session, now| session.show_view(now, "view", content, None));
    }

    fn answers(&mut self, at: usize) {
        let job = self.running.remove(at);
        let value = Value::from(json!({"call": self.calls[job.call].id}));
        self.calls[job.call].returned_by_right = self.has_role(job.call);
        self.drive(job.at, |session, now| session.settle(now, job.key, Ok(value)));
    }

    fn agrees(&mut self, at: usize, allowed: bool) {
        let question = self.questions.remove(at);
        if allowed {
            self.granted.insert((question.at, self.calls[question.call].program));
        }
        self.drive(question.at, |session, now| session.consent(now, question.key, allowed));
    }

    // --- Time and packets ---

    fn next_deadline(&self) -> Option<(Instant, usize)> {
        let all = self.programs.iter().enumerate().filter(|(_, it)| !it.is_over);
        let deadline = |(at, it): (usize, &Program)| match &it.body {
            Body::Session(session) => session.poll_timeout().map(|when| (when, at)),
            _ => None,
        };
        all.filter_map(deadline).min()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut at_once = 0;
        while let Some((at, program)) = self.next_deadline().filter(|(at, _)| *at <= end) {
            at_once = if at > self.now { 0 } else { at_once + 1 };
            if at_once > 1_000 {
                return self.breaks((Rule::Recovers, "a timer is due again and again"), String::new());
            }
            self.now = at.max(self.now);
            self.drive(program, Session::handle_timeout);
            self.deliver();
        }
        self.now = end;
    }

    /// All processes are suspended. The times that the rules compare move on with the clock.
    fn sleeps(&mut self, time: Duration) {
        self.reached.note(Reach::Suspended);
        self.now += time;
        self.base += time;
        self.slept_at = Some(self.now);
        self.rightless.values_mut().for_each(|since| *since += time);
        for it in &mut self.programs {
            it.joined += time;
            it.gone_since = it.gone_since.map(|at| at + time);
            it.called_by_rpc = it.called_by_rpc.map(|at| at + time);
        }
        self.calls.iter_mut().for_each(|it| it.began += time);
        for program in 0..self.programs.len() {
            for n in 0..3 {
                let who = Participant::new(format!("guest{n}"), format!("PA_guest{n}"));
                self.drive(program, |session, now| {
                    session.handle_event(now, TransportEvent::Joined(who.clone()))
                });
                self.drive(program, |session, now| {
                    session.handle_event(now, TransportEvent::Left(who.peer().clone()))
                });
            }
        }
    }

    /// Passes an input to a session, and handles its outputs.
    fn drive<T>(&mut self, program: usize, act: impl FnOnce(&mut Session, Instant) -> T) -> Option<T> {
        let now = self.now;
        let Body::Session(session) = &mut self.programs[program].body else { return None };
        let result = act(session, now);
        self.flush(program);
        if let Body::Session(session) = &self.programs[program].body {
            self.observed.state(program, now, session);
        }
        Some(result)
    }

    fn flush(&mut self, program: usize) {
        loop {
            let Body::Session(session) = &mut self.programs[program].body else { return };
            let Some(output) = session.poll_output() else { return };
            self.observed.output(program, self.now, &output, |packet| Frame::decode(packet.to_vec()).ok());
            match output {
                Output::Transmit(packet) => self.transmits(program, &packet),
                Output::Execute(job) => self.executes(program, &job),
                Output::Ask(question) => {
                    let by = Seat::of(question.caller.as_str());
                    let Some(call) = by.and_then(|by| self.requested(by, question.call.as_str())) else {
                        let text = format!("{:?} of {}", question.call, question.caller);
                        self.breaks(
                            (Rule::RunsByRight, "a person is asked about a call that nobody made"),
                            text,
                        );
                        continue;
                    };
                    self.reached.note(Reach::ConsentAsked);
                    if self.granted.iter().any(|(client, _)| *client == program) {
                        self.reached.note(Reach::ConsentAskedOfOther);
                    }
                    self.judges_right(program, call);
                    self.questions.push(Running { at: program, key: question.key, call });
                }
                Output::Select(selection) => {
                    let named = selection.evaluate();
                    let now = self.now;
                    if let Body::Session(session) = &mut self.programs[program].body {
                        session.select(now, selection.key, named);
                    }
                }
                Output::Abort { key, reason } => self.aborts(program, key, reason),
                Output::Settled { key, result } => self.settles(program, key, &result),
                Output::Event(Said::View { by, view }) => {
                    say!(self, "program {program} sees {view:?} of {by}");
                    let state = view.content.get("state").and_then(|state| state.decode::<u32>().ok());
                    let key = (by.to_string(), view.view);
                    match state {
                        Some(state) => self.programs[program].seen.insert(key, state),
                        None => self.programs[program].seen.remove(&key),
                    };
                }
                Output::Event(event) => say!(self, "     program {program}: {event:?}"),
            }
        }
    }

    fn transmits(&mut self, program: usize, packet: &Packet) {
        self.steps += 1;
        let seat = self.programs[program].seat;
        let join = self.joins.get(&seat).filter(|join| join.program == program);
        let now = self.now;
        let fails = |world: &mut Self, why: SendFailure| {
            if let Body::Session(session) = &mut world.programs[program].body {
                session.handle_send_failed(now, packet.id, why);
            }
        };
        let Some(peer) = join.map(|join| join.who.peer().clone()) else {
            return fails(self, SendFailure::Interrupted);
        };
        if self.muted.contains(&seat) {
            say!(self, "{seat} may not publish: {packet:?}");
            self.reached.note(Reach::NotAllowed);
            return fails(self, SendFailure::NotAllowed);
        }
        if self.refused.remove(&seat) {
            say!(self, "a packet of {seat} is refused: {packet:?}");
            self.reached.note(Reach::PacketRefused);
            return fails(self, SendFailure::QueueFull);
        }
        let load = match &packet.form {
            Form::Rpc(message) => Load::Rpc(message.clone()),
            Form::Data => Load::Packet(packet.lane, packet.payload.clone()),
            _ => return,
        };
        if let Load::Packet(lane, bytes) = &load
            && self.lost.contains(&seat)
            && (*lane == Lane::Lossy
                || Frame::decode(bytes.clone()).is_ok_and(|frame| frame.kind() == Kind::CONFIGURATION))
        {
            self.lost.remove(&seat);
            self.reached.note(Reach::PacketLost);
            say!(self, "a packet of {seat} is lost");
            return;
        }
        let everybody = packet.is_broadcast();
        for to in Seat::ALL {
            if to != seat && (everybody || packet.to.iter().any(|it| it.as_str() == to.name())) {
                let load = match &load {
                    Load::Packet(lane, bytes) => Load::Packet(*lane, bytes.clone()),
                    Load::Rpc(message) => Load::Rpc(message.clone()),
                };
                self.queue.push_back((peer.clone(), to, load));
            }
        }
    }

    fn held(&self, program: usize) -> u64 {
        match &self.programs[program].body {
            Body::Session(session) => session.stats().count(Counter::Held),
            _ => 0,
        }
    }

    fn deliver(&mut self) {
        let mut count = 0;
        while let Some((from, to, load)) = self.queue.pop_front() {
            count += 1;
            if count > 2_000 {
                self.queue.clear();
                return self
                    .breaks((Rule::Recovers, "packets without an end"), format!("from {from} to {to}"));
            }
            let Some(join) = self.joins.get(&to) else { continue };
            let program = join.program;
            let (stopped, held) = (self.stopped.clone(), self.held(program));
            self.arrives(&from, to, &load);
            let event = match load {
                Load::Packet(lane, bytes) => TransportEvent::packet(from, lane, bytes),
                Load::Rpc(message) => TransportEvent::Rpc { from: Some(from), message },
            };
            self.drive(program, |session, now| session.handle_event(now, event));
            if self.held(program) > held {
                self.stopped = stopped; // it waits for its sender's Configuration
            }
        }
        if self.answers_at_once {
            while !self.running.is_empty() || !self.questions.is_empty() {
                if !self.questions.is_empty() {
                    self.agrees(0, true);
                } else {
                    self.answers(0);
                }
                self.deliver();
            }
        }
    }

    // --- Judgement ---

    /// Finds the call to which a start belongs: the last one of this id that has not started, else the last one.
    fn requested(&self, by: Seat, id: &str) -> Option<usize> {
        let mut all = self.calls.iter().enumerate().filter(|(_, it)| it.by == by && it.id == id);
        let fresh = all.clone().rev().find(|(_, it)| it.starts == 0 && !it.ended);
        fresh.or_else(|| all.next_back()).map(|(at, _)| at)
    }

    /// Whether the program that made a call has the role for it, or had it when it left.
    fn has_role(&self, call: usize) -> bool {
        let Call { program, by_rpc, by, .. } = self.calls[call];
        let it = &self.programs[program];
        let join = self.joins.get(&it.seat).filter(|join| join.program == program);
        let has_role = join.map_or(it.had_role, |join| join.has_role || self.is_unseen(join));
        // The client's author lets the identity `b` call by RPC, whatever its token says.
        !matches!(it.body, Body::Stranger(_)) && (has_role || by_rpc && by == Seat::B)
    }

    fn judges_right(&mut self, program: usize, call: usize) {
        let it = &self.calls[call];
        let (caller, by, tool) = (&self.programs[it.program], it.by, it.tool);
        let text = format!("{:?} of {by} ({}), program {}", it.id, tool.name(), it.program);
        if self.joins.get(&Seat::Phone).is_none_or(|join| join.program != program) {
            return; // without a connection it cannot know
        }
        let is_over = self.goodbyes.contains(&(program, it.program));
        if is_over || !self.has_role(call) {
            let what = match caller.body {
                Body::Stranger(Token::AgentThatObserves) => "a tool runs for an agent that observes",
                Body::Stranger(_) if it.by_rpc => "a tool runs for a stranger, by RPC",
                Body::Stranger(_) => "a tool runs for a stranger",
                _ if is_over && it.by_rpc => "a tool runs after a goodbye, by RPC",
                _ if is_over => "a tool runs after a goodbye",
                _ if it.by_rpc => "a tool runs for a join that lost its role, by RPC",
                _ => "a tool runs for a join that lost its role",
            };
            return self.breaks((Rule::RunsByRight, what), text);
        }
        let Body::Session(session) = &self.programs[program].body else { return };
        let is_bound = session.bound().is_some_and(|bound| bound.as_str() == by.name());
        // The client's author lets `b` call by RPC, but not ask people.
        if !is_bound && tool == Called::Prompt {
            self.breaks((Rule::BoundAlone, "a person is asked by a participant that is not bound"), text);
        } else if !is_bound && by != Seat::B {
            self.breaks((Rule::BoundAlone, "a tool runs for an assistant that is not bound"), text);
        }
    }

    /// Whether all processes were suspended since this call began. That minute counts for what they remember.
    fn has_slept_since(&self, call: &Call) -> bool {
        self.slept_at.is_some_and(|at| call.began <= at)
    }

    fn executes(&mut self, program: usize, job: &Job) {
        let Some(by) = Seat::of(job.caller.as_str()) else { return };
        let Some(call) = self.requested(by, job.call.as_str()) else {
            let text = format!("{:?} of {by}", job.call);
            return self.breaks((Rule::RunsByRight, "a tool runs that nobody called"), text);
        };
        let at = self.programs[program].seat;
        say!(self, "{at} runs {} of {by} ({})", self.calls[call].id, job.tool);
        let (id, caller) = (self.calls[call].id.clone(), self.calls[call].program);
        self.calls[call].starts += 1;
        self.calls[call].own_starts += u32::from(program == caller);
        let text = format!("{id:?} of {by}, program {caller}, at {at}");
        // A program that has ended took its knowledge of earlier calls with it.
        let is_here =
            |it: &&Call| it.program == caller && it.id == id && it.ran_at.is_none_or(|at| at == program);
        let same = self.calls.iter().filter(is_here);
        // The client does not know the ids of calls that the assistant runs itself.
        let is_remembered = |it: &&Call| it.began + MEMORY > self.now && !self.has_slept_since(it);
        let in_both_forms: u32 = same.filter(is_remembered).map(|it| it.starts - it.own_starts).sum();
        if self.calls[call].starts > 1 {
            self.breaks((Rule::OneRun, "a request runs twice"), text.clone());
        } else if in_both_forms > 1 {
            self.breaks((Rule::OneRun, "one id runs twice, in two forms"), text.clone());
        }
        if self.calls[call].ran_nothing {
            self.breaks(
                (Rule::MayHaveRun, "a tool starts although its caller was told that nothing ran"),
                text.clone(),
            );
        }
        let own = program == caller;
        if !own {
            self.calls[call].ran_at = Some(program);
        }
        if self.stopped.contains(&(program, call)) || (own && self.calls[call].ended) {
            self.breaks((Rule::NothingAfterStop, "a tool starts after its stop"), text.clone());
        }
        if at == Seat::Phone {
            self.judges_right(program, call);
            let is_repeated = self.calls.iter().filter(|it| it.by == by && it.id == id).count() > 1;
            if job.tool.as_str() == Called::Careful.name()
                && !self.granted.contains(&(program, caller))
                && !is_repeated
            {
                let what = match self.calls[call].by_rpc {
                    true => "a consent is inherited by another program, by RPC",
                    false => "a consent is inherited by another program",
                };
                self.breaks((Rule::Consent, what), text);
            }
        }
        if self.calls[call].by_rpc {
            self.reached.note(Reach::RunsByRpc);
        }
        self.running.push(Running { at: program, key: job.key, call });
        let now = self.now;
        if let Body::Session(session) = &mut self.programs[program].body {
            session.progress(now, job.key, Progress::started());
        }
    }

    fn aborts(&mut self, program: usize, key: JobKey, reason: StopReason) {
        self.questions.retain(|it| !(it.at == program && it.key == key));
        let Some(at) = self.running.iter().position(|it| it.at == program && it.key == key) else { return };
        let call = self.running.remove(at).call;
        say!(self, "{} stops {}", self.programs[program].seat, self.calls[call].id);
        let it = &self.calls[call];
        let caller = &self.programs[it.program];
        let is_here = self.joins.get(&it.by).is_some_and(|join| join.program == it.program && join.has_role);
        let called_again =
            caller.called_by_rpc.is_some_and(|at| at > caller.joined && caller.joined > it.began);
        let Body::Session(session) = &self.programs[program].body else { return };
        let is_bound = session.bound().is_some_and(|bound| bound.as_str() == it.by.name());
        if it.by_rpc
            && is_here
            && called_again
            && !caller.is_over
            && is_bound
            && reason != StopReason::Deadline
        {
            let text = format!("{:?} of {}", it.id, it.by);
            self.breaks(
                (Rule::StopsWithCause, "a call is stopped although its caller came back and called"),
                text,
            );
        }
    }

    fn settles(&mut self, program: usize, key: CallKey, result: &Result<Value, CallError>) {
        let Some(call) = self.calls.iter().position(|it| it.program == program && it.key == Some(key)) else {
            return;
        };
        let may_have_run = result.as_ref().map_or_else(CallError::may_have_run, |_| true);
        let it = &mut self.calls[call];
        it.ran_nothing = !may_have_run;
        let (was, starts, id) = (std::mem::replace(&mut it.ended, true), it.starts, it.id.clone());
        say!(self, "call {id} of {} ends as {result:?}", self.programs[program].seat);
        if was {
            self.breaks((Rule::OneOutcome, "a call ends twice"), format!("{id:?}: {result:?}"));
        }
        if !may_have_run && starts > 0 {
            self.breaks(
                (Rule::MayHaveRun, "an outcome denies that a tool ran"),
                format!("{id:?}: {result:?}"),
            );
        }
        match result {
            Ok(value) if value.get("forged").is_some() => {
                self.breaks((Rule::RunsByRight, "a stranger's result is taken"), format!("{id:?}"));
            }
            Ok(_) => self.reached.note(Reach::CallOk),
            Err(CallError::Lost { owner, why: LossCause::Restarted }) if self.is_proven(program, owner) => {
                let text = format!("{id:?} of {owner}");
                self.breaks(
                    (Rule::StopsWithCause, "a call is lost although its owner was not started again"),
                    text,
                );
            }
            Err(_) => self.reached.note(Reach::CallFailed),
        }
    }

    /// Returns whether one program alone has had this identity, and could prove itself to this caller in its present join.
    fn is_proven(&self, caller: usize, owner: &Identity) -> bool {
        let mut owners = self.programs.iter().enumerate().filter(|(_, it)| it.seat.name() == owner.as_str());
        let (Some((program, it)), None) = (owners.next(), owners.next()) else { return false };
        self.configured.get(&(program, caller)).is_some_and(|at| *at < it.joined)
    }

    /// Judges what arrives at a join.
    fn arrives(&mut self, from: &Peer, to: Seat, load: &Load) {
        let join = &self.joins[&to];
        let (program, has_role) = (join.program, join.has_role);
        let observes = matches!(self.programs[program].body, Body::Stranger(Token::AgentThatObserves));
        let is_stranger = matches!(self.programs[program].body, Body::Stranger(_));
        match load {
            Load::Packet(_, bytes) => {
                let Ok(frame) = Frame::decode(bytes.clone()) else { return };
                if self.trace {
                    say!(
                        self,
                        "{to} gets {:?} {} from {from}",
                        frame.kind(),
                        frame.peek_id().unwrap_or_default()
                    );
                }
                if is_stranger
                    && let (Some(instance), Some(whose)) =
                        (frame.meta_str("bridge.instance"), Seat::of(from.identity().as_str()))
                {
                    self.reached.note(Reach::InstanceSeen);
                    self.stolen.insert((whose, to), instance.to_owned());
                }
                let sender = Seat::of(from.identity().as_str()).and_then(|seat| self.joins.get(&seat));
                let sender = sender.filter(|join| join.who.peer() == from);
                let sender_has_role = sender.is_some_and(|join| join.has_role);
                let sender = sender.map(|join| join.program);
                if sender.is_some_and(|sender| matches!(self.programs[sender].body, Body::Stranger(_))) {
                    return;
                }
                match frame.kind() {
                    Kind::CONFIGURATION => {
                        // One that had no right to call has not shown the client its instance, so the client cannot prove its own.
                        if let Some(sender) = sender.filter(|_| to != Seat::Phone || sender_has_role) {
                            self.configured.entry((program, sender)).or_insert(self.now);
                        }
                    }
                    Kind::CONTROL_STOP if frame.meta_bool("bridge.bye") => {
                        self.goodbyes.extend(sender.map(|sender| (program, sender)));
                    }
                    Kind::CONTROL_STOP => {
                        if let (Ok(Message::ControlStop(stop)), Some(by)) =
                            (frame.message(), Seat::of(from.identity().as_str()))
                            && let Some(id) = stop.target_id
                        {
                            // A stop is of a call by frames.
                            let mut calls = self.calls.iter();
                            let call = calls.position(|it| it.by == by && it.id == id && !it.by_rpc);
                            self.stopped.extend(call.map(|call| (program, call)));
                        }
                    }
                    Kind::TOOL_USE_REQUEST if to == Seat::Phone && !has_role => {
                        if let Ok(Message::ToolUseRequest(it)) = frame.message()
                            && it.execution != Ok(Execution::Server)
                        {
                            let text = format!("{:?}", it.id);
                            self.breaks((Rule::SentByRight, "a request goes to a join without rights"), text);
                        }
                    }
                    Kind::TOOL_USE_RESULT if !has_role && !observes => {
                        let Ok(Message::ToolUseResult(it)) = frame.message() else { return };
                        if it.success
                            && self.calls.iter().any(|call| call.by == to && call.id == it.id.as_str())
                            && !self
                                .calls
                                .iter()
                                .any(|call| Some(call.program) == sender && call.id == it.id.as_str())
                        {
                            let text = format!("{:?}", it.id);
                            self.judges_answer(is_stranger, false, text);
                        }
                    }
                    Kind::VIEW_UPDATE if to == Seat::Phone && !has_role => {
                        self.breaks(
                            (Rule::SentByRight, "a view goes to a join without rights"),
                            String::new(),
                        );
                    }
                    _ => {}
                }
            }
            Load::Rpc(RpcMessage::Response(response)) => self.rpc_answer_arrives(to, response),
            Load::Rpc(_) => {}
        }
    }

    fn judges_answer(&mut self, is_stranger: bool, by_rpc: bool, text: String) {
        let what = match (is_stranger, by_rpc) {
            (true, true) => "an answer by RPC goes to a stranger",
            (true, false) => "a result goes to a stranger",
            (false, true) => "an answer by RPC goes to a join that lost its role",
            (false, false) => "a result goes to a join that lost its role",
        };
        self.breaks((Rule::SentByRight, what), text);
    }

    fn rpc_answer_arrives(&mut self, to: Seat, response: &RpcResponse) {
        say!(self, "{to} gets {response:?}");
        let mut calls = self.calls.iter().enumerate();
        let Some((call, _)) = calls.rfind(|(_, it)| it.by == to && it.by_rpc && it.id == response.id) else {
            return;
        };
        let join = &self.joins[&to];
        // The client's author lets the identity `b` call by RPC, whatever its token says.
        let has_role = join.has_role || join.lost_unseen || to == Seat::B;
        let program = join.program;
        let is_stranger = matches!(self.programs[program].body, Body::Stranger(_));
        // A caller that loses its role gets the result that waited for it.
        let is_it = |it: &Call| it.id == response.id && it.program == program && it.returned_by_right;
        let waited = self.calls.iter().any(is_it);
        if response.outcome.is_ok() && !has_role && !waited {
            let text =
                format!("{:?} of program {} to program {program}", response.id, self.calls[call].program);
            return self.judges_answer(is_stranger, true, text);
        }
        let outcome = match &response.outcome {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.code.to_string(),
        };
        let it = &mut self.calls[call];
        let (starts, first) = (it.starts, it.answers.is_empty());
        it.ended = true;
        let is_other = it.answers.insert(outcome.clone()) && !first;
        let text = format!("{:?}: {:?}", it.id, it.answers);
        // The second request of an id may come when its caller has lost its rights.
        if is_other && self.calls.iter().filter(|it| it.by_rpc && it.id == response.id).count() == 1 {
            self.breaks((Rule::OneOutcome, "a call by RPC has two outcomes"), text);
        }
        if outcome == "1400" && starts > 0 {
            let text = format!("{:?} has run, and is refused with 1400", response.id);
            self.breaks((Rule::MayHaveRun, "an error by RPC denies that a tool ran"), text);
        }
    }

    /// Checks what must hold after each step.
    fn check(&mut self) {
        self.check_client();
        for seat in [Seat::A, Seat::B] {
            let Some(session) = self.session(seat) else { continue };
            if session.tools().iter().any(|offer| offer.tool.name().as_str() == "evil") {
                self.breaks((Rule::RunsByRight, "a stranger's tool is offered"), format!("at {seat}"));
            }
        }
    }

    fn check_client(&mut self) {
        let Some(client) = self.session_at(Seat::Phone) else { return };
        let since = self.programs[client].joined;
        let Body::Session(session) = &self.programs[client].body else { return };
        let mut found: Vec<(Breach, String)> = Vec::new();
        let bound = session.bound().and_then(|bound| Seat::of(bound.as_str()));
        if let Some(bound) = bound {
            let join = self
                .joins
                .get(&bound)
                .filter(|join| !join.has_role && join.announced && !self.is_unseen(join));
            if let Some(join) = join
                && !matches!(self.programs[join.program].body, Body::Stranger(_))
            {
                found.push((
                    (Rule::RightsEnd, "an assistant that lost its role stays bound"),
                    bound.to_string(),
                ));
            }
            let observes = self.joins.get(&bound).is_some_and(|join| {
                matches!(self.programs[join.program].body, Body::Stranger(Token::AgentThatObserves))
            });
            let gone = self.rightless.get(&bound).copied();
            let may_return = |gone: Instant| self.now <= gone.max(since) + GRACE + SLACK;
            if observes && !gone.is_some_and(may_return) {
                found.push(((Rule::RunsByRight, "an agent that observes is bound"), bound.to_string()));
            } else if join.is_none_or(|join| matches!(self.programs[join.program].body, Body::Stranger(_)))
                && let Some(gone) = self.rightless.get(&bound)
                && self.now > (*gone).max(since) + GRACE + SLACK
            {
                let by_stranger = self.joins.contains_key(&bound);
                let what = match by_stranger {
                    true => "a departed assistant stays bound while a stranger has its identity",
                    false => "a departed assistant stays bound",
                };
                found.push(((Rule::GraceEnds, what), bound.to_string()));
            }
        }
        for job in self.running.iter().filter(|it| it.at == client) {
            let call = &self.calls[job.call];
            let caller = &self.programs[call.program];
            let text = format!("{:?} of {}", call.id, call.by);
            let is_here = self.joins.get(&call.by).filter(|join| join.program == call.program);
            if is_here.is_some_and(|join| !join.has_role && !self.is_unseen(join))
                && !matches!(caller.body, Body::Stranger(_))
            {
                let what = match call.by_rpc {
                    true => "a call by RPC of a join that lost its role goes on",
                    false => "a call of a join that lost its role goes on",
                };
                // The author names `b` as a caller by RPC, whatever its token says.
                if !(call.by_rpc && call.by == Seat::B) {
                    found.push(((Rule::RightsEnd, what), text.clone()));
                }
            }
            if self.goodbyes.contains(&(client, call.program)) {
                found.push((
                    (Rule::GraceEnds, "a call goes on after the goodbye of its caller"),
                    text.clone(),
                ));
            }
            let called =
                self.programs.iter().filter(|it| it.seat == call.by).filter_map(|it| it.called_by_rpc).max();
            if let Some(gone) = caller.gone_since
                && self.now > gone.max(since) + GRACE + SLACK
                && !(call.by_rpc && called.is_some_and(|called| called > gone))
            {
                let what = match call.by_rpc {
                    true => "a call by RPC of a departed caller goes on",
                    false => "a call of a departed caller goes on",
                };
                found.push(((Rule::GraceEnds, what), text));
            }
        }
        for (breach, text) in found {
            self.breaks(breach, text);
        }
    }

    // --- The end ---

    /// Ends all faults, and checks what must be well again.
    pub(crate) fn finish(&mut self) {
        say!(self, "-- the faults end");
        self.refused.clear();
        self.lost.clear();
        let began = self.now;
        for seat in self.muted.clone() {
            self.mutes(seat, false);
        }
        if let Some(seat) = self.stranger() {
            self.drops(seat);
        }
        self.answers_at_once = true;
        self.deliver();
        self.check_candidates();
        for seat in Seat::ALL {
            let Some(join) = self.joins.get(&seat) else { continue };
            let it = &self.programs[join.program];
            if it.is_over || !matches!(it.body, Body::Session(_)) {
                self.drops(seat);
            } else if !join.has_role {
                self.changes_role(seat, true);
            }
        }
        self.pass(SETTLES);
        let bound = self.session(Seat::Phone).and_then(|it| it.bound()).and_then(|it| Seat::of(it.as_str()));
        let here = |seat: &Seat| self.joins.contains_key(seat);
        let stays =
            bound.filter(here).or_else(|| [Seat::A, Seat::B].into_iter().find(here)).unwrap_or(Seat::A);
        for seat in Seat::ALL {
            match seat == Seat::Phone || seat == stays {
                true if self.joins.contains_key(&seat) => {}
                true if self.away.get(&seat).is_some_and(|it| !self.programs[*it].is_over) => {
                    self.returns(seat, true)
                }
                true => self.enters(seat),
                false => self.drops(seat),
            }
        }
        self.deliver();
        self.pass(Duration::from_secs(20));
        self.check_recovered(stays, began);
    }

    /// One of two assistants has said goodbye and stays in the room: the other one is bound.
    fn check_candidates(&mut self) {
        let is_live = |seat: Seat| {
            let join = self.joins.get(&seat)?;
            let it = &self.programs[join.program];
            matches!(it.body, Body::Session(_)).then_some(join.has_role && !it.is_over)
        };
        let [a, b] = [Seat::A, Seat::B].map(is_live);
        let only = match (is_live(Seat::Phone), a, b) {
            (Some(true), Some(true), Some(false)) => Seat::A,
            (Some(true), Some(false), Some(true)) => Seat::B,
            _ => return,
        };
        let Some(phone) = self.joins.get(&Seat::Phone).map(|it| it.program) else { return };
        let has_left =
            |seat: Seat| self.joins.get(&seat).is_some_and(|it| self.goodbyes.contains(&(phone, it.program)));
        if !has_left(Seat::A) && !has_left(Seat::B) {
            return; // its role is missing, or its goodbye was lost
        }
        self.reached.note(Reach::OneOfTwoLeft);
        self.pass(Duration::from_secs(3)); // it may send its Configuration only now
        let bound = self.session(Seat::Phone).and_then(|it| it.bound()).and_then(|it| Seat::of(it.as_str()));
        if bound != Some(only) {
            self.breaks(
                (Rule::Recovers, "the only assistant that has not said goodbye is not bound"),
                format!("{bound:?}, not {only}"),
            );
        }
    }

    fn check_recovered(&mut self, stays: Seat, began: Instant) {
        let Some(phone) = self.session(Seat::Phone) else { return };
        let bound = phone.bound().cloned();
        if bound != Some(Identity::from(stays.name())) {
            self.breaks(
                (Rule::Recovers, "the assistant is not bound after the faults"),
                format!("{bound:?}, not {stays}"),
            );
        }
        let offers =
            self.session(stays).map(|it| it.tools().into_iter().any(|it| it.tool.name().as_str() == "plain"));
        if offers == Some(false) {
            self.breaks(
                (Rule::Recovers, "the client's tools are not offered after the faults"),
                format!("at {stays}"),
            );
        }
        self.makes_call(stays, Called::Plain);
        let call = self.session_at(stays).and_then(|program| self.programs[program].last_call);
        self.deliver();
        self.pass(Duration::from_secs(8));
        let is_ok = call.is_some_and(|call| self.calls[call].ended && self.calls[call].starts == 1);
        if !is_ok {
            self.breaks((Rule::Recovers, "a call after the faults fails"), format!("of {stays}"));
        }
        self.pass(Duration::from_secs(10));
        // The client forgets what a departed assistant has called. Such a call ends with its time limit.
        let is_old = |it: &&Call| !it.ended && (it.began + MEMORY < began || self.has_slept_since(it));
        let old = self.calls.iter().filter(is_old).count();
        for seat in [Seat::Phone, stays] {
            let Some(session) = self.session(seat) else { continue };
            if !session.is_drained() && (seat == Seat::Phone || session.open_calls() > old || old == 0) {
                let what = match seat {
                    Seat::Phone => "the client keeps a result that is not acknowledged",
                    _ if session.open_calls() > 0 => "a call is open whose tool does not run",
                    _ => "the assistant has something left to do",
                };
                let text = format!("{} calls, {} jobs", session.open_calls(), session.open_jobs());
                self.breaks((Rule::Drained, what), text);
            }
        }
        self.check_views(stays);
        self.check_records();
        self.check();
    }

    fn check_views(&mut self, stays: Seat) {
        let (Some(phone), Some(shows)) = (self.session_at(Seat::Phone), self.session_at(stays)) else {
            return;
        };
        let seen: Vec<_> =
            self.programs[phone].seen.iter().map(|((by, _), state)| (by.clone(), *state)).collect();
        let shown: Vec<_> =
            self.programs[shows].view.iter().map(|state| (stays.to_string(), *state)).collect();
        if seen != shown {
            let what = if seen.len() > shown.len() {
                "a view that has ended is shown"
            } else {
                "a view is not shown"
            };
            self.breaks((Rule::Views, what), format!("the client shows {seen:?}, the assistant {shown:?}"));
        }
        if !shown.is_empty() {
            self.reached.note(Reach::ViewShown);
        }
    }

    fn check_records(&mut self) {
        let Some(session) = self.session(Seat::Phone) else { return };
        let records = session.records();
        let open =
            records.iter().find(|it| it.outcome.is_none()).map(|it| format!("{:?} of {}", it.id, it.caller));
        let count = |counter| session.stats().count(counter);
        let jobs = count(Counter::Jobs);
        if let Some(text) = open.filter(|_| session.open_jobs() == 0) {
            self.breaks((Rule::Records, "a record has no outcome"), text);
        } else if records.len() < usize::try_from(jobs).unwrap_or(usize::MAX).min(64) {
            let text = format!("{} records of {jobs} runs", records.len());
            self.breaks((Rule::Records, "the records of two runs are one"), text);
        }
    }
}

/// What explorations compare.
impl World {
    /// Adds to a hash which participants are present and what they have done. It leaves the sessions out.
    pub(crate) fn outline(&self, hasher: &mut impl Hasher) {
        let age = |since: Option<Instant>| since.map(|since| self.now.duration_since(since).as_secs().min(8));
        for (seat, join) in &self.joins {
            (seat, join.has_role, join.announced, self.place(join.program)).hash(hasher);
        }
        for (number, it) in self.programs.iter().enumerate() {
            let is_here = self.joins.get(&it.seat).is_some_and(|join| join.program == number);
            let matters = is_here || self.away.get(&it.seat) == Some(&number);
            if matters || self.calls.iter().any(|call| call.program == number && call.starts > 0) {
                (it.seat, it.is_over, it.had_role, age(it.gone_since), it.view.is_some(), it.seen.len())
                    .hash(hasher);
                (it.called_by_rpc.is_some(), std::mem::discriminant(&it.body), it.last_call.is_some())
                    .hash(hasher);
            }
        }
        for (seat, since) in &self.rightless {
            (seat, age(Some(*since))).hash(hasher);
        }
        for call in self.calls.iter().rev().take(3) {
            (call.by, call.by_rpc, call.tool, call.starts, call.ended, self.place(call.program)).hash(hasher);
        }
        for it in self.running.iter().chain(&self.questions) {
            (self.programs[it.at].seat, self.calls[it.call].by, self.calls[it.call].tool).hash(hasher);
            self.place(self.calls[it.call].program).hash(hasher);
        }
        (self.running.len(), self.questions.len()).hash(hasher);
        for (client, program) in &self.granted {
            (self.place(*client), self.place(*program)).hash(hasher);
        }
        self.stolen.keys().for_each(|key| key.hash(hasher));
        for (one, other) in &self.goodbyes {
            (self.place(*one), self.place(*other)).hash(hasher);
        }
        (&self.refused, &self.muted, &self.lost).hash(hasher);
    }

    /// Where a program is among those of its seat: the present one, the one that may return, or an older one.
    fn place(&self, program: usize) -> (Seat, u8) {
        let seat = self.programs[program].seat;
        let is_here = self.joins.get(&seat).is_some_and(|join| join.program == program);
        (seat, if is_here { 2 } else { u8::from(self.away.get(&seat) == Some(&program)) })
    }
}
