//! A room on virtual time: sessions and played participants, connected by a network that delays.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::Read as _,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ed25519_compact::x25519::{PublicKey, SecretKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use toolbridge::{
    CallError, CallId, Config, ConnectionState, Event, Identity, Outcome, Progress, Role, Tool, Value,
    frame::{ErrorMessage, Frame, Kind, Message, Meta, ToolUseRequest},
    session::{CallKey, Job, JobKey, Output, Question, Request, Selection, SendFailure, Session},
    tools::{Execution, StopReason},
    transport::{
        Compression, Lane, Packet, Participant, Peer, STREAM_CHUNK, StreamPart, StreamParts, TextStream,
        TransportEvent,
    },
};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The room and its participants.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) began: Instant,
    /// The network delay of a packet.
    pub(crate) delay: Duration,
    /// How long the room takes to announce joins and leaves.
    pub(crate) announce: Duration,
    /// The maximum random extra delay of a packet or an announcement. Each receiver gets the frames of one sender,
    /// and of the room, in order.
    pub(crate) jitter: Duration,
    pub(crate) random: Random,
    /// Whether the starts of jobs are reported.
    pub(crate) begins: bool,
    /// Whether selections are answered at once. Otherwise they are kept.
    pub(crate) answers_selections: bool,
    /// The selections that were not answered, with the participant that asked.
    pub(crate) selections: Vec<(String, Selection)>,
    /// The failure of packets to a participant that is not in the room.
    pub(crate) unsent: SendFailure,
    /// The participants whose tokens do not let them publish data. Their packets fail.
    pub(crate) muted: BTreeSet<String>,
    last: BTreeMap<(String, String), Instant>,
    /// The behavior of the lossy lane.
    pub(crate) lossy: Lossy,
    /// The id of the packet that was sent last.
    pub(crate) packet: u64,
    /// Every job that any session has started.
    pub(crate) executed: Vec<(String, CallId)>,
    queue: BTreeMap<(Instant, u64), Delivery>,
    order: u64,
    pub(crate) ends: BTreeMap<String, End>,
    sids: u32,
    /// Decides the fate of a packet, if the network does more than delay.
    pub(crate) fate: Option<Judge>,
    /// Changes the parts of streams.
    pub(crate) change_part: Option<ChangePart>,
    /// The inputs and outputs of each session, if they are captured.
    pub(crate) notes: Option<Vec<(Instant, String, Noted)>>,
}

/// An input or output of a session.
#[allow(dead_code, reason = "read where there are recordings")]
pub(crate) enum Noted {
    Here(Participant),
    Joined(Participant),
    Left(Peer),
    Heard {
        from: Peer,
        lane: Lane,
        bytes: Vec<u8>,
    },
    HeardPart {
        from: Peer,
        part: StreamPart,
    },
    Sent(Packet),
    /// The packet with this id.
    Unsent(u64),
}

/// The key of a process that a test plays, which proves to sessions that it is the same one over its joins (`wire.md`, section 6).
pub(crate) struct Key(SecretKey);

impl Key {
    pub(crate) fn new(number: u8) -> Self {
        Self(SecretKey::new([number; 32]))
    }

    /// The key of a process with this name.
    pub(crate) fn of(name: &str) -> Self {
        // X25519 ignores three bits of the first byte, by which the names `I` and `J` differ.
        Self(SecretKey::new(seed(&format!("-{name}"), 1)))
    }

    pub(crate) fn public(&self) -> String {
        hex(&*self.0.recover_public_key().unwrap())
    }

    /// The `meta` of a Configuration to a session, from this join. It has the proof if the session has sent its own.
    pub(crate) fn shows(&self, world: &World, to: &str, from: &Peer, heard: bool) -> Meta {
        let sent = world.sent(to, Kind::CONFIGURATION);
        self.shows_to(sent.first().map(|(_, frame)| frame), from, heard)
    }

