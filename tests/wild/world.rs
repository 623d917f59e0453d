//! The room of a run, and what happens in it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use serde_json::json;
use toolbridge::{
    CloseReason, ConnectionState, Event, Identity, Progress, Role, ToolError, Value,
    frame::{Frame, Kind, Meta},
    session::{CallKey, Destination, JobKey, Output, Request, SendFailure, Session, TurnKey},
    transport::{
        Form, Incoming, Lane, Packet, Participant, Peer, RpcMessage, StreamPart, StreamParts, TransportEvent,
        Unreadable,
    },
};

use crate::{
    config::{self, NAMES},
    others::{self, Seen},
    random::Random,
    recorded::{Digests, Observed},
};

/// Who may be in the room. The first four run sessions.
const SEATS: [&str; 8] = ["phone", "tv", "brain", "backup", "web", "plain", "watch", "x"];
const SESSIONS: usize = 4;

/// Steps of a run.
const STEPS: u64 = 150;

/// Packets that one input may cause.
const PACKETS: usize = 300;

/// Timers and packets that one step may meet.
const MOMENTS: usize = 20_000;

/// What a run has done.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) steps: u64,
    pub(crate) broken: Option<String>,
    pub(crate) digests: Digests,
}

/// One run of a program with a session.
struct Program {
    seat: &'static str,
    session: Session,
    jobs: BTreeSet<JobKey>,
    questions: BTreeSet<JobKey>,
    /// Its calls, with the number of outcomes of each.
    calls: BTreeMap<CallKey, u32>,
    detached: BTreeSet<CallKey>,
    turns: Vec<TurnKey>,
    packets: VecDeque<u64>,
    is_closed: bool,
}

struct Join {
    who: Participant,
    program: Option<usize>,
}

struct World {
    random: Random,
    now: Instant,
    base: Instant,
    seed: u64,
    programs: Vec<Program>,
    /// The program of each seat that runs, in the room or not.
    current: BTreeMap<&'static str, usize>,
    joins: BTreeMap<&'static str, Join>,
    /// What is on its way: when, to which join.
    queue: BTreeMap<(Instant, u64), (Peer, TransportEvent)>,
    queued: u64,
    /// When the last reliable packet between two seats arrives.
    last: BTreeMap<(Peer, Peer), Instant>,
    sids: u64,
    /// Programs that make a call as soon as they have a result, so that its request carries the acknowledgement.
    follows: Vec<usize>,
    seen: Seen,
    steps: u64,
    /// How often packets are refused, changed and lost, and how often the room is left as it is, in percent.
    refused: u64,
    changed: u64,
    lost: u64,
    kept: u64,
    /// Nothing is lost, changed or refused any more.
    is_calm: bool,
    observed: Observed,
    broken: Option<String>,
    trace: bool,
}

macro_rules! say {
    ($world:expr, $($what:tt)*) => {
        if $world.trace {
            println!("{:>9.3}  {}", $world.now.duration_since($world.base).as_secs_f64(), format_args!($($what)*));
        }
    };
}

/// Runs a seed.
pub(crate) fn run(seed: u64, base: Instant, trace: bool) -> Run {
    let mut random = Random::of(seed, &[7]);
    let mut world = World {
        refused: random.pick(&[0, 1, 4]),
        changed: random.pick(&[0, 0, 1, 4]),
        lost: random.pick(&[0, 2, 15]),
        kept: random.pick(&[0, 60, 90, 97]),
        random,
        now: base,
        base,
        seed,
        programs: Vec::new(),
        current: BTreeMap::new(),
        joins: BTreeMap::new(),
        queue: BTreeMap::new(),
        queued: 0,
        last: BTreeMap::new(),
        sids: 0,
        follows: Vec::new(),
        seen: Seen::default(),
        steps: 0,
        is_calm: false,
        observed: Observed::new(base, true),
        broken: None,
        trace,
    };
    for seat in SEATS {
        if matches!(seat, "phone" | "brain") || world.random.percent(40) {
            world.enters(seat);
        }
    }
    while world.steps < STEPS && world.broken.is_none() {
        world.steps += 1;
        world.happens();
        let pause = world.random.pick(&[0, 1, 5, 5, 20, 20, 60, 100, 500, 2_500]);
        world.passes(Duration::from_millis(pause));
    }
    world.ends();
    for (at, program) in world.programs.iter().enumerate() {
        world.observed.end(at, &program.session);
    }
    Run { steps: world.steps, broken: world.broken, digests: world.observed.digests() }
}