    /// The `meta` of a Configuration to the sender of this one. It has the proof if there is one.
    pub(crate) fn shows_to(&self, configuration: Option<&Frame>, from: &Peer, heard: bool) -> Meta {
        let meta = Meta::new().with_text("bridge.instance", &self.public()).with_bool("bridge.heard", heard);
        let Some(configuration) = configuration else { return meta };
        let theirs = configuration.meta_str("bridge.instance").unwrap();
        let theirs: Vec<_> =
            (0..32).map(|at| u8::from_str_radix(&theirs[2 * at..2 * at + 2], 16).unwrap()).collect();
        let shared = PublicKey::from_slice(&theirs).unwrap().dh(&self.0).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&*shared).unwrap();
        for part in [from.identity().as_str(), from.sid().as_str()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        meta.with_text("bridge.proof", &hex(&mac.finalize().into_bytes()[..16]))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decides a packet's fate from its receiver, its sender and its frame.
pub(crate) type Judge = Box<dyn FnMut(&str, &Identity, &Frame) -> Fate>;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    /// Delivered this much later, and overtaken by others.
    IsOvertaken(Duration),
}

/// What the network does with lossy packets, in permille.
#[derive(Default)]
pub(crate) struct Lossy {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    /// Packets that take up to twice as long as others, and so are overtaken by them.
    pub(crate) passed: u64,
    /// Decides whether a packet is lost, by its sender.
    pub(crate) lose: Option<Lose>,
}

/// Changes a part of a stream on its way, by its sender.
pub(crate) type ChangePart = Box<dyn FnMut(&str, &mut StreamPart)>;

/// Decides whether a packet is lost, by its sender and its lane.
type Lose = Box<dyn FnMut(&str, Lane, &Frame) -> bool>;

/// How jobs end; one without an outcome waits for the test.
type Handler = Box<dyn FnMut(&Job) -> Option<Outcome>>;

/// One participant.
pub(crate) struct End {
    pub(crate) who: Participant,
    pub(crate) here: bool,
    /// `None` for a participant that the test plays itself.
    pub(crate) session: Option<Session>,
    pub(crate) settled: Vec<(CallKey, Result<Value, CallError>)>,
    pub(crate) jobs: Vec<Job>,
    /// What its person was asked and has not answered.
    pub(crate) questions: VecDeque<Question>,
    pub(crate) aborted: Vec<JobKey>,
    /// Why they were aborted.
    pub(crate) reasons: Vec<StopReason>,
    pub(crate) events: Vec<Event>,
    /// The frames that it received if the test plays it, otherwise those that it sent.
    pub(crate) inbox: Vec<(Identity, Frame)>,
    /// The parts of streams that it received, if the test plays it.
    pub(crate) parts: Vec<(Identity, StreamPart)>,
    pub(crate) sent: Vec<(Vec<Identity>, Frame)>,
    /// When it sent which frame, and on which lane.
    pub(crate) log: Vec<(Instant, Lane, Frame)>,
    /// How jobs end, if they end by themselves.
    pub(crate) handler: Option<Handler>,
    pub(crate) stanza: i32,
}

enum Delivery {
    Packet { to: String, from: Peer, lane: Lane, bytes: Vec<u8> },
    Part { to: String, from: Peer, part: StreamPart },
    Joined { to: String, who: Participant },
    Left { to: String, who: Peer },
}

impl World {
    pub(crate) fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
        let now = Instant::now();
        Self {
            now,
            began: now,
            delay: 20 * MS,
            announce: 50 * MS,
            jitter: Duration::ZERO,
            random: Random(1),
            begins: true,
            answers_selections: true,
            selections: Vec::new(),
            lossy: Lossy::default(),
            packet: 0,
            unsent: SendFailure::Closed,
            muted: BTreeSet::new(),
            last: BTreeMap::new(),
            executed: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
            ends: BTreeMap::new(),
            sids: 0,
            fate: None,
            change_part: None,
            notes: None,
        }
    }

    /// An assistant and a phone that offers `tools`, after their handshake.
    pub(crate) fn pair(tools: &[&str]) -> Self {
        let mut world = Self::new();
        world.assistant("a", Config::default());
        world.client("phone", Config::default(), tools);
        world.run(200 * MS);
        world
    }

    fn note(&mut self, name: &str, what: impl FnOnce() -> Noted) {
        if let Some(notes) = &mut self.notes {
            notes.push((self.now, name.to_owned(), what()));
        }
    }

    pub(crate) fn sid(&mut self) -> String {
        self.sids += 1;
        format!("PA_{}", self.sids)
    }

    pub(crate) fn assistant(&mut self, name: &str, config: Config) {
        let who = Participant::new(name, self.sid()).agent(true);
        let session = Session::assistant(self.now, who.clone(), config.room("room"), seed(name, self.sids));
        self.enter(&who, Some(session));
    }

    pub(crate) fn client(&mut self, name: &str, config: Config, tools: &[&str]) {
        let who = Participant::new(name, self.sid()).role(Role::Client);
        let mut session = Session::client(self.now, who.clone(), config.room("room"), seed(name, self.sids));
        session.offer(self.now, tools.iter().map(|name| tool(name)).collect()).unwrap();
        self.enter(&who, Some(session));
    }

    /// Adds a participant that the test plays.
    pub(crate) fn play(&mut self, who: &Participant) {
        self.enter(who, None);
    }

    /// Adds a played participant without a role.
    pub(crate) fn stranger(&mut self, name: &str) {
        let sid = self.sid();
        self.enter(&Participant::new(name, sid), None);
    }

    pub(crate) fn enter(&mut self, who: &Participant, session: Option<Session>) {
        let name = who.identity().to_string();
        let old = self.ends.remove(&name);
        let mut end = End {
            who: who.clone(),
            here: true,
            session,
            settled: Vec::new(),
            jobs: Vec::new(),
            questions: VecDeque::new(),
            aborted: Vec::new(),
            reasons: Vec::new(),
            events: Vec::new(),
            inbox: Vec::new(),
            parts: Vec::new(),
            sent: Vec::new(),
            log: Vec::new(),
            handler: None,
            stanza: 0,
        };
        if let Some(old) = old {
            (end.settled, end.aborted, end.stanza) = (old.settled, old.aborted, old.stanza);
        }
        self.ends.insert(name.clone(), end);
        self.note(&name, || Noted::Here(who.clone()));
        self.announce(&name);
        let present: Vec<_> = self.others(&name).map(|end| end.who.clone()).collect();
        for other in present {
            self.note(&name, || Noted::Joined(other.clone()));
            self.with(&name, |session, now| session.handle_event(now, TransportEvent::Joined(other.clone())));
        }
        self.flush(&name);
    }

    /// Lets the participant stop calls, as a rule of each assistant decides.
    pub(crate) fn allow_stop(&mut self, name: &str) {
        let end = self.ends.get_mut(name).unwrap();
        end.who = end.who.clone().allowed_to_stop(true);
        self.announce(name);
    }

    /// Announces this participant to all after a while, and tells it that it was announced.
    pub(crate) fn announce(&mut self, name: &str) {
        let who = self.ends[name].who.clone();
        let others: Vec<_> = self.others(name).map(|end| end.who.identity().to_string()).collect();
        for to in others.into_iter().chain([name.to_owned()]) {
            self.schedule(self.announce, Delivery::Joined { to, who: who.clone() });
        }
    }

    fn others(&self, name: &str) -> impl Iterator<Item = &End> {
        self.ends.values().filter(move |end| end.here && end.who.identity().as_str() != name)
    }

    /// Removes the participant; the room announces it after a while.
    pub(crate) fn leave(&mut self, name: &str) {
        let end = self.ends.get_mut(name).unwrap();
        end.here = false;
        let who = end.who.peer().clone();
        let others: Vec<_> = self.others(name).map(|end| end.who.identity().to_string()).collect();
        for to in others {
            self.schedule(self.announce, Delivery::Left { to, who: who.clone() });
        }
    }

    pub(crate) fn leave_if_here(&mut self, name: &str) {
        if self.ends.contains_key(name) {
            self.leave(name);
        }
    }

    /// Lets the same program rejoin under another sid.
    pub(crate) fn rejoin(&mut self, name: &str) {
        let sid = self.sid();
        let present: Vec<_> = self.others(name).map(|end| end.who.clone()).collect();
        let end = self.ends.get_mut(name).unwrap();
        let agent = end.who.is_agent();
        let who = Participant::new(name, sid).agent(agent);
        let who = if agent { who } else { who.role(Role::Client) };
        let who = who.allowed_to_stop(end.who.may_stop());
        end.who = who.clone();
        end.here = true;
        self.announce(name);
        self.note(name, || Noted::Here(who.clone()));
        for other in &present {
            self.note(name, || Noted::Joined(other.clone()));
        }
        self.with(name, |session, now| session.handle_rejoined(now, who.clone(), present.clone()));
    }