impl World {
    fn breaks(&mut self, text: String) {
        say!(self, "BROKEN: {text}");
        self.broken.get_or_insert(text);
    }

    fn a_seat(&mut self) -> &'static str {
        self.random.pick(&SEATS)
    }

    /// A program that runs a session, in the room or not.
    fn a_program(&mut self) -> Option<usize> {
        let seat = self.random.pick(&SEATS[..SESSIONS]);
        self.current.get(seat).copied()
    }

    fn is_client(seat: &str) -> bool {
        matches!(seat, "phone" | "tv")
    }

    /// Describes who joins with this seat.
    fn described(&mut self, seat: &'static str) -> Participant {
        self.sids += 1;
        let who = Participant::new(seat, format!("PA_{}", self.sids));
        let who = match seat {
            "phone" | "tv" if self.random.percent(85) => who.role(Role::Client),
            "brain" | "backup" if self.random.percent(60) => who.agent(true),
            "brain" | "backup" if self.random.percent(80) => who.role(Role::Assistant),
            "x" if self.random.percent(30) => who.role(Role::Assistant).can_update_metadata(true),
            "web" => who.client_protocol(self.random.below(3) as u32),
            "plain" if self.random.percent(50) => who.role(Role::Client),
            "watch" => who.role(Role::Observer),
            _ => who,
        };
        let who = who.inflates(seat == "web" && self.random.percent(50));
        let who = who.allowed_to_stop(self.random.percent(60)).admitted(self.random.percent(20));
        who.can_publish_data(self.random.percent(96))
    }

    /// A new program of this seat joins; who has the seat is thrown out.
    fn enters(&mut self, seat: &'static str) {
        let who = self.described(seat);
        self.drops(seat, true);
        let program = SEATS[..SESSIONS].contains(&seat).then(|| self.starts(seat, &who));
        self.appears(seat, who, program);
    }

    fn starts(&mut self, seat: &'static str, who: &Participant) -> usize {
        let number = self.programs.len();
        // A program of one seat has the same options each time.
        let of_seat = SEATS.iter().position(|it| *it == seat).unwrap_or_default();
        let mut drawn = Random::of(self.seed, &[8, of_seat as u64]);
        let is_client = Self::is_client(seat);
        let config = config::config(&mut drawn, is_client);
        let mut key = [number as u8 + 1; 32];
        key[..8].copy_from_slice(&self.seed.to_be_bytes());
        let mut session = match is_client {
            true => Session::client(self.now, who.clone(), config, key),
            false => Session::assistant(self.now, who.clone(), config, key),
        };
        let tools = config::tools(&mut self.random, is_client);
        let left_out = session.offer_allowed(self.now, tools);
        say!(self, "program {number} of {seat} starts, without {} of its tools", left_out.len());
        self.programs.push(Program {
            seat,
            session,
            jobs: BTreeSet::new(),
            questions: BTreeSet::new(),
            calls: BTreeMap::new(),
            detached: BTreeSet::new(),
            turns: Vec::new(),
            packets: VecDeque::new(),
            is_closed: false,
        });
        self.current.insert(seat, number);
        number
    }

    /// Adds a join to the room, and announces everybody to it and it to everybody, most of the time.
    fn appears(&mut self, seat: &'static str, who: Participant, program: Option<usize>) {
        say!(self, "{seat} joins as {}", who.sid());
        for join in self.joins.values() {
            let wait = self.random.pick(&[1, 10, 10, 100, 1_500, 40_000]);
            let when = self.now + Duration::from_millis(wait);
            self.queued += 1;
            let to = join.who.peer().clone();
            self.queue.insert((when, self.queued), (to, TransportEvent::Joined(who.clone())));
        }
        let present: Vec<_> = self.joins.values().map(|join| join.who.clone()).collect();
        self.joins.insert(seat, Join { who, program });
        if let Some(program) = program {
            for other in present {
                self.drive(program, |session, now| session.handle_event(now, TransportEvent::Joined(other)));
            }
        }
    }

    /// Somebody loses the connection, or is thrown out for good.
    fn drops(&mut self, seat: &'static str, is_replaced: bool) {
        if let Some(program) = self.current.get(seat).copied().filter(|_| is_replaced) {
            let closed = TransportEvent::Closed(CloseReason::DuplicateIdentity);
            self.drive(program, |session, now| session.handle_event(now, closed));
            self.current.remove(seat);
        }
        let Some(join) = self.joins.remove(seat) else { return };
        say!(self, "{seat} leaves");
        let wait = self.random.pick(&[1, 10, 300]);
        let others: Vec<_> = self.joins.values().map(|join| join.who.peer().clone()).collect();
        for to in others {
            self.arrives_after(wait, to, TransportEvent::Left(join.who.peer().clone()));
        }
    }

    fn arrives_after(&mut self, millis: u64, to: Peer, event: TransportEvent) {
        self.queued += 1;
        self.queue.insert((self.now + Duration::from_millis(millis), self.queued), (to, event));
    }

    /// Passes an input to a session, and handles its outputs.
    fn drive<T>(&mut self, program: usize, act: impl FnOnce(&mut Session, Instant) -> T) -> T {
        let now = self.now;
        let result = act(&mut self.programs[program].session, now);
        let mut packets = 0;
        while let Some(output) = self.programs[program].session.poll_output() {
            self.observed.output(program, now, &output, |packet| Frame::decode(packet.to_vec()).ok());
            if self.programs[program].is_closed {
                self.breaks(format!("program {program} says {output:?} after its end"));
                break;
            }
            packets += usize::from(matches!(output, Output::Transmit(_)));
            self.handles(program, output);
        }
        if packets > PACKETS {
            self.breaks(format!("program {program} sends {packets} packets after one input"));
        }
        self.observed.state(program, now, &self.programs[program].session);
        result
    }

    fn handles(&mut self, program: usize, output: Output) {
        let now = self.now;
        let it = &mut self.programs[program];
        match output {
            Output::Transmit(packet) => self.transmits(program, &packet),
            Output::Execute(job) => {
                say!(self, "program {program} runs {} of {}", job.tool, job.call);
                self.seen.ids.push(job.call.to_string());
                if !it.jobs.insert(job.key) {
                    self.breaks(format!("job {:?} starts twice", job.key));
                }
            }
            Output::Ask(question) => {
                if !it.questions.insert(question.key) {
                    self.breaks(format!("question {:?} is asked twice", question.key));
                }
            }
            Output::Select(selection) => it.session.select(now, selection.key, selection.evaluate()),
            Output::Abort { key, .. } => {
                if !it.jobs.remove(&key) && !it.questions.remove(&key) {
                    self.breaks(format!("{key:?} is aborted, which does not run"));
                }
            }
            Output::Settled { key, result } => {
                let outcomes = it.calls.entry(key).or_default();
                *outcomes += 1;
                if *outcomes > 1 || it.detached.contains(&key) {
                    self.breaks(format!("call {key:?} of program {program} has another outcome"));
                }
                if result.is_ok() {
                    self.follows.push(program);
                }
                say!(self, "program {program}: {key:?} ends: {:?}", result.err().map(|it| it.to_string()));
            }
            Output::Event(Event::Closed(why)) => {
                say!(self, "program {program} is closed: {why:?}");
                self.programs[program].is_closed = true;
            }
            Output::Event(event) => say!(self, "     program {program}: {event:?}"),
        }
    }

    fn transmits(&mut self, program: usize, packet: &Packet) {
        let now = self.now;
        let it = &mut self.programs[program];
        it.packets.push_back(packet.id);
        it.packets.drain(..it.packets.len().saturating_sub(8));
        if !packet.is_addressed() {
            return self.breaks(format!("a packet without receivers: {packet:?}"));
        }
        let join = self.joins.get(it.seat).filter(|join| join.program == Some(program));
        let Some(from) = join.map(|join| join.who.peer().clone()) else {
            let why = self.random.pick(&[0, 1]);
            let why = if why == 0 { SendFailure::Closed } else { SendFailure::Interrupted };
            return self.programs[program].session.handle_send_failed(now, packet.id, why);
        };
        if !self.is_calm && self.random.percent(self.refused) {
            let why = match self.random.below(8) {
                0 => SendFailure::TooLarge { size: packet.size(), limit: 100 },
                1 => SendFailure::NotAllowed,
                2 => SendFailure::Interrupted,
                3 => SendFailure::Other("odd".to_owned()),
                4 => SendFailure::Closed,
                _ => SendFailure::QueueFull,
            };
            say!(self, "program {program}: a packet is not sent: {why:?}");
            return self.programs[program].session.handle_send_failed(now, packet.id, why);
        }
        if let Ok(frame) = Frame::decode(packet.payload.clone()) {
            self.seen.frame(&frame);
            say!(
                self,
                "program {program} sends {:?} {} {:?} to {:?}",
                packet.lane,
                frame.kind(),
                frame.stanza_id(),
                packet.to
            );
        }
        if let Form::Rpc(RpcMessage::Request(request)) = &packet.form {
            self.seen.ids.push(request.id.clone());
        }
        let max_packet = 1_500;
        let events: Vec<TransportEvent> = match &packet.form {
            Form::Rpc(message) => {
                vec![TransportEvent::Rpc { from: Some(from.clone()), message: message.clone() }]
            }
            _ if packet.stream.is_some() || packet.is_streamed(max_packet) => StreamParts::of(packet)
                .map(|part| TransportEvent::Stream { from: from.clone(), part })
                .collect(),
            _ => vec![TransportEvent::packet(from.clone(), packet.lane, packet.payload.clone())],
        };
        let to: Vec<Peer> = match packet.is_broadcast() {
            true => self.joins.values().map(|it| it.who.peer().clone()).filter(|it| *it != from).collect(),
            false => packet
                .to
                .iter()
                .filter_map(|to| Some(self.joins.get(to.as_str())?.who.peer().clone()))
                .collect(),
        };
        for to in to {
            for event in events.clone() {
                self.travels(&from, to.clone(), event, packet.lane);
            }
        }
    }

    /// Something is on its way: lossy packets may be lost, reordered and doubled, others may be changed and delayed.
    fn travels(&mut self, from: &Peer, to: Peer, mut event: TransportEvent, lane: Lane) {
        let mut wait = self.random.between(2, 30);
        if self.is_calm {
            self.random.next();
        } else if lane == Lane::Lossy {
            if self.random.percent(self.lost) {
                return;
            }
            if self.random.percent(10) {
                let again = self.random.below(200);
                self.arrives_after(again, to.clone(), event.clone());
            }
            wait += if self.random.percent(15) { self.random.below(150) } else { 0 };
        } else if self.random.percent(3) {
            wait += self.random.pick(&[200, 500, 1_500, 1_500, 12_000, 70_000]);
        }
        if !self.is_calm
            && self.random.percent(self.changed)
            && let TransportEvent::Packet(packet) = &event
            && let Some(payload) = others::changed(&mut self.random, &packet.payload)
        {
            let sender = match self.random.below(6) {
                0 => None,
                1 => Some(Peer::new("x", "PA_0")),
                _ => Some(from.clone()),
            };
            say!(self, "the next packet to {} is changed", to.identity());
            event = TransportEvent::packet(sender, lane, payload);
        }
        let mut when = self.now + Duration::from_millis(wait);
        if lane == Lane::Reliable {
            let last = self.last.entry((from.clone(), to.clone())).or_insert(when);
            when = when.max(*last);
            *last = when;
        }
        self.queued += 1;
        self.queue.insert((when, self.queued), (to, event));
    }

    /// Lets time pass: packets arrive, and timers fire.
    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..MOMENTS {
            if self.broken.is_some() {
                return;
            }
            let timers = self.current.values().filter_map(|program| {
                Some((self.programs[*program].session.poll_timeout()?.max(self.now), *program))
            });
            let timer = timers.min();
            let arrival = self.queue.keys().next().copied();
            match (timer, arrival) {
                (timer, Some((at, number))) if at <= end && timer.is_none_or(|(due, _)| at <= due) => {
                    self.now = at.max(self.now);
                    let Some((to, event)) = self.queue.remove(&(at, number)) else { continue };
                    self.arrives(&to, event);
                    for program in std::mem::take(&mut self.follows) {
                        if !self.is_calm && self.random.percent(30) {
                            self.calls_by(program);
                        }
                    }
                }
                (Some((due, program)), _) if due <= end => {
                    self.now = due;
                    self.drive(program, Session::handle_timeout);
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        self.breaks("a step does not end".to_owned());
    }

    fn arrives(&mut self, to: &Peer, event: TransportEvent) {
        let join = self.joins.get(to.identity().as_str()).filter(|join| join.who.peer() == to);
        if let Some(program) = join.and_then(|join| join.program) {
            return self.drive(program, |session, now| session.handle_event(now, event));
        }
        // The app sees what it is asked.
        match event {
            TransportEvent::Rpc { message: RpcMessage::Request(request), .. } => {
                self.seen.ids.push(request.id)
            }
            TransportEvent::Stream { part: StreamPart::Header(header), .. } => {
                self.seen.ids.extend(header.attributes.get("lk.rpc_request_id").cloned());
            }
            _ => {}
        }
    }
}

/// What may happen.
impl World {
    fn happens(&mut self) {
        let what = match self.random.below(100) {
            what if what < 21 && self.random.percent(self.kept) => 21,
            what => what,
        };
        match what {
            0..5 => {
                let seat = self.a_seat();
                if !self.joins.contains_key(seat) || self.random.percent(15) {
                    self.enters(seat);
                }
            }
            5..8 => {
                let seat = self.a_seat();
                let for_good = self.random.percent(40);
                self.drops(seat, for_good);
            }
            8..11 => self.returns(),
            11..14 => self.changes_rights(),
            14..17 => self.connection_changes(),
            17..20 => self.offers(),
            20 => self.ends_session(),
            21..45 => self.calls(),
            45..48 => self.ends_calls(),
            48..54 => self.turns(),
            54..68 => self.answers(),
            68..74 => self.decides(),
            74..79 => self.shows(),
            79..83 => self.asks(),
            83..93 => self.others_send(),
            93..96 => self.sends_again(),
            96..98 => self.sleeps(),
            _ => self.sends_raw(),
        }
    }

    /// A program that has lost its connection rejoins, or one that has not noticed.
    fn returns(&mut self) {
        let Some(program) = self.a_program() else { return };
        let seat = self.programs[program].seat;
        let who = self.described(seat);
        self.drops(seat, false);
        let present: Vec<_> = self.joins.values().map(|join| join.who.clone()).collect();
        self.appears(seat, who.clone(), None);
        self.joins.insert(seat, Join { who: who.clone(), program: Some(program) });
        self.drive(program, |session, now| session.handle_rejoined(now, who, present));
    }

    /// A participant of the room gets other rights, or other attributes.
    fn changes_rights(&mut self) {
        let seat = self.a_seat();
        let Some(join) = self.joins.get_mut(seat) else { return };
        let who = join.who.clone();
        let who = match self.random.below(6) {
            0 => who.attributes([("a", "b")]).can_update_metadata(true),
            1 => who.role(Role::Client),
            2 => who.role(Role::Assistant),
            3 => who.role(Role::Observer),
            4 => who.can_publish_data(self.random.percent(60)),
            _ => who.allowed_to_stop(self.random.percent(60)),
        };
        say!(self, "{seat} has other rights: {who:?}");
        join.who = who.clone();
        let program = join.program;
        let others: Vec<_> =
            self.joins.iter().filter(|(it, _)| **it != seat).map(|(_, it)| it.who.peer().clone()).collect();
        for to in others {
            self.arrives_after(5, to, TransportEvent::Joined(who.clone()));
        }
        if let Some(program) = program {
            self.drive(program, |session, now| session.handle_event(now, TransportEvent::Joined(who)));
        }
    }

    fn connection_changes(&mut self) {
        let Some(program) = self.a_program() else { return };
        let state = match self.random.percent(50) {
            true => ConnectionState::Connected,
            false => ConnectionState::Reconnecting,
        };
        let bytes = self.random.pick(&[0, 0, 700, 100_000]);
        let is_state = self.random.percent(60);
        let packet = self.programs[program].packets.iter().next().copied();
        let is_failure = self.random.percent(20);
        self.drive(program, |session, now| {
            if is_state {
                session.handle_event(now, TransportEvent::ConnectionState(state));
            } else if let Some(packet) = packet.filter(|_| is_failure) {
                session.handle_send_failed(now, packet, SendFailure::Interrupted);
            } else {
                session.handle_backlog(now, bytes);
            }
        });
    }

    fn offers(&mut self) {
        let Some(program) = self.a_program() else { return };
        let tools = config::tools(&mut self.random, Self::is_client(self.programs[program].seat));
        self.drive(program, |session, now| drop(session.offer(now, tools)));
    }

    fn ends_session(&mut self) {
        let Some(program) = self.a_program() else { return };
        let drains = self.random.percent(60);
        self.drive(program, |session, now| if drains { session.drain(now) } else { session.close(now) });
    }

    fn request(&mut self, program: usize) -> Request {
        let pad = "p".repeat(self.random.pick(&[0, 0, 0, 0, 300, 3_000, 12_000]));
        let pad = if self.random.percent(10) { pad.replace('p', "\u{3c0}q") } else { pad };
        let arguments = json!({"n": self.random.below(3), "pad": pad});
        let names = if self.random.percent(90) { &NAMES[..8] } else { &NAMES };
        let mut request = Request::new(self.random.pick(names), Value::encode(&arguments).unwrap());
        if self.random.percent(50) {
            request = request.to(self.random.pick(&["phone", "phone", "tv", "web", "plain", "brain", "x"]));
        }
        if self.random.percent(60) {
            let millis = self.random.pick(&[0, 300, 3_000, 15_000, 900_000]);
            request = request.timeout(Duration::from_millis(millis));
        }
        if self.random.percent(20) {
            request = request.owner_wait(Duration::from_millis(self.random.pick(&[0, 1_000])));
        }
        if self.random.percent(10) {
            request = request.meta("app.key", Value::encode(&1).unwrap());
        }
        let turn = self.programs[program].turns.last().copied();
        match turn.filter(|_| self.random.percent(60)) {
            Some(turn) => request.turn(turn),
            None => request,
        }
    }

    fn calls(&mut self) {
        let seat = self.random.pick(&["brain", "brain", "brain", "backup", "phone"]);
        if let Some(program) = self.current.get(seat).copied() {
            self.calls_by(program);
        }
    }

    fn calls_by(&mut self, program: usize) {
        let request = self.request(program);
        say!(self, "program {program} calls {}", request.tool);
        let is_report = self.random.percent(8);
        let result = self.drive(program, |session, now| match is_report {
            true => session.report(now, request).map(Err).map_err(|it| it.to_string()),
            false => session.call(now, request).map(Ok).map_err(|it| it.to_string()),
        });
        let it = &mut self.programs[program];
        match result {
            Ok(Ok(key)) => drop(it.calls.entry(key).or_default()),
            Ok(Err((key, _))) => drop(it.jobs.insert(key)),
            Err(text) => {
                say!(self, "     refused: {text}");
                self.observed.note(&text);
            }
        }
    }

    fn ends_calls(&mut self) {
        let Some(program) = self.a_program() else { return };
        let it = &self.programs[program];
        let open: Vec<_> =
            it.calls.iter().filter(|(_, outcomes)| **outcomes == 0).map(|(key, _)| *key).collect();
        let Some(key) = open.get(self.random.below(open.len().max(1) as u64) as usize).copied() else {
            return;
        };
        if self.random.percent(75) {
            return self.drive(program, |session, now| session.cancel(now, key));
        }
        self.programs[program].detached.insert(key);
        self.drive(program, |session, now| session.detach(now, key));
    }

    fn turns(&mut self) {
        let seat = self.random.pick(&["brain", "brain", "backup", "phone"]);
        let Some(program) = self.current.get(seat).copied() else { return };
        let turn = self.programs[program].turns.last().copied();
        match (turn, self.random.below(4)) {
            (Some(turn), 0 | 1) => self.drive(program, |session, now| session.barge_in(now, turn)),
            (Some(turn), 2) => self.drive(program, |session, _| session.end_turn(turn)),
            _ => {
                let turn = self.drive(program, |session, _| session.turn());
                self.programs[program].turns.push(turn);
                let late = self.drive(program, |session, _| session.late_results());
                self.observed.note(&format!("{late:?}"));
            }
        }
    }

    /// A tool reports progress, or returns.
    fn answers(&mut self) {
        let running: Vec<_> = self
            .programs
            .iter()
            .enumerate()
            .flat_map(|(at, program)| program.jobs.iter().map(move |key| (at, *key)))
            .collect();
        let at = self.random.below(running.len().max(1) as u64) as usize;
        let Some((program, key)) = running.get(at).copied() else { return };
        if self.random.percent(35) {
            let mut progress = Progress::started();
            if self.random.percent(60) {
                progress =
                    Progress::of(self.random.below(9) as f64, 10.0).message("half way \u{e9}\u{e9}\u{e9}");
            }
            if self.random.percent(20) {
                progress = progress.content(Value::encode(&json!({"n": 1})).unwrap());
            }
            return self.drive(program, |session, now| session.progress(now, key, progress));
        }
        self.programs[program].jobs.remove(&key);
        let outcome = match self.random.below(10) {
            0 => Err(ToolError::new(
                self.random.pick(&["busy", "lost", "odd", "unknown_tool", "timeout"]),
                "no",
            )),
            1 => Err(ToolError::new("odd", "x".repeat(2_000))
                .with_partial(Value::encode(&json!({"p": 1})).unwrap())),
            _ => {
                let size = self.random.pick(&[0, 0, 0, 900, 4_000, 30_000]);
                Ok(Value::encode(&json!({"of": key.number(), "pad": "r".repeat(size)})).unwrap())
            }
        };
        self.drive(program, |session, now| session.settle(now, key, outcome));
    }

    /// A person answers a question.
    fn decides(&mut self) {
        let asked: Vec<_> = self
            .programs
            .iter()
            .enumerate()
            .flat_map(|(at, program)| program.questions.iter().map(move |key| (at, *key)))
            .collect();
        let Some((program, key)) = asked.first().copied() else { return self.answers() };
        self.programs[program].questions.remove(&key);
        let is_allowed = self.random.percent(75);
        self.drive(program, |session, now| session.consent(now, key, is_allowed));
    }

    fn shows(&mut self) {
        let seat = self.random.pick(&["brain", "brain", "backup", "phone"]);
        let Some(program) = self.current.get(seat).copied() else { return };
        let name = self.random.pick(&["v", "w", "v", "", "v\u{e9}"]);
        let size = self.random.pick(&[0, 10, 3_000, 70_000]);
        let content = match self.random.percent(25) {
            true => Value::nil(),
            false => Value::encode(&json!({"n": self.random.below(9), "pad": "v".repeat(size)})).unwrap(),
        };
        let text = self.random.percent(50).then(|| "text".to_owned());
        let shown = self.drive(program, |session, now| session.show_view(now, name, content, text));
        self.observed.note(&format!("{shown:?}"));
    }

    /// An application asks about others, or asks its assistant to stop.
    fn asks(&mut self) {
        let Some(program) = self.a_program() else { return };
        let id = Identity::from(self.random.pick(&["phone", "tv", "web", "plain", "x"]));
        let tool = self.random.pick(&NAMES);
        let call = self.seen.ids.last().and_then(|id| id.parse().ok());
        let call = call.filter(|_| self.random.percent(60));
        let what = self.random.below(6);
        let said = self.drive(program, |session, now| {
            match what {
                0 => session.expect_client(now, &id),
                1 => session.stop_expecting(&id),
                2 => session.probe_client(now, &id),
                3 => {}
                _ => return format!("{:?}", session.ask_to_stop(now, call.as_ref())),
            }
            let record = call.as_ref().and_then(|call| session.record(call)).map(|it| it.state());
            format!("{:?} {} {record:?}", session.readiness(&id), session.why_not_offered(tool))
        });
        self.observed.note(&said);
    }

    /// A participant without a session sends something.
    fn others_send(&mut self) {
        let seat = self.random.pick(&["web", "web", "plain", "x"]);
        let join = self.joins.get(seat).map(|join| join.who.peer().clone());
        let known = [Peer::new("x", "PA_0"), Peer::new("phone", "PA_1"), Peer::new("brain", "PA_2")];
        let from = match join {
            Some(from) if self.random.percent(85) => from,
            _ => known[self.random.below(3) as usize].clone(),
        };
        let by_rpc = self.random.percent(if seat == "web" { 85 } else { 25 });
        let events = match by_rpc {
            true => others::rpc(&mut self.random, &self.seen, &from),
            false => vec![others::frame(&mut self.random, &self.seen, &from, seat == "plain")],
        };
        let to = self.random.pick(&SEATS[..SESSIONS]);
        let Some(to) = self.joins.get(to).map(|join| join.who.peer().clone()) else { return };
        say!(self, "{from:?} sends {events:?} to {}", to.identity());
        let times = if self.random.percent(15) { 2 } else { 1 };
        for event in events.iter().cycle().take(events.len() * times) {
            self.travels(&from, to.clone(), event.clone(), Lane::Reliable);
        }
        if self.random.percent(10) {
            let why = self.random.pick(&[
                Unreadable::Encrypted,
                Unreadable::NotEncrypted,
                Unreadable::Undecryptable,
            ]);
            self.arrives_after(1, to, TransportEvent::Unreadable { from: Some(from), why });
        }
    }

    /// What is on its way arrives twice, from its sender or from another one, or never.
    fn sends_again(&mut self) {
        let all: Vec<_> = self.queue.keys().copied().collect();
        let Some(key) = all.get(self.random.below(all.len().max(1) as u64) as usize).copied() else { return };
        let Some((to, event)) = self.queue.get(&key).cloned() else { return };
        let wait = self.random.pick(&[0, 40, 400, 4_000]);
        match event {
            TransportEvent::Packet(packet) if self.random.percent(40) => {
                let from = self.random.pick(&["x", "phone", "brain", ""]);
                let sid = self.joins.get(from).map_or_else(|| "PA_0".into(), |join| join.who.sid().clone());
                let topic = packet.topic.clone();
                let from = Some(Peer::new(from, sid)).filter(|it| !it.identity().as_str().is_empty());
                let packet = Incoming::new(from, packet.lane, topic, packet.payload);
                self.arrives_after(wait, to, TransportEvent::Packet(packet));
            }
            TransportEvent::Packet(packet) if self.random.percent(30) && packet.lane == Lane::Reliable => {
                self.queue.remove(&key); // no server does that, and nothing may depend on it
            }
            TransportEvent::Stream { from, part: StreamPart::Trailer { id, .. } }
                if self.random.percent(30) =>
            {
                let part = StreamPart::Trailer { id, reason: "gone".to_owned() };
                self.queue.insert(key, (to, TransportEvent::Stream { from, part }));
            }
            TransportEvent::Stream { from, part: StreamPart::Chunk { id, index, bytes } }
                if self.random.percent(70) =>
            {
                let bytes = bytes.iter().map(|byte| byte ^ 1).collect();
                let part = StreamPart::Chunk { id, index, bytes };
                self.queue.insert(key, (to, TransportEvent::Stream { from, part }));
            }
            TransportEvent::Stream { part, .. } if self.random.percent(40) => {
                let from = Peer::new(self.random.pick(&["x", "phone", "brain"]), "PA_0");
                self.arrives_after(wait, to, TransportEvent::Stream { from, part });
            }
            event => self.arrives_after(wait, to, event),
        }
    }

    /// All processes are suspended: several inputs come before a timer.
    fn sleeps(&mut self) {
        let seconds = self.random.pick(&[3, 20, 200]);
        say!(self, "all sleep for {seconds} s");
        self.now += Duration::from_secs(seconds);
    }

    fn sends_raw(&mut self) {
        let Some(program) = self.a_program() else { return };
        let kind = self.random.pick(&[Kind::new(2_000), Kind::new(2_000), Kind::TOOL_USE_REQUEST]);
        let to = match self.random.below(3) {
            0 => Destination::Room,
            1 => Destination::Peers(vec!["phone".into(), "brain".into()]),
            _ => Destination::Peers(Vec::new()),
        };
        let body =
            Value::encode(&json!({"pad": "s".repeat(self.random.pick(&[0, 900, 5_000, 20_000]))})).unwrap();
        let sent = self.drive(program, |session, now| session.send(now, to, kind, Meta::new(), body));
        self.observed.note(&format!("{sent:?}"));
    }

    /// The room calms down, and all time limits pass: each call must have had its outcome.
    fn ends(&mut self) {
        say!(self, "-- the end");
        self.is_calm = true;
        self.passes(Duration::from_secs(20));
        self.passes(Duration::from_secs(130));
        for at in 0..self.programs.len() {
            let it = &self.programs[at];
            if !self.current.values().any(|program| *program == at) {
                continue;
            }
            let open: Vec<_> = it
                .calls
                .iter()
                .filter(|(key, outcomes)| **outcomes == 0 && !it.detached.contains(key))
                .map(|(key, _)| *key)
                .collect();
            if !open.is_empty() {
                self.breaks(format!("program {at} has {open:?} open after all time limits"));
            }
            self.drive(at, |session, now| session.close(now));
        }
    }
}