    /// Lets the participant lose its connection to the server for this long.
    pub(crate) fn outage(&mut self, name: &str, time: Duration) {
        for state in [ConnectionState::Reconnecting, ConnectionState::Connected] {
            self.with(name, |session, now| {
                session.handle_event(now, TransportEvent::ConnectionState(state));
            });
            self.run(time);
        }
    }

    /// Calls a function of a session, and handles its outputs.
    pub(crate) fn with<T>(&mut self, name: &str, act: impl FnOnce(&mut Session, Instant) -> T) -> Option<T> {
        let now = self.now;
        let result = self.ends.get_mut(name)?.session.as_mut().map(|session| act(session, now));
        self.flush(name);
        result
    }

    /// The error by which an owner refuses a request of the assistant `a`, because it is for another instance.
    pub(crate) fn other_instance(&self, key: CallKey) -> ErrorMessage {
        with!(
            ErrorMessage::default(),
            id = "e".into(),
            conversation_id = "room".into(),
            code = 304,
            message = "the request is for another instance".into(),
            severity = 2,
            recoverable = true,
            originating_id = self.session("a").call_id(key).map(|id| id.as_str().to_owned())
        )
    }

    /// The next question that its person was asked.
    pub(crate) fn question(&mut self, name: &str) -> Option<Question> {
        self.ends.get_mut(name)?.questions.pop_front()
    }

    pub(crate) fn session(&self, name: &str) -> &Session {
        self.ends[name].session.as_ref().unwrap()
    }

    pub(crate) fn count(&self, name: &str, counter: &str) -> u64 {
        self.session(name).stats().named(counter)
    }

    /// Starts a call.
    pub(crate) fn call(&mut self, name: &str, request: Request) -> Result<CallKey, CallError> {
        self.with(name, |session, now| session.call(now, request)).unwrap()
    }

    /// Starts a call and waits for its end.
    pub(crate) fn ask(&mut self, name: &str, request: Request) -> Result<Value, CallError> {
        let key = self.call(name, request)?;
        for _ in 0..100_000 {
            if let Some(at) = self.ends[name].settled.iter().position(|(settled, _)| *settled == key) {
                return self.ends.get_mut(name).unwrap().settled.remove(at).1;
            }
            assert!(self.step(), "no event is left, and the call has no outcome");
        }
        panic!("the call does not end");
    }

    pub(crate) fn settled(&self, name: &str, key: CallKey) -> Option<&Result<Value, CallError>> {
        self.ends[name].settled.iter().find(|(settled, _)| *settled == key).map(|(_, result)| result)
    }

    /// Settles the oldest job with this outcome.
    pub(crate) fn finish(&mut self, name: &str, outcome: Outcome) {
        let job = self.ends.get_mut(name).unwrap().jobs.remove(0);
        self.with(name, |session, now| session.settle(now, job.key, outcome));
    }

    /// Lets every job of this participant end at once.
    pub(crate) fn handle(&mut self, name: &str, handler: impl FnMut(&Job) -> Option<Outcome> + 'static) {
        self.ends.get_mut(name).unwrap().handler = Some(Box::new(handler));
    }

    /// Sends a frame of a played participant; to all if no receiver is named.
    pub(crate) fn send(&mut self, from: &str, to: &[&str], meta: &Meta, message: &Message) -> i32 {
        let end = self.ends.get_mut(from).unwrap();
        end.stanza += if end.who.is_agent() { -1 } else { 1 };
        let stanza = end.stanza;
        let bytes = Frame::write(stanza, "room", meta, message).unwrap();
        self.send_bytes(from, to, &bytes);
        stanza
    }

    /// Sends bytes of a played participant.
    pub(crate) fn send_bytes(&mut self, from: &str, to: &[&str], bytes: &[u8]) {
        let peer = self.ends[from].who.peer().clone();
        self.send_bytes_as(&peer, to, bytes);
    }

    /// Sends bytes from any peer.
    pub(crate) fn send_bytes_as(&mut self, peer: &Peer, to: &[&str], bytes: &[u8]) {
        let to: Vec<String> = match to {
            [] => self.others(peer.identity().as_str()).map(|end| end.who.identity().to_string()).collect(),
            some => some.iter().map(ToString::to_string).collect(),
        };
        let mut fate = self.fate.take();
        for to in to {
            let packet = || Delivery::Packet {
                to: to.clone(),
                from: peer.clone(),
                lane: Lane::Reliable,
                bytes: bytes.to_vec(),
            };
            let judge = |judge: &mut Judge| judge(&to, peer.identity(), &frame_of(bytes));
            match fate.as_mut().map_or(Fate::Arrives, judge) {
                Fate::Arrives => self.schedule(self.delay, packet()),
                Fate::IsLost => {}
                Fate::ComesTwice => {
                    self.schedule(self.delay, packet());
                    self.schedule(self.delay, packet());
                }
                Fate::IsOvertaken(later) => {
                    self.order += 1;
                    self.queue.insert((self.now + self.delay + later, self.order), packet());
                }
            }
        }
        self.fate = fate;
    }

    /// Sends a part of a stream from any peer.
    pub(crate) fn send_part(&mut self, from: &Peer, to: &[&str], part: &StreamPart) {
        for to in to {
            let delivery = Delivery::Part { to: (*to).to_owned(), from: from.clone(), part: part.clone() };
            self.schedule(self.delay, delivery);
        }
    }

    /// Sends a lossy packet: it may be lost, duplicated or overtaken, and waits for nothing.
    pub(crate) fn send_lossy(&mut self, peer: &Peer, to: &str, bytes: &[u8]) {
        let mut below = |share: u64| share > 0 && self.random.below(1000) < share;
        let (lost, twice, passed) =
            (below(self.lossy.lost), below(self.lossy.twice), below(self.lossy.passed));
        let more = if passed { self.delay * self.random.below(1000) as u32 / 1000 } else { Duration::ZERO };
        for copy in 0..if lost { 0 } else { 1 + u32::from(twice) } {
            let (to, from, bytes) = (to.to_owned(), peer.clone(), bytes.to_vec());
            self.order += 1;
            let at = self.now + self.delay + more + copy * self.delay / 4;
            let packet = Delivery::Packet { to, from, lane: Lane::Lossy, bytes };
            self.queue.insert((at, self.order), packet);
        }
    }

    /// The `meta` of a Configuration of this process, which a test plays, to a session.
    pub(crate) fn shows(&self, name: &str, to: &str, process: &str) -> Meta {
        Key::of(process).shows(self, to, self.ends[name].who.peer(), true)
    }

    /// The `meta` of a request that names the instance of this session, which has sent its Configuration.
    pub(crate) fn addressed_to(&self, name: &str) -> Meta {
        let (_, configuration) = &self.sent(name, Kind::CONFIGURATION)[0];
        let instance = configuration.meta_str("bridge.instance").unwrap();
        Meta::new().with_text("bridge.to", &hex(&Sha256::digest(instance)[..8]))
    }

    /// The messages of this type that a played participant received.
    pub(crate) fn received(&self, name: &str, kind: Kind) -> Vec<Message> {
        let of_kind = self.ends[name].inbox.iter().filter(|(_, frame)| frame.kind() == kind);
        of_kind.map(|(_, frame)| frame.message().unwrap()).collect()
    }

    /// The frames of this type that a session sent.
    pub(crate) fn sent(&self, name: &str, kind: Kind) -> Vec<(Vec<Identity>, Frame)> {
        self.ends[name].sent.iter().filter(|(_, frame)| frame.kind() == kind).cloned().collect()
    }

    /// Advances the time.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.next().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn next(&self) -> Option<Instant> {
        let timers = self.ends.values().filter_map(|end| end.session.as_ref()?.poll_timeout());
        let packets = self.queue.keys().next().map(|(at, _)| *at);
        timers.chain(packets).min().map(|at| at.max(self.now))
    }

    /// Handles the next event.
    pub(crate) fn step(&mut self) -> bool {
        let Some(at) = self.next() else { return false };
        self.now = at;
        if self.queue.keys().next().is_some_and(|(due, _)| *due <= at) {
            let (_, delivery) = self.queue.pop_first().unwrap();
            self.deliver(delivery);
            return true;
        }
        let due: Vec<_> = self
            .ends
            .iter()
            .filter(|(_, end)| {
                end.session
                    .as_ref()
                    .is_some_and(|session| session.poll_timeout().is_some_and(|due| due <= at))
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            self.with(&name, |session, now| session.handle_timeout(now));
        }
        true
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Joined { to, who } => {
                if self.ends.get(&to).is_some_and(|end| end.here) {
                    self.note(&to, || Noted::Joined(who.clone()));
                    self.with(&to, |session, now| session.handle_event(now, TransportEvent::Joined(who)));
                }
            }
            Delivery::Left { to, who } => {
                if self.ends.get(&to).is_some_and(|end| end.here) {
                    self.note(&to, || Noted::Left(who.clone()));
                    self.with(&to, |session, now| {
                        session.handle_event(now, TransportEvent::Left(who.clone()))
                    });
                }
            }
            Delivery::Part { to, from, part } => {
                if !self.ends.get(&to).is_some_and(|end| end.here) {
                    return;
                }
                self.note(&to, || Noted::HeardPart { from: from.clone(), part: part.clone() });
                let Some(end) = self.ends.get_mut(&to) else { return };
                match &mut end.session {
                    None => end.parts.push((from.identity().clone(), part)),
                    Some(_) => {
                        self.with(&to, |session, now| {
                            session.handle_event(now, TransportEvent::Stream { from: from.clone(), part })
                        });
                    }
                }
            }
            Delivery::Packet { to, from, lane, bytes } => {
                if !self.ends.get(&to).is_some_and(|end| end.here) {
                    return;
                }
                self.note(&to, || Noted::Heard { from: from.clone(), lane, bytes: bytes.clone() });
                let Some(end) = self.ends.get_mut(&to) else { return };
                match &mut end.session {
                    None => end.inbox.push((from.identity().clone(), Frame::decode(bytes).unwrap())),
                    Some(_) => {
                        self.with(&to, |session, now| match lane {
                            Lane::Reliable => session.handle_event(
                                now,
                                TransportEvent::packet(from.clone(), Lane::Reliable, bytes),
                            ),
                            Lane::Lossy => session
                                .handle_event(now, TransportEvent::packet(from.clone(), Lane::Lossy, bytes)),
                        });
                    }
                }
            }
        }
    }

    fn schedule(&mut self, after: Duration, delivery: Delivery) {
        let link = match &delivery {
            Delivery::Packet { to, from, .. } | Delivery::Part { to, from, .. } => {
                (to.clone(), from.sid().to_string())
            }
            Delivery::Joined { to, .. } | Delivery::Left { to, .. } => (to.clone(), String::new()),
        };
        let more = self.jitter.mul_f64(self.random.below(1000) as f64 / 1000.0);
        let last = self.last.entry(link).or_insert(self.now);
        *last = (self.now + after + more).max(*last);
        self.order += 1;
        self.queue.insert((*last, self.order), delivery);
    }

    pub(crate) fn flush(&mut self, name: &str) {
        loop {
            let Some(end) = self.ends.get_mut(name) else { return };
            let Some(output) = end.session.as_mut().and_then(Session::poll_output) else { return };
            match output {
                Output::Transmit(packet) => {
                    assert!(packet.is_addressed(), "a packet without receivers: {packet:?}");
                    if let Some(notes) = &mut self.notes {
                        notes.push((self.now, name.to_owned(), Noted::Sent(packet.clone())));
                    }
                    let frame = frame_of(&packet.payload);
                    end.sent.push((packet.to.clone(), frame.clone()));
                    self.packet = packet.id;
                    end.log.push((self.now, packet.lane, frame.clone()));
                    let is_muted = self.muted.contains(name);
                    let (from, here) = (end.who.peer().clone(), end.here && !is_muted);
                    let to: Vec<_> = packet.to.iter().map(Identity::as_str).collect();
                    let lost = self.lossy.lose.as_mut().is_some_and(|lose| lose(name, packet.lane, &frame));
                    if lost {
                        continue;
                    }
                    if here && packet.payload.len() > STREAM_CHUNK {
                        for mut part in StreamParts::of(&packet) {
                            if let Some(change) = &mut self.change_part {
                                change(name, &mut part);
                            }
                            self.send_part(&from, &to, &part);
                        }
                    } else if here && packet.lane == Lane::Lossy {
                        let [to] = to.as_slice() else { panic!("a lossy packet has one receiver") };
                        self.send_lossy(&from, to, &packet.payload);
                    } else if here {
                        self.send_bytes_as(&from, &to, &packet.payload);
                    } else if let Some(session) = &mut end.session {
                        if let Some(notes) = &mut self.notes {
                            notes.push((self.now, name.to_owned(), Noted::Unsent(packet.id)));
                        }
                        let why = if is_muted { SendFailure::NotAllowed } else { self.unsent.clone() };
                        session.handle_send_failed(self.now, packet.id, why);
                    }
                }
                Output::Execute(job) => {
                    self.executed.push((name.to_owned(), job.call.clone()));
                    if let Some(session) = end.session.as_mut().filter(|_| self.begins) {
                        session.progress(self.now, job.key, Progress::started());
                    }
                    let outcome = end.handler.as_mut().and_then(|handler| handler(&job));
                    match outcome {
                        Some(outcome) => {
                            let now = self.now;
                            if let Some(session) = &mut end.session {
                                session.settle(now, job.key, outcome);
                            }
                        }
                        None => end.jobs.push(job),
                    }
                }
                Output::Select(selection) => {
                    let now = self.now;
                    match &mut end.session {
                        Some(session) if self.answers_selections => {
                            session.select(now, selection.key, selection.evaluate());
                        }
                        _ => self.selections.push((name.to_owned(), selection)),
                    }
                }
                Output::Ask(question) => end.questions.push_back(question),
                Output::Abort { key, reason } => {
                    end.questions.retain(|question| question.key != key);
                    end.aborted.push(key);
                    end.reasons.push(reason);
                }
                Output::Settled { key, result } => end.settled.push((key, result)),
                Output::Event(event) => end.events.push(event),
            }
        }
    }
}

pub(crate) fn tool(name: &str) -> Tool {
    Tool::new(name.parse().unwrap(), "for a test")
}

pub(crate) fn request(tool: &str) -> Request {
    Request::new(tool, Value::empty())
}

pub(crate) fn value(number: i32) -> Value {
    Value::encode(&BTreeMap::from([("n", number)])).unwrap()
}

/// A different seed for each session.
pub(crate) fn seed(name: &str, number: u32) -> [u8; 32] {
    let mut seed = [0; 32];
    for (slot, byte) in seed.iter_mut().zip(name.bytes().chain(number.to_be_bytes())) {
        *slot = byte;
    }
    seed
}

/// The frame in a packet of a session, which may be compressed.
fn frame_of(packet: &[u8]) -> Frame {
    if let Some((&[0xc1, ..], stream)) = packet.split_first_chunk::<5>() {
        let mut frame = Vec::new();
        flate2::read::DeflateDecoder::new(stream).read_to_end(&mut frame).unwrap();
        return Frame::decode(frame).unwrap();
    }
    Frame::decode(packet.to_vec()).unwrap()
}

/// The text of a packet of a stream, which may be compressed.
pub(crate) fn plain(packet: &Packet, stream: &TextStream) -> Bytes {
    if stream.compression == Compression::None {
        return packet.payload.clone();
    }
    let mut plain = Vec::new();
    flate2::read::DeflateDecoder::new(&packet.payload[..]).read_to_end(&mut plain).unwrap();
    assert_eq!(plain.len() as u64, stream.length);
    plain.into()
}

/// The id of the last packet with a frame of this type that a session sent, if its inputs and outputs are captured.
pub(crate) fn sent_packet(world: &World, name: &str, kind: Kind) -> u64 {
    let is_it = |packet: &Packet| frame_of(&packet.payload).kind() == kind;
    let sent = world.notes.iter().flatten().rev().find_map(|(_, who, noted)| match noted {
        Noted::Sent(packet) if who == name && is_it(packet) => Some(packet.id),
        _ => None,
    });
    sent.unwrap()
}

/// The identities to which a session sent frames of this type.
pub(crate) fn receivers(sent: &[(Vec<Identity>, Frame)]) -> BTreeSet<Identity> {
    sent.iter().flat_map(|(to, _)| to.iter().cloned()).collect()
}

/// A small generator: the same seed gives the same run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// A request as a plain assistant writes it.
pub(crate) fn plain_request(id: &str, tool: &str) -> ToolUseRequest {
    with!(
        ToolUseRequest::new(id.parse().unwrap(), tool, Value::empty(), Ok(Execution::Client)),
        timeout_ms = Some(5_000)
    )
}
